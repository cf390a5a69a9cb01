"""Which item another one was appended to, told by the prefix hashes in the index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from memcore.log import index

__all__ = ["predecessor"]

_TRIES: Final = 4096
"""Items before a given one that are tried as the one that it was appended to."""


def predecessor(
    seq: int,
    chain: int,
    sums: Sequence[bytes],
    chains: Mapping[int, int | None],
    before: Mapping[int, int],
    *,
    first: int,
) -> tuple[int, int] | None:
    """``(the seq before an item, which of its checksums says so)``; None if that cannot be told.

    Args:
        seq: the item, one of those that its session owns.
        chain: the prefix hash at it.
        sums: the checksums under which it may be known.
        chains: the prefix hashes at own items before it; at ``first - 1`` that of the item that the
            session was forked from (0: it began with nothing).
        before: by own seq below, the one before it.
        first: the first seq that the session owns.
    """
    at = seq - 1
    for _ in range(_TRIES if sums else 0):
        known = chains.get(at)
        if known is not None:
            for which, checksum in enumerate(sums):
                if index.chain_after(known, checksum) == chain:
                    return at, which
        if at < first:
            break
        at = before[at]
    for which, checksum in enumerate(sums):
        if first == 1 and index.chain_after(0, checksum) == chain:
            return 0, which
    return None
