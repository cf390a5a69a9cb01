"""Strands' sessions and storage on a memcore file: what its own tests do not ask for."""

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

pytest.importorskip("strands.storage")
from strands import Agent
from strands.models.model import Model
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.storage import InMemoryStorage
from strands.types.exceptions import SessionException
from strands.types.exceptions import StorageError as StrandsStorageError
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from memcore.adapters.strands import (
    MemcoreSessionManager,
    MemcoreSessionRepository,
    MemcoreStorage,
)

pytestmark = pytest.mark.filterwarnings("ignore:context_window_limit", "ignore:.*stacklevel")
ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("lines_worker.py")
CALL = {"role": "assistant", "content": [
    {"text": "I look"}, {"toolUse": {"toolUseId": "c1", "name": "look", "input": {"at": 1}}},
]}  # fmt: skip
RESULT = {"role": "user", "content": [{"toolResult": {
    "toolUseId": "c1", "status": "success",
    "content": [{"text": "found"}, {"json": {"n": [1, None]}},
                {"image": {"format": "png", "source": {"bytes": b"\xff\xfe\x00"}}}],
}}]}  # fmt: skip


def said(text, role="user"):
    return {"role": role, "content": [{"text": text}]}


def message(number, content, **more):
    return SessionMessage(message=content, message_id=number, **more)


@pytest.fixture
def repository(tmp_path):
    with MemcoreSessionRepository(tmp_path / "a.memcore", user="ann") as repository:
        yield begun(repository)


def begun(repository):
    repository.create_session(Session(session_id="s", session_type=SessionType.AGENT))
    repository.create_agent("s", SessionAgent("a", {"n": 1}, {}))
    return repository


# --- messages -------------------------------------------------------------------------------------


def test_messages_come_back_equal_and_in_the_order_of_their_ids(repository):
    odd = [
        said("hello"), CALL, RESULT, {"role": "user", "content": []},
        {"role": "user", "content": [{"document": {"name": "d", "format": "pdf",
                                                   "source": {"bytes": b"\x00" * 90_000}}}]},
        {"role": "assistant", "content": [{"reasoningContent": {
            "reasoningText": {"text": "hm", "signature": "s"}}}, {"text": "", "x": {"$": ["y"]}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c9", "status": "error",
                                                     "content": [{"text": "no"}]}}]},
    ]  # fmt: skip
    for number in (3, 0, 1, 2, 6, 5, 4):
        repository.create_message("s", "a", message(number, odd[number], created_at=str(number)))
    found = repository.list_messages("s", "a")
    assert [each.message for each in found] == odd
    assert [each.created_at for each in found] == [str(n) for n in range(7)]
    assert [each.message_id for each in repository.list_messages("s", "a", 2, 3)] == [3, 4]
    assert repository.read_message("s", "a", 4).message == odd[4]
    assert repository.read_message("s", "a", 7) is None


@settings(deadline=None, max_examples=25)
@given(ids=st.lists(st.integers(0, 14), max_size=16))
def test_an_id_is_taken_once_whatever_the_order(ids):
    with MemcoreSessionRepository(":memory:", allow_unsafe=True) as repository:
        begun(repository)
        taken = set()
        for number in ids:
            if number in taken:
                with pytest.raises(SessionException, match="exists"):
                    repository.create_message("s", "a", message(number, said("x")))
            else:
                repository.create_message("s", "a", message(number, said(f"m{number}")))
            taken.add(number)
        assert [each.message_id for each in repository.list_messages("s", "a")] == sorted(taken)


def test_a_context_of_an_agents_messages_is_legal(repository):
    for number, each in enumerate([said("look"), CALL, RESULT, said("done", "assistant")]):
        repository.create_message("s", "a", message(number, each))
    session = repository.session("s", "a")
    shown = session.context(budget_tokens=4_000).messages
    assert memcore.validate(shown, "anthropic") == []
    assert [block["type"] for block in shown[2]["content"][0]["content"]] == [
        "text", "text", "image",
    ]  # fmt: skip
    assert session.find_call("c1").result_seqs == (3,)


