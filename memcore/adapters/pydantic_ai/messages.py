"""Messages of Pydantic AI, as JSON, in Anthropic's format: what a model reads of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from memcore.adapters.lines import call_input
from memcore.model import Message

__all__ = [
    "from_pydantic_ai",
]


_TEXTS: Final = frozenset(("user-prompt", "retry-feedback"))


def from_pydantic_ai(message: Mapping[str, Any]) -> Message | None:
    """Return a message as an item of Anthropic's format; None: a model reads nothing in it.

    A view: system prompts, provider's details, and what the provider's own tools did are not in it.

    Args:
        message: a ``ModelRequest`` or ``ModelResponse`` as ``ModelMessagesTypeAdapter`` dumps it.
    """
    parts = message.get("parts") or ()
    if message.get("kind") == "response":
        content = [block for part in parts for block in _said(part)]
        return {"role": "assistant", "content": content} if content else None
    results = [_result(part) for part in parts if _answers(part)]
    others = [block for part in parts if not _answers(part) for block in _asked(part)]
    return {"role": "user", "content": results + others} if results or others else None


def _answers(part: Mapping[str, Any]) -> bool:
    kind = part.get("part_kind")
    return kind == "tool-return" or (kind == "retry-prompt" and bool(part.get("tool_name")))


def _result(part: Mapping[str, Any]) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": part["tool_call_id"]}
    block["content"] = _text(part.get("content"))
    failed = part.get("part_kind") == "retry-prompt" or part.get("outcome") not in (None, "success")
    return {**block, "is_error": True} if failed else block


def _asked(part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if part.get("part_kind") not in _TEXTS and part.get("part_kind") != "retry-prompt":
        return
    content = part.get("content")
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, str):
            if each:
                yield {"type": "text", "text": each}
        elif isinstance(each, dict):
            yield _attached(each)


def _attached(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block of an image or a document, or a note of what else is attached."""
    kind, media = part.get("kind"), str(part.get("media_type") or "")
    if kind == "text" or isinstance(part.get("content"), str):
        return {"type": "text", "text": _text(part.get("content"))}
    if kind == "image-url":
        return {"type": "image", "source": {"type": "url", "url": part.get("url")}}
    if kind == "binary" and media.startswith("image/") and isinstance(part.get("data"), str):
        data = part["data"].translate(_STANDARD)
        return {
            "type": "image", "source": {"type": "base64", "media_type": media, "data": data}
        }  # fmt: skip
    return {"type": "text", "text": f"[{kind} {part.get('url') or media}]"}


_STANDARD: Final = str.maketrans("-_", "+/")
"""From the alphabet of URLs, in which Pydantic writes base64, to the one that providers read."""


def _said(part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part.get("part_kind")
    if kind == "text" and part.get("content"):
        yield {"type": "text", "text": part["content"]}
    elif kind == "thinking" and part.get("content") and part.get("signature"):
        yield {
            "type": "thinking", "thinking": part["content"], "signature": part["signature"]
        }  # fmt: skip
    elif kind == "tool-call":
        block = {"type": "tool_use", "id": part["tool_call_id"], "name": part["tool_name"]}
        yield {**block, "input": call_input(part.get("args"))}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
