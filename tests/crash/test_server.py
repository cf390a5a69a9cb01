"""A store on a server under faults: nothing acknowledged is lost, nothing is stored twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from servers import postgres

import memcore
from memcore.store.postgres import schema
from tests.crash.server_chaos import Workers, chaos, judge


def test_faults(tmp_path: Path) -> None:
    with postgres() as server:
        wrong, happened = chaos(server, "chaos", tmp_path, seed=7, faults=9)
    assert wrong == []
    assert happened["stored"] >= 8 * 9


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_many_faults(tmp_path: Path, seed: int) -> None:
    with postgres() as server:
        wrong, happened = chaos(server, "chaos", tmp_path, seed=seed, faults=60)
    assert wrong == []
    assert happened["stored"] >= 8 * 60


def test_a_commit_that_does_not_compare_is_found(tmp_path: Path) -> None:
    """A planted bug: versions are not compared, so that commits are lost."""
    commit = schema.FUNCTIONS["commit_2"]
    blind = commit.replace("and t.version = versions[j];", ";")
    assert blind != commit
    with postgres() as server:
        address = server.address("blind")
        memcore.open(address).close()
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(blind.replace("{schema}", "blind").replace("{{}}", "{}"))
        with Workers(server, "blind", tmp_path, count=3, seed=1, planted="") as workers:
            _wait_for_lines(workers.ledger, 200)
        with memcore.open(address) as db:
            assert judge(db, workers.ledger.read_text(encoding="utf-8"), {})


def test_a_lease_that_does_not_fence_is_found(tmp_path: Path) -> None:
    """A planted bug: whoever has had a lease goes on, as if nobody had taken it over."""
    planted = "from memcore.session.engine import LeaseToken\n"
    planted += "LeaseToken.is_of = lambda self, row: row is not None\n"
    with postgres() as server:
        with Workers(server, "unfenced", tmp_path, count=3, seed=1, planted=planted) as workers:
            for number, hours in enumerate((0, 2, 4)):
                workers.set_clock(number, 3600 * hours)
            _wait_for_lines(workers.ledger, 500)
        with memcore.open(server.address("unfenced")) as db:
            wrong = judge(db, workers.ledger.read_text(encoding="utf-8"), {})
    assert any("behind an item of epoch" in each for each in wrong)


def _wait_for_lines(ledger: Path, lines: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and _least(ledger) < lines:
        threading.Event().wait(0.1)


def _least(ledger: Path) -> int:
    """The fewest lines of one of three workers: while only one works, nothing can be lost."""
    lines = ledger.read_text(encoding="utf-8").split("\n")[:-1] if ledger.exists() else []
    found = Counter(line.split()[1].split(".")[1] for line in lines)
    return min(found.values()) if len(found) == 3 else 0
