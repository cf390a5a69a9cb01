"""Selection of a context: choose the cut on the ledger, then read its rows; author filters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from memcore._fast import classify, pack_facts
from memcore.context import (
    UNLIMITED,
    Cut,
    CutRequest,
    Parts,
    Selection,
    choose,
    choose_whole,
    is_regular,
    open_from,
)
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.log import AnyLedger, CachedSession
from memcore.log.history import TailLedger, open_call_tokens
from memcore.model import RESULT_TYPES, Item, ItemKind, Mask, View
from memcore.options import checked_texts
from memcore.rows.views import StoredView
from memcore.session.engine import SessionRef
from memcore.session.read import (
    DecodedCache,
    Found,
    ItemRun,
    Items,
    collect,
    decoded,
    head_of,
    messages_of,
    read_log,
)
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter
from memcore.wire import PairPolicy, WireItem
from memcore.wire.message import Binder
from memcore.wire.policy import GLUE_REASONING

__all__ = [
    "SHARES",
    "WHOLE",
    "AuthorFilter",
    "AuthorIndex",
    "ContextRequest",
    "Picked",
    "Window",
    "checked_authors",
    "find_window",
    "last_before",
    "pick",
    "pick_by_author",
    "seen_item",
    "shown_seqs",
    "tokens_from",
    "turn_tokens",
    "whole_context",
]


# --- Choice of a context's content: on the ledger first, then the rows it needs -------------------

PINS_LOOK: Final = 64
"""Leading positions searched for pins when only the end of a history is loaded."""


_REUSED_BYTES: Final = 256 * 1024
"""Encoded messages of a session that are kept decoded for its next context."""


class ContextRequest(NamedTuple):
    """Arguments of a context."""

    budget: int = UNLIMITED
    at_least: int = 0
    """The smallest cut."""
    view: View | int | None = None
    """The view to apply; None: the newest that applies."""


WHOLE: Final = ContextRequest()


class Window(NamedTuple):
    """The parts of a context that do not depend on the cut, and the request for the cut."""

    recent: TailLedger
    """The end of the history, as stored."""
    seen: AnyLedger
    """The same, as shown."""
    start: TailLedger
    pins: int
    kept: list[int]
    """Positions that the view keeps in addition to its summary."""
    masks: dict[int, Mask]
    demand: CutRequest

    def with_recent(self, log: CachedSession, recent: TailLedger) -> Window:
        """Return a copy that covers more of the history."""
        seen = log.seen_through(recent.ledger, recent.offset, self.masks)
        return self._replace(recent=recent, seen=seen)


class Reused(NamedTuple):
    """Pins and suffix, all of them regular: what earlier contexts had is decoded, the rest rows."""

    cache: DecodedCache
    parts: list[Items | ItemRun]
    pins: int
    tokens: list[int]
    """Tokens of each pin and each item of the suffix."""


class Picked(NamedTuple):
    """A choice made on a snapshot, with its rows, still undecoded."""

    pins: list[Found]
    kept: list[Found]
    suffix: list[Found]
    reused: Reused | None
    """Replaces ``pins`` and ``suffix`` if both can be shown as they are stored."""
    seqs: list[int]
    """The suffix's seqs if it is filtered by author; else empty."""
    is_regular: bool
    """True if the pairs of the suffix need no repair as they are stored."""
    masks: dict[int, Mask]
    choice: Cut
    policy: PairPolicy
    """The session's pair policy."""
    is_repaired: bool
    """True if the view in force is a repair."""
    counter: TokenCounter
    cut_seq: int
    omitted: int
    open_calls: int
    epoch: int
    request: CutRequest

    def selection(self) -> Selection | None:
        """Decode the picked rows; None if an item of ``reused`` is irregular after all."""
        policy, demand = self.policy, self.request
        parts = Parts(summary=demand.summary, summary_tokens=demand.summary_tokens)
        if self.pins:
            pins = decoded(self.pins)
            parts.pins = [_entry(item) for item in pins]
            parts.tokens = [item.tokens for item in pins]
        if self.reused is not None:
            messages = self.reused.cache.messages(self.reused.parts)
            if messages is None:
                return None
            count, parts.tokens = self.reused.pins, self.reused.tokens
            parts.pins = [WireItem(at, message) for at, message in enumerate(messages[:count])]
            parts.plain = messages[count:] if count else messages
        elif self.is_regular and not self.masks and not self.kept:
            messages = messages_of(self.suffix)
            # Ids that are longer than the provider takes are shortened by rendering.
            if messages is not None and policy.takes_ids(messages):
                parts.plain = messages
                for run in self.suffix:
                    if type(run) is ItemRun:  # always: messages_of accepts nothing else
                        parts.tokens += run.tokens
        if parts.plain is None:
            self._add_items(parts)
        return Selection(
            parts,
            self.choice,
            policy.mended if self.is_repaired else policy,
            self.counter,
            self.cut_seq,
            self.omitted,
            self.open_calls,
            self.epoch,
            demand.budget,
            self.omitted > 0 and not demand.uncut,
        )

    def _add_items(self, found: Parts) -> None:
        """Decode rows that cannot be shown as they are stored."""
        masks = self.masks
        beside = [
            seen for item in decoded(self.kept) if (seen := seen_item(item, masks)) is not None
        ]
        suffix, after, altered = decoded(self.suffix), [], False
        for item in suffix:
            seen = seen_item(item, masks)
            altered = altered or _is_altered(item, seen)
            if seen is not None:
                after.append(seen)
        found.tokens += [item.tokens for item in (*beside, *after)]
        if self.is_regular and not self.kept and not altered:
            plain = [item.message for item in after]
            if self.policy.takes_ids(plain):
                found.plain = plain
                return
        found.kept = [_entry(item) for item in beside]
        found.suffix = [_entry(item) for item in after]
        found.altered = altered


