"""Changes of a file: the rows in which two of its snapshots differ, whoever wrote them.

LMDB overwrites no page that a pinned reader may see, so what two pinned snapshots share they share
by page number, and only the pages that one of them lacks are read. This costs writers nothing,
except that pages freed since the older snapshot cannot be used again until it is let go. The redo
slots, one value of the store's own, are the exception: they are written in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from memcore.errors import CorruptStoreError, StorageError
from memcore.limits import PAGE_BYTES
from memcore.store.datafile import meta_of, newest_meta
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
    "WARM_ROW_BYTES",
    "ChangeFeed",
    "Changes",
    "SnapshotLostError",
]

WARM_ROW_BYTES: Final = 32
"""Size of the row that names what a warm copy follows: two marks."""

Change: TypeAlias = tuple[bytes, bytes | None]
"""A key, and the row's value; None: the row is gone."""


class SnapshotLostError(Exception):
    """A snapshot was let go while it was read: its pages may have been overwritten."""


class PinnedSnapshot:
    """A snapshot whose pages stay as they are until it is let go."""

    __slots__ = ("_raw", "is_lost", "tree", "txnid")

    def __init__(self, raw: Any, image: bytes) -> None:
        self._raw = raw
        meta = meta_of(image)
        self.txnid = meta.txnid
        self.tree = Tree("data", meta.main_root, meta.main_depth)
        self.is_lost = False

    def let_go(self) -> None:
        """Let its pages be used again; whoever is reading them finds that it is lost."""
        self.is_lost = True  # before LMDB may reuse a page
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.abort()

    def forget(self) -> Any:
        """Leave the reader to the parent of a fork, and return it: it must not be aborted."""
        self.is_lost = True
        raw, self._raw = self._raw, None
        return raw


class Changes:
    """The rows in which a snapshot differs from an older one; all of its rows if there is none."""

    __slots__ = ("_env", "_new", "_old")

    def __init__(self, env: Environment, old: PinnedSnapshot | None, new: PinnedSnapshot) -> None:
        self._env = env
        self._old = old
        self._new = new

    @property
    def txnid(self) -> int:
        """Number of the commit up to which they go."""
        return self._new.txnid

    @property
    def is_whole(self) -> bool:
        """True if there is no older snapshot: these are all rows."""
        return self._old is None

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes in key order.

        Raises:
            SnapshotLostError: a snapshot was let go meanwhile; what was yielded may be wrong only
                if it was yielded after that.
            CorruptStoreError: a page is damaged.
            StorageError: the device fails.
        """
        try:
            yield from self._merged()
        except DamageError as damage:
            self._need_pinned()
            raise CorruptStoreError(f"{self._env.path}: {damage}; run 'memcore check'") from damage
        except OSError as error:
            raise StorageError(f"{self._env.path}: cannot be read: {error}") from error

    def _merged(self) -> Iterator[Change]:
        old = None if self._old is None else self._old.tree
        gone, fresh = leaves_apart(self._page, old, self._new.tree)
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
        env.feeds.add(self)

    @property
    def base(self) -> int | None:
        """Number of the commit that was kept; None: there is none any more."""
        base = self._base
        return None if base is None or base.is_lost else base.txnid

    def newest(self) -> int:
        """Return the number of the newest commit."""
        return int(self._env.hold(lambda _: newest_meta(self._env.fd, self._env.path).txnid))

    def take(self) -> Changes:
        """Pin the newest snapshot, and return in what it differs from the one that was kept.

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
        if self._taken is not None:
            self._taken.let_go()
            self._taken = None
        try:
            reader, image = self._env.pin()
        except MapResized as error:
            raise MapMovedError from error
        self._taken = PinnedSnapshot(reader, image)
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
