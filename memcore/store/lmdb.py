"""The binding to LMDB: the only module that imports it, and the one place that names its errors."""

from __future__ import annotations

import errno
import os
from typing import Final, NoReturn

import lmdb
from lmdb import verify as _verify

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
from memcore.store.device import FULL
from memcore.store.file import damage_of
from memcore.store.format import FORMAT_KEY, REDO_KEY
from memcore.store.lockfile import reserve_lock

__all__ = [
    "MapFull",
    "MapResized",
    "RawEnv",
    "RawError",
    "ReadersFull",
    "already_open",
    "amend",
    "build",
    "corrupt",
    "first_rows",
    "is_device_error",
    "library_version",
    "open_env",
    "raise_from",
    "set_map",
    "translate",
    "verify",
]

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
    """Map the file; the map is halved until the system grants it.

    A read-only environment has no lock (``flags()["lock"]``) where no lock file can be had.
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
            continue  # another process grew the file just now: look again how large it is
        except lmdb.Error as error:
            raise _translate_opening(error, path) from error


def build(path: str, rows: dict[bytes, bytes], *, sync: bool, mode: int) -> None:
    """Make a new file that holds ``rows``, flushed to the device if ``sync``."""
    reserve_lock(path, readers=READERS_MAX, mode=mode)
    try:
        # The format of 0.9 is what every binding and tool reads; an existing file says its own.
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
    """Put or delete rows in a file that nobody else has open, flushed to the device."""
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


def first_rows(env: lmdb.Environment, head_bytes: int) -> tuple[bytes | None, bytes]:
    """The format record, and the first bytes of the reserved run."""
    with env.begin(buffers=True) as txn:
        record = txn.get(FORMAT_KEY)
        run = txn.get(REDO_KEY, default=b"")
        return (None if record is None else bytes(record)), bytes(run[:head_bytes])


def set_map(env: lmdb.Environment, map_bytes: int) -> None:
    """Remap to ``map_bytes`` (0: what the file says); no transaction of this process may live."""
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
    """Walk the whole file without mapping it; findings in words.

    LMDB's own verifier does not ask whether separators fit the rows below them, whether all leaves
    lie equally deep, or whether nodes overlap: that is judged first.
    """
    with open(path, "rb") as file:
        damage = damage_of(file.fileno(), path)
    try:
        findings: list[str] = _verify.verify(path, subdir=False)  # type: ignore[no-untyped-call]
    except _verify.VerifyError as error:
        return [*damage, str(error)]
    return damage + findings


def corrupt(path: str, findings: list[str]) -> CorruptStoreError:
    """The error for what ``verify`` found."""
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return CorruptStoreError(f"{path}: {findings[0]}{more}; restore a backup")


def library_version() -> str:
    """The version of LMDB itself."""
    return ".".join(map(str, lmdb.version()))


def is_device_error(error: BaseException) -> bool:
    """Whether a flush or write failed in a way after which page cache and device may differ."""
    if isinstance(error, OSError):
        return error.errno == errno.EIO
    return isinstance(error, lmdb.Error) and _EIO_TEXT in str(error)


def _is_full(error: BaseException) -> bool:
    """Whether the device, a quota or a limit refused more bytes; LMDB tells two of them by text."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(os.strerror(number) in str(error) for number in FULL)


def translate(error: BaseException, path: str) -> BaseException:
    """The typed error for what LMDB or the system raised; anything else is handed back as it is."""
    if isinstance(error, SystemError) and isinstance(error.__cause__, lmdb.Error):
        error = error.__cause__  # py-lmdb: a cursor's delete returns although it failed
    if isinstance(error, MemcoreError) or not isinstance(error, lmdb.Error | OSError):
        return error
    if isinstance(error, lmdb.LockError):
        return StoreLockedError(_LOCK_TEXT.format(path=path, error=error))
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
        if os.strerror(number) in text:
            return StoreAccessError(f"{path}: {text}; {hint}")
    if isinstance(error, lmdb.ReadonlyError):
        return StoreAccessError(f"{path}: {text}; {_OPENING_HINTS[13]}")
    if isinstance(error, lmdb.MemoryError):
        return StorageError(f"{path}: {text}; not even a small map fits: raise ulimit -v")
    return translate(error, path)


_OPENING_HINTS: Final[dict[int, str]] = {
    1: "get permission for the file and for its lock file beside it",
    2: "is its directory there?",
    13: "open it with read_only=True, or get write permission for the file and its directory",
    30: "the file system is read-only: open it with read_only=True",
}


def already_open(error: BaseException | None) -> bool:
    """Whether LMDB refused because an environment that nobody holds any more still lives."""
    return error is not None and "already open" in str(error)


def raise_from(error: BaseException, path: str) -> NoReturn:
    """Raise the typed error with LMDB's own as its cause."""
    typed = translate(error, path)
    if typed is error:
        raise error
    raise typed from error
