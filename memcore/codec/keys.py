"""Order-preserving binary keys: the only module that knows the bytes of keys.

Every key starts with a kind byte. Integers are big-endian u64, so byte order is numeric order.
Strings are UTF-8 (lone surrogates kept) with ``00`` escaped as ``00 FF`` and terminated by ``00``,
so byte order is code point order, also when followed by a part that does not start with ``FF``
(FoundationDB's tuple encoding). The key of a string is still a byte prefix of the key of the same
string followed by a NUL: ``behind(key)``, not ``after(key)``, is the next key.
``docs/architecture.md`` has the whole table.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from memcore.errors import CorruptValueError
from memcore.limits import KEY_BYTES_MAX

try:  # the module behind hashlib.blake2b; importing hashlib would load OpenSSL (3 MB)
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "COUNTERS",
    "KIND_U64_2",
    "LONG_NAME",
    "OF_ONE_FILE",
    "OWNER_KEY",
    "SECRET_KEY",
    "U32",
    "U64",
    "WARM_KEY",
    "Care",
    "Counter",
    "Kind",
    "MemoryRow",
    "Row",
    "SearchRow",
    "ThreadRow",
    "after",
    "audit_care",
    "audit_mark",
    "audit_rows",
    "behind",
    "blake2b",
    "blob_chunk",
    "care_rows",
    "chunk_prefix",
    "counter",
    "expiry_row",
    "graph_rows",
    "kv_prefix",
    "malformed",
    "memory_rows",
    "name_key",
    "number_of",
    "numbered",
    "pack_text",
    "packed_name_key",
    "removal_row",
    "request_row",
    "row_of",
    "scoped",
    "search_documents",
    "search_forward",
    "search_place",
    "search_postings",
    "search_rows",
    "search_table",
    "search_watermark",
    "session_prefix",
    "session_row",
    "session_rows",
    "split_expiry_row",
    "split_removal_row",
    "split_scoped",
    "split_session_prefix",
    "split_session_row",
    "split_state_row",
    "split_token_page",
    "state_field",
    "state_place",
    "state_rows",
    "text_fits",
    "text_prefix",
    "thread_prefix",
    "thread_rows",
    "token_page",
    "token_pages",
    "u64",
    "unpack_text",
    "unpack_texts",
]


# --- Kinds of rows: the bytes that distinguish them -----------------------------------------------


class Kind:
    """First byte of a key. ``00`` is reserved for the store itself."""

    COUNTER: Final = 0x01
    SCOPE: Final = 0x02
    SCOPE_NAME: Final = 0x03
    SESSION_NAME: Final = 0x04
    SESSION: Final = 0x05
    BLOB: Final = 0x06
    BLOB_CHUNK: Final = 0x07
    BLOB_REFS: Final = 0x08
    BLOB_ADDRESS: Final = 0x09
    KV_NAMESPACE: Final = 0x0A
    KV: Final = 0x0B
    EXPIRY: Final = 0x0C
    REMOVAL: Final = 0x0D
    THREAD_NAME: Final = 0x0E
    THREAD: Final = 0x0F
    CHUNK: Final = 0x10
    STATE: Final = 0x11
    CARE: Final = 0x12
    MEMORY: Final = 0x13
    SEARCH: Final = 0x14


class Care:
    """Kind of a scope's care row: the byte after the scope. Scope 0 is the database."""

    HOLD: Final = 0x01
    ERASURE: Final = 0x02
    TERMS: Final = 0x03
    AUDIT: Final = 0x04
    QUARANTINE: Final = 0x05
    MEMORY: Final = 0x06
    DEMAND: Final = 0x07
    SECRET: Final = 0x08
    OWNER: Final = 0x09
    WARM: Final = 0x0A


class Row:
    """Row byte of a session's key: the rows of one session are contiguous."""

    HEAD: Final = 0x01
    INDEX: Final = 0x02
    ITEM: Final = 0x03
    VIEW: Final = 0x04
    SEGMENTS: Final = 0x05
    CHILD: Final = 0x06
    REQUEST: Final = 0x07
    TOKENS: Final = 0x08
    USAGE: Final = 0x09
    CHECKPOINT: Final = 0x0A
    STATE: Final = 0x0B
    MOMENT: Final = 0x0C
    AUDIT: Final = 0x0D
    LEASE: Final = 0x0E
    USES: Final = 0x0F
    TERMS: Final = 0x10


