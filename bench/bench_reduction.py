"""How many tokens does a compaction save, level by level, and is every context still legal?

On the corpus of real conversations (MEMCORE_CORPUS) and on long sessions stitched from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from conversation import chat_items
from harness import Effort, Figure, Row, absent, at_most
from histories import broken, signs_of
from texts import conversations
from trimming import Message

LEAST_ITEMS = 20
"""Shorter conversations have nothing to compact."""
STITCHED_ITEMS, STITCHED = 5_000, 3
STITCHED_SOURCE = "taubench-"
"""Its conversations share one system prompt, so that they can be told one after the other."""

Level = Callable[[Any], Any]
"""Compacts a session; what it returns is not looked at."""


def levels() -> dict[str, Level]:
    """By name: each stage of each ready policy, and three plain rules.

    The summaries are extractive: no model is asked.
    """
    import memcore

    def compacting(**given: Any) -> Level:
        return lambda session: session.compact(memcore.extractive, **given)

    found = {
        "keep 20 items": compacting(keep_last=20),
        "keep 2,000 tokens": compacting(keep_last=1, keep_tokens=2_000),
        "keep 8,000 tokens": compacting(keep_last=1, keep_tokens=8_000),
    }
    for name, policy in _ready_policies().items():
        for stage in policy.stages:
            label = f"{name}, {stage.name}" if len(policy.stages) > 1 else name
            found[label] = compacting(policy=policy, stage=stage.name)
    return found


def _ready_policies() -> dict[str, Any]:
    """The presets with their defaults; none in a memcore that has no such thing."""
    from memcore import compaction

    presets = getattr(compaction, "PRESETS", {})
    return {name: preset() for name, preset in presets.items()}


@dataclass(slots=True)
class Saved:
    """What a level did to the contexts of some histories."""

    shares: list[float] = field(default_factory=list)
    """Percent of the tokens that were saved, one a history."""
    before: int = 0
    after: int = 0
    untouched: int = 0
    violations: int = 0
    """As memcore's validator and the one of the benchmark found, in the contexts afterwards."""

    def take(self, before: Any, after: Any) -> None:
        """The contexts of one history."""
        import memcore

        self.before += before.tokens
        self.after += after.tokens
        self.untouched += after.tokens == before.tokens
        self.shares.append(100 * (1 - after.tokens / max(before.tokens, 1)))
        self.violations += len(memcore.validate(after.messages))
        self.violations += broken(signs_of(after.messages)).orphans


def histories(effort: Effort) -> Iterator[tuple[str, list[list[Message]]]]:
    """By name: the corpus, and what is stitched from it (made items where there is none)."""
    corpus = [
        found["messages"] for found in conversations() if len(found["messages"]) >= LEAST_ITEMS
    ]
    if corpus:
        corpus = corpus[:: max(1, len(corpus) // effort.items(len(corpus)))]
        yield f"{len(corpus):,} real conversations", corpus
    items = effort.items(STITCHED_ITEMS)
    name = f"sessions of {items:,} items"
    told = [f["messages"] for f in conversations() if f["id"].startswith(STITCHED_SOURCE)]
    if told:
        yield f"{name}, stitched", [stitched(told[at::STITCHED], items) for at in range(STITCHED)]
    else:
        yield f"{name}, made", [chat_items(items, seed) for seed in range(STITCHED)]


def stitched(told: list[list[Message]], items: int) -> list[Message]:
    """Conversations one after the other, again from the start when they end; one system prompt.

    Call ids get the number of their conversation: a provider accepts no id twice.
    """
    found = [told[0][0]]
    number = 0
    while len(found) < items:
        found += [_renamed(m, number) for m in told[number % len(told)] if m["role"] != "system"]
        number += 1
    return found


def _renamed(message: Message, number: int) -> Message:
    message = deepcopy(message)
    for call in message.get("tool_calls") or ():
        call["id"] = f"{number}-{call['id']}"[:40]
    if message.get("tool_call_id"):
        message["tool_call_id"] = f"{number}-{message['tool_call_id']}"[:40]
    return message


def measured(given: list[list[Message]]) -> dict[str, Saved]:
    """Each level on each history, from the same state."""
    import memcore

    found: dict[str, Saved] = {}
    with memcore.open(":memory:") as db:
        for at, history in enumerate(given):
            session = db.session(f"{at}", orphans="keep")
            session.extend(history)
            before = session.context()
            for name, level in levels().items():
                level(session)
                found.setdefault(name, Saved()).take(before, session.context())
                while session.uncompact():
                    pass
    return found


def rows(effort: Effort) -> Iterator[Row]:
    """A row a level and kind of history, and the violations of all."""
    if not conversations():
        yield absent("tokens saved in real conversations", "", "no corpus: set MEMCORE_CORPUS")
    every: list[Saved] = []
    for kind, given in histories(effort):
        for name, saved in measured(given).items():
            every.append(saved)
            note = f"{saved.before:,} -> {saved.after:,} tokens in all"
            if saved.untouched:
                note += f"; {saved.untouched:,} as they were"
            figure = Figure.of(saved.shares)
            yield Row(f"tokens saved, {kind}: {name}", "%", figure, len(saved.shares), note=note)
    violations = sum(saved.violations for saved in every)
    contexts = len(list(chain.from_iterable(saved.shares for saved in every)))
    yield Row(
        "violations in contexts after a compaction",
        "found",
        Figure(*[float(violations)] * 3),
        contexts,
        target=at_most(0, "ours"),
        note="by memcore.validate and by the benchmark's own validator",
    )


def test_level(benchmark):
    benchmark(measured, [chat_items(500)])
