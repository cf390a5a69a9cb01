"""Key file: one random data key per user, wrapped by the caller's key, next to the database.

It is separate from the database file because LMDB keeps old pages, and a key in one would survive.
Without it the contents are lost; backups of the database need it as well.

``magic 16 | bytes of wrapped u16 | wrapped | nonce 12 | ciphertext and tag | sha256 of all this``.
*Wrapped* is the file's own key, encrypted with the key-encryption key and bound to the magic. The
plaintext is ``file id 16 | seed 16 | secret 32 | minted u64 | last number u32``, then for each data
key ``scope u64 | number u32 | key 32``, the current one of a scope last; all little-endian. An
entry with number 0 is a note, which versions that do not know it preserve: under scope 2^64-1 it
holds the 16 bytes of the *owner*, zero-padded. The file is replaced atomically: written under
another name, flushed, renamed.

**At any moment and after any power failure, the key file holds every key of every value that the
data file may contain after recovery.** So a key is durable here before a value that needs it is
committed; and before a key is dropped, no such value, nor a name that leads to one, can reappear:
callers of ``retire`` or ``shred`` must have the data file flushed first (a relaxed one reverts to
its last steady point). The key file may be ahead of the data file (a new key is not used yet, an
old one no longer needed), never behind it.

**A key file belongs to one data file**, which stores the same owner in a row: another data file
assigns the same numbers to other users, and erasing one there would shred a stranger's keys here.

Keys are minted for 64 scopes at a time. So a scope below *minted* without a key was shredded, and
never gets another key: scope numbers are not reused.
"""

from __future__ import annotations

