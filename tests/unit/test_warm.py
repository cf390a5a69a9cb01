"""Warm copies: a file, its copy on a server, and what becomes of both."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from stores import fill, use

import memcore
from memcore.codec.keys import OF_ONE_FILE, WARM_KEY
from memcore.database import warm
from memcore.errors import (
    ClosedError,
    InternalError,
    InvalidOptionError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    StoreAccessError,
    StoreFullError,
    SupersededError,
    UnshippedError,
)
from memcore.store import changes
from memcore.store.postgres import copies
from memcore.store.store import LmdbStore

_numbers = itertools.count()


@pytest.fixture
def address(server) -> str:
    return server.address(f"warm{next(_numbers)}")


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    """Rounds follow each other at once, and a failed one is tried again soon."""
    monkeypatch.setattr(warm, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(warm, "WAITING_SECONDS", 0.05)
    monkeypatch.setattr(warm, "PAUSE_SECONDS_MAX", 0.1)
    monkeypatch.setattr(warm, "IDLE_SECONDS", 0.05)


@pytest.fixture
def sql(server) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


def in_file(db: memcore.Database) -> list[tuple[bytes, bytes]]:
    found = db._engine.store.read(lambda txn: list(txn.scan(b"\x02", b"\xff")))
    return [row for row in found if row[0] not in OF_ONE_FILE]


def in_copy(sql: psycopg.Connection, address: str) -> list[tuple[bytes, bytes]]:
    query = f"select k, v from {address.partition('#')[2]}.rows where k >= '\\x02' order by k"
    return sql.execute(query, binary=True).fetchall()


def say(session: memcore.Session, text: str) -> None:
    session.append({"role": "user", "content": text})


def eventually(holds: Callable[[], bool]) -> None:
    """Wait for what a thread does by itself."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        threading.Event().wait(0.005)


def texts(session: memcore.Session) -> list[str]:
    return [item.message["content"] for item in session.items()]


# --- what it promises -----------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_copy_is_promoted_and_goes_on(path, address, sql, durability):
    with memcore.open(path, durability=durability, warm=address) as db:
        fill(db)
        db.ship()
        assert in_copy(sql, address) == in_file(db)
        status = db.warm_status()
        assert status is not None
        assert (status.state, status.behind, status.error) == ("shipping", 0, None)
        say(db.session("s1", user="ben"), "late")
        db.session("s1", user="ben").undo()
        db.delete_session("s2", user="ann")
        db.ship()
        assert in_copy(sql, address) == in_file(db)
        held = in_file(db)
    done = memcore.promote(address)
    assert status.current_at is not None
    assert 0 <= done.taken_at - status.current_at < 60
    with memcore.open(address) as db:
        assert in_file(db) == held
        assert db.durability == durability
        assert db.check() == []
    use(address)


def test_closing_ships_the_rest(path, address, sql):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "last words")
        held = in_file(db)
    assert in_copy(sql, address) == held


def test_it_is_shipped_without_being_asked(path, address, sql):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        eventually(lambda: in_copy(sql, address) == in_file(db))


def test_any_history_arrives(path, address, sql):
    """Random changes, and a copy that equals the file whenever it says so."""
    chance = random.Random(20)
    with memcore.open(path, durability="relaxed", map_bytes=1024**2, warm=address) as db:
        for step in range(300):
            name, user = f"s{chance.randrange(8)}", chance.choice(["ann", "ben"])
            session = db.session(name, user=user)
            match chance.randrange(10):
                case 0 | 1 | 2 | 3:
                    session.extend([{"role": "user", "content": "x" * chance.randrange(3000)}] * 3)
                case 4:
                    if session.exists():
                        session.undo()
                case 5:
                    db.delete_session(name, user=user)
                case 6:
                    notes = db.scope(user="ann").kv("notes")
                    notes.put(f"k{step % 7}", {"value": "y" * chance.randrange(9000)})
                case 7:
                    db.scope(user="ben").blobs.put(chance.randbytes(chance.randrange(200_000)))
                case 8:
                    if session.exists() and chance.random() < 0.5:
                        session.fork(f"f{step}")
                case 9:
                    db.ship()
                    assert in_copy(sql, address) == in_file(db)
        db.copy_compact()
        db.ship()
        assert in_copy(sql, address) == in_file(db)
        db.erase(user="ann")
        db.ship()
        assert in_copy(sql, address) == in_file(db)
    memcore.promote(address)
    with memcore.open(address) as db:
        assert db.check() == []


