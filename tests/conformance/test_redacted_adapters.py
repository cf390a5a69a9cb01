"""What frameworks store while a policy is on: nothing planted, and what is read is valid."""

import asyncio
import dataclasses
import json
import uuid
from collections import deque
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from agents.memory.session_settings import SessionSettings
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from pydantic import BaseModel, ConfigDict, SecretStr

import memcore
from memcore import RedactionPolicy
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.errors import BlockedError, InvalidItemError
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


MAIL, MOBILE = "alice@example.com", "13800138000"


def _stored(db):
    """Whether any file beside the database holds it."""
    path = Path(db.path)
    return [each.name for each in path.parent.iterdir() if _leaks(each)]


def _leaks(path):
    content = path.read_bytes()
    return MAIL.encode() in content or MOBILE.encode() in content


@pytest.fixture
def named(tmp_path):
    """A database with a policy; the address must not be in its files."""
    with memcore.open(tmp_path / "a.memcore", redact="default") as db:
        yield db
        assert not _stored(db)
    assert not [each for each in tmp_path.iterdir() if _leaks(each)]


def test_names_that_langgraph_gives_are_refused(named):
    store, cache, saver = MemcoreStore(named), MemcoreCache(named), MemcoreSaver(named)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    for refused in (
        lambda: store.put(("users", MOBILE), "k", {"a": 1}),
        lambda: store.put(("users",), MAIL, {"a": 1}),
        lambda: cache.set({(("n",), MAIL): (1, None)}),
        lambda: cache.set({((MAIL,), "k"): (1, None)}),
        lambda: saver.put_writes(config, [(MAIL, 1)], "task"),
    ):
        with pytest.raises(BlockedError, match=r"holds (email|cn_mobile)") as told:
            refused()
        assert MAIL not in str(told.value)
        assert MOBILE not in str(told.value)
    assert store.get(("users", MOBILE), "k") is None
    store.delete(("users",), MAIL)


def test_keys_inside_of_the_values_of_a_graph_are_redacted(named):
    many = {f"k{at}": at for at in range(300)}
    values = {
        "plain": {MAIL: {MAIL: 1}},
        "mixed": {MAIL: b"\0", "price": Decimal(1), "deep": {MAIL: uuid.uuid4(), "a": b"\0"}},
        "odd": {7: 1, MAIL: 2, "deep": {8: MAIL, MAIL: b"\0"}},
        "many": {**many, MAIL: 1, "deep": {**many, MAIL: b"\0"}},
    }
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    saver = MemcoreSaver(named)
    for step in ("1", "2"):
        checkpoint = {**empty_checkpoint(), "id": step, "channel_values": values}
        checkpoint["channel_versions"] = dict.fromkeys(values, step)
        told = {"source": "loop", "step": int(step), f"of {MAIL}": 1, "by": {MAIL: MAIL}}
        saver.put(config, checkpoint, told, checkpoint["channel_versions"])
    found = saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert {name: len(each) for name, each in found.checkpoint["channel_values"].items()} == {
        name: len(each) for name, each in values.items()
    }
    assert found.checkpoint["channel_values"]["mixed"]["price"] == Decimal(1)


SECRET = "Xq7pelican42zebra"


@dataclasses.dataclass
class Login:
    password: object
    note: str = ""


class Account(BaseModel):
    name: str
    password: SecretStr | list[str]


PLACES = {
    "a long list": lambda s: {"password": ["a", "b", "c", s, "d"]},
    "a channel": lambda s: [["a", "b", s, "c"]],
    "a list in a list": lambda s: {"password": [["a", "b", "c", "d", s], "e", "f", "g"]},
    "a dict that says nothing": lambda s: {"password": {"value": [s, "b", "c", "d"]}},
    "a set": lambda s: {"password": {s}},
    "a tuple": lambda s: {"password": (s, 1)},
    "a deque": lambda s: {"password": deque([s])},
    "bytes": lambda s: {"password": s.encode()},
    "a secret": lambda s: {"password": SecretStr(s)},
    "a secret in a list": lambda s: {"password": [1, 2, 3, SecretStr(s)]},
    "a model": lambda s: Account(name="a", password=SecretStr(s)),
    "a model with a list": lambda s: {"deep": [Account(name="a", password=["a", "b", "c", s])]},
    "a dataclass": lambda s: Login([1, 2, {s}]),
    "a dict with other keys": lambda s: {"deep": {7: 1, "password": {s}}},
    "a key of bytes": lambda s: {"deep": {b"password": s, 7: 1}},
    "a key of two": lambda s: {"deep": {("alice", "password"): s}},
    "what is sent": lambda s: {"password": [1, 2, 3, Send("node", s)]},
    "what is sent with a key": lambda s: Send("node", {"password": [1, 2, 3, 4, s]}),
    "numpy": lambda s: {"a": np.array([f"my password is {s}"])},
    "bytes in numpy": lambda s: {"a": np.array([b"my password is " + s.encode()])},
}


