"""Copies of a store: made next to their target, flushed, verified, scrubbed, then renamed.

A copy is self-contained. The slots of its reserved run are blank, since a record of the source is
bound to the source's meta pages; a pending record's operations are applied to the copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Final, TypeAlias

from memcore._fast import page_rule
from memcore.codec.keys import OWNER_KEY, SECRET_KEY, WARM_KEY
from memcore.codec.values import HEADER_BYTES, seal_value
from memcore.errors import (
    CorruptStoreError,
    InternalError,
    KeyFileError,
    MemcoreError,
    OutcomeUnknownError,
    StorageError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
    WrongKeyError,
)
from memcore.files import give_to, open_private, sync_directory
from memcore.limits import PAGE_BYTES
from memcore.privacy.keyring import SECRET_BYTES
from memcore.store import lmdb as binding
from memcore.store.changes import warm_row
from memcore.store.datafile import (
    FORMAT_KEY,
    FULL,
    LOCK,
    MOVING,
    NO_LINKS,
    PAGE_HEADER_BYTES,
    Format,
    exclusively,
    inspect,
    is_name_of,
    leftovers,
    newest_meta,
    occurrences,
    open_locked,
    publish,
    temporary_name,
)
from memcore.store.encryption import packed_secret, waiting_secret
from memcore.store.pages import DamageError, Tree, damage
from memcore.store.redo_log import RedoLog, find_run

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = [
    "Judge",
    "abandoned",
    "back_up",
    "beside",
    "blank_slack",
    "compact_file",
    "copy_snapshot",
    "prove",
    "refusal",
    "renew_separators",
    "restore_file",
    "separators",
    "wipe_slots",
]


# --- Separator keys in the branches of a tree, rebuilt from the existing rows ---------------------
# A branch page has a separator key for where each child begins. The key remains when its row is
# deleted, even in a compacted copy, so names of deleted rows would survive as separators. The new
# separator, the shortest prefix of a child's first key that is greater than all keys before it, is
# never longer than the one it replaces.

_COPIED: Final = Tree("main tree", 0, 0)
_BRANCH: Final = 0x01
_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_LEAF_NODE = Struct("<IHH")  # value bytes, flags, key bytes
_BRANCH_NODE = Struct("<IHH")  # child's low 32 bits, its high 16, key bytes
_NODE_BYTES: Final = _LEAF_NODE.size


def renew_separators(fd: int, path: str) -> None:
    """Rewrite the branch pages of a copy that is not mapped; durable with the next flush.

    Raises:
        DamageError: the tree is damaged.
    """
    meta = newest_meta(fd, path)
    if meta.main_depth > 1:
        _renew(fd, meta.main_root, meta.main_depth - 1)


def separators(fd: int, path: str) -> Iterator[bytes]:
    """Yield the keys in all branch pages of a file that no process writes.

    Raises:
        DamageError: the tree is damaged.
    """
    meta = newest_meta(fd, path)
    waiting = [(meta.main_root, meta.main_depth - 1)]
    while waiting:
        number, level = waiting.pop()
        if level > 0:
            page, nodes = _nodes(fd, number, level)
            for node in nodes:
                low, high, size = _BRANCH_NODE.unpack_from(page, node)
                yield page[node + _NODE_BYTES : node + _NODE_BYTES + size]
                waiting.append((low | high << 32, level - 1))


def _nodes(fd: int, number: int, level: int) -> tuple[bytes, tuple[int, ...]]:
    """Return a page and the offsets of its nodes."""
    page = os.pread(fd, PAGE_BYTES, number * PAGE_BYTES)
    rule = page_rule(page, number, level > 0)
    if rule:
        raise damage(_COPIED, rule, page.ljust(PAGE_HEADER_BYTES, b"\0"), number, 0)
    lower = _HEADER.unpack_from(page)[3]
    return page, unpack_from(f"<{(lower - PAGE_HEADER_BYTES) // 2}H", page, PAGE_HEADER_BYTES)


def _renew(fd: int, number: int, level: int) -> tuple[bytes, bytes]:
    """Rewrite the branches at and below a page; returns the first and last key of the subtree."""
    page, nodes = _nodes(fd, number, level)
    if not level:
        return _leaf_key(page, nodes[0]), _leaf_key(page, nodes[-1])
    children = [_BRANCH_NODE.unpack_from(page, node)[:2] for node in nodes]
    bounds = [_renew(fd, low | high << 32, level - 1) for low, high in children]
    keys = [b"", *(_between(a[1], b[0]) for a, b in pairwise(bounds))]
    made = _packed(number, children, keys)
    if made != page:
        os.pwrite(fd, made, number * PAGE_BYTES)
    return bounds[0][0], bounds[-1][1]


def _leaf_key(page: bytes, node: int) -> bytes:
    size = _LEAF_NODE.unpack_from(page, node)[2]
    return page[node + _NODE_BYTES : node + _NODE_BYTES + size]


def _between(last: bytes, first: bytes) -> bytes:
    """Return the shortest prefix of ``first`` that is greater than ``last``."""
    if not last < first:
        raise DamageError("keys of neighbouring pages are out of order")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(last, first, strict=False))
    return first[: sum(1 for _ in same) + 1]


def _packed(number: int, children: list[tuple[int, ...]], keys: list[bytes]) -> bytes:
    """Build a branch page of these nodes, laid out from the page's end."""
    page = bytearray(PAGE_BYTES)
    lower, upper = PAGE_HEADER_BYTES, PAGE_BYTES
    for (low, high), key in zip(children, keys, strict=True):
        upper -= _NODE_BYTES + len(key) + (len(key) & 1)
        page[lower : lower + 2] = upper.to_bytes(2, "little")
        lower += 2
        if lower > upper:
            raise DamageError(f"page {number} has no room for its own keys")
        _BRANCH_NODE.pack_into(page, upper, low, high, len(key))
        page[upper + _NODE_BYTES : upper + _NODE_BYTES + len(key)] = key
    _HEADER.pack_into(page, 0, number, 0, _BRANCH, lower, upper)
    return bytes(page)


