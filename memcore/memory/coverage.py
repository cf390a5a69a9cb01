"""Coverage of rolling summaries: up to which item of each session a summary has read.

A row per summary and session that owns the items: what a fork shares with its parent is read once.
The rows are the summary's watermarks, and they lead from an item that is removed to the summaries
that may hold its words. They go with the summary's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from memcore.codec import keys
from memcore.codec.keys import MemoryRow
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.log import Head
from memcore.rows.head import head_key
from memcore.store.datafile import MEMORIES
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "RESERVED",
    "SUMMARIZED",
    "check_coverage",
    "cover",
    "coverage_rows",
    "covered_seq",
    "is_coverage_row",
    "summaries_in",
    "summaries_over",
    "uncover",
    "uncover_session",
]


RESERVED: Final = ("memcore.", "memory files")
"""Beginnings of the names of extractors that callers cannot give."""
SUMMARIZED: Final = "memcore.summary 1"
"""Extractor of a memory that is a rolling summary."""
_AT: Final = 10
"""Place of the summary's id in a key, behind kind, scope and row byte."""
_SEQ_END: Final = 2**63


def _key(scope: int, summary: int, owner: int) -> bytes:
    return keys.memory_rows(scope, MemoryRow.COVERAGE, keys.u64(summary), keys.u64(owner))


def _seq_in(key: bytes, value: bytes) -> int:
    """Return the seq in a row.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    seq = keys.number_of(bytes(body)) if len(body) == keys.U64.size else _SEQ_END
    if seq >= _SEQ_END:
        raise CorruptValueError("the coverage of a summary is malformed", key=key)
    return seq


def covered_seq(txn: ReadTxn, scope: int, summary: int, owner: int) -> int | None:
    """Return the seq up to which a summary has read the items that a session owns; None: no row.

    Raises:
        CorruptValueError: its row is damaged.
    """
    key = _key(scope, summary, owner)
    value = txn.get(key)
    return None if value is None else _seq_in(key, value)


def cover(txn: Txn, scope: int, summary: int, read: Mapping[int, int]) -> None:
    """Move a summary's watermarks, by the session that owns the items; none goes back.

    Raises:
        CorruptValueError: a row is damaged.
    """
    txn.need_feature(MEMORIES)
    for owner, seq in read.items():
        key = _key(scope, summary, owner)
        known = covered_seq(txn, scope, summary, owner)
        if known is None or known < seq:
            txn.put(key, seal_value(key, keys.u64(seq)))


def coverage_rows(txn: ReadTxn, scope: int, summary: int) -> list[bytes]:
    """Return the keys of a summary's rows."""
    rows = keys.memory_rows(scope, MemoryRow.COVERAGE, keys.u64(summary))
    return [key for key, _ in txn.scan(rows, keys.after(rows))]


def uncover(txn: Txn, scope: int, summary: int, owner: int | None = None) -> None:
    """Remove a summary's rows, with its text; ``owner``: only that of a session that is gone."""
    if owner is not None:
        txn.delete(_key(scope, summary, owner))
        return
    rows = keys.memory_rows(scope, MemoryRow.COVERAGE, keys.u64(summary))
    txn.delete_range(rows, keys.after(rows))


def uncover_session(txn: Txn, scope: int, session: int) -> None:
    """Remove the rows of a session that is gone, of summaries that a legal hold keeps, too."""
    for summary in summaries_over(txn, scope, session, None):
        uncover(txn, scope, summary, session)


def summaries_in(txn: ReadTxn, scope: int) -> Iterator[int]:
    """Yield the ids of a scope's summaries that have read anything."""
    rows = keys.memory_rows(scope, MemoryRow.COVERAGE)
    start, stop = rows, keys.after(rows)
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        number = keys.number_of(row[0][: _AT + 8])
        yield number
        start = keys.memory_rows(scope, MemoryRow.COVERAGE, keys.u64(number + 1))


def summaries_over(txn: ReadTxn, scope: int, owner: int, first: int | None) -> list[int]:
    """Return the summaries that have read what a session owns, from a seq on.

    A damaged row may say anything, so its summary is among them.

    Args:
        txn: the transaction.
        scope: the scope.
        owner: the session.
        first: the seq; None: those that have read anything of the session.
    """
    found: list[int] = []
    for summary in summaries_in(txn, scope):
        key = _key(scope, summary, owner)
        value = txn.get(key)
        if value is None:
            continue
        try:
            seq = _seq_in(key, value)
        except CorruptValueError:
            seq = _SEQ_END
        if first is None or seq >= first:
            found.append(summary)
    return found


def is_coverage_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row can be decoded as coverage.

    Raises:
        CorruptValueError: it cannot.
    """
    return _seq_in(key, value) >= 0


def check_coverage(txn: ReadTxn, scope: int, summaries: set[int]) -> Iterator[str]:
    """Verify a scope's coverage; yield findings as text.

    Rows that fail their checksum are reported elsewhere.

    Args:
        txn: the snapshot.
        scope: the scope.
        summaries: ids of the entries that are summaries and have a text.
    """
    rows = keys.memory_rows(scope, MemoryRow.COVERAGE)
    covered: set[int] = set()
    for key, value in txn.scan(rows, keys.after(rows)):
        summary, owner = keys.number_of(key[: _AT + 8]), keys.number_of(key)
        covered.add(summary)
        try:
            open_value(key, value)
        except CorruptValueError:
            continue
        try:
            seq = _seq_in(key, value)
            head = txn.get(head_key(scope, owner))
            end = 0 if head is None else Head.unpack(head_key(scope, owner), head).next_seq
        except CorruptValueError:
            yield f"memory {summary}: a row of its coverage is malformed"
            continue
        if summary not in summaries:
            yield f"memory {summary}: it has coverage and is no summary"
        elif head is None:
            yield f"memory {summary}: it summarizes session {owner}, which is gone"
        elif seq >= end:
            yield f"memory {summary}: its coverage is ahead of session {owner}, at item {seq}"
    yield from (
        f"memory {summary}: a summary without coverage" for summary in sorted(summaries - covered)
    )
