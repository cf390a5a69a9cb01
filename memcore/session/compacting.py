"""Compaction of one session: plan, summarize outside any transaction, record in one commit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from memcore.compaction import (
    CompactionPolicy,
    Keep,
    Mended,
    Outcome,
    Pressure,
    Reduction,
    Stage,
    compaction_policy,
    record_view,
    shape,
)
from memcore.compaction.mended import NOTHING as NO_REPAIR
from memcore.compaction.presets import LIGHT
from memcore.context import fixed_cost
from memcore.errors import ClosedError, InvalidOptionError, StorageError
from memcore.log import Draft
from memcore.model import CompactionResult, Message, Plan, SummaryRequest, View
from memcore.options import checked_bool, checked_callable
from memcore.session.address import Address
from memcore.session.asking import ask
from memcore.session.basis import Planned, mended_plan, read_basis
from memcore.session.changes import Changes, Closure
from memcore.session.picking import Picking
from memcore.session.pressure import pressure_of
from memcore.session.reading import Reading
from memcore.session.viewing import admitted_outcome, admitted_summary

__all__ = ["AnySummarizer", "Asked", "Compacting", "CompactionDraft", "checked_summarizer"]

AnySummarizer = Callable[[SummaryRequest], str | Awaitable[str]]
REDUCE: Final = Stage(name="fallback", keep=None, reducers=LIGHT)
"""What masks instead of a fold when there is no summary to be had."""
_NOTHING: Final = Plan(0, 0, 0, 0)
_log = logging.getLogger("memcore")


@dataclass(frozen=True, slots=True)
class Asked:
    """How a caller wants one compaction."""

    stage: str | None = None
    """The stage to run, whether or not it is due."""
    force: bool = False
    """Compact although no stage is due."""
    summarizes: bool = False
    """Whether a summarizer is at hand."""


@dataclass(frozen=True, slots=True)
class CompactionDraft:
    """A plan on its way to a view."""

    policy: CompactionPolicy
    stage: Stage
    planned: Planned | None
    """None: there is no session."""
    plan: Plan = _NOTHING
    messages: tuple[Message, ...] = ()
    """What the plan folds."""
    status: str = "trimmed"
    summary: str | None = None
    error: Exception | None = None
    reason: str | None = None
    work: Mended = NO_REPAIR
    """What the policy mends of what stays."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record."""
        return self.planned is None or self.status in ("nothing", "refused") or self.plan.is_empty

    @property
    def wants_summary(self) -> bool:
        """Whether a summarizer is to be asked."""
        return self.plan.folds and self.stage.summary is not None

    def nothing(self) -> CompactionResult:
        """The result of a compaction that recorded nothing."""
        status = "refused" if self.status == "refused" else "nothing"
        return CompactionResult(status, self.plan, None, self.error, self.reason)

    def recorded(self, view: View) -> CompactionResult:
        """The result of a compaction that recorded this view."""
        return CompactionResult(self.status, self.plan, view, self.error, self.reason)


