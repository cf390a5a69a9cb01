"""Events as they are to be seen beside each other, where summaries stand for some of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from memcore.adapters.adk.cache import Entry
from memcore.adapters.adk.ranges import Span, covered_now, covered_once, presented

__all__ = ["present", "show_event"]


def present(events: list[Event], entries: list[Entry]) -> None:
    """Put changed copies in the places of events where the clock was not right.

    Args:
        events: what is to be handed out.
        entries: the entries of the same events.
    """
    covers: dict[int, Span] = {}
    for at, entry in enumerate(entries):
        if entry.is_compaction:
            told = entry.covers
            if told is None:
                span = covered_once(events[:at], events[at])
            else:
                span = (
                    bisect_left(entries, told[0], key=_seq) if told[0] >= entries[0].seq else -1,
                    bisect_right(entries, told[1], key=_seq) - 1,
                )
            if span is not None:
                covers[at] = span
    _put(events, covers)


def _seq(entry: Entry) -> int:
    return entry.seq


def _put(events: list[Event], covers: Mapping[int, Span]) -> None:
    if covers:
        for at, shown in presented(events, covers).items():
            events[at] = shown


def show_event(session: Session, event: Event, covered: Span | None) -> None:
    """Append an event to the object's events, as it is to be seen beside them.

    Args:
        session: the caller's object.
        event: what was stored.
        covered: of a compaction the indexes of the object's events that it covers.
    """
    events = session.events
    events.append(event)
    if event.actions.compaction is None and _is_later(events):
        return
    last = len(events) - 1
    covers: dict[int, Span] = {}
    for at, each in enumerate(events):
        if each.actions.compaction is None:
            continue
        span = covered if at == last else covered_now(events, at)
        if span is not None:
            covers[at] = span
    _put(events, covers)


def _is_later(events: list[Event]) -> bool:
    """Whether the clock went on since the event before the last one."""
    for at in range(len(events) - 2, -1, -1):
        if events[at].actions.compaction is None:
            return events[-1].timestamp > events[at].timestamp
    return True
