"""Preview of a message in any wire format: its texts and calls on one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from memcore.model import Message

__all__ = [
    "preview",
]


def preview(message: Message) -> str:
    """The texts and tool calls of a message in any wire format, on one line."""
    parts = list(_parts(message))
    return " ".join(parts) if parts else json.dumps(message, ensure_ascii=False)


def _parts(message: Message) -> Iterator[str]:
    body = message.get("data") if isinstance(message.get("data"), dict) else message
    if not isinstance(body, dict):
        return
    for field in ("content", "parts", "output", "summary"):
        yield from _texts(body.get(field))
    calls = body.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        yield from _call(call)
    if str(body.get("type", "")).endswith("_call"):
        yield from _call(body)
    if "payload" in message:
        payload = json.dumps(message["payload"], ensure_ascii=False)
        yield f"{message.get('type')}: {payload}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for block in value if isinstance(value, list) else ():
        if not isinstance(block, dict):
            continue
        text = block.get("text", block.get("thinking"))
        if isinstance(text, str):
            yield text
        elif block.get("type") == "tool_use" or "functionCall" in block:
            yield from _call(block.get("functionCall", block))
        elif block.get("type") == "tool_result":
            yield from _texts(block.get("content"))
        else:
            yield json.dumps(block, ensure_ascii=False)


def _call(call: Any) -> Iterator[str]:
    if not isinstance(call, dict):
        return
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    arguments = inner.get("arguments", inner.get("args", inner.get("input", "")))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    yield f"→ {inner.get('name')}({text})"
