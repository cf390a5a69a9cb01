"""Rows of a scope's search index, and their changes inside a write transaction.

- head: version of the analysis u16, 0 u16, key 16, documents u64, their total length u64, next
  ordinal u64, first pending ordinal u64, generation u64, generation of the table u64
- watermark of a session: first 8 bytes of its head's checksum, then the segments of its history
  that are indexed: session, first seq, last seq, u64 each (``memcore.session.search``)
- place: kind u8 and id of a document in the key; its ordinal u64
- forward row of an ordinal: record 32, length of the id u16, id, packed terms
- table page: the records of 256 ordinals; one of a document that is gone, or pending, is zeros
- postings: a block of at most 512 (``_fast.pack_postings``) under a term and its first ordinal
- source of a kind: what the package of these documents notes about its progress

A record is group u64, number u64, length u32, time s u32, hash of the author u32, kind u8, role
u8, weight in hundredths u8, flags u8 (1: documents of the group beside it are its neighbours).
Group and number are the first 16 bytes of the id, big-endian; everything else is little-endian.

Adding a document writes its place and its forward row. Its terms reach the postings with those of
others, thousands at a time: random terms touch a page of the file each. Until then a search reads
the forward rows. Removing one takes all of these out in the transaction that removes its content.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from memcore._fast import invert_terms, is_packed, pack_postings, unpack_postings
from memcore.codec import keys
from memcore.codec.keys import Kind, SearchRow
from memcore.codec.values import decoding, open_value, seal_value
from memcore.errors import CorruptValueError, InternalError
from memcore.options import counted
from memcore.search.text import ANALYSIS, packed_terms
from memcore.search.vectors import (
    BLOCK_PAGES,
    blank_vectors,
    check_vectors,
    embedded_ordinals,
    is_vector_row,
    read_vector_head,
)
from memcore.store.datafile import SEARCHED
from memcore.store.interface import DeleteBudget, ReadTxn, Store, Txn

try:  # the module behind hashlib.blake2b; importing hashlib would load OpenSSL (3 MB)
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = [
    "Document",
    "DocumentKind",
    "IndexHead",
    "IndexWriter",
    "PreparedDocument",
    "Watermark",
    "author_hash",
    "check_rows",
    "clear_index",
    "documents_of",
    "drop_index",
    "few_enough",
    "forward_of",
    "forward_rows",
    "indexed_form",
    "is_absent",
    "is_index_error",
    "is_index_row",
    "is_leaving",
    "is_sparse",
    "merge_pending",
    "merge_piece",
    "ordinal_of",
    "pending_documents",
    "posting_blocks",
    "read_head",
    "read_watermarks",
    "remove_documents",
    "remove_index_piece",
    "source_of",
    "table_pages",
    "unpack_watermark",
]


# --- Documents ------------------------------------------------------------------------------------


class DocumentKind(IntEnum):
    """Kind of a document, 1 to 63: the package that it belongs to. Stored; never changes."""

    ITEM = 1
    """An item of a session; its id is session u64, seq u64."""
    MEMORY = 2
    ADK = 3
    """A memory of ADK's memory service."""
    STORE = 4
    """An item of a LangGraph store: ranked beside the index, never in it."""


ID_BYTES_MAX: Final = 255
ROLES: Final = 64
_CHAINED: Final = 1
_ID: Final = Struct(">QQ")
_RECORD: Final = Struct("<QQIIIBBBB")
RECORD_BYTES: Final = _RECORD.size
_TIME_MAX: Final = 2**32 - 2
"""The end of a range of times is not part of it, and has 32 bits."""
_ORDINAL_MAX: Final = 2**32 - 1
_ID_LENGTH: Final = Struct("<H")
_FORWARD_BYTES: Final = _RECORD.size + _ID_LENGTH.size


