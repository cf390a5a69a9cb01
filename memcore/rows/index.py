"""Index pages of a session: packed records of its items by seq, with their token counts.

A record is ``tokens u32 | created u32 | chain u64 | counter u16 | facts``, where ``facts`` is the
output of ``_fast.pack_facts`` for the item. Pages are keyed by the seq of their first record. The
tail page holds at most 32 records, so an append rewrites less than 1 KiB; once a block of 1,024
seqs is complete, its small pages are merged into one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct, pack
from typing import Final, NamedTuple, TypeAlias

from memcore._fast import HeadFields, record_in, record_spans, xxh3_64
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.limits import INDEX_PAGE_RECORDS, INDEX_TAIL_RECORDS, TOKEN_PAGE_COUNTS
from memcore.options import counted
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "RECORD",
    "Counts",
    "append_records",
    "chain_after",
    "check_counts",
    "counter_tag",
    "drop_counts",
    "every_record",
    "pages",
    "records",
    "recount_numbers",
    "write_counts",
]


# --- Index pages: packed records of the items of one session, by seq, including undone ones -------

RECORD: Final = Struct("<IIQH")

Tail: TypeAlias = tuple[int, bytes, bytes]
"""Tail page that the next record may be added to: ``(first seq, key, body)``."""


def counter_tag(name: str) -> int:
    """Return the 16-bit tag that identifies the token counter in a record."""
    return xxh3_64(name.encode()) & 0xFFFF


def chain_after(chain: int, item_hash: bytes) -> int:
    """Return the prefix hash after one more item: H(previous chain, hash of the stored item)."""
    return xxh3_64(chain.to_bytes(8, "little") + item_hash)


def page_key(scope: int, session: int, first_seq: int) -> bytes:
    """Return the key of the page whose first record is that of ``first_seq``."""
    return keys.session_row(scope, session, Row.INDEX, first_seq)


def _page_start(seq: int, own_first: int) -> int:
    """Return the first seq of the small page that ``seq`` belongs to (seqs start at 1)."""
    return max(own_first, (seq - 1) // INDEX_TAIL_RECORDS * INDEX_TAIL_RECORDS + 1)


def append_records(
    txn: Txn,
    scope: int,
    session: int,
    *,
    own_first: int,
    seq: int,
    records: Sequence[bytes],
    tail: Tail | None,
) -> Tail:
    """Append records starting at ``seq``; returns the new tail page.

    ``own_first`` is the first seq that this session owns, ``tail`` the page that the last append
    returned (None: read it).
    """
    first = _page_start(seq, own_first)
    body = b""
    if first != seq:
        body = (
            tail[2] if tail is not None and tail[0] == first else _read(txn, scope, session, first)
        )
    at = 0
    while at < len(records):
        room = INDEX_TAIL_RECORDS - (seq - 1) % INDEX_TAIL_RECORDS
        part = records[at : at + room]
        body = b"".join((body, *part))
        key = page_key(scope, session, first)
        txn.put(key, seal_value(key, body))
        at += len(part)
        seq += len(part)
        if (seq - 1) % INDEX_PAGE_RECORDS == 0:
            _merge(txn, scope, session, max(own_first, seq - INDEX_PAGE_RECORDS), seq)
        if at < len(records):
            first, body = seq, b""
    return first, key, body


def _read(txn: ReadTxn, scope: int, session: int, first: int) -> bytes:
    key = page_key(scope, session, first)
    value = txn.get(key)
    if value is None:
        msg = f"index page {first} of session {session} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return open_value(key, value)[1]


def _merge(txn: Txn, scope: int, session: int, first: int, stop: int) -> None:
    """Merge the small pages of a complete block into one page."""
    start = page_key(scope, session, first)
    rows = list(txn.scan(start, page_key(scope, session, stop)))
    if len(rows) < 2:  # noqa: PLR2004 - one page is already merged
        return
    body = b"".join(open_value(key, value)[1] for key, value in rows)
    txn.delete_range(rows[1][0], page_key(scope, session, stop))
    txn.put(start, seal_value(start, body))


def laid_out(own_first: int, records: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield ``(first seq, body)`` of the pages that appending the records singly would leave."""
    at, stop = own_first, own_first + len(records)
    while at < stop:
        end = (at - 1) // INDEX_PAGE_RECORDS * INDEX_PAGE_RECORDS + INDEX_PAGE_RECORDS + 1
        if end > stop:
            end = (at - 1) // INDEX_TAIL_RECORDS * INDEX_TAIL_RECORDS + INDEX_TAIL_RECORDS + 1
        end = min(end, stop)
        yield at, b"".join(records[at - own_first : end - own_first])
        at = end