# --- Slack of pages: remains of deleted rows, zeroed in a copy ------------------------------------
# LMDB builds new pages in memory that previously held other pages, and writes them out whole: the
# gap in the middle of a page of rows, and the end of a large value's last page, may contain bytes
# of anything that was ever in the file. A compacted copy includes them.

_BRANCH_SLACK, _LEAF_SLACK, _OVERFLOW = 0x01, 0x02, 0x04
_BIG: Final = 0x01
# number, pad, flags, lower, upper; a run has its page count in place of the last two
_NODE = Struct("<IHH")  # value bytes, flags, key bytes
_METAS: Final = 2
_CHUNK_PAGES: Final = 256


def blank_slack(fd: int, path: str) -> None:
    """Zero the unused bytes on the pages of a compacted copy that is not mapped.

    All of its pages are in use, in order.

    Raises:
        CorruptStoreError: a page is not as in a compacted copy.
    """
    pages = os.fstat(fd).st_size // PAGE_BYTES
    values: dict[int, int] = {}
    """Size in bytes of each large value, by its first page."""
    runs: dict[int, int] = {}
    """Number of pages of each overflow run, by its first page."""
    at = _METAS
    while at < pages:
        chunk = bytearray(os.pread(fd, min(_CHUNK_PAGES, pages - at) * PAGE_BYTES, at * PAGE_BYTES))
        before = bytes(chunk)
        done = 0
        while done < len(chunk) // PAGE_BYTES:
            number, _, flags, lower, upper = _HEADER.unpack_from(chunk, done * PAGE_BYTES)
            if number != at + done:
                raise _unlike(path, at + done)
            if flags == _OVERFLOW:
                runs[number] = lower | upper << 16
                done += runs[number]
                if not runs[number]:
                    raise _unlike(path, number)
                continue
            holds_rows = PAGE_HEADER_BYTES <= lower <= upper <= PAGE_BYTES
            if flags not in (_BRANCH_SLACK, _LEAF_SLACK) or not holds_rows:
                raise _unlike(path, number)
            start = done * PAGE_BYTES
            chunk[start + lower : start + upper] = bytes(upper - lower)
            if flags == _LEAF_SLACK:
                _find_values(chunk, start, lower, values)
            done += 1
        if chunk != before:
            os.pwrite(fd, chunk, at * PAGE_BYTES)
        at += done
    for first, size in values.items():
        _blank_end(fd, first, size, runs.get(first, 0), path)


