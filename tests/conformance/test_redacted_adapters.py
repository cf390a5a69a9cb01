"""What frameworks store while a policy is on: nothing planted, and what is read is valid."""

import asyncio
import dataclasses
import json
import uuid
from decimal import Decimal

import pytest
from agents.memory.session_settings import SessionSettings
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send

import memcore
from memcore.adapters.adk import (
    MemcoreArtifactService,
    MemcoreMemoryService,
    MemcoreSessionService,
)
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.errors import InvalidItemError
from planting import Planted

CALL = "call_13912345678"  # holds what looks like a mobile number, and is an id


@pytest.fixture
def plant():
    return Planted()


@pytest.fixture
def redacted(tmp_path, plant):
    """A database with a policy; whatever was planted must not be in its files."""
    store = tmp_path / "store"
    store.mkdir()
    with memcore.open(store / "a.memcore", redact="default") as db:
        yield db
        assert not plant.found_in(store)
        assert not db.check()
    assert plant.values
    assert not plant.found_in(store)


@dataclasses.dataclass
class Note:
    text: str
    by: dict


def _said(plant):
    call = {"name": "find", "args": {"q": plant()}, "id": CALL, "type": "tool_call"}
    return [
        HumanMessage(plant()),
        AIMessage([{"type": "text", "text": plant()}], tool_calls=[call]),
        ToolMessage(json.dumps([plant()]), tool_call_id=CALL, artifact={"raw": plant()}),
        AIMessage(plant(), additional_kwargs={"why": [plant()]}),
    ]


class State(MessagesState):
    note: Note
    extra: dict
    blob: bytes


def test_langgraph_checkpoints(redacted, plant):
    saver = MemcoreSaver(redacted)

    def node(state):
        return {
            "messages": _said(plant),
            "note": Note(plant(), {"a": (plant(), {"b": plant()})}),
            "extra": {"set": {plant()}, "deep": [[plant()]], 7: plant(), "id": CALL},
            "blob": plant().encode(),
        }

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node")
    app = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "t"}, "metadata": {"note": plant()}}
    for _ in range(6):
        app.invoke({"messages": [("user", plant())]}, config)
    found = app.get_state(config).values
    assert isinstance(found["note"], Note)
    assert found["extra"]["id"] == CALL
    calls = [call["id"] for each in found["messages"] for call in getattr(each, "tool_calls", ())]
    results = [each.tool_call_id for each in found["messages"] if each.type == "tool"]
    assert calls == results == [CALL] * 6
    assert "[EMAIL_" in str(found["messages"])
    again = app.invoke({"messages": []}, config)  # what was loaded can be gone on with
    assert len(again["messages"]) == len(found["messages"]) + 4


def test_langgraph_writes_and_odd_values(redacted, plant):
    saver = MemcoreSaver(redacted)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    number = uuid.uuid4()
    values = {
        "send": Send("node", {"text": plant()}),
        "id": number,
        "price": Decimal("1.5"),
        "many": [plant() for _ in range(300)],
        "dict": {f"k{at}": plant() for at in range(200)},
        "long": plant.many(4000),
        "none": None,
    }
    saver.put_writes(config, list(values.items()), "task")
    checkpoint = {**empty_checkpoint(), "id": "1", "channel_values": values}
    checkpoint["channel_versions"] = dict.fromkeys(values, "1")
    saver.put(config, checkpoint, {"source": "loop", "step": 1}, checkpoint["channel_versions"])
    found = saver.get_tuple(config).checkpoint["channel_values"]
    assert found["send"].node == "node"
    assert (found["id"], found["price"], found["none"]) == (number, Decimal("1.5"), None)
    assert len(found["many"]) == 300


def test_what_cannot_be_looked_into_is_refused(redacted, plant, tmp_path):
    class Odd:
        def __reduce__(self):
            return (str, (plant(),))

    serde = JsonPlusSerializer(pickle_fallback=True)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    plant()
    with pytest.raises(InvalidItemError, match="pickle"):
        MemcoreSaver(redacted, serde=serde).put_writes(config, [("a", Odd())], "task")
    policy = memcore.RedactionPolicy(allow_opaque=True)
    with memcore.open(tmp_path / "b.memcore", redact=policy) as db:
        MemcoreSaver(db, serde=serde).put_writes(config, [("a", Odd())], "task")


