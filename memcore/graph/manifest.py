"""Manifests: the layout of a value as chunks, and the interface to the caller's serializer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import pack_runs, page_stops, sized, unpack_run
from memcore.codec.values import decode_json, encode_json
from memcore.errors import CorruptValueError, InvalidItemError, UndecodableError
from memcore.limits import PAGE_CONTENT_BYTES_MAX, PAGE_PARTS_MIN, ROOT_PARTS_MAX
from memcore.privacy.redact_packed import unpack

__all__ = [
    "EMPTY",
    "RUN",
    "Coder",
    "JsonCoder",
    "ListRun",
    "NodeReader",
    "Opaque",
    "ParsedNode",
    "Sort",
    "StoredCoder",
    "Typed",
    "Wrapper",
    "chunk_node",
    "flattened",
    "parse",
    "part_node",
    "units_of",
]


# --- Values as bytes: the serialiser of the caller as the graph store uses it ---------------------

Typed = tuple[str, bytes]
"""``(name of the type, content)``, as LangGraph's serialisers give it."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """An object whose fields are stored as values of their own, to share what they hold."""

    fields: Callable[[Any], list[Any]]
    make: Callable[[list[Any]], Any]
    content: int = 0
    """The index of the field that inherits the key under which the object is, for redaction."""


class Coder(Protocol):
    """A serialiser as the graph store sees it.

    ``identity``: values that it decoded may be reused by coders of the same identity. ``splits``:
    true if a list may be stored as its elements, each encoded on its own. ``secret``: true if
    content is encrypted; ``seal`` and ``open`` then are its cipher.
    """

    @property
    def identity(self) -> object:
        """Compared with ``is``."""

    @property
    def splits(self) -> bool:
        """True if the parts of lists and dicts may be stored apart."""

    @property
    def secret(self) -> bool:
        """True if ``seal`` encrypts."""

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """Types that are stored field by field, with the names that manifests have for them."""

    def encode(self, value: Any) -> Typed:
        """Serialise; raises what the serialiser raises."""

    def decode(self, typed: Typed) -> Any:
        """The value of ``encode``."""

    def seal(self, typed: Typed) -> Typed:
        """Encrypt for storage, or return as it is."""

    def open(self, typed: Typed) -> Typed:
        """Decrypt what ``seal`` returned.

        Raises:
            CorruptValueError: it was stored in clear, or under another key.
        """


_JSON: Final = "json"
_PLAIN: Final = "json-plain"
_BYTES: Final = "bytes"


@dataclass(frozen=True, slots=True)
class JsonCoder:
    """memcore's own: JSON without loss, and bytes."""

    identity: object = "json"
    splits: bool = True
    finite: bool = True
    """True if it refuses NaN and infinities; other coders are assumed to accept them."""
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """JSON, or bytes as they are.

        Raises:
            InvalidItemError: neither.
        """
        if isinstance(value, bytes):
            return _BYTES, value
        try:
            body, flags = encode_json(value)
        except ValueError as exc:
            msg = f"the value is not JSON: {exc}"
            raise InvalidItemError(msg) from exc
        return _PLAIN if flags else _JSON, body

    def decode(self, typed: Typed) -> Any:
        """The value.

        Raises:
            UndecodableError: the type is unknown.
        """
        kind, body = typed
        if kind == _BYTES:
            return body
        if kind in (_JSON, _PLAIN):
            return decode_json(body, int(kind == _PLAIN))
        msg = (
            f"a value of type {kind[:40]!r} was not written by this serialiser; use the one it was"
        )
        raise UndecodableError(msg, key=b"")

    def seal(self, typed: Typed) -> Typed:
        """As it is."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """As it is."""
        return typed


@dataclass(frozen=True, slots=True)
class Opaque:
    """A placeholder for stored content that is neither JSON nor msgpack: its type and size."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"<{self.kind:.40}: {self.size} bytes>"


_MSGPACK: Final = "msgpack"
_NULL: Final = "null"
_CLEAR: Final = frozenset((_BYTES, "bytearray"))
_SEALED: Final = "+"
_OURS: Final = frozenset(("node", "page", "writes", _BYTES))
"""Types of what the graph store itself writes, and seals if the serialiser encrypts."""


