"""The tree of sessions: who was forked from whom, and where each has checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memcore import keys, names
from memcore.errors import CorruptValueError
from memcore.log import Head, History
from memcore.log.head import head_key
from memcore.log.saved import read_saved, saved_numbers
from memcore.model import Checkpoint
from memcore.store.base import ReadTxn

__all__ = ["Branch", "branches_of"]


@dataclass(frozen=True, slots=True)
class Branch:
    """One session in the tree that forks make, with its checkpoints."""

    session_id: str | None
    """None: it was deleted, and stays for its forks."""
    app: str
    user: str
    number: int
    """Tells the sessions of a database apart, also those without a name."""
    parent: int
    """Number of the session that it was forked from, 0 for none."""
    fork_seq: int
    """The last item that it shares with that one."""
    items: int
    tokens: int
    revision: int
    checkpoints: tuple[tuple[Checkpoint, bool], ...] = ()
    """Oldest first, each with whether all its items are live."""
    damage: str | None = None
    """Why the rest cannot be told."""


def branches_of(txn: ReadTxn, scope: int, app: str, user: str) -> Iterator[Branch]:
    """The sessions of a scope by number, parents before their forks."""
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
    for each in saved_numbers(txn, scope, number):
        saved = read_saved(txn, scope, number, each)
        if saved is None:
            continue
        live = live or History(head.all_segments(txn, scope))
        history = saved.history(txn, scope)
        yield saved.checkpoint, live.shared_with(history) == history.count
