"""Usage: token counts of contexts by the session's counter, and usage reports of the provider."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from memcore import memory as remembered
from memcore import session as sessions
from memcore.context import (
    UNLIMITED,
    Selection,
    build,
    checked_budget,
    convert,
    overflow_error,
)
from memcore.errors import (
    ContextOverflowError,
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.limits import MODEL_CHARS_MAX, USAGE_TOKENS_MAX
from memcore.log import CachedSession, Head, SessionTxn, count_message
from memcore.model import Calibration, Context, Memory, View
from memcore.options import checked_bool, checked_int
from memcore.rows.usage import MILLION, Anchor, Learned, Scale, read_usage, write_usage
from memcore.session.change import Change, Unchanged
from memcore.session.context import (
    AuthorFilter,
    ContextRequest,
    Picked,
    last_before,
    pick,
    pick_by_author,
    tokens_from,
    turn_tokens,
    whole_context,
)
from memcore.session.engine import SentContext, SessionRef, spans_of
from memcore.session.read import head_of, read_log
from memcore.store.interface import ReadTxn
from memcore.wire import PairPolicy, format_policy

if TYPE_CHECKING:
    from memcore.memory import Recall, Recalled, RecallPlace

__all__ = [
    "ReportUsage",
    "calibrations",
    "context",
    "estimated_tokens",
    "report_usage",
]


_PARTIAL: Final = ""
"""Stands in for the policy of a context that is filtered by author."""


# --- Contexts -------------------------------------------------------------------------------------


class _ContextChoice(NamedTuple):
    """A choice made on one snapshot, and the scale used for it."""

    picked: Picked
    sent: SentContext
    """Its counted tokens and cut are filled in once the context is built."""
    scale: Scale | None
    recalled: Recalled | None = None
    """Memories that are shown in addition."""


class _ContextCall(NamedTuple):
    """The arguments of one call, and the latest choice made for it."""

    budget: int
    calibrated: bool
    model: str | None
    view: View | int | None
    authors: AuthorFilter | None
    chosen: list[_ContextChoice]
    memory: RecallPlace | None = None


def context(
    ref: SessionRef,
    budget_tokens: int | None,
    reserve_tokens: int,
    *,
    calibrated: bool,
    model: str | None,
    view: View | int | None,
    authors: AuthorFilter | None = None,
    memory: Recall | None = None,
    to: str | PairPolicy | None = None,
) -> Context:
    """Build the model's input; see ``Session.context``."""
    budget = checked_budget(budget_tokens, reserve_tokens)
    if calibrated is not False:
        checked_bool("calibrated", calibrated)
    name = None if model is None else checked_model(model)
    place = None if memory is None else _place(ref, memory)
    call = _ContextCall(budget, calibrated, name, view, authors, [], place)
    try:
        if to is not None:
            found = _built_in(ref, call, format_policy(to, "format"))
        elif place is not None:
            found = _built(ref, call)
        else:
            found = build(partial(_select, ref, call))
    except ContextOverflowError as exc:
        scale = call.chosen[-1].scale if calibrated else None
        if scale is None:
            raise
        raise _overflow(exc, scale, budget) from exc
    if found is None:
        return Context([], 0, 1, 0)
    picked, sent, scale, recalled = call.chosen[-1]
    if recalled is not None:
        recalled.note_uses(ref.engine.memory_uses)
    if ref.uses is not None:
        suffix = [(found.cut, sent.seq)] if found.cut <= sent.seq else []
        spans = suffix if authors is None else spans_of(picked.seqs)
        ref.uses.note(sent.session, spans, ref.engine.now_ms())
    ref.sent.append(sent._replace(counted_tokens=found.tokens, cut_seq=found.cut))
    if scale is None:
        return found
    return replace(found, estimated_tokens=scale.estimate(found.tokens))


