"""AsyncSession, its ladder and its lease: commits by the store's writer thread, reads in place."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar

from memcore import session
from memcore.aio.commit import commit, in_pages
from memcore.aio.compact import recorded, run_due, summarized
from memcore.aio.memory import AsyncMemories
from memcore.aio.state import AsyncSessionState
from memcore.blobs import StagedBlobLost
from memcore.compaction import Pressure
from memcore.errors import StorageError
from memcore.faces import logger
from memcore.limits import BUNDLE_BYTES, ITEMS_PAGE, RECOVERY_STEPS
from memcore.memory import Recall
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
    View,
)
from memcore.options import checked_optional_seconds, refuse_copies
from memcore.privacy import RedactionPolicy
from memcore.session import ChangeBatch, Lease, Session, usage
from memcore.session.append import (
    STAGE_ATTEMPTS,
    AnyEnvelope,
    Append,
    abandon,
    append_items,
    record_event,
    stage,
)
from memcore.session.change import Change, Uncompact, Undo
from memcore.session.checkpoints import Position
from memcore.session.compact import AnySummarizer, Attempts, Patience, checked_summarizer
from memcore.session.content_filter import Redact
from memcore.session.engine import Accessed
from memcore.session.lease import TakeLease
from memcore.session.recount import Progress
from memcore.session.recovery import Recovery
from memcore.session.retry import (
    FATAL,
    Attempt,
    Cause,
    Escalation,
    Ladder,
    LadderOutcome,
    LadderRules,
    Step,
    Tried,
)
from memcore.session.session import AnyPolicy, ref_of
from memcore.state import Command
from memcore.telemetry import adopt
from memcore.tokens import TokenCounter

__all__ = ["AsyncLadder", "AsyncLease", "AsyncLeaseContext", "AsyncSession"]

T = TypeVar("T")
P = ParamSpec("P")
AnyStep: TypeAlias = Callable[[Attempt], Awaitable[Any]] | Step


class AsyncLadder:
    """As ``Ladder``; steps may be coroutine functions."""

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder

    @property
    def rules(self) -> LadderRules:
        """Rules of the ladder."""
        return self._ladder.rules

    async def due(self) -> list[Cause]:
        """As ``Ladder.due``."""
        return await asyncio.to_thread(self._ladder.due)

    async def run(
        self,
        step: AnyStep,
        *,
        request_id: str,
        fallbacks: Sequence[AnyStep] = (),
        retries: int = 1,
    ) -> LadderOutcome:
        """As ``Ladder.run``; steps run on the loop, everything else in a thread.

        Cancelled while a step runs, nothing of it is stored.
        """
        path = self._ladder.climb(step, request_id=request_id, fallbacks=fallbacks, retries=retries)

        def go_on(tried: Tried | None) -> tuple[Attempt, Step] | LadderOutcome:
            try:
                return next(path) if tried is None else path.send(tried)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

        tried: Tried | None = None
        while True:
            found = await asyncio.to_thread(go_on, tried)
            if isinstance(found, LadderOutcome):
                return found
            attempt, rung = found
            try:
                value = rung(attempt)
                tried = (await value if isawaitable(value) else value, None)
            except FATAL:
                raise
            except Exception as exc:  # noqa: BLE001 - whatever a step raises is a failed attempt
                tried = (None, exc)


# --- AsyncLease: a session's lease with ``await`` -------------------------------------------------


class AsyncLease:
    """As ``Lease``."""

    def __init__(self, session: Session, sync: Lease) -> None:
        self._session = session
        self.sync = sync

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def owner(self) -> str:
        """As ``Lease.owner``."""
        return self.sync.owner

    @property
    def epoch(self) -> int:
        """As ``Lease.epoch``."""
        return self.sync.epoch

    @property
    def expires_at(self) -> float:
        """As ``Lease.expires_at``."""
        return self.sync.expires_at

    async def renew(self, ttl_seconds: float | None = None) -> None:
        """As ``Lease.renew``."""
        self.sync.settle(await commit(self._session, self.sync.renewal(ttl_seconds)))

    async def release(self) -> bool:
        """As ``Lease.release``."""
        try:
            return await commit(self._session, self.sync.release_change())
        finally:
            self.sync.drop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()


class AsyncLeaseContext:
    """Result of ``AsyncSession.lease``: await it, or use it in ``async with``."""

    def __init__(self, session: Session, owner: str, ttl_seconds: float, *, force: bool) -> None:
        self._session = session
        self._asked = owner, ttl_seconds, force
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[object, None, AsyncLease]:
        return self._take().__await__()

    async def _take(self) -> AsyncLease:
        ref, (owner, ttl_seconds, force) = ref_of(self._session), self._asked
        change = TakeLease(ref, owner, ttl_seconds, force=force)
        try:
            row = await commit(self._session, change)
        except asyncio.CancelledError:
            # The commit was waited for, so the lease may be taken, and nobody is left to release
            # it. That of an epoch which goes on belongs to another handle of the same owner.
            if change.begun is not None:
                taken = Lease(ref, change.begun, change.ttl_ms)
                await commit(self._session, taken.release_change())
                taken.drop()
            raise
        return AsyncLease(self._session, Lease(ref, row, change.ttl_ms))

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._take()
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lease is not None:
            await self._lease.release()


# --- AsyncSession: commits through the store's writer thread, reads where they are called ---------


_log = logger()
_FEW: Final = 32
"""So many items may be appended on the loop's own thread."""


