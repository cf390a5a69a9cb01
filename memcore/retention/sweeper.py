"""Sweep: deletes everything due according to the expiry index and the rules."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from weakref import ref

from memcore import blobs, kv, memory
from memcore.audit import record_event
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.errors import ClosedError, CorruptValueError, InvalidOptionError
from memcore.log.checkpoint import checkpoint_numbers, drop_checkpoint, read_checkpoint
from memcore.options import refuse_copies
from memcore.retention.expire import (
    expire_items,
    head_of_session,
    is_unchanged,
    keep_thread,
    keep_threads,
    remove_beginning,
    remove_session,
    remove_thread,
)
from memcore.retention.rules import Exporter, RetentionRule, SweepReport, SweepRun, retention_rules
from memcore.rows import names
from memcore.rows.lifecycle import (
    Terms,
    drop_terms,
    is_erased,
    is_held,
    is_terms,
    need_alive,
    read_terms,
    scope_terms,
    session_terms,
    write_terms,
)
from memcore.session.delete import resume_removals
from memcore.state import StateChange, packed_field, read_header, value_at
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Sweeper",
    "drop_checkpoints",
    "expire_fields",
    "keep_graph",
    "keep_scope",
    "keep_session",
    "note_sweep",
    "rules_in",
    "sweep",
]


# --- Due state fields and checkpoints -------------------------------------------------------------

_PIECE: Final = 64


class _Due(NamedTuple):
    fields: list[str]
    checkpoints: list[int]


def expire_fields(run: SweepRun, key: bytes, place: tuple[int, int]) -> None:
    """Remove the due fields and checkpoints of a session; session 0: of a scope.

    Nothing of a field remains, not even its earlier values.
    """
    while run.left:
        due = run.engine.store.read(lambda txn: _due(run, read_terms(txn, key)))
        if not due.fields and not due.checkpoints:
            return
        if run.engine.store.read(lambda txn: is_held(txn, place[0], place[1] or None)):
            run.report.held += len(due.fields) + len(due.checkpoints)
            return
        if run.dry:
            run.report.fields += len(due.fields)
            run.report.checkpoints += len(due.checkpoints)
            return
        # Read before they are archived: what is written since then stays for the next sweep.
        seen = None
        if run.write is not None:
            seen = run.engine.store.read(partial(_versions_of, place=place, fields=due.fields))
        if not run.archive(lambda exporter, due=due: exporter.fields(*place, due.fields)):  # type: ignore[misc]
            return
        done = run.engine.store.transact(
            lambda txn, due=due, seen=seen: _remove(txn, run, key, place, due, seen=seen),  # type: ignore[misc]
            makes_room=True,
        )
        if done is None:
            run.report.held += len(due.fields) + len(due.checkpoints)
            return
        run.report.fields += done[0]
        run.report.checkpoints += done[1]


def _due(run: SweepRun, terms: Terms) -> _Due:
    fields = [name for name, at in terms.fields.items() if at <= run.now_ms]
    checkpoints = [number for number, at in terms.checkpoints.items() if at <= run.now_ms]
    return _Due(fields[: min(run.left, _PIECE)], checkpoints[: min(run.left, _PIECE)])


def _remove(
    txn: Txn,
    run: SweepRun,
    key: bytes,
    place: tuple[int, int],
    asked: _Due,
    *,
    seen: Mapping[str, bytes | None] | None,
) -> tuple[int, int] | None:
    """Remove due fields and checkpoints; return their counts, or None under a new hold.

    ``seen``: the versions of the fields that were archived; None without an archive.
    """
    need_alive(txn, place[0])
    if is_held(txn, place[0], place[1] or None):
        return None
    terms = read_terms(txn, key)
    due = _due(run, terms)
    fields = [name for name in asked.fields if name in due.fields]
    if seen is not None:
        now = _versions_of(txn, place=place, fields=fields)
        fields = [name for name in fields if now[name] == seen[name]]
    numbers = [number for number in asked.checkpoints if number in due.checkpoints]
    if place[1]:
        run.engine.drafts.flush_opened(txn, *place)
        head = head_of_session(txn, *place)
        seq = 0 if head is None else head.next_seq
        gone = _clear(txn, place, fields, seq=seq) if head is not None else 0
    else:
        gone = _clear(txn, place, fields, seq=0)
    dropped = sum(drop_one(txn, place, number) for number in numbers)
    rest = replace(
        terms,
        fields={name: at for name, at in terms.fields.items() if name not in fields},
        checkpoints={n: at for n, at in terms.checkpoints.items() if n not in numbers},
    )
    write_terms(txn, key, rest)
    return gone, dropped


def _versions_of(
    txn: ReadTxn, *, place: tuple[int, int], fields: list[str]
) -> dict[str, bytes | None]:
    """Return the key of each field's current version; None for one without, or damaged."""
    found: dict[str, bytes | None] = {}
    for name in fields:
        with suppress(CorruptValueError):
            version = value_at(txn, *place, name, read_header(txn, *place).counter)
            found[name] = None if version is None else version.key
    return {name: found.get(name) for name in fields}


