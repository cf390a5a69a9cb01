"""What does an agent pay a turn: appends with counting, and a context before each model call?

memcore counts and writes to its file once, at append; the frameworks keep lists in memory and
count again before each call. Both sides are shown as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from conversation import chat_turns
from harness import Effort, Figure, NotInstalled, Race, Row, absent, compare, race_each, scratch
from rivals_adk import AdkSession
from rivals_langchain import (
    Summarization,
    approximate_tokens,
    langchain_messages,
    tiktoken_counter,
    trimmed,
)
from rules import openhands_condensed
from trimming import SUMMARY, Message

TURNS = 60
ROUNDS = 10
BUDGET_TOKENS = 4_000
MAX_ITEMS, KEEP_ITEMS = 100, 20
"""A compaction is due above so many items and keeps so many: the same for each side."""
MAX_TOKENS = 9_000
"""More than so many items have: the rule of OpenHands counts both."""
ADK_MAX_TOKENS = 6_600
"""What so many events have by ADK's count, four characters a token: it knows no other trigger."""

Agent = Callable[[], Any]
"""Runs the whole conversation from nothing."""


class Step(NamedTuple):
    """What an agent does up to a model call: each batch is stored when it is there."""

    batches: list[list[Message]]

    @property
    def items(self) -> list[Message]:
        """All of it."""
        return [item for batch in self.batches for item in batch]


def steps(turns: int) -> list[Step]:
    """The steps of a conversation: the calls are stored before the tools run, then the results."""
    found, batches = [], []
    for turn in chat_turns(turns):
        for item in turn:
            if item["role"] == "tool" and batches and batches[-1][0]["role"] == "tool":
                batches[-1].append(item)
            elif item["role"] == "assistant":
                if batches and batches[-1][0]["role"] != "assistant":
                    found.append(Step(batches))
                    batches = []
                batches.append([item])
            else:
                batches.append([item])
    return [*found, Step(batches)]


# --- ours ----------------------------------------------------------------------------------------


def trimming(db: Any, names: Iterator[int], told: list[Step]) -> Agent:
    """A context within a budget before each model call."""

    def run() -> None:
        session = db.session(f"trim-{next(names)}")
        for step in told:
            for batch in step.batches:
                session.extend(batch)
            session.context(BUDGET_TOKENS)

    return run


def compacting(db: Any, names: Iterator[int], told: list[Step]) -> Agent:
    """A compaction when one is due, and the context, before each model call."""

    def run() -> None:
        session = db.session(f"compact-{next(names)}")
        for step in told:
            for batch in step.batches:
                session.extend(batch)
            if session.needs_compaction(max_items=MAX_ITEMS):
                session.compact(lambda _: SUMMARY, keep_last=KEEP_ITEMS)
            session.context()

    return run


# --- theirs --------------------------------------------------------------------------------------


def _trim_messages(told: list[Step], counter: Any) -> Agent:
    native = [langchain_messages(step.items) for step in told]

    def run() -> None:
        messages: list[Any] = []
        for items in native:
            messages += items
            trimmed(messages, BUDGET_TOKENS, counter, start_on="human", include_system=True)

    return run


def _approximate(told: list[Step]) -> Agent:
    return _trim_messages(told, approximate_tokens)


def _tiktoken(told: list[Step]) -> Agent:
    return _trim_messages(told, tiktoken_counter())


def _summarization(told: list[Step]) -> Agent:
    native = [langchain_messages(step.items) for step in told]
    middleware = Summarization(("messages", MAX_ITEMS), ("messages", KEEP_ITEMS))

    def run() -> None:
        messages: list[Any] = []
        for items in native:
            messages = middleware.before_model(messages + items)

    return run


