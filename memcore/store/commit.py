"""Group commit: asynchronous callers, the outcome of a failed commit, the space reserve.

The queue, its lead and the batch are in the extension (``_commit.pxi``), where no other thread runs
and no interrupt is delivered between two lines. This module has the parts that may block: the
writer thread, which leads on behalf of futures, and the handling of failed commits.

Interrupts (KeyboardInterrupt and the like) may be raised between any two bytecodes of the main
thread. Every step that must not be left half done is idempotent and is repeated until it completes;
waiters also poll their state now and then, so that a lost wake-up costs time and not a hang.
"""

from __future__ import annotations

import errno
import os
from _thread import LockType, allocate_lock, get_ident
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from threading import Thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from memcore._fast import (
    BatchRunner,
    RequestQueue,
    ReserveFields,
    WriteBatch,
    WriteRequest,
    row_sizes,
)
from memcore.errors import (
    InternalError,
    MemcoreError,
    NestedCallError,
    OutcomeUnknownError,
    StoreFullError,
)
from memcore.limits import (
    BATCH_CLOSURES_MAX,
    PAGE_BYTES,
    ROOM_BYTES,
    ROOM_STEP_BYTES,
)
from memcore.store import lmdb as binding
from memcore.store.datafile import FULL, is_cramped, newest_meta, room_beyond
from memcore.store.interface import MapMovedError
from memcore.store.lmdb import MapFull, RawError
from memcore.store.transaction import RawCursor, RawTxn, WriteTxn

if TYPE_CHECKING:
    import asyncio
    from weakref import ref

    from memcore.store.environment import Environment, PinHolder

__all__ = [
    "DONE",
    "CommitLatency",
    "CommitQueue",
    "Leader",
    "Rows",
    "SpaceReserve",
    "WriteBatch",
    "WriteRequest",
    "WriterNeeded",
    "copy_of",
    "deliver",
    "release",
    "rows_at_most",
    "rows_in",
    "stored_alone",
    "wake_futures",
]


DONE: Final = 4
"""Final state of a request, as in ``_commit.pxi``."""


class WriterNeeded(Exception):  # noqa: N818 - not an error: the batch runs elsewhere
    """A batch would block a thread that must not block: the writer thread runs it instead."""


# --- Delivery of outcomes to futures, through their loops -----------------------------------------


def release(lock: LockType | None) -> None:
    """Release a lock that may already be released."""
    if lock is not None:
        with suppress(RuntimeError):  # already released: an interrupt made this run again
            lock.release()


def wake_futures(calls: Iterable[WriteRequest]) -> None:
    """Schedule the settling of the calls' futures: one ``call_soon_threadsafe`` per loop."""
    loops: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for call in calls:
        future = call.future
        if future is not None:  # None: already settled, an interrupt made this run again
            loops.setdefault(future.get_loop(), []).append(call)
    for loop, settled in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nothing awaits these
            loop.call_soon_threadsafe(deliver, settled)


def deliver(calls: Sequence[WriteRequest]) -> None:
    """Settle the futures of completed calls, on their loop's thread."""
    try:
        _deliver(calls)
    except BaseException:  # an interrupt: the others are settled when the loop goes on
        left = next((call.future for call in calls if call.future is not None), None)
        if left is not None:
            left.get_loop().call_soon(deliver, calls)
        raise


def _deliver(calls: Sequence[WriteRequest]) -> None:
    for call in calls:
        future = call.future
        # Settled before an interrupt, or cancelled by its caller, which does not undo the commit.
        if future is None or future.done():
            continue
        error = call.error
        if error is None:
            future.set_result(call.result)
        elif isinstance(error, StopIteration):  # a future cannot carry it
            wrapped = InternalError("a transaction raised StopIteration")
            wrapped.__cause__ = error
            future.set_exception(wrapped)
        else:
            future.set_exception(error)
        # Last: until then ``deliver`` takes the call for one that is left to settle.
        call.error = call.future = None  # breaks the cycle call -> error -> traceback -> frame


