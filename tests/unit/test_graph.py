"""The graph store by itself: threads, versions, epochs, deletions, checks; no graph runtime."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from threaded import (
    CODER,
    Sealing,
    Thread,
    half_deleted,
    keep,
    pruning,
    rows_under,
    texts,
)

import memcore
from memcore.codec import keys
from memcore.codec.keys import Kind, ThreadRow
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.graph import MISSING, GraphStore, NewCheckpoint, NewWrites
from memcore.graph.rows import chunk_key, read_pool, write_pool
from memcore.maintenance.check import Damage, damage_of
from memcore.store.interface import Stale, Txn

LARGE = 60_000


@pytest.fixture
def graph(db: memcore.Database) -> GraphStore:
    return db.scope().graph


# --- threads --------------------------------------------------------------------------------------


NAMES = ["", "a", "a\0", "\u6771\u4eac", "\ud800", "n" * 700, "n" * 701]


def test_threads_of_any_name_are_apart(db: memcore.Database) -> None:
    scopes = [db.scope(), db.scope(user="u2"), db.scope(app="a2")]
    for number, scope in enumerate(scopes):
        for name in NAMES:
            Thread(scope.graph, name).put(messages=[name, number], only=name)
            Thread(scope.graph, name, namespace=name or "sub").put(messages=[number])

    for number, scope in enumerate(scopes):
        graph = scope.graph
        assert {entry.thread for entry in graph.threads()} == set(NAMES)
        for name in NAMES:
            assert Thread(graph, name).read() == {"messages": [name, number], "only": name}
            sub = Thread(graph, name, namespace=name or "sub")
            if name:
                assert sub.read() == {"messages": [number]}
    assert scopes[0].graph.delete_thread("n" * 700, CODER)
    assert Thread(scopes[0].graph, "n" * 700).read() is None
    assert Thread(scopes[0].graph, "n" * 701).read() is not None
    assert Thread(scopes[1].graph, "n" * 700).read() is not None


def test_versions_that_are_no_number_and_channels_that_are_empty(graph: GraphStore) -> None:
    for version in (1, 2.5, "3.x", "s", -4):
        new = NewCheckpoint(
            f"c{version}",
            None,
            {"channel_versions": {"a": version, "b": version, "gone": 99}},
            {},
            {"a": (version, [version]), "b": (version, MISSING)},
        )
        graph.put("t", "", new, CODER)
    for version in (1, 2.5, "3.x", "s", -4):
        found = graph.get("t", "", f"c{version}", CODER)
        assert found is not None
        assert found.values == {"a": [version]}


def test_a_version_that_is_put_again_is_another_value(graph: GraphStore) -> None:
    one = Thread(graph, "t")
    one.put(messages=texts(40))
    new = NewCheckpoint("c000001", None, {"channel_versions": {"messages": 1}}, {},
                        {"messages": (1, texts(3, what="other"))})  # fmt: skip
    graph.put("t", "", new, CODER)

    assert one.read() == {"messages": texts(3, what="other")}


# --- copies ---------------------------------------------------------------------------------------


def test_a_copy_takes_the_place_of_a_thread_that_has_only_writes(
    graph: GraphStore, db: memcore.Database
) -> None:
    one = Thread(graph, "one")
    one.put(messages=texts(50))
    graph.put_writes("two", "", NewWrites("c1", "t", "", [(0, "messages", texts(40))]), CODER)

    assert graph.copy_thread("one", "two")

    assert Thread(graph, "two").read() == {"messages": texts(50)}
    assert db.check() == []
    with pytest.raises(InvalidOptionError, match="has checkpoints already"):
        graph.copy_thread("one", "two")
    graph.delete_thread("one", CODER)
    assert Thread(graph, "two").read() == {"messages": texts(50)}


def test_threads_that_share_values_go_one_by_one(graph: GraphStore, db: memcore.Database) -> None:
    one = Thread(graph, "one")
    one.put(messages=texts(60))
    graph.copy_thread("one", "two")
    graph.copy_thread("two", "three")
    Thread(graph, "two").put(own=texts(30, what="two"))
    stored = len(rows_under(db, Kind.CHUNK))

    graph.delete_thread("two", CODER)

    assert len(rows_under(db, Kind.CHUNK)) < stored
    assert Thread(graph, "three").read() == one.read() == {"messages": texts(60)}
    assert db.check() == []
    graph.delete_thread("one", CODER)
    graph.delete_thread("three", CODER)
    assert rows_under(db, Kind.CHUNK) == rows_under(db, Kind.THREAD) == []


# --- epochs ---------------------------------------------------------------------------------------


def finish(steps: Any, db: memcore.Database, closure: Any = None) -> int:
    """Take steps as ``take`` does, from a closure that they gave on; how many commits."""
    store, commits = db._engine.store, 0
    try:
        closure = closure or next(steps)
        while True:
            try:
                done = store.transact(closure)
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                commits += 1
                closure = steps.send(done)
    except StopIteration:
        return commits


def test_a_put_that_was_prepared_before_a_prune_is_prepared_again(
    graph: GraphStore, db: memcore.Database
) -> None:
    one = Thread(graph, "t")
    one.put(messages=texts(80, what="old"))
    one.put(messages=texts(5))

    # Prepared, it refers to parts that nothing else refers to any more when it is stored.
    new = one.new({"messages": texts(80, what="old")})
    steps = graph.plan_put("t", "", new, CODER)
    closure = next(steps)
    db.scope().graph.prune("t", keep(1), CODER)
    finish(steps, db, closure)

    assert one.read() == {"messages": texts(80, what="old")}
    assert db.check() == []


def test_a_base_never_refers_to_what_was_swept(graph: GraphStore, db: memcore.Database) -> None:
    one = Thread(graph, "t")
    one.put(messages=texts(80))
    one.put(messages=[])
    graph.prune("t", keep(1), CODER)

    one.put(messages=texts(80))

    assert one.read() == {"messages": texts(80)}
    assert db.check() == []


def test_a_checkpoint_that_is_replaced_while_a_prune_goes_on_keeps_its_values(
    graph: GraphStore, db: memcore.Database
) -> None:
    one = Thread(graph, "t")
    one.put(messages=texts(30), other=1)
    one.put(messages=texts(31))
    one.put(messages=texts(32), other=3)
    steps = pruning(graph)
    store = db._engine.store
    closure = steps.send(store.transact(next(steps)))  # the checkpoints went, the values are next
    again = NewCheckpoint("c000003", "c000002", {"channel_versions": {"messages": 1}}, {},
                          {"messages": (1, texts(33))})  # fmt: skip
    db.scope().graph.put("t", "", again, CODER)

    finish(steps, db, closure)

    assert one.read() == {"messages": texts(33)}
    assert db.check() == []


def test_a_prune_goes_in_pieces(graph: GraphStore, db: memcore.Database) -> None:
    for number in range(6):
        new = NewCheckpoint(f"c{number}", None, {}, {"pad": "m" * 500_000}, {})
        graph.put("t", "", new, CODER)
        writes = [(at, "n", at) for at in range(9)]
        graph.put_writes("t", "", NewWrites(f"c{number}", "task", "", writes), CODER)

    commits = finish(pruning(graph), db)

    assert commits >= 3  # two for checkpoints, one to end the sweep
    (found,) = graph.checkpoints("t", "", CODER)
    assert len(found.writes) == 9


def test_a_part_that_was_damaged_is_stored_anew_by_the_next_put(
    open_db: Callable[..., memcore.Database],
) -> None:
    db = open_db()
    one = Thread(db.scope().graph, "t")
    one.put(messages=["x" * 300])
    (key,) = [key for key in rows_under(db, Kind.CHUNK) if len(key) > 17]
    db._engine.store.transact(lambda txn: txn.put(key, b"\1\0" + bytes(40)))
    db.close()
    db = open_db()
    assert db.check() != []

    fresh = Thread(db.scope().graph, "t")
    fresh.step, fresh.parent = 1, "c000001"
    fresh.put(messages=["x" * 300])

    assert fresh.read() == {"messages": ["x" * 300]}
    assert db.check() == []


# --- large values ---------------------------------------------------------------------------------


def test_large_values_are_staged(graph: GraphStore, db: memcore.Database) -> None:
    one = Thread(graph, "t")
    value = {
        "blob": Random(1).randbytes(4_000_000),
        "texts": texts(9, size=LARGE),
        "deep": [[texts(5)] * 5] * 5,
    }
    steps = graph.plan_put("t", "", one.new({"big": value}), CODER)
    closure = next(steps)
    for _ in range(3):
        closure = steps.send(db._engine.store.transact(closure))
        assert db.check() == []

    assert one.read() is None
    assert finish(steps, db, closure) >= 1
    assert one.read() == {"big": value}


# --- deletions that were cut short ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["opening", "session", "thread"])
def test_a_deletion_that_was_cut_short_is_gone_on_with(
    how: str, open_db: Callable[..., memcore.Database]
) -> None:
    db = open_db()
    half_deleted(db)
    assert db.check() == []
    if how == "opening":
        db.close()
        db = open_db()
    elif how == "session":
        db.delete_session("none")
    else:
        Thread(db.scope().graph, "u").put(n=1)
        db.scope().graph.delete_thread("u", CODER)

    for kind in (Kind.REMOVAL, Kind.CHUNK, Kind.THREAD):
        assert rows_under(db, kind) == []


def test_a_mark_of_removal_harms_nothing_that_is_in_use(
    open_db: Callable[..., memcore.Database],
) -> None:
    db = open_db()
    one = Thread(db.scope().graph, "t")
    one.put(messages=texts(20))
    marks = []
    for kind in (Kind.THREAD, Kind.CHUNK):
        prefix = rows_under(db, kind)[0][:17]
        marks.append(keys.removal_row(prefix))
    for row in marks:
        db._engine.store.transact(lambda txn, row=row: txn.put(row, seal_value(row, b"")))

    assert [what for what in db.check() if "listed for removal, but in use" in what] == db.check()
    assert len(db.check()) == 2
    db.delete_session("none")
    db.scope().graph.delete_thread("none", CODER)
    assert one.read() == {"messages": texts(20)}
    for row in marks:
        db._engine.store.transact(lambda txn, row=row: txn.delete(row))


# --- other processes ------------------------------------------------------------------------------

OTHER = """
import sys, memcore
sys.path.insert(0, sys.argv[2])
from threaded import CODER, Thread, keep, texts
with memcore.open(sys.argv[1]) as db:
    graph = db.scope().graph
    for word in sys.argv[3:]:
        if word == "prune":
            graph.prune("t", keep(1), CODER)
        elif word == "delete":
            graph.delete_thread("t", CODER)
        elif word == "copy":
            graph.copy_thread("t", "twin")
        elif word == "drop":
            graph.delete_thread("twin", CODER)
        elif word == "make":
            Thread(graph, "t").put(messages=texts(10, what="new"))
