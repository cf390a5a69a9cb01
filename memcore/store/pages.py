"""LMDB's B-trees, read from the raw file without trusting a byte.

LMDB validates only part of what it maps: a branch that points to the wrong page, a node that
extends beyond its page or a run shorter than its value crashes the process with an assertion or a
bus error or hangs it in an endless loop, and a wrong separator silently hides rows. So pages are
validated here before LMDB reads them: those nearest to the roots at every opening, all of them by
``check`` and ``verify``.

memcore uses neither named databases nor duplicate keys, so the rules are few. Every page carries
its own number and is referenced once; all leaves are at the tree's depth; the nodes of a page tile
it from ``upper`` to its end; keys ascend and are within the separators above them; a large value
fills its run of pages exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from struct import Struct, unpack_from
from typing import Final, NamedTuple, TypeAlias

from memcore._fast import TreeWalk
from memcore.errors import StoreAccessError
from memcore.limits import KEY_BYTES_MAX, PAGE_BYTES

__all__ = [
    "Child",
    "DamageError",
    "LeafEntry",
    "LeafRow",
    "RawPage",
    "ReadPage",
    "Tree",
    "TreeWalk",
    "damage",
    "free_lists",
    "free_pages",
    "leaves_apart",
    "pages_of",
    "rows_of",
    "walk_of",
]


# --- LMDB's B-trees, read from the raw file without trusting a byte -------------------------------

PAGE_HEADER_BYTES: Final = 16
_TOO_LARGE: Final = 18
_PAGE_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_RUN_HEADER = Struct("<QHHI")  # first page, pad, flags, pages


class DamageError(Exception):
    """The structure breaks a rule, described by the message."""


class Tree(NamedTuple):
    """A tree as described by its meta page; ``txnid`` is 0 for a tree with byte keys.

    The keys of the free list are the transactions that freed its pages, up to ``txnid``.
    """

    name: str
    root: int
    depth: int
    txnid: int = 0


class LeafRow(NamedTuple):
    """A row of a leaf: its value, or the value's size in bytes and first page (``run``)."""

    key: bytes
    value: bytes
    size: int
    run: int


def walk_of(fd: int, last_page: int) -> TreeWalk:
    """Return a walk over the trees of a file, which raises ``DamageError`` on any violation."""
    return TreeWalk(fd, last_page, damage, LeafRow)


def damage(
    tree: Tree | None, rule: int, page: bytes, number: int, size: int
) -> DamageError | StoreAccessError:
    """Build the error for a violated rule, numbered as in ``_pages.pxi``.

    Args:
        tree: the tree that has it; None: a value or free list read on its own, or the file.
        rule: number of the rule.
        page: the page that breaks it, or the header of a run.
        number: page number; for a list that claims too many pages, their number.
        size: size of the value or the list in bytes.
    """
    if rule == _TOO_LARGE:
        return StoreAccessError(f"a file of {size} bytes needs more memory than there is to check")
    name = "a value" if tree is None else f"the {tree.name}"
    found, _, flags, lower, upper = _PAGE_HEADER.unpack_from(page)
    where = f"page {number} of {name}"
    return DamageError(
        {
            1: f"the file is truncated: {where} is missing",
            2: f"{where} is marked as page {found}",
            3: f"{where} has flags {flags:#x}",
            4: f"{where} has bounds {lower}..{upper}",
            5: f"{where} has nodes outside of {upper}..{PAGE_BYTES}",
            6: f"{where} has a row of a kind that memcore does not write",
            7: f"the nodes of {where} overlap or leave it",
            8: f"{where} has keys out of order or bounds",
            9: f"{name} refers to page {number}, which is outside the file",
            10: f"{name} refers to page {number} or one after it, which is in use already",
            11: f"a value of {size} bytes at page {number} leaves the file",
            12: f"the file ends before page {number}, where a value begins",
            13: f"page {number}, where a value of {size} bytes begins, is marked as page {found}"
            f" with flags {flags:#x} and {_RUN_HEADER.unpack_from(page)[3]} pages",
            14: f"a list of free pages has {size} bytes",
            15: f"a list of free pages claims {number} entries in {size} bytes",
            16: "a list of free pages is out of order",
            17: "a list of free pages names pages outside the file",
        }[rule]
    )


# --- One raw page of a tree, parsed without trusting a byte of it ---------------------------------

BRANCH: Final = 0x01
LEAF: Final = 0x02
HEADER_BYTES: Final = 16
_BIG: Final = 0x01
_U64 = Struct("<Q")

_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_NODE = Struct("<HHHH")  # low, high, flags, key size; then key and value


class LeafEntry(NamedTuple):
    """Row of a leaf: its key as stored, and the location of its value."""

    key: bytes
    size: int
    offset: int
    """Offset of the value within the page, or within the file if ``run``."""
    run: bool
    """True if the value is on overflow pages."""


class Child(NamedTuple):
    """Entry of a branch: the subtree of keys from ``key`` on."""

    key: bytes
    page: int


