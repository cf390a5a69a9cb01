"""Conversion between wire formats: legal in the format asked for, and what is lost is listed."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import memcore
import strategies
from memcore.log import count_message

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
PNG = "iVBORw0KGgo="
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ],
}
CHAT = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hello"},
    CALL,
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "assistant", "content": "done"},
]


def actions(made: memcore.Conversion) -> list[str]:
    return [repair.action for repair in made.repairs]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("via", WIRES)
def test_there_and_back_keeps_ids_pairs_and_texts(via, wire):
    there = memcore.convert(memcore.convert(CHAT, to=via).messages, to=wire).messages
    assert memcore.validate(there, wire) == []
    back = memcore.convert(there, to="openai_chat").messages
    calls = back[2]["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [("c1", "f"), ("c2", "g")]
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1}
    answers = {message["tool_call_id"]: message["content"] for message in back[3:5]}
    assert answers == {"c1": "one", "c2": "two"}
    assert [back[at]["content"] for at in (0, 1, 5)] == ["be kind", "hello", "done"]
    assert [back[at]["role"] for at in (0, 1, 5)] == ["system", "user", "assistant"]


def test_messages_of_the_format_stay_the_same_objects():
    made = memcore.convert(CHAT, to="openai_chat")
    assert all(one is other for one, other in zip(made.messages, CHAT, strict=True))
    assert made.repairs == ()


def test_a_chat_result_in_an_anthropic_history_answers_its_call():
    history = [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ]
    made = memcore.convert(history, to="anthropic").messages
    assert made[1] is history[1]
    assert made[2] == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "one"}],
    }


def test_a_responses_result_in_an_anthropic_history_answers_its_call():
    history = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
    ]
    made = memcore.convert(history, to="anthropic").messages
    assert memcore.validate(made, "anthropic") == []
    assert [block["id"] for block in made[1]["content"]] == ["c1", "c2"]
    assert [block["content"] for block in made[2]["content"]] == ["one", "two"]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"}]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        {"role": "model", "parts": [{"text": "x", "thought": True}]},
    ],
)
def test_reasoning_has_no_counterpart_and_is_listed(message):
    made = memcore.convert([{"role": "user", "content": "hello"}, message], to="openai_chat")
    assert len(made.messages) == 1
    assert "reasoning" in actions(made)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
    ],
)
def test_images_are_kept(wire, block):
    kind = {"type": "human"} if "base64" in block else {"role": "user"}
    made = memcore.convert([kind | {"content": [block]}], to=wire)
    assert memcore.validate(made.messages, wire) == []
    assert PNG in json.dumps(made.messages)
    assert "media" not in actions(made)


def test_media_that_a_format_lacks_are_listed():
    sound = {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}
    text = {"type": "text", "text": "listen"}
    made = memcore.convert([{"role": "user", "content": [text, sound]}], to="anthropic")
    assert made.messages == [{"role": "user", "content": "listen"}]
    assert made.repairs == (memcore.Repair("media", 0),)


def test_a_gemini_call_without_an_id_gets_one():
    history = [
        {"role": "user", "parts": [{"text": "hello"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}] * 2},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"output": text}}}
                for text in ("one", "two")
            ],
        },
    ]
    for wire in WIRES:
        made = memcore.convert(history, to=wire)
        assert memcore.validate(made.messages, wire) == [], wire
    calls = memcore.convert(history, to="openai_chat").messages
    ids = [call["id"] for call in calls[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in calls[2:]] == [
        (ids[0], "one"),
        (ids[1], "two"),
    ]


def test_instructions_in_the_middle_become_the_users():
    history = [*CHAT[:2], {"role": "system", "content": "be brief"}]
    made = memcore.convert(history, to="anthropic")
    assert [message["role"] for message in made.messages] == ["system", "user", "user"]
    assert memcore.Repair("role", 2) in made.repairs


def test_ids_and_arguments_that_a_provider_refuses_are_replaced():
    call = {"id": "a:b" * 30, "type": "function", "function": {"name": "f", "arguments": "no JSON"}}
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "one"},
    ]
    made = memcore.convert(history, to="anthropic")
    use, answer = made.messages[1]["content"][0], made.messages[2]["content"][0]
    assert use["id"] == answer["tool_use_id"]
    assert ":" not in use["id"]
    assert use["input"] == {"input": "no JSON"}
    assert {"renamed", "arguments"} <= set(actions(made))


def test_what_is_no_list_of_mappings_and_no_format_is_refused():
    with pytest.raises(memcore.InvalidItemError):
        memcore.convert([5], to="gemini")
    for policy in ("seed", "other", 5):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.convert([], to=policy)


@given(strategies.mixed_histories(), st.sampled_from(WIRES), st.sampled_from(WIRES))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_mixture_becomes_legal(history, first, second):
    messages = [item for item in history if isinstance(item, dict)]
    made = memcore.convert(messages, to=first)
    assert memcore.validate(made.messages, first) == []
    again = memcore.convert(made.messages, to=second)
    assert memcore.validate(again.messages, second) == []


def test_the_result_of_a_call_that_stays_keeps_its_id():
    used = {"type": "tool_use", "id": "t 1", "name": "f", "input": {}}
    history = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [used]},
        {"type": "function_call_output", "call_id": "t 1", "output": "one"},
    ]
    made = memcore.convert(history, to="anthropic")
    (block,) = made.messages[2]["content"]
    assert (block["tool_use_id"], block["content"]) == ("t 1", "one")
    assert made.repairs == ()


def test_an_id_that_comes_again_while_its_call_is_open_is_renamed():
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    user = {"role": "user", "content": "hello"}
    for wire in WIRES:
        made = memcore.convert([calling, calling, user], to=wire)
        assert memcore.validate(made.messages, wire) == []
        assert actions(made).count("synthesized") == 2


def test_calls_of_one_response_with_one_id_stay_two_calls():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    user = {"role": "user", "content": "hello"}
    for wire in WIRES:
        made = memcore.convert([user, call, call, output, user], to=wire)
        assert memcore.validate(made.messages, wire) == []
        assert actions(made).count("renamed") == actions(made).count("synthesized") == 1


def test_calls_of_two_kinds_with_one_id_stay_two_calls():
    history = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "two"},
    ]
    made = memcore.convert(history, to="anthropic")
    calling, answering = made.messages[-2:]
    assert [each["id"] for each in calling["content"]] == ["c", "c_2"]
    assert [(each["tool_use_id"], each["content"]) for each in answering["content"]] == [
        ("c", "one"), ("c_2", "two"),
    ]  # fmt: skip


def test_the_result_of_another_format_stays_with_its_call():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "tool", "tool_call_id": "c", "content": "done"}
    history = [call, call, result, {"role": "user", "content": "hello"}]
    made = memcore.convert(history, to="openai_responses")
    ids = [each.get("call_id") for each in made.messages]
    assert ids == ["c", "c_2", "c", "c_2", None]
    assert made.messages[3]["output"] == "done"
    assert result in memcore.convert(history, to="langchain").messages


def test_ids_that_come_again_in_other_responses_stay():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    user = {"role": "user", "content": "hello"}
    turn = [user, call, output]
    made = memcore.convert([*turn, *turn, user, call, user], to="openai_chat")
    assert actions(made) == ["synthesized"]


def test_a_result_of_another_kind_answers_nothing():
    history = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "lost"},
        {"role": "user", "content": "hello"},
    ]
    made = memcore.convert(history, to="openai_chat")
    assert "lost" not in json.dumps(made.messages)
    assert sorted(actions(made)) == ["orphan", "synthesized"]


_FIELDS = (
    "role", "type", "content", "parts", "text", "id", "name", "tool_calls", "function", "output",
    "arguments", "functionCall", "functionResponse", "response", "call_id", "tool_use_id", "args",
    "tool_call_id", "input", "data", "lc", "kwargs", "source", "image_url", "additional_kwargs",
    "function_call", "inlineData", "file", "action", "status", "error", "thought", "url", "format",
)  # fmt: skip
_WORDS = (
    "user", "assistant", "tool", "model", "system", "message", "function_call", "ai", "human",
    "function_call_output", "computer_call_output", "shell_call_output", "constructor", "chat",
    "text", "tool_use", "tool_result", "image", "input_image", "thinking", "tool_call", "c1", "",
    "input_audio", "document", "file", "reasoning", "custom_tool_call", "local_shell_call",
)  # fmt: skip


def _odd_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(10 if depth else 6)
    if kind < 4:
        return rng.choice(_WORDS)
    if kind < 6:
        return rng.choice((None, True, False, 0, -1, 2**70, 0.5))
    if kind < 8:
        return [_odd_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return _odd_message(rng, depth - 1)


def _odd_message(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(_FIELDS): _odd_value(rng, depth) for _ in range(rng.randrange(1, 7))}


@pytest.mark.parametrize("wire", WIRES)
def test_hostile_messages_raise_nothing(wire):
    rng = random.Random(wire)
    for _ in range(2_000):
        messages = [
            _odd_message(rng, 4) | {rng.choice(("role", "type")): rng.choice(_WORDS)}
            for _ in range(rng.randrange(5))
        ]
        made = memcore.convert(messages, to=wire)
        assert isinstance(made.messages, list)


# --- Contexts of a session in another format ------------------------------------------------------


@pytest.fixture
def db(open_db):
    return open_db(durability="none", counter="bytes/4")


@given(
    strategies.mixed_histories(), st.sampled_from(WIRES), st.sampled_from(WIRES),
    st.integers(1, 400),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_context_is_legal_and_within_the_budget_in_any_format(history, own, wire, budget):
    with memcore.open(":memory:", counter="bytes/4") as db:
        session = db.session("s", policy=own, orphans="keep", shape="keep")
        session.extend(history)
        counter = memcore.get_counter("bytes/4")
        try:
            found = session.context(budget, format=wire)
        except memcore.ContextOverflowError as error:
            assert error.budget_tokens == budget
            for smaller in {budget * 3 // 4, budget // 2} - {0}:
                with pytest.raises(memcore.ContextOverflowError):
                    session.context(smaller, format=wire)
            return
        assert memcore.validate(found.messages, policy=wire) == []
        counted = sum(count_message(message, counter) for message in found.messages)
        assert counted == found.tokens <= budget
        again = session.context(budget, format=wire)
        assert (again.messages, again.repairs) == (found.messages, found.repairs)


def test_a_context_in_the_sessions_own_format_is_the_same(db):
    session = db.session("s", policy="anthropic")
    session.extend(memcore.convert(CHAT, to="anthropic").messages)
    plain, same = session.context(500), session.context(500, format="anthropic")
    assert (same.messages, same.tokens, same.cut) == (plain.messages, plain.tokens, plain.cut)


def test_memories_are_converted_along(db):
    session = db.session("s", user="u", policy="anthropic")
    session.append({"role": "user", "content": [{"type": "text", "text": "hello"}]})
    session.memory.remember("Likes tea", by="operator")
    found = session.context(500, memory=memcore.Recall(), format="gemini")
    assert "Likes tea" in json.dumps(found.messages[0])
    assert [each.id for each in found.memories] == [1]
    assert memcore.validate(found.messages, policy="gemini") == []


def test_a_larger_format_leaves_out_earlier_items(db):
    session = db.session("s", policy="openai_chat")
    session.extend({"role": "user", "content": f"number {at}"} for at in range(60))
    plain, large = session.context(300), session.context(300, format="anthropic")
    assert large.cut >= plain.cut
    assert large.tokens <= 300
    assert session.context(300, format="anthropic", redact=True).tokens == large.tokens
    with pytest.raises(memcore.ContextOverflowError) as caught:
        session.context(8, format="langchain")
    assert caught.value.needed_tokens > 8


def test_where_a_part_does_not_fit_the_smallest_context_is_tried(db):
    session = db.session("s", policy="openai_chat")
    function = {"name": "f", "arguments": "{}"}
    session.extend([
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "gamma"},
        {"role": "user", "content": "alpha beta beta beta gamma"},
    ])  # fmt: skip
    found = [session.context(budget, format="gemini").tokens for budget in range(16, 90)]
    assert found == sorted(found)
    assert len(set(found)) > 1


def test_a_format_that_is_none_is_refused(db):
    session = db.session("s")
    for name in ("soap", 3):
        with pytest.raises(memcore.InvalidOptionError):
            session.context(100, format=name)
    session.append({"role": "user", "content": "hello"})
    with pytest.raises(memcore.InvalidOptionError, match="format: expected one of openai_chat"):
        session.context(100, format="seed")


@pytest.mark.parametrize("policy", WIRES)
@example([{"role": "user", "content": "hi"}, {"role": "system", "content": "be kind"}])
@given(st.one_of(strategies.histories(), strategies.mixed_histories()))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_context_in_the_sessions_own_format_is_what_its_conversion_is(policy, history):
    with memcore.open(":memory:") as db:
        session = db.session("s", policy=policy, orphans="keep", shape="keep")
        for item in history:
            if isinstance(item, dict):
                session.append(item)
        converted = memcore.convert(session.context().messages, to=policy)
        assert session.context(format=policy).messages == converted.messages