# --- redaction ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instead", [
    said("[gone]"), said("[this was longer than what it stands for, by a lot]"),
    {"role": "user", "content": [{"text": "[one]"}, {"text": "[two]"}]},
    {"role": "user", "content": []}, said("of another role", "assistant"), CALL,
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 60_000])
def test_what_is_redacted_is_nowhere_in_the_file(tmp_path, instead, size):
    path = tmp_path / "a.memcore"
    with MemcoreSessionRepository(path) as repository:
        begun(repository)
        secret = {"role": "user", "content": [{"text": "zanzibar" + "x" * size}],
                  "note": {"again": "zanzibar" * size}}  # fmt: skip
        for number, each in enumerate([said("before"), secret, said("after")]):
            repository.create_message("s", "a", message(number, each, created_at="then"))
        update = message(1, secret, redact_message=instead)
        repository.update_message("s", "a", update)
        found = repository.list_messages("s", "a")
        assert [each.to_message() for each in found] == [said("before"), instead, said("after")]
        assert found[1].message == instead
        assert found[1].created_at == "then"
        repository.create_message("s", "a", message(3, said("goes on")))
        assert not repository.scope.search("zanzibar")
    assert b"zanzibar" not in live_bytes(path)


def live_bytes(path):
    """What a reader of the file finds: every row and every large content."""
    copy = path.with_suffix(".copy")
    with memcore.open(path) as db:
        db.backup(copy)
    return copy.read_bytes()


@pytest.mark.parametrize("options", [
    {"key": bytes(range(32))}, {"audit": memcore.Audit(bytes(range(32)))},
], ids=["encrypted", "audited"])  # fmt: skip
def test_a_redaction_leaves_a_sound_file(tmp_path, options):
    with memcore.open(tmp_path / "a.memcore", **options) as db:
        repository = begun(MemcoreSessionRepository(db))
        for number, text in enumerate(("before", "zanzibar " * 4000, "after")):
            repository.create_message("s", "a", message(number, said(text)))
        for instead in (said("[gone]"), said("[of another role]", "assistant")):
            update = message(1, said("zanzibar"), redact_message=instead)
            repository.update_message("s", "a", update)
            found = [each.to_message() for each in repository.list_messages("s", "a")]
            assert found == [said("before"), instead, said("after")]
            assert not db.check()
        if "audit" in options:
            assert not db.verify_audit().findings


# --- agents ---------------------------------------------------------------------------------------


class Scripted(Model):
    """A model that calls a tool once, then says how many messages it saw."""

    stateful = False

    def update_config(self, **config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *args, **more):
        raise NotImplementedError

    async def stream(self, messages, *args, **more):
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"I saw {len(messages)}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


@pytest.mark.parametrize("kind", ["repository", "snapshot"])
def test_an_agent_goes_on_where_it_was(tmp_path, kind):
    path, answers = tmp_path / "a.memcore", []
    for question in ("one", "two"):
        if kind == "repository":
            opened = manager = MemcoreSessionManager("s", path, user="ann")
        else:
            opened = MemcoreStorage(path, user="ann")
            manager = SnapshotSessionManager(session_id="s", storage=opened)
        with opened:
            agent = Agent(model=Scripted(), agent_id="a", session_manager=manager,
                          callback_handler=None)  # fmt: skip
            answers.append(str(agent(question)).strip())
    assert answers == ["I saw 1", "I saw 3"]


def test_deleting_a_session_leaves_the_others(repository):
    repository.create_session(Session(session_id="s/a", session_type=SessionType.AGENT))
    repository.create_agent("s/a", SessionAgent("a", {}, {}))
    for name in ("s", "s/a"):
        repository.create_message(name, "a", message(0, said(name)))
    repository.delete_session("s")
    assert repository.read_session("s") is None
    assert repository.read_agent("s", "a") is None
    assert repository.list_messages("s", "a") == []
    assert repository.read_message("s/a", "a", 0).message == said("s/a")
    with pytest.raises(SessionException, match="does not exist"):
        repository.delete_session("s")


