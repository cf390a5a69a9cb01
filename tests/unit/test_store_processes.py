"""The store and the system: flushes, other processes, forks, kills, full disks, exits."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from memcore.errors import ClosedError, StorageError, StoreFullError
from memcore.store import open_store
from raw import rows

A, B = b"\x01a", b"\x01b"
SHIM = Path(__file__).parents[1] / "shim" / "flushcount.py"


def shim():
    spec = importlib.util.spec_from_file_location("shim_build", SHIM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(code: str, *args, env=None, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        **options,
    )


# --- flushes -------------------------------------------------------------------------------------

FLUSHES = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("b", sys.argv[1])
build = importlib.util.module_from_spec(spec); spec.loader.exec_module(build)
from memcore.store import open_store
store = open_store(sys.argv[2], durability=sys.argv[3])
count = build.Counter()
def lone(number, value):
    store.transact(lambda txn: txn.put(b"\\x01%06d" % number, value))
for number in range(5):
    lone(number, b"x" * 1000)
count.reset()
for number in range(200):
    lone(number, b"x" * 1000)
small = count.flushes
count.reset()
lone(1, b"x" * 300_000)
big = count.flushes
count.reset()
store.read(lambda txn: txn.get(b"\\x01"))
store.transact(lambda txn: txn.get(b"\\x01"))
print(small, big, count.flushes, count.writes)
store.close()
"""


@pytest.mark.skipif(shim().compiler() is None, reason="needs a C compiler")
@pytest.mark.parametrize(("mode", "expected"), [("full", (200, 2)), ("none", (0, 0))])
def test_flushes_of_a_commit(path, mode, expected) -> None:
    build = shim()
    done = python(FLUSHES, SHIM, path, mode, env=build.preloaded())
    small, big, idle, writes = map(int, done.communicate()[0].split())
    assert done.returncode == 0
    assert (small, big) == expected
    assert (idle, writes) == (0, 0)


# --- other processes -----------------------------------------------------------------------------

COUNTER = """
import sys
from memcore.store import open_store
store = open_store(sys.argv[1])
def add(txn):
    txn.put(b"\\x01a", b"%d" % (int(txn.get(b"\\x01a") or 0) + 1))
for _ in range(int(sys.argv[2])):
    store.transact(add)
store.close()
"""


def test_processes_lose_no_increment(path, store) -> None:
    others = [python(COUNTER, path, 200) for _ in range(3)]
    for _ in range(200):
        store.transact(lambda txn: txn.put(A, b"%d" % (int(txn.get(A) or 0) + 1)))
    assert [other.communicate() and other.returncode for other in others] == [0, 0, 0]
    assert rows(store)[A] == b"800"


def test_processes_that_create_one_file_agree(path) -> None:
    others = [python(COUNTER, path, 50) for _ in range(4)]
    assert [other.communicate() and other.returncode for other in others] == [0] * 4
    store = open_store(path)
    assert rows(store)[A] == b"200"
    store.close()


GROW = """
import sys
from memcore.store import open_store
store = open_store(sys.argv[1])
store.transact(lambda txn: txn.put(b"\\x01big", b"x" * 8_000_000))
store.transact(lambda txn: txn.put(b"\\x01a", b"after"))
store.close()
"""


@pytest.mark.parametrize("read_only", [False, True])
def test_another_process_grew_the_map(path, read_only) -> None:
    open_store(path).close()
    store = open_store(path, read_only=read_only, map_bytes=2**20)
    other = python(GROW, path)
    other.communicate()
    assert other.returncode == 0
    assert store.read(lambda txn: txn.get(A)) == b"after"
    assert len(rows(store)) == 2
    assert store.check() == []
    store.close()


def test_a_writer_follows_a_map_that_another_process_grew(path) -> None:
    store = open_store(path, map_bytes=2**20)
    python(GROW, path).communicate()
    store.transact(lambda txn: txn.put(B, b"1"))
    assert len(rows(store)) == 3
    store.close()


