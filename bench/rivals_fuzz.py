"""Memories of frameworks as pairs of ``append`` and ``context``, for memcore's fuzzer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rivals_trim import as_autogen
from trimming import Message, finished, missing

__all__ = ["MEMORIES", "Rival"]

Make = Callable[[], tuple[Callable[[Message], Any], Callable[[int], Any]]]


class Rival(NamedTuple):
    """A framework's memory: what makes it, its package, the format it speaks, budgets and unit."""

    make: Callable[[], Make]
    package: str
    policy: str
    budgets: tuple[int, int]
    unit: str


# --- LangChain -----------------------------------------------------------------------------------


def trim_messages_memory(**options: Any) -> Make:
    """LangChain's trim_messages, counting messages."""
    try:
        from langchain_core.messages import convert_to_messages, trim_messages
    except ImportError as error:
        raise missing("langchain-core", error) from error

    def make() -> Any:
        history: list[Message] = []

        def context(budget: int) -> Any:
            messages = convert_to_messages(history)
            return trim_messages(messages, max_tokens=budget, token_counter=len, **options)

        return history.append, context

    return make


# --- LlamaIndex ----------------------------------------------------------------------------------


def chat_memory_buffer() -> Make:
    """LlamaIndex' ChatMemoryBuffer, a token a word."""
    try:
        from llama_index.core.base.llms.types import ChatMessage
        from llama_index.core.memory import ChatMemoryBuffer
    except ImportError as error:
        raise missing("llama-index-core", error) from error

    def message_of(item: Message) -> Any:
        more = {name: item[name] for name in ("tool_calls", "tool_call_id") if name in item}
        return ChatMessage(role=item["role"], content=item["content"], additional_kwargs=more)

    def make() -> Any:
        history: list[Any] = []

        def context(budget: int) -> Any:
            memory = ChatMemoryBuffer.from_defaults(
                chat_history=list(history), token_limit=budget, tokenizer_fn=str.split
            )
            return [
                {"role": kept.role.value, "content": kept.content, **kept.additional_kwargs}
                for kept in memory.get()
            ]

        return lambda item: history.append(message_of(item)), context

    return make


# --- AutoGen -------------------------------------------------------------------------------------


def chat_completion_context(name: str) -> Make:
    """AutoGen's context of that name, counting messages."""
    try:
        from autogen_core import model_context
    except ImportError as error:
        raise missing("autogen-core", error) from error

    def make() -> Any:
        history: list[Message] = []

        def context(budget: int) -> Any:
            sizes = (max(1, budget // 3), max(1, budget - budget // 3))
            limits = (budget,) if name.startswith("Buffered") else sizes
            made = getattr(model_context, name)(*limits, as_autogen(history))
            return [each for message in finished(made.get_messages()) for each in _chat(message)]

        return history.append, context

    return make


def _chat(message: Any) -> list[Message]:
    """A message of AutoGen as chat messages."""
    role = {"UserMessage": "user", "SystemMessage": "system"}.get(message.type)
    if role is not None:
        return [{"role": role, "content": message.content}]
    if message.type == "FunctionExecutionResultMessage":
        return [
            {"role": "tool", "tool_call_id": part.call_id, "content": part.content}
            for part in message.content
        ]
    if isinstance(message.content, str):
        return [{"role": "assistant", "content": message.content}]
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in message.content
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


MESSAGES = ((1, 16), "messages")
WORDS = ((20, 200), "words")
MEMORIES: dict[str, Rival] = {
    "trim_messages, default": Rival(
        trim_messages_memory, "langchain-core", "langchain", *MESSAGES
    ),
    "trim_messages, start_on=human + include_system": Rival(
        lambda: trim_messages_memory(start_on="human", include_system=True),
        "langchain-core", "langchain", *MESSAGES,
    ),
    "ChatMemoryBuffer": Rival(chat_memory_buffer, "llama-index-core", "openai_chat", *WORDS),
    "BufferedChatCompletionContext": Rival(
        lambda: chat_completion_context("BufferedChatCompletionContext"),
        "autogen-core", "openai_chat", *MESSAGES,
    ),
    "HeadAndTailChatCompletionContext": Rival(
        lambda: chat_completion_context("HeadAndTailChatCompletionContext"),
        "autogen-core", "openai_chat", *MESSAGES,
    ),
}  # fmt: skip
"""By name. Each is used as its documentation shows, with the budget as its one limit."""