def test_what_is_not_there_is_not_changed(repository):
    for change in (
        lambda: repository.update_message("s", "a", message(0, said("x"))),
        lambda: repository.update_agent("s", SessionAgent("b", {}, {})),
        lambda: repository.create_message("s", "b", message(0, said("x"))),
        lambda: repository.create_agent("t", SessionAgent("a", {}, {})),
        lambda: repository.create_session(Session("s", SessionType.AGENT)),
    ):
        with pytest.raises(SessionException):
            change()
    assert repository.list_messages("s", "a") == []


# --- storage --------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "a/b", "a/b/c", "/a//b/", "b", "B/é"])
STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), KEYS, st.binary(max_size=6)),
    st.tuples(st.just("read"), KEYS), st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("list"), st.sampled_from(["", "a", "a/", "/a", "b"])),
), max_size=12)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(steps=STEPS, prefix=st.sampled_from(["", "n", "n/m/"]))
def test_a_storage_does_what_the_one_in_memory_does(steps, prefix):
    async def play():
        with MemcoreStorage(":memory:", allow_unsafe=True) as whole:
            ours, theirs = whole.namespace(prefix), InMemoryStorage().namespace(prefix)
            for name, *given_ in [*steps, ("list", "")]:
                first = await getattr(ours, name)(*given_)
                assert first == await getattr(theirs, name)(*given_)

    asyncio.run(play())


def test_large_contents_and_errors_of_a_storage(tmp_path):
    with MemcoreStorage(tmp_path / "a.memcore") as storage:
        data = os.urandom(3_000_000)
        asyncio.run(storage.write("a", data))
        assert asyncio.run(storage.read("a")) == data
    for key in ("", "..", "a\\b"):
        with pytest.raises(StrandsStorageError):
            asyncio.run(storage.read(key))
    with pytest.raises(StrandsStorageError, match="closed"):
        asyncio.run(storage.read("a"))


# --- processes, erasure ---------------------------------------------------------------------------


def spawned(path, name, count):
    command = [sys.executable, str(WORKER), "strands", str(path), name, str(count)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_share_the_ids_of_one_agent(tmp_path):
    path = tmp_path / "a.memcore"
    with MemcoreSessionRepository(path) as repository:
        begun(repository)
    workers = [spawned(path, name, 25) for name in ("one", "two")]
    assert [worker.wait() for worker in workers] == [0, 0]
    with MemcoreSessionRepository(path) as repository:
        found = repository.list_messages("s", "a")
    assert [each.message_id for each in found] == list(range(50))
    texts = [each.message["content"][0]["text"] for each in found]
    for name in ("one", "two"):
        assert [text for text in texts if text.startswith(name)] == [
            f"{name} {n}" for n in range(25)
        ]


def test_a_killed_writer_leaves_ids_without_a_gap(tmp_path):
    path = tmp_path / "a.memcore"
    with MemcoreSessionRepository(path) as repository:
        begun(repository)
        worker = spawned(path, "one", 100_000)
        while worker.poll() is None and len(repository.list_messages("s", "a")) < 10:
            pass
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        found = repository.list_messages("s", "a")
        assert [each.message_id for each in found] == list(range(len(found)))
        repository.create_message("s", "a", message(len(found), said("goes on")))


def test_an_erased_user_leaves_nothing(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path) as db:
        repository = begun(MemcoreSessionRepository(db, user="ann"))
        repository.create_message("s", "a", message(0, said("zanzibar")))
        asyncio.run(MemcoreStorage(db, user="ann").write("k", b"zanzibar"))
        assert db.erase("ann", probes=["zanzibar"]).bytes_gone
        assert repository.read_session("s") is None
    assert b"zanzibar" not in path.read_bytes()
