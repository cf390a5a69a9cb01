"""What is stored of every feature of the core while a policy is on: nothing that was planted."""

import asyncio
import io
import json
import os
import stat
from collections import UserDict
from typing import Annotated, Any, TypedDict

import pytest
from planted import Planted

import memcore
from memcore import aio
from memcore.errors import BlockedError, NotFoundError, StorageError

MAIL = "alice@example.com"
ID = "call_x"


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def _open(folder, name="a.memcore", **options):
    options.setdefault("redact", "default")
    return memcore.open(folder / name, **options)


def _chat(plant):
    return [
        {"role": "user", "content": plant()},
        {"role": "assistant", "content": plant(), "tool_calls": [{
            "id": ID, "type": "function",
            "function": {"name": "find", "arguments": json.dumps({"q": plant(), "n": 1})},
        }]},
        {"role": "tool", "tool_call_id": ID, "content": json.dumps({"rows": [plant(), plant()]})},
        {"role": "assistant", "content": [{"type": "text", "text": plant()}]},
    ]  # fmt: skip


def _responses(plant):
    return [
        {"role": "user", "content": [{"type": "input_text", "text": plant()}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": plant()}]},
        {"type": "function_call", "id": "fc_1", "call_id": ID, "name": "find",
         "arguments": json.dumps({"q": plant()})},
        {"type": "function_call_output", "call_id": ID, "output": plant()},
    ]  # fmt: skip


def _anthropic(plant):
    return [
        {"role": "user", "content": plant()},
        {"role": "assistant", "content": [
            {"type": "text", "text": plant()},
            {"type": "tool_use", "id": ID, "name": "find", "input": {"q": plant()}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": ID, "content": [
                {"type": "text", "text": plant()}]}]},
    ]  # fmt: skip


def _gemini(plant):
    return [
        {"role": "user", "parts": [{"text": plant()}]},
        {"role": "model", "parts": [
            {"functionCall": {"id": ID, "name": "find", "args": {"q": plant()}}}]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": ID, "name": "find", "response": {"r": plant()}}}]},
    ]  # fmt: skip


HISTORIES = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}


class Fields(TypedDict):
    notes: Annotated[list, lambda old, new: (old or []) + new]
    first: Any
    mail: Any
    deep: Any
    z: Any


def _sessions(db, plant, folder):
    for policy, make in HISTORIES.items():
        session = db.session(f"s-{policy}", user="u", policy=policy)
        for _ in range(12):
            session.extend(make(plant), meta={"note": plant(), "tags": [plant()]})
        session.record("planner", {"steps": [plant(), {"why": plant()}]})
        with session.batch() as batch:
            batch.append(make(plant)[0])
            batch.record("reflection", plant())
            batch.update_state({"b": plant()})
            batch.checkpoint(plant(), meta={"m": plant()})
        session.checkpoint(plant(), meta={"why": {"deep": [plant()]}})
        session.fork(f"f-{policy}").append(make(plant)[0])
        assert not memcore.validate(session.context().messages, policy=policy)
    session.append({"role": "user", "parts": [{"text": plant.many(400)}]})  # a blob beside its row
    session.append({"role": "user", "parts": [{"text": "x" * 250_000 + plant.many(9)}]})  # staged


def _states(db, plant, folder):
    session = db.session("state", user="u", state=Fields)
    session.begin({"first": plant(), "user:first": plant(), "app:first": {"a": plant()}})
    session.state.update({"mail": plant(), "notes": [plant()], "user:x": {"y": [plant()]}})
    session.state.update({"notes": [plant(), plant()]})
    session.state.update({"deep": memcore.Merge({"a": {"b": plant()}, "c": plant()})})
    session.state.update({"deep": memcore.Merge({"a": {"d": plant()}, "c": memcore.Delete})})
    session.apply(memcore.Command(update={"z": plant()}, messages=_chat(plant)[:1]))
    scope = db.scope(app="default", user="u")
    scope.state.update({"own": plant()})
    scope.app_state.put("all", [plant()])
    for _ in range(40):
        session.state.put("mail", plant())


def _maps(db, plant, folder):
    scope = db.scope(app="default", user="u")
    kv = scope.kv("notes")
    for at in range(40):
        kv.put(f"k{at}", {"text": plant(), "list": [plant()]}, content=plant().encode())
    kv.put("bytes", plant().encode())
    kv.put("large", 1, content=plant.many(6).encode() + b" " * 300_000)
    kv.put_many({"a": plant(), "b": (plant(), plant())})
    kv.transact(lambda txn: txn.put("t", plant(), content=plant().encode()))
    ref = kv.stage(plant().encode() + b" " * 300_000)
    kv.transact(lambda txn: txn.put("staged", 0, content=ref))
    assert plant.values.isdisjoint(kv.content("k1").split())
    for at in range(40):
        scope.blobs.put(plant().encode())
    scope.blobs.put(io.BytesIO(plant.many(2000).encode()))
    scope.blobs.put(_Pipe(plant.many(40).encode() + b"." * 300_000))


class _Pipe:
    """A file that cannot seek."""

    def __init__(self, content):
        self._file = io.BytesIO(content)

    def read(self, size):
        return self._file.read(size)


def _compactions(db, plant, folder):
    def repeats(request):
        said = json.dumps(list(request.messages), ensure_ascii=False)
        return f"{plant()} {said[:80]} {request.previous_summary or ''} {plant()}"

    session = db.session("compacted", user="u")
    for _ in range(3):
        for _ in range(20):
            session.append({"role": "user", "content": plant() + " and so on" * 60})
            session.append({"role": "assistant", "content": plant()})
        assert session.compact(summarize=repeats, keep_last=4).status == "summarized"
    assert not memcore.validate(session.context().messages, policy="openai_chat")

    def fails(request):
        raise ValueError(plant())

    for _ in range(20):
        session.append({"role": "user", "content": plant() + " and so on" * 60})
    assert session.compact(summarize=fails, keep_last=4).status != "summarized"


def _imports(db, plant, folder):
    other = folder / "elsewhere"
    other.mkdir()
    with memcore.open(other / "clear.memcore") as clear:
        for make in (_sessions, _states, _compactions):
            make(clear, plant, other)
        lines = list(clear.export("jsonl"))
    done = db.import_(lines, rename=lambda title: title._replace(user="imported"))
    assert not done.failures
    assert done.sessions > 5


def _awaited(db, plant, folder):
    async def work():
        session = aio.AsyncDatabase(db).session("async", user="u")
        await session.extend(_chat(plant))
        await session.record("error", {"text": plant()})
        await session.state.update({"a": plant()})
        scope = aio.AsyncDatabase(db).scope(user="u")
        kv = scope.kv("async")
        await kv.put("a", plant(), content=plant().encode())
        await kv.put_many({"b": plant()})
        await kv.transact(lambda txn: txn.put("c", plant()))
        await scope.blobs.put(plant().encode())

    asyncio.run(work())


FEATURES = (_sessions, _states, _maps, _compactions, _imports, _awaited)


def test_nothing_that_was_planted_is_in_any_file(folder):
    store = folder / "store"
    store.mkdir()
    plant = Planted()
    with _open(store) as db:
        for feature in FEATURES:
            feature(db, plant, folder)
            assert not plant.found_in(store), feature.__name__
        assert len(plant.values) >= 2_000
        assert not db.check()
    assert not plant.found_in(store)
