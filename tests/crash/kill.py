"""The kill loop: SIGKILL at random moments and at fail points, several processes and threads.

Each process has threads that append, extend, undo, rewind, compact, fork, delete and count, with
an intent before and an acknowledgement after each operation. One process after the other is killed
and started again while the others go on; whoever comes back compares the database with its ledger.
At the end of a round all are killed, or all are asked to finish (a lock that died with its holder
would hang them), and everything is compared and checked.

Fail points (``memcore.testing.faults``) bring some to their end between any two calls into LMDB
and the redo log: between the record and the commit, inside recovery, while the map grows.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from memcore.errors import MemcoreError
from memcore.testing.faults import child_env

from .ledgers import Ledger, WrongError, check_common
from .outcome import Outcome, Part, Plan, Say
from .sealed import AVAILABLE, FILE, open_any

PROCESSES = 3
THREADS = 3
KILLS_SHORT, KILLS_LONG = 6, 200
"""For each mode."""
KILLS_A_FILE, KILLS_A_ROUND = 100, 25
MODES = (("full", False), ("relaxed", False), ("full", True), ("relaxed", True))
"""Durability, and whether the file is encrypted."""
USED_BYTES_MAX, FILE_BYTES_MAX = 32 * 1024**2, 256 * 1024**2
"""Live rows take up to 16 MiB of pages. The rest of the file are pages that are free again: while a
reader stands still, as one does on a machine that is busy, others write 12 MiB a second."""
LIFE_SECONDS = 1.0
POINT_PATIENCE = 4
"""How much longer a process lives that is to end at a fail point."""
FINISH_SECONDS = 180

TESTS = Path(__file__).parents[1]
POINTS = [
    "redo.write", "redo.write.after", "txn.commit", "txn.commit.after", "txn.begin.after",
    "txn.abort", "txn.put.after", "txn.delete", "cursor.delete", "cursor.next", "read.begin.after",
    "read.abort", "redo.pending.after", "env.sync", "env.sync.after", "env.reader_check",
    "env.set_mapsize", "env.set_mapsize.after", "steady.write", "steady.write.after",
    "steady.newest.after",
]  # fmt: skip
SLOW = "txn.commit=delay:1~0.3; redo.write.after=delay:1~0.3; read.abort=delay:2~0.05"


class Fleet:
    """The processes of one run on one file."""

    def __init__(
        self, where: Path, seed: int, *, durability: str = "full", sealed: bool = False
    ) -> None:
        self.path = where / FILE
        self.sealed = sealed
        open_any(self.path, sealed=sealed, durability=durability).close()
        self.folder = where / "ledgers"
        self.folder.mkdir()
        self.random = Random(seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.points: dict[str, str] = {}
        self.ends: Counter[str] = Counter()
        self.findings: list[str] = []

    def start(self, name: str, *, faults: str | None = None) -> None:
        random = self.random
        if faults is None:
            point = random.choice(POINTS)
            # The first hits are those of opening and recovery.
            hit = int(random.choice([2, 5, 50]) * random.random()) + 1
            faults = random.choice(["", SLOW, f"{point}=kill@{hit}; {SLOW}", f"{point}=kill@{hit}"])
        map_bytes = random.choice([2**20, 2**22, 2**30])
        sealed = int(self.sealed)
        arguments = [self.path, self.folder, name, THREADS, map_bytes, random.random(), sealed]
        self.points[name] = faults.partition("=kill")[0] if "=kill" in faults else ""
        self.running[name] = subprocess.Popen(
            [sys.executable, "-m", "crash.kill_worker", *map(str, arguments)],
            env=child_env(faults, PYTHONPATH=str(TESTS.parent)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    def kill(self, name: str, after_seconds: float) -> None:
        """Kill a process, unless a fail point has been faster."""
        process = self.running[name]
        try:
            process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            self._end(name, "a random moment")
        else:
            self._end(name, self.points[name] or "by itself")

    def finish(self, name: str) -> None:
        """Ask a process to end in order; one that cannot is a finding."""
        process = self.running[name]
        if process.stdin is not None:
            process.stdin.close()
            process.stdin = None
        try:
            process.wait(FINISH_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self.findings.append(f"{name} hangs: it did not finish in {FINISH_SECONDS} s")
        self._end(name, "in order")

    def _end(self, name: str, how: str) -> None:
        process = self.running.pop(name)
        said, _ = process.communicate()
        code = process.returncode
        if said or code not in (0, -signal.SIGKILL):
            self.findings.append(f"{name} ended with {code}: {said.decode(errors='replace')}")
        if code == -signal.SIGKILL:
            self.ends[how] += 1

    def close(self) -> None:
        """End whatever still runs."""
        for name in list(self.running):
            self.running[name].kill()
            self._end(name, "the end")

    @property
    def kills(self) -> int:
        return self.ends.total()

    # --- what must hold ----------------------------------------------------------------------

    def ledgers(self) -> list[Ledger]:
        return [Ledger(path) for path in sorted(self.folder.iterdir())]

    def judge(self) -> int:
        """Everything is compared with the ledgers while no process lives; the file's size."""
        try:
            with open_any(self.path, sealed=self.sealed, verify=True) as db:
                ledgers = self.ledgers()
                self.findings += check_common(db, ledgers)
                for ledger in ledgers:
                    ledger.open()
                    ledger.settle(db)
                    ledger.close()
                self.findings += [f"check: {found}" for found in db.check()]
                stats = db.stats()
                size = int(stats["file_bytes"])
                used = int(stats["pages_used"]) * int(stats["page_bytes"])
        except (WrongError, MemcoreError) as error:
            self.findings.append(f"{type(error).__name__}: {error}")
            size, used = self.path.stat().st_size, 0
        if size > FILE_BYTES_MAX or used > USED_BYTES_MAX:
            self.findings.append(f"the file grew to {size} bytes, of which {used} are in use")
        return size


