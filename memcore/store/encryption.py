"""Row encryption: a write transaction encrypts contents when it puts them.

Layers above see sealed values as ``codec`` makes them; layers below (redo records, LMDB, copies)
see only ``2 | 0 | checksum u64 | key number u32 | nonce 12 | ciphertext | tag 16``. The complete
row key and the key number are authenticated as associated data, so a value decrypts only in its own
row.

Every row that holds caller data is encrypted. Rows of numbers and keyed digests (heads, index
pages, requests, headers of blobs) and the names in keys are stored in clear.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from memcore.codec.keys import (
    OWNER_KEY,
    SECRET_KEY,
    Counter,
    Kind,
    blake2b,
    counter,
    u64,
)
from memcore.codec.table import ROWS
from memcore.codec.values import CLEAR_FORMAT, HEADER_BYTES, open_value, seal_encrypted, seal_value
from memcore.errors import (
    CorruptValueError,
    KeyFileError,
    MemcoreError,
    NotFoundError,
    uncopied,
)
from memcore.faces import logger
from memcore.limits import ENCRYPTED_FORMAT
from memcore.privacy.keyring import (
    KEY_BYTES,
    NONCE_BYTES,
    OWNER_BYTES,
    Cipher,
    DataKey,
    KeyRing,
)

if TYPE_CHECKING:
    from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "CLOSED_KINDS",
    "SECRET_ROW_BYTES",
    "RowCipher",
    "copy_refused",
    "is_content",
    "number_of",
    "owner_of",
    "packed_secret",
    "waiting_secret",
]

_ENCRYPTED: Final = bytes((ENCRYPTED_FORMAT,))
_NUMBER: Final = Struct(">I")
_NUMBER_BYTES: Final = 4
_TEXT_AT: Final = HEADER_BYTES + _NUMBER_BYTES + NONCE_BYTES
_SCOPE_BYTES: Final = 8
_SCOPE: Final = slice(1, 1 + _SCOPE_BYTES)
_ROW_AT: Final = 17
_CARE_AT: Final = 9
_DATABASE: Final = bytes(_SCOPE_BYTES)
_NONCES: Final = 512
_VEIL_BYTES: Final = 16
_NEWEST: Final = counter(Counter.DATA_KEY)
_SECRET_ROW: Final = Struct(">32sQ")
SECRET_ROW_BYTES: Final = _SECRET_ROW.size
_SECRET: Final = tuple(each for each in ROWS if each.secret)
CLOSED_KINDS: Final = frozenset(each.kind for each in _SECRET)
"""Kinds of rows that may hold contents."""
_CLOSED_CARE: Final = frozenset(
    bytes((each.row or 0,)) for each in _SECRET if each.kind == Kind.CARE
)
"""A scope's care rows that hold contents. The database's own care rows hold none."""
_OPEN_ROWS: Final = frozenset(
    each.row for each in ROWS if each.kind == Kind.SESSION and not each.secret
)
"""A session's rows that hold no contents; rows of unknown kinds are encrypted."""
_CLOSED_SORT, _SESSION_SORT, _CARE_SORT = 1, 2, 3
_SPECIAL: Final = {Kind.SESSION: _SESSION_SORT, Kind.CARE: _CARE_SORT}
_SORTS: Final = bytes(_SPECIAL.get(kind, int(kind in CLOSED_KINDS)) for kind in range(256))
_IS_OPEN: Final = bytes(row in _OPEN_ROWS for row in range(256))
_Sealing = tuple[bytes, Callable[[bytes, bytes, bytes], bytes]]


