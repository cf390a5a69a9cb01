"""Messages on one line, in any wire format, and tables of them in HTML for notebooks."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = [
    "html_table",
    "preview",
]


Message = Mapping[str, Any]
_CELL_CHARS: Final = 300


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a titled table: every text escaped, hidden characters as codes, long ones cut."""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in headings)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="text-align:left">{_cell(each)}</td>' for each in row)
        + "</tr>"
        for row in rows
    )
    return (
        f"<div><b>{_cell(title)}</b><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    if len(text) > _CELL_CHARS:
        text = text[: _CELL_CHARS - 1] + "…"
    shown = (
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
    return html.escape("".join(shown))


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
