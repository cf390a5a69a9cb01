"""The SDK's own Runner over MemcoreSession: what is stored, and what the model receives."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Runner, RunState, SQLiteSession, function_tool
from agents.exceptions import MaxTurnsExceeded
from agents.memory import SessionSettings
from agents.testing import ModelStep, ScriptedModel, assistant_message

import memcore
from memcore.adapters.openai_agents import (
    MemcoreSession,
    safe_call_model_input_filter,
    safe_session_input_callback,
)
from memcore.codec.keys import Row, session_row
from memcore.database.redact import redact_all
from memcore.errors import UnreadableItemsError
from memcore.privacy import Redaction, RedactionPolicy, redaction_policy
from memcore.session.content_filter import redacts_at
from memcore.session.read import read_log
from memcore.session.session import ref_of, store_of
from memcore.session.tail import marked
from messages import illegal
from tests.conformance.agents_worker import agent_of, asks, config, script

Item = dict[str, Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def session(db):
    return MemcoreSession("chat", db)


def short(items: list[Item]) -> list[str]:
    """One word an item: who speaks, or which call or result it is."""
    words = {"function_call": "call", "function_call_output": "output"}
    return [
        f"{words.get(item['type'], item['type'])} {item['call_id']}"
        if "call_id" in item
        else item.get("role", item.get("type", "?"))
        for item in items
    ]


def asked(model: ScriptedModel) -> list[list[Item]]:
    """What each call of the model received; all of it is legal."""
    inputs = [list(call.input) for call in model.calls]
    for items in inputs:
        assert illegal(items, "openai_responses") == []
    return inputs


def said(text: str) -> list[Any]:
    return [assistant_message(text)]


async def stored(session: Any) -> list[Item]:
    return await session.get_items()


def kept_alike(work: Any, db: Any) -> list[Item]:
    """What ``work(session)`` leaves in the session: the same as in a SQLiteSession."""
    theirs = SQLiteSession("chat")

    async def both() -> list[Item]:
        ours = MemcoreSession("chat", db)
        results = [await work(each) for each in (ours, theirs)]
        assert results[0] == results[1]
        items = await ours.get_items()
        assert items == await theirs.get_items()
        return items

    try:
        return asyncio.run(both())
    finally:
        theirs.close()


# --- turns ----------------------------------------------------------------------------------------


def test_a_turn_with_a_tool_is_stored_as_sqlite_stores_it(db):
    async def work(session: Any) -> Any:
        model = script("Rome")
        result = await Runner.run(agent_of(model), "Rome", session=session, run_config=config())
        return result.final_output, [short(items) for items in asked(model)]

    items = kept_alike(work, db)
    assert short(items) == ["user", "call w-Rome", "output w-Rome", "assistant"]


def test_parallel_calls_and_a_second_turn_reach_the_model_whole(session):
    calls = [asks("weather", "a", city="Rome"), asks("weather", "b", city="Oslo")]
    model = ScriptedModel([calls, said("both"), said("again")])

    async def work() -> list[Item]:
        agent = agent_of(model)
        await Runner.run(agent, "both?", session=session, run_config=config())
        await Runner.run(agent, "again?", session=session, run_config=config())
        return await stored(session)

    items = asyncio.run(work())
    assert short(items)[:5] == ["user", "call a", "call b", "output a", "output b"]
    assert asked(model)[-1] == items[:-1]


def test_a_streamed_run_stores_the_same(db):
    async def work(session: Any) -> Any:
        model = script("Rome")
        result = Runner.run_streamed(agent_of(model), "Rome", session=session, run_config=config())
        kinds = [event.type async for event in result.stream_events()]
        return result.final_output, kinds, [short(items) for items in asked(model)]

    items = kept_alike(work, db)
    assert short(items) == ["user", "call w-Rome", "output w-Rome", "assistant"]


def test_a_limit_and_a_budget_bound_what_is_sent_and_not_what_is_stored(db):
    limited = MemcoreSession("chat", db, session_settings=SessionSettings(limit=3))
    safe = {
        "session_input_callback": safe_session_input_callback(budget_tokens=90),
        "call_model_input_filter": safe_call_model_input_filter(budget_tokens=90),
    }

    async def ask(at: int, session: MemcoreSession, **options: Any) -> list[list[Item]]:
        model, run_config = script(f"city {at}"), config(**options)
        await Runner.run(agent_of(model), f"q{at}", session=session, run_config=run_config)
        sent = asked(model)
        for items in sent:
            assert any(item.get("content") == f"q{at}" for item in items)
        assert short(sent[-1])[-2:] == [f"call w-city {at}", f"output w-city {at}"]
        return sent

    async def work() -> list[Item]:
        session = MemcoreSession("chat", db)
        for at in range(0, 8, 2):
            assert all(len(items) <= 6 for items in await ask(at, limited))
            for items in await ask(at + 1, session, **safe):
                assert memcore.fit(items, policy="openai_responses").tokens <= 90
                assert at < 4 or len(items) < 4 * at
        return await session.get_items()

    assert len(asyncio.run(work())) == 8 * 4


@pytest.mark.parametrize("way", ["settings", "dict", "set later", "run"])
def test_a_run_keeps_within_the_budget_whoever_says_the_limit(db, way):
    settings = SessionSettings(limit=100)
    given = {"settings": settings, "dict": {"limit": 100}}.get(way)
    session = MemcoreSession("chat", db, budget_tokens=120, session_settings=given)
    if way == "set later":
        session.session_settings.limit = 100

    async def work() -> list[list[Item]]:
        said = {"session_settings": settings} if way == "run" else {}
        for at in range(8):
            model, run_config = script(f"city {at}"), config(**said)
            await Runner.run(agent_of(model), f"q{at}", session=session, run_config=run_config)
        return asked(model)

    for items in asyncio.run(work()):
        # The question of now and what answers it come on top of the window.
        assert memcore.fit(items[:-1], policy="openai_responses").tokens <= 120 + 60
        assert len(items) < 4 * 7


# --- failures -------------------------------------------------------------------------------------


def test_too_many_turns_leave_what_happened(db):
    async def work(session: Any) -> Any:
        model = ScriptedModel([[asks("weather", f"c{at}", city="Rome")] for at in range(3)])
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(
                agent_of(model), "go", session=session, max_turns=2, run_config=config()
            )
        return [short(items) for items in asked(model)]

    items = kept_alike(work, db)
    assert short(items) == ["user", "call c0", "output c0", "call c1", "output c1"]


def test_a_model_that_fails_leaves_the_question(db):
    async def work(session: Any) -> Any:
        model = ScriptedModel([ModelStep.raise_error(RuntimeError("down")), said("up again")])
        agent = agent_of(model)
        with pytest.raises(RuntimeError, match="down"):
            await Runner.run(agent, "one", session=session, run_config=config())
        result = await Runner.run(agent, "two", session=session, run_config=config())
        return result.final_output, [short(items) for items in asked(model)]

    assert short(kept_alike(work, db)) == ["user", "user", "assistant"]


def test_a_tool_that_fails_leaves_nothing_half(db):
    @function_tool(failure_error_function=None)
    def broken() -> str:
        """Fail."""
        raise RuntimeError("no such file")

    async def work(session: Any) -> Any:
        model = ScriptedModel([[asks("broken", "c1")], said("well")])
        agent = agent_of(model, broken)
        with pytest.raises(Exception, match="no such file"):
            await Runner.run(agent, "one", session=session, run_config=config())
        await Runner.run(agent, "two", session=session, run_config=config())
        return [short(items) for items in asked(model)]

    assert short(kept_alike(work, db)) == ["user", "user", "assistant"]


# --- approvals ------------------------------------------------------------------------------------


def pauses(session: Any) -> Any:
    """A run that waits for an approval, and what the model said."""
    model = ScriptedModel([[asks("refund", "r1", amount=5)], said("done")])
    return model, Runner.run(agent_of(model), "refund", session=session, run_config=config())


@pytest.mark.parametrize("approved", [True, False])
def test_a_run_waits_for_an_approval_and_goes_on(db, approved):
    async def work(session: Any) -> Any:
        model, run = pauses(session)
        result = await run
        assert short(await stored(session)) == ["user", "call r1"]
        state = result.to_state()
        for waiting in result.interruptions:
            (state.approve if approved else state.reject)(waiting)
        done = await Runner.run(agent_of(model), state, session=session, run_config=config())
        return done.final_output, [short(items) for items in asked(model)]

    items = kept_alike(work, db)
    assert short(items) == ["user", "call r1", "output r1", "assistant"]
    assert ("5 paid back" in items[2]["output"]) is approved


def test_one_of_two_approvals_at_a_time(db):
    async def work(session: Any) -> Any:
        calls = [asks("refund", "r1", amount=1), asks("refund", "r2", amount=2)]
        model = ScriptedModel([calls, said("done")])
        agent = agent_of(model)
        result = await Runner.run(agent, "refund", session=session, run_config=config())
        rounds = 0
        while result.interruptions:
            state = result.to_state()
            state.approve(result.interruptions[0])
            result = await Runner.run(agent, state, session=session, run_config=config())
            rounds += 1
        return rounds, result.final_output, [short(items) for items in asked(model)]

    items = kept_alike(work, db)
    assert sorted(short(items)[1:5]) == ["call r1", "call r2", "output r1", "output r2"]


def test_an_approval_may_be_streamed_and_given_to_a_state_that_was_stored(db):
    async def work(session: Any) -> Any:
        model = ScriptedModel([[asks("refund", "r1", amount=5)], said("done")])
        agent = agent_of(model)
        result = Runner.run_streamed(agent, "refund", session=session, run_config=config())
        async for _ in result.stream_events():
            pass
        state = await RunState.from_string(agent, result.to_state().to_string())
        for waiting in state.get_interruptions():
            state.approve(waiting)
        done = Runner.run_streamed(agent, state, session=session, run_config=config())
        async for _ in done.stream_events():
            pass
        return done.final_output, [short(items) for items in asked(model)]

    assert short(kept_alike(work, db)) == ["user", "call r1", "output r1", "assistant"]


def test_an_abandoned_approval_is_answered_for_the_model_alone(session):
    async def work() -> Any:
        _, run = pauses(session)
        await run
        model = ScriptedModel([said("as you wish")])
        await Runner.run(agent_of(model), "never mind", session=session, run_config=config())
        return asked(model)[-1], await stored(session)

    got, items = asyncio.run(work())
    assert short(got) == ["user", "call r1", "output r1", "user"]
    assert short(items) == ["user", "call r1", "user", "assistant"]
    assert "not answered" in got[2]["output"]


def test_an_approval_that_comes_after_other_talk_still_pairs(session):
    async def work() -> Any:
        paused, run = pauses(session)
        result = await run
        between = ScriptedModel([said("meanwhile")])
        await Runner.run(agent_of(between), "news?", session=session, run_config=config())
        state = result.to_state()
        state.approve(result.interruptions[0])
        await Runner.run(agent_of(paused), state, session=session, run_config=config())
        model = ScriptedModel([said("all in order")])
        await Runner.run(agent_of(model), "and now?", session=session, run_config=config())
        asked(between)
        asked(paused)
        return asked(model)[-1], await stored(session)

    got, items = asyncio.run(work())
    assert [word for word in short(items) if "r1" in word] == ["call r1", "output r1"]
    assert got == items[:-1]


# --- other processes, loops and threads -----------------------------------------------------------


def worker(*arguments: Any) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.conformance.agents_worker"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    return json.loads(done.stdout)


def test_what_another_process_began_goes_on_here(path):
    paused = worker(path, "refund now")
    assert short(paused["stored"]) == ["user", "call r1"]

    async def work() -> tuple[list[Item], list[list[Item]]]:
        model = ScriptedModel([said("done"), said("yes")])
        agent = agent_of(model)
        state = await RunState.from_string(agent, paused["state"])
        for waiting in state.get_interruptions():
            state.approve(waiting)
        with MemcoreSession("chat", path) as session:
            await Runner.run(agent, state, session=session, run_config=config())
            await Runner.run(agent, "paid?", session=session, run_config=config())
            return await stored(session), asked(model)

    items, sent = asyncio.run(work())
    assert short(items) == ["user", "call r1", "output r1", "assistant", "user", "assistant"]
    assert sent == [items[:3], items[:5]]


def test_run_sync_per_turn_needs_no_loop_of_its_own(path):
    for at in range(3):
        model = script(f"city {at}")
        with MemcoreSession("chat", path) as session:
            Runner.run_sync(agent_of(model), f"q{at}", session=session, run_config=config())
        assert len(asked(model)[0]) == 4 * at + 1
    loop = asyncio.get_event_loop_policy().get_event_loop()  # run_sync leaves one behind
    loop.close()
    asyncio.set_event_loop(None)


def test_one_session_serves_loops_of_several_threads_at_once(session):
    failed: list[BaseException] = []

    def work(name: int) -> None:
        async def turns() -> None:
            for at in range(3):
                model = script(f"{name}-{at}")
                await Runner.run(
                    agent_of(model), f"{name}-{at}", session=session, run_config=config()
                )
                asked(model)

        try:
            asyncio.run(turns())
        except BaseException as exc:  # noqa: BLE001 - told below
            failed.append(exc)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    items = asyncio.run(stored(session))
    assert len(items) == 4 * 3 * 4
    for name in range(4):
        mine = [item["content"] for item in items if item.get("content", "")[:2] == f"{name}-"]
        assert mine == [f"{name}-{at}" for at in range(3)]
    assert memcore.validate(items, "openai_responses") == []


# --- cancellation ---------------------------------------------------------------------------------


def test_a_run_that_is_cancelled_in_its_tool_leaves_the_question(db):
    async def work(session: Any) -> Any:
        started = asyncio.Event()

        @function_tool
        async def slow() -> str:
            """Wait for ever."""
            started.set()
            await asyncio.Event().wait()
            return "never"

        model = ScriptedModel([[asks("slow", "c1")], said("well")])
        agent = agent_of(model, slow)
        run = asyncio.ensure_future(Runner.run(agent, "one", session=session, run_config=config()))
        await started.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await Runner.run(agent, "two", session=session, run_config=config())
        return [short(items) for items in asked(model)]

    assert short(kept_alike(work, db)) == ["user", "user", "assistant"]


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
def test_a_stream_that_is_cancelled_leaves_a_history_to_go_on_with(session, mode):
    async def work() -> Any:
        calls = [asks("weather", "c1", city="Rome")]
        model = ScriptedModel([calls, said("so"), said("again")])
        agent = agent_of(model)
        result = Runner.run_streamed(agent, "one", session=session, run_config=config())
        async for event in result.stream_events():
            if event.type == "run_item_stream_event":
                result.cancel(mode=mode)
        after = await stored(session)
        model = ScriptedModel([said("again")])
        await Runner.run(agent_of(model), "two", session=session, run_config=config())
        return after, asked(model)[-1]

    after, got = asyncio.run(work())
    assert short(after)[0] == "user"
    if mode == "after_turn":
        assert short(after) == ["user", "call c1", "output c1"]
        assert got[:-1] == after


@pytest.mark.parametrize("at", range(5))
def test_a_run_that_is_cancelled_as_it_stores_has_stored_or_not(db, at):
    """Each write in turn is cancelled while it is under way: it is whole, or it is not there."""
    batches = [["user"], ["call w-Rome", "output w-Rome"], ["assistant"]]

    class Cancelled(MemcoreSession):
        writes = 0

        async def add_items(self, items: Any, **options: Any) -> None:
            self.writes += 1
            if self.writes == at:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            await super().add_items(items, **options)

    async def work() -> list[Item]:
        session = Cancelled("chat", db)
        run = Runner.run(agent_of(script("Rome")), "Rome", session=session, run_config=config())
        if 0 < at <= len(batches):
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(run)
        else:
            await run
        return await stored(session)

    words = short(asyncio.run(work()))
    whole = [[word for batch in batches[:count] for word in batch] for count in range(4)]
    assert words in (whole[at - 1 : at + 1] if 0 < at <= len(batches) else whole[-1:])


# --- the state of a run that waits ----------------------------------------------------------------

KILLED = """
import asyncio, os, sys
from agents import Runner
from memcore.adapters.openai_agents import MemcoreSession
from tests.conformance.agents_worker import agent_of, config, script

