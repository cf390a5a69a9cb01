"""Limits of the system: readers, open files, address space, PID namespaces; growth by others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import memcore
from memcore.limits import READERS_MAX
from memcore.store import open_store
from memcore.testing.faults import child_env
from raw import rows

ROOT = Path(__file__).parents[2]
A = b"\x01a"


started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def no_process_stays():
    yield
    for process in started:
        process.kill()
        process.communicate()
    started.clear()


def python(code: str, *args, before=(), faults=None):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*before, sys.executable, "-c", code, *map(str, args)],
        env=env if faults is None else child_env(faults, **env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    started.append(process)
    return process


def said(process) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return out.decode()


def kill(process) -> None:
    process.kill()
    process.wait()


# --- readers -------------------------------------------------------------------------------------

HOLD = """
import os, sys, threading
from memcore.errors import StorageError
from memcore.store import open_store
threading.stack_size(128 * 1024)
store = open_store(sys.argv[1], read_only=True)
go, ready = threading.Event(), threading.Semaphore(0)
def hold():
    def wait(txn):
        ready.release()
        go.wait()
    try:
        store.read(wait)
    except StorageError as error:
        refused.append(str(error))
        ready.release()
refused = []
threads = [threading.Thread(target=hold, daemon=True) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    ready.acquire()
os.write(1, b"%d %s\\n" % (len(refused), (refused or [""])[0].encode()))
sys.stdin.read()
go.set()
for thread in threads:
    thread.join()
refused.clear()
store.read(lambda txn: None)
store.close()
"""


def test_more_readers_than_slots_are_refused_until_some_end(path, store) -> None:
    store.transact(lambda txn: txn.put(A, b"1"))
    crowd = python(HOLD, path, READERS_MAX + 20)
    refused, _, why = crowd.stdout.readline().decode().partition(" ")
    assert int(refused) >= 20
    assert f"{READERS_MAX} reads are under way" in why
    late = python(HOLD, path, 1)
    _, err = late.communicate()
    assert b"StorageError" in err
    assert b"reads are under way" in err
    store.transact(lambda txn: txn.put(A, b"2"))  # a writer needs no slot
    said(crowd)
    assert rows(store) == {A: b"2"}


def churn(store, commits) -> int:
    for number in range(commits):
        store.transact(lambda txn, n=number: txn.put(A, b"%d" % n * 2000))
    return store.stats()["pages"]


def test_the_slots_of_killed_readers_are_free_again(path, store) -> None:
    for _ in range(4):
        crowd = python(HOLD, path, 900)
        assert crowd.stdout.readline().startswith(b"0 "), crowd.communicate()
        kill(crowd)
    crowd = python(HOLD, path, READERS_MAX + 20)
    assert crowd.stdout.readline()
    kill(crowd)
    # Without a slot of its own no process can open the file; one that has it open makes room.
    churn(store, 300)
    assert python(HOLD, path, 900).stdout.readline().startswith(b"0 ")


def test_a_killed_reader_is_cleared_while_the_writer_stays_open(path) -> None:
    store = open_store(path, durability="none")  # many commits in little time
    reader = python(HOLD, path, 1)
    assert reader.stdout.readline()
    grown = churn(store, 300)
    kill(reader)
    churn(store, 600)
    settled = store.stats()["pages"]
    assert churn(store, 1500) == settled
    assert settled < 3 * grown
    assert store.check() == []
    store.close()


# --- growth by another process -------------------------------------------------------------------

GROW = """
import sys
from memcore.store import open_store
store = open_store(sys.argv[1])
for number in range(300):
    store.transact(lambda txn: txn.put(b"\\x02%06d" % number, bytes(400_000)))
store.close()
"""


def test_opening_while_another_process_grows_the_file(path) -> None:
    open_store(path).close()
    grower = python(GROW, path)
    openings = 0
    while grower.poll() is None:
        store = open_store(path, map_bytes=2**20, read_only=openings % 2 == 0)
        assert len(rows(store)) <= 300
        store.close()
        openings += 1
    assert said(grower) == ""
    assert openings > 5
    store = open_store(path, verify=True)
    assert len(rows(store)) == 300
    store.close()


# --- open files ----------------------------------------------------------------------------------

FEW_FILES = """
import os, resource, sys, threading
import memcore
from memcore.errors import MemcoreError
from memcore.store import open_store
path, new = sys.argv[1:]
def outcome(fn):
    try:
        fn()
    except MemcoreError as error:
        return type(error).__name__
    return "fine"
def limited(free, fn):
    most = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.dup(0)]
    while fillers[-1] < most:  # what is mapped may lie above free numbers
        fillers.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + free, hard))
    try:
        return outcome(fn)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def opening(name):
    def fn():
        with memcore.open(name) as db:
            db.session("s").append({"role": "user", "content": "x"})
    return fn
opening(path)()  # imports need descriptors, too
with memcore.open(path) as db:
    db.session("s").context()
    db.backup(path + ".first")
    db.copy_compact()
