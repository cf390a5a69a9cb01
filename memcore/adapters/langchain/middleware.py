"""Middleware of LangChain: what each call of the model gets to see, while the state keeps all."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from inspect import isawaitable
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.summarization import SummarizationMiddleware
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
    message_to_dict,
    messages_from_dict,
)
from langgraph.runtime import Runtime

from memcore.adapters.request import PayloadOf, SentObjects, fill_payload, query_in
from memcore.codec.values import encode_json
from memcore.context import checked_budget, fit, safe_cuts
from memcore.errors import InvalidOptionError
from memcore.model import Message
from memcore.tokens import TokenCounter, get_counter

__all__ = [
    "ContextMiddleware",
    "PayloadMiddleware",
    "SummaryMiddleware",
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


class ContextMiddleware(AgentMiddleware[Any, Any]):
    """Sends each call of an agent's model a legal context within a budget; the state keeps all.

    The newest messages that fit are sent. A call never goes without its results, nor a result
    without its call: a call that was never answered gets a result that says so.

    Args:
        budget_tokens: tokens of the messages and of the system prompt, at most; None: no limit,
            the messages are only made legal.
        reserve_tokens: tokens of the budget that are left free, for the tools and the answer.
        counter: the token counter, or its name; None: the default one.

    Raises:
        InvalidOptionError: a budget is negative, or the counter is unknown.
    """

    def __init__(
        self,
        budget_tokens: int | None = None,
        *,
        reserve_tokens: int = 0,
        counter: str | TokenCounter | None = None,
    ) -> None:
        super().__init__()
        checked_budget(budget_tokens, reserve_tokens)
        self._budget = budget_tokens
        self._reserve = reserve_tokens
        self._counter = get_counter(counter)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Send one call.

        Raises:
            ContextOverflowError: the smallest legal context is larger than the budget.
            InvalidItemError: a message holds what is no JSON, such as bytes.
        """
        return handler(self._fitted(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Send one call, as ``wrap_model_call``; the context is made in a thread."""
        return await handler(await asyncio.to_thread(self._fitted, request))

    def _fitted(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        reserve = self._reserve
        if self._budget is not None and request.system_message is not None:
            prompt = _said(request.system_message)
            reserve += self._counter.count_message(prompt, encode_json(prompt)[0])
        found = _fit(request.messages, self._budget, reserve, self._counter)
        return request.override(messages=found)


class SummaryState(AgentState[Any]):
    """State of an agent whose older messages are shown as a summary."""

    memcore_summary: Annotated[NotRequired[dict[str, Any]], PrivateStateAttr]
    """``text``: the summary; ``until``: id of the last message that it covers."""


class SummaryMiddleware(SummarizationMiddleware):
    """Replaces LangChain's SummarizationMiddleware: same arguments, and the state keeps all.

    Where LangChain's removes the summarized messages from the state, this one leaves them there,
    with the summary beside them, and sends the model the summary and the newer messages. A cut
    never separates a call from its results, in whatever order these came. The next summary extends
    the last one.

    A summary is forgotten when the last message that it covers leaves the state: all messages are
    shown again.
    """

    state_schema = SummaryState

    def before_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Summarize, if a trigger is met by the messages that the model would get.

        Raises:
            Whatever the summarizer raises: the call of the model does not take place.
        """
        del runtime
        covered = self._due(state)
        return _summary(covered, self._create_summary(covered)) if covered else None

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Summarize, as ``before_model``."""
        del runtime
        covered = self._due(state)
        return _summary(covered, await self._acreate_summary(covered)) if covered else None

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Send one call with the summary in place of the messages that it covers.

        Raises:
            InvalidItemError: a message holds what is no JSON, such as bytes.
        """
        return handler(self._summarized(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Send one call, as ``wrap_model_call``; the context is made in a thread."""
        return await handler(await asyncio.to_thread(self._summarized, request))

    def _summarized(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        shown = self._shown(request.messages, request.state)
        return request.override(messages=_fit(shown, None, 0, get_counter(None)))

    def _shown(self, messages: Sequence[AnyMessage], state: Any) -> list[AnyMessage]:
        """Return the summary and the messages after those that it covers; all without one."""
        told = state.get("memcore_summary")
        places = [] if told is None else [message.id for message in messages]
        if told is None or told["until"] not in places:
            return list(messages)
        (summary,) = self._build_new_messages(told["text"])
        # Its id must not be taken for that of a message in the state.
        shown = HumanMessage(
            summary.content,
            additional_kwargs=summary.additional_kwargs,
            id=f"memcore-summary-{told['until']}",
        )
        return [shown, *messages[places.index(told["until"]) + 1 :]]

    def _due(self, state: Any) -> list[AnyMessage]:
        """Return the shown messages that are to be summarized now; empty if it is too early."""
        messages = state["messages"]
        self._ensure_message_ids(messages)
        shown = self._shown(messages, state)
        if not self._should_summarize(shown, self.token_counter(shown)):
            return []
        wanted = self._determine_cutoff_index(shown)
        cuts = safe_cuts([_said(message) for message in shown], "langchain")
        at = bisect_right(cuts, wanted)
        cut = cuts[at - 1] if at else 0
        last = 0 if shown[0] is messages[0] else 1  # the last summary alone is no reason for one
        return shown[:cut] if cut > last else []


def _summary(covered: list[AnyMessage], text: str) -> dict[str, Any]:
    return {"memcore_summary": {"text": text, "until": covered[-1].id}}


def _fit(
    messages: Sequence[AnyMessage], budget: int | None, reserve: int, counter: TokenCounter
) -> list[Any]:
    """Return the legal context of messages; unchanged ones are the same objects."""
    said = [_said(message) for message in messages]
    found = fit(said, budget, reserve_tokens=reserve, policy="langchain", counter=counter)
    given: SentObjects[BaseMessage] = SentObjects()
    for message, of in zip(said, messages, strict=True):
        given.keep(message, of)
    # Of messages that are equal but for what no model receives, each stays itself.
    same = {id(message): of for message, of in zip(said, messages, strict=True)}
    return [
        same.get(id(message)) or given.found(message) or _made(message)
        for message in found.messages
    ]


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
