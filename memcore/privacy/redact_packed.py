"""Redaction inside serialized values of graph runtimes.

LangGraph writes an object as a msgpack extension that holds module, name and arguments, packed once
more. What its serialiser makes of redacted arguments is an object all the same; where a constructor
refuses a placeholder (an IP address, a decimal), it hands out the placeholder alone.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final, NamedTuple

from memcore.privacy.write_filter import Redacts

__all__ = [
    "Extension",
    "OpaqueContent",
    "Pairs",
    "pack",
    "redact_packed",
    "unpack",
]


# --- msgpack as values: read, and written again. Extensions keep their code and their bytes -------

# ruff: noqa: PLR2004 - the marks are numbers
_NARROW: Final = {
    0xCC: Struct(">B"),
    0xCD: Struct(">H"),
    0xCE: Struct(">I"),
    0xCF: Struct(">Q"),
    0xD0: Struct(">b"),
    0xD1: Struct(">h"),
    0xD2: Struct(">i"),
    0xD3: Struct(">q"),
    0xCA: Struct(">f"),
    0xCB: Struct(">d"),
}
_SIZES: Final = {1: Struct(">B"), 2: Struct(">H"), 4: Struct(">I")}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_TEXTS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


class Extension(NamedTuple):
    """An application's own type."""

    code: int
    content: bytes

    def __str__(self) -> str:
        """``<ext 5: 120 bytes: module.Class>``; what the name stands for is never looked up."""
        named = ""
        try:
            found = unpack(self.content)
            if type(found) is list and [type(part) for part in found[:2]] == [str, str]:
                named = f": {found[0]}.{found[1]}"
        except (ValueError, RecursionError):
            pass  # an application's own bytes
        return f"<ext {self.code}: {len(self.content)} bytes{named:.80}>"


class Pairs(list[tuple[Any, Any]]):
    """A map whose keys are not all strings."""


