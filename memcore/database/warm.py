"""Warm copy: a store on a server that follows a file, and is promoted when the file is lost."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock
from contextlib import suppress
from math import inf
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import ref

from memcore.codec.keys import WARM_KEY
from memcore.codec.values import open_value, seal_value
from memcore.errors import (
    ClosedError,
    InvalidOptionError,
    MemcoreError,
    ReadOnlyError,
    StorageError,
    StoreLockedError,
    SupersededError,
)
from memcore.faces import logger
from memcore.options import checked_path
from memcore.records import record
from memcore.store.changes import ChangeFeed, SnapshotLostError
from memcore.store.commit import release
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.interface import SERVER_SCHEMES, ReadTxn, Store, Txn
from memcore.store.store import LmdbStore
from memcore.store.transaction import is_audited, stored

if TYPE_CHECKING:
    from memcore.store.postgres.copies import WarmTarget

__all__ = ["Promotion", "WarmCopy", "WarmStatus", "promote"]

INTERVAL_SECONDS: Final = 0.25
"""How often the thread looks for commits to ship."""
WAITING_SECONDS: Final = 2.0
"""How often it looks whether another process still ships."""
IDLE_SECONDS: Final = 5.0
"""How often it looks at the copy while there is nothing to ship."""
PAUSE_SECONDS_MAX: Final = 5.0
"""The longest pause after a failure; pauses double up to it."""
PATIENCE_SECONDS: Final = 30.0
"""How long the file keeps its pages for a copy that cannot be reached; then all is compared."""
CLOSING_SECONDS: Final = 5.0
"""How long ``close`` waits for the last shipment."""

_DONE: Final = 0
_AGAIN: Final = 1
_FAILED: Final = 2
"""Outcomes of a round: the next one is due, may begin at once, or begins after a pause."""

_MARK_BYTES: Final = 16
_NO_MARK: Final = bytes(_MARK_BYTES)


@record(frozen=True, slots=True)
class WarmStatus:
    """State of a file's warm copy, as this process knows it."""

    path: str
    """Address of the copy, without its password."""
    state: str
    """``"shipping"``; ``"waiting"``: another process ships; ``"failing"``: see ``error``, it is
    tried again; ``"superseded"``: the copy was promoted, and this file refuses writes."""
    taken_at: float | None
    """When the state that the copy holds was read from the file, in Unix seconds; None: unknown."""
    behind: int
    """Number of commits that the copy lacks, if ``taken_at`` is known."""
    error: str | None
    """Why the last shipment failed."""


@record(frozen=True, slots=True)
class Promotion:
    """Result of a promotion."""

    path: str
    """Address of the store, without its password."""
    taken_at: float
    """When the state that it holds was read from its file, in Unix seconds."""


def promote(address: str, *, dry_run: bool = False) -> Promotion:
    """Make a warm copy a store of its own, which ``memcore.open`` takes by its address.

    The file that it followed refuses writes as soon as it learns of that. It learns within seconds
    if it reaches the server, so make sure first that nobody uses a file that does not.

    Args:
        address: the schema that holds the copy.
        dry_run: change nothing; only return what the copy holds.

    Raises:
        InvalidOptionError: it is no warm copy, or was never filled to the end.
        NotFoundError: there is no such schema.
        StoreAccessError: the server cannot be reached.
        StorageError: it fails.
    """
    if not checked_path("address", address).startswith(SERVER_SCHEMES):
        msg = "address: a warm copy is on a server: postgresql://HOST/NAME#SCHEMA"
        raise InvalidOptionError(msg)
    from memcore.store.postgres.copies import promoted  # noqa: PLC0415 - an optional dependency

    path, mark = promoted(address, dry_run=dry_run)
    return Promotion(path, mark.taken_us / 1e6)


