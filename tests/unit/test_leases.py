"""Leases: one writer at a time; whoever was taken over is refused, whatever the clocks say."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import memcore
import memcore.aio
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.errors import FencedError, LeaseHeldError
from memcore.rows.lifecycle import read_lease
from memcore.session.read import read_log
from memcore.session.session import ref_of, store_of


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


class Clock:
    """The clock of a database, in seconds."""

    def __init__(self, db: memcore.Database) -> None:
        self.now = 1.7e9
        db.engine.now_us = lambda: round(self.now * 1e6)


@pytest.fixture
def clock(db: memcore.Database) -> Clock:
    return Clock(db)


CHANGES: dict[str, Callable[[memcore.Session], Any]] = {
    "append": lambda s: s.append(user("x")),
    "extend": lambda s: s.extend([user("x"), user("y")]),
    "record": lambda s: s.record("note", {}),
    "undo": lambda s: s.undo(),
    "checkpoint": lambda s: s.checkpoint("more"),
    "delete_checkpoint": lambda s: s.delete_checkpoint("first"),
    "rewind": lambda s: s.rewind(1),
    "compact": lambda s: s.compact(memcore.extractive, keep_last=1),
    "set_policy": lambda s: s.set_policy("anthropic"),
    "state": lambda s: s.state.update({"mood": "calm"}),
    "state both": lambda s: s.state.update({"mood": "calm", "user:a": 1}),
    "state delete": lambda s: s.state.delete("kept"),
    "trim": lambda s: s.state.trim(),
    "recount": lambda s: s.recount("bytes/3"),
    "usage": lambda s: s.report_usage(1000),
    "abandon": lambda s: s.abandon("open"),
    "fork": lambda s: s.fork("beside"),
    "repair": lambda s: s.repair(close_open=True),
    "apply": lambda s: s.apply(memcore.Command(update={"mood": "calm"})),
}


def filled(db: memcore.Database) -> memcore.Session:
    session = db.session("s")
    call = {"id": "open", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    session.extend([user(f"{n} words of some length") for n in range(12)])
    session.append({"role": "assistant", "tool_calls": [call]})
    session.state.update({"kept": 1})
    session.checkpoint("first")
    return session


def image(session: memcore.Session) -> Any:
    place = read_log(ref_of(session), lambda log, _: log.place, None)
    prefix = keys.session_prefix(*place)
    return store_of(session).read(lambda txn: dict(txn.scan(prefix, keys.after(prefix))))


@pytest.mark.parametrize("what", CHANGES)
def test_only_the_owner_changes_a_leased_session(db: memcore.Database, what: str) -> None:
    other = filled(db)
    session = db.session("s")
    with session.lease("worker", ttl_seconds=60) as lease:
        before = image(other)
        with pytest.raises(LeaseHeldError) as refused:
            CHANGES[what](other)
        assert (refused.value.owner, refused.value.epoch) == ("worker", lease.epoch)
        assert image(other) == before
        CHANGES[what](session)
        assert image(other) != before


@pytest.mark.parametrize("what", CHANGES)
def test_who_was_taken_over_changes_nothing(db: memcore.Database, clock: Clock, what: str) -> None:
    stale = filled(db)
    lease = stale.lease("first", ttl_seconds=10)
    clock.now += 11
    taken = db.session("s").lease("second", ttl_seconds=10)
    assert (lease.epoch, taken.epoch) == (1, 2)
    clock.now += 11  # expired itself: the first one is refused all the same
    before = image(stale)
    with pytest.raises(FencedError) as refused:
        CHANGES[what](stale)
    assert (refused.value.epoch, refused.value.current) == (1, 2)
    taken.release()
    with pytest.raises(FencedError):
        CHANGES[what](stale)
    with pytest.raises(FencedError):
        lease.renew()
    after = image(stale)
    for row in (before, after):
        row.pop(next(key for key in row if keys.row_of(key) == Row.LEASE))
    del before[min(before)], after[min(after)]  # the head says that nobody holds it
    assert before == after
    assert not lease.release()


def test_a_batch_is_refused_as_a_whole(db: memcore.Database) -> None:
    other, session = filled(db), db.session("s")
    with session.lease("worker", ttl_seconds=60):
        with pytest.raises(LeaseHeldError), other.batch() as batch:
            batch.undo(1)
            batch.append(user("mine"))
            batch.update_state({"mood": "calm"})
        with session.batch() as batch:
            batch.undo(1)
            batch.append(user("mine"))
    assert session.tail(1)[0].message == user("mine")


def test_readers_are_not_kept_out(db: memcore.Database) -> None:
    other = filled(db)
    with db.session("s").lease("worker", ttl_seconds=60):
        assert len(other) == 13
        assert other.context(10_000).messages
        assert other.state.all() == {"kept": 1}


def test_the_same_owner_keeps_the_epoch(db: memcore.Database, clock: Clock) -> None:
    session = db.session("s")
    lease = session.lease("worker", ttl_seconds=10)
    lease.renew()
    assert lease.epoch == 1
    clock.now += 100
    session.append(user("nobody took it"))
    lease.renew(20)
    assert (lease.epoch, lease.expires_at) == (1, clock.now + 20)
    again = db.session("s").lease("worker", ttl_seconds=5)  # the worker was started anew
    assert again.epoch == 1
    assert again.release()
    assert db.session("s").lease("worker", ttl_seconds=5).epoch == 2


def test_what_others_wrote_after_the_end_of_a_lease_ends_it(
    db: memcore.Database, clock: Clock
) -> None:
    session, other = db.session("s"), db.session("s")
    lease = session.lease("worker", ttl_seconds=10)
    with pytest.raises(LeaseHeldError):
        other.append(user("too early"))
    clock.now += 10
    other.append(user("nobody holds it"))
    with pytest.raises(FencedError):
        session.append(user("as if nothing had been written"))
    with pytest.raises(FencedError):
        lease.renew()
    assert [item.message for item in other] == [user("nobody holds it")]
    assert session.lease("worker", ttl_seconds=10).epoch == 2


def test_what_is_refused_does_not_end_an_expired_lease(db: memcore.Database, clock: Clock) -> None:
    session, other = db.session("s"), db.session("s")
    session.lease("worker", ttl_seconds=10)
    clock.now += 11
    with pytest.raises(memcore.RevisionConflict):
        other.append(user("x"), expected_revision=7)
    session.append(user("still its own"))


@pytest.mark.parametrize("leap", [-1e6, 1e6, -1.6e9, 2e9])
def test_no_clock_lets_two_write(db: memcore.Database, clock: Clock, leap: float) -> None:
    first, second = db.session("s"), db.session("s")
    lease = first.lease("first", ttl_seconds=10)
    clock.now += leap
    holder, outsider, error = first, second, LeaseHeldError
    if leap > 0:
        assert second.lease("second", ttl_seconds=10).epoch == 2
        holder, outsider, error = second, first, FencedError
    holder.append(user("one"))
    with pytest.raises(error):
        outsider.append(user("two"))
    clock.now -= leap
    holder.append(user("three"))
    with pytest.raises(error):
        outsider.append(user("four"))
    assert len(first) == 2
    if leap < 0:  # taken in the future: only force gets it before that
        clock.now += leap
        forced = second.lease("second", ttl_seconds=10, force=True)
        assert forced.epoch == lease.epoch + 1
        with pytest.raises(FencedError):
            first.append(user("five"))


def test_a_deleted_session_takes_its_lease_along(db: memcore.Database) -> None:
    session = filled(db)
    lease = session.lease("worker", ttl_seconds=60)
    with pytest.raises(LeaseHeldError):
        db.delete_session("s")
    assert db.scope().delete_session("s", lease=lease)
    with pytest.raises(FencedError):
        session.append(user("to a session that is gone"))
    assert not session.exists()
    db.session("s").append(user("another one of the name"))
    with pytest.raises(FencedError):
        session.append(user("to another session"))
    assert not lease.release()
    session.append(user("as any other"))


def test_a_fork_has_a_lease_of_its_own(db: memcore.Database) -> None:
    session = filled(db)
    with session.lease("worker", ttl_seconds=60):
        fork = session.fork("beside")
        fork.append(user("free"))
        with fork.lease("other", ttl_seconds=60) as lease:
            assert lease.epoch == 1
            session.append(user("mine"))
            with pytest.raises(LeaseHeldError):
                db.session("beside").append(user("x"))


def test_it_survives_reopening(open_db: Callable[..., memcore.Database]) -> None:
    db = open_db()
    db.session("s").lease("worker", ttl_seconds=600)
    db.close()
    again = open_db()
    with pytest.raises(LeaseHeldError):
        again.session("s").append(user("x"))
    session = again.session("s")
    assert session.lease("worker", ttl_seconds=600).epoch == 1
    session.append(user("x"))


def test_threads_take_it_one_after_the_other(db: memcore.Database) -> None:
    db.session("s").append(user("0"))
    taken: list[int] = []

    def work(name: str) -> None:
        session = db.session("s")
        while True:
            try:
                with session.lease(name, ttl_seconds=60) as lease:
                    taken.append(lease.epoch)
                    count = len(session)
                    session.append(user(str(count)))
                    session.append(user(str(count + 1)))
                return
            except LeaseHeldError:
                continue

    threads = [threading.Thread(target=work, args=(f"worker {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [1, 2, 3, 4]
    assert [item.message["content"] for item in db.session("s")] == [str(n) for n in range(9)]


CHILD = """
import sys, memcore
db = memcore.open(sys.argv[1])
session = db.session("s")
lease = session.lease("child", ttl_seconds=600)
session.append({"role": "user", "content": "child"})
print(lease.epoch, flush=True)
sys.stdin.read()
"""


def test_a_killed_owner_is_taken_over_and_its_twin_fenced(
    open_db: Callable[..., memcore.Database], path: Path
) -> None:
    db = open_db()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        session = db.session("s")
        with pytest.raises(LeaseHeldError):
            session.append(user("parent"))
        child.send_signal(signal.SIGKILL)
        child.wait()
    with pytest.raises(LeaseHeldError):  # nobody knows that it is dead
        session.append(user("parent"))
    now_us = db.engine.now_us() + 601 * 10**6
    db.engine.now_us = lambda: now_us
    with session.lease("parent", ttl_seconds=10) as lease:
        assert lease.epoch == 2
        session.append(user("parent"))
    assert [item.message["content"] for item in session] == ["child", "parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_child_of_a_fork_holds_nothing(db: memcore.Database) -> None:
    session = db.session("s")
    with session.lease("worker", ttl_seconds=600):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                session.append(user("child"))
            except LeaseHeldError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        session.append(user("parent"))
    assert len(session) == 1


def test_async(path: Path) -> None:
    async def run() -> None:
        async with memcore.aio.open(path) as db:
            session, other = db.session("s"), db.session("s")
            async with session.lease("worker", ttl_seconds=60) as lease:
                await session.append(user("mine"))
                with pytest.raises(LeaseHeldError):
                    await other.append(user("not mine"))
                with pytest.raises(LeaseHeldError):
                    await other.lease("other", ttl_seconds=1)
                with pytest.raises(LeaseHeldError):
                    async with other.batch() as batch:
                        batch.append(user("not mine"))
                with pytest.raises(LeaseHeldError):
                    await other.state.update({"a": 1})
                await lease.renew(5)
                assert lease.epoch == 1
            taken = await other.lease("other", ttl_seconds=60)
            assert taken.epoch == 2
            with pytest.raises(LeaseHeldError):
                await session.append(user("x"))
            assert await db.scope().delete_session("s", lease=taken)
            assert await db.check() == []

    asyncio.run(run())


def test_a_damaged_lease_keeps_nobody_out_for_good(
    open_db: Callable[..., memcore.Database], path: Path
) -> None:
    db = memcore.open(path)
    session = filled(db)
    session.lease("worker", ttl_seconds=600)
    place = read_log(ref_of(session), lambda log, _: log.place, None)
    key = keys.session_row(*place, Row.LEASE, 0)
    store_of(session).transact(lambda txn: txn.put(key, txn.get(key)[:-1] + b"~"))
    other = db.session("s")
    with pytest.raises(memcore.CorruptValueError):
        other.append(user("x"))
    assert len(db.check()) == 1
    found = other.recover()
    assert (found.status, len(found.notes)) == ("sound", 1)
    with pytest.raises(FencedError):
        session.append(user("x"))
    other.append(user("x"))
    assert db.check() == []
    db.close()


def test_it_is_given_up_when_the_block_fails(db: memcore.Database) -> None:
    session = db.session("s")
    with pytest.raises(ZeroDivisionError), session.lease("worker", ttl_seconds=60):
        raise ZeroDivisionError
    db.session("s").append(user("x"))


@pytest.mark.parametrize(
    "options",
    [
        {"owner": "", "ttl_seconds": 1},
        {"owner": "x" * 1025, "ttl_seconds": 1},
        {"owner": 7, "ttl_seconds": 1},
        {"owner": "w", "ttl_seconds": 0},
        {"owner": "w", "ttl_seconds": float("nan")},
        {"owner": "w", "ttl_seconds": float("inf")},
        {"owner": "w", "ttl_seconds": True},
        {"owner": "w", "ttl_seconds": "1"},
        {"owner": "w", "ttl_seconds": 1, "force": 1},
    ],
)
def test_bad_options(db: memcore.Database, options: dict[str, Any]) -> None:
    session = db.session("s")
    with pytest.raises(memcore.InvalidOptionError):
        session.lease(options.pop("owner"), **options)
    assert not session.exists()


def test_a_lease_is_no_change_of_the_session(db: memcore.Database, clock: Clock) -> None:
    session = filled(db)
    told = session.revision, next(iter(db.sessions())).updated_at
    clock.now += 100
    session.lease("worker", ttl_seconds=60).release()
    assert (session.revision, next(iter(db.sessions())).updated_at) == told


def test_a_session_that_nobody_leased_reads_no_lease(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = filled(db)
    session.lease("worker", ttl_seconds=60).release()
    looks: list[int] = []

    def look(*place: Any) -> Any:
        looks.append(1)
        return read_lease(*place)

    monkeypatch.setattr("memcore.session.engine.read_lease", look)
    session.append(user("x"))
    assert not looks
    with session.lease("worker", ttl_seconds=60):
        session.append(user("x"))
    assert looks


def test_a_sweep_passes_by_what_is_leased(db: memcore.Database, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        db.session(name).extend([user(f"{n}") for n in range(6)])
        db.retention.expire_session(name, 5)
    lease = db.session("b").lease("worker", ttl_seconds=60)
    clock.now += 10
    report = db.sweep()
    assert (report.sessions, report.kept) == (2, 1)
    assert [entry.session_id for entry in db.sessions()] == ["b"]
    assert lease.release()
    assert db.sweep().sessions == 1


def test_a_rule_takes_no_beginning_from_an_owner(db: memcore.Database) -> None:
    session, rule = (
        db.session("s"),
        memcore.RetentionRule(what="items", keep_last=2, action="remove"),
    )
    db.session("t").extend([user(f"{n}") for n in range(6)])
    with session.lease("worker", ttl_seconds=60):
        session.extend([user(f"{n}") for n in range(6)])
        db.retention.set([rule])
        assert db.sweep().kept
        session.append(user("last"))
        assert (len(session), len(db.session("t"))) == (7, 2)
    db.sweep()
    assert len(db.session("s")) == 2


def test_who_was_erased_is_fenced(db: memcore.Database) -> None:
    session = db.session("s", user="ann")
    session.append(user("x"))
    session.lease("worker", ttl_seconds=60)
    db.erase("ann", compact=False)
    with pytest.raises(FencedError):
        session.append(user("y"))
    assert db.scopes() == []


def test_an_erasure_asks_for_no_lease(db: memcore.Database) -> None:
    session = db.session("s", user="ann")
    session.append(user("x"))
    session.lease("worker", ttl_seconds=1000)
    db.erase("ann")
    with pytest.raises(FencedError):
        session.append(user("y"))
    assert not list(db.sessions())


@asynccontextmanager
async def written_elsewhere(db: memcore.aio.AsyncDatabase) -> AsyncIterator[None]:
    """Another thread's write transaction, which lasts as long as the block."""
    begun, ended = threading.Event(), threading.Event()

    def write(_: Any) -> None:
        begun.set()
        assert ended.wait(60)

    store = db.sync.engine.store
    writer = threading.Thread(target=store.transact, args=(write,))
    writer.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        ended.set()
        await asyncio.to_thread(writer.join)


async def cancelled_lease(db: memcore.aio.AsyncDatabase, owner: str) -> None:
    """Take a lease, and cancel that while its commit waits."""
    async with written_elsewhere(db):
        task = asyncio.create_task(db.session("s").lease(owner, ttl_seconds=3600)._take())
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_lease_whose_taking_is_cancelled_is_free(path) -> None:
    async def main() -> None:
        async with memcore.aio.open(path) as db:
            await db.session("s").append({"role": "user", "content": "x"})
            await cancelled_lease(db, "one")
            async with db.session("s").lease("two", ttl_seconds=3600) as lease:
                assert (lease.owner, lease.epoch) == ("two", 2)

    asyncio.run(main())


def test_a_cancelled_lease_of_the_same_owner_leaves_the_one_that_is_held(path) -> None:
    async def main() -> None:
        async with memcore.aio.open(path) as db:
            await db.session("s").append({"role": "user", "content": "x"})
            held = await db.session("s").lease("one", ttl_seconds=3600)
            await cancelled_lease(db, "one")
            await held.renew()

    asyncio.run(main())