# --- Commit latency: a loop's own thread commits only while commits are fast ----------------------
# A commit that flushes nothing takes less time than waking a thread twice. Whether one will block
# anyway (on another process's write lock, on a slow page cache) is unknowable beforehand, so it is
# predicted from previous commits. A single slow one may be due to a busy CPU; two in close
# succession, or a very slow one, mean that commits do block.

_QUICK_NS: Final = 1_000_000
_LONG_NS: Final = 20_000_000
_CLOSE: Final = 4
_PROOFS: Final = 4
_PENALTY: Final = 32


class CommitLatency:
    """Estimates whether commits are fast enough for a loop's thread; exact only under the lead."""

    __slots__ = ("_doubt", "_owed")

    def __init__(self) -> None:
        self._owed = _PROOFS
        self._doubt = 0

    @property
    def is_quick(self) -> bool:
        """True if recent commits were fast; slow ones clear it until ``_PENALTY`` fast ones."""
        return self._owed <= 0

    def judge(self, elapsed_ns: int, calls: int) -> None:
        """Record a batch's latency; a fast batch of several calls proves nothing."""
        each = max(calls, 1)
        if elapsed_ns > _QUICK_NS * each:
            if self._doubt > 0 or elapsed_ns > _LONG_NS * each:
                self._owed = _PENALTY
            self._doubt = _CLOSE
        else:
            self._doubt -= 1
            if calls == 1 and self._owed > 0:
                self._owed -= 1


# --- The queue, with the thread that leads for futures --------------------------------------------

T = TypeVar("T")

_IDLE_SECONDS: Final = 10.0
_IN_A_ROW: Final = 8
"""One in this many commits on a loop's own thread yields to other tasks."""


