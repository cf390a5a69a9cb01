"""A2A: messages there and back, and the task store against the SDK's own, its server and client."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

import memcore

pytest.importorskip("a2a.types")

import httpx
from a2a.auth.user import User
from a2a.client import ClientConfig, create_client
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import TaskUpdater
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette

from memcore.adapters.a2a import MemcoreTaskStore, from_a2a, settle, to_a2a
from memcore.model import ItemKind
from tests.conformance.a2a_messages import UNKNOWN, Messages


class Caller(User):
    def __init__(self, name):
        self.name = name

    is_authenticated = True

    @property
    def user_name(self):
        return self.name


def call_of(name):
    return ServerCallContext(user=Caller(name))


ANN, BOB = call_of("ann"), call_of("bob")


ITEM = memcore.Item(1, ItemKind.USER, {}, 0, 0.0)


def packed(message):
    return None if message is None else message.SerializeToString(deterministic=True)


def said(text, **fields):
    return Message(message_id=text, role=Role.ROLE_USER, parts=[Part(text=text)], **fields)


@pytest.fixture
def store(db):
    return MemcoreTaskStore(db)


# --- messages -------------------------------------------------------------------------------------


def test_ten_thousand_messages_come_back(db):
    """With their parts of unknown kinds, NaN and -0; each item is a legal message."""
    drawn = Messages(1)
    messages = [drawn.message() for _ in range(10_000)]
    for message in messages:
        found = from_a2a(message)
        item = ITEM._replace(message=found["item"], meta=found["meta"])
        assert packed(to_a2a(item)) == packed(message)
    session = db.session("peer")
    for message in messages[:1000]:
        session.append(**from_a2a(message))
    for item, message in zip(session.items(), messages, strict=False):
        assert packed(to_a2a(item)) == packed(message)
    for policy in ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain"):
        assert memcore.validate(session.context(format=policy).messages, policy=policy) == []


def test_what_a_model_reads():
    parts = [
        Part(text="Look"),
        Part(raw=b"\x89PNG", media_type="image/png"),
        Part(url="https://x/y.png", media_type="image/png"),
        Part(raw=b"%PDF", media_type="application/pdf", filename="a.pdf"),
        Part(data=ParseDict({"a": [1]}, Value())),
        Part(url="https://x/y"),
    ]
    user = from_a2a(Message(role=Role.ROLE_USER, parts=parts))["item"]
    assert user["role"] == "user"
    assert [block["type"] for block in user["content"]] == [
        "text", "image_url", "image_url", "file", "text", "text",
    ]  # fmt: skip
    assert user["content"][4]["text"] == '{"a":[1]}'
    agent = from_a2a(Message(role=Role.ROLE_AGENT, parts=parts))["item"]
    assert agent["role"] == "assistant"
    assert {block["type"] for block in agent["content"]} == {"text"}
    assert agent["content"][3]["text"] == "[a.pdf application/pdf]"
    for message in (user, agent, from_a2a(Message())["item"]):
        assert memcore.validate([message]) == []


def test_messages_of_any_format_become_new_ones():
    made = to_a2a(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                             "data": "aGk="}},
            ],
        },
        message_id="m", context_id="c", task_id="t",
    )  # fmt: skip
    assert (made.message_id, made.context_id, made.task_id) == ("m", "c", "t")
    assert made.role == Role.ROLE_USER
    assert made.parts[0].text == "Look"
    assert (made.parts[1].raw, made.parts[1].media_type) == (b"hi", "image/png")
    said = to_a2a({"role": "model", "parts": [{"text": "Yes"}]})
    assert (said.role, said.parts[0].text) == (Role.ROLE_AGENT, "Yes")
    assert said.message_id != to_a2a({"role": "model", "parts": [{"text": "Yes"}]}).message_id
    for item in (
        5,
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "system", "content": "x"},
    ):
        with pytest.raises(memcore.InvalidOptionError, match="item"):
            to_a2a(item)
    with pytest.raises(memcore.InvalidOptionError, match="message"):
        from_a2a({"role": "user"})


@pytest.mark.parametrize(
    "kept",
    [
        {"parts": [7]},
        {"parts": 5},
        {},
        {"role": "x", "parts": []},
        {"parts": [{"block": 0, "kind": "raw"}]},
    ],
)
def test_a_damaged_rest_is_told(db, kept):
    session = db.session("s")
    session.append({"role": "user", "content": "x"}, meta={"a2a": kept})
    with pytest.raises(memcore.InvalidItemError, match="does not fit"):
        to_a2a(session.get(1))


def test_what_an_agent_says_waits_in_quarantine(db):
    session = db.session("s", user="ann")
    session.append(**from_a2a(said("I live in Rome")))
    session.append(**from_a2a(said("I live in Oslo"), author="user"))
    session.memory.remember("Lives in Rome", source=1)
    session.memory.remember("Lives in Oslo", source=2)
    found = {each.text: (each.by, each.status) for each in session.memory.list(status=None)}
    assert found["Lives in Rome"] == ("agent", "quarantined")
    assert found["Lives in Oslo"] == ("user", "active")


# --- the store ------------------------------------------------------------------------------------


def test_it_answers_as_the_own_store_of_the_sdk(path, open_db):
    """Random changes of random tasks by three callers, with restarts."""

    async def play() -> int:
        drawn, pages = Messages(7), 0
        chance = drawn.random
        db = open_db()
        ours, theirs = MemcoreTaskStore(db), InMemoryTaskStore()
        calls = [ANN, BOB, ServerCallContext()]
        ids = ["t1", "x::task:1", "é\n", *(f"id-{number}" for number in range(12))]
        for _ in range(1200):
            call, task_id, kind = chance.choice(calls), chance.choice(ids), chance.random()
            if kind < 0.6:
                task = await theirs.get(task_id, call) or Task(
                    id=task_id, context_id=chance.choice(("c1", "c2"))
                )
                for _ in range(chance.randint(0, 3)):
                    drawn.change(task)
                await ours.save(task, call)
                await theirs.save(task, call)
                revision = ours.session(task_id, call).revision
                await ours.save(task, call)
                assert ours.session(task_id, call).revision == revision  # nothing is stored twice
            elif kind < 0.85:
                assert packed(await ours.get(task_id, call)) == packed(
                    await theirs.get(task_id, call)
                )
            elif kind < 0.97:
                wanted = ListTasksRequest(
                    page_size=chance.choice((0, 1, 3, 50)),
                    context_id=chance.choice(("", "c1", "c2")),
                )
                wanted.status = chance.choice((0, 0, 1, 3))
                if chance.random() < 0.3:
                    wanted.status_timestamp_after.FromNanoseconds(chance.randint(0, 5) * 10**9)
                while True:
                    page = await ours.list(wanted, call)
                    assert packed(page) == packed(await theirs.list(wanted, call))
                    pages += 1
                    if not page.next_page_token:
                        break
                    wanted.page_token = page.next_page_token
            elif kind < 0.99:
                await ours.delete(task_id, call)
                await theirs.delete(task_id, call)
            else:
                db.close()
                db = open_db()
                ours = MemcoreTaskStore(db)
        assert db.check() == []
        return pages

    assert asyncio.run(play()) > 100


def test_a_stream_costs_what_it_streams(store):
    """The room of a task is linear in what is said, although each save gives all of it."""

    async def play() -> None:
        task = Task(id="t", context_id="c")
        artifact = task.artifacts.add(artifact_id="a")
        for number in range(400):
            artifact.parts.append(Part(text=f"{number:04d}" + "x" * 500))
            task.history.append(said(f"m{number}"))
            await store.save(task, ANN)
        assert packed(await store.get("t", ANN)) == packed(task)

    asyncio.run(play())
    rows = b"".join(store.database.export(user="ann", undone=True))
    assert len(rows) < 400 * 3_000


def test_a_large_message_and_a_large_part_come_back(store):
    async def play() -> None:
        files = [Part(raw=bytes(300_000), media_type="x/y"), Part(raw=bytes(90_000))]
        task = Task(id="t", history=[Message(role=Role.ROLE_AGENT, message_id="m", parts=files)])
        task.artifacts.add(artifact_id="a", parts=files)
        task.status.message.CopyFrom(said("so"))
        await store.save(task, ANN)
        assert packed(await store.get("t", ANN)) == packed(task)
        await store.save(task, ANN)
        assert store.session("t", ANN).revision == 1

    asyncio.run(play())


def test_a_rewritten_history_is_not_stored_again(store):
    async def play() -> None:
        task = Task(id="t", history=[said(f"m{number}") for number in range(20)])
        await store.save(task, ANN)
        for _ in range(10):
            del task.history[:2]
            await store.save(task, ANN)
            assert packed(await store.get("t", ANN)) == packed(task)
        words = [each for each in store.session("t", ANN).items() if each.kind != ItemKind.EVENT]
        assert len(words) == 20

    asyncio.run(play())


def test_nobody_sees_the_tasks_of_others(store):
    async def play() -> None:
        secret = said("secret", context_id="c")
        await store.save(Task(id="t", context_id="c", history=[secret]), ANN)
        assert await store.get("t", BOB) is None
        assert await store.get("t", ServerCallContext()) is None
        assert not (await store.list(ListTasksRequest(context_id="c"), BOB)).tasks
        assert await store.history("c", BOB) == []
        await store.save(Task(id="t", context_id="c", history=[said("bob's")]), BOB)
        await store.delete("t", BOB)
        assert (await store.get("t", ANN)).history[0].message_id == "secret"
        with pytest.raises(memcore.InvalidOptionError, match="anonymous="):
            await store.get("t", call_of("anonymous"))
        with pytest.raises(memcore.InvalidOptionError, match="id"):
            await store.get("", ANN)
        with pytest.raises(InvalidParamsError):
            await store.list(ListTasksRequest(page_token="%"), ANN)

    asyncio.run(play())


def test_a_context_is_one_history(store):
    async def play() -> None:
        first = said("one")
        await store.save(Task(id="b", context_id="c", history=[first]), ANN)
        await store.save(Task(id="a", context_id="c", history=[first, said("two")]), ANN)
        await store.save(Task(id="d", context_id="other", history=[said("x")]), ANN)
        found = await store.history("c", ANN)
        assert [message["content"] for message in found] == ["one", "two"]
        await store.delete("a", ANN)
        assert len(await store.history("c", ANN)) == 1

    asyncio.run(play())


FRAME = {
    "id": "t", "context": "", "state": 1, "at": None, "said": None, "said_digest": None, "next": 0,
    "history": {"count": 0, "digest": "", "runs": []}, "artifacts": [], "changed": {},
}  # fmt: skip
ROW = {"count": 0, "digest": "", "runs": [], "id": "a"}


@pytest.mark.parametrize(
    "wrong",
    [
        5, {}, {"id": 5}, {"history": {}}, {"artifacts": [5]}, {"next": "x"}, {"state": "x"},
        {"said": 1.5}, {"history": {**ROW, "runs": [[5]]}}, {"changed": {"0": {}}},
        {"changed": {"0": ROW | {"id": 5}}}, {"changed": {"0": ROW | {"next": "x"}}},
        {"at": 10**30}, {"state": 2**40}, {"head": 5}, {"history": {**ROW, "runs": [[0, -1]]}},
    ],
)  # fmt: skip
def test_a_frame_that_no_save_wrote_is_none(store, wrong):
    async def play() -> None:
        task = Task(id="t", context_id="c", history=[said("one")])
        await store.save(task, ANN)
        frame = {**FRAME, **wrong} if wrong and isinstance(wrong, dict) else wrong
        store.session("t", ANN).record("a2a.task", frame)
        store.database.session("a2a:other", user="ann").record("a2a.task", frame)
        assert packed(await store.get("t", ANN)) == packed(task)
        assert [each.id for each in (await store.list(ListTasksRequest(), ANN)).tasks] == ["t"]
        assert len(await store.history("c", ANN)) == 1
        task.history.append(said("two"))
        await store.save(task, ANN)
        assert packed(await store.get("t", ANN)) == packed(task)

    asyncio.run(play())


def test_a_frame_with_rows_that_cannot_be_read_is_read_as_far_as_it_can(store):
    async def play() -> None:
        changed = {"0": {**ROW, "row": 5}, "1": {**ROW, "row": {"name": "x", "odd": 1}}}
        changed["9" * 5000] = {**ROW, "row": {}}
        frame = {**FRAME, "artifacts": ["0", "1", "7"], "changed": changed, "head": {"row": [5]}}
        store.database.session("a2a:t", user="ann").record("a2a.task", frame)
        found = await store.get("t", ANN)
        assert (found.id, len(found.artifacts)) == ("t", 2)
        await store.save(Task(id="t", context_id="c"), ANN)
        assert packed(await store.get("t", ANN)) == packed(Task(id="t", context_id="c"))

    asyncio.run(play())


def test_a_task_goes_on_without_what_expired_or_waits_in_quarantine(open_db):
    class Mails:
        name, version = "mails", "1"

        def judge(self, value, write):
            return "quarantine" if "@" in str(value) else "allow"

    async def play() -> None:
        db = open_db(guard=Mails())
        store = MemcoreTaskStore(db)
        mail = said("two")
        mail.parts[0].text = "to ann@example.com"
        task = Task(id="t", context_id="c", history=[said("one"), mail])
        task.artifacts.add(artifact_id="a", parts=[Part(text="bob@example.com"), Part(text="x")])
        await store.save(task, ANN)
        task.metadata.update({"mail": "eve@example.com"})  # so the frame waits
        await store.save(task, ANN)
        for _ in range(2):
            found = await store.get("t", ANN)
            shown = [each.parts[0].text for each in found.history]
            assert shown[:2] == ["one", "[QUARANTINED]"]
            assert b"@example" not in packed(found)
            assert len(await store.history("c", ANN)) >= 2
            assert len((await store.list(ListTasksRequest(), ANN)).tasks) == 1
            task.ClearField("metadata")
            task.history.append(said("three"))
            await store.save(task, ANN)
        assert (await store.get("t", ANN)).history[-1].parts[0].text == "three"

    asyncio.run(play())


def test_a_copy_of_a_task_is_not_listed(store):
    async def play() -> None:
        await store.save(Task(id="t", context_id="c", history=[said("one")]), ANN)
        store.session("t", ANN).fork("a2a:copy")
        store.session("t", ANN).fork("a2a:copy 2")
        assert (await store.list(ListTasksRequest(), ANN)).total_size == 1
        assert len(await store.history("c", ANN)) == 1

    asyncio.run(play())


def test_many_artifacts_and_much_metadata_cost_what_is_new(store):
    async def play() -> None:
        task = Task(id="t")
        task.metadata.update({"much": "x" * 20_000})
        for number in range(200):
            task.artifacts.add(artifact_id=f"a{number}", parts=[Part(text="x" * 100)])
            task.artifacts[number // 2].parts.append(Part(text=f"more {number}"))
            await store.save(task, ANN)
        assert packed(await store.get("t", ANN)) == packed(task)

    asyncio.run(play())
    rows = b"".join(store.database.export(user="ann", undone=True))
    assert len(rows) < 200 * 4_000


def test_a_task_that_others_made_anew_is_not_taken_for_the_old_one(path, open_db):
    """It has the revision of the old one: frames are remembered by the session's number."""

    async def play() -> None:
        ours, others = MemcoreTaskStore(open_db()), MemcoreTaskStore(open_db())
        for turn in range(2, 5):
            task = Task(id="t", history=[said("one")])
            task.artifacts.add(artifact_id="a", parts=[Part(text="x")])
            task.metadata.update({"much": "x"})
            for number in range(turn):
                task.history.append(said(f"{number}"))
                await ours.save(task, ANN)
            await others.delete("t", ANN)
            for number in range(turn):
                await others.save(Task(id="t", history=[said(f"other {number}")]), ANN)
            revisions = [each.session("t", ANN).revision for each in (ours, others)]
            assert revisions == [turn, turn]
            task.history.append(said("last"))
            await ours.save(task, ANN)
            for each in (ours, others):
                assert packed(await each.get("t", ANN)) == packed(task)
            await ours.delete("t", ANN)

    asyncio.run(play())


