"""The session handle that a runtime holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

from memcore import session
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.faces import MadeLate
from memcore.limits import BUNDLE_BYTES, CHILD, RECOVERY_STEPS
from memcore.log import History
from memcore.model import (
    Calibration,
    CallRecord,
    Checkpoint,
    CompactionResult,
    Context,
    Item,
    ItemKind,
    Mask,
    OpenCall,
    Plan,
    Receipt,
    RecountResult,
    RepairResult,
    SearchHit,
    Summarize,
    View,
)
from memcore.options import (
    checked_int,
    checked_optional_int,
    checked_optional_seconds,
    need_instance,
    refuse_copies,
)
from memcore.session import read, usage
from memcore.session.append import (
    AnyEnvelope,
    Append,
    abandon,
    append_items,
    record_event,
    store,
)
from memcore.session.change import Change, Fork, SetPolicy, Uncompact, Undo
from memcore.session.context import checked_authors, shown_seqs
from memcore.session.engine import REFERENCE, Accessed, SessionRef, read_uses
from memcore.session.read import head_of
from memcore.store import Store
from memcore.store.interface import ReadTxn
from memcore.tokens import TokenCounter, get_counter
from memcore.wire.message import results_of

if TYPE_CHECKING:
    from memcore.compaction import CompactionPolicy, Pressure
    from memcore.memory import Memories, Recall
    from memcore.privacy import RedactionPolicy
    from memcore.session.agents import AgentView, Delegation
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


T = TypeVar("T")
AnyPolicy: TypeAlias = "CompactionPolicy | str | Mapping[str, Any]"
_INTERNAL: Final = frozenset((
    "after_append", "history_at", "is_admitting", "plan_batch", "plan_command", "plan_fork",
    "plan_share", "seen_revision",
))  # fmt: skip
"""Members for memcore's own facades and adapters; not part of the public API."""


