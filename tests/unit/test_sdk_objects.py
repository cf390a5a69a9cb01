"""Objects of the providers' packages are taken wherever a message is taken as a dict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

import memcore

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@dataclass
class Part:
    type: str
    text: str
    title: str | None = None


@dataclass
class Said:
    role: str
    content: list[Part] = field(default_factory=list)


def chat() -> tuple[Any, Any, str]:
    made = pytest.importorskip("openai.types.chat").ChatCompletionMessage
    said = made.model_validate({"role": "assistant", "content": None, "tool_calls": [CALL]})
    return said, {"role": "assistant", "tool_calls": [CALL]}, "openai_chat"


def responses() -> tuple[Any, Any, str]:
    made = pytest.importorskip("openai.types.responses").ResponseFunctionToolCall
    fields = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    return made(**fields), fields, "openai_responses"


def anthropic() -> tuple[Any, Any, str]:
    types = pytest.importorskip("anthropic.types")
    used = {"id": "t1", "input": {"a": None}, "name": "f", "type": "tool_use"}
    blocks = [types.TextBlock(type="text", text="x"), types.ToolUseBlock(**used)]
    said = {"role": "assistant", "content": blocks}
    content = [{"type": "text", "text": "x"}, used]
    return said, {"role": "assistant", "content": content}, "anthropic"


def gemini() -> tuple[Any, Any, str]:
    types = pytest.importorskip("google.genai.types")
    part = types.Part(function_call=types.FunctionCall(name="f", args={"a": 1}))
    parts = [{"function_call": {"name": "f", "args": {"a": 1}}}]
    made = types.Content(role="model", parts=[part])
    return made, {"role": "model", "parts": parts}, "gemini"


def langchain() -> tuple[Any, Any, str]:
    made = pytest.importorskip("langchain_core.messages").AIMessage
    call = {"name": "f", "args": {"a": None}, "id": "c1", "type": "tool_call"}
    said = made(content="x", tool_calls=[call])
    fields = {"additional_kwargs": {}, "response_metadata": {}, "invalid_tool_calls": []}
    return said, {"type": "ai", "content": "x", "tool_calls": [call], **fields}, "langchain"


def dataclasses() -> tuple[Any, Any, str]:
    content = [{"type": "text", "text": "x"}]
    return Said("user", [Part("text", "x")]), {"role": "user", "content": content}, "openai_chat"


KINDS = (chat, responses, anthropic, gemini, langchain, dataclasses)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_taken_everywhere(open_db, kind) -> None:
    said, plain, policy = kind()
    with open_db(durability="none") as db:
        for name, write in {
            "append": lambda session: session.append(said),
            "key": lambda session: session.append(said, idempotency_key="k"),
            "meta": lambda session: session.append(said, meta={"a": 1}),
            "extend": lambda session: session.extend([plain, said, plain][1:2]),
            "tuple": lambda session: session.extend((said,)),
        }.items():
            session = db.session(name, policy=policy)
            write(session)
            assert [item.message for item in session.items()] == [plain]
        batched = db.session("batch", policy=policy)
        with batched.batch() as batch:
            batch.append(said)
        assert [item.message for item in batched.items()] == [plain]
    start = {"role": "user", "parts": [{"text": "hello"}]} if policy == "gemini" else USER
    assert memcore.validate([start, said], policy) == memcore.validate([start, plain], policy) == []
    for to in ("openai_chat", "gemini"):
        assert memcore.convert([start, said], to=to) == memcore.convert([start, plain], to=to)
    assert memcore.fit([start, said], 500, policy=policy).messages == [start, plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_is_the_same_request(open_db, kind) -> None:
    said, _, policy = kind()
    with open_db(durability="none") as db:
        session = db.session("s", policy=policy)
        first = session.append(said, idempotency_key="k")
        assert session.append(said, idempotency_key="k").revision == first.revision
        assert len(list(session.items())) == 1


def test_secrets_in_them_are_redacted(tmp_path) -> None:
    part = Part("text", "mail ann@example.org")
    block: Any = {"role": "user", "content": [part]}
    path = tmp_path / "a.memcore"
    with memcore.open(path, redact="default") as db:
        session = db.session("s")
        session.append(block)
        session.extend([Said("user", [part]), block])
        assert "ann@example.org" not in str([item.message for item in session.items()])
    assert b"ann@example.org" not in path.read_bytes()


class Broken:
    def __init__(self, made: Any) -> None:
        self.made = made

    def model_dump(self, **_: Any) -> Any:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "item",
    [
        Broken("text"), Broken(None), Broken(ValueError("no")), Broken(TypeError("no")), Broken,
        Said, object(), 3, [USER], {"role": "user", "content": Broken(ValueError("no"))},
        {"role": "user", "content": object()}, {"role": "user", "content": circular()},
        Broken({"role": "user", "content": object()}),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(open_db, item) -> None:
    with open_db(durability="none") as db:
        session = db.session("s")
        with pytest.raises(memcore.InvalidItemError):
            session.append(item)
        with pytest.raises(memcore.InvalidItemError):
            session.extend([USER, item])
        assert list(session.items()) == []


def test_deep_json_is_stored_as_ever(open_db) -> None:
    deep: Any = "x"
    for _ in range(480):
        deep = [deep]
    item = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "deep": deep, "large": 2**70}],
    }
    with open_db(durability="none") as db:
        db.session("s").append(item)
        assert [each.message for each in db.session("s").items()] == [item]