def _built(ref: SessionRef, call: _ContextCall) -> Context | None:
    """Build a context with its memories; None if there is no session.

    Raises:
        ContextOverflowError: even the smallest legal context is larger.
    """
    try:
        found = build(partial(_select, ref, call))
    except ContextOverflowError:
        if not call.chosen or call.chosen[-1].recalled is None:
            raise
        call = call._replace(memory=None)  # memories give way to the session's own items
        found = build(partial(_select, ref, call))
    recalled = None if found is None else call.chosen[-1].recalled
    return found if recalled is None or found is None else _with_memories(found, recalled)


def _built_in(ref: SessionRef, call: _ContextCall, to: PairPolicy) -> Context | None:
    """Build a context in another wire format; None if there is no session.

    A message may be larger there, so the budget is tightened by what is too much until it fits.
    Where that leaves nothing, the smallest legal context is tried.

    Raises:
        ContextOverflowError: even the smallest legal context is larger.
        InvalidItemError: a message cannot be converted.
    """
    from memcore.wire.convert import all_native  # noqa: PLC0415 - other contexts do not need it

    budget, needed, is_least = call.budget, 0, False
    while True:
        try:
            found = _built(ref, call)
        except ContextOverflowError as exc:
            # Nothing was converted so far: the session's own smallest context is too large.
            if not needed:
                raise
            if is_least:
                raise overflow_error(needed, budget) from exc
            is_least = True
            call = call._replace(budget=_asking_for(call, exc.needed_tokens))
            continue
        if found is None:
            return None
        choice = call.chosen[-1]
        if choice.picked.policy == to and all_native(found.messages, to.wire):
            return found  # it is legal in this format already
        made = convert(found.messages, to=to)
        counter = choice.picked.counter
        tokens = sum(count_message(message, counter) for message in made.messages)
        allowed = budget
        if call.calibrated and choice.scale is not None and budget < UNLIMITED:
            allowed = min(budget, choice.scale.allowed(budget))
        if tokens <= allowed:
            repairs = found.repairs + made.repairs
            return replace(found, messages=made.messages, tokens=tokens, repairs=repairs)
        needed = tokens
        if is_least:
            raise overflow_error(needed, budget)
        call = call._replace(budget=max(call.budget - (tokens - allowed), 1))


def _asking_for(call: _ContextCall, tokens: int) -> int:
    """The budget with which a context of so many tokens is allowed."""
    scale = call.chosen[-1].scale if call.calibrated and call.chosen else None
    return tokens if scale is None else max(scale.estimate(tokens), tokens)


def _place(ref: SessionRef, asked: object) -> RecallPlace:
    """Return what a context that shows memories needs; others' memories are read here.

    Raises:
        InvalidOptionError: it is no Recall.
        AccessDeniedError: the authorizer does not let the actor read the user's memory.
    """
    if not isinstance(asked, remembered.Recall):
        msg = f"memory: expected a Recall or None, got {type(asked).__name__}"
        raise InvalidOptionError(msg)
    engine, text = ref.engine, None
    if ref.access is not None:  # as for the handle of the memory itself
        ref.access.need("memory", app=ref.app, user=ref.user, name=ref.name)
    if asked.query not in (None, remembered.LAST_USER):
        text = asked.query
        if engine.write_filter is not None:  # what is stored was redacted, so the query has to be
            text = str(engine.write_filter.at(ref.app, ref.user).again(text))
    shared: tuple[Memory, ...] = ()
    if asked.shared and asked.pinned:
        memories = sessions.open_memory(engine, ref.app, ref.user, access=ref.access)
        shared = tuple(memories.grants.memories(asked.admits))
    place = remembered.RecallPlace(asked, ref.name, text, engine.indexes, engine.now_ms(), shared)
    if engine.embedder is None:
        return place
    memories = sessions.open_memory(engine, ref.app, ref.user, ref.name, access=ref.access)
    handle = remembered.tool_handle(memories)
    return remembered.embedded_place(place, handle.turn, handle.embedded)


