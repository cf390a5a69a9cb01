"""Interface of the ordered map: transactions, store, notifier, multi-commit operations."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from memcore.errors import InvalidOptionError
from memcore.limits import PAGE_BYTES, PIECE_PAGES, PIECE_ROWS

if TYPE_CHECKING:
    import asyncio

    from memcore.store.encryption import RowCipher

__all__ = [
    "ERASED",
    "NAMES",
    "SERVER_SCHEMES",
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


# --- Notifier: listeners called after the commit that makes a change ------------------------------

NAMES: Final = b"names"
"""Topic published when a scope, a session or another named object gets its number."""

ERASED: Final = b"erased"
"""Topic published when a user is erased: caches of contents drop theirs."""

_NOBODY: Final[tuple[Callable[[], object], ...]] = ()


class Notifier:
    """Listeners of one environment, by topic. Thread-safe.

    Only commits of this process are published; changes by other processes have to be polled for. A
    listener is called on the committing thread, before the committer's call returns; it must be
    fast and must not raise. It may be called once more after it has unsubscribed.
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
        """Undo one ``subscribe`` call."""
        with self._lock:
            left = list(self._listeners.get(topic, _NOBODY))
            left.remove(listener)
            if left:
                self._listeners[topic] = tuple(left)
            else:
                del self._listeners[topic]

    def publish(self, topics: Iterable[bytes]) -> None:
        """Call the listeners of the topics."""
        # Without the lock: the tuples are replaced, never changed.
        if self._listeners:
            for topic in topics:
                for listener in self._listeners.get(topic, _NOBODY):
                    listener()


# --- The ordered map under everything else: byte keys, byte values, transactions ------------------

T = TypeVar("T")

SERVER_SCHEMES: Final = ("postgresql://", "postgres://")
"""Beginnings of the address of a store on a server, which stands in place of a path."""
_SCHEME: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")
_LIKE_ADDRESS: Final = re.compile(r"^\W*(postgres(ql)?|jdbc)(:|//)|:[^/]*@[^/]*/|password=")


def need_known_address(path: str) -> None:
    """Refuse addresses of other kinds, whose text is not repeated: it may hold a password.

    Raises:
        InvalidOptionError: it is one, and no path.
    """
    if path.startswith(SERVER_SCHEMES):
        return
    found = _SCHEME.match(path)
    if found is not None and not os.path.isdir(f"{found[1]}:"):
        raise InvalidOptionError(
            f"unsupported address {found[0]}; that of a store on a server begins with "
            f"{SERVER_SCHEMES[0]}"
        )
    # Whatever may hold a password, and is no file: blanks or quotes before it, no scheme, no colon.
    is_placed = os.path.lexists(path) or os.path.isdir(os.path.dirname(path) or " ")
    if _LIKE_ADDRESS.search(path) and not is_placed:
        raise InvalidOptionError(
            "this looks like an address, and memcore cannot read it; that of a store on a server "
            f"begins with {SERVER_SCHEMES[0]}"
        )


class MapMovedError(Exception):
    """A read that must not block would have to wait for the lead: another process grew the map.

    A caller that holds a lock which a closure may need releases it, reads patiently, and retries.
    """


