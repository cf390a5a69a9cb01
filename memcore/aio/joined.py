"""What an AsyncSession does for those who share it: agents, people who decide or reproduce."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Self, TypeAlias

from memcore.aio.branched import AsyncBranched
from memcore.model import Receipt
from memcore.session import Session
from memcore.session.escalation import Escalation
from memcore.session.joined import Joined
from memcore.session.ladder import FATAL, Attempt, Ladder, LadderOutcome, Step, Tried
from memcore.session.rules import Cause, LadderRules
from memcore.session.uses import Accessed

__all__ = ["AsyncJoined", "AsyncLadder"]

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


class AsyncJoined(AsyncBranched):
    """A session among several who work with it."""

    @property
    def sync(self) -> Session:
        """The synchronous handle of the same session."""
        return self._session

    def child(self, name: str) -> Self:
        """As ``Session.child``."""
        return type(self)(self._session.child(name))

    async def share(self, child: AsyncJoined | Joined, seq: int | None = None) -> Receipt:
        """As ``Session.share``, in a thread."""
        other = child.sync if isinstance(child, AsyncJoined) else child
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
