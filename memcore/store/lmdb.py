"""Binding to LMDB: the only module that imports it; also its lock file and its errors."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn

import lmdb

from memcore.errors import (
    ClosedError,
    CorruptStoreError,
    InternalError,
    MemcoreError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
)
from memcore.limits import MAP_BYTES_MAX, MAP_BYTES_MIN, READERS_MAX
from memcore.store.datafile import DAMAGED, FORMAT_KEY, FULL, REDO_KEY, damage_of

__all__ = [
    "MapFull",
    "MapResized",
    "RawEnv",
    "RawError",
    "ReaderSlot",
    "ReadersFull",
    "already_open",
    "amend",
    "build",
    "corrupt",
    "first_rows",
    "holders_of",
    "is_device_error",
    "library_version",
    "lockers_of",
    "open_env",
    "raise_from",
    "readers_of",
    "reserve_lock",
    "rows_of",
    "set_map",
    "translate",
    "verify",
]


# --- Users of a store, seen from outside: LMDB's reader table, the system's lock table ------------
# Nothing here takes a lock or affects other processes. A process that has the store open must not
# open the lock file here: closing any descriptor of it drops that process's own locks on it.

_LOCKS: Final = "/proc/locks"
_FIELDS: Final = 8
# LMDB 0.9's MDB_txninfo on 64-bit Linux: magic, format, mutex, txnid, readers in use; the write
# mutex in its own cache line; then one cache line per reader: txnid, pid, thread.
_HEAD = Struct("<II40xQI")
_READER = Struct("<QI")
_FIRST_READER: Final = 128
_READER_BYTES: Final = 64
_LOCK_BYTES_MAX: Final = 16 * 1024**2
_MAGIC: Final = 0xBEEFC0DE
_IDLE: Final = 2**64 - 1


class ReaderSlot(NamedTuple):
    """One slot of LMDB's reader table."""

    pid: int
    txnid: int | None
    """Snapshot that the reader holds; None if it holds none at the moment."""
    is_alive: bool
    """True if a process with that id exists."""


def readers_of(path: str) -> list[ReaderSlot] | None:
    """Return the readers of the store at ``path``.

    None if its lock file is missing or malformed, or if this process has it open.
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
            found.append(ReaderSlot(pid, None if txnid == _IDLE else txnid, _is_alive(pid)))
    return found


def _read_lock(lock: str) -> bytes:
    """Read the lock file; empty if it is irregular, or if closing it would drop our own locks.

    ``holders_of`` cannot be used to check for that: on some file systems the device numbers in stat
    differ from those in the system's lock table.
    """
    status = os.stat(lock)
    if not stat.S_ISREG(status.st_mode) or _has_open(status):
        return b""
    with open(os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        return file.read(_LOCK_BYTES_MAX)


def _has_open(status: os.stat_result) -> bool:
    """Return True if a descriptor of this process refers to that file."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.path.samestat(os.fstat(int(fd)), status):
                return True
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it belongs to another user
    return True


def holders_of(path: str) -> list[int] | None:
    """List the processes that have the file open as a store; None if that cannot be determined.

    A process in another PID namespace may be missing.
    """
    try:
        return sorted(_locks_of(path, "FLOCK"))
    except (OSError, UnicodeDecodeError):
        return None


def lockers_of(path: str) -> bool:
    """Return True if a process is known to hold a store's LMDB lock file."""
    try:
        return bool(_locks_of(f"{path}-lock", "POSIX"))
    except (OSError, UnicodeDecodeError):
        return False


def _locks_of(path: str, kind: str) -> set[int]:
    """Return the processes that the system's lock table lists for a file."""
    status = os.stat(path)
    device = status.st_dev
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    found = set()
    with open(_LOCKS, encoding="ascii") as file:
        lines = file.read().splitlines()
    for line in lines:
        fields = line.replace("-> ", "").split()
        if len(fields) >= _FIELDS and fields[1] == kind and fields[5] == wanted:
            found.add(int(fields[4]))
    return found


