"""What a compaction stands: a summarizer in any state, and others who change the session meanwhile.

Whatever happens, the session has the view it had or a valid new one, and a failure is logged.
Order is forced by events and barriers; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import memcore
from memcore.compaction import CompactionPolicy, DropSimilar, Stage, Trigger
from messages import call, failing, illegal, result, system, texts, turns

TINY = 1e-3
LONG = 60.0


def valid(session: memcore.Session) -> None:
    """The log is whole, and what is shown is legal."""
    context = session.context()
    assert illegal(context.messages, session.policy) == []
    assert context.messages[-1]["content"] == texts(session)[-1]


class Blocked:
    """A summarizer that says when it was asked, and answers when it is told to."""

    def __init__(self, answer: object = "late") -> None:
        self.asked, self.go, self.left = (threading.Event() for _ in range(3))
        self.answer = answer

    def __call__(self, _: memcore.SummaryRequest) -> Any:
        self.asked.set()
        self.go.wait(LONG)
        self.left.set()
        return self.answer


def end_of_threads() -> None:
    """Until every thread of a summarizer has ended."""
    for thread in threading.enumerate():
        if thread.name == "memcore-summary":
            thread.join(LONG)


def compact_sync(session: memcore.Session, summarize: Any, **options: Any) -> Any:
    return session.compact(summarize, **options)


def compact_async(session: memcore.Session, summarize: Any, **options: Any) -> Any:
    return asyncio.run(memcore.aio.AsyncSession(session).compact(summarize, **options))


both = pytest.mark.parametrize("compact", [compact_sync, compact_async], ids=["sync", "aio"])

# --- the summarizer fails -------------------------------------------------------------------------


def stopped(_: memcore.SummaryRequest) -> str:
    raise StopIteration


def out_of_time(_: memcore.SummaryRequest) -> str:
    raise TimeoutError("the provider's own")


@both
@pytest.mark.parametrize("timeout", [None, LONG], ids=["", "in a thread"])
@pytest.mark.parametrize(
    "case",
    [
        (failing, "RuntimeError: the model is down"),
        (stopped, "StopIteration"),
        (out_of_time, "TimeoutError: the provider's own"),
        (lambda _: None, "TypeError: summarize returned NoneType"),
        (lambda _: "\n ", "TypeError: summarize returned an empty text"),
        (lambda _: ["a text"], "TypeError: summarize returned list"),
    ],
    ids=["raises", "StopIteration", "times out itself", "nothing", "blank", "list"],
)
def test_what_is_no_summary_leaves_a_fallback(session, caplog, compact, case, timeout):
    summarize, reason = case
    session.extend(turns(8))
    done = compact(session, summarize, timeout_seconds=timeout)
    assert done.status == "fallback_slice"
    if compact is compact_sync or summarize is not stopped:  # a coroutine cannot raise that one
        assert reason in done.reason
    assert done.view == session.views()[-1]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "the summarizer failed" in caplog.text
    valid(session)


@both
def test_a_longer_summary_is_no_summary(session, caplog, compact):
    session.extend(turns(8))
    done = compact(session, lambda _: "much longer " * 100)
    assert (done.status, done.error) == ("fallback_slice", None)
    assert "it would not save enough" in done.reason
    assert "compaction refused" in caplog.text
    assert session.context().summary is None
    valid(session)


@both
def test_a_longer_summary_is_refused_if_nothing_is_due(session, caplog, compact):
    session.extend(turns(5))
    assert not session.needs_compaction()
    done = compact(session, lambda _: "much longer " * 100, force=True)
    assert (done.status, done.view) == ("refused", None)
    assert session.views() == []
    assert "compaction refused" in caplog.text


LIGHT = memcore.Stage(
    name="light",
    triggers=(memcore.Trigger(items=20),),
    keep=None,
    reducers=(memcore.compaction.ElideOutputs(max_tokens=16),),
)
MEDIUM = memcore.Stage(name="medium", triggers=(memcore.Trigger(items=30),))
HEAVY = memcore.Stage(
    name="heavy",
    triggers=(memcore.Trigger(items=40),),
    keep=memcore.Keep(last_items=2),
    summary=None,
)


@both
def test_nothing_due_is_nothing_done(session, compact):
    rule = memcore.CompactionPolicy(name="three", stages=(LIGHT, MEDIUM, HEAVY))
    session.extend(turns(5))
    asked: list[memcore.SummaryRequest] = []

    def summarize(request: memcore.SummaryRequest) -> str:
        asked.append(request)
        return "s"

    done = compact(session, summarize, policy=rule)
    assert (done.status, done.view, asked, session.views()) == ("nothing", None, [], [])
    assert "10 items" in done.reason
    assert "force=True" in done.reason
    assert session.plan(policy=rule).is_empty

    done = compact(session, summarize, policy=rule, force=True)  # the heaviest that summarizes
    assert (done.status, done.view.policy, len(asked)) == ("summarized", "three/medium", 1)
    assert session.uncompact()
    done = compact(session, None, policy=rule, force=True)
    assert (done.status, done.view.policy) == ("trimmed", "three/heavy")
    assert session.uncompact()
    assert compact(session, summarize, policy=rule, keep_last=4).status == "summarized"
    assert session.uncompact()
    assert compact(session, None, policy=rule, stage="heavy").status == "trimmed"


@both
def test_what_waits_for_the_model_is_not_compacted_unasked(session, compact):
    session.extend([*turns(8), call("a"), result("a")])
    done = compact(session, lambda _: "s")
    assert (done.status, done.view) == ("nothing", None)
    assert "the last item is a tool result" in done.reason
    assert compact(session, lambda _: "s", force=True).status == "summarized"


def test_a_policy_without_triggers_compacts_when_it_is_asked(session):
    session.extend(turns(5))
    rule = memcore.CompactionPolicy(stages=(memcore.Stage(keep=memcore.Keep(last_items=2)),))
    assert session.compact(lambda _: "s", policy=rule).status == "summarized"


@both
def test_the_summarizer_is_told_the_instructions_of_the_agent(session, compact):
    asked: list[memcore.SummaryRequest] = []

    def summarize(request: memcore.SummaryRequest) -> str:
        asked.append(request)
        return "s"

    session.extend([system("Only prices matter."), *turns(8)])
    assert compact(session, summarize).status == "summarized"
    assert [each["content"] for each in asked[0].system] == ["Only prices matter."]
    assert "Only prices matter." not in [each["content"] for each in asked[0].messages]
    session.extend(turns(8, start=8))
    assert compact(session, memcore.Recursive(summarize, fold_items=4)).status == "summarized"
    assert all(request.system == asked[0].system for request in asked)


@pytest.mark.parametrize("timeout", [None, LONG])
def test_a_coroutine_is_no_summary_where_nobody_awaits_it(session, timeout):
    async def asleep() -> str:
        return "s"

    made: list[Any] = []
    session.extend(turns(8))
    done = session.compact(lambda _: made.append(asleep()) or made[0], timeout_seconds=timeout)
    assert done.status == "fallback_slice"
    assert "summarize returned coroutine" in done.reason
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


def test_a_function_that_returns_a_coroutine_is_awaited_by_aio(session):
    async def later(_: memcore.SummaryRequest, text: str) -> str:
        return text

    session.extend(turns(8))
    assert compact_async(session, lambda r: later(r, "one")).view.summary == "one"
    session.extend(turns(8, start=8))
    assert compact_async(session, functools.partial(later, text="two")).view.summary == "two"


@both
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1", True])
def test_a_timeout_that_is_none_is_the_callers_error(session, compact, seconds):
    session.extend(turns(8))
    with pytest.raises(memcore.InvalidOptionError, match="timeout_seconds"):
        compact(session, lambda _: "s", timeout_seconds=seconds)
    assert session.views() == []


# --- it takes too long ----------------------------------------------------------------------------


@both
def test_the_answer_of_a_late_thread_is_not_looked_at(session, caplog, compact):
    session.extend(turns(8))
    late = Blocked("too late")
    done = compact(session, late, timeout_seconds=TINY)
    assert done.status == "fallback_slice"
    assert isinstance(done.error, TimeoutError)
    assert done.reason.endswith("TimeoutError: no summary within 0.001 seconds")
    before = (session.views(), session.context().messages)
    late.go.set()
    end_of_threads()
    assert late.left.is_set()
    assert (session.views(), session.context().messages) == before
    assert "the summarizer failed" in caplog.text


def test_a_late_coroutine_is_closed(session):
    async def real() -> str:
        return "s"

    session.extend(turns(8))
    coroutine = real()
    late = Blocked(coroutine)
    assert session.compact(late, timeout_seconds=TINY).status == "fallback_slice"
    late.go.set()
    end_of_threads()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_a_late_coroutine_is_closed_by_a_loop_that_goes_on(session):
    async def real() -> str:
        return "s"

    async def main() -> None:
        chat = memcore.aio.AsyncSession(session)
        done = await chat.compact(late, timeout_seconds=TINY)
        assert done.status == "fallback_slice"
        late.go.set()
        await asyncio.to_thread(end_of_threads)
        await asyncio.sleep(0)  # what the thread left for the loop
        assert inspect.getcoroutinestate(late.answer) == inspect.CORO_CLOSED

    late = Blocked(real())
    session.extend(turns(8))
    asyncio.run(main())


def test_the_thread_of_a_summarizer_keeps_no_process_alive(session):
    session.extend(turns(8))
    late = Blocked()
    session.compact(late, timeout_seconds=TINY)
    threads = [t for t in threading.enumerate() if t.name == "memcore-summary"]
    assert {t.daemon for t in threads} == {True}
    late.go.set()
    end_of_threads()


def test_a_coroutine_that_takes_too_long_is_cancelled(session):
    seen: list[str] = []

    async def never(_: memcore.SummaryRequest) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    session.extend(turns(8))
    done = compact_async(session, never, timeout_seconds=TINY)
    assert (done.status, seen) == ("fallback_slice", ["cancelled"])
    valid(session)


# --- it is cancelled ------------------------------------------------------------------------------


def test_a_summarizer_that_was_cancelled_is_one_that_failed(session):
    async def cancelled(_: memcore.SummaryRequest) -> str:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task
        return "never"

    session.extend(turns(8))
    done = compact_async(session, cancelled)
    assert done.status == "fallback_slice"
    assert "the summarizer was cancelled" in done.reason


@pytest.mark.parametrize("threaded", [True, False])
def test_a_cancelled_compaction_records_nothing(session, threaded):
    blocked = Blocked()

    async def main() -> None:
        asked = asyncio.Event()

        async def never(_: memcore.SummaryRequest) -> str:
            asked.set()
            await asyncio.Event().wait()
            return "never"

        chat = memcore.aio.AsyncSession(session)
        task = asyncio.ensure_future(chat.compact(blocked if threaded else never))
        await (asyncio.to_thread(blocked.asked.wait, LONG) if threaded else asked.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    session.extend(turns(8))
    asyncio.run(main())  # ends though the thread hangs
    assert session.views() == []
    blocked.go.set()  # the loop is closed: the answer goes nowhere
    end_of_threads()
    assert session.views() == []
    valid(session)


def test_an_interrupt_in_the_thread_of_a_summarizer_is_not_swallowed(session):
    def interrupted(_: memcore.SummaryRequest) -> str:
        raise KeyboardInterrupt

    session.extend(turns(8))
    with pytest.raises(KeyboardInterrupt):
        session.compact(interrupted, timeout_seconds=LONG)
    assert session.views() == []


# --- races ----------------------------------------------------------------------------------------


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work().status
    except memcore.PlanStaleError:
        return "stale"


def test_of_two_compactions_in_threads_one_wins(open_db, session):
    session.extend(turns(8))
    both_planned = threading.Barrier(2)

    def summarize(text: str, _: memcore.SummaryRequest) -> str:
        both_planned.wait(LONG)
        return text

    def run(text: str) -> Any:
        other = open_db().session("chat")
        return outcome(lambda: other.compact(functools.partial(summarize, text)))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, ["one", "two"]))
    assert sorted(found) == ["stale", "summarized"]
    assert [v.summary for v in session.views()] == [["one", "two"][found.index("summarized")]]
    valid(session)


def test_of_two_awaited_compactions_one_wins(session):
    async def main() -> list[Any]:
        chat = memcore.aio.AsyncSession(session)
        both_planned, asked = asyncio.Event(), []

        async def summarize(_: memcore.SummaryRequest) -> str:
            asked.append(1)
            if len(asked) == 2:
                both_planned.set()
            await both_planned.wait()
            return "s"

        return await asyncio.gather(
            chat.compact(summarize), chat.compact(summarize), return_exceptions=True
        )

    session.extend(turns(8))
    found = asyncio.run(main())
    assert sorted(type(entry).__name__ for entry in found) == [
        "CompactionResult",
        "PlanStaleError",
    ]
    assert len(session.views()) == 1
    valid(session)


def test_a_failed_summarizer_that_lost_the_race_builds_on_the_winner(session):
    session.extend(turns(8))

    def late(_: memcore.SummaryRequest) -> str:
        session.compact(lambda _: "theirs")
        raise RuntimeError("down")

    assert outcome(lambda: session.compact(late)) == "stale"
    assert [v.summary for v in session.views()] == ["theirs"]
    valid(session)


@both
def test_a_failure_is_logged_with_the_session_and_its_kind_but_not_its_text(
    session, caplog, compact
):
    session.extend(turns(8))
    with caplog.at_level(logging.WARNING, logger="memcore"):
        done = compact(session, failing)
    (record,) = caplog.records
    assert "'chat'" in record.getMessage()
    assert type(done.error).__name__ in record.getMessage()
    assert str(done.error) == "the model is down"  # the caller has it; a log may not hold content
    assert record.exc_info is None


# --- after an append ------------------------------------------------------------------------------


def test_a_handle_compacts_after_its_appends_if_it_was_opened_so(db, caplog):
    session = db.session("chat", auto_compact=lambda request: f"{len(request.messages)} items")
    for item in turns(6):
        session.append(item)
    assert session.views() == []
    session.append({"role": "user", "content": "q6"})
    assert [view.summary for view in session.views()] == ["10 items"]
    with session.batch() as batch:
        batch.extend(turns(10, start=7))
    valid(session)
    session.record("note")
    assert len(session.views()) == 2
    assert len(db.session("chat").views()) == 2  # another handle does what it is asked
    db.session("chat").extend(turns(20))
    assert len(session.views()) == 2


@pytest.mark.parametrize("by", ["append", "run"])
def test_what_becomes_due_while_another_thread_compacts_is_compacted(db, monkeypatch, by):
    session = db.session("chat", auto_compact=lambda request: f"{len(request.messages)} items")
    done, appended = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    original = memcore.Compactor._run
    runs = []

    def run(self):
        found = original(self)
        runs.append(found)
        if len(runs) == 1:  # it has looked for the last time, and still holds the lock
            done.wait()
            appended.wait()
        return found

    monkeypatch.setattr(memcore.Compactor, "_run", run)
    first = session.append if by == "append" else session.after_append.__self__.run
    arguments = ({"role": "user", "content": "hi"},) if by == "append" else ()
    thread = threading.Thread(target=first, args=arguments)
    thread.start()
    done.wait()
    session.extend(turns(10))
    assert session.views() == []
    appended.wait()
    thread.join()
    assert len(session.views()) == 1
    assert not session.needs_compaction()
    assert len(runs) == 2


def test_a_summarizer_that_appends_is_not_asked_for_ever(db):
    asked = []

    def summarize(request):
        asked.append(len(request.messages))
        session.extend(turns(10))
        return "s"

    session = db.session("chat", auto_compact=summarize)
    session.extend(turns(10))
    assert 1 <= len(asked) <= 8
    valid(session)


def test_an_append_is_stored_whatever_becomes_of_the_compaction(db, caplog):
    session = db.session("chat", auto_compact=failing)
    session.extend(turns(8))
    assert (len(session), session.views()[-1].status) == (16, "fallback_slice")
    assert "the summarizer failed" in caplog.text

    def undoes(_: memcore.SummaryRequest) -> str:
        db.session("other").undo(6)
        return "s"

    other = db.session("other", auto_compact=undoes)
    receipt = other.extend(turns(20))
    assert receipt.appended == 40
    assert "session 'other' was not compacted: PlanStaleError" in caplog.text
    valid(other)


def test_an_append_is_stored_though_the_caller_s_embedder_fails(path, caplog):
    def down(_: object) -> list[list[float]]:
        raise RuntimeError("down")

    trigger = Trigger(items=4)
    stage = Stage(triggers=(trigger,), keep=None, reducers=(DropSimilar(min_tokens=1),))
    rule = CompactionPolicy(stages=(stage,))
    with memcore.open(path, embed=down, compaction=rule) as db:
        session = db.session("chat", auto_compact=memcore.extractive)
        assert session.extend(turns(8)).appended == 16
        assert "session 'chat' was not compacted: RuntimeError" in caplog.text

    async def run() -> None:
        async with memcore.aio.open(path, embed=down, compaction=rule) as db:
            session = db.session("later", auto_compact=memcore.extractive)
            assert (await session.extend(turns(8))).appended == 16

    asyncio.run(run())
    assert "session 'later' was not compacted: RuntimeError" in caplog.text


def test_a_handle_that_cannot_compact_is_refused(db, path):
    with pytest.raises(memcore.InvalidOptionError, match="summarize"):
        db.session("chat", auto_compact=True)

    async def later(_: memcore.SummaryRequest) -> str:
        return "s"

    with pytest.raises(memcore.InvalidOptionError, match=r"memcore\.aio"):
        db.session("chat", auto_compact=later)
    with (
        memcore.open(path, read_only=True) as reader,
        pytest.raises(memcore.ReadOnlyError),
    ):
        reader.session("chat", auto_compact=memcore.extractive)


def test_an_async_handle_compacts_after_its_appends(path, caplog):
    async def summarize(request: memcore.SummaryRequest) -> str:
        await asyncio.sleep(0)
        return f"{len(request.messages)} items"

    async def run() -> None:
        async with memcore.aio.open(path) as db:
            session = db.session("chat", auto_compact=summarize)
            await asyncio.gather(*(session.extend(turns(2, start=2 * n)) for n in range(20)))
            views = await session.views()
            assert views
            assert all(view.summary.endswith(" items") for view in views)
            assert len(session) == 80
            await session.extend(turns(10))
            assert not session.needs_compaction()
            with pytest.raises(memcore.InvalidOptionError, match="summarize"):
                db.session("chat", auto_compact=True)

    asyncio.run(run())
