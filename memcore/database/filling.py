"""A new file filled with salvaged rows, and what has to be counted anew in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from memcore import keys
from memcore.blobs import BlobRef
from memcore.blobs.rows import slot_of
from memcore.codec import FLAG_BLOB, HEADER_BYTES, seal_value
from memcore.database.check import sessions_of
from memcore.keys import Kind, Row
from memcore.log.head import Head, head_key
from memcore.log.item import split_body
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
    counts: dict[tuple[int, bytes], int] = defaultdict(int)

    def count(txn: ReadTxn) -> None:
        counts.clear()
        for place in sessions_of(txn):
            start = keys.session_rows(*place, Row.ITEM)
            for _, value in txn.scan(start, keys.after(start)):
                if value[1] & FLAG_BLOB:
                    ref = BlobRef.unpack(split_body(value[HEADER_BYTES:])[3])
                    counts[place[0], slot_of(ref)] += 1
        start = bytes((Kind.BLOB_ADDRESS,))
        for key, value in txn.scan(start, keys.after(start)):
            ref = BlobRef.unpack(value[HEADER_BYTES:])
            counts[keys.split_scoped(key)[0], slot_of(ref)] += 1

    def write(txn: Txn) -> None:
        for (scope, slot), number in counts.items():
            key = keys.scoped(Kind.BLOB_REFS, scope, slot)
            txn.put(key, seal_value(key, keys.u64(number)))

    store.read(count)
    store.transact(write)


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
