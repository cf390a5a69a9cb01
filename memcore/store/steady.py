"""Steady points of a ``"relaxed"`` file: their records, and the thread that makes them.

A steady point is the snapshot to which the file is rolled back after a power failure.

Relaxed commits are not flushed, so after a power failure any page written since the last flush may
be old, new or torn, including the meta pages. The last *steady point* is intact: a snapshot whose
pages have all been flushed, and which a reader has pinned since, so that no later commit overwrote
any of them. Its record is in one of the two slots of the reserved run: the snapshot's meta image
and the boot id under which it was made. Records alternate between the slots, and each is flushed
before the next one is written, so at least one is always intact.

A killed process needs none of this, as the page cache outlives it. A boot id that differs from the
record's shows that the page cache was lost since.
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

from memcore._fast import SteadyFields, xxh3_64
from memcore.errors import (
    ClosedError,
    CorruptStoreError,
    InternalError,
    OutcomeUnknownError,
    StorageError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
)
from memcore.limits import PAGE_BYTES, STEADY_COMMITS_HURRY, STEADY_COMMITS_MAX
from memcore.store.commit import UNKNOWN_ROOM, PinnedRoom, WriterNeeded, release
from memcore.store.datafile import (
    META_IMAGE_BYTES,
    META_OFFSETS,
    PAGE_HEADER_BYTES,
    TXNID_AT,
    exclusively,
    meta_of,
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


# --- Steady records: the snapshot to which a ``"relaxed"`` file is rolled back --------------------

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
        """Transaction number of the snapshot."""
        return txnid_of(self.image)


def image_of(fd: int, txnid: int) -> bytes | None:
    """Return the meta image of a snapshot that is or just was the newest; None if possibly torn.

    Image N is overwritten by commit N + 2, which can begin once N + 1 is in the other meta page.
    """
    image = os.pread(fd, META_IMAGE_BYTES, META_OFFSETS[txnid & 1])
    other = os.pread(fd, META_IMAGE_BYTES, META_OFFSETS[~txnid & 1])
    return image if txnid_of(image) == txnid and txnid_of(other) < txnid else None


def boot_id() -> bytes:
    """Return the kernel's boot id, 16 bytes, which changes whenever memory is lost.

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
        # The last field, a process id, has to be 0 for locks of an open file description.
        self._own = _FLOCK.pack(fcntl.F_WRLCK, 0, run.slots[0], 1, 0)
        self._free = _FLOCK.pack(fcntl.F_UNLCK, 0, run.slots[0], 1, 0)

    def locked(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` under the record lock; the lock of a killed process is released.

        It is an open file description lock on one byte of the data file; LMDB's own locks are on
        the lock file.
        """
        try:  # an interrupt may come right after the call
            # Not a POSIX lock: that goes when the process closes any descriptor of the file.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, self._own)
            return fn()
        finally:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, self._free)

    def newest(self) -> Steady | None:
        """Return the newest intact record; None if none was ever written.

        Raises:
            CorruptStoreError: neither slot is blank, and neither holds an intact record.
        """
        found = []
        blank = 0
        for slot, offset in enumerate(self._run.slots):
            raw = os.pread(self._fd, _RECORD_BYTES, offset)
            blank += not any(raw)
            if len(raw) < _RECORD_BYTES:
                continue
            magic, number, boot, image = _RECORD.unpack_from(raw, _CHECK.size)
            check = xxh3_64(raw[_CHECK.size :], self._seed)
            if magic == _MAGIC and check == _CHECK.unpack_from(raw)[0]:
                found.append(Steady(slot, number, boot, image))
        # Beside a blank slot, a damaged record is a torn first one: no commit precedes that.
        if not found and not blank:
            raise CorruptStoreError(
                "both steady records are damaged: salvage the file, or restore a backup"
            )
        return max(found, key=lambda record: record.number, default=None)

    def write(self, image: bytes, last: Steady | None) -> None:
        """Write a record to the slot that ``last`` does not occupy.

        Needs the record lock, and ``last`` must be flushed. The record takes effect once the caller
        has flushed it.
        """
        slot, number = (0, 1) if last is None else (1 - last.slot, last.number + 1)
        rest = _RECORD.pack(_MAGIC, number, self.boot, image)
        record = _CHECK.pack(xxh3_64(rest, self._seed)) + rest
        if os.pwrite(self._fd, record, self._run.slots[slot]) != len(record):
            raise OSError("short write into a steady slot")

    def roll_back(self, to: Steady) -> None:
        """Make ``to`` the newest snapshot of the file, and record it for this boot.

        Needs the file locked exclusively. If interrupted anywhere, it starts over from the same
        record. A file whose meta pages are older than its record is a compacted copy made by LMDB's
        own tools: it is intact, and the record does not apply to it.
        """
        metas = [os.pread(self._fd, META_IMAGE_BYTES, offset) for offset in META_OFFSETS]
        if max(map(txnid_of, metas)) >= to.txnid:
            for page, offset in enumerate(META_OFFSETS):
                # The other page gets the same tree with the previous number: LMDB needs both.
                txnid = to.txnid - ((to.txnid ^ page) & 1)
                _, raw = meta_page(to.image[:TXNID_AT] + txnid.to_bytes(8, "little"))
                os.pwrite(self._fd, raw, offset - PAGE_HEADER_BYTES)
            # Before the record for this boot: with it, an opener takes the meta pages as they are.
            os.fdatasync(self._fd)
            self.write(to.image, to)
        else:
            self._run.blank(self._fd)
        os.fdatasync(self._fd)


def settle(fd: int, run: RedoArea, path: str, *, read_only: bool) -> None:
    """Roll a relaxed file back to its steady point, before it is mapped, if memory was lost since.

    Raises:
        StorageError: a rollback is needed and this handle may not write.
        StoreLockedError: another process holds the file without rolling it back.
        CorruptStoreError: no steady record is intact.
    """
    log = SteadyLog(fd, run)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            image = newest_meta(fd, path).image  # read before the record: commits follow records
            newest = log.newest()
            if newest is None or newest.boot == log.boot or newest.image == image:
                return  # equal images: closed cleanly; the first commit's point records this boot
            if read_only:
                raise StorageError(
                    f"{path}: the machine went down while the store was in use; open it once for"
                    " writing, so that it goes back to its last steady point"
                )
            with exclusively(fd, path):
                newest = log.newest()  # another opener may have rolled it back in between
                if newest is not None and newest.boot != log.boot:
                    log.roll_back(newest)
            return
        except CorruptStoreError as error:
            raise CorruptStoreError(f"{path}: {error}") from error
        except StoreLockedError:
            # Another process was first, or tried at the same moment and failed likewise.
            if time.monotonic() > deadline:
                raise
            # Release the lock while waiting: keeping it would block all other openers.
            fcntl.flock(fd, fcntl.LOCK_UN)
            # A random time: openers in step with each other would never find the file free.
            time.sleep(_LOOK_SECONDS * os.urandom(1)[0] / 256)
            share(fd, path)
            # Unlocked, it may have been replaced.
            require_same(fd, path)


# --- Steady points of an open ``"relaxed"`` file: made periodically, pinned while it commits ------
# A steady point is made in this order: pin the current snapshot with a reader, flush the file,
# write the snapshot's record, flush again, release the previous pin. So the pages of the newest
# durable record are always pinned by every process that commits.
#
# **A committing process holds a pin no newer than the newest durable record.** This is checked
# before every batch, so a pin may be dropped at any time: when the map is replaced, before a fork,
# when only other processes write. The next batch then begins with a steady point of its own.
#
# A thread makes a point once the interval has passed since the first uncovered commit, or once many
# commits are uncovered; the leader makes it itself when there are far too many. A pin keeps all
# pages freed since from being reused, so this bounds the growth of the file.

_IDLE_SECONDS: Final = 10.0


class SteadySync(SteadyFields):
    """The pinned steady point of one environment, and the thread that advances it."""

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
        "pinned_room",
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
        # Locks that are released to wake the thread. An Event would not do: an interrupt in its
        # ``set`` may leave it locked forever, for the thread and for every later commit.
        self._wake = allocate_lock()
        self._wake.acquire()
        self._hurry = allocate_lock()
        self._hurry.acquire()
        self.interval_seconds = interval_seconds
        self.points = 0
        self.pinned_room = UNKNOWN_ROOM

    @property
    def uncovered(self) -> int:
        """Number of commits of this process that a power failure would lose."""
        return self._made - self._covered

    @property
    def is_due(self) -> bool:
        """True if a steady point has to be made before the file is closed."""
        return self._timing or self._made != self._covered

    # --- the leader --------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if a batch needs no steady point now and the thread that makes points is running."""
        return (
            self._raw is not None
            and self._thread is not None
            and self._made - self._covered < self.commits_max
        )

    def hasten(self) -> None:
        """Have the thread make the next point immediately: many commits are uncovered."""
        release(self._hurry)

    def remind(self) -> None:
        """Start the interval after which a steady point is made."""
        self._timing = True
        if self._thread is None:
            self._start()
        release(self._wake)

    # --- the point ---------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything committed before this call survive a power failure.

        No local variable references LMDB's environment: a kept exception keeps its frames, and a
        forked child could then not close the environment.

        Raises:
            MapMovedError: another process grew the map; follow it and call again.
            OutcomeUnknownError: the flush failed; the store is poisoned.
        """
        # The mutex is not reentrant: a signal handler or destructor would wait for its own thread.
        if self._owner == get_ident():
            raise InternalError("a flush was asked for inside a flush on the same thread")
        # The mutex first: all threads share the file description that owns the record lock.
        with self._mutex:
            try:
                self._owner = get_ident()
                self._log.locked(self._make_soundly)
            finally:
                self._owner = 0
        # The pin of a killed process keeps every page freed since from being reused.
        self._env.mapped().reader_check()

    def _make_soundly(self) -> None:
        try:
            self._env.leader.need_sound()  # a record must not cover pages that a flush has dropped
            self._make()
        except OSError as error:
            # The next flush would report success despite the dropped pages.
            self._env.leader.poison_for(error)
            raise OutcomeUnknownError(self._env.leader.poison) from error
        except BaseException:
            self._timing = True  # a point is still due
            raise

    def _make(self) -> None:
        self._timing = False  # a commit from here on requests the next point
        # Read before the pin: what is counted later may not be in the snapshot.
        made, reserve = self._made, self._env.reserve
        admitted = (0, -1) if reserve is None else (reserve.admitted, reserve.strangers)
        last = self._log.newest()
        try:
            pin, image = self._env.pin()
        except MapResized as error:
            raise MapMovedError from error
        try:
            txnid = pin.id()
            os.fdatasync(self._fd)  # the snapshot, and the previous record
            # Otherwise the record is of this very snapshot, and only the pin was missing.
            if last is None or last.txnid != txnid or last.boot != self._log.boot:
                self._log.write(image, last)
                os.fdatasync(self._fd)
            # Only now may pages of the previous point be used again: its record is superseded.
            pin, self._raw = self._raw, pin
            self._pinned = txnid
            meta = meta_of(image)
            free = meta.last_page - 1 - meta.main_pages - meta.free_pages
            self.pinned_room = PinnedRoom(PAGE_BYTES * max(0, free), *admitted)
            self._covered = made
            self.points += 1
        finally:
            if pin is not None:
                pin.abort()
                pin = None

    def let_go(self) -> None:
        """Drop the pin: the map is about to be replaced, or the process is about to fork."""
        with self._mutex:
            raw, self._raw = self._raw, None
            if raw is not None:
                raw.abort()

    def end(self) -> None:
        """Drop the pin and end the thread on close. No point may be in progress."""
        self._ended = True
        self.let_go()
        release(self._hurry)
        release(self._wake)

    def forget(self) -> Any:
        """Detach from the parent's pin in a forked child; returns it, as it must not be closed."""
        # Without the mutex: the thread that held it does not exist here.
        raw, self._raw = self._raw, None
        self._ended = True
        return raw

    # --- the thread --------------------------------------------------------------------------
    # An interrupt may have kept ``end`` from running while the environment has let go of this
    # object. Its descriptor is closed then, and another file may have the number: before the thread
    # reads from it, and before it reports an error, it looks whether the environment still has it.

    @property
    def _is_current(self) -> bool:
        return not self._ended and self._env.steady_sync is self

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = Thread(target=self._run, name="memcore-steady", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: the next commit retries
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        idle = 0.0
        while self._is_current:
            # Polls, too: other processes do not wake it, nor does a commit that is interrupted.
            if self._wake.acquire(True, self.interval_seconds):
                self._hurry.acquire(False)  # discard a stale hurry
                if self.uncovered < self.commits_hurry and self._is_current:
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
            except (MemoryError, StoreFullError):
                continue  # no flush failed: at the next interval, or by a commit that waits for it
            except Exception as error:  # noqa: BLE001 - reported to the next writer
                if isinstance(error.__cause__, ReadersFull):
                    continue  # retry at the next interval; the previous pin holds
                if self._is_current and not self._env.leader.poison:
                    self._env.leader.poison_for(error)
                return
            if self._raw is None and self._may_rest():
                return

    def _look_around(self, idle_seconds: float) -> None:
        """Check, with no point due, if other processes need the pinned pages or a point."""
        overtaken, covered = self._env.hold(partial(self._stand, idle_seconds))
        if overtaken and (self.is_busy or not covered):
            # A leader waits for other processes while our pin blocks page reuse, or one was killed.
            self._env.steady()

    def _stand(self, idle_seconds: float, _: Any) -> tuple[bool, bool]:
        if not self._is_current:  # it stays as it is while the environment is held
            return False, True
        overtaken, covered = self._standing()
        if idle_seconds > _IDLE_SECONDS or (overtaken and covered):
            self._let_go_if_idle()
        return overtaken, covered

    def _let_go_if_idle(self) -> None:
        # A batch that begins now either sees no pin and waits for the mutex, or is seen here.
        with self._mutex:
            raw, self._raw = self._raw, None
            if self.is_busy or self.uncovered:
                self._raw = raw
            elif raw is not None:
                raw.abort()

    def _may_rest(self) -> bool:
        """Return True if this thread may end. A later commit starts a new one or is seen here."""
        with self._mutex:
            # Cleared before the look: a commit either finds no thread, or is seen by this one.
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
