"""Asynchronous handles: database, scope, session, leases."""

from __future__ import annotations

import asyncio
import logging
import os
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
from typing import Any, Final, Self, TypeAlias, TypeVar

from memcore.aio.commit import commit
from memcore.aio.compact import recorded, run_due, summarized
from memcore.aio.state import AsyncSessionState, AsyncSharedState
from memcore.aio.values import AsyncBlobStore, AsyncKeyValue
from memcore.audit.verify import AuditedEntry, AuditReport
from memcore.blobs import StagedBlobLost
from memcore.compaction import Pressure
from memcore.compaction.backoff import Patience
from memcore.database import Database, Scope, open_database
from memcore.database.database import KeyStatus, Rotation
from memcore.database.stats import Branch, Difference
from memcore.errors import StorageError
from memcore.limits import ITEMS_PAGE
from memcore.maintenance.backup import CompactReport
from memcore.model import (
    Calibration,
    CallRecord,
    Checkpoint,
    CompactionResult,
    Context,
    Item,
    Mask,
    OpenCall,
    Plan,
    Receipt,
    RecountResult,
    RepairResult,
    SessionEntry,
    View,
)
from memcore.options import checked_optional_seconds
from memcore.privacy import RedactingFilter
from memcore.privacy.keyring import Key
from memcore.retention import ErasureReceipt, Hold, Retention, Sweeper, SweepReport
from memcore.session import ChangeBatch, Lease, Session
from memcore.session.append import STAGE_ATTEMPTS, abandon, append_items, record_event, stage
from memcore.session.change import Change, Uncompact, Undo
from memcore.session.checkpoints import DeleteCheckpoint, Position, Rewind, SaveCheckpoint
from memcore.session.compact import AnySummarizer, checked_summarizer
from memcore.session.compactor import Attempts
from memcore.session.content_filter import Redact
from memcore.session.engine import Accessed
from memcore.session.lease import TakeLease
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

__all__ = [
    "AsyncDatabase",
    "AsyncLadder",
    "AsyncLease",
    "AsyncLeaseContext",
    "AsyncScope",
    "AsyncSession",
    "open_async",
]


# --- What an asynchronous session does to be taken back and to branch -----------------------------

T = TypeVar("T")


# --- What an AsyncSession does for those who share it: agents, people who decide or reproduce -----

AnyStep: TypeAlias = Callable[[Attempt], Awaitable[Any]] | Step


class AsyncLadder:
    """As ``Ladder``; steps may be coroutine functions."""

    def __init__(self, ladder: Ladder) -> None:
        self._ladder = ladder

    @property
    def rules(self) -> LadderRules:
        """What it goes by."""
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
        steps = self._ladder.climb(
            step, request_id=request_id, fallbacks=fallbacks, retries=retries
        )

        def go_on(tried: Tried | None) -> tuple[Attempt, Step] | LadderOutcome:
            try:
                return next(steps) if tried is None else steps.send(tried)
            except StopIteration as end:
                outcome: LadderOutcome = end.value
                return outcome

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
    """What ``AsyncSession.lease`` returns: to be awaited, or used in ``async with``."""

    def __init__(self, session: Session, owner: str, ttl_seconds: float, *, force: bool) -> None:
        self._session = session
        self._asked = owner, ttl_seconds, force
        self._lease: AsyncLease | None = None

    def __await__(self) -> Generator[object, None, AsyncLease]:
        return self._take().__await__()

    async def _take(self) -> AsyncLease:
        ref, (owner, ttl_seconds, force) = ref_of(self._session), self._asked
        change = TakeLease(ref, owner, ttl_seconds, force=force)
        row = await commit(self._session, change)
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


_log = logging.getLogger("memcore")
_FEW: Final = 32
"""So many items may be appended on the loop's own thread."""


