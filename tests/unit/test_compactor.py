"""Compactors: they run what is due, stop what does not help, and never get in a runtime's way.

Order is forced by events and barriers; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import memcore
from memcore.aio import compactor as waiting
from memcore.session.compact import PLAN_ATTEMPTS, RETRY_CHANGE, Patience
from messages import assistant, call, failing, illegal, result, texts, turns, user

Stage, Trigger, Keep = memcore.Stage, memcore.Trigger, memcore.Keep
LONG = 60.0
LONGER = "much longer " * 500


def brief(_: memcore.SummaryRequest) -> str:
    return "brief"


def stage(name: str, items: int, keep: int) -> memcore.Stage:
    return Stage(name=name, triggers=(Trigger(items=items),), keep=Keep(last_items=keep))


TWO = memcore.CompactionPolicy(stages=(stage("light", 12, 8), stage("heavy", 20, 4)))


class Counted:
    """A summarizer that counts how often it was asked."""

    def __init__(self, answer: Any = "brief") -> None:
        self.asked = 0
        self.answer = answer

    def __call__(self, request: memcore.SummaryRequest) -> str:
        self.asked += 1
        return self.answer(request) if callable(self.answer) else self.answer


# --- patience -------------------------------------------------------------------------------------


def test_a_stage_that_was_given_up_waits_for_a_change_by_a_share():
    patience = Patience()
    assert not patience
    patience.give_up("heavy", 1_000)
    step = int(1_000 * RETRY_CHANGE)
    assert patience.allows("light", 1_000)
    assert not patience.allows("heavy", 1_000 + step - 1)
    assert not patience.allows("heavy", 1_000 - step + 1)
    assert patience.allows("heavy", 1_000 + step)
    assert patience.allows("heavy", 1_000)  # it was forgotten
    patience.give_up("heavy", 0)
    assert not patience.allows("heavy", 0)
    patience.give_up("heavy", 1_000)
    assert patience.allows("heavy", 1_000 - step)
    assert not patience


# --- in the foreground ----------------------------------------------------------------------------


def test_nothing_is_done_before_a_stage_is_due(session):
    summarize = Counted()
    compactor = memcore.Compactor(session, summarize)
    assert compactor.run() is None  # there is no session
    session.extend(turns(6))
    assert compactor.run() is None
    session.extend(turns(1, start=6))
    done = compactor.run()
    assert (done.status, done.view) == ("summarized", session.views()[-1])
    assert compactor.run() is None
    assert summarize.asked == 1


def test_it_waits_for_the_word_behind_a_result(session):
    compactor = memcore.Compactor(session, brief)
    session.extend([*turns(7), call("a"), result("a")])
    assert compactor.run() is None
    session.append(assistant())
    assert compactor.run().status == "summarized"


def test_the_heaviest_stage_runs_and_then_what_is_still_due(session):
    stages = (stage("light", 2, 1), stage("heavy", 20, 4))
    policy = memcore.CompactionPolicy(stages=stages, min_gain=0.0)
    seen: list[str | None] = []
    session.extend(turns(11))
    compactor = memcore.Compactor(
        session, brief, policy=policy, before=lambda plan, pressure: seen.append(pressure.stage)
    )
    done = compactor.run()
    assert seen == ["heavy", "light"]
    assert [v.policy for v in session.views()] == ["custom/heavy", "custom/light"]
    assert done.view == session.views()[-1]
    assert illegal(session.context().messages, "openai_chat") == []


def test_a_lighter_stage_serves_when_the_heavier_is_refused(session):
    heavy = stage("heavy", 20, 4)
    light = Stage(
        name="light", triggers=(Trigger(items=12),), keep=Keep(last_items=8), summary=None
    )
    policy = memcore.CompactionPolicy(stages=(light, heavy), fallback=())
    session.extend(turns(11))
    results: list[memcore.CompactionResult] = []
    done = memcore.Compactor(session, failing, policy=policy, after=results.append).run()
    assert [r.status for r in results] == ["refused", "trimmed"]
    assert done == results[1]


def test_the_policy_is_the_sessions_unless_another_is_given(open_db):
    session = open_db(compaction=TWO).session("chat")
    assert memcore.Compactor(session).policy == TWO
    assert memcore.Compactor(session, policy="mathmodelagent").policy.name == "mathmodelagent"


@pytest.mark.parametrize(
    "options",
    [
        {"summarize": "a text"},
        {"policy": "no such preset"},
        {"timeout_seconds": 0},
        {"before": 1},
        {"after": "x"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_cannot_work_is_refused_at_once(session, options):
    with pytest.raises(memcore.InvalidOptionError):
        memcore.Compactor(session, **options)
    with pytest.raises(memcore.InvalidOptionError):
        memcore.aio.Compactor(**options)


def test_a_compactor_wants_a_session_and_a_function(session):
    async def later(_: memcore.SummaryRequest) -> str:
        return "s"

    with pytest.raises(memcore.InvalidOptionError, match="expected a Session, got str"):
        memcore.Compactor("chat")
    with pytest.raises(memcore.InvalidOptionError, match=r"memcore\.aio"):
        memcore.Compactor(session, later)


def test_a_read_only_database_is_not_compacted(open_db):
    open_db().session("chat").extend(turns(8))
    compactor = memcore.Compactor(open_db(read_only=True).session("chat"), brief)
    with pytest.raises(memcore.ReadOnlyError):
        compactor.run()


# --- giving up ------------------------------------------------------------------------------------


def given_up(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.levelname for r in caplog.records if "not tried again" in r.getMessage()]


@pytest.mark.parametrize("answer", [failing, LONGER], ids=["fails", "is longer"])
def test_a_model_that_does_not_help_is_not_paid_on_every_turn(session, caplog, answer):
    policy = memcore.CompactionPolicy(stages=(stage("only", 12, 3),), fallback=())
    summarize = Counted(answer)
    compactor = memcore.Compactor(session, summarize, policy=policy)
    session.extend(turns(10))
    assert compactor.run().status == "refused"
    tokens = session.tokens
    assert compactor.run() is None
    while session.tokens < tokens * (1 + RETRY_CHANGE):
        assert (compactor.run(), summarize.asked) == (None, 1)
        session.append(assistant("x"))
    assert given_up(caplog) == ["WARNING"]
    assert compactor.run().status == "refused"
    assert summarize.asked == 2
    assert session.views() == []


def test_a_tool_result_in_between_does_not_bring_the_model_back(session):
    """While the last item is a result nothing is due; that is no sign that the stage helps."""
    policy = memcore.CompactionPolicy(stages=(stage("only", 12, 3),), fallback=())

    def interrupted(_: memcore.SummaryRequest) -> str:
        session.extend([call("c"), result("c")])
        raise RuntimeError("down")

    summarize = Counted(interrupted)
    compactor = memcore.Compactor(session, summarize, policy=policy)
    session.extend(turns(60))
    assert compactor.run().status == "refused"
    assert compactor.run() is None
    session.append(assistant())
    assert compactor.run() is None
    assert summarize.asked == 1


def test_a_history_that_grows_meanwhile_does_not_keep_a_run_going(session):
    start = iter((100, 200))
    summarize = Counted()
    compactor = memcore.Compactor(
        session, summarize, after=lambda _: session.extend(turns(50, start=next(start)))
    )
    session.extend(turns(20))
    assert compactor.run().status == "summarized"
    assert (summarize.asked, session.needs_compaction()) == (1, True)


def test_an_open_call_that_holds_the_cut_is_no_busy_loop(session, caplog):
    compactor = memcore.Compactor(session, Counted())
    session.extend([call("never"), *turns(10)])
    assert compactor.run().status == "nothing"
    assert compactor.run() is None
    assert given_up(caplog) == ["WARNING"]
    session.append(result("never"))
    session.extend(turns(2, start=20))
    assert compactor.run().status == "summarized"


def test_a_fallback_that_is_not_enough_is_no_busy_loop(session):
    policy = memcore.CompactionPolicy(stages=(stage("only", 3, 2),))
    summarize = Counted(failing)
    compactor = memcore.Compactor(session, summarize, policy=policy)
    session.extend([user("x " * 200), call(*"abcdefg"), *(result(c) for c in "abcdefg")])
    session.append(assistant())
    done = compactor.run()
    asked = summarize.asked
    assert (done.status, asked) == ("fallback_slice", 1)
    for _ in range(3):
        compactor.run()
    assert summarize.asked == asked


def test_a_compaction_that_helps_less_than_it_should_is_told_quietly(session, caplog):
    """A stage that an event makes due still is when the event has been compacted."""
    caplog.set_level(logging.INFO, logger="memcore")
    end = Stage(name="end", triggers=(Trigger(event="task_end"),), keep=Keep(last_items=2))
    compactor = memcore.Compactor(
        session, brief, policy=memcore.CompactionPolicy(stages=(end,), min_gain=0.0)
    )
    session.extend(turns(10))
    session.record("task_end")
    assert compactor.run().status == "summarized"
    assert compactor.run() is None
    assert given_up(caplog) == ["INFO"]
    session.extend(turns(10, start=10))
    session.record("task_end")
    assert compactor.run().status == "summarized"


# --- hooks ----------------------------------------------------------------------------------------


def test_the_hooks_see_the_plan_and_the_result(session):
    seen: list[Any] = []
    session.extend(turns(8))
    compactor = memcore.Compactor(
        session,
        lambda _: seen.append("asked") or "brief",
        before=lambda plan, pressure: seen.extend([plan, pressure, len(session.views())]),
        after=lambda done: seen.extend([done, len(session.views())]),
    )
    done = compactor.run()
    assert seen == [done.plan, seen[1], 0, "asked", done, 1]
    assert (seen[1].items, seen[1].stage) == (16, "default")


def test_a_veto_ends_the_run_before_a_model_is_asked(session):
    summarize = Counted()
    answers = [False, None, True]
    session.extend(turns(8))
    compactor = memcore.Compactor(session, summarize, before=lambda *_: answers.pop(0))
    assert compactor.run() is None
    assert (summarize.asked, session.views()) == (0, [])
    assert compactor.run().status == "summarized"  # None is no veto, and a veto no giving up
    session.extend(turns(8, start=8))
    assert compactor.run().status == "summarized"


def fails(*_: Any) -> None:
    raise memcore.PlanStaleError("the hook's own")


def test_a_hook_that_raises_is_the_callers_error(session):
    summarize = Counted()
    session.extend(turns(8))
    with pytest.raises(memcore.PlanStaleError, match="own"):  # it is not taken for a lost race
        memcore.Compactor(session, summarize, before=fails).run()
    assert (summarize.asked, session.views()) == (0, [])
    compactor = memcore.Compactor(session, summarize, after=fails)
    with pytest.raises(memcore.PlanStaleError, match="own"):
        compactor.run()
    assert (summarize.asked, len(session.views())) == (1, 1)
    assert compactor.run() is None


# --- races in the foreground ----------------------------------------------------------------------


def test_a_lost_race_is_not_run_again_if_nothing_is_due_any_more(open_db, session):
    session.extend(turns(8))
    other = open_db().session("chat")
    summarize = Counted(lambda _: other.compact(lambda _: "theirs") and "mine")
    assert memcore.Compactor(session, summarize).run() is None
    assert [v.summary for v in session.views()] == ["theirs"]
    assert summarize.asked == 1


def test_a_lost_race_is_planned_again_on_what_is_there(session):
    session.extend(turns(20))
    seen: list[int] = []

    def summarize(request: memcore.SummaryRequest) -> str:
        seen.append(len(request.messages))
        if len(seen) == 1:
            session.undo(10)  # below the cut
        return "brief"

    assert memcore.Compactor(session, summarize).run().status == "summarized"
    assert seen == [37, 27]
    assert session.context().messages[-1] == assistant("a14")


def test_a_race_that_is_always_lost_ends(session):
    session.extend(turns(50))
    summarize = Counted(lambda _: session.undo(4) and "brief")
    with pytest.raises(memcore.PlanStaleError):
        memcore.Compactor(session, summarize).run()
    assert summarize.asked == PLAN_ATTEMPTS
    assert session.views() == []


def test_a_session_that_is_gone_is_not_due(db, session):
    session.extend(turns(8))
    compactor = memcore.Compactor(session, lambda _: str(db.delete_session("chat")))
    assert compactor.run() is None
    assert not session.exists()


def test_threads_that_run_one_compactor_ask_once(session):
    session.extend(turns(8))
    asked, go = threading.Event(), threading.Event()
    found: list[Any] = []

    def slow(_: memcore.SummaryRequest) -> str:
        asked.set()
        go.wait(LONG)
        return "brief"

    compactor = memcore.Compactor(session, slow)
    thread = threading.Thread(target=lambda: found.append(compactor.run()))
    thread.start()
    asked.wait(LONG)
    assert compactor.run() is None
    go.set()
    thread.join(LONG)
    assert [done.status for done in found] == ["summarized"]


# --- in the background ----------------------------------------------------------------------------


class Held:
    """A coroutine function that summarizes when it is let go."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.requests: list[memcore.SummaryRequest] = []

    async def __call__(self, request: memcore.SummaryRequest) -> str:
        self.requests.append(request)
        self.asked.set()
        await self.go.wait()
        return "held"

    @property
    def sessions(self) -> list[str | None]:
        return [request.session_id for request in self.requests]


