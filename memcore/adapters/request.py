"""Requests of a framework that a payload fills: their messages become its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from memcore._fast import classify
from memcore.codec.values import encode_json
from memcore.errors import InvalidOptionError
from memcore.memory.trust import own_texts
from memcore.model import ItemKind, Message
from memcore.payload import AssembledPayload, Payload

__all__ = [
    "PayloadOf",
    "SentObjects",
    "fill_payload",
    "query_in",
]


T = TypeVar("T")
PayloadOf: TypeAlias = Callable[[str, Any], Any]
"""Function that makes the payload of one request, or an awaitable of it.

It gets the text of the last user message, by which memories are found, and the framework's object
of the request, which knows whose it is. It adds every section but the history.
"""
_AGENT = "agent_instructions"


def query_in(messages: Iterable[Message]) -> str:
    """Return what the user wrote last; empty if nothing."""
    users = [message for message in messages if classify(message)[0] == ItemKind.USER]
    return "\n".join(own_texts(users[-1])[0]) if users else ""


def fill_payload(
    payload: object, messages: Sequence[Message], instructions: str, policy: str
) -> AssembledPayload:
    """Assemble a payload whose history is the messages of a request, behind its instructions.

    Raises:
        InvalidOptionError: it is no payload, or it has a history already: each request needs one of
            its own.
        ContextOverflowError, InvalidItemError
    """
    if not isinstance(payload, Payload):
        msg = f"payload: expected a memcore.Payload, got {type(payload).__name__}"
        raise InvalidOptionError(msg)
    if instructions.strip():
        payload.instructions(instructions, name=_AGENT)
    payload.history(messages)
    return payload.assemble(policy)


class SentObjects(Generic[T]):
    """Objects of a framework by the JSON that stands for them: an unchanged one stays itself."""

    def __init__(self) -> None:
        self._objects: dict[bytes, T] = {}

    def keep(self, message: Any, of: T) -> None:
        """Note the object that a message or a part stands for."""
        self._objects[encode_json(message)[0]] = of

    def found(self, message: Any) -> T | None:
        """Return the object that a message or a part stands for; None: it is new or changed."""
        return self._objects.get(encode_json(message)[0])
