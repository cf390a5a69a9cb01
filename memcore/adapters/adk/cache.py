"""Decoded events of several sessions, bounded in bytes; the longest unused go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

from google.adk.events.event import Event

__all__ = ["Entry", "EventCache", "Run"]

_OBJECTS_BYTES: Final = 6_000
"""What an event takes in memory beside its texts, about."""


class Entry(NamedTuple):
    """What a row of the log turned out to be."""

    seq: int
    event: Event | None
    """None: it is no event. Shared: never changed, and copied before it is given away."""
    timestamp: float | None
    """When that was; None for what only belongs to another row."""
    size_bytes: int
    """What it takes in memory, about."""

    @classmethod
    def of(cls, seq: int, event: Event | None, timestamp: float | None, stored: int) -> Entry:
        """An entry of a row that takes so many bytes in the file."""
        size = 100 if event is None else _OBJECTS_BYTES + 2 * stored
        return cls(seq, event, timestamp, size)


@dataclass(slots=True)
class Run:
    """The entries of a session from a position to the end of its history, as of one moment."""

    epoch: int
    start: int
    entries: list[Entry]
    size_bytes: int

    @property
    def stop(self) -> int:
        """The position behind the last entry."""
        return self.start + len(self.entries)


class EventCache:
    """Runs by the place of their session. For any thread."""

    __slots__ = ("_lock", "_most_bytes", "_runs", "_total_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runs: OrderedDict[tuple[int, int], Run] = OrderedDict()
        self._total_bytes = 0
        self._lock = Lock()

    def get(self, place: tuple[int, int], epoch: int, count: int) -> Run | None:
        """What is known of a session whose history has that epoch and so many items."""
        with self._lock:
            found = self._runs.get(place)
            if found is None or found.epoch != epoch or found.stop > count:
                return None
            self._runs.move_to_end(place)
            return found

    def put(self, place: tuple[int, int], run: Run) -> None:
        """Remember a run, or the end of it that fits, unless more is known already."""
        run = self._fitting(run)
        with self._lock:
            now = self._runs.get(place)
            if (
                now is not None
                and now.epoch == run.epoch
                and (now.start <= run.start)
                and (now.stop >= run.stop)
            ):
                return
            self._take(place)
            self._runs[place] = run
            self._total_bytes += run.size_bytes
            while self._total_bytes > self._most_bytes:
                self._take(next(iter(self._runs)))

    def _take(self, place: tuple[int, int]) -> None:
        gone = self._runs.pop(place, None)
        if gone is not None:
            self._total_bytes -= gone.size_bytes

    def _fitting(self, run: Run) -> Run:
        size, at = run.size_bytes, 0
        while size > self._most_bytes:
            size -= run.entries[at].size_bytes
            at += 1
        return run if not at else Run(run.epoch, run.start + at, run.entries[at:], size)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._runs.clear()
            self._total_bytes = 0