def _clear(txn: Txn, place: tuple[int, int], fields: list[str], *, seq: int) -> int:
    """Remove fields with all their versions; return how many had a value."""
    there = [name for name in fields if _has_value(txn, place, name)]
    if there:
        change = StateChange(None)
        change.delete(there)
        change.run(txn, *place, seq=seq)
    for name in fields:
        versions = keys.state_field(keys.state_rows(*place), packed_field(name))
        size = len(versions) + 8
        rows = [key for key, _ in txn.scan(versions, keys.after(versions)) if len(key) == size]
        for key in rows[:-1]:  # the last one is the tombstone
            txn.delete(key)
    return len(there)


def _has_value(txn: ReadTxn, place: tuple[int, int], name: str) -> bool:
    try:
        return value_at(txn, *place, name, read_header(txn, *place).counter) is not None
    except CorruptValueError:
        return True


def drop_one(txn: Txn, place: tuple[int, int], number: int) -> bool:
    """Delete a checkpoint, even a damaged one; return True if there was one."""
    try:
        if read_checkpoint(txn, *place, number) is None:
            return False
    except CorruptValueError:
        pass
    drop_checkpoint(txn, *place, number)
    return True


def drop_checkpoints(run: SweepRun, place: tuple[int, int], numbers: list[int]) -> None:
    """Delete checkpoints selected by rules."""
    numbers = numbers[: run.left]
    if not numbers:
        return
    if run.engine.store.read(lambda txn: is_held(txn, *place)):
        run.report.held += len(numbers)
        return
    if run.dry:
        run.report.checkpoints += len(numbers)
        return
    for at in range(0, len(numbers), _PIECE):
        run.report.checkpoints += run.engine.store.transact(
            lambda txn, at=at: (  # type: ignore[misc]
                0
                if is_held(txn, *place)
                else sum(drop_one(txn, place, number) for number in numbers[at : at + _PIECE])
            ),
            makes_room=True,
        )


# --- Rules of a database, a scope or a session, applied to sessions -------------------------------
# The most specific rules win: those of a session replace those of its scope, which replace those of
# the database.

_PAGE: Final = 256


class _KnownSession(NamedTuple):
    updated_ms: int
    session: int
    name: str


def rules_in(terms: Terms) -> tuple[RetentionRule, ...]:
    """Parse the rules stored in terms.

    Raises:
        CorruptValueError: they were written by a later version, or are damaged.
    """
    try:
        return retention_rules(list(terms.rules or ()))
    except (InvalidOptionError, TypeError) as exc:
        msg = f"stored retention rules cannot be read: {exc}; set them again"
        raise CorruptValueError(msg, key=b"") from exc


def keep_session(run: SweepRun, scope: int, session: int, terms: Terms) -> None:
    """Apply the rules of a single session."""
    rules = _rules(run, terms)
    aged = [rule for rule in rules if rule.what == "sessions"]
    head = run.engine.store.read(lambda txn: _head(txn, run, scope, session))
    if head is None:
        return
    if any(head < (rule.since_ms(run.now_ms) or 0) for rule in aged) and remove_session(
        run, scope, session, terms.name, is_unchanged(scope, session, head)
    ):
        return
    _keep_contents(run, scope, session, rules, terms.name)


def keep_graph(run: SweepRun, scope: int, terms: Terms) -> None:
    """Apply the rules of a single thread."""
    keep_thread(run, scope, terms.name, _rules(run, terms))


def keep_scope(run: SweepRun, scope: int, terms: Terms) -> None:
    """Apply the rules of a scope, or of the database (scope 0), to sessions without their own."""
    rules = _rules(run, terms)
    if not rules:
        return
    _sweep_audit(run, scope, 0, rules)
    if scope:
        _keep_sessions(run, scope, rules)
        keep_threads(run, scope, rules)
        return
    store = run.engine.store
    for number in store.read(lambda txn: [found for found, _, _ in names.scopes(txn)]):
        if not run.left:
            return
        if store.read(lambda txn, number=number: _follows(txn, run, scope_terms(number))):  # type: ignore[misc]
            with run.apart(number):
                _sweep_audit(run, number, 0, rules)
                _keep_sessions(run, number, rules)
                keep_threads(run, number, rules)


