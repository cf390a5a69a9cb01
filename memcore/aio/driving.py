"""Committing steps from a loop: the store's writer thread does it, the loop goes on."""

from __future__ import annotations

from typing import TypeVar

from memcore.aio.commit import commit_to
from memcore.checkpoint.steps import Stale, Steps
from memcore.store.base import Store

__all__ = ["drive"]

T = TypeVar("T")


async def drive(store: Store, steps: Steps[T], *, makes_room: bool = False) -> T:
    """Commit one closure after the other; what the generator returns."""
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
