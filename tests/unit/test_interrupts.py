"""Ctrl-C at any point of any operation: everything goes on, in this thread and in others."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from interrupts import Interrupt, Point, points_of

import memcore
from memcore.session.session import ref_of
from memcore.store.store import environments
from thinned import thinned

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
LINES = slice(int(os.environ.get("MEMCORE_LONG_FIRST", "0")), None, 4)
"""At length: every fourth line; which ones follows from the tree, so that each gets its turn."""
PATIENCE_SECONDS = 30
SAMPLE = 24
HOLDERS = tuple(
    f"/store/{name}.py"
    for name in (
        "commit", "copy", "environment", "steady", "store",
    )
)  # fmt: skip
"""The modules in which locks, places in the barrier and the lead are held."""
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "18"}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
}


def say(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Bench:
    """A database at work: what is stored between interrupts, by this thread and by another."""

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.options: dict[str, Any] = {
            "durability": durability, "steady_interval_ms": 60_000, "map_bytes": 2**24,
        }  # fmt: skip
        self.names = map(str, itertools.count())
        self.db = self.open(path)
        self.stored: list[str] = []
        self.opened: list[memcore.Database] = []
        self.session = self.db.session("subject")
        self.session.extend([say("one"), CALL, RESULT, say("two")])
        self.kv = self.db.scope().kv("names")
        self.kv.put("known", 1)
        self.tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def open(self, path: Path) -> memcore.Database:
        return memcore.open(path, **self.options)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            try:
                task()
                self.done.put(None)
            except Exception as error:  # noqa: BLE001 - raised where it was asked for
                self.done.put(error)

    def elsewhere(self, task: Callable[[], Any]) -> None:
        """Run something in the other thread, which nothing may hang."""
        self.tasks.put(task)
        error = self.done.get(timeout=PATIENCE_SECONDS)
        if error is not None:
            raise error

    def write_and_read(self) -> None:
        """One more item; the last ones are there."""
        text = next(self.names)
        log = self.db.session("witness")
        log.append(say(text))
        self.stored.append(text)
        last = [item.message["content"] for item in log.tail(3)]
        assert last == self.stored[-3:]

    def need_alive(self) -> None:
        """Both threads write and read, and those that change the map wait for nobody."""
        self.elsewhere(self.write_and_read)
        self.write_and_read()
        env = self.db.engine.store.environment()
        self.elsewhere(lambda: env.queue.call(env.follow_map, job=True))

    def close(self) -> None:
        self.tasks.put(None)
        self.thread.join()
        assert self.db.check() == []
        assert [i.message["content"] for i in self.db.session("witness").items()] == self.stored
        self.db.close()


Operation = Callable[[Bench], Callable[[], Any]]


def fresh(bench: Bench) -> memcore.Session:
    """A session that nobody has used."""
    session = bench.db.session(f"subject-{next(bench.names)}")
    session.extend([say("one"), CALL, RESULT, say("two")])
    return session


def opening(bench: Bench) -> Callable[[], Any]:
    """Open a new file, and the same again."""
    other = bench.path.with_name(f"other-{next(bench.names)}")

    def run() -> None:
        for _ in range(2):
            bench.opened.append(bench.open(other))

    return run


def closing(bench: Bench) -> Callable[[], Any]:
    """Close a file with something to be made durable, by a handle that is asked twice."""
    other = bench.open(bench.path.with_name(f"other-{next(bench.names)}"))
    other.session("s").append(say("one"))

    bench.opened.append(other)  # whom the interrupt kept from closing it closes it

    def run() -> None:
        try:
            other.close()
        except KeyboardInterrupt:
            bench.open(Path(other.path)).close()
            raise

    return run


OPERATIONS: dict[str, Operation] = {
    "stats": lambda b: b.db.stats,
    "flush": lambda b: b.db.flush,
    "append": lambda b: lambda: b.session.append(say("three")),
    "extend": lambda b: lambda: b.session.extend([say("three"), say("four")]),
    "context": lambda b: lambda: b.session.context(budget_tokens=1000),
    "tail": lambda b: lambda: b.session.tail(3),
    "undo": lambda b: partial(fresh(b).undo, 1),
    "checkpoint": lambda b: partial(fresh(b).checkpoint, "here"),
    "compact": lambda b: fresh(b).compact,
    "fork": lambda b: lambda: b.session.fork(f"fork-{next(b.names)}"),
    "kv put": lambda b: lambda: b.kv.put(next(b.names), "value"),
    "kv get": lambda b: lambda: b.kv.get("known"),
    "state": lambda b: lambda: b.session.state.update({"n": 1}),
    "blob": lambda b: lambda: b.db.scope().blobs.put(os.urandom(10_000)),
    "lease": lambda b: lambda: b.session.lease("me", ttl_seconds=60).release(),
    "delete": lambda b: partial(b.db.delete_session, fresh(b).id),
    "check": lambda b: b.db.check,
    "backup": lambda b: lambda: b.db.backup(b.path.with_name(f"copy-{next(b.names)}")),
    "copy_compact": lambda b: b.db.copy_compact,
    "erase": lambda b: lambda: b.db.erase(user=f"user-{next(b.names)}"),
    "export": lambda b: lambda: list(b.db.export()),
    "open": opening,
    "close": closing,
}


CASES = [
    (name, durability)
    for name in OPERATIONS
    for durability in ("relaxed", "full")
    if durability == "relaxed" or LONG or name in ("stats", "flush", "append", "open", "close")
]


def chosen(points: list[Point]) -> list[Point]:
    """At length a quarter of the lines and all points where something is held; in short, fewer.

    Where something is held, it matters who called: what the caller holds differs.
    """
    held = [point for point in dict.fromkeys(points) if point[0].endswith(HOLDERS)]
    first = {point[:4]: point for point in reversed(points)}
    found = list(reversed(first.values()))
    if LONG:
        return list(dict.fromkeys([*held, *found[LINES]]))
    return list(dict.fromkeys([*held[::3], *found[::SAMPLE]]))


def unfinished(path: Path) -> list[str]:
    """Files that were being made and that nobody makes any more."""

    def found() -> list[str]:
        return [name for name in os.listdir(path.parent) if ".new-" in name]

    if found():
        gc.collect()  # an error may have kept the frame that removes it
    return found()


@contextmanager
def at_work(path: Path, durability: str) -> Iterator[Bench]:
    bench = Bench(path, durability)
    yield bench
    bench.close()


# An interrupt while a generator is dropped is lost with it: CPython prints it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("name", "durability"), thinned(CASES, 14))
def test_after_an_interrupt_at_any_point_all_goes_on(
    path: Path, name: str, durability: str
) -> None:
    gc.collect()
    known = WeakSet(environments)  # what earlier tests left is not this one's
    with at_work(path, durability) as bench:
        prepare = OPERATIONS[name]
        prepare(bench)()  # what is made once
        for point in chosen(points_of(prepare(bench), "")):
            run = prepare(bench)
            interrupt = Interrupt(point, "")
            try:
                interrupt.start()
                run()
            except KeyboardInterrupt:
                interrupt.stop()
                bench.need_alive()  # with the error, and so its frames, alive
            finally:
                interrupt.stop()
                while bench.opened:
                    bench.opened.pop().close()
            env = bench.db.engine.store.environment()
            assert not env.barrier.live, point
            assert not env.barrier.is_shut, point
            assert not env.queue.led_here, point
            assert not unfinished(path), point
        gc.collect()
        mine = bench.db.engine.store.environment()
        assert [env for env in environments if env is not mine and env not in known] == []


def test_an_interrupt_behind_a_commit_stores_no_other_thread_twice(tmp_path) -> None:
    """The leader is interrupted wherever Python runs in a commit; what it led is stored once."""
    for number in itertools.count(1):
        db = memcore.open(tmp_path / f"{number}.memcore")
        session, other = db.session("s"), db.session("s")
        session.append({"role": "user", "content": "first"})
        calls = ref_of(session).engine.store.environment().queue
        threads: list[threading.Thread] = []
        interrupt = Interrupt(number)

        def write(other=other) -> None:
            other.append({"role": "user", "content": "other"})

        def lead(txn, write=write, threads=threads, calls=calls, interrupt=interrupt) -> None:
            txn.put(b"\x7fprobe", b"x")
            if not threads:  # a batch that was interrupted runs again
                threads.append(threading.Thread(target=write))
                threads[0].start()
                while not calls.waiting:
                    threads[0].join(0.001)
                interrupt.start()

        try:
            with contextlib.suppress(KeyboardInterrupt):
                calls.call(lead)
        finally:
            interrupt.stop()
        threads[0].join()
        assert [item.message["content"] for item in session.items()] == ["first", "other"], number
        db.close()
        if not interrupt.fired:
            break
    assert number > 6
