"""Integrity check of a file: every invariant of a sound file, verified row by row."""

from __future__ import annotations

import re
import shlex
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from struct import unpack
from typing import TYPE_CHECKING, Final, TypeAlias

from memcore import blobs, graph, kv, memory
from memcore._fast import pack_facts
from memcore.codec import keys
from memcore.codec.keys import Counter, Kind, Row
from memcore.codec.table import find
from memcore.codec.values import (
    FLAG_BLOB,
    FLAG_EXPIRES,
    FLAG_REWRITTEN,
    checksum_of,
    decoding,
    open_value,
)
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    KeyFileError,
    MemcoreError,
    StorageError,
    StoreAccessError,
    StoreLockedError,
)
from memcore.log import Head, decode_item, new_ledger
from memcore.log.checkpoint import (
    CheckpointRow,
    checkpoint_numbers,
    checkpoint_states,
    last_number,
    read_checkpoint,
)
from memcore.log.history import History, StoredRow, read_rows
from memcore.log.rewrite import same_calls
from memcore.model import ItemKind
from memcore.options import counted
from memcore.records import record
from memcore.retention.erasure import SCOPED_KINDS
from memcore.retention.legal_holds import check_care
from memcore.rows import index, names
from memcore.rows import lifecycle as terms
from memcore.rows.head import head_key, older_segments
from memcore.rows.index import Counts, check_counts
from memcore.rows.item import split_body
from memcore.rows.lifecycle import buried, held_in, is_erased, read_lease, session_terms
from memcore.rows.usage import read_usage
from memcore.rows.views import read_view, view_chain
from memcore.session import Engine, check_removals, is_leaving
from memcore.session.content_filter import check_demand
from memcore.session.engine import check_uses
from memcore.state import check_state, header_key, mend_state
from memcore.store import Store
from memcore.store.interface import ReadTxn
from memcore.store.store import need_newest
from memcore.tokens import TokenCounter
from memcore.wire import get_policy

if TYPE_CHECKING:
    from memcore.maintenance.salvage_rows import RowSelector

__all__ = [
    "RepairAction",
    "RepairPlan",
    "SessionCheck",
    "chained",
    "check_checkpoints",
    "check_database",
    "check_expiries",
    "check_references",
    "check_shared",
    "counted_references",
    "label_of",
    "lost_shared",
    "mend_shared",
    "plan_repairs",
    "shared_rows",
]


# --- Checking a session's checkpoints: everything each refers to exists and is unchanged ----------


def check_checkpoints(
    txn: ReadTxn, scope: int, session: int, head: Head, live: History
) -> Iterator[str]:
    """Verify a session's checkpoints; yield the findings as text."""
    try:
        last_number(txn, scope, session)
    except CorruptValueError as exc:
        yield str(exc)
    stops = {session: head.next_seq}
    for number in checkpoint_numbers(txn, scope, session):
        try:
            saved = read_checkpoint(txn, scope, session, number)
            if saved is None:
                continue
            history = saved.history(txn, scope)
            _take_in_ancestors(txn, scope, head.parent_session, stops)
            found = _refers_astray(history, stops) or _breaks(txn, scope, saved, history, live)
            if not found and saved.view[1] and read_view(txn, scope, *saved.view) is None:
                found = f"view {saved.view[1]} of session {saved.view[0]} is missing"
        except CorruptValueError as exc:
            yield str(exc)
        else:
            if found:
                yield f"{saved.where}: {found}"


def _take_in_ancestors(txn: ReadTxn, scope: int, parent: int, stops: dict[int, int]) -> None:
    """Add the next seqs of a session's ancestors to ``stops``."""
    while parent and parent not in stops:
        key = head_key(scope, parent)
        value = txn.get(key)
        if value is None:
            return
        head = Head.unpack(key, value)
        stops[parent] = head.next_seq
        parent = head.parent_session


def _refers_astray(history: History, stops: dict[int, int]) -> str:
    for session, _, hi in history.segments:
        if session not in stops:
            return f"it refers to items of session {session}, which is none that it was forked from"
        if hi >= stops[session]:
            return f"it refers to item {hi} of session {session}, which never had it"
    return ""


def _breaks(txn: ReadTxn, scope: int, saved: CheckpointRow, history: History, live: History) -> str:
    """Verify a checkpoint's prefix hashes over items that are no longer live.

    Returns:
        The finding; empty if there is none.
    """
    start = history.shared_with(live)
    chain = 0
    if start:
        chain = history.chain_at(txn, scope, history.seq_at(start - 1)) or 0
    for _, session, lo, hi in history.spans(start, history.count):
        seq = lo
        for seq, row in enumerate(index.records(txn, scope, session, lo, hi), lo):
            found = int(index.RECORD.unpack_from(row)[2])
            if chained(txn, keys.session_row(scope, session, Row.ITEM, seq), chain) not in (
                found,
                None,
            ):
                return f"the prefix hash at item {seq} does not match the items before it"
            chain = found
        if seq != hi:
            return f"item {seq} has no index record"
    return "" if chain == saved.chain else "its prefix hash is not that of its last item"


