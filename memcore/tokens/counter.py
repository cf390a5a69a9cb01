"""TokenCounter protocol, validation of counters' results, and truncation of texts.

A counter's id is stored with every count and in the head of each session; counts of different
counters are never added up.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.limits import ITEM_TOKENS_MAX
from memcore.options import checked_int, closest
from memcore.tokens.media import KINDS, PROFILES, Media, MediaTable
from memcore.tokens.message import gather, gather_tools, json_text, tool_rules

__all__ = [
    "MediaOption",
    "TextCounter",
    "TokenCounter",
    "Truncated",
    "checked_count",
    "checked_cut",
    "checked_text",
    "checked_tokens",
    "cut_text",
]


# --- The TokenCounter protocol, and checks of every counter's results -----------------------------

KEEPS: Final = ("head", "tail", "middle")
TOKENS_UNBOUNDED: Final = 2**62


class Truncated(NamedTuple):
    """A text truncated to a budget."""

    text: str
    """The same object as the original text, if that fits."""
    kept: int
    """Tokens of ``text``, including the marker; never above the budget."""
    total: int
    """Tokens of the original text."""


@runtime_checkable
class TokenCounter(Protocol):
    """Protocol of a token counter; ``get_counter`` completes one with only ``id`` and ``count``."""

    @property
    def id(self) -> str:
        """Stable name, stored with every count."""

    @property
    def exact(self) -> bool:
        """True if ``count`` returns the same number as a model's tokenizer."""

    def count(self, text: str) -> int:
        """Count the tokens of a text verbatim, including base64."""

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Count the tokens of each text, as ``array('I')``."""

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """Truncate a text to its largest part within ``max_tokens``, cut between characters.

        ``keep`` selects the part: ``"head"``, ``"tail"``, or ``"middle"`` for both ends. ``marker``
        replaces the omitted part and is counted.

        Raises:
            InvalidItemError: ``text`` is not a str.
            InvalidOptionError: ``max_tokens`` is not a positive int, ``keep`` is unknown, or the
                marker alone exceeds ``max_tokens``.
        """

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:
        """Count the tokens of a message; ``encoded`` is its compact JSON."""

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Count the tokens of tool definitions; 0 without tools."""


def checked_count(counter: TokenCounter, message: Mapping[str, Any], encoded: bytes) -> int:
    """Count a message and check the result.

    Raises:
        InvalidOptionError: the counter returned no int of 0 .. 2**32 - 1.
    """
    found = counter.count_message(message, encoded)
    if type(found) is int and 0 <= found <= ITEM_TOKENS_MAX:
        return found
    return checked_tokens(counter.id, found)


def checked_tokens(counter_id: str, found: Any) -> int:
    """``found`` if it is a valid number of tokens.

    Raises:
        InvalidOptionError: it is not an int of 0 .. 2**32 - 1.
    """
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= ITEM_TOKENS_MAX:
        msg = f"counter {counter_id!r} returned {found!r:.80}; expected an int of 0 to 2**32 - 1"
        raise InvalidOptionError(msg)
    return int(found)


def checked_text(text: Any) -> str:
    """``text`` as a plain str, if it is a str.

    Raises:
        InvalidItemError: it is not.
    """
    if type(text) is str:
        return text
    if not isinstance(text, str):
        msg = f"text: expected a str, got {type(text).__name__}"
        raise InvalidItemError(msg)
    return str.__str__(text)


def checked_cut(text: Any, max_tokens: Any, keep: Any, marker: Any) -> tuple[str, int]:
    """Check the arguments of ``truncate``; returns ``(text, max_tokens)``.

    Raises:
        InvalidItemError: as ``TokenCounter.truncate``.
        InvalidOptionError: as ``TokenCounter.truncate``.
    """
    if not isinstance(keep, str) or keep not in KEEPS:
        msg = f"keep: expected 'head', 'tail' or 'middle', got {keep!r:.80}"
        raise InvalidOptionError(msg)
    if marker is not None and not isinstance(marker, str):
        msg = f"marker: expected a str or None, got {type(marker).__name__}"
        raise InvalidOptionError(msg)
    tokens = min(checked_int("max_tokens", max_tokens, least=1), TOKENS_UNBOUNDED)
    return text if isinstance(text, str) else checked_text(text), tokens


def marker_error(marker: str, tokens: int, max_tokens: int) -> InvalidOptionError:
    """Build the error for a marker that alone exceeds the budget."""
    msg = (
        f"marker {marker!r:.80} is {tokens} tokens, above max_tokens={max_tokens}: shorten it or "
        "raise max_tokens"
    )
    return InvalidOptionError(msg)


