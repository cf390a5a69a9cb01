"""What stays of an expired message, in all wire formats."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from memcore import validate
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


REQUIRING = (
    (
        "openai_responses",
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "secret"},
        },
    ),
    (
        "openai_responses",
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "completed",
            "queries": ["secret"],
            "results": None,
        },
    ),
    (
        "openai_responses",
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "secret",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": "secret"}],
        },
    ),
    (
        "openai_responses",
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"},
    ),
    (
        "openai_responses",
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "name": "n",
            "server_label": "s",
            "arguments": '{"a":"secret"}',
            "output": "secret",
            "error": None,
        },
    ),
    (
        "openai_responses",
        {
            "type": "mcp_list_tools",
            "id": "ml",
            "server_label": "s",
            "tools": [{"name": "x", "input_schema": {}}],
        },
    ),
    (
        "openai_responses",
        {
            "type": "mcp_approval_request",
            "id": "ma",
            "name": "n",
            "server_label": "s",
            "arguments": "{}",
        },
    ),
    (
        "openai_responses",
        {
            "type": "computer_call",
            "id": "cc",
            "call_id": "c",
            "status": "completed",
            "pending_safety_checks": [],
            "action": {"type": "click", "button": "left", "x": 1, "y": 2},
        },
    ),
    (
        "openai_responses",
        {
            "type": "computer_call",
            "id": "cc",
            "call_id": "c",
            "status": "completed",
            "pending_safety_checks": [{"id": "sc", "code": "malicious", "message": "m"}],
            "action": {"type": "type", "text": "secret"},
        },
    ),
    (
        "openai_responses",
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"},
        },
    ),
    (
        "openai_responses",
        {
            "type": "local_shell_call",
            "id": "l",
            "call_id": "c",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
    ),
    ("openai_responses", {"type": "local_shell_call_output", "id": "l", "output": "secret"}),
    ("openai_responses", {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}),
    (
        "openai_responses",
        {
            "type": "shell_call_output",
            "call_id": "c",
            "output": [{"stdout": "s", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ),
    (
        "openai_responses",
        {
            "type": "apply_patch_call",
            "call_id": "c",
            "status": "completed",
            "operation": {"type": "create_file", "path": "p", "diff": "d"},
        },
    ),
    (
        "openai_responses",
        {
            "type": "apply_patch_call_output",
            "call_id": "c",
            "status": "completed",
            "output": "secret",
        },
    ),
    (
        "openai_responses",
        {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "secret"},
    ),
    (
        "openai_responses",
        {
            "type": "custom_tool_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "secret"}],
        },
    ),
    ("openai_responses", {"type": "function_call", "call_id": "c", "name": "n", "arguments": ""}),
    ("openai_responses", {"type": "function_call_output", "call_id": "c", "output": []}),
    (
        "openai_responses",
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "secret"}],
            "encrypted_content": "x",
        },
    ),
    ("openai_responses", {"type": "compaction", "encrypted_content": "x"}),
    ("openai_responses", {"type": "item_reference", "id": "x"}),
    (
        "openai_responses",
        {
            "type": "tool_search_call",
            "call_id": "c",
            "arguments": {"q": "secret"},
            "execution": "client",
            "status": "completed",
        },
    ),
    (
        "openai_responses",
        {
            "type": "tool_search_output",
            "call_id": "c",
            "tools": [{"type": "function", "name": "x", "parameters": {}, "strict": False}],
            "execution": "client",
            "status": "completed",
        },
    ),
    (
        "openai_responses",
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "secret"},
                {"type": "input_image", "image_url": "x", "detail": "auto"},
            ],
        },
    ),
    (
        "openai_responses",
        {
            "type": "message",
            "id": "m",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "secret"}],
        },
    ),
    (
        "openai_responses",
        {
            "type": "message",
            "id": "m",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "secret", "annotations": []}],
        },
    ),
    (
        "openai_responses",
        {
            "type": "mcp_approval_response",
            "approval_request_id": "ma",
            "approve": True,
            "reason": "secret",
        },
    ),
    (
        "openai_chat",
        {
            "role": "user",
            "name": "bob",
            "content": [
                {"type": "text", "text": "secret"},
                {"type": "image_url", "image_url": {"url": "x"}},
            ],
        },
    ),
    (
        "openai_chat",
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ),
    (
        "openai_chat",
        {
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}],
        },
    ),
    ("openai_chat", {"role": "assistant", "content": None, "refusal": "secret"}),
    ("openai_chat", {"role": "assistant", "content": [{"type": "refusal", "refusal": "secret"}]}),
    ("openai_chat", {"role": "assistant", "audio": {"id": "x"}}),
    (
        "openai_chat",
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "custom", "custom": {"name": "n", "input": "secret"}}
            ],
        },
    ),
    (
        "openai_chat",
        {"role": "assistant", "content": None, "function_call": {"name": "n", "arguments": "{}"}},
    ),
    (
        "openai_chat",
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "n", "arguments": "secret"}}
            ],
        },
    ),
    (
        "openai_chat",
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "secret"}]},
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "secret", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "n", "input": {"a": "secret"}},
            ],
        },
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "secret", "signature": "s"}],
        },
    ),
    (
        "anthropic",
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "secret"},
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "image", "source": {"type": "url", "url": "x"}}],
                },
            ],
        },
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [
                {
                    "type": "server_tool_use",
                    "id": "s1",
                    "name": "web_search",
                    "input": {"query": "secret"},
                },
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "s1",
                    "content": [
                        {
                            "type": "web_search_result",
                            "url": "u",
                            "title": "t",
                            "encrypted_content": "x",
                        }
                    ],
                },
                {"type": "text", "text": "secret", "citations": []},
            ],
        },
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [
                {
                    "type": "mcp_tool_use",
                    "id": "s1",
                    "name": "x",
                    "server_name": "srv",
                    "input": {"query": "secret"},
                },
                {
                    "type": "mcp_tool_result",
                    "tool_use_id": "s1",
                    "is_error": False,
                    "content": "secret",
                },
            ],
        },
    ),
    (
        "anthropic",
        {
            "role": "assistant",
            "content": [
                {
                    "type": "server_tool_use",
                    "id": "s1",
                    "name": "code_execution",
                    "input": {"code": "secret"},
                },
                {
                    "type": "code_execution_tool_result",
                    "tool_use_id": "s1",
                    "content": {
                        "type": "code_execution_result",
                        "stdout": "secret",
                        "stderr": "",
                        "return_code": 0,
                        "content": [],
                    },
                },
            ],
        },
    ),
)
"""Items of every type that providers know, with all the fields that they require."""


@pytest.mark.parametrize(("policy", "message"), REQUIRING)
def test_all_that_a_provider_requires_stays(policy: str, message: dict[str, Any]) -> None:
    def faults(message: dict[str, Any]) -> list[str]:
        return [each.reason for each in validate([message], policy) if each.rule == "form"]

    assert faults(message) == []
    made = expired_message(message)
    assert faults(made) == []
    assert "secret" not in json.dumps(made)
    assert expired_message(made) == made
    if policy == "openai_responses":
        TypeAdapter(ResponseInputItemParam).validate_python(made)
