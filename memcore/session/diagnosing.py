"""What is wrong with a session, and the ways out of it; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memcore.codec import open_value
from memcore.errors import CorruptValueError, MemcoreError, PolicyMismatchError
from memcore.keys import Row, session_row
from memcore.log import History, Prepared, SessionLog, index
from memcore.log.counts import Counts
from memcore.log.saved import Saved, last_number
from memcore.log.stored import again
from memcore.log.survivors import Survivors
from memcore.state import check_state, header_problem
from memcore.tokens import TokenCounter
from memcore.views import view_chain

__all__ = ["Diagnosis", "Way", "diagnose"]

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
    """What stays live, as it is."""
    moved: list[Step] = field(default_factory=list)
    """Items that are appended once more behind it."""
    saved: Saved | None = None
    is_mended: bool = False
    """Whether the history stays as it is, and only what follows from it is written anew."""


@dataclass(slots=True)
class Diagnosis:
    """What was found."""

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
    """Whether the token pages that the head points at can be read."""
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

    def _problem(self, saved: Saved, history: History) -> str:
        """Why a checkpoint is not to be relied on; its prefix hash is made anew from its items."""
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
        """How many items from the first on can be read, and were appended to each other."""
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
        """Whether a view and all its ancestors can be read."""
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
) -> Diagnosis:
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
    found = Diagnosis(survivors, counter_named(counter), policy, live=live)
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


def _look_at_views(found: Diagnosis) -> None:
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


def _look_at_counts(found: Diagnosis) -> None:
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


def _look_at_state(found: Diagnosis) -> None:
    """What keeps a state from being read and a checkpoint from being saved."""
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


def _look_at_totals(found: Diagnosis) -> None:
    """Whether the session opens, once every row of it has been read."""
    survivors, head = found.survivors, found.survivors.head
    if head is None:
        return
    log = SessionLog(survivors.scope, survivors.session, lambda _: found.counter)
    try:
        log.begin(survivors.txn, head)
        ledger = log.full(survivors.txn, head).ledger
    except (MemcoreError, PolicyMismatchError) as exc:
        found.findings.append(str(exc))
        return
    if (ledger.tokens, ledger.open_count) != (head.tokens, head.open_calls):
        found.findings.append("its head has other totals than its index")
