"""Compaction of a session: plan, summarize outside any transaction, record in one commit."""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
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
from memcore.options import checked_bool, checked_callable, checked_optional_seconds
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
    "record",
    "record_change",
    "settled",
    "summarize",
    "tokens_after",
    "tokens_before",
    "with_summary",
]


# --- Asking a summarizer in a thread of its own: whoever asked need not wait for it ---------------

Tell = Callable[[object, BaseException | None], object]


def ask_in_time(
    summarize: Callable[[SummaryRequest], object],
    request: SummaryRequest,
    timeout_seconds: float | None,
) -> object:
    """Call a summarizer; a coroutine that it returns is closed, which makes it no summary.

    Raises:
        TimeoutError: it took longer; its thread goes on, and what it returns is not looked at.
    """
    if timeout_seconds is None:
        return discard(summarize(request))
    answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
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
    """Call the summarizer in a thread; ``tell(answer, error)`` is called there when it ends.

    It is a daemon thread: one that hangs holds up neither the exit of the process nor, as a thread
    of the event loop's pool would, the end of ``asyncio.run`` or the calls behind it.
    """
    context = contextvars.copy_context()

    def run() -> None:
        try:
            found = context.run(summarize, request)
        except BaseException as exc:  # noqa: BLE001 - raised again by whoever asked
            tell(None, exc)
        else:
            tell(found, None)

    threading.Thread(target=run, name="memcore-summary", daemon=True).start()


def discard(found: object) -> object:
    """The answer; a coroutine that nobody will await is closed, so that nothing warns of it."""
    if inspect.iscoroutine(found):
        found.close()
    return found


# --- Reading what a compaction is planned on: one snapshot, decoded outside of it -----------------

SEQ_MAX: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class PlanInput:
    """A cut on a snapshot, and everything that shaping it needs."""

    basis: Basis
    fallback: tuple[str, Basis]
    """The status and the cut of what serves without a summary."""
    pairs: PairPolicy
    counter: TokenCounter
    """Counter of the plan's tokens; the session may be recounted before the plan is applied."""
    base: tuple[int, int, int]
    """``(session, view session, view number)``: what the plan was made on."""
    previous_summary: str | None
    summary_tokens: int
    """Tokens that the summary costs at present."""
    masked: frozenset[int]
    """The seqs of the masks in force."""
    covered: tuple[int, int]
    """``(cut seq, items)`` that the view in force covers."""
    repair: str | None
    """Mode of repair of the view in force."""
    from_whole: bool
    """True if what lies behind the view in force splits no pair; if it does, contexts show more."""
    system: tuple[Message, ...] = ()
    """The leading items that no compaction folds; none if nothing is to be summarized."""


def read_plan_input(
    ref: SessionRef, policy: CompactionPolicy, stage: Stage, *, fold: bool
) -> PlanInput | None:
    """Plan on the current history; None if there is no session.

    Without ``fold`` what is folded is not read, unless something in it may have to stay.
    """
    found = read_log(ref, _collect, None, policy, stage, fold)
    return None if found is None else found.decoded()


class _PlanRows(NamedTuple):
    """The input of a plan as a snapshot gives it, its items as rows that are not decoded yet."""

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
    """Return the plan, and the status and the plan of what serves without a summary."""
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
    """The plan with the masks that mend what stays, and what they mend; as it is without a mode."""
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