class RowCipher:
    """Encrypts and decrypts the values of one database, for all its handles in a process.

    Values are sealed only under the write lock, hence by one thread at a time.
    """

    __slots__ = (
        "__weakref__", "_at", "_awaiting", "_mix", "_noted", "_openers", "_pool", "_sealers",
        "_told", "ring", "seed",
    )  # fmt: skip

    __reduce_ex__ = uncopied

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring
        self.seed = blake2b(ring.secret, person=b"memcore seed", digest_size=16).digest()
        """Key of the digests that are stored in clear; replaces the file's seed."""
        self._sealers: dict[bytes, _Sealing] = {}
        self._openers: dict[bytes, Cipher | None] = {}
        self._awaiting: set[int] = set()
        """Erased scopes whose keys could not be destroyed yet."""
        self._told = ""
        """Reason for the last failure, as logged."""
        self._noted = 0
        """Newest key known to be recorded in the file; the file may record a newer one."""
        self.forget_random()
        _vaults.add(self)

    def forget_random(self) -> None:
        """Discard the random pool in a forked child, as its parent uses the same bytes.

        Also renews the ring's lock, which the parent may have held.
        """
        self._pool, self._at = b"", 0
        self._mix = Cipher(os.urandom(KEY_BYTES)).encrypt
        self.ring.renew_lock()

    def random(self, count: int) -> bytes:
        """Return up to ``NONCE_BYTES`` random bytes, never the same ones twice."""
        at = self._at
        if at + count > len(self._pool):
            self._pool, at = os.urandom(_NONCES * NONCE_BYTES), 0
        self._at = at + count
        return self._pool[at : at + count]

    # --- sealing ----------------------------------------------------------------------------------

    def seal(self, key: bytes, value: bytes) -> bytes:
        """Return the stored form of a sealed value.

        Raises:
            NotFoundError: the scope was erased and its data key is gone.
            KeyFileError: the scope is new and the key file cannot be written.
            TamperedError: the value is one that failed to decrypt.
        """
        if not is_content(key):
            return value
        if value[:1] == _ENCRYPTED:
            open_value(key, value)  # raises: encrypted twice, it would be lost for good
        sealing = self._sealers.get(key[_SCOPE])
        if sealing is None:
            sealing = self._sealer(key[_SCOPE])
        number, encrypt = sealing
        # Random bytes alone would repeat in a copy of the process: a virtual machine resumed twice,
        # a fork that Python does not see. Mixed with the row and value, they repeat a nonce only
        # for the same plaintext. GCM's tag is by far the fastest keyed hash of a value, but is not
        # exposed directly: two tags under one nonce leak information about its key.
        drawn = self.random(NONCE_BYTES)
        mixed = self._mix(drawn, key, value)
        nonce = blake2b(mixed, key=drawn, digest_size=NONCE_BYTES).digest()
        return seal_encrypted(key, number, nonce, encrypt(nonce, value, key + number))

    def _sealer(self, place: bytes) -> _Sealing:
        scope = int.from_bytes(place, "big")
        found = self.ring.of_scope(scope)
        if found is None:
            self.ring.mint(scope)
            found = self.ring.of_scope(scope)
        if found is None:
            msg = "this user was erased: nothing can be written for them under their old number"
            raise NotFoundError(msg)
        return self._use(place, found)

    def _use(self, place: bytes, found: DataKey) -> _Sealing:
        number = _NUMBER.pack(found.number)
        cipher = Cipher(found.key)
        self._openers[place + number] = cipher
        sealing = self._sealers[place] = number, cipher.encrypt
        return sealing

    # --- opening ----------------------------------------------------------------------------------

    def open(self, key: bytes, value: bytes) -> bytes:
        """Return the sealed value of a stored one.

        A value that cannot be decrypted, or that should be encrypted and is not, is returned in a
        form that ``codec.open_value`` rejects, so that the surrounding rows stay readable.
        """
        if value[:1] != _ENCRYPTED:
            return bytes((CLEAR_FORMAT,)) + value[1:] if is_content(key) else value
        number = value[HEADER_BYTES : HEADER_BYTES + _NUMBER_BYTES]
        try:
            cipher = self._openers[key[_SCOPE] + number]
        except KeyError:
            cipher = self._opener(key[_SCOPE], number)
        if cipher is None:
            return value
        nonce = value[HEADER_BYTES + _NUMBER_BYTES : _TEXT_AT]
        found = cipher.decrypt(nonce, value[_TEXT_AT:], key + number)
        return value if found is None else found

    def _opener(self, place: bytes, number: bytes) -> Cipher | None:
        if len(place) != _SCOPE_BYTES or len(number) != _NUMBER_BYTES:
            return None
        scope, wanted = int.from_bytes(place, "big"), _NUMBER.unpack(number)[0]
        found = self.ring.numbered(scope, wanted)
        if found is None:
            with suppress(MemcoreError):  # a key that was rotated out: reading the value reports it
                self.ring.refresh(anew=False)
            found = self.ring.numbered(scope, wanted)
        cipher = None if found is None else Cipher(found)
        if cipher is not None:
            self._openers[place + number] = cipher
        return cipher

    def reader(self, get: Callable[[bytes], bytes | None]) -> Callable[[bytes], bytes | None]:
        """Wrap ``get`` of a raw transaction so that it decrypts."""
        opened = self.open

        def look(key: bytes) -> bytes | None:
            value = get(key)
            if value is None or (value[:1] != _ENCRYPTED and not is_content(key)):
                return value  # most of what an append reads
            return opened(key, value)

        return look

    def rows(self, found: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Decrypt rows of a raw transaction."""
        opened = self.open
        return ((key, opened(key, value)) for key, value in found)

    # --- parts of row keys -----------------------------------------------------------------------

    def veiled(self, scope: int, text: str) -> str:
        """Return a keyed digest of a text for use in a key, computable only with the key file."""
        packed, salt = text.encode("utf-8", "surrogatepass"), scope.to_bytes(_SCOPE_BYTES, "big")
        return blake2b(packed, key=self.seed, salt=salt, digest_size=_VEIL_BYTES).hexdigest()

    # --- keys -------------------------------------------------------------------------------------

    def reread(self) -> None:
        """Reread the key file, and drop the ciphers of keys that may have been retired.

        Raises:
            KeyFileError, WrongKeyError
        """
        self.ring.refresh()
        self._sealers.clear()
        self._openers.clear()

    def noted(self, txn: ReadTxn) -> int:
        """Read the newest data key recorded in the file; 0 if none is.

        A damaged row counts as none: the check reports it, and the next commit rewrites it.
        """
        value = txn.get(_NEWEST)
        if value is None:
            return 0
        try:
            return int.from_bytes(open_value(_NEWEST, value)[1], "big")
        except CorruptValueError:
            return 0

    def own(self, txn: Txn, path: str) -> bytes:
        """Return the owner of the key file as recorded in the data file; record it if missing.

        Raises:
            KeyFileError: the key file belongs to another data file, of which this may be a copy.
            WrongKeyError
        """
        ring = self.ring
        # Another process may have bound the keys since they were read.
        ring.refresh()
        found = owner_of(txn)
        if found and found == (ring.owner or found):
            return found
        if found:
            raise KeyFileError(
                f"{path}: {ring.path} is the key file of another data file: give its own with "
                "key_file=, or open it with read_only=True"
            )
        if found is None and ring.owner:
            raise KeyFileError(
                f"{path} is a copy of the data file that {ring.path} belongs to, as backups are;"
                f" {_ONE_FILE}: to put it in that one's place, move it to another name and restore"
                f" it from there, memcore.restore(OTHER, {path!r}, key=...); to have it beside that"
                " one, restore it to a place with a copy of the key file; to look into it, open it"
                " with read_only=True"
            )
        made = ring.owner or os.urandom(OWNER_BYTES)
        txn.put(OWNER_KEY, seal_value(OWNER_KEY, made))
        return made

    def note(self, txn: Txn) -> None:
        """Record the newest data key in the file, in the transaction that writes with it.

        The key file already holds that key durably. So if a data file records a newer key than its
        key file holds, the key file is an old copy.
        """
        # Before the commit: if a power failure takes the key file back, nobody can decrypt it.
        if not self.ring.is_settled:
            self.ring.settle()
        if self._awaiting:
            self._shred_at_last()
        last = self.ring.last
        if last == self._noted:
            return
        found = self.noted(txn)
        if found < last:
            # ``_noted`` stays as it is: this transaction may be aborted, and the row with it.
            txn.put(_NEWEST, seal_value(_NEWEST, u64(last)))
        else:
            self._noted = last  # already committed, possibly by this process's last transaction

    def await_shredding(self, scopes: Iterable[int]) -> None:
        """Destroy the data keys of scopes once the key file can be written; see ``shred``."""
        self._awaiting.update(scopes)

    def _shred_at_last(self) -> None:
        try:
            self.shred(self._awaiting)
        except MemcoreError as error:  # no space yet, or another key: the next commit retries
            if str(error) != self._told:
                self._told = str(error)
                logger("memcore.store").warning("keys of erased users await shredding: %s", error)
        else:
            self._told = ""

    def is_shredded(self, scope: int) -> bool:
        """Return True if a scope's keys are destroyed, so that its contents are unreadable."""
        return self.ring.is_shredded(scope)

    def shred(self, scopes: Iterable[int]) -> bool:
        """Durably destroy the data keys of scopes; True if there were any. Needs the write lock.

        Raises:
            KeyFileError: the key file cannot be written; the keys still exist.
        """
        gone = list(scopes)
        # The file first: if it cannot be written, the keys exist, and their ciphers stay in use.
        shredded = self.ring.shred(gone)
        places = {scope.to_bytes(_SCOPE_BYTES, "big") for scope in gone}
        self._awaiting.difference_update(gone)
        for place in places:
            self._sealers.pop(place, None)
        for known in [each for each in list(self._openers) if each[:_SCOPE_BYTES] in places]:
            self._openers.pop(known, None)
        return shredded

    def renew(self, scope: int) -> int:
        """Encrypt with a new key from now on; returns its number. Needs the write lock."""
        made = self.ring.renew(scope)
        self._use(scope.to_bytes(_SCOPE_BYTES, "big"), made)
        return made.number

    def current(self, key: bytes) -> int | None:
        """Return the number of the key that a row would be encrypted with now."""
        found = self.ring.of_scope(int.from_bytes(key[_SCOPE], "big"))
        return None if found is None else found.number

    def retire(self, scope: int, *, below: int) -> None:
        """Drop a scope's keys with numbers below ``below``, unused by now. Needs the write lock."""
        self.ring.retire(
            scope, below=below
        )  # readers of older snapshots continue with the cached ciphers


def owner_of(txn: ReadTxn) -> bytes | None:
    """Return the owner id that ties a database to its key file, from its row.

    None: not recorded (an older memcore, or a copy). Empty: the row is damaged.
    """
    value = txn.get(OWNER_KEY)
    if value is None:
        return None
    try:
        found = open_value(OWNER_KEY, value)[1]
    except CorruptValueError:
        return b""
    if len(found) != OWNER_BYTES:
        return b""
    return found if any(found) else None


_ONE_FILE: Final = (
    "with one key file an erasure in either would take the keys of users of the other"
)


def copy_refused(path: str, home: str, key_file: str) -> KeyFileError:
    """Return the error for one of two data files that claim the same key file."""
    return KeyFileError(
        f"{path} is a copy of {home}, or that one of it: both say that {key_file} is theirs;"
        f" {_ONE_FILE}: if {home} is the copy, move it away from there; if this one is, restore it"
        " to that one's place, or to another with a copy of the key file, or open it with"
        " read_only=True"
    )


def packed_secret(secret: bytes, inode: int) -> bytes:
    """Build the row of a secret that waits in the data file with the given inode."""
    return _SECRET_ROW.pack(secret, inode)


def waiting_secret(value: bytes, inode: int) -> bytes | None:
    """Return the secret in a row; None if it is damaged or was written to a different file.

    Otherwise the sender of a file could choose the recipient's secret, and predict what is derived
    from it; but not the inode that the file gets there. The device number is not included because
    it may change when the machine restarts.
    """
    try:
        found = open_value(SECRET_KEY, value)[1]
    except CorruptValueError:
        return None
    if len(found) != SECRET_ROW_BYTES:
        return None
    secret, place = _SECRET_ROW.unpack(found)
    return secret if place == inode else None


_vaults: WeakSet[RowCipher] = WeakSet()


def _forget_random() -> None:
    for vault in list(_vaults):
        vault.forget_random()


os.register_at_fork(after_in_child=_forget_random)


def is_content(key: bytes) -> bool:
    """Return True if the row under a key holds caller data, which is encrypted."""
    sort = _SORTS[key[0]]  # table lookups, as this runs for every row read or written
    if sort == _SESSION_SORT:
        return len(key) <= _ROW_AT or not _IS_OPEN[key[_ROW_AT]]
    if sort == _CARE_SORT:
        return key[_CARE_AT : _CARE_AT + 1] in _CLOSED_CARE and key[_SCOPE] != _DATABASE
    return sort == _CLOSED_SORT


def number_of(value: Any) -> int | None:
    """Return the data key number of a stored value; None if it is not encrypted."""
    if value[:1] != _ENCRYPTED or len(value) < _TEXT_AT:
        return None
    found: int = _NUMBER.unpack_from(value, HEADER_BYTES)[0]
    return found
