"""The ordered map that everything stands on: byte keys, byte values, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from memcore.store.bell import Bell
from memcore.store.vault import Vault

__all__ = ["MapMovedError", "ReadTxn", "Store", "Txn"]

T = TypeVar("T")


class MapMovedError(Exception):
    """An impatient read would have to wait for the lead: another process grew the map.

    Whoever holds a lock that a closure may want lets it go, reads patiently, and tries again.
    """


class ReadTxn(Protocol):
    """One consistent snapshot. All that it returns are copies; it ends with its closure."""

    @property
    def vault(self) -> Vault | None:
        """What contents are encrypted with; None: nothing."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value under ``key``, or None."""

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``start <= key < stop`` in key order (or reversed); ``limit`` 0 is no limit."""

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """The first ``count`` rows from ``start`` on, whosever they are; fast for many."""


class Txn(ReadTxn, Protocol):
    """A write transaction as a closure sees it.

    The closure may be run again, and other callers' closures share the transaction. So it keeps no
    cursor or view, has no side effect outside the transaction, makes its checks before its first
    write, and leaves ``local`` as it found it when it raises before its first write.
    """

    @property
    def local(self) -> dict[Any, Any]:
        """Per-transaction values shared by all closures of one batch (overlays of ledgers)."""

    @property
    def audit(self) -> Any:
        """Notes what is written; None: the file is not audited."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one row."""

    def need_feature(self, feature: int) -> None:
        """Have whoever does not know the feature refuse the file from this commit on."""

    def delete(self, key: bytes) -> bool:
        """Remove one row; whether it was there."""

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Remove all rows with ``start <= key < stop``; how many there were."""

    def spoil(self) -> None:
        """The closure failed half-way, if only in memory: run its neighbours again without it."""

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the committing thread after the commit, before any caller wakes.

        It also runs when the batch wrote nothing, and again when an interrupt cut it short, so it
        is idempotent. It must not write to the store. If it raises, the transaction stays committed
        and its caller gets InternalError.
        """

    def tell(self, topic: bytes) -> None:
        """Ring the store's bell for a topic after the commit, before any caller wakes.

        It may ring in vain, for a closure that failed.
        """


class Store(Protocol):
    """An ordered map with transactions."""

    @property
    def vault(self) -> Vault | None:
        """What contents are encrypted with; None: nothing."""

    @property
    def bell(self) -> Bell:
        """Tells of the commits of this process."""

    def read(self, fn: Callable[[ReadTxn], T]) -> T:
        """Run ``fn`` on one snapshot; a read inside a read sees the outer one's snapshot."""

    def transact(self, fn: Callable[[Txn], T], *, makes_room: bool = False) -> T:
        """Run ``fn`` in a write transaction, commit in the store's durability, return its result.

        ``makes_room``: the closure mostly deletes, and little at a time. It may use the pages that
        are kept for this when the device is full, and StoreFullError meets all others.

        Raises whatever ``fn`` raised (nothing of it is stored then) and StorageError. Not allowed
        inside ``read`` or inside another closure on the same thread (InternalError).
        """

    def submit(
        self,
        fn: Callable[[Txn], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
        large: bool = False,
        future: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue ``fn`` from ``loop``'s thread; the future follows the commit.

        A cancelled future is no rollback: the closure is applied all the same. A commit that waits
        for no device may be made at once, on this thread.

        Args:
            fn: as in ``transact``.
            loop: the loop that runs on this thread.
            makes_room: as in ``transact``.
            large: it takes more than a millisecond of computing, so never on this thread.
            future: what is to follow the commit; None: a new one of ``loop``.
        """

    def flush(self) -> None:
        """Push everything committed so far to the device."""

    def close(self) -> None:
        """Give the store back; waits for transactions and reads under way. Idempotent."""
