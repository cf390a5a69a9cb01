"""Who uses a store, as seen from outside: LMDB's table of readers, the system's table of locks.

Nothing here takes a lock or disturbs anybody. The lock file must not be opened by a process that
has the store open itself: closing any descriptor of it drops that process's own locks on it.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from memcore.errors import StoreFullError
from memcore.store.device import FULL

__all__ = ["Reader", "holders_of", "lockers_of", "readers_of", "reserve_lock"]

_LOCKS: Final = "/proc/locks"
_FIELDS: Final = 8
# LMDB 0.9's MDB_txninfo on 64-bit Linux: magic, format, mutex, txnid, readers in use; the write
# mutex in a cache line of its own; then a cache line for each reader: txnid, pid, thread.
_HEAD = Struct("<II40xQI")
_READER = Struct("<QI")
_FIRST_READER: Final = 128
_READER_BYTES: Final = 64
_LOCK_BYTES_MAX: Final = 16 * 1024**2
_MAGIC: Final = 0xBEEFC0DE
_IDLE: Final = 2**64 - 1


class Reader(NamedTuple):
    """One slot of LMDB's table of readers."""

    pid: int
    txnid: int | None
    """The snapshot that it holds; None: none at the moment."""
    is_alive: bool
    """Whether there is a process of that number."""


def readers_of(path: str) -> list[Reader] | None:
    """The readers of the store at ``path``.

    None if its lock file is not there or unknown, or if this process has it open.
    """
    try:
        content = _read_lock(f"{path}-lock")
    except OSError:
        return None
    if len(content) < _FIRST_READER:
        return None
    magic, _, _, count = _HEAD.unpack_from(content)
    if magic != _MAGIC or _FIRST_READER + count * _READER_BYTES > len(content):
        return None
    found = []
    for at in range(count):
        txnid, pid = _READER.unpack_from(content, _FIRST_READER + at * _READER_BYTES)
        if pid:
            found.append(Reader(pid, None if txnid == _IDLE else txnid, _is_alive(pid)))
    return found


def _read_lock(lock: str) -> bytes:
    """The lock file; nothing if it is none, or if closing it would give up locks of our own.

    ``holders_of`` does not see every store of this process: some file systems number their devices
    in one way for stat and in another for the table of locks.
    """
    status = os.stat(lock)
    if not stat.S_ISREG(status.st_mode) or _has_open(status):
        return b""
    with open(os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        return file.read(_LOCK_BYTES_MAX)


def _has_open(status: os.stat_result) -> bool:
    """Whether a descriptor of this process is that file."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.path.samestat(os.fstat(int(fd)), status):
                return True
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it is another user's
    return True


def holders_of(path: str) -> list[int] | None:
    """Processes that hold the file open as a store; None if the system does not tell.

    A process in another PID namespace may be missing.
    """
    try:
        return sorted(_locks_of(path, "FLOCK"))
    except (OSError, UnicodeDecodeError):
        return None


def lockers_of(path: str) -> bool:
    """Whether a process has the store open with LMDB's lock file, as far as the system tells."""
    try:
        return bool(_locks_of(f"{path}-lock", "POSIX"))
    except (OSError, UnicodeDecodeError):
        return False


def _locks_of(path: str, kind: str) -> set[int]:
    """The processes that the table of locks names for a file."""
    status = Path(path).stat()
    device = status.st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    found = set()
    for line in Path(_LOCKS).read_text(encoding="ascii").splitlines():
        fields = line.replace("-> ", "").split()
        if len(fields) >= _FIELDS and fields[1] == kind and fields[5] == wanted:
            found.add(int(fields[4]))
    return found


def reserve_lock(path: str, *, readers: int, mode: int, read_only: bool = False) -> bool:
    """Give a new lock file its blocks: LMDB maps it, and would leave it sparse.

    A page of it that a full device cannot hold would kill the process. Only for a file that this
    process has not open: closing a descriptor of it would give up LMDB's locks. The file gets the
    owner of the data, if root makes it: who looks must not lock the owner out.

    Returns:
        Whether there is a lock file to use; False only for ``read_only``: the store is to be read
        without one, because none can be had, or none that its owner could use as well.

    Raises:
        StoreFullError: the device has no room for it.
    """
    lock = f"{path}-lock"
    if read_only and not os.path.lexists(lock) and not _is_shared(path):
        return False
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        # Else LMDB knows which of these it can do without, and says what is the matter.
        return not (read_only and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS))
    try:
        try:
            if os.fstat(fd).st_size == 0:
                os.posix_fallocate(fd, 0, readers * _READER_BYTES + _FIRST_READER)
        except OSError as error:
            if error.errno in FULL:
                raise StoreFullError(
                    f"{path}: no space is left on the device for its lock file; free some"
                ) from error
        # Last, for it may be refused: the data of a file that is being made is not there yet.
        with suppress(OSError):
            _give_to_owner(fd, path)
    finally:
        os.close(fd)
    return True


def _is_shared(path: str) -> bool:
    """Whether all who may write to the data could use a lock file that this process makes."""
    status = os.stat(path)
    may_write = status.st_mode & 0o222 and os.access(path, os.W_OK, effective_ids=True)
    return bool(may_write) and os.geteuid() in (0, status.st_uid)


def _give_to_owner(fd: int, path: str) -> None:
    """Let a lock file that root opened belong to the data's owner; never what was planted there."""
    lock, data = os.fstat(fd), os.stat(path)
    is_ours = stat.S_ISREG(lock.st_mode) and lock.st_nlink == 1
    if os.geteuid() == 0 and is_ours and lock.st_uid != data.st_uid:
        os.fchown(fd, data.st_uid, data.st_gid)
