"""What a chain says that there is: the last that it says of each row, in bounded memory.

The last word on a row may stand anywhere behind the first, so a chain of more rows than fit is gone
through several times, each time for the next rows in the order of their keys.
"""

from __future__ import annotations

import heapq
from typing import Final

from memcore.keys import u64
from memcore.privacy.entry import Entry, Op, unpack_page, unpack_put, unpack_range, unpack_tip
from memcore.store.recording import BEGUN, OF_SCOPE, OF_SESSION

__all__ = ["Latest", "Word"]

ROWS_MAX: Final = 200_000

Word = tuple[int, bytes | None]
"""The number of the entry that tells, and the digest that the row has then; None: it is deleted."""


class Latest:
    """The last words on the rows from one key on; ``until`` is where the next part begins."""

    def __init__(self, *, is_database: bool, after: bytes = b"", limit: int = ROWS_MAX) -> None:
        self._chain = OF_SCOPE if is_database else OF_SESSION
        self._limit = limit
        self.after = after
        self.until: bytes | None = None
        self.rows: dict[bytes, Word] = {}
        self._spans: dict[tuple[bytes, bytes], int] = {}

    def take(self, number: int, entry: Entry) -> None:
        """Take the next entry in.

        Raises:
            ValueError: it cannot be read.
        """
        op, said = entry.op, entry.said
        if op is Op.PUT:
            rest, digest = unpack_put(said)
            self._tell(rest, number, digest)
        elif op is Op.DELETE:
            self._tell(said, number, None)
        elif op is Op.RANGE:
            self._span(unpack_range(said), number)
        elif op in (Op.BEGIN, Op.END):
            named = self._chain + u64(unpack_tip(said)[0])
            self._tell(named, number, BEGUN if op is Op.BEGIN else None)
        elif op in (Op.COVER, Op.CUT):
            page = unpack_page(said)
            for span in page.spans:
                self._span(span, number)
            for rest, digest_or_none in page.rows:
                self._tell(rest, number, digest_or_none)

    def _tell(self, rest: bytes, number: int, digest: bytes | None) -> None:
        if rest < self.after or (self.until is not None and rest >= self.until):
            return
        self.rows[rest] = number, digest
        if len(self.rows) > self._limit:
            order = sorted(self.rows)
            self.until = order[self._limit // 2]
            for later in order[self._limit // 2 :]:
                del self.rows[later]

    @property
    def spans(self) -> list[tuple[bytes, bytes]]:
        """The ranges of keys that were deleted."""
        return list(self._spans)

    def _span(self, span: tuple[bytes, bytes], number: int) -> None:
        start, stop = max(span[0], self.after), span[1]
        if start >= stop or (self.until is not None and start >= self.until):
            return
        self._spans[span] = number

    def settle(self) -> None:
        """Let the deletions of ranges count for the rows that were written before them."""
        spans = sorted((start, -number, stop) for (start, stop), number in self._spans.items())
        active: list[tuple[int, bytes]] = []
        at = 0
        for rest in sorted(self.rows) if spans else ():
            while at < len(spans) and spans[at][0] <= rest:
                heapq.heappush(active, (spans[at][1], spans[at][2]))
                at += 1
            while active and active[0][1] <= rest:
                heapq.heappop(active)
            if active and -active[0][0] > self.rows[rest][0]:  # the newest range that holds it
                self.rows[rest] = -active[0][0], None
