"""Asynchronous KeyValue and BlobStore.

Single entries are read where they are asked for and changed through the store's writer thread.
What may walk many rows, or reads large ones, runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from memcore.aio.commit import CommitFuture
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
from memcore.telemetry import adopt, plain

__all__ = [
    "AsyncBlobStore",
    "AsyncKeyValue",
]


T = TypeVar("T")
_FEW: Final = 32
"""So many entries may be written on the loop's own thread."""


def _threaded(name: str, of: type) -> Callable[..., Awaitable[Any]]:
    """A method that runs the synchronous one of that name in a thread."""

    async def method(self: AsyncKeyValue | AsyncBlobStore, *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self.sync, name), *args, **options)

    method.__name__ = name
    method.__doc__ = f"As ``{of.__name__}.{name}``."
    return method


class AsyncKeyValue:
    """As ``KeyValue``."""

    def __init__(self, sync: KeyValue) -> None:
        self.sync = sync
        adopt(self, sync)

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
        change = once(lent(fn, self.sync.gate), idempotency_key)
        return await self._commit(change, makes_room=makes_room, large=True)

    content = _threaded("content", KeyValue)
    delete_range = _threaded("delete_range", KeyValue)
    clear = _threaded("clear", KeyValue)
    sweep = _threaded("sweep", KeyValue)

    async def scan(self, *args: Any, **options: Any) -> list[tuple[str, Any]]:
        """As ``KeyValue.scan``, as a list."""
        return await asyncio.to_thread(lambda: list(self.sync.scan(*args, **options)))

    async def _commit(
        self, change: Change[T], *, makes_room: bool = False, large: bool = False
    ) -> T:
        outcome: CommitFuture[tuple[T, list[bytes]]] = CommitFuture(loop=asyncio.get_running_loop())
        self.sync.queue(change, outcome, makes_room=makes_room, large=large)
        result, leaving = await outcome
        if leaving:
            await asyncio.to_thread(self.sync.finish, leaving)
        return result


class AsyncBlobStore:
    """As ``BlobStore``."""

    def __init__(self, sync: BlobStore) -> None:
        self.sync = sync

    put = _threaded("put", BlobStore)
    get = _threaded("get", BlobStore)
    size = _threaded("size", BlobStore)
    delete = _threaded("delete", BlobStore)
    collect = _threaded("collect", BlobStore)