def _asked_for(log: CachedSession, frame: Window, stage: Stage, stop: int) -> Iterator[int]:
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
    placed: Iterable[tuple[int, Item | CorruptValueError]], masks: dict[int, Mask], *, must: int
) -> Iterable[tuple[int, Item]]:
    """Items as they are shown; behind ``must`` damaged ones are passed over.

    What is folded has to be read; what stays is only looked at for what could be masked.
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
    """Positions of the results of the calls that the item at ``position`` makes."""
    items = decoded(collect(log, txn, position, log.history.count))
    entries = [WireItem(i.seq, i.message, event=i.kind == ItemKind.EVENT) for i in items]
    slots = bind(entries).calls[0]
    return sorted({position + at for slot in slots for at in slot.results})


# --- How full a session is, and whether that makes a compaction due -------------------------------

_COUNTED_MAX: Final = 64
"""Up to so many items before a position are counted in place of those behind it."""


def pressure_of(
    log: CachedSession, txn: ReadTxn, policy: CompactionPolicy, now_ms: int
) -> Pressure:
    """All of it from sums that are kept: O(1), but for counting turns and events since the view."""
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
        idle_seconds=max(now_ms - head.updated_ms, 0) / 1000,
        event=_event_of(log, txn, frame),
        waiting=last < 0 or ledger.kind_at(last) == ItemKind.RESULT,
        turns_left=turns_left,
    )
    due = policy.due(found)
    return found if due is None else found._replace(stage=due.name)


def _count_from(ledger: Ledger, kind: ItemKind, start: int, *, of: int) -> int:
    """Count the items of a kind from a position on, of which there are ``of`` in all."""
    if not of:
        return 0
    if start <= _COUNTED_MAX:
        return of - sum(ledger.kind_at(at) == kind for at in range(start))
    return ledger.count_of(1 << kind, start)


def _with_first(log: CachedSession, txn: ReadTxn, frame: Window) -> Window:
    return frame.with_recent(log, log.full(txn, head_of(log)))


def _event_of(log: CachedSession, txn: ReadTxn, frame: Window) -> str | None:
    """The type of the event that the history ends with."""
    ledger, end = frame.recent.ledger, log.history.count
    if not end or ledger.kind_at(len(ledger) - 1) != ItemKind.EVENT:
        return None
    for item in decoded(collect(log, txn, end - 1, end), skip_corrupt=True):
        found = item.message.get("type")
        return found if isinstance(found, str) else None
    return None


# --- Compaction of one session: plan, summarize outside any transaction, record in one commit -----

AnySummarizer = Callable[[SummaryRequest], str | Awaitable[str]]
REDUCE: Final = Stage(name="fallback", keep=None, reducers=LIGHT)
"""Stage that masks instead of a fold when there is no summary to be had."""
_NOTHING: Final = Plan(0, 0, 0, 0)
_log = logger()


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """Options of one compaction."""

    stage: str | None = None
    """The stage to run, whether or not it is due."""
    force: bool = False
    """Compact although no stage is due."""
    summarizes: bool = False
    """True if a summarizer is at hand."""


@dataclass(frozen=True, slots=True)
class CompactionDraft:
    """A plan on its way to a view."""

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
    """Repairs by which the policy mends what stays."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to record."""
        return self.planned is None or self.status in ("nothing", "refused") or self.plan.is_empty

    @property
    def wants_summary(self) -> bool:
        """True if a summarizer is to be called."""
        return self.plan.folds and self.stage.summary is not None

    def nothing(self) -> CompactionResult:
        """The result of a compaction that recorded nothing."""
        status = "refused" if self.status == "refused" else "nothing"
        return CompactionResult(status, self.plan, None, self.error, self.reason)

    def recorded(self, view: View) -> CompactionResult:
        """The result of a compaction that recorded this view."""
        return CompactionResult(self.status, self.plan, view, self.error, self.reason)


# --- When ---------------------------------------------------------------------------------------


def policy_of(ref: SessionRef, given: object = None) -> CompactionPolicy:
    """The policy of a call: what it gives, else the handle's, else the database's."""
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
    """The policy and the wishes of a call; numbers of what to keep are a wish to compact."""
    rule = policy_of(ref, policy).with_keep(last_items=keep_last, tokens=keep_tokens)
    numbers = keep_last is not None or keep_tokens is not None
    return rule, CompactionOptions(stage, checked_bool("force", force) or numbers, summarizes=True)


def find_pressure(ref: SessionRef, policy: CompactionPolicy) -> Pressure:
    """Measure how full the session is, and find the stage of the policy that is due."""
    now_ms = ref.engine.now_ms()
    return read_log(ref, pressure_of, Pressure(), policy, now_ms)


