"""Real conversations in every format and back, judged by memcore and by the providers' types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memcore
import strategies

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
MATERIAL = {
    "openai_chat": ("openai.types.chat", "ChatCompletionMessageParam"),
    "openai_responses": ("openai.types.responses", "ResponseInputItemParam"),
    "anthropic": ("anthropic.types", "MessageParam"),
    "gemini": ("google.genai.types", "Content"),
}


def conversations(corpus: Path, step: int) -> Iterator[list[dict[str, Any]]]:
    with corpus.open(encoding="utf-8") as lines:
        for at, line in enumerate(lines):
            if at % step == 0:
                yield json.loads(line)["messages"]


def judge_of(wire: str) -> Callable[[list[dict[str, Any]]], None]:
    """The provider's own reading of a request; it raises if the messages have another form."""
    if wire == "langchain":
        return pytest.importorskip("langchain_core.messages").convert_to_messages
    module, name = MATERIAL[wire]
    adapter = pytest.importorskip("pydantic").TypeAdapter
    judge = adapter(getattr(pytest.importorskip(module), name))

    def check(messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if message.get("role") != "system" or wire.startswith("openai"):
                judge.validate_python(strict_lists(judge.validate_python(message)))

    return check


def strict_lists(value: Any) -> Any:
    """Read the lazy iterables of pydantic, whose entries are judged only then."""
    if isinstance(value, dict):
        return {key: strict_lists(entry) for key, entry in value.items()}
    if isinstance(value, str | bytes | int | float | None) or hasattr(value, "model_dump"):
        return value
    return [strict_lists(entry) for entry in value]


def told(messages: list[dict[str, Any]]) -> list[Any]:
    """Texts, calls and results of chat messages, in order, without the form of a text."""
    found: list[Any] = []
    for message in messages:
        content = message.get("content") or ""
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text = "".join(block.get("text", "") for block in blocks)
        calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        if text or calls or message["role"] == "tool":
            found.append((message["role"], text, calls))
    return found


def look_at(messages: list[dict[str, Any]]) -> None:
    chat = memcore.convert(messages, to="openai_chat")
    for first in WIRES:
        there = memcore.convert(messages, to=first)
        assert memcore.validate(there.messages, first) == []
        for second in WIRES:
            made = memcore.convert(there.messages, to=second)
            assert memcore.validate(made.messages, second) == []
            lost = {repair.action for repair in (*there.repairs, *made.repairs)}
            if second != "openai_chat" or chat.repairs:
                continue  # late results: Responses has no border between two answers of the model
            if not lost & {"lead_in", "role", "opaque", "media"}:
                assert told(made.messages) == told(chat.messages)


def test_generated_conversations():
    for messages in strategies.corpus_like(3, 60):
        look_at(messages)


def test_some_real_conversations(corpus):
    for messages in conversations(corpus, 40):
        look_at(messages)


@pytest.mark.long
def test_real_conversations(corpus):
    for messages in conversations(corpus, 1):
        look_at(messages)


@pytest.mark.parametrize("wire", WIRES)
def test_providers_take_real_conversations(wire, corpus):
    judge = judge_of(wire)
    for messages in conversations(corpus, 25):
        for first in WIRES:
            there = memcore.convert(messages, to=first).messages
            judge(memcore.convert(there, to=wire).messages)
