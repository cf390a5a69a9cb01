"""Stores without their final name: opened detached, migrated, encrypted anew.

Not through ``open_store``: whoever works on such a file may have the lead of another environment,
for which an opener waits with the lock on opening.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from memcore.codec import keys
from memcore.errors import InternalError, StoreLockedError
from memcore.limits import FORMAT_VERSION, MAP_BYTES_DEFAULT, PIECE_ROWS
from memcore.store import lmdb as binding
from memcore.store.copy import Judge, compact_file
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.encryption import CLOSED_KINDS, RowCipher, is_content, number_of
from memcore.store.environment import Environment
from memcore.store.interface import Txn
from memcore.store.open_file import build_file
from memcore.store.redo_log import find_run
from memcore.store.store import LmdbStore
from memcore.store.transaction import stored_rows

__all__ = [
    "build_detached",
    "migrate_file",
    "open_detached",
    "reseal",
]


# --- A loose file: a store that nobody else knows yet, looked at or filled before it gets its name


@contextmanager
def open_detached(path: str, *, vault: RowCipher | None = None) -> Iterator[LmdbStore]:
    """A finished copy, opened read-only; ``vault``: of the database that it is a copy of."""
    with _opened(path, vault, read_only=True) as store:
        yield store


@contextmanager
def build_detached(
    path: str, record: Format, *, vault: RowCipher | None = None
) -> Iterator[LmdbStore]:
    """Build a file at ``path`` through an open store; in the end it gets the mode of ``record``.

    Nothing of it is durable before the caller has flushed the file.
    """
    build_file(path, record._replace(durability="none"), sync=False)
    with _opened(path, vault, read_only=False) as store:
        yield store
    binding.amend(path, {FORMAT_KEY: record.pack()})
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        find_run(fd, path).set_mode(fd, relaxed=record.durability == "relaxed")
    finally:
        os.close(fd)


@contextmanager
def _opened(path: str, vault: RowCipher | None, *, read_only: bool) -> Iterator[LmdbStore]:
    env = Environment(path, map_bytes=MAP_BYTES_DEFAULT)
    env.vault = vault
    env.attach(read_only=read_only)
    try:
        yield LmdbStore(env, read_only=read_only)
    finally:
        env.shut()


# --- A file of an older format made one of the present one: a proven copy in its place ------------

OLDEST_READ = 0
"""Format 0 has the layout of format 1 as it was at the end: nothing but the record differs."""


def migrate_file(path: str, *, keep: str | None, judge: Judge | None, look: bool = False) -> int:
    """Make the file at ``path`` one of the present format; the format that it had.

    Cut short anywhere it leaves the old file or the new one, whole.

    Args:
        path: the file, every link resolved.
        keep: another name for the old file; None: it is given up.
        judge: finds out what is wrong with the copy.
        look: change nothing.

    Raises:
        StoreLockedError: somebody has the file open.
        StoreFormatError: it is no memcore file, or one of a newer format.
        StorageError, OSError
    """
    env = Environment(path, map_bytes=MAP_BYTES_DEFAULT)
    env.oldest = OLDEST_READ
    env.attach(read_only=look)
    try:
        found = env.format
        if found is None:
            raise InternalError("an environment without a format record")
        if look or found.version >= FORMAT_VERSION:
            return found.version
        if keep is not None:
            os.link(path, keep)
        record = found._replace(version=FORMAT_VERSION, reader_version=FORMAT_VERSION)
        env.queue.call(lambda _: compact_file(env, record=record, judge=judge), job=True)
        return found.version
    finally:
        env.shut()


# --- Encrypting a scope's contents with another key, a little a transaction, while others work ----

_PIECE_BYTES: Final = 160 * 1024
"""Limit of what one transaction rewrites, unless a single value is larger: it fits a redo slot."""


class _Walked(NamedTuple):
    """Counts of values in a scope whose contents were encrypted again."""

    values: int
    """Values encrypted with the new key."""
    unreadable: int
    """Values that do not decrypt: they and their keys are kept as they are."""


def reseal(
    store: LmdbStore, scope: int, *, progress: Callable[[int], None] | None = None
) -> tuple[int, bool]:
    """Encrypt a scope's contents with a new data key; return the count, and True if it was all.

    The older keys are dropped then, unless another process has the file open (it may still write
    with them) or a value does not decrypt (a backup may hold it whole). Cut short anywhere it
    leaves values of both keys, and both keys.

    Raises:
        KeyFileError: the key file cannot be written.
    """
    vault = store.vault
    if vault is None:
        raise InternalError("a file that is not encrypted has no data keys")
    made = store.transact(lambda _: vault.renew(scope))
    done = _walk(store, vault, scope, 0, progress).values
    try:
        with store.exclusive():
            # Rows that other transactions wrote meanwhile.
            done, unreadable = _walk(store, vault, scope, done, progress)
            if unreadable:
                return done, False
            store.make_durable()  # a power cut must not bring back values of the keys that go
            # Not "all but the current one": another thread may have begun a rotation meanwhile,
            # whose key is newer, and then the values of this one still need theirs.
            store.transact(lambda _: vault.retire(scope, below=made))
    except StoreLockedError:
        return done, False
    return done, True


def _walk(
    store: LmdbStore,
    vault: RowCipher,
    scope: int,
    done: int,
    progress: Callable[[int], None] | None,
) -> _Walked:
    unreadable = 0
    for kind in sorted(CLOSED_KINDS):
        prefix = keys.scoped(kind, scope)
        at: bytes | None = prefix
        while at is not None:
            walked, at = store.transact(_piece(vault, at, keys.after(prefix)))
            done += walked.values
            unreadable += walked.unreadable
            if progress is not None:
                progress(done)
    return _Walked(done, unreadable)


def _piece(
    vault: RowCipher, start: bytes, stop: bytes
) -> Callable[[Txn], tuple[_Walked, bytes | None]]:
    """Make a closure that encrypts the next rows again and returns the key after them, or None."""

    def closure(txn: Txn) -> tuple[_Walked, bytes | None]:
        stale, end = _stale(vault, txn, start, stop)
        done = 0
        for key in stale:
            value = txn.get(key)
            if value is not None and number_of(value) is None:  # it came out decrypted
                txn.put(key, value)
                done += 1
        return _Walked(done, len(stale) - done), end

    return closure


def _stale(
    vault: RowCipher, txn: Txn, start: bytes, stop: bytes
) -> tuple[list[bytes], bytes | None]:
    """Keys of values that another key than the current one encrypted, and where to go on."""
    found: list[bytes] = []
    size = 0
    for looked, (key, value) in enumerate(stored_rows(txn, start, stop)):
        if looked == PIECE_ROWS or size > _PIECE_BYTES:
            return found, key
        if is_content(key) and number_of(value) not in (None, vault.current(key)):
            found.append(key)
            size += len(value)
    return found, None
