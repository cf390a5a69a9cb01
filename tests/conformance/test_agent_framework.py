"""Microsoft's Agent Framework on a memcore file: what its own tests do not ask for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

pytest.importorskip("agent_framework")
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    Message,
    WorkflowCheckpoint,
)
from agent_framework._sessions import filter_new_messages
from agent_framework.exceptions import WorkflowCheckpointException

from memcore.adapters.agent_framework import MemcoreCheckpointStorage, MemcoreHistoryProvider

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*experimental")
ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("lines_worker.py")


def user(text, **more):
    return Message("user", [text], **more)


def assistant(text, **more):
    return Message("assistant", [text], **more)


CALL = Message("assistant", [Content.from_function_call("c1", "look", arguments='{"at": 1}')])
RESULT = Message("tool", [Content.from_function_result("c1", result={"found": [1]})])


@pytest.fixture
def provider(tmp_path):
    with MemcoreHistoryProvider(tmp_path / "a.memcore", user="ann") as provider:
        yield provider


def saved(provider, *messages, session="s"):
    asyncio.run(provider.save_messages(session, messages))


def loaded(provider, session="s"):
    return asyncio.run(provider.get_messages(session))


def plain(messages):
    return [message.to_dict() for message in messages]


# --- new and repeated messages --------------------------------------------------------------------


def test_a_conversation_that_is_said_again_is_stored_again(provider):
    turn = [user("hi"), assistant("hello")]
    for _ in range(3):
        saved(provider, *turn)
    assert plain(loaded(provider)) == plain(turn * 3)
    assert filter_new_messages(turn, turn) == []  # the framework's own rule loses it


def test_a_transcript_that_is_given_again_is_not(provider):
    first, second = [user("hi"), assistant("hello")], [user("and?"), assistant("well")]
    saved(provider, *first)
    saved(provider, *first, *second)
    assert plain(loaded(provider)) == plain(first + second)
    saved(provider, *first, *second)  # two turns at once are no repetition
    saved(provider, user("from another provider"), *first, *second, user("more"))
    assert plain(loaded(provider)) == plain([*first, *second, user("more")])


def test_ids_tell_a_repetition_from_a_replay(provider):
    saved(provider, user("hi", message_id="1"), assistant("hello", message_id="2"))
    saved(provider, user("hi", message_id="1"), assistant("hello", message_id="2"))
    saved(provider, user("hi", message_id="3"), assistant("hello", message_id="4"))
    assert [each.message_id for each in loaded(provider)] == ["1", "2", "3", "4"]


TURNS = st.lists(st.lists(st.sampled_from(["a", "b"]), min_size=2, max_size=2), max_size=5)


@settings(deadline=None, max_examples=60)
@given(turns=TURNS, replays=st.lists(st.booleans(), min_size=5, max_size=5))
def test_runs_with_and_without_their_transcript_store_each_turn_once(turns, replays):
    with MemcoreHistoryProvider(":memory:", allow_unsafe=True) as provider:
        told = []
        for (question, answer), is_replayed in zip(turns, replays, strict=False):
            turn = [user(question), assistant(answer)]
            # A transcript of one message cannot be told from a question that is asked again.
            saved(provider, *(told if is_replayed else ()), *turn)
            told += turn
            assert plain(loaded(provider)) == plain(told)


# --- messages -------------------------------------------------------------------------------------


def test_messages_come_back_equal(provider):
    messages = [
        Message("system", ["be brief"]),
        Message("user", [Content.from_text("look"), Content.from_data(b"\xff", "image/png"),
                         Content.from_uri("https://x/y.png", media_type="image/png")],
                additional_properties={"n": float("nan"), "i": float("inf"), "$": {"$": [1]}}),
        CALL, RESULT,
        Message("assistant",
                [Content.from_text_reasoning(text="hm"), Content.from_text("x" * 90_000)],
                author_name="a", message_id="m"),
        Message("assistant", []),
    ]  # fmt: skip
    saved(provider, *messages)
    found = loaded(provider)
    assert repr(plain(found)) == repr(plain(messages))
    shown = provider.session("s").context().messages
    assert memcore.validate(shown[1:], "anthropic") == []
    assert shown[0] == {"role": "system", "content": "be brief"}


def test_a_window_starts_at_no_result(tmp_path):
    turn = [user("look"), CALL, RESULT, assistant("done")]
    with MemcoreHistoryProvider(tmp_path / "a.memcore") as whole:
        saved(whole, *turn)
        sizes = []
        for limit in range(5):
            window = MemcoreHistoryProvider(whole.scope, limit=limit)
            sizes.append(len(loaded(window)))
        assert sizes == [0, 1, 1, 3, 4]
        left_out = assistant("old", additional_properties={"_excluded": True})
        saved(whole, left_out)
        assert len(loaded(MemcoreHistoryProvider(whole.scope, skip_excluded=True))) == 4


class Scripted(BaseChatClient):
    """A client that says how many messages it was given."""

    async def _inner_get_response(self, *, messages, options, **more):
        return ChatResponse(messages=[assistant(f"I saw {len(messages)}")])

    async def _inner_get_streaming_response(self, *, messages, options, **more):
        raise NotImplementedError


def test_an_agent_goes_on_where_it_was(tmp_path):
    async def turn(question):
        with MemcoreHistoryProvider(tmp_path / "a.memcore", user="ann") as provider:
            agent = Agent(client=Scripted(), context_providers=[provider])
            return (await agent.run(question, session=AgentSession(session_id="s"))).text

    assert [asyncio.run(turn(text)) for text in ("one", "two")] == ["I saw 1", "I saw 3"]


# --- sessions and checkpoints ---------------------------------------------------------------------


def test_a_session_comes_back_as_a_copy(tmp_path):
    from memcore.adapters.agent_framework import MemcoreAgentSessionStore

    with MemcoreAgentSessionStore(tmp_path / "a.memcore") as store:
        session = AgentSession(session_id="x")
        session.state["a"] = {"messages": [user("hi")]}
        asyncio.run(store.set("k/é", session))
        session.state["a"] = {}
        found = asyncio.run(store.get("k/é"))
        assert found.session_id == "x"
        assert found.state["a"]["messages"][0].text == "hi"
        asyncio.run(store.delete("k/é"))
        assert asyncio.run(store.get("k/é")) is None
        with pytest.raises(ValueError, match="non-empty"):
            asyncio.run(store.get(""))
        session.state["a"] = object()
        with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="JSON"):
            asyncio.run(store.set("k", session))


def test_checkpoints_are_listed_by_time_and_replaced_by_id(tmp_path):
    async def play():
        with MemcoreCheckpointStorage(tmp_path / "a.memcore") as storage:
            made = [
                WorkflowCheckpoint("w/1", "h", checkpoint_id=str(number), state={"n": b"x" * size},
                                   timestamp=f"2026-01-0{9 - number}T00:00:00+00:00")
                for number, size in enumerate((1, 400_000, 3))
            ]  # fmt: skip
            for checkpoint in [*made, replace(made[0], workflow_name="other")]:
                await storage.save(checkpoint)
            assert await storage.list_checkpoint_ids(workflow_name="w/1") == ["2", "1"]
            assert (await storage.get_latest(workflow_name="w/1")).state == made[1].state
            assert [each.checkpoint_id for each in
                    await storage.list_checkpoints(workflow_name="other")] == ["0"]  # fmt: skip
            assert await storage.delete("1")
            assert not await storage.delete("1")
            assert await storage.list_checkpoint_ids(workflow_name="w/1") == ["2"]
            assert await storage.get_latest(workflow_name="w") is None
            with pytest.raises(WorkflowCheckpointException, match="No checkpoint"):
                await storage.load("1")

    asyncio.run(play())


class Odd:
    """A class that no storage was told of."""


def test_a_checkpoint_that_could_not_be_loaded_is_not_saved(tmp_path):
    with MemcoreCheckpointStorage(tmp_path / "a.memcore") as storage:
        odd = WorkflowCheckpoint("w", "h", checkpoint_id="1", state={"x": Odd()})
        with pytest.raises(WorkflowCheckpointException):
            asyncio.run(storage.save(odd))
        assert asyncio.run(storage.list_checkpoint_ids(workflow_name="w")) == []


# --- processes, erasure ---------------------------------------------------------------------------


def spawned(path, name, count):
    command = [sys.executable, "-W", "ignore", str(WORKER), "agent_framework", str(path), name,
               str(count)]  # fmt: skip
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_write_one_history(tmp_path):
    path = tmp_path / "a.memcore"
    workers = [spawned(path, name, 40) for name in ("one", "two")]
    assert [worker.wait() for worker in workers] == [0, 0]
    with MemcoreHistoryProvider(path) as provider:
        texts = [each.text for each in loaded(provider)]
    assert len(texts) == 160
    for name in ("one", "two"):
        own = [text for text in texts if text.startswith(name)]
        assert own == [f"{name} {n}{s}" for n in range(40) for s in ("?", "!")]
    assert all(b == a[:-1] + "!" for a, b in zip(texts[::2], texts[1::2], strict=True))


def test_a_killed_writer_leaves_whole_turns(tmp_path):
    path = tmp_path / "a.memcore"
    worker = spawned(path, "one", 100_000)
    with MemcoreHistoryProvider(path) as provider:
        while worker.poll() is None and len(loaded(provider)) < 10:
            pass
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        texts = [each.text for each in loaded(provider)]
    assert texts == [f"one {n}{s}" for n in range(len(texts) // 2) for s in ("?", "!")]


def test_what_is_redacted_or_erased_is_not_in_the_file(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path, redact=True) as db:
        provider = MemcoreHistoryProvider(db, user="ann")
        storage = MemcoreCheckpointStorage(db, user="ann")
        saved(provider, user("I am ann.smith@example.com of zanzibar"))
        asyncio.run(storage.save(WorkflowCheckpoint("w", "h", state={"x": "zanzibar"})))
        assert "example.com" not in loaded(provider)[0].text
        assert db.erase("ann", probes=["zanzibar"]).bytes_gone
        assert loaded(provider) == []
    data = path.read_bytes()
    assert b"zanzibar" not in data
    assert b"ann.smith@example.com" not in data
