"""Items of sessions in an index: what is covered of each history, and what has to go.

A watermark says which items of a session's live history are indexed, as segments of the sessions
that own the rows: forks share them. A document exists for an item with text if a watermark covers
it. A change of the history leaves the index alone; the next search compares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from memcore.codec import keys
from memcore.errors import CorruptValueError
from memcore.rows.head import SEQ_END
from memcore.search.index import (
    UNFINISHED,
    DocumentKind,
    IndexWriter,
    Segments,
    Watermark,
    drop_index,
    read_watermarks,
    unpack_watermark,
)
from memcore.store.interface import Txn

__all__ = [
    "first_of",
    "forget_items",
    "forget_session",
    "ids_in",
    "item_id",
    "item_place",
    "size_of",
    "subtract",
    "united",
]


_ITEM_ID: Final = Struct(">QQ")
PIECE_POSTINGS = 192
"""Postings that one transaction of a deletion removes: each is on a page of its own, and the space
reserved for deletions has 256."""


def item_id(session: int, seq: int) -> bytes:
    """Return the id of an item's document."""
    return keys.u64(session) + keys.u64(seq)


def item_place(id_: bytes) -> tuple[int, int]:
    """Return ``(session, seq)`` of the id of an item's document."""
    session, seq = _ITEM_ID.unpack(id_)
    return session, seq


def ids_in(segments: Segments) -> Iterator[bytes]:
    """Yield the ids of the documents that the items of segments may have."""
    for session, lo, hi in segments:
        for seq in range(lo, hi + 1):
            yield item_id(session, seq)


# --- Sets of items as segments --------------------------------------------------------------------


def size_of(segments: Segments) -> int:
    """Count the items of segments."""
    return sum(hi - lo + 1 for _, lo, hi in segments)


def first_of(segments: Segments, count: int) -> Segments:
    """Return the first ``count`` items of segments."""
    found: Segments = []
    for session, lo, hi in segments:
        if count <= 0:
            break
        found.append((session, lo, min(hi, lo + count - 1)))
        count -= hi - lo + 1
    return found


def united(*several: Segments) -> Segments:
    """Return the items that are in any of the sets, ascending, as few segments as possible."""
    found: Segments = []
    for session, lo, hi in sorted(each for segments in several for each in segments):
        if found and found[-1][0] == session and lo <= found[-1][2] + 1:
            found[-1] = (session, found[-1][1], max(hi, found[-1][2]))
        else:
            found.append((session, lo, hi))
    return found


def common(segments: Segments, others: Segments) -> Segments:
    """Return the items that are in both sets, ascending."""
    return subtract(segments, subtract(segments, others))


def newest_of(segments: Segments, count: int) -> Segments:
    """Return the last ``count`` items of segments."""
    beyond = size_of(segments) - count
    return subtract(segments, first_of(segments, beyond)) if beyond > 0 else segments


def has_item(segments: Segments, session: int, seq: int) -> bool:
    """Return True if an item is in segments as ``united`` returns them: found by bisection."""
    at = bisect_right(segments, (session, seq, SEQ_END)) - 1
    return at >= 0 and segments[at][0] == session and seq <= segments[at][2]


def subtract(segments: Segments, others: Segments) -> Segments:
    """Return the items of the first set that are not in the second, ascending."""
    found: Segments = []
    removed = united(others)
    at = 0
    for session, lo, hi in united(segments):
        while at < len(removed) and removed[at][::2] < (session, lo):
            at += 1
        low, look = lo, at
        while look < len(removed) and removed[look][:2] <= (session, hi):
            if removed[look][1] > low:
                found.append((session, low, removed[look][1] - 1))
            low = max(low, removed[look][2] + 1)
            look += 1
        if low <= hi:
            found.append((session, low, hi))
    return found


# --- Removal along with the content ---------------------------------------------------------------


def forget_items(txn: Txn, scope: int, family: Iterable[int], owner: int, seqs: list[int]) -> None:
    """Take items out of the index in the transaction that rewrites them.

    They are no longer covered in the sessions of ``family``, all that may share them, so the next
    search indexes what they say now. A damaged index is dropped.
    """
    try:
        writer = IndexWriter(txn, scope)
        if not writer.exists:
            return
        writer.remove(DocumentKind.ITEM, (item_id(owner, seq) for seq in seqs))
        gone = [(owner, seq, seq) for seq in seqs]
        for session in family:
            key = keys.search_watermark(scope, session)
            value = txn.get(key)
            if value is not None:
                known = unpack_watermark(key, value)
                left = subtract(known.segments, gone)
                if left != united(known.segments):
                    writer.put_watermark(session, Watermark(UNFINISHED, left))
        writer.close()
    except CorruptValueError:
        drop_index(txn, scope)


def forget_session(txn: Txn, scope: int, session: int) -> bool:
    """Take a piece of a deleted session's items out of the index; return True if none is left.

    Items of other sessions that only this one covered go, too. A damaged index is dropped.
    """
    try:
        writer = IndexWriter(txn, scope)
        if not writer.exists:
            return True
        done = _forget_piece(txn, writer, scope, session)
        writer.close()
    except CorruptValueError:
        drop_index(txn, scope)
        return True
    return done


def _forget_piece(txn: Txn, writer: IndexWriter, scope: int, session: int) -> bool:
    left = PIECE_POSTINGS
    prefix = keys.search_documents(scope, DocumentKind.ITEM, prefix=keys.u64(session))
    own = [key for key, _ in txn.scan(prefix, keys.after(prefix), limit=PIECE_POSTINGS)]
    for key in own:
        left -= writer.remove_piece(*keys.search_place(key), left)
        if left <= 0:
            return False
    row = keys.search_watermark(scope, session)
    value = txn.get(row)
    if value is None:
        return len(own) < PIECE_POSTINGS
    foreign = [each for each in unpack_watermark(row, value).segments if each[0] != session]
    if foreign:
        marks = read_watermarks(txn, scope)
        covered = [
            unpack_watermark(*found).segments for each, found in marks.items() if each != session
        ]
        for owner, lo, hi in subtract(foreign, united(*covered)):
            start = keys.search_documents(scope, DocumentKind.ITEM, prefix=item_id(owner, lo))
            stop = keys.search_documents(scope, DocumentKind.ITEM, prefix=item_id(owner, hi + 1))
            for key in [key for key, _ in txn.scan(start, stop, limit=PIECE_POSTINGS)]:
                left -= writer.remove_piece(*keys.search_place(key), left)
                if left <= 0:
                    return False
    if len(own) < PIECE_POSTINGS:
        writer.put_watermark(session, None)
        return True
    return False
