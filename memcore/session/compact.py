"""Compaction of a session: plan, summarize outside any transaction, record in one commit."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from memcore._fast import Ledger
from memcore.compaction import (
    Basis,
    CompactionPolicy,
    Keep,
    Mended,
    PlanOutcome,
    Pressure,
    Reduction,
    Stage,
    compaction_policy,
    fallback_plan,
    make_plan,
    mended,
    record_view,
    shape,
)
from memcore.compaction.plan import NOTHING
from memcore.compaction.plan import NOTHING as NO_REPAIR
from memcore.compaction.policy import units_around
from memcore.compaction.presets import LIGHT
from memcore.context import fixed_cost
from memcore.errors import (
    CallerError,
    ClosedError,
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
    PlanStaleError,
    StorageError,
)
from memcore.faces import logger
from memcore.log import CachedSession, SessionTxn
from memcore.model import (
    CompactionResult,
    Item,
    ItemKind,
    Mask,
    Message,
    Plan,
    Summarize,
    SummaryRequest,
    View,
)
from memcore.options import (
    checked_bool,
    checked_callable,
    checked_optional_int,
    checked_optional_seconds,
    counted,
)
from memcore.records import record
from memcore.session.change import Change
from memcore.session.content_filter import admitted_outcome, admitted_summary
from memcore.session.context import Window, find_window, seen_item
from memcore.session.engine import SessionRef
from memcore.session.read import Found, collect, decoded, head_of, opened, read_log
from memcore.session.session import AnyPolicy, Session, ref_of
from memcore.store.interface import ReadTxn
from memcore.telemetry import seen_compacting
from memcore.tokens import TokenCounter
from memcore.wire import PairPolicy, WireItem, bind

__all__ = [
    "PLAN_ATTEMPTS",
    "RETRY_CHANGE",
    "AnySummarizer",
    "Attempts",
    "CompactionDraft",
    "CompactionOptions",
    "Compactor",
    "Patience",
    "PlanInput",
    "ask_in_time",
    "asked",
    "begin",
    "call_in_thread",
    "check",
    "checked_summarizer",
    "choose_stage",
    "discard",
    "failed",
    "find_pressure",
    "make_request",
    "mended_plan",
    "policy_of",
    "prepare",
    "pressure_of",
    "read_plan_input",
    "record_change",
    "record_draft",
    "settled",
    "summarize",
    "tokens_after",
    "tokens_before",
    "with_summary",
]


# --- Summarizer calls in a thread of their own, so that the caller need not wait ------------------

Tell = Callable[[object, BaseException | None], object]


def ask_in_time(
    summarize: Callable[[SummaryRequest], object],
    request: SummaryRequest,
    timeout_seconds: float | None,
) -> object:
    """Call a summarizer; a coroutine that it returns is closed and so does not count as a summary.

    Raises:
        TimeoutError: it took longer; its thread keeps running, and its return value is ignored.
    """
    if timeout_seconds is None:
        return discard(summarize(request))
    answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
    # Closed in that thread: after a timeout nobody takes the answer out of the queue.
    call_in_thread(summarize, request, lambda found, error: answers.put((discard(found), error)))
    try:
        found, error = answers.get(timeout=min(timeout_seconds, threading.TIMEOUT_MAX))
    except Empty:
        msg = f"no summary within {timeout_seconds:g} seconds"
        raise TimeoutError(msg) from None
    if error is not None:
        raise error
    return found


def call_in_thread(
    summarize: Callable[[SummaryRequest], object], request: SummaryRequest, tell: Tell
) -> None:
    """Call the summarizer in a thread, which calls ``tell(answer, error)`` when done.

    It is a daemon thread: a hung one delays neither process exit nor, as a thread of the event
    loop's pool would, the end of ``asyncio.run`` or the calls queued after it.
    """
    # As if called on this thread: context variables, such as the current span, keep their values.
    context = contextvars.copy_context()

    def run() -> None:
        try:
            found = context.run(summarize, request)
        except BaseException as exc:  # noqa: BLE001 - re-raised by the caller
            tell(None, exc)
        else:
            tell(found, None)

    threading.Thread(target=run, name="memcore-summary", daemon=True).start()


def discard(found: object) -> object:
    """Return the answer; closes a coroutine that nobody will await, to avoid the warning."""
    if inspect.iscoroutine(found):
        found.close()
    return found


# --- Planning input: one snapshot, decoded outside it ---------------------------------------------

SEQ_MAX: Final = (1 << 62) - 1


@record(frozen=True, slots=True)
class PlanInput:
    """A cut on a snapshot, and everything needed to shape it."""

    basis: Basis
    fallback: tuple[str, Basis]
    """Status and cut of the fallback that needs no summary."""
    pairs: PairPolicy
    counter: TokenCounter
    """Counter of the plan's tokens; the session may be recounted before the plan is applied."""
    base: tuple[int, int, int]
    """``(session, view session, view number)`` that the plan is based on."""
    previous_summary: str | None
    summary_tokens: int
    """Tokens that the current summary costs."""
    masked: frozenset[int]
    """Seqs of the masks in force."""
    covered: tuple[int, int]
    """``(cut seq, items)`` covered by the view in force."""
    repair: str | None
    """Repair mode of the view in force."""
    from_whole: bool
    """True if the items after the view in force begin at a safe cut; else contexts show more."""
    system: tuple[Message, ...] = ()
    """The leading items that no compaction folds; empty if nothing is to be summarized."""


