"""Middleware of LangChain that sends each call of the model as a payload."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import (
    BaseMessage,
    SystemMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)

from memcore.adapters.request import PayloadOf, SentObjects, fill_payload, query_in
from memcore.codec.values import encode_json
from memcore.errors import InvalidOptionError
from memcore.model import Message

__all__ = [
    "PayloadMiddleware",
]


_UNSENT = frozenset(("artifact", "response_metadata", "usage_metadata"))
"""Fields of messages that no model receives, which may hold anything."""


class PayloadMiddleware(AgentMiddleware[Any, Any]):
    """Sends each call of an agent's model as a payload: legal, and within its budget.

    The messages of the call are the payload's history, behind the agent's system prompt; the state
    of the agent keeps all of them. The model binds the tools itself: give them to the payload too,
    or reserve tokens for them.

    Args:
        payload: function of the text of the last user message and of LangChain's ``ModelRequest``
            that returns a new ``memcore.Payload`` with every section but the history; for
            ``ainvoke`` it may return an awaitable.
    """

    def __init__(self, payload: PayloadOf) -> None:
        super().__init__()
        self._payload = payload

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Send one call.

        Raises:
            ContextOverflowError: what must be shown does not fit.
            InvalidOptionError, InvalidItemError
        """
        messages = _plain(request)
        made = self._payload(query_in(messages), request)
        if isawaitable(made):
            if isinstance(made, Coroutine):
                made.close()
            msg = "payload: expected a memcore.Payload from a call that is not awaited"
            raise InvalidOptionError(msg)
        return handler(_filled(request, messages, made))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Send one call, as ``wrap_model_call``; the payload is assembled in a thread."""
        messages = _plain(request)
        made = self._payload(query_in(messages), request)
        payload = await made if isawaitable(made) else made
        return await handler(await asyncio.to_thread(_filled, request, messages, payload))


def _plain(request: ModelRequest[Any]) -> list[Message]:
    """Return the messages of a request as dicts, without what no model receives."""
    return [_said(message) for message in request.messages]


def _said(message: BaseMessage) -> Message:
    found = message_to_dict(message)
    data = {name: value for name, value in found["data"].items() if name not in _UNSENT}
    extra = data.get("additional_kwargs")
    if isinstance(extra, dict):
        data["additional_kwargs"] = {
            name: value for name, value in extra.items() if _is_json(value)
        }
    return {**found, "data": data}


def _is_json(value: Any) -> bool:
    try:
        encode_json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _filled(
    request: ModelRequest[Any], messages: list[Message], payload: object
) -> ModelRequest[Any]:
    """Return a request with the messages and the system prompt of a payload."""
    system = request.system_message
    told = _prompt(system)
    found = fill_payload(payload, messages, told, "langchain")
    given: SentObjects[BaseMessage] = SentObjects()
    for message, of in zip(messages, request.messages, strict=True):
        given.keep(message, of)
    shown: list[Any] = [given.found(message) or _made(message) for message in found.messages]
    prompts = [each.text for each in shown if isinstance(each, SystemMessage)]
    rest = [each for each in shown if not isinstance(each, SystemMessage)]
    return request.override(
        messages=rest, system_message=_extended(system, told, "\n\n".join(prompts))
    )


def _prompt(system: SystemMessage | None) -> str:
    """Return the text of a system message, a line between its blocks."""
    if system is None or isinstance(system.content, str):
        return "" if system is None else system.text
    texts = (each if isinstance(each, str) else each.get("text") for each in system.content)
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _extended(system: SystemMessage | None, told: str, prompt: str) -> SystemMessage | None:
    """Return the agent's system message with the instructions of the payload in front of it.

    Itself if there are none; its blocks, with their marks for a cache, stay as they are.
    """
    if system is None or not told:
        return SystemMessage(prompt) if prompt else system
    if prompt == told:
        return system
    if isinstance(system.content, str):
        return system.model_copy(update={"content": prompt})
    first: Any = {"type": "text", "text": prompt.removesuffix(told).strip()}
    return system.model_copy(update={"content": [first, *system.content]})


def _made(message: Message) -> BaseMessage:
    """Return a message that the payload wrote or changed."""
    return (
        messages_from_dict([message])[0] if "data" in message else convert_to_messages([message])[0]
    )
