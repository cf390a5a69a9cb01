"""Group commit: batches, failures inside them, interrupts, futures, failed commits."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest
from interrupts import Interrupt

from memcore._fast import redo_record
from memcore.errors import (
    ClosedError,
    FencedError,
    InternalError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
)
from memcore.store import open_store, redo_log
from memcore.store.commit import copy_of, deliver
from memcore.store.datafile import FORMAT_KEY, Format
from memcore.store.open_file import recover
from memcore.store.redo_log import RedoLog
from memcore.store.transaction import stored
from raw import rows

A, B, C = b"\x01a", b"\x01b", b"\x01c"


@pytest.fixture(params=["full", "relaxed", "none"])
def store(request, tmp_path: Path):
    store = open_store(tmp_path / "agent.memcore", durability=request.param, map_bytes=2**30)
    yield store
    store.close()
    store = open_store(tmp_path / "agent.memcore", verify=True)
    assert store.check() == []
    store.close()


def queue_of(store):
    return store._env.queue


def put(key, value=b""):
    return lambda txn: txn.put(key, value)


class Crowd:
    """Threads that call while a leader is held inside its closure, so they share one batch."""

    def __init__(self, store) -> None:
        self.store = store
        self.held, self.go = threading.Event(), threading.Event()
        self.results = {}
        self.threads = [threading.Thread(target=self._call, args=("leader", self._hold))]
        self.leads = put(b"\x01leader")

    def _hold(self, txn):
        self.held.set()
        self.go.wait()
        return self.leads(txn)

    def _call(self, name, fn) -> None:
        try:
            self.results[name] = self.store.transact(fn)
        except BaseException as error:  # noqa: BLE001 - it is the result
            self.results[name] = error

    def run(self, **closures) -> dict:
        """All closures behind the leader, in order; their results or errors."""
        self.threads[0].start()
        self.held.wait()
        for number, (name, fn) in enumerate(closures.items(), 1):
            thread = threading.Thread(target=self._call, args=(name, fn))
            self.threads.append(thread)
            thread.start()
            self.until(number)
        self.go.set()
        for thread in self.threads:
            thread.join()
        return self.results

    def until(self, number) -> None:
        while len(queue_of(self.store).waiting) < number:
            self.held.wait(0)
            os.sched_yield()


def batches(store):
    stats = store.stats()
    return stats["batches"], stats["closures"]


def test_waiting_closures_share_one_commit(store) -> None:
    results = Crowd(store).run(**{f"c{n}": put(b"\x01%d" % n) for n in range(20)})
    assert set(results.values()) == {None}
    assert batches(store) == (1, 21)
    assert len(rows(store)) == 21


def test_closures_run_in_the_order_of_their_arrival(store) -> None:
    def append(letter):
        return lambda txn: txn.put(A, (txn.get(A) or b"") + letter)

    Crowd(store).run(one=append(b"1"), two=append(b"2"), three=append(b"3"))
    assert rows(store)[A] == b"123"


def test_a_failure_before_the_first_write_is_isolated(store) -> None:
    runs = []

    def fail(txn):
        txn.on_commit(lambda: runs.append("never"))
        raise KeyError("mine")

    def good(txn):
        runs.append("good")
        txn.put(B, b"")

    results = Crowd(store).run(good=good, bad=fail, last=put(C))
    assert isinstance(results["bad"], KeyError)
    assert (results["good"], results["last"], runs) == (None, None, ["good"])
    assert set(rows(store)) == {B, C, b"\x01leader"}
    assert batches(store)[0] == 1


def test_a_failure_after_a_write_takes_only_itself_back(store) -> None:
    runs = []

    def fail(txn):
        txn.put(A, b"")
        txn.local["poisoned"] = True
        raise KeyError("mine")

    def good(txn):
        runs.append("poisoned" in txn.local)
        txn.put(B, b"")
        return "result"

    results = Crowd(store).run(good=good, bad=fail, worse=fail, last=put(C))
    assert isinstance(results["bad"], KeyError)
    assert isinstance(results["worse"], KeyError)
    assert (results["good"], results["last"]) == ("result", None)
    assert runs == [False, False, False]
    assert set(rows(store)) == {B, C, b"\x01leader"}
    assert batches(store)[0] == 1


def test_a_failing_leader_serves_the_others(store) -> None:
    crowd = Crowd(store)

    def fail(txn):
        txn.put(A, b"")
        raise KeyError("mine")

    crowd.leads = fail
    results = crowd.run(one=put(B), two=put(C))
    assert isinstance(results["leader"], KeyError)
    assert set(rows(store)) == {B, C}


def test_a_closure_that_swallows_a_refusal_is_not_stored(store) -> None:
    def swallow(txn):
        txn.put(A, b"1")
        try:
            txn.put(B, "no bytes")
        except TypeError:
            return "fine"

    results = Crowd(store).run(bad=swallow, good=put(C))
    assert isinstance(results["bad"], TypeError)
    assert set(rows(store)) == {C, b"\x01leader"}


def test_locals_are_shared_by_a_batch_and_gone_after_it(store) -> None:
    def count(txn):
        txn.local["n"] = txn.local.get("n", 0) + 1
        txn.put(A, b"%d" % txn.local["n"])
        return txn.local["n"]

    results = Crowd(store).run(one=count, two=count)
    assert (results["one"], results["two"]) == (1, 2)
    assert store.transact(count) == 1


def test_callbacks_run_in_order_before_anyone_wakes(store) -> None:
    order = []

    def with_callback(name):
        def closure(txn):
            txn.put(b"\x01" + name.encode(), b"")
            txn.on_commit(lambda: order.append((name, threading.current_thread().name)))

        return closure

    results = Crowd(store).run(one=with_callback("one"), two=with_callback("two"))
    assert [name for name, _ in order] == ["one", "two"]
    assert len({thread for _, thread in order}) == 1
    assert results["one"] is None


def test_a_callback_that_raises_spoils_its_own_caller_only(store) -> None:
    ran = []

    def bad(txn):
        txn.put(A, b"1")
        txn.on_commit(lambda: 1 // 0)
        txn.on_commit(lambda: ran.append(1))

    results = Crowd(store).run(bad=bad, good=put(B))
    assert isinstance(results["bad"], InternalError)
    assert isinstance(results["bad"].__cause__, ZeroDivisionError)
    assert "stored" in str(results["bad"])
    assert results["good"] is None
    assert ran == [1]
    assert set(rows(store)) >= {A, B}


def test_a_callback_runs_though_nothing_was_written(store) -> None:
    ran = []
    store.transact(lambda txn: txn.on_commit(lambda: ran.append(1)))
    assert ran == [1]


def test_a_closure_that_overflows_the_slot_opens_the_next_batch(tmp_path) -> None:
    store = open_store(tmp_path / "agent.memcore")
    records = []
    original = RedoLog.write
    RedoLog.write = lambda self, txnid, ops: (records.append(set(ops)), original(self, txnid, ops))
    try:
        big = b"x" * 100_000
        Crowd(store).run(a=put(b"\x01a", big), b=put(b"\x01b", big), c=put(b"\x01c", big),
                         d=put(b"\x01d"))  # fmt: skip
    finally:
        RedoLog.write = original
    assert records == [{b"\x01leader", b"\x01a", b"\x01b"}, {b"\x01c", b"\x01d"}]
    assert batches(store) == (2, 5)
    store.close()


def test_a_transaction_above_a_slot_is_committed_alone(tmp_path) -> None:
    store = open_store(tmp_path / "agent.memcore")
    crowd = Crowd(store)
    crowd.leads = put(A, b"x" * 1_000_000)
    crowd.run(one=put(B), two=put(C))
    assert batches(store) == (2, 3)
    assert len(rows(store)) == 3
    store.close()


def test_a_full_map_grows_and_all_run_again(tmp_path) -> None:
    store = open_store(tmp_path / "agent.memcore", map_bytes=2**20)
    results = Crowd(store).run(
        **{f"c{n}": put(b"\x01%d" % n, os.urandom(200_000)) for n in range(40)}
    )
    assert set(results.values()) == {None}
    assert len(rows(store)) == 41
    assert store.stats()["map_bytes"] > 8 * 10**6
    assert store.check() == []
    store.close()


def test_growing_waits_for_reads(tmp_path) -> None:
    store = open_store(tmp_path / "agent.memcore", map_bytes=2**20)
    store.transact(put(A, b"kept"))
    reading, go = threading.Event(), threading.Event()
    seen = []

    def slow(txn):
        reading.set()
        go.wait()
        seen.append((txn.get(A), store.read(lambda inner: inner.get(A))))

    reader = threading.Thread(target=store.read, args=(slow,))
    reader.start()
    reading.wait()
    writer = threading.Thread(target=store.transact, args=(put(B, b"x" * 5_000_000),))
    writer.start()
    while not store._env.barrier.is_shut:
        os.sched_yield()
    late = threading.Thread(target=lambda: seen.append(store.read(lambda txn: txn.get(A))))
    late.start()
    go.set()
    for thread in (reader, writer, late):
        thread.join()
    assert sorted(map(repr, seen)) == sorted(map(repr, [(b"kept", b"kept"), b"kept"]))
    assert len(rows(store)[B]) == 5_000_000
    store.close()


def test_the_map_has_an_end(tmp_path, monkeypatch) -> None:
    for module in ("lmdb", "environment"):
        monkeypatch.setattr(f"memcore.store.{module}.MAP_BYTES_MAX", 2**21)
    store = open_store(tmp_path / "agent.memcore", map_bytes=2**20)
    with pytest.raises(StoreFullError):
        store.transact(put(A, b"x" * 5_000_000))
    store.transact(put(B, b"1"))
    assert rows(store) == {B: b"1"}
    assert store.check() == []
    store.close()


def test_many_threads_lose_no_increment(store) -> None:
    def add(txn):
        txn.put(A, b"%d" % (int(txn.get(A) or 0) + 1))

    def work():
        for _ in range(50):
            store.transact(add)
            store.read(lambda txn: txn.get(A))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(store)[A] == b"800"


# --- futures -------------------------------------------------------------------------------------


def test_futures_follow_the_commit_with_one_wake_up(store) -> None:
    async def main():
        loop = asyncio.get_running_loop()
        calls = []
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (calls.append(1), wake(*args))
        crowd = Crowd(store)
        crowd.threads[0].start()
        crowd.held.wait()
        futures = [store.submit(put(b"\x01%d" % n), loop) for n in range(10)]

        def fail(txn):
            raise KeyError("mine")

        futures.append(store.submit(fail, loop))
        futures[3].cancel()
        crowd.go.set()
        results = await asyncio.gather(*futures, return_exceptions=True)
        crowd.threads[0].join()
        return results, len(calls)

    results, wakes = asyncio.run(main())
    assert wakes == 1
    assert results[:3] == [None] * 3
    assert isinstance(results[3], asyncio.CancelledError)
    assert isinstance(results[10], KeyError)
    assert len(rows(store)) == 11  # a cancelled future is no rollback


def test_futures_alone_are_served_by_the_writer_thread(store) -> None:
    async def main():
        loop = asyncio.get_running_loop()
        names = [await store.submit(lambda txn: threading.current_thread().name, loop)
                 for _ in range(3)]  # fmt: skip
        with pytest.raises(InternalError):
            await store.submit(lambda txn: next(iter(())), loop)
        with pytest.raises(InternalError):
            await store.submit(lambda txn: store.transact(put(A)), loop)
        return names

    assert asyncio.run(main()) == ["memcore-writer"] * 3
    assert store.transact(lambda txn: threading.current_thread()) is threading.current_thread()


def test_a_closed_loop_and_a_fatal_closure_hurt_nobody(store) -> None:
    async def leave():
        store.submit(put(A), asyncio.get_running_loop())

    def fatal(txn):
        raise SystemExit

    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(SystemExit):
            await asyncio.wait_for(asyncio.shield(store.submit(fatal, loop)), None)

    asyncio.run(leave())
    store.transact(put(B))
    assert set(rows(store)) == {A, B}


def test_closing_lets_futures_end(tmp_path) -> None:
    store = open_store(tmp_path / "agent.memcore")

    async def main():
        loop = asyncio.get_running_loop()
        futures = [store.submit(put(b"\x01%d" % n), loop) for n in range(50)]
        store.close()
        with pytest.raises(ClosedError):
            store.submit(put(A), loop)
        await asyncio.gather(*futures)

    asyncio.run(main())
    store = open_store(tmp_path / "agent.memcore")
    assert len(rows(store)) == 50
    store.close()


# --- interrupts and failed commits ---------------------------------------------------------------


class Interrupting:
    """LMDB's transaction with an interrupt before or after its commit."""

    def __init__(self, raw, before, after) -> None:
        self.raw, self.before, self.after = raw, before, after

    def __getattr__(self, name):
        return getattr(self.raw, name)

    def commit(self):
        if self.before:
            raise self.before
        self.raw.commit()
        if self.after:
            raise self.after