def aio(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LONG):
            await work()

    asyncio.run(main())


def held(session: memcore.Session, meanwhile: Callable[[memcore.aio.AsyncSession], Any]) -> Any:
    """Compact in the background, and do something while the summarizer runs."""
    found: list[Any] = []

    async def work() -> None:
        summarize = Held()
        async with memcore.aio.Compactor(
            summarize, after=lambda _, done: found.append(done)
        ) as compactor:
            assert compactor.notify(session)
            await summarize.asked.wait()
            assert (compactor.pending, compactor.running) == (0, 1)
            done = meanwhile(memcore.aio.AsyncSession(session))
            if done is not None:
                await done
            summarize.go.set()
            await compactor.drained()
        found.extend(failure.error for failure in compactor.errors)

    session.extend(turns(20))
    aio(work)
    return found


def test_what_is_appended_while_the_summarizer_runs_is_kept(session):
    (done,) = held(session, lambda chat: chat.extend(turns(3, start=50)))
    assert done.status == "summarized"
    context = session.context()
    assert context.summary == "held"
    assert context.messages[-6:] == turns(3, start=50)
    assert len(session) == 46


def test_what_is_undone_above_the_cut_does_not_stop_it(session):
    (done,) = held(session, lambda chat: chat.undo(2))
    assert (done.status, session.context().summary) == ("summarized", "held")
    assert session.context().messages[-1] == assistant("a18")
    assert len(session) == 38


