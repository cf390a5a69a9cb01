"""A summary without a model: what the user asked, which tools ran, how it ended."""

from __future__ import annotations

from typing import Any, Final

from memcore.formats import Entry, bind
from memcore.model import ItemKind, Message, SummaryRequest

__all__ = ["extractive"]

LINE_CHARS_MAX: Final = 160
LINES_MAX: Final = 40
_LABELS: Final = {
    ItemKind.SYSTEM: "instruction",
    ItemKind.USER: "user",
    ItemKind.ASSISTANT: "assistant",
    ItemKind.RESULT: "result",
}


def extractive(request: SummaryRequest) -> str:
    """One line for each message and tool call, oldest first; the newest 40 lines are kept.

    Serves where there is no model to ask: deterministic, and it never fails on JSON items.
    """
    lines = (request.previous_summary or "").splitlines()
    binding = bind(Entry(at, message) for at, message in enumerate(request.messages))
    for at, message in enumerate(request.messages):
        text = _line(_text_of(message))
        label = _LABELS.get(ItemKind(binding.kinds[at]))
        if text and label is not None:
            lines.append(f"{label}: {text}")
        names = _call_names(message)
        if names:
            lines.append(f"tools called: {', '.join(names)}")
    return "\n".join(lines[-LINES_MAX:]) or "(nothing of note)"


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_CHARS_MAX else text[: LINE_CHARS_MAX - 1] + "…"


def _text_of(message: Message) -> str:
    body = message.get("data") if isinstance(message.get("data"), dict) else message
    content = body.get("content", body.get("parts", body.get("output", ""))) if body else ""
    if isinstance(content, str):
        return content
    found = []
    for block in content if isinstance(content, list) else ():
        text = block.get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            found.append(text)
    return " ".join(found)


def _call_names(message: Message) -> list[str]:
    calls: list[Any] = [message.get("function_call")]
    if isinstance(message.get("name"), str) and str(message.get("type", "")).endswith("_call"):
        calls.append(message)
    for field in ("tool_calls", "content", "parts"):
        value = message.get(field)
        calls += value if isinstance(value, list) else []
    names = []
    for call in calls:
        if isinstance(call, dict):
            inner = call.get("function") or call.get("functionCall") or call
            name = inner.get("name") if isinstance(inner, dict) else None
            if isinstance(name, str) and name:
                names.append(name)
    return names
