"""The data file as raw bytes: opened, locked and judged before LMDB maps it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from memcore.errors import (
    CorruptStoreError,
    StoreAccessError,
    StoreFormatError,
    StoreLockedError,
)
from memcore.files import sync_directory
from memcore.limits import PAGE_BYTES, REDO_MAGIC, RUN_SCAN_PAGES
from memcore.store.freelist import TXNID_MAX, free_lists, free_pages
from memcore.store.structure import DamageError, Tree, Walk

__all__ = [
    "Meta",
    "damage_of",
    "drop_pages",
    "exclusively",
    "inspect",
    "meta_page",
    "newest_meta",
    "open_locked",
    "parse_meta",
    "publish",
    "replace_empty",
]

PAGE_HEADER_BYTES: Final = 16
META_IMAGE_BYTES: Final = 136
META_OFFSETS: Final = (PAGE_HEADER_BYTES, PAGE_BYTES + PAGE_HEADER_BYTES)
"""Where the two meta images lie; snapshot N has image N & 1."""

_MAGIC: Final = 0xBEEFC0DE
_MAGIC_BYTES: Final = _MAGIC.to_bytes(4, "little")
_DATA_VERSION: Final = 1
NO_PAGE: Final = 2**64 - 1
_META_PAGE: Final = 0x08
DEPTH_MAX: Final = 32
_FREE_FLAGS: Final = 0x08
_FREE_FLAGS_IGNORED: Final = 0x4000
"""LMDB keeps in this field, too, that the path named a file and not a directory."""
NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""How a file system says that it has no hard links, or no more for this file."""
_LOOK_NODES: Final = 1200
_LOOK_FREE_NODES: Final = 100
"""What every opening looks at of the two trees: under a millisecond, whatever the file's size."""
_ATTEMPTS: Final = 20
_LOCK_PATIENCE_SECONDS: Final = 0.5
_LOCK_LOOK_SECONDS: Final = 0.005
_MISSING_PAGES_MAX: Final = 2**24

# LMDB writes native integers; memcore's own files come from little-endian 64-bit machines only.
_PAGE_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = Struct("<IIQQIHHQQQQQIHHQQQQQQQ")
_TXNID = Struct("<Q")
TXNID_AT: Final = META_IMAGE_BYTES - _TXNID.size


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


