"""A device that fails: nothing is acknowledged after it, and a kill at every system call."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import memcore
from flushcount import compiler, shim
from memcore.testing.faults import child_env
from thinned import thinned

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


def start(*arguments, path, arm="", stdout=subprocess.PIPE, faults=""):
    return subprocess.Popen(
        [sys.executable, "-m", "crash.eio", *map(str, arguments)],
        env=child_env(
            faults,
            PYTHONPATH=str(TESTS.parent),
            LD_PRELOAD=str(shim("eio")),
            EIO_PATH=str(path),
            EIO_ARM=arm,
        ),
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def told(*arguments, path):
    process = start(*arguments, path=path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize(
    ("kinds", "count"), [("f", 1), ("f", -1), ("w", 1), ("m", 1), ("wmf", 2), ("wmf", -1)]
)
def test_a_device_error_poisons_the_handle(path, kinds, count, skip) -> None:
    memcore.open(path).close()
    found = told("poisoned", path, kinds, skip, count, path=path)
    assert "StorageError" in found["errors"] or "OutcomeUnknownError" in found["errors"]
    assert set(found["errors"]) <= {"StorageError", "OutcomeUnknownError"}
    # A write that only makes the file larger, ahead of need, may fail and be tried again.
    assert found["poisoned"] or kinds in ("w", "wmf")
    if found["poisoned"]:
        assert found["late"] == 0
        # If the meta page could not be written, LMDB itself refuses everything, reading too.
        panic = found["told"].pop("read") != "fine"
        assert set(found["told"].values()) <= {"OutcomeUnknownError", *["StorageError"] * panic}
    elif found["told"]["undo"] == "fine":
        found["acknowledged"][0].pop()  # the writer that was not refused took it back
    assert set(found["closing"]) <= {"fine", "StorageError", "OutcomeUnknownError"}
    assert (found["after"], found["findings"]) == ("fine", [])
    for acknowledged, rows in zip(found["acknowledged"], found["stored"], strict=True):
        assert rows[: len(acknowledged)] == acknowledged
        assert len(rows) <= len(acknowledged) + 1  # the commit that failed may have been whole
        assert rows == sorted(set(rows))
    with memcore.open(path, verify=True) as db:
        assert db.check() == []


def test_a_flush_that_failed_is_not_forgotten(path) -> None:
    found = told("flushed", path, path=path)
    assert found["told"][0] in ("StorageError", "OutcomeUnknownError")
    assert found["told"][1] == "OutcomeUnknownError"
    assert (found["stored"], found["findings"]) == ([0], [])


def test_reads_that_fail_are_typed_errors(path) -> None:
    found = told("unreadable", path, path=path)
    assert found["told"].pop("a half copy is left") == "False"
    assert set(found["told"].values()) <= {
        "StorageError", "OutcomeUnknownError", "StoreAccessError", "CorruptStoreError", "fine",
    }, found["told"]  # fmt: skip
    assert found["told"]["append"] != "fine"
    assert found["told"]["open"] != "fine"
    assert (found["stored"], found["findings"]) == ([0], [])


# --- a kill at every system call that changes the file -------------------------------------------

CALLS_MAX = 10**6
BEFORE, BEHIND = -9, -109
NAMED = "ftn"
"""Flushes, truncations and names: few, so each of them is tried; of the writes, some."""


def killed_at(path, call, *, kinds="wmftn", at=BEFORE, faults="") -> tuple[bool, list[int]]:
    """Let the workload die at its ``call``-th change of the file: whether it did; its acks."""
    process = start("work", path, path=path, arm=f"{kinds}:{at}:{call}:1", faults=faults)
    out, err = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), err.decode()
    return process.returncode != 0, [int(line) for line in out.splitlines()]


def numbers(db) -> list[int]:
    return [int(item.message["content"].strip()) for item in db.session("s0").items()]


@pytest.mark.parametrize(
    ("kinds", "part"), thinned([(NAMED, 0), (NAMED, 1), ("w", 0), ("wm", 1)], 1)
)
def test_a_kill_at_each_change_of_the_file(tmp_path, kinds, part) -> None:
    """Creation, commits, a staged item, growth of the map, a deletion, the last flush."""
    dead, told = killed_at(tmp_path / "agent.memcore", CALLS_MAX, kinds=kinds)
    assert not dead
    assert told[:-1] == list(range(5))
    calls = range(told[-1])
    if kinds != NAMED:
        calls = sorted(Random(part).sample(calls, 8))
    for call in calls[part::4] if kinds == NAMED else calls:
        path = tmp_path / f"{call}" / "agent.memcore"
        path.parent.mkdir()
        dead, told = killed_at(path, call, kinds=kinds)
        assert dead
        with memcore.open(path, verify=True) as db:
            found = numbers(db)
            assert found == list(range(len(found)))
            assert len(told) <= len(found) <= len(told) + 1
            db.session("s0").append({"role": "user", "content": "9"})
            assert db.check() == []


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("kinds", ["m", "f"])
def test_a_kill_right_behind_a_write_beside_another_process(tmp_path, kinds, durability) -> None:
    """The meta page tells of a commit of which LMDB's lock table, kept by us, does not yet."""
    for call in range(2, 5):
        path = tmp_path / f"{call}" / "agent.memcore"
        path.parent.mkdir()
        with memcore.open(path, durability=durability) as db:
            dead, told = killed_at(path, call, kinds=kinds, at=BEHIND)
            assert dead or (kinds, durability) == ("f", "relaxed")  # which flushes by the clock
            db.session("s0").append({"role": "user", "content": "9"})
            db.flush()
            found = numbers(db)[:-1]
            assert found == list(range(len(found)))
            assert len(told[:5]) <= len(found) <= len(told[:5]) + 1
            assert db.check() == []
        with memcore.open(path, verify=True) as db:
            assert numbers(db) == [*found, 9]


@pytest.mark.parametrize("at", thinned(["redo.write.after", "txn.commit"], 1))
def test_a_kill_at_each_change_of_the_file_inside_recovery(path, at) -> None:
    memcore.open(path).close()
    dead, told = killed_at(path, CALLS_MAX, faults=f"{at}=kill@3")
    assert (dead, told) == (True, [0, 1])
    image = path.read_bytes()
    call = 0
    while dead:
        path.write_bytes(image)
        dead, more = killed_at(path, call)
        with memcore.open(path, verify=True) as db:
            assert numbers(db)[:3] == [0, 1, 2] if dead else True
            assert db.check() == []
        if more:
            break  # recovery is over
        call += 1
    assert call >= 2


def test_the_shim_counts_what_it_lets_fail(path) -> None:
    """The control: without it the tests above would pass on a healthy device."""
    process = start("flushed", path, path=path, arm=f"f:{errno.EIO}:0:1")
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert b"Input/output error" in err or b"cannot create" in err
