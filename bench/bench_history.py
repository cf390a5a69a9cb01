"""What do context() and compact() cost as the history grows?"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from conversation import chat_items, open_filled
from harness import Effort, Race, Row, compare, race_each, scratch

SIZES = (100, 1_000, 10_000, 100_000)
BUDGET_TOKENS = 8_000
KEEP_TOKENS = 2_000


def compact_and_back(session: Any) -> None:
    """A compaction and its undoing: two commits; the next round finds the same state."""
    session.compact(summarize=lambda _: "They agreed to go on.", keep_tokens=KEEP_TOKENS)
    session.uncompact()


def rows(effort: Effort) -> Iterator[Row]:
    """A warm context, and a compaction with its undoing."""
    with scratch() as place, ExitStack() as stack:
        sessions = []
        for size in SIZES:
            items = chat_items(effort.items(size))
            db, session = open_filled(place / str(size), items, durability="none")
            stack.callback(db.close)
            sessions.append((len(items), session))
        contexts = race_each(
            [lambda s=session: s.context(BUDGET_TOKENS) for _, session in sessions],
            rounds=effort.rounds(60),
        )
        yield from _rows("context(8k tokens), warm", sessions, contexts)
        compactions = race_each(
            [lambda s=session: compact_and_back(s) for _, session in sessions],
            rounds=effort.rounds(10),
            after=gc.collect,  # or the next side pays for what the last one left
        )
        yield from _rows("compact + uncompact, keep 2k tokens", sessions, compactions)


def _rows(what: str, sessions: list[Any], found: list[Race]) -> Iterator[Row]:
    for (count, _), result in zip(sessions, found, strict=True):
        yield compare(
            f"{what}, {count:,} items",
            result,
            f"the same, {sessions[0][0]:,} items",
            unit="ms",
            durability="none",
            note="the summarizer takes no time, but is given all that it replaces"
            if what.startswith("compact")
            else "",
        )


@pytest.mark.parametrize("size", SIZES[:3])
def test_context(benchmark, place, size):
    db, session = open_filled(place / "memcore", chat_items(size), durability="none")
    benchmark(session.context, BUDGET_TOKENS)
    db.close()


@pytest.mark.parametrize("size", SIZES[:3])
def test_compact(benchmark, place, size):
    db, session = open_filled(place / "memcore", chat_items(size), durability="none")
    benchmark(compact_and_back, session)
    db.close()
