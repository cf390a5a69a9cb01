"""msgpack as values: read, and written again. Extensions keep their code and their bytes."""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final, NamedTuple

__all__ = ["Extension", "Pairs", "pack", "unpack"]

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