def _select(ref: SessionRef, call: _ContextCall, at_least: int) -> Selection | None:
    """Choose on a snapshot and decode the choice; None if there is no session."""
    for reuses in (True, False):
        found = read_log(ref, _choose, None, call, at_least, reuses)
        if found is None:
            break
        # Replaced, not added: ``build`` may pick several times, and the last choice counts.
        call.chosen[:] = (found,)
        selection = found.picked.selection()
        if selection is not None:
            return selection
    return None


def _choose(
    log: CachedSession, txn: ReadTxn, call: _ContextCall, at_least: int, reuses: bool
) -> _ContextChoice:
    whole = call.authors is None and call.memory is None
    scale = _scale(log, txn, call.model, strict=call.calibrated, whole=whole)
    budget = call.budget
    if call.calibrated and scale is not None and budget < UNLIMITED:
        budget = min(budget, scale.allowed(budget))
    ask, sent = ContextRequest(budget, at_least, call.view), _sent(log, 0, 0)
    recalled = None
    if call.memory is not None:  # memories give way to the newest turn, older ones to memories
        room = budget - max(turn_tokens(log, txn, ask), 1)
        if room > 0:
            recalled = remembered.choose_memories(
                txn, log.scope, call.memory, policy=log.policy, counter=log.counter,
                budget_tokens=room,
            )  # fmt: skip
        ask = ask._replace(budget=budget - (0 if recalled is None else recalled.tokens))
    if call.authors is None:
        if recalled is not None:  # as a filtered context: reports are about the log alone
            sent = sent._replace(policy=_PARTIAL)
        return _ContextChoice(pick(log, txn, ask, reuses=reuses), sent, scale, recalled)
    # A filtered context omits items that the reports count: it is no anchor and uses none.
    picked = pick_by_author(log, txn, ask, call.authors)
    return _ContextChoice(picked, sent._replace(policy=_PARTIAL), scale, recalled)


def _with_memories(found: Context, recalled: Recalled) -> Context:
    """Put the memories into a context."""
    return replace(
        found,
        messages=recalled.placed(found.messages, found.open_calls),
        tokens=found.tokens + recalled.tokens,
        memories=recalled.items,
    )


# --- Reports --------------------------------------------------------------------------------------


def report_usage(
    ref: SessionRef, input_tokens: int, *, model: str | None, counted_tokens: int | None
) -> ReportUsage:
    """Return the change that records a usage report.

    Raises:
        InvalidOptionError: an argument is not an int or str, or is out of range.
        NotFoundError: there is no session.
        ReadOnlyError
    """
    billed = _checked_tokens("input_tokens", input_tokens, least=1)
    name = checked_model(model)
    if counted_tokens is not None:
        _checked_tokens("counted_tokens", counted_tokens, least=0)
    ref.need_writable()
    return ReportUsage(ref, name, _reported(ref, counted_tokens), billed)


def _reported(ref: SessionRef, counted_tokens: int | None) -> SentContext:
    """Return the context that a report is about.

    Raises:
        NotFoundError: there is no session.
    """
    # Other threads append to it while they build contexts with this handle.
    sent = ref.sent.copy()
    if counted_tokens is not None:
        for found in reversed(sent):
            if found.counted_tokens == counted_tokens:
                return found
    latest = sent[-1] if sent else read_log(ref, _whole, None, counted_tokens)
    if latest is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    return latest if counted_tokens is None else latest._replace(counted_tokens=counted_tokens)


def _whole(log: CachedSession, txn: ReadTxn, counted_tokens: int | None) -> SentContext:
    """Describe the context without a budget, as it is now or as it was with these tokens.

    The latter because another handle may have built it, and items may have been appended since.
    """
    shown, cut_seq = whole_context(log, txn)
    whole = _sent(log, shown, cut_seq)
    if counted_tokens is None:
        return whole
    seq = last_before(log, txn, shown - counted_tokens)
    return whole if seq is None else whole._replace(seq=seq)


