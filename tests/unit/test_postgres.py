"""A store in PostgreSQL: its address, its trips, lost answers, clocks, what it refuses."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from random import Random
from urllib.parse import quote

import psycopg
import pytest
from interrupts import Interrupt, Point
from threaded import CODER

import memcore
from memcore.cli import main
from memcore.cli.options import ExitCode
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.table import ROWS
from memcore.errors import (
    ClosedError,
    DuplicateRequestError,
    InvalidOptionError,
    LeaseHeldError,
    NestedCallError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFormatError,
)
from memcore.graph import NewCheckpoint
from memcore.retention import erasure
from memcore.rows import names
from memcore.store.postgres import schema
from memcore.store.postgres import server as server_module
from memcore.store.postgres import store as store_module
from memcore.store.postgres.partitions import partition_of, partition_of_range
from memcore.store.postgres.store import PostgresStore

_numbers = itertools.count()


@pytest.fixture
def address(server) -> str:
    return server.address(f"store{next(_numbers)}")


@pytest.fixture
def db(address):
    with memcore.open(address) as db:
        yield db
        assert db.check() == []


def admin(server):
    return psycopg.connect(server.dsn, autocommit=True)


def hello(text="hello"):
    return {"role": "user", "content": text}


def texts(session):
    return [item.message["content"] for item in session.items()]


# --- opening --------------------------------------------------------------------------------------


def test_a_store_is_made_once_and_found_again(address):
    with memcore.open(address) as db:
        db.session("s", user="u").append(hello())
        assert db.durability == "full"
    with memcore.open(address, create=False) as db:
        assert texts(db.session("s", user="u")) == ["hello"]


def test_many_processes_may_make_it_at_once(address):
    code = "import memcore, sys; memcore.open(sys.argv[1]).session(sys.argv[2]).append({})"
    code = code.replace("{}", repr(hello()))
    running = [subprocess.Popen([sys.executable, "-c", code, address, f"s{n}"]) for n in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    with memcore.open(address) as db:
        assert sorted(entry.session_id for entry in db.sessions()) == ["s0", "s1", "s2", "s3"]
        assert db.check() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"durability": "none", "allow_unsafe": True}, "durability"),
        ({"key": bytes(32)}, "key"),
        ({"audit": memcore.Audit(key=bytes(32))}, "audit"),
    ],
)
def test_what_only_a_file_has_is_refused(address, options, message):
    with pytest.raises(InvalidOptionError, match=message):
        memcore.open(address, **options)


def test_a_missing_store(address):
    with pytest.raises(NotFoundError, match="no such store"):
        memcore.open(address, create=False)
    with pytest.raises(NotFoundError, match="no such store"):
        memcore.open(address, read_only=True)


def test_no_server_and_no_role(server, tmp_path):
    with pytest.raises(StoreAccessError, match="cannot be reached"):
        memcore.open(f"postgresql://x@/postgres?host={tmp_path}#s")
    with pytest.raises(StoreAccessError, match="nobody"):
        memcore.open(server.address("s").replace("tester@", "nobody@"))
    with pytest.raises(InvalidOptionError, match="63"):
        memcore.open(server.address("s" * 64))
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        memcore.open("postgresql://host/db?nonsense=1")


def test_what_works_on_files_repeats_no_password():
    address = "postgresql://ann:secret@/app#memcore"
    for verb in (["doctor", "--store", address], ["migrate", "--store", address, "--dry-run"],
                 ["salvage", address, "--to", "new"]):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "memcore", *verb], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "secret" not in done.stdout + done.stderr


def test_the_password_is_nowhere_to_be_seen(server):
    address = server.address("secret").replace("tester@", "tester:hush-hush@")
    with memcore.open(address) as db:
        assert "hush" not in db.path + repr(db) + repr(db.stats())
    with pytest.raises(StoreAccessError) as caught:
        memcore.open(address.replace("tester:", "nobody:"))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:s3%cret@127.0.0.1:1/db",
        "postgresql://ada:x#s3%cret@127.0.0.1:1/db",
        "postgresql://ada:x#s3/cret@127.0.0.1:1/db",
        "postgresql+psycopg://ada:s3cret@127.0.0.1:1/db",
        "POSTGRESQL://ada:s3cret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db#s3%20cret",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(address):
    with pytest.raises(InvalidOptionError) as caught:
        memcore.open(address)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_session_that_was_idle_for_long_is_a_lost_connection():
    assert server_module.is_transient(psycopg.errors.IdleSessionTimeout())
    assert server_module.may_repeat(psycopg.errors.SerializationFailure())


def test_an_address_need_not_name_a_host_before_the_database(server):
    where = f"postgresql:///postgres?host={quote(server.directory, safe='')}&user=tester#hostless"
    with memcore.open(where) as db:
        db.session("s", user="u").append(hello())
        with memcore.open(db.path) as same:
            assert len(same.session("s", user="u")) == 1


def test_another_durability_and_a_newer_store(server, address):
    memcore.open(address, durability="relaxed").close()
    with pytest.raises(InvalidOptionError, match="'relaxed'"):
        memcore.open(address, durability="full")
    name = address.partition("#")[2]
    with admin(server) as connection:
        connection.execute(f"update {name}.store set version = 99")
    with pytest.raises(StoreFormatError, match="upgrade"):
        memcore.open(address)


def test_a_role_that_may_only_read(server, address):
    with memcore.open(address) as db:
        db.session("s", user="u").append(hello())
    name = address.partition("#")[2]
    with admin(server) as connection:
        connection.execute(f"create role reader login; grant usage on schema {name} to reader")
        connection.execute(f"grant select on all tables in schema {name} to reader")
    with memcore.open(address.replace("tester@", "reader@"), read_only=True) as db:
        session = db.session("s", user="u")
        assert texts(session) == ["hello"]
        with pytest.raises(ReadOnlyError):
            session.append(hello())


# --- round trips ----------------------------------------------------------------------------------


def test_trips(db, address):
    """One a call once a session is known; what is read first brings what the next calls need."""
    session = db.session("s", user="u")
    session.extend([hello(f"{n}") for n in range(60)])
    session.append(hello())

    def trips(call, store):
        before = store.trips
        call()
        return store.trips - before

    store = db._engine.store
    assert trips(lambda: session.append(hello()), store) == 1
    assert trips(lambda: session.context(500), store) == 1
    assert trips(lambda: session.extend([hello()] * 30), store) == 1
    assert trips(lambda: session.tail(20), store) == 1
    with memcore.open(address) as cold:
        store = cold._engine.store
        assert trips(lambda: cold.session("s", user="u").context(8000), store) == 3
        assert trips(lambda: cold.session("s", user="u").append(hello()), store) == 3
    with memcore.open(address) as cold:
        store = cold._engine.store
        assert trips(lambda: cold.session("s", user="u").append(hello()), store) == 3
    with memcore.open(address) as cold:
        store = cold._engine.store
        assert trips(lambda: cold.session("s", user="u").tail(20), store) == 3
        assert trips(lambda: cold.session("new", user="u").append(hello()), store) <= 5


def test_a_first_trip_brings_8000_tokens(db, address):
    session = db.session("s", user="u")
    line = "It rained in the harbour, and the boats lay still behind the long grey wall. " * 3
    session.extend([hello(f"{n}: {line}") for n in range(400)])
    with memcore.open(address) as cold:
        store = cold._engine.store
        before = store.trips
        context = cold.session("s", user="u").context(8000)
        assert store.trips - before == 3
        assert context.tokens > 7900
        assert context.messages == session.context(8000).messages


@pytest.mark.parametrize("size", [10, 3_000, 40_000, 70_000])
def test_what_a_first_trip_brings_ends_behind_64_kib(db, address, size):
    session = db.session("s", user="u")
    chance = Random(size)
    session.extend([hello(chance.randbytes(size // 2).hex()) for _ in range(40)])
    expected = texts(session)
    with memcore.open(address) as cold:
        again = cold.session("s", user="u")
        assert [item.message["content"] for item in again.tail(3)] == expected[-3:]
        part = cold._engine.store._server.cached(partition_of(_item_key(session, 1)))
        sizes = [len(part.rows[key]) for key in part.order if key[17] == Row.ITEM]
        assert len(sizes) >= 3
        assert len(sizes) in (3, 40) or sum(sizes) - sizes[0] < 64 * 1024 <= sum(sizes)
        assert texts(again) == expected


def _item_key(session, seq):
    log = session._ref.resolve()
    return keys.session_row(log.scope, log.session, Row.ITEM, seq)


@pytest.mark.parametrize("missing", ["scope", "session", "nothing"])
def test_names_that_lead_nowhere(db, address, missing):
    for name in ("s", "x" * 900):  # a long one is looked up by its digest
        if missing != "scope":
            db.session("other", user=name).append(hello())
        if missing == "nothing":
            db.session(name, user=name).append(hello())
        with memcore.open(address) as cold:
            session = cold.session(name, user=name)
            assert session.exists() is (missing == "nothing")
            session.append(hello())
            assert texts(session)[-1] == "hello"
            assert session.exists()


def test_a_schema_of_an_older_memcore_gets_the_new_functions(server, address):
    memcore.open(address).close()
    name = address.partition("#")[2]
    with admin(server) as connection:
        connection.execute(f"drop function {name}.open_1, {name}.read_2")
        connection.execute("drop role if exists writer")
        connection.execute("create role writer login")
        connection.execute(f"grant usage on schema {name} to writer")
        connection.execute(
            f"grant select, insert, update, delete on all tables in schema {name} to writer"
        )
    with pytest.raises(StoreAccessError, match="functions of an older memcore"):
        memcore.open(address.replace("tester@", "writer@"))
    code = "import memcore, sys; memcore.open(sys.argv[1])"
    running = [subprocess.Popen([sys.executable, "-c", code, address]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    with memcore.open(address.replace("tester@", "writer@")) as db:
        db.session("s", user="u").append(hello())


def counted(store, call):
    before = store.trips
    found = call()
    return store.trips - before, found


def test_an_idempotency_key_costs_no_trip(db):
    session = db.session("s", user="u")
    session.append(hello())
    session.append(hello(), idempotency_key="a")
    store = db._engine.store
    trips, _ = counted(store, lambda: session.append(hello(), idempotency_key="b"))
    assert trips == 1


@pytest.mark.parametrize("fill", [0, 40])
def test_a_request_that_another_process_has_made(db, address, fill):
    """Its key is supposed to be absent until the commit, whatever is found out before."""
    session = db.session("s", user="u")
    for n in range(fill):
        session.append(hello(), idempotency_key=f"before-{n}")
    first = session.append(hello("one"), idempotency_key="k", expected_revision=fill)
    session.append(hello("two"))
    mine = db.scope(user="u").state
    update = mine.update({"a": 1}, idempotency_key="k")
    mine.update({"a": 2})
    for _ in range(2):  # the second time with what the first has learned
        with memcore.open(address) as other:
            again = other.session("s", user="u")
            again.tail(1)
            assert again.append(hello("one"), idempotency_key="k") == first
            receipt = again.append(hello("one"), idempotency_key="k", expected_revision=fill)
            assert receipt == first
            with pytest.raises(DuplicateRequestError):
                again.append(hello("other"), idempotency_key="k")
            repeated = other.scope(user="u").state.update({"a": 1}, idempotency_key="k")
            assert repeated == update
            assert mine.get("a") == 2
            assert texts(again)[fill:] == ["one", "two"]


def test_a_request_beside_calls_that_succeed(address):
    """One call of a batch supposes what is not so: all run again, and each has its own outcome."""
    with memcore.open(address) as one, memcore.open(address) as two:
        session = one.session("s", user="u")
        session.append(hello())
        mine = two.session("s", user="u")
        mine.tail(1)
        first = session.append(hello("one"), idempotency_key="k")
        mine.tail(1)
        gate = threading.Barrier(9)
        found = []

        def store(n):
            gate.wait()
            key = "k" if n == 4 else f"k{n}"
            receipt = mine.append(hello("one" if n == 4 else f"{n}"), idempotency_key=key)
            found.append((n, receipt.seq))

        threads = [threading.Thread(target=store, args=(n,)) for n in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert dict(found)[4] == first.seq
        assert sorted(seq for _, seq in found) == sorted({seq for _, seq in found})
        assert texts(session).count("one") == 1
        assert len(texts(session)) == 10


def test_two_that_make_one_request_at_once(address):
    with memcore.open(address) as one, memcore.open(address) as two:
        sessions = [db.session("s", user="u") for db in (one, two)]
        sessions[0].append(hello())
        sessions[1].tail(1)
        for n in range(20):
            gate, receipts = threading.Barrier(2), []

            def store(session, n=n, gate=gate, receipts=receipts):
                gate.wait()
                receipts.append(session.append(hello(f"{n}"), idempotency_key=f"{n}"))

            threads = [threading.Thread(target=store, args=(each,)) for each in sessions]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert receipts[0] == receipts[1]
        assert texts(sessions[0]) == ["hello", *(f"{n}" for n in range(20))]


def test_a_long_graph_is_read_in_a_few_trips(db, address):
    """Its pool has more chunks than are read along, and pages in pages."""
    values = [long(f"message {n}") for n in range(5_000)]
    put_graph(db.scope(user="u").graph, "1", None, values)
    with memcore.open(address) as cold:
        store, graph = cold._engine.store, cold.scope(user="u").graph
        trips, found = counted(store, lambda: newest_graph(graph))
        assert found == values
        assert trips <= 12
        values.append(long("new"))
        trips, _ = counted(store, lambda: put_graph(graph, "2", "1", values))
        assert trips <= 3
        values.append(long("newer"))
        trips, _ = counted(store, lambda: put_graph(graph, "3", "2", values))
        assert trips == 1
    values.append(long("last"))
    with memcore.open(address) as cold:  # who puts without having read finds out what is stored
        store, graph = cold._engine.store, cold.scope(user="u").graph
        trips, _ = counted(store, lambda: put_graph(graph, "4", "3", values))
        assert trips <= 80
        assert newest_graph(graph) == values
    assert newest_graph(db.scope(user="u").graph) == values


def long(text):
    return {"text": f"{text} " + "word " * 40}


def put_graph(graph, checkpoint, parent, values):
    body = {"channel_versions": {"messages": int(checkpoint)}}
    new = NewCheckpoint(checkpoint, parent, body, {}, {"messages": (int(checkpoint), values)})
    graph.put("thread", "", new, CODER)


def newest_graph(graph):
    return graph.get("thread", "", None, CODER).values["messages"]


def test_a_commit_that_loses_leaves_no_trace(server, address):
    """What it counted up before it found something stale is counted down again."""
    memcore.open(address).close()
    name = address.partition("#")[2]
    commit = (
        f"select * from {name}.commit_2(%b::bytea[], %b::bigint[], %b::bytea, %b::bytea, "
        "%b::bytea[], %b::bytea[], %b::bytea[], '{}', false, false)"
    )

    def send(names, versions, kinds, *, number, absent=(), puts=()):
        values = (
            schema.byteas(names), schema.bigints(versions), kinds, number,
            schema.byteas(absent), schema.byteas(puts), schema.byteas([b"v"] * len(puts)),
        )  # fmt: skip
        return connection.execute(commit, values, binary=True).fetchall()

    def state():
        parts = connection.execute(f"select p, version, commits from {name}.parts", binary=True)
        rows = connection.execute(f"select k from {name}.rows where k >= '\\x40'", binary=True)
        return sorted(parts.fetchall()), rows.fetchall()

    with admin(server) as connection:
        assert send([b"@a", b"@b"], [0, 0], b"ww", number=b"1" * 8, puts=[b"@a1"]) == []
        before = state()
        for versions, kinds in (([1, 7], b"ww"), ([1, 7], b"wr"), ([1, 7], b"wc"), ([7, 1], b"ww")):
            assert send([b"@a", b"@b"], versions, kinds, number=b"2" * 8, puts=[b"@a2"]) != []
            assert state() == before
        lost = send([b"@a"], [1], b"w", number=b"3" * 8, absent=[b"@a1", b"@a9"], puts=[b"@a3"])
        assert lost == [(b"@a1", -1)]
        assert state() == before
        assert send([b"@a"], [1], b"w", number=b"4" * 8, absent=[b"@a9"], puts=[b"@a3"]) == []
        assert state() != before


def test_a_large_blob_is_read_in_a_few_trips(db, address):
    content = Random(1).randbytes(2_000_000).hex()
    db.session("s", user="u").append(hello(content))
    with memcore.open(address) as cold:
        session = cold.session("s", user="u")
        trips, found = counted(cold._engine.store, lambda: session.tail(1))
        assert found[0].message["content"] == content
        assert trips <= 3


def test_a_batch_of_threads_is_one_statement(db):
    sessions = [db.session(f"s{n}", user="u") for n in range(24)]
    for session in sessions:
        session.append(hello())
    store = db._engine.store
    batches = store.leader.batches
    threads = [threading.Thread(target=session.append, args=(hello(),)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.leader.batches - batches < len(sessions)
    assert all(len(session) == 2 for session in sessions)


def test_reads_of_an_event_loop_run_in_threads(address, monkeypatch):
    seen = []
    read = PostgresStore.read

    def watched(self, fn, **options):
        seen.append(threading.current_thread() is threading.main_thread())
        return read(self, fn, **options)

    async def run():
        async with memcore.aio.open(address) as other:
            await use(other.session("s", user="u"))

    async def use(session):
        await session.extend([hello(f"{n}") for n in range(5)])
        monkeypatch.setattr(PostgresStore, "read", watched)
        assert (await session.context(1000)).messages
        assert len([item async for item in session.items()]) == 5
        assert len(await session.tail(3)) == 3

    asyncio.run(run())
    assert seen
    assert not any(seen)


# --- the cache ------------------------------------------------------------------------------------


def test_the_cache_is_bounded(db, monkeypatch):
    monkeypatch.setattr(server_module, "CACHE_BYTES", 100_000)
    sessions = [db.session(f"s{n}", user="u") for n in range(20)]
    for _ in range(3):
        for session in sessions:
            session.append(hello("x" * 10_000))
    inner = db._engine.store._server
    assert 0 <= inner._bytes <= 150_000
    assert inner._bytes == sum(part.size for part in inner._parts.values())
    assert all(len(list(session.items())) == 3 for session in sessions)


def test_numbers_of_two_handles_never_meet(address):
    with memcore.open(address) as one, memcore.open(address) as other:
        for n in range(10):
            one.session(f"a{n}", user="u").append(hello())
            other.session(f"b{n}", user="v").append(hello())
        assert len(list(one.sessions())) == 20
        assert one.check() == other.check() == []


def test_a_fork_has_connections_of_its_own(db):
    session = db.session("s", user="u")
    session.append(hello("before"))
    child = os.fork()
    if not child:
        try:
            session.append(hello("child"))
        finally:
            os._exit(0 if len(session) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    session.append(hello("parent"))
    assert texts(session) == ["before", "child", "parent"]


# --- lost answers ---------------------------------------------------------------------------------


@pytest.fixture
def losing(db, monkeypatch):
    """Has the next commits lose their connection before or after the server has them."""
    inner = db._engine.store._server
    plan: list[str] = []
    sent: list[tuple] = []
    ask = inner.ask

    def asked(connection, query, values):
        if query is not inner.sql(schema.COMMIT) or not plan:
            return ask(connection, query, values)
        when = plan.pop(0)
        sent.append(values)
        if when == "after":
            ask(connection, query, values)
        if when == "pushed out":
            ask(connection, query, values)
            with inner.connection() as other:
                other.execute(
                    inner.sql("update {schema}.parts set version = version + 8, commits = ''")
                )
        raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(inner, "ask", asked)
    return plan, sent


def test_a_commit_whose_answer_was_lost_is_not_repeated(db, losing):
    session = db.session("s", user="u")
    session.append(hello("first"))
    losing[0].append("after")
    assert session.append(hello("second")).seq == 2
    assert texts(session) == ["first", "second"]


def test_a_commit_that_was_lost_is_repeated_and_can_never_arrive(db, losing):
    session = db.session("s", user="u")
    session.append(hello("first"))
    plan, sent = losing
    plan.extend(["before", "before"])
    assert session.append(hello("second")).seq == 2
    inner = db._engine.store._server
    for values in sent:  # they arrive after all
        with inner.connection() as connection:
            assert connection.execute(inner.sql(schema.COMMIT), values, binary=True).fetchall()
    assert texts(session) == ["first", "second"]


def test_an_interrupt_while_the_fate_is_found_out_repeats_nothing(db, losing, monkeypatch):
    session, other = db.session("s", user="u"), db.session("other", user="u")
    session.append(hello("first"))
    other.append(hello("first"))
    losing[0].append("after")
    sleeps, inner = [KeyboardInterrupt()], db._engine.store._server
    fetched, lost = inner.ask, [psycopg.OperationalError("again")]

    def asked(connection, query, values):
        if query is inner.sql(schema.SETTLE) and lost:
            raise lost.pop()
        return fetched(connection, query, values)

    def pause(_):
        if sleeps:
            raise sleeps.pop()

    monkeypatch.setattr(inner, "ask", asked)
    monkeypatch.setattr(store_module, "sleep", pause)
    waiting = threading.Thread(target=other.append, args=[hello("once")])

    def append():
        db._engine.store.transact(lambda _: start(waiting, db._engine.store.queue))

    with pytest.raises(KeyboardInterrupt):
        append()
    waiting.join()
    assert not lost
    assert not sleeps
    assert texts(other) == ["first", "once"]


def test_a_server_that_went_back_is_read_anew(server, address, db):
    """It counts the same versions again, with other rows: "relaxed", or a standby took over.

    The counts of a session that is open stay those of the lost items: these are as long.
    """
    session = db.session("s", user="u")
    session.append(hello("first"))
    name = address.partition("#")[2]
    with admin(server) as connection:
        for table in ("parts", "rows"):
            connection.execute(f"create table public.{name}_{table} as table {name}.{table}")
        session.append(hello("1111"))
        assert texts(session) == ["first", "1111"]
        for table in ("parts", "rows"):
            connection.execute(f"truncate {name}.{table}")
            connection.execute(f"insert into {name}.{table} table public.{name}_{table}")
            connection.execute(f"drop table public.{name}_{table}")
        with memcore.open(address) as later:
            later.session("s", user="u").append(hello("2222"))
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> "
            "pg_backend_pid() and application_name = 'memcore'"
        )
    assert texts(session) == ["first", "2222"]
    assert session.append(hello("third")).seq == 3
    assert texts(session) == ["first", "2222", "third"]


def test_what_a_closure_asks_of_another_database_is_its_own_error(db):
    def refused(_):
        raise psycopg.errors.UniqueViolation("of another database")

    store = db._engine.store
    with pytest.raises(psycopg.errors.UniqueViolation):
        store.transact(refused)
    with pytest.raises(psycopg.errors.UniqueViolation):
        store.read(refused)


def test_an_outcome_that_nobody_knows_is_said_to_be_unknown(db, losing):
    session = db.session("s", user="u")
    session.append(hello("first"))
    losing[0].append("pushed out")
    with pytest.raises(OutcomeUnknownError, match="read what is stored"):
        session.append(hello("second"))
    assert texts(session) == ["first", "second"]
    assert session.append(hello("third")).seq == 3


def test_an_interrupt_within_a_commit(db, losing, monkeypatch):
    """It is raised, and whether the item is stored is no secret afterwards."""
    session = db.session("s", user="u")
    session.append(hello("first"))
    inner = db._engine.store._server
    ask = inner.ask
    interrupts = [KeyboardInterrupt()]

    def asked(connection, query, values):
        found = ask(connection, query, values)
        if query is inner.sql(schema.COMMIT) and interrupts:
            raise interrupts.pop()
        return found

    monkeypatch.setattr(inner, "ask", asked)
    with pytest.raises(KeyboardInterrupt):
        session.append(hello("second"))  # stored: the interrupt came too late to prevent it
    assert texts(session) == ["first", "second"]
    assert session.append(hello("third")).seq == 3


def test_a_connection_that_the_server_ended_is_replaced(server, db):
    session = db.session("s", user="u")
    session.append(hello("first"))
    with admin(server) as connection:
        for _ in range(3):
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> "
                "pg_backend_pid() and application_name = 'memcore'"
            )
            session.append(hello("more"))
            assert session.context(1000).messages
    assert len(session) == 4


# --- contention -----------------------------------------------------------------------------------


def test_writers_of_one_session_all_have_their_turn(address):
    def write(handle, name):
        session = handle.session("s", user="u")
        for n in range(25):
            session.append(hello(f"{name}-{n}"))

    handles = [memcore.open(address) for _ in range(4)]
    handles[0].session("s", user="u").append(hello("start"))
    threads = [threading.Thread(target=write, args=(handle, n)) for n, handle in enumerate(handles)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = texts(handles[0].session("s", user="u"))
    assert len(found) == len(set(found)) == 101
    for n in range(4):
        own = [text for text in found if text.startswith(f"{n}-")]
        assert own == [f"{n}-{k}" for k in range(25)]
    assert handles[1].check() == []
    for handle in handles:
        handle.close()


def test_leases_go_by_the_clock_of_the_server(address, monkeypatch):
    """A worker whose clock is an hour ahead does not take a lease that is held."""
    with memcore.open(address) as db:
        session = db.session("s", user="u")
        session.append(hello())
        held = session.lease("one", ttl_seconds=60)
        right = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right() + 3600 * 1_000_000_000)
        with memcore.open(address) as ahead, pytest.raises(LeaseHeldError):
            ahead.session("s", user="u").lease("two", ttl_seconds=60)
        monkeypatch.undo()
        held.release()


def test_a_clock_that_is_set_moves_no_lease(address, monkeypatch):
    with memcore.open(address) as db, memcore.open(address) as other:
        held = db.session("s", user="u").lease("one", ttl_seconds=60)
        right = time.time_ns
        for hours in (2, -2):
            skew = hours * 3600 * 1_000_000_000
            monkeypatch.setattr(time, "time_ns", lambda skew=skew: right() + skew)
            with pytest.raises(LeaseHeldError, match=r"another (59|60)"):
                other.session("s", user="u").lease("two", ttl_seconds=60)
            held.renew()
            assert abs(held.expires_at - right() / 1e9 - 60) < 30


def test_the_clock_of_the_server_is_asked_for_again(address, monkeypatch):
    with memcore.open(address) as db:
        server, right = db.engine.store._server, server_module._boot_us
        server.set_clock(1_000)  # as if it had been wrong
        assert db.engine.store.now_us() < 1_000_000 * 3600
        monkeypatch.setattr(server_module, "_boot_us", lambda: right() + 301 * 1_000_000)
        assert abs(db.engine.store.now_us() - time.time_ns() // 1000) < 30 * 1_000_000


def test_the_command_line_imports_into_a_server(address, tmp_path, capsys):
    lines = tmp_path / "lines.jsonl"
    with memcore.open(":memory:") as source:
        source.session("s", user="u").append(hello())
        lines.write_bytes(b"".join(source.export()))
    assert main(["import", str(lines), "--store", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == 1
    assert main(["restore", str(lines), "--store", address]) == ExitCode.USAGE
    assert "this works on files only" in capsys.readouterr().err
    with memcore.open(address) as db:
        assert texts(db.session("s", user="u")) == ["hello"]


# --- what only a file has -------------------------------------------------------------------------


def test_copies_are_refused_with_what_to_use_instead(db, tmp_path):
    for call in (db.copy_compact, lambda: db.backup(tmp_path / "copy")):
        with pytest.raises(InvalidOptionError, match="on a server"):
            call()


def test_an_erasure_says_what_the_server_keeps(db):
    db.session("s", user="u").append(hello("the user's words"))
    receipt = db.erase(user="u")
    assert receipt.method == ("removed",)
    assert not receipt.bytes_gone
    assert receipt.pending == ()
    assert any("write-ahead log" in each for each in receipt.out_of_reach)
    assert db.finish_erasures() == []
    assert list(db.sessions(user="u")) == []


def test_rows_are_the_same_bytes_as_in_a_file(db, server, open_db):
    """What the reader of a file knows of rows holds of those on a server."""
    file = open_db()
    for store in (file, db):
        session = store.session("s", user="u")
        session.extend([hello(f"{n}") for n in range(10)])

    def shapes(store):
        rows = store._engine.store.read(lambda txn: list(txn.scan(b"\x05", b"\x06")))
        return [(key[17:], len(value)) for key, value in rows]

    assert shapes(file) == shapes(db)


def test_a_lost_row_is_found_by_check(server, address):
    with memcore.open(address) as db:
        session = db.session("s", user="u")
        session.extend([hello(f"{n}") for n in range(10)])
        name = address.partition("#")[2]
        key = keys.session_row(*db._engine.store.read(session._ref.find), Row.ITEM, 4)
    with admin(server) as connection:
        connection.execute(f"delete from {name}.rows where k = %s", (key,))
    with memcore.open(address) as db:
        assert db.check()


def test_a_full_pool_is_said(address, monkeypatch):
    store = PostgresStore(address, connections=2)
    inner = store._server
    monkeypatch.setattr(server_module, "PATIENCE_SECONDS", 0.2)
    try:
        with (
            inner.connection(),
            inner.connection(),
            pytest.raises(StorageError, match="connection"),
        ):
            store.read(lambda txn: txn.get(b"\x05" + bytes(20)))
    finally:
        store.close()


def test_a_listing_is_a_few_trips(db, address):
    for n in range(150):
        db.session(f"s{n:03}", user="u").append(hello())
    with memcore.open(address) as cold:
        store = cold._engine.store
        before = store.trips
        assert [entry.items for entry in cold.scope(user="u").sessions()] == [1] * 150
        assert store.trips - before <= 8
        session = cold.session("s007", user="u")
        before = store.trips
        assert session.context(1000).messages
        assert store.trips - before <= 4


def test_a_store_that_nobody_closed_gives_its_connections_back(server, address):
    db = memcore.open(address)
    db.session("s", user="u").append(hello())
    del db
    gc.collect()
    with admin(server) as connection:
        query = (
            "select count(*) from pg_stat_activity where application_name = 'memcore' "
            "and query like %s"
        )
        for _ in range(1000):
            (left,) = connection.execute(query, (f"%{address.partition('#')[2]}%",)).fetchone()
            if not left:
                break
    assert not left


def test_one_connection_is_enough(address):
    """Whoever stands in line makes all trips on the connection that holds its locks."""
    stores = [PostgresStore(address, connections=1) for _ in range(3)]
    key = keys.session_row(1, 1, Row.ITEM, 0)

    def add(store):
        def closure(txn):
            txn.get(keys.session_row(1, 2, Row.ITEM, txn.local.setdefault("at", next(_numbers))))
            txn.put(key, b"%d" % (int(txn.get(key) or b"0") + 1))

        for _ in range(30):
            store.transact(closure)

    threads = [threading.Thread(target=add, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].read(lambda txn: txn.get(key)) == b"90"
    assert any(store.leader.conflicts for store in stores)
    for store in stores:
        store.close()


def test_a_number_within_a_lock_on_everything(address):
    """A closure that scans over partitions and needs a number that was not taken yet."""
    store = PostgresStore(address)

    def closure(txn):
        assert list(txn.scan(b"\x02", b"\xff"))[:0] == []
        number = names.next_number(txn, keys.Counter.SESSION)
        txn.put(keys.session_row(1, number, Row.ITEM, 1), b"x")
        return number

    numbers = [store.transact(closure) for _ in range(3)]
    assert len(set(numbers)) == 3
    store.close()
    other = PostgresStore(address)
    assert other.transact(closure) > max(numbers)
    other.close()


def test_what_an_earlier_trip_proved_is_compared_again(address):
    """A token moves between two trips of one read, which must not see it twice."""
    reader, writer = PostgresStore(address), PostgresStore(address)
    here, there = (keys.session_row(1, session, Row.ITEM, 0) for session in (1, 2))
    writer.transact(lambda txn: txn.put(here, b"token"))

    def move(txn):
        txn.delete(here)
        txn.put(there, b"token")

    runs = []

    def look(txn):
        txn.prefetch([here])
        if not runs:
            writer.transact(move)
        runs.append(1)
        return txn.get(there), txn.get(here)

    assert reader.read(look) == (b"token", None)
    assert len(runs) == 2
    reader.close()
    writer.close()


# --- races ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted({each.kind for each in ROWS} | {0}))
def test_a_range_in_one_partition_has_no_key_of_another(kind):
    """Whatever bounds a scan has: its rows are all of the partition that it is judged by."""
    chance = Random(kind)
    for _ in range(300):
        start = bytes((kind,)) + chance.choice([bytes(8), chance.randbytes(8)])
        start += chance.randbytes(chance.randrange(12))
        start = start[: chance.randrange(1, len(start) + 1)]
        stop = chance.choice([keys.after(start), start + b"\xff" * 3, bytes((kind + 1,))])
        name = partition_of_range(start, stop)
        for _ in range(20):
            key = start + chance.randbytes(chance.randrange(30))
            if name and start <= key < stop:
                assert partition_of(key) == name


def test_an_erasure_that_was_cut_short_is_seen_by_all(address, monkeypatch):
    with memcore.open(address) as one, memcore.open(address) as other:
        one.session("s", user="ada").append(hello())
        assert one.finish_erasures() == other.finish_erasures() == []
        with monkeypatch.context() as patch:
            patch.setattr(erasure, "remove_rows", lambda *_, **__: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                one.erase(user="ada")
        assert len(other.finish_erasures()) == 1
        assert one.finish_erasures() == []


def test_two_that_read_what_the_other_writes_first(address):
    """Neither partition has a row yet; each writes only if the other's row is absent."""
    stores = [PostgresStore(address), PostgresStore(address)]
    for number in range(20):
        here, there = (keys.session_row(1, 2 * number + n, Row.ITEM, 0) for n in (1, 2))
        gate = threading.Barrier(2)

        def write(store, own, others, gate=gate):
            first = [True]

            def closure(txn):
                if txn.get(others) is None:
                    if first:
                        first.clear()
                        gate.wait(10)
                    txn.put(own, b"x")

            store.transact(closure)

        threads = [
            threading.Thread(target=write, args=(stores[0], here, there)),
            threading.Thread(target=write, args=(stores[1], there, here)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = stores[0].read(lambda txn, a=here, b=there: (txn.get(a), txn.get(b)))
        assert found.count(None) == 1
    for store in stores:
        store.close()


def test_a_flush_makes_earlier_commits_durable(server, address):
    with memcore.open(address, durability="relaxed") as db, admin(server) as connection:
        for _ in range(5):
            db.session("s", user="u").append(hello())
            (at,) = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
            db.flush()
            flushed = "select pg_current_wal_flush_lsn() >= %s::pg_lsn"
            assert connection.execute(flushed, (at,)).fetchone() == (True,)


def test_what_the_server_refuses_is_not_repeated_for_ever(server, address):
    memcore.open(address).close()
    slow = address.replace("/postgres?", "/postgres?options=-c%20statement_timeout%3D1ms&")
    store = PostgresStore(address)
    store._server.close()
    store._server = store.leader._server = server_module.Server(slow, size=2)
    store._server.set_clock(0)
    rows = [(keys.session_row(1, 1, Row.ITEM, n), b"x" * 100) for n in range(20_000)]

    def closure(txn):
        for key, value in rows:
            txn.put(key, value)

    with pytest.raises(StorageError, match="timeout"):
        store.transact(closure)
    store.close()


def test_another_isolation_level_is_refused(address):
    memcore.open(address).close()
    option = "options=-c%20default_transaction_isolation%3Dserializable&"
    with memcore.open(address.replace("/postgres?", f"/postgres?{option}")) as db:
        session = db.session("s", user="u")
        with pytest.raises(StorageError, match="read committed"):
            session.append(hello())


def test_a_read_under_way_at_the_close_opens_nothing(address):
    store = PostgresStore(address)

    def look(txn):
        store.close()
        return txn.get(keys.session_row(1, 1, Row.ITEM, 1))

    done = []

    def read():
        try:
            store.read(look)
        except (ClosedError, NestedCallError) as error:
            done.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert done
    store.close()
    assert store._server._pool is None


def points(address) -> list[Point]:
    """The points of an append of a known session, each once."""
    with memcore.open(address) as db:
        session = db.session("s", user="u")
        session.append(hello("first"))
        session.append(hello("second"))
        noted = Interrupt(None, where="/memcore/store/postgres/")
        noted.during(lambda: session.append(hello("third")))
        return list(dict.fromkeys(noted.points))


@pytest.mark.parametrize("part", range(4))
def test_an_interrupt_anywhere_stores_nothing_twice(address, part):
    """Of two appends in one batch, the interrupted one is stored or not, the other one once."""
    found = points(address)
    assert len(found) > 60
    with memcore.open(address) as db:
        session, other = db.session("s", user="u"), db.session("other", user="u")
        other.append(hello("begun"))
        for number, point in list(enumerate(found))[part::4]:
            before, queue = len(session), db._engine.store.queue
            waiting = threading.Thread(target=other.append, args=(hello(f"{number}"),))

            def append(waiting=waiting, queue=queue, number=number):
                # Queued while the batch is under way, so that it is taken into it.
                db._engine.store.transact(lambda _: start(waiting, queue))
                session.append(hello(f"own {number}"))

            interrupt = Interrupt(point, where="/memcore/store/postgres/")
            interrupt.during(append)
            if waiting.ident is None:  # interrupted before it was started
                waiting.start()
            waiting.join(30)
            assert not waiting.is_alive(), point
            assert len(session) - before in (0, 1), point
            own = [text for text in texts(session) if text == f"own {number}"]
            assert len(own) <= 1, point
            assert texts(other).count(f"{number}") == 1, point
        assert db.check() == []


def start(thread, queue) -> None:
    """Start a thread, unless this runs again, and wait until its call is queued."""
    if thread.ident is None:
        thread.start()
        while not queue.waiting:
            threading.Event().wait(0.001)


def test_a_user_of_whom_nothing_is_stored(db):
    receipt = db.erase(user="nobody")
    assert not receipt.bytes_gone
    assert any("write-ahead log" in each for each in receipt.out_of_reach)
    assert not any("free pages" in each for each in receipt.out_of_reach)
