"""What the leader of a batch does: run closures, record, commit, and know the outcome.

An interrupt may be raised at any call. From the moment LMDB has committed until ``decided`` is set,
everything runs in a loop that an interrupt can only delay: a batch that is stored must never be
taken for one that has to run again.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from memcore.errors import InternalError, MemcoreError, OutcomeUnknownError, StoreFullError
from memcore.store import lmdb as binding
from memcore.store.base import MapMovedError
from memcore.store.call import Batch, Call, WriterNeeded
from memcore.store.commit import CommitQueue
from memcore.store.delivery import run_callbacks
from memcore.store.device import is_cramped
from memcore.store.lmdb import MapFull, RawError
from memcore.store.txn import RawTxn, WriteTxn

if TYPE_CHECKING:
    from memcore.store.environment import Environment

__all__ = ["Leader"]

_CLEAR_BATCHES: Final = 256


class _Next(Enum):
    """What follows a run of the closures."""

    COMMIT = 1
    AGAIN = 2
    GROW = 3
    GROW_AHEAD = 4


class _Fate(Enum):
    """What became of a commit that did not return."""

    UNKNOWN = 1  # LMDB let the lock go: look again under it
    HELD = 2  # not committed, the lock is still ours
    LOST = 3
    COMMITTED = 4


class Leader:
    """Runs batches for one environment; always on the thread that has the lead."""

    __slots__ = ("_env", "_txn", "batches", "closures", "poison", "unsynced")

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._txn: WriteTxn | None = None
        self.poison = ""
        self.unsynced = False
        self.batches = 0
        self.closures = 0

    def forget(self) -> None:
        """In the child of a fork: the transaction under way is the parent's."""
        if self._txn is not None:
            self._txn.drop()
            self._txn = None
        self.unsynced = False

    # --- the batch ---------------------------------------------------------------------------

    def run(self, batch: Batch) -> None:
        """Decide every call of the batch; raises interrupts, and WriterNeeded if it is hurried."""
        try:
            self._try_until_decided(batch)
            if self._env.audit is not None and not batch.hurried:
                self._env.audit.anchor_if_due()
        except WriterNeeded:
            raise
        except Exception as error:  # noqa: BLE001 - every caller gets it
            failure = binding.translate(error, self._env.path)
            for call in batch.calls:
                if not call.done:
                    call.error = _copy_of(failure, error)
            batch.decided = True

    def _try_until_decided(self, batch: Batch) -> None:
        again = True
        while True:
            try:
                follows = self._attempt(batch)
            except (RawError, StoreFullError) as error:
                pin = self._env.pin
                if pin is None or not again or not _is_full(error, self._env.path):
                    raise
                if batch.hurried:
                    raise WriterNeeded from error
                # A steady point lets go of the pages that were freed since the last one.
                with suppress(MapMovedError):  # the next attempt follows the map
                    pin.point()
                again = False
                continue
            if follows is _Next.COMMIT:
                return
            if batch.hurried and follows is not _Next.AGAIN:
                raise WriterNeeded  # growing waits for all who read
            if follows is _Next.GROW:
                self._env.grow()
            elif follows is _Next.GROW_AHEAD:
                self._env.grow_ahead()

    def _attempt(self, batch: Batch) -> _Next:
        self.need_sound()
        env = self._env
        if env.audit is not None:
            batch.refusal = env.audit.need_anchored(hurried=batch.hurried)
        if self.batches % _CLEAR_BATCHES == _CLEAR_BATCHES - 1 and env.raw is not None:
            env.raw.reader_check()  # what killed readers pin must not make the file grow for ever
        txn = raw = None
        try:
            raw = env.begin_write(hurried=batch.hurried)
            txn = self._txn = WriteTxn(raw, env.redo is not None, env.vault, env.audit)
            follows, wrote = self._run_calls(txn, batch, env.queue)
            if follows is _Next.COMMIT:
                if wrote:
                    if not self._has_room(txn, batch):
                        return _Next.AGAIN
                    if env.redo is not None and env.is_tight(txn.size):
                        return _Next.GROW_AHEAD
                    self._commit(txn, batch)
                else:  # an interrupt makes it run again: there is nothing to be stored twice
                    run_callbacks(deque(txn.callbacks))
                    batch.decided = True
        except MapFull:
            return _Next.GROW
        finally:
            self._txn = None
            if env.pin is not None:
                env.pin.is_busy = False
            # By a function in C: an interrupt at the first line of one of ours would leave the lock
            # to whoever keeps the error. Nothing happens to a transaction that was committed; one
            # that a fork took from us is the parent's.
            if raw is not None and (txn is None or txn.raw is not None):
                raw.abort()
            raw = None
            if txn is not None:
                txn.drop()
        return follows

    def _run_calls(self, txn: WriteTxn, batch: Batch, queue: CommitQueue) -> tuple[_Next, bool]:
        """Run every closure once, those that queue up meanwhile too; whether anything was written.

        A closure that wrote and then raised has spoilt the transaction: the others run again.
        """
        wrote = False
        index = 0
        while True:
            while index < len(batch.calls):
                call = batch.calls[index]
                if call.done or _is_refused(call, batch.refusal):
                    index += 1
                    continue
                txn.owner = call
                txn.dirty = False
                callbacks = len(txn.callbacks)
                self._run_one(txn, call, batch)
                if call.error is not None:
                    if isinstance(txn.failed, MapFull):
                        return _Next.GROW, False
                    if txn.dirty or txn.failed is not None:
                        call.error = _typed(call.error, self._env.path)
                        call.done = True
                        return _Next.AGAIN, False
                    call.error = _typed(call.error, self._env.path)
                    del txn.callbacks[callbacks:]
                elif txn.dirty:
                    if self._overflows(txn):
                        if wrote:
                            batch.take_back(index)
                            return _Next.AGAIN, False
                        batch.take_back(index + 1)  # it is committed alone, with a second flush
                    wrote = True
                index += 1
            if not queue.waiting or batch.back or not queue.take_more(batch):
                if wrote and txn.vault is not None:
                    txn.vault.note(txn)
                return _Next.COMMIT, wrote

    def _run_one(self, txn: WriteTxn, call: Call, batch: Batch) -> None:
        try:
            call.result = call.fn(txn)
            if txn.audit is not None:
                txn.audit.settle()
            call.error = txn.failed  # set if the closure swallowed LMDB's refusal
        except Exception as error:  # noqa: BLE001 - it is the caller's
            call.error = error
        except BaseException as error:
            # An interrupt of this thread, unless this closure was running the last time as well.
            if call is batch.own or (batch.own is not None and not call.struck):
                call.struck = True
                raise
            call.error = error
            txn.dirty = True

    def _overflows(self, txn: WriteTxn) -> bool:
        redo = self._env.redo
        return redo is not None and txn.size > redo.capacity

    # --- the commit --------------------------------------------------------------------------

    def _commit(self, txn: WriteTxn, batch: Batch) -> None:
        """Record, commit, flush what the record does not cover, decide the batch.

        Raises if nothing is stored (the batch stays undecided), if the outcome is unknown, or an
        interrupt (the batch is decided then).
        """
        raw = txn.raw
        if raw is None:
            raise InternalError("the process was forked inside a transaction")
        redo = self._env.redo
        recorded = redo is not None and txn.size <= redo.capacity
        txnid = raw.id()
        interrupt: BaseException | None = None
        try:
            if redo is not None and recorded:
                redo.write(txnid, txn.ops)
            raw.commit()
        except BaseException as error:  # noqa: BLE001 - raised by _give_up, or kept
            short = self._is_short_write(error, txn)
            if not self._was_committed(raw, txnid, error, poisons=not short):
                self._give_up(error, short=short)
            if not isinstance(error, Exception):
                interrupt = error
        callbacks = deque(txn.callbacks)
        while not batch.decided:
            try:
                self._stored()  # counted twice after an interrupt, which harms nothing
                if redo is not None and not recorded:
                    self.sync()
                    recorded = True
                if callbacks:
                    run_callbacks(callbacks)
                self._env.bell.ring(txn.topics)
                self.batches += 1
                self.closures += len(batch.calls)
                batch.decided = True
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _stored(self) -> None:
        self.need_sound()  # a flush of another thread may have failed meanwhile
        env = self._env
        self.unsynced = env.redo is not None
        if env.pin is not None:
            env.pin.committed()

    def _has_room(self, txn: WriteTxn, batch: Batch) -> bool:
        """Whether the batch leaves what is kept for deletions; else those who only write fail."""
        room = self._env.room
        if room is None:
            return True
        ordinary = [c for c in batch.calls if not (c.makes_room or c.done or c.error)]
        if not ordinary or txn.raw is None or room.take(txn.raw, txn.puts):
            return True
        if len(ordinary) > 1:  # one that is too large must not refuse the others: each alone
            batch.take_back(batch.calls.index(ordinary[0]) + 1)
            return False
        for call in ordinary:
            call.error = room.refusal()
            call.done = True
        return False

    def _is_short_write(self, error: BaseException, txn: WriteTxn) -> bool:
        """Whether LMDB calls EIO what was a write cut short for want of room."""
        return binding.is_device_error(error) and is_cramped(self._env.fd, 2 * txn.size)

    def _give_up(self, error: BaseException, *, short: bool) -> NoReturn:
        if short:
            raise StoreFullError(
                f"{self._env.path}: no space is left: free some; nothing was stored or lost"
            ) from error
        raise error

    def sync(self) -> None:
        """Flush everything; a failure poisons, for the next flush would claim success."""
        self.need_sound()
        try:
            self._env.mapped().sync(True)
        except RawError as error:
            self.poison_for(error)
            raise OutcomeUnknownError(self.poison) from error

    def _was_committed(
        self, raw: RawTxn, txnid: int, error: BaseException, *, poisons: bool
    ) -> bool:
        """What became of a commit that raised; if it is not stored, it cannot come back either.

        ``poisons`` says that a device error is what it says: LMDB calls a short write one, too.
        """
        fate = [_Fate.UNKNOWN]
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
            if fate[0] is _Fate.COMMITTED:  # by the page cache, maybe not by the device
                raise OutcomeUnknownError(self.poison) from error
        if interrupt is not None and fate[0] is _Fate.LOST:
            raise interrupt
        return fate[0] is _Fate.COMMITTED

    def _find_fate(self, fate: list[_Fate], raw: RawTxn, txnid: int, error: BaseException) -> None:
        """Settle ``fate``; may be interrupted anywhere and be run again.

        LMDB's transaction is alive as long as commit was not called; if commit returned and the
        error came from elsewhere (an interrupt), it is stored. If commit itself failed, the lock
        is gone, and another process may have replayed our record before we take it again.
        """
        redo = self._env.redo
        if fate[0] is _Fate.UNKNOWN:
            if _is_alive(raw):
                fate[0] = _Fate.HELD
            elif not isinstance(error, RawError):
                fate[0] = _Fate.COMMITTED
            else:
                lock = self._env.begin_write()
                try:
                    now = lock.id()
                    if now == txnid and redo is not None:
                        redo.withdraw(txnid)
                    if now == txnid or redo is None:
                        # Without a record nobody can replay it, and had its meta page been touched,
                        # LMDB would refuse every further transaction (MDB_PANIC).
                        fate[0] = _Fate.LOST
                    elif now > txnid + 2:
                        raise OutcomeUnknownError("other transactions hide the outcome")
                    else:  # the slot still tells whose transaction ``txnid`` is
                        ours = redo.holds_ours(txnid)
                        fate[0] = _Fate.COMMITTED if ours else _Fate.LOST
                finally:
                    lock.abort()
        if fate[0] is _Fate.HELD:
            if _is_alive(raw):
                if redo is not None:
                    redo.withdraw(txnid)
                raw.abort()
            fate[0] = _Fate.LOST

    def need_sound(self) -> None:
        """OutcomeUnknownError if a flush or commit has failed: no later one tells the truth."""
        if self.poison:
            raise OutcomeUnknownError(self.poison)

    def poison_for(self, error: BaseException) -> None:
        """Refuse every further write: what is on the device is not known any more."""
        self.poison = (
            f"{self._env.path}: a commit or flush failed ({error}) so that the store cannot be"
            " trusted to write; close it, check the device, open it again and look what is stored"
        )


def _is_refused(call: Call, refusal: MemcoreError | None) -> bool:
    """Whether a call must not be carried out, as long as only those who make room are."""
    if refusal is None or call.makes_room:
        return False
    call.error, call.done = _copy_of(refusal, refusal), True
    return True


def _is_full(error: BaseException, path: str) -> bool:
    return isinstance(binding.translate(error, path), StoreFullError)


def _is_alive(raw: RawTxn) -> bool:
    try:
        raw.id()
    except RawError:
        return False
    return True


def _typed(error: BaseException, path: str) -> BaseException:
    typed = binding.translate(error, path)
    if typed is not error:
        typed.__cause__ = error
    return typed


def _copy_of(failure: BaseException, cause: BaseException) -> BaseException:
    """An error of one's own for each caller: a traceback belongs to one thread."""
    if not isinstance(failure, MemcoreError):
        return failure
    copy = type(failure)(*failure.args)
    copy.__cause__ = failure.__cause__ if failure is cause else cause
    return copy