def _find_values(chunk: bytearray, start: int, lower: int, values: dict[int, int]) -> None:
    """Collect the large values that a page of rows refers to."""
    count = (lower - PAGE_HEADER_BYTES) // 2
    for node in unpack_from(f"<{count}H", chunk, start + PAGE_HEADER_BYTES):
        if node > PAGE_BYTES - _NODE.size:
            continue  # the walk over the copy reports it
        size, flags, key_bytes = _NODE.unpack_from(chunk, start + node)
        if flags & _BIG:
            place = start + node + _NODE.size + key_bytes
            values[int.from_bytes(chunk[place : place + 8], "little")] = size


def _blank_end(fd: int, first: int, size: int, pages: int, path: str) -> None:
    """Blank a run behind its value; it may hold the rest of a longer value that came before it."""
    end = PAGE_HEADER_BYTES + size
    left = pages * PAGE_BYTES - end
    if left < 0:
        raise _unlike(path, first)
    if left and os.pread(fd, left, first * PAGE_BYTES + end).strip(b"\0"):
        os.pwrite(fd, bytes(left), first * PAGE_BYTES + end)


def _unlike(path: str, page: int) -> CorruptStoreError:
    return CorruptStoreError(f"{path}: page {page} of the copy is not sound; check the device")


# --- Copies of a store: made next to their target, flushed, verified, and only then renamed -------

Judge = Callable[[str], list[str]]
"""Checks a finished copy, given its path; returns the findings as messages."""

_Pending: TypeAlias = tuple[int, dict[bytes, bytes | None]] | None


def back_up(
    env: Environment, target: str, *, compact: bool, judge: Judge | None, owner: bytes = b""
) -> None:
    """Copy one consistent snapshot to the new file ``target`` without blocking writers.

    ``owner``: owner id of the key file that the copy will be written with; empty for a backup.

    Raises:
        StoreAccessError: the target exists or cannot be written.
        StoreFullError: no space is left for the copy.
        CorruptStoreError: the copy has findings; the target is not created.
    """
    if os.path.lexists(target):
        raise _exists(target)
    try:
        with beside(target) as (temporary, fd):
            copy_snapshot(env, fd, temporary, compact=compact, owner=owner)
            prove(fd, temporary, target, judge)
            publish(temporary, target)
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        raise refusal(error, target) from error


def _exists(target: str) -> StoreAccessError:
    return StoreAccessError(f"{target} exists; a backup never overwrites")


def refusal(error: OSError, path: str) -> StorageError:
    """Translate a system error from writing ``path`` into a typed error."""
    if error.errno in FULL:
        return StoreFullError(
            f"{path}: no space is left for the copy ({error.strerror}): free some and try again;"
            " nothing was changed"
        )
    return StoreAccessError(f"{path}: cannot write: {error.strerror}")


def _new_file(temporary: str, final: str) -> int:
    try:
        return open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except OSError as exc:
        exc.filename = final  # the name that the caller knows
        raise


