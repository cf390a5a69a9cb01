"""Redaction inside serialized values of graph runtimes.

LangGraph writes an object as a msgpack extension that holds module, name and arguments, packed once
more. From redacted arguments its serializer still builds an object; where a constructor refuses a
placeholder (an IP address, a decimal), it returns the bare placeholder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from struct import Struct, error
from typing import Any, Final, NamedTuple

from memcore.privacy.redact import decoded_text, encoded_text
from memcore.privacy.write_filter import Redacts

__all__ = [
    "Extension",
    "OpaqueContent",
    "Pairs",
    "pack",
    "redact_packed",
    "redact_parts",
    "unpack",
]


# --- msgpack as values: decoding and encoding. Extensions keep their code and their bytes ---------

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
    """An application-defined msgpack type."""

    code: int
    content: bytes

    def __str__(self) -> str:
        """Return ``<ext 5: 120 bytes: module.Class>``; the class is never imported."""
        named = ""
        try:
            found = unpack(self.content)
            if type(found) is list and [type(part) for part in found[:2]] == [str, str]:
                named = f": {found[0]}.{found[1]}"
        except (ValueError, RecursionError):
            pass  # application-defined bytes
        return f"<ext {self.code}: {len(self.content)} bytes{named:.80}>"


class Pairs(list[tuple[Any, Any]]):
    """A map whose keys are not all strings, or not all distinct."""


class _Reader:
    __slots__ = ("at", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def value(self) -> Any:  # noqa: C901, PLR0911, PLR0912 - one branch per kind, as in the format
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
            made = dict(pairs)
            if len(made) == size:
                return made
        return pairs


def unpack(content: bytes) -> Any:
    """Decode a single value.

    Raises:
        ValueError: the bytes are not msgpack, or more than one value.
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
    """Encode a result of ``unpack`` in the shortest form; floats take eight bytes."""
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


# --- Serialised values of a graph runtime: redacted in their JSON form ----------------------------
# A value has a JSON form (``_told``): an object is its arguments, bytes are their text, a map with
# keys that are not strings is its pairs. It is redacted in one walk, so a key gives the same
# context to everything below it, however it is wrapped; replaced parts are then put back.

_ARGUMENT: Final = 2
"""Index of the arguments, after module and name."""
_OBJECTS: Final = frozenset(range(6))
_ARRAY: Final = 6
_VALUES: Final = frozenset(("uuid", "datetime", "zoneinfo"))
"""Modules of values that hold no text."""
_SEND: Final = ["langgraph.types", "Send"]
_CONSTRUCTED: Final = 0
"""An object constructed from one argument."""
_SETS: Final = (["builtins", "set"], ["builtins", "frozenset"])
_NUMERIC: Final = frozenset("?bBiufcmM")
"""Kinds of arrays that hold no text."""
_CHAR_BYTES: Final = {"U": 4, "S": 1}
_CELLS: Final = 3
"""Index of an array's memory, after its type, shape and order."""


class OpaqueContent(ValueError):  # noqa: N818 - describes content; callers turn it into an error
    """Content that cannot be inspected."""


def redact_packed(redacts: Redacts, content: bytes, under: str | None = None) -> bytes:
    """Redact a packed value; return the same object if nothing was found.

    Args:
        redacts: the redactor of the place.
        content: msgpack as written by LangGraph's serializer.
        under: the key that the value is stored under.

    Raises:
        OpaqueContent: it is not msgpack, or holds something unknown: another extension, an array of
            records.
    """
    try:
        found = unpack(content)
        made = redact_parts(redacts, found, under)
        return content if made is found else pack(made)
    except (ValueError, RecursionError) as exc:
        if isinstance(exc, OpaqueContent):
            raise
        msg = f"it cannot be looked into ({exc})"
        raise OpaqueContent(msg) from exc


def redact_parts(redacts: Redacts, value: Any, under: str | None = None) -> Any:
    """Redact an unpacked value, JSON, or bytes; otherwise like ``redact_packed``.

    Raises:
        ValueError: it cannot be inspected.
        RecursionError: nested too deep.
    """
    told = _told(value)
    made = redacts.value(told if under is None else {under: told})[0]
    if under is not None:
        (made,) = made.values()
    return _restored(value, told, made)


def _told(value: Any) -> Any:
    """Return the JSON form of a value; parts that are JSON already are the same objects."""
    kind = type(value)
    if kind is list:
        row = [_told(entry) for entry in value]
        return row if any(a is not b for a, b in zip(row, value, strict=True)) else value
    if kind is dict:
        made = {key: _told(entry) for key, entry in value.items()}
        return made if any(made[key] is not entry for key, entry in value.items()) else value
    if kind is bytes:
        found = decoded_text(value)
        return None if found is None else found[0]
    if kind is Extension:
        return _told(_Opened(value).content)
    if kind is Pairs:
        named, odd = _sorted_out(value)
        pairs = [[_told(key), {_name_of(key): _told(entry)}] for key, entry in odd]
        return [{key: _told(entry) for key, entry in named.items()}, *pairs]
    return value


