"""What was found in a text, by whom, and how findings that overlap become one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from memcore.errors import InvalidOptionError
from memcore.privacy.placeholders import PLACEHOLDER

__all__ = ["KIND", "NAME_CLASS", "RedactionContext", "Redactor", "Span", "spans_of", "united"]

KIND: Final = re.compile(r"[a-z](?:[a-z_]{0,30}[a-z])?")
"""The name of a class."""
NAME_CLASS: Final = "name"
_TEXT_CLASS: Final = "text"


class Span(NamedTuple):
    """What was found: offsets into the text, and the class in lower case."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True, slots=True)
class RedactionContext:
    """Where a text comes from, for redactors of your own."""

    app: str
    user: str
    session: str | None
    """None: not of one session."""
    key: str | None = None
    """The JSON key that the text is the value of."""


@runtime_checkable
class Redactor(Protocol):
    """Finds what the built-in classes do not know. Called wherever a text is redacted."""

    def redact(self, text: str, context: RedactionContext) -> tuple[str, Iterable[Span]]:
        """``(text, spans)``: what to redact, as offsets into the text that was given.

        memcore puts its own placeholders there, so the first of the pair counts only without spans:
        a text that differs is taken as it is. What is raised stops the write: nothing is stored.
        """
        ...


def spans_of(redactor: Redactor, text: str, context: RedactionContext) -> list[Span]:
    """What a redactor of the caller's finds in a text.

    Raises:
        InvalidOptionError: its answer is not what ``Redactor.redact`` promises.
    """
    made, given = redactor.redact(text, context)
    found = []
    for entry in given:
        start, stop, kind = entry
        if not (isinstance(kind, str) and KIND.fullmatch(kind.lower())):
            msg = f"{type(redactor).__name__}.redact: expected a class of letters, got {kind!r:.80}"
            raise InvalidOptionError(msg)
        if not 0 <= start <= stop <= len(text):
            msg = f"{type(redactor).__name__}.redact: {start}:{stop} is no part of the text"
            raise InvalidOptionError(msg)
        found.append(Span(start, stop, kind.lower()))
    if not found and made != text:
        found.append(_difference(text, made))
    return found


def _difference(text: str, made: str) -> Span:
    """The part of a text that a redactor changed without saying where."""
    start, stop, end = 0, len(text), len(made)
    while start < min(stop, end) and text[start] == made[start]:
        start += 1
    while stop > start and end > start and text[stop - 1] == made[end - 1]:
        stop -= 1
        end -= 1
    return Span(start, max(stop, min(start + 1, len(text))), _TEXT_CLASS)


def united(spans: list[Span], text: str, placeholders: re.Pattern[str] = PLACEHOLDER) -> list[Span]:
    """The spans in order, without placeholders and empty ones; those that overlap are one.

    It has the class of the one that was found first: built-in ones come before names, names before
    patterns, patterns before redactors.
    """
    kept = [span for span in spans if span.stop > span.start]
    if not kept:
        return kept
    holes = [found.span() for found in placeholders.finditer(text)]
    if holes:
        kept = [part for span in kept for part in _without(span, holes)]
    ranked = sorted(enumerate(kept), key=lambda entry: (entry[1].start, entry[0]))
    made: list[tuple[int, Span]] = []
    for rank, span in ranked:
        if made and span.start < made[-1][1].stop:
            first, last = made[-1]
            best = last if first < rank else span
            joined = Span(last.start, max(last.stop, span.stop), best.kind)
            made[-1] = (min(first, rank), joined)
        else:
            made.append((rank, span))
    return [span for _, span in made]


def _without(span: Span, holes: list[tuple[int, int]]) -> list[Span]:
    """What of a span lies outside of placeholders."""
    parts, at = [], span.start
    for start, stop in holes:
        if stop <= at or start >= span.stop:
            continue
        if start > at:
            parts.append(Span(at, start, span.kind))
        at = stop
    if at < span.stop:
        parts.append(Span(at, span.stop, span.kind))
    return parts
