"""Compaction that a session does by itself, and legal windows, under the SDK's own Runner."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
from agents.memory import SessionSettings
from agents.memory.session import is_openai_responses_compaction_aware_session
from agents.testing import ScriptedModel, assistant_message, function_call

import memcore
from memcore.adapters.openai_agents import MemcoreSession

POLICY = "default"


@function_tool
def look(at: int) -> str:
    """Look at a place."""
    return f"seen {at}"


def turn(agent_turn: int):
    """The model's part of a turn: a call, then a text."""
    return [
        [function_call("look", {"at": agent_turn}, call_id=f"c{agent_turn}")],
        [assistant_message(f"Place {agent_turn} is fine.")],
    ]


async def talk(session, turns, config=None):
    """So many turns of a real Runner; what the model got last."""
    for at in turns:
        model = ScriptedModel(turn(at))
        agent = Agent(name="Guide", model=model, tools=[look])
        await Runner.run(agent, f"Place {at}?", session=session, run_config=config)
    return model.calls[-1].input


def summarizer(asked):
    async def summarize(request):
        asked.append(request)
        return "They looked at places."

    return summarize


def legal(items):
    return memcore.validate([dict(item) for item in items], policy="openai_responses") == []


@pytest.fixture
def session(path):
    with MemcoreSession("s", path) as made:
        yield made


def test_nobody_compacts_who_was_not_asked(session):
    assert not is_openai_responses_compaction_aware_session(session)
    assert not hasattr(session, "run_compaction")


def test_a_budget_alone_compacts_nothing(path):
    with MemcoreSession("s", path, budget_tokens=50) as session:
        assert not is_openai_responses_compaction_aware_session(session)


def test_the_runner_has_it_compacted_and_the_log_stays(path):
    asked = []
    options = {"compaction": POLICY, "summarize": summarizer(asked)}
    with MemcoreSession("s", path, **options) as session:
        assert is_openai_responses_compaction_aware_session(session)
        seen = asyncio.run(talk(session, range(12)))
        stored = asyncio.run(session.get_items(-1))
        window = asyncio.run(session.get_items())
    assert asked
    assert len(stored) == 48
    assert len(window) < 24
    assert legal(window)
    assert legal(seen)
    assert "They looked at places." in str(window[0])
    assert len(seen) < 24
    with MemcoreSession("s", path) as plain:
        assert asyncio.run(plain.get_items()) == stored
    with MemcoreSession("s", path, **options) as again:
        assert asyncio.run(again.get_items()) == window


def test_a_limit_is_the_exact_tail(path):
    rival = SQLiteSession("s")
    with MemcoreSession("s", path, compaction=POLICY) as session:
        asyncio.run(talk(session, range(8)))
        stored = asyncio.run(session.get_items(-1))
        asyncio.run(rival.add_items(stored))
        for limit in (0, 1, 2, 3, 7, 30, 100):
            assert asyncio.run(session.get_items(limit)) == asyncio.run(rival.get_items(limit))
        assert len(asyncio.run(session.get_items())) < len(stored)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 8, 40])