# --- Truncation by counting alone, for counters without known token boundaries --------------------
# Counts of prefixes are not monotonic (a letter may complete a token), so the search finds a large
# part that fits, not always the largest. Its result has been counted: it never exceeds the budget.


def cut_text(
    count: Callable[[str], int],
    text: str,
    max_tokens: int,
    *,
    keep: str = "head",
    marker: str | None = None,
) -> Truncated:
    """Truncate as ``TokenCounter`` does, by bisection over characters: about log2(len) counts.

    Raises:
        InvalidItemError: as ``TokenCounter.truncate``.
        InvalidOptionError: as ``TokenCounter.truncate``.
    """
    text, max_tokens = checked_cut(text, max_tokens, keep, marker)
    sign = marker or ""
    if sign and (alone := count(sign)) > max_tokens:
        raise marker_error(sign, alone, max_tokens)
    total = count(text)
    if total <= max_tokens:
        return Truncated(text, total, total)

    def part(chars: int) -> str:
        head = {"head": chars, "tail": 0, "middle": chars - chars // 2}[keep]
        return text[:head] + sign + text[len(text) - (chars - head) :]

    best, best_tokens = "", 0
    fits, over = 0, len(text)  # parts of fewer than ``fits`` characters were found to fit
    probe = min(over - 1, int(over * (max_tokens / total)))
    while fits < over:
        found = part(probe)
        tokens = count(found)
        if tokens <= max_tokens:
            best, best_tokens, fits = found, tokens, probe + 1
        else:
            over = probe
        probe = (fits + over) // 2
    return Truncated(best, best_tokens, total)


# --- Base of the counters that count texts: messages, tools, many texts, truncation ---------------
# A counter in this module is a function from text to tokens plus a provider's profile, which
# determines how images, recordings, documents and tools are counted.

MediaOption = str | MediaTable | Mapping[str, int] | None
"""Name of a profile, a function from ``Media`` to tokens, or tokens by kind of media."""
DEFAULT_PROFILE: Final = "openai"


class TextCounter(ABC):
    """Base of the built-in counters: everything except ``_tokens_of`` is derived.

    Args:
        name: the id, to which a non-default profile and an override of it are appended.
        exact: whether it counts as a model's tokenizer does.
        profile: a name in ``memcore.tokens.PROFILES``.
        media: costs of images and other media in place of the profile's: a function from ``Media``
            to tokens, or a mapping from kinds (``image``, ``audio``, ``video``, ``document``) to
            tokens.
        encoding: the encoding, if it affects how tools are counted.

    Raises:
        InvalidOptionError: an unknown profile or kind, or a function without a name of its own.
    """

    __slots__ = ("_media", "_tool_rules", "exact", "id", "profile")

    def __init__(
        self,
        name: str,
        *,
        exact: bool,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
        encoding: str = "",
    ) -> None:
        if isinstance(media, str):
            profile, media = media, None
        table = profile_named(profile)
        suffix = "" if profile == DEFAULT_PROFILE else f"@{profile}"
        self._media, override = _overridden(table, media)
        self._tool_rules = tool_rules(profile, encoding)
        self.id = name + suffix + override
        self.exact = exact
        self.profile = profile

    @abstractmethod
    def _tokens_of(self, text: str) -> int:
        """Count the tokens of a plain str."""

    def _tokens_of_all(self, texts: list[str]) -> int:
        """Count the tokens of several texts in total."""
        return sum(self.count_many(texts))

    def count(self, text: str) -> int:
        """Count the tokens of a text verbatim, including base64.

        Raises:
            InvalidItemError: ``text`` is not a str.
        """
        return checked_tokens(self.id, self._tokens_of(checked_text(text)))

    def fits(self, text: str, max_tokens: int) -> bool:
        """Return whether a text has at most ``max_tokens`` tokens, without counting if possible.

        Raises:
            InvalidItemError: ``text`` is not a str.
            InvalidOptionError: ``max_tokens`` is not an int of 0 or more.
        """
        return self.count(text) <= checked_int("max_tokens", max_tokens)

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Count the tokens of each text.

        Raises:
            InvalidItemError: one of them is not a str.
            InvalidOptionError: ``texts`` is a str, or not a sequence.
        """
        return array("I", map(self.count, checked_texts(texts)))

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """Truncate a text to its largest part within ``max_tokens``: see ``TokenCounter``."""
        return cut_text(self.count, text, max_tokens, keep=keep, marker=marker)

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:  # noqa: ARG002
        """Count the tokens of a message by the rules of ``memcore.tokens.message``."""
        fixed, texts, media = gather(encoded)
        tokens = fixed + self._tokens_of_all(texts)
        return tokens + self._media_tokens(media) if media else tokens

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Count the tokens of tool definitions by the rules of the profile's provider.

        Raises:
            InvalidItemError: ``tools`` is not a list of JSON objects.
        """
        fixed, texts = gather_tools(tools, self._tool_rules)
        return fixed + self._tokens_of_all(texts)

    def _media_tokens(self, media: list[Media]) -> int:
        return sum(checked_tokens(f"{self.id} (media)", self._media(part)) for part in media)


def checked_texts(texts: Any) -> Sequence[str]:
    """``texts`` if it is a list or another sequence, but not a str.

    Raises:
        InvalidOptionError: it is not.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        msg = f"texts: expected a list of str, got {type(texts).__name__}"
        raise InvalidOptionError(msg)
    return texts


def profile_named(name: Any) -> MediaTable:
    """Look up a media table by the name of its profile.

    Raises:
        InvalidOptionError: there is no such profile.
    """
    found = PROFILES.get(name) if isinstance(name, str) else None
    if found is None:
        close = closest(str(name), PROFILES)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        msg = f"no media profile is named {name!r:.80}; there are {', '.join(PROFILES)}{hint}"
        raise InvalidOptionError(msg)
    return found


def _overridden(table: MediaTable, media: Any) -> tuple[MediaTable, str]:
    """Override a table with the caller's figures; returns it with the suffix for the id."""
    if media is None:
        return table, ""
    if isinstance(media, Mapping):
        given = dict(media)
        for kind, tokens in given.items():
            if kind not in KINDS:
                msg = f"media: no kind is named {kind!r:.80}; expected {', '.join(KINDS)}"
                raise InvalidOptionError(msg)
            checked_tokens(f"media[{kind!r}]", tokens)
        digest = zlib.crc32(json_text(dict(sorted(given.items()))).encode())

        def by_kind(part: Media) -> int:
            found = given.get(part.kind)
            return table(part) if found is None else found

        return by_kind, f"+media-{digest:08x}"
    name = getattr(media, "__name__", "")
    if not callable(media) or not isinstance(name, str) or not name.isidentifier():
        msg = (
            f"media: expected a profile's name, a mapping or a named function, got {media!r:.80}: "
            "its name becomes part of the counter's id"
        )
        raise InvalidOptionError(msg)
    return media, f"+media-{name}"


class CallableCounter(TextCounter):
    """Wraps any ``Callable[[str], int]``; its ``name`` is stored with every count."""

    __slots__ = ("_count",)

    def __init__(
        self,
        count: Callable[[str], int],
        *,
        name: str,
        exact: bool = False,
        profile: str = DEFAULT_PROFILE,
        media: MediaOption = None,
    ) -> None:
        if not callable(count) or not isinstance(name, str):
            msg = (
                "CallableCounter: expected a function and name='...', got "
                f"{type(count).__name__} and {name!r:.80}"
            )
            raise InvalidOptionError(msg)
        super().__init__(name, exact=exact, profile=profile, media=media)
        self._count = count

    def _tokens_of(self, text: str) -> int:
        return self._count(text)


class CompletedCounter(TextCounter):
    """Wraps a custom counter and derives the protocol's methods that it lacks."""

    __slots__ = ("_counter",)

    def __init__(self, counter: Any) -> None:
        super().__init__(counter.id, exact=getattr(counter, "exact", False) is True)
        self._counter = counter

    def _own(self, method: str) -> Any:
        found = getattr(self._counter, method, None)
        return found if callable(found) else getattr(super(), method)

    def _tokens_of(self, text: str) -> int:
        found: int = self._counter.count(text)
        return found

    def count_many(self, texts: Sequence[str]) -> array[int]:
        """Count the tokens of each text."""
        found: array[int] = self._own("count_many")(texts)
        return found

    def truncate(
        self, text: str, max_tokens: int, *, keep: str = "head", marker: str | None = None
    ) -> Truncated:
        """Truncate a text to its largest part within ``max_tokens``."""
        found: Truncated = self._own("truncate")(text, max_tokens, keep=keep, marker=marker)
        return found

    def count_message(self, message: Mapping[str, Any], encoded: bytes) -> int:
        """Count the tokens of a message."""
        return checked_tokens(self.id, self._own("count_message")(message, encoded))

    def count_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Count the tokens of tool definitions."""
        return checked_tokens(self.id, self._own("count_tools")(tools))