def seam(store, monkeypatch, *, before=None, after=None):
    """The next write transaction of the store behaves as told."""
    env = store._env
    begin, left = env.begin, [1]

    def begin_once(**options):
        raw = begin(**options)
        if options.get("write") and left:
            left.pop()
            return Interrupting(raw, before, after)
        return raw

    monkeypatch.setattr(env, "begin", begin_once)


def survivors(store, tmp_path):
    """What a crash right now would leave, as the next opener sees it."""
    copy = tmp_path / f"crash-{os.urandom(4).hex()}"
    shutil.copyfile(store.path, copy)
    other = open_store(copy)
    try:
        return rows(other)
    finally:
        other.close()


def test_an_interrupt_before_the_commit_stores_nothing(store, monkeypatch, tmp_path) -> None:
    seam(store, monkeypatch, before=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.transact(put(A))
    assert survivors(store, tmp_path) == {}
    store.transact(put(B))
    assert set(rows(store)) == {B}


def test_an_interrupt_after_the_commit_keeps_it(store, monkeypatch, tmp_path) -> None:
    ran = []

    def closure(txn):
        txn.put(A, b"")
        txn.on_commit(lambda: ran.append(1))

    seam(store, monkeypatch, after=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.transact(closure)
    assert ran == [1]
    assert set(survivors(store, tmp_path)) == {A}
    store.transact(put(B))
    assert set(rows(store)) == {A, B}


@pytest.mark.parametrize("when", ["before", "after"])
def test_followers_survive_the_leader_s_interrupt(store, monkeypatch, when) -> None:
    runs = []

    def count(txn):
        runs.append(1)
        txn.put(B, b"%d" % (int(txn.get(B) or 0) + 1))

    seam(store, monkeypatch, **{when: KeyboardInterrupt()})
    results = Crowd(store).run(one=count, two=count, three=count)
    assert isinstance(results.pop("leader"), KeyboardInterrupt)
    assert set(results.values()) == {None}
    assert rows(store)[B] == b"3"
    assert (b"\x01leader" in rows(store)) == (when == "after")


def test_an_heir_that_is_interrupted_as_it_takes_the_lead_passes_it_on(store) -> None:
    """It still stands in the queue then, and must not be its own heir."""
    crowd = Crowd(store)
    queue = queue_of(store)
    caught, asleep = [], threading.Event()

    class Waiter:
        """The lock of the heir; an interrupt comes while it wakes with the lead."""

        def __init__(self, call, lock):
            self.call, self.lock, self.release = call, lock, lock.release

        def acquire(self, blocking, seconds):
            asleep.set()
            self.lock.acquire()
            assert queue.waiting[0] is self.call
            raise KeyboardInterrupt

    def inherit():
        try:
            queue.call(lambda _: None, job=True)  # never taken into the batch of another
        except KeyboardInterrupt as error:
            caught.append(error)

    heir = threading.Thread(target=inherit)
    last = threading.Thread(target=lambda: queue.call(put(A)), daemon=True)
    crowd.threads[0].start()
    crowd.held.wait()
    for number, thread in enumerate((heir, last), 1):
        thread.start()
        while len(queue.waiting) < number:
            pass
    call = queue.waiting[0]
    call.waiter = Waiter(call, call.waiter)
    asleep.wait()  # it looks at its state now and then, and sleeps on the new lock from then on
    crowd.go.set()
    heir.join()
    last.join(20)
    assert caught
    assert not last.is_alive()
    crowd.threads[0].join()


def test_an_interrupt_inside_another_s_closure_requeues_it(store) -> None:
    runs = []

    def interrupted(txn):
        runs.append(1)
        txn.put(A, b"")
        if len(runs) == 1:
            raise KeyboardInterrupt

    results = Crowd(store).run(one=interrupted, two=put(B))
    assert isinstance(results["leader"], KeyboardInterrupt)
    assert (results["one"], results["two"]) == (None, None)
    assert set(rows(store)) == {A, B}


@pytest.mark.parametrize("value", [b"small", b"x" * 300_000], ids=["recorded", "above a slot"])
def test_an_interrupt_at_any_point_leaves_the_store_usable(tmp_path, value) -> None:
    store = open_store(tmp_path / "agent.memcore")
    number, fired = 0, True
    while fired:
        number += 1
        interrupt = Interrupt(number)
        folded = []

        def closure(txn, folded=folded):
            txn.put(A, value)
            txn.on_commit(lambda: folded.append(1))

        acked = interrupt.during(lambda closure=closure: store.transact(closure))
        fired = interrupt.fired
        stored = rows(store) == {A: value}
        assert stored == bool(folded), number
        assert stored or not acked
        assert set(survivors(store, tmp_path)) == set(rows(store)), number
        interrupt = Interrupt(number)
        interrupt.during(lambda: store.read(lambda txn: txn.get(A)))
        store.transact(lambda txn: txn.delete(A))
        assert not store._env.barrier.live
    assert number > 12
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("number", range(1, 60))
def test_followers_are_served_wherever_the_leader_is_interrupted(store, number) -> None:
    """The leader is the main thread here; its followers run once each, whatever befalls it."""
    runs = []

    def count(txn):
        txn.put(B, b"%d" % (int(txn.get(B) or 0) + 1))
        txn.on_commit(lambda: runs.append(1))

    threads = [threading.Thread(target=store.transact, args=(count,)) for _ in range(3)]

    def lead(txn):
        for waiting, thread in enumerate(threads, 1):
            if thread.ident is None:
                thread.start()
            while len(queue_of(store).waiting) < waiting and len(runs) == 0:
                os.sched_yield()
            if runs or queue_of(store).led_here is False:
                break
        txn.put(A, b"1")
        interrupt.start()

    interrupt = Interrupt(number)
    try:
        store.transact(lead)
    except KeyboardInterrupt:
        pass
    finally:
        interrupt.stop()
    for thread in threads:
        thread.join()
    assert rows(store)[B] == b"3"
    assert runs == [1, 1, 1]


def test_a_failed_commit_cannot_come_back(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    store.transact(put(A))
    env = store._env
    begin = env.begin

    class Failing(Interrupting):
        def commit(self):
            self.raw.abort()
            raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    left = [1]

    def begin_once(**options):
        raw = begin(**options)
        if options.get("write") and left:
            left.pop()
            return Failing(raw, None, None)
        return raw

    monkeypatch.setattr(env, "begin", begin_once)
    with pytest.raises(StoreFullError, match="nothing was stored"):
        store.transact(put(B))
    assert set(survivors(store, tmp_path)) == {A}
    store.transact(put(C))
    assert set(rows(store)) == {A, C}
    store.close()


def fail_commit(store, monkeypatch, error, meanwhile=lambda: None):
    """The next commit fails; ``meanwhile`` happens after LMDB let its lock go."""

    class Failing(Interrupting):
        def commit(self):
            self.raw.abort()
            meanwhile()
            raise error

    env = store._env
    begin, left = env.begin, [1]

    def begin_once(**options):
        raw = begin(**options)
        if options.get("write") and left:
            left.pop()
            return Failing(raw, None, None)
        return raw

    monkeypatch.setattr(env, "begin", begin_once)


def test_a_record_that_another_process_replayed_counts_as_committed(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    env = store._env
    record = Format.unpack(store.read(lambda txn: stored(txn).get(FORMAT_KEY)), "")
    replayed = []

    def replay():
        before = store.stats()["last_txnid"]
        assert recover(env.raw, env.redo, env.fd, env.path, record) == record
        replayed.append(store.stats()["last_txnid"] - before)

    fail_commit(store, monkeypatch, lmdb.DiskError("no space"), replay)
    store.transact(put(A))
    assert replayed == [1]
    assert set(rows(store)) == {A}
    store.close()


def test_another_s_commit_in_between_means_ours_is_lost(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    env = store._env

    def foreign():
        with env.raw.begin(write=True) as txn:
            other = RedoLog(env.fd, run_of(env))
            other.write(txn.id(), {C: b"theirs"})
            txn.put(C, b"theirs")

    fail_commit(store, monkeypatch, lmdb.DiskError("no space"), foreign)
    with pytest.raises(StoreFullError):
        store.transact(put(A))
    assert rows(store) == {C: b"theirs"}
    store.close()


def run_of(env):
    from memcore.store.redo_log import find_run

    return find_run(env.fd, env.path)


def test_many_commits_in_between_hide_the_outcome(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    env = store._env

    def foreign():
        for number in range(3):
            with env.raw.begin(write=True) as txn:
                txn.put(C, b"%d" % number)

    fail_commit(store, monkeypatch, lmdb.DiskError("no space"), foreign)
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(A))
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(B))
    assert rows(store) == {C: b"2"}  # reading goes on
    assert store.stats()["poisoned"]
    store.close()
    store = open_store(tmp_path / "agent.memcore")
    store.transact(put(B))
    store.close()


def test_an_io_error_stops_all_writing(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    store.transact(put(A))
    fail_commit(store, monkeypatch, lmdb.Error("mdb_txn_commit: Input/output error"))
    with pytest.raises(StorageError, match="Input/output"):
        store.transact(put(B))
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(C))
    assert set(survivors(store, tmp_path)) == set(rows(store)) == {A}
    store.close()


def test_a_record_that_cannot_be_withdrawn_hides_the_outcome(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")

    def refuse(self, txnid):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RedoLog, "withdraw", refuse)
    fail_commit(store, monkeypatch, lmdb.DiskError("no space"))
    results = Crowd(store).run(one=put(B))
    assert {type(result) for result in results.values()} == {OutcomeUnknownError}
    assert results["one"] is not results["leader"]
    store.close()


def test_a_record_that_cannot_be_written_stores_nothing(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    real = redo_log.write_redo
    left = [1]

    def refuse(fd, ops, *places):
        if left:
            left.pop()
            os.pwrite(fd, redo_record(ops, places[0], 0, places[1])[:10], places[2])
            raise OSError(28, "No space left on device")
        return real(fd, ops, *places)

    monkeypatch.setattr(redo_log, "write_redo", refuse)
    with pytest.raises(StoreFullError, match="No space"):
        store.transact(put(A))
    store.transact(put(B))
    assert set(rows(store)) == {B}
    assert store.check() == []
    store.close()


def test_a_second_flush_that_fails_hides_the_outcome(tmp_path, monkeypatch) -> None:
    store = open_store(tmp_path / "agent.memcore")
    env = store._env
    raw = env.raw

    class Device:
        def __getattr__(self, name):
            return getattr(raw, name)

        def sync(self, force):
            raise lmdb.Error("mdb_env_sync: Input/output error")

    env.raw = Device()
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(A, b"x" * 1_000_000))
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(B))
    env.raw = raw
    store.close()


def test_a_flush_that_failed_meanwhile_is_no_acknowledgement(tmp_path, store) -> None:
    """Another thread's flush fails while a batch commits: its own flush may then claim success."""

    def closure(txn):
        txn.put(A, b"1")
        store._env.leader.poison_for(OSError(5, "Input/output error"))

    with pytest.raises(OutcomeUnknownError):
        store.transact(closure)
    with pytest.raises(OutcomeUnknownError):
        store.flush()


def test_an_error_is_copied_with_what_it_tells():
    failure = FencedError("taken over", epoch=1, current=2)
    copy = copy_of(failure, failure)
    assert copy is not failure
    assert (str(copy), copy.epoch, copy.current) == ("taken over", 1, 2)


def test_an_interrupt_between_two_futures_leaves_none_pending() -> None:
    """The loop's thread delivers what others committed; an interrupt leaves the loop there."""

    class Interrupted(asyncio.Future):
        def set_result(self, result):
            super().set_result(result)
            raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    calls = [
        SimpleNamespace(future=kind(loop=loop), error=None, result=number)
        for number, kind in enumerate((Interrupted, asyncio.Future, asyncio.Future))
    ]
    futures = [call.future for call in calls]
    with pytest.raises(KeyboardInterrupt):
        deliver(calls)
    assert [future.done() for future in futures] == [True, False, False]
    loop.run_until_complete(asyncio.wait(futures))
    loop.close()
    assert [future.result() for future in futures] == [0, 1, 2]
