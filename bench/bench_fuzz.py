"""How soon does the fuzzer find a broken pair of a framework's memory, and how often is one?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from rivals_fuzz import MEMORIES

import memcore
from harness import Effort, Figure, NotInstalled, Row, absent, at_most
from memcore.testing import Faults, fuzz, survey

EXAMPLES = 200
MIXES = {
    "prompt results": Faults(late=0),
    "late results": Faults(),
    "late and injected": Faults(injected=0.3),
    "every fault but ids": Faults(late=0.2, missing=0.2, repeated=0.2, injected=0.2, orphaned=0.2),
}
"""Parallel calls and reasoning are in all. Calls without ids are in none: the rivals' types of
messages have no place for them, and a conversion's loss is not the memory's."""
LEVELS = {"pairs": "a pair that the memory broke", "provider": "refused by the provider"}
OURS = ("openai_chat", "openai_responses", "anthropic", "gemini", "langchain")
BUDGETS = (40, 400)


def _ours(policy: str) -> Any:
    @contextmanager
    def make() -> Iterator[Any]:
        with memcore.open(":memory:") as db:
            session = db.session("s", policy=policy, orphans="keep")
            yield session.append, lambda budget: session.context(budget).messages

    return make


def _asked(effort: Effort, make: Any, options: dict[str, Any]) -> tuple[float, str]:
    """The percentage of illegal contexts, and what else is to be said."""
    examples = max(4, EXAMPLES // effort.rounds_divisor)
    counted = survey(make, examples=examples, **options)
    told, found = "", None
    if options["level"] == "pairs":
        found = fuzz(make, examples=examples, **options)
        told = f"none in {examples} examples"
    if found is not None:
        told = f"found by example {found.examples}, shrunk to {len(found.history or ())} items"
    notes = [told] if told else []
    notes += [f"{counted.raised} raised"] * bool(counted.raised)
    notes += [f"{counted.refused} of {examples} budgets refused"] * bool(counted.refused)
    return 100 * counted.rate, ", ".join(notes)


def rows(effort: Effort) -> Iterator[Row]:
    """Ours in each format; then each rival's beside ours in its format."""
    examples = max(4, EXAMPLES // effort.rounds_divisor)
    few = examples < EXAMPLES // 10  # a test that it runs; shrinking takes its time
    for mix, faults in list(MIXES.items())[: 1 if few else None]:
        for level, told in list(LEVELS.items())[: 1 if few else None]:
            options = {"faults": faults, "level": level}
            question = f"contexts with {told}, {mix}"
            ours: dict[str, float] = {}
            for policy in OURS:
                given = {**options, "policy": policy, "budgets": BUDGETS}
                given["refusals"] = (memcore.ContextOverflowError,)
                ours[policy], note = _asked(effort, _ours(policy), given)
                rate = Figure(*[ours[policy]] * 3)
                yield Row(
                    f"{question}, {policy}", "%", rate, examples, target=at_most(0, "ours"),
                    note=note,
                )  # fmt: skip
            for name, rival in MEMORIES.items():
                try:
                    make = rival.make()
                except NotInstalled as error:
                    yield absent(question, f"{rival.package}: {name}", error)
                    continue
                given = {**options, "policy": rival.policy, "budgets": rival.budgets}
                theirs, note = _asked(effort, make, given)
                yield Row(
                    question, "%", Figure(*[ours[rival.policy]] * 3), examples,
                    rival=f"{rival.package} {version(rival.package)}: {name}",
                    theirs=Figure(*[theirs] * 3), note=f"the rival's: {note}" if note else "",
                )  # fmt: skip
