"""Recovery of a session with damaged or missing rows.

Uses nothing but the live rows, and concludes nothing that a checksum or a prefix hash does not
prove; if a head is lost, its history is traced back from the last item.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Final

from memcore._fast import record_spans
from memcore.codec import keys
from memcore.codec.keys import Row, session_row
from memcore.codec.values import checksum_of, open_value, seal_value
from memcore.errors import (
    CorruptValueError,
    InvalidOptionError,
    LeaseHeldError,
    MemcoreError,
    NotFoundError,
    PolicyMismatchError,
)
from memcore.faces import logger
from memcore.limits import RECOVERY_STEPS
from memcore.log import CachedSession, Prepared, SessionTxn, prepare_event
from memcore.log.checkpoint import (
    CheckpointRow,
    checkpoint_numbers,
    checkpoint_states,
    last_number,
    mend_last,
    read_checkpoint,
    write_checkpoint,
)
from memcore.log.history import History, merged
from memcore.log.read import Stored, again, facts_of, opened, predecessor, tokens_of
from memcore.log.session_txn import rebase_counts
from memcore.model import Checkpoint
from memcore.options import checked_bool, checked_choices, counted
from memcore.records import record
from memcore.rows import index
from memcore.rows.head import Head, Segment, head_key
from memcore.rows.index import NO_COUNTS, Counts, recount_numbers
from memcore.rows.lifecycle import lease_key, read_lease
from memcore.rows.views import view_chain
from memcore.session.engine import SessionRef
from memcore.state import check_state, header_problem, mend_state, restore, state_counter
from memcore.store.interface import ReadTxn, Txn
from memcore.tokens import TokenCounter

__all__ = [
    "BEFORE_RECOVERY",
    "Recovery",
    "RecoveryStep",
    "Restoring",
    "SessionDiagnosis",
    "Survivors",
    "Way",
    "diagnose",
    "recover",
    "recover_lazily",
]


# --- Readable rows of one session in a file with damaged or missing rows --------------------------


class Survivors:
    """One session as described by its rows, each read independently."""

    def __init__(self, txn: ReadTxn, scope: int, session: int) -> None:
        self.txn = txn
        self.scope = scope
        self.session = session
        self.findings: list[str] = []
        """Problems, in words, with the rows that define the session's position."""
        self.unread: list[str] = []
        """Unreadable checkpoints, in words."""
        self.head = self._read_head()
        self.saved = list(self._read_saved())
        """Readable checkpoints, oldest first."""
        self.sums: dict[int, bytes] = {}
        """Checksums of the session's own intact items."""
        self.records: dict[int, bytes] = {}
        """Index records of the session's own items."""
        self.is_indexed = True
        """True if every index page of the session is intact."""
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
        """By own seq: its predecessor, as far as readable histories show it."""

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

    def _read_saved(self) -> Iterator[CheckpointRow]:
        for number in list(checkpoint_numbers(self.txn, self.scope, self.session)):
            try:
                saved = read_checkpoint(self.txn, self.scope, self.session, number)
            except CorruptValueError as exc:
                self.unread.append(str(exc))
                continue
            if saved is not None:
                yield saved

    def rows(self, row: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield number, key and value of the session's rows of one kind."""
        start = keys.session_row(self.scope, self.session, row, 0)
        for key, value in self.txn.scan(start, keys.after(start[:-8])):
            # A key of another length is damaged: no number can be read from it.
            if len(key) == len(start):
                yield keys.number_of(key), key, value

    def last_of(self, row: int) -> int:
        """Return the largest number of the session's rows of one kind, damaged ones included."""
        return max((number for number, _, _ in self.rows(row)), default=0)

    def _read_items(self) -> None:
        for seq, key, value in self.rows(Row.ITEM):
            with suppress(CorruptValueError):  # reported when it is needed
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
        """Return the session it was forked from (0: none), and the first seq of its own."""
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
        """True if the session's index lacks records."""
        return not self.is_indexed or any(
            seq not in self.records for seq in range(self.first, self.stop)
        )

    # --- histories --------------------------------------------------------------------------------

    def _known_before(self) -> dict[int, int]:
        found: dict[int, int] = {}
        heads: list[Head | CheckpointRow] = [
            *self.saved,
            *([] if self.head is None else [self.head]),
        ]
        for each in heads:
            with suppress(CorruptValueError):  # reported when its history is needed
                last = 0
                for owner, lo, hi in _segments(each, self.txn, self.scope):
                    if owner == self.session:
                        found[lo] = last
                        found.update((seq, seq - 1) for seq in range(lo + 1, hi + 1))
                    last = hi
        return found

    def live(self) -> History | None:
        """Return the live history according to the head; None if that cannot be read."""
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
        """Return the history up to the last live or own item, as far as prefix hashes prove it."""
        path: list[tuple[int, int]] = []
        last = self.stop - 1
        if self.head is not None:
            last = self.head.segments[-1].hi if self.head.segments else 0
        self._trace(last, path)
        return History(merged(reversed(path)))

    def _trace(self, last: int, path: list[tuple[int, int]]) -> None:
        """Walk back from ``last`` along this session's items and those of its ancestors."""
        above = self._above() if last >= self.first else None
        chains: dict[int, int | None] = {self.first - 1: 0}
        if self.first > 1:
            chains[self.first - 1] = None if above is None else above.chain_of(self.first - 1)
        before: dict[int, int] = {}
        for seq in range(self.first, last + 1):
            # If no history and no prefix hash tells: the seq before it, as after plain appends.
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
            above._trace(seq, path)  # noqa: SLF001 - same class

    def chain_of(self, seq: int) -> int | None:
        """Return a seq's recorded prefix hash; before the first own seq, an ancestor's."""
        if seq < self.first:
            above = self._above()
            return None if above is None else above.chain_of(seq)
        record = self.records.get(seq)
        return None if record is None else int(index.RECORD.unpack_from(record)[2])

    def _above(self) -> Survivors | None:
        if not self.parent or self.parent >= self.session:  # a fork always has a greater number
            return None
        if self._ancestor is None:
            self._ancestor = Survivors(self.txn, self.scope, self.parent)
        return self._ancestor

    # --- items ------------------------------------------------------------------------------------

    def examined(self, history: History) -> Iterator[tuple[int, int, Stored | str]]:
        """Yield ``(owner, seq, item or reason why it is unreadable)`` along a history."""
        for _, owner, lo, hi in history.spans(0, history.count):
            records = self.records if owner == self.session else self._records_of(owner, lo, hi)
            for seq in range(lo, hi + 1):
                found = self.item(owner, seq)
                # Only the session's own index is rebuilt; an ancestor's has to be recovered there.
                if not isinstance(found, str) and owner != self.session and seq not in records:
                    found = f"item {seq} of session {owner} has no index record"
                yield owner, seq, found

    def item(self, owner: int, seq: int) -> Stored | str:
        """Return one item, or the reason why it cannot be read."""
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
        # Items behind the damage are reported one by one, as items without a record.
        with suppress(CorruptValueError):
            for seq, _ in enumerate(index.records(self.txn, self.scope, owner, lo, hi), lo):
                found.add(seq)
        return found

    def sum_of(self, owner: int, seq: int) -> bytes | None:
        """Return the checksum of an intact item."""
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


def _segments(each: Head | CheckpointRow, txn: ReadTxn, scope: int) -> list[Segment]:
    if isinstance(each, Head):
        return each.all_segments(txn, scope)
    return each.history(txn, scope).segments


def _sessions_below(txn: ReadTxn, scope: int, session: int) -> Iterator[int]:
    """Yield a scope's sessions that have rows and smaller numbers, newest first."""
    start, stop = keys.session_prefix(scope, 0), keys.session_prefix(scope, session)
    while True:
        row = next(iter(txn.scan(start, stop, reverse=True, limit=1)), None)
        if row is None:
            return
        found = keys.split_session_prefix(row[0])[1]
        yield found
        stop = keys.session_prefix(scope, found)


# --- Diagnosis: problems of a session and its possible recoveries; writes nothing -----------------

Step = tuple[int, int]
"""``(owner session, seq)`` of an item."""


@record(slots=True)
class Way:
    """A position that a session may be moved to."""

    target: str
    """The position, in words."""
    serves: bool
    reason: str
    kept: History = field(default_factory=lambda: History([]))
    """History that stays live unchanged."""
    moved: list[Step] = field(default_factory=list)
    """Items that are appended again after it."""
    saved: CheckpointRow | None = None
    is_mended: bool = False
    """True if the history stays as it is, and only data derived from it is rewritten."""


@record(slots=True)
class SessionDiagnosis:
    """Diagnosis of a session."""

    survivors: Survivors
    counter: TokenCounter
    policy: str
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    live: History | None = None
    """The live history according to the head."""
    old: History = field(default_factory=lambda: History([]))
    """The live history, as far as it can be determined."""
    lost: list[int] = field(default_factory=list)
    """Its unreadable seqs."""
    readable: list[Step] = field(default_factory=list)
    is_counted: bool = False
    """True if the token pages that the head points to can be read."""
    view: tuple[int, int] = (0, 0)
    """The newest view of the session's chain that is readable with all its ancestors."""

    @property
    def count(self) -> int:
        """Items of the live history."""
        return self.old.count

    # --- possible recoveries ----------------------------------------------------------------------

    def ways(self, name: str) -> Iterator[Way]:
        """Yield the possible recoveries of one step, best first."""
        if name == "mend":
            yield self._mended()
        elif name == "checkpoint":
            yield from self._checkpoints()
        elif name == "log":
            yield self._log()
        else:
            yield Way("the empty session", serves=True, reason="nothing is live any more")

    def _mended(self) -> Way:
        target = "the live history"
        if self.live is None:
            return Way(target, serves=False, reason="it is not known: the head cannot be read")
        if self.lost:
            reason = f"{len(self.lost):,} of its {counted(self.count, 'item')} cannot be read"
            return Way(target, serves=False, reason=reason)
        return Way(
            target,
            serves=True,
            reason="all items can be read: what follows from them is made anew",
            kept=self.live,
            is_mended=True,
        )

    def _checkpoints(self) -> Iterator[Way]:
        survivors = self.survivors
        for text in survivors.unread:
            yield Way("a checkpoint", serves=False, reason=text)
        for saved in reversed(survivors.saved):
            try:
                history = saved.history(survivors.txn, survivors.scope)
            except CorruptValueError as exc:
                yield Way(saved.where, serves=False, reason=str(exc))
                continue
            problem = self._problem(saved, history)
            reason = problem or f"its {counted(history.count, 'item')} can be read"
            yield Way(saved.where, not problem, reason, history, saved=saved)
        if not survivors.saved and not survivors.unread:
            yield Way("a checkpoint", serves=False, reason="the session has none")

    def _problem(self, saved: CheckpointRow, history: History) -> str:
        """Return why a checkpoint is invalid; recomputes its prefix hash from its items."""
        survivors, chain = self.survivors, 0
        for owner, seq, found in survivors.examined(history):
            total = survivors.sum_of(owner, seq)
            if isinstance(found, str) or total is None:
                return found if isinstance(found, str) else f"item {seq} is damaged"
            chain = index.chain_after(chain, total)
        return "" if chain == saved.chain else "its items are not those that it was made of"

    def _log(self) -> Way:
        lost, good = set(self.lost), set(self.readable)
        steps = list(self.old.steps())
        count = self._joined(steps, good)
        kept = self.old.first(count)
        moved = [step for step in steps[count:] if step in good]
        target = "the log" if self.live is not None else "the log, traced back from its last item"
        if not count and not moved:
            return Way(target, serves=False, reason="no item of it can be read")
        stay = counted(count, "item stays", "items stay")
        reason = f"{stay}, {len(moved):,} appended once more, {len(lost):,} lost"
        return Way(target, serves=True, reason=reason, kept=kept, moved=moved)

    def _joined(self, steps: list[Step], good: set[Step]) -> int:
        """Count the leading items that are readable and were appended to each other."""
        survivors, chain = self.survivors, 0
        for count, (owner, seq) in enumerate(steps):
            total = survivors.sum_of(owner, seq)
            if total is None or (owner, seq) not in good:
                return count
            chain = index.chain_after(chain, total)
            if owner == survivors.session and survivors.chain_of(seq) not in (chain, None):
                return count  # it followed another item, so its index record cannot be rebuilt
        return len(steps)

    # --- items and views --------------------------------------------------------------------------

    def is_whole_view(self, owner: int, number: int) -> bool:
        """Return True if a view and all its ancestors can be read."""
        return not _broken_views(self.survivors, owner, number)

    def prepared(self, step: Step, *, seed: bytes) -> Prepared:
        """Return a readable item, prepared to be appended again."""
        survivors = self.survivors
        key = session_row(survivors.scope, step[0], Row.ITEM, step[1])
        value = survivors.txn.get(key)
        row = (0, step[1], *open_value(key, value or b""))
        return again(survivors.txn, survivors.scope, row, self.counter, seed)


def diagnose(
    survivors: Survivors, counter_named: Callable[[str], TokenCounter], default: tuple[str, str]
) -> SessionDiagnosis:
    """Examine everything that a session's operations depend on.

    ``default``: policy and counter for a session with neither head nor checkpoint left.

    Raises:
        CounterUnavailableError: the session's counter is not available.
    """
    live = survivors.live()
    policy, counter = default
    if survivors.head is not None:
        policy, counter = survivors.head.policy, survivors.head.counter
    elif survivors.saved:
        policy, counter = survivors.saved[-1].policy, survivors.saved[-1].checkpoint.counter
    found = SessionDiagnosis(survivors, counter_named(counter), policy, live=live)
    found.findings += survivors.findings
    found.notes += survivors.unread
    found.old = survivors.traced() if live is None else live
    for owner, seq, item in survivors.examined(found.old):
        if isinstance(item, str):
            found.lost.append(seq)
            found.findings.append(item)
        else:
            found.readable.append((owner, seq))
    if survivors.missing_records:
        found.findings.append("its index does not hold all of its items")
    if survivors.head is not None and survivors.stop > survivors.head.next_seq:
        found.findings.append("it has items that its head does not know: the head is an older one")
    _look_at_views(found)
    _look_at_counts(found)
    _look_at_state(found)
    if not found.findings:
        _look_at_totals(found)
    return found


def _look_at_views(found: SessionDiagnosis) -> None:
    survivors, head = found.survivors, found.survivors.head
    if head is not None:
        problem = _broken_views(survivors, head.view_session, head.view_number)
        if not problem:
            found.view = head.view_session, head.view_number
            return
        found.findings.append(problem)
    for number in sorted((n for n, _, _ in survivors.rows(Row.VIEW)), reverse=True):
        if not _broken_views(survivors, survivors.session, number):
            found.view = survivors.session, number
            break
    if found.view[1]:
        found.notes.append(f"view {found.view[1]} is made the current one")


def _broken_views(survivors: Survivors, owner: int, number: int) -> str:
    try:
        for _ in view_chain(survivors.txn, survivors.scope, owner, number):
            pass
    except CorruptValueError as exc:
        return str(exc)
    return ""


def _look_at_counts(found: SessionDiagnosis) -> None:
    head, live = found.survivors.head, found.live
    if head is None or live is None:
        return
    counts = Counts.of(head)
    try:
        edge = live.position_from(counts.stop)
        counts.read(found.survivors.txn, found.survivors.scope, 0, edge)
    except CorruptValueError as exc:
        found.findings.append(str(exc))
    else:
        found.is_counted = True


def _look_at_state(found: SessionDiagnosis) -> None:
    """Find what would prevent reading the state or saving a checkpoint."""
    survivors = found.survivors
    txn, place = survivors.txn, (survivors.scope, survivors.session)
    try:
        last_number(txn, *place)
    except CorruptValueError as exc:
        found.findings.append(f"the last number of its checkpoints: {exc}")
        found.notes.append("the numbers of deleted checkpoints may be given out again")
    known = [saved.checkpoint.state for saved in survivors.saved]
    pinned = [counter for counter in known if counter is not None]
    problem = header_problem(txn, *place, pinned=pinned)
    if problem:
        found.findings.append(problem)
        found.notes.append("of its state the values of now and of checkpoints are known, no others")
    else:
        found.notes += check_state(txn, *place, pinned=pinned)


def _look_at_totals(found: SessionDiagnosis) -> None:
    """Check that the session opens, once every row of it has been read."""
    survivors, head = found.survivors, found.survivors.head
    if head is None:
        return
    log = CachedSession(survivors.scope, survivors.session, lambda _: found.counter)
    try:
        log.begin(survivors.txn, head)
        ledger = log.full(survivors.txn, head).ledger
    except (MemcoreError, PolicyMismatchError) as exc:
        found.findings.append(str(exc))
        return
    if (ledger.tokens, ledger.open_count) != (head.tokens, head.open_calls):
        found.findings.append("its head has other totals than its index")


# --- Report of a recovery: findings, steps tried, and the result ----------------------------------


@record(frozen=True, slots=True)
class RecoveryStep:
    """A step that ``Session.recover`` considered."""

    name: str
    """``mend``, ``checkpoint``, ``log`` or ``empty``."""
    target: str
    """Position considered, in words."""
    serves: bool
    reason: str
    """Reason why it does not serve; for the one that does, what it makes of the session."""


@record(frozen=True, slots=True)
class Recovery:
    """Report of ``Session.recover``: findings, steps tried, and the result or the plan."""

    status: str
    """``sound``: nothing is wrong; ``recovered``; ``planned``: nothing was written; ``failed``: no
    permitted step serves, and nothing was written."""
    findings: tuple[str, ...] = ()
    """Problems of the session, in words."""
    steps: tuple[RecoveryStep, ...] = ()
    """Steps tried, in order; the last one served, if any did."""
    items: int = 0
    """Live items afterwards."""
    moved: int = 0
    """Number of these that were appended again, after the unreadable part."""
    lost: tuple[int, ...] = ()
    """Seqs of the unreadable items of the live history."""
    left_out: int = 0
    """Readable items that were live and no longer are."""
    checkpoint: Checkpoint | None = None
    """The checkpoint that the session went back to."""
    before: Checkpoint | None = None
    """Checkpoint of the session's old position, if it could be saved."""
    notes: tuple[str, ...] = ()
    """Guesses made, and damage that remains, in words."""


# --- Restoring: write index and head, and append items again, in one commit -----------------------

BEFORE_RECOVERY: Final = "before recovery"
"""Name of the checkpoint of a session's old position."""
_LEAP: Final = 1_000_000
"""Revisions and epochs skipped, as some may be lost: one ever handed out must never recur."""
_LOST_EVENT: Final = "lost"
_NO_SUM: Final = bytes(8)


class Restoring:
    """A recovery in progress."""

    def __init__(self, ref: SessionRef, txn: Txn, found: SessionDiagnosis, way: Way) -> None:
        self._engine = ref.engine
        self._log = ref.log
        self._txn = txn
        self._found = found
        self._way = way
        self._survivors = found.survivors
        self.notes: list[str] = []

    def run(self, moved: list[Prepared]) -> Checkpoint | None:
        """Write everything; return the checkpoint of the session's old position."""
        txn, found, way, survivors = self._txn, self._found, self._way, self._survivors
        scope, session = survivors.scope, survivors.session
        # The index first: prefix hashes, token counts and the ledger below are read from it.
        if survivors.missing_records:
            self._write_index()
        mend_last(txn, scope, session)
        mend_state(txn, scope, session, pinned=checkpoint_states(txn, scope, session))
        head = self._head()
        # Before the head moves: it saves the position that is about to be left.
        saved = None if way.is_mended else self._before(head)
        if not way.is_mended:
            head.segments = list(way.kept.segments)
            # All segments in the head, as blocks may be damaged; ``finish`` makes new ones.
            head.link_session = head.link_block = head.base_count = 0
            head.count = way.kept.count
        last = way.kept.count - 1
        head.chain = 0 if last < 0 else way.kept.chain_at(txn, scope, way.kept.seq_at(last)) or 0
        head.epoch += 1
        head.view_session, head.view_number = self._view()
        old = found.live
        if old is None or not found.is_counted:
            NO_COUNTS.point(head)
            # Without a known history and readable token pages no count can be taken over.
            old = History([])
        rebase_counts(txn, (scope, session), head, found.counter, old=old)
        if saved is not None:
            write_checkpoint(txn, scope, session, saved)
        self._restore_state(head.next_seq)
        drafts = self._engine.drafts
        draft: SessionTxn = drafts.start_over(txn, scope, session, head)
        if moved:
            # A result whose call was lost stays, as an orphan; contexts leave it out.
            draft.append(moved, orphans="keep")
        draft.finish(now_ms=self._engine.now_ms())
        drafts.close(txn, draft)
        return None if saved is None else saved.checkpoint

    # --- state ------------------------------------------------------------------------------------

    def _restore_state(self, seq: int) -> None:
        """Restore the state's values from the checkpoint that the session goes back to."""
        saved, survivors = self._way.saved, self._survivors
        counter = None if saved is None else saved.checkpoint.state
        if counter is None:
            return
        try:
            restore(self._txn, survivors.scope, survivors.session, counter, seq=seq)
        except (CorruptValueError, NotFoundError) as exc:
            self.notes.append(f"its state stays as it is: {exc}")

    # --- head -------------------------------------------------------------------------------------

    def _head(self) -> Head:
        """Return the old head, or a new one that accounts for all existing rows."""
        survivors, found = self._survivors, self._found
        if survivors.head is not None:
            head = survivors.head.changed()
            # An older head does not know the last seqs, which must not be given out again.
            head.next_seq = max(head.next_seq, survivors.stop)
            return head
        known = [saved.checkpoint for saved in survivors.saved]
        now_ms = self._engine.now_ms()
        created_ms = min((round(each.created_at * 1000) for each in known), default=now_ms)
        head = Head(policy=found.policy, counter=found.counter.id, now_ms=created_ms)
        # This process may have seen a later revision than any row that is left tells of.
        cached = None if self._log is None else self._log.head
        told = [survivors.stop, *(each.revision for each in known)]
        epochs = [*recount_numbers(survivors.txn, survivors.scope, survivors.session), 0]
        epochs += [saved.epoch for saved in survivors.saved]
        if cached is not None:
            told.append(cached.revision)
            epochs.append(cached.epoch)
        head.revision, head.epoch = max(told) + _LEAP, max(epochs) + _LEAP
        head.next_seq = survivors.stop
        head.next_view = survivors.last_of(Row.VIEW) + 1
        head.next_block = survivors.last_of(Row.SEGMENTS) + 1
        head.parent_session, head.parent_seq = survivors.parent, survivors.first - 1
        self.notes.append(
            f"its head was lost: policy {head.policy!r} and counter {head.counter!r} are "
            + ("those of its newest checkpoint" if survivors.saved else "the database's")
        )
        if self._way.moved or (self._way.kept.count and self._way.saved is None):
            self.notes.append("items that were undone last may be back")
        return head

    def _view(self) -> tuple[int, int]:
        saved, found = self._way.saved, self._found
        if saved is None:
            return found.view
        return saved.view if found.is_whole_view(*saved.view) else found.view

    def _before(self, head: Head) -> CheckpointRow | None:
        """Make a checkpoint of the old position, if a prefix hash proves what remains of it."""
        survivors, old = self._survivors, self._found.old
        chain = 0
        for owner, seq in old.steps():
            total = survivors.sum_of(owner, seq)
            proven = None if total is None else index.chain_after(chain, total)
            try:
                here = index.chain_of(self._txn, survivors.scope, owner, seq)
            except CorruptValueError:
                if proven is None:
                    return None
                here = proven  # an ancestor's index is damaged; its own recovery repairs it
            if proven not in (here, None):
                return None
            chain = here
        was = survivors.head
        checkpoint = Checkpoint(
            number=last_number(self._txn, survivors.scope, survivors.session) + 1,
            name=BEFORE_RECOVERY,
            seq=old.seq_at(old.count - 1) if old.count else 0,
            revision=head.revision,
            items=old.count,
            tokens=0 if was is None else was.tokens,
            counter=head.counter,
            view=self._found.view[1],
            state=state_counter(self._txn, survivors.scope, survivors.session),
            created_at=self._engine.now_ms() / 1000,
        )
        return CheckpointRow(
            checkpoint,
            tuple(old.segments),
            (0, 0, 0),
            chain,
            self._found.view,
            head.policy,
            (head.parent_session, head.parent_seq),
            head.epoch,
        )

    # --- index ------------------------------------------------------------------------------------

    def _write_index(self) -> None:
        """Rewrite the session's index: keep readable records, rebuild the others."""
        survivors, txn = self._survivors, self._txn
        scope, session = survivors.scope, survivors.session
        before = dict(survivors.before)
        last = 0
        for owner, seq in self._found.old.steps():
            if owner == session:
                before[seq] = last
            last = seq
        records: list[bytes] = []
        for seq in range(survivors.first, survivors.stop):
            record = survivors.records.get(seq)
            if record is None:
                chain = survivors.chain_of(before.get(seq, seq - 1)) or 0
                record = survivors.records[seq] = self._record(seq, chain)
            records.append(record)
        start = keys.session_rows(scope, session, Row.INDEX)
        txn.delete_range(start, keys.after(start))
        for first, body in index.laid_out(survivors.first, records):
            key = index.page_key(scope, session, first)
            txn.put(key, seal_value(key, body))

    def _record(self, seq: int, before: int) -> bytes:
        """Return the index record of an item that follows the prefix hash ``before``."""
        survivors, counter = self._survivors, self._found.counter
        tag = index.counter_tag(counter.id)
        total = survivors.sums.get(seq)
        # A lost item has no checksum; some value has to continue the chain behind it.
        chain = index.chain_after(before, total or _NO_SUM)
        found = survivors.item(survivors.session, seq)
        facts = None if isinstance(found, str) else facts_of(found[0], self._engine.seed)
        if facts is None or isinstance(found, str):
            event = prepare_event(
                _LOST_EVENT,
                None,
                counter=counter,
                seed=self._engine.seed,
                now_us=self._engine.now_us(),
            )
            return index.RECORD.pack(0, event.created_s, chain, tag) + event.facts
        tokens = tokens_of(*found, counter)
        return index.RECORD.pack(tokens, int(found[0].created_at), chain, tag) + facts


# --- Recovery of one session with damaged rows ----------------------------------------------------
# Works like a rewind: item rows stay where they are, intact or damaged, and the session's old
# position is saved as a checkpoint if it can be determined. Only data derived from items is
# rewritten: the head, index pages, token counts.

_UNASKED: Final = ("mend", "checkpoint", "log")
"""Steps of a recovery that nobody explicitly requested."""
_TOLD: Final = "session %r: %s: %s, %s live, %d lost; see session.recover()"
_log = logger()
_DAMAGED_ITEMS: Final = (
    "the damaged rows stay in the file, and 'memcore check' goes on reporting them; 'memcore "
    "salvage' makes a file without them"
)


def recover(ref: SessionRef, *, plan: bool, steps: Iterable[str]) -> Recovery:
    """Diagnose the session and, unless ``plan``, carry out the first recovery that serves."""
    allowed = _checked_steps(steps)
    store = ref.engine.store
    if checked_bool("plan", plan):
        return store.read(lambda txn: _look(ref, txn, allowed)[0])
    ref.refuse_read_only()
    return store.transact(lambda txn: _recover(ref, txn, allowed))


def recover_lazily(ref: SessionRef) -> bool:
    """Recover the session on its handle's first use; return False to run again next time.

    Never resets to an empty session: that decision is left to a person. Damage that no step
    repairs stays, and raises its error when it is read.
    """
    name = ref.name
    try:
        done = recover(ref, plan=False, steps=_UNASKED)
    except (NotFoundError, LeaseHeldError):
        return False  # there is no session yet, or another owner leases it for now
    if done.status != "sound":
        level = logging.WARNING if done.status == "recovered" else logging.ERROR
        found, live = (
            counted(len(done.findings), "finding"),
            counted(done.items, "item is", "items are"),
        )
        _log.log(level, _TOLD, name, done.status, found, live, len(done.lost))
    return True


def _look(
    ref: SessionRef, txn: ReadTxn, allowed: Sequence[str]
) -> tuple[Recovery, SessionDiagnosis | None, Way | None]:
    """Return the report of what would be done, the diagnosis, and the chosen recovery."""
    place = ref.find(txn)
    if place is None:
        msg = f"there is no session {ref.name!r}"
        raise NotFoundError(msg)
    options, engine = ref.options, ref.engine
    counter = options.counter or engine.counter
    default = options.policy or engine.policy, counter.id
    found = diagnose(Survivors(txn, *place), engine.counter_named, default)
    if not found.findings:
        return Recovery("sound", items=found.count, notes=tuple(found.notes)), found, None
    tried: list[RecoveryStep] = []
    chosen: Way | None = None
    for name in allowed:
        for way in found.ways(name):
            tried.append(RecoveryStep(name, way.target, way.serves, way.reason))
            if way.serves:
                chosen = way
                break
        if chosen is not None:
            break
    notes = [*found.notes, *((_DAMAGED_ITEMS,) if found.lost else ())]
    told = Recovery("failed", tuple(found.findings), tuple(tried), notes=tuple(notes))
    if chosen is None:
        return told, found, None
    live = set(chosen.kept.steps()) | set(chosen.moved)
    told = replace(
        told,
        status="planned",
        items=chosen.kept.count + len(chosen.moved),
        moved=len(chosen.moved),
        lost=tuple(found.lost),
        left_out=sum(1 for step in found.readable if step not in live),
        checkpoint=None if chosen.saved is None else chosen.saved.checkpoint,
    )
    return told, found, chosen


def _recover(ref: SessionRef, txn: Txn, allowed: Sequence[str]) -> Recovery:
    told, found, way = _look(ref, txn, allowed)
    place = None if found is None else (found.survivors.scope, found.survivors.session)
    if place is not None and _mend_lease(txn, place):
        told = replace(told, notes=(*told.notes, "its lease was damaged: nobody holds it now"))
    if way is None or found is None or place is None:
        return told
    ref.admit(txn, place)
    restoring = Restoring(ref, txn, found, way)
    before = restoring.run([found.prepared(step, seed=ref.engine.seed) for step in way.moved])
    notes = (*told.notes, *restoring.notes)
    return replace(told, status="recovered", before=before, notes=notes)


def _mend_lease(txn: Txn, place: tuple[int, int]) -> bool:
    """Delete a damaged lease row, which would lock everyone out; its owner is fenced out."""
    try:
        read_lease(txn, *place)
    except CorruptValueError:
        return txn.delete(lease_key(*place)) is not False
    return False


def _checked_steps(steps: Iterable[str]) -> tuple[str, ...]:
    found = checked_choices("steps", steps, RECOVERY_STEPS)
    if not found:
        msg = f"steps: expected some of {', '.join(RECOVERY_STEPS)}"
        raise InvalidOptionError(msg)
    return found
