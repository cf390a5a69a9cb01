"""Hostile files: damaged images of closed files, each opened in a process of its own.

Whatever the bytes, a database answers with what was stored, with a typed error, or with a finding
of ``check()``. A process that dies of a signal, takes more than ``CPU_SECONDS`` or waits for ever,
takes more memory than ``RESIDENT_BYTES`` or raises anything untyped is a finding, and so is

* an item, value or blob that reads as nothing that was ever stored under its name: always;
* an answer that is missing or of another time: if no read, no verifying opening and no ``check()``
  has a word about it. Three sorts of images are excused, for nobody can tell: those that are wholly
  the state before the last transaction (its meta page is gone), those that had pages of older
  states or a redo record with a right checksum put in, and values that were sealed again.

Images that a verifying opening refuses are opened without it as well. LMDB trusts what lies below
the pages that every opening looks at, so *reading and writing* these may end the process: that is
the residual, which is counted and not a finding. Opening them, ``check()``, and whatever concerns a
store that is small enough to be looked at as a whole get no such excuse.

``python -m tests.crash.hostile [--seed N] NUMBER...`` shows single images.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest import mock

import memcore
from memcore.errors import InternalError, MemcoreError
from memcore.store import steady

from .hostile_anatomy import Anatomy, anatomy
from .hostile_mutators import mutate
from .hostile_reading import Observed, differences, observe
from .hostile_specimens import BOOT, MAP_BYTES, Specimen, fresh, make
from .outcome import Outcome, Part, Plan, Say

IMAGES_SHORT, IMAGES_LONG = 500, 10_000
IMAGES_A_PART = 500
CPU_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""By the clock: reached only by who waits for ever."""
RESIDUAL_SECONDS = 3.0
RESIDUAL = "unverified"
"""What a child says before it does what a refused image may kill it for."""
MEMORY_BYTES = 1024**3
"""Address space on top of what the warm interpreter has."""
FILE_BYTES = 64 * 1024**2
"""No file may grow to this: the images have two megabytes."""
RESIDENT_BYTES = 256 * 1024**2
"""So much more may be resident after an image than before."""
FINDINGS_MAX = 100


@dataclass(slots=True)
class Verdict:
    """What became of one image."""

    findings: list[str] = field(default_factory=list)
    outcome: str = ""


def parts(plan: Plan) -> list[Part]:
    """Open ``IMAGES_SHORT`` or ``IMAGES_LONG`` images; findings name theirs by number."""
    images = range(plan.cases(IMAGES_SHORT, IMAGES_LONG))
    found = []
    for start in images[::IMAGES_A_PART]:
        numbers = images[start : start + IMAGES_A_PART]
        named = f"hostile: {numbers.start} to {numbers.stop} of {plan.seed}"
        found.append(Part(named, partial(_examine, plan, numbers)))
    return found


def _examine(plan: Plan, numbers: range, say: Say) -> Outcome:
    with Laboratory(plan.seed, plan.jobs) as lab:
        return lab.examine(numbers, say)


class Laboratory:
    """Specimens, and a folder for their images."""

    def __init__(self, seed: int, jobs: int = 2) -> None:
        self.seed = seed
        self.jobs = jobs
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(
            prefix="hostile-", dir=memory if os.access(memory, os.W_OK) else None
        )
        self.folder = Path(self._folder.name)
        self.specimens = make(fresh(self.folder / "specimens"), seed)
        self.anatomies = [anatomy(specimen.content) for specimen in self.specimens]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def image(self, number: int) -> tuple[Specimen, list[str], Any]:
        """The specimen, the mutators and the result of one number."""
        dice = random.Random(f"{self.seed}:{number}")
        at = dice.choices(range(4), (10, 8, 2, 2))[0]
        found: Anatomy = self.anatomies[at]
        return self.specimens[at], *mutate(dice, self.specimens[at], found)

    def examine(self, numbers: range, say: Say) -> Outcome:
        """Open the images, several at a time, each in a child."""
        findings: list[str] = []
        outcomes: Counter[str] = Counter()
        done = 0
        for number, verdict in self._verdicts(iter(numbers)):
            done += 1
            outcomes[verdict.outcome] += 1
            for text in verdict.findings:
                names = "+".join(self.image(number)[1])
                say(f"image {number} of seed {self.seed} ({names}): {text}")
                findings.append(f"image {number} of seed {self.seed} ({names}): {text}")
            if len(findings) >= FINDINGS_MAX:
                break
        return Outcome("hostile", done, findings, dict(sorted(outcomes.items())))

    def _verdicts(self, numbers: Iterator[int]) -> Iterator[tuple[int, Verdict]]:
        running: dict[int, Child] = {}
        with selectors.DefaultSelector() as selector:
            try:
                while True:
                    while len(running) < self.jobs:
                        number = next(numbers, None)
                        if number is None:
                            break
                        child = Child(self, number)
                        running[child.pid] = child
                        selector.register(child.pipe, selectors.EVENT_READ, child)
                    if not running:
                        return
                    for key, _ in selector.select(0.5):
                        key.data.read()
                    for child in list(running.values()):
                        if child.ended or child.is_late:
                            selector.unregister(child.pipe)
                            del running[child.pid]
                            yield child.number, child.verdict()
            finally:
                for child in running.values():
                    child.verdict()


