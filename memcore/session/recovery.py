"""Recovery of a session of which some rows are damaged or missing.

Nothing is taken from outside of the live rows, and nothing is concluded that a checksum or a prefix
hash does not prove; where a head is lost, its history is traced back from the last item.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from memcore.options import checked_bool
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


# --- What can be read of one session in a file of which some rows are damaged or missing ----------


class Survivors:
    """One session as its rows tell, each by itself."""

    def __init__(self, txn: ReadTxn, scope: int, session: int) -> None:
        self.txn = txn
        self.scope = scope
        self.session = session
        self.findings: list[str] = []
        """Faults, in words, of what says where the session is."""
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
        """True if every index page of the session is whole."""
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
        """True if its index lacks records."""
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


def _segments(each: Head | CheckpointRow, txn: ReadTxn, scope: int) -> list[Segment]:
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


# --- What is wrong with a session, and the ways out of it; nothing is written ---------------------

Step = tuple[int, int]
"""``(owner session, seq)`` of an item."""


@dataclass(slots=True)
class Way:
    """A position that a session may go to."""

    target: str
    """It in words."""
    serves: bool
    reason: str
    kept: History = field(default_factory=lambda: History([]))
    """History that stays live, as it is."""
    moved: list[Step] = field(default_factory=list)
    """Items that are appended once more behind it."""
    saved: CheckpointRow | None = None
    is_mended: bool = False
    """True if the history stays as it is, and only what follows from it is written anew."""


@dataclass(slots=True)
class SessionDiagnosis:
    """Diagnosis of a session."""

    survivors: Survivors
    counter: TokenCounter
    policy: str
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    live: History | None = None
    """The live history as the head has it."""
    old: History = field(default_factory=lambda: History([]))
    """The live history, as far as it can be told."""
    lost: list[int] = field(default_factory=list)
    """Seqs of it that cannot be read."""
    readable: list[Step] = field(default_factory=list)
    is_counted: bool = False
    """True if the token pages that the head points at can be read."""
    view: tuple[int, int] = (0, 0)
    """The newest view of the session's chain that can be read with all its ancestors."""

    @property
    def count(self) -> int:
        """Items of the live history."""
        return self.old.count

    # --- ways out ---------------------------------------------------------------------------------

    def ways(self, name: str) -> Iterator[Way]:
        """The ways of one step, the best first."""
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
            reason = f"{len(self.lost)} of its {self.count} items cannot be read"
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
            reason = problem or f"its {history.count} items can be read"
            yield Way(saved.where, not problem, reason, history, saved=saved)
        if not survivors.saved and not survivors.unread:
            yield Way("a checkpoint", serves=False, reason="the session has none")

    def _problem(self, saved: CheckpointRow, history: History) -> str:
        """Return why a checkpoint is not valid; its prefix hash is computed anew from its items."""
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
        reason = f"{count} items stay, {len(moved)} are appended once more, {len(lost)} are lost"
        return Way(target, serves=True, reason=reason, kept=kept, moved=moved)

    def _joined(self, steps: list[Step], good: set[Step]) -> int:
        """Count the first items that can be read and were appended to each other."""
        survivors, chain = self.survivors, 0
        for count, (owner, seq) in enumerate(steps):
            total = survivors.sum_of(owner, seq)
            if total is None or (owner, seq) not in good:
                return count
            chain = index.chain_after(chain, total)
            if owner == survivors.session and survivors.chain_of(seq) not in (chain, None):
                return count  # it followed another one: its index record can not be made anew
        return len(steps)

    # --- items and views --------------------------------------------------------------------------

    def is_whole_view(self, owner: int, number: int) -> bool:
        """Return True if a view and all its ancestors can be read."""
        return not _broken_views(self.survivors, owner, number)

    def prepared(self, step: Step, *, seed: bytes) -> Prepared:
        """A readable item, ready to be appended once more."""
        survivors = self.survivors
        key = session_row(survivors.scope, step[0], Row.ITEM, step[1])
        value = survivors.txn.get(key)
        row = (0, step[1], *open_value(key, value or b""))
        return again(survivors.txn, survivors.scope, row, self.counter, seed)