def open_locked(path: str, *, read_only: bool) -> int:
    """A descriptor of the file now at ``path``, holding a shared flock.

    The inode is compared after locking: whoever replaces the file holds the lock exclusively, so
    a descriptor that passed cannot belong to a file that has been replaced.
    """
    for _ in range(_ATTEMPTS):
        fd = _open(path, read_only=read_only)
        try:
            share(fd, path)
            with suppress(FileNotFoundError):
                if os.path.samestat(Path(path).stat(), os.fstat(fd)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StoreLockedError(f"{path}: the file is being replaced again and again; try later")


def share(fd: int, path: str, lock: int = fcntl.LOCK_SH) -> None:
    """Take the shared flock; an opener that goes back to a steady point has it for a moment.

    With ``lock=LOCK_EX`` it is the exclusive one, of a file that nobody keeps open.
    """
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(fd, lock | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(_LOCK_LOOK_SECONDS)
                continue
            raise StoreLockedError(
                f"{path}: another process holds the file exclusively (compacting, restoring"
                " or changing its mode); try again when it is done"
            ) from error
        return


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
    """The newest meta page of a sound file, as far as a short look can tell; typed errors else.

    Other processes may commit meanwhile, so a finding counts only if no commit came in between.
    """
    seen = -1
    for _ in range(_ATTEMPTS):
        try:
            meta, before = _metas(fd, path)
            seen, last = meta.txnid, seen
            _check_meta(fd, meta, before)
            _look(fd, meta, _LOOK_NODES, _LOOK_FREE_NODES)
        except DamageError as damage:
            if seen == last:
                raise CorruptStoreError(
                    f"{path}: {damage}; restore a backup, or run check on a copy"
                ) from None
        else:
            return meta
    raise CorruptStoreError(f"{path}: the file's pages never agree with its meta pages")


def newest_meta(fd: int, path: str) -> Meta:
    """The meta page that LMDB would pick; both must parse, as LMDB demands."""
    return _metas(fd, path)[0]


def damage_of(fd: int, path: str) -> list[str]:
    """What the whole of both trees breaks of LMDB's rules: the first finding, in words."""
    try:
        _look(fd, newest_meta(fd, path), 0, 0)
    except DamageError as damage:
        return [str(damage)]
    return []


def _metas(fd: int, path: str) -> tuple[Meta, Meta]:
    """The newest meta page and the one before it."""
    problem: StoreFormatError | CorruptStoreError
    for _ in range(_ATTEMPTS):
        head = os.pread(fd, 2 * PAGE_BYTES, 0)
        try:
            first, second = (parse_meta(head, page) for page in (0, 1))
        except DamageError as damage:
            problem = _refusal(fd, head, path, damage)
        else:
            return (second, first) if first.txnid < second.txnid else (first, second)
    raise problem


def _refusal(
    fd: int, head: bytes, path: str, damage: DamageError
) -> StoreFormatError | CorruptStoreError:
    if not head:
        return StoreFormatError(
            f"{path}: is empty (0 bytes), so it is no memcore store; remove it to create one here"
        )
    if head[24:28] == _MAGIC_BYTES and head[16:20] != _MAGIC_BYTES:
        return StoreFormatError(
            f"{path}: is an LMDB 1.0 file; memcore stores are in the format of LMDB 0.9"
        )
    if head[16:20] != _MAGIC_BYTES and head[PAGE_BYTES + 16 : PAGE_BYTES + 20] != _MAGIC_BYTES:
        if not _has_run(fd):
            return StoreFormatError(f"{path}: is not a memcore store ({damage})")
        return CorruptStoreError(
            f"{path}: both meta pages are lost; restore a backup or salvage it"
        )
    return CorruptStoreError(f"{path}: {damage}; restore a backup or salvage it")


def _has_run(fd: int) -> bool:
    """Whether one of the first pages begins as memcore's reserved run does: it was a store once."""
    places = range(PAGE_HEADER_BYTES, RUN_SCAN_PAGES * PAGE_BYTES, PAGE_BYTES)
    return any(os.pread(fd, len(REDO_MAGIC), at) == REDO_MAGIC for at in places)


def parse_meta(head: bytes, page: int) -> Meta:
    """Meta page 0 or 1 of the file's first bytes; DamageError if it breaks a rule."""
    start = page * PAGE_BYTES
    if len(head) < start + PAGE_HEADER_BYTES + META_IMAGE_BYTES:
        raise DamageError(f"the file ends inside meta page {page}")
    number, _, flags, _, _ = _PAGE_HEADER.unpack_from(head, start)
    first = start + PAGE_HEADER_BYTES
    image = head[first : first + META_IMAGE_BYTES]
    (magic, version, _, _,
     psize, free_flags, free_depth, free_branch, free_leaf, free_over, _, free_root,
     _, main_flags, main_depth, main_branch, main_leaf, main_over, entries, main_root,
     last_page, txnid) = _META.unpack(image)  # fmt: skip
    if magic != _MAGIC:
        raise DamageError(f"meta page {page} has no LMDB magic")
    if version != _DATA_VERSION:
        raise DamageError(f"meta page {page} has data version {version}, expected {_DATA_VERSION}")
    if number != page or flags != _META_PAGE:
        raise DamageError(f"meta page {page} is marked as page {number} with flags {flags:#x}")
    if psize != PAGE_BYTES:
        raise DamageError(f"meta page {page} says {psize} bytes a page, expected {PAGE_BYTES}")
    if txnid and txnid & 1 != page:
        raise DamageError(f"meta page {page} carries transaction {txnid} of the other page")
    return Meta(
        txnid, last_page, main_root, main_depth, main_flags, main_branch + main_leaf + main_over,
        entries, free_root, free_depth, free_flags, free_branch + free_leaf + free_over, psize,
        image,
    )  # fmt: skip


def meta_page(image: bytes) -> tuple[int, bytes]:
    """The page, 0 or 1, that a meta image belongs to, and that page's used bytes."""
    page = txnid_of(image) & 1
    return page, _PAGE_HEADER.pack(page, 0, _META_PAGE, 0, 0) + image


def txnid_of(image: bytes) -> int:
    """The snapshot that a meta image describes."""
    return int(_TXNID.unpack_from(image, TXNID_AT)[0])


def _check_meta(fd: int, meta: Meta, before: Meta) -> None:
    if before.txnid not in (0, meta.txnid - 1):
        raise DamageError(
            f"the meta pages are of transactions {before.txnid} and {meta.txnid}, not of two in a"
            " row"
        )
    if not 0 < meta.txnid < TXNID_MAX:
        raise DamageError(f"the newest meta page is of transaction {meta.txnid}")
    size = os.fstat(fd).st_size
    if meta.last_page < 1 or meta.last_page >= 2**51:
        raise DamageError(f"the newest meta page names {meta.last_page} as its last page")
    if meta.main_pages + meta.free_pages > meta.last_page - 1:
        raise DamageError(
            f"the trees claim {meta.main_pages} and {meta.free_pages} pages of {meta.last_page - 1}"
        )
    if meta.main_flags:
        raise DamageError(f"the main tree has flags {meta.main_flags:#x}, expected none")
    if meta.free_flags & ~_FREE_FLAGS_IGNORED != _FREE_FLAGS:
        raise DamageError(f"the free list has flags {meta.free_flags:#x}")
    if meta.main_root == NO_PAGE:
        raise DamageError("the main tree is empty, not even the format record is there")
    for tree in _trees(meta):
        if not 1 <= tree.depth <= DEPTH_MAX:
            raise DamageError(f"the {tree.name} claims a depth of {tree.depth}")
    _check_end(fd, meta, size)


def _trees(meta: Meta) -> list[Tree]:
    trees = [Tree("main tree", meta.main_root, meta.main_depth)]
    if meta.free_root != NO_PAGE:
        trees.append(Tree("free list", meta.free_root, meta.free_depth, meta.txnid))
    return trees


def _look(fd: int, meta: Meta, nodes: int, free_list_nodes: int) -> None:
    """Judge so many nodes of each tree (0: all), those next to the roots first."""
    walk = Walk(fd, meta.last_page)
    main, *free = _trees(meta)
    for rows in walk.leaves(main, nodes_max=nodes):
        for row in rows:
            if row.run:
                walk.run(row.run, row.size)
    for tree in free:
        for _ in free_lists(fd, walk, tree, meta.last_page, nodes_max=free_list_nodes):
            pass


def _check_end(fd: int, meta: Meta, size: int) -> None:
    """Whether every page that the file lacks at its end is free (LMDB need not have written it)."""
    held = size // PAGE_BYTES
    missing = meta.last_page + 1 - held
    if missing <= 0:
        return
    if meta.free_root != NO_PAGE and missing <= _MISSING_PAGES_MAX:
        free = set(free_pages(fd, meta.free_root, meta.free_depth, meta.last_page))
        if all(page in free for page in range(held, meta.last_page + 1)):
            return
    needed = (meta.last_page + 1) * PAGE_BYTES
    raise DamageError(f"the file is truncated: {size} bytes, its meta page needs {needed}")


def publish(temporary: str, final: str) -> None:
    """Give a finished file its name, durably; FileExistsError if the name is taken.

    It keeps both names until the directory is flushed: an opener that meets two flushes it, too.
    """
    try:
        os.link(temporary, final)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(final):  # no hard links here: the best that such a file system offers
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from None
        Path(temporary).rename(final)
    sync_directory(final)
    with suppress(FileNotFoundError):
        Path(temporary).unlink()


def replace_empty(temporary: str, final: str) -> bool:
    """Put a finished file in the place of one of 0 bytes; whether it was still there and empty.

    Everybody who does so locks the empty file first and looks again: the second one finds that the
    name leads to another file by then, and leaves that alone.
    """
    try:
        fd = os.open(final, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(fd).st_size:
            return False  # somebody was first, and has it open: there is nothing to wait for
        share(fd, final, fcntl.LOCK_EX)
        status = os.fstat(fd)
        if status.st_size or not stat.S_ISREG(status.st_mode):
            return False
        with suppress(FileNotFoundError):
            if os.path.samestat(Path(final).stat(), status):
                Path(temporary).rename(final)
                sync_directory(final)
                return True
        return False
    finally:
        os.close(fd)


def drop_pages(path: str) -> None:
    """Forget the cached pages of a new file, which was written in large pieces.

    Large writes make large folios of the page cache, and dirtying 4 KiB of one makes flushes slow.
    """
    if hasattr(os, "posix_fadvise"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


class exclusively:  # noqa: N801 - used as a function
    """Hold the file alone: the shared flock becomes an exclusive one, and shared again after.

    No generator: one that an interrupt kept from its end would run it when nobody knows any more
    what the descriptor's number stands for. Whoever keeps the descriptor shares it again itself.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def __enter__(self) -> None:
        fd, path = self._fd, self._path
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            require_same(fd, path)
        except BlockingIOError as error:
            # A failed conversion may have dropped the shared lock: take it again, then look whether
            # somebody replaced the file in between.
            fcntl.flock(fd, fcntl.LOCK_SH)
            require_same(fd, path)
            raise StoreLockedError(
                f"{path}: another process has the store open; close it there first"
            ) from error
        except BaseException:
            fcntl.flock(fd, fcntl.LOCK_SH)
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_SH)


def require_same(fd: int, path: str) -> None:
    """StoreLockedError if the file at ``path`` is not the one that ``fd`` has open any more."""
    with suppress(FileNotFoundError):
        if os.path.samestat(Path(path).stat(), os.fstat(fd)):
            return
    raise StoreLockedError(f"{path}: the file was replaced; close the store and open it again")
