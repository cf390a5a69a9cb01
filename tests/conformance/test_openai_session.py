"""MemcoreSession: every statement of the Agents SDK's session contract, and what drop-ins owe."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.exceptions import UserError
from agents.memory import SessionSettings
from agents.memory.session import Session, _session_accepts_wrapper

import memcore
from memcore.adapters.openai_agents import MemcoreSession
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.session.session import store_of
from messages import user


def run(work: Any) -> Any:
    return asyncio.run(work)


async def add_and_get(session: Any, items: list[Any]) -> list[Any]:
    await session.add_items(items)
    return await session.get_items()


def texts(items: list[Any]) -> list[str]:
    return [item["content"] for item in items]


@pytest.fixture
def session(db):
    return MemcoreSession("chat", db)


# --- construction ---------------------------------------------------------------------------------


def test_arguments_stand_where_those_of_sqlite_stand(path):
    given = ("chat", path, "sessions", "messages", SessionSettings(limit=3))
    ours, theirs = MemcoreSession(*given), SQLiteSession(*given[:1], ":memory:", *given[2:])
    with ours:
        for name in ("session_id", "sessions_table", "messages_table", "session_settings"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.db_path == path
        assert isinstance(ours, Session)
        assert _session_accepts_wrapper(ours)
        assert not hasattr(ours, "_read_compaction_items")
    theirs.close()


def test_the_constructor_makes_the_file_and_needs_no_loop(path):
    with MemcoreSession("chat", str(path), create_tables=True, logger=logging.getLogger("x")):
        assert path.exists()


def test_settings_may_be_a_dict_of_known_fields(db):
    assert MemcoreSession("a", db).session_settings == SessionSettings()
    session = MemcoreSession("a", db, session_settings={"limit": 2})
    assert session.session_settings == SessionSettings(limit=2)
    with pytest.raises(Exception, match="unknown") as ours:
        MemcoreSession("a", db, session_settings={"unknown": 1})
    with pytest.raises(Exception, match="unknown") as theirs:
        SQLiteSession("a", session_settings={"unknown": 1})
    assert type(ours.value) is type(theirs.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"unreadable": "hide"}, ValueError),
        ({"ttl_seconds": 0}, ValueError),
        ({"ttl_seconds": math.nan}, ValueError),
        ({"encryption_key": ""}, ValueError),
        ({"encryption_key": []}, ValueError),
        ({"encryption_key": 7}, TypeError),
        ({"cache_bytes": -1}, ValueError),
        ({"durability": "sometimes"}, ValueError),
        ({"user": ""}, ValueError),
    ],
)
def test_odd_options_are_refused_and_leave_nothing_open(path, options, error):
    with pytest.raises(error):
        MemcoreSession("a", path, **options)
    with memcore.open(path) as db:
        assert db.stats()["handles"] == 1


def test_an_id_is_a_string(path):
    with pytest.raises(TypeError, match="session_id"):
        MemcoreSession(7, path)
    assert not path.exists()


def test_memory_is_private_to_an_instance():
    with MemcoreSession("a") as one, MemcoreSession("a") as other:
        run(one.add_items([user()]))
        assert run(other.get_items()) == []


def test_other_tables_are_another_space(db):
    async def work():
        one = MemcoreSession("a", db)
        other = MemcoreSession("a", db, messages_table="other")
        third = MemcoreSession("a", db, "sessions", "other")
        await one.add_items([user("one")])
        await third.add_items([user("three")])
        await other.clear_session()
        return [await each.get_items() for each in (one, other, third)]

    assert run(work()) == [[user("one")], [], [user("three")]]


def test_users_and_apps_never_meet(db):
    async def work():
        places = [{}, {"user": "u"}, {"app": "b"}, {"user": "u", "app": "b"}]
        sessions = [MemcoreSession("a", db, **place) for place in places]
        for number, each in enumerate(sessions):
            await each.add_items([user(str(number))])
        await sessions[3].clear_session()
        return [texts(await each.get_items()) for each in sessions]

    assert run(work()) == [["0"], ["1"], ["2"], []]


def test_a_scope_or_an_open_database_stays_open(db):
    for source in (db, memcore.aio.AsyncDatabase(db), db.scope(user="u", app="b")):
        with MemcoreSession("a", source) as session:
            run(session.add_items([user()]))
    assert len(list(db.sessions())) == 2
    with pytest.raises(ValueError, match="user"):
        MemcoreSession("a", db.scope(), user="u")


# --- reading and writing --------------------------------------------------------------------------

ODD = [
    user("plain"),
    {"unknown": {"deep": [1, 2.5, None, True, {"k": []}]}, "type": "of_tomorrow"},
    {"n": 1 << 80, "f": 1e-300, "z": -0.0},
    {"nan": math.inf, "type": "function_call_output", "call_id": "c", "output": "x"},
    {1: "a", None: "b", False: "c", 2.5: "d"},
    {"t": (1, (2,))},
    ["a", "list"],
    "text",
    7,
    None,
    {"__memcore_json__": "1"},
    {"__memcore_sealed__": "x"},
    {"emoji": "\U0001f600 ' \" ; DROP TABLE", "lone": "\ud800"},
    {"__enc__": 1, "v": 1, "kid": "k", "payload": "gAAA"},
]


def test_what_json_says_comes_back_as_from_sqlite(session):
    theirs = run(add_and_get(SQLiteSession("chat"), ODD))
    assert json.dumps(run(add_and_get(session, ODD))) == json.dumps(theirs)
    again = MemcoreSession("chat", session._scope, cache_bytes=0)
    assert json.dumps(run(again.get_items())) == json.dumps(theirs)
    for expected in reversed(theirs):
        assert json.dumps(run(session.pop_item())) == json.dumps(expected)


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"in": found}
    return found


def test_nesting_beyond_the_native_limit_is_kept(session):
    assert run(add_and_get(session, [nested(600)])) == [nested(600)]


class Model:
    def model_dump(self):
        return {}


@pytest.mark.parametrize(
    "wrong", [{"a": object()}, {"a": {1, 2}}, {"a": b"x"}, Model(), {"a": Model()}, {(1,): 2}]
)
def test_what_json_cannot_say_is_a_type_error_and_leaves_nothing(session, wrong):
    with pytest.raises(TypeError) as ours:
        run(session.add_items([user(), wrong, user()]))
    with pytest.raises(TypeError) as theirs:
        run(SQLiteSession("a").add_items([user(), wrong, user()]))
    assert str(ours.value) == str(theirs.value)
    assert run(session.get_items()) == []


def test_a_circle_is_a_value_error(session):
    circle: dict[str, Any] = {}
    circle["me"] = circle
    with pytest.raises(ValueError, match="Circular"):
        run(session.add_items([user(), circle]))
    assert run(session.get_items()) == []


def test_items_are_fresh_and_mutable(session):
    given = {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
    run(session.add_items([given]))
    given["content"][0]["text"] = "changed"
    for _ in range(3):
        (found,) = run(session.get_items())
        assert found == {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
        found["content"].clear()


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 3, 4, 100, -1, -7])
@pytest.mark.parametrize("default", [None, 0, 2, -1])
def test_limits_are_those_of_sqlite(session, limit, default):
    async def work(each):
        each.session_settings = SessionSettings(limit=default)
        await each.add_items([user(str(n)) for n in range(4)])
        return await each.get_items(limit)

    assert run(work(session)) == run(work(SQLiteSession("a")))


def test_settings_may_be_replaced_by_a_dict(session):
    run(session.add_items([user("a"), user("b")]))
    session.session_settings = {"limit": 1}
    assert run(session.get_items()) == [user("b")]


def test_a_call_may_stay_open_and_a_result_may_stand_alone(session):
    items = [
        {"type": "function_call_output", "call_id": "nobody", "output": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    assert run(add_and_get(session, items)) == items
    assert session.native().open_calls[0].call_id == "c"


def test_no_items_are_no_commit(session):
    run(session.add_items([]))
    run(session.add_items(None))
    assert not session.native().sync.exists()
    run(session.add_items(iter([user()])))
    assert run(session.get_items()) == [user()]


def test_a_batch_is_stored_once_under_its_name(session):
    async def work():
        for _ in range(3):
            await session.add_items([user("a"), {"n": math.nan}], idempotency_key="turn 1")
        with pytest.raises(memcore.DuplicateRequestError):
            await session.add_items([user("b")], idempotency_key="turn 1")
        return len(await session.get_items())

    assert run(work()) == 2


def test_events_are_no_items(session):
    async def work():
        native = session.native()
        await session.add_items([user("a")])
        for _ in range(5):
            await native.record("note", {})
        found = [await session.get_items(limit) for limit in (None, 1, 3)]
        return [*found, await session.pop_item(), await session.pop_item()]

    assert run(work()) == [[user("a")]] * 3 + [user("a"), None]


def test_clearing_leaves_nothing_in_the_file(session, db):
    run(session.add_items([user("a"), user("b")]))
    run(session.clear_session())
    assert list(db.sessions()) == []
    assert run(session.pop_item()) is None
    run(session.clear_session())
    assert run(add_and_get(session, [user("c")])) == [user("c")]


def test_clearing_thousands_of_items(session, db):
    run(session.add_items([user(str(n)) for n in range(3000)]))
    run(session.clear_session())
    assert run(session.get_items()) == []
    before = db.stats()["entries"]
    run(session.clear_session())
    assert db.stats()["entries"] == before


def test_large_items_are_kept(session):
    items = [user("x" * (1 << 20)), user("y" * (5 << 20))]
    assert run(add_and_get(session, items)) == items
    assert run(session.pop_item()) == items[1]


@pytest.mark.parametrize(
    "name", ["", " ", " a", "a ", "\0", "\0a", "a" * 70000, "'; DROP TABLE x; --", "日本", "\ud800"]
)
def test_any_string_is_an_id_of_its_own(db, name):
    async def work():
        others = {"a", "\0\0", "\0" + name, name + " ", "#" + name}
        for other in others:
            await MemcoreSession(other, db).add_items([user("other")])
        session = MemcoreSession(name, db)
        assert await session.get_items() == [], "it is one of the others"
        await session.add_items([user("mine")])
        for other in others:
            assert await MemcoreSession(other, db).get_items() == [user("other")]
        return await MemcoreSession(name, db).get_items()

    assert run(work()) == [user("mine")]


def test_an_id_that_is_set_anew_is_another_session(session):
    run(session.add_items([user("a")]))
    session.session_id = "other"
    assert run(session.get_items()) == []
    session.session_id = "chat"
    assert run(session.get_items()) == [user("a")]


# --- damage ---------------------------------------------------------------------------------------


def damage(session: MemcoreSession, *seqs: int) -> None:
    native = session.native().sync
    log = native._ref.resolve()

    def flip(txn: Any) -> None:
        for seq in seqs:
            key = keys.session_row(*log.place, Row.ITEM, seq)
            txn.put(key, txn.get(key)[:-1] + b"~")

    store_of(native).transact(flip)


def test_damaged_items_hide_no_others_and_count_for_no_limit(tmp_path, caplog):
    with MemcoreSession("a", tmp_path / "damaged") as session:
        run(session.add_items([user(str(n)) for n in range(40)]))
        damage(session, 3, *range(30, 39), 40)
        assert texts(run(session.get_items(2))) == ["28", "38"]
        assert session.skipped_items > 0
        assert "11 damaged" not in caplog.text
        assert len(run(session.get_items())) == 29
        assert session.skipped_items == 11
        assert "11 damaged" in caplog.text
        assert run(session.pop_item()) == user("38")
        assert run(session.pop_item()) == user("28")
        assert run(session.get_items(-1))[-1] == user("27")


def test_only_damaged_items_are_dropped_by_a_pop(tmp_path):
    with MemcoreSession("a", tmp_path / "damaged") as session:
        run(session.add_items([user("a"), user("b")]))
        damage(session, 1, 2)
        assert run(session.get_items(1)) == []
        assert run(session.pop_item()) is None
        assert run(add_and_get(session, [user("c")])) == [user("c")]


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [False, True])
def test_closed_is_closed(db, path, given):
    session = MemcoreSession("a", db if given else path)
    other = MemcoreSession("a", path)
    run(session.add_items([user()]))
    session.close()
    session.close()
    assert session.is_closed
    for call in (
        lambda: session.add_items([]),
        lambda: session.add_items([user()]),
        session.get_items,
        lambda: session.get_items(0),
        session.pop_item,
        session.clear_session,
        session.remove_expired,
        session._pop_item_with_validation,
        lambda: session._get_compaction_snapshot(3),
    ):
        with pytest.raises(RuntimeError, match="MemcoreSession is closed"):
            run(call())
    assert run(session.ping()) is False
    assert run(other.ping())
    assert run(other.get_items()) == [user()]
    other.close()


def test_both_kinds_of_context_manager(path):
    with MemcoreSession("a", path) as session:
        run(session.add_items([user()]))
    assert session.is_closed

    async def work():
        async with MemcoreSession("a", path) as session:
            assert await session.ping()
            found = await session.get_items()
        assert session.is_closed
        return found

    assert run(work()) == [user()]


def test_a_database_that_was_closed_does_not_answer(path):
    db = memcore.open(path)
    session = MemcoreSession("a", db)
    db.close()
    assert run(session.ping()) is False
    with pytest.raises(memcore.errors.ClosedError):
        run(session.get_items())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_leaks_however_many_loops_threads_and_instances(path):
    with MemcoreSession("a", path) as session:
        run(session.add_items([user()]))
        before = descriptors()
        for n in range(30):
            run(session.add_items([user(str(n))]))
            thread = threading.Thread(target=lambda: run(session.get_items()))
            thread.start()
            thread.join()
            MemcoreSession(f"dropped {n}", path)  # nobody closes it
            with MemcoreSession(f"s{n}", path) as other:
                run(other.add_items([user()]))
        assert descriptors() == before
    gc.collect()
    with memcore.open(path) as db:
        assert db.stats()["handles"] == 1


# --- loops, threads, processes --------------------------------------------------------------------


def test_ten_tasks_lose_nothing(session):
    async def work():
        await asyncio.gather(*(session.add_items([user(str(n))]) for n in range(10)))
        return sorted(texts(await session.get_items()), key=int)

    assert run(work()) == [str(n) for n in range(10)]


def test_threads_with_loops_of_their_own(path):
    sessions = [MemcoreSession("a", path) for _ in range(3)]

    def work(session: MemcoreSession, name: str) -> None:
        async def adds():
            for n in range(20):
                await session.add_items([user(f"{name} {n}")])
                await session.get_items(1)

        run(adds())

    threads = [threading.Thread(target=work, args=(sessions[n % 3], str(n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = texts(run(sessions[0].get_items()))
    assert len(found) == 120
    for n in range(6):
        mine = [text for text in found if text.startswith(f"{n} ")]
        assert mine == [f"{n} {at}" for at in range(20)]
    for session in sessions:
        session.close()


def in_child(work: Any) -> int:
    """Run a function in the child of a fork; the child's process id."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_write_one_session(path):
    def write(name: int) -> None:
        async def adds():
            with MemcoreSession("a", path) as session:
                for n in range(20):
                    await session.add_items([user(f"{name} {n}")])

        run(adds())

    children = [in_child(lambda name=n: write(name)) for n in range(2)]
    write(2)
    assert [ended(child) for child in children] == [0, 0]
    with MemcoreSession("a", path) as session:
        found = texts(run(session.get_items()))
    assert len(found) == 60
    for n in range(3):
        mine = [text for text in found if text.startswith(f"{n} ")]
        assert mine == [f"{n} {at}" for at in range(20)]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_session_goes_on_in_the_child_of_a_fork(path):
    with MemcoreSession("a", path) as session:
        run(session.add_items([user("parent")]))
        run(session.get_items())

        def work() -> None:
            assert len(run(add_and_get(session, [user("child")]))) == 2

        assert ended(in_child(work)) == 0
        assert texts(run(session.get_items())) == ["parent", "child"]