KILLED = """
import os, sys
from memcore.store import open_store
store = open_store(sys.argv[1])
number = store.read(lambda txn: int(txn.get(b"\\x01last") or 0))
while True:
    number += 1
    def step(txn):
        assert int(txn.get(b"\\x01last") or 0) == number - 1
        txn.put(b"\\x01last", b"%d" % number)
        txn.put(b"\\x02%010d" % number, b"x" * (number % 3000))
        txn.delete(b"\\x02%010d" % (number - 40))
    store.transact(step)
    os.write(1, b"%d\\n" % number)
"""


def test_a_killed_writer_loses_nothing_acknowledged(path) -> None:
    for kill in range(12):
        writer = python(KILLED, path)
        for _ in range(1 + kill * 7 % 30):
            acked = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]  # communicate() forgets what is buffered
        writer.communicate()
        acked = int(rest[-1]) if rest else acked
        store = open_store(path)
        found = rows(store)
        last = int(found.pop(b"\x01last"))
        assert acked <= last <= acked + 1
        assert sorted(found) == [b"\x02%010d" % n for n in range(max(1, last - 39), last + 1)]
        assert store.check() == []
        store.close()


STALE = """
import os, sys
from memcore.store import open_store
store = open_store(sys.argv[1], read_only=True)
def hang(txn):
    os.write(1, b"reading\\n")
    sys.stdin.read()
store.read(hang)
"""


def test_a_killed_reader_holds_nothing_back(path) -> None:
    store = open_store(path)
    reader = python(STALE, path)
    assert reader.stdout.readline() == b"reading\n"
    reader.kill()
    reader.communicate()
    store.close()
    store = open_store(path)
    for number in range(300):
        store.transact(lambda txn, n=number: txn.put(A, b"%d" % n * 500))
    assert store.stats()["pages"] < 200
    store.close()


# --- fork ----------------------------------------------------------------------------------------


