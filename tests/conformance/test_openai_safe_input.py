"""What a model receives through the safe callbacks."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Runner, function_tool
from agents.memory.session_settings import SessionSettings
from agents.run_config import CallModelData, ModelInputData
from agents.run_internal.items import (
    deduplicate_input_items_preferring_latest,
    drop_orphan_function_calls,
)
from agents.run_internal.session_persistence import prepare_input_with_session
from agents.testing import ScriptedModel, assistant_message, function_call
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import memcore
import strategies
from agents_sdk import (
    Item,
    ListSession,
    agent_of,
    call,
    output,
    quiet,
    said,
    sent,
    thought,
    user,
)
from legality import found_wrong, plain
from memcore.adapters.openai_agents import safe_call_model_input_filter, safe_session_input_callback
from messages import illegal
from oracle import RESULT, SYSTEM, USER, classify

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
few = settings(
    max_examples=800 if LONG else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
CALLBACK: dict[str, Any] = {"session_input_callback": safe_session_input_callback}
FILTER: dict[str, Any] = {"call_model_input_filter": safe_call_model_input_filter}
WAYS = [CALLBACK, FILTER, {**CALLBACK, **FILTER}]


def prepared(history: list[Item], new: list[Item], callback: Any) -> tuple[list[Item], list[Item]]:
    """What the SDK makes of a session's items and a run's input: what it sends, what it stores."""
    return asyncio.run(prepare_input_with_session(new, ListSession(history), callback, None))


def filtered(items: list[Item], how: Any = safe_call_model_input_filter) -> list[Item]:
    """A filter's work, and what the SDK does behind it."""
    asked = CallModelData(ModelInputData(items, "be kind"), agent=None, context=None)  # type: ignore[arg-type]
    return deduplicate_input_items_preferring_latest(how(asked).input)


def lawful(items: list[Item]) -> list[Item]:
    """The items, which are legal, and of which no id of a call comes twice."""
    assert illegal(items, "openai_responses") == []
    assert memcore.validate(items, "openai_responses") == []
    assert_unique(items)
    return items


def assert_unique(items: list[Item]) -> None:
    """No two items are one for the SDK, which would drop one of them."""
    assert deduplicate_input_items_preferring_latest(items) == items


def short(items: list[Item]) -> list[str]:
    """One word an item."""
    return [i.get("call_id") or i.get("id") or i.get("role") or i["type"] for i in items]


# --- the ten holes --------------------------------------------------------------------------------

TURN = [user(), thought("rs_1"), call("c1", item_id="fc_1"), output("c1"), said("a", item_id="m1")]


def cut_tail(kept: int) -> Any:
    return lambda history, new: history[-kept:] + new


@pytest.mark.parametrize("way", WAYS)
def test_1_a_limit_of_the_session_leaves_no_orphan(way):
    for limit in range(1, len(TURN) + 1):
        session = ListSession(TURN)
        lawful(sent(session, session_settings=SessionSettings(limit=limit), **way))
        assert session.added[0] == [user("and now?")]


@pytest.mark.parametrize("kept", range(1, 6))
def test_2_the_documents_own_callback_is_made_safe_by_the_filter(kept):
    got = lawful(sent(ListSession(TURN), session_input_callback=cut_tail(kept), **FILTER))
    assert got[-1] == user("and now?")
    assert any(i.get("type") == "function_call" for i in got) == (kept >= 4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kept", range(1, 6))
def test_3_a_session_that_trims_by_itself_is_made_safe(way, kept):
    lawful(sent(ListSession(TURN, trim=kept), **way))


@pytest.mark.parametrize("way", WAYS)
def test_4_what_lost_its_reasoning_is_not_sent_as_if_it_had_it(way):
    got = sent(ListSession(TURN, trim=3), **way)
    assert short(got) == ["m1", "user"]  # said behind an output: a response of its own
    alone = [thought("rs_1"), said("a", item_id="msg_1")]
    got = sent(ListSession([user(), *alone], trim=1), **way)
    assert got[0]["content"][0]["text"] == "a"
    assert "id" not in got[0]
    got = sent(ListSession([user(), *alone], trim=2), **way)
    assert short(got) == ["rs_1", "msg_1", "user"]


@pytest.mark.parametrize("way", WAYS)
def test_4_calls_that_no_provider_knows_by_id_stay(way):
    kept = [call("c1"), output("c1"), said("a")]
    assert sent(ListSession(kept), **way)[:-1] == kept
    scripted = [call("c1", item_id="c1"), output("c1"), said("a", item_id="scripted-message")]
    assert sent(ListSession(scripted), **way)[:-1] == scripted


@pytest.mark.parametrize("way", WAYS)
def test_5_reasoning_that_nothing_follows_is_not_sent(way):
    history = [user(), said(), user(), thought("rs_1"), user("hm"), thought("rs_2")]
    assert short(lawful(sent(ListSession(history), **way))) == ["user", "assistant", *["user"] * 3]


@pytest.mark.parametrize("way", WAYS)
def test_6_an_approval_without_its_request_is_not_sent(way):
    asks = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "x", "arguments": "{}"}
    asks["server_label"] = "s"
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    called = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "name": "x"}
    called |= {"arguments": "{}", "server_label": "s", "output": "y"}
    history = [user(), asks, answer, called, said()]
    assert sent(ListSession(history), **way)[:-1] == history
    for kept in (2, 3):
        assert lawful(sent(ListSession(history, trim=kept), **way))[:-1] == [said()]