async def main():
    session = MemcoreSession("chat", sys.argv[1])
    agent = agent_of(script("refund"))
    result = await Runner.run(agent, "refund", session=session, run_config=config())
    await session.save_run_state(result.to_state())
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def after_a_kill(path: Path) -> None:
    """A process runs into an approval, keeps the state of the run, and is killed."""
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(path)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9


def test_a_run_that_waits_for_an_approval_outlives_its_process(path):
    after_a_kill(path)

    async def approve() -> None:
        with MemcoreSession("chat", path) as session:
            assert short(await session.get_items()) == ["user", "call r1"]
            state = await session.load_run_state(agent_of(script("done")))
            state.approve(state.get_interruptions()[0])
            await session.save_run_state(state)  # the approval, too

    async def go_on() -> tuple[Any, list[Item]]:
        with MemcoreSession("chat", path) as session:
            agent = agent_of(ScriptedModel([[assistant_message("paid")]]))
            state = await session.load_run_state(agent)
            result = await Runner.run(agent, state, session=session, run_config=config())
            assert await session.load_run_state(agent) is None  # nobody pays twice
            return result.final_output, await session.get_items()

    asyncio.run(approve())
    said_last, items = asyncio.run(go_on())
    assert said_last == "paid"
    assert short(items) == ["user", "call r1", "output r1", "assistant"]
    assert items[2]["output"] == "5 paid back"
    with memcore.open(path) as db:
        assert db.check() == []


