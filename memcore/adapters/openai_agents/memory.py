"""Long-term memory for agents of the SDK: function tools, and a filter that shows memories.

Both take a user's memory, or a ``MemcoreSession``, whose user's memory it is, in that session. With
``scope_of`` the user is that of each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from agents import FunctionTool
from agents.run_config import CallModelData, ModelInputData
from agents.run_context import RunContextWrapper
from agents.tool_context import ToolContext

from memcore._fast import classify
from memcore.adapters.openai_agents.history import History
from memcore.adapters.openai_agents.legal_input import plain_items
from memcore.aio.memory import AsyncMemories
from memcore.errors import InvalidOptionError
from memcore.memory import (
    LAST_USER,
    Memories,
    Recall,
    Recalled,
    RecallPlace,
    ToolHandle,
    answer_named,
    choose_memories,
    embedded_place,
    tool_handle,
    tool_schemas,
)
from memcore.memory.trust import own_texts
from memcore.model import ItemKind, Memory, Message
from memcore.telemetry import plain
from memcore.tokens import TokenCounter, get_counter
from memcore.wire import POLICIES

__all__ = [
    "memory_tools",
    "recall_call_model_input_filter",
]


MemorySource: TypeAlias = Memories | AsyncMemories | History
"""Memory of a user, or the session whose user's memory it is."""
InputFilter: TypeAlias = Callable[[CallModelData[Any]], Any]
_POLICY: Final = POLICIES["openai_responses"]


def memory_tools(memory: MemorySource) -> list[FunctionTool]:
    """Return function tools by which an agent searches and changes a user's memory.

    They are those of ``memory.tools("openai_responses")``: no argument names a user, and whatever
    is wrong with a call is a result. A tool's trust follows from the session (docs/memory-tools.md)
    if the memory is one of a session.

    Args:
        memory: ``session.memory``, ``scope.memory`` or a ``MemcoreSession``.

    Raises:
        InvalidOptionError: it is none of these.
    """
    _need_source(memory)
    return [
        FunctionTool(
            name=schema["name"],
            description=schema["description"],
            params_json_schema=schema["parameters"],
            on_invoke_tool=partial(_invoke, memory, schema["name"]),
            strict_json_schema=False,
        )
        for schema in tool_schemas("openai_responses")
    ]


async def _invoke(memory: MemorySource, name: str, context: ToolContext[Any], given: str) -> str:
    handle = _handle_of(memory, context)
    answer = await asyncio.to_thread(
        answer_named, name, given, handle, call_id=context.tool_call_id or None
    )
    return answer.text


def recall_call_model_input_filter(
    memory: MemorySource,
    recall: Recall | None = None,
    *,
    first: InputFilter | None = None,
    counter: str | TokenCounter | None = None,
) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
    """Return a filter for ``RunConfig`` that shows a user's memories in each call of the model.

    They are placed as ``session.context(memory=...)`` places them, and never stored. Their budget
    is in addition to that of other filters.

    Args:
        memory: ``session.memory``, ``scope.memory`` or a ``MemcoreSession``.
        recall: what is shown; None: ``Recall()``.
        first: another filter, such as ``safe_call_model_input_filter``, whose input is extended.
        counter: the token counter, as in ``memcore.open``.

    Raises:
        InvalidOptionError: an argument is none of these.
    """
    _need_source(memory)
    asked = Recall() if recall is None else recall
    if not isinstance(asked, Recall):
        msg = f"recall: expected a Recall or None, got {type(recall).__name__}"
        raise InvalidOptionError(msg)
    return partial(_recalling, memory, asked, first, get_counter(counter))


async def _recalling(
    memory: MemorySource,
    asked: Recall,
    first: InputFilter | None,
    counter: TokenCounter,
    data: CallModelData[Any],
) -> ModelInputData:
    found = data.model_data
    if first is not None:
        made = first(data)
        found = await made if isawaitable(made) else made
    wrapper = RunContextWrapper(context=data.context)
    handle = _handle_of(memory, wrapper)
    items = plain_items(found.input)
    recalled = await asyncio.to_thread(_recalled, handle, asked, items, counter)
    if recalled is None:
        return found
    if handle.uses is not None:
        recalled.note_uses(handle.uses)
    given: list[Any] = list(found.input)
    marks = [{**item, _MARK: at} for at, item in enumerate(items)]
    shown: list[Any] = [
        given[each[_MARK]] if _MARK in each else each for each in recalled.placed(marks)
    ]
    return ModelInputData(shown, found.instructions)


_MARK: Final = "memcore_at"
"""Field by which the items of an input are found again among those that were placed."""


def _recalled(
    handle: ToolHandle, asked: Recall, items: list[Message], counter: TokenCounter
) -> Recalled | None:
    """Choose the memories to show with an input."""
    query = asked.query
    if query == LAST_USER:
        texts = (own_texts(item)[0] for item in reversed(items) if _is_user(item))
        query = "\n".join(next(texts, []))
    if query is not None:  # also that of the input, which is not redacted before it is stored
        query = handle.redacted(query)
    shared: tuple[Memory, ...] = ()
    if asked.shared and asked.pinned:
        shared = tuple(handle.grants().memories(asked.admits))
    name, now_ms = handle.session or "", handle.now_ms()
    place = RecallPlace(asked, name, query, handle.indexes, now_ms, shared)
    place = embedded_place(place, handle.turn, handle.embedded)
    found: Recalled | None = handle.read(
        lambda txn, scope: choose_memories(
            txn, scope, place, policy=_POLICY, counter=counter, budget_tokens=asked.budget_tokens
        ),
        None,
    )
    return found


def _is_user(item: Message) -> bool:
    return classify(item)[0] == ItemKind.USER


def _need_source(memory: object) -> None:
    is_session = isinstance(memory, History)  # an adapter has telemetry, and no plain twin
    if not is_session and not isinstance(plain(memory), Memories | AsyncMemories):
        msg = (
            "memory: expected session.memory, scope.memory or a MemcoreSession, got "
            f"{type(memory).__name__}"
        )
        raise InvalidOptionError(msg)


def _handle_of(memory: MemorySource, wrapper: Any) -> ToolHandle:
    """Return the operations of the memory, of the user of this call."""
    found: Any = memory.native(wrapper).memory if isinstance(memory, History) else memory
    found = found.sync if isinstance(found, AsyncMemories) else found
    return tool_handle(plain(found))