def _adk(told: list[Step]) -> Agent:
    events = AdkSession.events([item for step in told for item in step.items])
    native, at = [], 0
    for step in told:
        end = at + sum(item["role"] != "system" for item in step.items)
        native.append(events[at:end])
        at = end

    def run() -> None:
        session = AdkSession(ADK_MAX_TOKENS, KEEP_ITEMS)
        for items in native:
            session.extend(items)
            session.contents()

    return run


def _openhands(told: list[Step]) -> Agent:
    approximate_tokens([])  # the rule needs no package, its counter does
    summary = {"role": "user", "content": SUMMARY}

    def run() -> None:
        history: list[Message] = []
        for step in told:
            history += step.items
            if len(history) > MAX_ITEMS or approximate_tokens(history) > MAX_TOKENS:
                history = openhands_condensed(history, KEEP_ITEMS, summary)

    return run


TRIMS = {
    "langchain-core trim_messages, approximate counter": _approximate,
    "langchain-core trim_messages, tiktoken": _tiktoken,
}
COMPACTIONS = {
    "langchain SummarizationMiddleware": _summarization,
    "google-adk, token threshold": _adk,
    "rule of OpenHands SDK, langchain-core's approximate counter": _openhands,
}


# --- rows ----------------------------------------------------------------------------------------


def rows(effort: Effort) -> Iterator[Row]:
    """Microseconds a turn: contexts within a budget, then compactions."""
    import memcore

    told = steps(max(6, TURNS // effort.rounds_divisor))
    names = count()
    with scratch() as place, ExitStack() as stack:

        def opened(durability: str) -> Any:
            path = Path(place / durability)
            unsafe = durability == "none"
            return stack.enter_context(
                memcore.open(path, durability=durability, allow_unsafe=unsafe)
            )

        databases = {durability: opened(durability) for durability in ("none", "full")}
        for what, ours, rivals in (
            (f"context({BUDGET_TOKENS:,} tokens)", trimming, TRIMS),
            ("compaction amortised", compacting, COMPACTIONS),
        ):
            agents = {name: ours(db, names, told) for name, db in databases.items()}
            question = f"append incl. counting + {what}, a turn"
            yield from _rows(question, agents, rivals, told, effort)


def _rows(
    question: str,
    ours: dict[str, Agent],
    rivals: dict[str, Callable[[list[Step]], Agent]],
    told: list[Step],
    effort: Effort,
) -> Iterator[Row]:
    """All sides in one race: each of ours against each rival, from the same rounds."""
    turns = sum(item["role"] == "user" for step in told for item in step.items)
    theirs: dict[str, Agent] = {}
    for name, make in rivals.items():
        try:
            theirs[name] = make(told)
        except NotInstalled as error:
            for durability in ours:
                yield absent(question, name, error, durability=durability)
    found = race_each([*ours.values(), *theirs.values()], rounds=effort.rounds(ROUNDS), ops=turns)
    mine = dict(zip(ours, found, strict=False))
    other = dict(zip(theirs, found[len(ours) :], strict=True))
    calls, items = len(told) / turns, sum(len(step.items) for step in told) / turns
    shape = f"{turns} turns of {items:.1f} items and {calls:.1f} model calls"
    note = f"{shape}; the rivals keep lists in memory"
    for durability, race in mine.items():
        for name, rival in other.items():
            pairs = zip(race.ours, rival.ours, strict=True)
            result = Race(race.ours, rival.ours, [one / two for one, two in pairs])
            yield compare(question, result, name, durability=durability, faster=True, note=note)
        if not other:
            figure = Figure.of(race.ours).scaled(1e-3)
            yield Row(question, "µs", figure, len(race.ours), durability=durability, note=note)


def test_trimming(benchmark, place):
    import memcore

    with memcore.open(place / "memcore", durability="none", allow_unsafe=True) as db:
        benchmark(trimming(db, count(), steps(TURNS)))


def test_compacting(benchmark, place):
    import memcore

    with memcore.open(place / "memcore", durability="none", allow_unsafe=True) as db:
        benchmark(compacting(db, count(), steps(TURNS)))
