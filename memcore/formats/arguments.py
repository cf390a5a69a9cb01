"""The calls in a message: their arguments where these may be edited, and their tools' names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from memcore._fast import classify
from memcore.formats.binding import BY_NAME, CLASS_SERVER, Key
from memcore.formats.body import body_path, dicts_in, member_of, name_in
from memcore.formats.editing import Path, value_at
from memcore.model import ItemKind, Message

__all__ = ["Arguments", "arguments_of", "call_names"]

_CUSTOM: Final = 1
"""The class of custom tools' ids in ``_fast.classify``."""
_CALL_KEYS: Final = ("functionCall", "function_call")
_SERVER_BLOCKS: Final = ("server_tool_use", "mcp_tool_use", "server_tool_call")
_CALL_BLOCKS: Final = ("tool_use", "tool_call", "invalid_tool_call")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call, in one of the places where the message writes them."""

    path: Path
    form: Literal["json", "object", "text"]
    """JSON in a string; a JSON object; the free input of a custom tool."""
    key: Key | None
    name: str | None


def arguments_of(message: Message) -> list[Arguments]:
    """The arguments of the calls in a message; a call that is written twice has two."""
    kind = classify(message)[0]
    if kind == ItemKind.CALL:
        return _responses_arguments(message)
    if kind != ItemKind.ASSISTANT:
        return []
    base = body_path(message)
    body = value_at(message, base)
    found = list(_chat_arguments(body, base))
    kwargs = body.get("additional_kwargs")
    if isinstance(kwargs, dict):
        found += _chat_arguments(kwargs, (*base, "additional_kwargs"))
    for at, block in dicts_in(body.get("content")):
        field = {"tool_use": "input", "tool_call": "args"}.get(str(block.get("type")))
        if field is not None and isinstance(block.get(field), dict):
            found.append(_called((*base, "content", at, field), "object", block, block.get("id")))
    for at, part in dicts_in(body.get("parts")):
        member = member_of(part, _CALL_KEYS)
        if member is not None and isinstance(part[member].get("args"), dict):
            path = (*base, "parts", at, member, "args")
            found.append(_called(path, "object", part[member], part[member].get("id")))
    return found


def _called(
    path: Path,
    form: Literal["json", "object", "text"],
    call: dict[str, Any],
    call_id: Any,
    cls: int = 0,
) -> Arguments:
    name, text = name_in(call.get("name")), name_in(call_id)
    key = (cls, text) if text else (cls | BY_NAME, name) if name else None
    return Arguments(path, form, key, name)


def _chat_arguments(body: dict[str, Any], base: Path) -> Iterator[Arguments]:
    """Of OpenAI chat, and of LangChain, which writes ``args`` beside the name."""
    for at, call in dicts_in(body.get("tool_calls")):
        path, inner = (*base, "tool_calls", at), call.get("function")
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            yield _called((*path, "function", "arguments"), "json", inner, call.get("id"))
        elif isinstance(call.get("args"), dict):
            yield _called((*path, "args"), "object", call, call.get("id"))
        custom = call.get("custom")
        if isinstance(custom, dict) and isinstance(custom.get("input"), str):
            yield _called((*path, "custom", "input"), "text", custom, call.get("id"))
    single = body.get("function_call")
    if isinstance(single, dict) and isinstance(single.get("arguments"), str):
        yield _called((*base, "function_call", "arguments"), "json", single, None)


def _responses_arguments(message: Message) -> list[Arguments]:
    kind, call_id = message.get("type"), message.get("call_id")
    if kind == "function_call" and isinstance(message.get("arguments"), str):
        return [_called(("arguments",), "json", message, call_id)]
    if kind == "custom_tool_call" and isinstance(message.get("input"), str):
        return [_called(("input",), "text", message, call_id, _CUSTOM)]
    return []


# --- names ----------------------------------------------------------------------------------------


def call_names(message: Message) -> dict[Key | None, str]:
    """The names of the tools that a message calls, by the keys of the calls.

    Tools of OpenAI without a name of their own are named after the type of the item: ``shell`` for
    a ``shell_call``. The key of a call that needs no answer is None.
    """
    kind, opens, _, _ = classify(message)
    label = message.get("type")
    if "role" not in message and isinstance(label, str) and label.endswith(("_call", "_request")):
        name = name_in(message.get("name")) or label.removesuffix("_call")
        return {opens[0] if opens else None: name}
    if kind != ItemKind.ASSISTANT:
        return {}
    body = value_at(message, body_path(message))
    found: dict[Key | None, str] = {}
    for call, call_id, cls in _named_calls(body):
        called, text = name_in(call.get("name")), name_in(call_id)
        if called is not None:
            found.setdefault((cls, text) if text else (cls | BY_NAME, called), called)
    return found


def _named_calls(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any, int]]:
    """Objects with a ``name``, the id of their call and its class."""
    kwargs = body.get("additional_kwargs")
    for place in (body, kwargs if isinstance(kwargs, dict) else {}):
        for field in ("tool_calls", "invalid_tool_calls"):
            for _, call in dicts_in(place.get(field)):
                inner = member_of(call, ("function", "custom"))
                yield call[inner] if inner else call, call.get("id"), 0
        if isinstance(place.get("function_call"), dict):
            yield place["function_call"], None, 0
    for _, block in dicts_in(body.get("content")):
        if block.get("type") in _CALL_BLOCKS:
            yield block, block.get("id"), 0
        elif block.get("type") in _SERVER_BLOCKS:
            yield block, block.get("id"), CLASS_SERVER
    for _, part in dicts_in(body.get("parts")):
        member = member_of(part, _CALL_KEYS)
        if member is not None:
            yield part[member], part[member].get("id"), 0