class Document(NamedTuple):
    """Something to be found by its words."""

    kind: int
    """A DocumentKind."""
    id: bytes
    """1 to 255 bytes, unique within the kind."""
    text: str
    """All of its words, with those of its author and its month."""
    weight: float = 1.0
    """Factor of its score, 0.01 to 2.55."""
    role: int = 0
    """0 to 63: its role within the kind, to filter by."""
    time: float = 0.0
    """Seconds since 1970, to filter by."""
    author: str = ""
    """Author, to filter by."""
    has_neighbours: bool = False
    """True if documents with the same first 8 bytes of the id, which has 16, are in the order of
    the others, and lend each other a part of their scores."""

    def prepared(self, key: bytes) -> PreparedDocument:
        """Analyze the text under an index's key, outside any transaction."""
        if not 0 < len(self.id) <= ID_BYTES_MAX or not 0 < self.kind < ROLES > self.role:
            msg = f"a document of kind {self.kind} and an id of {len(self.id)} bytes"
            raise InternalError(msg)
        packed, length = packed_terms(self.text, key)
        group, number = _ID.unpack(self.id[:16].ljust(16, b"\0"))
        chained = self.has_neighbours and len(self.id) == _ID.size
        record = _RECORD.pack(
            group, number, length, min(max(int(self.time), 0), _TIME_MAX),
            author_hash(self.author, key), self.kind, self.role,
            min(max(round(100 * self.weight), 1), 255), _CHAINED if chained else 0,
        )  # fmt: skip
        return PreparedDocument(self.kind, self.id, record, packed, length, key)


class PreparedDocument(NamedTuple):
    """A document with its terms, ready to be added to the index with this key."""

    kind: int
    id: bytes
    record: bytes
    packed: bytes
    length: int
    key: bytes


def author_hash(author: str, key: bytes) -> int:
    """Return the hash of an author, whatever the case; 0 for none."""
    if not author:
        return 0
    packed = author.casefold().encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(packed, key=key, digest_size=4).digest(), "little") or 1


# --- The head -------------------------------------------------------------------------------------

_HEAD: Final = Struct("<HH16sQQQQQQ")
TABLE_RECORDS: Final = 256
PENDING_MAX: Final = 256
"""Pending documents that a search reads; what is beyond is merged behind the statements."""
TERMS_MAX: Final = 8192
"""Terms of a document, one by one, that one transaction moves to the postings, or takes out; those
of one document may be more. They take about 0.1 s, while all others wait to write."""
BLOCK_POSTINGS: Final = 512
_POSTING_BYTES: Final = 8
ENTRY_BYTES: Final = 9
"""Bytes of an entry of packed terms."""
_NUMBERS_MAX: Final = 2**48


class IndexHead:
    """Totals of an index; ``pack`` is its row's body."""

    __slots__ = (
        "documents", "generation", "key", "length", "merged", "next", "table_generation", "version",
    )  # fmt: skip

    def __init__(self, key: bytes) -> None:
        self.version = ANALYSIS
        self.key = key
        self.documents = 0
        self.length = 0
        """Sum of the documents' lengths."""
        self.next = 0
        """The next ordinal."""
        self.merged = 0
        """The first ordinal whose terms are not in the postings yet."""
        self.generation = 0
        """Number of changes so far."""
        self.table_generation = 0
        """Generation of the last change of the table."""

    def is_long(self) -> bool:
        """Return True if so many documents are pending that some are to be merged."""
        return self.next - self.merged > PENDING_MAX

    def pack(self) -> bytes:
        """Return the body of its row."""
        return _HEAD.pack(
            self.version, 0, self.key, self.documents, self.length, self.next, self.merged,
            self.generation, self.table_generation,
        )  # fmt: skip

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> IndexHead:
        """Unpack a stored row.

        Raises:
            CorruptValueError: it is damaged.
        """
        body = open_value(key, value)[1]
        head = cls(b"")
        with decoding(key, "head of a search index"):
            head.version, _, head.key, *numbers = _HEAD.unpack(body)
            (head.documents, head.length, head.next, head.merged, head.generation,
             head.table_generation) = numbers  # fmt: skip
            if head.documents > head.next or head.merged > head.next or max(numbers) > _NUMBERS_MAX:
                raise ValueError("its numbers contradict each other")
        return head


