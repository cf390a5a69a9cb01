"""The worker that extracts memories in the background: triggers, retries, processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore import Candidate, Extraction, MemoryWorker, aio
from memcore.codec import keys
from memcore.memory import jobs

ROOT = Path(__file__).parents[2]
WAIT = 60.0


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000


class Scripted:
    """An extractor that says everything again, unless told otherwise."""

    name, version = "scripted", "1"

    def __init__(self, found: Callable[[Extraction], Iterable[Any]] | None = None) -> None:
        self.found = found
        self.seen: list[list[str]] = []

    def __call__(self, extraction: Extraction) -> Iterable[Any]:
        self.seen.append([each.text for each in extraction.items])
        if self.found is not None:
            return self.found(extraction)
        return [Candidate(each.text, (each.number,)) for each in extraction.items]


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def clock(db):
    clock = Clock()
    db.engine.now_us = lambda: clock.now_ms * 1000
    return clock


def say(session, *texts: str) -> None:
    for text in texts:
        session.append({"role": "user", "content": text})


def quiet(extractor: Scripted, **options: Any) -> MemoryWorker:
    """A worker without triggers but those that are given."""
    return MemoryWorker(extractor, **{"turns": None, "idle_seconds": None, **options})


def test_turns_make_a_session_due(db, clock):
    session, extractor = db.session("chat", user="alice"), Scripted()
    worker = quiet(extractor, turns=2)
    say(session, "I like tea")
    session.append({"role": "assistant", "content": "I see"})
    assert worker.notify(session)
    assert worker.run() == []
    assert worker.pending == 1
    say(session, "I like cake")
    worker.notify(session)
    (report,) = worker.run()
    assert (report.session, report.upto, report.stored) == ("chat", 3, 3)
    assert worker.pending == 0
    assert worker.run() == []
    say(session, "I like jam")
    worker.notify(session)
    assert worker.run() == []


def test_idleness_makes_a_session_due(db, clock):
    session, extractor = db.session("chat", user="alice"), Scripted()
    worker = quiet(extractor, idle_seconds=60)
    say(session, "I like tea")
    worker.notify(session)
    assert worker.run() == []
    clock.now_ms += 60_000
    assert [each.upto for each in worker.run()] == [1]


@pytest.mark.parametrize(
    ("passed", "confidence", "due"),
    [(False, None, True), (True, 0.4, True), (True, 0.5, False), (True, None, False)],
)
def test_a_verdict_makes_a_session_due(db, clock, passed, confidence, due):
    session, extractor = db.session("chat", user="alice"), Scripted()
    worker = quiet(extractor)
    say(session, "I like tea")
    session.memory.record_outcome(scenario="tea", passed=passed, confidence=confidence)
    worker.notify(session)
    assert bool(worker.run()) == due
    say(session, "I like cake")
    worker.notify(session)
    assert worker.run() == []


def test_the_end_of_a_session_and_of_the_worker(db, clock):
    first, second = db.session("a", user="alice"), db.session("b", user="bob")
    extractor = Scripted()
    worker = quiet(extractor)
    for session in (first, second):
        say(session, "I like tea")
    assert worker.end(first)
    worker.notify(second)
    assert [each.session for each in worker.run()] == ["a"]
    worker.close()
    assert [each.text for each in second.memory.list()] == ["I like tea"]
    assert not worker.notify(first)
    worker.close()
    with pytest.raises(memcore.ClosedError):
        worker.start()


def test_yesterday(db, clock):
    extractor = Scripted()
    worker = quiet(extractor)
    today = datetime.fromtimestamp(clock.now_ms / 1000, UTC).date()
    for number in range(3):
        say(db.session(f"s{number}", user="alice"), f"I like number {number}")
        clock.now_ms += 86_400_000
    memory = db.scope(app="default", user="alice").memory
    assert [each.session for each in worker.daily(memory)] == ["s2"]
    assert [each.session for each in worker.daily(memory, today)] == ["s0"]
    assert worker.daily(memory, date(1990, 1, 1)) == []
    assert [each.items for each in worker.daily(memory)] == [0]
    with pytest.raises(memcore.InvalidOptionError):
        worker.daily(memory, "today")
    with pytest.raises(memcore.InvalidOptionError):
        worker.daily(db.scope())


def test_a_failed_job_is_tried_again_when_its_time_comes(db, clock):
    session = db.session("chat", user="alice")
    attempts: list[int] = []

    def fail(_: Extraction) -> Iterable[Candidate]:
        attempts.append(clock.now_ms)
        raise TimeoutError

    extractor = Scripted(fail)
    worker = quiet(extractor, turns=1)
    say(session, "I like tea")
    for _ in range(400):
        worker.notify(session)  # as after each turn: no pause is cut short
        worker.run()
        clock.now_ms += 5_000
    assert len(attempts) == jobs.ATTEMPTS_MAX
    pauses = [later - at for at, later in pairwise(attempts)]
    assert pauses == [30_000, 60_000, 120_000, 240_000]
    (job,) = session.memory.jobs()
    assert (job.state, job.reason) == ("dead", "TimeoutError")
    extractor.found = None
    session.memory.retry(job)
    worker.notify(session)
    assert [each.stored for each in worker.run()] == [1]
    assert list(worker.errors) == []


def test_one_sessions_error_is_kept_and_others_go_on(db, clock):
    broken, sound = db.session("a", user="alice"), db.session("b", user="alice")
    told: list[memcore.ExtractionFailure] = []

    def hook(report: memcore.ExtractionReport) -> None:
        if report.session == "a":
            raise RuntimeError

    worker = quiet(Scripted(), turns=1, on_report=hook, on_error=told.append)
    for session in (broken, sound):
        say(session, f"I like {session.id}-tea")
        worker.notify(session)
    assert [each.session for each in worker.run()] == ["a", "b"]
    assert [(each.session, type(each.error)) for each in told] == [("a", RuntimeError)]
    assert list(worker.errors) == told


def test_a_scope_that_was_let_go_during_a_pass_is_passed_over(db, clock):
    worker = quiet(Scripted(), turns=1)
    assert worker._retry((0, "default", "alice", "")) == []


@pytest.mark.parametrize("error", [SystemExit, KeyError])
def test_the_thread_survives_what_a_session_does(db, monkeypatch, error):
    """An exit in the extractor, or a defect, is kept, and the sessions after it are read."""
    leaving, sound = (db.session(name, user="alice") for name in ("a", "b"))

    def leave(extraction: Extraction) -> Iterable[Candidate]:
        if extraction.items[0].text == "leave":
            raise SystemExit
        return [Candidate(each.text, (each.number,)) for each in extraction.items]

    run, left = MemoryWorker._run, []

    def fail_once(self, fresh=None):
        if error is KeyError and not left:
            left.append(1)
            raise KeyError
        return run(self, fresh)

    monkeypatch.setattr(MemoryWorker, "_run", fail_once)
    with quiet(Scripted(leave), turns=1) as worker:
        for session, text in ((leaving, "leave"), (sound, "I like tea")):
            say(session, text)
            worker.notify(session)
            if error is SystemExit:
                assert worker.drained(WAIT)
        assert worker.drained(WAIT)
        assert error in [type(each.error) for each in worker.errors]
        assert worker._thread.is_alive()
        assert [each.text for each in sound.memory.list()] == ["I like tea"]


def test_a_damaged_watermark_stops_no_other_session(db, clock):
    sessions = [db.session(name, user="alice") for name in "abc"]
    for session in sessions:
        say(session, "I like tea")
    memory = sessions[0].memory
    rows = keys.memory_rows(1, keys.MemoryRow.WATERMARK)
    memory.extract("a", Scripted())

    def damage(txn) -> None:
        key, value = next(iter(txn.scan(rows, keys.after(rows))))
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))

    db.engine.store.transact(damage)
    worker = quiet(Scripted())
    today = datetime.fromtimestamp(clock.now_ms / 1000, UTC).date()
    assert [each.session for each in worker.daily(memory, today)] == ["b", "c"]
    assert [each.session for each in worker.errors] == ["a"]
    db.scope(app="default", user="alice").delete_session("a")


def test_a_deleted_session_and_an_opted_out_user_are_let_go(db, clock):
    gone, silent = db.session("a", user="alice"), db.session("b", user="bob")
    worker = quiet(Scripted(), turns=1)
    for session in (gone, silent):
        say(session, "I like tea")
        worker.notify(session)
    db.scope(app="default", user="alice").delete_session("a")
    db.scope(app="default", user="bob").opt_out_memory()
    assert worker.run() == []
    assert worker.pending == 0
    assert list(worker.errors) == []


def test_a_full_worker_refuses_and_loses_nothing(db):
    first, second = db.session("a", user="alice"), db.session("b", user="alice")
    worker = quiet(Scripted(), turns=1, waiting_max=1)
    for session in (first, second):
        say(session, "I like tea")
    assert worker.notify(first)
    assert worker.notify(first)
    assert not worker.notify(second)
    worker.run()
    assert worker.notify(second)


@pytest.mark.parametrize(
    "options",
    [
        {"turns": 0}, {"turns": "2"}, {"idle_seconds": -1}, {"confidence": 2}, {"kinds": "fact"},
        {"waiting_max": 0}, {"close_seconds": "x"}, {"on_report": 1}, {"on_error": 1},
        {"extractor": 1},
    ],
)  # fmt: skip
def test_wrong_arguments(options):
    with pytest.raises((memcore.InvalidOptionError, memcore.InvalidItemError)):
        MemoryWorker(**options)
    with pytest.raises(memcore.InvalidOptionError):
        MemoryWorker().notify("chat")


def test_the_thread_reads_while_the_runtime_appends(db):
    session = db.session("chat", user="alice")
    begun, go_on = threading.Event(), threading.Event()

    def slow(extraction: Extraction) -> Iterable[Candidate]:
        begun.set()
        assert go_on.wait(WAIT)
        return [Candidate(each.text, (each.number,)) for each in extraction.items]

    with quiet(Scripted(slow), turns=1) as worker:
        say(session, "I like tea")
        worker.notify(session)
        assert begun.wait(WAIT)
        say(session, "I like cake")  # not blocked, and read next
        worker.notify(session)
        assert not worker.drained(0.0)
        go_on.set()
        assert worker.drained(WAIT)
    assert [each.text for each in session.memory.list()] == ["I like tea", "I like cake"]
    assert [each.version for each in session.memory.list()] == [1, 1]


def test_the_asynchronous_worker(path):
    async def go() -> None:
        async with aio.open(path) as db:
            session = db.session("chat", user="alice")
            async with aio.AsyncMemoryWorker(turns=1, idle_seconds=None) as worker:
                await session.append({"role": "user", "content": "I always like green tea"})
                assert worker.notify(session)
                assert await worker.drained(WAIT)
                assert [each.text for each in await session.memory.list()] == [
                    "I always like green tea"
                ]
                await session.append({"role": "user", "content": "I always like black tea"})
                assert worker.end(session)
                assert await worker.daily(session.memory) == []
                await worker.run()
                assert worker.pending == 0
                assert worker.sync.pending == 0
            report = await session.memory.extract()
            assert report.items == 0
            assert await session.memory.jobs() == []

    asyncio.run(go())


CHILD = """
import sys
import memcore
from memcore import Candidate

