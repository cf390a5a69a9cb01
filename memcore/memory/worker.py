"""Background worker: extracts memories from the sessions that a runtime reports as changed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from memcore.errors import (
    ClosedError,
    CorruptValueError,
    InvalidOptionError,
    NotFoundError,
    OptedOutError,
)
from memcore.faces import logger
from memcore.memory.extract import (
    ExtractionReport,
    MemoryPlace,
    Unread,
    checked_kinds,
    extract,
    extractor_or_rules,
    pending_rows,
    run_row,
    unread,
    updated_between,
)
from memcore.memory.jobs import ExtractorId, JobRow, jobs_in
from memcore.memory.judge import Extractor
from memcore.memory.memories import Memories, place_of
from memcore.options import (
    checked_callable,
    checked_int,
    checked_optional_int,
    checked_optional_seconds,
    checked_optional_share,
)
from memcore.rows import names
from memcore.store.interface import ReadTxn

__all__ = [
    "ExtractionFailure",
    "MemoryWorker",
]


WAITING_MAX: Final = 1_024
"""Default limit on watched sessions, each of which holds a handle."""
SCOPES_MAX: Final = 1_024
"""Most scopes whose waiting jobs are looked after; the oldest is let go first."""
ERRORS_KEPT: Final = 32
_PAGE: Final = 256
_RETRY_SECONDS: Final = 15.0
"""Pause after which jobs that wait for another attempt are looked at."""
_log = logger()

_Key = tuple[int, str, str, str]
"""Identity of an open store, and the app, user and name of a session."""


class Remembering(Protocol):
    """Session, as far as the worker is concerned."""

    @property
    def id(self) -> str:
        """Return the session's name."""

    @property
    def memory(self) -> Memories:
        """Return the memory of its user."""


class ExtractionFailure(NamedTuple):
    """Failed work on one session; other sessions are not affected."""

    session: str
    error: BaseException


class _Watched(NamedTuple):
    """Session that changed, and was not read to its end."""

    place: MemoryPlace
    name: str
    ended: bool = False
    """True if it is to be read now, whatever the rules say."""


