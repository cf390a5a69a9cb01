"""Room in the file for deletions: LMDB needs fresh pages even to free others.

A full device must not be a trap that only more space opens. So the file is grown ahead of need, and
the last megabyte of what is free in it serves only closures that make room. Free are the pages of
LMDB's free list (all of them are used again as soon as no reader needs them) and those between the
last page and the end of the file.

**What a batch takes** is estimated per page (``pages_for``): LMDB copies each leaf that a row comes
into, with the branches above it, and writes what splits of new leaves, each half full at worst.
Rows with nobody else's between them share leaves. Values too large for a leaf have pages of their
own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from memcore.errors import StoreFullError
from memcore.limits import PAGE_BYTES, ROOM_BYTES, ROOM_STEP_BYTES
from memcore.store.device import FULL
from memcore.store.file import newest_meta
from memcore.store.txn import RawCursor, RawTxn

__all__ = ["Room", "Rows", "pages_for", "rows_at_most", "rows_in"]

_COMMIT_BYTES: Final = 32 * 1024
"""What a commit writes beside its rows: LMDB's free list, and pages of the tree's own growth."""
_NODE_BYTES: Final = 12
"""Head of a node, its place in the page's index, and a byte to an even size."""
_NODE_BYTES_MAX: Final = 2030
"""A larger row has its value on pages of its own."""
_PAGE_HEAD_BYTES: Final = 16
_HALF_FULL: Final = 2
"""Leaves that split are half full at worst."""
_CROWDED: Final = 14
"""Before large rows LMDB, which splits at the middle key, leaves 1/14 of a leaf full at worst."""
_CROWDING_BYTES: Final = PAGE_BYTES // 8
_RUN_PAGES: Final = 2
"""Leaves at both ends of a run of rows, which others' rows share."""
_LEAVES_BRANCH: Final = 8
"""A branch holds as many leaves at least, with long keys and half full."""
_FEW: Final = 4
"""So many rows are not looked for in the tree: each is a run of its own."""
_BLANK: Final = bytes(PAGE_BYTES)


