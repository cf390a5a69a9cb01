"""BlobStore: the user's handle for the blobs of one scope, and the check of their rows."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from hashlib import blake2b
from itertools import chain
from typing import IO, Any, Final, TypeVar

from xxhash import xxh3_128, xxh3_128_digest

from memcore.blobs.rows import (
    COMPLETE,
    DISAMBIGUATORS,
    SLOT_BYTES,
    STAGING,
    BlobHeader,
    BlobRef,
    BlobSource,
    StagedBlobLost,
    acquire,
    changed,
    check_size,
    chunk_count,
    chunk_of,
    chunk_range,
    crowded,
    discard,
    exists,
    file_pieces,
    finish,
    header_of,
    is_free,
    opened,
    pages_of,
    put_chunk,
    put_header,
    read,
    rechunked,
    references,
    release,
    slot_of,
    stream,
    write,
)
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import open_value, seal_value
from memcore.errors import (
    CorruptStoreError,
    CorruptValueError,
    InternalError,
    InvalidOptionError,
    MemcoreError,
    NotFoundError,
    StoreLockedError,
)
from memcore.limits import BLOB_BYTES_MAX, BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.options import refuse_copies
from memcore.privacy.write_filter import ScopeFilter
from memcore.rows.lifecycle import is_erased
from memcore.store.interface import DeleteBudget, ReadTxn, Store, Txn

__all__ = [
    "BlobStore",
    "admitted",
    "check",
    "collect",
    "refer",
    "refer_source",
    "stage",
    "unstage",
]


# --- Large blobs: chunks in separate transactions, then the referrer ------------------------------

T = TypeVar("T")

_STAGE_CHUNKS: Final = 16
"""Chunks per staging transaction: few flushes, and other writers wait a millisecond or two."""
_ATTEMPTS: Final = 8


def stage(store: Store, scope: int, payload: bytes | Iterable[bytes], *, seed: int) -> BlobRef:
    """Write a large blob in separate transactions; it has no reference when this returns.

    The referring closure calls ``acquire``, which raises StagedBlobLost if the blob has vanished in
    between. A crash in between leaves rows that ``collect`` removes.

    Raises:
        InvalidOptionError: the payload is neither bytes nor an iterable of bytes.
        InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
        StoreLockedError: ``collect`` removed the rows in every attempt.
    """
    with opened(payload, seed, exported=False) as source:
        return _stage(store, scope, source)


def unstage(store: Store, scope: int, ref: BlobRef) -> None:
    """Remove a staged blob unless something refers to it.

    A writer that staged the same content in the meantime finds it missing and stages it again.
    """

    def closure(txn: Txn) -> None:
        slot = slot_of(ref)
        if exists(txn, scope, ref) and not references(txn, scope, slot):
            discard(txn, scope, slot)

    store.transact(closure, makes_room=True)
    finish(store, scope, slot_of(ref))


def refer(
    store: Store,
    scope: int,
    payload: bytes | Iterable[bytes],
    closure: Callable[[Txn, BlobRef], T],
    *,
    seed: int,
) -> T:
    """Stage ``payload``, then run ``closure(txn, ref)``; repeat both if the blob vanished.

    The closure must ``acquire`` the reference. Raises what ``stage`` and ``closure`` raise.
    """
    with opened(payload, seed, exported=False) as source:
        return refer_source(store, scope, source, closure)


def refer_source(
    store: Store, scope: int, source: BlobSource, closure: Callable[[Txn, BlobRef], T]
) -> T:
    """As ``refer``, for content that is already open."""
    for _ in range(_ATTEMPTS):
        ref = _stage(store, scope, source)
        with suppress(StagedBlobLost):
            return store.transact(lambda txn, ref=ref: closure(txn, ref))  # type: ignore[misc]
    raise _starved(scope)


def _starved(scope: int) -> StoreLockedError:
    return StoreLockedError(
        f"a staged blob in scope {scope} was collected {_ATTEMPTS} times before it could be "
        "referred to; run collect() less often and try again"
    )


def _stage(store: Store, scope: int, source: BlobSource) -> BlobRef:
    for _ in range(_ATTEMPTS):
        with suppress(StagedBlobLost):
            return _stage_once(store, scope, source)
    raise _starved(scope)


def _stage_once(store: Store, scope: int, source: BlobSource) -> BlobRef:
    for disambiguator in range(DISAMBIGUATORS):
        ref = BlobRef(source.digest, disambiguator, source.size)
        if _fill(store, scope, ref, source) or _matches(store, scope, ref, source):
            return ref
    raise crowded(source.digest, scope)


def _matches(store: Store, scope: int, ref: BlobRef, source: BlobSource) -> bool:
    """Return whether the slot holds exactly this content, comparing chunks in short reads."""
    try:
        if not store.read(lambda txn: exists(txn, scope, ref)):  # empty content streams nothing
            return False
        held = stream(store, scope, ref)
        return all(next(held, None) == piece for piece in rechunked(source.pieces()))
    except (NotFoundError, CorruptValueError):
        return False


def _fill(store: Store, scope: int, ref: BlobRef, source: BlobSource) -> bool:
    """Claim a free slot and write the chunks; False if the slot is taken.

    Raises:
        StagedBlobLost: the rows were collected before the last one was written.
        InvalidOptionError: the content changed since it was measured.
    """
    token = os.urandom(8)
    if not store.read(lambda txn: is_free(txn, scope, slot_of(ref))):
        return False
    try:
        for first, batch, last in _batches(source):
            state = COMPLETE if last else STAGING
            header = BlobHeader(state, ref.size, token)
            if not store.transact(_stage_batch(scope, slot_of(ref), first, batch, header)):
                return False
    except BaseException:
        with suppress(MemcoreError):
            store.transact(lambda txn: _unstage(txn, scope, slot_of(ref), token), makes_room=True)
            finish(store, scope, slot_of(ref))
        raise
    return True


def _stage_batch(
    scope: int, slot: bytes, first: int, batch: list[bytes], header: BlobHeader
) -> Callable[[Txn], bool]:
    def closure(txn: Txn) -> bool:
        if is_erased(txn, scope):
            msg = "the user was erased while this was stored: store it again, for the new one"
            raise NotFoundError(msg)
        if first == 0:
            if not is_free(txn, scope, slot):
                return False
        else:
            held = header_of(txn, scope, slot)
            if held is None or held.token != header.token:
                msg = f"the rows of the staged blob {slot.hex()} were collected: stage it again"
                raise StagedBlobLost(msg)
        for number, piece in enumerate(batch, first):
            put_chunk(txn, scope, slot, number, piece)
        if first == 0 or header.state == COMPLETE:
            put_header(txn, scope, slot, header)
        return True

    return closure


def _batches(source: BlobSource) -> Iterator[tuple[int, list[bytes], bool]]:
    """Yield ``(first chunk number, chunks, is the last batch)``; at least one batch.

    The content is hashed again on the way: a file that changed after it was measured is rejected
    before the header is marked complete.
    """
    digest, size, first = xxh3_128(seed=source.seed), 0, 0
    batch: list[bytes] = []
    for piece in rechunked(source.pieces()):
        if len(batch) == _STAGE_CHUNKS:
            yield first, batch, False
            first, batch = first + len(batch), []
        digest.update(piece)
        size += len(piece)
        batch.append(piece)
        if size > source.size:
            break
    if (size, digest.digest()) != (source.size, source.digest):
        raise changed()
    yield first, batch, True


def _unstage(txn: Txn, scope: int, slot: bytes, token: bytes) -> None:
    header = header_of(txn, scope, slot)
    if header is not None and header.token == token and not references(txn, scope, slot):
        discard(txn, scope, slot)


# --- Content filter of blobs: text is held in memory, guarded and redacted ------------------------
# Content with NUL bytes is not text: it is stored unchanged, and never held entirely in memory.

_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks of text that contains NUL bytes."""


