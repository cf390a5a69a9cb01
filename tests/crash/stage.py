"""Runs a workload while the recorder is on: forks its processes, kills some, lets one only read."""

from __future__ import annotations

import itertools
import os
import select
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, NamedTuple

import memcore
from memcore.store import steady as pin

from .audits import audit_beside
from .children import Children, ending
from .controls import Control
from .quarantines import GUARD
from .recording import Recorder
from .sealed import FILE, open_any
from .verbs import GONE, HELD, SHARED, VERBS, Place, State, Step, tag_in, told_in
from .workloads import Lane, Operation, Workload

_LOOK_SECONDS = 0.002
_FLUSHES = 0.04
_KEYS = 6
_SECONDS = 60.0
_STEADY_MS = 2
_READER = "the reader"


class Scene(NamedTuple):
    """One recording: what runs, in which mode, under which planted bug, from which seed."""

    workload: Workload
    durability: str
    control: Control
    seed: str
    directory: Path
    log: Path
    sealed: bool = False


def record(scene: Scene) -> list[str]:
    """Run the workload to its end; what went wrong on the way."""
    recorder = Recorder()
    recorder.start(scene.directory, scene.log)
    over, finish = os.pipe()
    children = Children(_SECONDS)

    def watch() -> None:
        os.close(finish)
        _watch(scene, recorder, over)

    if scene.workload.watched:
        children.start(_READER, watch)
    os.close(over)
    with os.fdopen(finish, "wb"):
        findings = _run_processes(scene, recorder, children)
    while children.names:
        name, status = children.wait()
        findings += [f"{name} ended with {ending(status)}"] if status else []
    recorder.stop()
    return findings + [f"{name} hung" for name in children.hung]


def _run_processes(scene: Scene, recorder: Recorder, children: Children) -> list[str]:
    """Start every process anew when it was killed, until each has run to its end."""
    rng = Random(f"{scene.seed}/kills")
    kills = scene.workload.kills
    findings = []

    def start(name: str, die_after: int) -> None:
        children.start(name, lambda: _act(scene, recorder, name, die_after))

    for number in range(scene.workload.processes):
        start(f"{number}.0", rng.randint(1, scene.workload.life) if kills else -1)
    while children.names - {_READER}:
        name, status = children.wait()
        if status == signal.SIGKILL and name != _READER:
            number, _, life = name.partition(".")
            kills -= 1
            start(
                f"{number}.{int(life) + 1}",
                rng.randint(1, scene.workload.life * 2 // 3) if kills > 0 else -1,
            )
        elif status:
            findings.append(f"{name} ended with {ending(status)}")
    return findings


# --- who writes ----------------------------------------------------------------------------------


def _act(scene: Scene, recorder: Recorder, name: str, die_after: int) -> None:
    workload = scene.workload
    recorder.slow(workload.flush_us)
    recorder.die_after(die_after)
    scene.control.plant()
    _mark_steady_points(recorder)
    lanes = [f"{name}.{thread}" for thread in range(workload.threads)]
    for lane in lanes:
        recorder.mark("begin", lane=lane, number=0, operation=["opened"])
    db = open_database(scene)
    for lane in lanes:
        recorder.mark("ack", lane=lane, number=0)
    failures: list[str] = []

    def run(lane: str) -> None:
        try:
            run_lane(db, workload, recorder, lane, Random(f"{scene.seed}/{lane}"))
        except Exception:  # noqa: BLE001 - told to whoever judges
            failures.append(traceback.format_exc())
            recorder.mark("failure", lane=lane, what=traceback.format_exc()[-600:])

    threads = [Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    db.close()
    recorder.mark("closed", lanes=lanes)
    if failures:
        raise AssertionError(failures[0])


def _mark_steady_points(recorder: Recorder) -> None:
    """Have the log tell when a steady point begins and when it is done."""
    point, numbers = pin.SteadySync.sync, itertools.count()

    def marked(self: pin.SteadySync, *arguments: Any) -> None:
        token = f"{os.getpid()}/{next(numbers)}"
        recorder.mark("steady-begin", point=token)
        point(self, *arguments)
        recorder.mark("steady-end", point=token)

    pin.SteadySync.sync = marked  # type: ignore[method-assign]


def open_database(scene: Scene) -> memcore.Database:
    """Open the scene's file, or create it in the scene's mode."""
    return open_any(
        scene.directory / FILE,
        sealed=scene.sealed,
        durability=scene.durability,
        map_bytes=scene.workload.map_bytes,
        allow_unsafe=scene.durability == "none",
        steady_interval_ms=_STEADY_MS,
        audit=audit_beside(scene.directory / FILE) if scene.workload.audited else None,
        guard=GUARD if scene.workload.guarded else None,
    )


def run_lane(
    db: memcore.Database, workload: Workload, recorder: Recorder, lane: str, rng: Random
) -> None:
    """Do one lane's operations, with a mark before and behind each."""
    place = Place(db, lane)
    state: State = {}
    for number, operation in enumerate(_flushed(workload, Lane(lane, rng, state)), 1):
        name, *arguments = operation
        step = Step(lane, number, arguments)
        recorder.mark("begin", lane=lane, number=number, operation=operation)
        VERBS[name].act(place, step)
        recorder.mark("ack", lane=lane, number=number)
        VERBS[name].then(state, step)


def _flushed(workload: Workload, lane: Lane) -> Iterator[Operation]:
    """The lane's operations, and a flush now and then."""
    for operation in workload.lane(lane):
        yield operation
        if lane.rng.random() < _FLUSHES:
            yield ("flush",)


# --- who reads -----------------------------------------------------------------------------------


def _watch(scene: Scene, recorder: Recorder, over: int) -> None:
    """Look at the ends of all sessions, over and over; mark what was seen for the first time."""
    waiting = Event()
    latest: dict[str, int] = {}
    while not _is_over(over):
        try:
            with open_any(scene.directory / FILE, sealed=scene.sealed, read_only=True) as db:
                while not _is_over(over):
                    for lane, number in _ends(db):
                        if number > latest.get(lane, 0):
                            latest[lane] = number
                            recorder.mark("seen", lane=lane, number=number)
        except memcore.NotFoundError:
            waiting.wait(_LOOK_SECONDS)
        except (memcore.TamperedError, memcore.WrongKeyError, memcore.KeyFileError):
            if not scene.sealed:
                raise
            # Its keys were changed: what others encrypt since shows when it is opened again.
            waiting.wait(_LOOK_SECONDS)


def _is_over(over: int) -> bool:
    return bool(select.select([over], [], [], 0)[0])


def _ends(db: memcore.Database) -> list[tuple[str, int]]:
    """Lane and operation of the last item of every session and of some keys."""
    found = []
    for _, user in db.scopes():
        scope = db.scope(user=user)
        for entry in scope.sessions():
            for item in scope.session(entry.session_id).tail(1 if user != SHARED else 3):
                told = told_in(item)
                if told in (GONE, HELD):
                    continue
                lane, number, *_ = told.split("|")
                found.append((lane, int(number)))
        for _, value in scope.kv("facts").scan(reverse=True, limit=_KEYS):
            found.append((user, int(tag_in(value).split("|")[1])))
    return found