def test_many_tasks_are_saved_at_once(store):
    """By more threads than tasks are remembered."""

    async def play() -> None:
        for turn in range(2):
            tasks = [
                Task(id=f"t{number}", history=[said(f"m{at}") for at in range(turn + 1)])
                for number in range(400)
            ]
            await asyncio.gather(*(store.save(task, ANN) for task in tasks))
        for task in tasks[::40]:
            assert packed(await store.get(task.id, ANN)) == packed(task)
        assert len((await store.list(ListTasksRequest(page_size=1), ANN)).tasks) == 1

    asyncio.run(play())


def test_a_history_that_is_rewritten_under_redaction_is_not_stored_again(open_db):
    async def play() -> None:
        store = MemcoreTaskStore(open_db(redact="default"))
        task = Task(id="t", history=[said(f"m{number}") for number in range(20)])
        for message in task.history:
            message.parts[0].text += " to ann@example.com"
        await store.save(task, ANN)
        for _ in range(10):
            del task.history[:2]
            await store.save(task, ANN)
        words = [each for each in store.session("t", ANN).items() if each.kind != ItemKind.EVENT]
        assert len(words) == 20

    asyncio.run(play())


def test_saves_that_are_not_awaited_keep_their_order(store):
    async def play() -> None:
        for turn in range(20):
            tasks = [Task(id=f"t{turn}", history=[said(f"m{number}")]) for number in range(3)]
            await asyncio.gather(*(store.save(task, ANN) for task in tasks))
            assert packed(await store.get(f"t{turn}", ANN)) == packed(tasks[-1])

    asyncio.run(play())


