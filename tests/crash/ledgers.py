"""What one thread of a stress run owns, did and was told: its model, kept outside the database.

A thread writes an intent into its own file before each operation and an acknowledgement after it;
both survive a SIGKILL. So at most one operation a life is undecided, and whoever looks next decides
it by comparing the database with the model before and after: there is no third state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import memcore
from memcore.checkpoint import GraphStore, JsonCoder

from .graphs import put_next, rule_of

COMMON = "common"
TOTAL = "total"
LARGE_CHARS = 40_000
ITEMS_MAX = 60
FORKS_MAX = 3
MESSAGES_MAX = 30

Op = list[Any]
"""Name, number (unique for its thread), arguments."""


class Model(NamedTuple):
    """What the database must hold for one owner. ``items`` is None if the session is not there."""

    items: tuple[str, ...] | None = None
    forks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    threads: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()
    """Threads of a graph: of each checkpoint the numbers of its messages, oldest first."""


class WrongError(Exception):
    """The database is in a state that no order of the operations explains."""


# --- operations ----------------------------------------------------------------------------------


def text(owner: str, number: int) -> str:
    return f"{owner}:{number}"


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def pair(owner: str, number: int) -> list[dict[str, Any]]:
    call = {"id": text(owner, number), "type": "function"}
    function = {"name": "count", "arguments": "{}"}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": text(owner, number), "content": text(owner, number)},
    ]


def seen(message: dict[str, Any]) -> str:
    """An item in short: enough to tell it from every other one."""
    content = message["content"]
    if content is None:
        return "call " + str(message["tool_calls"][0]["id"])
    if message["role"] == "tool":
        return "result " + content
    return content if len(content) < LARGE_CHARS else content[: content.index(" ")] + " large"


def choose(random: Random, model: Model, number: int) -> Op:
    """The next operation: all kinds, and a database that stays small."""
    if len(model.items or ()) > ITEMS_MAX:
        return [random.choice(["destroy", "rewind"]), number]
    name = random.choice(
        ["append"] * 6
        + ["extend", "pair", "total", "put"] * 2
        + ["once", "common", "undo", "compact", "uncompact", "fork", "erase", "large", "look"]
        + ["recount", "step", "step", "prune", "twin", "forget"]
    )
    if name in ("prune", "twin", "forget"):
        return _on_threads(random, name, number, [thread for thread, _ in model.threads])
    if name == "fork" and len(model.forks) >= FORKS_MAX:
        return ["drop", number, model.forks[0][0]]
    if name in ("undo", "fork", "compact", "uncompact", "recount") and not model.items:
        name = "append"
    if name == "extend":
        return [name, number, random.randint(2, 6)]
    if name == "undo":
        return [name, number, random.randint(1, 4)]
    if name in ("put", "erase"):
        return [name, number, f"k{random.randint(0, 5)}"]
    return [name, number]


def _on_threads(random: Random, name: str, number: int, threads: list[str]) -> Op:
    """An operation on threads, as far as there are any."""
    if name != "forget" and all("-twin" in thread for thread in threads):
        return ["step", number]
    if name == "forget" or (name == "twin" and len(threads) > FORKS_MAX):
        return ["forget", number, random.choice(threads)] if threads else ["step", number]
    return [name, number]


def added(owner: str, op: Op) -> tuple[str, ...] | None:
    """What an operation appends to the owner's session, if it is one that appends."""
    name, number = op[:2]
    if name in ("append", "once"):
        return (text(owner, number),)
    if name == "large":
        return (f"{text(owner, number)} large",)
    if name == "extend":
        return tuple(f"{text(owner, number)}.{part}" for part in range(op[2]))
    if name == "pair":
        return ("call " + text(owner, number), "result " + text(owner, number))
    return None


def applied(model: Model, owner: str, op: Op) -> Model:
    """The model after an operation."""
    name, number = op[:2]
    more = added(owner, op)
    items, forks, notes = model.items or (), dict(model.forks), dict(model.notes)
    threads = dict(model.threads)
    if more is not None:
        return model._replace(items=items + more)
    if name == "undo":
        return model._replace(items=items[: max(0, len(items) - op[2])])
    if name == "rewind":
        return model._replace(items=())
    if name == "destroy":
        return model._replace(items=None)
    if name == "fork":
        forks[f"{owner}-fork{number}"] = items
    elif name == "drop":
        del forks[op[2]]
    elif name == "put":
        notes[op[2]] = number
    elif name == "erase":
        notes.pop(op[2], None)
    _go_on(threads, owner, op)
    return Model(model.items, *(tuple(sorted(d.items())) for d in (forks, notes, threads)))


