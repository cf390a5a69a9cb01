"""One pass over a chain: is every entry the one that was made for its place?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from memcore import keys
from memcore.audit.anchors import matches
from memcore.audit.report import Suspicion, Why
from memcore.codec import HEADER_BYTES, is_proven
from memcore.privacy.entry import FIRST_MAC, Chainer, Entry, Op, unpack_entry, unpack_page
from memcore.store.base import ReadTxn
from memcore.store.recording import Place
from memcore.store.txn import stored_rows

__all__ = ["Walk", "entries"]

_LOW: Final = 0xFFFFFFFF


def entries(
    txn: ReadTxn, place: Place, *, after: int = 0, limit: int = 0
) -> Iterator[tuple[int, bytes, bytes]]:
    """``(number, key, stored value)`` of the entries of a chain behind a number."""
    rows = keys.audit_rows(*place)
    start = keys.numbered(rows, after + 1) if after else rows
    for key, value in stored_rows(txn, start, keys.after(rows), limit=limit):
        yield keys.number_of(key), key, value


class Walk:
    """The state of a walk. Behind the first break entries are still read, and prove nothing."""

    def __init__(self, chainer: Chainer, place: Place, anchored: Mapping[int, str]) -> None:
        self._chainer = chainer
        self.place = place
        self._anchored = anchored
        self._before = FIRST_MAC
        self._expected = 1
        self._doubted: tuple[int, bytes] | None = None
        self.broken: Suspicion | None = None
        self.proven = 0
        self.last = 0
        """The number of the last entry that there is."""
        self.closed = False
        self.head: tuple[int, bytes] | None = None
        """The last entry that tells of the session's head, and its digest."""

    def run(self, txn: ReadTxn, take: Callable[[int, Entry], None]) -> None:
        """Go through the chain; ``take`` is given every entry that can be read."""
        for number, key, value in entries(txn, self.place):
            whole = value[HEADER_BYTES:]
            self._look_back(whole)
            entry = None
            try:
                entry = unpack_entry(whole)
                if self.broken is None:
                    self._prove(number, key, value, entry)
                self._read(number, entry, take)
            except ValueError:
                if self.broken is None:
                    self._break(self._expected, Why.MODIFIED, "the entry cannot be read")
            self.last = number
        most = max(self._anchored, default=0)
        if self._doubted is not None and 0 < most < self._doubted[0]:
            self._break(self._doubted[0], Why.INSERTED, "nobody with the key made it")
        if self.broken is None and most > self.last:
            what = f"the chain was anchored at entry {most}, and ends at {self.last}"
            self._break(self.last + 1, Why.TRUNCATED, what)

    def _read(self, number: int, entry: Entry, take: Callable[[int, Entry], None]) -> None:
        take(number, entry)
        if entry.head:
            self.head = number, entry.head
        self.closed = entry.op is Op.CLOSED

    def _prove(self, number: int, key: bytes, value: bytes, entry: Entry) -> None:
        whole = value[HEADER_BYTES:]
        page = unpack_page(entry.said) if entry.op is Op.CUT else None
        first = number if page is None else page.first
        if first != self._expected:
            missing = first > self._expected
            what = f"the chain goes on with entry {first}"
            why = Why.DELETED if missing else Why.REORDERED
            self._break(self._expected, why, what)
        elif not self._chainer.is_sealed(self.place, number, self._before, whole):
            if entry.low != number & _LOW:
                what = f"it was made as entry {entry.low}"
                self._break(number, Why.REORDERED, what)
            else:
                self._doubted = number, self._before
                self._break(number, Why.MODIFIED, "its mac does not prove it")
        elif not is_proven(key, value):
            self._break(number, Why.MODIFIED, "its checksum was changed")
        else:
            self.proven += 1
            self._expected = number + 1
            self._before = entry.mac if page is None else page.resume
            anchored = self._anchored.get(number)
            if anchored is not None and not matches(self._before, anchored):
                what = "another entry was anchored here: the chain was made anew with its key"
                self._break(number, Why.REWRITTEN, what)

    def _look_back(self, whole: bytes) -> None:
        """Whether the entry that was not proven was put in before this one."""
        if self._doubted is not None:
            number, before = self._doubted
            self._doubted = None
            if self.broken is not None and self._chainer.is_sealed(
                self.place, number, before, whole
            ):
                what = "the entry behind it is the one that was made for its place"
                self.broken = Suspicion(self.place, number, Why.INSERTED, what)

    def _break(self, number: int, why: Why, what: str) -> None:
        self.broken = Suspicion(self.place, number, why, what)
