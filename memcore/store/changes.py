"""Changes of a file: the rows in which two of its snapshots differ, whoever wrote them.

LMDB overwrites no page that a pinned reader may see, so what two pinned snapshots share they share
by page number, and only the pages that one of them lacks are read. This costs writers nothing,
except that pages freed since the older snapshot cannot be used again until it is let go. The redo
slots, one value of the store's own, are the exception: they are written in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from weakref import ref

from memcore.codec.keys import WARM_KEY, behind, malformed
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptStoreError, StorageError
from memcore.limits import PAGE_BYTES
from memcore.store.datafile import meta_of
from memcore.store.interface import MapMovedError
from memcore.store.lmdb import MapResized
from memcore.store.pages import (
    DamageError,
    LeafEntry,
    RawPage,
    Tree,
    leaves_apart,
    rows_of,
)

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = [
    "END",
    "FIRST",
    "MARK_BYTES",
    "NO_MARK",
    "WARM_ROW_BYTES",
    "Change",
    "ChangeFeed",
    "Changes",
    "Mark",
    "MarkMovedError",
    "SnapshotLostError",
    "WarmRow",
    "batches",
    "mark_of",
    "ranges",
    "warm_row",
]

Change: TypeAlias = tuple[bytes, bytes | None]
"""A key, and the row's value; None: the row is gone."""
Row: TypeAlias = tuple[bytes, bytes]


class SnapshotLostError(Exception):
    """A snapshot was let go while it was read: its pages may have been overwritten."""


class PinnedSnapshot:
    """A snapshot whose pages stay as they are until it is let go."""

    __slots__ = ("_env", "_is_lost", "_opened", "_raw", "tree", "txnid")

    def __init__(self, env: Environment, raw: Any, image: bytes) -> None:
        self._env = env
        self._opened = env.opened
        self._raw = raw
        meta = meta_of(image)
        self.txnid = meta.txnid
        self.tree = Tree("data", meta.main_root, meta.main_depth)
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """True if its pages may have been used again, or the file is another one."""
        return self._is_lost or self._env.opened != self._opened

    def let_go(self) -> None:
        """Let its pages be used again; whoever is reading them finds that it is lost."""
        self._is_lost = True  # before LMDB may reuse a page
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.abort()

    def forget(self) -> Any:
        """Leave the reader to the parent of a fork, and return it: it must not be aborted."""
        self._is_lost = True
        raw, self._raw = self._raw, None
        return raw


class Changes:
    """The rows in which a snapshot differs from an older one; all of its rows if there is none."""

    __slots__ = ("_env", "_leaves", "_new", "_old")

    def __init__(self, env: Environment, old: PinnedSnapshot | None, new: PinnedSnapshot) -> None:
        self._env = env
        self._old = old
        self._new = new
        self._leaves: tuple[list[int], list[int]] | None = None

    @property
    def txnid(self) -> int:
        """Number of the commit up to which they go."""
        return self._new.txnid

    @property
    def is_whole(self) -> bool:
        """True if there is no older snapshot: these are all rows."""
        return self._old is None

    def find(self) -> None:
        """Read all pages but those with the changes themselves: what takes long in a large file.

        Raises:
            SnapshotLostError, CorruptStoreError, StorageError: as for iteration.
        """
        with self._told():
            old = None if self._old is None else self._old.tree
            self._leaves = leaves_apart(self._page, old, self._new.tree)
            self._need_pinned()

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes in key order.

        Raises:
            SnapshotLostError: a snapshot was let go meanwhile; what was yielded before is right.
            CorruptStoreError: a page is damaged.
            StorageError: the device fails.
        """
        if self._leaves is None:
            self.find()
        with self._told():
            yield from self._merged(*(self._leaves or ([], [])))
            self._need_pinned()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except DamageError as damage:
            self._need_pinned()
            raise CorruptStoreError(f"{self._env.path}: {damage}; run 'memcore check'") from damage
        except OSError as error:
            raise StorageError(f"{self._env.path}: cannot be read: {error}") from error

    def _merged(self, gone: list[int], fresh: list[int]) -> Iterator[Change]:
        before = rows_of(self._page, gone)
        last = next(before, None)
        for entry, page in rows_of(self._page, fresh):
            while last is not None and last[0].key < entry.key:
                yield last[0].key, None
                last = next(before, None)
            if last is not None and last[0].key == entry.key:
                is_same = self._is_same(last, (entry, page))
                last = next(before, None)
                if is_same:
                    continue
            yield entry.key, self._value(entry, page)
        while last is not None:
            yield last[0].key, None
            last = next(before, None)

    def _is_same(self, a: tuple[LeafEntry, RawPage], b: tuple[LeafEntry, RawPage]) -> bool:
        if a[0].size != b[0].size:
            return False
        if a[0].run and b[0].run and a[0].offset == b[0].offset:
            return True  # the same pages, in both snapshots
        return self._value(*a) == self._value(*b)

    def _value(self, entry: LeafEntry, page: RawPage) -> bytes:
        if not entry.run:
            return page.raw[entry.offset : entry.offset + entry.size]
        return self._read(entry.offset, entry.size)

    def _page(self, number: int) -> RawPage:
        return RawPage(self._read(number * PAGE_BYTES, PAGE_BYTES))

    def _read(self, offset: int, size: int) -> bytes:
        try:
            found = os.pread(self._env.fd, size, offset)
        except OSError:
            self._need_pinned()  # the file may have been closed, or replaced
            raise
        # After the read: bytes that were read while the pin held are the snapshot's.
        self._need_pinned()
        if len(found) < size:
            raise DamageError(f"the file ends inside of page {offset // PAGE_BYTES}")
        return found

    def _need_pinned(self) -> None:
        """Refuse what was read of a snapshot that is not pinned any more."""
        if self._new.is_lost or (self._old is not None and self._old.is_lost):
            raise SnapshotLostError


class ChangeFeed:
    """Changes of an open file, from each snapshot that is taken to the next. Not thread-safe.

    The older snapshot is lost where the map is replaced, the process forks or the file is closed:
    the next changes then are the whole file again.
    """

    __slots__ = ("__weakref__", "_base", "_env", "_taken")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._base: PinnedSnapshot | None = None
        self._taken: PinnedSnapshot | None = None
        env.pinned[id(self)] = ref(self)

    @property
    def base(self) -> int | None:
        """Number of the commit that was kept; None: there is none any more."""
        base = self._base
        return None if base is None or base.is_lost else base.txnid

    @property
    def is_pinning(self) -> bool:
        """True if a snapshot of it is pinned."""
        return any(each is not None and not each.is_lost for each in (self._base, self._taken))

    def take(self) -> Changes:
        """Pin the newest snapshot, and return how it differs from the one that was kept.

        Raises:
            ClosedError: the file is closed.
            StorageError
        """
        while True:
            try:
                return self._env.hold(self._take)
            except MapMovedError:
                self._env.queue.call(self._env.follow_map, job=True)

    def _take(self, _: Any) -> Changes:
        # Nothing was kept since the last time: that shipment failed.
        if self._taken is not None:
            self._taken.let_go()
            self._taken = None
        try:
            reader, image = self._env.pin()
        except MapResized as error:
            raise MapMovedError from error
        self._taken = PinnedSnapshot(self._env, reader, image)
        if self._base is not None and self._base.is_lost:
            self._base = None
        return Changes(self._env, self._base, self._taken)

    def keep(self) -> None:
        """Let go of the older snapshot: the one that was taken last takes its place."""
        self._env.hold(self._keep)

    def _keep(self, _: Any) -> None:
        base, self._base, self._taken = self._base, self._taken, None
        if base is not None:
            base.let_go()

    def drop(self) -> None:
        """Let go of both snapshots."""
        self._env.hold(lambda _: self.let_go())

    def let_go(self) -> None:
        """Let go of both snapshots. Inside ``hold``, or while nothing holds the environment."""
        for pinned in (self._base, self._taken):
            if pinned is not None:
                pinned.let_go()

    def forget(self) -> list[Any]:
        """Leave the readers to the parent of a fork, and return them."""
        both = (self._base, self._taken)
        self._base = self._taken = None
        return [pinned.forget() for pinned in both if pinned is not None]


# --- Rows on their way to another store -----------------------------------------------------------

FIRST: Final = b"\x02"
END: Final = b"\xff"
"""All rows but the counters and the store's own lie between these keys."""
_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 16 * 1024**2


def batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield changes in lists that fit into one statement."""
    batch: list[Change] = []
    size = 0
    for key, value in changes:
        batch.append((key, value))
        size += len(key) + len(value or b"")
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def ranges(rows: Iterable[Change]) -> Iterator[tuple[bytes, bytes, list[Row]]]:
    """Yield ranges that cover all keys, each as first key, key behind it, and the rows in it.

    ``rows`` are those of a whole store: none is gone.
    """
    start = FIRST
    for batch in batches(rows):
        stop = behind(batch[-1][0])
        yield start, stop, batch  # type: ignore[misc]  # no value is None
        start = stop
    yield start, END, []


# --- The ties of a file and its warm copy: a row of the file, a mark of the copy ------------------
# The copy has one of the two marks in the row. Whoever begins to ship leaves a new one in the file,
# beside the one that the copy has, before the copy gets it: so one of them is right even if that is
# cut short.

MARK_BYTES: Final = 16
NO_MARK: Final = bytes(MARK_BYTES)


class MarkMovedError(Exception):
    """Somebody else shipped to the copy, or took it over, meanwhile; nothing was written."""


_MARK = Struct("<16sQQQQ?")


class Mark(NamedTuple):
    """State of a warm copy, as its server has it."""

    source: bytes
    """16 random bytes, which the file has in a row, too."""
    position: int
    """Position of the file's last commit that it has."""
    device: int
    inode: int
    """Numbers of the file, which tell it from a twin."""
    taken_us: int
    """Time at which that was read from the file."""
    is_complete: bool
    """False: its first shipment has not ended."""

    def pack(self) -> bytes:
        """Return the value of the mark's row on the server."""
        return _MARK.pack(*self)


def mark_of(value: bytes | None) -> Mark | None:
    """Return the mark with this value; None for None."""
    return None if value is None else Mark(*_MARK.unpack(value))


_WARM_ROW = Struct("<16s16sQ")
WARM_ROW_BYTES: Final = _WARM_ROW.size


class WarmRow(NamedTuple):
    """Ties of a file to its warm copy; blank if it has none, or is a copy itself."""

    before: bytes
    """The mark that the copy had when this file last took it over."""
    made: bytes
    """The mark that it was given then."""
    offset: int
    """Commits of the files that this one replaced when it was compacted: the number of a commit and
    this are its position, which only grows."""

    @property
    def is_blank(self) -> bool:
        """True if no copy follows the file."""
        return self.made == NO_MARK

    def pack(self) -> bytes:
        """Return the row's value."""
        return seal_value(WARM_KEY, _WARM_ROW.pack(*self))


def warm_row(value: bytes | None) -> WarmRow:
    """Return the row with this value; blank for None."""
    body = bytes(WARM_ROW_BYTES) if value is None else bytes(open_value(WARM_KEY, value)[1])
    if len(body) != WARM_ROW_BYTES:
        raise malformed(WARM_KEY)
    return WarmRow(*_WARM_ROW.unpack(body))
