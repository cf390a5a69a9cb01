"""Events for the tests of ADK's services."""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types

ME = {"app_name": "shop", "user_id": "ann"}


def event(*parts: types.Part, author: str = "agent", **fields: Any) -> Event:
    """An event with these parts; ``delta`` changes the state."""
    delta = fields.pop("delta", None)
    if delta is not None:
        fields["actions"] = EventActions(state_delta=delta)
    fields.setdefault("invocation_id", "i1")
    role = "user" if author == "user" or any(p.function_response for p in parts) else "model"
    content = types.Content(role=role, parts=list(parts)) if parts else None
    return Event(author=author, content=content, **fields)


def said(text: str, author: str = "user", **fields: Any) -> Event:
    """An event of one text."""
    return event(types.Part(text=text), author=author, **fields)


def called(call_id: str | None, name: str = "look", **fields: Any) -> Event:
    """An event of one call."""
    call = types.FunctionCall(id=call_id, name=name, args={"q": call_id})
    return event(types.Part(function_call=call), **fields)


def answered(call_id: str | None, name: str = "look", **fields: Any) -> Event:
    """An event of one result."""
    response = types.FunctionResponse(id=call_id, name=name, response={"r": call_id})
    return event(types.Part(function_response=response), **fields)


def label(each: Event) -> str:
    """What an event is, in a word."""
    if each.actions.compaction is not None:
        return "sum"
    if not each.content or not each.content.parts:
        return "-"
    return part_label(each.content.parts[0])


def part_label(part: types.Part) -> str:
    """What a part is, in a word."""
    if part.function_call:
        return f"C{part.function_call.id}"
    if part.function_response:
        return f"R{part.function_response.id}"
    return str(part.text)


def labels(session: Session | None) -> list[str]:
    """What the events of a session are."""
    assert session is not None
    return [label(each) for each in session.events]
