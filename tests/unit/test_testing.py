"""The testing kit: what its judges find, what its fuzzer reports, and faults of stores."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import contextmanager

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

import memcore
from memcore.errors import IllegalContextError, InvalidOptionError, StorageError
from memcore.testing import (
    Faults,
    agent_histories,
    assert_legal,
    check_memory,
    failing_stores,
    first_finding,
    fuzz,
    memory_machine,
    power_cuts,
    random_history,
    restarted,
    survey,
    trimmer,
)
from memcore.testing.facts import classify
from memcore.testing.legality import breaches, broken_pairs
from memcore.testing.script import FORMATS
from memcore.wire import get_policy
from memcore.wire.form import form_faults
from messages import assistant, call, result, user
from thinned import thinned

KINDS = ("late", "missing", "repeated", "idless", "parallel", "reasoning", "injected", "orphaned")
ALL = Faults(**dict.fromkeys(KINDS, 0.25))


def memcore_memory(policy="openai_chat"):
    """A memory of memcore's, for the fuzzer."""

    @contextmanager
    def make():
        with memcore.open(":memory:") as db:
            session = db.session("s", policy=policy, orphans="keep")
            yield session.append, lambda budget: session.context(budget).messages

    return make


def last(messages, budget):
    """The naive trimmer."""
    return messages[-budget:]


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", FORMATS)
def test_histories_of_agents_have_the_form_of_their_format(policy) -> None:
    wire = get_policy(policy).wire
    for seed in range(60):
        for item in random_history(policy=policy, seed=seed, faults=ALL):
            assert list(form_faults(item, wire)) == [], item


@pytest.mark.parametrize("policy", FORMATS)
def test_without_faults_a_history_is_legal_and_whole(policy) -> None:
    healthy = Faults.only(parallel=0.5, reasoning=0.5)
    for seed in range(60):
        history = random_history(policy=policy, seed=seed, faults=healthy)
        assert_legal(history, policy=policy)
        opened = sum(len(classify(item).opens) for item in history)
        closed = sum(len(classify(item).closes) for item in history)
        assert opened == closed > 0 or not opened


def parts(history):
    """Counts of what the faults of a history show."""
    items = [classify(item) for item in history]
    opened = [key for item in items for key in item.opens]
    closed = [key for item in items for key in item.closes]
    late = sum(
        before.kind not in {4, 5} and not before.opens and item.kind == 5
        for before, item in itertools.pairwise(items)
    )
    return {
        "late": late,
        "missing": len(set(opened) - set(closed)),
        "repeated": len(opened) + len(closed) - len(set(opened)) - len(set(closed)),
        "idless": sum(bool(key[0] & 0x40) for key in opened),
        "parallel": max((len(item.opens) for item in items), default=0) > 1,
        "reasoning": sum(item.kind == 6 or bool(item.flags & 4) for item in items),
        "injected": sum(
            bool(before.opens) and item.kind in {1, 2} for before, item in itertools.pairwise(items)
        ),
        "orphaned": len(set(closed) - set(opened)),
    }


