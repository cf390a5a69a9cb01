"""Threads of graphs that go: at a time of their own, idle ones, and checkpoints of those that stay.

Nothing is decoded but what stands in clear, and no object is made of it: a sweep needs neither the
framework nor the serialiser that wrote a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from memcore import names
from memcore.checkpoint import (
    GraphStore,
    Rule,
    StoredCoder,
    changed_ms,
    is_encrypted,
    limits_rule,
    removal,
    thread_of,
)
from memcore.errors import CorruptValueError, HeldError, InternalError, OutpacedError
from memcore.held import is_held
from memcore.retention.report import Run
from memcore.retention.rules import RetentionRule
from memcore.session import resume_removals
from memcore.store.base import ReadTxn, Txn
from memcore.terms import read_terms, thread_terms
from memcore.tombstone import need_alive

__all__ = ["keep_thread", "keep_threads", "remove_thread"]

_PAGE = 256
IsDue = Callable[[ReadTxn], bool]


@dataclass(frozen=True, slots=True, order=True)
class _Known:
    """A thread by its age."""

    changed_ms: int
    name: str


def remove_thread(run: Run, scope: int, name: str, is_due: IsDue) -> bool:
    """Remove a thread, if it is due when it goes; whether it went, or would."""
    store = run.backing.store
    if store.read(lambda txn: is_held(txn, scope)):
        run.report.held += 1
        return False
    if run.write is not None:
        run.report.kept += 1  # no line of an archive holds a thread
        return False
    if run.dry:
        run.report.threads += 1
        return True

    def closure(txn: Txn) -> bool:
        need_alive(txn, scope)
        if is_held(txn, scope) or names.thread_of(txn, scope, name) is None or not is_due(txn):
            return False
        removal.start_removal(txn, scope, name)
        return True

    done: bool = store.transact(closure, makes_room=True)
    run.report.threads += done
    resume_removals(store)
    return done


def keep_threads(run: Run, scope: int, rules: Sequence[RetentionRule]) -> None:
    """Apply the rules of a scope, or of the database, to threads without own ones."""
    whole = [rule for rule in rules if rule.what == "threads"]
    inside = [rule for rule in rules if rule.what == "thread_checkpoints"]
    if not whole and not inside:
        return
    for page in _pages(run, scope):
        for name in page:
            if not run.left:
                run.report.complete = False
                return
            if not _remove_idle(run, scope, name, whole):
                _prune(run, scope, name, inside)
    keep = min((rule.keep_last for rule in whole if rule.keep_last is not None), default=None)
    if keep is not None:
        _remove_beyond(run, scope, keep)


def keep_thread(run: Run, scope: int, name: str, rules: Sequence[RetentionRule]) -> None:
    """Apply the rules of one thread's own."""
    if not _remove_idle(run, scope, name, [rule for rule in rules if rule.what == "threads"]):
        _prune(run, scope, name, [rule for rule in rules if rule.what == "thread_checkpoints"])


def _remove_idle(run: Run, scope: int, name: str, rules: Sequence[RetentionRule]) -> bool:
    """Remove a thread that did not change for longer than a rule allows; whether it is one."""
    since = max((rule.since_ms(run.now_ms) or 0 for rule in rules), default=0)

    def is_idle(txn: ReadTxn) -> bool:
        changed = _changed(txn, scope, name)
        return changed is not None and changed < since

    try:
        is_due = bool(since) and run.backing.store.read(is_idle)
    except CorruptValueError:
        run.report.damaged += 1
        return True  # check() tells; nothing of it goes
    if is_due:
        remove_thread(run, scope, name, is_idle)
    return is_due


def _remove_beyond(run: Run, scope: int, keep: int) -> None:
    """Remove the threads that are not among the last to have changed."""
    known: list[_Known] = []
    for page in _pages(run, scope):
        known += run.backing.store.read(lambda txn, page=page: list(_aged(txn, run, scope, page)))  # type: ignore[misc]
    known.sort()
    for each in known[: max(len(known) - keep, 0)]:
        if not run.left:
            run.report.complete = False
            return

        def is_as_it_was(txn: ReadTxn, each: _Known = each) -> bool:
            return _changed(txn, scope, each.name) == each.changed_ms

        remove_thread(run, scope, each.name, is_as_it_was)


def _prune(run: Run, scope: int, name: str, rules: Sequence[RetentionRule]) -> None:
    """Remove the checkpoints of a thread that rules name, but what others are rebuilt from."""
    if not rules:
        return
    rule = limits_rule(
        keep_last=min((r.keep_last for r in rules if r.keep_last is not None), default=None),
        since_ms=max((found for r in rules if (found := r.since_ms(run.now_ms))), default=None),
        at_most=run.left,
    )
    try:
        run.report.thread_checkpoints += _pruned(run, scope, name, rule)
    except CorruptValueError:
        if run.backing.store.read(lambda txn: _is_sealed(txn, scope, name)):
            run.report.kept += 1  # the saver that has the key prunes it
        else:
            run.report.damaged += 1
    except HeldError:
        run.report.held += 1
    except OutpacedError:
        run.report.kept += 1  # the next sweep looks again


def _pruned(run: Run, scope: int, name: str, rule: Rule) -> int:
    """How many checkpoints of a thread went, or would."""
    backing = run.backing
    graph = GraphStore(
        backing.store, backing.graphs, lambda _: scope, _no_new_scope, now_ms=backing.now_ms
    )
    plan = graph.would_prune(name, rule, StoredCoder())
    if plan is None:
        return 0
    count = sum(map(len, plan.doomed.values()))
    if run.dry or not (count or plan.strays or plan.abandoned):
        return count
    if run.write is not None:
        run.report.kept += count  # as remove_thread
        return 0
    return graph.prune(name, rule, StoredCoder()).checkpoints


def _is_sealed(txn: ReadTxn, scope: int, name: str) -> bool:
    try:
        found = thread_of(txn, scope, name)
        return found is not None and is_encrypted(txn, found.place)
    except CorruptValueError:
        return False


def _no_new_scope(_: Txn) -> int:
    msg = "a prune stores nothing"
    raise InternalError(msg)


def _pages(run: Run, scope: int) -> Iterator[list[str]]:
    """The threads of a scope by name that follow the rules of others."""
    after: str | None = None
    while True:
        look = partial(_page, run=run, scope=scope, after=after)
        found, after = run.backing.store.read(look)
        yield found
        if after is None:
            return


def _page(txn: ReadTxn, *, run: Run, scope: int, after: str | None) -> tuple[list[str], str | None]:
    found: list[str] = []
    for at, (name, number) in enumerate(names.threads(txn, scope, after), 1):
        try:
            if read_terms(txn, thread_terms(scope, number)).rules is None:
                found.append(name)
        except CorruptValueError:
            run.report.damaged += 1  # nobody knows what is to stay there
        if at == _PAGE:
            return found, name
    return found, None


def _aged(txn: ReadTxn, run: Run, scope: int, page: list[str]) -> Iterator[_Known]:
    for name in page:
        try:
            changed = _changed(txn, scope, name)
        except CorruptValueError:
            run.report.damaged += 1
            continue
        if changed is not None:  # nothing says that one without a time is old
            yield _Known(changed, name)


def _changed(txn: ReadTxn, scope: int, name: str) -> int | None:
    """When a thread changed last; None if nothing tells, or there is none any more."""
    found = thread_of(txn, scope, name)
    return None if found is None else changed_ms(txn, found.place)
