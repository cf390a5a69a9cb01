"""The state of a session as it was at one of its items."""

from __future__ import annotations

from memcore.errors import NotFoundError
from memcore.log import Draft, History
from memcore.state import counter_before, read_header, restore, state_counter
from memcore.store.base import ReadTxn

__all__ = ["StatePoint", "restore_state_at", "state_at", "state_before", "unknown_state"]

StatePoint = tuple[int, int]
"""The session that had the values, and their counter."""


def state_at(txn: ReadTxn, scope: int, session: int, history: History, seq: int) -> StatePoint:
    """The state when the history ended at ``seq`` (0: before its first item).

    That is the one which the next item was appended on, or that of now behind the last item.

    Raises:
        NotFoundError: the item is not in the history, or the state of then is not known.
        CorruptValueError: a row is damaged.
    """
    position = _position(history, seq) if seq else -1
    if position + 1 == history.count:
        return session, state_counter(txn, scope, session)
    return _before(txn, scope, history, position + 1)


def state_before(txn: ReadTxn, scope: int, history: History, seq: int) -> StatePoint:
    """The state that an item of the history was appended on.

    Raises:
        NotFoundError: the item is not in the history, or the state of then is not known.
        CorruptValueError: a row is damaged.
    """
    return _before(txn, scope, history, _position(history, seq))


def _before(txn: ReadTxn, scope: int, history: History, position: int) -> StatePoint:
    owner, seq = history.locate(position)
    counter = counter_before(txn, scope, owner, seq)
    if counter is None and read_header(txn, scope, owner).floor:
        msg = f"the state before item {seq} is not known: it was trimmed, or came without its past"
        raise NotFoundError(msg)
    return owner, counter or 0


def _position(history: History, seq: int) -> int:
    position = history.position_of(seq)
    if position is None:
        msg = f"item {seq} is not in the live history"
        raise NotFoundError(msg)
    return position


def restore_state_at(draft: Draft, seq: int) -> None:
    """Make the values of a live item those of now; nothing is written if they are.

    Raises:
        NotFoundError: they are not known any more.
        CorruptValueError: a row is damaged.
    """
    txn, (scope, session) = draft.txn, draft.log.place
    if not state_counter(txn, scope, session):
        return  # it never had one, nor had what it was forked from
    history = History(draft.head.all_segments(txn, scope))
    try:
        owner, counter = state_at(txn, scope, session, history, seq)
        restore(txn, scope, session, counter, seq=draft.head.next_seq, owner=owner)
    except NotFoundError as exc:
        raise unknown_state(seq, exc) from exc


def unknown_state(seq: int, why: NotFoundError) -> NotFoundError:
    """The error for an item whose state is not known."""
    return NotFoundError(f"at item {seq}, {why}; state=False leaves the state alone")
