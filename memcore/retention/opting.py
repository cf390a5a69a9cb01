"""Opting out of memory: nothing long-term is written or searched for who does not want it."""

from __future__ import annotations

from typing import Final

from memcore import keys, names
from memcore.codec import seal_value
from memcore.held import OPTED_OUT
from memcore.keys import Care
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = ["MEMORY_NAMESPACES", "is_opted_out", "opt_in", "opt_out", "opted_out"]

MEMORY_NAMESPACES: Final = ("adk.memory",)
"""Key/value namespaces that hold memories."""


def _key(scope: int) -> bytes:
    return keys.care_rows(scope, Care.HOLD) + OPTED_OUT


def is_opted_out(txn: ReadTxn, scope: int) -> bool:
    """Whether the user of the scope wants no memory."""
    return txn.get(_key(scope)) is not None


def opted_out(backing: Backing, app: str, user: str) -> bool:
    """As ``is_opted_out``, by the names."""

    def look(txn: ReadTxn) -> bool:
        scope = names.scope_of(txn, app, user)
        return scope is not None and is_opted_out(txn, scope)

    return backing.store.read(look)


def opt_out(backing: Backing, app: str, user: str) -> bool:
    """Remember nothing of the user from now on; whether that is new."""

    def closure(txn: Txn) -> bool:
        scope = names.ensure_scope(txn, app, user)
        if is_opted_out(txn, scope):
            return False
        txn.put(_key(scope), seal_value(_key(scope), b""))
        return True

    return backing.store.transact(closure)


def opt_in(backing: Backing, app: str, user: str) -> bool:
    """The user wants memory again; whether they had opted out."""

    def closure(txn: Txn) -> bool:
        scope = names.scope_of(txn, app, user)
        return scope is not None and txn.delete(_key(scope))

    return backing.store.transact(closure, makes_room=True)
