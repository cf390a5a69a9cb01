"""Quarantine rows: originals of items that a guard replaced by placeholders.

``12 | scope u64 | 05 | session u64 | seq u64`` is JSON: ``source``, ``reason`` and the ``message``
as it would have been stored. Forks share the placeholder; the row is the session's that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Care
from memcore.codec.values import decode_json, decoding, open_value, seal_value
from memcore.model import Message
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Held",
    "drop_held",
    "forget_held",
    "held_in",
    "is_held_row",
    "put_held",
    "read_held",
]


_NUMBERS: int = 16


class Held(NamedTuple):
    """Quarantined original of one item."""

    session: int
    seq: int
    source: str
    reason: str
    message: Message


def _rows(scope: int) -> bytes:
    return keys.care_rows(scope, Care.QUARANTINE)


def _of_session(scope: int, session: int) -> bytes:
    return _rows(scope) + keys.u64(session)


def _key(scope: int, session: int, seq: int) -> bytes:
    return keys.numbered(_of_session(scope, session), seq)


def put_held(txn: Txn, scope: int, session: int, seq: int, held: bytes) -> None:
    """Write the row of an original: a byte of flags, and JSON."""
    key = _key(scope, session, seq)
    txn.put(key, seal_value(key, held[1:], held[0]))


def _opened(key: bytes, value: bytes) -> Held:
    flags, body = open_value(key, value)
    with decoding(key, "quarantined item"):
        found: Any = decode_json(body, flags)
        session, seq = int.from_bytes(key[-_NUMBERS:-8], "big"), keys.number_of(key)
        source, reason, message = (found[name] for name in ("source", "reason", "message"))
        return Held(session, seq, str(source), str(reason), message)


def held_in(txn: ReadTxn, scope: int, session: int | None = None) -> Iterator[Held]:
    """Yield the quarantined originals of a scope or one session, ordered by session and seq.

    Raises:
        CorruptValueError: a row is damaged.
    """
    prefix = _rows(scope) if session is None else _of_session(scope, session)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        yield _opened(key, value)


def read_held(txn: ReadTxn, scope: int, session: int, seq: int) -> Held | None:
    """Read one quarantined original, or None.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = _key(scope, session, seq)
    value = txn.get(key)
    return None if value is None else _opened(key, value)


def drop_held(txn: Txn, scope: int, session: int, seq: int) -> bool:
    """Remove one; whether it was there."""
    key = _key(scope, session, seq)
    there = txn.get(key) is not None
    if there:
        txn.delete(key)
    return there


def forget_held(txn: Txn, scope: int, session: int) -> None:
    """Delete the quarantined originals of a session that is deleted."""
    prefix = _of_session(scope, session)
    if next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None) is not None:
        txn.delete_range(prefix, keys.after(prefix))


def is_held_row(key: bytes, value: bytes) -> bool:
    """Return True if a proven row is a readable quarantine row."""
    size = len(_rows(0)) + _NUMBERS
    return len(key) == size and isinstance(_opened(key, value).message, dict)
