"""Background compactor: compacts the sessions that a runtime reports as changed."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from memcore.aio.compact import run_due
from memcore.aio.session import AsyncSession
from memcore.compaction import Pressure, compaction_policy
from memcore.errors import ClosedError, InvalidOptionError
from memcore.faces import logger
from memcore.model import CompactionResult, Plan
from memcore.options import checked_callable, checked_int, checked_optional_seconds
from memcore.session import Session
from memcore.session.compact import AnySummarizer, Attempts, Patience, checked_summarizer, policy_of
from memcore.session.session import AnyPolicy, ref_of, store_of
from memcore.telemetry import seen_compacting

__all__ = [
    "CompactionFailure",
    "Compactor",
    "Key",
    "Waiting",
    "key_of",
]


# --- Sessions that wait for a compaction: each once, oldest first, and no more than so many -------

Key = tuple[str, bytes, str, str, str]
"""The path and the seed of a file (a copy shares the one, stores in memory the other), and the
app, user and name of the session: equal for all handles of one session."""

_now: Final = time.monotonic


def key_of(session: Session) -> Key:
    """Return the identity shared by handles of the same session."""
    store = store_of(session)
    return (store.path, store.seed, session.app, session.user, session.id)


class _Entry(NamedTuple):
    session: Session
    since: float


class Waiting:
    """A bounded queue in which a session stands once, however often it is put in. Thread-safe."""

    __slots__ = ("_entries", "_lock", "_open", "dropped", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.dropped = 0
        self._entries: dict[Key, _Entry] = {}
        self._lock = threading.Lock()
        self._open = True

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def put(self, key: Key, session: Session) -> bool:
        """Queue the session; return False if the queue is full or closed."""
        with self._lock:
            known = self._entries.get(key)
            if not self._open or (known is None and len(self._entries) >= self.most):
                self.dropped += 1
                return False
            since = _now() if known is None else known.since
            self._entries[key] = _Entry(session, since)  # keeps its place
            return True

    def take(self, *, but: Container[Key]) -> tuple[Key, Session] | None:
        """The first one that is not among ``but``, off the queue."""
        with self._lock:
            for key, entry in self._entries.items():
                if key not in but:
                    del self._entries[key]
                    return key, entry.session
        return None

    def close(self) -> None:
        """Take in no more, and forget who waits."""
        with self._lock:
            self._open = False
            self._entries.clear()

    @property
    def lag_seconds(self) -> float:
        """Time that the first entry has been waiting."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return 0.0 if first is None else max(_now() - first.since, 0.0)


# --- The background compactor: a runtime tells it which sessions changed, and goes on -------------

WAITING_MAX: Final = 1_024
"""Sessions that may wait by default: a handle each."""
ERRORS_KEPT: Final = 32
STALLS_KEPT: Final = 4_096
"""Sessions with a stage that was given up, which are remembered; the oldest is forgotten first."""
_log = logger()

Before = Callable[[AsyncSession, Plan, Pressure], bool | Awaitable[bool | None] | None]
After = Callable[[AsyncSession, CompactionResult], object]


class CompactionFailure(NamedTuple):
    """Failed compaction of one session; the others went on."""

    session: AsyncSession
    error: Exception


