"""Usage: token counts of contexts by the session's counter, and reports of the provider."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple

from memcore.context import UNLIMITED, Selection, build, checked_budget
from memcore.errors import (
    ContextOverflowError,
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.limits import MODEL_CHARS_MAX, USAGE_TOKENS_MAX
from memcore.log import CachedSession, Head, SessionTxn
from memcore.model import Calibration, Context, View
from memcore.options import checked_bool, checked_int
from memcore.rows.usage import MILLION, Anchor, Learned, Scale, read_usage, write_usage
from memcore.session.change import Change, Unchanged
from memcore.session.context import (
    AuthorContexts,
    AuthorFilter,
    ContextRequest,
    ContextSelector,
    Pick,
)
from memcore.session.engine import SessionRef, spans_of
from memcore.session.read import SessionReader, head_of
from memcore.store.interface import ReadTxn

__all__ = [
    "Metering",
    "ReportUsage",
]


_SENT_MAX: Final = 16
"""Contexts of one handle that a report may be about: as many requests may overlap."""


_PARTIAL: Final = ""
"""In place of the policy of a context that shows some authors alone."""


class Sent(NamedTuple):
    """What a context showed, as a report needs it."""

    session: int
    """The number of the session; its name may stand for another one when the report comes."""
    counter: str
    policy: str
    counted_tokens: int
    seq: int
    cut_seq: int
    view: tuple[int, int]

    def anchor(self, input_tokens: int) -> Anchor:
        """The report on it."""
        return Anchor(
            input_tokens, self.counted_tokens, self.seq, self.cut_seq, self.view, self.policy
        )


class _ChosenContext(NamedTuple):
    """What one snapshot gives of a context: the choice, and by what it was made."""

    pick: Pick
    sent: Sent
    """Its counted tokens and its cut are known when the context is built."""
    scale: Scale | None


class Metering:
    """The contexts of one session's handle, and the calibration of its counter."""

    __slots__ = ("_address", "_picking", "_reading", "_sent", "voicing")

    def __init__(self, address: SessionRef) -> None:
        self._address = address
        self._reading = SessionReader(address)
        self._picking = ContextSelector(self._reading)
        self.voicing = AuthorContexts(self._reading, self._picking)
        self._sent: deque[Sent] = deque(maxlen=_SENT_MAX)

    # --- contexts ---------------------------------------------------------------------------------

    def context(
        self,
        budget_tokens: int | None,
        reserve_tokens: int,
        *,
        calibrated: bool,
        model: str | None,
        view: View | int | None,
        voices: AuthorFilter | None = None,
    ) -> Context:
        """What the model receives."""
        budget = checked_budget(budget_tokens, reserve_tokens)
        by_provider, name = checked_bool("calibrated", calibrated), checked_model(model)
        last: list[_ChosenContext] = []

        def choose(log: CachedSession, txn: ReadTxn, at_least: int) -> _ChosenContext:
            scale = _scale(log, txn, name, strict=by_provider, whole=voices is None)
            allowed = budget
            if by_provider and scale is not None and budget < UNLIMITED:
                allowed = min(budget, scale.allowed(budget))
            ask = ContextRequest(allowed, at_least, view)
            if voices is not None:
                # What others were not shown is in no report: it is no anchor, and rests on none.
                sent = _sent(log, 0, 0)._replace(policy=_PARTIAL)
                return _ChosenContext(self.voicing.pick(log, txn, ask, voices), sent, scale)
            chosen = self._picking.pick(log, txn, ask)
            return _ChosenContext(chosen, _sent(log, 0, 0), scale)

        def pick(at_least: int) -> Selection | None:
            found = self._reading.run(lambda log, txn: choose(log, txn, at_least), None)
            if found is None:
                return None
            last[:] = [found]
            return found.pick()

        try:
            context = build(pick)
        except ContextOverflowError as exc:
            scale = last[0].scale if by_provider else None
            if scale is None:
                raise
            raise _overflow(exc, scale, budget) from exc
        if context is None:
            return Context([], 0, 1, 0)
        uses = self._address.uses
        if uses is not None:
            seq = last[0].sent.seq
            suffix = [(context.cut, seq)] if context.cut <= seq else []
            spans = suffix if voices is None else spans_of(self.voicing.shown)
            uses.note(last[0].sent.session, spans, self._address.engine.now_ms())
        _, sent, scale = last[0]
        self._sent.append(sent._replace(counted_tokens=context.tokens, cut_seq=context.cut))
        if scale is None:
            return context
        return replace(context, estimated_tokens=scale.estimate(context.tokens))

    # --- reports ----------------------------------------------------------------------------------

    def report(
        self, input_tokens: int, *, model: str | None, counted_tokens: int | None
    ) -> ReportUsage:
        """The change that takes a report in."""
        billed = _checked_tokens("input_tokens", input_tokens, least=1)
        name = checked_model(model)
        if counted_tokens is not None:
            _checked_tokens("counted_tokens", counted_tokens, least=0)
        self._address.need_writable()
        return ReportUsage(self._address, name, self._meant(counted_tokens), billed)

    def _meant(self, counted_tokens: int | None) -> Sent:
        """What a report is about.

        Raises:
            NotFoundError: there is no session.
        """
        sent = self._sent.copy()
        if counted_tokens is not None:
            for found in reversed(sent):
                if found.counted_tokens == counted_tokens:
                    return found
        latest = (
            sent[-1]
            if sent
            else self._reading.run(lambda log, txn: self._whole(log, txn, counted_tokens), None)
        )
        if latest is None:
            msg = f"there is no session {self._address.name!r}"
            raise NotFoundError(msg)
        return latest if counted_tokens is None else latest._replace(counted_tokens=counted_tokens)

    def _whole(self, log: CachedSession, txn: ReadTxn, counted_tokens: int | None) -> Sent:
        """The context without a budget: of now, or as it was when it had these tokens.

        Another handle may have made it, and items been appended since.
        """
        shown, cut_seq = self._picking.shown(log, txn)
        whole = _sent(log, shown, cut_seq)
        if counted_tokens is None:
            return whole
        seq = self._picking.last_before(log, txn, shown - counted_tokens)
        return whole if seq is None else whole._replace(seq=seq)

    # --- what is known ----------------------------------------------------------------------------

    def estimated_tokens(self) -> int:
        """What the next full request is estimated to cost."""

        def estimate(log: CachedSession, txn: ReadTxn) -> int:
            head = head_of(log)
            found = _known(log, txn, None)
            if found is None or found.anchor is None or not _stands(log, head, found.anchor):
                shown = self._picking.shown(log, txn)[0]
                return shown if found is None else found.scale(anchored=False).estimate(shown)
            anchor = found.anchor
            after = log.history.position_from(anchor.seq + 1)
            since = self._picking.tokens_from(log, txn, after)
            return found.scale(anchored=True).estimate(anchor.counted_tokens + since)

        return self._reading.run(estimate, 0)

    def calibrations(self) -> list[Calibration]:
        """What is known by the session's counter, the model reported last first."""

        def collect(log: CachedSession, txn: ReadTxn) -> list[Calibration]:
            head = head_of(log)
            return [
                _calibration(
                    found, anchored=found.anchor is not None and _stands(log, head, found.anchor)
                )
                for found in read_usage(txn, log.scope, log.session)
                if found.counter == head.counter
            ]

        nothing: list[Calibration] = []
        return self._reading.run(collect, nothing)


