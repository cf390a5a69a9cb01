"""Open a data file: create, lock, check, recover, map."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from memcore.codec.values import clock_ms
from memcore.errors import (
    CorruptStoreError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
)
from memcore.files import sync_directory
from memcore.limits import FORMAT_OLDEST
from memcore.store import lmdb as binding
from memcore.store.datafile import (
    ENCRYPTED,
    FORMAT_KEY,
    LOCK,
    REDO_KEY,
    Format,
    drop_pages,
    inspect,
    is_cramped,
    is_name_of,
    need_one_name,
    never_still,
    newest_meta,
    open_locked,
    publish,
    replace_empty,
    temporary_name,
)
from memcore.store.lmdb import MapFull, MapResized
from memcore.store.redo_log import SEED_BYTES, RedoArea, RedoLog, find_run, make_run
from memcore.store.steady import SteadyLog, settle

__all__ = [
    "Attachment",
    "FileAccess",
    "FileKey",
    "attach",
    "build_file",
    "create_file",
    "file_access",
    "new_record",
    "recover",
    "walked",
]


# --- Attaching to a file: lock, roll back after a power failure, check, map, recover --------------

FileKey = tuple[int, int]
"""Device and inode: the identity of a file, independent of its name."""


class FileAccess(NamedTuple):
    """Objects through which an open store reads and writes its file."""

    raw: binding.RawEnv
    redo: RedoLog | None
    """None unless the mode is ``full``."""
    steady: SteadyLog | None
    """None unless the mode is ``relaxed`` and the file is open for writing."""


def file_access(
    raw: binding.RawEnv, fd: int, run: RedoArea, *, durability: str, read_only: bool
) -> FileAccess:
    """Create the access objects for a file's durability mode.

    This is the seam for fault injection: only tests replace this function, to intercept each call
    into LMDB, the redo log and the steady log.
    """
    redo = RedoLog(fd, run) if durability == "full" else None
    steady = SteadyLog(fd, run) if durability == "relaxed" and not read_only else None
    return FileAccess(raw, redo, steady)


class Attachment(NamedTuple):
    """An open file: its descriptor with the shared flock, and LMDB's environment."""

    key: FileKey
    fd: int
    access: FileAccess
    format: Format
    recovered: bool
    is_locked: bool
    """True if writers see this reader in the lock file; False if the lock file cannot be used."""


def attach(
    path: str,
    *,
    read_only: bool,
    map_bytes: int,
    expected: tuple[FileKey, ...],
    judge: Callable[[int, bool], None] | None,
    oldest: int = FORMAT_OLDEST,
) -> Attachment:
    """Open the file at ``path``. Leaves nothing open on failure.

    Args:
        path: the file, with all symbolic links resolved.
        read_only: write nothing and recover nothing.
        map_bytes: address space to map initially.
        expected: the file must be one of these; empty: any file.
        judge: called with the descriptor, and with True if a snapshot is held, before LMDB reads a
            tree; raises to refuse the file. None: the pages nearest to the roots are checked.
        oldest: oldest format accepted.
    """
    fd = open_locked(path, read_only=read_only)
    raw = None
    try:
        status = os.fstat(fd)
        key = _same_file(path, status, expected)
        if need_one_name(fd, path) and not read_only:
            sync_directory(path)  # the process that named it may have died before doing so
        newest_meta(fd, path)  # raises if this is not an LMDB file at all
        run = find_run(fd, path)
        # Before the trees are looked at: after a power failure, pages of later commits may be torn.
        if run.relaxed:
            settle(fd, run, path, read_only=read_only)
        look: Callable[[bool], None] = partial(_inspect, fd, path)
        if judge is not None:
            look = partial(judge, fd)
        inspect(fd, path, metas_only=True)  # LMDB reads no more than these when it maps a file
        is_sound = False
        if not os.path.lexists(path + LOCK):
            # Nobody has it open, and a file that is refused here gets no lock file beside it.
            with suppress(StoreLockedError):  # somebody came and writes all the time: look again
                look(False)
                is_sound = True
        mode = stat.S_IMODE(status.st_mode) & 0o666
        raw, record = _map(
            path,
            run,
            None if is_sound else look,
            read_only=read_only,
            map_bytes=map_bytes,
            mode=mode,
            oldest=oldest,
        )
        access = file_access(raw, fd, run, durability=record.durability, read_only=read_only)
        raw = access.raw
        _same_file(path, os.stat(path), (key,))  # LMDB opened the path, not the descriptor
        # Slots of killed readers would keep every page freed since from being used again.
        raw.reader_check()
        after: Format | None = None
        if access.redo is not None and not read_only:
            after = recover(raw, access.redo, fd, path, record)
        recovered = after is not None
        return Attachment(key, fd, access, after or record, recovered, raw.flags()["lock"])
    except BaseException as error:  # noqa: BLE001 - reraised as a typed error
        try:
            if raw is not None:
                raw.close()
        finally:
            os.close(fd)
        binding.raise_from(error, path)


