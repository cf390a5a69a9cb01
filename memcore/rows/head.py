"""Head of a session: the one small row that every change rewrites.

Its layout is that of ``HeadFields.pack`` in ``_fast.pyx``.

The live history is a list of segments ``(session, first seq, last seq)``: append extends the last,
undo trims it, fork shares it. The head holds at most 16 segments; older ones are in immutable
blocks of 8, each linked to the previous one, so a session with many undos never grows
quadratically.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from memcore._fast import HeadFields
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.limits import HEAD_SEGMENTS_MAX
from memcore.store.interface import ReadTxn, Txn
from memcore.wire.policy import POLICIES

__all__ = [
    "Head",
    "Segment",
    "head_key",
]


_SEGMENT = Struct("<QQQ")
_BLOCK = Struct("<QQQ")
BLOCK_SEGMENTS: Final = HEAD_SEGMENTS_MAX // 2
SEQ_END: Final = 2**63
_COUNTER_BITS: Final = 62
FLAG_HIDDEN: Final = 1
"""The session was deleted while forks still share its rows."""
FLAG_UNFINISHED: Final = 2
"""An import has not finished storing the session."""
FLAG_LEASED: Final = 4
"""The session has a lease row that must be checked before a change."""

FLAG_REWRITTEN: Final = 8
"""Items in its history were rewritten in place, under another epoch."""


class Segment(NamedTuple):
    """Seqs ``lo .. hi`` (inclusive) of rows that ``session`` owns."""

    session: int
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """Number of items in the segment."""
        return self.hi - self.lo + 1


def head_key(scope: int, session: int) -> bytes:
    """Return the key of a session's head."""
    return keys.session_row(scope, session, Row.HEAD, 0)


class Head(HeadFields):
    """Totals and live segments of one session."""

    __slots__ = ()
    segments: list[Segment]

    def __init__(self, *, policy: str, counter: str, now_ms: int) -> None:
        self.next_seq = self.next_view = self.next_block = 1
        self.created_ms = self.updated_ms = now_ms
        self.policy = policy
        self.counter = counter
        self.segments = []

    @property
    def hidden(self) -> bool:
        """True if the session was deleted and is kept only for its forks."""
        return bool(self.flags & FLAG_HIDDEN)

    @property
    def unfinished(self) -> bool:
        """True during an import of the session, and after one that was killed."""
        return bool(self.flags & FLAG_UNFINISHED)

    @property
    def leased(self) -> bool:
        """True if the session may be leased, so that a change has to check the lease holder."""
        return bool(self.flags & FLAG_LEASED)

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Head:
        """Unpack the head from a stored row.

        Raises:
            CorruptValueError: the row is damaged.
        """
        _, body = open_value(key, value)
        head = cls.__new__(cls)
        try:
            head.segments = [Segment(*found) for found in head.load(body)]
        except ValueError as exc:
            raise _malformed("session head", key) from exc
        _check_segments(head.segments, head.next_seq, "session head", key)
        if head.recount_stop > head.next_seq or head.recount_number >> _COUNTER_BITS:
            raise _malformed("session head", key)
        if head.base_count + sum([hi - lo + 1 for _, lo, hi in head.segments]) != head.count:
            raise _malformed("session head", key)
        if head.base_count and not head.link_block:
            raise _malformed("session head", key)
        counters = head.revision | head.epoch | head.next_seq | head.next_view | head.next_block
        links = head.parent_session | head.link_session | head.link_block
        links |= head.view_session | head.view_number
        if (counters | links | head.tokens) >> _COUNTER_BITS:  # unreachable in practice
            raise _malformed("session head", key)
        if head.parent_seq >= head.next_seq or head.policy not in POLICIES:
            raise _malformed("session head", key)
        # A fork has a greater number than its parent, so whoever follows parents comes to an end.
        if head.parent_session and head.parent_session >= keys.split_session_prefix(key)[1]:
            raise _malformed("session head", key)
        return head

    # --- the live history -------------------------------------------------------------------------

    def _begin_segment(self, session: int, lo: int, hi: int) -> None:
        self.segments.append(Segment(session, lo, hi))

    def trim(self, txn: ReadTxn, scope: int, count: int) -> None:
        """Keep the first ``count`` live items; older segments are loaded from their blocks."""
        drop = self.count - count
        self.count = count
        while drop:
            if not self.segments:
                self._unlink(txn, scope)
            last = self.segments.pop()
            if last.size <= drop:
                drop -= last.size
            else:
                self.segments.append(Segment(last.session, last.lo, last.hi - drop))
                drop = 0
        if not self.segments and self.link_block:
            self._unlink(txn, scope)

    def spill(self, txn: Txn, scope: int, session: int) -> None:
        """Move the oldest segments to a block of ``session`` while the head holds too many."""
        while len(self.segments) > HEAD_SEGMENTS_MAX:
            moved = self.segments[:BLOCK_SEGMENTS]
            del self.segments[:BLOCK_SEGMENTS]
            body = _BLOCK.pack(self.link_session, self.link_block, self.base_count)
            body += b"".join(_SEGMENT.pack(*segment) for segment in moved)
            key = keys.session_row(scope, session, Row.SEGMENTS, self.next_block)
            txn.put(key, seal_value(key, body))
            self.link_session, self.link_block = session, self.next_block
            self.next_block += 1
            self.base_count += sum(segment.size for segment in moved)

    def _unlink(self, txn: ReadTxn, scope: int) -> None:
        """Move the newest block's segments back into the (empty) head."""
        found, self.link_session, self.link_block, self.base_count = _read_block(
            txn, scope, self.link_session, self.link_block
        )
        self.segments = found

    def older_segments(self, txn: ReadTxn, scope: int) -> list[Segment]:
        """Read the live segments before those in the head, oldest first.

        Raises:
            CorruptValueError: a block is damaged or missing, or the blocks hold another number of
                items than the head says.
        """
        found = older_segments(txn, scope, self.link_session, self.link_block)
        if sum([segment.size for segment in found]) != self.base_count:
            key = keys.session_row(scope, self.link_session, Row.SEGMENTS, self.link_block)
            raise _malformed("chain of segment blocks", key)
        return found

    def all_segments(self, txn: ReadTxn, scope: int) -> list[Segment]:
        """Return the whole live history, oldest segment first."""
        return (self.older_segments(txn, scope) if self.link_block else []) + self.segments


