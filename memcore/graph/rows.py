"""Rows of a graph thread: checkpoints, channel values, pending writes, the chunk pool."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from memcore._fast import chunk_row
from memcore.codec import keys
from memcore.codec.keys import Counter, Kind, ThreadRow
from memcore.codec.values import (
    FLAG_REWRITTEN,
    HEADER_BYTES,
    decoding,
    is_proven,
    open_value,
    seal_rewritten,
    seal_value,
)
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.graph.manifest import (
    ID_BYTES,
    Coder,
    NodeReader,
    Typed,
    pack_typed,
    text,
    unpack_typed,
    varint,
)
from memcore.limits import CHECKPOINT_ID_BYTES_MAX
from memcore.records import record
from memcore.rows import names
from memcore.rows.lifecycle import read_terms, thread_terms
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "GraphCheckpointRow",
    "Place",
    "Pool",
    "Thread",
    "Write",
    "begun_id",
    "chunk_key",
    "create_thread",
    "ensure_namespace",
    "id_of",
    "namespaces_of",
    "put_chunk",
    "read_chunk",
    "read_pool",
    "thread_of",
    "threads",
    "write_pool",
]


# --- Rows of a thread: checkpoints, channel values, pending writes --------------------------------

NODE: Final = "node"
WRITES: Final = "writes"
LOST: Final = "lost"
"""Type of an empty row that replaces one that can no longer be read."""
SEALED: Final = "+"
"""Separates a type from the name of the cipher of its content."""
_INDEX_BIAS: Final = 64
"""Offset of the indices of writes: those of special writes are negative, down to -4 so far."""
_HAS_PARENT: Final = 1
_IS_COMPLETE: Final = 2
_IS_PRUNED: Final = 4
_ID_END: Final = b"\x01"
"""Follows an id in the key of its writes; FF instead would continue the id, as an escaped NUL."""
_PACKED: Final = re.compile(rb"(?:[^\x00]|\x00\xff)*\x00", re.DOTALL)
"""A packed text in a key, including its terminator."""
_COUNTERS: Final = "counters_since_delta_snapshot"
_METADATA: Final = b"metadata"
_BODY: Final = b"body"
_STAMP_BYTES: Final = 8
_THREAD_BYTES: Final = 17
"""Kind, scope and thread at the start of a key."""
_TAG_BYTES: Final = 16
_AWAITED_MS: Final = 60 * 60 * 1000
"""Time that pending writes, or a new thread, may wait for a checkpoint, in milliseconds."""
_UUID6: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-6([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
"""Ids of LangGraph's checkpoints: the high bits of a time come first, in clear in every file."""
_UUID_EPOCH: Final = 0x01B21DD213814000
"""The Unix epoch in the unit of a UUID, tenths of a microsecond since 1582."""
Version = str | int | float
"""Types of a channel's version."""


@record(frozen=True, slots=True)
class Place:
    """Numbers that address a thread's rows: scope, thread, pool."""

    scope: int
    thread: int
    pool: int


