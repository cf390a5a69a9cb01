"""References, headers, chunks and counts: the rows of one blob."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from memcore import keys
from memcore.codec import open_number, open_value, seal_value
from memcore.errors import CorruptValueError, InternalError
from memcore.keys import Kind
from memcore.limits import BLOB_CHUNK_BYTES
from memcore.store.base import ReadTxn, Txn

__all__ = ["BlobRef", "Header", "StagedBlobLost"]

_REF = Struct(">16sBQ")
_HEADER = Struct(">BQ8s")
SLOT_BYTES: Final = 17
STAGING: Final = 0
COMPLETE: Final = 1
DISAMBIGUATORS: Final = 256


class StagedBlobLost(InternalError):  # noqa: N818 - a signal between our own layers
    """A staged blob vanished before its referrer committed: stage it again (``refer`` does)."""


@dataclass(frozen=True, slots=True)
class BlobRef:
    """What a referrer stores in place of the content: 25 bytes."""

    digest: bytes
    disambiguator: int
    size: int

    def pack(self) -> bytes:
        """``digest 16 | disambiguator u8 | size u64``."""
        return _REF.pack(self.digest, self.disambiguator, self.size)

    @classmethod
    def unpack(cls, packed: bytes) -> BlobRef:
        """The reference that ``pack`` wrote.

        Raises:
            CorruptValueError: not 25 bytes.
        """
        if len(packed) != _REF.size:
            msg = f"a blob reference has {_REF.size} bytes, got {len(packed)}; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        return cls(*_REF.unpack(packed))


@dataclass(frozen=True, slots=True)
class Header:
    """What a header row says; ``token`` tells one writing of the slot from another."""

    state: int
    size: int
    token: bytes


def slot_of(ref: BlobRef) -> bytes:
    """``digest 16 | disambiguator u8``."""
    return ref.pack()[:SLOT_BYTES]


def chunk_range(scope: int, slot: bytes) -> tuple[bytes, bytes]:
    """The key range of all chunks of a slot."""
    prefix = keys.scoped(Kind.BLOB_CHUNK, scope, slot)
    return prefix, keys.after(prefix)


def chunk_count(size: int) -> int:
    """How many chunks hold that many bytes."""
    return -(-size // BLOB_CHUNK_BYTES)


def header_of(txn: ReadTxn, scope: int, slot: bytes) -> Header | None:
    """The header of the slot, whatever its state."""
    key = keys.scoped(Kind.BLOB, scope, slot)
    value = txn.get(key)
    return None if value is None else unpack_header(key, open_value(key, value)[1])


def unpack_header(key: bytes, body: bytes) -> Header:
    """The header of a header row's body."""
    if len(body) != _HEADER.size:
        msg = f"the blob header under key {key.hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return Header(*_HEADER.unpack(body))


def put_header(txn: Txn, scope: int, slot: bytes, header: Header) -> None:
    """Write the header of the slot."""
    key = keys.scoped(Kind.BLOB, scope, slot)
    txn.put(key, seal_value(key, _HEADER.pack(header.state, header.size, header.token)))


def chunk_of(txn: ReadTxn, scope: int, ref: BlobRef, number: int) -> bytes:
    """One chunk of a blob whose header is there.

    Raises:
        CorruptValueError: the chunk is missing, damaged or of a wrong length.
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


def put_chunk(txn: Txn, scope: int, slot: bytes, number: int, piece: bytes) -> None:
    """Write one chunk."""
    key = keys.blob_chunk(scope, slot, number)
    txn.put(key, seal_value(key, piece))


def references(txn: ReadTxn, scope: int, slot: bytes) -> int:
    """How many rows refer to the blob."""
    key = keys.scoped(Kind.BLOB_REFS, scope, slot)
    value = txn.get(key)
    return 0 if value is None else open_number(key, value)


def complete(txn: ReadTxn, scope: int, ref: BlobRef) -> Header | None:
    """The header if the slot holds a complete blob of that size."""
    header = header_of(txn, scope, slot_of(ref))
    if header is None or header.state != COMPLETE or header.size != ref.size:
        return None
    return header


def is_free(txn: ReadTxn, scope: int, slot: bytes) -> bool:
    """Whether nothing claims the slot."""
    return txn.get(keys.scoped(Kind.BLOB, scope, slot)) is None


def crowded(digest: bytes, scope: int) -> InternalError:
    """The error for a digest whose slots are all taken."""
    return InternalError(
        f"all {DISAMBIGUATORS} slots of the digest {digest.hex()} in scope {scope} hold other "
        "content; run 'memcore check' and report it"
    )
