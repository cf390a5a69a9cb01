"""Rows of legal holds: what must not be deleted, and how deleting code finds that out.

A hold on a scope covers all that it has; one on a session covers the session. A row of the
database counts them, so that nobody pays for holds who has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from memcore import keys
from memcore.codec import decode_json, decoding, encode_json, open_number, open_value, seal_value
from memcore.errors import HeldError
from memcore.keys import Care, Kind
from memcore.store.base import ReadTxn, Txn

__all__ = [
    "HoldRow",
    "any_held",
    "count_holds",
    "counted_holds",
    "drop_holds",
    "holds_in",
    "is_held",
    "is_hold_row",
    "is_opted_out",
    "mark_memory",
    "memory_mark",
    "memory_namespaces",
    "need_free",
    "opted_out_key",
    "put_hold",
    "release_hold",
    "rows_of",
]

_COUNT = keys.scoped(Kind.CARE, 0, bytes((Care.HOLD,)))
_SCOPE, _SESSION = b"\x01", b"\x02"
OPTED_OUT = b"\x03"
"""Behind the holds of a scope: its user wants no memory."""


class HoldRow(NamedTuple):
    """One hold; session 0: all that the scope has."""

    scope: int
    session: int
    reason: str
    since_ms: int


def _key(scope: int, session: int) -> bytes:
    rows = keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,)))
    return rows + _SESSION + keys.u64(session) if session else rows + _SCOPE


def any_held(txn: ReadTxn) -> bool:
    """Whether there is any hold in the database."""
    return txn.get(_COUNT) is not None


def is_held(txn: ReadTxn, scope: int, session: int | None = None) -> bool:
    """Whether a hold covers the session, or without one, whatever is in the scope.

    One look at the database if it has no hold.

    Args:
        txn: a snapshot or transaction.
        scope: the number of the scope.
        session: the number of a session; 0 asks for what is of no session, None for the scope and
            each of its sessions.
    """
    if txn.get(_COUNT) is None:
        return False
    if session is not None:
        return any(txn.get(_key(scope, each)) is not None for each in (0, session))
    return any(True for _ in _rows_in(txn, scope))


def need_free(txn: ReadTxn, scope: int, session: int | None = None, *, what: str) -> None:
    """Refuse to delete what is held.

    Raises:
        HeldError: a hold covers it; ``what`` says in words what was to be deleted.
        CorruptValueError: the row of a hold is damaged, so nothing is deleted.
    """
    if not is_held(txn, scope, session):
        return
    holds = rows_of(txn, scope)
    first = next(row for row in holds if session is None or row.session in (0, session))
    reason, place = first.reason, "session.release()" if first.session else "scope.release()"
    option = " --session SESSION" if first.session else ""
    msg = (
        f"{what} is under a legal hold ({reason[:80]!r}) and was not deleted: {place} or "
        f"'memcore hold USER{option} --release --yes' ends the hold"
    )
    raise HeldError(msg, reason=reason)


def put_hold(txn: Txn, row: HoldRow) -> bool:
    """Write a hold, in place of one that is there; whether it is a new one."""
    key = _key(row.scope, row.session)
    is_new = txn.get(key) is None
    body, flags = encode_json({"reason": row.reason, "since_ms": row.since_ms})
    txn.put(key, seal_value(key, body, flags))
    if is_new:
        _count(txn, 1)
    return is_new


def release_hold(txn: Txn, scope: int, session: int = 0) -> bool:
    """Remove a hold; whether there was one."""
    found = txn.delete(_key(scope, session))
    if found:
        _count(txn, -1)
    return found


def drop_holds(txn: Txn, scope: int) -> int:
    """Remove all holds of a scope, whatever their rows hold; how many there were."""
    found = [key for key, _ in _rows_in(txn, scope)]
    for key in found:
        txn.delete(key)
    if found:
        _count(txn, -len(found))
    return len(found)


def opted_out_key(scope: int) -> bytes:
    """``12 | scope u64 | 01 | 03``: there while the user of the scope wants no memory."""
    return keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,))) + OPTED_OUT


def is_opted_out(txn: ReadTxn, scope: int) -> bool:
    """Whether the user of the scope wants no memory."""
    return txn.get(opted_out_key(scope)) is not None


def memory_mark(scope: int, namespace: int) -> bytes:
    """``12 | scope u64 | 06 | namespace u64``: the key/value namespace holds memory."""
    return keys.care_rows(scope, Care.MEMORY) + keys.u64(namespace)


def mark_memory(txn: Txn, scope: int, namespace: int) -> None:
    """Note that a namespace holds memory: what goes with ``opt_out_memory(remove=True)``."""
    key = memory_mark(scope, namespace)
    if txn.get(key) is None:
        txn.put(key, seal_value(key, b""))


def memory_namespaces(txn: ReadTxn, scope: int) -> set[int]:
    """The numbers of the namespaces that are marked."""
    start = keys.care_rows(scope, Care.MEMORY)
    return {keys.number_of(key) for key, _ in txn.scan(start, keys.after(start))}


def counted_holds(txn: ReadTxn) -> int:
    """How many holds the database says that there are.

    Raises:
        CorruptValueError: the row that says it is damaged.
    """
    value = txn.get(_COUNT)
    return 0 if value is None else open_number(_COUNT, value)


def count_holds(txn: Txn, count: int) -> None:
    """Write how many holds there are."""
    if count > 0:
        txn.put(_COUNT, seal_value(_COUNT, keys.u64(count)))
    else:
        txn.delete(_COUNT)


def _count(txn: Txn, more: int) -> None:
    count_holds(txn, counted_holds(txn) + more)


def holds_in(txn: ReadTxn, scope: int) -> int:
    """How many holds there are on a scope and its sessions, whatever their rows hold."""
    return sum(1 for _ in _rows_in(txn, scope))


def rows_of(txn: ReadTxn, scope: int) -> list[HoldRow]:
    """The holds of a scope, its own first.

    Raises:
        CorruptValueError: a row is damaged.
    """
    return [_unpacked(key, value) for key, value in _rows_in(txn, scope)]


def _rows_in(txn: ReadTxn, scope: int) -> Iterator[tuple[bytes, bytes]]:
    start = keys.scoped(Kind.CARE, scope, bytes((Care.HOLD,)))
    return (row for row in txn.scan(start + _SCOPE, start + _SESSION + b"\xff"))


def is_hold_row(key: bytes, value: bytes) -> bool:
    """Whether a row is a hold, or opts out of memory, and makes sense."""
    start = keys.scoped(Kind.CARE, keys.split_scoped(key)[0], bytes((Care.HOLD,)))
    if not keys.split_scoped(key)[0] or not key.startswith(start):
        return False
    rest = key[len(start) :]
    if rest == OPTED_OUT:
        return True
    fits = rest == _SCOPE or (rest[:1] == _SESSION and len(rest) == 1 + len(keys.u64(0)))
    return fits and bool(_unpacked(key, value))


def _unpacked(key: bytes, value: bytes) -> HoldRow:
    flags, body = open_value(key, value)
    scope, rest = keys.split_scoped(key)
    with decoding(key, "hold"):
        found: Any = decode_json(body, flags)
        session = int.from_bytes(rest[2:], "big")
        return HoldRow(scope, session, str(found.get("reason", "")), int(found.get("since_ms", 0)))
