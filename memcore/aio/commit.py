"""Committing from a loop: the store's writer thread does it, the loop goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

from memcore.session import Session
from memcore.session.changes import Closure

__all__ = ["commit", "settled"]

T = TypeVar("T")


async def commit(session: Session, closure: Closure[T], *, makes_room: bool = False) -> T:
    """What the closure returned, once it is stored."""
    loop = asyncio.get_running_loop()
    return await settled(session.store.submit(closure, loop, makes_room=makes_room))


async def settled(future: asyncio.Future[T]) -> T:
    """The outcome of a submitted change.

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