def chained(txn: ReadTxn, key: bytes, before: int) -> int | None:
    """Return the prefix hash after a stored item; None if the item is damaged."""
    value = txn.get(key)
    if value is None:
        return None
    try:
        open_value(key, value)
    except CorruptValueError:
        return None
    return index.chain_after(before, checksum_of(value))


# --- Checking entries and the expiry index: it leads to exactly the rows that expire --------------

_PAGE: Final = 1000
_ENTRY_AT: Final = 17
_Look: TypeAlias = Callable[[ReadTxn, bytes, bytes], Iterator[str]]


def check_expiries(engine: Engine) -> Iterator[str]:
    """Yield undecodable entries, dangling rows of the expiry index, and rows missing from it.

    Each page is read in its own snapshot.
    """
    for kind, look in _LOOKS:
        start: bytes | None = bytes((kind,))
        while start is not None:

            def page(
                txn: ReadTxn, start: bytes = start, look: _Look = look, stop: int = kind + 1
            ) -> tuple[list[str], bytes | None]:
                rows = list(txn.scan(start, bytes((stop,)), limit=_PAGE))
                found = [what for row in rows for what in look(txn, *row)]
                return found, keys.behind(rows[-1][0]) if len(rows) == _PAGE else None

            found, start = engine.store.read(page)
            yield from found


