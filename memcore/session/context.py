"""Selection of a context: cut on the ledger first, then the rows it needs; author filters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from memcore._fast import classify, pack_facts
from memcore.context import (
    UNLIMITED,
    Cut,
    CutRequest,
    Parts,
    Selection,
    choose,
    choose_whole,
    fixed_cost,
    is_regular,
    open_from,
)
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.log import AnyLedger, CachedSession
from memcore.log.history import TailLedger, open_call_tokens
from memcore.model import RESULT_TYPES, Item, ItemKind, Mask, View
from memcore.rows.views import StoredView
from memcore.session.read import SessionReader, decoded, head_of, messages_of, tokens_in
from memcore.store.interface import ReadTxn
from memcore.wire import PairPolicy, WireItem
from memcore.wire.message import Binder
from memcore.wire.policy import GLUE_REASONING

__all__ = [
    "SHARES",
    "AuthorContexts",
    "AuthorFilter",
    "ContextRequest",
    "ContextSelector",
    "Window",
    "checked_voices",
    "seen_item",
]


# --- Choosing what a context of a session shows: on the ledger first, then the rows it needs ------

PINS_LOOK: Final = 64
"""Leading positions in which pins are looked for when only the end of a history is loaded."""
Pick = Callable[[], Selection]
"""What a read chose and collected; the call decodes it."""


class ContextRequest(NamedTuple):
    """What a context is asked for."""

    budget: int = UNLIMITED
    at_least: int = 0
    """The smallest cut."""
    view: View | int | None = None
    """The view to show it under; None: the newest that applies."""


WHOLE: Final = ContextRequest()


class Window(NamedTuple):
    """What a context of the current history shows whatever its cut, and what is asked of it."""

    recent: TailLedger
    """The end of the history as it is stored."""
    seen: AnyLedger
    """The same as it is shown."""
    start: TailLedger
    pins: int
    kept: list[int]
    """Positions that the view keeps beside its summary."""
    masks: dict[int, Mask]
    demand: CutRequest

    def with_recent(self, log: CachedSession, recent: TailLedger) -> Window:
        """The same with more of the history."""
        seen = log.seen_through(recent.ledger, recent.offset, self.masks)
        return self._replace(recent=recent, seen=seen)


class ContextSelector:
    """The choice of contexts of one session; all of it under the log's lock."""

    __slots__ = ("_reading",)

    def __init__(self, reading: SessionReader) -> None:
        self._reading = reading

    def frame(
        self,
        log: CachedSession,
        txn: ReadTxn,
        stored: StoredView | None,
        ask: ContextRequest = WHOLE,
    ) -> Window:
        """What is shown under a view whatever the cut, and what is asked of the cut."""
        head, policy = head_of(log), log.policy
        view = None if stored is None else stored.view
        masks = log.masks(txn, stored)
        recent = log.recent(txn, head)
        start = recent if not recent.offset else TailLedger(0, log.load(txn, stop=PINS_LOOK), 0, 0)
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
        demand = CutRequest(
            ask.budget,
            fixed_cost(policy, log.counter, pin_tokens=pin_tokens, summary=summary),
            first=pins if view is None else max(pins, view.covered),
            summary=summary,
            uncut=view is None or view.covered <= pins,
            at_least=ask.at_least,
        )
        return Window(recent, seen, start, pins, kept, masks, demand)

    def tokens_from(self, log: CachedSession, txn: ReadTxn, position: int) -> int:
        """Tokens of the live items from a position on."""
        recent = log.covering(txn, head_of(log), position)
        return recent.ledger.sum_between(position - recent.offset, len(recent.ledger))

    def shown(self, log: CachedSession, txn: ReadTxn) -> tuple[int, int]:
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

    def last_before(self, log: CachedSession, txn: ReadTxn, tokens: int) -> int | None:
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

    def pick(self, log: CachedSession, txn: ReadTxn, ask: ContextRequest) -> Pick:
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

        def material() -> Parts:
            before = list(decoded(pinned_rows))
            if regular and not masks and not kept_rows:
                messages = messages_of(suffix_rows)
                if messages is not None and policy.takes_ids(messages):
                    return Parts(
                        pins=[_entry(item) for item in before],
                        plain=messages,
                        tokens=[item.tokens for item in before] + tokens_in(suffix_rows),
                        summary=summary,
                    )
            beside = [seen_item(item, masks) for item in decoded(kept_rows)]
            stored_after = list(decoded(suffix_rows))
            after = [seen_item(item, masks) for item in stored_after]
            altered = any(map(_is_altered, stored_after, after))
            if regular and not beside and not altered:
                shown = [item for item in after if item is not None]
                plain = [item.message for item in shown]
                if policy.takes_ids(plain):
                    return Parts(
                        pins=[_entry(item) for item in before],
                        plain=plain,
                        tokens=[item.tokens for item in (*before, *shown)],
                        summary=summary,
                    )
            kept_items = [item for item in beside if item is not None]
            suffix = [item for item in after if item is not None]
            return Parts(
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
        folded = omitted > 0 and not demand.uncut
        rest = (choice, rules, log.counter, cut_seq, omitted, open_calls, head.epoch, budget)
        return lambda: Selection(material(), *rest, folded)

    def _choose(self, log: CachedSession, txn: ReadTxn, frame: Window) -> tuple[Cut, int]:
        """The cut, and how many open calls lie behind it.

        A result may come for a call that the view covers (it was abandoned, or folded by a
        fallback). Then the items from the last safe cut before the covered end on are shown again
        behind the summary; if they do not fit, the result is left out as an orphan.
        """
        demand, ledger, offset = frame.demand, frame.seen, frame.recent.offset
        first, least = max(demand.first - offset, 0), max(demand.at_least - offset, 0)
        inside = replace(demand, first=first, at_least=least, uncut=demand.uncut and not offset)
        choice: Cut | None = None
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

    def _kept(self, log: CachedSession, view: View, pins: int) -> list[int]:
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


def _entry(item: Item) -> WireItem:
    return WireItem(item.seq, item.message, event=item.kind == ItemKind.EVENT)


# --- Several agents in one history: which of its items one of them sees ---------------------------
# What belongs together is shown or left out together: a call with all that answers it, and a
# Responses reasoning item with what its author said behind it. Such a group is its caller's,
# whoever wrote the results. What is shown is a history of its own, with a ledger of its own: cuts
# and budgets know nothing of what is left out.

_SEED: Final = b"memcore-no-seed."
"""Facts are compared with each other alone: no file's seed is needed."""
SHARES: Final = ("results", "all", "none")
EVERYBODY: Final = (None, "user")
"""Whose items are everybody's: those of no author, and those of the user."""


class AuthorFilter(NamedTuple):
    """Who looks at a history, and what of the others they see."""

    authors: frozenset[str]
    share: str

    def hears(self, by: str | None) -> bool:
        """Whether items of this author are shown whatever they are."""
        return by in EVERYBODY or by in self.authors


def checked_voices(authors: Iterable[str] | None, share: str | None) -> AuthorFilter | None:
    """The filter that two arguments stand for; None: everything is shown.

    Raises:
        InvalidOptionError: ``authors`` is no collection of names, or ``share`` is unknown or alone.
    """
    if share is not None and share not in SHARES:
        msg = f"share: expected one of {', '.join(SHARES)}; got {share!r:.40}"
        raise InvalidOptionError(msg)
    if authors is None:
        if share is not None:
            msg = f"share={share!r} needs authors=: whose items are shown in full"
            raise InvalidOptionError(msg)
        return None
    if isinstance(authors, str | bytes) or not isinstance(authors, Iterable):
        msg = f"authors: expected a list of names or None, got {type(authors).__name__}"
        raise InvalidOptionError(msg)
    names = list(authors)
    for name in names:
        if not isinstance(name, str) or not name:
            msg = f"authors: expected non-empty names, got {name!r:.40}"
            raise InvalidOptionError(msg)
    return None if share == "all" else AuthorFilter(frozenset(names), share or "results")


class AuthorIndex:
    """What is known of the items of one live history, whoever asks. It grows with the history."""

    def __init__(self, place: tuple[int, int], *, glued: bool) -> None:
        self.place = place
        """``(session, epoch)``: under these, positions keep their meaning."""
        self.by: list[str | None] = []
        self.facts: list[bytes] = []
        self.shares: list[bool] = []
        """Whether it is a result of its author's work."""
        self.calls: list[bool] = []
        self._glued = glued
        self._above: list[int] = []
        """Of the groups: the position before which belongs to the same one, or itself."""
        self._binder = Binder()
        self._thought: dict[str | None, int] = {}
        """By author the last reasoning item that waits for what was thought."""

    def __len__(self) -> int:
        return len(self.by)

    def add(self, item: Item) -> None:
        """The next item."""
        at = len(self.by)
        by = None if item.envelope is None else item.envelope.by
        is_event = item.kind == ItemKind.EVENT
        self.by.append(by)
        self.facts.append(b"" if is_event else pack_facts(item.message, _SEED) or b"")
        self.shares.append(item.type in RESULT_TYPES)
        self._above.append(at)
        binder = self._binder
        known = len(binder.references)
        _, _, calls, answers = binder.take(at, WireItem(item.seq, item.message, event=is_event))
        self.calls.append(bool(calls))
        for _, slot in (*answers, *binder.references[known:]):
            if slot is not None:
                self._join(slot.at, at)
        if not self._glued or is_event or (answers and not calls):
            return
        if by in self._thought:
            self._join(self._thought.pop(by), at)
        if item.kind == ItemKind.REASONING:
            self._thought[by] = at

    def root(self, at: int) -> int:
        """The first position of the group that a position belongs to."""
        above = self._above
        while above[at] != at:
            above[at] = above[above[at]]
            at = above[at]
        return at

    def _join(self, one: int, other: int) -> None:
        first, last = sorted((self.root(one), self.root(other)))
        self._above[last] = first

    def shown(self, voices: AuthorFilter) -> list[bool]:
        """Whether each position is shown."""
        count = len(self.by)
        roots = [self.root(at) for at in range(count)]
        callers = {root for root, calls in zip(roots, self.calls, strict=True) if calls}
        heard: set[int] = set()
        takes_results = voices.share == "results"
        for at, root in enumerate(roots):
            # Results are their caller's; where nobody calls, everybody in the group has a say.
            has_say = self.calls[at] or root not in callers
            if (has_say and voices.hears(self.by[at])) or (takes_results and self.shares[at]):
                heard.add(root)
        return [root in heard for root in roots]


class AuthorContexts:
    """The contexts of agents that share one session; all of it under the log's lock."""

    __slots__ = ("_marks", "_picking", "_reading", "shown")

    def __init__(self, reading: SessionReader, picking: ContextSelector) -> None:
        self._reading = reading
        self._picking = picking
        self._marks: AuthorIndex | None = None
        self.shown: list[int] = []
        """Seqs of what was chosen last."""

    def marks(self, log: CachedSession, txn: ReadTxn) -> AuthorIndex:
        """What is known of all live items.

        Raises:
            CorruptValueError: one of them is damaged: nobody can tell whose it is.
        """
        head = head_of(log)
        place = (log.session, head.epoch)
        found = self._marks
        if found is None or found.place != place or len(found) > head.count:
            found = AuthorIndex(place, glued=bool(log.policy.glue & GLUE_REASONING))
        self._marks = None  # an error leaves nothing behind that was half made
        if len(found) < head.count:
            for item in decoded(self._reading.collect(log, txn, len(found), head.count)):
                found.add(item)
        self._marks = found
        return found

    def seqs(self, voices: AuthorFilter, *, skip_corrupt: bool) -> set[int]:
        """The live items that are shown."""

        def collect(log: CachedSession, txn: ReadTxn) -> set[int]:
            seq_at = log.history.seq_at
            try:
                shown = self.marks(log, txn).shown(voices)
            except CorruptValueError:
                if not skip_corrupt:
                    raise
                return self._sound_seqs(log, txn, voices)
            return {seq_at(at) for at, is_shown in enumerate(shown) if is_shown}

        nothing: set[int] = set()
        return self._reading.run(collect, nothing)

    def _sound_seqs(self, log: CachedSession, txn: ReadTxn, voices: AuthorFilter) -> set[int]:
        marks = AuthorIndex((0, 0), glued=bool(log.policy.glue & GLUE_REASONING))
        rows = self._reading.collect(log, txn, 0, head_of(log).count)
        items = list(decoded(rows, skip_corrupt=True))
        for item in items:
            marks.add(item)
        shown = marks.shown(voices)
        return {item.seq for item, is_shown in zip(items, shown, strict=True) if is_shown}

    def pick(
        self, log: CachedSession, txn: ReadTxn, ask: ContextRequest, voices: AuthorFilter
    ) -> Pick:
        """Choose the cut among what is shown and collect the rows."""
        head, policy, history = head_of(log), log.policy, log.history
        stored = log.current_view(txn) if ask.view is None else log.chosen_view(txn, ask.view)
        frame = self._picking.frame(log, txn, stored, ask)
        shown = _Shown(log, txn, self.marks(log, txn), frame, voices)
        pins = [at for at in range(frame.pins) if shown.visible[at]]
        kept = [at for at in frame.kept if shown.visible[at]]
        summary = frame.demand.summary
        pin_tokens = sum(shown.tokens[at] for at in pins) + sum(map(shown.tokens_of, kept))
        demand = replace(
            frame.demand,
            fixed_tokens=fixed_cost(policy, log.counter, pin_tokens=pin_tokens, summary=summary),
            first=0,
        )
        choice = choose(shown.ledger, policy, log.counter, demand)
        suffix = shown.places[choice.cut :]
        start = suffix[0] if suffix else history.count
        self.shown = [history.seq_at(at) for at in suffix]
        kept = [at for at in kept if at < start]
        parts = [self._rows(log, txn, places) for places in (pins, kept, suffix)]
        plain_by = policy if is_regular(shown.ledger, policy, choice.cut) else None
        is_repaired = stored is not None and stored.view.repair is not None
        rest = (
            choice,
            policy.mended if is_repaired else policy,
            log.counter,
            history.seq_at(start) if suffix else head.next_seq,
            start - len(pins) - len(kept),
            open_from(shown.ledger, choice),
            head.epoch,
            ask.budget,
            not demand.uncut,
        )
        return lambda: Selection(_material(parts, frame.masks, summary, plain_by=plain_by), *rest)

    def _rows(self, log: CachedSession, txn: ReadTxn, places: list[int]) -> list[Any]:
        """The rows at these positions, read in runs."""
        found: list[Any] = []
        at = 0
        while at < len(places):
            stop = at + 1
            while stop < len(places) and places[stop] == places[stop - 1] + 1:
                stop += 1
            found += self._reading.collect(log, txn, places[at], places[stop - 1] + 1)
            at = stop
        return found


class _Shown:
    """What is shown behind the pins and the summary, as a history of its own."""

    def __init__(
        self,
        log: CachedSession,
        txn: ReadTxn,
        marks: AuthorIndex,
        frame: Window,
        voices: AuthorFilter,
    ) -> None:
        history = log.history
        self._masks, self._seq_at = frame.masks, history.seq_at
        self.visible = marks.shown(voices)
        self.tokens = log.full(txn, head_of(log)).ledger.tokens_of(0, history.count)
        """By position, as stored."""
        self.places: list[int] = []
        """The positions that the ledger holds."""
        self.ledger = log.policy.new_ledger(open_call_tokens(log.counter))
        for at in range(frame.demand.first, history.count):
            if not self.visible[at] or not marks.facts[at]:
                continue
            mask = self._mask(at)
            if mask is None:
                self.ledger.push(marks.facts[at], self.tokens[at])
            elif mask.message is None:
                continue
            else:
                self.ledger.push(pack_facts(mask.message, _SEED) or b"", mask.tokens)
            self.places.append(at)

    def _mask(self, at: int) -> Mask | None:
        return self._masks.get(self._seq_at(at)) if self._masks else None

    def tokens_of(self, at: int) -> int:
        """Tokens of the item at a position, as it is shown."""
        mask = self._mask(at)
        return self.tokens[at] if mask is None else mask.tokens


def _material(
    parts: list[list[Any]],
    masks: dict[int, Mask],
    summary: str | None,
    *,
    plain_by: PairPolicy | None,
) -> Parts:
    """What is shown of the rows of pins, kept items and the suffix.

    ``plain_by`` is the policy if the pairs of the suffix need no repair by it.
    """
    pins, kept, suffix = (list(decoded(rows)) for rows in parts)
    beside = [seen for item in kept if (seen := seen_item(item, masks)) is not None]
    after = [seen for item in suffix if (seen := seen_item(item, masks)) is not None]
    found = Parts(
        pins=[WireItem(item.seq, item.message) for item in pins],
        tokens=[item.tokens for item in (*pins, *beside, *after)],
        summary=summary,
    )
    if plain_by is not None and not beside and not masks:
        plain = [item.message for item in after]
        if plain_by.takes_ids(plain):
            found.plain = plain
            return found
    found.kept = [WireItem(item.seq, item.message) for item in beside]
    found.suffix = [WireItem(item.seq, item.message) for item in after]
    found.altered = bool(masks)
    return found
