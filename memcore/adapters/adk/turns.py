"""Who appends with the same Session object waits for its turn: it shows what came before it."""

from __future__ import annotations

import asyncio
from collections import deque
from threading import RLock

__all__ = ["Turns"]


class Turns:
    """At most one holder an object, whatever thread or loop it is in; first come, first served.

    The holder keeps the object alive, so its id stands for it.
    """

    __slots__ = ("_lock", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Waiter]] = {}
        """For every object that is held who waits for it."""
        self._lock = RLock()
        """Reentrant: a task that is destroyed while it waits leaves from wherever that happens."""

    def try_take(self, key: int) -> bool:
        """Hold it if nobody does; whether it is held now."""
        mine: deque[_Waiter] = deque()
        return self._waiting.setdefault(key, mine) is mine

    async def take(self, key: int) -> None:
        """Wait until all who came before are done with it, and hold it."""
        waiter = _Waiter()
        with self._lock:
            if self.try_take(key):
                return
            self._waiting[key].append(waiter)
        try:
            await waiter.woken
        except BaseException:
            self._leave(key, waiter)
            raise

    def give(self, key: int) -> None:
        """Let the next one have it."""
        with self._lock:
            waiting = self._waiting[key]
            while waiting:
                if waiting.popleft().wake():
                    return
            del self._waiting[key]

    def _leave(self, key: int, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.has_turn:
                waiter.has_turn = False
                self.give(key)
            elif waiter in (waiting := self._waiting.get(key) or deque()):
                waiting.remove(waiter)  # if not, its loop was closed before its turn


class _Waiter:
    """A task that waits, in the loop that it is made in."""

    __slots__ = ("_loop", "has_turn", "woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] = self._loop.create_future()
        self.has_turn = False

    def wake(self) -> bool:
        """Give it the turn; False if its loop is closed."""
        self.has_turn = True
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            self.has_turn = False
        return self.has_turn

    def _settle(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)
