"""Redo log: a second copy of the last transaction, so that one flush makes it durable.

LMDB commits with ``metasync=False``: it flushes the data pages, then writes meta page N without a
flush. The redo record of transaction N is written to the same file before that flush and becomes
durable with it; if a power failure loses meta N, the next opener finds the file at N-1 and replays
the record. At most one record can be missing from the tree, so two slots are enough.

A record is bound to its predecessor by the hash of meta N-1: it can be applied to nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from memcore._fast import write_redo, xxh3_64
from memcore.errors import CorruptStoreError, StoreFormatError
from memcore.limits import KEY_BYTES_MAX, PAGE_BYTES, REDO_MAGIC, REDO_SLOT_BYTES, RUN_SCAN_PAGES
from memcore.store.datafile import (
    FORMAT_KEY,
    META_OFFSETS,
    PAGE_HEADER_BYTES,
    Meta,
    lies_in_memory,
)

__all__ = [
    "SEED_BYTES",
    "Ops",
    "RedoArea",
    "RedoLog",
    "decode",
    "find_run",
    "make_run",
]


# --- The reserved run: overflow pages that memcore writes directly, bypassing LMDB ----------------
# It is the value of a reserved key. Its first page holds a head, followed by two slots of equal
# size: for redo records in ``"full"`` mode, for steady records in ``"relaxed"`` mode. LMDB moves a
# run only when its value is rewritten, which never happens, so it can be found and read without
# LMDB: before the file is mapped, and after a power failure that left the tree damaged.

SEED_BYTES: Final = 16
_HEAD = Struct("<16s16sII")  # magic, seed, bytes of a slot, mode
HEAD_BYTES: Final = _HEAD.size
_RELAXED: Final = 3
_HEADER = Struct("<QHHI")  # page number, pad, flags, pages of the run
_OVERFLOW: Final = 0x04
_SLOT_BYTES_MAX: Final = 64 * 1024**2


class RedoArea(NamedTuple):
    """Location of the two redo slots, and the fields of the area's head."""

    head: bytes
    seed: bytes
    slots: tuple[int, int]
    slot_bytes: int
    relaxed: bool

    def blank(self, fd: int) -> None:
        """Overwrite both records with zeros; durable with the next flush."""
        for offset in self.slots:
            written = 0
            while written < self.slot_bytes:
                written += os.pwrite(fd, bytes(self.slot_bytes - written), offset + written)

    def set_mode(self, fd: int, *, relaxed: bool) -> None:
        """Record the durability mode that the slots serve; durable with the next flush."""
        head = _HEAD.pack(REDO_MAGIC, self.seed, self.slot_bytes, _RELAXED if relaxed else 0)
        os.pwrite(fd, head, self.slots[0] - PAGE_BYTES + PAGE_HEADER_BYTES)


def make_run(seed: bytes, *, relaxed: bool = False, slot_bytes: int = REDO_SLOT_BYTES) -> bytes:
    """Build the reserved value: a head that fills its first page, then two page-aligned slots."""
    head = _HEAD.pack(REDO_MAGIC, seed, slot_bytes, _RELAXED if relaxed else 0)
    return head.ljust(PAGE_BYTES - PAGE_HEADER_BYTES, b"\0") + bytes(2 * slot_bytes)


def find_run(fd: int, path: str) -> RedoArea:
    """Find the reserved run of a file: at page 3 of a new one, at page 2 of a compacted copy.

    Raises:
        StoreFormatError: none of the first pages begins such a run.
        CorruptStoreError: the file ends inside it.
    """
    size = os.fstat(fd).st_size
    for page in range(2, RUN_SCAN_PAGES):
        raw = os.pread(fd, PAGE_HEADER_BYTES + HEAD_BYTES, page * PAGE_BYTES)
        head = raw[PAGE_HEADER_BYTES:]
        if not head.startswith(REDO_MAGIC) or len(head) < HEAD_BYTES:
            continue
        number, _, flags, pages = _HEADER.unpack_from(raw)
        _, seed, slot_bytes, mode = _HEAD.unpack(head)
        whole = 1 + 2 * slot_bytes // PAGE_BYTES
        if (
            # A caller's large value may look the same, further back; ``_record`` asks LMDB.
            number == page
            and flags == _OVERFLOW
            and pages == whole
            and 0 < slot_bytes <= _SLOT_BYTES_MAX
            and slot_bytes % PAGE_BYTES == 0
        ):
            if (page + whole) * PAGE_BYTES > size:
                raise CorruptStoreError(
                    f"{path}: the file is cut off within its first pages; restore a backup, or "
                    "'memcore salvage' keeps what is left"
                )
            first = (page + 1) * PAGE_BYTES
            return RedoArea(head, seed, (first, first + slot_bytes), slot_bytes, mode == _RELAXED)
    raise StoreFormatError(f"{path} is an LMDB file, but not a memcore store (no reserved run)")


# --- The redo slots: a second copy of the last transaction, so that one flush makes it durable ----

