"""Unlocking a file: whether it is encrypted, and the vault that a key opens."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcore import keys
from memcore.codec import open_number
from memcore.errors import InvalidOptionError, KeyFileError, KeyNeededError
from memcore.privacy.cipher import uncopied
from memcore.privacy.provider import KeyProvider
from memcore.privacy.ring import KeyRing
from memcore.store.base import ReadTxn
from memcore.store.format import ENCRYPTED, Format
from memcore.store.txn import stored_rows
from memcore.store.vault import CLOSED_KINDS, Vault, number_of

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["Access", "need_newest", "new_ring", "unlock", "vault_for_copy"]

_ROWS_LOOKED_AT = 64
"""Of each kind of a scope's rows: the first ones of a session may be heads and index pages."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller gives to open an encrypted database."""

    provider: KeyProvider = field(repr=False)
    key_file: str | None = None
    """Where the key file lies; None: beside the database, with ``.keys`` behind its name."""

    __reduce_ex__ = uncopied

    def path_for(self, database: str) -> str:
        """The key file of a database."""
        return self.key_file or f"{database}.keys"


def new_ring(access: Access, path: str) -> KeyRing:
    """The key file of a database that is about to be made, at ``path``.

    Raises:
        KeyFileError: there is one with keys of another database; it cannot be written.
        WrongKeyError: there is one that the key does not open.
    """
    if path == ":memory:":
        return KeyRing.create(None, access.provider)
    return KeyRing.create(access.path_for(path), access.provider)


def vault_for_copy(access: Access | None, source: str, target: str) -> Vault | None:
    """The vault of a file that is written anew, with a key file of its own; None without a key.

    Raises:
        KeyFileError, WrongKeyError: the source's key file cannot be read, or the target has one.
    """
    if access is None:
        return None
    ring = KeyRing.load(access.path_for(source), access.provider)
    return Vault(ring.copied(f"{target}.keys"))


def unlock(record: Format, path: str, access: Access | None) -> Vault | None:
    """The vault of a file; None if it is not encrypted.

    Raises:
        KeyNeededError: it is, and there is no key.
        WrongKeyError: the key does not open the key file.
        KeyFileError: that is missing, damaged or of another database.
        InvalidOptionError: there is a key, and the file is not encrypted.
    """
    if not record.features & ENCRYPTED:
        if access is None:
            return None
        msg = (
            f"{path}: is not encrypted, and a key was given: export its sessions, and import them "
            "into a new database that is opened with the key"
        )
        raise InvalidOptionError(msg)
    if access is None:
        raise KeyNeededError(f"{path}: is encrypted; open it with key=")
    name = access.path_for(path)
    ring = KeyRing.load(name, access.provider)
    if ring.seed != record.seed:
        msg = f"{name}: is the key file of another database than {os.fspath(path)}"
        raise KeyFileError(msg)
    return Vault(ring)


def need_newest(env: Environment, vault: Vault) -> None:
    """Refuse a key file that is older than the database: it must not be written with.

    It would get other keys for users who have contents, and what is written with those is lost
    when the right file comes back. The file says which data key is the newest that it has seen; one
    that an older memcore wrote does not, and there it shows by users without keys.

    Raises:
        KeyFileError: it is older, or was replaced by an older one since it was read.
    """
    vault.ring.refresh()
    if env.read(vault.noted) > vault.ring.last:
        vault.ring.refresh()  # another process may just have made the key
        if (noted := env.read(vault.noted)) > vault.ring.last:
            raise _older(
                vault, f"that has seen data key {noted}, its last one is {vault.ring.last}"
            )

    def look(txn: ReadTxn) -> int | None:
        key = keys.counter(keys.Counter.SCOPE)
        value = txn.get(key)
        last = 0 if value is None else open_number(key, value)
        unknown = range(vault.ring.minted, last + 1)
        return next((scope for scope in unknown if _has_contents(txn, scope)), None)

    found = env.read(look)
    if found is None:
        return
    vault.ring.refresh()
    if vault.ring.minted > found:
        return  # another process had just made the key
    raise _older(vault, "users have contents for whom it has no key")


def _older(vault: Vault, how: str) -> KeyFileError:
    return KeyFileError(
        f"{vault.ring.path}: is older than the database: {how}; restore the newest copy, or open "
        "the database read-only for what can be read"
    )


def _has_contents(txn: ReadTxn, scope: int) -> bool:
    for kind in CLOSED_KINDS:
        start = keys.scoped(kind, scope)
        rows = stored_rows(txn, start, keys.after(start), limit=_ROWS_LOOKED_AT)
        if any(number_of(value) is not None for _, value in rows):
            return True
    return False
