"""Group commit: the asynchronous callers, the outcome of a commit, the space reserve.

The queue, its lead and the batch are in the extension (``_commit.pxi``): between two lines there no
other thread runs, and no interrupt is seen. Here is what may wait: the writer thread, which leads
for futures, and what follows a commit that failed.

Interrupts (KeyboardInterrupt and its like) may come between any two bytecodes of the main thread.
Every step that must not stay half done is idempotent and is repeated until it ran to its end; a
waiter also looks at its state now and then, so a swallowed wake-up costs time, not a hang.
"""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, get_ident
from collections.abc import Callable, Container, Iterable
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
    file_size,
    meta_figures,
    pages_for,
    row_sizes,
)
from memcore.errors import InternalError, MemcoreError, OutcomeUnknownError, StoreFullError
from memcore.limits import BATCH_CLOSURES_MAX, PAGE_BYTES, ROOM_BYTES, ROOM_STEP_BYTES
from memcore.store import lmdb as binding
from memcore.store.datafile import DEPTH_MAX, FULL, is_cramped, newest_meta
from memcore.store.interface import MapMovedError
from memcore.store.lmdb import MapFull, RawError
from memcore.store.transaction import RawCursor, RawTxn, WriteTxn

if TYPE_CHECKING:
    import asyncio

    from memcore.store.environment import Environment

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
    "deliver",
    "pages_for",
    "release",
    "rows_at_most",
    "rows_in",
    "wake_futures",
]


DONE: Final = 4
"""The last state of a request, as in ``_commit.pxi``."""


class WriterNeeded(Exception):  # noqa: N818 - no failure: the batch runs elsewhere
    """A batch would have to wait on a thread that must not: the writer thread runs it."""


# --- Delivery of outcomes to futures, through their loops -----------------------------------------


def release(lock: LockType | None) -> None:
    """Release a lock that may be released already."""
    if lock is not None:
        with suppress(RuntimeError):  # released already: an interrupt made this run again
            lock.release()


def wake_futures(calls: Iterable[WriteRequest]) -> None:
    """Have the futures of calls settled: one ``call_soon_threadsafe`` a loop."""
    loops: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for call in calls:
        future = call.future
        if future is not None:  # else it is settled: an interrupt made this run again
            loops.setdefault(future.get_loop(), []).append(call)
    for loop, settled in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody awaits these
            loop.call_soon_threadsafe(deliver, settled)


def deliver(calls: Iterable[WriteRequest]) -> None:
    """Settle the futures of calls that are done; on their loop's own thread."""
    for call in calls:
        future = call.future
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
        call.error = call.future = None  # the traceback holds frames, and these the call


# --- Commit latency: a loop's own thread commits only while commits are fast ----------------------
# A commit that flushes nothing takes less time than waking a thread twice. Whether one will wait
# all the same (for the write lock of another process, for a slow page cache) cannot be asked
# beforehand; so it is judged by those that were made. A single slow one may have met a busy
# processor; two close to each other, or a very slow one, mean that there is something to wait for.

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
        """True if recent commits were fast; slow ones reset it for long."""
        return self._owed <= 0

    def judge(self, elapsed_ns: int, calls: int) -> None:
        """Take note of a batch; one of several calls proves nothing."""
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
"""Of so many commits on a loop's own thread, one lets other tasks run."""