"""


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (["prune"], True),
        (["delete"], False),
        (["delete", "make"], True),
        (["copy", "delete", "make", "drop"], True),
    ],
)
def test_a_handle_with_a_stale_cache(
    words: list[str], there: bool, graph: GraphStore, db: memcore.Database
) -> None:
    one = Thread(graph, "t")
    one.put(messages=texts(80))
    one.put(messages=texts(60))
    one.put(messages=texts(7))
    assert one.read() is not None
    command = [sys.executable, "-c", OTHER, db.path, str(Path(__file__).parents[1]), *words]
    subprocess.run(command, check=True, timeout=60)

    assert (one.read() is not None) is there
    one.put(messages=texts(80))

    assert one.read() == {"messages": texts(80)}
    assert db.check() == []
    if "make" in words:
        assert one.read("c000001") == {"messages": texts(10, what="new")}


# --- check ----------------------------------------------------------------------------------------


def keys_of(db: memcore.Database, row: int) -> list[bytes]:
    return [key for key in rows_under(db, Kind.THREAD) if key[17] == row]


def chunk_keys(db: memcore.Database) -> list[bytes]:
    return [key for key in rows_under(db, Kind.CHUNK) if len(key) > 17]


def lose(key: bytes) -> Callable[[Txn], object]:
    return lambda txn: txn.delete(key)


def rewritten(key: bytes, body: bytes) -> Callable[[Txn], object]:
    return lambda txn: txn.put(key, seal_value(key, body))


def counted_wrong(txn: Txn) -> None:
    row = read_pool(txn, 1, 1)
    assert row is not None
    write_pool(txn, 1, 1, type(row)(row.epoch, 7, row.sweeping, row.key))


FOREIGN = keys.name_key(keys.graph_rows(1, 1, ThreadRow.VALUE, 99), "channel", "n1")
DAMAGE: dict[str, tuple[Callable[[memcore.Database], Callable[[Txn], object]], str]] = {
    "a chunk": (lambda db: lose(chunk_keys(db)[3]), r"the chunk [0-9a-f]+ of a checkpoint is miss"),
    "all chunks": (lambda db: lambda txn: txn.delete_range(chunk_keys(db)[0], b"\x11"), "missing"),
    "the pool": (lambda db: lose(keys.chunk_prefix(1, 1)), "the pool 1 of .* is missing"),
    "the count": (lambda db: counted_wrong, "has 1 thread, its row says 7"),
    "the head": (lambda db: lose(keys_of(db, ThreadRow.HEAD)[0]), "the head of thread 1 is miss"),
    "the name": (lambda db: lose(rows_under(db, Kind.THREAD_NAME)[0]), "rows but no name"),
    "the rows": (
        lambda db: lambda txn: txn.delete_range(keys.thread_prefix(1, 1), bytes((Kind.CHUNK,))),
        "thread 't': its head is missing",
    ),
    "the namespace": (lambda db: lose(keys_of(db, ThreadRow.NAMESPACE)[0]), "that has no name"),
    "a manifest": (
        lambda db: rewritten(keys_of(db, ThreadRow.VALUE)[0], b"\x04node\x0a"), "is malformed",
    ),
    "a sort": (lambda db: rewritten(keys_of(db, ThreadRow.VALUE)[0], b"\x04page"), "not 'node'"),
    "a checkpoint": (lambda db: rewritten(keys_of(db, ThreadRow.CHECKPOINT)[0], b"\0"), "malforme"),
    "writes": (lambda db: rewritten(keys_of(db, ThreadRow.WRITES)[0], b"\x06writes\5"), "malform"),
    "a foreign row": (lambda db: rewritten(FOREIGN, b"\x04node\0"), "namespace 99 that has no"),
    "a stray row": (lambda db: rewritten(keys.thread_rows(1, 1, 9), b""), "of no sort"),
    "a later chunk": (
        lambda db: rewritten(chunk_keys(db)[0], b"\0\0\0\x09\4json1"), "is no chunk of it",
    ),
    "a page": (
        lambda db: rewritten(
            keys_of(db, ThreadRow.VALUE)[0],
            b"\x04node\x03\x11\x06" + chunk_keys(db)[0][17:],
        ),
        "named as a page",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_check_tells_of(what: str, path: Path) -> None:
    change, told = DAMAGE[what]
    with memcore.open(path) as db:
        graph = db.scope().graph
        one = Thread(graph, "t")
        one.put(messages=texts(30), flag=True)
        graph.put_writes("t", "", NewWrites("c000001", "t", "", [(0, "w", texts(2))]), CODER)
        assert db.check() == []

        db._engine.store.transact(change(db))

        findings = db.check()
        assert any(re.search(told, finding) for finding in findings), findings
        assert all("'t'" in f or "of scope 1" in f or "pool" in f for f in findings)
        assert {damage_of(f) for f in findings} <= {Damage.THREAD, Damage.NAME}


def test_a_page_that_names_itself_is_refused(path: Path) -> None:
    with memcore.open(path) as db:
        one = Thread(db.scope().graph, "t")
        one.put(messages=texts(3))
        part = b"p" * 16
        page = chunk_key(1, 1, part)
        value = keys_of(db, ThreadRow.VALUE)[0]
        named = b"\x06" + part

        def write(txn: Txn) -> None:
            txn.put(page, seal_value(page, b"\0\0\0\1\4page" + named + named))
            txn.put(value, seal_value(value, b"\x04node\x03\x11" + named))

        db._engine.store.transact(write)
        with pytest.raises(CorruptValueError, match="runs into itself"):
            one.read()
        assert db.check() == []  # every row is there and whole; it is the reader who refuses
        assert one.graph.delete_thread("t", CODER)


def test_what_another_cipher_wrote_is_checked_as_far_as_it_can_be(path: Path) -> None:
    with memcore.open(path) as db:
        graph = db.scope().graph
        new = NewCheckpoint("c1", None, {"channel_versions": {"m": 1}}, {}, {"m": (1, texts(20))})
        graph.put("t", "", new, Sealing())
        assert db.check() == []

        db._engine.store.transact(lose(keys_of(db, ThreadRow.NAMESPACE)[0]))

        assert any("that has no name" in what for what in db.check())
