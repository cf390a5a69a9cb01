"""KeyValue: the user's handle for a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from memcore import blobs
from memcore.blobs import BlobRef
from memcore.codec.values import clock_ms
from memcore.errors import InternalError, InvalidOptionError
from memcore.kv.namespace import (
    Change,
    EntryFilter,
    EntryPage,
    KeyValueTxn,
    KeyValueView,
    NamespaceReader,
    NamespaceWriter,
    Requests,
    deleting,
    incrementing,
    is_staged,
    lent,
    once,
    opted_out,
    putting,
    putting_many,
    scan_pages,
    shown,
)
from memcore.kv.rows import (
    SWEEP_LIMIT,
    Ensure,
    Find,
    Place,
    bounds,
    checked_content,
    checked_count,
    checked_ttl_ms,
    encoded,
    packed_key,
)
from memcore.options import checked_bool, need_plain_function, refuse_copies
from memcore.rows.lifecycle import is_erased, is_opted_out
from memcore.store.interface import ReadTxn, Store, Txn

__all__ = [
    "KeyValue",
]


T = TypeVar("T")
_MISSING: Final = object()
Written = tuple[T, list[bytes]]
"""Result of a change, and the large contents that it left unreferenced."""


class KeyValue:
    """Ordered key/value map of one scope: the handle ``scope.kv(namespace)``.

    ``kv[key]``, ``kv[key] = value``, ``del kv[key]`` and ``key in kv`` are as of a dict; each is a
    read or a commit of its own.

    Keys are non-empty strings in code point order; values are JSON or bytes (a tuple comes back as
    a list, bytearray and memoryview as bytes). ``find`` looks up the numbers of scope and namespace
    in a snapshot (None: nothing stored yet), ``ensure`` allocates them with the first write, and
    ``now_ms`` is the clock for expiry. Reading never writes. ``seed`` is the store's, for the
    digests of contents; ``gate`` is the file's content filter. With ``memory``, nothing is found
    for a user who opted out of memory, and storing raises OptedOutError. ``label`` is what its repr
    shows.
    """

    __reduce__ = refuse_copies

    def __init__(
        self,
        store: Store,
        find: Find,
        ensure: Ensure,
        *,
        now_ms: Callable[[], int] = clock_ms,
        seed: int | None = None,
        requests: Requests | None = None,
        gate: EntryFilter | None = None,
        memory: bool = False,
        label: str = "",
    ) -> None:
        self._label = label
        self._requests = requests
        self._memory = memory
        self.gate = gate
        """Filters entries before they are stored; None: no filter."""
        self._store = store
        self._seed = seed
        self._find = find
        self._ensure = ensure
        self._now_ms = now_ms
        self._known: Place | None = None

    def __repr__(self) -> str:
        return f"KeyValue({self._label})"

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or ``default`` if the key does not exist or has expired.

        Raises:
            InvalidOptionError: the key is invalid.
            CorruptValueError: the stored value is damaged; other keys stay readable.
        """
        packed = packed_key(key)
        entry = self._read(lambda reader: reader.load(packed))
        return default if entry is None else entry.value()

    def __getitem__(self, key: str) -> Any:
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        with suppress(InvalidOptionError):  # nothing is stored under what is no key
            return self.get(key, _MISSING) is not _MISSING  # type: ignore[arg-type]
        return False

    __iter__ = None
    """``scan`` says which entries: a walk over all of them is not begun by a slip."""

    def content(self, key: str) -> bytes | None:
        """Return the content of the entry; None if the key does not exist, expired or has none.

        Raises:
            InvalidOptionError: the key is invalid.
            CorruptValueError: the entry or its content is damaged.
        """
        packed = packed_key(key)
        return self._read(lambda reader: reader.content(packed))

    @property
    def secret(self) -> bytes:
        """Key for digests of contents that occur in keys; empty if the file is not encrypted."""
        vault = self._store.vault
        return b"" if vault is None else vault.seed

    def put(
        self,
        key: str,
        value: Any,
        *,
        ttl_seconds: float | None = None,
        content: bytes | BlobRef | None = None,
    ) -> None:
        """Store a value; the key expires after ``ttl_seconds``, or never without it.

        ``content`` is bytes that belong to the entry: equal contents are stored once per scope and
        removed with the last entry that has them. A large one is stored ahead, in separate commits.

        Raises:
            InvalidOptionError: the key, ``content`` or ``ttl_seconds`` is invalid.
            InvalidItemError: the value is neither bytes nor JSON, holds NaN or is too large.
        """
        if self.gate is not None:
            value, content = self.gate.value(value, key), self.gate.content(content, key)
        held = checked_content(content)
        if not (isinstance(held, bytes) and is_staged(held)):
            self._write(putting(key, value, ttl_seconds=ttl_seconds, content=held))
            return
        packed, (flags, payload) = packed_key(key), encoded(value)
        ttl_ms = checked_ttl_ms(ttl_seconds)

        def closure(txn: Txn, ref: BlobRef) -> list[bytes]:
            writer = writer_in(txn)
            writer.put(packed, flags, payload, ttl_ms, ref)
            return writer.leaving

        (scope, seed), writer_in = self._wanted_scope(), self._writers()
        leaving = blobs.refer(self._store, scope, held, closure, seed=seed)
        blobs.finish_leaving(self._store, leaving)

    def stage(self, content: bytes) -> BlobRef:
        """Store a content ahead, in separate commits, to be put in a transaction.

        Until it is put, ``unstage`` or ``scope.blobs.collect()`` may remove it.

        Raises:
            InvalidOptionError: it is not bytes.
            InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
        """
        if self.gate is not None:
            content = self.gate.content(content, None)
        scope, seed = self._wanted_scope()
        return blobs.stage(self._store, scope, content, seed=seed)

    def unstage(self, ref: BlobRef) -> None:
        """Remove a staged content unless something refers to it."""
        blobs.unstage(self._store, self._scope()[0], ref)

    def _scope(self) -> tuple[int, int]:
        """Return the number of the scope, allocated if needed, and the seed."""
        if self._seed is None:
            raise InternalError("this key/value handle was made without a seed")
        place = self._store.read(self._place) or self._store.transact(self._ensure)
        return place[0], self._seed

    def _wanted_scope(self) -> tuple[int, int]:
        """As ``_scope``, for a content that is stored ahead of its entry.

        Raises:
            OptedOutError: it is memory, and the user opted out; the commit of the entry asks again.
        """
        scope, seed = self._scope()
        if self._memory and self._store.read(lambda txn: is_opted_out(txn, scope)):
            raise opted_out()
        return scope, seed

    def put_many(self, entries: Mapping[str, Any], *, ttl_seconds: float | None = None) -> None:
        """Store several values atomically in one commit; raises what ``put`` raises."""
        if self.gate is not None:
            entries = self.gate.values(entries)
        change = putting_many(entries, ttl_seconds=ttl_seconds)
        if change is not None:
            self._write(change)

    def delete(self, key: str) -> bool:
        """Remove the key; returns whether it existed and had not expired.

        Raises:
            InvalidOptionError: the key is invalid.
        """
        self.passed()
        return self._write(deleting(key), makes_room=True)

    def scan(
        self,
        start: str = "",
        stop: str | None = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Yield ``(key, value)`` with ``start <= key < stop`` in key order, or reversed.

        Pages of up to 256 are read in separate transactions: a slow consumer blocks no writer, and
        a write between two pages is visible if it is ahead. ``prefix`` narrows the range.

        Raises:
            InvalidOptionError: a bound is not a string, or ``limit`` is not a non-negative int.
            CorruptValueError: a stored value is damaged; resume the scan after its key.
        """
        low, high = bounds(start, stop, prefix)
        checked_bool("reverse", reverse)

        def next_page(low: bytes, high: bytes | None, wanted: int) -> EntryPage:
            return self._read(lambda reader: reader.page(low, high, reverse=reverse, wanted=wanted))

        count = checked_count(limit, "limit")
        return scan_pages(next_page, low, high, reverse=reverse, limit=count)

    def delete_range(self, start: str, stop: str | None) -> int:
        """Remove all keys with ``start <= key < stop``; returns the number of visible ones.

        A few hundred small entries are removed in one commit; more of them, or large ones, piece by
        piece in key order, each piece in its own commit. After an error or a crash, call it again.

        Raises:
            InvalidOptionError: a bound is not a string.
        """
        low, high = bounds(start, stop)
        self.passed()
        removed, following = 0, low
        while following is not None:
            visible, following = self._write(
                lambda writer, low=following: writer.clear(low, high),  # type: ignore[misc]
                makes_room=True,
            )
            removed += visible
        return removed

    def clear(self) -> int:
        """Remove all keys of the namespace, as ``delete_range`` does.

        Returns the number of visible ones.
        """
        return self.delete_range("", None)

    def read(self, fn: Callable[[KeyValueView], T]) -> T:
        """Run ``fn(view)`` on one snapshot and return its result, for consistent reads.

        It neither waits for writers nor blocks them, but the pages of its snapshot cannot be
        reused until it returns, so ``fn`` should not block. Raises what ``fn`` raises.
        """
        need_plain_function("fn", fn, instead="give a plain one")
        return self._read(shown(fn))

    def transact(
        self,
        fn: Callable[[KeyValueTxn], T],
        *,
        makes_room: bool = False,
        idempotency_key: str | None = None,
    ) -> T:
        """Run ``fn(kv)`` atomically in one write transaction and return its result.

        ``fn`` may be run again from the start, so it must have no side effects outside ``kv``, and
        it must use only ``kv``, not this handle. Raises what ``fn`` raises (nothing is stored).

        Args:
            fn: the change.
            makes_room: ``fn`` mostly deletes, a few hundred entries at most; on a full device it
                may use the space reserved for deletions.
            idempotency_key: ``fn`` is executed once per key, within a week; a retry returns the
                first result, which has to be JSON.
        """
        need_plain_function("fn", fn, instead="give a plain one")
        checked_bool("makes_room", makes_room)
        return self._write(once(lent(fn, self.gate), idempotency_key), makes_room=makes_room)

    def submit(
        self,
        fn: Callable[[KeyValueTxn], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
        large: bool = False,
        future: asyncio.Future[T] | None = None,
        once_by: tuple[str, bytes] | None = None,
    ) -> asyncio.Future[T]:
        """As ``transact``, but queued from ``loop``'s thread; the future completes with the commit.

        Cancelling the future does not roll back: ``fn`` is applied regardless. ``large`` and
        ``future`` are those of ``Store.submit``; ``once_by`` is an idempotency key and its content.
        """
        key, content = once_by or (None, b"")
        run, writer_in = once(lent(fn, self.gate), key, content), self._writers()
        return self._store.submit(
            lambda txn: run(writer_in(txn)),
            loop,
            makes_room=makes_room,
            large=large,
            future=future,
        )

    def increment(self, key: str, n: int = 1, *, idempotency_key: str | None = None) -> int:
        """Add ``n`` to an integer (0 if the key does not exist) and return it; keeps the expiry.

        Args:
            key: the key.
            n: the increment.
            idempotency_key: adds once per key, within a week; a retry returns the same number.

        Raises:
            DuplicateRequestError: ``idempotency_key`` was used for a different request.
            InvalidOptionError: the key is invalid, or ``n`` is not an int.
            InvalidItemError: the stored value is not an int, or the sum is too long to write.
        """
        self.passed(key)
        return self._write(incrementing(key, n, idempotency_key))

    def expires(self, key: str) -> int | None:
        """Return the key's expiry in milliseconds since the epoch; None: never, or no such key.

        Raises:
            InvalidOptionError: the key is invalid.
        """
        packed = packed_key(key)
        entry = self._read(lambda reader: reader.load(packed))
        return None if entry is None else entry.expires_ms

    def sweep(self, limit: int = SWEEP_LIMIT) -> int:
        """Remove at most ``limit`` expired keys of this namespace; returns their number.

        Call it again until it returns less than ``limit``.

        Raises:
            InvalidOptionError: ``limit`` is not an int of at least 0.
        """
        count = checked_count(limit, "limit") or 0
        due = self._read(lambda reader: reader.due(count))
        removed = 0
        while due:
            gone, due = self._write(lambda writer, due=due: writer.expire(due), makes_room=True)  # type: ignore[misc]
            removed += gone
        return removed

    def passed(self, key: str | None = None) -> None:
        """Run the guards on a change without a value; ``key`` is the entry that it may create.

        Raises:
            BlockedError: a guard refuses it, or the key contains a finding.
        """
        if self.gate is not None:
            self.gate.change(key)

    def _read(self, fn: Callable[[NamespaceReader], T]) -> T:
        return self._store.read(
            lambda txn: fn(
                NamespaceReader(
                    txn, self._place, self._now_ms(), requests=self._requests, memory=self._memory
                )
            )
        )

    def _place(self, txn: ReadTxn) -> Place | None:
        # A number seen in a snapshot is committed, and numbers are never reused.
        known = self._known
        if known is None or is_erased(txn, known[0]):
            known = self._known = self._find(txn)
        return known

    def queue(
        self,
        change: Change[T],
        future: asyncio.Future[Written[T]],
        *,
        makes_room: bool,
        large: bool,
    ) -> None:
        """Queue a change from the thread of ``future``'s loop; the options are ``Store.submit``'s.

        The future receives the result, and the contents that ``finish`` has to remove, if any.
        """
        self._store.submit(
            self._closure(change),
            future.get_loop(),
            makes_room=makes_room,
            large=large,
            future=future,
        )

    def _closure(self, change: Change[T]) -> Callable[[Txn], Written[T]]:
        def closure(txn: Txn) -> Written[T]:
            writer = writer_in(txn)
            return change(writer), writer.leaving

        writer_in = self._writers()
        return closure

    def finish(self, leaving: list[bytes]) -> None:
        """Remove large contents that a commit left unreferenced, in separate commits."""
        blobs.finish_leaving(self._store, leaving)

    def _write(self, change: Change[T], *, makes_room: bool = False) -> T:
        result, leaving = self._store.transact(self._closure(change), makes_room=makes_room)
        if leaving:
            self.finish(leaving)
        return result

    def _writers(self) -> Callable[[Txn], NamespaceWriter]:
        """Return a factory of the namespace writer of a transaction."""
        known = self._known

        def find(txn: ReadTxn) -> Place | None:
            return self._find(txn) if known is None or is_erased(txn, known[0]) else known

        options: dict[str, Any] = {
            "seed": self._seed, "requests": self._requests, "memory": self._memory
        }  # fmt: skip
        return lambda txn: NamespaceWriter(txn, find, self._ensure, self._now_ms(), **options)
