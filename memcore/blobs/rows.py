"""Rows of a blob: references, header, chunks, reference counts; reading and removal."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

from xxhash import xxh3_128, xxh3_128_digest

from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import open_number, open_value, seal_value
from memcore.errors import (
    CorruptValueError,
    InternalError,
    InvalidItemError,
    InvalidOptionError,
    MemcoreError,
    NotFoundError,
)
from memcore.limits import BLOB_BYTES_MAX, BLOB_CHUNK_BYTES, BLOB_CHUNKS_PIECE, PAGE_BYTES
from memcore.records import record
from memcore.store.interface import ReadTxn, Store, Txn

__all__ = [
    "BlobHeader",
    "BlobRef",
    "BlobSource",
    "StagedBlobLost",
    "acquire",
    "discard",
    "exists",
    "finish",
    "finish_leaving",
    "let_go",
    "opened",
    "pages_of",
    "read",
    "rechunked",
    "release",
    "removal_of",
    "slices",
    "stream",
    "write",
]


# --- References, headers, chunks and counts: the rows of one blob ---------------------------------

_REF = Struct(">16sBQ")
_HEADER = Struct(">BQ8s")
SLOT_BYTES: Final = 17
STAGING: Final = 0
COMPLETE: Final = 1
DISAMBIGUATORS: Final = 256


class StagedBlobLost(InternalError):  # noqa: N818 - a signal between our own layers
    """A staged blob was removed before its referrer committed; ``refer`` stages it again."""


@record(frozen=True, slots=True)
class BlobRef:
    """Reference to a blob, stored in the referrer in place of the content: 25 bytes packed."""

    digest: bytes
    disambiguator: int
    size: int

    def pack(self) -> bytes:
        """``digest 16 | disambiguator u8 | size u64``."""
        return _REF.pack(self.digest, self.disambiguator, self.size)

    @classmethod
    def unpack(cls, packed: bytes) -> BlobRef:
        """Decode a reference encoded by ``pack``.

        Raises:
            CorruptValueError: it is not 25 bytes.
        """
        if len(packed) != _REF.size:
            msg = f"a blob reference has {_REF.size} bytes, got {len(packed)}; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        return cls(*_REF.unpack(packed))


@record(frozen=True, slots=True)
class BlobHeader:
    """Fields of a header row; ``token`` identifies the writer that staged the slot."""

    state: int
    size: int
    token: bytes


_CHUNKS_AHEAD: Final = 64
"""Chunks that are announced to a server at once."""


def slot_of(ref: BlobRef) -> bytes:
    """``digest 16 | disambiguator u8``."""
    return ref.pack()[:SLOT_BYTES]


def chunk_range(scope: int, slot: bytes) -> tuple[bytes, bytes]:
    """Key range of all chunks of a slot."""
    prefix = keys.scoped(Kind.BLOB_CHUNK, scope, slot)
    return prefix, keys.after(prefix)


def chunk_count(size: int) -> int:
    """Number of chunks of a content of ``size`` bytes."""
    return -(-size // BLOB_CHUNK_BYTES)


def header_of(txn: ReadTxn, scope: int, slot: bytes) -> BlobHeader | None:
    """The header of the slot in any state, staging or complete; None if the slot is free."""
    key = keys.scoped(Kind.BLOB, scope, slot)
    value = txn.get(key)
    return None if value is None else unpack_header(key, open_value(key, value)[1])


def unpack_header(key: bytes, body: bytes) -> BlobHeader:
    """Decode the body of a header row."""
    if len(body) != _HEADER.size:
        msg = f"the blob header under key {key.hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return BlobHeader(*_HEADER.unpack(body))


def put_header(txn: Txn, scope: int, slot: bytes, header: BlobHeader) -> None:
    """Write the header of the slot."""
    key = keys.scoped(Kind.BLOB, scope, slot)
    txn.put(key, seal_value(key, _HEADER.pack(header.state, header.size, header.token)))


def chunk_of(txn: ReadTxn, scope: int, ref: BlobRef, number: int) -> bytes:
    """Read one chunk of a blob whose header exists.

    Raises:
        CorruptValueError: the chunk is missing, damaged or has the wrong length.
    """
    key = keys.blob_chunk(scope, slot_of(ref), number)
    value = txn.get(key)
    if value is not None:
        body = open_value(key, value)[1]
        if len(body) == min(BLOB_CHUNK_BYTES, ref.size - number * BLOB_CHUNK_BYTES):
            return body
    msg = (
        f"chunk {number} of the blob {ref.digest.hex()} ({ref.size} bytes) in scope {scope} is "
        "missing or has a wrong length; run 'memcore check' and restore from a backup"
    )
    raise CorruptValueError(msg, key=key)


def chunks_of(txn: ReadTxn, scope: int, ref: BlobRef) -> Iterator[bytes]:
    """Read the chunks of a blob whose header exists, in order.

    Raises:
        CorruptValueError: as for ``chunk_of``.
    """
    slot, count = slot_of(ref), chunk_count(ref.size)
    for number in range(count):
        if txn.is_remote and number % _CHUNKS_AHEAD == 0:
            following = range(number, min(number + _CHUNKS_AHEAD, count))
            txn.prefetch([keys.blob_chunk(scope, slot, each) for each in following])
        yield chunk_of(txn, scope, ref, number)


def put_chunk(txn: Txn, scope: int, slot: bytes, number: int, piece: bytes) -> None:
    """Write one chunk."""
    key = keys.blob_chunk(scope, slot, number)
    txn.put(key, seal_value(key, piece))


def references(txn: ReadTxn, scope: int, slot: bytes) -> int:
    """The reference count of the blob."""
    key = keys.scoped(Kind.BLOB_REFS, scope, slot)
    value = txn.get(key)
    return 0 if value is None else open_number(key, value)


def complete(txn: ReadTxn, scope: int, ref: BlobRef) -> BlobHeader | None:
    """The header if the slot holds a complete blob of the reference's size, else None."""
    header = header_of(txn, scope, slot_of(ref))
    if header is None or header.state != COMPLETE or header.size != ref.size:
        return None
    return header


