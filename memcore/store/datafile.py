"""Data file as raw bytes: format record, names, locks, file system and device."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from memcore._fast import xxh3_64
from memcore.errors import CorruptStoreError, StoreAccessError, StoreFormatError, StoreLockedError
from memcore.files import sync_directory
from memcore.limits import (
    FORMAT_MAGIC,
    FORMAT_OLDEST,
    FORMAT_VERSION,
    PAGE_BYTES,
    REDO_MAGIC,
    RUN_SCAN_PAGES,
)
from memcore.store.pages import TXNID_MAX, DamageError, Tree, free_lists, free_pages, walk_of

__all__ = [
    "AUDITED",
    "DAMAGED",
    "DEMANDING",
    "DURABILITIES",
    "ENCRYPTED",
    "FORMAT_KEY",
    "FULL",
    "GRAPH_ROWS",
    "LOCK",
    "MEMORIES",
    "MOVING",
    "REDO_KEY",
    "SEARCHED",
    "Format",
    "Meta",
    "Mount",
    "damage_of",
    "drop_pages",
    "exclusively",
    "find_mount",
    "inspect",
    "is_cramped",
    "is_name_of",
    "is_network",
    "leftovers",
    "lies_in_memory",
    "meta_of",
    "meta_page",
    "mount_of",
    "need_one_name",
    "never_still",
    "newest_meta",
    "occurrences",
    "open_locked",
    "parse_meta",
    "publish",
    "refuse_network",
    "replace_empty",
    "room_beyond",
    "take_whole",
    "temporary_name",
]


# --- The data file as raw bytes: opened, locked and checked before LMDB maps it -------------------

PAGE_HEADER_BYTES: Final = 16
META_IMAGE_BYTES: Final = 136
META_OFFSETS: Final = (PAGE_HEADER_BYTES, PAGE_BYTES + PAGE_HEADER_BYTES)
"""Offsets of the two meta images; snapshot N has image N & 1."""

_MAGIC: Final = 0xBEEFC0DE
LMDB_MAGIC: Final = _MAGIC.to_bytes(4, "little")
"""At byte 16 of each file that LMDB 0.9 made."""
_DATA_VERSION: Final = 1
NO_PAGE: Final = 2**64 - 1
_META_PAGE: Final = 0x08
DEPTH_MAX: Final = 32
_FREE_FLAGS: Final = 0x08
_FREE_FLAGS_IGNORED: Final = 0x4000
"""MDB_NOSUBDIR, which LMDB also stores in this field."""
NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of a file system that has no hard links, or no more of them for this file."""
_LOOK_NODES: Final = 16_000
_LOOK_FREE_NODES: Final = 2_000
"""Nodes of the free list that every opening verifies, as ``_LOOK_NODES`` of the main tree.

A page counts as 40 nodes. This takes a quarter of a millisecond, and covers all of a tree of about
300 pages."""
_ATTEMPTS: Final = 20
_TORN_IN_A_ROW: Final = 3
"""Consecutive failures that are damage: next to a busy writer, one read in 7,000 was torn."""
_LOCK_PATIENCE_SECONDS: Final = 5.0
"""Timeout of an opening while another process holds the file exclusively; as Python's sqlite3."""
_LOCK_LOOK_SECONDS: Final = 0.005
_MISSING_PAGES_MAX: Final = 2**24

# LMDB writes native integers; memcore's files come from little-endian 64-bit machines only.
_PAGE_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = Struct("<IIQQIHHQQQQQIHHQQQQQQQ")
_TXNID = Struct("<Q")
TXNID_AT: Final = META_IMAGE_BYTES - _TXNID.size


class Meta(NamedTuple):
    """Fields of a meta page. A redo record is bound to its ``image``."""

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
    free_entries: int
    page_bytes: int
    image: bytes