class Compactor:
    """Compacts sessions in the background, so that no turn of an agent waits for a summary.

    A runtime tells it which sessions changed, and goes on::

        async with memcore.aio.Compactor(summarize, timeout_seconds=60) as compactor:
            await session.append(item)
            compactor.notify(session)      # never waits, never fails for being busy

    What is appended while the summarizer runs stays behind the summary. A session is compacted once
    at a time; notifications that come meanwhile count as one and have it looked at again. Which
    stages run, what a lost race does and when a stage is given up is as in ``memcore.Compactor``.

    **Back-pressure.** At most ``waiting_max`` sessions wait. Beyond that ``notify`` returns False
    and ``dropped`` counts; no append is held up, and nothing is lost: being due is a state of the
    session, so its next notification serves as well. A runtime that wants to slow down looks at
    ``full`` or ``lag_seconds``, or awaits ``drained(session)`` before the next turn of a session.

    **Errors** of a session (of its file, of a hook) are logged, kept in ``errors`` and given to
    ``on_error``; a summarizer that fails is no error, but a fallback (``CompactionResult.error``).

    Nothing runs by the clock: a stage that is due by ``idle_seconds`` waits for a notification.

    Args:
        summarize: a function, which runs in a thread, or a coroutine function; None: what is folded
            is trimmed.
        policy: a CompactionPolicy, a preset's name or a mapping; None: each session's own.
        concurrency: sessions that are compacted in parallel.
        waiting_max: sessions that may wait for their turn.
        timeout_seconds: how long ``summarize`` may take.
        close_seconds: how long leaving the block waits for what is running; None: until it ends.
        before: called on the loop with the session, the plan and the pressure, when that of
            ``memcore.Compactor`` is; may be a coroutine function. False ends this session's run.
        after: called on the loop with the session and the result; may be a coroutine function.
        on_error: called on the loop with a CompactionFailure.

    Raises:
        InvalidOptionError: an argument is of a wrong type or out of range.
    """

    def __init__(
        self,
        summarize: AnySummarizer | None = None,
        *,
        policy: AnyPolicy | None = None,
        concurrency: int = 1,
        waiting_max: int = WAITING_MAX,
        timeout_seconds: float | None = None,
        close_seconds: float | None = None,
        before: Before | None = None,
        after: After | None = None,
        on_error: Callable[[CompactionFailure], object] | None = None,
    ) -> None:
        checked_summarizer(summarize, awaits=True)
        self.concurrency = checked_int("concurrency", concurrency, least=1)
        self.errors: deque[CompactionFailure] = deque(maxlen=ERRORS_KEPT)
        """The last failures, oldest first."""
        self._summarize = summarize
        self._policy = None if policy is None else compaction_policy(policy)
        self._timeout = checked_optional_seconds("timeout_seconds", timeout_seconds)
        self._close_seconds = checked_optional_seconds("close_seconds", close_seconds)
        self._before: Before | None = checked_callable("before", before)
        self._after: After | None = checked_callable("after", after)
        self._on_error = checked_callable("on_error", on_error)
        self._waiting = Waiting(checked_int("waiting_max", waiting_max, least=1))
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._stalled: OrderedDict[Key, Patience] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()

    # --- its life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            msg = "the compactor was entered before: make another one"
            raise ClosedError(msg)
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._pump()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(cancel=kind is not None)

    async def close(self, *, cancel: bool = False) -> None:
        """Stop: forget the sessions that wait, and let those that run end.

        After ``close_seconds``, at once with ``cancel`` (as when the block is left by an
        exception) and when this is cancelled itself, those that run are cancelled. Each session
        then has the view it had before or, if the commit was under way, the new one. To have all of
        them compacted first, await ``drained()``.
        """
        self._waiting.close()
        try:
            if self._running and not cancel:
                await asyncio.wait(self._running.values(), timeout=self._close_seconds)
        finally:
            for task in self._running.values():
                task.cancel()
            if self._running:
                await asyncio.wait(self._running.values())

    # --- what a runtime calls ---------------------------------------------------------------------

    def notify(self, session: AsyncSession | Session) -> bool:
        """Have a session looked at soon: call it after appends. From any thread; never waits.

        Returns:
            Whether it will be looked at; not if too many wait, or the compactor was closed.

        Raises:
            InvalidOptionError: it is no session.
        """
        handle = _handle(session)
        if not self._waiting.put(key_of(handle), handle):
            return False
        loop = self._loop
        if loop is None:
            return True  # entering looks at it
        if _running_loop() is loop:
            self._pump()
            return True
        try:
            loop.call_soon_threadsafe(self._pump)
        except RuntimeError:  # the loop was closed, and the compactor with it
            return False
        return True

    async def drained(self, session: AsyncSession | Session | None = None) -> None:
        """Wait until no session waits or is compacted; with ``session``: until this one does not.

        Not to be awaited by a hook or a summarizer of the same compactor.

        Raises:
            ClosedError: there are sessions that wait, and the compactor was not entered.
        """
        key = None if session is None else key_of(_handle(session))
        while self._is_busy(key):
            if self._loop is None:
                msg = "the compactor does not run yet: use 'async with'"
                raise ClosedError(msg)
            self._pump()  # a notification of another thread may be on its way
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)

    @property
    def pending(self) -> int:
        """Number of sessions waiting."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of sessions being compacted."""
        return len(self._running)

    @property
    def full(self) -> bool:
        """True if ``notify`` would reject a session that is not waiting yet."""
        return len(self._waiting) >= self._waiting.most

    @property
    def dropped(self) -> int:
        """Number of rejected notifications."""
        return self._waiting.dropped

    @property
    def lag_seconds(self) -> float:
        """Waiting time of the session that has waited longest; 0.0 if none waits."""
        return self._waiting.lag_seconds

    # --- the work ---------------------------------------------------------------------------------

    def _is_busy(self, key: Key | None) -> bool:
        if key is None:
            return bool(self._waiting or self._running)
        return key in self._waiting or key in self._running

    def _pump(self) -> None:
        """Begin what may begin; on the loop's thread."""
        assert self._loop is not None  # noqa: S101 - what its callers looked at
        while len(self._running) < self.concurrency:
            found = self._waiting.take(but=self._running)
            if found is None:
                return
            key, session = found
            # Not in the context of whoever notified: it has nothing to do with the work.
            task = self._loop.create_task(
                self._serve(key, AsyncSession(session)),
                name="memcore-compactor",
                context=self._context.copy(),
            )
            self._running[key] = task
            task.add_done_callback(lambda _, key=key: self._ended(key))  # type: ignore[misc]

    def _ended(self, key: Key) -> None:
        del self._running[key]
        self._pump()

    async def _serve(self, key: Key, session: AsyncSession) -> None:
        try:
            with seen_compacting(session) as seen:
                seen.append(await self._compact(key, session))
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            failure = RuntimeError("a hook was cancelled")
            failure.__cause__ = exc
            self._failed(session, failure)
        except Exception as exc:  # noqa: BLE001 - one session's trouble is not that of the others
            self._failed(session, exc)

    async def _compact(self, key: Key, session: AsyncSession) -> CompactionResult | None:
        handle = session.sync
        ref = ref_of(handle)
        patience = self._stalled.pop(key, None) or Patience()
        attempts = Attempts(ref, policy_of(ref, self._policy), patience)
        try:
            return await run_due(
                handle,
                attempts,
                self._summarize,
                timeout_seconds=self._timeout,
                before=partial(_called, self._before, session),
                after=partial(_called, self._after, session),
            )
        finally:
            if patience:
                self._stalled[key] = patience
                if len(self._stalled) > STALLS_KEPT:
                    self._stalled.popitem(last=False)

    def _failed(self, session: AsyncSession, error: Exception) -> None:
        # Not the error itself: its text may hold content. ``on_error`` and ``errors`` have it.
        _log.error("session %r: the compaction failed: %s", session.id, type(error).__name__)
        failure = CompactionFailure(session, error)
        self.errors.append(failure)
        if self._on_error is not None:
            try:
                self._on_error(failure)
            except Exception as exc:  # noqa: BLE001 - nor is that of the hook that is told of it
                _log.error("session %r: on_error failed: %s", session.id, type(exc).__name__)


def _handle(session: object) -> Session:
    if isinstance(session, AsyncSession):
        return session.sync
    if not isinstance(session, Session):
        msg = f"session: expected a session, got {type(session).__name__}"
        raise InvalidOptionError(msg)
    return session


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


async def _called(hook: Callable[..., Any] | None, *args: object) -> Any:
    """Call a hook and await its result if needed; None without a hook."""
    found = None if hook is None else hook(*args)
    return await found if inspect.isawaitable(found) else found
