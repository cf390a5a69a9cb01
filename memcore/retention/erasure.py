"""Erasure of a user: names first, then keys, rows and bytes.

1. One transaction deletes the names of all their scopes, writes tombstones for the numbers and
   records the remaining work. From then on no handle of any process can reach a scope or write to
   it.
2. If the file is encrypted, the data keys are shredded. That needs space for a new key file;
   without it, the next commit or open that finds space shreds them.
3. The rows are deleted in pieces, one transaction each.
4. The file is swapped for a compact copy without free pages, slack and redo records.

If it is interrupted at any point, the rest is done by ``finish_erasures``, by the next ``erase`` of
that user and, except for the last step, by the next open for writing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from memcore import audit, memory, retention, store
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.table import ROWS, find
from memcore.codec.values import decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import (
    AuditError,
    CorruptValueError,
    InvalidOptionError,
    KeyFileError,
    MemcoreError,
    ReadOnlyError,
    StorageError,
    WrongKeyError,
)
from memcore.faces import logger
from memcore.limits import PIECE_ROWS
from memcore.options import counted
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import (
    ERASURES,
    buried,
    bury,
    checked_scopes,
    drop_holds,
    need_free,
)
from memcore.rows.names import check_name, pass_over
from memcore.store import Store
from memcore.store.changes import warm_row
from memcore.store.datafile import newest_meta, occurrences
from memcore.store.interface import ERASED, NAMES, DeleteBudget, ReadTxn, Txn

if TYPE_CHECKING:
    from memcore.privacy.keyring import KeyRing
    from memcore.retention.receipt import ErasureReceipt
    from memcore.session import Engine
    from memcore.store.pages import LeafRow, TreeWalk

__all__ = [
    "GONE",
    "HIDDEN",
    "REMOVED",
    "SCOPED_KINDS",
    "SHREDDED",
    "Compacted",
    "ErasureRequest",
    "Judge",
    "Pending",
    "Scan",
    "all_pending",
    "bury_shredded",
    "checked_probes",
    "compact_away",
    "count_pending",
    "count_rows",
    "drop_names",
    "drop_names_of",
    "drop_pending",
    "erase",
    "files_beside",
    "finish_erasures",
    "has_rows",
    "marking_gone",
    "pending_of",
    "put_pending",
    "remove_rows",
    "resume_erasures",
    "scan_copy",
    "scan_file",
    "scopes_of",
    "would_erase",
]


# --- Unfinished erasures: a row with the scopes to erase, the progress, and no names --------------
# ``12 | 0 u64 | 02 | 02 | id 16``: one row per erasure, from its first transaction until the bytes
# are gone. Any later caller can resume what a killed process left.

HIDDEN: Final = "hidden"
"""The scopes are unreachable."""
SHREDDED: Final = "shredded"
"""Their data keys are destroyed, there are none, or there is no space to record it."""
REMOVED: Final = "removed"
"""Their rows are deleted; bytes of them may remain in free pages."""
GONE: Final = "gone"
"""Their bytes are gone; the next request for receipts gets one and drops the row."""
_STAGES: Final = (HIDDEN, SHREDDED, REMOVED, GONE)


@record(slots=True)
class Pending:
    """An unfinished erasure."""

    id: str
    """32 hex digits."""
    user: str
    """Digest of the user's name under the database's own key; a repeated request finds it."""
    app: str | None
    """Digest of the application's name, likewise; None: all applications."""
    told_user: str
    """Digest for the receipt, under the key that signs it; ``told_app`` likewise."""
    told_app: str | None
    scopes: list[int]
    asked_ms: int
    bytes_before: int
    """Size of the file when the erasure was requested."""
    bytes_after: int = 0
    """Size of the file when the bytes were gone."""
    finished_ms: int = 0
    stage: str = HIDDEN
    shredded: bool = False
    """True if there were data keys and they are destroyed."""
    overrode_hold: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    """Deleted rows by kind."""


def _key(id_: str) -> bytes:
    return ERASURES + bytes.fromhex(id_)


def put_pending(txn: Txn, pending: Pending) -> None:
    """Store the progress of an erasure."""
    key = _key(pending.id)
    fields = {name: getattr(pending, name) for name in Pending.__slots__ if name != "id"}
    body, flags = encode_json(fields)
    txn.put(key, seal_value(key, body, flags))


def drop_pending(txn: Txn, id_: str) -> bool:
    """Delete the row of a finished erasure; return True if it existed."""
    return txn.delete(_key(id_))