class CommitQueue(RequestQueue):
    """The queue of one environment.

    ``run`` executes a batch, ``reading`` holds reading threads, ``is_prompt`` tells whether a
    commit would wait for no device now.
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
        """Forget everybody: in the child of a fork no other thread is left."""
        super().reset()
        self._mu = allocate_lock()  # no writer ends while one is asked for
        self._writer: Thread | None = None
        self._writer_wake = allocate_lock()
        self._writer_wake.acquire()
        self._pace = CommitLatency()
        self._here = 0
        self._retired = False

    def retire(self) -> None:
        """Let the writer thread end as soon as nothing waits for it: the environment is closed."""
        self._retired = True
        with self._mu:
            if self._writer is not None:
                release(self._writer_wake)

    # --- what the queue asks for ---------------------------------------------------------------

    def _refuse(self, where: str) -> NoReturn:
        raise InternalError(f"a write was asked for {where} on the same thread")

    def _hand_over(self, batch: WriteBatch) -> None:
        """A hurried batch has to wait: its call is the first that the writer thread takes."""
        with self._mu:
            self._need_writer()
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
        """Queue ``fn`` for the writer thread; to be called on ``loop``'s own thread.

        What waits for no device is done at once and here, unless ``large`` says that it takes its
        time: two wake-ups of a thread cost more than such a commit.
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
            if self._writer_leads:  # an interrupt: it must not cost the others the writer
                release(self._writer_wake)
            raise
        return future

    def _need_writer(self) -> None:
        """Under the mutex, as the thread's end is: no queued call is ever without a writer."""
        if self._writer is None:
            writer = Thread(target=self._write, name="memcore-writer", daemon=True)
            writer.start()
            self._writer = writer

    def _commit_here(self, call: WriteRequest, loop: asyncio.AbstractEventLoop) -> bool:
        """Lead a batch of this call alone; whether it is done, or on its way to the writer."""
        start = perf_counter_ns()
        if not self.lead(WriteBatch(call, hurried=True)):
            return False
        if call.state == DONE:
            self._pace.judge(perf_counter_ns() - start, 1)
            self._here += 1
            if self._here % _IN_A_ROW:
                deliver([call])
            else:  # an await that never waits would keep the loop from everybody else
                loop.call_soon(deliver, [call])
        return True

    def _write(self) -> None:
        while True:
            patience = 0.0 if self._retired and not self._busy else _IDLE_SECONDS
            woken = self._writer_wake.acquire(timeout=patience) and not self._retired
            with self._mu:
                lead = self.take_writer_lead()
                if not lead and not (
                    woken or self._busy
                ):  # a batch under way may send its calls back
                    self._writer = None  # idle: nothing keeps the environment alive
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
        except BaseException as error:  # noqa: BLE001 - nobody is above this thread
            for call in batch.calls:
                if not call.done and not batch.decided:
                    call.error = error
            batch.decided = True
        finally:
            self.settle(batch)


# --- Leader of a batch: what is rare, and the outcome of a commit that raised ---------------------

_GROW: Final = 2
"""The map has no room; more than that: it will soon have none."""


class _CommitOutcome(Enum):
    """Outcome of a commit that raised."""

    UNKNOWN = 1  # LMDB let the lock go: look again under it
    HELD = 2  # not committed, the lock is still ours
    LOST = 3
    COMMITTED = 4


