"""Copies of decoded events: what is handed out is nobody else's."""

from __future__ import annotations

import enum
from typing import Any, Final

from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from google.genai import types

from memcore._fast import Trees
from memcore.adapters.adk.events import Encoded
from memcore.checkpoint.shapes import Shapes, classify

__all__ = ["Copies"]

_PLAIN: Final = frozenset(
    {
        Event,
        EventActions,
        NodeInfo,
        types.Blob,
        types.Content,
        types.FunctionCall,
        types.FunctionResponse,
        types.GenerateContentResponseUsageMetadata,
        types.ModalityTokenCount,
        types.Part,
    }
)
_OPAQUE: Final = (0, False, (), ())
_FIELDS: Final = frozenset(
    {
        "actions",
        "author",
        "branch",
        "errorCode",
        "errorMessage",
        "finishReason",
        "id",
        "interrupted",
        "invocationId",
        "isolationScope",
        "longRunningToolIds",
        "modelVersion",
        "nodeInfo",
        "partial",
        "timestamp",
        "turnComplete",
        "usageMetadata",
    }
)
_NEEDED: Final = frozenset({"actions", "author", "id", "invocationId", "nodeInfo", "timestamp"})
_ACTIONS: Final = frozenset(
    {"artifactDelta", "requestedAuthConfigs", "requestedToolConfirmations", "stateDelta"}
)
_PARTS: Final = frozenset(
    {"text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData"}
)


class Copies:
    """Makes copies without running the code of what is copied."""

    __slots__ = ("_plain", "_trees")

    def __init__(self) -> None:
        self._trees = Shapes().trees
        self._plain = Trees(_shape_of_plain)

    def of(self, events: list[Event]) -> list[Event]:
        """Copies of events, which share nothing that can be changed."""
        copied = self._trees.copy(events)
        if copied is self._trees.opaque:
            return [event.model_copy(deep=True) for event in events]
        return copied  # type: ignore[no-any-return]

    def as_stored(self, event: Event, encoded: Encoded) -> Event | None:
        """A copy of an event that is equal to what reading it would give; None if in doubt.

        What JSON says otherwise than Python (a tuple, a date) may stand where any value may.
        """
        rest = encoded.rest
        if not _NEEDED <= rest.keys() <= _FIELDS or rest["actions"].keys() != _ACTIONS:
            return None
        if event.actions.state_delta != encoded.delta or rest["actions"]["requestedAuthConfigs"]:
            return None
        if rest["actions"]["requestedToolConfirmations"]:
            return None
        if encoded.content is None:
            if event.content is not None:
                return None
        elif not _is_plain(event.content, encoded.content):
            return None
        copied = self._plain.copy(event)
        return None if copied is self._plain.opaque else copied


def _shape_of_plain(kind: type) -> Any:
    if kind in _PLAIN or (issubclass(kind, enum.Enum) and kind.__module__ == types.__name__):
        return classify(kind)
    return _OPAQUE


def _is_plain(content: types.Content | None, stored: dict[str, Any]) -> bool:
    """Whether the arguments and results of calls are what JSON says of them."""
    for part, said in zip((content and content.parts) or (), stored["parts"], strict=True):
        if not said.keys() <= _PARTS:
            return False
        if part.function_call and part.function_call.args != said["functionCall"].get("args"):
            return False
        told = part.function_response
        if told and (told.parts or told.response != said["functionResponse"].get("response")):
            return False
    return True
