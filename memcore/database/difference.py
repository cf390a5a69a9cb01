"""What two histories have in common, and what each has for itself."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.log import History, index
from memcore.log.stored import stored_items
from memcore.model import Item
from memcore.session import Session
from memcore.session.checkpointing import Position
from memcore.session.handle import store_of
from memcore.store.base import ReadTxn

__all__ = ["Difference", "compare"]

Side = tuple[int, History]
"""``(scope, history)``"""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two histories part."""

    shared: int
    """Items that both begin with: the same rows."""
    alike: int
    """Items that follow in both with equal content, stored for each by itself."""
    only_a: tuple[Item, ...]
    """What follows in the first; tokens are those of the counter that counted first."""
    only_b: tuple[Item, ...]


def compare(
    a: Session, b: Session, *, at: Position | None, other_at: Position | None
) -> Difference:
    """Compare two positions on one snapshot; errors as ``Database.compare``."""

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
    """How many items both begin with: the prefix hashes are equal up to there, and no further."""
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
        for record in index.records(txn, scope, session, lo, hi)
    ]
    items = [item for item, _ in stored_items(txn, scope, history, start, history.count)]
    return [item._replace(tokens=count) for item, count in zip(items, tokens, strict=True)]
