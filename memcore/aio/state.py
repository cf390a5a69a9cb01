"""AsyncSessionState and AsyncSharedState: states with await, read where they are called."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from memcore.aio.commit import commit, commit_to
from memcore.aio.fields import AsyncFields
from memcore.session import Session, SessionState
from memcore.state import ScopedChange, SharedState, StateChange, StateSchema
from memcore.state.handle import store_of
from memcore.telemetry import adopt

__all__ = ["AsyncSessionState", "AsyncSharedState"]


class AsyncSessionState(AsyncFields[ScopedChange]):
    """As ``SessionState``; ``counter`` needs no ``await``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sync: SessionState = session.state
        adopt(self, self.sync)

    @property
    def schema(self) -> StateSchema | None:
        """As ``SessionState.schema``."""
        return self.sync.schema

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


class AsyncSharedState(AsyncFields[StateChange]):
    """As ``SharedState``; ``counter`` needs no ``await``."""

    def __init__(self, sync: SharedState) -> None:
        self.sync: SharedState = sync
        adopt(self, sync)

    async def all(self) -> dict[str, Any]:
        """As ``SharedState.all``."""
        return self.sync.all()

    async def _commit(self, change: StateChange) -> int:
        counter = await commit_to(store_of(self.sync), self.sync.closure(change))
        change.tell()
        return counter
