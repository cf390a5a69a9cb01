"""Recount of a session: another token counter, counted outside, put into force by one commit.

Ordinary changes never modify item rows, so a count stays valid whatever happens to the session
meanwhile. The commit keeps the counts of the items that are live then and counts the few that are
new; if there are more of these than it may count, the missing ones are counted outside first. The
limit quadruples with each attempt, so a steady writer cannot postpone the commit forever.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import field
from functools import partial
from struct import iter_unpack
from typing import Final, TypeAlias

from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError, LeaseHeldError, NotFoundError, PolicyMismatchError
from memcore.faces import logger
from memcore.limits import ITEMS_PAGE, RECOUNT_FORKS_MAX, RECOUNT_PAGE_BYTES
from memcore.log import CachedSession, Head, History, new_ledger
from memcore.log.read import Stored, stored_items, tokens_of
from memcore.model import RecountResult
from memcore.options import checked_callable
from memcore.records import record
from memcore.rows.head import head_key
from memcore.rows.index import NO_COUNTS, RECORD, Counts, drop_counts, records, write_counts
from memcore.session.engine import SessionRef
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter
from memcore.wire import get_policy

__all__ = [
    "counter_id",
    "recount",
    "recount_lazily",
]


Progress: TypeAlias = Callable[[int, int], None]
Place: TypeAlias = tuple[int, int]
"""``(scope, session)``"""

_ALLOWED_FIRST: Final = 64
_log = logger()


@record(slots=True)
class _Counted:
    """The counts so far, of the first items of a history."""

    place: Place
    history: History = field(default_factory=lambda: History([]))
    tokens: array[int] = field(default_factory=lambda: array("I"))

    def shared_with(self, place: Place, history: History) -> int:
        """Count the leading items of a history that are already counted."""
        if place != self.place:
            return 0
        return min(self.history.shared_with(history), len(self.tokens))


def counter_id(ref: SessionRef) -> str:
    """Return the id of the session's counter, which need not be available."""
    ref.touch()
    head = ref.peek()
    wanted = ref.options.counter or ref.engine.counter
    return wanted.id if head is None else head.counter


def recount_lazily(ref: SessionRef) -> bool:
    """Recount on a handle's first use; return False to run again next time.

    A damaged item must not make the others unreadable: a session that cannot be counted keeps its
    counter, unless this handle explicitly asked for another one.

    Raises:
        CorruptValueError: an item is damaged, and the handle names its counter.
    """
    wanted = ref.options.counter or ref.engine.counter
    head = ref.peek()
    if head is None or head.counter == wanted.id:
        return head is not None
    try:
        done = recount(ref, wanted, None)
    except (NotFoundError, LeaseHeldError):
        return False  # deleted meanwhile, or leased to another owner for now
    except CorruptValueError as exc:
        if ref.options.counter is not None:
            raise
        _log.warning("session %r keeps counter %r: %s", ref.name, head.counter, exc)
    else:
        if done.counter_before != done.counter:  # otherwise someone else was faster
            _log.info(
                "session %r: recounted %d items, %d tokens by %r instead of %d by %r",
                *(ref.name, done.items, done.tokens, done.counter),
                *(done.tokens_before, done.counter_before),
            )
    return True


def recount(
    ref: SessionRef,
    counter: TokenCounter,
    progress: Progress | None,
    *,
    anew: bool = False,
    dry_run: bool = False,
) -> RecountResult:
    """Count all live items; NotFoundError if there is no session.

    ``anew``: also recount what this counter counted, because items were rewritten; ignores leases.
    ``dry_run``: nothing is stored.
    """
    engine = ref.engine
    if not dry_run:
        ref.refuse_read_only()
    checked_callable("progress", progress)
    # The head will hold only its id, by which other handles have to find it.
    engine.counters.setdefault(counter.id, counter)
    counted = _Counted((0, 0))
    allowed = 0
    while True:
        done = None
        if not anew:
            done = engine.store.read(lambda txn: _unchanged(ref, txn, counter))
        if done is None:
            counted = _count(ref, counted, counter, progress)
            if dry_run:
                return engine.store.read(partial(_foreseen, ref, counted, counter))
            done = engine.store.transact(
                lambda txn, counted=counted, allowed=allowed: _apply(  # type: ignore[misc]
                    ref, txn, counted, counter, allowed, anew=anew
                )
            )
        if done is not None:
            return done
        allowed = max(_ALLOWED_FIRST, 4 * allowed)


# --- Current state --------------------------------------------------------------------------------


def _find(ref: SessionRef, txn: ReadTxn) -> tuple[Place, Head]:
    """Return the session as seen by the transaction.

    Raises:
        NotFoundError: there is no session.
    """
    place = ref.find(txn)
    if place is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    value = txn.get(head_key(*place))
    if value is None:
        raise ref.headless(*place)
    return place, Head.unpack(head_key(*place), value)


def _unchanged(ref: SessionRef, txn: ReadTxn, counter: TokenCounter) -> RecountResult | None:
    """Return the result if the session already uses this counter and its counts are sound."""
    place, head = _find(ref, txn)
    if head.counter != counter.id:
        return None
    try:
        totals = _totals(txn, place, head, counter)
    # Counts that cannot be read, or are another counter's, are what a recount is for.
    except (CorruptValueError, PolicyMismatchError):
        return None
    if totals != (head.tokens, head.open_calls):
        return None
    return RecountResult(0, head.counter, head.counter, head.tokens, head.tokens)


# --- Counting -----------------------------------------------------------------------------------


