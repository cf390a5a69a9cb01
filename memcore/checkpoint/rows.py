"""The rows of a thread: checkpoints, values of channels, pending writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from memcore import keys
from memcore.checkpoint.coding import Coder, Typed
from memcore.checkpoint.nodes import Reader, pack_typed, text, unpack_typed, varint
from memcore.codec import (
    FLAG_REWRITTEN,
    HEADER_BYTES,
    open_value,
    seal_rewritten,
    seal_value,
)
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.keys import ThreadRow
from memcore.limits import CHECKPOINT_ID_BYTES_MAX
from memcore.store.base import ReadTxn, Txn

__all__ = ["CheckpointRow", "Place", "Write"]

NODE: Final = "node"
WRITES: Final = "writes"
LOST: Final = "lost"
"""Of a row in place of one that cannot be read any more; it holds nothing."""
SEALED: Final = "+"
"""Between a type and the name of the cipher that its content is under."""
_INDEX_BIAS: Final = 64
"""Indices of special writes are negative, down to -4 so far."""
_HAS_PARENT: Final = 1
_IS_COMPLETE: Final = 2
_ID_END: Final = b"\x01"
_PACKED: Final = re.compile(rb"(?:[^\x00]|\x00\xff)*\x00", re.DOTALL)
"""A text as it stands in keys, to its end."""
"""Behind an id whose writes follow: what FF follows is an id that goes on with a NUL."""
_COUNTERS: Final = "counters_since_delta_snapshot"
_METADATA: Final = b"metadata"
_BODY: Final = b"body"
_STAMP_BYTES: Final = 8
_THREAD_BYTES: Final = 17
"""Kind, scope and thread at the begin of a key."""
_TAG_BYTES: Final = 16
Version = str | int | float
"""What a channel's version may be."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread lies, by numbers."""

    scope: int
    thread: int
    pool: int


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint without its values."""

    checkpoint: str
    parent: str | None
    metadata: Typed
    """Sealed, as the body is: see ``metadata_by``."""
    body: Typed
    complete: bool = False
    """Whether every version that the body names had a row when this one was written.

    A version without one was lost then. Rows of earlier versions of memcore are not complete: a
    version without a row may be that of an empty channel.
    """

    @classmethod
    def sealed(
        cls, checkpoint: str, parent: str | None, coder: Coder, *, metadata: Typed, body: Typed
    ) -> CheckpointRow:
        """A complete row of what a coder encoded."""
        bare = cls(checkpoint, parent, metadata, body)
        return cls(
            checkpoint,
            parent,
            _seal(coder, metadata, bare._place(_METADATA)),
            _seal(coder, body, bare._place(_BODY)),
            complete=True,
        )

    def metadata_by(self, coder: Coder) -> Any:
        """The metadata.

        Raises:
            CorruptValueError: of another cipher, or of another checkpoint.
        """
        return coder.decode(_open(coder, self.metadata, self._place(_METADATA)))

    def body_by(self, coder: Coder) -> Any:
        """The body; raises as ``metadata_by``."""
        return coder.decode(_open(coder, self.body, self._place(_BODY)))

    def _place(self, part: bytes) -> bytes:
        parent = b"" if self.parent is None else keys.pack_text(self.parent)
        return part + keys.pack_text(self.checkpoint) + parent

    def pack(self) -> bytes:
        """``flags u8 | text parent | text metadata | typed body``."""
        parent = b"" if self.parent is None else _utf8(self.parent)
        flags = _HAS_PARENT * (self.parent is not None) | _IS_COMPLETE * self.complete
        return (
            bytes((flags,))
            + text(parent)
            + text(pack_typed(*self.metadata))
            + pack_typed(*self.body)
        )

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> CheckpointRow:
        """The row.

        Raises:
            CorruptValueError: it is damaged.
        """
        reader = Reader(open_value(key, value)[1])
        flags = reader.take(1)[0]
        parent = reader.string()
        metadata = unpack_typed(reader.text())
        body = unpack_typed(reader.rest())
        named = parent if flags & _HAS_PARENT else None
        return cls(id_in(key), named, metadata, body, complete=bool(flags & _IS_COMPLETE))


@dataclass(frozen=True, slots=True)
class Write:
    """One pending write; ``node`` is the manifest of its value."""

    task: str
    path: str
    index: int
    channel: str
    node: bytes

    @property
    def order(self) -> tuple[str, str, int]:
        """What LangGraph applies the writes of a step by: ``writes_sort_key``."""
        return self.path, self.task, self.index


def is_delta(metadata: Any, channel: str) -> bool:
    """Whether a checkpoint's metadata say that the channel is stored as deltas."""
    counters = metadata.get(_COUNTERS) if isinstance(metadata, dict) else None
    return isinstance(counters, dict) and channel in counters


