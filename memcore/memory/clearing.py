"""Clearing of a scope's memory: a mark, and short commits that whoever comes next continues.

The mark is a ``REMOVAL`` row, as of a session that is being deleted: the next deletion, sweep or
open goes on with a clear that was cut off. Its body is the end of the ids to remove u64, the time
of the clear in ms u64, and the stage u8. What is remembered after it stays.
"""

from __future__ import annotations

from contextlib import suppress
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Kind, MemoryRow
from memcore.codec.values import decoding, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.memory.jobs import clear_jobs
from memcore.memory.playbook import clear_outcomes
from memcore.memory.rows import (
    Book,
    clear_end,
    clear_piece,
    clear_strays,
    entry_at,
    entry_of_version,
    read_head,
    write_head,
)
from memcore.rows.lifecycle import is_erased, need_free
from memcore.store.interface import ReadTxn

__all__ = [
    "begin_clear",
    "clear_step",
    "cleared_below",
    "clearing_end",
    "is_clear_mark",
    "is_clearing",
    "is_entry_below",
]


_BODY: Final = Struct("<QQB")


class _Stage(IntEnum):
    """Stage of a clear: what is removed next. Stored; never changes."""

    ENTRIES = 0
    OUTCOMES = 1
    STRAYS = 2
    """Rows of damaged entries."""
    JOBS = 3
    """Jobs of extraction."""


class _Mark(NamedTuple):
    """Body of a mark."""

    end: int
    until_ms: int
    stage: int


def _row(scope: int) -> bytes:
    return keys.removal_row(keys.memory_rows(scope, MemoryRow.ENTRY))


def _unpacked(row: bytes, value: bytes) -> _Mark:
    """Unpack a mark.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(row, value)[1]
    with decoding(row, "mark of a memory that is being cleared"):
        mark = _Mark(*_BODY.unpack(body))
        _Stage(mark.stage)
    return mark


def is_clear_mark(prefix: bytes) -> bool:
    """Return True if the prefix of a ``REMOVAL`` row is that of a mark."""
    return prefix == keys.memory_rows(keys.split_scoped(prefix)[0], MemoryRow.ENTRY)


def cleared_below(row: bytes, value: bytes) -> int:
    """Return the id below which a mark has all memories removed.

    Raises:
        CorruptValueError: it is damaged.
    """
    return _unpacked(row, value).end


def is_entry_below(key: bytes, scope: int, end: int) -> bool:
    """Return True if a row is that of an entry of a scope, or of its version, with an id so low."""
    entry = entry_of_version(key) if key[:1] == bytes((Kind.MEMORY,)) else None
    return entry_at(scope, 0) <= (entry or key) < entry_at(scope, end)


def is_clearing(txn: ReadTxn, scope: int) -> bool:
    """Return True if a scope's memory is being cleared, or a clear was cut off."""
    return txn.get(_row(scope)) is not None


def clearing_end(txn: ReadTxn, scope: int) -> int:
    """Return the id below which all memories are being removed; 0 if none are, or it is unknown."""
    row = _row(scope)
    value = txn.get(row)
    with suppress(CorruptValueError):
        return 0 if value is None else _unpacked(row, value).end
    return 0


def begin_clear(book: Book, now_ms: int) -> None:
    """Mark a scope's memory to be cleared: the entries that are there, outcomes until now.

    A clear that is under way begins once more, with the entries that have come since.

    Raises:
        HeldError: a legal hold covers the scope or a session of it.
    """
    need_free(book.txn, book.scope, what="the user's memory")
    with suppress(CorruptValueError):  # what a damaged head said of the time is unknown
        head = read_head(book.txn, book.scope)
        # Times of outcomes run ahead of a clock that stands still or goes back. The outcomes that
        # are there go, and those recorded from here on are later than this time.
        now_ms = max(now_ms, head.last_ms)
        write_head(book.txn, book.scope, head._replace(last_ms=now_ms))
    _write(book, _Mark(clear_end(book.txn, book.scope), now_ms, _Stage.ENTRIES))


def _write(book: Book, mark: _Mark) -> None:
    row = _row(book.scope)
    book.txn.put(row, seal_value(row, _BODY.pack(*mark)))


def clear_step(book: Book) -> tuple[int, bool]:
    """Remove the next piece of a memory that is being cleared.

    Returns:
        The number of entries removed that were not forgotten, and True if nothing is left to do.

    Raises:
        HeldError: a legal hold covers the scope or a session of it.
        CorruptValueError: the mark is damaged.
    """
    row = _row(book.scope)
    value = book.txn.get(row)
    if value is None or is_erased(book.txn, book.scope):  # whoever erases removes the mark as well
        return 0, True
    need_free(book.txn, book.scope, what="the user's memory")
    mark = _unpacked(row, value)
    count = 0
    if mark.stage == _Stage.ENTRIES:
        count, is_whole = clear_piece(book, mark.end)
    elif mark.stage == _Stage.OUTCOMES:
        is_whole = clear_outcomes(book, mark.until_ms)
    elif mark.stage == _Stage.STRAYS:
        is_whole = clear_strays(book, mark.end)
    else:
        is_whole = clear_jobs(book)
    if not is_whole:
        return count, False
    if mark.stage < _Stage.JOBS:
        _write(book, mark._replace(stage=mark.stage + 1))
        return count, False
    book.txn.delete(row)
    return count, True