@contextmanager
def beside(final: str, *, like: os.stat_result | None = None) -> Iterator[tuple[str, int]]:
    """Create a temporary file in the directory of ``final``; yields its path and a descriptor.

    It has the owner and mode of ``like``. Its temporary name is removed at the end, if it still
    exists, even after an interrupt. The flock on it shows that the creating process is alive.
    """
    temporary, fd = temporary_name(final), -1  # bound before the ``try``: removed below
    try:
        remove_leftovers(final)
        # The longest of its names: one that is too long is refused before anything is made.
        with suppress(FileNotFoundError):
            os.lstat(temporary + MOVING)
    except OSError as exc:  # there is no such directory, nobody may look into it, a name too long
        raise StoreAccessError(f"{final}: cannot write: {exc.strerror}") from exc
    try:
        while fd < 0:
            fd = _new_file(temporary, final)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if not is_name_of(temporary, os.fstat(fd)):
                # Removed before it was locked: to another PID namespace this process looks dead.
                unnamed, fd = fd, -1
                os.close(unnamed)
                temporary = temporary_name(final)
        if like is not None:
            give_to(fd, like, stat.S_IMODE(like.st_mode))
        yield temporary, fd
    finally:
        # C functions only: an interrupt is raised after one has returned, and the next still runs.
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
    """Remove the temporary files of ``final`` that dead processes left.

    A leftover may be a second name of ``final`` itself, kept until its directory is flushed, so the
    directory is flushed first.
    """
    if not abandoned(final):
        return
    sync_directory(final)
    for leftover, pid in leftovers(final):
        fd = _seize(leftover, pid, final)
        if fd < 0:
            continue
        try:  # under the lock: its creator, if alive in another namespace, takes another name
            for name in (leftover, leftover + LOCK):
                with suppress(FileNotFoundError):
                    Path(name).unlink()
        finally:
            os.close(fd)


def abandoned(final: str) -> list[str]:
    """List the temporary files of ``final`` that dead processes left."""
    found = []
    for leftover, pid in leftovers(final):
        fd = _seize(leftover, pid, final)
        if fd >= 0:
            os.close(fd)
            found.append(leftover)
    return found


