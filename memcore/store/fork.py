"""An environment over a fork of its process.

LMDB's environment must not be used in the child, and the child cannot open its own while that one
lives. Giving it up in the child clears the reader slots of the parent, so the parent shall have
none at that moment: no read under way, none kept spare, no pin.
"""

from __future__ import annotations

import os
from _thread import get_ident
from threading import RLock
from typing import TYPE_CHECKING, Any

from memcore.store import lmdb as binding
from memcore.store.call import Call

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["Fork"]

_leaked: list[Any] = []
"""Environments of a parent that was in the middle of something: giving them up would harm it."""


class Fork:
    """What one environment does before a fork and after it, in the parent and in the child."""

    __slots__ = ("_claimed", "_env", "_quiet", "reopening")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._claimed: Call | None = None
        self._quiet = False
        self.reopening = RLock()

    def quiesce(self, patience_seconds: float) -> None:
        """Before: let transactions of other threads end, for a while."""
        env = self._env
        self._claimed = env.queue.claim(patience_seconds)
        ended = env.gate.shut(patience_seconds) and get_ident() not in env.gate.live
        if env.raw is not None and self._claimed is not None and ended:
            env.unpin()
            binding.set_map(env.raw, env.raw.info()["map_size"])  # ends the spare transaction
            self._quiet = True

    def resume(self) -> None:
        """After, in the parent."""
        self._quiet = False
        self._env.gate.open()
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._env.queue.release(claimed)

    def forget(self) -> None:
        """After, in the child: let go of all that belongs to the parent; reopen at the next use.

        The descriptor is closed: the parent's flock lives on in the parent's own descriptor.
        """
        env = self._env
        pinned = None if env.pin is None else env.pin.forget()
        if self._quiet and env.raw is not None:
            env.raw.close()  # a frame of a thread that is no more may hold it for ever
        elif env.raw is not None:
            _leaked.append((env.raw, pinned))
        env.gate.reset()
        env.bell.forget()
        env.leader.forget()
        if not env.is_closed:
            env.open_at_next_use()
        env.raw = env.pin = None
        fd, env.fd = env.fd, -1
        if fd >= 0:
            os.close(fd)
        self._claimed = None
        self._quiet = False
        self.reopening = RLock()
        env.queue.reset()