def test_an_id_that_a_filter_finds_something_in_is_refused(open_db):
    async def play() -> None:
        store = MemcoreTaskStore(open_db(redact="default"))
        mail = "ann@example.com"
        odd = Task(id="t")
        odd.artifacts.add(artifact_id=mail)
        for task in (Task(id=mail), Task(id="t", context_id=mail), odd):
            with pytest.raises(memcore.BlockedError):
                await store.save(task, ANN)
        nan = Task(id="t", context_id="c")
        nan.metadata.update({"a": float("nan"), "b": mail})
        await store.save(nan, ANN)
        found = await store.get("t", ANN)
        assert (found.context_id, found.metadata["a"] != found.metadata["a"]) == ("c", True)
        revision = store.session("t", ANN).revision
        await store.save(nan, ANN)
        assert store.session("t", ANN).revision == revision

    asyncio.run(play())


def test_messages_of_one_id_are_told_apart(store):
    async def play() -> None:
        one, two = said("m"), said("m")
        two.parts[0].text = "other"
        await store.save(Task(id="t", context_id="c", history=[one, two]), ANN)
        assert [each["content"] for each in await store.history("c", ANN)] == ["m", "other"]

    asyncio.run(play())


def test_other_items_of_its_session_do_no_harm(store):
    async def play() -> None:
        task = Task(id="t", history=[said("one")])
        await store.save(task, ANN)
        session = store.session("t", ANN)
        session.append({"role": "user", "content": "note"}, meta={"a2a": {"n": "x"}})
        session.append({"role": "user", "content": "note"}, meta={"a2a": 5})
        session.record("a2a.part", {"n": "x"})
        session.record("a2a.rest", 5)
        assert packed(await store.get("t", ANN)) == packed(task)
        assert [each.id for each in (await store.list(ListTasksRequest(), ANN)).tasks] == ["t"]
        huge = {"json": {}, "n": 10**15}
        session.record("a2a.part", huge)
        assert packed(await store.get("t", ANN)) == packed(task)

    asyncio.run(play())