class Each:
    name, version = "each", "1"
    def __call__(self, extraction):
        print("called", flush=True)
        return [Candidate(each.text, (each.number,)) for each in extraction.items]

with memcore.open(sys.argv[1]) as db:
    sys.stdin.readline()
    worker = memcore.MemoryWorker(Each(), turns=1, idle_seconds=None)
    for number in range(12):
        worker.notify(db.session(f"s{number}", user="alice"))
    worker.run()
"""


def test_processes_share_the_jobs_and_do_none_twice(path):
    with memcore.open(path) as db:
        for number in range(12):
            say(db.session(f"s{number}", user="alice"), f"I like number {number}")
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(4)
        ]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        told = [child.communicate(timeout=120)[0] for child in children]
        assert [child.returncode for child in children] == [0] * 4
        assert sum(each.count("called") for each in told) == 12
        memory = db.scope(app="default", user="alice").memory
        assert sorted(each.text for each in memory.list()) == sorted(
            f"I like number {number}" for number in range(12)
        )
        assert {each.version for each in memory.list()} == {1}
        assert memory.jobs() == []


KILLED = """
import os, sys
import memcore
from memcore import Candidate
from memcore.memory import extract, jobs

class Each:
    name, version = "each", "1"
    def __call__(self, extraction):
        if sys.argv[2] == "model":
            os._exit(9)
        return [Candidate(each.text, (each.number,)) for each in extraction.items]

