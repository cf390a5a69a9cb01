"""Copying a thread: its rows are written anew, its chunks are shared."""

from __future__ import annotations

from memcore import keys, names
from memcore.checkpoint import threads
from memcore.checkpoint.pool import Pool
from memcore.checkpoint.removal import start_removal
from memcore.checkpoint.rows import checkpoints_of
from memcore.codec import open_value, seal_value
from memcore.errors import InvalidOptionError
from memcore.keys import ThreadRow
from memcore.store.base import ReadTxn, Txn

__all__ = ["copy_thread"]

_ROWS = (ThreadRow.NAMESPACE, ThreadRow.CHECKPOINT, ThreadRow.VALUE, ThreadRow.WRITES)


def copy_thread(txn: Txn, scope: int, source: str, target: str, *, now_ms: int) -> bool:
    """Make ``target`` a copy of ``source``; whether there is a source.

    Raises:
        InvalidOptionError: the target exists and holds checkpoints.
    """
    found = threads.thread_of(txn, scope, source)
    if found is None or source == target:
        return found is not None
    _need_free(txn, scope, target)
    start_removal(txn, scope, target)  # writes that came before their checkpoint
    found = threads.read_thread(txn, scope, found.place.thread)  # they may share the pool
    pool = found.pool
    joined = Pool(pool.epoch, pool.members + 1, pool.sweeping, pool.key)
    place = threads.create_thread(
        txn, scope, target, joined, now_ms=now_ms, number=found.place.pool
    )
    for row in _ROWS:
        start = keys.thread_rows(scope, found.place.thread, row)
        there = keys.thread_rows(scope, place.thread, row)
        # A row's checksum covers its key.
        for key, value in list(txn.scan(start, keys.after(start))):
            copied = there + key[len(start) :]
            body = open_value(key, value)[1]
            txn.put(copied, seal_value(copied, body))  # without a stamp
    return True


def _need_free(txn: ReadTxn, scope: int, target: str) -> None:
    number = names.thread_of(txn, scope, target)
    if number is None:
        return
    thread = threads.read_thread(txn, scope, number)
    for namespace, _ in threads.namespaces_of(txn, thread.place):
        prefix = checkpoints_of(thread.place, namespace)
        if any(True for _ in txn.scan(prefix, keys.after(prefix), limit=1)):
            break
    else:
        return
    msg = f"thread {target[:40]!r} has checkpoints already: delete it first, or copy to another"
    raise InvalidOptionError(msg)