@pytest.mark.parametrize("way", WAYS)
def test_7_a_call_id_that_comes_again_keeps_both_pairs_whole(way):
    history = [
        *(user(), call("c0"), output("c0", "one"), said()),
        *(user(), call("c0"), output("c0", "two"), said()),
    ]
    session = ListSession(history)
    if way is FILTER:  # the SDK has put them together before the filter sees them
        lawful(sent(session, **way))
        return
    got = lawful(sent(session, **way))
    assert [i["output"] for i in got if "output" in i] == ["one", "two"]
    assert [i.get("type") for i in got[5:7]] == ["function_call", "function_call_output"]
    assert session.items[: len(history)] == history
    assert session.added[0] == [user("and now?")]


def test_7_also_when_the_model_itself_repeats_it_in_run_after_run():
    session = ListSession()
    for n in range(4):
        asked = function_call("weather", {"city": str(n)}, call_id="c0")
        model = ScriptedModel([[asked], [assistant_message("so")]])
        config = quiet(**CALLBACK, **FILTER)
        asyncio.run(Runner.run(agent_of(model), f"q{n}", session=session, run_config=config))
        for made in model.calls:
            lawful(made.input)
        outputs = [i["output"] for i in model.calls[-1].input if "output" in i]
        assert outputs == [f"18 degrees in {m}" for m in range(n + 1)]
    assert len([i for i in session.items if i.get("call_id") == "c0"]) == 8


@pytest.mark.parametrize("way", WAYS)
def test_8_an_output_before_its_call_is_not_sent(way):
    history = [user(), output("c1"), call("c1"), said()]
    got = lawful(sent(ListSession(history), **way))
    assert got[-1] == user("and now?")


@pytest.mark.parametrize("way", WAYS)
def test_9_no_half_of_a_parallel_group_is_sent(way):
    group = [thought("rs_1"), call("a", item_id="fc_a"), call("b", item_id="fc_b")]
    history = [user(), *group, output("a"), output("b"), said()]
    for kept in range(1, len(history) + 1):
        got = lawful(sent(ListSession(history, trim=kept), **way))
        names = {i["call_id"] for i in got if i.get("type") == "function_call"}
        assert names in (set(), {"a", "b"})
    half = [user(), call("a"), call("b"), output("a"), user("never mind"), said()]
    if way is not FILTER:
        got = lawful(sent(ListSession(half), **way))
        assert {i["call_id"] for i in got if i.get("type") == "function_call"} == {"a", "b"}


def test_10_the_sdk_finds_nothing_to_drop_which_is_what_takes_it_quadratic_time():
    history = [user(), *(thought(f"rs_{n}") for n in range(20_000)), call("c1"), user("hm")]
    history += [*(thought(f"rs_{n}") for n in range(20_000, 40_000)), user()]
    shown = safe_session_input_callback(history, [user()])
    assert drop_orphan_function_calls(shown) == shown
    assert lawful(shown)[-2] == user()


# --- what is stored, and what must not be lost ----------------------------------------------------