class WarmCopy:
    """Ships what is committed to a file, by any process, to a copy that follows it.

    A thread pins a snapshot of the file, sends the rows in which it differs from the one before,
    and lets go of that one. The copy has one of two marks that the file has in a row: so a file
    that went another way meanwhile, as one that was restored, never overwrites it.
    """

    def __init__(self, store: Store, address: str) -> None:
        """Check that the file can have a copy; connect later.

        Raises:
            InvalidOptionError: it cannot, or the address cannot be read.
            ImportError: psycopg is not installed.
        """
        from memcore.store.postgres.copies import (  # noqa: PLC0415 - an optional dependency
            MarkMovedError,
            WarmTarget,
        )

        file = _shippable(store)
        self._lost = (MarkMovedError, SnapshotLostError)
        self._store = ref(file)
        self._process = os.getpid()
        self._target: WarmTarget = WarmTarget(address)
        self._feed = ChangeFeed(file.environment())
        self._follower = b""
        self._shipped = 0
        """The commit up to which the copy goes, if ``_feed`` has a base."""
        self._wake = allocate_lock()
        self._wake.acquire()
        self._waiting: list[LockType] = []
        self._ended = False
        self._begun = self._done = 0
        """Numbers of rounds: each ships everything committed before it began."""
        self._asked = 0
        self._done_elsewhere = _FAILED
        """Outcome of a round in which another process ships."""
        self._state = "failing"
        self._error: Exception | None = None
        self._looked = self._failing_since = 0.0
        self._thread: Thread | None = None

    # --- the handle --------------------------------------------------------------------------

    def start(self) -> None:
        """Connect once, and start the thread. A server that cannot be reached is tried again.

        Raises:
            SupersededError: the copy was promoted, or follows another file.
            InvalidOptionError: the schema holds another store.
        """
        try:
            self._connect(self._open(), 0)
            self._state = "shipping"
        except StoreLockedError as error:
            self._state, self._error = "waiting", error
        except StorageError as error:
            self._fail(error)
        self._thread = Thread(target=self._run, name="memcore-warm", daemon=True)
        self._thread.start()

    def ship(self, timeout_seconds: float | None) -> None:
        """Wait until everything committed before this call is in the copy.

        Raises:
            SupersededError: the copy was promoted.
            StorageError: it did not get there in time; it is tried again.
        """
        self._need_here()
        wanted = self._begun + 1
        until = inf if timeout_seconds is None else monotonic() + timeout_seconds
        while self._done < wanted:
            if self._state == "superseded" or self._ended:
                raise self._error or ClosedError("the store is closed; open it again")
            left = until - monotonic()
            if left <= 0:
                reason = f": {self._error}" if self._error is not None else ""
                raise StorageError(
                    f"{self._target.path}: the copy is not up to date after {timeout_seconds:g} s; "
                    f"what was committed is in the file, and is shipped later{reason}"
                ) from self._error
            bell = allocate_lock()
            bell.acquire()
            self._waiting.append(bell)
            self._asked = max(self._asked, wanted)
            release(self._wake)
            if self._done < wanted:
                bell.acquire(True, min(left, 1.0))

    def status(self) -> WarmStatus:
        """Return the state of the copy."""
        self._need_here()
        mark = self._target.mark
        taken = mark is not None and mark.is_whole
        behind = self._feed.newest() - mark.txnid if mark is not None and taken else 0
        return WarmStatus(
            self._target.path, self._state,
            mark.taken_us / 1e6 if mark is not None and taken else None,
            max(behind, 0), None if self._error is None else str(self._error),
        )  # fmt: skip

    def close(self) -> None:
        """Ship the rest, and end the thread; what cannot be shipped is told in the log."""
        if self._process != os.getpid() or self._thread is None:
            return
        try:
            if self._state in ("shipping", "failing"):
                self.ship(CLOSING_SECONDS)
        except MemcoreError as error:
            logger("memcore.warm").warning("%s: closed before it was up to date: %s",
                                           self._target.path, error)  # fmt: skip
        finally:
            self._ended = True
            release(self._wake)
            self._thread.join(CLOSING_SECONDS)

    def _need_here(self) -> None:
        if self._process != os.getpid():
            raise InvalidOptionError(
                "this handle was opened before the process was forked, and the parent ships: open "
                "the file here"
            )

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        failed = 0
        try:
            while not self._ended and self._state != "superseded":
                self._begun += 1
                number, outcome = self._begun, self._try_round()
                if outcome == _DONE:
                    self._done = number
                failed = failed + 1 if outcome == _FAILED else 0
                self._ring()
                if outcome == _FAILED or self._asked <= self._done:
                    self._wake.acquire(True, self._pause(failed))
        finally:
            self._ended = True
            self._target.disconnect()
            self._ring()

    def _pause(self, failed: int) -> float:
        if failed:
            return min(INTERVAL_SECONDS * 2.0 ** min(failed, 10), PAUSE_SECONDS_MAX)
        return WAITING_SECONDS if self._state == "waiting" else INTERVAL_SECONDS

    def _ring(self) -> None:
        """Wake those who wait for a round."""
        waiting, self._waiting = self._waiting, []
        for bell in waiting:
            release(bell)

    def _try_round(self) -> int:
        """Ship once, and return how it went."""
        store = self._store()
        if store is None:
            self._ended = True
            return _FAILED
        try:
            self._round(store)
        except self._lost:
            self._target.disconnect()
            return _AGAIN
        except Exception as error:  # noqa: BLE001 - told by the log, the status and ``ship``
            return self._judge(store, error)
        self._state, self._error, self._failing_since = "shipping", None, 0.0
        return _DONE

    def _judge(self, store: LmdbStore, error: Exception) -> int:
        """Take note of a failure, and return the round's outcome."""
        if isinstance(error, ClosedError):
            self._ended = True
        elif isinstance(error, SupersededError):
            self._state, self._error = "superseded", error
            with suppress(ClosedError):
                store.supersede(str(error))
        elif isinstance(error, StoreLockedError):
            self._state, self._error, self._failing_since = "waiting", error, 0.0
            return self._done_elsewhere
        else:
            self._fail(error)
        return _FAILED

    def _fail(self, error: Exception) -> None:
        self._state, self._error = "failing", error
        if not self._failing_since:
            self._failing_since = monotonic()
            logger("memcore.warm").warning("the warm copy is not up to date: %s", error)

    def _round(self, store: LmdbStore) -> None:
        if self._failing_since and monotonic() - self._failing_since > PATIENCE_SECONDS:
            self._feed.drop()  # else the file could not use its freed pages again
        self._done_elsewhere = _FAILED
        wanted = self._feed.newest()
        if not self._target.is_connected:
            self._connect(store, wanted)
        if self._feed.base is not None and self._shipped == self._feed.newest():
            if self._asked > self._done or monotonic() - self._looked > IDLE_SECONDS:
                self._target.look()
                self._looked = monotonic()
            return
        changes = self._feed.take()
        self._target.ship(changes, store.secret.found(), self._follower)
        self._feed.keep()
        self._shipped, self._looked = changes.txnid, monotonic()

    def _connect(self, store: LmdbStore, wanted: int) -> None:
        """Become the process that ships, and leave a new mark in the file, unless it has the last.

        Where another process ships, ``_done_elsewhere`` says if it has shipped the commit ``wanted``.

        Raises:
            SupersededError: the copy was promoted, or follows another file.
            StoreLockedError: another process ships.
            InvalidOptionError, StorageError
        """
        target = self._target
        try:
            target.connect(store.read(_record_of), store.secret.found())
        except StoreLockedError:
            self._feed.drop()
            mark = target.mark
            if mark is not None and mark.is_whole and mark.txnid >= wanted:
                # Of a twin of this file, which ships there, too, the numbers would say nothing.
                is_own = mark.follower in store.read(_marks_of)
                self._done_elsewhere = _DONE if is_own else _FAILED
            raise
        try:
            self._need_own(store)
        except BaseException:
            target.disconnect()
            raise

    def _need_own(self, store: LmdbStore) -> None:
        target, known = self._target, store.read(_marks_of)
        mark = target.mark
        if target.version:
            raise _refusal(target.path, known)
        if mark is not None and mark.follower == self._follower:
            if mark.txnid != self._shipped:
                self._feed.drop()  # the last shipment failed, or its answer was lost
            return
        if mark is not None and mark.follower not in known:
            raise SupersededError(
                f"{target.path}: follows another file, or what this one was before it was restored "
                "or copied: promote it, or drop its schema to begin anew"
            )
        self._feed.drop()
        self._follower = _take_over(store, _NO_MARK if mark is None else mark.follower)

    def _open(self) -> LmdbStore:
        store = self._store()
        if store is None:
            raise ClosedError("the store is closed; open it again")
        return store