@dataclass(frozen=True, slots=True)
class StoredCoder:
    """Decodes what any serialiser wrote as plain data, and creates no object from it.

    For inspecting files that others wrote: JSON and msgpack become lists, dicts, strings and
    numbers, msgpack's extensions stay bytes (``Extension``), other types are ``Opaque``. Nothing
    that the content names is imported or called. It cannot encode.
    """

    identity: object = "stored"
    splits: bool = False
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """Refuse: nothing is stored without the serialiser of the thread.

        Raises:
            InvalidItemError: always.
        """
        msg = f"a {type(value).__name__} cannot be stored without a serialiser"
        raise InvalidItemError(msg)

    def decode(self, typed: Typed) -> Any:
        """The content as plain data.

        Raises:
            CorruptValueError: it is malformed for its type.
        """
        kind, body = typed
        try:
            if kind == _NULL:
                return None
            if kind in _CLEAR:
                return body
            if kind in (_JSON, _PLAIN):
                return decode_json(body, int(kind == _PLAIN))
            if kind == _MSGPACK:
                return unpack(body)
        except (ValueError, RecursionError) as exc:
            msg = f"a value of type {kind!r} in a checkpoint is malformed ({exc})"
            raise CorruptValueError(msg, key=b"") from exc
        return Opaque(kind, len(body))

    def seal(self, typed: Typed) -> Typed:
        """As it is."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """As it is.

        Raises:
            CorruptValueError: the thread's serialiser encrypted it.
        """
        kind, mark, _ = typed[0].partition(_SEALED)
        if mark and kind in _OURS:
            msg = (
                "the thread was encrypted by the serialiser that wrote it: only a program that "
                "opens it with that serialiser (MemcoreSaver, say) can read it"
            )
            raise CorruptValueError(msg, key=b"")
        return typed


# --- The manifest of a value: which parts it is made of, byte by byte -----------------------------
# A value is a node. Long lists and dicts are split into pages, and pages of pages, whose ends
# depend on what lies before them: two versions of a list that differ in one place share all pages
# but those around it (a prolly tree, as in Noms and Dolt).
#
# | node | bytes |
# |---|---|
# | empty | ``00``: the channel was written and holds nothing |
# | part | ``01``, typed bytes: a small serialised part |
# | chunk | ``02``, id 16: the same as a row of its own |
# | list | ``03``, entries to the end of the node's text: nodes |
# | dict | ``04``, entries: node, text of the key |
# | wrapped | ``05``, text of the wrapper's name, entries: nodes |
# | page | ``06``, id 16: in place of entries, the row that holds them |
# | pieces | ``07``, text of the type, entries: ids 16 of the content's pieces |
#
# *text* is a length as a varint (LEB128) and so many bytes; nodes of sorts 03, 04, 05 and 07 are
# followed by one text that holds their entries. *Typed bytes* are the text of the type's name and
# the text of the content.
#
# Numbers, None, True, False and short strings that follow each other in a list are no nodes of
# their own but *runs*: parts of the type ``~run``, each in place of so many entries. Where a run
# ends follows from what it holds, too; it holds 4,096 values at most. Its content is a form and the
# values, little-endian:
#
# | form | values |
# |---|---|
# | ``d`` | doubles, bit for bit |
# | ``B`` ``H`` ``I`` | integers of 1, 2, 4 bytes without a sign, the fewest that hold them |
# | ``q`` | integers of 8 bytes with a sign |
# | ``m`` | of any sort: count u32, a tag each; doubles, ``q``, a byte of length a string, strings |

ID_BYTES: Final = 16
DEPTH_MAX: Final = 100
"""Nodes within nodes, pages included; what is written is nested far less."""
_PAGE_END: Final = 31
"""An entry whose last byte has these bits clear ends a page."""
_MORE: Final = 0x80
_LOW: Final = 0x7F


class Sort:
    """First byte of a node."""

    EMPTY: Final = 0
    PART: Final = 1
    CHUNK: Final = 2
    LIST: Final = 3
    DICT: Final = 4
    WRAPPED: Final = 5
    PAGE: Final = 6
    PIECES: Final = 7


EMPTY: Final = bytes((Sort.EMPTY,))
_CONTAINERS: Final = (Sort.LIST, Sort.DICT, Sort.WRAPPED)
_CHUNK: Final = bytes((Sort.CHUNK,))
_PAGE: Final = bytes((Sort.PAGE,))


class ParsedNode(NamedTuple):
    """A parsed node; which fields are set depends on its sort."""

    sort: int
    name: str = ""
    """Type of a part or of pieces, name of a wrapper."""
    content: bytes = b""
    """Of a part; the id of a chunk; the entries of the others."""


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    if number <= _LOW:
        return bytes((number,))
    made = bytearray()
    while number > _LOW:
        made.append(number & _LOW | _MORE)
        number >>= 7
    made.append(number)
    return bytes(made)


text = sized
"""A length and the bytes."""


def pack_typed(kind: str, content: bytes) -> bytes:
    """The text of a type and its content, which runs to the end."""
    return text(kind.encode()) + content


def unpack_typed(body: bytes) -> tuple[str, bytes]:
    """``(type, content)`` of ``pack_typed``.

    Raises:
        CorruptValueError: it is none.
    """
    reader = NodeReader(body)
    kind = reader.text()
    try:
        return kind.decode(), body[reader.at :]
    except UnicodeDecodeError as exc:
        raise _malformed(body) from exc


def part_node(kind: str, content: bytes) -> bytes:
    """A small part in place."""
    return b"".join((bytes((Sort.PART,)), text(kind.encode()), text(content)))


def chunk_node(part: bytes) -> bytes:
    """A part that is a row of its own."""
    return _CHUNK + part


def pieces_node(kind: str, ids: list[bytes]) -> bytes:
    """A large part, in pieces."""
    return bytes((Sort.PIECES,)) + text(kind.encode()) + text(b"".join(ids))


def entry_of(key: str, node: bytes) -> bytes:
    """An entry of a dict."""
    # The key comes last: it alone decides where a page ends, whatever the value is.
    return node + text(key.encode("utf-8", "surrogatepass"))


Pages = dict[bytes, tuple[list[bytes], bytes]]
"""Entries of pages and the node of each, by the first entry."""


def container(
    sort: int, entries: list[bytes], page: Callable[[bytes], bytes], before: Pages
) -> tuple[bytes, Pages]:
    """A list or dict of these entries, and its pages.

    Args:
        sort: which of the two.
        entries: of both sorts.
        page: stores the content of a page and gives its id.
        before: pages that are stored already.
    """
    pages: Pages = {}
    while len(entries) > ROOT_PARTS_MAX:
        above = []
        for group in _groups(entries):
            first = group[0]
            if len(group) > 1:
                kept = before.get(first)
                if kept is None or kept[0] != group:
                    kept = group, _PAGE + page(b"".join(group))
                pages[first] = kept
                above.append(kept[1])
            else:
                above.append(first)
        entries = above
    return bytes((sort,)) + text(b"".join(entries)), pages


def wrapped(name: str, entries: list[bytes]) -> bytes:
    """Something of a wrapper's fields."""
    return bytes((Sort.WRAPPED,)) + text(name.encode()) + text(b"".join(entries))


