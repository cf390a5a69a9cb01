"""Whoever tries again never stores twice: every adapter and surface, after every way to fail."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.store.base import PutOp

import memcore
import memcore.aio
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.deepagents.files import Files
from memcore.adapters.langgraph import MemcoreSaver, MemcoreStore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.store import open_file
from memcore.testing.faults import child_env, failing
from tests.conformance import retry_work
from tests.conformance.retry_work import batch, kv, state_merge, user

ME = {"app_name": "shop", "user_id": "ann"}
LARGE = b"x" * 300_000


def event(event_id: str) -> Event:
    return Event(
        id=event_id,
        author="user",
        invocation_id="i",
        timestamp=1.0,
        content=types.Content(role="user", parts=[types.Part(text=f"text of {event_id}")]),
    )


# --- the surfaces: each does something once, and tells what is there ------------------------------


def append(db: memcore.Database) -> Any:
    return db.session("s").append(user("x"), idempotency_key="k")


def extend(db: memcore.Database) -> Any:
    return db.session("s").extend([user("x"), user("y" * 300_000)], idempotency_key="k")


def record(db: memcore.Database) -> Any:
    return db.session("s").record("note", {"a": 1}, idempotency_key="k")


def undo(db: memcore.Database) -> Any:
    session = db.session("s")
    if session.revision < 1:
        session.extend([user("1"), user("2"), user("3")])
    with session.batch(idempotency_key="k") as found:
        found.undo(1)
    return len(session)


def apply(db: memcore.Database) -> Any:
    command = memcore.Command({"n": 1}, [user("x")])
    return db.session("s").apply(command, idempotency_key="k")


def checkpoint(db: memcore.Database) -> Any:
    return db.session("s").checkpoint("c", meta={"a": 1}, idempotency_key="k")


def compact(db: memcore.Database) -> Any:
    session = db.session("s")
    if not session.exists():
        session.extend([user(f"{n} " + "words " * 50) for n in range(20)])
    session.compact(memcore.extractive, keep_last=4)
    return len(session.views())


def added(old: int | None, new: int) -> int:
    return (old or 0) + new


class Schema(TypedDict, total=False):
    total: Annotated[int, added]


def state(db: memcore.Database) -> Any:
    from typing import TypedDict

    class Schema(TypedDict, total=False):
        total: Annotated[int, added]

    session = db.session("s", state=Schema)
    return session.state.update({"total": 2}, idempotency_key="k"), session.state["total"]


def shared_state(db: memcore.Database) -> Any:
    scope = db.scope()
    return [
        (each.update({"a": memcore.Merge({"b": 1})}, idempotency_key="k"), each.all())
        for each in (scope.state, scope.app_state)
    ]


def openai(db: memcore.Database) -> Any:
    async def run() -> Any:
        session = MemcoreSession("s", db)
        await session.add_items([user("x"), user("y")], idempotency_key="k")
        return await session.get_items()

    return asyncio.run(run())


def saver(db: memcore.Database) -> Any:
    found = MemcoreSaver(db)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    first = empty_checkpoint()
    first |= {"id": "1", "channel_values": {"c": [1]}, "channel_versions": {"c": "1"}}
    second = {**first, "id": "2", "channel_values": {"c": [1, 2]}, "channel_versions": {"c": "2"}}
    at = found.put(config, first, {}, {"c": "1"})  # type: ignore[arg-type]
    found.put_writes(at, [("c", 2)], "task")
    at = found.put(at, second, {}, {"c": "2"})  # type: ignore[arg-type]
    found.put_writes(at, [("c", 3), ("d", 4)], "task")
    return [
        (each.checkpoint["id"], each.checkpoint["channel_values"], each.pending_writes)
        for each in found.list(config)
    ]


def store(db: memcore.Database) -> Any:
    found = MemcoreStore(db)
    found.batch([PutOp(("a", "b"), "k", {"n": 1}), PutOp(("a",), "gone", None)])
    return [(each.namespace, each.key, each.value) for each in found.search(())]


async def _events(db: memcore.Database) -> Any:
    service = MemcoreSessionService(db)
    found = await service.get_session(**ME, session_id="s")
    if found is None:
        found = await service.create_session(**ME, session_id="s")
    else:
        found.events.clear()
    await service.append_event(found, event("e1"))
    again = await service.get_session(**ME, session_id="s")
    assert again is not None
    return [each.id for each in again.events]


def events(db: memcore.Database) -> Any:
    return asyncio.run(_events(db))


def artifact(db: memcore.Database) -> Any:
    async def run() -> Any:
        service = MemcoreArtifactService(db)
        told = []
        for key, data in (("k", b"small"), ("large", LARGE)):
            part = types.Part.from_bytes(data=data, mime_type="a/b")
            told.append(
                await service.save_artifact(
                    **ME, filename="f", artifact=part, session_id="s", idempotency_key=key
                )
            )
        return told, await service.list_versions(**ME, filename="f", session_id="s")

    return asyncio.run(run())


def memory(db: memcore.Database) -> Any:
    async def run() -> Any:
        service = MemcoreMemoryService(db)
        events = [event("e1"), event("e2")]
        await service.add_events_to_memory(**ME, events=events, session_id="s")
        entry = MemoryEntry(content=types.Content(parts=[types.Part(text="text of mine")]))
        await service.add_memory(**ME, memories=[entry, entry], idempotency_key="k")
        found = await service.search_memory(**ME, query="text")
        return sorted(str(each.id) for each in found.memories)

    return asyncio.run(run())


def files(db: memcore.Database) -> Any:
    backend = MemcoreBackend(db)
    backend.write("/w", "same") if not backend.read("/w").file_data else None
    backend.upload_files([("/u", b"a" * 10_000)])
    told = [backend.append("/a", "more", idempotency_key="k").error]
    if not backend.read("/e").file_data:
        backend.write("/e", "a b")
    edited = backend.edit("/e", "a", "aa", idempotency_key="e")
    replaced = backend.edit("/e", "b", "c", idempotency_key="f")
    told += [edited.occurrences, edited.error, replaced.occurrences, replaced.error]
    return told, [(f.path, f.content) for f in backend.download_files(["/a", "/e", "/u", "/w"])]


SURFACES: dict[str, Callable[[memcore.Database], Any]] = {
    fn.__name__: fn
    for fn in (
        *(append, extend, record, batch, undo, apply, checkpoint, compact, state, state_merge),
        *(shared_state, kv, openai, saver, store, events, artifact, memory, files),
    )
}


@pytest.mark.parametrize("surface", ["append", "apply", "kv", "store", "events", "files"])
def test_a_second_try_is_known_where_content_is_redacted(
    open_db: Callable[..., memcore.Database], surface: str
) -> None:
    db = open_db(redact=True)
    first = SURFACES[surface](db)
    assert SURFACES[surface](db) == first


def test_what_was_redacted_is_put_behind_a_file_once() -> None:
    with memcore.open(":memory:", redact=True) as db:
        backend = MemcoreBackend(db)
        backend.write("/a", "start ")
        for _ in range(2):
            assert backend.append("/a", "ann@example.com ", idempotency_key="k").error is None
        told = backend.download_files(["/a"])[0].content
        assert told is not None
        assert told.count(b"EMAIL") == 1
        with pytest.raises(memcore.DuplicateRequestError):
            backend.append("/a", "bob@example.com ", idempotency_key="k")


@pytest.mark.parametrize("surface", SURFACES)
def test_a_second_try_stores_nothing(db: memcore.Database, surface: str) -> None:
    first = SURFACES[surface](db)
    assert SURFACES[surface](db) == first


@pytest.mark.parametrize("surface", SURFACES)
def test_nor_does_one_of_another_process(
    open_db: Callable[..., memcore.Database], surface: str
) -> None:
    db = open_db()
    first = SURFACES[surface](db)
    db.close()
    assert SURFACES[surface](open_db()) == first


CONCURRENT = [name for name in SURFACES if name not in ("undo", "compact", "events", "saver")]


@pytest.mark.parametrize("surface", CONCURRENT)
def test_of_those_who_try_at_once_one_is_stored(db: memcore.Database, surface: str) -> None:
    found: list[Any] = []
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def run() -> None:
        start.wait()
        try:
            found.append(SURFACES[surface](db))
        except BaseException as exc:  # noqa: BLE001 - told below
            errors.append(exc)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert SURFACES[surface](db) in found


def test_a_put_that_compares_parents_may_come_again(db: memcore.Database) -> None:
    found = MemcoreSaver(db, compare_parent=True)
    at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for number in range(3):
        checkpoint: Any = {**empty_checkpoint(), "id": str(number)}
        before = at
        for _ in range(3):
            at = found.put(before, checkpoint, {}, {})
            found.put_writes(at, [("c", number)], "task")
    kept = list(found.list({"configurable": {"thread_id": "t"}}))
    assert [each.checkpoint["id"] for each in kept] == ["2", "1", "0"]
    assert [len(each.pending_writes or ()) for each in kept] == [1, 1, 1]


# --- another request under the same key -----------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        lambda db: db.session("s").append(user("other"), idempotency_key="k"),
        lambda db: db.session("s").checkpoint("other", idempotency_key="c"),
        lambda db: db.session("s").state.update({"b": 1}, idempotency_key="s"),
        lambda db: db.session("s").state.update({"a": memcore.Merge({})}, idempotency_key="s"),
        lambda db: db.scope().state.update({"a": 2}, idempotency_key="s"),
        lambda db: db.scope().kv("n").increment("a", 2, idempotency_key="k"),
        lambda db: MemcoreBackend(db).append("/a", "other", idempotency_key="k"),
    ],
)
def test_a_key_stands_for_one_request(db: memcore.Database, other: Any) -> None:
    session = db.session("s")
    session.append(user("x"), idempotency_key="k")
    session.checkpoint("c", idempotency_key="c")
    session.state.update({"a": 1}, idempotency_key="s")
    db.scope().state.update({"a": 1}, idempotency_key="s")
    db.scope().kv("n").increment("a", idempotency_key="k")
    MemcoreBackend(db).append("/a", "more", idempotency_key="k")
    with pytest.raises(memcore.DuplicateRequestError):
        other(db)


def test_a_batch_of_other_steps_is_another_request(db: memcore.Database) -> None:
    session = db.session("s")
    with session.batch(idempotency_key="k") as found:
        found.append(user("x"))
    context = session.batch(idempotency_key="k")
    with pytest.raises(memcore.DuplicateRequestError), context as found:
        found.append(user("x"))
        found.undo(1)
    assert len(session) == 1


def test_what_others_wrote_since_is_not_written_over(db: memcore.Database) -> None:
    scope, session = db.scope(), db.session("s")
    for each in (scope.state, scope.app_state, session.state):
        assert each.update({"a": 1}, idempotency_key="k") == 1
        assert each.update({"a": 2}) == 2
        assert each.update({"a": 1}, idempotency_key="k") == 1
        assert each["a"] == 2


def test_an_edit_that_another_try_was_faster_with(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, asked = MemcoreBackend(db), Files.told
    backend.write("/e", "a b")
    assert backend.edit("/e", "a", "aa", idempotency_key="k").occurrences == 1
    looks: list[int] = []

    def late(self: Files, once: Any) -> Any:
        looks.append(1)
        return None if len(looks) == 1 else asked(self, once)

    monkeypatch.setattr(Files, "told", late)
    again = backend.edit("/e", "a", "aa", idempotency_key="k")
    assert (again.occurrences, again.error) == (1, None)


def test_keys_are_forgotten_after_a_week(db: memcore.Database) -> None:
    now = [db.engine.now_us()]
    db.engine.now_us = lambda: now[0]
    space, session = db.scope().kv("n"), db.session("s")
    assert (space.increment("a", idempotency_key="k"), space.get("a")) == (1, 1)
    session.state.update({"a": 1}, idempotency_key="k")
    now[0] += 8 * 24 * 3600 * 10**6
    assert space.increment("a", idempotency_key="k") == 2
    assert session.state.update({"a": 2}, idempotency_key="k") == 2


def test_keys_are_those_of_one_scope_and_one_thing(db: memcore.Database) -> None:
    for user_id in ("ann", "bob"):
        for space in ("n", "m"):
            assert db.scope(user=user_id).kv(space).increment("a", idempotency_key="k") == 1
        for name in ("s", "t"):
            assert db.session(name, user=user_id).append(user("x"), idempotency_key="k").seq == 1


def test_what_is_not_json_is_no_result(db: memcore.Database) -> None:
    space = db.scope().kv("n")
    with pytest.raises(memcore.InvalidItemError):
        space.transact(lambda txn: (txn.put("a", 1), {1, 2})[1], idempotency_key="k")
    assert space.get("a") is None


# --- awaited, cancelled, killed, in doubt ---------------------------------------------------------


def test_a_cancelled_await_and_its_retry_store_once(path: Path) -> None:
    async def run() -> None:
        async with memcore.aio.open(path) as db:
            session, space = db.session("s"), db.scope().kv("n")

            async def batched() -> None:
                async with session.batch(idempotency_key="b") as found:
                    found.append(user("b"))

            ways: list[Callable[[], Any]] = [
                lambda: session.append(user("a"), idempotency_key="a"),
                batched,
                lambda: session.state.update({"m": memcore.Merge({"a": 1})}, idempotency_key="s"),
                lambda: session.checkpoint("c", idempotency_key="c"),
                lambda: space.increment("n", idempotency_key="i"),
                lambda: space.transact(lambda txn: txn.increment("m"), idempotency_key="t"),
                lambda: session.apply(memcore.Command({"x": 1}, [user("c")]), idempotency_key="p"),
            ]
            for way in ways:
                for turns in range(3):
                    task = asyncio.ensure_future(way())
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                await way()
            assert [item.message["content"] async for item in session.items()] == ["a", "b", "c"]
            assert session.state.counter == 2
            assert [found.number async for found in session.checkpoints()] == [1]
            assert await space.scan() == [("m", 1), ("n", 1)]

    asyncio.run(run())


def work(path: Path, surface: str, faults: str) -> int:
    args = [sys.executable, retry_work.__file__, str(path), surface]
    env = child_env(faults)
    return subprocess.run(args, env=env, check=False, capture_output=True).returncode


@pytest.mark.parametrize("surface", retry_work.SURFACES)
@pytest.mark.parametrize("point", ["txn.commit=kill@1", "txn.commit.after=kill@1"])
def test_after_a_kill_it_is_stored_once(
    open_db: Callable[..., memcore.Database], path: Path, surface: str, point: str
) -> None:
    open_db().close()
    assert work(path, surface, point) == -9
    db = open_db()
    first = SURFACES[surface](db)
    assert SURFACES[surface](db) == first
    fresh = memcore.open(":memory:")
    assert SURFACES[surface](fresh) == first
    fresh.close()


@pytest.mark.parametrize("surface", ["extend", "kv", "state_merge"])
def test_after_an_unknown_outcome_it_is_stored_once(
    open_db: Callable[..., memcore.Database],
    monkeypatch: pytest.MonkeyPatch,
    surface: str,
) -> None:
    open_db().close()
    with monkeypatch.context() as patch:
        patch.setattr(open_file, "file_access", failing("txn.commit.after=error:EIO@1"))
        db = open_db()
    with pytest.raises(memcore.OutcomeUnknownError):
        SURFACES[surface](db)
    db.close()
    again = open_db()
    first = SURFACES[surface](again)
    assert SURFACES[surface](again) == first
    fresh = memcore.open(":memory:")
    assert SURFACES[surface](fresh) == first
    fresh.close()