def _refusal(path: str, known: tuple[bytes, bytes]) -> MemcoreError:
    if any(mark != _NO_MARK for mark in known):
        return SupersededError(
            f"{path}: was promoted: the store lives on there. Open it by its address, or open the "
            "file without a warm copy"
        )
    return InvalidOptionError(f"{path}: is a store already; a warm copy needs a schema of its own")


def _take_over(store: LmdbStore, before: bytes) -> bytes:
    """Leave a new mark in the file, durably, beside the one that the copy has; return it."""
    made = os.urandom(_MARK_BYTES)

    def closure(txn: Txn) -> None:
        txn.put(WARM_KEY, seal_value(WARM_KEY, before + made))

    store.transact(closure)
    store.make_durable()  # behind a power cut the file must still know the mark that the copy gets
    return made


def _marks_of(txn: ReadTxn) -> tuple[bytes, bytes]:
    value = txn.get(WARM_KEY)
    body = bytes(2 * _MARK_BYTES) if value is None else open_value(WARM_KEY, value)[1]
    return bytes(body[:_MARK_BYTES]), bytes(body[_MARK_BYTES:])


def _record_of(txn: ReadTxn) -> Format:
    return Format.unpack(stored(txn).get(FORMAT_KEY), "the file")


def _shippable(store: Store) -> LmdbStore:
    """Return a store that may have a warm copy.

    Raises:
        InvalidOptionError, ReadOnlyError
    """
    if not isinstance(store, LmdbStore) or store.path == ":memory:":
        raise InvalidOptionError("warm: only a file has a warm copy, not a server, nor memory")
    if store.read_only:
        raise ReadOnlyError("warm: the file is open read-only; its writers ship")
    if store.vault is not None or store.read(lambda txn: is_audited(txn, store.path)):
        raise InvalidOptionError(
            f"warm: {store.path} is encrypted or audited, which a store on a server cannot be"
        )
    return store