def _put(saver, step, values):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = {**empty_checkpoint(), "id": step, "channel_values": values}
    checkpoint["channel_versions"] = dict.fromkeys(values, step)
    told = {"source": "loop", "step": int(step)}
    return saver.put(config, checkpoint, told, checkpoint["channel_versions"])


def _said_anywhere(folder, text):
    marks = [text.encode(form) for form in ("utf-8", "utf-16-le", "utf-32-le")]
    contents = [each.read_bytes() for each in folder.iterdir() if each.is_file()]
    return any(mark in content for mark in marks for content in contents)


@pytest.mark.parametrize("place", PLACES)
def test_what_a_key_says_holds_for_all_that_stands_under_it_in_a_graph(tmp_path, place):
    value = PLACES[place](SECRET)
    with memcore.open(tmp_path / "a.memcore", redact="default") as db:
        saver = MemcoreSaver(db, allowed_types=[Login, Account])
        for step in ("1", "2"):
            after = _put(saver, step, {"password" if type(value) is list else "state": value})
        saver.put_writes(after, [("password" if type(value) is list else "state", value)], "task")
        assert type(saver.get_tuple(after).checkpoint["channel_values"].popitem()[1])
    assert not _said_anywhere(tmp_path, SECRET)


_LEAVES = st.one_of(
    st.none(),
    st.integers(-(2**60), 2**60),
    st.text(max_size=5),
    st.just("plant"),
    st.just(b"plant"),
)


def _around(children):
    keys = st.sampled_from(["a", "text", "password", "content", "value"])
    names = st.one_of(keys, st.integers(0, 9), st.just(("plant", 1)), st.just("plant"))
    return st.one_of(
        st.lists(children, max_size=6),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.dictionaries(names, children, max_size=4),
        st.builds(Login, children, st.just("plant")),
        st.builds(lambda text: deque([text]), children),
        st.just({"plant"}).map(set),
        st.builds(HumanMessage, st.just("plant")),
        st.builds(Account, name=st.just("plant"), password=st.just(["plant"])),
    )


def _planted(value, plant):  # noqa: PLR0911 - a branch a sort
    """The value with another planted text wherever it says so."""
    match value:
        case "plant":
            return plant()
        case b"plant":
            return plant().encode()
        case list() | tuple() | set() | deque():
            return type(value)(_planted(each, plant) for each in value)
        case dict():
            return {_planted(key, plant): _planted(each, plant) for key, each in value.items()}
        case Login():
            return Login(_planted(value.password, plant), plant())
        case HumanMessage():
            return HumanMessage(plant(), additional_kwargs={"why": [plant()]})
        case Account():
            return Account(name=plant(), password=[plant()])
    return value


def _is_json(value):
    match value:
        case dict():
            return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
        case list():
            return all(map(_is_json, value))
    return value is None or type(value) in (int, str)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(st.recursive(_LEAVES, _around, max_leaves=12), min_size=1, max_size=4))
def test_nothing_that_is_planted_anywhere_is_in_the_file(tmp_path_factory, values):
    folder, plant = tmp_path_factory.mktemp("store"), Planted()
    with memcore.open(folder / "a.memcore", redact="default") as db:
        session, kv, saver = db.session("s"), db.scope().kv("n"), MemcoreSaver(db)
        for at, shape in enumerate(values):
            value = _planted(shape, plant)
            after = _put(saver, str(at + 1), {"state": value, "deep": {"below": [value] * 5}})
            saver.put_writes(after, [("state", value), ("sent", Send("n", value))], "task")
            if type(value) is bytes:
                kv.put(f"k{at}", value)
            if _is_json(value):
                session.append({"role": "user", "content": "x", "more": value}, meta={"m": value})
                session.state.update({f"f{at}": value})
                kv.put(f"k{at}", value)
        assert not db.check()
    assert not plant.found_in(folder)


def test_one_object_under_two_keys_is_redacted_under_each(tmp_path):
    shared = [SECRET]
    with memcore.open(tmp_path / "a.memcore", redact="default") as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": {"note": ["fine"], "password": shared}})
        after = _put(saver, "2", {"state": {"password": shared, "again": shared}})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
        assert found["again"] == [SECRET]
        assert found["password"] != [SECRET]


