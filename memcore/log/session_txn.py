"""A session inside a write transaction: reads, appends and other changes before the commit.

All closures of a batch that touch the same session share one SessionTxn (in ``txn.local``). It
binds new items on an overlay of the shared ledger; ``finish`` writes the rows, and after the commit
the shared CachedSession adopts them. A failed change is rolled back to the mark before it and has
written nothing, so the other changes in the batch are unaffected.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from struct import unpack
from threading import RLock
from typing import TYPE_CHECKING, Final, NoReturn
from weakref import WeakSet, WeakValueDictionary

from memcore import blobs
from memcore._fast import AppendingTxn, DraftFields, Ledger
from memcore.errors import CorruptValueError, InternalError, NotFoundError, RevisionConflict
from memcore.log.checkpoint import CheckpointRow
from memcore.log.history import (
    CachedSession,
    CounterOf,
    History,
    StoredRow,
    TailLedger,
    read_rows,
    sound,
)
from memcore.log.read import stored_items, tokens_of
from memcore.model import Receipt
from memcore.rows import index, lifecycle
from memcore.rows.head import Head
from memcore.rows.index import NO_COUNTS, Counts, write_counts
from memcore.rows.item import Prepared, orphan_error, salted
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter

__all__ = [
    "CachedSessions",
    "SessionGone",
    "SessionTxn",
    "SessionTxns",
    "rebase_counts",
]


# --- Token counts carried over from one live history of a session to another ----------------------
# Token pages count by position; index records by whatever counter counted first. So the pages that
# a head points to hold for the items that both histories begin with; of the rest, items without a
# record by the session's counter are recounted. A session that was never recounted has no token
# pages.


def rebase_counts(
    txn: Txn, place: tuple[int, int], head: Head, counter: TokenCounter, *, old: History
) -> None:
    """Make a head's pointer to token pages valid for its history, as it is for ``old``.

    ``place`` is scope and session of the head. Writes pages only if some item must be counted.

    Raises:
        CorruptValueError: an item that must be counted, or an index page, is damaged.
    """
    scope, session = place
    new = History(head.all_segments(txn, scope))
    counts = Counts.of(head)
    known = min(old.shared_with(new), old.position_from(counts.stop))
    tag = index.counter_tag(counter.id)
    edge = new.position_from(counts.stop)
    if edge <= known and all(by == tag for _, by in _recorded(txn, scope, new, edge)):
        return
    tokens = array("I", unpack(f"<{known}I", counts.read(txn, scope, 0, known)))
    for at, (count, by) in enumerate(_recorded(txn, scope, new, known), known):
        tokens.append(count if by == tag else _counted(txn, scope, new, at, counter))
    own = Counts(session, max(head.epoch, 1), head.next_seq) if tokens else NO_COUNTS
    head.epoch = max(head.epoch, own.number)
    write_counts(txn, scope, own, tokens)
    own.point(head)


def _recorded(txn: ReadTxn, scope: int, history: History, start: int) -> Iterator[tuple[int, int]]:
    """Yield each item's recorded tokens and its counter's tag, from a position on."""
    for _, session, lo, hi in history.spans(start, history.count):
        for record in index.every_record(txn, scope, session, lo, hi):
            tokens, _, _, tag = index.RECORD.unpack_from(record)
            yield tokens, tag


def _counted(txn: ReadTxn, scope: int, history: History, at: int, counter: TokenCounter) -> int:
    item, encoded = next(stored_items(txn, scope, history, at, at + 1))
    return tokens_of(item, encoded, counter)


# --- A session as seen and changed by one write transaction ---------------------------------------


class SessionGone(Exception):  # noqa: N818 - a signal to Drafts, never seen outside
    """The session has no live head."""


class SessionTxn(AppendingTxn):
    """The working copy of one session inside one transaction."""

    __slots__ = ()
    receipt_type = Receipt
    txn: Txn
    log: CachedSession
    head: Head
    base: TailLedger

    def _open(self, new_head: Head | None, base: TailLedger | None) -> None:
        """Begin from the stored head, or from one created by this transaction."""
        txn, log = self.txn, self.log
        # Leaders take it inside their transaction: nobody who holds it may wait for the lead.
        with log.lock:
            if new_head is not None:
                log.begin(txn, new_head)
                self.head = new_head
            elif log.catch_up(txn):
                assert log.head is not None  # noqa: S101 - guaranteed by catch_up
                self.head = log.head.changed()
            else:
                raise SessionGone
            # A new head (a fork's) still carries its parent's totals, so count the whole history.
            at_hand = log.recent if new_head is None else log.full
            self.base = base or at_hand(txn, self.head)
            self.tail = log.tail

    # --- contents ---------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Live items, including the draft's own."""
        return self.head.count

    @property
    def last_seq(self) -> int:
        """The last live seq, 0 if the history is empty."""
        segments = self.head.segments
        return segments[-1].hi if segments else 0  # trim empties it only if nothing is live

    @property
    def tokens(self) -> int:
        """Tokens of the live history, including the draft's own items."""
        return self.base.tokens_before + self.overlay.tokens

    @property
    def open_calls(self) -> int:
        """Unanswered calls, including those of the draft's own items."""
        return self.base.open_before + self.overlay.open_count

    @property
    def orphans(self) -> int:
        """Results without a call among the draft's own items."""
        return self.overlay.unbound - self.base.ledger.unbound

    if TYPE_CHECKING:

        def receipt(self, count: int) -> Receipt:
            """Return the receipt of a change that appended ``count`` items."""

    def expect(self, revision: int | None) -> None:
        """Check the caller's expected revision.

        Raises:
            RevisionConflict: the session has moved on.
        """
        if revision is not None and revision != self.head.revision:
            raise revision_conflict(revision, self.head.revision)

    # --- changes ----------------------------------------------------------------------------------

    def _refuse_orphan(self, item: Prepared, at: int) -> NoReturn:
        raise orphan_error(item, at)

    def lay_aside(self, items: Sequence[Prepared], *, after: int | None = None) -> None:
        """Store items that are never live, chained to the own seq ``after`` (None: the last one).

        They consume seqs, as if appended and undone. This writes, so ``restore`` cannot undo it.
        """
        # Live items first: the prefix hash in the head has to cover them.
        self.flush()
        head = self.head
        chain, first = head.chain, head.next_seq
        head.chain = self.own_chain(first - 1 if after is None else after)
        head.next_seq += len(items)
        self.waiting = list(enumerate(items, first))
        self.flush()
        head.chain = chain  # the live history continues as if they did not exist

    def own_chain(self, seq: int) -> int:
        """Return the prefix hash at an own item, live or not; 0 before a session's first."""
        self.flush()
        return index.chain_of(self.txn, *self.log.place, seq) if seq else 0

    def _whole(self) -> TailLedger:
        """Return the ledger of the whole history that ``base`` is the end of."""
        # ``full`` replaces the ledger that readers share; they hold this lock, too.
        with self.log.lock:
            committed = self.log.head
            if committed is not None and committed.epoch == self.head.epoch:
                return self.log.full(self.txn, committed)
        # The base was cut in this transaction, so it represents this draft's own history.
        self.flush()
        history = History(self.head.all_segments(self.txn, self.log.scope))
        ledger = self.log.load(self.txn, stop=self._committed(), history=history)
        return TailLedger(0, ledger, 0, 0)

    def _committed(self) -> int:
        """Return the number of positions that ``base`` represents."""
        return self.base.offset + len(self.base.ledger)

    def _rebase_on_whole(self) -> None:
        """Rebind the transaction's own items on the ledger of the whole history."""
        base = self._whole()
        overlay = Ledger(base=base.ledger)
        for facts, tokens in self.overlay.appended():
            overlay.push(facts, tokens)
        self.base, self.overlay = base, overlay

    def last_rows(self, count: int) -> list[StoredRow]:
        """Return the rows of the last ``count`` live items; CorruptValueError if one is damaged."""
        return [sound(row) for row in self.last_found(count)]

    def last_found(self, count: int) -> list[StoredRow | CorruptValueError]:
        """As ``last_rows``, with errors in place of damaged rows."""
        self.flush()
        head, scope = self.head, self.log.scope
        held = count <= head.count - head.base_count
        history = History(head.segments if held else head.all_segments(self.txn, scope))
        before = head.count - history.count
        rows: list[StoredRow | CorruptValueError] = []
        for position, session, lo, hi in history.spans(history.count - count, history.count):
            at = before + position
            rows += read_rows(self.txn, scope, session, position=at, lo=lo, hi=hi)
        return rows

    def tokens_at(self, position: int) -> int:
        """Return the tokens of the live item at a position."""
        known = self._committed()
        if position >= known:
            return self.overlay.appended_tokens(position - known)
        if position < self.base.offset:
            self._rebase_on_whole()
        at = position - self.base.offset
        return self.base.ledger.sum_between(at, at + 1)

    def cut_to(self, count: int) -> None:
        """Keep the first ``count`` live items; the rows stay, only the live history shrinks."""
        if count == self.head.count:
            return
        # What is cut off keeps its seqs, and ``chain_at`` reads index rows: all must be written.
        self.flush()
        self.base = self.ledger_of(count)
        self.overlay = Ledger(base=self.base.ledger)
        self.head.trim(self.txn, self.log.scope, count)
        self.head.epoch += 1
        self.head.chain = self.chain_at(self.last_seq) if self.head.count else 0

    def ledger_of(self, count: int) -> TailLedger:
        """Return a new ledger of the first ``count`` live items, or of their end."""
        if count < self.base.offset:
            self._rebase_on_whole()
        # A copy: the cache shares the ledger, which must not lose items if this is rolled back.
        ledger = self.base.ledger.copy()
        for facts, tokens in self.overlay.appended():
            ledger.push(facts, tokens)
        ledger.truncate(count - self.base.offset)
        return self.base._replace(ledger=ledger)

    def chain_at(self, seq: int) -> int:
        """Return the prefix hash at a live seq.

        Raises:
            NotFoundError: it is not live.
        """
        self.flush()
        found = self.locate(seq)
        if found is None:
            msg = f"item {seq} is not in the live history"
            raise NotFoundError(msg)
        if found[1] == self.log.session and self.tail is not None and self.tail[0] <= seq:
            return index.chain_in(self.tail, seq)
        return index.chain_of(self.txn, self.log.scope, found[1], seq)

    def set_policy(self, policy: str) -> None:
        """Switch the session to another pair policy; rebuilds the ledger."""
        self.flush()
        self.head.policy = policy
        self.head.epoch += 1
        self._begin_anew()

    def move_to(self, saved: CheckpointRow) -> tuple[bool, int]:
        """Make a checkpoint the live history and current view.

        Returns:
            ``(changed, revived)``: whether the history changed, and the first seq that is live
            again, from which on all are; 0 if none is.

        Raises:
            CorruptValueError: its prefix hash does not match the items that it refers to.
        """
        self.flush()
        head, scope = self.head, self.log.scope
        old, new = History(head.all_segments(self.txn, scope)), saved.history(self.txn, scope)
        shared = old.shared_with(new)
        if shared == new.count:
            self.cut_to(new.count)
        else:
            head.epoch += 1
            saved.put_in(head)
            rebase_counts(self.txn, self.log.place, head, self.log.counter, old=old)
            self._begin_anew()
            head.chain = self.chain_at(self.last_seq)
        # Also after a cut: the index may have been damaged since the checkpoint was made.
        if head.chain != saved.chain:
            raise saved.mismatch()
        head.view_session, head.view_number = saved.view
        return old.segments != new.segments, new.seq_at(shared) if shared < new.count else 0

    def _begin_anew(self) -> None:
        """Rebuild the ledger for a head with another history or policy."""
        # ``begin`` leaves no head in the shared cache, so that a reader meanwhile starts over from
        # the committed one; it must not adopt this draft, and is emptied after the commit.
        self.is_rebased = True
        with self.log.lock:
            self.log.begin(self.txn, self.head)
            self.base = self.log.full(self.txn, self.head)
        self.overlay = Ledger(base=self.base.ledger)

    def position_of(self, seq: int) -> int | None:
        """Return the position of a live seq, None if it is not live."""
        found = self.locate(seq)
        return None if found is None else found[0]

    def locate(self, seq: int) -> tuple[int, int] | None:
        """Return ``(position, owner session)`` of a live seq, None if it is not live."""
        segments, before = self.head.segments, self.head.base_count
        if self.head.link_block and seq < segments[0].lo:
            segments, before = self.head.all_segments(self.txn, self.log.scope), 0
        history = History(segments)
        position = history.position_of(seq)
        return None if position is None else (before + position, history.locate(position)[0])

    # --- writing ----------------------------------------------------------------------------------

    def _append_records(self, first: int, records: Sequence[bytes]) -> index.Tail:
        """Write index records that begin a page or complete a block."""
        own_first = self.head.parent_seq + 1
        place, tail = self.log.place, self.tail
        return index.append_records(
            self.txn, *place, own_first=own_first, seq=first, records=records, tail=tail
        )

    def _special_body(self, item: Prepared) -> bytes:
        """Return the body of an item's row if it refers to a blob or is salted."""
        body = item.body if item.payload is None else self._body_with_blob(item, item.payload)
        return salted(body, self.txn.vault)

    def _body_with_blob(self, item: Prepared, payload: bytes) -> bytes:
        scope = self.log.scope  # acquire raises StagedBlobLost if the staged blob is gone
        ref: blobs.BlobRef = item.staged or blobs.write(self.txn, scope, payload, seed=self.seed)
        blobs.acquire(self.txn, scope, ref)
        return item.body + ref.pack()

    def _put_held(self, seq: int, item: Prepared) -> None:
        """Quarantine an item's original."""
        assert item.held is not None  # noqa: S101 - checked by the caller
        lifecycle.put_held(self.txn, self.log.scope, self.log.session, seq, item.held)

    def _spill(self) -> None:
        self.head.spill(self.txn, self.log.scope, self.log.session)

    def mark(self) -> tuple[object, ...]:
        """Return what ``restore`` needs to undo changes that have not been written."""
        return self.head.changed(), self.base, self.overlay, len(self.overlay), self.waiting.copy()

    def restore(self, mark: tuple[object, ...]) -> None:
        """Roll back to a mark of the same transaction, if nothing was written since."""
        self.head, self.base, self.overlay, length, self.waiting = mark  # type: ignore[assignment]
        self.overlay.truncate(length)  # type: ignore[arg-type]


