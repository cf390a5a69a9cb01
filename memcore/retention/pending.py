"""An erasure under way: a row that says which scopes are to go, how far it is, and holds no name.

``12 | 0 u64 | 02 | 02 | id 16``: one row an erasure, from its first transaction until the bytes
are gone. What a killed process leaves is gone on with by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from memcore import keys
from memcore.codec import decode_json, decoding, encode_json, open_value, seal_value
from memcore.keys import Care, Kind
from memcore.store.base import ReadTxn, Txn

__all__ = [
    "GONE",
    "HIDDEN",
    "REMOVED",
    "SHREDDED",
    "Pending",
    "all_pending",
    "drop_pending",
    "pending_of",
    "put_pending",
]

_ROWS = keys.scoped(Kind.CARE, 0, bytes((Care.ERASURE,))) + b"\x02"

HIDDEN: Final = "hidden"
"""Nobody reaches the scopes any more."""
SHREDDED: Final = "shredded"
"""Their data keys are gone; or there are none."""
REMOVED: Final = "removed"
"""Their rows are gone; bytes of them may be left in free pages."""
GONE: Final = "gone"
"""Their bytes are gone; whoever asks for receipts gets one and drops the row."""
_STAGES: Final = (HIDDEN, SHREDDED, REMOVED, GONE)


@dataclass(slots=True)
class Pending:
    """One erasure that is not finished."""

    id: str
    """32 hex digits."""
    user: str
    """A digest of the user's name under the database's own key: who asks again finds it."""
    app: str | None
    """One of the application's; None: all of them."""
    told_user: str
    """The digests that stand in the receipt: under the key that signs it."""
    told_app: str | None
    scopes: list[int]
    asked_ms: int
    bytes_before: int
    """Of the file, when it was asked."""
    bytes_after: int = 0
    """Of the file, when the bytes were gone."""
    finished_ms: int = 0
    stage: str = HIDDEN
    shredded: bool = False
    """Whether there were data keys to drop."""
    overrode_hold: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    """Rows that are gone, by what they were."""


def _key(id_: str) -> bytes:
    return _ROWS + bytes.fromhex(id_)


def put_pending(txn: Txn, pending: Pending) -> None:
    """Write how far it is."""
    key = _key(pending.id)
    fields = {name: getattr(pending, name) for name in Pending.__slots__ if name != "id"}
    body, flags = encode_json(fields)
    txn.put(key, seal_value(key, body, flags))


def drop_pending(txn: Txn, id_: str) -> bool:
    """It is finished; whether it was not before."""
    return txn.delete(_key(id_))


def pending_of(txn: ReadTxn, id_: str) -> Pending | None:
    """The erasure as the transaction sees it; None: somebody has finished it.

    Raises:
        CorruptValueError: its row is damaged.
    """
    value = txn.get(_key(id_))
    return None if value is None else _unpacked(_key(id_), value)


def all_pending(txn: ReadTxn) -> Iterator[Pending]:
    """Every erasure that is not finished.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for key, value in txn.scan(_ROWS, keys.after(_ROWS)):
        yield _unpacked(key, value)


def _unpacked(key: bytes, value: bytes) -> Pending:
    flags, body = open_value(key, value)
    with decoding(key, "erasure"):
        found: Any = decode_json(body, flags)
        pending = Pending(id=key[len(_ROWS) :].hex(), **found)
        if pending.stage not in _STAGES or not all(type(each) is int for each in pending.scopes):
            raise ValueError
    return pending
