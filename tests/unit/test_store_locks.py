"""Locks of a store across forks, interrupts, growth by others and openings inside transactions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memcore
import memcore.store.store as module
from memcore.errors import OutcomeUnknownError
from memcore.store import environment
from memcore.store.environment import ReaderBarrier
from memcore.store.store import LmdbStore, open_store
from memcore.store.transaction import Snapshot

PATIENCE_SECONDS = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = open_store(tmp_path / "a", map_bytes=1024**2)
    opened.transact(lambda txn: txn.put(b"\x02a", b"1"))
    yield opened
    opened.close()


def _forked() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_fork_leaves_the_barrier_to_the_leader_that_shut_it(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FORK_PATIENCE_SECONDS", 0.01)
    env = store.environment()
    reading, done, shut = threading.Event(), threading.Event(), threading.Event()

    def read(_: Any) -> None:
        reading.set()
        done.wait(PATIENCE_SECONDS)

    def lead(_: Any) -> None:
        env.barrier.closed(shut.set)

    threads = [threading.Thread(target=store.read, args=[read])]
    threads[0].start()
    reading.wait(PATIENCE_SECONDS)
    threads.append(threading.Thread(target=env.queue.call, args=[lead], kwargs={"job": True}))
    threads[1].start()
    while not env.barrier.is_shut:
        threads[1].join(0.001)
    _forked()
    assert env.barrier.is_shut
    assert not shut.is_set()
    done.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert shut.is_set()
    assert store.read(lambda txn: txn.get(b"\x02a")) == b"1"


def test_readers_that_wait_do_not_wear_out_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them rings, so a round may end at once: what counts is the clock."""
    barrier = ReaderBarrier()
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        barrier.ring()
        return now[0]

    monkeypatch.setattr(environment, "monotonic", clock)
    barrier.live[-1] = Snapshot()  # of a thread that goes on reading
    assert not barrier.shut(3.0)
    assert now[0] < 10


class Interrupted:
    """A lock that an interrupt follows, once, as soon as it is acquired."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.left = lock, 1

    def acquire(self, *args: Any, **options: Any) -> bool:
        found = bool(self.lock.acquire(*args, **options))
        if self.left and options.get("timeout"):
            self.left = 0
            raise KeyboardInterrupt
        return found

    def __enter__(self) -> Any:
        return self.lock.__enter__()

    def __exit__(self, *args: object) -> None:
        self.lock.__exit__(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


def test_an_interrupt_before_a_fork_leaves_nothing_locked(
    store: LmdbStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    monkeypatch.setattr(module.opening, "lock", Interrupted(module.opening.lock))
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # Python prints what a hook raises
    _forked()
    other = threading.Thread(target=lambda: open_store(tmp_path / "b").close(), daemon=True)
    other.start()
    other.join(PATIENCE_SECONDS)
    assert not other.is_alive()
    with module.opening.lock:  # and a lock that was held before the fork is held after it
        _forked()
        assert module.opening.lock._is_owned()  # type: ignore[attr-defined]


def test_a_store_is_opened_inside_a_transaction_while_another_thread_verifies(
    store: LmdbStore, tmp_path: Path
) -> None:
    inside, begun = threading.Event(), threading.Event()

    def verify() -> None:
        inside.wait(PATIENCE_SECONDS)
        begun.set()
        open_store(tmp_path / "a", verify=True).close()

    def closure(_: Any) -> None:
        inside.set()
        begun.wait(PATIENCE_SECONDS)
        for _ in range(20):
            open_store(tmp_path / "b").close()

    threads = [
        threading.Thread(target=verify, daemon=True),
        threading.Thread(target=store.transact, args=[closure], daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not any(thread.is_alive() for thread in threads)


def test_a_file_that_is_open_already_is_verified_and_refused(
    store: LmdbStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = store.environment()
    monkeypatch.setattr(type(env), "check", lambda *_: ["page 7 is damaged"])
    with pytest.raises(memcore.CorruptStoreError, match="page 7"):
        open_store(tmp_path / "a", verify=True)
    assert env.count_handles() == 1


GROWING = """
import sys
from memcore.store.store import open_store
store = open_store(sys.argv[1], map_bytes=1024**2)
for number in range(64):
    store.transact(lambda txn: txn.put(b"\\x02b%03d" % number, bytes(65536)))
store.close()
"""


@pytest.mark.parametrize("what", ["backup", "compact"])
def test_a_file_that_another_process_grew_is_copied(
    store: LmdbStore, tmp_path: Path, what: str
) -> None:
    subprocess.run([sys.executable, "-P", "-c", GROWING, tmp_path / "a"], check=True)
    if what == "backup":
        store.backup(tmp_path / "copy")
        with_copy = open_store(tmp_path / "copy")
        assert with_copy.read(lambda txn: txn.get(b"\x02b063")) == bytes(65536)
        with_copy.close()
    else:
        store.copy_compact()
        assert store.read(lambda txn: txn.get(b"\x02b063")) == bytes(65536)


def test_a_compaction_is_no_way_around_a_failed_flush(open_db: Callable[..., Any]) -> None:
    db = open_db()
    db.session("s").append({"role": "user", "content": "hi"})
    leader = db.engine.store.environment().leader
    leader.poison_for(OSError(5, "EIO"))
    with pytest.raises(OutcomeUnknownError):
        db.copy_compact()
    with pytest.raises(OutcomeUnknownError):
        db.session("s").append({"role": "user", "content": "hi"})
