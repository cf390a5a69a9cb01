"""How outcomes get to those who wait for them: threads by their locks, futures over their loops."""

from __future__ import annotations

import asyncio
from _thread import LockType
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from memcore.errors import InternalError
from memcore.store.call import LEAD, Call

__all__ = ["deliver", "follow", "release", "run_callbacks", "wake"]

_LOOK_SECONDS: Final = 0.5


def follow(call: Call) -> None:
    """Sleep until the call is done or has the lead."""
    waiter = call.waiter
    if waiter is not None:
        while call.state < LEAD:
            waiter.acquire(True, _LOOK_SECONDS)


def release(lock: LockType | None) -> None:
    """Let go of a lock that may have been let go of before."""
    if lock is not None:
        with suppress(RuntimeError):  # released already: an interrupt made this run again
            lock.release()


def wake(final: Iterable[Call], own: Call | None) -> None:
    """Wake the threads of the batch but the own one; one ``call_soon_threadsafe`` a loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in final:
        if call is own:
            continue
        if call.future is not None:
            loops.setdefault(call.future.get_loop(), []).append(call)
        else:
            release(call.waiter)
    for loop, calls in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody awaits these
            loop.call_soon_threadsafe(deliver, calls)


def deliver(calls: Iterable[Call]) -> None:
    """Settle the futures of calls that are done; on their loop's own thread."""
    for call in calls:
        future = call.future
        if future is None or future.done():
            continue
        error = call.error
        if error is None:
            future.set_result(call.result)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            wrapped = InternalError("a transaction raised StopIteration")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
        else:
            future.set_exception(error)
        call.error = call.future = None  # the traceback holds frames, and these the call


def run_callbacks(callbacks: deque[tuple[Any, Any]]) -> None:
    """Run each in order; a failure is its caller's matter, an interrupted one runs again."""
    while callbacks:
        owner, callback = callbacks[0]
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - it is its caller's
            owner.error = InternalError(
                f"the transaction is stored, but what was to follow it failed: {error!r}"
            )
            owner.error.__cause__ = error
        callbacks.popleft()
