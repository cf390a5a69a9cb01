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

from . import graph_ledgers, service_ledgers

COMMON = "common"
TOTAL = "total"
SAVED = "saved"
LARGE_CHARS = 40_000
ITEMS_MAX = 60
FORKS_MAX = 3

Op = list[Any]
"""Name, number (unique for its thread), arguments."""


class Model(NamedTuple):
    """What the database must hold for one owner. ``items`` is None if the session is not there."""

    items: tuple[str, ...] | None = None
    forks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    saved: tuple[str, ...] | None = None
    """The items at the newest checkpoint; None if there is none."""
    threads: graph_ledgers.Threads = ()
    services: service_ledgers.Held = ()


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
        + ["recount", "save", "return", "branch", "step", "step", *graph_ledgers.OPERATIONS]
        + [*service_ledgers.OPERATIONS]
    )
    if name in graph_ledgers.OPERATIONS:
        return graph_ledgers.choose(random, name, number, model.threads)
    if name in service_ledgers.OPERATIONS:
        return service_ledgers.choose(random, name, number, model.services)
    return _choose(random, model, name, number)


def _choose(random: Random, model: Model, name: str, number: int) -> Op:
    if name in ("return", "branch") and model.saved is None:
        name = "save"
    if name in ("fork", "branch") and len(model.forks) >= FORKS_MAX:
        return ["drop", number, model.forks[0][0]]
    if name in ("undo", "fork", "compact", "uncompact", "recount", "save") and not model.items:
        name = "append"
    if name in ("extend", "undo"):
        return [name, number, random.randint(*(2, 6) if name == "extend" else (1, 4))]
    if name in ("put", "erase"):
        return [name, number, f"k{random.randint(0, 5)}"]
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
    if more is not None:
        return model._replace(items=items + more)
    if name in ("undo", "rewind"):
        keep = max(0, len(items) - op[2]) if name == "undo" else 0
        return model._replace(items=items[:keep])
    if name == "destroy":
        return model._replace(items=None, saved=None)
    if name in ("save", "return"):
        return model._replace(**({"saved": items} if name == "save" else {"items": model.saved}))
    if name == "branch":
        forks[f"{owner}-fork{number}"] = model.saved or ()
    elif name == "fork":
        forks[f"{owner}-fork{number}"] = items
    elif name == "drop":
        del forks[op[2]]
    elif name == "put":
        notes[op[2]] = number
    elif name == "erase":
        notes.pop(op[2], None)
    return model._replace(
        forks=tuple(sorted(forks.items())),
        notes=tuple(sorted(notes.items())),
        threads=graph_ledgers.applied(model.threads, owner, op),
        services=service_ledgers.applied(model.services, op),
    )


def perform(db: memcore.Database, owner: str, op: Op) -> None:
    """The operation itself."""
    name, number = op[:2]
    session, notes = db.session(owner), db.scope().kv(owner)
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
        "save": lambda: session.checkpoint(SAVED),
        "return": lambda: session.rewind(SAVED),
        "branch": lambda: session.fork(f"{owner}-fork{number}", at=SAVED),
        "drop": lambda: db.delete_session(op[2]),
        "compact": lambda: session.compact(lambda request: "what was said", keep_last=3),
        "uncompact": session.uncompact,
        "recount": lambda: session.recount(f"bytes/{number % 5 + 2}"),
        "common": lambda: db.session(COMMON).append(user(text(owner, number))),
        "total": lambda: db.scope().kv(COMMON).increment(TOTAL),
        "put": lambda: notes.put(op[2], number),
        "erase": lambda: notes.delete(op[2]),
        "look": lambda: (session.context(), list(notes.scan()), db.session(COMMON).tail(5)),
    }
    if name in acts:
        acts[name]()
    elif name in {*service_ledgers.OPERATIONS, "untell"}:
        service_ledgers.perform(db, owner, op)
    else:
        graph_ledgers.perform(db.scope().graph, owner, op)


def observed(db: memcore.Database, owner: str) -> Model:
    """What the database holds for one owner."""
    found = {
        entry.session_id: tuple(seen(item.message) for item in db.session(entry.session_id).items())
        for entry in db.sessions()
        if entry.session_id == owner or entry.session_id.startswith(f"{owner}-fork")
    }
    items = found.pop(owner, None)
    notes = tuple(sorted(db.scope().kv(owner).scan()))
    session, saved = db.session(owner), None
    if any(session.checkpoints()):
        there = db.compare(session, session, at=SAVED, other_at=0).only_a
        saved = tuple(seen(item.message) for item in there)
    threads = graph_ledgers.observed(db, owner)
    services = service_ledgers.observed(db, owner)
    return Model(items, tuple(sorted(found.items())), notes, saved, threads, services)


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
        self.told = 0
        """Items with states that are there, or were."""
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
            self.told += op[0] == "tell"
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
    undecided = sum(
        ledger.pending is not None and ledger.pending[0] == "tell" for ledger in ledgers
    )
    told = sum(ledger.told for ledger in ledgers)
    return findings + service_ledgers.check_count(db, told, undecided)
