"""Index pages: packed records of the items of one session, by seq, undone ones included.

A record is ``tokens u32 | created u32 | chain u64 | counter u16 | facts``, where the facts are what
``_fast.pack_facts`` made of the item. Pages are keyed by the seq of their first record. The tail
page holds at most 32 records, so an append rewrites less than a KiB; when a block of 1,024 seqs is
complete its small pages are merged into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, TypeAlias

from xxhash import xxh3_64_intdigest

from memcore import keys
from memcore._fast import record_spans
from memcore.codec import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.limits import INDEX_PAGE_RECORDS, INDEX_TAIL_RECORDS
from memcore.store.base import ReadTxn, Txn

__all__ = ["RECORD", "append_records", "chain_after", "counter_tag", "pages", "records"]

RECORD: Final = Struct("<IIQH")

Tail: TypeAlias = tuple[int, bytes, bytes]
"""The page that the next record may go to: ``(first seq, key, body)``."""


def counter_tag(name: str) -> int:
    """The 16 bits that mark whose counts a record holds."""
    return xxh3_64_intdigest(name.encode()) & 0xFFFF


def chain_after(chain: int, item_hash: bytes) -> int:
    """The prefix hash after one more item: H(previous chain, hash of the stored item)."""
    return xxh3_64_intdigest(chain.to_bytes(8, "little") + item_hash)


def page_key(scope: int, session: int, first_seq: int) -> bytes:
    """The key of the page whose first record is ``first_seq``."""
    return keys.session_row(scope, session, Row.INDEX, first_seq)


def _page_start(seq: int, own_first: int) -> int:
    """The first seq of the small page that ``seq`` belongs to (seqs start at 1)."""
    return max(own_first, (seq - 1) // INDEX_TAIL_RECORDS * INDEX_TAIL_RECORDS + 1)


def extend_page(txn: Txn, tail: Tail, seq: int, record: bytes) -> Tail | None:
    """The way of most appends: put one record in the tail page.

    None if more is to be done: the page before ``seq`` is full, or ``seq`` completes a block.
    """
    if not (seq - 1) % INDEX_TAIL_RECORDS or not seq % INDEX_PAGE_RECORDS:
        return None
    first, key, body = tail
    body += record
    txn.put(key, seal_value(key, body))
    return first, key, body


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
    """Append records from ``seq`` on; returns the new tail page.

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
    """Seal the small pages of a complete block into one page."""
    start = page_key(scope, session, first)
    rows = list(txn.scan(start, page_key(scope, session, stop)))
    if len(rows) < 2:  # noqa: PLR2004 - one page is whole already
        return
    body = b"".join(open_value(key, value)[1] for key, value in rows)
    txn.delete_range(rows[1][0], page_key(scope, session, stop))
    txn.put(start, seal_value(start, body))


def laid_out(own_first: int, records: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """``(first seq, body)`` of the pages that appending ``records`` one by one would leave."""
    at, stop = own_first, own_first + len(records)
    while at < stop:
        end = (at - 1) // INDEX_PAGE_RECORDS * INDEX_PAGE_RECORDS + INDEX_PAGE_RECORDS + 1
        if end > stop:
            end = (at - 1) // INDEX_TAIL_RECORDS * INDEX_TAIL_RECORDS + INDEX_TAIL_RECORDS + 1
        end = min(end, stop)
        yield at, b"".join(records[at - own_first : end - own_first])
        at = end


def pages(txn: ReadTxn, scope: int, session: int, lo: int, hi: int) -> Iterator[tuple[int, bytes]]:
    """``(first seq, body)`` of the pages that hold seqs ``lo .. hi``.

    Raises:
        CorruptValueError: a page fails its checksum, or the pages do not reach ``lo``.
    """
    start = page_key(scope, session, lo)
    floor = page_key(scope, session, 0)
    found = list(txn.scan(floor, page_key(scope, session, lo + 1), reverse=True, limit=1))
    if not found:
        msg = f"the index of session {session} does not hold seq {lo}; run 'memcore check'"
        raise CorruptValueError(msg, key=start)
    for key, value in txn.scan(found[0][0], page_key(scope, session, hi + 1)):
        yield keys.split_session_row(key)[3], open_value(key, value)[1]


def record_at(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes:
    """One record.

    Raises:
        CorruptValueError: the index does not hold it.
    """
    for first, body in pages(txn, scope, session, seq, seq):
        spans = record_spans(body)
        if spans is not None and seq - first < len(spans):
            start, stop = spans[seq - first]
            return body[start:stop]
    key = page_key(scope, session, seq)
    msg = f"the index of session {session} does not hold seq {seq}; run 'memcore check'"
    raise CorruptValueError(msg, key=key)


def chain_of(txn: ReadTxn, scope: int, session: int, seq: int) -> int:
    """The prefix hash at one item; errors as ``record_at``."""
    return int(RECORD.unpack_from(record_at(txn, scope, session, seq))[2])


def records(txn: ReadTxn, scope: int, session: int, lo: int, hi: int) -> Iterator[bytes]:
    """The records of seqs ``lo .. hi``, up to the first that is missing.

    Raises:
        CorruptValueError: a page is damaged or malformed, or the pages do not reach ``lo``.
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
