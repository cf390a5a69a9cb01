"""Session events read from one snapshot, with a cache of decoded events."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import finalize, ref

from google.adk.events.event import Event

from memcore._fast import Ledger
from memcore.adapters.adk.events import (
    COVERS,
    REST,
    Stored,
    Told,
    is_shown,
    marker_of,
    rewound_spans,
)
from memcore.adapters.adk.names import state_of
from memcore.codec.values import FLAG_BLOB, encode_json
from memcore.errors import CorruptValueError
from memcore.faces import logger
from memcore.log import CachedSession, Head
from memcore.model import ItemKind
from memcore.records import record
from memcore.rows.head import head_key
from memcore.rows.item import Json
from memcore.rows.lifecycle import is_erased
from memcore.session import Session
from memcore.session.read import head_of, read_log
from memcore.session.session import ref_of
from memcore.store.interface import ERASED, Notifier, ReadTxn

__all__ = [
    "Entry",
    "EventCache",
    "EventPage",
    "History",
    "Known",
    "Snapshot",
    "Summary",
    "Waiting",
    "lacks_ids",
    "size_of",
]


# --- Decoded events of several sessions: an LRU cache bounded in bytes ----------------------------

_OBJECTS_BYTES: Final = 6_000
"""The approximate bytes of an event in memory, excluding its texts."""
_OTHER_BYTES: Final = 200
_SUMMARY_BYTES: Final = 500
_SUMMARY_SHARE: Final = 4
_SUSPECTS: Final = 2
_WAITING_MAX: Final = 4096
"""Sessions whose pending calls are cached."""

Span = tuple[int, int]
Place = tuple[int, int]


class Entry(NamedTuple):
    """A decoded row of the log: an event, or a row of another kind."""

    seq: int
    event: Event | None
    """None if the row is not an event. Shared and immutable; copied before it leaves the cache."""
    timestamp: float | None
    """Its timestamp; None for a row that is only a part of another."""
    size_bytes: int
    """Its approximate memory in bytes."""
    covers: Span | None = None
    """For a compaction: the first and last seq covered by its summary."""
    lacks_ids: bool = False
    """True if it makes or answers calls without ids."""

    @property
    def is_compaction(self) -> bool:
        """True if it is a summary of other events."""
        return self.event is not None and self.event.actions.compaction is not None

    @property
    def is_odd(self) -> bool:
        """True if it may change how it or other events are presented."""
        return self.lacks_ids or self.is_compaction


def lacks_ids(event: Event | None) -> bool:
    """Return whether an event makes or answers calls without ids."""
    for part in (event and event.content and event.content.parts) or ():
        told = part.function_call or part.function_response
        if told is not None and not told.id:
            return True
    return False


def size_of(event: Event | None, stored_bytes: int) -> int:
    """The approximate memory of an event in bytes, estimated from its stored size."""
    return _OTHER_BYTES if event is None else _OBJECTS_BYTES + 2 * stored_bytes


class Summary(NamedTuple):
    """A session's list entry, with the rows that it was read from."""

    head: bytes
    header: bytes | None
    """The header of the session's state."""
    state: bytes
    """The session's own state, as members of a JSON object."""
    flags: int
    """The codec flags for decoding the state."""
    last: float
    """The time of its last event, or of its creation."""
    revision: int

    @property
    def size_bytes(self) -> int:
        """Its approximate memory in bytes."""
        return _SUMMARY_BYTES + len(self.head) + len(self.state)


class Waiting(NamedTuple):
    """Unanswered long-running calls before a position, and their positions."""

    epoch: int
    stop: int
    calls: dict[str, int]
    rewound: tuple[Span, ...] = ()
    """Position spans undone by rewinds; each ends with its rewind."""
    empty: tuple[Span, ...] = ()
    """Position spans of content items that are not events: deleted or expired ones."""

    @property
    def hidden(self) -> tuple[Span, ...]:
        """Positions that ADK does not show, as non-adjacent spans."""
        if not self.empty:
            return self.rewound
        found: list[Span] = []
        for span in sorted((*self.rewound, *self.empty)):
            _add_span(found, span)
        return tuple(found)


