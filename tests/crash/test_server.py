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
from tests.crash.server_chaos import chaos, judge, workers


def test_faults(tmp_path: Path) -> None:
    with postgres() as server:
        wrong, happened = chaos(server, "chaos", tmp_path, seed=7, faults=8)
    assert wrong == []
    assert happened["stored"] >= 8 * 8


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
        ledger, happened = tmp_path / "ledger", {}
        with workers(address, ledger, 3, 1):
            until = time.monotonic() + 60
            while time.monotonic() < until and _least(ledger) < 200:
                threading.Event().wait(0.1)
        with memcore.open(address) as db:
            assert judge(db, ledger.read_text(encoding="utf-8"), happened)


def _least(ledger: Path) -> int:
    """The fewest lines of one of three workers: while only one works, nothing can be lost."""
    lines = ledger.read_text(encoding="utf-8").split("\n")[:-1] if ledger.exists() else []
    found = Counter(line.split()[1].split(".")[1] for line in lines)
    return min(found.values()) if len(found) == 3 else 0
