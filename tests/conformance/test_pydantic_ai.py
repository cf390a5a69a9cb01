"""Pydantic AI's conversations: the same as its store in memory, and what memcore adds."""

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

pytest.importorskip("pydantic_ai.conversation_store")
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from memcore.adapters.pydantic_ai import MemcoreConversationStore

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("lines_worker.py")


def asked(text):
    return ModelRequest([UserPromptPart(text)])


def called(number):
    return ModelResponse([ToolCallPart("look", {"at": number}, f"c{number}")])


def returned(number, content="found"):
    return ModelRequest([ToolReturnPart("look", content, f"c{number}")])


def answered(text):
    return ModelResponse([TextPart(text)])


TURN = [asked("look at one"), called(1), returned(1), answered("done")]


@pytest.fixture
def store(tmp_path):
    with MemcoreConversationStore(tmp_path / "a.memcore", user="ann") as store:
        yield store


# --- differential ---------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
COUNT = st.integers(0, 5)
MESSAGES = st.lists(st.builds(
    lambda make, number: make(number),
    st.sampled_from([lambda n: asked(f"q{n}"), called, returned, lambda n: answered(f"a{n}")]),
    COUNT,
), max_size=3)  # fmt: skip
STEPS = st.lists(st.one_of(
    st.tuples(st.just("start"), NAMES, MESSAGES, st.sampled_from([None, "x", "y"])),
    st.tuples(st.just("extend"), NAMES, MESSAGES, st.none() | COUNT),
    st.tuples(st.just("rewrite"), NAMES, MESSAGES, COUNT),
    st.tuples(st.just("stale"), NAMES, MESSAGES),
    st.tuples(st.just("branch"), NAMES, COUNT),
    st.tuples(st.just("back"), NAMES, COUNT),
    st.tuples(st.just("fork"), NAMES, NAMES, st.none() | COUNT),
    st.tuples(st.just("delete"), NAMES, st.sampled_from([None, "x"])),
), max_size=14)  # fmt: skip


class Player:
    """Plays steps on a store and says what came of them, without the ids that it chose."""

    def __init__(self, store):
        self.store = store
        self.entries = []

    async def play(self, step):
        try:
            return await getattr(self, step[0])(*step[1:])
        except UserError as error:  # a conflict is one
            return type(error)

    async def start(self, name, messages, scope):
        return await self._saved(Conversation(conversation_id=name, messages=[*messages]), scope)

    async def extend(self, name, messages, limit):
        found = await self.store.load(name, limit=limit)
        if found is None:
            return None
        found.messages.extend(messages)
        return await self._saved(found, None)

    async def rewrite(self, name, messages, keep):
        found = await self.store.load(name)
        if found is None:
            return None
        plain = Conversation(conversation_id=name, messages=[*found.messages[:keep], *messages])
        plain.revision = found.revision
        return await self._saved(plain, None)

    async def stale(self, name, messages):
        plain = Conversation(conversation_id=name, messages=[*messages])
        plain.revision = "another"
        return await self._saved(plain, None)

    async def branch(self, name, keep):
        found = await self.store.load(name)
        revision = None if found is None else found.revision
        branched = await self.store.branch(name, at=keep, expected_revision=revision)
        return branched.messages

    async def back(self, name, number):
        record = await self.store.read_record(name)
        if record is None or not record.branches:
            return None
        tip = record.branches[number % len(record.branches)]
        found = await self.store.branch(name, from_entry=tip, expected_revision=record.revision)
        return found.messages

    async def fork(self, name, target, keep):
        return (await self.store.fork(name, at=keep, new_conversation_id=target)).messages

    async def delete(self, name, scope):
        await self.store.delete(name, scope=scope)

    async def _saved(self, conversation, scope):
        stored = await self.store.save(conversation, scope=scope)
        self.entries += [entry.id for entry in stored]
        return [entry.message for entry in stored]

    async def state(self):
        """All that can be seen of the store."""
        seen = []
        for record in await self.store.list_conversations():
            assert record == await self.store.read_record(record.conversation_id)
            branches = [
                [entry.message for entry in await self.store.read_history(tip)]
                for tip in record.branches
            ]
            windows = [(await self.store.load(record.conversation_id, limit=limit)).messages
                       for limit in (None, 0, 1, 2, 3)]  # fmt: skip
            seen.append((record.conversation_id, record.scope, record.forked_from, record.usage,
                         branches, windows))  # fmt: skip
        listed = await self.store.list_conversations(scope="x", limit=2)
        scoped = [record.conversation_id for record in listed]
        return seen, scoped, [await self._there(entry) for entry in self.entries]

    async def _there(self, entry_id):
        try:
            return (await self.store.read_entry(entry_id)).message
        except LookupError:
            return None


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_it_does_what_the_store_in_memory_does(steps):
    async def play():
        with MemcoreConversationStore(":memory:", legal=False, allow_unsafe=True) as ours:
            players = Player(ours), Player(InMemoryConversationStore())
            for step in steps:
                first, second = [await player.play(step) for player in players]
                assert first == second, step
                first, second = [await player.state() for player in players]
                assert first == second, step
            for name in "abc":
                await ours.delete(name)
            assert list(ours.scope.sessions()) == []
            assert list(ours.scope.kv("pydantic_ai").scan()) == []

    asyncio.run(play())


