"""Checking everything: what a sound file promises, walked row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from struct import unpack
from typing import Final

from memcore import blobs, keys, names
from memcore._fast import pack_facts
from memcore.checkpoint import check_threads, scopes_with_threads
from memcore.codec import FLAG_BLOB, FLAG_REWRITTEN, open_value
from memcore.database.admission import check_demand
from memcore.database.checkpoints import chained, check_checkpoints
from memcore.database.expiries import check_expiries, check_terms
from memcore.database.references import check_references
from memcore.database.shared import check_shared, scopes_with_state
from memcore.errors import (
    CorruptValueError,
    CounterUnavailableError,
    KeyFileError,
    MemcoreError,
    StorageError,
    StoreAccessError,
    StoreLockedError,
)
from memcore.formats import get_policy
from memcore.keys import Kind, Row
from memcore.lease import read_lease
from memcore.log import Head, decode_item, index, new_ledger
from memcore.log.counts import Counts, check_counts
from memcore.log.head import head_key
from memcore.log.history import StoredRow, read_rows
from memcore.log.item import split_body
from memcore.log.positions import History
from memcore.log.quarantine import held_in
from memcore.log.rewriting import same_calls
from memcore.log.saved import saved_states
from memcore.model import ItemKind
from memcore.retention.care import check_care
from memcore.retention.removing import SCOPED_KINDS
from memcore.session import Backing, check_removals, is_leaving
from memcore.session.uses import check_uses
from memcore.state import check_state
from memcore.store.base import ReadTxn
from memcore.store.unlocking import need_newest
from memcore.terms import session_terms
from memcore.tokens import TokenCounter
from memcore.tombstone import buried, is_erased
from memcore.usage import read_usage
from memcore.views import view_chain

__all__ = ["SessionCheck", "check_database", "sessions_of"]


_ROWS_PAGE: Final = 1000
_TOLD_MAX: Final = 1000
_DAMAGED: Final = "the value under key "
"""How the text of a damaged row begins: its session names it once more, and better."""
_UNSAFE: Final = (
    "the rows were not checked: reading a file of damaged structure may end the process; restore a "
    "backup or salvage what can be read"
)


def check_database(backing: Backing, progress: Callable[[int, int], None] | None) -> list[str]:
    """Findings over the whole database in words; empty means sound.

    The structure of the file first, then every row's checksum, then what rows promise of each
    other, one read transaction a session: changes that other handles make meanwhile are no
    findings. Neither is what is left of erased users, nor what nobody can decrypt any more because
    its user was erased since the file, a backup, was made.

    Raises:
        StoreAccessError, StoreLockedError: the file cannot be read now; one that is read without
            its lock file was changed meanwhile, say.
    """
    findings = list(backing.store.check())
    if findings:
        return [*findings, _UNSAFE]
    try:
        damaged = list(_damaged_rows(backing))
        rows = _check_keys(backing) + _check_rows(backing, progress)
    except (StoreAccessError, StoreLockedError):
        raise
    except StorageError as exc:
        return [f"the check was cut short: {exc}"]
    told = {what[what.find(_DAMAGED) :] for what in rows}
    return [what for what in damaged if what not in told] + rows


def _check_rows(backing: Backing, progress: Callable[[int, int], None] | None) -> list[str]:
    """What rows promise of each other."""
    findings = backing.store.read(check_removals)
    findings += backing.store.read(lambda txn: check_care(txn, partial(_is_shredded, backing)))
    findings += backing.store.read(lambda txn: check_demand(txn, backing.store.path))
    named: dict[tuple[int, int], str] = {}
    for scope, wrong in backing.store.read(_scopes):
        found = wrong + backing.store.read(lambda txn, scope=scope: _blobs_of(txn, scope))  # type: ignore[misc]
        named.update(_names_of(backing, scope, found))
        found += check_threads(backing.store.read, scope)
        found += backing.store.read(lambda txn, scope=scope: check_shared(txn, scope))  # type: ignore[misc]
        findings += _of_living(backing, scope, found)
    findings += check_expiries(backing)
    findings += backing.store.read(_nameless)
    sessions = backing.store.read(sessions_of)
    for done, (scope, session) in enumerate(sessions):
        name = named.get((scope, session))
        where = f"session {session} of scope {scope}" if name is None else f"session {name!r}"
        checker = SessionCheck(backing, scope, session, named=name is not None)
        found = [f"{where}: {what}" for what in backing.store.read(checker.run)]
        findings += _of_living(backing, scope, found)
        if progress is not None:
            progress(done + 1, len(sessions))
    for place in sorted(named.keys() - set(sessions)):
        if not backing.store.read(lambda txn, place=place: _is_deleted(txn, *place)):  # type: ignore[misc]
            found = [f"session {named[place]!r}: its head is missing"]
            findings += _of_living(backing, place[0], found)
    return findings


def _of_living(backing: Backing, scope: int, findings: list[str]) -> list[str]:
    """The findings of a scope, unless its user was erased, maybe while they were looked for."""
    if not findings:
        return findings
    if _is_shredded(backing, scope) or backing.store.read(lambda txn: is_erased(txn, scope)):
        return []
    return findings


def _is_shredded(backing: Backing, scope: int) -> bool:
    vault = backing.store.vault
    return vault is not None and vault.is_shredded(scope)


def _check_keys(backing: Backing) -> list[str]:
    """Whether the key file of an encrypted database has all the keys that it should."""
    vault = backing.store.vault
    if vault is None:
        return []
    try:
        need_newest(backing.store.environment(), vault)
    except KeyFileError as exc:
        return [str(exc)]
    return []


def _nameless(txn: ReadTxn) -> list[str]:
    """Scopes that have rows and no name, and were not erased."""
    start = bytes((Kind.SCOPE,))
    known = {keys.number_of(key) for key, _ in txn.scan(start, keys.after(start))}
    known.update(buried(txn))
    findings = []
    for what, scopes in (
        ("a state", scopes_with_state(txn)),
        ("sessions", [scope for scope, _ in sessions_of(txn)]),
        ("threads", scopes_with_threads(txn)),
    ):
        stray = sorted(set(scopes) - known)
        findings += [f"scope {scope} has {what}, but no row names it" for scope in stray]
    return findings


def _blobs_of(txn: ReadTxn, scope: int) -> list[str]:
    try:
        return [*blobs.check(txn, scope), *check_references(txn, scope)]
    except MemcoreError as exc:
        return [f"the blobs of scope {scope} cannot be checked: {exc}"]


def _damaged_rows(backing: Backing) -> Iterator[str]:
    """Every row whose value fails its checksum."""
    start: bytes | None = b"\x01"
    while start is not None:
        found, start = backing.store.read(lambda txn, start=start: _check_page(txn, start))  # type: ignore[misc]
        for scope, damaged in found.items():
            yield from _of_living(backing, scope, damaged)


def _check_page(txn: ReadTxn, start: bytes) -> tuple[dict[int, list[str]], bytes | None]:
    """What is damaged in the next rows, by scope; 0: of none. And where to go on."""
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
    """The scopes by their number, each with what is wrong with its name."""
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
    """The scope of a name row; without a user it is the application's."""
    return names.scope_of(txn, app, user) if user else names.app_scope_of(txn, app)