class Session:
    """One append-only conversation in a scope. May be shared between threads.

    Created by ``db.session(...)``. The session itself is created by its first change; reading one
    that does not exist yields an empty history.
    """

    __reduce__ = refuse_copies

    def __init__(self, ref: SessionRef) -> None:
        self._ref = ref
        self.after_append: Callable[[], object] | None = None
        """Called once each change that appends is committed; must not raise."""
        options = ref.options
        if options.recover:
            ref.due = self._recover_and_recount if options.recount else self._recover
        elif options.recount:
            ref.due = self._recount

    @MadeLate
    def state(self) -> SessionState:
        """The fields and values kept alongside the log; see ``SessionState``."""
        return session.SessionState(self._ref)

    @property
    def memory(self) -> Memories:
        """Long-term memory of the session's user, to which plain seqs are items of this session."""
        at = self._ref
        at.need("memory")
        return session.open_memory(at.engine, at.app, at.user, at.name, access=at.access)

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _INTERNAL)

    def __repr__(self) -> str:
        ref = self._ref
        return f"Session({ref.name!r}, user={ref.user!r}, app={ref.app!r})"

    def _repr_html_(self) -> str | None:
        return read.shown_in_notebook(self._ref)

    def __len__(self) -> int:
        return read.read_log(self._ref, lambda log, _: log.history.count, 0)

    def __bool__(self) -> bool:
        return True  # an empty session is still a session

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    @property
    def id(self) -> str:
        """The session's name."""
        return self._ref.name

    @property
    def user(self) -> str:
        """The user that owns it."""
        return self._ref.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._ref.app

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        kinds: Iterable[ItemKind | str] | None = None,
        authors: Iterable[str] | None = None,
        since: float | None = None,
        until: float | None = None,
        explain: bool = False,
        mode: str = "auto",
    ) -> list[SearchHit]:
        """Return the live items of the session that best match the words of a query, best first.

        Compaction hides nothing from it. Nothing is found for a user who opted out of memory.

        Args:
            query: words in any order; the first 256 distinct ones count.
            k: the most hits, up to 1,000.
            kinds: only these: ``"user"``, ``"assistant"``, ``"call"``, ``"result"``.
            authors: only what these said, whatever the case.
            since: only what was stored at this time or later, in seconds since 1970.
            until: only what was stored before this time.
            explain: tell what the scores are made of.
            mode: ``"lexical"``, ``"vector"`` or ``"hybrid"``; ``"auto"``: hybrid with an embedder.

        Raises:
            InvalidOptionError, EmbedderError, AccessDeniedError, CorruptValueError, StorageError
        """
        self._ref.need("search")
        return session.search_session(
            self._ref, query, k=k, kinds=kinds, authors=authors, since=since, until=until,
            explain=explain, mode=mode,
        )  # fmt: skip

    def hold(self, *, reason: str) -> bool:
        """Put the session under a legal hold; return False if it already had one of its own.

        Until ``release``, deleting the session or erasing its user raises HeldError.

        Raises:
            NotFoundError: the session does not exist yet.
            InvalidOptionError: the reason is not a text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        at = self._ref
        at.need("hold")
        return session.hold(at.engine, at.app, at.user, at.name, reason=reason)

    def release(self) -> bool:
        """Lift the session's own hold; return whether there was one. A hold on its scope stays."""
        at = self._ref
        at.need("release")
        return session.release(at.engine, at.app, at.user, at.name)

    @property
    def is_admitting(self) -> bool:
        """True if content is redacted or screened before it is stored."""
        return self._ref.engine.write_filter is not None

    @property
    def counter(self) -> str:
        """The id of the token counter behind ``tokens`` and all other counts of the session."""
        return session.recount.counter_id(self._ref)

    # Run on the handle's first use; each returns True once it need not run again.

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
            item: a message in any supported wire format: a JSON object, or an object of an SDK.
            expected_revision: store it only if the session is at this revision.
            idempotency_key: a repeat of the key with the same content stores nothing and returns
                the first receipt.
            request_id: stored with the item.
            meta: a JSON object stored with the item.
            envelope: metadata about the item: an Envelope, or a mapping of its fields.

        Raises:
            InvalidItemError, OrphanResultError, RevisionConflict, DuplicateRequestError,
            InvalidOptionError, ReadOnlyError, ClosedError, StorageError
        """
        change = None
        if request_id is None and meta is None and envelope is None:
            change = self._ref.begin_append([item], Append)
        if (
            type(change) is not Append
            or expected_revision is not None
            or idempotency_key is not None
        ):
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
        """Append items in one commit, all or none. Arguments and errors as for ``append``."""
        change = None
        if type(items) is list and request_id is None and meta is None and envelope is None:
            items = items[:]  # a token counter may mutate the caller's list meanwhile
            change = self._ref.begin_append(items, Append)
        if (
            type(change) is not Append
            or expected_revision is not None
            or idempotency_key is not None
        ):
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
        """Append an event (planner, reflection, error, ...): logged, never part of a context."""
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
        """Give up an open call: it no longer blocks, and contexts answer it synthetically.

        Raises:
            NotFoundError: no open call has this id.
        """
        return self._append(abandon(self._ref, call_id))

    def begin(self, values: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None) -> Receipt:
        """Create the session with its initial state; a ``state`` event records the values.

        Args:
            values: fields of any prefix.
            meta: a JSON object stored with the event.

        Raises:
            RevisionConflict: the session already exists.
            InvalidUpdateError, InvalidItemError, ReadOnlyError, StorageError: nothing is stored.
        """
        with self.batch() as batch:
            batch.begin_state(values, meta=meta)
        assert batch.receipt is not None  # noqa: S101 - it was committed
        return batch.receipt

    def batch(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> BatchContext:
        """Commit all changes of a block together: ``with session.batch() as b:``.

        Args:
            expected_revision: commit only if the session is at this revision.
            idempotency_key: within a week, the same key with the same steps runs once; a repeat
                sets ``b.receipt`` to the first receipt and leaves ``undone`` and ``checkpoints``
                empty.
        """
        return session.BatchContext(
            self.plan_batch(expected_revision, idempotency_key),
            lambda batch: self._append(batch.change()),
        )

    def plan_batch(
        self, expected_revision: int | None, idempotency_key: str | None = None
    ) -> ChangeBatch:
        """Return an empty batch for this session."""
        return session.ChangeBatch(self._ref, expected_revision, idempotency_key)

    def apply(
        self,
        command: Command,
        *,
        expected_revision: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Append a Command's messages and apply its state update in one commit.

        Args:
            command: a Command, or any object with an ``update`` (such as LangGraph's).
            expected_revision: apply it only if the session is at this revision.
            trace: receives one Reduction per reducer call, once everything is stored.
            idempotency_key: as for ``batch``.

        Raises:
            InvalidUpdateError: an update is invalid; or what ``append`` raises. Nothing is stored.
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
        """Return the batch that ``apply`` commits."""
        batch = self.plan_batch(expected_revision, idempotency_key)
        batch.apply(command, trace=trace)
        return batch

    # --- lease ------------------------------------------------------------------------------------

    def lease(self, owner: str, *, ttl_seconds: float, force: bool = False) -> Lease:
        """Become the session's only writer for a while: ``with session.lease(...)``.

        The lease belongs to this handle. Others may still read; their changes are refused before
        anything is written. Taking over an expired lease advances the epoch, which fences out the
        previous owner from then on, whatever any clock says. The same owner gets the lease back
        under the same epoch, so an owner name must identify a single worker.

        Args:
            owner: the new owner: 1 to 1,024 characters, unique to each worker.
            ttl_seconds: time until it expires unless renewed: up to a year, by the clock of the
                calling process.
            force: take it even if another owner holds it; that owner is fenced out.

        Raises:
            LeaseHeldError: another owner holds it.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        change = session.TakeLease(self._ref, owner, ttl_seconds, force=force)
        return session.Lease(self._ref, self._commit(change), change.ttl_ms)

    # --- settings ---------------------------------------------------------------------------------

    def set_policy(self, policy: str) -> None:
        """Switch the session to another pair policy; keeps the log, rebuilds the ledger."""
        self._commit(SetPolicy(self._ref, policy))
        self._ref.allow_policy(policy)

    def recount(
        self, counter: str | TokenCounter, *, progress: Progress | None = None
    ) -> RecountResult:
        """Recount the whole live history with another counter and make it the session's counter.

        Does not block writers; one commit puts the new counts into force. The log, its revision
        and the views are unchanged. If the session already uses the counter, only damaged counts
        are recomputed.

        Args:
            counter: ``"bytes/4"``, ``"tiktoken:NAME"`` or a TokenCounter.
            progress: called with (items counted, live items).

        Raises:
            NotFoundError: the session does not exist.
            CounterUnavailableError, CorruptValueError, InvalidOptionError, ReadOnlyError
        """
        by = get_counter(counter)
        done = session.recount.recount(self._ref, by, progress)
        self._ref.allow_counter(by)
        return done

    # --- totals -----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return True if the session exists."""
        return read.exists(self._ref)

    @property
    def revision(self) -> int:
        """The log's change counter, which ``expected_revision`` is compared with."""
        return read.read_log(self._ref, lambda log, _: head_of(log).revision, 0)

    def seen_revision(self) -> int | None:
        """Return the revision last seen by this process, or None; reads nothing."""
        log = self._ref.log
        head = None if log is None else log.head
        return None if head is None else head.revision

    @property
    def tokens(self) -> int:
        """Tokens of the whole live history."""
        return read.read_log(self._ref, lambda log, _: head_of(log).tokens, 0)

    @property
    def policy(self) -> str:
        """The name of the pair policy in force."""
        default = self._ref.options.policy or self._ref.engine.policy
        return read.read_log(self._ref, lambda log, _: log.policy.name, default)

    @property
    def open_calls(self) -> list[OpenCall]:
        """Calls awaiting a result, oldest first."""
        return [call for _, call in read.open_calls(self._ref)]

    # --- usage reported by the provider -----------------------------------------------------------

    def report_usage(
        self, input_tokens: int, *, model: str | None = None, counted_tokens: int | None = None
    ) -> Calibration:
        """Report what a provider billed for a request, to calibrate the estimates for its model.

        The report refers to the last ``context()`` built through this handle; without one, to the
        whole live history as currently shown, so report before appending the answer. It is kept as
        an anchor: the next request is estimated at ``input_tokens + factor * counted since``. The
        factor is derived only from differences between reports, so whatever is part of every
        request but not of the messages (tool schemas, a system prompt outside the session) cancels
        out. It is 1.0 until there are two reports, and is clamped to 0.8 to 2.0.

        The anchor does not apply once its last item is undone, or the session is compacted or
        switched to another policy or counter; the factor stays. A late report, about less than the
        one before it, changes neither. The log and the revision are unchanged.

        Args:
            input_tokens: all input tokens of the request, including those read from or written to
                a prompt cache (Anthropic's API lists them separately): 1 to 2**48.
            model: the model's name; factors and anchors are kept for each of the last 8.
            counted_tokens: the session counter's count of the messages sent. With overlapping
                requests it identifies which of the last 16 contexts is meant (its
                ``Context.tokens``); if you sent messages other than the context's, your own count.

        Returns:
            The model's current calibration.

        Raises:
            InvalidOptionError: an argument is not an int or str, or is out of range.
            NotFoundError: the session does not exist (any more).
            ReadOnlyError, ClosedError, StorageError
        """
        report = usage.report_usage(
            self._ref, input_tokens, model=model, counted_tokens=counted_tokens
        )
        return self._commit(report)

    @property
    def estimated_tokens(self) -> int:
        """Estimate of what the provider will bill for the next full request.

        For the model reported last: the billed tokens of the anchored context plus the factor times
        the tokens appended since; if no anchor applies, the factor times the tokens of the context
        without a budget. Without any report this is the plain count.

        Raises:
            CorruptValueError: the calibration is damaged; the next report rewrites it.
        """
        return usage.estimated_tokens(self._ref)

    def calibrations(self) -> list[Calibration]:
        """Return what ``report_usage`` has learned, most recently reported model first.

        Raises:
            CorruptValueError: the calibration is damaged; the next report rewrites it.
        """
        return usage.calibrations(self._ref)

    # --- commits ----------------------------------------------------------------------------------

    def _commit(self, change: Change[T]) -> T:
        return self._ref.engine.store.transact(change, makes_room=change.makes_room)

    # --- pressure ---------------------------------------------------------------------------------

    def pressure(self, *, policy: AnyPolicy | None = None) -> Pressure:
        """Measure how full the session is: the stage that is due and the turns remaining.

        Computed from maintained sums: constant time, whatever the length of the history.
        """
        compact = session.compact
        return compact.find_pressure(self._ref, compact.policy_of(self._ref, policy))

    def needs_compaction(
        self, *, policy: AnyPolicy | None = None, max_items: int | None = None
    ) -> bool:
        """Return True if a stage of the policy is due, or there are more than ``max_items`` items.

        False while the last item is a tool result: the model has not seen it yet.
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

        Empty if no stage is due. With ``force``, the plan assumes a summarizer.
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
        """Replace the older items by a summary. The log keeps them; ``uncompact`` restores them.

        If no stage of the policy is due, nothing is done and the result's ``reason`` says why;
        ``force``, ``stage``, ``keep_last`` and ``keep_tokens`` compact regardless.

        The cut never separates a call from its result. ``summarize`` is called outside any
        transaction and does not block writers. If it fails or saves too little, the policy's
        fallback is used: masks, a short safe suffix without a new summary, or one item; the result
        holds the error and the reason. Without ``summarize`` the older items are trimmed. A
        compaction that saves nothing is refused.

        Args:
            summarize: takes a SummaryRequest, returns the summary.
            policy: a CompactionPolicy, a preset's name or a mapping; None: the session's.
            stage: the stage to run, due or not; None: the heaviest that is due.
            keep_last: keep at least this many items, replacing the policy's limits on the end.
            keep_tokens: keep the longest safe suffix within this many tokens, likewise.
            force: if no stage is due, run the heaviest; with ``summarize``, the heaviest that
                makes a summary.
            timeout_seconds: time limit for ``summarize``, which then runs in a thread.

        Raises:
            PlanStaleError: someone else cut or compacted the history meanwhile.
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
        return compact.record_draft(ref, draft)

    # --- repair -----------------------------------------------------------------------------------

    def repair(
        self, mode: str = "drop", *, plan: bool = False, close_open: bool = False
    ) -> RepairResult:
        """Repair a foreign history by recording a view; the log itself is unchanged.

        Contexts make such repairs on the fly every time; this records them once and for all.
        Results that answer no call, or that a newer result supersedes, are no longer shown. Calls
        left unanswered are taken out (``drop``) or still answered synthetically (``synthesize``);
        a result that arrives for a dropped call is not shown. Rendering puts late and split
        results in order; under this view it does so for the pair policy ``seed``, too. If items
        that the repair depends on are undone, the affected items are shown as before. Calls at the
        end of the history, with nothing after them, stay open. Repairing again is a no-op.

        Args:
            mode: ``drop`` or ``synthesize``.
            plan: report what would be done; write nothing.
            close_open: first give up the open calls, each by an event, as ``abandon`` does.

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
        """Revert the last compaction; return whether there was one."""
        return self._commit(Uncompact(self._ref))

    def masks(self) -> list[Mask]:
        """Return the masks that contexts currently show in place of items, in item order."""
        found = read.read_log(self._ref, lambda log, txn: log.masks(txn, log.current_view(txn)), {})
        return [found[seq] for seq in sorted(found)]

    def covered(self, view: View | None = None) -> Iterator[Item]:
        """The items that a view (None: the current one) stands for and hides, oldest first.

        Raises:
            NotFoundError: the view is neither in force nor an ancestor of the one in force.
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
        """Return the full text of an offloaded result, of which contexts show a preview.

        Args:
            reference: as given in the preview: ``item:SEQ`` or ``item:SEQ:CALL_ID``; for an item
                too large to be stored as it was, ``offload:KEY:NUMBER``.

        Raises:
            NotFoundError: the item is not in the live history, or has no such result.
            InvalidOptionError: not a valid reference.
        """
        if isinstance(reference, str) and reference.startswith(REFERENCE):
            return read.read_offloaded(self._ref, reference)
        seq, call_id = read.split_reference(reference)
        texts = [
            result.text
            for result in results_of(read.get_item(self._ref, seq).message)
            if call_id is None or (result.key is not None and result.key[1] == call_id)
        ]
        if not texts:
            msg = f"item {seq} has no result for call {call_id!r}"
            raise NotFoundError(msg)
        return "\n".join(texts)

    # --- undo -------------------------------------------------------------------------------------

    def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """Remove the last ``count`` items, or all that are live; return them, oldest first."""
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
        """Save the current position: the live history, the current view and the state's values.

        Copies nothing: costs one small row. It outlives an undo of its items.

        Args:
            name: at least one character; need not be unique.
            meta: a JSON object stored with it.
            expected_revision: save it only if the session is at this revision.
            idempotency_key: within a week, a repeat of the key saves nothing and returns the first
                checkpoint.

        Raises:
            DuplicateRequestError: the key was used with another name or ``meta``.
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
        """The checkpoints, newest last; read lazily, a page at a time.

        Raises:
            CorruptValueError: a checkpoint is damaged.
        """
        return session.checkpoints_of(self._ref)

    def get_checkpoint(self, which: str | int) -> Checkpoint:
        """Return a checkpoint by its number, or the newest one with a name.

        Raises:
            NotFoundError: no checkpoint matches.
            CorruptValueError: it is damaged.
        """
        return session.get_checkpoint(self._ref, which)

    def delete_checkpoint(self, which: Checkpoint | str | int) -> bool:
        """Delete a checkpoint, given by number or as the newest of a name; return if it existed.

        The items it refers to stay, as all items do.
        """
        return self._commit(session.DeleteCheckpoint(self._ref, which))

    # --- rewind and fork --------------------------------------------------------------------------

    def rewind(
        self, to: Position, *, state: bool = True, expected_revision: int | None = None
    ) -> Receipt:
        """Make ``to`` the last live item (0: none), or go back to a checkpoint.

        A checkpoint restores its whole history, including items undone since, and the view that
        was current. Views recorded since no longer apply. The state's values are restored under a
        new counter: those of the checkpoint, or those from before the item that followed ``to``.

        Args:
            to: a live seq, a Checkpoint, or a checkpoint's name.
            state: False leaves the state unchanged.
            expected_revision: rewind only if the session is at this revision.

        Raises:
            NotFoundError: the item is not in the live history, there is no such checkpoint, or the
                values from that time were trimmed.
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
        """Create a session in the same scope that shares the history up to and including ``at``.

        Args:
            session_id: name of the fork; must not exist yet.
            at: a live seq, a Checkpoint or its name (live or not); None: the whole live history;
                0: none of it.
            policy: another pair policy for the fork.
            state: True starts it with the state's values as of ``at``; False, with the current
                ones.
            expected_revision: fork only if this session is at this revision.

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
        """Return the change that ``fork`` commits and the handle of the new session."""
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
        """Return scope and history of a position as a transaction sees it; None: the live history.

        Raises:
            NotFoundError: there is no session, no such live item, or no such checkpoint.
            CorruptValueError: a row is damaged.
        """
        return session.history_at(self._ref, txn, at)

    # --- recovery ---------------------------------------------------------------------------------

    def recover(self, *, plan: bool = False, steps: Sequence[str] = RECOVERY_STEPS) -> Recovery:
        """Make a session with damaged or missing rows usable again.

        Takes the first step that works: ``mend`` rebuilds what derives from the items, if the
        whole live history is readable; ``checkpoint`` goes back to the last valid checkpoint;
        ``log`` continues with whatever is readable (items after the first lost one are appended
        again); ``empty`` starts over. No item is removed, and the session's old position, if it
        can be determined, is saved as a checkpoint named ``before recovery``. If nothing is
        wrong, nothing changes.

        Args:
            plan: report what would be done; write nothing.
            steps: the permitted steps, in the order to try them.

        Raises:
            NotFoundError: the session does not exist.
            CounterUnavailableError, InvalidOptionError, ReadOnlyError, StorageError
        """
        return session.recovery.recover(self._ref, plan=plan, steps=steps)

    # --- agents -----------------------------------------------------------------------------------

    def child(self, name: str) -> Self:
        """Return the session ``THIS::name`` of the same scope: an agent's own history.

        Nothing is shared automatically: ``share`` copies its results here. The same name always
        gives the same session; it inherits this handle's options.

        Raises:
            InvalidOptionError: the name is not a non-empty str, contains ``::``, or starts or ends
                with a colon.
        """
        odd = not isinstance(name, str) or not name or CHILD in name
        if odd or name.startswith(":") or name.endswith(":"):
            msg = f"child: expected a non-empty name without {CHILD!r}, got {name!r:.80}"
            raise InvalidOptionError(msg)
        ref = self._ref
        beside = ref.beside(f"{ref.name}{CHILD}{name}", policy=None)
        # ``beside`` leaves the counter out, which forks inherit; a child inherits nothing.
        beside.ask(beside.options._replace(counter=ref.options.counter))
        return type(self)(beside)

    def share(self, child: Session, seq: int | None = None) -> Receipt:
        """Append a result of another session of this scope: same message, with its author's name.

        Each result is shared once; a second call returns the first receipt.

        Args:
            child: usually made by ``child``; an item without an author gets the last part of its
                session's name.
            seq: a live item of ``child``; None: its newest of type ``final`` or ``aggregate``.

        Raises:
            NotFoundError: ``child`` has no such item.
            InvalidOptionError: ``child`` is a session of another scope or this one, or the item
                calls tools or answers a call.
        """
        return store(self.plan_share(child, seq))

    def plan_share(self, child: Session, seq: int | None) -> Append:
        """Return the change that ``share`` commits."""
        need_instance("child", child, Session, what="a session")
        return session.share_result(self._ref, child._ref, seq)

    def as_agent(self, name: str, *, share: str = "results") -> AgentView:
        """Return this session as one agent sees and writes it, beside others.

        Args:
            name: the agent: author of all that the view appends.
            share: what others show it: ``"results"``, ``"all"`` or ``"none"``, as in ``context``.

        Raises:
            InvalidOptionError: an argument is invalid.
        """
        return session.viewed(self, name, share)

    def delegate(self, call_id: str, *, agent: str) -> Delegation:
        """Let another agent answer an open call, from a history of its own: ``THIS::SEQ-CALL_ID``.

        ``finish`` answers the call once, ``fail`` with an error; as a context manager it leaves no
        open call. A repeat gives the same, so that whoever was killed goes on.

        Args:
            call_id: a call of a function or a custom tool.
            agent: name of the agent.

        Raises:
            NotFoundError: no call of the live history has this id.
            InvalidOptionError: the name is invalid; the call has a result already, was given to
                another agent, or is one that no text can answer.
            ReadOnlyError, StorageError
        """
        return session.delegated(self, call_id, agent)

    # --- failures ---------------------------------------------------------------------------------

    def ladder(self, rules: LadderRules | Mapping[str, Any] | None = None) -> Ladder:
        """Return a runner of steps that degrade, retry, and finally escalate to a human.

        Raises:
            InvalidOptionError: a rule is unknown or out of range.
        """
        return session.Ladder(self._ref, session.checked_rules(rules))

    def pending_hitl(self) -> list[Escalation]:
        """Return the ``hitl`` events of the live history without a decision, oldest first.

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
        """Record the decision on a ``hitl`` event, as an event that refers to it.

        Args:
            seq: the ``hitl`` event.
            decision: any JSON value.
            by: the person who decided.
            meta: a JSON object stored with the new event.

        Raises:
            NotFoundError: no live item ``seq`` awaits a decision.
            DuplicateRequestError: a different decision was recorded before.
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
        """Return a minimal reproduction as JSON: a legal slice around a failure, always redacted.

        Names no user, session, application, owner or file. Equal histories give equal bytes.

        Args:
            seq: the item in question; None: the newest failure (a failed status, an ``error`` or a
                ``hitl`` event) of the last 256 items, else the last item.
            most_bytes: at least 2,048; texts are truncated to fit.
            policy: the redaction policy; None: memcore's default.

        Raises:
            NotFoundError, InvalidOptionError, CorruptValueError
        """
        return session.make_bundle(self._ref, seq=seq, most_bytes=most_bytes, policy=policy)

    # --- access counts ----------------------------------------------------------------------------

    def accessed(self, seq: int | None = None) -> Accessed:
        """Return the access count and last access time of the session or one item, if tracked.

        ``context``, ``items``, ``tail`` and ``get`` of handles with ``access_counts`` are counted;
        an item counts when it is read, or shown after the cut of a context.

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
        """Live items with ``start <= seq < stop``, in order; read lazily, a page at a time.

        ``authors``, ``share`` and ``redact``: as in ``context``; items appended during the
        iteration are not shown then.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` omits it instead.
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
        """Return one live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        checked_int("seq", seq)
        return read.get_item(self._ref, seq)

    def tail(self, count: int, *, skip_corrupt: bool = False, redact: Redact = None) -> list[Item]:
        """The last ``count`` live items, oldest first; ``redact`` as in ``context``."""
        checked_int("count", count)
        found = read.last_items(self._ref, count, skip_corrupt=skip_corrupt)
        if redact is None or redact is False:
            return found
        return list(session.shown_items(self._ref, found, redact))

    def find_call(self, call_id: str) -> CallRecord:
        """Return where a call was made and answered: the latest call with this id.

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
        memory: Recall | None = None,
        format: str | None = None,  # noqa: A002 - the term for it
    ) -> Context:
        """Build the model's input: legal for the pair policy and within the budget.

        Consists of the pins (leading system items), a compaction's summary, and the longest suffix
        that starts at a safe cut. Late results are moved after their call, unanswered calls are
        answered synthetically, orphans are left out; ``Context.repairs`` lists every repair. Equal
        histories and budgets give equal messages; ``calibrated`` contexts also depend on the usage
        reports.

        Args:
            budget_tokens: at most this many tokens by the session's counter; None: no limit.
            reserve_tokens: the part of the budget to leave free (for the answer, tool schemas).
            calibrated: apply the budget to the provider's tokens as well: the estimated bill for
                the request stays within it, too (see ``report_usage``). It includes what the
                reported requests held besides the messages, such as tool schemas.
            model: whose calibration to use; None: that of the model reported last.
            view: one of ``views()`` or its number: show the history under that compaction; 0:
                under none; None: under the newest that applies.
            authors: show the items of these agents (``Envelope.author``), and of other agents only
                what ``share`` allows; items without an author and those of ``user`` are always
                shown. Calls are left out together with their results. None: everybody's items.
            share: ``"results"`` (same as None): others' items of type ``final`` or ``aggregate``;
                ``"none"``: nothing of theirs; ``"all"``: everything.
            redact: show placeholders for whatever this policy matches, as a database opened with
                it would have stored them; token counts remain those of the stored items.
            memory: show the user's active memories and playbooks as well: behind the pins, and what
                the last user message finds in front of it; never stored. They have a budget of
                their own within that of the context, and give way to its newest turn.
            format: the policy whose format the messages get (``memcore.convert``), such as
                ``anthropic``, within the same budget; None: they stay as they are stored.

        Raises:
            ContextOverflowError: even the smallest legal context is larger.
            NotFoundError: the session has no such view, or the history was cut below it.
            InvalidOptionError, CorruptValueError
        """
        by = None if authors is None and share is None else checked_authors(authors, share)
        found = usage.context(
            self._ref, budget_tokens, reserve_tokens, calibrated=calibrated, model=model, view=view,
            authors=by, memory=memory, to=format,
        )  # fmt: skip
        if redact is None or redact is False:
            return found
        return session.shown_context(self._ref, found, redact)


def ref_of(session: Session) -> SessionRef:
    """Return the session's reference (for memcore's own facades and adapters).

    It gives access to the whole database, so the handle does not expose it.
    """
    return session._ref  # noqa: SLF001 - this module's own


def store_of(session: Session) -> Store:
    """Return the open store that holds the session (for memcore's own facades)."""
    return session._ref.engine.store  # noqa: SLF001 - this module's own