def _rules(run: SweepRun, terms: Terms) -> tuple[RetentionRule, ...]:
    try:
        return rules_in(terms)
    except CorruptValueError:
        run.report.damaged += 1
        return ()


def _follows(txn: ReadTxn, run: SweepRun, key: bytes) -> bool:
    """Return True if a place has no rules of its own."""
    try:
        return read_terms(txn, key).rules is None
    except CorruptValueError:
        run.report.damaged += 1
        return False  # its rules are unknown, so everything stays


def _head(txn: ReadTxn, run: SweepRun, scope: int, session: int) -> int | None:
    """Return the time of a session's last change; None if missing or still being imported."""
    try:
        head = head_of_session(txn, scope, session)
    except CorruptValueError:
        run.report.damaged += 1
        return None
    return None if head is None or head.unfinished else head.updated_ms


def _keep_sessions(run: SweepRun, scope: int, rules: Sequence[RetentionRule]) -> None:
    store = run.engine.store
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


def _sessions(
    txn: ReadTxn, run: SweepRun, scope: int, start: bytes
) -> tuple[list[int], bytes | None]:
    """List sessions without rules of their own, hidden ones too; return the next page's start."""
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


def _known(run: SweepRun, scope: int) -> Iterator[_KnownSession]:
    """Yield the named sessions of a scope that have no rules of their own."""
    after: str | None = None
    while True:
        page = run.engine.store.read(lambda txn, after=after: list(_named(txn, run, scope, after)))  # type: ignore[misc]
        yield from (known for known in page if known.session)
        if len(page) < _PAGE:
            return
        after = page[-1].name


def _named(txn: ReadTxn, run: SweepRun, scope: int, after: str | None) -> Iterator[_KnownSession]:
    for at, (name, session) in enumerate(names.sessions(txn, scope, after), 1):
        updated = None
        if _follows(txn, run, session_terms(scope, session)):
            updated = _head(txn, run, scope, session)
        yield (
            _KnownSession(0, 0, name) if updated is None else _KnownSession(updated, session, name)
        )
        if at == _PAGE:
            return


def _remove_sessions(run: SweepRun, scope: int, rules: Sequence[RetentionRule]) -> None:
    """Remove whole sessions that are too old, or not among the most recent."""
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
        is_due = is_unchanged(scope, each.session, each.updated_ms)
        remove_session(run, scope, each.session, each.name, is_due)


def _keep_contents(
    run: SweepRun, scope: int, session: int, rules: Sequence[RetentionRule], name: str
) -> None:
    """Apply rules to the items, checkpoints and audit of one session."""
    place = scope, session
    items = [rule for rule in rules if rule.what == "items"]
    removing = [rule for rule in items if rule.action == "remove" and name]
    if removing:
        app, user = run.engine.store.read(lambda txn: names.scope_names(txn, scope))
        for rule in removing:
            if _is_removed(run, place, (app, user, name), rule):
                items.remove(rule)
                number = run.engine.store.read(lambda txn: names.session_of(txn, scope, name))
                place = scope, number or session
    if items:
        expire_items(run, *place, items)
    saved = [rule for rule in rules if rule.what == "checkpoints"]
    if saved:
        drop_checkpoints(run, place, _old_checkpoints(run, place, saved))
    _sweep_audit(run, *place, rules)


def _is_removed(
    run: SweepRun, place: tuple[int, int], title: tuple[str, str, str], rule: RetentionRule
) -> bool:
    try:
        return remove_beginning(run, place, title, rule)
    except CorruptValueError:
        run.report.damaged += 1
        return True


def _old_checkpoints(
    run: SweepRun, place: tuple[int, int], rules: Sequence[RetentionRule]
) -> list[int]:
    """List the checkpoints that are too old or not among the most recent; damaged ones stay."""

    def look(txn: ReadTxn) -> list[tuple[int, float]]:
        found = []
        for number in checkpoint_numbers(txn, *place):
            try:
                saved = read_checkpoint(txn, *place, number)
            except CorruptValueError:
                continue  # check() reports it, and it can be deleted by number
            if saved is not None:
                found.append((number, saved.checkpoint.created_at * 1000))
        return found

    listed = run.engine.store.read(look)
    due: set[int] = set()
    for rule in rules:
        if rule.keep_last is not None:
            due.update(number for number, _ in listed[: max(len(listed) - rule.keep_last, 0)])
        since_ms = rule.since_ms(run.now_ms)
        if since_ms is not None:
            due.update(number for number, made_ms in listed if made_ms < since_ms)
    return sorted(due)


