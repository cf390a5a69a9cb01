"""Where what lies in a sound file: read naively, for the mutators to aim."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

PAGE = 4096
BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG = 1
NO_PAGE = 2**64 - 1
META_FIRST = 16
"""Where the meta image begins in its page; fields are counted from there."""
META_FIELDS = {
    "magic": (0, 4), "version": (4, 4), "address": (8, 8), "mapsize": (16, 8), "psize": (24, 4),
    "free_flags": (28, 2), "free_depth": (30, 2), "free_branch": (32, 8), "free_leaf": (40, 8),
    "free_over": (48, 8), "free_entries": (56, 8), "free_root": (64, 8), "main_pad": (72, 4),
    "main_flags": (76, 2), "main_depth": (78, 2), "main_branch": (80, 8), "main_leaf": (88, 8),
    "main_over": (96, 8), "entries": (104, 8), "main_root": (112, 8), "last_page": (120, 8),
    "txnid": (128, 8),
}  # fmt: skip
REDO_MAGIC = b"memcore-redo-v1\0"


@dataclass(slots=True)
class Anatomy:
    """Page numbers by what the pages are for."""

    pages: int
    newest: int
    metas: list[int] = field(default_factory=lambda: [0, 1])
    branches: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    overflows: list[int] = field(default_factory=list)
    free_list: list[int] = field(default_factory=list)
    redo: int = 2

    @property
    def tree(self) -> list[int]:
        """The pages of both trees."""
        return self.branches + self.leaves + self.free_list


def field_of(content: bytes, page: int, name: str) -> int:
    """A field of a meta page."""
    at, size = META_FIELDS[name]
    start = page * PAGE + META_FIRST + at
    return int.from_bytes(content[start : start + size], "little")


def nodes_of(content: bytes | bytearray, page: int) -> list[int]:
    """The offsets in the file of the nodes of a tree page."""
    base = page * PAGE
    lower = struct.unpack_from("<H", content, base + 12)[0]
    return [
        base + struct.unpack_from("<H", content, base + at)[0] for at in range(16, lower - 1, 2)
    ]


def anatomy(content: bytes) -> Anatomy:
    """The pages of a sound file."""
    newest = int(field_of(content, 1, "txnid") > field_of(content, 0, "txnid"))
    found = Anatomy(len(content) // PAGE, newest)
    found.redo = next(p for p in range(2, 32) if content[p * PAGE + 16 :].startswith(REDO_MAGIC))
    _walk(content, field_of(content, newest, "main_root"), found, found.leaves)
    root = field_of(content, newest, "free_root")
    if root != NO_PAGE:
        _walk(content, root, found, found.free_list)
    return found


def _walk(content: bytes, page: int, found: Anatomy, leaves: list[int]) -> None:
    flags = struct.unpack_from("<H", content, page * PAGE + 10)[0]
    if flags & BRANCH:
        found.branches.append(page)
        for node in nodes_of(content, page):
            low, high, upper = struct.unpack_from("<HHH", content, node)
            _walk(content, low | high << 16 | upper << 32, found, leaves)
        return
    leaves.append(page)
    for node in nodes_of(content, page):
        node_flags, key_bytes = struct.unpack_from("<HH", content, node + 4)
        if node_flags & BIG:
            found.overflows.append(struct.unpack_from("<Q", content, node + 8 + key_bytes)[0])
