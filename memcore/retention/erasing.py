"""Erasing a user: gone at once for everybody, then the rows, then the bytes.

1. One transaction takes the names of all their scopes away, buries the numbers and writes down what
   is to be done. From then on no handle of any process reaches a scope or writes into it.
2. The data keys are shredded, where the file is encrypted.
3. The rows leave, a piece a transaction.
4. The file is swapped for a compact copy without free pages, slack and redo records.

Cut short anywhere, the rest is done by ``finish_erasures``, by the next ``erase`` of that user, and
all but the last step by the next opening for writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from memcore import keys
from memcore.audit import record_event
from memcore.errors import AuditError, MemcoreError, ReadOnlyError, StorageError
from memcore.held import drop_holds, need_free
from memcore.keys import Kind
from memcore.names import check_name, pass_over
from memcore.privacy.ring import KeyRing
from memcore.retention.compacting import Compacted, Judge, compact_away
from memcore.retention.owner import drop_names, drop_names_of, scopes_of
from memcore.retention.pending import (
    GONE,
    HIDDEN,
    REMOVED,
    SHREDDED,
    Pending,
    all_pending,
    drop_pending,
    pending_of,
    put_pending,
)
from memcore.retention.receipt import ErasureReceipt, checked_key, digest_of
from memcore.retention.removing import count_rows, has_rows, remove_rows
from memcore.retention.scanning import Scan, checked_probes, files_beside
from memcore.retention.signing import receipt_key
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn
from memcore.store.bell import ERASED, NAMES
from memcore.tombstone import buried, bury

__all__ = [
    "Asked",
    "bury_shredded",
    "count_pending",
    "erase",
    "finish_erasures",
    "resume_erasures",
    "would_erase",
]

_NAMES_LOOKED_AT = 64
_NAME_CHARS_MIN = 16
"""Shorter names of sessions are those of others', too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller of ``erase`` asked for."""

    user: str
    app: str | None = None
    compact: bool = True
    override_hold: bool = False
    probes: tuple[str | bytes, ...] = ()
    key: bytes | None = field(default=None, repr=False)
    named: bool = False


def erase(backing: Backing, asked: Asked, judge: Judge) -> ErasureReceipt:
    """Erase a user; what was done and what is still to be done is in the receipt.

    Raises:
        HeldError: a hold covers something of the user's; nothing was changed.
        InvalidOptionError, ReadOnlyError, CorruptValueError: nothing was changed.
        StorageError: nothing was changed, or the first transaction's outcome is unknown.
    """
    _need_writable(backing)
    check_name(asked.user, "user")
    if asked.app is not None:
        check_name(asked.app, "app")
    key = receipt_key(backing.store) if asked.key is None else checked_key(asked.key)
    probes = checked_probes((asked.user, *asked.probes))
    begun, found = _begin(backing, asked, key)
    if begun is None:
        return _nothing(backing, asked, key)
    work = _Work(backing, begun)
    work.advance()
    if asked.compact:
        work.compact(checked_probes((*probes, *found)), judge)
    else:
        work.note("the bytes: the file was not compacted, as asked; call finish_erasures()")
        work.wipe()
    return work.receipt(key, user=asked.user if asked.named else None)


def would_erase(backing: Backing, user: str, app: str | None) -> dict[str, int]:
    """What an erasure would remove: scopes and rows, by what they are. Changes nothing."""

    def count(txn: ReadTxn) -> dict[str, int]:
        found = [scope for scope, _ in scopes_of(txn, user, app)]
        counts = {"scopes": len(found), "rows": 0}
        for scope in found:
            count_rows(txn, scope, counts)
        return counts

    return backing.store.read(count)


def count_pending(backing: Backing) -> int:
    """How many erasures are not finished."""
    return backing.store.read(lambda txn: sum(1 for _ in all_pending(txn)))


def finish_erasures(
    backing: Backing, judge: Judge, *, key: bytes | None = None
) -> list[ErasureReceipt]:
    """Do what is left of all erasures, with one compaction; a receipt for each.

    Raises:
        InvalidOptionError, ReadOnlyError, StorageError
    """
    _need_writable(backing)
    by = receipt_key(backing.store) if key is None else checked_key(key)
    works = [_Work(backing, each) for each in backing.store.read(lambda t: list(all_pending(t)))]
    for work in works:
        work.advance()
    waiting = [work for work in works if work.pending.stage == REMOVED]
    if waiting:
        done = compact_away(backing.store, [work.pending.id for work in waiting], [], judge)
        for work in waiting:
            work.compacted(done)
    return [work.receipt(by) for work in works]


def resume_erasures(backing: Backing, *, pieces: int) -> None:
    """Go on with what others began: keys and rows, at most so many pieces; no compaction.

    What fails here stays for the next one who tries.
    """
    with suppress(MemcoreError):
        for each in backing.store.read(lambda txn: list(all_pending(txn))):
            if each.stage in (HIDDEN, SHREDDED):
                _Work(backing, each).advance(pieces=pieces)


