"""Events as they are to be seen beside each other, where summaries stand for some of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.adk.utils._function_call_names import AF_FUNCTION_CALL_ID_PREFIX

from memcore.adapters.adk.cache import Entry
from memcore.adapters.adk.ranges import Span, covered_now, covered_once, presented
from memcore.formats import Entry as Paired
from memcore.formats import bind
from memcore.formats.binding import BY_NAME, CallSlot
from memcore.model import Message

__all__ = ["present", "show_event"]


def present(events: list[Event], entries: list[Entry], *, mend: bool) -> None:
    """Put changed copies in the places of events that ADK would not make a legal prompt of.

    Args:
        events: what is to be handed out.
        entries: the entries of the same events.
        mend: not only where the clock was not right: calls without ids get ids, and summaries are
            the user's.
    """
    if mend:
        _name_calls(events, entries)
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
            if mend:
                events[at] = _of_user(events[at])
    _put(events, covers)


def _of_user(event: Event) -> Event:
    """A compaction event with a summary that a prompt can begin with."""
    told = event.actions.compaction
    if told is None or (content := told.compacted_content).role != "model":
        return event
    new = told.model_copy(update={"compacted_content": content.model_copy(update={"role": "user"})})
    actions = event.actions.model_copy(update={"compaction": new})
    return event.model_copy(update={"actions": actions})


def _name_calls(events: list[Event], entries: list[Entry]) -> None:
    """Give ids to calls without, and to the responses that answer them.

    ADK pairs, summarizes and cuts by ids, and sees no pair where there are none. The ids are those
    that it gives to calls itself: Gemini is never sent them. They are made of seqs, so the same
    call has the same one in every window.
    """
    if not any(entry.lacks_ids for entry in entries):
        return
    binding = bind(Paired(at, _paired(event)) for at, event in enumerate(events))
    names: dict[int, str] = {}
    for at, entry in enumerate(entries):
        for number, slot in enumerate(binding.calls[at]):
            names[id(slot)] = f"{AF_FUNCTION_CALL_ID_PREFIX}{entry.seq}-{number}"
    for at, entry in enumerate(entries):
        if not entry.lacks_ids:
            continue
        calls = iter([slot for slot in binding.calls[at] if slot.key[0] & BY_NAME])
        answers = iter([slot for key, slot in binding.answers[at] if key[0] & BY_NAME])
        events[at] = _named(events[at], calls, answers, names)


def _paired(event: Event) -> Message:
    """What binds an event's content: its calls and responses."""
    content = event.content
    parts: list[Message] = []
    for part in (content and content.parts) or ():
        for key, told in (
            ("functionCall", part.function_call),
            ("functionResponse", part.function_response),
        ):
            if told is not None:
                parts.append({key: {"name": told.name, **({"id": told.id} if told.id else {})}})
    is_model = any("functionCall" in part for part in parts)
    return {"role": "model" if is_model else "user", "parts": parts or [{"text": "."}]}


def _named(
    event: Event,
    calls: Iterator[CallSlot],
    answers: Iterator[CallSlot | None],
    names: Mapping[int, str],
) -> Event:
    """The event with ids from ``names`` where its parts have none."""
    assert event.content is not None  # noqa: S101 - it has calls
    parts = list(event.content.parts or ())
    for at, part in enumerate(parts):
        for key, slots in (("function_call", calls), ("function_response", answers)):
            told = getattr(part, key)
            if told is None or told.id or not told.name:
                continue
            slot = next(slots, None)
            if slot is not None:
                named = told.model_copy(update={"id": names[id(slot)]})
                parts[at] = part.model_copy(update={key: named})
    content = event.content.model_copy(update={"parts": parts})
    return event.model_copy(update={"content": content})


def _seq(entry: Entry) -> int:
    return entry.seq


def _put(events: list[Event], covers: Mapping[int, Span]) -> None:
    if covers:
        for at, shown in presented(events, covers).items():
            events[at] = shown


def show_event(session: Session, event: Event, covered: Span | None, *, mend: bool) -> None:
    """Append an event to the object's events, as it is to be seen beside them.

    Args:
        session: the caller's object.
        event: what was stored.
        covered: of a compaction the indexes of the object's events that it covers.
        mend: as in ``present``.
    """
    events = session.events
    events.append(_of_user(event) if mend else event)
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