def test_from_an_event_loop(path, address, sql):
    async def run() -> None:
        async with await memcore.aio.open(path, warm=address) as db:
            session = db.session("s")
            await asyncio.gather(
                *(session.append({"role": "user", "content": f"{n}"}) for n in range(20))
            )
            await db.ship()
            status = await db.warm_status()
            assert status is not None
            assert status.state == "shipping"

    asyncio.run(run())
    memcore.promote(address)
    with memcore.open(address) as db:
        assert len(texts(db.session("s"))) == 20


def test_without_one(path, address):
    with memcore.open(path) as db:
        assert db.warm_status() is None
        with pytest.raises(InvalidOptionError, match="open it with warm="):
            db.ship()


# --- commits that wait ----------------------------------------------------------------------------


def test_a_synchronous_commit_is_in_the_copy(path, address, sql):
    with memcore.open(path, warm=address, ship="sync") as db:
        session = db.session("s")
        for n in range(10):
            say(session, f"{n}")
            assert in_copy(sql, address) == in_file(db)
        session.undo()
        assert in_copy(sql, address) == in_file(db)
        db.scope().kv("notes").put("k", 1)
        assert in_copy(sql, address) == in_file(db)
        with memcore.open(path) as other:
            say(other.session("s"), "does not wait")


def test_synchronous_commits_from_an_event_loop(path, address, sql):
    async def run() -> None:
        async with await memcore.aio.open(path, warm=address, ship="sync") as db:

            async def write(n: int) -> None:
                session = db.session(f"s{n}")
                for k in range(5):
                    await session.append({"role": "user", "content": f"{k}"})
                    held.append(len(in_copy(sql, address)))

            held: list[int] = []
            await asyncio.gather(*(write(n) for n in range(4)))
            assert held == sorted(held)
            with pytest.raises(memcore.OrphanResultError):
                await db.session("s0").append(
                    {"role": "tool", "tool_call_id": "none", "content": "x"}
                )

    asyncio.run(run())
    memcore.promote(address)
    with memcore.open(address) as db:
        assert [len(texts(db.session(f"s{n}"))) for n in range(4)] == [5] * 4


def test_a_synchronous_commit_that_cannot_be_shipped(path, address, monkeypatch):
    """It is stored, and says so; repeated under its key it is the same one, and waits, too."""
    monkeypatch.setattr(warm, "SYNC_SECONDS", 0.2)
    away, ship = [], copies.WarmTarget.ship

    def shipped(*args):
        if away:
            raise StorageError("the server is away")
        ship(*args)

    monkeypatch.setattr(copies.WarmTarget, "ship", shipped)
    message = {"role": "user", "content": "once"}
    with memcore.open(path, warm=address, ship="sync") as db:
        session = db.session("s")
        say(session, "x")
        away.append(1)
        for _ in range(2):
            with pytest.raises(UnshippedError, match="the server is away"):
                session.append(message, idempotency_key="k")
        assert texts(session) == ["x", "once"]

        async def run() -> None:
            async with await memcore.aio.open(path, warm=address, ship="sync") as other:
                with pytest.raises(UnshippedError):
                    await other.session("s").append(message, idempotency_key="k")

        asyncio.run(run())
        away.clear()
        receipt = session.append(message, idempotency_key="k")
        assert receipt.seq == 2
        assert texts(session) == ["x", "once"]


def test_a_synchronous_commit_behind_a_promotion(path, address):
    with memcore.open(path, warm=address, ship="sync") as db:
        say(db.session("s"), "x")
        memcore.promote(address)
        with pytest.raises(SupersededError, match="was promoted"):
            say(db.session("s"), "y")
    with memcore.open(address) as db:
        assert texts(db.session("s")) == ["x"]


