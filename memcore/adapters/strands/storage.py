"""MemcoreStorage: Strands' unified storage of bytes under keys, in a memcore file."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar, Unpack

from strands.storage.search.keyword import KeywordSearchStrategy
from strands.storage.storage import (
    _NAMESPACED,
    StorageSearchResult,
    _normalize_key,
    _normalize_prefix,
)
from strands.types.exceptions import StorageError as StrandsStorageError

from memcore.adapters.source import Scoped, Source, Where, in_thread
from memcore.errors import MemcoreError
from memcore.telemetry import adapts

__all__ = [
    "MemcoreStorage",
]


T = TypeVar("T")
_NAMESPACE: Final = "strands.storage"


@adapts(write="kv.put", read="kv.get", delete="kv.delete", list="kv.scan . count")
class MemcoreStorage(Scoped):
    """Strands' ``Storage``: of ``SnapshotSessionManager``, stashes, and all else that takes one.

    Keys are normalized as those of Strands' own storages. Each write is one commit; equal contents
    are stored once.

    Args:
        source: a database, a scope, or the path of a file.
        search_strategy: as for Strands' own storages; None: by words, reading all that is stored.
        **where: ``app`` and ``user``; ``durability`` and ``allow_unsafe`` of a file that is created
            here, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid.
    """

    framework = "strands"

    def __init__(
        self, source: Source, *, search_strategy: Any = None, **where: Unpack[Where]
    ) -> None:
        super().__init__(source, **where)
        self._kv = self.scope.kv(_NAMESPACE)
        self._prefix = ""
        self._strategy = search_strategy

    async def write(self, key: str, data: bytes) -> None:
        """Store bytes under a key.

        Raises:
            strands.types.exceptions.StorageError: the key is invalid, or it cannot be stored.
        """
        name = _normalize_key(key)
        await _run(key, lambda: self._kv.put(self._prefix + name, 0, content=bytes(data)))
        if self._strategy is not None:
            try:
                await self._strategy.index(self, name, data)
            except Exception as exc:
                msg = f"{key[:200]!r} is stored, but was not indexed"
                raise StrandsStorageError(msg) from exc

    async def read(self, key: str) -> bytes | None:
        """Return the bytes under a key; None if there are none."""
        name = self._prefix + _normalize_key(key)
        return await _run(key, lambda: self._kv.content(name))

    async def delete(self, key: str) -> None:
        """Delete what is stored under a key, if anything is."""
        name = self._prefix + _normalize_key(key)
        await _run(key, lambda: self._kv.delete(name))

    async def list(self, query: str = "") -> builtins.list[str]:
        """Return the keys that begin with a prefix, in order."""
        prefix = self._prefix + _normalize_prefix(query)

        def read() -> builtins.list[str]:
            found = self._kv.scan(prefix=prefix or None)
            return [key.removeprefix(self._prefix) for key, _ in found]

        return await _run(query, read)

    async def search(self, query: str) -> builtins.list[StorageSearchResult]:
        """Return what matches a query, the best first."""
        strategy = KeywordSearchStrategy() if self._strategy is None else self._strategy
        found: builtins.list[StorageSearchResult] = await strategy.search(self, query)
        return found

    def namespace(self, prefix: str) -> Self:
        """Return the same storage, restricted to the keys under a prefix."""
        told = _normalize_prefix(prefix).rstrip("/")
        scoped = copy.copy(self)
        vars(scoped).update(
            _owned=None,  # the whole closes the file
            _prefix=self._prefix + (f"{told}/" if told else ""),
            _namespaced=_NAMESPACED,
        )
        return scoped


async def _run(key: str, fn: Callable[[], T]) -> T:
    """Run a function in a thread.

    Raises:
        strands.types.exceptions.StorageError: memcore raised an error.
    """
    try:
        return await in_thread(fn)
    except MemcoreError as exc:
        msg = f"{key[:200]!r}: {exc}"
        raise StrandsStorageError(msg) from exc