def _seize(leftover: str, pid: int, final: str) -> int:
    """Lock a temporary file whose creator is dead; returns its descriptor, or -1 if it may live.

    Containers reuse process ids and do not see those of other containers, so an id in use by
    another process means that the creator may live, but an unused one does not prove that it is
    dead: if the id is unused or ours, the creator is dead only if its file is not locked. A second
    name of ``final`` is not an unfinished file, so its lock is not checked: processes that have
    ``final`` open hold it. What cannot be opened (another user's file, a link, a socket) is left
    alone.
    """
    if pid != os.getpid():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            pass
        except (PermissionError, OverflowError):
            return -1
        else:
            return -1
    try:
        fd = os.open(leftover, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1
    lives = True
    try:
        status = os.fstat(fd)
        if not is_name_of(final, status):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lives = stat.S_ISDIR(status.st_mode)  # memcore makes no such directory
    except BlockingIOError:
        pass
    finally:
        if lives:
            os.close(fd)
    return -1 if lives else fd


# --- the content ---------------------------------------------------------------------------------


def copy_snapshot(
    env: Environment,
    fd: int,
    temporary: str,
    *,
    compact: bool,
    record: Format | None = None,
    replaces: bool = False,
    owner: bytes = b"",
) -> None:
    """Copy the committed rows to the empty file ``fd`` at ``temporary``, as a separate store.

    ``record`` gives the copy another durability mode or format. A read-only handle cannot recover,
    so a pending redo record is applied to the copy. Rows specific to one data file are kept if the
    copy ``replaces`` that file, and otherwise blanked, except for ``owner``, if given.
    """
    waiting = env.hold(partial(_copy_rows if compact else _copy_pages, env, fd))
    inspect(fd, temporary)
    if compact:
        _forget_what_is_gone(fd, temporary)
    run = find_run(fd, temporary)
    if not compact and env.read_only and env.redo is not None:
        waiting = RedoLog(fd, run).pending(newest_meta(fd, temporary))
    # A steady record of the source would roll the copy back to a point of the source, and redo
    # records hold contents of its last commits.
    run.blank(fd)
    rows: dict[bytes, bytes | None] = {} if waiting is None else dict(waiting[1])
    if record is not None:
        run.set_mode(fd, relaxed=record.durability == "relaxed")
        rows[FORMAT_KEY] = record.pack()
    if rows:
        binding.amend(temporary, rows)
    if replaces:
        _bind_secret(env, fd, temporary)
        _carry_position(env, fd, temporary)
    else:
        _blank_own(fd, temporary)
        if owner:
            binding.amend(temporary, {OWNER_KEY: seal_value(OWNER_KEY, owner)})


# Rows specific to one data file: the owner of its key file, a secret waiting for space, the marks
# of its warm copy. A key and its value are adjacent in the file, so they are searched for and
# overwritten in place, including stale copies: a write through LMDB would leave the previous page
# in the free list.


def _blank_own(fd: int, path: str) -> None:
    """Blank a copy's rows that are specific to the source."""
    for key, value in binding.rows_of(path, (OWNER_KEY, SECRET_KEY, WARM_KEY)).items():
        body = value[HEADER_BYTES:]
        _overwrite(fd, key + value, key + seal_value(key, bytes(len(body))))
        if key == SECRET_KEY:
            _overwrite(fd, body[:SECRET_BYTES], bytes(len(body[:SECRET_BYTES])))
            binding.amend(path, {key: None})


def _bind_secret(env: Environment, fd: int, path: str) -> None:
    """Rebind a secret waiting in the data file to the copy that replaces the file."""
    for key, value in binding.rows_of(path, (SECRET_KEY,)).items():
        secret = waiting_secret(value, os.fstat(env.fd).st_ino)
        if secret is not None:
            made = seal_value(key, packed_secret(secret, os.fstat(fd).st_ino))
            _overwrite(fd, key + value, key + made)


def _carry_position(env: Environment, fd: int, path: str) -> None:
    """Count on from the file that the copy replaces: the copy's commits have numbers from 1 on."""
    for key, value in binding.rows_of(path, (WARM_KEY,)).items():
        row = warm_row(value)
        position = row.offset + newest_meta(env.fd, env.path).txnid
        _overwrite(fd, key + value, key + row._replace(offset=position).pack())


def _overwrite(fd: int, found: bytes, made: bytes) -> None:
    """Replace each occurrence of a byte string in a file with another of the same length."""
    if not found or found == made:
        return
    for at, _ in occurrences(fd, [found]):
        os.pwrite(fd, made, at)


def _copy_pages(_: Environment, fd: int, raw: binding.RawEnv) -> _Pending:
    """Copy the file page by page; a pending redo record is copied too."""
    raw.copyfd(fd, compact=False)
    return None


def _copy_rows(env: Environment, fd: int, raw: binding.RawEnv) -> _Pending:
    """Copy a snapshot row by row; returns the pending redo record that follows it, if any."""
    waiting = None
    txn = raw.begin()
    try:
        meta = newest_meta(env.fd, env.path)
        # A record follows one snapshot only: after a commit in between it is another one's.
        if env.read_only and env.redo is not None and meta.txnid == txn.id():
            waiting = env.redo.pending(meta)
        raw.copyfd(fd, compact=True, txn=txn)
    finally:
        txn.abort()
    return waiting


def _forget_what_is_gone(fd: int, temporary: str) -> None:
    """Remove the remains of deleted rows, which LMDB carries over into a compacted copy."""
    blank_slack(fd, temporary)
    try:
        renew_separators(fd, temporary)
    except DamageError as damage:
        raise CorruptStoreError(f"{temporary}: the new copy was dropped: {damage}") from damage


_TOLD_AS_THEY_ARE: Final = (
    CorruptStoreError, StoreFullError, StoreAccessError, InternalError, KeyFileError, WrongKeyError
)  # fmt: skip
"""Errors reraised unchanged: their messages are complete, and most do not concern the copy."""


def prove(fd: int, temporary: str, target: str, judge: Judge | None) -> None:
    """Flush a copy and verify it, with ``judge`` instead of the structural walk if given.

    ``target`` names the copy in messages.

    Raises:
        CorruptStoreError: there is a finding.
        KeyFileError, WrongKeyError, StorageError: the copy cannot be examined.
    """
    # Before the copy gets a name: a name must not become durable earlier than what it names.
    os.fsync(fd)
    try:
        inspect(fd, temporary)
        findings = binding.verify(temporary) if judge is None else judge(temporary)
    except _TOLD_AS_THEY_ARE:
        raise
    except MemcoreError as error:
        if type(error) is StorageError:  # LMDB lacked a resource: open files, memory
            raise
        findings = [str(error)]
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise CorruptStoreError(
            f"{target}: the new copy would not be sound, and was dropped: {findings[0]}{more}"
        )


# --- Atomic replacement of one file by another: the last step of compaction and restoring ---------
# Every opener holds a shared flock on the data file and compares the inode after locking, so a
# process that holds it exclusively may replace the file. LMDB's lock file belongs to the path, not
# to the data: it can be reused only because the next opener finds it unheld and reinitializes it.
# Programs other than memcore do not take the flock, but they do hold the lock file.
#
# The new file keeps its temporary name as a second one until the directory is flushed. An opener
# that finds two names flushes the directory itself, so that it never acknowledges a commit to a
# file whose name a power failure would lose.


def compact_file(
    env: Environment,
    *,
    judge: Judge | None,
    durability: str | None = None,
    version: int | None = None,
) -> tuple[int, int]:
    """Replace the file with a compacted copy, of another durability mode or version if given.

    Needs the lead.

    Writers wait; readers continue until the swap. Any failure or interruption leaves either the old
    or the new file under the name, intact, and the environment has that one open.

    Returns:
        Size of the file before and after, in bytes.

    Raises:
        StoreLockedError: another process has the file open.
        StoreFullError: no space is left for the copy; nothing was changed.
        CorruptStoreError: the copy has findings; nothing was changed.
        OutcomeUnknownError: a flush has failed since the file was opened.
        StorageError: the swap is done, but the directory cannot be flushed: the handle refuses
            writes until it is reopened.
    """
    # After a failed flush the page cache, which would be copied, may not be what is on the device;
    # and the new file's environment would know nothing of it.
    env.leader.need_sound()
    env.hold(lambda _: None)  # the child of a fork reopens here
    lock = env.fd  # owned here once detached: its flock outlives the environment's use of it
    try:
        with exclusively(lock, env.path):
            old = os.fstat(lock)
            with beside(env.path, like=old) as (temporary, fd):
                record = env.hold(partial(_record_of, env, durability, version))
                copy_snapshot(env, fd, temporary, compact=True, record=record, replaces=True)
                prove(fd, temporary, env.path, judge)
                new = os.fstat(fd)
                key = new.st_dev, new.st_ino
                env.barrier.closed(partial(_swap, env, lock, temporary, key))
            return old.st_size, new.st_size
    except OSError as error:
        raise refusal(error, env.path) from error
    except binding.RawError as error:
        binding.raise_from(error, env.path)
    finally:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # an interrupt may have left it exclusive
        finally:
            if env.fd != lock:
                os.close(lock)


def _record_of(
    env: Environment, durability: str | None, version: int | None, raw: binding.RawEnv
) -> Format | None:
    """Return the file's format record with another mode or version; None: with neither.

    As it is stored: features may have been set since the environment was opened.
    """
    if durability is None and version is None:
        return None
    txn = raw.begin()
    try:
        record = Format.unpack(txn.get(FORMAT_KEY), env.path, oldest=env.oldest)
    finally:
        txn.abort()
    if durability is not None:
        record = record._replace(durability=durability)
    if version is not None:
        record = record._replace(version=version, reader_version=version)
    return record


def _swap(env: Environment, lock: int, temporary: str, key: tuple[int, int]) -> None:
    failed: OSError | None = None
    try:
        env.next_key = key  # a thread that opens the path meanwhile must get this environment
        env.detach(again=True, keep=True)  # if attaching below fails; the caller closes ``lock``
        # After ``detach``: looking at the lock file drops the locks that this process has on it.
        need_unmapped(env.path)
        put_in_place(temporary, env.path)
    except _UnflushedError as error:
        failed = error
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)  # if the old file stayed, ``attach`` needs to lock it
        if env.raw is None:  # else an interrupt kept it from being detached
            env.attach(read_only=False)
        env.next_key = None
    if failed is not None:
        env.leader.poison = (
            f"{env.path} was replaced, but its directory could not be flushed ({failed.strerror});"
            " close the store, check the device, open it again"
        )
        raise StorageError(env.leader.poison) from failed