def open_locked(path: str, *, read_only: bool) -> int:
    """Return a descriptor of the file currently at ``path``, holding a shared flock.

    The inode is compared after locking. A process that replaces the file holds the lock
    exclusively, so a descriptor that passes cannot belong to a file that has been replaced.

    Raises:
        StoreAccessError: the file cannot be opened.
        StoreFormatError: it is not a regular file.
        StoreLockedError: another process holds it exclusively, or it is replaced again and again.
    """
    for _ in range(_ATTEMPTS):
        fd = _open(path, read_only=read_only)
        try:
            share(fd, path)
            with suppress(FileNotFoundError):  # it is just being replaced
                if os.path.samestat(os.stat(path), os.fstat(fd)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    raise StoreLockedError(f"{path}: the file is being replaced again and again; try later")


def share(fd: int, path: str, lock: int = fcntl.LOCK_SH) -> None:
    """Take the shared flock, waiting for a process that holds the file exclusively.

    Exclusive holders, mostly for milliseconds, are the start of an audit, a key rotation, a
    compaction, and an opening that rolls back to a steady point. ``lock=LOCK_EX`` takes the
    exclusive flock instead, for a file that no process keeps open.

    Raises:
        StoreLockedError: another process held it for ``_LOCK_PATIENCE_SECONDS``.
    """
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    while True:
        try:
            # Polled, since flock has no timeout.
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
        _require_regular(path, os.stat(path).st_mode)  # opening a device has side effects
        # O_NONBLOCK: a fifo that is swapped in between must not block the open.
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
            f"{path} is a directory; a memcore store is one file: name a file inside it"
        )
    raise StoreFormatError(f"{path} is not a regular file; a memcore store is one regular file")


def inspect(fd: int, path: str, *, held: bool = False, metas_only: bool = False) -> Meta:
    """Return the newest meta page of a file that passes a quick check.

    Other processes may commit meanwhile and reuse pages that no reader holds, so a finding counts
    only if no commit intervened.

    Args:
        fd: the open file.
        path: its name in messages.
        held: the caller holds a snapshot, under which the pages do not change.
        metas_only: check only the meta pages, not the trees.

    Raises:
        CorruptStoreError: the file is damaged.
        StoreLockedError: others committed during each of many attempts.
    """
    seen = -1
    for attempt in range(_ATTEMPTS):
        try:
            meta, before = _metas(fd, path)
            seen, last = meta.txnid, seen
            _check_meta(fd, meta, before)
            if not metas_only:
                _look(fd, meta, _LOOK_NODES, _LOOK_FREE_NODES)
        except DamageError as damage:
            # A snapshot holds no meta page: both may be read while one of them is being written.
            if seen == last or (held and attempt >= _TORN_IN_A_ROW):
                raise CorruptStoreError(f"{path}: {damage}; {DAMAGED}") from None
        else:
            return meta
    raise never_still(path)


def never_still(path: str) -> StoreLockedError:
    """Return the error for a file that was written during each attempt to read its pages."""
    return StoreLockedError(f"{path}: others write to it all the time; try again")


def newest_meta(fd: int, path: str) -> Meta:
    """Return the meta page that LMDB would pick; both must parse, as LMDB requires.

    Raises:
        StoreFormatError: the file is not a store.
        CorruptStoreError: a meta page is damaged.
    """
    return _metas(fd, path)[0]


def damage_of(fd: int, path: str) -> list[str]:
    """Verify both trees of the newest meta page in full against LMDB's rules.

    Takes about a microsecond per page.

    Returns:
        The first finding, or an empty list.
    """
    try:
        _look(fd, newest_meta(fd, path), 0, 0)
    except DamageError as damage:
        return [str(damage)]
    return []


def _metas(fd: int, path: str) -> tuple[Meta, Meta]:
    """Return the newest meta page and the one before it."""
    problem: StoreFormatError | CorruptStoreError
    for _ in range(_ATTEMPTS):
        # No lock keeps a writer from rewriting one of them meanwhile: a torn read is repeated.
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
            f"{path} is empty (0 bytes), so it is no memcore store yet; opened for writing, as by "
            "'memcore import', it becomes one"
        )
    if head[24:28] == LMDB_MAGIC and head[16:20] != LMDB_MAGIC:
        return StoreFormatError(
            f"{path} is an LMDB 1.0 file; memcore stores are in the format of LMDB 0.9"
        )
    if head[16:20] != LMDB_MAGIC and head[PAGE_BYTES + 16 : PAGE_BYTES + 20] != LMDB_MAGIC:
        if not _has_run(fd):
            return StoreFormatError(f"{path} is not a memcore store ({damage})")
        return CorruptStoreError(f"{path}: both meta pages are lost; {DAMAGED}")
    return CorruptStoreError(f"{path}: {damage}; {DAMAGED}")


