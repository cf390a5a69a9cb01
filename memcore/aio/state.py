"""Asynchronous state: the fields of a session and those that sessions share."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from memcore.aio.commit import commit, commit_to
from memcore.limits import STATE_LOOK_SECONDS
from memcore.options import checked_optional_seconds, refuse_copies
from memcore.session import Session, SessionState
from memcore.session.session import ref_of
from memcore.session.state import UpdateState
from memcore.state import (
    ScopedChange,
    SharedState,
    StateChange,
    StateChanges,
    StateSchema,
    Trace,
    Update,
    Watching,
)
from memcore.state.handle import store_of
from memcore.state.schema import asked
from memcore.telemetry import adopt

__all__ = [
    "AsyncFields",
    "AsyncSessionState",
    "AsyncSharedState",
]


# --- AsyncFields: what every handle of a state offers, with await; and waiting for changes --------

C = TypeVar("C")

_now: Final = time.monotonic


async def wait_for(
    watching: Watching, since: int, timeout_seconds: float | None
) -> StateChanges | None:
    """As ``Watching.wait``; the loop goes on meanwhile."""
    checked_optional_seconds("timeout_seconds", timeout_seconds, may_be_0=True)  # 0 looks once
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


class AsyncFields(ABC, Generic[C]):
    """As ``Fields``; ``counter`` needs no ``await``."""

    __reduce__ = refuse_copies

    sync: Any
    """The synchronous handle of the same state."""

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    @property
    def counter(self) -> int:
        """The number of the last change; what ``expected`` is compared with."""
        return self.sync.counter  # type: ignore[no-any-return]

    async def get(self, key: str, default: Any = None) -> Any:
        """As ``Fields.get``."""
        return self.sync.get(key, default)

    async def put(
        self,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """As ``Fields.put``."""
        return await self.update({key: value}, expected=expected, idempotency_key=idempotency_key)

    async def update(
        self,
        update: Update | Iterable[Update],
        *,
        schema: Any = None,
        expected: int | None = None,
        trace: Trace | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """As ``Fields.update``."""
        change = self.sync.plan(expected)
        change.update(update, schema=schema, trace=trace)
        change.request = asked(idempotency_key, update)
        return await self._commit(change)

    async def delete(self, *fields: str, expected: int | None = None) -> int:
        """As ``Fields.delete``."""
        change = self.sync.plan(expected)
        change.delete(fields)
        return await self._commit(change)

    async def replace(self, values: Mapping[str, Any], *, expected: int | None = None) -> int:
        """As ``Fields.replace``."""
        change = self.sync.plan(expected)
        change.clear()
        change.update(values)
        return await self._commit(change)

    async def clear(self, *, expected: int | None = None) -> int:
        """As ``Fields.clear``."""
        change = self.sync.plan(expected)
        change.clear()
        return await self._commit(change)

    async def wait(
        self, *, since: int | None = None, timeout_seconds: float | None = None
    ) -> StateChanges | None:
        """As ``Fields.wait``."""
        watching = self.sync.watching
        return await wait_for(watching, watching.since(since), timeout_seconds)

    def watch(self, *, since: int | None = None) -> AsyncIterator[StateChanges]:
        """As ``Fields.watch``."""
        watching = self.sync.watching
        return watch(watching, watching.since(since))

    @abstractmethod
    async def _commit(self, change: C) -> int: ...


# --- AsyncSessionState and AsyncSharedState: states with await, read where they are called --------


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
            counter = await commit(self._session, UpdateState(ref_of(self._session), change))
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