def read_plan_input(
    ref: SessionRef, policy: CompactionPolicy, stage: Stage, *, fold: bool
) -> PlanInput | None:
    """Plan on the current history; None if there is no session.

    Without ``fold`` the folded items are not read, unless some of them may have to stay.
    """
    found = read_log(ref, _collect, None, policy, stage, fold)
    return None if found is None else found.decoded()


class _PlanRows(NamedTuple):
    """A plan's input as read from a snapshot, its items still undecoded rows."""

    planned: PlanInput
    fallback: Plan
    places: list[int]
    rows: list[Found]
    pins: list[Found]
    masks: dict[int, Mask]

    def decoded(self) -> PlanInput:
        """Decode the items."""
        planned, basis = self.planned, self.planned.basis
        placed = zip(self.places, opened(self.rows), strict=True)
        items = dict(_shown(placed, self.masks, must=basis.plan.cut))
        basis = replace(basis, items=items)
        return replace(
            planned,
            basis=basis,
            fallback=(planned.fallback[0], replace(basis, plan=self.fallback)),
            system=tuple(item.message for item in decoded(self.pins, skip_corrupt=True)),
        )


def _collect(
    log: CachedSession, txn: ReadTxn, policy: CompactionPolicy, stage: Stage, fold: bool
) -> _PlanRows:
    """Choose the cut and collect the rows."""
    head, history, stored = head_of(log), log.history, log.current_view(txn)
    whole = log.full(txn, head)
    frame = find_window(log, txn, stored).with_recent(log, whole)
    ledger, first = frame.seen, min(frame.demand.first, history.count)
    plan, status, fallback = _cuts(log, txn, frame, policy, stage)
    cuts = tuple(ledger.safe_cuts()) if _pins(stage) else ()
    ends = (plan.cut if fold or _pins(stage) else first, fallback.cut)
    mends = policy.repair is not None
    before, lo, hi = _looked_at(log, frame, stage, ends, cuts, mends=mends)
    places = [*before, *range(lo, hi)]
    rows = [row for at in before for row in collect(log, txn, at, at + 1)]
    rows += collect(log, txn, lo, hi)
    asks = fold and stage.summary is not None and plan.folds
    pins = collect(log, txn, 0, frame.pins, by=frame.start) if asks else []
    earlier_tokens = sum(ledger.sum_between(at, at + 1) for at in frame.kept)
    pin_tokens = ledger.sum_between(0, frame.pins) + earlier_tokens
    basis = Basis(
        plan,
        {},
        tuple(frame.kept),
        earlier_tokens,
        pins=frame.pins,
        cuts=cuts,
        opened=frozenset(ledger.open_positions()),
        masks=frame.masks,
    )
    planned = PlanInput(
        basis,
        (status, basis),
        log.policy,
        log.counter,
        (log.session, head.view_session, head.view_number),
        None if stored is None else stored.view.summary,
        frame.demand.fixed_tokens - pin_tokens,
        frozenset(frame.masks),
        covered=(0, 0) if stored is None else (stored.view.cut_seq, stored.view.covered),
        repair=None if stored is None else stored.view.repair,
        from_whole=ledger.is_safe(first),
    )
    return _PlanRows(planned, fallback, places, rows, pins, frame.masks)


def _cuts(
    log: CachedSession,
    txn: ReadTxn,
    frame: Window,
    policy: CompactionPolicy,
    stage: Stage,
) -> tuple[Plan, str, Plan]:
    """Return the plan, and the status and plan of the fallback that needs no summary."""
    history, revision = log.history, head_of(log).revision
    first = min(frame.demand.first, history.count)
    plan = make_plan(
        frame.seen,
        stage.keep,
        first=first,
        revision=revision,
        seq_at=history.seq_at,
        window_tokens=policy.window_tokens,
    )
    fallback = fallback_plan(
        frame.seen,
        log.policy,
        first=first,
        revision=revision,
        seq_at=history.seq_at,
        answers_of=partial(_answers_of, log, txn),
    )
    return plan, *fallback


