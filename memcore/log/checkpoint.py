"""Checkpoint rows of a session: saved positions.

A checkpoint holds the live segments in the same form as the head (the last ones, and a link to the
immutable block of the earlier ones), and the view that was current. Items are never inserted
between live ones, and rows of undone items stay, so a position remains complete whatever happens to
the session afterwards. It also holds everything else that a head needs: a session whose head is
lost is rebuilt from it.

Row 0 holds the last number assigned, once the newest checkpoint has been deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from memcore import state
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import decode_json, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.log.history import History
from memcore.model import Checkpoint
from memcore.options import counted
from memcore.rows.head import Head, Segment, older_segments
from memcore.store.interface import ReadTxn, Txn
from memcore.wire.policy import POLICIES

__all__ = [
    "CheckpointRow",
    "checkpoint_numbers",
    "checkpoint_states",
    "known_counters",
    "last_number",
    "mend_last",
    "read_checkpoint",
    "unpack_checkpoint",
    "write_checkpoint",
]


_END: Final = 2**63
_WRONG: Final = (CorruptValueError, LookupError, TypeError, ValueError, AttributeError)
"""Errors raised when decoding a body that no writer produced."""


class CheckpointRow(NamedTuple):
    """A checkpoint with what only the storage layers need."""

    checkpoint: Checkpoint
    segments: tuple[Segment, ...]
    """The last live segments; earlier ones are stored in blocks."""
    older: tuple[int, int, int]
    """``(session, block, items)`` of the blocks; block 0: there are none."""
    chain: int
    """Prefix hash at the last item."""
    view: tuple[int, int]
    """``(session, number)`` of the view that was current."""
    policy: str
    parent: tuple[int, int]
    """``(session, seq)`` that the session was forked from; session 0: not a fork."""
    epoch: int

    @classmethod
    def of(cls, head: Head, checkpoint: Checkpoint) -> CheckpointRow:
        """Make a row for the position of a head whose items are all written."""
        return cls(
            checkpoint,
            tuple(head.segments),
            (head.link_session, head.link_block, head.base_count),
            head.chain,
            (head.view_session, head.view_number),
            head.policy,
            (head.parent_session, head.parent_seq),
            head.epoch,
        )

    def put_in(self, head: Head) -> None:
        """Set a head to this position."""
        # The next seq, view and block stay as they are: numbers are never assigned again.
        head.segments = list(self.segments)
        head.link_session, head.link_block, head.base_count = self.older
        head.count, head.chain = self.checkpoint.items, self.chain
        head.view_session, head.view_number = self.view

    def history(self, txn: ReadTxn, scope: int) -> History:
        """Return the whole saved history.

        Raises:
            CorruptValueError: a block is damaged, or the number of items does not match.
        """
        session, block, before = self.older
        older = older_segments(txn, scope, session, block)
        found = [*older, *self.segments]
        sizes = sum(s.size for s in older), sum(s.size for s in found)
        if sizes != (before, self.checkpoint.items):
            msg = f"{self.where}: its segments hold {counted(sizes[1], 'item')}, it says "
            raise CorruptValueError(f"{msg}{self.checkpoint.items:,}", key=b"")
        return History(found)

    def mismatch(self) -> CorruptValueError:
        """Return the error for items other than those that the checkpoint was made of."""
        msg = f"{self.where}: its prefix hash is not that of its last item; run 'memcore check'"
        return CorruptValueError(msg, key=b"")

    @property
    def where(self) -> str:
        """The checkpoint in words."""
        name = self.checkpoint.name
        return f"checkpoint {self.checkpoint.number}" + (f" {name[:40]!r}" if name else "")


# --- rows -----------------------------------------------------------------------------------------


def _key(scope: int, session: int, number: int) -> bytes:
    return keys.session_row(scope, session, Row.CHECKPOINT, number)


def write_checkpoint(txn: Txn, scope: int, session: int, saved: CheckpointRow) -> None:
    """Write one checkpoint."""
    key = _key(scope, session, saved.checkpoint.number)
    txn.put(key, seal_value(key, *pack_checkpoint(saved)))


def read_checkpoint(txn: ReadTxn, scope: int, session: int, number: int) -> CheckpointRow | None:
    """Return a checkpoint, None if it does not exist.

    Raises:
        CorruptValueError: the row is damaged.
    """
    key = _key(scope, session, number)
    value = txn.get(key) if number else None  # row 0 is no checkpoint
    if value is None:
        return None
    flags, body = open_value(key, value)
    return unpack_checkpoint(key, body, flags)


def checkpoint_numbers(
    txn: ReadTxn,
    scope: int,
    session: int,
    *,
    after: int = 0,
    limit: int = 0,
    newest_first: bool = False,
) -> Iterator[int]:
    """Yield the numbers of a session's checkpoints after ``after``, damaged ones included."""
    start, stop = _key(scope, session, after + 1), _key(scope, session, 2**64 - 1)
    for key, _ in txn.scan(start, stop, reverse=newest_first, limit=limit):
        if len(key) == len(start):
            yield keys.number_of(key)


def checkpoint_states(txn: ReadTxn, scope: int, session: int) -> Iterator[int]:
    """Yield the state counters that checkpoints refer to; those of damaged ones are unknown."""
    for number in checkpoint_numbers(txn, scope, session):
        with suppress(CorruptValueError):  # check() reports it
            saved = read_checkpoint(txn, scope, session, number)
            if saved is not None and saved.checkpoint.state is not None:
                yield saved.checkpoint.state


