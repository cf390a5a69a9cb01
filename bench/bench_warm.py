"""What does a warm copy on a server cost the appends of its file, and how soon is it there?

The server is started for the benchmark, on this machine: it takes its share of the processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from rivals_postgres import started

import memcore
from conversation import chat_items
from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    at_most,
    compare,
    race,
    scratch,
)

HISTORY = 1_000
ROUNDS = 200
CALLS = 10


def rows(effort: Effort) -> Iterator[Row]:
    """Appends beside the same file without a copy, and one that waits for it."""
    try:
        with started() as server, scratch() as place:
            for mode in ("relaxed", "full"):
                yield _append(effort, server, place, mode)
            yield _ship(effort, server, place)
    except (NotInstalled, ImportError) as error:
        yield absent("append to a file with a warm copy", "without", error)


def _append(effort: Effort, server: Any, place: Path, mode: str) -> Row:
    base = chat_items(effort.items(HISTORY))
    address = server.address(f"warm_{mode}")
    with (
        memcore.open(place / f"followed {mode}", durability=mode, warm=address) as followed,
        memcore.open(place / f"plain {mode}", durability=mode) as plain,
    ):
        sessions = [db.session("s") for db in (followed, plain)]
        for session in sessions:
            session.extend(base)
        followed.ship()
        mine, theirs = cycle(base[1:]), cycle(base[1:])
        found = race(
            lambda: sessions[0].append(next(mine)), lambda: sessions[1].append(next(theirs)),
            rounds=effort.rounds(ROUNDS), calls=CALLS,
        )  # fmt: skip
    return compare(
        "append to a file with a warm copy", found, "the same file without",
        durability=mode, target=at_most(1.3),
        note="the thread that ships runs beside both sides",
    )  # fmt: skip


def _ship(effort: Effort, server: Any, place: Path) -> Row:
    """One append that waits until it is on the server, against one to the same server."""
    base = chat_items(effort.items(HISTORY))
    with (
        memcore.open(place / "shipped", durability="relaxed", warm=server.address("ship")) as db,
        memcore.open(server.address("direct")) as direct,
    ):
        near, far = db.session("s"), direct.session("s")
        near.extend(base)
        far.extend(base)
        db.ship()
        mine, theirs = cycle(base[1:]), cycle(base[1:])

        def ours() -> None:
            near.append(next(mine))
            db.ship()

        found = race(ours, lambda: far.append(next(theirs)), rounds=effort.rounds(ROUNDS))
    return compare(
        "append, and wait until the warm copy has it", found, "append to a store on the server",
        durability="relaxed",
    )  # fmt: skip
