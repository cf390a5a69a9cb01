"""The states that sessions share: their check, and what a salvage makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from memcore import keys
from memcore.codec import HEADER_BYTES
from memcore.database.sieve import Sieve
from memcore.errors import CorruptValueError, MemcoreError
from memcore.keys import Kind
from memcore.state import check_state, header_key, mend_state
from memcore.store import LmdbStore
from memcore.store.base import ReadTxn

__all__ = [
    "check_shared",
    "count_shared",
    "label_of",
    "lost_shared",
    "mend_shared",
    "scopes_with_state",
    "shared_rows",
]


def check_shared(txn: ReadTxn, scope: int) -> list[str]:
    """What is wrong with the state that a scope holds, in words."""
    try:
        return [f"scope {scope}: {what}" for what in check_state(txn, scope, 0, pinned=())]
    except MemcoreError as exc:
        return [f"the state of scope {scope} cannot be checked: {exc}"]


def scopes_with_state(txn: ReadTxn) -> list[int]:
    """The scopes that have rows of a state."""
    found: list[int] = []
    start, stop = bytes((Kind.STATE,)), bytes((Kind.STATE + 1,))
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return found
        scope = keys.split_scoped(row[0])[0]
        found.append(scope)
        start = keys.after(keys.state_rows(scope, 0))


def count_shared(txn: ReadTxn) -> int:
    """How many fields the states of all users and applications have."""
    start, stop = bytes((Kind.STATE,)), bytes((Kind.STATE + 1,))
    rows = sum(len(value) != HEADER_BYTES for _, value in txn.scan(start, stop))
    headers = (header_key(scope, 0) for scope in scopes_with_state(txn))
    return rows - sum(txn.get(key) is not None for key in headers)


def label_of(app: str, user: str) -> str:
    """Whose state it is, in words."""
    return f"the state of user {user!r} in app {app!r}" if user else f"the state of app {app!r}"


# --- salvage --------------------------------------------------------------------------------------


def shared_rows(sieve: Sieve) -> Iterator[tuple[bytes, bytes]]:
    """The rows that are taken over: of each field the newest value that was found.

    Older ones were removed when it was written; the deletion of a field counts as its value.
    """
    newest: dict[bytes, bytes] = {}
    for key in sieve.chosen:
        if key[0] != Kind.STATE:
            continue
        if key == header_key(*keys.state_place(key)):
            yield key, sieve.value(key)
        else:
            versions = key[:-8]
            newest[versions] = max(key, newest.get(versions, key))
    for key in newest.values():
        yield key, sieve.value(key)


def mend_shared(store: LmdbStore) -> None:
    """Write the headers that fit the rows."""
    for scope in store.read(scopes_with_state):
        store.transact(lambda txn, scope=scope: mend_state(txn, scope, 0, pinned=()))  # type: ignore[misc]


def lost_shared(sieve: Sieve) -> Iterator[str]:
    """Fields whose row is there, but damaged."""
    for key in sieve.wreck.damaged:
        if key[0] == Kind.STATE and key not in sieve.chosen:
            with suppress(CorruptValueError):
                scope = keys.state_place(key)[0]
                field = keys.split_state_row(key)[0]
                where = label_of(*sieve.scopes.get(scope, ("?", f"of scope {scope}")))
                yield f"field {field!r} of {where}, as far as it reads"
