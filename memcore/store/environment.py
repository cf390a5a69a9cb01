"""One open file of this process: shared by all its handles and threads.

Only the leader of the commit queue writes, remaps, reopens and closes, so these never meet; before
the last three it shuts the gate, so no read meets them.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

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
from memcore.store.attaching import Attachment, FileKey, attach
from memcore.store.base import MapMovedError
from memcore.store.bell import Bell
from memcore.store.call import WriterNeeded
from memcore.store.commit import CommitQueue
from memcore.store.faults import watched
from memcore.store.file import newest_meta
from memcore.store.fork import Fork
from memcore.store.format import Format
from memcore.store.gate import Gate
from memcore.store.leader import Leader
from memcore.store.lmdb import MapResized, RawError, ReadersFull
from memcore.store.lockfile import lockers_of
from memcore.store.pin import Pin
from memcore.store.recorder import Recorder, anchored
from memcore.store.redo import RedoLog
from memcore.store.room import Room
from memcore.store.steady import SteadyLog
from memcore.store.txn import Snapshot
from memcore.store.vault import Vault
from memcore.store.walking import walked

__all__ = ["Environment"]

T = TypeVar("T")
_MAP_MARGIN_BYTES: Final = 256 * 1024
_COMMITS_KEPT: Final = 1
"""Commits after a snapshot that leave its pages alone, though its reader is not in the lock file:
the next but one may be under way when this one is seen."""


class Environment:
    """The LMDB environment, the descriptor with its flock, the redo log and the queue."""

    fd = -1  # here as well: ``__del__`` looks at it whatever cut ``__init__`` short
    dropped = False
    """Whether its last handle was forgotten: it waits to be closed."""
    handles: set[int] = set()  # noqa: RUF012 - each has its own

    def __init__(self, path: str, *, map_bytes: int, interval_seconds: float = 0.0) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.map_size = 0
        self._is_cramped = False
        self.interval_seconds = interval_seconds
        self.key: FileKey | None = None
        self.next_key: FileKey | None = None
        """The file that is about to take the place of this one."""
        self.raw: binding.RawEnv | None = None
        self.read_only = True
        self.is_locked = True
        """Whether writers see the readers of this environment and leave their pages alone."""
        self.oldest = FORMAT_OLDEST
        self.format: Format | None = None
        self.vault: Vault | None = None
        """What contents are encrypted with; None: the file is not, or not to be read."""
        self.redo: RedoLog | None = None
        self.pin: Pin | None = None
        self.room: Room | None = None
        self.audit: Recorder | None = None
        self.private = False
        self.closing = False
        self.handles = set()
        """The ids of the handles; nothing here keeps one alive."""
        self.gate = Gate()
        self.bell = Bell()
        self.begin: Callable[..., Any] = self._begin_closed
        self.leader = Leader(self)
        self.queue = CommitQueue(self.leader.run, self.gate.live, self.is_prompt)
        self.fork = Fork(self)

    def __del__(self) -> None:
        if self.fd >= 0 and not (self.handles or self.dropped):
            os.close(self.fd)  # opened for nobody; else whoever has it closes it

    # --- attaching ---------------------------------------------------------------------------

    def attach(self, *, read_only: bool, verify: bool = False) -> None:
        """Open the file at ``path``. Leaves nothing open on failure."""
        found = attach(
            self.path,
            read_only=read_only,
            map_bytes=self.map_bytes,
            expected=tuple(key for key in (self.key, self.next_key) if key is not None),
            oldest=self.oldest,
            judge=(lambda fd: self.refuse(self.walk(fd))) if verify else None,
        )
        self.key, self.fd, self.raw, self.format = found.key, found.fd, found.raw, found.format
        self.read_only, self.next_key = read_only, None
        self.is_locked = found.is_locked
        try:
            self._equip(found)
        except BaseException:
            self.detach(settle=False, again=True)
            raise

    def _equip(self, found: Attachment) -> None:
        """Make what goes with the mode of the file that has just been opened."""
        read_only, mode = self.read_only, found.format.durability
        self.redo = None
        if mode == "full":
            self.redo = watched(found.raw, RedoLog(found.fd, found.run))
        self.pin = self.room = None
        if not read_only and mode != "none":
            self.room = Room(found.fd, self.path)
        self.leader.poison, self.leader.unsynced = "", found.recovered
        self.begin = found.raw.begin if found.is_locked else self._begin_unlocked
        self.map_size = found.raw.info()["map_size"]
        if not read_only and mode == "relaxed":
            log = watched(found.raw, SteadyLog(found.fd, found.run))
            self.pin = Pin(self, log, found.fd, self.interval_seconds)
            last = log.newest()
            if last is None or last.txnid != newest_meta(found.fd, self.path).txnid:
                self.pin.remind()  # a process was killed before its steady point

    def refuse(self, findings: list[str]) -> None:
        """Raise for what a walk has found."""
        if findings:
            raise binding.corrupt(self.path, findings)

    def detach(self, *, settle: bool = True, again: bool = False) -> None:
        """Close LMDB's environment and the descriptor. Needs the lead and a shut gate.

        ``again``: the next use opens them; ``settle``: make what is committed durable first.
        """
        self.begin = self._begin_closed
        if again:
            self.begin = self._begin_lost if self.private else self._begin_reopened
        try:
            if settle and self.raw is not None and not self.leader.poison:
                self._settle_down()
        finally:
            pin, self.pin = self.pin, None
            raw, self.raw = self.raw, None
            fd, self.fd = self.fd, -1
            try:  # an interrupt in one of them must not cost the others
                if pin is not None:
                    pin.end()
            finally:
                try:
                    if raw is not None:
                        raw.close()
                finally:
                    if fd >= 0:
                        os.close(fd)

    def _settle_down(self) -> None:
        """Before closing: leave nothing that a power cut could take, or an opener must redo."""
        pin = self.pin
        while pin is not None and pin.is_due:
            try:
                pin.point()
            except MapMovedError:
                pin.let_go()
                binding.set_map(self.mapped(), 0)
        if self.leader.unsynced:
            self.mapped().sync(True)  # the last meta: read-only openers need no recovery

    def _begin_closed(self, **_: Any) -> Any:
        raise ClosedError(f"{self.path}: the store is closed; open it again")

    def walk(self, fd: int) -> list[str]:
        """The whole structure of the file, read without a map; what is wrong, in words."""
        return walked(fd, self.path, name=f"/dev/fd/{fd}" if self.private else self.path)

    def check(self) -> list[str]:
        """``walk``, with all writers waiting if this environment may make them wait."""
        if self.read_only:
            # Writers of other processes go on; the snapshot keeps what the walk may meet as it is.
            return self.read(lambda _: self.walk(self.fd))
        # It needs no room: whatever keeps others from writing, it goes on.
        return self.queue.call(lambda _: self.walk(self.fd), makes_room=True)

    # --- reading -----------------------------------------------------------------------------

    def read(self, fn: Callable[[Any], T], *, patient: bool = True) -> T:
        """Run ``fn`` on a snapshot; inside another read of this thread, on that one's."""
        gate = self.gate
        live = gate.live
        me = get_ident()
        outer = live.get(me)
        if outer is not None:
            return fn(outer)
        if not self.is_locked:
            fn = partial(self._read_unlocked, fn)
        snapshot = Snapshot()
        raw = None
        try:
            live[me] = snapshot
            if gate.is_shut:
                gate.enter(me, snapshot)
            try:
                raw = self.begin()
            except RawError as error:
                if not patient and isinstance(error, MapResized):
                    raise MapMovedError from error
                raw = self._begin_again(me, snapshot, error)
            snapshot.begin(raw, self.vault)
            return fn(snapshot)
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            # LMDB's transaction ends before ``live`` forgets it: nobody unmaps under it. Both are
            # done by functions in C, so that no interrupt comes before (see ``Gate``).
            try:
                if raw is not None:
                    raw.abort()
            finally:
                live.pop(me, None)
            raw = None  # whoever keeps an error keeps this frame
            snapshot.drop()
            if gate.is_shut:
                gate.ring()

    def _begin_unlocked(self, **options: Any) -> Any:
        """A snapshot that no writer knows of: only while nobody has the file open to write.

        A writer that opens it afterwards may overwrite pages of the snapshot with its third commit
        (it takes what the last but one of its commits let go). ``_read_unlocked`` finds that out.
        """
        if lockers_of(self.path):
            raise StoreLockedError(
                f"{self.path}: another process has it open, and its lock file {self.path}-lock "
                "cannot be shared: get write permission for that file, or read a backup"
            )
        return self.mapped().begin(**options)

    def _read_unlocked(self, fn: Callable[[Any], T], snapshot: Any) -> T:
        """Run ``fn``, and prove that what it read was not overwritten meanwhile."""
        try:
            return fn(snapshot)
        finally:
            if newest_meta(self.fd, self.path).txnid > snapshot.raw.id() + _COMMITS_KEPT:
                raise StoreAccessError(
                    f"{self.path}: it was changed while it was read without its lock file: try "
                    f"again, or get write permission for {self.path}-lock"
                )

    def hold(self, fn: Callable[[binding.RawEnv], T]) -> T:
        """Run ``fn`` on LMDB's environment, for calls that must not meet a remap or a close."""
        gate = self.gate
        live = gate.live
        me = get_ident()
        if me in live:
            return fn(self.mapped())
        try:
            gate.enter(me, Snapshot())
            if self.raw is None:
                self.begin().abort()  # a child of a fork opens here; a closed store refuses
            return fn(self.mapped())
        except (RawError, OSError) as error:
            binding.raise_from(error, self.path)
        finally:
            live.pop(me, None)
            if gate.is_shut:
                gate.ring()

    def mapped(self) -> binding.RawEnv:
        """LMDB's environment. For whoever has the lead, or is inside ``hold``."""
        raw = self.raw
        if raw is None:
            raise ClosedError(f"{self.path}: the store is closed; open it again")
        return raw

    def _begin_again(self, me: int, snapshot: Snapshot, error: Exception) -> Any:
        """After a refused begin: follow a grown map, or free the slots of dead readers."""
        for _ in range(8):
            if isinstance(error, MapResized):
                self.gate.live.pop(me, None)
                if self.queue.led_here:
                    raise InternalError("the map grew under the write lock") from error
                self.queue.call(self.follow_map, job=True)
                self.gate.enter(me, snapshot)
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
        """Whether a commit of so many bytes might find the map full.

        LMDB would let the lock go then, and while others commit nobody could tell any more whether
        an opener has replayed the record of this one.
        """
        if self._is_cramped or 2 * self.map_size > MAP_BYTES_MAX:
            return False  # it cannot grow: LMDB shall say whether there is a way
        return self.map_size - os.fstat(self.fd).st_size < 2 * size + _MAP_MARGIN_BYTES

    def grow(self) -> None:
        """Double the map. Needs the lead and no transaction of this thread."""
        self.gate.closed(self._grow)

    def _grow(self) -> None:
        raw = self.mapped()
        self.unpin()
        raw.reader_check()  # a dead reader's snapshot may be all that fills the map
        size = 2 * min(MAP_BYTES_MAX, raw.info()["map_size"])  # above it set_map refuses
        self._remap(raw, size)
        self.map_bytes = max(self.map_bytes, size)
        self._is_cramped = False

    def grow_ahead(self) -> None:
        """Double the map before it has to be; go on without if the system refuses."""
        try:
            self.grow()
        except StoreFullError:
            self._is_cramped = True  # the free pages of the file may do

    def follow_map(self, _: Any = None) -> None:
        """Map what another process made of the file. Needs the lead."""
        self.gate.closed(self._follow)

    def _follow(self) -> None:
        if self.raw is None:
            return  # whoever opens it again maps it as it is
        self.unpin()
        self._remap(self.mapped(), 0)

    def _remap(self, raw: binding.RawEnv, map_bytes: int) -> None:
        try:
            binding.set_map(raw, map_bytes)
            self.map_size = raw.info()["map_size"]
        except StorageError:  # LMDB gives up what it cannot map: opened again at the next use
            self.detach(settle=False, again=True)
            raise

    def unpin(self) -> None:
        """Drop the pin of a relaxed file: the map is about to be replaced. Needs the lead."""
        if self.pin is not None:
            self.pin.let_go()

    def is_prompt(self) -> bool:
        """Whether a commit now would wait for no device. A hint without the lead."""
        raw, redo, pin = self.raw, self.redo, self.pin  # whoever has the lead may replace them
        if redo is not None:
            return raw is not None and redo.is_in_memory
        return raw is not None and (pin is None or pin.is_settled)

    def begin_write(self, *, hurried: bool = False) -> Any:
        """LMDB's write transaction; blocks while another process holds the write lock.

        Raises:
            WriterNeeded: ``hurried``, and something has to be waited for first.
        """
        while True:
            try:
                if self.raw is None:
                    self.begin().abort()  # a child of a fork opens here; a closed store refuses
                if self.pin is not None:
                    self.pin.ready(hurried=hurried)
                return self.begin(write=True)
            except (MapResized, MapMovedError) as error:
                if hurried:
                    raise WriterNeeded from error
                self.follow_map()  # which drops the pin

    def while_nobody_writes(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` under the write lock. Needs the lead."""
        self.leader.need_sound()
        lock = self.begin_write()
        try:
            return fn()
        finally:
            lock.abort()
            if self.pin is not None:
                self.pin.is_busy = False

    def steady(self) -> None:
        """Make everything that was committed before this call survive a power cut."""
        while True:
            try:
                self.hold(self._point)
                return
            except MapMovedError:
                self.queue.call(self.follow_map, job=True)

    def _point(self, _: Any) -> None:
        if self.pin is not None:
            self.pin.point()

    # --- modes of being open -----------------------------------------------------------------

    def need_writable(self) -> None:
        """Reopen a read-only environment for a handle that may write."""
        if self.read_only:
            self.queue.call(self._reopen_writable, job=True)

    def _reopen_writable(self, _: Any) -> None:
        self.gate.closed(self._attach_writable)

    def _attach_writable(self) -> None:
        if not self.read_only:
            return
        self.detach(again=True)  # should it not even open as it was
        try:
            self.attach(read_only=False)
        except BaseException:
            self.attach(read_only=True)  # the read-only handles go on
            raise

    def shut(self) -> None:
        """Close for good, after what is under way. Whoever comes second waits for the first."""
        try:
            self.queue.call(self._shut, job=True)
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            self.queue.retire()

    def _shut(self, _: Any) -> None:
        if self.is_closed and self.raw is None:
            return
        with anchored(self.audit):
            self.gate.closed(self.detach)

    def needs_recovery(self) -> bool:
        """Whether a redo record waits for somebody who may write. Advisory."""
        if not self.read_only or self.redo is None:
            return False
        return self.hold(self._has_pending)

    def _has_pending(self, _: Any) -> bool:
        found = None if self.redo is None else self.redo.pending(newest_meta(self.fd, self.path))
        return found is not None

    # --- reopening ---------------------------------------------------------------------------

    def open_at_next_use(self) -> None:
        """The environment is gone: a fork left it to the parent."""
        self.begin = self._begin_lost if self.private else self._begin_reopened

    @property
    def is_closed(self) -> bool:
        """Whether it was closed for good."""
        return self.begin == self._begin_closed

    def _begin_lost(self, **_: Any) -> Any:
        raise ClosedError("an in-memory store belongs to the process that opened it, not to a fork")

    def _begin_reopened(self, **options: Any) -> Any:
        with self.fork.reopening:
            if self.raw is None:
                try:
                    self.attach(read_only=self.read_only)
                except StorageError as error:
                    self.begin = self._begin_reopened
                    if binding.already_open(error.__cause__):
                        raise StorageError(
                            f"{self.path}: this process was forked inside a transaction of the"
                            " store; fork outside transactions"
                        ) from error
                    raise
        return self.begin(**options)