def in_child(fn) -> int:
    """``fn`` in a fork; its exit status is 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            fn()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def add(store, key=A):
    store.transact(lambda txn: txn.put(key, b"%d" % (int(txn.get(key) or 0) + 1)))


def test_parent_and_child_both_write_after_a_fork(store) -> None:
    add(store)

    def child():
        assert rows(store) == {A: b"1"}
        for _ in range(50):
            add(store)
        assert in_child(lambda: add(store)) == 0
        assert store.check() == []
        store.close()

    assert in_child(child) == 0
    add(store)
    assert rows(store) == {A: b"53"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("hook", ["resume", "forget"])
def test_an_interrupt_in_a_fork_is_done_with_by_the_second_hook(store, monkeypatch, hook) -> None:
    """What a hook raises is printed, and the program goes on."""
    handler = type(store._env.fork)
    work, interrupts = getattr(handler, hook), [KeyboardInterrupt()]

    def interrupted(self):
        if interrupts:
            raise interrupts.pop()
        work(self)

    monkeypatch.setattr(handler, hook, interrupted)
    assert in_child(lambda: add(store)) == 0
    add(store)
    other = threading.Thread(target=add, args=[store])
    other.start()
    other.join()
    assert rows(store) == {A: b"3"}


def test_a_fork_amid_other_threads_traffic(store) -> None:
    stop = threading.Event()

    def work(key):
        while not stop.is_set():
            add(store, key)
            store.read(lambda txn: list(txn.scan(b"", b"\xff")))

    threads = [threading.Thread(target=work, args=(b"\x02%d" % n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        statuses = [in_child(lambda: [add(store) for _ in range(5)]) for _ in range(30)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statuses == [0] * 30
    assert rows(store)[A] == b"150"


def test_a_child_keeps_the_parent_s_reads_safe(store) -> None:
    """Closing LMDB's environment in a child would free the parent's reader slot."""
    store.transact(lambda txn: [txn.put(b"\x02%04d" % n, b"old" * 100) for n in range(200)])

    def read(txn):
        assert in_child(lambda: None) == 0
        gone = threading.Thread(target=churn)
        gone.start()
        gone.join()
        return {value for _, value in txn.scan(b"\x02", b"\x03")}

    def churn():
        for number in range(20):
            store.transact(lambda txn, n=number: [txn.put(b"\x02%04d" % k, b"new%d" % n * 60)
                                                 for k in range(200)])  # fmt: skip

    assert store.read(read) == {b"old" * 100}


def test_a_fork_inside_a_transaction_harms_neither(store) -> None:
    def write(txn):
        txn.put(A, b"parent")
        pid = os.fork()
        if pid == 0:
            return "child"
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    outcome = "error"
    parent = os.getpid()
    try:
        outcome = store.transact(write)
        if os.getpid() != parent:
            os._exit(3)
    except BaseException:
        if os.getpid() != parent:
            os._exit(0)
        raise
    assert outcome == 0
    assert rows(store) == {A: b"parent"}


def test_the_child_holds_its_own_flock(path) -> None:
    store = open_store(path)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        add(store)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(StorageError):
        store.exclusive(lambda: None)
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    store.exclusive(lambda: None)
    store.close()
    for fd in (*ready, *go):
        os.close(fd)


def test_a_memory_store_does_not_follow_a_fork() -> None:
    store = open_store(":memory:")

    def child():
        with pytest.raises(ClosedError, match="fork"):
            add(store)
        store.close()

    assert in_child(child) == 0
    add(store)
    store.close()


# --- full disks and read-only file systems -------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_loses_nothing_and_deleting_works(small_disk) -> None:
    path = small_disk / "agent.memcore"
    store = open_store(path)
    stored = []

    def fill():
        while True:
            store.transact(lambda txn: txn.put(b"\x01%06d" % len(stored), b"x" * 3000))
            stored.append(1)

    with pytest.raises(StoreFullError):
        fill()
    stored = len(stored)
    assert len(rows(store)) == stored > 100
    store.close()

    store = open_store(path)
    assert len(rows(store)) == stored
    for number in range(stored):
        store.transact(lambda txn, n=number: txn.delete(b"\x01%06d" % n))
    for number in range(50):
        store.transact(lambda txn, n=number: txn.put(b"\x01%06d" % n, b"y" * 3000))
    assert len(rows(store)) == 50
    assert store.check() == []
    store.close()


def test_no_room_for_a_new_store_leaves_nothing(small_disk) -> None:
    (small_disk / "ballast").write_bytes(bytes(4 * 2**20 - 65536))
    with pytest.raises(StorageError):
        open_store(small_disk / "agent.memcore")
    assert os.listdir(small_disk) == ["ballast"]


def test_a_read_only_file_system(small_disk) -> None:
    path = small_disk / "agent.memcore"
    store = open_store(path)
    add(store)
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match="read_only=True"):
        open_store(path)
    reader = open_store(path, read_only=True)
    assert reader.check() == []
    assert rows(reader) == {A: b"1"}
    reader.close()


# --- exits and limits ----------------------------------------------------------------------------

EXIT = """
import asyncio, sys, threading
from memcore.store import open_store
store = open_store(sys.argv[1])
def put(txn):
    txn.put(b"\\x01a", b"x" * 5000)
async def main():
    await store.submit(put, asyncio.get_running_loop())
    for _ in range(300):
        store.submit(put, asyncio.get_running_loop())
asyncio.run(main())
def work():
    while True:
        store.transact(put)
        store.read(lambda txn: list(txn.scan(b"", b"\\xff")))
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
"""


def test_the_interpreter_may_end_with_an_open_store(path) -> None:
    for _ in range(5):
        done = python(EXIT, path, stderr=subprocess.PIPE)
        out, err = done.communicate(timeout=60)
        assert (done.returncode, out, err) == (0, b"", b"")
    store = open_store(path, verify=True)
    store.close()


LIMITED = """
import resource, sys
from memcore.store import open_store
resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
store = open_store(sys.argv[1])
store.transact(lambda txn: txn.put(b"\\x01a", b"1"))
print(store.stats()["map_bytes"])
"""


def test_the_map_is_halved_until_the_system_grants_it(path) -> None:
    done = python(LIMITED, path)
    granted = int(done.communicate()[0])
    assert 2**20 <= granted < 2 * 2**30