class ThreadRow:
    """Row byte of a thread's key: the rows of one thread of a graph are contiguous."""

    HEAD: Final = 0x01
    NAMESPACE: Final = 0x02
    CHECKPOINT: Final = 0x03
    VALUE: Final = 0x04
    WRITES: Final = 0x05


class MemoryRow:
    """Row byte of a scope's memory rows: the byte after the scope."""

    HEAD: Final = 0x01
    ENTRY: Final = 0x02
    VERSION: Final = 0x03
    SLOT: Final = 0x04
    SOURCE: Final = 0x05
    DIGEST: Final = 0x06
    OUTCOME: Final = 0x07
    PLAYBOOK: Final = 0x08
    GRANT: Final = 0x40
    RECEIVED: Final = 0x41
    JOB: Final = 0x20
    WATERMARK: Final = 0x21
    COVERAGE: Final = 0x22


class SearchRow:
    """Row byte of a scope's search index: the byte after the scope."""

    HEAD: Final = 0x01
    WATERMARK: Final = 0x02
    PLACE: Final = 0x03
    FORWARD: Final = 0x04
    TABLE: Final = 0x05
    POSTINGS: Final = 0x06
    SOURCE: Final = 0x07
    VECTOR_HEAD: Final = 0x08
    VECTORS: Final = 0x09


class Counter:
    """Second byte of a counter's key; the row holds the last number assigned."""

    SCOPE: Final = 0x01
    SESSION: Final = 0x02
    NAMESPACE: Final = 0x03
    THREAD: Final = 0x04
    POOL: Final = 0x05
    GRAPH_NAMESPACE: Final = 0x06
    DATA_KEY: Final = 0x07
    """Not a counter of its own: the newest data key that the file has seen (``RowCipher.note``)."""


COUNTERS: Final = (
    Counter.SCOPE, Counter.SESSION, Counter.NAMESPACE, Counter.THREAD, Counter.POOL,
    Counter.GRAPH_NAMESPACE,
)  # fmt: skip
"""Counters of a store that is not encrypted."""


# --- Numbers in keys: big-endian u64, so that byte order is numeric order -------------------------

U32: Final = Struct(">I")
U64: Final = Struct(">Q")
KIND_U64_2: Final = Struct(">BQQ")  # most keys begin with kind, scope and an object's number
_KIND_U64: Final = Struct(">BQ")


def u64(number: int) -> bytes:
    """Pack a number as eight big-endian bytes."""
    return U64.pack(number)


def numbered(rows: bytes, number: int) -> bytes:
    """Append a number to a prefix: with ``session_rows``, the key that ``session_row`` builds."""
    return rows + U64.pack(number)


def number_of(key: bytes) -> int:
    """Return the last number of a key, such as the seq of an item's row."""
    return int.from_bytes(key[-8:], "big")


# --- Rows of a scope, and rows without one --------------------------------------------------------


def scoped(kind: int, scope: int, *parts: bytes) -> bytes:
    """Build ``kind | scope u64 | parts``, the key of a row that belongs to a scope."""
    return b"".join((_KIND_U64.pack(kind, scope), *parts))


def split_scoped(key: bytes) -> tuple[int, bytes]:
    """Split a key built by ``scoped`` into ``(scope, parts)``."""
    return int.from_bytes(key[1:9], "big"), key[9:]


def counter(which: int) -> bytes:
    """Build ``01 | which u8``, the key of a counter."""
    return bytes((Kind.COUNTER, which))


def blob_chunk(scope: int, slot: bytes, number: int) -> bytes:
    """Build ``07 | scope u64 | slot | number u32``; ``slot``: blob digest and disambiguator."""
    return scoped(Kind.BLOB_CHUNK, scope, slot, U32.pack(number))


def kv_prefix(scope: int, namespace: int) -> bytes:
    """Build ``0B | scope u64 | namespace u64``; the packed key of an entry follows."""
    return KIND_U64_2.pack(Kind.KV, scope, namespace)


def expiry_row(expires_ms: int, key: bytes) -> bytes:
    """Build ``0C | expires_ms u64 | the full key of the row that expires``."""
    return b"".join((bytes((Kind.EXPIRY,)), U64.pack(expires_ms), key))


def split_expiry_row(row: bytes) -> tuple[int, bytes]:
    """Split an expiry row's key into ``(expires_ms, full key)``."""
    return int.from_bytes(row[1:9], "big"), row[9:]


def removal_row(prefix: bytes) -> bytes:
    """Build ``0D | scope u64 | kind u8 | rest``: rows under ``kind | scope | rest`` must go."""
    return b"".join((bytes((Kind.REMOVAL,)), prefix[1:9], prefix[:1], prefix[9:]))


