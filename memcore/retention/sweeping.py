"""The sweep: what the index says is due, in its order, and what rules say of all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from memcore import blobs, keys, kv, names
from memcore.audit import record_event
from memcore.errors import CorruptValueError
from memcore.held import is_held
from memcore.keys import Kind
from memcore.retention.departing import remove_session
from memcore.retention.graph_threads import remove_thread
from memcore.retention.places import keep_graph, keep_scope, keep_session
from memcore.retention.report import Exporter, Run
from memcore.retention.states import expire_fields
from memcore.store.base import ReadTxn, Txn
from memcore.terms import Terms, drop_terms, is_terms, read_terms, write_terms
from memcore.tombstone import is_erased

__all__ = ["note_sweep", "sweep"]

_PAGE: Final = 256
"""Rows of the index that one snapshot looks at."""


def sweep(run: Run) -> None:
    """Remove what is due, at most ``run.limit`` things; each row of the index is looked at once."""
    start: bytes | None = keys.expiry_row(0, b"")
    while start is not None:
        page, start = run.backing.store.read(lambda txn, start=start: _page(txn, run, start))  # type: ignore[misc]
        entries = [row for row in page if keys.split_expiry_row(row)[1][:1] == bytes((Kind.KV,))]
        _sweep_entries(run, entries)
        for row in page:
            key = keys.split_expiry_row(row)[1]
            if is_terms(key):
                if not run.left:
                    break
                _sweep_terms(run, key)
        if not run.left and (page or start is not None):
            run.report.complete = False
            return


def note_sweep(run: Run) -> None:
    """Chain that a sweep removed something, and how many things of each sort."""
    report = run.report
    if not report.dry_run and report.total and run.backing.audit is not None:
        told = {sort: count for sort, count in report.mapping().items() if type(count) is int}
        gone = {sort: count for sort, count in told.items() if count}
        run.backing.store.transact(lambda txn: record_event(txn, 0, "sweep", gone), makes_room=True)


def _page(txn: ReadTxn, run: Run, start: bytes) -> tuple[list[bytes], bytes | None]:
    """Rows of the index whose time has come, and where the next page begins."""
    stop = keys.expiry_row(run.now_ms + 1, b"")
    rows = [row for row, _ in txn.scan(start, stop, limit=_PAGE)] if start < stop else []
    return rows, rows[-1] + b"\x00" if len(rows) == _PAGE else None


# --- entries --------------------------------------------------------------------------------------


def _sweep_entries(run: Run, rows: list[bytes]) -> None:
    due, store = rows[: run.left], run.backing.store
    due = store.read(lambda txn: [row for row in due if not is_erased(txn, _scope_of(row))])
    free = store.read(lambda txn: [row for row in due if not _is_held_entry(txn, row)])
    run.report.held += len(due) - len(free)
    if run.dry:
        found = store.read(lambda txn: list(_entries(txn, free)))
        run.report.entries += len(found)
        run.report.bytes += sum(len(value) for _, value in found)
        return
    if run.write is not None and free:
        found = store.read(lambda txn: list(_entries(txn, free)))
        run.archive(lambda exporter: _lines(run, exporter, found))
    while free:
        gone, size, free, leaving = store.transact(
            lambda txn, free=free: _expire_entries(txn, run, free),  # type: ignore[misc]
            makes_room=True,
        )
        blobs.finish_leaving(store, leaving)
        run.report.entries += gone
        run.report.bytes += size


def _lines(run: Run, exporter: Exporter, found: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for key, value in found:
        line = b""
        with run.while_alive(keys.split_scoped(key)[0]):
            line = exporter.entry(key, value)
        if line:
            yield line


def _scope_of(row: bytes) -> int:
    """The scope of what a row of the index leads to."""
    return keys.split_scoped(keys.split_expiry_row(row)[1])[0]


def _is_held_entry(txn: ReadTxn, row: bytes) -> bool:
    return is_held(txn, _scope_of(row))


def _entries(txn: ReadTxn, rows: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The entries behind rows of the index, if they are due by their own account."""
    for row in rows:
        expires_ms, key = keys.split_expiry_row(row)
        value = txn.get(key)
        try:
            if value is not None and kv.entry_of(key, value).expires_ms == expires_ms:
                yield key, value
        except CorruptValueError:
            continue  # check() reports it


def _expire_entries(
    txn: Txn, run: Run, rows: list[bytes]
) -> tuple[int, int, list[bytes], list[bytes]]:
    leaving: list[bytes] = []
    free = [
        row for row in rows if not is_erased(txn, _scope_of(row)) and not _is_held_entry(txn, row)
    ]
    sizes = [len(txn.get(keys.split_expiry_row(row)[1]) or b"") for row in free]
    gone, rest = kv.expire_rows(txn, free, run.now_ms, leaving)
    return gone, sum(sizes[: len(free) - len(rest)]), rest, leaving


# --- terms ----------------------------------------------------------------------------------------


def _sweep_terms(run: Run, key: bytes) -> None:
    scope = keys.split_scoped(key)[0]
    if not run.backing.store.read(lambda txn: is_erased(txn, scope)):
        with run.while_alive(scope):
            _sweep_place(run, key)


def _sweep_place(run: Run, key: bytes) -> None:
    try:
        terms = run.backing.store.read(lambda txn: read_terms(txn, key))
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


def _sweep_session(run: Run, key: bytes, terms: Terms) -> None:
    scope, session = keys.split_session_prefix(key)
    if _is_due(run, terms):
        if remove_session(run, scope, session, terms.name) or run.dry:
            return
        if _is_named(run, scope, session, terms.name):
            return  # held, or somebody used it meanwhile: the next sweep looks again
        _forget_expiry(run, key)
    expire_fields(run, key, (scope, session))
    keep_session(run, scope, session, terms)


def _is_due(run: Run, terms: Terms) -> bool:
    return terms.expires_ms is not None and terms.expires_ms <= run.now_ms


def _is_named(run: Run, scope: int, session: int, name: str) -> bool:
    return run.backing.store.read(lambda txn: names.session_of(txn, scope, name) == session)


def _forget_expiry(run: Run, key: bytes) -> None:
    """What was to go has no name any more: forks alone keep it."""
    if not run.dry:
        run.backing.store.transact(
            lambda txn: write_terms(txn, key, replace(read_terms(txn, key), expires_ms=None)),
            makes_room=True,
        )


def _sweep_thread(run: Run, key: bytes, terms: Terms) -> None:
    scope, thread = keys.split_scoped(key)[0], int.from_bytes(key[10:], "big")

    def is_known(txn: ReadTxn) -> bool:
        return names.thread_of(txn, scope, terms.name) == thread

    if not run.backing.store.read(is_known):
        if not run.dry:  # it was deleted by who knows no terms
            run.backing.store.transact(
                lambda txn: None if is_known(txn) else drop_terms(txn, key), makes_room=True
            )
    elif _is_due(run, terms):
        remove_thread(
            run, scope, terms.name, lambda txn: is_known(txn) and _is_due(run, read_terms(txn, key))
        )
    else:
        keep_graph(run, scope, terms)