def test_keys_of_every_sort_are_redacted_and_none_is_lost(tmp_path):
    odd = {(MAIL, 1): "a", (MAIL.title(), 1): "b", MAIL: "c", MAIL.upper(): "d", MAIL.encode(): "e",
           MAIL.title().encode(): "f", 7: "g", (7, (MAIL,)): "h"}  # fmt: skip
    with memcore.open(tmp_path / "a.memcore", redact="default") as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": {"deep": odd}})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]["deep"]
        assert list(found.values()) == list("abcdefgh")
        assert found[7] == "g"
        assert all(isinstance(key, tuple) for key in list(found)[:2])
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir()).lower()
    assert MAIL.encode() not in content


def test_members_of_a_set_that_become_the_same_are_numbered(tmp_path):
    """Two secrets are two members, whatever stands in their place."""
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    members = {f"{name}@example.com" for name in ("eve", "bob", "ann")}
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": {
            "plain": members | {"<mail>", "x"}, "frozen": frozenset(members),
            "bytes": {each.encode() for each in members},
        }})  # fmt: skip
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
    numbered = {"<mail>", "<mail>_2", "<mail>_3"}
    assert found["plain"] == numbered | {"<mail>_4", "x"}
    assert found["frozen"] == numbered
    assert type(found["frozen"]) is frozenset
    assert found["bytes"] == {each.encode() for each in numbered}


@dataclasses.dataclass(frozen=True)
class Address:
    mail: str
    label: str = ""


class Entry(NamedTuple):
    mail: str
    count: int


