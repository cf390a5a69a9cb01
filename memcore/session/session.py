"""Session: the object that a runtime holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from memcore import session
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.faces import MadeLate
from memcore.limits import BUNDLE_BYTES, RECOVERY_STEPS
from memcore.log import History
from memcore.model import (
    RESULT_TYPES,
    Calibration,
    CallRecord,
    Checkpoint,
    CompactionResult,
    Context,
    Envelope,
    Item,
    ItemKind,
    Mask,
    OpenCall,
    Plan,
    Receipt,
    RecountResult,
    RepairResult,
    Summarize,
    View,
)
from memcore.options import checked_int, checked_optional_int, checked_optional_seconds
from memcore.session import read, usage
from memcore.session.append import (
    AnyEnvelope,
    Append,
    ItemOptions,
    abandon,
    append_items,
    encode_items,
    record_event,
    store,
)
from memcore.session.change import Change, Fork, SetPolicy, Uncompact, Undo
from memcore.session.context import checked_authors, shown_seqs
from memcore.session.engine import REFERENCE, Accessed, SessionRef, read_uses
from memcore.session.read import head_of
from memcore.store import LmdbStore
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter, get_counter
from memcore.wire.message import results_of

if TYPE_CHECKING:
    from memcore.compaction import CompactionPolicy, Pressure
    from memcore.privacy import RedactionPolicy
    from memcore.session.batch import BatchContext, ChangeBatch
    from memcore.session.checkpoints import Position
    from memcore.session.content_filter import Redact
    from memcore.session.lease import Lease
    from memcore.session.recount import Progress
    from memcore.session.recovery import Recovery
    from memcore.session.retry import Escalation, Ladder, LadderRules
    from memcore.session.state import SessionState
    from memcore.state import Command, Trace

__all__ = [
    "Session",
    "ref_of",
    "store_of",
]


# --- What a session's handle does to be shown as less than it is: compaction, views, repair -------

T = TypeVar("T")
_SEQ: Final = re.compile("[0-9]{1,20}")
AnyPolicy: TypeAlias = "CompactionPolicy | str | Mapping[str, Any]"


def _split_reference(reference: object) -> tuple[int, str | None]:
    parts = reference.split(":", 2) if isinstance(reference, str) else []
    if len(parts) < 2 or parts[0] != "item" or not _SEQ.fullmatch(parts[1]):  # noqa: PLR2004
        msg = f"reference: expected 'item:SEQ' or 'item:SEQ:CALL_ID', got {reference!r:.80}"
        raise InvalidOptionError(msg)
    return int(parts[1]), parts[2] if len(parts) > 2 else None  # noqa: PLR2004


# --- What a session's handle does for those who share it: agents, people who decide or reproduce --

CHILD: Final = "::"
"""Between the name of a session and that of its child."""
_LOOK_PAGE: Final = 64


# --- Session: the object that a runtime holds -----------------------------------------------------


_INTERNAL: Final = frozenset((
    "after_append", "history_at", "is_admitting", "plan_batch", "plan_command", "plan_fork",
    "plan_share", "seen_revision",
))  # fmt: skip
"""Members that memcore's own facades and adapters use: no part of the public surface."""


