"""Files of one namespace: cached listing and texts, writes, idempotent requests."""

from __future__ import annotations

import os
import secrets
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, TypeVar
from weakref import WeakSet

from deepagents.backends.protocol import FileInfo

from memcore.adapters.deepagents.rows import (
    FILES,
    HEAD,
    LONG_FILES,
    Change,
    FileRow,
    Head,
    Texts,
    drop_parts,
    file_key,
    lengthen,
    put_parts,
    read_parts,
    shown,
)
from memcore.codec.values import decoding
from memcore.errors import CorruptValueError
from memcore.kv import KeyValue, KeyValueTxn, KeyValueView
from memcore.options import checked_idempotency_key
from memcore.records import record
from memcore.store.interface import DeleteBudget

__all__ = [
    "Files",
    "Listing",
    "Once",
    "Repeated",
    "Upload",
    "once_of",
    "rooted",
]


# --- The file rows of a namespace in memory, in the order of their paths --------------------------

_BEHIND_SLASH = chr(ord("/") + 1)


def rooted(path: str | None) -> str | None:
    """Normalize a search root as DeepAgents does; None if it is blank, which matches nothing."""
    path = path or "/"
    if not path.strip():
        return None
    found = path if path.startswith("/") else "/" + path
    return found.rstrip("/") if found != "/" else found


class _Told(dict[str, FileInfo]):
    """A cache of each file's FileInfo, built on first use."""

    def __init__(self, rows: dict[str, FileRow]) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, path: str) -> FileInfo:
        row = self._rows[path]
        found = self[path] = {
            "path": path,
            "is_dir": False,
            "size": row.told_size,
            "modified_at": row.modified_at or "",
        }
        return found


class Listing:
    """The files as of ``head``; None: there were none yet.

    Not thread-safe: the owner holds a lock.
    """

    def __init__(self, head: Head | None, rows: Iterable[tuple[str, FileRow]] = ()) -> None:
        self.head = head
        self._rows = dict(rows)
        self._told = _Told(self._rows)
        self._paths = sorted(self._rows)

    def row(self, path: str) -> FileRow | None:
        """The row of a file; None if there is none."""
        return self._rows.get(path)

    def rows(self, paths: Iterable[str]) -> list[tuple[str, FileRow]]:
        """Files with their rows."""
        rows = self._rows
        return [(path, rows[path]) for path in paths]

    def take(self, path: str, row: FileRow | None) -> None:
        """Apply a change: a file's new row, or the removal of a path and everything below it."""
        if row is not None:
            if path not in self._rows:
                insort(self._paths, path)
            self._rows[path] = row
            self._told.pop(path, None)
            return
        for start, stop in ((path, path + "\0"), self._below(path + "/")):
            lo, hi = self._span(start, stop)
            for gone in self._paths[lo:hi]:
                del self._rows[gone]
                self._told.pop(gone, None)
            del self._paths[lo:hi]

    def drop(self, paths: Iterable[str], head: Head) -> None:
        """Remove files as of ``head``, but not the files below their paths."""
        for path in paths:
            del self._rows[path]
            self._told.pop(path, None)
            del self._paths[bisect_left(self._paths, path)]
        self.head = head

    def _below(self, prefix: str) -> tuple[str, str]:
        """Bounds of the paths with a prefix, which ends with a slash."""
        return prefix, prefix[:-1] + _BEHIND_SLASH

    def _span(self, start: str, stop: str) -> tuple[int, int]:
        lo = bisect_left(self._paths, start)
        return lo, bisect_left(self._paths, stop, lo)

    def at_or_below(self, base: str) -> list[str]:
        """The path itself if it is a file, and all files below it."""
        lo, hi = self._span(*self._below(base + "/"))
        return ([base] if base in self._rows else []) + self._paths[lo:hi]

    def found_under(self, root: str) -> list[str]:
        """The files that a search examines: the root if it is a file, else those below it."""
        if root in self._rows:
            return [root]
        lo, hi = self._span(*self._below(root if root == "/" else root + "/"))
        return self._paths[lo:hi]

    def told(self, paths: Iterable[str]) -> list[FileInfo]:
        """The FileInfo of these files."""
        told = self._told
        return [told[path].copy() for path in paths]

    def entries(self, directory: str) -> list[FileInfo]:
        """The FileInfo of a directory's files and subdirectories (``"/a/"``).

        Only one path per subdirectory is read, so the cost depends on the number of entries listed.
        """
        prefix = directory if directory.endswith("/") else directory + "/"
        at, hi = self._span(*self._below(prefix))
        paths, told, start = self._paths, self._told, len(prefix)
        found: list[FileInfo] = []
        while at < hi:
            path = paths[at]
            slash = path.find("/", start)
            if slash < 0:
                found.append(told[path].copy())
                at += 1
                continue
            subtree = path[: slash + 1]
            found.append({"path": subtree, "is_dir": True, "size": 0, "modified_at": ""})
            at = bisect_left(paths, self._below(subtree)[1], at, hi)
        return found


