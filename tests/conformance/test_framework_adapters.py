"""The adapters of five more frameworks: telemetry, encryption, and names of all sorts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

pytestmark = pytest.mark.filterwarnings("ignore:.*experimental", "ignore::FutureWarning")
KEY = bytes(range(32))
MARK = "zq9markerzq9"


class Adapter(NamedTuple):
    """An adapter: the package it needs, and how a text is stored under a name and read again."""

    needs: str
    make: Callable[..., Any]
    put: Callable[[Any, str, str], Coroutine[Any, Any, None]]
    get: Callable[[Any, str], Coroutine[Any, Any, list[str]]]


def claude_store(db, **at):
    from memcore.adapters.claude_agent import MemcoreSessionStore

    return MemcoreSessionStore(db, **at)


async def put_claude(store, name, text):
    line = {"type": "user", "message": {"role": "user", "content": text}, "note": text}
    await store.append({"project_key": name, "session_id": name, "subpath": name}, [line])


async def get_claude(store, name):
    key = {"project_key": name, "session_id": name, "subpath": name}
    return [line["note"] for line in await store.load(key) or ()]


def pydantic_store(db, **at):
    from memcore.adapters.pydantic_ai import MemcoreConversationStore

    return MemcoreConversationStore(db, **at)


async def put_pydantic(store, name, text):
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    found = await store.load(name) or Conversation(conversation_id=name)
    found.messages.append(ModelRequest([UserPromptPart(text)]))
    await store.save(found)


async def get_pydantic(store, name):
    found = await store.load(name)
    return [] if found is None else [each.parts[0].content for each in found.messages]


def strands_store(db, **at):
    from memcore.adapters.strands import MemcoreSessionRepository

    return MemcoreSessionRepository(db, **at)


async def put_strands(store, name, text):
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    if store.read_session(name) is None:
        store.create_session(Session(name, SessionType.AGENT))
        store.create_agent(name, SessionAgent(name, {"said": text}, {}))
    message = {"role": "user", "content": [{"text": text}]}
    taken = len(store.list_messages(name, name))
    store.create_message(name, name, SessionMessage(message, taken))


async def get_strands(store, name):
    return [each.message["content"][0]["text"] for each in store.list_messages(name, name)]


def framework_store(db, **at):
    from memcore.adapters.agent_framework import MemcoreHistoryProvider

    return MemcoreHistoryProvider(db, **at)


async def put_framework(store, name, text):
    from agent_framework import Message

    await store.save_messages(name, [Message("user", [text])])


async def get_framework(store, name):
    return [each.text for each in await store.get_messages(name)]


def index_store(db, **at):
    from memcore.adapters.llama_index import MemcoreChatStore

    return MemcoreChatStore(db, **at)


async def put_index(store, name, text):
    from llama_index.core.base.llms.types import ChatMessage

    await store.add_message(name, ChatMessage(role="user", content=text))


async def get_index(store, name):
    return [each.content for each in await store.get_messages(name)]


ADAPTERS = {
    "agent_framework": Adapter("agent_framework", framework_store, put_framework, get_framework),
    "claude_agent": Adapter("claude_agent_sdk", claude_store, put_claude, get_claude),
    "llama_index": Adapter("llama_index.core", index_store, put_index, get_index),
    "pydantic_ai": Adapter("pydantic_ai", pydantic_store, put_pydantic, get_pydantic),
    "strands": Adapter("strands", strands_store, put_strands, get_strands),
}


@pytest.fixture(params=ADAPTERS)
def named(request):
    adapter = ADAPTERS[request.param]
    pytest.importorskip(adapter.needs)
    return request.param, adapter


def test_its_calls_are_recorded_without_contents(named, tmp_path):
    name, adapter = named
    records = []
    with memcore.open(tmp_path / "a.memcore", telemetry=records.append) as db:
        store = adapter.make(db, user="ann")
        records.clear()
        asyncio.run(adapter.put(store, "s", MARK))
        assert asyncio.run(adapter.get(store, "s")) == [MARK]
        assert {record.adapter for record in records} == {name}
        assert {record.status for record in records} == {"ok"}
        assert MARK not in repr(records)
        assert not db.observer.telemetry.failures


def test_an_encrypted_file_does_not_have_its_texts(named, tmp_path):
    _, adapter = named
    place = tmp_path / "store"
    place.mkdir()
    texts = [MARK, MARK * 10_000]
    for _ in range(2):
        with memcore.open(place / "a.memcore", key=KEY) as db:
            store = adapter.make(db, user="ann")
            if texts:
                for text in texts:
                    asyncio.run(adapter.put(store, "s", text))
                texts = []
            assert asyncio.run(adapter.get(store, "s")) == [MARK, MARK * 10_000]
            assert not db.check()
    for found in place.iterdir():
        assert MARK.encode() not in found.read_bytes(), found.name


NAMES = st.sampled_from([
    "a", "a/", "/a", "a/b", "a:b", "%2F", "%", "a\0", "\0", "é", "e\u0301", "..", "\U0001f600",
    "x" * 300, "x" * 301, "é" * 2_000,
])  # fmt: skip
PLACES = st.tuples(st.sampled_from(["ann", "ann/", "bob"]), NAMES)


@settings(deadline=None, max_examples=15)
@given(places=st.lists(PLACES, max_size=6))
@pytest.mark.parametrize("name", ADAPTERS)
def test_what_is_read_is_what_was_written_under_exactly_these_names(name, places):
    adapter = ADAPTERS[name]
    pytest.importorskip(adapter.needs)
    with memcore.open(":memory:", allow_unsafe=True) as db:
        expected: dict[tuple[str, str], list[str]] = {}
        for number, (user, key) in enumerate(places):
            asyncio.run(adapter.put(adapter.make(db, user=user), key, f"text {number}"))
            expected.setdefault((user, key), []).append(f"text {number}")
        for user in ("ann", "ann/", "bob"):
            store = adapter.make(db, user=user)
            for _, key in [*places, ("", "a")]:
                assert asyncio.run(adapter.get(store, key)) == expected.get((user, key), [])
        assert not db.check()
