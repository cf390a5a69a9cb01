"""Salvage: everything in a damaged file that can be verified, copied to a new, sound file."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from memcore import memory
from memcore.blobs import BlobRef
from memcore.blobs.rows import COMPLETE, BlobHeader, put_header, slot_of
from memcore.codec import keys
from memcore.codec.keys import OWNER_KEY, Care, Kind, MemoryRow, Row
from memcore.codec.values import FLAG_EXPIRES, HEADER_BYTES, clock_ms, seal_value
from memcore.errors import (
    CorruptValueError,
    KeyFileError,
    KeyNeededError,
    NotFoundError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
    WrongKeyError,
)
from memcore.files import remove_unfinished
from memcore.maintenance.check import (
    SessionCheck,
    check_database,
    counted_references,
    label_of,
    lost_shared,
    mend_shared,
    shared_rows,
)
from memcore.maintenance.salvage_graphs import Threads, count_numbers
from memcore.maintenance.salvage_rows import (
    DATABASE_CARE,
    Place,
    RowSelector,
    is_row,
    names_by_scope,
    owner_in,
    unused,
)
from memcore.maintenance.salvage_sessions import Remains, SessionRebuilder
from memcore.options import checked_callable, checked_file, counted
from memcore.privacy.keyring import Key, KeyRing
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import Head, head_key
from memcore.rows.lifecycle import count_holds, index_row, is_terms, opted_out_key
from memcore.session import Engine
from memcore.session.content_filter import DEMAND_KEY
from memcore.store import ReadTxn, Store, build_detached, open_detached
from memcore.store.copy import abandoned, beside, prove, refusal
from memcore.store.datafile import (
    AUDITED,
    DEMANDING,
    ENCRYPTED,
    GRAPH_ROWS,
    MEMORIES,
    SEARCHED,
    Format,
    exclusively,
    open_locked,
    publish,
)
from memcore.store.encryption import RowCipher
from memcore.store.interface import Txn
from memcore.store.open_file import new_record
from memcore.store.page_scan import PageScan
from memcore.store.store import KEYS_SUFFIX, access_of, vault_of
from memcore.tokens import TokenCounter, get_counter

__all__ = [
    "SalvageReport",
    "SalvagedSession",
    "cared_rows",
    "count_all",
    "format_of",
    "lost_entries",
    "put_rows",
    "salvage",
    "write_hold_count",
    "write_references",
]


# --- Privacy rows that a salvage keeps: holds, opt-outs, memory marks, the file's demands ---------


def cared_rows(sieve: RowSelector) -> Iterator[tuple[bytes, bytes]]:
    """The rows of demands, holds, opt-outs and memory marks; erased scopes are already left out."""
    if DEMAND_KEY in sieve.chosen:
        yield DEMAND_KEY, sieve.value(DEMAND_KEY)
    for which in (Care.HOLD, Care.MEMORY):
        for key in _kept(sieve, which):
            yield key, sieve.value(key)


def write_hold_count(txn: Txn, sieve: RowSelector) -> None:
    """Write the number of salvaged holds."""
    kept = list(_kept(sieve, Care.HOLD))
    outs = sum(key == opted_out_key(keys.split_scoped(key)[0]) for key in kept)
    count_holds(txn, len(kept) - outs)


def _kept(sieve: RowSelector, which: int) -> Iterator[bytes]:
    for key in sorted(sieve.chosen):
        scope, rest = keys.split_scoped(key) if key[0] == Kind.CARE else (0, b"")
        if scope and rest[:1] == bytes((which,)):
            yield key


# --- A new file filled with salvaged rows, and the counts that are recomputed in it ---------------

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 16 * 1024**2


def put_rows(store: Store, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write rows, one batch per transaction."""
    for batch in _batches(rows):
        store.transact(lambda txn, batch=batch: _put_all(txn, batch))  # type: ignore[misc]


def _batches(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    batch: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row[1])
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _put_all(txn: Txn, rows: list[tuple[bytes, bytes]]) -> None:
    for key, value in rows:
        txn.put(key, value)