def _sweep_audit(run: SweepRun, scope: int, session: int, rules: Sequence[RetentionRule]) -> None:
    if run.audit is None or run.dry:
        return
    for rule in rules:
        since_ms = rule.since_ms(run.now_ms)
        if rule.what == "audit" and since_ms is not None and run.left:
            if scope and run.engine.store.read(lambda txn: is_held(txn, scope, session)):
                return  # data under a hold keeps its proof
            run.report.audit += run.audit(run.engine, scope, session, since_ms, run.left)


# --- Sweep: due rows of the expiry index in order, including the rules of each place --------------


def sweep(run: SweepRun) -> None:
    """Delete everything due, up to ``run.limit`` things; each index row is read once.

    Removals that were cut off are continued first.
    """
    if not run.dry:
        resume_removals(run.engine.store)
    start: bytes | None = keys.expiry_row(0, b"")
    while start is not None:
        page, start = run.engine.store.read(lambda txn, start=start: _page(txn, run, start))  # type: ignore[misc]
        entries = [row for row in page if keys.split_expiry_row(row)[1][:1] == bytes((Kind.KV,))]
        _sweep_entries(run, entries)
        for row in page:
            if keys.split_expiry_row(row)[1][:1] == bytes((Kind.MEMORY,)) and run.left:
                _sweep_memory(run, row)
        for row in page:
            key = keys.split_expiry_row(row)[1]
            if is_terms(key):
                if not run.left:
                    break
                _sweep_terms(run, key)
        if not run.left and (page or start is not None):
            run.report.complete = False
            return


def note_sweep(run: SweepRun) -> None:
    """Record a sweep in the audit, with its counts."""
    report = run.report
    if not report.dry_run and report.total and run.engine.audit is not None:
        told = {sort: count for sort, count in report.mapping().items() if type(count) is int}
        gone = {sort: count for sort, count in told.items() if count}
        run.engine.store.transact(lambda txn: record_event(txn, 0, "sweep", gone), makes_room=True)


def _page(txn: ReadTxn, run: SweepRun, start: bytes) -> tuple[list[bytes], bytes | None]:
    """Return due rows of the index, and the start of the next page."""
    stop = keys.expiry_row(run.now_ms + 1, b"")
    rows = [row for row, _ in txn.scan(start, stop, limit=_PAGE)] if start < stop else []
    return rows, rows[-1] + b"\x00" if len(rows) == _PAGE else None


# --- entries --------------------------------------------------------------------------------------


def _sweep_entries(run: SweepRun, rows: list[bytes]) -> None:
    due, store = rows[: run.left], run.engine.store
    due = store.read(lambda txn: [row for row in due if not is_erased(txn, _scope_of(row))])
    free = store.read(lambda txn: [row for row in due if not _is_held_entry(txn, row)])
    run.report.held += len(due) - len(free)
    if run.dry:
        found = store.read(lambda txn: list(_entries(txn, free)))
        run.report.entries += len(found)
        run.report.bytes += sum(len(value) for _, value in found)
        return
    if run.write is not None and free:
        free = _archived(run, free)
    while free:
        gone, size, free, leaving = store.transact(
            lambda txn, free=free: _expire_entries(txn, run, free),  # type: ignore[misc]
            makes_room=True,
        )
        blobs.finish_leaving(store, leaving)
        run.report.entries += gone
        run.report.bytes += size


def _archived(run: SweepRun, rows: list[bytes]) -> list[bytes]:
    """Archive entries; return the index rows of those that may go: what cannot be read stays."""
    going = run.engine.store.read(lambda txn: [key for key, _ in _entries(txn, rows)])
    damaged: set[bytes] = set()
    if not run.archive(lambda exporter: _lines(run, exporter, going, damaged)):
        return []
    run.report.damaged += len(damaged)
    return [row for row in rows if keys.split_expiry_row(row)[1] not in damaged]


def _lines(
    run: SweepRun, exporter: Exporter, going: list[bytes], damaged: set[bytes]
) -> Iterator[bytes]:
    """Yield the lines of entries; add those that cannot be read to ``damaged``."""
    for key in going:
        line = b""
        try:
            with run.while_alive(keys.split_scoped(key)[0]):
                line = exporter.entry(key)
        except CorruptValueError:
            damaged.add(key)
        yield line


