"""The live history of one session, kept in memory and held true to the store.

One SessionLog a session a process, shared by all handles. It caches the head, the segments and the
ledger. Every operation compares the cached head with the stored one inside its own transaction:
equal bytes mean that nothing changed, a newer revision of the same epoch means appended items (the
index tail is read), another epoch means that the history was cut or replaced (it is read anew).
The ledger is loaded when it is first asked, and of a long history only its end: most questions are
about the end, and 2,048 records are read in a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, NamedTuple, TypeAlias

from memcore import keys
from memcore._fast import Ledger
from memcore.codec import open_value
from memcore.errors import CorruptValueError, PolicyMismatchError
from memcore.formats import get_policy
from memcore.formats.policy import PairPolicy
from memcore.keys import Row
from memcore.log import index
from memcore.log.counts import NO_COUNTS, Counts
from memcore.log.head import Head, Segment, head_key
from memcore.log.ledger import open_call_tokens
from memcore.log.masked import AnyLedger
from memcore.log.masks import Masks
from memcore.log.positions import History
from memcore.model import ItemKind, Mask, View
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter
from memcore.tombstone import tombstone_of
from memcore.views import StoredView, choose_view, resolve_view, view_chain

__all__ = ["CounterOf", "Recent", "SessionLog", "StoredRow", "read_rows", "sound"]

CounterOf = Callable[[str], TokenCounter]

RECENT_RECORDS: Final = 2048
"""A history of more than twice as many items is opened from its end."""


StoredRow: TypeAlias = tuple[int, int, int, bytes]
"""``(position, seq, flags, body)`` of an item's row, its value opened."""


class Recent(NamedTuple):
    """A ledger of the positions from ``offset`` on, and what lies before it in sums.

    At offset 0 it is the whole history. Else it answers everything about its positions exactly:
    it starts at a user item, which nothing is glued to, and every result in it found its call.
    """

    offset: int
    ledger: Ledger
    tokens_before: int
    open_before: int