def write_references(store: Store) -> None:
    """Count the references to each blob from the salvaged rows, and write the counts."""
    scopes = store.read(lambda txn: [scope for scope, _, _ in names.scopes(txn)])
    for scope in scopes:
        counts = store.read(lambda txn, scope=scope: counted_references(txn, scope))  # type: ignore[misc]
        rows = [(keys.scoped(Kind.BLOB_REFS, scope, slot), counts[slot]) for slot in counts]
        put_rows(store, ((key, seal_value(key, keys.u64(count))) for key, count in rows))


def count_all(store: Store) -> tuple[int, int, int]:
    """The numbers of live items, sessions and key/value entries."""

    def count(txn: ReadTxn) -> tuple[int, int, int]:
        items = sessions = 0
        for place in names.sessions_with_rows(txn):
            key = head_key(*place)
            head = Head.unpack(key, txn.get(key) or b"")
            if not head.hidden:
                sessions += 1
                items += head.count
        start = bytes((Kind.KV,))
        return items, sessions, sum(1 for _ in txn.scan(start, keys.after(start)))

    return store.read(count)


# --- The format record of a damaged file, or a reconstruction of it -------------------------------


def format_of(wreck: PageScan, source: str, vault: RowCipher | None) -> Format | None:
    """The format record, or one built from the reserved run's head; None without either.

    Raises:
        KeyNeededError: the file is encrypted and ``vault`` is None.
        StoreFormatError: nothing in it was written by memcore.
    """
    features = GRAPH_ROWS if vault is None else ENCRYPTED | GRAPH_ROWS
    problem: StorageError | None = None
    for row in wreck.format_rows:
        try:
            found = Format.unpack(row, source)
        except StorageError as error:
            problem = error
            continue
        if found.features & ENCRYPTED and vault is None:
            raise KeyNeededError(f"{source} is encrypted; salvage it with key=")
        return found
    seed = None if wreck.run is None else wreck.run.seed
    if not wreck.rows and seed is None:
        if isinstance(problem, StoreFormatError):
            raise problem
        msg = f"{source}: no row of memcore is left in it: it is cut short, or was never a database"
        raise StoreFormatError(msg)
    if seed is None:
        return None
    mode = "relaxed" if wreck.run is not None and wreck.run.relaxed else "full"
    return Format.new(durability=mode, seed=seed, created_ms=clock_ms(), features=features)


# --- Losses of entries and fields: their rows exist but are damaged -------------------------------

_KV_PREFIX_BYTES: Final = 17
_STATE_ROW: Final = bytes((Row.STATE,))
_ENTRY_OF_MEMORY: Final = bytes((Kind.MEMORY, MemoryRow.ENTRY))


def lost_entries(sieve: RowSelector) -> Iterator[str]:
    """Key/value entries and fields of session states whose row exists but is damaged."""
    for key in sieve.wreck.damaged:
        if key[0] == Kind.SESSION and key not in sieve.chosen and key[17:18] == _STATE_ROW:
            place = keys.split_session_prefix(key)
            with suppress(CorruptValueError):
                field, counter = keys.split_state_row(key)
                where = sieve.names.get(place, f"number {place[1]}")
                what = f"field {field!r} (counter {counter}) of the state of session {where!r}"
                yield f"{what}, as far as it reads"
        if key[:1] + key[9:10] == _ENTRY_OF_MEMORY and key not in sieve.chosen:
            app, user = sieve.scopes.get(keys.split_scoped(key)[0], ("?", "?"))
            yield f"memory {keys.number_of(key)} of user {user!r} in app {app!r}"
        if key[0] == Kind.KV and key not in sieve.chosen and len(key) > _KV_PREFIX_BYTES:
            place = keys.split_session_prefix(key)
            name = key[_KV_PREFIX_BYTES:]
            with suppress(CorruptValueError):
                where = sieve.namespaces.get(place, f"number {place[1]}")
                yield f"entry {keys.unpack_text(name)!r} of namespace {where!r}, as far as it reads"


