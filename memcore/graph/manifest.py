"""Manifests: the layout of a value as chunks, and the interface to the caller's serialiser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import pack_runs, page_stops, sized, unpack_run
from memcore.codec.values import decode_json, encode_json
from memcore.errors import CorruptValueError, InvalidItemError, UndecodableError
from memcore.limits import PAGE_CONTENT_BYTES_MAX, PAGE_PARTS_MIN, ROOT_PARTS_MAX
from memcore.records import record

__all__ = [
    "EMPTY",
    "PAGE",
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


# --- Values as bytes: the caller's serialiser as the graph store uses it --------------------------

Typed = tuple[str, bytes]
"""``(name of the type, content)``, as LangGraph's serialisers return it."""


@record(frozen=True, slots=True)
class Wrapper:
    """An object whose fields are stored as separate values, to share their contents."""

    fields: Callable[[Any], list[Any]]
    make: Callable[[list[Any]], Any]
    content: int = 0
    """Index of the field that inherits the object's key, for redaction."""


class Coder(Protocol):
    """A serialiser as seen by the graph store.

    ``identity``: values that it decoded may be reused by coders of the same identity. ``splits``:
    true if a list may be stored as separately encoded elements. ``secret``: true if content is
    encrypted; ``seal`` and ``open`` then are its cipher.
    """

    @property
    def identity(self) -> object:
        """Compared with ``is``."""

    @property
    def splits(self) -> bool:
        """True if the parts of lists and dicts may be stored separately."""

    @property
    def secret(self) -> bool:
        """True if ``seal`` encrypts."""

    @property
    def wrappers(self) -> Mapping[type, tuple[str, Wrapper]]:
        """Types that are stored field by field, with their names in manifests."""

    def encode(self, value: Any) -> Typed:
        """Serialise a value; raises what the serialiser raises."""

    def decode(self, typed: Typed) -> Any:
        """Deserialise a value."""

    def seal(self, typed: Typed) -> Typed:
        """Encrypt for storage, or return unchanged."""

    def open(self, typed: Typed) -> Typed:
        """Decrypt the result of ``seal``.

        Raises:
            CorruptValueError: it was stored in clear, or under another key.
        """


_JSON: Final = "json"
_PLAIN: Final = "json-plain"
_BYTES: Final = "bytes"


@record(frozen=True, slots=True)
class JsonCoder:
    """memcore's own coder: lossless JSON, and bytes."""

    identity: object = "json"
    splits: bool = True
    finite: bool = True
    """True if the coder rejects NaN and infinities; other coders are assumed to accept them."""
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """Encode as JSON; bytes stay as they are.

        Raises:
            InvalidItemError: the value is neither JSON nor bytes.
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
        """Decode a value.

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
        """Return it unchanged."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """Return it unchanged."""
        return typed


@record(frozen=True, slots=True)
class Opaque:
    """Placeholder for stored content that is neither JSON nor msgpack: its type and size."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"<{self.kind:.40}: {self.size} bytes>"


_MSGPACK: Final = "msgpack"
_NULL: Final = "null"
_CLEAR: Final = frozenset((_BYTES, "bytearray"))
_SEALED: Final = "+"
_OURS: Final = frozenset(("node", "page", "writes", _BYTES))
"""Types that the graph store itself writes, and seals if the serialiser encrypts."""


@record(frozen=True, slots=True)
class StoredCoder:
    """Decodes the output of any serialiser as plain data, without creating objects from it.

    For inspecting files that other programs wrote: JSON and msgpack become lists, dicts, strings
    and numbers, msgpack's extensions stay bytes (``Extension``), and other types are ``Opaque``.
    Nothing that the content names is imported or called. It cannot encode.
    """

    identity: object = "stored"
    splits: bool = False
    secret: bool = False
    wrappers: Mapping[type, tuple[str, Wrapper]] = field(default_factory=dict)

    def encode(self, value: Any) -> Typed:
        """Raise: nothing is stored without the serialiser of the thread.

        Raises:
            InvalidItemError: always.
        """
        msg = f"a {type(value).__name__} cannot be stored without a serialiser"
        raise InvalidItemError(msg)

    def decode(self, typed: Typed) -> Any:
        """Decode the content as plain data.

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
                from memcore.privacy.redact_packed import unpack  # noqa: PLC0415 - few need it

                return unpack(body)
        except (ValueError, RecursionError) as exc:
            msg = f"a value of type {kind!r} in a checkpoint is malformed ({exc})"
            raise CorruptValueError(msg, key=b"") from exc
        return Opaque(kind, len(body))

    def seal(self, typed: Typed) -> Typed:
        """Return it unchanged."""
        return typed

    def open(self, typed: Typed) -> Typed:
        """Return it unchanged.

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


