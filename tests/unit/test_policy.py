"""Compaction policies: when they are due, what they keep, and how they are written down."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

import memcore
from memcore import CompactionPolicy, InvalidOptionError, Keep, Stage, Trigger
from memcore.compaction.reducers import ClearResults
from messages import assistant, call, result, system, turns, user

LONG = "some words of an output " * 60


def policy(*triggers: Trigger, keep: Keep | None = None, **options: Any) -> CompactionPolicy:
    stage = Stage(triggers=triggers, keep=keep or Keep(last_items=1), summary=None)
    return CompactionPolicy(stages=(stage,), min_gain=0.0, **options)


def shown(session: memcore.Session, **options: Any) -> list[Any]:
    return [message.get("content") for message in session.context(**options).messages]


def called(tool: str, call_id: str) -> dict[str, Any]:
    made = call(call_id)
    made["tool_calls"][0]["function"]["name"] = tool
    return made


# --- triggers -------------------------------------------------------------------------------------


def test_items_tokens_and_turns(session):
    session.extend([system(), *turns(5)])
    pressure = session.pressure()
    assert (pressure.items, pressure.turns, pressure.waiting) == (10, 5, False)
    assert pressure.tokens == session.context().tokens == session.tokens
    for due, trigger in (
        (True, Trigger(items=9)),
        (False, Trigger(items=10)),
        (True, Trigger(turns=4)),
        (False, Trigger(turns=5)),
        (True, Trigger(tokens=pressure.tokens - 1)),
        (False, Trigger(tokens=pressure.tokens)),
        (False, Trigger(items=9, turns=5)),
        (True, Trigger(items=9, turns=4)),
    ):
        assert session.needs_compaction(policy=policy(trigger, keep=Keep(last_items=0))) is due
    one_of = policy(Trigger(items=100), Trigger(turns=4))
    assert session.pressure(policy=one_of).stage == "default"


def test_what_a_view_covers_presses_no_more(session):
    session.extend([system(), *turns(6)])
    session.compact(keep_last=2)
    pressure = session.pressure()
    assert (pressure.items, pressure.turns) == (2, 1)
    assert pressure.tokens == session.context().tokens


def test_a_share_of_the_window(session):
    session.extend(turns(4))
    for window, due in ((session.tokens * 2 - 1, True), (session.tokens * 2, False)):
        rule = policy(Trigger(fraction=0.5), window_tokens=window)
        assert session.needs_compaction(policy=rule) is due


def test_idle_time(session, monkeypatch):
    session.extend(turns(4))
    rule = policy(Trigger(idle_seconds=60))
    assert not session.needs_compaction(policy=rule)
    engine = session._ref.engine
    now = engine.now_us()
    monkeypatch.setattr(engine, "now_us", lambda: now + 61_000_000)
    assert session.needs_compaction(policy=rule)
    monkeypatch.setattr(engine, "now_us", lambda: now - 10**9)  # clocks may go backwards
    assert session.pressure().idle_seconds == 0


def test_an_event(session):
    session.extend(turns(4))
    rule = policy(Trigger(event="task_end"))
    session.record("task_begin", None)
    assert not session.needs_compaction(policy=rule)
    session.record("task_end", {"task": 1})
    assert session.needs_compaction(policy=rule)
    assert session.pressure().event == "task_end"
    session.append(user())
    assert not session.needs_compaction(policy=rule)


def test_results_wait_for_the_models_word(session):
    session.extend([*turns(8), call("a"), result("a")])
    assert session.pressure().waiting
    assert not session.needs_compaction()
    session.append(assistant())
    assert session.needs_compaction()


def test_turns_are_counted_down_and_nothing_is_cut(session):
    rule = memcore.compaction_policy({"max_turns": 3, "stages": [{"triggers": [{"items": 99}]}]})
    session.extend(turns(2))
    assert session.pressure(policy=rule).turns_left == 1
    session.extend(turns(4))
    assert session.pressure(policy=rule).turns_left == -3
    assert session.pressure().turns_left is None
    assert len(session.context().messages) == 12


def test_the_heaviest_stage_that_is_due_runs(session):
    rule = memcore.compaction_policy({"preset": "layered", "light": 4, "medium": 8, "heavy": 20})
    for count, stage in ((2, None), (3, "light"), (5, "medium"), (11, "heavy")):
        session.extend(turns(count - len(session) // 2, start=len(session) // 2))
        assert session.pressure(policy=rule).stage == stage


# --- what stays -----------------------------------------------------------------------------------


def test_turns_and_first_items_stay(session):
    session.extend([system(), *turns(6)])
    session.compact(policy=policy(keep=Keep(last_items=None, last_turns=2)))
    assert shown(session) == ["be kind", "q4", "a4", "q5", "a5"]
    session.uncompact()
    session.compact(policy=policy(keep=Keep(first_items=2, last_items=1)))
    assert shown(session) == ["be kind", "q0", "a0", "a5"]


def test_what_is_first_stays_through_later_compactions(session):
    rule = policy(keep=Keep(first_items=2, last_items=1))
    session.extend(turns(6))
    session.compact(policy=rule)
    session.extend(turns(3, start=6))
    session.compact(policy=rule)
    assert shown(session) == ["q0", "a0", "a8"]
    assert session.views()[-1].pinned == (1, 2)


def test_ranges_stay_with_their_pairs(session):
    session.extend([user("q"), call("a", "b"), result("a", "1"), result("b", "2"), *turns(4)])
    session.compact(policy=policy(keep=Keep(last_items=1, pinned=((3, 3),))))
    assert shown(session) == [
        "[The earlier part of this conversation is not shown.]",
        None,
        "1",
        "2",
        "a3",
    ] or (shown(session) == [None, "1", "2", "a3"])
    assert memcore.validate(session.context().messages) == []


def test_calls_of_protected_tools_stay(session, caplog):
    session.extend([user("q"), called("memo", "a"), result("a", "kept"), called("search", "b")])
    session.extend([result("b", "gone"), *turns(4)])
    session.compact(policy=policy(keep=Keep(last_items=1, tools=("memo",))))
    assert "kept" in shown(session)
    assert "gone" not in shown(session)
    assert memcore.validate(session.context().messages) == []
    session.uncompact()
    with caplog.at_level(logging.WARNING, logger="memcore"):
        session.compact(policy=policy(keep=Keep(last_items=1, tools=("memos",))))
    assert "did you mean 'memo'?" in caplog.text


def test_key_items_and_a_cap(session):
    session.extend([*turns(3), call("a"), result("a", LONG), assistant("done"), *turns(2)])
    session.compact(policy=policy(keep=Keep(last_items=None, key_items=6)))
    assert shown(session)[0] is None  # the call of the sixth last user item, result or answer
    session.uncompact()
    session.compact(policy=policy(keep=Keep(last_items=None, key_items=5)))
    assert shown(session)[0] == "done"  # an answer counts; a call does not
    session.uncompact()
    session.compact(policy=policy(keep=Keep(last_items=None, key_items=6, max_tokens=60)))
    assert LONG not in shown(session)
    assert session.context().tokens <= 60


def test_a_context_starts_where_the_provider_likes_it(session):
    session.extend([*turns(3), call("a"), result("a"), assistant("done")])
    session.compact(policy=policy(keep=Keep(last_items=None, tokens=30, turn_start=True)))
    assert shown(session) == [] or shown(session)[0].startswith(("q", "[The"))


def test_an_open_call_is_protected_for_a_while_only(session):
    session.extend([user("q"), call("never"), *turns(6)])
    keep = Keep(last_items=1, protect_open_items=5)
    assert session.plan(policy=policy(keep=keep)).cut == 13
    assert session.plan(policy=policy(keep=replace(keep, protect_open_items=50))).cut == 1


# --- masks ----------------------------------------------------------------------------------------

CLEARING = CompactionPolicy(
    name="clearing",
    stages=(
        Stage(triggers=(Trigger(tokens=100),), keep=None, reducers=(ClearResults(keep_last=1),)),
    ),
)


def with_results(session: memcore.Session, *ids: str) -> None:
    for each in ids:
        session.extend([user(each), call(each), result(each, LONG), assistant("ok")])


def test_masks_are_seen_by_contexts_alone(session):
    with_results(session, "a", "b", "c")
    before = [item.message for item in session.items()]
    done = session.compact(policy=CLEARING)
    assert (done.status, done.plan.folds) == ("masked", False)
    assert [mask.action for mask in session.masks()] == ["cleared", "cleared"]
    assert shown(session).count("[cleared]") == 2
    assert shown(session).count(LONG) == 1
    assert [item.message for item in session.items()] == before
    assert session.context().tokens == session.pressure().tokens == done.view.tokens_after
    assert session.tokens > session.context().tokens


def test_later_views_keep_the_masks_of_earlier_ones(session, open_db):
    with_results(session, "a", "b")
    session.compact(policy=CLEARING)
    with_results(session, "c", "d")
    done = session.compact(policy=CLEARING)
    assert [mask.seq for mask in done.view.masks] == [7, 11]
    assert [mask.seq for mask in session.masks()] == [3, 7, 11]
    assert session.compact(policy=CLEARING).status == "nothing"
    again = open_db().session("chat")
    assert again.masks() == session.masks()
    assert again.context() == session.context()
    assert session.uncompact()
    assert [mask.seq for mask in session.masks()] == [3]


def test_a_fold_takes_the_masks_before_its_cut_along(session):
    with_results(session, "a", "b", "c")
    session.compact(policy=CLEARING)
    seen: list[memcore.SummaryRequest] = []
    done = session.compact(lambda request: seen.append(request) or "s", keep_last=4)
    assert [m["content"] for m in seen[0].messages if m["role"] == "tool"] == ["[cleared]"] * 2
    assert session.masks() == []
    assert done.view.tokens_after == session.context().tokens


def test_masks_of_undone_items_are_not_those_of_new_ones(session):
    with_results(session, "a", "b", "c")
    fork_at = next(item.seq for item in session.items() if item.message.get("content") == "b")
    session.compact(policy=CLEARING)
    fork = session.fork("alt", at=fork_at)
    fork.extend([assistant("x"), user("y"), call("z"), result("z", "fork's own")])
    assert [mask.seq for mask in fork.masks()] == [3]
    assert "fork's own" in shown(fork)
    session.undo(8)
    with_results(session, "d")
    assert shown(session).count(LONG) == 1


def test_masks_follow_a_recount(session):
    with_results(session, "a", "b", "c")
    session.compact(policy=CLEARING)
    session.recount("bytes/4")
    context = session.context()
    assert context.tokens == sum(
        memcore.count_messages([m], counter="bytes/4") - 3 for m in context.messages
    )
    for budget in range(context.tokens - 60, context.tokens, 7):
        assert session.context(budget).tokens <= budget


def test_a_context_of_a_long_history_sees_masks_before_its_end(session):
    with_results(session, *(f"r{n}" for n in range(30)))
    session.compact(policy=CLEARING)
    session.extend(turns(3_000))
    whole = session.context()
    assert shown(session).count("[cleared]") == 29
    least = session.context(whole.tokens)
    assert least == whole
    assert session.context(whole.tokens - 1).omitted > 0


# --- views ----------------------------------------------------------------------------------------


def test_the_history_is_shown_under_any_view(session):
    session.extend([system(), *turns(6)])
    first = session.compact(lambda _: "one", force=True).view
    session.extend(turns(4, start=6))
    second = session.compact(lambda _: "two", force=True).view
    assert session.context(view=first).summary == session.context(view=1).summary == "one"
    assert session.context(view=second) == session.context()
    assert session.context(view=0).summary is None
    assert len(session.context(view=0).messages) == 21
    assert [item.seq for item in session.covered(first)] == [*range(2, first.cut_seq + 1)]
    assert list(session.covered()) == list(session.covered(second))


def test_a_view_of_another_session_is_refused(db, session):
    session.extend(turns(6))
    view = session.compact(lambda _: "one", force=True).view
    other = db.session("other")
    other.extend(turns(8))
    other.compact(lambda _: "another", force=True)
    for wrong in (view, 7):
        with pytest.raises(memcore.NotFoundError, match="view"):
            other.context(view=wrong)
    with pytest.raises(InvalidOptionError, match="view"):
        other.context(view="one")
    session.rewind(2)
    with pytest.raises(memcore.NotFoundError, match="not in the live history"):
        session.context(view=view)


def test_offloaded_results_are_read_back(session):
    from memcore.compaction.reducers import OffloadResults

    text = "\n".join(f"line {n}" for n in range(500))
    session.extend([user("q"), call("a"), result("a", text), assistant("ok")])
    stage = Stage(keep=None, reducers=(OffloadResults(min_tokens=500),))
    session.compact(policy=CompactionPolicy(stages=(stage,)))
    preview = session.context().messages[2]["content"]
    assert "item:3:a" in preview
    assert session.read_offloaded("item:3:a") == session.read_offloaded("item:3") == text
    with pytest.raises(memcore.NotFoundError):
        session.read_offloaded("item:3:b")
    with pytest.raises(memcore.NotFoundError):
        session.read_offloaded("item:99")
    with pytest.raises(InvalidOptionError, match="reference"):
        session.read_offloaded("blob:3")


# --- guards ---------------------------------------------------------------------------------------


def test_a_summary_that_saves_nothing_is_refused_where_nothing_is_due(session, caplog):
    session.extend(turns(4))
    with caplog.at_level(logging.WARNING, logger="memcore"):
        done = session.compact(lambda _: "word " * 500, force=True)
    assert (done.status, done.view) == ("refused", None)
    assert "it would not save enough" in done.reason
    assert done.reason in caplog.text
    assert session.views() == []


def test_where_a_compaction_is_due_the_fallback_serves(session):
    session.extend(turns(10))
    done = session.compact(lambda _: "word " * 5_000)
    assert done.status == "fallback_slice"
    assert done.view.reason == done.reason
    with_results(session, "a", "b", "c", "d", "e", "f", "g")
    session.uncompact()
    rule = memcore.PRESETS["token_budget"](tokens=1_000, keep_tokens=200)
    done = session.compact(lambda _: "word " * 50_000, policy=rule)
    assert done.status == "fallback_reduce"
    assert session.context().tokens < session.tokens


def test_a_gain_below_the_policys_is_refused(session):
    session.extend(turns(30))
    rule = policy(keep=Keep(last_items=58))
    assert session.compact(policy=rule).status == "trimmed"
    session.uncompact()
    assert session.compact(policy=replace(rule, min_gain=0.2)).status == "refused"


# --- as mappings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", memcore.PRESETS)
def test_presets_are_mappings_too(name):
    preset = memcore.compaction_policy(name)
    mapping = json.loads(json.dumps(memcore.policy_mapping(preset)))
    assert memcore.compaction_policy(mapping) == preset


def test_a_policy_of_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        name = "mine"
        window_tokens = 1000
        max_turns = 30
        [[stages]]
        name = "light"
        triggers = [{ fraction = 0.5 }, { event = "task_end" }]
        keep = false
        reducers = ["drop_duplicates", { reducer = "clear_results", keep_last = 7 }]
        [[stages]]
        name = "summary"
        triggers = [{ fraction = 0.8 }]
        keep = { last_items = false, last_turns = 2, tools = ["memo"], pinned = [[1, 2]] }
        summary = { language = "zh", max_tokens = 300 }
        """
    )
    read = memcore.read_policy(path)
    assert [stage.name for stage in read.stages] == ["light", "summary"]
    assert read.stages[0].reducers[1] == ClearResults(keep_last=7)
    assert read.stages[1].keep == Keep(
        last_items=None, last_turns=2, tools=("memo",), pinned=((1, 2),)
    )
    (tmp_path / "same.json").write_text(json.dumps(memcore.policy_mapping(read)))
    assert memcore.read_policy(tmp_path / "same.json") == read
    with pytest.raises(memcore.NotFoundError, match=r"no\.toml"):
        memcore.read_policy(tmp_path / "no.toml")
    path.write_text("name = ")
    with pytest.raises(InvalidOptionError, match="cannot read"):
        memcore.read_policy(path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("layred", "did you mean 'layered'"),
        (7, "expected a preset's name"),
        ({"stage": []}, "did you mean 'stages'"),
        ({"stages": []}, "at least one"),
        ({"stages": {}}, "expected a list"),
        ({"stages": [{"triggers": [{"item": 3}]}]}, "did you mean 'items'"),
        ({"stages": [{"triggers": [{}]}]}, "always due"),
        ({"stages": [{"triggers": [{"items": -1}]}]}, "items"),
        ({"stages": [{"triggers": [{"fraction": 0.5}]}]}, "window_tokens"),
        ({"stages": [{"keep": {"last_item": 3}}]}, "did you mean 'last_items'"),
        ({"stages": [{"keep": False}]}, "does nothing"),
        ({"stages": [{"keep": 3}]}, "expected a Keep"),
        ({"stages": [{"reducers": ["clear_result"]}]}, "did you mean 'clear_results'"),
        ({"stages": [{"summary": {"language": "fr"}}]}, "language"),
        (
            {"stages": [{"triggers": [{"items": 3}], "keep": {"last_items": 3}}]},
            "due again at once",
        ),
        ({"stages": [{"triggers": [{"tokens": 100}], "keep": {"tokens": 100}}]}, "due again"),
        ({"stages": [{"triggers": [{"items": 3}], "keep": {"first_items": 2}}]}, "due again"),
        ({"stages": [{"keep": {"tokens": 9, "max_tokens": 3}}]}, "above max_tokens"),
        ({"stages": [{"keep": {"pinned": [[3, 1]]}}]}, "pinned"),
        ({"stages": [{"keep": {"tools": "memo"}}]}, "tools"),
        ({"stages": [{}, {}]}, "names of their own"),
        ({"min_gain": 1.5}, "min_gain"),
        ({"fallback": ["last", "slice"]}, "fallback"),
        ({"repair": "guess"}, "repair"),
        ({"preset": "hybrid", "lo": 3}, "did you mean 'low'"),
        ({"preset": "hybrid", "low": "3"}, "expected an int"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_told(given, said):
    with pytest.raises(InvalidOptionError, match=said):
        memcore.compaction_policy(given)


def test_a_policy_for_the_database_a_session_and_a_call(open_db, tmp_path):
    db = open_db(compaction="keep_last")
    session = db.session("chat")
    session.extend(turns(30))
    assert session.plan().cut == 40
    of_its_own = db.session("chat", compaction={"preset": "keep_last", "items": 4})
    assert of_its_own.plan().cut == 56
    assert of_its_own.plan(policy="mathmodelagent").cut == 57
    assert of_its_own.plan(policy="layered", stage="heavy").cut == 50
    with pytest.raises(InvalidOptionError, match="light, medium, heavy"):
        session.plan(policy="layered", stage="heavier")