def test_a_cancelled_add_waits_for_its_outcome(session):
    async def work():
        queue = store_of(session.native().sync)._env.queue
        lead = queue.claim(5)
        task = asyncio.create_task(session.add_items([user("a")]))
        await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        queue.release(lead)
        with pytest.raises(asyncio.CancelledError):
            await task
        return await session.get_items()

    assert run(work()) == [user("a")]


def test_another_instance_sees_what_was_written_popped_and_cleared(path):
    with MemcoreSession("a", path) as one, MemcoreSession("a", path) as other:
        run(one.add_items([user("a"), user("b")]))
        assert texts(run(other.get_items())) == ["a", "b"]
        run(one.pop_item())
        assert texts(run(other.get_items())) == ["a"]
        run(one.clear_session())
        assert run(other.get_items()) == []
        run(one.add_items([user("c")]))
        assert texts(run(other.get_items())) == ["c"]


# --- tenants --------------------------------------------------------------------------------------


class Wrapper:
    def __init__(self, context: Any) -> None:
        self.context = context


def test_a_run_context_leads_to_its_users_scope(db):
    def whose(wrapper: Wrapper) -> Any:
        name = wrapper.context
        return ("shop", name) if name == "ann" else db.scope(app="shop", user=name)

    async def work():
        session = MemcoreSession("a", db, scope_of=whose)
        ann, bob = Wrapper("ann"), Wrapper("bob")
        await session.add_items([user("of ann")], wrapper=ann)
        await session.add_items([user("of bob"), user("more")], wrapper=bob)
        found = [await session.get_items(wrapper=who) for who in (ann, bob)]
        found.append(await session.pop_item(wrapper=bob))
        await session.clear_session(wrapper=ann)
        return [*found, *[await session.get_items(wrapper=who) for who in (ann, bob)]]

    assert run(work()) == [
        [user("of ann")],
        [user("of bob"), user("more")],
        user("more"),
        [],
        [user("of bob")],
    ]
    assert run(MemcoreSession("a", db, app="shop", user="bob").get_items()) == [user("of bob")]


