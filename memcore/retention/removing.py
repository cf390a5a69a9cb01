"""The rows of erased scopes leave, a piece a transaction.

Nothing is decoded: a scope is one range under every kind, so damaged rows go like the others. Only
expiry rows lie elsewhere; they are looked through when all others are gone and none can come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memcore import keys
from memcore.audit import end_scope, end_session
from memcore.keys import Kind, Row, ThreadRow
from memcore.limits import PIECE_ROWS
from memcore.retention.pending import REMOVED, SHREDDED, Pending, pending_of, put_pending
from memcore.store import LmdbStore
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = ["SCOPED_KINDS", "count_rows", "has_rows", "remove_rows"]

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


def count_rows(txn: ReadTxn, scope: int, counts: dict[str, int]) -> None:
    """Add the rows of a scope, by what they are; ``rows`` is all of them."""
    for start, stop in _ranges(txn, [scope]):
        for key, _ in txn.scan(start, stop):
            _count(key, counts)


def _count(key: bytes, counts: dict[str, int]) -> None:
    counts["rows"] = counts.get("rows", 0) + 1
    sort = _sort_of(key)
    if sort is not None:
        counts[sort] = counts.get(sort, 0) + 1


def remove_rows(store: LmdbStore, pending: Pending, pieces: int | None = None) -> bool:
    """Remove rows until none is left, or at most so many pieces; whether none is left.

    Raises:
        StorageError: the rest is still to go.
    """
    while True:
        done = False
        while not done:
            if pieces == 0:
                return False
            done = store.transact(lambda txn: _remove_piece(txn, pending.id), makes_room=True)
            pieces = None if pieces is None else pieces - 1
        # No transaction writes into a dead scope, so these are the last ones.
        for batch in _batches(_expiry_rows(store, frozenset(pending.scopes))):
            store.transact(lambda txn, batch=batch: _delete_all(txn, batch), makes_room=True)  # type: ignore[misc]
        if store.transact(lambda txn: _finish(txn, pending.id), makes_room=True):
            return True


def _remove_piece(txn: Txn, id_: str) -> bool:
    """Remove the next piece; whether nothing is left in the ranges of the scopes."""
    pending = pending_of(txn, id_)
    if pending is None or pending.stage != SHREDDED:
        return True  # somebody else was here
    piece, whole, before = Piece(), True, pending.counts.get("rows", 0)
    for start, stop in _ranges(txn, pending.scopes):
        if start[0] == Kind.CARE:  # the last kind: nothing of the scope is noted any more
            end_scope(txn, keys.split_scoped(start)[0])
        whole = _clear(txn, start, stop, piece, pending.counts)
        if not whole:
            break
    if pending.counts.get("rows", 0) != before:
        put_pending(txn, pending)
    return whole


def _clear(txn: Txn, start: bytes, stop: bytes, piece: Piece, counts: dict[str, int]) -> bool:
    """Remove what the piece has room for; whether that is the whole range."""
    until = stop
    sessions: set[tuple[int, int]] = set()
    for key, value in txn.scan(start, stop):
        if not piece.admits(len(value)):
            until = key
            break
        _count(key, counts)
        if start[0] == Kind.SESSION and len(key) > _ROW_AT:
            sessions.add(keys.split_session_prefix(key))
    for place in sessions:
        end_session(txn, *place)
    txn.delete_range(start, until)
    return until is stop


def _finish(txn: Txn, id_: str) -> bool:
    """Say that the rows are gone, if that is so."""
    pending = pending_of(txn, id_)
    if pending is None or pending.stage != SHREDDED:
        return True
    if any(has_rows(txn, scope) for scope in pending.scopes):
        return False
    pending.stage = REMOVED
    put_pending(txn, pending)
    return True


def _expiry_rows(store: LmdbStore, scopes: frozenset[int]) -> list[bytes]:
    """The expiry rows of the scopes; a short read for each page of all."""
    found: list[bytes] = []
    start: bytes | None = keys.expiry_row(0, b"")
    while start is not None:
        rows: list[bytes] = store.read(lambda txn, start=start: _page(txn, start))  # type: ignore[misc]
        at = _EXPIRY_SCOPE_AT
        found += (row for row in rows if int.from_bytes(row[at : at + 8], "big") in scopes)
        start = keys.behind(rows[-1]) if len(rows) == _EXPIRY_PAGE else None
    return found


def _page(txn: ReadTxn, start: bytes) -> list[bytes]:
    stop = keys.after(bytes((Kind.EXPIRY,)))
    return [row for row, _ in txn.scan(start, stop, limit=_EXPIRY_PAGE)]


def _batches(rows: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(rows), PIECE_ROWS // 4):  # they lie apart: each takes a page of its own
        yield rows[at : at + PIECE_ROWS // 4]


def _delete_all(txn: Txn, rows: list[bytes]) -> None:
    for row in rows:
        txn.delete(row)