def pages(txn: ReadTxn, scope: int, session: int, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
    """Yield ``(first seq, body)`` of the pages that cover seqs ``lo .. hi``.

    Raises:
        CorruptValueError: a page fails its checksum, or no page covers ``lo``.
    """
    start = _page_at(txn, scope, session, lo)[0]
    for key, value in txn.scan(start, page_key(scope, session, hi + 1)):
        yield keys.split_session_row(key)[3], open_value(key, value)[1]


def _page_at(txn: ReadTxn, scope: int, session: int, seq: int) -> tuple[bytes, bytes]:
    """Return the row of the page that begins last before a seq, or at it.

    Raises:
        CorruptValueError: there is none.
    """
    # A page that begins with the small page of ``seq`` or with its block holds it: small pages and
    # blocks begin at these places, and no page begins between. Of a server, a scan is one trip.
    for size in () if txn.is_remote else (INDEX_TAIL_RECORDS, INDEX_PAGE_RECORDS):
        key = page_key(scope, session, (seq - 1) // size * size + 1)
        value = txn.get(key)
        if value is not None:
            return key, value
    floor, stop = page_key(scope, session, 0), page_key(scope, session, seq + 1)
    found = next(iter(txn.scan(floor, stop, reverse=True, limit=1)), None)
    if found is None:
        msg = f"the index of session {session} does not hold seq {seq}; run 'memcore check'"
        raise CorruptValueError(msg, key=page_key(scope, session, seq))
    return found


def record_at(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes:
    """Return the record of one seq.

    Raises:
        CorruptValueError: the index does not contain it.
    """
    key, value = _page_at(txn, scope, session, seq)
    found = record_in(open_value(key, value)[1], seq - keys.number_of(key))
    if found is None:
        msg = f"the index of session {session} does not hold seq {seq}; run 'memcore check'"
        raise CorruptValueError(msg, key=page_key(scope, session, seq))
    return found


def chain_of(txn: ReadTxn, scope: int, session: int, seq: int) -> int:
    """Return the prefix hash at one item; raises as ``record_at``."""
    return int(RECORD.unpack_from(record_at(txn, scope, session, seq))[2])


def chain_in(tail: Tail, seq: int) -> int:
    """Return the prefix hash at one item from a tail page that contains its record.

    Raises:
        CorruptValueError: the page does not contain it.
    """
    first, key, body = tail
    found = record_in(body, seq - first)
    if found is None:
        msg = f"the index page {first} does not hold seq {seq}; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return int(RECORD.unpack_from(found)[2])


def records(txn: ReadTxn, scope: int, session: int, lo: int, hi: int) -> Iterator[bytes]:
    """Yield the records of seqs ``lo .. hi``, up to the first missing one.

    Raises:
        CorruptValueError: a page is damaged or malformed, or no page covers ``lo``.
    """
    expected = lo
    for first, body in pages(txn, scope, session, lo, hi):
        spans = record_spans(body)
        if spans is None:
            key = page_key(scope, session, first)
            msg = f"index page {first} is malformed"
            raise CorruptValueError(msg, key=key)
        for at, (start, stop) in enumerate(spans):
            seq = first + at
            if seq == expected and seq <= hi:
                expected += 1
                yield body[start:stop]


def every_record(txn: ReadTxn, scope: int, session: int, lo: int, hi: int) -> Iterator[bytes]:
    """Yield the records of seqs ``lo .. hi``.

    Raises:
        CorruptValueError: a page is damaged or malformed, or a record is missing.
    """
    left = hi - lo + 1
    for record in records(txn, scope, session, lo, hi):
        left -= 1
        yield record
    if left:
        msg = f"the index of session {session} lacks {counted(left, 'record')}; run 'memcore check'"
        raise CorruptValueError(msg, key=page_key(scope, session, lo))


# --- Token pages: counts of a live history by a different counter than its index records ----------
# A recount does not change index pages, which forks share. It writes the counts of all live items
# under its session, by position, and the head points to them along with the seq that they end
# before: nothing is ever inserted between live items, so an item below that seq keeps its position
# as long as it is live. A fork inherits the pointer; the pages are kept as long as a fork may refer
# to them.

COUNT_BYTES: Final = 4


class Counts(NamedTuple):
    """Location of a head's recounted token counts; ``stop`` 0: the index has all counts."""

    session: int
    number: int
    stop: int
    """First seq without a count here: its index record has the count."""

    @classmethod
    def of(cls, head: HeadFields) -> Counts:
        """Return the location that a head refers to."""
        return cls(head.recount_session, head.recount_number, head.recount_stop)

    def point(self, head: HeadFields) -> None:
        """Make a head refer to this location."""
        head.recount_session, head.recount_number, head.recount_stop = self

    def read(self, txn: ReadTxn, scope: int, start: int, stop: int) -> bytes:
        """Return the packed counts at positions ``start <= position < stop``.

        Raises:
            CorruptValueError: a page is damaged, missing or cut short.
        """
        if start >= stop:
            return b""
        first = start - start % TOKEN_PAGE_COUNTS
        found = b"".join(body for _, body in _pages(txn, scope, self, first, stop))
        found = found[COUNT_BYTES * (start - first) : COUNT_BYTES * (stop - first)]
        if len(found) != COUNT_BYTES * (stop - start):
            key = keys.token_page(scope, self.session, self.number, first)
            msg = (
                f"the token counts of {counted(stop - start, 'item')} from key {key.hex()} on are "
                "missing or cut short; run 'memcore check', or recount the session"
            )
            raise CorruptValueError(msg, key=key)
        return found


NO_COUNTS: Final = Counts(0, 0, 0)


def _pages(
    txn: ReadTxn, scope: int, counts: Counts, first: int, stop: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and body of the pages from ``first`` on, up to the first gap."""
    start, end = (keys.token_page(scope, counts.session, counts.number, at) for at in (first, stop))
    for key, value in txn.scan(start, end):
        if keys.split_token_page(key)[1] != first:
            return
        body = open_value(key, value)[1]
        yield key, body
        if len(body) != COUNT_BYTES * TOKEN_PAGE_COUNTS:
            return
        first += TOKEN_PAGE_COUNTS


def write_counts(txn: Txn, scope: int, counts: Counts, tokens: array[int]) -> None:
    """Write the pages of a recount."""
    for first in range(0, len(tokens), TOKEN_PAGE_COUNTS):
        page = tokens[first : first + TOKEN_PAGE_COUNTS]
        key = keys.token_page(scope, counts.session, counts.number, first)
        txn.put(key, seal_value(key, pack(f"<{len(page)}I", *page)))


def recount_numbers(txn: ReadTxn, scope: int, session: int) -> Iterator[int]:
    """Yield the numbers of the recounts that the session has pages of."""
    start = keys.session_rows(scope, session, Row.TOKENS)
    stop = keys.after(start)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        number, _ = keys.split_token_page(row[0])
        yield number
        start = keys.after(keys.token_pages(scope, session, number))


def drop_counts(txn: Txn, scope: int, session: int, *, keep: set[int]) -> None:
    """Delete the pages of all recounts except those in ``keep``."""
    for number in list(recount_numbers(txn, scope, session)):
        if number not in keep:
            start = keys.token_pages(scope, session, number)
            txn.delete_range(start, keys.after(start))


def check_counts(txn: ReadTxn, scope: int, session: int, head: HeadFields) -> Iterator[str]:
    """Verify a session's pages of recounted token counts, in use or not; yield the findings."""
    known = Counts.of(head)
    for number in recount_numbers(txn, scope, session):
        if number > head.epoch:
            yield f"it has token counts of recount {number}, which its head does not know"
            continue
        held = taken = 0
        for _, body in _pages(txn, scope, Counts(session, number, 0), 0, 2**64 - 1):
            held += len(body)
            taken += 1
        start = keys.token_pages(scope, session, number)
        rows = sum(1 for _ in txn.scan(start, keys.after(start)))
        if rows != taken or held % COUNT_BYTES:
            yield f"the token counts of recount {number} have a gap behind {held // COUNT_BYTES}"
        is_own = (known.session, known.number) == (session, number)
        if is_own and held // COUNT_BYTES >= known.stop:
            items = counted(held // COUNT_BYTES, "item")
            yield f"recount {number} counted {items} up to seq {known.stop - 1}"