def test_a_run_context_may_lead_to_another_file(db):
    async def work():
        with memcore.open(":memory:") as second:
            scopes = {"ann": db.scope(), "bob": second.scope()}
            session = MemcoreSession("a", db, scope_of=lambda wrapper: scopes[wrapper.context])
            ann, bob = Wrapper("ann"), Wrapper("bob")
            await session.add_items([user("one"), user("of ann")], wrapper=ann)
            found = [await session.get_items(wrapper=bob)]
            await session.create_branch_from_turn(2, wrapper=ann)
            await session.add_items([user("of bob")], wrapper=bob)
            return [*found, *[await session.get_items(wrapper=who) for who in (ann, bob)]]

    assert run(work()) == [[], [user("one")], [user("of bob")]]


def test_other_tables_are_another_space_of_a_users_scope(db):
    async def work():
        def whose(_: Any) -> Any:
            return "shop", "ann"

        one = MemcoreSession("a", db, scope_of=whose)
        other = MemcoreSession("a", db, messages_table="other", scope_of=whose)
        await one.add_items([user("one")], wrapper=Wrapper(""))
        return await other.get_items(wrapper=Wrapper(""))

    assert run(work()) == []


def test_without_a_run_context_a_tenant_session_does_nothing(db):
    session = MemcoreSession("a", db, scope_of=lambda wrapper: ("app", wrapper.context))
    with pytest.raises(UserError, match="wrapper="):
        run(session.get_items())
    with pytest.raises(UserError):
        run(session.add_items([user()]))
    with pytest.raises(TypeError, match="scope_of"):
        run(MemcoreSession("a", db, scope_of=lambda _: "bob").get_items(wrapper=Wrapper("")))
    assert list(db.sessions()) == []


def test_without_scope_of_a_run_context_is_ignored(session):
    run(session.add_items([user()], wrapper=Wrapper("ann")))
    assert run(session.get_items(wrapper=Wrapper("bob"))) == [user()]


def test_the_package_names_what_it_has():
    import memcore.adapters.openai_agents as package

    assert {"MemcoreSession", "SessionManager"} <= set(dir(package))
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing
    assert Path(package.__file__).name == "__init__.py"


def test_no_two_pairs_of_tables_are_one_space(path):
    one = MemcoreSession("s", path, "a, b", "c")
    other = MemcoreSession("s", path, "a", "b, c")
    with one, other:
        asyncio.run(one.add_items([{"role": "user", "content": "mine"}]))
        assert asyncio.run(other.get_items()) == []