# --- entries --------------------------------------------------------------------------------------


def test_messages_come_back_equal(store):
    messages = [
        ModelRequest([
            SystemPromptPart("be brief"),
            UserPromptPart(["look", ImageUrl("https://x/y.png"),
                            BinaryContent(b"\xff\xfe\x00", media_type="image/png")]),
        ], instructions="in French"),
        ModelResponse([ThinkingPart("hm", signature="s"), TextPart("I look"),
                       ToolCallPart("look", '{"at": 1}', "c1"), ToolCallPart("look", "{bad", "c2"),
                       ToolCallPart("look", None, "c3")], model_name="m"),
        ModelRequest([ToolReturnPart("look", {"found": [1, None, "x" * 70_000]}, "c1"),
                      ToolReturnPart("look", "no", "c2", outcome="failed"),
                      ToolReturnPart("look", None, "c3"), UserPromptPart("and?")]),
        ModelResponse([]),
        ModelRequest([]),
    ]  # fmt: skip
    adapter = ModelMessagesTypeAdapter  # JSON makes an image of binary content that is one
    messages = adapter.validate_json(adapter.dump_json(messages))
    conversation = Conversation(conversation_id="c", messages=[*messages])
    (first, *_) = asyncio.run(store.save(conversation))
    found = asyncio.run(store.load("c"))
    assert found.messages == messages
    session = store.session(first.id)
    assert [call.id for call in session.open_calls] == []
    shown = asyncio.run(store.context("c")).messages
    assert memcore.validate(shown, "anthropic") == []
    assert [block["type"] for block in shown[1]["content"]] == [
        "thinking", "text", "tool_use", "tool_use", "tool_use",
    ]  # fmt: skip


def test_a_window_starts_at_no_result(store):
    conversation = Conversation(conversation_id="c", messages=[*TURN, *TURN])
    asyncio.run(store.save(conversation))
    sizes = []
    for limit in range(9):
        window = asyncio.run(store.load("c", limit=limit))
        sizes.append(len(window.messages))
        assert window.messages == [*TURN, *TURN][8 - len(window.messages) :]
        window.messages.append(asked("more"))  # appends to the whole, whatever was loaded
    assert sizes == [0, 1, 1, 3, 4, 5, 5, 7, 8]
    window = asyncio.run(store.load("c", limit=2))
    window.messages.append(asked("more"))
    asyncio.run(store.save(window))
    assert asyncio.run(store.load("c")).messages == [*TURN, *TURN, window.messages[-1]]


