"""Policies used without mercy: what they promise holds whatever comes together."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import memcore
from memcore import CompactionPolicy, Keep, Stage, SummaryRequest, Trigger
from memcore._fast import classify
from memcore.compaction import ClearResults, Reduction, StripReasoning, TruncateArguments
from memcore.compaction.reducers import Visible
from memcore.log import count_message
from memcore.model import Mask
from memcore.tokens import get_counter
from memcore.wire import get_policy

Message = dict[str, Any]


def said(number: int, role: str = "user") -> Message:
    return {"role": role, "content": f"Text {number} of {role} with some more words in it"}


def call(name: str, tool: str = "look", arguments: str = "{}") -> Message:
    made = {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def result(name: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": "found a lot of words " * 60}


def talk(turns: int) -> list[Message]:
    return [said(n, role) for n in range(turns) for role in ("user", "assistant")]


def work(rounds: int, *, memos: int = 0) -> list[Message]:
    return [
        message
        for n in range(rounds)
        for message in (call(f"c{n}", "memo" if n < memos else "look"), result(f"c{n}"), said(n))
    ]


def policy(**stage: Any) -> CompactionPolicy:
    return CompactionPolicy(stages=(Stage(**stage),))


def failing(request: SummaryRequest) -> str:
    raise ValueError


@pytest.fixture
def session() -> Any:
    with memcore.open(":memory:") as db:
        yield db.session("s")


def test_what_starts_at_a_turn_keeps_a_call_that_is_open(session: Any) -> None:
    session.extend([*talk(20), call("open"), said(100), said(101, "assistant"), said(102)])
    for keep in (Keep(last_items=None, tokens=40, turn_start=True),
                 Keep(last_items=30, max_tokens=40, turn_start=True)):  # fmt: skip
        plan = session.plan(policy=policy(keep=keep))
        assert 0 < plan.cut <= 40, keep


def test_a_range_below_an_earlier_cut_comes_back_with_its_pairs(session: Any) -> None:
    session.extend([*talk(5), call("c"), result("c"), *talk(20)])
    session.compact(lambda request: "S")
    session.extend(talk(20))
    for pinned in ((11, 11), (12, 12)):
        found = session.compact(lambda request: "T", policy=policy(keep=Keep(pinned=(pinned,))))
        assert found.view.pinned == (11, 12)
        assert session.context().repairs == ()
        session.uncompact()


def test_ranges_and_first_items_behind_the_cut_are_not_masked(session: Any) -> None:
    session.extend(work(10))
    for keep, kept in ((Keep(last_items=25, pinned=((8, 9),)), {8}),
                       (Keep(last_items=28, first_items=6), {2, 5})):  # fmt: skip
        plan = session.plan(policy=policy(keep=keep, reducers=(ClearResults(keep_last=0),)))
        assert plan.masks
        assert not kept & {mask.seq for mask in plan.masks}


def test_the_fallback_masks_nothing_that_is_kept_by_name_or_place(session: Any) -> None:
    session.extend(work(20, memos=2))
    keep = Keep(tools=("memo",), pinned=((8, 8),))
    found = session.compact(failing, policy=policy(keep=keep))
    assert found.status == "fallback_reduce"
    assert not {2, 5, 8} & {mask.seq for mask in found.view.masks}


def test_one_item_that_is_kept_twice_is_counted_once(session: Any) -> None:
    calls = [f"k{n}" for n in range(5)]
    group = call("k", "memo") | {"tool_calls": [call(k, "memo")["tool_calls"][0] for k in calls]}
    session.extend([*talk(100), group, *(result(name) for name in calls)])
    rule = CompactionPolicy(stages=(Stage(keep=Keep(tools=("memo",))),), fallback=("last",))
    found = session.compact(failing, policy=rule)
    assert found.status == "fallback_last"
    assert found.view.tokens_after == session.context().tokens


def test_numbers_of_a_call_do_not_change_which_stage_runs(session: Any) -> None:
    session.extend(talk(130))
    assert session.pressure(policy="layered").stage == "heavy"
    found = session.compact(lambda request: "S", policy="layered", keep_last=15)
    assert (found.status, found.view.policy) == ("trimmed", "layered/heavy")
    assert len(session.context().messages) == 15


def test_numbers_of_a_call_leave_the_fallback_in_force(session: Any) -> None:
    session.extend(talk(20))
    found = session.compact(lambda request: request.session_id + "long " * 2_000, keep_last=8)
    assert found.status == "fallback_slice"


def test_numbers_in_arguments_stay_what_they_are(session: Any) -> None:
    rule = policy(keep=None, reducers=(TruncateArguments(keep_last=0),))
    for number in ("1e999", "12345678901234567890.123", "-1e-999"):
        text = f'{{"n":{number},"s":"{"word " * 2_000}"}}'
        session.extend([call(number, arguments=text), result(number), said(1)])
    session.extend([call("fits", arguments=text.replace("-1e-999", "1.50")), result("fits")])
    session.compact(policy=rule)
    shown = [m["tool_calls"][0]["function"]["arguments"] for m in session.context().messages[::3]]
    assert [len(text) > 10_000 for text in shown] == [True, True, True, False]
    for text in shown:
        json.loads(text, parse_constant=pytest.fail)


def test_the_tokens_before_hold_the_summary_before(session: Any) -> None:
    for summary in ("first words " * 100, "second words " * 90):
        session.extend(talk(20))
        before = session.context().tokens
        view = session.compact(lambda request, text=summary: text).view
        assert (view.tokens_before, view.tokens_after) == (before, session.context().tokens)


@pytest.mark.parametrize("large", [10**9, 2**70, 10**400])
def test_large_numbers_mean_all_there_is(session: Any, large: int) -> None:
    session.extend(talk(20))
    for name in ("last_items", "last_turns", "key_items", "tokens", "max_tokens", "first_items",
                 "protect_open_items"):  # fmt: skip
        keep = Keep(**{name: large})
        session.compact(lambda request: "S", policy=policy(keep=keep))
        session.compact(lambda request: "S", policy=policy(keep=Keep()))
        session.compact(lambda request: "S", policy=policy(keep=keep))
        while session.uncompact():
            pass
    session.compact()
    session.plan(policy=policy(keep=Keep(pinned=((1, large), (large, large)))))
    share = Stage(keep=Keep(fraction=0.5), triggers=(Trigger(fraction=0.8),))
    rule = CompactionPolicy(window_tokens=large, stages=(share,))
    assert not session.needs_compaction(policy=rule)
    session.plan(policy=rule)


def test_many_items_that_stay_are_looked_up_at_once(session: Any) -> None:
    session.extend([m for m in work(4_000, memos=4_000) if m["role"] != "user"][:8_000])
    session.extend(talk(5))
    plan = session.plan(policy=policy(keep=Keep(tools=("memo",))))
    assert len(plan.pinned) == 8_000


@pytest.mark.parametrize("given", [0, -1, float("nan"), True, "3"])
def test_a_time_that_is_none_is_refused(session: Any, given: Any) -> None:
    session.extend(talk(10))
    with pytest.raises(memcore.InvalidOptionError, match="timeout_seconds"):
        session.compact(failing, timeout_seconds=given)


def test_no_exit_waits_for_a_summarizer_that_hangs() -> None:
    script = """