def split_removal_row(row: bytes) -> bytes:
    """Return the prefix that ``removal_row`` was given; of a key cut short, less than its kind."""
    return b"".join((row[9:10], row[1:9], row[10:]))


# --- Strings in keys: encoding that preserves order and identity, and the bounds of scans ---------

LONG_NAME: Final = b"\xff"  # sorts after every packed text: UTF-8 never contains FF
_DIGEST_BYTES: Final = 32


def pack_text(text: str) -> bytes:
    """Encode as UTF-8, ``00`` escaped and terminated by ``00``; preserves order and identity."""
    return text.encode("utf-8", "surrogatepass").replace(b"\x00", b"\x00\xff") + b"\x00"


def unpack_text(packed: bytes) -> str:
    """Decode the output of ``pack_text``.

    Raises:
        CorruptValueError: it is not a packed text.
    """
    if packed and packed.find(b"\x00") == len(packed) - 1:  # nothing is escaped: the common case
        try:
            return packed[:-1].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as exc:
            raise malformed(packed) from exc
    texts = unpack_texts(packed)
    if len(texts) != 1:
        raise malformed(packed)
    return texts[0]


def unpack_texts(packed: bytes) -> tuple[str, ...]:
    """Decode several concatenated outputs of ``pack_text``.

    Raises:
        CorruptValueError: they are not packed texts.
    """
    # FE stands in for an escaped 00 while splitting at the terminators: UTF-8 never contains it,
    # and no packed text starts with FF, so a terminator is never mistaken for an escape.
    *parts, rest = packed.replace(b"\x00\xff", b"\xfe").split(b"\x00")
    if rest or b"\xfe" in packed:
        raise malformed(packed)
    try:
        return tuple(p.replace(b"\xfe", b"\x00").decode("utf-8", "surrogatepass") for p in parts)
    except UnicodeDecodeError as exc:
        raise malformed(packed) from exc


def text_prefix(text: str) -> bytes:
    """Return the common prefix of the packed forms of all strings that start with ``text``."""
    return pack_text(text)[:-1]


def text_fits(prefix_bytes: int, packed: bytes) -> bool:
    """Return True if a packed text fits in one key after a prefix of that length."""
    return prefix_bytes + len(packed) <= KEY_BYTES_MAX


def name_key(prefix: bytes, *names: str) -> bytes:
    """Build a key for any names of any length.

    Names that do not fit in a key are represented by ``FF`` and a 32-byte BLAKE2b digest of their
    packed form; the row's value holds the full names, and readers compare them.
    """
    return packed_name_key(prefix, b"".join(map(pack_text, names)))


def packed_name_key(prefix: bytes, packed: bytes) -> bytes:
    """Build the key of ``name_key`` from the packed form of the names."""
    if text_fits(len(prefix), packed):
        return prefix + packed
    return prefix + LONG_NAME + blake2b(packed, digest_size=_DIGEST_BYTES).digest()


def after(prefix: bytes) -> bytes:
    """Return the first key after all keys with ``prefix``, which must contain a byte < FF."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def behind(key: bytes) -> bytes:
    """Return the smallest key greater than ``key``, from which a scan continues.

    A key of maximum length cannot be extended, so the scan continues after all keys with its
    prefix.
    """
    return key + b"\x00" if len(key) < KEY_BYTES_MAX else after(key)


def malformed(key: bytes) -> CorruptValueError:
    """Return the error for bytes that are not a valid key or name."""
    msg = f"the key or name {key[:80].hex()} is malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)


# --- Rows of a session, which are contiguous ------------------------------------------------------

_SESSION_ROWS: Final = Struct(">BQQB")
_SESSION_ROW: Final = Struct(">BQQBQ")
_TOKEN_PAGE: Final = Struct(">BQQBQQ")


def session_prefix(scope: int, session: int) -> bytes:
    """Build the prefix of all rows of a session."""
    return KIND_U64_2.pack(Kind.SESSION, scope, session)


def session_rows(scope: int, session: int, row: int) -> bytes:
    """Build the prefix of a session's rows of one kind."""
    return _SESSION_ROWS.pack(Kind.SESSION, scope, session, row)


def session_row(scope: int, session: int, row: int, number: int) -> bytes:
    """Build ``05 | scope u64 | session u64 | row u8 | number u64``."""
    return _SESSION_ROW.pack(Kind.SESSION, scope, session, row, number)


