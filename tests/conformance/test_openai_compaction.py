"""Compaction that a session does by itself, and legal windows, under the SDK's own Runner."""

from __future__ import annotations

import asyncio
import logging

import pytest
from agents import Agent, RunConfig, Runner, SQLiteSession, function_tool
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
        window = asyncio.run(session.get_items())
        assert window == asyncio.run(session.get_items(limit))
        stored = asyncio.run(session.get_items(-1))
        assert len(stored) == 48
        for other in {1, 2, 3, 4, 5, 8} - {limit}:  # which the Runner compares
            assert asyncio.run(session.get_items(other)) == stored[-other:]
        asyncio.run(session.run_compaction({"force": True}))
        window = asyncio.run(session.get_items())
    assert legal(seen)
    assert legal(window)
    assert 0 < len(window) <= limit
    assert ("They looked at places." in str(window[0])) == (limit > 1)


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