told = [limited(free, opening(path)) for free in range(8)]
fresh = []
for free in range(8):
    fresh.append(limited(free, opening(new)))
    left = sorted(os.listdir(os.path.dirname(new)))
    if fresh[-1] != "fine":
        for leftover in left:
            assert ".new-" not in leftover, (free, left)
with memcore.open(path) as db:
    def work():
        db.session("s").append({"role": "user", "content": "x"})
        db.session("s").context()
    open_one = limited(0, work)
    backup = limited(0, lambda: db.backup(path + ".copy"))
    memory = [limited(free, opening(":memory:")) for free in range(8)]
    assert memory[0] != "fine" and memory[-1] == "fine", memory
    squeezed = [limited(free, db.copy_compact) for free in range(12)]
    assert squeezed[0] != "fine" and squeezed[-1] == "fine", squeezed
    work()
    def in_child():
        pid = os.fork()
        if not pid:
            os._exit(0 if limited(0, work) in ("fine", "StoreAccessError", "StorageError") else 1)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise AssertionError("a child without descriptors")
    in_child()
    work()
    print(told, fresh, open_one, backup, os.path.exists(path + ".copy"), db.check(), sep="|")
"""


def test_too_many_open_files_are_a_typed_error_that_leaves_nothing(tmp_path) -> None:
    path, new = tmp_path / "a" / "agent.memcore", tmp_path / "b" / "new.memcore"
    for file in (path, new):
        file.parent.mkdir()
    memcore.open(path).close()
    told, fresh, work, backup, copied, findings = said(python(FEW_FILES, path, new)).split("|")
    typed = {"fine", "StoreAccessError", "StorageError"}
    for outcomes in (eval(told), eval(fresh)):
        assert set(outcomes) <= typed
        assert outcomes[0] != "fine"
        assert outcomes[-1] == "fine"
    assert work == "fine"
    assert (backup, copied, findings) == ("StoreAccessError", "False", "[]\n")


FIRST_USE = """
import sys
exec(sys.argv.pop(1))
path, verb = sys.argv[1:]
db = memcore.open(path)
db.session("s", user="alice").append({"role": "user", "content": "x"})
verbs = {
    "backup": lambda: db.backup(path + ".copy"),
    "check": db.check,
    "compact": db.copy_compact,
    "erase": lambda: db.erase("alice"),
    "export": lambda: db.export(path + ".lines"),
    "restore": lambda: memcore.restore(path + ".before", path + ".after"),
    "salvage": lambda: memcore.salvage(path + ".before", path + ".saved"),
    "stats": db.stats,
    "sweep": db.sweep,
}
told = []
while told[-1:] != ["fine"]:
    told.append(limited(len(told), verbs[verb]))
print(told)
db.close()
"""


@pytest.mark.parametrize(
    "verb", ["backup", "check", "compact", "erase", "restore", "salvage", "sweep"]
)
def test_what_is_used_first_without_descriptors_is_a_typed_error(tmp_path, verb) -> None:
    """Much is imported when it is first used, and importing needs descriptors, too."""
    path = tmp_path / "agent.memcore"
    memcore.open(f"{path}.before").close()
    head = FEW_FILES.partition("def opening")[0].replace("path, new = sys.argv[1:]", "")
    told = eval(said(python(FIRST_USE, head, path, verb)))
    assert set(told[:-1]) <= {"StoreAccessError", "StorageError", "StoreFormatError"}
    assert told[-1] == "fine"


# --- address space -------------------------------------------------------------------------------

CRAMPED = """
import resource, sys
from memcore.errors import StoreFullError
from memcore.store import open_store
store = open_store(sys.argv[1], map_bytes=2**20)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 120 * 2**20, resource.RLIM_INFINITY))
stored = 0
def add():
    global stored
    store.transact(lambda txn: txn.put(b"\\x01%06d" % stored, bytes(1_000_000)))
    stored += 1
def fill():
    try:
        while True:
            add()
    except StoreFullError as error:
        assert "ulimit -v" in str(error), error
def count():
    return store.read(lambda txn: sum(1 for _ in txn.scan(b"", b"\\xff")))
fill()
assert count() == stored > 10
first = stored
fill()
for number in range(stored):
    store.transact(lambda txn: txn.delete(b"\\x01%06d" % number))
assert count() == 0
add()
assert count() == 1
assert store.check() == []
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for _ in range(2 * first):
    add()
assert count() == 2 * first + 1
store.close()
print("fine")
"""


def test_no_address_space_for_a_larger_map(path) -> None:
    assert said(python(CRAMPED, path)) == "fine\n"
    open_store(path, verify=True).close()


FOLLOWER = """
import resource, sys
from memcore.errors import StorageError
from memcore.store import open_store
store = open_store(sys.argv[1], map_bytes=2**20)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20, resource.RLIM_INFINITY))
print("open", flush=True)
sys.stdin.read(1)
def look():
    return store.read(lambda txn: sum(1 for _ in txn.scan(b"", b"\\xff")))
for call in (look, look, lambda: store.transact(lambda txn: txn.put(b"\\x01a", b""))):
    try:
        call()
    except StorageError as error:
        assert "ulimit -v" in str(error), error
    else:
        raise AssertionError("a map that cannot be")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert look() == 300, look()
