"""AsyncKeyValue and AsyncBlobStore: the synchronous ones, each call in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from memcore.blobs import BlobStore
from memcore.kv import KeyValue

__all__ = ["AsyncBlobStore", "AsyncKeyValue"]


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

    get = _threaded("get", KeyValue)
    content = _threaded("content", KeyValue)
    put = _threaded("put", KeyValue)
    put_many = _threaded("put_many", KeyValue)
    delete = _threaded("delete", KeyValue)
    delete_range = _threaded("delete_range", KeyValue)
    clear = _threaded("clear", KeyValue)
    transact = _threaded("transact", KeyValue)
    increment = _threaded("increment", KeyValue)
    expires = _threaded("expires", KeyValue)
    sweep = _threaded("sweep", KeyValue)

    async def scan(self, *args: Any, **options: Any) -> list[tuple[str, Any]]:
        """As ``KeyValue.scan``, as a list."""
        return await asyncio.to_thread(lambda: list(self.sync.scan(*args, **options)))


class AsyncBlobStore:
    """As ``BlobStore``."""

    def __init__(self, sync: BlobStore) -> None:
        self.sync = sync

    put = _threaded("put", BlobStore)
    get = _threaded("get", BlobStore)
    size = _threaded("size", BlobStore)
    delete = _threaded("delete", BlobStore)
    collect = _threaded("collect", BlobStore)