class Leader(BatchRunner):
    """Runs batches for one environment; always on the thread that has the lead."""

    __slots__ = ()
    map_full = MapFull
    writer_needed = WriterNeeded
    transaction = WriteTxn
    env: Environment
    txn: WriteTxn | None

    def forget(self) -> None:
        """In the child of a fork: the transaction under way is the parent's."""
        if self.txn is not None:
            self.txn.drop()
            self.txn = None
        self.unsynced = False

    def _grow(self, follows: int, *, hurried: bool) -> None:
        if hurried:
            raise WriterNeeded  # growing waits for all who read
        if follows == _GROW:
            self.env.grow()
        else:
            self.env.grow_ahead()

    def _can_free(self, error: BaseException, *, hurried: bool) -> bool:
        """Return True if a batch that found no space may be retried behind a new steady point.

        The steady point releases the pages that were freed since the last one.

        Raises:
            WriterNeeded: ``hurried``; a steady point has to wait for the device.
        """
        steady_sync = self.env.steady_sync
        if steady_sync is None or not _is_full(error, self.env.path):
            return False
        if hurried:
            raise WriterNeeded from error
        with suppress(MapMovedError):  # the next attempt follows the map
            steady_sync.sync()
        return True

    def _fail(self, batch: WriteBatch, error: Exception) -> None:
        """Give every undecided call of a batch the error that it failed with."""
        failure = binding.translate(error, self.env.path)
        for call in batch.calls:
            if not call.done:
                call.error = _copy_of(failure, error)
        batch.decided = True

    def _stored_alone(self, error: Exception) -> InternalError:
        """The error of a caller whose callback failed behind the commit."""
        failure = InternalError(
            f"the transaction is stored, but what was to follow it failed: {error!r}"
        )
        failure.__cause__ = error
        return failure

    def _typed(self, error: BaseException) -> BaseException:
        """The error that the caller of a closure gets for what it raised."""
        typed = binding.translate(error, self.env.path)
        if typed is not error:
            typed.__cause__ = error
        return typed

    def _is_refused(self, call: WriteRequest, refusal: MemcoreError) -> bool:
        """Return True, and fail the request, if only requests that free space are admitted now."""
        if call.makes_room:
            return False
        call.error, call.done = _copy_of(refusal, refusal), True
        return True

    # --- the commit --------------------------------------------------------------------------

    def _refuse_forked(self) -> NoReturn:
        raise InternalError("the process was forked inside a transaction")

    def _need_stored(self, txn: WriteTxn, raw: RawTxn, txnid: int, error: BaseException) -> None:
        """Raise, unless a commit that raised is stored all the same."""
        short = self._is_short_write(error, txn)
        if not self._was_committed(raw, txnid, error, poisons=not short):
            self._give_up(error, short=short)

    def _has_room(self, txn: WriteTxn, batch: WriteBatch, *, measured: bool) -> bool:
        """Return True if the batch leaves the space reserved for deletions untouched.

        Otherwise the requests that do not free space fail, or are put back to run one at a time.
        ``measured``: the reserve was asked, and refused.
        """
        reserve, calls = self.env.reserve, batch.calls
        if reserve is None or txn.raw is None:
            return True
        ordinary = calls
        if len(calls) > 1 or calls[0].makes_room:
            ordinary = [c for c in calls if not (c.makes_room or c.done or c.error)]
        if not ordinary or (not measured and reserve.reserve(txn.raw, txn.puts)):
            return True
        if len(ordinary) > 1:  # one that is too large must not refuse the others: each alone
            batch.take_back(batch.calls.index(ordinary[0]) + 1)
            return False
        for call in ordinary:
            call.error = reserve.refusal()
            call.done = True
        return False

    def _is_short_write(self, error: BaseException, txn: WriteTxn) -> bool:
        """Return True if an EIO of LMDB was a write cut short because the device is full."""
        return binding.is_device_error(error) and is_cramped(self.env.fd, 2 * txn.size)

    def _give_up(self, error: BaseException, *, short: bool) -> NoReturn:
        if short:
            raise StoreFullError(
                f"{self.env.path}: no space is left: free some; nothing was stored or lost"
            ) from error
        raise error

    def sync(self) -> None:
        """Flush everything; a failure poisons, for the next flush would claim success."""
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

        ``poisons``: a device error is to be taken for one (LMDB reports a short write as one, too).

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
            except BaseException as again:  # noqa: BLE001 - raised below, or superseded
                interrupt = again
        if poisons and binding.is_device_error(error):
            self.poison_for(error)
            if fate[0] is _CommitOutcome.COMMITTED:  # by the page cache, maybe not by the device
                raise OutcomeUnknownError(self.poison) from error
        if interrupt is not None and fate[0] is _CommitOutcome.LOST:
            raise interrupt
        return fate[0] is _CommitOutcome.COMMITTED

    def _find_fate(
        self, fate: list[_CommitOutcome], raw: RawTxn, txnid: int, error: BaseException
    ) -> None:
        """Settle ``fate``; may be interrupted anywhere and be run again.

        LMDB's transaction is alive as long as commit was not called; if commit returned and the
        error came from elsewhere (an interrupt), it is stored. If commit itself failed, the lock
        is gone, and another process may have replayed our record before we take it again.
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
                    if now == txnid and redo is not None:
                        redo.withdraw(txnid)
                    if now == txnid or redo is None:
                        # Without a record nobody can replay it, and had its meta page been touched,
                        # LMDB would refuse every further transaction (MDB_PANIC).
                        fate[0] = _CommitOutcome.LOST
                    elif now > txnid + 2:
                        raise OutcomeUnknownError("other transactions hide the outcome")
                    else:  # the slot still tells whose transaction ``txnid`` is
                        ours = redo.holds_ours(txnid)
                        fate[0] = _CommitOutcome.COMMITTED if ours else _CommitOutcome.LOST
                finally:
                    lock.abort()
        if fate[0] is _CommitOutcome.HELD:
            if _is_alive(raw):
                if redo is not None:
                    redo.withdraw(txnid)
                raw.abort()
            fate[0] = _CommitOutcome.LOST

    def need_sound(self) -> None:
        """Refuse to go on after a failed flush or commit: later ones cannot be trusted.

        Raises:
            OutcomeUnknownError
        """
        if self.poison:
            raise OutcomeUnknownError(self.poison)

    def poison_for(self, error: BaseException) -> None:
        """Refuse all further writes: the contents of the device are unknown."""
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


def _copy_of(failure: BaseException, cause: BaseException) -> BaseException:
    """Copy an error for another caller: a traceback belongs to one thread."""
    if not isinstance(failure, MemcoreError):
        return failure
    copy = type(failure)(*failure.args)
    copy.__cause__ = failure.__cause__ if failure is cause else cause
    return copy


# --- Space reserve for deletions: LMDB needs fresh pages even to free others ----------------------
# A full device must not be a trap that only more space opens. So the file is grown ahead of need,
# and the last megabyte of what is free in it serves only closures that make room. Free are the
# pages of LMDB's free list (all of them are used again as soon as no reader needs them) and those
# between the last page and the end of the file.
#
# **What a batch takes** is estimated per page (``pages_for``): LMDB copies each leaf that a row
# comes into, with the branches above it, and writes what splits of new leaves, each half full at
# worst. Rows with nobody else's between them share leaves. Values too large for a leaf have pages
# of their own.

# The sums are made in ``_commit.pxi``, where the next four are called ``ROOM_COMMIT``,
# ``ROOM_NODE``, ``ROOM_NODE_MAX`` and ``ROOM_FEW``.

_COMMIT_BYTES: Final = 32 * 1024
"""Bytes that a commit writes beside its rows: LMDB's free list, and pages of the tree's growth."""
_NODE_BYTES: Final = 12
"""Head of a node, its place in the page's index, and a byte to an even size."""
_NODE_BYTES_MAX: Final = 2030
"""A larger row has its value on pages of its own."""
_FEW: Final = 4
"""So many rows are not looked for in the tree: each is a run of its own."""

