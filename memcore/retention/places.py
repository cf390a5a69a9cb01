"""What rules say of the sessions of a database, of a scope, or of one.

The nearest place that has rules says it all: those of a session stand in the place of those of its
scope, and these in the place of the database's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from memcore import keys, names
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.held import is_held
from memcore.keys import Kind
from memcore.log.saved import read_saved, saved_numbers
from memcore.retention.departing import remove_beginning, remove_session
from memcore.retention.expiring import expire_items, head_of_session
from memcore.retention.graph_threads import keep_thread, keep_threads
from memcore.retention.report import Run
from memcore.retention.rules import RetentionRule, retention_rules
from memcore.retention.states import drop_checkpoints
from memcore.store.base import ReadTxn
from memcore.terms import Terms, read_terms, scope_terms, session_terms

__all__ = ["keep_graph", "keep_scope", "keep_session", "rules_in"]

_PAGE: Final = 256


class _Known(NamedTuple):
    updated_ms: int
    session: int
    name: str


def rules_in(terms: Terms) -> tuple[RetentionRule, ...]:
    """The rules that terms hold.

    Raises:
        CorruptValueError: a later memcore wrote them, or nobody did.
    """
    try:
        return retention_rules(list(terms.rules or ()))
    except (InvalidOptionError, TypeError) as exc:
        msg = f"stored retention rules cannot be read: {exc}; set them again"
        raise CorruptValueError(msg, key=b"") from exc


def keep_session(run: Run, scope: int, session: int, terms: Terms) -> None:
    """Apply the rules of one session's own."""
    rules = _rules(run, terms)
    aged = [rule for rule in rules if rule.what == "sessions"]
    head = run.backing.store.read(lambda txn: _head(txn, run, scope, session))
    if head is None:
        return
    if any(head < (rule.since_ms(run.now_ms) or 0) for rule in aged) and remove_session(
        run, scope, session, terms.name
    ):
        return
    _keep_contents(run, scope, session, rules, terms.name)


def keep_graph(run: Run, scope: int, terms: Terms) -> None:
    """Apply the rules of one thread's own."""
    keep_thread(run, scope, terms.name, _rules(run, terms))


def keep_scope(run: Run, scope: int, terms: Terms) -> None:
    """Apply the rules of a scope, or of the database (scope 0), to sessions without own ones."""
    rules = _rules(run, terms)
    if not rules:
        return
    _sweep_audit(run, scope, 0, rules)
    if scope:
        _keep_sessions(run, scope, rules)
        keep_threads(run, scope, rules)
        return
    store = run.backing.store
    for number in store.read(lambda txn: [found for found, _, _ in names.scopes(txn)]):
        if not run.left:
            return
        if store.read(lambda txn, number=number: _follows(txn, run, scope_terms(number))):  # type: ignore[misc]
            with run.while_alive(number):
                _sweep_audit(run, number, 0, rules)
                _keep_sessions(run, number, rules)
                keep_threads(run, number, rules)


def _rules(run: Run, terms: Terms) -> tuple[RetentionRule, ...]:
    try:
        return rules_in(terms)
    except CorruptValueError:
        run.report.damaged += 1
        return ()


def _follows(txn: ReadTxn, run: Run, key: bytes) -> bool:
    """Whether a place has no rules of its own."""
    try:
        return read_terms(txn, key).rules is None
    except CorruptValueError:
        run.report.damaged += 1
        return False  # nobody knows what is to stay there


def _head(txn: ReadTxn, run: Run, scope: int, session: int) -> int | None:
    """When a session changed last; None if there is none, or one that is being imported."""
    try:
        head = head_of_session(txn, scope, session)
    except CorruptValueError:
        run.report.damaged += 1
        return None
    return None if head is None or head.unfinished else head.updated_ms


def _keep_sessions(run: Run, scope: int, rules: Sequence[RetentionRule]) -> None:
    store = run.backing.store
    about = [rule for rule in rules if rule.what == "sessions"]
    if about:
        _remove_sessions(run, scope, about)
    rest = [rule for rule in rules if rule.what in ("items", "checkpoints", "audit")]
    named: dict[int, str] = {}
    if any(rule.action == "remove" for rule in rest):
        named = {known.session: known.name for known in _known(run, scope)}
    start: bytes | None = keys.scoped(Kind.SESSION, scope) if rest else None
    while start is not None and run.left:
        page, start = store.read(lambda txn, start=start: _sessions(txn, run, scope, start))  # type: ignore[misc]
        for session in page:
            if not run.left:
                run.report.complete = False
                return
            _keep_contents(run, scope, session, rest, named.get(session, ""))