def test_an_expired_or_deleted_message_is_gone_from_its_task(store):
    async def play() -> None:
        task = Task(id="t", history=[said("one"), said("two")])
        await store.save(task, ANN)
        store.session("t", ANN).rewind(0)
        assert await store.get("t", ANN) is None
        await store.save(task, ANN)
        assert packed(await store.get("t", ANN)) == packed(task)

    asyncio.run(play())


def test_redaction_finds_all_that_is_stored(path, open_db):
    mail = "ann@example.com"

    async def play() -> None:
        db = open_db(redact="default")
        store = MemcoreTaskStore(db)
        odd = Part(text=f"to {mail}")
        odd.MergeFromString(UNKNOWN)
        message = Message(
            role=Role.ROLE_AGENT,
            message_id="m",
            parts=[odd, Part(data=ParseDict({"to": mail}, Value()))],
        )
        message.metadata.update({"to": mail})
        task = Task(id="t", history=[message])
        task.artifacts.add(artifact_id="a", parts=[odd, Part(text=mail)], name=mail)
        task.metadata.update({"to": mail})
        await store.save(task, ANN)
        found = await store.get("t", ANN)
        assert mail.encode() not in packed(found)
        chat = db.session("peer", user="ann")
        chat.append(**from_a2a(message))
        assert mail.encode() not in packed(to_a2a(chat.get(1)))
        assert found.history[0].parts[0].text.startswith("to ")
        db.close()

    asyncio.run(play())
    assert mail.encode() not in path.read_bytes()


