"""Rows of a key/value namespace: entries, expiry rows, references to contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from math import ceil
from typing import Any, Final

from memcore import blobs
from memcore.blobs import BlobRef
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import (
    FLAG_BLOB,
    FLAG_BYTES,
    FLAG_EXPIRES,
    decode_json,
    decoding,
    encode_json,
    open_value,
    seal_value,
)
from memcore.errors import (
    CorruptValueError,
    InternalError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.limits import KV_KEY_BYTES_MAX, KV_VALUE_BYTES_MAX
from memcore.records import record
from memcore.store.interface import DeleteBudget, ReadTxn, Txn

__all__ = [
    "KvEntry",
    "Place",
    "bounds",
    "checked_content",
    "checked_count",
    "checked_ttl_ms",
    "clear_range",
    "clear_scope",
    "due_rows",
    "encoded",
    "entry_of",
    "expire_rows",
    "forget",
    "hold",
    "packed_key",
    "read_content",
    "reference_in",
    "references",
    "sweep",
    "write_entry",
]


# --- Rows of a key/value namespace: entries, expiry rows, references to contents ------------------

Place = tuple[int, int]
"""Numbers of ``(scope, namespace)``."""
Find = Callable[[ReadTxn], Place | None]
Ensure = Callable[[Txn], Place]

_EXPIRY_BYTES: Final = 8
_REF_BYTES: Final = 25
_EXPIRY_PAGES: Final = 4
"""Pages for removing an expiry row, which may be anywhere in the tree."""
SWEEP_LIMIT: Final = 1000
"""Default number of entries that one sweep removes."""


@record(frozen=True, slots=True)
class KvEntry:
    """One stored value; ``flags`` are the codec's, without FLAG_EXPIRES and FLAG_BLOB."""

    flags: int
    payload: bytes
    expires_ms: int | None
    ref: BlobRef | None = None
    """The entry's content, of which it holds one reference."""
    key: bytes = b""
    """Key of its row, if it was read."""

    def is_visible(self, now_ms: int) -> bool:
        """Return whether the entry has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms

    def value(self) -> Any:
        """Decode the value: JSON, or the caller's bytes."""
        if self.flags & FLAG_BYTES:
            return self.payload
        with decoding(self.key, "entry"):
            return decode_json(self.payload, self.flags)


def entry_of(key: bytes, value: bytes) -> KvEntry:
    """Decode the entry of a row.

    Raises:
        CorruptValueError: the row is damaged.
    """
    flags, body = open_value(key, value)
    if not flags & (FLAG_EXPIRES | FLAG_BLOB):
        return KvEntry(flags, body, None, None, key)
    expires_ms, ref, start = None, None, 0
    if flags & FLAG_EXPIRES:
        expires_ms, start = int.from_bytes(body[:_EXPIRY_BYTES], "big"), _EXPIRY_BYTES
    if flags & FLAG_BLOB:
        ref, start = reference_in(flags, body), start + _REF_BYTES
    return KvEntry(flags & ~(FLAG_EXPIRES | FLAG_BLOB), body[start:], expires_ms, ref, key)


def reference_in(flags: int, body: bytes) -> BlobRef:
    """Decode the reference in the body of an entry that has a content.

    Raises:
        CorruptValueError: it holds no reference.
    """
    start = _EXPIRY_BYTES if flags & FLAG_EXPIRES else 0
    return BlobRef.unpack(body[start : start + _REF_BYTES])


def _body(entry: KvEntry) -> tuple[bytes, int]:
    """Encode the body of the entry's row, and its flags."""
    body, flags = entry.payload, entry.flags
    if entry.ref is not None:
        body, flags = entry.ref.pack() + body, flags | FLAG_BLOB
    if entry.expires_ms is not None:
        body, flags = keys.u64(entry.expires_ms) + body, flags | FLAG_EXPIRES
    return body, flags


def references(txn: ReadTxn, scope: int) -> Iterator[tuple[bytes, BlobRef]]:
    """Yield key and content reference of each entry that has one; skips damaged entries."""
    prefix = keys.scoped(Kind.KV, scope)
    for key, value in txn.scan(prefix, keys.after(prefix)):
        if any(flags & FLAG_BLOB for flags in value[1:2]):
            with suppress(CorruptValueError):
                ref = entry_of(key, value).ref
                if ref is not None:
                    yield key, ref


