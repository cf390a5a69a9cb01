"""The live history of one session, kept in memory and held true to the store.

One SessionLog a session a process, shared by all handles. It caches the head, the segments and the
ledger. Every operation compares the cached head with the stored one inside its own transaction:
equal bytes mean that nothing changed, a newer revision of the same epoch means appended items (the
index tail is read), another epoch means that the history was cut or replaced (it is read anew).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

from memcore import keys
from memcore._fast import Ledger
from memcore.codec import FLAG_BLOB, open_value
from memcore.errors import CorruptValueError, InternalError, PolicyMismatchError
from memcore.formats import get_policy
from memcore.formats.policy import PairPolicy
from memcore.keys import Row
from memcore.log import index
from memcore.log.head import Head, Segment, head_key
from memcore.log.ledger import new_ledger
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter
from memcore.views import StoredView, resolve_view

__all__ = ["History", "Logs", "SessionLog", "StoredRow", "read_rows"]

CounterOf = Callable[[str], TokenCounter]


class StoredRow(NamedTuple):
    """An item's row as read: its place, and the opened value."""

    position: int
    seq: int
    flags: int
    body: bytes

    @property
    def has_blob(self) -> bool:
        """Whether the item JSON lies in a blob."""
        return bool(self.flags & FLAG_BLOB)


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

    def position_from(self, seq: int) -> int:
        """The first position whose seq is at least ``seq``."""
        at = bisect_right(self.segments, seq, key=lambda segment: segment.lo) - 1
        if at < 0:
            return 0
        segment = self.segments[at]
        return self.starts[at] + min(seq - segment.lo, segment.hi - segment.lo + 1)

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


class SessionLog:
    """The cached state of one session. Readers take ``lock``, then begin their transaction."""

    __slots__ = (
        "__weakref__",
        "counter",
        "head",
        "head_bytes",
        "head_key",
        "history",
        "ledger",
        "lock",
        "policy",
        "resolve_counter",
        "scope",
        "session",
        "tag",
        "tail",
        "view",
    )

    def __init__(self, scope: int, session: int, resolve_counter: CounterOf) -> None:
        self.scope = scope
        self.session = session
        self.resolve_counter = resolve_counter
        self.head_key = head_key(scope, session)
        self.lock = Lock()
        self.forget()

    def forget(self) -> None:
        """Drop everything cached; the next catch-up reads it anew."""
        self.head_bytes: bytes | None = None
        self.head: Head | None = None
        self.history = History([])
        self.tail: tuple[int, bytes] | None = None
        self.view: tuple[tuple[int, int, int], StoredView | None] | None = None
        """The view that applies, under (epoch, view session, view number); the context's cache."""

    def catch_up(self, txn: ReadTxn) -> bool:
        """Bring the cache to what ``txn`` sees; False if the session is gone. Needs ``lock``.

        Raises:
            CorruptValueError: the head or an index page is damaged.
            PolicyMismatchError: the index holds counts of another counter.
            CounterUnavailableError: the session's counter cannot be loaded.
        """
        found = txn.get(self.head_key)
        if found is None:
            self.forget()
            return False
        if found == self.head_bytes:
            return True
        head = Head.unpack(self.head_key, found)
        if head.hidden:
            self.forget()
            return False
        known = self.head
        if known is None or known.epoch != head.epoch or known.count > head.count:
            self._reload(txn, head)
        else:
            self._extend(txn, head)
        self.head, self.head_bytes, self.tail = head, found, None
        return True

    def begin(self, txn: ReadTxn, head: Head) -> None:
        """Load what a session starts with that a transaction is about to create.

        The transaction may still fail, so the head counts as unknown until it is committed.
        """
        self._reload(txn, head)
        self.tail = None

    def _reload(self, txn: ReadTxn, head: Head) -> None:
        self.head_bytes = self.head = None
        self.policy: PairPolicy = get_policy(head.policy)
        self.counter: TokenCounter = self.resolve_counter(head.counter)
        self.tag = index.counter_tag(head.counter)
        self.history = History(head.all_segments(txn, self.scope))
        ledger = new_ledger(self.policy, self.counter)
        self._load(txn, ledger, self.history, 0, head.counter)
        self.ledger: Ledger = ledger

    def _extend(self, txn: ReadTxn, head: Head) -> None:
        self.history = self.history_of(txn, head)
        try:
            self._load(txn, self.ledger, self.history, len(self.ledger), head.counter)
        except BaseException:
            self.forget()
            raise

    def history_of(self, txn: ReadTxn, head: Head) -> History:
        """The live history of a head; blocks of old segments are read only if they changed."""
        known = self.head
        if (
            known is not None
            and known.epoch == head.epoch
            and known.link_session == head.link_session
            and known.link_block == head.link_block
        ):
            kept = len(self.history.segments) - len(known.segments)
            return History(self.history.segments[:kept] + head.segments)
        return History(head.all_segments(txn, self.scope))

    def load(self, txn: ReadTxn, head: Head, *, start: int = 0) -> Ledger:
        """A new ledger of the positions from ``start`` on of a head's live history."""
        ledger = new_ledger(get_policy(head.policy), self.resolve_counter(head.counter))
        self._load(txn, ledger, History(head.all_segments(txn, self.scope)), start, head.counter)
        return ledger

    def _load(
        self, txn: ReadTxn, ledger: Ledger, history: History, start: int, counter: str
    ) -> None:
        """Append the index records at positions from ``start`` on to a ledger."""
        before = len(ledger)
        tag = index.counter_tag(counter)
        for _, session, lo, hi in history.spans(start, history.count):
            wanted = hi - lo + 1
            for first, body in index.pages(txn, self.scope, session, lo, hi):
                found = ledger.load(body, max(lo - first, 0), wanted, tag)
                if found == -2:  # noqa: PLR2004 - the status of Ledger.load
                    msg = (
                        f"session {self.session}: the index holds counts that were not made by "
                        f"counter {counter!r}; recount the session"
                    )
                    raise PolicyMismatchError(msg)
                if found < 0:
                    key = index.page_key(self.scope, session, first)
                    msg = f"index page {key.hex()} is malformed; run 'memcore check'"
                    raise CorruptValueError(msg, key=key)
                wanted -= found
            if wanted:
                key = index.page_key(self.scope, session, lo)
                msg = f"the index of session {session} lacks {wanted} records; run 'memcore check'"
                raise CorruptValueError(msg, key=key)
        if len(ledger) - before != history.count - start:
            msg = f"session {self.session}: the index does not match the live history"
            raise InternalError(msg)

    def advance(
        self,
        head: Head,
        packed: bytes,
        history: History,
        base: Ledger,
        overlay: Ledger,
        tail: tuple[int, bytes] | None,
    ) -> None:
        """Take over what a committed draft made of the session; idempotent by revision."""
        with self.lock:
            if self.head is not None and self.head.revision >= head.revision:
                return  # a reader saw the commit first and caught up by itself
            base.fold(overlay)
            self.ledger, self.history, self.tail = base, history, tail
            self.head, self.head_bytes = head, packed

    def current_view(self, txn: ReadTxn) -> StoredView | None:
        """The view that applies to the live history. Needs ``lock``, after ``catch_up``."""
        head = self.head
        assert head is not None  # noqa: S101 - what catch_up promises
        wanted = (head.epoch, head.view_session, head.view_number)
        if self.view is None or self.view[0] != wanted:

            def chain_at(seq: int) -> int | None:
                position = self.history.position_of(seq)
                if position is None:
                    return None
                record = index.record_at(txn, self.scope, *self.history.locate(position))
                return int(index.RECORD.unpack_from(record)[2])

            found = resolve_view(txn, self.scope, *wanted[1:], chain_at)
            self.view = (wanted, found)
        return self.view[1]

    def rows(self, txn: ReadTxn, start: int, stop: int) -> Iterator[StoredRow | CorruptValueError]:
        """The rows at positions ``start .. stop``; a damaged or missing one as its error."""
        for position, session, lo, hi in self.history.spans(start, stop):
            yield from read_rows(txn, self.scope, session, position, lo, hi)


