"""The gate that remapping and closing shut while this process's reads end."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Final

from memcore.store.txn import Snapshot

__all__ = ["Gate"]

_LOOK_SECONDS: Final = 0.05
"""A reader that an interrupt kept from ringing is noticed after this time."""


class Gate:
    """Reads under way, by thread, and whether new ones may begin.

    A reader enters itself into ``live`` and then looks at ``is_shut``; who shuts the gate sets
    ``is_shut`` and then looks at ``live``. So one of the two sees the other, and a read costs no
    lock.
    """

    __slots__ = ("_calm", "is_shut", "live")

    def __init__(self) -> None:
        self.live: dict[int, Snapshot] = {}
        self.reset()

    def reset(self) -> None:
        """Open, with nobody inside: in the child of a fork the readers are the parent's."""
        for snapshot in list(self.live.values()):
            snapshot.drop()
        self.live.clear()
        self.is_shut = False
        self._calm = Condition()

    def enter(self, me: int, snapshot: Snapshot) -> None:
        """Wait until the gate is open; ``snapshot`` is in ``live`` then."""
        self.live[me] = snapshot
        while self.is_shut:
            self.live.pop(me, None)
            with self._calm:
                self._calm.notify_all()
                while self.is_shut:
                    self._calm.wait(_LOOK_SECONDS)
            self.live[me] = snapshot

    def leave(self, me: int) -> None:
        """The read of thread ``me`` has ended."""
        self.live.pop(me, None)
        if self.is_shut:
            self.ring()

    def ring(self) -> None:
        """Let those who wait look again."""
        with self._calm:
            self._calm.notify_all()

    def shut(self, patience_seconds: float | None = None) -> bool:
        """No read begins; returns when those of other threads have ended, or False if patience has.

        ``live`` may hold threads after that: they look at the gate and wait.
        """
        me = get_ident()
        waited = 0.0
        self.is_shut = True
        with self._calm:
            while any(thread != me for thread in list(self.live)):
                if patience_seconds is not None and waited >= patience_seconds:
                    return False
                self._calm.wait(_LOOK_SECONDS)
                waited += _LOOK_SECONDS
        return True

    def open(self) -> None:
        """Reads may begin again."""
        self.is_shut = False
        self.ring()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """No read of this process is under way. Needs the lead of the commit queue."""
        try:
            self.shut()
            yield
        finally:
            self.open()