class _Reader:
    __slots__ = ("at", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def value(self) -> Any:  # noqa: C901, PLR0911, PLR0912 - a branch a sort, as the format has them
        mark = self.content[self.at]
        self.at += 1
        if mark < 0x80:
            return mark
        if mark >= 0xE0:
            return mark - 0x100
        if mark < 0x90:
            return self._map(mark & 0x0F)
        if mark < 0xA0:
            return [self.value() for _ in range(mark & 0x0F)]
        if mark < 0xC0:
            return self._text(mark & 0x1F)
        if mark in _CONSTANTS:
            return _CONSTANTS[mark]
        if mark in _TEXTS:
            return self._text(self._number(_SIZES[_TEXTS[mark]]))
        if mark in _NARROW:
            return self._number(_NARROW[mark])
        if mark in _ARRAYS:
            return [self.value() for _ in range(self._number(_SIZES[_ARRAYS[mark]]))]
        if mark in _MAPS:
            return self._map(self._number(_SIZES[_MAPS[mark]]))
        if mark in _BYTES:
            return self._take(self._number(_SIZES[_BYTES[mark]]))
        if mark in _FIXED_EXTENSIONS:
            return self._extension(_FIXED_EXTENSIONS[mark])
        if mark in _EXTENSIONS:
            return self._extension(self._number(_SIZES[_EXTENSIONS[mark]]))
        msg = f"no msgpack: byte {mark:#x} at {self.at - 1}"
        raise ValueError(msg)

    def _number(self, form: Struct) -> Any:
        (number,) = form.unpack_from(self.content, self.at)
        self.at += form.size
        return number

    def _take(self, size: int) -> bytes:
        taken = self.content[self.at : self.at + size]
        if len(taken) != size:
            msg = f"no msgpack: it ends inside a value of {size} bytes"
            raise ValueError(msg)
        self.at += size
        return taken

    def _text(self, size: int) -> str:
        return self._take(size).decode("utf-8", "surrogatepass")

    def _extension(self, size: int) -> Extension:
        code = self._number(_NARROW[0xD0])
        return Extension(code, self._take(size))

    def _map(self, size: int) -> dict[str, Any] | Pairs:
        pairs = Pairs((self.value(), self.value()) for _ in range(size))
        if all(type(key) is str for key, _ in pairs):
            return dict(pairs)
        return pairs


def unpack(content: bytes) -> Any:
    """The one value that the bytes are.

    Raises:
        ValueError: they are no msgpack, or more than one value.
        RecursionError: nested too deep.
    """
    reader = _Reader(content)
    try:
        found = reader.value()
    except (IndexError, error) as exc:
        msg = "no msgpack: it is cut short"
        raise ValueError(msg) from exc
    if reader.at != len(content):
        msg = f"no msgpack: {len(content) - reader.at} bytes follow the value"
        raise ValueError(msg)
    return found


def pack(value: Any) -> bytes:
    """The bytes of what ``unpack`` gave, in the shortest form; floats take eight bytes."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes]) -> None:
    kind = type(value)
    if value is None or kind is bool:
        parts.append({None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value])
    elif kind is str:
        text = value.encode("utf-8", "surrogatepass")
        parts.append(_head(len(text), (0xA0, 0x20), (0xD9, 0xDA, 0xDB)) + text)
    elif kind is int:
        parts.append(_integer(value))
    elif kind is float:
        parts.append(b"\xcb" + _NARROW[0xCB].pack(value))
    elif kind is bytes:
        parts.append(_head(len(value), (0, 0), (0xC4, 0xC5, 0xC6)) + value)
    elif kind is Extension:
        parts.append(_extended(value))
    elif kind is list:
        parts.append(_head(len(value), (0x90, 0x10), (None, 0xDC, 0xDD)))
        for entry in value:
            _write(entry, parts)
    else:
        pairs = value if kind is Pairs else value.items()
        parts.append(_head(len(value), (0x80, 0x10), (None, 0xDE, 0xDF)))
        for key, entry in pairs:
            _write(key, parts)
            _write(entry, parts)


def _head(size: int, short: tuple[int, int], marks: tuple[int | None, int, int]) -> bytes:
    if size < short[1]:
        return bytes((short[0] | size,))
    for mark, width in zip(marks, (1, 2, 4), strict=True):
        if mark is not None and size < 1 << 8 * width:
            return bytes((mark,)) + size.to_bytes(width, "big")
    msg = f"{size} entries are more than msgpack holds"
    raise ValueError(msg)


def _integer(number: int) -> bytes:
    if -0x20 <= number < 0x80:
        return (number & 0xFF).to_bytes(1, "big")
    first, signed = (0xCC, False) if number >= 0 else (0xD0, True)
    for at, width in enumerate((1, 2, 4, 8)):
        try:
            return bytes((first + at,)) + number.to_bytes(width, "big", signed=signed)
        except OverflowError:
            continue
    msg = "an integer of more than 64 bits"
    raise ValueError(msg)


def _extended(extension: Extension) -> bytes:
    code, content = extension
    for mark, size in _FIXED_EXTENSIONS.items():
        if len(content) == size:
            return bytes((mark, code & 0xFF)) + content
    return _head(len(content), (0, 0), (0xC7, 0xC8, 0xC9)) + bytes((code & 0xFF,)) + content


# --- Serialised values of a graph runtime: their leaves are redacted, and they are packed again ---

_ARGUMENT: Final = 2
"""Where the arguments stand behind module and name."""
_OBJECTS: Final = frozenset(range(6))
_ARRAY: Final = 6
_DELTA: Final = 7
_VALUES: Final = frozenset(("uuid", "datetime", "zoneinfo"))
"""Modules of values that hold no text."""
_SEND: Final = ("langgraph.types", "Send")


class OpaqueContent(ValueError):  # noqa: N818 - said of content, told as an error one layer up
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
        made = _PackedWalk(redacts).value(found if under is None else {under: found})
        if under is not None:
            (made,) = made.values()
        return content if made is found else pack(made)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, OpaqueContent):
            raise
        msg = f"it cannot be looked into ({exc})"
        raise OpaqueContent(msg) from exc


class _PackedWalk:
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
            raise OpaqueContent(msg) from exc
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
