"""What stays of an expired message, in all wire formats."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from memcore._fast import pack_facts
from memcore.codec.values import encode_json
from memcore.log.rewrite import same_calls
from memcore.tokens import get_counter
from memcore.wire.expire import expired_message
from oracle import Event
from strategies import FORMATS, histories, mixed_histories

SEED = bytes(range(16))
COUNTERS = tuple(map(get_counter, ("bytes/4", "o200k_base")))


def look(history: list[object]) -> None:
    for message in history:
        if isinstance(message, Event):
            continue
        shortest = expired_message(message, "")
        for text in ("[expired]", ".", ""):
            made = expired_message(message, text)
            assert same_calls(pack_facts(made, SEED), pack_facts(message, SEED))
            assert expired_message(made, text) == made
        for by in COUNTERS:
            counted = by.count_message(message, encode_json(message)[0])
            assert by.count_message(shortest, encode_json(shortest)[0]) <= counted


@pytest.mark.parametrize("fmt", FORMATS)
def test_kind_calls_and_results_stay(fmt: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(histories(fmt))
    def run(history: list[object]) -> None:
        look(history)

    run()


@settings(max_examples=12, deadline=None)
@given(mixed_histories())
def test_of_all_formats_at_once(history: list[object]) -> None:
    look(history)


S = "SECRET"
MESSAGES = (
    {
        "role": "user",
        "name": S,
        "content": [{"type": "text", "text": S}, {"type": "image_url", "image_url": {"url": S}}],
    },
    {
        "role": "assistant",
        "content": S,
        "refusal": S,
        "audio": {"id": "a", "data": S},
        "reasoning_content": S,
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": S}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": S}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "content": [{"type": "output_text", "text": S, "annotations": [{"url": S}]}],
    },
    {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": S}],
    },
    {"type": "shell_call", "call_id": "c", "action": {"commands": [S]}},
    {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": S, "stderr": S, "outcome": {"type": "exit", "exit_code": 1}}],
    },
    {
        "type": "apply_patch_call",
        "call_id": "c",
        "operation": {"type": "update_file", "path": S, "diff": S},
    },
    {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": S}],
        "encrypted_content": S,
    },
    {
        "type": "web_search_call",
        "id": "w",
        "status": "completed",
        "action": {"type": "search", "query": S},
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": S, "signature": S},
            {"type": "tool_use", "id": "c", "name": "f", "input": {S: S}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": S}]},
            {"type": "text", "text": S},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": S}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"title": S}]},
        ],
    },
    {
        "role": "model",
        "parts": [
            {"text": S, "thought": True},
            {"functionCall": {"name": "f", "args": {"a": S}}, "thoughtSignature": S},
        ],
    },
    {
        "role": "user",
        "parts": [
            {
                "functionResponse": {
                    "name": "f",
                    "response": {"output": S},
                    "parts": [{"inlineData": {"data": S}}],
                }
            }
        ],
    },
    {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": S}}]},
    {
        "type": "ai",
        "data": {
            "content": S,
            "tool_calls": [{"name": "f", "args": {"a": S}, "id": "c", "type": "tool_call"}],
            "additional_kwargs": {"x": S},
            "response_metadata": {"y": S},
        },
    },
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "ToolMessage"],
        "kwargs": {"content": S, "tool_call_id": "c", "artifact": S},
    },
    {"kind": "nobody knows", "text": S, "data": [S]},
)


@pytest.mark.parametrize("message", MESSAGES, ids=range(len(MESSAGES)))
def test_nothing_that_was_said_stays(message: dict[str, object]) -> None:
    made = expired_message(message)
    assert S not in json.dumps(made)
    assert same_calls(pack_facts(made, SEED), pack_facts(message, SEED))
    for part in ("tool_use_id", "call_id", '"id": "c"', '"f"'):
        assert (part in json.dumps(made)) == (part in json.dumps(message))