def admitted(scope_filter: ScopeFilter, payload: Any) -> bytes | Any:
    """Filter bytes or a binary file; returns redacted bytes, or a binary file's content unchanged.

    Raises:
        BlockedError: a guard refuses it.
        InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return scope_filter.bytes(bytes(payload), "blob")
    start = payload.tell() if hasattr(payload, "seekable") and payload.seekable() else None
    held: list[bytes] = []
    size = 0
    pieces = file_pieces(payload)
    for piece in pieces:
        size += len(piece)
        check_size(size)
        held.append(piece)
        if _is_binary(held[0], piece):
            scope_filter.judge(b"".join(held), "blob")
            if start is None:
                return chain(held, pieces)
            payload.seek(start)
            return payload
    return scope_filter.bytes(b"".join(held), "blob")


def _is_binary(first: bytes, piece: bytes) -> bool:
    return b"\0" in piece and not first.startswith(_WIDE)


# --- Removal of unreferenced blobs, and checks ----------------------------------------------------

_COLLECT_PAGE: Final = 256


def collect(store: Store, scope: int) -> int:
    """Remove blobs without references, including unfinished staging; returns their number.

    The reference count is read in the write transaction that deletes, so a blob that is acquired
    concurrently either keeps its rows, or its ``acquire`` fails and it is staged again.
    """
    removed = 0
    prefix = keys.scoped(Kind.BLOB, scope)
    start, stop = prefix, keys.after(prefix)
    while True:
        page = store.read(lambda txn, start=start: _unreferenced(txn, scope, start, stop))  # type: ignore[misc]
        seen, pieces = page
        for slots in pieces:
            reaped = store.transact(_reaping(scope, slots), makes_room=True)
            removed += len(reaped)
            for slot in reaped:
                finish(store, scope, slot)
        if seen is None:
            return removed
        start = seen + b"\x00"


def _unreferenced(
    txn: ReadTxn, scope: int, start: bytes, stop: bytes
) -> tuple[bytes | None, list[list[bytes]]]:
    """Return the last key of a full page (None: no more), and its unreferenced slots in pieces."""
    key, rows = None, 0
    pieces: list[list[bytes]] = [[]]
    piece = DeleteBudget()
    for key, _ in txn.scan(start, stop, limit=_COLLECT_PAGE):
        rows += 1
        slot = keys.split_scoped(key)[1]
        if not _is_idle(txn, scope, slot):
            continue
        if not piece.admits(0, more_pages=_pages_of(txn, scope, slot)):
            piece = DeleteBudget()
            pieces.append([])
        pieces[-1].append(slot)
    return (key if rows == _COLLECT_PAGE else None), [slots for slots in pieces if slots]


def _pages_of(txn: ReadTxn, scope: int, slot: bytes) -> int:
    with suppress(CorruptValueError):
        header = header_of(txn, scope, slot)
        if header is not None and header.state == COMPLETE:
            return pages_of(header.size)
    return pages_of(BLOB_BYTES_MAX)


def _is_idle(txn: ReadTxn, scope: int, slot: bytes) -> bool:
    # A damaged count does not count as 0: the row's presence protects the blob.
    return txn.get(keys.scoped(Kind.BLOB_REFS, scope, slot)) is None


def _reaping(scope: int, slots: list[bytes]) -> Callable[[Txn], list[bytes]]:
    def closure(txn: Txn) -> list[bytes]:
        idle = [slot for slot in slots if _is_idle(txn, scope, slot)]
        idle = [slot for slot in idle if not is_free(txn, scope, slot)]
        for slot in idle:
            discard(txn, scope, slot)
        return idle

    return closure


def check(txn: ReadTxn, scope: int) -> list[str]:
    """Check the blobs of a scope; returns a description of each finding.

    Blobs without a reference and unfinished staging are not findings: ``collect`` removes them.
    """
    findings: list[str] = []
    for slot in _slots(txn, Kind.BLOB, scope):
        findings += _check_blob(txn, scope, slot)
    for slot in _slots(txn, Kind.BLOB_CHUNK, scope):
        if is_free(txn, scope, slot):
            findings.append(f"scope {scope}: chunks of the blob {slot.hex()} have no header")
    for slot in _slots(txn, Kind.BLOB_REFS, scope):
        findings += _check_references(txn, scope, slot)
    prefix = keys.scoped(Kind.BLOB_ADDRESS, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        findings += _check_address(txn, scope, key, value)
    return findings


def _slots(txn: ReadTxn, kind: int, scope: int) -> Iterator[bytes]:
    """Yield the distinct slots under a kind, one seek each: chunk rows are skipped, not read."""
    prefix = keys.scoped(kind, scope)
    start, stop = prefix, keys.after(prefix)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        slot = keys.split_scoped(row[0])[1][:SLOT_BYTES]
        yield slot
        # Not keys.after(): for a slot of FF bytes it would be outside the scope.
        start = prefix + slot + b"\xff" * 5


def _check_blob(txn: ReadTxn, scope: int, slot: bytes) -> list[str]:
    where = f"scope {scope}: blob {slot.hex()}"
    try:
        header = header_of(txn, scope, slot)
    except CorruptValueError as error:
        return [f"{where}: header: {error}"]
    if header is None or header.state != COMPLETE:
        return []
    if header.size > BLOB_BYTES_MAX:
        return [f"{where}: its header says {header.size} bytes, more than a blob can have"]
    findings: list[str] = []
    ref = BlobRef(slot[:-1], slot[-1], header.size)
    for number in range(chunk_count(header.size)):
        try:
            chunk_of(txn, scope, ref, number)
        except CorruptValueError as error:
            findings.append(f"{where}: {error}")
    beyond = keys.blob_chunk(scope, slot, chunk_count(header.size))
    if any(txn.scan(beyond, chunk_range(scope, slot)[1], limit=1)):
        findings.append(f"{where}: has chunks beyond its size of {header.size} bytes")
    return findings


def _check_references(txn: ReadTxn, scope: int, slot: bytes) -> list[str]:
    where = f"scope {scope}: reference count of the blob {slot.hex()}"
    try:
        header, count = header_of(txn, scope, slot), references(txn, scope, slot)
    except CorruptValueError as error:
        return [f"{where}: {error}"]
    if header is None or header.state != COMPLETE:
        return [f"{where}: dangling, {count} references to a blob that is not stored"]
    return [] if count else [f"{where}: a count of 0 was kept"]


def _check_address(txn: ReadTxn, scope: int, key: bytes, value: bytes) -> list[str]:
    where = f"scope {scope}: blob address sha256:{keys.split_scoped(key)[1].hex()}"
    try:
        ref = BlobRef.unpack(open_value(key, value)[1])
        stored, count = exists(txn, scope, ref), references(txn, scope, slot_of(ref))
    except CorruptValueError as error:
        return [f"{where}: {error}"]
    if not stored:
        return [f"{where}: refers to a blob that is not stored"]
    return [] if count else [f"{where}: its reference is not counted"]


# --- The user's handle for the blobs of one scope -------------------------------------------------

_ADDRESS: Final = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class BlobStore:
    """Blobs of one scope under exported addresses ``"sha256:<hex>"``: the handle ``scope.blobs``.

    ``scope`` is the scope's number, or a function that looks it up in a snapshot; ``ensure`` then
    allocates the number with the first write. Reading never writes. ``label`` is what its repr
    shows.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        store: Store,
        scope: int | Callable[[ReadTxn], int | None],
        *,
        seed: int,
        ensure: Callable[[Txn], int] | None = None,
        scope_filter: ScopeFilter | None = None,
        label: str = "",
    ) -> None:
        self._scope_filter = scope_filter
        self._label = label
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

    def __repr__(self) -> str:
        return f"BlobStore({self._label})"

    def put(self, payload: bytes | IO[bytes]) -> str:
        """Store bytes, or a binary file from its current position on, and return the address.

        Equal content is stored once, and one ``delete`` removes it. A file is read twice (one that
        cannot seek goes through a temporary file) and is never held entirely in memory, except for
        text that is guarded or redacted.

        Raises:
            InvalidOptionError: neither bytes nor a binary file, or the file changed meanwhile.
            InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
            BlockedError: a guard refuses it.
            StoreLockedError: ``collect`` removed the staged rows in every attempt.
        """
        if not (isinstance(payload, (bytes, bytearray, memoryview)) or hasattr(payload, "read")):
            msg = f"a blob is bytes or a binary file object, got {type(payload).__name__}"
            raise InvalidOptionError(msg)
        with self._opened(payload) as source:
            address = f"sha256:{source.sha256.hex()}"
            if self._lookup(address) is None:
                self._put_source(source)
            return address

    def _opened(self, payload: object) -> AbstractContextManager[BlobSource]:
        """Open the content as it may be stored."""
        if self._scope_filter is not None:
            payload = admitted(self._scope_filter, payload)
        return opened(payload, self._seed, exported=True)

    def _put_source(self, source: BlobSource) -> None:
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
            except StagedBlobLost as lost:  # just written: only a corrupt tree hides it
                raise CorruptStoreError(
                    "a blob cannot be found behind its own writing: the file is damaged; close the"
                    " store and run check on a copy"
                ) from lost
            txn.put(key, seal_value(key, ref.pack()))

    def get(self, address: str) -> bytes:
        """Return the content.

        Raises:
            InvalidOptionError: it is not an address.
            NotFoundError: no such blob in the scope.
            CorruptValueError: a stored row is damaged.
        """
        sha256 = _parse_address(address)

        def closure(txn: ReadTxn) -> bytes:
            scope, ref = self._resolve(txn, sha256) or _unknown(address)
            return read(txn, scope, ref)

        return self._store.read(closure)

    def open(self, address: str) -> Iterator[bytes]:
        """Iterate over the content in chunks, one short read each, so that no writer is blocked.

        Raises:
            InvalidOptionError: it is not an address.
            NotFoundError: no such blob (immediately), or deleted meanwhile (between chunks).
            CorruptValueError: a stored row is damaged.
        """
        scope, ref = self._lookup(address) or _unknown(address)
        return stream(self._store, scope, ref)

    def size(self, address: str) -> int:
        """Return the size of the content in bytes; raises what ``get`` raises."""
        return (self._lookup(address) or _unknown(address))[1].size

    def delete(self, address: str) -> bool:
        """Remove the address; returns whether it existed.

        The content is removed with its last reference: an item or a checkpoint may still hold one.

        Raises:
            InvalidOptionError: it is not an address.
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
        """Remove the blobs of this scope without references; returns their number."""
        scope = self._store.read(self._find)
        return 0 if scope is None else collect(self._store, scope)

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            return False
        return self._lookup(address) is not None

    def _address(self, scope: int, sha256: bytes) -> bytes:
        """Key of an address; in an encrypted database it confirms no guess of the content."""
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