if sys.argv[2] == "finish":
    jobs.finish = lambda *_: os._exit(9)
with memcore.open(sys.argv[1]) as db:
    session = db.session("chat", user="alice")
    if sys.argv[2] == "done":
        session.memory.extract(session, Each())
        os._exit(9)
    session.memory.extract(session, Each())
"""


@pytest.mark.parametrize("where", ["model", "finish", "done"])
def test_a_process_that_is_killed_neither_loses_nor_doubles(path, where):
    with memcore.open(path) as db:
        say(db.session("chat", user="alice"), "I like tea", "I like cake")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), where], cwd=ROOT, check=False, timeout=120
    )
    assert done.returncode == 9
    with memcore.open(path) as db:
        session = db.session("chat", user="alice")
        assert len(session.memory.list()) == (2 if where == "done" else 0)
        clock = Clock()
        clock.now_ms = db.engine.now_ms() + jobs.LEASE_MS + 1
        db.engine.now_us = lambda: clock.now_ms * 1000
        extractor = Scripted()
        extractor.name = "each"
        session.memory.extract(session, extractor)
        assert [each.text for each in session.memory.list()] == ["I like tea", "I like cake"]
        assert [each.version for each in session.memory.list()] == [1, 1]
        assert session.memory.jobs() == []
        assert db.check() == []