def _add_span(spans: list[Span], span: Span) -> None:
    """Append a span that starts after the others start, merging it if it touches the last."""
    if spans and span[0] <= spans[-1][1] + 1:
        span = spans[-1][0], max(spans.pop()[1], span[1])
    spans.append(span)


@record(slots=True)
class _Run:
    """The cached entries of a session from a position to the end of its history as of one read."""

    epoch: int
    start: int
    entries: list[Entry]
    size_bytes: int
    is_odd: bool
    live: _Live | None = None
    """The live history left by the last windowed read; detached while a reader extends it."""


class Known(NamedTuple):
    """The cached entries of a session at the positions ``start .. stop``.

    The list may extend past ``stop``.
    """

    start: int
    stop: int
    entries: list[Entry]
    is_odd: bool = False

    def between(self, start: int, stop: int) -> list[Entry]:
        """The entries at the given positions, all of which must be cached."""
        return self.entries[start - self.start : stop - self.start]


class EventCache:
    """A thread-safe cache of entry runs and summaries by session.

    Results of a read that began before an invalidation are not cached: readers pass the
    ``generation`` that they saw before they began.
    """

    __slots__ = (
        "__weakref__", "_lock", "_most_bytes", "_rota", "_runs", "_summaries", "_summary_bytes",
        "_total_bytes", "_waiting", "generation",
    )  # fmt: skip

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.generation = 0
        """The number of invalidations of data that the file no longer holds."""
        self._runs: OrderedDict[Place, _Run] = OrderedDict()
        self._total_bytes = 0
        self._summaries: OrderedDict[Place, Summary] = OrderedDict()
        self._summary_bytes = 0
        self._waiting: OrderedDict[Place, Waiting] = OrderedDict()
        self._rota: list[Place] = []
        self._lock = RLock()  # reentrant: an erasure may be notified during a read

    def listen(self, notifier: Notifier) -> None:
        """Clear this cache whenever the process erases a user, for as long as the cache lives."""
        known = ref(self)

        def forget() -> None:
            cache = known()
            if cache is not None:
                cache.clear()

        notifier.subscribe(ERASED, forget)
        finalize(self, _leave, notifier, forget).atexit = False

    def get(self, place: Place, epoch: int, count: int) -> Known:
        """The cached entries of a session up to ``count`` items, if its history has that epoch."""
        with self._lock:
            found = self._runs.get(place)
            if found is None or found.epoch != epoch or found.start >= count:
                return Known(count, count, [])
            self._runs.move_to_end(place)
            stop = min(found.start + len(found.entries), count)
            return Known(found.start, stop, found.entries, found.is_odd)

    def put(
        self, place: Place, epoch: int, start: int, entries: list[Entry], *, since: int
    ) -> None:
        """Cache the entries from a position to the end, unless more is cached already.

        ``since``: the generation seen before they were read.
        """
        size = sum(entry.size_bytes for entry in entries)
        compacted = any(entry.is_odd for entry in entries)
        run = _Run(epoch, start, entries, size, compacted)
        with self._lock:
            now = self._runs.get(place)
            if since == self.generation and (
                now is None
                or now.epoch != epoch
                or now.start > run.start
                or _stop(now) < _stop(run)
            ):
                if now is not None and now.epoch == epoch:
                    run.live = now.live
                self._take(place)
                self._keep(place, run)

    def take_live(self, place: Place, epoch: int) -> _Live | None:
        """Take the live history left by the last reader; the caller owns it until it is kept."""
        with self._lock:
            run = self._runs.get(place)
            if run is None or run.epoch != epoch:
                return None
            found, run.live = run.live, None
            return found

    def keep_live(self, place: Place, epoch: int, live: _Live) -> None:
        """Keep a live history for the next reader, while events of the session are cached."""
        with self._lock:
            run = self._runs.get(place)
            if run is not None and run.epoch == epoch:
                run.live = live

    @property
    def keeps_nothing(self) -> bool:
        """True if caching of events is disabled, so that decoded ones belong to their reader."""
        return not self._most_bytes

    def wants(self, place: Place) -> bool:
        """Return whether the session was recently read here, so new events are worth caching."""
        return place in self._runs

    def extend(
        self,
        place: Place,
        epoch: int,
        position: int,
        entries: Sequence[Entry],
        *,
        since: int | None = None,
    ) -> None:
        """Cache the entries from a position on, if it is where the cached entries end.

        ``since`` is as in ``put``; None: the caller has just appended them.
        """
        with self._lock:
            run = self._runs.get(place)
            if run is None or run.epoch != epoch or _stop(run) != position:
                return
            if since not in (None, self.generation):
                return
            run.entries += entries
            for entry in entries:  # usually one
                run.size_bytes += entry.size_bytes
                self._total_bytes += entry.size_bytes
                run.is_odd = run.is_odd or entry.is_odd
            self._runs.move_to_end(place)
            if self._total_bytes + self._summary_bytes > self._most_bytes:
                self._shrink()

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self.generation += 1
            self._runs.clear()
            self._summaries.clear()
            self._waiting.clear()
            self._rota.clear()
            self._total_bytes = self._summary_bytes = 0

    def waiting(self, place: Place) -> Waiting | None:
        """The cached pending calls of a session; the reader checks whether they are current."""
        return self._waiting.get(place)

    def wait(self, place: Place, found: Waiting, *, since: int) -> None:
        """Cache the pending calls of a session; ``since`` is as in ``put``."""
        with self._lock:
            if since != self.generation:
                return
            self._waiting.pop(place, None)
            self._waiting[place] = found
            if len(self._waiting) > _WAITING_MAX:
                self._waiting.popitem(last=False)

    def forget(self, place: Place) -> None:
        """Drop everything cached for a session."""
        with self._lock:
            self.generation += 1
            self._take(place)
            self._waiting.pop(place, None)
            gone = self._summaries.pop(place, None)
            self._summary_bytes -= gone.size_bytes if gone else 0

    def suspects(self) -> list[tuple[Place, int | None]]:
        """A few of the cached sessions, each with the epoch of its events.

        Successive calls cycle through all of them. The caller checks whether each was deleted,
        erased or changed by another process, because it may never be read again.
        """
        with self._lock:
            if not self._rota:
                self._rota = list({*self._runs, *self._summaries, *self._waiting})
            found = self._rota[-_SUSPECTS:]
            del self._rota[-_SUSPECTS:]
            runs = {place: self._runs[place].epoch for place in found if place in self._runs}
        return [(place, runs.get(place)) for place in found]

    def summary(self, place: Place) -> Summary | None:
        """The cached list entry of a session; the reader checks whether it is current."""
        return self._summaries.get(place)

    def summarize(self, made: Mapping[Place, Summary], *, since: int) -> None:
        """Cache the list entries of sessions; summaries may use a quarter of the memory.

        ``since`` is as in ``put``.
        """
        with self._lock:
            if since != self.generation:
                return
            for place, each in made.items():
                gone = self._summaries.pop(place, None)
                self._summary_bytes += each.size_bytes - (gone.size_bytes if gone else 0)
                self._summaries[place] = each
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
        """Drop the older half of the only run; readers keep the list they already hold."""
        run = self._runs[place]
        at = (len(run.entries) + 1) // 2
        run.start += at
        run.entries = run.entries[at:]
        size = sum(entry.size_bytes for entry in run.entries)
        self._total_bytes += size - run.size_bytes
        run.size_bytes = size


