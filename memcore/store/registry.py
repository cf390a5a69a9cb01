"""The environments of this process: one a file, and all of them over a fork."""

from __future__ import annotations

import os
from threading import RLock
from typing import Final
from weakref import WeakSet

from memcore.store.environment import Environment

__all__ = ["environments", "opening"]

_FORK_PATIENCE_SECONDS: Final = 5.0


class _Opening:
    """Opening and closing, one at a time: ``with opening.lock``.

    The lock itself is entered, not a method of this: an interrupt at the first line of an
    ``__exit__`` would leave it locked. A fork needs a new one: its owner may be gone.
    """

    def __init__(self) -> None:
        self.lock = RLock()


environments: WeakSet[Environment] = WeakSet()
opening = _Opening()
_fork: list[bool] = []
"""Whether the fork under way has ``opening``."""


def _before_fork() -> None:
    _fork.append(opening.lock.acquire(timeout=_FORK_PATIENCE_SECONDS))
    for env in list(environments):
        env.fork.quiesce(_FORK_PATIENCE_SECONDS)


def _after_fork_in_parent() -> None:
    for env in list(environments):
        env.fork.resume()
    if _fork.pop():
        opening.lock.release()


def _after_fork_in_child() -> None:
    opening.lock = RLock()
    _fork.clear()
    for env in list(environments):
        env.fork.forget()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
