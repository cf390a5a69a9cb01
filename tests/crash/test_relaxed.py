"""Moments of ``durability="relaxed"`` that the simulator found: each in processes of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shim.flushcount import compiler

import memcore
from crash.erasures import finished
from crash.recording import Flag, Op, Record, preloaded
from crash.timeline import Timeline, compare
from crash.verbs import VERBS, Place, Step, observe
from memcore.store import steady

pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder needs a C compiler")

HUNG_SECONDS = 60
HEAD = """
import os, sys
from pathlib import Path
import memcore
from crash.children import forked
from crash.recording import Recorder
from memcore.store import commit as commits, steady
path = Path(sys.argv[1])
text = lambda n: {"role": "user", "content": str(n)}
memcore.open(path, durability="relaxed").close()
"""


def run(path: Path, script: str, *arguments: str) -> str:
    environment = preloaded() | {"PYTHONPATH": ":".join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", HEAD + script, str(path), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        timeout=HUNG_SECONDS,
        check=True,
    )
    return ran.stdout.decode().strip()


@pytest.mark.parametrize("writes", [1, 2])
def test_a_writer_killed_behind_a_write_of_its_commit_hangs_nobody(path: Path, writes: int) -> None:
    """Behind its second write the meta page shows a commit that LMDB's lock table does not."""
    found = run(
        path,
        """
recorder = Recorder()
recorder.start(path.parent, path.parent.with_name("log"))
opened, go = os.pipe()

def work():
    session = memcore.open(path, steady_interval_ms=60_000).session("s")
    session.append(text(1))
    os.read(opened, 1)
    commit = commits.Leader._commit
    def killed(self, *arguments):
        recorder.die_after(int(sys.argv[2]))
        commit(self, *arguments)
    commits.Leader._commit = killed
    session.append(text(2))

child = forked(work)
with memcore.open(path, steady_interval_ms=60_000) as db:
    os.write(go, b".")
    assert os.waitpid(child, 0)[1] == 9
    db.session("s").append(text(3))
    print(*[item.message["content"] for item in db.session("s")])
""",
        str(writes),
    )

    assert found == {1: "1 3", 2: "1 2 3"}[writes]


def test_two_openers_after_a_power_cut_do_not_keep_each_other_out(path: Path) -> None:
    """Both have the file before either goes back: one has to give way."""
    found = run(
        path,
        """

def leave():  # killed: what it wrote has no steady point
    memcore.open(path, steady_interval_ms=60_000).session("s").append(text(1))
    os._exit(0)

os.waitpid(forked(leave), 0)
steady.boot_id = lambda: b"the next boot id"
steady._PATIENCE_SECONDS = 0.5
here, met = os.pipe()
waiting, go = os.pipe()
exclusively = steady.exclusively

def together(*arguments):
    steady.exclusively = exclusively
    os.write(met, b".")
    os.read(waiting, 1)
    return exclusively(*arguments)

def work():
    steady.exclusively = together
    memcore.open(path).close()

children = [forked(work), forked(work)]
for _ in children:
    os.read(here, 1)
os.write(go, b"..")
print(*[os.waitpid(child, 0)[1] for child in children])
""",
    )

    assert found == "0 0"


LANE = "0.0.0"


def mark(kind: str, **fields: Any) -> Record:
    return Record(Op.MARK, Flag(0), 1, 0, 0, json.dumps({"kind": kind, **fields}).encode())


def begun(number: int, *operation: Any) -> Record:
    return mark("begin", lane=LANE, number=number, operation=operation)


OPENED = [begun(0, "opened"), mark("ack", lane=LANE, number=0)]
POINT = [mark("steady-begin", point="1"), mark("steady-end", point="1")]
APPENDED = [begun(1, "append", "own", 50), mark("ack", lane=LANE, number=1)]
ERASED = [begun(2, "erase", False), mark("ack", lane=LANE, number=2)]


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ([*OPENED, *POINT, *APPENDED, ERASED[0]], []),
        (
            [*OPENED, *APPENDED, *ERASED, *POINT],
            [f"{LANE}: operation 1 was erased, and bytes of it are left"],
        ),
    ],
    ids=["back before the user came", "erased behind all doubt"],
)
def test_bytes_of_a_user_are_a_finding_if_the_file_holds_the_erasure(
    path: Path, monkeypatch: pytest.MonkeyPatch, log: list[Record], told: list[str]
) -> None:
    """A user who is not there may have been erased, or a power cut took the first item back."""
    cut = path.with_name("cut")
    with memcore.open(path, durability="relaxed", steady_interval_ms=60_000) as db:
        VERBS["append"].act(Place(db, LANE), Step(LANE, 1, ["own", 50]))
        shutil.copy(path, cut)
    monkeypatch.setattr(steady, "boot_id", lambda: b"the next boot id")
    timeline = Timeline(log, "relaxed")
    with memcore.open(cut) as db:
        assert LANE not in [user for _, user in db.scopes()]
        assert f"{LANE}|1|".encode() in cut.read_bytes()
        verdict = compare(timeline, timeline.bounds(len(log)), observe(db, {LANE: []}))
        assert verdict.findings == []
        findings = finished(db, cut, timeline, verdict, {})

    assert findings == told
