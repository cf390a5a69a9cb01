"""Repair of an illegal history by a view that leaves out the broken parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from memcore.compaction import Mended, PlanOutcome, make_plan, mended, record_view
from memcore.compaction.plan import NOTHING
from memcore.context import Selection, fixed_cost
from memcore.errors import InvalidOptionError, PlanStaleError, RevisionConflict
from memcore.log import CachedSession, SessionTxn
from memcore.model import Mask, OpenCall, Plan, Repair, RepairResult, View
from memcore.options import checked_bool
from memcore.records import record
from memcore.rows.views import StoredView, is_known, view_chain
from memcore.session.append import Append, abandon_event
from memcore.session.change import Change
from memcore.session.content_filter import admitted_outcome
from memcore.session.context import WHOLE, Picked, find_window, pick
from memcore.session.engine import SessionRef
from memcore.session.read import head_of, open_calls, read_log
from memcore.store.interface import ReadTxn
from memcore.wire.repair import MODES

__all__ = [
    "REPAIR_ATTEMPTS",
    "RecordRepair",
    "RepairDraft",
    "repair",
]


REPAIR_ATTEMPTS: Final = 8
"""Attempts to plan and record a repair while others keep changing the session."""
_NO_PLAN: Final = Plan(0, 0, 0, 0)


@record(frozen=True, slots=True)
class RepairDraft:
    """A repair on its way to becoming a view."""

    mode: str
    work: Mended = NOTHING
    plan: Plan = _NO_PLAN
    base: tuple[int, int, int] = (0, 0, 0)
    counter: str = ""
    summary: str | None = None
    summary_tokens: int = 0
    inherits: bool = False
    open_calls: tuple[OpenCall, ...] = ()
    """The open calls given up by it."""
    covered: tuple[int, int] = (0, 0)
    """``(cut seq, items)`` covered by the view in force."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to record."""
        return not self.work.repairs

    def result(self, view: View | None = None) -> RepairResult:
        """Make the result of ``Session.repair``."""
        status = "planned" if view is None else "repaired"
        return RepairResult(
            status if self.work.repairs or self.open_calls else "nothing",
            self.mode,
            self.work.repairs,
            self.work.masks,
            self.plan.tokens_before,
            self.plan.tokens_kept,
            self.open_calls,
            view,
        )


class _Seen(NamedTuple):
    """The facts that a repair is planned on, from one snapshot."""

    picked: Picked
    """Everything shown by a context without a budget."""
    plan: Plan
    base: tuple[int, int, int]
    masks: Mapping[int, Mask]
    """The masks in force."""
    known: set[Repair]
    """Repairs already recorded by the views in force."""
    pinned: frozenset[int]
    covered: tuple[int, int]
    """``(cut seq, items)`` covered by the view in force."""


def repair(ref: SessionRef, mode: str, *, plan: bool, close_open: bool) -> RepairResult:
    """Repair a foreign history by recording a view; see ``Session.repair``.

    Raises:
        RevisionConflict, PlanStaleError: others kept changing the session.
        InvalidOptionError, ReadOnlyError, CorruptValueError, StorageError
    """
    mode = _check(ref, mode, plan=plan, close_open=close_open)
    draft = _prepare(ref, mode, close_open=close_open)
    if plan:
        return draft.result()
    transact, given_up = ref.engine.store.transact, draft.open_calls
    if given_up:
        transact(_give_up(ref, draft))
        # Calls that were given up are unanswered now, which the first plan did not know.
        draft = _prepare(ref, mode)
    for left in range(REPAIR_ATTEMPTS, 0, -1):
        draft = replace(draft, open_calls=given_up)
        if draft.is_empty:
            break
        try:
            return draft.result(transact(RecordRepair(ref, draft)))
        except (RevisionConflict, PlanStaleError):
            if left == 1:
                raise
        draft = _prepare(ref, mode)
    return draft.result()


def _check(ref: SessionRef, mode: object, *, plan: object, close_open: object) -> str:
    """Return the mode, checked.

    Raises:
        InvalidOptionError: the mode is unknown, or an option is not a bool.
        ReadOnlyError: nothing can be recorded.
    """
    if mode not in MODES or not isinstance(mode, str):
        msg = f"mode: expected {' or '.join(map(repr, MODES))}, got {mode!r:.80}"
        raise InvalidOptionError(msg)
    checked_bool("close_open", close_open)
    if not checked_bool("plan", plan):
        ref.need_writable()
    return mode


# --- Plan ---------------------------------------------------------------------------------------


