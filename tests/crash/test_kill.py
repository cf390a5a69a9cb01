"""The short kill loop, and that the loop would see what it looks for."""

from __future__ import annotations

import json
from random import Random

import pytest

import memcore
from crash import kill
from crash.ledgers import COMMON, TOTAL, Ledger
from crash.outcome import Plan, run
from crash.sealed import AVAILABLE

OWNER = "a0"


def test_kills_lose_nothing_acknowledged() -> None:
    lines: list[str] = []
    outcomes = run(kill.parts(Plan(seed=20)), lines.append)
    modes = [mode for mode in kill.MODES if AVAILABLE or not mode[1]]
    assert [outcome.findings for outcome in outcomes] == [[] for _ in modes]
    for outcome in outcomes:
        assert outcome.done >= kill.KILLS_SHORT
        assert outcome.facts["acknowledged"] > 0
    assert len(lines) == len(modes)


@pytest.fixture
def fleet(tmp_path):
    """A run of one thread without processes: 150 operations, all acknowledged."""
    fleet = kill.Fleet(tmp_path, seed=1)
    ledger = Ledger(fleet.folder / OWNER)
    ledger.open()
    with memcore.open(fleet.path) as db:
        random = Random(5)
        for _ in range(150):
            ledger.step(db, random)
    assert {"common", "total", "fork", "undo"} <= {
        json.loads(line)[0] for line in ledger.path.read_text().splitlines()[::2]
    }
    return fleet


def findings(fleet) -> str:
    fleet.judge()
    return "\n".join(fleet.findings)


def tell(fleet, *entries) -> None:
    with (fleet.folder / OWNER).open("a") as ledger:
        ledger.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_a_sound_run_has_no_findings(fleet) -> None:
    assert findings(fleet) == ""


@pytest.mark.parametrize("op", [["append", 900], ["put", 900, "k1"], ["fork", 900]])
def test_an_acknowledged_change_that_is_missing_is_found(fleet, op) -> None:
    tell(fleet, op, "acknowledged")
    assert "lost" in findings(fleet)


@pytest.mark.parametrize("op", [["append", 900], ["put", 900, "k1"], ["common", 900]])
def test_an_undecided_change_may_be_missing_or_there(fleet, op) -> None:
    tell(fleet, op)
    assert findings(fleet) == ""
    tell(fleet, ["once", 901])
    with memcore.open(fleet.path) as db:
        db.session(OWNER).append({"role": "user", "content": f"{OWNER}:901"})
    assert findings(fleet) == ""


def test_a_change_that_nobody_asked_for_is_found(fleet) -> None:
    with memcore.open(fleet.path) as db:
        db.session(OWNER).append({"role": "user", "content": f"{OWNER}:twice"})
    assert "strange" in findings(fleet)


def test_a_lost_and_a_doubled_item_of_the_common_session_are_found(fleet) -> None:
    tell(fleet, ["common", 900], "acknowledged")
    assert "common session, a0: lost [900]" in findings(fleet)
    for _ in range(2):
        with memcore.open(fleet.path) as db:
            db.session(COMMON).append({"role": "user", "content": f"{OWNER}:900"})
    fleet.findings.clear()
    assert "common session" in findings(fleet)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_lost_or_doubled_increment_is_found(fleet, step) -> None:
    with memcore.open(fleet.path) as db:
        db.scope().kv(COMMON).increment(TOTAL, step)
    assert "the counter is" in findings(fleet)


def test_a_file_that_went_back_in_time_is_found(fleet) -> None:
    image = fleet.path.read_bytes()
    ledger = Ledger(fleet.folder / OWNER)
    ledger.open()
    with memcore.open(fleet.path) as db:
        random = Random(6)
        for _ in range(30):
            ledger.step(db, random)
    fleet.path.write_bytes(image)
    assert "lost" in findings(fleet)


@pytest.mark.parametrize("bound", ["FILE_BYTES_MAX", "USED_BYTES_MAX"])
def test_a_file_that_grows_without_bound_is_found(fleet, monkeypatch, bound) -> None:
    monkeypatch.setattr(kill, bound, 2**16)
    assert "the file grew" in findings(fleet)


def test_a_process_that_fails_is_found(fleet) -> None:
    fleet.start(OWNER[0], faults="txn.commit=error:EIO@1")
    process = fleet.running[OWNER[0]]
    process.wait(60)
    fleet.finish(OWNER[0])
    assert "ended with 3" in fleet.findings[0]
    assert "Input/output error" in fleet.findings[0]
