"""The pool of chunks that the checkpoints of a thread share, and of the threads copied from it.

A chunk's id is a keyed hash of its content in clear, so equal parts are one row whoever writes
them, and an id that was read back proves the content. The key lies in the pool's own row, sealed as
all content is: under encryption nobody can tell from an id what a chunk holds.

Rows that nothing refers to any more leave with a sweep (``sweeping.py``). Each carries the *epoch*
of the pool in which it was written or last asked for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from hashlib import blake2b
from struct import Struct
from typing import Final

from memcore import keys
from memcore.checkpoint.coding import Coder, Typed
from memcore.checkpoint.nodes import ID_BYTES, pack_typed, unpack_typed
from memcore.codec import HEADER_BYTES, decoding, is_proven, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.store.base import ReadTxn, Txn

__all__ = ["Pool", "chunk_key", "id_of", "put_chunk", "read_chunk", "read_pool", "write_pool"]

_POOL: Final = Struct(">IIB")
_EPOCH: Final = Struct(">I")
_CHUNK_BYTES_MIN: Final = HEADER_BYTES + _EPOCH.size
KEY_BYTES: Final = 32
KEY: Final = "bytes"


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool's row says."""

    epoch: int
    """Grows with every sweep."""
    members: int
    """Threads whose checkpoints lie in it."""
    sweeping: bool
    """Whether a sweep is under way, or was cut short."""
    key: Typed
    """The sealed key of the ids."""

    def pack(self) -> bytes:
        """The row's body."""
        return _POOL.pack(self.epoch, self.members, self.sweeping) + pack_typed(*self.key)

    def swept(self, *, sweeping: bool) -> Pool:
        """At the begin of a sweep the next epoch, at its end the same."""
        return replace(self, epoch=self.epoch + sweeping, sweeping=sweeping)


def new_pool(coder: Coder) -> tuple[Pool, bytes]:
    """A pool of one thread, and its key in clear."""
    secret = os.urandom(KEY_BYTES)
    return Pool(1, 1, sweeping=False, key=coder.seal((KEY, secret))), secret


def key_of(pool: Pool, coder: Coder) -> bytes:
    """The key in clear.

    Raises:
        CorruptValueError: the pool is of another cipher, or was written without one.
    """
    kind, secret = coder.open(pool.key)
    if kind != KEY or len(secret) != KEY_BYTES:
        msg = (
            "the thread was stored with another serialiser or encryption key than this one: open "
            "it with the one that wrote it"
        )
        raise CorruptValueError(msg, key=b"")
    return secret


def read_pool(txn: ReadTxn, scope: int, pool: int) -> Pool | None:
    """The pool's row."""
    key = keys.chunk_prefix(scope, pool)
    value = txn.get(key)
    return None if value is None else unpack_pool(key, value)


def unpack_pool(key: bytes, value: bytes) -> Pool:
    """A pool's row.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "row of a pool"):
        epoch, members, sweeping = _POOL.unpack_from(body)
        return Pool(epoch, members, bool(sweeping), unpack_typed(body[_POOL.size :]))


def write_pool(txn: Txn, scope: int, pool: int, row: Pool) -> None:
    """Write the pool's row."""
    key = keys.chunk_prefix(scope, pool)
    txn.put(key, seal_value(key, row.pack()))


def id_of(secret: bytes, typed: Typed) -> bytes:
    """The id of a chunk: BLAKE2b-128 under the pool's key over type and content."""
    hashed = blake2b(pack_typed(typed[0], b""), digest_size=ID_BYTES, key=secret)
    hashed.update(typed[1])
    return hashed.digest()


def chunk_key(scope: int, pool: int, part: bytes) -> bytes:
    """``10 | scope | pool | id``."""
    return keys.chunk_prefix(scope, pool) + part


def put_chunk(txn: Txn, key: bytes, epoch: int, stored: Typed) -> None:
    """Write a chunk: ``epoch u32 | typed``."""
    txn.put(key, seal_value(key, _EPOCH.pack(epoch) + pack_typed(*stored)))


def is_stored(txn: ReadTxn, key: bytes) -> bool:
    """Whether the chunk is there; one that is damaged is not: whoever asks is about to write it."""
    value = txn.get(key)
    return value is not None and len(value) >= _CHUNK_BYTES_MIN and is_proven(key, value)


def touch_chunk(txn: Txn, key: bytes, epoch: int) -> bool:
    """Make a stored chunk one of this epoch, so that no sweep takes it; whether it is there."""
    value = txn.get(key)
    if value is None or not is_stored(txn, key):
        return False
    body = open_value(key, value)[1]
    if _EPOCH.unpack_from(body)[0] != epoch:
        txn.put(key, seal_value(key, _EPOCH.pack(epoch) + body[_EPOCH.size :]))
    return True


def epoch_of(key: bytes, value: bytes) -> int:
    """The epoch of a chunk's row."""
    return int.from_bytes(open_value(key, value)[1][: _EPOCH.size], "big")


def read_chunk(txn: ReadTxn, key: bytes) -> Typed:
    """What was stored.

    Raises:
        CorruptValueError: the chunk is missing or damaged.
    """
    value = txn.get(key)
    if value is None:
        msg = (
            f"the chunk {key.hex()} of a checkpoint is missing; run 'memcore check' and restore "
            "from a backup"
        )
        raise CorruptValueError(msg, key=key)
    return unpack_chunk(key, value)


def unpack_chunk(key: bytes, value: bytes) -> Typed:
    """What a chunk's row holds.

    Raises:
        CorruptValueError: it is damaged.
    """
    return unpack_typed(open_value(key, value)[1][_EPOCH.size :])