class CommitQueue(RequestQueue):
    """Commit queue of one environment.

    ``run`` executes a batch, ``reading`` contains the ids of reading threads, and ``is_prompt``
    returns whether a commit now would complete without waiting for a device.
    """

    __slots__ = (
        "_here", "_is_prompt", "_mu", "_pace", "_reading", "_retired", "_writer", "_writer_wake",
    )  # fmt: skip

    new_lock = staticmethod(allocate_lock)
    writer_needed = WriterNeeded

    def __init__(
        self,
        run: Callable[[WriteBatch], None],
        reading: Container[int],
        is_prompt: Callable[[], bool],
    ) -> None:
        super().__init__(run, reading, BATCH_CLOSURES_MAX)
        self._reading = reading
        self._is_prompt = is_prompt
        self.reset()

    def reset(self) -> None:
        """Discard all waiters and the writer: the child of a fork has no other threads."""
        super().reset()
        self._mu = allocate_lock()  # keeps the writer from ending while one is being requested
        self._writer: Thread | None = None
        # A lock in place of an Event, whose ``set`` an interrupt may leave locked (see SteadySync).
        self._writer_wake = allocate_lock()
        self._writer_wake.acquire()
        self._pace = CommitLatency()
        self._here = 0
        self._retired = False

    def retire(self) -> None:
        """Let the writer thread end once nothing waits for it: the environment is closed."""
        # Before it is woken: the writer looks at this to see whether to go on.
        self._retired = True
        with self._mu:
            if self._writer is not None:
                release(self._writer_wake)

    # --- callbacks of the queue ----------------------------------------------------------------

    def _refuse(self, where: str) -> NoReturn:
        msg = f"a write {where} on the same thread would wait for its end: write before or after it"
        raise NestedCallError(msg)

    def _hand_over(self, batch: WriteBatch) -> None:
        """Hand a hurried batch that would block to the writer thread, ahead of all other calls."""
        with self._mu:
            self._need_writer()
            # Only with a writer at hand: if none can be started, the call fails with its batch.
            batch.back, batch.calls, batch.own = batch.calls, [], None

    def _wake_writer(self) -> None:
        release(self._writer_wake)

    def _wake_futures(self, calls: list[WriteRequest]) -> None:
        wake_futures(calls)

    # --- asynchronous callers ----------------------------------------------------------------

    def submit(
        self,
        fn: Callable[[Any], T],
        loop: asyncio.AbstractEventLoop,
        *,
        makes_room: bool = False,
        large: bool = False,
        future: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Queue ``fn`` for the writer thread; must be called on ``loop``'s own thread.

        A commit that waits for no device runs immediately on this thread, unless it is ``large``
        (expected to take long): two thread wake-ups cost more than such a commit.
        """
        call = WriteRequest(fn, makes_room=makes_room)
        call.future = future = loop.create_future() if future is None else future
        may_lead = not (large or self._busy) and self._pace.is_quick
        if may_lead and get_ident() not in self._reading and self._is_prompt():  # noqa: SIM102
            if self._commit_here(call, loop):
                return future
        try:
            with self._mu:
                self._need_writer()
                if self.enqueue(call):
                    release(self._writer_wake)
        except BaseException:
            if self._writer_leads:  # an interrupt must not cost the other calls their wake-up
                release(self._writer_wake)
            raise
        return future

    def _need_writer(self) -> None:
        """Start the writer thread if there is none.

        Runs under the mutex, as does the thread's end, so no queued call is ever without a writer.
        """
        if self._writer is None:
            # A daemon: an interpreter that ends with an open store must not wait for it.
            writer = Thread(target=self._write, name="memcore-writer", daemon=True)
            writer.start()
            # Noted only once it runs: where none can be started, the next call tries again.
            self._writer = writer

    def _commit_here(self, call: WriteRequest, loop: asyncio.AbstractEventLoop) -> bool:
        """Lead a batch of this call alone; True if it is done or was handed to the writer."""
        start = perf_counter_ns()
        if not self.lead(WriteBatch(call, hurried=True)):
            return False
        if call.state == DONE:
            self._pace.judge(perf_counter_ns() - start, 1)
            self._here += 1
            if self._here % _IN_A_ROW:
                deliver([call])
            else:  # an await that never suspends would starve the loop's other tasks
                loop.call_soon(deliver, [call])
        return True

    def _write(self) -> None:
        while True:
            patience = 0.0 if self._retired and not self._busy else _IDLE_SECONDS
            woken = self._writer_wake.acquire(timeout=patience) and not self._retired
            with self._mu:
                lead = self.take_writer_lead()
                if not lead and not (woken or self._busy):  # a running batch may put its calls back
                    self._writer = None  # idle: must not keep the environment alive
                    return
            if lead:
                self._lead_for_futures()

    def _lead_for_futures(self) -> None:
        batch = WriteBatch(None)
        try:
            self.take_more(batch)
            if batch.calls:
                start = perf_counter_ns()
                self._run(batch)
                self._pace.judge(perf_counter_ns() - start, len(batch.calls))
        except BaseException as error:  # noqa: BLE001 - this thread has no caller
            for call in batch.calls:
                if not call.done and not batch.decided:
                    call.error = error
            batch.decided = True
        finally:
            self.settle(batch)


# --- Leader of a batch: the rare paths, and the outcome of a commit that raised -------------------

_GROW: Final = 2
"""The map is full; a larger value: it will soon be full."""


class _CommitOutcome(Enum):
    """Outcome of a commit that raised."""

    UNKNOWN = 1  # LMDB released the lock: look again under it
    HELD = 2  # not committed, and the lock is still held
    LOST = 3
    COMMITTED = 4


class Leader(BatchRunner):
    """Runs batches for one environment, always on the thread that has the lead."""

    __slots__ = ()
    map_full = MapFull
    writer_needed = WriterNeeded
    transaction = WriteTxn
    env: Environment
    txn: WriteTxn | None

    def forget(self) -> None:
        """Drop the open transaction in the child of a fork: it belongs to the parent."""
        if self.txn is not None:
            self.txn.drop()
            self.txn = None
        self.unsynced = False

    def _grow(self, follows: int, *, hurried: bool) -> None:
        if hurried:
            raise WriterNeeded  # growing waits for all readers
        if follows == _GROW:
            self.env.grow()
        else:
            self.env.grow_ahead()

    def _can_free(self, error: BaseException, *, hurried: bool) -> bool:
        """Return True if a batch that found no space may be retried, as pages were set free.

        These are kept for the last steady point, until there is a new one, and for a warm copy.

        Raises:
            WriterNeeded: ``hurried``, and a steady point has to wait for the device.
        """
        env = self.env
        steady_sync = env.steady_sync
        if not _is_full(error, env.path) or (steady_sync is None and not env.pinned):
            return False
        if hurried:
            raise WriterNeeded from error
        is_freed = env.free_pins()
        if steady_sync is None:
            return is_freed
        with suppress(MapMovedError):  # the next attempt follows the map
            steady_sync.sync()
        return True

    def _fail(self, batch: WriteBatch, error: Exception) -> None:
        """Fail every undecided call of a batch with the batch's error."""
        failure = binding.translate(error, self.env.path)
        for call in batch.calls:
            if not call.done:
                call.error = copy_of(failure, error)
        batch.decided = True

    def _stored_alone(self, error: Exception) -> InternalError:
        return stored_alone(error)

    def _typed(self, error: BaseException) -> BaseException:
        """Translate an exception raised by a closure into the error its caller gets."""
        typed = binding.translate(error, self.env.path)
        if typed is not error:
            typed.__cause__ = error
        return typed

    def _is_refused(self, call: WriteRequest, refusal: MemcoreError) -> bool:
        """Fail a request if only requests that free space are admitted; True if it was failed."""
        if call.makes_room:
            return False
        call.error, call.done = copy_of(refusal, refusal), True
        return True

    # --- the commit --------------------------------------------------------------------------

    def _refuse_forked(self) -> NoReturn:
        raise InternalError("the process was forked inside a transaction")

    def _need_stored(self, txn: WriteTxn, raw: RawTxn, txnid: int, error: BaseException) -> None:
        """Raise unless a commit that raised is stored anyway."""
        short = self._is_short_write(error, txn)
        if not self._was_committed(raw, txnid, error, poisons=not short):
            self._give_up(error, short=short)

    def _has_room(self, txn: WriteTxn, batch: WriteBatch, *, measured: bool) -> bool:
        """Return True if the batch leaves the space reserved for deletions untouched.

        Otherwise the requests that do not free space fail, or are put back to run one at a time.
        ``measured``: the reserve has already refused the batch.
        """
        reserve, calls = self.env.reserve, batch.calls
        if reserve is None or txn.raw is None:
            return True
        ordinary = calls
        if len(calls) > 1 or calls[0].makes_room:
            ordinary = [c for c in calls if not (c.makes_room or c.done or c.error)]
        if not ordinary or (not measured and reserve.reserve(txn.raw, txn.number, txn.puts)):
            return True
        if len(ordinary) > 1:  # one oversized request must not fail the others: run each alone
            batch.take_back(batch.calls.index(ordinary[0]) + 1)
            return False
        for call in ordinary:
            call.error = reserve.refusal()
            call.done = True
        return False

    def _is_short_write(self, error: BaseException, txn: WriteTxn) -> bool:
        """Return True if an EIO from LMDB was a short write on a full device."""
        return binding.is_device_error(error) and is_cramped(self.env.fd, 2 * txn.size)

    def _give_up(self, error: BaseException, *, short: bool) -> NoReturn:
        if short:
            raise StoreFullError(
                f"{self.env.path}: no space is left: free some; nothing was stored or lost"
            ) from error
        raise error

    def sync(self) -> None:
        """Flush everything; a failure poisons, as the next flush would falsely report success.

        Raises:
            OutcomeUnknownError: the flush failed, or an earlier flush or commit did.
        """
        self.need_sound()
        try:
            self.env.mapped().sync(True)
        except RawError as error:
            self.poison_for(error)
            raise OutcomeUnknownError(self.poison) from error

    def _was_committed(
        self, raw: RawTxn, txnid: int, error: BaseException, *, poisons: bool
    ) -> bool:
        """Determine whether a commit that raised is stored; if it is not, it cannot reappear later.

        ``poisons``: a device error is treated as one (LMDB also reports short writes as EIO).

        Raises:
            OutcomeUnknownError: it cannot be determined.
        """
        fate = [_CommitOutcome.UNKNOWN]
        interrupt: BaseException | None = None
        while True:
            try:
                self._find_fate(fate, raw, txnid, error)
                break
            except Exception as unknown:
                self.poison_for(error)
                raise OutcomeUnknownError(self.poison) from unknown
            # An interrupt only delays this: a commit of unknown fate must not run again, nor be
            # called lost. Once it is found stored, that is what the caller learns.
            except BaseException as again:  # noqa: BLE001 - raised below, or superseded
                interrupt = again
        if poisons and binding.is_device_error(error):
            self.poison_for(error)
            if fate[0] is _CommitOutcome.COMMITTED:  # in the page cache, maybe not on the device
                raise OutcomeUnknownError(self.poison) from error
        if interrupt is not None and fate[0] is _CommitOutcome.LOST:
            raise interrupt
        return fate[0] is _CommitOutcome.COMMITTED

    def _find_fate(
        self, fate: list[_CommitOutcome], raw: RawTxn, txnid: int, error: BaseException
    ) -> None:
        """Determine ``fate``; may be interrupted anywhere and run again.

        LMDB's transaction is alive until commit is called. If commit returned and the error came
        from elsewhere (an interrupt), it is stored. If commit itself failed, the lock has been
        released, and another process may have replayed our record before we reacquire it.
        """
        redo = self.env.redo
        if fate[0] is _CommitOutcome.UNKNOWN:
            if _is_alive(raw):
                fate[0] = _CommitOutcome.HELD
            elif not isinstance(error, RawError):
                fate[0] = _CommitOutcome.COMMITTED
            else:
                lock = self.env.begin_write()
                try:
                    now = lock.id()
                    # Withdrawn before the caller hears that it is lost: openers replay it.
                    if now == txnid and redo is not None:
                        redo.withdraw(txnid)
                    if now == txnid or redo is None:
                        # Without a record nothing can replay it, and had its meta page been
                        # touched, LMDB would refuse all further transactions (MDB_PANIC).
                        fate[0] = _CommitOutcome.LOST
                    elif now > txnid + 2:
                        # Transaction N + 2 has overwritten the record in the slot.
                        raise OutcomeUnknownError("other transactions hide the outcome")
                    else:  # the slot still identifies the owner of transaction ``txnid``
                        ours = redo.holds_ours(txnid)
                        fate[0] = _CommitOutcome.COMMITTED if ours else _CommitOutcome.LOST
                finally:
                    lock.abort()
        if fate[0] is _CommitOutcome.HELD:
            if _is_alive(raw):
                # Before the abort, which gives up the lock that others need to replay it.
                if redo is not None:
                    redo.withdraw(txnid)
                raw.abort()
            fate[0] = _CommitOutcome.LOST

    def need_sound(self) -> None:
        """Refuse to continue after a failed flush or commit: later ones cannot be trusted.

        Raises:
            OutcomeUnknownError
        """
        if self.poison:
            raise OutcomeUnknownError(self.poison)

    def poison_for(self, error: BaseException) -> None:
        """Poison the store against all further writes: the device's contents are unknown."""
        self.poison = (
            f"{self.env.path}: a commit or flush failed ({error}) so that the store cannot be"
            " trusted to write; close it, check the device, open it again and look what is stored"
        )


def _is_full(error: BaseException, path: str) -> bool:
    return isinstance(binding.translate(error, path), StoreFullError)


def _is_alive(raw: RawTxn) -> bool:
    try:
        raw.id()
    except RawError:
        return False
    return True


def stored_alone(error: Exception) -> InternalError:
    """Return the error for a caller whose callback failed after the commit."""
    failure = InternalError(
        f"the transaction is stored, but what was to follow it failed: {error!r}"
    )
    failure.__cause__ = error
    return failure


def copy_of(failure: BaseException, cause: BaseException) -> BaseException:
    """Copy an error for each caller, as a traceback belongs to one thread."""
    if not isinstance(failure, MemcoreError):
        return failure
    # Not by its constructor, which may take more than the message.
    copy = type(failure).__new__(type(failure), *failure.args)
    copy.__dict__.update(failure.__dict__)
    copy.__cause__ = failure.__cause__ if failure is cause else cause
    return copy


# --- Space reserve for deletions: LMDB needs fresh pages even to free others ----------------------
# A full device must not leave the user unable to delete anything. So the file is grown ahead of
# need, and the last of its free space is reserved for closures that free space: a megabyte, or less
# in a small file. Free space is between the last page and the end of the file, and in LMDB's free
# list, except for pages freed since a steady point: LMDB does not reuse those while a reader pins
# it, and would grow the file itself. They count on a full device, where there is nothing else.
#
# **The size of the reserve.** A deletion copies at most every page of the tree, and what it frees
# can be reused by the transaction after the next: two copies of the tree are enough. The tree is
# measured now and then, and grows by at most ``ROOM_STEP_BYTES_MIN`` in between while the reserve
# is small: ``ROOM_BYTES_MIN`` covers that growth too, and what a commit writes besides its rows.
#
# **The cost of a batch** is estimated in pages (``_fast.pages_for``): LMDB copies each leaf that
# receives a row, along with the branches above it, and splits write new leaves, each half full at
# worst. Rows with no other rows between them share leaves. Values too large for a leaf get overflow
# pages.

# The arithmetic is in ``_commit.pxi``, where the next two are called ``ROOM_NODE`` and
# ``ROOM_NODE_MAX``.

_NODE_BYTES: Final = 12
"""Node header, its slot in the page's index, and one byte of padding to an even size."""
_NODE_BYTES_MAX: Final = 2030
"""Largest node stored in a leaf; a larger row has its value on overflow pages."""

_CROWDING_BYTES: Final = PAGE_BYTES // 8
"""Size above which an existing row crowds the leaf that it shares with new ones."""
_BLANK: Final = bytes(PAGE_BYTES)
_BLOCK_BYTES: Final = 512
"""Unit of ``st_blocks``."""
_HOLES_BYTES_MAX: Final = 16 * 1024**2
_HOLES_MAX: Final = 4096
"""Most holes that are filled, each in some microseconds under the write lock."""


class PinnedRoom(NamedTuple):
    """Free pages of a snapshot that a reader pins, and what batches were admitted for since."""

    free: int
    """Bytes that were free in the snapshot."""
    admitted: int
    strangers: int
    """``ReserveFields.admitted`` and ``strangers`` when it was pinned."""


UNKNOWN_ROOM: Final = PinnedRoom(0, 0, -1)
"""Of a reader about which nothing is known."""


class SpaceReserve(ReserveFields):
    """Disk space reserved for deletions. Accessed under the write lock.

    Args:
        fd: the file.
        path: its name in messages.
        pins: those that keep readers for longer than a read, by number.
    """

    __slots__ = ("_path",)

    def __init__(self, fd: int, path: str, pins: dict[int, ref[PinHolder]] | None = None) -> None:
        self.fd = fd
        self._path = path
        self.pins = {} if pins is None else pins

    def _rows_in(self, raw: RawTxn, puts: dict[bytes, int]) -> Rows:
        return rows_in(raw, puts)

    def _newest_figures(self) -> tuple[int, int, int, int]:
        """Return the figures of the newest meta page that parses; raises with the reason if none.

        The figures are the main tree's depth and pages, the free list's pages, and the last page;
        sums of damaged counts may exceed 64 bits.
        """
        meta = newest_meta(self.fd, self._path)
        pages, free_pages = (min(n, 2**63) for n in (meta.main_pages, meta.free_pages))
        return meta.main_depth, pages, free_pages, meta.last_page

    def refusal(self) -> StoreFullError:
        """Return the error for requests of a batch that does not fit."""
        return StoreFullError(
            f"{self._path}: no space is left on the device: free some, or delete sessions, for"
            " which room is kept; nothing was stored or lost"
        )

    def _extend(self, size: int, more: int) -> int:
        """Grow the file by ``more`` bytes, rounded up to a page; returns the bytes added.

        These are fewer on a full device. Zeros are written, as never-written pages make a small
        commit slow, and one page at a time: a large write creates large page-cache folios, and each
        later flush of a page would write a whole folio. Space that a large batch fills right away
        is only preallocated. Existing data is never overwritten.
        """
        step = ROOM_BYTES + ROOM_STEP_BYTES
        if more > step and more > room_beyond(self.fd):
            more = step  # the batch does not fit; what is left of the device is not taken for it
        end = (size + more + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        at = size
        try:
            if more > step:
                with suppress(OSError):  # fall back to writing as much as fits
                    os.posix_fallocate(self.fd, size, end - size)
                    return end - size
            while at < end:
                at += os.pwrite(self.fd, _BLANK[: end - at], at)
        except OSError as error:
            if error.errno not in FULL:
                raise
        return at - size

    def _is_pinned(self) -> bool:
        holders = (holder() for holder in list(self.pins.values()))
        return any(holder is not None and holder.is_pinning for holder in holders)

    def _fill(self, start: int, end: int) -> int:
        """Allocate the holes between two offsets; return the bytes for which there is no space.

        LMDB leaves one where it grew the file itself and freed a page before it was ever written,
        and so do copies by some tools. On a full device, the reuse of one would fail. Not of a file
        that somebody made sparse on purpose, with more than ``_HOLES_BYTES_MAX`` missing.
        """
        missing = end - os.fstat(self.fd).st_blocks * _BLOCK_BYTES
        if not 0 < missing <= _HOLES_BYTES_MAX or not hasattr(os, "posix_fallocate"):
            return 0
        if missing > room_beyond(self.fd):
            return missing
        try:
            for _ in range(_HOLES_MAX):
                at = os.lseek(self.fd, start, os.SEEK_HOLE)
                if at >= end:
                    break
                start = _data_from(self.fd, at, end)
                os.posix_fallocate(self.fd, at, start - at)
        except OSError as error:
            if error.errno in FULL:
                return max(0, end - os.fstat(self.fd).st_blocks * _BLOCK_BYTES)
        return 0  # also where a file system cannot, or compresses


def _data_from(fd: int, at: int, end: int) -> int:
    """Return where the hole at an offset ends, ``end`` at most."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


class Rows(NamedTuple):
    """Sizes of a batch's rows, as far as they determine the pages needed."""

    runs: int
    """Runs of rows with no other rows between them."""
    inline: int
    """Bytes in leaves."""
    crowded: int
    """Bytes of ``inline`` in runs closely followed by a row larger than an eighth of a page."""
    large: int
    """Overflow pages, for values too large for a leaf."""


def rows_at_most(puts: dict[bytes, int]) -> Rows:
    """Bound the sizes of a batch's rows without reading the tree: each row counts as a run."""
    return Rows(*row_sizes(puts))


def rows_in(raw: RawTxn, puts: dict[bytes, int]) -> Rows:
    """Measure the rows of a batch by their positions in the transaction's tree."""
    runs = crowded = run = 0
    following = b""
    cursor = raw.cursor()
    try:
        for key in sorted(puts):
            if key != following:
                if not cursor.set_range(key) or cursor.key() != key:
                    continue  # deleted since
                runs += 1
                run = 0
            run += _NODE_BYTES + len(key) + min(puts[key], _NODE_BYTES_MAX)
            following = cursor.key() if cursor.next() else b""
            # A run that does not fill a page splits at most one.
            if run > PAGE_BYTES // 4 and following and following not in puts:
                crowded += run * _stands_before_large(cursor)
    finally:
        cursor.close()
    whole = rows_at_most(puts)
    return whole._replace(runs=runs, crowded=min(crowded, whole.inline))


def _stands_before_large(cursor: RawCursor) -> bool:
    """Return True if a row within a page's bytes from here is large enough to crowd the leaf."""
    seen = 0
    while seen < PAGE_BYTES:
        size = len(cursor.value())
        if _CROWDING_BYTES < size <= _NODE_BYTES_MAX:
            return True
        seen += _NODE_BYTES + len(cursor.key()) + min(size, _NODE_BYTES_MAX)
        if not cursor.next():
            break
    return False