def _groups(entries: list[bytes]) -> Iterator[list[bytes]]:
    start = 0
    stops = page_stops(entries, PAGE_PARTS_MIN, PAGE_CONTENT_BYTES_MAX, _PAGE_END)
    for stop in [*stops, len(entries)]:
        if start < stop:
            yield entries[start:stop]
        start = stop


# --- reading --------------------------------------------------------------------------------------


class NodeReader:
    """Parser of a node's bytes; malformed input raises CorruptValueError."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    @property
    def at_end(self) -> bool:
        """True if nothing is left."""
        return self.at >= len(self.body)

    def varint(self) -> int:
        """The next number."""
        number = shift = 0
        while True:
            if self.at >= len(self.body) or shift > 63:  # noqa: PLR2004 - 64 bits
                raise _malformed(self.body)
            byte = self.body[self.at]
            self.at += 1
            number |= (byte & _LOW) << shift
            if byte <= _LOW:
                return number
            shift += 7

    def take(self, size: int) -> bytes:
        """The next bytes."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.body):
            raise _malformed(self.body)
        return self.body[start : self.at]

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self.body) - self.at)

    def string(self) -> str:
        """The next text, as a string."""
        return _utf8(self.text())

    def text(self) -> bytes:
        """The next text."""
        return self.take(self.varint())

    def node(self) -> bytes:
        """The bytes of the next node, unparsed."""
        start = self.at
        sort = self.take(1)[0]
        if sort in (Sort.CHUNK, Sort.PAGE):
            self.take(ID_BYTES)
        elif sort in (Sort.PART, Sort.WRAPPED, Sort.PIECES):
            self.text()
            self.text()
        elif sort in (Sort.LIST, Sort.DICT):
            self.text()
        elif sort != Sort.EMPTY:
            raise _malformed(self.body)
        return self.body[start : self.at]


def parse(node: bytes) -> ParsedNode:
    """A node.

    Raises:
        CorruptValueError: the bytes are none.
    """
    reader = NodeReader(node)
    sort = reader.take(1)[0]
    if sort == Sort.CHUNK:
        return ParsedNode(sort, content=reader.take(ID_BYTES))
    if sort in (Sort.PART, Sort.WRAPPED, Sort.PIECES):
        return ParsedNode(sort, reader.string(), reader.text())
    if sort in (Sort.LIST, Sort.DICT):
        return ParsedNode(sort, content=reader.text())
    if sort == Sort.EMPTY:
        return ParsedNode(sort)
    raise _malformed(node)


