"""How much is in a database: what ``stats`` counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memcore import keys
from memcore.database.check import sessions_of
from memcore.database.scope import Scope
from memcore.database.shared import count_shared
from memcore.keys import Kind
from memcore.session import Backing
from memcore.store.base import ReadTxn
from memcore.usage import usage_key

__all__ = ["count_everything"]


def count_everything(backing: Backing, places: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Sizes and counters of the file, of this process's handle on it, and of what is stored.

    Args:
        backing: the open database.
        places: the ``(app, user)`` of its scopes.
    """
    found = dict(backing.store.stats())
    scopes = sessions = items = tokens = 0
    for app, user in places:
        scopes += 1
        for entry in Scope(backing, app, user).sessions():
            sessions += 1
            items += entry.items
            tokens += entry.tokens
    found.update(scopes=scopes, sessions=sessions, items=items, tokens=tokens)
    found["calibrated_sessions"] = backing.store.read(_calibrated)
    found["threads"] = backing.store.read(_threads)
    found["shared_fields"] = backing.store.read(count_shared)
    return found


def _calibrated(txn: ReadTxn) -> int:
    """How many sessions have a usage row."""
    return sum(txn.get(usage_key(*place)) is not None for place in sessions_of(txn))


def _threads(txn: ReadTxn) -> int:
    """How many threads of graphs there are."""
    start = bytes((Kind.THREAD_NAME,))
    return sum(1 for _ in txn.scan(start, keys.after(start)))