def revision_conflict(expected: int, current: int) -> RevisionConflict:
    """Return the error of a failed compare-and-set."""
    msg = (
        f"expected revision {expected}, the session is at {current}: read what was written since "
        "and try again"
    )
    return RevisionConflict(msg, expected=expected, current=current)


# --- Registries: one log per session of a database, one draft per session of a transaction --------

CLOSED: Final = "closed"
"""Marks in ``txn.local`` the sessions whose draft was closed, with their shared log."""

_all_logs: WeakSet[CachedSessions] = WeakSet()


class CachedSessions:
    """All CachedSession objects of a database in this process."""

    __slots__ = ("__weakref__", "_lock", "_logs", "_resolve_counter")

    def __init__(self, resolve_counter: CounterOf) -> None:
        self._logs: WeakValueDictionary[tuple[int, int], CachedSession] = WeakValueDictionary()
        self._lock = RLock()
        self._resolve_counter = resolve_counter
        _all_logs.add(self)

    def get(self, scope: int, session: int) -> CachedSession:
        """Return the single CachedSession of a session."""
        with self._lock:
            log = self._logs.get((scope, session))
            if log is None:
                made = CachedSession(scope, session, self._resolve_counter)
                # A destructor run on this thread may have registered one meanwhile.
                log = self._logs.setdefault((scope, session), made)
            return log

    def forget_scope(self, scope: int) -> None:
        """Drop everything cached for a scope's sessions."""
        with self._lock:
            refs = list(self._logs.valuerefs())  # a destructor may add one to the logs themselves
        # Outside the lock: a read holds its log's lock for as long as it takes.
        found = [log for ref in refs if (log := ref()) is not None and log.scope == scope]
        for log in found:
            log.forget_all()

    def start_over(self) -> None:
        """Reset locks in a forked child, which has no other thread that could release them."""
        self._lock = RLock()
        # What a thread was changing at the fork may be half done: it is read again.
        for log in list(self._logs.values()):
            log.lock = RLock()
            log.forget()


