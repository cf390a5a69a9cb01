"""``python -m tests.crash [NAME...] [--long]``: what the store survives, in one table.

Each check is a module of this package with ``parts(plan)``. The exit code is 1 if any has a
finding. ``--journal`` makes a run that can be stopped and started again; ``--part 0/2`` and
``--part 1/2`` share a run between two processes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "shim")]  # what pytest's settings do for the tests

from .outcome import Outcome, Part, Plan, merged  # noqa: E402

CHECKS = ("power", "kill", "soak", "hostile", "hostile_verbs", "full")
MEMORY = "/dev/shm"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Journal:
    """Parts that were run on this tree, each with its outcome: a line a part."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, tuple[Outcome, float]] = {}
        self._tree = _tree() if path else ""
        if path and path.exists():
            for line in path.read_text().splitlines():
                tree, name, outcome, seconds = json.loads(line)
                if tree == self._tree:
                    self._known[name] = (Outcome(*outcome), seconds)

    def get(self, part: Part) -> tuple[Outcome, float] | None:
        """What came of a part in an earlier run."""
        return self._known.get(part.name)

    def add(self, part: Part, outcome: Outcome, seconds: float) -> None:
        """Keep what came of a part."""
        if self._path:
            with self._path.open("a") as journal:
                journal.write(json.dumps([self._tree, part.name, outcome, seconds]) + "\n")


def _tree() -> str:
    """The commit that is checked out, and how many bytes differ from it."""
    commands = (["git", "rev-parse", "HEAD"], ["git", "diff", "HEAD"])
    commit, changes = (subprocess.check_output(command, cwd=TESTS) for command in commands)
    return f"{commit.decode().strip()}+{len(changes)}"


def run(parts: list[Part], journal: Journal) -> list[tuple[Outcome, float]]:
    """Run the parts that were not run before; one that raises is a finding."""
    ran: list[tuple[Outcome, float]] = []
    for number, part in enumerate(parts, 1):
        found = journal.get(part)
        if found is None:
            started = time.monotonic()
            try:
                outcome = part.work(say)
            except Exception:  # noqa: BLE001 - the other parts are run all the same
                outcome = Outcome(part.name, 0, [traceback.format_exc()], {})
            told = [f"{part.name}: {finding}" for finding in outcome.findings]
            found = (outcome._replace(findings=told), time.monotonic() - started)
            journal.add(part, *found)
        ran.append(found)
        cases, findings = _totals(ran)
        for finding in found[0].findings:
            say(f"FINDING {finding}")
        say(f"[{number}/{len(parts)}] {part.name}: {cases:,} cases, {findings} findings so far")
    return ran


def _totals(ran: list[tuple[Outcome, float]]) -> tuple[int, int]:
    return sum(one.done for one, _ in ran), sum(len(one.findings) for one, _ in ran)


def table(ran: list[tuple[Outcome, float]]) -> list[str]:
    """The closing table, every finding, and a last line of sums."""
    lines = ["", f"{'check':<20}{'cases':>9}{'findings':>10}{'seconds':>9}  facts"]
    outcomes = merged(outcome for outcome, _ in ran)
    for outcome in outcomes:
        facts = ", ".join(f"{name} {fact}" for name, fact in outcome.facts.items())
        seconds = sum(took for one, took in ran if one.name == outcome.name)
        lines.append(
            f"{outcome.name:<20}{outcome.done:>9,}{len(outcome.findings):>10}{seconds:>9.0f}"
            f"  {facts}"
        )
    lines += [f"FINDING {finding}" for o in outcomes for finding in o.findings]
    cases, findings = _totals(ran)
    return [*lines, f"total: {cases:,} cases, {findings} findings in {len(ran)} parts"]


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    share = int(number), int(of)
    if not 0 <= share[0] < share[1]:
        raise ValueError(text)
    return share


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; or all")
    parser.add_argument("--long", action="store_true", help="the long run: minutes to hours")
    parser.add_argument(
        "--thin", type=int, default=1, metavar="N", help="one in N cases of the long run"
    )
    parser.add_argument("--seed", type=int, default=1, help="what all chances follow from")
    parser.add_argument("--count", type=int, default=0, help="cases a mode, in place of its number")
    parser.add_argument("--part", type=_share, default=(0, 1), metavar="K/N", help="every Nth part")
    parser.add_argument("--journal", type=Path, help="a file of what is done, to go on from there")
    parser.add_argument("--memory", action="store_true", help=f"lay the files into {MEMORY}")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in CHECKS:
            parser.error(f"there is no check {name!r}: choose of {', '.join(CHECKS)}")
    if asked.thin < 1:
        parser.error("--thin: at least 1")
    if asked.memory:
        tempfile.tempdir = MEMORY  # of this process: what a finding keeps is kept under TMPDIR
    share, of = asked.part
    plan = Plan(
        asked.long, asked.seed, asked.count, max(1, (os.cpu_count() or 1) // of), asked.thin
    )
    parts: list[Part] = []
    for name in asked.names or CHECKS:
        parts += importlib.import_module(f"{__package__}.{name}").parts(plan)
    ran = run(parts[share::of], Journal(asked.journal))
    for line in table(ran):
        say(line)
    return int(any(outcome.findings for outcome, _ in ran))


if __name__ == "__main__":
    sys.exit(main())
