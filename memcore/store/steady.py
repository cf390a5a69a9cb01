"""Steady points of a ``"relaxed"`` file: the thread that flushes it, and their records.

A steady point is the snapshot that the file returns to after a power cut.

Relaxed commits are not flushed, so after a power cut any page that was written since the last flush
may be old, new or torn, the meta pages included. What is whole is the last *steady point*: a
snapshot whose pages were all flushed, and which a reader has pinned since, so that no later commit
wrote over one of them. Its record lies in one of the two slots of the reserved run: the snapshot's
meta image, and the boot under which it was made. The slots take turns, and a record is flushed
before the next one is written, so one of them is always whole.

A killed process needs none of this: the page cache outlives it. Whether it outlived what happened
is told by the boot id: another one than the record's means that memory was lost since.
"""

from __future__ import annotations

import fcntl
import os
import time
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import UUID

from xxhash import xxh3_64_intdigest

from memcore._fast import SteadyFields
from memcore.errors import (
    ClosedError,
    CorruptStoreError,
    InternalError,
    OutcomeUnknownError,
    StorageError,
    StoreAccessError,
    StoreLockedError,
)
from memcore.limits import STEADY_COMMITS_HURRY, STEADY_COMMITS_MAX
from memcore.store.commit import WriterNeeded, release
from memcore.store.datafile import (
    META_IMAGE_BYTES,
    META_OFFSETS,
    PAGE_HEADER_BYTES,
    TXNID_AT,
    exclusively,
    meta_page,
    newest_meta,
    require_same,
    share,
    txnid_of,
)
from memcore.store.interface import MapMovedError
from memcore.store.lmdb import MapResized, ReadersFull
from memcore.store.redo_log import RedoArea

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = [
    "Steady",
    "SteadyLog",
    "SteadySync",
    "boot_id",
    "image_of",
    "settle",
]


# --- Steady records: the snapshot that a ``"relaxed"`` file goes back to when the power was cut ---

T = TypeVar("T")

_MAGIC: Final = b"memcore-steady1\x00"
_RECORD = Struct(f"<16sQ16s{META_IMAGE_BYTES}s")  # magic, number, boot, meta image
_CHECK = Struct("<Q")
_RECORD_BYTES: Final = _CHECK.size + _RECORD.size
_FLOCK = Struct("hhxxxxqqixxxx")  # struct flock of 64-bit Linux
_PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02


class Steady(NamedTuple):
    """Steady record: its slot, number and boot id, and the meta page image to roll back to."""

    slot: int
    number: int
    boot: bytes
    image: bytes

    @property
    def txnid(self) -> int:
        """The snapshot's number."""
        return txnid_of(self.image)


def image_of(fd: int, txnid: int) -> bytes | None:
    """The meta image of a snapshot that is, or just was, the newest; None if it may be torn.

    Image N is overwritten by commit N + 2, which begins when N + 1 shows in the other meta page.
    """
    image = os.pread(fd, META_IMAGE_BYTES, META_OFFSETS[txnid & 1])
    other = os.pread(fd, META_IMAGE_BYTES, META_OFFSETS[~txnid & 1])
    return image if txnid_of(image) == txnid and txnid_of(other) < txnid else None


