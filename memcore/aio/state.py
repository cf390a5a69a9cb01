"""AsyncSessionState: commits through the store's writer thread, reads where they are called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from memcore.aio.commit import commit
from memcore.aio.shared import wait_for, watch
from memcore.session import Session, SessionState
from memcore.state import ScopedChange, StateChanges, StateSchema, Trace, Update

__all__ = ["AsyncSessionState"]


class AsyncSessionState:
    """As ``SessionState``; ``counter`` needs no ``await``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def sync(self) -> SessionState:
        """The synchronous handle of the same state."""
        return self._session.state

    @property
    def schema(self) -> StateSchema | None:
        """As ``SessionState.schema``."""
        return self.sync.schema

    @property
    def counter(self) -> int:
        """As ``SessionState.counter``."""
        return self.sync.counter

    async def get(self, key: str, default: Any = None) -> Any:
        """As ``SessionState.get``."""
        return self.sync.get(key, default)

    async def all(self, *, shared: bool = True) -> dict[str, Any]:
        """As ``SessionState.all``."""
        return self.sync.all(shared=shared)

    async def at(self, counter: int) -> dict[str, Any]:
        """As ``SessionState.at``."""
        return self.sync.at(counter)

    async def at_seq(self, seq: int) -> dict[str, Any]:
        """As ``SessionState.at_seq``."""
        return self.sync.at_seq(seq)

    async def before(self, seq: int) -> dict[str, Any]:
        """As ``SessionState.before``."""
        return self.sync.before(seq)

    async def visible(self, *, to: str, exclude: Iterable[str] = ()) -> dict[str, Any]:
        """As ``SessionState.visible``."""
        return self.sync.visible(to=to, exclude=exclude)

    async def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> int:
        """As ``SessionState.update``."""
        change = self.sync.plan(expected)
        change.update(update, schema=schema, trace=trace)
        return await self._commit(change)

    async def delete(self, *fields: str, expected: int | None = None) -> int:
        """As ``SessionState.delete``."""
        change = self.sync.plan(expected)
        change.delete(fields)
        return await self._commit(change)

    async def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """As ``SessionState.wait``."""
        watching = self.sync.watching
        return await wait_for(watching, watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> AsyncIterator[StateChanges]:
        """As ``SessionState.watch``."""
        watching = self.sync.watching
        return watch(watching, watching.since(since))

    async def trim(self, *, keep: int = 1) -> int:
        """As ``SessionState.trim``, in a thread."""
        return await asyncio.to_thread(self.sync.trim, keep=keep)

    async def _commit(self, change: ScopedChange) -> int:
        if change.is_temporary:
            counter = self.counter
        else:
            counter = await commit(self._session, self.sync.closure(change))
        change.tell()
        return counter