def _has_run(fd: int) -> bool:
    """Return True if one of the first pages begins like a redo area: the file was a store."""
    places = range(PAGE_HEADER_BYTES, RUN_SCAN_PAGES * PAGE_BYTES, PAGE_BYTES)
    return any(os.pread(fd, len(REDO_MAGIC), at) == REDO_MAGIC for at in places)


def parse_meta(head: bytes, page: int) -> Meta:
    """Parse meta page 0 or 1 from the file's first bytes.

    Raises:
        DamageError: it is truncated or malformed.
    """
    start = page * PAGE_BYTES
    if len(head) < start + PAGE_HEADER_BYTES + META_IMAGE_BYTES:
        raise DamageError(f"the file ends inside meta page {page}")
    number, _, flags, _, _ = _PAGE_HEADER.unpack_from(head, start)
    first = start + PAGE_HEADER_BYTES
    image = head[first : first + META_IMAGE_BYTES]
    magic, version = _META.unpack(image)[:2]
    meta = meta_of(image)
    if magic != _MAGIC:
        raise DamageError(f"meta page {page} has no LMDB magic")
    if version != _DATA_VERSION:
        raise DamageError(f"meta page {page} has data version {version}, expected {_DATA_VERSION}")
    if number != page or flags != _META_PAGE:
        raise DamageError(f"meta page {page} is marked as page {number} with flags {flags:#x}")
    if meta.page_bytes != PAGE_BYTES:
        raise DamageError(
            f"meta page {page} says {meta.page_bytes} bytes a page, expected {PAGE_BYTES}"
        )
    if meta.txnid and meta.txnid & 1 != page:
        raise DamageError(f"meta page {page} carries transaction {meta.txnid} of the other page")
    return meta


def meta_of(image: bytes) -> Meta:
    """Return the fields of a meta image, unchecked."""
    (_, _, _, _,
     psize, free_flags, free_depth, free_branch, free_leaf, free_over, free_entries, free_root,
     _, main_flags, main_depth, main_branch, main_leaf, main_over, entries, main_root,
     last_page, txnid) = _META.unpack(image)  # fmt: skip
    return Meta(
        txnid, last_page, main_root, main_depth, main_flags, main_branch + main_leaf + main_over,
        entries, free_root, free_depth, free_flags, free_branch + free_leaf + free_over,
        free_entries, psize, image,
    )  # fmt: skip


def meta_page(image: bytes) -> tuple[int, bytes]:
    """Return the page (0 or 1) that a meta image belongs to, and that page's used bytes."""
    page = txnid_of(image) & 1
    return page, _PAGE_HEADER.pack(page, 0, _META_PAGE, 0, 0) + image


def txnid_of(image: bytes) -> int:
    """Return the number of the snapshot that a meta image describes."""
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
    """Verify up to the given number of nodes of each tree (0: all), breadth first."""
    walk = walk_of(fd, meta.last_page)
    main, *free = _trees(meta)
    walk.judge(main, nodes)
    if not nodes:
        _compare(main, walk.own, meta.main_pages, walk.rows, meta.entries)
    for tree in free:
        before = walk.own
        for _ in free_lists(fd, walk, tree, nodes_max=free_list_nodes):
            pass
        if not free_list_nodes:
            _compare(tree, walk.own - before, meta.free_pages, walk.rows, meta.free_entries)


def _compare(tree: Tree, pages: int, pages_told: int, rows: int, rows_told: int) -> None:
    """Compare a fully walked tree with the counts in the meta page."""
    if (pages, rows) != (pages_told, rows_told):
        raise DamageError(
            f"the {tree.name} has {pages} pages and {rows} rows, but its meta page says"
            f" {pages_told} and {rows_told}"
        )


def _check_end(fd: int, meta: Meta, size: int) -> None:
    """Check that every page missing at the file's end is free: LMDB may not have written those.

    Raises:
        DamageError: the file is truncated.
    """
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
    """Give a finished file its final name, durably.

    It keeps both names until the directory is flushed; an opener that finds two names flushes it
    too.

    Raises:
        FileExistsError: the name is taken.
    """
    try:
        # A link, where a rename would replace a file that was created meanwhile.
        os.link(temporary, final)
    except FileExistsError:  # of its own, which names the temporary file, too
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(final):  # no hard links: racy, but the best such a file system offers
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final) from None
        os.rename(temporary, final)
    sync_directory(final)
    # Not flushed: openers and copies recognize a second name that a power failure brings back.
    with suppress(FileNotFoundError):
        os.unlink(temporary)


