"""Whole sessions that go, and the beginning of a history where nothing else refers to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from memcore import keys, names
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    LeaseHeldError,
    PolicyMismatchError,
)
from memcore.held import is_held
from memcore.keys import Row
from memcore.limits import PIECE_ROWS
from memcore.log import Draft, History, Prepared, SessionLog
from memcore.log.head import head_key
from memcore.log.saved import saved_numbers
from memcore.log.stored import again
from memcore.retention.expiring import head_of_session
from memcore.retention.report import Run
from memcore.retention.rules import RetentionRule
from memcore.retention.settling import Settler
from memcore.session import Address, SessionOptions, resume_removals, start_removal
from memcore.session.renewing import renew
from memcore.store.base import ReadTxn, Txn
from memcore.tombstone import need_alive

__all__ = ["remove_beginning", "remove_session"]

_OPTIONS: Final = SessionOptions(None, None, "keep")


def remove_session(run: Run, scope: int, session: int, name: str) -> bool:
    """Remove a session that is due, if it is still as it was when it was archived."""
    store = run.backing.store

    def look(txn: ReadTxn) -> tuple[bytes | None, bool, int]:
        known = names.session_of(txn, scope, name) == session
        value = txn.get(head_key(scope, session)) if known else None
        size = 0 if value is None or not run.dry else _size_of(txn, scope, session)
        return value, is_held(txn, scope, session), size

    before, held, size = store.read(look)
    if before is None:
        return False
    if held:
        run.report.held += 1
        return False
    if run.dry:
        run.report.sessions += 1
        run.report.bytes += size
        return True
    try:
        run.archive(lambda exporter: exporter.session(scope, name))
    except CorruptValueError:
        run.report.damaged += 1  # what cannot be archived stays
        return False

    def closure(txn: Txn) -> tuple[bool, int]:
        need_alive(txn, scope)
        if names.session_of(txn, scope, name) != session or is_held(txn, scope, session):
            return False, 0
        run.backing.drafts.flush_opened(txn, scope, session)
        if txn.get(head_key(scope, session)) != before:
            return False, 0  # somebody used it meanwhile
        taken = _size_of(txn, scope, session)
        return start_removal(txn, run.backing, scope, name)[0], taken

    try:
        done, size = store.transact(closure, makes_room=True)
    except LeaseHeldError:  # its owner is at work: the next sweep looks again
        done, size = False, 0
    resume_removals(store)
    run.report.sessions += done
    run.report.bytes += size if done else 0
    run.report.kept += not done
    return done


def _size_of(txn: ReadTxn, scope: int, session: int) -> int:
    """What the rows of a session take, about: of a long one, what its first rows do."""
    prefix = keys.session_prefix(scope, session)
    return sum(len(value) for _, value in txn.scan(prefix, keys.after(prefix), limit=PIECE_ROWS))


def remove_beginning(
    run: Run, place: tuple[int, int], title: tuple[str, str, str], rule: RetentionRule
) -> bool:
    """Take away what is beyond a rule, up to the last safe cut; False if items must stay in place.

    They must where checkpoints, views or forks refer to the session, and where what stays is too
    much for one transaction. Pins stay, and so does all from the first open call on.
    """
    scope, session = place
    address = Address(run.backing, *title, _OPTIONS)
    found = run.backing.store.read(lambda txn: _beyond(txn, run, place, rule))
    if found is None:
        return False
    cut, pins, seqs = found
    if not seqs:
        return True
    if run.dry:
        run.report.items_removed += len(seqs)
        return True
    run.archive(lambda exporter: exporter.items(scope, session, seqs))

    def closure(txn: Txn) -> list[bytes] | None:
        need_alive(txn, scope)
        if names.session_of(txn, scope, title[2]) != session or is_held(txn, scope, session):
            return None
        draft = address.draft(txn, create=False)
        if draft is None:
            return None
        draft.flush()
        head = draft.head
        history = History(head.all_segments(txn, scope))
        gone = [history.seq_at(at) for at in range(pins, cut)] if cut <= history.count else []
        if gone != seqs or _is_referred(txn, scope, session) or head.view_number:
            return None
        kept = [*_again(run, draft, 0, pins), *_again(run, draft, cut, draft.count)]
        try:
            return renew(txn, address, draft, kept)
        except BaseException:
            txn.spoil()
            raise

    _renewed(run, closure, len(seqs))
    return True


def _renewed(run: Run, closure: Callable[[Txn], list[bytes] | None], count: int) -> None:
    """Take a beginning of so many items away, and report what became of them."""
    try:
        left = run.backing.store.transact(closure, makes_room=True)
    except CorruptValueError:
        run.report.damaged += 1
        return
    except LeaseHeldError:  # as remove_session
        left = None
    if left is None:
        run.report.kept += count
        return
    if left:
        resume_removals(run.backing.store)
    run.report.items_removed += count


def _again(run: Run, draft: Draft, start: int, stop: int) -> list[Prepared]:
    """The items at positions ``start .. stop``, ready to be appended once more."""
    rows = draft.last_rows(draft.count - start)[: stop - start] if start < stop else []
    seed, counter = run.backing.seed, draft.log.counter
    return [again(draft.txn, draft.log.scope, row, counter, seed) for row in rows]


def _beyond(
    txn: ReadTxn, run: Run, place: tuple[int, int], rule: RetentionRule
) -> tuple[int, int, list[int]] | None:
    """The cut, how many pins stay, and the seqs that go; None if items must stay in their place."""
    head = head_of_session(txn, *place)
    if head is None or head.hidden or head.unfinished or not head.count:
        return 0, 0, []
    if head.parent_session or head.view_number or _is_referred(txn, *place):
        return None
    log = SessionLog(*place, run.backing.counter_named)
    try:
        if not log.catch_up(txn):
            return 0, 0, []
        ledger = log.full(txn, head).ledger
    except (CounterUnavailableError, PolicyMismatchError):
        return None
    pins = log.policy.pin_count(ledger)
    settler = Settler(run.backing, place, head, run.now_ms)
    wanted = settler.positions_beyond(txn, rule, pins)
    first_open = min((at for at, _ in ledger.open_calls()), default=head.count)
    cut = ledger.cut_at_most(min(wanted, first_open))
    if head.count - cut + pins > PIECE_ROWS:
        return None
    return cut, pins, [log.history.seq_at(at) for at in range(pins, max(cut, pins))]


def _is_referred(txn: ReadTxn, scope: int, session: int) -> bool:
    """Whether forks or checkpoints refer to items of a session."""
    children = keys.session_rows(scope, session, Row.CHILD)
    if any(True for _ in txn.scan(children, keys.after(children), limit=1)):
        return True
    return any(True for _ in saved_numbers(txn, scope, session, limit=1))
