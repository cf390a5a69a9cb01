"""Several agents: who sees what of a shared history, and histories that share results alone."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

import memcore
from legality import found_wrong, plain
from memcore import aio
from messages import assistant, attempt, call, result, system, user

TRIALS = int(os.environ.get("MEMCORE_AGENT_TRIALS", "12"))


def anthropic_call(call_id: str) -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": "f", "input": {}}
    return {"role": "assistant", "content": [block]}


def anthropic_result(call_id: str) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": "done"}
    return {"role": "user", "content": [block]}


def responses_call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def responses_result(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


WIRES = {
    "openai_chat": (call, result),
    "anthropic": (anthropic_call, anthropic_result),
    "openai_responses": (responses_call, responses_result),
}


def told(author: str, kind: str | None = None) -> dict[str, Any]:
    return {"author": author} if kind is None else {"author": author, "type": kind}


def interleaved(rng: random.Random, policy: str) -> list[tuple[Any, Any, bool]]:
    """``(item, envelope, whether p sees it)`` of three agents who talk at once."""
    called, answered = WIRES[policy]
    found: list[tuple[Any, Any, bool]] = [(system(), None, True)]
    waiting: list[tuple[str, str]] = []
    for number in range(rng.randrange(4, 36)):
        who, what = rng.choice("pqr"), rng.random()
        if what < 0.2:
            found.append((user(f"u{number}"), rng.choice([None, told("user")]), True))
        elif what < 0.5:
            kind = rng.choice([None, "planner", "aggregate"])
            item = assistant(f"a{number} " * rng.randrange(1, 9))
            found.append((item, told(who, kind), who == "p" or kind != "planner"))
        elif what < 0.75 or not waiting:
            waiting.append((f"c{number}", who))
            found.append((called(f"c{number}"), told(who), who == "p"))
        else:
            call_id, caller = waiting.pop(rng.randrange(len(waiting)))
            by = rng.choice([None, told("tool"), told(caller)])
            found.append((answered(call_id), by, caller == "p"))
    return found


@pytest.mark.parametrize("policy", WIRES)
def test_a_view_is_the_history_of_what_it_shows(policy: str) -> None:
    for seed in range(TRIALS):
        history = interleaved(random.Random(seed), policy)
        with memcore.open(":memory:", counter="bytes/4", policy=policy) as db:
            shared, alone = db.session("shared"), db.session("alone")
            for item, envelope, seen in history:
                shared.append(item, envelope=envelope)
                if seen:
                    alone.append(item, envelope=envelope)
            assert [i.message for i in shared.items(authors=["p"])] == [i.message for i in alone]
            for budget in (None, 30, 60, 120, 240):
                found = attempt(shared.context, budget, authors=["p"])
                expected = attempt(alone.context, budget)
                if isinstance(expected, memcore.ContextOverflowError):
                    assert isinstance(found, memcore.ContextOverflowError)
                    continue
                assert found.messages == expected.messages, seed
                assert (found.tokens, found.open_calls) == (expected.tokens, expected.open_calls)
                messages = plain([item.message for item in alone])
                assert found_wrong(found.messages, messages, policy) == []


def test_what_others_share(session) -> None:
    session.append(user("question"))
    session.append(assistant("plan"), envelope=told("q", "planner"))
    session.append(assistant("answer of q"), envelope=told("q"))
    session.append(assistant("sum of q"), envelope=told("q", "aggregate"))
    session.append(assistant("of nobody"))
    session.append(assistant("mine"), envelope={"agent": "p"})

    def shown(**options: Any) -> list[str]:
        return [message["content"] for message in session.context(**options).messages]

    mine = ["question", "of nobody", "mine"]
    assert shown(authors=["p"], share="none") == mine
    results = ["question", "answer of q", "sum of q", "of nobody", "mine"]
    assert shown(authors=["p"]) == shown(authors=["p"], share="results") == results
    assert shown(authors=["p", "q"]) == shown(authors=["p"], share="all") == shown()
    assert shown(authors=[]) == results
    assert session.context(60, authors=["p"]) == session.context(60, authors=["p"])


def test_what_is_left_out_eats_no_budget(session) -> None:
    session.append(user("question"))
    session.append(call("long"), envelope=told("q"))
    for number in range(40):
        session.append(assistant(f"mine {number}"), envelope=told("p"))
    session.append(result("long", "x" * 4000), envelope=told("q"))
    found = session.context(200, authors=["p"], share="none")
    assert found.tokens > 150
    assert all("mine" in str(m["content"]) for m in found.messages[1:])
    # The call of q spans all of it: the whole history has no cut that fits.
    with pytest.raises(memcore.ContextOverflowError):
        session.context(200)


def test_an_event_among_pinned_items_is_shown_to_no_author(session) -> None:
    session.append(system("a"))
    session.record("note", {"n": 1})
    session.append(system("b"))
    session.append(user("c"))
    expected = [system("a"), system("b"), user("c")]
    assert session.context().messages == expected
    assert session.context(authors=["p"]).messages == expected


def test_a_group_of_several_callers_stays_whole() -> None:
    with memcore.open(":memory:", policy="anthropic", counter="bytes/4") as db:
        session = db.session("a")
        session.append(user())
        session.append(anthropic_call("a"), envelope=told("p"))
        session.append(anthropic_call("b"), envelope=told("q"))
        both = [*anthropic_result("a")["content"], *anthropic_result("b")["content"]]
        session.append({"role": "user", "content": both}, envelope=told("q"))
        session.append(assistant("x"), envelope=told("q", "planner"))
        found = session.context(authors=["p"], share="none").messages
        assert [block["id"] for m in found[1:] for block in m["content"] if "id" in block] == [
            *("a", "b")
        ]
        assert memcore.validate(found, "anthropic") == []


def test_reasoning_goes_with_what_its_author_said() -> None:
    with memcore.open(":memory:", policy="openai_responses", counter="bytes/4") as db:
        session = db.session("a")
        session.append(user())
        session.append({"type": "reasoning", "id": "r1", "summary": []}, envelope=told("q"))
        session.append(assistant("of p"), envelope=told("p", "planner"))
        session.append(assistant("of q"), envelope=told("q", "final"))
        kinds = [m.get("type", m.get("content")) for m in session.context(authors=["r"]).messages]
        assert kinds == ["hi", "reasoning", "of q"]
        none = session.context(authors=["r"], share="none").messages
        assert [m["content"] for m in none] == ["hi"]


def test_views_and_changes_are_followed(session) -> None:
    for number in range(12):
        session.append(user(f"u{number}"))
        session.append(assistant(f"a{number}"), envelope=told("pq"[number % 2], "planner"))
    assert len(session.context(authors=["p"], share="none").messages) == 18
    session.compact(lambda request: "all before", keep_last=4)
    found = session.context(authors=["p"], share="none")
    assert found.summary == "all before"
    assert [m["content"] for m in found.messages[1:]] == ["u10", "a10", "u11"]
    session.undo(2)
    session.append(user("again"))
    shown = session.context(authors=["p"], share="none").messages
    assert shown[-1]["content"] == "again"
    assert session.context(authors=["p"], share="none", view=0).messages[0]["content"] == "u0"


def test_usage_is_not_learned_from_a_part(session) -> None:
    session.append(user("question " * 30))
    session.append(assistant("a " * 50), envelope=told("q"))
    session.context()
    session.report_usage(5_000, model="m")
    session.context(authors=["p"], share="none")
    session.report_usage(10, model="m")
    (known,) = session.calibrations()
    assert (known.input_tokens, known.factor) == (5_000, 1.0)
    assert session.context(authors=["p"]).estimated_tokens == session.context(authors=["p"]).tokens


def test_odd_filters_are_refused(session) -> None:
    session.append(user())
    for options in (
        {"authors": "p"}, {"authors": [1]}, {"authors": [""]}, {"authors": 5},
        {"authors": ["p"], "share": "some"}, {"share": "results"},
    ):  # fmt: skip
        with pytest.raises(memcore.InvalidOptionError, match=r"authors|share"):
            session.context(**options)
        with pytest.raises(memcore.InvalidOptionError, match=r"authors|share"):
            session.items(**options)
    assert memcore.open(":memory:").session("none").context(authors=["p"]).messages == []


def test_children_share_results_alone(db) -> None:
    session = db.session("task", user="u")
    child = session.child("writer")
    assert (child.id, child.user, child.app) == ("task::writer", "u", "default")
    assert session.child("writer").id == child.id
    with pytest.raises(memcore.NotFoundError):
        session.share(child)
    child.append(user("write"))
    child.append(assistant("draft"), envelope={"type": "planner"})
    child.append(assistant("text"), meta={"m": 1})
    child.append(call("c"))
    first = session.share(child)
    assert session.share(child) == first
    (item,) = session
    assert (item.message, item.type, item.envelope.author) == (assistant("text"), "final", "writer")
    assert item.meta == {"m": 1, "shared": {"session": "task::writer", "seq": 3}}
    session.share(child, 2)
    assert [i.type for i in session] == ["final", "final"]
    session.undo(2)
    session.share(child)  # what was undone may be shared again
    assert len(session) == 1
    for wrong, seq in ((session, None), (child, 4), (child, 9)):
        with pytest.raises((memcore.InvalidOptionError, memcore.NotFoundError)):
            session.share(wrong, seq)
    with pytest.raises(memcore.InvalidOptionError):
        session.share(db.session("task::writer", user="other"))
    for name in ("", "a::b", ":a", "a:", 5):
        with pytest.raises(memcore.InvalidOptionError):
            session.child(name)


def test_the_same_with_await(session) -> None:
    async def main() -> None:
        shared = aio.AsyncSession(session)
        child = shared.child("writer")
        await child.append(assistant("text"))
        await shared.share(child)
        await shared.append(assistant("x"), envelope=told("q", "planner"))
        found = await shared.context(authors=["p"])
        assert [m["content"] for m in found.messages] == ["text"]
        assert [i.seq async for i in shared.items(authors=["p"])] == [1]

    asyncio.run(main())


def test_a_child_is_held_to_its_parents_counter(db) -> None:
    one, other = (memcore.CallableCounter(len, name=name) for name in ("one", "other"))
    parent = db.session("p", counter=one)
    child = parent.child("k")
    for session in (parent, child):
        session.append({"role": "user", "content": "x"})
        db.session(session.id, counter=other, recount=True).append({"role": "user", "content": "y"})
    for session in (parent, child):
        with pytest.raises(memcore.PolicyMismatchError, match="counted by"):
            session.append({"role": "user", "content": "z"})