class ReportUsage(Change[Calibration]):
    """Take in what a provider billed for a context."""

    __slots__ = ("billed", "model", "sent")
    creates = False
    atomic = True

    def __init__(self, ref: SessionRef, model: str | None, sent: Sent, billed: int) -> None:
        self.model, self.sent, self.billed = model, sent, billed
        super().__init__(ref)

    def run(self, session: SessionTxn) -> Unchanged:
        """Write what was learned of the model; the log and the head stay."""
        if session.log.session != self.sent.session:
            return Unchanged(self.missing())
        return Unchanged(_take_in(session, self.model, self.sent, self.billed))

    def missing(self) -> Calibration:
        """Refuse the report.

        Raises:
            NotFoundError: always.
        """
        msg = f"session {self.ref.name!r}: what the report is about was deleted"
        raise NotFoundError(msg)


def checked_model(model: object) -> str | None:
    """The name of a model.

    Raises:
        InvalidOptionError: it is neither None nor a str of 1 to 200 characters.
    """
    if model is None or (isinstance(model, str) and 0 < len(model) <= MODEL_CHARS_MAX):
        return model
    got = f"{len(model)} characters" if isinstance(model, str) else type(model).__name__
    msg = f"model: expected a str of 1 to {MODEL_CHARS_MAX} characters or None, got {got}"
    raise InvalidOptionError(msg)