def _inspect(fd: int, path: str, held: bool) -> None:
    inspect(fd, path, held=held)


def _same_file(path: str, status: os.stat_result, expected: tuple[FileKey, ...]) -> FileKey:
    key = (status.st_dev, status.st_ino)
    if expected and key not in expected:
        raise StoreAccessError(f"{path}: the file was replaced; open it anew")
    return key


def _map(
    path: str,
    run: RedoArea,
    look: Callable[[bool], None] | None,
    *,
    read_only: bool,
    map_bytes: int,
    mode: int,
    oldest: int,
) -> tuple[binding.RawEnv, Format]:
    """Open LMDB's environment in the durability mode that the file records."""
    sync = not run.relaxed  # only "none" needs a second attempt
    while True:
        raw = binding.open_env(path, read_only=read_only, sync=sync, map_bytes=map_bytes, mode=mode)
        try:
            if look is not None:
                snapshot = raw.begin()  # keeps writers from reusing the pages being checked
                try:
                    look(raw.flags()["lock"])
                finally:
                    snapshot.abort()
                look = None
            record = _record(raw, run, path, oldest)
        except MapResized:  # another process has just grown the file
            raw.close()
            continue
        except BaseException:
            raw.close()
            raise
        if sync == (record.durability == "full"):
            return raw, record
        raw.close()
        sync = False


def _record(raw: binding.RawEnv, run: RedoArea, path: str, oldest: int) -> Format:
    row, head = binding.first_rows(raw, len(run.head))
    record = Format.unpack(row, path, oldest=oldest)
    if head != run.head or record.seed != run.seed:
        raise CorruptStoreError(f"{path}: the reserved run is not where it should be")
    if run.relaxed != (record.durability == "relaxed"):
        raise CorruptStoreError(f"{path}: its format record and its reserved run differ in mode")
    return record


def recover(
    env: binding.RawEnv, redo: RedoLog, fd: int, path: str, record: Format
) -> Format | None:
    """Apply the redo record left by a power failure or a killed writer; None if there was none.

    Otherwise returns the format record that the file has then: a commit may set a feature.

    A check without the lock suffices to rule one out: a dead process's record does not change, and
    a live process needs no recovery.

    Args:
        env: the open environment.
        redo: its redo slots.
        fd: the file.
        path: its name in messages.
        record: its format record.

    Raises:
        StoreFormatError: the commit needs a feature that this memcore does not know.
        CorruptStoreError: the redo record is malformed, or that of another file.
    """
    while redo.pending(newest_meta(fd, path)) is not None:
        try:
            raw: Any = env.begin(write=True)
        except MapResized:
            binding.set_map(env, 0)
            continue
        try:
            found = redo.pending(newest_meta(fd, path))
            # Looked at again under the lock: another opener replayed it, or its writer lives.
            if found is None or found[0] != raw.id():
                return None
            if FORMAT_KEY in found[1]:
                told = Format.unpack(found[1][FORMAT_KEY], path, oldest=record.version)
                if told != record._replace(features=told.features):
                    raise CorruptStoreError(f"{path}: its redo record is that of another file")
                record = told
            for key, value in found[1].items():
                if value is None:
                    raw.delete(key)
                else:
                    raw.put(key, value)
            # Without a record of its own: this one stays in its slot, to be replayed again.
            raw.commit()
        except MapFull:
            grow = 2 * env.info()["map_size"]
        else:
            return record
        finally:
            raw.abort()
        binding.set_map(env, grow)
    return None


