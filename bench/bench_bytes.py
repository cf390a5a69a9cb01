"""What does an append write, and does it stay bounded as the session grows?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from conversation import chat_items, open_filled
from harness import Effort, Figure, NotInstalled, Row, absent, in_child, scratch
from rivals import KeptSqlite

SIZES = (10, 1_000, 20_000)
PAGE_BYTES = 4096
RIVAL = "sqlite3, kept connection, WAL/FULL"


def rows(effort: Effort) -> Iterator[Row]:
    """Bytes that reach write(2) and its like for an append, counted by the preloaded shim."""
    for durability in ("full", "none"):
        for size in SIZES:
            count = effort.items(size)
            question = f"bytes written for an append at {count:,} items"
            try:
                with scratch() as place:
                    found = in_child(
                        "bench_bytes",
                        "count_bytes",
                        shim=True,
                        place=str(place),
                        durability=durability,
                        items=count,
                        appends=effort.rounds(300),
                    )
            except NotInstalled as error:
                yield absent(question, RIVAL, error, durability=durability)
                continue
            yield _row(question, durability, found)


def _row(question: str, durability: str, found: dict[str, Any]) -> Row:
    kib = [value / 1024 for value in found["bytes"]]
    mean = sum(found["bytes"]) / len(kib)
    return Row(
        question,
        "KiB",
        Figure.of(kib),
        len(kib),
        durability=durability,
        rival=RIVAL if durability == "full" else "",
        theirs=Figure.of([value / 1024 for value in found["theirs"]])
        if durability == "full"
        else None,
        note=(
            f"{sum(found['writes']) / len(kib):.1f} writes, {mean / PAGE_BYTES:.1f} pages on"
            f" average; the item is {found['item']:.0f} bytes"
        ),
    )


# --- in the child --------------------------------------------------------------------------------


def count_bytes(place: str, durability: str, items: int, appends: int) -> dict[str, Any]:
    """Bytes and writes of each append, ours and the rival's."""
    import orjson

    from flushcount import Counter

    history = chat_items(items)
    more = list(islice(chat_items(items + appends), items, None))
    db, session = open_filled(Path(place) / "memcore", history, durability=durability)
    rival = KeptSqlite(Path(place) / "sqlite.db")
    rival.extend(history)
    counter = Counter()
    found: dict[str, Any] = {"bytes": [], "writes": [], "theirs": []}
    for item in more:
        counter.reset()
        session.append(item)
        found["bytes"].append(counter.bytes)
        found["writes"].append(counter.writes)
        counter.reset()
        rival.append(item)
        found["theirs"].append(counter.bytes)
    db.close()
    rival.close()
    found["item"] = sum(len(orjson.dumps(item)) for item in more) / len(more)
    return found


def test_append_to_a_long_session(benchmark, place):
    items = chat_items(20_000)
    db, session = open_filled(place / "memcore", items, durability="none")
    following = iter(chat_items(40_000)[20_000:])
    benchmark.pedantic(lambda: session.append(next(following)), rounds=1_000)
    db.close()