def reserve_lock(path: str, *, readers: int, mode: int, read_only: bool = False) -> bool:
    """Preallocate a new lock file: LMDB maps it, and would leave it sparse.

    A fault on a page that a full device cannot allocate would kill the process. Only for a file
    that this process does not have open: closing a descriptor of it would drop LMDB's locks. If
    root creates it, it gets the data file's owner: a read by root must not lock the owner out.

    Returns:
        True if there is a lock file to use. False only if ``read_only``: the store must be read
        without one, because none can be created, or none that its owner could also use.

    Raises:
        StoreFullError: the device has no space for it.
    """
    lock = f"{path}-lock"
    if read_only and not os.path.lexists(lock) and not _is_shared(path):
        return False
    try:
        # Follows no link: root may create this file in a directory where others can write.
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        # Otherwise LMDB decides which of these errors it can tolerate, and reports the others.
        return not (read_only and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS))
    try:
        try:
            if os.fstat(fd).st_size == 0:
                os.posix_fallocate(fd, 0, readers * _READER_BYTES + _FIRST_READER)
        except OSError as error:
            # Others mean that nothing can be preallocated: LMDB will size the file.
            if error.errno in FULL:
                raise StoreFullError(
                    f"{path}: no space is left on the device for its lock file; free some"
                ) from error
        # Last, because it may fail: a file that is being created has no data yet.
        with suppress(OSError):
            _give_to_owner(fd, path)
    finally:
        os.close(fd)
    return True


def _is_shared(path: str) -> bool:
    """Return True if all users with write access could use a lock file made by this process."""
    status = os.stat(path)
    may_write = status.st_mode & 0o222 and os.access(path, os.W_OK, effective_ids=True)
    return bool(may_write) and os.geteuid() in (0, status.st_uid)


def _give_to_owner(fd: int, path: str) -> None:
    """Give a lock file that root opened to the data's owner, unless it is a planted file."""
    lock, data = os.fstat(fd), os.stat(path)
    is_ours = stat.S_ISREG(lock.st_mode) and lock.st_nlink == 1
    if os.geteuid() == 0 and is_ours and lock.st_uid != data.st_uid:
        os.fchown(fd, data.st_uid, data.st_gid)


# --- The binding to LMDB: the only place that imports it and translates its errors ----------------

RawEnv = lmdb.Environment
RawError: Final = lmdb.Error
MapFull: Final = lmdb.MapFullError
MapResized: Final = lmdb.MapResizedError
ReadersFull: Final = lmdb.ReadersFullError

_SPARE_TXNS: Final = 8
_BUILD_MAP_BYTES: Final = 4 * 1024**2
_EIO_TEXT: Final = os.strerror(errno.EIO)


def open_env(
    path: str, *, read_only: bool, sync: bool, map_bytes: int, mode: int
) -> lmdb.Environment:
    """Map the file; the map size is halved until the system grants it.

    A read-only environment has no lock (``flags()["lock"]``) if no lock file can be created.
    """
    lock = reserve_lock(path, readers=READERS_MAX, mode=mode, read_only=read_only)
    while True:
        try:
            return lmdb.open(
                path,
                subdir=False,
                create=False,
                readonly=read_only,
                lock=lock,
                # In ``full`` the redo record stands in for the flush of the meta page; without
                # ``sync`` LMDB flushes nothing anyway.
                metasync=False,
                sync=sync,
                map_size=map_bytes,
                max_readers=READERS_MAX,
                max_spare_txns=_SPARE_TXNS,
                mode=mode,
            )
        except lmdb.MemoryError as error:
            if map_bytes // 2 < MAP_BYTES_MIN:
                raise _translate_opening(error, path) from error
            map_bytes //= 2
        except lmdb.MapResizedError:
            continue  # another process just grew the file: retry with its new size
        except lmdb.Error as error:
            raise _translate_opening(error, path) from error


def build(path: str, rows: dict[bytes, bytes], *, sync: bool, mode: int) -> None:
    """Create a file that contains ``rows``, flushed to the device if ``sync``."""
    reserve_lock(path, readers=READERS_MAX, mode=mode)
    try:
        # All bindings and tools read the 0.9 format; an existing file records its own.
        with lmdb.open(
            path,
            subdir=False,
            sync=sync,
            map_size=_BUILD_MAP_BYTES,
            max_readers=READERS_MAX,
            lib_version=0,
            mode=mode,
        ) as env:
            with env.begin(write=True) as txn:
                for key, value in rows.items():
                    txn.put(key, value)
            env.sync(sync)
    except lmdb.Error as error:
        raise _translate_opening(error, path) from error


def amend(path: str, rows: dict[bytes, bytes | None]) -> None:
    """Put or delete rows in a file that no other process has open, flushed to the device."""
    try:
        with lmdb.open(path, subdir=False, create=False, max_readers=READERS_MAX) as env:
            while True:
                try:
                    with env.begin(write=True) as txn:
                        for key, value in rows.items():
                            if value is None:
                                txn.delete(key)
                            else:
                                txn.put(key, value)
                    break
                except lmdb.MapFullError:
                    set_map(env, 2 * env.info()["map_size"])
            env.sync(True)
    except lmdb.Error as error:
        raise_from(error, path)


