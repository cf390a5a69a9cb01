"""``memcore prune``: what it shows, what it removes, what it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.graph import JsonCoder, NewCheckpoint, NewWrites

RUNNER = CliRunner()
CODER = JsonCoder()


def run(*arguments: object) -> Any:
    return RUNNER.invoke(app, list(map(str, arguments)), env={"MEMCORE_STORE": None})


def pruned(store: Path, *arguments: object) -> dict[str, Any]:
    ran = run("prune", *arguments, "--store", store, "--json")
    assert ran.exit_code == 0, ran.stderr
    return {each["thread"]: each for each in json.loads(ran.stdout)["threads"]}


def put(graph: Any, thread: str, number: int, *, ts: str = "2026-01-01T00:00:00+00:00") -> None:
    body = {"channel_versions": {"log": number}, "ts": ts}
    values = {"log": (number, [f"entry {n} " + "x" * 50 for n in range(number)])}
    parent = f"{number - 1:04}" if number > 1 else None
    graph.put(thread, "", NewCheckpoint(f"{number:04}", parent, body, {}, values), CODER)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        for user, thread in (("default", "chat"), ("alice", "chat"), ("alice", "other")):
            for number in range(1, 6):
                put(db.scope(user=user).graph, thread, number)
    return path


def left(store: Path, thread: str, user: str) -> list[str]:
    with memcore.open(store) as db:
        found = db.scope(user=user).graph.checkpoints(thread, None, CODER)
        return [one.checkpoint for one in found]


def test_threads_are_listed_and_told_from_sessions(store) -> None:
    listed = run("ls", "--threads", "--store", store)
    found = {tuple(line.split()[:2]) for line in listed.stdout.splitlines()[1:]}
    assert found == {("chat", "alice"), ("other", "alice"), ("chat", "default")}
    alice = run("ls", "--threads", "--user", "alice", "--json", "--store", store)
    assert {each["thread"] for each in json.loads(alice.stdout)["threads"]} == {"chat", "other"}
    others = "and 3 threads of graphs: memcore ls --threads\n"
    assert run("ls", "--store", store).stdout.endswith(others)
    missed = run("show", "other", "--store", store)
    assert missed.exit_code == ExitCode.NOT_FOUND
    with memcore.open(store) as db:
        db.session("s").append({"role": "user", "content": "x"})
    assert run("ls", "--store", store).stdout.splitlines()[1].startswith("s ")


def test_a_dry_run_writes_nothing(store) -> None:
    before = store.read_bytes()
    found = pruned(store, "--dry-run", "--keep-last", 2, "--user", "alice")
    assert {name: (one["kept"], one["removed"]) for name, one in found.items()} == {
        "chat": (2, 3),
        "other": (2, 3),
    }
    assert store.read_bytes() == before


def test_what_is_asked_for_goes_and_the_rest_stays(store) -> None:
    found = pruned(store, "chat", "--yes", "--user", "alice")
    assert list(found) == ["chat"]
    assert left(store, "chat", "alice") == ["0005"]
    assert (
        left(store, "other", "alice")
        == left(store, "chat", "default")
        == [f"{n:04}" for n in range(5, 0, -1)]
    )
    with memcore.open(store) as db:
        assert db.check() == []
        kept = db.scope(user="alice").graph.get("chat", "", None, CODER)
    assert kept is not None
    assert len(kept.values["log"]) == 5


def test_young_checkpoints_stay(store) -> None:
    with memcore.open(store) as db:
        put(db.scope().graph, "young", 1, ts="9999-01-01T00:00:00+00:00")
        put(db.scope().graph, "young", 2)
    found = pruned(store, "--yes", "--max-age-days", 1, "--user", "default")
    assert (found["young"]["removed"], found["chat"]["removed"]) == (0, 4)


def test_neither_or_both_of_dry_run_and_yes_is_refused(store) -> None:
    assert run("prune", "--store", store).exit_code == ExitCode.REFUSED
    assert run("prune", "--store", store, "--yes", "--dry-run").exit_code == ExitCode.USAGE


def test_a_thread_that_is_not_there_is_named(store) -> None:
    ran = run("prune", "nobody", "--store", store, "--dry-run")
    assert ran.exit_code == ExitCode.NOT_FOUND
    assert "nobody" in ran.stderr


def test_the_table_says_what_would_go(store) -> None:
    ran = run("prune", "other", "--store", store, "--dry-run")
    assert ran.exit_code == 0
    assert "4 checkpoints of 1 thread would be removed; nothing was written" in ran.stdout


def test_what_comes_late_is_told_of_and_goes(store) -> None:
    pruned(store, "--yes", "--keep-last", 1, "--user", "alice")
    with memcore.open(store) as db:
        late = NewWrites("0002", "task", "", [(0, "log", "late")])
        db.scope(user="alice").graph.put_writes("chat", "", late, CODER)
    checked = run("check", "--store", store)
    assert checked.exit_code == ExitCode.OK, checked.stdout
    assert "no damage, 'memcore prune' removes it: thread 'chat': pending" in checked.stdout
    assert len(json.loads(run("check", "--store", store, "--json").stdout)["hygiene"]) == 1
    for arguments in (["--dry-run"], ["--yes"]):
        found = pruned(store, *arguments, "--keep-last", 9, "--user", "alice")
        assert (found["chat"]["strays"], found["other"]["strays"]) == (1, 0)
    assert "no damage" not in run("check", "--store", store).stdout
