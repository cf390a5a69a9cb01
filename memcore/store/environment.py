"""One open file of this process: shared by all its handles and threads.

Only the leader of the commit queue begins write transactions, remaps, reopens and closes, so these
never meet; before the last three it shuts the gate, so no read meets them.
"""

from __future__ import annotations

import os
import stat
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar
from weakref import WeakSet

from memcore.errors import (
    ClosedError,
    CorruptStoreError,
    InternalError,
    StorageError,
    StoreAccessError,
)
from memcore.limits import MAP_BYTES_MAX
from memcore.store import lmdb as binding
from memcore.store.base import MapMovedError
from memcore.store.commit import Call, CommitQueue
from memcore.store.file import inspect, newest_meta, open_locked
from memcore.store.format import Format
from memcore.store.gate import Gate
from memcore.store.leader import Leader
from memcore.store.lmdb import MapResized, RawError, ReadersFull
from memcore.store.redo import HEAD_BYTES, RedoLog, find_run
from memcore.store.txn import Snapshot

__all__ = ["Environment"]

T = TypeVar("T")
_WALKS: Final = 5

_leaked: list[binding.RawEnv] = []
"""Environments of a parent that was in the middle of something: giving them up would harm it."""


class Environment:
    """The LMDB environment, the descriptor with its flock, the redo log and the queue."""

    def __init__(self, path: str, *, map_bytes: int) -> None:
        self.path = path
        self.map_bytes = map_bytes
        self.key: tuple[int, int] | None = None
        self.fd = -1
        self.raw: binding.RawEnv | None = None
        self.read_only = True
        self.format: Format | None = None
        self.redo: RedoLog | None = None
        self.private = False
        self.closing = False
        self.handles: WeakSet[Any] = WeakSet()
        self.gate = Gate()
        self.begin: Callable[..., Any] = self._begin_closed
        self.leader = Leader(self)
        self.queue = CommitQueue(self.leader.run, self.gate.live)
        self._reopening = RLock()
        self._claimed: Call | None = None
        self._quiet = False

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    # --- attaching ---------------------------------------------------------------------------

    def attach(self, *, read_only: bool, verify: bool = False) -> None:
        """Open the file at ``path``: lock, judge, map, recover. Leaves nothing open on failure."""
        fd = open_locked(self.path, read_only=read_only)
        try:
            status = os.fstat(fd)
            key = self._same_file(status)
            page, head = find_run(fd, inspect(fd, self.path), self.path)
            if verify:
                self.refuse(self.walk(fd))
            mode = stat.S_IMODE(status.st_mode) & 0o666
            raw, record = self._map(read_only, head, mode)
        except BaseException:
            os.close(fd)
            raise
        self.key, self.fd, self.read_only = key, fd, read_only
        self.raw, self.format = raw, record
        self.redo = RedoLog(fd, page, head) if record.durability == "full" else None
        self.leader.poison = ""
        try:
            self._same_file(Path(self.path).stat())  # LMDB opened the path, not the descriptor
            raw.reader_check()
            if self.redo is not None and not read_only:
                self.leader.recover(raw, self.redo, fd)
        except BaseException as error:  # noqa: BLE001 - raised again, as a typed one
            self.detach()
            binding.raise_from(error, self.path)
        self.begin = raw.begin

    def _same_file(self, status: os.stat_result) -> tuple[int, int]:
        key = (status.st_dev, status.st_ino)
        if self.key not in (None, key):
            raise StoreAccessError(f"{self.path}: the file was replaced; open it anew")
        return key

    def refuse(self, findings: list[str]) -> None:
        """Raise for what a walk has found."""
        if findings:
            raise binding.corrupt(self.path, findings)

    def _map(self, read_only: bool, head: bytes, mode: int) -> tuple[binding.RawEnv, Format]:
        """The environment in the mode that the file records."""
        sync = True  # until the record is known; only "none" has to open a second time
        while True:
            raw = binding.open_env(
                self.path, read_only=read_only, sync=sync, map_bytes=self.map_bytes, mode=mode
            )
            try:
                record = self._record(raw, head)
            except BaseException as error:  # noqa: BLE001 - raised again, as a typed one
                raw.close()
                binding.raise_from(error, self.path)
            if sync == (record.durability != "none"):
                return raw, record
            raw.close()
            sync = False

    def _record(self, raw: binding.RawEnv, head: bytes) -> Format:
        row, run = binding.first_rows(raw, HEAD_BYTES)
        record = Format.unpack(row, self.path)
        if run != head or record.seed != RedoLog.seed_of(head):
            raise CorruptStoreError(f"{self.path}: the redo run is not where it should be")
        return record

    def detach(self) -> None:
        """Close LMDB's environment and the descriptor. Needs the lead and a shut gate."""
        self.begin = self._begin_closed
        raw, self.raw = self.raw, None
        fd, self.fd = self.fd, -1
        try:
            if raw is not None:
                raw.close()
        finally:
            if fd >= 0:
                os.close(fd)

    def _begin_closed(self, **_: Any) -> Any:
        raise ClosedError(f"{self.path}: the store is closed; open it again")

    def walk(self, fd: int) -> list[str]:
        """The whole structure of the file, read without a map; what is wrong, in words.

        Nobody is kept from writing: findings count if no commit came in between.
        """
        for _ in range(_WALKS):
            try:
                before = inspect(fd, self.path).txnid
                findings = binding.verify(f"/dev/fd/{fd}" if self.private else self.path)
                if not findings or newest_meta(fd, self.path).txnid == before:
                    break
            except StorageError as error:
                return [str(error)]
        return findings

    def check(self) -> list[str]:
        """``walk``, with all writers waiting if this environment may make them wait."""
        if self.read_only:
            # Writers of other processes go on; the snapshot keeps what the walk may meet as it is.
            return self.read(lambda _: self.walk(self.fd))
        return self.queue.call(lambda _: self.walk(self.fd))

    # --- reading -----------------------------------------------------------------------------

    def read(self, fn: Callable[[Any], T], *, patient: bool = True) -> T:
        """Run ``fn`` on a snapshot; inside another read of this thread, on that one's."""
        gate = self.gate
        live = gate.live
        me = get_ident()
        outer = live.get(me)
        if outer is not None:
            return fn(outer)
        snapshot = Snapshot()
        try:
            live[me] = snapshot
            if gate.is_shut:
                gate.enter(me, snapshot)
            try:
                snapshot.begin(self.begin())
            except RawError as error:
                if not patient and isinstance(error, MapResized):
                    raise MapMovedError from error
                self._begin_again(me, snapshot, error)
            return fn(snapshot)
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            # LMDB's transaction ends before ``live`` forgets it: nobody unmaps under it.
            try:
                raw = snapshot.drop()
                if raw is not None:
                    raw.abort()
                    raw = None
            finally:
                live.pop(me, None)
            if gate.is_shut:
                gate.ring()

    @contextmanager
    def hold(self) -> Iterator[binding.RawEnv]:
        """LMDB's environment for a call that must not meet a remap or a close."""
        me = get_ident()
        if me in self.gate.live:
            yield self._mapped()
            return
        try:
            self.gate.enter(me, Snapshot())
            if self.raw is None:
                self.begin().abort()  # a child of a fork opens here; a closed store refuses
            yield self._mapped()
        except RawError as error:
            binding.raise_from(error, self.path)
        finally:
            self.gate.leave(me)

    def _mapped(self) -> binding.RawEnv:
        raw = self.raw
        if raw is None:
            raise ClosedError(f"{self.path}: the store is closed; open it again")
        return raw

    def _begin_again(self, me: int, snapshot: Snapshot, error: Exception) -> None:
        """After a refused begin: follow a grown map, or free the slots of dead readers."""
        for _ in range(8):
            if isinstance(error, MapResized):
                self.gate.leave(me)
                if self.queue.led_here:
                    raise InternalError("the map grew under the write lock") from error
                self.queue.call(self._follow_map, job=True)
                self.gate.enter(me, snapshot)
            elif isinstance(error, ReadersFull):
                self._mapped().reader_check()
            else:
                raise error
            try:
                snapshot.begin(self.begin())
            except RawError as again:
                error = again
            else:
                return
        raise error

    # --- the map -----------------------------------------------------------------------------

    def grow(self) -> None:
        """Double the map. Needs the lead and no transaction of this thread."""
        with self.gate.closed():
            raw = self._mapped()
            raw.reader_check()  # a dead reader's snapshot may be all that fills the map
            size = raw.info()["map_size"]
            size = min(MAP_BYTES_MAX, size)  # set_map says what to do
            binding.set_map(raw, 2 * size)
            self.map_bytes = max(self.map_bytes, 2 * size)

    def _follow_map(self, _: Any = None) -> None:
        """Map what another process made of the file. Needs the lead."""
        with self.gate.closed():
            binding.set_map(self._mapped(), 0)

    def begin_write(self) -> Any:
        """LMDB's write transaction; blocks while another process holds the write lock."""
        try:
            return self.begin(write=True)
        except MapResized:
            pass
        while True:
            self._follow_map()
            with suppress(MapResized):
                return self.begin(write=True)

    # --- modes of being open -----------------------------------------------------------------

    def need_writable(self) -> None:
        """Reopen a read-only environment for a handle that may write."""
        if self.read_only:
            self.queue.call(self._reopen_writable, job=True)

    def _reopen_writable(self, _: Any) -> None:
        with self.gate.closed():
            if not self.read_only:
                return
            self.detach()
            try:
                self.attach(read_only=False)
            except BaseException:
                self.attach(read_only=True)  # the read-only handles go on
                raise

    def shut(self) -> None:
        """Close for good, after what is under way."""
        self.queue.call(self._shut, job=True)

    def _shut(self, _: Any) -> None:
        with self.gate.closed():
            try:
                if self.leader.unsynced and self.raw is not None and not self.leader.poison:
                    self.raw.sync(True)  # the last meta page: read-only openers need no recovery
            finally:
                self.detach()

    def needs_recovery(self) -> bool:
        """Whether a redo record waits for somebody who may write. Advisory."""
        if not self.read_only or self.redo is None:
            return False
        with self.hold():
            return self.redo.pending(newest_meta(self.fd, self.path)) is not None

    # --- fork --------------------------------------------------------------------------------

    def quiesce(self, patience_seconds: float) -> None:
        """Before a fork: let transactions of other threads end, for a while.

        The child must give up LMDB's environment to open its own, but doing so clears the reader
        slots of the parent. So the parent shall have none: no read under way, none kept spare.
        """
        self._claimed = self.queue.claim(patience_seconds)
        ended = self.gate.shut(patience_seconds) and get_ident() not in self.gate.live
        raw = self.raw
        if raw is not None and self._claimed is not None and ended:
            binding.set_map(raw, raw.info()["map_size"])  # remapping ends the spare transaction
            self._quiet = True

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._quiet = False
        self.gate.open()
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            self.queue.release(claimed)

    def forget(self) -> None:
        """In the child of a fork: let go of all that belongs to the parent; reopen on next use.

        The descriptor is closed: the parent's flock lives on in the parent's own descriptor.
        """
        if not self._quiet and self.raw is not None:
            _leaked.append(self.raw)
        self.gate.reset()
        self.leader.forget()
        if self.begin != self._begin_closed:
            self.begin = self._begin_lost if self.private else self._begin_reopened
        self.raw = None
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self._claimed = None
        self._quiet = False
        self._reopening = RLock()
        self.queue.reset()

    def _begin_lost(self, **_: Any) -> Any:
        raise ClosedError("an in-memory store belongs to the process that opened it, not to a fork")

    def _begin_reopened(self, **options: Any) -> Any:
        with self._reopening:
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