class RawPage:
    """Bytes of one page, and the fields of its header."""

    __slots__ = ("flags", "lower", "number", "raw", "upper")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.number, _, self.flags, self.lower, self.upper = _HEADER.unpack_from(raw)

    def is_a(self, flags: int, number: int) -> bool:
        """Return True if the header is that of a page with these flags and this number."""
        return (
            self.number == number
            and self.flags == flags
            and HEADER_BYTES <= self.lower <= self.upper <= PAGE_BYTES
            and not self.lower & 1
        )

    def _places(self) -> list[int]:
        return [
            int.from_bytes(self.raw[at : at + 2], "little")
            for at in range(HEADER_BYTES, self.lower, 2)
        ]

    def _guessed_places(self) -> list[int]:
        """Guess node offsets when the header is lost: their list ends before the lowest node."""
        found, lowest, at = [], PAGE_BYTES, HEADER_BYTES
        while at + 2 <= lowest:
            place = int.from_bytes(self.raw[at : at + 2], "little")
            if not at < place <= PAGE_BYTES - _NODE.size:
                break
            found.append(place)
            lowest = min(lowest, place)
            at += 2
        return found

    def children(self) -> list[Child | None]:
        """Return the entries of a branch in order; None for one that is out of bounds."""
        found: list[Child | None] = []
        for place in self._places():
            if not HEADER_BYTES <= place <= PAGE_BYTES - _NODE.size:
                found.append(None)
                continue
            low, high, flags, size = _NODE.unpack_from(self.raw, place)
            start = place + _NODE.size
            whole = size <= KEY_BYTES_MAX and start + size <= PAGE_BYTES
            page = low | high << 16 | flags << 32
            found.append(Child(self.raw[start : start + size], page) if whole else None)
        return found

    def nodes(self, *, guess: bool = False) -> list[LeafEntry | None]:
        """Return the rows of a leaf in order; None for one that is out of bounds."""
        places = self._guessed_places() if guess else self._places()
        return [self._node(place) for place in places]

    def _node(self, place: int) -> LeafEntry | None:
        if not HEADER_BYTES <= place <= PAGE_BYTES - _NODE.size:
            return None
        low, high, flags, key_bytes = _NODE.unpack_from(self.raw, place)
        start = place + _NODE.size
        offset = start + key_bytes
        size = low | high << 16
        if not 0 < key_bytes <= KEY_BYTES_MAX or offset > PAGE_BYTES or flags & ~_BIG:
            return None
        key = self.raw[start:offset]
        if flags & _BIG:
            if offset + _U64.size > PAGE_BYTES:
                return None
            run = int(_U64.unpack_from(self.raw, offset)[0])
            return LeafEntry(key, size, run * PAGE_BYTES + HEADER_BYTES, run=True)
        if offset + size > PAGE_BYTES:
            return None
        return LeafEntry(key, size, offset, run=False)


# --- LMDB's list of free pages, read from the raw file --------------------------------------------
# LMDB allocates pages from this list without further checks: a listed page that is in use gets
# overwritten, so the list is validated before LMDB reads it.
#
# LMDB never writes a page that was allocated and freed within one transaction, so an intact file
# may end before its last page: every page missing at the end must then be listed as free.

_ENTRY_BYTES: Final = 8
TXNID_MAX: Final = 2**62


def free_pages(fd: int, root: int, depth: int, last_page: int) -> Iterator[int]:
    """Yield every page number that the tree at ``root`` lists as free.

    Raises:
        DamageError: a page, node or list breaks a rule, or the tree has a cycle.
    """
    tree = Tree("free list", root, depth, TXNID_MAX)
    for data in free_lists(fd, walk_of(fd, last_page), tree):
        yield from pages_of(data)


def free_lists(fd: int, walk: TreeWalk, tree: Tree, *, nodes_max: int = 0) -> Iterator[bytes]:
    """Yield the free lists in up to ``nodes_max`` nodes of the tree (0: all).

    Raises:
        DamageError: a page, node or list breaks a rule, as by listing a page that is in use.
    """
    for rows in walk.leaves(tree, nodes_max):
        for row in rows:
            data = row.value
            if row.run:
                data = os.pread(fd, row.size, walk.run(row.run, row.size))
            walk.take_list(data)
            yield data


def pages_of(data: bytes) -> tuple[int, ...]:
    """Return the pages in a free list, highest first."""
    count = int.from_bytes(data[:_ENTRY_BYTES], "little")
    return unpack_from(f"<{count}Q", data, _ENTRY_BYTES)


# --- What two trees of one file do not share ------------------------------------------------------
# LMDB copies a page before it changes it. A page that two trees have in common, by number, is the
# same in both, and so is everything below it: it has one parent in each, at one height above the
# leaves. So whole subtrees are left out without being read.

ReadPage: TypeAlias = Callable[[int], RawPage]


def leaves_apart(read: ReadPage, old: Tree | None, new: Tree) -> tuple[list[int], list[int]]:
    """Return the leaves that only ``old`` has and those that only ``new`` has, in key order.

    Raises:
        DamageError: a page is not what the page above it says.
    """
    trees = (old, new)
    height = max(0 if tree is None else tree.depth for tree in trees)
    apart: list[list[int]] = [[], []]
    while height:
        for pages, tree in zip(apart, trees, strict=True):
            if tree is not None and tree.depth == height:
                pages.append(tree.root)
        shared = set(apart[0]).intersection(apart[1])
        apart = [[page for page in pages if page not in shared] for pages in apart]
        height -= 1
        if height:
            apart = [
                [child for page in pages for child in _children(read, page)] for pages in apart
            ]
    return apart[0], apart[1]


def _children(read: ReadPage, number: int) -> list[int]:
    page = read(number)
    found = page.children() if page.is_a(BRANCH, number) else [None]
    if None in found:
        raise DamageError(f"page {number} is no branch of the data")
    return [child.page for child in found if child is not None]


def rows_of(read: ReadPage, leaves: Iterable[int]) -> Iterator[tuple[LeafEntry, RawPage]]:
    """Yield the rows of leaves, each with its page.

    Raises:
        DamageError: a page is no leaf.
    """
    for number in leaves:
        page = read(number)
        found = page.nodes() if page.is_a(LEAF, number) else [None]
        for entry in found:
            if entry is None:
                raise DamageError(f"page {number} is no leaf of the data")
            yield entry, page