def request_row(scope: int, session: int, digest: bytes) -> bytes:
    """Build ``05 | scope u64 | session u64 | 07 | digest``, the key of an idempotency row."""
    return session_rows(scope, session, Row.REQUEST) + digest


def token_pages(scope: int, session: int, number: int) -> bytes:
    """Build the prefix of the token pages of one recount."""
    return session_row(scope, session, Row.TOKENS, number)


def token_page(scope: int, session: int, number: int, first: int) -> bytes:
    """Build ``05 | scope u64 | session u64 | 08 | recount u64 | first position u64``."""
    return token_pages(scope, session, number) + U64.pack(first)


def split_token_page(key: bytes) -> tuple[int, int]:
    """Split a token page's key into ``(recount, first position)``.

    Raises:
        CorruptValueError: it is not the key of a token page.
    """
    if len(key) != _TOKEN_PAGE.size:
        msg = f"the token counts under key {key.hex()} are of no recount; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    _, _, _, _, number, first = _TOKEN_PAGE.unpack(key)
    return number, first


def split_session_prefix(key: bytes) -> tuple[int, int]:
    """Return ``(scope, session)`` of any session row's key.

    Raises:
        CorruptValueError: the key is too short.
    """
    if len(key) < KIND_U64_2.size:
        raise malformed(key)
    _, scope, session = KIND_U64_2.unpack_from(key)
    return scope, session


def split_session_row(key: bytes) -> tuple[int, int, int, int]:
    """Split a session row's key into ``(scope, session, row, number)``.

    Raises:
        CorruptValueError: it is not the key of a numbered session row.
    """
    if len(key) != _SESSION_ROW.size:
        raise malformed(key)
    _, scope, session, row, number = _SESSION_ROW.unpack(key)
    return scope, session, row, number


def row_of(key: bytes) -> int:
    """Return the row byte of a session row's key."""
    return key[17]


# --- Care rows of a scope or the database: holds, erasures, terms, audits, quarantine -------------

_AUDIT: Final = bytes((Care.AUDIT,))
_AUDIT_ENTRIES: Final = _AUDIT + b"\x01"
_AUDIT_MARKS: Final = _AUDIT + b"\x02"


def care_rows(scope: int, which: int) -> bytes:
    """Build ``12 | scope u64 | which u8``, the prefix of care rows; scope 0: the database's."""
    return scoped(Kind.CARE, scope, bytes((which,)))


OWNER_KEY: Final = care_rows(0, Care.OWNER)
"""Row with the owner id, 16 bytes, that the data file shares with its key file.

It is specific to one data file: it is blank in a copy, and no audit chain records it."""
SECRET_KEY: Final = care_rows(0, Care.SECRET)
"""Row of a secret that is waiting for space for its file; also specific to one data file."""
WARM_KEY: Final = care_rows(0, Care.WARM)
"""Row that names what the file's warm copy follows; also specific to one data file."""
OF_ONE_FILE: Final = frozenset((OWNER_KEY, SECRET_KEY, WARM_KEY))
"""Rows that no copy in another store has."""


def audit_rows(scope: int, session: int) -> bytes:
    """Build the prefix of an audit chain's entries; the entry's number follows.

    ``05 | scope | session | 0D`` for a session; ``12 | scope | 04 | 01`` for the scope's own chain
    (session 0), or the database's (scope 0).
    """
    if session:
        return session_rows(scope, session, Row.AUDIT)
    return scoped(Kind.CARE, scope, _AUDIT_ENTRIES)


def audit_mark(scope: int, session: int) -> bytes:
    """Build ``12 | scope u64 | 04 | 02 | session u64``: the chain has unanchored entries."""
    return scoped(Kind.CARE, scope, _AUDIT_MARKS, U64.pack(session))


def audit_care(scope: int) -> bytes:
    """Build the prefix of a scope's audit rows: its own chain, and the marks of all its chains."""
    return scoped(Kind.CARE, scope, _AUDIT)


# --- Rows of a scope's long-term memory -----------------------------------------------------------


_MEMORY_ROW: Final = Struct(">BQB")


def memory_rows(scope: int, row: int, *parts: bytes) -> bytes:
    """Build ``13 | scope u64 | row u8 | parts``: a memory row's key, or a prefix of several."""
    return b"".join((_MEMORY_ROW.pack(Kind.MEMORY, scope, row), *parts))


# --- Rows of graphs: threads, their checkpoints, and pools of chunks ------------------------------


