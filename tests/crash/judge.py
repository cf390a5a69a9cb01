"""Opens a crash image and says what is wrong with it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from lmdb.verify import verify

import memcore
from memcore.store import steady

from . import replay
from .audits import audit_findings
from .children import Children, ending
from .controls import Control
from .erasures import erased_since, erasure_findings, finished, is_erased
from .graphs import go_on
from .recording import Op, Recorder, mark_of, records
from .redactions import counts_finished
from .sealed import FILE, key_findings, open_any, put_back
from .timeline import Bounds, Timeline, compare
from .verbs import VERBS, Place, Step, observe

_FINDINGS, _FINDING_CHARS = 10, 400
_LOCK_BYTES = 72 * 1024
_TOGETHER, _TOGETHER_SECONDS = 0.2, 40.0
AFTER = "after"
"""The lane of what the judge itself stores in an image."""


class Image(NamedTuple):
    """One crash image: the cut that made it, what it must hold, and chances for a second cut."""

    cut: int
    contents: dict[str, bytes]
    twice: bool
    rng: Random


class LostError(Exception):
    """A recovery has something else than it must have."""


class Report(NamedTuple):
    """What is wrong with an image, and what happened to it."""

    findings: list[str]
    facts: dict[str, int]


class Judge:
    """Judges the images of one recording; each in a process of its own."""

    def __init__(self, timeline: Timeline, control: Control, *, sealed: bool = False) -> None:
        self.timeline = timeline
        self.control = control
        self.sealed = sealed

    def _open(self, path: Path, **options: bool) -> memcore.Database:
        return open_any(path, sealed=self.sealed, **options)

    def judge(self, image: Image, directory: Path) -> Report:
        """Whatever is wrong with the image; with ``twice``, after a second cut in its recovery."""
        self.control.plant_in_judge()
        _boot(1)
        facts: dict[str, int] = {}
        bounds = self.timeline.bounds(image.cut)
        first = _lay_out(image.contents, directory / "first")
        try:
            if image.twice:
                facts["twice"] = 1
                second, bounds, after = self._crash_again(image, bounds, first)
                _boot(2)
                place = _lay_out(second, directory / "second")
                findings = self._judge_files(image, place, bounds, after, facts)
            else:
                findings = self._judge_files(image, first, bounds, Bounds(0, 0), facts)
        except Exception as error:  # noqa: BLE001 - that is the finding
            findings = [_told(error)]
        return Report([finding[:_FINDING_CHARS] for finding in findings[:_FINDINGS]], facts)

    def _crash_again(
        self, image: Image, bounds: dict[str, Bounds], directory: Path
    ) -> tuple[dict[str, bytes], dict[str, Bounds], Bounds]:
        """Record the recovery and two first changes, and cut the power within them.

        What recovery showed must stay, and what it acknowledged.
        """
        recorder, disk = Recorder(), replay.Disk(directory)
        path = directory.parent / "recovery.log"
        recorder.start(directory, path)
        with self._open(directory / FILE) as db:
            verdict = compare(self.timeline, bounds, observe(db, self._blobs()))
            if verdict.findings:
                raise LostError("; ".join(verdict.findings))
            recorder.mark("seen", lanes=verdict.present)
            for number in range(2):
                recorder.mark("begin")
                _change(db, number)
                recorder.mark("ack")
                db.flush()
                recorder.mark("flushed")
        recorder.stop()
        log = list(records(path))
        cut = image.rng.choice([0, *replay.moments(log)])
        full = self.timeline.durability == "full"
        counts = {"begin": 0, "ack": 0, "flushed": 0}
        for record in log[:cut]:
            disk.replay(record)
            mark = mark_of(record) if record.op is Op.MARK else {"kind": ""}
            if mark["kind"] in counts:
                counts[mark["kind"]] += 1
            elif mark["kind"] == "seen" and full:
                bounds = {
                    lane: Bounds(mark["lanes"][lane], ceiling)
                    for lane, (_, ceiling) in bounds.items()
                }
        after = Bounds(counts["ack" if full else "flushed"], counts["begin"])
        return disk.crashed(image.rng), bounds, after

    def _blobs(self) -> dict[str, list[str]]:
        return {lane: track.blobs() for lane, track in self.timeline.tracks.items()}

    def _judge_files(
        self,
        image: Image,
        directory: Path,
        bounds: dict[str, Bounds],
        after: Bounds,
        facts: dict[str, int],
    ) -> list[str]:
        _leave_lock(directory / FILE, image.rng)
        findings = self._judge_copies(directory, image.cut, facts)
        path = directory / FILE
        if not path.exists():
            facts["absent"] = 1
            if any(floor for floor, _ in bounds.values()) or after.floor:
                return [*findings, "the file is gone, though its creation was acknowledged"]
            return findings + self._judge_file(path, bounds, after, facts)
        if self.sealed:
            findings += key_findings(path, self.timeline, image.cut)
        if self._waits_for_recovery(path):
            facts["recovered"] = 1
            if image.rng.random() < _TOGETHER:
                facts["together"] = 1
                findings += _open_together(self._open, path)
                after = Bounds(after.floor + 2, after.ceiling + 2)
        return findings + self._judge_file(path, bounds, after, facts)

    def _waits_for_recovery(self, path: Path) -> bool:
        """Whether a handle that may not write sees that something is to be done."""
        try:
            with self._open(path, read_only=True) as db:
                return db.needs_recovery
        except memcore.StorageError:
            if self.timeline.durability == "relaxed":
                return True
            raise

    def _judge_file(
        self,
        path: Path,
        bounds: dict[str, Bounds],
        after: Bounds,
        facts: dict[str, int],
        erased: Mapping[str, bool] = MappingProxyType({}),
    ) -> list[str]:
        """Look, write three more changes, look again; some users may, or must, be erased."""
        with self._open(path) as db:
            findings = db.check() + audit_findings(db, path)
            before = observe(db, self._blobs())
            mine = len(before.pop(AFTER, {}))
            findings += erasure_findings(before, erased)
            gone = {lane for lane in erased if is_erased(before.get(lane, {}))}
            verdict = compare(
                self.timeline,
                {lane: bounds[lane] for lane in bounds.keys() - gone},
                {lane: before[lane] for lane in before.keys() - gone},
            )
            findings += verdict.findings
            if not after.floor <= mine <= after.ceiling:
                findings.append(f"recovery's own changes: {mine}, not within {after}")
            for number in range(4, 7):
                _change(db, number)
        with self._open(path) as db:
            told = db.check() + audit_findings(db, path)
            findings += [f"afterwards: {finding}" for finding in told]
            again = observe(db, self._blobs())
            if len(again.pop(AFTER, {})) != mine + 3:
                findings.append("afterwards: the three more changes are not all there")
            if again != before:
                findings.append("afterwards: what was there has changed")
            findings += go_on(db)
            findings += counts_finished(db, again)
            findings += finished(db, path, self.timeline, verdict, facts)
        return findings + [f"verify: {finding}" for finding in verify(str(path), subdir=False)]

    def _judge_copies(self, directory: Path, cut: int, facts: dict[str, int]) -> list[str]:
        """A backup that was acknowledged is there; one that has its name is whole."""
        findings = []
        for name, required, begun, ended in self.timeline.copies(cut):
            path = directory / name
            if not path.exists():
                if required:
                    findings.append(f"{name}: an acknowledged backup is gone")
                continue
            facts["copies"] = facts.get("copies", 0) + 1
            bounds = self.timeline.between(begun, ended)
            erased = erased_since(self.timeline, begun, cut) if self.sealed else {}
            place = put_back(path) if self.sealed else path
            told = self._judge_file(place, bounds, Bounds(0, 0), facts, erased)
            findings += [f"{name}: {finding}" for finding in told]
        return findings


def rehearse(directory: Path, *, sealed: bool) -> None:
    """Do once what judging does, on a file of its own: everything is imported behind it."""
    path = directory / FILE
    with open_any(path, sealed=sealed) as db:
        _change(db, 0)
        observe(db, {})
        go_on(db)
        counts_finished(db, {})
        db.check()
    verify(str(path), subdir=False)


def _boot(number: int) -> None:
    """Make it look as if the machine had started anew."""
    steady.boot_id = lambda: number.to_bytes(16)


def _change(db: memcore.Database, number: int) -> None:
    step = Step(AFTER, number, [f"s{number}", 300])
    VERBS["append"].act(Place(db, AFTER), step)


def _open_together(opening: Callable[[Path], memcore.Database], path: Path) -> list[str]:
    """Two processes find the file after the power cut; both store something."""
    children = Children(_TOGETHER_SECONDS)

    def use(number: int) -> None:
        with opening(path) as db:
            _change(db, number)

    for number in (2, 3):
        children.start(f"opener {number}", lambda number=number: use(number))
    ended = []
    while children.names:
        ended.append(children.wait())
    return [f"{name} ended with {ending(status)}" for name, status in ended if status]


def _leave_lock(path: Path, rng: Random) -> None:
    """LMDB's lock file lies beside the file after a power cut, with anything in it, or does not."""
    lock = path.with_name(f"{path.name}-lock")
    rest = rng.choice((None, bytes(_LOCK_BYTES), rng.randbytes(_LOCK_BYTES)))
    if rest is None:
        lock.unlink(missing_ok=True)
    else:
        lock.write_bytes(rest)


def _lay_out(contents: dict[str, bytes], directory: Path) -> Path:
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return directory


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