import binascii
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import field
from functools import wraps
from importlib import import_module
from struct import Struct
from threading import RLock
from typing import (
    Any,
    Concatenate,
    Final,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from memcore.codec.keys import blake2b
from memcore.errors import (
    CorruptStoreError,
    InvalidOptionError,
    KeyFileError,
    KeyNeededError,
    NotFoundError,
    StoreAccessError,
    StoreFullError,
    WrongKeyError,
    uncopied,
)
from memcore.files import put_private, remove_unfinished, sync_directory
from memcore.records import record

__all__ = [
    "KEY_BYTES",
    "NONCE_BYTES",
    "OWNER_BYTES",
    "SECRET_BYTES",
    "SUFFIX",
    "TAG_BYTES",
    "Cipher",
    "DataKey",
    "Key",
    "KeyProvider",
    "KeyRing",
    "Secret",
    "key_provider",
    "read_key_file",
    "secret_of",
    "unveiled",
    "veiled",
]


# --- AES-256-GCM, from the package ``cryptography`` -----------------------------------------------

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
"""96 random bits: at most 2**32 values under one key (NIST SP 800-38D, section 8.3)."""
TAG_BYTES: Final = 16


class Cipher:
    """AES-GCM under one key. ``encrypt(nonce, text, bound)`` is the library's method, for speed.

    Raises:
        ImportError: the package is missing.
    """

    __slots__ = ("_decrypt", "_invalid", "encrypt")
    __reduce_ex__ = uncopied

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ImportError as exc:
            msg = f'encryption needs: pip install "memcore-db[encryption]" ({exc})'
            raise ImportError(msg, name=exc.name) from exc
        cipher: Any = AESGCM(key)
        self.encrypt: Callable[[bytes, bytes, bytes], bytes] = cipher.encrypt
        self._decrypt: Callable[[bytes, bytes, bytes], bytes] = cipher.decrypt
        self._invalid: tuple[type[Exception], ...] = (InvalidTag, ValueError)

    def decrypt(self, nonce: bytes, text: bytes, bound: bytes) -> bytes | None:
        """Decrypt; None if the text was not encrypted with this key, nonce and bound bytes."""
        try:
            return self._decrypt(nonce, text, bound)
        except self._invalid:
            return None


# --- Sources of a key-encryption key: 32 bytes, a callable, a text that names a place, a provider -
# It wraps only the key file's own key, so a service is called once per open.


@runtime_checkable
class KeyProvider(Protocol):
    """Anything that can wrap a key: a key management service, a hardware token."""

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Return ``key`` encrypted; ``unwrap`` needs the same ``context``."""

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the wrapped key; raise if it was wrapped with a different one."""


Key: TypeAlias = bytes | str | Callable[[], bytes] | KeyProvider
"""32 bytes; ``"env:NAME"``, ``"file:PATH"``, ``"keyring:SERVICE/NAME"`` (base64 or hex there);
a callable that returns the bytes; or a ``KeyProvider``."""

_FORMS: Final = (
    '32 bytes, "env:NAME", "file:PATH", "keyring:SERVICE/NAME", a callable that gives 32 bytes, or '
    "an object with wrap() and unwrap()"
)


class _Fixed:
    """Provider with a key-encryption key held in this process."""

    __reduce_ex__ = uncopied

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(key)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        found = self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        if found is None:
            raise WrongKeyError("the key does not fit")
        return found


def key_provider(given: Any) -> KeyProvider:
    """Convert a ``key`` option to a KeyProvider.

    Raises:
        InvalidOptionError: it has no known form.
        KeyNeededError: it names a place that holds no key.
        ImportError: the package ``cryptography``, or ``keyring``, is missing.
    """
    if isinstance(given, KeyProvider):
        return given
    if isinstance(given, str):
        given = _found(given)
    elif callable(given):
        given = given()
    if not isinstance(given, bytes | bytearray):
        msg = f"key: expected {_FORMS}; got {type(given).__name__}"
        raise InvalidOptionError(msg)
    if len(given) != KEY_BYTES:
        made = f"as os.urandom({KEY_BYTES}) makes"
        msg = f"key: expected {KEY_BYTES} bytes, {made}; got {len(given)}"
        raise InvalidOptionError(msg)
    return _Fixed(bytes(given))


def _found(text: str) -> bytes:
    """Resolve a text to the bytes of a key. No message shows any part of a key."""
    where, _, name = text.partition(":")
    if where == "env" and name:
        value = os.environ.get(name, "")
    elif where == "file" and name:
        value = _in_file(name)
    elif where == "keyring" and "/" in name:
        value = _in_keyring(*name.split("/", 1))
    else:
        msg = f"key: expected {_FORMS}; got a text of another form"
        raise InvalidOptionError(msg)
    if not value:
        raise KeyNeededError(f"key: there is no key at {text!r}")
    return _decoded(value.strip(), text)


def _in_file(name: str) -> str:
    """Return the key in a file, as text: 32 bytes as they are, hexadecimal digits or base64."""
    try:
        with open(name, "rb") as file:
            content = file.read()
        return content.hex() if len(content) == KEY_BYTES else content.decode("ascii")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"key: cannot read a key from the file {name!r} ({type(exc).__name__})"
        raise KeyNeededError(msg) from exc


def _in_keyring(service: str, name: str) -> str:
    try:
        keyring = import_module("keyring")  # optional: only this form needs it
    except ImportError as exc:
        msg = f"key='keyring:...' needs: pip install keyring ({exc})"
        raise ImportError(msg, name=exc.name) from exc
    found: str | None = keyring.get_password(service, name)
    return found or ""


def _decoded(value: str, text: str) -> bytes:
    if len(value) == 2 * KEY_BYTES:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    problem = None
    try:
        found = binascii.a2b_base64(value.translate({45: 43, 95: 47}) + "==")
    except (binascii.Error, ValueError) as exc:
        found, problem = b"", exc
    if len(found) == KEY_BYTES:
        return found
    forms = f"{2 * KEY_BYTES} hexadecimal digits, or {KEY_BYTES} bytes in base64"
    msg = f"key: what is at {text!r} is no key: expected {forms}"
    raise InvalidOptionError(msg) from problem


# --- Key file: a random data key per user, encrypted, next to the database ------------------------

P = ParamSpec("P")
T = TypeVar("T")

MAGIC: Final = b"memcore-keys-v1\0"
BLOCK: Final = 64
"""Scopes whose keys are minted together: one rewrite of the file serves that many users."""
_AHEAD_MAX: Final = 65_536
"""A scope number this far beyond those with keys is not a new one: it is damaged or hostile."""
_LENGTH: Final = Struct("<H")
_TABLE: Final = Struct("<16s16s32sQI")
_ENTRY: Final = Struct("<QI32s")
_SUM_BYTES: Final = 32
OWNER_BYTES: Final = 16
_OWNER_NOTE: Final = (2**64 - 1, 0)
"""Scope and number of the entry that identifies the data file the keys belong to."""


@record(frozen=True, slots=True)
class DataKey:
    """A key that encrypts contents of one scope."""

    number: int
    key: bytes = field(repr=False)

    __reduce_ex__ = uncopied


class _KeyTable(NamedTuple):
    """State of a key ring, replaced as a whole, so that a failed write leaves the old one."""

    keys: dict[int, tuple[DataKey, ...]]
    minted: int
    last: int
    owner: bytes = b""
    """Id of the data file that the keys belong to; empty: not bound yet."""


def _locked(method: Callable[Concatenate[KeyRing, P], T]) -> Callable[Concatenate[KeyRing, P], T]:
    @wraps(method)
    def run(self: KeyRing, /, *args: P.args, **options: P.kwargs) -> T:
        with self._lock:
            return method(self, *args, **options)

    return run


class KeyRing:
    """The data keys of one database, in memory and in the key file.

    Changes need the database's write lock, which keeps out writers of other processes. Readers may
    reread the file at any moment, so the state in memory has a lock of its own: if an older table
    replaced the newest one, the next change would lose keys.
    """

    __reduce_ex__ = uncopied

    def __init__(self, path: str | None, provider: KeyProvider) -> None:
        self.path = None if path is None else os.path.realpath(path)
        """Links are resolved, so the real file is replaced. None: the database is in memory."""
        self.renew_lock()
        self._provider = provider
        self._own = os.urandom(KEY_BYTES)
        self._wrapped = b""
        self._sum = b""
        """Checksum of the file as last read or written; empty: the file must be reread."""
        self._refused = b""
        """Checksum of a replacement file that was refused."""
        self._is_flushed = True
        """True if no power failure can bring back an earlier file."""
        self.file_id = os.urandom(16)
        self.seed = os.urandom(16)
        """Seed of the database that it belongs to."""
        self.secret = os.urandom(KEY_BYTES)
        """Keys everything derived from contents that is stored in clear, such as blob digests."""
        self._table = _KeyTable({}, 0, 0)

    def renew_lock(self) -> None:
        """Renew the lock in the child of a fork, where its holder does not exist."""
        self._lock = RLock()

    # --- creating and reading ---------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | None, provider: KeyProvider) -> KeyRing:
        """Create a ring for a new database; an existing file that no database uses is returned.

        Raises:
            KeyFileError: another database's key file is there, or it cannot be written.
            WrongKeyError: a file is there, and the key does not open it.
        """
        ring = cls(path, provider)
        ring._wrapped = provider.wrap(ring._own, MAGIC)
        path = ring.path
        if path is None:
            return ring
        if not os.path.lexists(path):
            with suppress(FileExistsError):  # another process was first: use its file
                ring._create(path)
                return ring
        found = cls.load(path, provider)
        if found.minted or found.owner:
            msg = (
                f"{path} is the key file of another database, or of one that is not there, and "
                "is never overwritten: to have that one back, restore a backup to its place; to "
                "make a new one, give key_file= another name, or move this key file away, without "
                "which no backup of the old one can be read"
            )
            raise KeyFileError(msg)
        return found

    def _create(self, path: str) -> None:
        content = self._packed(self._table, self._own, self._wrapped)
        self._sum = content[-_SUM_BYTES:]  # before the file exists: an interrupt may come between
        try:
            put_private(path, content, new=True)
        except FileExistsError:
            raise
        except OSError as exc:
            if isinstance(exc, FileNotFoundError) and os.path.lexists(path):
                raise FileExistsError(path) from exc  # its owner removed our file as a leftover
            raise KeyFileError(f"{path}: cannot write the key file ({exc.strerror})") from exc

    @classmethod
    def load(cls, path: str, provider: KeyProvider) -> KeyRing:
        """Load the ring of a key file.

        Raises:
            KeyFileError: it is missing, damaged or cannot be read.
            WrongKeyError: the key does not open it.
        """
        ring = cls(path, provider)
        ring._read()
        return ring

    def copied(self, needed: Collection[int], shredded: Collection[int]) -> KeyRing:
        """Return a ring for a data file about to be created, in memory until it is ``placed``.

        It has this ring's keys for the ``needed`` scopes, none for the ``shredded`` ones, and new
        keys for all others, so it never holds the keys of a user that it does not know of and so
        could not erase.
        """
        copy = KeyRing(None, self._provider)
        copy.file_id, copy.seed, copy.secret = self.file_id, self.seed, self.secret
        copy._own, copy._wrapped = self._own, self._wrapped
        keys: dict[int, tuple[DataKey, ...]] = {}
        last = self._table.last
        for scope, found in self._table.keys.items():
            if scope in shredded:
                continue
            if scope not in needed:
                last += 1
            keys[scope] = found if scope in needed else (_new_key(last),)
        copy._table = _KeyTable(keys, self._table.minted, last, os.urandom(OWNER_BYTES))
        return copy

    def place(self, path: str) -> None:
        """Write the key file of a ring that exists only in memory.

        Raises:
            KeyFileError: a file exists already, or it cannot be written.
        """
        real = os.path.realpath(path)
        try:
            self._create(real)
        except FileExistsError as exc:
            raise KeyFileError(f"{path}: there is a key file already; move it away") from exc
        self.path = real

    def take_back(self, path: str) -> None:
        """Remove the key file that ``place`` wrote, if any: its data file was not created.

        Nothing is unwrapped: the key service may be what failed.

        Raises:
            OSError
        """
        real = os.path.realpath(path)
        remove_unfinished(real)
        with suppress(KeyFileError):  # it is missing, or not a key file
            if read_key_file(real)[1] == self._sum:
                os.unlink(real)

    def beside(self, path: str) -> KeyRing:
        """Load another key file with the same provider; raises what ``load`` raises."""
        return KeyRing.load(path, self._provider)

    def _read(self, *, again: bool = False) -> None:
        """Read the key file; with ``again`` it must be a successor of the one read before."""
        path = self.path or ""
        body, total = read_key_file(path)
        at = len(MAGIC) + _LENGTH.size
        wrapped = body[at : at + _LENGTH.unpack_from(body, len(MAGIC))[0]]
        own = self._own if again and wrapped == self._wrapped else self._unwrapped(wrapped)
        head, rest = body[: at + len(wrapped)], body[at + len(wrapped) :]
        packed = Cipher(own).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head)
        if packed is None or len(packed) < _TABLE.size:
            raise KeyFileError(f"{path}: the key file was changed; restore it from a copy")
        file_id, seed, secret, _, _ = _TABLE.unpack_from(packed)
        table = _unpacked(packed)
        if again:
            self._need_later(file_id, table)
        # The process that replaced it may not have flushed the directory yet: nothing may be
        # committed under keys that a power failure takes back. Set first: other threads see the
        # table immediately.
        self._is_flushed = False
        self.file_id, self.seed, self.secret, self._table = file_id, seed, secret, table
        self._own, self._wrapped, self._sum = own, wrapped, total

    @_locked
    def adopt(self, other: KeyRing) -> None:
        """Switch to the current file, and to the provider of a later open that has read it.

        What that open read may be stale by now: other threads mint, erase and claim concurrently.

        Raises:
            KeyFileError: it is another database's file, or an older copy.
            WrongKeyError: it has been rewrapped with yet another key.
        """
        if other.path != self.path or other._sum == self._sum:
            return
        known, self._provider = self._provider, other._provider
        try:
            self.refresh()
        finally:
            if other._wrapped != self._wrapped:  # another thread has changed the key since
                self._provider = known

    def _need_later(self, file_id: bytes, table: _KeyTable) -> None:
        """Refuse a file that is not a successor of the one in use.

        Raises:
            KeyFileError: it is another database's, or an older copy: it lacks keys, or has keys
                that were shredded. Or it now belongs to another data file.
        """
        if file_id != self.file_id:
            raise KeyFileError(
                f"{self.path} was replaced by the key file of another database; put the right "
                "one back"
            )
        known = self._table
        if known.owner and table.owner and table.owner != known.owner:
            raise KeyFileError(
                f"{self.path} is the key file of another data file by now: two were opened with "
                "it; give each a key file of its own (docs/encryption.md)"
            )
        back = (scope for scope in table.keys.keys() - known.keys.keys() if scope < known.minted)
        is_older = table.last < known.last or (bool(known.owner) and not table.owner)
        if is_older or next(back, None) is not None:
            raise KeyFileError(
                f"{self.path} was replaced by an older copy, which lacks what has changed since; "
                "put the newest one back"
            )

    def _unwrapped(self, wrapped: bytes) -> bytes:
        msg = f"{self.path}: the key does not open this key file; nothing was read or changed"
        if self._wrapped:
            msg += (
                ": another key has been in use since it was opened (rotate_key); open the database"
                " with that one"
            )
        try:
            own = self._provider.unwrap(wrapped, MAGIC)
        except WrongKeyError as exc:
            raise WrongKeyError(msg) from exc
        except Exception as exc:  # a caller's service may raise anything
            raise WrongKeyError(f"{msg} ({type(exc).__name__})") from exc
        if not isinstance(own, bytes) or len(own) != KEY_BYTES:
            raise WrongKeyError(msg)
        return own

    @_locked
    def refresh(self, *, anew: bool = True) -> bool:
        """Reread the file if another process has replaced it; return True if so.

        With ``anew`` False a file that was refused before is not retried, so that a key management
        service is not called for each value without a key here.

        Raises:
            KeyFileError: it cannot be read, is an older copy or another database's. The known keys
                stay in use.
            WrongKeyError
        """
        if self.path is None:
            return False
        total = b""
        with suppress(OSError):
            # Not by stat: inodes and coarse timestamps are reused, and keys would be lost.
            total = _sum_of(self.path)
        if total and (total == self._sum or (not anew and total == self._refused)):
            return False
        self._refused = total
        self._read(again=True)
        self._refused = b""
        return True

    @property
    def is_settled(self) -> bool:
        """True if the key file as last read or written survives a power failure."""
        return self._is_flushed or self.path is None

    @_locked
    def settle(self) -> None:
        """Flush the directory, unless the key file's writer is known to have done so.

        Raises:
            KeyFileError: the system refused.
        """
        if self.path is not None and not self._is_flushed:
            self._flush(self.path)

    def _flush(self, path: str) -> None:
        """Flush the directory before anything relies on the file, whose contents are flushed."""
        try:
            sync_directory(path)
        except OSError as exc:
            raise KeyFileError(
                f"{path}: the key file cannot be flushed ({exc.strerror}); try again"
            ) from exc
        self._is_flushed = True

    # --- keys -------------------------------------------------------------------------------------

    @property
    def owner(self) -> bytes:
        """Id of the data file that the keys belong to; empty: not bound yet."""
        return self._table.owner

    @_locked
    def claim(self, owner: bytes) -> None:
        """Bind the keys to a data file, whose owner row is already durable.

        Raises:
            KeyFileError: they belong to another data file, or the file cannot be written.
            WrongKeyError
        """
        self.refresh()
        self.settle()
        if not self._table.owner:
            self._store(self._table._replace(owner=owner))
        elif self._table.owner != owner:
            raise KeyFileError(f"{self.path} is the key file of another data file")

    @property
    def minted(self) -> int:
        """Scope number below which a scope without a key was shredded."""
        return self._table.minted

    @property
    def last(self) -> int:
        """Number of the newest data key."""
        return self._table.last

    def is_shredded(self, scope: int) -> bool:
        """Return True if the keys of a scope were destroyed."""
        table = self._table
        return scope < table.minted and scope not in table.keys

    def shredded(self) -> list[int]:
        """List the scopes whose keys were destroyed."""
        table = self._table
        return sorted(set(range(table.minted)) - table.keys.keys())

    def of_scope(self, scope: int) -> DataKey | None:
        """Return the current key of a scope; None if it has none, or no longer has one."""
        found = self._table.keys.get(scope)
        return found[-1] if found else None

    def numbered(self, scope: int, number: int) -> bytes | None:
        """Return the key of a scope with a given number."""
        for found in self._table.keys.get(scope, ()):
            if found.number == number:
                return found.key
        return None

    def numbers(self, scope: int) -> list[int]:
        """List the numbers of a scope's keys, the current one last."""
        return [found.number for found in self._table.keys.get(scope, ())]

    def scopes(self) -> list[int]:
        """List the scopes below ``minted`` that have a key."""
        return sorted(self._table.keys)

    @_locked
    def mint(self, scope: int) -> bool:
        """Mint keys for a scope and its neighbours; return False if its key was shredded.

        Raises:
            KeyFileError, WrongKeyError
            CorruptStoreError: the number is implausibly high: every scope below it gets a key.
        """
        self.refresh()
        self.settle()
        if scope >= self._table.minted:
            self._store(self._with_keys_for(scope))
        return scope in self._table.keys

    def _with_keys_for(self, scope: int) -> _KeyTable:
        """Return the table with keys for all scopes up to the given one."""
        table = self._table
        if scope >= table.minted + _AHEAD_MAX:
            raise CorruptStoreError(
                f"scope {scope} is far beyond the {table.minted} that the key file knows: "
                "the number in its name row, or in the counter, is damaged"
            )
        minted = (scope // BLOCK + 1) * BLOCK
        more, last = dict(table.keys), table.last
        for number in range(table.minted, minted):
            last += 1
            more[number] = (_new_key(last),)
        return table._replace(keys=more, minted=max(minted, table.minted), last=last)

    @_locked
    def renew(self, scope: int) -> DataKey:
        """Create a new current key for a scope; its older keys still decrypt.

        Raises:
            KeyFileError: its key was shredded, or the file cannot be written.
        """
        if not self.mint(scope):
            raise KeyFileError(f"{self.path}: the data key of scope {scope} was shredded")
        table = self._table
        made = _new_key(table.last + 1)
        keys = {**table.keys, scope: (*table.keys[scope], made)}
        self._store(table._replace(keys=keys, last=made.number))
        return made

    @_locked
    def retire(self, scope: int, *, below: int) -> None:
        """Drop a scope's keys with numbers below ``below``, but never the current one.

        Nothing may be encrypted with them any longer, and the data file has been flushed since.
        """
        self.refresh()
        self.settle()
        table = self._table
        found = table.keys.get(scope, ())
        kept = tuple(each for each in found[:-1] if each.number >= below) + found[-1:]
        if kept != found:
            self._store(table._replace(keys={**table.keys, scope: kept}))

    @_locked
    def shred(self, scopes: Iterable[int]) -> bool:
        """Destroy the keys of scopes; return True if there were any.

        No name may lead to their contents any longer, and the data file has been flushed since.

        Raises:
            KeyFileError: the file cannot be written; all keys are still there.
        """
        self.refresh()
        self.settle()
        gone = set(scopes)
        # A number under which nothing was ever written must not get a key later either.
        table = self._with_keys_for(max(gone)) if gone else self._table
        if gone.isdisjoint(table.keys):
            return False
        keys = {number: found for number, found in table.keys.items() if number not in gone}
        self._store(table._replace(keys=keys))
        return True

    @_locked
    def rewrap(self, provider: KeyProvider) -> None:
        """Protect the file with another key-encryption key from now on."""
        self.refresh()
        self.settle()
        own = os.urandom(KEY_BYTES)  # an old copy of the file and its key then reveal nothing new
        wrapped = provider.wrap(own, MAGIC)
        try:
            self._store(self._table, own=own, wrapped=wrapped)
        except BaseException as exc:  # an interrupt, too, may arrive after the rename
            if not self._is_under(wrapped):
                raise
            self._own, self._wrapped, self._provider = own, wrapped, provider
            if not isinstance(exc, KeyFileError):
                self._sum = b""
                raise
            raise KeyFileError(
                f"{self.path} is under the new key now, but could not be flushed: a power cut may "
                "bring back the file under the key before; keep both keys, and change it again"
            ) from exc
        self._provider = provider

    def _is_under(self, wrapped: bytes) -> bool:
        """Return True if the key file on disk begins with this wrapped ring key."""
        with suppress(KeyFileError):
            body, _ = read_key_file(self.path or "")
            return body[len(MAGIC) + _LENGTH.size :].startswith(wrapped)
        return False

    # --- writing ----------------------------------------------------------------------------------

    def _store(
        self, table: _KeyTable, *, own: bytes | None = None, wrapped: bytes | None = None
    ) -> None:
        """Install a table: first durably in the file, then in memory.

        Raises:
            KeyFileError: the system refused; the ring is unchanged.
        """
        own, wrapped = own or self._own, wrapped or self._wrapped
        if self.path is not None:
            content = self._packed(table, own, wrapped)
            try:
                remove_unfinished(self.path)  # may hold keys that have been shredded since
                owner = os.stat(self.path)
                mode = stat.S_IMODE(owner.st_mode)
                put_private(self.path, content, new=False, owner=owner, mode=mode)
            except OSError as exc:
                self._sum, self._is_flushed = b"", False  # reread: either file may be in place
                msg = f"{self.path}: cannot write the key file ({exc.strerror}); try again"
                raise KeyFileError(msg) from exc
            self._sum = content[-_SUM_BYTES:]
        self._table, self._own, self._wrapped = table, own, wrapped

    def _packed(self, table: _KeyTable, own: bytes, wrapped: bytes) -> bytes:
        head = b"".join((MAGIC, _LENGTH.pack(len(wrapped)), wrapped))
        packed = bytearray(
            _TABLE.pack(self.file_id, self.seed, self.secret, table.minted, table.last)
        )
        for scope, found in table.keys.items():
            for entry in found:
                packed += _ENTRY.pack(scope, entry.number, entry.key)
        if table.owner:
            packed += _ENTRY.pack(*_OWNER_NOTE, table.owner)
        nonce = os.urandom(NONCE_BYTES)
        body = head + nonce + Cipher(own).encrypt(nonce, bytes(packed), head)
        return body + _proof_of(body)


def _proof_of(body: bytes) -> bytes:
    """Return the checksum at the end of a key file: SHA-256 of its body."""
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL: only for encrypted databases

    return sha256(body).digest()


def read_key_file(path: str) -> tuple[bytes, bytes]:
    """Read a key file and verify its checksum, which needs no key; return body and checksum.

    Raises:
        KeyFileError: it is missing, damaged, unreadable, or not a key file.
    """
    try:
        with open(path, "rb") as file:
            whole = file.read()
    except OSError as exc:
        msg = (
            f"{path}: cannot read the key file ({exc.strerror}): without it no content can be "
            "read; restore it, or say where it lies with key_file="
        )
        raise KeyFileError(msg) from exc
    body, total = whole[:-_SUM_BYTES], whole[-_SUM_BYTES:]
    if body[: len(MAGIC)] != MAGIC:
        raise KeyFileError(f"{path} is no key file of memcore's")
    if len(body) < len(MAGIC) + _LENGTH.size or _proof_of(body) != total:
        raise KeyFileError(f"{path}: the key file is damaged; restore it from a copy")
    return body, total


def _unpacked(packed: bytes) -> _KeyTable:
    *_, minted, last = _TABLE.unpack_from(packed)
    found: dict[int, tuple[DataKey, ...]] = {}
    owner = b""
    for scope, number, key in _ENTRY.iter_unpack(packed[_TABLE.size :]):
        if (scope, number) == _OWNER_NOTE:
            owner = key[:OWNER_BYTES]
        else:
            found[scope] = (*found.get(scope, ()), DataKey(number, key))
    return _KeyTable(found, minted, last, owner)


def _new_key(number: int) -> DataKey:
    return DataKey(number, os.urandom(KEY_BYTES))


def _sum_of(path: str) -> bytes:
    """Read a key file's checksum, which changes with each replacement because of its new nonce."""
    with open(path, "rb") as file:
        file.seek(-_SUM_BYTES, os.SEEK_END)
        return file.read()


# --- Secret of a database: from its key ring, or 32 random bytes in a separate file ---------------
# It is not in the database, except temporarily on a device without space for its file (erasing must
# not need space), so values derived from it (placeholders, pseudonyms, the receipt key) reveal
# nothing to someone who has only the database.

SUFFIX: Final = ".secret"
"""Appended to the path of the database."""
SECRET_BYTES: Final = 32
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROOF_BYTES: Final = 16
_BLOCK_BYTES: Final = 64


class Substitute(Protocol):
    """Storage in the database for a secret that has no file yet."""

    def kept(self) -> bytes | None:
        """Return the stored secret, or None."""

    def is_used(self) -> bool:
        """Return True if the row exists, whether or not it holds a secret."""

    def change(self, fn: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace the secret with ``fn(secret)``, None for none, while no other process writes."""


class Secret:
    """The secret of one open database, read on first use.

    Args:
        path: path of the database, with symbolic links resolved.
        create: create the file if it is missing.
        ring: the secret of an encrypted database's key ring, which needs no file.
        place: storage for the secret while there is no space for its file.
        known: the secret itself, of a store that has no file.
    """

    __slots__ = ("_create", "_path", "_place", "_value")
    __reduce_ex__ = uncopied

    def __init__(
        self,
        path: str,
        *,
        create: bool,
        ring: bytes | None = None,
        place: Substitute | None = None,
        known: bytes | None = None,
    ) -> None:
        self._path = path
        self._create = create
        self._place = place
        self._value = known
        if ring is not None:
            self._value = blake2b(ring, person=b"memcore secret", digest_size=SECRET_BYTES).digest()

    def value(self) -> bytes:
        """Return the 32 bytes; raises what ``secret_of`` raises."""
        if self._value is None:
            self._value = self._found()
        return self._value

    def _found(self) -> bytes:
        place = self._place
        try:
            return secret_of(self._path, create=self._create and place is None)
        except NotFoundError:
            kept = None if place is None else place.kept()
            if kept is not None:
                return kept
            if not self._create:
                raise
        # Serialized: two processes must not create two, one in the file and one in the database.
        kept = None if place is None else place.change(self._made)
        return secret_of(self._path, create=place is None) if kept is None else kept

    def _made(self, kept: bytes | None) -> bytes | None:
        """Create the secret's file; without space for it, return a new secret to store instead."""
        if kept is None:
            try:
                secret_of(self._path, create=True)
            except StoreFullError:
                return os.urandom(SECRET_BYTES)
        return kept

    def settle(self) -> bool:
        """Create the file that there was no space for; return True if nothing is left to do."""
        if self._place is None or not (self._place.is_used() or self._has_leftover()):
            return True
        return self._place.change(self._moved) is None

    def _has_leftover(self) -> bool:
        """Return True if the file's creator was killed before it removed the temporary name."""
        with suppress(OSError):
            return os.stat(self._path + SUFFIX).st_nlink > 1
        return False

    def _moved(self, kept: bytes | None) -> bytes | None:
        """Move the stored secret into the file; return it if it cannot be moved."""
        with suppress(OSError):
            remove_unfinished(self._path + SUFFIX)
        if kept is not None:
            try:
                secret_of(self._path, create=True, made=kept)
            except (StoreFullError, StoreAccessError):
                return kept
        return None

    def found(self) -> bytes | None:
        """Return the secret, or None if there is none and none may be created.

        Raises:
            The errors of ``value``, except NotFoundError.
        """
        try:
            return self.value()
        except NotFoundError:
            return None


def secret_of(path: str, *, create: bool, made: bytes | None = None) -> bytes:
    """Return the secret of the database at a path; created on first use.

    Args:
        path: the database; ``":memory:"`` gets a random secret each time.
        create: create the file if it is missing.
        made: the contents of a new file; None: random bytes.

    Raises:
        NotFoundError: it is missing and may not be created.
        StoreFullError: no space is left for it.
        CorruptStoreError: the file does not hold a secret.
        StoreAccessError: the system refuses to read or write it.
    """
    if path == ":memory:":
        return os.urandom(SECRET_BYTES)
    file = os.path.realpath(path) + SUFFIX
    try:
        found = _read(file)
        if found is None and create:
            remove_unfinished(file)  # from a killed process: it holds a secret never used
            with suppress(FileExistsError):  # another process was faster: its file stays
                # Root may be the first to need it, for a database owned by another user.
                owner = None if os.geteuid() else os.stat(path)
                put_private(file, made or os.urandom(SECRET_BYTES), new=True, owner=owner)
            found = _read(file)
    except OSError as exc:
        if exc.errno in _FULL:
            msg = f"no space is left for the secret file {file!r} ({exc.strerror}): free some"
            raise StoreFullError(msg) from exc
        msg = f"the secret file {file!r} cannot be used: {exc.strerror}; check its rights"
        raise StoreAccessError(msg) from exc
    if found is None:
        msg = (
            f"the secret file {file!r} is missing and the database is open read-only: restore it "
            "beside the database, or open that for writing once to make a new one"
        )
        raise NotFoundError(msg)
    if len(found) != SECRET_BYTES:
        msg = (
            f"the secret file {file!r} has {len(found)} bytes, expected {SECRET_BYTES}: restore it "
            "from a backup; without it, placeholders of earlier items come out differently"
        )
        raise CorruptStoreError(msg)
    return found


def veiled(secret: bytes, text: str) -> str:
    """Encrypt a text under a secret, deterministically: equal texts give equal hex digits.

    A keyed digest of the text is both its proof and the nonce of the key stream (as in AES-SIV),
    so that no random bytes are needed and no nonce repeats for different texts.
    """
    packed = text.encode("utf-8", "surrogatepass")
    proof = blake2b(packed, key=secret, person=b"memcore proof", digest_size=_PROOF_BYTES).digest()
    return (proof + _streamed(secret, proof, packed)).hex()


def unveiled(secret: bytes, sealed: str) -> str | None:
    """Decrypt a result of ``veiled``; None if the secret differs or it was changed."""
    try:
        packed = bytes.fromhex(sealed)
        proof, packed = packed[:_PROOF_BYTES], packed[_PROOF_BYTES:]
        text = _streamed(secret, proof, packed).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    from hmac import compare_digest  # noqa: PLC0415 - loads OpenSSL: only if there are names

    return text if compare_digest(veiled(secret, text), sealed) else None


def _streamed(secret: bytes, proof: bytes, packed: bytes) -> bytes:
    """XOR the bytes with a key stream; applied twice it returns the input."""
    stream = bytearray()
    for count in range(0, len(packed), _BLOCK_BYTES):
        block = proof + count.to_bytes(8, "big")
        stream += blake2b(block, key=secret, person=b"memcore stream").digest()
    return bytes(a ^ b for a, b in zip(packed, stream, strict=False))


def _read(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read(SECRET_BYTES + 1)
    except FileNotFoundError:
        return None
