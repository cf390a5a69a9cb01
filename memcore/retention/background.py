"""A thread that sweeps a database at intervals."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Self

from memcore.errors import ClosedError
from memcore.retention.report import SweepReport

__all__ = ["Sweeper"]


class Sweeper:
    """Sweeps every so many seconds until it is stopped; a context manager.

    Every sweep goes piece by piece, so writers wait for one small transaction at most. What a sweep
    raises is kept in ``error`` and given to ``failed``; the next one tries again.

    Args:
        sweep: one bounded sweep.
        interval_seconds: between the end of one and the beginning of the next; a sweep that did not
            get to its end is gone on with at once.
        failed: called with what a sweep raised, on its thread.
    """

    def __init__(
        self,
        sweep: Callable[[], SweepReport],
        interval_seconds: float,
        *,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self._sweep = sweep
        self._interval = interval_seconds
        self._failed = failed
        self._stopped = Event()
        self._process = os.getpid()
        self.last: SweepReport | None = None
        """The report of the last sweep."""
        self.sweeps = 0
        """How many sweeps came to an end."""
        self.error: Exception | None = None
        """What the last sweep raised; None if it did not."""
        self._thread = Thread(target=self._run, name="memcore-sweeper", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it goes on sweeping."""
        return self._process == os.getpid() and self._thread.is_alive()

    def stop(self) -> None:
        """End it; waits for the piece that is under way. Idempotent."""
        self._stopped.set()
        if self.running:
            self._thread.join()

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopped.is_set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            again = False
            try:
                self.last, self.error = self._sweep(), None
                self.sweeps += 1
                again = not self.last.complete and self.last.total > 0
            except ClosedError:
                return
            except Exception as exc:  # noqa: BLE001 - told, and tried again
                self.error = exc
                if self._failed is not None:
                    self._failed(exc)
            if not again and self._stopped.wait(self._interval):
                return
