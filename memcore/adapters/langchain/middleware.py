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
from memcore.errors import InvalidOptionError
from memcore.model import Message

__all__ = [
    "PayloadMiddleware",
]


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
    return [message_to_dict(message) for message in request.messages]


def _filled(
    request: ModelRequest[Any], messages: list[Message], payload: object
) -> ModelRequest[Any]:
    """Return a request with the messages and the system prompt of a payload."""
    system = request.system_message
    said = "" if system is None else system.text
    found = fill_payload(payload, messages, said, "langchain")
    given: SentObjects[BaseMessage] = SentObjects()
    for message, of in zip(messages, request.messages, strict=True):
        given.keep(message, of)
    shown: list[Any] = [given.found(message) or _made(message) for message in found.messages]
    prompts = [each for each in shown if isinstance(each, SystemMessage)]
    if len(prompts) == 1:
        system = prompts[0]
    elif prompts:
        system = SystemMessage("\n\n".join(each.text for each in prompts))
    rest = [each for each in shown if not isinstance(each, SystemMessage)]
    return request.override(messages=rest, system_message=system)


def _made(message: Message) -> BaseMessage:
    """Return a message that the payload wrote or changed."""
    return (
        messages_from_dict([message])[0] if "data" in message else convert_to_messages([message])[0]
    )