def _go_on(threads: dict[str, Any], owner: str, op: Op) -> None:
    """Apply an operation on threads."""
    name, number = op[:2]
    if name == "step":
        points = threads.get(owner, ())
        threads[owner] = (*points, (*(points[-1] if points else ()), number)[-MESSAGES_MAX:])
    elif name == "prune":
        threads[owner] = threads[owner][-1:]
    elif name == "twin":
        threads[f"{owner}-twin{number}"] = threads[owner]
    elif name == "forget":
        threads.pop(op[2], None)


def message(owner: str, number: int) -> str:
    """One message of a thread: some large, so that they are staged."""
    return text(owner, number).ljust(90_000 if number % 16 == 0 else 200, ".")


def put_step(graph: GraphStore, owner: str, number: int) -> None:
    """A checkpoint with one message more."""

    def change(before: list[str]) -> list[str]:
        return [*before, message(owner, number)][-MESSAGES_MAX:]

    put_next(graph, owner, f"{number:09}", change, number)


def points_of(graph: GraphStore, owner: str, name: str) -> tuple[tuple[int, ...], ...]:
    """The checkpoints of a thread, as models have them."""
    points = []
    for one in graph.checkpoints(name, "", JsonCoder()):
        numbers = tuple(int(m.partition(":")[2].rstrip(".")) for m in one.values["messages"])
        if [message(owner, at) for at in numbers] != one.values["messages"]:
            raise WrongError(f"{name}: {one.checkpoint} holds other messages")
        if one.values["other"] != numbers[-1]:
            raise WrongError(f"{name}: {one.checkpoint} holds another value")
        points.append(numbers)
    return tuple(reversed(points))


def perform(db: memcore.Database, owner: str, op: Op) -> None:
    """The operation itself."""
    name, number = op[:2]
    session, notes, graph = db.session(owner), db.scope().kv(owner), db.scope().graph
    acts: dict[str, Callable[[], Any]] = {
        "append": lambda: session.append(user(text(owner, number))),
        "once": lambda: session.append(
            user(text(owner, number)), idempotency_key=text(owner, number)
        ),
        "large": lambda: session.append(user(text(owner, number) + " " + "x" * LARGE_CHARS)),
        "extend": lambda: session.extend(
            [user(f"{text(owner, number)}.{part}") for part in range(op[2])]
        ),
        "pair": lambda: session.extend(pair(owner, number)),
        "undo": lambda: session.undo(op[2]),
        "rewind": lambda: session.rewind(0),
        "destroy": lambda: db.delete_session(owner),
        "fork": lambda: session.fork(f"{owner}-fork{number}"),
        "drop": lambda: db.delete_session(op[2]),
        "compact": lambda: session.compact(lambda request: "what was said", keep_last=3),
        "uncompact": session.uncompact,
        "recount": lambda: session.recount(f"bytes/{number % 5 + 2}"),
        "common": lambda: db.session(COMMON).append(user(text(owner, number))),
        "total": lambda: db.scope().kv(COMMON).increment(TOTAL),
        "put": lambda: notes.put(op[2], number),
        "erase": lambda: notes.delete(op[2]),
        "step": lambda: put_step(graph, owner, number),
        "prune": lambda: graph.prune(owner, rule_of(1), JsonCoder()),
        "twin": lambda: graph.copy_thread(owner, f"{owner}-twin{number}"),
        "forget": lambda: graph.delete_thread(op[2], JsonCoder()),
        "look": lambda: (session.context(), list(notes.scan()), db.session(COMMON).tail(5)),
    }
    acts[name]()


def observed(db: memcore.Database, owner: str) -> Model:
    """What the database holds for one owner."""
    found = {
        entry.session_id: tuple(seen(item.message) for item in db.session(entry.session_id).items())
        for entry in db.sessions()
        if entry.session_id == owner or entry.session_id.startswith(f"{owner}-fork")
    }
    items = found.pop(owner, None)
    notes = tuple(sorted(db.scope().kv(owner).scan()))
    graph = db.scope().graph
    threads = [
        (entry.thread, points_of(graph, owner, entry.thread))
        for entry in graph.threads()
        if entry.thread == owner or entry.thread.startswith(f"{owner}-twin")
    ]
    kept = tuple((name, points) for name, points in sorted(threads) if points)
    return Model(items, tuple(sorted(found.items())), notes, kept)