def test_a_synchronous_commit_behind_the_end_of_its_copy(path, address):
    """As where another thread closes the database: the item is stored, and that is said."""
    with memcore.open(path, warm=address, ship="sync") as db:
        say(db.session("s"), "x")
        db._warm.close()
        with pytest.raises(UnshippedError, match="is in the file"):
            say(db.session("s"), "y")
        assert texts(db.session("s")) == ["x", "y"]


def test_what_is_no_way_to_ship(path, address):
    with pytest.raises(InvalidOptionError, match="expected 'async' or 'sync'"):
        memcore.open(path, warm=address, ship="soon")
    with pytest.raises(InvalidOptionError, match="there is no warm copy"):
        memcore.open(path, ship="sync")


# --- one file, one copy ---------------------------------------------------------------------------


def test_a_promotion_ends_writing_to_the_file(path, address):
    with memcore.open(path, warm=address) as db, memcore.open(path) as other:
        session = db.session("s")
        say(session, "x")
        db.ship()
        memcore.promote(address)
        with pytest.raises(SupersededError, match="was promoted"):
            db.ship()
        for handle in (session, other.session("s"), db.session("new")):
            with pytest.raises(SupersededError, match="was promoted"):
                say(handle, "y")
        assert texts(session) == ["x"]
        status = db.warm_status()
        assert status is not None
        assert status.state == "superseded"
        again = memcore.promote(address)  # as after an answer that was lost
        assert again == memcore.promote(address, dry_run=True)
        assert not again.is_pending
    with pytest.raises(SupersededError, match="the store is there now"):
        memcore.open(path, warm=address)
    with memcore.open(path) as db:  # without the copy, it is the user's own decision
        say(db.session("s"), "y")


def test_an_idle_file_learns_of_a_promotion(path, address):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.ship()
        memcore.promote(address)
        eventually(lambda: db.warm_status().state == "superseded")
        with pytest.raises(SupersededError):
            say(db.session("s"), "y")


def test_a_restored_file_does_not_take_its_copy_back(path, address, tmp_path, sql):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.backup(tmp_path / "backup")
        say(db.session("s"), "y")
    held = in_copy(sql, address)
    memcore.restore(tmp_path / "backup", path, replace=True)
    with pytest.raises(SupersededError, match="Promote it to keep it"):
        memcore.open(path, warm=address)
    assert in_copy(sql, address) == held
    memcore.promote(address)
    with memcore.open(address) as db:
        assert texts(db.session("s")) == ["x", "y"]


def test_a_twin_of_a_file_does_not_take_its_copy_back(path, address, tmp_path, sql):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
    shutil.copy(path, tmp_path / "twin")
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "y")
    with pytest.raises(SupersededError, match="follows another file"):
        memcore.open(tmp_path / "twin", warm=address)
    with memcore.open(path, warm=address) as db:
        db.ship()
        assert in_copy(sql, address) == in_file(db)


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_file_that_went_back_does_not_take_its_copy_back(
    path, address, tmp_path, sql, durability
):
    """As by a snapshot of its volume, with the very mark that the copy has."""
    with memcore.open(path, durability=durability, warm=address) as db:
        say(db.session("s"), "x")
        db.flush()
        db.ship()
        shutil.copy(path, tmp_path / "then")
        say(db.session("s"), "y")
        db.ship()
        held = in_copy(sql, address)
    os.replace(tmp_path / "then", path)
    with pytest.raises(SupersededError, match="another history"):
        memcore.open(path, warm=address)
    assert in_copy(sql, address) == held


def test_a_compacted_file_goes_on_with_its_copy(path, address, sql):
    """The numbers of its commits begin anew."""
    with memcore.open(path, warm=address) as db:
        for n in range(30):
            say(db.session("s"), f"{n}")
        db.ship()
        before = db._warm._shipped
        db.copy_compact()
        db.ship()
        assert db._warm._shipped > before
        assert in_copy(sql, address) == in_file(db)
    with memcore.open(path) as db:
        db.copy_compact(durability="relaxed")
        say(db.session("s"), "more")
    with memcore.open(path, warm=address) as db:
        db.ship()
        assert in_copy(sql, address) == in_file(db)