def test_savers_in_two_threads_lose_nothing(path, open_db):
    first, second = open_db(), open_db()
    errors = []

    def work(db, name):
        async def play():
            store = MemcoreTaskStore(db)
            for number in range(30):
                task = await store.get("t", ANN) or Task(id="t")
                task.history.append(said(f"{name}{number}"))
                await store.save(task, ANN)

        try:
            asyncio.run(play())
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=each) for each in ((first, "a"), (second, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    words = {
        each.message["content"]
        for each in first.session("a2a:t", user="ann").items()
        if each.kind != ItemKind.EVENT
    }
    assert words == {f"{name}{number}" for name in "ab" for number in range(30)}


def test_a_cancelled_save_is_not_late(store):
    async def play() -> None:
        one, two = Task(id="t", history=[said("one")]), Task(id="t", history=[said("two")])
        saving = asyncio.ensure_future(store.save(one, ANN))
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        await store.save(two, ANN)
        assert packed(await store.get("t", ANN)) == packed(two)

    asyncio.run(play())


# --- the server and the client of the SDK ---------------------------------------------------------

CARD = AgentCard(
    name="writer",
    capabilities=AgentCapabilities(streaming=True),
    supported_interfaces=[
        AgentInterface(url="http://writer/", protocol_binding="JSONRPC", protocol_version="1.0")
    ],
)


class Writer(AgentExecutor):
    async def execute(self, context, event_queue):
        work = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            ids = {"id": context.task_id, "context_id": context.context_id}
            await event_queue.enqueue_event(Task(**ids, status=status, history=[context.message]))
            await work.requires_input(work.new_agent_message([Part(text="Which?")]))
            return
        for at in range(3):
            await work.add_artifact([Part(text=f"line {at}")], artifact_id="poem", append=at > 0)
        await work.complete(work.new_agent_message([Part(text="Done")]))

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class ByHeader(DefaultServerCallContextBuilder):
    def build_user(self, request):
        return Caller(request.headers["x-user"])


@asynccontextmanager
async def connected(store, user):
    handler = DefaultRequestHandler(Writer(), store, CARD)
    app = Starlette(routes=create_jsonrpc_routes(handler, "/", context_builder=ByHeader()))
    headers = {"x-user": user}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), headers=headers) as http:
        yield await create_client(CARD, ClientConfig(httpx_client=http))
    await handler.aclose()