def _after_fork_in_child() -> None:
    for logs in list(_all_logs):
        logs.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class SessionTxns(DraftFields):
    """The drafts of one database: finds or creates a session's draft in a transaction."""

    __slots__ = ("_logs",)
    draft_type = SessionTxn
    session_gone = SessionGone
    closed = CLOSED

    def __init__(self, logs: CachedSessions, seed: bytes) -> None:
        self._logs = logs
        self.seed = int.from_bytes(seed[:8], "little")

    def open(self, txn: Txn, scope: int, session: int) -> SessionTxn | None:
        """Return a session's draft, None if the session is gone."""
        found: SessionTxn | None = self.of(txn, self._logs.get(scope, session))
        return found

    def close(self, txn: Txn, draft: SessionTxn) -> None:
        """Close the draft of a deleted or stale session; later closures reopen the session."""
        place = draft.log.place
        del txn.local[place]
        # Of several drafts closed in turn only the first has the shared log; the others' are twins.
        shared: CachedSession = txn.local.setdefault((CLOSED, place), draft.log)
        # Its callback may be queued already: the cache must be emptied then, not adopt it.
        draft.drop()
        txn.on_commit(shared.forget_all)

    def flush_opened(self, txn: Txn, scope: int, session: int) -> None:
        """Write the pending changes of a session's draft, if this transaction has one."""
        if not txn.local:
            return
        draft: SessionTxn | None = txn.local.get(self._logs.get(scope, session).place)
        if draft is not None:
            draft.flush()

    def close_unused(self, txn: Txn, scope: int, session: int) -> None:
        """As ``close``, for callers that change the session's rows without a draft."""
        log = self._logs.get(scope, session)
        draft: SessionTxn | None = txn.local.get(log.place)
        if draft is not None:
            self.close(txn, draft)
            return
        # Marked, so that a draft opened later in this transaction gets a log of its own.
        shared: CachedSession = txn.local.setdefault((CLOSED, log.place), log)
        txn.on_commit(shared.forget_all)

    def start_over(self, txn: Txn, scope: int, session: int, head: Head) -> SessionTxn:
        """Return a session's draft that continues from a head other than the stored one.

        The caller must close it; the shared log never sees it.
        """
        self.close_unused(txn, scope, session)
        log = self._logs.get(scope, session).twin()
        draft = txn.local[log.place] = SessionTxn(txn, log, self.seed, head)
        return draft

    def create(
        self, txn: Txn, scope: int, session: int, head: Head, *, base: TailLedger | None = None
    ) -> SessionTxn:
        """Return the draft of a session created by this transaction; ``base``: its known ledger."""
        log = self._logs.get(scope, session)
        if log.place in txn.local:
            msg = f"session {session} is created twice in one transaction"
            raise InternalError(msg)
        draft = txn.local[log.place] = SessionTxn(txn, log, self.seed, head, base)
        return draft
