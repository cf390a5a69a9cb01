"""Measurements on a workload: append, cut, context, compaction, tokens; medians, spreads."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter, perf_counter_ns
from typing import Any, Final

from memcore._fast import pack_facts
from memcore.bench.workload import SampleConversation, Workload
from memcore.compaction import extractive
from memcore.database import Database, open_database
from memcore.errors import ContextOverflowError
from memcore.options import checked_choices, counted
from memcore.session import Session
from memcore.tokens import get_counter
from memcore.wire import get_policy

__all__ = [
    "QUESTIONS",
    "BenchRow",
    "measured",
]

SAMPLES_MIN: Final = 5
CUTS: Final = 1_000
"""Searches of a cut in one sample."""
_SEED: Final = bytes(range(16))
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One row of the table: a question and its figure."""

    question: str
    what: str
    """The operation, in words."""
    unit: str
    median: float
    p10: float
    p90: float
    samples: int
    higher: bool = False
    """More is better."""
    note: str = ""
    spread: tuple[float, ...] = field(default=(), repr=False)
    """The figures at 0 %, 5 %, ... 100 % of the samples, ascending."""


def _row(question: str, what: str, unit: str, samples: Sequence[float], **more: Any) -> BenchRow:
    ordered = sorted(samples)
    last = len(ordered) - 1
    p10, median, p90 = (ordered[round(last * at)] for at in (0.1, 0.5, 0.9))
    return BenchRow(
        question=question,
        what=what,
        unit=unit,
        median=median,
        p10=p10,
        p90=p90,
        samples=len(ordered),
        spread=tuple(ordered[round(last * at / 20)] for at in range(21)),
        **more,
    )


@dataclass(frozen=True)
class _Setting:
    """The workload, the seconds that each question may take, the place of files, the progress."""

    workload: Workload
    seconds: float
    place: Path
    report: Report | None

    def told(self, question: str, done: int, total: int) -> None:
        """Report progress, if anybody looks."""
        if self.report is not None:
            self.report(question, done, total)

    @contextmanager
    def database(self, *, durability: str) -> Iterator[Database]:
        """An empty database in a file of its own."""
        path = self.place / f"{perf_counter_ns()}.memcore"
        with open_database(path, durability=durability, counter=self.workload.counter) as db:
            yield db


def _session(db: Database, conversation: SampleConversation, at: int = 0) -> Session:
    name = f"{at} {conversation.name}"
    return db.session(name, policy=conversation.pairs, orphans="keep", shape="keep")


def _us(action: Callable[[], Any]) -> float:
    """The microseconds that a call takes."""
    start = perf_counter_ns()
    action()
    return (perf_counter_ns() - start) / 1e3


class _Clock:
    """The end of a question: its time is over, but never before there are a few samples."""

    def __init__(self, seconds: float) -> None:
        self._end = perf_counter() + seconds

    def is_over(self, samples: Sequence[Any]) -> bool:
        """True if no further sample is wanted."""
        return len(samples) >= SAMPLES_MIN and perf_counter() > self._end


# --- questions ------------------------------------------------------------------------------------


def _appends(setting: _Setting) -> Iterator[BenchRow]:
    """Append items one by one, and conversations at once."""
    for durability in ("full", "relaxed"):
        with setting.database(durability=durability) as db:
            clock, samples = _Clock(setting.seconds), []
            for done, (session, item) in enumerate(_one_by_one(db, setting.workload)):
                samples.append(_us(lambda: session.append(item)))  # noqa: B023 - called at once
                setting.told(f"append, {durability}", done, setting.workload.items)
                if clock.is_over(samples):
                    break
        yield _row("append", f"append of one item, {durability}", "µs", samples)
    with setting.database(durability="full") as db:
        clock, rounds = _Clock(setting.seconds), 0
        rates: list[float] = []
        while not clock.is_over(rates):
            for each in setting.workload.conversations:
                session = _session(db, each, rounds)
                took = _us(lambda: session.extend(each.messages))  # noqa: B023
                rates.append(1e6 * len(each.messages) / took)
            rounds += 1
        yield _row("append", "a conversation at once, full", "items/s", rates, higher=True)


def _one_by_one(db: Database, workload: Workload) -> Iterator[tuple[Session, dict[str, Any]]]:
    for at in range(SAMPLES_MIN):  # so a tiny workload has samples, too
        for each in workload.conversations:
            session = _session(db, each, at)
            for message in each.messages:
                yield session, message


