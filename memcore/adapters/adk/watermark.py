"""How far the events of a session are remembered.

The log of a session of memcore only grows at its end, so of a session that comes again nothing is
looked at but what is behind the last event that is known. That holds for a run of events from its
first on: an object that begins earlier, or somewhere else, is compared event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from memcore.adapters.adk.labels import label
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = ["Watermark"]

_MARKER: Final = "memcore:"
_SESSION_BYTES_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Watermark:
    """A run of events of which all are remembered that can be."""

    number: str
    """The session's number: another session of the same name has another."""
    first: str
    last: str

    @staticmethod
    def number_of(session: Session) -> str | None:
        """The number of a session that memcore's service handed out; None of any other."""
        marker = session._storage_update_marker or ""  # noqa: SLF001 - where the service keeps it
        return marker.split(":")[1] if marker.startswith(_MARKER) else None

    @classmethod
    def read(cls, view: KeyValueView, session_id: str) -> Watermark | None:
        """What is known of a session of that name."""
        row = view.get(_key(session_id))
        return None if row is None else cls(*row)

    def write(self, txn: KeyValueTxn, session_id: str) -> None:
        """Remember it, in the transaction that stores the events."""
        txn.put(_key(session_id), [self.number, self.first, self.last])

    def new_from(self, events: Sequence[Event]) -> int:
        """The position of the first event that may not be remembered."""
        at = _last_place(events, self.last)
        if at is None:
            return 0
        begins_here = events[0].id == self.first
        if begins_here or all(event.id != self.first for event in events[:at]):
            return at + 1
        return 0

    @classmethod
    def behind(cls, known: Watermark | None, number: str, events: Sequence[Event]) -> Watermark:
        """What is known when these events of the session are remembered, too."""
        first, last = events[0].id, events[-1].id
        if known is None or known.number != number:
            return cls(number, first, last)
        holds_first = any(event.id == known.first for event in events)
        if _last_place(events, known.last) is None:
            # An object that is older than what is known, or one of other events altogether.
            return cls(number, first, known.last if holds_first else last)
        return cls(number, first if holds_first else known.first, last)


def _last_place(events: Sequence[Event], id_: str) -> int | None:
    for at in range(len(events) - 1, -1, -1):
        if events[at].id == id_:
            return at
    return None


def _key(session_id: str) -> str:
    return "s" + label(session_id, _SESSION_BYTES_MAX)