def test_a_run_is_not_gone_on_with_once_the_session_did(path):
    after_a_kill(path)
    agent = agent_of(script("refund"))

    async def work() -> None:
        with MemcoreSession("chat", path) as session, MemcoreSession("chat", path) as other:
            assert await session.load_run_state(agent) is not None
            await session.native().record("note", {})  # is no item
            assert await session.load_run_state(agent) is not None
            await other.add_items([{"role": "user", "content": "Never mind."}])
            assert await session.load_run_state(agent) is None
            await other.pop_item()
            assert await session.load_run_state(agent) is not None
            await other.pop_item()
            assert await session.load_run_state(agent) is None

    asyncio.run(work())


def test_a_state_and_items_are_one_commit(db, monkeypatch):
    async def work() -> None:
        source, session = MemcoreSession("source", db), MemcoreSession("chat", db)
        agent = agent_of(script("refund"))
        result = await Runner.run(agent, "refund", session=source, run_config=config())
        state, items = result.to_state(), await source.get_items()
        revision, counter = session.native().revision, session.native().sync.state.counter
        with monkeypatch.context() as broken:
            broken.setattr("memcore.adapters.openai_agents.session.mark_of", refuse)
            with pytest.raises(LookupError):
                await session.save_run_state(state, items=items)
        assert await session.get_items() == []
        await session.save_run_state(state, items=items)
        native = session.native()
        assert (native.revision, native.sync.state.counter) == (revision + 1, counter + 1)
        assert await session.get_items() == items
        found = await session.load_run_state(agent)
        assert found.to_json() == state.to_json()
        await session.create_branch_from_turn(1, "other")
        assert await session.load_run_state(agent) is None  # it is of the first branch
        await session.switch_to_branch("main")
        assert await session.load_run_state(agent) is not None
        await session.save_run_state(None)
        assert await session.load_run_state(agent) is None
        await MemcoreSession("nobody", db).save_run_state(None)
        assert not MemcoreSession("nobody", db).native().sync.exists()

    asyncio.run(work())


