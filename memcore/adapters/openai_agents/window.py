"""The part of a list of items that a model may receive: legal, and within a budget.

The cut is chosen on a ledger, the rest is rendered legally, and ids that come again are changed,
all by the engine; items that need no change are the very objects that were given. No line leads
the window in, for it may not hold an item of its own that the SDK would store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

from memcore._fast import Ledger, classify, has_long_id, pack_facts
from memcore.adapters.openai_agents.ids import MODEL_KINDS, settle_ids
from memcore.compaction.clearing import ClearResults
from memcore.compaction.reduce import reduce_all
from memcore.compaction.reducer import Reduction, Visible
from memcore.compaction.shortening import TOKENS_LEAST, ElideOutputs
from memcore.context import UNLIMITED, checked_budget
from memcore.formats import POLICIES, Entry, Rendered, rename_repeated_calls, render
from memcore.log import new_ledger
from memcore.model import ItemKind, Mask, Message
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Frame", "Shown", "Terms", "legal_window", "opening_of"]

_log = logging.getLogger("memcore.openai_agents")
_POLICY: Final = replace(POLICIES["openai_responses"], id_chars_max=None)
"""Long ids are shortened before rendering, but where an item must stay as it is."""
_SEED: Final = b"memcore-no-seed."
_OPAQUE: Final = cast("bytes", pack_facts({}, _SEED))
_TOKENS_MAX: Final = 2**32 - 1
_ID_CHARS_MAX: Final = 64


class Shown(NamedTuple):
    """One item of a window."""

    source: int | None
    """Its place in the list that was given; None: memcore wrote it."""
    item: Any


class Terms:
    """What a window may cost.

    Raises:
        InvalidOptionError: a budget or a counter is none.
    """

    def __init__(
        self,
        budget_tokens: int | None = None,
        reserve_tokens: int = 0,
        counter: str | TokenCounter | None = None,
    ) -> None:
        self.budget = checked_budget(budget_tokens, reserve_tokens)
        self.counter = get_counter(counter)

    @property
    def bounded(self) -> bool:
        """Whether there is a budget."""
        return self.budget != UNLIMITED

    def less(self, tokens: int) -> Terms:
        """The same with a smaller budget."""
        found = Terms(counter=self.counter)
        found.budget = self.budget - tokens if self.bounded else self.budget
        return found

    def count(self, item: Message) -> int:
        """Tokens of an item, whatever it holds; 0 if nobody asks."""
        if not self.bounded:
            return 0
        encoded = json.dumps(item, ensure_ascii=False, default=str).encode("utf-8", "replace")
        return self.counter.count_message(item, encoded)


@dataclass(frozen=True, slots=True)
class Frame:
    """What of a list has to stay."""

    keep_from: int
    """From here on all stays, and calls that it answers."""
    fixed_from: int
    """From here on no item may be changed."""
    opening: int = 0
    """If above 0: so many items from ``keep_from`` on open a turn of which, where it is too large,
    items behind them may go."""


def opening_of(kinds: Sequence[int]) -> tuple[int, int]:
    """Where the last turn starts, and how many items open it.

    These are the last of the user, and what stands right before it from the user or the system.
    """
    end = len(kinds)
    while end > 0 and kinds[end - 1] != ItemKind.USER:
        end -= 1
    start = end
    while start > 0 and kinds[start - 1] in (ItemKind.USER, ItemKind.SYSTEM):
        start -= 1
    return (start, end - start) if end else (len(kinds), 0)


def plain_items(given: Sequence[Any]) -> list[Message]:
    """The items as dicts; one that is none is opaque."""
    found = []
    for item in given:
        dump = getattr(item, "model_dump", None)
        value = dump(exclude_unset=True) if callable(dump) else item
        found.append(value if isinstance(value, dict) else {})
    return found


def legal_window(given: Sequence[Any], frame: Frame | None, terms: Terms) -> list[Shown]:
    """The longest legal end of a list that fits, at least what its frame keeps.

    If even that does not fit, its outputs are shortened; if that does not do, a warning is logged.

    Args:
        given: items of OpenAI Responses.
        frame: what has to stay; None: the last turn, and of that what fits.
        terms: the budget.
    """
    items = plain_items(given)
    kinds = [classify(item)[0] for item in items]
    if frame is None:
        start, opening = opening_of(kinds)
        frame = Frame(start, len(items), opening)
    if all(kind == ItemKind.RESULT for kind in kinds):  # answers to calls that a server keeps
        return [Shown(at, item) for at, item in enumerate(given)]
    settled = settle_ids(items, kinds, fixed_from=frame.fixed_from)
    entries = [
        Entry(at, settled.changed.get(at, item))
        for at, item in enumerate(items)
        if at not in settled.gone
    ]
    found = _Fitting(entries, frame, terms).fitted()
    shown = []
    for message, source in zip(found.messages, found.sources, strict=True):
        seq = None if source is None else entries[source].seq
        unchanged = seq is not None and message is items[seq]
        shown.append(Shown(seq, given[seq] if unchanged and seq is not None else message))
    return shown


class _Fitting:
    """The choice of a cut for one list."""

    def __init__(self, entries: list[Entry], frame: Frame, terms: Terms) -> None:
        self.entries = entries
        self.frame = frame
        self.terms = terms
        self.counts: dict[int, int] = {}
        self.ledger = self._measured()
        self.pins = _POLICY.pin_count(self.ledger)
        last = len(entries)
        self.keep = next((at for at in range(last) if entries[at].seq >= frame.keep_from), last)
        self.compaction = max(
            (at for at, entry in enumerate(entries) if entry.message.get("type") == "compaction"),
            default=-1,
        )
        self.long_ids = has_long_id([entry.message for entry in entries], _ID_CHARS_MAX)

    def _measured(self) -> Ledger:
        """The ledger. What lies so far back that it cannot fit is not counted, only too much."""
        budget, total = self.terms.budget, 0
        if self.terms.bounded:
            for at in range(len(self.entries) - 1, -1, -1):
                if total > 2 * budget:  # orphans are among it, which cost nothing
                    break
                total += self._count(at)
        ledger = new_ledger(_POLICY, self.terms.counter if self.terms.bounded else None)
        too_much = min(budget + 1, _TOKENS_MAX) if self.terms.bounded else 0
        for at, entry in enumerate(self.entries):
            facts = pack_facts(entry.message, _SEED) or _OPAQUE
            ledger.push(facts, min(self.counts.get(at, too_much), _TOKENS_MAX))
        return ledger

    def _count(self, at: int) -> int:
        found = self.counts.get(at)
        if found is None:
            found = self.counts[at] = self.terms.count(self.entries[at].message)
        return found

    def fitted(self) -> Rendered:
        """The window."""
        last_shown = max(self.ledger.last_shown, 0)
        head, first = list(range(self.pins)), self.pins
        latest = self.ledger.cut_at_most(min(self.keep, last_shown))
        found = self._tried(head, first, latest)
        behind = self.keep + self.frame.opening
        if found is None and self.frame.opening and behind <= last_shown:
            head += range(max(self.keep, self.pins), behind)
            first, latest = behind, self._last_step(behind)
            found = self._tried(head, first, latest)
        if found is not None:
            return found
        smallest, tokens = self._shortened(*self._made(head, max(latest, first)))
        if tokens > self.terms.budget:
            _log.warning(
                "the smallest legal window needs %d tokens, %d more than its budget: raise "
                "budget_tokens, or shorten the largest items",
                tokens,
                tokens - self.terms.budget,
            )
        return smallest

    def _shortened(self, found: Rendered, tokens: int) -> tuple[Rendered, int]:
        """The same with outputs cut until it fits, and its tokens; the largest are cut first.

        If that does not do, they show placeholders. Outputs that may not be changed stay.
        """
        over = tokens - self.terms.budget
        if over <= 0:
            return found, tokens
        items = [
            Visible(at, ItemKind(classify(message)[0]), message, self._cost(message, source),
                    source is not None and self.entries[source].seq >= self.frame.fixed_from)
            for at, (message, source) in enumerate(zip(found.messages, found.sources, strict=True))
        ]  # fmt: skip
        results = [item for item in items if item.kind == ItemKind.RESULT and not item.protected]
        by = Reduction(_POLICY, self.terms.counter)
        most = _cap([item.tokens for item in results], over)
        while over > 0 and most >= TOKENS_LEAST:
            masks = reduce_all(items, [ElideOutputs(max_tokens=most)], by)
            now = _total(items, masks)
            over = now - self.terms.budget
            most -= max(1, -(-over // len(results)))
        if over > 0:
            least = ElideOutputs(max_tokens=TOKENS_LEAST)
            masks = reduce_all(items, [least, ClearResults(keep_last=0)], by)
            now = _total(items, masks)
            if now > self.terms.budget:  # it does not fit whatever they say
                masks = reduce_all(items, [least], by)
                now = _total(items, masks)
        for at, mask in masks.items():
            if mask.message is not None:
                found.messages[at] = mask.message
        if masks:
            _log.info("%d outputs are shortened to fit into the budget", len(masks))
        return found, now

    def _cost(self, message: Message, source: int | None) -> int:
        return self.terms.count(message) if source is None else self._count(source)

    def _last_step(self, first: int) -> int:
        """The last cut of a turn: before its last response, and before its open calls."""
        waiting = [at for at in self.ledger.open_positions() if at >= first]
        last = min([self.ledger.last_shown, *waiting])
        return max(self.ledger.cut_at_most(last), first)

    def _tried(self, head: list[int], first: int, latest: int) -> Rendered | None:
        """The longest window from ``first`` to ``latest`` that fits behind the head."""
        room = self.terms.budget - sum(self._count(at) for at in head)
        cut: int | None = first
        if self.ledger.cost(first) > room:
            if self.compaction >= first:
                room -= self._count(self.compaction)
            cut = self._next(first, latest, room)
        while cut is not None:
            found, tokens = self._made(head, cut)
            if tokens <= self.terms.budget:
                return found
            cut = self._next(cut + 1, latest, room)
        return None

    def _next(self, first: int, latest: int, room: int) -> int | None:
        """The first cut that is cheap enough: at an item of the user, or else between responses."""
        cut = self.ledger.cut_for_budget(room, at_least=first)
        if 0 <= cut <= latest:
            return cut
        cut = first - 1
        while True:
            cut = self.ledger.cut_for_budget(room, at_least=cut + 1, starts=False)
            if not 0 <= cut <= latest:
                return None
            if not self._inside_response(cut):
                return cut

    def _inside_response(self, cut: int) -> bool:
        kind = self.ledger.kind_at
        return cut > 0 and kind(cut) in MODEL_KINDS and kind(cut - 1) in MODEL_KINDS

    def _made(self, head: list[int], cut: int) -> tuple[Rendered, int]:
        """What is shown from a cut on, and its tokens."""
        places = [*head, *range(cut, len(self.entries))]
        if 0 <= self.compaction < cut and self.compaction not in head:
            places.insert(self.pins, self.compaction)
        if not self.long_ids and not self.ledger.irregular_from(cut):
            plain = Rendered([self.entries[at].message for at in places], [*places])
            return plain, sum(map(self._count, places)) if self.terms.bounded else 0
        chosen, _ = rename_repeated_calls(
            [self.entries[at] for at in places],
            chars_max=_ID_CHARS_MAX,
            is_fixed=lambda entry: entry.seq >= self.frame.fixed_from,
        )
        found = render(chosen, _POLICY)
        found.sources = [None if at is None else places[at] for at in found.sources]
        tokens = sum(map(self._cost, found.messages, found.sources))
        return found, tokens


def _cap(sizes: Sequence[int], over: int) -> int:
    """What of each may stay at most so that all of them together lose so much; below 0: nothing."""
    left = sum(sizes) - over
    for count, size in zip(range(len(sizes), 0, -1), sorted(sizes), strict=True):
        if size * count >= left:
            return left // count
        left -= size
    return left


def _total(items: Sequence[Visible], masks: Mapping[int, Mask]) -> int:
    """The tokens of what is shown under masks."""
    return sum(masks[item.seq].tokens if item.seq in masks else item.tokens for item in items)