async def sent(client, message):
    return [event async for event in client.send_message(SendMessageRequest(message=message))]


def test_a_task_survives_a_restart_of_its_server(path):
    async def play() -> None:
        with MemcoreTaskStore(path) as store:
            async with connected(store, "ann") as client:
                events = await sent(client, said("a poem"))
                ids = {"task_id": events[-1].status_update.task_id,
                       "context_id": events[-1].status_update.context_id}  # fmt: skip
        with MemcoreTaskStore(path) as store:
            async with connected(store, "ann") as client:
                await sent(client, said("of tea", **ids))
                task = await client.get_task(GetTaskRequest(id=ids["task_id"]))
                short = await client.get_task(GetTaskRequest(id=ids["task_id"], history_length=1))
            async with connected(store, "bob") as client:
                with pytest.raises(Exception, match=r"(?i)not found"):
                    await client.get_task(GetTaskRequest(id=ids["task_id"]))
                with pytest.raises(Exception, match=r"(?i)not found"):
                    await sent(client, said("of mine", **ids))
                assert not (await client.list_tasks(ListTasksRequest())).tasks
            history = await store.history(ids["context_id"], ANN)
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert [each.parts[0].text for each in task.history] == ["a poem", "Which?", "of tea"]
        assert [part.text for part in task.artifacts[0].parts] == ["line 0", "line 1", "line 2"]
        assert [each.parts[0].text for each in short.history] == ["of tea"]
        assert [each["content"] for each in history] == ["a poem", "Which?", "of tea", "Done"]

    asyncio.run(play())


