"""Retention of the audit: old entries go, statements about rows that exist stay.

A piece of entries becomes one CUT in the place of its last: the last digest of each row that it
told of, the last head, and the mac with which the chain goes on. So everything behind it is proven
as before, and rows are still held to what was stored; who did what when is forgotten.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from memcore.audit.start import chains, record_event
from memcore.audit.verify import Latest, entries
from memcore.codec import keys
from memcore.codec.audit_entry import (
    FIRST_MAC,
    AuditEntry,
    Chainer,
    ChainPage,
    Op,
    unpack_entry,
    unpack_page,
)
from memcore.codec.values import HEADER_BYTES
from memcore.errors import AuditError
from memcore.store import LmdbStore
from memcore.store.audit_log import DATABASE, Place, read_tip
from memcore.store.interface import ReadTxn, Txn
from memcore.store.transaction import stored

__all__ = [
    "cut_chain",
    "cut_chains",
]


_PIECE: Final = 256
"""Entries that one CUT stands for: what it says fits three pages of the file."""


def cut_chains(store: LmdbStore, before_ms: int) -> int:
    """Cut the entries of all chains that were made before a time; how many went.

    Raises:
        AuditError: an entry does not prove what it says; nothing of that piece was cut.
    """
    cut = 0
    for place in store.read(lambda txn: list(chains(txn))):
        cut += cut_chain(store, place, before_ms)
    if cut:
        details = {"entries": cut, "before_ms": before_ms}
        store.transact(lambda txn: record_event(txn, 0, "audit cut", details))
    return cut


def cut_chain(store: LmdbStore, place: Place, before_ms: int, *, most: int | None = None) -> int:
    """Cut old entries of one chain, up to ``most``; return their number.

    Raises:
        AuditError: as ``cut_chains``.
    """
    cut = 0
    after: int | None = 0
    while after is not None and (most is None or cut < most):
        went, after = store.transact(
            lambda txn, after=after: _cut(txn, place, after, before_ms),  # type: ignore[misc]
            makes_room=True,
        )
        cut += went
    return cut


class _Piece(NamedTuple):
    """Entries that are next to each other and old enough; none of them is a CUT."""

    first: int
    last: int
    before: bytes
    resume: bytes
    head: bytes
    latest: Latest


def _cut(txn: Txn, place: Place, after: int, before_ms: int) -> tuple[int, int | None]:
    """Cut one piece behind a number; return the count of entries and where to go on, or None."""
    piece = _find(txn, place, after, before_ms)
    if isinstance(piece, int):
        return 0, piece or None
    if piece.last > piece.first:
        latest = piece.latest
        latest.settle()
        rows = [(rest, digest) for rest, (_, digest) in sorted(latest.rows.items())]
        page = ChainPage(piece.first, piece.resume, rows, latest.spans)
        txn.audit.cut(place, piece.last, piece.before, page, piece.head)
        numbered = keys.audit_rows(*place)
        start, stop = (keys.numbered(numbered, n) for n in (piece.first, piece.last))
        txn.delete_range(start, stop)
    return piece.last - piece.first, piece.last


def _find(txn: Txn, place: Place, after: int, before_ms: int) -> _Piece | int:
    """Find the next piece; or a number to go on behind, 0 at the end."""
    chainer, newest = txn.audit.chainer, read_tip(txn, place).number
    before = start = _mac_at(txn, place, after)
    last, head = after, b""
    latest = Latest(is_database=place == DATABASE)
    for number, _, value in entries(txn, place, after=after, limit=_PIECE):
        whole = value[HEADER_BYTES:]
        entry = _proven(chainer, place, number, before, whole)
        if entry.op is Op.CUT:
            if last == after:
                return number
            break
        # The newest one stays: the chain goes on from it.
        if entry.time_ms >= before_ms or number == newest:
            break
        latest.take(number, entry)
        head = entry.head or head
        before, last = entry.mac, number
    return _Piece(after + 1, last, start, before, head, latest) if last > after else 0


def _proven(chainer: Chainer, place: Place, number: int, before: bytes, whole: bytes) -> AuditEntry:
    try:
        entry = unpack_entry(whole)
        if chainer.is_sealed(place, number, before, whole):
            return entry
    except ValueError as exc:
        raise _refusal(place, number) from exc
    raise _refusal(place, number)


def _refusal(place: Place, number: int) -> AuditError:
    return AuditError(
        f"entry {number} of the audit of scope {place[0]}, session {place[1]} does not prove what "
        "it says: see verify_audit(); nothing of this piece was cut"
    )


def _mac_at(txn: ReadTxn, place: Place, number: int) -> bytes:
    """Return the MAC from which the chain goes on behind an entry."""
    if not number:
        return FIRST_MAC
    value = stored(txn).get(keys.numbered(keys.audit_rows(*place), number)) or b""
    entry = unpack_entry(value[HEADER_BYTES:])
    return unpack_page(entry.said).resume if entry.op is Op.CUT else entry.mac