# --- Idempotent requests, which change a file once however often they are repeated ----------------


class Repeated(Exception):  # noqa: N818 - a signal
    """The request was already carried out; ``result`` is what it returned."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@record(frozen=True, slots=True)
class Once:
    """An idempotency key, the digest input of its request, and the result to record."""

    key: str
    content: bytes
    result: Any = 0

    def note(self, txn: KeyValueTxn) -> None:
        """Record the result, in the transaction that changes the file and before the change.

        Raises:
            Repeated: the request was already carried out.
            DuplicateRequestError: the key was used for another request.
        """
        told = txn.recall(self.key, self.content)
        if told is not None:
            raise Repeated(told[0])
        txn.remember(self.key, self.result, self.content)


def once_of(key: str | None, *said: str | bool) -> Once | None:
    """The request for a key, identified by these arguments; None without a key.

    Raises:
        InvalidOptionError: the key is not a str, is empty or too long.
    """
    if key is None:
        return None
    return Once(checked_idempotency_key(key), repr(said).encode("utf-8", "surrogatepass"))


# --- The files of one namespace: the cache, the committed rows, and their synchronization ---------

T = TypeVar("T")

_DELETE_FILES: Final = 256
"""Files removed per transaction of a deletion."""
_FIRST_NUMBER_BITS: Final = 40
_GROWN_BYTES: Final = 4096
"""Content of at least this size is compared with its replacement, which may only extend it."""


@record(frozen=True, slots=True)
class Upload:
    """A whole file to write; without ``created_at`` an existing time is kept, else it is now."""

    path: str
    payload: bytes
    encoding: str
    created_at: str | None = None
    modified_at: str | None = None


def now_iso() -> str:
    """The current time in DeepAgents' format."""
    return datetime.now(UTC).isoformat()


