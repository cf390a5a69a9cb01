"""Scan of a damaged file as raw pages: rows with valid checksums, ranked by how current they are.

Nothing here maps the file or follows a page number without validating it. A row is proven by the
checksum over its key and value, so a damaged one is never mistaken for a good one; the only
question is if a proven row is the current one. Where the tree is readable it answers that. Where it
is not, the free list distinguishes pages in use from those with deleted or replaced rows.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from memcore.errors import CorruptStoreError, StorageError, StoreAccessError
from memcore.limits import KV_VALUE_BYTES_MAX, PAGE_BYTES
from memcore.store.datafile import DEPTH_MAX, FORMAT_KEY, NO_PAGE, Meta, meta_page, parse_meta
from memcore.store.pages import (
    BRANCH,
    LEAF,
    TXNID_MAX,
    DamageError,
    LeafEntry,
    RawPage,
    Tree,
    free_lists,
    pages_of,
    walk_of,
)
from memcore.store.redo_log import RedoArea, RedoLog, find_run
from memcore.store.steady import SteadyLog

if TYPE_CHECKING:
    from memcore.store.encryption import RowCipher

__all__ = [
    "Confidence",
    "PageScan",
    "RowCandidate",
    "meta_of",
    "read_soft",
    "readable_metas",
    "run_of",
]


# --- Starting points in a damaged file: its meta pages and its redo area --------------------------


def read_soft(fd: int, size: int, offset: int) -> bytes:
    """Read bytes at an offset; empty if the device fails."""
    try:
        return os.pread(fd, size, offset)
    except OSError:
        return b""


def readable_metas(fd: int) -> list[Meta]:
    """Return the meta pages that parse, newest first; a damaged file may have one or none."""
    found = []
    for page in (0, 1):
        head = bytes(page * PAGE_BYTES) + read_soft(fd, PAGE_BYTES, page * PAGE_BYTES)
        with suppress(DamageError):
            found.append(parse_meta(head, page))
    return sorted(found, key=lambda meta: meta.txnid, reverse=True)


def meta_of(image: bytes) -> Meta | None:
    """Parse a meta page image that is stored elsewhere; None if it does not parse."""
    page, raw = meta_page(image)
    with suppress(DamageError):
        return parse_meta(bytes(page * PAGE_BYTES) + raw, page)
    return None


def run_of(fd: int) -> RedoArea | None:
    """Return the reserved run, or None if it is misplaced or incomplete."""
    try:
        return find_run(fd, "")
    except (StorageError, OSError):
        return None


# --- A damaged file as raw pages: its proven rows, and how likely each is to be current -----------

_END: Final = b"\xff" * 600
_RUN_BYTES_MAX: Final = 2 * KV_VALUE_BYTES_MAX

Prove = Callable[[bytes, bytes], bool]
"""Returns True if the value was stored under the key."""


class Confidence(IntEnum):
    """Rank of a proven row by how likely it is to be current; lower is likelier."""

    TREE = 0
    """The newest tree holds it."""
    IN_USE = 1
    """It is below a damaged part of the tree, on a page that is not free."""
    BEFORE = 2
    """The previous tree holds it."""
    UNKNOWN = 3
    """There is no evidence."""
    FREED = 4
    """It is on a free page: deleted or replaced."""


class RowCandidate(NamedTuple):
    """Location of a proven row, with its rank."""

    rank: Confidence
    offset: int
    """Offset of the value in the file; -1 if the redo record holds it."""
    size: int
    page: int


class PageScan:
    """Readable rows of a damaged file. ``rows`` maps keys to candidates, the likeliest first.

    ``within``: range of keys to search for; pages outside it are skipped where possible.
    """

    def __init__(
        self,
        fd: int,
        prove: Prove,
        vault: RowCipher | None = None,
        *,
        within: tuple[bytes, bytes] = (b"", _END),
    ) -> None:
        self.fd = fd
        self._start, self._stop = within
        self._vault = vault
        self._prove = prove
        if vault is not None:
            self._prove = lambda key, value: prove(key, vault.open(key, value))
        self.size = os.fstat(fd).st_size
        self.pages = self.size // PAGE_BYTES
        self.redone: dict[bytes, bytes | None] = {}
        """Rows that a pending redo record puts (value) or deletes (None)."""
        self.unread: int | None = 0
        """Pages in use of which some rows are unknown; None if that cannot be counted."""
        self.run = run_of(fd)
        self.metas_lost = 0
        self._steady: Meta | None = None
        self.metas = self._readable_metas()
        self._begin()

    def _begin(self, *, whole: bool = False) -> None:
        """Discard all results; ``whole``: skip no subtree, regardless of the requested range."""
        self._prunes = not whole and (self._start, self._stop) != (b"", _END)
        self.rows: dict[bytes, list[RowCandidate]] = {}
        self.format_rows: list[bytes] = []
        self.damaged: list[bytes] = []
        """Keys, as stored, of rows in the newest tree that fail their proof."""
        self._torn: list[tuple[bytes, bytes]] = []
        """Lost key ranges in the order of discovery."""
        self._gaps: dict[tuple[bytes, bytes], list[bytes]] = {}
        """Lost ranges between proven rows of a leaf, with the stored keys of the damaged rows."""
        self._lost: list[tuple[bytes, bytes]] = []
        """Key ranges ``lo <= key < hi`` in which the newest tree may have unreadable rows."""
        self._starts: list[bytes] = []
        self._seen = bytearray(self.pages + 1)
        self._runs = bytearray(self.pages + 1)
        """Pages with the value of a proven row: never taken for a leaf, whatever they contain."""
        self._whole = bytearray(self.pages + 1)
        """Current leaves in which every row is proven."""
        self._broken: set[int] = set()
        """Damaged branches, which hold no rows."""

    def read(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Collect every row that can be proven."""
        newest = self.metas[0] if self.metas else None
        self._read_tree(newest)
        if self._lost and self._prunes:
            # Now every page is examined. A value may look like a leaf, and only the rows of all
            # keys reveal the pages that hold values.
            self._begin(whole=True)
            self._read_tree(newest)
        if self._lost:
            if len(self.metas) > 1:
                self._walk(self.metas[1], Confidence.BEFORE)
            elif newest is None and self._steady is not None:
                self._walk(self._steady, Confidence.BEFORE)
            own: set[int] = set()
            free = self._free(newest, own)
            self._scan(free, progress)
            for found in self.rows.values():
                found.sort()
            self._narrow()
            self.unread = None
            if newest is not None and free is not None:
                self.unread = self._count_unread(newest, free, own)
            self._drop_deleted(all_found=self.unread == 0)
        self._redo(newest)
        if progress is not None:
            progress(self.pages, self.pages)

    def _read_tree(self, newest: Meta | None) -> None:
        """Collect the rows of the newest tree, and the key ranges of its unreadable parts."""
        if newest is None:
            self._lose(b"", _END)
        else:
            self._walk(newest, Confidence.TREE)
        self._settle_lost()

    def value(self, key: bytes, at: RowCandidate) -> bytes:
        """Return the value of a proven row.

        Raises:
            StoreAccessError: bytes that were readable before no longer are.
        """
        if at.offset < 0:
            raw = self.redone[key] or b""
            return raw if self._vault is None else self._vault.open(key, raw)
        raw = read_soft(self.fd, at.size, at.offset)
        if len(raw) != at.size:
            raise StoreAccessError(
                f"the device fails at byte {at.offset}, which it read before: copy the file to"
                " another one and salvage the copy"
            )
        return raw if self._vault is None else self._vault.open(key, raw)

    def _readable_metas(self) -> list[Meta]:
        """Return the meta pages that may be followed, newest first."""
        found = readable_metas(self.fd)
        self.metas_lost = 2 - len(found)
        if self.run is not None and self.run.relaxed:
            log = SteadyLog(self.fd, self.run)
            with suppress(CorruptStoreError, OSError):  # then the meta pages decide
                record = log.newest()
                self._steady = None if record is None else meta_of(record.image)
                if self._steady is not None and record is not None and record.boot != log.boot:
                    return [self._steady]  # later commits were not flushed and may be torn
        return found

    # --- the trees ----------------------------------------------------------------------------

    def _page(self, number: int) -> RawPage | None:
        if not 1 < number < self.pages:
            return None
        raw = read_soft(self.fd, PAGE_BYTES, number * PAGE_BYTES)
        return RawPage(raw) if len(raw) == PAGE_BYTES else None

    def _walk(self, meta: Meta, rank: Confidence) -> None:
        """Visit the tree of a meta page; unreadable parts become lost ranges."""
        visited: set[int] = set()
        todo = [(meta.main_root, meta.main_depth, b"", _END)]
        if meta.main_root == NO_PAGE:
            return
        while todo:
            number, depth, lo, hi = todo.pop()
            page = self._page(number)
            if page is None or number in visited or not 0 < depth <= DEPTH_MAX:
                self._lose(lo, hi, rank)
                continue
            visited.add(number)
            if depth == 1:
                self._leaf(page, number, rank, lo, hi)
            elif not page.is_a(BRANCH, number):
                self._lose(lo, hi, rank)
                self._broken.add(number)
            else:
                if rank is Confidence.TREE:
                    self._seen[number] = 1
                below = self._branch(page, depth, lo, hi, rank)
                if self._prunes:
                    below = (at for at in below if at[2] < self._stop and self._start < at[3])
                todo += below

    def _branch(
        self, page: RawPage, depth: int, lo: bytes, hi: bytes, rank: Confidence
    ) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield the subtrees of a branch with their key ranges."""
        children = page.children()
        floor = lo
        for at, child in enumerate(children):
            key = lo if at == 0 else child.key if child is not None else None
            after = children[at + 1] if at + 1 < len(children) else None
            stop = hi if at + 1 == len(children) else after.key if after is not None else None
            if child is None or key is None or stop is None or not floor <= key < stop <= hi:
                self._lose(floor, hi, rank)  # from here on the separators are unreliable
                if child is not None:
                    yield child.page, depth - 1, floor, hi
                continue
            yield child.page, depth - 1, key, stop
            floor = stop
        if not children:
            self._lose(lo, hi, rank)

    def _leaf(self, page: RawPage, number: int, rank: Confidence, lo: bytes, hi: bytes) -> None:
        intact = page.is_a(LEAF, number)
        nodes = page.nodes(guess=not intact)
        proven = [node is not None and self._is_proven(page, node) for node in nodes]
        keys = [node.key for node, good in zip(nodes, proven, strict=True) if node and good]
        inside = all(lo <= key < hi for key in keys)
        if not intact or not inside or not keys:
            # The page or its parent's entry for it is damaged: the later scan examines its rows.
            floor = min([lo, *keys])
            stop = max([hi, *(key + b"\0" for key in keys)])
            self._lose(floor, stop, rank)
            return
        if rank is Confidence.TREE:
            self._seen[number] = 1
        before = lo
        gap: list[bytes] = []
        for node, good in zip(nodes, proven, strict=True):
            if good and node is not None:
                if gap:
                    self._lose_gap(before, node.key, rank, gap)
                before, gap = node.key + b"\0", []
                self._add(page, number, node, rank)
            else:
                gap.append(b"" if node is None else node.key)
                if node is not None and rank is Confidence.TREE:
                    self.damaged.append(node.key)
        if gap:
            self._lose_gap(before, hi, rank, gap)
        if rank is Confidence.TREE:
            self._whole[number] = all(proven)

    def _is_proven(self, page: RawPage, node: LeafEntry) -> bool:
        if node.key[:1] == b"\0":
            return True  # the store's own rows have no checksum, and are not salvaged
        if node.run:
            if node.size > _RUN_BYTES_MAX or node.offset + node.size > self.size:
                return False
            return self._prove(node.key, read_soft(self.fd, node.size, node.offset))
        return self._prove(node.key, page.raw[node.offset : node.offset + node.size])

    def _add(self, page: RawPage, number: int, node: LeafEntry, rank: Confidence) -> None:
        """Add a proven row to the results."""
        if node.key[:1] == b"\0":
            if node.key == FORMAT_KEY and not node.run:
                self.format_rows.append(page.raw[node.offset : node.offset + node.size])
            return
        if rank is not Confidence.TREE and not self._is_lost(node.key):
            return
        offset = node.offset
        if node.run:
            first = offset // PAGE_BYTES
            last = (offset + node.size - 1) // PAGE_BYTES
            self._runs[first : last + 1] = b"\1" * (last + 1 - first)
        else:
            offset += number * PAGE_BYTES
        if not self._start <= node.key < self._stop:
            return
        found = RowCandidate(rank, offset, node.size, number)
        self.rows.setdefault(node.key, []).append(found)

    # --- parts that the tree does not cover -----------------------------------------------------

    def _lose(self, lo: bytes, hi: bytes, rank: Confidence = Confidence.TREE) -> None:
        if self._prunes:
            lo, hi = max(lo, self._start), min(hi, self._stop)
        if rank is Confidence.TREE and lo < hi:
            self._torn.append((lo, hi))

    def _lose_gap(self, lo: bytes, hi: bytes, rank: Confidence, stated: list[bytes]) -> None:
        self._lose(lo, hi, rank)
        if rank is Confidence.TREE:
            self._gaps[lo, hi] = stated

    def _narrow(self) -> None:
        """Narrow gaps to their damaged rows if copies on other pages confirm all of their keys."""
        believed = {
            (lo, hi): stated
            for (lo, hi), stated in self._gaps.items()
            if all(lo <= key < hi and key in self.rows for key in stated)
        }
        if not believed:
            return
        self._torn = [found for found in self._torn if found not in believed]
        self._torn += [(key, key + b"\0") for stated in believed.values() for key in stated]
        self._settle_lost()
        for key in [
            key for key, found in self.rows.items() if found[0].rank is not Confidence.TREE
        ]:
            if not self._is_lost(key):
                del self.rows[key]

    def may_hold(self, lo: bytes, hi: bytes) -> bool:
        """Return True if the newest tree may have held unreadable rows in ``lo <= key < hi``."""
        return any(start < hi and lo < stop for start, stop in self._lost)

    def _settle_lost(self) -> None:
        merged: list[tuple[bytes, bytes]] = []
        for lo, hi in sorted(self._torn):
            if merged and lo <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
            else:
                merged.append((lo, hi))
        self._lost = merged
        self._starts = [lo for lo, _ in merged]

    def _is_lost(self, key: bytes) -> bool:
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key < self._lost[at][1]

    def _free(self, meta: Meta | None, own: set[int]) -> set[int] | None:
        """Return the free pages, or None if unreadable; adds the free list's pages to ``own``."""
        if meta is None:
            return None
        if meta.free_root == NO_PAGE:
            return set()
        tree = Tree("free list", meta.free_root, meta.free_depth, TXNID_MAX)
        found: set[int] = set()
        try:
            walk = walk_of(self.fd, meta.last_page)
            for data in free_lists(self.fd, walk, tree):
                found.update(pages_of(data))
        except (DamageError, OSError, StoreAccessError):
            return None
        own |= walk.referred()
        return found

    def _scan(self, free: set[int] | None, progress: Callable[[int, int], None] | None) -> None:
        """Collect rows from all pages that the newest tree does not reach.

        The redo area is skipped: its records hold caller data, which may look like leaves.
        """
        used = self.metas[0].last_page if self.metas else self.pages
        reserved = self._reserved()
        for number in range(2, self.pages):
            if progress is not None and not number % 256:
                progress(number, self.pages)
            page = None if self._seen[number] or number in reserved else self._page(number)
            if page is None or page.is_a(BRANCH, number):
                continue
            intact = page.is_a(LEAF, number)
            rank = Confidence.UNKNOWN
            if free is not None and intact:
                is_free = number in free or number > used  # pages after the last were never freed
                rank = Confidence.FREED if is_free else Confidence.IN_USE
            elif free is not None and number in free:
                continue
            nodes = page.nodes(guess=not intact)
            proven = [node for node in nodes if node is not None and self._is_proven(page, node)]
            for node in proven:
                self._add(page, number, node, rank)
            self._whole[number] = rank is Confidence.IN_USE and len(proven) == len(nodes)
        # A value may contain what looks like a page: rows in it are content, not rows of the file.
        for key in [key for key, at in self.rows.items() if any(self._runs[c.page] for c in at)]:
            kept = [
                c for c in self.rows[key] if c.rank is Confidence.TREE or not self._runs[c.page]
            ]
            if kept:
                self.rows[key] = kept
            else:
                del self.rows[key]

    def _reserved(self) -> range:
        """Return the pages of the redo area."""
        if self.run is None:
            return range(0)
        first = self.run.slots[0] // PAGE_BYTES - 1
        return range(first, (self.run.slots[1] + self.run.slot_bytes) // PAGE_BYTES)

    def _count_unread(self, meta: Meta, free: set[int], own: set[int]) -> int:
        """Count the pages in use that may hold rows other than those found."""
        known = free | own | self._broken | set(self._reserved())
        # A damaged meta page may give any number as its last page: pages past the end of the file
        # are counted without visiting each.
        stop = min(meta.last_page + 1, self.pages)
        unread = max(meta.last_page + 1 - max(stop, 2), 0)
        unread -= sum(stop <= number <= meta.last_page for number in known)
        for number in range(2, stop):
            if number in known or self._runs[number]:
                continue
            page = self._page(number)
            unread += page is None or not (self._whole[number] or page.is_a(BRANCH, number))
        return unread

    def _drop_deleted(self, *, all_found: bool) -> None:
        """Drop old rows that are known to be deleted.

        All of them are if every current row was found. Otherwise a row is if its key falls between
        two neighbours on one fully proven page, since it would have to be on that page.
        """
        unsure = [key for key, found in self.rows.items() if found[0].rank > Confidence.IN_USE]
        sure = [] if all_found else sorted(self.rows.keys() - set(unsure))
        for key in unsure:
            at = bisect_right(sure, key)
            if all_found or (
                0 < at < len(sure)
                and self.rows[sure[at - 1]][0].page == self.rows[sure[at]][0].page
                and self._whole[self.rows[sure[at]][0].page]
            ):
                del self.rows[key]

    def _redo(self, meta: Meta | None) -> None:
        """Apply the redo record that follows the newest meta page, if any."""
        if meta is None or self.run is None or self.run.relaxed:  # those are steady records
            return
        try:
            waiting = RedoLog(self.fd, self.run).pending(meta)
        except (OSError, CorruptStoreError):  # whether a commit waits there cannot be known
            self.unread = None if self.unread is None else self.unread + 1
            return
        for key, value in (waiting[1] if waiting is not None else {}).items():
            self.redone[key] = value
            if value is None:
                self.rows.pop(key, None)
            elif self._prove(key, value):
                self.rows[key] = [RowCandidate(Confidence.TREE, -1, len(value), -1)]
