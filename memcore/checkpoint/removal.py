"""Deleting a thread: gone at once for everybody, its rows leave a piece at a time.

The first transaction takes name and head away, and the pool if no other thread has a part in it,
and writes a ``REMOVAL`` row for each range that is to go. What a killed process leaves is gone on
with by the next deletion or opening, as with sessions.
"""

from __future__ import annotations

from memcore import keys, names
from memcore.checkpoint import threads
from memcore.checkpoint.pool import Pool, read_pool, write_pool
from memcore.checkpoint.rows import Place
from memcore.codec import open_value, seal_value
from memcore.keys import Kind
from memcore.limits import PIECE_ROWS
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece
from memcore.terms import drop_terms, thread_terms

__all__ = ["is_unused", "remove_piece", "start_removal", "under_way"]


def start_removal(txn: Txn, scope: int, name: str) -> tuple[Place | None, list[bytes]]:
    """Delete a thread by name: where its pool goes on to be used by others, and what is left."""
    number = names.thread_of(txn, scope, name)
    if number is None:
        return None, []
    pool, _ = threads.read_head(txn, scope, number)
    place = Place(scope, number, pool)
    row = read_pool(txn, scope, pool)
    names.drop_thread_name(txn, scope, name)
    txn.delete(threads.head_key(scope, number))
    drop_terms(txn, thread_terms(scope, number))
    work = [_mark(txn, keys.thread_prefix(scope, number))]
    if row is None or row.members > 1:
        if row is not None:
            left = Pool(row.epoch, row.members - 1, row.sweeping, row.key)
            write_pool(txn, scope, pool, left)
        return place, work
    txn.delete(keys.chunk_prefix(scope, pool))
    work.append(_mark(txn, keys.chunk_prefix(scope, pool)))
    return None, work


def _mark(txn: Txn, prefix: bytes) -> bytes:
    row = keys.removal_row(prefix)
    txn.put(row, seal_value(row, b""))
    return row


def is_unused(txn: ReadTxn, prefix: bytes) -> bool:
    """Whether what a ``REMOVAL`` row names was deleted: a pool without its row, a thread's head."""
    key = prefix
    if prefix[0] == Kind.THREAD:
        key = threads.head_key(*keys.split_session_prefix(prefix))
    return txn.get(key) is None


def under_way(txn: ReadTxn, scope: int) -> list[bytes]:
    """The ``REMOVAL`` rows of threads and pools of a scope, at most a piece of them."""
    found: list[bytes] = []
    for kind in (Kind.THREAD, Kind.CHUNK):
        start = keys.removal_row(keys.scoped(kind, scope))
        found += [row for row, _ in txn.scan(start, keys.after(start), limit=PIECE_ROWS)]
    return found


def remove_piece(txn: Txn, row: bytes) -> list[bytes]:
    """Remove the next piece of the range that a ``REMOVAL`` row names; the row, if more is left.

    Raises:
        CorruptValueError: the row is damaged.
    """
    prefix = keys.split_removal_row(row)
    value = txn.get(row)
    if value is None:
        return []
    open_value(row, value)
    if not is_unused(txn, prefix):
        return []  # somebody else was here; what is in use is check()'s to report
    stop = keys.after(prefix)
    piece, until = Piece(), stop
    for key, value in txn.scan(prefix, stop):
        if not piece.admits(len(value)):
            until = key
            break
    txn.delete_range(prefix, until)
    if until is not stop:
        return [row]
    txn.delete(row)
    return []
