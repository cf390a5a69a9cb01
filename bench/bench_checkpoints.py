"""What do checkpoints of a graph cost, against LangGraph's own savers?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import (
    Effort,
    NotInstalled,
    Race,
    Row,
    Target,
    absent,
    at_least,
    compare,
    race,
    race_each,
    scratch,
)
from rivals_langgraph import (
    Thread,
    distinct_threads,
    fill_sqlite,
    looping_graph,
    memory_saver,
    message,
    our_saver,
    sqlite_saver,
)

SQLITE = "SqliteSaver, WAL/{}"
MEMORY = "InMemorySaver"
ENOUGH = 1_000
"""Messages of the long thread."""
Step = Callable[[Any, int], Any]
"""The next value of a channel from the last one, and how many steps there were."""

_PAIRS = (
    ("none", SQLITE.format("NORMAL")),
    ("relaxed", SQLITE.format("NORMAL")),
    ("none", MEMORY),
    ("full", SQLITE.format("FULL")),
)
"""What is compared: neither side flushes a commit, or each does."""
_PUT_TARGETS = dict(zip(_PAIRS, map(at_least, (10.0, 10.0, 1.0, 2.0)), strict=True))


def rows(effort: Effort) -> Iterator[Row]:
    """Puts, gets, lists."""
    try:
        message(0)
        with scratch() as place:
            our_saver(place / "probe").close()
            sqlite_saver(place / "probe.db", "FULL").conn.close()
    except NotInstalled as error:
        yield absent("checkpoints of a graph", "LangGraph's savers", error)
        return
    yield from _puts(effort)
    yield from _first_puts(effort)
    yield from _gets(effort)
    yield from _lists(effort)


class Sides:
    """A saver of each kind, closed in the end."""

    def __init__(self, place: Path, stack: ExitStack, *, full: bool = True) -> None:
        def ours(durability: str) -> Any:
            return stack.enter_context(our_saver(place / durability, durability))

        def sqlite(synchronous: str) -> Any:
            saver = sqlite_saver(place / f"{synchronous}.db", synchronous)
            stack.callback(saver.conn.close)
            return saver

        levels = ("none", "relaxed", "full") if full else ("none",)
        self.savers = {level: ours(level) for level in levels}
        for synchronous in ("NORMAL", "FULL") if full else ("NORMAL",):
            self.savers[SQLITE.format(synchronous)] = sqlite(synchronous)
        self.savers[MEMORY] = memory_saver()


def _paired(
    question: str,
    found: dict[str, Race],
    *,
    targets: dict[tuple[str, str], Target] | None = None,
    unit: str = "µs",
    note: str = "",
) -> Iterator[Row]:
    """The rows of a race of all sides."""
    for pair in _PAIRS:
        if pair[0] not in found or pair[1] not in found:
            continue
        mine, theirs = found[pair[0]], found[pair[1]]
        ratios = [one / two for one, two in zip(mine.ours, theirs.ours, strict=True)]
        result = Race(mine.ours, theirs.ours, ratios)
        target = None if targets is None else targets.get(pair)
        yield compare(
            question, result, pair[1], durability=pair[0], target=target, faster=True, unit=unit,
            note=note,
        )  # fmt: skip


# --- puts ----------------------------------------------------------------------------------------


def _appended(value: list[Any], at: int) -> list[Any]:
    return [*value, message(2 * at + 100_000), message(2 * at + 100_001)]


def _edited(value: list[Any], at: int) -> list[Any]:
    middle = len(value) // 2
    return [*value[:middle], message(at + 100_000), *value[middle + 1 :]]


def _trimmed(value: list[Any], at: int) -> list[Any]:
    return _appended(value[2:], at)


def _changed(value: dict[str, Any], at: int) -> dict[str, Any]:
    names = list(value)
    return {**value, names[at * 7 % len(names)]: _file(100_000 + at)}


def _file(at: int) -> dict[str, Any]:
    line = f"line of file {at}, with some more words"
    moment = "2026-01-01T00:00:00+00:00"
    return {"content": [line] * 8, "created_at": moment, "modified_at": moment}


def _puts(effort: Effort) -> Iterator[Row]:
    sizes = {size: effort.items(size) for size in (10, 100, ENOUGH)}
    for size, items in sizes.items():
        yield from _put(
            f"put: 2 messages behind {items:,}",
            [message(at) for at in range(items)],
            _appended,
            effort.rounds(30),
            _PUT_TARGETS if size == ENOUGH else None,
        )
    items = sizes[ENOUGH]
    history = [message(at) for at in range(items)]
    rounds = effort.rounds(12)
    yield from _put(
        f"put: one message of {items:,} edited, in the middle", history, _edited, rounds
    )
    yield from _put(f"put: 2 of {items:,} messages trimmed, 2 appended", history, _trimmed, rounds)
    files = effort.items(2_000)
    entries = {f"/workspace/src/file-{at}.py": _file(at) for at in range(files)}
    yield from _put(f"put: one entry of a dict of {files:,} files", entries, _changed, rounds)


def _put(
    question: str,
    value: Any,
    step: Step,
    rounds: int,
    targets: dict[tuple[str, str], Target] | None = None,
) -> Iterator[Row]:
    with scratch() as place, ExitStack() as stack:
        savers = Sides(place, stack).savers
        values = [value]
        for at in range(rounds + 1):
            values.append(step(values[-1], at))

        def action(saver: Any) -> Callable[[], None]:
            thread = Thread(saver, "thread")
            thread.put(values[0])
            following = iter(values[1:])
            return lambda: thread.put(next(following))

        found = race_each([action(saver) for saver in savers.values()], rounds=rounds)
        named = dict(zip(savers, found, strict=True))
        yield from _paired(question, named, targets=targets)


def _first_puts(effort: Effort) -> Iterator[Row]:
    items, rounds = effort.items(ENOUGH), effort.rounds(8)
    with scratch() as place, ExitStack() as stack:
        savers = Sides(place, stack).savers

        def action(saver: Any) -> Callable[[], None]:
            # Objects that nobody has seen: what a graph that starts with a history puts.
            fresh = [[message(at) for at in range(items)] for _ in range(rounds + 1)]
            following = enumerate(fresh)

            def put() -> None:
                at, messages = next(following)
                Thread(saver, f"thread-{at}").put(messages)

            return put

        found = race_each([action(saver) for saver in savers.values()], rounds=rounds)
        named = dict(zip(savers, found, strict=True))
        question = f"put: first one of a thread, {items:,} messages"
        yield from _paired(question, named, unit="ms", note="the sides share no objects")


# --- gets ----------------------------------------------------------------------------------------


def _gets(effort: Effort) -> Iterator[Row]:
    items = effort.items(ENOUGH)
    history = [message(at) for at in range(items)]
    with scratch() as place, ExitStack() as stack:
        savers = Sides(place, stack, full=False).savers
        threads = [Thread(saver, "thread") for saver in savers.values()]
        for thread in threads:
            for upto in (items - 4, items - 2, items):
                thread.put(history[:upto])
        found = race_each([thread.latest for thread in threads], rounds=effort.rounds(20))
        targets = {_PAIRS[0]: at_least(3.0)}
        question = f"get the latest of {items:,} messages, warm"
        yield from _paired(question, dict(zip(savers, found, strict=True)), targets=targets)
        for name in ("none", _PAIRS[0][1]):
            _close(savers[name])

        opened: list[Any] = []

        def ours() -> None:
            opened.append(our_saver(place / "none", "none"))
            Thread(opened[-1], "thread").latest()

        def theirs() -> None:
            opened.append(sqlite_saver(place / "NORMAL.db", "NORMAL"))
            Thread(opened[-1], "thread").latest()

        cold = race(ours, theirs, rounds=effort.rounds(8), after=lambda: _close(opened.pop()))
        question = f"open the file, get the latest of {items:,} messages"
        yield compare(question, cold, _PAIRS[0][1], durability="none", faster=True, unit="ms")


def _close(saver: Any) -> None:
    if hasattr(saver, "conn"):
        saver.conn.close()
    else:
        saver.close()


# --- lists ---------------------------------------------------------------------------------------


def _lists(effort: Effort) -> Iterator[Row]:
    threads, checkpoints = effort.items(1_000), max(2, 50 // effort.rounds_divisor)
    with scratch() as place, ExitStack() as stack:
        savers = Sides(place, stack, full=False).savers
        ours, theirs = savers["none"], savers[_PAIRS[0][1]]
        fill_sqlite(theirs, threads, checkpoints)
        value = [message(0)]
        thread = Thread(ours, "thread-0000")
        for _ in range(checkpoints):
            thread.put(value)
        for at in range(1, threads):
            ours.copy_thread("thread-0000", f"thread-{at:04}")

        def mine() -> None:
            assert len({entry.thread for entry in ours.threads()}) == threads

        def by_list() -> None:
            found = {entry.config["configurable"]["thread_id"] for entry in theirs.list(None)}
            assert len(found) == threads

        def by_query() -> None:
            assert distinct_threads(theirs) == threads

        question = f"list {threads:,} threads of {checkpoints} checkpoints"
        rival = "SqliteSaver, its list(None)"
        slow = race(mine, by_list, rounds=effort.rounds(2))
        target = at_least(20.0)
        yield compare(
            question, slow, rival, durability="none", faster=True, unit="ms", target=target
        )
        quick = race(mine, by_query, rounds=effort.rounds(10))
        rival = "SELECT DISTINCT thread_id in its file"
        note = "ours tells each thread's newest checkpoint and age, too"
        yield compare(question, quick, rival, durability="none", faster=True, unit="ms", note=note)
    yield from _history(effort)


def _history(effort: Effort) -> Iterator[Row]:
    """Lists of the checkpoints of one thread, and the history that a graph makes of them."""
    steps = max(4, 100 // effort.rounds_divisor)
    with scratch() as place, ExitStack() as stack:
        savers = Sides(place, stack, full=False).savers
        config = {"configurable": {"thread_id": "thread"}, "recursion_limit": steps + 10}
        graphs = [looping_graph(saver) for saver in savers.values()]
        for graph in graphs:
            graph.invoke({"messages": [], "left": steps}, config, durability="sync")
        for question, actions in (
            (
                f"list(thread, limit=10) of {steps} steps",
                [_listing(saver, config) for saver in savers.values()],
            ),
            (f"get_state_history of {steps} steps", [_told(graph, config) for graph in graphs]),
        ):
            found = race_each(actions, rounds=effort.rounds(3))
            yield from _paired(question, dict(zip(savers, found, strict=True)), unit="ms")


def _listing(saver: Any, config: Any) -> Callable[[], Any]:
    return lambda: list(saver.list(config, limit=10))


def _told(graph: Any, config: Any) -> Callable[[], Any]:
    return lambda: list(graph.get_state_history(config))


def test_put(benchmark: Any, place: Path) -> None:
    """A put behind 1,000 messages."""
    with our_saver(place / "memcore", "none") as saver:
        thread = Thread(saver, "thread")
        values = [[message(at) for at in range(ENOUGH)]]
        thread.put(values[0])
        for at in range(200):
            values.append(_appended(values[-1], at))
        following = iter(values[1:])
        benchmark.pedantic(lambda: thread.put(next(following)), rounds=200)
