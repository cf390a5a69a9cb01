"""The rows behind a key/value namespace: entries, expiry rows, holds on contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from memcore import blobs, keys
from memcore.blobs import BlobRef
from memcore.codec import FLAG_BLOB, FLAG_BYTES, FLAG_EXPIRES, decode_json, open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.keys import Kind
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = [
    "Entry",
    "Place",
    "clear_range",
    "clear_scope",
    "due_rows",
    "entry_of",
    "expire_rows",
    "forget",
    "reference_in",
    "references",
    "sweep",
    "write_entry",
]

Place = tuple[int, int]
"""``(scope, namespace)`` as numbers."""
Find = Callable[[ReadTxn], Place | None]
Ensure = Callable[[Txn], Place]

_EXPIRY_BYTES: Final = 8
_REF_BYTES: Final = 25
_EXPIRY_PAGES: Final = 4
"""What the removal of an expiry row costs: it lies anywhere."""
SWEEP_LIMIT: Final = 1000
"""Entries that one sweep removes unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored value; ``flags`` are the codec's without FLAG_EXPIRES and FLAG_BLOB."""

    flags: int
    payload: bytes
    expires_ms: int | None
    ref: BlobRef | None = None
    """Its content, of which it holds one reference."""

    def is_visible(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def value(self) -> Any:
        """What the caller stored."""
        return self.payload if self.flags & FLAG_BYTES else decode_json(self.payload, self.flags)


def entry_of(key: bytes, value: bytes) -> Entry:
    """The entry of a row.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    if not flags & (FLAG_EXPIRES | FLAG_BLOB):
        return Entry(flags, body, None)
    expires_ms, ref, start = None, None, 0
    if flags & FLAG_EXPIRES:
        expires_ms, start = int.from_bytes(body[:_EXPIRY_BYTES], "big"), _EXPIRY_BYTES
    if flags & FLAG_BLOB:
        ref, start = reference_in(flags, body), start + _REF_BYTES
    return Entry(flags & ~(FLAG_EXPIRES | FLAG_BLOB), body[start:], expires_ms, ref)


def reference_in(flags: int, body: bytes) -> BlobRef:
    """The reference in the body of an entry that has a content.

    Raises:
        CorruptValueError: there is none.
    """
    start = _EXPIRY_BYTES if flags & FLAG_EXPIRES else 0
    return BlobRef.unpack(body[start : start + _REF_BYTES])


def _body(entry: Entry) -> tuple[bytes, int]:
    """The body of the entry's row, and its flags."""
    body, flags = entry.payload, entry.flags
    if entry.ref is not None:
        body, flags = entry.ref.pack() + body, flags | FLAG_BLOB
    if entry.expires_ms is not None:
        body, flags = keys.u64(entry.expires_ms) + body, flags | FLAG_EXPIRES
    return body, flags


def references(txn: ReadTxn, scope: int) -> Iterator[tuple[bytes, BlobRef]]:
    """Key and content of each entry of the scope that has one; damaged entries are passed over."""
    prefix = keys.scoped(Kind.KV, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        if any(flags & FLAG_BLOB for flags in value[1:2]):
            with suppress(CorruptValueError):
                ref = entry_of(key, value).ref
                if ref is not None:
                    yield key, ref


def forget(txn: Txn, key: bytes, now_ms: int, leaving: list[bytes]) -> bool | None:
    """Remove what the entry has beside its row; whether it is visible, None if there is none.

    That is its expiry row and its hold on its content: slots of which rows are left go to
    ``leaving``. A damaged entry counts as visible: it must be possible to overwrite and delete it.
    """
    value = txn.get(key)
    if value is None:
        return None
    try:
        entry = entry_of(key, value)
    except CorruptValueError:
        return True
    _leave(txn, key, entry, leaving)
    return entry.is_visible(now_ms)


def write_entry(txn: Txn, key: bytes, entry: Entry, now_ms: int, leaving: list[bytes]) -> None:
    """Write an entry; of its content the caller has taken hold."""
    forget(txn, key, now_ms, leaving)
    txn.put(key, seal_value(key, *_body(entry)))
    if entry.expires_ms is not None:
        row = keys.expiry_row(entry.expires_ms, key)
        txn.put(row, seal_value(row, b""))


def clear_range(
    txn: Txn, start: bytes, stop: bytes, now_ms: int, leaving: list[bytes]
) -> tuple[int, bytes | None]:
    """Remove the first piece of a range of entries with what they have beside their rows.

    Returns how many were visible, and where the next piece starts (None: nothing is left).
    """
    visible = 0
    piece = Piece()
    beside: list[tuple[bytes, Entry]] = []
    following = None
    for key, value in txn.scan(start, stop):
        try:
            entry = entry_of(key, value)
        except CorruptValueError:
            entry = None
        expires = entry is not None and entry.expires_ms is not None
        pages = _EXPIRY_PAGES * expires + _content_pages(entry)
        if not piece.admits(len(value), more_pages=pages):
            following = key
            break
        visible += entry is None or entry.is_visible(now_ms)
        if entry is not None and (entry.expires_ms is not None or entry.ref is not None):
            beside.append((key, entry))
    for key, entry in beside:
        _leave(txn, key, entry, leaving)
    txn.delete_range(start, following or stop)
    return visible, following


def _content_pages(entry: Entry | None) -> int:
    """Pages that go with the content of an entry, at most."""
    return 0 if entry is None or entry.ref is None else blobs.pages_of(entry.ref.size)


def _leave(txn: Txn, key: bytes, entry: Entry, leaving: list[bytes]) -> None:
    """Remove what an entry has beside its row."""
    if entry.expires_ms is not None:
        txn.delete(keys.expiry_row(entry.expires_ms, key))
    if entry.ref is not None:
        leaving += blobs.let_go(txn, keys.split_session_prefix(key)[0], entry.ref)


def clear_scope(txn: Txn, scope: int, *, now_ms: int) -> int:
    """Remove all entries of all namespaces of a scope; how many were visible.

    Expiry rows hold full keys outside the scope's own ranges: an erasure must come through here.
    """
    prefix = keys.scoped(Kind.KV, scope)
    visible = 0
    start: bytes | None = prefix
    while start is not None:
        more, start = clear_range(txn, start, keys.after(prefix), now_ms, [])
        visible += more
    return visible


def sweep(txn: Txn, *, now_ms: int, limit: int = SWEEP_LIMIT) -> int:
    """Remove at most ``limit`` expired entries, the oldest first, in all scopes; how many.

    One transaction removes one piece: call it again until it returns 0.
    """
    return expire_rows(txn, due_rows(txn, bytes((Kind.KV,)), now_ms, limit), now_ms, [])[0]


def due_rows(txn: ReadTxn, prefix: bytes, now_ms: int, limit: int) -> list[bytes]:
    """Up to ``limit`` expiry rows of entries under ``prefix`` whose time has come."""
    due: list[bytes] = []
    if limit:
        for row, _ in txn.scan(keys.expiry_row(0, b""), keys.expiry_row(now_ms + 1, b"")):
            if keys.split_expiry_row(row)[1].startswith(prefix):
                due.append(row)
                if len(due) == limit:
                    break
    return due


def expire_rows(
    txn: Txn, due: list[bytes], now_ms: int, leaving: list[bytes]
) -> tuple[int, list[bytes]]:
    """Remove a piece of what is due: how many entries, and what is left for the next piece."""
    removed = 0
    piece = Piece()
    for at, row in enumerate(due):
        expires_ms, key = keys.split_expiry_row(row)
        value = txn.get(key)
        entry = None
        with suppress(CorruptValueError):  # left for check() to report
            entry = None if value is None else entry_of(key, value)
        if not piece.admits(len(value or b""), more_pages=_EXPIRY_PAGES + _content_pages(entry)):
            return removed, due[at:]
        # The entry may have been written anew since the rows were listed.
        if entry is None or entry.expires_ms != expires_ms or entry.is_visible(now_ms):
            txn.delete(row)
        else:
            _leave(txn, key, entry, leaving)
            removed += txn.delete(key)
    return removed, []
