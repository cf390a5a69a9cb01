"""Decoded events of several sessions, bounded in bytes; the longest unused go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Final, NamedTuple
from weakref import finalize, ref

from google.adk.events.event import Event

from memcore.store.bell import ERASED, Bell

__all__ = ["Entry", "EventCache", "Known", "Summary", "Waiting", "lacks_ids", "size_of"]

_OBJECTS_BYTES: Final = 6_000
"""What an event takes in memory beside its texts, about."""
_OTHER_BYTES: Final = 200
_SUMMARY_BYTES: Final = 500
_SUMMARY_SHARE: Final = 4
_SUSPECTS: Final = 2
_WAITING_MAX: Final = 4096
"""Sessions whose waiting calls are remembered."""

Span = tuple[int, int]
Place = tuple[int, int]


class Entry(NamedTuple):
    """What a row of the log turned out to be."""

    seq: int
    event: Event | None
    """None: it is no event. Shared: never changed, and copied before it is given away."""
    timestamp: float | None
    """When that was; None for what only belongs to another row."""
    size_bytes: int
    """What it takes in memory, about."""
    covers: Span | None = None
    """Of a compaction the first and the last seq that its summary stands for."""
    lacks_ids: bool = False
    """Whether it makes or answers calls that have no ids."""

    @property
    def is_compaction(self) -> bool:
        """Whether it is a summary of other events."""
        return self.event is not None and self.event.actions.compaction is not None

    @property
    def is_odd(self) -> bool:
        """Whether it may have to be shown otherwise than it is stored, or to change what is."""
        return self.lacks_ids or self.is_compaction


def lacks_ids(event: Event | None) -> bool:
    """Whether an event makes or answers calls that have no ids."""
    for part in (event and event.content and event.content.parts) or ():
        told = part.function_call or part.function_response
        if told is not None and not told.id:
            return True
    return False


def size_of(event: Event | None, stored_bytes: int) -> int:
    """What an event takes in memory that takes so much in the file, about."""
    return _OTHER_BYTES if event is None else _OBJECTS_BYTES + 2 * stored_bytes


class Summary(NamedTuple):
    """What a list shows of a session, and the rows that it was read from."""

    head: bytes
    header: bytes | None
    """That of its state."""
    state: tuple[bytes, int]
    """What is its own of the state, as it stands in a JSON object, and flags."""
    last: float
    """When its last event was, or when it was created."""
    marker: str

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return _SUMMARY_BYTES + len(self.head) + len(self.state[0])


class Waiting(NamedTuple):
    """The calls up to a position that take long and that no user answered, and where they are."""

    epoch: int
    stop: int
    calls: dict[str, int]


@dataclass(slots=True)
class _Run:
    """The entries of a session from a position to the end of its history, as of one moment."""

    epoch: int
    start: int
    entries: list[Entry]
    size_bytes: int
    is_odd: bool


class Known(NamedTuple):
    """The entries of a session at the positions ``start .. stop``; the list may go on."""

    start: int
    stop: int
    entries: list[Entry]
    is_odd: bool = False

    def between(self, start: int, stop: int) -> list[Entry]:
        """The entries at positions, all of which are known."""
        return self.entries[start - self.start : stop - self.start]


class EventCache:
    """Runs of entries, and summaries, by the place of their session. For any thread."""

    __slots__ = (
        "__weakref__", "_lock", "_most_bytes", "_rota", "_runs", "_summaries", "_summary_bytes",
        "_total_bytes", "_waiting",
    )  # fmt: skip

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runs: OrderedDict[Place, _Run] = OrderedDict()
        self._total_bytes = 0
        self._summaries: OrderedDict[Place, Summary] = OrderedDict()
        self._summary_bytes = 0
        self._waiting: OrderedDict[Place, Waiting] = OrderedDict()
        self._rota: list[Place] = []
        self._lock = RLock()  # an erasure may be told of from inside of a read

    def listen(self, bell: Bell) -> None:
        """Forget everything whenever this process erases a user, for as long as the cache lives."""
        known = ref(self)

        def forget() -> None:
            cache = known()
            if cache is not None:
                cache.clear()

        bell.listen(ERASED, forget)
        finalize(self, _leave, bell, forget).atexit = False

    def get(self, place: Place, epoch: int, count: int) -> Known:
        """What is known of a session whose history has that epoch and so many items."""
        with self._lock:
            found = self._runs.get(place)
            if found is None or found.epoch != epoch or found.start >= count:
                return Known(count, count, [])
            self._runs.move_to_end(place)
            stop = min(found.start + len(found.entries), count)
            return Known(found.start, stop, found.entries, found.is_odd)

    def put(self, place: Place, epoch: int, start: int, entries: list[Entry]) -> None:
        """Remember the entries from a position on, or the end of them, unless more is known."""
        size = sum(entry.size_bytes for entry in entries)
        compacted = any(entry.is_odd for entry in entries)
        run = _Run(epoch, start, entries, size, compacted)
        with self._lock:
            now = self._runs.get(place)
            if (
                now is None
                or now.epoch != epoch
                or now.start > run.start
                or _stop(now) < _stop(run)
            ):
                self._take(place)
                self._keep(place, run)

    def wants(self, place: Place) -> bool:
        """Whether the session was read here lately: then what is appended will be, too."""
        return place in self._runs

    def add(self, place: Place, epoch: int, position: int, entry: Entry) -> None:
        """Remember the entry that was appended at a position, if what stands before it is known."""
        with self._lock:
            run = self._runs.get(place)
            if run is None or run.epoch != epoch or _stop(run) != position:
                return
            run.entries.append(entry)
            run.size_bytes += entry.size_bytes
            run.is_odd |= entry.is_odd
            self._total_bytes += entry.size_bytes
            self._runs.move_to_end(place)
            self._shrink()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._runs.clear()
            self._summaries.clear()
            self._waiting.clear()
            self._rota.clear()
            self._total_bytes = self._summary_bytes = 0

    def waiting(self, place: Place) -> Waiting | None:
        """What was found of a session's calls that wait; whether it holds is for the reader."""
        return self._waiting.get(place)

    def wait(self, place: Place, found: Waiting) -> None:
        """Remember the calls of a session that wait."""
        with self._lock:
            self._waiting.pop(place, None)
            self._waiting[place] = found
            if len(self._waiting) > _WAITING_MAX:
                self._waiting.popitem(last=False)

    def forget(self, place: Place) -> None:
        """Forget all of a session."""
        with self._lock:
            self._take(place)
            self._waiting.pop(place, None)
            gone = self._summaries.pop(place, None)
            self._summary_bytes -= gone.size_bytes if gone else 0

    def suspects(self) -> list[tuple[Place, int | None]]:
        """A few of the sessions that are remembered, with the epoch that their events are of.

        Every call names others, till all had their turn: for each the caller sees whether it was
        deleted, erased or changed by somebody else, as nobody may ask for it again.
        """
        with self._lock:
            if not self._rota:
                self._rota = list({*self._runs, *self._summaries, *self._waiting})
            found = self._rota[-_SUSPECTS:]
            del self._rota[-_SUSPECTS:]
            runs = {place: self._runs[place].epoch for place in found if place in self._runs}
        return [(place, runs.get(place)) for place in found]

    def summary(self, place: Place) -> Summary | None:
        """What was listed of a session last; whether it still holds is for the reader to see."""
        return self._summaries.get(place)

    def summarize(self, place: Place, made: Summary) -> None:
        """Remember what is listed of a session; summaries have a quarter of the memory."""
        with self._lock:
            gone = self._summaries.pop(place, None)
            self._summary_bytes += made.size_bytes - (gone.size_bytes if gone else 0)
            self._summaries[place] = made
            while self._summary_bytes > self._most_bytes // _SUMMARY_SHARE:
                _, oldest = self._summaries.popitem(last=False)
                self._summary_bytes -= oldest.size_bytes

    def _take(self, place: Place) -> None:
        gone = self._runs.pop(place, None)
        if gone is not None:
            self._total_bytes -= gone.size_bytes

    def _keep(self, place: Place, run: _Run) -> None:
        self._runs[place] = run
        self._total_bytes += run.size_bytes
        self._shrink()

    def _shrink(self) -> None:
        while self._total_bytes + self._summary_bytes > self._most_bytes and self._runs:
            place = next(iter(self._runs))
            if len(self._runs) > 1:
                self._take(place)
            else:
                self._halve(place)

    def _halve(self, place: Place) -> None:
        """Forget the older half of the only run; who reads it has the list as it was."""
        run = self._runs[place]
        at = (len(run.entries) + 1) // 2
        run.start += at
        run.entries = run.entries[at:]
        size = sum(entry.size_bytes for entry in run.entries)
        self._total_bytes += size - run.size_bytes
        run.size_bytes = size


def _leave(bell: Bell, listener: Callable[[], None]) -> None:
    with suppress(ValueError):  # in the child of a fork nobody listens
        bell.leave(ERASED, listener)


def _stop(run: _Run) -> int:
    return run.start + len(run.entries)