def read_head(txn: ReadTxn, scope: int) -> IndexHead | None:
    """Return the head of a scope's index; None if there is none, or one of another analysis.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = keys.search_rows(scope, SearchRow.HEAD)
    value = txn.get(key)
    head = None if value is None else IndexHead.unpack(key, value)
    return None if head is None or head.version != ANALYSIS else head


HOLES: Final = 16
HOLES_MAX: Final = 64
"""Ordinals given out for each document, at most: a table is as large as they are many."""
_SPARSE_MIN: Final = 2**16


def is_sparse(head: IndexHead, *, most: int = HOLES) -> bool:
    """Return True if documents came and went so often that most ordinals belong to none.

    Such an index is built anew; no writer leaves more than 64 ordinals for each document.
    """
    return head.next > most * (head.documents + _SPARSE_MIN)


# --- Reading --------------------------------------------------------------------------------------


class Forward(NamedTuple):
    """A forward row: a document, and what it was indexed with."""

    ordinal: int
    record: bytes
    kind: int
    id: bytes
    packed: bytes
    length: int


def _forward(key: bytes, value: bytes) -> Forward:
    body = open_value(key, value)[1]
    with decoding(key, "forward row of a search index"):
        fields = _RECORD.unpack_from(body)
        size = _ID_LENGTH.unpack_from(body, _RECORD.size)[0]
        at = _FORWARD_BYTES + size
        if not 0 < size <= len(body) - _FORWARD_BYTES:
            raise ValueError("it ends inside its id")
        id_ = body[_FORWARD_BYTES:at]
        if not is_packed(body[at:]):
            raise ValueError("its terms are damaged")
        return Forward(
            keys.number_of(key), body[: _RECORD.size], fields[5], id_, body[at:], fields[2]
        )


def forward_of(txn: ReadTxn, scope: int, ordinal: int) -> Forward | None:
    """Return a document's forward row; None if there is none.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = keys.search_forward(scope, ordinal)
    value = txn.get(key)
    return None if value is None else _forward(key, value)


def forward_rows(txn: ReadTxn, scope: int, start: int, stop: int) -> Iterator[Forward]:
    """Yield the forward rows of a range of ordinals.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    for row in txn.scan(keys.search_forward(scope, start), keys.search_forward(scope, stop)):
        yield _forward(*row)


def ordinal_of(txn: ReadTxn, scope: int, kind: int, id_: bytes) -> int | None:
    """Return the ordinal of a document; None if it is not indexed.

    Raises:
        CorruptValueError: its place is damaged.
    """
    place = keys.search_documents(scope, kind, prefix=id_)
    value = txn.get(place)
    return None if value is None else _ordinal(place, value)


def _ordinal(place: bytes, value: bytes) -> int:
    body = open_value(place, value)[1]
    with decoding(place, "place of a document in a search index"):
        found: int = keys.U64.unpack(body)[0]
        if found > _NUMBERS_MAX:
            raise ValueError(found)
    return found


def pending_documents(txn: ReadTxn, scope: int, head: IndexHead) -> list[Forward]:
    """Return the forward rows of the documents that are not merged yet.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    return [] if head.merged == head.next else [*forward_rows(txn, scope, head.merged, head.next)]


def _first_pending(txn: ReadTxn, scope: int, head: IndexHead) -> tuple[list[Forward], int]:
    """Return the first pending documents, of about 8,192 terms, and the ordinal behind them."""
    found: list[Forward] = []
    terms = 0
    for each in forward_rows(txn, scope, head.merged, head.next):
        terms += len(each.packed) // ENTRY_BYTES
        if found and terms > TERMS_MAX:
            return found, each.ordinal
        found.append(each)
    return found, head.next


def few_enough(
    txn: ReadTxn, scope: int, kind: int, ids: Iterable[bytes]
) -> Iterator[tuple[bytes, int]]:
    """Yield the first ids of documents that one transaction may take out, and their terms.

    Raises:
        CorruptValueError: a row is damaged.
    """
    terms = 0
    for at, id_ in enumerate(ids):
        ordinal = ordinal_of(txn, scope, kind, id_)
        found = None if ordinal is None else forward_of(txn, scope, ordinal)
        own = 0 if found is None else len(found.packed) // ENTRY_BYTES
        terms += own
        if at and terms > TERMS_MAX:
            return
        yield id_, own


