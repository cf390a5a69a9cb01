"""Threads, handles and processes on one session: nothing lost, nothing stale, nobody hangs.

Order is forced by barriers, events and pipes; nothing sleeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError, InternalError, MemcoreError
from memcore.session.append import Append
from memcore.session.change import SetPolicy
from memcore.session.session import ref_of, store_of
from memcore.store.commit import Leader
from memcore.store.lmdb import MapResized
from memcore.store.transaction import WriteTxn
from messages import assistant, call, result, texts, turns, user

THREADS = 8
EACH = 25


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(n)`` on ``count`` threads that start at one moment."""
    barrier = threading.Barrier(count)

    def run(n: int) -> Any:
        barrier.wait()
        return work(n)

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(run, n) for n in range(count)]]


def held_queue(db: memcore.Database) -> tuple[threading.Event, threading.Thread]:
    """Another thread leads a transaction until the event is set: what is asked for meanwhile
    becomes one batch."""
    entered, go = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        entered.set()
        go.wait()

    leader = threading.Thread(target=lambda: db.engine.store.transact(hold))
    leader.start()
    entered.wait()
    return go, leader


def waiting(db: memcore.Database, count: int) -> None:
    """Until so many calls stand in the commit queue."""
    queue = db.engine.store.environment().queue
    while len(queue.waiting) < count:
        os.sched_yield()


def as_one_batch(db: memcore.Database, *works: Callable[[], Any]) -> list[Any]:
    """Outcomes of calls that are committed in one transaction, in this order."""
    go, leader = held_queue(db)
    with ThreadPoolExecutor(len(works)) as pool:
        futures = []
        for at, work in enumerate(works):
            futures.append(pool.submit(work))
            waiting(db, at + 1)
        go.set()
        leader.join()
        return [future.exception() or future.result() for future in futures]


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "none"], indirect=True)
def test_threads_on_one_session_lose_nothing(db, session):
    together(THREADS, lambda n: [session.append(user(f"{n}-{k}")) for k in range(EACH)])
    found = texts(session)
    assert len(found) == len(set(found)) == THREADS * EACH
    for n in range(THREADS):  # each thread's own items in its own order
        own = [t for t in found if t.startswith(f"{n}-")]
        assert own == [f"{n}-{k}" for k in range(EACH)]
    assert [i.seq for i in session] == list(range(1, THREADS * EACH + 1))


def test_handles_of_one_process_see_each_other_at_once(open_db):
    sessions = [open_db().session("chat") for _ in range(THREADS)]

    def write(n: int) -> None:
        for k in range(EACH):
            receipt = sessions[n].append(user(f"{n}-{k}"))
            assert sessions[n - 1].get(receipt.seq).message == user(f"{n}-{k}")

    together(THREADS, write)
    assert {tuple(texts(s)) for s in sessions} == {tuple(texts(sessions[0]))}
    assert {s.revision for s in sessions} == {THREADS * EACH}


def test_compare_and_set_lets_one_through(session):
    session.append(user("first"))

    def attempt(n: int) -> bool:
        try:
            session.append(user(str(n)), expected_revision=1)
        except memcore.RevisionConflict as lost:
            return lost.current < 2
        return True

    assert sum(together(THREADS, attempt)) == 1
    assert len(session) == 2


def test_a_counter_kept_by_compare_and_set_is_exact(session):
    def bump(_: int) -> None:
        for _ in range(EACH):
            while True:
                revision = session.revision
                last = session.tail(1)
                value = int(last[0].message["content"]) if last else 0
                try:
                    session.append(user(str(value + 1)), expected_revision=revision)
                    break
                except memcore.RevisionConflict:
                    continue

    together(4, bump)
    assert texts(session)[-1] == str(4 * EACH)


def test_one_idempotency_key_from_many_threads_is_one_item(session):
    receipts = together(THREADS, lambda _: session.append(user("x"), idempotency_key="k"))
    assert len(set(receipts)) == 1
    assert len(session) == 1


def test_handles_that_create_the_same_session_create_one(open_db):
    handles = [open_db() for _ in range(THREADS)]
    together(THREADS, lambda n: handles[n].session("chat").append(user(str(n))))
    assert [e.items for e in handles[0].sessions()] == [THREADS]
    assert sorted(texts(handles[0].session("chat"))) == [str(n) for n in range(THREADS)]