def test_what_is_shipped_is_on_the_files_device_before(path, address, monkeypatch):
    """Else a power cut would leave the file behind its copy."""
    order = []
    real, durable = copies.WarmTarget.ship, LmdbStore.make_durable
    monkeypatch.setattr(
        copies.WarmTarget, "ship", lambda *args: (order.append("ship"), real(*args))[1]
    )
    monkeypatch.setattr(
        LmdbStore, "make_durable", lambda self: (durable(self), order.append("durable"))[0]
    )
    with memcore.open(path, durability="relaxed", warm=address) as db:
        for n in range(5):
            say(db.session("s"), f"{n}")
            db.ship()
    at = [n for n, what in enumerate(order) if what == "ship"]
    assert len(at) > 4
    assert all(order[n - 1] == "durable" for n in at)


def test_a_full_device_takes_the_pages_that_the_copy_keeps(path, address, monkeypatch):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.ship()
        monkeypatch.setattr(warm.WarmCopy, "_round", lambda *_: True)
        db.ship()  # no round is under way any more
        env, feed = db._engine.store.environment(), db._warm._feed
        assert feed.base is not None
        full = StoreFullError("no space")
        for is_freed in (True, False):
            found = env.queue.call(lambda _: env.leader._can_free(full, hurried=False), job=True)
            assert found == is_freed
            assert feed.base is None
        monkeypatch.undo()
        say(db.session("s"), "y")
        db.ship()


def test_an_audit_that_begins_later_ends_the_copy(path, address):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.ship()
        with memcore.open(path, audit=memcore.Audit(key=b"k" * 32)) as audited:
            say(audited.session("s"), "y")
            with pytest.raises(StorageError, match="is audited now"):
                db.ship(timeout_seconds=0.5)
    memcore.promote(address)
    with memcore.open(address) as db:
        assert texts(db.session("s")) == ["x"]


def test_waiting_inside_a_transaction_is_refused(path, address):
    with memcore.open(path, warm=address) as db:
        store = db._engine.store
        for within in (store.transact, store.read):
            with pytest.raises(InternalError, match="inside a transaction"):
                within(lambda _: db.ship())


def test_what_cannot_have_a_copy(path, tmp_path, address, server, sql):
    with memcore.open(path) as db:
        say(db.session("s"), "x")
    with pytest.raises(InvalidOptionError, match="only a file on disk"):
        memcore.open(":memory:", warm=address)
    with pytest.raises(InvalidOptionError, match="warm: only a file has it"):
        memcore.open(address, warm=address)
    with pytest.raises(ReadOnlyError, match="its writers ship"):
        memcore.open(path, read_only=True, warm=address)
    with pytest.raises(InvalidOptionError, match="expected the address"):
        memcore.open(path, warm="agent.warm")
    with pytest.raises(InvalidOptionError, match="encrypted or audited"):
        memcore.open(tmp_path / "sealed", key=b"k" * 32, warm=address)
    with pytest.raises(InvalidOptionError, match="encrypted or audited"):
        memcore.open(tmp_path / "audited", audit=memcore.Audit(key=b"k" * 32), warm=address)
    other = server.address(f"warm{next(_numbers)}")
    memcore.open(other).close()
    with pytest.raises(InvalidOptionError, match="holds a store; name a schema"):
        memcore.open(path, warm=other)
    with memcore.open(tmp_path / "second", warm=address) as db:
        db.ship()
    with pytest.raises(InvalidOptionError, match="holds the copy of another store"):
        memcore.open(path, warm=address)
    with memcore.open(path) as db:
        assert db.check() == []


def test_a_store_that_a_copy_was_made_of_is_no_warm_copy(path, address):
    with memcore.open(path) as db:
        say(db.session("s"), "x")
    memcore.copy_store(path, address)
    with pytest.raises(InvalidOptionError, match="holds a store; name a schema"):
        memcore.open(path, warm=address)


def test_nobody_opens_or_fills_a_warm_copy(path, address):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
    with pytest.raises(StoreAccessError, match="memcore promote"):
        memcore.open(address)
    with pytest.raises(InvalidOptionError, match="is the warm copy of a file"):
        memcore.copy_store(path, address)


