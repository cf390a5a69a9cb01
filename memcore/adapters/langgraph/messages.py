"""Messages of a LangGraph channel, made legal for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage, message_to_dict, messages_from_dict
from langchain_core.runnables import RunnableConfig
from langgraph.channels.binop import _get_overwrite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages

from memcore.context import fit
from memcore.errors import InvalidItemError, NotFoundError
from memcore.model import Context
from memcore.tokens import TokenCounter
from memcore.wire import get_policy
from memcore.wire.validate import find_violations

__all__ = [
    "channel_messages",
    "message_faults",
    "messages_context",
]


def channel_messages(
    saver: BaseCheckpointSaver[str],
    thread_id: str,
    checkpoint_ns: str,
    checkpoint_id: str | None,
    channel: str,
) -> list[Any]:
    """The messages in a channel of a checkpoint.

    Raises:
        NotFoundError: there is no such thread, checkpoint or channel.
        InvalidItemError: the channel does not hold a list.
    """
    configurable = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    config: RunnableConfig = {"configurable": configurable}
    found = saver.get_tuple(config)
    if found is None:
        msg = f"thread {str(thread_id)[:40]!r} has no checkpoint {checkpoint_id or ''!r:.42}"
        raise NotFoundError(msg)
    if channel in found.checkpoint["channel_values"]:
        return _listed(_seed(found.checkpoint["channel_values"][channel]), channel)
    if channel not in found.checkpoint["channel_versions"]:
        known = ", ".join(sorted(found.checkpoint["channel_versions"]))
        msg = f"the checkpoint has no channel {channel!r}; it has {known or 'none'}"
        raise NotFoundError(msg)
    return _rebuilt(saver, found.config, channel)


def _rebuilt(saver: BaseCheckpointSaver[str], config: RunnableConfig, channel: str) -> list[Any]:
    """Rebuild a channel that is stored as deltas."""
    history = saver.get_delta_channel_history(config=config, channels=[channel])[channel]
    messages = _listed(_seed(history.get("seed", [])), channel)
    for _, _, written in history["writes"]:
        replaced, value = _get_overwrite(written)
        if replaced:
            messages = _listed(value or [], channel)
        else:
            messages = _listed(add_messages(messages, _fitting(messages, written)), channel)
    return messages


def _seed(value: Any) -> Any:
    """The content of a delta snapshot; any other value unchanged."""
    return value.value if isinstance(value, _DeltaSnapshot) else value


def _fitting(messages: Sequence[Any], written: Any) -> Any:
    """A write without removals of absent messages, which delta channels allow."""
    known = {getattr(message, "id", None) for message in messages} | {REMOVE_ALL_MESSAGES}
    fitting = []
    for message in written if isinstance(written, list) else [written]:
        if isinstance(message, RemoveMessage) and message.id not in known:
            continue
        fitting.append(message)
        known.add(getattr(message, "id", None))
    return fitting


def _listed(value: Any, channel: str) -> list[Any]:
    if not isinstance(value, list):
        msg = f"channel {channel!r} holds a {type(value).__name__}, not a list of messages"
        raise InvalidItemError(msg)
    return value


def messages_context(
    messages: Sequence[Any],
    budget_tokens: int | None,
    *,
    reserve_tokens: int,
    policy: str,
    counter: str | TokenCounter,
) -> Context:
    """``memcore.fit`` over LangChain message objects, or over dicts."""
    items = [message_to_dict(m) if isinstance(m, BaseMessage) else m for m in messages]
    given = {id(item): message for item, message in zip(items, messages, strict=True)}
    context = fit(
        items, budget_tokens, reserve_tokens=reserve_tokens, policy=policy, counter=counter
    )
    objects = any(isinstance(message, BaseMessage) for message in messages)
    shown = [given[id(m)] if id(m) in given else _made(m, objects) for m in context.messages]
    return replace(context, messages=shown)


def message_faults(value: Any) -> list[tuple[int, str]]:
    """Find the positions where a channel's messages violate the pairing of tool calls and results.

    Other values have no faults.
    """
    value = value.value if isinstance(value, _DeltaSnapshot) else value
    if not isinstance(value, list) or not all(isinstance(m, BaseMessage) for m in value):
        return []
    found = find_violations([message_to_dict(m) for m in value], get_policy("langchain"))
    return [(one.position, f"{one.rule}: {one.reason}") for one in found]


def _made(message: Any, as_object: bool) -> Any:
    """A message that memcore wrote or changed, in the channel's representation."""
    return messages_from_dict([message])[0] if as_object else message
