"""Opting out of memory: nothing long-term is written or searched for who does not want it."""

from __future__ import annotations

from typing import Final

from memcore import names
from memcore.audit import record_event
from memcore.codec import seal_value
from memcore.held import is_opted_out, memory_namespaces, need_free, opted_out_key
from memcore.retention.owner import scopes_of
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = [
    "MEMORY_NAMESPACES",
    "is_opted_out",
    "memories",
    "opt_in",
    "opt_out",
    "opted_out",
]

MEMORY_NAMESPACES: Final = ("adk.memory", "langgraph.store")
"""Key/value namespaces that hold memories, besides those that are marked."""
_OF_FILES: Final = "deepagents:"
"""How the names of those begin that hold an agent's files."""


def opted_out(backing: Backing, app: str, user: str) -> bool:
    """As ``is_opted_out``, by the names."""

    def look(txn: ReadTxn) -> bool:
        scope = names.scope_of(txn, app, user)
        return scope is not None and is_opted_out(txn, scope)

    return backing.store.read(look)


def opt_out(backing: Backing, user: str, app: str | None, *, remove: bool = False) -> list[str]:
    """Remember nothing of the user from now on, in one commit; the applications that it covers.

    Args:
        backing: the database.
        user: whose.
        app: only in this application; None: in each one that there is, as ``erase`` goes about it.
        remove: what was remembered is to be removed, which is not done here.

    Raises:
        HeldError: what was remembered is to be removed, and a hold covers it.
    """

    def closure(txn: Txn) -> list[str]:
        places = scopes_of(txn, user, app)
        for scope, _ in places if remove else ():
            need_free(txn, scope, 0, what=f"what is remembered of user {user[:40]!r}")
        if not places:  # what would be remembered from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), own)]
        for scope, _ in places:
            if is_opted_out(txn, scope):
                continue
            for namespace in MEMORY_NAMESPACES:  # who is about to make it finds the row there
                names.ensure_namespace(txn, scope, namespace)
            record_event(txn, scope, "opt out", {})
            txn.put(opted_out_key(scope), seal_value(opted_out_key(scope), b""))
        return [own for _, own in places]

    return backing.store.transact(closure)


def memories(backing: Backing, app: str, user: str) -> list[str]:
    """The key/value namespaces in which something of the user is remembered."""

    def look(txn: ReadTxn) -> list[str]:
        scope = names.scope_of(txn, app, user)
        if scope is None:
            return []
        marked = memory_namespaces(txn, scope)
        return [
            name
            for name, number in names.namespaces(txn, scope)
            if number in marked or name in MEMORY_NAMESPACES or name.startswith(_OF_FILES)
        ]

    return backing.store.read(look)


def opt_in(backing: Backing, user: str, app: str | None) -> list[str]:
    """The user wants memory again; the applications in which they had opted out."""

    def closure(txn: Txn) -> list[str]:
        found = []
        for scope, own in scopes_of(txn, user, app):
            if txn.delete(opted_out_key(scope)):
                record_event(txn, scope, "opt in", {})
                found.append(own)
        return found

    return backing.store.transact(closure, makes_room=True)