class Files:
    """The files of one namespace."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self.forget()
        _living.add(self)

    def forget(self) -> None:
        """Drop all caches and replace the lock, which may stay held after a fork."""
        self._lock = Lock()
        self._listing = Listing(None)
        self._texts = Texts()

    # --- reading ----------------------------------------------------------------------------------

    def look(self, fn: Callable[[Listing], T]) -> T:
        """Call ``fn`` with the current listing, under the lock."""
        with self._lock:
            return fn(self._synced())

    def row(self, path: str) -> FileRow | None:
        """The row of a file; None if there is none."""
        return self.look(lambda listing: listing.row(path))

    def file(self, path: str) -> tuple[FileRow, str] | None:
        """A file's row and its content as text or base64; None if there is none.

        Raises:
            CorruptValueError: its content is damaged.
        """
        found = self._read(path, self._shown)
        return found and (found[0], found[1])

    def kept(self, row: FileRow) -> str | None:
        """The text at a row, if cached."""
        return self._texts.get(row)

    def payload(self, path: str) -> tuple[FileRow, bytes] | None:
        """A file's row and its bytes; raises what ``file`` raises."""
        return self._read(path, self._bytes)

    def _read(self, path: str, load: Callable[[FileRow], T]) -> tuple[FileRow, T] | None:
        before: FileRow | None = None
        while True:
            row = self.row(path)
            if row is None:
                return None
            try:
                return row, load(row)
            except CorruptValueError:
                if row == before:  # not replaced meanwhile, so it is damaged
                    raise
                before = row

    def _shown(self, row: FileRow) -> str:
        text = self._texts.get(row)
        if text is None:
            text = shown(read_parts(self._kv.get, row), row.encoding)
            self._texts.keep(row, text)
        return text

    def _bytes(self, row: FileRow) -> bytes:
        text = self._texts.get(row)
        return read_parts(self._kv.get, row) if text is None else text.encode("utf-8")

    def _synced(self) -> Listing:
        """The listing including changes by others; the caller holds the lock."""
        packed = self._kv.get(HEAD)
        known = self._listing.head
        if packed is None:
            # There are no files yet, or the head was lost: a salvage keeps only what it can read.
            self._begin_anew(self._kv.read(_loaded))
            return self._listing
        with decoding(b"", "head of the files"):
            is_known = known is not None and packed[0] == known.life and packed[1] <= known.changes
        if is_known:
            return self._listing  # equal, or read before another thread's change was applied
        head = Head.unpack(packed)
        changes = None if known is None else head.since(known)
        if changes is None:
            self._begin_anew(self._kv.read(_loaded))
        else:
            self._take(head, changes)
        return self._listing

    def _begin_anew(self, listing: Listing) -> None:
        old, self._listing = self._listing.head, listing
        if old is None or listing.head is None or old.life != listing.head.life:
            self._texts.clear()

    def _take(self, head: Head, changes: Sequence[Change]) -> None:
        for change in changes:
            if change is not None:
                self._listing.take(*change)
        self._listing.head = head

    # --- writing ----------------------------------------------------------------------------------

    def put(self, uploads: Sequence[Upload]) -> None:
        """Write whole files in one commit."""
        self._put(uploads, over=True)

    def _put(self, uploads: Sequence[Upload], *, over: bool, once: Once | None = None) -> bool:
        def closure(txn: KeyValueTxn) -> tuple[Head, list[Change]] | None:
            txn.need_wanted()  # must precede lookups, since an opt-out hides the files
            if not over and any(txn.get(file_key(upload.path)) for upload in uploads):
                return None
            if once is not None:
                once.note(txn)
            head = _head_of(txn)
            number, changes = head.numbers, list[Change]()
            for upload in uploads:
                key = file_key(upload.path)
                packed = txn.get(key)
                before = None if packed is None else FileRow.unpack(packed)
                number += 1
                parts, tail = put_parts(txn, number, upload.payload)
                if before is not None:
                    drop_parts(txn, before)
                row = _row_of(upload, before, (number, parts, tail))
                txn.put(key, row.packed(upload.path))
                changes.append((upload.path, row))
            return _changed(txn, head, changes, numbers=number), changes

        done = self._kv.transact(closure)
        if done is None:
            return False
        head, changes = done
        self._commit(head, changes)
        for upload, change in zip(uploads, changes, strict=True):
            if change is not None and change[1] is not None and upload.encoding != "base64":
                self._texts.keep(change[1], upload.payload.decode("utf-8"))
        return True

    def told(self, once: Once) -> Any:
        """The recorded result of a request; None if it has not been carried out.

        Raises:
            DuplicateRequestError: its key was used for another request.
        """
        found = self._kv.read(lambda view: view.recall(once.key, once.content))
        return None if found is None else found[0]

    def replace(self, path: str, row: FileRow, payload: bytes, *, once: Once | None = None) -> bool:
        """Replace a file's content, keeping its encoding; False if it is no longer at ``row``."""

        def closure(txn: KeyValueTxn) -> tuple[Head, list[Change]] | None:
            if not _is_at(txn, path, row):
                return None
            if once is not None:
                once.note(txn)
            head = _head_of(txn)
            number = head.numbers + 1
            parts, tail = put_parts(txn, number, payload)
            drop_parts(txn, row)
            new = _row_of(Upload(path, payload, row.encoding), row, (number, parts, tail))
            txn.put(file_key(path), new.packed(path))
            changes: list[Change] = [(path, new)]
            return _changed(txn, head, changes, numbers=number), changes

        return self._commit_if(closure) is not None

    def create(self, upload: Upload, *, once: Once | None = None) -> bool:
        """Write a new file; False if the path already exists."""
        return self._put([upload], over=False, once=once)

    def turn(
        self, path: str, row: FileRow, text: str, new: str, *, once: Once | None = None
    ) -> bool:
        """Change a file's text from ``text`` to ``new``; False if it is no longer at ``row``."""
        if new.startswith(text):
            return self.grow(path, row, new[len(text) :].encode("utf-8"), once=once)
        return self.replace(path, row, new.encode("utf-8"), once=once)

    def grow(self, path: str, row: FileRow, more: bytes, *, once: Once | None = None) -> bool:
        """Append to a file's content; False if the file is no longer at ``row``."""
        now = now_iso()

        def closure(txn: KeyValueTxn) -> tuple[Head, list[Change]] | None:
            if not _is_at(txn, path, row):
                return None
            if once is not None:
                once.note(txn)
            head = _head_of(txn)
            parts, tail = lengthen(txn, row, more)
            size = row.size + len(more)
            new = replace(row, parts=parts, tail=tail, size=size, modified_at=now)
            txn.put(file_key(path), new.packed(path))
            changes: list[Change] = [(path, new)]
            return _changed(txn, head, changes), changes

        text = self._texts.get(row)
        new = self._commit_if(closure)
        if new is not None and text is not None:
            self._texts.keep(new, text + more.decode("utf-8"))
        return new is not None

    def grown(self, upload: Upload) -> bool:
        """Write only the appended suffix of a file that grew.

        False if the new content does not extend the old one.
        """
        if len(upload.payload) < _GROWN_BYTES:
            return False
        row = self.row(upload.path)
        if (
            row is None
            or not _GROWN_BYTES <= row.size <= len(upload.payload)
            or row.encoding != upload.encoding
        ):
            return False
        found = self.payload(upload.path)
        if found is None or not upload.payload.startswith(found[1]):
            return False
        return self.grow(upload.path, found[0], upload.payload[found[0].size :])

    def delete(self, path: str) -> bool:
        """Remove a file and everything below it; return whether there was anything.

        More than 256 files, or large ones, are removed in batches in path order, one commit per
        batch.
        """
        base = path.rstrip("/")
        found = False
        while True:
            expected, doomed, whole = self.look(lambda listing: _piece(listing, base))
            if not doomed:
                return found
            found = True
            self._delete(base, expected, doomed, whole=whole)

    def _delete(self, base: str, expected: Head | None, doomed: list[str], *, whole: bool) -> None:
        def closure(txn: KeyValueTxn) -> tuple[Head, Change, bool]:
            head = _head_of(txn)
            for path in doomed:
                packed = txn.get(file_key(path))
                if packed is not None:
                    drop_parts(txn, FileRow.unpack(packed))
                    txn.delete(file_key(path))
            # Others may have changed files below the path; the change is then recorded as unknown.
            known = expected is not None and head.since(expected) == []
            change: Change = (base, None) if known and whole else None
            return _changed(txn, head, [change]), change, known

        head, change, known = self._kv.transact(closure, makes_room=True)
        if change is not None:
            self._commit(head, [change])
        elif known:
            with self._lock:
                if self._listing.head == expected:
                    self._listing.drop(doomed, head)

    def _commit_if(
        self, closure: Callable[[KeyValueTxn], tuple[Head, list[Change]] | None]
    ) -> FileRow | None:
        """Commit a change of one file; return its new row, or None if the closure refused."""
        done = self._kv.transact(closure)
        if done is None:
            return None
        head, changes = done
        self._commit(head, changes)
        change = changes[0]
        return change and change[1]

    def _commit(self, head: Head, changes: Sequence[Change]) -> None:
        """Apply a change committed here to the listing, if it is the next one."""
        with self._lock:
            known = self._listing.head
            if known is None or None in changes:
                return  # the next look reloads everything: files may exist even without a head
            if known.life == head.life and known.changes + len(changes) == head.changes:
                self._take(head, changes)


