"""Which scopes were erased: their numbers are dead, and no handle that remembers one may use it.

A tombstone holds no name. It stays for good: whoever still knows the number of an erased scope, in
this process or another, finds out by one look inside his own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcore import keys
from memcore.codec import seal_value
from memcore.errors import NotFoundError
from memcore.keys import Care, Kind
from memcore.store.base import ReadTxn, Txn

__all__ = ["TOMBSTONE", "buried", "bury", "is_erased", "need_alive", "tombstone_of"]

TOMBSTONE = b"\x01"
"""What follows the prefix of erasures in a tombstone's key."""
_TOMBSTONES = keys.scoped(Kind.CARE, 0, bytes((Care.ERASURE,))) + TOMBSTONE


def tombstone_of(scope: int) -> bytes:
    """``12 | 0 u64 | 02 | 01 | scope u64``: the key of a scope's tombstone."""
    return _TOMBSTONES + keys.u64(scope)


def is_erased(txn: ReadTxn, scope: int) -> bool:
    """Whether the scope's user was erased."""
    return txn.get(_TOMBSTONES + keys.u64(scope)) is not None


def need_alive(txn: ReadTxn, scope: int) -> None:
    """Refuse to go on with a scope whose user was erased; scope 0 is nobody's.

    Raises:
        NotFoundError: it was.
    """
    if is_erased(txn, scope):
        msg = f"the user of scope {scope} was erased: nothing is done under the old number"
        raise NotFoundError(msg)


def bury(txn: Txn, scope: int) -> None:
    """Say that the scope is dead."""
    key = tombstone_of(scope)
    txn.put(key, seal_value(key, b""))


def buried(txn: ReadTxn) -> Iterator[int]:
    """The numbers of all erased scopes."""
    for key, _ in txn.scan(_TOMBSTONES, keys.after(_TOMBSTONES)):
        yield keys.number_of(key)
