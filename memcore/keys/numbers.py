"""Numbers in keys: big-endian u64, so that byte order is number order."""

from __future__ import annotations

from struct import Struct
from typing import Final

__all__ = [
    "KIND_U64_2",
    "U32",
    "U64",
    "number_of",
    "numbered",
    "u64",
]

U32: Final = Struct(">I")
U64: Final = Struct(">Q")
KIND_U64_2: Final = Struct(">BQQ")  # most rows begin with a kind, a scope and what is in it


def u64(number: int) -> bytes:
    """Eight big-endian bytes."""
    return U64.pack(number)


def numbered(rows: bytes, number: int) -> bytes:
    """One of the rows that begin with ``session_rows``: the same key as ``session_row``'s."""
    return rows + U64.pack(number)


def number_of(key: bytes) -> int:
    """The last number of a key, as the seq of an item's row."""
    return int.from_bytes(key[-8:], "big")
