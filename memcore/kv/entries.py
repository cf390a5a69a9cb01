"""The rows behind a key/value namespace: entries, expiry rows, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from memcore import keys
from memcore.codec import FLAG_BYTES, FLAG_EXPIRES, decode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = ["Entry", "Page", "Place", "Reader", "Writer", "clear_scope", "scan_pages", "sweep"]

Place = tuple[int, int]
"""``(scope, namespace)`` as numbers."""
Find = Callable[[ReadTxn], Place | None]
Ensure = Callable[[Txn], Place]

_PAGE_ROWS: Final = 256
_PAGE_BYTES: Final = 4 * 1024**2
"""A page of a scan ends here even if it holds fewer rows: values reach 64 MiB."""
_EXPIRY_BYTES: Final = 8
_EXPIRY_PAGES: Final = 4
"""What the removal of an expiry row costs: it lies anywhere."""
SWEEP_LIMIT: Final = 1000
"""Entries that one sweep removes unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored value; ``flags`` are the codec's without FLAG_EXPIRES."""

    flags: int
    payload: bytes
    expires_ms: int | None

    def is_visible(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def value(self) -> Any:
        """What the caller stored."""
        return self.payload if self.flags & FLAG_BYTES else decode_json(self.payload, self.flags)


def _entry(key: bytes, value: bytes) -> Entry:
    flags, body = open_value(key, value)
    if flags & FLAG_EXPIRES:
        expires_ms = int.from_bytes(body[:_EXPIRY_BYTES], "big")
        return Entry(flags ^ FLAG_EXPIRES, body[_EXPIRY_BYTES:], expires_ms)
    return Entry(flags, body, None)


def _forget(txn: Txn, key: bytes, now_ms: int) -> bool | None:
    """Remove the expiry row of the entry; whether the entry is visible, None if there is none.

    A damaged entry counts as visible: it must be possible to overwrite and delete it.
    """
    value = txn.get(key)
    if value is None:
        return None
    try:
        entry = _entry(key, value)
    except CorruptValueError:
        return True
    if entry.expires_ms is not None:
        txn.delete(keys.expiry_row(entry.expires_ms, key))
    return entry.is_visible(now_ms)


def _write(txn: Txn, key: bytes, entry: Entry, now_ms: int) -> None:
    _forget(txn, key, now_ms)
    if entry.expires_ms is None:
        txn.put(key, seal_value(key, entry.payload, entry.flags))
        return
    body = keys.u64(entry.expires_ms) + entry.payload
    txn.put(key, seal_value(key, body, entry.flags | FLAG_EXPIRES))
    row = keys.expiry_row(entry.expires_ms, key)
    txn.put(row, seal_value(row, b""))


def _clear(txn: Txn, start: bytes, stop: bytes, now_ms: int) -> tuple[int, bytes | None]:
    """Remove the first piece of a range of entries with their expiry rows.

    Returns how many were visible, and where the next piece starts (None: nothing is left).
    """
    visible = 0
    piece = Piece()
    expiry_rows: list[bytes] = []
    following = None
    for key, value in txn.scan(start, stop):
        expires = bool(value[1:2] and value[1] & FLAG_EXPIRES)
        if not piece.admits(len(value), more_pages=_EXPIRY_PAGES * expires):
            following = key
            break
        try:
            entry = _entry(key, value)
        except CorruptValueError:
            visible += 1
            continue
        visible += entry.is_visible(now_ms)
        if entry.expires_ms is not None:
            expiry_rows.append(keys.expiry_row(entry.expires_ms, key))
    txn.delete_range(start, following or stop)
    for row in expiry_rows:
        txn.delete(row)
    return visible, following


def clear_scope(txn: Txn, scope: int, *, now_ms: int) -> int:
    """Remove all entries of all namespaces of a scope; how many were visible.

    Expiry rows hold full keys outside the scope's own ranges: an erasure must come through here.
    """
    prefix = keys.scoped(Kind.KV, scope)
    visible = 0
    start: bytes | None = prefix
    while start is not None:
        more, start = _clear(txn, start, keys.after(prefix), now_ms)
        visible += more
    return visible


def sweep(txn: Txn, *, now_ms: int, limit: int = SWEEP_LIMIT) -> int:
    """Remove at most ``limit`` expired entries, the oldest first, in all scopes; how many.

    One transaction removes one piece: call it again until it returns 0.
    """
    return _expire(txn, _due(txn, bytes((Kind.KV,)), now_ms, limit), now_ms)[0]


def _due(txn: ReadTxn, prefix: bytes, now_ms: int, limit: int) -> list[bytes]:
    """Up to ``limit`` expiry rows of entries under ``prefix`` whose time has come."""
    due: list[bytes] = []
    if limit:
        for row, _ in txn.scan(keys.expiry_row(0, b""), keys.expiry_row(now_ms + 1, b"")):
            if keys.split_expiry_row(row)[1].startswith(prefix):
                due.append(row)
                if len(due) == limit:
                    break
    return due


def _expire(txn: Txn, due: list[bytes], now_ms: int) -> tuple[int, list[bytes]]:
    """Remove a piece of what is due: how many entries, and what is left for the next piece."""
    removed = 0
    piece = Piece()
    for at, row in enumerate(due):
        expires_ms, key = keys.split_expiry_row(row)
        value = txn.get(key)
        if not piece.admits(len(value or b""), more_pages=_EXPIRY_PAGES):
            return removed, due[at:]
        txn.delete(row)
        if value is None:
            continue
        try:
            entry = _entry(key, value)
        except CorruptValueError:
            continue  # left for check() to report
        # The entry may have been written anew since the rows were listed.
        if entry.expires_ms == expires_ms and not entry.is_visible(now_ms):
            removed += txn.delete(key)
    return removed, []


@dataclass(frozen=True, slots=True)
class Page:
    """Visible entries of one read."""

    rows: list[tuple[str, Entry]]
    last: bytes | None
    """Packed key of the last row looked at; None if the range is done."""


_DONE: Final = Page([], None)


def _page(
    txn: ReadTxn,
    prefix: bytes,
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    now_ms: int,
    wanted: int,
) -> Page:
    start = prefix + low
    stop = keys.after(prefix) if high is None else prefix + high
    rows: list[tuple[str, Entry]] = []
    size = 0
    for seen, (key, value) in enumerate(
        txn.scan(start, stop, reverse=reverse, limit=_PAGE_ROWS), 1
    ):
        packed = key[len(prefix) :]
        entry = _entry(key, value)
        if entry.is_visible(now_ms):
            rows.append((keys.unpack_text(packed), entry))
        size += len(value)
        if seen == _PAGE_ROWS or size >= _PAGE_BYTES or len(rows) == wanted:
            return Page(rows, packed)
    return Page(rows, None)


def scan_pages(
    next_page: Callable[[bytes, bytes | None, int], Page],
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    limit: int | None,
) -> Iterator[tuple[str, Any]]:
    """Decoded entries, one page after the other, until ``limit`` or the end of the range."""
    left = limit
    while left is None or left > 0:
        page = next_page(low, high, _PAGE_ROWS if left is None else min(left, _PAGE_ROWS))
        for key, entry in page.rows:
            yield key, entry.value()
        if page.last is None:
            return
        if left is not None:
            left -= len(page.rows)
        low, high = (low, page.last) if reverse else (keys.behind(page.last), high)


class Reader:
    """The entries of one namespace in one snapshot; keys and bounds are packed."""

    def __init__(self, txn: ReadTxn, find: Find, now_ms: int) -> None:
        place = find(txn)
        self._txn = txn
        self._now_ms = now_ms
        # None: nothing was ever stored in this namespace.
        self._prefix = None if place is None else keys.kv_prefix(*place)

    def load(self, packed: bytes) -> Entry | None:
        """The entry if it is there and visible."""
        if self._prefix is None:
            return None
        key = self._prefix + packed
        value = self._txn.get(key)
        if value is None:
            return None
        entry = _entry(key, value)
        return entry if entry.is_visible(self._now_ms) else None

    def page(self, low: bytes, high: bytes | None, *, reverse: bool, wanted: int) -> Page:
        """The first visible entries of a range, from its end if reversed."""
        if self._prefix is None:
            return _DONE
        return _page(
            self._txn,
            self._prefix,
            low,
            high,
            reverse=reverse,
            now_ms=self._now_ms,
            wanted=wanted,
        )

    def due(self, limit: int) -> list[bytes]:
        """Up to ``limit`` expiry rows whose time has come."""
        return [] if self._prefix is None else _due(self._txn, self._prefix, self._now_ms, limit)


class Writer(Reader):
    """The entries of one namespace in one write transaction."""

    def __init__(self, txn: Txn, find: Find, ensure: Ensure, now_ms: int) -> None:
        super().__init__(txn, find, now_ms)
        self._txn: Txn = txn
        self._ensure = ensure

    def put(self, packed: bytes, flags: int, payload: bytes, ttl_ms: int | None) -> None:
        """Write an entry that expires in ``ttl_ms``."""
        self.write(packed, Entry(flags, payload, None if ttl_ms is None else self._now_ms + ttl_ms))

    def write(self, packed: bytes, entry: Entry) -> None:
        """Write an entry with its expiry row."""
        if self._prefix is None:
            self._prefix = keys.kv_prefix(*self._ensure(self._txn))
        _write(self._txn, self._prefix + packed, entry, self._now_ms)

    def remove(self, packed: bytes) -> bool:
        """Remove an entry; whether it was visible."""
        if self._prefix is None:
            return False
        visible = _forget(self._txn, self._prefix + packed, self._now_ms)
        if visible is None:
            return False
        self._txn.delete(self._prefix + packed)
        return visible

    def clear(self, low: bytes, high: bytes | None) -> tuple[int, bytes | None]:
        """Remove the first piece of a range; how many were visible, and where the next starts."""
        if self._prefix is None:
            return 0, None
        stop = keys.after(self._prefix) if high is None else self._prefix + high
        visible, following = _clear(self._txn, self._prefix + low, stop, self._now_ms)
        return visible, following and following[len(self._prefix) :]

    def expire(self, due: list[bytes]) -> tuple[int, list[bytes]]:
        """Remove the entries behind a piece of these expiry rows if they are still due.

        Returns how many, and the expiry rows of the next piece.
        """
        return _expire(self._txn, due, self._now_ms)
