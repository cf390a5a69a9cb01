"""How many items a second does a compaction take, and what do the cut and its trigger cost?

Against LangChain's SummarizationMiddleware and ``trim_messages`` on the same messages.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from conversation import chat_items, open_filled
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Race,
    Row,
    absent,
    at_least,
    at_most,
    compare,
    race,
    race_each,
    scratch,
    settle,
)
from rivals_langchain import Summarization, langchain_messages, tiktoken_counter, trimmed

SIZES = (100, 1_000, 10_000, 100_000)
RIVAL_SIZES = SIZES[:3]
KEEP_SHARE = 0.1
"""Of the tokens, that a cut is to keep: what the frameworks are asked for too."""
KEEP_TOKENS = 2_000
OPS = 1_000
CHECKS = 100
WHOLE_RIVAL = "langchain SummarizationMiddleware, keep tokens"

Session = Any
Ours = tuple[int, Session]


def summary(_: object) -> str:
    """A summarizer that takes no time."""
    return "They agreed to go on."


def filled(stack: ExitStack, place: Path, effort: Effort, durability: str) -> list[Ours]:
    """A session of each size, with its number of items."""
    found = []
    for size in SIZES:
        items = chat_items(effort.items(size))
        db, session = open_filled(place / f"{durability}-{size}", items, durability=durability)
        stack.callback(db.close)
        found.append((len(items), session))
    return found


def rows(effort: Effort) -> Iterator[Row]:
    """Items a second; whether cut and trigger are flat; both against the frameworks."""
    with scratch() as place, ExitStack() as stack:
        sessions = {name: filled(stack, place, effort, name) for name in ("none", "full")}
        yield from _plans(sessions["none"], effort.rounds(20))
        for durability, found in sessions.items():
            yield from _commits(found, durability, effort.rounds(10))
        yield from _flat(sessions["none"], effort.rounds(50))
        for size in RIVAL_SIZES:
            yield from _against(effort.items(size), sessions["none"], effort)


# --- items a second ------------------------------------------------------------------------------


def _throughput(question: str, items: int, times_ns: list[float], **rest: Any) -> Row:
    speeds = [items * 1e9 / taken for taken in times_ns]
    return Row(f"{question}, {items:,} items", "items/s", Figure.of(speeds), len(speeds), **rest)


def _plans(sessions: list[Ours], rounds: int) -> Iterator[Row]:
    found = race_each(
        [lambda s=session: s.plan(keep_tokens=KEEP_TOKENS) for _, session in sessions],
        rounds=rounds,
    )
    for (items, _), result in zip(sessions, found, strict=True):
        note = "the cut alone; what is folded is read by compact, not by plan"
        yield _throughput("compaction: plan", items, result.ours, note=note)


def _commits(sessions: list[Ours], durability: str, rounds: int) -> Iterator[Row]:
    """A compaction each, taken back off the clock, so that each round finds the same state."""
    times: list[list[float]] = [[] for _ in sessions]
    settle()
    for number in range(rounds + 1):
        for (_, session), taken in zip(sessions, times, strict=True):
            start = perf_counter_ns()
            done = session.compact(summary, keep_tokens=KEEP_TOKENS)
            elapsed = perf_counter_ns() - start
            if done.view is not None:
                session.uncompact()
            gc.collect()
            if number:
                taken.append(elapsed)
    for (items, _), taken in zip(sessions, times, strict=True):
        note = "the summarizer takes no time, but is given all that it replaces"
        yield _throughput(
            "compaction: plan + commit", items, taken, durability=durability, note=note
        )


# --- flat in the length of the history -----------------------------------------------------------


def check(session: Session) -> None:
    """Asks whether a compaction is due, many times."""
    is_due = session.needs_compaction
    for _ in range(CHECKS):
        is_due(max_items=50)


def _flat(sessions: list[Ours], rounds: int) -> Iterator[Row]:
    found = race_each(
        [lambda s=session: check(s) for _, session in sessions], rounds=rounds, ops=CHECKS
    )
    least = sessions[0][0]
    for (items, _), result in zip(sessions, found, strict=True):
        yield compare(
            f"is a compaction due, {items:,} items",
            result,
            f"the same, {least:,} items",
            target=at_most(2.0),
            note="Session.needs_compaction, its read transaction included",
        )


# --- against the frameworks ----------------------------------------------------------------------


def cuts(ledger: Any, budget: int) -> None:
    """Searches for the cut, many times."""
    search = ledger.cut_for_budget
    for _ in range(OPS):
        search(budget)


def unlike(ours: Callable[[], Any], ops: int, theirs: Callable[[], Any], *, rounds: int) -> Race:
    """A race in which ours does ``ops`` operations while theirs does one."""
    found = race(ours, theirs, rounds=rounds)
    return Race(
        [taken / ops for taken in found.ours], found.theirs, [ratio / ops for ratio in found.ratios]
    )


def ledger_of(items: list[Any]) -> tuple[Any, int]:
    """What a session holds of these items, and their tokens."""
    from memcore._fast import pack_facts
    from memcore.codec.values import encode_json
    from memcore.tokens import get_counter
    from memcore.wire import get_policy

    counter, ledger = get_counter(), get_policy("openai_chat").new_ledger(20)
    for item in items:
        facts = pack_facts(item, b"0123456789abcdef")
        ledger.push(facts, counter.count_message(item, encode_json(item)[0]))
    return ledger, ledger.sum_between(0, len(ledger))


def _rival_cuts(messages: list[Any]) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name: what makes the rival's search for the cut; its budget is of its own tokens."""

    def approximate() -> Callable[[], Any]:
        middleware = Summarization(("messages", 1), ("tokens", 1)).middleware
        budget = int(middleware.token_counter(messages) * KEEP_SHARE)
        return lambda: trimmed(messages, budget)

    def by_tiktoken() -> Callable[[], Any]:
        counter = tiktoken_counter()
        budget = int(counter(messages) * KEEP_SHARE)
        return lambda: trimmed(messages, budget, counter)

    def summarization() -> Callable[[], Any]:
        counted = Summarization(("messages", 1), ("tokens", 1)).middleware.token_counter(messages)
        middleware = Summarization(("messages", 1), ("tokens", int(counted * KEEP_SHARE)))
        return lambda: middleware.cut(messages)

    return {
        WHOLE_RIVAL: summarization,
        "langchain-core trim_messages, approximate counter": approximate,
        "langchain-core trim_messages, tiktoken": by_tiktoken,
    }


