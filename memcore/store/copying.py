"""Copies of a store: made beside their target, flushed, verified, and only then given its name.

A copy is whole by itself. The slots of its reserved run are blank, since a record of the source is
bound to the source's meta pages; what such a record still had to bring is written into the copy.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from memcore.errors import (
    CorruptStoreError,
    InternalError,
    MemcoreError,
    StorageError,
    StoreAccessError,
    StoreFullError,
)
from memcore.files import open_private, sync_directory
from memcore.store import lmdb as binding
from memcore.store.device import FULL
from memcore.store.file import inspect, newest_meta, publish
from memcore.store.format import FORMAT_KEY, Format
from memcore.store.naming import LOCK, MOVING, leftovers, temporary_name
from memcore.store.redo import RedoLog
from memcore.store.run import find_run
from memcore.store.separators import renew_separators
from memcore.store.slack import blank_slack
from memcore.store.structure import DamageError

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["Judge", "back_up", "beside", "copy_snapshot", "prove", "refusal"]

Judge = Callable[[str], list[str]]
"""Looks at a finished copy by its path; findings in words."""

_Pending: TypeAlias = tuple[int, dict[bytes, bytes | None]] | None


def back_up(env: Environment, target: str, *, compact: bool, judge: Judge | None) -> None:
    """Copy one consistent snapshot to the new file ``target`` while others write.

    Raises:
        StoreAccessError: the target exists or cannot be written.
        StoreFullError: no space is left for the copy.
        CorruptStoreError: the copy has findings; there is no target then.
    """
    if os.path.lexists(target):
        raise _exists(target)
    try:
        with beside(target) as (temporary, fd):
            copy_snapshot(env, fd, temporary, compact=compact)
            prove(fd, temporary, target, judge)
            publish(temporary, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        raise refusal(error, target) from error


def _exists(target: str) -> StoreAccessError:
    return StoreAccessError(f"{target}: exists; a backup never overwrites")


def refusal(error: OSError, path: str) -> StorageError:
    """The typed error for what the system refused while ``path`` was to be written."""
    if error.errno in FULL:
        return StoreFullError(
            f"{path}: no space is left for the copy ({error.strerror}): free some and try again;"
            " nothing was changed"
        )
    return StoreAccessError(f"{path}: cannot write: {error.strerror}")


@contextmanager
def beside(final: str, *, like: os.stat_result | None = None) -> Iterator[tuple[str, int]]:
    """A new file in the directory of ``final``: its path and a descriptor.

    It belongs to whom ``like`` belongs to. At the end its name is removed, if it still has it,
    whatever interrupts what. The flock on it says that its maker lives.
    """
    remove_leftovers(final)
    temporary = temporary_name(final)
    fd = -1
    try:
        fd = open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if like is not None:
            own = os.fstat(fd)
            if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(fd, like.st_uid, like.st_gid)
            os.fchmod(fd, stat.S_IMODE(like.st_mode))
        yield temporary, fd
    finally:
        # By functions in C alone: an interrupt comes when one has returned, and the next is done.
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        finally:
            try:
                os.unlink(temporary + LOCK)
            except FileNotFoundError:
                pass
            finally:
                try:
                    os.unlink(temporary + MOVING)
                except FileNotFoundError:
                    pass
                finally:
                    if fd >= 0:
                        os.close(fd)


def remove_leftovers(final: str) -> None:
    """Remove what dead processes left beside ``final`` when they were making it.

    A leftover may be the second name of ``final`` itself, kept until its directory was flushed:
    so that is done first.
    """
    found = [name for name, pid in leftovers(final) if _is_abandoned(name, pid)]
    if found:
        sync_directory(final)
    for leftover in found:
        for name in (leftover, leftover + LOCK):
            with suppress(FileNotFoundError):
                Path(name).unlink()


def _is_abandoned(leftover: str, pid: int) -> bool:
    """Whether its maker is gone. A container gives its numbers again: ours says nothing."""
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
    try:
        fd = os.open(leftover, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


# --- the content ---------------------------------------------------------------------------------


def copy_snapshot(
    env: Environment,
    fd: int,
    temporary: str,
    *,
    compact: bool,
    record: Format | None = None,
) -> None:
    """Copy what is committed to the empty file ``fd`` at ``temporary``, as a store by itself.

    ``record`` makes it one of another mode or format. A read-only handle cannot recover: a redo
    record that waits for somebody who can is applied to the copy.
    """
    waiting = env.hold(partial(_copy_rows if compact else _copy_pages, env, fd))
    inspect(fd, temporary)
    if compact:
        _forget_what_is_gone(fd, temporary)
    run = find_run(fd, temporary)
    if not compact and env.read_only and env.redo is not None:
        waiting = RedoLog(fd, run).pending(newest_meta(fd, temporary))
    run.blank(fd)
    rows: dict[bytes, bytes | None] = {} if waiting is None else dict(waiting[1])
    if record is not None:
        run.set_mode(fd, relaxed=record.durability == "relaxed")
        rows[FORMAT_KEY] = record.pack()
    if rows:
        binding.amend(temporary, rows)


def _copy_pages(_: Environment, fd: int, raw: binding.RawEnv) -> _Pending:
    """Copy the file page by page; what waits in it waits in the copy."""
    raw.copyfd(fd, compact=False)
    return None


def _copy_rows(env: Environment, fd: int, raw: binding.RawEnv) -> _Pending:
    """Copy a snapshot row by row; the redo record that waits to follow it, if one does."""
    waiting = None
    txn = raw.begin()
    try:
        meta = newest_meta(env.fd, env.path)
        if env.read_only and env.redo is not None and meta.txnid == txn.id():
            waiting = env.redo.pending(meta)
        raw.copyfd(fd, compact=True, txn=txn)
    finally:
        txn.abort()
    return waiting


def _forget_what_is_gone(fd: int, temporary: str) -> None:
    """Leave nothing in a compact copy of rows that are gone: LMDB takes remains of them over."""
    blank_slack(fd, temporary)
    try:
        renew_separators(fd, temporary)
    except DamageError as damage:
        raise CorruptStoreError(f"{temporary}: was not made, for {damage}") from damage


def prove(fd: int, temporary: str, target: str, judge: Judge | None) -> None:
    """Flush a copy and walk it; ``judge`` walks it in place of the structural walk.

    Raises:
        CorruptStoreError: there is a finding; ``target`` names what was to be made.
    """
    os.fsync(fd)
    try:
        inspect(fd, temporary)
        findings = binding.verify(temporary) if judge is None else judge(temporary)
    except (CorruptStoreError, StoreFullError, StoreAccessError, InternalError):
        raise
    except MemcoreError as error:
        findings = [str(error)]
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise CorruptStoreError(
            f"{target}: was not made, for the copy is not sound: {findings[0]}{more}; run check on"
            " the source, restore an older backup or salvage it"
        )