def test_the_new_input_is_stored_alone_and_whatever_it_holds():
    history = [user(), call("c0"), output("c0"), call("open"), said(), user(), call("c0")]
    new = [user("a"), thought("rs_9"), output("c0"), output("lost"), call("mine"), user("b")]
    asked, stored = prepared(history, new, safe_session_input_callback)
    assert stored == new
    assert [item for item in asked if item in new] == new


def test_an_approval_that_is_pending_survives_until_it_is_answered():
    history = [user(), call("a"), call("b")]
    assert safe_session_input_callback(copy.deepcopy(history), []) == history
    asked, stored = prepared(history, [output("b"), output("a")], safe_session_input_callback)
    assert asked == [*history, output("b"), output("a")]
    assert stored == [output("b"), output("a")]


def test_a_call_far_back_that_the_new_input_answers_survives_any_budget():
    history = [user("x" * 400), call("a"), *(said("y" * 400) for _ in range(20))]
    tight = safe_session_input_callback(budget_tokens=50)
    asked, _ = prepared(history, [output("a")], tight)
    assert lawful(asked)[-1] == output("a")
    assert call("a") in asked


def test_what_a_shell_output_answers_by_id_stays():
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed"}
    shell["action"] = {"type": "exec", "command": ["ls"], "env": {}}
    answer = {"type": "local_shell_call_output", "id": "lsh_1", "output": "{}"}
    asked, stored = prepared([user(), shell, answer], [user()], safe_session_input_callback)
    assert asked == [user(), shell, {**answer, "call_id": "c1"}, user()]
    assert stored == [user()]


def test_an_abandoned_call_is_answered_for_the_model_and_not_in_the_session():
    session = ListSession([user(), call("c1")])
    got = lawful(sent(session, "never mind", **CALLBACK))
    assert short(got) == ["user", "c1", "c1", "user"]
    assert session.items[:3] == [user(), call("c1"), user("never mind")]
    assert session.added[0] == [user("never mind")]


def test_a_history_saved_twice_is_legal():
    once = [*TURN[:-1], said("a", item_id="msg_1")]
    asked, stored = prepared([*once, *once], [user()], safe_session_input_callback)
    lawful(asked)
    ids = [item["id"] for item in asked if "id" in item]
    assert len(ids) == len(set(ids))
    assert stored == [user()]


def test_one_object_twice_in_the_history_is_two_items():
    pair = [call("c0"), output("c0")]
    combined = safe_session_input_callback([user(), *pair, said(), user(), *pair, said()], [user()])
    assert [i["call_id"] for i in combined if "call_id" in i] == ["c0", "c0", "c0_2", "c0_2"]


# --- budgets --------------------------------------------------------------------------------------

LONG_TALK = [item for n in range(50) for item in (user(f"{n} " + "word " * 40), said("so " * 40))]


def tokens(items: list[Item]) -> int:
    return memcore.fit(items, policy="openai_responses", counter="bytes/4").tokens


def test_a_callback_with_a_budget_sends_the_latest_turns_that_fit():
    way = safe_session_input_callback(budget_tokens=1000, counter="bytes/4")
    got = lawful(sent(ListSession(LONG_TALK), session_input_callback=way))
    assert 700 < tokens(got) <= 1000
    assert got[:-1] == LONG_TALK[-len(got) + 1 :]
    assert got[0]["role"] == "user"


def test_a_filter_with_a_budget_counts_the_instructions():
    way = safe_call_model_input_filter(budget_tokens=1000, counter="bytes/4")
    asked = CallModelData(ModelInputData(LONG_TALK, "x" * 2000), None, None)  # type: ignore[arg-type]
    assert tokens(way(asked).input) <= 500
    assert way(asked).instructions == "x" * 2000


def test_new_calls_that_share_an_id_are_sent_once_and_as_they_are():
    first, second = ({**call("a"), "arguments": f'{{"n":{n}}}'} for n in (1, 2))
    new = [first, second, output("a"), user("next")]
    asked = safe_session_input_callback([user()], new)
    assert [item for item in asked if item in new] == new


def test_a_budget_that_cannot_be_met_is_a_warning_and_the_smallest_window(caplog):
    new = [user("x" * 4000)]
    way = safe_session_input_callback(budget_tokens=100, counter="bytes/4")
    with caplog.at_level(logging.WARNING, "memcore.openai_agents"):
        asked, stored = prepared(LONG_TALK, new, way)
    assert asked == stored == new
    assert "smallest legal window needs" in caplog.text