def refuse(*_: Any) -> None:
    raise LookupError


NOTES = ["openai_agents.title", "openai_agents.metadata", "openai_agents.run_state"]


@pytest.mark.parametrize("name", NOTES)
@pytest.mark.parametrize("source", [*NOTES, "an item"])
def test_a_sealed_note_stands_for_nothing_else(db, name, source):
    """Whoever writes to the file can't make a run state of what a user said."""

    async def work() -> None:
        session = MemcoreSession("chat", db, encryption_key="a long random secret")
        agent = agent_of(script("refund"))
        result = await Runner.run(agent, "refund", session=session, run_config=config())
        state = result.to_state()
        if source == "an item":
            await session.add_items([{"value": state.to_json()}])
        await session.save_run_state(state)
        await session.set_title("a title")
        await session.set_metadata({"of": "the session"})
        fields = session.native().sync.state
        sealed = {each: fields.get(each) for each in NOTES}
        run = sealed[NOTES[2]]
        told = {**sealed, NOTES[2]: run["run"], "an item": session.native().sync.tail(1)[0].message}
        taken = told[source]
        fields.update({name: {**run, "run": taken} if name == NOTES[2] else taken})
        load = {
            NOTES[0]: session.get_title,
            NOTES[1]: session.get_metadata,
            NOTES[2]: lambda: session.load_run_state(agent),
        }[name]
        if source == name:
            assert await load()
        else:
            with pytest.raises(UnreadableItemsError):
                await load()

    asyncio.run(work())


