"""Committing from a loop: the store's writer thread does it, the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from memcore.session import Session
from memcore.session.changes import Closure
from memcore.store.base import Store, Txn

__all__ = ["commit", "commit_to", "settled"]

T = TypeVar("T")


async def commit(session: Session, closure: Closure[T], *, makes_room: bool = False) -> T:
    """``commit_to`` the session's store."""
    return await commit_to(session.store, closure, makes_room=makes_room)


async def commit_to(store: Store, closure: Callable[[Txn], T], *, makes_room: bool = False) -> T:
    """What the closure returned, once it is stored; cancelled, it is ``settled`` all the same."""
    loop = asyncio.get_running_loop()
    return await settled(store.submit(closure, loop, makes_room=makes_room))


async def settled(future: asyncio.Future[T]) -> T:
    """The outcome of a change that was submitted.

    Cancelled, it waits for the outcome all the same: the change is stored or refused, never in
    doubt.
    """
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # it was refused: nobody is left to be told
        raise
