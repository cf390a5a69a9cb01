"""LlamaIndex's chats on a memcore file: the same as its SQL store, and what memcore adds."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

pytest.importorskip("llama_index.core")
pytest.importorskip("aiosqlite")
from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    TextBlock,
    ToolCallBlock,
)
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy import select
from sqlalchemy.ext.asyncio import create_async_engine

from memcore.adapters.llama_index import MemcoreChatStore

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("lines_worker.py")


def said(text, role="user"):
    return ChatMessage(role=role, content=text)


@pytest.fixture
def store(tmp_path):
    with MemcoreChatStore(tmp_path / "a.memcore", user="ann") as store:
        yield store


# --- differential ---------------------------------------------------------------------------------

KEYS = st.sampled_from(["k", "k/1"])
STATUS = st.sampled_from([MessageStatus.ACTIVE, MessageStatus.ARCHIVED])
TEXTS = st.lists(st.sampled_from("abc"), max_size=3)
COUNT = st.integers(0, 4)
STEPS = st.lists(st.one_of(
    st.tuples(st.just("add"), KEYS, TEXTS, STATUS),
    st.tuples(st.just("set"), KEYS, TEXTS, STATUS),
    st.tuples(st.just("clear"), KEYS, st.none() | STATUS),
    st.tuples(st.just("delete"), KEYS, COUNT),
    st.tuples(st.just("oldest"), KEYS, COUNT), st.tuples(st.just("archive"), KEYS, COUNT),
), max_size=10)  # fmt: skip


async def ids_of(store, key):
    if isinstance(store, MemcoreChatStore):
        return await store.get_ids(key, None)
    factory, table = await store._initialize()
    query = select(table.c.id).where(table.c.key == key)
    async with factory() as session:
        found = await session.execute(query.order_by(table.c.timestamp, table.c.id))
        return [row.id for row in found.fetchall()]


async def played(store, name, key, given_, status=None):
    if name == "add":
        if given_:  # SQLAlchemy inserts an empty row for no message
            await store.add_messages(key, [said(text) for text in given_], status)
    elif name == "set":
        await store.set_messages(key, [said(text) for text in given_], status)
    elif name == "delete":
        ids = await ids_of(store, key)
        found = await store.delete_message(key, ids[given_] if given_ < len(ids) else -1)
        return found and found.content
    elif name == "clear":
        await store.delete_messages(key, given_)
    elif name == "oldest":
        return [each.content for each in await store.delete_oldest_messages(key, given_)]
    else:
        return [each.content for each in await store.archive_oldest_messages(key, given_)]
    return None


async def state(store):
    seen = [sorted(await store.get_keys())]
    for key in ("k", "k/1"):
        for status in (None, *MessageStatus):
            seen.append(await store.count_messages(key, status))
            for limit, offset in ((None, None), (2, None), (1, 1), (None, 0)):
                found = await store.get_messages(key, status, limit, offset)
                seen.append([(each.role, each.content) for each in found])
    return seen


@settings(deadline=None, max_examples=25)
@given(steps=STEPS)
def test_it_does_what_the_sql_store_does(steps):
    async def play():
        engine = create_async_engine("sqlite+aiosqlite:///:memory:")
        theirs = SQLAlchemyChatStore(table_name="t", async_engine=engine)
        with MemcoreChatStore(":memory:", allow_unsafe=True) as ours:
            for step in steps:
                assert await played(ours, *step) == await played(theirs, *step), step
                assert await state(ours) == await state(theirs), step
        await engine.dispose()

    asyncio.run(play())


# --- messages -------------------------------------------------------------------------------------


def test_messages_come_back_equal_and_pair(store):
    openai_call = {"id": "c2", "type": "function",
                   "function": {"name": "look", "arguments": '{"at": 2}'}}  # fmt: skip
    messages = [
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", blocks=[TextBlock(text="look"),
                                         ImageBlock(url="https://x/y.png")]),
        ChatMessage(role="assistant", blocks=[
            ToolCallBlock(tool_call_id="c1", tool_name="look", tool_kwargs={"at": 1})],
            additional_kwargs={"tool_calls": [openai_call]}),
        ChatMessage(role="tool", content="one", additional_kwargs={"tool_call_id": "c1"}),
        ChatMessage(role="tool", content="x" * 90_000, additional_kwargs={"tool_call_id": "c2"}),
        ChatMessage(role="assistant", content="done", additional_kwargs={"$": {"n": [1.5]}}),
        ChatMessage(role="user", blocks=[]),
    ]  # fmt: skip
    asyncio.run(store.add_messages("k", messages))
    assert asyncio.run(store.get_messages("k")) == messages
    session = store.session("k")
    assert session.open_calls == []
    shown = session.context().messages
    assert memcore.validate(shown[1:], "anthropic") == []
    assert session.search("look")


def test_what_is_deleted_is_not_in_a_copy_of_the_file(store, tmp_path):
    asyncio.run(store.add_messages("k", [said("kept"), said("zanzibar"), said("also kept")]))
    asyncio.run(store.archive_oldest_messages("k", 1))
    middle = asyncio.run(store.get_ids("k", None))[1]
    assert asyncio.run(store.delete_message("k", middle)).content == "zanzibar"
    assert asyncio.run(store.delete_message("k", middle)) is None
    archived = asyncio.run(store.get_messages("k", MessageStatus.ARCHIVED))
    assert [each.content for each in archived] == ["kept"]
    with memcore.open(tmp_path / "a.memcore") as db:
        db.backup(tmp_path / "copy.memcore")
    assert b"zanzibar" not in (tmp_path / "copy.memcore").read_bytes()


def test_two_that_archive_at_once_take_different_messages(store, monkeypatch):
    from memcore.adapters.llama_index import chats

    active, others = chats._active, [1]

    def interrupted(lines):
        found = active(lines)
        if others:  # another one archives between the look and the commit
            others.pop()
            asyncio.run(store.archive_oldest_messages("k", 1))
        return found

    asyncio.run(store.add_messages("k", [said(text) for text in "abcd"]))
    monkeypatch.setattr(chats, "_active", interrupted)
    (taken,) = asyncio.run(store.archive_oldest_messages("k", 1))
    archived = asyncio.run(store.get_messages("k", MessageStatus.ARCHIVED))
    assert taken.content == "b"
    assert [each.content for each in archived] == ["a", "b"]


def test_a_legal_hold_keeps_messages(store):
    asyncio.run(store.add_messages("k", [said("a"), said("b")]))
    store.session("k").hold(reason="a trial")
    for change in (
        lambda: store.delete_oldest_messages("k", 1),
        lambda: store.set_messages("k", [said("c")]),
        lambda: store.delete_messages("k"),
    ):
        with pytest.raises(memcore.HeldError):
            asyncio.run(change())
    assert [each.content for each in asyncio.run(store.get_messages("k"))] == ["a", "b"]


def test_the_memory_of_an_agent_flushes_into_it(store):
    async def play():
        memory = Memory.from_defaults(
            session_id="k",
            token_limit=60,
            chat_store=store,
            chat_history_token_ratio=0.5,
            token_flush_size=10,
        )
        for number in range(12):
            role = "assistant" if number % 2 else "user"
            await memory.aput(said(f"message number {number}", role))
        shown = [each.content for each in await memory.aget()]
        whole = [each.content for each in await memory.aget_all(status=None)]
        return shown, whole

    shown, whole = asyncio.run(play())
    assert whole == [f"message number {number}" for number in range(12)]
    assert 0 < len(shown) < 12
    assert shown == whole[-len(shown) :]
    assert asyncio.run(store.count_messages("k", MessageStatus.ARCHIVED)) == 12 - len(shown)


# --- processes, erasure ---------------------------------------------------------------------------


def spawned(path, name, count):
    command = [sys.executable, "-W", "ignore", str(WORKER), "llama_index", str(path), name,
               str(count)]  # fmt: skip
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_write_one_chat(tmp_path):
    path = tmp_path / "a.memcore"
    workers = [spawned(path, name, 12) for name in ("one", "two")]
    assert [worker.wait() for worker in workers] == [0, 0]
    with MemcoreChatStore(path) as store:
        texts = [each.content for each in asyncio.run(store.get_messages("k"))]
        ids = asyncio.run(store.get_ids("k"))
    assert ids == sorted(set(ids))
    for name in ("one", "two"):
        own = [text for text in texts if text.startswith(name)]
        assert own == [f"{name} {n}{s}" for n in range(12) for s in ("?", "!")]


def test_a_killed_writer_leaves_whole_batches(tmp_path):
    path = tmp_path / "a.memcore"
    worker = spawned(path, "one", 100_000)
    with MemcoreChatStore(path) as store:
        while worker.poll() is None and asyncio.run(store.count_messages("k")) < 10:
            pass
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        texts = [each.content for each in asyncio.run(store.get_messages("k"))]
    assert texts == [f"one {n}{s}" for n in range(len(texts) // 2) for s in ("?", "!")]


def test_what_is_redacted_or_erased_is_not_in_the_file(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path, redact=True) as db:
        store = MemcoreChatStore(db, user="ann")
        asyncio.run(store.add_message("k", said("I am ann.smith@example.com of zanzibar")))
        (found,) = asyncio.run(store.get_messages("k"))
        assert "example.com" not in found.content
        assert db.erase("ann", probes=["zanzibar"]).bytes_gone
        assert asyncio.run(store.get_messages("k")) == []
    data = path.read_bytes()
    assert b"zanzibar" not in data
    assert b"ann.smith@example.com" not in data
