"""Work that takes several commits, for callers that wait in a thread and callers in a loop.

A generator yields closures; whoever drives it commits each and sends its result back in. A closure
that finds the store other than it was prepared for raises Stale, which is thrown into the
generator: it prepares anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from memcore.store.base import Store, Txn

__all__ = ["Closure", "Orphaned", "Stale", "Steps", "take"]

T = TypeVar("T")
Closure = Callable[[Txn], Any]
Steps = Generator[Closure, Any, T]


class Stale(Exception):  # noqa: N818 - never leaves this package
    """What was prepared does not fit the store any more: prepare it again."""


class Orphaned(Stale):
    """The parent of a checkpoint was pruned, and values that it held may have gone with it."""


def take(store: Store, steps: Steps[T], *, makes_room: bool = False) -> T:
    """Commit one closure after the other; what the generator returns."""
    try:
        closure = next(steps)
        while True:
            try:
                result = store.transact(closure, makes_room=makes_room)
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                closure = steps.send(result)
    except StopIteration as exc:
        return exc.value  # type: ignore[no-any-return]