def find_window(
    log: CachedSession, txn: ReadTxn, stored: StoredView | None, ask: ContextRequest = WHOLE
) -> Window:
    """Determine what a view shows regardless of the cut, and the request for the cut."""
    head, policy = log.head, log.policy
    assert head is not None  # noqa: S101 - guaranteed by catch_up
    masks: dict[int, Mask] = {}
    view = summary = None
    if stored is not None:
        view, masks = stored.view, log.masks(txn, stored)
        summary = view.summary
    recent = log.recent(txn, head)
    start = recent if not recent.offset else TailLedger(0, log.load(txn, stop=PINS_LOOK), 0, 0)
    pins = policy.pin_count(start.ledger)
    kept = [] if view is None else _kept_by(log, view, pins)
    # More pins may follow than were looked at, or the view keeps an item before the loaded end.
    if recent.offset and (pins == PINS_LOOK or (kept and kept[0] < recent.offset)):
        recent = start = log.full(txn, head)
        pins = policy.pin_count(start.ledger)
    seen: AnyLedger = recent.ledger
    if masks:
        seen = log.seen_through(recent.ledger, recent.offset, masks)
    fixed = start.ledger.sum_between(0, pins)
    for at in kept:
        fixed += seen.sum_between(at - recent.offset, at - recent.offset + 1)
    if summary is not None:
        fixed += log.summary_tokens(summary)
    demand = CutRequest(
        ask.budget,
        fixed,
        first=pins if view is None else max(pins, view.covered),
        summary=summary,
        uncut=view is None or view.covered <= pins,
        at_least=ask.at_least,
        summary_tokens=None if summary is None else log.summary_tokens(summary),
    )
    return Window(recent, seen, start, pins, kept, masks, demand)


def _kept_by(log: CachedSession, view: View, pins: int) -> list[int]:
    """Positions that the view keeps in addition to its summary."""
    found = (log.history.position_of(seq) for seq in view.pinned)
    return sorted(at for at in found if at is not None and at >= pins)


def tokens_from(log: CachedSession, txn: ReadTxn, position: int) -> int:
    """Count the tokens of the live items from a position on."""
    recent = log.covering(txn, head_of(log), position)
    return recent.ledger.sum_between(position - recent.offset, len(recent.ledger))