def pending_of(txn: ReadTxn, id_: str) -> Pending | None:
    """Read the row of an erasure; None if it was finished.

    Raises:
        CorruptValueError: its row is damaged.
    """
    value = txn.get(_key(id_))
    return None if value is None else _unpacked(_key(id_), value)


def all_pending(txn: ReadTxn) -> Iterator[Pending]:
    """Yield every unfinished erasure.

    Raises:
        CorruptValueError: a row is damaged.
    """
    for key, value in txn.scan(ERASURES, keys.after(ERASURES)):
        yield _unpacked(key, value)


def _unpacked(key: bytes, value: bytes) -> Pending:
    flags, body = open_value(key, value)
    with decoding(key, "erasure"):
        found: Any = decode_json(body, flags)
        pending = Pending(id=key[len(ERASURES) :].hex(), **found)
        pending.scopes = checked_scopes(pending.scopes)
        if pending.stage not in _STAGES:
            raise ValueError
    return pending


# --- Raw scan of a database's files for names and markers: proof of an erasure --------------------
# A match outside all rows may be a remnant of the erased user; one in the rows of other users is
# their own data (a colleague who mentions the name). So the two are counted separately.

_NEEDLE_BYTES_MIN: Final = 5
"""Shorter names occur by chance."""
_NEEDLES_MAX: Final = 64


@record(frozen=True, slots=True)
class Scan:
    """Result of a raw scan of a file for needles."""

    bytes: int = 0
    needles: int = 0
    hits: int = 0
    in_rows: int = 0
    """Hits in live rows, which belong to other users."""

    @property
    def stray(self) -> int:
        """Hits outside all rows."""
        return self.hits - self.in_rows


def checked_probes(texts: Iterable[str | bytes]) -> list[bytes]:
    """Return the byte strings to scan for, longest first, without those that are too short."""
    found = {
        text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        for text in texts
    }
    found |= {text.replace(b"\0", b"\0\xff") for text in found}  # as encoded in a key
    long = sorted((t for t in found if len(t) >= _NEEDLE_BYTES_MIN), key=len, reverse=True)
    return long[:_NEEDLES_MAX]


def scan_file(path: str | os.PathLike[str], needles: list[bytes]) -> int:
    """Count the occurrences of the needles in a file."""
    with open(path, "rb") as file:
        return sum(1 for _ in occurrences(file.fileno(), needles))


def _count(content: bytes, needle: bytes) -> int:
    count, at = 0, content.find(needle)
    while at >= 0:
        count, at = count + 1, content.find(needle, at + 1)
    return count


def scan_copy(path: str, needles: list[bytes]) -> Scan:
    """Scan a file that is not being written for the needles."""
    hits = scan_file(path, needles)
    size = os.stat(path).st_size
    return Scan(size, len(needles), hits, _hits_in_rows(path, needles) if hits else 0)


def _hits_in_rows(path: str, needles: list[bytes]) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        meta = newest_meta(fd, path)
        walk = store.walk_of(fd, meta.last_page)
        tree = store.Tree("main tree", meta.main_root, meta.main_depth)
        rows = (
            _bytes_of(fd, walk, row)
            for leaf in walk.leaves(tree)
            for row in leaf
            if row.key[0]  # the store's own rows hold the redo slots
        )
        # Branch pages of a copy hold prefixes of existing keys.
        held = chain(rows, store.separators(fd, path))
        return sum(_count(content, needle) for content in held for needle in needles)
    except store.DamageError:
        return 0  # verification refuses the copy
    finally:
        os.close(fd)


def _bytes_of(fd: int, walk: TreeWalk, row: LeafRow) -> bytes:
    if not row.run:
        return row.key + row.value  # adjacent in the page
    # The page number separates them, so no needle can span both.
    at = walk.run(row.run, row.size)
    return row.key + b"\0\0\0\0\0\0\0\0" + os.pread(fd, row.size, at)


def files_beside(path: str) -> list[str]:
    """List files whose names begin with the database's: backups left by a restore, and others.

    The lock file is left out, as it holds no content.
    """
    folder, own = os.path.split(path)
    with os.scandir(folder or os.curdir) as entries:
        beside = [each.name for each in entries if each.name.startswith(own) and each.is_file()]
    known = (own, f"{own}-lock")
    return sorted(os.path.join(folder, name) for name in beside if name not in known)


# --- Last step of erasures: the file swapped for a compact copy, verified and scanned -------------

Judge = Callable[[str], list[str]]
"""Verifies a finished copy by its path; returns the findings as texts."""


