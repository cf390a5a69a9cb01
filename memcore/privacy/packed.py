"""Serialised values of a graph runtime: their leaves are redacted, and they are packed again.

LangGraph writes an object as a msgpack extension that holds module, name and arguments, packed once
more. What its serialiser makes of redacted arguments is an object all the same; where a constructor
refuses a placeholder (an IP address, a decimal), it hands out the placeholder alone.
"""

from __future__ import annotations

from typing import Any, Final

from memcore.privacy.border import Redacts
from memcore.privacy.msgpack import Extension, Pairs, pack, unpack

__all__ = ["Opaque", "redact_packed"]

_ARGUMENT: Final = 2
"""Where the arguments stand behind module and name."""
_OBJECTS: Final = frozenset(range(6))
_ARRAY: Final = 6
_DELTA: Final = 7
_VALUES: Final = frozenset(("uuid", "datetime", "zoneinfo"))
"""Modules of values that hold no text."""
_SEND: Final = ("langgraph.types", "Send")


class Opaque(ValueError):  # noqa: N818 - said of content, told as an error one layer up
    """Content that cannot be looked into."""


def redact_packed(redacts: Redacts, content: bytes, under: str | None = None) -> bytes:
    """A packed value with placeholders; the same object if nothing was found.

    Arrays of numpy are left as they are.

    Args:
        redacts: of the place.
        content: msgpack, as LangGraph's serialiser writes it.
        under: the key that the value stands under.

    Raises:
        Opaque: it is no msgpack, or holds an extension that is not known.
    """
    try:
        found = unpack(content)
        made = _Walk(redacts).value(found if under is None else {under: found})
        if under is not None:
            (made,) = made.values()
        return content if made is found else pack(made)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, Opaque):
            raise
        msg = f"it cannot be looked into ({exc})"
        raise Opaque(msg) from exc


class _Walk:
    """What is given back is the same object where nothing was found."""

    __slots__ = ("_redacts",)

    def __init__(self, redacts: Redacts) -> None:
        self._redacts = redacts

    def value(self, value: Any) -> Any:
        if _is_json(value):
            return self._redacts.value(value)[0]
        if isinstance(value, Extension):
            return self._extension(value)
        if isinstance(value, bytes):
            return self._redacts.counted_bytes(value)[0]
        if isinstance(value, Pairs):
            made = Pairs(self._under(key, entry) for key, entry in value)
            return made if _differs(made, value) else value
        if isinstance(value, dict):
            return self._dict(value)
        row = [self.value(entry) for entry in value]
        return row if any(a is not b for a, b in zip(row, value, strict=True)) else value

    def _under(self, key: Any, entry: Any) -> tuple[Any, Any]:
        if type(key) is not str:
            return (self.value(key) if type(key) is bytes else key), self.value(entry)
        (made,) = self._dict({key: entry}).items()
        return made

    def _dict(self, value: dict[str, Any]) -> dict[str, Any]:
        # What is JSON is redacted with its keys, which tell ids from numbers; of all else the keys.
        plain = {key: entry if _is_json(entry) else None for key, entry in value.items()}
        told = self._redacts.value(plain)[0]
        made = {
            name: walked if _is_json(entry) else self.value(entry)
            for (name, walked), entry in zip(told.items(), value.values(), strict=True)
        }
        same = told is plain and all(made[key] is entry for key, entry in value.items())
        return value if same else made

    def _extension(self, extension: Extension) -> Extension:
        code, content = extension
        if code == _ARRAY:
            return extension
        try:
            found = unpack(content)
        except ValueError as exc:
            msg = f"it holds an extension of type {code} that cannot be looked into"
            raise Opaque(msg) from exc
        made = self._object(found) if code in _OBJECTS else self.value(found)
        return extension if made is found else Extension(code, pack(made))

    def _object(self, found: Any) -> Any:
        """Module, name, arguments and what follows."""
        if type(found) is not list or len(found) <= _ARGUMENT or found[0] in _VALUES:
            return found
        argument = found[_ARGUMENT]
        if (found[0], found[1]) == _SEND and type(argument) is list and len(argument) > 1:
            sent = self.value(argument[1])
            made = argument if sent is argument[1] else [argument[0], sent, *argument[2:]]
        else:
            made = self.value(argument)
        if made is argument:
            return found
        return [*found[:_ARGUMENT], made, *found[_ARGUMENT + 1 :]]


def _differs(made: Pairs, value: Pairs) -> bool:
    return any(a[0] is not b[0] or a[1] is not b[1] for a, b in zip(made, value, strict=True))


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_json, value.values()))
    if kind is list:
        return all(map(_is_json, value))
    return kind not in (bytes, Extension, Pairs)