def ids(content: bytes) -> list[bytes]:
    """The ids of pieces.

    Raises:
        CorruptValueError: the last one is cut off.
    """
    if len(content) % ID_BYTES:
        raise _malformed(content)
    return [content[at : at + ID_BYTES] for at in range(0, len(content), ID_BYTES)]


def entries_in(container: int, body: bytes) -> Iterator[tuple[bytes, str]]:
    """``(node, key)`` of the entries of a container or page; the key of a list's is empty."""
    reader = NodeReader(body)
    chunk = 1 + ID_BYTES
    while reader.at < len(body):
        if body[reader.at] in (Sort.CHUNK, Sort.PAGE):  # most of them are: no call for it
            node = body[reader.at : reader.at + chunk]
            reader.at += chunk
            if len(node) != chunk:
                raise _malformed(body)
        else:
            node = reader.node()
        yield node, reader.string() if container == Sort.DICT and node[0] != Sort.PAGE else ""


def rows_of(node: bytes) -> Iterator[tuple[int, bytes]]:
    """``(sort of the container, id)`` of the pages that the node names, ``(0, id)`` of its chunks.

    Those that a page's content refers to are not included: see ``rows_in``.
    """
    yield from rows_in(Sort.LIST, node)


def rows_in(container: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """As ``rows_of``, of the entries of a list or dict (the content of a page of it)."""
    work = [(container, body, 0)]
    while work:
        container, body, depth = work.pop()
        if depth > DEPTH_MAX:
            raise _malformed(body)
        for node, _ in entries_in(container, body):
            if node[0] == Sort.CHUNK:
                yield 0, node[1:]
            elif node[0] == Sort.PAGE:
                yield container, node[1:]
            elif node[0] == Sort.PIECES:
                yield from ((0, part) for part in ids(parse(node).content))
            elif node[0] in _CONTAINERS:
                below = Sort.DICT if node[0] == Sort.DICT else Sort.LIST
                work.append((below, parse(node).content, depth + 1))


def _malformed(body: bytes) -> CorruptValueError:
    msg = (
        f"the manifest {body[:40].hex()} of a checkpoint's value is malformed; run 'memcore check'"
    )
    return CorruptValueError(msg, key=b"")


def _utf8(body: bytes) -> str:
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as exc:
        raise _malformed(body) from exc


# --- runs -----------------------------------------------------------------------------------------

RUN: Final = "~run"
"""Type of a part that holds several entries of a list."""
NUMBERS: Final[frozenset[type]] = frozenset((float, bool, type(None)))
"""Types that hold nothing that could be redacted, but for floats without a fraction."""
ATOMS: Final[frozenset[type]] = NUMBERS | {int, str}
"""Types of which runs are made."""


_RUN_MEMORY: Final = {b"d": 4, b"B": 8, b"H": 20, b"I": 10, b"q": 5}
"""So many bytes of memory a byte of a run becomes at most, by its form."""


class ListRun(NamedTuple):
    """A run of numbers of a list in their stored form; equal if bit for bit equal."""

    content: bytes

    @property
    def weight(self) -> int:
        """The memory of the values, at most."""
        return _RUN_MEMORY.get(self.content[:1], 64) * len(self.content)

    def values(self) -> list[Any]:
        """The values.

        Raises:
            CorruptValueError: the content is malformed.
        """
        try:
            return unpack_run(self.content)
        except ValueError as exc:
            raise _malformed(self.content) from exc


def flattened(trees: list[Any]) -> list[Any]:
    """The values of a list, of its units; the same list if there is no run."""
    if ListRun not in set(map(type, trees)):
        return trees
    values: list[Any] = []
    for tree in trees:
        if type(tree) is ListRun:
            values += tree.values()
        else:
            values.append(tree)
    return values


def units_of(
    value: list[Any], kinds: frozenset[type], *, finite: bool
) -> tuple[list[Any], list[int] | None]:
    """The units in which a list is stored, runs and other values, with their start indexes.

    None for the starts: there is no run, and the units are the values.

    Args:
        value: the list, which must not change meanwhile.
        kinds: the types that runs may be made of.
        finite: leave NaN and infinities out of runs, for the serialiser to refuse.
    """
    runs = pack_runs(value, kinds is NUMBERS, finite)
    if not runs:
        return value, None
    units: list[Any] = []
    starts: list[int] = []
    at = 0
    for start, stop, content in [*runs, (len(value), len(value), b"")]:
        units += value[at:start]
        starts += range(at, start)
        if content:
            units.append(ListRun(content))
            starts.append(start)
        at = stop
    return units, starts