@record(frozen=True, slots=True)
class Compacted:
    """Result of a compaction; with a ``problem``, nothing was changed."""

    bytes_after: int = 0
    scan: Scan = field(default_factory=Scan)
    problem: str = ""


def compact_away(store: Store, ids: Iterable[str], probes: list[bytes], judge: Judge) -> Compacted:
    """Swap the file for a compact copy, marking other erasures than ``ids`` that it completes.

    The copy is scanned for the probes before it is renamed into place. Of a store on a server there
    is no file to replace: what its server keeps of deleted rows is told as out of reach.
    """
    if store.is_server:
        return Compacted(store.stats()["file_bytes"])
    scans: list[Scan] = []

    def scanned(path: str) -> list[str]:
        scan = scan_copy(path, probes)
        scans.append(scan)
        if scan.stray:
            traces = counted(scan.stray, "trace of the user was", "traces of the user were")
            return [f"{traces} found outside of the rows of others"]
        return judge(path)

    try:
        with marking_gone(store, but=set(ids)):
            _, after = store.copy_compact(judge=scanned)
    except (StorageError, WrongKeyError, InvalidOptionError) as error:  # the last: in-memory store
        return Compacted(scan=scans[0] if scans else Scan(), problem=str(error))
    return Compacted(after, scans[0] if scans else Scan())


@contextmanager
def marking_gone(store: Store, *, but: set[str] | None = None) -> Iterator[None]:
    """Mark erasures whose bytes a compaction inside the block removes, for later receipts."""
    before = store.read(lambda txn: [p.id for p in all_pending(txn) if p.stage == REMOVED])
    yield
    others = [each for each in before if each not in (but or ())]
    if not others:
        return
    size = store.stats()["file_bytes"]

    def closure(txn: Txn) -> None:
        for each in others:
            pending = pending_of(txn, each)
            if pending is not None and pending.stage == REMOVED:
                pending.stage, pending.bytes_after = GONE, size
                put_pending(txn, pending)

    store.transact(closure, makes_room=True)


# --- Scopes that a user owns, in one application or in all of them, and their names ---------------

_NAMES = bytes((Kind.SCOPE_NAME,))


def scopes_of(txn: ReadTxn, user: str, app: str | None) -> list[tuple[int, str]]:
    """Return ``(scope, app)`` of a user, in one application or, with a lookup each, in all.

    Raises:
        InvalidOptionError: a name is invalid.
        CorruptValueError: a name row of the user is damaged, or any row of a name that is too long
            for its key.
    """
    names.check_name(user, "user")
    if app is not None:
        scope = names.scope_of(txn, app, user)
        return [] if scope is None else [(scope, app)]
    found: dict[int, str] = {}
    start, stop = _NAMES, _NAMES + keys.LONG_NAME
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        packed = _first_text(row[0][1:])
        each = keys.unpack_text(packed)
        scope = names.scope_of(txn, each, user)
        if scope is not None:
            found[scope] = each
        start = _NAMES + packed + b"\xff"  # an app that continues with a NUL starts here
    for key, value in txn.scan(stop, keys.after(_NAMES)):
        number, texts = names.unpack_name(open_value(key, value)[1])
        if texts[1:] == (user,):
            found[number] = texts[0]
    return sorted(found.items())


def drop_names(txn: Txn, scope: int, app: str, user: str) -> None:
    """Delete both name rows of a scope; its number is never reused."""
    txn.delete(keys.name_key(_NAMES, app, user))
    txn.delete(keys.scoped(Kind.SCOPE, scope))


def drop_names_of(txn: Txn, scopes: Iterable[int]) -> dict[str, list[int]]:
    """Delete the names of scopes, damaged ones too; return the deleted scopes of each user."""
    found: dict[str, list[int]] = {}
    gone = set(scopes)
    named: dict[bytes, tuple[int, str]] = {}
    for key, value in txn.scan(_NAMES, keys.after(_NAMES)):
        with suppress(CorruptValueError):
            number, texts = names.unpack_name(open_value(key, value)[1])
            if number in gone:
                named[key] = number, texts[1]
    for key, (scope, user) in named.items():
        txn.delete(key)
        found.setdefault(user, []).append(scope)
    for scope in gone:
        txn.delete(keys.scoped(Kind.SCOPE, scope))
    return found


def _first_text(packed: bytes) -> bytes:
    """Return the first of several concatenated ``pack_text`` results, still packed.

    Raises:
        CorruptValueError: they are not packed texts.
    """
    end = packed.find(b"\x00")
    while end >= 0 and packed[end + 1 : end + 2] == b"\xff":
        end = packed.find(b"\x00", end + 2)
    if end < 0:
        msg = f"the name {packed[:80].hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=packed)
    return packed[: end + 1]


