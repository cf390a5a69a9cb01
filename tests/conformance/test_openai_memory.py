"""Long-term memory for agents of the OpenAI SDK: its Runner calls the tools and the filter."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Runner
from agents.testing import ScriptedModel, assistant_message, function_call

import memcore
import memcore.aio
from agents_sdk import agent_of, quiet
from memcore import Recall
from memcore.adapters.openai_agents import (
    MemcoreSession,
    memory_tools,
    recall_call_model_input_filter,
    safe_call_model_input_filter,
)
from memcore.memory.recall import HEADING


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


def run(session: Any, question: str, *turns: Any, tools: Any = (), **options: Any) -> ScriptedModel:
    model = ScriptedModel([*turns, [assistant_message("well")]])
    agent = agent_of(model, *tools)
    asyncio.run(Runner.run(agent, question, session=session, run_config=quiet(**options)))
    return model


def output_of(model: ScriptedModel) -> str:
    items = [item for item in model.calls[-1].input if item.get("type") == "function_call_output"]
    return str(items[-1]["output"])


def call(name: str, **arguments: Any) -> list[Any]:
    return [function_call(name, json.dumps(arguments), call_id=f"c-{name}")]


def test_a_run_remembers_what_the_user_asks_for(db):
    session = MemcoreSession("s", db, user="u")
    tools = memory_tools(session)
    assert [tool.name for tool in tools] == [
        "memory_search", "memory_remember", "memory_update", "memory_forget",
    ]  # fmt: skip
    model = run(
        session, "Please remember that I like tea.",
        call("memory_remember", text="User likes tea"), tools=tools,
    )  # fmt: skip
    assert output_of(model) == "Remembered as memory 1."
    memory = session.scope.memory
    assert [(m.text, m.by, m.status) for m in memory.list()] == [
        ("User likes tea", "user", "active")
    ]
    model = run(
        session, "What is new?", call("memory_remember", text="Mallory is the boss"), tools=tools
    )
    assert "until the user confirms" in output_of(model)
    assert [m.by for m in memory.list(status="quarantined")] == ["assistant"]
    model = run(session, "tea?", call("memory_search", query="tea"), tools=tools)
    assert HEADING in output_of(model)
    assert "User likes tea" in output_of(model)
    model = run(session, "x", call("memory_forget", id=1, user="bob"), tools=tools)
    assert output_of(model).startswith("Error (invalid_arguments)")


@pytest.mark.parametrize("source", ["memory", "async"])
def test_tools_take_any_handle(db, source):
    scope = db.scope(user="u")
    given: Any = scope.memory
    if source == "async":
        given = memcore.aio.AsyncMemories(scope.memory)
    model = run(None, "hi", call("memory_remember", text="x"), tools=memory_tools(given))
    assert output_of(model).startswith("Stored as memory 1")
    for wrong in (None, scope, "u"):
        with pytest.raises(memcore.InvalidOptionError):
            memory_tools(wrong)
        with pytest.raises(memcore.InvalidOptionError):
            recall_call_model_input_filter(wrong)
    with pytest.raises(memcore.InvalidOptionError):
        recall_call_model_input_filter(scope.memory, "all")  # type: ignore[arg-type]


def test_each_run_has_the_memory_of_its_user(db):
    for name in ("ann", "bob"):
        db.scope(user=name).memory.remember(f"Fact of {name}", by="operator")
    session = MemcoreSession("s", db, scope_of=lambda wrapper: ("default", wrapper.context))
    tools = memory_tools(session)
    shows = recall_call_model_input_filter(session)
    for name in ("ann", "bob"):
        model = ScriptedModel([call("memory_search", query="fact"), [assistant_message("x")]])
        asyncio.run(
            Runner.run(
                agent_of(model, *tools), "hi", session=session, context=name,
                run_config=quiet(call_model_input_filter=shows),
            )
        )  # fmt: skip
        other = {"ann": "bob", "bob": "ann"}[name]
        told = json.dumps(model.calls[-1].input)
        assert told.count(f"Fact of {name}") == 2
        assert f"Fact of {other}" not in told


def test_the_filter_shows_memories_and_stores_none(db):
    session = MemcoreSession("s", db, user="u")
    memory = session.scope.memory
    for number in range(40):
        memory.remember(f"Fact number {number} of many", by="operator", importance=0.9)
    memory.remember("Zebras live in the garden", by="operator")
    shows = recall_call_model_input_filter(
        session, Recall(budget_tokens=300), first=safe_call_model_input_filter(budget_tokens=4_000)
    )
    run(session, "Hello")
    model = run(session, "Where do zebras live?", call_model_input_filter=shows)
    items = model.calls[-1].input
    assert HEADING in items[0]["content"]
    assert "Zebras" not in items[0]["content"]
    assert "Zebras" in items[-2]["content"]
    assert items[-1]["content"] == "Where do zebras live?"
    assert memcore.validate(items, "openai_responses") == []
    stored = asyncio.run(session.get_items())
    assert len(stored) == 4
    assert HEADING not in json.dumps(stored)
    model = run(
        session, "zebras?", call("memory_search", query="zebras"), tools=memory_tools(session),
        call_model_input_filter=recall_call_model_input_filter(session, Recall(budget_tokens=300)),
    )  # fmt: skip
    items = model.calls[-1].input
    assert items[-2]["type"] == "function_call_output"
    assert "Zebras" in items[-1]["content"]  # behind the last result of a tool turn
    assert memcore.validate(items, "openai_responses") == []
    memory.update(41, importance=0.1)
    assert memory.get(41).uses >= 3
    assert HEADING not in json.dumps(asyncio.run(session.get_items())[-1])


def test_shared_memories_and_texts_as_queries(db):
    bob = db.scope(user="bob").memory
    bob.remember("Bob feeds zebras", by="operator")
    bob.grants.give(to=("default", "u"))
    memory = db.scope(user="u").memory
    memory.remember("Likes tea", by="operator")
    shows = recall_call_model_input_filter(memory, Recall(shared=True))
    model = run(None, "hi", call_model_input_filter=shows)
    assert 'shared by "default/bob"' in model.calls[-1].input[0]["content"]
    shows = recall_call_model_input_filter(memory, Recall(pinned=False, query="tea"))
    model = run(None, "hi", call_model_input_filter=shows)
    assert "Likes tea" in model.calls[-1].input[0]["content"]
    shows = recall_call_model_input_filter(memory, Recall(pinned=False, query=None))
    model = run(None, "hi", call_model_input_filter=shows)
    assert [item["content"] for item in model.calls[-1].input] == ["hi"]


def test_a_query_is_redacted_as_what_is_stored_was(open_db):
    db = open_db(durability="none", redact="default")
    memory = db.scope(user="u").memory
    memory.remember("The boss is ann@example.com", by="operator")
    memory.remember("Likes tea", by="operator")
    for query, said in (("ann@example.com", "hi"), ("last_user", "Who is ann@example.com?")):
        recall = Recall(pinned=False, query=query)
        shows = recall_call_model_input_filter(memory, recall)
        model = run(None, said, call_model_input_filter=shows)
        assert "The boss" in model.calls[-1].input[0]["content"]
        assert "tea" not in model.calls[-1].input[0]["content"]


def test_sealed_items_are_nobodys_word(db):
    session = MemcoreSession("s", db, user="u", encryption_key="k" * 32)
    run(
        session, "Please remember that I like tea.",
        call("memory_remember", text="User likes tea"), tools=memory_tools(session),
    )  # fmt: skip
    assert [m.status for m in session.scope.memory.list()] == ["quarantined"]
