"""Where a run of events may be cut so that no obligation is torn from what meets it.

An obligation is a call, or a request for a tool's confirmation or for credentials; a response with
its id meets it, the last one if there are several. Calls without an id are met by responses without
one, by name and in their order.

What is still open keeps its events out of a summary, unless it is dead: a call of an earlier
invocation which nothing met, or one without an id behind which the conversation went on. ADK, which
sees the whole session, hands over none of which the response came later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from google.adk.events.event import Event

__all__ = ["safe_prefix"]

_ASKS_PEOPLE: Final = "adk_request_"
"""How the names of ADK's own calls begin: people answer them, once."""


@dataclass(slots=True)
class _Obligation:
    """Something that is to be answered."""

    at: int
    """The index of its event."""
    named: str
    is_request: bool = False
    """Whether it waits for people, or for something that takes long."""
    is_begun: bool = False
    """Whether its first answer only says that it was begun."""
    answers: int = 0
    last: int = -1
    """The index of its last answer."""


def safe_prefix(events: Sequence[Event]) -> int:
    """How many events, from the first on, can be summarized together.

    Behind them stands no answer to what is among them, nothing among them waits for an answer, and
    none of them has a timestamp as late as one behind them.
    """
    limit = [False] * (len(events) + 1)
    for held in _obligations(events):
        until = len(events) + 1 if _is_open(held, events) else held.last + 1
        for cut in range(held.at + 1, min(until, len(limit))):
            limit[cut] = True
    lowest = inf
    highest = [-inf]
    for event in events:
        highest.append(max(highest[-1], event.timestamp))
    for cut in range(len(events), 0, -1):
        if not limit[cut] and highest[cut] < lowest:
            return cut
        lowest = min(lowest, events[cut - 1].timestamp)
    return 0


def _obligations(events: Sequence[Event]) -> list[_Obligation]:
    found: list[_Obligation] = []
    by_id: dict[str, _Obligation] = {}
    nameless: defaultdict[str, list[_Obligation]] = defaultdict(list)
    for at, event in enumerate(events):
        requests = {*event.actions.requested_tool_confirmations}
        requests |= {*event.actions.requested_auth_configs}
        for response in event.get_function_responses():
            if response.id:
                held = by_id.get(response.id)
            else:
                waiting = nameless[response.name or ""]
                held = waiting.pop(0) if waiting else None
            if held is not None:
                # What comes with a request for a confirmation is no answer yet.
                held.answers += response.id not in requests
                held.last = at
        for call in event.get_function_calls():
            is_long = call.id in (event.long_running_tool_ids or ())
            is_asked = (call.name or "").startswith(_ASKS_PEOPLE)
            held = _Obligation(at, call.id or "", is_long, is_begun=is_long and not is_asked)
            found.append(held)
            if call.id:
                by_id[call.id] = held
            else:
                nameless[call.name or ""].append(held)
        for id_ in requests:
            held = by_id.get(id_)
            if held is None or held.answers:
                held = _Obligation(at, id_, is_request=True)
                found.append(held)
                by_id[id_] = held
            held.is_request, held.last = True, at
    return found


def _is_open(held: _Obligation, events: Sequence[Event]) -> bool:
    """Whether an answer may come behind the events."""
    mine, newest = events[held.at].invocation_id, events[-1].invocation_id
    is_newest = mine == newest
    if held.is_request:
        return held.answers <= held.is_begun and is_newest
    if held.answers:
        return False
    if held.named:
        return is_newest
    return not any(_is_turn(event) for event in events[held.at + 1 :]) and is_newest


def _is_turn(event: Event) -> bool:
    """Whether the user spoke."""
    parts = (event.content.parts if event.content else None) or ()
    return event.author == "user" and any(part.text for part in parts)