# --- files and key files of different times -------------------------------------------------------


def bury_shredded(backing: Backing) -> None:
    """Have users stay erased of whom the file, a backup, knows nothing but that they were there.

    Their data keys are gone, so their names and rows go as in any erasure, and their numbers are
    not given out again. And the reverse: whoever is buried here and has keys, since an older key
    file was put in place, loses them once more.

    Raises:
        KeyFileError, StorageError, AuditError: nothing was changed.
    """
    store, vault = backing.store, backing.store.vault
    if vault is None:
        return
    ring = vault.ring
    if store.read(lambda txn: _unburied(txn, ring)):
        _bury_all(backing, ring)
    if store.read(lambda txn: _revived(txn, ring)):
        store.make_durable()  # no power cut may bring their names back

        def shred(txn: Txn) -> None:
            for scope in _revived(txn, ring):
                vault.shred(scope)

        store.transact(shred)


def _unburied(txn: ReadTxn, ring: KeyRing) -> list[int]:
    """The scopes whose keys were shredded, and that the file does not know to be dead."""
    shredded = ring.shredded()  # before the look at the file: who erases buries first
    dead = set(buried(txn)) if shredded else set()
    return [scope for scope in shredded if scope not in dead]


def _revived(txn: ReadTxn, ring: KeyRing) -> list[int]:
    """The scopes that are dead and have keys, but for those that an erasure is about to shred."""
    dead = [scope for scope in buried(txn) if ring.of_scope(scope) is not None]
    if not dead:
        return []
    going = {scope for each in all_pending(txn) if each.stage == HIDDEN for scope in each.scopes}
    return [scope for scope in dead if scope not in going]


def _bury_all(backing: Backing, ring: KeyRing) -> None:
    own, now_ms = receipt_key(backing.store), backing.now_ms()
    size = backing.store.stats()["file_bytes"]

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
            who = digest_of(own, "user", user)
            pending = Pending(os.urandom(16).hex(), who, None, who, None, scopes, now_ms, size)
            pending.stage, pending.shredded = SHREDDED, True
            for scope in scopes:
                pending.overrode_hold = bool(drop_holds(txn, scope)) or pending.overrode_hold
            put_pending(txn, pending)
            record_event(txn, 0, "erase", {"erasure": pending.id, "scopes": scopes})
        txn.tell(NAMES)
        txn.tell(ERASED)
        txn.on_commit(lambda: _forget(backing, lost))

    backing.store.transact(closure, makes_room=True)


# --- the first transaction ------------------------------------------------------------------------


def _begin(backing: Backing, asked: Asked, key: bytes) -> tuple[Pending | None, list[str]]:
    """Take the user's names away; what is to be done, and some of the names for the scan."""
    own = receipt_key(backing.store)
    user, app = digest_of(own, "user", asked.user), _app_digest(own, asked.app)
    told = digest_of(key, "user", asked.user), _app_digest(key, asked.app)
    now_ms, id_ = backing.now_ms(), os.urandom(16).hex()
    size = backing.store.stats()["file_bytes"]

    def closure(txn: Txn) -> tuple[Pending | None, list[str]]:
        scopes = scopes_of(txn, asked.user, asked.app)
        if not scopes:  # who asks again goes on with what was begun
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
            drop_names(txn, scope, its_app, asked.user)
            bury(txn, scope)
        put_pending(txn, pending)
        record_event(txn, 0, "erase", {"erasure": id_, "scopes": pending.scopes})
        txn.tell(NAMES)
        txn.tell(ERASED)
        txn.on_commit(lambda: _forget(backing, pending.scopes))
        return pending, found

    return backing.store.transact(closure, makes_room=True)


def _forget(backing: Backing, scopes: Iterable[int]) -> None:
    """Drop what this process remembers of the content."""
    backing.graphs.forget()
    for scope in scopes:
        backing.logs.forget_scope(scope)


def _long_names(txn: ReadTxn, scope: int) -> list[str]:
    """Some names of sessions and threads that are so long that only this user has them."""
    found = []
    for kind in (Kind.SESSION_NAME, Kind.THREAD_NAME):
        start = keys.scoped(kind, scope)
        for key, _ in txn.scan(start, keys.after(start), limit=_NAMES_LOOKED_AT):
            with suppress(MemcoreError):  # a damaged key leaves with the others
                found.append(keys.unpack_text(keys.split_scoped(key)[1]))
    return [name for name in found if len(name) >= _NAME_CHARS_MIN]


def _app_digest(key: bytes, app: str | None) -> str | None:
    return None if app is None else digest_of(key, "app", app)


def _need_writable(backing: Backing) -> None:
    if backing.store.read_only:
        msg = "the database is open read-only; open it for writing to erase"
        raise ReadOnlyError(msg)


# --- the rest -------------------------------------------------------------------------------------


