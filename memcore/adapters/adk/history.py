"""The events of a session as one snapshot of the file shows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson

from memcore.adapters.adk.cache import Entry, EventCache, Run
from memcore.adapters.adk.events import BEGIN, Stored
from memcore.errors import CorruptValueError
from memcore.log import SessionLog
from memcore.log.item import stored_json
from memcore.model import ItemKind
from memcore.session import Session
from memcore.session.reading import head_of
from memcore.store.base import ReadTxn

__all__ = ["History", "Snapshot"]

_PAGE: Final = 256
"""Events that are decoded before other tasks of the loop have their turn."""
_ALL: Final = 2**62
_BEGIN_ROW: Final = b'{"type":"%s","payload":' % BEGIN.encode()
_Row: TypeAlias = Stored | CorruptValueError


@dataclass(slots=True)
class Snapshot:
    """What one read transaction showed of a session."""

    place: tuple[int, int]
    epoch: int
    revision: int
    count: int
    known: Run
    """What was remembered of it."""
    start: int
    """The position of the first row or entry that was read."""
    parts: list[list[Entry] | list[_Row]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def marker(self) -> str:
        """The session and its revision: which of two writers with the same view comes first."""
        return marker_of(self.place, self.revision)


def marker_of(place: tuple[int, int], revision: int) -> str:
    """What a Session object remembers of the state of the log that it shows."""
    return f"memcore:{place[1]}:{revision}"


class History:
    """Reads events of a session, decoding those that the cache does not know."""

    __slots__ = ("_cache", "_session")

    def __init__(self, session: Session, cache: EventCache) -> None:
        self._session = session
        self._cache = cache

    def look(self, wanted: int | None) -> Snapshot | None:
        """The last rows with ``wanted`` events in them, at least one row; None: all rows.

        None if there is no such session.
        """
        return self._session.reading.run(
            lambda log, txn: self._collect(log, txn, _ALL if wanted is None else max(wanted, 1)),
            None,
        )

    def _collect(self, log: SessionLog, txn: ReadTxn, wanted: int) -> Snapshot:
        head = head_of(log)
        count = log.history.count
        known = self._cache.get(log.place, head.epoch, count) or Run(head.epoch, count, [], 0)
        found = Snapshot(log.place, head.epoch, head.revision, count, known, count)
        while found.start and wanted > 0:
            wanted -= self._extend(found, (log, txn), wanted)
        found.parts.reverse()
        found.state = self._session.state.read(txn)
        return found

    def _extend(self, found: Snapshot, at: tuple[SessionLog, ReadTxn], wanted: int) -> int:
        """Take what stands before the start; how many events it holds."""
        stop, known = found.start, found.known
        if known.start < stop <= known.stop:
            entries = known.entries[max(stop - known.start - wanted, 0) : stop - known.start]
            found.start -= len(entries)
            found.parts.append(entries)
            return sum(entry.event is not None for entry in entries)
        low = known.stop if stop > known.stop else 0
        start = max(low, stop - wanted)
        rows = list(_rows(*at, start, stop))
        if start > low and _is_split(rows[0]):
            start -= 1
            rows[:0] = _rows(*at, start, start + 1)
        found.start = start
        found.parts.append(rows)
        return sum(_is_event(row) for row in rows)

    async def entries(self, found: Snapshot) -> list[Entry]:
        """What the rows turned out to be; remembered for the next time."""
        if len(found.parts) == 1 and found.parts[0] and isinstance(found.parts[0][0], Entry):
            return found.parts[0]
        entries: list[Entry] = []
        for part in found.parts:
            if part and isinstance(part[0], Entry):
                entries += part
                continue
            rest: bytes | None = None
            for at, row in enumerate(part, 1):
                if isinstance(row, CorruptValueError):
                    raise row
                assert isinstance(row, Stored)  # noqa: S101 - an entry is never among rows
                entries.append(_entry_of(row, rest))
                rest = row.rest()
                if not at % _PAGE:
                    await asyncio.sleep(0)
        known, start, run = found.known, found.start, entries
        if known.start < start <= known.stop:
            start, run = known.start, known.entries[: start - known.start] + entries
        size = sum(entry.size_bytes for entry in run)
        self._cache.put(found.place, Run(found.epoch, start, run, size))
        return entries


def _rows(log: SessionLog, txn: ReadTxn, start: int, stop: int) -> list[_Row]:
    return [
        row if isinstance(row, CorruptValueError) else Stored.of(txn, log.scope, row)
        for row in log.rows(txn, start, stop)
    ]


def _is_event(row: _Row) -> bool:
    return isinstance(row, CorruptValueError) or row.is_event


def _is_split(row: _Row) -> bool:
    return isinstance(row, Stored) and row.is_split


def _entry_of(row: Stored, rest: bytes | None) -> Entry:
    event = row.decode(rest)
    size = len(row.body) + len(row.payload or b"") + len(rest or b"")
    if event is not None:
        return Entry.of(row.seq, event, event.timestamp, size)
    timestamp: float | None = None
    if row.body[0] == ItemKind.EVENT:
        _, message = stored_json(row.body, row.flags, row.payload)
        if message.startswith(_BEGIN_ROW):
            timestamp = orjson.loads(message)["payload"]["timestamp"]
    return Entry.of(row.seq, None, timestamp, size)