def test_a_turn_that_is_too_large_keeps_its_question_and_its_latest_steps():
    steps = [part for n in range(40) for part in (call(f"k{n}"), output(f"k{n}", "word " * 40))]
    items = [*LONG_TALK, user("the task"), *steps]
    way = safe_call_model_input_filter(budget_tokens=500, counter="bytes/4")
    got = lawful(filtered(items, way))
    assert got[0] == user("the task")
    assert got[1:] == steps[-len(got) + 1 :]
    assert 350 < tokens(got) <= 500


def test_calls_that_wait_survive_in_a_turn_that_is_too_large(caplog):
    runs = {"type": "program", "id": "prog_1", "call_id": "p", "code": "", "fingerprint": "f"}
    items = [user("the task"), runs, said("wait"), call("b"), output("b", "word " * 400)]
    got = filtered(items, safe_call_model_input_filter(budget_tokens=50, counter="bytes/4"))
    assert short(got) == short(items)  # the program's provider may still go on with it
    assert got[:-1] == items[:-1]
    assert "word" in got[-1]["output"]
    assert "smallest legal window" in caplog.text


def test_a_compaction_outlives_what_it_replaces():
    summary = {"type": "compaction", "id": "cmp_1", "encrypted_content": "z" * 400}
    way = safe_session_input_callback(budget_tokens=1000, counter="bytes/4")
    asked, _ = prepared([*LONG_TALK[:20], summary, *LONG_TALK], [user()], way)
    assert asked[0] == summary
    assert tokens(asked) <= 1000
    assert asked[1]["role"] == "user"


def test_leading_instructions_stay():
    rule = {"role": "developer", "content": "never lie"}
    way = safe_session_input_callback(budget_tokens=300, counter="bytes/4")
    asked, _ = prepared([rule, *LONG_TALK], [user()], way)
    assert asked[0] == rule
    assert tokens(asked) <= 300


@pytest.mark.parametrize("options", [{"budget_tokens": 0}, {"reserve_tokens": -1}, {"counter": 3}])
@pytest.mark.parametrize("made", [safe_session_input_callback, safe_call_model_input_filter])
def test_a_budget_that_is_none_is_refused_at_once(made, options):
    with pytest.raises(memcore.InvalidOptionError):
        made(**options)


# --- servers that keep the conversation -----------------------------------------------------------


def test_outputs_alone_go_to_a_server_that_knows_their_calls():
    from agents_sdk import weather

    steps = [[function_call("weather", {"city": "Rome"}, call_id="c1")], [assistant_message("so")]]
    model = ScriptedModel(steps)
    config = quiet(**FILTER)
    agent = agent_of(model, weather)
    asyncio.run(Runner.run(agent, "hi", previous_response_id="resp-1", run_config=config))
    assert [i["type"] for i in model.calls[-1].input] == ["function_call_output"]


# --- any history at all ---------------------------------------------------------------------------

drawn = st.one_of(
    strategies.histories("openai_responses"),
    strategies.histories("openai_responses", orderly=True),
).map(plain)
budgets = st.sampled_from((None, None, 40, 200, 800))


def with_ids(items: list[Item]) -> list[Item]:
    """With ids of their own, and nothing that is no item of Responses."""
    found = []
    for at, item in enumerate(items):
        known = isinstance(item.get("type"), str) or item.get("role") in ("user", "developer")
        found.append(item if known else {"role": "user", "content": str(at)})
        if item.get("type") == "reasoning":
            found[-1] = {**item, "id": f"rs_{at}"}
    return found


def without_alias(item: Item) -> Item:
    """A shell's output without the second id that the SDK needs."""
    shell = item.get("type") == "local_shell_call_output"
    return {**item, "call_id": ""} if shell else item


LONG_ID = "c" * 5_000


