"""One file in the place of another, at one moment: what compaction and restoring end with.

Every opener holds a shared flock on the data file and compares the inode after locking, so whoever
holds it exclusively may replace the file. LMDB's lock file belongs to the path, not to the data:
it is reused only when the next opener finds it held by nobody and so makes it anew. Readers and
writers that are no memcore do not take the flock, but they do hold the lock file.

The new file keeps its temporary name as a second one until the directory is flushed. An opener
that meets two names flushes the directory itself: what it acknowledges cannot lie in a file whose
name a power cut takes back.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memcore.errors import StorageError, StoreLockedError
from memcore.files import sync_directory
from memcore.store import lmdb as binding
from memcore.store.copying import Judge, beside, copy_snapshot, prove, refusal
from memcore.store.file import NO_LINKS, exclusively, open_locked
from memcore.store.format import Format
from memcore.store.naming import MOVING

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["compact_file", "restore_file"]


def compact_file(
    env: Environment, *, record: Format | None, judge: Judge | None
) -> tuple[int, int]:
    """Swap the file for a compact copy of it; its bytes before and after. Needs the lead.

    ``record`` is the copy's format record, None: the file's own.

    Writers wait, readers go on until the swap. Whatever fails or is cut short leaves the old file
    or the new one under the name, whole; the environment has the one that is there.

    Raises:
        StoreLockedError: another process has the file open.
        StoreFullError: no space is left for the copy; nothing was changed.
        CorruptStoreError: the copy has findings; nothing was changed.
        StorageError: the swap is done, but the directory cannot be flushed: the handle refuses
            writes until it is opened anew.
    """
    env.hold(lambda _: None)  # a child of a fork opens here
    lock = env.fd  # ours from the swap on: its flock outlives the environment that had it
    try:
        with exclusively(lock, env.path):
            old = os.fstat(lock)
            with beside(env.path, like=old) as (temporary, fd):
                copy_snapshot(env, fd, temporary, compact=True, record=record)
                prove(fd, temporary, env.path, judge)
                new = os.fstat(fd)
                key = new.st_dev, new.st_ino
                env.gate.closed(partial(_swap, env, lock, temporary, key))
            return old.st_size, new.st_size
    except OSError as error:
        raise refusal(error, env.path) from error
    except binding.RawError as error:
        binding.raise_from(error, env.path)
    finally:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # an interrupt may have kept it exclusive
        finally:
            if env.fd != lock:
                os.close(lock)


def _swap(env: Environment, lock: int, temporary: str, key: tuple[int, int]) -> None:
    env.next_key = key  # a thread that opens the path meanwhile shall get this environment
    env.fd = -1  # who called closes it
    env.detach(again=True)  # should it not open below
    failed: OSError | None = None
    try:
        need_unmapped(env.path)
        put_in_place(temporary, env.path)
    except _UnflushedError as error:
        failed = error
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)  # if the old file stayed, its opener comes now
        env.attach(read_only=False)
    if failed is not None:
        env.leader.poison = (
            f"{env.path}: was replaced, but its directory could not be flushed ({failed.strerror});"
            " close the store, check the device, open it again"
        )
        raise StorageError(env.leader.poison) from failed


class _UnflushedError(OSError):
    """The name points to the new file, but a power cut may still take that back."""


def put_in_place(temporary: str, final: str) -> None:
    """Make ``final`` the name of the flushed file ``temporary``, durably, whatever it was before.

    Raises:
        OSError: the system refused; ``final`` is as it was, unless the flush of the directory
            failed.
    """
    moving = temporary + MOVING
    try:
        os.link(temporary, moving)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        moving = temporary
    try:
        Path(moving).replace(final)
    except BaseException:
        if moving != temporary:
            with suppress(OSError):
                Path(moving).unlink()
        raise
    try:
        sync_directory(final)
    except OSError as error:
        raise _UnflushedError(error.errno, error.strerror, final) from error


@contextmanager
def held_alone(path: str) -> Iterator[os.stat_result]:
    """Keep everybody, this process included, from opening the file at ``path``; its status.

    Raises:
        StoreLockedError: somebody has it open.
        StoreAccessError, StoreFormatError: it cannot be opened, or is no regular file.
    """
    fd = open_locked(path, read_only=True)
    try:
        with exclusively(fd, path):
            need_unmapped(path)
            yield os.fstat(fd)
    finally:
        os.close(fd)


def need_unmapped(path: str) -> None:
    """Refuse while a foreign LMDB program has the file mapped: its lock file would serve two files.

    This process must not have it open: closing a descriptor gives up all of its locks on a file.
    """
    try:
        fd = os.open(f"{path}-lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise StoreLockedError(
            f"{path}: another program has the file mapped (its lock file is held); end it first"
        ) from error
    finally:
        os.close(fd)


def restore_file(env: Environment, target: str, *, kept: str | None, judge: Judge | None) -> None:
    """Put a copy of an open store in the place of the file at ``target``.

    The old file lives on as ``kept``, unless that is None.

    Raises:
        StoreLockedError: somebody has the target open.
        StoreAccessError: the system refused to write.
        StoreFullError: no space is left for the copy.
        CorruptStoreError: the copy has findings. The target is as it was after all of these.
    """
    try:
        with held_alone(target) as old, beside(target, like=old) as (temporary, fd):
            copy_snapshot(env, fd, temporary, compact=False)
            prove(fd, temporary, target, judge)
            if kept is not None:
                os.link(target, kept)
            put_in_place(temporary, target)
    except OSError as error:
        raise refusal(error, target) from error
