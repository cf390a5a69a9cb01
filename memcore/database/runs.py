"""The runs of items that an export holds of a session, and its checkpoints, which refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from memcore.database.exchange import checkpoint_fields
from memcore.log import Head, History
from memcore.log.saved import Saved, read_saved, saved_numbers
from memcore.store.base import ReadTxn
from memcore.views import view_chain

__all__ = ["Run", "Runs"]

Run: TypeAlias = tuple[int, int, int, bool]
"""``(owner session, first seq, last seq, whether they are live)``"""


@dataclass(slots=True)
class Runs:
    """What is exported of a session."""

    items: list[Run]
    """In the order of their seqs."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Those of which every item is exported, oldest first."""
    before: dict[int, int] = field(default_factory=dict)
    """The seq before an undone item in a checkpoint's history, where it is not the one below."""

    @classmethod
    def of(
        cls,
        txn: ReadTxn,
        place: tuple[int, int],
        head: Head,
        live: History,
        views: list[tuple[int, int]],
        *,
        undone: bool,
    ) -> Runs:
        """``views`` are those that are exported, as ``(owner, number)``, oldest first.

        Without ``undone`` the checkpoints that have left the live history stay behind.

        Raises:
            CorruptValueError: a checkpoint is damaged.
        """
        scope, session = place
        runs = [(*segment, True) for segment in live.segments]
        found = cls(runs)
        longest, own = live, head.parent_seq + 1
        for saved, history in _saved(txn, scope, session):
            shared = live.shared_with(history)
            if shared < history.count and not undone:
                continue
            longest = max(longest, history, key=lambda each: each.position_from(own))
            found._take(txn, scope, saved, history, views)
        if undone:
            runs += _shared_undone(head, live, longest)
            runs += _own_undone(head, live, session)
            runs.sort(key=lambda run: run[1])
        return found

    def _take(
        self,
        txn: ReadTxn,
        scope: int,
        saved: Saved,
        history: History,
        views: list[tuple[int, int]],
    ) -> None:
        last = 0
        joined: list[tuple[int, int]] = []
        for _, lo, hi in history.segments:
            if joined and lo == last + 1:
                joined[-1] = joined[-1][0], hi
            else:
                if lo != last + 1:
                    self.before[lo] = last
                joined.append((lo, hi))
            last = hi
        view = 0
        for stored in view_chain(txn, scope, *saved.view):
            if (stored.owner, stored.view.number) in views:
                view = views.index((stored.owner, stored.view.number)) + 1
                break
        self.checkpoints.append(checkpoint_fields(saved.checkpoint, joined, view))


def _saved(txn: ReadTxn, scope: int, session: int) -> Iterator[tuple[Saved, History]]:
    for number in list(saved_numbers(txn, scope, session)):
        saved = read_saved(txn, scope, session, number)
        if saved is not None:
            yield saved, saved.history(txn, scope)


def _own_undone(head: Head, live: History, session: int) -> Iterator[Run]:
    """The session's own items between and behind the live ones."""
    following = head.parent_seq + 1
    for owner, lo, hi in live.segments:
        if owner == session:
            if following < lo:
                yield session, following, lo - 1, False
            following = hi + 1
    if following < head.next_seq:
        yield session, following, head.next_seq - 1, False


def _shared_undone(head: Head, live: History, longest: History) -> Iterator[Run]:
    """Items of the sessions that it was forked from that only a checkpoint refers to."""
    stop = longest.position_from(head.parent_seq + 1)
    for _, owner, lo, hi in longest.spans(longest.shared_with(live), stop):
        yield owner, lo, hi, False
