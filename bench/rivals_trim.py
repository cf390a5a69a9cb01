"""Every framework whose trimming is judged, and what memcore.fit is to it: a function to call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from histories import Signs, signs_of
from rivals_adk import adk_kept
from rivals_langchain import summarization_kept, tiktoken_counter, trim_messages_kept
from trimming import Message, Trim, finished, missing

__all__ = ["TRIMMERS", "as_autogen", "autogen_kept", "llama_kept"]


# --- LlamaIndex ----------------------------------------------------------------------------------


def llama_kept() -> Trim:
    """LlamaIndex' ChatMemoryBuffer, counting with tiktoken as it does by default.

    Raises:
        NotInstalled: llama-index-core or tiktoken is not there.
    """
    try:
        from llama_index.core.base.llms.types import ChatMessage
        from llama_index.core.memory import ChatMemoryBuffer
    except ImportError as error:
        raise missing("llama-index-core", error) from error
    tiktoken_counter()
    from memcore.tokens.builtin import shipped_encoding

    encode = shipped_encoding("o200k_base").encode_ordinary

    def trim(history: list[Message], share: float) -> list[Signs]:
        messages = [
            ChatMessage(
                role=message["role"],
                content=message["content"],
                additional_kwargs={
                    name: message[name]
                    for name in ("tool_calls", "tool_call_id")
                    if name in message
                },
            )
            for message in history
        ]
        whole = len(encode(" ".join(message["content"] for message in history)))
        buffer = ChatMemoryBuffer.from_defaults(
            chat_history=messages, token_limit=max(1, int(whole * share)), tokenizer_fn=encode
        )
        kept = buffer.get()
        return signs_of([{"role": m.role.value, **m.additional_kwargs} for m in kept])

    return trim


# --- AutoGen -------------------------------------------------------------------------------------


def autogen_kept(kind: str) -> Trim:
    """AutoGen's chat completion contexts: ``buffered``, ``head and tail`` or ``token limited``.

    Raises:
        NotInstalled: autogen-core is not there.
    """
    try:
        from autogen_core import model_context
    except ImportError as error:
        raise missing("autogen-core", error) from error

    def context(messages: list[Any], share: float) -> Any:
        count = max(1, int(len(messages) * share))
        if kind == "buffered":
            return model_context.BufferedChatCompletionContext(count, messages)
        if kind == "head and tail":
            head = max(1, count // 3)
            return model_context.HeadAndTailChatCompletionContext(
                head, max(1, count - head), messages
            )
        client = _counting_client()
        limit = max(1, int(client.count_tokens(messages) * share))
        return model_context.TokenLimitedChatCompletionContext(
            client, token_limit=limit, initial_messages=messages
        )

    def trim(history: list[Message], share: float) -> list[Signs]:
        made = context(as_autogen(history), share)
        return [_of_autogen(message) for message in finished(made.get_messages())]

    return trim


def as_autogen(history: list[Message]) -> list[Any]:
    """Results that follow each other are one message, as AutoGen's agents write them."""
    from autogen_core import FunctionCall, models

    found: list[Any] = []
    for message in history:
        role, text = message["role"], message["content"]
        if role == "tool":
            result = models.FunctionExecutionResult(
                content=text, name="look", call_id=message["tool_call_id"]
            )
            if found and isinstance(found[-1], models.FunctionExecutionResultMessage):
                found[-1].content.append(result)
            else:
                found.append(models.FunctionExecutionResultMessage(content=[result]))
        elif role == "system":
            found.append(models.SystemMessage(content=text))
        elif role == "user":
            found.append(models.UserMessage(content=text, source="user"))
        else:
            calls = [
                FunctionCall(call["id"], call["function"]["arguments"], call["function"]["name"])
                for call in message.get("tool_calls") or ()
            ]
            found.append(models.AssistantMessage(content=calls or text, source="agent"))
    return found


def _of_autogen(message: Any) -> Signs:
    content = message.content if isinstance(message.content, list) else []
    return Signs(
        tuple(part.id for part in content if hasattr(part, "arguments")),
        tuple(part.call_id for part in content if hasattr(part, "call_id")),
    )


@cache
def _counting_client() -> Any:
    """A model client of which only the count is ever asked: four characters a token."""
    from autogen_core.models import ChatCompletionClient

    def count_tokens(_: Any, messages: Any, **__: Any) -> int:
        return sum(4 + len(str(message.content)) // 4 for message in messages)

    def refused(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("only counts")

    abstract = dict.fromkeys(ChatCompletionClient.__abstractmethods__, refused)
    return type("Counting", (ChatCompletionClient,), {**abstract, "count_tokens": count_tokens})()


TRIMMERS: dict[str, tuple[Callable[[], Trim], str]] = {
    "trim_messages, default": (trim_messages_kept, "langchain-core"),
    "trim_messages, start_on=human + include_system": (
        lambda: trim_messages_kept(start_on="human", include_system=True),
        "langchain-core",
    ),
    "SummarizationMiddleware, keep messages": (lambda: summarization_kept("messages"), "langchain"),
    "SummarizationMiddleware, keep tokens": (lambda: summarization_kept("tokens"), "langchain"),
    "ChatMemoryBuffer": (llama_kept, "llama-index-core"),
    "BufferedChatCompletionContext": (lambda: autogen_kept("buffered"), "autogen-core"),
    "HeadAndTailChatCompletionContext": (lambda: autogen_kept("head and tail"), "autogen-core"),
    "TokenLimitedChatCompletionContext": (lambda: autogen_kept("token limited"), "autogen-core"),
    "events to compact": (adk_kept, "google-adk"),
}
"""By the name in the table: what makes the trimmer, and the package it is from."""