@pytest.mark.parametrize("ways", [("settings",), ("settings", "run")])
def test_a_limit_of_the_settings_leaves_windows_legal(path, limit, ways):
    options = {"compaction": POLICY, "summarize": summarizer([]), "budget_tokens": 2_000}
    settings = {"limit": limit}
    with MemcoreSession("s", path, session_settings=settings, **options) as session:
        config = RunConfig(session_settings=settings) if "run" in ways else None
        seen = asyncio.run(talk(session, range(12), config))
        stored = asyncio.run(session.get_items(-1))
        assert len(stored) == 48
        for other in (1, 2, 3, 4, 5, 8):  # which the Runner compares
            assert asyncio.run(session.get_items(other)) == stored[-other:]
        asyncio.run(session.run_compaction({"force": True}))
        window = asyncio.run(session.get_items())
    assert legal(seen)
    assert legal(window)
    assert 0 < len(window) <= limit
    assert ("They looked at places." in str(window[0])) == (limit > 1)


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay somebody."""
    return f"{amount} paid"


@pytest.mark.parametrize("limit", range(1, 8))
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_run_that_lost_its_acknowledgement_goes_on(path, limit, is_stored):
    """The Runner compares the exact tail with what it wrote, whatever limits the settings say."""
    options = {"session_settings": {"limit": limit}, "budget_tokens": 30}
    answers = [
        [function_call("look", {"at": 1}, call_id="c1")],
        [function_call("pay", {"amount": 5}, call_id="p1")],
        [assistant_message("It is paid.")],
    ]
    agent = Agent(name="Clerk", model=ScriptedModel(answers), tools=[look, pay])

    async def work():
        with MemcoreSession("s", path, **options) as session:
            long = "and so on " * 20
            await session.add_items(
                [{"role": "user", "content": f"{at} {long}"} for at in range(4)]
            )
            result = await Runner.run(agent, "Pay Ann 5.", session=session)
            state = result.to_state()
            state.approve(state.get_interruptions()[0])
            original = session.add_items

            async def cut_off(items, **given):
                if is_stored:
                    await original(items, **given)
                session.add_items = original
                raise ConnectionError("lost")

            session.add_items = cut_off
            with pytest.raises(ConnectionError):
                await Runner.run(agent, state, session=session)
            result = await Runner.run(agent, state, session=session)
            return result.final_output, await session.get_items(-1)

    said, stored = asyncio.run(work())
    assert said == "It is paid."
    assert [item.get("type", item.get("role")) for item in stored[4:]] == [
        "user", *["function_call", "function_call_output"] * 2, "message"]  # fmt: skip


@pytest.mark.parametrize("budget_tokens", [None, 30])
def test_settings_are_those_of_the_sdk(path, budget_tokens):
    with MemcoreSession(
        "s", path, session_settings={"limit": 2}, budget_tokens=budget_tokens
    ) as at:
        assert at.session_settings == SessionSettings(limit=2)
        assert SessionSettings(limit=2) == at.session_settings
        assert at.session_settings != SessionSettings(limit=3)
        at.session_settings.limit = 4
        assert at.session_settings.to_dict() == {"limit": 4}
        if budget_tokens is not None:  # every way to a limit marks it
            resolved = at.session_settings.resolve(SessionSettings(limit=3))
            for each in (at.session_settings, resolved, dataclasses.replace(resolved, limit=2)):
                assert type(each.limit) is not int
        for override in (None, SessionSettings(), {}, {"limit": None}):
            assert at.session_settings.resolve(override) == SessionSettings(limit=4)
        for override in (SessionSettings(limit=3), {"limit": 3}):
            assert at.session_settings.resolve(override) == SessionSettings(limit=3)
        assert json.dumps(at.session_settings.limit) == "4"
        at.session_settings = SessionSettings(limit=1)
        assert at.session_settings == SessionSettings(limit=1)
        with pytest.raises(TypeError):
            at.session_settings.resolve({"unknown": 1})


@pytest.mark.parametrize(
    "override", [None, SessionSettings(), {"limit": 5}, SessionSettings(limit=5)]
)
def test_what_a_run_begins_with_is_legal_whoever_limits_it(path, override):
    with MemcoreSession("s", path, session_settings={"limit": 5}, budget_tokens=2_000) as session:
        items = [{"role": "user", "content": "x"}, *pair("c1"), *pair("c2"), *pair("c3")]
        asyncio.run(session.add_items(items))
        seen = asyncio.run(talk(session, [1], RunConfig(session_settings=override)))
        assert asyncio.run(session.get_items(5)) == asyncio.run(session.get_items(-1))[-5:]
    assert legal(seen)


def test_a_limit_that_splits_a_call_shrinks_the_window(path):
    items = [{"role": "user", "content": "x"}, *pair("c1"), *pair("c2")]
    with MemcoreSession("s", path, session_settings={"limit": 3}, budget_tokens=500) as session:
        asyncio.run(session.add_items(items))
        assert asyncio.run(session.get_items()) == items[-2:]
        session.session_settings = {"limit": 1}
        assert asyncio.run(session.get_items()) == []
        assert asyncio.run(session.get_items(3)) == items[-3:]
        for limit, count in ((0, 0), (-1, 5), (5, 5), (None, 5)):
            session.session_settings = {"limit": limit}
            assert len(asyncio.run(session.get_items())) == count


def pair(call_id):
    return [
        {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call_id, "output": "seen"},
    ]


def test_a_budget_holds_beside_a_limit(path):
    settings = {"limit": 30}
    with MemcoreSession("s", path, session_settings=settings, budget_tokens=50) as session:
        items = [{"role": "user", "content": f"word {at} " * 5} for at in range(20)]
        asyncio.run(session.add_items(items))
        window = asyncio.run(session.get_items())
        assert 0 < len(window) < 10
        assert window == items[-len(window) :]


def test_a_summarizer_that_fails_costs_no_turn(path, caplog):
    def broken(_):
        raise OSError("no model")

    with (
        caplog.at_level(logging.WARNING, "memcore.openai_agents"),
        MemcoreSession("s", path, compaction=POLICY, summarize=broken) as session,
    ):
        asyncio.run(talk(session, range(8)))
        assert len(asyncio.run(session.get_items(-1))) == 32
        assert legal(asyncio.run(session.get_items()))
    assert "OSError" in caplog.text
    assert "no model" not in caplog.text  # the text of an error may hold content


def test_force_compacts_what_is_not_due(path):
    with MemcoreSession("s", path, compaction=POLICY) as session:
        asyncio.run(session.add_items([{"role": "user", "content": f"{at}"} for at in range(10)]))
        asyncio.run(session.run_compaction({"response_id": "r", "force": False}))
        assert len(asyncio.run(session.get_items())) == 10
        asyncio.run(session.run_compaction({"response_id": "r", "force": True}))
        assert len(asyncio.run(session.get_items())) < 10
        assert len(asyncio.run(session.get_items(-1))) == 10


def test_an_open_call_survives(path):
    call = {"type": "function_call", "call_id": "open", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "open", "output": "late"}
    with MemcoreSession("s", path, compaction=POLICY) as session:
        asyncio.run(session.add_items([{"role": "user", "content": "x"}, call]))
        asyncio.run(session.run_compaction({"force": True}))
        asyncio.run(session.add_items([result, {"role": "user", "content": "y"}]))
        window = asyncio.run(session.get_items())
        assert legal(window)
        kinds = [item.get("type") for item in window]
        assert kinds.index("function_call") < kinds.index("function_call_output")


def test_a_budget_gives_a_legal_window(path, caplog):
    with MemcoreSession("s", path) as whole:
        asyncio.run(talk(whole, range(10)))
        stored = asyncio.run(whole.get_items())
    with MemcoreSession("s", path, budget_tokens=120) as session:
        window = asyncio.run(session.get_items())
        assert legal(window)
        assert len(window) < len(stored)
        assert window[-1] == stored[-1]
    with MemcoreSession("s", path, budget_tokens=1) as tiny:
        assert legal(asyncio.run(tiny.get_items()))
    assert "smallest legal window" in caplog.text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"summarize": len}, ValueError),
        ({"compaction": True, "encryption_key": "k" * 43}, ValueError),
        ({"compaction": "no such preset"}, ValueError),
        ({"compaction": True, "summarize": 7}, ValueError),
        ({"budget_tokens": "many"}, ValueError),
        ({"budget_tokens": -1}, ValueError),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(path, options, error):
    with pytest.raises(error):
        MemcoreSession("s", path, **options)
    assert not path.exists()