def _restored(value: Any, told: Any, made: Any) -> Any:
    """Put the redacted parts of a value's JSON form back into the value."""
    if made is told:
        return value
    kind = type(value)
    if kind is list:
        return [_restored(*each) for each in zip(value, told, made, strict=True)]
    if kind is dict:
        rows = zip(made, value.values(), told.values(), made.values(), strict=True)
        return {name: _restored(*each) for name, *each in rows}
    if kind is bytes:
        return encoded_text(made, decoded_text(value))
    if kind is Extension:
        return _restored_object(_Opened(value), told, made)
    return _restored_pairs(value, told, made) if kind is Pairs else made


def _restored_object(opened: _Opened, told: Any, made: Any) -> Extension:
    """Restore an object. Set members that became equal are numbered, except the first."""
    if not opened.is_set:
        return opened.with_content(_restored(opened.content, told, made))
    distinct = _Distinct({_read_as(each) for each in opened.content})
    members = zip(opened.content, told, made, strict=True)
    return opened.with_content([distinct.restored(*each) for each in members])


def _sorted_out(pairs: Pairs) -> tuple[dict[str, Any], Pairs]:
    """Separate the first entry of each string key from all other entries."""
    named: dict[str, Any] = {}
    odd = Pairs()
    for key, entry in pairs:
        if type(key) is str and key not in named:
            named[key] = entry
        else:
            odd.append((key, entry))
    return named, odd


def _name_of(key: Any) -> str:
    """Return the name in a serialized key that is not a string; a tuple's words are joined."""
    told = _told(key)
    if isinstance(told, list):
        return "_".join(filter(None, map(_name_of, told)))
    return told if isinstance(told, str) else ""


def _restored_pairs(value: Pairs, told: Any, made: Any) -> Pairs:
    """Restore the pairs in order. Keys that became equal are numbered, except the first."""
    named, odd = _sorted_out(value)
    others = _restored(named, told[0], made[0])
    keyed = dict(zip(named, others.items(), strict=True))
    rest = iter(zip(odd, told[1:], made[1:], strict=True))
    taken = {_read_as(key) for key, _ in odd if type(key) is not str}
    distinct = _Distinct(taken.union(others))
    result = Pairs()
    for key, entry in value:
        if type(key) is str and key in keyed:
            result.append(keyed.pop(key))
            continue
        _, (key_told, under), (key_made, under_made) = next(rest)
        (entry_told,), (entry_made,) = under.values(), under_made.values()
        name = distinct.restored(key, key_told, key_made)
        result.append((name, _restored(entry, entry_told, entry_made)))
    return result


class _Distinct:
    """Keeps keys of a map or members of a set distinct: those that became equal are numbered.

    If they have no place for a number they stay equal, and a reader finds only one of them.
    """

    __slots__ = ("_more", "_taken")

    def __init__(self, taken: set[Hashable]) -> None:
        self._taken = taken
        self._more: Counter[Hashable] = Counter()
        """Spellings of one value continue its numbering."""

    def restored(self, key: Any, told: Any, made: Any) -> Any:
        """Restore a key like ``_restored``; if it changed, make it differ from all taken ones."""
        name = numbered = _restored(key, told, made)
        if name is key:
            return name
        same = read = _read_as(name)
        while read in self._taken:
            self._more[same] += 1
            numbered = _numbered(key, name, self._more[same] + 1)
            if numbered is name:
                return name
            read = _read_as(numbered)
        self._taken.add(read)
        return numbered


def _read_as(value: Any) -> Hashable:
    """Return a key that is equal for values that deserialize to equal ones, in any order.

    Classes are not imported: one constructed from a single argument counts as the argument, because
    a constructor that refuses a placeholder leaves just that.
    """
    kind = type(value)
    if kind is list:
        return tuple(map(_read_as, value))
    if kind is dict:
        return frozenset((key, _read_as(entry)) for key, entry in value.items())
    if kind is Pairs:
        return frozenset((_read_as(key), _read_as(entry)) for key, entry in value)
    if kind is Extension:
        return _Opened(value).read_as
    found: Hashable = value
    return found


def _numbered(value: Any, name: Any, number: int) -> Any:
    """Append a number to the first replaced text in a key or member.

    Returns the same object if only names of fields and keys were replaced.

    Args:
        value: the original.
        name: its redacted form.
        number: a number not used before.
    """
    kind = type(name)
    if kind is list:
        return _numbered_in(value, name, number)
    if kind is Extension:
        return _numbered_object(value, name, number)
    if kind is dict or kind is Pairs:
        return _numbered_entries(value, name, number)
    if kind is bytes and (found := decoded_text(name)) is not None:
        return encoded_text(f"{found[0]}_{number}", found)
    return f"{name}_{number}" if kind is str else name


def _numbered_object(value: Extension, name: Extension, number: int) -> Extension:
    before, after = _Opened(value), _Opened(name)
    if after.is_set:
        content: Any = _numbered_in(before.content, after.content, number, apart=True)
    else:
        content = _numbered(before.content, after.content, number)
    return name if content is after.content else after.with_content(content)