def versions_in(body: Any) -> Mapping[str, Version]:
    """The version of each channel, as the body of a checkpoint names them."""
    versions = body.get("channel_versions") if isinstance(body, dict) else None
    return versions if isinstance(versions, dict) else {}


# --- keys -----------------------------------------------------------------------------------------


def checkpoint_id_key(checkpoint: str) -> bytes:
    """An id as it stands in keys: its order is that of the strings.

    Raises:
        InvalidOptionError: it is no string, or too long.
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
    """The prefix of the checkpoints of a namespace, in the order of their ids."""
    return keys.graph_rows(place.scope, place.thread, ThreadRow.CHECKPOINT, namespace)


def checkpoint_key(place: Place, namespace: int, checkpoint: str) -> bytes:
    """``0F | scope | thread | 03 | namespace u32 | packed id``."""
    return checkpoints_of(place, namespace) + checkpoint_id_key(checkpoint)


def id_in(key: bytes) -> str:
    """The checkpoint id of a checkpoint's key."""
    return keys.unpack_text(key[22:])


def namespace_in(key: bytes) -> int:
    """The number of the namespace of a checkpoint's, a value's or writes' key."""
    return int.from_bytes(key[18:22], "big")


def bound(checkpoint: str) -> bytes:
    """An id as the end of a range: any string, it need not be one that could be stored."""
    packed = keys.pack_text(checkpoint)
    if len(packed) <= CHECKPOINT_ID_BYTES_MAX:
        return packed
    return packed[:CHECKPOINT_ID_BYTES_MAX] + b"\x00"  # an id may end just there, and is below it


def newest(txn: ReadTxn, place: Place, namespace: int) -> str | None:
    """The greatest checkpoint id of a namespace."""
    prefix = checkpoints_of(place, namespace)
    for key, _ in txn.scan(prefix, keys.after(prefix), reverse=True, limit=1):
        return id_in(key)
    return None


def value_key(place: Place, namespace: int, channel: str, version: Version) -> bytes:
    """``0F | scope | thread | 04 | namespace u32 | packed channel, packed version``."""
    return value_under(values_of(place, namespace), channel, version)


def values_of(place: Place, namespace: int) -> bytes:
    """The prefix of the values of a namespace."""
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
        # 1, 1.0 and True are one version: they are one key of a dict.
        return f"n{int(version)}" if version == version // 1 else f"n{float(version)!r}"
    msg = f"a channel's version must be a str, int or float, got {type(version).__name__}"
    raise InvalidOptionError(msg)


def writes_of(place: Place, namespace: int, checkpoint: str) -> bytes:
    """The prefix of the writes that wait at a checkpoint."""
    prefix = keys.graph_rows(place.scope, place.thread, ThreadRow.WRITES, namespace)
    return prefix + checkpoint_id_key(checkpoint) + _ID_END


def writes_key(place: Place, namespace: int, checkpoint: str, task: str) -> bytes:
    """``0F | scope | thread | 05 | namespace u32 | packed id, 01, packed task``."""
    return keys.name_key(writes_of(place, namespace, checkpoint), task)


def stray_writes(txn: ReadTxn, place: Place, namespace: int) -> Iterator[str]:
    """Ids of checkpoints that are gone, of which writes are left.

    Writes may come before their checkpoint, but then it is to be the newest: below the newest one
    nothing is still to come.
    """
    last = newest(txn, place, namespace)
    if last is None:
        return
    checkpoints = checkpoints_of(place, namespace)
    prefix = keys.graph_rows(place.scope, place.thread, ThreadRow.WRITES, namespace)
    start, stop = prefix, prefix + checkpoint_id_key(last)
    while (row := next(iter(txn.scan(start, stop, limit=1)), None)) is not None:
        packed = _PACKED.match(row[0], len(prefix))
        if packed is None:
            msg = f"the key {row[0].hex()} of pending writes is malformed; run 'memcore check'"
            raise CorruptValueError(msg, key=row[0])
        if txn.get(checkpoints + packed[0]) is None:
            yield keys.unpack_text(packed[0])
        start = keys.after(prefix + packed[0] + _ID_END)


# --- sealed rows ----------------------------------------------------------------------------------


