"""What can be read of one session in a file of which some rows are damaged or missing.

Nothing is taken from outside of the live rows, and nothing is concluded that a checksum or a prefix
hash does not prove; where a head is lost, its history is traced back from the last item.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from memcore import keys
from memcore._fast import record_spans
from memcore.codec import checksum_of, open_value
from memcore.errors import CorruptValueError, MemcoreError
from memcore.keys import Row
from memcore.log import index
from memcore.log.head import Head, Segment, head_key
from memcore.log.positions import History, merged
from memcore.log.saved import Saved, read_saved, saved_numbers
from memcore.log.stored import Stored, opened
from memcore.log.tracing import predecessor
from memcore.store.base import ReadTxn

__all__ = ["Survivors"]


class Survivors:
    """One session as its rows tell, each by itself."""

    def __init__(self, txn: ReadTxn, scope: int, session: int) -> None:
        self.txn = txn
        self.scope = scope
        self.session = session
        self.findings: list[str] = []
        """What is wrong with what says where the session is."""
        self.unread: list[str] = []
        """Checkpoints that cannot be read."""
        self.head = self._read_head()
        self.saved = list(self._read_saved())
        """Checkpoints that can be read, oldest first."""
        self.sums: dict[int, bytes] = {}
        """The checksums of the own items that are whole."""
        self.records: dict[int, bytes] = {}
        """Their index records."""
        self.is_indexed = True
        """Whether every index page of the session is whole."""
        self._read_items()
        self._read_records()
        self.parent, self.first = self._origin()
        own = [*self.sums, *self.records]
        self.stop = max([self.first, *(seq + 1 for seq in own)])
        if self.head is not None:
            self.stop = max(self.stop, self.head.next_seq)
        self.stop = max([self.stop, *(saved.checkpoint.seq + 1 for saved in self.saved)])
        self._ancestor: Survivors | None = None
        self.before = self._known_before()
        """By own seq, the one before it, as far as histories tell that can be read."""

    # --- rows -------------------------------------------------------------------------------------

    def _read_head(self) -> Head | None:
        key = head_key(self.scope, self.session)
        value = self.txn.get(key)
        if value is None:
            self.findings.append("its head is missing")
            return None
        try:
            return Head.unpack(key, value)
        except CorruptValueError as exc:
            self.findings.append(str(exc))
            return None

    def _read_saved(self) -> Iterator[Saved]:
        for number in list(saved_numbers(self.txn, self.scope, self.session)):
            try:
                saved = read_saved(self.txn, self.scope, self.session, number)
            except CorruptValueError as exc:
                self.unread.append(str(exc))
                continue
            if saved is not None:
                yield saved

    def rows(self, row: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Number, key and value of the session's rows of one sort."""
        start = keys.session_row(self.scope, self.session, row, 0)
        for key, value in self.txn.scan(start, keys.after(start[:-8])):
            if len(key) == len(start):
                yield keys.number_of(key), key, value

    def last_of(self, row: int) -> int:
        """The largest number of the session's rows of one sort, damaged ones included."""
        return max((number for number, _, _ in self.rows(row)), default=0)

    def _read_items(self) -> None:
        for seq, key, value in self.rows(Row.ITEM):
            with suppress(CorruptValueError):  # told where it is wanted
                open_value(key, value)
                self.sums[seq] = checksum_of(value)

    def _read_records(self) -> None:
        for first, key, value in self.rows(Row.INDEX):
            spans = None
            with suppress(CorruptValueError):
                body = open_value(key, value)[1]
                spans = record_spans(body)
            if spans is None:
                self.is_indexed = False
                continue
            for at, (start, stop) in enumerate(spans):
                self.records[first + at] = body[start:stop]

    def _origin(self) -> tuple[int, int]:
        """The session that it was forked from (0: none), and the first seq of its own."""
        if self.head is not None:
            return self.head.parent_session, self.head.parent_seq + 1
        for saved in self.saved:
            return saved.parent[0], saved.parent[1] + 1
        parent = next(
            (
                each
                for each in _sessions_below(self.txn, self.scope, self.session)
                if self.txn.get(keys.session_row(self.scope, each, Row.CHILD, self.session))
                is not None
            ),
            0,
        )
        own = [number for row in (Row.ITEM, Row.INDEX) for number, _, _ in self.rows(row)]
        return parent, min(own, default=1) if parent else 1

    @property
    def missing_records(self) -> bool:
        """Whether its index does not hold all that it has to."""
        return not self.is_indexed or any(
            seq not in self.records for seq in range(self.first, self.stop)
        )

    # --- histories --------------------------------------------------------------------------------

    def _known_before(self) -> dict[int, int]:
        found: dict[int, int] = {}
        heads: list[Head | Saved] = [*self.saved, *([] if self.head is None else [self.head])]
        for each in heads:
            with suppress(CorruptValueError):  # told where its history is wanted
                last = 0
                for owner, lo, hi in _segments(each, self.txn, self.scope):
                    if owner == self.session:
                        found[lo] = last
                        found.update((seq, seq - 1) for seq in range(lo + 1, hi + 1))
                    last = hi
        return found

    def live(self) -> History | None:
        """The live history as the head has it; None if that cannot be read."""
        if self.head is None:
            return None
        try:
            history = History(self.head.all_segments(self.txn, self.scope))
        except CorruptValueError as exc:
            self.findings.append(str(exc))
            return None
        if history.count != self.head.count:
            self.findings.append("its segments are not as many items as its head says")
            return None
        return history

    def traced(self) -> History:
        """The history that ends with the last live or own item, as far as prefix hashes tell."""
        path: list[tuple[int, int]] = []
        last = self.stop - 1
        if self.head is not None:
            last = self.head.segments[-1].hi if self.head.segments else 0
        self._trace(last, path)
        return History(merged(reversed(path)))

    def _trace(self, last: int, path: list[tuple[int, int]]) -> None:
        """Walk back from ``last``, by this session's items and those of its ancestors."""
        above = self._above() if last >= self.first else None
        chains: dict[int, int | None] = {self.first - 1: 0}
        if self.first > 1:
            chains[self.first - 1] = None if above is None else above.chain_of(self.first - 1)
        before: dict[int, int] = {}
        for seq in range(self.first, last + 1):
            before[seq] = self.before.get(seq, seq - 1)
            chain = chains[seq] = self.chain_of(seq)
            if chain is None or seq not in self.sums or seq in self.before:
                continue
            found = predecessor(seq, chain, [self.sums[seq]], chains, before, first=self.first)
            if found is not None:
                before[seq] = found[0]
        seq = last
        while seq >= self.first:
            path.append((self.session, seq))
            seq = before[seq]
        above = self._above()
        if above is not None and seq > 0:
            above._trace(seq, path)  # noqa: SLF001 - of its own kind

    def chain_of(self, seq: int) -> int | None:
        """The prefix hash that an index record names, an ancestor's before the first own one."""
        if seq < self.first:
            above = self._above()
            return None if above is None else above.chain_of(seq)
        record = self.records.get(seq)
        return None if record is None else int(index.RECORD.unpack_from(record)[2])

    def _above(self) -> Survivors | None:
        if not self.parent or self.parent >= self.session:  # a fork has the greater number
            return None
        if self._ancestor is None:
            self._ancestor = Survivors(self.txn, self.scope, self.parent)
        return self._ancestor

    # --- items ------------------------------------------------------------------------------------

    def examined(self, history: History) -> Iterator[tuple[int, int, Stored | str]]:
        """``(owner, seq, the item or why it cannot be read)`` along a history."""
        for _, owner, lo, hi in history.spans(0, history.count):
            records = self.records if owner == self.session else self._records_of(owner, lo, hi)
            for seq in range(lo, hi + 1):
                found = self.item(owner, seq)
                if not isinstance(found, str) and owner != self.session and seq not in records:
                    found = f"item {seq} of session {owner} has no index record"
                yield owner, seq, found

    def item(self, owner: int, seq: int) -> Stored | str:
        """One item, or why it cannot be read."""
        key = keys.session_row(self.scope, owner, Row.ITEM, seq)
        value = self.txn.get(key)
        if value is None:
            return f"item {seq} is missing (key {key.hex()})"
        try:
            flags, body = open_value(key, value)
            return opened(self.txn, self.scope, (0, seq, flags, body))
        except MemcoreError as exc:
            return f"item {seq}: {exc}"

    def _records_of(self, owner: int, lo: int, hi: int) -> set[int]:
        found: set[int] = set()
        with suppress(CorruptValueError):
            for seq, _ in enumerate(index.records(self.txn, self.scope, owner, lo, hi), lo):
                found.add(seq)
        return found

    def sum_of(self, owner: int, seq: int) -> bytes | None:
        """The checksum of an item that is whole."""
        if owner == self.session:
            return self.sums.get(seq)
        key = keys.session_row(self.scope, owner, Row.ITEM, seq)
        value = self.txn.get(key)
        if value is None:
            return None
        try:
            open_value(key, value)
        except CorruptValueError:
            return None
        return checksum_of(value)


def _segments(each: Head | Saved, txn: ReadTxn, scope: int) -> list[Segment]:
    if isinstance(each, Head):
        return each.all_segments(txn, scope)
    return each.history(txn, scope).segments


def _sessions_below(txn: ReadTxn, scope: int, session: int) -> Iterator[int]:
    """The sessions of a scope that have rows and smaller numbers, the newest first."""
    start, stop = keys.session_prefix(scope, 0), keys.session_prefix(scope, session)
    while True:
        row = next(iter(txn.scan(start, stop, reverse=True, limit=1)), None)
        if row is None:
            return
        found = keys.split_session_prefix(row[0])[1]
        yield found
        stop = keys.session_prefix(scope, found)