# --- Calibration ----------------------------------------------------------------------------------


def estimated_tokens(ref: SessionRef) -> int:
    """Estimate the cost of the next full request in tokens.

    Raises:
        CorruptValueError: the calibration is damaged.
    """
    return read_log(ref, _estimate, 0)


def _estimate(log: CachedSession, txn: ReadTxn) -> int:
    found = _known(log, txn, None)
    if found is None or found.anchor is None or not _stands(log, head_of(log), found.anchor):
        shown = whole_context(log, txn)[0]
        return shown if found is None else found.scale(anchored=False).estimate(shown)
    anchor = found.anchor
    since = tokens_from(log, txn, log.history.position_from(anchor.seq + 1))
    return found.scale(anchored=True).estimate(anchor.counted_tokens + since)


def calibrations(ref: SessionRef) -> list[Calibration]:
    """Return the calibrations by the session's counter, most recently reported model first.

    Raises:
        CorruptValueError: the calibration is damaged.
    """
    nothing: list[Calibration] = []
    return read_log(ref, _calibrations, nothing)


def _calibrations(log: CachedSession, txn: ReadTxn) -> list[Calibration]:
    head = head_of(log)
    return [
        _calibration(found, anchored=found.anchor is not None and _stands(log, head, found.anchor))
        for found in read_usage(txn, log.scope, log.session)
        if found.counter == head.counter
    ]


class ReportUsage(Change[Calibration]):
    """Record what a provider billed for a context."""

    __slots__ = ("billed", "model", "sent")
    creates = False
    atomic = True

    def __init__(self, ref: SessionRef, model: str | None, sent: SentContext, billed: int) -> None:
        self.model, self.sent, self.billed = model, sent, billed
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Write the model's new calibration; the log and the head are unchanged."""
        # The session that the report is about was deleted; the name may be another one's by now.
        if session.log.session != self.sent.session:
            return Unchanged(self.missing())
        return Unchanged(_take_in(session, self.model, self.sent, self.billed))

    def missing(self) -> Calibration:
        """Reject the report.

        Raises:
            NotFoundError: always.
        """
        msg = f"session {self.ref.name!r}: what the report is about was deleted"
        raise NotFoundError(msg)


def checked_model(model: object) -> str | None:
    """Return the name of a model, checked.

    Raises:
        InvalidOptionError: it is neither None nor a str of 1 to 200 characters.
    """
    if model is None or (isinstance(model, str) and 0 < len(model) <= MODEL_CHARS_MAX):
        return model
    got = f"{len(model)} characters" if isinstance(model, str) else type(model).__name__
    msg = f"model: expected a str of 1 to {MODEL_CHARS_MAX} characters or None, got {got}"
    raise InvalidOptionError(msg)


def _checked_tokens(name: str, tokens: object, *, least: int) -> int:
    """Return ``tokens`` if it is a valid number of tokens.

    Raises:
        InvalidOptionError: it is not an int of ``least`` to 2**48.
    """
    if isinstance(tokens, int) and abs(tokens) > USAGE_TOKENS_MAX:
        msg = f"{name}: expected at most 2**48 tokens, got a number of {tokens.bit_length()} bits"
        raise InvalidOptionError(msg)
    return checked_int(name, tokens, least=least)


def _sent(log: CachedSession, counted_tokens: int, cut_seq: int) -> SentContext:
    """Describe a context of the current history."""
    head = log.head
    assert head is not None  # noqa: S101 - guaranteed by catch_up
    return SentContext(
        session=log.session,
        counter=head.counter,
        policy=head.policy,
        counted_tokens=counted_tokens,
        seq=head.segments[-1].hi if head.segments else 0,
        cut_seq=cut_seq,
        view=(head.view_session, head.view_number),
    )


def _known(log: CachedSession, txn: ReadTxn, model: str | None) -> Learned | None:
    """Read a model's calibration (None: the model reported last) by the session's counter."""
    return _reported_last(log, read_usage(txn, log.scope, log.session), model)


