"""Statistics of a database; branches of a session and differences between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from memcore import memory
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.database.scope import Scope
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.log import Head, History
from memcore.log.checkpoint import checkpoint_numbers, read_checkpoint
from memcore.log.read import stored_items
from memcore.model import Checkpoint, Item
from memcore.options import shown
from memcore.records import record
from memcore.rows import index, names
from memcore.rows.head import head_key
from memcore.rows.usage import usage_key
from memcore.session import Engine, Session
from memcore.session.checkpoints import Position
from memcore.session.session import store_of
from memcore.state import count_shared
from memcore.store.interface import ReadTxn

__all__ = [
    "Branch",
    "Difference",
    "branches_of",
    "compare",
    "count_everything",
]


# --- Sizes of a database, counted by ``stats`` ----------------------------------------------------


def count_everything(engine: Engine, places: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Count sizes of the file, of this process's handle on it, and of the stored data.

    Args:
        engine: the open database.
        places: the ``(app, user)`` of its scopes.
    """
    found = dict(engine.store.stats())
    scopes = sessions = items = tokens = 0
    for app, user in places:
        scopes += 1
        for entry in Scope(engine, app, user).sessions():
            sessions += 1
            items += entry.items
            tokens += entry.tokens
    found.update(scopes=scopes, sessions=sessions, items=items, tokens=tokens)
    found["calibrated_sessions"] = engine.store.read(_calibrated)
    found["threads"] = engine.store.read(_threads)
    found["shared_fields"] = engine.store.read(count_shared)
    found["memories"] = engine.store.read(_memories)
    return found


def _calibrated(txn: ReadTxn) -> int:
    """Count the sessions with a usage row."""
    return sum(txn.get(usage_key(*place)) is not None for place in names.sessions_with_rows(txn))


def _memories(txn: ReadTxn) -> int:
    """Count the long-term memories, without forgotten ones."""
    counts = [
        memory.count_entries(txn, scope) for scope in names.scopes_with_rows(txn, Kind.MEMORY)
    ]
    return sum(count for each in counts for status, count in each.items() if status != "forgotten")


def _threads(txn: ReadTxn) -> int:
    """Count the graph threads."""
    start = bytes((Kind.THREAD_NAME,))
    return sum(1 for _ in txn.scan(start, keys.after(start)))


# --- Tree of sessions: parents, forks and their checkpoints ---------------------------------------


@record(frozen=True, slots=True)
class Branch:
    """One session in the tree of forks, with its checkpoints."""

    session_id: str | None
    """None: it was deleted, and is kept for its forks."""
    app: str
    user: str
    number: int
    """Identifies the session within the database, even without a name."""
    parent: int
    """Number of the session that it was forked from, 0 for none."""
    fork_seq: int
    """Last item that it shares with its parent."""
    items: int
    tokens: int
    revision: int
    checkpoints: tuple[tuple[Checkpoint, bool], ...] = ()
    """Oldest first; True if all items of the checkpoint are live."""
    damage: str | None = None
    """Damage that hides the remaining fields."""


def branches_of(txn: ReadTxn, scope: int, app: str, user: str) -> Iterator[Branch]:
    """Yield the sessions of a scope by number, parents before their forks."""
    named = {number: name for name, number in names.sessions(txn, scope)}
    start, stop = keys.session_prefix(scope, 0), keys.session_prefix(scope, 2**64 - 1)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        number = keys.split_session_prefix(row[0])[1]
        found = _branch(txn, scope, number, (named.get(number), app, user))
        if found.session_id is not None or found.items or found.parent:
            yield found
        start = keys.after(keys.session_prefix(scope, number))


def _branch(txn: ReadTxn, scope: int, number: int, who: tuple[str | None, str, str]) -> Branch:
    key = head_key(scope, number)
    value = txn.get(key)
    try:
        if value is None:
            return Branch(*who, number, 0, 0, 0, 0, 0, damage="its head is missing")
        head = Head.unpack(key, value)
    except CorruptValueError as exc:
        return Branch(*who, number, 0, 0, 0, 0, 0, damage=str(exc))
    saved: list[tuple[Checkpoint, bool]] = []
    damage = None
    try:
        saved = list(_saved(txn, scope, number, head)) if who[0] is not None else []
    except CorruptValueError as exc:
        damage = str(exc)
    return Branch(
        *who,
        number,
        head.parent_session,
        head.parent_seq,
        head.count,
        head.tokens,
        head.revision,
        tuple(saved),
        damage,
    )


def _saved(txn: ReadTxn, scope: int, number: int, head: Head) -> Iterator[tuple[Checkpoint, bool]]:
    live: History | None = None
    for each in checkpoint_numbers(txn, scope, number):
        saved = read_checkpoint(txn, scope, number, each)
        if saved is None:
            continue
        live = live or History(head.all_segments(txn, scope))
        history = saved.history(txn, scope)
        yield saved.checkpoint, live.shared_with(history) == history.count


# --- Comparison of two histories ------------------------------------------------------------------

Side = tuple[int, History]
"""``(scope, history)``"""


@record(frozen=True, slots=True)
class Difference:
    """Common prefix of two histories, and the rest of each."""

    shared: int
    """Items in the common prefix: the same rows."""
    alike: int
    """Items after the prefix with equal content, stored separately for each."""
    only_a: tuple[Item, ...]
    """Rest of the first history; tokens are those of the counter that counted first."""
    only_b: tuple[Item, ...]


def _is_stored_here(engine: Engine, of: Session) -> bool:
    """Return True if a session is of the store of this handle."""
    here, there = engine.store, store_of(of)
    if here.is_server or there.is_server:
        return here.is_server and there.is_server and here.path == there.path
    same: bool = here.environment() is there.environment()
    return same


def compare(
    engine: Engine, a: Session, b: Session, *, at: Position | None, other_at: Position | None
) -> Difference:
    """Compare two positions in one snapshot; errors as for ``Database.compare``."""
    for name, each in (("a", a), ("b", b)):
        if not (isinstance(each, Session) and _is_stored_here(engine, each)):
            msg = f"{name}: expected a session of this database, got {shown(each)}"
            raise InvalidOptionError(msg)

    def run(txn: ReadTxn) -> Difference:
        one, other = a.history_at(txn, at), b.history_at(txn, other_at)
        shared = _shared(txn, one, other)
        mine, theirs = _items(txn, one, shared), _items(txn, other, shared)
        alike = 0
        for item, its in zip(mine, theirs, strict=False):
            if (item.kind, item.message) != (its.kind, its.message):
                break
            alike += 1
        return Difference(shared, alike, tuple(mine[alike:]), tuple(theirs[alike:]))

    return store_of(a).read(run)


def _shared(txn: ReadTxn, one: Side, other: Side) -> int:
    """Count the items of the common prefix, by a binary search over their prefix hashes."""
    low, high = 0, min(one[1].count, other[1].count)
    while low < high:
        middle = (low + high + 1) // 2
        here, there = (
            history.chain_at(txn, scope, history.seq_at(middle - 1))
            for scope, history in (one, other)
        )
        if here == there:
            low = middle
        else:
            high = middle - 1
    return low


def _items(txn: ReadTxn, side: Side, start: int) -> list[Item]:
    scope, history = side
    tokens = [
        index.RECORD.unpack_from(record)[0]
        for _, session, lo, hi in history.spans(start, history.count)
        for record in index.every_record(txn, scope, session, lo, hi)
    ]
    items = [item for item, _ in stored_items(txn, scope, history, start, history.count)]
    return [item._replace(tokens=count) for item, count in zip(items, tokens, strict=True)]
