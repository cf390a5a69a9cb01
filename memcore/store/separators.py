"""The keys in the branches of a tree, made anew from the rows that there are.

A branch tells by a key where its next child begins. When the row of that key goes, the key stays:
in a compact copy, too. So names of rows that are gone would live on as separators. The shortest
prefix of a child's first key that is above all before it is never longer than what stood there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise, takewhile
from struct import Struct, unpack_from
from typing import Final

from memcore.limits import PAGE_BYTES
from memcore.store.file import PAGE_HEADER_BYTES, newest_meta
from memcore.store.structure import DamageError

__all__ = ["renew_separators", "separators"]

_BRANCH, _LEAF = 0x01, 0x02
_HEADER = Struct("<QHHHH")  # number, pad, flags, lower, upper
_LEAF_NODE = Struct("<IHH")  # value bytes, flags, key bytes
_BRANCH_NODE = Struct("<IHH")  # child's low 32 bits, its high 16, key bytes
_NODE_BYTES: Final = _LEAF_NODE.size


def renew_separators(fd: int, path: str) -> None:
    """Rewrite the branches of a copy that nobody has mapped; durable with the next flush.

    Raises:
        DamageError: the tree is not sound.
    """
    meta = newest_meta(fd, path)
    if meta.main_depth > 1:
        _renew(fd, meta.main_root, meta.main_depth - 1)


def separators(fd: int, path: str) -> Iterator[bytes]:
    """The keys in all branches of a file that nobody changes.

    Raises:
        DamageError: the tree is not sound.
    """
    meta = newest_meta(fd, path)
    waiting = [(meta.main_root, meta.main_depth - 1)]
    while waiting:
        number, level = waiting.pop()
        if level > 0:
            page, nodes = _nodes(fd, number, level)
            for node in nodes:
                low, high, size = _BRANCH_NODE.unpack_from(page, node)
                yield page[node + _NODE_BYTES : node + _NODE_BYTES + size]
                waiting.append((low | high << 32, level - 1))


def _nodes(fd: int, number: int, level: int) -> tuple[bytes, tuple[int, ...]]:
    """A page and the offsets of its nodes."""
    page = os.pread(fd, PAGE_BYTES, number * PAGE_BYTES)
    if len(page) < PAGE_BYTES:
        raise DamageError(f"page {number} is missing")
    found, _, flags, lower, upper = _HEADER.unpack_from(page)
    if found != number or flags != (_BRANCH if level else _LEAF):
        raise DamageError(f"page {number} is marked as page {found} with flags {flags:#x}")
    if not PAGE_HEADER_BYTES < lower <= upper <= PAGE_BYTES:
        raise DamageError(f"page {number} has bounds {lower}..{upper}")
    nodes = unpack_from(f"<{(lower - PAGE_HEADER_BYTES) // 2}H", page, PAGE_HEADER_BYTES)
    if max(nodes) > PAGE_BYTES - _NODE_BYTES:
        raise DamageError(f"page {number} has nodes outside of it")
    return page, nodes


def _renew(fd: int, number: int, level: int) -> tuple[bytes, bytes]:
    """Rewrite the branches at a page and below it; the first and the last key below."""
    page, nodes = _nodes(fd, number, level)
    if not level:
        return _leaf_key(page, nodes[0]), _leaf_key(page, nodes[-1])
    children = [_BRANCH_NODE.unpack_from(page, node)[:2] for node in nodes]
    bounds = [_renew(fd, low | high << 32, level - 1) for low, high in children]
    keys = [b"", *(_between(a[1], b[0]) for a, b in pairwise(bounds))]
    made = _packed(number, children, keys)
    if made != page:
        os.pwrite(fd, made, number * PAGE_BYTES)
    return bounds[0][0], bounds[-1][1]


def _leaf_key(page: bytes, node: int) -> bytes:
    size = _LEAF_NODE.unpack_from(page, node)[2]
    return page[node + _NODE_BYTES : node + _NODE_BYTES + size]


def _between(last: bytes, first: bytes) -> bytes:
    """The shortest beginning of ``first`` that is above ``last``."""
    if not last < first:
        raise DamageError("keys of neighbouring pages are out of order")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(last, first, strict=False))
    return first[: sum(1 for _ in same) + 1]


def _packed(number: int, children: list[tuple[int, ...]], keys: list[bytes]) -> bytes:
    """A branch page of these nodes, the first one at its end."""
    page = bytearray(PAGE_BYTES)
    lower, upper = PAGE_HEADER_BYTES, PAGE_BYTES
    for (low, high), key in zip(children, keys, strict=True):
        upper -= _NODE_BYTES + len(key) + (len(key) & 1)
        page[lower : lower + 2] = upper.to_bytes(2, "little")
        lower += 2
        if lower > upper:
            raise DamageError(f"page {number} has no room for its own keys")
        _BRANCH_NODE.pack_into(page, upper, low, high, len(key))
        page[upper + _NODE_BYTES : upper + _NODE_BYTES + len(key)] = key
    _HEADER.pack_into(page, 0, number, 0, _BRANCH, lower, upper)
    return bytes(page)
