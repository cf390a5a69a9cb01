"""What pages of a file hold beside rows: remains of rows that are gone, blanked in a copy.

LMDB takes pages for new rows from memory that held other pages a moment ago, and writes them out
whole: the gap in the middle of a page of rows, and the end of a large value's last page, may hold
bytes of anything that was ever in the file. A compact copy takes them over.
"""

from __future__ import annotations

import os
from struct import Struct, unpack_from
from typing import Final

from memcore.errors import CorruptStoreError
from memcore.limits import PAGE_BYTES
from memcore.store.file import PAGE_HEADER_BYTES

__all__ = ["blank_slack"]

_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_BIG: Final = 0x01
_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper; of a run: pages in place of the two
_NODE = Struct("<IHH")  # value bytes, flags, key bytes
_METAS: Final = 2
_CHUNK_PAGES: Final = 256


def blank_slack(fd: int, path: str) -> None:
    """Blank what lies between rows and behind values in a compact copy that nobody has mapped.

    All of its pages are in use, one behind the other.

    Raises:
        CorruptStoreError: a page is not what a compact copy has there.
    """
    pages = os.fstat(fd).st_size // PAGE_BYTES
    values: dict[int, int] = {}
    """Of each large value the first page, and its bytes."""
    runs: dict[int, int] = {}
    """Of each run of pages the first one, and how many."""
    at = _METAS
    while at < pages:
        chunk = bytearray(os.pread(fd, min(_CHUNK_PAGES, pages - at) * PAGE_BYTES, at * PAGE_BYTES))
        before = bytes(chunk)
        done = 0
        while done < len(chunk) // PAGE_BYTES:
            number, _, flags, lower, upper = _HEADER.unpack_from(chunk, done * PAGE_BYTES)
            if number != at + done:
                raise _unlike(path, at + done)
            if flags == _OVERFLOW:
                runs[number] = lower | upper << 16
                done += runs[number]
                if not runs[number]:
                    raise _unlike(path, number)
                continue
            holds_rows = PAGE_HEADER_BYTES <= lower <= upper <= PAGE_BYTES
            if flags not in (_BRANCH, _LEAF) or not holds_rows:
                raise _unlike(path, number)
            start = done * PAGE_BYTES
            chunk[start + lower : start + upper] = bytes(upper - lower)
            if flags == _LEAF:
                _find_values(chunk, start, lower, values)
            done += 1
        if chunk != before:
            os.pwrite(fd, chunk, at * PAGE_BYTES)
        at += done
    for first, size in values.items():
        _blank_end(fd, first, size, runs.get(first, 0), path)


def _find_values(chunk: bytearray, start: int, lower: int, values: dict[int, int]) -> None:
    """The large values that a page of rows refers to."""
    count = (lower - PAGE_HEADER_BYTES) // 2
    for node in unpack_from(f"<{count}H", chunk, start + PAGE_HEADER_BYTES):
        if node > PAGE_BYTES - _NODE.size:
            continue  # what is wrong is told by who walks the copy
        size, flags, key_bytes = _NODE.unpack_from(chunk, start + node)
        if flags & _BIG:
            place = start + node + _NODE.size + key_bytes
            values[int.from_bytes(chunk[place : place + 8], "little")] = size


def _blank_end(fd: int, first: int, size: int, pages: int, path: str) -> None:
    end = PAGE_HEADER_BYTES + size
    left = pages * PAGE_BYTES - end
    if not 0 <= left < PAGE_BYTES:
        raise _unlike(path, first)
    if left and os.pread(fd, left, first * PAGE_BYTES + end).strip(b"\0"):
        os.pwrite(fd, bytes(left), first * PAGE_BYTES + end)


def _unlike(path: str, page: int) -> CorruptStoreError:
    return CorruptStoreError(f"{path}: page {page} of the copy is not sound; check the device")
