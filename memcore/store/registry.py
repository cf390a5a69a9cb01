"""The environments of this process: one a file, all of them over a fork, and the end of each.

The last handle of an environment closes it. A handle that nobody closed gives its environment up
when it is forgotten: maybe by the garbage collector, on any thread, with any lock held. So it waits
for nothing then: a thread that lives as long as there is something to close does the rest. Whoever
opens a store closes what is unused first, so that no loop opens faster than that thread closes.
"""

from __future__ import annotations

import logging
import os
from _thread import allocate_lock, start_new_thread
from collections import deque
from threading import RLock
from typing import Final
from weakref import WeakSet

from memcore.store.environment import Environment

__all__ = ["close_if_unused", "close_unused", "drop", "end", "environments", "opening"]

_log = logging.getLogger("memcore.store")

_FORK_PATIENCE_SECONDS: Final = 5.0


class _Opening:
    """Opening and closing, one at a time: ``with opening.lock``.

    The lock itself is entered, not a method of this: an interrupt at the first line of an
    ``__exit__`` would leave it locked. A fork needs a new one: its owner may be gone.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nobody opens or closes anything: in the child of a fork who did is gone."""
        self.lock = RLock()
        self.closer = allocate_lock()
        """Held while there is a thread that closes what was dropped."""


environments: WeakSet[Environment] = WeakSet()
opening = _Opening()
_dropped: deque[Environment] = deque()
"""Those whose last handle was forgotten; nothing else may keep them until they are closed."""
_fork: list[bool] = []
"""Whether the fork under way has ``opening``."""


def end(env: Environment) -> None:
    """Close what has no handles any more, and forget it."""
    try:
        env.shut()
    finally:
        environments.discard(env)


def close_if_unused(env: Environment) -> None:
    """Close an environment if it has no handles any more."""
    with opening.lock:
        if env.handles:
            return
        env.closing = True
    # Not under the lock: what is waited for may itself open a store.
    end(env)


def drop(env: Environment, handle: int) -> None:
    """A handle was forgotten, which nobody closed: waits for nothing and takes no lock."""
    env.handles.discard(handle)
    if env.handles:
        return
    env.dropped = True
    _dropped.append(env)
    if opening.closer.acquire(False):
        try:
            start_new_thread(_close_dropped, ())
        except RuntimeError:  # no threads here: the next opening does it
            opening.closer.release()


def close_unused(*, patient: bool = False) -> None:
    """Close what forgotten handles left open; ``patient``: wait for what others are closing."""
    for env in list(environments):
        if not env.handles and (patient or not env.closing) and not env.queue.led_here:
            _close_for_nobody(env)


def _close_dropped() -> None:
    while True:
        try:
            while _dropped:
                _close_for_nobody(_dropped[0])
                _dropped.popleft()
        finally:
            opening.closer.release()
        if not (_dropped and opening.closer.acquire(False)):
            return


def _close_for_nobody(env: Environment) -> None:
    try:
        close_if_unused(env)
    except Exception as error:  # noqa: BLE001 - whoever dropped it is not here to be told
        _log.error("a store that nobody closed did not close well: %s", error)


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
    opening.reset()
    _fork.clear()
    for env in list(environments):
        env.fork.forget()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
