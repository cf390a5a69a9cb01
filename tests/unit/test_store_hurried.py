"""Commits on a loop's own thread: only while nothing has to be waited for, and like any other."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interrupts import Interrupt

from memcore.aio.commit import commit_to
from memcore.errors import InternalError, OutcomeUnknownError, StoreFullError
from memcore.store import LmdbStore, commit, open_store
from memcore.store import commit as pace
from memcore.store import redo_log as redo
from memcore.store import steady as pin
from memcore.store.commit import WriteBatch
from raw import rows

A, B, C = b"\x01a", b"\x01b", b"\x01c"
WRITER = "memcore-writer"
PROOFS = 4


def put(key: bytes, value: bytes = b"") -> Callable[[Any], None]:
    return lambda txn: txn.put(key, value)


def where(key: bytes = B) -> Callable[[Any], str]:
    """Write something; the name of the thread that does it."""

    def closure(txn: Any) -> str:
        txn.put(key, b"")
        return threading.current_thread().name

    return closure


@pytest.fixture(autouse=True)
def unhurried_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, its commits are quick."""
    monkeypatch.setattr(pace, "_QUICK_NS", 10**12)
    monkeypatch.setattr(pace, "_LONG_NS", 10**15)


@pytest.fixture(params=["full", "relaxed", "none"])
def store(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LmdbStore]:
    """A store whose flushes nobody waits for."""
    monkeypatch.setattr(redo, "lies_in_memory", lambda _: True)
    store = open_store(path, durability=request.param, steady_interval_ms=60_000)
    yield store
    assert store.check() == []
    store.close()


@pytest.fixture
def plain(path: Path) -> Iterator[LmdbStore]:
    store = open_store(path, durability="none", map_bytes=2**20)
    yield store
    assert store.check() == []
    store.close()


def run(store: LmdbStore, main: Callable[[asyncio.AbstractEventLoop], Any]) -> Any:
    """``main(loop)`` inside a loop whose store has proved that it is quick."""

    async def proved() -> Any:
        loop = asyncio.get_running_loop()
        for _ in range(PROOFS):
            assert await store.submit(where(A), loop) == WRITER
        return await main(loop)

    return asyncio.run(proved())


def own() -> str:
    return threading.current_thread().name


# --- where a commit is made -----------------------------------------------------------------------


def test_quick_commits_come_to_the_loop_s_own_thread(store: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        future = store.submit(where(), loop)
        assert future.done()
        return [await future, await commit_to(store, where(C))]

    assert run(store, main) == [own()] * 2
    assert set(rows(store)) == {A, B, C}


def test_a_flush_is_never_made_on_a_loop_s_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redo, "lies_in_memory", lambda _: False)
    store = open_store(path)

    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        return [await store.submit(where(), loop) for _ in range(3)]

    assert run(store, main) == [WRITER] * 3
    store.close()


