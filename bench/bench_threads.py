"""Do appends of many threads share their flushes?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter_ns
from typing import Any

from conversation import chat_items
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Row,
    absent,
    at_least,
    in_child,
    scratch,
    slow_flush_place,
)

THREADS = 64
DELAY_US = 1_000
RIVAL = "one thread"


def rows(effort: Effort) -> Iterator[Row]:
    """64 threads with a session each, and all on one session."""
    target = at_least(15.0)
    for shared in (False, True):
        where = "one session" if shared else "a session each"
        question = f"durable appends of {THREADS} threads, {where}, a flush costs 1 ms"
        try:
            with scratch(slow_flush_place()) as place:
                found = in_child(
                    "bench_threads",
                    "rates",
                    shim=True,
                    place=str(place),
                    shared=shared,
                    rounds=effort.rounds(10),
                    appends=effort.rounds(60),
                )
        except NotInstalled as error:
            yield absent(question, RIVAL, error, durability="full", target=target)
            continue
        yield Row(
            question,
            "appends/s",
            Figure.of(found["many"]),
            len(found["many"]),
            durability="full",
            rival=RIVAL,
            theirs=Figure.of(found["one"]),
            ratio=Figure.of([a / b for a, b in zip(found["many"], found["one"], strict=True)]),
            faster=True,
            target=target,
            note="files in memory, so a flush is the sleep alone; goal 20",
        )


# --- in the child --------------------------------------------------------------------------------


def rates(
    place: str, rounds: int, appends: int, *, shared: bool, delay_us: int = DELAY_US
) -> dict[str, list[float]]:
    """Appends a second of many threads and of one, in turn."""
    import memcore
    from flushcount import Counter

    items = chat_items(200)[1:]
    found: dict[str, list[float]] = {"many": [], "one": []}
    with memcore.open(str(Path(place) / "memcore")) as db:
        sessions = [
            db.session("s0" if shared else f"s{at}", orphans="keep") for at in range(THREADS)
        ]
        for session in sessions:
            session.append(items[0])
        Counter().delay(delay_us)
        for _ in range(rounds):
            found["one"].append(_rate(sessions[:1], items, appends))
            found["many"].append(_rate(sessions, items, appends))
        Counter().delay(0)
    return found


def _rate(sessions: list[Any], items: list[Any], appends: int) -> float:
    ready = Barrier(len(sessions) + 1)
    threads = [
        Thread(target=_append_all, args=(session.append, items, appends, ready))
        for session in sessions
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    start = perf_counter_ns()
    for thread in threads:
        thread.join()
    return len(sessions) * appends / ((perf_counter_ns() - start) / 1e9)


def _append_all(append: Callable[[Any], Any], items: list[Any], count: int, ready: Barrier) -> None:
    ready.wait()
    for at in range(count):
        append(items[at % len(items)])


def test_threads(benchmark, place):
    import memcore

    items = chat_items(200)[1:]
    with memcore.open(place / "memcore") as db:
        sessions = [db.session(f"s{at}", orphans="keep") for at in range(8)]
        benchmark.pedantic(_rate, args=(sessions, items, 10), rounds=3)