class _UnflushedError(OSError):
    """The name refers to the new file, but a power failure may still undo that."""


def put_in_place(temporary: str, final: str) -> None:
    """Rename the flushed file ``temporary`` to ``final``, durably, replacing any existing file.

    Raises:
        OSError: the system refused; ``final`` is unchanged unless the directory flush failed.
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
            with suppress(OSError):  # the error above is the one to report
                Path(moving).unlink()
        raise
    try:
        sync_directory(final)
    except OSError as error:
        raise _UnflushedError(error.errno, error.strerror, final) from error


@contextmanager
def held_alone(path: str) -> Iterator[os.stat_result]:
    """Keep every process, this one included, from opening the file at ``path``; yields its status.

    Raises:
        StoreLockedError: a process has it open.
        StoreAccessError, StoreFormatError: it cannot be opened, or is not a regular file.
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

    This process must not have it open: closing a descriptor drops all its POSIX locks on that file.

    Raises:
        StoreLockedError: a program has it mapped.
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


def restore_file(
    env: Environment, target: str, *, kept: str | None, judge: Judge | None, owner: bytes = b""
) -> None:
    """Replace the file at ``target`` with a copy of an open store.

    The old file is kept as ``kept``, unless that is None. ``owner``: as in ``back_up``. All of the
    errors below leave the target unchanged.

    Raises:
        StoreLockedError: a process has the target open.
        StoreAccessError: the system refused to write.
        StoreFullError: no space is left for the copy.
        CorruptStoreError: the copy has findings.
    """
    try:
        with held_alone(target) as old, beside(target, like=old) as (temporary, fd):
            copy_snapshot(env, fd, temporary, compact=False, owner=owner)
            prove(fd, temporary, target, judge)
            try:
                if kept is not None:
                    # Linked, not renamed: at no moment is the target missing.
                    os.link(target, kept)
                put_in_place(temporary, target)
            except BaseException:
                drop_second_name(target, kept)
                raise
    except OSError as error:
        raise refusal(error, target) from error


def drop_second_name(path: str, kept: str | None) -> None:
    """Remove ``kept`` if it names the file at ``path``, which was to be replaced and was not.

    A database with two names is refused by every opening.
    """
    if kept is not None:
        with suppress(OSError):  # the caller's error is the one to report
            if os.path.samefile(path, kept):
                os.unlink(kept)


# --- Blanking the redo slots: they hold second copies of the last commits, erased data included ---


def wipe_slots(env: Environment) -> None:
    """Erase the last commits from the redo slots; stored data is unaffected. Needs the lead.

    Raises:
        OutcomeUnknownError: a flush failed; the environment refuses writes from now on.
    """
    if env.redo is not None:
        # No other process may be in a commit that relies on a record.
        env.while_nobody_writes(partial(_wipe, env, env.redo))


def _wipe(env: Environment, redo: RedoLog) -> None:
    try:
        env.leader.sync()  # afterwards the last record is no longer needed
        redo.wipe()
    except OSError as error:
        env.leader.poison_for(error)
        raise OutcomeUnknownError(env.leader.poison) from error
