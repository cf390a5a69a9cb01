"""What do checkpoints take on disk, and what does it cost to be rid of them?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import memcore
from harness import Effort, Figure, NotInstalled, Row, absent, at_most, measure, scratch
from rivals_langgraph import (
    MESSAGE_BYTES,
    Thread,
    looping_graph,
    memory_bytes,
    memory_saver,
    message,
    our_saver,
    sqlite_saver,
)

SQLITE = "SqliteSaver, WAL/FULL"
PAGE_BYTES = 4096


def rows(effort: Effort) -> Iterator[Row]:
    """Bytes on disk after a graph's run; prune and copy of a thread."""
    try:
        message(0)
        with scratch() as place:
            our_saver(place / "probe").close()
            sqlite_saver(place / "probe.db", "FULL").conn.close()
    except NotInstalled as error:
        yield absent("bytes of checkpoints", "LangGraph's savers", error)
        return
    yield from _sizes(effort)
    yield from _retention(effort)


def _retention(effort: Effort) -> Iterator[Row]:
    """What no rival can do in its own words: it keeps all, or deletes the thread."""
    steps, rounds = max(4, 200 // effort.rounds_divisor), effort.rounds(4)
    history = [message(at) for at in range(2 * steps)]
    with scratch() as place, our_saver(place / "full", "full") as saver:
        for at in range(2 * rounds + 2):
            thread = Thread(saver, f"thread-{at}")
            for upto in range(2, 2 * steps + 1, 2):
                thread.put(history[:upto])
        names = count()
        pruned = measure(lambda: saver.prune([f"thread-{next(names)}"]), rounds=rounds)
        copied = measure(lambda: _copy(saver, next(names)), rounds=rounds)
        for what, found in (("prune, keep the latest of", pruned), ("copy a thread of", copied)):
            figure = Figure.of(found).scaled(1e-6)
            yield Row(f"{what} {steps} steps", "ms", figure, len(found), durability="full")


def _copy(saver: Any, at: int) -> None:
    saver.copy_thread(f"thread-{at}", f"copy-{at}")


def _pages(file: Path) -> int:
    with memcore.open(file, read_only=True) as db:
        return int(db.stats()["pages_used"])


def _sizes(effort: Effort) -> Iterator[Row]:
    """Bytes on disk of a graph's run, through those of its messages' texts."""
    steps = max(10, 200 // effort.rounds_divisor)
    raw = 2 * steps * MESSAGE_BYTES
    with scratch() as place:
        ours, theirs = place / "ours", place / "theirs.db"
        with our_saver(ours) as saver:
            Thread(saver, "other").put([])
            empty = _pages(ours)
            _run(saver, steps)
            grown = _pages(ours) - empty
        whole = ours.stat().st_size
        rival = sqlite_saver(theirs, "FULL")
        _run(rival, steps)
        rival.conn.close()
        sqlite_bytes = theirs.stat().st_size
        memory = memory_saver()
        _run(memory, steps)
        with our_saver(ours) as saver:
            saver.prune(["thread"])
            pruned = _pages(ours) - empty
    sqlite, kept = SQLITE, "what an InMemorySaver holds"
    whole_note = "1 to 2 MiB of it are the redo record and room for deletions"
    asked = f"bytes on disk after {steps} steps, through those of the texts"
    sizes = {sqlite: sqlite_bytes, kept: memory_bytes(memory)}
    yield _size(asked, whole, sizes[sqlite], raw, rival=sqlite, note=whole_note)
    less = f"{asked}; without what an empty file has"
    yield _size(less, grown * PAGE_BYTES, sizes[sqlite], raw, rival=sqlite, note="goal 2")
    yield _size(
        less, grown * PAGE_BYTES, sizes[kept], raw, rival=kept, note="its writes not counted"
    )
    figure = Figure.of([pruned * PAGE_BYTES / raw])
    yield Row(f"the same {steps} steps after a prune, keep the latest", "×", figure, 1)


def _size(question: str, mine: int, theirs: int, raw: int, *, rival: str, note: str) -> Row:
    return Row(
        question,
        "×",
        Figure.of([mine / raw]),
        1,
        durability="full",
        rival=rival,
        theirs=Figure.of([theirs / raw]),
        ratio=Figure.of([mine / theirs]),
        target=at_most(6.0, "ours"),
        note=note,
    )


def _run(saver: Any, steps: int) -> None:
    config = {"configurable": {"thread_id": "thread"}, "recursion_limit": steps + 10}
    given = {"messages": [], "left": steps}
    looping_graph(saver).invoke(given, config, durability="sync")


def test_copy(benchmark: Any, place: Path) -> None:
    """A copy of a thread of 100 checkpoints."""
    with our_saver(place / "memcore", "none") as saver:
        thread = Thread(saver, "thread-0")
        for at in range(1, 101):
            thread.put([message(one) for one in range(at)])
        names = count()
        benchmark(lambda: saver.copy_thread("thread-0", f"copy-{next(names)}"))