def thread_prefix(scope: int, thread: int) -> bytes:
    """Build the prefix of all rows of a thread of a graph."""
    return KIND_U64_2.pack(Kind.THREAD, scope, thread)


def thread_rows(scope: int, thread: int, row: int) -> bytes:
    """Build the prefix of a thread's rows of one kind."""
    return thread_prefix(scope, thread) + bytes((row,))


def graph_rows(scope: int, thread: int, row: int, namespace: int) -> bytes:
    """Build ``0F | scope u64 | thread u64 | row u8 | namespace u32``.

    It is the prefix of a namespace's checkpoints, values or writes.
    """
    return thread_rows(scope, thread, row) + U32.pack(namespace)


def chunk_prefix(scope: int, pool: int) -> bytes:
    """Build ``10 | scope u64 | pool u64``: a pool's key, and with an id appended, a chunk's."""
    return KIND_U64_2.pack(Kind.CHUNK, scope, pool)


# --- Rows of a scope's search index ---------------------------------------------------------------


def search_rows(scope: int, row: int) -> bytes:
    """Build ``14 | scope u64 | row u8``: the head's key, and the prefix of other rows."""
    return scoped(Kind.SEARCH, scope, bytes((row,)))


def search_watermark(scope: int, session: int) -> bytes:
    """Build ``14 | scope u64 | 02 | session u64``."""
    return search_rows(scope, SearchRow.WATERMARK) + U64.pack(session)


def search_documents(scope: int, kind: int, *, prefix: bytes = b"") -> bytes:
    """Build ``14 | scope u64 | 03 | kind u8 | prefix``: places of documents."""
    return search_rows(scope, SearchRow.PLACE) + bytes((kind,)) + prefix


def search_place(key: bytes) -> tuple[int, bytes]:
    """Return ``(kind, id)`` of the document that a place's key names.

    Raises:
        CorruptValueError: it names none.
    """
    if len(key) <= _SEARCH_ID_AT:
        raise malformed(key)
    return key[_SEARCH_ID_AT - 1], key[_SEARCH_ID_AT:]


_SEARCH_ID_AT: Final = 11


def search_forward(scope: int, ordinal: int) -> bytes:
    """Build ``14 | scope u64 | 04 | ordinal u64``."""
    return search_rows(scope, SearchRow.FORWARD) + U64.pack(ordinal)


def search_table(scope: int, page: int) -> bytes:
    """Build ``14 | scope u64 | 05 | page u64``."""
    return search_rows(scope, SearchRow.TABLE) + U64.pack(page)


def search_postings(scope: int, term: bytes) -> bytes:
    """Build ``14 | scope u64 | 06 | term 8``; the first ordinal of a block, u64, follows."""
    return search_rows(scope, SearchRow.POSTINGS) + term


def search_vectors(scope: int, block: int) -> bytes:
    """Build ``14 | scope u64 | 09 | block u64``."""
    return search_rows(scope, SearchRow.VECTORS) + U64.pack(block)


# --- Rows of a state: of a session, or of a scope's shared state ----------------------------------

_SCOPED_BYTES: Final = 9


def state_rows(scope: int, session: int) -> bytes:
    """Build the prefix of a session's state rows; session 0: of the scope's own state."""
    if session:
        return session_rows(scope, session, Row.STATE)
    return scoped(Kind.STATE, scope)


def state_place(key: bytes) -> tuple[int, int]:
    """Return ``(scope, session)`` of a state row's key, as ``state_rows`` takes them.

    Raises:
        CorruptValueError: the key is too short.
    """
    if key[:1] != bytes((Kind.STATE,)):
        return split_session_prefix(key)
    if len(key) < _SCOPED_BYTES:
        raise malformed(key)
    return split_scoped(key)[0], 0


def state_field(rows: bytes, packed: bytes) -> bytes:
    """Build the prefix of the versions of a state's field, from ``state_rows`` and its packed name.

    A longer name with a NUL at this point continues with ``FF``, with which no counter begins.
    """
    return rows + packed


def split_state_row(key: bytes) -> tuple[str, int]:
    """Split the key of a field's version into ``(field, counter)``.

    Raises:
        CorruptValueError: it is not the key of a version.
    """
    rows = _SCOPED_BYTES if key[:1] == bytes((Kind.STATE,)) else KIND_U64_2.size + 1
    field = unpack_text(key[rows:-8])
    if len(key) < rows + 10 or not field:
        raise malformed(key)
    return field, number_of(key)