_CROWDING_BYTES: Final = PAGE_BYTES // 8
"""A row so large before others crowds their leaf."""
_BLANK: Final = bytes(PAGE_BYTES)
_PAGES_MAX: Final = 2**48
"""More than any file has: figures are cut down to it, so that sums of bytes fit 64 bits."""


class SpaceReserve(ReserveFields):
    """Reserve of disk space that only deletions may use. Used under the write lock."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def _find_room(self, raw: RawTxn, puts: dict[bytes, int], cost: int, known: bool) -> int:
        """Look closely at what a batch costs and at what is left; the cost, in bytes."""
        found = None if known else self._look()  # the tree, too, may be another one by now
        if len(puts) > _FEW or not known:
            rows = rows_in(raw, puts) if len(puts) > _FEW else rows_at_most(puts)
            cost = pages_for(rows, self._depth, self._pages) * PAGE_BYTES + _COMMIT_BYTES
        if cost > self._left or not known:
            self._measure(cost, found or self._look())
        return cost

    def refusal(self) -> StoreFullError:
        """Return the error for requests of a batch that does not fit."""
        return StoreFullError(
            f"{self._path}: no space is left on the device: free some, or delete sessions, for"
            " which room is kept; nothing was stored or lost"
        )

    def _look(self) -> tuple[int, int]:
        """The pages in use, up to the last one, and those of them that are free; and the tree."""
        found = meta_figures(os.pread(self._fd, 2 * PAGE_BYTES, 0))
        if found is None:
            meta = newest_meta(self._fd, self._path)  # it says what is wrong
            found = meta.main_depth, meta.main_pages, meta.free_pages, meta.last_page
        # LMDB never looks at its own counts of pages: in a damaged file they say anything.
        depth, pages, free_pages, last_page = (min(figure, _PAGES_MAX) for figure in found)
        self._depth, self._pages = min(depth, DEPTH_MAX), pages
        return last_page + 1, last_page - 1 - pages - free_pages

    def _measure(self, cost: int, found: tuple[int, int]) -> None:
        """Find what is left, and grow the file so that a batch of this cost fits beside it."""
        used, free = found
        size = file_size(self._fd)
        have = max(0, free * PAGE_BYTES) + max(0, size - used * PAGE_BYTES)
        want = ROOM_BYTES + max(cost, ROOM_STEP_BYTES)
        if have < want:
            have += self._extend(size, want - have)
        self._left = have - ROOM_BYTES

    def _extend(self, size: int, more: int) -> int:
        """Grow the file by this and up to a page more; how many bytes, fewer on a full device.

        Zeros are written, as pages that were never written make a small commit slow, and in single
        pages: one large write makes large folios of the page cache, and each later flush of a page
        then writes a whole one. What a large batch fills at once is only reserved. Nothing that
        anybody wrote is written over.
        """
        end = (size + more + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        at = size
        try:
            if more > ROOM_BYTES + ROOM_STEP_BYTES:
                with suppress(OSError):  # then as far as it goes
                    os.posix_fallocate(self._fd, size, end - size)
                    return end - size
            while at < end:
                at += os.pwrite(self._fd, _BLANK[: end - at], at)
        except OSError as error:
            if error.errno not in FULL:
                raise
        return at - size


class Rows(NamedTuple):
    """Sizes of the rows that a batch put, as far as they determine the pages needed."""

    runs: int
    """Runs of rows with no others' between them."""
    inline: int
    """Bytes in leaves."""
    crowded: int
    """Those of them in runs with a row of an eighth of a page or more close behind them."""
    large: int
    """Pages of values too large for a leaf."""