def boot_id() -> bytes:
    """Return the kernel's boot id, 16 bytes: it changes whenever memory was lost.

    Raises:
        StoreAccessError: this system has none.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return UUID(file.read().strip()).bytes
    except (OSError, ValueError) as error:
        raise StoreAccessError(
            'durability="relaxed" needs /proc/sys/kernel/random/boot_id, which this system does'
            ' not have; use "full"'
        ) from error


class SteadyLog:
    """The steady records of one open file."""

    __slots__ = ("_fd", "_free", "_own", "_run", "_seed", "boot")

    def __init__(self, fd: int, run: RedoArea) -> None:
        self._fd = fd
        self._run = run
        self._seed = int.from_bytes(run.seed[:8], "little")
        self.boot = boot_id()
        self._own = _FLOCK.pack(fcntl.F_WRLCK, 0, run.slots[0], 1, 0)
        self._free = _FLOCK.pack(fcntl.F_UNLCK, 0, run.slots[0], 1, 0)

    def locked(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while no other process writes a record; a killed holder's lock is released.

        The lock belongs to the descriptor, and covers one byte of the data file: LMDB's own locks
        are on the lock file.
        """
        try:  # an interrupt may follow the call at once
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, self._own)
            return fn()
        finally:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, self._free)

    def newest(self) -> Steady | None:
        """The last record that is whole; None if none ever was.

        Raises:
            CorruptStoreError: both slots hold something, and neither holds a record.
        """
        found = []
        blank = 0
        for slot, offset in enumerate(self._run.slots):
            raw = os.pread(self._fd, _RECORD_BYTES, offset)
            blank += not any(raw)
            if len(raw) < _RECORD_BYTES:
                continue
            magic, number, boot, image = _RECORD.unpack_from(raw, _CHECK.size)
            check = xxh3_64_intdigest(raw[_CHECK.size :], self._seed)
            if magic == _MAGIC and check == _CHECK.unpack_from(raw)[0]:
                found.append(Steady(slot, number, boot, image))
        if not found and not blank:
            raise CorruptStoreError(
                "both steady records are damaged: salvage the file, or restore a backup"
            )
        return max(found, key=lambda record: record.number, default=None)

    def write(self, image: bytes, last: Steady | None) -> None:
        """Put a record into the slot that ``last`` does not hold. Under the lock, ``last`` flushed.

        It counts when the caller has flushed it.
        """
        slot, number = (0, 1) if last is None else (1 - last.slot, last.number + 1)
        rest = _RECORD.pack(_MAGIC, number, self.boot, image)
        record = _CHECK.pack(xxh3_64_intdigest(rest, self._seed)) + rest
        if os.pwrite(self._fd, record, self._run.slots[slot]) != len(record):
            raise OSError("short write into a steady slot")

    def roll_back(self, to: Steady) -> None:
        """Make ``to`` the newest snapshot of the file, and record it for this boot.

        Whoever does this is alone with the file. Cut short anywhere, it starts again from the same
        record. A file whose meta pages are older than its record is a compact copy that LMDB's own
        tools made of another one: it is whole, and the record means nothing in it.
        """
        metas = [os.pread(self._fd, META_IMAGE_BYTES, offset) for offset in META_OFFSETS]
        if max(map(txnid_of, metas)) >= to.txnid:
            for page, offset in enumerate(META_OFFSETS):
                # The other page gets the same tree under the number before: LMDB wants two.
                txnid = to.txnid - ((to.txnid ^ page) & 1)
                _, raw = meta_page(to.image[:TXNID_AT] + txnid.to_bytes(8, "little"))
                os.pwrite(self._fd, raw, offset - PAGE_HEADER_BYTES)
            os.fdatasync(self._fd)
            self.write(to.image, to)
        else:
            self._run.blank(self._fd)
        os.fdatasync(self._fd)


def settle(fd: int, run: RedoArea, path: str, *, read_only: bool) -> None:
    """Roll a relaxed file back to its steady point, before it is mapped, if memory was lost since.

    Raises:
        StorageError: that has to be done, and this handle may not write.
        StoreLockedError: another process holds the file and does not do it.
        CorruptStoreError: no steady record is whole.
    """
    log = SteadyLog(fd, run)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            image = newest_meta(fd, path).image  # before the record: commits come after it
            newest = log.newest()
            if newest is None or newest.boot == log.boot or newest.image == image:
                return  # the last: closed in good order; the first commit's point names this boot
            if read_only:
                raise StorageError(
                    f"{path}: the machine went down while the store was in use; open it once for"
                    " writing, so that it goes back to its last steady point"
                )
            with exclusively(fd, path):
                newest = log.newest()  # another opener may have been here in between
                if newest is not None and newest.boot != log.boot:
                    log.roll_back(newest)
            return
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{path}: {error}") from error
        except StoreLockedError:
            # Somebody else is here first, or came at the same moment and failed just so.
            if time.monotonic() > deadline:
                raise
            # Without the lock meanwhile: whoever kept it here would be in everybody's way.
            fcntl.flock(fd, fcntl.LOCK_UN)
            time.sleep(_LOOK_SECONDS * os.urandom(1)[0] / 256)
            share(fd, path)
            require_same(fd, path)