class Child:
    """One image in one forked process, which tells through a pipe how far it came."""

    def __init__(self, lab: Laboratory, number: int) -> None:
        self.number = number
        self.pipe, writing = os.pipe()
        self.folder = lab.folder / str(number)
        self.folder.mkdir()
        self.text = b""
        self.ended = False
        self.began = time.monotonic()
        self.before = resident_bytes()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(self.pipe)
                _in_child(lab, number, self.folder, lambda word: _tell(writing, word))
                status = 0
            finally:
                os._exit(status)
        os.close(writing)

    @property
    def is_late(self) -> bool:
        limit = RESIDUAL_SECONDS if self.is_residual else PATIENCE_SECONDS
        return time.monotonic() - self.began > limit

    @property
    def is_residual(self) -> bool:
        return f"\n{RESIDUAL}".encode() in self.text

    def read(self) -> None:
        """Take what the child has said."""
        piece = os.read(self.pipe, 65536)
        self.text += piece
        self.ended = not piece

    def verdict(self) -> Verdict:
        """Wait for the end, or make one."""
        late = not self.ended
        if late:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        _, status, used = os.wait4(self.pid, 0)
        os.close(self.pipe)
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()
        *_, step, last = ["start", "", *self.text.decode("utf-8", "replace").splitlines()]
        if self.is_residual and (late or os.WIFSIGNALED(status)):
            name = "hang" if late else signal.Signals(os.WTERMSIG(status)).name
            return Verdict([], f"{RESIDUAL}: {name}")
        if late:
            return Verdict([f"hangs after {last!r}"], "hang")
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return Verdict([f"dies of {name} after {last!r}"], name)
        if status or not last.startswith("{"):
            return Verdict([f"the child ends with {status} after {last!r} ({step!r})"], "broken")
        verdict = Verdict(**json.loads(last))
        grown = used.ru_maxrss * 1024 - self.before
        if grown > RESIDENT_BYTES:
            verdict.findings.append(f"{grown >> 20} MiB more were resident")
        return verdict


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def _tell(fd: int, word: str) -> None:
    os.write(fd, word.encode("utf-8", "backslashreplace") + b"\n")


def _in_child(lab: Laboratory, number: int, folder: Path, tell: Callable[[str], None]) -> None:
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    specimen, _, victim = lab.image(number)
    path = folder / "image"
    path.write_bytes(victim.image)
    boot = BOOT if number % 2 else bytes(16)
    with mock.patch.object(steady, "boot_id", return_value=boot):
        verdict = Examination(specimen, path, tell).judge(stale=victim.stale, sealed=victim.sealed)
    if path.stat().st_size >= FILE_BYTES // 2:
        verdict.findings.append(f"the file grew to {path.stat().st_size} bytes")
    tell(json.dumps({"findings": verdict.findings, "outcome": verdict.outcome}))


