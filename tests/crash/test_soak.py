"""The short soak, and that the soak would see what it looks for."""

from __future__ import annotations

import threading

import pytest

import memcore
from crash import soak
from crash.ledgers import COMMON
from crash.outcome import Plan, run
from crash.soak_worker import Racer


def test_a_short_soak() -> None:
    outcomes = run(soak.parts(Plan(seed=30)), lambda _: None)
    assert [outcome.findings for outcome in outcomes] == [[], []]
    for outcome in outcomes:
        assert outcome.facts["revisions won"] > 0
        assert outcome.facts["readers killed"] > 0
        assert outcome.done > 0


def test_eight_processes_race_for_revisions(tmp_path, monkeypatch) -> None:
    roles = dict.fromkeys("abcdefg", "racer") | {"x": "reader"}
    monkeypatch.setattr(soak, "ROLES", roles)
    run = soak.Soak(tmp_path, seed=1)
    try:
        for name in "abcdefg":
            run.start(name)
        run.watch(4)
        run.finish()
        facts = run.judge()
    finally:
        run.close()
    assert run.findings == []
    assert facts["revisions won"] > 0


@pytest.fixture
def raced(tmp_path):
    """A run without processes: one racer, 300 revisions."""
    run = soak.Soak(tmp_path, seed=1)
    with memcore.open(run.path) as db:
        racer = Racer(db, run.folder / "race-r0")
        for _ in range(300):
            racer.step()
    return run


def test_a_sound_race_has_no_findings(raced) -> None:
    assert raced.judge()["revisions won"] == 300
    assert raced.findings == []


@pytest.mark.parametrize("line", ["17", "301"])
def test_a_revision_won_twice_or_lost_is_found(raced, line) -> None:
    with (raced.folder / "race-r1").open("w") as acks:
        acks.write(f"{line}\n")
    raced.judge()
    assert "race: 301 successes" in raced.findings[0]


def test_an_item_of_nobody_is_found(raced) -> None:
    with memcore.open(raced.path) as db:
        db.session(COMMON).append({"role": "user", "content": "z9:1"})
    raced.judge()
    assert raced.findings == ["common session: items of nobody: ['z9']"]


def test_memory_and_a_file_beyond_their_bounds_are_found(raced) -> None:
    raced.memory = {"a": [10, soak.RSS_GROWTH_MAX + 11], "b": [soak.RSS_MAX + 1, 0], "c": [5, 6]}
    raced.file_bytes = soak.FILE_BYTES_MAX + 400 * soak.COMMIT_BYTES
    raced.reader_slots = soak.READERS_USED_MAX + 1
    raced.judge()
    assert len(raced.findings) == 4


def test_a_deadlock_is_found_with_all_stacks(tmp_path, monkeypatch) -> None:
    """The test itself holds the write lock, as a transaction on a wrong thread would."""
    monkeypatch.setattr(soak, "ROLES", {"a": "racer", "x": "reader"})
    monkeypatch.setattr(soak, "STALL_SECONDS", 2)
    monkeypatch.setattr(soak, "READER_LIFE_SECONDS", (900, 901))
    run = soak.Soak(tmp_path, seed=1)
    held, go = threading.Event(), threading.Event()
    with memcore.open(run.path) as db:

        def hold(txn) -> None:
            txn.put(b"\x0a", b"")
            held.set()
            go.wait()
            raise KeyError

        def write() -> None:
            with pytest.raises(KeyError):
                db.engine.store.transact(hold)

        holder = threading.Thread(target=write)
        holder.start()
        held.wait()
        try:
            run.start("a")
            run.watch(60)
        finally:
            run.close()
            go.set()
            holder.join()
    assert "race-a" in run.findings[0]
    assert "stands still" in run.findings[0]
    assert "in transact" in run.findings[0]
    assert "soak_worker.py" in run.findings[0]
