"""Warm copy: a store on a server that follows a file, and is promoted when the file is lost."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, get_ident
from collections import deque
from concurrent.futures import CancelledError
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
    Mark,
    MarkMovedError,
    SnapshotLostError,
    WarmRow,
    warm_row,
)
from memcore.store.commit import release
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.interface import SERVER_SCHEMES, ReadTxn, Store, Txn
from memcore.store.store import LmdbStore
from memcore.store.transaction import is_audited, stored

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

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
    is_pending: bool = False
    """True if it is a warm copy still, as after a dry run."""


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

    path, mark, is_pending = promoted(address, dry_run=dry_run)
    return Promotion(path, mark.taken_us / 1e6, is_pending)


class UnshippedCommit(NamedTuple):
    """A commit from an event loop that is stored, and not shipped yet."""

    wanted: int
    """The round that ships it."""
    outcome: Future[Any]
    result: Any
    alarm: TimerHandle
    """Ends the wait even if no round ends."""


def _settle(outcome: Future[Any], error: BaseException | None, result: Any) -> None:
    """Settle a future on its loop's thread, unless it is settled."""
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


def _settle_in_time(commit: UnshippedCommit, error: MemcoreError | None) -> None:
    commit.alarm.cancel()
    _settle(commit.outcome, error, commit.result)


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
        from memcore.store.postgres.copies import WarmTarget  # noqa: PLC0415 - optional

        file = _need_file(store)
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
        self._pending: deque[UnshippedCommit] = deque()
        self._opened_us = clock_us()  # first: what was shipped before it is in the position
        self._opened_position = file.read(_position_of)
        self._elsewhere: tuple[int, int, int] | None = None
        """The round that waits for another process: its number, its time, its position."""
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
        except (MarkMovedError, SnapshotLostError):
            pass  # another process was faster; the thread looks again
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
        if self._process != os.getpid():
            raise self._unshipped("the child of a fork does not ship")
        if self._ended and self._state != "superseded":
            raise self._unshipped("the copy is closed")
        if self._thread is not None and self._thread.ident != get_ident():
            self.ship(SYNC_SECONDS)

    def confirm_later(self, stored: Future[Any], outcome: Future[Any]) -> None:
        """Give ``outcome`` the result of a commit once it is in the copy; on its loop's thread."""
        error = CancelledError() if stored.cancelled() else stored.exception()
        if error is None and self._process != os.getpid():
            error = self._unshipped("the child of a fork does not ship")
        if error is not None:
            _settle(outcome, error, None)
            return
        late = self._unshipped("no shipment ended in time")
        alarm = outcome.get_loop().call_later(SYNC_SECONDS, _settle, outcome, late, None)
        wanted = self._begun + 1
        self._pending.append(UnshippedCommit(wanted, outcome, stored.result(), alarm))
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
        return self._unshipped(self._error or "no shipment ended in time")

    def _unshipped(self, why: str) -> UnshippedError:
        return UnshippedError(
            f"{self._target.path}: the warm copy is not up to date ({why}); what was committed is "
            "in the file, and is shipped later"
        )

    def _settle_pending(self) -> None:
        """Settle the futures of commits that are in the copy, or are waited for in vain."""
        with suppress(IndexError):  # another thread was faster
            for _ in range(len(self._pending)):
                each = self._pending.popleft()
                error = None if self._done >= each.wanted else self._error_of(inf)
                if self._done < each.wanted and error is None:
                    self._pending.append(each)
                    continue
                with suppress(RuntimeError):  # its loop is closed: nobody awaits it
                    each.outcome.get_loop().call_soon_threadsafe(_settle_in_time, each, error)

    def status(self) -> WarmStatus:
        """Return the state of the copy."""
        mark, behind, store = self._target.mark, None, self._store()
        if mark is not None and mark.is_complete and store is not None:
            behind = max(store.read(_position_of) - mark.position, 0)
        current = self._current_us / 1e6 if self._current_us else None
        return WarmStatus(self._target.path, self._state, current, behind, self._error)

    def close(self) -> None:
        """Ship the rest, and end the thread; a failure to ship is logged."""
        store = self._store()
        if self._process != os.getpid() or self._thread is None or store is None or self._ended:
            return
        store.need_outside()
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
                done = self._try_round(self._begun)
                failed = 0 if done else failed + 1
                self._done = max(self._done, done)
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
        longer = INTERVAL_SECONDS * 2.0 ** min(failed, 10)
        if self._state != "waiting":
            return min(longer, PAUSE_SECONDS_MAX)
        if self._asked > self._done:
            return INTERVAL_SECONDS
        return WAITING_SECONDS if self._elsewhere is None else min(longer, WAITING_SECONDS)

    def _try_round(self, number: int) -> int:
        """Ship once; return the last round whose commits are in the copy, or 0."""
        store = self._store()
        if store is None:
            self._ended = True
            return 0
        began_us = clock_us()
        try:
            is_own = self._round(store)
            if not is_own:
                number, began_us = self._shipped_elsewhere(store, number, began_us)
        except ClosedError:
            self._ended = True
            return 0
        except SupersededError as error:
            self._error = str(error)  # not the error: its traceback would keep the handle
            self._state = "superseded"
            logger("memcore.warm").error("%s", error)
            with suppress(ClosedError):
                store.supersede(str(error))
            return 0
        except Exception as error:  # noqa: BLE001 - logged, and told by ``status`` and ``ship``
            self._fail(error)
            return 0
        if self._failing_since:
            logger("memcore.warm").info("%s: shipping again", self._target.path)
        self._state = "shipping" if is_own else "waiting"
        self._error, self._failing_since = None, 0.0
        if number:
            self._current_us = began_us
        return number

    def _fail(self, error: Exception) -> None:
        self._state, self._error = "failing", str(error) or type(error).__name__
        if not self._failing_since:
            self._failing_since = monotonic()
            logger("memcore.warm").warning("the warm copy is not up to date: %s", error)

    def _round(self, store: LmdbStore) -> bool:
        """Ship, and return True; False if another process ships."""
        if self._failing_since and monotonic() - self._failing_since > PIN_SECONDS_MAX:
            self._feed.drop()  # else the file could not use its freed pages again
        for _ in range(_ATTEMPTS):
            try:
                if not self._target.is_connected:
                    self._connect(store)
                self._ship(store)
            except StoreLockedError:
                return False
            except (MarkMovedError, SnapshotLostError):
                self._target.disconnect()
            else:
                self._elsewhere = None
                return True
        raise StorageError(f"{self._target.path}: the file or its copy changed in each attempt")

    def _shipped_elsewhere(self, store: LmdbStore, number: int, began_us: int) -> tuple[int, int]:
        """Return the last round whose commits another process has shipped, and when it began.

        Since commits go on, it is the first round that found them missing that is waited for.
        """
        mark = self._target.mark
        row, position = store.read(lambda txn: (_row_of(txn), _position_of(txn)))
        if self._elsewhere is None:
            self._elsewhere = number, began_us, position
        number, began_us, wanted = self._elsewhere
        # The mark of a twin, which ships to the same copy, says nothing of this file.
        if (
            mark is None
            or not mark.is_complete
            or not wanted <= mark.position <= position
            or (mark.source, mark.device, mark.inode) != (row.made, *store.place)
        ):
            return 0, 0
        self._elsewhere = None
        return number, began_us

    def _ship(self, store: LmdbStore) -> None:
        if self._feed.base is not None and self._shipped == store.read(_position_of):
            if self._asked > self._done or monotonic() - self._looked > IDLE_SECONDS:
                self._target.check()
                self._looked = monotonic()
            return
        taken_us, changes = clock_us(), self._feed.take()
        _need_unaudited(store)  # behind the snapshot: an audit never ends
        # The file must not fall behind its copy in a power cut: it would have another history.
        store.make_durable()
        offset = store.read(_row_of).offset  # if the file was replaced, the snapshot is lost
        mark = Mark(self._source, offset + changes.txnid, *store.place, taken_us, is_complete=True)
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
        row = store.read(_row_of)  # before the copy is looked at: see ``_take_over``
        try:
            target.connect(store.read(_record_of), store.secret.found())
            self._need_own(store, row)
        except StoreLockedError:
            self._feed.drop()
            raise
        except BaseException:
            target.disconnect()
            raise

    def _need_own(self, store: LmdbStore, row: WarmRow) -> None:
        target, mark = self._target, self._target.mark
        is_known = mark is not None and mark.source in row[:2]
        if target.is_store:
            if is_known:
                raise SupersededError(
                    f"{target.path} was promoted: the store is there now. Open it by its address, "
                    "and this file with read_only=True"
                )
            raise InvalidOptionError(
                f"{target.path} holds a store; name a schema for the warm copy that does not exist"
            )
        if mark is not None and mark.source == self._source == row.made:
            if mark.position != self._shipped:
                self._feed.drop()  # the last shipment failed, or its answer was lost
            return
        if mark is not None and not (is_known and self._is_ahead_of(store, mark)):
            raise SupersededError(
                f"{target.path}: follows another file, or another history of this one, as from "
                "before it was restored or copied. Promote it to keep it; drop its schema only to "
                "discard it"
            )
        self._feed.drop()
        self._take_over(store, row, NO_MARK if mark is None else mark.source)

    def _is_ahead_of(self, store: LmdbStore, mark: Mark) -> bool:
        """Return whether the file has all that the copy has, now and when it was opened here."""
        if mark.taken_us < self._opened_us and mark.position > self._opened_position:
            return False  # it went back, and has written since
        return mark.position <= store.read(_position_of)

    def _take_over(self, store: LmdbStore, row: WarmRow, before: bytes) -> None:
        """Leave a new mark in the file, durably, before the copy gets it.

        Raises:
            MarkMovedError: ``row`` is not the file's any more. It was read before the mark
                ``before``, so whoever took over in between, while this process lost its lock, is
                found; and so is a compaction.
        """
        source = os.urandom(MARK_BYTES)
        made = WarmRow(before, source, row.offset)

        def closure(txn: Txn) -> None:
            if _row_of(txn) != row:
                raise MarkMovedError
            txn.put(WARM_KEY, made.pack())

        store.transact(closure, makes_room=True)
        store.make_durable()
        self._source = source


def _need_unaudited(store: LmdbStore) -> None:
    """Refuse a file that is audited since it was opened.

    Raises:
        InvalidOptionError
    """
    if store.read(lambda txn: is_audited(txn, store.path)):
        raise InvalidOptionError(
            f"{store.path} is audited now, which a store on a server cannot be: the warm copy "
            "stays as it is"
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
