"""AsyncSession: commits through the store's writer thread, reads where they are called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from memcore.aio.compacting import recorded, run_due, summarized
from memcore.aio.joined import AsyncJoined
from memcore.aio.leasing import Leased
from memcore.aio.state import AsyncSessionState
from memcore.blobs import StagedBlobLost
from memcore.compaction import Pressure
from memcore.compaction.patience import Patience
from memcore.errors import StorageError
from memcore.limits import ITEMS_PAGE
from memcore.log import Prepared
from memcore.model import (
    Calibration,
    CallRecord,
    CompactionResult,
    Context,
    Item,
    Mask,
    OpenCall,
    Plan,
    Receipt,
    RecountResult,
    RepairResult,
    View,
)
from memcore.options import checked_optional_seconds
from memcore.session import Batch, Session
from memcore.session.appending import STAGE_ATTEMPTS
from memcore.session.attempts import Attempts
from memcore.session.changes import Closure
from memcore.session.compacting import AnySummarizer, checked_summarizer
from memcore.session.condensed import AnyPolicy
from memcore.session.outgoing import Redact
from memcore.session.recovered import Recovery
from memcore.state import Command
from memcore.telemetry import adopt
from memcore.tokens import TokenCounter

__all__ = ["AsyncSession"]

T = TypeVar("T")
_log = logging.getLogger("memcore")
_FEW: Final = 32
"""So many items may be appended on the loop's own thread."""


class AsyncSession(AsyncJoined):
    """As ``Session``. Totals (``len``, ``revision``, ``tokens``, ...) need no ``await``.

    If the session was opened with ``recount=True``, the first awaited call counts it anew in a
    thread; a total that is asked for before that counts where it is called.
    """

    def __init__(self, session: Session, *, auto_compact: AnySummarizer | None = None) -> None:
        """``auto_compact``: as of ``Scope.session``; it may be a coroutine function."""
        super().__init__(session)
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
        return await self.store(*self._session.appending.extend([item], **options))

    async def extend(self, items: Iterable[Mapping[str, Any]], **options: Any) -> Receipt:
        """As ``Session.extend``."""
        await self._ready()
        return await self.store(*self._session.appending.extend(items, **options))

    async def record(self, type: str, payload: Any = None, **options: Any) -> Receipt:  # noqa: A002
        """As ``Session.record``."""
        await self._ready()
        return await self.store(*self._session.appending.record(type, payload, **options))

    async def abandon(self, call_id: str) -> Receipt:
        """As ``Session.abandon``."""
        await self._ready()
        return await self.store(*self._session.appending.abandon(call_id))

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
    ) -> AsyncIterator[Batch]:
        """``async with session.batch() as b``: as ``Session.batch``."""
        await self._ready()
        batch = self._session.plan_batch(expected_revision, idempotency_key)
        yield batch
        batch.settle(await self.store(batch.prepared, batch.closure()))

    async def begin(
        self, values: Mapping[str, Any], *, meta: Mapping[str, Any] | None = None
    ) -> Receipt:
        """As ``Session.begin``."""
        await self._ready()
        batch = self._session.plan_batch(None)
        batch.begin_state(values, meta=meta)
        batch.settle(receipt := await self.store(batch.prepared, batch.closure()))
        return receipt

    async def apply(self, command: Command, **options: Any) -> Receipt:
        """As ``Session.apply``."""
        await self._ready()
        batch = self._session.plan_command(command, **options)
        batch.settle(receipt := await self.store(batch.prepared, batch.closure()))
        return receipt

    def lease(self, owner: str, *, ttl_seconds: float, force: bool = False) -> Leased:
        """As ``Session.lease``: to be awaited, or used in ``async with``."""
        return Leased(self._session, owner, ttl_seconds, force=force)

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
        return await self._commit(self._session.changes.uncompact(), makes_room=True)

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

    async def store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit a closure that appends ``prepared``; then compact, if the handle was made so."""
        found = await self._store(prepared, closure)
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

    async def _store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit; large items are staged ahead in a thread."""
        stage = self._session.appending.stage
        if not any(item.payload for item in prepared):
            large = len(prepared) > _FEW
            return await self._commit(closure, large=large)
        for _ in range(STAGE_ATTEMPTS):
            await asyncio.to_thread(stage, prepared)
            with suppress(StagedBlobLost):
                return await self._commit(closure, large=True)
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