Ops = Mapping[bytes, "bytes | None"]
"""Last operation on each key: the value put, or None for a deletion."""

_CHECK = Struct("<Q")
_TITLE = Struct("<QQI")  # txnid, base, bytes of the operations
_HEADER_BYTES: Final = _CHECK.size + _TITLE.size
_OP = Struct("<HI")
_OP_BYTES: Final = _OP.size
_DELETED: Final = 0xFFFFFFFF
_BLANK: Final = bytes(_HEADER_BYTES)


def decode(body: bytes) -> dict[bytes, bytes | None] | None:
    """Decode the operations of a redo record (``_fast.redo_record``); None if it is malformed.

    Of the store's own rows only the format record is among them: a commit that needs a feature of
    the file first puts it, and is as much of a commit as any.
    """
    ops: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(body):
        if at + _OP_BYTES > len(body):
            return None
        key_bytes, value_bytes = _OP.unpack_from(body, at)
        at += _OP_BYTES
        key = body[at : at + key_bytes]
        at += key_bytes
        if not 0 < key_bytes <= KEY_BYTES_MAX or len(key) != key_bytes:
            return None
        if not key[0] and (key != FORMAT_KEY or value_bytes == _DELETED):
            return None
        if value_bytes == _DELETED:
            ops[key] = None
            continue
        ops[key] = value = body[at : at + value_bytes]
        if len(value) != value_bytes:
            return None
        at += value_bytes
    return ops


class RedoLog:
    """The two slots of one open file. All calls except ``pending`` require the write lock."""

    __slots__ = ("_fd", "_in_memory", "_last", "_run", "_seed", "_slots", "capacity")

    def __init__(self, fd: int, run: RedoArea) -> None:
        self._fd = fd
        self._run = run
        self._slots = run.slots
        self._seed = int.from_bytes(run.seed[:8], "little")
        self._last = b""
        self._in_memory: bool | None = None
        self.capacity = run.slot_bytes - _HEADER_BYTES

    @property
    def is_in_memory(self) -> bool:
        """True if the file is on an in-memory file system, so that flushes cost nothing."""
        if self._in_memory is None:
            self._in_memory = lies_in_memory(self._fd)
        return self._in_memory

    def write(self, txnid: int, ops: dict[bytes, bytes | None]) -> None:
        """Write the record of ``txnid`` to its slot; the caller's commit flushes it."""
        slot, meta = self._slots[txnid & 1], META_OFFSETS[~txnid & 1]
        self._last = write_redo(self._fd, ops, txnid, self._seed, slot, meta)

    def holds_ours(self, txnid: int) -> bool:
        """Return True if the slot of ``txnid`` still holds the record that this log wrote last."""
        held = os.pread(self._fd, _HEADER_BYTES, self._slots[txnid & 1])
        return held == self._last and _TITLE.unpack_from(held, _CHECK.size)[0] == txnid

    def wipe(self) -> None:
        """Blank both slots completely and durably. The last meta page must already be durable.

        Raises:
            OSError: the device refused; a partial record is never replayed.
        """
        # ``holds_ours`` must not take a record for ours that is no longer there.
        self._last = b""
        self._run.blank(self._fd)
        os.fdatasync(self._fd)

    def withdraw(self, txnid: int) -> None:
        """Make the record of ``txnid`` unreplayable, durably.

        Raises:
            OSError: that failed.
        """
        # The header suffices: without it, nothing leads to the operations behind it.
        written = os.pwrite(self._fd, _BLANK, self._slots[txnid & 1])
        if written != len(_BLANK):
            raise OSError("short write into a redo slot")
        os.fdatasync(self._fd)

    def pending(self, meta: Meta) -> tuple[int, dict[bytes, bytes | None]] | None:
        """Return the record that follows snapshot ``meta``, as ``(txnid, operations)``, or None.

        Without the write lock the answer is advisory: a live writer's record looks the same.

        Raises:
            CorruptStoreError: its checksum is right and it is malformed. It may be an acknowledged
                commit, so it is not passed over.
        """
        txnid = meta.txnid + 1
        offset = self._slots[txnid & 1]
        header = os.pread(self._fd, _HEADER_BYTES, offset)
        if len(header) < _HEADER_BYTES:
            return None
        found, base, body_bytes = _TITLE.unpack_from(header, _CHECK.size)
        # Not damage: the slot holds the record of two transactions ago, or one bound to a meta page
        # that is not this file's newest. The length is judged before anything of that size is read.
        if found != txnid or body_bytes > self.capacity or base != xxh3_64(meta.image):
            return None
        body = os.pread(self._fd, body_bytes, offset + _HEADER_BYTES)
        check = xxh3_64(header[_CHECK.size :] + body, self._seed)
        # Torn: its flush had not ended, so nobody was told that the commit is stored.
        if check != _CHECK.unpack_from(header)[0]:
            return None
        ops = decode(body)
        if ops is None:
            raise CorruptStoreError(
                f"the redo record of transaction {txnid} has the right checksum and is malformed;"
                " restore a backup or salvage the file"
            )
        return txnid, ops
