"""Contexts of arbitrary histories: legal, within budget, deterministic, nothing lost or twice."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import memcore
import strategies
from legality import found_wrong, plain
from memcore.context import lead_in_cost
from memcore.wire import POLICIES, WireItem, bind
from messages import attempt, illegal, recount
from oracle import RESULT, SYSTEM, Event, classify

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
relaxed = settings(
    max_examples=500 if LONG else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
few = settings(relaxed, max_examples=250 if LONG else 30)

WIRES = tuple(name for name in POLICIES if name != "seed")


@st.composite
def cases(draw):
    """A policy and a history of its own wire format (chat for ``seed``)."""
    policy = draw(st.sampled_from((*WIRES, "seed")))
    fmt = "openai_chat" if policy == "seed" else policy
    return policy, plain(draw(strategies.histories(fmt, orderly=draw(st.booleans()))))


def blocks(messages: list[dict[str, Any]]) -> Counter[str]:
    """All content blocks and whole messages, to find out what was shown twice."""
    found: Counter[str] = Counter()
    for message in messages:
        parts = message.get("parts") or message.get("content")
        for part in parts if isinstance(parts, list) else [message]:
            found[json.dumps(part, sort_keys=True)] += 1
    return found


@relaxed
@given(cases(), st.integers(0, 100))
def test_a_context_is_legal_and_within_its_budget(case, share):
    policy, messages = case
    whole = memcore.fit(messages, policy=policy)
    budget = max(1, whole.tokens * share // 100)
    context = attempt(memcore.fit, messages, budget, policy=policy)
    if isinstance(context, memcore.ContextOverflowError):
        assert context.budget_tokens == budget < context.needed_tokens
        budget = context.needed_tokens
        context = memcore.fit(messages, budget, policy=policy)
        assert context.tokens == budget
    assert recount(context.messages, None) == context.tokens <= budget
    assert found_wrong(context.messages, messages, policy) == []


def clashing_calls(draw: Any) -> dict[str, Any]:
    """An item of OpenAI Responses that makes or answers a call under one of two ids."""
    call_id = draw(st.sampled_from("ab"))
    kind = draw(st.sampled_from(("function_call", "custom_tool_call", "program", "output")))
    mark = str(
        draw(st.integers(10**9, 10**18))
    )  # by which each call and each output is known again
    if kind == "program":
        return {"type": kind, "id": call_id, "call_id": call_id, "code": mark, "fingerprint": "f"}
    if kind == "output":
        what = draw(st.sampled_from(("function_call_output", "custom_tool_call_output")))
        return {"type": what, "call_id": call_id, "output": mark}
    item: dict[str, Any] = {"type": kind, "call_id": call_id, "name": "f"}
    if kind == "custom_tool_call":
        return item | {"input": mark}
    item["arguments"] = json.dumps({"n": mark})
    if draw(st.booleans()):
        item["caller"] = {"type": "program", "caller_id": draw(st.sampled_from("ab"))}
    return item


clashing = st.lists(
    st.one_of(
        st.composite(clashing_calls)(),
        st.just({"role": "user", "content": "go on"}),
        st.just({"role": "assistant", "content": "well"}),
        st.just({"type": "reasoning", "id": "rs", "summary": []}),
        st.just({"type": "tool_search_call", "arguments": {}}),
        st.just({"type": "tool_search_output", "tools": []}),
    ),
    min_size=1,
    max_size=9,
)


def answers_of(messages: list[dict[str, Any]]) -> dict[str, str | None]:
    """The output of each call in a list, None if there is none or memcore wrote it."""
    binding = bind([WireItem(at, message) for at, message in enumerate(messages)])
    marks = [re.search(r"\d{10,}", json.dumps(message)) for message in messages]
    found = {}
    for at, made in enumerate(binding.calls):
        if made and (mark := marks[at]) is not None:
            answer = marks[made[0].results[-1]] if made[0].results else None
            found[mark.group()] = None if answer is None else answer.group()
    return found


@relaxed
@given(clashing, st.integers(0, 100))
def test_calls_of_one_response_may_share_an_id(messages, share):
    policy = "openai_responses"
    whole = memcore.fit(messages, policy=policy)
    assert memcore.validate(whole.messages, policy) == []
    assert found_wrong(whole.messages, messages, policy) == []
    assert memcore.fit(whole.messages, policy=policy).messages == whole.messages
    answers, left = answers_of(messages), answers_of(whole.messages)
    assert left == {call: answers[call] for call in left}  # no call has another one's output
    budget = whole.tokens * share // 100 + 1
    context = attempt(memcore.fit, messages, budget, policy=policy)
    if isinstance(context, memcore.Context):
        assert recount(context.messages, None) == context.tokens <= budget
        assert found_wrong(context.messages, messages, policy) == []
    for wire in WIRES:
        made = memcore.convert(messages, to=wire)
        assert memcore.validate(made.messages, wire) == []
        assert found_wrong(made.messages, messages, wire) == []
        told = json.dumps(made.messages)
        assert all(told.count(answer) == 1 for answer in left.values() if answer is not None)


def reckon(messages: list[dict[str, Any]], policy: str) -> tuple[int, dict[int, int]]:
    """``(pins, tokens by cut)`` of every context that a budget may choose, each one rendered.

    A cut at which no context should start costs the line that leads in; the whole list does so
    only where the provider insists.
    """
    rules = POLICIES[policy]
    kinds = [classify(message).kind for message in messages]
    pins = next((at for at, kind in enumerate(kinds) if kind != SYSTEM), len(kinds))
    if rules.one_pin:
        pins = min(pins, 1)
    assume(SYSTEM not in kinds[pins:])  # it would be a pin of what begins with it
    whole = memcore.fit(messages, policy=policy)
    assume("reasoning" not in [each.action for each in whole.repairs])  # one that is not shown
    found = {}
    for cut in memcore.safe_cuts(messages, policy):
        if cut < pins:
            continue
        context = memcore.fit(messages[:pins] + messages[cut:], policy=policy)
        if len(context.messages) == pins:
            continue  # nothing but orphans
        odd = kinds[cut] not in rules.starts and cut > pins and not rules.must_start
        found[cut] = context.tokens + odd * lead_in_cost(rules, memcore.get_counter())
    return pins, found


@relaxed
@given(cases())
def test_needed_tokens_are_the_least(case):
    policy, messages = case
    _, tokens = reckon(messages, policy)
    assume(tokens)
    refused = attempt(memcore.fit, messages, 1, policy=policy)
    assert isinstance(refused, memcore.ContextOverflowError)
    assert refused.needed_tokens == min(tokens.values())


@relaxed
@given(cases(), st.integers(0, 100))
def test_a_budget_is_used_to_its_last_token(case, share):
    """Where nothing but calls at the end is open, and nothing is repaired."""
    policy, messages = case
    whole = memcore.fit(messages, policy=policy)
    assume(not whole.repairs)
    pins, tokens = reckon(messages, policy)
    assume(tokens)
    budget = max(min(tokens.values()), whole.tokens * share // 100)
    context = memcore.fit(messages, budget, policy=policy)
    fitting = [cut for cut, cost in tokens.items() if cost <= budget]
    kinds = [classify(message).kind for message in messages]
    starts = [cut for cut in fitting if cut == pins or kinds[cut] in POLICIES[policy].starts]
    assert context.cut == min(starts or fitting)


@relaxed
@given(cases(), st.permutations((39, 40, 41, 64, 65)), st.integers(30, 100))
def test_long_ids_are_shortened_alike_in_calls_and_results(case, sizes, share):
    policy, messages = case
    text = json.dumps(messages)
    for name, size in zip(strategies.IDS, sizes, strict=True):
        text = text.replace(f'"{name}"', f'"{name[0] * (size - 1)}{name[1]}"')
    messages = json.loads(text)
    whole = memcore.fit(messages, policy=policy)
    shorter = attempt(memcore.fit, messages, max(1, whole.tokens * share // 100), policy=policy)
    for context in (whole, shorter):
        if isinstance(context, memcore.Context):
            assert found_wrong(context.messages, messages, policy) == []
            assert recount(context.messages, None) == context.tokens
    with memcore.open(":memory:") as db:
        session = stored(db, policy, messages)
        assert session.context().messages == whole.messages


@relaxed
@given(cases())
def test_without_a_budget_nothing_but_orphans_and_older_answers_is_left_out(case):
    policy, messages = case
    context = memcore.fit(messages, policy=policy)
    if context.omitted:  # nothing can be shown at all
        assert all(classify(m).kind in {RESULT, SYSTEM} for m in messages)
        return
    if any(r.action == "renamed" for r in context.repairs):
        return  # calls whose id came again have another one now
    shown, given_ = blocks(context.messages), blocks(messages)
    written = sum(r.action in {"synthesized", "lead_in"} for r in context.repairs)
    assert sum((shown - given_).values()) <= written
    missing = sum((given_ - shown).values())
    left_out = sum(r.action in {"orphan", "superseded", "reasoning"} for r in context.repairs)
    assert (missing > 0) <= (left_out > 0)


@relaxed
@given(cases(), st.integers(1, 400))
def test_equal_input_gives_equal_bytes_and_leaves_the_input_alone(case, budget):
    policy, messages = case
    before = json.dumps(messages)

    outcomes = {repr(attempt(memcore.fit, messages, budget, policy=policy)) for _ in range(3)}
    assert len(outcomes) == 1
    assert json.dumps(messages) == before


@relaxed
@given(
    st.sampled_from(WIRES).flatmap(
        lambda wire: st.tuples(st.just(wire), strategies.histories(wire, orderly=True))
    ),
    st.integers(1, 100),
)
def test_the_suffix_is_the_longest_that_fits(case, share):
    """One token less than the cut before costs: the context starts later; never needlessly late."""
    policy, messages = case[0], plain(case[1])
    assume(messages)
    whole = memcore.fit(messages, policy=policy)
    budget = max(1, whole.tokens * share // 100)
    try:
        context = memcore.fit(messages, budget, policy=policy)
    except memcore.ContextOverflowError:
        return
    pins = next((at for at, m in enumerate(messages) if classify(m).kind != SYSTEM), len(messages))
    for cut in memcore.safe_cuts(messages, policy, starts=True):
        if pins <= cut < context.cut:
            longer = memcore.fit(messages[:pins] + messages[cut:], policy=policy)
            assert longer.tokens + _slack(messages[cut:]) > budget
            break


def _slack(messages: list[dict[str, Any]]) -> int:
    """What the bound counts beside the rendered form: open calls, and answers never shown."""
    calls = sum(len(classify(m).opens) for m in messages)
    answers = sum(recount([m], None) for m in messages if classify(m).kind == RESULT)
    return 64 * calls + answers


@relaxed
@given(cases())
def test_rendering_a_context_again_changes_nothing(case):
    policy, messages = case
    once = memcore.fit(messages, policy=policy).messages
    keys = Counter(key for message in once for key in classify(message).opens)
    assume(not illegal(once, policy) and max(keys.values(), default=0) < 2)
    assert memcore.fit(once, policy=policy).messages == once


@relaxed
@given(cases())
def test_what_validate_accepts_needs_no_repair(case):
    policy, messages = case
    context = memcore.fit(messages, policy=policy)
    if not memcore.validate(messages, policy):
        assert context.messages == messages
        assert context.repairs == ()
    if policy != "seed":
        assert bool(found_wrong(messages, messages, policy)) <= bool(
            memcore.validate(messages, policy)
        )


@relaxed
@given(cases(), st.integers(0, 30))
def test_safe_cuts_split_no_pair(case, at):
    policy, messages = case
    for cut in memcore.safe_cuts(messages, policy):
        orphans = sum(r.action == "orphan" for r in memcore.fit(messages, policy=policy).repairs)
        behind = memcore.fit(messages[cut:], policy=policy)
        assert sum(r.action == "orphan" for r in behind.repairs) <= orphans


# --- the same through a session, with compactions -------------------------------------------------


def stored(db: memcore.Database, policy: str, history: list[Any]) -> memcore.Session:
    session = db.session("chat", policy=policy, orphans="keep", shape="keep")
    for item in history:
        if isinstance(item, Event):
            if not item.abandons:
                session.record("note", 1)
            elif session.open_calls:
                session.abandon(session.open_calls[0].call_id)
        else:
            session.append(json.loads(json.dumps(item)))
    return session


@few
@given(
    st.sampled_from((*WIRES, "seed")),
    st.data(),
    st.sampled_from(("summary", "trim", "fails", "none")),
    st.integers(0, 6),
)
def test_a_session_with_a_view_gives_legal_contexts(policy, data, how, keep):
    fmt = "openai_chat" if policy == "seed" else policy
    orderly = data.draw(st.booleans())
    history = data.draw(strategies.histories(fmt, orderly=orderly))
    more = data.draw(strategies.histories(fmt, orderly=orderly))
    with memcore.open(":memory:") as db:
        session = stored(db, policy, history)
        if how != "none":
            summarize = {"summary": lambda _: "so far", "trim": None, "fails": _fails}[how]
            session.compact(summarize, keep_last=keep)
        session = stored(db, policy, more)
        for share in (100, 60, 30, 10):
            whole = session.context()
            budget = max(1, whole.tokens * share // 100)
            context = attempt(session.context, budget)
            if isinstance(context, memcore.ContextOverflowError):
                assert context.needed_tokens > budget
                budget = context.needed_tokens
                context = session.context(budget)
            assert context.tokens <= budget
            assert recount(context.messages, None) == context.tokens
            assert found_wrong(context.messages, plain(history + more), policy) == []
            assert context == session.context(max(budget, context.tokens))
        assert len(session) == len(list(session)) == session.revision
        assert db.check() == []


def test_an_empty_id_that_comes_again_stays_empty():
    use = {"type": "tool_use", "id": "", "name": "f", "input": {}}
    messages = [{"role": "user", "content": "q"}]
    messages += [{"role": "assistant", "content": [use]}, {"role": "assistant", "content": [use]}]
    assert memcore.fit(messages, policy="anthropic").messages == messages


def _fails(_: memcore.SummaryRequest) -> str:
    raise RuntimeError


@few
@given(cases())
def test_a_session_shows_what_fit_shows(case):
    policy, messages = case
    with memcore.open(":memory:") as db:
        session = stored(db, policy, messages)
        for budget in (None, 1, 30, 100, 300):
            outcomes: list[Any] = []
            for ask in (session.context, lambda b: memcore.fit(messages, b, policy=policy)):
                try:
                    context = ask(budget)
                    outcomes.append((context.messages, context.tokens, len(context.repairs)))
                except memcore.ContextOverflowError as refused:
                    outcomes.append(refused.needed_tokens)
            assert outcomes[0] == outcomes[1]
        assert len(session.open_calls) == sum(entry.open_calls for entry in db.sessions())
