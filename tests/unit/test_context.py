"""context() and fit(): budgets, pins, reserve, the smallest context, what the receipt says."""

from __future__ import annotations

import asyncio

import pytest

import memcore
from messages import (
    Message,
    assistant,
    attempt,
    call,
    illegal,
    recount,
    result,
    system,
    turns,
    user,
)


def test_without_a_budget_everything_is_shown(session):
    session.extend([system(), *turns(50)])
    context = session.context()
    assert context.messages == [system(), *turns(50)]
    assert (context.omitted, context.cut, context.summary, context.repairs) == (0, 2, None, ())
    assert context.tokens == session.tokens == recount(context.messages)


@pytest.mark.parametrize("budget", range(27, 400, 7))
def test_the_longest_suffix_that_starts_at_a_user_fits_the_budget(session, budget):
    session.extend([system(), *turns(30)])
    context = session.context(budget)
    assert context.messages[0] == system()
    kept = context.messages[1:]
    assert kept == turns(30)[-len(kept) :]
    assert kept[0]["role"] == "user"
    assert context.tokens == recount(context.messages) <= budget
    assert context.omitted == 60 - len(kept)
    assert session.get(context.cut).message == kept[0]
    longer = [system(), *turns(30)[-len(kept) - 2 :]]
    assert len(kept) == 60 or recount(longer) > budget


def test_reserve_is_taken_off_the_budget(session):
    session.extend(turns(30))
    assert session.context(200, reserve_tokens=100) == session.context(100)


def test_an_overflow_names_the_smallest_budget_that_would_do(session):
    session.extend([system("x" * 200), *turns(3), user("y" * 400)])
    with pytest.raises(memcore.ContextOverflowError) as caught:
        session.context(50)
    needed = caught.value.needed_tokens
    assert session.context(needed).messages == [system("x" * 200), user("y" * 400)]
    with pytest.raises(memcore.ContextOverflowError) as again:
        session.context(needed - 1)
    assert again.value.needed_tokens == needed


def test_pins_alone_can_be_too_large(session):
    session.append(system("x" * 400))
    with pytest.raises(memcore.ContextOverflowError) as caught:
        session.context(50)
    assert session.context(caught.value.needed_tokens).messages == [system("x" * 400)]


def test_answers_that_are_not_shown_do_not_count(session):
    session.extend([user(), call("a"), result("a", "x" * 4_000), result("a", "short")])
    context = session.context(100)
    assert context.messages == [user(), call("a"), result("a", "short")]
    assert context.tokens == recount(context.messages)


def test_a_long_id_makes_a_synthetic_result_long_and_the_budget_holds(session):
    long = "c" * 2_000
    session.extend([user(), call(long)])
    session.abandon(long)
    whole = session.context()
    for budget in range(10, whole.tokens + 50, 37):
        context = attempt(session.context, budget)
        if isinstance(context, memcore.ContextOverflowError):
            assert context.needed_tokens > budget
        else:
            assert context.tokens == recount(context.messages) <= budget
            assert illegal(context.messages, "openai_chat") == []


def test_a_context_that_would_show_nothing_is_an_overflow(session):
    session.append(user("x" * 4_000))
    session.record("final", 1)
    with pytest.raises(memcore.ContextOverflowError):
        session.context(100)


def test_a_kept_orphan_at_the_end_is_no_context(db):
    session = db.session("chat", orphans="keep")
    session.extend([user("x" * 4_000), result("lost")])
    with pytest.raises(memcore.ContextOverflowError):
        session.context(100)


def test_an_orphan_poisons_no_context_of_the_plain_rule(db):
    session = db.session("seed", policy="seed", orphans="keep")
    session.extend([user(), assistant(), result("lost")])
    assert session.context().messages == [user(), assistant()]
    session.append(user("more"))
    assert session.context().messages == [user(), assistant(), user("more")]
    assert session.context().omitted == 0


def test_open_calls_are_counted_in_the_context(session):
    session.extend([user(), call("a", "b"), result("a")])
    assert session.context().open_calls == 1


def test_equal_histories_give_equal_contexts(db):
    first, second = db.session("a"), db.session("b")
    history = [*turns(5), call("x"), user("late"), result("x"), *turns(3)]
    first.extend(history)
    for message in history:
        second.append(message)
    second.append(user("undone"))
    second.undo()
    for budget in (None, 100, 60, 30):
        assert first.context(budget).messages == second.context(budget).messages


# --- what keeps a context short -------------------------------------------------------------------


def tokens_of(session: memcore.Session, count: int) -> int:
    return sum(item.tokens for item in session.tail(count))


def limits_of(session: memcore.Session, budget: int | None, messages: list[Message]) -> str | None:
    """What a context says, which the awaited one and that of the plain list say as well."""
    found = session.context(budget)

    async def awaited() -> memcore.Context:
        async with await memcore.aio.open(":memory:", counter=session.counter) as db:
            beside = db.session("chat")
            await beside.extend(messages)
            return await beside.context(budget)

    assert asyncio.run(awaited()) == found
    assert memcore.fit(messages, budget, counter=session.counter).limited_by == found.limited_by
    return found.limited_by


