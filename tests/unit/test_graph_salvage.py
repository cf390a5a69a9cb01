"""Threads of graphs in copies of the file, and in what is saved of a damaged one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from threaded import CODER, Sealing, Thread, half_deleted, keep, rows_under, texts

import memcore
from memcore.codec import keys
from memcore.codec.keys import Kind, ThreadRow
from memcore.errors import CorruptValueError
from memcore.graph import NewWrites
from memcore.maintenance.salvage import salvage
from memcore.store.interface import Txn


def fill(db: memcore.Database) -> None:
    """Two threads that share values, one with a second namespace and writes, one elsewhere."""
    graph = db.scope().graph
    one = Thread(graph, "one")
    one.put(messages=texts(40, size=900), flag=1)
    one.put(messages=texts(41, size=900))
    graph.copy_thread("one", "two")
    Thread(graph, "one", namespace="sub").put(messages=texts(3))
    graph.put_writes("two", "", NewWrites("c000002", "t", "", [(0, "flag", 2)]), CODER)
    Thread(db.scope(user="u2").graph, "one").put(big=bytes(range(256)) * 700)


def states(db: memcore.Database) -> list[object]:
    found: list[object] = []
    for app, user in sorted(db.scopes()):
        graph = db.scope(app=app, user=user).graph
        for entry in graph.threads():
            found += [(user, entry.thread, entry.newest)]
            found += [
                (one.namespace, one.checkpoint, one.parent, one.body, one.values, one.writes)
                for namespace in ("", "sub")
                for one in graph.checkpoints(entry.thread, namespace, CODER)
            ]
    return found


@pytest.fixture
def made(path: Path) -> tuple[Path, list[object]]:
    with memcore.open(path) as db:
        fill(db)
        return path, states(db)


def broken(path: Path, change: Callable[[memcore.Database], Callable[[Txn], object]]) -> Path:
    """A copy without free pages, in which something was changed."""
    copy = path.with_name("broken.memcore")
    with memcore.open(path) as db:
        db._engine.store.transact(change(db))
        db.backup(copy, verify=False)
    return copy


def damaged(
    at: Callable[[memcore.Database], bytes],
) -> Callable[[memcore.Database], Callable[[Txn], object]]:
    """Have the checksum of a row fail."""

    def change(db: memcore.Database) -> Callable[[Txn], object]:
        key = at(db)
        return lambda txn: txn.put(key, b"\1\0" + bytes(40))

    return change


def of_thread(row: int, *, thread: int = 1, at: int = 0) -> Callable[[memcore.Database], bytes]:
    prefix = keys.thread_rows(1, thread, row)
    return lambda db: [k for k in rows_under(db, Kind.THREAD) if k.startswith(prefix)][at]


def chunk(content: str) -> Callable[[memcore.Database], bytes]:
    """The chunk with a text: their order is that of random ids."""

    def find(db: memcore.Database) -> bytes:
        rows = rows_under(db, Kind.CHUNK)
        values = db._engine.store.read(lambda txn: {key: txn.get(key) for key in rows})
        return next(key for key, value in values.items() if content.encode() in value)

    return find


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["compact", "whole", "copy_compact", "restore", "salvage"])
def test_copies_hold_the_threads(how: str, made: tuple[Path, list[object]]) -> None:
    path, before = made
    copy = path.with_name("copy.memcore")
    if how == "salvage":
        report = salvage(path, copy)
        assert (report.threads, report.lost, report.unsure) == (3, (), ())
    elif how == "copy_compact":
        copy = path
        with memcore.open(path) as db:
            Thread(db.scope().graph, "one").read()
            db.copy_compact()
            assert states(db) == before
    else:
        with memcore.open(path) as db:
            db.backup(copy, compact=how != "whole")
    if how == "restore":
        with memcore.open(path) as db:
            db.scope().graph.delete_thread("one", CODER)
        memcore.restore(copy, path, replace=True)
        copy = path
    with memcore.open(copy) as db:
        assert db.check() == []
        assert states(db) == before
        graph = db.scope().graph
        for name in ("one", "two"):
            Thread(graph, name).put(messages=texts(40, size=900), more=name)
            graph.prune(name, keep(1), CODER)
        Thread(graph, "new").put(n=1)
        assert db.check() == []


# --- salvage --------------------------------------------------------------------------------------


def saved(path: Path) -> tuple[memcore.SalvageReport, memcore.Database]:
    target = path.with_name("saved.memcore")
    report = salvage(path, target)
    db = memcore.open(target)
    assert db.check() == []
    return report, db


def test_a_value_with_a_lost_part_is_told_of_and_never_reads_as_another(
    made: tuple[Path, list[object]],
) -> None:
    path, _ = made
    report, db = saved(broken(path, damaged(chunk(texts(6, size=900)[5]))))

    assert report.threads == 3
    assert any("of which a part is lost" in told for told in report.lost)
    graph = db.scope().graph
    found = 0
    for name in ("one", "two"):
        for number in (1, 2):
            try:
                values = Thread(graph, name).read(f"c00000{number}")
            except CorruptValueError as error:
                assert "was lost in a file that was salvaged" in str(error)
                found += 1
            else:
                assert values is None or values["messages"] == texts(39 + number, size=900)
    assert found
    two = Thread(graph, "two")
    two.step, two.parent = 2, "c000002"
    two.put(messages=texts(41, size=900))
    assert two.read() == {"messages": texts(41, size=900)}
    graph.prune("one", keep(1), CODER)
    graph.prune("two", keep(1), CODER)
    assert db.check() == []
    db.close()


LOSSES = {
    "value": (of_thread(ThreadRow.VALUE), "the value of channel and version"),
    "writes": (of_thread(ThreadRow.WRITES, thread=2), "the writes of checkpoint and task"),
    "checkpoint": (of_thread(ThreadRow.CHECKPOINT), "checkpoint ('c000001'"),
    "namespace": (of_thread(ThreadRow.NAMESPACE), "the name of a namespace"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_what_is_lost_of_a_thread_is_told(what: str, made: tuple[Path, list[object]]) -> None:
    path, _ = made
    at, told = LOSSES[what]
    report, db = saved(broken(path, damaged(at)))

    assert report.threads == 3
    assert any(told in line for line in report.lost), report.lost
    db.close()


@pytest.mark.parametrize("what", ["head", "name", "pool"])
def test_what_can_be_told_from_the_rest_is(what: str, made: tuple[Path, list[object]]) -> None:
    path, before = made
    at = {
        "head": of_thread(ThreadRow.HEAD),
        "name": lambda db: rows_under(db, Kind.THREAD_NAME)[0],
        "pool": lambda db: keys.chunk_prefix(1, 1),
    }[what]
    report, db = saved(broken(path, damaged(at)))

    assert report.threads == 3
    if what == "name":
        assert Thread(db.scope().graph, "salvaged-1").read("c000001") == {
            "messages": texts(40, size=900), "flag": 1,
        }  # fmt: skip
    else:
        assert states(db) == before
    Thread(db.scope().graph, "two").put(messages=texts(50))
    assert db.check() == []
    db.close()


def test_an_encrypted_thread_without_its_key_is_lost_and_told(path: Path) -> None:
    with memcore.open(path) as db:
        one = Thread(db.scope().graph, "secret")
        db.scope().graph.put("secret", "", one.new({"m": texts(9)}), Sealing())
    report, db = saved(broken(path, damaged(lambda db: keys.chunk_prefix(1, 1))))

    assert report.threads == 0
    assert any("'secret'" in line and "too little is left" in line for line in report.lost)
    db.close()


def test_an_encrypted_thread_is_saved(path: Path) -> None:
    with memcore.open(path) as db:
        one = Thread(db.scope().graph, "secret")
        db.scope().graph.put("secret", "", one.new({"m": texts(9)}), Sealing())
    report, db = saved(path)

    found = db.scope().graph.get("secret", "", None, Sealing())
    assert (report.threads, report.lost) == (1, ())
    assert found is not None
    assert found.values == {"m": texts(9)}
    db.close()


def test_a_thread_that_was_being_deleted_does_not_come_back(path: Path) -> None:
    with memcore.open(path) as db:
        half_deleted(db)
    with path.open("r+b") as file:  # the meta pages tell no tree any more
        file.write(bytes(8192))
    report, db = saved(path)

    assert report.threads == 0
    assert list(db.scope().graph.threads()) == []
    assert rows_under(db, Kind.CHUNK) == rows_under(db, Kind.THREAD) == []
    db.close()