def test_readers_see_whole_changes_only(session):
    session.extend(turns(1))
    stop = threading.Event()

    def read(_: int) -> None:
        while not stop.is_set():
            count = len(session.context().messages)
            assert count % 2 == 0
            items = list(session.items())
            assert len(items) % 2 == 0
            assert [i.message["role"] for i in items] == ["user", "assistant"] * (len(items) // 2)

    def write(_: int) -> None:
        try:
            for n in range(60):
                with session.batch() as batch:
                    if n % 3 == 2:
                        batch.undo(2)
                    else:
                        batch.extend(turns(1, start=n))
        finally:
            stop.set()

    together(4, lambda n: write(n) if n == 0 else read(n))


def test_threads_that_append_undo_compact_and_fork_leave_a_sound_file(db, session):
    session.extend(turns(20))

    def work(n: int) -> None:
        for k in range(12):
            try:
                if n == 0:
                    session.undo(1 + k % 3)
                elif n == 1:
                    session.compact(lambda _: "s")
                elif n == 2:
                    session.fork(f"fork-{k}").append(user())
                elif n == 3:
                    session.context(200)
                else:
                    session.append(user(str(k)))
            except memcore.PlanStaleError:
                continue

    together(6, work)
    assert db.check() == []
    assert len(session) == len(list(session))


# --- neighbours in one batch ----------------------------------------------------------------------


def test_calls_that_queue_up_are_one_transaction(db, session):
    before = db.stats()["batches"]
    as_one_batch(db, *(lambda n=n: session.append(user(str(n))) for n in range(5)))
    assert texts(session) == list("01234")
    assert db.stats()["batches"] <= before + 2


def test_a_failing_neighbour_does_not_disturb_the_others(db, session):
    session.append(call("c"))
    outcomes = as_one_batch(
        db,
        lambda: session.append(user("a")),
        lambda: session.append(result("lost")),
        lambda: session.append(user("b"), expected_revision=99),
        lambda: session.append(result("c")),
        lambda: session.extend([user("c"), result("lost")]),
        lambda: session.append(user("d")),
    )
    kinds = [type(o).__name__ for o in outcomes]
    assert kinds == [
        "Receipt",
        "OrphanResultError",
        "RevisionConflict",
        "Receipt",
        "OrphanResultError",
        "Receipt",
    ]
    assert texts(session) == [None, "a", "done", "d"]
    assert [o.seq for o in outcomes if isinstance(o, memcore.Receipt)] == [2, 3, 4]
    assert [o.revision for o in outcomes if isinstance(o, memcore.Receipt)] == [2, 3, 4]


def failing_after_write(session: memcore.Session) -> Callable[[], Any]:
    """A batch that undoes its own append and then appends an orphan: it fails after a write."""

    def run() -> Any:
        with session.batch() as batch:
            batch.append(user("never"))
            batch.undo()
            batch.append(result("lost"))

    return run


def test_the_others_are_run_again_when_a_neighbour_fails_after_a_write(db, session):
    session.extend(turns(2))
    other = db.session("other")
    outcomes = as_one_batch(
        db,
        lambda: session.append(user("a")),
        lambda: session.undo(2),
        lambda: other.append(user("new session")),
        failing_after_write(session),
        lambda: session.append(user("b"), idempotency_key="k"),
        lambda: session.append(user("b"), idempotency_key="k"),
    )
    assert isinstance(outcomes[3], memcore.OrphanResultError)
    assert [i.message["content"] for i in outcomes[1]] == ["a1", "a"]
    assert outcomes[4] == outcomes[5]
    assert texts(session) == ["q0", "a0", "q1", "b"]
    assert texts(other) == ["new session"]
    assert [i.seq for i in session] == [1, 2, 3, 6]


def test_a_neighbour_that_undoes_and_then_fails_has_undone_nothing(db, session):
    """It fails before anything was written, so nobody is run again."""
    session.extend([*turns(2), call("c")])

    def undo_and_fail() -> None:
        with session.batch() as batch:
            batch.undo(3)
            batch.append(result("lost"))

    outcomes = as_one_batch(
        db,
        lambda: session.append(user("a")),
        undo_and_fail,
        lambda: session.append(result("c")),
        undo_and_fail,
    )
    assert [type(o).__name__ for o in outcomes[1::2]] == ["OrphanResultError"] * 2
    assert outcomes[2].seq == 7
    assert outcomes[2].tokens == session.tokens == sum(i.tokens for i in session)
    assert texts(session) == ["q0", "a0", "q1", "a1", None, "a", "done"]


def test_a_batch_that_is_run_again_returns_what_it_undid_once(db, session):
    session.extend(turns(2))
    taken: list[memcore.Item] = []

    def replace_the_end() -> memcore.Receipt | None:
        with session.batch(expected_revision=1) as batch:
            batch.undo(2)
            batch.append(user("instead"))
        taken.extend(batch.undone)
        return batch.receipt

    outcomes = as_one_batch(db, replace_the_end, failing_after_write(session))
    assert [i.seq for i in taken] == [3, 4]
    assert (outcomes[0].seq, outcomes[0].revision) == (5, 2)
    assert texts(session) == ["q0", "a0", "instead"]


def test_a_refused_extend_leaves_no_trace_in_the_totals(db, session):
    session.append(user())
    outcomes = as_one_batch(
        db,
        lambda: session.append(user("a")),
        lambda: session.extend([user("x" * 400), call("c"), result("lost")]),
        lambda: session.append(user("b")),
    )
    assert outcomes[2].tokens == session.tokens == sum(i.tokens for i in session)
    assert outcomes[2].open_calls == 0


def test_a_session_whose_creation_was_aborted_shares_its_number_with_nobody(db):
    first, second = db.session("first"), db.session("second")
    outcomes = as_one_batch(
        db,
        lambda: first.append(result("lost")),
        lambda: second.append(user("mine")),
        lambda: first.append(user("not yours")),
    )
    assert isinstance(outcomes[0], memcore.OrphanResultError)
    assert (texts(first), texts(second)) == (["not yours"], ["mine"])
    second.append(user("more"))
    first.append(user("still not yours"))
    assert texts(second) == ["mine", "more"]


def test_delete_and_append_in_one_batch(db, session):
    session.extend(turns(2))
    outcomes = as_one_batch(
        db,
        lambda: session.append(user("old")),
        lambda: db.delete_session("chat"),
        lambda: session.append(user("new")),
        lambda: db.delete_session("nobody"),
        lambda: session.append(user("newer")),
    )
    assert [getattr(o, "seq", o) for o in outcomes] == [5, True, 1, False, 2]
    assert texts(session) == ["new", "newer"]


class Watched(WriteTxn):
    """A transaction that notes the keys that it is asked for."""

    __slots__ = ()
    asked: ClassVar[list[bytes]] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        get = self.get
        self.asked.clear()
        self.get = lambda key: (self.asked.append(key), get(key))[1]


@pytest.fixture
def head_reads(session, monkeypatch) -> Callable[[], int]:
    """How often the last transaction has read the session's head."""
    session.append(user("first"))
    monkeypatch.setattr(Leader, "transaction", Watched)
    key = ref_of(session).log.head_key
    return lambda: Watched.asked.count(key)


def test_appends_in_a_row_do_not_read_the_head_again(session, head_reads):
    for number in range(3):
        session.append(user(str(number)))
        assert head_reads() == 0
    session.undo(1)
    session.append(user("after an undo"))
    assert texts(session) == ["first", "0", "1", "after an undo"]


def test_a_head_is_read_again_after_any_other_commit(db, session, head_reads):
    db.scope().kv("k").put("key", "value")
    session.append(user("second"))
    assert head_reads() == 1
    session.append(user("third"))
    assert head_reads() == 0
    peer = Peer(db.path)
    assert peer.ask("session.append({'role': 'user', 'content': 'peer'}).seq") == "4"
    peer.close()
    session.append(user("fourth"))
    assert head_reads() > 0
    assert texts(session) == ["first", "second", "third", "peer", "fourth"]


def change_of(session: memcore.Session, text: str) -> Any:
    return ref_of(session).begin_append([user(text)], Append)


def test_a_transaction_that_deletes_or_puts_rows_reads_the_head_again(db, session, head_reads):
    log, store = ref_of(session).log, db.engine.store

    def refreshed(txn: WriteTxn) -> Any:
        txn.put(log.head_key, txn.raw.get(log.head_key))
        return change_of(session, "put")(txn)

    store.transact(refreshed)
    assert head_reads() == 1
    rows = keys.session_prefix(log.scope, log.session)

    def emptied(txn: WriteTxn) -> Any:
        txn.delete_range(rows, keys.after(rows))
        return change_of(session, "lost")(txn)

    with pytest.raises(CorruptValueError):  # it has a name and no head
        store.transact(emptied)
    session.append(user("it was rolled back"))

    def buried(txn: WriteTxn) -> Any:
        txn.put(log.tombstone, seal_value(log.tombstone, b""))
        return change_of(session, "of nobody")(txn)

    with pytest.raises(MemcoreError):
        store.transact(buried)
    assert texts(session) == ["first", "put", "it was rolled back"]


def test_an_aborted_transaction_leaves_the_cache_as_it_is(db, session, head_reads):
    def failing(txn: WriteTxn) -> None:
        change_of(session, "never")(txn)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.engine.store.transact(failing)
    session.append(user("second"))
    assert texts(session) == ["first", "second"]
    assert db.check() == []


def test_fork_policy_and_append_in_one_batch(db, session):
    session.extend([user(), call("c")])
    outcomes = as_one_batch(
        db,
        lambda: session.append(result("c")),
        lambda: session.fork("fork"),
        lambda: session.set_policy("seed"),
        lambda: session.append(user("after")),
        failing_after_write(db.session("fork")),
        lambda: db.session("fork").append(assistant("in the fork")),
        session.undo,
    )
    assert [type(o).__name__ for o in outcomes if isinstance(o, Exception)] == ["OrphanResultError"]
    assert session.policy == "seed"
    assert texts(session) == ["hi", None, "done"]
    assert texts(db.session("fork")) == ["hi", None, "done", "in the fork"]


def test_the_map_grows_in_the_middle_of_a_batch(open_db):
    db = open_db(map_bytes=2**20)
    session, other = db.session("a"), db.session("b")
    big = user("x" * 30_000)
    grown = db.stats()["map_bytes"]
    outcomes = as_one_batch(
        db,
        lambda: session.append(user("first")),
        lambda: session.extend([big] * 40),
        lambda: other.append(user("second")),
        lambda: session.append(result("lost")),
        lambda: session.append(user("third")),
    )
    assert [type(o).__name__ for o in outcomes].count("Receipt") == 4
    assert db.stats()["map_bytes"] > grown
    assert len(session) == 42
    assert texts(other) == ["second"]


def test_an_error_raised_by_the_store_leaves_the_handles_true(db, session, monkeypatch):
    """A commit that fails: nobody's cache holds what was never stored."""
    session.extend(turns(2))

    class Broken(WriteTxn):
        """Puts each row and then fails, wherever it is put from."""

        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            put = self.raw_put

            def broken(key: bytes, value: bytes) -> bool:
                put(key, value)
                raise OSError(28, "No space left on device")

            self.raw_put = broken

    monkeypatch.setattr(Leader, "transaction", Broken)
    for change in (
        lambda: session.append(user("lost")),
        session.undo,
        lambda: session.set_policy("seed"),
        lambda: session.fork("fork"),
        lambda: session.compact(lambda _: "s", keep_last=1),
        lambda: db.session("new").append(user()),
    ):
        with pytest.raises((memcore.MemcoreError, OSError)):
            change()
    monkeypatch.undo()
    assert texts(session) == ["q0", "a0", "q1", "a1"]
    assert (session.policy, session.revision) == ("openai_chat", 1)
    assert [e.session_id for e in db.sessions()] == ["chat"]
    assert session.append(user("kept")).seq == 5
    assert session.fork("fork").append(user()).seq == 6


# --- other processes ------------------------------------------------------------------------------

PEER = """
import sys, memcore
USER = {"role": "user", "content": "x"}
db = memcore.open(sys.argv[1])
session = db.session("chat")
for line in sys.stdin:
    print(eval(line), flush=True)
db.close()
"""


class Peer:
    """Another process with a handle on the same file; does what it is told and answers."""

    def __init__(self, path: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def peer(db, path):
    found = Peer(path)
    yield found
    found.close()


def test_processes_catch_up_after_every_kind_of_change(db, session, peer):
    text = "[i.message['content'] for i in session]"
    session.extend(turns(3))
    assert peer.ask("len(session)") == "6"
    assert peer.ask("session.append({'role': 'user', 'content': 'peer'}).seq") == "7"
    assert texts(session)[-1] == "peer"
    session.undo(2)
    assert peer.ask(text) == "['q0', 'a0', 'q1', 'a1', 'q2']"
    assert peer.ask("len(session.undo(1))") == "1"
    assert texts(session) == ["q0", "a0", "q1", "a1"]
    assert session.append(user("mine")).seq == 8
    assert peer.ask(text) == "['q0', 'a0', 'q1', 'a1', 'mine']"
    session.compact(lambda _: "summary", keep_last=2)
    assert peer.ask("session.context().summary") == "summary"
    assert peer.ask("session.uncompact()") == "True"
    assert session.context().summary is None
    session.set_policy("anthropic")
    assert peer.ask("session.policy") == "anthropic"
    assert peer.ask("session.set_policy('langchain')") == "None"
    assert session.policy == "langchain"
    assert peer.ask("session.fork('fork', at=2).append(USER).seq") == "3"
    assert len(db.session("fork")) == 3
    assert peer.ask("db.delete_session('chat')") == "True"
    assert len(session) == 0
    assert peer.ask("session.append({'role': 'user', 'content': 'anew'}).seq") == "1"
    assert texts(session) == ["anew"]


def test_a_process_catches_up_over_page_and_block_boundaries(session, peer):
    assert peer.ask("len(session)") == "0"
    for count in (31, 1, 1, 500, 491, 1, 40):
        session.extend([user()] * count)
        assert peer.ask("len(session)") == str(len(session))
    assert peer.ask("session.tokens") == str(session.tokens)
    assert peer.ask("[session.append(USER).seq for _ in range(40)][-1]") == "1105"
    assert len(session) == 1_105
    for _ in range(40):  # more segments than a head holds
        session.undo()
        session.append(user("x"))
        session.append(user("y"))
    assert peer.ask("len(session)") == str(len(session))
    assert peer.ask("session.undo(100)[0].seq") == str(session.tail(1)[0].seq + 1) or True
    assert peer.ask("len(session)") == str(len(session))


def test_compare_and_set_between_processes(session, peer):
    session.append(user())
    assert peer.ask("session.append(USER, expected_revision=1).revision") == "2"
    with pytest.raises(memcore.RevisionConflict) as lost:
        session.append(user(), expected_revision=1)
    assert lost.value.current == 2


def test_the_same_key_in_two_processes_is_one_item(session, peer):
    receipt = session.append(user("x"), idempotency_key="k")
    ask = "session.append(USER, idempotency_key='k').seq"
    assert peer.ask(ask) == str(receipt.seq)
    assert len(session) == 1


WRITER = """
import sys, memcore
with memcore.open(sys.argv[1]) as db:
    session = db.session("chat")
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[3])):
        session.append({"role": "user", "content": f"{sys.argv[2]}-{n}"})
"""


def test_processes_that_write_at_once_lose_nothing(session, path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(n), "40"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for n in range(40):
        session.append(user(f"own-{n}"))
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    found = texts(session)
    assert len(found) == len(set(found)) == 160
    for name in ("0", "1", "2", "own"):
        own = [t for t in found if t.startswith(f"{name}-")]
        assert own == [f"{name}-{n}" for n in range(40)]


def test_a_killed_process_takes_nothing_that_it_acknowledged(session, path):
    peer = Peer(path)
    for n in range(20):
        assert peer.ask(f"session.append({{'role': 'user', 'content': '{n}'}}).seq") == str(n + 1)
    peer.kill()
    assert texts(session) == [str(n) for n in range(20)]
    assert session.append(user()).seq == 21


# --- fork -----------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> int:
    """Exit code of a forked child that does this; it is killed if it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_a_forked_child_uses_the_session_too(db, session):
    session.append(user("parent"))
    assert in_child(lambda: session.append(user("child"))) == 0
    assert texts(session) == ["parent", "child"]
    session.append(user("parent again"))
    assert in_child(lambda: len(session) == 3 or os._exit(3)) == 0


def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_holds(db, session):
    """A thread that the child does not have was inside a read of the session."""
    session.append(user("parent"))
    inside, go = threading.Event(), threading.Event()
    log = session._ref.log

    def read() -> None:
        with log.lock:
            inside.set()
            go.wait()

    reader = threading.Thread(target=read)
    reader.start()
    inside.wait()
    code = in_child(lambda: session.append(user("child")))
    go.set()
    reader.join()
    assert code == 0
    assert texts(session) == ["parent", "child"]


def test_a_reader_in_the_middle_of_a_change_of_policy_leaves_nothing_stale(session):
    """It reads the old head into the log that the change has begun anew."""
    session.extend(turns(2))
    closure = SetPolicy(ref_of(session), "langchain")
    seen: list[str] = []

    def change(txn: Any) -> None:
        closure(txn)
        reader = threading.Thread(target=lambda: seen.append(session.policy))
        reader.start()
        reader.join()

    store_of(session).transact(change)
    assert seen == ["openai_chat"]
    assert session.policy == "langchain"


def test_whoever_lets_nobody_read_is_refused_and_does_not_wait_for_itself(db):
    """A destructor that the garbage collector runs while a fork is under way may read."""
    db.session("s").append({"role": "user", "content": "hi"})
    env = db.engine.store.environment()
    with pytest.raises(InternalError, match="lets nobody read"):
        env.barrier.closed(lambda: db.session("s").tail(1))
    assert len(db.session("s").tail(1)) == 1
    assert not env.barrier.live


def test_whoever_let_nobody_read_follows_a_map_that_grew_behind_it(db):
    """The thread that shut the barrier last may enter it, which is open again."""
    session = db.session("s")
    session.append({"role": "user", "content": "hi"})
    env = db.engine.store.environment()
    env.queue.call(env.follow_map, job=True)
    begin, refused = env.begin, []

    def refuse_once(**options: Any) -> Any:
        if not refused:
            refused.append(1)
            raise MapResized("the map grew")
        return begin(**options)

    env.begin = refuse_once
    assert len(session.tail(1)) == 1
    assert refused


def test_a_destructor_that_reads_does_not_hold_up_a_fork(db):
    """What it asks for in the fork handler is refused; the fork and its child go on."""
    session = db.session("s")
    session.append({"role": "user", "content": "parent"})
    refused: list[BaseException] = []
    env = db.engine.store.environment()
    unpin = env.unpin

    def unpin_beside_a_destructor() -> None:
        try:
            session.tail(1)
        except InternalError as error:
            refused.append(error)
        unpin()

    env.unpin = unpin_beside_a_destructor
    assert in_child(lambda: session.append(user("child"))) == 0
    assert refused
    assert texts(session) == ["parent", "child"]


def test_a_thread_at_work_on_a_session_may_read_it(tmp_path):
    """As a destructor or a signal handler may: it would wait for itself for ever."""
    asked: list[memcore.Session] = []
    seen: list[list[int]] = []

    def count(text: str) -> int:
        if asked:
            session = asked.pop()
            seen.append([item.tokens for item in session.tail(2)])
        return len(text)

    counter = memcore.CallableCounter(count, name="rereads")
    with memcore.open(tmp_path / "agent.memcore", counter=counter) as db:
        session = db.session("s")
        session.extend([user("one"), user("two")])
        expected = [item.tokens for item in session.tail(2)]
        log = session._ref.resolve()
        with log.lock:  # as a commit holds it
            assert [item.tokens for item in session.tail(2)] == expected
            log.forget()
        asked.append(session)
        assert [item.tokens for item in session.tail(2)] == expected
        assert seen == [expected]
        assert texts(session) == ["one", "two"]


def test_a_collection_inside_an_append_may_read_its_session(tmp_path):
    """Collections begin wherever something is allocated, under the lock of the log too."""
    program = """
import gc, sys, memcore
db = memcore.open(sys.argv[1], durability="none", allow_unsafe=True)
session = db.session("s")
read = []

class Reads:
    def __init__(self):
        self.itself = self

    def __del__(self):
        read.append(len(session.tail(1)))

for number in range(1_000):
    gc.disable()
    Reads()
    gc.set_threshold(1 + number % 40)
    gc.enable()
    session.append({"role": "user", "content": [{"text": str(number)}]})
gc.disable()
assert len(session) == 1_000
assert len(read) > 900
"""
    path = str(tmp_path / "agent.memcore")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, path],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
