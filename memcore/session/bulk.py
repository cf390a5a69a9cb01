"""The messages of many items at once: rows in one go, proven and decoded by the compiled core.

It serves what is regular. Where a row is damaged, missing, large, or was written by the standard
library's JSON, ``Ending.read`` looks at each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson
from xxhash import xxh3_64_digest

from memcore import keys
from memcore._fast import open_messages
from memcore.keys import Row
from memcore.limits import VALUE_FORMAT
from memcore.log import SessionLog
from memcore.model import Message
from memcore.session.reading import Reading
from memcore.store.base import ReadTxn

__all__ = ["Run", "messages_of", "take_runs"]

_HEAD: Final = bytes((VALUE_FORMAT, 0))
_RUN_ITEMS: Final = 512


class Run(NamedTuple):
    """Rows of consecutive seqs that one session owns, sealed as they are stored."""

    prefix: bytes
    first: int
    rows: list[tuple[bytes, bytes]]
    size: int
    """How many rows there should be."""


def take_runs(reading: Reading, count: int | None) -> tuple[list[Run], bool]:
    """The rows of the last ``count`` live items (None: all), oldest first; and whether that is all.

    A run has 512 rows at most, so that other tasks get their turn while they are decoded.
    """

    def collect(log: SessionLog, txn: ReadTxn) -> tuple[list[Run], bool]:
        history = log.history
        stop = history.count
        start = 0 if count is None else max(stop - count, 0)
        runs = []
        for _, session, lo, hi in history.spans(start, stop):
            prefix = keys.session_rows(log.scope, session, Row.ITEM)
            for first in range(lo, hi + 1, _RUN_ITEMS):
                size = min(_RUN_ITEMS, hi + 1 - first)
                rows = txn.take(keys.numbered(prefix, first), size)
                runs.append(Run(prefix, first, rows, size))
        return runs, start == 0

    nothing: tuple[list[Run], bool] = ([], True)
    return reading.run(collect, nothing)


def messages_of(run: Run) -> list[Message] | None:
    """The messages of a run, without events; None if some row needs a look of its own."""
    if len(run.rows) != run.size:
        return None
    return open_messages(run.rows, run.prefix, run.first, _HEAD, xxh3_64_digest, orjson.loads)
