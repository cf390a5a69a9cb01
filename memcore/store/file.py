"""The data file as raw bytes: opened, locked and judged before LMDB maps it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from memcore.errors import (
    CorruptStoreError,
    StoreAccessError,
    StoreFormatError,
    StoreLockedError,
)
from memcore.limits import PAGE_BYTES
from memcore.store.freelist import MalformedError, free_pages

__all__ = ["Meta", "inspect", "newest_meta", "no_room", "open_locked", "publish", "sync_directory"]

PAGE_HEADER_BYTES: Final = 16
META_IMAGE_BYTES: Final = 136
META_OFFSETS: Final = (PAGE_HEADER_BYTES, PAGE_BYTES + PAGE_HEADER_BYTES)
"""Where the two meta images lie; snapshot N has image N & 1."""

_MAGIC: Final = 0xBEEFC0DE
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "little")
_DATA_VERSION: Final = 1
_NO_PAGE: Final = 2**64 - 1
_BRANCH, _LEAF, _META_PAGE = 0x01, 0x02, 0x08
_DEPTH_MAX: Final = 32
_METAS: Final = 2
_ATTEMPTS: Final = 20
_ROOM_BYTES: Final = 1024**2
_MISSING_PAGES_MAX: Final = 2**24

# LMDB writes native integers; memcore's own files come from little-endian 64-bit machines only.
_PAGE_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = Struct("<IIQQIHHQQQQQIHHQQQQQQQ")


class Meta(NamedTuple):
    """One meta page's facts. ``image`` is what a redo record is bound to."""

    txnid: int
    last_page: int
    main_root: int
    main_depth: int
    main_flags: int
    main_pages: int
    entries: int
    free_root: int
    free_depth: int
    free_flags: int
    free_pages: int
    page_bytes: int
    image: bytes


class _DamageError(Exception):
    """A structural finding; what is wrong is its text."""