def test_promoting_what_is_none(path, address, server):
    with pytest.raises(NotFoundError):
        memcore.promote(address)
    with pytest.raises(InvalidOptionError, match="on a server"):
        memcore.promote("agent.memcore")
    memcore.open(address).close()
    with pytest.raises(InvalidOptionError, match="is a store of its own"):
        memcore.promote(address)


def test_copies_and_salvage_leave_the_marks_out(path, address, tmp_path):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        assert db._engine.store.read(lambda txn: txn.get(WARM_KEY))
        assert db.check() == []
        db.backup(tmp_path / "backup")
    memcore.salvage(path, tmp_path / "salvaged")
    for name in ("backup", "salvaged"):
        with memcore.open(tmp_path / name) as db:
            value = db._engine.store.read(lambda txn: txn.get(WARM_KEY))
            assert value is None or not any(value[-32:])
            assert db.check() == []


# --- what fails -----------------------------------------------------------------------------------


def test_a_server_that_is_away_is_tried_again(path, server, caplog):
    address = server.address(f"warm{next(_numbers)}")
    server.stop()
    try:
        with caplog.at_level(logging.WARNING), memcore.open(path, warm=address) as db:
            say(db.session("s"), "x")
            status = db.warm_status()
            assert status is not None
            assert status.state == "failing"
            assert "cannot be reached" in (status.error or "")
            with pytest.raises(StorageError, match="is shipped later"):
                db.ship(timeout_seconds=0.1)
            server.start()
            db.ship()
            server.stop(crash=True)
            say(db.session("s"), "y")
            server.start()
            db.ship()
            held = in_file(db)
    finally:
        if server.running.poll() is not None:
            server.start()
    assert sum("not up to date" in each.message for each in caplog.records) in (1, 2)
    with psycopg.connect(server.dsn) as sql:
        assert in_copy(sql, address) == held


def test_who_waits_for_a_server_that_is_away_does_not_hurry_it(path, address, monkeypatch):
    tries = []

    def refused(*_):
        tries.append(1)
        raise StoreAccessError("away")

    monkeypatch.setattr(warm, "PAUSE_SECONDS_MAX", 60.0)
    monkeypatch.setattr(warm, "INTERVAL_SECONDS", 60.0)
    monkeypatch.setattr(warm, "CLOSING_SECONDS", 0.01)
    monkeypatch.setattr(copies.WarmTarget, "connect", refused)
    with memcore.open(path, warm=address) as db, pytest.raises(StorageError, match="away"):
        db.ship(timeout_seconds=0.3)
    assert len(tries) < 8


def test_a_receipt_of_an_erasure_names_the_copy(path, address):
    with memcore.open(path) as db:
        say(db.session("s", user="ann"), "x")
        assert not any("warm copy" in each for each in db.erase(user="ann").out_of_reach)
    with memcore.open(path, warm=address) as db:
        say(db.session("s", user="ann"), "x")
        assert any("warm copy" in each for each in db.erase(user="ann").out_of_reach)


def test_a_shipment_whose_answer_is_lost(path, address, sql, monkeypatch):
    """Whether it was stored or not: what comes next is compared with all."""
    put_mark, lose = copies.WarmTarget._put_mark, []
    with memcore.open(path, warm=address) as db:
        session = db.session("s")
        say(session, "x")
        db.ship()

        def lost(target, connection, mark):
            put_mark(target, connection, mark)
            if lose:
                if lose.pop() == "after":
                    connection.execute("commit")
                connection.execute("select pg_terminate_backend(pg_backend_pid())")

        monkeypatch.setattr(copies.WarmTarget, "_put_mark", lost)
        for when in ("after", "before"):
            lose.append(when)
            say(session, when)
            db.ship()
            assert not lose
            assert in_copy(sql, address) == in_file(db)
        say(session, "z")
        db.ship()
        assert in_copy(sql, address) == in_file(db)


