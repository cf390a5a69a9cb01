"""Applying a plan: one view record, in one transaction that checks that the plan still holds."""

from __future__ import annotations

from memcore.errors import PlanStaleError
from memcore.log import Draft
from memcore.model import Plan, View
from memcore.views import StoredView, write_view

__all__ = ["applies", "record_view"]

Base = tuple[int, int, int]
"""``(session, view session, view number)`` that a plan was made on."""


def applies(draft: Draft, plan: Plan, base: Base) -> bool:
    """Whether the plan's cut is still live and no other view was recorded since."""
    head = draft.head
    return (draft.log.session, head.view_session, head.view_number) == base and (
        not plan.cut or draft.position_of(plan.cut_seq) == plan.cut - 1
    )


def record_view(
    draft: Draft,
    plan: Plan,
    *,
    based_on: Base,
    summary: str | None,
    status: str,
    tokens_after: int,
    now_ms: int,
) -> View:
    """Write the view of a plan and make it the session's current one.

    Raises:
        PlanStaleError: the history was cut below the plan, or another compaction came first.
    """
    if not applies(draft, plan, based_on):
        msg = (
            "the session changed while the summary was made (another compaction, an undo or a "
            "rewind below the cut): nothing was compacted; plan again"
        )
        raise PlanStaleError(msg)
    head = draft.head
    view = View(
        number=head.next_view,
        parent=head.view_number,
        cut_seq=plan.cut_seq,
        covered=plan.cut,
        summary=summary,
        pinned=plan.pinned,
        status=status,
        tokens_before=plan.tokens_before,
        tokens_after=tokens_after,
        created_at=now_ms / 1000,
    )
    write_view(
        draft.txn,
        draft.log.scope,
        StoredView(view, draft.chain_at(plan.cut_seq), draft.log.session, head.view_session),
    )
    head.next_view += 1
    head.view_session, head.view_number = draft.log.session, view.number
    return view
