"""Texts that may be JSON: the arguments of calls, results of tools, files.

JSON is redacted leaf by leaf and never in its serialised form, which would break it and miss what
is escaped. It is written again only if something was found.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final, Protocol

import orjson

__all__ = ["Handling", "redact_text"]


_INDENT: Final = re.compile(r"[\[{]\r?\n([ \t]+)")
_DATA_URL: Final = re.compile(r"data:[\w.+/=;-]{0,120};base64,[A-Za-z0-9+/=_-]*\s*", re.ASCII)
_PAIRS: Final = {"{": "}", "[": "]"}


class Handling(Protocol):
    """How texts and values are redacted, see ``memcore.privacy.walking``."""

    def plain(self, text: str, context: int, key: str | None, found: Counter[str]) -> str:
        """A text as it is."""
        ...

    def value(self, value: Any, found: Counter[str], *, inside: bool = False) -> Any:
        """A JSON value."""
        ...

    def suspects(self, text: str) -> bool:
        """Whether something may be found in a text."""
        ...


def redact_text(
    how: Handling, text: str, found: Counter[str], *, context: int = 0, key: str | None = None
) -> str:
    """The text with placeholders; the same object if nothing was found."""
    first = text[:1]
    if first == "d" and text.startswith("data:") and _DATA_URL.fullmatch(text):
        return text
    if first in _PAIRS or first.isspace():
        made = _redacted_json(how, text, found)
        if made is not None:
            return made
    return how.plain(text, context, key, found)


def _redacted_json(how: Handling, text: str, found: Counter[str]) -> str | None:
    """As ``redact_text``, None if it is no JSON object or list."""
    bare = text.strip()
    if not bare or _PAIRS.get(bare[0]) != bare[-1]:
        return None
    value = _loaded(bare)
    if value is None:
        return _redacted_lines(how, text, found) if "\n" in bare else None
    try:
        if how.value(value, Counter(), inside=True) is value and not how.suspects(text):
            return text
        # Again without a loss: big integers stay what they are, and no key is there twice.
        value = json.loads(bare, object_pairs_hook=_once)
        made = how.value(value, found, inside=True)
    except (ValueError, RecursionError):
        return None
    return text if made is value else text.replace(bare, _dumped(made, bare), 1)


def _redacted_lines(how: Handling, text: str, found: Counter[str]) -> str | None:
    """As ``redact_text`` for lines of JSON, None if the first is none."""
    lines = text.splitlines(keepends=True)
    if _loaded(lines[0].strip()) is None:
        return None
    made = [redact_text(how, line, found) for line in lines]
    return text if all(a is b for a, b in zip(made, lines, strict=True)) else "".join(made)


def _loaded(text: str) -> Any:
    """The object or list, None if it is none."""
    try:
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict | list) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one with the same key twice hides values, so it is treated as a text."""
    made = dict(pairs)
    if len(made) < len(pairs):
        msg = "the same key twice"
        raise ValueError(msg)
    return made


def _dumped(value: Any, like: str) -> str:
    """The JSON, written as it was: with blanks or without, with escapes or without."""
    indent = _INDENT.match(like)
    spaced = '": ' in like or ('":' not in like and ", " in like)
    return json.dumps(
        value,
        ensure_ascii=like.isascii(),
        indent=indent[1] if indent else None,
        separators=("," if indent or not spaced else ", ", ": " if spaced else ":"),
    )