class Compacting:
    """The compaction of one session."""

    __slots__ = ("_address", "_changes", "_picking", "_reading")

    def __init__(self, address: Address) -> None:
        self._address = address
        self._changes = Changes(address)
        self._reading = Reading(address)
        self._picking = Picking(self._reading)

    # --- when -------------------------------------------------------------------------------------

    def policy(self, given: object = None) -> CompactionPolicy:
        """The policy of a call: what it gives, else the handle's, else the database's."""
        if given is None:
            return self._address.options.compaction or self._address.backing.compaction
        return compaction_policy(given)

    def asked(
        self,
        policy: object,
        stage: str | None,
        *,
        keep_last: int | None,
        keep_tokens: int | None,
        force: bool,
    ) -> tuple[CompactionPolicy, Asked]:
        """The policy and the wishes of a call; numbers of what to keep are a wish to compact."""
        rule = self.policy(policy).with_keep(last_items=keep_last, tokens=keep_tokens)
        numbers = keep_last is not None or keep_tokens is not None
        return rule, Asked(stage, checked_bool("force", force) or numbers, summarizes=True)

    def pressure(self, policy: CompactionPolicy) -> Pressure:
        """How full the session is, and which stage of the policy is due."""
        now_ms = self._address.backing.now_ms()
        return self._reading.run(
            lambda log, txn: pressure_of(log, txn, (self._picking, self._reading), policy, now_ms),
            Pressure(),
        )

    def stage(self, policy: CompactionPolicy, asked: Asked) -> Stage | None:
        """The stage that a compaction runs: the named one, else the heaviest that is due.

        None if none is due, unless the caller insists or the policy has no trigger, so that it is
        never due: then the heaviest, or, with a summarizer at hand, the heaviest that asks for a
        summary.
        """
        if asked.stage is not None:
            return policy.stage(asked.stage)
        due = self.pressure(policy).stage
        if due is not None:
            return policy.stage(due)
        if not asked.force and any(stage.triggers for stage in policy.stages):
            return None
        heaviest = policy.stages[-1]
        if not asked.summarizes:
            return heaviest
        summarized = (stage for stage in reversed(policy.stages) if stage.summary is not None)
        return next(summarized, heaviest)

    # --- plan -------------------------------------------------------------------------------------

    def begin(
        self, policy: CompactionPolicy, asked: Asked, *, fold: bool = True
    ) -> CompactionDraft:
        """Choose the stage and plan it; an empty draft with the reason if no stage is due."""
        stage = self.stage(policy, asked)
        if stage is not None:
            return self.prepare(policy, stage, fold=fold)
        found = self.pressure(policy)
        why = (
            "the last item is a tool result, which the model has yet to see"
            if found.waiting and found.items
            else f"{found.items:,} items of {found.tokens:,} tokens make no stage of policy "
            f"{policy.name!r} due"
        )
        reason = f"{why}; force=True or stage= compacts all the same"
        return CompactionDraft(policy, policy.stages[-1], None, status="nothing", reason=reason)

    def prepare(
        self,
        policy: CompactionPolicy,
        stage: Stage,
        *,
        fold: bool = True,
        protect: Keep | None = None,
    ) -> CompactionDraft:
        """Plan on the current history and collect what is to be folded; writes nothing.

        Without ``fold`` the plan is the same, but there are no messages to summarize. What
        ``protect`` keeps by name or place no reducer touches; None: what the stage so keeps.
        """
        planned = read_basis((self._reading, self._picking), policy, stage, fold=fold)
        if planned is None:
            return CompactionDraft(policy, stage, None, status="nothing")
        plan, messages = shape(planned.basis, stage, self._reduction(planned), protect=protect)
        plan, work = mended_plan(plan, planned, policy.repair)
        status = "trimmed" if plan.folds else "masked"
        summary = planned.previous_summary
        return CompactionDraft(policy, stage, planned, plan, messages, status, summary, work=work)

    def _reduction(self, planned: Planned) -> Reduction:
        return Reduction(
            planned.pairs,
            planned.counter,
            offload=item_reference,
            embed=self._address.backing.embed,
        )

    def check(self, summarize: object, *, awaits: bool = False) -> None:
        """Refuse what cannot work before a model is asked.

        Raises:
            InvalidOptionError: ``summarize`` is neither None nor callable, or a coroutine function
                that nobody here awaits.
            ReadOnlyError: nothing can be recorded.
        """
        self._address.need_writable()
        checked_summarizer(summarize, awaits=awaits)

    # --- summary ----------------------------------------------------------------------------------

    def summarized(
        self,
        draft: CompactionDraft,
        summarize: AnySummarizer | None,
        *,
        timeout_seconds: float | None = None,
    ) -> CompactionDraft:
        """The draft with its summary, or what serves if there is none to be had."""
        if summarize is None or not draft.wants_summary:
            return self.settled(draft)
        try:
            summary = ask(summarize, self.request(draft), timeout_seconds)
        except (StorageError, ClosedError):
            raise
        except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
            return self.failed(draft, exc)
        return self.with_summary(draft, summary)

    def request(self, draft: CompactionDraft) -> SummaryRequest:
        """What the summarizer is given."""
        style, planned = draft.stage.summary, draft.planned
        assert style is not None  # noqa: S101 - what wants_summary says
        assert planned is not None  # noqa: S101 - the same
        return SummaryRequest(
            draft.messages,
            planned.previous_summary,
            self._address.name,
            max_tokens=style.max_tokens,
            language=style.language,
            instructions=style.instructions,
            system=planned.system,
        )

    def with_summary(self, draft: CompactionDraft, summary: object) -> CompactionDraft:
        """The draft with what the summarizer returned."""
        if not isinstance(summary, str) or not summary.strip():
            kind = "an empty text" if isinstance(summary, str) else type(summary).__name__
            return self.failed(draft, TypeError(f"summarize returned {kind}, expected a text"))
        admitted = admitted_summary(self._address, summary)
        if not isinstance(admitted, str):
            return self.failed(draft, admitted)
        return self.settled(replace(draft, status="summarized", summary=admitted))

    def failed(self, draft: CompactionDraft, error: Exception) -> CompactionDraft:
        """The draft of what serves without a summary; an earlier summary stays."""
        # Not the error itself: its text and its traceback may hold content.
        name, kind = self._address.name, type(error).__name__
        _log.warning("session %r: the summarizer failed: %s", name, kind)
        reason = f"the summarizer failed: {type(error).__name__}: {error}"
        return self._ladder(replace(draft, error=error, reason=reason))

    # --- guards -----------------------------------------------------------------------------------

    def settled(self, draft: CompactionDraft) -> CompactionDraft:
        """The draft, if it saves enough; else what serves in its place, or a refusal."""
        if draft.is_empty:
            return replace(draft, status="nothing")
        before, after = self.tokens_before(draft), self.tokens_after(draft)
        if after < before and before - after >= draft.policy.min_gain * before:
            return draft
        reason = (
            f"{draft.status}: {before:,} tokens before, {after:,} after; it has to save some, and "
            f"at least {draft.policy.min_gain:.0%}"
        )
        _log.warning("session %r: compaction refused: %s", self._address.name, reason)
        draft = replace(draft, reason=reason)
        if draft.status != "summarized":
            return _refused(draft)
        # Where nothing is due, a summary that saves nothing is no reason to show less.
        due = self.pressure(draft.policy).stage is not None
        return self._ladder(draft) if due else _refused(draft)

    def _ladder(self, draft: CompactionDraft) -> CompactionDraft:
        """What serves in place of a summary: masks, then a short safe suffix, then one item."""
        planned = draft.planned
        assert planned is not None  # noqa: S101 - a summary was asked for
        previous = planned.previous_summary
        if "reduce" in draft.policy.fallback:
            tried = self.prepare(draft.policy, REDUCE, protect=draft.stage.keep)
            tried = replace(tried, error=draft.error, reason=draft.reason)
            if not tried.is_empty and self._gains(tried, draft.policy.min_gain):
                return replace(tried, status="fallback_reduce")
        status, basis = planned.fallback
        if status.removeprefix("fallback_") in draft.policy.fallback:
            stage = replace(draft.stage, reducers=(), triggers=())
            plan, _ = shape(basis, stage, self._reduction(planned))
            plan, work = mended_plan(plan, planned, draft.policy.repair)
            tried = replace(draft, plan=plan, status=status, summary=previous, work=work)
            if plan.folds and self._gains(tried, 0.0):
                return tried
        if status == "nothing":
            return replace(draft, plan=basis.plan, status=status, summary=previous)
        return _refused(replace(draft, summary=previous))

    def _gains(self, draft: CompactionDraft, least: float) -> bool:
        before, after = self.tokens_before(draft), self.tokens_after(draft)
        return after <= before and before - after >= least * before

    def tokens_before(self, draft: CompactionDraft) -> int:
        """Tokens of what is shown behind the pins at present."""
        assert draft.planned is not None  # noqa: S101 - no empty draft gets here
        return draft.plan.tokens_before + draft.planned.summary_tokens

    def tokens_after(self, draft: CompactionDraft) -> int:
        """Tokens of what would be shown behind the pins."""
        planned = draft.planned
        assert planned is not None  # noqa: S101 - no empty draft gets here
        return draft.plan.tokens_kept + fixed_cost(
            planned.pairs, planned.counter, pin_tokens=0, summary=draft.summary
        )

    # --- commit -----------------------------------------------------------------------------------

    def closure(self, draft: CompactionDraft) -> Closure[View]:
        """Record the view, if the plan still applies."""
        planned, plan = draft.planned, draft.plan
        assert planned is not None  # noqa: S101 - no empty draft gets here
        now_ms = self._address.backing.now_ms()
        outcome = Outcome(
            plan,
            draft.status,
            draft.summary,
            tokens_before=self.tokens_before(draft),
            tokens_after=self.tokens_after(draft),
            counter=planned.counter.id,
            policy=f"{draft.policy.name}/{draft.stage.name}",
            reason=draft.reason,
            covered=planned.covered,
            repair=draft.policy.repair or planned.repair,
            repairs=draft.work.repairs,
        )
        outcome = admitted_outcome(self._address, outcome)
        pinned = frozenset(plan.pinned)
        inherits = any(seq > plan.cut_seq or seq in pinned for seq in planned.masked)

        def work(working: Draft) -> View:
            return record_view(
                working, outcome, based_on=planned.base, inherits=inherits, now_ms=now_ms
            )

        return self._changes.change(work, create=False, revised=False)

    def recorded(self, draft: CompactionDraft) -> CompactionResult:
        """Record what there is to record.

        Raises:
            PlanStaleError, NotFoundError: the session changed under the plan, or is gone.
        """
        if draft.is_empty:
            return draft.nothing()
        return draft.recorded(self._address.backing.store.transact(self.closure(draft)))


def checked_summarizer(summarize: object, *, awaits: bool = False) -> bool:
    """Whether it is a coroutine function.

    Raises:
        InvalidOptionError: as ``Compacting.check``.
    """
    checked_callable("summarize", summarize)
    call = getattr(summarize, "__call__", None)  # noqa: B004 - an object with async __call__
    is_async = inspect.iscoroutinefunction(summarize) or inspect.iscoroutinefunction(call)
    if is_async and not awaits:
        msg = "summarize: a coroutine function needs memcore.aio, whose compact() awaits it"
        raise InvalidOptionError(msg)
    return is_async


def _refused(draft: CompactionDraft) -> CompactionDraft:
    return replace(draft, status="refused")


def item_reference(seq: int, call_id: str | None, text: str) -> str:
    """The reference of an offloaded text: the log keeps it as long as the item."""
    del text
    return f"item:{seq}" if call_id is None else f"item:{seq}:{call_id}"
