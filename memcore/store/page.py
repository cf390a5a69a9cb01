"""One raw page of a tree, taken apart without trusting a byte of it."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from memcore.limits import KEY_BYTES_MAX, PAGE_BYTES

__all__ = ["Child", "Node", "Page"]

BRANCH: Final = 0x01
LEAF: Final = 0x02
HEADER_BYTES: Final = 16
_BIG: Final = 0x01
_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_NODE = Struct("<HHHH")  # low, high, flags, key size; then key and value
_U64 = Struct("<Q")


class Node(NamedTuple):
    """A row of a leaf: its key as it stands there, and where its value is."""

    key: bytes
    size: int
    offset: int
    """Of the value: inside the page, or in the file if ``run``."""
    run: bool
    """Whether the value has pages of its own."""


class Child(NamedTuple):
    """An entry of a branch: the subtree of the keys from ``key`` on."""

    key: bytes
    page: int


class Page:
    """The bytes of one page and what its header says."""

    __slots__ = ("flags", "lower", "number", "raw", "upper")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.number, _, self.flags, self.lower, self.upper = _HEADER.unpack_from(raw)

    def is_a(self, flags: int, number: int) -> bool:
        """Whether the header is that of a page of this sort and number."""
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
        """Where nodes may lie when the header is lost: the list ends before the lowest node."""
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
        """The entries of a branch in their order; None for one that is out of bounds."""
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

    def nodes(self, *, guess: bool = False) -> list[Node | None]:
        """The rows of a leaf in their order; None for one that is out of bounds."""
        places = self._guessed_places() if guess else self._places()
        return [self._node(place) for place in places]

    def _node(self, place: int) -> Node | None:
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
            return Node(key, size, run * PAGE_BYTES + HEADER_BYTES, run=True)
        if offset + size > PAGE_BYTES:
            return None
        return Node(key, size, offset, run=False)