class ReadTxn(Protocol):
    """One consistent snapshot. It returns copies only, and ends with its closure."""

    @property
    def vault(self) -> RowCipher | None:
        """Cipher of the stored rows; None if the file is not encrypted."""

    @property
    def is_remote(self) -> bool:
        """True if a read may be a trip to a server, so that it pays to say what is read next."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``, or None."""

    def get_new(self, key: bytes, /) -> bytes | None:
        """Return the value of a key that is most probably absent.

        A write on a server then supposes so, and its commit finds out; the closure runs again if
        it is there.
        """

    def scan(
        self, start: bytes, stop: bytes, *, reverse: bool = False, limit: int = 0
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows with ``start <= key < stop`` in (reverse) key order; ``limit`` 0: all."""

    def take(self, start: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first ``count`` rows from ``start`` on, of any prefix; fast for many rows."""

    def prefetch(self, keys: Sequence[bytes], /) -> None:
        """Note that these keys are about to be read: a server answers all of them in one trip."""

    def prefetch_named(self, scope_key: bytes, name_kind: int, name: bytes, kind: int, /) -> None:
        """Note that an object is about to be read which a scope has under a name.

        ``scope_key`` is the key of the scope's name; ``name`` what follows the scope's number in
        the key of the object's name, which is of ``name_kind``; ``kind`` that of the object's rows.
        """


class Txn(ReadTxn, Protocol):
    """A write transaction as a closure sees it.

    The closure may be rerun, and shares the transaction with other callers' closures. So it must
    keep no cursor or view, have no side effects outside the transaction, do its checks before its
    first write, and leave ``local`` unchanged if it raises before its first write.
    """

    @property
    def local(self) -> dict[Any, Any]:
        """Per-transaction values shared by all closures of a batch (overlays of ledgers)."""

    @property
    def audit(self) -> Any:
        """Audit recording of this transaction; None if the file is not audited."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write one row."""

    def need_feature(self, feature: int) -> None:
        """Set a feature bit; a memcore that does not know it refuses the file from now on."""

    def delete(self, key: bytes) -> bool:
        """Delete one row; True if it existed."""

    def delete_range(self, start: bytes, stop: bytes) -> int:
        """Delete all rows with ``start <= key < stop``; returns their number."""

    def spoil(self) -> None:
        """Mark the closure as failed halfway, if only in memory: rerun the others without it."""

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the committing thread after the commit, before any caller wakes.

        It also runs if the batch wrote nothing, and again if an interrupt cut it short, so it must
        be idempotent. It must not write to the store. If it raises, the transaction stays committed
        and its caller gets InternalError.
        """

    def notify(self, topic: bytes) -> None:
        """Publish a topic after the commit, before any caller wakes.

        It may be published spuriously, for a closure that failed.
        """


class SecretOf(Protocol):
    """The secret of a store, which keys pseudonyms and signs receipts."""

    def value(self) -> bytes:
        """Return the 32 bytes, made on first use."""

    def found(self) -> bytes | None:
        """Return the 32 bytes; None if there is none yet."""

    def settle(self) -> bool:
        """Move the secret to its place if it is elsewhere; return True if nothing is left to do."""


class Store(Protocol):
    """An ordered map with transactions.

    What only a file has (copies, locks, records to wipe) a store on a server refuses with an
    InvalidOptionError that says what to use instead.
    """

    is_server: bool
    """True if each read is a trip to another machine, which must not block an event loop."""

    @property
    def path(self) -> str:
        """Path of the file, or the server's address without its password."""

    @property
    def read_only(self) -> bool:
        """True if the handle refuses writes."""

    @property
    def durability(self) -> str:
        """Durability mode."""

    @property
    def seed(self) -> bytes:
        """Random 16 bytes, which key the hashes of call ids and requests."""

    @property
    def file_id(self) -> bytes:
        """Random 16 bytes that identify the store."""

    @property
    def secret(self) -> SecretOf:
        """Secret of the store."""

    @property
    def opened(self) -> int:
        """Number of times that a file was opened at the path: numbers of snapshots begin anew."""

    @property
    def needs_recovery(self) -> bool:
        """True if a read-only handle sees the store one transaction behind. Advisory."""

    @property
    def vault(self) -> RowCipher | None:
        """Cipher of the stored rows; None if the file is not encrypted."""

    @property
    def notifier(self) -> Notifier:
        """Notifier of the commits of this process."""

    def now_us(self) -> int:
        """Return the time in microseconds since 1970, by the clock that all writers share."""

    def environment(self) -> Any:
        """Return what handles of the store share; its ``leader``, ``audit`` and ``queue``."""

    def read(self, fn: Callable[[ReadTxn], T], *, patient: bool = True) -> T:
        """Run ``fn`` on one snapshot; a nested read shares the outer read's snapshot.

        It may run more than once, and only the last result counts: so it has no side effects that
        a second run would repeat. A read that is not ``patient`` never waits for the lead.

        Raises:
            MapMovedError: not ``patient``, and the map has to be replaced first.
        """

    def transact(self, fn: Callable[[Txn], T], *, makes_room: bool = False) -> T:
        """Run ``fn`` in a write transaction, commit with the store's durability, return the result.

        ``makes_room``: the closure mostly deletes, and a little at a time. On a full device it may
        use the pages reserved for this, whereas all other closures fail with StoreFullError.

        Raises whatever ``fn`` raised (none of its writes are stored then) and StorageError. Not
        allowed inside ``read`` or inside another closure on the same thread (InternalError).
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
        """Queue ``fn`` from ``loop``'s thread; the future completes after the commit.

        Cancelling the future does not roll back: the closure is applied anyway. A commit that waits
        for no device may be made immediately, on this thread.

        Args:
            fn: as in ``transact``.
            loop: the loop that runs on this thread.
            makes_room: as in ``transact``.
            large: it needs more than a millisecond of computation, so never runs on this thread.
            future: completed after the commit; None: a new one of ``loop``.
        """

    def flush(self) -> None:
        """Flush everything committed so far to the device, and anchor it."""

    def make_durable(self) -> None:
        """Flush without anchoring: no power failure can undo earlier commits."""

    def alone(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` under the write lock; nothing is committed."""

    def exclusive(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while all other processes are kept out."""

    def check(self) -> list[str]:
        """Verify the structure below the rows; an empty list means clean."""

    def stats(self) -> dict[str, Any]:
        """Return statistics of the file, the map and the queue."""

    def wipe_records(self) -> None:
        """Wipe the contents of the last commits from the redo slots."""

    def backup(self, target: str, *, compact: bool = True, judge: Any = None) -> None:
        """Copy one consistent snapshot to a new file."""

    def restore(self, target: str, *, kept: str | None, replace: bool, judge: Any = None) -> None:
        """Put a copy of this store at ``target``."""

    def copy_compact(self, *, durability: str | None = None, judge: Any = None) -> tuple[int, int]:
        """Replace the file with a compacted copy; returns its size in bytes before and after."""

    def close(self) -> None:
        """Close the store; waits for pending transactions and reads. Idempotent."""


# --- Work limit of one deleting transaction -------------------------------------------------------
# LMDB copies every page that a deletion touches, and lists every page that it frees. So a large
# deletion is split into pieces, each its own transaction, which needs far less than ``ROOM_BYTES``;
# its list of freed pages fits in one page, its redo record fits in a slot, and other writers wait
# for one piece only.

_BIG_BYTES: Final = PAGE_BYTES // 2
"""Approximate size from which values have overflow pages."""
_ROW_BYTES: Final = 64
"""Approximate size of a row's key and header."""
_HALF_FULL: Final = 2
"""Leaf pages are half full at worst."""


class DeleteBudget:
    """Budget of rows and pages; the first row always fits."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._bytes = 0
        self._rows = 0

    def admits(self, value_bytes: int, *, more_pages: int = 0) -> bool:
        """Return True if this transaction may delete one more row with a value of this size.

        ``more_pages``: additional pages that related rows cost.
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


# --- Operations of several commits, driven from a thread or from an event loop --------------------
# A generator yields closures; its driver commits each and sends the result back in. A closure that
# finds that the store has changed since it was prepared raises Stale, which is thrown into the
# generator, so that it prepares the closure again.


Closure = Callable[[Txn], Any]
Steps = Generator[Closure, Any, T]


class Stale(Exception):  # noqa: N818 - never leaves this package
    """A prepared closure no longer matches the store: it has to be prepared again."""


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