def _leave(notifier: Notifier, listener: Callable[[], None]) -> None:
    with suppress(ValueError):  # a forked child process has no listener
        notifier.unsubscribe(ERASED, listener)


def _stop(run: _Run) -> int:
    return run.start + len(run.entries)


# --- The events of a session as read from one snapshot --------------------------------------------

_log = logger("memcore.adk")

_PAGE: Final = 128
"""Events to decode before yielding to other tasks of the loop."""
_ALL: Final = 2**62
_WAITING_MAX_HISTORY: Final = 32
"""Maximum number of pending long-running calls added to a window; the newest are kept."""
_ANSWER: Final = b'"functionResponse":'
_BY_USER: Final = b'"author":"user"'
_WANTED: Final = (
    b'"longRunningToolIds":[',
    b'"rewindBeforeInvocationId":"',
    REST.encode(),
)
_EVENT: Final = bytes([ItemKind.EVENT])
_INVOCATION: Final = re.compile(rb'"invocationId":("(?:[^"\\]|\\.)*")')
_Row: TypeAlias = Stored | CorruptValueError


@dataclass(slots=True)
class Snapshot:
    """The result of one read transaction on a session."""

    place: tuple[int, int]
    epoch: int
    revision: int
    known: Known
    """The entries found in the cache."""
    start: int
    """The position of the first row or entry read."""
    since: int
    """The generation of the cache before the read."""
    parts: list[list[Entry] | list[_Row]] = field(default_factory=list)
    ahead: list[list[_Row]] = field(default_factory=list)
    """Rows read from before ``start``: the turns of pending calls."""
    state: dict[str, Any] = field(default_factory=dict)
    is_odd: bool = False
    """True if, once decoded, entries may have to be presented differently than stored."""
    created: float = 0.0
    """The session's creation time, in seconds since the Unix epoch."""
    changed: float = 0.0
    """The time of its last change by the writer's clock, in seconds since the Unix epoch."""

    @property
    def marker(self) -> str:
        """The session and its revision, for detecting stale writers."""
        return marker_of(self.place, self.revision)