class Session:
    """One append-only conversation in a scope. May be shared by threads.

    Made by ``db.session(...)``. A session comes into being with its first change; reading one that
    does not exist gives an empty history.
    """

    def __init__(self, ref: SessionRef) -> None:
        self._ref = ref
        self.after_append: Callable[[], object] | None = None
        """Called after each change that appends, once it is stored; it does not raise."""
        options = ref.options
        if options.recover:
            ref.due = self._recover_and_recount if options.recount else self._recover
        elif options.recount:
            ref.due = self._recount

    @MadeLate
    def state(self) -> SessionState:
        """Fields and values beside the log; see ``SessionState``."""
        return session.SessionState(self._ref)

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _INTERNAL)

    def __repr__(self) -> str:
        ref = self._ref
        return f"Session({ref.name!r}, user={ref.user!r}, app={ref.app!r})"

    def __len__(self) -> int:
        return read.read_log(self._ref, lambda log, _: log.history.count, 0)

    def __bool__(self) -> bool:
        return True  # an empty session is a session all the same

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    @property
    def id(self) -> str:
        """The session's name."""
        return self._ref.name

    @property
    def user(self) -> str:
        """The user who owns it."""
        return self._ref.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._ref.app

    def hold(self, *, reason: str) -> bool:
        """Put the session under a legal hold; whether it was under none of its own.

        Until ``release``, deleting it and erasing its user are refused with HeldError.

        Raises:
            NotFoundError: there is no such session yet.
            InvalidOptionError: the reason is no text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        at = self._ref
        at.need("hold")
        return session.hold(at.engine, at.app, at.user, at.name, reason=reason)

    def release(self) -> bool:
        """End the session's own hold; whether there was one. That of its scope stays."""
        at = self._ref
        at.need("release")
        return session.release(at.engine, at.app, at.user, at.name)

    @property
    def is_admitting(self) -> bool:
        """True if content is redacted or judged before it is stored."""
        return self._ref.engine.write_filter is not None

    @property
    def counter(self) -> str:
        """The id of the counter that ``tokens`` and all counts of the session are by."""
        return session.recount.counter_id(self._ref)

    # What the first use of the handle begins with; each returns whether it is done for good.

    def _recover(self) -> bool:
        return session.recovery.recover_lazily(self._ref)

    def _recount(self) -> bool:
        return session.recount.recount_lazily(self._ref)

    def _recover_and_recount(self) -> bool:
        return self._recover() and self._recount()

    # --- appending --------------------------------------------------------------------------------

    def _append(self, change: Change[T]) -> T:
        found = store(change)
        if self.after_append is not None:
            self.after_append()
        return found

    def append(
        self,
        item: Mapping[str, Any],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append one item; it is stored when this returns.

        Args:
            item: a message in any supported wire format: a JSON object.
            expected_revision: store it only if the session is at this revision.
            idempotency_key: the same key with the same content stores it once and returns the
                first receipt.
            request_id: kept beside the item.
            meta: a JSON object kept beside the item.
            envelope: what is known of the item: an Envelope, or a mapping of its fields.

        Raises:
            InvalidItemError, OrphanResultError, RevisionConflict, DuplicateRequestError,
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        change = None
        if (
            expected_revision is None
            and idempotency_key is None
            and request_id is None
            and meta is None
            and envelope is None
        ):
            change = self._ref.begin_append([item], Append)
        if type(change) is not Append:
            change = append_items(
                self._ref,
                [item],
                begun=change,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        return self._append(change)

    def extend(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append items in one commit: all of them or none. Arguments and errors as ``append``."""
        change = None
        if (
            type(items) is list
            and expected_revision is None
            and idempotency_key is None
            and request_id is None
            and meta is None
            and envelope is None
        ):
            items = items[:]  # one's own: a counter may change the caller's meanwhile
            change = self._ref.begin_append(items, Append)
        if type(change) is not Append:
            change = append_items(
                self._ref,
                items,
                begun=change,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        return self._append(change)

    def record(
        self,
        type: str,  # noqa: A002 - the architecture's name
        payload: Any = None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append an event (planner, reflection, error, ...): in the log, never in a context."""
        change = record_event(
            self._ref,
            type,
            payload,
            expected_revision=expected_revision,
            idempotency_key=idempotency_key,
            request_id=request_id,
            meta=meta,
            envelope=envelope,
        )
        return self._append(change)

    def abandon(self, call_id: str) -> Receipt:
        """Give up an open call: it blocks nothing any more, contexts answer it synthetically.

        Raises:
            NotFoundError: there is no open call with this id.
        """
        return self._append(abandon(self._ref, call_id))

    def begin(self, values: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None) -> Receipt:
        """Make the session with the first values of its state; an event ``state`` records them.

        Args:
            values: fields of any prefix.
            meta: a JSON object kept beside the event.

        Raises:
            RevisionConflict: there is such a session.
            InvalidUpdateError, InvalidItemError, ReadOnlyError, StorageError; nothing is stored.
        """
        with self.batch() as batch:
            batch.begin_state(values, meta=meta)
        assert batch.receipt is not None  # noqa: S101 - it was committed
        return batch.receipt

    def batch(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> BatchContext:
        """``with session.batch() as b:`` commits b's changes together when the block ends.

        Args:
            expected_revision: only if the session is at this revision.
            idempotency_key: the same key with the same steps is carried out once, within a week,
                and ``b.receipt`` is the first one; ``undone`` and ``checkpoints`` are empty then.
        """
        return session.BatchContext(
            self.plan_batch(expected_revision, idempotency_key),
            lambda batch: self._append(batch.change()),
        )

    def plan_batch(
        self, expected_revision: int | None, idempotency_key: str | None = None
    ) -> ChangeBatch:
        """An empty batch of this session."""
        return session.ChangeBatch(self._ref, expected_revision, idempotency_key)

    def apply(
        self,
        command: Command,
        *,
        expected_revision: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Append the messages of a Command and update its fields of the state, in one commit.

        Args:
            command: a Command; any object with an ``update`` (LangGraph's) may stand for it.
            expected_revision: do it only if the session is at this revision.
            trace: gets a Reduction for every call of a reducer, once all is stored.
            idempotency_key: as of ``batch``.

        Raises:
            InvalidUpdateError, and what ``append`` raises; nothing is stored then.
        """
        batch = self.plan_command(
            command,
            expected_revision=expected_revision,
            trace=trace,
            idempotency_key=idempotency_key,
        )
        receipt = self._append(batch.change())
        batch.settle(receipt)
        return receipt

    def plan_command(
        self,
        command: Command,
        *,
        expected_revision: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> ChangeBatch:
        """The batch of ``apply``."""
        batch = self.plan_batch(expected_revision, idempotency_key)
        batch.apply(command, trace=trace)
        return batch

    # --- one writer -------------------------------------------------------------------------------

    def lease(self, owner: str, *, ttl_seconds: float, force: bool = False) -> Lease:
        """Be the only one to change the session for a while; ``with session.lease(...)``.

        The lease is this handle's. Others may read; what they change is refused before it writes
        anything. Whoever takes it over once it has expired gets the next epoch, and the owner
        before them is refused from then on, whatever any clock says. The same owner gets it again
        under the same epoch: an owner's name is that of one worker.

        Args:
            owner: who takes it: 1 to 1,024 characters, different for each worker.
            ttl_seconds: how long it lasts unless it is renewed: up to a year, by the clock of the
                process that asks.
            force: take it even if another owner holds it, who is fenced then.

        Raises:
            LeaseHeldError: another owner holds it.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        change = session.TakeLease(self._ref, owner, ttl_seconds, force=force)
        return session.Lease(self._ref, self._commit(change), change.ttl_ms)

    # --- settings ---------------------------------------------------------------------------------

    def set_policy(self, policy: str) -> None:
        """Hold the session to another pair policy; the log stays, the ledger is built anew."""
        self._commit(SetPolicy(self._ref, policy))
        self._ref.allow_policy(policy)

    def recount(
        self, counter: str | TokenCounter, *, progress: Progress | None = None
    ) -> RecountResult:
        """Count the whole live history with another counter, which is the session's from now on.

        Writers go on meanwhile; one commit puts the counts in force. The log, its revision and the
        views stay. If the counter is the session's already, only damaged counts are made anew.

        Args:
            counter: ``"bytes/4"``, ``"tiktoken:NAME"`` or a TokenCounter.
            progress: called with (items counted, live items).

        Raises:
            NotFoundError: there is no session.
            CounterUnavailableError, CorruptValueError, InvalidOptionError, ReadOnlyError
        """
        by = get_counter(counter)
        done = session.recount.recount(self._ref, by, progress)
        self._ref.allow_counter(by)
        return done

    # --- totals, and what a provider bills --------------------------------------------------------

    def exists(self) -> bool:
        """Return True if there is a session of this name."""
        return read.exists(self._ref)

    @property
    def revision(self) -> int:
        """Counter of changes to the log: what ``expected_revision`` is compared with."""
        return read.read_log(self._ref, lambda log, _: head_of(log).revision, 0)

    def seen_revision(self) -> int | None:
        """The revision as this process knew it last, if it did; looks nothing up."""
        log = self._ref.log
        head = None if log is None else log.head
        return None if head is None else head.revision

    @property
    def tokens(self) -> int:
        """Tokens of the whole live history."""
        return read.read_log(self._ref, lambda log, _: head_of(log).tokens, 0)

    @property
    def policy(self) -> str:
        """The pair policy that the session is held to."""
        default = self._ref.options.policy or self._ref.engine.policy
        return read.read_log(self._ref, lambda log, _: log.policy.name, default)

    @property
    def open_calls(self) -> list[OpenCall]:
        """Calls that wait for a result, oldest first."""
        return [call for _, call in read.open_calls(self._ref)]

    # --- what the provider bills ------------------------------------------------------------------

    def report_usage(
        self, input_tokens: int, *, model: str | None = None, counted_tokens: int | None = None
    ) -> Calibration:
        """Tell what a provider billed for a request; it calibrates the estimates for that model.

        The report is about the last ``context()`` made through this handle; if none was made, about
        the whole live history as it is shown now: then report before the answer is appended. It is
        kept as an anchor: the next request is estimated at ``input_tokens + factor * counted
        since``. The factor comes from the differences of reports alone, so whatever every request
        holds beside the messages (tool schemas, a system prompt outside of the session) drops out
        of it. It is 1.0 until there are two reports, and stays within 0.8 to 2.0.

        The anchor does not apply once its last item was undone, the session was compacted or given
        another policy or counter; the factor stays. A report that comes late, about less than one
        before it, changes neither. The log and the revision stay as they are.

        Args:
            input_tokens: all input tokens of the request, those read from or written to a prompt
                cache included (Anthropic's API lists them apart): 1 to 2**48.
            model: the model's name; factors and anchors are kept for each of the last 8.
            counted_tokens: what the session's counter says of the messages that were sent. Which
                of the last 16 contexts is meant if requests overlap (``Context.tokens`` of it); or
                your own count, if you sent other messages than the context's.

        Returns:
            What is known of the model now.

        Raises:
            InvalidOptionError: an argument is no int or str, or out of range.
            NotFoundError: there is no such session (any more).
            ReadOnlyError, ClosedError, StorageError
        """
        report = usage.report_usage(
            self._ref, input_tokens, model=model, counted_tokens=counted_tokens
        )
        return self._commit(report)

    @property
    def estimated_tokens(self) -> int:
        """Estimate of what the provider bills for the next full request.

        For the model reported last: what was billed for the anchored context and the factor times
        what was appended since; where no anchor applies, the factor times the tokens of the context
        without a budget. Without any report that is the plain count.

        Raises:
            CorruptValueError: the calibration is damaged; the next report writes it anew.
        """
        return usage.estimated_tokens(self._ref)

    def calibrations(self) -> list[Calibration]:
        """Return what was learned by ``report_usage``, the model reported last first.

        Raises:
            CorruptValueError: the calibration is damaged; the next report writes it anew.
        """
        return usage.calibrations(self._ref)

    # --- compaction -------------------------------------------------------------------------------

    def _commit(self, change: Change[T]) -> T:
        return self._ref.engine.store.transact(change, makes_room=change.makes_room)

    # --- when -------------------------------------------------------------------------------------

    def pressure(self, *, policy: AnyPolicy | None = None) -> Pressure:
        """Measure how full the session is; find the stage that is due and the turns that are left.

        From sums that are kept: its time does not grow with the history.
        """
        compact = session.compact
        return compact.find_pressure(self._ref, compact.policy_of(self._ref, policy))

    def needs_compaction(
        self, *, policy: AnyPolicy | None = None, max_items: int | None = None
    ) -> bool:
        """Return True if a stage of the policy is due, or there are more than ``max_items`` items.

        False while the last item is a tool result: the model has yet to see it.
        """
        most = checked_optional_int("max_items", max_items)
        found = self.pressure(policy=policy)
        if most is not None:
            return not found.waiting and found.items > most
        return found.stage is not None

    # --- compaction -------------------------------------------------------------------------------

    def plan(
        self,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
    ) -> Plan:
        """Plan what ``compact`` with the same arguments would fold and mask; writes nothing.

        Empty if no stage is due. With ``force`` it is that of a compaction with a summarizer.
        """
        rule, asked = session.compact.asked(
            self._ref, policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        return session.compact.begin(self._ref, rule, asked, fold=False).plan

    def compact(
        self,
        summarize: Summarize | None = None,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
        timeout_seconds: float | None = None,
    ) -> CompactionResult:
        """Represent the older items by a summary. The log keeps them; ``uncompact`` shows them.

        When no stage of the policy is due nothing is done, and the result's ``reason`` says why;
        ``force``, ``stage``, ``keep_last`` and ``keep_tokens`` compact all the same.

        The cut never splits a call from its result. ``summarize`` is called outside of any
        transaction, and writers go on meanwhile. If it fails or saves too little, the policy's
        fallback serves: masks, a short safe suffix without a new summary, or one item; the result
        holds the error and the reason. Without ``summarize`` the older items are trimmed. What
        saves nothing is refused.

        Args:
            summarize: gets a SummaryRequest, returns the summary.
            policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
            stage: the stage to run, due or not; None: the heaviest that is due.
            keep_last: keep at least this many items, in place of the policy's number.
            keep_tokens: keep the longest safe suffix within these tokens, likewise.
            force: if no stage is due, run the heaviest; with ``summarize``, the heaviest that
                makes a summary.
            timeout_seconds: how long ``summarize`` may take; it then runs in a thread.

        Raises:
            PlanStaleError: the history was cut or compacted by someone else meanwhile.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        compact, ref = session.compact, self._ref
        compact.check(ref, summarize)
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        rule, asked = compact.asked(
            ref, policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        draft = compact.begin(ref, rule, replace(asked, summarizes=summarize is not None))
        draft = compact.summarize(ref, draft, summarize, timeout_seconds=timeout_seconds)
        return compact.record(ref, draft)

    # --- repair -----------------------------------------------------------------------------------

    def repair(
        self, mode: str = "drop", *, plan: bool = False, close_open: bool = False
    ) -> RepairResult:
        """Mend a foreign history by a recorded view; the log keeps it as it is.

        Contexts mend what they show by themselves, each time: a repair decides once. Results that
        answer nothing or that a newer one replaces are not shown any more. Calls that were passed
        over are taken out (``drop``) or keep being answered synthetically (``synthesize``); a
        result that comes for a call that was taken out is not shown. Late and split results are
        put in order by rendering; under the view that holds for the pair policy ``seed``, too.
        What the repair rests on may be undone: then the items show as before. Calls at the end
        that nothing follows stay open. A second repair finds nothing to do.

        Args:
            mode: ``drop`` or ``synthesize``.
            plan: report what would be done; write nothing.
            close_open: give up the open calls first, by an event each, as ``abandon`` does.

        Raises:
            RevisionConflict, PlanStaleError: others kept changing the session.
            InvalidOptionError, ReadOnlyError, CorruptValueError, StorageError
        """
        return session.repair.repair(self._ref, mode, plan=plan, close_open=close_open)

    # --- views ------------------------------------------------------------------------------------

    def views(self) -> list[View]:
        """The compaction records, oldest first."""
        return read.views_of(self._ref)

    def uncompact(self) -> bool:
        """Take the last compaction back; whether there was one."""
        return self._commit(Uncompact(self._ref))

    def masks(self) -> list[Mask]:
        """Return what contexts show in place of items at present, in the order of the items."""
        found = read.read_log(self._ref, lambda log, txn: log.masks(txn, log.current_view(txn)), {})
        return [found[seq] for seq in sorted(found)]

    def covered(self, view: View | None = None) -> Iterator[Item]:
        """The items that a view (None: the current one) represents and does not show, oldest first.

        Raises:
            NotFoundError: there is no such view in force or among its ancestors.
        """
        found = read.find_view(self._ref, view)
        if found is None:
            return
        pinned = set(found.pinned)
        pins = read.last_pin(self._ref)
        for item in read.iter_items(self._ref, 0, found.cut_seq + 1):
            if item.seq > pins and item.seq not in pinned:
                yield item

    def read_offloaded(self, reference: str) -> str:
        """The whole text that an offloaded result left a preview of.

        Args:
            reference: as the preview names it: ``item:SEQ`` or ``item:SEQ:CALL_ID``; of an item
                that was too large to be stored as it was, ``offload:KEY:NUMBER``.

        Raises:
            NotFoundError: the item is not in the live history, or has no such result.
            InvalidOptionError: it is no reference.
        """
        if isinstance(reference, str) and reference.startswith(REFERENCE):
            return read.read_offloaded(self._ref, reference)
        seq, call_id = _split_reference(reference)
        texts = [
            result.text
            for result in results_of(read.get_item(self._ref, seq).message)
            if call_id is None or (result.key is not None and result.key[1] == call_id)
        ]
        if not texts:
            msg = f"item {seq} has no result for call {call_id!r}"
            raise NotFoundError(msg)
        return "\n".join(texts)

    # --- undo, checkpoints, forks -----------------------------------------------------------------

    def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """Take the last ``count`` items off the live history and return them, oldest first."""
        return self._commit(Undo(self._ref, count, expected_revision=expected_revision))

    # --- checkpoints ------------------------------------------------------------------------------

    def checkpoint(
        self,
        name: str | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Checkpoint:
        """Save the present position: the live history, the current view, the values of the state.

        Nothing is copied: it costs one small row. It stays when its items are undone.

        Args:
            name: of at least one character; may repeat.
            meta: a JSON object kept with it.
            expected_revision: save it only if the session is at this revision.
            idempotency_key: the same key saves it once, within a week, and returns the first one.

        Raises:
            DuplicateRequestError: the key was used for another name or ``meta``.
            RevisionConflict, InvalidItemError, InvalidOptionError, ReadOnlyError, StorageError
        """
        change = session.SaveCheckpoint(
            self._ref,
            name,
            meta,
            expected_revision=expected_revision,
            idempotency_key=idempotency_key,
        )
        return self._commit(change)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The checkpoints, newest last; lazy, a page at a time.

        Raises:
            CorruptValueError: one of them is damaged.
        """
        return session.checkpoints_of(self._ref)

    def get_checkpoint(self, which: str | int) -> Checkpoint:
        """A checkpoint by its number, or the newest of a name.

        Raises:
            NotFoundError: there is none.
            CorruptValueError: it is damaged.
        """
        return session.get_checkpoint(self._ref, which)

    def delete_checkpoint(self, which: Checkpoint | str | int) -> bool:
        """Delete a checkpoint, by its number, or the newest of a name; whether there was one.

        The items that it refers to stay, as all items do.
        """
        return self._commit(session.DeleteCheckpoint(self._ref, which))

    # --- going back -------------------------------------------------------------------------------

    def rewind(
        self, to: Position, *, state: bool = True, expected_revision: int | None = None
    ) -> Receipt:
        """Make ``to`` the last live item (0: none), or go back to a checkpoint.

        A checkpoint brings its whole history back, items that were undone since included, and the
        view that was current. Views recorded since do not apply any more. The values of the state
        as they were come back under a new counter: those of the checkpoint, or of the time before
        the item that followed ``to``.

        Args:
            to: a live seq, a Checkpoint, or a checkpoint's name.
            state: False leaves the state alone.
            expected_revision: only if the session is at this revision.

        Raises:
            NotFoundError: the item is not in the live history, there is no such checkpoint, or the
                values of then were trimmed.
            RevisionConflict, CorruptValueError, InvalidOptionError, ReadOnlyError
        """
        change = session.Rewind(self._ref, to, state=state, expected_revision=expected_revision)
        return self._commit(change)

    def fork(
        self,
        session_id: str,
        *,
        at: Position | None = None,
        policy: str | None = None,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> Self:
        """A new session of the same scope that shares the history up to and including ``at``.

        Args:
            session_id: name of the fork; no session may have it.
            at: a live seq, a Checkpoint or its name (live or not); None: all of the live history;
                0: none of it.
            policy: another pair policy for the fork.
            state: whether it begins with the values of the state of then; False: with those of now.
            expected_revision: only if this session is at this revision.

        Raises:
            NotFoundError, RevisionConflict, InvalidOptionError
        """
        change, target = self.plan_fork(
            session_id, at=at, policy=policy, state=state, expected_revision=expected_revision
        )
        self._commit(change)
        return target

    def plan_fork(
        self,
        session_id: str,
        *,
        at: Position | None,
        policy: str | None,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> tuple[Fork, Self]:
        """The change of ``fork`` and the handle of the new session."""
        ref = self._ref
        target = ref.beside(session_id, policy=policy)
        change = Fork(
            ref,
            target,
            session.fork_point(ref, at),
            state=state,
            expected_revision=expected_revision,
        )
        return change, type(self)(target)

    def history_at(self, txn: ReadTxn, at: Position | None) -> tuple[int, History]:
        """Scope and history of a position as a transaction sees it; None: the live history.

        Raises:
            NotFoundError: there is no session, no such live item, or no such checkpoint.
            CorruptValueError: a row is damaged.
        """
        return session.history_at(self._ref, txn, at)

    # --- recovery ---------------------------------------------------------------------------------

    def recover(self, *, plan: bool = False, steps: Sequence[str] = RECOVERY_STEPS) -> Recovery:
        """Make a session usable again of which rows are damaged or missing.

        The first of these that serves: ``mend`` what follows from items, if the whole live history
        can be read; go back to the last valid ``checkpoint``; go on with what can be read of the
        ``log`` (what stands behind the first lost item is appended once more); the ``empty``
        session. No item is removed, and where the session was is saved as a checkpoint named
        ``before recovery`` if that can be told. Nothing is changed if nothing is wrong.

        Args:
            plan: report what would be done; write nothing.
            steps: which of these may be taken, in the order to try them.

        Raises:
            NotFoundError: there is no session of this name.
            CounterUnavailableError, InvalidOptionError, ReadOnlyError, StorageError
        """
        return session.recovery.recover(self._ref, plan=plan, steps=steps)

    # --- agents, people, bundles ------------------------------------------------------------------

    # --- agents -----------------------------------------------------------------------------------

    def child(self, name: str) -> Self:
        """A history of its own for an agent: the session ``THIS::name`` of the same scope.

        It shares nothing by itself: ``share`` brings its results here. The same name gives the same
        session again; options are those of this handle.

        Raises:
            InvalidOptionError: the name is no non-empty str, or holds ``::`` or a colon at an end.
        """
        odd = not isinstance(name, str) or not name or CHILD in name
        if odd or name.startswith(":") or name.endswith(":"):
            msg = f"child: expected a non-empty name without {CHILD!r}, got {name!r:.80}"
            raise InvalidOptionError(msg)
        ref = self._ref
        beside = ref.beside(f"{ref.name}{CHILD}{name}", policy=None)
        beside.ask(beside.options._replace(counter=ref.options.counter))
        return type(self)(beside)

    def share(self, child: Session, seq: int | None = None) -> Receipt:
        """Append a result of another session of this scope: the same message, its author's name.

        Each result is shared once; a second call gives the first receipt.

        Args:
            child: mostly one of ``child``; its author is the last part of its name if the item
                names none.
            seq: a live item of it; None: its newest of type ``final`` or ``aggregate``.

        Raises:
            NotFoundError: it has no such item.
            InvalidOptionError: ``child`` is a session of another scope, or this one, or the item
                calls tools or answers a call.
        """
        return store(self.plan_share(child, seq))

    def plan_share(self, child: Session, seq: int | None) -> Append:
        """The change of ``share``."""
        checked_optional_int("seq", seq, least=1)
        ref, its = self._ref, child._ref
        place = (its.engine.store.path, its.app, its.user)
        if place != (ref.engine.store.path, ref.app, ref.user):
            msg = "share: expected a session of the same file, application and user"
            raise InvalidOptionError(msg)
        if its.name == ref.name:
            msg = "share: a session has its own results already"
            raise InvalidOptionError(msg)
        item = child._newest_result() if seq is None else read.get_item(its, seq)
        if item.type in ("tool_call", "tool_result") or item.kind == ItemKind.EVENT:
            msg = f"share: item {item.seq} is a {item.type}: share a message that stands alone"
            raise InvalidOptionError(msg)
        known = item.envelope or Envelope()
        author = known.author or its.name.rpartition(CHILD)[2][:1024]
        kind = item.type if item.type in RESULT_TYPES else "final"
        meta = {**(item.meta or {}), "shared": {"session": its.name, "seq": item.seq}}
        envelope = replace(known, author=author, type=kind)
        options = ItemOptions(meta, item.request_id, envelope)
        prepared = encode_items(ref, [item.message], options)
        number = 0 if its.log is None else its.log.session
        key = f"memcore:share:{number}:{item.seq}"
        return session.append_once(ref, key, prepared)

    def _newest_result(self) -> Item:
        stop = None
        while True:
            found = read.items_before(self._ref, stop, _LOOK_PAGE)
            item: Item
            for item in reversed(found):
                if item.type in RESULT_TYPES and item.kind != ItemKind.EVENT:
                    return item
            if not found:
                msg = f"session {self._ref.name!r} has no result to share"
                raise NotFoundError(msg)
            stop = found[0].seq

    # --- failures ---------------------------------------------------------------------------------

    def ladder(self, rules: LadderRules | Mapping[str, Any] | None = None) -> Ladder:
        """Runs steps that degrade, are retried, and in the end are left to a person.

        Raises:
            InvalidOptionError: a rule is unknown or out of range.
        """
        return session.Ladder(self._ref, session.checked_rules(rules))

    def pending_hitl(self) -> list[Escalation]:
        """The ``hitl`` events of the live history without a decision, oldest first.

        Raises:
            CorruptValueError: one of them is damaged.
        """
        return session.retry.pending_escalations(self._ref)

    def resolve_hitl(
        self,
        seq: int,
        decision: Any,
        *,
        by: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Receipt:
        """Record what was decided about a ``hitl`` event, by an event that names it.

        Args:
            seq: of the event.
            decision: any JSON value.
            by: who decided.
            meta: a JSON object kept beside the event.

        Raises:
            NotFoundError: no live item ``seq`` waits for a decision.
            DuplicateRequestError: it was decided otherwise before.
            InvalidItemError, InvalidOptionError, ReadOnlyError, StorageError
        """
        change = session.retry.resolve(self._ref, seq, decision, by=by, meta=meta)
        return store(change)

    def bundle(
        self,
        seq: int | None = None,
        *,
        most_bytes: int = BUNDLE_BYTES,
        policy: RedactionPolicy | None = None,
    ) -> bytes:
        """A minimal reproduction as JSON: a legal slice around a failure, always redacted.

        It names no user, session, application, owner or file. Equal histories give equal bytes.

        Args:
            seq: the item that it is about; None: the newest failure (a failed status, an ``error``
                or a ``hitl`` event) of the last 256 items, else the last item.
            most_bytes: at least 2,048; texts are cut until it fits.
            policy: what to redact; None: memcore's default.

        Raises:
            NotFoundError, InvalidOptionError, CorruptValueError
        """
        return session.make_bundle(self._ref, seq=seq, most_bytes=most_bytes, policy=policy)

    # --- readers ----------------------------------------------------------------------------------

    def accessed(self, seq: int | None = None) -> Accessed:
        """Return how often the session (or one item) was read and when last, if that is counted.

        Counted are ``context``, ``items``, ``tail`` and ``get`` of handles with ``access_counts``;
        an item counts when it is read, or shown behind the cut of a context.

        Raises:
            CorruptValueError: the counts are damaged.
        """
        checked_optional_int("seq", seq, least=1)
        uses = self._ref.uses
        return read.read_log(
            self._ref, lambda log, txn: read_uses(txn, log.place, seq, uses), Accessed()
        )

    # --- reading ----------------------------------------------------------------------------------

    def items(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        skip_corrupt: bool = False,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Iterator[Item]:
        """Live items with ``start <= seq < stop`` in order; lazy, a page at a time.

        ``authors``, ``share`` and ``redact``: as in ``context``; nothing shows of what is appended
        meanwhile.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` leaves it out instead.
        """
        checked_int("start", start)
        checked_optional_int("stop", stop)
        by = checked_authors(authors, share)
        found = read.iter_items(self._ref, start, stop, skip_corrupt=skip_corrupt)
        if redact not in (None, False):
            found = session.shown_items(self._ref, found, redact)
        if by is None:
            return found
        shown = shown_seqs(self._ref, by, skip_corrupt=skip_corrupt)
        return (item for item in found if item.seq in shown)

    def get(self, seq: int) -> Item:
        """One live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        checked_int("seq", seq)
        return read.get_item(self._ref, seq)

    def tail(self, count: int, *, skip_corrupt: bool = False, redact: Redact = None) -> list[Item]:
        """The last ``count`` live items, oldest first; ``redact`` as in ``context``."""
        checked_int("tail", count)
        found = read.last_items(self._ref, count, skip_corrupt=skip_corrupt)
        if redact is None or redact is False:
            return found
        return list(session.shown_items(self._ref, found, redact))

    def find_call(self, call_id: str) -> CallRecord:
        """Find where a call was made and answered; the latest with this id.

        Raises:
            NotFoundError: no call of the live history has this id.
        """
        if not isinstance(call_id, str):
            msg = f"call_id: expected a str, got {type(call_id).__name__}"
            raise InvalidOptionError(msg)
        return read.find_call(self._ref, call_id)

    def context(
        self,
        budget_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        calibrated: bool = False,
        model: str | None = None,
        view: View | int | None = None,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> Context:
        """Build what the model receives: legal for the policy and within the budget.

        Pins (the leading system items), the summary of a compaction, and the longest suffix from
        a safe cut. Late results stand behind their call, unanswered calls are answered
        synthetically, orphans are left out; ``Context.repairs`` lists it all. Equal histories and
        budgets give equal messages; ``calibrated`` ones depend on what was reported, too.

        Args:
            budget_tokens: at most this many tokens by the session's counter; None: no limit.
            reserve_tokens: of these, leave so many free (for the answer, tool schemas).
            calibrated: the budget is meant in the provider's tokens as well: what it is estimated
                to bill for the request stays within it, too (see ``report_usage``). That includes
                what was part of the reported requests beside the messages, as tool schemas: do not
                reserve for them again.
            model: whose calibration to go by; None: that of the model reported last.
            view: one of ``views()`` or its number: show the history as under that compaction; 0: as
                without any; None: under the newest that applies.
            authors: show the items of these agents (``Envelope.author``), and of the others only
                what ``share`` says; items of no author and of ``user`` are everybody's. Calls are
                left out together with their results. None: everybody's items.
            share: ``"results"`` (None as well): of others what is of type ``final`` or
                ``aggregate``; ``"none"``: nothing; ``"all"``: everything.
            redact: show placeholders in the place of what this policy looks for, as a database that
                was opened with it would have stored; tokens stay those of what is stored.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            NotFoundError: the session has no such view, or the history was cut below it.
            InvalidOptionError, CorruptValueError
        """
        by = None
        if authors is not None or share is not None:
            by = checked_authors(authors, share)
        found = usage.context(
            self._ref,
            budget_tokens,
            reserve_tokens,
            calibrated=calibrated,
            model=model,
            view=view,
            authors=by,
        )
        if redact is None or redact is False:
            return found
        return session.shown_context(self._ref, found, redact)


def ref_of(session: Session) -> SessionRef:
    """Return the session's reference (for memcore's own facades and adapters).

    It leads to the whole database, so a handle does not show it.
    """
    return session._ref  # noqa: SLF001 - this module's


def store_of(session: Session) -> LmdbStore:
    """The open store that a session lies in (for memcore's own facades)."""
    return session._ref.engine.store  # noqa: SLF001 - this module's
