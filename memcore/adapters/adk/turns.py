"""Who appends with the same Session object waits for its turn: it shows what came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Turns"]


class Turns:
    """At most one holder an object, whatever thread or loop it is in; first come, first served.

    The holder keeps the object alive, so its id stands for it.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callable[[], object]]] = {}
        """For every object that is held what wakes those who wait."""

    def try_take(self, key: int) -> bool:
        """Hold it if nobody does; whether it is held now."""
        mine: list[Callable[[], object]] = []
        return self._waiting.setdefault(key, mine) is mine

    async def take(self, key: int) -> None:
        """Wait until nobody holds it, and hold it."""
        mine: list[Callable[[], object]] = []
        while (held := self._waiting.setdefault(key, mine)) is not mine:
            loop = asyncio.get_running_loop()
            woken = loop.create_future()
            held.append(lambda loop=loop, woken=woken: _wake(loop, woken))  # type: ignore[misc]
            if self._waiting.get(key) is held:
                await woken

    def give(self, key: int) -> None:
        """Let the next one have it."""
        for wake in self._waiting.pop(key):
            wake()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, woken)


def _settle(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
