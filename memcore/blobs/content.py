"""Writing, counting and reading blobs inside the referrer's transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from xxhash import xxh3_128_digest

from memcore import keys
from memcore.blobs.removal import discard, removal_of
from memcore.blobs.rows import (
    COMPLETE,
    DISAMBIGUATORS,
    BlobRef,
    Header,
    StagedBlobLost,
    chunk_count,
    chunk_of,
    complete,
    crowded,
    header_of,
    put_chunk,
    put_header,
    references,
    slot_of,
)
from memcore.blobs.sources import check_size, slices
from memcore.codec import seal_value
from memcore.errors import CorruptValueError, NotFoundError
from memcore.keys import Kind
from memcore.store.base import ReadTxn, Store, Txn

__all__ = ["acquire", "exists", "let_go", "read", "release", "stream", "write"]


def write(txn: Txn, scope: int, payload: bytes, *, seed: int) -> BlobRef:
    """Store ``payload`` unless the scope holds it already. The caller then calls ``acquire``.

    For payloads up to ``BLOB_INLINE_COMMIT_BYTES_MAX``; larger ones go through ``refer``.

    Raises:
        InvalidItemError: above ``BLOB_BYTES_MAX``.
        InternalError: every disambiguator of the digest is taken.
    """
    check_size(len(payload))
    digest = xxh3_128_digest(payload, seed=seed)
    for disambiguator in range(DISAMBIGUATORS):
        ref = BlobRef(digest, disambiguator, len(payload))
        slot = slot_of(ref)
        # A damaged row is never deduplicated against: the slot counts as taken by other content.
        with suppress(CorruptValueError):
            if header_of(txn, scope, slot) is None:
                for number, piece in enumerate(slices(payload)):
                    put_chunk(txn, scope, slot, number, piece)
                put_header(txn, scope, slot, Header(COMPLETE, ref.size, os.urandom(8)))
                return ref
            if complete(txn, scope, ref) and _equals(txn, scope, ref, payload):
                return ref
    raise crowded(digest, scope)


def _equals(txn: ReadTxn, scope: int, ref: BlobRef, payload: bytes) -> bool:
    return all(
        chunk_of(txn, scope, ref, number) == piece for number, piece in enumerate(slices(payload))
    )


def acquire(txn: Txn, scope: int, ref: BlobRef) -> int:
    """Count one more reference, in the transaction that writes the referrer; the new count.

    To replace a reference, acquire the new one before the old one is released.

    Raises:
        StagedBlobLost: the blob is not there (any more): stage it again.
    """
    if complete(txn, scope, ref) is None:
        msg = f"the staged blob {ref.digest.hex()} is gone from scope {scope}: stage it again"
        raise StagedBlobLost(msg)
    return _set_references(txn, scope, slot_of(ref), references(txn, scope, slot_of(ref)) + 1)


def release(txn: Txn, scope: int, ref: BlobRef) -> int:
    """Count one reference less, in the transaction that removes the referrer; the new count.

    At 0 the blob is gone. The rows of a large one leave a piece at a time: ``finish`` goes on after
    the commit, else whoever deletes something next.

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
    """As ``release``, where a damaged count is nobody's concern; the rows to go on with.

    That is the ``REMOVAL`` row of the blob, if rows of it are still to go.
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
    """Whether the blob is completely stored in this snapshot."""
    return complete(txn, scope, ref) is not None


def _vanished(ref: BlobRef, scope: int) -> NotFoundError:
    return NotFoundError(
        f"the blob {ref.digest.hex()} ({ref.size} bytes) is not in scope {scope}: it was deleted "
        "or never stored; put it again"
    )


def read(txn: ReadTxn, scope: int, ref: BlobRef) -> bytes:
    """The whole content.

    Raises:
        NotFoundError: no such blob in the scope.
        CorruptValueError: a chunk is missing or damaged.
    """
    if not exists(txn, scope, ref):
        raise _vanished(ref, scope)
    return b"".join(chunk_of(txn, scope, ref, n) for n in range(chunk_count(ref.size)))


def stream(store: Store, scope: int, ref: BlobRef) -> Iterator[bytes]:
    """The content chunk by chunk, one short read transaction each.

    Raises:
        NotFoundError: no such blob, or it was deleted (even if stored anew) between two chunks.
        CorruptValueError: a chunk is missing or damaged.
    """
    first = store.read(lambda txn: complete(txn, scope, ref))
    if first is None:
        raise _vanished(ref, scope)
    for number in range(chunk_count(ref.size)):
        yield store.read(lambda txn, n=number: _streamed(txn, scope, ref, n, first))  # type: ignore[misc]


def _streamed(txn: ReadTxn, scope: int, ref: BlobRef, number: int, first: Header) -> bytes:
    if complete(txn, scope, ref) != first:
        raise _vanished(ref, scope)
    return chunk_of(txn, scope, ref, number)