@pytest.mark.parametrize("how", ["undo", "rewind"])
def test_what_is_taken_back_below_the_cut_is_planned_again(session, how):
    (done,) = held(session, lambda chat: chat.undo(20) if how == "undo" else chat.rewind(20))
    assert done.status == "summarized"
    assert done.plan.cut_seq <= 20
    assert session.context().messages[-1] == assistant("a9")
    assert len(session) == 20


def test_another_compaction_comes_first(open_db, session):
    other = open_db().session("chat")
    assert held(session, lambda _: other.compact(brief) and None) == []
    assert [v.summary for v in session.views()] == ["brief"]


def test_the_session_is_deleted_meanwhile(db, session):
    assert held(session, lambda _: db.delete_session("chat") and None) == []
    assert not session.exists()


def test_the_session_is_made_anew_meanwhile(db, session):
    def anew(_: Any) -> None:
        db.delete_session("chat")
        session.extend(turns(2))

    assert held(session, anew) == []
    assert (len(session), session.views()) == (4, [])


def test_the_database_is_closed_meanwhile(open_db, caplog):
    db = open_db()
    (error,) = held(db.session("chat"), lambda _: db.close())
    assert isinstance(error, memcore.ClosedError)
    assert "the compaction failed" in caplog.text
    assert open_db().session("chat").views() == []