def put_sealed(
    txn: Txn, key: bytes, coder: Coder, kind: str, content: bytes, *, sweep: int = 0
) -> None:
    """Write a row whose content the coder seals; ``sweep`` as in ``put_row``."""
    sealed = _seal(coder, (kind, content), key[_THREAD_BYTES:])
    put_row(txn, key, pack_typed(*sealed), sweep)


def put_row(txn: Txn, key: bytes, body: bytes, sweep: int) -> None:
    """Write a row of a thread, under a sweep with its epoch as a stamp; ``sweep`` 0: there is none.

    A sweep takes nothing with its stamp: it was written, or needed, since the sweep began. Stamps
    lie where a rewritten row has the checksum of what it was (``seal_rewritten``).
    """
    if sweep:
        txn.put(key, seal_rewritten(key, body, 0, sweep.to_bytes(_STAMP_BYTES, "big")))
    else:
        txn.put(key, seal_value(key, body))


def stamp_of(value: bytes) -> int:
    """The epoch of the last sweep under which a row was written or needed; 0: none."""
    if len(value) < HEADER_BYTES or not value[1] & FLAG_REWRITTEN:
        return 0
    return int.from_bytes(value[HEADER_BYTES : HEADER_BYTES + _STAMP_BYTES], "big")


def stamp(txn: Txn, key: bytes, value: bytes, sweep: int) -> None:
    """Have no sweep of this epoch, or of one before, take the row."""
    if stamp_of(value) < sweep:
        put_row(txn, key, open_value(key, value)[1], sweep)


def open_sealed(key: bytes, value: bytes, coder: Coder, kind: str) -> bytes:
    """The content of ``put_sealed``.

    Raises:
        CorruptValueError: damaged, of another cipher, or of another row.
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
    """Seal; what is encrypted says where it belongs, so that it opens nowhere else.

    The place leaves out thread and pool: rows are copied with their thread.
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
        # Ciphertext of another place, put here by whoever can write to the file.
        msg = "the stored value belongs elsewhere: somebody has moved it; restore from a backup"
        raise CorruptValueError(msg, key=place)
    return kind, content[len(tag) :]


def _tag(kind: str, place: bytes) -> bytes:
    return blake2b(text(kind.encode()) + place, digest_size=_TAG_BYTES).digest()


def node_of(txn: ReadTxn, key: bytes, coder: Coder) -> bytes | None:
    """The manifest of a channel's value, None if none is stored under this version."""
    value = txn.get(key)
    return None if value is None else open_sealed(key, value, coder, NODE)


def lost_value(
    thread: str, checkpoint: str, channel: str, version: Version, key: bytes
) -> CorruptValueError:
    """The error for a value that a complete checkpoint names, and that has no row."""
    msg = (
        f"the value of channel {channel!r:.60} (version {version!r:.60}) that checkpoint "
        f"{checkpoint!r:.60} of thread {thread!r:.60} names is missing: its row was lost; "
        "'memcore recover' goes back to the newest checkpoint that is whole, or restore a backup"
    )
    return CorruptValueError(msg, key=key)


def clear_nodes(key: bytes, value: bytes, kind: str) -> list[bytes]:
    """The manifests in a row of ``put_sealed``; none if it is encrypted.

    Raises:
        CorruptValueError: the row is damaged, or no such row.
    """
    found, content = unpack_typed(open_value(key, value)[1])
    if found == LOST or found.startswith(kind + SEALED):
        return []
    if found != kind:
        msg = f"it holds {found[:40]!r}, not {kind!r}"
        raise CorruptValueError(msg, key=key)
    return [content] if kind == NODE else [write.node for write in unpack_writes(content)]


def is_sealed(key: bytes, value: bytes) -> bool:
    """Whether the content of a row of ``put_sealed`` is encrypted."""
    return SEALED in unpack_typed(open_value(key, value)[1])[0]


def lost_row(key: bytes) -> bytes:
    """The value that says that the one of this key was lost."""
    return seal_value(key, pack_typed(LOST, b""))


def is_lost(key: bytes, value: bytes) -> bool:
    """Whether the row stands for a value of which a salvage found too little."""
    return unpack_typed(open_value(key, value)[1])[0] == LOST


def pack_writes(task: str, writes: list[Write]) -> bytes:
    """The content of a task's row of writes."""
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
    """The writes of a task.

    Raises:
        CorruptValueError: the content is malformed.
    """
    reader = Reader(content)
    task = reader.string()
    while not reader.at_end:
        index = reader.varint() - _INDEX_BIAS
        channel, path = reader.string(), reader.string()
        yield Write(task, path, index, channel, reader.text())


def _utf8(string: str) -> bytes:
    return string.encode("utf-8", "surrogatepass")