def choose_stage(
    ref: SessionRef, policy: CompactionPolicy, asked: CompactionOptions
) -> Stage | None:
    """The stage that a compaction runs: the named one, else the heaviest that is due.

    None if none is due, unless the caller insists or the policy has no trigger, so that it is
    never due: then the heaviest, or, with a summarizer at hand, the heaviest that asks for a
    summary.
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
    """Choose the stage and plan it; an empty draft with the reason if no stage is due."""
    stage = choose_stage(ref, policy, asked)
    if stage is not None:
        return prepare(ref, policy, stage, fold=fold)
    found = find_pressure(ref, policy)
    why = (
        "the last item is a tool result, which the model has yet to see"
        if found.waiting and found.items
        else f"{found.items:,} items of {found.tokens:,} tokens make no stage of policy "
        f"{policy.name!r} due"
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
    """Plan on the current history and collect what is to be folded; writes nothing.

    Without ``fold`` the plan is the same, but there are no messages to summarize. What
    ``protect`` keeps by name or place no reducer touches; None: what the stage so keeps.
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
    """Refuse what cannot work before a model is asked.

    Raises:
        InvalidOptionError: ``summarize`` is neither None nor callable, or a coroutine function
            that nobody here awaits.
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
    """The draft with its summary, or what serves if there is none to be had."""
    if summarizer is None or not draft.wants_summary:
        return settled(ref, draft)
    try:
        summary = ask_in_time(summarizer, make_request(ref, draft), timeout_seconds)
    except (StorageError, ClosedError):
        raise
    except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
        return failed(ref, draft, exc)
    return with_summary(ref, draft, summary)


def make_request(ref: SessionRef, draft: CompactionDraft) -> SummaryRequest:
    """Make the request that the summarizer gets."""
    style, planned = draft.stage.summary, draft.planned
    assert style is not None  # noqa: S101 - what wants_summary says
    assert planned is not None  # noqa: S101 - the same
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
    """The draft with what the summarizer returned."""
    if not isinstance(summary, str) or not summary.strip():
        kind = "an empty text" if isinstance(summary, str) else type(summary).__name__
        return failed(ref, draft, TypeError(f"summarize returned {kind}, expected a text"))
    admitted = admitted_summary(ref, summary)
    if not isinstance(admitted, str):
        return failed(ref, draft, admitted)
    return settled(ref, replace(draft, status="summarized", summary=admitted))


def failed(ref: SessionRef, draft: CompactionDraft, error: Exception) -> CompactionDraft:
    """The draft of what serves without a summary; an earlier summary stays."""
    # Not the error itself: its text and its traceback may hold content.
    name, kind = ref.name, type(error).__name__
    _log.warning("session %r: the summarizer failed: %s", name, kind)
    reason = f"the summarizer failed: {type(error).__name__}: {error}"
    return _fall_back(ref, replace(draft, error=error, reason=reason))


# --- Guards -------------------------------------------------------------------------------------


def settled(ref: SessionRef, draft: CompactionDraft) -> CompactionDraft:
    """The draft, if it saves enough; else what serves in its place, or a refusal."""
    if draft.is_empty:
        return replace(draft, status="nothing")
    before, after = tokens_before(draft), tokens_after(draft)
    if after < before and before - after >= draft.policy.min_gain * before:
        return draft
    reason = (
        f"{draft.status}: {before:,} tokens before, {after:,} after; it has to save some, and "
        f"at least {draft.policy.min_gain:.0%}"
    )
    _log.warning("session %r: compaction refused: %s", ref.name, reason)
    draft = replace(draft, reason=reason)
    if draft.status != "summarized":
        return _refused(draft)
    # Where nothing is due, a summary that saves nothing is no reason to show less.
    due = find_pressure(ref, draft.policy).stage is not None
    return _fall_back(ref, draft) if due else _refused(draft)


def _fall_back(ref: SessionRef, draft: CompactionDraft) -> CompactionDraft:
    """Plan without a summary: masks, else a short safe suffix, else one item."""
    planned = draft.planned
    assert planned is not None  # noqa: S101 - a summary was asked for
    previous = planned.previous_summary
    if "reduce" in draft.policy.fallback:
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
    """Tokens of what is shown behind the pins at present."""
    assert draft.planned is not None  # noqa: S101 - no empty draft gets here
    return draft.plan.tokens_before + draft.planned.summary_tokens


def tokens_after(draft: CompactionDraft) -> int:
    """Tokens of what would be shown behind the pins."""
    planned = draft.planned
    assert planned is not None  # noqa: S101 - no empty draft gets here
    return draft.plan.tokens_kept + fixed_cost(
        planned.pairs, planned.counter, pin_tokens=0, summary=draft.summary
    )


# --- Commit -------------------------------------------------------------------------------------


def record_change(ref: SessionRef, draft: CompactionDraft) -> RecordCompaction:
    """The change that records the view."""
    planned, plan = draft.planned, draft.plan
    assert planned is not None  # noqa: S101 - no empty draft gets here
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
    inherits = any(seq > plan.cut_seq or seq in pinned for seq in planned.masked)
    return RecordCompaction(ref, outcome, planned.base, inherits=inherits)


def record(ref: SessionRef, draft: CompactionDraft) -> CompactionResult:
    """Record what there is to record.

    Raises:
        PlanStaleError, NotFoundError: the session changed under the plan, or is gone.
    """
    if draft.is_empty:
        return draft.nothing()
    return draft.recorded(ref.engine.store.transact(record_change(ref, draft)))


class RecordCompaction(Change[View]):
    """Record the view of a compaction, if the plan still applies.

    Raises (when it is run):
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
    """Return whether a summarizer is a coroutine function.

    Raises:
        InvalidOptionError: as ``check``.
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


# --- Compactor: keeps one session compacted, whenever its runtime asks ----------------------------

# --- Backoff: a stage that does not help is not tried again until the context has changed ---------

RETRY_CHANGE: Final = 0.1
"""A stage that was given up is tried again once the context's tokens changed by this share.
OpenHands wants the same 10 % of a condensation to call it progress; opencode's stall guard 5 %."""