# --- The manifest of a value: its parts, byte by byte ---------------------------------------------
# A value is a node. Long lists and dicts are split into pages, and pages of pages, with boundaries
# that depend on the preceding content: two versions of a list that differ in one place share all
# pages except those around it (a prolly tree, as in Noms and Dolt).
#
# | node | bytes |
# |---|---|
# | empty | ``00``: the channel was written and holds nothing |
# | part | ``01``, typed bytes: a small serialised part |
# | chunk | ``02``, id 16: a serialised part in a row of its own |
# | list | ``03``, entries to the end of the node's text: nodes |
# | dict | ``04``, entries: node, text of the key |
# | wrapped | ``05``, text of the wrapper's name, entries: nodes |
# | page | ``06``, id 16: in place of entries, the row that holds them |
# | pieces | ``07``, text of the type, entries: ids 16 of the content's pieces |
#
# A *text* is a length as a varint (LEB128) and that many bytes; nodes of sorts 03, 04, 05 and 07
# are followed by one text that holds their entries. *Typed bytes* are the text of the type's name
# and the text of the content.
#
# Consecutive numbers, None, True, False and short strings in a list are not nodes of their own but
# form *runs*: parts of the type ``~run``, each of which replaces several entries. The end of a run
# is determined by its content, too; a run holds at most 4,096 values. Its content is a form and the
# values, little-endian:
#
# | form | values |
# |---|---|
# | ``d`` | doubles, bit for bit |
# | ``B`` ``H`` ``I`` | unsigned integers of 1, 2 or 4 bytes, the fewest that hold them |
# | ``q`` | signed integers of 8 bytes |
# | ``m`` | mixed: count u32, a tag per value; doubles, ``q``, a length byte per string, strings |

ID_BYTES: Final = 16
DEPTH_MAX: Final = 100
"""Maximum nesting of nodes, pages included; written values are nested far less deeply."""
_PAGE_END: Final = 31
"""An entry ends a page if these bits of its last byte are clear."""
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
    """A parsed node; the fields that are set depend on its sort."""

    sort: int
    name: str = ""
    """Type of a part or of pieces, or name of a wrapper."""
    content: bytes = b""
    """Content of a part, id of a chunk, or entries of any other node."""


def varint(number: int) -> bytes:
    """Encode a number as LEB128: seven bits per byte, the lowest first."""
    if number <= _LOW:
        return bytes((number,))
    made = bytearray()
    while number > _LOW:
        made.append(number & _LOW | _MORE)
        number >>= 7
    made.append(number)
    return bytes(made)


text = sized
"""Encodes bytes as a text: their length and the bytes."""


def pack_typed(kind: str, content: bytes) -> bytes:
    """Encode a type as a text, followed by its content, which extends to the end."""
    return text(kind.encode()) + content


def unpack_typed(body: bytes) -> tuple[str, bytes]:
    """Decode ``(type, content)`` from the format of ``pack_typed``.

    Raises:
        CorruptValueError: the bytes are malformed.
    """
    reader = NodeReader(body)
    kind = reader.text()
    try:
        return kind.decode(), body[reader.at :]
    except UnicodeDecodeError as exc:
        raise _malformed(body) from exc


def part_node(kind: str, content: bytes) -> bytes:
    """Build the node of a small part, stored inline."""
    return b"".join((bytes((Sort.PART,)), text(kind.encode()), text(content)))


def chunk_node(part: bytes) -> bytes:
    """Build the node of a part in a row of its own."""
    return _CHUNK + part


def pieces_node(kind: str, ids: list[bytes]) -> bytes:
    """Build the node of a large part, stored in pieces."""
    return bytes((Sort.PIECES,)) + text(kind.encode()) + text(b"".join(ids))


