"""Applying a plan: one view record, in one transaction that checks that the plan still holds."""

from __future__ import annotations

from dataclasses import dataclass

from memcore.errors import PlanStaleError
from memcore.log import Draft
from memcore.model import Plan, Repair, View
from memcore.views import StoredView, write_view

__all__ = ["Base", "Outcome", "applies", "record_view"]

Base = tuple[int, int, int]
"""``(session, view session, view number)`` that a plan was made on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan, on its way to a view."""

    plan: Plan
    status: str
    summary: str | None
    tokens_before: int
    """Of what is shown behind the pins, the summary so far included."""
    tokens_after: int
    counter: str
    """Whose counts these and the plan's are."""
    policy: str = ""
    reason: str | None = None
    covered: tuple[int, int] = (0, 0)
    """``(cut seq, items)`` that the view before covers: what folds nothing covers no more."""
    repair: str | None = None
    repairs: tuple[Repair, ...] = ()


def applies(draft: Draft, plan: Plan, base: Base) -> bool:
    """Whether the plan's cut is still live and no other view was recorded since."""
    head = draft.head
    return (draft.log.session, head.view_session, head.view_number) == base and (
        not plan.cut or draft.position_of(plan.cut_seq) == plan.cut - 1
    )


def record_view(
    draft: Draft, outcome: Outcome, *, based_on: Base, inherits: bool, now_ms: int
) -> View:
    """Write the view of a plan and make it the session's current one.

    Items appended since the plan was made stay behind it; masks of items that are not live any more
    are left out, and those of repairs that rest on other items if the session was changed at all: a
    result may have come for a call that seemed unanswered. ``inherits`` says that masks of earlier
    views are in force behind the cut.

    Raises:
        PlanStaleError: the history was cut below the plan, or another compaction came first.
    """
    plan = outcome.plan
    if not applies(draft, plan, based_on):
        msg = (
            "the session changed while the summary was made (another compaction, an undo or a "
            "rewind below the cut): nothing was compacted; plan again"
        )
        raise PlanStaleError(msg)
    head = draft.head
    cut_seq, covered = (plan.cut_seq, plan.cut) if plan.folds else outcome.covered
    is_same = head.revision == plan.revision
    masks = [mask for mask in plan.masks if is_same or not mask.because]
    places = [(mask, draft.locate(mask.seq)) for mask in masks]
    masked = [(mask, place[1]) for mask, place in places if place is not None]
    view = View(
        number=head.next_view,
        parent=head.view_number,
        cut_seq=cut_seq,
        covered=covered,
        summary=outcome.summary,
        pinned=plan.pinned,
        status=outcome.status,
        tokens_before=outcome.tokens_before,
        tokens_after=outcome.tokens_after,
        created_at=now_ms / 1000,
        counter=outcome.counter,
        masks=tuple(mask for mask, _ in masked),
        policy=outcome.policy,
        reason=outcome.reason,
        repair=outcome.repair,
        repairs=outcome.repairs,
    )
    stored = StoredView(
        view,
        draft.chain_at(cut_seq) if cut_seq else 0,
        draft.log.session,
        head.view_session,
        tuple(owner for _, owner in masked),
        inherits,
    )
    write_view(draft.txn, draft.log.scope, stored)
    head.next_view += 1
    head.view_session, head.view_number = draft.log.session, view.number
    return view