def older_segments(txn: ReadTxn, scope: int, session: int, block: int) -> list[Segment]:
    """Read the segments of a chain of blocks that ends with ``block`` (0: none), oldest first.

    Raises:
        CorruptValueError: a block is damaged or missing, or the chain never ends.
    """
    blocks: list[list[Segment]] = []
    seen: set[tuple[int, int]] = set()
    while block:
        if (session, block) in seen:
            raise _malformed("chain of segment blocks", head_key(scope, session))
        seen.add((session, block))
        found, session, block, _ = _read_block(txn, scope, session, block)
        blocks.append(found)
    return [segment for found in reversed(blocks) for segment in found]


def _read_block(
    txn: ReadTxn, scope: int, session: int, block: int
) -> tuple[list[Segment], int, int, int]:
    """Read ``(segments, link session, link block, items before)`` of a block."""
    key = keys.session_row(scope, session, Row.SEGMENTS, block)
    value = txn.get(key)
    if value is None:
        msg = f"segment block {block} of session {session} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    _, body = open_value(key, value)
    if len(body) <= _BLOCK.size or (len(body) - _BLOCK.size) % _SEGMENT.size:
        raise _malformed("segment block", key)
    link_session, link_block, before = _BLOCK.unpack_from(body)
    found = [Segment(*found) for found in _SEGMENT.iter_unpack(body[_BLOCK.size :])]
    _check_segments(found, SEQ_END, "segment block", key)
    return found, link_session, link_block, before


def _check_segments(segments: list[Segment], next_seq: int, what: str, key: bytes) -> None:
    """Check that seqs ascend along a live history and are below ``next_seq``."""
    last = 0
    for _, lo, hi in segments:
        if not last < lo <= hi < next_seq:
            raise _malformed(what, key)
        last = hi


def _malformed(what: str, key: bytes) -> CorruptValueError:
    msg = f"the {what} under key {key.hex()} is malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)