def whole_context(log: CachedSession, txn: ReadTxn) -> tuple[int, int]:
    """Return ``(tokens, cut seq)`` of the context without a budget, before repairs."""
    head, history = head_of(log), log.history
    stored = log.current_view(txn)
    window = find_window(log, txn, stored)
    first = window.demand.first
    end = first >= history.count
    cut_seq = head.next_seq if end else history.seq_at(first)
    if stored is None:
        return head.tokens, cut_seq
    if first < window.recent.offset:
        window = window.with_recent(log, log.full(txn, head))
    offset = window.recent.offset
    tokens = window.seen.sum_between(first - offset, len(window.seen))
    return window.demand.fixed_tokens + tokens, cut_seq


def last_before(log: CachedSession, txn: ReadTxn, tokens: int) -> int | None:
    """Return the last live item before the newest ones totalling ``tokens``; None if none do."""
    if tokens <= 0:
        return None
    recent = log.recent(txn, head_of(log))
    end = len(recent.ledger)
    # The sum from a position to the end never rises as the position advances.
    at = bisect_right(range(end), -tokens, key=lambda at: -recent.ledger.sum_between(at, end))
    at -= 1  # the last position from which the sum is at least ``tokens``
    if at < 0 or recent.offset + at == 0 or recent.ledger.sum_between(at, end) != tokens:
        return None
    return log.history.seq_at(recent.offset + at - 1)


def pick(log: CachedSession, txn: ReadTxn, ask: ContextRequest, *, reuses: bool = False) -> Picked:
    """Choose the cut of a context and collect its rows.

    With ``reuses``, messages that were decoded for earlier contexts are not read again. If
    ``selection`` then returns None, the caller picks again without.
    """
    head, policy, history = log.head, log.policy, log.history
    assert head is not None  # noqa: S101 - guaranteed by catch_up
    stored = log.current_view(txn) if ask.view is None else log.chosen_view(txn, ask.view)
    window = find_window(log, txn, stored, ask)
    pins, demand = window.pins, window.demand
    if demand.first < window.recent.offset and (
        window.seen.cost(0) <= ask.budget - demand.fixed_tokens
    ):
        window = window.with_recent(log, log.full(txn, head))  # more than the loaded end may fit
    choice, open_calls = _choose(log, txn, window)
    if demand.first < window.recent.offset and (
        not choice.fits or choice.cut == window.recent.offset
    ):
        # Items that cost nothing (orphans, events) may precede the loaded end.
        window = window.with_recent(log, log.full(txn, head))
        choice, open_calls = _choose(log, txn, window)
    recent = window.recent
    kept = [at for at in window.kept if at < choice.cut] if window.kept else []
    count, within = history.count, recent if choice.cut >= recent.offset else None
    regular = is_regular(recent.ledger, policy, choice.cut - recent.offset)
    reused = None
    # The cache has messages as they are stored: masks, repairs and kept items show others.
    if reuses and regular and within is not None and not window.masks and not kept:
        reused = _reused(log, txn, window, choice.cut)
    return Picked(
        collect(log, txn, 0, pins, by=window.start) if pins and reused is None else [],
        _collect_places(log, txn, kept) if kept else [],
        collect(log, txn, choice.cut, count, by=within) if reused is None else [],
        reused,
        [],
        regular,
        window.masks,
        choice,
        policy,
        stored is not None and stored.view.repair is not None,
        log.counter,
        history.seq_at(choice.cut) if choice.cut < count else head.next_seq,
        choice.cut - pins - len(kept),
        open_calls,
        head.epoch,
        demand,
    )


def _reused(log: CachedSession, txn: ReadTxn, window: Window, cut: int) -> Reused | None:
    """Collect pins and suffix, reusing what was decoded; None if there were irregular items."""
    cache = log.shown
    if cache is None:
        takes_ids = log.policy.takes_ids
        cache = log.shown = DecodedCache(
            lambda messages: messages if takes_ids(messages) else None, most_bytes=_REUSED_BYTES
        )
    if cache.is_closed:
        return None
    pins, recent, count = window.pins, window.recent, log.history.count
    tokens = recent.ledger.tokens_of(cut - recent.offset, count - recent.offset)
    if not pins:
        return Reused(cache, cache.collect(log, txn, cut, count), 0, tokens)
    tokens = window.start.ledger.tokens_of(0, pins) + tokens
    if cut == pins:
        return Reused(cache, cache.collect(log, txn, 0, count), pins, tokens)
    parts = cache.collect(log, txn, 0, pins) + cache.collect(log, txn, cut, count)
    return Reused(cache, parts, pins, tokens)


