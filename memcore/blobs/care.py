"""Removing blobs that nothing refers to, and finding what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from memcore import keys
from memcore.blobs.content import exists
from memcore.blobs.removal import discard, finish, pages_of
from memcore.blobs.rows import (
    COMPLETE,
    SLOT_BYTES,
    BlobRef,
    chunk_count,
    chunk_of,
    chunk_range,
    header_of,
    is_free,
    references,
    slot_of,
)
from memcore.codec import open_value
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.limits import BLOB_BYTES_MAX
from memcore.store.base import ReadTxn, Store, Txn
from memcore.store.piece import Piece

__all__ = ["check", "collect"]

_COLLECT_PAGE: Final = 256


def collect(store: Store, scope: int) -> int:
    """Remove blobs that nothing refers to, unfinished staging included; how many.

    The reference count is read in the write transaction that deletes, so a blob that is acquired
    at the same time either keeps its rows or its ``acquire`` fails and it is staged again.
    """
    removed = 0
    prefix = keys.scoped(Kind.BLOB, scope)
    start, stop = prefix, keys.after(prefix)
    while True:
        page = store.read(lambda txn, start=start: _unreferenced(txn, scope, start, stop))  # type: ignore[misc]
        seen, pieces = page
        for slots in pieces:
            reaped = store.transact(_reaping(scope, slots), makes_room=True)
            removed += len(reaped)
            for slot in reaped:
                finish(store, scope, slot)
        if seen is None:
            return removed
        start = seen + b"\x00"


def _unreferenced(
    txn: ReadTxn, scope: int, start: bytes, stop: bytes
) -> tuple[bytes | None, list[list[bytes]]]:
    """The last key of a full page (None: no more), and its slots without a reference in pieces."""
    key, rows = None, 0
    pieces: list[list[bytes]] = [[]]
    piece = Piece()
    for key, _ in txn.scan(start, stop, limit=_COLLECT_PAGE):
        rows += 1
        slot = keys.split_scoped(key)[1]
        if not _is_idle(txn, scope, slot):
            continue
        if not piece.admits(0, more_pages=_pages_of(txn, scope, slot)):
            piece = Piece()
            pieces.append([])
        pieces[-1].append(slot)
    return (key if rows == _COLLECT_PAGE else None), [slots for slots in pieces if slots]


def _pages_of(txn: ReadTxn, scope: int, slot: bytes) -> int:
    with suppress(CorruptValueError):
        header = header_of(txn, scope, slot)
        if header is not None and header.state == COMPLETE:
            return pages_of(header.size)
    return pages_of(BLOB_BYTES_MAX)


def _is_idle(txn: ReadTxn, scope: int, slot: bytes) -> bool:
    # A damaged count is not read as 0: the row's presence protects the blob.
    return txn.get(keys.scoped(Kind.BLOB_REFS, scope, slot)) is None


def _reaping(scope: int, slots: list[bytes]) -> Callable[[Txn], list[bytes]]:
    def closure(txn: Txn) -> list[bytes]:
        idle = [slot for slot in slots if _is_idle(txn, scope, slot)]
        idle = [slot for slot in idle if not is_free(txn, scope, slot)]
        for slot in idle:
            discard(txn, scope, slot)
        return idle

    return closure


def check(txn: ReadTxn, scope: int) -> list[str]:
    """What is wrong with the blobs of a scope; empty if nothing is.

    Blobs without a reference and unfinished staging are no findings: ``collect`` removes them.
    """
    findings: list[str] = []
    for slot in _slots(txn, Kind.BLOB, scope):
        findings += _check_blob(txn, scope, slot)
    for slot in _slots(txn, Kind.BLOB_CHUNK, scope):
        if is_free(txn, scope, slot):
            findings.append(f"scope {scope}: chunks of the blob {slot.hex()} have no header")
    for slot in _slots(txn, Kind.BLOB_REFS, scope):
        findings += _check_references(txn, scope, slot)
    prefix = keys.scoped(Kind.BLOB_ADDRESS, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        findings += _check_address(txn, scope, key, value)
    return findings


def _slots(txn: ReadTxn, kind: int, scope: int) -> Iterator[bytes]:
    """The distinct slots under a kind, one seek each: chunk rows are skipped, not read."""
    prefix = keys.scoped(kind, scope)
    start, stop = prefix, keys.after(prefix)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        slot = keys.split_scoped(row[0])[1][:SLOT_BYTES]
        yield slot
        # Not keys.after(): a slot of FF bytes has none inside the scope.
        start = prefix + slot + b"\xff" * 5


def _check_blob(txn: ReadTxn, scope: int, slot: bytes) -> list[str]:
    where = f"scope {scope}: blob {slot.hex()}"
    try:
        header = header_of(txn, scope, slot)
    except CorruptValueError as error:
        return [f"{where}: header: {error}"]
    if header is None or header.state != COMPLETE:
        return []
    if header.size > BLOB_BYTES_MAX:
        return [f"{where}: its header says {header.size} bytes, more than a blob can have"]
    findings: list[str] = []
    ref = BlobRef(slot[:-1], slot[-1], header.size)
    for number in range(chunk_count(header.size)):
        try:
            chunk_of(txn, scope, ref, number)
        except CorruptValueError as error:
            findings.append(f"{where}: {error}")
    beyond = keys.blob_chunk(scope, slot, chunk_count(header.size))
    if any(txn.scan(beyond, chunk_range(scope, slot)[1], limit=1)):
        findings.append(f"{where}: has chunks beyond its size of {header.size} bytes")
    return findings


def _check_references(txn: ReadTxn, scope: int, slot: bytes) -> list[str]:
    where = f"scope {scope}: reference count of the blob {slot.hex()}"
    try:
        header, count = header_of(txn, scope, slot), references(txn, scope, slot)
    except CorruptValueError as error:
        return [f"{where}: {error}"]
    if header is None or header.state != COMPLETE:
        return [f"{where}: dangling, {count} references to a blob that is not stored"]
    return [] if count else [f"{where}: a count of 0 was kept"]


def _check_address(txn: ReadTxn, scope: int, key: bytes, value: bytes) -> list[str]:
    where = f"scope {scope}: blob address sha256:{keys.split_scoped(key)[1].hex()}"
    try:
        ref = BlobRef.unpack(open_value(key, value)[1])
        stored, count = exists(txn, scope, ref), references(txn, scope, slot_of(ref))
    except CorruptValueError as error:
        return [f"{where}: {error}"]
    if not stored:
        return [f"{where}: refers to a blob that is not stored"]
    return [] if count else [f"{where}: its reference is not counted"]
