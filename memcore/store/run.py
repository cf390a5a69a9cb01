"""The reserved run: pages of the file that LMDB never rewrites and memcore writes behind its back.

One value under a reserved key. Its first page holds a head, two slots of equal size follow: redo
records in ``"full"`` mode, steady records in ``"relaxed"`` mode. LMDB moves a run only when its
value is written, which nobody does, so it can be found and read without LMDB: before the file is
mapped, and after a power cut that left the tree in pieces.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final, NamedTuple

from memcore.errors import CorruptStoreError, StoreFormatError
from memcore.limits import PAGE_BYTES, REDO_MAGIC, REDO_SLOT_BYTES, RUN_SCAN_PAGES
from memcore.store.file import PAGE_HEADER_BYTES

__all__ = ["SEED_BYTES", "Run", "find_run", "make_run"]

SEED_BYTES: Final = 16
_HEAD = Struct("<16s16sII")  # magic, seed, bytes of a slot, mode
HEAD_BYTES: Final = _HEAD.size
_RELAXED: Final = 3
_HEADER = Struct("<QHHI")  # page number, pad, flags, pages of the run
_OVERFLOW: Final = 0x04
_SLOT_BYTES_MAX: Final = 64 * 1024**2


class Run(NamedTuple):
    """Where the slots lie and what the head says."""

    head: bytes
    seed: bytes
    slots: tuple[int, int]
    slot_bytes: int
    relaxed: bool

    def blank(self, fd: int) -> None:
        """Forget both records, to the last byte; durable with the next flush."""
        for offset in self.slots:
            written = 0
            while written < self.slot_bytes:
                written += os.pwrite(fd, bytes(self.slot_bytes - written), offset + written)

    def set_mode(self, fd: int, *, relaxed: bool) -> None:
        """Say in the head whose records the slots are for; durable with the next flush."""
        head = _HEAD.pack(REDO_MAGIC, self.seed, self.slot_bytes, _RELAXED if relaxed else 0)
        os.pwrite(fd, head, self.slots[0] - PAGE_BYTES + PAGE_HEADER_BYTES)


def make_run(seed: bytes, *, relaxed: bool = False, slot_bytes: int = REDO_SLOT_BYTES) -> bytes:
    """The reserved value: a head that fills its first page, then two page-aligned slots."""
    head = _HEAD.pack(REDO_MAGIC, seed, slot_bytes, _RELAXED if relaxed else 0)
    return head.ljust(PAGE_BYTES - PAGE_HEADER_BYTES, b"\0") + bytes(2 * slot_bytes)


def find_run(fd: int, path: str) -> Run:
    """The reserved run of a file: page 3 of a fresh one, page 2 of a compacted copy.

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
            number == page
            and flags == _OVERFLOW
            and pages == whole
            and 0 < slot_bytes <= _SLOT_BYTES_MAX
            and slot_bytes % PAGE_BYTES == 0
        ):
            if (page + whole) * PAGE_BYTES > size:
                raise CorruptStoreError(f"{path}: the file ends inside its reserved run")
            first = (page + 1) * PAGE_BYTES
            return Run(head, seed, (first, first + slot_bytes), slot_bytes, mode == _RELAXED)
    raise StoreFormatError(f"{path}: is an LMDB file, but not a memcore store (no reserved run)")