def table_pages(txn: ReadTxn, scope: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(first ordinal, records)`` of the table's pages.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    prefix = keys.search_rows(scope, SearchRow.TABLE)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        yield keys.number_of(key) * TABLE_RECORDS, open_value(key, value)[1]


def posting_blocks(
    txn: ReadTxn, scope: int, term: bytes, stop: int
) -> list[tuple[int, int, bytes]]:
    """Return ``(base, stop, block)`` of a term's blocks; all of their ordinals are below ``stop``.

    Raises:
        CorruptValueError: one of them is damaged.
    """
    prefix = keys.search_postings(scope, term)
    return [
        (min(keys.number_of(key), _ORDINAL_MAX), stop, open_value(key, value)[1])
        for key, value in txn.scan(prefix, keys.after(prefix))
    ]


Segments = list[tuple[int, int, int]]
"""``(session, first seq, last seq)`` of items, ascending."""
_SEGMENT: Final = Struct("<QQQ")
_MARK_BYTES: Final = 8


class Watermark(NamedTuple):
    """Items of a session's live history that are indexed."""

    mark: bytes
    """The checksum of the session's head at the time; zeros: not all of it is indexed."""
    segments: Segments

    def pack(self) -> bytes:
        """Return the body of its row."""
        return self.mark + b"".join(_SEGMENT.pack(*each) for each in self.segments)


UNFINISHED: Final = bytes(_MARK_BYTES)


def unpack_watermark(key: bytes, value: bytes) -> Watermark:
    """Unpack the row of a watermark.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "watermark of a search index"):
        if len(body) < _MARK_BYTES:
            raise ValueError("it is too short")
        segments = list(_SEGMENT.iter_unpack(body[_MARK_BYTES:]))
        if any(not 0 < lo <= hi < _NUMBERS_MAX for _, lo, hi in segments):
            raise ValueError("a segment has no end")
        return Watermark(body[:_MARK_BYTES], segments)


def read_watermarks(txn: ReadTxn, scope: int) -> dict[int, tuple[bytes, bytes]]:
    """Return the rows of a scope's watermarks by session, not unpacked yet."""
    prefix = keys.search_rows(scope, SearchRow.WATERMARK)
    return {
        keys.number_of(key): (key, value) for key, value in txn.scan(prefix, keys.after(prefix))
    }


# --- Changes --------------------------------------------------------------------------------------


class IndexWriter:
    """Changes of a scope's index in one write transaction; ``close`` writes the head.

    Creates the index if there is none and ``create`` is true. ``exists`` is false if there is none,
    if its removal is not finished, or if it is of another analysis; nothing can be added then.

    Raises:
        CorruptValueError: the head is damaged.
    """

    __slots__ = ("_blanked", "_changed", "exists", "head", "scope", "txn")

    def __init__(self, txn: Txn, scope: int, *, create: bool = False) -> None:
        self.txn = txn
        self.scope = scope
        self._changed = False
        self._blanked: set[int] = set()
        found = read_head(txn, scope)
        self.exists = found is not None
        if found is None and create and is_absent(txn, scope):
            txn.need_feature(SEARCHED)
            self.exists = self._changed = True
        self.head = IndexHead(os.urandom(16) if self.exists else b"") if found is None else found

    def add(self, documents: Iterable[PreparedDocument]) -> int:
        """Add documents; those that the index has already are skipped. Returns the number added.

        Raises:
            InternalError: one was prepared for another index.
        """
        added, txn, head = 0, self.txn, self.head
        for each in documents:
            if not self.exists or each.key != head.key:
                raise InternalError("a document was prepared for another index")
            place = keys.search_documents(self.scope, each.kind, prefix=each.id)
            if txn.get(place) is not None:
                continue
            txn.put(place, seal_value(place, keys.u64(head.next)))
            key = keys.search_forward(self.scope, head.next)
            body = b"".join((each.record, _ID_LENGTH.pack(len(each.id)), each.id, each.packed))
            txn.put(key, seal_value(key, body))
            head.next += 1
            head.documents += 1
            head.length += each.length
            added += 1
        self._changed = self._changed or added > 0
        return added

    def merge(self) -> None:
        """Move the terms of the first pending documents to the postings."""
        head, txn = self.head, self.txn
        pending, after = _first_pending(txn, self.scope, head)
        pages: dict[int, bytearray] = {}
        for each in pending:
            self._record(pages, each.ordinal, each.record)
        self._write_pages(pages)
        for term, raw in invert_terms([(each.ordinal, each.packed) for each in pending]):
            self._append(keys.search_postings(self.scope, term), raw)
        head.merged = after
        self._changed = True
        head.table_generation = head.generation + 1

    def _append(self, prefix: bytes, raw: bytes) -> None:
        """Append postings, in the open, to the blocks of a term."""
        last = next(self.txn.scan(prefix, keys.after(prefix), reverse=True, limit=1), None)
        if last is not None:
            key, value = last
            base = keys.number_of(key)
            with decoding(key, "postings of a search index"):
                known = unpack_postings(open_value(key, value)[1], base, self.head.next)
                if len(known) < BLOCK_POSTINGS * _POSTING_BYTES:
                    room = BLOCK_POSTINGS * _POSTING_BYTES - len(known)
                    body = pack_postings(known + raw[:room], base)
                    raw = raw[room:]
                    self.txn.put(key, seal_value(key, body))
        size = BLOCK_POSTINGS * _POSTING_BYTES
        for at in range(0, len(raw), size):
            base = int.from_bytes(raw[at : at + 4], "little")
            key = keys.numbered(prefix, base)
            self.txn.put(key, seal_value(key, pack_postings(raw[at : at + size], base)))

    def _record(self, pages: dict[int, bytearray], ordinal: int, record: bytes) -> None:
        number, at = divmod(ordinal, TABLE_RECORDS)
        if number not in pages:
            key = keys.search_table(self.scope, number)
            value = self.txn.get(key)
            body = b"" if value is None else open_value(key, value)[1]
            pages[number] = bytearray(body.ljust(TABLE_RECORDS * _RECORD.size, b"\0"))
        pages[number][at * _RECORD.size : (at + 1) * _RECORD.size] = record

    def _write_pages(self, pages: dict[int, bytearray]) -> None:
        for number, page in pages.items():
            key, body = keys.search_table(self.scope, number), page.rstrip(b"\0")
            if body:
                whole = -(-len(body) // _RECORD.size) * _RECORD.size
                self.txn.put(key, seal_value(key, bytes(page[:whole])))
            else:
                self.txn.delete(key)

    def remove(self, kind: int, ids: Iterable[bytes]) -> int:
        """Take documents out, with all of their terms; returns the number that were there.

        Raises:
            CorruptValueError: a row of the index is damaged; the caller drops the index.
        """
        gone: list[Forward] = []
        for id_ in ids:
            place = keys.search_documents(self.scope, kind, prefix=id_)
            value = self.txn.get(place) if self.exists else None
            if value is None:
                continue
            ordinal = _ordinal(place, value)
            found = forward_of(self.txn, self.scope, ordinal)
            if found is None or (found.kind, found.id) != (kind, id_):
                msg = "the place of a document in a search index leads astray"
                raise CorruptValueError(msg, key=place)
            self.txn.delete(place)
            self.txn.delete(keys.search_forward(self.scope, ordinal))
            gone.append(found)
        if not gone:
            return 0
        self._forget([each for each in gone if each.ordinal < self.head.merged])
        self._blanked |= blank_vectors(self.txn, self.scope, [each.ordinal for each in gone])
        self.head.documents -= len(gone)
        self.head.length -= sum(each.length for each in gone)
        if self.head.documents < 0 or self.head.length < 0:
            key = keys.search_rows(self.scope, SearchRow.HEAD)
            raise CorruptValueError("the totals of a search index are too low", key=key)
        self._changed = True
        return len(gone)

    def remove_piece(self, kind: int, id_: bytes, most: int) -> int:
        """Remove at most ``most`` terms of a document, and the document with its last ones.

        Returns the number of terms removed, at least 1 if there was a document, and of pages that
        took its vector.

        Raises:
            CorruptValueError: as ``remove``.
        """
        ordinal = ordinal_of(self.txn, self.scope, kind, id_)
        if ordinal is None:
            return 0
        found = forward_of(self.txn, self.scope, ordinal)
        entries = 0 if found is None else len(found.packed) // ENTRY_BYTES
        if found is None or entries <= most or ordinal >= self.head.merged:
            before = len(self._blanked)
            self.remove(kind, (id_,))
            return max(entries, 1) + BLOCK_PAGES * (len(self._blanked) - before)
        now, rest = found.packed[: most * ENTRY_BYTES], found.packed[most * ENTRY_BYTES :]
        for term, _ in invert_terms([(ordinal, now)]):
            self._drop_postings(keys.search_postings(self.scope, term), [ordinal])
        key = keys.search_forward(self.scope, ordinal)
        body = b"".join((found.record, _ID_LENGTH.pack(len(id_)), id_, rest))
        self.txn.put(key, seal_value(key, body))
        self._changed = True
        return most

    def _forget(self, gone: list[Forward]) -> None:
        """Take merged documents out of the table and the postings."""
        if not gone:
            return
        pages: dict[int, bytearray] = {}
        by_term: dict[bytes, list[int]] = defaultdict(list)
        for each in gone:
            self._record(pages, each.ordinal, bytes(_RECORD.size))
        for term, raw in invert_terms([(each.ordinal, each.packed) for each in gone]):
            by_term[term] = [
                int.from_bytes(raw[at : at + 4], "little")
                for at in range(0, len(raw), _POSTING_BYTES)
            ]
        self._write_pages(pages)
        for term, ordinals in by_term.items():
            self._drop_postings(keys.search_postings(self.scope, term), ordinals)
        self.head.table_generation = self.head.generation + 1

    def _drop_postings(self, prefix: bytes, ordinals: list[int]) -> None:
        """Remove the postings of ascending ordinals from the blocks of a term."""
        left = len(ordinals)
        while left:
            stop = keys.numbered(prefix, ordinals[left - 1] + 1)
            key, value = next(self.txn.scan(prefix, stop, reverse=True, limit=1), (prefix, b""))
            base = keys.number_of(key)
            first = bisect_left(ordinals, base, 0, left) if value else left
            with decoding(key, "postings of a search index"):
                raw = unpack_postings(open_value(key, value)[1], base, self.head.next)
                dropped = {each.to_bytes(4, "little") for each in ordinals[first:left]}
                parts = [
                    raw[at : at + _POSTING_BYTES]
                    for at in range(0, len(raw), _POSTING_BYTES)
                    if raw[at : at + 4] not in dropped
                ]
                if len(raw) // _POSTING_BYTES - len(parts) != len(dropped):
                    raise ValueError("a posting is missing")
                if parts:
                    self.txn.put(key, seal_value(key, pack_postings(b"".join(parts), base)))
                else:
                    self.txn.delete(key)
            left = first

    def put_watermark(self, session: int, watermark: Watermark | None) -> None:
        """Write a session's watermark; None deletes it."""
        key = keys.search_watermark(self.scope, session)
        if watermark is None:
            self.txn.delete(key)
        else:
            self.txn.put(key, seal_value(key, watermark.pack()))
        self._changed = True

    def put_source(self, kind: int, body: bytes) -> None:
        """Note the progress of a kind's package; it is forgotten when the index is dropped."""
        key = keys.search_rows(self.scope, SearchRow.SOURCE) + bytes((kind,))
        self.txn.put(key, seal_value(key, body))
        self._changed = True

    def source(self, kind: int) -> bytes | None:
        """Return what ``put_source`` noted; None if there is nothing."""
        return source_of(self.txn, self.scope, kind) if self.exists else None

    def close(self) -> None:
        """Write the head if anything changed."""
        if self._changed and self.exists:
            self.head.generation += 1
            key = keys.search_rows(self.scope, SearchRow.HEAD)
            self.txn.put(key, seal_value(key, self.head.pack()))
            self._changed = False


def merge_piece(txn: Txn, scope: int) -> bool:
    """Merge some pending documents if they are too many; return False if they are not.

    By itself in a transaction: the terms of long documents take longer than any statement may.

    Raises:
        CorruptValueError: the index is damaged.
    """
    writer = IndexWriter(txn, scope)
    if not writer.exists or writer.head.next - writer.head.merged <= PENDING_MAX:
        return False
    writer.merge()
    writer.close()
    return True


def merge_pending(store: Store, scope: int) -> int:
    """Merge pending documents in short commits until a search has few to read; count the commits.

    Raises:
        CorruptValueError: the index is damaged.
    """
    head = store.read(lambda txn: read_head(txn, scope))
    done = 0
    if head is not None:
        most = max(head.next - head.merged - PENDING_MAX, 0)  # others may go on adding for ever
        while done < most and store.transact(lambda txn: merge_piece(txn, scope)):
            done += 1
    return done


def source_of(txn: ReadTxn, scope: int, kind: int) -> bytes | None:
    """Return what the package of a kind noted in the index; None if there is nothing.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = keys.search_rows(scope, SearchRow.SOURCE) + bytes((kind,))
    value = txn.get(key)
    return None if value is None else open_value(key, value)[1]


def remove_documents(txn: Txn, scope: int, kind: int, ids: Iterable[bytes]) -> int:
    """Take documents out of the index, in the transaction that removes their content.

    If a row of the index is damaged, the whole index is dropped instead. Returns the number of
    documents that the index had.
    """
    try:
        writer = IndexWriter(txn, scope)
        if not writer.exists:
            return 0
        done = writer.remove(kind, ids)
        writer.close()
    except CorruptValueError:
        drop_index(txn, scope)
        return 0
    return done


# --- Dropping an index ----------------------------------------------------------------------------


def _removal(scope: int) -> bytes:
    return keys.removal_row(keys.scoped(Kind.SEARCH, scope))


def is_leaving(txn: ReadTxn, scope: int) -> bool:
    """Return True if an index was dropped and some of its rows still exist."""
    return txn.get(_removal(scope)) is not None


def is_absent(txn: ReadTxn, scope: int) -> bool:
    """Return True if a scope has no rows of an index."""
    prefix = keys.scoped(Kind.SEARCH, scope)
    return next(txn.scan(prefix, keys.after(prefix), limit=1), None) is None and not is_leaving(
        txn, scope
    )


def is_index_error(error: CorruptValueError) -> bool:
    """Return True if it is a search index that is damaged: dropping it is the cure."""
    return error.key[:1] == bytes((Kind.SEARCH,))


def drop_index(txn: Txn, scope: int) -> list[bytes]:
    """Drop a scope's index: nobody finds it from now on, and its rows are removed in pieces.

    Returns the ``REMOVAL`` row to continue with, or nothing if there is no index.
    """
    prefix = keys.scoped(Kind.SEARCH, scope)
    if next(txn.scan(prefix, keys.after(prefix), limit=1), None) is None:
        return []
    txn.delete(keys.search_rows(scope, SearchRow.HEAD))
    row = _removal(scope)
    txn.put(row, seal_value(row, b""))
    return [row]


def remove_index_piece(txn: Txn, row: bytes) -> list[bytes]:
    """Remove a piece of a dropped index; returns the ``REMOVAL`` row again if some is left."""
    prefix = keys.split_removal_row(row)
    piece, until = DeleteBudget(), keys.after(prefix)
    stop = until
    for key, value in txn.scan(prefix, stop):
        if not piece.admits(len(value)):
            until = key
            break
    txn.delete_range(prefix, until)
    if until is not stop:
        return [row]
    txn.delete(row)
    return []


def clear_index(store: Store, scope: int) -> None:
    """Remove the rows of a dropped index, or of one of another analysis, in short commits.

    Until they are gone no index can be created. Does nothing to an index that is in use.
    """
    row = _removal(scope)

    def drop(txn: Txn) -> None:
        if read_head(txn, scope) is None and not is_leaving(txn, scope):
            drop_index(txn, scope)

    def remove(txn: Txn) -> list[bytes]:  # another process may have finished
        return remove_index_piece(txn, row) if is_leaving(txn, scope) else []

    if store.read(lambda txn: is_absent(txn, scope) or read_head(txn, scope) is not None):
        return
    store.transact(drop, makes_room=True)
    while store.transact(remove, makes_room=True):
        pass


# --- Check ----------------------------------------------------------------------------------------


def documents_of(txn: ReadTxn, scope: int, kind: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(ordinal, id)`` of the documents of a kind, by id.

    Raises:
        CorruptValueError: a row is damaged.
    """
    prefix = keys.search_documents(scope, kind)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        yield _ordinal(key, value), keys.search_place(key)[1]


def indexed_form(txn: ReadTxn, scope: int, kind: int, id_: bytes) -> tuple[bytes, bytes] | None:
    """Return the record and the packed terms of a document; None if it is not indexed.

    They are those of ``prepared`` if the index is right.

    Raises:
        CorruptValueError: a row is damaged.
    """
    ordinal = ordinal_of(txn, scope, kind, id_)
    found = None if ordinal is None else forward_of(txn, scope, ordinal)
    return None if found is None else (found.record, found.packed)


def check_rows(txn: ReadTxn, scope: int, head: IndexHead) -> Iterator[str]:
    """Compare the rows of an index with each other; yield findings as text.

    Postings are compared with forward rows by the sum of a hash over all of them, so that the
    check needs no memory for either.

    Raises:
        CorruptValueError: a row is damaged.
    """
    if is_sparse(head, most=HOLES_MAX):
        yield "its head says that more ordinals were given out than can have been"
    documents = length = terms = 0
    records = dict(table_pages(txn, scope))
    prefix = keys.search_rows(scope, SearchRow.FORWARD)
    for row in txn.scan(prefix, keys.after(prefix)):
        each = _forward(*row)
        documents, length = documents + 1, length + each.length
        place = keys.search_documents(scope, each.kind, prefix=each.id)
        value = txn.get(place)
        if value is None or _ordinal(place, value) != each.ordinal:
            yield f"the place of document {each.ordinal} does not lead to it"
        if each.ordinal < head.merged:
            terms += _sum_of((each.ordinal, each.packed))
            page = records.get(each.ordinal - each.ordinal % TABLE_RECORDS, b"")
            at = each.ordinal % TABLE_RECORDS * _RECORD.size
            if page[at : at + _RECORD.size] != each.record:
                yield f"its table has another record of document {each.ordinal}"
        elif each.ordinal >= head.next:
            yield f"document {each.ordinal} has an ordinal that was never given out"
    if (documents, length) != (head.documents, head.length):
        yield (
            f"its head says {counted(head.documents, 'document')} of "
            f"{counted(head.length, 'term')}; found: {documents:,} of {length:,}"
        )
    prefix = keys.search_rows(scope, SearchRow.PLACE)
    if sum(1 for _ in txn.scan(prefix, keys.after(prefix))) != documents:
        yield "it has places without a document"
    live = sum(
        any(page[at : at + _RECORD.size]) for page in records.values()
        for at in range(0, len(page), _RECORD.size)
    )  # fmt: skip
    prefix = keys.search_rows(scope, SearchRow.FORWARD)
    merged = txn.scan(prefix, keys.search_forward(scope, head.merged))
    if live != sum(1 for _ in merged):
        yield "its table has records without a document"
    if terms % 2**64 != sum(_posting_sums(txn, scope, head)) % 2**64:
        yield "its postings are not those of its documents"
    yield from check_vectors(txn, scope, head.next)
    yield from _not_embedded(txn, scope)


def _not_embedded(txn: ReadTxn, scope: int) -> Iterator[str]:
    """Compare what is said to be embedded with the vectors; yield findings as text."""
    head = read_vector_head(txn, scope)
    if head is None:
        return
    lacking = {DocumentKind.ITEM: 0, DocumentKind.MEMORY: 0}
    having = embedded_ordinals(txn, scope, head)
    at = next(having, None)
    for each in forward_rows(txn, scope, 0, head.embedded):
        while at is not None and at < each.ordinal:
            at = next(having, None)
        for kind in lacking:
            lacking[kind] += each.kind == kind and at != each.ordinal
    for kind, told in ((DocumentKind.ITEM, "items"), (DocumentKind.MEMORY, "memories")):
        if lacking[kind]:
            yield f"{lacking[kind]} {told} that are said to be embedded have no vector"


def _sum_of(*documents: tuple[int, bytes]) -> int:
    """Return the sum of a hash of each term, ordinal and number of occurrences."""
    return sum(
        xxh3_64_intdigest(term + raw[at : at + _POSTING_BYTES])
        for term, raw in invert_terms(list(documents))
        for at in range(0, len(raw), _POSTING_BYTES)
    )


def _posting_sums(txn: ReadTxn, scope: int, head: IndexHead) -> Iterator[int]:
    """Yield the same hash of each posting."""
    prefix = keys.search_rows(scope, SearchRow.POSTINGS)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        with decoding(key, "postings of a search index"):
            raw = unpack_postings(open_value(key, value)[1], keys.number_of(key), head.merged)
            term = key[len(prefix) : -8]
        for at in range(0, len(raw), _POSTING_BYTES):
            yield xxh3_64_intdigest(term + raw[at : at + _POSTING_BYTES])


# --- Shapes of rows, for salvage ------------------------------------------------------------------


def is_index_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row has the shape of its place in an index."""
    row = key[9] if len(key) > 9 else 0  # noqa: PLR2004 - kind and scope
    if row == SearchRow.HEAD:
        IndexHead.unpack(key, value)
    elif row == SearchRow.FORWARD:
        _forward(key, value)
    elif row == SearchRow.WATERMARK:
        unpack_watermark(key, value)
    elif row == SearchRow.POSTINGS:
        with decoding(key, "postings of a search index"):
            unpack_postings(open_value(key, value)[1], keys.number_of(key), _ORDINAL_MAX)
    elif row in (SearchRow.VECTOR_HEAD, SearchRow.VECTORS):
        return is_vector_row(key, value)
    return SearchRow.HEAD <= row <= SearchRow.SOURCE