class EventPage(NamedTuple):
    """A page of a session's events, and the cursor of the next page."""

    events: list[Event]
    cursor: int | None
    """The cursor of the next page; None if this is the last one."""


class History:
    """Reads events of a session, decoding those that are not cached."""

    __slots__ = ("_cache", "_session")

    def __init__(self, session: Session, cache: EventCache) -> None:
        self._session = session
        self._cache = cache

    def look(self, wanted: int | None, *, pair_safe: bool = False) -> Snapshot | None:
        """The last rows containing ``wanted`` events, at least one; None: all rows.

        Args:
            wanted: the number of events.
            pair_safe: make them legal for Gemini: they begin with the user, include the calls they
                answer, and are preceded by the turns of pending long-running calls.

        Returns:
            None if the session does not exist.
        """
        least = _ALL if wanted is None else max(wanted, 1)
        is_safe, since = pair_safe and bool(wanted), self._cache.generation
        return read_log(
            ref_of(self._session),
            lambda log, txn: self._collect(log, txn, least, since, pair_safe=is_safe),
            None,
        )

    def page(self, cursor: int | None, size: int, *, newest_first: bool) -> Snapshot | None:
        """Rows containing up to ``size`` events, after or before the seq of a cursor.

        Args:
            cursor: the seq of the last event of the previous page; None: the first page.
            size: the number of events.
            newest_first: iterate backwards from the end.

        Returns:
            None if the session does not exist.
        """
        since = self._cache.generation

        def work(log: CachedSession, txn: ReadTxn) -> Snapshot:
            head, count = head_of(log), log.history.count
            known = self._cache.get(log.place, head.epoch, count)
            if newest_first:
                stop = count if cursor is None else log.history.position_from(cursor)
                found = Snapshot(log.place, head.epoch, head.revision, known, stop, since)
                wanted = size
                while found.start and wanted > 0:
                    wanted -= _extend(found, (log, txn), wanted)
                found.parts.reverse()
                return found
            start = 0 if cursor is None else log.history.position_from(cursor + 1)
            found = Snapshot(log.place, head.epoch, head.revision, known, start, since)
            rows: list[_Row] = []
            left = size
            while left > 0 and start < count:
                more = _rows(log, txn, start, min(start + left, count))
                rows += more
                start += len(more)
                left -= sum(map(_is_event, more))
            found.parts.append(rows)
            return found

        return read_log(ref_of(self._session), work, None)

    def _collect(
        self, log: CachedSession, txn: ReadTxn, wanted: int, since: int, *, pair_safe: bool
    ) -> Snapshot:
        head = head_of(log)
        for place, epoch in self._cache.suspects():
            if place != log.place and _is_gone(txn, place, epoch):
                self._cache.forget(place)
        known = self._cache.get(log.place, head.epoch, log.history.count)
        found = Snapshot(log.place, head.epoch, head.revision, known, log.history.count, since)
        while found.start and wanted > 0:
            wanted -= _extend(found, (log, txn), wanted)
        found.parts.reverse()
        if pair_safe:
            self._make_legal(found, log, txn, head)
        found.state = state_of(self._session.state.read(txn))
        found.created = head.created_ms / 1000
        found.changed = head.updated_ms / 1000
        return found

    def _make_legal(self, found: Snapshot, log: CachedSession, txn: ReadTxn, head: Head) -> None:
        """Extend the window to begin with a user message and to include pending calls.

        Both are decided on the live history, as presented to the model.
        """
        known = self._waiting(found, log, txn, head)
        earliest = min([found.start, *known.calls.values()])
        live = self._live(log, txn, head, known.hidden, earliest)
        start = live.start(found.start)
        while found.start > start:
            parts = found.parts
            found.parts = []
            _extend(found, (log, txn), found.start - start)
            found.parts += parts
        _leave_out(found, start - found.start)
        waiting = [at for at in sorted(set(known.calls.values())) if at < found.start]
        for first, stop in live.turns(waiting[-_WAITING_MAX_HISTORY:], found.start):
            rows = _rows(log, txn, first, stop)
            if first and _is_split(rows[0]):
                rows[:0] = _rows(log, txn, first - 1, first)
            found.ahead.append(rows)

    def _live(
        self, log: CachedSession, txn: ReadTxn, head: Head, hidden: tuple[Span, ...], earliest: int
    ) -> _Live:
        """The live history, at least from a position on; extends that of the last reader."""
        before = self._cache.take_live(log.place, head.epoch) if hidden else None
        live = _Live.of(log, txn, head, hidden, earliest, before=before)
        if live.hidden:
            self._cache.keep_live(log.place, head.epoch, live)
        return live

    def _waiting(self, found: Snapshot, log: CachedSession, txn: ReadTxn, head: Head) -> Waiting:
        """The unanswered long-running calls, with positions; reads each row once.

        After a rewind all rows are read again, because it may undo calls and answers to them.
        """
        known, count = self._cache.waiting(log.place), log.history.count
        if known is None or known.epoch != head.epoch or known.stop > count:
            known = Waiting(head.epoch, 0, {})
        if known.stop == count:
            return known
        empty = list(known.empty)
        marks = list(_marks((log, txn), known.stop, count, empty=empty))
        calls, rewound = dict(known.calls), known.rewound
        if any(mark.told.rewinds_to for mark in marks):
            calls, rewound = {}, ()
            goals = {mark.told.rewinds_to or "" for mark in _marks((log, txn), 0, count)}
            marks = list(_marks((log, txn), 0, count, goals))
            spans = rewound_spans([(each.told.invocation, each.told.rewinds_to) for each in marks])
            for first, last in reversed(spans):
                rewound = ((marks[first].first, marks[last].position), *rewound)
                del marks[first : last + 1]
        for mark in marks:
            calls.update(dict.fromkeys(mark.told.long_ids, mark.position))
            for id_ in mark.answered:
                calls.pop(id_, None)
        known = Waiting(head.epoch, count, calls, rewound, tuple(empty))
        self._cache.wait(log.place, known, since=found.since)
        return known

    async def entries(self, found: Snapshot, *, keep: bool = True) -> list[Entry]:
        """Decode the rows of a snapshot; cache the entries if ``keep``.

        Without ``keep`` only the timestamps matter: a damaged row gets that of the last change.

        Raises:
            CorruptValueError: a row is damaged.
        """
        found.is_odd = found.known.is_odd
        ahead = [
            entry for rows in found.ahead for entry in await self._made(rows, found, keep=True)
        ]
        is_new, entries = False, list[Entry]()
        for part in found.parts:
            is_new = is_new or bool(part and not isinstance(part[0], Entry))
            entries += await self._made(part, found, keep=keep)
        if keep and is_new and not self._cache.keeps_nothing:
            self._remember(found, entries)
        return ahead + entries if ahead else entries

    def _remember(self, found: Snapshot, entries: list[Entry]) -> None:
        """Cache the entries read; those after the cached ones are appended in place."""
        known, place, epoch = found.known, found.place, found.epoch
        if known.start <= found.start <= known.stop and known.start < known.stop:
            behind = entries[known.stop - found.start :]
            self._cache.extend(place, epoch, known.stop, behind, since=found.since)
        else:  # the cache needs its own list
            self._cache.put(place, epoch, found.start, entries.copy(), since=found.since)

    async def paged(self, found: Snapshot) -> list[tuple[int, Event]]:
        """The seqs and events of a page; newly decoded ones are not cached.

        Raises:
            CorruptValueError: a row is damaged.
        """
        entries = [
            each for part in found.parts for each in await self._made(part, found, keep=True)
        ]
        return [(entry.seq, entry.event) for entry in entries if entry.event is not None]

    async def _made(
        self, part: list[Entry] | list[_Row], found: Snapshot, *, keep: bool
    ) -> list[Entry]:
        """The entries of rows, decoded or taken from the cache."""
        entries: list[Entry] = []
        rest: Json | None = None
        for at, row in enumerate(part, 1):
            if isinstance(row, Entry):
                entries.append(row)
                continue
            if isinstance(row, CorruptValueError):
                if keep:
                    raise row
                _log.warning("the last event of a session is damaged: %s", row)
                entries.append(Entry(0, None, found.changed, 0))
                continue
            entries.append(self._entry(row, rest))
            rest = row.rest()
            if not at % _PAGE:
                await asyncio.sleep(0)
        found.is_odd |= any(entry.is_odd for entry in entries)
        return entries

    def _entry(self, row: Stored, rest: Json | None) -> Entry:
        event = row.decode(rest)
        size = size_of(
            event, len(row.body) + len(row.payload or b"") + (len(rest.text) if rest else 0)
        )
        if event is not None:
            covers = None
            if event.actions.compaction is not None:
                covers = self._proven(row.said(rest).get(COVERS))
            return Entry(row.seq, event, event.timestamp, size, covers, lacks_ids(event))
        return Entry(row.seq, None, row.timestamp(), size)

    def _proven(self, told: Any) -> tuple[int, int] | None:
        """The seqs that a compaction covers, if those items are unchanged."""
        match told:
            case [int() as lo, int() as hi, str() as chain] if 0 <= lo <= hi < _ALL:
                found = self.chain_at(hi)
                return (lo, hi) if found is not None and f"{found:016x}" == chain else None
            case _:
                return None

    def chain_at(self, seq: int) -> int | None:
        """The prefix hash at the seq of a live item; None if there is none."""
        return read_log(
            ref_of(self._session), lambda log, txn: log.history.chain_at(txn, log.scope, seq), None
        )


