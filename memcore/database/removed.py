"""What a damaged file holds of deletions that were cut short: none of it comes back.

A deletion takes the name away, hides the head and leaves a ``REMOVAL`` row until the last row has
left. The number of a session is never given out again, so one such row, however old, says that the
session is gone for good. A blob's slot may have been filled anew: there only a current row counts.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from memcore import keys
from memcore.blobs.rows import SLOT_BYTES
from memcore.codec import HEADER_BYTES
from memcore.errors import MemcoreError
from memcore.keys import Care, Kind, Row
from memcore.log import Head
from memcore.log.head import head_key
from memcore.names import unpack_name
from memcore.store.wreck import Rank, Wreck
from memcore.tombstone import TOMBSTONE

if TYPE_CHECKING:
    from memcore.database.sieve import Place

__all__ = ["forget_removed", "was_hidden"]

Slots = set[tuple[int, bytes]]
_GRAPH_KINDS = (Kind.THREAD, Kind.CHUNK)
_PLACE_BYTES = 17
_BLOB_KINDS = (Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS)


def forget_removed(wreck: Wreck) -> set[Place]:
    """Forget the rows of what was being removed, and of who was erased; the sessions of the first.

    The new file needs no tombstones: it has nothing of an erased user, and no handle knows it.
    """
    _forget_erased(wreck)
    sessions: set[Place] = set()
    slots: Slots = set()
    graphs: set[bytes] = set()
    for row, found in wreck.rows.items():
        if row[0] == Kind.REMOVAL:
            prefix = keys.split_removal_row(row)
            if prefix[0] == Kind.SESSION:
                sessions.add(keys.split_session_prefix(prefix))
            elif prefix[0] in _GRAPH_KINDS:
                graphs.add(prefix)
            elif found[0].rank <= Rank.IN_USE:
                slots.add(keys.split_scoped(prefix))
    if sessions or slots or graphs:
        _add_parents(wreck, sessions)
        for key in [key for key in wreck.rows if _is_of(wreck, key, sessions, slots, graphs)]:
            del wreck.rows[key]
    return sessions


def _forget_erased(wreck: Wreck) -> None:
    """Forget all that belongs to an erased scope: one tombstone, however old, says so."""
    stones = keys.scoped(Kind.CARE, 0, bytes((Care.ERASURE,)))
    numbers = {keys.number_of(key) for key in wreck.rows if key.startswith(stones + TOMBSTONE)}
    if numbers:
        for key in [key for key in wreck.rows if _scope_of(wreck, key) in numbers]:
            del wreck.rows[key]


def _scope_of(wreck: Wreck, key: bytes) -> int | None:
    """The scope that a row is of; None: of none."""
    if key[0] == Kind.SCOPE_NAME:
        return unpack_name(wreck.value(key, wreck.rows[key][0])[HEADER_BYTES:])[0]
    if key[0] == Kind.EXPIRY:
        return keys.split_scoped(keys.split_expiry_row(key)[1])[0]
    return None if key[0] <= Kind.COUNTER else keys.split_scoped(key)[0]


def _is_of(
    wreck: Wreck, key: bytes, sessions: set[Place], slots: Slots, graphs: set[bytes]
) -> bool:
    if key[0] in _GRAPH_KINDS:
        return key[:_PLACE_BYTES] in graphs
    if key[0] == Kind.THREAD_NAME:
        number = wreck.value(key, wreck.rows[key][0])[HEADER_BYTES : HEADER_BYTES + 8]
        return bytes((Kind.THREAD,)) + key[1:9] + number in graphs
    if key[0] == Kind.SESSION:
        scope, session = keys.split_session_prefix(key)
        if keys.row_of(key) == Row.CHILD and (scope, keys.number_of(key)) in sessions:
            return True
        return (scope, session) in sessions
    if key[0] in _BLOB_KINDS:
        scope, rest = keys.split_scoped(key)
        return (scope, rest[:SLOT_BYTES]) in slots
    return False


def _add_parents(wreck: Wreck, sessions: set[Place]) -> None:
    """Add the hidden sessions that were kept for forks that are gone, and for nobody else."""
    forks: dict[Place, set[Place]] = defaultdict(set)
    above: dict[Place, set[Place]] = defaultdict(set)
    for key in wreck.rows:
        if key[0] == Kind.SESSION and keys.row_of(key) == Row.CHILD:
            place = keys.split_session_prefix(key)
            fork = (place[0], keys.number_of(key))
            forks[place].add(fork)
            above[fork].add(place)
    todo = list(sessions)
    while todo:
        for place in above[todo.pop()] - sessions:
            if forks[place] <= sessions and was_hidden(wreck, place):
                sessions.add(place)
                todo.append(place)


def was_hidden(wreck: Wreck, place: Place) -> bool:
    """Whether any version of its head says that a session was deleted: none is ever shown again."""
    key = head_key(*place)
    found = wreck.rows.get(key, ())
    with suppress(MemcoreError):
        return any(Head.unpack(key, wreck.value(key, at)).hidden for at in found)
    return False
