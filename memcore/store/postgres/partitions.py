"""Partitions of the key space: what one version of a distributed store covers, and what is cached.

Every key belongs to exactly one partition, computed from its bytes: a session, a thread of a
graph, a pool of chunks, a namespace of values, the names of a scope. A transaction that read a
partition at one version, and finds it at that version when it commits, has read what is current.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from memcore.codec.keys import Care, Counter, Kind, Row, after, malformed
from memcore.limits import KEY_BYTES_MAX

__all__ = [
    "BYTES_MAX",
    "ERASURES",
    "Partition",
    "Range",
    "first_ranges",
    "is_counter",
    "is_rarely_written",
    "needs_barrier",
    "partition_of",
    "partition_of_range",
    "partition_of_row",
]

_BY_OBJECT: Final = frozenset((Kind.SESSION, Kind.THREAD, Kind.CHUNK, Kind.KV))
_BY_BLOBS: Final = frozenset((Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS, Kind.BLOB_ADDRESS))
_RARELY_WRITTEN: Final = frozenset(
    (
        0,
        Kind.SCOPE,
        Kind.SCOPE_NAME,
        Kind.SESSION_NAME,
        Kind.THREAD_NAME,
        Kind.KV_NAMESPACE,
        Kind.CARE,
    )
)
_NAME_BUCKETS: Final = 64
_COUNTER_BYTES: Final = 2
_OBJECT_BYTES: Final = 17
"""Kind, scope and number of an object."""
_SCOPE_BYTES: Final = 9
_CARE_BYTES: Final = 10
"""Kind, scope 0 and row: the database's tombstones and erasures, its holds, and so on."""
_LAST: Final = b"\xff" * (KEY_BYTES_MAX + 1)


def partition_of(key: bytes) -> bytes:
    """Return the partition of a key; of a prefix shorter than a partition: b""."""
    kind = key[0]
    if kind == Kind.EXPIRY:  # with the row that expires, so that both are checked at once
        return partition_of(key[_SCOPE_BYTES:]) if len(key) > _SCOPE_BYTES else b""
    if kind == Kind.SCOPE_NAME:
        return bytes((kind, crc32(key) % _NAME_BUCKETS))
    if kind in (0, Kind.COUNTER):
        return key
    size = _OBJECT_BYTES if kind in _BY_OBJECT else _SCOPE_BYTES
    if kind == Kind.CARE and key[1:_SCOPE_BYTES] == bytes(8):
        size = _CARE_BYTES
    found = bytes((Kind.BLOB,)) + key[1:size] if kind in _BY_BLOBS else key[:size]
    return found if len(key) >= size else b""


def partition_of_row(key: bytes) -> bytes:
    """Return the partition of a row's key.

    Raises:
        CorruptValueError: the key is too short for one of its kind.
    """
    found = partition_of(key)
    if not found:
        raise malformed(key)
    return found


def partition_of_range(start: bytes, stop: bytes) -> bytes:
    """Return the partition that holds every key of ``start <= key < stop``; b"" if several do."""
    kind = start[0]
    if kind in (0, Kind.COUNTER, Kind.EXPIRY, Kind.SCOPE_NAME):
        return b""
    found = partition_of(start)
    if not found:
        return b""
    if kind in _BY_BLOBS:  # one partition, whose keys do not lie together
        return found if stop <= after(start[:_SCOPE_BYTES]) else b""
    return found if start >= found and stop <= after(found) else b""


def is_rarely_written(partition: bytes) -> bool:
    """Return True if readers check its version without a lock: nearly every change reads it.

    Names, tombstones and the format record. A change of a name also writes what the name stands
    for, so a commit that missed it conflicts there.
    """
    return partition[0] in _RARELY_WRITTEN


def needs_barrier(partition: bytes) -> bool:
    """Return True if a change of it has to wait for all commits under way.

    Tombstones, holds and the format record: they forbid what others may be about to commit, and
    those lock no partition that such a change writes.
    """
    return partition[0] in (0, Kind.CARE)


def is_counter(key: bytes) -> bool:
    """Return True if a key is that of a counter, from which processes take blocks of numbers."""
    return len(key) == _COUNTER_BYTES and key[0] == Kind.COUNTER and key[1] != Counter.DATA_KEY