store.transact(lambda txn: txn.put(b"\\x01a", b""))
assert store.check() == []
store.close()
print("fine")
"""


def test_a_map_that_another_process_made_too_large(path) -> None:
    open_store(path).close()
    follower = python(FOLLOWER, path)
    assert follower.stdout.readline() == b"open\n"
    said(python(GROW, path))
    follower.stdin.write(b"!")
    follower.stdin.flush()
    assert said(follower) == "fine\n"


# --- forks ---------------------------------------------------------------------------------------

BLOCKED = """
import os, signal, sys, threading
from memcore.errors import StorageError
from memcore.store import open_store
from memcore.store import store as opening
opening._FORK_PATIENCE_SECONDS = 0.2
store = open_store(sys.argv[1])
def add():
    store.transact(lambda txn: txn.put(b"\\x01a", b"%d" % (int(txn.get(b"\\x01a") or 0) + 1)))
writer = threading.Thread(target=add)
writer.start()
while not store._env.queue._busy:
    pass
pid = os.fork()
if not pid:
    signal.alarm(60)
    try:
        add()
    except StorageError as error:
        os._exit(0 if "forked inside a transaction" in str(error) else 2)
    os._exit(3)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, flush=True)
writer.join()
add()
store.close()
"""


def test_a_fork_while_a_commit_waits_for_another_process(path) -> None:
    """The child cannot open the file anew; it says so, and the parent goes on."""
    store = open_store(path)
    forker: list[subprocess.Popen[bytes]] = []

    def hold(txn) -> None:
        forker.append(python(BLOCKED, path))
        assert forker[0].stdout.readline() == b"0\n"

    store.transact(hold)
    said(forker[0])
    assert rows(store) == {A: b"2"}
    store.close()


HELD_BY_A_FRAME = """
import os, signal, sys, threading
from memcore.store import open_store
store = open_store(sys.argv[1], durability=sys.argv[2], steady_interval_ms=60_000)
store.transact(lambda txn: txn.put(b"\\x01a", b"1"))
left, go = threading.Event(), threading.Event()
def leave():
    raw = store._env.hold(lambda raw: raw)
    left.set()
    go.wait()  # a frame that has left the gate, and still holds LMDB's environment
thread = threading.Thread(target=leave)
thread.start()
left.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)
    store.transact(lambda txn: txn.put(b"\\x01b", b"2"))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
go.set()
thread.join()
assert store.read(lambda txn: txn.get(b"\\x01b")) == b"2"
store.close()
"""


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_child_opens_the_file_whatever_frames_its_parent_s_threads_left(path, durability) -> None:
    assert said(python(HELD_BY_A_FRAME, path, durability)) == ""


FORKED_AT_A_POINT = """
import os, signal, sys, threading
from memcore.store import open_store
store = open_store(sys.argv[1])
stop = threading.Event()
def add(key):
    store.transact(lambda txn: txn.put(key, b"%d" % (int(txn.get(key) or 0) + 1)))
def work(key):
    while not stop.is_set():
        add(key)
        store.read(lambda txn: list(txn.scan(b"", b"\\xff")))
threads = [threading.Thread(target=work, args=(b"\\x02%d" % n,)) for n in range(2)]
for thread in threads:
    thread.start()
for _ in range(12):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(60)
            for _ in range(3):
                add(b"\\x01a")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    add(b"\\x01a")
stop.set()
for thread in threads:
    thread.join()
store.close()
"""


@pytest.mark.parametrize(
    "point",
    ["redo.write", "redo.write.after", "txn.commit.after", "txn.begin.after", "read.abort",
     "read.begin.after"],
)  # fmt: skip
def test_a_fork_while_other_threads_are_at_a_point(path, point) -> None:
    """A delay holds the threads there, so that the fork meets them."""
    done = python(FORKED_AT_A_POINT, path, faults=f"{point}=delay:3")
    assert said(done) == ""
    store = open_store(path, verify=True)
    assert rows(store)[A] == b"48"
    store.close()


# --- PID namespaces ------------------------------------------------------------------------------

CONTAINED = """
import os, sys
import memcore
try:
    db = memcore.open(sys.argv[1])
    db.session("s").append({"role": "user", "content": "x"})
except memcore.StoreLockedError as error:
    print(os.getpid(), "locked", error, flush=True)
else:
    print(os.getpid(), "open", flush=True)
    sys.stdin.read()
    db.close()
"""
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_two_pid_namespaces_on_one_file_are_refused(path) -> None:
    """Both are process 1 of their namespace, which is what LMDB's reader lock goes by."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs the right to make PID namespaces")
    first = python(CONTAINED, path, before=UNSHARE)
    assert first.stdout.readline() == b"1 open\n"
    second = said(python(CONTAINED, path, before=UNSHARE))
    assert second.startswith("1 locked")
    assert "PID namespace" in second
    said(first)
    third = python(CONTAINED, path, before=UNSHARE)
    assert third.stdout.readline() == b"1 open\n"
    kill(third)
    with memcore.open(path, verify=True) as db:
        assert len(db.session("s")) == 2
        assert db.check() == []