def test_notifications_of_one_session_count_as_one(db):
    async def work() -> None:
        summarize = Held()
        handles = [db.session("chat") for _ in range(3)]
        async with memcore.aio.Compactor(summarize, concurrency=4) as compactor:
            for handle in handles:
                assert compactor.notify(handle)
            await summarize.asked.wait()
            for handle in handles:  # while it runs: looked at once more, and not beside it
                assert compactor.notify(memcore.aio.AsyncSession(handle))
            assert (compactor.pending, compactor.running) == (1, 1)
            summarize.go.set()
            await compactor.drained()
        assert len(summarize.requests) == 1

    db.session("chat").extend(turns(8))
    aio(work)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_so_many_sessions_run_in_parallel(db, concurrency):
    async def work() -> None:
        running: set[str | None] = set()
        most = 0

        async def summarize(request: memcore.SummaryRequest) -> str:
            nonlocal most
            running.add(request.session_id)
            most = max(most, len(running))
            if most < concurrency:
                await together.wait()
            together.set()
            running.remove(request.session_id)
            return "brief"

        together = asyncio.Event()
        async with memcore.aio.Compactor(summarize, concurrency=concurrency) as compactor:
            for name in "abcd":
                compactor.notify(db.session(name))
            await compactor.drained()
        assert most == concurrency

    for name in "abcd":
        db.session(name).extend(turns(8))
    aio(work)
    assert [len(db.session(name).views()) for name in "abcd"] == [1] * 4