def replace_empty(temporary: str, final: str) -> bool:
    """Replace a file of 0 bytes with a finished one; True if it was still there and empty.

    Every process that does so locks the empty file first and checks it again: the second one then
    finds that the name refers to another file, and leaves that alone.
    """
    try:
        fd = os.open(final, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(fd).st_size:
            return False  # another process was first and has it open: do not wait for its lock
        share(fd, final, fcntl.LOCK_EX)
        status = os.fstat(fd)
        if status.st_size or not stat.S_ISREG(status.st_mode):
            return False
        with suppress(FileNotFoundError):
            # The name may be another file's since it was opened here: the lock is on the inode.
            if os.path.samestat(os.stat(final), status):
                os.rename(temporary, final)
                sync_directory(final)
                return True
        return False
    finally:
        os.close(fd)


def drop_pages(path: str) -> None:
    """Evict a new file, written in large pieces, from the page cache.

    Large writes create large page-cache folios, and dirtying 4 KiB of one makes flushes slow.
    """
    if hasattr(os, "posix_fadvise"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


class exclusively:  # noqa: N801 - used as a function
    """Hold the file exclusively: upgrade the shared flock, and downgrade it again afterwards.

    Not a generator: one left suspended by an interrupt would run its cleanup later, when the
    descriptor's number may refer to another file. A caller that keeps the descriptor downgrades the
    lock itself.

    Raises:
        StoreLockedError: another process has the store open, or the file was replaced.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def __enter__(self) -> None:
        take_whole(self._fd, self._path)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_SH)


def take_whole(fd: int, path: str) -> None:
    """Upgrade the shared flock on a file to an exclusive one.

    Raises:
        StoreLockedError: another process has the store open, or the file was replaced.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        require_same(fd, path)
    except BlockingIOError as error:
        # A failed conversion may have dropped the shared lock: reacquire it, then check whether the
        # file was replaced in between.
        fcntl.flock(fd, fcntl.LOCK_SH)
        require_same(fd, path)
        raise StoreLockedError(
            f"{path} is open in another process, or by another handle of this one; close it there "
            "first"
        ) from error
    except BaseException:
        fcntl.flock(fd, fcntl.LOCK_SH)
        raise


def require_same(fd: int, path: str) -> None:
    """Check that the file at ``path`` is still the one that ``fd`` has open.

    Raises:
        StoreLockedError: it was replaced.
    """
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            return
    raise StoreLockedError(f"{path}: the file was replaced; close the store and open it again")


# --- Byte strings anywhere in a file --------------------------------------------------------------

_PIECE_BYTES: Final = 1024**2


def occurrences(fd: int, needles: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield ``(offset, needle)`` of every occurrence of non-empty byte strings in a file.

    The file is read once, in pieces, and not mapped: ``mmap.find`` of CPython 3.11.0 to 3.11.4
    reads a byte behind the map, and where that page cannot be read the process dies by SIGSEGV
    (github.com/python/cpython/issues/105235).
    """
    overlap = max(map(len, needles), default=1) - 1
    at, tail = 0, b""
    while piece := os.pread(fd, _PIECE_BYTES, at):
        content = tail + piece
        for needle in needles:
            start = content.find(needle)
            while start >= 0:
                if start + len(needle) > len(tail):  # else it was found with the last piece
                    yield at - len(tail) + start, needle
                start = content.find(needle, start + 1)
        at += len(piece)
        tail = content[max(len(content) - overlap, 0) :]


# --- The format record: a file's version, required features and durability mode -------------------

FORMAT_KEY: Final = b"\x00format"
REDO_KEY: Final = b"\x00redo"
DURABILITIES: Final = ("full", "relaxed", "none")
"""Modes that this version can write; ``_CODES`` has their codes."""

_CODES: Final = {"full": 1, "none": 2, "relaxed": 3}
_NAMES: Final = {code: name for name, code in _CODES.items()}
ENCRYPTED: Final = 1
"""Feature: contents are encrypted."""
AUDITED: Final = 2
"""Feature: every write is recorded in an audit chain, which a write without its key breaks."""
GRAPH_ROWS: Final = 4
"""Feature: rows of graph threads may carry stamps, and parts may be runs of atoms."""
DEMANDING: Final = 8
"""Feature: a row demands that contents are redacted or judged first; no write may bypass that."""
MEMORIES: Final = 16
"""Feature: there is long-term memory, which a reader must know to erase it with its user."""
SEARCHED: Final = 32
"""Feature: scopes may have search indexes, which an erasure has to remove with the rest."""
_FEATURES_KNOWN: Final = ENCRYPTED | AUDITED | GRAPH_ROWS | DEMANDING | MEMORIES | SEARCHED
_BODY = Struct("<8sHHQB3x16sQ")
_CHECK = Struct("<Q")


class Format(NamedTuple):
    """Format record. A reader must know all bits of ``features``, or refuse the file."""

    version: int
    reader_version: int
    features: int
    durability: str
    seed: bytes
    created_ms: int

    @classmethod
    def new(cls, *, durability: str, seed: bytes, created_ms: int, features: int = 0) -> Format:
        """Return the record of a new file."""
        return cls(FORMAT_VERSION, FORMAT_VERSION, features, durability, seed, created_ms)

    def pack(self) -> bytes:
        """Serialize the record with its checksum."""
        body = _BODY.pack(
            FORMAT_MAGIC, self.version, self.reader_version, self.features,
            _CODES[self.durability], self.seed, self.created_ms,
        )  # fmt: skip
        return body + _CHECK.pack(xxh3_64(body))

    @classmethod
    def unpack(cls, row: bytes | None, path: str, *, oldest: int = FORMAT_OLDEST) -> Format:
        """Parse the record in ``row``.

        Raises:
            StoreFormatError: this version may not touch the file; the message says why.
            CorruptStoreError: the record is damaged.
        """
        if row is None:
            raise StoreFormatError(f"{path} is an LMDB file, but not a memcore store")
        if row[: len(FORMAT_MAGIC)] != FORMAT_MAGIC:
            raise StoreFormatError(f"{path}: its format record is not memcore's")
        # A newer record may be longer; its head never changes, so that its version can be reported.
        if len(row) < _BODY.size + _CHECK.size:
            raise CorruptStoreError(f"{path}: its format record is cut to {len(row)} bytes")
        _, version, reader, features, code, seed, created_ms = _BODY.unpack_from(row)
        if reader > FORMAT_VERSION:
            raise StoreFormatError(
                f"{path} has format {version}, which needs a memcore that reads format {reader};"
                f" this one reads up to {FORMAT_VERSION}: upgrade memcore"
            )
        if version < oldest:
            raise StoreFormatError(
                f"{path} has format {version}, of an earlier memcore; run 'memcore migrate' on"
                " it, which keeps the old file"
            )
        if features & ~_FEATURES_KNOWN:
            raise StoreFormatError(
                f"{path}: uses features {features & ~_FEATURES_KNOWN:#x} that this memcore does"
                " not know: upgrade memcore"
            )
        body, check = row[: -_CHECK.size], row[-_CHECK.size :]
        if xxh3_64(body) != _CHECK.unpack(check)[0]:
            raise CorruptStoreError(f"{path}: its format record fails its checksum")
        if code not in _NAMES:
            raise StoreFormatError(f"{path} has durability mode {code}: upgrade memcore")
        return cls(version, reader, features, _NAMES[code], seed, created_ms)


# --- The names that a file may have: one, and briefly a temporary one while it is created ---------
# A new file is created as ``FINAL.new-PID-HEX``. It keeps that name until its directory is flushed,
# so that an opener that finds two names knows that it must flush the directory itself.
#
# LMDB's lock file belongs to a name, not to a file. Two processes that use different names would
# have two lock files, and would overwrite each other's data.

DAMAGED: Final = "restore a backup, or save what is sound with 'memcore salvage FILE --to NEW'"
"""Advice on a damaged file."""
LOCK: Final = "-lock"
"""Suffix of LMDB's lock file."""
MOVING: Final = "-name"
"""Suffix of the temporary name that is renamed to the final one."""

_MADE: Final = re.compile("([0-9]+)-[0-9a-f]{8}(-name)?")
"""Remainder of a temporary name after ``FINAL.new-``; other names are the user's files."""


def temporary_name(final: str) -> str:
    """Return a new name, next to ``final``, for a file that will be renamed to it."""
    return f"{final}.new-{os.getpid()}-{os.urandom(4).hex()}"


def leftovers(final: str) -> list[tuple[str, int]]:
    """List the temporary names next to ``final``, each with the id of the creating process."""
    directory, own = os.path.split(final)
    prefix = f"{own}.new-"
    found = []
    for name in os.listdir(directory or "."):
        made = _MADE.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        if made is not None:
            found.append((os.path.join(directory, name), int(made[1])))
    return found


def need_one_name(fd: int, path: str) -> bool:
    """Return True if the file has a temporary name in addition to its own.

    Raises:
        StoreAccessError: it has a hard link that memcore did not make.
    """
    for _ in range(_ATTEMPTS):  # a temporary name may vanish while they are counted
        status = os.fstat(fd)
        if status.st_nlink <= 1:
            return False
        known = 1 + sum(is_name_of(name, status) for name, _ in leftovers(path))
        if known >= status.st_nlink:
            return True
    raise StoreAccessError(
        f"{path} has {status.st_nlink} names (hard links), and through each of them others would"
        " use another lock file and destroy what is written through this one: remove the other"
        " names, or make a copy with memcore backup"
    )


def is_name_of(name: str, status: os.stat_result) -> bool:
    """Return True if ``name`` refers to the file with this status; symbolic links do not count."""
    try:
        return os.path.samestat(os.lstat(name), status)
    except FileNotFoundError:
        return False


# --- File system of a path: network, memory, free space -------------------------------------------
# LMDB shares a memory map and robust mutexes between processes, and memcore adds flock. On a
# network file system neither works across hosts, some do not even write mapped pages in order, and
# the file is silently corrupted. So such a path is refused before anything is created there.

_MOUNTINFO: Final = "/proc/self/mountinfo"
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3})")
_FIELDS_MIN: Final = 6
_READ_BYTES: Final = 64 * 1024

_NETWORK: Final = frozenset(
    (
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs",
        "gpfs", "lustre", "mapr", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs",
        "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "weka", "wekafs",
    )
)  # fmt: skip
_MEMORY: Final = frozenset(("ramfs", "tmpfs"))
_NETWORK_FUSE: Final = frozenset(
    (
        "afpfs", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2",
        "gcsfuse", "glusterfs", "goofys", "grpcfuse", "httpdirfs", "juicefs", "mount-s3",
        "mountpoint-s3", "moosefs", "osxfs", "rclone", "s3fs", "seaweedfs", "sshfs", "virtiofs",
        "vmhgfs-fuse",
    )
)  # fmt: skip


class Mount(NamedTuple):
    """One line of mountinfo."""

    kind: str
    """File system type, such as ``ext4`` or ``fuse.sshfs``."""
    point: str
    source: str
    options: str
    """Mount options, followed by those of the file system."""


def is_network(kind: str) -> bool:
    """Return True if file systems of this type are shared with other hosts, or behave that way."""
    family, _, name = kind.partition(".")
    return name in _NETWORK_FUSE if family == "fuse" else kind in _NETWORK


def lies_in_memory(fd: int) -> bool:
    """Return True if an open file is on an in-memory file system; False if that is unknown."""
    found = mount_of(f"/proc/self/fd/{fd}")
    return found is not None and found.kind in _MEMORY


def refuse_network(path: str) -> None:
    """Refuse a store at ``path``, existing or not, whose locks would not hold.

    Raises:
        StoreAccessError: it is on a network file system, or its file is mounted without its
            directory: then each mount has a lock file of its own, and two writers damage it.
    """
    found = mount_of(path)
    if found is not None and found.point == path:
        raise StoreAccessError(
            f"{path} is mounted as a single file, without the lock file that is beside it: mount "
            "its directory, or pass allow_network_fs=True if nobody else ever opens it"
        )
    if found is not None and is_network(found.kind):
        raise StoreAccessError(
            f"{path} lies on {found.kind} (mounted at {found.point} from {found.source}), where"
            " the locks and the shared memory map of a store do not hold: two hosts would damage"
            " it; put it on a local disk and serve it from one host, or pass allow_network_fs=True"
            " if no other host or virtual machine ever opens it"
        )


def mount_of(path: str) -> Mount | None:
    """Return the mount that contains ``path``, or its directory if the file does not exist yet.

    None if it cannot be determined (not Linux, or no /proc).
    """
    if not hasattr(os, "O_PATH"):
        return None
    with suppress(OSError):
        return _mount_of(path if os.path.lexists(path) else os.path.dirname(path) or ".")
    return None


def _mount_of(path: str) -> Mount | None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        device = os.fstat(fd).st_dev
        told = _MOUNT_ID.search(_read(f"/proc/self/fdinfo/{fd}"))
        real = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)
    return find_mount(
        _read(_MOUNTINFO),
        mount_id=int(told[1]) if told else None,
        device=(os.major(device), os.minor(device)),
        path=real,
    )


