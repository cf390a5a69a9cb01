"""What a compaction covers: in the log by seq; for ADK, which compares timestamps, by those.

ADK leaves an event out of a prompt if its timestamp lies within the range of a summary, and sorts
what is left by timestamps. So clocks that stand still or go back would lose events that no summary
stands for, or tear pairs apart. A summary is stored with the seqs that it covers; in a session with
one, events are shown with timestamps that never go back and differ where a covered run begins and
ends, and summaries with the range from the first to the last of theirs. Where the clock was right,
which is nearly always, that is what they were anyway, and nothing is changed. The file keeps what
it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nextafter
from typing import Any, Final

from google.adk.events.event import Event

__all__ = ["COVERS", "covered_now", "covered_once", "mark_covered", "presented"]

COVERS: Final = "memcore_covers"
"""Key of a compaction event's custom metadata: the ids of the first and last event it covers."""
Span = tuple[int, int]
"""First and last index of what a summary covers."""


def mark_covered(compaction: Event, events: Sequence[Event]) -> Event:
    """Say in a compaction event which events it stands for; for summarizers.

    Without it, of several events at its very end only the first counts as covered: the others are
    shown beside the summary.
    """
    told = {COVERS: [events[0].id, events[-1].id]}
    compaction.custom_metadata = {**(compaction.custom_metadata or {}), **told}
    return compaction


def covered_once(events: Sequence[Event], compaction: Event) -> Span | None:
    """What a new compaction covers of the events before it, as it was made by their timestamps.

    Where the timestamps leave it open, as little as possible: what is covered too much is lost,
    what is covered too little is shown beside the summary.
    """
    told = compaction.actions.compaction
    if told is None:
        return None
    marked = _marked(events, compaction)
    mine = [at for at, event in enumerate(events) if _concerns(event, compaction)]
    first = marked[0]
    if first is None:
        first = next((at for at in mine if events[at].timestamp == told.start_timestamp), None)
    if first is None:
        first = next((at for at in mine if events[at].timestamp >= told.start_timestamp), None)
    if first is None:
        return None
    last = marked[1]
    if last is None:
        run = [at for at in mine if at >= first]
        ends = [at for at in run if events[at].timestamp == told.end_timestamp]
        last = _first_balanced(events, run, ends) if ends else _run_until(events, run, told)
    return None if last is None or last < first else (first, last)


def _marked(events: Sequence[Event], compaction: Event) -> tuple[int | None, int | None]:
    told = (compaction.custom_metadata or {}).get(COVERS)
    if not isinstance(told, list) or len(told) != 2:  # noqa: PLR2004 - first and last
        return None, None
    places = {event.id: at for at, event in enumerate(events)}
    return places.get(told[0]), places.get(told[1])


def _concerns(event: Event, compaction: Event) -> bool:
    same = event.isolation_scope == compaction.isolation_scope
    return event.actions.compaction is None and same


def _run_until(events: Sequence[Event], run: list[int], told: Any) -> int | None:
    last = None
    for at in run:
        if events[at].timestamp > told.end_timestamp:
            break
        last = at
    return last


def _first_balanced(events: Sequence[Event], run: list[int], ends: list[int]) -> int:
    """The first of the possible ends at which no call of the run is open."""
    possible, waiting = set(ends), set[str | None]()
    for at in run:
        for response in events[at].get_function_responses():
            waiting.discard(response.id)
        waiting |= {call.id for call in events[at].get_function_calls()}
        if at in possible and not waiting:
            return at
    return ends[0]


def covered_now(events: Sequence[Event], at: int) -> Span | None:
    """What the compaction at an index covers of events that are ``presented``."""
    told = events[at].actions.compaction
    if told is None:
        return None
    mine = [
        index
        for index, event in enumerate(events[:at])
        if event.actions.compaction is None
        and told.start_timestamp <= event.timestamp <= told.end_timestamp
    ]
    return (mine[0], mine[-1]) if mine else None


def presented(events: Sequence[Event], covers: Mapping[int, Span]) -> dict[int, Event]:
    """What is to be shown in place of events: changed copies by their index.

    Args:
        events: a session's events in the order of the log, or the last ones of them.
        covers: for the index of each compaction event the indexes that it covers; those below 0
            stand before the first event.
    """
    shown: dict[int, Event] = {}
    edges = {lo for lo, _ in covers.values()} | {hi + 1 for _, hi in covers.values()}
    times: dict[int, float] = {}
    high, is_edge = -inf, False
    for at, event in enumerate(events):
        is_edge = is_edge or at in edges
        if event.actions.compaction is not None:
            continue
        time = event.timestamp
        if time < high or (time == high and is_edge):
            time = nextafter(high, inf)  # so that what is summarised next is told apart by it
            shown[at] = event.model_copy(update={"timestamp": time})
        times[at] = high = time
        is_edge = False
    first = next(iter(times.values()), inf)
    for at, (lo, hi) in covers.items():
        _present_range(events[at], at, (_time(times, lo, first), _last_time(times, lo, hi)), shown)
    return shown


def _time(times: Mapping[int, float], lo: int, first: float) -> float:
    return times.get(lo, first)


def _last_time(times: Mapping[int, float], lo: int, hi: int) -> float | None:
    for at in range(hi, max(lo, 0) - 1, -1):
        if at in times:
            return times[at]
    return None


def _present_range(
    event: Event, at: int, span: tuple[float, float | None], shown: dict[int, Event]
) -> None:
    told = event.actions.compaction
    assert told is not None  # noqa: S101 - covers are those of compactions
    start, end = span
    if end is None:  # all that it covers stands before the first event that is shown
        end = min(told.end_timestamp, nextafter(start, -inf))
        start = min(told.start_timestamp, end)
    if (start, end) == (told.start_timestamp, told.end_timestamp):
        return
    new = told.model_copy(update={"start_timestamp": start, "end_timestamp": end})
    actions = event.actions.model_copy(update={"compaction": new})
    shown[at] = event.model_copy(update={"actions": actions})
