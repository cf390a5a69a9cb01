"""How far the events of a session are remembered.

The log of a session of memcore only grows at its end, so of a session that comes again nothing is
looked at but what is behind the known events. That holds for events that begin with exactly the
known ones, which a digest of their ids tells: an object with a part of the session, or with some
events left out, is compared event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from memcore.adapters.adk.labels import label
from memcore.errors import CorruptValueError
from memcore.kv import KeyValueTxn, KeyValueView

__all__ = ["Run", "Watermark"]

_MARKER: Final = "memcore:"
_SESSION_BYTES_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Watermark:
    """The first events of a session, of which all are remembered that can be."""

    number: str
    """The session's number: another session of the same name has another."""
    count: int
    digest: str
    """Of the events' ids."""

    @staticmethod
    def number_of(session: Session) -> str | None:
        """The number of a session that memcore's service handed out; None of any other."""
        marker = session._storage_update_marker or ""  # noqa: SLF001 - where the service keeps it
        return marker.split(":")[1] if marker.startswith(_MARKER) else None

    @classmethod
    def read(cls, view: KeyValueView, session_id: str) -> Watermark | None:
        """What is known of a session of that name."""
        row = view.get(_key(session_id))
        if row is None:
            return None
        if not isinstance(row, list) or [type(each) for each in row] != [str, int, str]:
            msg = f"what is known of session {session_id!r:.80} is damaged; run 'memcore check'"
            raise CorruptValueError(msg, key=b"")
        return cls(*row)

    def write(self, txn: KeyValueTxn, session_id: str) -> None:
        """Remember it, in the transaction that stores the events."""
        txn.put(_key(session_id), [self.number, self.count, self.digest])

    def new_from(self, events: Sequence[Event]) -> int:
        """The position of the first event that may not be remembered."""
        if len(events) < self.count:
            return 0
        digest = Run(self.number, events, None).upto(self.count).digest
        return self.count if digest == self.digest else 0


class Run:
    """The events of a session object, on their way into the memory.

    Args:
        number: the session's.
        events: all that the object has.
        known: what was known of the session before.
    """

    __slots__ = ("_count", "_events", "_known", "_number", "_sum")

    def __init__(self, number: str, events: Sequence[Event], known: Watermark | None) -> None:
        self._number = number
        self._events = events
        self._known = known
        self._sum = blake2b(digest_size=16)
        self._count = 0

    def upto(self, count: int) -> Watermark:
        """What is known when the first ``count`` events are remembered; counts ascend."""
        for event in self._events[self._count : count]:
            packed = event.id.encode("utf-8", "surrogatepass")
            self._sum.update(b"%d:" % len(packed) + packed)
        self._count = count
        known = self._known
        if known is not None and known.number == self._number and known.count > count:
            return known  # the object is older, or has a part of the session
        return Watermark(self._number, count, self._sum.hexdigest())


def _key(session_id: str) -> str:
    return "s" + label(session_id, _SESSION_BYTES_MAX)
