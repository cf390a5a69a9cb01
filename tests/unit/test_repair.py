"""Repair: foreign histories get a recorded view; the log stays, and contexts need no mending."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcore
import strategies
from legality import found_wrong, plain
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.compaction.reducers import ClearResults
from memcore.wire import POLICIES, get_policy
from memcore.wire.validate import find_violations
from messages import assistant, attempt, call, messages_of, result, system, turns, user
from oracle import Event

BROKEN = [
    system(),
    user("q"),
    result("lost"),
    call("a", "b"),
    user("go on"),
    result("a", "old"),
    result("a", "new"),
    call("c"),
    assistant("so"),
    call("open"),
]
few = settings(
    max_examples=400 if os.environ.get("MEMCORE_LONG_TESTS") else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
MENDED = {"drop": {"orphan", "superseded", "synthesized"}, "synthesize": {"orphan", "superseded"}}


def actions(found: Any) -> list[tuple[str, int | None]]:
    return [(each.action, each.seq) for each in found]


@pytest.fixture
def broken(db: memcore.Database) -> memcore.Session:
    session = db.session("chat", orphans="keep")
    session.extend(BROKEN)
    return session


# --- what it does ---------------------------------------------------------------------------------


def test_a_plan_lists_all_that_is_broken_and_writes_nothing(broken):
    found = broken.repair(plan=True)
    assert (found.status, found.view, broken.views()) == ("planned", None, [])
    assert sorted(actions(found.repairs)) == [
        ("dropped", 4),
        ("dropped", 8),
        ("hoisted", 7),
        ("orphan", 3),
        ("superseded", 6),
    ]
    assert ("synthesized", 4) in actions(broken.repair("synthesize", plan=True).repairs)


def test_drop_takes_out_what_has_no_counterpart(broken):
    tokens = broken.context().tokens
    done = broken.repair("drop")
    assert done.status == "repaired"
    assert done.view is not None
    assert (done.view.status, done.view.policy, done.view.repair) == (
        "repaired",
        "repair/drop",
        "drop",
    )
    assert done.view.reason == "2 dropped, 1 hoisted, 1 orphan, 1 superseded"
    context = broken.context()
    assert context.messages == [
        *BROKEN[:2],
        call("a"),
        result("a", "new"),
        user("go on"),
        assistant("so"),
        call("open"),
    ]
    assert actions(context.repairs) == [("hoisted", 7)]
    assert context.tokens < tokens
    assert done.tokens_after < done.tokens_before
    assert messages_of(broken) == BROKEN
    assert broken.revision == 1


def test_synthesize_keeps_the_calls(broken):
    before = broken.context()
    done = broken.repair("synthesize")
    assert [mask.seq for mask in done.masks] == [3, 6]
    assert broken.context().messages == before.messages
    assert {action for action, _ in actions(broken.context().repairs)} == {"hoisted", "synthesized"}


@pytest.mark.parametrize("mode", ["drop", "synthesize"])
def test_a_call_that_is_taken_out_has_its_own_id(db, mode):
    session = db.session("s", policy="openai_responses")
    asks = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": "ok"}
    session.extend([user(), asks, asks, output, user()])
    found = [(each.action, each.call_id) for each in session.repair(mode).repairs]
    renamed = [("renamed", "a"), ("synthesized", "a")]
    assert found == ([("dropped", "a")] if mode == "drop" else renamed)


@pytest.mark.parametrize("mode", ["drop", "synthesize"])
def test_a_second_repair_finds_nothing(broken, mode):
    broken.repair(mode)
    again = broken.repair(mode)
    assert (again.status, again.view, len(broken.views())) == ("nothing", None, 1)
    broken.extend([result("open"), result("lost")])
    assert actions(broken.repair(mode).repairs) == [("orphan", 12)]


def test_nothing_is_broken(db):
    session = db.session("chat")
    assert session.repair().status == "nothing"
    session.extend([*turns(2), call("a"), result("a"), call("b")])
    assert session.repair("synthesize").status == "nothing"
    assert session.views() == []


@pytest.mark.parametrize("mode", ["drop", "synthesize"])
def test_open_calls_are_given_up_when_asked_for(broken, mode):
    planned = broken.repair(mode, plan=True, close_open=True)
    assert [found.call_id for found in planned.open_calls] == ["b", "c", "open"]
    assert len(broken) == len(BROKEN)
    done = broken.repair(mode, close_open=True)
    assert done.open_calls == planned.open_calls
    assert broken.open_calls == []
    assert [item.kind for item in broken.tail(3)] == [memcore.ItemKind.EVENT] * 3
    shown = [m for m in broken.context().messages if m.get("tool_calls")]
    assert len(shown) == (1 if mode == "drop" else 3)
    assert broken.repair(mode, close_open=True).status == "nothing"


@pytest.mark.parametrize("mode", ["drop", "synthesize"])
def test_seed_is_made_legal_for_openai(db, mode):
    session = db.session("seed", policy="seed", orphans="keep")
    session.extend(BROKEN)
    assert find_violations(session.context().messages, get_policy("openai_chat"))
    session.repair(mode)
    assert find_violations(session.context().messages, get_policy("openai_chat")) == []
    assert session.repair(mode).status == "nothing"
    session.uncompact()
    assert find_violations(session.context().messages, get_policy("openai_chat"))


@pytest.mark.parametrize(
    ("message", "left"),
    [
        (
            {"role": "assistant", "content": "text", "tool_calls": call("x")["tool_calls"]},
            {"role": "assistant", "content": "text"},
        ),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "x"}},
            None,
        ),
        (
            {"type": "ai", "data": {"content": "t", "tool_calls": [{"id": "x", "name": "f"}]}},
            {"type": "ai", "data": {"content": "t"}},
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"},
                                              {"type": "tool_use", "id": "x", "name": "f"}]},
            None,
        ),
        (
            {"role": "model", "parts": [{"text": "t"}, {"functionCall": {"name": "x"}}]},
            {"role": "model", "parts": [{"text": "t"}]},
        ),
    ],
)  # fmt: skip
def test_a_call_is_taken_out_wherever_it_is_written(db, message, left):
    session = db.session("chat")
    session.extend([user(), message, user("well?")])
    assert [mask.message for mask in session.repair().masks] == [left]


def test_only_the_orphan_of_a_mixed_message_goes(db):
    session = db.session("claude", policy="anthropic", orphans="keep")
    text = {"type": "text", "text": "and?"}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    answers = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ("lost", "a")]
    split = {"role": "assistant", "content": [use, {**use, "id": "b"}]}
    session.extend([user(), {"role": "assistant", "content": [use]}])
    session.append({"role": "user", "content": [*answers, text]})
    session.append(split)
    session.append({"role": "user", "content": [answers[1]]})
    session.append({"role": "user", "content": [{**answers[1], "tool_use_id": "b"}]})
    done = session.repair()
    assert ("merged", 4) in actions(done.repairs)
    assert [mask.message for mask in done.masks] == [
        {"role": "user", "content": [answers[1], text]}
    ]
    assert session.repair().status == "nothing"


def test_reasoning_goes_with_its_call(db):
    session = db.session("responses", policy="openai_responses")
    program = {"type": "program", "call_id": "p", "id": "prog"}
    child = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    child["caller"] = {"type": "program", "caller_id": "p"}
    session.extend([user(), {"type": "reasoning", "id": "r", "summary": []}, program, child])
    session.append({"type": "function_call_output", "call_id": "c", "output": "ok"})
    session.append(user("well?"))
    session.repair()
    assert session.context().messages == [user(), user("well?")]
    assert session.context().repairs == ()


# --- time travel ----------------------------------------------------------------------------------


def test_what_a_mask_rests_on_may_be_undone(broken):
    broken.repair()
    broken.rewind(6)
    context = broken.context()
    assert result("a", "old") in context.messages
    assert [mask.seq for mask in broken.masks()] == [3, 4]
    broken.rewind(4)
    assert broken.context().messages[-1] == BROKEN[3]
    broken.append(result("b"))
    assert broken.context().messages[-1] == result("b")
    broken.append(user("next"))
    assert actions(broken.repair().repairs) == [("dropped", 4)]


def test_forks_and_uncompact(broken, open_db):
    before = broken.context()
    broken.repair()
    same, early = broken.fork("same"), broken.fork("early", at=4)
    assert same.context() == broken.context()
    early.extend([result("a"), result("b")])  # under seqs that the origin's repair rests on
    assert early.context().messages == [*BROKEN[:2], call("a", "b"), result("a"), result("b")]
    assert [mask.seq for mask in early.masks()] == [3]
    assert open_db().session("chat").context() == broken.context()
    assert broken.uncompact()
    assert broken.context() == before
    assert same.repair().status == "nothing"


def test_a_repair_keeps_the_summary_and_the_masks_before_it(db):
    session = db.session("chat", orphans="keep")
    session.extend([*turns(4), call("a"), result("a"), *BROKEN[1:]])
    session.compact(lambda _: "so far", keep_last=10)
    session.repair()
    context = session.context()
    assert context.summary == "so far"
    assert session.compact(lambda _: "more", keep_last=4).status == "summarized"
    assert session.repair().status == "nothing"
    assert [view.repair for view in session.views()] == [None, "drop", "drop"]


def test_a_policy_mends_what_it_keeps(db):
    policy = memcore.CompactionPolicy(
        name="mending", stages=(memcore.Stage(keep=memcore.Keep(last_items=9)),), repair="drop"
    )
    session = db.session("chat", orphans="keep", compaction=policy)
    session.extend([*turns(6), *BROKEN[1:]])
    done = session.compact(lambda _: "so far")
    assert {mask.action for mask in done.plan.masks} >= {"dropped", "superseded"}
    context = session.context()
    assert {action for action, _ in actions(context.repairs)} == {"hoisted"}
    assert session.repair("drop").status == "nothing"
    assert messages_of(session) == [*turns(6), *BROKEN[1:]]


def test_a_result_that_comes_while_a_policy_summarizes_is_not_lost(db):
    policy = memcore.CompactionPolicy(
        stages=(memcore.Stage(keep=memcore.Keep(last_items=4)),), repair="drop"
    )
    session = db.session("chat", compaction=policy)
    session.extend([*turns(6), call("late"), user("well?")])

    def slow(_: memcore.SummaryRequest) -> str:
        session.append(result("late", "at last"))
        return "so far"

    assert session.compact(slow).status == "summarized"
    assert result("late", "at last") in session.context().messages


def test_an_export_takes_a_repair_along(broken, open_db, path, tmp_path):
    broken.repair()
    lines = tmp_path / "x.jsonl"
    run = CliRunner().invoke
    assert run(app, ["export", "--all", "--store", str(path), "--to", str(lines)]).exit_code == 0
    other = tmp_path / "other.memcore"
    assert run(app, ["import", str(lines), "--store", str(other)]).exit_code == 0
    session = open_db(path=other).session("chat")
    assert session.context() == broken.context()
    assert session.repair().status == "nothing"
    session.rewind(6)
    assert result("a", "old") in session.context().messages


def test_a_mask_over_a_repair_rests_on_the_same(db):
    session = db.session("chat", orphans="keep")
    calls = call("a", "b")
    calls["tool_calls"][0]["function"]["arguments"] = json.dumps({"text": "x " * 400})
    session.extend([user(), calls, result("a", "y " * 400), user("go on")])
    session.abandon("b")  # an open call would be left alone by reducers
    session.repair()
    reducer = ClearResults(keep_last=0, clear_arguments=True)
    stage = memcore.Stage(keep=None, reducers=(reducer,))
    session.compact(policy=memcore.CompactionPolicy(stages=(stage,)))
    assert session.context().messages[1] == call("a")
    session.rewind(3)
    assert session.context().messages[1] == calls


# --- other doors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "Drop", None, 1, "orphans"])
def test_an_unknown_mode_is_refused(broken, mode):
    with pytest.raises(memcore.InvalidOptionError, match="mode"):
        broken.repair(mode)


def test_options_are_checked(broken):
    with pytest.raises(memcore.InvalidOptionError):
        broken.repair(close_open="yes")
    with pytest.raises(memcore.InvalidOptionError):
        broken.repair(plan=1)


def test_repair_with_await(path):
    async def run() -> tuple[memcore.RepairResult, memcore.RepairResult]:
        async with await memcore.aio.open(path) as db:
            session = db.session("chat", orphans="keep")
            await session.extend(BROKEN)
            return await session.repair(plan=True), await session.repair()

    planned, done = asyncio.run(run())
    assert (planned.status, done.status) == ("planned", "repaired")
    assert planned.repairs == done.repairs


def test_repair_from_the_command_line(broken, path):
    def run(*options: str) -> Any:
        command = ["repair", "chat", "--store", str(path), *options]
        return CliRunner().invoke(app, command, env={"MEMCORE_STORE": None})

    assert run().exit_code == ExitCode.REFUSED
    assert run("--yes", "--dry-run").exit_code == ExitCode.USAGE
    assert "orphan" in run("--dry-run").stdout
    assert broken.views() == []
    found = json.loads(run("--yes", "--json").stdout)
    assert (found["command"], found["status"], found["view"]) == ("repair", "repaired", 1)
    assert run("--yes").stdout == "nothing to repair\n"
    assert run("--yes", "--mode", "mend").exit_code == ExitCode.USAGE


# --- any history ----------------------------------------------------------------------------------


def wrong_under(policy: str, shown: list[Any], history: list[Any]) -> list[Any]:
    """What is illegal in ``shown``; under ``seed`` by OpenAI Chat's rules, but for long ids."""
    if policy != "seed":
        return found_wrong(shown, plain(history), policy)
    found = found_wrong(shown, plain(history), "openai_chat")
    return [each for each in found if each[1] != "a call id that is too long"]


