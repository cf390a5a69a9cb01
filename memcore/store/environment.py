"""Environment: one file opened by this process, shared by its handles and threads; fork handling.

Only the leader of the commit queue writes, remaps, reopens and closes, so these never overlap. It
shuts the barrier before the last three, so that no read overlaps them either.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar
from weakref import ref

from memcore import store
from memcore._fast import EnvironmentFields, file_size
from memcore.errors import (
    ClosedError,
    InternalError,
    StorageError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
)
from memcore.limits import FORMAT_OLDEST, MAP_BYTES_MAX
from memcore.store import lmdb as binding
from memcore.store.commit import CommitQueue, Leader, SpaceReserve, WriteRequest, WriterNeeded
from memcore.store.datafile import Format, damage_of, newest_meta
from memcore.store.interface import MapMovedError, Notifier
from memcore.store.lmdb import MapResized, RawError, ReadersFull, lockers_of
from memcore.store.open_file import Attachment, FileKey, attach, walked
from memcore.store.redo_log import RedoLog
from memcore.store.steady import SteadySync, image_of
from memcore.store.transaction import Snapshot

if TYPE_CHECKING:
    from memcore.store.audit_log import Recorder
    from memcore.store.encryption import RowCipher

__all__ = [
    "Environment",
    "ForkHandler",
    "ReaderBarrier",
    "forgotten",
]


# --- An environment over a fork of its process ----------------------------------------------------
# An inherited LMDB environment may not be used in the child, and the child cannot open its own
# while the inherited one exists. Closing it in the child clears the parent's reader slots, so the
# parent must hold none at the fork: no read in progress, no spare reader, no pinned snapshot.

_leaked: list[Any] = []
"""Environments that the parent was still using at the fork: closing them here would harm it."""


class ForkHandler:
    """Fork handlers of one environment: before a fork, and after it in the parent and the child."""

    __slots__ = ("_claimed", "_env", "_quiet", "_thread", "reopening")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._thread = 0
        """The thread that forks."""
        self._claimed: WriteRequest | None = None
        self._quiet = False
        self.reopening = RLock()

    def quiesce(self, patience_seconds: float) -> None:
        """Wait for transactions of other threads to end before a fork, with a timeout."""
        env = self._env
        self._thread = get_ident()
        # The lead first: then nobody commits, remaps or shuts the barrier while this thread does.
        self._claimed = env.queue.claim(patience_seconds)
        if self._claimed is None:
            return  # the barrier is the leader's: shut here, it would be opened under its hands
        # ``shut`` passes over a read of this thread, whose slot the child would clear as well.
        ended = env.barrier.shut(patience_seconds) and get_ident() not in env.barrier.live
        if env.raw is not None and ended:
            env.unpin()
            binding.set_map(env.raw, env.raw.info()["map_size"])  # ends the spare transaction
            self._quiet = True

    def resume(self) -> None:
        """Admit transactions again, in the parent, after a fork of this thread; once."""
        # Not this thread's fork, or the second hook, whose first one has done the work.
        if self._thread != get_ident():
            return
        self._quiet = False
        if self._claimed is not None:
            self._env.barrier.open()
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self._env.queue.release(claimed)
        if self._thread == get_ident():  # else another thread was waiting to fork
            self._thread = 0

    def forget(self) -> None:
        """Discard the parent's state in the child; the next use reopens the file.

        The descriptor is closed; the parent keeps its flock through its own descriptor.
        """
        env = self._env
        pinned = [] if env.steady_sync is None else [env.steady_sync.forget()]
        for holder in env.holders():
            pinned += holder.forget()
        if self._quiet and env.raw is not None:
            env.raw.close()  # the frame of a thread that no longer exists may reference it forever
        elif env.raw is not None:
            _leaked.append((env.raw, pinned))
        env.barrier.reset()
        env.notifier.forget()
        env.leader.forget()
        if not env.is_closed:
            env.open_at_next_use()
        env.raw = env.steady_sync = None
        fd, env.fd = env.fd, -1
        if fd >= 0:
            os.close(fd)
        self._claimed = None
        self._quiet, self._thread = False, 0
        self.reopening = RLock()
        env.alone = RLock()  # a thread of the parent may have held it
        env.queue.reset()


# --- The barrier that remapping and closing shut to drain this process's reads --------------------

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.05
"""Polling interval that detects the end of a read whose ring an interrupt prevented."""


class ReaderBarrier:
    """Reads in progress, by thread, and whether new ones may begin.

    A reader adds itself to ``live`` and then checks ``is_shut``; the thread that shuts the barrier
    sets ``is_shut`` and then checks ``live``. At least one of the two sees the other, so a read
    needs no lock.

    An interrupt may be raised where a Python function begins, where a C function has returned, and
    at a loop's backward jump. So entries are removed from ``live`` by ``live.pop`` itself, in a
    ``finally`` in which nothing interruptible comes before it: the first line of a method that did
    it, or of an ``__exit__``, would be interruptible. ``is_shut`` is reset in the same way, and
    each waiter uses a lock of its own: a shared one could stay locked.

    ``_shut_by`` is the thread that last shut the barrier; it is meaningless while it is open.
    """

    __slots__ = ("_shut_by", "_waiting", "is_shut", "live")

    def __init__(self) -> None:
        self.live: dict[int, Snapshot] = {}
        self.reset()

    def reset(self) -> None:
        """Open the barrier and drop all readers: in the child of a fork they are the parent's."""
        for snapshot in list(self.live.values()):
            snapshot.drop()
        self.live.clear()
        self.is_shut = False
        self._shut_by = 0
        self._waiting: deque[LockType] = deque()

    def enter(self, me: int, snapshot: Snapshot) -> None:
        """Wait until the barrier is open, with ``snapshot`` registered in ``live``.

        The caller pops it, even if this raises.

        Raises:
            InternalError: this thread shut it, as when a destructor reads during a fork.
        """
        self.live[me] = snapshot
        while self.is_shut:
            self.live.pop(me, None)
            if self._shut_by == me:  # it would deadlock on itself
                raise InternalError("a read was asked for while this thread lets nobody read")
            # Whoever shut it may have seen this entry and be waiting for it to go.
            self.ring()
            bell = self._bell()
            # Checked again now that the bell is there: an earlier opening did not ring it.
            if self.is_shut:
                bell.acquire(True, _LOOK_SECONDS)
            self.live[me] = snapshot

    def _bell(self) -> LockType:
        """Return an acquired lock that the next ``ring`` releases."""
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell)
        return bell

    def ring(self) -> None:
        """Wake the waiting threads; one missed because of an interrupt polls anyway."""
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def shut(self, patience_seconds: float | None = None) -> bool:
        """Bar new reads and wait for those of other threads to end; False on timeout.

        Threads may still appear in ``live`` afterwards: they check the barrier and wait.
        """
        # By the clock: each reader that waits rings, so a round may take no time at all.
        deadline = None if patience_seconds is None else monotonic() + patience_seconds
        self._shut_by = get_ident()  # set before ``is_shut``: readers of that flag read this next
        self.is_shut = True
        while self._is_read_elsewhere():
            if deadline is not None and monotonic() >= deadline:
                return False
            bell = self._bell()
            # Checked again, as in ``enter``: the last read may have ended before.
            if self._is_read_elsewhere():
                bell.acquire(True, _LOOK_SECONDS)
        return True

    def _is_read_elsewhere(self) -> bool:
        me = get_ident()
        return any(thread != me for thread in list(self.live))

    def open(self) -> None:
        """Admit reads again."""
        self.is_shut = False
        self.ring()

    def closed(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while no read of this process is in progress. Needs the lead of the queue."""
        try:
            self.shut()
            return fn()
        finally:
            # Not by ``open()``: an interrupt at its first line would leave everybody shut out.
            self.is_shut = False
            self.ring()


# --- One open file of this process: shared by all its handles and threads -------------------------


_MAP_MARGIN_BYTES: Final = 256 * 1024
_PIN_TRIES: Final = 64
_COMMITS_KEPT: Final = 1
"""Commits after a snapshot that cannot overwrite its pages even though no writer sees its reader.

Once one later commit is visible, the second may already be in progress."""


forgotten: deque[Environment] = deque()
"""Environments whose last handle was lost unclosed; keeps them alive until they are closed."""


class PinHolder(Protocol):
    """Keeps readers that ``Environment.pin`` returned."""

    @property
    def is_pinning(self) -> bool:
        """True if it has any."""

    def let_go(self) -> None:
        """Abort the readers."""

    def forget(self) -> list[Any]:
        """Leave the readers to the parent of a fork, and return them: they must not be aborted."""


class Environment(EnvironmentFields):
    """The LMDB environment, the descriptor with its flock, the redo log and the queue."""

    fd = -1  # a class attribute too: ``__del__`` reads it even if ``__init__`` was cut short
    dropped = False
    """True if its last handle was lost without a close: it is queued to be closed."""
    handles: dict[int, ref[object]] = {}  # noqa: RUF012 - replaced per instance
    map_moved = (MapResized, MapMovedError)
    writer_needed = WriterNeeded
    raw: binding.RawEnv | None
    vault: RowCipher | None
    """Cipher of the contents; None: not encrypted, or opened blind."""
    redo: RedoLog | None
    steady_sync: SteadySync | None
    reserve: SpaceReserve | None
    audit: Recorder | None
    notifier: Notifier
    begin: Callable[..., Any]
    queue: CommitQueue

    def __init__(self, path: str, *, map_bytes: int, interval_seconds: float = 0.0) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.map_size = 0
        self._is_cramped = False
        self.interval_seconds = interval_seconds
        self.key: FileKey | None = None
        self.next_key: FileKey | None = None
        """Key of the file that is about to replace this one."""
        self.opened = 0
        """Number of times that a file was opened: another file numbers its transactions anew."""
        self.read_only = True
        self.is_locked = True
        """True if writers see this environment's readers and preserve their pages."""
        self.oldest = FORMAT_OLDEST
        self.format: Format | None = None
        self.private = False
        self.alone = RLock()
        """Held by the thread that locks the file exclusively."""
        self.closing = False
        self.superseded = ""
        """The reason for which nobody may write any more, though nothing is wrong with the file."""
        self.pinned: dict[int, ref[PinHolder]] = {}
        """Those who keep readers that ``pin`` returned, by ``id``."""
        self.handles = {}
        """Weak references to the handles, by ``id``."""
        self.barrier = ReaderBarrier()
        self.notifier = Notifier()
        self.begin = self._begin_closed
        self.leader = Leader(self)
        self.queue = CommitQueue(self.leader.run, self.barrier.live, self.is_prompt)
        self.fork = ForkHandler(self)

    def __del__(self) -> None:
        if self.fd < 0 or self.dropped:
            return  # closed, or queued to be closed
        if self.handles:
            forgotten.append(self)  # the handles' finalizers are still to run, or were interrupted
        else:
            os.close(self.fd)  # opened, but no handle was ever made

    def count_handles(self) -> int:
        """Count the live handles, dropping those whose close was interrupted."""
        for number, handle in list(self.handles.items()):
            # Another object may have got the dead one's address, and with it the number.
            if handle() is None and self.handles.get(number) is handle:
                self.handles.pop(number, None)
        return len(self.handles)

    # --- attaching ---------------------------------------------------------------------------

    def attach(self, *, read_only: bool, verify: bool = False) -> None:
        """Open the file at ``path``. Leaves nothing open on failure."""
        found = attach(
            self.path,
            read_only=read_only,
            map_bytes=self.map_bytes,
            expected=tuple(key for key in (self.key, self.next_key) if key is not None),
            oldest=self.oldest,
            judge=(lambda fd, held: self.refuse(self.judge(fd, held))) if verify else None,
        )
        # No call before ``fd`` is set: an interrupt there would leak the descriptor with its flock.
        self.key, self.fd, self.format = found.key, found.fd, found.format
        self.opened += 1
        self.raw = found.access.raw
        self.read_only, self.next_key = read_only, None
        self.is_locked = found.is_locked
        try:
            self._equip(found)
            # The child of a fork held no lock on the file for a while: keys may have been retired.
            if self.vault is not None:
                self.vault.reread()
        except BaseException:
            self.detach(settle=False, again=True)
            raise

    def _equip(self, found: Attachment) -> None:
        """Set up what the file's durability mode needs: space reserve, redo log, steady sync."""
        read_only, mode = self.read_only, found.format.durability
        raw, self.redo, steady_log = found.access
        self.steady_sync = self.reserve = None
        # Some file systems count no links.
        self.named, self.has_name = found.fd, os.fstat(found.fd).st_nlink > 0
        if not read_only and mode != "none":
            self.reserve = SpaceReserve(found.fd, self.path, self.pinned)
        # A replay's meta page is not flushed yet: closing does it, for read-only openers.
        self.leader.poison, self.leader.unsynced = "", found.recovered
        self.begin = raw.begin if found.is_locked else self._begin_unlocked
        self.map_size = raw.info()["map_size"]
        if steady_log is not None:
            self.steady_sync = SteadySync(self, steady_log, found.fd, self.interval_seconds)
            if self.reserve is not None:
                self.reserve.steady = self.steady_sync
            last = steady_log.newest()
            if last is None or last.txnid != newest_meta(found.fd, self.path).txnid:
                self.steady_sync.remind()  # a process was killed before its steady point

    def _refuse_nameless(self) -> NoReturn:
        raise StoreLockedError(
            f"{self.path}: the file was deleted or replaced since it was opened; nothing was "
            "stored: close the store and open it again"
        )

    def refuse(self, findings: list[str]) -> None:
        """Raise CorruptStoreError if a walk has findings."""
        if findings:
            raise binding.corrupt(self.path, findings)

    def detach(self, *, settle: bool = True, again: bool = False, keep: bool = False) -> None:
        """Close LMDB's environment and the descriptor. Needs the lead and a shut barrier.

        Args:
            settle: make everything committed durable first.
            again: the next use reopens the file.
            keep: leave the descriptor open; the caller owns it once ``fd`` is -1.
        """
        self.begin = self._begin_closed
        if again:
            self.begin = self._begin_lost if self.private else self._begin_reopened
        try:
            self.let_pins_go()  # first: whoever reads finds so before the file is another one
        finally:
            try:
                # Not if poisoned: a flush would now report success over pages that were dropped.
                if settle and self.raw is not None and not self.leader.poison:
                    self._settle_down()
            finally:
                self._release(keep=keep)

    def _release(self, *, keep: bool) -> None:
        """Close what is open; an interrupt in one step does not skip the others."""
        # Cleared before anything is closed: whoever tries again after an interrupt must not close a
        # descriptor number that another file has by then.
        steady_sync, self.steady_sync = self.steady_sync, None
        raw, self.raw = self.raw, None
        fd, self.fd = self.fd, -1
        try:
            # First: the pin is a transaction of the environment that is closed next.
            if steady_sync is not None:
                steady_sync.end()
        finally:
            try:
                if raw is not None:
                    raw.close()
            finally:
                if fd >= 0 and not keep:
                    os.close(fd)

    def _settle_down(self) -> None:
        """Make everything durable before closing, so that the next open has nothing to redo."""
        steady_sync = self.steady_sync
        while steady_sync is not None and steady_sync.is_due:
            try:
                steady_sync.sync()
            except MapMovedError:
                # Once the pin is gone, the map can be replaced right here: the barrier is shut.
                steady_sync.let_go()
                binding.set_map(self.mapped(), 0)
        if self.leader.unsynced:
            self.mapped().sync(True)  # the last meta: read-only openers need no recovery

    def _begin_closed(self, **_: Any) -> Any:
        raise ClosedError(f"{self.path}: the store is closed; open it again")

    def walk(self, fd: int, held: bool = False) -> list[str]:
        """Verify the whole structure of the file, reading it unmapped; returns the findings."""
        name = f"/dev/fd/{fd}" if self.private else self.path
        return walked(fd, self.path, lambda: binding.verify(name), held=held)

    def judge(self, fd: int, held: bool = False) -> list[str]:
        """Check quickly for damage that LMDB must not encounter, a subset of ``walk``'s checks."""
        return walked(fd, self.path, lambda: damage_of(fd, self.path), held=held)

    def check(self, find: Callable[[int, bool], list[str]]) -> list[str]:
        """Run ``walk`` or ``judge``, blocking writers unless the environment is read-only."""
        if self.read_only:
            # Other processes keep writing; the snapshot preserves the pages that the walk visits.
            try:
                return self.read(lambda _: find(self.fd, self.is_locked))
            except OSError as error:
                binding.raise_from(error, self.path)
        # ``makes_room``: it writes nothing, so a full device must not refuse it.
        return self.queue.call(lambda _: find(self.fd, False), makes_room=True)

    # --- reading -----------------------------------------------------------------------------

    def read(self, fn: Callable[[Any], T], *, patient: bool = True) -> T:
        """Run ``fn`` on a snapshot; a nested read shares its thread's outer snapshot."""
        barrier = self.barrier
        live = barrier.live
        me = get_ident()
        outer = live.get(me)
        if outer is not None:
            return fn(outer)
        if not self.is_locked:
            fn = partial(self._read_unlocked, fn)
        snapshot = Snapshot()
        raw = None
        try:
            # Entered before the check: without a lock, it is the GIL that makes all threads see the
            # two in this order (see ReaderBarrier).
            live[me] = snapshot
            if barrier.is_shut:
                barrier.enter(me, snapshot)
            try:
                raw = self.begin()
            except RawError as error:
                # The caller holds a lock that the leader may be waiting for, and gives it up first.
                if not patient and isinstance(error, MapResized):
                    raise MapMovedError from error
                raw = self._begin_again(me, snapshot, error)
            vault = self.vault
            snapshot.raw, snapshot.vault = raw, vault
            snapshot.get = raw.get if vault is None else vault.reader(raw.get)
            return fn(snapshot)
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            # LMDB's transaction ends before it leaves ``live``, so that nothing unmaps it while in
            # use. Both are C functions, so no interrupt precedes them (see ``ReaderBarrier``).
            try:
                if raw is not None:
                    raw.abort()
            finally:
                live.pop(me, None)
            raw = None  # a kept exception keeps this frame
            snapshot.drop()
            if barrier.is_shut:
                barrier.ring()

    def _begin_unlocked(self, **options: Any) -> Any:
        """Begin a snapshot that writers cannot see, allowed only while none has the file open.

        A writer that opens it later may overwrite pages of the snapshot in its third commit (it
        reuses the pages freed two commits earlier). ``_read_unlocked`` detects that.

        Raises:
            StoreLockedError: another process has the file open.
        """
        if lockers_of(self.path):
            raise StoreLockedError(
                f"{self.path}: another process has it open, and its lock file {self.path}-lock "
                "cannot be shared: get write permission for that file, or read a backup"
            )
        return self.mapped().begin(**options)

    def _read_unlocked(self, fn: Callable[[Any], T], snapshot: Any) -> T:
        """Run ``fn``, then verify that nothing it read was overwritten in the meantime.

        Raises:
            StoreAccessError: it may have been.
        """
        try:
            return fn(snapshot)
        finally:
            # Also if ``fn`` failed: pages overwritten under it are no damage of the file.
            if newest_meta(self.fd, self.path).txnid > snapshot.raw.id() + _COMMITS_KEPT:
                raise StoreAccessError(
                    f"{self.path}: it was changed while it was read without its lock file: try "
                    f"again, or get write permission for {self.path}-lock"
                )

    def hold(self, fn: Callable[[binding.RawEnv], T]) -> T:
        """Run ``fn`` on LMDB's environment, for calls that must not overlap a remap or a close.

        It runs again if it could not begin because another process had grown the file.
        """
        while True:
            try:
                return self._hold(fn)
            except MapResized as error:
                if get_ident() in self.barrier.live:
                    binding.raise_from(error, self.path)
            if self.queue.led_here:
                self.follow_map()
            else:
                self.read(lambda _: None)  # follows the growth, as leader

    def _hold(self, fn: Callable[[binding.RawEnv], T]) -> T:
        barrier = self.barrier
        live = barrier.live
        me = get_ident()
        if me in live:
            return fn(self.mapped())
        try:
            barrier.enter(me, Snapshot())
            if self.raw is None:
                self.begin().abort()  # the child of a fork reopens here; a closed store raises
            return fn(self.mapped())
        except MapResized:
            raise
        except (RawError, OSError) as error:
            binding.raise_from(error, self.path)
        finally:
            live.pop(me, None)
            if barrier.is_shut:
                barrier.ring()

    def mapped(self) -> binding.RawEnv:
        """Return LMDB's environment. Only for the thread that has the lead, or inside ``hold``.

        Raises:
            ClosedError
        """
        raw = self.raw
        if raw is None:
            raise ClosedError(f"{self.path}: the store is closed; open it again")
        return raw

    def _begin_again(self, me: int, snapshot: Snapshot, error: Exception) -> Any:
        """Retry a refused begin: follow a grown map, or free the slots of dead readers."""
        for _ in range(8):
            if isinstance(error, MapResized):
                # Out of the way meanwhile: the leader may be waiting for the end of this very read.
                self.barrier.live.pop(me, None)
                if self.queue.led_here:
                    # This thread has the lead, and would wait for itself.
                    raise InternalError("the map grew under the write lock") from error
                self.queue.call(self.follow_map, job=True)
                self.barrier.enter(me, snapshot)
            elif isinstance(error, ReadersFull):
                self.mapped().reader_check()
            else:
                raise error
            try:
                return self.begin()
            except RawError as again:
                error = again
        raise error

    # --- the map -----------------------------------------------------------------------------

    def is_tight(self, size: int) -> bool:
        """Return True if a commit of ``size`` bytes might find the map full.

        LMDB would then release the write lock, and once others commit it could no longer be
        determined whether another process has replayed this commit's redo record on opening.
        """
        if self._is_cramped or 2 * self.map_size > MAP_BYTES_MAX:
            return False  # it cannot grow: let LMDB decide whether the commit fits
        return self.map_size - file_size(self.fd) < 2 * size + _MAP_MARGIN_BYTES

    def grow(self) -> None:
        """Double the map. Needs the lead and no transaction of this thread."""
        self.barrier.closed(self._grow)

    def _grow(self) -> None:
        raw = self.mapped()
        # LMDB unmaps the pages under any open reader, pinned ones included.
        self.unpin()
        raw.reader_check()  # a dead reader's snapshot may be what fills the map
        size = 2 * min(MAP_BYTES_MAX, raw.info()["map_size"])  # set_map refuses more
        self._remap(raw, size)
        self.map_bytes = max(self.map_bytes, size)
        self._is_cramped = False

    def grow_ahead(self) -> None:
        """Double the map ahead of need; carry on without if the system refuses."""
        try:
            self.grow()
        except StoreFullError:
            self._is_cramped = True  # the file's free pages may suffice

    def follow_map(self, _: Any = None) -> None:
        """Remap the file at the size to which another process grew it. Needs the lead."""
        self.barrier.closed(self._follow)

    def _follow(self) -> None:
        if self.raw is None:
            return  # reopening maps it at its current size
        self.unpin()
        self._remap(self.mapped(), 0)

    def _remap(self, raw: binding.RawEnv, map_bytes: int) -> None:
        try:
            binding.set_map(raw, map_bytes)
            self.map_size = raw.info()["map_size"]
        except StorageError:  # LMDB drops a map that it cannot replace: reopen at the next use
            self.detach(settle=False, again=True)
            raise

    def pin(self) -> tuple[Any, bytes]:
        """Return a reader of the newest snapshot, and that snapshot's meta image.

        Its pages are not overwritten until the reader is aborted. Only for the thread that has the
        lead, or inside ``hold``; ``unpin`` tells those in ``pinned`` to abort theirs.

        Raises:
            MapResized: another process grew the map; follow it first.
        """
        tries = 0
        while True:
            try:
                reader = self.mapped().begin()
                try:
                    image = image_of(self.fd, reader.id())
                except BaseException:
                    # Nobody else knows of this reader, whose pages could never be used again.
                    reader.abort()
                    raise
                if image is not None:
                    return reader, image
                reader.abort()  # others committed meanwhile: there is a newer snapshot
                tries += 1
                if not tries % _PIN_TRIES:
                    # A writer killed between writing its meta page and updating LMDB's lock table
                    # hides its commit from readers until the next writer takes the lock.
                    self.mapped().begin(write=True).abort()
            except ReadersFull:
                if not self.mapped().reader_check():
                    raise

    def unpin(self) -> None:
        """Abort all pinned readers: the map is about to be replaced. Needs the lead."""
        if self.steady_sync is not None:
            self.steady_sync.let_go()
        self.let_pins_go()

    def let_pins_go(self) -> None:
        """Abort the readers of ``holders``. Needs the lead and a shut barrier."""
        for holder in self.holders():
            holder.let_go()

    def holders(self) -> list[PinHolder]:
        """Return those who keep readers that ``pin`` returned."""
        found: list[PinHolder] = []
        for number, holder in list(self.pinned.items()):
            its = holder()
            if its is not None:
                found.append(its)
            # Another object may have got the dead one's address, and with it the number.
            elif self.pinned.get(number) is holder:
                self.pinned.pop(number, None)
        return found

    def free_pins(self) -> bool:
        """Let pages be used again that a holder keeps; False if nobody does. Needs the lead."""
        if not any(holder.is_pinning for holder in self.holders()):
            return False
        self.barrier.closed(self.let_pins_go)
        return True

    def is_prompt(self) -> bool:
        """Return True if a commit now would not wait for a device. Only a hint without the lead."""
        # Read once: the leader may replace them.
        raw, redo, steady_sync = self.raw, self.redo, self.steady_sync
        if redo is not None:
            return raw is not None and redo.is_in_memory
        return raw is not None and (steady_sync is None or steady_sync.is_settled)

    def while_nobody_writes(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` under the write lock. Needs the lead."""
        self.leader.need_sound()
        lock = None
        try:
            lock = self.begin_write()
            return fn()
        finally:
            try:
                if lock is not None:
                    lock.abort()
            finally:
                # ``begin_write`` claimed the pin as for a batch, and none will give it back.
                if self.steady_sync is not None:
                    self.steady_sync.is_busy = False

    def steady(self) -> None:
        """Make everything committed before this call survive a power failure."""
        while True:
            try:
                self.hold(self._point)
                return
            except MapMovedError:
                self.queue.call(self.follow_map, job=True)

    def _point(self, _: Any) -> None:
        if self.steady_sync is not None:
            self.steady_sync.sync()

    # --- modes of being open -----------------------------------------------------------------

    def need_writable(self) -> None:
        """Reopen a read-only environment for a handle that may write."""
        if self.read_only:
            self.queue.call(self._reopen_writable, job=True)

    def _reopen_writable(self, _: Any) -> None:
        self.barrier.closed(self._attach_writable)

    def _attach_writable(self) -> None:
        if not self.read_only:
            return
        self.detach(again=True)  # in case even reopening it read-only fails
        try:
            self.attach(read_only=False)
        except BaseException:
            self.attach(read_only=True)  # the read-only handles go on
            raise

    def shut(self) -> None:
        """Close for good, after pending work. A concurrent second call waits for the first."""
        try:
            self.queue.call(self._shut, job=True)
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            # Also after an error: the writer thread would keep the environment alive.
            self.queue.retire()

    def _shut(self, _: Any) -> None:
        # Both, as ``detach`` bars new transactions first and may have been interrupted then.
        if self.is_closed and self.raw is None:
            return
        with nullcontext() if self.audit is None else store.anchored(self.audit):
            self.barrier.closed(self.detach)

    def needs_recovery(self) -> bool:
        """Return True if a redo record is waiting for a process that may write. Advisory."""
        if not self.read_only or self.redo is None:
            return False
        return self.hold(self._has_pending)

    def _has_pending(self, _: Any) -> bool:
        found = None if self.redo is None else self.redo.pending(newest_meta(self.fd, self.path))
        return found is not None

    # --- reopening ---------------------------------------------------------------------------

    def open_at_next_use(self) -> None:
        """Have the next use reopen the file, in the child of a fork."""
        self.begin = self._begin_lost if self.private else self._begin_reopened

    @property
    def is_closed(self) -> bool:
        """True if the environment was closed for good."""
        return self.begin == self._begin_closed

    def _begin_lost(self, **_: Any) -> Any:
        raise ClosedError("an in-memory store belongs to the process that opened it, not to a fork")

    def _begin_reopened(self, **options: Any) -> Any:
        with self.fork.reopening:
            # One thread of a child reopens it: LMDB refuses a file that is open already.
            if self.raw is None:
                try:
                    self.attach(read_only=self.read_only)
                except StorageError as error:
                    # The next use tries again: another process's lock may be gone by then.
                    self.begin = self._begin_reopened
                    if binding.already_open(error.__cause__):
                        raise StorageError(
                            f"{self.path}: this process was forked inside a transaction of the"
                            " store; fork outside transactions"
                        ) from error
                    raise
        return self.begin(**options)
