"""The key file: a random data key for each user, encrypted, beside the database.

It is no part of the database file: LMDB keeps old pages, and a key that stands in one is not gone.
Whoever loses it has lost the contents; a backup of the database is read with it.

``magic 16 | bytes of wrapped u16 | wrapped | nonce 12 | ciphertext and tag | sha256 of all this``.
*Wrapped* is the file's own key, under the key-encryption key, bound to the magic. The text is
``file id 16 | seed 16 | secret 32 | minted u64 | last number u32``, then for each data key
``scope u64 | number u32 | key 32``, the current one of a scope last; all little-endian. The file is
replaced whole: written under another name, flushed, renamed.

**The key file holds, at any moment and after any power cut, every key of every value that the data
file may come back with.** So a key is durable here before a value that needs it is committed, and
no such value can come back, nor a name that leads to one, before a key leaves: whoever calls
``retire`` or ``shred`` has the data file flushed first (a relaxed one goes back to its last steady
point). The key file may be ahead of the data file (a new key is not used yet, an older one not
needed any more), never behind it.

Keys are minted for 64 scopes at a time. So a scope below *minted* without a key is one that was
shredded, and it never gets another one: numbers of scopes are not used again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from struct import Struct
from threading import RLock
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from memcore.errors import KeyFileError, WrongKeyError
from memcore.files import put_private, remove_unfinished, sync_directory
from memcore.privacy.cipher import KEY_BYTES, NONCE_BYTES, Cipher, uncopied
from memcore.privacy.provider import KeyProvider

__all__ = ["DataKey", "KeyRing", "read_key_file"]

P = ParamSpec("P")
T = TypeVar("T")

MAGIC: Final = b"memcore-keys-v1\0"
BLOCK: Final = 64
"""Scopes for which keys are minted together: the file is rewritten once for so many users."""
_LENGTH: Final = Struct("<H")
_TABLE: Final = Struct("<16s16s32sQI")
_ENTRY: Final = Struct("<QI32s")
_SUM_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class DataKey:
    """A key that contents of one scope are encrypted with."""

    number: int
    key: bytes = field(repr=False)

    __reduce_ex__ = uncopied


class _Table(NamedTuple):
    """What changes of a ring; never changed in place, so a failed writing leaves it as it was."""

    keys: dict[int, tuple[DataKey, ...]]
    minted: int
    last: int


def _locked(method: Callable[Concatenate[KeyRing, P], T]) -> Callable[Concatenate[KeyRing, P], T]:
    @wraps(method)
    def run(self: KeyRing, /, *args: P.args, **options: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **options)

    return run


class KeyRing:
    """The data keys of one database, in memory and in the key file.

    Changes need the database's write lock, which keeps other processes from making any. Readers
    may read the file again at any moment, so what is in memory has a lock of its own: an older
    table in the place of the newest one would lose keys with the next change.
    """

    __reduce_ex__ = uncopied

    def __init__(self, path: str | None, provider: KeyProvider) -> None:
        self.path = None if path is None else os.path.realpath(path)
        """Every link resolved: a file is replaced where it lies. None: of a database in memory."""
        self.renew_lock()
        self._provider = provider
        self._own = os.urandom(KEY_BYTES)
        self._wrapped = b""
        self._sum = b""
        """The last bytes of the file as it is known; empty: it has to be read."""
        self._is_flushed = True
        """Whether no power cut brings back a file from before the one that is there."""
        self.file_id = os.urandom(16)
        self.seed = os.urandom(16)
        """The seed of the database that it belongs to."""
        self.secret = os.urandom(KEY_BYTES)
        """Keys whatever of contents stands in clear, as the digests of blobs."""
        self._table = _Table({}, 0, 0)

    def renew_lock(self) -> None:
        """In the child of a fork: whoever held the lock is not there."""
        self._lock = RLock()

    # --- making and reading -----------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | None, provider: KeyProvider) -> KeyRing:
        """A ring without data keys; if the file is there already, and has none, that one.

        Raises:
            KeyFileError: there is a key file with data keys, or it cannot be written.
            WrongKeyError: there is one, and the key does not open it.
        """
        ring = cls(path, provider)
        ring._wrapped = provider.wrap(ring._own, MAGIC)
        path = ring.path
        if path is None:
            return ring
        if not os.path.lexists(path):
            with suppress(FileExistsError):  # another process was first: theirs serves
                ring._create(path)
                return ring
        found = cls.load(path, provider)
        if found.minted:
            msg = (
                f"{path}: is the key file of a database that is not there; move it away, or give "
                "key_file= another name: it is never overwritten"
            )
            raise KeyFileError(msg)
        return found

    def _create(self, path: str) -> None:
        try:
            content = self._packed(self._table, self._own, self._wrapped)
            put_private(path, content, new=True)
            self._sum = content[-_SUM_BYTES:]
        except FileExistsError:
            raise
        except OSError as exc:
            if isinstance(exc, FileNotFoundError) and os.path.lexists(path):
                raise FileExistsError(path) from exc  # its owner swept ours away as a leftover
            raise KeyFileError(f"{path}: cannot write the key file ({exc.strerror})") from exc

    @classmethod
    def load(cls, path: str, provider: KeyProvider) -> KeyRing:
        """The ring of a key file.

        Raises:
            KeyFileError: it is missing, damaged or cannot be read.
            WrongKeyError: the key does not open it.
        """
        ring = cls(path, provider)
        ring._read()
        return ring

    def copied(self, path: str) -> KeyRing:
        """The same keys in another file.

        Raises:
            KeyFileError: there is such a file, or it cannot be written.
        """
        copy = KeyRing(path, self._provider)
        copy.file_id, copy.seed, copy.secret = self.file_id, self.seed, self.secret
        copy._table, copy._own, copy._wrapped = self._table, self._own, self._wrapped
        try:
            copy._create(copy.path or path)
        except FileExistsError as exc:
            raise KeyFileError(f"{path}: there is a key file already; move it away") from exc
        return copy

    def _read(self, *, again: bool = False) -> None:
        """Read the file; ``again``: it was read before, and goes on from what it was then."""
        path = self.path or ""
        body, total = read_key_file(path)
        at = len(MAGIC) + _LENGTH.size
        wrapped = body[at : at + _LENGTH.unpack_from(body, len(MAGIC))[0]]
        own = self._unwrapped(wrapped)
        head, rest = body[: at + len(wrapped)], body[at + len(wrapped) :]
        packed = Cipher(own).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head)
        if packed is None or len(packed) < _TABLE.size:
            raise KeyFileError(f"{path}: the key file was changed; restore it from a copy")
        file_id, seed, secret, _, _ = _TABLE.unpack_from(packed)
        table = _unpacked(packed)
        if again:
            self._need_later(file_id, table)
        self.file_id, self.seed, self.secret, self._table = file_id, seed, secret, table
        self._own, self._wrapped, self._sum = own, wrapped, total
        # Whoever put it there may not have flushed the directory yet: nothing may be committed
        # under keys that a power cut takes back.
        self._is_flushed = False

    def _need_later(self, file_id: bytes, table: _Table) -> None:
        """Refuse a file that is not what became of the one that is in use.

        Raises:
            KeyFileError: it is another database's, or an older copy: keys are missing in it, or
                some that were shredded are back.
        """
        if file_id != self.file_id:
            raise KeyFileError(
                f"{self.path}: was replaced by the key file of another database; put the right "
                "one back"
            )
        known = self._table
        back = (scope for scope in table.keys.keys() - known.keys.keys() if scope < known.minted)
        if table.last < known.last or next(back, None) is not None:
            raise KeyFileError(
                f"{self.path}: was replaced by an older copy, which lacks what has changed since; "
                "put the newest one back"
            )

    def _unwrapped(self, wrapped: bytes) -> bytes:
        msg = f"{self.path}: the key does not open this key file; nothing was read or changed"
        try:
            own = self._provider.unwrap(wrapped, MAGIC)
        except WrongKeyError as exc:
            raise WrongKeyError(msg) from exc
        except Exception as exc:  # a caller's service raises what it likes
            raise WrongKeyError(f"{msg} ({type(exc).__name__})") from exc
        if not isinstance(own, bytes) or len(own) != KEY_BYTES:
            raise WrongKeyError(msg)
        return own

    @_locked
    def refresh(self) -> bool:
        """Read the file again if another process has replaced it; whether it has.

        Raises:
            KeyFileError: it cannot be read, is an older copy or another database's. What is known
                stays in use.
            WrongKeyError
        """
        if self.path is None:
            return False
        is_other = True
        with suppress(OSError):
            # Not by its status: inodes and coarse times come again, and keys would be lost.
            is_other = _sum_of(self.path) != self._sum
        if is_other:
            self._read(again=True)
        return is_other

    @property
    def is_settled(self) -> bool:
        """Whether no power cut takes back the file that was read or written last."""
        return self._is_flushed or self.path is None

    @_locked
    def settle(self) -> None:
        """Flush the directory, if whoever put the file there may not have done so yet.

        Raises:
            KeyFileError: the system refused.
        """
        if self.path is not None and not self._is_flushed:
            self._flush(self.path)

    def _flush(self, path: str) -> None:
        """See that the file stays before anybody rests on it: what it holds is flushed already."""
        try:
            sync_directory(path)
        except OSError as exc:
            raise KeyFileError(
                f"{path}: the key file cannot be flushed ({exc.strerror}); try again"
            ) from exc
        self._is_flushed = True

    # --- keys -------------------------------------------------------------------------------------

    @property
    def minted(self) -> int:
        """Below this number a scope without a key was shredded."""
        return self._table.minted

    @property
    def last(self) -> int:
        """The number of the newest data key."""
        return self._table.last

    def is_shredded(self, scope: int) -> bool:
        """Whether the keys of a scope were dropped for good."""
        table = self._table
        return scope < table.minted and scope not in table.keys

    def shredded(self) -> list[int]:
        """The scopes whose keys were dropped for good."""
        table = self._table
        return sorted(set(range(table.minted)) - table.keys.keys())

    def of_scope(self, scope: int) -> DataKey | None:
        """The current key of a scope; None if it has none, or none any more."""
        found = self._table.keys.get(scope)
        return found[-1] if found else None

    def numbered(self, scope: int, number: int) -> bytes | None:
        """The key of a scope with that number."""
        for found in self._table.keys.get(scope, ()):
            if found.number == number:
                return found.key
        return None

    def numbers(self, scope: int) -> list[int]:
        """The numbers of a scope's keys, the current one last."""
        return [found.number for found in self._table.keys.get(scope, ())]

    def scopes(self) -> list[int]:
        """The scopes below ``minted`` that have a key."""
        return sorted(self._table.keys)

    @_locked
    def mint(self, scope: int) -> bool:
        """Make keys for a scope and its neighbours; False if its key was shredded."""
        self.refresh()
        self.settle()
        if scope < self._table.minted:
            return scope in self._table.keys
        minted = (scope // BLOCK + 1) * BLOCK
        more, last = dict(self._table.keys), self._table.last
        for number in range(self._table.minted, minted):
            last += 1
            more[number] = (_new_key(last),)
        self._store(_Table(more, minted, last))
        return True

    @_locked
    def renew(self, scope: int) -> DataKey:
        """A new current key for a scope; the older ones go on reading.

        Raises:
            KeyFileError: its key was shredded, or the file cannot be written.
        """
        if not self.mint(scope):
            raise KeyFileError(f"{self.path}: the data key of scope {scope} was shredded")
        table = self._table
        made = _new_key(table.last + 1)
        keys = {**table.keys, scope: (*table.keys[scope], made)}
        self._store(_Table(keys, table.minted, made.number))
        return made

    @_locked
    def retire(self, scope: int, *, below: int) -> None:
        """Drop the keys of a scope whose numbers are lower, never the current one.

        Nothing is encrypted with them any more, and a flush of the data file has said so.
        """
        self.refresh()
        self.settle()
        table = self._table
        found = table.keys.get(scope, ())
        kept = tuple(each for each in found[:-1] if each.number >= below) + found[-1:]
        if kept != found:
            self._store(_Table({**table.keys, scope: kept}, table.minted, table.last))

    @_locked
    def shred(self, scope: int) -> bool:
        """Drop the keys of a scope for good; whether there were any.

        No name leads to its contents any more, and a flush of the data file has said so.
        """
        if not self.mint(scope):  # a number that was never written with gets none later either
            return False
        table = self._table
        keys = {number: found for number, found in table.keys.items() if number != scope}
        self._store(_Table(keys, table.minted, table.last))
        return True

    @_locked
    def rewrap(self, provider: KeyProvider) -> None:
        """Protect the file by another key-encryption key from now on."""
        self.refresh()
        self.settle()
        own = os.urandom(KEY_BYTES)  # whoever kept the old file and its key learns nothing new
        wrapped = provider.wrap(own, MAGIC)
        try:
            self._store(self._table, own=own, wrapped=wrapped)
        except KeyFileError as exc:
            if not self._is_under(wrapped):
                raise
            self._own, self._wrapped, self._provider = own, wrapped, provider
            raise KeyFileError(
                f"{self.path}: is under the new key now, but could not be flushed: a power cut may "
                "bring back the file under the key before; keep both keys, and change it again"
            ) from exc
        self._provider = provider

    def _is_under(self, wrapped: bytes) -> bool:
        """Whether the file that is there has its own key wrapped so."""
        with suppress(KeyFileError):
            body, _ = read_key_file(self.path or "")
            return body[len(MAGIC) + _LENGTH.size :].startswith(wrapped)
        return False

    # --- writing ----------------------------------------------------------------------------------

    def _store(
        self, table: _Table, *, own: bytes | None = None, wrapped: bytes | None = None
    ) -> None:
        """Make a table the ring's: first in the file, durably, then in memory.

        Raises:
            KeyFileError: the system refused; the ring is as it was.
        """
        own, wrapped = own or self._own, wrapped or self._wrapped
        if self.path is not None:
            content = self._packed(table, own, wrapped)
            try:
                remove_unfinished(self.path)  # keys that may be shredded now
                owner = os.stat(self.path)
                mode = stat.S_IMODE(owner.st_mode)
                put_private(self.path, content, new=False, owner=owner, mode=mode)
            except OSError as exc:
                self._sum, self._is_flushed = b"", False  # which of the two is there shows later
                msg = f"{self.path}: cannot write the key file ({exc.strerror}); try again"
                raise KeyFileError(msg) from exc
            self._sum = content[-_SUM_BYTES:]
        self._table, self._own, self._wrapped = table, own, wrapped

    def _packed(self, table: _Table, own: bytes, wrapped: bytes) -> bytes:
        head = b"".join((MAGIC, _LENGTH.pack(len(wrapped)), wrapped))
        packed = bytearray(
            _TABLE.pack(self.file_id, self.seed, self.secret, table.minted, table.last)
        )
        for scope, found in table.keys.items():
            for entry in found:
                packed += _ENTRY.pack(scope, entry.number, entry.key)
        nonce = os.urandom(NONCE_BYTES)
        body = head + nonce + Cipher(own).encrypt(nonce, bytes(packed), head)
        return body + hashlib.sha256(body).digest()


def read_key_file(path: str) -> tuple[bytes, bytes]:
    """A key file as it lies there, and the sum that proves it: what can be told without its key.

    Raises:
        KeyFileError: it is missing, damaged, cannot be read, or is none.
    """
    try:
        whole = Path(path).read_bytes()
    except OSError as exc:
        msg = (
            f"{path}: cannot read the key file ({exc.strerror}): without it no content can be "
            "read; restore it, or say where it lies with key_file="
        )
        raise KeyFileError(msg) from exc
    body, total = whole[:-_SUM_BYTES], whole[-_SUM_BYTES:]
    if body[: len(MAGIC)] != MAGIC:
        raise KeyFileError(f"{path}: is no key file of memcore's")
    if hashlib.sha256(body).digest() != total:
        raise KeyFileError(f"{path}: the key file is damaged; restore it from a copy")
    return body, total


def _unpacked(packed: bytes) -> _Table:
    *_, minted, last = _TABLE.unpack_from(packed)
    found: dict[int, tuple[DataKey, ...]] = {}
    for scope, number, key in _ENTRY.iter_unpack(packed[_TABLE.size :]):
        found[scope] = (*found.get(scope, ()), DataKey(number, key))
    return _Table(found, minted, last)


def _new_key(number: int) -> DataKey:
    return DataKey(number, os.urandom(KEY_BYTES))


def _sum_of(path: str) -> bytes:
    """What differs after a replacement, whoever made it: a digest over a new nonce."""
    with open(path, "rb") as file:
        file.seek(-_SUM_BYTES, os.SEEK_END)
        return file.read()
