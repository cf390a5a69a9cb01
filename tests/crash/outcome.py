"""What a check of the crash harness is asked, the parts it is run in, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Say = Callable[[str], None]
"""Takes a line for whoever watches the run."""


class Plan(NamedTuple):
    """What is asked of a check; with the code, all its chances follow from it.

    ``count`` cases a mode (0: the check's own number, which ``long`` makes a large one, of which
    ``thin`` takes one in so many), ``jobs`` children at a time where cases are independent.
    """

    long: bool = False
    seed: int = 1
    count: int = 0
    jobs: int = 2
    thin: int = 1

    def cases(self, short: int, long: int) -> int:
        """How many cases a mode has."""
        return self.count or (-(-long // self.thin) if self.long else short)


class Outcome(NamedTuple):
    """What one check did: ``done`` cases, ``findings`` in words (none is good), facts to print."""

    name: str
    done: int
    findings: list[str]
    facts: dict[str, Any]


class Part(NamedTuple):
    """A part of a check that depends on no other; the name says all that it follows from."""

    name: str
    work: Callable[[Say], Outcome]


def run(parts: Iterable[Part], say: Say) -> list[Outcome]:
    """Run parts one by one: one outcome a name."""
    return merged(part.work(say) for part in parts)


def merged(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes of the same name as one: numbers are added, but for those "at most"."""
    found: dict[str, Outcome] = {}
    for one in outcomes:
        before = found.get(one.name)
        if before is not None:
            facts = _added(before.facts, one.facts)
            one = Outcome(one.name, before.done + one.done, before.findings + one.findings, facts)  # noqa: PLW2901
        found[one.name] = one
    return list(found.values())


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    total = dict(one)
    for name, value in other.items():
        known = total.get(name)
        if isinstance(value, dict) and isinstance(known, dict):
            total[name] = _added(known, value)
        elif isinstance(value, int) and isinstance(known, int):
            total[name] = max(known, value) if name.endswith("at most") else known + value
        else:
            total[name] = value
    return total
