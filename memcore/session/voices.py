"""Several agents in one history: which of its items one of them sees.

What belongs together is shown or left out together: a call with all that answers it, and a
Responses reasoning item with what its author said behind it. Such a group is its caller's, whoever
wrote the results. What is shown is a history of its own, with a ledger of its own: cuts and budgets
know nothing of what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from memcore._fast import pack_facts
from memcore.context import Material, Picked, choose, fixed_cost, is_regular, open_from
from memcore.envelope import RESULT_TYPES
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.formats import Entry, PairPolicy
from memcore.formats.binding import Binder
from memcore.formats.policy import GLUE_REASONING
from memcore.log import SessionLog
from memcore.log.ledger import open_call_tokens
from memcore.model import Item, ItemKind, Mask
from memcore.session.picking import Ask, Frame, Pick, Picking, seen_item
from memcore.session.reading import Reading, decoded, head_of
from memcore.store.base import ReadTxn

__all__ = ["SHARES", "Voices", "Voicing", "checked_voices"]

_SEED: Final = b"memcore-no-seed."
"""Facts are compared with each other alone: no file's seed is needed."""
SHARES: Final = ("results", "all", "none")
EVERYBODY: Final = (None, "user")
"""Whose items are everybody's: those of no author, and those of the user."""


class Voices(NamedTuple):
    """Who looks at a history, and what of the others they see."""

    authors: frozenset[str]
    share: str

    def hears(self, by: str | None) -> bool:
        """Whether items of this author are shown whatever they are."""
        return by in EVERYBODY or by in self.authors


def checked_voices(authors: Iterable[str] | None, share: str | None) -> Voices | None:
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
    return None if share == "all" else Voices(frozenset(names), share or "results")


class Marks:
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
        _, _, calls, answers = binder.take(at, Entry(item.seq, item.message, event=is_event))
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

    def shown(self, voices: Voices) -> list[bool]:
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


class Voicing:
    """The contexts of agents that share one session; all of it under the log's lock."""

    __slots__ = ("_marks", "_picking", "_reading", "shown")

    def __init__(self, reading: Reading, picking: Picking) -> None:
        self._reading = reading
        self._picking = picking
        self._marks: Marks | None = None
        self.shown: list[int] = []
        """Seqs of what was chosen last."""

    def marks(self, log: SessionLog, txn: ReadTxn) -> Marks:
        """What is known of all live items.

        Raises:
            CorruptValueError: one of them is damaged: nobody can tell whose it is.
        """
        head = head_of(log)
        place = (log.session, head.epoch)
        found = self._marks
        if found is None or found.place != place or len(found) > head.count:
            found = Marks(place, glued=bool(log.policy.glue & GLUE_REASONING))
        self._marks = None  # an error leaves nothing behind that was half made
        if len(found) < head.count:
            for item in decoded(self._reading.collect(log, txn, len(found), head.count)):
                found.add(item)
        self._marks = found
        return found

    def seqs(self, voices: Voices, *, skip_corrupt: bool) -> set[int]:
        """The live items that are shown."""

        def collect(log: SessionLog, txn: ReadTxn) -> set[int]:
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

    def _sound_seqs(self, log: SessionLog, txn: ReadTxn, voices: Voices) -> set[int]:
        marks = Marks((0, 0), glued=bool(log.policy.glue & GLUE_REASONING))
        rows = self._reading.collect(log, txn, 0, head_of(log).count)
        items = list(decoded(rows, skip_corrupt=True))
        for item in items:
            marks.add(item)
        shown = marks.shown(voices)
        return {item.seq for item, is_shown in zip(items, shown, strict=True) if is_shown}

    def pick(self, log: SessionLog, txn: ReadTxn, ask: Ask, voices: Voices) -> Pick:
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
        )
        return lambda: Picked(_material(parts, frame.masks, summary, plain_by=plain_by), *rest)

    def _rows(self, log: SessionLog, txn: ReadTxn, places: list[int]) -> list[Any]:
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
        self, log: SessionLog, txn: ReadTxn, marks: Marks, frame: Frame, voices: Voices
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
) -> Material:
    """What is shown of the rows of pins, kept items and the suffix.

    ``plain_by`` is the policy if the pairs of the suffix need no repair by it.
    """
    pins, kept, suffix = (list(decoded(rows)) for rows in parts)
    beside = [seen for item in kept if (seen := seen_item(item, masks)) is not None]
    after = [seen for item in suffix if (seen := seen_item(item, masks)) is not None]
    found = Material(
        pins=[Entry(item.seq, item.message) for item in pins],
        tokens=[item.tokens for item in (*pins, *beside, *after)],
        summary=summary,
    )
    if plain_by is not None and not beside and not masks:
        plain = [item.message for item in after]
        if plain_by.takes_ids(plain):
            found.plain = plain
            return found
    found.kept = [Entry(item.seq, item.message) for item in beside]
    found.suffix = [Entry(item.seq, item.message) for item in after]
    found.altered = bool(masks)
    return found