# --- the file of intents and acknowledgements ----------------------------------------------------


class Ledger:
    """The file of one owner, replayed; and the operation that it leaves undecided, if any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = path.name
        self.model = Model()
        self.number = 0
        self.pending: Op | None = None
        self.acknowledged = 0
        self.once = 0
        self.common: list[int] = []
        self.maybe_common: set[int] = set()
        self.totals = [0, 0]
        """Increments that were acknowledged, and those that may have been made besides."""
        whole = path.read_bytes() if path.exists() else b""
        for line in whole[: whole.rfind(b"\n") + 1].splitlines():
            self._replay(json.loads(line))
        self._fd = -1

    def _replay(self, entry: Any) -> None:
        if isinstance(entry, list):
            self.pending, self.number = entry, entry[1] + 1
            return
        op, self.pending = self.pending, None
        if op is None:
            raise WrongError(f"{self.path}: an acknowledgement without an intent")
        self._decide(op, entry)

    def _decide(self, op: Op, outcome: str) -> None:
        self.acknowledged += outcome == "acknowledged"
        self.once += op[0] == "once"
        if op[0] == "common":
            if outcome == "acknowledged":
                self.common.append(op[1])
            else:
                self.maybe_common.add(op[1])
        elif op[0] == "total":
            self.totals[outcome != "acknowledged"] += 1
        if outcome != "lost":
            self.model = applied(self.model, self.owner, op)

    def open(self) -> None:
        """Write from now on, behind the last whole line."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        whole = self.path.read_bytes()
        os.truncate(self._fd, whole.rfind(b"\n") + 1)

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)
        self._fd = -1

    def _write(self, entry: Any) -> None:
        os.write(self._fd, json.dumps(entry).encode() + b"\n")

    def settle(self, db: memcore.Database) -> None:
        """Compare the database with the model; decide what the last life left undecided."""
        found = observed(db, self.owner)
        if self.pending is None:
            if found != self.model:
                raise WrongError(f"{self.owner}: {difference(self.model, found)}")
            return
        op = self.pending
        after = applied(self.model, self.owner, op)
        if found not in (self.model, after):
            raise WrongError(f"{self.owner}: with {op} undecided: {difference(after, found)}")
        outcome = "done" if found == after else "lost"
        self.pending = None
        self._decide(op, outcome)
        if self._fd >= 0:
            self._write(outcome)

    def step(self, db: memcore.Database, random: Random) -> None:
        """One operation, with its intent before and its acknowledgement after."""
        op = choose(random, self.model, self.number)
        self._write(op)
        self.number += 1
        perform(db, self.owner, op)
        self._write("acknowledged")
        self._decide(op, "acknowledged")


def difference(expected: Model, found: Model) -> str:
    """The first thing in which two models differ, in words."""
    for name, want, have in zip(Model._fields, expected, found, strict=True):
        if want == have:
            continue
        lost = [row for row in want or () if row not in (have or ())]
        strange = [row for row in have or () if row not in (want or ())]
        return f"{name}: lost {str(lost)[:300]}, strange {str(strange)[:300]}, of {len(want or ())}"
    return "nothing"


def check_common(db: memcore.Database, ledgers: list[Ledger]) -> list[str]:
    """What all share: every acknowledged item once, in the order of its owner; every increment."""
    findings = []
    rows: dict[str, list[int]] = {}
    for item in db.session(COMMON).items():
        owner, _, number = str(item.message["content"]).partition(":")
        rows.setdefault(owner, []).append(int(number))
    for ledger in ledgers:
        numbers = rows.pop(ledger.owner, [])
        undecided = set(ledger.maybe_common)
        if ledger.pending is not None and ledger.pending[0] == "common":
            undecided.add(ledger.pending[1])
        told = [number for number in numbers if number not in undecided]
        if told != ledger.common or len(set(numbers)) != len(numbers) or numbers != sorted(numbers):
            lost = sorted(set(ledger.common) - set(numbers))
            findings.append(f"common session, {ledger.owner}: lost {lost}, has {numbers[-20:]}")
    if rows:
        findings.append(f"common session: items of nobody: {sorted(rows)}")
    least = sum(ledger.totals[0] for ledger in ledgers)
    most = least + sum(
        ledger.totals[1] + (ledger.pending is not None and ledger.pending[0] == "total")
        for ledger in ledgers
    )
    total = db.scope().kv(COMMON).get(TOTAL, 0)
    if not least <= total <= most:
        findings.append(f"the counter is {total}, expected {least}..{most}")
    return findings