def test_nothing_limits_a_context_that_leaves_nothing_out(session):
    session.extend(history := [system(), *turns(3)])
    assert limits_of(session, None, history) is None
    assert limits_of(session, session.tokens, history) is None
    assert memcore.fit([]).limited_by is None
    assert session.context(session.tokens).omitted == 0


def test_a_budget_limits_a_context(session):
    session.extend(history := turns(4))
    assert limits_of(session, tokens_of(session, 4), history) == "budget"
    assert session.context(tokens_of(session, 4)).messages == turns(4)[-4:]
    smallest = tokens_of(session, 2)
    assert limits_of(session, smallest, history) == "budget"


def test_where_a_context_may_start_limits_it(session):
    session.extend(history := turns(4))
    budget = tokens_of(session, 3)  # an answer would fit, but none may come first
    assert limits_of(session, budget, history) == "start rule"
    assert session.context(budget).messages == turns(4)[-2:]


def test_the_line_that_leads_in_limits_a_context(session):
    session.extend(history := [user("x" * 400), *(assistant(f"a{at}") for at in range(20))])
    budget = tokens_of(session, 12)
    assert limits_of(session, budget, history) == "start rule"
    assert session.context(budget).repairs[0].action == "lead_in"


def test_the_room_for_results_of_open_calls_limits_a_context(session):
    session.extend(history := [user(), call("a"), user("x" * 400)])
    budget = session.tokens  # all of it, if the call were answered
    assert limits_of(session, budget, history) == "open calls"
    assert session.context(budget).tokens < budget
    assert session.context(2 * budget).limited_by is None


def test_calls_open_at_the_end_take_no_room(session):
    session.extend([user(), call("a", "b")])
    for message in (result("b"), user("x" * 400)):
        context = session.context(session.tokens)
        assert (context.limited_by, context.tokens) == (None, session.tokens)
        session.append(message)
    assert session.context(session.tokens).limited_by == "open calls"  # "a" was passed over


def test_a_policy_that_answers_no_call_keeps_no_room_for_answers(db):
    session = db.session("chat", policy="seed")
    session.extend([system(), user("x" * 400), call("a"), *turns(2)])
    context = session.context(session.tokens)
    assert (context.limited_by, context.tokens) == (None, session.tokens)


def test_repairs_limit_a_context(db):
    session = db.session("chat", policy="anthropic")
    session.extend([user(), call("c" * 400), *turns(2)])  # its result repeats the long id
    whole = session.context()
    assert [repair.action for repair in whole.repairs] == ["synthesized"]
    short = session.context(whole.tokens - 1)
    assert (short.limited_by, short.messages) == ("repair", turns(2))
    assert session.context(short.tokens).limited_by == "budget"


def test_a_summary_limits_a_context_until_the_budget_does(session):
    session.extend(turns(20))
    assert session.compact(lambda _: "summed up", force=True).status == "summarized"
    whole = session.context()
    assert (whole.limited_by, whole.summary, whole.omitted > 0) == ("summary", "summed up", True)
    assert session.context(whole.tokens - 1).limited_by == "budget"
    session.uncompact()
    assert session.context().limited_by is None


def test_counters_decide_what_fits(db):
    words = memcore.CallableCounter(lambda text: len(text.split()), name="words")
    session = db.session("chat", counter=words)
    session.extend([user("one two three"), assistant("four"), user("five")])
    assert [i.tokens for i in session] == [3 + 1 + 3, 1 + 1 + 3, 1 + 1 + 3]
    assert session.context(5).messages == [user("five")]
    assert memcore.fit([user("one two three")], counter=words).tokens == 7
    db.delete_session("chat")  # the check at the end has no such counter


def test_a_policy_renders_one_log_in_its_own_way(session):
    session.extend([user(), call("a"), user("wait"), result("a")])
    assert [m["role"] for m in session.context().messages] == ["user", "assistant", "tool", "user"]
    session.set_policy("openai_responses")
    assert [m["role"] for m in session.context().messages] == ["user", "assistant", "user", "tool"]


def test_a_bound_that_a_screenshot_breaks_does_not_hold_a_context_up(db):
    """A context that shows folded items again for a late result; it went on for ever."""
    session = db.session("late", policy="openai_responses")
    session.extend([user(), {"type": "function_call", "call_id": "f", "name": "f"}])
    session.abandon("f")
    session.extend([user(f"words {n} and more") for n in range(8)])
    assert session.compact(lambda _: "so far", force=True).status == "summarized"
    session.extend([{"type": "computer_call", "call_id": f"c{n}", "action": {}} for n in range(3)])
    session.extend([user(), {"type": "function_call_output", "call_id": "f", "output": "late"}])
    for budget in range(1, session.context().tokens + 1, 3):
        context = attempt(session.context, budget)
        assert isinstance(context, memcore.ContextOverflowError) or context.tokens <= budget