def test_the_end_of_a_sealed_run_belongs_to_no_other_run(db):
    """Whoever writes to the file can't have a run wait behind another item."""

    async def work() -> None:
        session = MemcoreSession("chat", db, encryption_key="a long random secret")
        agent = agent_of(script("refund"))
        result = await Runner.run(agent, "refund", session=session, run_config=config())
        fields, name = session.native().sync.state, NOTES[2]
        await session.save_run_state(result.to_state())
        first = fields.get(name)
        await session.add_items([{"role": "user", "content": "Never mind."}])
        assert await session.load_run_state(agent) is None
        await session.save_run_state(result.to_state())
        second = fields.get(name)
        assert await session.load_run_state(agent) is not None
        fields.update({name: first})
        assert await session.load_run_state(agent) is None
        for end in (second["end"], marked_now(session)):  # that of another run, or one in clear
            fields.update({name: {**first, "end": end}})
            with pytest.raises(UnreadableItemsError, match="save it anew"):
                await session.load_run_state(agent)

    asyncio.run(work())


def test_a_run_in_clear_outlives_a_redaction(db):
    """The digest of a run proves nothing where anybody could write it anew: nobody asks for it."""

    async def work() -> None:
        session = MemcoreSession("chat", db)
        agent = agent_of(script("refund"))
        result = await Runner.run(agent, "refund", session=session, run_config=config())
        state = result.to_state()
        assert state._context is not None
        state._context.context = {"who": "alice@example.com"}
        await session.save_run_state(state)
        rule = RedactionPolicy()
        found = redact_all(db.engine, lambda *place: redacts_at(db.engine, rule, place), write=True)
        assert sum(each.rewritten for each in found) == 1
        assert "alice@example.com" not in str(session.native().sync.state.get(NOTES[2]))
        assert await session.load_run_state(agent) is not None

    asyncio.run(work())


