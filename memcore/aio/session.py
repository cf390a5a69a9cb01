"""AsyncSession: commits through the store's writer thread, reads where they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from memcore.blobs import StagedBlobLost
from memcore.errors import MemcoreError, StorageError
from memcore.limits import ITEMS_PAGE
from memcore.log import Prepared
from memcore.model import (
    CallRecord,
    CompactionResult,
    Context,
    Item,
    OpenCall,
    Plan,
    Receipt,
    SummaryRequest,
    View,
)
from memcore.session import Batch, Session
from memcore.session.changes import Closure

__all__ = ["AsyncSession"]

T = TypeVar("T")
_STAGE_ATTEMPTS = 8


class AsyncSession:
    """As ``Session``. Totals (``len``, ``revision``, ``tokens``, ...) need no ``await``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        return f"Async{self._session!r}"

    def __len__(self) -> int:
        return len(self._session)

    def __bool__(self) -> bool:
        return True

    @property
    def sync(self) -> Session:
        """The synchronous handle of the same session."""
        return self._session

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

    async def plan(self, *, keep_last: int | None = None, keep_tokens: int | None = None) -> Plan:
        """As ``Session.plan``."""
        return self._session.plan(keep_last=keep_last, keep_tokens=keep_tokens)

    @property
    def revision(self) -> int:
        """As ``Session.revision``."""
        return self._session.revision

    @property
    def tokens(self) -> int:
        """As ``Session.tokens``."""
        return self._session.tokens

    @property
    def policy(self) -> str:
        """As ``Session.policy``."""
        return self._session.policy

    @property
    def open_calls(self) -> list[OpenCall]:
        """As ``Session.open_calls``."""
        return self._session.open_calls

    # --- changes ----------------------------------------------------------------------------------

    async def append(self, item: Mapping[str, Any], **options: Any) -> Receipt:
        """As ``Session.append``."""
        return await self.extend([item], **options)

    async def extend(self, items: Iterable[Mapping[str, Any]], **options: Any) -> Receipt:
        """As ``Session.extend``."""
        return await self._store(*self._session.appending.extend(items, **options))

    async def record(self, type: str, payload: Any = None, **options: Any) -> Receipt:  # noqa: A002
        """As ``Session.record``."""
        return await self._store(*self._session.appending.record(type, payload, **options))

    async def abandon(self, call_id: str) -> Receipt:
        """As ``Session.abandon``."""
        return await self._store(*self._session.appending.abandon(call_id))

    @asynccontextmanager
    async def batch(self, *, expected_revision: int | None = None) -> AsyncIterator[Batch]:
        """``async with session.batch() as b``: as ``Session.batch``."""
        batch = self._session.plan_batch(expected_revision)
        yield batch
        batch.receipt = await self._store(batch.prepared, batch.closure())

    async def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """As ``Session.undo``."""
        changes = self._session.changes
        return await self._commit(changes.undo(count, expected_revision=expected_revision))

    async def rewind(self, seq: int, *, expected_revision: int | None = None) -> Receipt:
        """As ``Session.rewind``."""
        changes = self._session.changes
        return await self._commit(changes.rewind(seq, expected_revision=expected_revision))

    async def fork(
        self, session_id: str, *, at: int | None = None, policy: str | None = None
    ) -> AsyncSession:
        """As ``Session.fork``."""
        closure, target = self._session.plan_fork(session_id, at=at, policy=policy)
        await self._commit(closure)
        return AsyncSession(target)

    async def set_policy(self, policy: str) -> None:
        """As ``Session.set_policy``."""
        await asyncio.to_thread(self._session.set_policy, policy)

    async def compact(
        self,
        summarize: Callable[[SummaryRequest], str | Awaitable[str]] | None = None,
        *,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
    ) -> CompactionResult:
        """As ``Session.compact``; ``summarize`` may be a coroutine function.

        A plain function runs in a thread.
        """
        compacting = self._session.compacting
        compacting.check(summarize)
        draft = compacting.prepare(compacting.rule(keep_last=keep_last, keep_tokens=keep_tokens))
        if summarize is None or draft.plan.is_empty:
            draft = compacting.summarized(draft, None)
        else:
            try:
                summary = await _summary(summarize, compacting.request(draft))
            except MemcoreError:
                raise
            except Exception as exc:  # noqa: BLE001 - the caller's model may fail in any way
                draft = compacting.failed(draft, exc)
            else:
                draft = compacting.with_summary(draft, summary)
        if draft.is_empty:
            return draft.nothing()
        view = await self._commit(compacting.closure(draft))
        return CompactionResult(draft.status, draft.plan, view, draft.error)

    async def uncompact(self) -> bool:
        """As ``Session.uncompact``."""
        return await self._commit(self._session.changes.uncompact())

    async def _store(self, prepared: list[Prepared], closure: Closure[T]) -> T:
        """Commit; very large items are staged ahead in a thread."""
        stage = self._session.appending.stage
        if not any(item.payload for item in prepared):
            return await self._commit(closure)
        for _ in range(_STAGE_ATTEMPTS):
            await asyncio.to_thread(stage, prepared)
            with suppress(StagedBlobLost):
                return await self._commit(closure)
        msg = "a large item was collected again and again before it could be referred to; try again"
        raise StorageError(msg)

    async def _commit(self, closure: Closure[T]) -> T:
        loop = asyncio.get_running_loop()
        future = self._session.store.submit(closure, loop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # it was refused: nobody is left to be told
            raise

    # --- reading ----------------------------------------------------------------------------------

    async def context(
        self, budget_tokens: int | None = None, *, reserve_tokens: int = 0
    ) -> Context:
        """As ``Session.context``."""
        return self._session.context(budget_tokens, reserve_tokens=reserve_tokens)

    async def items(
        self, start: int = 0, stop: int | None = None, *, skip_corrupt: bool = False
    ) -> AsyncIterator[Item]:
        """As ``Session.items``; lets other tasks run after every page."""
        for count, item in enumerate(self._session.items(start, stop, skip_corrupt=skip_corrupt)):
            if count and count % ITEMS_PAGE == 0:
                await asyncio.sleep(0)
            yield item

    async def get(self, seq: int) -> Item:
        """As ``Session.get``."""
        return self._session.get(seq)

    async def tail(self, count: int, *, skip_corrupt: bool = False) -> list[Item]:
        """As ``Session.tail``."""
        return self._session.tail(count, skip_corrupt=skip_corrupt)

    async def find_call(self, call_id: str) -> CallRecord:
        """As ``Session.find_call``."""
        return self._session.find_call(call_id)

    async def exists(self) -> bool:
        """As ``Session.exists``."""
        return self._session.exists()

    async def views(self) -> list[View]:
        """As ``Session.views``."""
        return self._session.views()

    def needs_compaction(self, *, max_items: int | None = None) -> bool:
        """As ``Session.needs_compaction``."""
        return self._session.needs_compaction(max_items=max_items)


async def _summary(
    summarize: Callable[[SummaryRequest], str | Awaitable[str]], request: SummaryRequest
) -> object:
    if inspect.iscoroutinefunction(summarize):
        return await summarize(request)
    found = await asyncio.to_thread(summarize, request)
    return await found if inspect.isawaitable(found) else found
