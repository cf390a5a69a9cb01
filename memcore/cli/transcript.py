"""Items as a readable transcript: what each says, which calls are open, what is an orphan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memcore.cli.output import clip
from memcore.formats import Entry, bind
from memcore.model import Item, ItemKind, Message

__all__ = ["PREVIEW_CHARS", "Line", "preview", "transcribe"]

PREVIEW_CHARS: Final = 96


@dataclass(frozen=True, slots=True)
class Line:
    """One item of a transcript."""

    item: Item
    open_calls: tuple[str, ...]
    abandoned: tuple[str, ...]
    orphan: bool

    @property
    def mark(self) -> str:
        """What a reader should notice."""
        marks = []
        if self.open_calls:
            marks.append(f"OPEN {', '.join(self.open_calls)}")
        if self.abandoned:
            marks.append(f"ABANDONED {', '.join(self.abandoned)}")
        if self.orphan:
            marks.append("ORPHAN")
        return "; ".join(marks)

    @property
    def row(self) -> tuple[object, ...]:
        """Its row of a table: seq, kind, tokens, text."""
        text = preview(self.item.message)
        if self.mark:
            text = f"[{self.mark}] {text}"
        return (self.item.seq, kind_of(self.item), self.item.tokens, clip(text, PREVIEW_CHARS))


def kind_of(item: Item) -> str:
    """The item's kind in lower case."""
    return item.kind.name.lower()


def transcribe(items: Sequence[Item]) -> list[Line]:
    """The items with what is known of their calls; give it all items from the first one on."""
    binding = bind(
        Entry(item.seq, item.message, event=item.kind == ItemKind.EVENT) for item in items
    )
    lines = []
    for at, item in enumerate(items):
        waiting = [slot for slot in binding.calls[at] if not slot.results and not slot.is_server]
        answers = binding.answers[at]
        orphan = item.kind == ItemKind.RESULT and not any(slot for _, slot in answers)
        lines.append(
            Line(
                item,
                tuple(slot.key[1] for slot in waiting if not slot.abandoned),
                tuple(slot.key[1] for slot in waiting if slot.abandoned),
                orphan,
            )
        )
    return lines


def preview(message: Message) -> str:
    """What a message says and which tools it calls, in any wire format."""
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