def test_a_first_filling_that_is_cut_short(path, address, sql, monkeypatch):
    replace, left = copies.Filling.replace, [2]
    monkeypatch.setattr(changes, "_BATCH_ROWS", 50)

    def failing(made, *args):
        left[0] -= 1
        if left[0] <= 0:
            raise StorageError("cut short")
        return replace(made, *args)

    with memcore.open(path) as db:
        fill(db)
    with monkeypatch.context() as patch:
        patch.setattr(copies.Filling, "replace", failing)
        patch.setattr(warm, "INTERVAL_SECONDS", 60.0)
        patch.setattr(warm, "PAUSE_SECONDS_MAX", 60.0)
        patch.setattr(warm, "CLOSING_SECONDS", 0.01)
        with memcore.open(path, warm=address) as db:
            with pytest.raises(StorageError):
                db.ship(timeout_seconds=0.2)
            assert db.warm_status().current_at is None
            assert db.warm_status().behind is None
        with pytest.raises(InvalidOptionError, match="sessions are missing"):
            memcore.promote(address)
    with memcore.open(path, warm=address) as db:
        db.ship()
        assert in_copy(sql, address) == in_file(db)


def test_what_somebody_changed_on_the_server_is_mended_when_it_is_compared(path, address, sql):
    with memcore.open(path, warm=address) as db:
        fill(db)
    name = address.partition("#")[2]
    some = f"select k from {name}.rows where k > '\\x05' limit 9"
    sql.execute(f"delete from {name}.rows where k in ({some})")
    last = f"select k from {name}.rows order by k desc limit 1"
    sql.execute(f"update {name}.rows set v = '\\x00' where k = ({last})")
    sql.execute(f"insert into {name}.rows values ('\\x0377', 'x')")
    with memcore.open(path, warm=address) as db:
        db.ship()
        assert in_copy(sql, address) == in_file(db)


def test_a_copy_that_is_long_away_does_not_keep_the_pages(path, address, monkeypatch):
    monkeypatch.setattr(warm, "PIN_SECONDS_MAX", 0.0)
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.ship()
        copy = db._warm
        assert copy is not None
        monkeypatch.setattr(
            copies.WarmTarget, "ship", lambda *_: (_ for _ in ()).throw(StorageError("away"))
        )
        say(db.session("s"), "y")
        eventually(lambda: copy._feed.base is None)
        monkeypatch.undo()


def test_a_dropped_handle_ends_its_thread(path, address):
    db = memcore.open(path, warm=address)
    say(db.session("s"), "x")
    db.ship()
    thread = db._warm._thread
    del db
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    with memcore.open(path, warm=address) as db:
        db.ship()


# --- several processes ----------------------------------------------------------------------------

CHILD = """
import sys
import memcore

db = memcore.open(sys.argv[1], warm=sys.argv[2])
for line in sys.stdin:
    db.session("s").append({"role": "user", "content": line.strip()})
    db.ship()
    print("shipped", flush=True)
db.close()
"""


def start(path: Path, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, path, address],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def tell(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()
    assert child.stdout.readline() == "shipped\n"


def test_one_process_ships_for_all_and_another_takes_over(path, address, sql):
    with memcore.open(path, warm=address) as db:
        db.ship()
        first, second = start(path, address), start(path, address)
        try:
            tell(first, "a")  # which this process ships
            tell(second, "b")
            assert in_copy(sql, address) == in_file(db)
        finally:
            first.kill()
            first.wait()
    try:
        tell(second, "c")
        with memcore.open(path, warm=address) as db:
            assert db.warm_status().state == "waiting"
            say(db.session("s"), "d")
            db.ship()
            assert in_copy(sql, address) == in_file(db)
            second.kill()
            second.wait()
            say(db.session("s"), "e")
            db.ship()
            assert in_copy(sql, address) == in_file(db)
            assert texts(db.session("s")) == ["a", "b", "c", "d", "e"]
    finally:
        for child in (first, second):
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                pipe.close()


def test_one_that_waits_is_not_kept_waiting_by_those_who_write(path, address):
    """What it waits for is what was committed when it asked, and not what comes behind."""
    with memcore.open(path, warm=address) as db, memcore.open(path, warm=address) as waiting:
        assert waiting.warm_status().state == "waiting"
        ended = threading.Event()

        def write() -> None:
            while not ended.is_set():
                say(db.session("busy"), "x" * 200)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for n in range(3):
                say(waiting.session("s"), f"{n}")
                waiting.ship(timeout_seconds=10)
        finally:
            ended.set()
            writer.join()
        db.ship()
    memcore.promote(address)
    with memcore.open(address) as db:
        assert texts(db.session("s")) == ["0", "1", "2"]


def test_two_that_take_over_at_once(path, address, monkeypatch):
    """One of them loses its lock before it has left its mark, and the other one takes over."""
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
    take_over, others = warm.WarmCopy._take_over, []

    def late(copy, store, row, before):
        if not others:
            others.append(1)
            copy._target.disconnect()  # as by a server that restarts
            with memcore.open(path, warm=address) as other:
                say(other.session("s"), "y")
        return take_over(copy, store, row, before)

    monkeypatch.setattr(warm.WarmCopy, "_take_over", late)
    with memcore.open(path, warm=address) as db:
        db.ship()
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "z")
        db.ship()
    memcore.promote(address)
    with memcore.open(address) as db:
        assert texts(db.session("s")) == ["x", "y", "z"]


