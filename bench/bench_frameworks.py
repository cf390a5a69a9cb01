"""How long does one more turn of a long conversation take, in five frameworks and in their stores?

Each conversation has 1,000 messages already, flushes are for nothing, and the rival is the
framework's own store: on a file or SQLite where it has one, else in memory. Stores on plain files
and in memory flush nothing at all; memcore commits durably.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rivals_frameworks import FRAMEWORKS

from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    compare,
    paired,
    race_each_async,
    scratch,
    slow_flush_place,
)

MESSAGES = 1_000
ROUNDS = 200


def rows(effort: Effort) -> Iterator[Row]:
    """A turn more, and the whole history read, of each framework."""
    for make in FRAMEWORKS:
        with scratch(slow_flush_place()) as place:
            try:
                question, rival, sides, ours, theirs = make(place, effort.items(MESSAGES))
                yield from asyncio.run(_raced(effort, question, rival, sides, (ours, theirs)))
            except (NotInstalled, ImportError) as error:
                name = make.__name__.strip("_")
                yield absent(f"a turn of {name}", f"{name}'s own store", error)


async def _raced(effort: Effort, question: str, rival: str, sides: Any, stores: Any) -> list[Row]:
    ours, theirs = [await sides(store) for store in stores]
    wrote = paired(*await race_each_async([ours[0], theirs[0]], rounds=effort.rounds(ROUNDS)))
    read = paired(*await race_each_async([ours[1], theirs[1]], rounds=effort.rounds(40)))
    return [
        compare(f"{question}: a turn more", wrote, rival, durability="full", faster=True),
        compare(f"{question}: all of it", read, rival, faster=True),
    ]