class Person(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    mail: str


class Named(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


@pytest.mark.parametrize(
    ("members", "read"),
    [
        ({Address("a@b.io", "x"), Address("c@d.io", "x")},
         {Address("<mail>", "x"), Address("<mail>_2", "x")}),
        ({Entry("a@b.io", 1), Entry("c@d.io", 1)}, {Entry("<mail>", 1), Entry("<mail>_2", 1)}),
        ({Entry("a@b.io", 1), Entry("c@d.io", True)}, {Entry("<mail>", 1), Entry("<mail>_2", 1)}),
        ({Person(name="x", mail="a@b.io"), Person(name="x", mail="c@d.io")},
         {Person(name="x", mail="<mail>"), Person(name="x", mail="<mail>_2")}),
        ({frozenset({"a@b.io", "c@d.io"}), frozenset({"e@f.io", "g@h.io"})},
         {frozenset({"<mail>", "<mail>_2"}), frozenset({"<mail>_2", "<mail>_2_2"})}),
        ({frozenset({Address("a@b.io")}), frozenset({Address("c@d.io")})},
         {frozenset({Address("<mail>")}), frozenset({Address("<mail>_2")})}),
        ({Address("a@b.io"), Address("<mail>_2"), Address("c@d.io")},
         {Address("<mail>"), Address("<mail>_2"), Address("<mail>_3")}),
        ({Address("a@b.io", 1), Entry("a@b.io", 1)}, {Address("<mail>", 1), Entry("<mail>", 1)}),
        ({Path("/a@b.io"), Path("/c@d.io")}, {Path("/<mail>"), Path("/<mail>_2")}),
    ],
)  # fmt: skip
def test_members_of_every_sort_that_become_the_same_are_numbered(tmp_path, members, read):
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": members})
        assert saver.get_tuple(after).checkpoint["channel_values"]["state"] == read


def test_sets_in_sets_keep_their_shape(tmp_path):
    """What is numbered in one is unlike the others in it, and the whole unlike the other sets."""
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    nested = {f"u{number}@b.io" for number in range(256)}
    while len(nested) > 1:
        row = list(nested)
        nested = {frozenset(row[at : at + 2]) for at in range(0, len(row), 2)}
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": nested})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
    depth = 0
    while isinstance(found, (set, frozenset)):
        row = list(found)
        assert {len(each) for each in row if isinstance(each, frozenset)} <= {2}
        found, depth = row[0], depth + 1
    assert depth == 9


@dataclasses.dataclass(frozen=True)
class Odd:
    mails: dict = dataclasses.field(hash=False)
    sent: bytes = b""


def test_maps_and_bytes_in_members_are_numbered(tmp_path):
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    members = {Odd({1: mail, "x": mail}, b"y") for mail in ("a@b.io", "c@d.io")} | {
        Odd({}, mail.encode("utf-16")) for mail in ("a@b.io", "c@d.io")
    }
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": members})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
    mails = [each for each in found if each.mails]
    assert sorted(each.mails[1] for each in mails) == ["<mail>", "<mail>_2"]
    assert [each.mails["x"] for each in mails] == ["<mail>"] * 2
    sent = {each.sent.decode("utf-16") for each in found if not each.mails}
    assert sent == {"<mail>", "<mail>_2"}


def test_objects_in_tuples_are_numbered(tmp_path):
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    members = {(Address(mail), 1) for mail in ("a@b.io", "c@d.io", "x")}
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": members})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
    # LangGraph reads a set whose members are tuples as a list of lists.
    read = {(address, count) for address, count in found}
    assert read == {(Address(mail), 1) for mail in ("<mail>", "<mail>_2", "x")}


def test_members_that_cannot_be_numbered_become_one_and_the_write_goes_through(tmp_path):
    """The name of a field has no place for a number; a set holds equals once."""
    policy = RedactionPolicy(placeholders={"email": "<mail>"})
    with memcore.open(tmp_path / "a.memcore", redact=policy) as db:
        saver = MemcoreSaver(db)
        after = _put(saver, "1", {"state": {Named(**{mail: 1}) for mail in ("a@b.io", "c@d.io")}})
        found = saver.get_tuple(after).checkpoint["channel_values"]["state"]
    assert found == {Named(**{"<mail>": 1})}


def test_arrays_keep_their_shape_and_what_cannot_be_looked_into_is_refused(tmp_path):
    arrays = {
        "texts": np.array([["a", MAIL], ["b", "c"]]),
        "bytes": np.array([b"a", MAIL.encode()]),
        "numbers": np.arange(6, dtype="<f4").reshape(2, 3),
        "turned": np.asfortranarray([["a", MAIL], ["b", "c"]]),
    }
    with memcore.open(tmp_path / "a.memcore", redact="default") as db:
        saver = MemcoreSaver(db)
        found = saver.get_tuple(_put(saver, "1", {"state": arrays}))
        read = found.checkpoint["channel_values"]["state"]
        assert (read["numbers"] == arrays["numbers"]).all()
        assert {name: each.shape for name, each in read.items()} == {
            name: each.shape for name, each in arrays.items()
        }
        assert [row[0] for row in read["texts"].tolist()] == ["a", "b"]
        assert read["turned"].tolist() == read["texts"].tolist()
        assert read["texts"][0][1].startswith("[EMAIL_")
        mixed = np.array([(1, MAIL)], dtype=[("a", "<i4"), ("b", "<U20")])
        with pytest.raises(InvalidItemError, match="array"):
            _put(saver, "2", {"state": mixed})
    assert not _said_anywhere(tmp_path, MAIL)


def test_names_that_adk_gives_are_refused_and_authors_redacted(named):
    async def work():
        sessions = MemcoreSessionService(named)
        session = await sessions.create_session(app_name="app", user_id="u", session_id="s")
        content = types.Content(role="user", parts=[types.Part(text="hello")])
        event = Event(author=MAIL, invocation_id="i1", content=content)
        with pytest.raises(BlockedError, match="holds email"):
            await sessions.append_event(session, event)
        await sessions.append_event(session, event.model_copy(update={"invocation_id": ""}))
        found = await sessions.get_session(app_name="app", user_id="u", session_id="s")
        assert found.events[0].author.startswith("[EMAIL_")
        memory = MemcoreMemoryService(named)
        entry = MemoryEntry(content=content, author=MAIL)
        await memory.add_memory(app_name="app", user_id="u", memories=[entry])
        found = await memory.search_memory(app_name="app", user_id="u", query="hello")
        assert found.memories[0].author.startswith("[EMAIL_")
        with pytest.raises(BlockedError, match="id of a memory holds email"):
            await memory.add_memory(
                app_name="app", user_id="u", memories=[entry.model_copy(update={"id": MAIL})]
            )
        event = event.model_copy(update={"author": f"Alice <{MAIL}>", "id": "e1"})
        await memory.add_events_to_memory(
            app_name="app", user_id="u", events=[event], session_id="s"
        )
        artifacts = MemcoreArtifactService(named)
        with pytest.raises(BlockedError, match="holds email"):
            await artifacts.save_artifact(
                app_name="app", user_id="u", session_id="s", filename=MAIL,
                artifact=types.Part(text="a"),
            )  # fmt: skip

    asyncio.run(work())


def test_names_of_files_and_branches_are_refused(named):
    async def branches():
        session = MemcoreSession("s", named)
        await session.add_items([{"role": "user", "content": "a"}])
        with pytest.raises(BlockedError, match="name of a branch"):
            await session.create_branch_from_turn(1, MAIL)

    backend = MemcoreBackend(named)
    assert "holds email" in backend.write(f"/{MAIL}.md", "a").error
    assert "holds email" in backend.append(f"/{MAIL}.md", "a").error
    with pytest.raises(BlockedError, match="path of a file"):
        backend.upload_files([(f"/{MAIL}.md", b"a")])
    asyncio.run(branches())
