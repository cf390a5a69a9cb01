"""Compaction: plans, summaries, fallbacks, views; the log keeps everything."""

from __future__ import annotations

import pytest

import memcore
from messages import assistant, attempt, call, failing, illegal, result, system, texts, turns, user


def summary_line(session: memcore.Session) -> str | None:
    return session.context().summary


# --- the plain rule -------------------------------------------------------------------------------


def test_compact_folds_the_older_items_and_keeps_the_log(session):
    session.extend([system(), *turns(6)])
    before = texts(session)
    seen: list[memcore.SummaryRequest] = []
    done = session.compact(lambda request: seen.append(request) or "the story so far", force=True)
    assert done.status == "summarized"
    assert seen[0].messages == tuple(turns(6)[:9])  # behind the system message
    assert (seen[0].previous_summary, seen[0].session_id) == (None, "chat")
    context = session.context()
    assert [m["content"] for m in context.messages] == [
        "be kind",
        "[Summary of the earlier conversation]\nthe story so far",
        "a4",
        "q5",
        "a5",
    ]
    assert (context.summary, context.omitted) == ("the story so far", 9)
    assert texts(session) == before
    assert session.revision == 1


def test_the_cut_keeps_pairs_together(session):
    session.extend([user(), *turns(3), call("a", "b"), result("b"), result("a"), assistant()])
    done = session.compact(lambda _: "s", keep_last=2)
    assert done.plan.cut_seq == 7
    assert [m["role"] for m in session.context().messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]


