"""The user's handles: ``KeyValue``, ``KeyValueView`` of a snapshot, ``KeyValueTxn`` to write in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from memcore.errors import ClosedError, InvalidItemError, InvalidOptionError
from memcore.kv.entries import (
    SWEEP_LIMIT,
    Ensure,
    Entry,
    Find,
    Page,
    Place,
    Reader,
    Writer,
    scan_pages,
)
from memcore.kv.options import bounds, checked_count, checked_ttl_ms, encoded, packed_key
from memcore.store.base import ReadTxn, Store, Txn

__all__ = ["KeyValue", "KeyValueTxn", "KeyValueView"]

T = TypeVar("T")


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class KeyValueView:
    """Several reads of one snapshot: what the function given to ``read`` works with.

    Every method raises ClosedError when the function has returned.
    """

    def __init__(self, reader: Callable[[], Reader]) -> None:
        self._reader = reader

    def get(self, key: str, default: Any = None) -> Any:
        """As ``KeyValue.get``."""
        entry = self._reader().load(packed_key(key))
        return default if entry is None else entry.value()

    def scan(
        self,
        start: str = "",
        stop: str | None = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """As ``KeyValue.scan``; in a transaction, its writes between two pages are seen."""
        self._reader()
        low, high = bounds(start, stop, prefix)

        def next_page(low: bytes, high: bytes | None, wanted: int) -> Page:
            return self._reader().page(low, high, reverse=reverse, wanted=wanted)

        count = checked_count(limit, "limit")
        return scan_pages(next_page, low, high, reverse=reverse, limit=count)


class KeyValueTxn(KeyValueView):
    """Several keys in one transaction: what the function given to ``transact`` works with.

    Reads see the transaction's own writes. Every method raises ClosedError when the function has
    returned.
    """

    def __init__(self, writer: Callable[[], Writer]) -> None:
        super().__init__(writer)
        self._writer = writer

    def put(self, key: str, value: Any, *, ttl_seconds: float | None = None) -> None:
        """As ``KeyValue.put``."""
        self._writer().put(packed_key(key), *encoded(value), checked_ttl_ms(ttl_seconds))

    def delete(self, key: str) -> bool:
        """As ``KeyValue.delete``."""
        return self._writer().remove(packed_key(key))

    def increment(self, key: str, n: int = 1) -> int:
        """As ``KeyValue.increment``."""
        return _increment(self._writer(), key, n)


def _held(of: Reader) -> tuple[list[Any], Callable[[], Any]]:
    """A list to clear when the function has returned, and what gives the reader until then."""
    held = [of]

    def current() -> Any:
        if not held:
            msg = "this transaction is over: use its handle only inside the function"
            raise ClosedError(msg)
        return held[0]

    return held, current


def _lent(fn: Callable[[KeyValueTxn], T]) -> Callable[[Writer], T]:
    """``fn`` with a handle that dies when it returns."""

    def closure(writer: Writer) -> T:
        held, current = _held(writer)
        try:
            return fn(KeyValueTxn(current))
        finally:
            held.clear()

    return closure


def _increment(writer: Writer, key: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        msg = f"the step of an increment must be an int, got {type(n).__name__}"
        raise InvalidOptionError(msg)
    packed = packed_key(key)
    entry = writer.load(packed)
    number = 0 if entry is None else entry.value()
    if isinstance(number, bool) or not isinstance(number, int):
        msg = (
            f"the value under {key[:40]!r} is a {type(number).__name__}: expected an int to "
            "increment; put one first"
        )
        raise InvalidItemError(msg)
    flags, payload = encoded(number + n)
    writer.write(packed, Entry(flags, payload, None if entry is None else entry.expires_ms))
    return number + n


class KeyValue:
    """An ordered key/value map of one scope: the handle ``scope.kv(namespace)``.

    Keys are non-empty strings in code point order, values anything JSON or bytes (a tuple comes
    back as a list, bytearray and memoryview as bytes). ``find`` looks the numbers of scope and
    namespace up in a snapshot (None: nothing stored yet), ``ensure`` gives them with the first
    write, ``now_ms`` is the clock that expiry goes by. Reading never writes.
    """

    def __init__(
        self,
        store: Store,
        find: Find,
        ensure: Ensure,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._store = store
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._known: Place | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or ``default`` if the key is not there or expired.

        Raises:
            InvalidOptionError: the key is not legal.
            CorruptValueError: the stored value is damaged; other keys stay readable.
        """
        packed = packed_key(key)
        entry = self._read(lambda reader: reader.load(packed))
        return default if entry is None else entry.value()

    def put(self, key: str, value: Any, *, ttl_seconds: float | None = None) -> None:
        """Store a value; the key expires after ``ttl_seconds``, without it never.

        Raises:
            InvalidOptionError: the key or ``ttl_seconds`` is not legal.
            InvalidItemError: the value is neither bytes nor JSON, holds NaN or is too large.
        """
        packed, (flags, payload) = packed_key(key), encoded(value)
        ttl_ms = checked_ttl_ms(ttl_seconds)
        self._write(lambda writer: writer.put(packed, flags, payload, ttl_ms))

    def put_many(self, entries: Mapping[str, Any], *, ttl_seconds: float | None = None) -> None:
        """Store several values in one commit, all or none; raises what ``put`` raises."""
        given: object = entries
        if not isinstance(given, Mapping):
            msg = f"put_many takes a mapping of keys to values, got {type(given).__name__}"
            raise InvalidOptionError(msg)
        rows = [(packed_key(key), *encoded(value)) for key, value in entries.items()]
        ttl_ms = checked_ttl_ms(ttl_seconds)

        def closure(writer: Writer) -> None:
            for packed, flags, payload in rows:
                writer.put(packed, flags, payload, ttl_ms)

        if rows:
            self._write(closure)

    def delete(self, key: str) -> bool:
        """Remove the key; whether it was there (and not expired).

        Raises:
            InvalidOptionError: the key is not legal.
        """
        packed = packed_key(key)
        return self._write(lambda writer: writer.remove(packed), makes_room=True)

    def scan(
        self,
        start: str = "",
        stop: str | None = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """``(key, value)`` with ``start <= key < stop`` in key order, or reversed.

        Pages of up to 256 are read in transactions of their own: a slow consumer holds nothing
        up, and a write between two pages is seen if it lies ahead. ``prefix`` narrows the range.

        Raises:
            InvalidOptionError: a bound is no string, or ``limit`` no int of at least 0.
            CorruptValueError: a stored value is damaged; scan again from behind its key.
        """
        low, high = bounds(start, stop, prefix)

        def next_page(low: bytes, high: bytes | None, wanted: int) -> Page:
            return self._read(lambda reader: reader.page(low, high, reverse=reverse, wanted=wanted))

        count = checked_count(limit, "limit")
        return scan_pages(next_page, low, high, reverse=reverse, limit=count)

    def delete_range(self, start: str, stop: str | None) -> int:
        """Remove all keys with ``start <= key < stop``; how many were visible.

        Some hundred small entries go in one commit; of more of them, or large ones, each piece has
        its own, in key order. After an error or a crash, call it again.

        Raises:
            InvalidOptionError: a bound is no string.
        """
        low, high = bounds(start, stop)
        removed, following = 0, low
        while following is not None:
            visible, following = self._write(
                lambda writer, low=following: writer.clear(low, high),  # type: ignore[misc]
                makes_room=True,
            )
            removed += visible
        return removed

    def clear(self) -> int:
        """Remove all keys of the namespace, as ``delete_range`` does; how many were visible."""
        return self.delete_range("", None)

    def read(self, fn: Callable[[KeyValueView], T]) -> T:
        """Run ``fn(view)`` on one snapshot and return its result: reads that belong together.

        It waits for no writer and holds none up, but keeps what it sees on the device until it
        returns: ``fn`` must not wait for anything. Raises whatever ``fn`` raises.
        """

        def closure(reader: Reader) -> T:
            held, current = _held(reader)
            try:
                return fn(KeyValueView(current))
            finally:
                held.clear()

        return self._read(closure)

    def transact(self, fn: Callable[[KeyValueTxn], T], *, makes_room: bool = False) -> T:
        """Run ``fn(kv)`` in one transaction and return its result: all its writes or none.

        ``fn`` may be run again from the start, so it must have no side effect outside ``kv``; it
        must not use this handle, only ``kv``. Raises whatever ``fn`` raises (nothing is stored).

        Args:
            fn: what to do.
            makes_room: ``fn`` mostly deletes, a few hundred entries at most; it may take the room
                that is kept for this when the device is full.
        """
        return self._write(_lent(fn), makes_room=makes_room)

    def submit(
        self,
        fn: Callable[[KeyValueTxn], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
    ) -> asyncio.Future[T]:
        """As ``transact``, queued from ``loop``'s thread: the future follows the commit.

        A cancelled future is no rollback: ``fn`` is applied all the same.
        """
        return self._store.submit(self._closure(_lent(fn)), loop, makes_room=makes_room)

    def increment(self, key: str, n: int = 1) -> int:
        """Add ``n`` to an integer (0 if the key is not there) and return it; keeps the expiry.

        Raises:
            InvalidOptionError: the key is not legal or ``n`` is no int.
            InvalidItemError: the stored value is no int, or the sum is too long to write.
        """
        return self._write(lambda writer: _increment(writer, key, n))

    def expires(self, key: str) -> int | None:
        """When the key expires, in milliseconds since 1970; None if never or if it is not there.

        Raises:
            InvalidOptionError: the key is not legal.
        """
        packed = packed_key(key)
        entry = self._read(lambda reader: reader.load(packed))
        return None if entry is None else entry.expires_ms

    def sweep(self, limit: int = SWEEP_LIMIT) -> int:
        """Remove at most ``limit`` expired keys of this namespace; how many.

        Call it again until it returns less than ``limit``.

        Raises:
            InvalidOptionError: ``limit`` is no int of at least 0.
        """
        count = checked_count(limit, "limit") or 0
        due = self._read(lambda reader: reader.due(count))
        removed = 0
        while due:
            gone, due = self._write(lambda writer, due=due: writer.expire(due), makes_room=True)  # type: ignore[misc]
            removed += gone
        return removed

    def _read(self, fn: Callable[[Reader], T]) -> T:
        return self._store.read(lambda txn: fn(Reader(txn, self._place, self._now_ms())))

    def _place(self, txn: ReadTxn) -> Place | None:
        # What a snapshot tells is committed for good, and numbers are never given out twice.
        if self._known is None:
            self._known = self._find(txn)
        return self._known

    def _write(self, fn: Callable[[Writer], T], *, makes_room: bool = False) -> T:
        return self._store.transact(self._closure(fn), makes_room=makes_room)

    def _closure(self, fn: Callable[[Writer], T]) -> Callable[[Txn], T]:
        known = self._known
        find = self._find if known is None else lambda _: known
        return lambda txn: fn(Writer(txn, find, self._ensure, self._now_ms()))