# --- The steady points of an open ``"relaxed"`` file: made in time, never lost from under a commit
# A steady point is made in this order: pin the present snapshot with a reader, flush the file,
# write the snapshot's record, flush again, let go of the pin before. So the pages of the newest
# record that is on the device are always pinned by somebody who commits.
#
# **Whoever commits holds a pin that is no newer than the newest durable record.** It is looked at
# before every batch, so a pin may be dropped at any time: when the map is replaced, before a fork,
# when only others write. The next batch then begins with a steady point of its own.
#
# A thread makes a point when the interval has passed since the first commit that is not covered, or
# when many commits wait; the leader makes it itself when far too many do. A pin keeps all pages
# that were freed since from being used again, so this bounds what the file grows by.

_IDLE_SECONDS: Final = 10.0
_TRIES: Final = 64


class SteadySync(SteadyFields):
    """The pinned steady point of one environment, and the thread that moves it on."""

    __slots__ = (
        "_ended",
        "_env",
        "_fd",
        "_hurry",
        "_log",
        "_mutex",
        "_owner",
        "_pinned",
        "_wake",
        "interval_seconds",
        "points",
    )
    writer_needed = WriterNeeded

    def __init__(self, env: Environment, log: SteadyLog, fd: int, interval_seconds: float) -> None:
        self._env = env
        self._log = log
        self._fd = fd
        self._mutex = Lock()
        self._owner = 0
        self._pinned = 0
        self._ended = False
        self.commits_hurry, self.commits_max = STEADY_COMMITS_HURRY, STEADY_COMMITS_MAX
        # Locks that whoever wakes the thread lets go of. An Event would not do: an interrupt in its
        # ``set`` may leave it locked for ever, for the thread and for every later commit.
        self._wake = allocate_lock()
        self._wake.acquire()
        self._hurry = allocate_lock()
        self._hurry.acquire()
        self.interval_seconds = interval_seconds
        self.points = 0

    @property
    def uncovered(self) -> int:
        """Number of commits of this process that a power cut could take back."""
        return self._made - self._covered

    @property
    def is_due(self) -> bool:
        """True if a steady point has to be made before the file is closed."""
        return self._timing or self._made != self._covered

    # --- the leader --------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if a batch needs no steady point now and the thread that makes later ones runs."""
        return (
            self._raw is not None
            and self._thread is not None
            and self._made - self._covered < self.commits_max
        )

    def hasten(self) -> None:
        """Have the thread make the next point at once: many commits wait for it."""
        release(self._hurry)

    def remind(self) -> None:
        """Start the interval after which a steady point is made."""
        self._timing = True
        if self._thread is None:
            self._start()
        release(self._wake)

    # --- the point ---------------------------------------------------------------------------

    def sync(self) -> None:
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
        """Drop the pin and end the thread, as the environment closes. No point may be under way."""
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
                if self.uncovered < self.commits_hurry and not self._ended:
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
        """Return True if this thread ends. A later commit starts a new one or is seen here."""
        with self._mutex:
            me, self._thread = self._thread, None
            if self._timing:
                self._thread = me
            return self._thread is None

    def _standing(self) -> tuple[bool, bool]:
        """Return whether others committed since the pin, and whether a record covers everything."""
        if self._raw is None:
            return False, True
        metas = (os.pread(self._fd, META_IMAGE_BYTES, offset) for offset in META_OFFSETS)
        newest = max(map(txnid_of, metas))
        last = self._log.newest()
        return newest != self._pinned, last is not None and last.txnid == newest