def mended_plan(plan: Plan, planned: PlanInput, mode: str | None) -> tuple[Plan, Mended]:
    """Add the masks that repair the remaining items, and return those repairs; no-op if no mode."""
    # Without a fold or a safe cut, contexts show earlier items, too, which were not read here and
    # may hold the partner of a call.
    if mode is None or not (plan.folds or planned.from_whole):
        return plan, NOTHING
    items, pinned = planned.basis.items, frozenset(plan.pinned)
    stays = [items[at] for at in sorted(items) if at >= plan.cut or items[at].seq in pinned]
    masks = {mask.seq: mask for mask in plan.masks}
    seen = [item for item in (seen_item(each, masks) for each in stays) if item is not None]
    entries = [WireItem(each.seq, each.message, event=each.kind == ItemKind.EVENT) for each in seen]
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
    log: CachedSession,
    frame: Window,
    stage: Stage,
    ends: tuple[int, int],
    cuts: tuple[int, ...],
    *,
    mends: bool,
) -> tuple[list[int], int, int]:
    """Positions before ``lo``, and the range ``lo .. hi``, of the items that shaping examines.

    ``ends`` are the positions up to which the plan and its fallback fold. Items requested from
    before an earlier cut bring along their whole unit, as delimited by the safe ``cuts``.
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


def _asked_for(log: CachedSession, frame: Window, stage: Stage, stop: int) -> Iterator[int]:
    """Positions below ``stop`` that the policy keeps by position."""
    if stage.keep is None:
        return
    yield from range(frame.pins, min(frame.pins + stage.keep.first_items, stop))
    position_from = log.history.position_from
    for lo, hi in stage.keep.pinned:
        yield from range(
            position_from(min(lo, SEQ_MAX)), min(position_from(min(hi + 1, SEQ_MAX)), stop)
        )


def _shown(
    placed: Iterable[tuple[int, Item | CorruptValueError]], masks: dict[int, Mask], *, must: int
) -> Iterable[tuple[int, Item]]:
    """Yield items as contexts show them; damaged ones from position ``must`` on are skipped.

    Folded items have to be readable; those that stay are only examined for what could be masked.
    """
    for at, row in placed:
        if isinstance(row, CorruptValueError):
            if at < must:
                raise row
            continue
        seen = seen_item(row, masks)
        if seen is not None:
            yield at, seen


def _answers_of(log: CachedSession, txn: ReadTxn, position: int) -> list[int]:
    """Positions of the results of the calls made by the item at ``position``."""
    items = decoded(collect(log, txn, position, log.history.count))
    entries = [WireItem(i.seq, i.message, event=i.kind == ItemKind.EVENT) for i in items]
    slots = bind(entries).calls[0]
    return sorted({position + at for slot in slots for at in slot.results})


# --- Pressure: how full a session is, and if that makes a compaction due --------------------------

_COUNTED_MAX: Final = 64
"""With up to this many items before a position, count those and not the items after it."""


def pressure_of(
    log: CachedSession, txn: ReadTxn, policy: CompactionPolicy, now_ms: int
) -> Pressure:
    """Compute the pressure from maintained sums: O(1), apart from counts of turns and events."""
    head = head_of(log)
    frame = find_window(log, txn, log.current_view(txn))
    first = frame.demand.first
    if first < frame.recent.offset:
        frame = _with_first(log, txn, frame)
    ledger, offset = frame.recent.ledger, frame.recent.offset
    start, end = min(first - offset, len(ledger)), len(ledger)
    events = _count_from(ledger, ItemKind.EVENT, start, of=end - ledger.shown_count)
    turns_left = None
    if policy.max_turns is not None:
        turns_left = policy.max_turns - log.full(txn, head).ledger.turns
    last = ledger.last_shown
    found = Pressure(
        items=end - start - events,
        tokens=frame.demand.fixed_tokens + frame.seen.sum_between(start, end),
        turns=_count_from(ledger, ItemKind.USER, start, of=ledger.turns),
        # Written by another process's clock, perhaps, which may be ahead.
        idle_seconds=max(now_ms - head.updated_ms, 0) / 1000,
        event=_event_of(log, txn, frame),
        waiting=last < 0 or ledger.kind_at(last) == ItemKind.RESULT,
        turns_left=turns_left,
    )
    due = policy.due(found)
    return found if due is None else found._replace(stage=due.name)


def _count_from(ledger: Ledger, kind: ItemKind, start: int, *, of: int) -> int:
    """Count the items of a kind from a position on; ``of`` is their total number."""
    if not of:
        return 0
    if start <= _COUNTED_MAX:
        return of - sum(ledger.kind_at(at) == kind for at in range(start))
    return ledger.count_of(1 << kind, start)


def _with_first(log: CachedSession, txn: ReadTxn, frame: Window) -> Window:
    return frame.with_recent(log, log.full(txn, head_of(log)))


def _event_of(log: CachedSession, txn: ReadTxn, frame: Window) -> str | None:
    """The type of the event at the end of the history, if it ends with one."""
    ledger, end = frame.recent.ledger, log.history.count
    if not end or ledger.kind_at(len(ledger) - 1) != ItemKind.EVENT:
        return None
    for item in decoded(collect(log, txn, end - 1, end), skip_corrupt=True):
        found = item.message.get("type")
        return found if isinstance(found, str) else None
    return None


# --- Compaction of one session: options and draft -------------------------------------------------

AnySummarizer = Callable[[SummaryRequest], str | Awaitable[str]]
REDUCE: Final = Stage(name="fallback", keep=None, reducers=LIGHT)
"""Stage that masks instead of folding when no summary is available."""
_NOTHING: Final = Plan(0, 0, 0, 0)
_log = logger()


@record(frozen=True, slots=True)
class CompactionOptions:
    """Options of one compaction."""

    stage: str | None = None
    """The stage to run, whether or not it is due."""
    force: bool = False
    """Compact even if no stage is due."""
    summarizes: bool = False
    """True if there is a summarizer."""


@record(frozen=True, slots=True)
class CompactionDraft:
    """A plan on its way to becoming a view."""

    policy: CompactionPolicy
    stage: Stage
    planned: PlanInput | None
    """None: there is no session."""
    plan: Plan = _NOTHING
    messages: tuple[Message, ...] = ()
    """Messages that the plan folds."""
    status: str = "trimmed"
    summary: str | None = None
    error: Exception | None = None
    reason: str | None = None
    work: Mended = NO_REPAIR
    """Repairs that the policy applies to the remaining items."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to record."""
        return self.planned is None or self.status in ("nothing", "refused") or self.plan.is_empty

    @property
    def wants_summary(self) -> bool:
        """True if a summarizer should be called."""
        return self.plan.folds and self.stage.summary is not None

    def nothing(self) -> CompactionResult:
        """Return the result of a compaction that recorded nothing."""
        status = "refused" if self.status == "refused" else "nothing"
        return CompactionResult(status, self.plan, None, self.error, self.reason)

    def recorded(self, view: View) -> CompactionResult:
        """Return the result of a compaction that recorded this view."""
        return CompactionResult(self.status, self.plan, view, self.error, self.reason)


