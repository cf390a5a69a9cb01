"""Waiting for changes of states: woken by commits of this process, found if another's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

import memcore
from memcore import InvalidOptionError, StateChanges
from memcore.store.interface import Notifier

USER = {"role": "user", "content": "hi"}
LONG_SECONDS = 60


@pytest.fixture
def never_looks(monkeypatch):
    """Without a wake-up nobody finds anything in time."""
    for module in ("memcore.state.handle", "memcore.aio.state"):
        monkeypatch.setattr(f"{module}.STATE_LOOK_SECONDS", 100 * LONG_SECONDS)


class Watcher(threading.Thread):
    """Waits for one change; ``listening`` is set when it may be made."""

    def __init__(self, state: Any, since: int | None = None) -> None:
        super().__init__(daemon=True)
        self.found: StateChanges | None = None
        self.since = state.counter if since is None else since
        self.state = state
        self.start()

    def run(self) -> None:
        self.found = self.state.wait(since=self.since, timeout_seconds=100 * LONG_SECONDS)

    def result(self) -> StateChanges | None:
        self.join(LONG_SECONDS)
        return self.found


def states(db, user="u"):
    scope = db.scope(user=user, app="a")
    return {"user:": scope.state, "app:": scope.app_state, "": scope.session("s").state}


@pytest.mark.parametrize("prefix", ["user:", "app:", ""])
@pytest.mark.parametrize("is_new", [True, False])
def test_whoever_waits_is_woken_by_the_commit(db, never_looks, prefix, is_new):
    state = states(db)[prefix]
    session = db.scope(user="u", app="a").session("s")
    if not is_new:
        session.state.update({f"{prefix}old": 1, f"{prefix}gone": 1})
    watchers = [Watcher(state) for _ in range(3)]
    with session.batch() as batch:
        batch.append(USER)
        batch.update_state({f"{prefix}a": 1, f"{prefix}b": None, "temp:t": 1})
        batch.delete_state(f"{prefix}gone")
    wanted = (1, ("a", "b"), (), True) if is_new else (2, ("a", "b"), ("gone",), True)
    assert [watcher.result() for watcher in watchers] == [wanted] * 3
    assert state.wait(since=0, timeout_seconds=LONG_SECONDS).counter == wanted[0]


def test_what_others_do_wakes_nobody(db):
    scope = db.scope(user="u", app="a")
    watched = [scope.session("s").state, scope.state, scope.app_state]
    for state in watched:
        state.update({"a": 1})
    calls = []
    notifier = db.engine.store.notifier
    for state in watched:
        with state.watching.listening(lambda: calls.append(1)) as look:
            assert look(1) is None
            calls.clear()
            db.scope(user="v", app="a").session("s").state.update({"a": 1, "user:a": 1})
            calls.clear()  # new names may be anybody's
            db.scope(user="v", app="a").session("s").state.update({"a": 2, "user:a": 2})
            scope.session("s").append(USER)
            assert calls == []
            assert look(1) is None
            state.update({"a": 2})
            assert calls
            assert look(1).written == ("a",)
    assert notifier._listeners == {}


def test_a_watch_tells_every_change_once(db, never_looks):
    state = db.scope(user="u").state
    state.put("before", 1)
    done = threading.Event()
    told: list[StateChanges] = []

    def run() -> None:
        for change in state.watch(since=0):
            told.append(change)
            if "last" in change.written:
                break
        done.set()

    threading.Thread(target=run, daemon=True).start()
    for turn in range(50):
        state.put(f"key {turn}", turn)
    state.delete("key 7")
    state.put("last", 1)
    assert done.wait(LONG_SECONDS)
    counters = [change.counter for change in told]
    assert counters == sorted(set(counters))
    assert counters[-1] == 53
    assert {name for change in told for name in change.written} >= {"before", "last", "key 49"}
    assert all(change.is_complete for change in told)


def test_deletions_that_nobody_can_name_any_more_are_told_as_such(db, monkeypatch):
    for module in ("rows", "change"):
        monkeypatch.setattr(f"memcore.state.{module}.STATE_DELETIONS_TOLD", 16)
    state = db.scope(user="u").state
    state.update({"gone": 1, "kept": 1})
    state.delete("gone")
    assert state.wait(since=1) == (2, (), ("gone",), True)
    for turn in range(40):
        state.put("turn", turn)
    assert state.wait(since=1) == (42, ("turn",), (), False)
    assert state.wait(since=41) == (42, ("turn",), (), True)
    assert state.wait(since=7000) == (42, ("kept", "turn"), (), False)


def test_a_deleted_session_has_no_state_any_more(db, never_looks):
    session = db.session("s")
    session.state.update({"a": 1})
    watcher = Watcher(session.state)
    db.delete_session("s")
    assert watcher.result() == (0, (), (), False)
    session.state.update({"b": 1})
    assert db.session("s").state.wait(since=0) == (1, ("b",), (), True)


def test_a_session_that_was_made_anew_at_the_same_counter_is_told(db):
    session = db.session("s")
    session.state.update({"a": 1})
    changes = session.state.watch(since=0)
    assert next(changes).written == ("a",)
    db.delete_session("s")
    db.session("s").state.update({"b": 2})
    assert next(changes) == (1, ("b",), (), False)
    watching = session.state.watching
    since = watching.since(None)
    db.delete_session("s")
    db.session("s").state.update({"c": 3})
    assert watching.wait(since, 10.0) == (1, ("c",), (), False)


def test_time_is_over(db):
    for state in states(db).values():
        assert state.wait(timeout_seconds=0.01) is None
        with pytest.raises(InvalidOptionError):
            state.wait(timeout_seconds=-1)
        with pytest.raises(InvalidOptionError):
            state.wait(since="1")
        with pytest.raises(InvalidOptionError):
            state.watch(since=-1)


def test_a_closed_database_ends_the_wait(open_db):
    db = open_db()
    state = db.scope(user="u").state
    state.put("a", 1)
    watch = state.watch(since=0)
    assert next(watch).counter == 1
    db.close()
    with pytest.raises(memcore.ClosedError):
        next(watch)


def test_changes_of_another_process_are_found(db, path):
    state = db.scope(user="u", app="a").app_state
    watcher = Watcher(state)
    code = (
        "import memcore, sys\n"
        "with memcore.open(sys.argv[1]) as db:\n"
        "    db.scope(user='v', app='a').app_state.put('x', 1)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert watcher.result() == (1, ("x",), (), True)


def test_a_watch_goes_on_in_the_child_of_a_fork(db):
    state = db.scope(user="u").state
    state.put("a", 1)
    watch = state.watch(since=0)
    assert next(watch).counter == 1
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            state.put("b", 2)
            status = 0 if next(watch).written == ("b",) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert next(watch).counter == 2


def test_awaiting_a_change_lets_the_loop_go_on(open_db, path, never_looks):
    open_db().close()

    async def main() -> None:
        async with memcore.aio.open(path) as db:
            scope = db.scope(user="u", app="a")
            session = scope.session("s")
            for state in (scope.state, scope.app_state, session.state):
                assert await state.wait(timeout_seconds=0.01) is None
                waiting = [asyncio.create_task(state.wait(since=0)) for _ in range(2)]
                assert await state.update({"a": 1}) == 1
                assert await asyncio.gather(*waiting) == [(1, ("a",), (), True)] * 2
                watch = state.watch(since=0)
                assert (await anext(watch)).counter == 1
                following = asyncio.create_task(anext(watch))
                await state.delete("a")
                assert (await following).deleted == ("a",)
                await watch.aclose()
            assert await scope.state.put("b", 1) == 3
            assert await scope.state.replace({"c": 1}, expected=3) == 4
            assert await scope.state.all() == {"c": 1}
            assert await scope.state.get("b", 7) == 7
            assert await scope.state.clear() == 5
            cancelled = asyncio.create_task(scope.state.wait())
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert db.sync.engine.store.notifier._listeners == {}

    asyncio.run(asyncio.wait_for(main(), LONG_SECONDS))


def test_a_bell_rings_for_those_who_listen():
    notifier, heard = Notifier(), []
    first, second = (lambda name=name: heard.append(name) for name in "ab")
    notifier.publish([b"x"])
    notifier.subscribe(b"x", first)
    notifier.subscribe(b"x", second)
    notifier.subscribe(b"y", first)
    notifier.publish([b"x", b"z"])
    notifier.unsubscribe(b"x", first)
    notifier.publish([b"x"])
    assert heard == ["a", "b", "b"]
    with pytest.raises(ValueError):
        notifier.unsubscribe(b"x", first)
    notifier.forget()
    notifier.publish([b"x", b"y"])
    assert heard == ["a", "b", "b"]