def _sessions(txn: ReadTxn, run: Run, scope: int, start: bytes) -> tuple[list[int], bytes | None]:
    """Sessions that follow the rules of others, hidden ones too, and where the next page begins."""
    found: list[int] = []
    stop = keys.after(keys.scoped(Kind.SESSION, scope))
    for _ in range(_PAGE):
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return found, None
        session = keys.split_session_prefix(row[0])[1]
        if _follows(txn, run, session_terms(scope, session)):
            found.append(session)
        start = keys.after(keys.session_prefix(scope, session))
    return found, start


def _known(run: Run, scope: int) -> Iterator[_Known]:
    """The sessions of a scope that have a name and follow the rules of others."""
    after: str | None = None
    while True:
        page = run.backing.store.read(lambda txn, after=after: list(_named(txn, run, scope, after)))  # type: ignore[misc]
        yield from (known for known in page if known.session)
        if len(page) < _PAGE:
            return
        after = page[-1].name


def _named(txn: ReadTxn, run: Run, scope: int, after: str | None) -> Iterator[_Known]:
    for at, (name, session) in enumerate(names.sessions(txn, scope, after), 1):
        updated = None
        if _follows(txn, run, session_terms(scope, session)):
            updated = _head(txn, run, scope, session)
        yield _Known(0, 0, name) if updated is None else _Known(updated, session, name)
        if at == _PAGE:
            return


def _remove_sessions(run: Run, scope: int, rules: Sequence[RetentionRule]) -> None:
    """Whole sessions that are too old, or not among the last."""
    since = max((rule.since_ms(run.now_ms) or 0 for rule in rules), default=0)
    keep = min((rule.keep_last for rule in rules if rule.keep_last is not None), default=None)
    if keep is None:
        due = sorted(known for known in _known(run, scope) if known.updated_ms < since)
    else:
        known = sorted(_known(run, scope))
        beyond = max(len(known) - keep, 0)
        due = [each for at, each in enumerate(known) if at < beyond or each.updated_ms < since]
    for each in due:
        if not run.left:
            run.report.complete = False
            return
        remove_session(run, scope, each.session, each.name)


def _keep_contents(
    run: Run, scope: int, session: int, rules: Sequence[RetentionRule], name: str
) -> None:
    """Items, checkpoints and audit of one session."""
    place = scope, session
    items = [rule for rule in rules if rule.what == "items"]
    removing = [rule for rule in items if rule.action == "remove" and name]
    if removing:
        app, user = run.backing.store.read(lambda txn: names.scope_names(txn, scope))
        for rule in removing:
            if _is_removed(run, place, (app, user, name), rule):
                items.remove(rule)
                number = run.backing.store.read(lambda txn: names.session_of(txn, scope, name))
                place = scope, number or session
    if items:
        expire_items(run, *place, items)
    saved = [rule for rule in rules if rule.what == "checkpoints"]
    if saved:
        drop_checkpoints(run, place, _old_checkpoints(run, place, saved))
    _sweep_audit(run, *place, rules)


def _is_removed(
    run: Run, place: tuple[int, int], title: tuple[str, str, str], rule: RetentionRule
) -> bool:
    try:
        return remove_beginning(run, place, title, rule)
    except CorruptValueError:
        run.report.damaged += 1
        return True


def _old_checkpoints(run: Run, place: tuple[int, int], rules: Sequence[RetentionRule]) -> list[int]:
    """The numbers of checkpoints that are too old or not among the last; damaged ones stay."""

    def look(txn: ReadTxn) -> list[tuple[int, float]]:
        found = []
        for number in saved_numbers(txn, *place):
            try:
                saved = read_saved(txn, *place, number)
            except CorruptValueError:
                continue  # check() reports it, and it can be deleted by number
            if saved is not None:
                found.append((number, saved.checkpoint.created_at * 1000))
        return found

    listed = run.backing.store.read(look)
    due: set[int] = set()
    for rule in rules:
        if rule.keep_last is not None:
            due.update(number for number, _ in listed[: max(len(listed) - rule.keep_last, 0)])
        since_ms = rule.since_ms(run.now_ms)
        if since_ms is not None:
            due.update(number for number, made_ms in listed if made_ms < since_ms)
    return sorted(due)


def _sweep_audit(run: Run, scope: int, session: int, rules: Sequence[RetentionRule]) -> None:
    if run.audit is None or run.dry:
        return
    for rule in rules:
        since_ms = rule.since_ms(run.now_ms)
        if rule.what == "audit" and since_ms is not None and run.left:
            if scope and run.backing.store.read(lambda txn: is_held(txn, scope, session)):
                return  # what is held keeps its proof
            run.report.audit += run.audit(run.backing, scope, session, since_ms, run.left)
