"""Detached stores (files without their final name), migration and re-encryption.

These do not use ``open_store``: their callers may have the lead of another environment, for which
an opener waits while holding the lock on opening.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

from memcore.codec import keys
from memcore.errors import InternalError, StoreLockedError
from memcore.limits import FORMAT_VERSION, MAP_BYTES_DEFAULT, PIECE_ROWS
from memcore.store import lmdb as binding
from memcore.store.copy import Judge, compact_file, drop_second_name
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.encryption import CLOSED_KINDS, RowCipher, is_content, number_of
from memcore.store.environment import Environment
from memcore.store.interface import ReadTxn, Store, Txn
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


# --- A detached file: a store read or filled before it gets its final name ------------------------


@contextmanager
def open_detached(path: str, *, vault: RowCipher | None = None) -> Iterator[LmdbStore]:
    """Open a finished copy read-only; ``vault`` is that of the database it was copied from."""
    with _opened(path, vault, read_only=True) as store:
        yield store


@contextmanager
def build_detached(
    path: str, record: Format, *, vault: RowCipher | None = None
) -> Iterator[LmdbStore]:
    """Build a file at ``path`` through an open store; at the end it gets the mode of ``record``.

    None of it is durable until the caller flushes the file.
    """
    build_file(path, record._replace(durability="none"), sync=False)
    with _opened(path, vault, read_only=False) as store:
        yield store
    # Format record and reserved run both state the mode; openers refuse a file where they differ.
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


# --- Migration: a file of an older format is replaced by a verified copy in the current one -------

OLDEST_READ = 0
"""Oldest format that can be migrated.

Format 0 has the layout of the final format 1; only the record differs."""


def migrate_file(path: str, *, keep: str | None, judge: Judge | None, look: bool = False) -> int:
    """Migrate the file at ``path`` to the current format; returns the format that it had.

    An interruption at any point leaves either the old or the new file, intact.

    Args:
        path: the file, with all symbolic links resolved.
        keep: another name for the old file; None: it is removed.
        judge: checks the copy.
        look: change nothing.

    Raises:
        StoreLockedError: another process has the file open.
        StoreFormatError: it is not a memcore file, or has a newer format.
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
        try:
            if keep is not None:
                os.link(path, keep)
            env.queue.call(
                lambda _: compact_file(env, version=FORMAT_VERSION, judge=judge), job=True
            )
        except BaseException:
            drop_second_name(path, keep)
            raise
        return found.version
    finally:
        env.shut()


# --- Re-encryption of a scope's contents with a new key, in small transactions --------------------

_PIECE_BYTES: Final = 160 * 1024
"""Bytes that one transaction rewrites at most, unless one value is larger: it fits a redo slot."""


class _Walked(NamedTuple):
    """Counts of values in a re-encrypted scope."""

    values: int
    """Values encrypted with the new key."""
    unreadable: int
    """Values that do not decrypt: they and their keys are kept unchanged."""


def reseal(
    store: Store, scope: int, *, progress: Callable[[int], None] | None = None
) -> tuple[int, bool]:
    """Encrypt a scope's contents with a new data key, concurrently with other work.

    The older keys are then destroyed, unless another process has the file open (it may still write
    with them) or a value does not decrypt (a backup may hold it intact). An interruption at any
    point leaves values under both keys, and both keys.

    Returns:
        Number of values rewritten, and True if the older keys were destroyed.

    Raises:
        KeyFileError: the key file cannot be written.
    """
    vault = store.vault
    if vault is None:
        raise InternalError("a file that is not encrypted has no data keys")
    made = store.transact(lambda _: vault.renew(scope))
    done = _walk(store, vault, scope, 0, progress).values
    try:
        return store.exclusive(
            partial(_retire, store, vault, scope, done=done, made=made, progress=progress)
        )
    except StoreLockedError:
        return done, False


def count_sealed(txn: ReadTxn, scope: int) -> int:
    """Count the values of a scope that ``reseal`` would encrypt."""
    return sum(
        is_content(key) and number_of(value) is not None
        for kind in sorted(CLOSED_KINDS)
        for key, value in stored_rows(
            txn, keys.scoped(kind, scope), keys.after(keys.scoped(kind, scope))
        )
    )


def _retire(
    store: Store,
    vault: RowCipher,
    scope: int,
    *,
    done: int,
    made: int,
    progress: Callable[[int], None] | None,
) -> tuple[int, bool]:
    """Re-encrypt what other transactions wrote in the meantime, and destroy the older keys."""
    done, unreadable = _walk(store, vault, scope, done, progress)
    if unreadable:
        return done, False
    store.make_durable()  # a power failure must not bring back values under retired keys
    # Not "all but the current one": another thread may have begun a rotation meanwhile, whose key
    # is newer, and then values written by this one still need this one's key.
    store.transact(lambda _: vault.retire(scope, below=made))
    return done, True


def _walk(
    store: Store,
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
    """Make a closure that re-encrypts the next rows and returns the key after them, or None."""

    def closure(txn: Txn) -> tuple[_Walked, bytes | None]:
        stale, end = _stale(vault, txn, start, stop)
        done = 0
        for key in stale:
            value = txn.get(key)
            if value is not None and number_of(value) is None:  # it was decrypted
                # As it was read: the transaction encrypts it with the scope's current key.
                txn.put(key, value)
                done += 1
        return _Walked(done, len(stale) - done), end

    return closure


def _stale(
    vault: RowCipher, txn: Txn, start: bytes, stop: bytes
) -> tuple[list[bytes], bytes | None]:
    """Return the keys of rows not encrypted with the current data key, and where to resume."""
    found: list[bytes] = []
    size = 0
    for looked, (key, value) in enumerate(stored_rows(txn, start, stop)):
        if looked == PIECE_ROWS or size > _PIECE_BYTES:
            return found, key
        if is_content(key) and number_of(value) not in (None, vault.current(key)):
            found.append(key)
            size += len(value)
    return found, None
