"""How many flushes is a durable append, and what if a flush is slow?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from conversation import chat_items, open_filled
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Race,
    Row,
    absent,
    at_most,
    compare,
    in_child,
    race,
    race_async,
    scratch,
    slow_flush_place,
)
from rivals import KeptSqlite, sqlite_session

RIVAL = "sqlite3, kept connection, WAL/FULL"
DELAY_US = 1_000


def rows(effort: Effort) -> Iterator[Row]:
    """Counted and slowed down by a preloaded shim, in a process of its own."""
    count = "flushes a lone append"
    slow = "append of one item, a flush costs 1 ms"
    try:
        with scratch() as place:
            counted = in_child(
                "bench_flush",
                "count_flushes",
                shim=True,
                place=str(place),
                appends=effort.rounds(500),
            )
        yield _counted(count, counted)
        with scratch(slow_flush_place()) as place:
            found = in_child(
                "bench_flush",
                "slow_race",
                shim=True,
                place=str(place),
                rounds=effort.rounds(60),
            )
        yield compare(
            slow,
            Race.read(found),
            RIVAL,
            durability="full",
            target=at_most(1.0),
            note="the same JSON row; files in memory, so a flush is the sleep alone",
        )
        yield _against_session(effort)
    except NotInstalled as error:
        yield absent(count, RIVAL, error, durability="full", target=at_most(1.1, "ours"))
        yield absent(slow, RIVAL, error, durability="full", target=at_most(1.0))


def _against_session(effort: Effort) -> Row:
    question = "append of one item in a running loop, a flush costs 1 ms"
    rival = "openai-agents SQLiteSession.add_items"
    try:
        with scratch(slow_flush_place()) as place:
            found = in_child(
                "bench_flush",
                "slow_session_race",
                shim=True,
                place=str(place),
                rounds=effort.rounds(60),
            )
    except NotInstalled as error:
        return absent(question, rival, error, durability="full")
    return compare(question, Race.read(found), rival, durability="full", faster=True)


def _counted(question: str, counted: dict[str, Any]) -> Row:
    def flat(value: float) -> Figure:
        return Figure(value, value, value)

    return Row(
        question,
        "flushes",
        flat(counted["ours"]),
        counted["n"],
        durability="full",
        rival=RIVAL,
        theirs=flat(counted["theirs"]),
        ratio=flat(counted["ours"] / max(counted["theirs"], 1e-9)),
        target=at_most(1.1, "ours"),
    )


# --- in the child --------------------------------------------------------------------------------


def _both(place: str) -> tuple[Any, Any, KeptSqlite]:
    items = chat_items(200)
    db, session = open_filled(Path(place) / "memcore", items)
    rival = KeptSqlite(Path(place) / "sqlite.db")
    rival.extend(items)
    return db, session, rival


def count_flushes(place: str, appends: int) -> dict[str, float]:
    from flushcount import Counter

    db, session, rival = _both(place)
    counter = Counter()
    found: dict[str, float] = {"n": appends}
    for name, append in (("ours", session.append), ("theirs", rival.append)):
        items = cycle(chat_items(200)[1:])
        append(next(items))
        counter.reset()
        for _ in range(appends):
            append(next(items))
        found[name] = counter.flushes / appends
    db.close()
    rival.close()
    return found


def slow_race(place: str, rounds: int, delay_us: int = DELAY_US) -> dict[str, list[float]]:
    from flushcount import Counter

    db, session, rival = _both(place)
    mine, theirs = cycle(chat_items(200)[1:]), cycle(chat_items(200)[1:])
    Counter().delay(delay_us)
    found = race(
        lambda: session.append(next(mine)),
        lambda: rival.append(next(theirs)),
        rounds=rounds,
        calls=5,
    )
    Counter().delay(0)
    db.close()
    rival.close()
    return found.written()


def slow_session_race(place: str, rounds: int, delay_us: int = DELAY_US) -> dict[str, list[float]]:
    from flushcount import Counter

    async def run() -> Race:
        rival = sqlite_session(Path(place) / "sqlite.db")
        items = chat_items(200)
        await rival.add_items(items)
        db, session = open_filled(Path(place) / "memcore", items)
        mine, theirs = cycle(items[1:]), cycle(items[1:])
        Counter().delay(delay_us)
        found = await race_async(
            lambda: session.append(next(mine)),
            lambda: rival.add_items([next(theirs)]),
            rounds=rounds,
            calls=5,
        )
        Counter().delay(0)
        db.close()
        rival.close()
        return found

    return asyncio.run(run()).written()


def test_lone_durable_append(benchmark, place):
    db, session, rival = _both(str(place))
    items = cycle(chat_items(200)[1:])
    benchmark(lambda: session.append(next(items)))
    db.close()
    rival.close()