# --- Choice of the stage --------------------------------------------------------------------------


def policy_of(ref: SessionRef, given: object = None) -> CompactionPolicy:
    """Return the policy of a call: its argument, else the handle's, else the database's."""
    if given is None:
        given = ref.options.compaction or ref.engine.compaction
    return compaction_policy(given)


def asked(
    ref: SessionRef,
    policy: object,
    stage: str | None,
    *,
    keep_last: int | None,
    keep_tokens: int | None,
    force: bool,
) -> tuple[CompactionPolicy, CompactionOptions]:
    """Return a call's policy and options; giving a number to keep implies ``force``.

    Raises:
        InvalidOptionError
    """
    checked_optional_int("keep_last", keep_last)
    checked_optional_int("keep_tokens", keep_tokens, least=1)
    rule = policy_of(ref, policy).with_keep(last_items=keep_last, tokens=keep_tokens)
    numbers = keep_last is not None or keep_tokens is not None
    return rule, CompactionOptions(stage, checked_bool("force", force) or numbers, summarizes=True)


def find_pressure(ref: SessionRef, policy: CompactionPolicy) -> Pressure:
    """Measure how full the session is and which stage of the policy is due."""
    now_ms = ref.engine.now_ms()
    return read_log(ref, pressure_of, Pressure(), policy, now_ms)


def choose_stage(
    ref: SessionRef, policy: CompactionPolicy, asked: CompactionOptions
) -> Stage | None:
    """Return the stage to run: the named one, else the heaviest that is due.

    None if none is due, unless the caller forces it or the policy has no triggers and so is never
    due: then the heaviest stage or, with a summarizer, the heaviest that asks for a summary.
    """
    if asked.stage is not None:
        return policy.stage(asked.stage)
    due = find_pressure(ref, policy).stage
    if due is not None:
        return policy.stage(due)
    if not asked.force and any(stage.triggers for stage in policy.stages):
        return None
    heaviest = policy.stages[-1]
    if not asked.summarizes:
        return heaviest
    summarized = (stage for stage in reversed(policy.stages) if stage.summary is not None)
    return next(summarized, heaviest)


# --- Plan ---------------------------------------------------------------------------------------


def begin(
    ref: SessionRef, policy: CompactionPolicy, asked: CompactionOptions, *, fold: bool = True
) -> CompactionDraft:
    """Choose the stage and plan it; if none is due, return an empty draft with the reason."""
    stage = choose_stage(ref, policy, asked)
    if stage is not None:
        return prepare(ref, policy, stage, fold=fold)
    found = find_pressure(ref, policy)
    why = (
        "the last item is a tool result, which the model has yet to see"
        if found.waiting and found.items
        else f"no stage of policy {policy.name!r} is due at {counted(found.items, 'item')} of "
        f"{counted(found.tokens, 'token')}"
    )
    reason = f"{why}; force=True or stage= compacts all the same"
    return CompactionDraft(policy, policy.stages[-1], None, status="nothing", reason=reason)