def _collect_places(log: CachedSession, txn: ReadTxn, places: list[int]) -> list[Found]:
    """Collect the rows at ascending positions, run by run."""
    found: list[Found] = []
    at = 0
    while at < len(places):
        stop = at + 1
        while stop < len(places) and places[stop] == places[stop - 1] + 1:
            stop += 1
        found += collect(log, txn, places[at], places[stop - 1] + 1)
        at = stop
    return found


def _choose(log: CachedSession, txn: ReadTxn, window: Window) -> tuple[Cut, int]:
    """Choose the cut, and count the open calls after it.

    A result may arrive for a call that the view covers (abandoned, or folded by a fallback). Then
    the items from the last safe cut before the end of the covered range are shown again after the
    summary; if they do not fit, the result is left out as an orphan.
    """
    demand, ledger, offset = window.demand, window.seen, window.recent.offset
    inside = demand
    if offset:
        first, least = max(demand.first - offset, 0), max(demand.at_least - offset, 0)
        inside = demand._replace(first=first, at_least=least, uncut=False)
    choice: Cut | None = None
    if inside.uncut or ledger.is_safe(inside.first) or inside.first >= len(ledger):
        choice = choose(ledger, log.policy, log.counter, inside)
    else:
        earlier = ledger.cut_at_most(inside.first)
        if earlier + offset >= window.pins and inside.at_least <= earlier:
            shown_again = inside._replace(first=earlier)
            choice = choose_whole(ledger, log.policy, log.counter, shown_again)
    # In a ledger that begins behind the covered range, the late result has no call: as an orphan it
    # costs nothing and is left out.
    if choice is None:
        offset = demand.first
        ledger = log.seen_through(log.load(txn, start=offset), offset, window.masks)
        least = max(demand.at_least - offset, 0)
        behind = demand._replace(first=0, at_least=least)
        choice = choose(ledger, log.policy, log.counter, behind)
    open_calls = open_from(ledger, choice) if ledger.open_positions() else 0
    return (choice._replace(cut=choice.cut + offset) if offset else choice), open_calls


def seen_item(item: Item, masks: dict[int, Mask]) -> Item | None:
    """Return an item as its mask shows it; None if it is hidden."""
    mask = masks.get(item.seq)
    if mask is None:
        return item
    return None if mask.message is None else item._replace(message=mask.message, tokens=mask.tokens)


def _is_altered(item: Item, seen: Item | None) -> bool:
    """Return True if an item's mask changes which pairs it takes part in."""
    if seen is item or item.kind == ItemKind.EVENT:
        return False
    return seen is None or classify(seen.message)[:3] != classify(item.message)[:3]


def _entry(item: Item) -> WireItem:
    return WireItem(item.seq, item.message, event=item.kind == ItemKind.EVENT)


# --- Author filters: the items that one of several agents in a history sees -----------------------
# Related items are shown or left out together: a call with all of its results, and a Responses
# reasoning item with what its author said next. Such a group belongs to its caller, whoever wrote
# the results. The visible items form a history with a ledger of its own: cuts and budgets ignore
# whatever is left out.

_SEED: Final = b"memcore-no-seed."
"""Facts are only compared with each other, so no file's seed is needed."""
SHARES: Final = ("results", "all", "none")
EVERYBODY: Final = (None, "user")
"""Authors whose items are visible to everybody: none at all, and the user."""


class AuthorFilter(NamedTuple):
    """The authors whose items are shown, and what is shown of other authors' items."""

    authors: frozenset[str]
    share: str

    def includes(self, by: str | None) -> bool:
        """Return True if this author's items are shown unconditionally."""
        return by in EVERYBODY or by in self.authors