def test_a_delivery_that_is_repeated_is_stored_once(store):
    async def play() -> None:
        async with connected(store, "ann") as client:
            events = await sent(client, said("a poem"))
            ids = {"task_id": events[-1].status_update.task_id,
                   "context_id": events[-1].status_update.context_id}  # fmt: skip
            stored = await store.get(ids["task_id"], ANN)
            revision = store.session(ids["task_id"], ANN).revision
            for _ in range(3):
                await store.save(stored, ANN)
            assert store.session(ids["task_id"], ANN).revision == revision
            await sent(client, said("a poem", context_id=ids["context_id"]))  # as another task
        history = await store.history(ids["context_id"], ANN)
        assert [each["content"] for each in history].count("a poem") == 1

    asyncio.run(play())


# --- tasks of other agents ------------------------------------------------------------------------

CALL = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "ask", "arguments": "{}"}}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (TaskState.TASK_STATE_COMPLETED, "a line\nmore"),
        (TaskState.TASK_STATE_FAILED, "failed: why"),
        (TaskState.TASK_STATE_REJECTED, "rejected: why"),
        (TaskState.TASK_STATE_CANCELED, "canceled: why"),
        (TaskState.TASK_STATE_WORKING, None),
        (TaskState.TASK_STATE_INPUT_REQUIRED, None),
        (TaskState.TASK_STATE_AUTH_REQUIRED, None),
        (TaskState.TASK_STATE_UNSPECIFIED, None),
    ],
)
def test_a_task_answers_the_call_that_began_it(db, state, answer):
    session = db.session("s")
    session.append({"role": "user", "content": "Go"})
    session.append(CALL)
    delegation = session.delegate("c1", agent="poet")
    task = Task(id="t", status=TaskStatus(state=state, message=said("why")))
    task.artifacts.add(artifact_id="a", parts=[Part(text="a line"), Part(text="more")])
    for _ in range(2):
        receipt = settle(delegation, task)
    assert (receipt is None) == (answer is None)
    assert bool(session.open_calls) == (answer is None)
    if answer is not None:
        assert session.context().messages[-1]["content"].endswith(answer)
        assert len(session) == 3
    with pytest.raises(memcore.InvalidOptionError, match="Task"):
        settle(delegation, "done")


def test_a_task_without_an_artifact_answers_with_its_message(db):
    session = db.session("s")
    session.append(CALL)
    done = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=said("so"))
    settle(session.delegate("c1", agent="poet"), Task(id="t", status=done))
    assert session.context().messages[-1]["content"] == "so"


def test_a_call_that_was_taken_back_is_not_answered(db):
    session = db.session("s")
    session.append({"role": "user", "content": "Go"})
    session.append(CALL)
    delegation = session.delegate("c1", agent="poet")
    session.rewind(1)
    done = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=said("so"))
    with pytest.raises(memcore.OrphanResultError, match="taken back"):
        settle(delegation, Task(id="t", status=done))