def _cuts(setting: _Setting) -> Iterator[BenchRow]:
    """Search the cut of a budget in the ledger of each conversation."""
    workload = setting.workload
    counter = get_counter(workload.counter)
    clock, samples = _Clock(setting.seconds), []
    total = len(workload.conversations)
    for done, each in enumerate(workload.conversations):
        ledger = get_policy(each.pairs).new_ledger(20, expect_items=len(each.messages))
        tokens = 0
        for message in each.messages:
            fact = pack_facts(message, _SEED)
            if fact is not None:
                count = counter.count_message(message, json.dumps(message).encode())
                ledger.push(fact, count)
                tokens += count
        budget = workload.budget_tokens or max(tokens // 4, 1)

        def search(cut: Any = ledger.cut_for_budget, budget: int = budget) -> None:
            for _ in range(CUTS):
                cut(budget)

        samples += [1e3 * _us(search) / CUTS for _ in range(SAMPLES_MIN)]
        setting.told("cut", done, total)
        if clock.is_over(samples):
            break
    yield _row("cut", "search of the cut for a budget", "ns", samples)


def _contexts(setting: _Setting) -> Iterator[BenchRow]:
    """Ask for contexts within a budget, of sessions in a file."""
    refused = shown = whole = 0
    clock, samples = _Clock(setting.seconds), []
    conversations = setting.workload.conversations
    with setting.database(durability="relaxed") as db:
        for done, each in enumerate(conversations):
            session = _session(db, each)
            session.extend(each.messages)
            tokens = session.context().tokens
            budget = setting.workload.budget_tokens or max(tokens // 4, 1)
            try:
                shown += session.context(budget).tokens
            except ContextOverflowError:
                refused += 1
                continue
            whole += tokens
            samples += [_us(lambda: session.context(budget)) for _ in range(SAMPLES_MIN)]  # noqa: B023
            setting.told("context", done, len(conversations))
            if clock.is_over(samples):
                break
    shares = f"{shown:,} of {counted(whole, 'token')} shown"
    note = f"{shares}; {counted(refused, 'budget')} refused: no legal context"
    if samples:
        yield _row("context", "context within the budget", "µs", samples, note=note)


def _compactions(setting: _Setting) -> Iterator[BenchRow]:
    """Compact each conversation by the policy, with a summary that needs no model."""
    workload = setting.workload
    clock = _Clock(setting.seconds)
    rates: list[float] = []
    shares: list[float] = []
    before = after = nothing = rounds = 0
    with setting.database(durability="relaxed") as db:
        while rounds < SAMPLES_MIN and not clock.is_over(rates):
            for done, each in enumerate(workload.conversations):
                session = _session(db, each, rounds)
                session.extend(each.messages)
                start = perf_counter()
                result = session.compact(extractive, policy=workload.policy, force=True)
                took = perf_counter() - start
                setting.told("compaction", done, len(workload.conversations))
                if result.view is None:
                    nothing += 1
                    continue
                rates.append(len(each.messages) / took)
                shares.append(100 * result.view.tokens_after / max(result.view.tokens_before, 1))
                before += result.view.tokens_before
                after += result.view.tokens_after
            rounds += 1
    if rates:
        note = f"policy {workload.policy.name}; nothing to fold in {counted(nothing, 'run')}"
        what = "compaction, extractive summary"
        yield _row("compaction", what, "items/s", rates, higher=True, note=note)
        note = f"{counted(before, 'token')} before, {after:,} after"
        yield _row("compaction", "tokens left by a compaction", "%", shares, note=note)


def _tokens(setting: _Setting) -> Iterator[BenchRow]:
    """Count the tokens of each conversation, message by message."""
    counter = get_counter(setting.workload.counter)
    clock = _Clock(setting.seconds)
    rates: list[float] = []
    tokens = size = rounds = 0
    while rounds < SAMPLES_MIN and not clock.is_over(rates):
        for done, each in enumerate(setting.workload.conversations):
            stored = [(message, json.dumps(message).encode()) for message in each.messages]
            start = perf_counter()
            found = sum(counter.count_message(message, raw) for message, raw in stored)
            took = perf_counter() - start
            length = sum(len(raw) for _, raw in stored)
            rates.append(length / took / 1e6)
            tokens += found
            size += length
            setting.told("tokens", done, len(setting.workload.conversations))
        rounds += 1
    note = f"{setting.workload.counter}: {size / max(tokens, 1):.2f} bytes of JSON a token"
    yield _row("tokens", "tokens counted", "MB/s", rates, higher=True, note=note)


_ASKED: Final[dict[str, Callable[[_Setting], Iterator[BenchRow]]]] = {
    "append": _appends,
    "cut": _cuts,
    "context": _contexts,
    "compaction": _compactions,
    "tokens": _tokens,
}
QUESTIONS: Final = tuple(_ASKED)
"""The questions, in the order of the table."""


def measured(
    workload: Workload,
    *,
    questions: Sequence[str] = QUESTIONS,
    seconds: float = 2.0,
    place: str | os.PathLike[str] | None = None,
    report: Report | None = None,
) -> list[BenchRow]:
    """Measure a workload.

    Args:
        workload: the conversations, the policy, the counter.
        questions: some of ``QUESTIONS``.
        seconds: about the time for each file of each question.
        place: a directory on the device to measure; None: that of temporary files.
        report: called with a question, and how much of how much of it is done.

    Raises:
        InvalidOptionError: an unknown question.
        StorageError, OSError: the place cannot be written.
    """
    asked = checked_choices("questions", questions, QUESTIONS)
    folder = Path(mkdtemp(prefix="memcore-bench-", dir=place))
    try:
        setting = _Setting(workload, seconds, folder, report)
        found: list[BenchRow] = []
        for question in asked:
            gc.collect()
            found += _ASKED[question](setting)
        return found
    finally:
        rmtree(folder, ignore_errors=True)
