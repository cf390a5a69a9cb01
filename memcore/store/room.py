"""Room in the file for deletions: LMDB needs fresh pages even to free others.

A full device must not be a trap that only more space opens. So the file is grown ahead of need, and
the last megabyte of what is free in it serves only closures that make room. Free are the pages of
LMDB's free list (all of them are used again as soon as no reader needs them) and those between the
last page and the end of the file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from memcore.errors import StoreFullError
from memcore.limits import PAGE_BYTES, ROOM_BYTES, ROOM_STEP_BYTES
from memcore.store.device import FULL
from memcore.store.file import newest_meta

__all__ = ["Room"]

_COMMIT_BYTES: Final = 32 * 1024
"""What a commit writes beside its rows: the pages above them, and LMDB's free list."""
_BLANK: Final = bytes(PAGE_BYTES)


class Room:
    """How much may be written before somebody has to look again. Used under the write lock."""

    __slots__ = ("_fd", "_left", "_next", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._left = 0
        self._next = 0

    def take(self, size: int, places: int, txnid: int) -> bool:
        """Before an ordinary batch is committed that wrote so much in so many places: may it be?

        The file is grown first, so that what is kept is there when the batch has taken its part,
        whoever fills the device meanwhile. What was left is known only if the commit before was one
        of these: other processes write, and those who make room use pages before they free any.
        """
        cost = 2 * size + places * PAGE_BYTES + _COMMIT_BYTES
        if cost > self._left or txnid != self._next:
            self._measure(cost)
            if cost > self._left:
                return False
        self._left -= cost
        self._next = txnid + 1
        return True

    def refusal(self) -> StoreFullError:
        """What the caller of an ordinary batch is told."""
        return StoreFullError(
            f"{self._path}: no space is left on the device: free some, or delete sessions, for"
            " which room is kept; nothing was stored or lost"
        )

    def _measure(self, cost: int) -> None:
        meta = newest_meta(self._fd, self._path)
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
