"""Large blobs: chunks in transactions of their own, then the referrer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from xxhash import xxh3_128

from memcore.blobs.rows import (
    COMPLETE,
    DISAMBIGUATORS,
    STAGING,
    BlobHeader,
    BlobRef,
    Source,
    StagedBlobLost,
    changed,
    crowded,
    discard,
    exists,
    finish,
    header_of,
    is_free,
    opened,
    put_chunk,
    put_header,
    rechunked,
    references,
    slot_of,
    stream,
)
from memcore.errors import CorruptValueError, MemcoreError, NotFoundError, StoreLockedError
from memcore.rows.lifecycle import is_erased
from memcore.store.interface import Store, Txn

__all__ = [
    "refer",
    "refer_source",
    "stage",
    "unstage",
]


T = TypeVar("T")

_STAGE_CHUNKS: Final = 16
"""Chunks of one staging transaction: few flushes, and other writers wait a millisecond or two."""
_ATTEMPTS: Final = 8


def stage(store: Store, scope: int, payload: bytes | Iterable[bytes], *, seed: int) -> BlobRef:
    """Write a large blob in transactions of its own; it has no reference when this returns.

    The referring closure calls ``acquire``, which raises StagedBlobLost if the blob vanished in
    between. A crash on the way leaves rows that ``collect`` removes.

    Raises:
        InvalidOptionError: the payload is neither bytes nor an iterable of bytes.
        InvalidItemError: above ``BLOB_BYTES_MAX``.
        StoreLockedError: ``collect`` took the rows away again and again.
    """
    with opened(payload, seed, exported=False) as source:
        return _stage(store, scope, source)


def unstage(store: Store, scope: int, ref: BlobRef) -> None:
    """Remove a staged blob that nothing refers to; one with references stays.

    A writer that staged the same content meanwhile finds it missing and stages it again.
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
    """Stage ``payload``, then run ``closure(txn, ref)``; do both again if the blob vanished.

    The closure must ``acquire`` the reference. Raises what ``stage`` and ``closure`` raise.
    """
    with opened(payload, seed, exported=False) as source:
        return refer_source(store, scope, source, closure)


def refer_source(
    store: Store, scope: int, source: Source, closure: Callable[[Txn, BlobRef], T]
) -> T:
    """``refer`` for content that is open already."""
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


def _stage(store: Store, scope: int, source: Source) -> BlobRef:
    for _ in range(_ATTEMPTS):
        with suppress(StagedBlobLost):
            return _stage_once(store, scope, source)
    raise _starved(scope)


def _stage_once(store: Store, scope: int, source: Source) -> BlobRef:
    for disambiguator in range(DISAMBIGUATORS):
        ref = BlobRef(source.digest, disambiguator, source.size)
        if _fill(store, scope, ref, source) or _matches(store, scope, ref, source):
            return ref
    raise crowded(source.digest, scope)


def _matches(store: Store, scope: int, ref: BlobRef, source: Source) -> bool:
    """Return whether the slot holds exactly this content.

    Compares chunk by chunk, in short reads.
    """
    try:
        if not store.read(lambda txn: exists(txn, scope, ref)):  # empty content streams nothing
            return False
        held = stream(store, scope, ref)
        return all(next(held, None) == piece for piece in rechunked(source.pieces()))
    except (NotFoundError, CorruptValueError):
        return False


def _fill(store: Store, scope: int, ref: BlobRef, source: Source) -> bool:
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


def _batches(source: Source) -> Iterator[tuple[int, list[bytes], bool]]:
    """Yield ``(first chunk number, chunks, is the last batch)``; at least one batch.

    The content is hashed again on the way: a file that changed after it was measured is refused
    before the header can say complete.
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
