"""The editable parts of messages, in every wire format."""

from __future__ import annotations

import copy

import pytest

from memcore._fast import classify
from memcore.wire import WireItem
from memcore.wire.message import (
    REMOVED,
    arguments_of,
    call_names,
    edited,
    results_of,
    texts_of,
    tool_names,
    value_at,
)

FLAT = {"type": "tool", "tool_call_id": "c0", "name": "f", "content": "one", "artifact": {"x": 1}}
PATH = ["langchain", "schema", "messages", "ToolMessage"]
TEXT = {"type": "text", "text": "one"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}

RESULTS = {
    "chat": {"role": "tool", "tool_call_id": "c0", "content": "one"},
    "chat blocks": {"role": "tool", "tool_call_id": "c0", "content": [TEXT]},
    "function": {"role": "function", "name": "f", "content": "one"},
    "responses": {"type": "function_call_output", "call_id": "c0", "output": "one"},
    "responses blocks": {
        "type": "function_call_output",
        "call_id": "c0",
        "output": [{"type": "input_text", "text": "one"}],
    },
    "responses custom": {"type": "custom_tool_call_output", "call_id": "c0", "output": "one"},
    "responses local shell": {"type": "local_shell_call_output", "id": "c0", "output": "one"},
    "responses shell": {
        "type": "shell_call_output",
        "call_id": "c0",
        "output": [{"stdout": "one", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "anthropic": {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c0", "content": "one"}],
    },
    "anthropic blocks": {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c0", "content": [TEXT], "is_error": True}
        ],
    },
    "gemini": {
        "role": "user",
        "parts": [{"functionResponse": {"id": "c0", "name": "f", "response": {"output": "one"}}}],
    },
    "gemini snake": {
        "role": "tool",
        "parts": [{"function_response": {"name": "f", "response": {"result": "one"}}}],
    },
    "langchain": FLAT,
    "langchain nested": {"type": "tool", "data": FLAT},
    "langchain constructor": {"lc": 1, "type": "constructor", "id": PATH, "kwargs": FLAT},
}


@pytest.mark.parametrize("message", RESULTS.values(), ids=RESULTS)
def test_the_text_of_a_result_is_found_and_replaced(message):
    before = copy.deepcopy(message)
    (result,) = results_of(message)
    assert result.text == "one"
    assert (result.key,) == classify(message)[2]
    assert texts_of(message) == []
    for edits in (result.with_text("two"), result.cleared("two")):
        changed = edited(message, edits)
        assert message == before
        (again,) = results_of(changed)
        assert again.text == "two"
        assert classify(changed) == classify(message)
        assert set(changed) == set(message)


def test_results_and_texts_of_one_message_are_apart():
    def answer(call_id, *blocks):
        return {"type": "tool_result", "tool_use_id": call_id, "content": list(blocks)}

    message = {
        "role": "user",
        "content": [answer("c0", TEXT, IMAGE, {**TEXT, "text": "two"}), answer("c1", TEXT), TEXT],
        "extra": 1,
    }
    first, second = results_of(message)
    assert (first.text, first.media, first.key) == ("one\ntwo", True, (0, "c0"))
    assert (second.text, second.media, second.key) == ("one", False, (0, "c1"))
    assert [text.path for text in texts_of(message)] == [("content", 2, "text")]
    changed = edited(message, {**first.with_text("three"), **second.cleared("four")})
    assert changed == {
        "role": "user",
        "content": [
            answer("c0", {**TEXT, "text": "three"}, IMAGE),
            {**answer("c1"), "content": "four"},
            TEXT,
        ],
        "extra": 1,
    }
    assert changed["content"][0]["content"][1] is IMAGE


def test_a_json_response_is_one_text():
    message = {
        "role": "user",
        "parts": [
            {
                "functionResponse": {
                    "name": "f",
                    "response": {"a": [1, "x"], "b": None},
                    "parts": [1],
                }
            }
        ],
    }
    (result,) = results_of(message)
    assert result.text == '{"a":[1,"x"],"b":null}'
    kept = edited(message, result.with_text("t"))["parts"][0]["functionResponse"]
    assert kept == {"name": "f", "response": {"output": "t"}, "parts": [1]}
    cleared = edited(message, result.cleared("t"))["parts"][0]["functionResponse"]
    assert cleared == {"name": "f", "response": {"output": "t"}}


def test_what_providers_check_is_no_part():
    screenshot = {"type": "computer_screenshot", "image_url": "data:,"}
    for message in (
        {"type": "computer_call_output", "call_id": "c0", "output": screenshot},
        {"type": "tool_search_output", "call_id": "c0", "tools": []},
        {"role": "assistant", "content": [{"type": "web_search_tool_result", "tool_use_id": "s"}]},
        {"type": "compaction", "encrypted_content": "..."},
    ):
        assert results_of(message) == []
        assert texts_of(message) == []
        assert arguments_of(message) == []


CALLS = {
    "chat": (
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c1", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        [("json", (0, "c0"), "f", "{}"), ("text", (0, "c1"), "g", "x")],
    ),
    "function_call": (
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        [("json", (64, "f"), "f", "{}")],
    ),
    "responses": (
        {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}"},
        [("json", (0, "c0"), "f", "{}")],
    ),
    "responses custom": (
        {"type": "custom_tool_call", "call_id": "c0", "name": "f", "input": "x"},
        [("text", (1, "c0"), "f", "x")],
    ),
    "anthropic": (
        {
            "role": "assistant",
            "content": [TEXT, {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}}],
        },
        [("object", (0, "c0"), "f", {"a": 1})],
    ),
    "gemini": (
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"},
                {"function_call": {"id": "c1", "name": "g", "args": {}}},
            ],
        },
        [("object", (64, "f"), "f", {"a": 1}), ("object", (0, "c1"), "g", {})],
    ),
    "langchain": (
        {
            "type": "ai",
            "data": {
                "content": [{"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}}],
                "tool_calls": [{"id": "c0", "name": "f", "args": {"a": 1}, "type": "tool_call"}],
                "additional_kwargs": {
                    "tool_calls": [{"id": "c0", "function": {"name": "f", "arguments": '{"a": 1}'}}]
                },
            },
        },
        [
            ("object", (0, "c0"), "f", {"a": 1}),
            ("json", (0, "c0"), "f", '{"a": 1}'),
            ("object", (0, "c0"), "f", {"a": 1}),
        ],
    ),
}


@pytest.mark.parametrize(("message", "expected"), CALLS.values(), ids=CALLS)
def test_arguments_are_found_with_their_call(message, expected):
    found = arguments_of(message)
    assert [(a.form, a.key, a.name, value_at(message, a.path)) for a in found] == expected
    assert {a.key for a in found} == set(classify(message)[1])
    assert call_names(message) == {a.key: a.name for a in found}
    for arguments in found:
        changed = edited(message, {arguments.path: "new"})
        assert value_at(changed, arguments.path) == "new"
        assert classify(changed) == classify(message)


def test_edits_share_what_they_do_not_touch():
    value = {"a": [{"b": 1}, {"c": 2}, 3], "d": {"e": 4}}
    found = edited(value, {("a", 0): REMOVED, ("a", 1, "c"): 5})
    assert found == {"a": [{"c": 5}, 3], "d": {"e": 4}}
    assert found["d"] is value["d"]
    assert value["a"][0] == {"b": 1}
    assert edited(value, {("d", "e"): REMOVED})["d"] == {}
    assert [value_at(value, path) for path in [("a", 9), ("d", "e", "f"), ("x",)]] == [None] * 3


def test_tools_without_a_name_are_named_after_their_items():
    for kind in ("local_shell", "shell", "apply_patch", "computer"):
        message = {"type": f"{kind}_call", "call_id": "c0", "action": {}}
        assert call_names(message) == {classify(message)[1][0]: kind}
    assert call_names({"type": "web_search_call", "id": "ws"}) == {None: "web_search"}
    assert call_names({"type": "mcp_approval_request", "id": "m", "name": "f"}) == {(8, "m"): "f"}
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    assert call_names({"role": "assistant", "content": [use]}) == {(9, "s"): "web_search"}
    assert call_names({"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}) == {}


def test_the_tools_of_calls_and_of_results():
    entries = [
        WireItem(1, CALLS["chat"][0]),
        WireItem(2, {"type": "note", "payload": {}}, event=True),
        WireItem(3, {"role": "tool", "tool_call_id": "c1", "content": "ok"}),
        WireItem(4, {"role": "tool", "tool_call_id": "c0", "content": "ok"}),
        WireItem(5, {"role": "tool", "tool_call_id": "orphan", "name": "h", "content": "ok"}),
        WireItem(6, {"role": "user", "content": "hi"}),
    ]
    assert tool_names(entries) == [{"f", "g"}, set(), {"g"}, {"f"}, {"h"}, set()]