class _Work:
    """What is left of one erasure, and what became of it. Errors of the rest are notes."""

    def __init__(self, backing: Backing, pending: Pending) -> None:
        self._backing = backing
        self._store = backing.store
        self.pending = pending
        self._notes: list[str] = []
        self._scan = Scan()
        self._compacted = False

    def note(self, what: str) -> None:
        """Something is still to be done."""
        self._notes.append(what)

    def advance(self, *, pieces: int | None = None) -> None:
        """Shred the data keys and remove rows."""
        try:
            if self.pending.stage == HIDDEN:
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
        vault = self._store.vault
        self._store.make_durable()  # no power cut may bring the names back without their keys

        def closure(txn: Txn) -> None:
            pending = pending_of(txn, self.pending.id)
            if pending is None or pending.stage != HIDDEN:
                return
            if vault is not None:
                for scope in pending.scopes:
                    vault.shred(scope)  # done once more, it changes nothing
            pending.stage, pending.shredded = SHREDDED, vault is not None
            put_pending(txn, pending)

        self._store.transact(closure, makes_room=True)
        self._reread()

    def _reread(self) -> None:
        """Take over what is stored; nothing is, when somebody else has finished."""
        with suppress(StorageError):
            found = self._store.read(lambda txn: pending_of(txn, self.pending.id))
            if found is None and self.pending.stage != GONE:
                self.pending.stage = GONE
                self.pending.finished_ms = self.pending.finished_ms or self._backing.now_ms()
            self.pending = found or self.pending

    def wipe(self) -> None:
        """Blank the redo slots of the file that stays."""
        try:
            self._store.wipe_records()
        except StorageError as error:
            self.note(f"the redo records: {error}")

    def compact(self, probes: list[bytes], judge: Judge) -> None:
        """Have the bytes leave."""
        if self.pending.stage == REMOVED:
            self.compacted(compact_away(self._store, [self.pending.id], probes, judge))

    def compacted(self, done: Compacted) -> None:
        """Take over what a compaction came to."""
        self._scan = done.scan
        if done.problem:
            self.note(f"the bytes: {done.problem}")
            self.wipe()
            return
        self._compacted = True
        self.pending.stage, self.pending.bytes_after = GONE, done.bytes_after
        self.pending.finished_ms = self._backing.now_ms()

    def receipt(self, key: bytes, *, user: str | None = None) -> ErasureReceipt:
        """The signed receipt; of what is finished the row goes."""
        pending, store = self.pending, self._store
        gone = pending.stage == GONE
        if gone:
            store.transact(lambda txn: drop_pending(txn, pending.id), makes_room=True)
        left = store.read(lambda txn: sum(has_rows(txn, scope) for scope in pending.scopes))
        if left and not self._notes:
            self.note("rows: some are left; call finish_erasures()")
        method = ["shredded"] if pending.shredded else []
        method += ["removed"] if pending.stage in (REMOVED, GONE) else []
        method += ["compacted"] if gone else []
        return ErasureReceipt(
            id=pending.id,
            user_digest=pending.told_user,
            user=user,
            app_digest=pending.told_app,
            scopes=len(pending.scopes),
            counts=dict(sorted(pending.counts.items())),
            method=tuple(method),
            bytes_gone=gone,
            bytes_before=pending.bytes_before,
            bytes_after=pending.bytes_after if gone else store.stats()["file_bytes"],
            verification=_verification(left, self._scan),
            overrode_hold=pending.overrode_hold,
            asked_at=pending.asked_ms / 1000,
            finished_at=pending.finished_ms / 1000 if gone else None,
            pending=tuple(self._notes),
            out_of_reach=out_of_reach(store.path),
        ).signed(key)


def _verification(rows_left: int, scan: Scan) -> dict[str, int]:
    return {
        "rows_left": rows_left,
        "bytes_scanned": scan.bytes,
        "probes": scan.needles,
        "found": scan.stray,
        "mentions": scan.in_rows,
    }


def out_of_reach(path: str) -> tuple[str, ...]:
    """What an erasure cannot reach, in words; files beside the database by their names."""
    found = ["backups and exports that were made before", "blocks that the device gave up"]
    if os.path.isabs(path):
        with suppress(OSError):
            found += [f"the file {os.path.basename(each)!r}" for each in files_beside(path)]
    return tuple(found)


def _nothing(backing: Backing, asked: Asked, key: bytes) -> ErasureReceipt:
    """The receipt for a user of whom nothing is stored."""
    size, now = backing.store.stats()["file_bytes"], backing.now_ms() / 1000
    return ErasureReceipt(
        id=os.urandom(16).hex(),
        user_digest=digest_of(key, "user", asked.user),
        user=asked.user if asked.named else None,
        app_digest=_app_digest(key, asked.app),
        scopes=0,
        counts={},
        method=(),
        bytes_gone=True,
        bytes_before=size,
        bytes_after=size,
        verification=_verification(0, Scan()),
        overrode_hold=False,
        asked_at=now,
        finished_at=now,
        pending=(),
        out_of_reach=out_of_reach(backing.store.path),
    ).signed(key)
