"""Values, blobs and quarantine of a scope: single entries on the loop, all else in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import IO, Any, Final, TypeVar

from memcore.aio.commit import BYTES_CHUNKS, CommitFuture, in_pages
from memcore.blobs import BlobRef, BlobStore
from memcore.kv import KeyValue
from memcore.kv.namespace import (
    Change,
    KeyValueTxn,
    deleting,
    incrementing,
    is_staged,
    lent,
    once,
    putting,
    putting_many,
)
from memcore.kv.rows import SWEEP_LIMIT
from memcore.options import need_plain_function, refuse_copies
from memcore.session.content_filter import Quarantine, Quarantined
from memcore.telemetry import adopt, plain

__all__ = ["AsyncBlobStore", "AsyncKeyValue", "AsyncQuarantine"]

T = TypeVar("T")
_FEW: Final = 32
"""So many entries may be written on the loop's own thread."""


class AsyncKeyValue:
    """As ``KeyValue``."""

    __reduce__ = refuse_copies

    def __init__(self, sync: KeyValue) -> None:
        self.sync = sync
        adopt(self, sync)

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    async def get(self, key: str, default: Any = None) -> Any:
        """As ``KeyValue.get``."""
        return self.sync.get(key, default)

    async def expires(self, key: str) -> int | None:
        """As ``KeyValue.expires``."""
        return self.sync.expires(key)

    async def put(
        self,
        key: str,
        value: Any,
        *,
        ttl_seconds: float | None = None,
        content: bytes | BlobRef | None = None,
    ) -> None:
        """As ``KeyValue.put``; a large content is stored in a thread."""
        if is_staged(content):
            await asyncio.to_thread(
                plain(self.sync).put, key, value, ttl_seconds=ttl_seconds, content=content
            )
            return
        gate = self.sync.gate
        if gate is not None:
            value, content = gate.value(value, key), gate.content(content, key)
        await self._commit(putting(key, value, ttl_seconds=ttl_seconds, content=content))

    async def put_many(
        self, entries: Mapping[str, Any], *, ttl_seconds: float | None = None
    ) -> None:
        """As ``KeyValue.put_many``."""
        if self.sync.gate is not None:
            entries = self.sync.gate.values(entries)
        change = putting_many(entries, ttl_seconds=ttl_seconds)
        if change is not None:
            await self._commit(change, large=len(entries) > _FEW)

    async def delete(self, key: str) -> bool:
        """As ``KeyValue.delete``."""
        self.sync.passed()
        return await self._commit(deleting(key), makes_room=True)

    async def increment(self, key: str, n: int = 1, *, idempotency_key: str | None = None) -> int:
        """As ``KeyValue.increment``."""
        self.sync.passed(key)
        return await self._commit(incrementing(key, n, idempotency_key))

    async def transact(
        self,
        fn: Callable[[KeyValueTxn], T],
        *,
        makes_room: bool = False,
        idempotency_key: str | None = None,
    ) -> T:
        """As ``KeyValue.transact``; ``fn`` runs in another thread."""
        need_plain_function("fn", fn, instead="give a plain one")
        change = once(lent(fn, self.sync.gate), idempotency_key)
        return await self._commit(change, makes_room=makes_room, large=True)

    async def _commit(
        self, change: Change[T], *, makes_room: bool = False, large: bool = False
    ) -> T:
        outcome: CommitFuture[tuple[T, list[bytes]]] = CommitFuture(loop=asyncio.get_running_loop())
        self.sync.queue(change, outcome, makes_room=makes_room, large=large)
        result, leaving = await outcome
        if leaving:
            await asyncio.to_thread(self.sync.finish, leaving)
        return result

    # --- written by scripts/make_aio from KeyValue: not to be edited by hand ---

    async def content(
        self,
        key: str,
    ) -> bytes | None:
        """Return the content of the entry; None if the key does not exist, expired or has none.

        Raises:
            InvalidOptionError: the key is invalid.
            CorruptValueError: the entry or its content is damaged.
        """
        return await asyncio.to_thread(self.sync.content, key)

    async def scan(
        self,
        start: str = "",
        stop: str | None = None,
        *,
        prefix: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[tuple[str, Any]]:
        """Yield ``(key, value)`` with ``start <= key < stop`` in key order, or reversed.

        Pages of up to 256 are read in separate transactions: a slow consumer blocks no writer, and
        a write between two pages is visible if it is ahead. ``prefix`` narrows the range.

        Raises:
            InvalidOptionError: a bound is not a string, or ``limit`` is not a non-negative int.
            CorruptValueError: a stored value is damaged; resume the scan after its key.
        """
        return await asyncio.to_thread(
            lambda: list(self.sync.scan(start, stop, prefix=prefix, reverse=reverse, limit=limit))
        )

    async def delete_range(
        self,
        start: str,
        stop: str | None,
    ) -> int:
        """Remove all keys with ``start <= key < stop``; returns the number of visible ones.

        A few hundred small entries are removed in one commit; more of them, or large ones, piece by
        piece in key order, each piece in its own commit. After an error or a crash, call it again.

        Raises:
            InvalidOptionError: a bound is not a string.
        """
        return await asyncio.to_thread(self.sync.delete_range, start, stop)

    async def clear(self) -> int:
        """Remove all keys of the namespace, as ``delete_range`` does.

        Returns the number of visible ones.
        """
        return await asyncio.to_thread(self.sync.clear)

    async def sweep(
        self,
        limit: int = SWEEP_LIMIT,
    ) -> int:
        """Remove at most ``limit`` expired keys of this namespace; returns their number.

        Call it again until it returns less than ``limit``.

        Raises:
            InvalidOptionError: ``limit`` is not an int of at least 0.
        """
        return await asyncio.to_thread(self.sync.sweep, limit)

    # --- end of what scripts/make_aio writes ---


class AsyncBlobStore:
    """As ``BlobStore``."""

    __reduce__ = refuse_copies

    def __init__(self, sync: BlobStore) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    # --- written by scripts/make_aio from BlobStore: not to be edited by hand ---

    async def put(
        self,
        payload: bytes | IO[bytes],
    ) -> str:
        """Store bytes, or a binary file from its current position on, and return the address.

        Equal content is stored once, and one ``delete`` removes it. A file is read twice (one that
        cannot seek goes through a temporary file) and is never held entirely in memory, except for
        text that is guarded or redacted.

        Raises:
            InvalidOptionError: neither bytes nor a binary file, or the file changed meanwhile.
            InvalidItemError: it is larger than ``BLOB_BYTES_MAX``.
            BlockedError: a guard refuses it.
            StoreLockedError: ``collect`` removed the staged rows in every attempt.
        """
        return await asyncio.to_thread(self.sync.put, payload)

    async def get(
        self,
        address: str,
    ) -> bytes:
        """Return the content.

        Raises:
            InvalidOptionError: it is not an address.
            NotFoundError: no such blob in the scope.
            CorruptValueError: a stored row is damaged.
        """
        return await asyncio.to_thread(self.sync.get, address)

    async def open(
        self,
        address: str,
    ) -> AsyncIterator[bytes]:
        """Iterate over the content in chunks, one short read each, so that no writer is blocked.

        Raises:
            InvalidOptionError: it is not an address.
            NotFoundError: no such blob (immediately), or deleted meanwhile (between chunks).
            CorruptValueError: a stored row is damaged.
        """
        chunks = await asyncio.to_thread(
            self.sync.open, address
        )  # it may read before the first chunk
        async for found in in_pages(chunks, BYTES_CHUNKS, in_thread=True):
            yield found

    async def size(
        self,
        address: str,
    ) -> int:
        """Return the size of the content in bytes; raises what ``get`` raises."""
        return await asyncio.to_thread(self.sync.size, address)

    async def delete(
        self,
        address: str,
    ) -> bool:
        """Remove the address; returns whether it existed.

        The content is removed with its last reference: an item or a checkpoint may still hold one.

        Raises:
            InvalidOptionError: it is not an address.
        """
        return await asyncio.to_thread(self.sync.delete, address)

    async def collect(self) -> int:
        """Remove the blobs of this scope without references; returns their number."""
        return await asyncio.to_thread(self.sync.collect)

    # --- end of what scripts/make_aio writes ---


class AsyncQuarantine:
    """As ``Quarantine``."""

    __reduce__ = refuse_copies

    def __init__(self, sync: Quarantine) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"

    # --- written by scripts/make_aio from Quarantine: not to be edited by hand ---

    async def list(
        self,
        session_id: str | None = None,
    ) -> list[Quarantined]:
        """Return the quarantined items by session and seq, of one session or of all.

        Raises:
            InvalidOptionError: ``session_id`` is no str.
            CorruptValueError: a row is damaged.
        """
        return await asyncio.to_thread(self.sync.list, session_id)

    async def release(
        self,
        session_id: str,
        seq: int,
    ) -> None:
        """Replace a placeholder by its original, for everyone who sees the item.

        The token count is unchanged: the placeholder was counted as the original.

        Raises:
            NotFoundError: no such item is quarantined.
            BlockedError: called outside ``memcore.as_operator()``.
            ReadOnlyError, CorruptValueError, StorageError
        """
        await asyncio.to_thread(self.sync.release, session_id, seq)

    # --- end of what scripts/make_aio writes ---
