"""What frameworks store in an encrypted file: its contents lie in no file, and can be read."""

import asyncio

import pytest
from agents.memory.session_settings import SessionSettings
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession

KEY = bytes(range(32))
MARK = "zyxmark7f3a9"


@pytest.fixture
def sealed(tmp_path):
    """An encrypted database; nobody but its key may tell that the mark was given."""
    place = tmp_path / "store"
    place.mkdir()
    with memcore.open(place / "a.memcore", key=KEY) as db:
        yield db
        db.flush()
        for found in place.iterdir():
            assert MARK.encode() not in found.read_bytes().lower(), found.name
        assert not db.check()


def text(size=1):
    return f"it is {MARK} " * size


def test_langgraph(sealed):
    saver = MemcoreSaver(sealed)

    def talk(state):
        return {"messages": [HumanMessage(text(2000))]}

    graph = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk")
    config = {"configurable": {"thread_id": "t"}, "metadata": {"why": text()}}
    app = graph.compile(checkpointer=saver)
    for _ in range(3):
        app.invoke({"messages": [HumanMessage(text())]}, config)
    saver.put_writes(
        saver.get_tuple({"configurable": {"thread_id": "t"}}).config, [("c", text())], "task"
    )
    saver.put(
        {"configurable": {"thread_id": "u", "checkpoint_ns": ""}},
        empty_checkpoint(), {"step": -1, "note": text()}, {},
    )  # fmt: skip
    assert len(app.get_state(config).values["messages"]) == 6
    assert next(iter(saver.list(None, filter={"note": text()})))
    store = MemcoreStore(sealed, index={"dims": 2, "embed": lambda ts: [[1.0, 2.0] for _ in ts]})
    store.put(("a", "b"), "k", {"text": text(), "deep": {"list": [text()]}}, index=["text"])
    assert store.search(("a",), query=text())
    assert store.search(("a",), filter={"text": text()})
    cache = MemcoreCache(sealed)
    cache.set({(("n",), "k"): ({"said": [text()]}, None)})
    assert cache.get([(("n",), "k")])


def test_adk(sealed):
    async def work():
        sessions = MemcoreSessionService(sealed)
        session = await sessions.create_session(
            app_name="app", user_id="u", session_id="s",
            state={"a": text(), "user:b": text(), "app:c": {"d": text()}},
        )  # fmt: skip
        for at in range(3):
            call = types.FunctionCall(id=f"c{at}", name="find", args={"q": text()})
            content = types.Content(
                role="model", parts=[types.Part(text=text()), types.Part(function_call=call)]
            )
            await sessions.append_event(session, Event(
                author="agent", invocation_id=f"i{at}", content=content,
                actions=EventActions(state_delta={"last": text(), "user:last": [text()]}),
                custom_metadata={"why": text()},
            ))  # fmt: skip
        memory = MemcoreMemoryService(sealed)
        await memory.add_session_to_memory(session)
        content = types.Content(role="user", parts=[types.Part(text=text())])
        await memory.add_memory(
            app_name="app", user_id="u", memories=[MemoryEntry(content=content)],
            custom_metadata={"all": text()},
        )  # fmt: skip
        assert (await memory.search_memory(app_name="app", user_id="u", query=MARK)).memories
        artifacts = MemcoreArtifactService(sealed)
        for part in (
            types.Part(text=text(9000)),
            types.Part.from_bytes(data=text().encode(), mime_type="text/plain"),
        ):
            await artifacts.save_artifact(
                app_name="app", user_id="u", session_id="s", filename="f", artifact=part,
                custom_metadata={"m": text()},
            )  # fmt: skip

    asyncio.run(work())


def test_openai_agents(sealed):
    async def work():
        session = MemcoreSession("s", sealed, session_settings=SessionSettings())
        await session.add_items([
            {"role": "user", "content": text()},
            {"type": "function_call", "call_id": "c", "name": "f",
             "arguments": f'{{"q":"{MARK}"}}'},
            {"type": "function_call_output", "call_id": "c", "output": text(9000)},
        ])  # fmt: skip
        assert MARK in str(await session.get_items())
        await session.pop_item()

    asyncio.run(work())


def test_deepagents(sealed):
    backend = MemcoreBackend(sealed)
    backend.write("/a.md", text())
    backend.append("/a.md", text(9000))
    assert backend.edit("/a.md", text(1), "x", replace_all=True).error is None
    backend.upload_files([("/b.txt", text().encode())])
    backend.write("/c.md", text())
    assert MARK in backend.read("/c.md").file_data["content"]
