"""Google ADK's compaction: its own hidden functions, on its own events."""

from __future__ import annotations

import json
import warnings
from functools import cache
from typing import Any

from histories import Signs
from trimming import SUMMARY, Message, Trim, finished, missing

__all__ = ["AdkSession", "adk_kept"]


def _adk() -> Any:
    try:
        from google.adk.apps import compaction
    except ImportError as error:
        raise missing("google-adk", error) from error
    return compaction


def _to_adk(history: list[Message]) -> list[Any]:
    """Events; a user's message begins an invocation."""
    _adk()
    from google.adk.events.event import Event
    from google.genai import types

    found = []
    invocation = 0
    for number, message in enumerate(history, 1):
        role = message["role"]
        if role == "system":
            continue  # an instruction of the agent, no event
        invocation += role == "user"
        if role == "tool":
            response = types.FunctionResponse(
                id=message["tool_call_id"], name="look", response={"output": message["content"]}
            )
            parts = [types.Part(function_response=response)]
        else:
            parts = [types.Part(text=message["content"])] if message["content"] else []
            for call in message.get("tool_calls") or ():
                made = types.FunctionCall(
                    id=call["id"],
                    name=call["function"]["name"],
                    args=json.loads(call["function"]["arguments"]),
                )
                parts.append(types.Part(function_call=made))
        author = "user" if role == "user" else "agent"
        content = types.Content(role="model" if role == "assistant" else "user", parts=parts)
        found.append(
            Event(
                author=author,
                invocation_id=f"i{invocation}",
                content=content,
                timestamp=float(number),
            )
        )
    return found


def adk_kept() -> Trim:
    """Google ADK's choice of the events to compact beyond a token threshold.

    Raises:
        NotInstalled: google-adk is not there.
    """
    choose = _adk()._events_to_compact_for_token_threshold  # noqa: SLF001

    def trim(history: list[Message], share: float) -> list[Signs]:
        events = _to_adk(history)
        keep = max(1, int(len(events) * share))
        folded = len(choose(events=events, event_retention_size=keep))
        return [
            Signs(
                tuple(call.id for call in event.get_function_calls()),
                tuple(answer.id for answer in event.get_function_responses()),
            )
            for event in events[folded:]
        ]

    return trim


class AdkSession:
    """A session of Google ADK that compacts beyond a token threshold; events are held in a list.

    Raises:
        NotInstalled: google-adk is not there.
    """

    def __init__(self, token_threshold: int, keep: int) -> None:
        compaction = _adk()
        from google.adk.apps.app import EventsCompactionConfig
        from google.adk.flows.llm_flows.context import _contents
        from google.adk.sessions.base_session_service import BaseSessionService
        from google.adk.sessions.session import Session

        self._compact = compaction._run_compaction_for_token_threshold_config  # noqa: SLF001
        self._contents = _contents._get_contents  # noqa: SLF001
        unused = dict.fromkeys(BaseSessionService.__abstractmethods__)
        self.service = type("Held", (BaseSessionService,), unused)()
        self.session = Session(id="bench", app_name="bench", user_id="bench")
        with warnings.catch_warnings(action="ignore"):  # it calls itself experimental
            self.config = EventsCompactionConfig(
                summarizer=_adk_summarizer(),
                token_threshold=token_threshold,
                event_retention_size=keep,
            )

    @staticmethod
    def events(history: list[Message]) -> list[Any]:
        """The history as events."""
        return _to_adk(history)

    def extend(self, events: list[Any]) -> None:
        """Append through the session service."""
        for event in events:
            finished(self.service.append_event(session=self.session, event=event))

    def contents(self) -> list[Any]:
        """What the model is shown, after a compaction if one is due."""
        finished(
            self._compact(
                config=self.config,
                session=self.session,
                session_service=self.service,
                agent=None,
                agent_name="agent",
            )
        )
        return self._contents(None, self.session.events, "agent")


@cache
def _adk_summarizer() -> Any:
    from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions, EventCompaction
    from google.genai import types

    async def maybe_summarize_events(_: Any, *, events: list[Any]) -> Any:
        content = types.Content(role="model", parts=[types.Part(text=SUMMARY)])
        made = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=content,
        )
        actions = EventActions(compaction=made)
        return Event(author="user", invocation_id=Event.new_id(), actions=actions)

    members = {"maybe_summarize_events": maybe_summarize_events}
    return type("Summarizer", (BaseEventsSummarizer,), members)()
