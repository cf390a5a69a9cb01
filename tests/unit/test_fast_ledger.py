"""_fast.Ledger by name: the tricky cases of tool-call pairing, and its own edges."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oracle
from memcore import _fast
from oracle import CALL, EVENT, RESULT, USER, Event, Facts

SEED = bytes(range(16))
USER_START = 1 << USER


def user(text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": text}


def say(text: str = "hello") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(*ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": i, "type": "function"} for i in ids]}


def result(i: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": i, "content": "ok"}


def use(*ids: Any, thinking: bool = False) -> dict[str, Any]:
    head = [{"type": "thinking", "thinking": "hm", "signature": "s"}] * thinking
    blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
    return {"role": "assistant", "content": head + blocks}


def answer(*ids: Any, before: Any = (), after: Any = ()) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids]
    return {"role": "user", "content": [*before, *blocks, *after]}


TEXT = {"type": "text", "text": "hello"}


def item(kind: str, call_id: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": kind, **({} if call_id is None else {"call_id": call_id}), **more}


REASONING = item("reasoning", id="rs_1")


def facts_of(entry: Any) -> bytes:
    if isinstance(entry, Event):
        facts = _fast.pack_event(entry.abandons, SEED)
    else:
        facts = _fast.pack_facts(entry, SEED)
    assert facts is not None
    return facts


def ledger(*entries: Any, tokens: int = 10, **policy: Any) -> _fast.Ledger:
    made = _fast.Ledger(**policy)
    for entry in entries:
        made.push(facts_of(entry), tokens)
    return made


def regular(made: _fast.Ledger) -> list[int]:
    return [i for i in range(len(made)) if not made.irregular_from(i)]


# --- ids ------------------------------------------------------------------------------------------


def test_an_id_twice_in_one_message_is_one_call():
    made = ledger(user(), call("c1", "c1"), result("c1"))
    assert made.open_count == 0
    assert made.safe_cuts() == [0, 1]
    assert regular(made) == [0, 1]


def test_an_id_that_comes_again_over_turns_binds_to_the_last_call():
    made = ledger(call("c1"), result("c1"), user(), call("c1"), result("c1"))
    assert made.safe_cuts() == [0, 2, 3]
    assert made.find_call(0, "c1", SEED) == (3, [4], False)
    assert made.open_count == 0


def test_an_open_call_is_shadowed_by_a_later_one_with_its_id():
    made = ledger(call("c1"), user(), call("c1"), result("c1"))
    assert made.open_positions() == [0]
    assert made.safe_cuts() == [0, 1, 2]


def test_an_id_that_comes_again_is_irregular_because_some_formats_refuse_it():
    made = ledger(call("c1"), result("c1"), user(), call("c1"), result("c1"))
    assert regular(made) == [2, 3]


@pytest.mark.parametrize("empty", ["", None, 7])
def test_an_empty_id_is_no_id(empty):
    made = ledger(call(empty), result(empty), user())
    assert made.open_count == 0
    assert made.safe_cuts() == [0, 1, 2]
    assert not made.is_dropped(1)
    assert ledger(call(empty), result(empty), orphan=2).is_dropped(1)


@pytest.mark.parametrize("size", [41, 65, 5_000])
def test_long_ids_pair(size):
    made = ledger(call("c" * size, "c" * size + "x"), result("c" * size), user())
    assert made.open_positions() == [0]
    assert made.safe_cuts() == [0, 2]


def test_ids_that_are_no_utf8_pair():
    made = ledger(call("\ud800"), result("\ud800"), result("\udfff"))
    assert made.open_count == 0
    assert made.is_dropped(2)


def test_the_same_id_in_two_classes_is_two_calls():
    made = ledger(
        item("function_call", "c1"),
        item("custom_tool_call", "c1"),
        item("custom_tool_call_output", "c1"),
    )
    assert made.open_positions() == [0]
    made.push(facts_of(item("shell_call_output", "c1")), 10)
    assert made.is_dropped(3)
    assert made.find_call(0, "c1", SEED) == (0, [], True)
    assert made.find_call(1, "c1", SEED) == (1, [2], False)
    assert made.find_call(3, "c1", SEED) is None


def test_an_apply_patch_as_custom_tool_is_answered_in_its_own_class():
    made = ledger(item("apply_patch_call", "c1"), item("custom_tool_call_output", "c1"))
    assert made.is_dropped(1)
    made = ledger(item("custom_tool_call", "c1"), item("custom_tool_call_output", "c1"))
    assert made.open_count == 0


def test_an_output_without_a_call_id_stands_alone():
    made = ledger(user(), item("function_call_output", output="x"), user())
    assert made.safe_cuts() == [0, 1, 2]
    assert not made.is_dropped(1)
    assert made.tokens == 30


def test_a_local_shell_call_is_answered_by_either_id():
    for name in ({"call_id": "c1"}, {"id": "lsh_1"}):
        made = ledger(
            item("local_shell_call", "c1", id="lsh_1"), {**item("local_shell_call_output"), **name}
        )
        assert made.open_count == 0
        assert made.safe_cuts() == [0]
        assert made.find_call(2, "c1", SEED) == made.find_call(2, "lsh_1", SEED) == (0, [1], False)


# --- order and number -----------------------------------------------------------------------------


def test_parallel_results_may_come_in_any_order():
    made = ledger(user(), call("c1", "c2", "c3"), result("c3"), result("c1"), result("c2"), user())
    assert made.safe_cuts() == [0, 1, 5]
    assert regular(made) == [0, 1, 5]


def test_a_result_before_its_call_is_an_orphan():
    made = ledger(user(), result("c1"), call("c1"))
    assert made.is_dropped(1)
    assert made.open_positions() == [2]
    assert made.safe_cuts() == [0, 1, 2]
    assert regular(made) == [2]


def test_two_results_of_one_call_stay_with_it():
    made = ledger(call("c1"), result("c1"), user(), result("c1"))
    assert made.safe_cuts() == [0]
    assert made.find_call(0, "c1", SEED) == (0, [1, 3], False)
    assert regular(made) == []
    assert regular(ledger(call("c1"), result("c1"), result("c1"))) == []


def test_two_results_of_one_call_in_one_message_are_two():
    made = ledger(use("c1"), answer("c1", "c1"))
    assert made.find_call(0, "c1", SEED) == (0, [1], False)
    assert regular(made) == []
    assert ledger().push(facts_of(answer("lost", "lost")), 1) == 2


def test_a_late_result_forbids_the_cuts_between():
    made = ledger(user(), call("c1"), user(), say(), result("c1"), user())
    assert made.safe_cuts() == [0, 1, 5]
    assert regular(made) == [5]


def test_interleaved_results_keep_all_that_they_cross():
    made = ledger(call("c1"), call("c2"), result("c1"), result("c2"), user())
    assert made.safe_cuts() == [0, 4]
    assert regular(made) == [4]


def test_results_split_over_several_messages_stay_together():
    made = ledger(use("c1", "c2"), answer("c1"), answer("c2"), user())
    assert made.safe_cuts() == [0, 3]
    assert regular(made) == [3]


def test_some_results_only_is_irregular_where_one_message_must_have_them_all():
    assert regular(ledger(user(), use("c1", "c2"), answer("c1"))) == []
    assert regular(ledger(user(), use("c1", "c2"), answer("c2", "c1"))) == [0, 1]
    assert regular(ledger(user(), call("c1", "c2"), result("c1"))) == [0, 1]


@pytest.mark.parametrize("where", ["before", "after"])
def test_text_beside_results_pairs_but_is_irregular(where):
    made = ledger(use("c1"), answer("c1", **{where: [TEXT]}))
    assert made.open_count == 0
    assert made.safe_cuts() == [0]
    assert regular(made) == []


def test_text_and_thinking_after_tool_use_change_nothing():
    made = ledger({"role": "assistant", "content": [*use("c1")["content"], TEXT]}, answer("c1"))
    assert made.safe_cuts() == [0]
    assert regular(made) == [0]


# --- orphans and open calls -----------------------------------------------------------------------


def test_an_orphan_is_left_out_and_costs_nothing():
    made = ledger(user(), result("lost"), user(), start_mask=USER_START)
    assert (made.tokens, made.cost(1)) == (20, 10)
    assert made.is_dropped(1)
    assert made.safe_cuts() == [0, 1, 2]
    assert regular(made) == [2]


def test_an_orphan_as_the_last_item_poisons_every_cut_under_the_seed_policy():
    made = ledger(user(), say(), result("lost"), orphan=1)
    assert made.safe_cuts() == []
    assert made.cut_keep_last(1) == -1
    assert made.cut_for_budget(1_000) == -1
    made.push(facts_of(user()), 10)
    assert made.safe_cuts() == [3]


def test_push_tells_how_many_results_are_orphans():
    made = ledger(use("c1"))
    assert made.push(facts_of(answer("c1", "lost", "gone")), 10) == 2
    assert not made.is_dropped(1)
    assert made.push(facts_of(answer("lost", "gone")), 10) == 2
    assert made.is_dropped(2)
    assert made.push(facts_of(answer("lost", after=[TEXT])), 10) == 1
    assert not made.is_dropped(3)


def test_invalid_tool_calls_are_calls():
    message = {"type": "ai", "content": "", "invalid_tool_calls": [{"id": "c1", "name": "f"}]}
    made = ledger(message, user())
    assert made.open_positions() == [0]
    assert regular(made) == [1]


def test_a_call_in_flight_is_open_and_regular():
    made = ledger(user(), call("c1", "c2"), open_tokens=5)
    assert made.open_positions() == [1, 1]
    assert made.cost(0) == 20
    assert regular(made) == [0, 1]
    made.push(facts_of(result("c1")), 10)
    assert made.cost(0) == 30


def test_calls_are_unanswered_as_soon_as_something_else_follows():
    made = ledger(user(), call("c1", "c2"), open_tokens=5)
    made.push(facts_of(user()), 10)
    assert made.cost(0) == 30 + 2 * 5
    assert made.cost(2) == 10
    made.push(facts_of(result("c1")), 10)
    assert made.cost(0) == 40 + 5
    made.truncate(2)
    assert made.cost(0) == 20


def test_calls_of_their_own_wait_together():
    one = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    two, three = one | {"call_id": "c2"}, one | {"call_id": "c3"}
    output = {"type": "function_call_output", "call_id": "c1", "output": ""}
    made = ledger(user(), one, two, output, open_tokens=5)
    assert made.cost(0) == 40
    made.push(facts_of(three), 10)  # a new response: the second call was passed over
    assert made.cost(0) == 50 + 5
    assert made.copy().cost(0) == 55
    made.truncate(4)
    assert made.cost(0) == 40


def test_a_call_that_something_else_follows_is_irregular_until_the_cut_is_behind_it():
    made = ledger(user(), call("c1"), user(), call("c2"), result("c2"))
    assert made.safe_cuts() == [0, 1, 2, 3]
    assert regular(made) == [2, 3]


def test_one_call_that_is_never_answered_blocks_no_cut():
    made = ledger(call("lost"), *[user(), say()] * 50, start_mask=USER_START, open_tokens=5)
    assert made.cut_for_budget(100) == 91
    assert made.cut_for_budget(1_014) == 1
    assert made.cost(0) == 1_015


def test_abandoned_calls_pay_for_their_synthetic_results():
    keys = ((0, "c1"), (0, "c2"), (0, "gone"))
    made = ledger(user(), call("c1", "c2", "c3"), open_tokens=7)
    assert made.cost(0) == 20  # all three may still be answered
    made.push(facts_of(Event(keys)), 99)
    assert made.open_count == 1
    assert made.cost(0) == 20 + 2 * 7
    assert made.find_call(0, "c1", SEED) == (1, [2], False)
    made.push(facts_of(Event(keys)), 99)
    assert made.cost(0) == 20 + 2 * 7
    made.push(facts_of(user()), 10)
    assert made.cost(0) == 30 + 3 * 7
    made.truncate(2)
    assert (made.open_count, made.cost(0)) == (3, 20)


def test_abandoning_splits_nothing():
    made = ledger(call("c1"), user(), Event(((0, "c1"),)), user())
    assert made.safe_cuts() == [0, 1, 2, 3]


def test_a_result_after_all_binds_to_the_abandoned_call():
    made = ledger(call("c1"), Event(((0, "c1"),)), result("c1"))
    assert made.find_call(0, "c1", SEED) == (0, [1, 2], False)
    assert made.safe_cuts() == [0]


# --- formats and summaries ------------------------------------------------------------------------


def test_developer_messages_lead_like_system_messages():
    made = ledger({"role": "system"}, Event(), {"role": "developer"}, Event(), user())
    assert made.leading(oracle.SYSTEM) == 3
    assert made.leading(USER) == 0
    assert ledger().leading(0) == 0


def test_deprecated_calls_pair_by_name():
    made = ledger(
        {"role": "assistant", "function_call": {"name": "f"}},
        {"role": "function", "name": "f", "content": "ok"},
        {"role": "function", "name": "g", "content": "ok"},
    )
    assert made.open_count == 0
    assert made.is_dropped(2)
    assert made.safe_cuts() == [0, 2]


def test_a_server_tool_may_be_answered_in_a_later_response():
    ask = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s1"}]}
    found = {
        "role": "assistant",
        "content": [{"type": "web_search_tool_result", "tool_use_id": "s1"}],
    }
    made = ledger(user(), ask, found, user())
    assert made.safe_cuts() == [0, 1, 3]
    assert made.open_count == 0


def test_reasoning_call_and_output_stay_together():
    made = ledger(
        user(), REASONING, item("function_call", "c1"), item("function_call_output", "c1"), say(),
        glue=1,
    )  # fmt: skip
    assert made.safe_cuts() == [0, 1, 4]
    assert regular(made) == [0, 1, 4]
    assert ledger(user(), REASONING, say()).safe_cuts() == [0, 1, 2]


def test_a_parallel_group_shares_its_reasoning():
    made = ledger(
        user(), REASONING, item("function_call", "c1"), item("function_call", "c2"),
        item("function_call_output", "c1"), item("function_call_output", "c2"), user(), glue=1,
    )  # fmt: skip
    assert made.safe_cuts() == [0, 1, 6]
    assert regular(made) == [0, 1, 6]


def test_reasoning_belongs_to_a_message_too_and_events_do_not_part_them():
    made = ledger(user(), REASONING, Event(), say(), user(), glue=1)
    assert made.safe_cuts() == [0, 1, 4]


def test_dangling_reasoning_is_irregular():
    assert regular(ledger(user(), REASONING, user())) == [2]
    assert regular(ledger(user(), REASONING)) == []
    assert regular(ledger(user(), REASONING, say())) == [0, 1, 2]


def test_a_thinking_loop_is_whole():
    loop = [use("c1", thinking=True), answer("c1"), use("c2"), answer("c2"), say()]
    made = ledger(user(), *loop, user(), glue=2)
    assert made.safe_cuts() == [0, 1, 6]
    assert ledger(user(), *loop, user()).safe_cuts() == [0, 1, 3, 5, 6]


def test_a_thinking_loop_ends_with_what_the_user_says():
    made = ledger(use("c1", thinking=True), answer("c1"), user(), use("c2"), answer("c2"), glue=2)
    assert made.safe_cuts() == [0, 2, 3]


def test_children_stay_with_their_program():
    child = item("function_call", "c1", caller={"type": "program", "caller_id": "p1"})
    made = ledger(
        item("program", "p1"), child,
        item("function_call_output", "c1"), item("program_output", "p1"), user(),
    )  # fmt: skip
    assert made.safe_cuts() == [0, 4]
    assert regular(made) == [0, 4]
    assert made.find_call(oracle.PROGRAM, "p1", SEED) == (0, [3], False)
    assert ledger(user(), child).push(facts_of(item("function_call_output", "c1")), 1) == 0


def test_anonymous_tool_searches_pair_in_order():
    search, found = item("tool_search_call"), item("tool_search_output")
    made = ledger(search, search, found, found, user(), search, found)
    assert made.open_count == 0
    assert made.safe_cuts() == [0, 4, 5]


def calls(*names: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": n}} for n in names]}


def results(*names: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"functionResponse": {"name": n}} for n in names]}


def test_calls_by_name_bind_first_in_first_out_within_their_group():
    made = ledger(calls("f", "g", "f"), calls("f"), results("f"), results("f"), user())
    assert made.open_positions() == [0, 1]
    assert made.find_call(0x40, "f", SEED) == (1, [], True)
    made.push(facts_of(calls("f")), 10)
    made.push(facts_of(results("f")), 10)
    assert made.find_call(0x40, "f", SEED) == (5, [6], False)
    made.push(facts_of(results("f", "g")), 10)
    assert made.open_positions() == [1]
    made.truncate(4)
    assert made.open_positions() == [0, 1]
    made.truncate(3)
    made.push(facts_of(results("f")), 10)
    assert made.open_positions() == [0, 1]


def test_a_queue_of_calls_by_name_that_ran_empty_goes_on():
    made = ledger(calls("f"), Event(((0x40, "f"),)))
    assert made.find_call(0x40, "f", SEED) == (0, [1], False)
    made.push(facts_of(calls("f")), 10)
    made.push(facts_of(calls("f")), 10)
    assert made.find_call(0x40, "f", SEED) == (2, [], True)
    made.truncate(2)
    assert made.find_call(0x40, "f", SEED) == (0, [1], False)


def test_a_queue_of_calls_by_name_forgets_what_was_taken_back():
    made = ledger(calls("f"), calls("f"), results("f"))
    made.truncate(1)
    for position in (1, 2):
        assert made.push(facts_of(results("f")), 10) == 0
        assert made.find_call(0x40, "f", SEED) == (0, [1, 2][:position], False)
    made.truncate(1)
    made.push(facts_of(calls("f")), 10)
    made.push(facts_of(results("f")), 10)
    assert made.open_positions() == [1]


def test_a_run_of_calls_is_known_again_when_the_end_is_taken_back():
    made = ledger(item("function_call", "c1"), item("function_call", "c2"), user())
    made.truncate(2)
    for entry in (item("function_call_output", "c2"), say()):
        made.push(facts_of(entry), 10)
    assert made.safe_cuts() == [0, 1, 3]
    assert regular(made) == [1, 3]


def test_a_call_without_an_id_ends_a_run_of_calls():
    made = ledger(item("function_call", "c1"), item("function_call", ""), user())
    assert regular(made) == [1, 2]


def test_a_summary_as_first_item_and_two_summaries_are_ordinary_items():
    made = ledger(say("summary"), say("summary"), user(), call("c1"), result("c1"), start_mask=4)
    assert made.safe_cuts() == [0, 1, 2, 3]
    assert made.safe_cuts(starts=True) == [2]
    assert made.cut_for_budget(1_000) == 2
    assert made.cut_for_budget(1_000, starts=False) == 0


# --- events ---------------------------------------------------------------------------------------


def test_events_count_no_tokens_and_do_not_count_for_keep_last():
    made = ledger(user(), Event(), say(), Event(), Event(), user(), Event())
    assert (made.tokens, made.shown_count, len(made)) == (30, 3, 7)
    assert [made.cut_keep_last(k) for k in range(5)] == [6, 5, 2, 0, -1]
    assert [made.cut_keep_last(k) for k in (-(2**62), 2**62)] == [6, -1]


def test_an_event_is_irregular():
    assert regular(ledger(user(), Event(), user())) == [2]


# --- edges ----------------------------------------------------------------------------------------


def test_an_empty_ledger_answers():
    made = ledger()
    assert len(made) == made.tokens == made.open_count == made.shown_count == made.turns == 0
    assert made.safe_cuts() == made.open_positions() == []
    assert made.cut_for_budget(10) == made.cut_keep_last(0) == made.cut_keep_last(1) == -1
    assert made.cut_at_most(0) == 0
    assert made.is_safe(0)
    assert not made.is_safe(1)
    assert not made.irregular_from(0)
    assert made.cost(0) == made.sum_between(0, 0) == 0
    assert made.find_call(0, "c1", SEED) is None
    made.truncate(0)
    assert len(made.copy()) == 0


@pytest.mark.parametrize("far", [2**31, 2**32, 2**62, -(2**31), -(2**62)])
def test_positions_far_away_are_no_positions(far):
    made = ledger(user(), call("c1"), result("c1"), start_mask=0xFF)
    assert not made.is_safe(far)
    assert made.irregular_from(far)
    assert made.cut_at_most(far) == (3 if far > 0 else -1)
    assert made.cut_keep_last(far) == (-1 if far > 0 else 1)
    assert made.cut_for_budget(0, at_least=far) == -1
    assert made.cut_for_budget(2**62, at_least=far) == (-1 if far > 0 else 0)
    assert made.cut_for_budget(far) == (0 if far > 0 else -1)
    for question in (made.cost, made.kind_at, made.is_dropped):
        with pytest.raises(IndexError):
            question(far)
    with pytest.raises(IndexError):
        made.sum_between(0, far)
    with pytest.raises(IndexError):
        made.sum_between(2, 1)
    with pytest.raises(ValueError, match="no such length"):
        made.truncate(far)
    assert len(made) == 3


@pytest.mark.parametrize(
    "facts",
    [
        b"",
        bytes(5),
        bytes(7),
        struct.pack("<BBHH", 8, 0, 0, 0),
        struct.pack("<BBHH", 255, 0, 0, 0),
        struct.pack("<BBHH", CALL, 1, 0, 1),
        struct.pack("<BBHH", CALL, 1, 0xFFFF, 0xFFFF) + bytes(8),
        struct.pack("<BBHHQ", RESULT, 0, 0, 1, 4),
        struct.pack("<BBHHQ", EVENT, 0, 0, 1, 4),
    ],
    ids=bytes.hex,
)
def test_malformed_facts_are_refused(facts):
    made = ledger(user())
    with pytest.raises(ValueError, match="malformed"):
        made.push(facts, 1)
    page = struct.pack("<IIQH", 1, 0, 0, 1) + facts
    assert made.load(page, 0, 2, 1) == -1
    assert _fast.record_spans(page) is None
    assert len(made) == 1


@pytest.mark.parametrize("tokens", [-1, 2**32, 2**62, -(2**63)])
def test_token_counts_that_an_index_cannot_hold_are_refused(tokens):
    made = ledger()
    with pytest.raises(ValueError, match="tokens must be"):
        made.push(facts_of(user()), tokens)
    with pytest.raises(OverflowError):
        made.push(facts_of(user()), 2**63)
    assert len(made) == 0


@pytest.mark.parametrize("open_tokens", [-1, 2**31])
def test_open_tokens_are_bounded(open_tokens):
    with pytest.raises(ValueError, match="open_tokens"):
        _fast.Ledger(open_tokens=open_tokens)


@pytest.mark.parametrize("expected", [-5, 0, 10**6, 2**62])
def test_what_is_expected_is_a_hint(expected):
    made = ledger(user(), call("c1"), expect_items=expected, expect_calls=expected)
    assert made.open_positions() == [1]
    assert len(made.copy()) == 2


def test_a_key_whose_hash_is_zero_is_a_key():
    zero = struct.pack("<BBHHQ", CALL, 1, 0, 1, 0)
    made = ledger()
    made.push(zero, 1)
    assert made.push(struct.pack("<BBHHQ", RESULT, 0, 1, 0, 0), 1) == 0
    assert made.open_count == 0


def test_keys_that_fall_into_one_slot_are_told_apart():
    def facts(kind, *keys):
        opens = 0 if kind == RESULT else len(keys)
        return struct.pack(f"<BBHH{len(keys)}Q", kind, 0, len(keys) - opens, opens, *keys)

    keys = [(n << 32) | (n % 3 << 2) for n in range(1, 40)]
    made = ledger()
    for key in keys:
        made.push(facts(CALL, key), 1)
    for cut in (30, 11, 10, 3):
        made.truncate(cut)
        copy = made.copy()
        for n, key in enumerate(keys):
            assert copy.push(facts(RESULT, key), 1) == (n >= cut)
        assert copy.open_count == 0


def test_many_undone_calls_leave_nothing_behind():
    made = ledger(user())
    made.push(facts_of(call("x")), 1)
    made.truncate(1)
    before = sys.getsizeof(made)
    for n in range(5_000):
        made.push(facts_of(call(f"c{n}")), 1)
        made.truncate(1)
    assert sys.getsizeof(made) == before
    assert made.find_call(0, "c7", SEED) is None


def test_a_result_that_names_65535_calls():
    ids = [f"c{n}" for n in range(65_535)]
    made = ledger(user(), call(*ids), result("c7"))
    assert made.open_count == 65_534
    made.push(facts_of(answer(*ids)), 1)
    assert made.open_count == 0
    made.truncate(2)
    assert made.open_count == 65_535
    made.truncate(1)
    assert made.open_count == 0


def test_an_overlay_answers_what_a_writer_asks():
    base = ledger(user(), call("c1"))
    overlay = _fast.Ledger(base=base)
    assert overlay.push(facts_of(result("c1")), 5) == 0
    assert (len(overlay), overlay.tokens, overlay.open_count, base.open_count) == (3, 25, 0, 1)
    assert [overlay.kind_at(i) for i in range(3)] == [USER, oracle.ASSISTANT, RESULT]
    assert not overlay.is_dropped(2)
    for ask in (
        lambda: overlay.cut_for_budget(1),
        lambda: overlay.cut_keep_last(1),
        lambda: overlay.cut_at_most(1),
        lambda: overlay.is_safe(1),
        lambda: overlay.irregular_from(1),
        overlay.safe_cuts,
        overlay.open_positions,
        lambda: overlay.cost(1),
        lambda: overlay.sum_between(0, 1),
        lambda: overlay.leading(1),
        lambda: overlay.find_call(0, "c1", SEED),
        lambda: overlay.load(b"", 0, 0, 0),
        overlay.copy,
    ):
        with pytest.raises(ValueError, match="an overlay answers no such question"):
            ask()
    with pytest.raises(ValueError, match="cannot be the base"):
        _fast.Ledger(base=overlay)
    with pytest.raises(ValueError, match="no such length"):
        overlay.truncate(1)


def test_an_overlay_folds_once_into_its_own_base():
    base, other = ledger(user()), ledger(user())
    overlay = _fast.Ledger(base=base)
    overlay.push(facts_of(call("c1")), 5)
    with pytest.raises(ValueError, match="does not stand"):
        other.fold(overlay)
    base.fold(overlay)
    with pytest.raises(ValueError, match="does not stand"):
        base.fold(overlay)
    assert len(base) == 2
    with pytest.raises(TypeError):
        base.fold(None)  # type: ignore[arg-type]


def test_an_overlay_keeps_its_base_alive():
    overlay = _fast.Ledger(base=ledger(user(), call("c1")))
    gc.collect()
    assert overlay.push(facts_of(result("c1")), 5) == 0
    assert overlay.kind_at(1) == oracle.ASSISTANT


def test_load_stops_where_it_is_told_and_never_half_way():
    def record(entry, counter=1):
        return struct.pack("<IIQH", 10, 0, 0, counter) + facts_of(entry)

    page = b"".join(map(record, (user(), call("c1"), result("c1"), user())))
    made = _fast.Ledger()
    assert made.load(page, 0, 1, 1) == 1
    assert made.load(page, 1, 2, 1) == 2
    assert made.load(page, 3, 100, 1) == 1
    assert made.load(page, 4, 100, 1) == 0
    assert made.load(page, 40, 100, 1) == 0
    assert made.load(page, 0, 0, 1) == 0
    assert made.load(b"", 0, 9, 1) == 0
    assert (len(made), made.tokens, made.open_count) == (4, 40, 0)
    assert made.load(page + record(user(), 2), 0, 100, 1) == -2
    assert made.load(page + b"x", 0, 100, 1) == -1
    assert len(made) == 4


def test_load_takes_given_counts_in_place_of_the_records_own():
    record = struct.pack("<IIQH", 10, 0, 0, 1)
    page = b"".join(record + facts_of(entry) for entry in (user(), call("c1"), result("c1")))
    counts = struct.pack("<5I", 1, 2, 3, 2**32 - 1, 5)
    made = _fast.Ledger()
    assert made.load(page, 0, 2, 9, counts, 2) == 2  # under any counter
    assert made.load(page, 2, 1, 9, counts, 4) == 1
    assert made.tokens_of(0, 3) == [3, 2**32 - 1, 5]
    assert made.load(page, 0, 5, 9, counts) == 3  # the page ends first
    for skip, take, at in ((0, 3, 3), (0, 6, 0), (0, 1, 5), (0, 1, -1), (0, 1, 2**62), (0, -1, 0)):
        with pytest.raises(ValueError, match="fewer counts"):
            made.load(page, skip, take, 9, counts, at)
    with pytest.raises(ValueError, match="fewer counts"):
        made.load(page, 0, 1, 9, counts[:3])
    assert len(made) == 6


def test_a_ledger_cannot_be_pickled_or_derived_from():
    with pytest.raises(TypeError):
        ledger().__reduce__()
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Derived", (_fast.Ledger,), {})


def test_the_size_of_a_ledger_is_told():
    small, large = ledger(), ledger(*[call("c1"), result("c1")] * 1_000)
    assert sys.getsizeof(small) < 2_000
    assert sys.getsizeof(large) > 40_000


def test_facts_of_the_oracle_and_of_the_core_have_the_same_numbers():
    assert Facts(*_fast.classify(user())).kind == USER
    assert _fast.build_flavour() in {"release", "trace", "sanitize"}


OUT_OF_MEMORY = """
import resource, sys
from memcore import _fast

page = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
ledger = _fast.Ledger(start_mask=255)
record = len(page) // 1024
failed = 0
for attempt in range(3):
    try:
        while True:
            before = len(ledger), ledger.tokens, ledger.open_count
            ledger.load(page, 0, 1024, 1)
    except MemoryError:
        failed += 1
    assert (len(ledger), ledger.tokens, ledger.open_count) == before
    try:
        ledger.copy()
    except MemoryError:
        failed += 1
    assert ledger.is_safe(len(ledger) - 2) and ledger.cut_keep_last(2) == len(ledger) - 2
    ledger.truncate(len(ledger) // 2)
ledger.truncate(0)
assert ledger.load(page, 0, 1024, 1) == 1024
print(failed)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for its memory")
@pytest.mark.skipif(_fast.build_flavour() == "sanitize", reason="it reserves all address space")
def test_running_out_of_memory_leaves_the_ledger_as_it_was():
    page = b"".join(
        struct.pack("<IIQH", 10, 0, 0, 1) + facts_of(entry)
        for n in range(512)
        for entry in (call(f"c{n}"), result(f"c{n}"))
    )
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout) >= 3