@few
@given(drawn, drawn, budgets)
@example(
    [{"type": "function_call", "call_id": LONG_ID}],
    [{"type": "function_call_output", "call_id": LONG_ID, "output": "ok"}],
    None,
)
@example(
    [{"type": "function_call", "call_id": "c0"}, thought("rs_1")],
    [{**output("c0"), "type": "custom_tool_call_output"}, call("c0")],
    None,
)
def test_the_sdk_sends_a_legal_list_and_stores_the_new_input_alone(past, new, budget):
    past = with_ids(past)
    new = [*(item for item in with_ids(new)[:4] if item.get("call_id") != ""), user("last")]
    callback = safe_session_input_callback(budget_tokens=budget, counter="bytes/4")
    before = json.dumps([past, new])
    asked, stored = prepared(past, new, callback)
    assert list(map(without_alias, stored)) == list(map(without_alias, new))
    assert json.dumps([past, new]) == before
    wrong = [at for at, *_ in found_wrong(asked, [*past, *new], "openai_responses")]
    fresh = [json.dumps(item) for item in new]
    # Only the new input may be wrong, or what it makes wrong: the id of a call before it that it
    # answers, since the callback cannot shorten both, or reasoning that it cuts off from its item.
    answered = [json.dumps(item["call_id"]) for item in new if "call_id" in item]
    for at in wrong:
        item = asked[at]
        cut_off = item.get("type") == "reasoning" and at + 1 in wrong
        at_fault = asked[at + 1] if cut_off else item
        assert json.dumps(at_fault) in fresh or json.dumps(item.get("call_id")) in answered
    last = filtered(asked)
    assert found_wrong(last, asked, "openai_responses") == []
    assert_unique(last)


SEARCHED = [{"type": "web_search_call", "id": f"ws_{n}", "status": "completed"} for n in (1, 2)]
OF_NO_PROGRAM = [
    {"type": "function_call", "call_id": "c1", "caller": {"type": "program", "caller_id": "p1"}},
    {"type": "function_call_output", "call_id": "c1", "output": "18"},
]
DEVELOPER = {"role": "developer", "content": "be brief"}
CALLED = [
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "w", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "18"},
]


@pytest.mark.parametrize("budget", [None, 200])
@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([{"type": "reasoning", "summary": []}, DEVELOPER, SEARCHED[0]], [DEVELOPER]),
        ([SEARCHED[0], DEVELOPER, SEARCHED[1]], [DEVELOPER]),
        ([*CALLED, SEARCHED[0]], []),
        ([*OF_NO_PROGRAM, DEVELOPER, SEARCHED[0]], [DEVELOPER]),
        (
            [DEVELOPER, {"type": "reasoning", "id": "rs_1", "summary": []}, SEARCHED[0]],
            [DEVELOPER, {"type": "reasoning", "id": "rs_1", "summary": []}, SEARCHED[0]],
        ),
    ],
    ids=[
        "reasoning alone",
        "a response that goes",
        "a call that goes",
        "a call of no program",
        "with its reasoning",
    ],
)
def test_what_is_first_when_others_have_gone_is_judged_as_the_first(items, shown, budget):
    way = safe_call_model_input_filter(budget_tokens=budget, counter="bytes/4")
    got = filtered([*items, user("hi")], way)
    assert got == [*shown, user("hi")]
    assert filtered(got, way) == got