def prepare(
    ref: SessionRef,
    policy: CompactionPolicy,
    stage: Stage,
    *,
    fold: bool = True,
    protect: Keep | None = None,
) -> CompactionDraft:
    """Plan on the current history and collect the items to fold; writes nothing.

    Without ``fold`` the plan is the same, but there are no messages to summarize. No reducer
    touches what ``protect`` keeps by name or position; None: what the stage keeps that way.
    """
    planned = read_plan_input(ref, policy, stage, fold=fold)
    if planned is None:
        return CompactionDraft(policy, stage, None, status="nothing")
    plan, messages = shape(planned.basis, stage, _reduction(ref, planned), protect=protect)
    plan, work = mended_plan(plan, planned, policy.repair)
    status = "trimmed" if plan.folds else "masked"
    summary = planned.previous_summary
    return CompactionDraft(policy, stage, planned, plan, messages, status, summary, work=work)


def _reduction(ref: SessionRef, planned: PlanInput) -> Reduction:
    return Reduction(
        planned.pairs,
        planned.counter,
        offload=item_reference,
        embed=ref.engine.embed,
    )


def check(ref: SessionRef, summarize: object, *, awaits: bool = False) -> None:
    """Reject what cannot work before a model is called.

    Raises:
        InvalidOptionError: ``summarize`` is neither None nor callable, or is a coroutine function
            that this caller cannot await.
        ReadOnlyError: nothing can be recorded.
    """
    ref.need_writable()
    checked_summarizer(summarize, awaits=awaits)


# --- Summary ------------------------------------------------------------------------------------


def summarize(
    ref: SessionRef,
    draft: CompactionDraft,
    summarizer: AnySummarizer | None,
    *,
    timeout_seconds: float | None = None,
) -> CompactionDraft:
    """Return the draft with its summary, or the fallback if none is available."""
    if summarizer is None or not draft.wants_summary:
        return settled(ref, draft)
    try:
        summary = ask_in_time(summarizer, make_request(ref, draft), timeout_seconds)
    # The store's failure, not the model's: a fallback could not be recorded either.
    except (StorageError, ClosedError):
        raise
    except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
        return failed(ref, draft, exc)
    return with_summary(ref, draft, summary)


def make_request(ref: SessionRef, draft: CompactionDraft) -> SummaryRequest:
    """Make the summarizer's request."""
    style, planned = draft.stage.summary, draft.planned
    assert style is not None  # noqa: S101 - implied by wants_summary
    assert planned is not None  # noqa: S101 - likewise
    return SummaryRequest(
        draft.messages,
        planned.previous_summary,
        ref.name,
        max_tokens=style.max_tokens,
        language=style.language,
        instructions=style.instructions,
        system=planned.system,
    )


def with_summary(ref: SessionRef, draft: CompactionDraft, summary: object) -> CompactionDraft:
    """Return the draft with the summarizer's answer, or the fallback if it is not usable."""
    if not isinstance(summary, str) or not summary.strip():
        kind = "an empty text" if isinstance(summary, str) else type(summary).__name__
        return failed(ref, draft, TypeError(f"summarize returned {kind}, expected a text"))
    admitted = admitted_summary(ref, summary)
    if not isinstance(admitted, str):
        return failed(ref, draft, admitted)
    return settled(ref, replace(draft, status="summarized", summary=admitted))


def failed(ref: SessionRef, draft: CompactionDraft, error: Exception) -> CompactionDraft:
    """Return the fallback draft without a new summary; an earlier summary stays."""
    # Log only the type: the error's text and traceback may hold content.
    name, kind = ref.name, type(error).__name__
    _log.warning("session %r: the summarizer failed: %s", name, kind)
    reason = f"the summarizer failed: {type(error).__name__}: {error}"
    return _fall_back(ref, replace(draft, error=error, reason=reason))


# --- Guards -------------------------------------------------------------------------------------


def settled(ref: SessionRef, draft: CompactionDraft) -> CompactionDraft:
    """Return the draft if it saves enough; else its fallback, or a refusal."""
    if draft.is_empty:
        return replace(draft, status="nothing", reason=_why_nothing(draft))
    before, after = tokens_before(draft), tokens_after(draft)
    if after < before and before - after >= draft.policy.min_gain * before:
        return draft
    least = draft.policy.min_gain
    reason = (
        f"it would not save enough: {counted(before, 'token')} before, {after:,} after"
        + f"; the policy asks for at least {least:.0%}" * (least > 0)
    )
    _log.warning("session %r: compaction refused: %s", ref.name, reason)
    draft = replace(draft, reason=reason)
    if draft.status != "summarized":
        return _refused(draft)
    # If nothing is due, a summary that saves nothing is no reason to show less.
    due = find_pressure(ref, draft.policy).stage is not None
    return _fall_back(ref, draft) if due else _refused(draft)