def _names_of(backing: Backing, scope: int, findings: list[str]) -> dict[tuple[int, int], str]:
    try:
        listed = backing.store.read(lambda txn: list(names.sessions(txn, scope)))
    except (StoreAccessError, StoreLockedError):
        raise
    except MemcoreError as exc:
        findings.append(f"the session names of scope {scope} cannot be read: {exc}")
        return {}
    return {(scope, session): name for name, session in listed}


def sessions_of(txn: ReadTxn) -> list[tuple[int, int]]:
    """``(scope, session)`` of every session that has rows."""
    found: list[tuple[int, int]] = []
    start, stop = bytes((Kind.SESSION,)), bytes((Kind.SESSION + 1,))
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return found
        scope, session = keys.split_session_prefix(row[0])
        found.append((scope, session))
        start = keys.after(keys.session_prefix(scope, session))


def _is_deleted(txn: ReadTxn, scope: int, session: int) -> bool:
    """Whether a session that was listed by name has lost its name since."""
    return all(number != session for _, number in names.sessions(txn, scope))


class SessionCheck:
    """The check of one session on one snapshot."""

    def __init__(self, backing: Backing, scope: int, session: int, *, named: bool) -> None:
        self.backing = backing
        self.scope = scope
        self.session = session
        self.named = named

    def run(self, txn: ReadTxn) -> list[str]:
        """What is wrong with the session, in words."""
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
            return  # deleted, and not all of its rows are gone yet
        if not self.named and not head.hidden and not self._has_name(txn):
            yield "it has rows but no name"
        history = History(head.all_segments(txn, self.scope))
        if history.count != head.count:
            yield f"its segments hold {history.count} items, its head says {head.count}"
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
        pinned = saved_states(txn, self.scope, self.session)
        yield from check_uses(txn, self.scope, self.session)
        yield from check_state(txn, self.scope, self.session, pinned=pinned)
        said = txn.get(key := session_terms(self.scope, self.session))
        if said is not None:
            yield from check_terms(txn, key, said)

    def _held(self, txn: ReadTxn) -> Iterator[str]:
        """What was put aside of it."""
        for held in held_in(txn, self.scope, self.session):
            if txn.get(keys.session_row(self.scope, self.session, Row.ITEM, held.seq)) is None:
                yield f"item {held.seq} is in the quarantine, and has no placeholder"

    def _relatives(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Its views, its parent and its forks."""
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
        """What providers reported is about items that there were."""
        for learned in read_usage(txn, self.scope, self.session):
            anchor = learned.anchor
            if anchor is not None and anchor.seq >= head.next_seq:
                yield f"its usage is anchored at item {anchor.seq}, which it never had"

    def _has_name(self, txn: ReadTxn) -> bool:
        return any(number == self.session for _, number in names.sessions(txn, self.scope))

    def _own_rows(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Every item that the session owns, undone ones included, against its index record."""
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
                    yield f"more than {told} of its {stop - first} items are damaged or missing"
                    return
            elif record is None:
                yield f"item {row[1]} has no index record"
            else:
                yield from self._item(txn, row, record)
        if next(records, None) is not None:
            yield "its index holds more records than items"

    def _strays(self, txn: ReadTxn, head: Head) -> Iterator[str]:
        """Items and index pages that the head does not know: it is older than they are."""
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
        facts, known = pack_facts(item.message, self.backing.seed), record[index.RECORD.size :]
        if facts != known and not (flags & FLAG_REWRITTEN and same_calls(facts, known)):
            yield f"item {seq}: its index record names other calls than the item does"

    def _live(self, txn: ReadTxn, head: Head, history: History) -> Iterator[str]:
        """The prefix hashes along the live history, and the ledger's totals."""
        chain = 0
        counter: TokenCounter | None = None
        with suppress(CounterUnavailableError):
            counter = self.backing.counter_named(head.counter)
        ledger = new_ledger(get_policy(head.policy), counter)
        counts, tag = Counts.of(head), index.counter_tag(head.counter)
        counted: Sequence[int] = ()
        try:
            edge = history.position_from(counts.stop)
            counted = unpack(f"<{edge}I", counts.read(txn, self.scope, 0, edge))
        except CorruptValueError as exc:
            yield str(exc)
            counter, edge = None, history.count  # the sum cannot be told
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
                if at < len(counted):
                    tokens = counted[at]
                ledger.push(record[index.RECORD.size :], tokens)
                key = keys.session_row(self.scope, session, Row.ITEM, seq)
                if chained(txn, key, chain) not in (found, None):
                    yield f"the prefix hash at item {seq} does not match the items before it"
                    return
                chain = found
        if chain != head.chain:
            yield "the prefix hash in the head is not that of its last item"
        # Without the counter it is not known what the synthetic answers of given-up calls count.
        tokens = head.tokens if counter is None else ledger.tokens
        if (tokens, ledger.open_count) != (head.tokens, head.open_calls):
            yield (
                f"its head says {head.tokens} tokens and {head.open_calls} open calls, its index "
                f"{ledger.tokens} and {ledger.open_count}"
            )


def names_gone(txn: ReadTxn, scope: int, session: int) -> bool:
    """Whether nothing of the session is left."""
    prefix = keys.session_prefix(scope, session)
    return not any(True for _ in txn.scan(prefix, keys.after(prefix), limit=1))
