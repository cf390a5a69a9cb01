"""AsyncDatabase and AsyncScope: whatever walks the file runs in a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from memcore.aio.guarded import AsyncGuarded
from memcore.aio.leasing import AsyncLease
from memcore.aio.maps import AsyncBlobStore, AsyncKeyValue
from memcore.aio.session import AsyncSession
from memcore.aio.state import AsyncSharedState
from memcore.database import CompactReport, Database, Scope, open_database
from memcore.database.branches import Branch
from memcore.database.difference import Difference
from memcore.model import SessionEntry
from memcore.privacy import RedactingFilter
from memcore.retention import ErasureReceipt, Hold, Retention, Sweeper, SweepReport
from memcore.session.checkpointing import Position
from memcore.session.compacting import AnySummarizer
from memcore.session.outgoing import Redact

__all__ = ["AsyncDatabase", "AsyncScope", "open_async"]


class _Opening:
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


def open_async(path: str | os.PathLike[str], **options: Any) -> _Opening:
    """``await memcore.aio.open(path)`` or ``async with memcore.aio.open(path) as db``.

    Options and errors are those of ``memcore.open``.
    """
    return _Opening(path, options)


class AsyncDatabase(AsyncGuarded):
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
