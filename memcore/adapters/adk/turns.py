"""Who appends with the same Session object waits for its turn: it shows what came before it."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from threading import RLock
from typing import TYPE_CHECKING, Final

from google.adk.sessions.session import Session

if TYPE_CHECKING:
    from memcore.adapters.adk.storing import Storing

__all__ = ["Turn", "Turns"]

_LOOK_SECONDS: Final = 0.1
"""How often a waiter looks whether the holder's loop was closed: nothing tells of that."""


class Turn:
    """One holder of an object, or one that waits for it, in the loop that it is made in."""

    __slots__ = ("_loop", "inherited", "left", "storing", "waiting", "woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] | None = None
        self.waiting: deque[Turn] = deque()
        """Who waits for the holder."""
        self.left: weakref.ref[Session] | None = None
        """The object, if the holder was destroyed before it learned what became of its event."""
        self.storing: Storing | None = None
        """The holder's event while the object does not show its outcome yet."""
        self.inherited: Storing | None = None
        """As ``storing``, of a holder before it that never runs again."""

    @property
    def is_dead(self) -> bool:
        """Whether its holder never runs again."""
        return self.left is not None or self._loop.is_closed()

    def wake(self) -> bool:
        """Give it the turn; False if its loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return False
        return True

    def _settle(self) -> None:
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


class Turns:
    """At most one holder an object, whatever thread or loop it is in; first come, first served.

    The holder keeps the object alive, so its id stands for it. A holder whose loop was closed never
    gives its turn: the next one takes it, with the event that the holder was about to store.
    """

    __slots__ = ("_held", "_lock")

    def __init__(self) -> None:
        self._held: dict[int, Turn] = {}
        """The holder of every object that is held."""
        self._lock = RLock()
        """Reentrant: a task that is destroyed while it waits leaves from wherever that happens."""

    def try_take(self, session: Session) -> Turn | None:
        """The turn if nobody has it."""
        mine = Turn()
        return mine if self._held.setdefault(id(session), mine) is mine else None

    async def take(self, session: Session) -> Turn:
        """Wait until all who came before are done with the object, and hold it."""
        mine = Turn()
        mine.woken = asyncio.get_running_loop().create_future()
        with self._lock:
            holder = self._held.setdefault(id(session), mine)
            if holder is mine:
                return mine
            holder.waiting.append(mine)
            self._take_over(session)
        try:
            while not (await asyncio.wait((mine.woken,), timeout=_LOOK_SECONDS))[0]:
                self._take_over(session)
        except BaseException:
            self._withdraw(session, mine)
            raise
        return mine

    def give(self, session: Session, turn: Turn) -> None:
        """Let the next one have it; a turn that was left or taken over is nobody's to give."""
        with self._lock:
            if self._held.get(id(session)) is turn and turn.left is None:
                self._pass_on(session, turn)

    def leave(self, session: Session, turn: Turn) -> None:
        """As ``give``, by a holder that is destroyed before its event was decided.

        It may be destroyed wherever garbage is collected, so nothing is read or awaited here.
        """
        with self._lock:
            if self._held.get(id(session)) is turn:
                self._pass_on(session, turn)

    def _take_over(self, session: Session) -> None:
        """Pass on the turn of a holder that never runs again."""
        with self._lock:
            holder = self._held.get(id(session))
            if holder is not None and holder.is_dead:
                self._pass_on(session, holder)

    def _pass_on(self, session: Session, holder: Turn) -> None:
        """Under the lock: wake the next one that can run, with what the holder leaves to it."""
        key = id(session)
        unshown = holder.inherited or holder.storing
        while holder.waiting:
            heir = holder.waiting.popleft()
            heir.waiting, heir.inherited = holder.waiting, unshown
            self._held[key] = holder = heir
            if heir.wake():
                return
        if unshown is None:
            del self._held[key]
            return
        # Nobody waits: who comes next shows the event first. The entry goes with the object.
        holder.inherited = unshown
        holder.left = weakref.ref(session, lambda _: self._held.pop(key, None))

    def _withdraw(self, session: Session, mine: Turn) -> None:
        """A waiter gives up."""
        with self._lock:
            holder = self._held.get(id(session))
            if holder is mine:
                self._pass_on(session, mine)
            elif holder is not None and mine in holder.waiting:
                holder.waiting.remove(mine)  # if not, its loop was closed before its turn
