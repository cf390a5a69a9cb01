"""The ordered map that everything stands on: byte keys, byte values, transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

__all__ = ["ReadTxn", "Store", "Txn"]

T = TypeVar("T")


class ReadTxn(Protocol):
    """One consistent snapshot. Nothing that it returns outlives LMDB's memory: all are copies."""

    def get(self, key: bytes) -> bytes | None:
        """The value under ``key``, or None."""

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``start <= key < stop`` in key order (or reversed); ``limit`` 0 is no limit."""


class Txn(ReadTxn, Protocol):
    """A write transaction as a closure sees it.

    The closure may be run again, so it keeps no cursor or view, has no side effect outside the
    transaction and makes its checks before its first write.
    """

    local: dict[Any, Any]
    """Per-transaction values shared by all closures of one batch (overlays of ledgers)."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one row."""

    def delete(self, key: bytes) -> bool:
        """Remove one row; whether it was there."""

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Remove all rows with ``start <= key < stop``; how many there were."""

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the committing thread after the commit, before any caller wakes."""


class Store(Protocol):
    """An ordered map with transactions."""

    def read(self, fn: Callable[[ReadTxn], T]) -> T:
        """Run ``fn`` on one snapshot."""

    def transact(self, fn: Callable[[Txn], T]) -> T:
        """Run ``fn`` in a write transaction, commit in the store's durability, return its result.

        Raises whatever ``fn`` raised (nothing of it is stored then) and StorageError.
        """

    def submit(self, fn: Callable[[Txn], T], done: Callable[[T | None, BaseException | None], None],
               *, wake: Any = None) -> None:
        """Queue ``fn`` without waiting; ``done(result, error)`` follows the commit."""
