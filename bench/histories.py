"""Random valid histories in every wire format, and a judge of pairs that is not memcore's ledger.

*Strict*: the results directly follow the item that made the calls. *Late*: 15 % of the results come
some items later, as after an approval by a human or from a tool that runs long. In both every call
is answered before the history ends: whatever is unpaired in an output, its maker broke. An agent
makes one to four calls at once: two thirds of the items are results. The formats are written and
read by ``memcore.testing``.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple

from memcore.testing.facts import classify
from memcore.testing.script import FORMATS, Step, written

__all__ = ["WIRES", "Broken", "Signs", "broken", "random_script", "signs_of", "wired"]

Message = dict[str, Any]
WIRES = (*FORMATS, "seed")
"""The names of memcore's pair policies; ``seed`` is chat."""
LATE_SHARE = 0.15
LATE_ITEMS_MAX = 8
_WORDS = ("fare", "seat", "refund", "page", "build", "error", "found", "please", "Monday", "total")


class Signs(NamedTuple):
    """What one message of an output says of pairs: ids of the calls made, ids answered."""

    calls: tuple[str, ...]
    answers: tuple[str, ...]


class Broken(NamedTuple):
    """What is wrong with an output: how many of each."""

    orphans: int
    """Results whose call does not stand before them."""
    unanswered: int
    """Calls that no result follows."""


def broken(output: Iterable[Signs]) -> Broken:
    """Judge an output by its ids alone."""
    made: set[str] = set()
    waiting: set[str] = set()
    orphans = 0
    for calls, answers in output:
        orphans += sum(call_id not in made for call_id in answers)
        waiting.difference_update(answers)
        made.update(calls)
        waiting.update(calls)
    return Broken(orphans, len(waiting))


# --- making histories ----------------------------------------------------------------------------


def _text(random: Random, most: int) -> str:
    return " ".join(random.choices(_WORDS, k=random.randint(2, most)))


def _steps(random: Random, turn: int) -> list[tuple[Step, list[Step]]]:
    """Steps of a turn, each with the results that answer it."""
    found: list[tuple[Step, list[Step]]] = [(Step("user", texts=(_text(random, 20),)), [])]
    for step in range(random.randint(0, 4)):
        ids = tuple(f"call_{turn}_{step}_{at}" for at in range(random.randint(1, 4)))
        results = [Step("results", (i,), texts=(_text(random, 60),)) for i in ids]
        random.shuffle(results)
        found.append((Step("call", ids, texts=(_text(random, 8),), thinking=True), results))
    found.append((Step("assistant", texts=(_text(random, 30),)), []))
    return found


def random_script(random: Random, *, late: bool, items: tuple[int, int] = (10, 60)) -> list[Step]:
    """One result a step; it ends where a model is asked: behind a user or a result."""
    wanted = random.randint(*items)
    script: list[Step] = [Step("system", texts=(_text(random, 40),))]
    waiting: list[tuple[int, Step]] = []
    turn = 0
    while True:
        for said, results in _steps(random, turn):
            script.append(said)
            for result in results:
                if late and random.random() < LATE_SHARE:
                    waiting.append((len(script) + random.randint(1, LATE_ITEMS_MAX), result))
                else:
                    script.append(result)
            script += [result for due, result in waiting if due <= len(script)]
            waiting = [(due, result) for due, result in waiting if result not in script]
            if len(script) >= wanted and (results or said.what == "user"):
                return script + [result for _, result in waiting]
        turn += 1


def wired(script: Iterable[Step], policy: str = "openai_chat") -> list[Message]:
    """The history in the format of a policy; results that follow each other are one message."""
    joined: list[Step] = []
    for step in script:
        if step.what == "results" and joined and joined[-1].what == "results":
            last = joined[-1]
            joined[-1] = last._replace(ids=last.ids + step.ids, texts=last.texts + step.texts)
        else:
            joined.append(step)
    return written(joined, "openai_chat" if policy == "seed" else policy)


def signs_of(output: Iterable[Message]) -> list[Signs]:
    """What an output in any format says of pairs."""
    items = map(classify, output)
    return [
        Signs(tuple(name for _, name in item.opens), tuple(name for _, name in item.closes))
        for item in items
    ]
