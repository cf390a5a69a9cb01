"""The events of a session as one snapshot of the file shows them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from memcore.adapters.adk.cache import Entry, EventCache, Known, size_of
from memcore.adapters.adk.events import COVERS, Stored
from memcore.adapters.adk.labels import state_of
from memcore.adapters.adk.markers import marker_of
from memcore.errors import CorruptValueError
from memcore.log import SessionLog
from memcore.session import Session
from memcore.session.reading import head_of
from memcore.store.base import ReadTxn

__all__ = ["History", "Snapshot"]

logger = logging.getLogger("memcore.adk")

_PAGE: Final = 128
"""Events that are decoded before other tasks of the loop have their turn."""
_ALL: Final = 2**62
_Row: TypeAlias = Stored | CorruptValueError


@dataclass(slots=True)
class Snapshot:
    """What one read transaction showed of a session."""

    place: tuple[int, int]
    epoch: int
    revision: int
    known: Known
    """What was remembered of it."""
    start: int
    """The position of the first row or entry that was read."""
    parts: list[list[Entry] | list[_Row]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    has_compaction: bool = False
    """Whether there may be a compaction among its entries, once these are made."""
    created: float = 0.0
    """When the session was created, in seconds."""
    changed: float = 0.0
    """When it was last changed by the clock of the file's machine, in seconds."""

    @property
    def marker(self) -> str:
        """The session and its revision: which of two writers with the same view comes first."""
        return marker_of(self.place, self.revision)


class History:
    """Reads events of a session, decoding those that the cache does not know."""

    __slots__ = ("_cache", "_session")

    def __init__(self, session: Session, cache: EventCache) -> None:
        self._session = session
        self._cache = cache

    def look(self, wanted: int | None, *, pair_safe: bool = False) -> Snapshot | None:
        """The last rows with ``wanted`` events in them, at least one event; None: all rows.

        Args:
            wanted: how many events.
            pair_safe: and before them what holds the calls that they answer.

        Returns:
            None if there is no such session.
        """
        least = _ALL if wanted is None else max(wanted, 1)
        is_safe = pair_safe and bool(wanted)
        return self._session.reading.run(
            lambda log, txn: self._collect(log, txn, least, pair_safe=is_safe), None
        )

    def _collect(self, log: SessionLog, txn: ReadTxn, wanted: int, *, pair_safe: bool) -> Snapshot:
        head = head_of(log)
        known = self._cache.get(log.place, head.epoch, log.history.count)
        found = Snapshot(log.place, head.epoch, head.revision, known, log.history.count)
        while found.start and wanted > 0:
            wanted -= _extend(found, (log, txn), wanted)
        if pair_safe and found.start:
            recent = log.covering(txn, head, found.start)
            cut = recent.ledger.cut_at_most(found.start - recent.offset)
            safe = recent.offset + max(cut, 0)
            while found.start > safe:
                _extend(found, (log, txn), found.start - safe)
        found.parts.reverse()
        found.state = state_of(self._session.state.read(txn))
        found.created = head.created_ms / 1000
        found.changed = head.updated_ms / 1000
        return found

    async def entries(self, found: Snapshot, *, keep: bool = True) -> list[Entry]:
        """What the rows turned out to be; remembered for the next time if ``keep`` says so.

        Where it does not, nothing but the times is asked for: a damaged row has that of the last
        change.

        Raises:
            CorruptValueError: a row is damaged.
        """
        found.has_compaction = found.known.has_compaction
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
                    if keep:
                        raise row
                    logger.warning("the last event of a session is damaged: %s", row)
                    entries.append(Entry(0, None, found.changed, 0))
                    continue
                assert isinstance(row, Stored)  # noqa: S101 - an entry is never among rows
                entries.append(self._entry(row, rest))
                rest = row.rest()
                if not at % _PAGE:
                    await asyncio.sleep(0)
            found.has_compaction |= any(entry.is_compaction for entry in entries)
        if not keep:
            return entries
        start, run = found.start, entries.copy()  # the cache goes on with its own
        if found.known.start < start <= found.known.stop:
            start = found.known.start
            run = found.known.between(start, found.start) + entries
        self._cache.put(found.place, found.epoch, start, run)
        return entries

    def _entry(self, row: Stored, rest: bytes | None) -> Entry:
        event = row.decode(rest)
        size = size_of(event, len(row.body) + len(row.payload or b"") + len(rest or b""))
        if event is not None:
            covers = None
            if event.actions.compaction is not None:
                covers = self._proven(row.said(rest).get(COVERS))
            return Entry(row.seq, event, event.timestamp, size, covers)
        return Entry(row.seq, None, row.timestamp(), size)

    def _proven(self, told: Any) -> tuple[int, int] | None:
        """The seqs that a compaction covers, if these are still the items that it covered."""
        if not isinstance(told, list):
            return None
        lo, hi, chain = told
        return (lo, hi) if self.chain_at(hi) == int(chain, 16) else None

    def chain_at(self, seq: int) -> int | None:
        """The prefix hash at a live seq, None for another."""
        return self._session.reading.run(
            lambda log, txn: log.history.chain_at(txn, log.scope, seq), None
        )


def _extend(found: Snapshot, at: tuple[SessionLog, ReadTxn], wanted: int) -> int:
    """Take what stands before the start; how many events it holds."""
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


def _rows(log: SessionLog, txn: ReadTxn, start: int, stop: int) -> list[_Row]:
    return [
        row if isinstance(row, CorruptValueError) else Stored.of(txn, log.scope, row)
        for row in log.rows(txn, start, stop)
    ]


def _is_event(row: _Row) -> bool:
    return isinstance(row, CorruptValueError) or row.is_event


def _is_split(row: _Row) -> bool:
    return isinstance(row, Stored) and row.is_split
