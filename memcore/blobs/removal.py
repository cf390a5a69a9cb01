"""Removing the rows of a blob that nothing refers to, a piece at a time.

A small blob goes at once. Of a larger one the first piece goes, and the header says ``STAGING``
under a new token: so the blob is gone for every reader, its slot stays taken, and a stager who
wrote it notices. A ``REMOVAL`` row remembers that the rest is to go.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from memcore import keys
from memcore.blobs.rows import (
    STAGING,
    Header,
    chunk_count,
    chunk_range,
    put_header,
)
from memcore.codec import seal_value
from memcore.errors import MemcoreError
from memcore.keys import Kind
from memcore.limits import BLOB_CHUNK_BYTES, BLOB_CHUNKS_PIECE, PAGE_BYTES
from memcore.store.base import Store, Txn

__all__ = ["discard", "finish", "finish_leaving", "pages_of", "removal_of"]

_ROW_PAGES = 8
"""What header, count and chunks cost beside the chunks' own pages, about."""


def removal_of(scope: int, slot: bytes) -> bytes:
    """The row that says that the slot's rows are to go."""
    return keys.removal_row(chunk_range(scope, slot)[0])


def pages_of(size: int) -> int:
    """The pages that ``discard`` frees in the transaction that it is called in, at most."""
    chunks = min(chunk_count(size), BLOB_CHUNKS_PIECE)
    return _ROW_PAGES + chunks * (BLOB_CHUNK_BYTES // PAGE_BYTES + 1)


def discard(txn: Txn, scope: int, slot: bytes) -> bool:
    """Remove the slot's rows, or the first piece of them; whether none are left.

    If some are, the caller goes on with ``finish`` after its commit. Without references only.
    """
    start, stop = chunk_range(scope, slot)
    marker = removal_of(scope, slot)
    first = next(iter(txn.scan(start, stop, limit=1)), None)
    if first is not None:
        number = int.from_bytes(first[0][-4:], "big") + BLOB_CHUNKS_PIECE
        txn.delete_range(start, min(stop, keys.blob_chunk(scope, slot, number)))
    if any(True for _ in txn.scan(start, stop, limit=1)):
        if txn.get(marker) is None:
            put_header(txn, scope, slot, Header(STAGING, 0, os.urandom(8)))
            txn.put(marker, seal_value(marker, b""))
        return False
    txn.delete(keys.scoped(Kind.BLOB, scope, slot))
    txn.delete(marker)
    return True


def finish(store: Store, scope: int, slot: bytes) -> None:
    """Go on with the removal of a slot, if one is under way, until its rows are gone."""
    marker = removal_of(scope, slot)

    def piece(txn: Txn) -> bool:
        return txn.get(marker) is None or discard(txn, scope, slot)

    if store.read(lambda txn: txn.get(marker)) is not None:
        while not store.transact(piece, makes_room=True):
            pass


def finish_leaving(store: Store, rows: Iterable[bytes]) -> None:
    """Go on with what ``let_go`` told of, after its commit.

    Nobody waits for these rows: what fails here stays for whoever deletes next.
    """
    with suppress(MemcoreError):
        for row in rows:
            finish(store, *keys.split_scoped(keys.split_removal_row(row)))