def is_free(txn: ReadTxn, scope: int, slot: bytes) -> bool:
    """Return whether the slot has no header, so that a new blob can take it."""
    return txn.get(keys.scoped(Kind.BLOB, scope, slot)) is None


def crowded(digest: bytes, scope: int) -> InternalError:
    """Build the error for a digest whose slots are all taken."""
    return InternalError(
        f"all {DISAMBIGUATORS} slots of the digest {digest.hex()} in scope {scope} hold other "
        "content; run 'memcore check' and report it"
    )


# --- Piecewise removal of the rows of a blob that nothing refers to -------------------------------
# A small blob is removed in one transaction. For a larger one, the first piece is removed and the
# header is reset to ``STAGING`` under a new token: every reader finds the blob gone, its slot stays
# taken, and a stager that wrote it finds its token missing. A ``REMOVAL`` row marks the rest for
# removal.

_ROW_PAGES = 8
"""Approximate pages of header, reference count and chunk rows, besides the chunks' own pages."""


def removal_of(scope: int, slot: bytes) -> bytes:
    """Key of the ``REMOVAL`` row that marks a removal of the slot as unfinished."""
    return keys.removal_row(chunk_range(scope, slot)[0])


def pages_of(size: int) -> int:
    """Maximum number of pages that ``discard`` frees in its caller's transaction."""
    chunks = min(chunk_count(size), BLOB_CHUNKS_PIECE)
    return _ROW_PAGES + chunks * (BLOB_CHUNK_BYTES // PAGE_BYTES + 1)


def discard(txn: Txn, scope: int, slot: bytes) -> bool:
    """Remove the slot's rows, or the first piece of a large blob's; returns whether all are gone.

    The blob must have no references. If False, a ``REMOVAL`` row is written, and the caller has to
    call ``finish`` after its commit.
    """
    start, stop = chunk_range(scope, slot)
    marker = removal_of(scope, slot)
    first = next(iter(txn.scan(start, stop, limit=1)), None)
    if first is not None:
        number = int.from_bytes(first[0][-4:], "big") + BLOB_CHUNKS_PIECE
        txn.delete_range(start, min(stop, keys.blob_chunk(scope, slot, number)))
    if any(True for _ in txn.scan(start, stop, limit=1)):
        if txn.get(marker) is None:
            put_header(txn, scope, slot, BlobHeader(STAGING, 0, os.urandom(8)))
            txn.put(marker, seal_value(marker, b""))
        return False
    txn.delete(keys.scoped(Kind.BLOB, scope, slot))
    txn.delete(marker)
    return True


def finish(store: Store, scope: int, slot: bytes) -> None:
    """Continue an unfinished removal of a slot until all its rows are removed."""
    marker = removal_of(scope, slot)

    def piece(txn: Txn) -> bool:
        return txn.get(marker) is None or discard(txn, scope, slot)

    if store.read(lambda txn: txn.get(marker)) is not None:
        while not store.transact(piece, makes_room=True):
            pass


def finish_leaving(store: Store, rows: Iterable[bytes]) -> None:
    """Finish, after the commit, the removals that ``let_go`` returned.

    Errors are suppressed: the caller's work is committed, and a removal that fails here is resumed
    by a later deletion.
    """
    with suppress(MemcoreError):
        for row in rows:
            finish(store, *keys.split_scoped(keys.split_removal_row(row)))


# --- Content to be stored: measured in a first pass, written in a second --------------------------

_SPOOL_BYTES: Final = 4 * 1024**2


@record(frozen=True, slots=True)
class BlobSource:
    """Content that can be read repeatedly without being held in memory."""

    size: int
    digest: bytes
    sha256: bytes
    seed: int
    pieces: Callable[[], Iterator[bytes]]


def check_size(size: int) -> None:
    """Reject more bytes than a blob may hold.

    Raises:
        InvalidItemError: the size is above ``BLOB_BYTES_MAX``.
    """
    if size > BLOB_BYTES_MAX:
        msg = f"a blob holds at most {BLOB_BYTES_MAX} bytes, got {size} or more; split it"
        raise InvalidItemError(msg)


def slices(payload: bytes) -> Iterator[bytes]:
    """Split the payload into chunks."""
    return (
        payload[start : start + BLOB_CHUNK_BYTES]
        for start in range(0, len(payload), BLOB_CHUNK_BYTES)
    )


def file_pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a binary file piece by piece.

    Raises:
        InvalidOptionError: it does not return bytes.
    """
    while True:
        piece: object = file.read(BLOB_CHUNK_BYTES)
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            msg = (
                f"read() of the file object returned {type(piece).__name__}: expected bytes; open "
                "the file in binary, blocking mode"
            )
            raise InvalidOptionError(msg)
        if not piece:
            return
        yield bytes(piece)


def rechunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup pieces into ``BLOB_CHUNK_BYTES`` each (a raw file or a socket may read short)."""
    held = bytearray()
    for piece in pieces:
        if not held and len(piece) == BLOB_CHUNK_BYTES:
            yield piece
            continue
        held += piece
        while len(held) >= BLOB_CHUNK_BYTES:
            yield bytes(held[:BLOB_CHUNK_BYTES])
            del held[:BLOB_CHUNK_BYTES]
    if held:
        yield bytes(held)


def _measured(pieces: Callable[[], Iterator[bytes]], seed: int, *, exported: bool) -> BlobSource:
    """Read the content once for its size and digests; sha256 only if the address is exported."""
    digest, sha256, size = xxh3_128(seed=seed), hashlib.sha256(), 0
    for piece in pieces():
        size += len(piece)
        check_size(size)
        digest.update(piece)
        if exported:
            sha256.update(piece)
    return BlobSource(size, digest.digest(), sha256.digest(), seed, pieces)


@contextmanager
def opened(payload: object, seed: int, *, exported: bool) -> Iterator[BlobSource]:
    """Open a source over bytes, a binary file from its current position, or an iterable of bytes.

    Content that cannot be read twice is spooled: to memory if small, else to a temporary file.

    Raises:
        InvalidOptionError: it is none of these.
        InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        content = bytes(payload)
        yield _measured(lambda: slices(content), seed, exported=exported)
        return
    file: Any = payload
    if hasattr(payload, "read"):
        if hasattr(payload, "seekable") and file.seekable():
            start = file.tell()
            yield _measured(lambda: _replayed(file, start), seed, exported=exported)
            return
        arriving: Iterable[bytes] = file_pieces(file)
    elif isinstance(payload, Iterable) and not isinstance(payload, str):
        arriving = _checked_pieces(payload)
    else:
        msg = f"a blob is bytes or a binary file object, got {type(payload).__name__}"
        raise InvalidOptionError(msg)
    with SpooledTemporaryFile(_SPOOL_BYTES) as spool:
        size = 0
        for piece in arriving:
            size += len(piece)
            check_size(size)
            spool.write(piece)
        yield _measured(lambda: _replayed(spool, 0), seed, exported=exported)


def _replayed(file: Any, start: int) -> Iterator[bytes]:
    file.seek(start)
    return file_pieces(file)


def _checked_pieces(pieces: Iterable[object]) -> Iterator[bytes]:
    for piece in pieces:
        if not isinstance(piece, (bytes, bytearray, memoryview)):
            msg = f"a blob's pieces are bytes, got {type(piece).__name__}"
            raise InvalidOptionError(msg)
        yield bytes(piece)


def changed() -> InvalidOptionError:
    """Build the error for a file that differed when it was read again."""
    return InvalidOptionError("the file object changed while it was read twice: put a copy of it")


# --- Writing, counting and reading blobs inside the referrer's transaction ------------------------


def write(txn: Txn, scope: int, payload: bytes, *, seed: int) -> BlobRef:
    """Store ``payload`` unless the scope already holds it. The caller then calls ``acquire``.

    For payloads up to ``BLOB_INLINE_COMMIT_BYTES_MAX``; larger ones go through ``refer``.

    Raises:
        InvalidItemError: the payload is larger than ``BLOB_BYTES_MAX``.
        InternalError: every disambiguator of the digest is taken.
    """
    check_size(len(payload))
    digest = xxh3_128_digest(payload, seed=seed)
    for disambiguator in range(DISAMBIGUATORS):
        ref = BlobRef(digest, disambiguator, len(payload))
        slot = slot_of(ref)
        # Never deduplicate against a damaged row: its slot counts as taken by other content.
        with suppress(CorruptValueError):
            if header_of(txn, scope, slot) is None:
                for number, piece in enumerate(slices(payload)):
                    put_chunk(txn, scope, slot, number, piece)
                put_header(txn, scope, slot, BlobHeader(COMPLETE, ref.size, os.urandom(8)))
                return ref
            if complete(txn, scope, ref) and _equals(txn, scope, ref, payload):
                return ref
    raise crowded(digest, scope)


def _equals(txn: ReadTxn, scope: int, ref: BlobRef, payload: bytes) -> bool:
    return all(
        chunk == piece
        for chunk, piece in zip(chunks_of(txn, scope, ref), slices(payload), strict=True)
    )


def acquire(txn: Txn, scope: int, ref: BlobRef) -> int:
    """Increment the reference count, in the transaction that writes the referrer.

    Returns the new count.

    Raises:
        StagedBlobLost: the blob no longer exists: stage it again.
    """
    if complete(txn, scope, ref) is None:
        msg = f"the staged blob {ref.digest.hex()} is gone from scope {scope}: stage it again"
        raise StagedBlobLost(msg)
    return _set_references(txn, scope, slot_of(ref), references(txn, scope, slot_of(ref)) + 1)


def release(txn: Txn, scope: int, ref: BlobRef) -> int:
    """Decrement the reference count, in the transaction that removes the referrer.

    Returns the new count. At 0 the blob is removed; a large one piecewise: ``finish`` removes the
    rest after the commit, or else a later deletion does.

    Raises:
        CorruptValueError: the blob had no reference.
    """
    slot = slot_of(ref)
    count = references(txn, scope, slot)
    if count == 0:
        msg = (
            f"the blob {ref.digest.hex()} in scope {scope} was released more often than acquired: "
            "its reference count is damaged; run 'memcore check'"
        )
        raise CorruptValueError(msg, key=keys.scoped(Kind.BLOB_REFS, scope, slot))
    if count == 1:
        discard(txn, scope, slot)
    return _set_references(txn, scope, slot, count - 1)


def let_go(txn: Txn, scope: int, ref: BlobRef) -> list[bytes]:
    """As ``release``, but ignores a damaged count; returns the removals to finish after the commit.

    The list holds the key of the blob's ``REMOVAL`` row if some of its rows remain, else it is
    empty.
    """
    slot = slot_of(ref)
    with suppress(CorruptValueError):  # check() reports it
        if references(txn, scope, slot):
            release(txn, scope, ref)
    row = removal_of(scope, slot)
    return [] if txn.get(row) is None else [row]


def _set_references(txn: Txn, scope: int, slot: bytes, count: int) -> int:
    key = keys.scoped(Kind.BLOB_REFS, scope, slot)
    if count:
        txn.put(key, seal_value(key, keys.u64(count)))
    else:
        txn.delete(key)
    return count


def exists(txn: ReadTxn, scope: int, ref: BlobRef) -> bool:
    """Return whether the blob is complete in this snapshot."""
    return complete(txn, scope, ref) is not None


def _vanished(ref: BlobRef, scope: int) -> NotFoundError:
    return NotFoundError(
        f"the blob {ref.digest.hex()} ({ref.size} bytes) is not in scope {scope}: it was deleted "
        "or never stored; put it again"
    )


def read(txn: ReadTxn, scope: int, ref: BlobRef) -> bytes:
    """Read the whole content.

    Raises:
        NotFoundError: no such blob in the scope.
        CorruptValueError: a chunk is missing or damaged.
    """
    if not exists(txn, scope, ref):
        raise _vanished(ref, scope)
    return b"".join(chunks_of(txn, scope, ref))


def stream(store: Store, scope: int, ref: BlobRef) -> Iterator[bytes]:
    """Yield the content chunk by chunk, in one short read transaction each.

    Raises:
        NotFoundError: no such blob, or deleted (even if stored again) between two chunks.
        CorruptValueError: a chunk is missing or damaged.
    """
    first = store.read(lambda txn: complete(txn, scope, ref))
    if first is None:
        raise _vanished(ref, scope)
    for number in range(chunk_count(ref.size)):
        yield store.read(lambda txn, n=number: _streamed(txn, scope, ref, n, first))  # type: ignore[misc]


def _streamed(txn: ReadTxn, scope: int, ref: BlobRef, number: int, first: BlobHeader) -> bytes:
    if complete(txn, scope, ref) != first:
        raise _vanished(ref, scope)
    return chunk_of(txn, scope, ref, number)