# --- Deletion of erased scopes' rows, one transaction per piece -----------------------------------
# Nothing is decoded: a scope is one key range under each kind, so damaged rows are deleted like any
# others. Only expiry rows are elsewhere; they are scanned when all others are gone and no new ones
# can appear.

SCOPED_KINDS: Final = tuple(
    sorted(
        {each.kind for each in ROWS if each.owner == "scope"},
        key=lambda kind: (kind == Kind.CARE, kind),
    )
)
"""Kinds whose keys continue with the number of a scope. That of its audit chain comes last: nothing
of the scope may be recorded after the chain has ended."""
_ROW_AT: Final = 17
_EXPIRY_PAGE: Final = 4096
_EXPIRY_SCOPE_AT: Final = 10
"""``0C | expires u64 | kind u8 | scope u64 | ...``."""


def has_rows(txn: ReadTxn, scope: int) -> bool:
    """Return True if rows of the scope remain, apart from expiry rows."""
    return next(_ranges(txn, [scope]), None) is not None


def _ranges(txn: ReadTxn, scopes: list[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key ranges of the scopes that hold a row."""
    for scope in scopes:
        for kind in SCOPED_KINDS:
            start = keys.scoped(kind, scope)
            stop = keys.after(start)
            if any(True for _ in txn.scan(start, stop, limit=1)):
                yield start, stop


def count_rows(txn: ReadTxn, scope: int, counts: dict[str, int]) -> None:
    """Add the number of rows of a scope, by kind; ``rows`` is the total."""
    for start, stop in _ranges(txn, [scope]):
        for key, _ in txn.scan(start, stop):
            _count_removing(key, counts)


def _count_removing(key: bytes, counts: dict[str, int]) -> None:
    counts["rows"] = counts.get("rows", 0) + 1
    found = find(key)
    if found is not None and found.counted:
        counts[found.counted] = counts.get(found.counted, 0) + 1


def remove_rows(store: Store, pending: Pending, pieces: int | None = None) -> bool:
    """Delete an erasure's rows in at most ``pieces`` transactions; return True if none remain.

    Raises:
        StorageError: the rest is still to be deleted.
    """
    while True:
        done = False
        while not done:
            if pieces == 0:
                return False
            done = store.transact(lambda txn: _remove_piece(txn, pending.id), makes_room=True)
            pieces = None if pieces is None else pieces - 1
        # No transaction writes to an erased scope, so these are the last ones.
        for batch in _batches(_expiry_rows(store, frozenset(pending.scopes))):
            store.transact(lambda txn, batch=batch: _delete_all(txn, batch), makes_room=True)  # type: ignore[misc]
        if store.transact(lambda txn: _finish(txn, pending.id), makes_room=True):
            return True


def _remove_piece(txn: Txn, id_: str) -> bool:
    """Delete rows in one transaction; return True if none remain in the ranges of the scopes."""
    pending = pending_of(txn, id_)
    if pending is None or pending.stage != SHREDDED:
        return True  # another process was faster
    piece, whole, before = DeleteBudget(), True, pending.counts.get("rows", 0)
    for start, stop in _ranges(txn, pending.scopes):
        if start[0] == Kind.CARE:
            audit.end_scope(txn, keys.split_scoped(start)[0])
        whole = _clear(txn, start, stop, piece, pending.counts)
        if not whole:
            break
    if pending.counts.get("rows", 0) != before:
        put_pending(txn, pending)
    return whole


def _clear(
    txn: Txn, start: bytes, stop: bytes, piece: DeleteBudget, counts: dict[str, int]
) -> bool:
    """Delete rows of a range within the transaction's budget; return True if it is empty now."""
    until = stop
    sessions: set[tuple[int, int]] = set()
    for key, value in txn.scan(start, stop):
        if not piece.admits(len(value)):
            until = key
            break
        _count_removing(key, counts)
        if start[0] == Kind.SESSION and len(key) > _ROW_AT:
            sessions.add(keys.split_session_prefix(key))
    for place in sessions:
        audit.end_session(txn, *place)
    txn.delete_range(start, until)
    return until is stop


def _finish(txn: Txn, id_: str) -> bool:
    """Advance the erasure to REMOVED if no row remains; return True if it is there."""
    pending = pending_of(txn, id_)
    if pending is None or pending.stage != SHREDDED:
        return True
    if any(has_rows(txn, scope) for scope in pending.scopes):
        return False
    pending.stage = REMOVED
    put_pending(txn, pending)
    return True


def _expiry_rows(store: Store, scopes: frozenset[int]) -> list[bytes]:
    """List the expiry rows of the scopes, with one short read per page."""
    found: list[bytes] = []
    start: bytes | None = keys.expiry_row(0, b"")
    while start is not None:
        rows: list[bytes] = store.read(lambda txn, start=start: _page(txn, start))  # type: ignore[misc]
        at = _EXPIRY_SCOPE_AT
        found += (row for row in rows if int.from_bytes(row[at : at + 8], "big") in scopes)
        start = keys.behind(rows[-1]) if len(rows) == _EXPIRY_PAGE else None
    return found


def _page(txn: ReadTxn, start: bytes) -> list[bytes]:
    stop = keys.after(bytes((Kind.EXPIRY,)))
    return [row for row, _ in txn.scan(start, stop, limit=_EXPIRY_PAGE)]


def _batches(rows: list[bytes]) -> Iterator[list[bytes]]:
    for at in range(0, len(rows), PIECE_ROWS // 4):  # scattered: each delete touches its own page
        yield rows[at : at + PIECE_ROWS // 4]


def _delete_all(txn: Txn, rows: list[bytes]) -> None:
    for row in rows:
        txn.delete(row)


# --- Erasing a user: unreachable in one commit, then the rows, then the bytes ---------------------

_NAMES_LOOKED_AT = 64
_NAME_CHARS_MIN = 16
"""Shorter session names may occur for other users, too."""
_FREE_PAGES: Final = "free pages, where a kill or a power cut may have left what was not stored yet"


@record(frozen=True, slots=True)
class ErasureRequest:
    """Arguments of ``erase``."""

    user: str
    app: str | None = None
    compact: bool = True
    override_hold: bool = False
    probes: tuple[str | bytes, ...] = ()
    key: bytes | None = field(default=None, repr=False)
    named: bool = False


def erase(engine: Engine, asked: ErasureRequest, judge: Judge) -> ErasureReceipt:
    """Erase a user; the receipt lists what was done and what remains to be done.

    Raises:
        HeldError: a hold covers something of the user's; nothing was changed.
        InvalidOptionError, ReadOnlyError, CorruptValueError: nothing was changed.
        StorageError: nothing was changed, or the first transaction's outcome is unknown.
    """
    _need_writable(engine)
    check_name(asked.user, "user")
    if asked.app is not None:
        check_name(asked.app, "app")
    key = (
        retention.receipt_key(engine.store)
        if asked.key is None
        else retention.checked_key(asked.key)
    )
    probes = checked_probes((asked.user, *asked.probes))
    begun, found = _begin(engine, asked, key)
    if begun is None:
        return _nothing(engine, asked, key)
    work = _Work(engine, begun)
    work.advance()
    if asked.compact:
        work.compact(checked_probes((*probes, *found)), judge)
    else:
        work.note("the bytes: the file was not compacted, as asked; call finish_erasures()")
        work.wipe()
    return work.receipt(key, user=asked.user if asked.named else None)


def would_erase(engine: Engine, user: str, app: str | None) -> dict[str, int]:
    """Count the scopes and rows that an erasure would remove, by kind. Changes nothing."""

    def count(txn: ReadTxn) -> dict[str, int]:
        found = [scope for scope, _ in scopes_of(txn, user, app)]
        counts = {"scopes": len(found), "rows": 0}
        for scope in found:
            count_rows(txn, scope, counts)
        return counts

    return engine.store.read(count)


def count_pending(engine: Engine) -> int:
    """Count the unfinished erasures."""
    return engine.store.read(lambda txn: sum(1 for _ in all_pending(txn)))


def finish_erasures(
    engine: Engine, judge: Judge, *, key: bytes | None = None
) -> list[ErasureReceipt]:
    """Finish all erasures with a single compaction; return a receipt for each.

    Raises:
        InvalidOptionError, ReadOnlyError, StorageError
    """
    _need_writable(engine)
    by = retention.receipt_key(engine.store) if key is None else retention.checked_key(key)
    works = [_Work(engine, each) for each in engine.store.read(lambda t: list(all_pending(t)))]
    for work in works:
        work.advance()
    waiting = [work for work in works if work.pending.stage == REMOVED]
    if waiting:
        done = compact_away(engine.store, [work.pending.id for work in waiting], [], judge)
        for work in waiting:
            work.compacted(done)
    return [work.receipt(by) for work in works]


def resume_erasures(engine: Engine, *, pieces: int) -> None:
    """Resume erasures: keys, and rows in up to ``pieces`` transactions each; no compaction.

    Errors are left to the next attempt.
    """
    with suppress(MemcoreError):
        for each in engine.store.read(lambda txn: list(all_pending(txn))):
            if each.stage in (HIDDEN, SHREDDED):
                _Work(engine, each).advance(pieces=pieces)


# --- key files and data files of different age ----------------------------------------------------


def has_shredded(store: Store) -> bool:
    """Return True if a file has users whose keys are destroyed, as a backup has."""
    vault = store.vault
    return vault is not None and bool(store.read(lambda txn: _unburied(txn, vault.ring)))


def bury_shredded(engine: Engine) -> None:
    """Erase users whose keys are destroyed but who remain in the file, a backup; and vice versa.

    Their names and rows are deleted as in any erasure, and their numbers are not reused. Vice
    versa, a user who is erased here but has keys, because an older key file was restored, loses
    them again.

    If the key file cannot be written, the rest is done and those keys are destroyed later.

    Raises:
        StorageError, AuditError: nothing was changed.
    """
    store, vault = engine.store, engine.store.vault
    if vault is None:
        return
    ring = vault.ring
    if store.read(lambda txn: _unburied(txn, ring)):
        _bury_all(engine, ring)
    if store.read(lambda txn: _revived(txn, ring)):
        store.make_durable()  # no power failure may bring their names back
        try:
            store.transact(lambda txn: vault.shred(_revived(txn, ring)), makes_room=True)
        except (KeyFileError, WrongKeyError) as error:
            vault.await_shredding(store.read(lambda txn: _revived(txn, ring)))
            logger("memcore.retention").warning(
                "%s: keys of erased users await shredding: %s", store.path, error
            )


def _unburied(txn: ReadTxn, ring: KeyRing) -> list[int]:
    """List the scopes whose keys are destroyed and that have no tombstone."""
    shredded = ring.shredded()  # read before the file: an erasure writes tombstones first
    dead = set(buried(txn)) if shredded else set()
    return [scope for scope in shredded if scope not in dead]


def _revived(txn: ReadTxn, ring: KeyRing) -> list[int]:
    """List the scopes with a tombstone and keys, except those an erasure is about to shred."""
    dead = [scope for scope in buried(txn) if ring.of_scope(scope) is not None]
    if not dead:
        return []
    going = {scope for each in all_pending(txn) if each.stage == HIDDEN for scope in each.scopes}
    return [scope for scope in dead if scope not in going]


def _bury_all(engine: Engine, ring: KeyRing) -> None:
    own, now_ms = retention.receipt_key(engine.store), engine.now_ms()
    size = engine.store.stats()["file_bytes"]

    def closure(txn: Txn) -> None:
        ring.refresh()
        lost = _unburied(txn, ring)
        pass_over(txn, keys.Counter.SCOPE, max(lost, default=0))
        known = {scope for each in all_pending(txn) for scope in each.scopes}
        found = drop_names_of(txn, lost)
        known.update(*found.values())
        for scope in lost:
            bury(txn, scope)
            if scope not in known and has_rows(txn, scope):
                found.setdefault("", []).append(scope)
        for user, scopes in found.items():
            who = retention.digest_of(own, "user", user)
            pending = Pending(os.urandom(16).hex(), who, None, who, None, scopes, now_ms, size)
            pending.stage, pending.shredded = SHREDDED, True
            for scope in scopes:
                pending.overrode_hold = bool(drop_holds(txn, scope)) or pending.overrode_hold
            put_pending(txn, pending)
            audit.record_event(txn, 0, "erase", {"erasure": pending.id, "scopes": scopes})
        txn.notify(NAMES)
        txn.notify(ERASED)
        txn.on_commit(lambda: _forget(engine, lost))

    engine.store.transact(closure, makes_room=True)


# --- the first transaction ------------------------------------------------------------------------


def _begin(engine: Engine, asked: ErasureRequest, key: bytes) -> tuple[Pending | None, list[str]]:
    """Delete the user's names; return the erasure, and some of the names to scan for."""
    own = retention.receipt_key(engine.store)
    user, app = retention.digest_of(own, "user", asked.user), _app_digest(own, asked.app)
    told = retention.digest_of(key, "user", asked.user), _app_digest(key, asked.app)
    now_ms, id_ = engine.now_ms(), os.urandom(16).hex()
    size = engine.store.stats()["file_bytes"]

    def closure(txn: Txn) -> tuple[Pending | None, list[str]]:
        scopes = scopes_of(txn, asked.user, asked.app)
        if not scopes:  # a repeated request resumes the erasure
            begun = (p for p in all_pending(txn) if p.user == user and p.app == app)
            return next(begun, None), []
        if not asked.override_hold:
            for scope, _ in scopes:
                need_free(txn, scope, what=f"user {asked.user[:40]!r}")
        pending = Pending(id_, user, app, *told, [scope for scope, _ in scopes], now_ms, size)
        found: list[str] = []
        for scope, its_app in scopes:
            found += _long_names(txn, scope)
            pending.overrode_hold = bool(drop_holds(txn, scope)) or pending.overrode_hold
            memory.drop_grants(txn, scope)
            drop_names(txn, scope, its_app, asked.user)
            bury(txn, scope)
        put_pending(txn, pending)
        audit.record_event(txn, 0, "erase", {"erasure": id_, "scopes": pending.scopes})
        txn.notify(NAMES)
        txn.notify(ERASED)
        txn.on_commit(lambda: _forget(engine, pending.scopes))
        return pending, found

    return engine.store.transact(closure, makes_room=True)


def _forget(engine: Engine, scopes: Iterable[int]) -> None:
    """Drop this process's caches of the content."""
    engine.graphs.forget()
    for scope in scopes:
        engine.logs.forget_scope(scope)
        engine.forget_index(scope)


def _long_names(txn: ReadTxn, scope: int) -> list[str]:
    """Return some session and thread names long enough to be unique to this user."""
    found = []
    for kind in (Kind.SESSION_NAME, Kind.THREAD_NAME):
        start = keys.scoped(kind, scope)
        for key, _ in txn.scan(start, keys.after(start), limit=_NAMES_LOOKED_AT):
            with suppress(MemcoreError):  # a damaged key is deleted with the others
                found.append(keys.unpack_text(keys.split_scoped(key)[1]))
    return [name for name in found if len(name) >= _NAME_CHARS_MIN]


def _app_digest(key: bytes, app: str | None) -> str | None:
    return None if app is None else retention.digest_of(key, "app", app)


def _need_writable(engine: Engine) -> None:
    if engine.store.read_only:
        msg = "the database is open read-only; open it for writing to erase"
        raise ReadOnlyError(msg)


# --- remaining steps ------------------------------------------------------------------------------


class _Work:
    """Remaining steps and result of one erasure; errors after the first step become notes."""

    def __init__(self, engine: Engine, pending: Pending) -> None:
        self._engine = engine
        self._store = engine.store
        self.pending = pending
        self._notes: list[str] = []
        self._scan = Scan()
        self._compacted = False

    def note(self, what: str) -> None:
        """Note a step that is still to be done."""
        self._notes.append(what)

    def advance(self, *, pieces: int | None = None) -> None:
        """Shred the data keys and remove rows."""
        try:
            if self.pending.stage == HIDDEN or self._awaits_shredding:
                self._shred()
            if self.pending.stage == SHREDDED:
                remove_rows(self._store, self.pending, pieces)
                self._store.flush()
        except StorageError as error:
            self.note(f"rows: {error}")
        except AuditError as error:
            self.note(f"the audit: {error}")
        self._reread()

    def _shred(self) -> None:
        """Drop the data keys; if the key file cannot be written, continue and defer it."""
        vault = self._store.vault
        self._store.make_durable()  # no power failure may bring the names back without their keys

        def closure(txn: Txn, *, later: bool = False) -> None:
            pending = pending_of(txn, self.pending.id)
            if pending is None or pending.shredded:
                return
            if vault is not None and not later:
                vault.shred(pending.scopes)  # idempotent
                pending.shredded = True
            if pending.stage == HIDDEN:
                pending.stage = SHREDDED
            put_pending(txn, pending)

        try:
            self._store.transact(closure, makes_room=True)
        except (KeyFileError, WrongKeyError) as error:
            self.note(f"the keys, which await shredding by the next commit or opening: {error}")
            if vault is not None:
                vault.await_shredding(self.pending.scopes)
            self._store.transact(lambda txn: closure(txn, later=True), makes_room=True)
        self._reread()

    @property
    def _awaits_shredding(self) -> bool:
        return self._store.vault is not None and not self.pending.shredded

    def _reread(self) -> None:
        """Read the stored state again; a missing row means that another process finished."""
        with suppress(StorageError):
            found = self._store.read(lambda txn: pending_of(txn, self.pending.id))
            if found is None and self.pending.stage != GONE:
                self.pending.stage = GONE
                self.pending.finished_ms = self.pending.finished_ms or self._engine.now_ms()
            self.pending = found or self.pending

    def _keep(self, txn: Txn) -> None:
        """Record that the bytes are gone but not the keys; the next attempt does the rest."""
        if pending_of(txn, self.pending.id) is not None:
            put_pending(txn, self.pending)

    def wipe(self) -> None:
        """Blank the redo slots of a file that is not replaced."""
        try:
            self._store.wipe_records()
        except StorageError as error:
            self.note(f"the redo records: {error}")

    def compact(self, probes: list[bytes], judge: Judge) -> None:
        """Remove the bytes by a compaction."""
        if self.pending.stage == REMOVED:
            self.compacted(compact_away(self._store, [self.pending.id], probes, judge))

    def compacted(self, done: Compacted) -> None:
        """Record the result of a compaction."""
        self._scan = done.scan
        if done.problem:
            self.note(f"the bytes: {done.problem}")
            self.wipe()
            return
        self._compacted = True
        self.pending.stage, self.pending.bytes_after = GONE, done.bytes_after
        self.pending.finished_ms = self._engine.now_ms()

    def receipt(self, key: bytes, *, user: str | None = None) -> ErasureReceipt:
        """Sign and return the receipt; delete the row of a finished erasure."""
        pending, store = self.pending, self._store
        gone = pending.stage == GONE and not self._awaits_shredding
        if gone:
            store.transact(lambda txn: drop_pending(txn, pending.id), makes_room=True)
        elif pending.stage == GONE:
            store.transact(self._keep, makes_room=True)
        left = store.read(lambda txn: sum(has_rows(txn, scope) for scope in pending.scopes))
        if left and not self._notes:
            self.note("rows: some are left; call finish_erasures()")
        method = ["shredded"] if pending.shredded else []
        method += ["removed"] if pending.stage in (REMOVED, GONE) else []
        method += ["compacted"] if pending.stage == GONE and not store.is_server else []
        return retention.ErasureReceipt(
            id=pending.id,
            user_digest=pending.told_user,
            user=user,
            app_digest=pending.told_app,
            scopes=len(pending.scopes),
            counts=dict(sorted(pending.counts.items())),
            method=tuple(method),
            bytes_gone=gone and not store.is_server,
            bytes_before=pending.bytes_before,
            bytes_after=pending.bytes_after if gone else store.stats()["file_bytes"],
            verification=_verification(left, self._scan),
            overrode_hold=pending.overrode_hold,
            asked_at=pending.asked_ms / 1000,
            finished_at=pending.finished_ms / 1000 if gone else None,
            pending=tuple(self._notes),
            out_of_reach=out_of_reach(store),
        ).signed(key)


def _verification(rows_left: int, scan: Scan) -> dict[str, int]:
    return {
        "rows_left": rows_left,
        "bytes_scanned": scan.bytes,
        "probes": scan.needles,
        "found": scan.stray,
        "mentions": scan.in_rows,
    }


_SERVERS: Final = (
    "deleted rows in the server's tables until it has vacuumed and reused their pages",
    "the server's write-ahead log, its archive, its replicas and its backups",
)


def out_of_reach(store: Store) -> tuple[str, ...]:
    """Describe copies that an erasure cannot reach; files next to the database are named."""
    found = ["backups and exports that were made before", "blocks that the device has retired"]
    if store.is_server:
        found += _SERVERS
    elif not store.read(lambda txn: warm_row(txn.get(keys.WARM_KEY))).is_blank:
        found += ("the file's warm copy, until the next shipment", *_SERVERS)
    if not store.is_server and os.path.isabs(store.path):
        with suppress(OSError):
            found += [f"the file {os.path.basename(each)!r}" for each in files_beside(store.path)]
    return tuple(found)


def _nothing(engine: Engine, asked: ErasureRequest, key: bytes) -> ErasureReceipt:
    """Return the receipt for a user of whom nothing is stored; the file is unchanged."""
    size, now = engine.store.stats()["file_bytes"], engine.now_ms() / 1000
    pages = () if engine.store.is_server else (_FREE_PAGES,)
    return retention.ErasureReceipt(
        id=os.urandom(16).hex(),
        user_digest=retention.digest_of(key, "user", asked.user),
        user=asked.user if asked.named else None,
        app_digest=_app_digest(key, asked.app),
        scopes=0,
        counts={},
        method=(),
        bytes_gone=not engine.store.is_server,
        bytes_before=size,
        bytes_after=size,
        verification=_verification(0, Scan()),
        overrode_hold=False,
        asked_at=now,
        finished_at=now,
        pending=(),
        out_of_reach=(*out_of_reach(engine.store), *pages),
    ).signed(key)
