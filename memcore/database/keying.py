"""The keys of an encrypted database: what there is, and how they are changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from memcore import names
from memcore.audit import record_event
from memcore.database.permitted import Permitted
from memcore.errors import AuditError, InvalidOptionError, MemcoreError, ReadOnlyError
from memcore.privacy.provider import Key, key_provider
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn
from memcore.store.resealing import reseal
from memcore.store.vault import Vault
from memcore.tombstone import is_erased

Progress: TypeAlias = Callable[[int], None]
__all__ = ["KeyStatus", "Keyed", "Rotation"]


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """What the key file of a database holds."""

    key_file: str | None
    """None: the database is in memory, and so are its keys."""
    users: int
    """Scopes of users and applications that have a data key."""
    unfinished: tuple[tuple[str, str], ...]
    """``(app, user)`` of those with several: a rotation was cut short, or is under way."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation of data keys has done."""

    values: int
    """Values that were encrypted anew."""
    finished: bool
    """False: another process has the file open, or a value does not decrypt (``check`` names it):
    the older keys stay until it is done again."""


class Keyed(Permitted):
    """A database that may be encrypted."""

    def key_status(self) -> KeyStatus:
        """What the key file of an encrypted database holds.

        Raises:
            InvalidOptionError: the database is not encrypted.
        """
        self._need("key_status")
        return _status(self._backing)

    def rotate_key(self, key: Key) -> None:
        """Protect the key file by another key from now on; contents stay as they are.

        Other processes that have the file open can add no new users until they open it anew.

        Raises:
            InvalidOptionError, KeyNeededError, ReadOnlyError
            KeyFileError: the key file cannot be written; the key before goes on, unless the message
                says that the new one does.
            AuditError: the key file is under the new key, and the audit says only that this was
                begun; or that could not be chained, and nothing was changed.
        """
        self._need("rotate_key")
        _rewrap(self._backing, key)

    def rotate_data_keys(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Rotation:
        """Encrypt contents anew with new data keys, while others read and write.

        Cut short, it leaves everything readable; done again, it goes on. What was encrypted with
        the keys before stays in free pages until ``copy_compact``, and nothing opens it any more.

        Args:
            user: only this user's.
            app: only this application's.
            progress: called with the number of values of a user that are done.

        Raises:
            InvalidOptionError, ReadOnlyError, KeyFileError, StorageError
        """
        self._need("rotate_data_keys", app=app, user=user)
        return _rotate(self._backing, user=user, app=app, progress=progress)


def _status(backing: Backing) -> KeyStatus:
    """What the key file holds."""
    ring = _vault(backing).ring
    ring.refresh()

    found = {number: (app, user) for number, app, user in backing.store.read(_scopes)}
    several = [place for number, place in found.items() if len(ring.numbers(number)) > 1]
    owners = sum(bool(ring.numbers(number)) for number in found)
    return KeyStatus(ring.path, owners, tuple(several))


def _scopes(txn: ReadTxn) -> list[tuple[int, str, str]]:
    return list(names.all_scopes(txn))


def _rewrap(backing: Backing, key: Key) -> None:
    """Protect the key file by another key-encryption key; contents stay as they are."""
    provider = key_provider(key)
    vault = _vault(backing)
    _need_writable(backing)
    _tell(backing, 0, "key rotation begun", {})
    # With nothing to commit: a commit that failed would say that nothing was changed.
    backing.store.alone(lambda: vault.ring.rewrap(provider))
    try:
        _tell(backing, 0, "key rotated", {})
    except MemcoreError as error:
        msg = f"the key file is under the new key now, but the audit does not say so: {error}"
        raise AuditError(msg) from error


def _rotate(
    backing: Backing, *, user: str | None, app: str | None, progress: Progress | None
) -> Rotation:
    """Encrypt contents anew, each user's with a new key."""
    vault = _vault(backing)
    _need_writable(backing)
    values, finished = 0, True
    for number, its_app, its_user in backing.store.read(_scopes):
        if user in (None, its_user) and app in (None, its_app):
            try:
                count, whole = reseal(backing.store, number, progress=progress)
            except MemcoreError:
                if not vault.is_shredded(number):
                    raise
                count, whole = 0, True
            if vault.is_shredded(number):
                continue  # erased meanwhile: there is nothing left to encrypt
            _tell(backing, number, "data keys rotated", {"values": count, "finished": whole})
            values += count
            finished = finished and whole
    return Rotation(values, finished)


def _tell(backing: Backing, scope: int, what: str, details: Mapping[str, Any]) -> None:
    """Chain an event of a scope that is alive, 0: of the database, if it is audited."""

    def closure(txn: Txn) -> None:
        if not is_erased(txn, scope):
            record_event(txn, scope, what, details)

    if backing.store.environment().audit is not None:
        backing.store.transact(closure)


def _vault(backing: Backing) -> Vault:
    vault = backing.store.vault
    if vault is None:
        msg = "the database is not encrypted: it has no keys"
        raise InvalidOptionError(msg)
    return vault


def _need_writable(backing: Backing) -> None:
    if backing.store.read_only:
        raise ReadOnlyError("the database is open read-only; open it for writing")
