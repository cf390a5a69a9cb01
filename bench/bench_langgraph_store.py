"""What do LangGraph's long-term memories cost in memcore, against its own stores?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from harness import Effort, NotInstalled, Row, absent, compare, race, scratch
from rivals_langgraph_store import memory_store, put_op, sqlite_store

USERS = 50
MEMORIES = 2_000
"""In all, spread evenly over the users."""
ROUNDS = 100
CALLS = 5
SQLITE = "SqliteStore"
MEMORY = "InMemoryStore (nothing is stored)"

Operation = Callable[[Any], Any]


def _space(user: int) -> tuple[str, ...]:
    return ("users", f"user-{user}", "memories")


def _memory(number: int) -> dict[str, Any]:
    text = f"Memory {number}: prefers short answers and metric units. "
    return {"text": text * 3, "kind": "preference", "number": number, "tags": ["style", "units"]}


def _filled(store: Any, memories: int) -> Any:
    for user in range(USERS):
        numbers = range(user, memories, USERS)
        store.batch([put_op(_space(user), f"memory-{at}", _memory(at)) for at in numbers])
    return store


def operations(memories: int) -> dict[str, Operation]:
    """What a store is asked to do, by the question that this answers."""
    fresh = count()
    number = memories - 1
    user = number % USERS

    def put(store: Any) -> None:
        at = next(fresh)
        store.put(_space(user), f"new-{at}", _memory(at))

    return {
        "put of a new memory": put,
        "put over a memory": lambda store: store.put(_space(0), "memory-0", _memory(0)),
        "get": lambda store: store.get(_space(user), f"memory-{number}"),
        "search of a user, 10 found": lambda store: store.search(("users", "user-1")),
        "search of all users by a field, 1 found": lambda store: store.search(
            ("users",), filter={"number": number}
        ),
        "list_namespaces": lambda store: store.list_namespaces(prefix=["users"]),
    }


def rows(effort: Effort) -> Iterator[Row]:
    """Each operation on ours against each of theirs, in turn; both SQLite and ours are durable."""
    memories = effort.items(MEMORIES)
    asked = operations(memories)
    try:
        rivals = {MEMORY: _filled(memory_store(), memories)}
    except NotInstalled as error:
        yield from (absent(f"store: {question}", MEMORY, error) for question in asked)
        return
    from memcore.adapters.langgraph import MemcoreStore

    with scratch() as place, MemcoreStore(place / "memcore") as ours:
        _filled(ours, memories)
        try:
            with sqlite_store(place / "sqlite") as theirs:
                rivals[SQLITE] = _filled(theirs, memories)
                yield from _races(effort, asked, ours, rivals)
        except NotInstalled as error:
            yield from (absent(f"store: {question}", SQLITE, error) for question in asked)
            yield from _races(effort, asked, ours, rivals)


def _races(
    effort: Effort, asked: dict[str, Operation], ours: Any, rivals: dict[str, Any]
) -> Iterator[Row]:
    for question, operation in asked.items():
        for rival in sorted(rivals, reverse=True):
            found = race(
                lambda operation=operation: operation(ours),
                lambda operation=operation, rival=rival: operation(rivals[rival]),
                rounds=effort.rounds(ROUNDS),
                calls=CALLS,
            )
            durability = "full" if rival == SQLITE else "full, none"
            yield compare(f"store: {question}", found, rival, durability=durability)