def rows_at_most(puts: dict[bytes, int]) -> Rows:
    """Bound the sizes of a batch's rows without reading the tree: each row in a run of its own."""
    return Rows(*row_sizes(puts))


def rows_in(raw: RawTxn, puts: dict[bytes, int]) -> Rows:
    """Measure the rows of a batch as they lie among all others in its transaction."""
    runs = crowded = run = 0
    following = b""
    cursor = raw.cursor()
    try:
        for key in sorted(puts):
            if key != following:
                if not cursor.set_range(key) or cursor.key() != key:
                    continue  # deleted again
                runs += 1
                run = 0
            run += _NODE_BYTES + len(key) + min(puts[key], _NODE_BYTES_MAX)
            following = cursor.key() if cursor.next() else b""
            # A run that fills no page splits one at most.
            if run > PAGE_BYTES // 4 and following and following not in puts:
                crowded += run * _stands_before_large(cursor)
    finally:
        cursor.close()
    whole = rows_at_most(puts)
    return whole._replace(runs=runs, crowded=min(crowded, whole.inline))


def _stands_before_large(cursor: RawCursor) -> bool:
    """Return True if a row in the page that begins here is large enough to crowd out others."""
    seen = 0
    while seen < PAGE_BYTES:
        size = len(cursor.value())
        if _CROWDING_BYTES < size <= _NODE_BYTES_MAX:
            return True
        seen += _NODE_BYTES + len(cursor.key()) + min(size, _NODE_BYTES_MAX)
        if not cursor.next():
            break
    return False