def rows_of(path: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Read some keys of a file that no other process has open."""
    try:
        with (
            lmdb.open(path, subdir=False, create=False, readonly=True, lock=False) as env,
            env.begin() as txn,
        ):
            found = {key: txn.get(key) for key in keys}
    except lmdb.Error as error:
        raise_from(error, path)
    return {key: value for key, value in found.items() if value is not None}


def first_rows(env: lmdb.Environment, head_bytes: int) -> tuple[bytes | None, bytes]:
    """Read the format record and the first bytes of the reserved run."""
    with env.begin(buffers=True) as txn:
        record = txn.get(FORMAT_KEY)
        run = txn.get(REDO_KEY, default=b"")
        return (None if record is None else bytes(record)), bytes(run[:head_bytes])


def set_map(env: lmdb.Environment, map_bytes: int) -> None:
    """Remap to ``map_bytes`` (0: as recorded). This process must have no open transaction.

    Raises:
        StoreFullError: the map would be too large for memcore or for the system.
    """
    path = env.path()
    if map_bytes > MAP_BYTES_MAX:
        raise StoreFullError(
            f"{path}: the store would need a map above {MAP_BYTES_MAX} bytes; delete data"
        )
    try:
        env.set_mapsize(map_bytes)
    except lmdb.MemoryError as error:
        raise StoreFullError(
            f"{path}: the system grants no address space for a map of {map_bytes} bytes;"
            " raise the limit (ulimit -v)"
        ) from error


def verify(path: str) -> list[str]:
    """Verify the whole file without mapping it; returns the findings as messages.

    LMDB's own verifier does not check that separators match the rows below them, that all leaves
    are at the same depth, or that nodes do not overlap, so that is checked first.
    """
    from lmdb import verify as _verify  # noqa: PLC0415 - only checks need it

    with open(path, "rb") as file:
        damage = damage_of(file.fileno(), path)
    verifier: Any = _verify._Verifier  # noqa: SLF001 - it has no other way to set this
    verifier.MAX_ERRORS = _FINDINGS_OF_DAMAGED if damage else _FINDINGS_OF_SOUND
    try:
        findings: list[str] = _verify.verify(path, subdir=False)  # type: ignore[no-untyped-call]
    except _verify.VerifyError as error:
        return [*damage, str(error)]
    return [*damage, *_without_surplus(findings)]


_FINDINGS_OF_DAMAGED: Final = 200
_FINDINGS_OF_SOUND: Final = 2**20
"""Findings at which LMDB's verifier stops; a sound file may have many of the runs below."""
_SURPLUS = re.compile(r"(\w+) DB: overflow page \d+ header mp_pages (\d+) != OVPAGES\(\d+\)=(\d+)")
_WALKED = re.compile(r"(\w+) DB: walked (\d+) overflow pages, record says (\d+)")
_UNREACHED = re.compile(r"(\d+) page\(s\) are neither reachable")


def _without_surplus(findings: list[str]) -> Iterator[str]:
    """Yield the findings that runs longer than their values do not explain.

    LMDB makes such runs: it writes a value over a longer one that the same transaction wrote. Its
    verifier reports the run, the count of the tree's pages and the pages that it did not visit.
    """
    surplus = {"main": 0, "freeDB": 0}
    matches = map(_SURPLUS.match, findings)
    longer = [found for found in matches if found and int(found[2]) > int(found[3])]
    for found in longer:
        surplus[found[1]] = surplus.get(found[1], 0) + int(found[2]) - int(found[3])
    explained = {found.string for found in longer}
    for finding in findings:
        counts, pages = _WALKED.match(finding), _UNREACHED.match(finding)
        is_count = counts and int(counts[3]) - int(counts[2]) == surplus.get(counts[1])
        is_total = pages and longer and int(pages[1]) == sum(surplus.values())
        if not (finding in explained or (longer and is_count) or is_total):
            yield finding


def corrupt(path: str, findings: list[str]) -> CorruptStoreError:
    """Return the error for the findings of ``verify``."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    first = findings[0].removeprefix(f"{path}: ").removesuffix(f"; {DAMAGED}")
    return CorruptStoreError(f"{path}: {first}{more}; {DAMAGED}")


def library_version() -> str:
    """Return the version of LMDB itself."""
    return ".".join(map(str, lmdb.version()))


def is_device_error(error: BaseException) -> bool:
    """Return True for a failed flush or write after which the page cache and device may differ."""
    if isinstance(error, OSError):
        return error.errno == errno.EIO
    return isinstance(error, lmdb.Error) and _EIO_TEXT in str(error)


def _is_full(error: BaseException) -> bool:
    """Return True if the device, a quota or a limit refused more bytes.

    LMDB reports some of these errors only as text.
    """
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(os.strerror(number) in str(error) for number in FULL)


def translate(error: BaseException, path: str) -> BaseException:
    """Translate an error of LMDB or the system to a typed one; others are returned unchanged."""
    if isinstance(error, SystemError) and isinstance(error.__cause__, lmdb.Error):
        error = error.__cause__  # py-lmdb: a cursor's failed delete returns with the error set
    if isinstance(error, MemcoreError) or not isinstance(error, lmdb.Error | OSError):
        return error
    if isinstance(error, lmdb.LockError):
        return StoreLockedError(_LOCK_TEXT.format(path=path, error=error))
    # py-lmdb has no class of its own for this error.
    if "closed/deleted/dropped" in str(error):
        return ClosedError(f"{path}: the store or the transaction has ended")
    if _is_full(error):
        return StoreFullError(f"{path}: {error}; free space on the device: nothing was stored")
    for kinds, typed, advice in _TYPED:
        if isinstance(error, kinds):
            return typed(f"{path}: {error}; {advice}")
    return StorageError(f"{path}: {error}; close the store, check the device and the file")


_TYPED: Final[tuple[tuple[tuple[type[Exception], ...], type[MemcoreError], str], ...]] = (
    ((lmdb.MapFullError, lmdb.TxnFullError), StoreFullError,
     "write less in one transaction or delete data"),
    ((lmdb.DiskError,), StoreFullError,
     "free space on the device: nothing was stored or lost"),
    ((lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PageFullError,
      lmdb.CursorFullError), CorruptStoreError,
     "close the store and run check on a copy"),
    ((lmdb.VersionMismatchError,), StoreFormatError, "the file is of another LMDB format"),
    ((lmdb.ReadersFullError,), StorageError,
     f"{READERS_MAX} reads are under way or their processes hang: end some"),
    ((lmdb.PanicError,), StorageError,
     "a meta page could not be written: close the store, check the device, open it again"),
    ((lmdb.ReadonlyError,), ReadOnlyError, "open the store for writing"),
    ((lmdb.BadTxnError,), StorageError,
     "something failed in this transaction before: close the store and run check on a copy"),
    ((lmdb.BadValsizeError, lmdb.InvalidParameterError), InternalError,
     "please report this"),
)  # fmt: skip

_LOCK_TEXT: Final = (
    "{path}: {error}: the lock file is held under this process id by another process; processes"
    " in different PID namespaces (containers) cannot share one store: give them one PID namespace"
)


def _translate_opening(error: lmdb.Error, path: str) -> BaseException:
    text, lock = str(error), f"{path}-lock"
    if _is_full(error):
        return translate(error, path)
    if os.path.lexists(lock) and not os.access(lock, os.R_OK | os.W_OK):
        return StoreAccessError(
            f"{path}: {text}; its lock file {lock} is another user's: get permission for it, or "
            "remove it if no process has the database open"
        )
    for number, hint in _OPENING_HINTS.items():
        is_refused = number == errno.EACCES and isinstance(error, lmdb.ReadonlyError)
        if is_refused or os.strerror(number) in text:
            return StoreAccessError(f"{path}: {text}; {hint}")
    if already_open(error):
        return StoreLockedError(f"{path} is open in this process; close its handles first")
    if isinstance(error, lmdb.MemoryError):
        return StorageError(f"{path}: {text}; not even a small map fits: raise ulimit -v")
    return translate(error, path)


_OPENING_HINTS: Final[dict[int, str]] = {
    1: "get permission for the file and for its lock file beside it",
    2: "is its directory there?",
    errno.EACCES: (
        "open it with read_only=True, or get write permission for the file and its directory"
    ),
    30: "the file system is read-only: open it with read_only=True",
}


def already_open(error: BaseException | None) -> bool:
    """Return True if LMDB refused because an environment without handles is still open."""
    return error is not None and "already open" in str(error)


def raise_from(error: BaseException, path: str) -> NoReturn:
    """Raise the typed error, with LMDB's own as its cause."""
    typed = translate(error, path)
    if typed is error:
        raise error
    raise typed from error
