"""The steady points of an open ``"relaxed"`` file: made in time, never lost from under a commit.

A steady point is made in this order: pin the present snapshot with a reader, flush the file, write
the snapshot's record, flush again, let go of the pin before. So the pages of the newest record
that is on the device are always pinned by somebody who commits.

**Whoever commits holds a pin that is no newer than the newest durable record.** It is looked at
before every batch, so a pin may be dropped at any time: when the map is replaced, before a fork,
when only others write. The next batch then begins with a steady point of its own.

A thread makes a point when the interval has passed since the first commit that is not covered, or
when many commits wait; the leader makes it itself when far too many do. A pin keeps all pages that
were freed since from being used again, so this bounds what the file grows by.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from memcore.errors import ClosedError, InternalError, OutcomeUnknownError
from memcore.limits import STEADY_COMMITS_HURRY, STEADY_COMMITS_MAX
from memcore.store.base import MapMovedError
from memcore.store.call import WriterNeeded
from memcore.store.delivery import release
from memcore.store.file import META_IMAGE_BYTES, META_OFFSETS, txnid_of
from memcore.store.lmdb import MapResized, ReadersFull
from memcore.store.steady import SteadyLog, image_of

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["Pin"]

_IDLE_SECONDS: Final = 10.0
_TRIES: Final = 64


class Pin:
    """The pinned steady point of one environment, and the thread that moves it on."""

    __slots__ = (
        "_covered",
        "_ended",
        "_env",
        "_fd",
        "_hurry",
        "_log",
        "_made",
        "_mutex",
        "_owner",
        "_pinned",
        "_raw",
        "_thread",
        "_timing",
        "_wake",
        "interval_seconds",
        "is_busy",
        "points",
    )

    def __init__(self, env: Environment, log: SteadyLog, fd: int, interval_seconds: float) -> None:
        self._env = env
        self._log = log
        self._fd = fd
        self._mutex = Lock()
        self._owner = 0
        self._raw: Any = None
        self._pinned = 0
        self._made = 0
        self._covered = 0
        self._timing = False
        self._ended = False
        self.is_busy = False
        # Locks that whoever wakes the thread lets go of. An Event would not do: an interrupt in its
        # ``set`` may leave it locked for ever, for the thread and for every later commit.
        self._wake = allocate_lock()
        self._wake.acquire()
        self._hurry = allocate_lock()
        self._hurry.acquire()
        self._thread: Thread | None = None
        self.interval_seconds = interval_seconds
        self.points = 0

    @property
    def uncovered(self) -> int:
        """Commits of this process that a power cut could take back."""
        return self._made - self._covered

    @property
    def is_due(self) -> bool:
        """Whether a point has to be made before the file is closed."""
        return self._timing or self._made != self._covered

    # --- the leader --------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether a batch would need no point now, and no thread to make one later."""
        return (
            self._raw is not None
            and self._thread is not None
            and self._made - self._covered < STEADY_COMMITS_MAX
        )

    def ready(self, *, hurried: bool = False) -> None:
        """Before a batch begins its transaction. Needs the lead.

        Raises:
            MapMovedError: another process grew the map; follow it and ask again.
            WriterNeeded: ``hurried``, and a point is due.
        """
        self.is_busy = True  # from here on the thread keeps the pin
        if self._raw is None or self._made - self._covered >= STEADY_COMMITS_MAX:
            if hurried:
                raise WriterNeeded
            self.point()

    def committed(self) -> None:
        """After each commit, with the lead."""
        self._made += 1
        if not self._timing or self._thread is None:
            self.remind()
        elif self._made - self._covered == STEADY_COMMITS_HURRY:
            release(self._hurry)

    def remind(self) -> None:
        """There is something to make durable: the interval begins."""
        self._timing = True
        if self._thread is None:
            self._start()
        release(self._wake)

    # --- the point ---------------------------------------------------------------------------

    def point(self) -> None:
        """Make everything that was committed before this call survive a power cut.

        No local name holds LMDB's environment: whoever keeps an error keeps its frames, and a fork
        could not give the environment up.

        Raises:
            MapMovedError: another process grew the map; follow it and ask again.
            OutcomeUnknownError: the flush failed; the store is poisoned.
        """
        if self._owner == get_ident():
            raise InternalError("a flush was asked for inside a flush on the same thread")
        with self._mutex:
            try:
                self._owner = get_ident()
                self._log.locked(self._make_soundly)
            finally:
                self._owner = 0
        # The pin of a killed process holds back every page that was freed since.
        self._env.mapped().reader_check()

    def _make_soundly(self) -> None:
        try:
            self._env.leader.need_sound()  # a record must not name what a flush has dropped
            self._make()
        except OSError as error:
            # The next flush would claim success for pages that were dropped.
            self._env.leader.poison_for(error)
            raise OutcomeUnknownError(self._env.leader.poison) from error
        except BaseException:
            self._timing = True  # what is not covered is still due
            raise

    def _make(self) -> None:
        self._timing = False  # a commit from here on asks for the next point
        made = self._made
        last = self._log.newest()
        pin, image = self._begin()
        try:
            txnid = pin.id()
            os.fdatasync(self._fd)  # the snapshot, and the record before
            if last is None or last.txnid != txnid or last.boot != self._log.boot:
                self._log.write(image, last)
                os.fdatasync(self._fd)
            pin, self._raw = self._raw, pin
            self._pinned = txnid
            self._covered = made
            self.points += 1
        finally:
            if pin is not None:
                pin.abort()
                pin = None

    def _begin(self) -> tuple[Any, bytes]:
        """A reader of the present snapshot, and that snapshot's meta image."""
        tries = 0
        while True:
            try:
                pin = self._env.mapped().begin()
                try:
                    image = image_of(self._fd, pin.id())
                except BaseException:
                    pin.abort()
                    raise
                if image is not None:
                    return pin, image
                pin.abort()  # others committed meanwhile: there is a newer one
                tries += 1
                if not tries % _TRIES:
                    # A writer that was killed between its meta page and LMDB's lock table hides its
                    # commit from readers until the next one takes the lock.
                    self._env.mapped().begin(write=True).abort()
            except MapResized as error:
                raise MapMovedError from error
            except ReadersFull:
                if not self._env.mapped().reader_check():
                    raise

    def let_go(self) -> None:
        """Drop the pin: the map is about to be replaced, or the process to fork."""
        with self._mutex:
            raw, self._raw = self._raw, None
            if raw is not None:
                raw.abort()

    def end(self) -> None:
        """The environment closes: no thread, no pin. Nobody is inside a point."""
        self._ended = True
        self.let_go()
        release(self._hurry)
        release(self._wake)

    def forget(self) -> Any:
        """In the child of a fork: the parent's reader, which must not be given up here."""
        raw, self._raw = self._raw, None
        self._ended = True
        return raw

    # --- the thread --------------------------------------------------------------------------

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = Thread(target=self._run, name="memcore-steady", daemon=True)
                with suppress(RuntimeError):  # no threads here: the next commit asks again
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        idle = 0.0
        while not self._ended:
            if self._wake.acquire(True, self.interval_seconds):
                self._hurry.acquire(False)  # a hurry of before
                if self.uncovered < STEADY_COMMITS_HURRY and not self._ended:
                    self._hurry.acquire(True, self.interval_seconds)
            try:
                if self._timing:
                    idle = 0.0
                    self._env.steady()
                    continue
                idle += self.interval_seconds
                self._look_around(idle)
            except ClosedError:
                return
            except Exception as error:  # noqa: BLE001 - told to whoever writes next
                if isinstance(error.__cause__, ReadersFull):
                    continue  # again at the next interval; the pin before holds
                if not (self._ended or self._env.leader.poison):
                    self._env.leader.poison_for(error)
                return
            if self._raw is None and self._may_rest():
                return

    def _look_around(self, idle_seconds: float) -> None:
        """Nothing of ours is due: do others need the pages that the pin holds, or a point?"""
        overtaken, covered = self._env.hold(partial(self._stand, idle_seconds))
        if overtaken and (self.is_busy or not covered):
            # A leader waits for others, whose pages we hold back; or somebody was killed.
            self._env.steady()

    def _stand(self, idle_seconds: float, _: Any) -> tuple[bool, bool]:
        overtaken, covered = self._standing()
        if idle_seconds > _IDLE_SECONDS or (overtaken and covered):
            self._let_go_if_idle()
        return overtaken, covered

    def _let_go_if_idle(self) -> None:
        # A batch that begins meanwhile sees no pin and waits for the mutex, or is seen here.
        with self._mutex:
            raw, self._raw = self._raw, None
            if self.is_busy or self.uncovered:
                self._raw = raw
            elif raw is not None:
                raw.abort()

    def _may_rest(self) -> bool:
        """Whether this thread ends. A commit that sees none starts one; else its wish shows."""
        with self._mutex:
            me, self._thread = self._thread, None
            if self._timing:
                self._thread = me
            return self._thread is None

    def _standing(self) -> tuple[bool, bool]:
        """Whether others have committed since the pin, and whether a record covers all that is."""
        if self._raw is None:
            return False, True
        metas = (os.pread(self._fd, META_IMAGE_BYTES, offset) for offset in META_OFFSETS)
        newest = max(map(txnid_of, metas))
        last = self._log.newest()
        return newest != self._pinned, last is not None and last.txnid == newest
