"""Values of graph threads whose rows were lost: told by reads, by check and by salvage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from threaded import CODER, Sealing, Thread, rows_under, texts

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.codec.keys import Kind, ThreadRow
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError
from memcore.graph import (
    MISSING,
    JsonCoder,
    NewCheckpoint,
    NewWrites,
    RecoveredNamespace,
    StoredCoder,
    rows,
)
from memcore.graph.check import Checking
from memcore.maintenance.salvage import salvage
from memcore.store.interface import Txn

LOST = "(?s)channel 'log'.*missing"


def filled(db: memcore.Database, coder: Any = CODER) -> Thread:
    """A thread of two checkpoints, of which both name the first version of ``log``."""
    one = Thread(db.scope().graph, "t", coder=coder)
    one.put(log=texts(3), empty=MISSING)
    one.put(flag=True)
    return one


def lose_log(db: memcore.Database) -> None:
    key = rows.value_key(rows.Place(1, 1, 1), 1, "log", 1)
    assert db._engine.store.transact(lambda txn: txn.delete(key))


def test_a_lost_value_is_no_empty_channel(path: Path) -> None:
    with memcore.open(path) as db:
        one = filled(db)
        assert one.read() == {"log": texts(3), "flag": True}
        lose_log(db)

        with pytest.raises(CorruptValueError, match=LOST):
            one.read()
        with pytest.raises(CorruptValueError, match=LOST):
            list(one.graph.checkpoints("t", None, CODER))
        told = [re.search(LOST, what) for what in db.check()]
        assert len(told) == 1, told
        assert all(told)


def test_a_lost_value_under_a_cipher_is_told_by_who_has_the_key(path: Path) -> None:
    coder = Sealing()
    with memcore.open(path) as db:
        one = filled(db, coder)
        assert one.graph.check(coder, lambda _: []) == []
        lose_log(db)

        with pytest.raises(CorruptValueError, match=LOST):
            one.read()
        found = one.graph.check(coder, lambda _: [])
        assert any(re.search(LOST, what) for what in found), found


def test_deltas_are_not_rebuilt_without_a_lost_seed(path: Path) -> None:
    with memcore.open(path) as db:
        one = filled(db)
        lose_log(db)
        with pytest.raises(CorruptValueError, match=LOST):
            one.graph.deltas("t", "", None, ["log"], CODER)


def test_a_salvage_keeps_what_is_whole_and_says_what_was_lost(path: Path) -> None:
    with memcore.open(path) as db:
        filled(db)
        lose_log(db)
        db.backup(path.with_name("broken.memcore"), verify=False)
    target = path.with_name("saved.memcore")
    report = salvage(path.with_name("broken.memcore"), target)
    assert any("'log'" in what for what in report.lost), report.lost
    with memcore.open(target) as db:
        graph = db.scope().graph
        with pytest.raises(CorruptValueError, match="lost in a file that was salvaged"):
            graph.get("t", "", None, CODER)
        again = Thread(graph, "t")
        again.step, again.parent = 2, "c000002"
        again.put(log=texts(4), flag=False)
        assert again.read() == {"log": texts(4), "flag": False}


def test_what_nobody_stored_is_recorded_as_empty(open_db: Callable[..., memcore.Database]) -> None:
    """A runtime names versions that it never put, as a thread that another saver began does."""
    graph = open_db(durability="none").scope().graph
    body = {"channel_versions": {"log": "v1", "never": "v7"}}
    graph.put("t", "", NewCheckpoint("1", None, body, {}, {"log": ("v1", "x")}), CODER)
    assert graph.get("t", "", None, CODER).values == {"log": "x"}  # type: ignore[union-attr]
    late = {"channel_versions": {"never": "v7"}}
    graph.put("t", "", NewCheckpoint("0", None, late, {}, {"never": ("v7", "late")}), CODER)
    assert graph.get("t", "", "1", CODER).values == {"log": "x", "never": "late"}  # type: ignore[union-attr]


def stored_ids(db: memcore.Database) -> list[str]:
    found = [key for key in rows_under(db, Kind.THREAD) if key[17] == ThreadRow.CHECKPOINT]
    return [rows.id_in(key) for key in found]


def old_rows(db: memcore.Database) -> None:
    """Make the checkpoints those of a memcore that recorded nothing of what it left out."""

    def change(txn: Txn) -> None:
        for key in rows_under(db, Kind.THREAD):
            if key[17] == ThreadRow.CHECKPOINT:
                value = txn.get(key)
                assert value is not None
                body = value[10:]
                txn.put(key, seal_value(key, bytes((body[0] & ~2,)) + body[1:]))

    db._engine.store.transact(change)


@pytest.mark.parametrize("brought", [True, False])
def test_of_an_older_file_only_what_a_checkpoint_brought_must_be_there(
    path: Path, brought: bool
) -> None:
    with memcore.open(path) as db:
        body: dict[str, Any] = {"channel_versions": {"log": 1}}
        if brought:
            body["updated_channels"] = ["log"]
        graph = db.scope().graph
        graph.put("t", "", NewCheckpoint("1", None, body, {}, {"log": (1, "x")}), CODER)
        old_rows(db)
        assert db.check() == []
        lose_log(db)
        assert [bool(re.search(LOST, what)) for what in db.check()] == [True] * brought
        assert graph.get("t", "", None, CODER).values == {}  # type: ignore[union-attr]


def test_versions_that_were_seen_before_there_were_any_are_told(path: Path) -> None:
    with memcore.open(path) as db:
        graph = db.scope().graph
        body = {
            "channel_versions": {"log": "0002", "n": 3},
            "versions_seen": {"good": {"log": "0002", "n": 3}, "stuck": {"log": "0009"}},
        }
        values = {"log": ("0002", "x"), "n": (3, 1)}
        graph.put("t", "", NewCheckpoint("1", None, body, {}, values), CODER)
        (told,) = db.check()
        assert "node 'stuck' has seen version '0009' of channel 'log'" in told
        assert graph.check(JsonCoder(), lambda _: []) == [told]


def test_a_thread_goes_back_to_its_newest_whole_checkpoint(path: Path) -> None:
    with memcore.open(path) as db:
        one = Thread(db.scope().graph, "t")
        one.put(log=texts(3))
        one.put(log=texts(4), flag=1)
        one.put(flag=2)
        graph = one.graph
        graph.put_writes("t", "", NewWrites("c000003", "task", "", [(0, "log", 1)]), CODER)
        key = rows.value_key(rows.Place(1, 1, 1), 1, "log", 2)
        assert db._engine.store.transact(lambda txn: txn.delete(key))

        for coder in (CODER, StoredCoder()):
            (planned,) = graph.recover("t", coder, dry_run=True) or ()
            assert planned.kept == "c000001"
            assert [lost.checkpoint for lost in planned.lost] == ["c000003", "c000002"]
            assert all(re.search(LOST, lost.reason) for lost in planned.lost)
        assert stored_ids(db) == ["c000001", "c000002", "c000003"]
    ran = CliRunner().invoke(
        app, ["recover", "--store", str(path), "t", "--thread", "--yes", "--json"]
    )
    assert ran.exit_code == ExitCode.FINDINGS, ran.output
    assert json.loads(ran.stdout)["namespaces"][0]["kept"] == "c000001"
    with memcore.open(path) as db:
        again = Thread(db.scope().graph, "t")
        assert again.ids() == ["c000001"]
        assert again.read() == {"log": texts(3)}
        assert db.check() == []
        assert again.graph.recover("t", CODER) == [RecoveredNamespace("", "c000001")]
        assert again.graph.recover("nobody", CODER) is None


def test_where_nothing_is_whole_nothing_is_removed(path: Path) -> None:
    with memcore.open(path) as db:
        one = filled(db)
        lose_log(db)
        (found,) = one.graph.recover("t", CODER) or ()
        assert found.kept is None
        assert len(found.lost) == len(stored_ids(db)) == 2


def test_writes_that_come_after_a_deletion_make_no_thread(
    open_db: Callable[..., memcore.Database],
) -> None:
    graph = open_db(durability="none").scope().graph
    one = Thread(graph, "t")
    one.put(log=[1])
    graph.delete_thread("t", CODER)
    graph.put_writes("t", "", NewWrites("c000001", "task", "", [(0, "log", 2)]), CODER)
    assert list(graph.threads()) == []
    assert graph.get("t", "", None, CODER) is None
    # Writes may come before their checkpoint, so they are kept for it.
    again = Thread(graph, "t")
    again.put(log=[3])
    assert [entry.thread for entry in graph.threads()] == ["t"]
    found = graph.get("t", "", None, CODER)
    assert found is not None
    assert found.writes == [("task", "log", 2)]


def test_the_command_line_looks_at_one_thread_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memcore.open(path) as db:
        for user in ("default", "alice", "bob"):
            Thread(db.scope(user=user).graph, "t").put(log=texts(3))
        Thread(db.scope(user="alice").graph, "other").put(log=texts(3))
    looks = []
    diagnosis = Checking.diagnosis

    def counted(self: Checking, thread: str, coder: Any) -> Any:
        looks.append(thread)
        return diagnosis(self, thread, coder)

    monkeypatch.setattr(Checking, "diagnosis", counted)
    command = ["recover", "--store", str(path), "t", "--thread", "--yes"]
    assert CliRunner().invoke(app, command).exit_code == ExitCode.NOT_FOUND
    assert looks == []
    assert CliRunner().invoke(app, [*command, "--user", "alice"]).exit_code == 0
    assert looks == ["t"]
    missing = ["recover", "--store", str(path), "nobody", "--thread", "--yes"]
    assert CliRunner().invoke(app, missing).exit_code == ExitCode.NOT_FOUND
    assert looks == ["t"]