def _against(size: int, sessions: list[Ours], effort: Effort) -> Iterator[Row]:
    items = chat_items(size)
    session = next(session for count, session in sessions if count == size)
    ledger, tokens = ledger_of(items)
    asked = at_least(1_000) if size == 1_000 else None
    rounds = effort.rounds(5 if size > 1_000 else 15)
    question = f"search for the cut, {size:,} messages"
    trigger = f"is a compaction due, {size:,} messages"
    due = "langchain SummarizationMiddleware, trigger tokens"
    try:
        messages = langchain_messages(items)
        middleware = Summarization(("tokens", 10**9), ("messages", 20))
    except NotInstalled as error:
        yield absent(question, "langchain, langchain-core", error, target=asked)
        yield absent(trigger, due, error)
        return
    budget = int(tokens * KEEP_SHARE)
    for name, make in _rival_cuts(messages).items():
        try:
            theirs = make()
        except NotInstalled as error:
            yield absent(question, name, error, target=asked)
            continue
        found = unlike(lambda: cuts(ledger, budget), OPS, theirs, rounds=rounds)
        note = "they count all tokens again, memcore counted when it appended: see turns"
        yield compare(question, found, name, faster=True, target=asked, note=note)
        if name != WHOLE_RIVAL:
            continue
        found = unlike(lambda: session.plan(keep_tokens=budget), 1, theirs, rounds=rounds)
        note = "Session.plan, its read transaction included"
        yield compare(f"plan in a session, {size:,} messages", found, name, faster=True, note=note)
    found = unlike(
        lambda: check(session), CHECKS, lambda: middleware.is_due(messages), rounds=rounds
    )
    yield compare(trigger, found, due, faster=True)


@pytest.mark.parametrize("size", SIZES[:3])
def test_plan(benchmark, place, size):
    db, session = open_filled(place / "memcore", chat_items(size), durability="none")
    benchmark(session.plan, keep_tokens=KEEP_TOKENS)
    db.close()


@pytest.mark.parametrize("size", SIZES[:3])
def test_is_due(benchmark, place, size):
    db, session = open_filled(place / "memcore", chat_items(size), durability="none")
    benchmark(check, session)
    db.close()
