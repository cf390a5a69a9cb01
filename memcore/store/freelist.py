"""LMDB's list of free pages, read from the raw file.

LMDB takes the pages that it writes from this list without a second look: a page in it that is in
use is overwritten, so what it says is judged before LMDB sees it.

LMDB never writes a page that was allocated and freed within one transaction, so a sound file may
end before its last page: every page that is missing at the end must then be listed as free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import unpack_from
from typing import Final

from memcore.store.structure import DamageError, Row, Tree, Walk

__all__ = ["free_lists", "free_pages"]

_ENTRY_BYTES: Final = 8
_FIRST_PAGE: Final = 2
TXNID_MAX: Final = 2**62


def free_pages(fd: int, root: int, depth: int, last_page: int) -> Iterator[int]:
    """Every page number that the tree at ``root`` lists as free.

    Raises:
        DamageError: a page, node or list breaks a rule, or the tree has a cycle.
    """
    walk = Walk(fd, last_page)
    for pages in free_lists(fd, walk, Tree("free list", root, depth, TXNID_MAX), last_page):
        yield from pages


def free_lists(
    fd: int, walk: Walk, tree: Tree, last_page: int, *, nodes_max: int = 0
) -> Iterator[tuple[int, ...]]:
    """The lists in so many nodes of the tree (0: all); no page in them may be in use.

    Raises:
        DamageError: a page, node or list breaks a rule.
    """
    for rows in walk.leaves(tree, nodes_max=nodes_max):
        for row in rows:
            pages = _decode(fd, walk, row)
            if pages and not _FIRST_PAGE <= pages[-1] <= pages[0] <= last_page:
                raise DamageError("a list of free pages names pages outside the file")
            walk.take(pages, "a list of free pages")
            yield pages


def _decode(fd: int, walk: Walk, row: Row) -> tuple[int, ...]:
    """One list: how many, then the page numbers, the highest first."""
    data = row.value
    if row.run:
        data = os.pread(fd, row.size, walk.run(row.run, row.size))
    if len(data) != row.size or row.size < _ENTRY_BYTES or row.size % _ENTRY_BYTES:
        raise DamageError(f"a list of free pages has {row.size} bytes")
    count = int.from_bytes(data[:_ENTRY_BYTES], "little")
    if (count + 1) * _ENTRY_BYTES > row.size:
        raise DamageError(f"a list of free pages claims {count} entries in {row.size} bytes")
    pages = unpack_from(f"<{count}Q", data, _ENTRY_BYTES)
    if pages != tuple(sorted(pages, reverse=True)):
        raise DamageError("a list of free pages is out of order")
    return pages
