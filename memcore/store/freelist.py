"""LMDB's list of free pages, read from the raw file.

LMDB never writes a page that was allocated and freed within one transaction, so a sound file may
end before its last page: every page that is missing at the end must then be listed as free. That
is what this walk finds out, without trusting a byte of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Final

from memcore.limits import PAGE_BYTES

__all__ = ["MalformedError", "free_pages"]

_HEADER_BYTES: Final = 16
_BRANCH, _LEAF = 0x01, 0x02
_BIG: Final = 0x01
_PAGE_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_NODE = Struct("<HHHH")  # low, high, flags, key size; then key and value
_U64 = Struct("<Q")
_KEY_BYTES: Final = 8


class MalformedError(Exception):
    """The tree of free pages breaks a rule; the text says which."""


def free_pages(fd: int, root: int, depth: int, last_page: int) -> Iterator[int]:
    """Every page number that the tree at ``root`` lists as free.

    Raises:
        MalformedError: a page, node or list is out of bounds, or the tree has a cycle.
    """
    yield from _Walk(fd, last_page).tree(root, depth)


class _Walk:
    def __init__(self, fd: int, last_page: int) -> None:
        self._fd = fd
        self._last = last_page
        self._seen: set[int] = set()

    def _page(self, number: int) -> bytes:
        if not 1 < number <= self._last or number in self._seen:
            raise MalformedError(f"the free list refers to page {number}")
        self._seen.add(number)
        page = os.pread(self._fd, PAGE_BYTES, number * PAGE_BYTES)
        if len(page) < PAGE_BYTES or _U64.unpack_from(page)[0] != number:
            raise MalformedError(f"page {number} of the free list is not what it should be")
        return page

    def tree(self, number: int, depth: int) -> Iterator[int]:
        """The free pages under one page of the tree."""
        page = self._page(number)
        _, _, flags, lower, upper = _PAGE_HEADER.unpack_from(page)
        if flags != (_LEAF if depth == 1 else _BRANCH):
            raise MalformedError(f"page {number} of the free list has flags {flags:#x}")
        if not _HEADER_BYTES < lower <= upper <= PAGE_BYTES:
            raise MalformedError(f"page {number} of the free list has bounds {lower}..{upper}")
        for at in range(_HEADER_BYTES, lower - 1, 2):
            node = int.from_bytes(page[at : at + 2], "little")
            if not upper <= node <= PAGE_BYTES - _NODE.size:
                raise MalformedError(f"page {number} of the free list has a node at {node}")
            low, high, flags, key_bytes = _NODE.unpack_from(page, node)
            if depth > 1:
                yield from self.tree(low | high << 16 | flags << 32, depth - 1)
                continue
            start = node + _NODE.size + _KEY_BYTES
            if key_bytes != _KEY_BYTES:
                raise MalformedError(f"page {number} of the free list has a key of {key_bytes}")
            yield from self._list(page, start, low | high << 16, big=bool(flags & _BIG))

    def _list(self, page: bytes, start: int, size: int, *, big: bool) -> Iterator[int]:
        """One list: how many, then the page numbers."""
        if big:
            if start + _U64.size > PAGE_BYTES or size > (self._last + 1) * _U64.size:
                raise MalformedError("a list of free pages is larger than the file")
            first = _U64.unpack_from(page, start)[0]
            head = self._page(first)
            offset = first * PAGE_BYTES + _HEADER_BYTES
            data = head[_HEADER_BYTES : _HEADER_BYTES + size]
            if size > len(data):
                data = os.pread(self._fd, size, offset)
        else:
            data = page[start : start + size]
        if len(data) != size or size < _U64.size or size % _U64.size:
            raise MalformedError(f"a list of free pages has {size} bytes")
        count = _U64.unpack_from(data)[0]
        if (count + 1) * _U64.size > size:
            raise MalformedError(f"a list of free pages claims {count} entries")
        for at in range(1, count + 1):
            yield _U64.unpack_from(data, at * _U64.size)[0]
