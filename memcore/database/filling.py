"""A new file filled with salvaged rows, and what has to be counted anew in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from memcore import keys, names
from memcore.codec import seal_value
from memcore.database.check import sessions_of
from memcore.database.references import counted_references
from memcore.keys import Kind
from memcore.log.head import Head, head_key
from memcore.store import LmdbStore, ReadTxn, Txn

__all__ = ["count_all", "put_rows", "write_references"]

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 16 * 1024**2


def put_rows(store: LmdbStore, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write rows, a batch a transaction."""
    for batch in _batches(rows):
        store.transact(lambda txn, batch=batch: _put_all(txn, batch))  # type: ignore[misc]


def _batches(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[1])
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _put_all(txn: Txn, rows: list[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        txn.put(key, value)


def write_references(store: LmdbStore) -> None:
    """Count the references to each blob from the rows that there are."""
    scopes = store.read(lambda txn: [scope for scope, _, _ in names.scopes(txn)])
    for scope in scopes:
        counts = store.read(lambda txn, scope=scope: counted_references(txn, scope))  # type: ignore[misc]
        rows = [(keys.scoped(Kind.BLOB_REFS, scope, slot), counts[slot]) for slot in counts]
        put_rows(store, ((key, seal_value(key, keys.u64(count))) for key, count in rows))


def count_all(store: LmdbStore) -> tuple[int, int, int]:
    """Live items, sessions, key/value entries."""

    def count(txn: ReadTxn) -> tuple[int, int, int]:
        items = sessions = 0
        for place in sessions_of(txn):
            key = head_key(*place)
            head = Head.unpack(key, txn.get(key) or b"")
            if not head.hidden:
                sessions += 1
                items += head.count
        start = bytes((Kind.KV,))
        return items, sessions, sum(1 for _ in txn.scan(start, keys.after(start)))

    return store.read(count)
