"""``python -m tests.crash [NAME...] [--long] [--seed N]``: what the store survives, in one table.

Each check is a module of this package with ``run(*, long, seed, say)``. The exit code is 1 if any
has a finding.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "shim")]  # what pytest's settings do for the tests

from .outcome import Outcome  # noqa: E402

CHECKS = ("power", "kill", "soak", "hostile", "hostile_verbs", "full")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(name: str, *, long: bool, seed: int) -> list[tuple[Outcome, float]]:
    """One check, and how long each of its outcomes took; a check that cannot run is a finding."""
    started = time.monotonic()
    module = f"{__package__}.{name}"
    try:
        outcomes = importlib.import_module(module).run(long=long, seed=seed, say=say)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        outcomes = [Outcome(name, 0, [f"there is no check {name} yet: {module} is missing"], {})]
    seconds = time.monotonic() - started
    return [(outcome, seconds if at == 0 else 0.0) for at, outcome in enumerate(outcomes)]


def table(ran: list[tuple[Outcome, float]]) -> list[str]:
    """The closing table, then every finding."""
    lines = ["", f"{'check':<20}{'cases':>9}{'findings':>10}{'seconds':>9}  facts"]
    for outcome, seconds in ran:
        facts = ", ".join(f"{name} {fact}" for name, fact in outcome.facts.items())
        took = f"{seconds:.0f}" if seconds else ""
        lines.append(
            f"{outcome.name:<20}{outcome.done:>9,}{len(outcome.findings):>10}{took:>9}  {facts}"
        )
    lines += [f"FINDING {o.name}: {finding}" for o, _ in ran for finding in o.findings]
    return lines


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHECKS)}; or all")
    parser.add_argument("--long", action="store_true", help="the long run: minutes to hours")
    parser.add_argument("--seed", type=int, default=1, help="what all chances follow from")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in CHECKS:
            parser.error(f"there is no check {name!r}: choose of {', '.join(CHECKS)}")
    ran: list[tuple[Outcome, float]] = []
    for name in asked.names or CHECKS:
        ran += run(name, long=asked.long, seed=asked.seed)
    for line in table(ran):
        say(line)
    return int(any(outcome.findings for outcome, _ in ran))


if __name__ == "__main__":
    sys.exit(main())