def marked_now(session: MemcoreSession) -> str:
    return read_log(ref_of(session.native().sync), marked, None)


def test_a_damaged_item_stands_for_no_other_one(path):
    """A run that waited behind one is not gone on with behind another."""

    async def saved() -> None:
        with MemcoreSession("chat", path) as session:
            agent = agent_of(script("refund"))
            result = await Runner.run(agent, "refund", session=session, run_config=config())
            damage_last(session)
            await session.save_run_state(result.to_state())
            assert await session.load_run_state(agent) is not None

    async def later() -> None:
        with MemcoreSession("chat", path) as session:
            agent = agent_of(script("refund"))
            assert await session.load_run_state(agent) is not None
            await session.add_items([{"role": "user", "content": "Never mind."}])
            damage_last(session)
            assert await session.load_run_state(agent) is None

    asyncio.run(saved())
    asyncio.run(later())


def damage_last(session: MemcoreSession) -> None:
    """Flip a byte of the last item's row."""
    native = session.native().sync
    place = read_log(ref_of(native), lambda log, _: log.place, None)
    key = session_row(*place, Row.ITEM, native.tail(1)[0].seq)
    store = store_of(native)
    value = store.read(lambda txn: txn.get(key))
    store.transact(lambda txn: txn.put(key, value[:-1] + bytes([value[-1] ^ 1])))


