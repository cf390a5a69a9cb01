"""Interface of the ordered map: transactions, store, notifier, steps of long operations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from memcore.limits import PAGE_BYTES, PIECE_PAGES, PIECE_ROWS

if TYPE_CHECKING:
    import asyncio

    from memcore.store.encryption import RowCipher

__all__ = [
    "ERASED",
    "NAMES",
    "Closure",
    "DeleteBudget",
    "MapMovedError",
    "Notifier",
    "Orphaned",
    "ReadTxn",
    "Stale",
    "Steps",
    "Store",
    "Txn",
    "take",
]


# --- Notifier: listeners woken by the commit that makes a change ----------------------------------

NAMES: Final = b"names"
"""The topic that is told of when a scope, a session or something else gets its number."""

ERASED: Final = b"erased"
"""The topic that is told of when a user is erased: whoever remembers content forgets it."""

_NOBODY: Final[tuple[Callable[[], object], ...]] = ()


class Notifier:
    """The listeners of one environment, by what they listen to. Thread-safe.

    It rings for commits of this process alone: whoever waits for those of others looks now and
    then. A listener is called on the committing thread, before the committer's call returns; it
    is quick and does not raise. It may be called once more after it left.
    """

    __slots__ = ("_listeners", "_lock")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all listeners; in the child of a fork their threads do not exist."""
        self._lock = Lock()
        self._listeners: dict[bytes, tuple[Callable[[], object], ...]] = {}

    def subscribe(self, topic: bytes, listener: Callable[[], object]) -> None:
        """Call ``listener`` after each commit that notifies the topic."""
        with self._lock:
            self._listeners[topic] = (*self._listeners.get(topic, _NOBODY), listener)

    def unsubscribe(self, topic: bytes, listener: Callable[[], object]) -> None:
        """Take back one ``listen``."""
        with self._lock:
            left = list(self._listeners.get(topic, _NOBODY))
            left.remove(listener)
            if left:
                self._listeners[topic] = tuple(left)
            else:
                del self._listeners[topic]

    def publish(self, topics: Iterable[bytes]) -> None:
        """Call the listeners of the topics."""
        if self._listeners:
            for topic in topics:
                for listener in self._listeners.get(topic, _NOBODY):
                    listener()


# --- The ordered map that everything stands on: byte keys, byte values, transactions --------------

T = TypeVar("T")


class MapMovedError(Exception):
    """An impatient read would have to wait for the lead: another process grew the map.

    Whoever holds a lock that a closure may want lets it go, reads patiently, and tries again.
    """


class ReadTxn(Protocol):
    """One consistent snapshot. All that it returns are copies; it ends with its closure."""

    @property
    def vault(self) -> RowCipher | None:
        """Cipher of the stored rows; None if the file is not encrypted."""

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
        """Set a feature bit: a memcore that does not know it refuses the file from now on."""

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

    def notify(self, topic: bytes) -> None:
        """Publish a topic after the commit, before any caller wakes.

        It may ring in vain, for a closure that failed.
        """


class Store(Protocol):
    """An ordered map with transactions."""

    @property
    def vault(self) -> RowCipher | None:
        """Cipher of the stored rows; None if the file is not encrypted."""

    @property
    def notifier(self) -> Notifier:
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


# --- Work limit of one deleting transaction -------------------------------------------------------
# LMDB copies every page that a deletion touches, and lists every page that it frees. So a large
# deletion is done in pieces, each a transaction of its own: it needs far less than ``ROOM_BYTES``,
# its list of freed pages fits one page, its redo record a slot, and other writers wait for one
# piece only.

_BIG_BYTES: Final = PAGE_BYTES // 2
"""Values from about this size on have pages of their own."""
_ROW_BYTES: Final = 64
"""Key and header of a row, roughly."""
_HALF_FULL: Final = 2
"""Leaf pages are half full at worst."""


class DeleteBudget:
    """Counts rows and pages; the first row always fits."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._bytes = 0
        self._rows = 0

    def admits(self, value_bytes: int, *, more_pages: int = 0) -> bool:
        """Return True if this transaction may delete one more row with a value of this size.

        ``more_pages``: pages that other rows cost.
        """
        if value_bytes < _BIG_BYTES:
            cost = _HALF_FULL * (value_bytes + _ROW_BYTES)
        else:
            cost = value_bytes + PAGE_BYTES
        self._rows += 1
        self._bytes += cost + more_pages * PAGE_BYTES
        return self._rows == 1 or (
            self._rows <= PIECE_ROWS and self._bytes <= PIECE_PAGES * PAGE_BYTES
        )


# --- Work that takes several commits, for callers that wait in a thread and callers in a loop -----
# A generator yields closures; whoever drives it commits each and sends its result back in. A
# closure that finds the store other than it was prepared for raises Stale, which is thrown into the
# generator: it prepares anew.


Closure = Callable[[Txn], Any]
Steps = Generator[Closure, Any, T]


class Stale(Exception):  # noqa: N818 - never leaves this package
    """A prepared closure no longer fits the store: its caller prepares it again."""


class Orphaned(Stale):
    """The parent of a checkpoint was pruned, and values that it held may be gone."""


def take(store: Store, steps: Steps[T], *, makes_room: bool = False) -> T:
    """Commit a generator's closures one by one; return the generator's result."""
    try:
        closure = next(steps)
        while True:
            try:
                result = store.transact(closure, makes_room=makes_room)
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                closure = steps.send(result)
    except StopIteration as exc:
        return exc.value  # type: ignore[no-any-return]