def _numbered_entries(value: Any, name: Any, number: int) -> Any:
    rows = [each.items() if type(each) is dict else each for each in (value, name)]
    before, after = ([entry for _, entry in row] for row in rows)
    made = _numbered_in(before, after, number)
    if made is after:
        return name
    keyed = Pairs((key, entry) for (key, _), entry in zip(rows[1], made, strict=True))
    return dict(keyed) if type(name) is dict else keyed


def _numbered_in(
    values: list[Any], names: list[Any], number: int, *, apart: bool = False
) -> list[Any]:
    """Number one of several values, like ``_numbered``; ``apart``: distinct from the others."""
    for at, (value, name) in enumerate(zip(values, names, strict=True)):
        made = name if value == name else _numbered(value, name, number)
        if made is name:
            continue
        others = [*names[:at], *names[at + 1 :]]
        taken = set(map(_read_as, others)) if apart else ()
        while _read_as(made) in taken:
            made = _numbered(value, made, number)
        return [*names[:at], made, *names[at + 1 :]]
    return names


class _Opened:
    """An extension, and the part of it that holds content."""

    __slots__ = ("_code", "_found", "_path", "content")

    def __init__(self, extension: Extension) -> None:
        self._code = extension.code
        try:
            self._found = unpack(extension.content)
        except ValueError as exc:
            msg = f"it holds an extension of type {self._code} that cannot be looked into"
            raise OpaqueContent(msg) from exc
        self._path: tuple[int, ...] = ()
        self.content: Any = self._found
        if self._code == _ARRAY:
            self.content = _cells_in(self._found)
        elif self._code in _OBJECTS and type(self._found) is list and len(self._found) > _ARGUMENT:
            self._go_into(self._found)

    @property
    def is_set(self) -> bool:
        """True if the content is the members of a set."""
        return (
            self._code == _CONSTRUCTED
            and self._found[:_ARGUMENT] in _SETS
            and type(self.content) is list
        )

    @property
    def read_as(self) -> Hashable:
        """Key of the object, like ``_read_as``: its contents, and its class if needed."""
        if self.content is None or self._code not in _OBJECTS or not self._path:
            return self._code, pack(self._found)
        if self.is_set:
            return frozenset(map(_read_as, self.content))
        argument = _read_as(self._found[_ARGUMENT])
        if self._code == _CONSTRUCTED:
            return argument
        return self._code, *map(_read_as, self._found[:_ARGUMENT]), argument

    def _go_into(self, found: list[Any]) -> None:
        """Take the arguments out of a list of module, name, arguments and more."""
        argument = found[_ARGUMENT]
        if found[0] in _VALUES:
            self.content = None
        elif found[:_ARGUMENT] == _SEND and type(argument) is list and len(argument) > 1:
            self._path, self.content = (_ARGUMENT, 1), argument[1]
        else:
            self._path, self.content = (_ARGUMENT,), argument

    def with_content(self, content: Any) -> Extension:
        """Return the extension with other content."""
        if self._code == _ARRAY:
            return Extension(self._code, pack(_with_cells(self._found, content)))
        for at in reversed(self._path):
            around = self._found if at == self._path[0] else self._found[self._path[0]]
            content = [*around[:at], content, *around[at + 1 :]]
        return Extension(self._code, pack(content))


def _cells_in(array: Any) -> list[Any] | None:
    """Return the texts of a numpy array in memory order; None: it holds numbers.

    Raises:
        OpaqueContent: it holds neither texts nor numbers.
    """
    form = array[0] if type(array) is list and len(array) > _CELLS else None
    if type(form) is str and type(array[_CELLS]) is bytes:
        kind, content = form[1:2], array[_CELLS]
        if kind in _NUMERIC:
            return None
        if kind in _CHAR_BYTES and form[2:].isdecimal():
            width = int(form[2:]) * _CHAR_BYTES[kind]
            cells = range(0, len(content), width) if width else ()
            return [_cell(form, content[at : at + width]) for at in cells]
    msg = f"it holds an array of {form!r:.40}, which is neither numbers nor texts"
    raise OpaqueContent(msg)


def _cell(form: str, content: bytes) -> str | bytes:
    if form[1] == "S":
        return content.rstrip(b"\0")
    return content.decode(_wide(form), "surrogatepass").rstrip("\0")


def _wide(form: str) -> str:
    return "utf-32-be" if form[0] == ">" else "utf-32-le"


def _with_cells(array: list[Any], cells: list[Any]) -> list[Any]:
    """Return the array with other texts, as wide as the longest."""
    form, width = array[0], max(map(len, cells))
    if form[1] == "S":
        content = b"".join(cell.ljust(width, b"\0") for cell in cells)
    else:
        text = "".join(cell.ljust(width, "\0") for cell in cells)
        content = text.encode(_wide(form), "surrogatepass")
    return [f"{form[:2]}{width}", *array[1:_CELLS], content, *array[_CELLS + 1 :]]
