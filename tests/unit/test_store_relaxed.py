"""``"relaxed"``: steady points, what a power cut goes back to, and who may drop a pin when.

A power cut is told by the boot id, so a test that cuts it changes that; what a cut does to the
pages of the file is the matter of ``tests/crash``.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from memcore.errors import (
    CorruptStoreError,
    InternalError,
    OutcomeUnknownError,
    StorageError,
    StoreLockedError,
)
from memcore.limits import STEADY_COMMITS_MAX
from memcore.store import open_store, steady
from memcore.store import steady as pin
from memcore.store.environment import Environment
from memcore.store.redo_log import find_run

HOUR_MS = 60_000
A, B = b"\x01a", b"\x01b"


def opened(path: Path, **options):
    """A store whose own thread makes no point within a test."""
    return open_store(path, durability="relaxed", steady_interval_ms=HOUR_MS, **options)


def rows(store):
    return dict(store.read(lambda txn: list(txn.scan(b"\x01", b"\xff"))))


def put(key: bytes, value: bytes = b"1"):
    return lambda txn: txn.put(key, value)


@pytest.fixture
def reboot(monkeypatch):
    """Another boot id from the next opening on."""

    def go(name: bytes = b"the boot after..") -> None:
        monkeypatch.setattr(steady, "boot_id", lambda: name)

    return go


def copied(path: Path) -> Path:
    """The file as it is now, its page cache included: what a power cut may leave at best."""
    copy = path.with_name(f"copy-{os.urandom(4).hex()}")
    shutil.copyfile(path, copy)
    return copy


def test_the_mode_is_the_file_s(path) -> None:
    opened(path).close()
    store = open_store(path)
    assert store.durability == "relaxed"
    store.close()


def test_a_power_cut_goes_back_to_the_last_steady_point(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A, b"old"))
    store.flush()
    store.transact(put(A, b"new"))
    store.transact(put(B))
    copy = copied(path)
    store.close()

    kept = open_store(copied(copy))  # memory was not lost: nothing is
    assert rows(kept) == {A: b"new", B: b"1"}
    kept.close()

    reboot()
    after = open_store(copy, verify=True)
    assert rows(after) == {A: b"old"}
    after.transact(put(B, b"2"))
    assert after.check() == []
    after.close()


def test_nothing_is_lost_after_a_close(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A))
    store.close()
    reboot()
    store = opened(path)
    assert rows(store) == {A: b"1"}
    store.close()


def test_going_back_is_done_once_a_boot(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A, b"old"))
    store.flush()
    store.transact(put(A, b"new"))
    copy = copied(path)
    store.close()
    reboot()
    opened(copy).close()
    store = opened(copy)
    store.transact(put(A, b"newest"))
    killed = copied(copy)  # as a killed process leaves it
    store.close()
    again = opened(killed)
    assert rows(again) == {A: b"newest"}
    again.close()


def test_a_reader_cannot_go_back(path, reboot) -> None:
    opened(path).close()
    store = opened(path)
    store.transact(put(A))
    copy = copied(path)
    store.close()
    reboot()
    with pytest.raises(StorageError, match="for writing"):
        open_store(copy, read_only=True)
    opened(copy).close()
    open_store(copy, read_only=True).close()


def test_nobody_goes_back_while_another_has_the_file(path, reboot, monkeypatch) -> None:
    store = opened(path)
    store.transact(put(A))
    reboot()
    monkeypatch.setattr(steady, "_PATIENCE_SECONDS", 0.0)
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(StoreLockedError):
        steady.settle(fd, find_run(fd, ""), str(path), read_only=False)
    os.close(fd)
    store.close()


def test_a_torn_record_leaves_the_one_before(path, reboot) -> None:
    store = opened(path)
    for value in (b"1", b"2", b"3"):
        store.transact(put(A, value))
        store.flush()
    copy = copied(path)
    store.close()
    with copy.open("r+b") as file:
        run = find_run(file.fileno(), "")
        log = steady.SteadyLog(file.fileno(), run)
        newest = log.newest()
        file.seek(run.slots[newest.slot] + 40)
        file.write(b"torn")
    reboot()
    store = opened(copy)
    assert rows(store) == {A: b"2"}
    store.close()


def test_two_torn_records_are_refused(path) -> None:
    store = opened(path)
    for value in (b"1", b"2", b"3"):
        store.transact(put(A, value))
        store.flush()
    store.close()
    with path.open("r+b") as file:
        for offset in find_run(file.fileno(), "").slots:
            file.seek(offset + 40)
            file.write(b"torn")
    with pytest.raises(CorruptStoreError, match="steady records"):
        open_store(path)


def test_a_meta_page_that_is_lost_is_written_anew(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A))
    store.flush()
    copy = copied(path)
    store.close()
    with copy.open("r+b") as file:  # a txnid from the future in both
        for page in (0, 1):
            file.seek(page * 4096 + 16 + 128)
            file.write(struct.pack("<Q", 1000 + page))
    reboot()
    store = opened(copy)
    assert rows(store) == {A: b"1"}
    assert store.check() == []
    store.close()


def test_a_copy_does_not_go_back_to_a_point_of_its_origin(path, tmp_path, reboot) -> None:
    store = opened(path)
    for number in range(50):
        store.transact(put(A, b"%d" % number))
    store.flush()
    for compact in (True, False):
        store.backup(tmp_path / f"backup-{compact}", compact=compact)
    store.transact(put(A, b"later"))
    store.close()
    reboot()
    for compact in (True, False):
        copy = open_store(tmp_path / f"backup-{compact}")
        assert (rows(copy), copy.durability) == ({A: b"49"}, "relaxed")
        assert copy.check() == []
        copy.close()


def test_writers_wait_when_too_many_commits_have_no_point(path) -> None:
    store = opened(path)
    for number in range(STEADY_COMMITS_MAX + 10):
        store.transact(put(A, b"%d" % number))
    assert store.stats()["unsteady_commits"] <= STEADY_COMMITS_MAX
    store.close()


def test_pages_are_used_again(path) -> None:
    store = opened(path)
    sizes = []
    for _ in range(40):
        for number in range(50):
            store.transact(put(A, b"%d" % number * 100))
        store.flush()
        sizes.append(store.stats()["pages"])
    assert sizes[-1] == sizes[4]
    store.close()


def test_the_thread_makes_a_point(path) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=1)
    before = store.stats()["steady_points"]
    store.transact(put(A))
    thread = store._env.steady_sync._thread
    while store.stats()["unsteady_commits"]:
        thread.join(0.001)
    assert store.stats()["steady_points"] > before
    store.close()
    thread.join()


def test_the_thread_ends_when_nothing_happens(path, monkeypatch) -> None:
    monkeypatch.setattr(pin, "_IDLE_SECONDS", 0.01)
    store = open_store(path, durability="relaxed", steady_interval_ms=1)
    for number in range(3):  # each time another thread, and the pin taken anew
        store.transact(put(A, b"%d" % number))
        thread = store._env.steady_sync._thread
        thread.join()
        assert store.stats()["unsteady_commits"] == 0
    store.close()


def test_a_thread_whose_end_was_interrupted_reads_no_other_file(path, monkeypatch) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=300)
    store.transact(put(A))
    thread = store._env.steady_sync._thread

    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(steady.SteadySync, "end", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.copy_compact()
    other = os.open(path.with_name("other"), os.O_RDWR | os.O_CREAT)  # under the closed number
    thread.join()
    os.close(other)
    store.transact(put(B))
    assert rows(store) == {A: b"1", B: b"1"}
    store.close()


def test_who_takes_the_write_lock_without_a_batch_lets_the_thread_rest(path, monkeypatch) -> None:
    """No batch follows that would let go of the pin."""
    store = opened(path)
    store.transact(put(A))
    env = store.environment()
    store.wipe_records()
    assert not env.steady_sync.is_busy
    begin = env.begin

    def refuse(**options):
        if options.get("write"):
            raise StorageError("no write lock")
        return begin(**options)

    monkeypatch.setattr(env, "begin", refuse)
    with pytest.raises(StorageError, match="no write lock"):
        env.queue.call(lambda _: env.while_nobody_writes(lambda: None), job=True)
    assert not env.steady_sync.is_busy
    monkeypatch.undo()
    store.close()


def test_the_map_grows_under_a_pin(path) -> None:
    store = opened(path, map_bytes=2**20)
    for number in range(40):
        store.transact(put(b"\x01%03d" % number, b"x" * 100_000))
    assert len(rows(store)) == 40
    assert store.check() == []
    store.close()


def test_a_flush_that_fails_poisons(path, monkeypatch) -> None:
    store = opened(path)
    store.transact(put(A))

    def refuse(fd):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OutcomeUnknownError):
            store.flush()
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(B))
    assert rows(store) == {A: b"1"}
    store.close()


def write_many(path: Path, key: bytes, times: int) -> None:
    store = open_store(path, steady_interval_ms=5)
    for number in range(times):
        store.transact(put(key, b"%d" % number))
    store.close()


def test_processes_share_the_points(path, reboot) -> None:
    opened(path).close()
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_many, args=(path, b"\x01%d" % number, 600))
        for number in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    reboot()
    store = opened(path)
    assert rows(store) == {b"\x01%d" % number: b"599" for number in range(3)}
    assert store.check() == []
    assert path.stat().st_size < 32 * 2**20
    store.close()


def test_a_child_of_a_fork_has_a_pin_of_its_own(path) -> None:
    store = opened(path)
    store.transact(put(A, b"parent"))
    child = os.fork()
    if child == 0:
        try:
            store.transact(put(B, b"child"))
            store.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    store.transact(put(A, b"parent again"))
    assert rows(store) == {A: b"parent again", B: b"child"}
    assert store.check() == []
    store.close()


def test_the_first_flush_of_a_child_makes_a_point(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A))
    child = os.fork()
    if child == 0:
        try:
            store.flush()
            shutil.copyfile(path, path.with_name("flushed"))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    store.close()
    reboot()
    after = opened(path.with_name("flushed"))
    assert rows(after) == {A: b"1"}
    after.close()


def test_a_flush_inside_a_flush_is_refused(path, monkeypatch) -> None:
    store = opened(path)
    store.transact(put(A))
    real, seen = os.fdatasync, []

    def again(fd):
        if not seen:
            seen.append(1)
            with pytest.raises(InternalError):
                store._env.steady_sync.sync()
        real(fd)

    monkeypatch.setattr(os, "fdatasync", again)
    store.flush()
    assert seen
    store.close()


def test_a_thread_that_cannot_be_started_costs_no_commit(path, monkeypatch) -> None:
    store = opened(path)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(pin.Thread, "start", refuse)
        store.transact(put(A))
    store.transact(put(B))
    assert store._env.steady_sync._thread.is_alive()
    assert rows(store) == {A: b"1", B: b"1"}
    store.close()


def test_a_thread_that_fails_poisons(path, monkeypatch) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=1)
    store.transact(put(A))

    def refuse(self):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(steady.SteadyLog, "newest", refuse)
    thread = store._env.steady_sync._thread
    while thread.is_alive():
        with suppress(OutcomeUnknownError):
            store.transact(put(B))
    with pytest.raises(OutcomeUnknownError):
        store.transact(put(B))
    monkeypatch.undo()
    store.close()


def test_a_thread_that_lacks_memory_tries_again(path, monkeypatch) -> None:
    store = open_store(path, durability="relaxed", steady_interval_ms=100)
    store.transact(put(A))  # makes the first point itself
    newest, failures = steady.SteadyLog.newest, [MemoryError()]

    def lack(self):
        if failures:
            raise failures.pop()
        return newest(self)

    monkeypatch.setattr(steady.SteadyLog, "newest", lack)
    thread = store._env.steady_sync._thread
    while store.stats()["unsteady_commits"]:
        thread.join(0.001)
    assert not failures
    store.transact(put(B))
    store.close()


def test_what_a_killed_process_left_is_covered(path, reboot) -> None:
    opened(path).close()
    child = os.fork()
    if child == 0:
        opened(path).transact(put(A))
        os._exit(0)  # no point
    os.waitpid(child, 0)
    opened(path).close()  # too quick for its thread
    reboot()
    after = opened(path)
    assert rows(after) == {A: b"1"}
    after.close()


def test_a_clean_close_needs_no_going_back(path, reboot) -> None:
    store = opened(path)
    store.transact(put(A))
    store.close()
    reboot()
    reader = open_store(path, read_only=True)
    assert rows(reader) == {A: b"1"}
    reader.close()


def test_another_opener_s_going_back_counts(path, reboot, monkeypatch) -> None:
    store = opened(path)
    store.transact(put(A, b"old"))
    store.flush()
    store.transact(put(A, b"gone"))
    copy = copied(path)
    store.close()
    reboot()
    real = steady.exclusively

    def late(fd, name):
        monkeypatch.setattr(steady, "exclusively", real)
        fcntl.flock(fd, fcntl.LOCK_UN)  # as a conversion does for a moment
        other = opened(copy)
        other.transact(put(A, b"new"))
        other.close()
        fcntl.flock(fd, fcntl.LOCK_SH)
        return real(fd, name)

    monkeypatch.setattr(steady, "exclusively", late)
    store = opened(copy)
    assert rows(store) == {A: b"new"}
    store.close()


def go_back(path: Path, ready, go) -> None:
    steady.boot_id = lambda: b"the boot after.."
    ready.release()
    go.wait()
    opened(path).close()


def test_many_openers_after_a_power_cut(path) -> None:
    store = opened(path)
    store.transact(put(A, b"old"))
    store.flush()
    store.transact(put(A, b"new"))
    copy = copied(path)
    store.close()
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    openers = [context.Process(target=go_back, args=(copy, ready, go)) for _ in range(4)]
    for opener in openers:
        opener.start()
    for _ in openers:
        ready.acquire()
    go.set()
    for opener in openers:
        opener.join()
    assert [opener.exitcode for opener in openers] == [0] * 4


def failing_once(monkeypatch) -> None:
    real, left = os.fdatasync, [OSError(5, "Input/output error")]

    def flush(fd):
        if left:
            raise left.pop()
        real(fd)  # as after a real failure: the pages count as clean, and this one says it is done

    monkeypatch.setattr(os, "fdatasync", flush)


def test_no_record_is_made_of_what_a_failed_flush_dropped(path, monkeypatch) -> None:
    """A later flush succeeds, but the pages that the first one dropped are on no device."""
    store = opened(path)
    store.transact(put(A))
    before = store._env.steady_sync._log.newest()
    failing_once(monkeypatch)
    with pytest.raises(OutcomeUnknownError):
        store.flush()
    for again in (store.flush, store._env.steady_sync.sync, store._env.steady):
        with pytest.raises(OutcomeUnknownError):
            again()
    assert store._env.steady_sync._log.newest() == before
    store.close()
    fd = os.open(path, os.O_RDONLY)
    assert steady.SteadyLog(fd, find_run(fd, "")).newest() == before
    os.close(fd)


def test_a_point_that_could_not_be_made_stays_due(path, monkeypatch) -> None:
    store = opened(path)
    store.transact(put(A))

    def refuse(self):
        raise StorageError("no reader slot")

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "pin", refuse)
        with pytest.raises(StorageError):
            store.flush()
    assert store._env.steady_sync.is_due
    assert store._env.steady_sync._timing  # by time, too, not only at the close
    store.close()