class Examination:
    """Everything that is asked of one image."""

    def __init__(self, specimen: Specimen, path: Path, tell: Callable[[str], None]) -> None:
        self.specimen = specimen
        self.path = path
        self.tell = tell
        self.crashes: list[str] = []
        self.refusals: list[str] = []
        self.reports: list[str] = []

    def judge(self, *, stale: bool, sealed: bool) -> Verdict:
        """Open with the full walk, for reading and for writing; read all; change; check."""
        if self.specimen.name == "relaxed":
            self._opened("settle", lambda _: Observed())  # after a power cut: else nobody reads it
        sound = self._opened("verify", lambda _: Observed(), read_only=True, verify=True)
        if sound is None and self._opened("quick", self._check_refused, read_only=True) is None:
            return Verdict(self.crashes, "refused")
        if sound is None and self.specimen.name not in ("small", "relaxed"):
            self.tell(RESIDUAL)
        looked = self._opened("read-only", self._look, read_only=True)
        worked = self._opened("writable", self._work)
        findings = self.crashes
        outcome = "refused"
        for mode, found in (("read-only", looked), ("writable", worked)):
            if found is None:
                continue
            outcome = "opened"
            specimen = self.specimen
            wrong, other = differences(found, specimen.truth, specimen.past)
            if sealed:
                continue
            findings += [f"{mode}: wrong: {text}" for text in wrong]
            if not (wrong or other):
                outcome = "sound"
                continue
            reported = [*found.errors, *self.reports, *self.refusals]
            if reported:
                outcome = "reported"
            elif any(state.answers == found.answers for state in specimen.previous):
                outcome = "one transaction back"
            elif stale:
                outcome = "older pages"
            else:
                findings.append(f"{mode}: {other} answers differ and nothing is reported")
        return Verdict(findings[:9], outcome)

    def _opened(
        self, mode: str, fn: Callable[[memcore.Database], Observed], **options: Any
    ) -> Observed | None:
        """What ``fn`` made of the database; None if it was refused."""
        self.tell(f"{mode}: open")
        try:
            with memcore.open(self.path, create=False, map_bytes=MAP_BYTES, **options) as db:
                found = fn(db)
                self.tell(f"{mode}: close")
        except InternalError as error:
            self.crashes.append(f"{mode}: InternalError: {error}")
        except MemcoreError as error:
            self.refusals.append(f"{mode}: {error}")
        except Exception as error:  # noqa: BLE001 - finding these is what this is for
            self.crashes.append(f"{mode}: {type(error).__name__}: {error}")
        else:
            self.crashes += [f"{mode}: {text}" for text in found.crashes]
            return found
        return None

    def _check_refused(self, db: memcore.Database) -> Observed:
        """``check()`` is safe where reading is not, and has something to say."""
        self.tell("quick: check")
        found = Observed()
        before = len(self.reports)
        self._checked(found, db)
        if len(self.reports) == before:
            found.crashes.append("check finds nothing in what a verifying opening refuses")
        return found

    def _look(self, db: memcore.Database) -> Observed:
        self.tell("read-only: read")
        found = observe(db, self.specimen.atlas)
        self.tell("read-only: check")
        self._checked(found, db)
        return found

    def _checked(self, found: Observed, db: memcore.Database) -> None:
        """``check()`` raises nothing."""
        noted = Observed()
        if noted.ask(("check",), db.check):
            self.reports += noted.answers["check",]
        found.crashes += noted.crashes + [f"check raises {error}" for error in noted.errors]

    def _work(self, db: memcore.Database) -> Observed:
        self.tell("writable: read")
        found = observe(db, self.specimen.atlas)
        after = Observed()
        for app, user, name in self.specimen.atlas.sessions[:12]:
            self.tell(f"writable: append to {name[:9]}")
            message = {"role": "user", "content": name}
            scope = db.scope(app=app, user=user)

            def append(scope: Any = scope, message: Any = message, name: str = name) -> Any:
                session = scope.session(name, orphans="keep")
                return session.get(session.append(message).seq).message

            if after.ask(("append", name), append) and after.answers["append", name] != message:
                found.crashes.append(f"an item just appended reads {after.answers['append', name]}")
        self.tell("writable: change")
        state = db.scope().kv("state")
        after.ask(("put",), lambda: state.put("raw", b"x" * 20_000))
        after.ask(("delete",), lambda: state.delete("key7"))
        after.ask(("clear",), lambda: state.delete_range("key2", "key4"))
        after.ask(("blob",), lambda: db.scope().blobs.put(b"y" * 100_000))
        after.ask(("compact",), lambda: db.session("long").compact(keep_last=9))
        after.ask(("undo",), lambda: len(db.session("undone").undo(3)))
        after.ask(("remove",), lambda: db.delete_session("large"))
        after.ask(("forks",), lambda: db.delete_session("child"))
        after.ask(("collect",), db.scope().blobs.collect)
        found.crashes += after.crashes
        self.tell("writable: check")
        self._checked(found, db)
        self.tell("writable: read again")
        found.crashes += observe(db, self.specimen.atlas).crashes
        return found


def main() -> None:
    """Show single images."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the image here instead of opening it")
    parser.add_argument("numbers", type=int, nargs="+")
    options = parser.parse_args()
    with Laboratory(options.seed) as lab:
        for number in options.numbers:
            specimen, names, victim = lab.image(number)
            sys.stdout.write(f"{number}: {specimen.name}, {'+'.join(names)}\n")
            if options.keep:
                options.keep.write_bytes(victim.image)
                continue
            ((_, verdict),) = lab._verdicts(iter([number]))
            sys.stdout.write(f"  {verdict.outcome}\n")
            sys.stdout.writelines(f"  {text}\n" for text in verdict.findings)


if __name__ == "__main__":
    main()