class MemoryWorker:
    """Extracts memories in the background, so that no turn of an agent waits for it.

    A runtime notifies it of changed sessions and continues without waiting::

        with memcore.MemoryWorker(my_llm, turns=4) as worker:
            session.append(item)
            worker.notify(session)      # never waits, never fails for being busy

    A session is read when the user has taken ``turns`` turns since it was read last, when nothing
    was added for ``idle_seconds``, when ``record_outcome`` said that it failed or was unsure of it,
    and when ``end`` says that it is over. What was asked for is a row: another process goes on
    where one was killed, and no range is read into the memory twice. A failed attempt is repeated
    with growing pauses while the worker runs and knows the user; after five, the job is dead until
    ``memory.retry``.

    ``run`` does in the caller's thread, without a background thread, what is due now.

    **Back-pressure.** At most ``waiting_max`` sessions are watched. Beyond that, ``notify`` returns
    False, and nothing is lost: the session's next notification serves just as well.

    **Errors** of a file are logged by their type, kept in ``errors`` and passed to ``on_error``. A
    failing extractor is none: its job waits (``memory.jobs()``).

    Args:
        extractor: a function with a name and a version; None: rules, which need no model.
        turns: items of the user after which a session is read; None: their number does not count.
        idle_seconds: time without a change after which it is read; None: it does not count.
        confidence: a judgement of less confidence than this counts like a failure; None: none does.
        kinds: kinds of statements that users consent to; None: all.
        waiting_max: most sessions watched at once.
        close_seconds: time that ``close`` waits for the extraction that runs; None: until it ends.
        on_report: called with each ExtractionReport, in the worker's thread.
        on_error: called with each ExtractionFailure, in the worker's thread.

    Raises:
        InvalidOptionError, InvalidItemError: an argument has the wrong type or is out of range.
    """

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        turns: int | None = 4,
        idle_seconds: float | None = 300.0,
        confidence: float | None = 0.5,
        kinds: Iterable[str] | None = None,
        waiting_max: int = WAITING_MAX,
        close_seconds: float | None = None,
        on_report: Callable[[ExtractionReport], object] | None = None,
        on_error: Callable[[ExtractionFailure], object] | None = None,
    ) -> None:
        self._extractor = extractor_or_rules(extractor)
        self._who = ExtractorId.of(self._extractor)
        self._turns = checked_optional_int("turns", turns, least=1)
        self._idle = checked_optional_seconds("idle_seconds", idle_seconds)
        self._confidence = checked_optional_share("confidence", confidence)
        self._kinds = checked_kinds(kinds)
        self._most = checked_int("waiting_max", waiting_max, least=1)
        self._close_seconds = checked_optional_seconds("close_seconds", close_seconds)
        self._on_report = checked_callable("on_report", on_report)
        self._on_error = checked_callable("on_error", on_error)
        self.errors: deque[ExtractionFailure] = deque(maxlen=ERRORS_KEPT)
        """The last failures, oldest first."""
        self._watched: dict[_Key, _Watched] = {}
        self._places: dict[_Key, MemoryPlace] = {}
        self._changed = threading.Condition()
        self._fresh: set[_Key] = set()
        """Sessions that were notified and that the thread has not looked at."""
        self._closed = False
        self._busy = False
        self._pass = threading.Lock()
        """Held during a pass over the sessions: passes of one worker do not overlap."""
        self._thread: threading.Thread | None = None

    # --- lifecycle --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(finish=kind is None)

    def start(self) -> None:
        """Start the background thread.

        Raises:
            ClosedError: the worker was closed, or runs already.
        """
        with self._changed:
            if self._closed or self._thread is not None:
                msg = "the worker was started before: make another one"
                raise ClosedError(msg)
            self._thread = threading.Thread(target=self._loop, name="memcore-memory", daemon=True)
        self._thread.start()

    def close(self, *, finish: bool = True) -> None:
        """Stop; with ``finish``, watched sessions are read to their ends first.

        The extraction that runs is waited for, at most ``close_seconds``; if it takes longer, its
        job is another worker's once its lease ends.
        """
        with self._changed:
            was_closed, self._closed = self._closed, True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(self._close_seconds)
            if self._thread.is_alive():
                return
        if finish and not was_closed:
            with self._pass:
                for key in list(self._watched):
                    self._visit(key, ended=True)

    # --- interface for the runtime ----------------------------------------------------------------

    def notify(self, session: Remembering) -> bool:
        """Watch a session; call it after appends. Thread-safe; never waits.

        Returns:
            True if it will be read when its time comes; False if too many sessions are watched, or
            the worker is closed.

        Raises:
            InvalidOptionError: ``session`` is not a session.
        """
        return self._watch(session, ended=False)

    def end(self, session: Remembering) -> bool:
        """Have a session read soon, since it is over; as ``notify`` otherwise."""
        return self._watch(session, ended=True)

    def daily(self, memory: Memories, day: date | None = None) -> list[ExtractionReport]:
        """Read the sessions of a user that changed last on a day, in the caller's thread.

        Args:
            memory: ``scope.memory`` of the user.
            day: the day in UTC; None: yesterday.

        Raises:
            InvalidOptionError, OptedOutError, ReadOnlyError, StorageError
        """
        if not isinstance(memory, Memories):
            msg = f"memory: expected scope.memory, got {type(memory).__name__}"
            raise InvalidOptionError(msg)
        place = place_of(memory)
        start, stop = _bounds(day, place.now_ms())
        found: list[ExtractionReport] = []
        after: str | None = None
        while True:
            page, after = place.store.read(
                lambda txn, at=after: _page(txn, place, (start, stop), at)  # type: ignore[misc]
            )
            for name in page:
                try:
                    found.append(self._tell(self._read(place, name)))
                except NotFoundError:  # it was deleted meanwhile
                    continue
                except CorruptValueError as exc:  # a damaged session may not affect others
                    self._failed(name, exc)
            if after is None:
                return found

    def run(self) -> list[ExtractionReport]:
        """Do in this thread what is due now; return the reports.

        Errors are kept in ``errors``, as those of the background thread.
        """
        with self._pass:
            return self._run()

    def drained(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the thread has looked at all that was notified; False if time ran out.

        Sessions whose time has not come stay watched.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._thread is None
                    or not self._thread.is_alive()
                    or not (self._fresh or self._busy)
                ),
                timeout_seconds,
            )

    @property
    def pending(self) -> int:
        """Number of sessions watched."""
        return len(self._watched)

    # --- internals --------------------------------------------------------------------------------

    def _watch(self, session: Remembering, *, ended: bool) -> bool:
        memory = getattr(session, "memory", None)
        memory = getattr(memory, "sync", memory)  # that of an asynchronous session
        if not isinstance(memory, Memories):
            msg = f"session: expected a session, got {type(session).__name__}"
            raise InvalidOptionError(msg)
        place = place_of(memory)
        key = (id(place.store), *place.owner, session.id)
        with self._changed:
            known = self._watched.get(key)
            if self._closed or (known is None and len(self._watched) >= self._most):
                return False
            was_ended = known is not None and known.ended
            self._watched[key] = _Watched(place, session.id, ended or was_ended)
            self._remember_place(place)
            self._fresh.add(key)
            self._changed.notify_all()
        return True

    def _loop(self) -> None:
        looked = time.monotonic()
        while True:
            with self._changed:
                pause = self._pause()
                left = None if pause is None else max(looked + pause - time.monotonic(), 0.0)
                self._changed.wait_for(lambda: self._fresh or self._closed, left)
                if self._closed:
                    return
                fresh = list(self._fresh)
                self._fresh.clear()
                self._busy = True
            now = time.monotonic()
            is_time = pause is not None and now >= looked + pause
            looked = now if is_time else looked
            try:
                with self._pass:
                    self._run(None if is_time or not fresh else fresh)
            except (Exception, SystemExit) as exc:  # noqa: BLE001 - others still wait for the thread
                self._failed("", exc)
                with self._changed:  # what the pass did not come to
                    self._fresh.update(key for key in fresh if key in self._watched)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _pause(self) -> float | None:
        """Return the seconds between looks at everything; None if nothing is watched."""
        if not self._watched and not self._places:
            return None
        waits = [_RETRY_SECONDS] if self._places else []
        if self._watched and self._idle is not None:
            waits.append(max(self._idle / 4, 0.05))
        return min(waits, default=None)

    def _run(self, fresh: Iterable[_Key] | None = None) -> list[ExtractionReport]:
        """Look at watched sessions and at jobs that wait; return the reports.

        ``fresh``: only at these sessions, so that a notification costs one look; None: at all.
        """
        found: list[ExtractionReport] = []
        with self._changed:
            watched = list(self._watched) if fresh is None else list(fresh)
            places = list(self._places) if fresh is None else []
        for key in watched:
            report = self._visit(key)
            if report is not None:
                found.append(report)
        for key in places:
            found += self._retry(key)
        return found

    def _visit(self, key: _Key, *, ended: bool = False) -> ExtractionReport | None:
        """Read a session if its time has come."""
        with self._changed:
            watched = self._watched.get(key)
        if watched is None:
            return None
        place, name = watched.place, watched.name
        try:
            left = place.store.read(lambda txn: self._left(txn, place, name))
            if left is None or not left.last:
                self._let_go(key, watched)
                return None
            if not (ended or watched.ended or self._is_due(place, left)):
                return None
            self._let_go(key, watched)
            return self._tell(self._read(place, name))
        except (NotFoundError, OptedOutError):
            self._let_go(key, watched)
        except Exception as exc:  # noqa: BLE001 - one session's failure may not affect others
            self._let_go(key, watched)
            self._failed(name, exc)
        return None

    def _let_go(self, key: _Key, watched: _Watched) -> None:
        """Stop watching a session, unless it was notified again meanwhile."""
        with self._changed:
            if self._watched.get(key) is watched:
                del self._watched[key]

    def _left(self, txn: ReadTxn, place: MemoryPlace, name: str) -> Unread | None:
        scope = place.find(txn)
        session = None if scope is None else names.session_of(txn, scope, name)
        if scope is None or session is None:
            return None
        return unread(txn, scope, session, self._who)

    def _is_due(self, place: MemoryPlace, left: Unread) -> bool:
        if self._turns is not None and left.turns >= self._turns:
            return True
        idle_ms = place.now_ms() - left.updated_ms
        if self._idle is not None and idle_ms >= self._idle * 1000:
            return True
        unsure = left.confidence is not None and left.confidence < (self._confidence or 0.0)
        return left.failed or unsure

    def _read(self, place: MemoryPlace, name: str) -> ExtractionReport:
        report = extract(place, name, self._extractor, upto=None, kinds=self._kinds, early=False)
        if report.error is not None:
            self._remember_place(place)
        return report

    def _remember_place(self, place: MemoryPlace) -> None:
        key = (id(place.store), *place.owner, "")
        with self._changed:
            self._places[key] = place
            while len(self._places) > SCOPES_MAX:
                del self._places[next(iter(self._places))]

    def _retry(self, key: _Key) -> list[ExtractionReport]:
        """Do the jobs of a scope that wait for another attempt, as far as their time has come."""
        with self._changed:
            place = self._places.get(key)
        if place is None:  # it was let go for another one meanwhile
            return []
        found: list[ExtractionReport] = []
        try:
            for row in pending_rows(place, self._who):
                report = self._retry_row(place, row)
                if report is not None:
                    found.append(self._tell(report))
            if not place.store.read(lambda txn: _has_jobs(txn, place, self._who)):
                self._let_place_go(key, place)
        except OptedOutError:
            self._let_place_go(key, place)
        except Exception as exc:  # noqa: BLE001 - one scope's failure may not affect others
            self._let_place_go(key, place)
            self._failed("", exc)
        return found

    def _retry_row(self, place: MemoryPlace, row: JobRow) -> ExtractionReport | None:
        """Do one waiting job; a damaged row keeps no other job waiting.

        Raises:
            OptedOutError, StorageError
        """
        try:
            return run_row(place, self._extractor, row, kinds=self._kinds)
        except CorruptValueError as exc:
            self._failed(row.name, exc)
            return None

    def _let_place_go(self, key: _Key, place: MemoryPlace) -> None:
        """Stop looking after the jobs of a scope, unless it was notified again meanwhile."""
        with self._changed:
            if self._places.get(key) is place:
                del self._places[key]

    def _tell(self, report: ExtractionReport) -> ExtractionReport:
        if self._on_report is not None:
            try:
                self._on_report(report)
            except Exception as exc:  # noqa: BLE001 - a hook may fail in any way
                self._failed(report.session, exc)
        return report

    def _failed(self, name: str, error: BaseException) -> None:
        """Keep and report a failure; only its type is logged, since its text may hold content."""
        _log.error("session %r: no memories extracted: %s", name, type(error).__name__)
        failure = ExtractionFailure(name, error)
        self.errors.append(failure)
        if self._on_error is not None:
            try:
                self._on_error(failure)
            except Exception as exc:  # noqa: BLE001 - a hook may fail in any way
                _log.error("on_error failed: %s", type(exc).__name__)


def _page(
    txn: ReadTxn, place: MemoryPlace, times_ms: tuple[int, int], after: str | None
) -> tuple[list[str], str | None]:
    scope = place.find(txn)
    return ([], None) if scope is None else updated_between(txn, scope, times_ms, after, _PAGE)


def _has_jobs(txn: ReadTxn, place: MemoryPlace, who: ExtractorId) -> bool:
    """Return True if an extractor has jobs in a scope that are not dead."""
    scope = place.find(txn)
    if scope is None:
        return False
    return any(row.who == who and row.state != "dead" for row in jobs_in(txn, scope))


def _bounds(day: object, now_ms: int) -> tuple[int, int]:
    """Return the beginning and the end of a day in UTC, in milliseconds.

    Raises:
        InvalidOptionError: it is no date.
    """
    if day is None:
        day = datetime.fromtimestamp(now_ms / 1000, UTC).date() - timedelta(days=1)
    if not isinstance(day, date):
        msg = f"day: expected a date, got {type(day).__name__}"
        raise InvalidOptionError(msg)
    start = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
    return start, start + 24 * 3600 * 1000