class Room:
    """How much may be written before somebody has to look again. Used under the write lock."""

    __slots__ = ("_depth", "_fd", "_left", "_next", "_pages", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._left = 0
        self._next = 0
        self._depth = 0
        self._pages = 0

    def take(self, raw: RawTxn, puts: Mapping[bytes, int]) -> bool:
        """Before an ordinary batch is committed that put these rows, by size: may it be?

        The file is grown first, so that what is kept is there when the batch has taken its part,
        whoever fills the device meanwhile. What was left is known only if the commit before was one
        of these: other processes write, and those who make room use pages before they free any.
        """
        txnid = raw.id()
        known = txnid == self._next
        cost = self._bytes(rows_at_most(puts))
        if cost > self._left or not known:
            if len(puts) > _FEW:
                cost = self._bytes(rows_in(raw, puts))
            if cost > self._left or not known:
                self._measure(cost)
            if cost > self._left:
                return False
        self._left -= cost
        self._next = txnid + 1
        return True

    def _bytes(self, rows: Rows) -> int:
        return pages_for(rows, self._depth, self._pages) * PAGE_BYTES + _COMMIT_BYTES

    def refusal(self) -> StoreFullError:
        """What the caller of an ordinary batch is told."""
        return StoreFullError(
            f"{self._path}: no space is left on the device: free some, or delete sessions, for"
            " which room is kept; nothing was stored or lost"
        )

    def _measure(self, cost: int) -> None:
        meta = newest_meta(self._fd, self._path)
        self._depth, self._pages = meta.main_depth, meta.main_pages
        used = (meta.last_page + 1) * PAGE_BYTES
        # LMDB never looks at its own counts of pages: in a damaged file they say anything.
        free = (meta.last_page - 1 - meta.main_pages - meta.free_pages) * PAGE_BYTES
        size = os.fstat(self._fd).st_size
        have = max(0, free) + max(0, size - used)
        want = ROOM_BYTES + max(cost, ROOM_STEP_BYTES)
        if have < want:
            have += self._extend(size, want - have)
        self._left = have - ROOM_BYTES

    def _extend(self, size: int, more: int) -> int:
        """Grow the file by this and up to a page more; how many bytes, fewer on a full device.

        Zeros are written, as pages that were never written make a small commit slow, and in single
        pages: one large write makes large folios of the page cache, and each later flush of a page
        then writes a whole one. What a large batch fills at once is only reserved. Nothing that
        anybody wrote is written over.
        """
        end = (size + more + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        at = size
        try:
            if more > ROOM_BYTES + ROOM_STEP_BYTES:
                with suppress(OSError):  # then as far as it goes
                    os.posix_fallocate(self._fd, size, end - size)
                    return end - size
            while at < end:
                at += os.pwrite(self._fd, _BLANK[: end - at], at)
        except OSError as error:
            if error.errno not in FULL:
                raise
        return at - size


class Rows(NamedTuple):
    """What a batch put, as far as it matters for pages."""

    runs: int
    """Runs of rows with no others' between them."""
    inline: int
    """Bytes in leaves."""
    crowded: int
    """Those of them in runs with a row of an eighth of a page or more close behind them."""
    large: int
    """Pages of values too large for a leaf."""


def rows_at_most(puts: Mapping[bytes, int]) -> Rows:
    """The rows of a batch without a look at the tree: each for itself, and crowded."""
    inline = large = 0
    for key, size in puts.items():
        taken = _NODE_BYTES + len(key)
        if taken + size <= _NODE_BYTES_MAX:
            inline += taken + size
        else:
            inline += taken + 8
            large += (size + _PAGE_HEAD_BYTES + PAGE_BYTES - 1) // PAGE_BYTES
    return Rows(len(puts), inline, inline if len(puts) > _FEW else 0, large)


def rows_in(raw: RawTxn, puts: Mapping[bytes, int]) -> Rows:
    """The rows of a batch as they lie in its transaction, among all others."""
    runs = crowded = run = 0
    following = b""
    cursor = raw.cursor()
    try:
        for key in sorted(puts):
            if key != following:
                if not cursor.set_range(key) or cursor.key() != key:
                    continue  # deleted again
                runs += 1
                run = 0
            run += _NODE_BYTES + len(key) + min(puts[key], _NODE_BYTES_MAX)
            following = cursor.key() if cursor.next() else b""
            # A run that fills no page splits one at most.
            if run > PAGE_BYTES // 4 and following and following not in puts:
                crowded += run * _stands_before_large(cursor)
    finally:
        cursor.close()
    whole = rows_at_most(puts)
    return whole._replace(runs=runs, crowded=min(crowded, whole.inline))


def _stands_before_large(cursor: RawCursor) -> bool:
    """Whether among the rows from here to the end of a page is one that crowds the others."""
    seen = 0
    while seen < PAGE_BYTES:
        size = len(cursor.value())
        if _CROWDING_BYTES < size <= _NODE_BYTES_MAX:
            return True
        seen += _NODE_BYTES + len(cursor.key()) + min(size, _NODE_BYTES_MAX)
        if not cursor.next():
            break
    return False


def pages_for(rows: Rows, depth: int, pages: int) -> int:
    """The pages that putting these rows takes, at most.

    Args:
        rows: what was put.
        depth: of the tree as it was.
        pages: all that it had: so many are copied at most.
    """
    copied = min(rows.runs * (_RUN_PAGES + max(depth - 1, 0)), pages + rows.runs + depth)
    filled = _HALF_FULL * (rows.inline - rows.crowded) + _CROWDED * rows.crowded
    leaves = (filled + PAGE_BYTES - 1) // (PAGE_BYTES - _PAGE_HEAD_BYTES)
    return copied + leaves + leaves // _LEAVES_BRANCH + rows.large