SHOWN_IN = {"idless": "gemini", "reasoning": "anthropic"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_comes_when_asked_for_and_only_then(kind) -> None:
    policy = SHOWN_IN.get(kind, "openai_chat")
    asked, spared = 0, 0
    for seed in range(40):
        asked += parts(random_history(policy=policy, seed=seed, faults=Faults.only(**{kind: 0.5})))[
            kind
        ]
        others = Faults.only(**{each: 0.3 for each in ("parallel", "reasoning") if each != kind})
        spared += parts(random_history(policy=policy, seed=seed, faults=others))[kind]
    assert asked > 10
    assert spared == 0


def test_the_same_seed_makes_the_same_history() -> None:
    assert random_history(seed=3) == random_history(seed=3) != random_history(seed=4)


@pytest.mark.parametrize("policy", FORMATS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_drawn_histories_are_stored_by_memcore(policy, data) -> None:
    history = data.draw(agent_histories(policy=policy, faults=ALL))
    with memcore.open(":memory:") as db:
        session = db.session("s", policy=policy, orphans="keep")
        session.extend(history)
        assert len(session) == len(history)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Faults(late=1.5), "late"),
        (lambda: Faults(missing="much"), "missing"),
        (lambda: Faults.only(lateness=0.5), "lateness"),
        (lambda: random_history(policy="openai"), "openai"),
        (lambda: first_finding([], policy="openai"), "openai"),
        (lambda: first_finding([], level="strict"), "strict"),
        (lambda: first_finding([], level="pairs"), "history="),
        (lambda: fuzz(trimmer(last), level="strict"), "strict"),
        (lambda: fuzz(trimmer(last), budgets=(0, 3)), "budgets"),
        (lambda: fuzz(trimmer(last), budget=(1, 3)), "budget:"),
        (lambda: fuzz(7), "make"),
        (lambda: survey(lambda: None), "pair"),
        (lambda: fuzz(lambda: (1, 2, 3)), "pair"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(make, named) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        make()


# --- judges ---------------------------------------------------------------------------------------


def test_a_legal_context_is_no_finding() -> None:
    history = [user(), call("c1", "c2"), result("c2"), result("c1"), assistant()]
    assert first_finding(history) is None
    assert first_finding(history[:2]) is None  # open calls at the end
    assert_legal(history[3:][1:])


def test_a_finding_names_rule_place_and_call_and_shows_them() -> None:
    history = [user(), call("c1"), result("c1", "eighteen degrees"), assistant()]
    found = first_finding(history[2:], history=history, budget=9)
    assert (found.at, found.call_ids, found.budget) == (0, ("c1",), 9)
    told = str(found)
    assert "message 0: a result that its call is not right before ('c1')" in told
    assert "in the history, call 'c1': at 1; its results: at 2" in told
    assert "in the context, call 'c1': none; its results: at 0" in told
    assert "> " in told
    assert "eighteen degrees" in told
    with pytest.raises(IllegalContextError) as error:
        assert_legal(history[2:], history=history)
    assert error.value.finding.rule == found.rule
    assert isinstance(error.value, AssertionError)


def test_pairs_are_excused_where_the_history_lacks_the_other_half() -> None:
    history = [user(), call("c1", "c2"), result("c1"), result("zz"), assistant()]
    assert broken_pairs(history, history) == []
    assert [each.rule for each in broken_pairs(history[2:], history)] == [
        "a result without its call"
    ]
    shown = [history[0], history[1], history[4]]
    lost = broken_pairs(shown, history)
    assert [(each.at, each.keys) for each in lost] == [(1, ((0, "c1"),))]


def test_of_an_id_that_came_twice_the_pairs_are_told_apart() -> None:
    history = [call("c1"), result("c1"), user(), call("c1")]
    assert broken_pairs(history[2:], history) == []  # the second is still open
    history.append(result("c1"))
    assert broken_pairs(history[2:4], history) != []


def test_what_is_no_list_of_messages_is_a_finding() -> None:
    assert "no list of messages" in first_finding("hello").rule
    assert "no list of messages" in first_finding(None).rule
    assert first_finding([user(), 7]).at == 1
    assert first_finding([{"role": "user"}, object()]).rule == "no message, but object"


def test_messages_of_an_sdk_are_read() -> None:
    core = pytest.importorskip("langchain_core.messages")
    shown = [core.ToolMessage("18", tool_call_id="c1")]
    assert first_finding(shown, policy="langchain").call_ids == ("c1",)


@pytest.mark.parametrize("policy", FORMATS)
def test_the_judge_sees_what_memcores_own_validator_sees(policy) -> None:
    """Neither shares code with the other."""
    broken = 0
    for seed in range(80):
        history = random_history(policy=policy, seed=seed, faults=Faults(late=0.3, missing=0.1))
        for shown in (history, history[len(history) // 2 :]):
            theirs = memcore.validate(shown, policy=policy)
            ours = breaches(shown, policy)
            broken += bool(ours)
            assert bool(ours) == bool(theirs), (ours, theirs)
    assert broken > 10


@pytest.mark.parametrize("policy", FORMATS)
def test_contexts_of_a_file_are_legal_and_the_file_is_sound(
    memcore_db, memcore_history, policy
) -> None:
    session = memcore_db.session("s", policy=policy, orphans="keep")
    history = memcore_history(policy=policy, faults=ALL)
    session.extend(history)
    for level in ("pairs", "provider"):
        shown = session.context().messages
        assert_legal(shown, policy=policy, history=history, level=level)


# --- the fuzzer -----------------------------------------------------------------------------------


def test_the_naive_trimmer_is_found_and_the_finding_is_small() -> None:
    found = fuzz(trimmer(last), budgets=(1, 12))
    assert found.rule == "a result without its call"
    assert 0 < found.examples <= 200
    assert len(found.history) <= 5
    assert len(found.context) == found.budget == 1


def test_a_lost_result_is_found() -> None:
    def without_long_results(messages, budget):
        return [m for m in messages if m["role"] != "tool" or len(m["content"]) < budget]

    found = fuzz(trimmer(without_long_results), budgets=(10, 20))
    assert found.rule == "a call whose result was left out"


def test_a_trimmer_that_raises_is_a_finding_that_names_it() -> None:
    def trim(messages, budget):
        if any("tool_calls" in message for message in messages):
            raise KeyError("usage")
        return messages

    found = fuzz(trimmer(trim))
    assert found.rule == "context() raised KeyError: 'usage'"
    assert isinstance(found.error, KeyError)
    assert "tool_calls" in found.history[-1]
    with pytest.raises(IllegalContextError, match="raised KeyError"):
        check_memory(trimmer(trim))


def test_an_append_that_raises_names_the_item() -> None:
    def append(item):
        if item["role"] == "assistant":
            raise ValueError("no assistants")

    found = fuzz(lambda: (append, lambda _: []))
    assert found.rule == "append() raised ValueError: no assistants"
    assert found.history[-1]["role"] == "assistant"


def test_a_refusal_is_none() -> None:
    def trim(messages, budget):
        if len(messages) > 2:
            raise OverflowError
        return messages

    assert fuzz(trimmer(trim), refusals=(OverflowError,), examples=50) is None
    counted = survey(trimmer(trim), refusals=(OverflowError,), examples=50)
    assert (counted.illegal, counted.raised) == (0, 0)
    assert counted.refused > 40


def test_a_memory_that_changes_its_items_harms_no_history() -> None:
    def trim(messages, budget):
        for message in messages:
            message.clear()
        return []

    assert fuzz(trimmer(trim), examples=20) is None


def test_one_that_does_not_do_the_same_each_time_is_told() -> None:
    turns = iter(range(10**6))

    def trim(messages, budget):
        return messages[-1:] if next(turns) % 2 else messages

    found = fuzz(trimmer(trim), faults=Faults(late=0))
    assert found is not None


def test_coroutines_are_awaited() -> None:
    async def append(item):
        await asyncio.sleep(0)
        history.append(item)

    async def context(budget):
        return history[-budget:]

    history: list = []

    def make():
        history.clear()
        return append, context

    assert fuzz(make, budgets=(1, 5)).rule == "a result without its call"


@pytest.mark.parametrize("policy", thinned(FORMATS, 2))
@pytest.mark.parametrize("level", ["pairs", "provider"])
def test_memcore_passes(policy, level) -> None:
    options = {"policy": policy, "level": level, "refusals": (memcore.ContextOverflowError,)}
    check_memory(memcore_memory(policy), faults=ALL, examples=60, **options)
    counted = survey(memcore_memory(policy), faults=ALL, examples=60, **options)
    assert counted.rate == 0
    assert counted.refused < 40  # or nothing would be shown


@pytest.mark.parametrize("policy", thinned(FORMATS, 2))
def test_memcore_passes_the_machine(policy) -> None:
    machine = memory_machine(
        memcore_memory(policy), policy=policy, faults=ALL, level="provider",
        refusals=(memcore.ContextOverflowError,),
    )  # fmt: skip
    run = settings(max_examples=25, stateful_step_count=25, deadline=None, database=None)
    run_state_machine_as_test(machine, settings=run)


def test_the_machine_finds_the_naive_trimmer() -> None:
    machine = memory_machine(trimmer(last), budgets=(1, 12))
    run = settings(
        max_examples=100, stateful_step_count=20, deadline=None, database=None,
        phases=(Phase.generate,),
    )  # fmt: skip
    with pytest.raises(IllegalContextError) as error:
        run_state_machine_as_test(machine, settings=run)
    assert error.value.finding.rule in {
        "a result without its call", "a call whose result was left out",
    }  # fmt: skip


def test_the_counts_of_a_survey_are_those_of_its_histories() -> None:
    counted = survey(trimmer(last), budgets=(1, 8), examples=100)
    assert counted.contexts == 100
    assert counted.rate == counted.illegal / 100
    assert 0.1 < counted.rate < 0.9
    assert counted.first.examples <= 20


# --- stores ---------------------------------------------------------------------------------------


def test_stores_fail_inside_the_block_and_not_behind_it(tmp_path) -> None:
    with failing_stores("txn.put=error:EIO@40"), memcore.open(tmp_path / "a.memcore") as db:
        session = db.session("s")
        stored = 0
        with pytest.raises(StorageError):
            for _ in range(100):
                session.append(user())
                stored += 1
    assert stored
    with memcore.open(tmp_path / "a.memcore", verify=True) as db:
        assert len(db.session("s")) == stored
        assert db.check() == []
        for _ in range(60):
            db.session("s").append(user())


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_power_cut_loses_nothing_acknowledged_or_a_suffix(tmp_path, durability) -> None:
    path = tmp_path / "a.memcore"
    counts = set()
    with power_cuts(path) as cut, memcore.open(path, durability=durability) as db:
        session = db.session("s")
        for number in range(6):
            session.append(user(f"m{number}"))
        assert cut.flushes
        images = list(cut.images(25, seed=1))
    for number, image in enumerate(images):
        after = tmp_path / f"{number}.memcore"
        after.write_bytes(image)
        with restarted(), memcore.open(after, verify=True) as db:
            counts.add(len(db.session("s")))
            assert db.check() == []
    assert counts == {6} if durability == "full" else max(counts) <= 6


def test_the_power_cuts_see_a_store_that_flushes_nothing(tmp_path) -> None:
    path = tmp_path / "a.memcore"
    unsafe = {"durability": "none", "allow_unsafe": True}
    lost = 0
    with power_cuts(path) as cut, memcore.open(path, **unsafe) as db:
        for number in range(6):
            db.session("s").append(user(f"m{number}"))
        images = list(cut.images(10, seed=1))
    for number, image in enumerate(images):
        after = tmp_path / f"{number}.memcore"
        after.write_bytes(image)
        try:
            with restarted(), memcore.open(after, verify=True) as db:
                lost += len(db.session("s")) < 6
        except StorageError:
            lost += 1
    assert lost
