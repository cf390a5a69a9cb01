"""One process that records a workload and judges its crash images; started by ``power``.

It is started under the recorder, forks whoever writes, reads or judges, and prints one JSON line.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from .children import ending, forked
from .controls import CONTROLS, NO_CONTROL, Control
from .judge import Image, Judge, rehearse
from .recording import preloaded, records
from .replay import Disk, cuts, missed
from .sealed import AVAILABLE
from .stage import Scene, record
from .timeline import Timeline
from .workloads import WORKLOADS

HANG_SECONDS = 60.0
_MEMORY = Path("/dev/shm")


class Case(NamedTuple):
    """What a trial is asked: ``images`` of a workload, or of them the ``only`` one.

    ``enough`` failing images end it; a ``log`` that was kept takes the place of a new recording.
    """

    workload: str
    durability: str
    control: str
    seed: str
    images: int
    enough: int = 0
    only: int = -1
    log: str = ""
    sealed: bool = False

    @property
    def mode(self) -> str:
        """The durability, and whether the file is encrypted."""
        return f"{self.durability}, key" if self.sealed else self.durability


class Trial:
    """Images in flight: one judging process each, a few at a time."""

    def __init__(self, judge: Judge, directory: Path, seats: int) -> None:
        self.judge = judge
        self.directory = directory
        self.seats = seats
        self.running: dict[int, tuple[int, int, float]] = {}
        self.findings: dict[int, list[str]] = {}
        self.broken: list[str] = []
        self.facts: dict[str, int] = {}
        self.done = 0

    def seat(self, number: int, image: Image) -> None:
        """Judge the image when there is room."""
        while len(self.running) >= self.seats:
            self.collect()
        place = self.directory / f"image{number}"
        place.mkdir()
        reading, writing = os.pipe()

        def work() -> None:
            os.close(reading)
            told = json.dumps(self.judge.judge(image, place)).encode()
            os.write(writing, told[:60_000])

        child = forked(work)
        os.close(writing)
        self.running[reading] = (child, number, time.monotonic() + HANG_SECONDS)

    def collect(self) -> None:
        """Take the verdict of whoever is ready; end whoever hangs."""
        soonest = min(deadline for _, _, deadline in self.running.values())
        patience = max(0.0, soonest - time.monotonic())
        ready = select.select(list(self.running), [], [], patience)[0]
        for pipe in ready or [p for p, r in self.running.items() if r[2] <= time.monotonic()]:
            child, number, _ = self.running.pop(pipe)
            if not ready:
                os.kill(child, signal.SIGKILL)
            with os.fdopen(pipe, "rb") as told:
                text = told.read()
            status = os.waitpid(child, 0)[1]
            self._take(number, text, status, hangs=not ready)
            shutil.rmtree(self.directory / f"image{number}")

    def _take(self, number: int, text: bytes, status: int, *, hangs: bool) -> None:
        self.done += 1
        if hangs:
            self.findings[number] = [f"hangs: no verdict after {HANG_SECONDS:.0f} s"]
        elif os.WIFSIGNALED(status):
            self.findings[number] = [f"opening it ended with {ending(status)}"]
        elif status:  # no verdict at all: neither good nor bad
            self.broken.append(f"image {number}: the judge itself failed")
        else:
            findings, facts = json.loads(text)
            for name, count in facts.items():
                self.facts[name] = self.facts.get(name, 0) + count
            if findings:
                self.findings[number] = findings


def run(case: Case) -> dict[str, Any]:
    """Record, replay, judge; everything follows from the case but the order of its threads."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="memcore-power-", dir=memory) as name:
        return _run_in(Path(name), case)


def _run_in(directory: Path, case: Case) -> dict[str, Any]:
    control = CONTROLS[case.control] if case.control else NO_CONTROL
    started, stage = time.monotonic(), directory / "stage"
    log = Path(case.log) if case.log else directory / "log"
    problems = [] if case.log else _record(stage, log, case, control)
    recorded = time.monotonic()
    happened = list(records(log))
    if not case.log:
        problems += [f"the recorder missed changes of {name}" for name in missed(happened, stage)]
    # A control's own file may promise nothing; what the workload was told is still a promise.
    timeline = Timeline(happened, "full" if case.durability == "none" else case.durability)
    judge = Judge(timeline, control, sealed=case.sealed)
    trial = Trial(judge, directory, seats=max(2, os.cpu_count() or 1))
    for number, image in _images(happened, case):
        if case.enough and len(trial.findings) >= case.enough:
            break
        trial.seat(number, image)
    while trial.running:
        trial.collect()
    problems += timeline.failures
    return {
        "problems": problems + trial.broken,
        "images": trial.done,
        "findings": sorted(trial.findings.items()),
        "facts": trial.facts,
        "log": _kept(log, case) if trial.findings or problems else "",
        "records": len(happened),
        "seen": len(timeline.seen),
        "seconds": [recorded - started, time.monotonic() - recorded],
    }


def _record(stage: Path, log: Path, case: Case, control: Control) -> list[str]:
    stage.mkdir()
    workload = WORKLOADS[case.workload]
    scene = Scene(workload, case.durability, control, case.seed, stage, log, case.sealed)
    return record(scene)


def _kept(log: Path, case: Case) -> str:
    """Where the log of a failure stays: the order of threads does not follow from a seed."""
    if case.control or case.log:
        return case.log
    name = f"memcore-power-{case.workload}-{case.mode.replace(', ', '-')}-{case.seed}.log"
    return str(shutil.copy(log, Path(tempfile.gettempdir(), name)))


def _images(happened: list[Any], case: Case) -> Iterator[tuple[int, Image]]:
    disk, at = Disk(), 0
    for number, cut, rng in cuts(happened, f"{case.seed}/{case.workload}", case.images):
        if case.only not in (-1, number):
            continue
        while at < cut:
            disk.replay(happened[at])
            at += 1
        twice = rng.random() < 0.5
        yield number, Image(cut, disk.crashed(rng), twice, Random(rng.random()))


def _rehearse() -> None:
    """Write and judge once before the first fork: an image pays for no import, no vocabulary.

    What is there by then never changes hands: the collector need not walk it in each child.
    """
    with tempfile.TemporaryDirectory() as name:
        rehearse(Path(name), sealed=AVAILABLE)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Run the case that stands on the command line, as JSON."""
    if not hasattr(ctypes.CDLL(None), "recorder_mark"):
        os.execve(sys.executable, [*sys.orig_argv], preloaded())
    faulthandler.enable()
    _rehearse()
    sys.stdout.write(json.dumps(run(Case(*json.loads(sys.argv[1])))) + "\n")


if __name__ == "__main__":
    main()
