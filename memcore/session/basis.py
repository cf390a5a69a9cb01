"""Reading what a compaction is planned on: one snapshot, decoded outside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from memcore.compaction import (
    Basis,
    CompactionPolicy,
    Mended,
    Stage,
    fallback_plan,
    make_plan,
    mended,
)
from memcore.compaction.keeping import units_around
from memcore.compaction.mended import NOTHING
from memcore.formats import Entry, PairPolicy, bind
from memcore.log import SessionLog
from memcore.model import Item, ItemKind, Message, Plan
from memcore.session.picking import Frame, Picking, seen_item
from memcore.session.reading import Reading, decoded, head_of
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter

__all__ = ["Planned", "mended_plan", "read_basis"]

SEQ_MAX: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Planned:
    """A cut on a snapshot, and everything that shaping it needs."""

    basis: Basis
    fallback: tuple[str, Basis]
    """The status and the cut of what serves without a summary."""
    pairs: PairPolicy
    counter: TokenCounter
    """Whose counts these are; the session may be recounted before the plan is applied."""
    base: tuple[int, int, int]
    """``(session, view session, view number)``: what the plan was made on."""
    previous_summary: str | None
    summary_tokens: int
    """What the summary costs at present."""
    masked: frozenset[int]
    """The seqs of the masks in force."""
    covered: tuple[int, int]
    """``(cut seq, items)`` that the view in force covers."""
    repair: str | None
    """How the view in force mends."""
    from_whole: bool
    """Whether what lies behind the view in force splits no pair; if it does, contexts show more."""
    system: tuple[Message, ...] = ()
    """The leading items that no compaction folds; none if nothing is to be summarized."""


def read_basis(
    by: tuple[Reading, Picking], policy: CompactionPolicy, stage: Stage, *, fold: bool
) -> Planned | None:
    """Plan on the current history; None if there is no session.

    Without ``fold`` what is folded is not read, unless something in it may have to stay.
    """
    found: Callable[[], Planned] | None = by[0].run(
        lambda log, txn: _collect(log, txn, by, (policy, stage), fold=fold), None
    )
    return None if found is None else found()


def _collect(
    log: SessionLog,
    txn: ReadTxn,
    by: tuple[Reading, Picking],
    how: tuple[CompactionPolicy, Stage],
    *,
    fold: bool,
) -> Callable[[], Planned]:
    """Choose the cut and collect the rows; decoding is left to the returned function."""
    (reading, picking), (policy, stage) = by, how
    head, history, stored = head_of(log), log.history, log.current_view(txn)
    whole = log.full(txn, head)
    frame = picking.frame(log, txn, stored).with_recent(log, whole)
    ledger, first = frame.seen, min(frame.demand.first, history.count)
    plan, status, fallback = _cuts(log, txn, reading, frame, how)
    cuts = tuple(ledger.safe_cuts()) if _pins(stage) else ()
    ends = (plan.cut if fold or _pins(stage) else first, fallback.cut)
    mends = policy.repair is not None
    before, lo, hi = _looked_at(log, frame, stage, ends, cuts, mends=mends)
    places = [*before, *range(lo, hi)]
    rows = [row for at in before for row in reading.collect(log, txn, at, at + 1)]
    rows += reading.collect(log, txn, lo, hi)
    asks = fold and stage.summary is not None and plan.folds
    pins = reading.collect(log, txn, 0, frame.pins, by=frame.start) if asks else []
    opened = frozenset(ledger.open_positions())
    summary = None if stored is None else stored.view.summary
    from_whole = ledger.is_safe(first)
    base = (log.session, head.view_session, head.view_number)
    earlier_tokens = sum(ledger.sum_between(at, at + 1) for at in frame.kept)
    pin_tokens = ledger.sum_between(0, frame.pins) + earlier_tokens
    summary_tokens = frame.demand.fixed_tokens - pin_tokens
    masked = frozenset(frame.masks)
    repair = None if stored is None else stored.view.repair
    pairs, counter = log.policy, log.counter
    covered = (0, 0) if stored is None else (stored.view.cut_seq, stored.view.covered)

    def planned() -> Planned:
        items = dict(_shown(zip(places, rows, strict=True), frame, must=plan.cut))
        basis = Basis(
            plan,
            items,
            tuple(frame.kept),
            earlier_tokens,
            pins=frame.pins,
            cuts=cuts,
            opened=opened,
            masks=frame.masks,
        )
        return Planned(
            basis,
            (status, replace(basis, plan=fallback)),
            pairs,
            counter,
            base,
            summary,
            summary_tokens,
            masked,
            covered=covered,
            repair=repair,
            from_whole=from_whole,
            system=tuple(item.message for item in decoded(pins, skip_corrupt=True)),
        )

    return planned


def _cuts(
    log: SessionLog,
    txn: ReadTxn,
    reading: Reading,
    frame: Frame,
    how: tuple[CompactionPolicy, Stage],
) -> tuple[Plan, str, Plan]:
    """Where the plan cuts; and the status and the cut of what serves without a summary."""
    history, revision = log.history, head_of(log).revision
    first = min(frame.demand.first, history.count)
    plan = make_plan(
        frame.seen,
        how[1].keep,
        first=first,
        revision=revision,
        seq_at=history.seq_at,
        window_tokens=how[0].window_tokens,
    )
    fallback = fallback_plan(
        frame.seen,
        log.policy,
        first=first,
        revision=revision,
        seq_at=history.seq_at,
        answers_of=lambda position: _answers_of(reading, log, txn, position),
    )
    return plan, *fallback


def mended_plan(plan: Plan, planned: Planned, mode: str | None) -> tuple[Plan, Mended]:
    """The plan with the masks that mend what stays, and what they mend; as it is without a mode."""
    if mode is None or not (plan.folds or planned.from_whole):
        return plan, NOTHING
    items, pinned = planned.basis.items, frozenset(plan.pinned)
    stays = [items[at] for at in sorted(items) if at >= plan.cut or items[at].seq in pinned]
    masks = {mask.seq: mask for mask in plan.masks}
    seen = [item for item in (seen_item(each, masks) for each in stays) if item is not None]
    entries = [Entry(each.seq, each.message, event=each.kind == ItemKind.EVENT) for each in seen]
    over = {**planned.basis.masks, **masks}
    work = mended(entries, planned.pairs, planned.counter, mode, over=over)
    sizes = {item.seq: item.tokens for item in seen}
    saved = sum(sizes[mask.seq] - mask.tokens for mask in work.masks)
    masks.update({mask.seq: mask for mask in work.masks})
    order = tuple(masks[seq] for seq in sorted(masks))
    return replace(plan, masks=order, tokens_kept=plan.tokens_kept - saved), work


def _pins(stage: Stage) -> bool:
    return stage.keep is not None and stage.keep.pins


def _looked_at(
    log: SessionLog,
    frame: Frame,
    stage: Stage,
    ends: tuple[int, int],
    cuts: tuple[int, ...],
    *,
    mends: bool,
) -> tuple[list[int], int, int]:
    """Positions before ``lo``, and the range ``lo .. hi``, whose items shaping looks at.

    ``ends`` are what the plan folds up to and what its fallback does. What is asked for from below
    an earlier cut brings along what it hangs together with by ``cuts``, the safe ones.
    """
    lo = min(frame.demand.first, log.history.count)
    hi = max(ends[0], lo)
    if stage.reducers or mends:
        hi = log.history.count
    elif _pins(stage):
        hi = max(hi, *ends)
    asked = {at for at in _asked_for(log, frame, stage, lo) if at < lo}
    around = (at for at in units_around(cuts, asked, stop=lo) if at >= frame.pins)
    return sorted({*frame.kept, *around}), lo, hi


def _asked_for(log: SessionLog, frame: Frame, stage: Stage, stop: int) -> Iterator[int]:
    """Positions below ``stop`` that the policy keeps by their place."""
    if stage.keep is None:
        return
    yield from range(frame.pins, min(frame.pins + stage.keep.first_items, stop))
    position_from = log.history.position_from
    for lo, hi in stage.keep.pinned:
        yield from range(
            position_from(min(lo, SEQ_MAX)), min(position_from(min(hi + 1, SEQ_MAX)), stop)
        )


def _shown(
    placed: Iterable[tuple[int, Any]], frame: Frame, *, must: int
) -> Iterable[tuple[int, Item]]:
    """Decoded items as they are shown; behind ``must`` damaged ones are passed over.

    What is folded has to be read; what stays is only looked at for what could be masked.
    """
    for at, row in placed:
        for item in decoded([row], skip_corrupt=at >= must):
            seen = seen_item(item, frame.masks)
            if seen is not None:
                yield at, seen


def _answers_of(reading: Reading, log: SessionLog, txn: ReadTxn, position: int) -> list[int]:
    """Positions of the results of the calls that the item at ``position`` makes."""
    rows = reading.collect(log, txn, position, log.history.count)
    items = list(decoded(rows))
    entries = [Entry(i.seq, i.message, event=i.kind == ItemKind.EVENT) for i in items]
    slots = bind(entries).calls[0]
    return sorted({position + at for slot in slots for at in slot.results})