def _checked_tokens(name: str, tokens: object, *, least: int) -> int:
    """``tokens`` if it can be a number of tokens.

    Raises:
        InvalidOptionError: it is no int of ``least`` to 2**48.
    """
    if isinstance(tokens, int) and abs(tokens) > USAGE_TOKENS_MAX:
        msg = f"{name}: expected at most 2**48 tokens, got a number of {tokens.bit_length()} bits"
        raise InvalidOptionError(msg)
    return checked_int(name, tokens, least=least)


def _sent(log: CachedSession, counted_tokens: int, cut_seq: int) -> Sent:
    """What a context of the current history shows."""
    head = head_of(log)
    return Sent(
        session=log.session,
        counter=head.counter,
        policy=head.policy,
        counted_tokens=counted_tokens,
        seq=head.segments[-1].hi if head.segments else 0,
        cut_seq=cut_seq,
        view=(head.view_session, head.view_number),
    )


def _known(log: CachedSession, txn: ReadTxn, model: str | None) -> Learned | None:
    """What is known of a model (None: of the one reported last) by the session's counter."""
    for found in read_usage(txn, log.scope, log.session):
        if found.counter == head_of(log).counter and model in (None, found.model):
            return found
    return None


def _scale(
    log: CachedSession, txn: ReadTxn, model: str | None, *, strict: bool, whole: bool
) -> Scale | None:
    """The scale of a model; None if nothing was reported. Only a ``whole`` context has anchors.

    Raises:
        CorruptValueError: the row is damaged, and ``strict``. Who does not go by it shall not be
            kept from a context: nothing is known then, and check() tells why.
    """
    try:
        found = _known(log, txn, model)
    except CorruptValueError:
        if strict:
            raise
        return None
    if found is None:
        return None
    stands = whole and found.anchor is not None and _stands(log, head_of(log), found.anchor)
    return found.scale(anchored=stands)


def _stands(log: CachedSession, head: Head, anchor: Anchor) -> bool:
    """Whether the messages of an anchor begin what is shown now."""
    live = not anchor.seq or log.history.position_of(anchor.seq) is not None
    return live and _is_shown(head, anchor)


def _is_shown(head: Head, anchor: Anchor) -> bool:
    """Whether nothing but items came or went since; the view's number stands for the view."""
    return (head.view_session, head.view_number, head.policy) == (*anchor.view, anchor.policy)


def _take_in(draft: SessionTxn, model: str | None, sent: Sent, billed: int) -> Calibration:
    """Write what is known after a report; nothing if its tokens are another counter's."""
    head, txn, log = draft.head, draft.txn, draft.log

    def is_live(seq: int) -> bool:
        return not seq or draft.position_of(seq) is not None

    known: list[Learned] = []
    try:
        known = read_usage(txn, log.scope, log.session)
    except CorruptValueError:
        known = []  # nothing of it can be used: it is written anew
    before = Learned(model, head.counter)
    others = []
    for found in known:
        if (found.model, found.counter) == (model, head.counter):
            before = found
        else:
            others.append(found)
    after = before
    if sent.counter == head.counter:
        report = sent.anchor(billed)
        after = before.after(
            report,
            live=before.anchor is not None and is_live(before.anchor.seq),
            stands=is_live(report.seq) and _is_shown(head, report),
        )
        write_usage(txn, log.scope, log.session, [after, *others])
    anchor = after.anchor
    return _calibration(
        after,
        anchored=anchor is not None and is_live(anchor.seq) and _is_shown(head, anchor),
    )


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
    """The same error in the provider's tokens."""
    needed = max(scale.estimate(cause.needed_tokens), cause.needed_tokens)
    msg = (
        f"the smallest legal context needs about {needed} tokens by the provider's count "
        f"({cause.needed_tokens} by the session's), more than the budget of {budget}: raise "
        "budget_tokens, compact the session, or shorten its largest items"
    )
    return ContextOverflowError(msg, needed_tokens=needed, budget_tokens=budget)