def test_too_many_sessions_are_turned_away_and_nothing_waits(db):
    async def work() -> None:
        summarize = Held()
        async with memcore.aio.Compactor(summarize, waiting_max=2) as compactor:
            assert compactor.notify(db.session("a"))
            await summarize.asked.wait()
            assert compactor.lag_seconds == 0.0
            assert [compactor.notify(db.session(name)) for name in "bcbd"] == [
                *[True] * 3,
                False,
            ]
            assert (compactor.full, compactor.dropped, compactor.pending) == (True, 1, 2)
            assert compactor.lag_seconds > 0.0
            await memcore.aio.AsyncSession(db.session("d")).append(user("not held up"))
            summarize.go.set()
            await compactor.drained(db.session("b"))
            assert summarize.sessions[:2] == ["a", "b"]
            await compactor.drained()
            assert (compactor.full, compactor.dropped, compactor.pending) == (False, 1, 0)
            assert compactor.notify(db.session("d"))  # it is due still: nothing was lost
            await compactor.drained()
        assert summarize.sessions == ["a", "b", "c", "d"]

    for name in "abcd":
        db.session(name).extend(turns(8))
    aio(work)
    assert texts(db.session("d"))[-1] == "not held up"


def test_other_threads_may_notify(db):
    async def work() -> None:
        async with memcore.aio.Compactor(brief) as compactor:
            assert await asyncio.to_thread(compactor.notify, db.session("chat"))
            await compactor.drained()
        assert await asyncio.to_thread(compactor.notify, db.session("chat")) is False

    db.session("chat").extend(turns(8))
    aio(work)
    assert len(db.session("chat").views()) == 1


def test_the_work_does_not_run_in_the_context_of_who_notified(db):
    turn = contextvars.ContextVar("turn", default="none")
    seen: list[str] = []

    async def work() -> None:
        async with memcore.aio.Compactor(lambda _: seen.append(turn.get()) or "s") as compactor:
            turn.set("of an agent")
            compactor.notify(db.session("chat"))
            await compactor.drained()

    db.session("chat").extend(turns(8))
    aio(work)
    assert seen == ["none"]


def test_who_is_notified_again_keeps_its_place(db, monkeypatch):
    clock = iter([10.0, 20.0, 25.0, 26.0])
    monkeypatch.setattr(waiting, "_now", lambda: next(clock))
    queue = waiting.Waiting(2)
    for name in "aba":
        session = db.session(name)
        assert queue.put(waiting.key_of(session), session)
    assert queue.lag_seconds == 15.0
    first = queue.take(but=())
    assert (first[1].id, queue.lag_seconds) == ("a", 6.0)


def test_who_is_told_before_it_runs_and_after_it_ended(session):
    session.extend(turns(8))
    compactor = memcore.aio.Compactor(brief)
    assert compactor.notify(session)

    async def work() -> None:
        with pytest.raises(memcore.ClosedError, match="async with"):
            await compactor.drained()
        async with compactor:
            await compactor.drained(session)
        with pytest.raises(memcore.ClosedError, match="entered before"):
            await compactor.__aenter__()

    aio(work)
    assert len(session.views()) == 1
    assert compactor.notify(session) is False
    assert compactor.dropped == 1
    with pytest.raises(memcore.InvalidOptionError, match="expected a session, got str"):
        compactor.notify("chat")


def test_a_loop_that_is_gone_takes_no_notification(session):
    compactor = memcore.aio.Compactor(brief)

    async def work() -> None:
        await compactor.__aenter__()

    aio(work)
    assert compactor.notify(session) is False


def test_the_trouble_of_one_session_is_not_that_of_the_others(db, caplog):
    told: list[memcore.aio.CompactionFailure] = []

    def before(session: memcore.aio.AsyncSession, *_: Any) -> None:
        if session.id == "bad":
            raise ValueError("the hook's own")

    def on_error(failure: memcore.aio.CompactionFailure) -> None:
        told.append(failure)
        raise RuntimeError("and this one's")

    async def work() -> None:
        async with memcore.aio.Compactor(brief, before=before, on_error=on_error) as compactor:
            for name in ("bad", "good"):
                compactor.notify(db.session(name))
            await compactor.drained()
            assert list(compactor.errors) == told

    for name in ("bad", "good"):
        db.session(name).extend(turns(8))
    aio(work)
    assert [(f.session.id, str(f.error)) for f in told] == [("bad", "the hook's own")]
    assert [len(db.session(name).views()) for name in ("bad", "good")] == [0, 1]
    assert "on_error failed" in caplog.text


