"""AsyncSharedState: the state of a user or an application, with await; and waiting for changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from memcore.aio.commit import commit_to
from memcore.limits import STATE_LOOK_SECONDS
from memcore.options import checked_optional_seconds
from memcore.state import SharedState, StateChange, StateChanges, Trace, Update, Watching

__all__ = ["AsyncSharedState", "wait_for", "watch"]

_now: Final = time.monotonic


async def wait_for(
    watching: Watching, since: int, timeout_seconds: float | None
) -> StateChanges | None:
    """As ``Watching.wait``; the loop goes on meanwhile."""
    checked_optional_seconds("timeout_seconds", timeout_seconds)
    until = None if timeout_seconds is None else _now() + timeout_seconds
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(woken.set)

    with watching.listening(wake) as look:
        while True:
            woken.clear()
            found = look(since)
            left = STATE_LOOK_SECONDS if until is None else until - _now()
            if found is not None or left <= 0:
                return found
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, STATE_LOOK_SECONDS)):
                    await woken.wait()


async def watch(watching: Watching, since: int) -> AsyncIterator[StateChanges]:
    """As ``Watching.run``."""
    while True:
        found = await wait_for(watching, since, None)
        if found is not None:
            since = found.counter
            yield found


class AsyncSharedState:
    """As ``SharedState``; ``counter`` needs no ``await``."""

    def __init__(self, sync: SharedState) -> None:
        self.sync = sync
        """The synchronous handle of the same state."""

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def counter(self) -> int:
        """As ``SharedState.counter``."""
        return self.sync.counter

    async def get(self, key: str, default: Any = None) -> Any:
        """As ``SharedState.get``."""
        return self.sync.get(key, default)

    async def all(self) -> dict[str, Any]:
        """As ``SharedState.all``."""
        return self.sync.all()

    async def put(self, key: str, value: Any, *, expected: int | None = None) -> int:
        """As ``SharedState.put``."""
        return await self.update({key: value}, expected=expected)

    async def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
    ) -> int:
        """As ``SharedState.update``."""
        change = self.sync.plan(expected)
        change.update(update, schema=schema, trace=trace)
        return await self._commit(change)

    async def delete(self, *fields: str, expected: int | None = None) -> int:
        """As ``SharedState.delete``."""
        change = self.sync.plan(expected)
        change.delete(fields)
        return await self._commit(change)

    async def replace(self, values: Mapping[str, Any], *, expected: int | None = None) -> int:
        """As ``SharedState.replace``."""
        change = self.sync.plan(expected)
        change.clear()
        change.update(values)
        return await self._commit(change)

    async def clear(self, *, expected: int | None = None) -> int:
        """As ``SharedState.clear``."""
        change = self.sync.plan(expected)
        change.clear()
        return await self._commit(change)

    async def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """As ``SharedState.wait``."""
        watching = self.sync.watching
        return await wait_for(watching, watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> AsyncIterator[StateChanges]:
        """As ``SharedState.watch``."""
        watching = self.sync.watching
        return watch(watching, watching.since(since))

    async def _commit(self, change: StateChange) -> int:
        counter = await commit_to(self.sync.store, self.sync.closure(change))
        change.tell()
        return counter