def stored(db: memcore.Database, policy: str, history: list[Any]) -> memcore.Session:
    session = db.session("chat", policy=policy, orphans="keep", shape="keep")
    with session.batch() as batch:
        for item in history:
            if not isinstance(item, Event):
                batch.append(json.loads(json.dumps(item)))
            elif not item.abandons:
                batch.record("note", 1)
    if any(isinstance(item, Event) and item.abandons for item in history) and session.open_calls:
        session.abandon(session.open_calls[0].call_id)
    return session


@few
@given(st.data(), st.sampled_from(tuple(POLICIES)), st.sampled_from(("drop", "synthesize")))
def test_any_history_is_mended_once_and_stays_legal(data, policy, mode):
    fmt = "openai_chat" if policy == "seed" else policy
    history = data.draw(strategies.histories(fmt, orderly=data.draw(st.booleans())))
    more = data.draw(strategies.histories(fmt, orderly=True))
    shares = data.draw(st.lists(st.integers(1, 100), min_size=2, max_size=3))
    with memcore.open(":memory:", durability="none", allow_unsafe=True) as db:
        session = stored(db, policy, history)
        if data.draw(st.booleans()):
            session.compact(keep_last=data.draw(st.integers(1, 8)))
        before, log = session.context(), list(session)
        done = session.repair(mode)
        context = session.context()
        assert not {each.action for each in context.repairs} & MENDED[mode]
        assert session.repair(mode).status == "nothing"
        assert list(session) == log
        if done.status == "repaired":
            assert session.uncompact()
            assert session.context() == before
            session.repair(mode)
        session = stored(db, policy, more)
        for share in (*shares, 100):
            whole = session.context()
            found = attempt(session.context, max(1, whole.tokens * share // 100))
            if isinstance(found, memcore.ContextOverflowError):
                found = session.context(found.needed_tokens)
            if done.status == "repaired" or policy != "seed":
                assert wrong_under(policy, found.messages, history + more) == []
        assert db.check() == []


@few
@given(st.data(), st.sampled_from(tuple(POLICIES)))
def test_any_compaction_may_mend_what_it_keeps(data, policy):
    fmt = "openai_chat" if policy == "seed" else policy
    history = data.draw(strategies.histories(fmt))
    rule = memcore.CompactionPolicy(
        stages=(memcore.Stage(keep=memcore.Keep(last_items=data.draw(st.integers(1, 8)))),),
        repair="drop",
    )
    with memcore.open(":memory:", durability="none", allow_unsafe=True) as db:
        session = stored(db, policy, history)
        if session.compact(policy=rule).view is None:
            return
        context = session.context()
        assert not {each.action for each in context.repairs} & MENDED["drop"]
        assert wrong_under(policy, context.messages, history) == []


@pytest.mark.parametrize("mode", ["drop", "synthesize"])
def test_events_count_in_no_figure_of_a_repair(db, mode) -> None:
    """What gives a call up is an event, which no context shows."""
    session = db.session("figures")
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    session.append({"role": "user", "content": "hello"})
    session.append({"role": "assistant", "content": None, "tool_calls": [call]})
    before = session.repair(mode, plan=True, close_open=True).tokens_before
    done = session.repair(mode, close_open=True)
    view = session.views()[-1]
    assert done.tokens_before == view.tokens_before == before
    assert done.tokens_after == view.tokens_after
    again = session.repair(mode, plan=True)
    assert again.tokens_before == again.tokens_after <= before