# --- Report of a salvage --------------------------------------------------------------------------


@record(frozen=True, slots=True)
class SalvagedSession:
    """A salvaged session that lost items, or whose current rows are uncertain."""

    app: str
    user: str
    session_id: str
    items: int
    """Number of live items after the salvage."""
    lost: tuple[int, ...]
    """Seqs of the lost items."""
    notes: tuple[str, ...]


@record(frozen=True, slots=True)
class SalvageReport:
    """The outcome of a salvage: the numbers and descriptions of saved and lost rows."""

    path: str
    durability: str
    sessions: int
    items: int
    """Live items in all sessions."""
    items_lost: int
    """Items known to be lost; there may be more on pages that could not be read."""
    entries: int
    """Key/value entries."""
    blobs: int
    blobs_lost: int
    threads: int
    """Graph threads."""
    pages_unread: int | None
    """Pages in use that could not be read in full; None if the list of free pages is lost."""
    damaged: tuple[SalvagedSession, ...]
    lost: tuple[str, ...]
    """Descriptions of losses other than items: sessions, entries, blobs."""
    unsure: tuple[str, ...]
    """Descriptions of saved rows that may have been deleted or replaced before the damage."""

    @property
    def share(self) -> float:
        """Share of the known items that were saved, 0 to 1."""
        known = self.items + self.items_lost
        return self.items / known if known else 1.0


# --- Salvage: everything that can be verified, copied from a damaged file to a new, sound one -----

Progress: TypeAlias = Callable[[str, int, int], None]
_POLICY: Final = "openai_chat"
_STEP: Final = 4096


def salvage(
    damaged: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    counter: str | TokenCounter | None = None,
    progress: Progress | None = None,
    key: Key | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> SalvageReport:
    """Copy everything that can be verified in a damaged file to a new one that passes ``check``.

    The damaged file is read page by page, never mapped and never written. Every row is verified by
    its checksum, so nothing corrupt is copied. Sound sessions are copied unchanged; in the others,
    every verified item keeps its seq, and the live history leaves out the lost ones. Rows that an
    intact part of the file shows to be deleted stay deleted; cases of doubt are reported.

    Args:
        damaged: the file; it may not be open.
        target: the file to create.
        counter: the custom token counter of the sessions, if there was one.
        progress: called with (stage, done, total).
        key: opens the key file of an encrypted file. The new file gets its own key file, with the
            keys of only those users whose data it holds: earlier backups of other users need the
            key file of the damaged file.
        key_file: path of the damaged file's key file; None: next to it.

    Raises:
        KeyNeededError, WrongKeyError, KeyFileError: contents are encrypted and cannot be read.
        NotFoundError: there is no damaged file.
        StoreAccessError: the target exists or cannot be written, or the source cannot be read.
        StoreLockedError: the damaged file is open.
        StoreFullError: there is no space left for the new file.
        StoreFormatError: nothing in the file was written by memcore, or a newer version wrote it.
    """
    source, final = (
        str(Path(checked_file(name, path)).resolve())
        for name, path in (("damaged", damaged), ("target", target))
    )
    checked_callable("progress", progress)
    if not os.path.lexists(source):
        msg = f"{source}: there is no such file to salvage"
        raise NotFoundError(msg)
    if os.path.lexists(final):
        msg = f"{final} exists; salvage makes a new file"
        raise StoreAccessError(msg)
    fd = open_locked(source, read_only=True)
    try:
        with exclusively(fd, source):
            vault = vault_of(access_of(key, key_file), source)
            if vault is not None:
                _need_no_keys(vault.ring, final)
            wreck = PageScan(fd, is_row, vault)
            wreck.read(_stage(progress, "reading pages"))
            return _Salvage(wreck, source, get_counter(counter), progress, vault).to(final)
    except OSError as error:
        raise refusal(error, final) from error
    finally:
        os.close(fd)


def _need_no_keys(ring: KeyRing, final: str) -> None:
    """Remove a key file left behind by a killed salvage; refuse any other in that place.

    The killed salvage had completed its data file, which is next to the target under a temporary
    name and has the same owner.

    Raises:
        KeyFileError: there is a key file that some data file may need.
        OSError
    """
    found = final + KEYS_SUFFIX
    remove_unfinished(found)
    if not os.path.lexists(found):
        return
    with suppress(KeyFileError, WrongKeyError):
        made = RowCipher(ring.beside(found))
        owner = made.ring.owner
        if owner and any(_owner_in(each, made) == owner for each in abandoned(final)):
            Path(found).unlink()
            return
    raise KeyFileError(
        f"{found}: there is a key file already, of another data file, or of one that is not there;"
        " move it away, or name another target"
    )


def _owner_in(leftover: str, vault: RowCipher) -> bytes | None:
    """The key file owner in a data file that was never published; None if it was."""
    fd = open_locked(leftover, read_only=True)
    try:
        if os.fstat(fd).st_nlink > 1:
            return None
        scan = PageScan(fd, is_row, vault, within=DATABASE_CARE)
        scan.read()
        return owner_in(scan)
    finally:
        os.close(fd)


def _stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)