def _why_nothing(draft: CompactionDraft) -> str:
    if draft.reason is not None:
        return draft.reason
    if draft.planned is None:
        return "the session has no items"
    return f"stage {draft.stage.name!r} keeps all items that are shown, and has none to shorten"


def _fall_back(ref: SessionRef, draft: CompactionDraft) -> CompactionDraft:
    """Plan without a summary: masks, else a short safe suffix, else one item."""
    planned = draft.planned
    assert planned is not None  # noqa: S101 - a summary was requested
    previous = planned.previous_summary
    if "reduce" in draft.policy.fallback:
        # That stage keeps nothing by itself: what the failed one keeps by name stays unmasked.
        tried = prepare(ref, draft.policy, REDUCE, protect=draft.stage.keep)
        tried = replace(tried, error=draft.error, reason=draft.reason)
        if not tried.is_empty and _gains(tried, draft.policy.min_gain):
            return replace(tried, status="fallback_reduce")
    status, basis = planned.fallback
    if status.removeprefix("fallback_") in draft.policy.fallback:
        stage = replace(draft.stage, reducers=(), triggers=())
        plan, _ = shape(basis, stage, _reduction(ref, planned))
        plan, work = mended_plan(plan, planned, draft.policy.repair)
        tried = replace(draft, plan=plan, status=status, summary=previous, work=work)
        if plan.folds and _gains(tried, 0.0):
            return tried
    if status == "nothing":
        return replace(draft, plan=basis.plan, status=status, summary=previous)
    return _refused(replace(draft, summary=previous))


def _gains(draft: CompactionDraft, least: float) -> bool:
    before, after = tokens_before(draft), tokens_after(draft)
    return after <= before and before - after >= least * before


def tokens_before(draft: CompactionDraft) -> int:
    """Tokens currently shown after the pins."""
    assert draft.planned is not None  # noqa: S101 - never called with an empty draft
    return draft.plan.tokens_before + draft.planned.summary_tokens


def tokens_after(draft: CompactionDraft) -> int:
    """Tokens that would be shown after the pins."""
    planned = draft.planned
    assert planned is not None  # noqa: S101 - never called with an empty draft
    return draft.plan.tokens_kept + fixed_cost(
        planned.pairs, planned.counter, pin_tokens=0, summary=draft.summary
    )


# --- Commit -------------------------------------------------------------------------------------


def record_change(ref: SessionRef, draft: CompactionDraft) -> RecordCompaction:
    """Return the change that records the view."""
    planned, plan = draft.planned, draft.plan
    assert planned is not None  # noqa: S101 - never called with an empty draft
    outcome = PlanOutcome(
        plan,
        draft.status,
        draft.summary,
        tokens_before=tokens_before(draft),
        tokens_after=tokens_after(draft),
        counter=planned.counter.id,
        policy=f"{draft.policy.name}/{draft.stage.name}",
        reason=draft.reason,
        covered=planned.covered,
        repair=draft.policy.repair or planned.repair,
        repairs=draft.work.repairs,
    )
    pinned = frozenset(plan.pinned)
    # Readers follow the views while they inherit: here they may stop if no earlier mask is shown.
    inherits = any(seq > plan.cut_seq or seq in pinned for seq in planned.masked)
    return RecordCompaction(ref, outcome, planned.base, inherits=inherits)


def record_draft(ref: SessionRef, draft: CompactionDraft) -> CompactionResult:
    """Record the draft unless it is empty.

    Raises:
        PlanStaleError, NotFoundError: the session was changed or deleted since the plan was made.
    """
    if draft.is_empty:
        return draft.nothing()
    return draft.recorded(ref.engine.store.transact(record_change(ref, draft)))


class RecordCompaction(Change[View]):
    """Record the view of a compaction, if the plan still applies.

    Raises (when run):
        PlanStaleError: it does not.
    """

    __slots__ = ("base", "inherits", "now_ms", "outcome")
    creates = False
    revised = False

    def __init__(
        self,
        ref: SessionRef,
        outcome: PlanOutcome,
        base: tuple[int, int, int],
        *,
        inherits: bool,
    ) -> None:
        self.base, self.inherits, self.now_ms = base, inherits, ref.engine.now_ms()
        self.outcome = admitted_outcome(ref, outcome)
        super().__init__(ref)

    def run(self, session: SessionTxn) -> View:
        """Write the view."""
        return record_view(
            session,
            self.outcome,
            based_on=self.base,
            inherits=self.inherits,
            now_ms=self.now_ms,
        )