class SessionLog:
    """The cached state of one session. Readers take ``lock``, then begin their transaction."""

    __slots__ = (
        "__weakref__",
        "_history",
        "_masks",
        "_older",
        "_open_tokens",
        "_recent",
        "counter",
        "counts",
        "head",
        "head_bytes",
        "head_key",
        "item_rows",
        "lock",
        "place",
        "policy",
        "resolve_counter",
        "scope",
        "session",
        "tag",
        "tail",
        "tombstone",
        "view",
    )

    def __init__(self, scope: int, session: int, resolve_counter: CounterOf) -> None:
        self.scope = scope
        self.session = session
        self.resolve_counter = resolve_counter
        self.place = (scope, session)
        self.head_key = head_key(scope, session)
        self.tombstone = tombstone_of(scope)
        self.item_rows = keys.session_rows(scope, session, Row.ITEM)
        self.lock = Lock()
        self.forget()

    def forget(self) -> None:
        """Drop everything cached; the next catch-up reads it anew."""
        self.head_bytes: bytes | None = None
        self.head: Head | None = None
        self._older: list[Segment] = []
        self._history: History | None = History([])
        self.tail: index.Tail | None = None
        self.view: tuple[tuple[int, int, int], StoredView | None] | None = None
        """The view that applies, under (epoch, view session, view number); the context's cache."""
        self._recent: Recent | None = None
        self.counts = NO_COUNTS

    def forget_all(self) -> None:
        """``forget``, for callers without the lock."""
        with self.lock:
            self.forget()

    def twin(self) -> SessionLog:
        """Another log of the same session that nobody shares."""
        return SessionLog(self.scope, self.session, self.resolve_counter)

    def catch_up(self, txn: ReadTxn) -> bool:
        """Bring head and history to what ``txn`` sees; False if the session is gone, or its user.

        Needs ``lock``.

        Raises:
            CorruptValueError: the head is damaged.
            CounterUnavailableError: the session's counter cannot be loaded.
        """
        found = txn.get(self.head_key)
        if found is None or txn.get(self.tombstone) is not None:
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
            self.begin(txn, head)
        else:
            self._older = self.older_of(txn, head)
            self._history = None
        self.head, self.head_bytes, self.tail = head, found, None
        return True

    @property
    def history(self) -> History:
        """The live history as positions; made when it is first asked for after a change."""
        if self._history is None:
            assert self.head is not None  # noqa: S101 - it is None only while there is a head
            self._history = History(self._older + self.head.segments)
        return self._history

    def begin(self, txn: ReadTxn, head: Head) -> None:
        """Start anew from a head that may not be committed yet, so it counts as unknown."""
        self.forget()
        self.policy: PairPolicy = get_policy(head.policy)
        self.counter: TokenCounter = self.resolve_counter(head.counter)
        self._masks = Masks(self.counter)
        self._open_tokens = open_call_tokens(self.counter)
        self.tag = index.counter_tag(head.counter)
        self.counts = Counts.of(head)  # each recount makes another epoch
        self._older = head.older_segments(txn, self.scope)
        self._history = History(self._older + head.segments)

    def older_of(self, txn: ReadTxn, head: Head) -> list[Segment]:
        """The segments before those in the head; their blocks are read only if they changed."""
        known = self.head
        if (
            known is not None
            and known.epoch == head.epoch
            and known.link_session == head.link_session
            and known.link_block == head.link_block
        ):
            return self._older
        return head.older_segments(txn, self.scope)

    # --- ledgers ----------------------------------------------------------------------------------

    def recent(self, txn: ReadTxn, head: Head) -> Recent:
        """The ledger that there is, brought up to ``head``; of a long history first its end.

        Raises:
            CorruptValueError: an index page is damaged or missing.
            PolicyMismatchError: the index holds counts of another counter.
        """
        found = self._recent
        if found is None:
            found = self._open_end(txn, head)
        known = found.offset + len(found.ledger)
        if known != head.count:
            self._recent = None
            self.load_into(txn, found.ledger, self.history, known, head.count)
        if found.offset and found.ledger.unbound:
            found = Recent(0, self.load(txn), 0, 0)
        self._recent = found
        return found

    def full(self, txn: ReadTxn, head: Head) -> Recent:
        """The ledger of the whole history."""
        if self._recent is not None and not self._recent.offset:
            return self.recent(txn, head)
        self._recent = Recent(0, self.load(txn), 0, 0)
        return self._recent

    def covering(self, txn: ReadTxn, head: Head, position: int) -> Recent:
        """A ledger that holds ``position``."""
        found = self.recent(txn, head)
        return found if position >= found.offset else self.full(txn, head)

    def _open_end(self, txn: ReadTxn, head: Head) -> Recent:
        """The end of a long history from a user item on, else the whole."""
        offset = self.history.count - RECENT_RECORDS
        if offset > RECENT_RECORDS:
            ledger = self.load(txn, start=offset)
            start = ledger.first_of(ItemKind.USER)
            if start > 0:
                ledger = self.load(txn, start=offset + start)
            if start >= 0 and not ledger.unbound:
                before = head.tokens - ledger.tokens, head.open_calls - ledger.open_count
                if min(before) >= 0:
                    return Recent(offset + start, ledger, *before)
        return Recent(0, self.load(txn), 0, 0)

    def load(
        self,
        txn: ReadTxn,
        *,
        start: int = 0,
        stop: int | None = None,
        history: History | None = None,
    ) -> Ledger:
        """A new ledger of the positions ``start .. stop`` of the live (or the given) history."""
        history = history or self.history
        stop = history.count if stop is None else min(stop, history.count)
        ledger = self.policy.new_ledger(self._open_tokens, expect_items=stop - start)
        self.load_into(txn, ledger, history, start, stop)
        return ledger

    def load_into(
        self, txn: ReadTxn, ledger: Ledger, history: History, start: int, stop: int
    ) -> None:
        """Append the index records at positions ``start .. stop`` of a history to a ledger."""
        edge = min(max(history.position_from(self.counts.stop), start), stop)
        if start < edge:
            counts = self.counts.read(txn, self.scope, start, edge)
            self._load_spans(txn, ledger, history.spans(start, edge), counts)
        self._load_spans(txn, ledger, history.spans(edge, stop), None)

    def _load_spans(
        self,
        txn: ReadTxn,
        ledger: Ledger,
        spans: Iterator[tuple[int, int, int, int]],
        counts: bytes | None,
    ) -> None:
        done = 0
        for _, session, lo, hi in spans:
            wanted = hi - lo + 1
            for first, body in index.pages(txn, self.scope, session, lo, hi):
                found = ledger.load(body, max(lo - first, 0), wanted, self.tag, counts, done)
                if found == -2:  # noqa: PLR2004 - the status of Ledger.load
                    msg = (
                        f"session {self.session}: the index holds counts that were not made by "
                        f"counter {self.counter.id!r}; session.recount() counts them anew"
                    )
                    raise PolicyMismatchError(msg)
                if found < 0:
                    key = index.page_key(self.scope, session, first)
                    msg = f"index page {key.hex()} is malformed; run 'memcore check'"
                    raise CorruptValueError(msg, key=key)
                wanted -= found
                done += found
            if wanted:
                key = index.page_key(self.scope, session, lo)
                msg = f"the index of session {session} lacks {wanted} records; run 'memcore check'"
                raise CorruptValueError(msg, key=key)

    def advance(
        self,
        head: Head,
        packed: bytes,
        *,
        older: list[Segment],
        base: Recent,
        overlay: Ledger,
        tail: index.Tail | None,
    ) -> None:
        """Take over what a committed draft made of the session; idempotent by revision."""
        with self.lock:
            if self.head is not None and self.head.revision >= head.revision:
                return  # a reader saw the commit first and caught up by itself
            base.ledger.fold(overlay)
            self._recent, self.tail = base, tail
            self._older, self._history = older, None
            self.head, self.head_bytes = head, packed

    def current_view(self, txn: ReadTxn) -> StoredView | None:
        """The view that applies to the live history. Needs ``lock``, after ``catch_up``."""
        head = self.head
        assert head is not None  # noqa: S101 - what catch_up promises
        wanted = (head.epoch, head.view_session, head.view_number)
        if self.view is None or self.view[0] != wanted:
            found = resolve_view(txn, self.scope, *wanted[1:], lambda seq: self._chain_at(txn, seq))
            self.view = (wanted, found)
        return self.view[1]

    def chosen_view(self, txn: ReadTxn, view: View | int) -> StoredView | None:
        """A view of the session's chain that applies to the live history; None for 0: no view.

        Raises:
            NotFoundError: there is none, or the history was cut back below it.
            InvalidOptionError: ``view`` is neither a View nor a number.
        """
        head = self.head
        assert head is not None  # noqa: S101 - what catch_up promises
        chain = view_chain(txn, self.scope, head.view_session, head.view_number)
        return choose_view(chain, view, lambda seq: self._chain_at(txn, seq))

    def _chain_at(self, txn: ReadTxn, seq: int) -> int | None:
        return self.history.chain_at(txn, self.scope, seq)

    def masks(self, txn: ReadTxn, stored: StoredView | None) -> dict[int, Mask]:
        """The masks in force under a view, by seq. Needs ``lock``, after ``catch_up``."""
        assert self.head is not None  # noqa: S101 - what catch_up promises
        return self._masks.under(txn, self.scope, stored, (self.head.epoch, self.history))

    def seen_through(self, ledger: Ledger, offset: int, masks: dict[int, Mask]) -> AnyLedger:
        """A ledger whose positions begin at ``offset``, with masked items at their masked size."""
        return self._masks.seen_through(ledger, offset, masks, self.history)

    def rows(self, txn: ReadTxn, start: int, stop: int) -> Iterator[StoredRow | CorruptValueError]:
        """The rows at positions ``start .. stop``; a damaged or missing one as its error."""
        for position, session, lo, hi in self.history.spans(start, stop):
            yield from read_rows(txn, self.scope, session, position=position, lo=lo, hi=hi)


