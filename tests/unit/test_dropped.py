"""Databases that are dropped without ``close()``: nothing of them outlives their last user.

Each case runs in a process of its own, so that what it counts is its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from weakref import WeakSet

import pytest

import memcore
from memcore.store import store as handles
from thinned import thinned

PREAMBLE = """
import asyncio, gc, os, sys, tempfile, threading
import memcore
from memcore.store.store import close_unused, environments

USER = {"role": "user", "content": "hi"}

def use():
    db = memcore.open(":memory:")
    db.session("chat").append(USER)

def left():
    '''Descriptors, threads, environments, and kilobytes, when what is being closed is closed.'''
    for _ in range(2):  # a writer thread that has just delivered may be the last user
        close_unused(patient=True)
        for thread in threading.enumerate():
            if thread.name.startswith("memcore-"):
                thread.join(20)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(environments), pages * 4

def unchanged(work, times, most=24, kilobytes=16384):
    '''The first time, what is made once is made.'''
    work()
    before = left()
    for _ in range(times):
        work()
        assert len(os.listdir("/proc/self/fd")) < before[0] + most, os.listdir("/proc/self/fd")
        assert threading.active_count() < before[1] + most, threading.enumerate()
    after = left()
    assert after[:3] == before[:3], (before, after)
    assert after[3] - before[3] < kilobytes, (before, after)

tempfile.tempdir = sys.argv[1]
"""


def in_a_process(work: str, place: Path) -> str:
    """Run a script; what it prints. It must end well and complain of nothing."""
    place.mkdir(exist_ok=True)
    code = PREAMBLE + textwrap.dedent(work)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", code, str(place)],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert not done.stderr
    assert done.returncode == 0
    assert list(place.iterdir()) == []
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where temporary files of the process lie."""
    return tmp_path / "temporary"


@pytest.mark.parametrize("times", thinned([200, 2000], 1))
def test_many_in_memory_leave_nothing(place, times):
    in_a_process(f"gc.disable(); unchanged(use, {times})", place)


def test_they_leave_nothing_on_many_threads(place):
    work = """
    def crowd():
        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    unchanged(crowd, 20, most=60, kilobytes=65536)  # each thread has an arena of malloc's
    """
    in_a_process(work, place)


def test_a_file_that_is_dropped_is_closed(place):
    work = """
    path = sys.argv[1] + "/agent.memcore"
    def use_file():
        db = memcore.open(path)
        session = db.session("chat")
        session.append(USER)
        del db
        return len(session)
    gc.disable()
    unchanged(use_file, 50)
    with memcore.open(path) as db:
        assert len(db.session("chat")) == 51 and db.check() == []
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


def test_one_handle_dropped_leaves_the_others_open(place):
    work = """
    path = sys.argv[1] + "/agent.memcore"
    first, second = memcore.open(path), memcore.open(path, read_only=True)
    del second
    close_unused()
    first.session("chat").append(USER)
    session = first.session("chat")
    del first
    close_unused()
    assert len(session) == 1  # a session is a user of the file
    session.append(USER)
    del session
    assert left()[2] == 0
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


