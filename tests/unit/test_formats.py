"""Rendering and validating, one named test for each tricky case of the pairing reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

import memcore
from legality import found_wrong
from memcore.wire import (
    POLICIES,
    WireItem,
    get_policy,
    lead_in_message,
    rename_repeated_calls,
    render,
    summary_message,
)
from messages import Message, assistant, call, illegal, recount, result, system, user
from oracle import classify

NO_RESULT = "[no result: this tool call was not answered]"


def shown(messages: list[Message], policy: str = "openai_chat") -> list[Message]:
    """What the provider receives; checked by the independent validator."""
    context = memcore.fit(messages, policy=policy)
    assert illegal(context.messages, policy) == []
    assert rules(context.messages, policy) == []
    return context.messages


def repairs(messages: list[Message], policy: str = "openai_chat") -> list[tuple[Any, ...]]:
    return [(r.action, r.seq, r.call_id) for r in memcore.fit(messages, policy=policy).repairs]


def rules(messages: list[Message], policy: str = "openai_chat") -> list[tuple[int, str]]:
    """Broken rules of pairing; the items here are shorter than a provider takes them."""
    found = memcore.validate(messages, policy)
    return [(v.position, v.rule) for v in found if v.rule != "form"]


def synthetic(call_id: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": NO_RESULT}


# --- OpenAI chat ----------------------------------------------------------------------------------


def test_parallel_results_out_of_order_are_legal():
    messages = [user(), call("a", "b", "c"), result("c"), result("a"), result("b"), assistant()]
    assert rules(messages) == []
    assert shown(messages) == messages


def test_a_message_between_call_and_result_moves_the_result_up():
    messages = [user(), call("a"), user("wait"), assistant("hm"), result("a")]
    assert rules(messages) == [(4, "result_not_adjacent")]
    assert shown(messages) == [user(), call("a"), result("a"), user("wait"), assistant("hm")]
    assert repairs(messages) == [("hoisted", 4, "a")]


def test_interleaved_results_go_behind_their_own_calls():
    messages = [user(), call("a"), call("b"), result("b"), result("a")]
    assert shown(messages) == [user(), call("a"), result("a"), call("b"), result("b")]


def test_a_result_before_its_call_is_an_orphan():
    messages = [user(), result("a"), call("a")]
    assert rules(messages) == [(1, "orphan_result")]
    assert shown(messages) == [user(), call("a")]
    assert repairs(messages) == [("orphan", 1, "a")]


def test_an_orphan_as_the_last_item_is_left_out():
    messages = [user(), assistant(), result("lost")]
    assert shown(messages) == [user(), assistant()]


def test_of_several_results_for_one_call_the_newest_stands():
    messages = [user(), call("a"), result("a", "made up"), user("and?"), result("a", "real")]
    assert rules(messages) == [(4, "duplicate_result")]
    assert shown(messages) == [user(), call("a"), result("a", "real"), user("and?")]
    assert repairs(messages) == [("superseded", 2, "a"), ("hoisted", 4, "a")]


def test_an_unanswered_call_gets_a_fixed_answer_once_the_talk_goes_on():
    messages = [user(), call("a", "b"), result("b"), user("next")]
    assert rules(messages) == [(1, "unanswered_call")]
    assert shown(messages) == [user(), call("a", "b"), result("b"), synthetic("a"), user("next")]
    assert repairs(messages) == [("synthesized", 1, "a")]


def test_a_call_at_the_end_is_open_not_broken():
    for messages in ([user(), call("a")], [user(), call("a", "b"), result("a")]):
        assert rules(messages) == []
        assert shown(messages) == messages


def test_an_id_used_again_belongs_to_the_latest_call():
    messages = [user(), call("a"), result("a", "1"), user(), call("a"), result("a", "2")]
    assert rules(messages) == []
    assert shown(messages) == messages
    assert memcore.safe_cuts(messages) == [0, 1, 3, 4]


def test_an_id_reused_while_the_first_call_is_open():
    messages = [user(), call("a"), user(), call("a"), result("a")]
    assert shown(messages) == [user(), call("a"), synthetic("a"), user(), call("a"), result("a")]


def test_one_id_twice_in_one_message_is_one_call():
    messages = [user(), call("a", "a"), result("a"), assistant()]
    assert shown(messages) == messages


@pytest.mark.parametrize("bad", ["", None, 7, ["a"]])
def test_an_empty_or_odd_id_is_no_id(bad):
    messages = [user(), {"role": "assistant", "tool_calls": [{"id": bad}]}, assistant()]
    assert rules(messages) == []
    orphan = [user(), {"role": "tool", "tool_call_id": bad, "content": "x"}]
    assert rules(orphan) == [(1, "orphan_result")]
    assert shown(orphan) == [user()]


def test_a_long_id_is_reported():
    messages = [user(), call("x" * 41), result("x" * 41)]
    assert rules(messages) == [(1, "id_too_long")]
    assert rules([user(), call("x" * 40), result("x" * 40)]) == []


def test_the_deprecated_function_call_pairs_by_name():
    asks = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}
    answer = {"role": "function", "name": "f", "content": "x"}
    assert shown([user(), asks, answer, assistant()]) == [user(), asks, answer, assistant()]
    made_up = {"role": "function", "name": "f", "content": NO_RESULT}
    assert shown([user(), asks, user()]) == [user(), asks, made_up, user()]
    assert rules([user(), answer]) == [(1, "orphan_result")]


def test_custom_tools_and_developer_messages():
    custom = {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {}}]}
    messages = [{"role": "developer", "content": "x"}, user(), custom, result("a")]
    assert shown(messages) == messages
    assert memcore.fit([*messages, user("q"), assistant()], 30).messages[0] == messages[0]


def test_leading_instructions_are_pinned_later_ones_are_not():
    messages = [system("a"), system("b"), user("x" * 400), system("c"), user(), assistant()]
    context = memcore.fit(messages, 60)
    assert context.messages[:2] == messages[:2]
    assert user("x" * 400) not in context.messages


def test_a_cut_at_no_user_message_is_led_in():
    messages = [user("x" * 400), call("a"), result("a"), assistant("y")]
    context = memcore.fit(messages, 60)
    assert context.messages[0] == lead_in_message(POLICIES["openai_chat"])
    assert context.messages[1:] == messages[-len(context.messages) + 1 :]
    assert ("lead_in", None, None) in [(r.action, r.seq, r.call_id) for r in context.repairs]


def test_one_turn_of_many_calls_can_still_be_cut():
    messages = [user("go")]
    for n in range(500):
        messages += [call(f"c{n}"), result(f"c{n}", "x" * 50)]
    context = memcore.fit(messages, 1_000)
    assert 500 < context.tokens <= 1_000
    assert illegal(context.messages, "openai_chat") == []


# --- the plain rule -------------------------------------------------------------------------------


def test_seed_leaves_out_orphans_and_repairs_nothing_else():
    messages = [user(), call("a"), user("late"), result("a"), result("lost"), call("b"), user()]
    assert shown(messages, "seed") == [m for m in messages if m != result("lost")]
    assert memcore.safe_cuts([user(), result("lost"), user(), user()], "seed") == [2, 3]


# --- OpenAI Responses -----------------------------------------------------------------------------


def fn(call_id: str | None, kind: str = "function_call") -> Message:
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


def out(call_id: str | None, kind: str = "function_call_output") -> Message:
    return {"type": kind, "call_id": call_id, "output": "ok"}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def test_responses_results_may_come_any_time_later():
    messages = [user(), fn("a"), user("wait"), out("a")]
    assert rules(messages, "openai_responses") == []
    assert shown(messages, "openai_responses") == messages


def test_reasoning_stays_with_what_follows_it():
    messages = [user(), REASONING, fn("a"), out("a"), assistant()]
    assert 2 not in memcore.safe_cuts(messages, "openai_responses")
    assert shown(messages, "openai_responses") == messages


def test_reasoning_without_its_item_is_left_out():
    messages = [user(), REASONING, user("never mind")]
    assert rules(messages, "openai_responses") == [(1, "dangling_reasoning")]
    assert shown(messages, "openai_responses") == [user(), user("never mind")]
    assert repairs(messages, "openai_responses") == [("reasoning", 1, None)]


def test_the_same_id_in_two_classes_is_two_calls():
    messages = [user(), fn("a"), fn("a", "custom_tool_call"), out("a")]
    context = memcore.fit([*messages, user()], policy="openai_responses")
    assert {"type": "custom_tool_call_output", "call_id": "a", "output": NO_RESULT} in (
        context.messages
    )
    assert [r.action for r in context.repairs] == ["synthesized"]


def test_a_local_shell_output_may_name_either_id():
    shell = {"type": "local_shell_call", "call_id": "c", "id": "lsh_1", "action": {}}
    for name in ("c", "lsh_1"):
        answer = {"type": "local_shell_call_output", "id": name, "output": "ok"}
        assert shown([user(), shell, answer, assistant()], "openai_responses")[2] == answer


def test_a_named_output_without_a_call_id_stands_alone():
    alone = {"type": "function_call_output", "name": "f", "output": "ok"}
    assert rules([user(), alone], "openai_responses") == []
    context = memcore.fit([user(), alone], policy="openai_responses")
    assert context.messages == [user(), alone]


def test_items_of_the_server_are_whole_in_themselves():
    messages = [
        user(),
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "mcp_call", "id": "m", "name": "x", "output": "y"},
        {"type": "compaction", "encrypted_content": "..."},
        {"type": "item_reference", "id": "msg_1"},
        assistant(),
    ]
    assert shown(messages, "openai_responses") == messages


def test_a_synthetic_output_without_an_id_is_that_of_its_call():
    """Elsewhere it would be taken for the output of another call of that name."""
    asks = {"type": "tool_search_call", "arguments": {}}
    none = {"type": "tool_search_output", "status": "completed", "tools": []}
    found, thought = {**none, "id": "tso_1"}, {"type": "reasoning", "id": "rs_1", "summary": []}
    for given, expected in (
        ([asks, thought, asks], [asks, none, thought, asks]),
        ([asks, asks, thought, asks], [asks, asks, none, none, thought, asks]),
        ([asks, thought, asks, found], [asks, none, thought, asks, found]),
        ([asks, asks, found, user()], [asks, asks, found, none, user()]),
        ([asks, out("gone"), thought, asks], [asks, none, thought, asks]),
        ([asks, asks, found, thought, asks], [asks, asks, found, none, thought, asks]),
        ([asks, fn("a"), asks, out("a"), found], [asks, fn("a"), asks, out("a"), found]),
    ):
        got = memcore.fit([user(), *given], policy="openai_responses").messages
        assert got == [user(), *expected]
        assert memcore.validate(got, "openai_responses") == []
        assert memcore.fit(got, policy="openai_responses").messages == got


def test_an_approval_that_never_came_is_refused_synthetically():
    asks = {"type": "mcp_approval_request", "id": "ap", "name": "x", "arguments": "{}"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "ap", "approve": False}
    assert shown([user(), asks, user()], "openai_responses") == [user(), asks, answer, user()]


PROGRAM = {"type": "program", "id": "prog_1", "call_id": "p", "code": "", "fingerprint": "x"}


def child(call_id: str) -> Message:
    return {**fn(call_id), "caller": {"type": "program", "caller_id": "p"}}


def test_what_a_program_called_goes_with_it():
    messages = [user(), child("a"), out("a"), assistant(), user()]
    assert rules(messages, "openai_responses") == [(1, "missing_reference")]
    assert shown(messages, "openai_responses") == [user(), assistant(), user()]
    assert repairs(messages, "openai_responses") == [("orphan", 1, None), ("orphan", 2, "a")]
    assert 2 not in memcore.safe_cuts([user(), PROGRAM, child("a"), out("a")], "openai_responses")


def test_a_stray_takes_what_refers_to_it_along():
    program = {**PROGRAM, "call_id": "q", "caller": {"type": "program", "caller_id": "p"}}
    called = {**child("a"), "caller": {"type": "program", "caller_id": "q"}}
    messages = [user(), program, called, out("a"), user()]
    assert shown(messages, "openai_responses") == [user(), user()]


def test_an_approved_call_stays_with_its_approval():
    asks = {"type": "mcp_approval_request", "id": "ap", "name": "x", "arguments": "{}"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "ap", "approve": True}
    called = {"type": "mcp_call", "id": "m", "name": "x", "approval_request_id": "ap"}
    messages = [user(), asks, answer, called, assistant(), user()]
    assert rules(messages, "openai_responses") == []
    assert memcore.safe_cuts(messages, "openai_responses") == [0, 1, 4, 5]
    assert shown(messages[2:], "openai_responses") == [assistant(), user()]


def test_a_program_goes_on_until_the_user_speaks():
    messages = [user(), PROGRAM, child("a"), out("a"), REASONING, child("b"), out("b")]
    assert shown(messages, "openai_responses") == messages
    ended = shown([*messages, assistant(), user()], "openai_responses")
    assert [m for m in ended if m.get("type") == "program_output"] == [
        {
            "type": "program_output",
            "id": "p",
            "call_id": "p",
            "result": NO_RESULT,
            "status": "incomplete",
        }
    ]


def test_a_synthetic_output_says_which_program_called():
    answered = shown([user(), PROGRAM, child("a"), assistant(), user()], "openai_responses")
    synthetic_outputs = answered[4:6]
    assert [m["type"] for m in synthetic_outputs] == ["function_call_output", "program_output"]
    assert synthetic_outputs[0]["caller"] == {"type": "program", "caller_id": "p"}


def test_calls_of_one_response_are_kept_together():
    messages = [user(), fn("a"), fn("b"), out("b"), user()]
    assert memcore.safe_cuts(messages, "openai_responses") == [0, 1, 4]


def test_many_searches_without_ids_bind_in_time():
    asked = [{"type": "tool_search_call", "arguments": {}} for _ in range(3000)]
    found = [{"type": "tool_search_output", "tools": [], "id": str(n)} for n in range(3000)]
    messages = [user(), *asked, *found]
    assert rules(messages, "openai_responses") == []


def test_a_call_with_an_id_does_not_part_a_run_of_calls_without():
    asks, found = {"type": "tool_search_call", "arguments": {}}, {"type": "tool_search_output"}
    messages = [user(), asks, fn("a"), asks, found, out("a"), found]
    assert rules(messages, "openai_responses") == []
    assert shown(messages, "openai_responses") == messages


# --- ids of OpenAI Responses that come again ------------------------------------------------------


def test_an_unanswered_call_gives_up_its_id_to_a_later_one_of_its_response():
    messages = [user(), fn("a"), fn("a"), fn("a"), out("a"), user()]
    assert shown(messages, "openai_responses") == [
        user(),
        fn("a_2"),
        fn("a_3"),
        fn("a"),
        {**out("a_2"), "output": NO_RESULT},
        {**out("a_3"), "output": NO_RESULT},
        out("a"),
        user(),
    ]
    actions = [each.action for each in memcore.fit(messages, policy="openai_responses").repairs]
    assert actions == ["renamed", "renamed", "synthesized", "synthesized"]


def test_an_overtaken_program_takes_its_calls_along():
    messages = [user(), PROGRAM, child("a"), PROGRAM, user()]
    program, nested, _, output, *_ = shown(messages, "openai_responses")[1:]
    caller = {"type": "program", "caller_id": "p_2"}
    assert program == {**PROGRAM, "call_id": "p_2"}
    assert nested == {**child("a"), "caller": caller}
    assert (output["call_id"], output["caller"]) == ("a", caller)


def test_the_new_id_depends_on_nothing_behind_the_response():
    first = shown([user(), fn("a"), fn("a"), user()], "openai_responses")
    later = [user(), fn("a"), fn("a"), user(), fn("a_2"), out("a_2"), user()]
    assert shown(later, "openai_responses")[: len(first)] == first


def test_an_id_that_is_taken_is_not_given_again():
    messages = [user(), fn("a_2"), fn("a"), fn("a"), out("a"), user(), out("a_2"), user()]
    assert [m.get("call_id") for m in shown(messages, "openai_responses")] == [
        None, "a_2", "a_3", "a", "a_3", "a", None, "a_2", None,
    ]  # fmt: skip


def test_both_ids_of_a_local_shell_s_call_are_looked_at():
    action = {"type": "exec", "command": ["ls"], "env": {}}
    one, two = (
        {"type": "local_shell_call", "id": a, "call_id": b, "action": action, "status": "completed"}
        for a, b in (("i", "c"), ("c", "d"))
    )
    first, second, *answers, _ = shown([user(), one, two, user()], "openai_responses")[1:]
    assert first == {**one, "id": "c_2", "call_id": "c_2"}
    assert second == two
    assert [each["call_id"] for each in answers] == ["c_2", "d"]


def test_a_message_of_another_format_is_not_given_an_id():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = {"role": "assistant", "content": None, "tool_calls": [call]}
    entries = [WireItem(at, m) for at, m in enumerate([user(), chat, fn("a"), out("a"), user()])]
    assert render(entries, POLICIES["openai_responses"]).messages[1] is chat


def test_calls_that_may_still_be_answered_keep_their_id():
    messages = [user(), fn("a"), fn("a")]
    assert shown(messages, "openai_responses") == messages


def renamed(messages: list[Message], **options: Any) -> list[Message]:
    entries = [WireItem(at, message) for at, message in enumerate(messages)]
    found, repairs = rename_repeated_calls(entries, **options)
    assert [entry.seq for entry in found] == list(range(len(messages)))
    assert {repair.action for repair in repairs} <= {"renamed"}
    shown = [entry.message for entry in found]
    assert illegal(shown, "openai_responses") == []
    return shown


def test_calls_under_one_id_get_ids_of_their_own():
    turn = [user(), fn("c"), out("c")]
    assert renamed([*turn, *turn, *turn]) == [
        *turn,
        user(),
        fn("c_2"),
        out("c_2"),
        user(),
        fn("c_3"),
        out("c_3"),
    ]


def test_calls_under_one_id_in_one_response_are_answered_each():
    entries = [WireItem(0, fn("c")), WireItem(1, fn("c")), WireItem(2, user())]
    shown = render(rename_repeated_calls(entries)[0], get_policy("openai_responses")).messages
    assert [m.get("call_id") for m in shown] == ["c", "c_2", "c", "c_2", None]
    assert illegal(shown, "openai_responses") == []


def test_what_is_fixed_keeps_its_id():
    turn = [user(), fn("c"), out("c")]
    found = renamed([*turn, *turn], is_fixed=lambda entry: entry.seq >= 5)
    assert found == [user(), fn("c_2"), out("c_2"), *turn]


def test_a_long_id_is_shortened():
    turns = [fn("x" * 70), out("x" * 70), fn("x" * 71), out("x" * 71)]
    found = renamed(turns, chars_max=64)
    short, other = found[0]["call_id"], found[2]["call_id"]
    assert found == [fn(short), out(short), fn(other), out(other)]
    assert len(short) == len(other) == 64
    assert short != other
    assert renamed(turns[2:], chars_max=64) == found[2:]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("late", [False, True])
def test_no_context_has_an_id_that_is_too_long(policy, late):
    limit = POLICIES[policy].id_chars_max or 40
    names = ["x" * limit, "x" * (limit + 1), "x" * (limit + 2), "y" * 5_000]
    make = {
        "openai_responses": lambda i: [fn(i), out(i)],
        "anthropic": lambda i: [uses(i), answers(i)],
        "gemini": lambda i: [
            {"role": "model", "parts": [{"functionCall": {"id": i, "name": "f"}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": i, "name": "f"}}]},
        ],
        "langchain": lambda i: [
            {"type": "ai", "data": {"content": "", "tool_calls": [{"id": i, "name": "f"}]}},
            {"type": "tool", "data": {"content": "ok", "tool_call_id": i}},
        ],
    }.get(policy, lambda i: [call(i), result(i)])
    messages = [user()]
    for name in [*names, names[1]]:
        made, answered = make(name)
        messages += [made, user("wait"), answered] if late else [made, answered]
    whole = memcore.fit(messages, policy=policy)
    assert rules(whole.messages, policy) == []
    assert found_wrong(whole.messages, messages, policy) == []
    ids = [name for m in whole.messages for _, name in classify(m).opens]
    if POLICIES[policy].id_chars_max:
        assert ids[0] == names[0]
        assert ids[1] == ids[4] != ids[2]
        assert len(set(ids)) == 4
    else:
        assert len(set(ids)) == 4 + (policy == "anthropic")
    with memcore.open(":memory:") as db:
        session = db.session("chat", policy=policy)
        session.extend(messages)
        assert session.context().messages == whole.messages
        assert session.context().tokens == whole.tokens
        assert session.context(authors=["somebody"]).messages == whole.messages
        session.append(user("more"))
        end = session.context().messages
        assert end[: len(whole.messages)] == whole.messages


def test_a_shortened_id_is_no_id_that_is_there():
    messages = [user(), call("x" * 41), result("x" * 41)]
    taken = shown(messages)[1]["tool_calls"][0]["id"]
    for other in ([call(taken), result(taken), *messages], [*messages, call(taken), result(taken)]):
        ids = [m["tool_calls"][0]["id"] for m in shown(other) if "tool_calls" in m]
        assert len(set(ids)) == 2
        assert taken in ids
        assert max(map(len, ids)) == 40


def test_a_message_with_a_long_id_is_shortened_in_a_copy():
    messages = [user(), {**call("x" * 41, "b"), "name": "x"}, result("x" * 41), result("b")]
    before = json.dumps(messages)
    context = memcore.fit(messages)
    assert json.dumps(messages) == before
    assert context.repairs == (memcore.Repair("renamed", 1, "x" * 41),)
    assert context.messages[3] is messages[3]
    assert recount(context.messages, None) == context.tokens


def test_every_kind_of_call_is_renamed_with_all_that_names_it():
    shell = {"type": "local_shell_call", "call_id": "c", "id": "lsh_1"}
    shelled = {"type": "local_shell_call_output", "id": "lsh_1", "output": "ok"}
    asks = {"type": "mcp_approval_request", "id": "c", "name": "x", "arguments": "{}"}
    answer = {"type": "mcp_approval_response", "approval_request_id": "c", "approve": True}
    called = {"type": "mcp_call", "id": "m", "name": "x", "approval_request_id": "c"}
    ends = {"type": "program_output", "call_id": "p", "result": "", "status": "completed"}
    by = {"caller": {"type": "program", "caller_id": "p"}}
    turn = [shell, shelled, asks, answer, called, PROGRAM, child("a"), {**out("a"), **by}, ends]
    by = {"caller": {"type": "program", "caller_id": "p_2"}}
    assert renamed([*turn, *turn])[len(turn) :] == [
        {**shell, "call_id": "c_2", "id": "c_2"},
        {**shelled, "call_id": "c_2", "id": "c_2"},
        {**asks, "id": "c_2"},
        {**answer, "approval_request_id": "c_2"},
        {**called, "approval_request_id": "c_2"},
        {**PROGRAM, "call_id": "p_2"},
        {**fn("a_2"), **by},
        {**out("a_2"), **by},
        {**ends, "call_id": "p_2"},
    ]


def test_an_item_whose_two_ids_are_one_keeps_them_one():
    turn = [{**fn("c"), "id": "c"}, out("c")]
    assert renamed([*turn, *turn])[2] == {**fn("c_2"), "id": "c_2"}


# --- Anthropic ------------------------------------------------------------------------------------


def uses(*ids: str) -> Message:
    blocks = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ids]
    return {"role": "assistant", "content": [{"type": "text", "text": "so"}, *blocks]}


def answers(*ids: str | None, text: str | None = None, first: bool = False) -> Message:
    blocks: list[Any] = [
        {"type": "tool_result", "tool_use_id": i, "content": f"r{n}"} for n, i in enumerate(ids)
    ]
    if text is not None:
        blocks.insert(0 if first else len(blocks), {"type": "text", "text": text})
    return {"role": "user", "content": blocks}


def ids_in(message: Message) -> list[Any]:
    return [b.get("tool_use_id") for b in message["content"] if b.get("type") == "tool_result"]


def test_results_split_over_messages_are_merged():
    messages = [user(), uses("a", "b"), answers("a"), answers("b"), assistant()]
    assert rules(messages, "anthropic") == [(3, "result_not_adjacent")]
    found = shown(messages, "anthropic")
    assert ids_in(found[2]) == ["a", "b"]
    assert len(found) == 4
    assert repairs(messages, "anthropic") == [("merged", 1, None)]


def test_text_before_the_results_goes_behind_them():
    messages = [user(), uses("a"), answers("a", text="look", first=True), assistant()]
    assert rules(messages, "anthropic") == [(2, "results_first")]
    found = shown(messages, "anthropic")
    assert ids_in(found[2]) == ["a"]
    texts = [b for m in found[2:] for b in m["content"] if b != "o" and isinstance(b, dict)]
    assert {"type": "text", "text": "look"} in texts


def test_text_behind_the_results_is_legal_as_it_is():
    messages = [user(), uses("a"), answers("a", text="look"), assistant()]
    assert shown(messages, "anthropic") == messages


def test_a_late_result_is_hoisted_and_its_text_stays():
    messages = [user(), uses("a"), user("wait"), answers("a", text="here"), assistant()]
    found = shown(messages, "anthropic")
    assert ids_in(found[2]) == ["a"]
    assert found[3] == user("wait")
    assert found[4] == {"role": "user", "content": [{"type": "text", "text": "here"}]}
    assert ("hoisted", 3, "a") in repairs(messages, "anthropic")


def test_missing_results_are_made_up_beside_the_real_ones():
    messages = [user(), uses("a", "b"), answers("b"), assistant()]
    found = shown(messages, "anthropic")
    assert ids_in(found[2]) == ["b", "a"]
    assert found[2]["content"][1]["is_error"] is True
    assert repairs(messages, "anthropic") == [("synthesized", 1, "a")]


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([["a", "a", "b"]], ["r1", "r2"]),
        ([[None, "a", "b"]], ["r1", "r2"]),
        ([["a"], [None, "b"]], ["r0", "r1"]),
        ([["lost", "b", "a"]], ["r1", "r2"]),
        ([["a", "a"], ["b", "b", None]], ["r1", "r1"]),
    ],
)
def test_blocks_find_their_calls_by_id_not_by_place(blocks, kept):
    messages = [user(), uses("a", "b"), *(answers(*ids) for ids in blocks), assistant()]
    found = shown(messages, "anthropic")
    assert sorted(ids_in(found[2])) == ["a", "b"]
    assert [b["content"] for b in found[2]["content"]] == kept
    assert len(found) == 4
    assert repairs(messages, "anthropic") != []


def test_a_server_tool_answered_in_its_own_message_is_no_open_call():
    search = {
        "role": "assistant",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "found"},
        ],
    }
    messages = [user(), search, user("thanks")]
    assert shown(messages, "anthropic") == messages


def test_a_server_tool_answered_in_a_later_response_keeps_both_together():
    ask = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "w"}]}
    found = {
        "role": "assistant",
        "content": [{"type": "web_search_tool_result", "tool_use_id": "s"}],
    }
    messages = [user(), ask, found, user()]
    assert memcore.safe_cuts(messages, "anthropic") == [0, 1, 3]


def test_a_thinking_tool_loop_is_one_piece():
    think = uses("a")
    think["content"].insert(0, {"type": "thinking", "thinking": "hm", "signature": "s"})
    messages = [user(), think, answers("a"), uses("b"), answers("b"), assistant(), user()]
    assert memcore.safe_cuts(messages, "anthropic") == [0, 1, 6]


def test_ids_must_be_unique_for_anthropic():
    messages = [user(), uses("a"), answers("a"), uses("a"), answers("a")]
    assert rules(messages, "anthropic") == [(3, "duplicate_id")]


def test_anthropic_and_gemini_start_with_the_user():
    assert rules([assistant()], "anthropic") == [(0, "start")]
    assert shown([assistant(), user()], "anthropic")[0] == lead_in_message(POLICIES["anthropic"])
    model = {"role": "model", "parts": [{"text": "hi"}]}
    assert shown([model], "gemini")[0] == lead_in_message(POLICIES["gemini"])


# --- Gemini ---------------------------------------------------------------------------------------


def asks(*names: str, ids: tuple[str, ...] = ()) -> Message:
    parts = [{"functionCall": {"name": name, "args": {}}} for name in names]
    for part, call_id in zip(parts, ids, strict=False):
        part["functionCall"]["id"] = call_id
    return {"role": "model", "parts": parts}


def gives(*names: str, ids: tuple[str, ...] = ()) -> Message:
    parts = [{"functionResponse": {"name": n, "response": {"n": k}}} for k, n in enumerate(names)]
    for part, call_id in zip(parts, ids, strict=False):
        part["functionResponse"]["id"] = call_id
    return {"role": "user", "parts": parts}


HELLO = {"role": "user", "parts": [{"text": "hello"}]}
MODEL = {"role": "model", "parts": [{"text": "ok"}]}


def test_calls_of_one_name_without_ids_are_answered_in_turn():
    messages = [HELLO, asks("s", "f", "s"), gives("s", "f", "s"), MODEL]
    assert rules(messages, "gemini") == []
    assert shown(messages, "gemini") == messages


def test_as_many_responses_as_calls():
    messages = [HELLO, asks("s", "f", "s"), gives("s", "f"), MODEL]
    found = shown(messages, "gemini")
    assert [p["functionResponse"]["name"] for p in found[2]["parts"]] == ["s", "f", "s"]
    assert repairs(messages, "gemini") == [("synthesized", 1, "s")]
    many = [HELLO, asks("s", "f"), gives("s", "f", "s"), MODEL]
    assert [p["functionResponse"]["response"]["n"] for p in shown(many, "gemini")[2]["parts"]] == [
        1,
        2,
    ]
    assert repairs(many, "gemini") == [("superseded", 2, None)]


def test_responses_in_several_contents_are_merged():
    messages = [HELLO, asks("s", "s"), gives("s"), gives("s"), MODEL]
    found = shown(messages, "gemini")
    assert len(found[2]["parts"]) == 2
    assert repairs(messages, "gemini") == [("merged", 1, None)]


def test_gemini_ids_are_used_where_there_are_any():
    messages = [HELLO, asks("s", "s", ids=("1", "2")), gives("s", ids=("2",)), MODEL]
    parts = shown(messages, "gemini")[2]["parts"]
    assert [p["functionResponse"]["id"] for p in parts] == ["2", "1"]
    assert parts[1]["functionResponse"]["name"] == "s"


# --- LangChain ------------------------------------------------------------------------------------


def lc(kind: str, shape: str, **body: Any) -> Message:
    if shape == "flat":
        return {"type": kind, **body}
    if shape == "nested":
        return {"type": kind, "data": {"type": kind, **body}}
    name = {"ai": "AI", "tool": "Tool", "human": "Human"}[kind] + "Message"
    path = ["langchain", "schema", "messages", name]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": {"type": kind, **body}}


@pytest.mark.parametrize("shape", ["flat", "nested", "constructor"])
def test_langchain_pairs_in_all_its_shapes(shape):
    calls = [{"name": "f", "args": {}, "id": "a"}]
    bad = [{"name": "f", "args": "{", "id": "b", "error": "x"}]
    ai = lc("ai", shape, content="", tool_calls=calls, invalid_tool_calls=bad)
    answer = lc("tool", shape, content="ok", tool_call_id="a")
    human = lc("human", shape, content="next")
    found = shown([human, ai, answer, human], "langchain")
    made_up = lc("tool", shape, tool_call_id="b", content=NO_RESULT, status="error")
    assert found == [human, ai, answer, made_up, human]


def test_a_tool_use_block_repeats_its_tool_call_and_is_no_second_call():
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    ai = {"type": "ai", "content": [block], "tool_calls": [{"name": "f", "args": {}, "id": "a"}]}
    answer = {"type": "tool", "content": "ok", "tool_call_id": "a"}
    human = {"type": "human", "content": "x"}
    assert shown([human, ai, answer, human], "langchain") == [human, ai, answer, human]


# --- what holds for all ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_an_unknown_dict_is_opaque_and_shown(policy):
    odd = {"kind": "weather", "wind": 7}
    assert odd in memcore.fit([user(), odd, user()], policy=policy).messages


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_legal_and_fits(policy):
    assert memcore.validate([], policy) == []
    assert memcore.fit([], 1, policy=policy).messages == []
    assert memcore.safe_cuts([], policy) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_summary_may_start_a_context(policy):
    message = summary_message(get_policy(policy), "so far")
    assert illegal([message], policy) == []
    assert memcore.validate([message], policy) == []
    assert "so far" in str(message)


def test_validate_can_raise():
    with pytest.raises(memcore.HistoryViolationError) as caught:
        memcore.validate([user(), result("a"), result("b")], raise_on_error=True)
    assert [v.call_id for v in caught.value.violations] == ["a", "b"]
    assert memcore.validate([user()], raise_on_error=True) == []


# --- what a hostile review found ------------------------------------------------------------------


def uses_one(call_id: str) -> Message:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": call_id, "name": "f", "input": {}}],
    }


def answers_one(call_id: str) -> Message:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "ok"}],
    }


def test_anthropic_ids_that_come_again_get_ids_of_their_own():
    turn = [user(), uses_one("c1"), answers_one("c1")]
    messages = shown([*turn, *turn, *turn], "anthropic")
    ids = [block["id"] for m in messages[1::3] for block in m["content"]]
    answered = [block["tool_use_id"] for m in messages[2::3] for block in m["content"]]
    assert ids == answered == ["c1", "c1_2", "c1_3"]
    assert [found[0] for found in repairs([*turn, *turn], "anthropic")] == ["renamed"]


def test_calls_of_one_response_do_not_pass_each_other_over():
    calls = [{"type": "function_call", "call_id": f"k{at}", "name": "f"} for at in range(2)]
    messages = [user(), *calls]
    assert shown(messages, "openai_responses") == messages
    assert repairs(messages, "openai_responses") == []


def test_an_orphan_does_not_come_between_reasoning_and_its_call():
    calls = [{"type": "function_call", "call_id": f"k{at}", "name": "f"} for at in range(2)]
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    orphan = {"type": "function_call_output", "call_id": "lost", "output": "x"}
    messages = shown([user(), calls[0], reasoning, orphan, calls[1], user()], "openai_responses")
    at = messages.index(reasoning)
    assert messages[at + 1] == calls[1]


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"type": "tool", "tool_call_id": "c1", "content": "one"},
    ],
)
def test_a_result_of_another_format_answers_its_call(answer):
    hello = {"role": "user", "content": "hello"}
    used = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    made = shown([hello, {"role": "assistant", "content": [used]}, answer], "anthropic")
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "one"}
    assert made[2:] == [{"role": "user", "content": [block]}]
    assert memcore.validate(made, "anthropic") == []
    hello = {"role": "user", "parts": [{"text": "hello"}]}
    called = {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "f", "args": {}}}]}
    made = shown([hello, called, answer], "gemini")
    response = {"id": "c1", "name": "f", "response": {"output": "one"}}
    assert made[2:] == [{"role": "user", "parts": [{"functionResponse": response}]}]
    assert memcore.validate(made, "gemini") == []
