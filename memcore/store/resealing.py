"""Encrypting a scope's contents with another key, a little a transaction, while others work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from memcore import keys
from memcore.errors import InternalError, StoreLockedError
from memcore.limits import PIECE_ROWS
from memcore.store.base import Txn
from memcore.store.handle import LmdbStore
from memcore.store.txn import stored_rows
from memcore.store.vault import CLOSED_KINDS, Vault, is_content, number_of

__all__ = ["reseal"]

_PIECE_BYTES: Final = 160 * 1024
"""What one transaction rewrites at most, unless a single value is larger: it fits a redo slot."""


class _Walked(NamedTuple):
    """What a walk over a scope came to."""

    values: int
    """Those that were encrypted anew."""
    unreadable: int
    """Those of older keys that do not decrypt: they stay as they are, and so must their keys."""


def reseal(
    store: LmdbStore, scope: int, *, progress: Callable[[int], None] | None = None
) -> tuple[int, bool]:
    """Give a scope a new data key and encrypt its contents with it; how many, and whether all.

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
            # What others wrote meanwhile.
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
    store: LmdbStore, vault: Vault, scope: int, done: int, progress: Callable[[int], None] | None
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
    vault: Vault, start: bytes, stop: bytes
) -> Callable[[Txn], tuple[_Walked, bytes | None]]:
    """Rewrites the next rows; where the following piece begins (None: nowhere)."""

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


def _stale(vault: Vault, txn: Txn, start: bytes, stop: bytes) -> tuple[list[bytes], bytes | None]:
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
