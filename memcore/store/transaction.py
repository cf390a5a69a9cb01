"""Transactions: snapshots for reading, recording transactions for writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from memcore._fast import RecordingTxn
from memcore.errors import InternalError
from memcore.limits import KEY_BYTES_MAX
from memcore.store.datafile import AUDITED, FORMAT_KEY, Format
from memcore.store.interface import ReadTxn

if TYPE_CHECKING:
    from memcore.store.encryption import RowCipher

__all__ = [
    "RawTxn",
    "Snapshot",
    "WriteTxn",
    "is_audited",
    "stored",
    "stored_rows",
]


_FIRST_KEY: Final = b"\x01"
"""First key of the callers; lower ones are reserved for the store."""


class RawCursor(Protocol):
    """Methods of a py-lmdb cursor that this module uses."""

    def set_range(self, key: bytes) -> bool:
        """Move to the first key greater than or equal to ``key``."""

    def last(self) -> bool:
        """Move to the last key."""

    def next(self) -> bool:
        """Move to the next row."""

    def prev(self) -> bool:
        """Move to the previous row."""

    def key(self) -> bytes:
        """Return the current key."""

    def value(self) -> bytes:
        """Return the current value."""

    def delete(self) -> bool:
        """Delete the current row and move to the next."""

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate forward from the current row."""

    def iterprev(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate backward from the current row."""

    def close(self) -> None:
        """Close the cursor."""


class RawTxn(Protocol):  # the methods are py-lmdb's, documented there
    """Methods of a py-lmdb transaction that this package uses."""

    def id(self) -> int:
        """Return the number of the snapshot that it writes or reads."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a key, or None."""

    def put(self, key: bytes, value: bytes, /) -> bool:
        """Write a row."""

    def delete(self, key: bytes, /) -> bool:
        """Delete a row."""

    def cursor(self) -> RawCursor:
        """Open a cursor over the rows."""

    def commit(self) -> None:
        """Commit and end."""

    def abort(self) -> None:
        """Roll back and end; a no-op after the end."""


_GET: Final[Any] = property(attrgetter("get"))
"""The method ``get``, under another name without a frame of its own."""


def _ended(*_: Any) -> NoReturn:
    raise InternalError("a transaction was used after its end")


class Snapshot:
    """A read transaction. ``get`` is LMDB's own method, without a Python frame in between."""

    __slots__ = ("get", "raw", "vault")
    is_remote = False

    def __init__(self) -> None:
        self.raw: RawTxn | None = None
        self.vault: RowCipher | None = None
        self.get: Callable[[bytes], bytes | None] = _ended

    get_new: Any = _GET

    def drop(self) -> RawTxn | None:
        """Detach LMDB's transaction and return it; later use raises InternalError."""
        raw, self.raw, self.get = self.raw, None, _ended
        return raw

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``."""
        raw = self.raw
        if raw is None:
            _ended()
        found = _rows(raw, max(start, _FIRST_KEY), stop, reverse, limit)
        return found if self.vault is None else self.vault.rows(found)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on."""
        found = _take(self.raw, start, count)
        return found if self.vault is None else list(self.vault.rows(found))

    def prefetch(self, keys: Sequence[bytes], /) -> None:
        """Do nothing: each key is read where it lies."""

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int, /) -> None:
        """Do nothing: each row is read where it lies."""


def stored(txn: ReadTxn) -> RawTxn:
    """Return LMDB's own transaction, which reads rows as stored, not decrypted.

    Raises:
        InternalError: the transaction has ended.
    """
    raw: RawTxn | None = getattr(txn, "raw", None)
    if raw is None:
        _ended()
    return raw


def is_audited(txn: ReadTxn, path: str) -> bool:
    """Return True if the file's format record says that every write is audited."""
    record = Format.unpack(stored(txn).get(FORMAT_KEY), path)
    return bool(record.features & AUDITED)