def checked_summarizer(summarize: object, *, awaits: bool = False) -> bool:
    """Return True if the summarizer is a coroutine function.

    Raises:
        InvalidOptionError: as for ``check``.
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
    """Return the reference of an offloaded text, which the log keeps as long as the item."""
    del text
    return f"item:{seq}" if call_id is None else f"item:{seq}:{call_id}"


# --- Backoff: a stage that does not help is not retried until the context has changed -------------

RETRY_CHANGE: Final = 0.1
"""A stage that was given up is retried once the context's tokens changed by this fraction.
OpenHands counts a condensation as progress at the same 10 %; opencode's stall guard uses 5 %."""


class Patience:
    """The stages of a policy given up for one session, each with the token count at the time.

    Runtimes run the compactor after every turn. Without this backoff, a stage that stays due but
    saves nothing (an open call holds the cut, summaries are too long, the model is down) would
    call a model on every turn.
    """

    __slots__ = ("_given_up",)

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._given_up)

    def allows(self, stage: str, tokens: int) -> bool:
        """Return True if the stage may be tried while the context has ``tokens`` tokens."""
        then = self._given_up.get(stage)
        if then is None:
            return True
        if abs(tokens - then) < max(RETRY_CHANGE * then, 1):
            return False
        del self._given_up[stage]
        return True

    def give_up(self, stage: str, tokens: int) -> None:
        """Suspend the stage while the context has about this many tokens."""
        self._given_up[stage] = tokens


# --- One run of a compactor over one session: the stages to try, and the end ----------------------

PLAN_ATTEMPTS: Final = 3
"""Plans per run and session while others keep changing it: each may cost a summary."""


class Attempts:
    """One run of a compactor, synchronous or in the background: plans to try; writes nothing.

    A run tries each stage at most once, so it terminates. The heaviest stage that is due comes
    first; a lighter one that is due follows if that did not help or had been given up.
    """

    __slots__ = ("_lost", "_patience", "_policy", "_ref", "_tried", "result")

    def __init__(self, ref: SessionRef, policy: CompactionPolicy, patience: Patience) -> None:
        self._ref = ref
        self._policy = policy
        self._patience = patience
        self._tried: set[str] = set()
        self._lost = 0
        self.result: CompactionResult | None = None
        """The last result that recorded a view; if none did, the last result."""

    def next(self) -> tuple[CompactionDraft, Pressure] | None:
        """Return the plan to try next and the pressure it was made under; None at the end."""
        pressure = find_pressure(self._ref, self._policy)
        for stage in self._policy.all_due(pressure):
            if stage.name not in self._tried and self._patience.allows(stage.name, pressure.tokens):
                draft = prepare(self._ref, self._policy, stage)
                return draft, pressure._replace(stage=stage.name)
        return None

    def lost(self, error: CallerError) -> None:
        """Handle a lost race with another change to the session: due stages are re-evaluated.

        Raises:
            PlanStaleError, NotFoundError: ``error``, if that happened too often.
        """
        self._lost += 1
        if self._lost >= PLAN_ATTEMPTS:
            raise error
        _log.info("session %r: planning the compaction again: %s", self._ref.name, error)

    def ended(self, draft: CompactionDraft, result: CompactionResult) -> None:
        """Record the outcome of a plan; a stage that is still due is given up for a while."""
        stage = draft.stage.name
        self._tried.add(stage)
        if result.view is not None or self.result is None or self.result.view is None:
            self.result = result
        # Ignore waiting: a tool result that arrived meanwhile says nothing about the stage.
        pressure = find_pressure(self._ref, self._policy)._replace(waiting=False)
        if draft.stage not in self._policy.all_due(pressure):
            return
        self._patience.give_up(stage, pressure.tokens)
        # Triggers by event or idleness normally remain due, even after a view without an error.
        helped = result.view is not None and result.error is None
        level = logging.INFO if helped else logging.WARNING
        _log.log(
            level,
            "session %r: stage %r is still due after a compaction (%s%s); not tried again until "
            "the context changed from %s tokens by %s",
            self._ref.name,
            stage,
            result.status,
            _why(result),
            f"{pressure.tokens:,}",
            f"{RETRY_CHANGE:.0%}",
        )


def _why(result: CompactionResult) -> str:
    """Return why a plan did not help, without an error's text, which may hold content."""
    if result.error is not None:
        return f": the summarizer failed: {type(result.error).__name__}"
    return "" if result.reason is None else f": {result.reason}"


# --- Compactor: keeps one session compacted, driven by its runtime --------------------------------

Before = Callable[[Plan, Pressure], bool | None]
After = Callable[[CompactionResult], object]


