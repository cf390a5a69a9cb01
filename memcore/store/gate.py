"""The gate that remapping and closing shut while this process's reads end."""

from __future__ import annotations

from _thread import LockType, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from memcore.store.txn import Snapshot

__all__ = ["Gate"]

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.05
"""A reader that an interrupt kept from ringing is noticed after this time."""


class Gate:
    """Reads under way, by thread, and whether new ones may begin.

    A reader enters itself into ``live`` and then looks at ``is_shut``; who shuts the gate sets
    ``is_shut`` and then looks at ``live``. So one of the two sees the other, and a read costs no
    lock.

    An interrupt may be raised where a Python function begins, where a C function has returned, and
    where a loop jumps back. So whoever is in ``live`` is taken out by ``live.pop`` itself, in a
    ``finally`` where nothing comes before it that could be interrupted: the first line of a
    method that does it, or of an ``__exit__``, could be. ``is_shut`` is set back in the same way,
    and who waits does so on a lock of its own: one that is shared could stay locked.
    """

    __slots__ = ("_waiting", "is_shut", "live")

    def __init__(self) -> None:
        self.live: dict[int, Snapshot] = {}
        self.reset()

    def reset(self) -> None:
        """Open, with nobody inside: in the child of a fork the readers are the parent's."""
        for snapshot in list(self.live.values()):
            snapshot.drop()
        self.live.clear()
        self.is_shut = False
        self._waiting: deque[LockType] = deque()

    def enter(self, me: int, snapshot: Snapshot) -> None:
        """Wait until the gate is open; ``snapshot`` is in ``live`` then.

        The caller pops it, however this ends.
        """
        self.live[me] = snapshot
        while self.is_shut:
            self.live.pop(me, None)
            self.ring()
            bell = self._bell()
            if self.is_shut:
                bell.acquire(True, _LOOK_SECONDS)
            self.live[me] = snapshot

    def _bell(self) -> LockType:
        """A lock that the next ``ring`` lets go of."""
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell)
        return bell

    def ring(self) -> None:
        """Let those who wait look again; an interrupt costs them the time until they do so."""
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def shut(self, patience_seconds: float | None = None) -> bool:
        """No read begins; returns when those of other threads have ended, or False if patience has.

        ``live`` may hold threads after that: they look at the gate and wait.
        """
        waited = 0.0
        self.is_shut = True
        while self._is_read_elsewhere():
            if patience_seconds is not None and waited >= patience_seconds:
                return False
            bell = self._bell()
            if self._is_read_elsewhere() and not bell.acquire(True, _LOOK_SECONDS):
                waited += _LOOK_SECONDS
        return True

    def _is_read_elsewhere(self) -> bool:
        me = get_ident()
        return any(thread != me for thread in list(self.live))

    def open(self) -> None:
        """Reads may begin again."""
        self.is_shut = False
        self.ring()

    def closed(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while no read of this process is under way. Needs the lead of the queue."""
        try:
            self.shut()
            return fn()
        finally:
            self.is_shut = False
            self.ring()