def _prepare(ref: SessionRef, mode: str, *, close_open: bool = False) -> RepairDraft:
    """Plan on the current history; writes nothing."""
    seen = read_log(ref, _collect, None)
    if seen is None:
        return RepairDraft(mode)
    picked = seen.picked.selection()
    assert picked is not None  # noqa: S101 - it was picked without reuse
    by, counter, summary = picked.policy, picked.counter, picked.material.summary
    work, before, after = _work(seen, picked, mode)
    return RepairDraft(
        mode,
        work,
        replace(seen.plan, masks=work.masks, tokens_before=before, tokens_kept=after),
        seen.base,
        counter.id,
        summary,
        fixed_cost(by, counter, pin_tokens=0, summary=summary),
        any(seq > seen.plan.cut_seq or seq in seen.pinned for seq in seen.masks),
        tuple(call for _, call in open_calls(ref)) if close_open else (),
        seen.covered,
    )


def _collect(log: CachedSession, txn: ReadTxn) -> _Seen:
    head, history, stored = head_of(log), log.history, log.current_view(txn)
    whole = log.full(txn, head)
    frame = find_window(log, txn, stored).with_recent(log, whole)
    plan = make_plan(
        frame.seen,
        None,
        first=min(frame.demand.first, history.count),
        revision=head.revision,
        seq_at=history.seq_at,
    )
    chain: Iterable[StoredView] = ()
    if stored is not None:
        chain = view_chain(txn, log.scope, stored.owner, stored.view.number)
    known = {
        repair
        for each in chain
        for repair in each.view.repairs
        if repair.seq is None or is_known(each, repair.seq, history.owner_of)
    }
    pinned = tuple(history.seq_at(at) for at in frame.kept)
    return _Seen(
        pick(log, txn, WHOLE),
        replace(plan, pinned=pinned),
        (log.session, head.view_session, head.view_number),
        frame.masks,
        known,
        frozenset(pinned),
        (0, 0) if stored is None else (stored.view.cut_seq, stored.view.covered),
    )


def _work(seen: _Seen, picked: Selection, mode: str) -> tuple[Mended, int, int]:
    """Plan the repairs, and count the tokens shown before and after them."""
    material = picked.material
    tokens = material.tokens[len(material.pins) :]
    if material.plain is not None:  # already legal as it is, in every format
        return NOTHING, sum(tokens), sum(tokens)
    entries = material.kept + material.suffix
    # An event counts in the log and is shown in no context.
    before = sum(size for entry, size in zip(entries, tokens, strict=True) if not entry.event)
    covered = {entry.seq for entry in entries if entry.seq <= seen.plan.cut_seq}
    found = mended(
        entries,
        picked.policy,
        picked.counter,
        mode,
        over=seen.masks,
        locked=covered - seen.pinned,
    )
    masked = {mask.seq for mask in found.masks}
    new = [each for each in found.repairs if each.seq in masked or each not in seen.known]
    sizes = {entry.seq: size for entry, size in zip(entries, tokens, strict=True)}
    gain = sum(sizes[mask.seq] - mask.tokens for mask in found.masks)
    return replace(found, repairs=tuple(new)), before, before - gain


# --- Commit -------------------------------------------------------------------------------------


def _give_up(ref: SessionRef, draft: RepairDraft) -> Append:
    """Append the events that give up the draft's open calls."""
    # Without those that were answered since the plan.
    keys = [key for key, call in open_calls(ref) if call in draft.open_calls]
    events = [abandon_event(ref, key) for key in keys]
    return Append(ref, events, creates=False)


class RecordRepair(Change[View]):
    """Record the view of a repair, if the session has not changed.

    Raises (when run):
        RevisionConflict: it has changed; plan again.
    """

    __slots__ = ("draft", "now_ms", "outcome")
    creates = False
    revised = False

    def __init__(self, ref: SessionRef, draft: RepairDraft) -> None:
        self.draft, self.now_ms = draft, ref.engine.now_ms()
        outcome = PlanOutcome(
            draft.plan,
            "repaired",
            draft.summary,
            tokens_before=draft.plan.tokens_before + draft.summary_tokens,
            tokens_after=draft.plan.tokens_kept + draft.summary_tokens,
            covered=draft.covered,
            counter=draft.counter,
            policy=f"repair/{draft.mode}",
            reason=draft.work.reason,
            repair=draft.mode,
            repairs=draft.work.repairs,
        )
        self.outcome = admitted_outcome(ref, outcome)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> View:
        """Write the view."""
        draft = self.draft
        # Any append may be the result of a call that the plan takes out: the cut proves nothing.
        session.expect(draft.plan.revision)
        return record_view(
            session,
            self.outcome,
            based_on=draft.base,
            inherits=draft.inherits,
            now_ms=self.now_ms,
        )