def test_a_relaxed_file_and_an_audited_one_leave_no_thread(place):
    work = """
    key, number = os.urandom(32), 0
    def use_both():
        global number
        number += 1
        for name, options in ("relaxed", {"durability": "relaxed"}), ("audit", {"audit": audit}):
            db = memcore.open(f"{sys.argv[1]}/{name}", **options)
            db.session("chat").append(USER)
    audit = memcore.Audit(key)
    gc.disable()
    unchanged(use_both, 10)
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


def test_an_error_that_holds_the_frames_holds_the_database_until_it_goes(place):
    work = """
    kept = []
    def fail():
        db = memcore.open(":memory:")
        session = db.session("chat")
        session.append(USER)
        session.append({"role": "tool", "tool_call_id": "none", "content": "x"})
    def use_and_fail():
        try:
            fail()
        except memcore.OrphanResultError as error:
            kept.append(error)
            kept[:-1] = []
    unchanged(use_and_fail, 100)
    assert left()[2] == 1
    kept.clear()
    assert left()[2] == 0
    """
    in_a_process(work, place)


def test_a_failed_read_or_write_leaves_no_cycle(place):
    work = """
    def refuse(txn):
        raise LookupError
    def fail():
        store = memcore.open(":memory:").engine.store
        for run in store.read, store.transact:
            try:
                run(refuse)
            except LookupError:
                pass
    gc.disable()
    unchanged(fail, 50)
    """
    in_a_process(work, place)


def test_a_handle_in_a_cycle_goes_with_the_collector(place):
    work = """
    class Owner: pass
    def tie():
        owner = Owner()
        owner.db, owner.self = memcore.open(":memory:"), owner
        owner.db.session("chat").append(USER)
    gc.disable()
    for _ in range(20):
        tie()
    assert len(environments) == 20
    held = threading.Lock()
    with held:
        gc.collect()
    assert left()[2] == 0
    """
    in_a_process(work, place)


def test_what_is_open_at_the_end_of_the_process_does_no_harm(place):
    work = """
    db = memcore.open(":memory:")
    db.session("chat").append(USER)
    other = memcore.open(":memory:")
    del other
    class Owner: pass
    owner = Owner()
    owner.self, owner.db = owner, memcore.open(":memory:")
    print("done")
    """
    assert in_a_process(work, place) == "done\n"


def test_what_is_dropped_in_a_child_stays_open_in_the_parent(place):
    work = """
    path = sys.argv[1] + "/agent.memcore"
    db = memcore.open(path)
    lost = memcore.open(":memory:")
    session = db.session("chat")
    session.append(USER)
    child = os.fork()
    if not child:
        try:
            del db, session, lost
            clean = left()[2] == 0
            use()
            clean = clean and left()[2] == 0
        finally:
            os._exit(0 if clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.append(USER)
    lost.session("chat").append(USER)
    del db, session, lost
    child = os.fork()  # while they are being closed
    if not child:
        unharmed = False
        try:
            use()
            with memcore.open(path) as db:
                unharmed = len(db.session("chat")) == 2 and left()[2] == 1
        finally:
            os._exit(0 if unharmed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left()[2] == 0
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


def test_a_sweeper_keeps_no_database_that_is_dropped(place):
    work = """
    def sweeping():
        db = memcore.open(":memory:")
        db.session("chat").append(USER)
        sweeper = db.sweeper(interval_seconds=3600)
        while not sweeper.sweeps: pass
        del db
        return sweeper
    sweeper = sweeping()
    sweeper._thread.join(20)
    assert not sweeper.running
    def fail(*_, **__): raise ValueError("no")
    def fail_twice(*_, **__):
        try:
            raise KeyError("its frame holds the database, too")
        except KeyError:
            raise ValueError("no") from OSError("never raised")
    def failing(fail=fail):
        db = memcore.open(":memory:")
        failed = threading.Event()
        type(db).sweep, sweep = fail, type(db).sweep
        try:
            sweeper = db.sweeper(interval_seconds=3600, failed=lambda _: failed.set())
            failed.wait(20)
            while sweeper.error is None: pass
        finally:
            type(db).sweep = sweep
    unchanged(failing, 3)
    unchanged(lambda: failing(fail_twice), 3)
    unchanged(sweeping, 3)
    """
    in_a_process(work, place)


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_an_interrupt_while_a_handle_is_dropped_leaves_nothing_open(place, durability):
    """At each point of the destructor; the interpreter drops what it raises."""
    work = f"""
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    sys.unraisablehook = lambda _: None
    from interrupts import Interrupt
    class Here(Interrupt):
        def _counts(self, frame):
            code = frame.f_code
            return "/memcore/store/" in code.co_filename and (
                code.co_qualname in ("LmdbStore.__del__", "drop", "Environment.count_handles")
            )
    path = sys.argv[1] + "/agent.memcore"
    def drop_at(number):
        db = memcore.open(path, durability={durability!r})
        db.session("chat").append(USER)
        here = Here(number)
        here.start()
        try:
            del db
        finally:
            here.stop()
        return here.fired
    gc.collect()
    drop_at(10**6)
    before, number = left(), 1
    while drop_at(number):
        gc.collect()
        after = left()
        assert after[:3] == before[:3], (number, before, after)
        number += 1
    assert number > 10
    assert left()[2] == 0
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


def test_an_interrupt_leaves_no_lock_that_keeps_others_from_being_closed(place):
    """Nobody opens anything any more: what is dropped is closed by a thread."""
    work = f"""
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    sys.unraisablehook = lambda _: None
    from interrupts import Interrupt
    class Here(Interrupt):
        def _counts(self, frame):
            code = frame.f_code
            return "/memcore/store/" in code.co_filename and code.co_qualname == "drop"
    for number in range(1, 12):
        first, second = memcore.open(":memory:"), memcore.open(":memory:")
        here = Here(number)
        here.start()
        del first
        here.stop()
        del second
        while len(environments):  # else the process is ended
            gc.collect()
    """
    in_a_process(work, place)


def test_a_file_may_be_replaced_while_the_old_one_is_being_closed(place):
    work = """
    path = sys.argv[1] + "/agent.memcore"
    for number in range(60):
        db = memcore.open(path)
        assert len(db.session("chat")) == 0
        db.session("chat").append(USER)
        closing = threading.Thread(target=db.close)
        closing.start()
        os.unlink(path)
        del db
        if number % 2: closing.join()
        with memcore.open(path) as db:
            db.session("chat").append(USER)
        closing.join()
        os.unlink(path)
    for name in os.listdir(sys.argv[1]): os.unlink(sys.argv[1] + "/" + name)
    """
    in_a_process(work, place)


SESSIONS = """
from memcore.adapters.openai_agents import MemcoreSession

async def drop():
    session = MemcoreSession("chat")
    await session.add_items([USER])
    await session.get_items()
"""


@pytest.mark.parametrize("often", thinned([100, 1000], 1))
def test_thousands_of_agent_sessions_leave_nothing(place, often):
    work = f"""
    async def many():
        def made():
            MemcoreSession("chat")
        made(); await drop()
        unchanged(made, {often})
        before = left()
        for _ in range({often}):
            await drop()
            assert len(os.listdir("/proc/self/fd")) < before[0] + 24
        after = left()
        assert after[:3] == before[:3], (before, after)
    gc.disable()
    asyncio.run(many())
    """
    in_a_process(SESSIONS + textwrap.dedent(work), place)


def test_agent_sessions_of_closed_loops_leave_nothing(place):
    work = """
    async def cancelled():
        session = MemcoreSession("chat")
        task = asyncio.ensure_future(session.add_items([USER]))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
    async def refused():
        session = MemcoreSession("chat")
        await session.add_items([USER], idempotency_key="k")
        try:
            await session.add_items([USER, USER], idempotency_key="k")
        except memcore.DuplicateRequestError:
            pass
    def use_loops():
        for work in drop, cancelled, refused:
            asyncio.run(work())
    gc.disable()
    unchanged(use_loops, 10)
    """
    in_a_process(SESSIONS + textwrap.dedent(work), place)


def test_an_opening_looks_once_more_when_a_thread_opens_something_meanwhile(tmp_path, monkeypatch):
    with memcore.open(tmp_path / "first") as first, memcore.open(tmp_path / "second") as second:
        late = [second.engine.store.environment()]

        class Changing(WeakSet):
            def __iter__(self):
                for env in super().__iter__():
                    if late:
                        self.add(late.pop())
                    yield env

        known = Changing()
        known.add(first.engine.store.environment())
        with monkeypatch.context() as patch:
            patch.setattr(handles, "environments", known)
            memcore.open(tmp_path / "third").close()
            assert late == []
            with memcore.open(tmp_path / "second") as again:
                assert again.engine.store.environment() is second.engine.store.environment()
