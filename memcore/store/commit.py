"""Group commit: who runs which closures, who leads, who wakes whom.

The first caller leads: it runs everything that waits in one transaction on its own thread, and
hands the lead to the next one that waits. There is no timer: the next batch forms while this one
is being flushed. A lone caller takes one short mutex twice and no waiter lock.

Interrupts (KeyboardInterrupt and its like) may come between any two bytecodes of the main thread.
Every step that must not stay half done is idempotent and is repeated until it ran to its end; a
waiter also looks at its state now and then, so a swallowed wake-up costs time, not a hang.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from threading import Thread
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from memcore.errors import InternalError
from memcore.limits import BATCH_CLOSURES_MAX
from memcore.store.call import DONE, LEAD, QUEUED, TAKEN, Batch, Call, WriterNeeded
from memcore.store.delivery import deliver, follow, release, wake
from memcore.store.pace import Pace

__all__ = ["CommitQueue"]

T = TypeVar("T")

_IDLE_SECONDS: Final = 10.0
_IN_A_ROW: Final = 8
"""Of so many commits on a loop's own thread, one lets other tasks run."""


class CommitQueue:
    """The queue of one environment.

    ``run`` executes a batch, ``reading`` holds reading threads, ``is_prompt`` tells whether a
    commit would wait for no device now.
    """

    __slots__ = (
        "_batch",
        "_busy",
        "_here",
        "_is_prompt",
        "_mu",
        "_owner",
        "_pace",
        "_reading",
        "_retired",
        "_run",
        "_writer",
        "_writer_leads",
        "_writer_wake",
        "waiting",
    )

    def __init__(
        self,
        run: Callable[[Batch], None],
        reading: Container[int],
        is_prompt: Callable[[], bool],
    ) -> None:
        self._run = run
        self._reading = reading
        self._is_prompt = is_prompt
        self.reset()

    def reset(self) -> None:
        """Forget everybody: in the child of a fork no other thread is left."""
        self._mu = allocate_lock()
        self._batch: Batch | None = None
        self._busy = False
        self._owner = 0
        self._writer: Thread | None = None
        self._writer_leads = False
        self._writer_wake = allocate_lock()
        self._writer_wake.acquire()
        self._pace = Pace()
        self._here = 0
        self._retired = False
        self.waiting: deque[Call] = deque()

    @property
    def led_here(self) -> bool:
        """Whether this thread is running a batch."""
        return self._busy and self._owner == get_ident()

    def retire(self) -> None:
        """Let the writer thread end as soon as nothing waits for it: the environment is closed."""
        self._retired = True
        with self._mu:
            if self._writer is not None:
                release(self._writer_wake)

    # --- callers -----------------------------------------------------------------------------

    def call(self, fn: Callable[[Any], T], *, job: bool = False, makes_room: bool = False) -> T:
        """Run ``fn`` in a batch and return its result; ``makes_room``: even on a full device.

        A ``job`` runs alone and without a transaction: it has the lead, and so the environment.
        """
        me = get_ident()
        if me in self._reading:
            raise InternalError("a write was asked for inside a read on the same thread")
        call = Call(fn, makes_room=makes_room)
        call.job = job
        try:
            with self._mu:
                if not self._busy:
                    call.state = LEAD
                    self._owner = me
                    self._busy = True
                else:
                    self._enqueue(call, me)
            if call.state != LEAD:
                follow(call)
            if call.state == LEAD:
                self._lead(Batch(call), call, me)
        except BaseException as interrupt:
            self._leave_surely(call, interrupt)
            raise
        error = call.error
        if error is None:
            return call.result  # type: ignore[no-any-return]
        call.error = None
        try:
            raise error
        finally:
            del error, call  # the traceback would hold this frame, and the frame the traceback

    def _enqueue(self, call: Call, me: int) -> None:
        if self._owner == me:
            raise InternalError("a write was asked for inside a transaction on the same thread")
        waiter = call.waiter = allocate_lock()
        waiter.acquire()
        call.state = QUEUED
        self.waiting.append(call)

    def _leave_surely(self, call: Call, interrupt: BaseException) -> None:
        while True:
            try:
                self._leave(call)
                return
            except Exception:
                raise
            except BaseException as again:  # noqa: BLE001 - one interrupt is enough to raise
                again.__cause__ = interrupt

    def _leave(self, call: Call) -> None:
        """An interrupted caller leaves the queue, waits for its outcome or hands on the lead."""
        while True:
            with self._mu:
                state = call.state
                if state in (QUEUED, LEAD):
                    with suppress(ValueError):
                        self.waiting.remove(call)
                    if state == QUEUED:
                        call.state = DONE
            if state == LEAD:
                batch = self._batch
                self._settle(batch if batch is not None and batch.own is call else Batch(call))
            if state != TAKEN:
                return
            follow(call)

    # --- the leader --------------------------------------------------------------------------

    def _lead(self, batch: Batch, own: Call, me: int) -> None:
        self._batch = batch
        try:
            if own.waiter is not None:
                with self._mu:
                    self._owner = me
                    with suppress(ValueError):
                        self.waiting.remove(own)
            if own.job:
                own.result = own.fn(None)
            else:
                self._run(batch)
        except WriterNeeded:
            self._hand_over(batch)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            own.error = error
        finally:
            self._settle_surely(batch)

    def _hand_over(self, batch: Batch) -> None:
        """A hurried batch has to wait: its call is the first that the writer thread takes."""
        with self._mu:
            self._need_writer()
            batch.back, batch.calls, batch.own = batch.calls, [], None

    def take_more(self, batch: Batch) -> bool:
        """Move waiting calls into the running batch; whether there were any."""
        if batch.hurried:
            return False
        calls, waiting = batch.calls, self.waiting
        before = len(calls)
        with self._mu:
            while waiting and len(calls) < BATCH_CLOSURES_MAX and not batch.back:
                call = waiting[0]
                if call.job:
                    break
                if call.state == QUEUED:  # else an interrupt left it here after it was taken
                    call.state = TAKEN
                    calls.append(call)
                waiting.popleft()
        return len(calls) > before

    def _settle_surely(self, batch: Batch) -> None:
        interrupt: BaseException | None = None
        while True:
            try:
                self._settle(batch)
                break
            except Exception:
                raise
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _settle(self, batch: Batch) -> None:
        """Give everybody of the batch its outcome or its place in the queue; pass on the lead."""
        own, waiting = batch.own, self.waiting
        if len(batch.calls) == 1 and self._settle_alone(batch):
            return
        final = [c for c in batch.calls if batch.decided or c.done]
        back = [c for c in batch.calls if not (batch.decided or c.done or c is own)] + batch.back
        with self._mu:
            if not batch.settled:
                self._pass_on(batch, final, back)
            heir = waiting[0] if waiting and waiting[0].state == LEAD else None
            writer = self._writer_leads
        wake(final, own)
        if heir is not None:
            release(heir.waiter)
        elif writer:
            release(self._writer_wake)

    def _pass_on(self, batch: Batch, final: list[Call], back: list[Call]) -> None:
        """Under the mutex: the states of the batch's calls, and who leads next."""
        own, waiting = batch.own, self.waiting
        while waiting and waiting[0].state == TAKEN:
            waiting.popleft()
        if back and not (waiting and waiting[0] is back[0]):
            waiting.extendleft(reversed(back))
        for call in back:
            call.state = QUEUED
        for call in final:
            if call is not own:
                call.state = DONE
        if own is not None and own in waiting:
            waiting.remove(own)  # an interrupt kept it there: it must not be its own heir
        # Nothing below calls or loops, so no interrupt comes between: one that did would find its
        # call done, and leave the lead to nobody.
        if own is not None:
            own.state = DONE
        self._owner = 0
        self._busy = True if waiting else False  # noqa: SIM210 - bool() is a call
        if waiting and waiting[0].future is None:
            waiting[0].state = LEAD
        elif waiting:
            self._writer_leads = True
        if self._batch is batch:
            self._batch = None  # its closures know the handle, and that must not outlive its users
        batch.settled = True

    def claim(self, patience_seconds: float) -> Call | None:
        """Take the lead without a batch, to be given back by ``release``; None if it takes long."""
        me = get_ident()
        call = Call(_nothing)
        call.job = True
        with self._mu:
            if not self._busy:
                call.state = LEAD
                self._owner = me
                self._busy = True
                return call
            if self._owner == me:
                return None
            self._enqueue(call, me)
        if call.waiter is not None:
            call.waiter.acquire(True, patience_seconds)
        with self._mu:
            with suppress(ValueError):
                self.waiting.remove(call)
            if call.state != LEAD:
                call.state = DONE
                return None
            self._owner = me
        return call

    def release(self, claimed: Call) -> None:
        """Give back the lead of ``claim``."""
        self._settle_surely(Batch(claimed))

    def _settle_alone(self, batch: Batch) -> bool:
        """The short way for a lone caller: nobody to wake, nobody to lead."""
        own = batch.own
        if own is None or batch.back or self.waiting:
            return False
        with self._mu:
            if self.waiting or batch.settled:
                return False
            own.state = DONE
            self._owner = 0
            self._busy = False
            self._batch = None
            batch.settled = True
        return True

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
        call = Call(fn, makes_room=makes_room)
        call.future = future = loop.create_future() if future is None else future
        if not (large or self._busy or self.waiting) and self._pace.is_quick:
            me = get_ident()
            if me not in self._reading and self._is_prompt() and self._commit_here(call, me, loop):
                return future
        try:
            with self._mu:
                self._need_writer()
                call.state = QUEUED
                self.waiting.append(call)
                if not self._busy:
                    self._busy = self._writer_leads = True
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

    def _commit_here(self, call: Call, me: int, loop: asyncio.AbstractEventLoop) -> bool:
        """Lead a batch of this call alone; whether it is done, or on its way to the writer."""
        start = perf_counter_ns()
        try:
            with self._mu:
                if self._busy:
                    return False
                call.state = LEAD
                self._owner = me
                self._busy = True
            self._lead(Batch(call, hurried=True), call, me)
        except BaseException as interrupt:
            if call.state == LEAD:
                self._leave_surely(call, interrupt)
            raise
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
                lead, self._writer_leads = self._writer_leads, False
                if lead:
                    self._owner = get_ident()
                elif not (woken or self._busy):  # a batch under way may send its calls back
                    self._writer = None  # idle: nothing keeps the environment alive
                    return
            if lead:
                self._lead_for_futures()

    def _lead_for_futures(self) -> None:
        batch = Batch(None)
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
            self._settle(batch)


def _nothing(_: Any) -> None:
    """What a claim of the lead runs."""