def test_langgraph_store_and_cache(redacted, plant):
    store = MemcoreStore(redacted)
    secret = plant()
    for at in range(40):
        store.put(("a", "b"), f"k{at}", {"text": plant(), "deep": {"list": [plant()]}})
    store.put(("a",), "told", {"mail": secret})
    assert store.get(("a",), "told").value["mail"] != secret
    assert [each.key for each in store.search(("a",), filter={"mail": secret})] == ["told"]
    cache = MemcoreCache(redacted)
    cache.set(
        {(("n",), f"k{at}"): ({"said": [plant()], "m": _said(plant)}, None) for at in range(9)}
    )
    assert len(cache.get([(("n",), "k1")])) == 1


def test_adk(redacted, plant):
    async def work():
        sessions = MemcoreSessionService(redacted)
        session = await sessions.create_session(
            app_name="app", user_id="u", session_id="s",
            state={"a": plant(), "user:b": plant(), "app:c": {"d": plant()}},
        )  # fmt: skip
        for at in range(10):
            parts = [
                types.Part(text=plant()),
                types.Part(function_call=types.FunctionCall(
                    id=f"{CALL}{at}", name="find", args={"q": plant()})),
            ]  # fmt: skip
            actions = EventActions(state_delta={"last": plant(), "user:last": [plant()]})
            event = Event(
                author="agent", invocation_id=f"i{at}", actions=actions,
                content=types.Content(role="model", parts=parts),
                custom_metadata={"why": plant()},
            )  # fmt: skip
            await sessions.append_event(session, event)
        found = await sessions.get_session(app_name="app", user_id="u", session_id="s")
        calls = [call.id for event in found.events for call in event.get_function_calls()]
        assert calls == [f"{CALL}{at}" for at in range(10)]
        assert not any(value.decode() in str(found.events) for value in plant.values)
        memory = MemcoreMemoryService(redacted)
        await memory.add_session_to_memory(session)
        secret = plant()
        content = types.Content(role="user", parts=[types.Part(text=secret)])
        await memory.add_memory(
            app_name="app", user_id="u",
            memories=[MemoryEntry(content=content, custom_metadata={"m": plant()})],
            custom_metadata={"all": plant()},
        )  # fmt: skip
        hits = await memory.search_memory(app_name="app", user_id="u", query=secret)
        assert hits.memories
        artifacts = MemcoreArtifactService(redacted)
        for part in (
            types.Part(text=plant.many(20)),
            types.Part(text=plant()),
            types.Part.from_bytes(data=plant().encode(), mime_type="text/plain"),
            types.Part.from_bytes(data=plant.many(9000).encode(), mime_type="text/plain"),
        ):
            await artifacts.save_artifact(
                app_name="app", user_id="u", session_id="s", filename="f", artifact=part,
                custom_metadata={"m": plant()},
            )  # fmt: skip
        loaded = await artifacts.load_artifact(
            app_name="app", user_id="u", session_id="s", filename="f", version=1
        )
        assert loaded.text

    asyncio.run(work())


@pytest.mark.parametrize("key", [None, "k" * 32])
def test_openai_agents(redacted, plant, key):
    async def work():
        options = {} if key is None else {"encryption_key": key}
        session = MemcoreSession("s", redacted, session_settings=SessionSettings(), **options)
        for _ in range(10):
            await session.add_items([
                {"role": "user", "content": plant()},
                {"type": "function_call", "call_id": CALL, "name": "f", "id": "fc_1",
                 "arguments": json.dumps({"q": plant()})},
                {"type": "function_call_output", "call_id": CALL, "output": plant()},
                {"role": "assistant", "content": [{"type": "output_text", "text": plant()}]},
            ])  # fmt: skip
        items = await session.get_items()
        assert len(items) == 40
        assert not any(value.decode() in str(items) for value in plant.values)
        assert [item["call_id"] for item in items if "call_id" in item] == [CALL] * 20
        assert (await session.pop_item())["role"] == "assistant"

    asyncio.run(work())


def test_deepagents(redacted, plant):
    backend = MemcoreBackend(redacted)
    first = plant()
    backend.write("/a.md", f"# A\n{first}\n")
    for _ in range(30):
        backend.append("/a.md", plant() + "\n")
    backend.append("/a.md", "he said 1397")
    plant.values.add(b"13970009999")
    backend.append("/a.md", "0009999 is his")
    assert backend.edit("/a.md", first, plant()).error is None
    backend.write("/long.txt", plant.many(9000))
    done = backend.upload_files([("/b.txt", plant().encode()), ("/c.bin", b"\0\1" * 99)])
    assert not any(each.error for each in done)
    assert backend.download_files(["/c.bin"])[0].content == b"\0\1" * 99
    backend.import_files({"/d.md": {"content": [plant(), plant()], "encoding": "utf-8"}})
    text = backend.read("/a.md").file_data["content"]
    assert "he said [CN_MOBILE_" in text
