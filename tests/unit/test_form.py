"""Form of messages: what no provider takes is a finding with a position and a text that helps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
import strategies
from memcore._fast import is_readable
from memcore.wire import form

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
USER = {"role": "user", "content": "hello"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "1"}


def faults(message: Any, policy: str) -> list[str]:
    found = memcore.validate([message], policy)
    return [each.reason for each in found if each.rule == "form"]


@pytest.mark.parametrize("policy", [*WIRES, "seed"])
@pytest.mark.parametrize(
    "message", [{}, {"role": "usr"}, {"content": "x"}, {"role": None}, {"role": 3}]
)
def test_what_is_no_message_is_found_in_any_format(message, policy) -> None:
    assert faults(message, policy)


@pytest.mark.parametrize("policy", [each for each in WIRES if each != "gemini"])
@pytest.mark.parametrize("content", [5, True, {"type": "text", "text": "x"}, [5], [None]])
def test_content_of_a_wrong_type_is_found(content, policy) -> None:
    (fault,) = faults({"role": "user", "content": content}, policy)
    assert fault.startswith("content")
    assert "expected" in fault


def test_a_position_and_what_was_meant_are_told() -> None:
    messages = [USER, {"role": "user", "content": [{"type": "txt", "text": "x"}]}, {"role": "usr"}]
    found = memcore.validate(messages)
    assert [(each.position, each.call_id, each.rule) for each in found] == [
        (1, None, "form"), (2, None, "form"),
    ]  # fmt: skip
    assert found[0].reason == (
        "content[0].type: expected one of text, image_url, input_audio, file, video_url, "
        "audio_url; got 'txt'; did you mean 'text'?"
    )
    assert found[1].reason.endswith("got 'usr'; did you mean 'user'?")
    with pytest.raises(
        memcore.HistoryViolationError, match=r"2 violations; .* position 1: content"
    ):
        memcore.validate(messages, raise_on_error=True)


@pytest.mark.parametrize(
    ("policy", "message", "fault"),
    [
        ("openai_chat", {"role": "tool", "content": "x"}, "tool_call_id: is missing"),
        ("openai_chat", {"role": "user"}, "content: is missing"),
        ("openai_chat", {"role": "user", "content": None},
         "content: expected a string or a list, got null"),
        ("openai_chat", {**USER, "nme": "x"}, "nme: is not a field; did you mean 'name'?"),
        ("openai_chat", {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
         "tool_calls[0].function: is missing"),
        ("openai_chat", {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}]},
         "tool_calls[0].function.arguments: expected a string, got an object"),
        ("openai_responses", {"type": "function_call", "call_id": "c", "name": "f"},
         "arguments: is missing"),
        ("openai_responses", {"type": "funtion_call"}, "did you mean 'function_call'?"),
        ("openai_responses", {"type": "message", "role": "tool", "content": "x"}, "role: expected"),
        ("anthropic", {"role": "tool", "content": "x"}, "role: expected one of user, assistant"),
        ("anthropic", {**USER, "name": "x"}, "name: is not a field"),
        ("anthropic",
         {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
         "content[0].input: is missing"),
        ("anthropic", {"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "data": "x"}}]},
         "content[0].source.media_type: is missing"),
        ("anthropic", {"role": "system", "content": [{"type": "image"}]},
         "content[0].type: expected"),
        ("gemini", USER, "parts: is missing"),
        ("gemini", {"role": "user", "parts": ["x"]}, "parts[0]: expected an object, got 'x'"),
        ("gemini", {"role": "user", "parts": [{"txt": "x"}]}, "parts[0].txt: is not a field"),
        ("gemini", {"role": "model", "parts": [{"functionCall": {"name": "f", "args": "{}"}}]},
         "parts[0].functionCall.args: expected an object or null"),
        ("langchain", {"type": "humn", "content": "x"}, "did you mean 'human'?"),
        ("langchain", {"type": "tool", "content": "x"}, "tool_call_id: is missing"),
        ("langchain", {"type": "ai", "data": {"content": 5}}, "data.content: expected"),
        ("langchain", {"lc": 1, "type": "constructor", "id": ["AIMessage"], "kwargs": {}},
         "kwargs.content: is missing"),
        ("langchain", {"lc": 1, "type": "constructor", "id": [], "kwargs": {}}, "type: is missing"),
        ("langchain", {"lc": 1, "type": "constructor", "id": ["AIMessage"]}, "kwargs: expected"),
    ],
)  # fmt: skip
def test_faults(policy, message, fault) -> None:
    found = faults(message, policy)
    assert any(fault in each for each in found), found


def test_a_large_or_hostile_value_makes_a_short_text() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for value in ("x" * 10**6, 10**5000, {"k" * 10**5: 1}, deep, object(), float("nan"), b"x"):
        for policy in WIRES:
            for message in (
                {"role": value}, {**USER, "content": value}, {"role": "user", "parts": value},
                {"type": value}, {"role": "user", "content": [value]}, {**USER, "k" * 10**6: 1},
                {"type": "ai", "content": "x", "tool_calls": value}, {"role": "user", 3: 1},
            ):  # fmt: skip
                assert all(len(each) < 300 for each in faults(message, policy))


@pytest.mark.parametrize("policy", WIRES)
def test_a_message_of_many_odd_fields_is_judged_once_or_twice(policy, monkeypatch) -> None:
    judged: list[str] = []
    real = form.form_faults

    def counted(message: Any, wire: str) -> Any:
        judged.append(wire)
        return real(message, wire)

    monkeypatch.setattr(form, "form_faults", counted)
    odd = {**USER, **{f"field_{at}": at for at in range(3_000)}}
    made = memcore.convert([odd], to=policy)
    assert len(made.messages) == 1
    assert len(judged) <= 2
    blocks = [{"type": f"no_{at}"} for at in range(3_000)]
    assert len(memcore.validate([{"role": "user", "content": blocks}], policy)) <= 20


@pytest.mark.parametrize("policy", WIRES)
def test_calls_that_are_open_at_the_end_are_found_if_asked_for(policy) -> None:
    history = [USER, CALL, RESULT, {**CALL, "tool_calls": [CALL["tool_calls"][0] | {"id": "c2"}]}]
    made = memcore.convert(history, to=policy).messages
    assert memcore.validate(made, policy) == []
    (found,) = memcore.validate(made, policy, strict=True)
    assert (found.position, found.call_id, found.rule) == (len(made) - 1, "c2", "open_call")
    closed = memcore.convert([*history, {**RESULT, "tool_call_id": "c2"}], to=policy).messages
    assert memcore.validate(closed, policy, strict=True) == []


@given(strategies.mixed_histories(), st.sampled_from(WIRES))
@settings(max_examples=200, deadline=None)
def test_what_is_converted_has_the_form(history, wire) -> None:
    messages = [json.loads(json.dumps(item)) for item in history if isinstance(item, dict)]
    made = memcore.convert(messages, to=wire).messages
    assert [each for message in made for each in faults(message, wire)] == []


def test_fields_that_a_format_lacks_are_left_out_and_the_rest_stays() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    said = [thought, {"type": "text", "text": "yes"}]
    dumped = {"id": "msg_1", "role": "assistant", "content": said, "usage": {"input_tokens": 1}}
    made = memcore.convert([USER, dumped], to="anthropic")
    assert made.messages == [USER, {"role": "assistant", "content": said}]
    assert made.repairs == (memcore.Repair("form", 1),)
    null = {"role": "assistant", "content": "yes", "tool_calls": None}
    made = memcore.convert([USER, null], to="openai_chat")
    assert made.messages[1] == {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize("policy", WIRES)
def test_the_corpus_has_the_form_in_all_formats(corpus, policy) -> None:
    with corpus.open(encoding="utf-8") as lines:
        for at, line in enumerate(lines):
            if at % 5 == 0:
                made = memcore.convert(json.loads(line)["messages"], to=policy).messages
                assert memcore.validate(made, policy) == []


# --- what is refused when it is appended ----------------------------------------------------------

NO_MESSAGES = [
    {}, {"role": "usr"}, {"role": 5, "content": "x"}, {"role": "user", "content": 5},
    {"role": "user", "content": {"type": "text", "text": "x"}}, {"role": "user", "parts": 5},
    {"type": ""}, {"type": 5}, {"content": "x"}, {"type": "human", "data": {"content": 5}},
    {"role": "assistant", "content": True},
]  # fmt: skip


@pytest.mark.parametrize("policy", WIRES)
@pytest.mark.parametrize("wrong", NO_MESSAGES, ids=str)
def test_what_is_no_message_is_refused(db, policy, wrong):
    if policy == "openai_responses" and "data" in wrong:
        pytest.skip("an item of a type that is new")
    session = db.session("s", policy=policy)
    session.append(USER)
    for write in (
        lambda: session.append(wrong),
        lambda: session.append(wrong, meta={"a": 1}),
        lambda: session.extend([USER, wrong]),
        lambda: session.extend(iter([wrong])),
    ):
        with pytest.raises(memcore.InvalidItemError, match="shape='keep'") as caught:
            write()
        assert "position" in str(caught.value)
    with pytest.raises(memcore.InvalidItemError), session.batch() as batch:
        batch.append(wrong)
    assert len(session) == 1
    kept = db.session("s", policy=policy, shape="keep")
    kept.append(wrong)
    kept.extend([USER, wrong])
    assert kept.get(2).message == wrong
    assert db.session("s").context(format=policy).messages  # legal all the same
    assert memcore.validate(kept.context(format=policy).messages, policy=policy) == []


def test_a_refusal_names_the_item_and_what_was_meant(db):
    with pytest.raises(memcore.InvalidItemError, match=r"position 2: role: .*did you mean 'user'"):
        db.session("s").extend([USER, USER, {"role": "usr", "content": "x"}])
    with pytest.raises(memcore.InvalidOptionError, match="shape"):
        db.session("s", shape="drop")


def test_new_types_of_items_are_kept_where_a_provider_adds_them(db):
    new = {"type": "telepathy_call", "id": "t1"}
    db.session("s", policy="openai_responses").append(new)
    with pytest.raises(memcore.InvalidItemError):
        db.session("chat").append(new)
    db.session("g", policy="gemini").append({"parts": [{"text": "x"}]})  # of the user


def test_a_write_filter_refuses_no_less(open_db):
    session = open_db(redact="default").session("s")
    with pytest.raises(memcore.InvalidItemError, match="position 1"):
        session.extend([USER, {"role": "usr", "content": "ann@example.com"}])
    assert not session.exists()


@given(strategies.mixed_histories())
def test_all_that_a_provider_writes_is_taken(history):
    wires = ("chat", "responses", "anthropic", "gemini", "langchain")
    for item in history:
        if isinstance(item, dict) and any(not [*form.form_faults(item, wire)] for wire in wires):
            assert is_readable(item) or form.unreadable_fault(item, "chat") is None


def test_the_corpus_is_readable(corpus):
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                assert is_readable(message), message


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"role": "user"}, "content: is missing"),
        ({"role": "user", "content": None}, "content: expected a string or a list, got null"),
        ({"role": "system", "content": None}, "content: expected"),
        ({"role": "user", "content": [5]}, r"content\[0\]: expected an object"),
        ({"role": "assistant", "tool_calls": {"id": "a"}}, "tool_calls: expected a list"),
        ({"role": "assistant", "tool_calls": ["x"]}, r"tool_calls\[0\]: expected an object"),
        ({"object": "chat.completion", "choices": []}, r"append its choices\[0\].message"),
    ],
)
def test_a_message_that_says_nothing_is_refused(item, told):
    with memcore.open(":memory:") as db:
        session = db.session("s")
        with pytest.raises(memcore.InvalidItemError, match=told):
            session.append(item)
        kept = db.session("kept", shape="keep")
        kept.append(item)
        assert [each.message for each in kept.items()] == [item]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": None},
        {"role": "user", "content": ["text", {"type": "text", "text": "more"}]},
        {"role": "user", "parts": [{"text": "x"}]},
        {"type": "human", "content": "x"},
        {"type": "message", "role": "user", "content": "x"},
    ],
)
def test_what_some_format_has_is_taken(item):
    with memcore.open(":memory:") as db:
        db.session("s").append(item)