def _count(
    ref: SessionRef, counted: _Counted, counter: TokenCounter, progress: Progress | None
) -> _Counted:
    """Count the current history, one page per read transaction; reuses what is ``counted``."""
    read = ref.engine.store.read

    def begin(txn: ReadTxn) -> _Counted:
        place, head = _find(ref, txn)
        history = History(head.all_segments(txn, place[0]))
        # What precedes an item never changes, so the counts of the common beginning hold.
        shared = counted.shared_with(place, history)
        return _Counted(place, history, counted.tokens[:shared])

    found = read(begin)
    total = found.history.count
    while len(found.tokens) < total:
        page = read(lambda txn: _page(ref, txn, found))
        found.tokens.extend(tokens_of(item, encoded, counter) for item, encoded in page)
        if progress is not None:
            progress(len(found.tokens), total)
    return found


def _page(ref: SessionRef, txn: ReadTxn, counted: _Counted) -> list[Stored]:
    place, _ = _find(ref, txn)
    if place != counted.place:
        msg = f"session {ref.name!r} was deleted while it was recounted"
        raise NotFoundError(msg)
    start, page, size = len(counted.tokens), [], 0
    for stored in stored_items(txn, place[0], counted.history, start, start + ITEMS_PAGE):
        page.append(stored)
        size += len(stored[1])
        if size >= RECOUNT_PAGE_BYTES:
            break
    return page


# --- The commit ---------------------------------------------------------------------------------


def _apply(
    ref: SessionRef,
    txn: Txn,
    counted: _Counted,
    counter: TokenCounter,
    allowed: int,
    *,
    anew: bool = False,
) -> RecountResult | None:
    """Put the counts into force; None if more than ``allowed`` items remain to be counted."""
    done = None if anew else _unchanged(ref, txn, counter)
    if done is not None:
        return done  # someone else was faster
    place, head = _find(ref, txn)
    if not anew:
        ref.admit(txn, place)
    scope, session = place
    history = History(head.all_segments(txn, scope))
    shared = counted.shared_with(place, history)
    if history.count - shared > allowed:
        return None
    # A copy: a run that is repeated has to find ``counted`` as it was.
    tokens = counted.tokens[:shared]
    tokens.extend(
        tokens_of(item, encoded, counter)
        for item, encoded in stored_items(txn, scope, history, shared, history.count)
    )
    before = head.counter, head.tokens
    if anew and counter.id == head.counter and tokens == _known(txn, scope, head, history):
        return RecountResult(0, *2 * (head.counter,), *2 * (head.tokens,))
    head.counter = counter.id
    head.epoch += 1  # all handles reread it
    counts = Counts(session, head.epoch, head.next_seq) if tokens else NO_COUNTS
    keep = _referred(txn, scope, session)
    # Nothing was written so far: an error leaves other changes of the batch unaffected.
    ref.engine.drafts.close_unused(txn, scope, session)
    if keep is not None:
        drop_counts(txn, scope, session, keep=keep)
    write_counts(txn, scope, counts, tokens)
    counts.point(head)
    # From the pages just written: a history loaded from its end subtracts from these totals.
    head.tokens, head.open_calls = _totals(txn, place, head, counter)
    txn.put(head_key(*place), seal_value(head_key(*place), head.pack()))
    return RecountResult(head.count, before[0], counter.id, before[1], head.tokens)


def _foreseen(
    ref: SessionRef, counted: _Counted, counter: TokenCounter, txn: ReadTxn
) -> RecountResult:
    """Return what ``_apply`` would return for these counts."""
    (scope, _), head = _find(ref, txn)
    ledger, counts = new_ledger(get_policy(head.policy), counter), iter(counted.tokens)
    for _, owner, lo, hi in counted.history.spans(0, counted.history.count):
        for each in records(txn, scope, owner, lo, hi):
            ledger.push(each[RECORD.size :], next(counts))
    return RecountResult(head.count, head.counter, counter.id, head.tokens, ledger.tokens)


def _known(txn: ReadTxn, scope: int, head: Head, history: History) -> array[int]:
    """Read the stored counts of a head's live history."""
    counts = Counts.of(head)
    edge = min(history.position_from(counts.stop), history.count)
    found = array("I", (n for (n,) in iter_unpack("<I", counts.read(txn, scope, 0, edge))))
    for _, owner, lo, hi in history.spans(edge, history.count):
        found.extend(RECORD.unpack_from(each)[0] for each in records(txn, scope, owner, lo, hi))
    return found


def _totals(txn: ReadTxn, place: Place, head: Head, counter: TokenCounter) -> tuple[int, int]:
    """Return tokens and open calls of a head's live history."""
    log = CachedSession(*place, lambda _: counter)
    log.begin(txn, head)
    ledger = log.full(txn, head).ledger
    return ledger.tokens, ledger.open_count


def _referred(txn: ReadTxn, scope: int, session: int) -> set[int] | None:
    """Return the session's recounts that its forks, direct or not, refer to; None if too many."""
    found: set[int] = set()
    todo, seen = [session], 0
    while todo:
        start = keys.session_rows(scope, todo.pop(), Row.CHILD)
        for row, _ in txn.scan(start, keys.after(start)):
            seen += 1
            # Pages that nobody needs cost room; removing one that a fork needs, its counts.
            if seen > RECOUNT_FORKS_MAX:
                return None
            fork = keys.number_of(row)
            value = txn.get(head_key(scope, fork))
            try:
                head = None if value is None else Head.unpack(head_key(scope, fork), value)
            except CorruptValueError:
                return None  # check() reports it; it may refer to any recount
            if head is not None and head.recount_session == session:
                found.add(head.recount_number)
            todo.append(fork)
    return found
