"""What does an append cost, against openai-agents' session and against LMDB itself?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
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
    Target,
    absent,
    at_least,
    at_most,
    compare,
    measure,
    race,
    race_async,
    scratch,
    slow_flush_place,
)
from rivals import KeptSqlite, RawLmdb, sqlite_session

HISTORY = 1_000
CALLS = 10
RIVAL = "openai-agents SQLiteSession.add_items"


def rows(effort: Effort) -> Iterator[Row]:
    """At "full" against SQLiteSession and a kept connection, at "none" against raw LMDB."""
    yield from full_rows(effort)
    yield from none_rows(effort)


# --- "full": against SQLiteSession ---------------------------------------------------------------


def full_rows(effort: Effort) -> Iterator[Row]:
    """On this disk, and with files in memory, where a flush costs nothing and the CPU all."""
    places = [("", None)]
    if slow_flush_place():
        places.append((", flushes for nothing", slow_flush_place()))
    for where, parent in places:
        for what, size, facade, bound in (
            ("append of one item", 1, False, 1.5),
            ("extend by four items", 4, False, None),
            ("aio append of one item", 1, True, None),
        ):
            target = None if bound is None or where else at_least(bound)
            with scratch(parent) as place:
                run = partial(_against_session, effort, place, size, facade)
                yield _row(f"{what}{where}", target, run)
        with scratch(parent) as place:
            yield _against_kept_connection(effort, place, where)


def _row(question: str, target: Target | None, run: Callable[[], Any]) -> Row:
    try:
        found = asyncio.run(run())
    except NotInstalled as error:
        return absent(question, RIVAL, error, durability="full", target=target)
    return compare(question, found, RIVAL, durability="full", faster=True, target=target)


async def _against_session(effort: Effort, place: Path, size: int, facade: bool) -> Race:
    """Both inside a running loop; ours on the loop's own thread or through the facade."""
    import memcore
    from memcore import aio

    items = chat_items(effort.items(HISTORY))
    rival = sqlite_session(place / "sqlite.db")
    await rival.add_items(items)
    open_filled(place / "memcore", items)[0].close()
    mine, theirs = (cycle(chat_items(4_000, seed=8)[1:]) for _ in range(2))
    db = await aio.open(place / "memcore") if facade else memcore.open(place / "memcore")
    try:
        return await race_async(
            _takes(db.session("bench", orphans="keep").extend, mine, size),
            _takes(rival.add_items, theirs, size),
            rounds=effort.rounds(100),
            calls=CALLS,
        )
    finally:
        closing = db.close()
        if facade:
            await closing
        rival.close()


def _takes(
    store: Callable[[list[Any]], Awaitable[Any] | Any], items: Iterator[Any], size: int
) -> Callable[[], Any]:
    def action() -> Any:
        return store([next(items) for _ in range(size)])

    return action


def _against_kept_connection(effort: Effort, place: Path, where: str) -> Row:
    items = chat_items(effort.items(HISTORY))
    db, session = open_filled(place / "memcore", items)
    rival = KeptSqlite(place / "sqlite.db")
    rival.extend(items)
    mine, theirs = cycle(items[1:]), cycle(items[1:])
    try:
        found = race(
            lambda: session.append(next(mine)),
            lambda: rival.append(next(theirs)),
            rounds=effort.rounds(100),
            calls=CALLS,
        )
    finally:
        db.close()
        rival.close()
    return compare(
        f"append of one item, no asyncio{where}",
        found,
        "sqlite3, kept connection, WAL/FULL",
        durability="full",
        faster=True,
        note="json.dumps + INSERT + commit",
    )


# --- "none": against raw LMDB --------------------------------------------------------------------


def none_rows(effort: Effort) -> Iterator[Row]:
    """The rows that memcore put for each append are put again by py-lmdb alone."""
    count = effort.rounds(100) * CALLS + CALLS
    base = chat_items(effort.items(HISTORY))
    more = chat_items(count + len(base))[len(base) :]
    with scratch() as place:
        before, captured = _captured(place, base, more)
        db, session = open_filled(place / "memcore", base, durability="none")
        raw = RawLmdb(place / "raw")
        raw.write(before)
        mine, theirs = iter(more), iter(captured)
        try:
            found = race(
                lambda: session.append(next(mine)),
                lambda: raw.write(next(theirs)),
                rounds=effort.rounds(100),
                calls=CALLS,
            )
        finally:
            db.close()
            raw.close()
        yield compare(
            "append of one item",
            found,
            "raw py-lmdb transaction with the same puts",
            durability="none",
            target=at_most(3.0),
            note=f"{_mean_rows(captured)} puts an append, captured from memcore",
        )
        yield _shared_by_many(effort, place)


def _mean_rows(captured: list[Any]) -> str:
    return f"{sum(map(len, captured)) / len(captured):.1f}"


def _captured(place: Path, base: list[Any], more: list[Any]) -> tuple[list[Any], list[Any]]:
    """The puts that filled a database, and those of each append after that."""
    from memcore.store.commit import Leader
    from memcore.store.transaction import WriteTxn

    puts: list[tuple[bytes, bytes]] = []

    class Recorded(WriteTxn):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            put = self.raw_put

            def recorded(key: bytes, value: bytes) -> bool:
                puts.append((key, value))
                return put(key, value)

            self.raw_put = recorded

    Leader.transaction = Recorded
    try:
        db, session = open_filled(place / "captured", base, durability="none")
        before, captured = list(puts), []
        for item in more:
            puts.clear()
            session.append(item)
            captured.append(list(puts))
        db.close()
    finally:
        Leader.transaction = WriteTxn
    return before, captured


def _shared_by_many(effort: Effort, place: Path) -> Row:
    """An append of a batch is what remains when the transaction's fixed costs are shared."""
    base = chat_items(effort.items(HISTORY))
    db, session = open_filled(place / "batch", base, durability="none")
    chunk = base[:100]
    try:
        times = measure(lambda: session.extend(chunk), rounds=effort.rounds(100), ops=len(chunk))
    finally:
        db.close()
    return Row(
        "extend by 100 items, an item", "µs", Figure.of(times).scaled(1e-3), len(times), "none"
    )


# --- pytest-benchmark ----------------------------------------------------------------------------


def test_append_full(benchmark, place):
    db, session = open_filled(place / "full", chat_items(HISTORY))
    items = cycle(chat_items(HISTORY))
    benchmark(lambda: session.append(next(items)))
    db.close()


def test_append_none(benchmark, place):
    db, session = open_filled(place / "none", chat_items(HISTORY), durability="none")
    items = cycle(chat_items(HISTORY))
    benchmark(lambda: session.append(next(items)))
    db.close()