def _scope_of(row: bytes) -> int:
    """Return the scope of the row that an index row refers to."""
    return keys.split_scoped(keys.split_expiry_row(row)[1])[0]


def _is_held_entry(txn: ReadTxn, row: bytes) -> bool:
    return is_held(txn, _scope_of(row))


def _entries(txn: ReadTxn, rows: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries that index rows refer to, if their own expiry times agree."""
    for row in rows:
        expires_ms, key = keys.split_expiry_row(row)
        value = txn.get(key)
        try:
            if value is not None and kv.entry_of(key, value).expires_ms == expires_ms:
                yield key, value
        except CorruptValueError:
            continue  # check() reports it


def _expire_entries(
    txn: Txn, run: SweepRun, rows: list[bytes]
) -> tuple[int, int, list[bytes], list[bytes]]:
    leaving: list[bytes] = []
    free = [
        row for row in rows if not is_erased(txn, _scope_of(row)) and not _is_held_entry(txn, row)
    ]
    sizes = [len(txn.get(keys.split_expiry_row(row)[1]) or b"") for row in free]
    gone, rest = kv.expire_rows(txn, free, run.now_ms, leaving)
    return gone, sum(sizes[: len(free) - len(rest)]), rest, leaving


# --- memories -------------------------------------------------------------------------------------


def _sweep_memory(run: SweepRun, row: bytes) -> None:
    """Remove the memory that a due index row leads to, if it is due."""
    key, store = keys.split_expiry_row(row)[1], run.engine.store
    scope, number = keys.split_scoped(key)[0], keys.number_of(key)

    def look(txn: ReadTxn) -> bytes | None:
        """Return the row if it is due."""
        value = None if is_erased(txn, scope) else txn.get(key)
        due = None if value is None else memory.expires_ms_of(key, value)
        return value if due is not None and due <= run.now_ms else None

    try:
        before = store.read(look)
        if before is None:
            return
    except CorruptValueError:
        run.report.damaged += 1
        return
    if run.dry:
        held = store.read(lambda txn: is_held(txn, scope))
        run.report.held += held
        run.report.memories += not held
        return

    def is_kept(txn: ReadTxn) -> bool:
        return memory.is_kept(txn, scope, number)

    try:
        if store.read(is_kept):  # before it is archived, or each sweep would do so once more
            run.report.held += 1
            return
        if not run.archive(lambda exporter: (exporter.memory(each) for each in (key,))):
            return
    except CorruptValueError:
        run.report.damaged += 1  # a memory that cannot be archived stays
        return

    def closure(txn: Txn) -> bool | None:
        need_alive(txn, scope)
        if look(txn) != before:
            return False  # it changed since it was archived
        return memory.expire_entry(memory.Book(txn, scope, run.engine.seed), number, run.now_ms)

    with run.while_alive(scope):
        done = store.transact(closure, makes_room=True)
        run.report.held += done is None
        run.report.memories += bool(done)


# --- terms ----------------------------------------------------------------------------------------


def _sweep_terms(run: SweepRun, key: bytes) -> None:
    scope = keys.split_scoped(key)[0]
    if not run.engine.store.read(lambda txn: is_erased(txn, scope)):
        with run.apart(scope):
            _sweep_place(run, key)


def _sweep_place(run: SweepRun, key: bytes) -> None:
    try:
        terms = run.engine.store.read(lambda txn: read_terms(txn, key))
    except CorruptValueError:
        run.report.damaged += 1
        return
    scope = keys.split_scoped(key)[0]
    if key[0] == Kind.SESSION:
        _sweep_session(run, key, terms)
    elif key[10:]:
        _sweep_thread(run, key, terms)
    else:
        expire_fields(run, key, (scope, 0))
        keep_scope(run, scope, terms)


def _sweep_session(run: SweepRun, key: bytes, terms: Terms) -> None:
    scope, session = keys.split_session_prefix(key)
    if _is_due(run, terms):
        is_due = partial(_has_expired, run, key)
        if remove_session(run, scope, session, terms.name, is_due) or run.dry:
            return
        if _is_named(run, scope, session, terms.name):
            return  # held, or used in the meantime: the next sweep retries
        _forget_expiry(run, key)
    expire_fields(run, key, (scope, session))
    keep_session(run, scope, session, terms)


def _is_due(run: SweepRun, terms: Terms) -> bool:
    return terms.expires_ms is not None and terms.expires_ms <= run.now_ms


def _has_expired(run: SweepRun, key: bytes, txn: ReadTxn) -> bool:
    return _is_due(run, read_terms(txn, key))


def _is_named(run: SweepRun, scope: int, session: int, name: str) -> bool:
    return run.engine.store.read(lambda txn: names.session_of(txn, scope, name) == session)


def _forget_expiry(run: SweepRun, key: bytes) -> None:
    """Drop the expiry of a session without a name, which its forks keep."""
    if not run.dry:
        run.engine.store.transact(
            lambda txn: write_terms(txn, key, replace(read_terms(txn, key), expires_ms=None)),
            makes_room=True,
        )


def _sweep_thread(run: SweepRun, key: bytes, terms: Terms) -> None:
    scope, thread = keys.split_scoped(key)[0], int.from_bytes(key[10:], "big")

    def is_known(txn: ReadTxn) -> bool:
        return names.thread_of(txn, scope, terms.name) == thread

    if not run.engine.store.read(is_known):
        if not run.dry:  # deleted by a version that does not know terms
            run.engine.store.transact(
                lambda txn: None if is_known(txn) else drop_terms(txn, key), makes_room=True
            )
    elif _is_due(run, terms):
        remove_thread(
            run, scope, terms.name, lambda txn: is_known(txn) and _is_due(run, read_terms(txn, key))
        )
    else:
        keep_graph(run, scope, terms)


# --- Background thread that sweeps a database at intervals ----------------------------------------


class Sweeper:
    """Sweeps at intervals until it is stopped; a context manager.

    Each sweep works in small pieces, so a writer waits for at most one small transaction. An
    exception of a sweep is kept in ``error`` and passed to ``failed``; the next sweep retries.

    It only holds a weak reference to its database: if that is dropped unclosed, the sweeper ends.

    Args:
        database: the database to sweep, for as long as something else references it.
        sweep: runs one bounded sweep.
        interval_seconds: pause between the end of a sweep and the start of the next; an incomplete
            sweep is continued immediately.
        failed: called on the sweeper's thread with each exception.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        database: object,
        sweep: Callable[[Any], SweepReport],
        interval_seconds: float,
        *,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        # A lock, not an Event: the weakref callback may run while an Event's lock is held.
        self._bell = bell = allocate_lock()
        bell.acquire()
        self._database = ref(database, lambda _: _ring(bell))
        self._sweep = sweep
        self._interval = interval_seconds
        self._failed = failed
        self._stopping = False
        self._process = os.getpid()
        self.last: SweepReport | None = None
        """Report of the last sweep."""
        self.sweeps = 0
        """Number of completed sweeps."""
        self.error: Exception | None = None
        """Exception raised by the last sweep, or None."""
        self._thread = Thread(target=self._run, name="memcore-sweeper", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        is_running = self._thread.is_alive()
        return f"Sweeper(every {self._interval:g} s, {'running' if is_running else 'stopped'})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """True while the sweeper's thread runs in this process."""
        return self._process == os.getpid() and self._thread.is_alive()

    def stop(self) -> None:
        """Stop, waiting for the transaction in progress. Idempotent."""
        self._stopping = True
        _ring(self._bell)
        if self.running:
            self._thread.join()

    @property
    def stopping(self) -> bool:
        """True once ``stop`` was called."""
        return self._stopping

    def _run(self) -> None:
        while not self._stopping:
            again = False
            try:
                report = self._sweep_once()
                if report is None:
                    return
                self.last, self.error = report, None
                self.sweeps += 1
                again = not self.last.complete and self.last.total > 0
            except ClosedError:
                return
            except Exception as exc:  # noqa: BLE001 - reported, and retried
                if self._failed is not None:
                    self._failed(exc)
                self.error = _without_frames(exc)
            if not again and self._bell.acquire(True, self._interval):
                return

    def _sweep_once(self) -> SweepReport | None:
        """Run one sweep; None if the database is gone."""
        database = self._database()
        return None if database is None else self._sweep(database)


def _without_frames(error: Exception) -> Exception:
    """Strip an error's tracebacks, whose frames would keep the database alive."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        found = todo.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            todo += [found.__cause__, found.__context__]
            if isinstance(found, BaseExceptionGroup):
                todo += found.exceptions
    return error


def _ring(bell: LockType) -> None:
    with suppress(RuntimeError):  # already rung
        bell.release()
