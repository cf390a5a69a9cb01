"""The soak: eight processes with threads on one file, for half an hour, within stated bounds.

Three processes keep ledgers (as in the kill loop), two race for revisions, one forks while its
threads write, one hoards large items and deletes them, and one holds a snapshot until it is killed
and another takes its place. No update may be lost or made twice, nobody may stand still, and the
memory of each process and the file stay within their bounds.

``MEMCORE_SOAK_SECONDS`` sets another duration for either length.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import memcore
from memcore.errors import MemcoreError

from .ledgers import Ledger, WrongError, check_common
from .outcome import Outcome, Part, Plan, Say
from .soak_worker import RACE

SECONDS_SHORT, SECONDS_LONG = 8, 1800
"""Shared by the modes."""
MODES = ("full", "relaxed")
LOOK_SECONDS = 0.25
STALL_SECONDS = 120
"""A thread that does nothing for so long stands still; then all stacks are shown."""
READER_LIFE_SECONDS = (0.5, 2.0)
FINISH_SECONDS = 180
RSS_MAX = 256 * 1024**2
"""Anonymous memory of one process."""
RSS_GROWTH_MAX = 64 * 1024**2
"""Of these, what may come after the first third."""
FILE_BYTES_MAX = 640 * 1024**2
"""Live rows, and what a held snapshot pins of the writes of all but the racers."""
COMMIT_BYTES = 40 * 1024
"""For each revision won while a reader lives: its new pages, which a held snapshot pins. The faster
the machine, the more there are."""
KEPT_ROW_BYTES = 1024
"""For each row that stays for good: items of the common session, idempotency keys."""
READERS_USED_MAX = 64
"""Slots of LMDB's reader table ever used: those of killed readers are used again."""

TESTS = Path(__file__).parents[1]
ROLES = {
    "a": "ledger", "b": "ledger", "c": "ledger", "r": "racer", "s": "racer", "f": "forker",
    "h": "hoarder", "x": "reader",
}  # fmt: skip
MAPS = {"h": 2**30, "x": 2**24}
MAP_BYTES = 2**20