def entry_of(key: str, node: bytes) -> bytes:
    """Build an entry of a dict."""
    # The key comes last, so that it alone decides where a page ends, whatever the value is.
    return node + text(key.encode("utf-8", "surrogatepass"))


Pages = dict[bytes, tuple[list[bytes], bytes]]
"""Entries of pages and the node of each page, by first entry."""


def container(
    sort: int, entries: list[bytes], page: Callable[[bytes], bytes], before: Pages
) -> tuple[bytes, Pages]:
    """Build a list or dict from its entries; returns its node and its pages.

    Args:
        sort: ``Sort.LIST`` or ``Sort.DICT``.
        entries: the encoded entries.
        page: stores the content of a page and returns its id.
        before: pages that are already stored.
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
    """Build the node of a wrapper from the nodes of its fields."""
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
        """True if no bytes remain."""
        return self.at >= len(self.body)

    def varint(self) -> int:
        """Read the next number."""
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
        """Read the next ``size`` bytes."""
        start, self.at = self.at, self.at + size
        if self.at > len(self.body):
            raise _malformed(self.body)
        return self.body[start : self.at]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(len(self.body) - self.at)

    def string(self) -> str:
        """Read the next text as a string."""
        return _utf8(self.text())

    def text(self) -> bytes:
        """Read the next text."""
        return self.take(self.varint())

    def node(self) -> bytes:
        """Read the bytes of the next node, unparsed."""
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
    """Parse a node.

    Raises:
        CorruptValueError: the bytes are not a node.
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
    """Split the concatenated ids of pieces.

    Raises:
        CorruptValueError: the last one is truncated.
    """
    if len(content) % ID_BYTES:
        raise _malformed(content)
    return [content[at : at + ID_BYTES] for at in range(0, len(content), ID_BYTES)]


def entries_in(container: int, body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield ``(node, key)`` of the entries of a container or page; a list's keys are empty."""
    reader = NodeReader(body)
    chunk = 1 + ID_BYTES
    while reader.at < len(body):
        if body[reader.at] in (Sort.CHUNK, Sort.PAGE):  # the common case, without a call
            node = body[reader.at : reader.at + chunk]
            reader.at += chunk
            if len(node) != chunk:
                raise _malformed(body)
        else:
            node = reader.node()
        yield node, reader.string() if container == Sort.DICT and node[0] != Sort.PAGE else ""


def rows_of(node: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield ``(sort of the container, id)`` of a node's pages and ``(0, id)`` of its chunks.

    Rows that a page's content refers to are not included: see ``rows_in``.
    """
    yield from rows_in(Sort.LIST, node)


def rows_in(container: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """As ``rows_of``, for the entries of a list or dict, or for the content of one of its pages."""
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

PAGE: Final = "page"
"""Type of a chunk that holds entries of a container."""
RUN: Final = "~run"
"""Type of a part that holds several entries of a list."""
NUMBERS: Final[frozenset[type]] = frozenset((float, bool, type(None)))
"""Types whose values cannot hold anything to redact, except floats without a fraction."""
ATOMS: Final[frozenset[type]] = NUMBERS | {int, str}
"""Types of the values that runs hold."""


_RUN_MEMORY: Final = {b"d": 4, b"B": 8, b"H": 20, b"I": 10, b"q": 5}
"""Maximum bytes of memory per byte of a run, by its form."""


class ListRun(NamedTuple):
    """A run of list entries in stored form; runs are equal if they are equal bit for bit."""

    content: bytes

    @property
    def weight(self) -> int:
        """Maximum memory of the values, in bytes."""
        return _RUN_MEMORY.get(self.content[:1], 64) * len(self.content)

    def values(self) -> list[Any]:
        """Decode the values.

        Raises:
            CorruptValueError: the content is malformed.
        """
        try:
            return unpack_run(self.content)
        except ValueError as exc:
            raise _malformed(self.content) from exc


def flattened(trees: list[Any]) -> list[Any]:
    """Expand the units of a list into its values; the same list if it has no runs."""
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
    """Split a list into its stored units, runs and other values, and their start indices.

    The start indices are None if there is no run, and the units then are the values.

    Args:
        value: the list, which may not change during the call.
        kinds: the types of values that runs may hold.
        finite: keep NaN and infinities out of runs, so that the serialiser rejects them.
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
