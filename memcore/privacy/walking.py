"""JSON values: their leaves are redacted, what frameworks pair by is not.

A value is walked without recursion. What was found nothing in is handed back itself, whole or in
parts. Inside messages and their blocks, ids, types, roles and the names of tools stay; inside the
arguments of calls, results and states, where any key may stand, only the ids of calls do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from memcore._fast import key_context
from memcore.errors import InvalidItemError
from memcore.privacy.classes import CLASSES, CODE_CONTEXT, ID_CONTEXT
from memcore.privacy.embedded import redact_text
from memcore.privacy.placeholders import PLACEHOLDER
from memcore.privacy.protected import (
    ALWAYS_IDS,
    DATA_KEYS,
    ID_KEYS,
    INHERITING_KEYS,
    is_envelope,
    is_media,
    is_protected,
    is_structure,
    looks_like_id,
)

__all__ = ["Walk"]

Redact = Callable[[str, int, str | None, Counter[str]], str]
"""``(text, context, key, found)``: one text."""

_DEPTH_MAX: Final = 512
_KEY_CHARS_MAX: Final = 128
_FIELD_CHARS_MAX: Final = 19
_NUMBER_LEAST: Final = 1_000
_ID_LEAST: Final = 10**17
_NUMBERS: Final = CODE_CONTEXT | sum(
    1 << CLASSES[name] for name in ("cn_mobile", "phone", "student_id", "card", "password")
)


@lru_cache(maxsize=2048)
def _context_of(key: str) -> int:
    return key_context(key)


class _Frame:
    """One container on the way down."""

    __slots__ = ("changed", "context", "entries", "inside", "key", "place", "sort", "source")

    def __init__(
        self, source: Any, place: Any, key: str | None, context: int, *, inside: bool
    ) -> None:
        self.source = source
        self.place = place
        """Where it stands in the container around it."""
        self.key = key
        self.context = context
        self.inside = inside
        """Whether any key may stand here: arguments, results, states."""
        self.changed: Any = None
        self.sort = 0
        if not isinstance(source, dict):
            self.entries: Iterator[tuple[Any, Any]] = iter(enumerate(source))
            return
        self.sort = _DATA if inside or not is_envelope(source) else _ENVELOPE
        self.entries = iter(source.items())


_DATA: Final = 1
_ENVELOPE: Final = 2


class Walk:
    """Walks values for one redaction.

    Args:
        redact: redacts one text as it is.
        suspects: whether something may be found in a text.
        own: whether names, patterns or redactors of the caller's are looked for: then any key may
            be a value.
    """

    __slots__ = ("_own", "plain", "suspects")

    def __init__(self, redact: Redact, suspects: Callable[[str], bool], *, own: bool) -> None:
        self.plain = redact
        self.suspects = suspects
        self._own = own

    def value(self, value: Any, found: Counter[str], *, inside: bool = False) -> Any:
        """The value with placeholders; the same object if nothing was found.

        Raises:
            InvalidItemError: it is nested deeper than 512 levels, or circular.
        """
        if not isinstance(value, dict | list | tuple):
            return self._leaf(value, None, 0, found)
        stack = [_Frame(value, None, None, 0, inside=inside)]
        while True:
            frame = stack[-1]
            below = self._advance(frame, found)
            if below is not None:
                if len(stack) >= _DEPTH_MAX:
                    msg = (
                        f"a value to redact is nested deeper than {_DEPTH_MAX} levels, or circular"
                    )
                    raise InvalidItemError(msg)
                stack.append(below)
                continue
            stack.pop()
            made = frame.source if frame.changed is None else frame.changed
            if frame.sort:
                made = self._with_keys(made, found, own=self._own and frame.sort == _DATA)
            if not stack:
                return made
            if made is not frame.source:
                _put(stack[-1], frame.place, made)

    def _advance(self, frame: _Frame, found: Counter[str]) -> _Frame | None:
        """Redact leaves up to the next container, which is returned; None at the end."""
        for place, entry in frame.entries:
            key, context = frame.key, frame.context
            inside = frame.inside
            if frame.sort:
                said = _said(frame, place, entry)
                if said is None:
                    continue
                key, context = place, said
                if frame.sort == _ENVELOPE:
                    inside = inside or (place in DATA_KEYS and isinstance(entry, dict))
            if isinstance(entry, dict | list | tuple):
                if entry:
                    return _Frame(entry, place, key, context, inside=inside)
                continue
            made = self._leaf(entry, key, context, found)
            if made is not entry:
                _put(frame, place, made)
        return None

    def _leaf(self, value: Any, key: str | None, context: int, found: Counter[str]) -> Any:
        if isinstance(value, str):
            return redact_text(self, value, found, context=context, key=key) if value else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if context == ID_CONTEXT or not _NUMBER_LEAST <= value < 10**24:
            return value
        if isinstance(value, float) and not value.is_integer():
            return value
        if context & _NUMBERS or value >= _ID_LEAST:
            scratch: Counter[str] = Counter()
            made = self.plain(str(int(value)), context, key, scratch)
            if PLACEHOLDER.fullmatch(made):
                found.update(scratch)
                return made
        return value

    def _with_keys(self, value: Any, found: Counter[str], *, own: bool) -> Any:
        """A dict whose keys are redacted too, in the same order; none is lost.

        ``own``: plain ones too, which names and patterns of the caller's may find.
        """
        changed: dict[str, str] = {}
        for key in value:
            if isinstance(key, str) and (own or not _is_field(key)):
                made = self.plain(key, 0, None, found)
                if made is not key:
                    changed[key] = made
        if not changed:
            return value
        taken = set(value) - set(changed)
        for key, made in changed.items():
            name, count = made, 1
            while name in taken:
                count += 1
                name = f"{made}_{count}"
            taken.add(name)
            changed[key] = name
        return {changed.get(key, key): entry for key, entry in value.items()}


def _said(frame: _Frame, key: Any, entry: Any) -> int | None:
    """The context that a key gives an entry; None: it stays as it is."""
    if not isinstance(key, str):
        return None
    if frame.sort == _ENVELOPE:
        if is_structure(key, entry):
            return ID_CONTEXT
        if is_protected(key, entry) or is_media(frame.source, key):
            return None
    elif key in ALWAYS_IDS and looks_like_id(entry):
        return None
    elif key in ID_KEYS:
        return ID_CONTEXT
    context = _context_of(key) if len(key) <= _KEY_CHARS_MAX else 0
    return frame.context if not context and key in INHERITING_KEYS else context


def _is_field(key: str) -> bool:
    """Whether a key is too short and too plain to be a value of a built-in class."""
    return len(key) <= _FIELD_CHARS_MAX and key.isascii() and key.isidentifier()


def _put(frame: _Frame, place: Any, made: Any) -> None:
    """Put an entry into the copy of a container, which is made now if there is none."""
    if frame.changed is None:
        frame.changed = dict(frame.source) if frame.sort else list(frame.source)
    frame.changed[place] = made
