"""How fast are the newest items read? Against openai-agents' session on the same items."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from conversation import chat_items, open_filled
from harness import (
    Effort,
    NotInstalled,
    Race,
    Row,
    absent,
    at_least,
    compare,
    race_async,
    scratch,
)
from rivals import sqlite_session

HISTORY, TAIL = 10_000, 50
RIVAL = f"openai-agents SQLiteSession.get_items({TAIL})"


def rows(effort: Effort) -> Iterator[Row]:
    """The last 50, and the whole history."""
    count = effort.items(HISTORY)
    with scratch() as place:
        for number, (question, last, rounds, target) in enumerate(
            (
                (f"tail({TAIL}) of {count:,}", TAIL, 300, at_least(3.0)),
                (f"all of {count:,} items", None, 15, None),
            )
        ):
            own = place / str(number)
            own.mkdir()
            try:
                found = asyncio.run(_race(effort, own, last, rounds))
            except NotInstalled as error:
                yield absent(question, RIVAL, error, target=target)
                continue
            rival = RIVAL if last else "SQLiteSession.get_items()"
            yield compare(question, found, rival, faster=True, target=target)


async def _race(effort: Effort, place: Path, last: int | None, rounds: int) -> Race:
    items = chat_items(effort.items(HISTORY))
    rival = sqlite_session(place / "sqlite.db")
    await rival.add_items(items)
    db, session = open_filled(place / "memcore", items)
    ours = [item.message for item in session.tail(TAIL)]
    if ours != await rival.get_items(TAIL):
        raise AssertionError("the two do not return the same items")
    try:
        return await race_async(
            (lambda: session.tail(last)) if last else (lambda: list(session.items())),
            lambda: rival.get_items(last),
            rounds=effort.rounds(rounds),
        )
    finally:
        db.close()
        rival.close()


def test_tail(benchmark, place):
    db, session = open_filled(place / "memcore", chat_items(HISTORY))
    benchmark(session.tail, TAIL)
    db.close()
