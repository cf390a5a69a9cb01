"""A live history as positions: where each item lies, and which position a seq has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from memcore.log import index
from memcore.log.head import Segment
from memcore.store.base import ReadTxn

__all__ = ["History", "merged"]


class History:
    """Segments with their positions: position <-> (session, seq)."""

    __slots__ = ("count", "segments", "starts")

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments.copy()
        self.starts: list[int] = []
        at = 0
        for _, lo, hi in segments:
            self.starts.append(at)
            at += hi - lo + 1
        self.count = at

    def locate(self, position: int) -> tuple[int, int]:
        """``(owner session, seq)`` at a position."""
        at = bisect_right(self.starts, position) - 1
        segment = self.segments[at]
        return segment.session, segment.lo + position - self.starts[at]

    def seq_at(self, position: int) -> int:
        """The seq at a position."""
        return self.locate(position)[1]

    def position_of(self, seq: int) -> int | None:
        """The position of a seq, None if it is not live. Seqs ascend along a live history."""
        at = bisect_right(self.segments, seq, key=lambda segment: segment.lo) - 1
        if at < 0 or seq > self.segments[at].hi:
            return None
        return self.starts[at] + seq - self.segments[at].lo

    def owner_of(self, seq: int) -> int | None:
        """The session that owns the live item of a seq, None if it is not live."""
        position = self.position_of(seq)
        return None if position is None else self.locate(position)[0]

    def chain_at(self, txn: ReadTxn, scope: int, seq: int) -> int | None:
        """The prefix hash at a live seq, None for a seq that is not live."""
        position = self.position_of(seq)
        if position is None:
            return None
        return index.chain_of(txn, scope, *self.locate(position))

    def position_from(self, seq: int) -> int:
        """The first position whose seq is at least ``seq``."""
        at = bisect_right(self.segments, seq, key=lambda segment: segment.lo) - 1
        if at < 0:
            return 0
        segment = self.segments[at]
        return self.starts[at] + min(seq - segment.lo, segment.hi - segment.lo + 1)

    def steps(self) -> Iterator[tuple[int, int]]:
        """``(owner session, seq)`` of every item."""
        for session, lo, hi in self.segments:
            for seq in range(lo, hi + 1):
                yield session, seq

    def first(self, count: int) -> History:
        """The first ``count`` items."""
        return History([Segment(*run) for _, *run in self.spans(0, count)] if count else [])

    def shared_with(self, other: History) -> int:
        """How many items both histories begin with: an item is preceded by the same ones always."""
        count = 0
        for one, its in zip(self.segments, other.segments, strict=False):
            if one == its:
                count += one.size
                continue
            if one[:2] == its[:2]:
                count += min(one.size, its.size)
            break
        return count

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """``(position, session, lo, hi)`` of the runs of seqs at positions ``start .. stop``."""
        at = max(bisect_right(self.starts, start) - 1, 0)
        while at < len(self.segments) and start < stop:
            segment = self.segments[at]
            lo = segment.lo + start - self.starts[at]
            count = min(stop - start, segment.hi - lo + 1)
            yield start, segment.session, lo, lo + count - 1
            start += count
            at += 1


def merged(path: Iterable[tuple[int, int]]) -> list[Segment]:
    """The segments of items ``(session, seq)`` in their order."""
    found: list[Segment] = []
    for session, seq in path:
        if found and found[-1].session == session and found[-1].hi == seq - 1:
            found[-1] = Segment(session, found[-1].lo, seq)
        else:
            found.append(Segment(session, seq, seq))
    return found
