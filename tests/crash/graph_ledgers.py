"""The threads of graphs in the model of a stress run: the numbers of each checkpoint's messages.

A thread bears the name of its owner, its copies begin with it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import memcore
from memcore.graph import GraphStore, JsonCoder

from .graphs import put_next, rule_of

Points = tuple[tuple[int, ...], ...]
Threads = tuple[tuple[str, Points], ...]
OPERATIONS = ("prune", "twin", "forget")
MESSAGES_MAX = 30
COPIES_MAX = 3
_WRONG = ((-1,),)


def choose(random: Random, name: str, number: int, threads: Threads) -> list[Any]:
    """An operation on threads, as far as there are any."""
    names = [thread for thread, _ in threads]
    if name != "forget" and all("-twin" in thread for thread in names):
        return ["step", number]
    if name == "forget" or (name == "twin" and len(names) > COPIES_MAX):
        return ["forget", number, random.choice(names)] if names else ["step", number]
    return [name, number]


def applied(threads: Threads, owner: str, op: list[Any]) -> Threads:
    """The threads after an operation."""
    found = dict(threads)
    name, number = op[:2]
    if name == "step":
        points = found.get(owner, ())
        found[owner] = (*points, (*(points[-1] if points else ()), number)[-MESSAGES_MAX:])
    elif name == "prune":
        found[owner] = found[owner][-1:]
    elif name == "twin":
        found[f"{owner}-twin{number}"] = found[owner]
    elif name == "forget":
        found.pop(op[2], None)
    return tuple(sorted(found.items()))


def perform(graph: GraphStore, owner: str, op: list[Any]) -> None:
    """The operation itself."""
    name, number = op[:2]
    if name == "step":

        def change(before: list[str]) -> list[str]:
            return [*before, _message(owner, number)][-MESSAGES_MAX:]

        put_next(graph, owner, f"{number:09}", change, number)
    elif name == "prune":
        graph.prune(owner, rule_of(1), JsonCoder())
    elif name == "twin":
        graph.copy_thread(owner, f"{owner}-twin{number}")
    elif name == "forget":
        graph.delete_thread(op[2], JsonCoder())


def observed(db: memcore.Database, owner: str) -> Threads:
    """The threads of an owner as the database holds them."""
    graph = db.scope().graph
    found = [
        (entry.thread, _points(graph, owner, entry.thread))
        for entry in graph.threads()
        if entry.thread == owner or entry.thread.startswith(f"{owner}-twin")
    ]
    return tuple((name, points) for name, points in sorted(found) if points)


def _message(owner: str, number: int) -> str:
    """One message: some large, so that they are staged."""
    return f"{owner}:{number}".ljust(90_000 if number % 16 == 0 else 200, ".")


def _points(graph: GraphStore, owner: str, name: str) -> Points:
    points: list[tuple[int, ...]] = []
    for one in graph.checkpoints(name, "", JsonCoder()):
        messages = one.values["messages"]
        numbers = tuple(int(m.partition(":")[2].rstrip(".")) for m in messages)
        if [_message(owner, at) for at in numbers] != messages or one.values["other"] != numbers[
            -1
        ]:
            return _WRONG  # no model has it
        points.append(numbers)
    return tuple(reversed(points))