@record(frozen=True, slots=True)
class GraphCheckpointRow:
    """A checkpoint without its values."""

    checkpoint: str
    parent: str | None
    metadata: Typed
    """Sealed, as is the body: see ``metadata_by``."""
    body: Typed
    complete: bool = False
    """True if every version that the body names had a row when this row was written.

    A version without a row has since been lost. Rows of earlier versions of memcore are not
    complete: there, a version without a row may be that of an empty channel.
    """
    pruned: bool = False
    """True if a prune selected it, and it is stored only because later ones are rebuilt from it.

    Its own delta channels can no longer be rebuilt, so that only the walk along the ancestors of
    another checkpoint may see it.
    """

    @classmethod
    def sealed(
        cls, checkpoint: str, parent: str | None, coder: Coder, *, metadata: Typed, body: Typed
    ) -> GraphCheckpointRow:
        """Seal metadata and body, as encoded by a coder, into a complete row."""
        bare = cls(checkpoint, parent, metadata, body)
        return cls(
            checkpoint,
            parent,
            _seal(coder, metadata, bare._place(_METADATA)),
            _seal(coder, body, bare._place(_BODY)),
            complete=True,
        )

    def metadata_by(self, coder: Coder) -> Any:
        """Open and decode the metadata.

        Raises:
            CorruptValueError: it was sealed with another cipher, or for another checkpoint.
        """
        return coder.decode(_open(coder, self.metadata, self._place(_METADATA)))

    def body_by(self, coder: Coder) -> Any:
        """Open and decode the body; raises as ``metadata_by``."""
        return coder.decode(_open(coder, self.body, self._place(_BODY)))

    def _place(self, part: bytes) -> bytes:
        parent = b"" if self.parent is None else keys.pack_text(self.parent)
        return part + keys.pack_text(self.checkpoint) + parent

    def pack(self) -> bytes:
        """``flags u8 | text parent | text metadata | typed body``."""
        parent = b"" if self.parent is None else _utf8(self.parent)
        flags = _HAS_PARENT * (self.parent is not None)
        flags |= _IS_COMPLETE * self.complete | _IS_PRUNED * self.pruned
        return (
            bytes((flags,))
            + text(parent)
            + text(pack_typed(*self.metadata))
            + pack_typed(*self.body)
        )

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> GraphCheckpointRow:
        """Unpack a row.

        Raises:
            CorruptValueError: it is damaged.
        """
        reader = NodeReader(open_value(key, value)[1])
        flags = reader.take(1)[0]
        parent = reader.string()
        metadata = unpack_typed(reader.text())
        body = unpack_typed(reader.rest())
        return cls(
            id_in(key),
            parent if flags & _HAS_PARENT else None,
            metadata,
            body,
            complete=bool(flags & _IS_COMPLETE),
            pruned=bool(flags & _IS_PRUNED),
        )


@record(frozen=True, slots=True)
class Write:
    """One pending write; ``node`` is the manifest of its value."""

    task: str
    path: str
    index: int
    channel: str
    node: bytes

    @property
    def order(self) -> tuple[str, str, int]:
        """The sort key by which LangGraph applies the writes of a step (``writes_sort_key``)."""
        return self.path, self.task, self.index


def is_delta(metadata: Any, channel: str) -> bool:
    """Return whether a checkpoint's metadata marks the channel as stored as deltas."""
    counters = metadata.get(_COUNTERS) if isinstance(metadata, dict) else None
    return isinstance(counters, dict) and channel in counters


def versions_in(body: Any) -> Mapping[str, Version]:
    """The version of each channel named in the body of a checkpoint."""
    versions = body.get("channel_versions") if isinstance(body, dict) else None
    return versions if isinstance(versions, dict) else {}


# --- keys -----------------------------------------------------------------------------------------


def checkpoint_id_key(checkpoint: str) -> bytes:
    """Pack an id for keys, preserving the order of strings.

    Raises:
        InvalidOptionError: it is not a string, or is too long.
    """
    if not isinstance(checkpoint, str):
        msg = f"checkpoint_id: expected a str, got {type(checkpoint).__name__}"
        raise InvalidOptionError(msg)
    packed = keys.pack_text(checkpoint)
    if len(packed) > CHECKPOINT_ID_BYTES_MAX:
        msg = (
            f"the checkpoint id {checkpoint[:40]!r}... has {len(packed) - 1} bytes: expected fewer "
            f"than {CHECKPOINT_ID_BYTES_MAX}"
        )
        raise InvalidOptionError(msg)
    return packed


def checkpoints_of(place: Place, namespace: int) -> bytes:
    """Prefix of the checkpoints of a namespace, which are ordered by id."""
    return keys.graph_rows(place.scope, place.thread, ThreadRow.CHECKPOINT, namespace)


def checkpoint_key(place: Place, namespace: int, checkpoint: str) -> bytes:
    """``0F | scope | thread | 03 | namespace u32 | packed id``."""
    return checkpoints_of(place, namespace) + checkpoint_id_key(checkpoint)


def id_in(key: bytes) -> str:
    """The checkpoint id in a checkpoint's key."""
    return keys.unpack_text(key[22:])


def time_in_id(checkpoint: str) -> int | None:
    """The time in an id of LangGraph's, in milliseconds since the epoch; None: it has none."""
    found = _UUID6.fullmatch(checkpoint)
    if found is None:
        return None
    return (int("".join(found.groups()), 16) - _UUID_EPOCH) // 10_000


