"""Garbage collection of chunks that no manifest refers to.

1. A transaction begins the next *epoch* of the pool and marks the pool as being swept. A put that
   was prepared for the previous epoch is prepared again, and has every chunk that it refers to
   written, or touched: moved to this epoch.
2. On one snapshot, all chunks that values and writes refer to are marked.
3. Chunks that are neither marked nor of this epoch are deleted, piece by piece.
4. A last transaction clears the pool's mark.

An interrupted sweep is restarted by the next one; until then only the unused chunks remain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from memcore.codec import keys
from memcore.codec.keys import ThreadRow, name_key
from memcore.errors import CorruptValueError
from memcore.graph import rows
from memcore.graph import rows as threads
from memcore.graph.manifest import ID_BYTES, PAGE, Coder, Typed, rows_in, rows_of
from memcore.graph.rows import (
    KEY,
    KEY_BYTES,
    GraphCheckpointRow,
    Place,
    Pool,
    chunk_key,
    epoch_of,
    read_chunk,
    read_pool,
    unpack_chunk,
    unpack_pool,
    write_pool,
)
from memcore.rows.lifecycle import is_erased
from memcore.store.interface import DeleteBudget, ReadTxn, Steps, Txn

__all__ = [
    "begin",
    "clear_pool",
    "is_pool_row",
    "is_thread_row",
    "marked",
    "members_of",
    "rows_of",
    "sweep",
    "walk",
]


# --- Sweep of a pool: chunks without references are deleted ---------------------------------------

_SCAN: Final = 1000


def begin(txn: Txn, scope: int, pool: int) -> int | None:
    """Begin the next epoch of a pool; returns its number, None if there is no such pool."""
    row = None if is_erased(txn, scope) else read_pool(txn, scope, pool)
    if row is None:
        return None
    following = row.swept(sweeping=True)
    write_pool(txn, scope, pool, following)
    return following.epoch


def sweep(
    read: Callable[[Callable[[ReadTxn], Any]], Any],
    scope: int,
    pool: int,
    epoch: int,
    coder: Coder,
) -> Steps[int]:
    """Finish a sweep started by ``begin``; returns the number of chunks deleted."""
    live: set[bytes] = read(lambda txn: marked(txn, scope, pool, coder))
    removed = 0
    start: bytes | None = chunk_key(scope, pool, b"\x00")
    while start is not None:
        found, start = read(partial(_candidates, scope=scope, pool=pool, start=start, epoch=epoch))
        doomed = [key for key in found if key[-ID_BYTES:] not in live]
        while doomed:
            step = partial(_remove, scope=scope, pool=pool, doomed=doomed, epoch=epoch)
            taken, gone = yield step
            if taken is None:
                return removed
            doomed = doomed[taken:]
            removed += gone

    def finish(txn: Txn) -> None:
        row = read_pool(txn, scope, pool)
        if row is None or row.epoch != epoch:
            return  # another sweep has begun since
        if not is_erased(txn, scope):
            write_pool(txn, scope, pool, row.swept(sweeping=False))

    yield finish
    return removed


def _candidates(
    txn: ReadTxn, scope: int, pool: int, start: bytes, epoch: int
) -> tuple[list[bytes], bytes | None]:
    found = []
    key, count = start, 0
    for key, value in txn.scan(start, keys.after(keys.chunk_prefix(scope, pool)), limit=_SCAN):
        count += 1
        if _older(key, value, epoch):
            found.append(key)
    return found, keys.behind(key) if count == _SCAN else None


def _older(key: bytes, value: bytes, epoch: int) -> bool:
    try:
        return epoch_of(key, value) < epoch
    except CorruptValueError:
        return False  # for check() to report


def _remove(
    txn: Txn, scope: int, pool: int, doomed: list[bytes], epoch: int
) -> tuple[int | None, int]:
    """Delete a piece of the doomed chunks; returns the numbers examined and deleted.

    ``(None, 0)`` if another sweep has begun since: writers no longer touch the chunks that this
    sweep would delete, so they are left for the next one.
    """
    row = read_pool(txn, scope, pool)
    if row is None or row.epoch != epoch or not row.sweeping:
        return None, 0
    piece = DeleteBudget()
    gone = 0
    for at, key in enumerate(doomed):
        value = txn.get(key)
        if value is None or not _older(key, value, epoch):
            continue
        if not piece.admits(len(value)):
            return at, gone
        txn.delete(key)
        gone += 1
    return len(doomed), gone


# --- marking --------------------------------------------------------------------------------------


def marked(txn: ReadTxn, scope: int, pool: int, coder: Coder) -> set[bytes]:
    """Mark the chunks of a pool that values and writes refer to, including pages.

    Raises:
        CorruptValueError: a row is damaged: its references are unknown, so nothing may be deleted.
    """
    live: set[tuple[int, bytes]] = set()
    for place in members_of(txn, scope, pool):
        for node in _manifests(txn, place, coder):
            _mark(txn, place, coder, list(rows_of(node)), live)
    return {part for _, part in live}


def _mark(
    txn: ReadTxn,
    place: Place,
    coder: Coder,
    work: list[tuple[int, bytes]],
    live: set[tuple[int, bytes]],
) -> None:
    """Mark the chunks of ``work`` as live, and those that their pages name.

    A part may be named as content, as a page of lists and as a page of dicts; each is followed.
    """
    while work:
        named = work.pop()
        if named in live:
            continue
        live.add(named)
        container, part = named
        if container:
            page = coder.open(read_chunk(txn, chunk_key(place.scope, place.pool, part)))[1]
            work += rows_in(container, page)


def _manifests(txn: ReadTxn, place: Place, coder: Coder) -> Iterator[bytes]:
    values = keys.thread_rows(place.scope, place.thread, ThreadRow.VALUE)
    for key, value in txn.scan(values, keys.after(values)):
        if not rows.is_lost(key, value):
            yield rows.open_sealed(key, value, coder, rows.NODE)
    writes = keys.thread_rows(place.scope, place.thread, ThreadRow.WRITES)
    for key, value in txn.scan(writes, keys.after(writes)):
        if rows.is_lost(key, value):
            continue
        for write in rows.unpack_writes(rows.open_sealed(key, value, coder, rows.WRITES)):
            yield write.node


def members_of(txn: ReadTxn, scope: int, pool: int) -> Iterator[Place]:
    """Yield the threads of a pool."""
    for number in threads.scope_threads(txn, scope):
        place = Place(scope, number, pool)
        if threads.is_alive(txn, place) and threads.read_head(txn, scope, number)[0] == pool:
            yield place


# --- References of manifests, and their existence: for checks and salvage -------------------------

_PLACE_BYTES: Final = 17
_NAMESPACED_BYTES: Final = 22


def walk(fetch: Callable[[bytes], Typed], node: bytes) -> set[bytes]:
    """Collect the chunks that a manifest refers to, including its pages and their chunks.

    ``fetch`` returns the content stored under an id, or raises CorruptValueError.

    Raises:
        CorruptValueError: the manifest is damaged, or a chunk is missing or damaged.
    """
    found: set[tuple[int, bytes]] = set()
    work = list(rows_of(node))
    while work:
        named = work.pop()
        if named in found:
            continue
        found.add(named)
        container, part = named
        kind, content = fetch(part)
        if container:
            if kind != PAGE:
                msg = f"the chunk {part.hex()} is named as a page, but is none"
                raise CorruptValueError(msg, key=part)
            work += rows_in(container, content)
    return {part for _, part in found}


def clear_pool() -> Pool:
    """Build a pool to replace a lost row; plaintext chunks can be read without its key."""
    return Pool(1, 1, sweeping=False, key=(KEY, os.urandom(KEY_BYTES)))


def is_pool_row(key: bytes, value: bytes) -> bool:
    """Return whether this is a pool's own row or a chunk.

    Raises:
        CorruptValueError: it is malformed.
    """
    if len(key) == _PLACE_BYTES:
        return bool(unpack_pool(key, value))
    unpack_chunk(key, value)
    return len(key) == _PLACE_BYTES + ID_BYTES


def is_thread_row(key: bytes, value: bytes) -> bool:
    """Return whether this is a valid row of a thread.

    Raises:
        CorruptValueError: it is malformed.
    """
    if len(key) <= _PLACE_BYTES:
        return False
    row = key[_PLACE_BYTES]
    if row == ThreadRow.HEAD:
        threads.unpack_head(key, value)
        return len(key) == _PLACE_BYTES + 1
    if row == ThreadRow.NAMESPACE:
        name = threads.unpack_namespace(key, value)[1]
        return key == name_key(key[: _PLACE_BYTES + 1], name)
    return len(key) > _NAMESPACED_BYTES and _is_content(row, key, value)


def _is_content(row: int, key: bytes, value: bytes) -> bool:
    if row == ThreadRow.CHECKPOINT:
        rows.id_in(key)
        return bool(GraphCheckpointRow.unpack(key, value))
    if row not in (ThreadRow.VALUE, ThreadRow.WRITES):
        return False
    kind = rows.NODE if row == ThreadRow.VALUE else rows.WRITES
    for node in rows.clear_nodes(key, value, kind):
        for _ in rows_of(node):
            pass
    return True