class Compactor:
    """Compacts a session when a stage of its policy is due; run it after every turn.

    ``session.compact()`` compacts once, immediately. A compactor checks if a stage is due, runs the
    heaviest one and then whatever is still due, replans if someone else changed the session
    meanwhile, and stops calling a model that does not help::

        compactor = memcore.Compactor(session, summarize, timeout_seconds=60)
        while True:
            ...                      # one turn of the agent
            compactor.run()          # microseconds, if nothing is due

    A stage that is still due after it ran (refused, nothing to fold, an insufficient fallback) is
    given up, which is logged once, until the context's tokens have changed by a tenth
    (``memcore.session.compact.RETRY_CHANGE``); lighter stages that are due still run.

    Args:
        session: the session.
        summarize: takes a SummaryRequest, returns the summary; None: folded items are trimmed.
        policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
        timeout_seconds: time limit for ``summarize``; see ``Session.compact``.
        before: called with the plan and the pressure (``pressure.stage`` is the stage) before a
            model is called and before anything is written. False ends the run without executing
            the plan; any other value continues. Its exceptions propagate out of ``run``, with
            nothing written for this plan.
        after: called with the result of each plan that ``before`` allowed, once it is stored or
            refused. Its exceptions propagate out of ``run``; what was written stays.

    Raises:
        InvalidOptionError: an argument has the wrong type or is out of range.
    """

    def __init__(
        self,
        session: Session,
        summarize: Summarize | None = None,
        *,
        policy: AnyPolicy | None = None,
        timeout_seconds: float | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        if not isinstance(session, Session):
            msg = f"session: expected a Session, got {type(session).__name__}"
            raise InvalidOptionError(msg)
        checked_summarizer(summarize)
        self.session = session
        self.policy = policy_of(ref_of(session), policy)
        self._summarize = summarize
        self._timeout = checked_optional_seconds("timeout_seconds", timeout_seconds)
        self._before: Before | None = checked_callable("before", before)
        self._after: After | None = checked_callable("after", after)
        self._patience = Patience()
        # Not reentrant: a summarizer that calls ``run`` gets None, not a compaction within its own.
        # Knows who holds it: between taking it and whatever follows, an interrupt may come.
        self._running = threading.RLock()
        self._runner = 0
        """Id of the thread in ``run``; 0 if there is none."""
        self._appended = False
        """True if something was appended since the last check."""

    def run(self) -> CompactionResult | None:
        """Compact if a stage is due.

        Returns:
            None if nothing was due, every due stage was given up, ``before`` returned False, or
            another thread is in ``run``. Else the last result that recorded a view; if none did,
            the last refusal.

        Raises:
            PlanStaleError: others kept changing the session while it was being summarized.
            ReadOnlyError, ClosedError, StorageError
        """
        if self._is_mine():
            return None
        try:
            return self._looked() if self._running.acquire(blocking=False) else None
        finally:
            if self._is_mine():
                self._running.release()
                # Appends that found the lock taken left their look to this run.
                self._look_again()

    def _is_mine(self) -> bool:
        """Return True if this thread is in a run."""
        return self._running._is_owned()  # type: ignore[attr-defined, no-any-return]  # noqa: SLF001 - as Condition checks

    def after_append(self) -> None:
        """Compact if a stage is due, on behalf of a committed append; never raises.

        A failure is logged and the stage stays due for the next append. That includes failures of
        a caller's embedder, reducer or counter: a caller who saw the append fail would repeat it.
        """
        if self._runner == threading.get_ident():
            return  # a caller's function appended; the current run checks again when done
        # Before the lock is tried: if it is taken, its holder reads the flag after giving it back.
        self._appended = True
        self._look_again()

    def _look_again(self) -> None:
        """Compact what appends made due, unless a run is in progress; it checks again when done."""
        while self._appended and not self._is_mine():
            try:
                if not self._running.acquire(blocking=False):
                    return
                # Cleared before the look: an append during it asks for another one.
                self._appended = False
                self._looked()
            except Exception as exc:  # noqa: BLE001 - a caller's function may fail in any way
                # Log only the type: the error's text may hold content.
                _log.error("session %r was not compacted: %s", self.session.id, type(exc).__name__)
            finally:
                if self._is_mine():
                    self._running.release()

    def _looked(self) -> CompactionResult | None:
        self._runner = threading.get_ident()
        try:
            with seen_compacting(self.session) as seen:
                seen.append(self._run())
            return seen[0]  # type: ignore[no-any-return]
        finally:
            self._runner = 0

    def _run(self) -> CompactionResult | None:
        ref = ref_of(self.session)
        check(ref, self._summarize)
        attempts = Attempts(ref, self.policy, self._patience)
        while (found := attempts.next()) is not None:
            draft, pressure = found
            asked = not draft.is_empty
            if asked and self._before is not None and self._before(draft.plan, pressure) is False:
                break
            draft = summarize(ref, draft, self._summarize, timeout_seconds=self._timeout)
            try:
                result = record_draft(ref, draft)
            except (PlanStaleError, NotFoundError) as exc:
                attempts.lost(exc)
                continue
            attempts.ended(draft, result)
            if asked and self._after is not None:
                self._after(result)
        return attempts.result