class AsyncSession:
    """As ``Session``. Totals (``len``, ``revision``, ``tokens``, ...) need no ``await``.

    If the session was opened with ``recount=True``, the first awaited call counts it anew in a
    thread; a total that is asked for before that counts where it is called.
    """

    __reduce__ = refuse_copies

    def __init__(self, session: Session, *, auto_compact: AnySummarizer | None = None) -> None:
        """``auto_compact``: as of ``Scope.session``; it may be a coroutine function."""
        self._session = session
        if auto_compact is not None:
            checked_summarizer(auto_compact, awaits=True)
        self._summarize, self._patience = auto_compact, Patience()
        self._compacting, self._appends = False, 0
        self.state = AsyncSessionState(session)
        """As ``Session.state``."""
        adopt(self, session)

    @property
    def memory(self) -> AsyncMemories:
        """As ``Session.memory``."""
        return AsyncMemories(self._session.memory)

    def __repr__(self) -> str:
        return f"Async{self._session!r}"

    def __len__(self) -> int:
        return len(self._session)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self.items()

    def __bool__(self) -> bool:
        return True

    # --- changes ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def batch(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> AsyncIterator[ChangeBatch]:
        """``async with session.batch() as b``: as ``Session.batch``."""
        await self._ready()
        batch = self._session.plan_batch(expected_revision, idempotency_key)
        try:
            yield batch
        finally:
            batch.end()
        batch.settle(await self.store(batch.change()))

    async def begin(
        self, values: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None
    ) -> Receipt:
        """As ``Session.begin``."""
        await self._ready()
        batch = self._session.plan_batch(None)
        batch.begin_state(values, meta=meta)
        batch.settle(receipt := await self.store(batch.change()))
        return receipt

    async def apply(self, command: Command, **options: Any) -> Receipt:
        """As ``Session.apply``."""
        await self._ready()
        batch = self._session.plan_command(command, **options)
        batch.settle(receipt := await self.store(batch.change()))
        return receipt

    def lease(self, owner: str, *, ttl_seconds: float, force: bool = False) -> AsyncLeaseContext:
        """As ``Session.lease``: to be awaited, or used in ``async with``."""
        return AsyncLeaseContext(self._session, owner, ttl_seconds, force=force)

    async def compact(
        self,
        summarize: AnySummarizer | None = None,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
        timeout_seconds: float | None = None,
    ) -> CompactionResult:
        """As ``Session.compact``; ``summarize`` may be a coroutine function.

        A plain function runs in a thread, as does all else that takes its time. Cancelled while the
        summarizer runs, nothing is recorded.
        """
        await self._ready()
        compact, ref = session.compact, ref_of(self._session)
        compact.check(ref, summarize, awaits=True)
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        rule, asked = compact.asked(
            ref, policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        asked = replace(asked, summarizes=summarize is not None)
        draft = await asyncio.to_thread(compact.begin, ref, rule, asked)
        draft = await summarized(self._session, draft, summarize, timeout_seconds)
        return await recorded(self._session, draft)

    async def store(self, change: Change[T]) -> T:
        """Commit a change that appends; then compact, if the handle was made so."""
        found = await self._store(change)
        if self._summarize is not None:
            self._appends += 1
            # A task that finds another one compacting leaves it to that one, which looks again.
            if not self._compacting:
                self._compacting = True
                try:
                    seen = -1
                    while seen != self._appends:
                        seen = self._appends
                        await self._compact_due()
                finally:
                    self._compacting = False
        return found

    async def _compact_due(self) -> None:
        ref = ref_of(self._session)
        attempts = Attempts(ref, session.compact.policy_of(ref), self._patience)
        try:
            await run_due(self._session, attempts, self._summarize)
        except Exception as exc:  # noqa: BLE001 - a caller's embedder or reducer may fail in any way
            # The append is stored. Not the error itself: its text may hold content.
            _log.error("session %r was not compacted: %s", self.id, type(exc).__name__)

    async def _store(self, change: Change[T]) -> T:
        """Commit; large items are staged ahead in a thread."""
        items = change.items
        if not any(item.payload for item in items):
            return await self._commit(change, large=len(items) > _FEW)
        for _ in range(STAGE_ATTEMPTS):
            await asyncio.to_thread(stage, change.ref, items)
            with suppress(StagedBlobLost):
                return await self._commit(change, large=True)
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    # --- reading ----------------------------------------------------------------------------------

    # --- undo, checkpoints, forks -----------------------------------------------------------------

    async def fork(
        self,
        session_id: str,
        *,
        at: Position | None = None,
        policy: str | None = None,
        state: bool = True,
        expected_revision: int | None = None,
    ) -> Self:
        """As ``Session.fork``."""
        await self._ready()
        change, target = self._session.plan_fork(
            session_id, at=at, policy=policy, state=state, expected_revision=expected_revision
        )
        await self._commit(change)
        return type(self)(target)

    async def _ready(self) -> None:
        """Do what is due at the handle's first use, as a recount, in a thread."""
        ref = ref_of(self._session)
        if ref.due is not None:
            await asyncio.to_thread(ref.touch)

    @property
    def _is_remote(self) -> bool:
        """True if reads are trips to a server, which must not block the loop."""
        return ref_of(self._session).engine.store.is_server

    async def _read(self, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        ref = ref_of(self._session)
        if ref.due is not None:
            await asyncio.to_thread(ref.touch)
        if ref.engine.store.is_server:
            return await asyncio.to_thread(read, *args, **options)
        return read(*args, **options)

    async def _commit(self, change: Change[T], *, large: bool = False) -> T:
        return await commit(self._session, change, large=large)

    # --- agents, people, bundles ------------------------------------------------------------------

    @property
    def sync(self) -> Session:
        """The synchronous handle of the same session."""
        return self._session

    def child(self, name: str) -> Self:
        """As ``Session.child``."""
        return type(self)(self._session.child(name))

    async def share(self, child: AsyncSession | Session, seq: int | None = None) -> Receipt:
        """As ``Session.share``, in a thread."""
        other = child.sync if isinstance(child, AsyncSession) else child
        return await asyncio.to_thread(self._session.share, other, seq)

    def ladder(self, rules: LadderRules | Mapping[str, Any] | None = None) -> AsyncLadder:
        """As ``Session.ladder``."""
        return AsyncLadder(self._session.ladder(rules))

    # --- written by scripts/make_aio from Session: not to be edited by hand ---

    @property
    def id(self) -> str:
        """The session's name."""
        return self._session.id

    @property
    def user(self) -> str:
        """The user that owns it."""
        return self._session.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._session.app

    async def search(
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
        return await asyncio.to_thread(
            self._session.search,
            query,
            k=k,
            kinds=kinds,
            authors=authors,
            since=since,
            until=until,
            explain=explain,
            mode=mode,
        )

    async def hold(
        self,
        *,
        reason: str,
    ) -> bool:
        """Put the session under a legal hold; return False if it already had one of its own.

        Until ``release``, deleting the session or erasing its user raises HeldError.

        Raises:
            NotFoundError: the session does not exist yet.
            InvalidOptionError: the reason is not a text of 1 to 1,000 characters.
            ReadOnlyError, StorageError
        """
        return await asyncio.to_thread(self._session.hold, reason=reason)

    async def release(self) -> bool:
        """Lift the session's own hold; return whether there was one. A hold on its scope stays."""
        return await asyncio.to_thread(self._session.release)

    @property
    def counter(self) -> str:
        """The id of the token counter behind ``tokens`` and all other counts of the session."""
        return self._session.counter

    async def append(
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
        await self._ready()
        change = None
        if request_id is None and meta is None and (envelope is None):
            change = ref_of(self._session).begin_append([item], Append)
        if (
            type(change) is not Append
            or expected_revision is not None
            or idempotency_key is not None
        ):
            change = append_items(
                ref_of(self._session),
                [item],
                begun=change,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        return await self.store(change)

    async def extend(
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
        await self._ready()
        change = None
        if type(items) is list and request_id is None and (meta is None) and (envelope is None):
            items = items[:]
            change = ref_of(self._session).begin_append(items, Append)
        if (
            type(change) is not Append
            or expected_revision is not None
            or idempotency_key is not None
        ):
            change = append_items(
                ref_of(self._session),
                items,
                begun=change,
                expected_revision=expected_revision,
                idempotency_key=idempotency_key,
                request_id=request_id,
                meta=meta,
                envelope=envelope,
            )
        return await self.store(change)

    async def record(
        self,
        type: str,  # noqa: A002 - as the synchronous one
        payload: Any = None,
        *,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        envelope: AnyEnvelope | None = None,
    ) -> Receipt:
        """Append an event (planner, reflection, error, ...): logged, never part of a context."""
        await self._ready()
        change = record_event(
            ref_of(self._session),
            type,
            payload,
            expected_revision=expected_revision,
            idempotency_key=idempotency_key,
            request_id=request_id,
            meta=meta,
            envelope=envelope,
        )
        return await self.store(change)

    async def abandon(
        self,
        call_id: str,
    ) -> Receipt:
        """Give up an open call: it no longer blocks, and contexts answer it synthetically.

        Raises:
            NotFoundError: no open call has this id.
        """
        await self._ready()
        return await self.store(abandon(ref_of(self._session), call_id))

    async def set_policy(
        self,
        policy: str,
    ) -> None:
        """Switch the session to another pair policy; keeps the log, rebuilds the ledger."""
        await asyncio.to_thread(self._session.set_policy, policy)

    async def recount(
        self,
        counter: str | TokenCounter,
        *,
        progress: Progress | None = None,
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
        return await asyncio.to_thread(self._session.recount, counter, progress=progress)

    async def exists(self) -> bool:
        """Return True if the session exists."""
        return await self._read(self._session.exists)

    @property
    def revision(self) -> int:
        """The log's change counter, which ``expected_revision`` is compared with."""
        return self._session.revision

    @property
    def tokens(self) -> int:
        """Tokens of the whole live history."""
        return self._session.tokens

    @property
    def policy(self) -> str:
        """The name of the pair policy in force."""
        return self._session.policy

    @property
    def open_calls(self) -> list[OpenCall]:
        """Calls awaiting a result, oldest first."""
        return self._session.open_calls

    async def report_usage(
        self,
        input_tokens: int,
        *,
        model: str | None = None,
        counted_tokens: int | None = None,
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
        await self._ready()
        report = usage.report_usage(
            ref_of(self._session), input_tokens, model=model, counted_tokens=counted_tokens
        )
        return await self._commit(report)

    @property
    def estimated_tokens(self) -> int:
        """Estimate of what the provider will bill for the next full request.

        For the model reported last: the billed tokens of the anchored context plus the factor times
        the tokens appended since; if no anchor applies, the factor times the tokens of the context
        without a budget. Without any report this is the plain count.

        Raises:
            CorruptValueError: the calibration is damaged; the next report rewrites it.
        """
        return self._session.estimated_tokens

    async def calibrations(self) -> list[Calibration]:
        """Return what ``report_usage`` has learned, most recently reported model first.

        Raises:
            CorruptValueError: the calibration is damaged; the next report rewrites it.
        """
        return await self._read(self._session.calibrations)

    def pressure(
        self,
        *,
        policy: AnyPolicy | None = None,
    ) -> Pressure:
        """Measure how full the session is: the stage that is due and the turns remaining.

        Computed from maintained sums: constant time, whatever the length of the history.
        """
        return self._session.pressure(policy=policy)

    def needs_compaction(
        self,
        *,
        policy: AnyPolicy | None = None,
        max_items: int | None = None,
    ) -> bool:
        """Return True if a stage of the policy is due, or there are more than ``max_items`` items.

        False while the last item is a tool result: the model has not seen it yet.
        """
        return self._session.needs_compaction(policy=policy, max_items=max_items)

    async def plan(
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
        return await asyncio.to_thread(
            self._session.plan,
            policy=policy,
            stage=stage,
            keep_last=keep_last,
            keep_tokens=keep_tokens,
            force=force,
        )

    async def repair(
        self,
        mode: str = "drop",
        *,
        plan: bool = False,
        close_open: bool = False,
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
        return await asyncio.to_thread(self._session.repair, mode, plan=plan, close_open=close_open)

    async def views(self) -> list[View]:
        """The compaction records, oldest first."""
        return await self._read(self._session.views)

    async def uncompact(self) -> bool:
        """Revert the last compaction; return whether there was one."""
        await self._ready()
        return await self._commit(Uncompact(ref_of(self._session)))

    async def masks(self) -> list[Mask]:
        """Return the masks that contexts currently show in place of items, in item order."""
        return await self._read(self._session.masks)

    async def covered(
        self,
        view: View | None = None,
    ) -> list[Item]:
        """The items that a view (None: the current one) stands for and hides, oldest first.

        Raises:
            NotFoundError: the view is neither in force nor an ancestor of the one in force.
        """
        return await asyncio.to_thread(lambda: list(self._session.covered(view)))

    async def read_offloaded(
        self,
        reference: str,
    ) -> str:
        """Return the full text of an offloaded result, of which contexts show a preview.

        Args:
            reference: as given in the preview: ``item:SEQ`` or ``item:SEQ:CALL_ID``; for an item
                too large to be stored as it was, ``offload:KEY:NUMBER``.

        Raises:
            NotFoundError: the item is not in the live history, or has no such result.
            InvalidOptionError: not a valid reference.
        """
        return await self._read(self._session.read_offloaded, reference)

    async def undo(
        self,
        count: int = 1,
        *,
        expected_revision: int | None = None,
    ) -> list[Item]:
        """Remove the last ``count`` items, or all that are live; return them, oldest first."""
        await self._ready()
        return await self._commit(
            Undo(ref_of(self._session), count, expected_revision=expected_revision)
        )

    async def checkpoint(
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
        await self._ready()
        change = session.SaveCheckpoint(
            ref_of(self._session),
            name,
            meta,
            expected_revision=expected_revision,
            idempotency_key=idempotency_key,
        )
        return await self._commit(change)

    async def checkpoints(self) -> AsyncIterator[Checkpoint]:
        """The checkpoints, newest last; read lazily, a page at a time.

        Raises:
            CorruptValueError: a checkpoint is damaged.
        """
        await self._ready()
        async for found in in_pages(
            self._session.checkpoints(), ITEMS_PAGE, in_thread=self._is_remote
        ):
            yield found

    async def get_checkpoint(
        self,
        which: str | int,
    ) -> Checkpoint:
        """Return a checkpoint by its number, or the newest one with a name.

        Raises:
            NotFoundError: no checkpoint matches.
            CorruptValueError: it is damaged.
        """
        return await self._read(self._session.get_checkpoint, which)

    async def delete_checkpoint(
        self,
        which: Checkpoint | str | int,
    ) -> bool:
        """Delete a checkpoint, given by number or as the newest of a name; return if it existed.

        The items it refers to stay, as all items do.
        """
        await self._ready()
        return await self._commit(session.DeleteCheckpoint(ref_of(self._session), which))

    async def rewind(
        self,
        to: Position,
        *,
        state: bool = True,
        expected_revision: int | None = None,
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
        await self._ready()
        change = session.Rewind(
            ref_of(self._session), to, state=state, expected_revision=expected_revision
        )
        return await self._commit(change)

    async def recover(
        self,
        *,
        plan: bool = False,
        steps: Sequence[str] = RECOVERY_STEPS,
    ) -> Recovery:
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
        return await asyncio.to_thread(self._session.recover, plan=plan, steps=steps)

    async def pending_hitl(self) -> list[Escalation]:
        """Return the ``hitl`` events of the live history without a decision, oldest first.

        Raises:
            CorruptValueError: one of them is damaged.
        """
        return await asyncio.to_thread(self._session.pending_hitl)

    async def resolve_hitl(
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
        await self._ready()
        change = session.retry.resolve(ref_of(self._session), seq, decision, by=by, meta=meta)
        return await self.store(change)

    async def bundle(
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
        return await asyncio.to_thread(
            self._session.bundle, seq, most_bytes=most_bytes, policy=policy
        )

    async def accessed(
        self,
        seq: int | None = None,
    ) -> Accessed:
        """Return the access count and last access time of the session or one item, if tracked.

        ``context``, ``items``, ``tail`` and ``get`` of handles with ``access_counts`` are counted;
        an item counts when it is read, or shown after the cut of a context.

        Raises:
            CorruptValueError: the counts are damaged.
        """
        return await self._read(self._session.accessed, seq)

    async def items(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        skip_corrupt: bool = False,
        authors: Iterable[str] | None = None,
        share: str | None = None,
        redact: Redact = None,
    ) -> AsyncIterator[Item]:
        """Live items with ``start <= seq < stop``, in order; read lazily, a page at a time.

        ``authors``, ``share`` and ``redact``: as in ``context``; items appended during the
        iteration are not shown then.

        Raises:
            CorruptValueError: an item is damaged; ``skip_corrupt`` omits it instead.
        """
        await self._ready()
        async for found in in_pages(
            self._session.items(
                start, stop, skip_corrupt=skip_corrupt, authors=authors, share=share, redact=redact
            ),
            ITEMS_PAGE,
            in_thread=self._is_remote,
        ):
            yield found

    async def get(
        self,
        seq: int,
    ) -> Item:
        """Return one live item.

        Raises:
            NotFoundError: it is not in the live history.
        """
        return await self._read(self._session.get, seq)

    async def tail(
        self,
        count: int,
        *,
        skip_corrupt: bool = False,
        redact: Redact = None,
    ) -> list[Item]:
        """The last ``count`` live items, oldest first; ``redact`` as in ``context``."""
        return await self._read(self._session.tail, count, skip_corrupt=skip_corrupt, redact=redact)

    async def find_call(
        self,
        call_id: str,
    ) -> CallRecord:
        """Return where a call was made and answered: the latest call with this id.

        Raises:
            NotFoundError: no call of the live history has this id.
        """
        return await self._read(self._session.find_call, call_id)

    async def context(
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
        format: str | None = None,  # noqa: A002 - as the synchronous one
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
        return await self._read(
            self._session.context,
            budget_tokens,
            reserve_tokens=reserve_tokens,
            calibrated=calibrated,
            model=model,
            view=view,
            authors=authors,
            share=share,
            redact=redact,
            memory=memory,
            format=format,
        )

    # --- end of what scripts/make_aio writes ---