def test_a_file_that_went_back_and_goes_on_while_the_server_is_away(
    path, address, tmp_path, monkeypatch
):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
        db.ship()
        shutil.copy(path, tmp_path / "then")
        for _ in range(3):
            say(db.session("s"), "lost with the file")
    os.replace(tmp_path / "then", path)
    connect, away = copies.WarmTarget.connect, [1]

    def refused(*args):
        if away:
            raise StoreAccessError("away")
        connect(*args)

    monkeypatch.setattr(copies.WarmTarget, "connect", refused)
    with memcore.open(path, warm=address) as db:
        for _ in range(9):
            say(db.session("s"), "another history")
        away.clear()
        with pytest.raises(SupersededError, match="another history"):
            db.ship()
    memcore.promote(address)
    with memcore.open(address) as db:
        assert "lost with the file" in texts(db.session("s"))


def test_an_audit_leaves_the_marks_out(path, address, tmp_path):
    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
    with memcore.open(path, audit=memcore.Audit(key=b"k" * 32)) as db:
        db.copy_compact()
        db.backup(tmp_path / "backup")
        assert db.verify_audit().ok
    with memcore.open(tmp_path / "backup", audit=memcore.Audit(key=b"k" * 32)) as db:
        assert db.verify_audit().ok


@pytest.mark.parametrize("ship", ["async", "sync"])
def test_the_child_of_a_fork_does_not_ship(path, address, sql, ship):
    with memcore.open(path, warm=address, ship=ship) as db:
        say(db.session("s"), "x")
        db.ship()
        child = os.fork()
        if not child:
            code = 1
            try:
                try:
                    say(db.session("s"), "child")
                except UnshippedError:
                    assert ship == "sync"
                try:
                    db.ship()
                except InvalidOptionError:
                    db.close()
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        db.ship()
        assert texts(db.session("s")) == ["x", "child"]
        assert in_copy(sql, address) == in_file(db)


def test_threads_that_wait_together(path, address, sql):
    with memcore.open(path, warm=address) as db:

        def run(n: int) -> None:
            for k in range(20):
                say(db.session(f"s{n}"), f"{k}")
                db.ship()
                done.append((n, k))

        done: list[tuple[int, int]] = []
        threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 120
        assert in_copy(sql, address) == in_file(db)
    with pytest.raises(ClosedError):
        db.ship()
    db.close()  # a second time


# --- the command line -----------------------------------------------------------------------------


def test_the_command_line(path, address):
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "memcore", *args], capture_output=True, text=True, check=False
        )

    with memcore.open(path, warm=address) as db:
        say(db.session("s"), "x")
    assert run("promote", address).returncode == 6
    shown = run("promote", address, "--dry-run", "--json")
    assert json.loads(shown.stdout)["is_pending"] is True
    assert "is a warm copy" in run("promote", address, "--dry-run").stdout
    assert run("ls", "--store", address).returncode == 7
    assert "is a store of its own now" in run("promote", address, "--yes").stdout
    assert "s" in run("ls", "--store", address).stdout
    assert run("promote", address, "--yes").returncode == 0  # it is one
