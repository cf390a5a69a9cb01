"""What an asynchronous session does to be taken back and to branch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, TypeVar

from memcore.aio.commit import commit
from memcore.limits import ITEMS_PAGE
from memcore.model import Checkpoint, Item, Receipt
from memcore.session import Session
from memcore.session.changes import Closure
from memcore.session.checkpointing import Position

__all__ = ["AsyncBranched"]

T = TypeVar("T")


class AsyncBranched:
    """The branches of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def undo(self, count: int = 1, *, expected_revision: int | None = None) -> list[Item]:
        """As ``Session.undo``."""
        await self._ready()
        closure = self._session.changes.undo(count, expected_revision=expected_revision)
        return await self._commit(closure, makes_room=True)

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
        closure = self._session.checkpointing.rewind(
            to, state=state, expected_revision=expected_revision
        )
        return await self._commit(closure, makes_room=True)

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
        closure, target = self._session.plan_fork(
            session_id, at=at, policy=policy, state=state, expected_revision=expected_revision
        )
        await self._commit(closure)
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
        closure = self._session.checkpointing.save(
            name, meta, expected_revision=expected_revision, idempotency_key=idempotency_key
        )
        return await self._commit(closure)

    async def delete_checkpoint(self, which: Checkpoint | str | int) -> bool:
        """As ``Session.delete_checkpoint``."""
        await self._ready()
        closure = self._session.checkpointing.delete(which)
        return await self._commit(closure, makes_room=True)

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

    async def _commit(
        self, closure: Closure[T], *, makes_room: bool = False, large: bool = False
    ) -> T:
        return await commit(self._session, closure, makes_room=makes_room, large=large)