def forget(txn: Txn, key: bytes, now_ms: int, leaving: list[bytes]) -> bool | None:
    """Remove an entry's expiry row and reference; returns whether it is visible, None if absent.

    Large contents whose rows are yet to be removed are added to ``leaving``. A damaged entry counts
    as visible, so that it can be overwritten and deleted.
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


def write_entry(txn: Txn, key: bytes, entry: KvEntry, now_ms: int, leaving: list[bytes]) -> None:
    """Write an entry; the caller has acquired its content."""
    forget(txn, key, now_ms, leaving)
    txn.put(key, seal_value(key, *_body(entry)))
    if entry.expires_ms is not None:
        row = keys.expiry_row(entry.expires_ms, key)
        txn.put(row, seal_value(row, b""))


def clear_range(
    txn: Txn, start: bytes, stop: bytes, now_ms: int, leaving: list[bytes]
) -> tuple[int, bytes | None]:
    """Remove the first piece of a range of entries, with their expiry rows and references.

    Returns the number of visible entries, and the start of the next piece (None: the range is
    empty).
    """
    visible = 0
    piece = DeleteBudget()
    beside: list[tuple[bytes, KvEntry]] = []
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


def _content_pages(entry: KvEntry | None) -> int:
    """Return the maximum number of pages that removing the entry's content takes."""
    return 0 if entry is None or entry.ref is None else blobs.pages_of(entry.ref.size)


def _leave(txn: Txn, key: bytes, entry: KvEntry, leaving: list[bytes]) -> None:
    """Remove an entry's expiry row, and release its content."""
    if entry.expires_ms is not None:
        txn.delete(keys.expiry_row(entry.expires_ms, key))
    if entry.ref is not None:
        leaving += blobs.let_go(txn, keys.split_session_prefix(key)[0], entry.ref)


def clear_scope(txn: Txn, scope: int, *, now_ms: int) -> int:
    """Remove all entries of all namespaces of a scope; returns the number of visible ones.

    Expiry rows hold full keys outside the scope's own ranges, so an erasure must use this function.
    """
    prefix = keys.scoped(Kind.KV, scope)
    visible = 0
    start: bytes | None = prefix
    while start is not None:
        more, start = clear_range(txn, start, keys.after(prefix), now_ms, [])
        visible += more
    return visible


def sweep(txn: Txn, *, now_ms: int, limit: int = SWEEP_LIMIT) -> int:
    """Remove at most ``limit`` expired entries in all scopes, oldest first; returns their number.

    One transaction removes one piece: call it again until it returns 0.
    """
    return expire_rows(txn, due_rows(txn, bytes((Kind.KV,)), now_ms, limit), now_ms, [])[0]


def due_rows(txn: ReadTxn, prefix: bytes, now_ms: int, limit: int) -> list[bytes]:
    """List up to ``limit`` expiry rows of entries under ``prefix`` that are due."""
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
    """Remove a piece of the due entries; returns their number, and the rows of the next piece."""
    removed = 0
    piece = DeleteBudget()
    for at, row in enumerate(due):
        expires_ms, key = keys.split_expiry_row(row)
        value = txn.get(key)
        entry = None
        with suppress(CorruptValueError):  # left for check() to report
            entry = None if value is None else entry_of(key, value)
        if not piece.admits(len(value or b""), more_pages=_EXPIRY_PAGES + _content_pages(entry)):
            return removed, due[at:]
        # The entry may have been rewritten since the rows were listed.
        if entry is None or entry.expires_ms != expires_ms:
            txn.delete(row)
        elif not entry.is_visible(now_ms):  # it is, if the clock has gone back since
            _leave(txn, key, entry, leaving)
            removed += txn.delete(key)
    return removed, []


# --- Contents of entries: blobs to which an entry holds one reference each ------------------------
# A reference is acquired in the transaction that writes the entry, and released in the one that
# overwrites, deletes or expires it: a blob exists as long as an entry refers to it.


def hold(txn: Txn, scope: int, content: bytes | BlobRef, seed: int | None) -> BlobRef:
    """Acquire a reference to a content, storing it first unless it was staged.

    Raises:
        StagedBlobLost: it was staged, and has been removed since.
    """
    if isinstance(content, BlobRef):
        ref = content
    elif seed is None:
        raise InternalError("a key/value handle without a seed was given a content")
    else:
        ref = blobs.write(txn, scope, content, seed=seed)
    blobs.acquire(txn, scope, ref)
    return ref