def _memory(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    with suppress(CorruptValueError):  # reported as a damaged row
        open_value(key, value)
        yield from _has_row(txn, key, value)


def check_terms(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    """Verify that a terms row can be decoded and is in the expiry index; yield the findings."""
    return _terms(txn, key, value)


def _leads(txn: ReadTxn, row: bytes, _: bytes) -> Iterator[str]:
    due, key = keys.split_expiry_row(row)
    value = txn.get(key) if key else None
    at = None
    if value is not None:
        try:
            at = _due(key, value)
        except CorruptValueError:
            return  # reported as a damaged row
    if at != due and not (key and is_erased(txn, keys.split_scoped(key)[0])):
        yield f"the index by expiry has a row {row.hex()} that leads to nothing that expires then"


def _due(key: bytes, value: bytes) -> int | None:
    if terms.is_terms(key):
        return terms.terms_of(key, value).due_ms
    if key[0] == Kind.MEMORY:
        return memory.expires_ms_of(key, value)
    return kv.entry_of(key, value).expires_ms if key[0] == Kind.KV else None


def _entry(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    try:
        open_value(key, value)
    except CorruptValueError:
        return  # reported as a damaged row
    try:
        with decoding(key, "entry"):
            keys.unpack_text(key[_ENTRY_AT:])
            kv.entry_of(key, value).value()
    except CorruptValueError as exc:
        yield str(exc)
    if any(flags & FLAG_EXPIRES for flags in value[1:2]):
        yield from _has_row(txn, key, value)


def _terms(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    if terms.is_terms(key):
        yield from _has_row(txn, key, value)


def _has_row(txn: ReadTxn, key: bytes, value: bytes) -> Iterator[str]:
    try:
        due = _due(key, value)
    except CorruptValueError as exc:
        if terms.is_terms(key):
            yield str(exc)
        return
    if due is not None and txn.get(keys.expiry_row(due, key)) is None:
        yield f"the index by expiry has no row for {key.hex()}, which expires at {due} ms"


_LOOKS: Final = (
    (Kind.EXPIRY, _leads),
    (Kind.KV, _entry),
    (Kind.CARE, _terms),
    (Kind.MEMORY, _memory),
)


# --- References from rows to blobs, against which the stored counts are checked -------------------

_ROW_AT: Final = 17


def counted_references(txn: ReadTxn, scope: int) -> Counted[bytes]:
    """Count the scope's references to each blob slot; damaged rows are skipped."""
    found: Counted[bytes] = Counted()
    for ref in (*_of_items(txn, scope), *_of_addresses(txn, scope)):
        found[blobs.slot_of(ref)] += 1
    for _, ref in kv.references(txn, scope):
        found[blobs.slot_of(ref)] += 1
    return found


def _of_items(txn: ReadTxn, scope: int) -> Iterator[blobs.BlobRef]:
    prefix = keys.scoped(Kind.SESSION, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        if key[_ROW_AT : _ROW_AT + 1] == bytes((Row.ITEM,)) and _has_blob(value):
            with suppress(CorruptValueError):
                yield blobs.BlobRef.unpack(split_body(open_value(key, value)[1])[3])


def _has_blob(value: bytes) -> bool:
    return any(flags & FLAG_BLOB for flags in value[1:2])  # a damaged value may have no flags


def _of_addresses(txn: ReadTxn, scope: int) -> Iterator[blobs.BlobRef]:
    prefix = keys.scoped(Kind.BLOB_ADDRESS, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        with suppress(CorruptValueError):
            yield blobs.BlobRef.unpack(open_value(key, value)[1])


def check_references(txn: ReadTxn, scope: int) -> Iterator[str]:
    """Verify reference counts against the rows, and that the contents of entries are stored.

    ``blobs.check`` reports unreadable counts and damaged blobs.
    """
    for key, ref in kv.references(txn, scope):
        with suppress(CorruptValueError):
            if not blobs.exists(txn, scope, ref):
                yield f"the entry under key {key.hex()}: its content is not stored"
    found = counted_references(txn, scope)
    prefix = keys.scoped(Kind.BLOB_REFS, scope)
    slots = {keys.split_scoped(key)[1] for key, _ in txn.scan(prefix, keys.after(prefix))}
    for slot in sorted(found.keys() | slots):
        with suppress(CorruptValueError):
            says = blobs.references(txn, scope, slot)
            if says != found[slot] and blobs.header_of(txn, scope, slot) is not None:
                yield (
                    f"scope {scope}: reference count of the blob {slot.hex()}: it says {says}, "
                    f"{counted(found[slot], 'row refers', 'rows refer')} to it"
                )


# --- States shared by sessions: checking them, and salvaging them ---------------------------------


def check_shared(txn: ReadTxn, scope: int) -> list[str]:
    """Verify the state that a scope's sessions share; return the findings as text."""
    try:
        return [f"scope {scope}: {what}" for what in check_state(txn, scope, 0, pinned=())]
    except MemcoreError as exc:
        return [f"the state of scope {scope} cannot be checked: {exc}"]


def label_of(app: str, user: str) -> str:
    """Describe a shared state by its owner."""
    return f"the state of user {user!r} in app {app!r}" if user else f"the state of app {app!r}"


# --- Salvage of shared states ---------------------------------------------------------------------


def shared_rows(sieve: RowSelector) -> Iterator[tuple[bytes, bytes]]:
    """The rows to copy: the headers, and the newest version found of each field.

    Older versions were removed when it was written; a deletion counts as a version.
    """
    newest: dict[bytes, bytes] = {}
    for key in sieve.chosen:
        if key[0] != Kind.STATE:
            continue
        if key == header_key(*keys.state_place(key)):
            yield key, sieve.value(key)
        else:
            versions = key[:-8]
            newest[versions] = max(key, newest.get(versions, key))
    for key in newest.values():
        yield key, sieve.value(key)


def mend_shared(store: Store) -> None:
    """Write headers that match the rows."""
    for scope in store.read(lambda txn: names.scopes_with_rows(txn, Kind.STATE)):
        store.transact(lambda txn, scope=scope: mend_state(txn, scope, 0, pinned=()))  # type: ignore[misc]


def lost_shared(sieve: RowSelector) -> Iterator[str]:
    """Fields whose row exists but is damaged."""
    for key in sieve.wreck.damaged:
        if key[0] == Kind.STATE and key not in sieve.chosen:
            with suppress(CorruptValueError):
                scope = keys.state_place(key)[0]
                field = keys.split_state_row(key)[0]
                where = label_of(*sieve.scopes.get(scope, ("?", f"of scope {scope}")))
                yield f"field {field!r} of {where}, as far as it reads"


# --- Checking everything: the invariants of a sound file, row by row ------------------------------

_ROWS_PAGE: Final = 1000
_TOLD_MAX: Final = 1000
_BLOB_KINDS: Final = (Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS, Kind.BLOB_ADDRESS, Kind.KV)
"""Rows of blobs, and those whose contents are blobs."""
_MEMORY_KINDS: Final = (Kind.MEMORY, Kind.SEARCH, Kind.KV_NAMESPACE)
"""Its rows, its documents in the index, and its notes of the roots of sessions."""
_DAMAGED: Final = "the value under key "
"""Prefix of a finding about a damaged row, which the session's check reports in more detail."""
_UNSAFE: Final = (
    "the rows were not checked: reading a file of damaged structure may end the process; restore a "
    "backup or salvage what can be read"
)


def check_database(engine: Engine, progress: Callable[[int, int], None] | None) -> list[str]:
    """Findings about the whole database, as text; empty means sound.

    Checks the file structure first, then every row's checksum, then the consistency between rows,
    with one read transaction per session, so that concurrent changes by other handles are not
    reported. Nor are remains of erased users, or data in a backup that can no longer be decrypted
    because its user has been erased since.

    Raises:
        StoreAccessError, StoreLockedError: the file cannot be read now, such as one that is read
            without its lock file and was changed meanwhile.
    """
    findings = list(engine.store.check())
    if findings:
        return [*findings, _UNSAFE]
    try:
        damaged = list(_damaged_rows(engine))
        rows = _check_keys(engine) + _check_rows(engine, progress)
    except (StoreAccessError, StoreLockedError):
        raise
    except StorageError as exc:
        return [f"the check was cut short: {exc}"]
    told = {what[what.find(_DAMAGED) :] for what in rows}
    return [what for what in damaged if what not in told] + rows


def _check_rows(engine: Engine, progress: Callable[[int, int], None] | None) -> list[str]:
    """Verify the references between rows; return the findings."""
    findings = engine.store.read(check_removals)
    findings += engine.store.read(lambda txn: check_care(txn, partial(_is_shredded, engine)))
    findings += engine.store.read(lambda txn: check_demand(txn, engine.store.path))
    named: dict[tuple[int, int], str] = {}
    scopes: list[int] = []
    # Of most files, nothing: what checks such rows is then not even loaded.
    storing = engine.store.read(lambda txn: names.scopes_with_rows(txn, *_BLOB_KINDS))
    threaded = engine.store.read(names.scopes_with_threads)
    indexed = engine.store.read(lambda txn: names.scopes_with_rows(txn, Kind.SEARCH))
    remembering = engine.store.read(lambda txn: names.scopes_with_rows(txn, *_MEMORY_KINDS))
    for scope, wrong in engine.store.read(_scopes):
        scopes.append(scope)
        found = wrong
        if scope in storing:
            found += engine.store.read(partial(_blobs_of, scope=scope))
        named.update(_names_of(engine, scope, found))
        if scope in threaded:
            found += graph.check_threads(engine.store.read, scope)
        if scope in indexed:
            found += engine.store.read(partial(_index_of, scope=scope))
        found += engine.store.read(lambda txn, scope=scope: check_shared(txn, scope))  # type: ignore[misc]
        if scope in remembering:
            found += engine.store.read(partial(_memory_of, scope=scope, seed=engine.seed))
        findings += _of_living(engine, scope, found)
    findings += check_expiries(engine)
    findings += engine.store.read(_nameless)
    sessions = engine.store.read(names.sessions_with_rows)
    for done, (scope, session) in enumerate(sessions):
        name = named.get((scope, session))
        where = f"session {session} of scope {scope}" if name is None else f"session {name!r}"
        checker = SessionCheck(engine, scope, session, named=name is not None)
        found = [f"{where}: {what}" for what in engine.store.read(checker.run)]
        findings += _of_living(engine, scope, found)
        if progress is not None:
            progress(done + 1, len(sessions))
    findings += _check_counters(engine, scopes, sessions)
    for place in sorted(named.keys() - set(sessions)):
        if not engine.store.read(lambda txn, place=place: _is_deleted(txn, *place)):  # type: ignore[misc]
            found = [f"session {named[place]!r}: its head is missing"]
            findings += _of_living(engine, place[0], found)
    return findings


def _check_counters(
    engine: Engine, scopes: list[int], sessions: list[tuple[int, int]]
) -> Iterator[str]:
    """Yield findings about counters that would hand out a number already in use."""
    used = {Counter.SCOPE: scopes, Counter.SESSION: [session for _, session in sessions]}
    for which, kind in (
        (Counter.NAMESPACE, Kind.KV_NAMESPACE),
        (Counter.THREAD, Kind.THREAD_NAME),
    ):
        used[which] = [
            number
            for scope in scopes
            for number in engine.store.read(
                lambda txn, scope=scope, kind=kind: names.found_names(txn, kind, scope)[0]  # type: ignore[misc]
            )
        ]
    for which, numbers in used.items():  # read the counters last: they only grow
        last = max(numbers, default=0)
        yield from engine.store.read(
            lambda txn, which=which, last=last: list(names.check_counter(txn, which, last))  # type: ignore[misc]
        )


def _of_living(engine: Engine, scope: int, findings: list[str]) -> list[str]:
    """Drop the findings of a scope whose user was erased, possibly during the check."""
    if not findings:
        return findings
    if _is_shredded(engine, scope) or engine.store.read(lambda txn: is_erased(txn, scope)):
        return []
    return findings


def _is_shredded(engine: Engine, scope: int) -> bool:
    vault = engine.store.vault
    return vault is not None and vault.is_shredded(scope)


def _check_keys(engine: Engine) -> list[str]:
    """Verify that the key file of an encrypted database is complete; return the findings."""
    vault = engine.store.vault
    if vault is None:
        return []
    try:
        need_newest(engine.store.environment(), vault)
    except KeyFileError as exc:
        return [str(exc)]
    return []


def _nameless(txn: ReadTxn) -> list[str]:
    """Scopes that have rows but no name, and were not erased."""
    start = bytes((Kind.SCOPE,))
    known = {keys.number_of(key) for key, _ in txn.scan(start, keys.after(start))}
    known.update(buried(txn))
    findings = []
    for what, scopes in (
        ("a state", names.scopes_with_rows(txn, Kind.STATE)),
        ("sessions", [scope for scope, _ in names.sessions_with_rows(txn)]),
        ("threads", names.scopes_with_threads(txn)),
        ("memories", names.scopes_with_rows(txn, Kind.MEMORY)),
    ):
        stray = sorted(set(scopes) - known)
        findings += [f"scope {scope} has {what}, but no row names it" for scope in stray]
    return findings


def _index_of(txn: ReadTxn, *, scope: int) -> list[str]:
    """Verify the search index of a scope; return the findings."""
    from memcore.session import check_index  # noqa: PLC0415 - few files have an index

    return list(check_index(txn, scope))


def _memory_of(txn: ReadTxn, *, scope: int, seed: bytes) -> list[str]:
    """Verify the long-term memory of a scope; return the findings."""
    try:
        checks = (
            memory.check_entries, memory.check_playbooks, memory.check_jobs, memory.check_grants,
        )  # fmt: skip
        found = [what for check in checks for what in check(txn, scope, seed)]
        return [f"scope {scope}: {what}" for what in (*found, *memory.check_roots(txn, scope))]
    except MemcoreError as exc:
        return [f"the memory of scope {scope} cannot be checked: {exc}"]


def _blobs_of(txn: ReadTxn, *, scope: int) -> list[str]:
    try:
        return [*blobs.check(txn, scope), *check_references(txn, scope)]
    except MemcoreError as exc:
        return [f"the blobs of scope {scope} cannot be checked: {exc}"]


def _damaged_rows(engine: Engine) -> Iterator[str]:
    """Every row whose value fails its checksum."""
    start: bytes | None = b"\x01"
    while start is not None:
        found, start = engine.store.read(lambda txn, start=start: _check_page(txn, start))  # type: ignore[misc]
        for scope, damaged in found.items():
            yield from _of_living(engine, scope, damaged)


def _check_page(txn: ReadTxn, start: bytes) -> tuple[dict[int, list[str]], bytes | None]:
    """Verify the next page of rows; return findings by scope (0: no scope) and the next key."""
    found: dict[int, list[str]] = {}
    key = None
    rows = 0
    for key, value in txn.scan(start, b"\xff", limit=_ROWS_PAGE):
        rows += 1
        try:
            open_value(key, value)
        except CorruptValueError as exc:
            scope = int.from_bytes(key[1:9], "big") if key[0] in SCOPED_KINDS else 0
            found.setdefault(scope, []).append(str(exc))
    following = None if key is None or rows < _ROWS_PAGE else keys.behind(key)
    return found, following


def _scopes(txn: ReadTxn) -> list[tuple[int, list[str]]]:
    """The scopes in numeric order, each with the findings about its name."""
    found: list[tuple[int, list[str]]] = []
    start = bytes((Kind.SCOPE,))
    for key, _ in txn.scan(start, keys.after(start)):
        scope, wrong = keys.number_of(key), list[str]()
        try:
            app, user = names.scope_names(txn, scope)
            if _numbered(txn, app, user) != scope:
                wrong.append(f"scope {scope} (user {user!r}, app {app!r}) has no name row")
        except MemcoreError as exc:
            wrong.append(f"scope {scope}: {exc}")
        found.append((scope, wrong))
    return found


def _numbered(txn: ReadTxn, app: str, user: str) -> int | None:
    """The scope of a name row; without a user, the application's scope."""
    return names.scope_of(txn, app, user) if user else names.app_scope_of(txn, app)


def _names_of(engine: Engine, scope: int, findings: list[str]) -> dict[tuple[int, int], str]:
    try:
        listed = engine.store.read(lambda txn: list(names.sessions(txn, scope)))
    except (StoreAccessError, StoreLockedError):
        raise
    except MemcoreError as exc:
        findings.append(f"the session names of scope {scope} cannot be read: {exc}")
        return {}
    return {(scope, session): name for name, session in listed}


def _is_deleted(txn: ReadTxn, scope: int, session: int) -> bool:
    """Return True if a session has lost its name since it was listed."""
    return all(number != session for _, number in names.sessions(txn, scope))


class SessionCheck:
    """The check of one session in one snapshot."""

    def __init__(self, engine: Engine, scope: int, session: int, *, named: bool) -> None:
        self.engine = engine
        self.scope = scope
        self.session = session
        self.named = named

    def run(self, txn: ReadTxn) -> list[str]:
        """Verify the session; return the findings as text."""
        if names_gone(txn, self.scope, self.session):
            return []  # deleted since it was listed
        try:
            return list(self._findings(txn))
        except MemcoreError as exc:
            return [str(exc)]

    def _findings(self, txn: ReadTxn) -> Iterator[str]:
        key = head_key(self.scope, self.session)
        value = txn.get(key)
        if value is None:
            yield "its head is missing"
            return
        head = Head.unpack(key, value)
        if head.hidden and is_leaving(txn, self.scope, self.session):
            return  # deleted, but not all rows are removed yet
        if not self.named and not head.hidden and not self._has_name(txn):
            yield "it has rows but no name"
        older = older_segments(txn, self.scope, head.link_session, head.link_block)
        history = History(older + head.segments)
        if history.count != head.count:
            held = counted(history.count, "item")
            yield f"its segments hold {held}, its head says {head.count:,}"
            return
        yield from self._own_rows(txn, head)
        yield from self._strays(txn, head)
        try:
            yield from check_counts(txn, self.scope, self.session, head)
        except CorruptValueError as exc:
            yield str(exc)
        yield from self._live(txn, head, history)
        yield from check_checkpoints(txn, self.scope, self.session, head, history)
        yield from self._relatives(txn, head)
        yield from self._usage(txn, head)
        read_lease(txn, self.scope, self.session)
        yield from self._held(txn)
        pinned = checkpoint_states(txn, self.scope, self.session)
        yield from check_uses(txn, self.scope, self.session)
        yield from check_state(txn, self.scope, self.session, pinned=pinned)
        said = txn.get(key := session_terms(self.scope, self.session))
        if said is not None:
            yield from check_terms(txn, key, said)

    def _held(self, txn: ReadTxn) -> Iterator[str]:
        """Verify that each quarantined original has a placeholder."""
        for held in held_in(txn, self.scope, self.session):
            if txn.get(keys.session_row(self.scope, self.session, Row.ITEM, held.seq)) is None:
                yield f"item {held.seq} is in the quarantine, and has no placeholder"

    def _relatives(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Verify the references to views, parent and forks."""
        last = None
        for stored in view_chain(txn, self.scope, head.view_session, head.view_number):
            last = stored
        owner, number = head.view_session, head.view_number
        if last is not None:
            owner, number = last.parent_owner, last.view.parent
        if number:
            yield f"view {number} of session {owner} is missing"
        parent = head.parent_session
        if parent:
            row = keys.session_row(self.scope, parent, Row.CHILD, self.session)
            if txn.get(row) is None:
                yield f"session {parent}, from which it was forked, does not list it"
        start = keys.session_row(self.scope, self.session, Row.CHILD, 0)
        stop = keys.session_row(self.scope, self.session, Row.CHILD + 1, 0)
        for key, _ in txn.scan(start, stop):
            child = keys.number_of(key)
            if txn.get(head_key(self.scope, child)) is None:
                yield f"it lists session {child} as a fork, which is gone"

    def _usage(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Verify that usage reports are anchored at items that existed."""
        for learned in read_usage(txn, self.scope, self.session):
            anchor = learned.anchor
            if anchor is not None and anchor.seq >= head.next_seq:
                yield f"its usage is anchored at item {anchor.seq}, which it never had"

    def _has_name(self, txn: ReadTxn) -> bool:
        return any(number == self.session for _, number in names.sessions(txn, self.scope))

    def _own_rows(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Verify every item the session owns, including undone ones, against its index record."""
        first, stop = head.parent_seq + 1, head.next_seq
        if first == stop:
            return
        records = index.records(txn, self.scope, self.session, first, stop - 1)
        rows = read_rows(txn, self.scope, self.session, position=0, lo=first, hi=stop - 1)
        told = 0
        for row in rows:
            record = next(records, None)
            if isinstance(row, CorruptValueError):
                yield str(row)
                told += 1
                if told == _TOLD_MAX:  # a damaged head may claim any number of items
                    yield f"more than {told:,} of its {stop - first:,} items are damaged or missing"
                    return
            elif record is None:
                yield f"item {row[1]} has no index record"
            else:
                yield from self._item(txn, row, record)
        if next(records, None) is not None:
            yield "its index holds more records than items"

    def _strays(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Verify that no item or index page is outside the range recorded in the head."""
        first, stop = head.parent_seq + 1, head.next_seq
        for row, what in ((Row.ITEM, "items"), (Row.INDEX, "index pages")):
            for lo, hi in ((0, first), (stop, 2**64 - 1)):
                start, end = (keys.session_row(self.scope, self.session, row, n) for n in (lo, hi))
                if any(True for _ in txn.scan(start, end, limit=1)):
                    yield f"it has {what} outside of {first}..{stop - 1}, which its head claims"

    def _item(self, txn: ReadTxn, row: StoredRow, record: bytes) -> Iterator[str]:
        _, seq, flags, body = row
        payload = None
        if body[:1] != record[index.RECORD.size : index.RECORD.size + 1]:
            yield f"item {seq}: its row and its index record are of different kinds"
        if flags & FLAG_BLOB:
            try:
                ref = blobs.BlobRef.unpack(split_body(body)[3])
                payload = blobs.read(txn, self.scope, ref)
            except MemcoreError as exc:
                yield f"item {seq}: {exc}"
                return
        try:
            item = decode_item(seq, body, flags, 0, payload)
        except CorruptValueError as exc:
            yield str(exc)
            return
        if item.kind == ItemKind.EVENT:
            return
        facts, known = pack_facts(item.message, self.engine.seed), record[index.RECORD.size :]
        if facts != known and not (flags & FLAG_REWRITTEN and same_calls(facts, known)):
            yield f"item {seq}: its index record names other calls than the item does"

    def _live(self, txn: ReadTxn, head: Head, history: History) -> Iterator[str]:
        """Verify the prefix hashes along the live history, and the ledger's totals."""
        chain = 0
        counter: TokenCounter | None = None
        with suppress(CounterUnavailableError):
            counter = self.engine.counter_named(head.counter)
        ledger = new_ledger(get_policy(head.policy), counter)
        counts, tag = Counts.of(head), index.counter_tag(head.counter)
        known: Sequence[int] = ()
        try:
            edge = history.position_from(counts.stop)
            known = unpack(f"<{edge}I", counts.read(txn, self.scope, 0, edge))
        except CorruptValueError as exc:
            yield str(exc)
            counter, edge = None, history.count  # the sum cannot be computed
        for position, session, lo, hi in history.spans(0, history.count):
            records = index.records(txn, self.scope, session, lo, hi)
            for seq in range(lo, hi + 1):
                record = next(records, None)
                if record is None:
                    yield f"item {seq} has no index record"
                    return
                tokens, _, found, by = index.RECORD.unpack_from(record)
                at = position + seq - lo
                if at >= edge and by != tag:
                    yield f"item {seq} was not counted by {head.counter!r}, the session's counter"
                    return
                if at < len(known):
                    tokens = known[at]
                ledger.push(record[index.RECORD.size :], tokens)
                key = keys.session_row(self.scope, session, Row.ITEM, seq)
                if chained(txn, key, chain) not in (found, None):
                    yield f"the prefix hash at item {seq} does not match the items before it"
                    return
                chain = found
        if chain != head.chain:
            yield "the prefix hash in the head is not that of its last item"
        # Without the counter, the tokens of synthetic answers to abandoned calls are unknown.
        tokens = head.tokens if counter is None else ledger.tokens
        if (tokens, ledger.open_count) != (head.tokens, head.open_calls):
            yield (
                f"its head says {counted(head.tokens, 'token')} and "
                f"{counted(head.open_calls, 'open call')}, its index {ledger.tokens:,} and "
                f"{ledger.open_count:,}"
            )


def names_gone(txn: ReadTxn, scope: int, session: int) -> bool:
    """Return True if the session has no rows left."""
    prefix = keys.session_prefix(scope, session)
    return not any(True for _ in txn.scan(prefix, keys.after(prefix), limit=1))


# --- Repair plan: the actions required by the findings of a check, in order -----------------------

_KEY = re.compile(r"\bkey ([0-9a-f]{2,})\b")
"""Matches the key of a row, in hex, in a finding."""


class Damage(Enum):
    """Kinds of damage, worst first: the affected part, the effect of a salvage, other remedies."""

    STRUCTURE = (
        "pages of the file",
        "reads every page that can be read, and loses the rows that only damaged pages hold",
        "",
    )
    NAME = (
        "names of scopes and sessions",
        "keeps the sessions; those whose name is lost get one made of their number",
        "",
    )
    HEAD = (
        "what a session says of itself",
        "rebuilds it from its items; the last changes of it may be told wrong, as an undo",
        "",
    )
    ITEM = (
        "items",
        "keeps the other items of the session, and loses these",
        "'memcore recover SESSION' makes the session usable again without these",
    )
    BLOB = (
        "the content of blobs and large items",
        "keeps the others, and loses these and the items that refer to them",
        "put the same content again",
    )
    THREAD = (
        "threads of graphs: their checkpoints, values and chunks",
        "keeps what is whole; a value of which a part is lost says so when it is read",
        "go on from an older checkpoint, or put the value again: its parts are stored anew",
    )
    KEY_VALUE = (
        "key/value entries",
        "keeps the others, and loses these",
        "set the entry again, or delete it",
    )
    VIEW = (
        "compactions",
        "keeps all items, and loses these summaries",
        "compact again afterwards",
    )
    CHECKPOINT = (
        "checkpoints",
        "keeps all items, and loses these saved positions",
        "delete it (session.delete_checkpoint(NUMBER)): items and other checkpoints stay",
    )
    RELATION = (
        "what forks and their parents know of each other",
        "keeps all items, and writes it anew",
        "",
    )
    INDEX = ("the index of a session", "loses nothing: the index is made anew from the items", "")
    TOKENS = (
        "the token counts of a session",
        "loses nothing: the items are counted anew",
        "count them anew in place: memcore recount SESSION with the session's counter",
    )
    REFERENCE = (
        "counts of references to blobs",
        "loses nothing: the references are counted anew",
        "",
    )
    REQUEST = (
        "records of idempotency keys",
        "keeps all items; a retry with such a key is stored once more",
        "wait: they are forgotten a week after they were made",
    )
    USAGE = (
        "calibrations of token counts",
        "keeps all items; the calibration is learned anew",
        "nothing needs to be done: the next report_usage writes it anew",
    )
    STATE = (
        "fields of states",
        "keeps the other fields; of these it keeps what they were before, if that was not trimmed",
        "write the fields anew with the state's update()",
    )
    MEMORY = (
        "long-term memories",
        "keeps the others with the items that they rest on, and loses these",
        "forget what is damaged with scope.memory.clear(), and import the rest from an export",
    )
    CARE = (
        "legal holds, opting out of memory, and erasures",
        "keeps holds and opt-outs that are whole, and leaves out all of who was erased",
        "memcore hold shows and sets holds; memcore erase --finish goes on with erasures",
    )
    LEASE = (
        "leases",
        "keeps all items; nobody holds the session",
        "session.recover() takes them away: nobody holds the session then",
    )
    SEARCH = (
        "search indexes",
        "loses nothing: they are left out, and the next search builds them anew",
        "build them anew in place: db.reindex()",
    )
    MARK = (
        "counters, and marks of what expires or is being removed",
        "loses nothing: they are made anew",
        "",
    )

    @property
    def about(self) -> str:
        """The damaged part."""
        return str(self.value[0])

    @property
    def salvage(self) -> str:
        """The effect of ``memcore salvage`` on the damaged part."""
        return str(self.value[1])

    @property
    def instead(self) -> str:
        """A remedy that needs no new file; empty if there is none."""
        return str(self.value[2])


# Compiled with the first finding: that takes longer than the check of a small file.
_WORDS: Final = (
    (r"search index", Damage.SEARCH),
    (r"^the counter of|is listed for removal, but in use", Damage.MARK),
    (r"the index by expiry|^the terms", Damage.MARK),
    (r"erased scope|holds and erasures|the holds of the database", Damage.CARE),
    (r"as a fork|it was forked, does not list it", Damage.RELATION),
    (r"token counts|\brecount \d+|was not counted by", Damage.TOKENS),
    (r"field .* of its state|counter \d+ of its state|its state is said", Damage.STATE),
    (r"\bcheckpoint \d+", Damage.CHECKPOINT),
    (r"\bview \d+ of session \d+ is missing", Damage.VIEW),
    (r"its usage is anchored", Damage.USAGE),
    (r"reference count of the blob|its reference is not counted", Damage.REFERENCE),
    (r"chunks of the blob|\bblob [0-9a-f]+: |blob address|the blobs of scope", Damage.BLOB),
    (r"large content of item|item \d+: .*\bblob\b", Damage.BLOB),
    (r"index page|index record|its index\b|the index of session", Damage.INDEX),
    (r"item \d+ (cannot be decoded|of session \d+ is missing)", Damage.ITEM),
    (r"has no name row|no row names it|rows but no name|session names of scope", Damage.NAME),
    (r"^thread |^the pool \d+ of scope|thread names of scope", Damage.THREAD),
    (r"^session ", Damage.HEAD),
    (r"^the state of scope", Damage.STATE),
    (
        r"^the memory of scope|^scope \d+: (memor|the memory|the index row|the head of)",
        Damage.MEMORY,
    ),
    (r"^scope \d+: ", Damage.NAME),
)


@record(frozen=True, slots=True)
class RepairAction:
    """The remedies for all findings of one kind of damage."""

    about: str
    """The damaged part."""
    findings: tuple[str, ...]
    salvage: str
    """The effect of a salvage on the damaged part."""
    instead: str
    """A remedy that needs no new file; empty if there is none."""


@record(frozen=True, slots=True)
class RepairPlan:
    """The steps of a repair, and their effect on each finding."""

    steps: tuple[str, ...]
    """Instructions in the order to follow them."""
    repairs: tuple[RepairAction, ...]
    """Every finding once, the worst damage first."""


def plan_repairs(findings: Iterable[str], path: str) -> RepairPlan:
    """Plan the repair of the findings of ``Database.check``; empty without findings."""
    sorts: dict[Damage, list[str]] = {}
    for finding in findings:
        sorts.setdefault(damage_of(finding), []).append(finding)
    if not sorts:
        return RepairPlan((), ())
    repairs = tuple(
        RepairAction(damage.about, tuple(sorts[damage]), damage.salvage, damage.instead)
        for damage in Damage
        if damage in sorts
    )
    return RepairPlan(_steps(shlex.quote(path)), repairs)


def damage_of(finding: str) -> Damage:
    """Classify a finding; an unrecognized one counts as structural damage."""
    key = _KEY.search(finding)
    if key is not None:
        raw = bytes.fromhex(key[1][: len(key[1]) & ~1])
        found = find(raw)
        return Damage.STRUCTURE if found is None else Damage[found.damage]
    for words, damage in _WORDS:
        if re.search(words, finding):
            return damage
    return Damage.STRUCTURE


def _steps(file: str) -> tuple[str, ...]:
    restore = f"memcore restore BACKUP --store {file} --replace --yes"
    salvage = f"memcore salvage {file} --to NEW"
    return (
        "end the programs that use the file; look for errors of the device (dmesg, smartctl)",
        "look for the newest backup in which nothing is found: memcore check --store BACKUP",
        f"if what was written since it may be lost: {restore} (the file stays beside it)",
        f"if not, or without a backup: {salvage} copies what can be read and says what is lost",
        f"if nothing is found in NEW: {restore.replace('BACKUP', 'NEW')}",
    )
