"""Which counter a session's state had before each of its items.

``05 | scope | session | 0C | seq`` holds the counter at the time when ``seq`` was the next seq to
be given. Seqs are never given twice, so these rows are in the order of time, and the newest one up
to an item tells the state that it was appended on, whatever was undone or went back since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memcore import keys
from memcore.codec import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.store.base import ReadTxn, Txn

__all__ = ["counter_before", "is_moment", "moments_of", "put_moment"]

_COUNTER_BYTES: Final = 8
_END: Final = 2**63


def put_moment(txn: Txn, scope: int, session: int, seq: int, counter: int) -> None:
    """Say that the state is at a counter while ``seq`` is the next one to be given."""
    key = keys.session_row(scope, session, Row.MOMENT, seq)
    txn.put(key, seal_value(key, counter.to_bytes(_COUNTER_BYTES, "little")))


def counter_before(txn: ReadTxn, scope: int, session: int, seq: int) -> int | None:
    """The counter of the state that an item of the session was appended on.

    None: no row says it. The state was empty then, if nothing of its past was forgotten.

    Raises:
        CorruptValueError: the row that says so is damaged.
    """
    start = keys.session_row(scope, session, Row.MOMENT, 0)
    stop = keys.session_row(scope, session, Row.MOMENT, seq + 1)
    for key, value in txn.scan(start, stop, reverse=True, limit=1):
        return unpack_moment(key, value)
    return None


def moments_of(
    txn: ReadTxn, scope: int, session: int, start: bytes = b"", stop: bytes = b""
) -> Iterator[tuple[int, int]]:
    """``(seq, counter)`` of every row that can be read, in their order, from key to key."""
    rows = keys.session_rows(scope, session, Row.MOMENT)
    for key, value in txn.scan(start or rows, stop or keys.after(rows)):
        try:
            yield keys.number_of(key), unpack_moment(key, value)
        except CorruptValueError:  # check() reports it
            continue


def is_moment(key: bytes, value: bytes) -> bool:
    """Whether it is a row of this sort.

    Raises:
        CorruptValueError: it is none.
    """
    return keys.split_session_row(key)[3] > 0 and bool(unpack_moment(key, value))


def unpack_moment(key: bytes, value: bytes) -> int:
    """The counter that a row holds.

    Raises:
        CorruptValueError: it holds none.
    """
    body = open_value(key, value)[1]
    counter = int.from_bytes(body, "little")
    if len(body) == _COUNTER_BYTES and 0 < counter < _END:
        return counter
    msg = f"the counter of a state under key {key.hex()} is malformed; run 'memcore check'"
    raise CorruptValueError(msg, key=key)
