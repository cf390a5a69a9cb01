"""Steady records: the snapshot that a ``"relaxed"`` file goes back to when the power was cut.

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
import random
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from xxhash import xxh3_64_intdigest

from memcore.errors import CorruptStoreError, StorageError, StoreAccessError, StoreLockedError
from memcore.store.file import (
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
from memcore.store.run import Run

__all__ = ["Steady", "SteadyLog", "boot_id", "image_of", "settle"]

T = TypeVar("T")

_MAGIC: Final = b"memcore-steady1\x00"
_RECORD = Struct(f"<16sQ16s{META_IMAGE_BYTES}s")  # magic, number, boot, meta image
_CHECK = Struct("<Q")
_RECORD_BYTES: Final = _CHECK.size + _RECORD.size
_FLOCK = Struct("hhxxxxqqixxxx")  # struct flock of 64-bit Linux
_PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02


class Steady(NamedTuple):
    """One record: where it lies, its number, its boot, and the meta image to go back to."""

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
    """What names the time since this machine's memory was last empty, in 16 bytes.

    Raises:
        StoreAccessError: this system does not tell.
    """
    try:
        return UUID(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()).bytes
    except (OSError, ValueError) as error:
        raise StoreAccessError(
            'durability="relaxed" needs /proc/sys/kernel/random/boot_id, which this system does'
            ' not have; use "full"'
        ) from error


class SteadyLog:
    """The steady records of one open file."""

    __slots__ = ("_fd", "_free", "_own", "_run", "_seed", "boot")

    def __init__(self, fd: int, run: Run) -> None:
        self._fd = fd
        self._run = run
        self._seed = int.from_bytes(run.seed[:8], "little")
        self.boot = boot_id()
        self._own = _FLOCK.pack(fcntl.F_WRLCK, 0, run.slots[0], 1, 0)
        self._free = _FLOCK.pack(fcntl.F_UNLCK, 0, run.slots[0], 1, 0)

    def locked(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while no other process writes a record; a killed holder lets go by itself.

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


def settle(fd: int, run: Run, path: str, *, read_only: bool) -> None:
    """Before LMDB maps a relaxed file: go back to the steady point if memory was lost since.

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
            time.sleep(random.uniform(0, _LOOK_SECONDS))  # noqa: S311 - no secret
            share(fd, path)
            require_same(fd, path)
