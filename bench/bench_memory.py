"""What memory does an open session of 100,000 items take?"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conversation import chat_items, open_filled
from harness import Effort, Figure, Row, at_most, in_child, scratch

LONG, SHORT = 100_000, 1_000
MIB = 1024 * 1024


def rows(effort: Effort) -> Iterator[Row]:
    """Resident memory that opening, counting and a context add; then what Python allocated."""
    with scratch() as place:
        counts = effort.items(LONG), effort.items(SHORT)
        for count in dict.fromkeys(counts):
            open_filled(place / str(count), chat_items(count))[0].close()
        long, short = ([_grown(place, count) for _ in range(effort.rounds(5))] for count in counts)
        traced = in_child("bench_memory", "traced_mib", path=str(place / str(counts[0])))
    yield Row(
        f"memory of an open session, {counts[0]:,} items",
        "MiB",
        Figure.of([found["resident"] for found in long]),
        len(long),
        rival=f"the same, {counts[1]:,} items",
        theirs=Figure.of([found["resident"] for found in short]),
        target=at_most(20.0, "ours"),
        note="resident set, the mapped pages of the file included; after one context(8k)",
    )
    yield Row(
        "of that: anonymous memory",
        "MiB",
        Figure.of([found["anonymous"] for found in long]),
        len(long),
        rival=f"the same, {counts[1]:,} items",
        theirs=Figure.of([found["anonymous"] for found in short]),
    )
    yield Row(
        "of that: Python objects (tracemalloc)",
        "MiB",
        Figure(traced, traced, traced),
        1,
        note="the ledger's C arrays are not among them",
    )


def _grown(place: Path, count: int) -> dict[str, float]:
    return in_child("bench_memory", "grown_mib", path=str(place / str(count)))


# --- in the child --------------------------------------------------------------------------------


def resident() -> dict[str, int]:
    """Bytes of this process that are in memory, and of them the anonymous ones."""
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in {"VmRSS", "RssAnon"}:
            found[name] = int(value.split()[0]) * 1024
    return found


def _open(path: str) -> tuple[Any, Any]:
    import memcore

    db = memcore.open(path)
    session = db.session("bench", orphans="keep")
    len(session)
    session.context(8_000)
    return db, session  # the session keeps its ledger


def grown_mib(path: str) -> dict[str, float]:
    """What opening adds to a process that has imported memcore and used a small database."""
    import memcore

    with memcore.open(":memory:") as db:
        db.session("warm").append({"role": "user", "content": "x"})
        db.session("warm").context(8_000)
    before = resident()
    db, session = _open(path)
    after = resident()
    db.close()
    del session
    return {
        "resident": (after["VmRSS"] - before["VmRSS"]) / MIB,
        "anonymous": (after["RssAnon"] - before["RssAnon"]) / MIB,
    }


def traced_mib(path: str) -> float:
    """What Python allocated for it and still holds."""
    import memcore

    with memcore.open(":memory:") as db:
        db.session("warm").append({"role": "user", "content": "x"})
    tracemalloc.start()
    db, session = _open(path)
    held = tracemalloc.get_traced_memory()[0]
    db.close()
    del session
    return held / MIB


def test_open_session(benchmark, place):
    open_filled(place / "memcore", chat_items(10_000))[0].close()

    def open_and_close():
        db, _ = _open(str(place / "memcore"))
        db.close()

    benchmark(open_and_close)
