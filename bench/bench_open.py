"""Does opening stay cheap when the session is long? Open, then the context for 8,000 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conversation import chat_items, open_filled
from harness import Effort, Row, at_most, compare, race, scratch

LONG, SHORT = 100_000, 1_000
BUDGET_TOKENS = 8_000


def open_and_show(path: Any) -> Any:
    """A fresh open of the file and the first context; returns the database."""
    import memcore

    db = memcore.open(path)
    db.session("bench", orphans="keep").context(BUDGET_TOKENS)
    return db


def fill(place: Any, effort: Effort) -> tuple[Any, Any, int, int]:
    """Two files, the short one with the end of the long one, so that the context is the same."""
    items = chat_items(effort.items(LONG))
    short = [items[0], *items[-effort.items(SHORT) + 1 :]]
    paths = place / "long", place / "short"
    for path, content in zip(paths, (items, short), strict=True):
        open_filled(path, content)[0].close()
    return *paths, len(items), len(short)


def rows(effort: Effort) -> Iterator[Row]:
    """The long session against the short one."""
    with scratch() as place:
        long, short, long_count, short_count = fill(place, effort)
        opened: list[Any] = []
        found = race(
            lambda: opened.append(open_and_show(long)),
            lambda: opened.append(open_and_show(short)),
            rounds=effort.rounds(60),
            after=lambda: opened.pop().close(),
        )
    yield compare(
        f"open + context(8k tokens), {long_count:,} items",
        found,
        f"the same, {short_count:,} items",
        unit="ms",
        durability="full",
        target=at_most(3.0),
        note="a fresh open in each sample, closed off the clock; files in the page cache",
    )


@pytest.mark.parametrize("which", [0, 1], ids=["long", "short"])
def test_open_and_context(benchmark, place, which):
    from harness import QUICK

    paths = fill(place, QUICK)
    benchmark(lambda: open_and_show(paths[which]).close())
