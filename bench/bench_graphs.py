"""What do whole runs of a graph cost with memcore's saver, and with LangGraph's?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from harness import (
    Effort,
    NotInstalled,
    Race,
    Row,
    absent,
    at_least,
    compare,
    race,
    race_async,
    scratch,
)
from rivals_langgraph import async_sqlite_saver, looping_graph, message, our_saver, sqlite_saver

STEPS = 100
AT_ONCE, STEPS_AT_ONCE = 20, 10
SQLITE = {"none": "NORMAL", "full": "FULL"}
"""What SQLite's ``synchronous`` is, at memcore's durability."""


def rows(effort: Effort) -> Iterator[Row]:
    """Runs of 100 steps, two messages a step; threads at once; channels of deltas."""
    try:
        message(0)
        with scratch() as place:
            our_saver(place / "probe").close()
            sqlite_saver(place / "probe.db", "FULL").conn.close()
    except NotInstalled as error:
        yield absent("runs of a graph", "LangGraph's savers", error)
        return
    steps = max(4, STEPS // effort.rounds_divisor)
    for durability in SQLITE:
        for when in ("sync", "async"):
            found = _invoked(steps, durability, when, effort, delta=False)
            question = f"a graph of {steps} steps, LangGraph's durability {when}"
            yield _row(question, found, "SqliteSaver", durability, promised=True)
    found = _invoked(steps, "none", "sync", effort, delta=True)
    yield _row(f"a graph of {steps} steps, channel of deltas", found, "SqliteSaver", "none")
    for durability in SQLITE:
        for at_once, each in ((1, steps), (AT_ONCE, STEPS_AT_ONCE)):
            found = asyncio.run(_awaited(at_once, each, durability, effort))
            threads = f"{at_once} threads at once, " if at_once > 1 else ""
            question = f"ainvoke: {threads}{each} steps"
            yield _row(question, found, "AsyncSqliteSaver", durability, promised=True)


def _row(question: str, found: Race, rival: str, durability: str, *, promised: bool = False) -> Row:
    return compare(
        question,
        found,
        f"{rival}, WAL/{SQLITE[durability]}",
        unit="ms",
        durability=durability,
        faster=True,
        target=at_least(1.0) if promised else None,
    )


def _config(name: str, steps: int) -> Any:
    return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}


def _invoked(steps: int, durability: str, when: str, effort: Effort, *, delta: bool) -> Race:
    """Runs of new threads."""

    def run(graph: Any) -> Callable[[], None]:
        names = count()

        def invoke() -> None:
            config = _config(f"thread-{next(names)}", steps)
            given = {"messages": [], "left": steps}
            found = graph.invoke(given, config, durability=when)
            assert len(found["messages"]) == 2 * steps

        return invoke

    with scratch() as place, ExitStack() as stack:
        ours = stack.enter_context(our_saver(place / "ours", durability))
        theirs = sqlite_saver(place / "theirs.db", SQLITE[durability])
        stack.callback(theirs.conn.close)
        graphs = [looping_graph(saver, delta=delta) for saver in (ours, theirs)]
        return race(run(graphs[0]), run(graphs[1]), rounds=effort.rounds(6))


async def _awaited(at_once: int, steps: int, durability: str, effort: Effort) -> Race:
    """Runs of new threads in one loop."""

    def run(graph: Any) -> Callable[[], Awaitable[Any]]:
        names = count()

        async def invoke() -> None:
            await asyncio.gather(
                *(
                    graph.ainvoke(
                        {"messages": [], "left": steps},
                        _config(f"thread-{next(names)}", steps),
                        durability="sync",
                    )
                    for _ in range(at_once)
                )
            )

        return invoke

    with scratch() as place:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(our_saver(place / "ours", durability))
            sqlite = async_sqlite_saver(place / "theirs.db", SQLITE[durability])
            theirs = await stack.enter_async_context(sqlite)
            mine, other = run(looping_graph(ours)), run(looping_graph(theirs))
            return await race_async(mine, other, rounds=effort.rounds(5))


def test_a_run(benchmark: Any, place: Path) -> None:
    """A graph of 100 steps."""
    with our_saver(place / "memcore", "none") as saver:
        graph = looping_graph(saver)
        names = count()
        benchmark(
            lambda: graph.invoke(
                {"messages": [], "left": STEPS}, _config(f"thread-{next(names)}", STEPS)
            )
        )