def namespace_in(key: bytes) -> int:
    """The number of the namespace in the key of a checkpoint, of a value or of writes."""
    return int.from_bytes(key[18:22], "big")


def bound(checkpoint: str) -> bytes:
    """Pack an id as the end of a range; it may be any string, even one that cannot be stored."""
    packed = keys.pack_text(checkpoint)
    if len(packed) <= CHECKPOINT_ID_BYTES_MAX:
        return packed
    return packed[:CHECKPOINT_ID_BYTES_MAX] + b"\x00"  # above an id that consists of these bytes


def newest(txn: ReadTxn, place: Place, namespace: int) -> str | None:
    """The greatest checkpoint id of a namespace; None if it has no checkpoint."""
    found = newest_rows(txn, place, namespace, limit=1)
    return id_in(found[0][0]) if found else None


def newest_rows(
    txn: ReadTxn, place: Place, namespace: int, *, limit: int, below: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    """Read the rows of the greatest checkpoint ids, greatest first, without the pruned ones.

    ``below`` ends the range, as packed by ``bound``; None: no end.
    """
    prefix = checkpoints_of(place, namespace)
    stop = keys.after(prefix) if below is None else prefix + below
    found: list[tuple[bytes, bytes]] = []
    while len(found) < limit:
        page = list(txn.scan(prefix, stop, reverse=True, limit=limit))
        found += [row for row in page if not is_pruned(*row)]
        if len(page) < limit:
            break
        stop = page[-1][0]
    return found[:limit]


def is_pruned(key: bytes, value: bytes) -> bool:
    """Return whether a checkpoint's row is ``GraphCheckpointRow.pruned``.

    A damaged row is not: whoever reads it is told, and a recovery reports it.
    """
    try:
        return bool(NodeReader(open_value(key, value)[1]).take(1)[0] & _IS_PRUNED)
    except CorruptValueError:
        return False


def mark_pruned(txn: Txn, key: bytes, value: bytes) -> None:
    """Make a checkpoint's row ``GraphCheckpointRow.pruned``.

    Raises:
        CorruptValueError: it is damaged.
    """
    row = replace(GraphCheckpointRow.unpack(key, value), pruned=True)
    put_row(txn, key, row.pack(), 0)


def value_key(place: Place, namespace: int, channel: str, version: Version) -> bytes:
    """``0F | scope | thread | 04 | namespace u32 | packed channel, packed version``."""
    return value_under(values_of(place, namespace), channel, version)


def values_of(place: Place, namespace: int) -> bytes:
    """Prefix of the values of a namespace."""
    return keys.graph_rows(place.scope, place.thread, ThreadRow.VALUE, namespace)


def value_under(prefix: bytes, channel: str, version: Version) -> bytes:
    """The key of a value under the prefix of its namespace.

    Raises:
        InvalidOptionError: the version is neither a str nor a number.
    """
    return keys.name_key(prefix, channel, _version_text(version))


def _version_text(version: object) -> str:
    if isinstance(version, str):
        return "s" + version
    if isinstance(version, int | float):
        # 1, 1.0 and True are one version, as they are one key of a dict.
        return f"n{int(version)}" if version == version // 1 else f"n{float(version)!r}"
    msg = f"a channel's version must be a str, int or float, got {type(version).__name__}"
    raise InvalidOptionError(msg)


def writes_of(place: Place, namespace: int, checkpoint: str) -> bytes:
    """Prefix of the pending writes of a checkpoint."""
    prefix = keys.graph_rows(place.scope, place.thread, ThreadRow.WRITES, namespace)
    return prefix + checkpoint_id_key(checkpoint) + _ID_END


def writes_key(place: Place, namespace: int, checkpoint: str, task: str) -> bytes:
    """``0F | scope | thread | 05 | namespace u32 | packed id, 01, packed task``."""
    return keys.name_key(writes_of(place, namespace, checkpoint), task)


def stray_writes(txn: ReadTxn, place: Place, namespace: int, *, now_ms: int) -> Iterator[str]:
    """Yield the ids of deleted checkpoints that still have pending writes.

    Writes may arrive before their checkpoint. Unless another run has overtaken it, that will be
    the newest one; and where the id tells its time, it is awaited for as long as a thread is.
    """
    last = newest(txn, place, namespace)
    if last is None:
        return
    checkpoints = checkpoints_of(place, namespace)
    prefix = keys.graph_rows(place.scope, place.thread, ThreadRow.WRITES, namespace)
    start, stop = prefix, prefix + checkpoint_id_key(last)
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        packed = _PACKED.match(row[0], len(prefix))
        # With any other byte after the id, the next scan would find the same row again.
        if packed is None or not row[0].startswith(_ID_END, packed.end()):
            msg = f"the key {row[0].hex()} of pending writes is malformed; run 'memcore check'"
            raise CorruptValueError(msg, key=row[0])
        if txn.get(checkpoints + packed[0]) is None:
            name = keys.unpack_text(packed[0])
            made_ms = time_in_id(name)
            if made_ms is None or made_ms < now_ms - _AWAITED_MS:
                yield name
        start = keys.after(prefix + packed[0] + _ID_END)


# --- sealed rows ----------------------------------------------------------------------------------


def put_sealed(
    txn: Txn, key: bytes, coder: Coder, kind: str, content: bytes, *, sweep: int = 0
) -> None:
    """Write a row whose content the coder seals; ``sweep`` as in ``put_row``."""
    sealed = _seal(coder, (kind, content), key[_THREAD_BYTES:])
    put_row(txn, key, pack_typed(*sealed), sweep)


def put_row(txn: Txn, key: bytes, body: bytes, sweep: int) -> None:
    """Write a row of a thread, stamped with the epoch of a running sweep (``sweep`` 0: no sweep).

    A sweep deletes no row with its stamp: the row was written, or needed, since the sweep began.
    The stamp is stored where a rewritten row has the checksum of its former content
    (``seal_rewritten``).
    """
    if sweep:
        txn.put(key, seal_rewritten(key, body, 0, sweep.to_bytes(_STAMP_BYTES, "big")))
    else:
        txn.put(key, seal_value(key, body))


def stamp_of(value: bytes) -> int:
    """The epoch of the last sweep during which a row was written or needed; 0: none."""
    if len(value) < HEADER_BYTES or not value[1] & FLAG_REWRITTEN:
        return 0
    return int.from_bytes(value[HEADER_BYTES : HEADER_BYTES + _STAMP_BYTES], "big")


def stamp(txn: Txn, key: bytes, value: bytes, sweep: int) -> None:
    """Stamp a row with a sweep's epoch, so that neither it nor an earlier sweep deletes the row."""
    if stamp_of(value) < sweep:
        put_row(txn, key, open_value(key, value)[1], sweep)


def open_sealed(key: bytes, value: bytes, coder: Coder, kind: str) -> bytes:
    """Open the content of a row written by ``put_sealed``.

    Raises:
        CorruptValueError: the row is damaged, or was sealed with another cipher or for another row.
    """
    typed = unpack_typed(open_value(key, value)[1])
    if typed[0] == LOST:
        msg = (
            f"the value {key.hex()} of a checkpoint was lost in a file that was salvaged: go on "
            "from an older checkpoint, or delete the thread"
        )
        raise CorruptValueError(msg, key=key)
    found, content = _open(coder, typed, key[_THREAD_BYTES:])
    if found != kind:
        msg = f"the row {key.hex()} holds {found[:40]!r}, not {kind!r}; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return content


def _seal(coder: Coder, typed: Typed, place: bytes) -> Typed:
    """Seal content; if encrypted, bind it to its place, so that it cannot be opened elsewhere.

    The place excludes thread and pool, because rows are copied along with their thread.
    """
    if not coder.secret:
        return coder.seal(typed)
    return coder.seal((typed[0], _tag(typed[0], place) + typed[1]))


def _open(coder: Coder, sealed: Typed, place: bytes) -> Typed:
    kind, content = coder.open(sealed)
    if not coder.secret:
        return kind, content
    tag = _tag(kind, place)
    if content[: len(tag)] != tag:
        # Ciphertext of another place: anyone with write access to the file may have moved it.
        msg = "the stored value belongs elsewhere: somebody has moved it; restore from a backup"
        raise CorruptValueError(msg, key=place)
    return kind, content[len(tag) :]


def _tag(kind: str, place: bytes) -> bytes:
    return blake2b(text(kind.encode()) + place, digest_size=_TAG_BYTES).digest()


def node_of(txn: ReadTxn, key: bytes, coder: Coder) -> bytes | None:
    """The manifest of a channel's value; None if nothing is stored under this version."""
    value = txn.get(key)
    return None if value is None else open_sealed(key, value, coder, NODE)


def lost_value(
    thread: str, checkpoint: str, channel: str, version: Version, key: bytes
) -> CorruptValueError:
    """Build the error for a value that a complete checkpoint names but that has no row."""
    msg = (
        f"the value of channel {channel!r:.60} (version {version!r:.60}) that checkpoint "
        f"{checkpoint!r:.60} of thread {thread!r:.60} names is missing: its row was lost; "
        "'memcore recover' goes back to the newest checkpoint that is whole, or restore a backup"
    )
    return CorruptValueError(msg, key=key)


def clear_nodes(key: bytes, value: bytes, kind: str) -> list[bytes]:
    """The manifests in a row written by ``put_sealed``; none if it is encrypted.

    Raises:
        CorruptValueError: the row is damaged, or of another kind.
    """
    found, content = unpack_typed(open_value(key, value)[1])
    if found == LOST or found.startswith(kind + SEALED):
        return []
    if found != kind:
        msg = f"it holds {found[:40]!r}, not {kind!r}"
        raise CorruptValueError(msg, key=key)
    return [content] if kind == NODE else [write.node for write in unpack_writes(content)]


def is_sealed(key: bytes, value: bytes) -> bool:
    """Return whether the content of a row written by ``put_sealed`` is encrypted."""
    return SEALED in unpack_typed(open_value(key, value)[1])[0]


def lost_row(key: bytes) -> bytes:
    """Build the row that marks the value under this key as lost."""
    return seal_value(key, pack_typed(LOST, b""))


def is_lost(key: bytes, value: bytes) -> bool:
    """Return whether the row marks a value that a salvage could not recover."""
    return unpack_typed(open_value(key, value)[1])[0] == LOST


def pack_writes(task: str, writes: list[Write]) -> bytes:
    """Pack the content of a task's writes row."""
    parts = [text(_utf8(task))]
    for write in writes:
        parts += (
            varint(write.index + _INDEX_BIAS),
            text(_utf8(write.channel)),
            text(_utf8(write.path)),
            text(write.node),
        )
    return b"".join(parts)


def unpack_writes(content: bytes) -> Iterator[Write]:
    """Yield the writes of a task.

    Raises:
        CorruptValueError: the content is malformed.
    """
    reader = NodeReader(content)
    task = reader.string()
    while not reader.at_end:
        index = reader.varint() - _INDEX_BIAS
        channel, path = reader.string(), reader.string()
        yield Write(task, path, index, channel, reader.text())


def _utf8(string: str) -> bytes:
    return string.encode("utf-8", "surrogatepass")


# --- Chunk pool, shared by the checkpoints of a thread and of the threads copied from it ----------
# A chunk's id is a keyed hash of its plaintext, so equal parts of any writer are one row, and the
# id authenticates the content on reading. The key is in the pool's own row, sealed like all
# content: under encryption an id reveals nothing about the content.
#
# Unreferenced rows are deleted by a sweep (``gc.py``). Each row carries the *epoch* of the pool in
# which it was written or last needed.

_POOL: Final = Struct(">IIB")
_EPOCH: Final = Struct(">I")
_CHUNK_BYTES_MIN: Final = HEADER_BYTES + _EPOCH.size
KEY_BYTES: Final = 32
KEY: Final = "bytes"


@record(frozen=True, slots=True)
class Pool:
    """Fields of a pool's row."""

    epoch: int
    """Incremented by every sweep."""
    members: int
    """Number of threads whose checkpoints use the pool."""
    sweeping: bool
    """True if a sweep is running, or was interrupted."""
    key: Typed
    """The sealed key of the chunk ids."""

    def pack(self) -> bytes:
        """Pack the row's body."""
        return _POOL.pack(self.epoch, self.members, self.sweeping) + pack_typed(*self.key)

    def swept(self, *, sweeping: bool) -> Pool:
        """The row at the start of a sweep (next epoch) or at its end (same epoch)."""
        return replace(self, epoch=self.epoch + sweeping, sweeping=sweeping)


def new_pool(coder: Coder) -> tuple[Pool, bytes]:
    """Create a pool of one thread; returns it and its key in clear."""
    secret = os.urandom(KEY_BYTES)
    return Pool(1, 1, sweeping=False, key=coder.seal((KEY, secret))), secret


def key_of(pool: Pool, coder: Coder) -> bytes:
    """Open the pool's key.

    Raises:
        CorruptValueError: the pool was written with another cipher, or without one.
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
    """Read the pool's row; None if there is no such pool."""
    key = keys.chunk_prefix(scope, pool)
    value = txn.get(key)
    return None if value is None else unpack_pool(key, value)


def unpack_pool(key: bytes, value: bytes) -> Pool:
    """Unpack a pool's row.

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


def begun_id(secret: bytes, kind: str) -> blake2b:
    """Return the hash that a chunk's content completes to its id.

    An id is BLAKE2b-128 under the pool's key over type and content.
    """
    return blake2b(pack_typed(kind, b""), digest_size=ID_BYTES, key=secret)


def id_of(secret: bytes, typed: Typed) -> bytes:
    """Compute a chunk's id."""
    hashed = begun_id(secret, typed[0])
    hashed.update(typed[1])
    return hashed.digest()


def chunk_key(scope: int, pool: int, part: bytes) -> bytes:
    """``10 | scope | pool | id``."""
    return keys.chunk_prefix(scope, pool) + part


def put_chunk(txn: Txn, key: bytes, epoch: int, stored: Typed) -> None:
    """Write a chunk: ``epoch u32 | typed``."""
    txn.put(key, chunk_row(key, epoch, *stored))


def is_stored(txn: ReadTxn, key: bytes) -> bool:
    """Return whether a chunk is stored and intact.

    A damaged chunk counts as missing, so that it is rewritten.
    """
    value = txn.get_new(key)
    return value is not None and len(value) >= _CHUNK_BYTES_MIN and is_proven(key, value)


def touch_chunk(txn: Txn, key: bytes, epoch: int) -> bool:
    """Move a stored chunk to this epoch, so that no sweep deletes it.

    Returns whether the chunk is stored.
    """
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
    """Read the content of a chunk: ``(type, bytes)``.

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
    """Unpack a chunk's row: ``(type, bytes)``.

    Raises:
        CorruptValueError: it is damaged.
    """
    return unpack_typed(open_value(key, value)[1][_EPOCH.size :])


# --- Graph threads by name: their numbers, namespaces and pools -----------------------------------

_HEAD: Final = Struct(">QQ")
_NUMBER: Final = Struct(">I")


@record(frozen=True, slots=True)
class Thread:
    """A thread as seen by a transaction."""

    place: Place
    pool: Pool
    created_ms: int


def head_key(scope: int, thread: int) -> bytes:
    """``0F | scope | thread | 01``."""
    return keys.thread_rows(scope, thread, ThreadRow.HEAD)


def thread_of(txn: ReadTxn, scope: int, name: str) -> Thread | None:
    """Look up a thread by name; None if nothing was stored in it.

    Raises:
        CorruptValueError: its head or pool is missing or damaged.
    """
    number = names.thread_of(txn, scope, name)
    return None if number is None else read_thread(txn, scope, number)


def read_thread(txn: ReadTxn, scope: int, number: int) -> Thread:
    """Read a thread by its number.

    Raises:
        CorruptValueError: its head or pool is missing or damaged.
    """
    pool, created_ms = read_head(txn, scope, number)
    row = read_pool(txn, scope, pool)
    if row is None:
        key = keys.chunk_prefix(scope, pool)
        msg = f"the pool {pool} of thread {number} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return Thread(Place(scope, number, pool), row, created_ms)


def is_alive(txn: ReadTxn, place: Place) -> bool:
    """Return whether the thread still exists (a thread's number is never reused)."""
    return txn.get(head_key(place.scope, place.thread)) is not None


def is_abandoned(txn: ReadTxn, scope: int, thread: int, *, now_ms: int) -> bool:
    """Return whether a thread is old and has no checkpoint: it was written to after deletion.

    A thread for which a retention time or rules are set is not abandoned.
    """
    prefix = keys.thread_rows(scope, thread, ThreadRow.CHECKPOINT)
    if next(iter(txn.scan(prefix, keys.after(prefix), limit=1)), None) is not None:
        return False
    is_old = read_head(txn, scope, thread)[1] < now_ms - _AWAITED_MS
    return is_old and read_terms(txn, thread_terms(scope, thread)).is_empty


def read_head(txn: ReadTxn, scope: int, number: int) -> tuple[int, int]:
    """``(pool, created ms)`` of a thread."""
    key = head_key(scope, number)
    value = txn.get(key)
    if value is None:
        msg = f"the head of thread {number} is missing; run 'memcore check'"
        raise CorruptValueError(msg, key=key)
    return unpack_head(key, value)


def unpack_head(key: bytes, value: bytes) -> tuple[int, int]:
    """``(pool, created ms)`` of a thread's head.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "head of a thread"):
        pool, created_ms = _HEAD.unpack(body)
    return pool, created_ms


def pack_head(key: bytes, pool: int, created_ms: int) -> bytes:
    """Pack a thread's head."""
    return seal_value(key, _HEAD.pack(pool, created_ms))


def create_thread(
    txn: Txn, scope: int, name: str, pool: Pool, *, now_ms: int, number: int | None = None
) -> Place:
    """Create a thread, with a new pool or as another member of pool ``number``."""
    thread = names.new_thread(txn, scope, name)
    if number is None:
        number = names.next_number(txn, Counter.POOL)
    write_pool(txn, scope, number, pool)
    key = head_key(scope, thread)
    txn.put(key, pack_head(key, number, now_ms))
    return Place(scope, thread, number)


def threads(
    txn: ReadTxn, scope: int, *, start_after: str | None = None
) -> Iterator[tuple[str, int]]:
    """Yield ``(name, number)`` in name order; names that are too long for a key come last."""
    return names.threads(txn, scope, start_after)


# --- namespaces -----------------------------------------------------------------------------------


def _namespace_key(place: Place, name: str) -> bytes:
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.NAMESPACE)
    return keys.name_key(prefix, name)


def namespace_of(txn: ReadTxn, place: Place, name: str) -> int | None:
    """The number of a namespace of the thread; None if nothing was stored in it."""
    key = _namespace_key(place, name)
    value = txn.get(key)
    return None if value is None else unpack_namespace(key, value)[0]


def pack_namespace(place: Place, name: str, number: int) -> tuple[bytes, bytes]:
    """Key and value of a namespace's row."""
    key = _namespace_key(place, name)
    return key, seal_value(key, _NUMBER.pack(number) + name.encode("utf-8", "surrogatepass"))


def ensure_namespace(txn: Txn, place: Place, name: str) -> int:
    """The number of a namespace, allocated if it does not have one."""
    found = namespace_of(txn, place, name)
    if found is None:
        found = names.next_number(txn, Counter.GRAPH_NAMESPACE)
        txn.put(*pack_namespace(place, name, found))
    return found


def namespaces_of(txn: ReadTxn, place: Place) -> list[tuple[int, str]]:
    """List ``(number, name)`` of the namespaces, in order of creation."""
    prefix = keys.thread_rows(place.scope, place.thread, ThreadRow.NAMESPACE)
    return sorted(unpack_namespace(*row) for row in txn.scan(prefix, keys.after(prefix)))


def unpack_namespace(key: bytes, value: bytes) -> tuple[int, str]:
    """Unpack ``(number, name)`` from a namespace's row.

    Raises:
        CorruptValueError: it is damaged.
    """
    body = open_value(key, value)[1]
    with decoding(key, "namespace of a thread"):
        return _NUMBER.unpack_from(body)[0], body[_NUMBER.size :].decode("utf-8", "surrogatepass")


def scope_threads(txn: ReadTxn, scope: int) -> Iterator[int]:
    """Yield the numbers of all threads that have rows, including hidden ones.

    Raises:
        CorruptValueError: a key is too short for one of a thread.
    """
    start = keys.scoped(Kind.THREAD, scope)
    stop = keys.after(start)
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return
        _, number = keys.split_session_prefix(row[0])
        yield number
        start = keys.after(keys.thread_prefix(scope, number))