def _read(path: str) -> bytes:
    """Read a /proc file in as few calls as possible: every opening does this."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, _READ_BYTES)]
        while parts[-1]:
            parts.append(os.read(fd, _READ_BYTES))
    finally:
        os.close(fd)
    return b"".join(parts)


def find_mount(
    mountinfo: bytes, *, mount_id: int | None, device: tuple[int, int], path: bytes
) -> Mount | None:
    """Find the mount of a path, by its mount id if the kernel provides one.

    Otherwise it is the mount of the path's device with the longest mount point above the path; if
    that device has no line (btrfs and overlayfs give files their own device numbers), the longest
    among all mounts. Of several mounts on one mount point, the last hides the others.
    """
    if mount_id is not None:
        start = b"%d " % mount_id
        at = 0 if mountinfo.startswith(start) else mountinfo.find(b"\n" + start) + 1
        if at or mountinfo.startswith(start):
            found = _parse(mountinfo[at:].partition(b"\n")[0])
            if found is not None:
                return found[2]
    mounts = [found for found in map(_parse, mountinfo.splitlines()) if found is not None]
    ours = [found for found in mounts if found[0] == b"%d:%d" % device]
    for candidates in (ours, mounts):
        above = [found for found in candidates if _is_above(found[1], path)]
        if above:
            longest = max(len(point) for _, point, _ in above)
            return [mount for _, point, mount in above if len(point) == longest][-1]
    return None


def _is_above(point: bytes, path: bytes) -> bool:
    return path == point or path.startswith(point.rstrip(b"/") + b"/")


def _parse(line: bytes) -> tuple[bytes, bytes, Mount] | None:
    """Parse a line into ``(device, mount point, mount)``; None if it is malformed.

    The format is ``id parent device root point options [tags ...] - type source options``.
    """
    before, dash, after = line.partition(b" - ")
    left, right = before.split(b" "), after.split(b" ")
    if not dash or len(left) < _FIELDS_MIN or not right[0]:
        return None
    point = _ESCAPE.sub(lambda found: bytes((int(found[1], 8) & 0xFF,)), left[4])
    source = _ESCAPE.sub(lambda found: bytes((int(found[1], 8) & 0xFF,)), b" ".join(right[1:2]))
    options = b",".join((left[5], *right[2:3]))
    texts = (os.fsdecode(text) for text in (right[0], point, source, options))
    return left[2], point, Mount(*texts)


# --- The device under a file: its free space, and the errors that mean it is full -----------------

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that mean no space: on the device, in a quota, within a limit of the process."""

_ROOM_BYTES: Final = 1024**2


def room_beyond(fd: int) -> int:
    """Return the bytes by which the file may grow: the device's free space or a process limit."""
    status = os.fstatvfs(fd)
    # A file system that counts no blocks (ramfs, an unlimited tmpfs) does not report free space.
    room = status.f_bavail * status.f_frsize if status.f_blocks else sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY:
        room = min(room, max(0, limit - os.fstat(fd).st_size))
    return room


def is_cramped(fd: int, more_bytes: int) -> bool:
    """Return True if a full device or a limit may have cut short a write of ``more_bytes``."""
    return room_beyond(fd) < _ROOM_BYTES + more_bytes