def diagnose(
    survivors: Survivors, counter_named: Callable[[str], TokenCounter], default: tuple[str, str]
) -> SessionDiagnosis:
    """Look at all that a session's operations rest on.

    ``default`` are policy and counter of a session of which neither head nor checkpoint is left.

    Raises:
        CounterUnavailableError: the session's counter is not at hand.
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
    """Find what keeps a state from being read and a checkpoint from being saved."""
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


# --- What a recovery says of what it found, tried and did -----------------------------------------


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """One thing that ``Session.recover`` looked at."""

    name: str
    """``mend``, ``checkpoint``, ``log`` or ``empty``."""
    target: str
    """Position that was looked at, in words."""
    serves: bool
    reason: str
    """Reason why it does not serve; of the one that does, what it makes of the session."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Report of ``Session.recover``: findings, steps tried, and the result or the plan."""

    status: str
    """``sound``: nothing is wrong; ``recovered``; ``planned``: nothing was written; ``failed``: no
    step that was allowed serves, and nothing was written."""
    findings: tuple[str, ...] = ()
    """Faults of the session, in words."""
    steps: tuple[RecoveryStep, ...] = ()
    """Steps that were tried, in this order; the last one served, if one did."""
    items: int = 0
    """Live items behind it."""
    moved: int = 0
    """Number of these that were appended once more, behind what could not be read."""
    lost: tuple[int, ...] = ()
    """Seqs of the items of the live history that cannot be read."""
    left_out: int = 0
    """Items that can be read and were live, and are not live any more."""
    checkpoint: Checkpoint | None = None
    """The one that the session went back to."""
    before: Checkpoint | None = None
    """Checkpoint of where it was before, if that could be saved."""
    notes: tuple[str, ...] = ()
    """Guesses that were made, and damage that stays, in words."""


# --- Putting a session where its recovery says: index, head, items once more, in one commit -------

BEFORE_RECOVERY: Final = "before recovery"
"""Name of the checkpoint that says where a session was."""
_LEAP: Final = 1_000_000
"""Revisions and epochs skipped, as some may be lost: one told once must never come again."""
_LOST_EVENT: Final = "lost"
_NO_SUM: Final = bytes(8)


class Restoring:
    """One recovery on its way."""

    def __init__(self, ref: SessionRef, txn: Txn, found: SessionDiagnosis, way: Way) -> None:
        self._engine = ref.engine
        self._log = ref.log
        self._txn = txn
        self._found = found
        self._way = way
        self._survivors = found.survivors
        self.notes: list[str] = []

    def run(self, moved: list[Prepared]) -> Checkpoint | None:
        """Write everything; the checkpoint that says where the session was."""
        txn, found, way, survivors = self._txn, self._found, self._way, self._survivors
        scope, session = survivors.scope, survivors.session
        if survivors.missing_records:
            self._write_index()
        mend_last(txn, scope, session)
        mend_state(txn, scope, session, pinned=checkpoint_states(txn, scope, session))
        head = self._head()
        saved = None if way.is_mended else self._before(head)
        if not way.is_mended:
            head.segments = list(way.kept.segments)
            head.link_session = head.link_block = head.base_count = 0
            head.count = way.kept.count
        last = way.kept.count - 1
        head.chain = 0 if last < 0 else way.kept.chain_at(txn, scope, way.kept.seq_at(last)) or 0
        head.epoch += 1
        head.view_session, head.view_number = self._view()
        old = found.live
        if old is None or not found.is_counted:
            NO_COUNTS.point(head)
            old = History([])
        rebase_counts(txn, (scope, session), head, found.counter, old=old)
        if saved is not None:
            write_checkpoint(txn, scope, session, saved)
        self._restore_state(head.next_seq)
        drafts = self._engine.drafts
        draft: SessionTxn = drafts.start_over(txn, scope, session, head)
        if moved:
            draft.append(moved, orphans="keep")
        draft.finish(now_ms=self._engine.now_ms())
        drafts.close(txn, draft)
        return None if saved is None else saved.checkpoint

    # --- state ------------------------------------------------------------------------------------

    def _restore_state(self, seq: int) -> None:
        """The values of the checkpoint that the session goes back to."""
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
        """The head as it was, or a new one that knows of all rows that there are."""
        survivors, found = self._survivors, self._found
        if survivors.head is not None:
            head = survivors.head.changed()
            head.next_seq = max(head.next_seq, survivors.stop)
            return head
        known = [saved.checkpoint for saved in survivors.saved]
        now_ms = self._engine.now_ms()
        created_ms = min((round(each.created_at * 1000) for each in known), default=now_ms)
        head = Head(policy=found.policy, counter=found.counter.id, now_ms=created_ms)
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
        """Make a checkpoint of where the session was, if a prefix hash proves what is left."""
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
                here = proven  # an ancestor's index is damaged: its own recovery mends it
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
        """Write the session's index anew: records that can be read stay, others are made again."""
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
        """The index record of an item, behind the prefix hash ``before``."""
        survivors, counter = self._survivors, self._found.counter
        tag = index.counter_tag(counter.id)
        total = survivors.sums.get(seq)
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


