"""The environments of this process: one a file, and all of them over a fork."""

from __future__ import annotations

import os
from threading import RLock
from typing import Final
from weakref import WeakSet

from memcore.store.environment import Environment

__all__ = ["environments", "opening"]

_FORK_PATIENCE_SECONDS: Final = 5.0


class _OpeningLock:
    """Opening and closing, one at a time. A fork needs a new one: its owner may be gone."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, patience_seconds: float) -> bool:
        return self._lock.acquire(timeout=patience_seconds)

    def release(self) -> None:
        self._lock.release()


environments: WeakSet[Environment] = WeakSet()
opening = _OpeningLock()
_fork: list[bool] = []
"""Whether the fork under way has ``opening``."""


def _before_fork() -> None:
    _fork.append(opening.acquire(_FORK_PATIENCE_SECONDS))
    for env in list(environments):
        env.fork.quiesce(_FORK_PATIENCE_SECONDS)


def _after_fork_in_parent() -> None:
    for env in list(environments):
        env.fork.resume()
    if _fork.pop():
        opening.release()


def _after_fork_in_child() -> None:
    opening.renew()
    _fork.clear()
    for env in list(environments):
        env.fork.forget()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
