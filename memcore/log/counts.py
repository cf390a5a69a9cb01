"""Token pages: what the items of a live history count by another counter than their records.

A recount leaves index pages alone, which forks share. It writes the counts of all live items under
its session, by position, and the head points at them with the seq that they end before: nothing is
ever put in between live items, so an item below that seq keeps its position for as long as it is
live. A fork inherits the pointer; the pages stay as long as a fork may refer to them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import pack
from typing import Final, NamedTuple

from memcore import keys
from memcore._fast import HeadFields
from memcore.codec import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.limits import TOKEN_PAGE_COUNTS
from memcore.store.base import ReadTxn, Txn

__all__ = ["Counts", "check_counts", "drop_counts", "recount_numbers", "write_counts"]

COUNT_BYTES: Final = 4


class Counts(NamedTuple):
    """Where the counts of a head's items lie; ``stop`` 0: all are in the index."""

    session: int
    number: int
    stop: int
    """The first seq that is not counted here: its index record counts it."""

    @classmethod
    def of(cls, head: HeadFields) -> Counts:
        """Those that a head points at."""
        return cls(head.recount_session, head.recount_number, head.recount_stop)

    def point(self, head: HeadFields) -> None:
        """Make a head point at them."""
        head.recount_session, head.recount_number, head.recount_stop = self

    def read(self, txn: ReadTxn, scope: int, start: int, stop: int) -> bytes:
        """The counts at positions ``start .. stop``, packed.

        Raises:
            CorruptValueError: a page is damaged, missing or cut short.
        """
        if start >= stop:
            return b""
        first = start - start % TOKEN_PAGE_COUNTS
        found = b"".join(body for _, body in _pages(txn, scope, self, first, stop))
        found = found[COUNT_BYTES * (start - first) : COUNT_BYTES * (stop - first)]
        if len(found) != COUNT_BYTES * (stop - start):
            key = keys.token_page(scope, self.session, self.number, first)
            msg = (
                f"the token counts of {stop - start} items from key {key.hex()} on are missing or "
                "cut short; run 'memcore check', or recount the session"
            )
            raise CorruptValueError(msg, key=key)
        return found


NO_COUNTS: Final = Counts(0, 0, 0)


def _pages(
    txn: ReadTxn, scope: int, counts: Counts, first: int, stop: int
) -> Iterator[tuple[bytes, bytes]]:
    """Key and body of the pages from ``first`` on, up to the first that is not in its place."""
    start, end = (keys.token_page(scope, counts.session, counts.number, at) for at in (first, stop))
    for key, value in txn.scan(start, end):
        if keys.split_token_page(key)[1] != first:
            return
        body = open_value(key, value)[1]
        yield key, body
        if len(body) != COUNT_BYTES * TOKEN_PAGE_COUNTS:
            return
        first += TOKEN_PAGE_COUNTS


def write_counts(txn: Txn, scope: int, counts: Counts, tokens: array[int]) -> None:
    """Write the pages of a recount."""
    for first in range(0, len(tokens), TOKEN_PAGE_COUNTS):
        page = tokens[first : first + TOKEN_PAGE_COUNTS]
        key = keys.token_page(scope, counts.session, counts.number, first)
        txn.put(key, seal_value(key, pack(f"<{len(page)}I", *page)))


def recount_numbers(txn: ReadTxn, scope: int, session: int) -> Iterator[int]:
    """The recounts of which the session holds pages."""
    start = keys.session_rows(scope, session, Row.TOKENS)
    stop = keys.after(start)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        number, _ = keys.split_token_page(row[0])
        yield number
        start = keys.after(keys.token_pages(scope, session, number))


def drop_counts(txn: Txn, scope: int, session: int, *, keep: set[int]) -> None:
    """Remove the pages of all recounts but those of ``keep``."""
    for number in list(recount_numbers(txn, scope, session)):
        if number not in keep:
            start = keys.token_pages(scope, session, number)
            txn.delete_range(start, keys.after(start))


def check_counts(txn: ReadTxn, scope: int, session: int, head: HeadFields) -> Iterator[str]:
    """What is wrong with the pages that lie under a session, used by itself or not."""
    known = Counts.of(head)
    for number in recount_numbers(txn, scope, session):
        if number > head.epoch:
            yield f"it has token counts of recount {number}, which its head does not know"
            continue
        held = taken = 0
        for _, body in _pages(txn, scope, Counts(session, number, 0), 0, 2**64 - 1):
            held += len(body)
            taken += 1
        start = keys.token_pages(scope, session, number)
        rows = sum(1 for _ in txn.scan(start, keys.after(start)))
        if rows != taken or held % COUNT_BYTES:
            yield f"the token counts of recount {number} have a gap behind {held // COUNT_BYTES}"
        is_own = (known.session, known.number) == (session, number)
        if is_own and held // COUNT_BYTES >= known.stop:
            yield f"recount {number} counted {held // COUNT_BYTES} items up to seq {known.stop - 1}"
