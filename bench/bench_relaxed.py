"""What does an append cost that only a power cut can take back, against SQLite's way to do so?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from conversation import chat_items, open_filled
from harness import (
    Effort,
    NotInstalled,
    Race,
    Row,
    absent,
    at_least,
    compare,
    in_child,
    race,
    scratch,
    slow_flush_place,
)
from rivals import KeptSqlite

RIVAL = "sqlite3, kept connection, WAL/NORMAL"
HISTORY = 1_000
CALLS = 10
DELAY_US = 1_000


def rows(effort: Effort) -> Iterator[Row]:
    """On this disk, and with a flush that takes 1 ms (files in memory, a preloaded shim)."""
    with scratch() as place:
        yield _row(
            "append of one item",
            run(str(place), effort.items(HISTORY), effort.rounds(300)),
            "the thread that makes steady points runs beside both sides",
        )
    slow = "append of one item, a flush costs 1 ms"
    try:
        with scratch(slow_flush_place()) as place:
            found = in_child(
                "bench_relaxed",
                "slow_race",
                shim=True,
                place=str(place),
                rounds=effort.rounds(300),
            )
        yield _row(slow, Race.read(found), "the same, where a point holds up nobody")
    except NotInstalled as error:
        yield absent(slow, RIVAL, error, durability="relaxed", target=at_least(1.3))


def _row(question: str, found: Race, note: str) -> Row:
    return compare(
        question,
        found,
        RIVAL,
        durability="relaxed",
        faster=True,
        target=at_least(1.3),
        note=note,
    )


def run(place: str, items: int, rounds: int) -> Race:
    """Both sides in turn, after as many items of history."""
    base = chat_items(items)
    db, session = open_filled(Path(place) / "memcore", base, durability="relaxed")
    rival = KeptSqlite(Path(place) / "sqlite.db", synchronous="NORMAL")
    rival.extend(base)
    mine, theirs = cycle(base[1:]), cycle(base[1:])
    try:
        return race(
            lambda: session.append(next(mine)),
            lambda: rival.append(next(theirs)),
            rounds=rounds,
            calls=CALLS,
        )
    finally:
        db.close()
        rival.close()


def slow_race(place: str, rounds: int) -> dict[str, list[float]]:
    """In the child that runs under the shim."""
    from flushcount import Counter

    Counter().delay(DELAY_US)
    try:
        return run(place, 200, rounds).written()
    finally:
        Counter().delay(0)


def test_relaxed_append(benchmark: Any, place: Any) -> None:
    """One append."""
    db, session = open_filled(place / "memcore", chat_items(200), durability="relaxed")
    items = cycle(chat_items(200)[1:])
    benchmark(lambda: session.append(next(items)))
    db.close()