def checked_authors(authors: Iterable[str] | None, share: str | None) -> AuthorFilter | None:
    """Return the filter for two arguments; None: everything is shown.

    Raises:
        InvalidOptionError: ``authors`` is not a collection of names, or ``share`` is unknown or
            given without ``authors``.
    """
    if share is not None and share not in SHARES:
        msg = f"share: expected one of {', '.join(SHARES)}; got {share!r:.40}"
        raise InvalidOptionError(msg)
    if authors is None:
        if share is not None:
            msg = f"share={share!r} needs authors=: whose items are shown in full"
            raise InvalidOptionError(msg)
        return None
    names = frozenset(checked_texts("authors", authors))
    return None if share == "all" else AuthorFilter(names, share or "results")


class AuthorIndex:
    """Authors and groups of the items of one live history; grows with the history."""

    def __init__(self, place: tuple[int, int], *, glued: bool) -> None:
        self.place = place
        """``(session, epoch)``, within which positions keep their meaning."""
        self.by: list[str | None] = []
        self.facts: list[bytes] = []
        self.shares: list[bool] = []
        """By position: True if the item is a result of its author's work."""
        self.calls: list[bool] = []
        self._glued = glued
        self._above: list[int] = []
        """Union-find parents of the groups: an earlier position of the same group, or itself."""
        self._binder = Binder()
        self._thought: dict[str | None, int] = {}
        """By author: the last reasoning item that is still waiting for what it led to."""

    def __len__(self) -> int:
        return len(self.by)

    def add(self, item: Item) -> None:
        """Add the next item."""
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
        """Return the first position of the group that a position belongs to."""
        above = self._above
        while above[at] != at:
            above[at] = above[above[at]]
            at = above[at]
        return at

    def _join(self, one: int, other: int) -> None:
        first, last = sorted((self.root(one), self.root(other)))
        self._above[last] = first

    def shown(self, by: AuthorFilter) -> list[bool]:
        """Return for each position True if it is shown."""
        count = len(self.by)
        roots = [self.root(at) for at in range(count)]
        callers = {root for root, calls in zip(roots, self.calls, strict=True) if calls}
        shown: set[int] = set()
        takes_results = by.share == "results"
        for at, root in enumerate(roots):
            # Results follow their caller; in a group without calls every author counts.
            has_say = self.calls[at] or root not in callers
            if (has_say and by.includes(self.by[at])) or (takes_results and self.shares[at]):
                shown.add(root)
        return [root in shown for root in roots]


def shown_seqs(ref: SessionRef, by: AuthorFilter, *, skip_corrupt: bool) -> set[int]:
    """Return the seqs of the live items that are shown.

    Raises:
        CorruptValueError: an item is damaged and ``skip_corrupt`` is false.
    """
    nothing: set[int] = set()
    return read_log(ref, _shown_seqs, nothing, by, skip_corrupt)


def _shown_seqs(log: CachedSession, txn: ReadTxn, by: AuthorFilter, skip_corrupt: bool) -> set[int]:
    try:
        shown = _author_index(log, txn).shown(by)
    except CorruptValueError:
        if not skip_corrupt:
            raise
        # Not cached: without the damaged items its positions are not those of the history.
        index = AuthorIndex((0, 0), glued=bool(log.policy.glue & GLUE_REASONING))
        rows = collect(log, txn, 0, head_of(log).count)
        items = decoded(rows, skip_corrupt=True)
        for item in items:
            index.add(item)
        shown = index.shown(by)
        return {item.seq for item, is_shown in zip(items, shown, strict=True) if is_shown}
    seq_at = log.history.seq_at
    return {seq_at(at) for at, is_shown in enumerate(shown) if is_shown}


def _author_index(log: CachedSession, txn: ReadTxn) -> AuthorIndex:
    """Bring the log's author index up to date with its live items.

    Raises:
        CorruptValueError: an item is damaged, so its author is unknown.
    """
    head = head_of(log)
    place = (log.session, head.epoch)
    found: AuthorIndex | None = log.authors
    if found is None or found.place != place or len(found) > head.count:
        found = AuthorIndex(place, glued=bool(log.policy.glue & GLUE_REASONING))
    log.authors = None  # an error must not leave a half-updated index
    if len(found) < head.count:
        for item in decoded(collect(log, txn, len(found), head.count)):
            found.add(item)
    log.authors = found
    return found