class AsyncSession:
    """As ``Session``. Totals (``len``, ``revision``, ``tokens``, ...) need no ``await``.

    If the session was opened with ``recount=True``, the first awaited call counts it anew in a
    thread; a total that is asked for before that counts where it is called.
    """

    def __init__(self, session: Session, *, auto_compact: AnySummarizer | None = None) -> None:
        """``auto_compact``: as of ``Scope.session``; it may be a coroutine function."""
        self._session = session
        if auto_compact is not None:
            checked_summarizer(auto_compact, awaits=True)
        self._summarize = auto_compact
        self._patience = Patience()
        self._compacting, self._appends = False, 0
        self.state = AsyncSessionState(session)
        """As ``Session.state``."""
        adopt(self, session)

    def __repr__(self) -> str:
        return f"Async{self._session!r}"

    def __len__(self) -> int:
        return len(self._session)

    def __bool__(self) -> bool:
        return True

    @property
    def id(self) -> str:
        """The session's name."""
        return self._session.id

    @property
    def user(self) -> str:
        """The user who owns it."""
        return self._session.user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._session.app

    async def plan(
        self,
        *,
        policy: AnyPolicy | None = None,
        stage: str | None = None,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        force: bool = False,
    ) -> Plan:
        """As ``Session.plan``, in a thread."""
        await self._ready()
        return await asyncio.to_thread(
            self._session.plan,
            policy=policy,
            stage=stage,
            keep_last=keep_last,
            keep_tokens=keep_tokens,
            force=force,
        )

    @property
    def revision(self) -> int:
        """As ``Session.revision``."""
        return self._session.revision

    @property
    def tokens(self) -> int:
        """As ``Session.tokens``."""
        return self._session.tokens

    @property
    def estimated_tokens(self) -> int:
        """As ``Session.estimated_tokens``."""
        return self._session.estimated_tokens

    @property
    def policy(self) -> str:
        """As ``Session.policy``."""
        return self._session.policy

    @property
    def counter(self) -> str:
        """As ``Session.counter``."""
        return self._session.counter

    @property
    def open_calls(self) -> list[OpenCall]:
        """As ``Session.open_calls``."""
        return self._session.open_calls

    # --- changes ----------------------------------------------------------------------------------

    async def append(self, item: Mapping[str, Any], **options: Any) -> Receipt:
        """As ``Session.append``."""
        await self._ready()
        return await self.store(append_items(ref_of(self._session), [item], **options))

    async def extend(self, items: Iterable[Mapping[str, Any]], **options: Any) -> Receipt:
        """As ``Session.extend``."""
        await self._ready()
        return await self.store(append_items(ref_of(self._session), items, **options))

    async def record(self, type: str, payload: Any = None, **options: Any) -> Receipt:  # noqa: A002
        """As ``Session.record``."""
        await self._ready()
        return await self.store(record_event(ref_of(self._session), type, payload, **options))

    async def abandon(self, call_id: str) -> Receipt:
        """As ``Session.abandon``."""
        await self._ready()
        return await self.store(abandon(ref_of(self._session), call_id))

    async def report_usage(
        self, input_tokens: int, *, model: str | None = None, counted_tokens: int | None = None
    ) -> Calibration:
        """As ``Session.report_usage``."""
        await self._ready()
        return await self._commit(
            self._session.metering.report(input_tokens, model=model, counted_tokens=counted_tokens)
        )

    @asynccontextmanager
    async def batch(
        self, *, expected_revision: int | None = None, idempotency_key: str | None = None
    ) -> AsyncIterator[ChangeBatch]:
        """``async with session.batch() as b``: as ``Session.batch``."""
        await self._ready()
        batch = self._session.plan_batch(expected_revision, idempotency_key)
        yield batch
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

    async def set_policy(self, policy: str) -> None:
        """As ``Session.set_policy``."""
        await asyncio.to_thread(self._session.set_policy, policy)

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
        compacting = self._session.compacting
        compacting.check(summarize, awaits=True)
        checked_optional_seconds("timeout_seconds", timeout_seconds)
        rule, asked = compacting.asked(
            policy, stage, keep_last=keep_last, keep_tokens=keep_tokens, force=force
        )
        asked = replace(asked, summarizes=summarize is not None)
        draft = await asyncio.to_thread(compacting.begin, rule, asked)
        draft = await summarized(self._session, draft, summarize, timeout_seconds)
        return await recorded(self._session, draft)

    async def repair(self, mode: str = "drop", **options: bool) -> RepairResult:
        """As ``Session.repair``, in a thread. Cancelled, it goes on there."""
        return await asyncio.to_thread(self._session.repair, mode, **options)

    async def recover(self, **options: Any) -> Recovery:
        """As ``Session.recover``, in a thread. Cancelled, it goes on there."""
        return await asyncio.to_thread(self._session.recover, **options)

    async def uncompact(self) -> bool:
        """As ``Session.uncompact``."""
        await self._ready()
        return await self._commit(Uncompact(ref_of(self._session)))

    async def recount(
        self,
        counter: str | TokenCounter,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> RecountResult:
        """As ``Session.recount``, in a thread, which ``progress`` is called in too.

        Cancelled, it goes on in its thread.
        """
        return await asyncio.to_thread(self._session.recount, counter, progress=progress)

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
        compacting = self._session.compacting
        attempts = Attempts(self.id, compacting, compacting.policy(), self._patience)
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
    ) -> Context:
        """As ``Session.context``."""
        await self._ready()
        return self._session.context(
            budget_tokens,
            reserve_tokens=reserve_tokens,
            calibrated=calibrated,
            model=model,
            view=view,
            authors=authors,
            share=share,
            redact=redact,
        )

    async def items(
        self, start: int = 0, stop: int | None = None, **options: Any
    ) -> AsyncIterator[Item]:
        """As ``Session.items``; lets other tasks run after every page."""
        await self._ready()
        for count, item in enumerate(self._session.items(start, stop, **options)):
            if count and count % ITEMS_PAGE == 0:
                await asyncio.sleep(0)
            yield item

    async def get(self, seq: int) -> Item:
        """As ``Session.get``."""
        await self._ready()
        return self._session.get(seq)

    async def tail(self, count: int, **options: Any) -> list[Item]:
        """As ``Session.tail``."""
        await self._ready()
        return self._session.tail(count, **options)

    async def find_call(self, call_id: str) -> CallRecord:
        """As ``Session.find_call``."""
        await self._ready()
        return self._session.find_call(call_id)

    async def exists(self) -> bool:
        """As ``Session.exists``."""
        return self._session.exists()

    async def calibrations(self) -> list[Calibration]:
        """As ``Session.calibrations``."""
        await self._ready()
        return self._session.calibrations()

    async def views(self) -> list[View]:
        """As ``Session.views``."""
        await self._ready()
        return self._session.views()

    def needs_compaction(
        self, *, policy: AnyPolicy | None = None, max_items: int | None = None
    ) -> bool:
        """As ``Session.needs_compaction``."""
        return self._session.needs_compaction(policy=policy, max_items=max_items)

    def pressure(self, *, policy: AnyPolicy | None = None) -> Pressure:
        """As ``Session.pressure``."""
        return self._session.pressure(policy=policy)

    async def masks(self) -> list[Mask]:
        """As ``Session.masks``."""
        await self._ready()
        return self._session.masks()

    async def covered(self, view: View | None = None) -> list[Item]:
        """As ``Session.covered``, as a list."""
        await self._ready()
        return await asyncio.to_thread(lambda: list(self._session.covered(view)))

    async def read_offloaded(self, reference: str) -> str:
        """As ``Session.read_offloaded``."""
        await self._ready()
        return self._session.read_offloaded(reference)

    # --- undo, checkpoints, forks -----------------------------------------------------------------

    async def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """As ``Session.undo``."""
        await self._ready()
        change = Undo(ref_of(self._session), count, expected_revision=expected_revision)
        return await self._commit(change)

    async def hold(self, *, reason: str) -> bool:
        """As ``Session.hold``."""
        return await asyncio.to_thread(lambda: self._session.hold(reason=reason))

    async def release(self) -> bool:
        """As ``Session.release``."""
        return await asyncio.to_thread(self._session.release)

    async def rewind(
        self, to: Position, *, state: bool = True, expected_revision: int | None = None
    ) -> Receipt:
        """As ``Session.rewind``."""
        await self._ready()
        ref = ref_of(self._session)
        change = Rewind(ref, to, state=state, expected_revision=expected_revision)
        return await self._commit(change)

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

    async def checkpoint(
        self,
        name: str | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        expected_revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Checkpoint:
        """As ``Session.checkpoint``."""
        await self._ready()
        change = SaveCheckpoint(
            ref_of(self._session),
            name,
            meta,
            expected_revision=expected_revision,
            idempotency_key=idempotency_key,
        )
        return await self._commit(change)

    async def delete_checkpoint(self, which: Checkpoint | str | int) -> bool:
        """As ``Session.delete_checkpoint``."""
        await self._ready()
        return await self._commit(DeleteCheckpoint(ref_of(self._session), which))

    async def checkpoints(self) -> AsyncIterator[Checkpoint]:
        """As ``Session.checkpoints``; lets other tasks run after every page."""
        await self._ready()
        for count, found in enumerate(self._session.checkpoints(), 1):
            if count % ITEMS_PAGE == 0:
                await asyncio.sleep(0)
            yield found

    async def get_checkpoint(self, which: str | int) -> Checkpoint:
        """As ``Session.get_checkpoint``."""
        await self._ready()
        return self._session.get_checkpoint(which)

    async def _ready(self) -> None:
        """What the first use of the handle begins with may take its time."""
        if self._session.recounting.is_due:
            await asyncio.to_thread(self._session.recounting.touch)

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

    async def pending_hitl(self) -> list[Escalation]:
        """As ``Session.pending_hitl``, in a thread."""
        return await asyncio.to_thread(self._session.pending_hitl)

    async def resolve_hitl(self, seq: int, decision: Any, **options: Any) -> Receipt:
        """As ``Session.resolve_hitl``, in a thread."""
        return await asyncio.to_thread(self._session.resolve_hitl, seq, decision, **options)

    async def bundle(self, seq: int | None = None, **options: Any) -> bytes:
        """As ``Session.bundle``, in a thread."""
        return await asyncio.to_thread(self._session.bundle, seq, **options)

    async def accessed(self, seq: int | None = None) -> Accessed:
        """As ``Session.accessed``."""
        return self._session.accessed(seq)


# --- AsyncDatabase and AsyncScope: whatever walks the file runs in a thread -----------------------


class _OpeningDatabase:
    """What ``memcore.aio.open`` returns: to be awaited, or used in ``async with``."""

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
        self._path = path
        self._options = options
        self._database: AsyncDatabase | None = None

    def __await__(self) -> Generator[Any, None, AsyncDatabase]:
        return self._open().__await__()

    async def _open(self) -> AsyncDatabase:
        opened = await asyncio.to_thread(open_database, self._path, **self._options)
        return AsyncDatabase(opened)

    async def __aenter__(self) -> AsyncDatabase:
        self._database = await self._open()
        return self._database

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._database is not None:
            await self._database.close()


def open_async(path: str | os.PathLike[str], **options: Any) -> _OpeningDatabase:
    """``await memcore.aio.open(path)`` or ``async with memcore.aio.open(path) as db``.

    Options and errors are those of ``memcore.open``.
    """
    return _OpeningDatabase(path, options)


class AsyncDatabase:
    """As ``Database``; ``session`` and ``scope`` need no ``await``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def sync(self) -> Database:
        """The synchronous handle of the same database."""
        return self._database

    @property
    def path(self) -> str:
        """The file."""
        return self._database.path

    @property
    def read_only(self) -> bool:
        """Whether this handle refuses writes."""
        return self._database.read_only

    @property
    def needs_recovery(self) -> bool:
        """As ``Database.needs_recovery``."""
        return self._database.needs_recovery

    @property
    def durability(self) -> str:
        """What an acknowledged change has survived."""
        return self._database.durability

    def scope(self, *, user: str = "default", app: str = "default") -> AsyncScope:
        """As ``Database.scope``."""
        return AsyncScope(self._database.scope(user=user, app=app))

    def as_user(self, user: str, *, app: str = "default", actor: str | None = None) -> AsyncScope:
        """As ``Database.as_user``."""
        return AsyncScope(self._database.as_user(user, app=app, actor=actor))

    def session(
        self, session_id: str, *, auto_compact: AnySummarizer | None = None, **options: Any
    ) -> AsyncSession:
        """As ``Database.session``; ``auto_compact`` may be a coroutine function."""
        return AsyncSession(
            self._database.session(session_id, **options), auto_compact=auto_compact
        )

    async def sessions(
        self, *, user: str | None = None, app: str | None = None
    ) -> list[SessionEntry]:
        """As ``Database.sessions``, as a list."""
        return await asyncio.to_thread(lambda: list(self._database.sessions(user=user, app=app)))

    async def scopes(self) -> list[tuple[str, str]]:
        """As ``Database.scopes``."""
        return await asyncio.to_thread(self._database.scopes)

    async def delete_session(
        self, session_id: str, *, user: str = "default", app: str = "default"
    ) -> bool:
        """As ``Database.delete_session``."""
        return await self.scope(user=user, app=app).delete_session(session_id)

    async def check(self, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """As ``Database.check``."""
        return await asyncio.to_thread(lambda: self._database.check(progress=progress))

    async def branches(self, *, user: str | None = None, app: str | None = None) -> list[Branch]:
        """As ``Database.branches``, in a thread."""
        return await asyncio.to_thread(self._database.branches, user=user, app=app)

    async def compare(
        self, a: AsyncSession, b: AsyncSession, **positions: Position | None
    ) -> Difference:
        """As ``Database.compare``, in a thread."""
        return await asyncio.to_thread(self._database.compare, a.sync, b.sync, **positions)

    @property
    def retention(self) -> Retention:
        """As ``Database.retention``; its calls are short commits."""
        return self._database.retention

    async def sweep(self, **options: Any) -> SweepReport:
        """As ``Database.sweep``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.sweep(**options))

    @asynccontextmanager
    async def sweeper(self, **options: Any) -> AsyncIterator[Sweeper]:
        """``async with db.sweeper(interval_seconds=60):``; as ``Database.sweeper``."""
        made = self._database.sweeper(**options)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.stop)

    async def stats(self) -> dict[str, Any]:
        """As ``Database.stats``."""
        return await asyncio.to_thread(self._database.stats)

    async def backup(self, path: str | os.PathLike[str], **options: Any) -> None:
        """As ``Database.backup``."""
        await asyncio.to_thread(lambda: self._database.backup(path, **options))

    async def copy_compact(self, **options: Any) -> CompactReport:
        """As ``Database.copy_compact``."""
        return await asyncio.to_thread(lambda: self._database.copy_compact(**options))

    async def erase(self, user: str, **options: Any) -> ErasureReceipt:
        """As ``Database.erase``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.erase(user, **options))

    async def finish_erasures(self, **options: Any) -> list[ErasureReceipt]:
        """As ``Database.finish_erasures``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.finish_erasures(**options))

    async def would_erase(self, user: str, *, app: str | None = None) -> dict[str, int]:
        """As ``Database.would_erase``, in a thread."""
        return await asyncio.to_thread(self._database.would_erase, user, app=app)

    async def holds(self, *, user: str | None = None, app: str | None = None) -> list[Hold]:
        """As ``Database.holds``, in a thread."""
        return await asyncio.to_thread(self._database.holds, user=user, app=app)

    async def hold(self, user: str, **options: Any) -> list[str]:
        """As ``Database.hold``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.hold(user, **options))

    async def release(self, user: str, **options: Any) -> list[str]:
        """As ``Database.release``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.release(user, **options))

    async def opt_out_memory(self, user: str, **options: Any) -> list[str]:
        """As ``Database.opt_out_memory``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.opt_out_memory(user, **options))

    async def opt_in_memory(self, user: str, **options: Any) -> list[str]:
        """As ``Database.opt_in_memory``, in a thread."""
        return await asyncio.to_thread(lambda: self._database.opt_in_memory(user, **options))

    @property
    def demands(self) -> dict[str, Any]:
        """As ``Database.demands``."""
        return self._database.demands

    async def demand(self, **options: Any) -> None:
        """As ``Database.demand``, in a thread."""
        await asyncio.to_thread(lambda: self._database.demand(**options))

    def log_filter(self, redact: Redact = None) -> RedactingFilter:
        """As ``Database.log_filter``."""
        return self._database.log_filter(redact)

    @property
    def receipt_key(self) -> bytes:
        """As ``Database.receipt_key``."""
        return self._database.receipt_key

    async def flush(self) -> None:
        """As ``Database.flush``."""
        await asyncio.to_thread(self._database.flush)

    async def close(self) -> None:
        """As ``Database.close``."""
        await asyncio.to_thread(self._database.close)

    # --- audit and keys ---------------------------------------------------------------------------

    async def verify_audit(self, **options: Any) -> AuditReport:
        """As ``Database.verify_audit``."""
        return await asyncio.to_thread(self._database.verify_audit, **options)

    async def audit_entries(
        self, session_id: str | None = None, **options: Any
    ) -> list[AuditedEntry]:
        """As ``Database.audit_entries``, as a list."""
        return await asyncio.to_thread(
            lambda: list(self._database.audit_entries(session_id, **options))
        )

    async def anchor_audit(self, anchor: Any = None, **options: Any) -> int:
        """As ``Database.anchor_audit``."""
        return await asyncio.to_thread(self._database.anchor_audit, anchor, **options)

    async def cut_audit(self, *, older_than_seconds: float | None = None) -> int:
        """As ``Database.cut_audit``."""
        return await asyncio.to_thread(
            self._database.cut_audit, older_than_seconds=older_than_seconds
        )

    async def key_status(self) -> KeyStatus:
        """As ``Database.key_status``."""
        return await asyncio.to_thread(self._database.key_status)

    async def rotate_key(self, key: Key) -> None:
        """As ``Database.rotate_key``."""
        await asyncio.to_thread(self._database.rotate_key, key)

    async def rotate_data_keys(self, **options: Any) -> Rotation:
        """As ``Database.rotate_data_keys``."""
        return await asyncio.to_thread(self._database.rotate_data_keys, **options)


class AsyncScope:
    """As ``Scope``."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def session(
        self, session_id: str, *, auto_compact: AnySummarizer | None = None, **options: Any
    ) -> AsyncSession:
        """As ``Scope.session``; ``auto_compact`` may be a coroutine function."""
        return AsyncSession(self._scope.session(session_id, **options), auto_compact=auto_compact)

    async def sessions(self) -> list[SessionEntry]:
        """As ``Scope.sessions``, as a list."""
        return await asyncio.to_thread(lambda: list(self._scope.sessions()))

    async def delete_session(self, session_id: str, *, lease: AsyncLease | None = None) -> bool:
        """As ``Scope.delete_session``."""
        held = None if lease is None else lease.sync
        return await asyncio.to_thread(self._scope.delete_session, session_id, lease=held)

    async def erase(self, **options: Any) -> ErasureReceipt:
        """As ``Scope.erase``, in a thread."""
        return await asyncio.to_thread(lambda: self._scope.erase(**options))

    async def hold(self, *, reason: str) -> bool:
        """As ``Scope.hold``."""
        return await asyncio.to_thread(lambda: self._scope.hold(reason=reason))

    async def release(self) -> bool:
        """As ``Scope.release``."""
        return await asyncio.to_thread(self._scope.release)

    async def holds(self) -> list[Hold]:
        """As ``Scope.holds``."""
        return await asyncio.to_thread(self._scope.holds)

    @property
    def memory_opt_out(self) -> bool:
        """As ``Scope.memory_opt_out``."""
        return self._scope.memory_opt_out

    async def opt_out_memory(self, *, remove: bool = False) -> int:
        """As ``Scope.opt_out_memory``."""
        return await asyncio.to_thread(lambda: self._scope.opt_out_memory(remove=remove))

    async def opt_in_memory(self) -> bool:
        """As ``Scope.opt_in_memory``."""
        return await asyncio.to_thread(self._scope.opt_in_memory)

    @property
    def state(self) -> AsyncSharedState:
        """As ``Scope.state``."""
        return AsyncSharedState(self._scope.state)

    @property
    def app_state(self) -> AsyncSharedState:
        """As ``Scope.app_state``."""
        return AsyncSharedState(self._scope.app_state)

    def kv(self, namespace: str) -> AsyncKeyValue:
        """As ``Scope.kv``."""
        return AsyncKeyValue(self._scope.kv(namespace))

    @property
    def blobs(self) -> AsyncBlobStore:
        """As ``Scope.blobs``."""
        return AsyncBlobStore(self._scope.blobs)
