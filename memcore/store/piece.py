"""How much one deleting transaction may take on.

LMDB copies every page that a deletion touches, and lists every page that it frees. So a large
deletion is done in pieces, each a transaction of its own: it needs far less than ``ROOM_BYTES``,
its list of freed pages fits one page, its redo record a slot, and other writers wait for one piece
only.
"""

from __future__ import annotations

from typing import Final

from memcore.limits import PAGE_BYTES, PIECE_PAGES, PIECE_ROWS

__all__ = ["Piece"]

_BIG_BYTES: Final = PAGE_BYTES // 2
"""Values from about this size on have pages of their own."""
_ROW_BYTES: Final = 64
"""Key and header of a row, roughly."""
_HALF_FULL: Final = 2
"""Leaf pages are half full at worst."""


class Piece:
    """Counts rows and pages; the first row always fits."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._bytes = 0
        self._rows = 0

    def admits(self, value_bytes: int, *, more_pages: int = 0) -> bool:
        """Whether a row may go with this piece; ``more_pages`` are those that other rows cost."""
        if value_bytes < _BIG_BYTES:
            cost = _HALF_FULL * (value_bytes + _ROW_BYTES)
        else:
            cost = value_bytes + PAGE_BYTES
        self._rows += 1
        self._bytes += cost + more_pages * PAGE_BYTES
        return self._rows == 1 or (
            self._rows <= PIECE_ROWS and self._bytes <= PIECE_PAGES * PAGE_BYTES
        )