def read_rows(
    txn: ReadTxn, scope: int, session: int, position: int, lo: int, hi: int
) -> Iterator[StoredRow | CorruptValueError]:
    """The rows of seqs ``lo .. hi`` that ``session`` owns."""
    start = keys.session_row(scope, session, Row.ITEM, lo)
    expected = lo
    for key, value in txn.scan(start, keys.session_row(scope, session, Row.ITEM, hi + 1)):
        seq = keys.split_session_row(key)[3]
        for missing in range(expected, seq):
            yield _missing(scope, session, missing)
        expected = seq + 1
        try:
            flags, body = open_value(key, value)
        except CorruptValueError as exc:
            yield exc
            continue
        yield StoredRow(position + seq - lo, seq, flags, body)
    for missing in range(expected, hi + 1):
        yield _missing(scope, session, missing)


def _missing(scope: int, session: int, seq: int) -> CorruptValueError:
    key = keys.session_row(scope, session, Row.ITEM, seq)
    msg = f"item {seq} of session {session} is missing (key {key.hex()}); run 'memcore check'"
    return CorruptValueError(msg, key=key)


class Logs:
    """All SessionLogs of a database in this process."""

    __slots__ = ("_lock", "_logs", "_resolve_counter")

    def __init__(self, resolve_counter: CounterOf) -> None:
        self._logs: WeakValueDictionary[tuple[int, int], SessionLog] = WeakValueDictionary()
        self._lock = Lock()
        self._resolve_counter = resolve_counter

    def get(self, scope: int, session: int) -> SessionLog:
        """The one SessionLog of that session."""
        with self._lock:
            log = self._logs.get((scope, session))
            if log is None:
                log = SessionLog(scope, session, self._resolve_counter)
                self._logs[scope, session] = log
            return log

    def fresh_ledger(self, head: Head) -> Ledger:
        """An empty ledger of a session's policy and counter."""
        counter = self._resolve_counter(head.counter)
        return new_ledger(get_policy(head.policy), counter)