import memcore, time
with memcore.open(":memory:") as db:
    session = db.session("s")
    session.extend([{"role": "user", "content": f"some words {n}"} for n in range(20)])
    print(session.compact(lambda request: time.sleep(60), timeout_seconds=0.1).status)
"""
    root = Path(memcore.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == "fallback_slice\n"


def test_no_loop_waits_for_a_summarizer_that_hangs() -> None:
    async def run() -> str:
        async with memcore.aio.open(":memory:") as db:
            session = db.session("s")
            await session.extend(talk(10))
            found = await session.compact(
                lambda request: str(Event().wait(20)), timeout_seconds=0.1
            )
            return found.status

    assert asyncio.run(run()) == "fallback_slice"


def test_a_reducer_that_no_mapping_names_is_told() -> None:
    class Mine:
        def reduce(self, items: Any, by: Any) -> list[Any]:
            return []

    with pytest.raises(memcore.InvalidOptionError, match="Mine"):
        memcore.policy_mapping(policy(keep=None, reducers=(Mine(),)))


@pytest.mark.parametrize("name", ["a.json", "a.toml"])
def test_a_file_that_is_nested_too_deeply_is_no_policy(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(("x = " if name.endswith("toml") else "") + "[" * 200_000)
    with pytest.raises(memcore.InvalidOptionError):
        memcore.read_policy(file)


def test_a_long_run_of_reasoning_is_read_once() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinks on"}]}
    messages = [said(0), *[thought] * 10_000, said(1), said(2, "assistant"), said(3)]
    counter = get_counter(None)
    items = [
        Visible(at + 1, memcore.ItemKind(classify(m)[0]), m, count_message(m, counter))
        for at, m in enumerate(messages)
    ]
    by = Reduction(get_policy("openai_responses"), counter)
    assert (
        len(StripReasoning().reduce(items, by)) == 10_000
    )  # 23 seconds when each looked for its response's end


def test_a_mask_of_another_kind_is_refused(session: Any) -> None:
    class Promoting:
        name = "promoting"

        def reduce(self, items: Any, by: Reduction) -> list[Mask]:
            shown = {"role": "system", "content": "x"}
            return [Mask(items[0].seq, "promoted", count_message(shown, by.counter), shown)]

        def settings(self) -> dict[str, object]:
            return {}

    session.extend(talk(5))
    with pytest.raises(memcore.InternalError, match="another kind"):
        session.plan(policy=policy(keep=None, reducers=(Promoting(),)))