@pytest.mark.parametrize("options", [{}, {"key": bytes(32)}])
def test_a_state_stays_over_a_renewal_and_is_sealed_with_the_items(tmp_path, options):
    """Also where rows are encrypted, so that none is ever written twice alike."""
    now = [1_700_000_000_000_000]

    async def work(db: memcore.Database) -> None:
        db.engine.now_us = lambda: now[0]
        session = MemcoreSession("chat", db, ttl_seconds=60, encryption_key="a long secret")
        await session.add_items([{"role": "user", "content": "old"}])
        now[0] += 40_000_000
        agent = agent_of(script("refund"))
        result = await Runner.run(agent, "refund", session=session, run_config=config())
        await session.save_run_state(result.to_state())
        now[0] += 30_000_000
        assert await session.remove_expired() == 1
        assert await session.load_run_state(agent) is not None
        other = MemcoreSession("chat", db, encryption_key="another")
        with pytest.raises(UnreadableItemsError):
            await other.load_run_state(agent)
        store = db.engine.store
        values = store.read(lambda txn: [value for _, value in txn.scan(b"\x01", b"\xff")])
        assert not any(b"refund" in value or b"be kind" in value for value in values)

    with memcore.open(tmp_path / "file", **options) as db:
        asyncio.run(work(db))


@pytest.mark.parametrize("options", [{}, {"encryption_key": "a long random secret"}])
@pytest.mark.parametrize(
    "value",
    [7, "x", [], {}, {"value": 7}, {"end": "", "run": 7}, {"end": "", "run": {"value": [1]}},
     {"__memcore_json__": "7"}, {"__memcore_json__": 7}, {"__memcore_sealed__": "x"}],
)  # fmt: skip
def test_fields_that_hold_something_else_are_no_title_and_no_run(db, value, options):
    async def work() -> None:
        session = MemcoreSession("chat", db, **options)
        state = session.native().sync.state
        state.update(
            {f"openai_agents.{name}": value for name in ("title", "metadata", "run_state")}
        )
        agent = agent_of(script("refund"))
        wanted = (None, {}, None)
        asked_for = session.get_title, session.get_metadata, lambda: session.load_run_state(agent)
        for ask, nothing in zip(asked_for, wanted, strict=True):
            try:
                assert await ask() == nothing
            except UnreadableItemsError:
                assert options or any(name.startswith("__memcore") for name in value)

    asyncio.run(work())


def redact_mails(db) -> int:
    """Replace mail addresses in all items; return how many items were rewritten."""
    redaction = Redaction(redaction_policy("default"), secret=bytes(32))
    found = redact_all(db.engine, redaction.for_place, write=True)
    return sum(each.rewritten for each in found if each.where == "items")


@pytest.mark.parametrize("how", ["clear", "delete"])
def test_a_session_that_begins_again_shows_no_redacted_text(path, how) -> None:
    """Each of the two sessions was rewritten once, so both are in the same epoch."""

    async def run() -> None:
        session = MemcoreSession("s", path, user="u")
        with memcore.open(path) as db:
            for name in ("bob", "eve"):
                await session.add_items([{"role": "user", "content": f"mail {name}@example.com"}])
                assert name in str(await session.get_items())
                assert redact_mails(db) == 1
                assert name not in str(await session.get_items())
                if how == "clear":
                    await session.clear_session()
                else:
                    for entry in list(db.sessions()):
                        db.delete_session(entry.session_id, user="u", app=entry.app)
        session.close()

    asyncio.run(run())


def test_a_read_that_waits_puts_no_redacted_text_back(path) -> None:
    async def run() -> None:
        session = MemcoreSession("s", path, user="u")
        texts = ["mail bob@example.com", *map(str, range(1_200))]
        await session.add_items([{"role": "user", "content": text} for text in texts])
        with memcore.open(path) as db:
            waiting = asyncio.create_task(session.get_items())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
            assert redact_mails(db) == 1
            assert "bob" not in str((await session.get_items())[0])
            await waiting
            assert "bob" not in str((await session.get_items())[0])
        session.close()

    asyncio.run(run())