def _reported_last(
    log: CachedSession, reported: list[Learned], model: str | None
) -> Learned | None:
    for found in reported:
        if found.counter == head_of(log).counter and model in (None, found.model):
            return found
    return None


def _scale(
    log: CachedSession, txn: ReadTxn, model: str | None, *, strict: bool, whole: bool
) -> Scale | None:
    """Return a model's scale; None if nothing was reported. Only a ``whole`` context has anchors.

    Raises:
        CorruptValueError: the row is damaged, and ``strict``. Contexts that do not depend on it
            must still be built, so otherwise the result is None; check() reports the damage.
    """
    try:
        reported = read_usage(txn, log.scope, log.session)
    except CorruptValueError:
        if strict:
            raise
        return None
    found = _reported_last(log, reported, model) if reported else None
    if found is None:
        return None
    stands = whole and found.anchor is not None and _stands(log, head_of(log), found.anchor)
    return found.scale(anchored=stands)


def _stands(log: CachedSession, head: Head, anchor: Anchor) -> bool:
    """Return True if the anchor's messages are a prefix of what is shown now."""
    live = not anchor.seq or log.history.position_of(anchor.seq) is not None
    return live and _is_shown(head, anchor)


def _is_shown(head: Head, anchor: Anchor) -> bool:
    """Return True if only items came or went since; views are compared by number."""
    return (head.view_session, head.view_number, head.policy) == (*anchor.view, anchor.policy)


def _take_in(draft: SessionTxn, model: str | None, sent: SentContext, billed: int) -> Calibration:
    """Write the calibration after a report; nothing if the report is by another counter."""
    head, txn, log = draft.head, draft.txn, draft.log

    known: list[Learned] = []
    try:
        known = read_usage(txn, log.scope, log.session)
    except CorruptValueError:
        known = []  # unusable: it is rewritten
    before = Learned(model, head.counter)
    others = []
    for found in known:
        if (found.model, found.counter) == (model, head.counter):
            before = found
        else:
            others.append(found)
    after = before
    # Recounted since the context was built: tokens of two counters make no factor.
    if sent.counter == head.counter:
        report = Anchor(billed, sent.counted_tokens, sent.seq, sent.cut_seq, sent.view, sent.policy)
        after = before.after(
            report,
            live=before.anchor is not None and _is_live(draft, before.anchor.seq),
            stands=_is_live(draft, report.seq) and _is_shown(head, report),
        )
        write_usage(txn, log.scope, log.session, [after, *others])
    anchor = after.anchor
    return _calibration(
        after,
        anchored=anchor is not None and _is_live(draft, anchor.seq) and _is_shown(head, anchor),
    )


def _is_live(draft: SessionTxn, seq: int) -> bool:
    return not seq or draft.position_of(seq) is not None


def _calibration(learned: Learned, *, anchored: bool) -> Calibration:
    found = Calibration(
        learned.model, learned.counter, learned.factor_ppm / MILLION, learned.reports, anchored
    )
    if learned.anchor is None:
        return found
    anchor = learned.anchor
    return replace(
        found,
        input_tokens=anchor.input_tokens,
        counted_tokens=anchor.counted_tokens,
        seq=anchor.seq,
    )


def _overflow(cause: ContextOverflowError, scale: Scale, budget: int) -> ContextOverflowError:
    """Restate an overflow in the provider's tokens."""
    # A calibrated context keeps to the budget by both counts.
    needed = max(scale.estimate(cause.needed_tokens), cause.needed_tokens)
    msg = (
        f"the smallest legal context needs about {needed} tokens by the provider's count "
        f"({cause.needed_tokens} by the session's), more than the budget of {budget}: raise "
        "budget_tokens, compact the session, or shorten its largest items"
    )
    return ContextOverflowError(msg, needed_tokens=needed, budget_tokens=budget)
