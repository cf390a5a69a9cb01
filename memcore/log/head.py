"""The head of a session: the one small row that every change rewrites.

The live history is a list of segments ``(session, first seq, last seq)``: append extends the last,
undo trims it, fork shares it. The head holds at most 16 segments; older ones lie in immutable
blocks of 8, each linked to the one before, so a session of many undos never grows quadratically.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from memcore import keys
from memcore.codec import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.limits import HEAD_SEGMENTS_MAX
from memcore.store.base import ReadTxn, Txn

__all__ = ["Head", "Segment", "head_key"]

_FIXED = Struct("<QQQQQQQQQQQQQQQQQIBBBB")
_SEGMENT = Struct("<QQQ")
_BLOCK = Struct("<QQQ")
BLOCK_SEGMENTS: Final = HEAD_SEGMENTS_MAX // 2
FLAG_HIDDEN: Final = 1
"""The session was deleted while forks still share its rows."""


class Segment(NamedTuple):
    """Seqs ``lo .. hi`` (both included) of the rows that ``session`` owns."""

    session: int
    lo: int
    hi: int

    @property
    def size(self) -> int:
        """How many items it holds."""
        return self.hi - self.lo + 1


def head_key(scope: int, session: int) -> bytes:
    """The key of a session's head."""
    return keys.session_row(scope, session, Row.HEAD, 0)


class Head:
    """Totals and the live segments of one session."""

    def __init__(self, *, policy: str, counter: str, now_ms: int) -> None:
        self.revision = 0
        self.epoch = 0
        self.next_seq = 1
        self.count = 0
        self.chain = 0
        self.tokens = 0
        self.view_session = 0
        self.view_number = 0
        self.next_view = 1
        self.parent_session = 0
        self.parent_seq = 0
        self.base_count = 0
        self.link_session = 0
        self.link_block = 0
        self.next_block = 1
        self.created_ms = now_ms
        self.updated_ms = now_ms
        self.open_calls = 0
        self.flags = 0
        self.policy = policy
        self.counter = counter
        self.segments: list[Segment] = []

    @property
    def hidden(self) -> bool:
        """Whether the session was deleted and lives on for its forks only."""
        return bool(self.flags & FLAG_HIDDEN)

    def changed(self) -> Head:
        """A copy to change inside a transaction."""
        other = Head.__new__(Head)
        other.__dict__.update(self.__dict__)
        other.segments = self.segments.copy()
        return other

    def pack(self) -> bytes:
        """The body of the head's row; drawn in docs/architecture.md."""
        segments = self.segments
        policy, counter = self.policy.encode(), self.counter.encode()
        fixed = _FIXED.pack(
            self.revision,
            self.epoch,
            self.next_seq,
            self.count,
            self.chain,
            self.tokens,
            self.view_session,
            self.view_number,
            self.next_view,
            self.parent_session,
            self.parent_seq,
            self.base_count,
            self.link_session,
            self.link_block,
            self.next_block,
            self.created_ms,
            self.updated_ms,
            self.open_calls,
            self.flags,
            len(policy),
            len(counter),
            len(segments),
        )
        return b"".join([fixed, policy, counter, *[_SEGMENT.pack(*s) for s in segments]])

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Head:
        """The head of a stored row.

        Raises:
            CorruptValueError: the row is damaged.
        """
        _, body = open_value(key, value)
        head = cls.__new__(cls)
        try:
            (
                head.revision,
                head.epoch,
                head.next_seq,
                head.count,
                head.chain,
                head.tokens,
                head.view_session,
                head.view_number,
                head.next_view,
                head.parent_session,
                head.parent_seq,
                head.base_count,
                head.link_session,
                head.link_block,
                head.next_block,
                head.created_ms,
                head.updated_ms,
                head.open_calls,
                head.flags,
                policy_bytes,
                counter_bytes,
                segments,
            ) = _FIXED.unpack_from(body)
            at = _FIXED.size + policy_bytes
            head.policy = body[_FIXED.size : at].decode()
            head.counter = body[at : at + counter_bytes].decode()
            at += counter_bytes
            head.segments = [Segment(*found) for found in _SEGMENT.iter_unpack(body[at:])]
        except Exception as exc:
            msg = f"the session head under key {key.hex()} is malformed; run 'memcore check'"
            raise CorruptValueError(msg, key=key) from exc
        if len(head.segments) != segments:
            msg = f"the session head under key {key.hex()} is cut short; run 'memcore check'"
            raise CorruptValueError(msg, key=key)
        return head

    # --- the live history -------------------------------------------------------------------------

    def extend(self, session: int, count: int) -> int:
        """Append ``count`` seqs of ``session`` to the live history; returns the first of them."""
        first = self.next_seq
        self.next_seq += count
        self.count += count
        last = self.segments[-1] if self.segments else None
        if last is not None and last.session == session and last.hi == first - 1:
            self.segments[-1] = Segment(session, last.lo, first + count - 1)
        else:
            self.segments.append(Segment(session, first, first + count - 1))
        return first

    def trim(self, txn: ReadTxn, scope: int, count: int) -> None:
        """Keep the first ``count`` live items; older segments come back from their blocks."""
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
        """Bring the newest block's segments back into the (empty) head."""
        found, self.link_session, self.link_block, self.base_count = _read_block(
            txn, scope, self.link_session, self.link_block
        )
        self.segments = found

    def older_segments(self, txn: ReadTxn, scope: int) -> list[Segment]:
        """The live segments before those that the head holds, oldest first."""
        if not self.link_block:
            return []
        blocks: list[list[Segment]] = []
        session, block = self.link_session, self.link_block
        while block:
            found, session, block, _ = _read_block(txn, scope, session, block)
            blocks.append(found)
        return [segment for found in reversed(blocks) for segment in found]

    def all_segments(self, txn: ReadTxn, scope: int) -> list[Segment]:
        """The whole live history, oldest segment first."""
        return self.older_segments(txn, scope) + self.segments


def _read_block(
    txn: ReadTxn, scope: int, session: int, block: int
) -> tuple[list[Segment], int, int, int]:
    """``(segments, link session, link block, items before)`` of a block."""
    key = keys.session_row(scope, session, Row.SEGMENTS, block)
    value = txn.get(key)
    if value is None:
        msg = f"segment block {block} of session {session} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    _, body = open_value(key, value)
    link_session, link_block, before = _BLOCK.unpack_from(body)
    found = [Segment(*found) for found in _SEGMENT.iter_unpack(body[_BLOCK.size :])]
    return found, link_session, link_block, before
