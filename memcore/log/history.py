"""History of one session: positions, views and masks, cached in memory and kept consistent.

There is one CachedSession per session and process, shared by all handles. It caches the head, the
segments and the ledger. Every operation compares the cached head with the stored one inside its own
transaction: equal bytes mean nothing changed; a newer revision of the same epoch means items were
appended (the index tail is read); another epoch means the history was cut or replaced (it is reread
in full). The ledger is loaded lazily, and for a long history only its end: most queries concern the
end, and 2,048 records take a tenth of a millisecond to read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import attrgetter
from threading import RLock
from typing import Any, Final, NamedTuple, TypeAlias

from memcore._fast import CacheFields, Ledger
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import encode_json, open_value
from memcore.errors import CorruptValueError, PolicyMismatchError
from memcore.model import ItemKind, Mask, Message, View
from memcore.options import counted
from memcore.rows import index
from memcore.rows.head import Head, Segment, head_key
from memcore.rows.index import NO_COUNTS, Counts
from memcore.rows.lifecycle import tombstone_of
from memcore.rows.views import StoredView, choose_view, masks_of, resolve_view, view_chain
from memcore.store.interface import ReadTxn
from memcore.tokens import ExactCounter, TokenCounter, checked_count
from memcore.wire import get_policy, summary_message, synthetic_samples
from memcore.wire.policy import PairPolicy

__all__ = [
    "AnyLedger",
    "CachedSession",
    "CounterOf",
    "History",
    "MaskedLedger",
    "Masks",
    "StoredRow",
    "TailLedger",
    "count_message",
    "merged",
    "new_ledger",
    "open_call_tokens",
    "read_rows",
    "sound",
]


# --- A live history by position: the mapping between positions and seqs ---------------------------


_LO: Final = attrgetter("lo")


class History:
    """Segments with their start positions: maps position <-> (session, seq)."""

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
        """Return ``(owner session, seq)`` at a position."""
        at = bisect_right(self.starts, position) - 1
        segment = self.segments[at]
        return segment.session, segment.lo + position - self.starts[at]

    def seq_at(self, position: int) -> int:
        """Return the seq at a position."""
        at = bisect_right(self.starts, position) - 1
        return self.segments[at].lo + position - self.starts[at]

    def position_of(self, seq: int) -> int | None:
        """Return the position of a seq, None if not live. Seqs ascend along a live history."""
        at = bisect_right(self.segments, seq, key=_LO) - 1
        if at < 0 or seq > self.segments[at].hi:
            return None
        return self.starts[at] + seq - self.segments[at].lo

    def owner_of(self, seq: int) -> int | None:
        """Return the session that owns the live item with a seq, None if it is not live."""
        position = self.position_of(seq)
        return None if position is None else self.locate(position)[0]

    def chain_at(self, txn: ReadTxn, scope: int, seq: int) -> int | None:
        """Return the prefix hash at a live seq, None for a seq that is not live."""
        position = self.position_of(seq)
        if position is None:
            return None
        return index.chain_of(txn, scope, *self.locate(position))

    def position_from(self, seq: int) -> int:
        """Return the first position whose seq is at least ``seq``."""
        at = bisect_right(self.segments, seq, key=_LO) - 1
        if at < 0:
            return 0
        segment = self.segments[at]
        return self.starts[at] + min(seq - segment.lo, segment.hi - segment.lo + 1)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield ``(owner session, seq)`` of every item."""
        for session, lo, hi in self.segments:
            for seq in range(lo, hi + 1):
                yield session, seq

    def first(self, count: int) -> History:
        """Return the history of the first ``count`` items."""
        return History([Segment(*run) for _, *run in self.spans(0, count)] if count else [])

    def shared_with(self, other: History) -> int:
        """Count the leading items in common; an item's predecessors are always the same."""
        count = 0
        for one, its in zip(self.segments, other.segments, strict=False):
            if one == its:
                count += one.size
                continue
            if one[:2] == its[:2]:
                count += min(one.size, its.size)
            break
        return count

    def spans(self, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return ``(position, session, lo, hi)`` of the seq runs at positions ``start .. stop``."""
        found = []
        at = max(bisect_right(self.starts, start) - 1, 0)
        while at < len(self.segments) and start < stop:
            session, lo, hi = self.segments[at]
            lo += start - self.starts[at]
            count = min(stop - start, hi - lo + 1)
            found.append((start, session, lo, lo + count - 1))
            start += count
            at += 1
        return found


def merged(path: Iterable[tuple[int, int]]) -> list[Segment]:
    """Merge items ``(session, seq)``, in order, into segments."""
    found: list[Segment] = []
    for session, seq in path:
        if found and found[-1].session == session and found[-1].hi == seq - 1:
            found[-1] = Segment(session, found[-1].lo, seq)
        else:
            found.append(Segment(session, seq, seq))
    return found


# --- A ledger for a policy and a counter ----------------------------------------------------------


def count_message(message: Message, counter: TokenCounter) -> int:
    """Count a message that is not stored (a summary, a synthetic result, one of a plain list)."""
    return checked_count(counter, message, encode_json(message)[0])


def open_call_tokens(counter: TokenCounter) -> int:
    """Return the most that an open call may cost a context: the largest synthetic result."""
    return _known_cost(counter) if type(counter) is ExactCounter else _synthetic_cost(counter)


def _synthetic_cost(counter: TokenCounter) -> int:
    return max(count_message(message, counter) for message in synthetic_samples())


_known_cost: Final = lru_cache(16)(_synthetic_cost)
"""For memcore's own counter: every new session asks."""


def new_ledger(
    policy: PairPolicy, counter: TokenCounter | None, *, expect_items: int = 0
) -> Ledger:
    """Make an empty ledger in which an open call may cost a synthetic result by ``counter``."""
    cost = 0 if counter is None else open_call_tokens(counter)
    return policy.new_ledger(cost, expect_items=expect_items)


# --- A ledger seen through a view's masks: same cuts, masked token counts -------------------------
# A mask changes neither kinds nor pairs, so every safe cut remains safe. Only sums change: the
# tokens of a suffix are the ledger's minus the savings of the masks in it. Masks are few compared
# with items, so the savings are kept as suffix sums over the masked positions, and appends need no
# update.

_NO_BOUND: Final = 2**62


class MaskedLedger:
    """A ledger that counts masked items at their masked size, for contexts and compactions."""

    __slots__ = ("_at", "_hidden", "_saved", "ledger")

    def __init__(self, ledger: Ledger, masks: Mapping[int, tuple[int, bool]]) -> None:
        """``masks``: by ledger position, ``(tokens as shown, True if hidden)``."""
        self.ledger = ledger
        self._at = sorted(masks)
        self._hidden = {at for at in self._at if masks[at][1]}
        saved = [0]
        for at in reversed(self._at):
            # An orphan that no context shows counts for nothing, whatever masks it.
            saved.append(saved[-1] + max(ledger.sum_between(at, at + 1) - masks[at][0], 0))
        self._saved = saved[::-1]

    def __len__(self) -> int:
        return len(self.ledger)

    @property
    def tokens(self) -> int:
        """Tokens of all positions."""
        return self.ledger.tokens - self._saved[0]

    @property
    def shown_count(self) -> int:
        """Number of items that are not events."""
        return self.ledger.shown_count

    @property
    def last_shown(self) -> int:
        """The last position that a context can show, -1 if there is none."""
        at = self.ledger.last_shown
        while at in self._hidden:
            at -= 1
        return at

    def kind_at(self, position: int) -> int:
        """Return the kind of the item at ``position``."""
        return self.ledger.kind_at(position)

    def leading(self, kind: int) -> int:
        """As ``Ledger.leading``."""
        return self.ledger.leading(kind)

    def is_safe(self, position: int) -> bool:
        """Return True if a cut at ``position`` splits nothing."""
        return self.ledger.is_safe(position)

    def irregular_from(self, position: int) -> bool:
        """As ``Ledger.irregular_from``: masks never make a pair irregular."""
        return self.ledger.irregular_from(position)

    def safe_cuts(self, *, starts: bool = False) -> list[int]:
        """Return all safe cuts in ascending order."""
        return self.ledger.safe_cuts(starts=starts)

    def cut_at_most(self, position: int) -> int:
        """Return the greatest safe cut <= ``position``, or -1."""
        return self.ledger.cut_at_most(position)

    def cut_keep_last(self, keep: int, *, starts: bool = False) -> int:
        """Return the greatest cut that keeps at least ``keep`` items other than events, or -1."""
        return self.ledger.cut_keep_last(keep, starts=starts)

    def last_of(self, kinds: int, count: int, *, at_least: int = 0) -> int:
        """As ``Ledger.last_of``."""
        return self.ledger.last_of(kinds, count, at_least=at_least)

    def count_of(self, kinds: int, start: int) -> int:
        """As ``Ledger.count_of``."""
        return self.ledger.count_of(kinds, start)

    def open_positions(self) -> list[int]:
        """Return the positions of items with open calls."""
        return self.ledger.open_positions()

    def cost(self, position: int) -> int:
        """Return an upper bound on the tokens of the suffix from ``position`` as rendered."""
        return self.ledger.cost(position) - self._saved_from(position)

    def sum_between(self, start: int, stop: int) -> int:
        """Return the tokens of positions ``start <= r < stop``."""
        return (
            self.ledger.sum_between(start, stop) - self._saved_from(start) + self._saved_from(stop)
        )

    def tokens_of(self, start: int, stop: int) -> list[int]:
        """Return the tokens of each position ``start <= r < stop``."""
        found = self.ledger.tokens_of(start, stop)
        lo, hi = bisect_left(self._at, start), bisect_left(self._at, stop)
        for at in range(lo, hi):
            found[self._at[at] - start] -= self._saved[at] - self._saved[at + 1]
        return found

    def cut_for_budget(self, budget: int, *, at_least: int = 0, starts: bool = True) -> int:
        """Return the smallest cut >= ``at_least`` whose suffix costs at most ``budget``, or -1.

        The cost falls as the cut advances, and the savings are constant between two masked
        positions. So the first masked position within the budget determines the two between which
        the answer begins; from there on, every cut that the ledger finds with these savings added
        to the budget is within it.
        """
        fits = bisect_left(self._at, True, key=lambda at: self.cost(at) <= budget)
        fits = max(fits, bisect_left(self._at, at_least))
        least = max(at_least, self._at[fits - 1] + 1 if fits else 0)
        return self.ledger.cut_for_budget(
            min(budget + self._saved[fits], _NO_BOUND), at_least=least, starts=starts
        )

    def _saved_from(self, position: int) -> int:
        """Return the tokens saved by masks at or after a position."""
        return self._saved[bisect_left(self._at, position)]


AnyLedger: TypeAlias = Ledger | MaskedLedger


# --- Masks in force on a session's live history, cached -------------------------------------------


class Masks:
    """The masks under the most recently requested view.

    The next view is usually its child and adds only a few, so a long chain is walked only once.
    """

    __slots__ = ("_counter", "_known", "_place", "_seen")

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._place: tuple[int, int, int] | None = None
        """(epoch, owner, number) of the view that ``_known`` belongs to."""
        self._known: dict[int, Mask] = {}
        self._seen: tuple[Ledger, int, dict[int, Mask], AnyLedger] | None = None

    def under(
        self, txn: ReadTxn, scope: int, stored: StoredView | None, at: tuple[int, History]
    ) -> dict[int, Mask]:
        """Return the masks in force under a view, by seq, with tokens by the session's counter.

        ``at`` is the epoch and the live history.
        """
        if stored is None or not (stored.view.masks or stored.inherits):
            return {}
        epoch, history = at
        place = (epoch, stored.owner, stored.view.number)
        if self._place != place:
            # Under another epoch the same seq may be another item, so every mask is proven anew.
            same = self._place is not None and self._place[0] == epoch
            known = (self._place[1:], self._known) if self._place is not None and same else None
            places = history.owner_of, lambda seq: history.chain_at(txn, scope, seq)
            found = masks_of(txn, scope, stored, places, known=known, counter=self._counter.id)
            self._known = {seq: self._counted(mask, by) for seq, (mask, by) in found.items()}
            self._place = place
        return self._known

    def seen_through(
        self, ledger: Ledger, offset: int, masks: dict[int, Mask], history: History
    ) -> AnyLedger:
        """Return the ledger of positions from ``offset`` on, with masked items at masked size.

        ``masks`` come from ``under``. A mask's saving does not change as the ledger grows.
        """
        if not masks:
            return ledger
        last = self._seen
        # By identity: ``under`` returns another dict for another view, the ledger grows in place.
        if last is not None and last[0] is ledger and last[1] == offset and last[2] is masks:
            return last[3]
        found = {}
        for seq, mask in masks.items():
            position = history.position_of(seq)
            if position is not None and position >= offset:
                found[position - offset] = (mask.tokens, mask.message is None)
        seen = MaskedLedger(ledger, found) if found else ledger
        self._seen = (ledger, offset, masks, seen)
        return seen

    def _counted(self, mask: Mask, counter: str) -> Mask:
        if counter == self._counter.id or mask.message is None:
            return mask
        return mask._replace(tokens=count_message(mask.message, self._counter))


# --- Live history of one session, cached and kept consistent with the store -----------------------

CounterOf = Callable[[str], TokenCounter]

RECENT_RECORDS: Final = 2048
"""A history of more than twice this many items is opened from its end."""


StoredRow: TypeAlias = tuple[int, int, int, bytes]
"""``(position, seq, flags, body)`` of an item's row, its value opened."""


class TailLedger(NamedTuple):
    """A ledger of the positions from ``offset`` on, and the totals of what precedes them.

    With offset 0 it is the whole history. Otherwise it is still exact for its own positions: it
    starts at a user item, which nothing is glued to, and every result in it has found its call.
    """

    offset: int
    ledger: Ledger
    tokens_before: int
    open_before: int


class CachedSession(CacheFields):
    """The cached state of one session. Readers take ``lock``, then begin their transaction."""

    __slots__ = (
        "__weakref__",
        "_masks",
        "_open_tokens",
        "_summary",
        "authors",
        "counts",
        "policy",
        "resolve_counter",
        "shown",
        "view",
        "was_read",
    )
    ledger: TailLedger | None

    def __init__(self, scope: int, session: int, resolve_counter: CounterOf) -> None:
        self.scope = scope
        self.session = session
        self.resolve_counter = resolve_counter
        self.place = (scope, session)
        self.head_key = head_key(scope, session)
        self.tombstone = tombstone_of(scope)
        self.item_rows = keys.session_rows(scope, session, Row.ITEM)
        self.lock = RLock()  # reentrant, as ownership is checked: see Engine.read_locked
        self.forget()

    def forget(self) -> None:
        """Drop everything cached; the next catch-up rereads it."""
        self.head_bytes = None
        self.head: Head | None = None
        self.older = []
        # Not None, which stands for a head whose history is still to be built.
        self.positions: History | None = History([])
        self.tail: index.Tail | None = None
        self.view: tuple[tuple[int, int, int], StoredView | None] | None = None
        """View that applies, keyed by (epoch, view session, view number); the context's cache."""
        self.ledger = None
        self.was_read = False
        """True once items have been read: the next read keeps the ledger that it loads."""
        self.counts = NO_COUNTS
        self.authors: Any = None
        """Index of the items by author; None until a context requests it."""
        self.shown: Any = None
        """Decoded messages of the last contexts; None until there is one."""
        self._summary: tuple[str, int] | None = None
        """The last summary that was counted, and its tokens."""

    def forget_all(self) -> None:
        """``forget``, for callers that do not hold the lock."""
        with self.lock:
            self.forget()

    def twin(self) -> CachedSession:
        """Return a private log of the same session."""
        return CachedSession(self.scope, self.session, self.resolve_counter)

    def catch_up(self, txn: ReadTxn) -> bool:
        """Bring head and history up to ``txn``; return False if the session or its user is gone.

        Needs ``lock``.

        Raises:
            CorruptValueError: the head is damaged.
            CounterUnavailableError: the session's counter cannot be loaded.
        """
        found = txn.get(self.head_key)
        # Rows of an erased user are removed piece by piece, so the head may still be there.
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
        # Fewer items in one epoch: the snapshot is older than the cache, as that of an outer read
        # may be, which a nested read shares.
        if known is None or known.epoch != head.epoch or known.count > head.count:
            self.begin(txn, head)
        else:
            self.older = self.older_of(txn, head)
            self.positions = None
        # Last: if anything above raises, the next catch-up must not take the head for known.
        self.head, self.head_bytes, self.tail = head, found, None
        return True

    @property
    def history(self) -> History:
        """The live history by position; built lazily after a change."""
        if self.positions is None:
            assert self.head is not None  # noqa: S101 - positions is None only if there is a head
            self.positions = History(self.older + self.head.segments)
        return self.positions

    def begin(self, txn: ReadTxn, head: Head) -> None:
        """Start over from a head that may not be committed yet, so it is not cached as known."""
        # First: a counter that cannot be loaded must leave nothing of the head before.
        self.forget()
        self.policy: PairPolicy = get_policy(head.policy)
        self.counter: TokenCounter = self.resolve_counter(head.counter)
        self._masks = Masks(self.counter)
        self._open_tokens = open_call_tokens(self.counter)
        self.tag = index.counter_tag(head.counter)
        self.counts = Counts.of(head)  # every recount starts a new epoch
        self.older = head.older_segments(txn, self.scope)
        self.positions = History(self.older + head.segments)

    # --- ledgers ----------------------------------------------------------------------------------

    def recent(self, txn: ReadTxn, head: Head) -> TailLedger:
        """Return the cached ledger brought up to ``head``; of a long history, at first its end.

        Raises:
            CorruptValueError: an index page is damaged or missing.
            PolicyMismatchError: the index holds counts of another counter.
        """
        found = self.ledger
        if found is None:
            found = self._open_end(txn, head)
        known = found.offset + len(found.ledger)
        if known != head.count:
            # Not cached meanwhile: loading may fail with some of the records in the ledger.
            self.ledger = None
            self.load_into(txn, found.ledger, self.history, known, head.count)
        # A result whose call is not in the loaded end may have it further up.
        if found.offset and found.ledger.unbound:
            found = TailLedger(0, self.load(txn), 0, 0)
        self.ledger = found
        return found

    def summary_tokens(self, summary: str) -> int:
        """Count the message that shows a summary; each context has the same until the next one."""
        known = self._summary
        if known is None or known[0] != summary:
            message = summary_message(self.policy, summary)
            known = self._summary = summary, count_message(message, self.counter)
        return known[1]

    def full(self, txn: ReadTxn, head: Head) -> TailLedger:
        """Return the ledger of the whole history."""
        if self.ledger is not None and not self.ledger.offset:
            return self.recent(txn, head)
        self.ledger = TailLedger(0, self.load(txn), 0, 0)
        return self.ledger

    def covering(self, txn: ReadTxn, head: Head, position: int) -> TailLedger:
        """Return a ledger that covers ``position``."""
        found = self.recent(txn, head)
        return found if position >= found.offset else self.full(txn, head)

    def first_read(self, txn: ReadTxn, head: Head, start: int, stop: int) -> TailLedger:
        """Return a ledger for the first read of items, at positions ``start .. stop``.

        It covers only these: opening a file to read the end of one session need not wait for the
        rest of its index. If they include a result whose call precedes them, or an event that
        abandons such a call, the counts depend on earlier items, so more is loaded.
        """
        self.was_read = True
        ledger = self.load(txn, start=start, stop=stop)
        if start and ledger.unbound:
            return self.recent(txn, head)
        return TailLedger(start, ledger, 0, 0)

    def _open_end(self, txn: ReadTxn, head: Head) -> TailLedger:
        """Load the end of a long history from a user item on, else the whole history."""
        offset = self.history.count - RECENT_RECORDS
        if offset > RECENT_RECORDS:
            ledger = self.load(txn, start=offset)
            start = ledger.first_of(ItemKind.USER)
            if start > 0:
                ledger = self.load(txn, start=offset + start)
            if start >= 0 and not ledger.unbound:
                before = head.tokens - ledger.tokens, head.open_calls - ledger.open_count
                # Below 0, the totals in the head cannot be right, and the whole history is counted.
                if min(before) >= 0:
                    return TailLedger(offset + start, ledger, *before)
        return TailLedger(0, self.load(txn), 0, 0)

    def load(
        self,
        txn: ReadTxn,
        *,
        start: int = 0,
        stop: int | None = None,
        history: History | None = None,
    ) -> Ledger:
        """Load a ledger of positions ``start .. stop`` of the live (or the given) history."""
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
        spans: Iterable[tuple[int, int, int, int]],
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
                msg = f"the index of session {session} lacks {counted(wanted, 'record')}"
                raise CorruptValueError(f"{msg}; run 'memcore check'", key=key)

    def current_view(self, txn: ReadTxn) -> StoredView | None:
        """Return the view that applies to the live history. Needs ``lock``, after ``catch_up``."""
        head = self.head
        assert head is not None  # noqa: S101 - guaranteed by catch_up
        wanted = (head.epoch, head.view_session, head.view_number)
        if self.view is None or self.view[0] != wanted:
            found = resolve_view(txn, self.scope, *wanted[1:], lambda seq: self._chain_at(txn, seq))
            self.view = (wanted, found)
        return self.view[1]

    def chosen_view(self, txn: ReadTxn, view: View | int) -> StoredView | None:
        """Return a view of the chain that applies to the live history; None for 0: no view.

        Raises:
            NotFoundError: there is no such view, or the history was cut back below it.
            InvalidOptionError: ``view`` is neither a View nor a number.
        """
        head = self.head
        assert head is not None  # noqa: S101 - guaranteed by catch_up
        chain = view_chain(txn, self.scope, head.view_session, head.view_number)
        return choose_view(chain, view, lambda seq: self._chain_at(txn, seq))

    def _chain_at(self, txn: ReadTxn, seq: int) -> int | None:
        return self.history.chain_at(txn, self.scope, seq)

    def masks(self, txn: ReadTxn, stored: StoredView | None) -> dict[int, Mask]:
        """Return the masks in force under a view, by seq. Needs ``lock``, after ``catch_up``."""
        assert self.head is not None  # noqa: S101 - guaranteed by catch_up
        return self._masks.under(txn, self.scope, stored, (self.head.epoch, self.history))

    def seen_through(self, ledger: Ledger, offset: int, masks: dict[int, Mask]) -> AnyLedger:
        """Return the ledger of positions from ``offset`` on, with masked items at masked size."""
        return self._masks.seen_through(ledger, offset, masks, self.history)

    def rows(self, txn: ReadTxn, start: int, stop: int) -> Iterator[StoredRow | CorruptValueError]:
        """Yield the rows at positions ``start .. stop``; errors for damaged or missing ones."""
        for position, session, lo, hi in self.history.spans(start, stop):
            yield from read_rows(txn, self.scope, session, position=position, lo=lo, hi=hi)


def read_rows(
    txn: ReadTxn, scope: int, session: int, *, position: int, lo: int, hi: int
) -> Iterator[StoredRow | CorruptValueError]:
    """Yield the rows of seqs ``lo .. hi`` that ``session`` owns, likewise."""
    start = keys.session_row(scope, session, Row.ITEM, lo)
    expected = lo
    shift = position - lo
    for key, value in txn.scan(start, keys.session_row(scope, session, Row.ITEM, hi + 1)):
        if len(key) != len(start):
            continue  # a damaged key maps to no seq: its item counts as missing
        seq = keys.number_of(key)
        if seq != expected:
            for missing in range(expected, seq):
                yield missing_row(scope, session, missing)
        # Set before the row is opened: a damaged row must not be reported as missing, too.
        expected = seq + 1
        try:
            flags, body = open_value(key, value)
        except CorruptValueError as exc:
            yield exc
            continue
        yield seq + shift, seq, flags, body
    for missing in range(expected, hi + 1):
        yield missing_row(scope, session, missing)


def sound(row: StoredRow | CorruptValueError) -> StoredRow:
    """Return the row if it is not damaged.

    Raises:
        CorruptValueError: it is damaged.
    """
    if isinstance(row, CorruptValueError):
        raise row
    return row


def missing_row(scope: int, session: int, seq: int) -> CorruptValueError:
    """Return the error that stands in for an item without a row."""
    key = keys.session_row(scope, session, Row.ITEM, seq)
    msg = f"item {seq} of session {session} is missing (key {key.hex()}); run 'memcore check'"
    return CorruptValueError(msg, key=key)
