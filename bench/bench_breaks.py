"""How often does a trimmed history hold a result without its call? Random valid chat histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from random import Random
from typing import Any

from bench_seed import plain_preserve_point
from harness import Effort, Figure, NotInstalled, Row, absent, at_most
from histories import WIRES, Signs, broken, random_script, signs_of, wired
from memcore.testing.script import Step
from rivals_trim import TRIMMERS
from rules import openhands_condensed
from trimming import SUMMARY, Message, Trim

HISTORIES = 400
SHARES = (0.05, 0.95)
"""How much of a history a trimmer is told to keep: tokens or messages, whichever it counts."""
COUNTER = "bytes/4"
ZERO = at_most(0, "ours")

Case = tuple[list[Step], float]


def cases(count: int, *, late: bool) -> list[Case]:
    """Always the same histories and shares."""
    random = Random(400 + late)
    return [(random_script(random, late=late), random.uniform(*SHARES)) for _ in range(count)]


# --- rules in our own words ----------------------------------------------------------------------


def _openhands(history: list[Message], share: float) -> list[Signs]:
    summary = {"role": "user", "content": SUMMARY}
    return signs_of(openhands_condensed(history, max(1, int(len(history) * share)), summary))


def _mathmodelagent(history: list[Message], share: float) -> list[Signs]:
    keep = max(1, int(len(history) * share))
    return signs_of(history[plain_preserve_point(history, keep) :])


RULES: dict[str, Trim] = {
    "rule of OpenHands SDK (no call pending)": _openhands,
    "rule of MathModelAgent (plain safe point)": _mathmodelagent,
}


# --- ours ----------------------------------------------------------------------------------------


def _budgets(messages: list[Message], policy: str, share: float) -> int:
    import memcore

    whole = memcore.fit(messages, policy=policy, counter=COUNTER).tokens
    return max(1, int(whole * share))


def fitted(script: list[Step], share: float, policy: str = "openai_chat") -> list[Signs] | None:
    """``memcore.fit``; None if it refused: the budget is below the smallest legal context."""
    return _fitted(wired(script, policy), share, policy)


def _fitted(messages: list[Message], share: float, policy: str) -> list[Signs] | None:
    import memcore

    budget = _budgets(messages, policy, share)
    try:
        found = memcore.fit(messages, budget, policy=policy, counter=COUNTER)
    except memcore.ContextOverflowError:
        return None
    if found.tokens > budget:
        raise AssertionError(f"{found.tokens} tokens for a budget of {budget}")
    return signs_of(found.messages)


def compacted(db: Any, at: int, case: Case, policy: str) -> list[list[Signs] | None]:
    """A session's contexts: compacted, and compacted within a budget (None: refused)."""
    import memcore

    script, share = case
    messages = wired(script, policy)
    budget = _budgets(messages, policy, share)
    session = db.session(f"{policy}-{at}", policy=policy)
    session.extend(messages)
    session.compact(lambda _: SUMMARY, keep_tokens=budget)
    found: list[list[Signs] | None] = [signs_of(session.context().messages)]
    try:
        found.append(signs_of(session.context(budget).messages))
    except memcore.ContextOverflowError:
        found.append(None)
    return found


# --- rows ----------------------------------------------------------------------------------------


class Tally:
    """Counts what the validator says of outputs."""

    def __init__(self) -> None:
        self.outputs = self.orphaned = self.unanswered = self.whole = self.refused = 0

    def take(self, output: list[Signs] | None, items: int) -> None:
        """One output of a history with so many items; None if there is none."""
        if output is None:
            self.refused += 1
            return
        found = broken(output)
        self.outputs += 1
        self.orphaned += found.orphans > 0
        self.unanswered += found.unanswered > 0
        self.whole += len(output) >= items

    def percent(self, count: int) -> float:
        """Of all outputs."""
        return 100 * count / max(self.outputs, 1)

    @property
    def figure(self) -> Figure:
        """The percentage of outputs with an orphan result."""
        return Figure(*[self.percent(self.orphaned)] * 3)

    @property
    def note(self) -> str:
        """What else is to be said of the outputs; empty if nothing is."""
        found = []
        if self.unanswered:
            found.append(f"{self.percent(self.unanswered):.3g} % with an unanswered call")
        if self.whole:
            found.append(f"{self.percent(self.whole):.3g} % with nothing left out")
        if self.refused:
            found.append(f"{self.refused} budgets refused: no legal context is so small")
        return ", ".join(found)


def judged(trim: Callable[[list[Message], float], list[Signs] | None], given: list[Case]) -> Tally:
    """What a trimmer of chat messages makes of the cases."""
    tally = Tally()
    for script, share in given:
        history = wired(script)
        tally.take(trim(history, share), len(history))
    return tally


def fitted_chat(history: list[Message], share: float) -> list[Signs] | None:
    """``memcore.fit`` of chat messages."""
    return _fitted(history, share, "openai_chat")


def rows(effort: Effort) -> Iterator[Row]:
    """A row a trimmer and kind of history; then ours on every provider's format."""
    count = max(4, HISTORIES // effort.rounds_divisor)
    for kind in ("strict", "late"):
        given = cases(count, late=kind == "late")
        question = f"outputs with an orphan result, {kind} results"
        ours = judged(fitted_chat, given)
        for name, (make, package) in TRIMMERS.items():
            try:
                theirs, named = judged(make(), given), f"{package} {version(package)}: {name}"
            except NotInstalled as error:
                yield absent(question, f"{package}: {name}", error, target=ZERO)
                continue
            yield _row(question, ours, named, theirs)
        for name, trim in RULES.items():
            yield _row(question, ours, name, judged(trim, given))
    yield from _policies(count)


def _row(question: str, ours: Tally, rival: str, theirs: Tally) -> Row:
    return Row(
        question,
        "%",
        ours.figure,
        theirs.outputs,
        rival=rival,
        theirs=theirs.figure,
        target=ZERO,
        note=f"the rival's: {theirs.note}" if theirs.note else "",
    )


def _policies(count: int) -> Iterator[Row]:
    import memcore

    for policy in WIRES:
        fits, sessions = Tally(), Tally()
        with memcore.open(":memory:", counter=COUNTER) as db:
            for late in (False, True):
                for at, case in enumerate(cases(count, late=late)):
                    items = len(wired(case[0], policy))
                    fits.take(fitted(*case, policy), items)
                    for output in compacted(db, at + late * count, case, policy):
                        sessions.take(output, items)
        for what, tally in (("fit", fits), ("compact + context", sessions)):
            question = f"outputs with an orphan result, strict and late, {what}, {policy}"
            yield Row(question, "%", tally.figure, tally.outputs, target=ZERO, note=tally.note)


def test_fit(benchmark):
    given = cases(20, late=True)
    benchmark(lambda: judged(fitted_chat, given))