class _Salvage:
    def __init__(
        self,
        wreck: PageScan,
        source: str,
        counter: TokenCounter,
        progress: Progress | None,
        vault: RowCipher | None,
    ) -> None:
        self._source = source
        self._counter = counter
        self._progress = progress
        self._format = format_of(wreck, source, vault)
        self._new_seed = self._format is None
        record = self._format or new_record("full", seed=None if vault is None else vault.ring.seed)
        known = None if self._new_seed else record.seed
        if vault is None:
            self._sieve = RowSelector(wreck, known)
        else:
            self._sieve = RowSelector(wreck, vault.seed, vault.ring.minted)
        self._record = record._replace(features=_features(record, self._sieve))
        self._vault: RowCipher | None = None
        """The cipher of the new file."""
        if vault is not None:
            needed = {0, *self._sieve.scopes}
            self._vault = RowCipher(vault.ring.copied(needed, self._sieve.erased))
        self._threads = Threads(self._sieve)
        count_numbers(self._sieve)
        self._lost: list[str] = []
        self._sessions: list[SalvagedSession] = []
        self._items_lost = 0
        self._named: dict[Place, str] = {}

    def to(self, final: str) -> SalvageReport:
        """Build and publish the new file."""
        judge = _stage(self._progress, "checking")
        with beside(final) as (temporary, fd):
            with build_detached(temporary, self._record, vault=self._vault) as store:
                engine = Engine(store, self._counter, _POLICY)
                if self._vault is not None:
                    own = seal_value(OWNER_KEY, self._vault.ring.owner)
                    put_rows(store, [(OWNER_KEY, own)])
                self._write_rows(store)
                self._mend_sessions(engine)
                self._drop_what_fails(engine)
                self._mend_memory(engine)
                mend_shared(store)
                write_references(store)
                items, sessions, entries = count_all(store)

            def look(path: str) -> list[str]:
                with open_detached(path, vault=self._vault) as copy:
                    return check_database(Engine(copy, self._counter, _POLICY), judge)

            prove(fd, temporary, final, look)
            self._publish(temporary, fd, final)
        sieve = self._sieve
        self._lost += [*sieve.unknown, *lost_entries(sieve), *lost_shared(sieve)]
        if self._format and self._format.features & AUDITED:
            self._lost.append("the audit: keep the damaged file as proof, and begin a new one")
        if self._format and self._format.features & ~self._record.features & DEMANDING:
            self._lost.append("what the file demands: pass redact= and guard= when you open it")
        return SalvageReport(
            path=final,
            durability=self._record.durability,
            sessions=sessions,
            items=items,
            items_lost=self._items_lost,
            entries=entries,
            blobs=len(sieve.blobs),
            blobs_lost=sieve.blobs_lost,
            threads=self._threads.count,
            pages_unread=sieve.wreck.unread,
            damaged=tuple(self._sessions),
            lost=tuple(self._lost),
            unsure=tuple(self._unsure()),
        )

    def _publish(self, temporary: str, fd: int, final: str) -> None:
        """Publish the new file with its key file: either both exist afterwards, or neither."""
        if self._vault is None:
            publish(temporary, final)
            return
        ring, keys_path = self._vault.ring, final + KEYS_SUFFIX
        try:
            ring.place(keys_path)
            publish(temporary, final)
        except BaseException:
            made = os.path.lexists(final) and os.path.samestat(os.stat(final), os.fstat(fd))
            if not made:
                ring.take_back(keys_path)
            raise

    # --- rows ---------------------------------------------------------------------------------

    def _write_rows(self, store: Store) -> None:
        put_rows(store, self._rows())
        store.transact(self._write_names)
        headers = [place for place in self._sieve.blobs if self._has_no_header(*place)]
        store.transact(lambda txn: self._write_headers(txn, headers))

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows to copy unchanged, and those derived from them."""
        sieve = self._sieve
        chosen = sorted(sieve.chosen)
        for at, key in enumerate(chosen):
            if self._progress is not None and not at % _STEP:
                self._progress("writing", at, len(chosen))
            kind = key[0]
            if kind == Kind.SESSION:
                if self._is_kept(key):
                    yield key, sieve.value(key)
                    yield from index_row(key, sieve.value(key))
            elif kind == Kind.CARE and is_terms(key):
                yield key, sieve.value(key)
                yield from index_row(key, sieve.value(key))
            elif kind == Kind.KV:
                yield from self._entry(key, sieve.value(key))
            elif kind == Kind.MEMORY and key[9] not in (
                *memory.INDEXES,
                *memory.GRANT_ROWS,  # a revoked grant must not come back
            ):
                yield key, sieve.value(key)
            elif kind == Kind.BLOB_ADDRESS:
                scope, address = keys.split_scoped(key)
                ref = BlobRef.unpack(sieve.value(key)[HEADER_BYTES:])
                if (scope, slot_of(ref)) in sieve.blobs:
                    yield key, sieve.value(key)
                else:
                    self._lost.append(f"scope {scope}: the blob sha256:{address.hex()}")
            elif kind == Kind.BLOB and keys.split_scoped(key) in sieve.blobs:
                yield key, sieve.value(key)
        for (scope, slot), size in sieve.blobs.items():
            yield from sieve.chunks(scope, slot, size)
        yield from shared_rows(sieve)
        yield from cared_rows(sieve)
        yield from self._threads.rows()
        self._lost += self._threads.lost

    def _entry(self, key: bytes, value: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield a key/value entry with its expiry row; nothing if its content is lost."""
        blob = self._sieve.blob_of(key, value)
        if blob is not None and blob not in self._sieve.blobs:
            place = keys.split_session_prefix(key)
            where = self._sieve.namespaces.get(place, f"number {place[1]}")
            name = keys.unpack_text(key[_KV_PREFIX_BYTES:])
            self._lost.append(f"entry {name!r} of namespace {where!r}: its content")
            return
        yield key, value
        if value[1] & FLAG_EXPIRES:
            expires = int.from_bytes(value[HEADER_BYTES : HEADER_BYTES + 8], "big")
            row = keys.expiry_row(expires, key)
            yield row, seal_value(row, b"")

    def _is_kept(self, key: bytes) -> bool:
        """Return True if a session's row is copied unchanged."""
        if key[17] == Row.AUDIT:
            return False
        if key[17] == Row.REQUEST:
            return not self._new_seed  # can be looked up only with the old seed
        if key[17] != Row.ITEM:
            return True
        blob = self._sieve.blob_of(key, self._sieve.value(key))
        return blob is None or blob in self._sieve.blobs

    def _has_no_header(self, scope: int, slot: bytes) -> bool:
        return keys.scoped(Kind.BLOB, scope, slot) not in self._sieve.chosen

    def _write_headers(self, txn: Txn, places: list[tuple[int, bytes]]) -> None:
        for scope, slot in places:
            size = self._sieve.blobs[scope, slot]
            put_header(txn, scope, slot, BlobHeader(COMPLETE, size, bytes(8)))

    def _write_names(self, txn: Txn) -> None:
        sieve = self._sieve
        write_hold_count(txn, sieve)
        for which, number in sieve.last.items():
            if which != keys.Counter.DATA_KEY:  # counts for the old key file; the new has its own
                names.register_last(txn, which, number)
        for scope, (app, user) in sieve.scopes.items():
            names.register_scope(txn, scope, app, user)
        for (scope, number), namespace in sieve.namespaces.items():
            names.register_namespace(txn, scope, namespace, number)
        known = names_by_scope(sieve.names)
        for place in sieve.places():
            name: str | None = sieve.names.get(place)
            if name is None and not self._is_hidden(place):
                name = unused(place[0], f"salvaged-{place[1]}", known)[1]
            if name is not None:
                self._named[place] = name
                names.register_session(txn, place[0], name, place[1])

    def _is_hidden(self, place: Place) -> bool:
        if place in self._sieve.deleted:
            return True
        key = head_key(*place)
        return key in self._sieve.chosen and Head.unpack(key, self._sieve.value(key)).hidden

    # --- sessions -----------------------------------------------------------------------------

    def _mend_sessions(self, engine: Engine) -> None:
        """Rebuild every session that fails the check, along with those that share its items."""
        store, sieve = engine.store, self._sieve
        for place in sorted(sieve.names.keys() - set(sieve.places())):
            app, user = sieve.scopes[place[0]]
            self._lost.append(
                f"session {sieve.names[place]!r} of user {user!r} in app {app!r}: nothing is left"
            )
        places = sieve.places()
        bad: set[Place] = set(places) if self._new_seed else set(sieve.deleted)
        for done, place in enumerate(places):
            if self._progress is not None:
                self._progress("sorting sessions", done, len(places))
            if place in bad:
                continue
            if head_key(*place) not in sieve.chosen:
                bad.add(place)  # also if no row was copied, so that there is nothing to check
                continue
            check = SessionCheck(engine, *place, named=place in self._named)
            if store.read(check.run):
                bad.add(place)
        told: set[Place] = set()
        for members in self._families(bad):
            family = SessionRebuilder(
                members,
                seed=engine.seed,
                counter_named=engine.counter_named,
                default_counter=self._counter,
                now_us=engine.now_us(),
            )
            store.transact(family.write)
            self._report(family)
            told.update(rebuilt.remains.place for rebuilt in family.rebuilt)
        for place in sorted(sieve.doubtful - told):
            key = head_key(*place)
            self._tell(place, Head.unpack(key, sieve.value(key)).count, (), ())

    def _families(self, bad: set[Place]) -> Iterator[list[Remains]]:
        """Yield groups of related sessions, each with at least one bad session."""
        linked: dict[Place, set[Place]] = defaultdict(set)
        for parent, forks in self._sieve.forks().items():
            for fork in forks:
                linked[parent].add(fork)
                linked[fork].add(parent)
        known, done = set(self._sieve.places()), set[Place]()
        for place in sorted(bad):
            group: list[Place] = []
            todo = [place]
            while todo:
                at = todo.pop()
                if at in known and at not in done:
                    done.add(at)
                    group.append(at)
                    todo += linked[at]
            if group:
                yield [Remains(self._sieve, at) for at in sorted(group)]

    def _report(self, family: SessionRebuilder) -> None:
        for rebuilt in family.rebuilt:
            self._items_lost += len(rebuilt.lost)
            doubtful = rebuilt.remains.place in self._sieve.doubtful
            if rebuilt.lost or rebuilt.notes or doubtful:
                self._tell(rebuilt.remains.place, rebuilt.live, rebuilt.lost, rebuilt.notes)

    def _tell(self, place: Place, live: int, lost: tuple[int, ...], notes: tuple[str, ...]) -> None:
        app, user = self._sieve.scopes[place[0]]
        name = self._named.get(place, f"(deleted, number {place[1]})")
        if place in self._sieve.doubtful:
            notes = (*notes, "it may have been deleted")
        self._sessions.append(SalvagedSession(app, user, name, live, lost, notes))

    def _drop_what_fails(self, engine: Engine) -> None:
        """Drop sessions that fail the check even after rebuilding; the last resort."""
        store = engine.store
        for place in store.read(names.sessions_with_rows):
            check = SessionCheck(engine, *place, named=place in self._named)
            findings = store.read(check.run)
            if findings:
                name = self._named.get(place, f"number {place[1]}")
                self._lost.append(f"session {name!r} could not be mended: {findings[0]}")
                store.transact(lambda txn, place=place: self._drop(txn, place))  # type: ignore[misc]

    def _mend_memory(self, engine: Engine) -> None:
        """Rebuild the indexes of long-term memories, and drop those whose items are lost."""
        store = engine.store
        for scope in store.read(lambda txn: names.scopes_with_rows(txn, Kind.MEMORY)):
            lost = store.transact(
                lambda txn, scope=scope: memory.mend(  # type: ignore[misc]
                    memory.Book(txn, scope, engine.seed), engine.now_ms()
                )
            )
            app, user = self._sieve.scopes[scope]
            if lost:
                what = f"{counted(lost, 'memory', 'memories')} of user {user!r} in app {app!r}"
                self._lost.append(f"{what}: the items that they rest on")

    def _drop(self, txn: Txn, place: Place) -> None:
        prefix = keys.session_prefix(*place)
        txn.delete_range(prefix, keys.after(prefix))
        if place in self._named:
            names.drop_session_name(txn, place[0], self._named[place])

    def _unsure(self) -> Iterator[str]:
        """Describe the saved rows that may have been deleted or replaced before the damage."""
        wreck = self._sieve.wreck
        if wreck.metas_lost and not wreck.redone:
            yield "a meta page is lost: what was committed last may be missing"
        for app, user in self._sieve.doubtful_users.values():
            yield (
                f"user {user!r} in app {app!r} may have been erased: a name and a tombstone are"
                " equally sure, so nothing of theirs was saved, and their key is in the damaged"
                " file's key file alone"
            )
        doubtful: dict[str, int] = defaultdict(int)
        for key in self._sieve.unsure:
            if key[0] == Kind.SESSION:
                place = keys.split_session_prefix(key)
                doubtful[f"session {self._named.get(place, str(place[1]))!r}"] += 1
            elif key[0] == Kind.THREAD:
                place = keys.split_session_prefix(key)
                doubtful[f"thread {self._sieve.threads.get(place, str(place[1]))!r}"] += 1
            elif key[0] == Kind.KV:
                place = keys.split_session_prefix(key)
                doubtful[f"namespace {self._sieve.namespaces[place]!r}"] += 1
            elif key[0] == Kind.MEMORY:
                app, user = self._sieve.scopes[keys.split_scoped(key)[0]]
                doubtful[f"the memory of user {user!r} in app {app!r}"] += 1
            elif key[0] == Kind.STATE:
                scope = keys.state_place(key)[0]
                doubtful[label_of(*self._sieve.scopes[scope])] += 1
        for what, count in sorted(doubtful.items()):
            rows = counted(count, "row was", "rows were")
            yield f"{what}: {rows} possibly deleted or replaced before"


def _features(record: Format, sieve: RowSelector) -> int:
    """The features of the new file; not audited, as an audit chain proves only its own file."""
    features = record.features & ~(AUDITED | DEMANDING | SEARCHED)
    if any(key[0] == Kind.MEMORY for key in sieve.chosen):
        features |= MEMORIES
    return features | DEMANDING if DEMAND_KEY in sieve.chosen else features