def read_content(txn: ReadTxn, scope: int, ref: BlobRef) -> bytes:
    """Read a content completely.

    Raises:
        CorruptValueError: it is damaged or missing.
    """
    try:
        return blobs.read(txn, scope, ref)
    except NotFoundError as error:
        msg = f"the content of an entry is missing: {error}; run 'memcore check'"
        raise CorruptValueError(msg, key=b"") from error


# --- Argument checks: keys, bounds, counts, times to live, values ---------------------------------

_TTL_SECONDS_MAX: Final = 10**15
"""About thirty million years; added to any clock it stays far below 64 bits of milliseconds."""


def packed_key(key: object) -> bytes:
    """Pack a key as it is compared and stored.

    Raises:
        InvalidOptionError: it is not a string, is empty or is too long.
    """
    if not isinstance(key, str):
        msg = f"a key must be a str, got {type(key).__name__}"
        raise InvalidOptionError(msg)
    if not key:
        msg = "the key is empty: expected at least one character"
        raise InvalidOptionError(msg)
    packed = keys.pack_text(key)
    if len(packed) > KV_KEY_BYTES_MAX:
        msg = (
            f"the key {key[:40]!r}... takes {len(packed) - 1} bytes: expected at most "
            f"{KV_KEY_BYTES_MAX - 1}; use a digest of it as the key"
        )
        raise InvalidOptionError(msg)
    return packed


def _bound(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        msg = f"{what} must be a str, got {type(text).__name__}"
        raise InvalidOptionError(msg)
    # One byte more than any legal key preserves the order relative to all keys and fits the store.
    return keys.text_prefix(text)[: KV_KEY_BYTES_MAX + 1]


def bounds(start: object, stop: object, prefix: object = None) -> tuple[bytes, bytes | None]:
    """Pack ``(low, high)`` for comparison with packed keys; ``high`` None: no upper bound.

    Raises:
        InvalidOptionError: a bound is not a string.
    """
    # A packed key ends in 00, so the bare prefix of a bound sorts before the key itself and after
    # every smaller key.
    low = _bound(start, "start")
    high = None if stop is None else _bound(stop, "stop")
    if prefix is not None:
        begin = _bound(prefix, "prefix")
        if begin:
            low, end = max(low, begin), keys.after(begin)
            high = end if high is None else min(high, end)
    return low, high


def checked_count(count: object, what: str) -> int | None:
    """A count or None.

    Raises:
        InvalidOptionError: it is not an int of at least 0.
    """
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        msg = f"{what} must be None or an int of at least 0, got {_shown(count)}"
        raise InvalidOptionError(msg)
    return count


def checked_content(content: object) -> bytes | BlobRef | None:
    """A content as bytes, a staged content, or None.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if content is None or isinstance(content, bytes | BlobRef):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    msg = f"a content is bytes, got {type(content).__name__}"
    raise InvalidOptionError(msg)


def checked_ttl_ms(ttl_seconds: Any) -> int | None:
    """A time to live in whole milliseconds, at least 1, or None.

    Raises:
        InvalidOptionError: it is not a number, is not above 0, or is larger than a row can hold.
    """
    if ttl_seconds is None:
        return None
    is_number = isinstance(ttl_seconds, (int, float)) and not isinstance(ttl_seconds, bool)
    # NaN compares false; an int outside the range of a float is compared without conversion.
    if is_number and 0 < ttl_seconds <= _TTL_SECONDS_MAX:
        ttl_ms: int = ceil(ttl_seconds * 1000)
        return ttl_ms
    msg = (
        f"ttl_seconds must be a number of seconds above 0 and up to {_TTL_SECONDS_MAX}, got "
        f"{type(ttl_seconds).__name__} {_shown(ttl_seconds)}; leave it out to keep the entry"
    )
    raise InvalidOptionError(msg)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.100}"
    except ValueError:  # an int beyond the interpreter's digit limit
        return "(too long to show)"


def encoded(value: object) -> tuple[int, bytes]:
    """Encode a value as ``(flags, payload)``.

    Raises:
        InvalidItemError: it is neither bytes nor JSON, or is too large.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        flags, payload = FLAG_BYTES, bytes(value)
    else:
        try:
            payload, flags = encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            msg = f"the value is neither bytes nor JSON: {error}"
            raise InvalidItemError(msg) from error
    if len(payload) > KV_VALUE_BYTES_MAX:
        msg = (
            f"the value takes {len(payload)} bytes: expected at most {KV_VALUE_BYTES_MAX}; put it "
            "into scope.blobs and store its address"
        )
        raise InvalidItemError(msg)
    return flags, payload