def test_hooks_may_be_coroutine_functions(session):
    seen: list[Any] = []

    async def before(chat: memcore.aio.AsyncSession, plan: Any, pressure: Any) -> bool:
        seen.append((chat.id, pressure.stage, plan.folds))
        return len(seen) > 1

    async def after(chat: memcore.aio.AsyncSession, done: Any) -> None:
        seen.append(done.status)
        raise asyncio.CancelledError  # a hook that was cancelled, not the compactor

    async def work() -> None:
        async with memcore.aio.Compactor(brief, before=before, after=after) as compactor:
            for _ in range(2):
                compactor.notify(session)
                await compactor.drained()
            assert [str(f.error) for f in compactor.errors] == ["a hook was cancelled"]

    session.extend(turns(8))
    aio(work)
    assert seen == [("chat", "default", True), ("chat", "default", True), "summarized"]
    assert len(session.views()) == 1


def test_a_stage_that_was_given_up_is_remembered_between_runs(session, caplog):
    summarize = Counted(LONGER)
    policy = memcore.CompactionPolicy(stages=(stage("only", 12, 3),), fallback=())

    async def work() -> None:
        async with memcore.aio.Compactor(summarize, policy=policy) as compactor:
            for _ in range(3):
                compactor.notify(session)
                await compactor.drained()
            assert not compactor.errors

    session.extend(turns(8))
    aio(work)
    assert (summarize.asked, given_up(caplog)) == (1, ["WARNING"])


# --- closing --------------------------------------------------------------------------------------


def test_closing_waits_for_what_runs_and_forgets_what_waits(db):
    async def work() -> None:
        summarize = Held()
        async with memcore.aio.Compactor(summarize) as compactor:
            for name in "ab":
                compactor.notify(db.session(name))
            await summarize.asked.wait()
            closing = asyncio.ensure_future(compactor.close())
            await asyncio.sleep(0)
            assert not closing.done()
            assert compactor.notify(db.session("b")) is False
            summarize.go.set()
            await closing
        assert (compactor.pending, compactor.running) == (0, 0)

    for name in "ab":
        db.session(name).extend(turns(8))
    aio(work)
    assert [len(db.session(name).views()) for name in "ab"] == [1, 0]


@pytest.mark.parametrize("how", ["time is up", "an exception", "cancelled"])
def test_closing_cancels_what_takes_too_long(session, how):
    async def work() -> None:
        summarize = Held()
        seconds = 1e-3 if how == "time is up" else None

        async def inside() -> None:
            async with memcore.aio.Compactor(summarize, close_seconds=seconds) as compactor:
                compactor.notify(session)
                await summarize.asked.wait()
                if how == "an exception":
                    raise ZeroDivisionError
                if how == "cancelled":
                    inside_the_block.set()
                    await asyncio.Event().wait()

        inside_the_block = asyncio.Event()
        task = asyncio.ensure_future(inside())
        if how == "cancelled":
            await inside_the_block.wait()
            task.cancel()
        found = (await asyncio.gather(task, return_exceptions=True))[0]
        expected = {"an exception": ZeroDivisionError, "cancelled": asyncio.CancelledError}
        assert isinstance(found, expected.get(how, type(None)))
        assert len(asyncio.all_tasks()) == 1

    session.extend(turns(8))
    aio(work)
    assert session.views() == []
    assert session.context().messages == turns(8)


def test_a_view_whose_commit_was_under_way_is_whole(db, session):
    """Cancelled while the commit waits for its turn: it is stored all the same."""
    entered, go = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        entered.set()
        go.wait(LONG)

    async def work() -> None:
        leader = threading.Thread(target=lambda: db.engine.store.transact(hold))

        async def summarize(_: memcore.SummaryRequest) -> str:
            leader.start()
            await asyncio.to_thread(entered.wait, LONG)
            return "brief"

        async with memcore.aio.Compactor(summarize) as compactor:
            compactor.notify(session)
            queue = db.engine.store.environment().queue
            while not queue.waiting:  # noqa: ASYNC110 - the queue of the store tells no loop
                await asyncio.sleep(0)
            closing = asyncio.ensure_future(compactor.close(cancel=True))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not closing.done()
            go.set()
            await closing
            assert not compactor.errors
        leader.join(LONG)

    session.extend(turns(8))
    aio(work)
    assert [v.summary for v in session.views()] == ["brief"]
    assert session.context().summary == "brief"
