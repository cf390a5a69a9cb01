"""Measuring: interleaved races, medians with their spread, rows of the comparison table."""

from __future__ import annotations

import gc
import inspect
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

__all__ = [
    "FULL",
    "QUICK",
    "SMOKE",
    "Effort",
    "Figure",
    "NotInstalled",
    "Race",
    "Row",
    "Target",
    "absent",
    "at_least",
    "at_most",
    "compare",
    "in_child",
    "measure",
    "paired",
    "race",
    "race_async",
    "race_each",
    "race_each_async",
    "scratch",
    "settle",
    "slow_flush_place",
]

HERE = Path(__file__).resolve().parent
SHIM = HERE.parent / "tests" / "shim"
Action = Callable[[], Any]


class NotInstalled(Exception):  # noqa: N818 - a state of this machine, not a failure
    """A rival is not there; the row says so."""


# --- how much work -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run may take: fewer rounds and shorter histories when it is a look or a test."""

    name: str
    rounds_divisor: int
    items_divisor: int

    def rounds(self, wanted: int) -> int:
        """Of ``wanted`` rounds those that are run; never fewer than 2."""
        return max(2, wanted // self.rounds_divisor)

    def items(self, wanted: int) -> int:
        """Of ``wanted`` items those that are made; never fewer than 60."""
        return max(min(wanted, 60), wanted // self.items_divisor)


FULL = Effort("full", 1, 1)
QUICK = Effort("quick", 5, 10)
SMOKE = Effort("smoke", 10**6, 10**6)
"""For tests: everything runs once, no figure means anything."""


# --- figures -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with its spread."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        """The figure of some samples."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(*(ordered[round(last * at)] for at in (0.5, 0.1, 0.9)))

    def scaled(self, by: float) -> Figure:
        """In another unit."""
        return Figure(self.median * by, self.p10 * by, self.p90 * by)


@dataclass(slots=True)
class Race:
    """What two sides of a comparison took, in nanoseconds an operation, and round by round."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """Ours through theirs, one a round."""

    def add(self, ours: list[float], theirs: list[float]) -> None:
        """Take in one round."""
        self.ours += ours
        self.theirs += theirs
        self.ratios.append(Figure.of(ours).median / max(Figure.of(theirs).median, 1e-9))

    @classmethod
    def read(cls, found: dict[str, list[float]]) -> Race:
        """A race that a child process ran."""
        return cls(found["ours"], found["theirs"], found["ratios"])

    def written(self) -> dict[str, list[float]]:
        """For the parent process."""
        return {"ours": self.ours, "theirs": self.theirs, "ratios": self.ratios}


def settle() -> None:
    """Take what set-up left out of the garbage collector's way; both sides profit alike."""
    gc.collect()
    gc.freeze()


def _timed(action: Action, calls: int, ops: int, after: Action | None = None) -> list[float]:
    found = []
    for _ in range(calls):
        start = perf_counter_ns()
        action()
        found.append((perf_counter_ns() - start) / ops)
        if after is not None:
            after()
    return found


def measure(action: Action, *, rounds: int, ops: int = 1) -> list[float]:
    """Nanoseconds an operation; ``action`` does ``ops`` of them."""
    settle()
    action()
    return _timed(action, rounds, ops)


def race(
    ours: Action,
    theirs: Action,
    *,
    rounds: int,
    calls: int = 1,
    ops: int = 1,
    after: Action | None = None,
) -> Race:
    """Both sides in turn, the order changed each round; the first round is thrown away.

    ``after`` runs behind every call, off the clock.
    """
    found = Race()
    settle()
    for number in range(rounds + 1):
        if number % 2:
            mine = _timed(ours, calls, ops, after)
            other = _timed(theirs, calls, ops, after)
        else:
            other = _timed(theirs, calls, ops, after)
            mine = _timed(ours, calls, ops, after)
        if number:
            found.add(mine, other)
    return found


def race_each(
    actions: Sequence[Action], *, rounds: int, ops: int = 1, after: Action | None = None
) -> list[Race]:
    """Several sides in turn; each is compared with the first. ``after`` as in ``race``."""
    found = [Race() for _ in actions]
    settle()
    for number in range(rounds + 1):
        times = [_timed(action, 1, ops, after) for action in actions]
        for side, mine in zip(found, times, strict=True):
            if number:
                side.add(mine, times[0])
    return found


async def _timed_async(action: Action, calls: int) -> list[float]:
    found = []
    for _ in range(calls):
        start = perf_counter_ns()
        result = action()
        if inspect.isawaitable(result):
            await result
        found.append(float(perf_counter_ns() - start))
    return found


async def race_async(
    ours: Callable[[], Awaitable[Any] | Any],
    theirs: Callable[[], Awaitable[Any] | Any],
    *,
    rounds: int,
    calls: int = 1,
) -> Race:
    """``race`` inside a running loop, as an agent's runtime is: no side pays for starting one."""
    found = Race()
    settle()
    for number in range(rounds + 1):
        if number % 2:
            mine = await _timed_async(ours, calls)
            other = await _timed_async(theirs, calls)
        else:
            other = await _timed_async(theirs, calls)
            mine = await _timed_async(ours, calls)
        if number:
            found.add(mine, other)
    return found


async def race_each_async(
    actions: Sequence[Action], *, rounds: int, calls: int = 1
) -> list[list[list[float]]]:
    """Several sides in turn inside a running loop, another one first each round.

    For each side the nanoseconds of its calls, round by round; the first round is thrown away.
    """
    found: list[list[list[float]]] = [[] for _ in actions]
    settle()
    for number in range(rounds + 1):
        for step in range(len(actions)):
            at = (step + number) % len(actions)
            times = await _timed_async(actions[at], calls)
            if number:
                found[at].append(times)
    return found


def paired(ours: list[list[float]], theirs: list[list[float]]) -> Race:
    """Two sides of ``race_each_async`` as a race."""
    result = Race()
    for mine, other in zip(ours, theirs, strict=True):
        result.add(mine, other)
    return result


# --- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """What a row promises: its ``subject`` (ratio or ours) is at most or at least ``bound``."""

    subject: str
    bound: float
    most: bool

    def met(self, row: Row) -> bool | None:
        """Whether the median keeps it; None without a figure."""
        figure = row.ratio if self.subject == "ratio" else row.ours
        if figure is None:
            return None
        return figure.median <= self.bound if self.most else figure.median >= self.bound


def at_most(bound: float, subject: str = "ratio") -> Target:
    """The subject's median may not exceed the bound."""
    return Target(subject, bound, most=True)


def at_least(bound: float, subject: str = "ratio") -> Target:
    """The subject's median may not fall short of the bound."""
    return Target(subject, bound, most=False)


@dataclass(slots=True)
class Row:
    """One row of the comparison table."""

    question: str
    unit: str
    ours: Figure | None
    n: int
    durability: str = "-"
    rival: str = ""
    theirs: Figure | None = None
    ratio: Figure | None = None
    faster: bool = False
    """The ratio says how many times faster we are; else how many times their figure ours is."""
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is kept; None without a target or a figure."""
        return None if self.target is None else self.target.met(self)


_UNITS = {"ns": 1.0, "µs": 1e-3, "ms": 1e-6}


def compare(
    question: str,
    found: Race,
    rival: str,
    *,
    unit: str = "µs",
    durability: str = "-",
    target: Target | None = None,
    faster: bool = False,
    note: str = "",
) -> Row:
    """The row of a race."""
    by = _UNITS[unit]
    ratios = [1 / ratio for ratio in found.ratios] if faster else found.ratios
    return Row(
        question,
        unit,
        Figure.of(found.ours).scaled(by),
        len(found.ours),
        durability=durability,
        rival=rival,
        theirs=Figure.of(found.theirs).scaled(by),
        ratio=Figure.of(ratios),
        faster=faster,
        target=target,
        note=note,
    )


def absent(
    question: str, rival: str, why: object, *, durability: str = "-", target: Target | None = None
) -> Row:
    """The row of a comparison that this machine cannot make."""
    return Row(
        question, "", None, 0, durability=durability, rival=rival, target=target, note=str(why)
    )


# --- places and processes ------------------------------------------------------------------------


@contextmanager
def scratch(place: str | None = None) -> Iterator[Path]:
    """A directory that is gone afterwards; on the disk that MEMCORE_BENCH_DIR names."""
    parent = place or os.environ.get("MEMCORE_BENCH_DIR") or None
    path = Path(tempfile.mkdtemp(prefix="memcore-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def slow_flush_place() -> str | None:
    """A directory in memory: there a flush costs what the shim sleeps, and nothing else."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def in_child(module: str, function: str, *, shim: bool = False, **arguments: Any) -> Any:
    """Call ``module.function(**arguments)`` in a fresh interpreter; under the flush counter.

    Raises:
        NotInstalled: the shim cannot be compiled here, or the function needs what is not there.
    """
    environment = dict(os.environ)
    if shim:
        try:
            environment = runpy.run_path(str(SHIM / "flushcount.py"))["preloaded"]()
        except (RuntimeError, OSError) as error:
            raise NotInstalled(f"no flush counter: {error}") from error
    paths = [str(HERE.parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, str(HERE / "child.py"), module, function, json.dumps(arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module}.{function} failed in a child process:\n{done.stderr}")
    answer = json.loads(done.stdout)
    if "not_installed" in answer:
        raise NotInstalled(answer["not_installed"])
    return answer["result"]