def turn_tokens(log: CachedSession, txn: ReadTxn, ask: ContextRequest) -> int:
    """Count what stands before the cut of a context, and its newest turn, before repairs.

    The newest turn is the last user item with what follows it; without one, the last item.
    """
    stored = log.current_view(txn) if ask.view is None else log.chosen_view(txn, ask.view)
    window = find_window(log, txn, stored, ask)
    seen, fixed = window.seen, window.demand.fixed_tokens
    first = min(max(window.demand.first - window.recent.offset, 0), len(seen))
    at = seen.last_of(1 << ItemKind.USER, 1, at_least=first)
    if at < len(seen) and seen.kind_at(at) != ItemKind.USER:
        at = max(seen.last_shown, first)
    return fixed + seen.cost(at)


def pick_by_author(
    log: CachedSession, txn: ReadTxn, ask: ContextRequest, by: AuthorFilter
) -> Picked:
    """Choose the cut of a context among the visible items, and collect their rows."""
    head, policy, history = head_of(log), log.policy, log.history
    stored = log.current_view(txn) if ask.view is None else log.chosen_view(txn, ask.view)
    window = find_window(log, txn, stored, ask)
    shown = _Shown(log, txn, _author_index(log, txn), window, by)
    pins = [at for at in range(window.pins) if shown.visible[at]]
    kept = [at for at in window.kept if shown.visible[at]]
    summary = window.demand.summary
    pin_tokens = sum(shown.tokens[at] for at in pins) + sum(map(shown.tokens_of, kept))
    demand = window.demand._replace(
        fixed_tokens=pin_tokens + (0 if summary is None else log.summary_tokens(summary)),
        # The ledger of what is shown begins behind pins and summary, so its first position is 0.
        first=0,
    )
    choice = choose(shown.ledger, policy, log.counter, demand)
    suffix = shown.places[choice.cut :]
    start = suffix[0] if suffix else history.count
    kept = [at for at in kept if at < start]
    return Picked(
        _collect_places(log, txn, pins),
        _collect_places(log, txn, kept),
        _collect_places(log, txn, suffix),
        None,
        [history.seq_at(at) for at in suffix],
        is_regular(shown.ledger, policy, choice.cut),
        window.masks,
        choice,
        policy,
        stored is not None and stored.view.repair is not None,
        log.counter,
        history.seq_at(start) if suffix else head.next_seq,
        start - len(pins) - len(kept),
        open_from(shown.ledger, choice),
        head.epoch,
        demand,
    )


class _Shown:
    """The items shown after the pins and the summary, as a history of its own."""

    def __init__(
        self,
        log: CachedSession,
        txn: ReadTxn,
        index: AuthorIndex,
        window: Window,
        by: AuthorFilter,
    ) -> None:
        history = log.history
        self._masks, self._seq_at = window.masks, history.seq_at
        self.visible = index.shown(by)
        self.tokens = log.full(txn, head_of(log)).ledger.tokens_of(0, history.count)
        """By position, as stored."""
        self.places: list[int] = []
        """The positions that the ledger covers."""
        self.ledger = log.policy.new_ledger(open_call_tokens(log.counter))
        for at in range(window.demand.first, history.count):
            if not self.visible[at] or not index.facts[at]:
                continue
            mask = self._mask(at)
            if mask is None:
                self.ledger.push(index.facts[at], self.tokens[at])
            elif mask.message is None:
                continue
            else:
                # A repair's mask may make or answer fewer calls than its item.
                self.ledger.push(pack_facts(mask.message, _SEED) or b"", mask.tokens)
            self.places.append(at)

    def _mask(self, at: int) -> Mask | None:
        return self._masks.get(self._seq_at(at)) if self._masks else None

    def tokens_of(self, at: int) -> int:
        """Return the tokens of the item at a position, as it is shown."""
        mask = self._mask(at)
        return self.tokens[at] if mask is None else mask.tokens
