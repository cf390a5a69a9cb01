"""Warm copy: a store on a server that follows a file, and is promoted when the file is lost."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, get_ident
from contextlib import suppress
from math import inf
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from memcore.codec.keys import WARM_KEY
from memcore.codec.values import clock_us
from memcore.errors import (
    ClosedError,
    InvalidOptionError,
    MemcoreError,
    ReadOnlyError,
    StorageError,
    StoreLockedError,
    SupersededError,
    UnshippedError,
)
from memcore.faces import logger
from memcore.options import checked_path
from memcore.records import record
from memcore.store.changes import (
    MARK_BYTES,
    NO_MARK,
    ChangeFeed,
    SnapshotLostError,
    WarmRow,
    warm_row,
)
from memcore.store.commit import release
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.interface import SERVER_SCHEMES, ReadTxn, Store
from memcore.store.store import LmdbStore
from memcore.store.transaction import is_audited, stored

if TYPE_CHECKING:
    from asyncio import Future

    from memcore.store.postgres.copies import WarmTarget

__all__ = ["Promotion", "WarmCopy", "WarmStatus", "promote"]

INTERVAL_SECONDS: Final = 0.25
"""Time between two looks at the file for commits to ship."""
WAITING_SECONDS: Final = 5.0
"""The same while another process ships."""
IDLE_SECONDS: Final = 5.0
"""Time between two looks at the copy while there is nothing to ship."""
PAUSE_SECONDS_MAX: Final = 5.0
"""The longest pause after a failure; pauses double up to it."""
PIN_SECONDS_MAX: Final = 30.0
"""Time for which the file keeps its pages for a copy that cannot be reached."""
SYNC_SECONDS: Final = 30.0
"""The longest wait of a commit for its shipment, with ``ship="sync"``."""
CLOSING_SECONDS: Final = 5.0
"""The longest wait of ``close`` for the last shipment."""

_ATTEMPTS: Final = 8


@record(frozen=True, slots=True)
class WarmStatus:
    """State of a file's warm copy, as this process knows it."""

    path: str
    """Address of the copy, without its password."""
    state: str
    """``"shipping"``; ``"waiting"``: another process ships; ``"failing"``: see ``error``, it is
    tried again; ``"superseded"``: the copy was promoted or follows another file, and this file
    refuses writes."""
    current_at: float | None
    """The copy has everything that was committed before this time, in Unix seconds; None: unknown.
    It advances while there is nothing to ship, too."""
    behind: int | None
    """Number of commits that the copy lacks; None: unknown."""
    error: str | None
    """The reason for which the copy is not kept up to date; None: it is."""


@record(frozen=True, slots=True)
class Promotion:
    """Result of a promotion."""

    path: str
    """Address of the store, without its password."""
    taken_at: float
    """Time at which the state that it had was read from its file, in Unix seconds."""


def promote(address: str, *, dry_run: bool = False) -> Promotion:
    """Make a warm copy a store of its own, which ``memcore.open`` takes by its address.

    Processes that opened the file with ``warm=`` refuse writes within seconds, if they reach the
    server. Stop all other writers first. Promoting it again changes nothing.

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


class UnshippedCommit(NamedTuple):
    """A commit from an event loop that is stored, and not shipped yet."""

    wanted: int
    """The round that ships it."""
    until: float
    outcome: Future[Any]
    result: Any


def _settle(outcome: Future[Any], error: BaseException | bool | None, result: Any) -> None:
    """Settle a future on its loop's thread, unless it is settled."""
    if outcome.done():
        return
    if isinstance(error, BaseException):
        outcome.set_exception(error)
    elif error:
        outcome.cancel()
    else:
        outcome.set_result(result)


