"""Transactions: a snapshot to read, a recording transaction to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
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
"""Keys below it are the store's own."""


class RawCursor(Protocol):
    """Methods of a py-lmdb cursor that this module uses."""

    def set_range(self, key: bytes) -> bool:
        """Go to the first key not below."""

    def last(self) -> bool:
        """Go to the last key."""

    def next(self) -> bool:
        """Go one forth."""

    def prev(self) -> bool:
        """Go one back."""

    def key(self) -> bytes:
        """The current key."""

    def value(self) -> bytes:
        """The current value."""

    def delete(self) -> bool:
        """Delete the current row and go to the next."""

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        """Rows from here on."""

    def iterprev(self) -> Iterator[tuple[bytes, bytes]]:
        """Rows from here back."""

    def close(self) -> None:
        """Give the cursor back."""


class RawTxn(Protocol):  # the methods are py-lmdb's, documented there
    """Methods of a py-lmdb transaction that this package uses."""

    def id(self) -> int:
        """The number of the snapshot that it makes or reads."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value under a key."""

    def put(self, key: bytes, value: bytes, /) -> bool:
        """Write a row."""

    def delete(self, key: bytes, /) -> bool:
        """Delete a row."""

    def cursor(self) -> RawCursor:
        """A cursor over the rows."""

    def commit(self) -> None:
        """Commit and end."""

    def abort(self) -> None:
        """End without a trace; nothing happens after an end."""


def _ended(*_: Any) -> NoReturn:
    raise InternalError("a transaction was used after its end")


class Snapshot:
    """A read transaction. ``get`` is LMDB's own method: no frame lies between."""

    __slots__ = ("get", "raw", "vault")

    def __init__(self) -> None:
        self.raw: RawTxn | None = None
        self.vault: RowCipher | None = None
        self.get: Callable[[bytes], bytes | None] = _ended

    def drop(self) -> RawTxn | None:
        """Release LMDB's transaction and return it; later use is a typed error."""
        raw, self.raw, self.get = self.raw, None, _ended
        return raw

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``start <= key < stop``."""
        raw = self.raw
        if raw is None:
            _ended()
        found = _rows(raw, max(start, _FIRST_KEY), stop, reverse, limit)
        return found if self.vault is None else self.vault.rows(found)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first ``count`` rows from ``start`` on."""
        found = _take(self.raw, start, count)
        return found if self.vault is None else list(self.vault.rows(found))


def stored(txn: ReadTxn) -> RawTxn:
    """Return LMDB's own transaction, which reads rows as stored, not decrypted."""
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
    # A bound longer than any key lies between two keys all the same: cut it to what LMDB takes.
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

    ``dirty`` says that the running closure has written, ``failed`` that LMDB refused an operation:
    such a transaction must not be committed even if the closure swallowed the error. ``puts`` are
    the keys that were put, with the size of their values, for whoever estimates pages.
    """

    __slots__ = ()
    ended = staticmethod(_ended)

    def need_feature(self, feature: int) -> None:
        """Set a feature bit: a memcore that does not know it refuses the file from now on."""
        record = Format.unpack(stored(self).get(FORMAT_KEY), "the file")
        if not record.features & feature:
            self.put_own(FORMAT_KEY, record._replace(features=record.features | feature).pack())

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Remove all rows with ``start <= key < stop``; how many there were."""
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
                if key < start:  # a bound longer than any key was cut: its own prefix is outside
                    found = cursor.set_range(key + b"\0")
                    continue
                self.dirty = True
                cursor.delete()
                count += 1
                if self.recording:
                    self.record(key, None)
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
        """Rows with ``start <= key < stop``, this transaction's own writes included."""
        raw = self.raw
        if raw is None:
            _ended()
        found = _rows(raw, max(start, _FIRST_KEY), stop, reverse, limit)
        return found if self.vault is None else self.vault.rows(found)

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first ``count`` rows from ``start`` on, this transaction's own writes included."""
        found = _take(self.raw, start, count)
        return found if self.vault is None else list(self.vault.rows(found))

    def _refuse_key(self, key: bytes) -> NoReturn:
        what = "is empty" if not key else "is reserved" if not key[0] else f"has {len(key)} bytes"
        raise InternalError(
            f"key {key[:40]!r} {what}; keys have 1..{KEY_BYTES_MAX} bytes and do not start with 00"
        )
