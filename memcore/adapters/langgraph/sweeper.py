"""A thread that sweeps every so often."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Lock, Thread, current_thread
from typing import Final

from memcore.errors import ClosedError, MemcoreError

__all__ = ["Sweeper"]

_log = logging.getLogger(__name__)
_MINUTES_DEFAULT: Final = 5


class _Run:
    """One life of the thread."""

    def __init__(self, sweep: Callable[[], int], interval_seconds: float) -> None:
        self._sweep = sweep
        self._interval_seconds = interval_seconds
        self.stopping = Event()
        self.done: Future[None] = Future()
        self.done.add_done_callback(lambda _: self.stopping.set())  # also when it is cancelled
        self.thread = Thread(target=self._loop, name="memcore-ttl-sweeper", daemon=True)

    def _loop(self) -> None:
        while not self.stopping.wait(self._interval_seconds):
            try:
                self._sweep()
            except ClosedError:
                break  # the database was closed: there is nothing left to sweep
            except MemcoreError:
                _log.exception("items that have expired were not removed; trying again later")
        if self.done.set_running_or_notify_cancel():
            self.done.set_result(None)


class Sweeper:
    """Calls ``sweep`` in a daemon thread from ``start`` until ``stop``."""

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._lock = Lock()
        self._run: _Run | None = None

    def start(self, interval_minutes: float | None) -> Future[None]:
        """Start unless it runs; the future of its end. To cancel it is to stop."""
        with self._lock:
            run = self._run
            if run is None or run.stopping.is_set() or not run.thread.is_alive():
                run = self._run = _Run(self._sweep, (interval_minutes or _MINUTES_DEFAULT) * 60)
                run.thread.start()
            return run.done

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop if it runs; whether it has ended."""
        with self._lock:
            run = self._run
        if run is None:
            return True
        run.stopping.set()
        if run.thread is not current_thread() and run.thread.is_alive():
            run.thread.join(timeout_seconds)
        return not run.thread.is_alive()