def read_rows(
    txn: ReadTxn, scope: int, session: int, *, position: int, lo: int, hi: int
) -> Iterator[StoredRow | CorruptValueError]:
    """The rows of seqs ``lo .. hi`` that ``session`` owns."""
    start = keys.session_row(scope, session, Row.ITEM, lo)
    expected = lo
    shift = position - lo
    for key, value in txn.scan(start, keys.session_row(scope, session, Row.ITEM, hi + 1)):
        if len(key) != len(start):
            continue  # a damaged key, which stands for no seq: its item is missing
        seq = keys.number_of(key)
        if seq != expected:
            for missing in range(expected, seq):
                yield _missing(scope, session, missing)
        expected = seq + 1
        try:
            flags, body = open_value(key, value)
        except CorruptValueError as exc:
            yield exc
            continue
        yield seq + shift, seq, flags, body
    for missing in range(expected, hi + 1):
        yield _missing(scope, session, missing)


def sound(row: StoredRow | CorruptValueError) -> StoredRow:
    """The row, if it is not damaged.

    Raises:
        CorruptValueError: it is.
    """
    if isinstance(row, CorruptValueError):
        raise row
    return row


def _missing(scope: int, session: int, seq: int) -> CorruptValueError:
    key = keys.session_row(scope, session, Row.ITEM, seq)
    msg = f"item {seq} of session {session} is missing (key {key.hex()}); run 'memcore check'"
    return CorruptValueError(msg, key=key)