def _extend(found: Snapshot, at: tuple[CachedSession, ReadTxn], wanted: int) -> int:
    """Prepend rows to the snapshot; return the number of events among them."""
    stop, known = found.start, found.known
    if known.start < stop <= known.stop:
        entries = known.between(max(stop - wanted, known.start), stop)
        found.start -= len(entries)
        found.parts.append(entries)
        return sum(entry.event is not None for entry in entries)
    low = known.stop if stop > known.stop else 0
    start = max(low, stop - wanted)
    rows = _rows(*at, start, stop)
    if start and _is_split(rows[0]):
        start -= 1
        rows[:0] = _rows(*at, start, start + 1)
    found.start = start
    found.parts.append(rows)
    return sum(_is_event(row) for row in rows)


def _is_gone(txn: ReadTxn, place: tuple[int, int], epoch: int | None) -> bool:
    """Return whether the cached data of a session no longer match the file."""
    key = head_key(*place)
    stored = None if is_erased(txn, place[0]) else txn.get(key)
    if stored is None:
        return True
    try:
        head = Head.unpack(key, stored)
    except CorruptValueError:
        return True
    return head.hidden or epoch not in (None, head.epoch)


@record(slots=True)
class _Live:
    """The part of a history that ADK shows, as a ledger without the hidden items."""

    ledger: Ledger
    offset: int
    """The position of the first item of the ledger."""
    hidden: tuple[Span, ...]
    """The position spans, between items of the ledger, of rewound, deleted or expired items."""
    stop: int = 0
    """The position after the last item in the ledger or hidden."""

    @classmethod
    def of(
        cls,
        log: CachedSession,
        txn: ReadTxn,
        head: Head,
        hidden: tuple[Span, ...],
        position: int,
        *,
        before: _Live | None = None,
    ) -> _Live:
        """The live history, at least from ``position`` on.

        ``before`` is an earlier one of the same epoch, extended in place if possible.
        """
        recent = log.recent(txn, head) if hidden else log.covering(txn, head, position)
        if not hidden or hidden[-1][1] < recent.offset <= position:
            return cls(recent.ledger, recent.offset, ())
        # A rewound call is not pending, and no window may start in a hidden span; a ledger of the
        # whole history cannot represent this.
        count = log.history.count
        if before is None or before.stop > count or not before.is_part_of(hidden):
            before = cls(log.load(txn, stop=hidden[0][0]), 0, hidden[:1], hidden[0][1] + 1)
        for first, last in hidden[len(before.hidden) :]:
            log.load_into(txn, before.ledger, log.history, before.stop, first)
            before.stop = last + 1
        log.load_into(txn, before.ledger, log.history, before.stop, count)
        before.hidden, before.stop = hidden, count
        return before

    def is_part_of(self, hidden: tuple[Span, ...]) -> bool:
        """Return whether ``hidden`` only adds spans after the end of this history."""
        known = len(self.hidden)
        later = hidden[known:]
        return hidden[:known] == self.hidden and (not later or later[0][0] >= self.stop)

    def start(self, position: int) -> int:
        """The last valid window start at or before ``position``; else the first one after it.

        If that would drop user messages, or there is no valid start: the last position that splits
        no pair. Rewound events are in the window either completely or not at all.
        """
        for first, last in self.hidden:
            if first <= position <= last:  # a rewind without its target has no effect
                position = first
        at = self._place(position)
        found = self._start(at)
        return position if found == at else self._position(found)

    def _start(self, at: int) -> int:
        ledger, first = self.ledger, at
        while first < len(ledger) and ledger.kind_at(first) == ItemKind.EVENT:
            first += 1
        starts = ledger.safe_cuts(starts=True)
        before = bisect_right(starts, at) - 1
        is_start = first < len(ledger) and ledger.kind_at(first) == ItemKind.USER
        if first == len(ledger) or (is_start and ledger.is_safe(at) and ledger.is_safe(first)):
            return at
        if before >= 0:
            return starts[before]
        if starts and all(ledger.kind_at(each) != ItemKind.USER for each in range(at, starts[0])):
            return starts[0]
        return max(ledger.cut_at_most(at), 0)

    def turns(self, waiting: Sequence[int], stop: int) -> Iterator[Span]:
        """The spans of the turns before ``stop`` that contain the items at the given positions.

        If there is no user turn, a turn begins wherever no pair is split.
        """
        cuts = self.ledger.safe_cuts()
        starts = self.ledger.safe_cuts(starts=True) or cuts
        cuts.append(len(self.ledger))
        end, most = 0, self._place(stop)
        for position in waiting:
            at = self._place(position)
            before = bisect_right(starts, at) - 1
            if at < end or before < 0:
                continue
            start, end = max(starts[before], end), min(cuts[bisect_right(cuts, at)], most)
            yield from self._between(start, end)

    def _between(self, start: int, end: int) -> Iterator[Span]:
        """The position spans of consecutive ledger items, excluding the hidden ones."""
        first, stop = self._position(start), self._position(end - 1) + 1
        for gone, last in self.hidden:
            if first <= gone < stop:
                yield first, gone
                first = last + 1
        yield first, stop

    def _place(self, position: int) -> int:
        """The number of ledger items before a position."""
        gone = sum(max(min(last + 1, position) - first, 0) for first, last in self.hidden)
        return position - gone - self.offset

    def _position(self, place: int) -> int:
        """The position of a ledger item."""
        position = place + self.offset
        for first, last in self.hidden:
            if position >= first:
                position += last + 1 - first
        return position