def open_locked(path: str, *, read_only: bool) -> int:
    """A descriptor of the file now at ``path``, holding a shared flock.

    The inode is compared after locking: whoever replaces the file holds the lock exclusively, so
    a descriptor that passed cannot belong to a file that has been replaced.
    """
    for _ in range(_ATTEMPTS):
        fd = _open(path, read_only=read_only)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLockedError(
                    f"{path}: another process holds the file exclusively (compacting, restoring"
                    " or changing its mode); try again when it is done"
                ) from error
            with suppress(FileNotFoundError):
                if os.path.samestat(Path(path).stat(), os.fstat(fd)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StoreLockedError(f"{path}: the file is being replaced again and again; try later")


def _open(path: str, *, read_only: bool) -> int:
    flags = os.O_RDONLY if read_only else os.O_RDWR
    try:
        _require_regular(path, Path(path).stat().st_mode)  # opening a device has effects
        # O_NONBLOCK: a fifo that slips in between must not hang the open.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        hint = ""
        if not read_only and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "; open it with read_only=True, or get write permission"
        raise StoreAccessError(f"{path}: cannot open: {error.strerror}{hint}") from error
    try:
        _require_regular(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_regular(path: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise StoreFormatError(
            f"{path}: is a directory; a memcore store is one file: name a file inside it"
        )
    raise StoreFormatError(f"{path}: is not a regular file; a memcore store is one regular file")


def inspect(fd: int, path: str) -> Meta:
    """The newest meta page of a structurally sound file; typed errors otherwise.

    Other processes may commit meanwhile, so a finding counts only if no commit came in between.
    """
    seen = -1
    for _ in range(_ATTEMPTS):
        try:
            meta = newest_meta(fd, path)
            seen, last = meta.txnid, seen
            _check_meta(fd, meta)
        except _DamageError as damage:
            if seen == last:
                raise CorruptStoreError(
                    f"{path}: {damage}; restore a backup, or run check on a copy"
                ) from None
        else:
            return meta
    raise CorruptStoreError(f"{path}: the file's pages never agree with its meta pages")


def newest_meta(fd: int, path: str) -> Meta:
    """The meta page that LMDB would pick; both must parse, as LMDB demands."""
    problem: StoreFormatError | CorruptStoreError
    for _ in range(_ATTEMPTS):
        head = os.pread(fd, 2 * PAGE_BYTES, 0)
        try:
            metas = [_parse_meta(head, page) for page in (0, 1)]
            return max(metas, key=lambda meta: meta.txnid)
        except _DamageError as damage:
            problem = _refusal(head, path, damage)
    raise problem


def _refusal(head: bytes, path: str, damage: _DamageError) -> StoreFormatError | CorruptStoreError:
    if not head:
        return StoreFormatError(
            f"{path}: is empty (0 bytes), so it is no memcore store; remove it to create one here"
        )
    if head[24:28] == _MAGIC_BYTES and head[16:20] != _MAGIC_BYTES:
        return StoreFormatError(
            f"{path}: is an LMDB 1.0 file; memcore stores are in the format of LMDB 0.9"
        )
    if head[16:20] != _MAGIC_BYTES and head[PAGE_BYTES + 16 : PAGE_BYTES + 20] != _MAGIC_BYTES:
        return StoreFormatError(f"{path}: is not a memcore store ({damage})")
    return CorruptStoreError(f"{path}: {damage}; restore a backup")


def _parse_meta(head: bytes, page: int) -> Meta:
    start = page * PAGE_BYTES
    if len(head) < start + PAGE_HEADER_BYTES + META_IMAGE_BYTES:
        raise _DamageError(f"the file ends inside meta page {page}")
    number, _, flags, _, _ = _PAGE_HEADER.unpack_from(head, start)
    first = start + PAGE_HEADER_BYTES
    image = head[first : first + META_IMAGE_BYTES]
    (magic, version, _, _,
     psize, free_flags, free_depth, free_branch, free_leaf, free_over, _, free_root,
     _, main_flags, main_depth, main_branch, main_leaf, main_over, entries, main_root,
     last_page, txnid) = _META.unpack(image)  # fmt: skip
    if magic != _MAGIC:
        raise _DamageError(f"meta page {page} has no LMDB magic")
    if version != _DATA_VERSION:
        raise _DamageError(f"meta page {page} has data version {version}, expected {_DATA_VERSION}")
    if number != page or flags != _META_PAGE:
        raise _DamageError(f"meta page {page} is marked as page {number} with flags {flags:#x}")
    if psize != PAGE_BYTES:
        raise _DamageError(f"meta page {page} says {psize} bytes a page, expected {PAGE_BYTES}")
    if txnid and txnid & 1 != page:
        raise _DamageError(f"meta page {page} carries transaction {txnid} of the other page")
    return Meta(
        txnid, last_page, main_root, main_depth, main_flags, main_branch + main_leaf + main_over,
        entries, free_root, free_depth, free_flags, free_branch + free_leaf + free_over, psize,
        image,
    )  # fmt: skip


def _check_meta(fd: int, meta: Meta) -> None:
    size = os.fstat(fd).st_size
    if meta.last_page < 1 or meta.last_page >= 2**51:
        raise _DamageError(f"the newest meta page names {meta.last_page} as its last page")
    if meta.main_flags:
        raise _DamageError(f"the main tree has flags {meta.main_flags:#x}, expected none")
    if meta.main_root == _NO_PAGE:
        raise _DamageError("the main tree is empty, not even the format record is there")
    _check_root(fd, meta, "main tree", meta.main_root, meta.main_depth)
    if meta.free_root != _NO_PAGE:
        _check_root(fd, meta, "free list", meta.free_root, meta.free_depth)
    _check_end(fd, meta, size)


def _check_end(fd: int, meta: Meta, size: int) -> None:
    """Whether every page that the file lacks at its end is free (LMDB need not have written it)."""
    held = size // PAGE_BYTES
    missing = meta.last_page + 1 - held
    if missing <= 0:
        return
    if meta.free_root != _NO_PAGE and missing <= _MISSING_PAGES_MAX:
        try:
            free = set(free_pages(fd, meta.free_root, meta.free_depth, meta.last_page))
        except MalformedError as problem:
            raise _DamageError(str(problem)) from problem
        if all(page in free for page in range(held, meta.last_page + 1)):
            return
    needed = (meta.last_page + 1) * PAGE_BYTES
    raise _DamageError(f"the file is truncated: {size} bytes, its meta page needs {needed}")


def _check_root(fd: int, meta: Meta, tree: str, root: int, depth: int) -> None:
    if not _METAS <= root <= meta.last_page:
        raise _DamageError(f"the root page {root} of the {tree} is outside the file")
    if not 1 <= depth <= _DEPTH_MAX:
        raise _DamageError(f"the {tree} claims a depth of {depth}")
    header = os.pread(fd, PAGE_HEADER_BYTES, root * PAGE_BYTES)
    if len(header) < PAGE_HEADER_BYTES:
        raise _DamageError(f"the file is truncated: the root page {root} of the {tree} is missing")
    number, _, flags, lower, upper = _PAGE_HEADER.unpack(header)
    if number != root:
        raise _DamageError(f"the root page {root} of the {tree} is marked as page {number}")
    if flags != (_LEAF if depth == 1 else _BRANCH):
        raise _DamageError(f"the root page {root} of the {tree} has flags {flags:#x}")
    if not PAGE_HEADER_BYTES < lower <= upper <= PAGE_BYTES:
        raise _DamageError(f"the root page {root} of the {tree} has bounds {lower}..{upper}")


def publish(temporary: str, final: str) -> None:
    """Give a finished file its name, durably; FileExistsError if the name is taken."""
    try:
        os.link(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if os.path.lexists(final):  # no hard links here: the best that such a file system offers
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from None
        Path(temporary).rename(final)
    else:
        Path(temporary).unlink()
    sync_directory(final)


def sync_directory(path: str) -> None:
    """Make the directory entry of ``path`` durable."""
    fd = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # no such notion here
            raise
    finally:
        os.close(fd)


@contextmanager
def exclusively(fd: int, path: str) -> Iterator[None]:
    """Hold the file alone: the shared flock becomes an exclusive one, and shared again after."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        # A failed conversion may have dropped the shared lock: take it again, then look whether
        # somebody replaced the file in between.
        fcntl.flock(fd, fcntl.LOCK_SH)
        _require_same(fd, path)
        raise StoreLockedError(
            f"{path}: another process has the store open; close it there first"
        ) from error
    try:
        _require_same(fd, path)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_SH)


def _require_same(fd: int, path: str) -> None:
    with suppress(FileNotFoundError):
        if os.path.samestat(Path(path).stat(), os.fstat(fd)):
            return
    raise StoreLockedError(f"{path}: the file was replaced; close the store and open it again")


def no_room(fd: int, more_bytes: int) -> bool:
    """Whether a write of so many bytes may have been cut short: by the device or by a limit."""
    room = _ROOM_BYTES + more_bytes
    status = os.fstatvfs(fd)
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return status.f_bavail * status.f_frsize < room or (
        limit != resource.RLIM_INFINITY and os.fstat(fd).st_size + room > limit
    )