NAMELESS = {"type": "tool_search_call", "call_id": None, "execution": "client", "arguments": {}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
OF_NO_CALL = {"type": "function_call_output", "call_id": "", "output": "x"}
UNNAMED = {"type": "function_call", "name": "f", "arguments": "{}"}
CALLED = {"type": "function_call", "call_id": "f", "name": "f", "arguments": "{}"}
FOUND = {
    "type": "tool_search_output",
    "call_id": None,
    "execution": "client",
    "tools": [],
    "status": "completed",
}


@few
@example([user("hi"), NAMELESS, THOUGHT, {**NAMELESS}], None, False)
@example([user("hi"), NAMELESS, {**NAMELESS}, THOUGHT, {**NAMELESS}], None, False)
@example([user("hi"), NAMELESS, {**NAMELESS}, OF_NO_CALL, {**NAMELESS}, FOUND], None, False)
@example([user("hi"), NAMELESS, CALLED, OF_NO_CALL, {**NAMELESS}], None, False)
@example([user("hi"), NAMELESS, CALLED, OF_NO_CALL, {**NAMELESS}, FOUND], None, False)
@example([user("hi"), NAMELESS, {**NAMELESS}, FOUND, OF_NO_CALL, {**NAMELESS}], None, False)
@example([user("hi"), NAMELESS, OF_NO_CALL, CALLED, UNNAMED], None, False)
@example([user("hi"), NAMELESS, {**OF_NO_CALL, "call_id": "c9"}, CALLED, UNNAMED], None, False)
@example([user("hi"), NAMELESS, THOUGHT, OF_NO_CALL, CALLED, UNNAMED], None, False)
@given(drawn, budgets, st.booleans())
def test_a_filter_shows_a_legal_list_once_and_for_all(items, budget, whole):
    items = with_ids(items) if whole else items
    way = safe_call_model_input_filter(budget_tokens=budget, counter="bytes/4")
    got = filtered(items, way)
    if all(classify(item).kind == RESULT for item in items):
        return
    assert found_wrong(got, items, "openai_responses") == []
    assert_unique(got)
    if got and classify(got[0]).kind in (USER, SYSTEM):  # else it may look cut off
        assert filtered(got, safe_call_model_input_filter) == got


# --- outputs that are larger than the budget ------------------------------------------------------

HUGE = "line of an output that nobody asked to be this long\n" * 4_000
BUDGET = 2_000


def within(items: list[Item], budget: int = BUDGET) -> list[Item]:
    """What a filter with a budget makes of the items: legal, and no more than that."""
    got = lawful(filtered(items, safe_call_model_input_filter(budget_tokens=budget)))
    counted = memcore.get_counter(None)
    assert sum(counted.count_message(i, json.dumps(i).encode()) for i in got) <= budget
    return got


def shell_output() -> list[Item]:
    stream = {"stdout": HUGE, "stderr": HUGE, "outcome": {"type": "exit", "exit_code": 0}}
    action = {"commands": ["ls"]}
    return [
        {"type": "shell_call", "call_id": "c1", "action": action, "status": "completed"},
        {"type": "shell_call_output", "call_id": "c1", "output": [stream]},
    ]


@pytest.mark.parametrize(
    "step",
    [
        [call("c1"), output("c1", HUGE)],
        [call("c1"), output("c1", [{"type": "input_text", "text": HUGE}] * 2)],
        [call("c1"), call("c2"), output("c1", HUGE), output("c2", HUGE * 2)],
        [call("c1"), call("c2"), output("c1", HUGE), output("c2", "short")],
        [call(f"c{n}") for n in range(20)] + [output(f"c{n}", HUGE) for n in range(20)],
        [call("c1"), output("c1", '"\\\n' * 30_000)],
        shell_output(),
    ],
)
def test_an_output_larger_than_the_budget_is_shortened(step, caplog):
    before = copy.deepcopy(step)
    items = [user("earlier"), said("yes"), user("now"), *step]
    got = within(items)
    assert step == before
    assert short(got) == ["user", *short(step)]
    assert "smallest legal window" not in caplog.text
    assert any("left out" in str(item.get("output")) for item in got)
    kept = [item for item in got if item.get("output") == "short"]
    assert len(kept) == sum(item.get("output") == "short" for item in step)
    assert within(items) == got  # each call of the model sees the same


def test_an_output_of_pictures_that_is_too_large_shows_a_placeholder():
    picture = {"type": "input_image", "detail": "high", "image_url": "https://example.org/a.png"}
    got = within([user("now"), call("c1"), output("c1", [picture] * 9)], budget=400)
    assert short(got) == ["user", "c1", "c1"]
    assert got[-1]["output"] == "[cleared]"


def test_an_output_that_fits_stays_whole_and_words_of_the_user_are_never_cut(caplog):
    items = [user("now"), call("c1"), output("c1", "x " * 500)]
    assert within(items) == items
    config = safe_call_model_input_filter(budget_tokens=100)
    got = filtered([user(HUGE), call("c1"), output("c1", HUGE)], config)
    assert got[0] == user(HUGE)
    assert "smallest legal window" in caplog.text


def test_a_run_goes_on_when_a_tool_says_too_much():
    @function_tool
    def tell() -> str:
        """Tell all."""
        return HUGE

    model = ScriptedModel([[function_call("tell", {}, call_id="c1")], [assistant_message("long")]])
    session = ListSession()
    config = quiet(call_model_input_filter=safe_call_model_input_filter(budget_tokens=BUDGET))
    asyncio.run(Runner.run(agent_of(model, tell), "go", session=session, run_config=config))
    shown = [item for item in model.calls[-1].input if item.get("type") == "function_call_output"]
    stored = [item for item in session.items if item.get("type") == "function_call_output"]
    assert stored[0]["output"] == HUGE
    assert "left out" in shown[0]["output"]
    assert len(shown[0]["output"]) < len(HUGE) // 10