def play_round(fleet: Fleet, kills: int, *, in_order: bool) -> int:
    """So many kills, then the end of all; the file's size."""
    names = [chr(ord("a") + number) for number in range(PROCESSES)]
    for name in names:
        fleet.start(name)
    target = fleet.kills + kills
    while fleet.kills < target - (0 if in_order else PROCESSES) and not fleet.findings:
        name = fleet.random.choice(names)
        life = LIFE_SECONDS * (POINT_PATIENCE if fleet.points[name] else 1)
        fleet.kill(name, fleet.random.random() * life)
        fleet.start(name)
    for name in names:
        if in_order:
            fleet.kill(name, 0)
            fleet.start(name, faults=SLOW)
        else:
            fleet.kill(name, 0.2 * fleet.random.random())
    for name in list(fleet.running):
        fleet.finish(name)
    return fleet.judge()


def parts(plan: Plan) -> list[Part]:
    """The loop in each mode, on as many files as the number of kills asks for."""
    kills = plan.cases(KILLS_SHORT, KILLS_LONG)
    files = -(-kills // KILLS_A_FILE)
    found = []
    for number in range(files):
        share = kills * (number + 1) // files - kills * number // files
        for durability, sealed in MODES:
            if AVAILABLE or not sealed:
                seed = plan.seed + number
                named = f"kill, {_mode(durability, sealed=sealed)}: {share} of {seed}"
                play_one = partial(play, durability, share, seed, sealed=sealed)
                found.append(Part(named, play_one))
    return found


def _mode(durability: str, *, sealed: bool) -> str:
    return f"{durability}, key" if sealed else durability


def play(durability: str, kills: int, seed: int, say: Say, *, sealed: bool = False) -> Outcome:
    """Rounds on one file; every other one, and the last, ends with processes that finish."""
    sizes, mode = [0], _mode(durability, sealed=sealed)
    rounds = -(-kills // KILLS_A_ROUND)
    with tempfile.TemporaryDirectory(prefix="memcore-kill-") as where:
        fleet = Fleet(Path(where), seed, durability=durability, sealed=sealed)
        try:
            for number in range(rounds):
                share = kills * (number + 1) // rounds - kills * number // rounds
                in_order = (rounds - number) % 2 == 1
                sizes.append(play_round(fleet, share, in_order=in_order))
                say(f"{mode}, round {number + 1} of {rounds}: {fleet.kills} kills")
                if fleet.findings:
                    break
        finally:
            fleet.close()
        facts: dict[str, Any] = {
            "acknowledged": sum(ledger.acknowledged for ledger in fleet.ledgers()),
            "file bytes at most": max(sizes),
            "kills by moment": dict(fleet.ends.most_common()),
        }
    return Outcome(f"kill, {mode}", fleet.kills, fleet.findings, facts)