class WarmCopy:
    """Ships what is committed to a file, by any process, to a copy that follows it.

    A thread pins a snapshot of the file, sends the rows in which it differs from the one before,
    and lets go of that one. The copy carries one of two marks stored in the file, so a file with
    another history, as one that was restored, never overwrites it.
    """

    def __init__(self, store: Store, address: str) -> None:
        """Check that the file can have a copy; connect later.

        Raises:
            InvalidOptionError: it cannot, or the address cannot be read.
            ImportError: psycopg is not installed.
        """
        from memcore.store.postgres.copies import (  # noqa: PLC0415 - an optional dependency
            Mark,
            MarkMovedError,
            WarmTarget,
        )

        file = _need_file(store)
        self._mark = Mark
        self._lost = (MarkMovedError, SnapshotLostError)
        self._store = ref(file)
        self._process = os.getpid()
        self._target: WarmTarget = WarmTarget(address)
        self._feed = ChangeFeed(file.environment())
        self._source = b""
        """The mark that this process gave the copy."""
        self._shipped = 0
        """Position of the last commit in the copy, if ``_feed`` has a base."""
        self._wake = allocate_lock()
        self._wake.acquire()
        self._waiters: list[LockType] = []
        self._pending: list[UnshippedCommit] = []
        self._ended = False
        self._begun = self._done = 0
        """Numbers of rounds: each ships everything committed before it began."""
        self._asked = 0
        """The round that somebody waits for."""
        self._state = "failing"
        self._error: str | None = None
        self._current_us = 0
        self._looked = self._failing_since = 0.0
        self._thread: Thread | None = None

    # --- the handle --------------------------------------------------------------------------

    def start(self, *, is_sync: bool) -> None:
        """Connect once, and start the thread. A server that cannot be reached is tried again.

        ``is_sync``: commits through the handle wait for their shipment from now on.

        Raises:
            SupersededError: the copy was promoted, or follows another file.
            InvalidOptionError: the schema holds another store.
        """
        store = self._store()
        if store is None:
            raise ClosedError("the store is closed; open it again")
        try:
            self._connect(store)
            self._state = "shipping"
        except StoreLockedError:
            self._state = "waiting"
        except StorageError as error:
            self._fail(error)
        self._thread = Thread(target=self._run, name="memcore-warm", daemon=True)
        self._thread.start()
        if is_sync:
            store.wait_for(self)

    def ship(self, timeout_seconds: float | None) -> None:
        """Wait until everything committed before this call is in the copy.

        Raises:
            SupersededError: the copy was promoted, or follows another file.
            UnshippedError: it did not get there in time; it is tried again.
            ClosedError
            InvalidOptionError: this is the child of a fork.
            InternalError: inside a transaction.
        """
        if self._process != os.getpid():
            raise InvalidOptionError(
                "the child of a fork does not ship; open the file in this process"
            )
        store = self._store()
        if store is None or (self._ended and self._state != "superseded"):
            raise ClosedError("the store is closed; open it again")
        store.need_outside()
        wanted = self._begun + 1
        until = inf if timeout_seconds is None else monotonic() + timeout_seconds
        self._ask(wanted)  # once: the pauses behind failures are kept
        while self._done < wanted:
            error = self._error_of(until)
            if error is not None:
                raise error
            waiter = allocate_lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if self._done < wanted:
                waiter.acquire(True, min(max(until - monotonic(), 0.0), 1.0))

    def confirm(self) -> None:
        """Wait until what this thread committed is in the copy.

        Raises:
            UnshippedError, SupersededError: it is not, but it is stored in the file.
        """
        if self._thread is not None and self._thread.ident != get_ident():
            self.ship(SYNC_SECONDS)

    def confirm_later(self, stored: Future[Any], outcome: Future[Any]) -> None:
        """Give ``outcome`` the result of a commit once it is in the copy; on its loop's thread."""
        if stored.cancelled() or stored.exception() is not None:
            _settle(outcome, stored.cancelled() or stored.exception(), None)
            return
        wanted, until = self._begun + 1, monotonic() + SYNC_SECONDS
        self._pending.append(UnshippedCommit(wanted, until, outcome, stored.result()))
        self._ask(wanted)
        if self._ended:
            self._settle_pending()

    def _ask(self, number: int) -> None:
        self._asked = max(self._asked, number)
        release(self._wake)

    def _error_of(self, until: float) -> MemcoreError | None:
        """Return why it is of no use to wait on; None while it is."""
        if self._state == "superseded":
            return SupersededError(self._error)
        if monotonic() < until and not self._ended:
            return None
        reason = f": {self._error}" if self._error is not None else ""
        return UnshippedError(
            f"{self._target.path}: the warm copy is not up to date in time; what was committed is "
            f"in the file, and is shipped later{reason}"
        )

    def _settle_pending(self) -> None:
        """Settle the futures of commits that are in the copy, or are waited for in vain."""
        pending, self._pending = self._pending, []
        for each in pending:
            error = None if self._done >= each.wanted else self._error_of(each.until)
            if self._done < each.wanted and error is None:
                self._pending.append(each)
                continue
            with suppress(RuntimeError):  # its loop is closed: nobody awaits it
                each.outcome.get_loop().call_soon_threadsafe(
                    _settle, each.outcome, error, each.result
                )

    def status(self) -> WarmStatus:
        """Return the state of the copy."""
        mark, behind, store = self._target.mark, None, self._store()
        if mark is not None and mark.is_complete and store is not None:
            behind = max(store.read(_position_of) - mark.position, 0)
        current = self._current_us / 1e6 if self._current_us else None
        return WarmStatus(self._target.path, self._state, current, behind, self._error)

    def close(self) -> None:
        """Ship the rest, and end the thread; a failure to ship is logged."""
        if self._process != os.getpid() or self._thread is None:
            return
        try:
            if self._state in ("shipping", "failing"):
                self.ship(CLOSING_SECONDS)
        except MemcoreError as error:
            logger("memcore.warm").warning("closed before the warm copy was up to date: %s", error)
        finally:
            self._ended = True
            release(self._wake)
            self._thread.join(CLOSING_SECONDS)

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        failed = 0
        try:
            while not self._ended and self._state != "superseded":
                self._begun += 1
                number = self._begun
                if self._try_round():
                    self._done, failed = number, 0
                else:
                    failed += 1
                self._notify()
                if failed or self._asked <= self._done:
                    self._wake.acquire(True, self._pause(failed))
        finally:
            self._ended = True
            with suppress(MemcoreError):  # it is closed: there are no pins
                self._feed.drop()
            self._target.disconnect()
            self._notify()

    def _notify(self) -> None:
        """Wake those who wait for a round."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            release(waiter)
        self._settle_pending()

    def _pause(self, failed: int) -> float:
        if failed:
            return min(INTERVAL_SECONDS * 2.0 ** min(failed, 10), PAUSE_SECONDS_MAX)
        return WAITING_SECONDS if self._state == "waiting" else INTERVAL_SECONDS

    def _try_round(self) -> bool:
        """Ship once; True if the copy is up to date."""
        store = self._store()
        if store is None:
            self._ended = True
            return False
        began_us = clock_us()
        try:
            is_done = self._round(store)
        except ClosedError:
            self._ended = True
            return False
        except SupersededError as error:
            self._error = str(error)  # not the error: its traceback would keep the handle
            self._state = "superseded"
            logger("memcore.warm").error("%s", error)
            with suppress(ClosedError):
                store.supersede(str(error))
            return False
        except Exception as error:  # noqa: BLE001 - logged, and told by ``status`` and ``ship``
            self._fail(error)
            return False
        if self._failing_since:
            logger("memcore.warm").info("%s: shipping again", self._target.path)
        self._state = "shipping" if self._target.is_connected else "waiting"
        self._error, self._failing_since = None, 0.0
        if is_done:
            self._current_us = began_us
        return is_done

    def _fail(self, error: Exception) -> None:
        self._state, self._error = "failing", str(error) or type(error).__name__
        if not self._failing_since:
            self._failing_since = monotonic()
            logger("memcore.warm").warning("the warm copy is not up to date: %s", error)

    def _round(self, store: LmdbStore) -> bool:
        if self._failing_since and monotonic() - self._failing_since > PIN_SECONDS_MAX:
            self._feed.drop()  # else the file could not use its freed pages again
        wanted = store.read(_position_of)
        for _ in range(_ATTEMPTS):
            try:
                if not self._target.is_connected:
                    self._connect(store)
                self._ship(store)
            except StoreLockedError:
                return self._is_shipped_elsewhere(store, wanted)
            except self._lost:
                self._target.disconnect()
            else:
                return True
        raise StorageError(f"{self._target.path}: the file or its copy changed in each attempt")

    def _ship(self, store: LmdbStore) -> None:
        if self._feed.base is not None and self._shipped == store.read(_position_of):
            if self._asked > self._done or monotonic() - self._looked > IDLE_SECONDS:
                self._target.check()
                self._looked = monotonic()
            return
        taken_us, changes = clock_us(), self._feed.take()
        if store.durability != "full":
            # The file must not fall behind its copy in a power cut: it would have another history.
            store.make_durable()
        offset = store.read(_row_of).offset  # if the file was replaced, the snapshot is lost
        mark = self._mark(
            self._source, offset + changes.txnid, *store.place, taken_us, is_complete=True
        )
        self._target.ship(changes, store.secret.found(), mark)
        self._feed.keep()
        self._shipped, self._looked = mark.position, monotonic()

    def _connect(self, store: LmdbStore) -> None:
        """Become the process that ships, and leave a new mark in the file, unless it has the last.

        Raises:
            SupersededError: the copy was promoted, or follows another file.
            StoreLockedError: another process ships.
            InvalidOptionError, StorageError
        """
        target = self._target
        try:
            target.connect(store.read(_record_of), store.secret.found())
            self._need_own(store)
        except StoreLockedError:
            self._feed.drop()
            raise
        except BaseException:
            target.disconnect()
            raise

    def _need_own(self, store: LmdbStore) -> None:
        target, mark = self._target, self._target.mark
        row, position = store.read(lambda txn: (_row_of(txn), _position_of(txn)))
        is_known = mark is not None and mark.source in row[:2]
        if target.is_store:
            if is_known:
                raise SupersededError(
                    f"{target.path}: was promoted: the store is there now. Open it by its address, "
                    "and this file with read_only=True"
                )
            raise InvalidOptionError(
                f"{target.path}: holds a store; name a schema for the warm copy that does not exist"
            )
        if mark is not None and mark.source == self._source:
            if mark.position != self._shipped:
                self._feed.drop()  # the last shipment failed, or its answer was lost
            return
        if mark is not None and not (is_known and mark.position <= position):
            raise SupersededError(
                f"{target.path}: follows another file, or another history of this one, as from "
                "before it was restored or copied. Promote it to keep it; drop its schema only to "
                "discard it"
            )
        self._feed.drop()
        self._source = os.urandom(MARK_BYTES)
        before = NO_MARK if mark is None else mark.source
        made = WarmRow(before, self._source, row.offset).pack()
        store.transact(lambda txn: txn.put(WARM_KEY, made))
        store.make_durable()  # the file must know the mark before the copy gets it

    def _is_shipped_elsewhere(self, store: LmdbStore, wanted: int) -> bool:
        """Return whether the process that ships has shipped the commit at a position."""
        mark = self._target.mark
        row, position = store.read(lambda txn: (_row_of(txn), _position_of(txn)))
        return (
            mark is not None
            and mark.is_complete
            and wanted <= mark.position <= position
            # That of a twin, which ships to the same copy, says nothing of this file.
            and (mark.source, mark.device, mark.inode) == (row.made, *store.place)
        )


def _row_of(txn: ReadTxn) -> WarmRow:
    return warm_row(txn.get(WARM_KEY))


def _position_of(txn: ReadTxn) -> int:
    """Return the position of the newest commit."""
    return _row_of(txn).offset + stored(txn).id()


def _record_of(txn: ReadTxn) -> Format:
    return Format.unpack(stored(txn).get(FORMAT_KEY), "the file")


def _need_file(store: Store) -> LmdbStore:
    """Return a store that may have a warm copy.

    Raises:
        InvalidOptionError, ReadOnlyError
    """
    if not isinstance(store, LmdbStore) or store.path == ":memory:":
        raise InvalidOptionError("warm: only a file on disk can have a warm copy")
    if store.read_only:
        raise ReadOnlyError("warm: the file is open read-only; its writers ship")
    if store.vault is not None or store.read(lambda txn: is_audited(txn, store.path)):
        raise InvalidOptionError(
            f"warm: {store.path} is encrypted or audited; such files cannot have a warm copy"
        )
    return store
