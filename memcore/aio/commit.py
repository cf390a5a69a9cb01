"""Commits from an event loop, run by the writer thread without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

from memcore.session import Session
from memcore.session.change import Change
from memcore.session.session import store_of
from memcore.store.interface import Stale, Steps, Store, Txn

__all__ = [
    "BYTES_CHUNKS",
    "CommitFuture",
    "commit",
    "commit_to",
    "drive",
    "in_pages",
    "settled",
]


# --- Committing from a loop through the store's writer thread -------------------------------------

T = TypeVar("T")
BYTES_CHUNKS: Final = 16  # of an export or a blob, read at a time


class CommitFuture(asyncio.Future[T]):
    """A future that cannot be cancelled; cancelling its awaiter takes effect once it is done."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - signature required by asyncio
        """Refuse, so that the change is either stored or rejected, never in doubt."""
        return False


async def commit(session: Session, change: Change[T], *, large: bool = False) -> T:
    """Commit a change to the session's store; see ``commit_to``."""
    makes_room = change.makes_room
    return await commit_to(store_of(session), change, makes_room=makes_room, large=large)


async def commit_to(
    store: Store,
    closure: Callable[[Txn], T],
    *,
    makes_room: bool = False,
    large: bool = False,
) -> T:
    """Commit a closure and return its result. If cancelled, it first waits for the outcome.

    Args:
        store: the store to commit to.
        closure: as for ``Store.transact``.
        makes_room: as for ``Store.transact``.
        large: True if the closure computes for more than a millisecond.
    """
    loop = asyncio.get_running_loop()
    outcome: CommitFuture[T] = CommitFuture(loop=loop)
    store.submit(closure, loop, makes_room=makes_room, large=large, future=outcome)
    try:
        return await outcome
    finally:
        del outcome  # its exception refers to this frame: break the cycle


async def settled(future: asyncio.Future[T]) -> T:
    """The outcome of a submitted change.

    If cancelled, it still waits for the outcome, so that the change is either stored or rejected,
    never in doubt.
    """
    if future.done():
        return future.result()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # mark a rejection as retrieved: its caller was cancelled
        raise


# --- Committing a sequence of steps from a loop through the store's writer thread -----------------


async def in_pages(rows: Iterable[T], count: int, *, in_thread: bool) -> AsyncIterator[T]:
    """Yield rows, which are read ``count`` at a time: in a thread, or between turns of the loop."""
    left = iter(rows)
    if not in_thread:
        for at, row in enumerate(left, 1):
            yield row
            if at % count == 0:
                await asyncio.sleep(0)
        return
    while page := await asyncio.to_thread(lambda: list(islice(left, count))):
        for row in page:
            yield row


async def drive(store: Store, steps: Steps[T], *, makes_room: bool = False) -> T:
    """Commit the generator's closures one after another; return its return value."""
    try:
        closure = next(steps)
        while True:
            try:
                result = await commit_to(store, closure, makes_room=makes_room, large=makes_room)
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                closure = steps.send(result)
    except StopIteration as exc:
        return exc.value  # type: ignore[no-any-return]