class Patience:
    """The stages of a policy that were given up for one session, with the token count at that time.

    A runtime asks after every turn. Without this a stage that stays due though it saves nothing (an
    open call holds the cut, the summaries come out too long, the model is down) would call a model
    on each of them.
    """

    __slots__ = ("_given_up",)

    def __init__(self) -> None:
        self._given_up: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._given_up)

    def allows(self, stage: str, tokens: int) -> bool:
        """Return whether to try the stage, while the context has ``tokens`` tokens."""
        then = self._given_up.get(stage)
        if then is None:
            return True
        if abs(tokens - then) < max(RETRY_CHANGE * then, 1):
            return False
        del self._given_up[stage]
        return True

    def give_up(self, stage: str, tokens: int) -> None:
        """Do not try the stage again while the context has about so many tokens."""
        self._given_up[stage] = tokens


# --- One run of a compactor over one session: which stage to try next, and when to stop -----------

PLAN_ATTEMPTS: Final = 3
"""Plans that a run makes for one session if others keep changing it: each may cost a summary."""


class Attempts:
    """One run of a compactor, synchronous or in the background: the plans to try; writes nothing.

    A run tries each stage at most once, so it ends. The heaviest that is due comes first; a lighter
    one that is due serves if that did not help, or was given up before.
    """

    __slots__ = ("_lost", "_patience", "_policy", "_ref", "_tried", "result")

    def __init__(self, ref: SessionRef, policy: CompactionPolicy, patience: Patience) -> None:
        self._ref = ref
        self._policy = policy
        self._patience = patience
        self._tried: set[str] = set()
        self._lost = 0
        self.result: CompactionResult | None = None
        """The last that recorded a view; without any, the last of all."""

    def next(self) -> tuple[CompactionDraft, Pressure] | None:
        """The plan to try, and the pressure it was made under; None if there is none to try."""
        pressure = find_pressure(self._ref, self._policy)
        for stage in self._policy.all_due(pressure):
            if stage.name not in self._tried and self._patience.allows(stage.name, pressure.tokens):
                draft = prepare(self._ref, self._policy, stage)
                return draft, pressure._replace(stage=stage.name)
        return None

    def lost(self, error: CallerError) -> None:
        """Another one changed the session first: what is due is looked at again.

        Raises:
            PlanStaleError, NotFoundError: ``error``, if that happened too often.
        """
        self._lost += 1
        if self._lost >= PLAN_ATTEMPTS:
            raise error
        _log.info("session %r: planning the compaction again: %s", self._ref.name, error)

    def ended(self, draft: CompactionDraft, result: CompactionResult) -> None:
        """Take in what became of a plan; a stage that is still due is given up for a while."""
        stage = draft.stage.name
        self._tried.add(stage)
        if result.view is not None or self.result is None or self.result.view is None:
            self.result = result
        # Whether the last item is a result that came meanwhile says nothing about the stage.
        pressure = find_pressure(self._ref, self._policy)._replace(waiting=False)
        if draft.stage not in self._policy.all_due(pressure):
            return
        self._patience.give_up(stage, pressure.tokens)
        # After a view without an error it is the rule for triggers by an event or by idleness.
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
    """Return why a plan did not help; not the text of an error, which may hold content."""
    if result.error is not None:
        return f": the summarizer failed: {type(result.error).__name__}"
    return "" if result.reason is None else f": {result.reason}"