_living: WeakSet[Files] = WeakSet()


def _after_fork_in_child() -> None:
    for files in list(_living):
        files.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _head_of(txn: KeyValueTxn) -> Head:
    packed = txn.get(HEAD)
    if packed is not None:
        return Head.unpack(packed)
    # Numbers of a previous life must not be reused: texts may still be cached under them.
    return Head(secrets.token_hex(8), 0, secrets.randbits(_FIRST_NUMBER_BITS))


def _changed(
    txn: KeyValueTxn, head: Head, changes: Sequence[Change], *, numbers: int | None = None
) -> Head:
    after = head.after(*changes, numbers=numbers)
    txn.put(HEAD, after.packed())
    return after


def _is_at(txn: KeyValueTxn, path: str, row: FileRow) -> bool:
    packed = txn.get(file_key(path))
    return packed is not None and FileRow.unpack(packed) == row


def _piece(listing: Listing, base: str) -> tuple[Head | None, list[str], bool]:
    """One transaction's batch of a deletion: ``(head, paths, is_last)``."""
    doomed, piece = listing.at_or_below(base), DeleteBudget()
    stop = 0
    for _, row in listing.rows(doomed[:_DELETE_FILES]):
        if not piece.admits(row.size, more_pages=row.parts):
            break
        stop += 1
    return listing.head, doomed[:stop], stop == len(doomed)


def _row_of(upload: Upload, before: FileRow | None, placed: tuple[int, int, int]) -> FileRow:
    number, parts, tail = placed
    now = now_iso()
    born = now if before is None else before.created_at
    return FileRow(
        number,
        parts,
        len(upload.payload),
        tail,
        upload.encoding,
        upload.created_at or born,
        upload.modified_at or now,
    )


def _loaded(view: KeyValueView) -> Listing:
    packed = view.get(HEAD)
    rows = [(key[1:], value) for key, value in view.scan(prefix=FILES)]
    for _, value in view.scan(prefix=LONG_FILES):
        with decoding(b"", "row of a file"):
            rows.append((value[-1], value))
    head = None if packed is None else Head.unpack(packed)
    return Listing(head, [FileRow.of_value(path, value) for path, value in rows])