def _leave_out(found: Snapshot, count: int) -> None:
    """Drop the first ``count`` rows or entries, except those that are part of the next event."""
    while count > 0:
        part = found.parts[0]
        if count >= len(part):
            del found.parts[0]
        else:
            following = part[count]
            if isinstance(following, Stored) and following.is_split:
                count -= 1
            found.parts[0] = part[count:]
            found.start += count
            return
        found.start += len(part)
        count -= len(part)


class _Mark(NamedTuple):
    """An event that affects long-running calls."""

    first: int
    """The position of its first row."""
    position: int
    """The position of its last row."""
    told: Told
    answered: list[str]
    """The calls it answers, if its author is the user."""


def _marks(
    at: tuple[CachedSession, ReadTxn],
    start: int,
    stop: int,
    goals: Collection[str] = (),
    *,
    empty: list[Span] | None = None,
) -> Iterator[_Mark]:
    """Yield the events that affect long-running calls at the positions ``start .. stop``.

    Rows that their bytes show to be irrelevant are skipped without decoding; damaged rows are
    skipped, too.

    Args:
        at: the log and its transaction.
        start: the first position.
        stop: the position after the last.
        goals: invocations whose events are all included.
        empty: receives the positions of content items that are not events.
    """
    log, txn = at
    named = {encode_json(goal)[0] for goal in goals}
    before: tuple[int, Json] | None = None
    for row in log.rows(txn, start, stop):
        if isinstance(row, CorruptValueError):
            before = None
            continue
        position, _, flags, body = row
        if empty is not None and _is_empty(body):
            _add_span(empty, (position, position))
        is_large = bool(flags & FLAG_BLOB)
        by_user = _BY_USER in body and (is_large or _ANSWER in body)
        is_wanted = by_user or any(each in body for each in _WANTED) or before is not None
        is_hidden = is_large and body[:1] == _EVENT  # its content is stored outside the row
        is_named = bool(named) and not named.isdisjoint(_INVOCATION.findall(body))
        if not (is_wanted or is_hidden or is_named):
            continue
        held, before = before, None
        with suppress(CorruptValueError):
            stored = Stored.of(txn, log.scope, row)
            rest = stored.rest()
            if rest is not None:
                before = position, rest
            elif stored.is_event:
                told = stored.told(held and held[1])
                answered = stored.pairs().answered if told.author == "user" else []
                first = position if held is None or not stored.is_split else held[0]
                yield _Mark(first, position, told, answered)


def _rows(log: CachedSession, txn: ReadTxn, start: int, stop: int) -> list[_Row]:
    return [
        row if isinstance(row, CorruptValueError) else Stored.of(txn, log.scope, row)
        for row in log.rows(txn, start, stop)
    ]


def _is_empty(body: bytes) -> bool:
    """Return whether a row is a content item that ADK does not show."""
    with suppress(CorruptValueError):
        return body[:1] != _EVENT and not is_shown(body)
    return False


def _is_event(row: _Row) -> bool:
    return isinstance(row, CorruptValueError) or row.is_event


def _is_split(row: _Row) -> bool:
    return isinstance(row, Stored) and row.is_split