# --- A new file: built completely under a temporary name, flushed, then renamed -------------------

_FILE_MODE: Final = 0o600


def new_record(durability: str, *, seed: bytes | None = None) -> Format:
    """Return the format record of a new file, with a random seed.

    With the ``seed`` of a key file, the record is that of an encrypted database.
    """
    return Format.new(
        durability=durability,
        seed=os.urandom(SEED_BYTES) if seed is None else seed,
        created_ms=clock_ms(),
        features=0 if seed is None else ENCRYPTED,
    )


def build_file(path: str, record: Format, *, sync: bool) -> None:
    """Fill an empty or missing file with the rows that every store has."""
    run = make_run(record.seed, relaxed=record.durability == "relaxed")
    rows = {FORMAT_KEY: record.pack(), REDO_KEY: run}
    binding.build(path, rows, sync=sync, mode=_FILE_MODE)


def create_file(name: str, durability: str, *, seed: bytes | None = None) -> None:
    """Create a store at ``name`` atomically. ``seed``: as in ``new_record``.

    An existing file of 0 bytes is replaced: it is a reserved name.

    Raises:
        FileExistsError: another process created it first.
        StoreAccessError: the system refused.
        StoreFullError: no space is left.
    """
    temporary = temporary_name(name)
    try:
        build_file(temporary, new_record(durability, seed=seed), sync=True)
        drop_pages(temporary)
        if not replace_empty(temporary, name):
            publish(temporary, name)
    except FileExistsError:
        raise
    except (OSError, StorageError) as error:
        if _is_full(name):  # LMDB reports a short write as an I/O error
            raise StoreFullError(f"{name}: cannot create: no space is left; free some") from error
        if isinstance(error, StorageError):
            raise
        raise StoreAccessError(f"{name}: cannot create: {error.strerror}") from error
    finally:
        # C functions only, as in ``copy.beside``.
        try:
            if is_name_of(name, os.stat(temporary)):  # interrupted before the name was durable
                sync_directory(name)
            os.unlink(temporary)
        except OSError:
            pass
        finally:
            try:  # noqa: SIM105 - as above
                os.unlink(temporary + LOCK)
            except OSError:
                pass


def _is_full(path: str) -> bool:
    """Return True if the device or a limit may leave no space for a new file next to ``path``."""
    try:
        fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_cramped(fd, 0)
    finally:
        os.close(fd)


# --- The walk over a file's whole structure, concurrent with writers ------------------------------

_WALKS: Final = 5


def walked(fd: int, path: str, walk: Callable[[], list[str]], *, held: bool = False) -> list[str]:
    """Verify the structure of a file without mapping it; returns the findings as messages.

    Writers are not locked out: without a snapshot, findings count only if no commit intervened.

    Args:
        fd: the open file.
        path: its name in messages.
        walk: returns the findings.
        held: the caller holds a snapshot, under which the pages do not change.

    Raises:
        StoreLockedError: others committed during each of several attempts.
    """
    found: list[str] = []
    for _ in range(_WALKS):
        try:
            before = inspect(fd, path, held=held).txnid
            last, found = found, walk()
            # Under a snapshot the meta pages alone can change, and be read while they do.
            if not found or (held and last) or newest_meta(fd, path).txnid == before:
                return found
        except (CorruptStoreError, StoreFormatError) as error:
            return [str(error)]
    raise never_still(path)