def test_a_head_that_is_not_stored_is_a_conflict(store):
    record = ConversationRecord(conversation_id="c", head_id="nowhere")
    entry = ConversationEntry(parent_id="nowhere", message=asked("x"))
    for given_ in ({}, {"new_entries": [entry]}):
        with pytest.raises(ConversationConflict):
            asyncio.run(store.write_record(record, expected_revision=None, **given_))
    with pytest.raises(LookupError):
        asyncio.run(store.read_entry(entry.id))
    assert list(store.scope.sessions()) == []


def test_an_agent_goes_on_where_it_was(tmp_path):
    def model(messages, info):
        return answered(f"I saw {len(messages)}")

    async def turn(text):
        with MemcoreConversationStore(tmp_path / "a.memcore") as store:
            conversation = await store.load("c") or Conversation(conversation_id="c")
            result = await Agent(FunctionModel(model)).run(text, conversation=conversation)
            await store.save(result)
            return result.output

    assert [asyncio.run(turn(text)) for text in ("one", "two")] == ["I saw 1", "I saw 3"]


# --- processes, erasure, redaction ----------------------------------------------------------------


def spawned(path, name, count):
    command = [sys.executable, str(WORKER), "pydantic", str(path), name, str(count)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_save_one_conversation(tmp_path):
    path = tmp_path / "a.memcore"
    workers = [spawned(path, name, 6) for name in ("one", "two")]
    assert [worker.wait() for worker in workers] == [0, 0]
    with MemcoreConversationStore(path) as store:
        texts = [each.parts[0].content for each in asyncio.run(store.load("c")).messages]
    for name in ("one", "two"):
        assert [text for text in texts if text.startswith(name)] == [
            f"{name} {n}" for n in range(6)
        ]
    assert len(texts) == 12


def test_a_killed_writer_leaves_whole_saves(tmp_path):
    path = tmp_path / "a.memcore"
    worker = spawned(path, "one", 100_000)
    with MemcoreConversationStore(path) as store:
        while worker.poll() is None:
            found = asyncio.run(store.load("c"))
            if found is not None and len(found.messages) >= 10:
                break
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        found = asyncio.run(store.load("c"))
        texts = [each.parts[0].content for each in found.messages]
        assert texts == [f"one {n}" for n in range(len(texts))]
        found.messages.append(asked("goes on"))
        asyncio.run(store.save(found))
        assert len(asyncio.run(store.load("c")).messages) == len(texts) + 1


def test_what_is_deleted_or_erased_is_not_in_the_file(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path) as db:
        store = MemcoreConversationStore(db, user="ann")
        conversation = Conversation(
            conversation_id="c", messages=[asked("kept"), asked("zanzibar")]
        )
        asyncio.run(store.save(conversation))
        asyncio.run(store.fork("c", at=1, new_conversation_id="f"))
        asyncio.run(store.delete("c"))
        assert [each.parts[0].content for each in asyncio.run(store.load("f")).messages] == ["kept"]
        assert not store.scope.search("zanzibar")
        assert db.erase("ann", probes=["zanzibar", "kept"]).bytes_gone
        assert asyncio.run(store.load("f")) is None
    assert b"zanzibar" not in path.read_bytes()


def test_what_a_policy_redacts_is_nowhere_in_an_entry(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path, redact=True) as db:
        store = MemcoreConversationStore(db)
        messages = [asked("I am ann.smith@example.com"), ModelResponse([
            ToolCallPart("mail", '{"to": "ann.smith@example.com"}', "c1")])]  # fmt: skip
        asyncio.run(store.save(Conversation(conversation_id="c", messages=messages)))
        assert "example.com" not in str(asyncio.run(store.load("c")).messages)
        with pytest.raises(memcore.BlockedError):
            asyncio.run(store.save(Conversation(conversation_id="ann.smith@example.com")))
    assert b"ann.smith@example.com" not in path.read_bytes()


def test_items_of_another_writer_outlive_the_deletion_of_a_branch(tmp_path):
    with MemcoreConversationStore(tmp_path / "a.memcore") as store:
        large = asked("gone " * 8_000)  # its rest is an event before its item
        asyncio.run(store.save(Conversation(conversation_id="c", messages=[asked("kept"), large])))
        asyncio.run(store.fork("c", at=1, new_conversation_id="f"))
        (tree,) = [each.session_id for each in store.scope.sessions()]
        session = store.scope.session(tree)
        session.append({"role": "user", "content": "mine"})
        session.record("note", {"of": "another"})
        asyncio.run(store.delete("c"))
        shown = [item.message for item in session.items()]
        assert [each.get("content", each.get("type")) for each in shown[1:]] == ["mine", "note"]
        assert [each.parts[0].content for each in asyncio.run(store.load("f")).messages] == ["kept"]


def test_a_large_entry_that_stays_keeps_its_rest(tmp_path):
    with MemcoreConversationStore(tmp_path / "a.memcore") as store:
        large, gone = asked("kept"), asked("gone")
        for message in (large, gone):  # a rest of its own, as an event before the item
            message.instructions = f"{message.parts[0].content} " * 8_000
        conversation = Conversation(conversation_id="c", messages=[large, gone, asked("last")])
        asyncio.run(store.save(conversation))
        asyncio.run(store.fork("c", at=1, new_conversation_id="f"))
        asyncio.run(store.delete("c"))
        assert asyncio.run(store.load("f")).messages == [large]
        (tree,) = [each.session_id for each in store.scope.sessions()]
        assert len(list(store.scope.session(tree).items())) == 2


def test_entries_that_no_record_reaches_go_with_the_next_deletion(tmp_path):
    def entry(name, parent, text):
        return ConversationEntry(id=name, parent_id=parent, message=asked(text))

    async def run(store):
        def record(name, revision, head, *branches):
            return ConversationRecord(
                conversation_id=name, head_id=head, revision=revision, branches=[*branches]
            )

        made = [entry("e1", None, "one"), entry("e3", "e1", "three")]
        await store.write_record(record("c1", "1", "e3"), new_entries=made, expected_revision=None)
        made = [entry("e2", "e1", "two")]
        await store.write_record(
            record("c1", "2", "e2", "e3"), new_entries=made, expected_revision="1"
        )
        await store.write_record(record("c1", "3", "e3"), expected_revision="2")
        made = [entry("e4", "e1", "four")]
        await store.write_record(record("c2", "1", "e4"), new_entries=made, expected_revision=None)
        await store.delete_record("c1", expected_revision="3")
        with pytest.raises(ConversationConflict):
            await store.write_record(record("c3", "1", "e2"), expected_revision=None)
        return [each.id for each in await store.read_history("e4")]

    expected = asyncio.run(run(InMemoryConversationStore()))
    with MemcoreConversationStore(tmp_path / "a.memcore") as store:
        assert asyncio.run(run(store)) == expected == ["e1", "e4"]
        assert not store.scope.search("two")


def test_an_id_of_an_entry_that_redaction_would_change_is_refused(tmp_path):
    with memcore.open(tmp_path / "a.memcore", redact=True) as db:
        store = MemcoreConversationStore(db)
        entry = ConversationEntry(id="ann.smith@example.com", parent_id=None, message=asked("hi"))
        record = ConversationRecord(conversation_id="c", head_id=entry.id, revision="1")
        with pytest.raises(memcore.BlockedError):
            asyncio.run(store.write_record(record, new_entries=[entry], expected_revision=None))
        assert asyncio.run(store.read_record("c")) is None


def test_a_legal_hold_keeps_entries(tmp_path):
    with memcore.open(tmp_path / "a.memcore") as db:
        store = MemcoreConversationStore(db)
        entries = asyncio.run(store.save(Conversation(conversation_id="c", messages=[*TURN])))
        asyncio.run(store.fork("c", at=1, new_conversation_id="f"))
        store.session(entries[0].id).hold(reason="a trial")
        for _ in range(2):
            with pytest.raises(memcore.HeldError):
                asyncio.run(store.delete("c"))
            assert asyncio.run(store.load("c")).messages == TURN
        store.session(entries[0].id).release()
        asyncio.run(store.delete("c"))
        assert asyncio.run(store.load("c")) is None
