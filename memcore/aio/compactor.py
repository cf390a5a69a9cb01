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


# --- A bounded FIFO queue of sessions waiting for a compaction, without duplicates ----------------

Key = tuple[str, bytes, str, str, str]
"""The path and seed of a file, and the app, user and name of the session; equal for all handles of
one session. A copy has the same seed, and in-memory stores share a path, so both are needed."""

_now: Final = time.monotonic


def key_of(session: Session) -> Key:
    """Return the identity shared by handles of the same session."""
    store = store_of(session)
    return (store.path, store.seed, session.app, session.user, session.id)


class _Entry(NamedTuple):
    session: Session
    since: float


class Waiting:
    """A bounded queue that holds a session at most once, however often it is put. Thread-safe."""

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
        """Remove and return the first session whose key is not in ``but``; None if there is none.

        The result is ``(key, session)``.
        """
        with self._lock:
            for key, entry in self._entries.items():
                if key not in but:
                    del self._entries[key]
                    return key, entry.session
        return None

    def close(self) -> None:
        """Refuse further sessions, and drop the waiting ones."""
        with self._lock:
            self._open = False
            self._entries.clear()

    @property
    def lag_seconds(self) -> float:
        """Seconds that the first entry has been waiting; 0.0 if the queue is empty."""
        with self._lock:
            first = next(iter(self._entries.values()), None)
        return 0.0 if first is None else max(_now() - first.since, 0.0)


# --- The background compactor, notified by the runtime of the sessions that changed ---------------

WAITING_MAX: Final = 1_024
"""Default limit on waiting sessions, each of which holds a handle."""
ERRORS_KEPT: Final = 32
STALLS_KEPT: Final = 4_096
"""Maximum sessions remembered for a stage that was given up; the oldest is forgotten first."""
_log = logger()

Before = Callable[[AsyncSession, Plan, Pressure], bool | Awaitable[bool | None] | None]
After = Callable[[AsyncSession, CompactionResult], object]


class CompactionFailure(NamedTuple):
    """The failed compaction of one session; other sessions are not affected."""

    session: AsyncSession
    error: Exception


class Compactor:
    """Compacts sessions in the background, so that no turn of an agent waits for a summary.

    A runtime notifies it of changed sessions and continues without waiting::

        async with memcore.aio.Compactor(summarize, timeout_seconds=60) as compactor:
            await session.append(item)
            compactor.notify(session)      # never waits, never fails for being busy

    Items appended while the summarizer runs stay after the summary. Compactions of one session
    never overlap; notifications that arrive during one are merged into a single further check. The
    stages that run, the handling of lost races and the giving up of a stage are as in
    ``memcore.Compactor``.

    **Back-pressure.** At most ``waiting_max`` sessions wait. Beyond that, ``notify`` returns False
    and ``dropped`` is incremented; no append is delayed, and nothing is lost: being due is a state
    of the session, so its next notification serves just as well. A runtime that wants to slow down
    can watch ``full`` or ``lag_seconds``, or await ``drained(session)`` before a session's next
    turn.

    **Errors** in a session (from its file or a hook) are logged, kept in ``errors`` and passed to
    ``on_error``; a failing summarizer is not an error but a fallback (``CompactionResult.error``).

    There is no timer: a stage that is due by ``idle_seconds`` waits for a notification.

    Args:
        summarize: a function, which runs in a thread, or a coroutine function; None: folded items
            are trimmed.
        policy: a CompactionPolicy, a preset's name or a mapping; None: each session's own.
        concurrency: maximum sessions compacted in parallel.
        waiting_max: maximum sessions that wait for their turn.
        timeout_seconds: time limit for ``summarize``.
        close_seconds: time that leaving the block waits for running compactions; None: until they
            end.
        before: called on the loop with the session, the plan and the pressure, at the same point as
            in ``memcore.Compactor``; may be a coroutine function. False ends this session's run.
        after: called on the loop with the session and the result; may be a coroutine function.
        on_error: called on the loop with a CompactionFailure.

    Raises:
        InvalidOptionError: an argument has the wrong type or is out of range.
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

    # --- lifecycle --------------------------------------------------------------------------------

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
        """Stop: drop the waiting sessions and let running compactions finish.

        Running compactions are cancelled after ``close_seconds``, immediately with ``cancel`` (as
        when the block is left by an exception), and when this call itself is cancelled. Each
        session then has its previous view or, if the commit was in progress, the new one. To have
        all of them compacted first, await ``drained()``.
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

    # --- interface for the runtime ----------------------------------------------------------------

    def notify(self, session: AsyncSession | Session) -> bool:
        """Queue a session for a check; call it after appends. Thread-safe; never waits.

        Returns:
            True if the session will be checked; False if the queue is full or the compactor closed.

        Raises:
            InvalidOptionError: ``session`` is not a session.
        """
        handle = _handle(session)
        if not self._waiting.put(key_of(handle), handle):
            return False
        loop = self._loop
        if loop is None:
            return True  # checked on entering
        if _running_loop() is loop:
            self._pump()
            return True
        try:
            loop.call_soon_threadsafe(self._pump)
        except RuntimeError:  # the loop is closed, and with it the compactor
            return False
        return True

    async def drained(self, session: AsyncSession | Session | None = None) -> None:
        """Wait until no session, or not ``session`` if given, is waiting or being compacted.

        A hook or summarizer of the same compactor may not await this, as it could deadlock.

        Raises:
            ClosedError: sessions are waiting, but the compactor has not been entered.
        """
        key = None if session is None else key_of(_handle(session))
        while self._is_busy(key):
            if self._loop is None:
                msg = "the compactor does not run yet: use 'async with'"
                raise ClosedError(msg)
            self._pump()  # a notification from another thread may not have been processed yet
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
        """True if ``notify`` would reject a session that is not already waiting."""
        return len(self._waiting) >= self._waiting.most

    @property
    def dropped(self) -> int:
        """Number of rejected notifications."""
        return self._waiting.dropped

    @property
    def lag_seconds(self) -> float:
        """Seconds that the longest-waiting session has waited; 0.0 if none waits."""
        return self._waiting.lag_seconds

    # --- internals --------------------------------------------------------------------------------

    def _is_busy(self, key: Key | None) -> bool:
        if key is None:
            return bool(self._waiting or self._running)
        return key in self._waiting or key in self._running

    def _pump(self) -> None:
        """Start as many compactions as ``concurrency`` allows; on the loop's thread."""
        assert self._loop is not None  # noqa: S101 - checked by its callers
        while len(self._running) < self.concurrency:
            found = self._waiting.take(but=self._running)
            if found is None:
                return
            key, session = found
            # Use the compactor's context: the notifier's has nothing to do with the work.
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
        except Exception as exc:  # noqa: BLE001 - one session's failure may not affect others
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
        # Log only the type: the text may hold content. ``on_error`` and ``errors`` have the error.
        _log.error("session %r: the compaction failed: %s", session.id, type(error).__name__)
        failure = CompactionFailure(session, error)
        self.errors.append(failure)
        if self._on_error is not None:
            try:
                self._on_error(failure)
            except Exception as exc:  # noqa: BLE001 - nor may a failing error hook
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
