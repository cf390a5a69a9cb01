"""Choosing what a context of a session shows: on the ledger first, then the rows it needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from memcore._fast import classify
from memcore.context import (
    UNLIMITED,
    Choice,
    Demand,
    Material,
    Picked,
    choose,
    choose_whole,
    fixed_cost,
    is_regular,
    open_from,
)
from memcore.formats import Entry
from memcore.log import AnyLedger, SessionLog
from memcore.log.history import Recent
from memcore.model import Item, ItemKind, Mask, View
from memcore.session.reading import Reading, decoded, head_of
from memcore.store.base import ReadTxn
from memcore.views import StoredView

__all__ = ["Ask", "Frame", "Picking", "seen_item"]

PINS_LOOK: Final = 64
"""Leading positions in which pins are looked for when only the end of a history is loaded."""
Pick = Callable[[], Picked]
"""What a read chose and collected; the call decodes it."""


class Ask(NamedTuple):
    """What a context is asked for."""

    budget: int = UNLIMITED
    at_least: int = 0
    """The smallest cut."""
    view: View | int | None = None
    """The view to show it under; None: the newest that applies."""


WHOLE: Final = Ask()


class Frame(NamedTuple):
    """What a context of the current history shows whatever its cut, and what is asked of it."""

    recent: Recent
    """The end of the history as it is stored."""
    seen: AnyLedger
    """The same as it is shown."""
    start: Recent
    pins: int
    kept: list[int]
    """Positions that the view keeps beside its summary."""
    masks: dict[int, Mask]
    demand: Demand

    def with_recent(self, log: SessionLog, recent: Recent) -> Frame:
        """The same with more of the history."""
        seen = log.seen_through(recent.ledger, recent.offset, self.masks)
        return self._replace(recent=recent, seen=seen)


class Picking:
    """The choice of contexts of one session; all of it under the log's lock."""

    __slots__ = ("_reading",)

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def frame(
        self, log: SessionLog, txn: ReadTxn, stored: StoredView | None, ask: Ask = WHOLE
    ) -> Frame:
        """What is shown under a view whatever the cut, and what is asked of the cut."""
        head, policy = head_of(log), log.policy
        view = None if stored is None else stored.view
        masks = log.masks(txn, stored)
        recent = log.recent(txn, head)
        start = recent if not recent.offset else Recent(0, log.load(txn, stop=PINS_LOOK), 0, 0)
        pins = policy.pin_count(start.ledger)
        kept = [] if view is None else self._kept(log, view, pins)
        if recent.offset and (pins == PINS_LOOK or (kept and kept[0] < recent.offset)):
            recent = start = log.full(txn, head)
            pins = policy.pin_count(start.ledger)
        summary = None if view is None else view.summary
        seen = log.seen_through(recent.ledger, recent.offset, masks)
        pin_tokens = start.ledger.sum_between(0, pins)
        for at in kept:
            pin_tokens += seen.sum_between(at - recent.offset, at - recent.offset + 1)
        demand = Demand(
            ask.budget,
            fixed_cost(policy, log.counter, pin_tokens=pin_tokens, summary=summary),
            first=pins if view is None else max(pins, view.covered),
            summary=summary,
            uncut=view is None or view.covered <= pins,
            at_least=ask.at_least,
        )
        return Frame(recent, seen, start, pins, kept, masks, demand)

    def tokens_from(self, log: SessionLog, txn: ReadTxn, position: int) -> int:
        """Tokens of the live items from a position on."""
        recent = log.covering(txn, head_of(log), position)
        return recent.ledger.sum_between(position - recent.offset, len(recent.ledger))

    def shown(self, log: SessionLog, txn: ReadTxn) -> tuple[int, int]:
        """``(tokens, cut seq)`` of the context without a budget, before repairs."""
        head, history = head_of(log), log.history
        stored = log.current_view(txn)
        frame = self.frame(log, txn, stored)
        first = frame.demand.first
        end = first >= history.count
        cut_seq = head.next_seq if end else history.seq_at(first)
        if stored is None:
            return head.tokens, cut_seq
        if first < frame.recent.offset:
            frame = frame.with_recent(log, log.full(txn, head))
        offset = frame.recent.offset
        tokens = frame.seen.sum_between(first - offset, len(frame.seen))
        return frame.demand.fixed_tokens + tokens, cut_seq

    def last_before(self, log: SessionLog, txn: ReadTxn, tokens: int) -> int | None:
        """The last live item before the newest ones that have so many tokens; None if none have."""
        if tokens <= 0:
            return None
        recent = log.recent(txn, head_of(log))
        end = len(recent.ledger)
        # The sums from a place to the end fall as the place moves on.
        at = bisect_right(range(end), -tokens, key=lambda at: -recent.ledger.sum_between(at, end))
        at -= 1  # the last place from which on there are so many or more
        if at < 0 or recent.offset + at == 0 or recent.ledger.sum_between(at, end) != tokens:
            return None
        return log.history.seq_at(recent.offset + at - 1)

    def pick(self, log: SessionLog, txn: ReadTxn, ask: Ask) -> Pick:
        """Choose the cut and collect the rows; decoding is left to the returned function."""
        head, policy, history = head_of(log), log.policy, log.history
        stored = log.current_view(txn) if ask.view is None else log.chosen_view(txn, ask.view)
        budget = ask.budget
        frame = self.frame(log, txn, stored, ask)
        pins, masks, demand = frame.pins, frame.masks, frame.demand
        summary = demand.summary
        if demand.first < frame.recent.offset and (
            frame.seen.cost(0) <= budget - demand.fixed_tokens
        ):
            frame = frame.with_recent(log, log.full(txn, head))  # more than the end may fit
        choice, open_calls = self._choose(log, txn, frame)
        if demand.first < frame.recent.offset and (
            choice.last or choice.cut == frame.recent.offset
        ):
            # What costs nothing, orphans and events, may come before the end that is loaded.
            frame = frame.with_recent(log, log.full(txn, head))
            choice, open_calls = self._choose(log, txn, frame)
        kept = [at for at in frame.kept if at < choice.cut]
        pinned_rows = self._reading.collect(log, txn, 0, pins, by=frame.start)
        kept_rows = [row for at in kept for row in self._reading.collect(log, txn, at, at + 1)]
        suffix_rows = self._reading.collect(log, txn, choice.cut, history.count)
        regular = is_regular(frame.recent.ledger, policy, choice.cut - frame.recent.offset)

        def material() -> Material:
            before = list(decoded(pinned_rows))
            beside = [seen_item(item, masks) for item in decoded(kept_rows)]
            stored_after = list(decoded(suffix_rows))
            after = [seen_item(item, masks) for item in stored_after]
            altered = any(map(_is_altered, stored_after, after))
            if regular and not beside and not altered:
                shown = [item for item in after if item is not None]
                plain = [item.message for item in shown]
                if policy.takes_ids(plain):
                    return Material(
                        pins=[_entry(item) for item in before],
                        plain=plain,
                        tokens=[item.tokens for item in (*before, *shown)],
                        summary=summary,
                    )
            kept_items = [item for item in beside if item is not None]
            suffix = [item for item in after if item is not None]
            return Material(
                pins=[_entry(item) for item in before],
                kept=[_entry(item) for item in kept_items],
                suffix=[_entry(item) for item in suffix],
                tokens=[item.tokens for item in (*before, *kept_items, *suffix)],
                summary=summary,
                altered=altered,
            )

        end = choice.cut >= history.count
        cut_seq = head.next_seq if end else history.seq_at(choice.cut)
        omitted = choice.cut - pins - len(kept)
        is_repaired = stored is not None and stored.view.repair is not None
        rules = policy.mended if is_repaired else policy
        rest = (choice, rules, log.counter, cut_seq, omitted, open_calls, head.epoch, budget)
        return lambda: Picked(material(), *rest)

    def _choose(self, log: SessionLog, txn: ReadTxn, frame: Frame) -> tuple[Choice, int]:
        """The cut, and how many open calls lie behind it.

        A result may come for a call that the view covers (it was abandoned, or folded by a
        fallback). Then the items from the last safe cut before the covered end on are shown again
        behind the summary; if they do not fit, the result is left out as an orphan.
        """
        demand, ledger, offset = frame.demand, frame.seen, frame.recent.offset
        first, least = max(demand.first - offset, 0), max(demand.at_least - offset, 0)
        inside = replace(demand, first=first, at_least=least, uncut=demand.uncut and not offset)
        choice: Choice | None = None
        if inside.uncut or ledger.is_safe(first) or first >= len(ledger):
            choice = choose(ledger, log.policy, log.counter, inside)
        else:
            earlier = ledger.cut_at_most(first)
            if earlier + offset >= frame.pins and least <= earlier:
                choice = choose_whole(
                    ledger, log.policy, log.counter, replace(inside, first=earlier)
                )
        if choice is None:
            offset = demand.first
            ledger = log.seen_through(log.load(txn, start=offset), offset, frame.masks)
            least = max(demand.at_least - offset, 0)
            choice = choose(
                ledger, log.policy, log.counter, replace(demand, first=0, at_least=least)
            )
        return replace(choice, cut=choice.cut + offset), open_from(ledger, choice)

    def _kept(self, log: SessionLog, view: View, pins: int) -> list[int]:
        """Positions that the view keeps beside its summary."""
        found = (log.history.position_of(seq) for seq in view.pinned)
        return sorted(at for at in found if at is not None and at >= pins)


def seen_item(item: Item, masks: dict[int, Mask]) -> Item | None:
    """An item as its mask shows it; None for one that is hidden."""
    mask = masks.get(item.seq)
    if mask is None:
        return item
    return None if mask.message is None else item._replace(message=mask.message, tokens=mask.tokens)


def _is_altered(item: Item, seen: Item | None) -> bool:
    """Whether a mask shows an item as something that other pairs, or none, hang on."""
    if seen is item or item.kind == ItemKind.EVENT:
        return False
    return seen is None or classify(seen.message)[:3] != classify(item.message)[:3]


def _entry(item: Item) -> Entry:
    return Entry(item.seq, item.message, event=item.kind == ItemKind.EVENT)