def stored_rows(
    txn: ReadTxn, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
) -> Iterator[tuple[bytes, bytes]]:
    """Scan rows as stored, not decrypted; otherwise as ``scan``."""
    return _rows(stored(txn), max(start, _FIRST_KEY), stop, reverse, limit)


def _take(raw: RawTxn | None, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
    if raw is None:
        _ended()
    cursor = raw.cursor()
    try:
        if not cursor.set_range(max(start, _FIRST_KEY)[:KEY_BYTES_MAX]):
            return []
        return list(islice(cursor.iternext(), count))
    finally:
        cursor.close()


def _rows(
    raw: RawTxn, start: bytes, stop: bytes, reverse: bool, limit: int
) -> Iterator[tuple[bytes, bytes]]:
    # A bound may be longer than any key: truncate it to the length that LMDB accepts for seeking.
    seek = (stop if reverse else start)[:KEY_BYTES_MAX]
    cursor = raw.cursor()
    try:
        if reverse:
            found = cursor.prev() if cursor.set_range(seek) else cursor.last()
        else:
            found = cursor.set_range(seek)
        left = limit or -1
        if not found or not left:
            return
        for row in cursor.iterprev() if reverse else cursor.iternext():
            key = row[0]
            if reverse:
                if key < start:
                    return
                if key >= stop:
                    continue
            elif key >= stop:
                return
            elif key < start:
                continue
            yield row
            left -= 1
            if not left:
                return
    finally:
        cursor.close()


class WriteTxn(RecordingTxn):
    """A write transaction shared by the closures of one batch; records what it writes.

    ``dirty`` means that the running closure has written; ``failed`` is the error of an operation
    that LMDB refused: such a transaction must not be committed even if the closure swallowed the
    error. ``puts`` maps the keys that were put to their value sizes, for estimating pages.
    """

    __slots__ = ()
    ended = staticmethod(_ended)
    is_remote = False
    get_new: Any = _GET

    def need_feature(self, feature: int) -> None:
        """Set a feature bit; a memcore that does not know it refuses the file from now on."""
        record = Format.unpack(stored(self).get(FORMAT_KEY), "the file")
        if not record.features & feature:
            self.put_own(FORMAT_KEY, record._replace(features=record.features | feature).pack())

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Delete all rows with ``start <= key < stop``; returns their number."""
        raw = self.raw
        if raw is None:
            _ended()
        start = max(start, _FIRST_KEY)
        count = 0
        try:
            cursor = raw.cursor()
            found = cursor.set_range(start[:KEY_BYTES_MAX])
            while found:
                key = cursor.key()
                if key >= stop:
                    break
                if key < start:  # a truncated bound may find its own prefix, which is outside
                    found = cursor.set_range(key + b"\0")
                    continue
                self.dirty = self.deleted = True
                cursor.delete()
                count += 1
                if self.recording:
                    self.record(key, None)
                # ``delete`` has moved the cursor on; behind the last row its key is empty.
                found = bool(cursor.key())
            cursor.close()
        except Exception as error:
            self.failed = error
            raise
        if count and self.audit is not None:
            self.audit.note_range(start, stop)
        return count

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop``, including this transaction's writes."""
        raw = self.raw
        if raw is None:
            _ended()
        found = _rows(raw, max(start, _FIRST_KEY), stop, reverse, limit)
        return found if self.vault is None else self.vault.rows(found)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on, this transaction's writes included."""
        found = _take(self.raw, start, count)
        return found if self.vault is None else list(self.vault.rows(found))

    def prefetch(self, keys: Sequence[bytes], /) -> None:
        """Do nothing: each key is read where it lies."""

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int, /) -> None:
        """Do nothing: each row is read where it lies."""

    def _refuse_key(self, key: bytes) -> NoReturn:
        what = "is empty" if not key else "is reserved" if not key[0] else f"has {len(key)} bytes"
        raise InternalError(
            f"key {key[:40]!r} {what}; keys have 1..{KEY_BYTES_MAX} bytes and do not start with 00"
        )
