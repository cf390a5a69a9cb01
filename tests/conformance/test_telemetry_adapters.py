"""What is done through an adapter is told once, under its name, and without content."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.events.event import Event
from google.genai import types
from langgraph.checkpoint.base import empty_checkpoint

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession, SessionManager

MARK = "zq9MARKERzq9"
TURN = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]


@pytest.fixture
def records():
    return []


@pytest.fixture
def db(tmp_path, records):
    with memcore.open(tmp_path / "x", telemetry=records.append) as found:
        records.clear()
        yield found
    assert MARK not in repr(records)
    assert not found.observer.telemetry.failures


def told(records, adapter):
    found = [record.operation for record in records]
    assert {record.adapter for record in records} == {adapter}
    assert {record.status for record in records} == {"ok"}
    records.clear()
    return found


def test_sessions_of_the_agents_sdk(db, records):
    async def main():
        session = MemcoreSession("s", db, user="alice")
        await session.add_items(TURN)
        assert len(await session.get_items()) == 2
        await session.pop_item()
        await session.clear_session()
        assert {(r.user, r.session) for r in records} == {("alice", "s")}
        assert (records[0].items, records[1].items) == (2, 2)
        assert records[0].bytes > 50
        manager = SessionManager(db)
        await manager.get_session("bob").add_items(TURN)
        assert records[-1].user == "bob"
        await manager.list_sessions()
        await manager.delete_session("bob")
        assert records[-1].user == "bob"
        assert told(records, "openai_agents") == [
            "append", "items", "undo", "delete", "append", "sessions", "delete",
        ]  # fmt: skip
        await session.native().append(TURN[0])
        assert told(records, None) == ["append"]

    asyncio.run(main())


def test_a_session_finds_its_user_by_the_call(db, records):
    async def main():
        session = MemcoreSession("s", db, scope_of=lambda wrapper: ("shop", wrapper))
        await session.add_items(TURN, wrapper="carol")
        assert (records[-1].app, records[-1].user) == ("shop", "carol")
        with pytest.raises(Exception, match="wrapper"):
            await session.add_items(TURN)

    asyncio.run(main())
    assert records[-1].status == "UserError"


def test_savers_stores_and_caches(db, records):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    new = {"source": "input", "step": -1}, {}
    saver, store, cache = MemcoreSaver(db, user="u"), MemcoreStore(db), MemcoreCache(db)
    records.clear()
    placed = saver.put(config, empty_checkpoint(), *new)
    saver.put_writes(placed, [("a", MARK)], "task")
    saver.get_tuple(config)
    assert len(list(saver.list(config))) == 1
    assert {(r.user, r.session) for r in records} == {("u", "t")}

    async def main():
        placed = await saver.aput(config, empty_checkpoint(), *new)
        await saver.aput_writes(placed, [("a", MARK)], "task")
        await saver.aget_tuple(config)
        assert len([found async for found in saver.alist(config)]) == 2
        await saver.adelete_thread("t")
        await store.aput((MARK,), MARK, {"x": MARK})
        await store.asearch((MARK,), query=None)
        await store.aget((MARK,), MARK)

    asyncio.run(main())
    store.put(("n",), "k", {"x": MARK})
    store.delete(("n",), "k")
    cache.set({(("n",), MARK): (MARK, None)})
    cache.get([(("n",), MARK)])
    cache.clear()
    graph = ["graph.put", "graph.put_writes", "graph.get", "graph.get"]
    assert told(records, "langgraph") == [
        *graph, *graph, "graph.delete", "memory.put", "memory.search", "memory.get", "memory.put",
        "memory.delete", "cache.put", "cache.get", "cache.clear",
    ]  # fmt: skip


def test_services_of_adk(db, records):
    place = {"app_name": "shop", "user_id": "u", "session_id": "s"}
    part = types.Part(text=MARK)

    async def main():
        service = MemcoreSessionService(db)
        session = await service.create_session(**place, state={"a": MARK})
        event = Event(author="user", content=types.Content(role="user", parts=[part]))
        await service.append_event(session, event)
        await service.get_session(**place)
        assert {(r.app, r.user, r.session) for r in records} == {("shop", "u", "s")}
        await service.list_sessions(app_name="shop", user_id="u")
        memory = MemcoreMemoryService(db)
        await memory.add_session_to_memory(session)
        await memory.search_memory(app_name="shop", user_id="u", query=MARK)
        artifacts = MemcoreArtifactService(db)
        await artifacts.save_artifact(**place, filename=MARK, artifact=part)
        await artifacts.load_artifact(**place, filename=MARK)
        await service.delete_session(**place)

    asyncio.run(main())
    assert told(records, "adk") == [
        "begin", "append", "load", "sessions", "memory.put", "memory.search", "artifact.put",
        "artifact.get", "delete",
    ]  # fmt: skip


def test_files_of_deepagents(db, records):
    backend = MemcoreBackend(db, user="u")
    backend.write("/a", MARK)
    backend.edit("/a", MARK, MARK * 2)
    asyncio.run(backend.aread("/a"))
    backend.grep(MARK)
    backend.upload_files([("/b", MARK.encode())])
    backend.delete("/a")
    assert {record.user for record in records} == {"u"}
    assert told(records, "deepagents") == [
        "file.put", "file.put", "file.get", "file.search", "file.put", "file.delete",
    ]  # fmt: skip
