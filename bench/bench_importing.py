"""How fast are histories copied out of another store, and out of ours?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from rivals_agents import response_items, sqlite_session

import memcore
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Race,
    Row,
    absent,
    at_most,
    compare,
    measure,
    scratch,
)
from memcore import importing

CONVERSATIONS, ITEMS = 10_000, 4
SECONDS = 8
RIVAL = "get_items() and extend(), one session after the other"


def rows(effort: Effort) -> Iterator[Row]:
    """Ten thousand conversations, and the same again, when all of them are there."""
    number = effort.items(CONVERSATIONS)
    question = f"import of {number:,} conversations of {ITEMS} items, each of them"
    target = at_most(SECONDS * 1e6 / CONVERSATIONS, subject="ours")
    with scratch() as place:
        try:
            asyncio.run(_fill(place / "source.db", number))
        except NotInstalled as error:
            yield absent(question, RIVAL, error, durability="full", target=target)
            return
        found, again = _race(effort, place, number)
        yield compare(question, found, RIVAL, durability="full", faster=True, target=target)
        known = Figure.of(again).scaled(1e-3)
        yield Row(f"{question}, again: all are there", "µs", known, len(again), durability="full")
        yield from _exports(effort, place / "known.memcore", number * ITEMS)


def _exports(effort: Effort, path: Path, items: int) -> Iterator[Row]:
    """All sessions as JSON lines and as a table."""
    with memcore.open(path, read_only=True) as db:
        for form, note in (("jsonl", "a line a session"), ("parquet", "a row an item")):
            question = f"export of {items:,} items as {form}, each of them"
            try:
                size = _size(db, form) / items
            except ImportError as error:
                yield absent(question, "pyarrow", error)
                continue
            found = measure(partial(_size, db, form), rounds=effort.rounds(5), ops=items)
            yield Row(
                question, "µs", Figure.of(found).scaled(1e-3), len(found),
                note=f"{note}, {size:,.0f} bytes an item: all conversations are alike",
            )  # fmt: skip


def _size(db: memcore.Database, form: str) -> int:
    return sum(map(len, db.export(format=form)))


async def _fill(path: Path, number: int) -> None:
    items = [dict(item) for item in response_items(ITEMS)]
    for item in items:  # as long as those of a chat, not a kilobyte each
        for key, value in item.items():
            if isinstance(value, str) and len(value) > 300:
                item[key] = value[:300]
    for at in range(number):
        session = sqlite_session(path, f"chat-{at:06}")
        await session.add_items(items)
        session.close()


def _race(effort: Effort, place: Path, number: int) -> tuple[Race, list[float]]:
    """Imports, a tenth of the conversations by the loop, and imports of what is there."""
    source, fresh, part = place / "source.db", count(), max(number // 10, 1)

    def ours(path: Path | None = None) -> None:
        with memcore.open(path or place / f"{next(fresh)}.memcore") as db:
            report = importing.load(db, importing.read("openai-agents", source))
        if report.conversations + report.present != number:
            raise AssertionError(report)

    async def copied() -> None:
        with memcore.open(place / f"{next(fresh)}.memcore") as db:
            for at in range(part):
                name = f"chat-{at:06}"
                session = sqlite_session(source, name)
                db.session(name, policy="openai_responses").extend(await session.get_items())
                session.close()

    known = place / "known.memcore"
    ours(known)
    found = Race()
    for _ in range(effort.rounds(2)):
        mine = measure(ours, rounds=1, ops=number)
        found.add(mine, measure(lambda: asyncio.run(copied()), rounds=1, ops=part))
    return found, measure(lambda: ours(known), rounds=1, ops=number)


def test_import(benchmark, place):
    asyncio.run(_fill(place / "source.db", 500))
    fresh = count()

    def load() -> None:
        with memcore.open(place / f"{next(fresh)}.memcore") as db:
            importing.load(db, importing.read("openai-agents", place / "source.db"))

    benchmark.pedantic(load, rounds=3)