class Soak:
    """The processes and what is known of them."""

    def __init__(self, where: Path, seed: int, *, durability: str = "full") -> None:
        self.path = where / "agent.memcore"
        self.folder = where / "ledgers"
        self.folder.mkdir()
        self.stacks = where / "stacks"
        self.random = Random(seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.findings: list[str] = []
        self.readers_killed = 0
        self.reader_slots = 0
        self.file_bytes = 0
        self.seconds = 0.0
        self.memory: dict[str, list[int]] = {}
        self.progress: dict[str, tuple[int, float]] = {}
        memcore.open(self.path, durability=durability).close()

    def start(self, name: str) -> None:
        role, map_bytes = ROLES[name], MAPS.get(name, MAP_BYTES)
        seed = self.random.random()
        module, arguments = "crash.soak_worker", [role, self.path, self.folder, name]
        if role == "ledger":
            module, arguments = "crash.kill_worker", [self.path, self.folder, name, 3]
        with self.stacks.open("ab") as stacks:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module,
                 *map(str, [*arguments, map_bytes, seed])],
                env=os.environ | {
                    "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stacks,
            )  # fmt: skip

    # --- while it runs -----------------------------------------------------------------------

    def watch(self, seconds: float) -> None:
        """Kill readers and look after the others until the time is over or something is found."""
        self.seconds += seconds
        start = time.monotonic()
        reader_dies = start
        while (now := time.monotonic()) < start + seconds and not self.findings:
            if now >= reader_dies:
                self._replace_reader()
                reader_dies = now + self.random.uniform(*READER_LIFE_SECONDS)
            self._look(now, early=now < start + seconds / 3)
            for name, process in self.running.items():
                if process.poll() is not None:
                    self.findings.append(f"{name} ({ROLES[name]}) ended with {process.returncode}")
            try:
                self.running["a"].wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def _replace_reader(self) -> None:
        process = self.running.pop("x", None)
        if process is not None:
            if process.stdout is not None and process.stdout.read(1) != b"!":
                self.findings.append(f"the reader could not read; see {self.stacks.read_text()}")
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self.readers_killed += 1
        self.start("x")

    def _look(self, now: float, *, early: bool) -> None:
        self.file_bytes = max(self.file_bytes, self.path.stat().st_size)
        for name, process in self.running.items():
            used = anonymous_bytes(process.pid)
            most = self.memory.setdefault(name, [0, 0])
            most[not early] = max(most[not early], used)
        for path in self.folder.iterdir():
            size = path.stat().st_size
            before, since = self.progress.get(path.name, (-1, now))
            if size != before:
                self.progress[path.name] = (size, now)
            elif now - since > STALL_SECONDS:
                self.findings.append(f"{path.name} stands still: {self._all_stacks()}")
                return

    def _all_stacks(self) -> str:
        for process in self.running.values():
            process.send_signal(signal.SIGUSR1)  # one after the other: all write into one file
            try:  # time to write; those that stand still do not end
                process.wait(1)
            except subprocess.TimeoutExpired:
                continue
        return self.stacks.read_text(errors="replace")

    # --- the end -----------------------------------------------------------------------------

    def finish(self) -> None:
        """Ask everybody to end in order, but the reader, which is killed."""
        with memcore.open(self.path) as db:
            self.reader_slots = int(db.stats()["readers"])
        reader = self.running.pop("x")
        reader.kill()
        reader.communicate()
        for process in self.running.values():
            if process.stdin is not None:
                process.stdin.close()
                process.stdin = None
        for name, process in self.running.items():
            try:
                said, _ = process.communicate(timeout=FINISH_SECONDS)
            except subprocess.TimeoutExpired:
                self.findings.append(f"{name} does not finish: {self._all_stacks()}")
                return
            if said or process.returncode:
                text = said.decode(errors="replace")
                self.findings.append(f"{name} ended with {process.returncode}: {text}")

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.running.values():
            process.kill()
            process.communicate()

    def ledgers(self) -> Iterator[Ledger]:
        for path in sorted(self.folder.iterdir()):
            if "-" not in path.name:
                yield Ledger(path)

    def judge(self) -> dict[str, Any]:
        """Compare everything with what was acknowledged, and the bounds; facts."""
        with memcore.open(self.path, verify=True) as db:
            ledgers = list(self.ledgers())
            self.findings += check_common(db, ledgers)
            for ledger in ledgers:
                ledger.settle(db)
            won = self._check_race(db)
            self.findings += [f"check: {found}" for found in db.check()]
        kept = sum(len(ledger.common) + ledger.once for ledger in ledgers)
        share = min(1.0, READER_LIFE_SECONDS[1] / max(self.seconds, READER_LIFE_SECONDS[1]))
        bound = FILE_BYTES_MAX + KEPT_ROW_BYTES * kept + int(COMMIT_BYTES * won * share)
        if self.file_bytes > bound:
            self.findings.append(f"the file grew to {self.file_bytes} bytes, above {bound}")
        if self.reader_slots > READERS_USED_MAX:
            self.findings.append(f"{self.reader_slots} reader slots were taken at the end")
        for name, (early, late) in self.memory.items():
            if max(early, late) > RSS_MAX or late > early + RSS_GROWTH_MAX:
                self.findings.append(f"{name} ({ROLES[name]}): memory of {early}, then {late}")
        return {
            "acknowledged": sum(ledger.acknowledged for ledger in ledgers),
            "revisions won": won,
            "readers killed": self.readers_killed,
            "file MiB at most": self.file_bytes >> 20,
            "kept rows": kept,
            "reader slots": self.reader_slots,
            "memory MiB": {name: [n >> 20 for n in most] for name, most in self.memory.items()},
        }

    def _check_race(self, db: memcore.Database) -> int:
        won = [
            int(line)
            for path in self.folder.glob("race-*")
            for line in path.read_bytes().split()
            if line != b"0"
        ]
        last = db.session(RACE).revision
        if sorted(won) != list(range(1, last + 1)):
            twice = len(won) - len(set(won))
            self.findings.append(
                f"race: {len(won)} successes, {twice} of them twice, at revision {last}"
            )
        return len(won)


def anonymous_bytes(pid: int) -> int:
    """What a process holds besides the mapped file."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0  # it has just ended
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def parts(plan: Plan) -> list[Part]:
    """The soak: ``SECONDS_SHORT``, or ``SECONDS_LONG``, for all modes together."""
    chosen = os.environ.get("MEMCORE_SOAK_SECONDS")
    length = SECONDS_LONG / plan.thin if plan.long else SECONDS_SHORT
    seconds = float(chosen or length) / len(MODES)
    return [
        Part(f"soak, {mode}: {seconds:g} s, {plan.seed}", partial(play, mode, seconds, plan.seed))
        for mode in MODES
    ]


def play(mode: str, seconds: float, seed: int, say: Say) -> Outcome:
    """One soak of a new file."""
    say(f"{mode}: {seconds:g} s with {len(ROLES)} processes")
    facts: dict[str, Any] = {"seed": seed, "seconds": seconds}
    with tempfile.TemporaryDirectory(prefix="memcore-soak-") as where:
        soak = Soak(Path(where), seed, durability=mode)
        try:
            for name in ROLES:
                if name != "x":
                    soak.start(name)
            soak.watch(seconds)
            soak.finish()
            if not soak.findings:
                facts |= soak.judge()
        except (WrongError, MemcoreError) as error:
            soak.findings.append(f"{type(error).__name__}: {error}")
        finally:
            soak.close()
    return Outcome(f"soak, {mode}", int(facts.get("acknowledged", 0)), soak.findings, facts)
