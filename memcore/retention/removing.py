"""The rows of erased scopes leave, a piece a transaction.

Nothing is decoded: a scope is one range under every kind, so damaged rows go like the others. Only
expiry rows lie elsewhere; they are looked through when all others are gone and none can come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memcore import keys
from memcore.keys import Kind, Row, ThreadRow
from memcore.limits import PIECE_ROWS
from memcore.retention.pending import REMOVED, Pending, pending_of, put_pending
from memcore.store import LmdbStore
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = ["SCOPED_KINDS", "has_rows", "remove_rows"]

SCOPED_KINDS: Final = (
    *range(Kind.SESSION_NAME, Kind.EXPIRY),
    *range(Kind.REMOVAL, Kind.CARE + 1),
)
"""Kinds whose keys go on with the number of a scope."""
_COUNTED: Final = {
    Kind.SESSION_NAME: "sessions",
    Kind.BLOB: "blobs",
    Kind.KV: "entries",
    Kind.THREAD_NAME: "threads",
    Kind.STATE: "state_values",
    Kind.CARE: "care_rows",
}
_COUNTED_ROWS: Final = {
    Row.ITEM: "items",
    Row.VIEW: "views",
    Row.CHECKPOINT: "checkpoints",
    Row.STATE: "state_values",
}
_ROW_AT: Final = 17
_EXPIRY_PAGE: Final = 4096
_EXPIRY_SCOPE_AT: Final = 10
"""``0C | expires u64 | kind u8 | scope u64 | ...``."""


def _sort_of(key: bytes) -> str | None:
    """What a row counts as."""
    if key[0] == Kind.SESSION:
        return _COUNTED_ROWS.get(key[_ROW_AT]) if len(key) > _ROW_AT else None
    if key[0] == Kind.THREAD:
        held = key[_ROW_AT : _ROW_AT + 1] == bytes((ThreadRow.CHECKPOINT,))
        return "checkpoints" if held else None
    return _COUNTED.get(key[0])


def has_rows(txn: ReadTxn, scope: int) -> bool:
    """Whether anything of the scope is left, but for expiry rows."""
    return next(_ranges(txn, [scope]), None) is not None


def _ranges(txn: ReadTxn, scopes: list[int]) -> Iterator[tuple[bytes, bytes]]:
    """The ranges of the scopes that hold a row."""
    for scope in scopes:
        for kind in SCOPED_KINDS:
            start = keys.scoped(kind, scope)
            stop = keys.after(start)
            if any(True for _ in txn.scan(start, stop, limit=1)):
                yield start, stop


def remove_rows(store: LmdbStore, pending: Pending, pieces: int | None = None) -> bool:
    """Remove rows until none is left, or at most so many pieces; whether none is left.

    Raises:
        StorageError: the rest is still to go.
    """
    while pieces != 0:
        done = store.transact(lambda txn: _remove_piece(txn, pending.id), makes_room=True)
        if done:
            return True
        pieces = None if pieces is None else pieces - 1
    return False


def _remove_piece(txn: Txn, id_: str) -> bool:
    """Remove the next piece; the last one says that the rows are gone."""
    pending = pending_of(txn, id_)
    if pending is None or pending.stage == REMOVED:
        return True  # somebody else was here
    counts, piece, whole = pending.counts, Piece(), True
    for start, stop in _ranges(txn, pending.scopes):
        whole = _clear(txn, start, stop, piece, counts) and whole
        if not whole:
            break
    if whole:
        expiring = _expiry_rows(txn, set(pending.scopes))
        for row in expiring:
            txn.delete(row)
        whole = len(expiring) < PIECE_ROWS
    if whole:
        pending.stage = REMOVED
    put_pending(txn, pending)
    return whole


def _clear(txn: Txn, start: bytes, stop: bytes, piece: Piece, counts: dict[str, int]) -> bool:
    """Remove what the piece has room for; whether that is the whole range."""
    until = stop
    for key, value in txn.scan(start, stop):
        if not piece.admits(len(value)):
            until = key
            break
        counts["rows"] = counts.get("rows", 0) + 1
        sort = _sort_of(key)
        if sort is not None:
            counts[sort] = counts.get(sort, 0) + 1
    txn.delete_range(start, until)
    return until is stop


def _expiry_rows(txn: ReadTxn, scopes: set[int]) -> list[bytes]:
    """At most a piece of the expiry rows of the scopes."""
    found: list[bytes] = []
    start = keys.expiry_row(0, b"")
    for row, _ in txn.scan(start, keys.after(start[:1])):
        if int.from_bytes(row[_EXPIRY_SCOPE_AT : _EXPIRY_SCOPE_AT + 8], "big") in scopes:
            found.append(row)
            if len(found) == PIECE_ROWS:
                break
    return found