# --- Compactor: keeps one session compacted, whenever its runtime asks ----------------------------

Before = Callable[[Plan, Pressure], bool | None]
After = Callable[[CompactionResult], object]


class Compactor:
    """Compacts a session when a stage of its policy is due; to be asked after every turn.

    ``session.compact()`` compacts once and at once. A compactor looks whether it is time, runs the
    heaviest stage that is due and then whatever is still due, plans again if another one changed
    the session meanwhile, and stops asking a model that does not help::

        compactor = memcore.Compactor(session, summarize, timeout_seconds=60)
        while True:
            ...                      # one turn of the agent
            compactor.run()          # microseconds, if nothing is due

    A stage that is still due after it ran (refused, nothing to fold, a fallback that was not
    enough) is given up, which is logged once, until the context's tokens changed by a tenth
    (``memcore.session.compact.RETRY_CHANGE``); lighter stages that are due go on.

    Args:
        session: the session.
        summarize: gets a SummaryRequest and returns the summary; None: what is folded is trimmed.
        policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
        timeout_seconds: how long ``summarize`` may take; see ``Session.compact``.
        before: called with the plan and the pressure (``pressure.stage`` is the stage) before a
            model is asked and before anything is written. False ends the run without it; any other
            value lets it go on. What it raises comes out of ``run``, and nothing was written.
        after: called with the result of each plan that ``before`` let through, once it is stored
            or refused. What it raises comes out of ``run``, and what was written stays.

    Raises:
        InvalidOptionError: an argument is of a wrong type or out of range.
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
        self._running = threading.Lock()
        self._runner = 0
        """The thread that is in ``run``."""
        self._appended = False
        """True if somebody appended since the last look."""

    def run(self) -> CompactionResult | None:
        """Compact if a stage is due.

        Returns:
            None if nothing was due, all that is was given up, ``before`` said no, or another thread
            is in ``run``. Else the last result that recorded a view; without one, the last refusal.

        Raises:
            PlanStaleError: others changed the session again and again while it was summarized.
            ReadOnlyError, ClosedError, StorageError
        """
        if not self._running.acquire(blocking=False):
            return None
        try:
            return self._looked()
        finally:
            self._running.release()
            self._look_again()

    def after_append(self) -> None:
        """Compact if a stage is due, on behalf of an append that is stored: nothing is raised.

        A failure is logged, and what is due stays due for the next append. That of a caller's
        embedder, reducer or counter too: who is told that an append failed appends again.
        """
        if self._runner == threading.get_ident():
            return  # a caller's function appended: what runs looks again by itself
        self._appended = True
        self._look_again()

    def _look_again(self) -> None:
        """Compact what appends made due, if nobody does: who does looks again when it is done."""
        while self._appended and self._running.acquire(blocking=False):
            try:
                self._appended = False
                self._looked()
            except Exception as exc:  # noqa: BLE001 - a caller's function may fail in any way
                # Not the error itself: its text may hold content.
                _log.error("session %r was not compacted: %s", self.session.id, type(exc).__name__)
            finally:
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
                result = record(ref, draft)
            except (PlanStaleError, NotFoundError) as exc:
                attempts.lost(exc)
                continue
            attempts.ended(draft, result)
            if asked and self._after is not None:
                self._after(result)
        return attempts.result