# --- Recovery of one session whose rows are damaged: to where it can go, and how it gets there ----
# It goes as a rewind goes: rows of items stay where they are, whole or damaged, and where the
# session was is saved as a checkpoint if that can be told. Only what follows from items is written
# anew: the head, index pages, token counts.

_UNASKED: Final = ("mend", "checkpoint", "log")
"""Steps of a recovery that nobody asked for at the time."""
_TOLD: Final = "session %r: %s: %d findings, %d items are live, %d were lost; see session.recover()"
_log = logger()
_DAMAGED_ITEMS: Final = (
    "the damaged rows stay in the file, and 'memcore check' goes on reporting them; 'memcore "
    "salvage' makes a file without them"
)


def recover(ref: SessionRef, *, plan: bool, steps: Iterable[str]) -> Recovery:
    """Find out what is wrong and, unless ``plan``, go the first way that serves."""
    allowed = _checked_steps(steps)
    store = ref.engine.store
    if checked_bool("plan", plan):
        return store.read(lambda txn: _look(ref, txn, allowed)[0])
    ref.refuse_read_only()
    return store.transact(lambda txn: _recover(ref, txn, allowed))


def recover_lazily(ref: SessionRef) -> bool:
    """Recover the session at the first use of its handle; False: there is none yet.

    Never to an empty session: that is for a person to decide. What no step mends stays as it
    is, and whoever meets it meets the error.
    """
    name = ref.name
    try:
        done = recover(ref, plan=False, steps=_UNASKED)
    except (NotFoundError, LeaseHeldError):
        return False  # nothing is there, or it is not this handle's to change for now
    if done.status != "sound":
        level = logging.WARNING if done.status == "recovered" else logging.ERROR
        found, lost = len(done.findings), len(done.lost)
        _log.log(level, _TOLD, name, done.status, found, done.items, lost)
    return True


def _look(
    ref: SessionRef, txn: ReadTxn, allowed: Sequence[str]
) -> tuple[Recovery, SessionDiagnosis | None, Way | None]:
    """Return the report of what would be done, the diagnosis, and the way."""
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
    """A damaged lease row would keep everybody out: it goes, and whose it was is fenced."""
    try:
        read_lease(txn, *place)
    except CorruptValueError:
        return txn.delete(lease_key(*place)) is not False
    return False


def _checked_steps(steps: Iterable[str]) -> tuple[str, ...]:
    found = tuple(steps) if not isinstance(steps, str) else ()
    if not found or not set(found) <= set(RECOVERY_STEPS):
        msg = f"steps: expected some of {', '.join(RECOVERY_STEPS)}, got {steps!r:.80}"
        raise InvalidOptionError(msg)
    return found