def test_a_large_one_is_never_made_on_a_loop_s_thread(store: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        return [await commit_to(store, where(), large=True), await store.submit(where(), loop)]

    assert run(store, main) == [WRITER, own()]


@pytest.mark.parametrize(("bound", "slow"), [("_QUICK_NS", 2), ("_LONG_NS", 1)])
def test_slow_commits_send_the_next_ones_to_the_writer(
    plain: LmdbStore, monkeypatch: pytest.MonkeyPatch, bound: str, slow: int
) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        monkeypatch.setattr(pace, "_QUICK_NS", 0)
        monkeypatch.setattr(pace, bound, 0)
        found = [await plain.submit(where(), loop) for _ in range(slow + 1)]
        monkeypatch.setattr(pace, "_QUICK_NS", 10**12)
        while found[-1] == WRITER:
            found.append(await plain.submit(where(), loop))
        return found

    found = run(plain, main)
    assert found[:slow] == [own()] * slow
    assert found[-1] == own()
    assert set(found[slow:-1]) == {WRITER}
    assert len(found) > 30


def test_slow_ones_far_from_each_other_are_the_processor_s() -> None:
    judged = pace.CommitLatency()
    for elapsed_ns in (1, 1, 1, 1, *(2 * 10**12, 1, 1, 1, 1) * 3):
        judged.judge(elapsed_ns, 1)
    assert judged.is_quick
    judged.judge(2 * 10**12, 1)
    judged.judge(1, 1)
    assert judged.is_quick
    judged.judge(2 * 10**12, 1)
    assert not judged.is_quick


def test_batches_of_many_prove_nothing() -> None:
    judged = pace.CommitLatency()
    for _ in range(100):
        judged.judge(1, 2)
    assert not judged.is_quick


def test_inside_a_read_the_writer_does_it(plain: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> str:
        future = plain.read(lambda _: plain.submit(where(), loop))
        return await future

    assert run(plain, main) == WRITER


def test_inside_a_closure_it_is_queued(plain: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> tuple[bool, str, str]:
        inner: list[asyncio.Future[str]] = []

        def closure(txn: Any) -> str:
            txn.put(B, b"")
            inner.append(plain.submit(where(C), loop))
            return own()

        outer = plain.submit(closure, loop)
        waits = not inner[0].done()
        return waits, await outer, await inner[0]

    assert run(plain, main) == (True, own(), WRITER)


def test_behind_a_busy_leader_all_keep_their_order(plain: LmdbStore) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(txn: Any) -> None:
        held.set()
        go.wait()

    def append(letter: bytes) -> Callable[[Any], None]:
        return lambda txn: txn.put(A, (txn.get(A) or b"") + letter)

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        leader = threading.Thread(target=plain.transact, args=(hold,))
        leader.start()
        held.wait()
        futures = [plain.submit(append(letter), loop) for letter in (b"1", b"2", b"3")]
        assert not any(future.done() for future in futures)
        go.set()
        await asyncio.gather(*futures)
        leader.join()
        await plain.submit(append(b"4"), loop)

    run(plain, main)
    assert rows(plain)[A] == b"1234"


def test_a_call_that_comes_back_finds_the_writer(
    plain: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer looks for work while a thread's batch has the only call that needs it.
    monkeypatch.setattr(commit, "_IDLE_SECONDS", 0.01)
    queue = plain._env.queue  # type: ignore[union-attr]
    held, go, runs = threading.Event(), threading.Event(), []

    def hold(txn: Any) -> None:
        held.set()
        go.wait()

    def second(txn: Any) -> str:
        runs.append(own())
        if len(runs) == 1:
            if queue._writer is not None:
                queue._writer.join(0.1)
            raise KeyboardInterrupt
        return own()

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            plain.transact(hold)

    async def main(loop: asyncio.AbstractEventLoop) -> str:
        leader = threading.Thread(target=lead)
        leader.start()
        held.wait()
        future = plain.submit(second, loop)
        go.set()
        done, _ = await asyncio.wait([future], timeout=5)
        await plain.submit(where(), loop)  # has a writer started, should there be none
        leader.join()
        return done.pop().result()

    assert run(plain, main) == WRITER


def test_other_threads_calls_are_not_led_here(
    plain: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    queue = plain._env.queue
    lead = queue._run

    def watched(batch: WriteBatch) -> None:
        lead(batch)
        names.append((own(), len(batch.calls)))

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        monkeypatch.setattr(queue, "_run", watched)
        other = threading.Thread(target=plain.transact, args=(put(C),), name="other")

        def closure(txn: Any) -> None:
            txn.put(B, b"")
            other.start()
            while not queue.waiting:
                os.sched_yield()

        await plain.submit(closure, loop)
        other.join()

    run(plain, main)
    assert names == [(own(), 1), ("other", 1)]


# --- what has to be waited for --------------------------------------------------------------------


def test_a_map_that_has_to_grow_is_the_writer_s(plain: LmdbStore) -> None:
    ran = []

    def grow(txn: Any) -> str:
        ran.append(own())
        txn.put(B, b"x" * 3_000_000)
        return own()

    async def main(loop: asyncio.AbstractEventLoop) -> tuple[bool, str, str]:
        first = plain.submit(grow, loop)
        waits = not first.done()
        second = plain.submit(where(C), loop)
        return waits, await first, await second

    assert run(plain, main) == (True, WRITER, WRITER)
    assert ran[0] == own()
    assert set(ran[1:]) == {WRITER}
    assert len(rows(plain)[B]) == 3_000_000
    assert plain._env.queue._here == 0


def test_a_map_that_has_an_end_is_an_error_here_too(
    plain: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("lmdb", "environment"):
        monkeypatch.setattr(f"memcore.store.{module}.MAP_BYTES_MAX", 2**20)

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(StoreFullError):
            await plain.submit(put(B, b"x" * 3_000_000), loop)
        await plain.submit(put(C), loop)

    run(plain, main)
    assert set(rows(plain)) == {A, C}


@pytest.mark.parametrize("seen", [True, False], ids=["seen ahead", "found under the lead"])
def test_a_steady_point_is_the_writer_s(
    path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=60_000)
    if not seen:  # the other thread lets go of the pin between the look and the lead
        monkeypatch.setattr(pin.SteadySync, "is_settled", True)
    store._env.steady_sync.commits_max = PROOFS + 2
    flush, flushed = os.fdatasync, []

    def watched(fd: int) -> None:
        flushed.append(own())
        flush(fd)

    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        monkeypatch.setattr(os, "fdatasync", watched)
        return [await store.submit(where(), loop) for _ in range(4)]

    assert run(store, main) == [own(), own(), WRITER, own()]
    assert set(flushed) == {WRITER}
    monkeypatch.undo()
    store.close()


def test_without_a_thread_for_the_writer_it_is_refused(
    plain: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        queue = plain._env.queue
        queue._writer = None  # as after its idle time
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            plain.submit(put(B, b"x" * 3_000_000), loop)
        monkeypatch.undo()
        await plain.submit(put(C), loop)

    run(plain, main)
    assert set(rows(plain)) == {A, C}


# --- failures and interrupts ----------------------------------------------------------------------


def test_a_failing_closure_stores_nothing(store: LmdbStore) -> None:
    def fail(txn: Any) -> None:
        txn.put(B, b"")
        raise KeyError("mine")

    async def main(loop: asyncio.AbstractEventLoop) -> None:
        with pytest.raises(KeyError, match="mine"):
            await store.submit(fail, loop)
        with pytest.raises(InternalError):
            await store.submit(lambda txn: next(iter(())), loop)
        with pytest.raises(InternalError):
            await store.submit(lambda txn: store.transact(put(B)), loop)
        await store.submit(put(C), loop)

    run(store, main)
    assert set(rows(store)) == {A, C}


def test_a_poisoned_store_refuses(plain: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> None:
        plain._env.leader.poison_for(OSError(5, "Input/output error"))
        with pytest.raises(OutcomeUnknownError):
            await plain.submit(put(B), loop)

    run(plain, main)
    plain._env.leader.poison = ""


@pytest.mark.parametrize("way", ["here", "handed over", "queued"])
def test_an_interrupt_anywhere_leaves_the_queue_usable(
    path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=60_000)
    queue = store._env.queue

    async def main(loop: asyncio.AbstractEventLoop) -> int:
        if way == "handed over":  # every batch begins with a steady point
            monkeypatch.setattr(pin.SteadySync, "is_settled", True)
            store._env.steady_sync.commits_max = 0
        elif way == "queued":
            monkeypatch.setattr(queue, "_is_prompt", lambda: False)
        number, fired = 0, True
        while fired:
            number += 1
            interrupt, folded = Interrupt(number), []

            def closure(txn: Any, folded: list[int] = folded) -> None:
                txn.put(B, b"")
                txn.on_commit(lambda: folded.append(1))

            future: asyncio.Future[None] = loop.create_future()
            interrupt.during(lambda: store.submit(closure, loop, future=future))  # noqa: B023
            fired = interrupt.fired
            async with asyncio.timeout(5):
                await store.submit(put(C), loop)
            assert (B in rows(store)) == bool(folded), number
            if not fired:
                await future
            await store.submit(lambda txn: txn.delete(B), loop)
            assert not queue._busy
            assert not queue.waiting
        return number

    assert run(store, main) > (8 if way == "queued" else 16)
    assert store.check() == []
    store.close()


# --- the loop -------------------------------------------------------------------------------------


def test_other_tasks_get_their_turn(plain: LmdbStore) -> None:
    async def main(loop: asyncio.AbstractEventLoop) -> list[str]:
        order = []

        async def busy() -> None:
            for _ in range(30):
                await commit_to(plain, put(B))
                order.append("busy")

        async def other() -> None:
            for _ in range(3):
                order.append("other")
                await asyncio.sleep(0)

        await asyncio.gather(busy(), other())
        return order

    order = run(plain, main)
    assert order.index("other") <= 8
    assert len(order) == 33


def test_who_is_cancelled_learns_it_after_the_outcome(
    plain: LmdbStore, caplog: pytest.LogCaptureFixture
) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(txn: Any) -> None:
        held.set()
        go.wait()

    def refuse(txn: Any) -> None:
        raise KeyError("refused")

    async def main() -> None:
        leader = threading.Thread(target=plain.transact, args=(hold,))
        leader.start()
        held.wait()
        tasks = [asyncio.create_task(commit_to(plain, fn)) for fn in (put(B), refuse)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
            task.cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in found] == [asyncio.CancelledError] * 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await commit_to(plain, put(C))
        leader.join()

    asyncio.run(main())
    gc.collect()
    assert set(rows(plain)) == {B, C}
    assert caplog.messages == []