def known_counters(txn: ReadTxn, scope: int, session: int) -> list[int]:
    """Return the state counters that can be named: those of checkpoints, and the current one.

    Raises:
        CorruptValueError: the state's header is damaged.
    """
    header = state.read_header(txn, scope, session)
    saved = {at for at in checkpoint_states(txn, scope, session) if header.holds(at)}
    return sorted({*saved, header.counter}) if header.counter else []


def last_number(txn: ReadTxn, scope: int, session: int) -> int:
    """Return the last number assigned to a checkpoint of the session.

    Raises:
        CorruptValueError: the row that records it is damaged.
    """
    found = next(checkpoint_numbers(txn, scope, session, newest_first=True, limit=1), 0)
    key = _key(scope, session, 0)
    value = txn.get(key)
    return found if value is None else max(found, unpack_last(key, open_value(key, value)[1]))


def drop_checkpoint(txn: Txn, scope: int, session: int, number: int) -> None:
    """Delete a checkpoint; its number is never reused."""
    # After any other deletion, the newest row still tells the last number.
    if number == last_number(txn, scope, session):
        key = _key(scope, session, 0)
        txn.put(key, seal_value(key, number.to_bytes(8, "little")))
    txn.delete(_key(scope, session, number))


def mend_last(txn: Txn, scope: int, session: int) -> None:
    """Rewrite row 0 if it is damaged; numbers of deleted checkpoints may be reused then."""
    try:
        last_number(txn, scope, session)
    except CorruptValueError:
        key = _key(scope, session, 0)
        found = next(checkpoint_numbers(txn, scope, session, newest_first=True, limit=1), 0)
        txn.put(key, seal_value(key, found.to_bytes(8, "little")))


def unpack_last(key: bytes, body: bytes) -> int:
    """Return the number that row 0 holds.

    Raises:
        CorruptValueError: it does not hold a number.
    """
    number = int.from_bytes(body, "little")
    if len(body) != 8 or number >= _END:  # noqa: PLR2004 - a u64
        raise _malformed(key)
    return number


# --- bodies ---------------------------------------------------------------------------------------


def pack_checkpoint(saved: CheckpointRow) -> tuple[bytes, int]:
    """Return the row's body and the codec's flags."""
    checkpoint = saved.checkpoint
    return encode_json(
        {
            "name": checkpoint.name,
            "seq": checkpoint.seq,
            "revision": checkpoint.revision,
            "items": checkpoint.items,
            "tokens": checkpoint.tokens,
            "counter": checkpoint.counter,
            "state": checkpoint.state,
            "created_ms": round(checkpoint.created_at * 1000),
            "meta": checkpoint.meta,
            "segments": [list(segment) for segment in saved.segments],
            "older": list(saved.older),
            "chain": saved.chain,
            "view": list(saved.view),
            "policy": saved.policy,
            "parent": list(saved.parent),
            "epoch": saved.epoch,
        }
    )


def unpack_checkpoint(key: bytes, body: bytes, flags: int) -> CheckpointRow:
    """Unpack the output of ``pack_checkpoint``.

    Raises:
        CorruptValueError: not something that ``pack_checkpoint`` produces.
    """
    try:
        return _unpacked(keys.number_of(key), decode_json(body, flags))
    except (*_WRONG, RecursionError) as exc:
        raise _malformed(key) from exc


def _unpacked(number: int, found: dict[str, Any]) -> CheckpointRow:
    name, meta, state = found["name"], found["meta"], found["state"]
    texts = name or "", found["counter"], found["policy"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(meta, dict | None):
        raise TypeError
    if found["policy"] not in POLICIES:
        raise ValueError
    segments = tuple(Segment(*map(_number, each)) for each in found["segments"])
    older = _numbers(found["older"], 3)
    last = 0
    for _, lo, hi in segments:
        if not last < lo <= hi:
            raise ValueError
        last = hi
    seq, items = _number(found["seq"]), _number(found["items"])
    if seq != last or items != older[2] + sum(segment.size for segment in segments):
        raise ValueError
    chain = found["chain"]
    if type(chain) is not int or not 0 <= chain < 2**64:
        raise ValueError
    view, parent = _numbers(found["view"], 2), _numbers(found["parent"], 2)
    checkpoint = Checkpoint(
        number=number,
        name=name,
        seq=seq,
        revision=_number(found["revision"]),
        items=items,
        tokens=_number(found["tokens"]),
        counter=found["counter"],
        view=view[1],
        state=None if state is None else _number(state),
        created_at=_number(found["created_ms"]) / 1000,
        meta=meta,
    )
    epoch = _number(found["epoch"])
    return CheckpointRow(
        checkpoint,
        segments,
        (older[0], older[1], older[2]),
        chain,
        (view[0], view[1]),
        found["policy"],
        (parent[0], parent[1]),
        epoch,
    )


def _numbers(found: Any, count: int) -> list[int]:
    if not isinstance(found, list) or len(found) != count:
        raise ValueError
    return [_number(each) for each in found]


def _number(found: Any) -> int:
    # By type, as True is an int, too; JSON of a damaged row may hold anything.
    if type(found) is not int or not 0 <= found < _END:
        raise ValueError
    return found


def _malformed(key: bytes) -> CorruptValueError:
    msg = f"the checkpoint under key {key.hex()} is malformed; run 'memcore check'"
    return CorruptValueError(msg, key=key)