_HOT_OF_SESSION: Final = (
    (Row.HEAD, 2, False),
    (Row.INDEX, 36, True),  # the pages of an incomplete block of 1,024 items, and of the one before
    (Row.ITEM, 512, True),
    (Row.VIEW, 4, True),
    (Row.USAGE, 2, False),
    (Row.LEASE, 2, False),
    (Row.USES, 2, False),
)
"""Row byte, number of rows and whether they are the last ones of a session."""
_HOT_BYTES: Final = 64 * 1024
"""Of values, at about most, in each range of a session: items of 8,000 tokens of English."""
_ROWS_FIRST: Final = {Kind.CARE: 64, Kind.STATE: 512, Kind.THREAD: 512, Kind.CHUNK: 2048}
BYTES_MAX: Final = 16 * 1024**2
"""Of values, at about most, in one range of an answer."""
ERASURES: Final = bytes((Kind.CARE,)) + bytes(8) + bytes((Care.ERASURE,))
"""Partition that nearly every transaction reads: who was erased."""

_FEW: Final = 8
"""New keys below which each is inserted by itself, rather than all sorted anew."""

Range = tuple[bytes, bytes, int, int, bool]
"""First key, key behind the last, number of rows, bytes of values, and whether from the end.

It ends with the row that completes either of them."""


def first_ranges(partition: bytes) -> list[Range]:
    """Return the ranges that are read along when a partition is first used.

    They hold what the next calls need: one trip to a server brings all of it.
    """
    kind = partition[0]
    if kind == Kind.SESSION:
        return [
            (partition + bytes((row,)), partition + bytes((row + 1,)), count, _HOT_BYTES, is_end)
            for row, count, is_end in _HOT_OF_SESSION
        ]
    count = _ROWS_FIRST.get(kind, 0)
    return [(partition, after(partition), count, BYTES_MAX, False)] if count else []


class Partition:
    """Rows of one partition as known at one version. Its user holds the lock of the cache.

    ``rows`` has None for keys that are known to be absent, ``order`` the sorted keys of rows that
    are there, ``known`` the sorted, disjoint intervals ``(start, stop)`` of which every row is
    known.
    """

    __slots__ = ("is_begun", "known", "order", "rows", "size", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.rows: dict[bytes, bytes | None] = {}
        self.order: list[bytes] = []
        self.known: list[tuple[bytes, bytes]] = []
        self.size = 0
        """Bytes of keys and values."""
        self.is_begun = False
        """True if ``first_ranges`` were read."""

    def learn(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take over rows; None: there is no such row."""
        new = []
        for key, value in rows:
            before = self.rows.get(key)
            if before is None and value is not None:
                new.append(key)
            elif before is not None and value is None:
                del self.order[bisect_left(self.order, key)]
            self.size += len(value or b"") - len(before or b"")
            self.size += 0 if key in self.rows else len(key)
            self.rows[key] = value
        if len(new) < _FEW:
            for key in new:
                insort(self.order, key)
        else:
            self.order += new
            self.order.sort()

    def learn_range(self, start: bytes, stop: bytes) -> None:
        """Note that every row of ``start <= key < stop`` is known."""
        if start >= stop:
            return
        apart = []
        for begin, end in self.known:
            if end < start or begin > stop:
                apart.append((begin, end))
            else:
                start, stop = min(begin, start), max(end, stop)
        insort(apart, (start, stop))
        self.known = apart

    def get(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether it is known what is stored under a key, and the value."""
        if key in self.rows:
            return True, self.rows[key]
        at = bisect_right(self.known, (key, _LAST)) - 1
        return at >= 0 and self.known[at][1] > key, None

    def leading(
        self, start: bytes, stop: bytes, *, reverse: bool
    ) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        """Return the rows that are known from one end of a range on, and how far that reaches.

        None if nothing is known at that end. The second value is the bound that is left: the new
        ``start``, or with ``reverse`` the new ``stop``.
        """
        for begin, end in self.known:
            if begin < stop <= end if reverse else begin <= start < end:
                break
        else:
            return None
        start, stop = (max(begin, start), stop) if reverse else (start, min(end, stop))
        keys = self.order[bisect_left(self.order, start) : bisect_left(self.order, stop)]
        rows = [(key, value) for key in keys if (value := self.rows[key]) is not None]
        return (rows[::-1], start) if reverse else (rows, stop)