def test_keep_tokens_keeps_the_longest_safe_suffix(session):
    session.extend(turns(10))
    session.compact(lambda _: "s", keep_tokens=session.tokens // 2)
    kept = session.context().messages[1:]
    assert kept == turns(10)[-len(kept) :]
    assert len(kept) == 10


def test_a_second_compaction_builds_on_the_first(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    session.extend(turns(4, start=6))
    seen: list[memcore.SummaryRequest] = []
    session.compact(lambda request: seen.append(request) or "two", force=True)
    assert seen[0].previous_summary == "one"
    assert seen[0].messages[0] == user("q5") or seen[0].messages[0] == assistant("a4")
    assert [v.summary for v in session.views()] == ["one", "two"]
    assert [(v.number, v.parent) for v in session.views()] == [(1, 0), (2, 1)]
    assert summary_line(session) == "two"


def test_nothing_to_fold_records_nothing(session):
    session.extend(turns(1))
    done = session.compact(lambda _: "s")
    assert (done.status, done.view) == ("nothing", None)
    assert session.views() == []


def test_without_a_summarizer_the_older_items_are_trimmed(session):
    session.extend(turns(6))
    assert session.compact(force=True).status == "trimmed"
    context = session.context()
    assert (context.summary, len(context.messages)) == (None, 3)


def test_events_are_not_folded_into_the_summary_and_do_not_count(session):
    session.extend(turns(3))
    for n in range(20):
        session.record("note", n)
    assert not session.needs_compaction(max_items=50)
    seen: list[memcore.SummaryRequest] = []
    session.compact(lambda request: seen.append(request) or "s", force=True)
    assert seen[0].messages == tuple(turns(3)[:3])
    assert len(session.context().messages) == 4


def test_the_trigger_waits_for_the_word_behind_a_result(session):
    session.extend([user(), *turns(6), call("a")])
    assert session.needs_compaction(max_items=5)
    session.append(result("a"))
    assert not session.needs_compaction(max_items=5)
    session.append(assistant())
    assert session.needs_compaction(max_items=5)
    assert not session.needs_compaction(max_items=100)
    session.compact(lambda _: "s")
    assert not session.needs_compaction(max_items=5)


def test_extractive_needs_no_model(session):
    session.extend([user("find a flight"), call("a"), result("a", "BA 7"), assistant("booked")])
    session.extend(turns(3))
    session.compact(memcore.extractive, keep_last=4)
    assert summary_line(session) == (
        "user: find a flight\ntools called: f\nresult: BA 7\nassistant: booked\nuser: q0\n"
        "assistant: a0"
    )


# --- open calls -----------------------------------------------------------------------------------


def test_an_open_call_is_not_folded(session):
    session.extend([*turns(2), call("wait"), user("hurry"), *turns(3)])
    done = session.compact(lambda _: "s", force=True)
    assert done.plan.cut_seq == 4
    session.append(result("wait"))
    assert "wait" in {m.get("tool_call_id") for m in session.context().messages}


def test_an_open_call_blocks_compaction_only_for_a_while(open_db):
    policy = memcore.CompactionPolicy(
        stages=(memcore.Stage(keep=memcore.Keep(protect_open_items=10)),)
    )
    session = open_db(compaction=policy).session("chat")
    session.extend([user("x y z " * 20), call("never"), *turns(4)])
    assert session.compact(lambda _: "s").plan.cut_seq == 1
    session.extend(turns(2))
    assert session.compact(lambda _: "s").plan.cut_seq > 2


def test_an_abandoned_call_blocks_nothing(session):
    session.extend([user(), call("never"), *turns(4)])
    session.abandon("never")
    assert session.compact(lambda _: "s", force=True).plan.cut_seq > 2


@pytest.mark.parametrize("how", ["abandoned", "fallback"])
@pytest.mark.parametrize("more", [0, 1, 4])
def test_a_result_for_a_folded_call_loses_nothing(session, how, more):
    """The real result comes after the summary took its call in."""
    session.extend([user(), call("late"), *turns(3)])
    if how == "abandoned":
        session.abandon("late")
        session.compact(lambda _: "s", force=True)
    else:
        assert session.compact(failing, force=True).status == "fallback_slice"
    cut = session.views()[0].cut_seq
    session.extend([*turns(more, start=10), result("late", "at last")])
    context = session.context()
    assert illegal(context.messages, "openai_chat") == []
    after_cut = [i.message for i in session.items(cut + 1) if i.kind != memcore.ItemKind.EVENT]
    for message in after_cut:
        shown = message in context.messages
        listed = any(r.call_id == message.get("tool_call_id") for r in context.repairs)
        assert shown or listed
    for budget in range(context.tokens, 0, -5):
        found = attempt(session.context, budget)
        if isinstance(found, memcore.ContextOverflowError):
            assert found.needed_tokens > budget
            break
        assert found.tokens <= budget
        assert illegal(found.messages, "openai_chat") == []


# --- the summarizer fails -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "summarize",
    [failing, lambda _: None, lambda _: "", lambda _: " \n", lambda _: 7, lambda _: b"bytes"],
    ids=["raises", "None", "empty", "blank", "int", "bytes"],
)
def test_rubbish_from_the_summarizer_falls_back_to_a_safe_slice(session, summarize):
    session.extend(turns(6))
    done = session.compact(summarize, force=True)
    assert done.status == "fallback_slice"
    assert done.error is not None
    assert done.view is not None
    assert [m["content"] for m in session.context().messages][-1] == "a5"
    assert len(session) == 12


def test_an_interrupt_in_the_summarizer_is_not_swallowed(session):
    def interrupted(_: memcore.SummaryRequest) -> str:
        raise KeyboardInterrupt

    session.extend(turns(6))
    with pytest.raises(KeyboardInterrupt):
        session.compact(interrupted, force=True)
    assert session.views() == []


def test_a_fallback_keeps_the_summary_before(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    session.extend(turns(6, start=6))
    assert session.compact(failing, force=True).status == "fallback_slice"
    assert summary_line(session) == "one"


def test_the_fallback_slice_splits_no_pair(session):
    session.extend([*turns(3), call("a", "b"), result("a"), result("b")])
    done = session.compact(failing, force=True)
    assert (done.status, done.plan.cut_seq) == ("fallback_slice", 6)
    assert illegal(session.context().messages, "openai_chat") == []


def test_the_last_resort_keeps_one_item_with_its_results(session):
    ids = [f"c{n}" for n in range(6)]
    session.extend([*turns(3), call(*ids), *(result(i) for i in ids)])
    done = session.compact(failing, force=True)
    assert done.status == "fallback_last"
    context = session.context()
    assert [m.get("tool_call_id") for m in context.messages][-6:] == ids
    assert illegal(context.messages, "openai_chat") == []
    session.append(assistant("all done"))
    assert session.context().messages[-1] == assistant("all done")
    assert illegal(session.context().messages, "openai_chat") == []


def test_the_last_resort_starts_as_the_provider_wants(db):
    session = db.session("claude", policy="anthropic")
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(6)]
    session.extend([*turns(2), {"role": "assistant", "content": uses}])
    for n in range(6):
        block = {"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"}
        session.append({"role": "user", "content": [block]})
    assert session.compact(failing, force=True).status == "fallback_last"
    context = session.context()
    assert illegal(context.messages, "anthropic") == []
    assert context.tokens == session.context(context.tokens).tokens


def test_the_last_resort_keeps_reasoning_and_parallel_calls_together(db):
    session = db.session("responses", policy="openai_responses")
    session.extend([user(), {"type": "reasoning", "id": "r", "summary": []}])
    ids = [f"c{n}" for n in range(6)]
    session.extend(
        {"type": "function_call", "call_id": i, "name": "f", "arguments": "{}"} for i in ids
    )
    session.extend({"type": "function_call_output", "call_id": i, "output": "ok"} for i in ids)
    session.compact(failing)
    shown = [m.get("type", m.get("role")) for m in session.context().messages]
    parallel = shown.count("function_call")
    assert parallel in {0, 6}
    assert shown.count("function_call_output") == parallel
    assert ("reasoning" in shown) == bool(parallel)


# --- views and time travel ------------------------------------------------------------------------


def test_uncompact_goes_back_one_view_at_a_time(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    session.extend(turns(6, start=6))
    session.compact(lambda _: "two", force=True)
    assert session.uncompact()
    assert summary_line(session) == "one"
    assert session.uncompact()
    assert summary_line(session) is None
    assert len(session.context().messages) == 24
    assert not session.uncompact()


def test_undo_below_the_cut_brings_the_older_view_back(session):
    session.extend(turns(10))
    session.compact(lambda _: "one", keep_last=14)
    session.compact(lambda _: "two")
    session.undo(10)
    context = session.context()
    assert context.summary == "one"
    assert [m["content"] for m in context.messages][1:] == ["q3", "a3", "q4", "a4"]
    session.undo(6)
    assert summary_line(session) is None
    session.extend(turns(6, start=20))
    assert summary_line(session) is None
    session.compact(lambda _: "three")
    assert summary_line(session) == "three"


def test_undo_above_the_cut_keeps_the_view(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    session.undo(2)
    session.append(user("again"))
    assert summary_line(session) == "one"
    assert [m["content"] for m in session.context().messages][1:] == ["a4", "again"]


def test_a_fork_shares_the_view_or_goes_before_it(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    behind, before = session.fork("behind"), session.fork("before", at=4)
    assert (summary_line(behind), summary_line(before)) == ("one", None)
    behind.extend(turns(6, start=20))
    behind.compact(lambda _: "fork's own", force=True)
    assert (summary_line(behind), summary_line(session)) == ("fork's own", "one")
    assert behind.uncompact()
    assert summary_line(behind) == "one"


def test_a_view_survives_a_change_of_policy(session):
    session.extend(turns(6))
    session.compact(lambda _: "one", force=True)
    session.set_policy("anthropic")
    assert summary_line(session) == "one"
    assert illegal(session.context().messages, "anthropic") == []


# --- others change the session meanwhile ----------------------------------------------------------


def test_a_plan_still_applies_when_another_handle_appends(open_db, session):
    other = open_db().session("chat")
    session.extend(turns(6))

    def slow(_: memcore.SummaryRequest) -> str:
        other.extend(turns(1, start=50))
        return "s"

    assert session.compact(slow, force=True).status == "summarized"
    assert [m["content"] for m in session.context().messages][-2:] == ["q50", "a50"]
    assert len(other) == 14
    assert summary_line(other) == "s"


@pytest.mark.parametrize(
    "change",
    [
        lambda other: other.undo(11),
        lambda other: other.rewind(2),
        lambda other: other.compact(lambda _: "theirs", force=True),
    ],
    ids=["undo", "rewind", "compact"],
)
def test_a_plan_is_stale_when_what_it_folds_was_changed(open_db, session, change):
    other = open_db().session("chat")
    session.extend(turns(6))

    def slow(_: memcore.SummaryRequest) -> str:
        change(other)
        return "mine"

    with pytest.raises(memcore.PlanStaleError):
        session.compact(slow, force=True)
    assert "mine" not in {view.summary for view in session.views()}


def test_a_plan_is_stale_when_the_session_was_made_anew(db, session):
    session.extend(turns(6))

    def slow(_: memcore.SummaryRequest) -> str:
        db.delete_session("chat")
        session.extend(turns(6, start=30))
        return "of the old one"

    with pytest.raises((memcore.PlanStaleError, memcore.NotFoundError)):
        session.compact(slow, force=True)
    assert summary_line(session) is None


def test_the_summarizer_may_use_the_database(db, session):
    session.extend(turns(6))

    def busy(request: memcore.SummaryRequest) -> str:
        db.session("notes").append(user(f"{len(request.messages)} folded"))
        return "s"

    session.compact(busy, force=True)
    assert texts(db.session("notes")) == ["9 folded"]
