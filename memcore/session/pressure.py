"""How full a session is, and whether that makes a compaction due."""

from __future__ import annotations

from typing import Final

from memcore._fast import Ledger
from memcore.compaction import CompactionPolicy, Pressure
from memcore.log import SessionLog
from memcore.model import ItemKind
from memcore.session.picking import Frame, Picking
from memcore.session.reading import Reading, decoded, head_of
from memcore.store.base import ReadTxn

__all__ = ["pressure_of"]

_COUNTED_MAX: Final = 64
"""Up to so many items before a position are counted in place of those behind it."""


def pressure_of(
    log: SessionLog,
    txn: ReadTxn,
    by: tuple[Picking, Reading],
    policy: CompactionPolicy,
    now_ms: int,
) -> Pressure:
    """All of it from sums that are kept: O(1), but for counting turns and events since the view."""
    picking, reading = by
    head = head_of(log)
    frame = picking.frame(log, txn, log.current_view(txn))
    first = frame.demand.first
    if first < frame.recent.offset:
        frame = _with_first(log, txn, frame)
    ledger, offset = frame.recent.ledger, frame.recent.offset
    start, end = min(first - offset, len(ledger)), len(ledger)
    events = _count_from(ledger, ItemKind.EVENT, start, of=end - ledger.shown_count)
    turns_left = None
    if policy.max_turns is not None:
        turns_left = policy.max_turns - log.full(txn, head).ledger.turns
    last = ledger.last_shown
    found = Pressure(
        items=end - start - events,
        tokens=frame.demand.fixed_tokens + frame.seen.sum_between(start, end),
        turns=_count_from(ledger, ItemKind.USER, start, of=ledger.turns),
        idle_seconds=max(now_ms - head.updated_ms, 0) / 1000,
        event=_event_of(log, txn, reading, frame),
        waiting=last < 0 or ledger.kind_at(last) == ItemKind.RESULT,
        turns_left=turns_left,
    )
    due = policy.due(found)
    return found if due is None else found._replace(stage=due.name)


def _count_from(ledger: Ledger, kind: ItemKind, start: int, *, of: int) -> int:
    """How many items of a kind there are from a position on, ``of`` so many in all."""
    if not of:
        return 0
    if start <= _COUNTED_MAX:
        return of - sum(ledger.kind_at(at) == kind for at in range(start))
    return ledger.count_of(1 << kind, start)


def _with_first(log: SessionLog, txn: ReadTxn, frame: Frame) -> Frame:
    return frame.with_recent(log, log.full(txn, head_of(log)))


def _event_of(log: SessionLog, txn: ReadTxn, reading: Reading, frame: Frame) -> str | None:
    """The type of the event that the history ends with."""
    ledger, end = frame.recent.ledger, log.history.count
    if not end or ledger.kind_at(len(ledger) - 1) != ItemKind.EVENT:
        return None
    for item in decoded(reading.collect(log, txn, end - 1, end), skip_corrupt=True):
        found = item.message.get("type")
        return found if isinstance(found, str) else None
    return None
