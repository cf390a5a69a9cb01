"""The Claude Agent SDK's store of sessions: its own contracts, and what memcore adds."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.adapters.lines import name_of, parts_of, rest_of, whole

pytest.importorskip("claude_agent_sdk")
from claude_agent_sdk import fold_session_summary, list_sessions_from_store
from claude_agent_sdk.testing import run_session_store_conformance

from memcore.adapters.claude_agent import MemcoreSessionStore

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("lines_worker.py")
KEY = {"project_key": "p", "session_id": "s"}


def user(uuid, content, parent=None, **more):
    message = {"role": "user", "content": content}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "message": message, **more}


def assistant(uuid, block, parent, response="m1"):
    message = {"id": response, "type": "message", "role": "assistant", "model": "c",
               "content": [block], "usage": {"input_tokens": 3}}  # fmt: skip
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "message": message}


def call(name):
    return {"type": "tool_use", "id": name, "name": "look", "input": {"at": name}}


def result(name):
    return [{"type": "tool_result", "tool_use_id": name, "content": f"found by {name}"}]


@pytest.fixture
def store(tmp_path):
    with MemcoreSessionStore(tmp_path / "a.memcore", user="ann") as store:
        yield store


def test_the_sdks_own_contracts_hold(tmp_path):
    number = itertools.count()
    made = []

    def make():
        made.append(MemcoreSessionStore(tmp_path / f"{next(number)}.memcore"))
        return made[-1]

    asyncio.run(run_session_store_conformance(make))
    assert len(made) >= 14
    for store in made:
        store.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text() | st.sampled_from(["$", "content", "text", "type"]), inner,
                      max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(line=JSON, content=JSON)
def test_a_rest_and_its_item_give_the_line_again(line, content):
    item = {"role": "user", "content": content}
    for value in (line, [line, content, {"message": item, "again": content, "$": [line]}]):
        assert whole(rest_of(value, item), item) == value


@settings(deadline=None)
@given(parts=st.lists(st.text(st.characters(codec=None), min_size=1), min_size=1))
def test_a_name_gives_its_parts_again(parts):
    assert parts_of(name_of("x", *parts)) == parts


@settings(deadline=None)
@given(entries=st.lists(st.builds(
    lambda uuid, kind, message, more: {**more, "type": kind, **({"uuid": uuid} if uuid else {}),
                                       "message": message},
    st.sampled_from([None, "1", "2", "3"]), st.sampled_from(["user", "assistant", "system", "x"]),
    st.none() | st.builds(lambda role, content: {"role": role, "content": content, "id": "r"},
                          st.sampled_from(["user", "assistant", "tool"]), JSON),
    st.dictionaries(st.text(), JSON, max_size=2),
), max_size=6))  # fmt: skip
def test_lines_come_back_equal_and_once_by_uuid(entries):
    seen, expected = set(), []
    for entry in entries:
        if entry.get("uuid") not in seen:
            expected.append(entry)
        if "uuid" in entry:
            seen.add(entry["uuid"])
    with MemcoreSessionStore(":memory:", allow_unsafe=True) as store:
        asyncio.run(store.append(KEY, entries))
        assert (asyncio.run(store.load(KEY)) or []) == expected
        with_ids = [entry for entry in entries if "uuid" in entry]
        asyncio.run(store.append(KEY, with_ids))
        assert (asyncio.run(store.load(KEY)) or []) == expected


def test_a_line_that_was_taken_back_can_be_stored_again(store):
    entries = [user(str(number), f"line {number}") for number in range(3)]
    for entry in entries:
        asyncio.run(store.append(KEY, [entry]))
    store.session(KEY).undo(2)
    asyncio.run(store.append(KEY, entries))
    assert asyncio.run(store.load(KEY)) == entries


def test_a_large_line_is_kept_beside_its_item(store):
    entry = user("1", "hello", toolUseResult={"file": "x" * 200_000, "said": "hello"})
    asyncio.run(store.append(KEY, [entry]))
    assert asyncio.run(store.load(KEY)) == [entry]
    assert store.context(KEY).messages == [{"role": "user", "content": "hello"}]


def test_a_context_follows_the_parents_and_keeps_pairs(store):
    entries = [
        user("1", "first"),
        assistant("2", {"type": "text", "text": "taken back"}, "1", "m0"),
        user("3", "second"),  # the person went back to the beginning
        assistant("4", call("a"), "3"),
        assistant("5", call("b"), "4"),
        user("6", result("a"), "4"),  # parallel results: each has its own call as parent
        user("7", result("b"), "5"),
        assistant("8", {"type": "text", "text": "done"}, "7", "m2"),
    ]
    asyncio.run(store.append(KEY, entries))
    messages = store.context(KEY).messages
    assert memcore.validate(messages, "anthropic") == []
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]
    assert [block["type"] for block in messages[1]["content"]] == ["tool_use", "tool_use"]
    assert {block["tool_use_id"] for block in messages[2]["content"]} == {"a", "b"}
    budgeted = store.context(KEY, budget_tokens=60).messages
    assert memcore.validate(budgeted, "anthropic") == []


def test_the_summary_is_the_sdks_fold_of_all_lines(store):
    batches = [
        [user("1", "fix it", timestamp="2026-01-01T00:00:00Z")],
        [{"type": "x", "customTitle": "a title"}],
        [{"type": "tag", "tag": "t"}],
    ]
    expected = None
    for batch in batches:
        asyncio.run(store.append(KEY, batch))
        asyncio.run(store.append({**KEY, "subpath": "subagents/a"}, batch))
        expected = fold_session_summary(expected, KEY, batch)
    (found,) = asyncio.run(store.list_session_summaries("p"))
    (listed,) = asyncio.run(store.list_sessions("p"))
    assert found["data"] == expected["data"]
    assert found["mtime"] == listed["mtime"]
    assert asyncio.run(store.list_subkeys(KEY)) == ["subagents/a"]


def test_keys_of_any_text_do_not_meet(store):
    keys = [{"project_key": a, "session_id": b, **c}
            for a, b in (("p", "s"), ("p/s", "x"), ("p", "s/x"), ("p%2Fs", "x"), ("\ud800", "é"))
            for c in ({}, {"subpath": "a/b"}, {"subpath": "a"})]  # fmt: skip
    for number, key in enumerate(keys):
        asyncio.run(store.append(key, [{"type": "x", "n": number}]))
    for number, key in enumerate(keys):
        assert asyncio.run(store.load(key)) == [{"type": "x", "n": number}]
    assert sorted(asyncio.run(store.list_subkeys(KEY))) == ["a", "a/b"]
    asyncio.run(store.delete(KEY))
    assert sum(asyncio.run(store.load(key)) is not None for key in keys) == len(keys) - 3


@pytest.mark.parametrize("key", [{}, {"project_key": "p"}, {"project_key": "", "session_id": "s"},
                                 {"project_key": 1, "session_id": "s"}])  # fmt: skip
def test_a_bad_key_is_refused(store, key):
    with pytest.raises(memcore.InvalidOptionError, match="key"):
        asyncio.run(store.append(key, [{"type": "x"}]))


def test_a_bad_line_stores_nothing_of_its_batch(store):
    for bad in ("text", ["x"], {"type": "x", "n": {1}}):
        with pytest.raises(memcore.InvalidItemError):
            asyncio.run(store.append(KEY, [user("1", "kept?"), bad]))
        assert asyncio.run(store.load(KEY)) is None


def spawned(path, name, count):
    command = [sys.executable, str(WORKER), "claude", str(path), name, str(count)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_two_processes_write_one_transcript(tmp_path):
    path = tmp_path / "a.memcore"
    workers = [spawned(path, name, 40) for name in ("one", "two")]
    assert [worker.wait() for worker in workers] == [0, 0]
    with MemcoreSessionStore(path) as store:
        lines = asyncio.run(store.load(KEY))
        uuids = [line["uuid"] for line in lines]
        assert len(uuids) == len(set(uuids)) == 160
        for name in ("one", "two"):
            own = [line for line in uuids if line.startswith(name)]
            assert own == [f"{name}-{n}{s}" for n in range(40) for s in ("", "s")]
        assert all(b == a + "s" for a, b in zip(uuids[::2], uuids[1::2], strict=True))
        (info,) = asyncio.run(list_sessions_from_store_of(store))
        assert info["data"]["first_prompt"] in ("one 0", "two 0")


async def list_sessions_from_store_of(store):
    assert await list_sessions_from_store(store, directory="/nowhere") == []
    return await store.list_session_summaries("p")


def test_a_killed_writer_leaves_whole_batches_and_a_repeat_completes(tmp_path):
    path = tmp_path / "a.memcore"
    worker = spawned(path, "one", 100_000)
    with MemcoreSessionStore(path) as store:
        while len(asyncio.run(store.load(KEY)) or ()) < 10 and worker.poll() is None:
            pass
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        lines = asyncio.run(store.load(KEY))
        assert len(lines) >= 10
        assert len(lines) % 2 == 0
        again = [line for line in lines if "message" in line]
        asyncio.run(store.append(KEY, again))
        assert asyncio.run(store.load(KEY)) == lines


def test_an_erased_user_leaves_no_transcript(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path) as db:
        store = MemcoreSessionStore(db, user="ann")
        asyncio.run(store.append(KEY, [user("1", "zanzibar"), {"type": "x", "note": "zanzibar"}]))
        asyncio.run(store.append({**KEY, "subpath": "a"}, [user("2", "zanzibar")]))
        receipt = db.erase("ann", probes=["zanzibar"])
        assert receipt.bytes_gone
        assert asyncio.run(store.load(KEY)) is None
    assert b"zanzibar" not in path.read_bytes()


def test_what_a_policy_redacts_is_nowhere_in_a_line(tmp_path):
    path = tmp_path / "a.memcore"
    with memcore.open(path, redact=True) as db:
        store = MemcoreSessionStore(db)
        said = "write to ann.smith@example.com"
        entry = user("1", said, toolUseResult={"stdout": said, "big": "x" * 40_000 + said})
        asyncio.run(store.append(KEY, [entry]))
        (line,) = asyncio.run(store.load(KEY))
        assert line["message"]["content"] == line["toolUseResult"]["stdout"]
        assert "example.com" not in str(line)
        (summary,) = asyncio.run(store.list_session_summaries("p"))
        assert "example.com" not in str(summary)
    assert b"ann.smith@example.com" not in path.read_bytes()
