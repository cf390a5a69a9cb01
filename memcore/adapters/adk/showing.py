"""Letting a caller's Session object show what was stored."""

from __future__ import annotations

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from memcore.adapters.adk.ranges import Span, covered_now, presented

__all__ = ["show_event"]


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
    if covers:
        for at, shown in presented(events, covers).items():
            events[at] = shown


def _is_later(events: list[Event]) -> bool:
    """Whether the clock went on since the event before the last one."""
    for at in range(len(events) - 2, -1, -1):
        if events[at].actions.compaction is None:
            return events[-1].timestamp > events[at].timestamp
    return True
