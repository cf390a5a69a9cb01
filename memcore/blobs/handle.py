"""The user's handle to the blobs of one scope."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import IO, Final

from xxhash import xxh3_128_digest

from memcore import keys
from memcore.blobs.admitting import admitted
from memcore.blobs.care import collect
from memcore.blobs.content import acquire, read, release, stream, write
from memcore.blobs.removal import finish
from memcore.blobs.rows import BlobRef, StagedBlobLost, slot_of
from memcore.blobs.sources import Source, changed, opened
from memcore.blobs.staging import refer_source
from memcore.codec import open_value, seal_value
from memcore.errors import (
    CorruptStoreError,
    InternalError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.keys import Kind
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.privacy.border import Passage
from memcore.store.base import ReadTxn, Store, Txn

__all__ = ["BlobStore"]

_ADDRESS: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class BlobStore:
    """Blobs of one scope under exported addresses ``"sha256:<hex>"``: the handle ``scope.blobs``.

    ``scope`` is the scope's number, or a function that looks it up in a snapshot; then ``ensure``
    gives the scope its number with the first write. Reading never writes.
    """

    def __init__(
        self,
        store: Store,
        scope: int | Callable[[ReadTxn], int | None],
        *,
        seed: int,
        ensure: Callable[[Txn], int] | None = None,
        passage: Passage | None = None,
    ) -> None:
        self._passage = passage
        self._store = store
        self._seed = seed
        if isinstance(scope, int):
            number = scope
            self._find: Callable[[ReadTxn], int | None] = lambda _: number
            self._ensure: Callable[[Txn], int] = lambda _: number
        elif ensure is not None:
            self._find, self._ensure = scope, ensure
        else:
            msg = "BlobStore with a scope function needs ensure= to create the scope on a write"
            raise InternalError(msg)

    def put(self, payload: bytes | IO[bytes]) -> str:
        """Store bytes, or a binary file from its current position on; the address.

        Equal content is stored once, and one ``delete`` removes it. A file is read twice (one
        that cannot seek goes through a temporary file) and never held in memory as a whole; but
        where content is redacted or judged, all that is text is held in memory.

        Raises:
            InvalidOptionError: neither bytes nor a binary file, or the file changed meanwhile.
            InvalidItemError: above ``BLOB_BYTES_MAX``.
            BlockedError: a guard refuses it.
            StoreLockedError: ``collect`` took the staged rows away again and again.
        """
        if not (isinstance(payload, (bytes, bytearray, memoryview)) or hasattr(payload, "read")):
            msg = f"a blob is bytes or a binary file object, got {type(payload).__name__}"
            raise InvalidOptionError(msg)
        with self._opened(payload) as source:
            address = f"sha256:{source.sha256.hex()}"
            if self._lookup(address) is None:
                self._put_source(source)
            return address

    def _opened(self, payload: object) -> AbstractContextManager[Source]:
        """The content as it may be stored."""
        if self._passage is not None:
            payload = admitted(self._passage, payload)
        return opened(payload, self._seed, exported=True)

    def _put_source(self, source: Source) -> None:
        if source.size <= BLOB_INLINE_COMMIT_BYTES_MAX:
            payload = b"".join(source.pieces())
            if xxh3_128_digest(payload, seed=self._seed) != source.digest:
                raise changed()
            self._store.transact(lambda txn: self._put_small(txn, payload, source.sha256))
            return
        scope = self._store.read(self._find)
        number = self._store.transact(self._ensure) if scope is None else scope

        def closure(txn: Txn, ref: BlobRef) -> None:
            key = self._address(number, source.sha256)
            if txn.get(key) is None:
                acquire(txn, number, ref)
                txn.put(key, seal_value(key, ref.pack()))

        refer_source(self._store, number, source, closure)

    def _put_small(self, txn: Txn, payload: bytes, sha256: bytes) -> None:
        scope = self._ensure(txn)
        key = self._address(scope, sha256)
        if txn.get(key) is None:
            ref = write(txn, scope, payload, seed=self._seed)
            try:
                acquire(txn, scope, ref)
            except StagedBlobLost as lost:  # written a moment ago: only a bent tree hides it
                raise CorruptStoreError(
                    "a blob cannot be found behind its own writing: the file is damaged; close the"
                    " store and run check on a copy"
                ) from lost
            txn.put(key, seal_value(key, ref.pack()))

    def get(self, address: str) -> bytes:
        """The content.

        Raises:
            InvalidOptionError: not an address.
            NotFoundError: no such blob in the scope.
            CorruptValueError: a stored row is damaged.
        """
        sha256 = _parse_address(address)

        def closure(txn: ReadTxn) -> bytes:
            scope, ref = self._resolve(txn, sha256) or _unknown(address)
            return read(txn, scope, ref)

        return self._store.read(closure)

    def open(self, address: str) -> Iterator[bytes]:
        """The content in chunks; one short read each, so a slow consumer holds nothing up.

        Raises:
            InvalidOptionError: not an address.
            NotFoundError: no such blob (at once), or it was deleted meanwhile (between chunks).
            CorruptValueError: a stored row is damaged.
        """
        scope, ref = self._lookup(address) or _unknown(address)
        return stream(self._store, scope, ref)

    def size(self, address: str) -> int:
        """Bytes of the content; raises what ``get`` raises."""
        return (self._lookup(address) or _unknown(address))[1].size

    def delete(self, address: str) -> bool:
        """Take the address away; whether it was there.

        The bytes go with the last reference: an item or a checkpoint may still hold one.

        Raises:
            InvalidOptionError: not an address.
        """
        sha256 = _parse_address(address)

        def closure(txn: Txn) -> tuple[int, BlobRef] | None:
            found = self._resolve(txn, sha256)
            if found is not None:
                release(txn, *found)
                txn.delete(self._address(found[0], sha256))
            return found

        found = self._store.transact(closure, makes_room=True)
        if found is not None:
            finish(self._store, found[0], slot_of(found[1]))
        return found is not None

    def collect(self) -> int:
        """Remove blobs of this scope that nothing refers to; how many."""
        scope = self._store.read(self._find)
        return 0 if scope is None else collect(self._store, scope)

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            return False
        return self._lookup(address) is not None

    def _address(self, scope: int, sha256: bytes) -> bytes:
        """The key of an address. In an encrypted database it confirms no guess of the content."""
        vault = self._store.vault
        if vault is not None:
            sha256 = blake2b(sha256, key=vault.seed, digest_size=len(sha256)).digest()
        return keys.scoped(Kind.BLOB_ADDRESS, scope, sha256)

    def _lookup(self, address: str) -> tuple[int, BlobRef] | None:
        sha256 = _parse_address(address)
        return self._store.read(lambda txn: self._resolve(txn, sha256))

    def _resolve(self, txn: ReadTxn, sha256: bytes) -> tuple[int, BlobRef] | None:
        scope = self._find(txn)
        if scope is None:
            return None
        key = self._address(scope, sha256)
        value = txn.get(key)
        return None if value is None else (scope, BlobRef.unpack(open_value(key, value)[1]))


def _parse_address(address: object) -> bytes:
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        msg = f"{address!r:.100} is no blob address: expected 'sha256:' and 64 lower-case hex"
        raise InvalidOptionError(msg)
    return bytes.fromhex(address[7:])


def _unknown(address: str) -> tuple[int, BlobRef]:
    msg = f"no blob {address} in this scope: it was deleted or never put here"
    raise NotFoundError(msg)
