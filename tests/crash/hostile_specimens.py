"""The sound files that hostile images are made from, and the truth about what they hold.

They are the same bytes for the same seed on every run: clock and randomness are replaced while they
are made, so an image is named by (seed, number) alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import memcore
from memcore.graph import JsonCoder, NewCheckpoint, NewWrites
from memcore.store import steady

from .hostile_reading import Atlas, Observed, observe

EPOCH_NS = 1_700_000_000 * 10**9
MAP_BYTES = 64 * 1024**2
FAR_SECONDS = 100 * 365 * 86_400.0
LONG = "n" * 700
BOOT = b"the boot of then"
"""Relaxed specimens were made under it; another one means that the power was cut since."""


@dataclass(slots=True)
class Specimen:
    """A closed file, what it holds, and older states of it that a reader may be shown instead."""

    name: str
    content: bytes
    atlas: Atlas
    truth: Observed
    previous: list[Observed]
    """The state before the last transaction: a lost meta page leads back to it."""
    older: list[bytes]
    """Files of the same store at earlier times: pages of them may be spliced in."""
    past: list[Observed]
    foreign: bytes = field(default=b"", repr=False)
    """Another memcore file."""


@contextmanager
def frozen(seed: int) -> Iterator[None]:
    """Within it clock and randomness of this process depend on ``seed`` alone."""
    dice = random.Random(seed)
    ticks = iter(range(EPOCH_NS, EPOCH_NS + 10**18, 10**6))
    seconds = map((1e-9).__mul__, ticks)
    with (
        mock.patch.object(os, "urandom", dice.randbytes),
        mock.patch.object(steady, "boot_id", return_value=BOOT),
        mock.patch.object(time, "time_ns", ticks.__next__),
        mock.patch.object(time, "time", seconds.__next__),
    ):
        yield


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turn(dice: random.Random, number: int) -> list[dict[str, Any]]:
    """A question, a call, its result and an answer."""
    name = f"call-{number}"
    body = {"name": "look", "arguments": json.dumps({"q": dice.randbytes(20).hex()})}
    return [
        user(f"question {number} " + "word " * dice.randrange(40)),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": name, "type": "function", "function": body}],
        },
        {"role": "tool", "tool_call_id": name, "content": dice.randbytes(60).hex()},
        {"role": "assistant", "content": f"answer {number} " + "text " * dice.randrange(40)},
    ]


def make(folder: Path, seed: int) -> list[Specimen]:
    """Two states of one store (with free pages, compact), and a small one."""
    path, foreign, packed = folder / "used", folder / "small", folder / "compact"
    atlas, tiny = Atlas(), Atlas()
    with frozen(seed):
        before, small = _small(foreign, random.Random(seed + 1), tiny)
        held = Atlas()
        relaxed = _small(folder / "relaxed", random.Random(seed), held, durability="relaxed")
        files = list(_history(path, random.Random(seed), atlas))
        with memcore.open(path, map_bytes=MAP_BYTES) as db:
            db.backup(packed)
    states = [_observed(folder / f"state-{at}", file, atlas) for at, file in enumerate(files)]
    *past, truth = states
    smaller = _observed(folder / "before", before, tiny)
    smallest = _observed(folder / "after", small, tiny)
    with mock.patch.object(steady, "boot_id", return_value=BOOT):
        loose = [_observed(folder / f"relaxed-{at}", file, held) for at, file in enumerate(relaxed)]
    return [
        Specimen("used", files[-1], atlas, truth, past[-1:], files[:-1], past, small),
        Specimen("compact", packed.read_bytes(), atlas, truth, [], files[:-1], past, small),
        Specimen("small", small, tiny, smallest, [smaller], [], [], files[-1]),
        Specimen("relaxed", relaxed[1], held, loose[1], loose[:1], [], [], small),
    ]


def _observed(path: Path, content: bytes, atlas: Atlas) -> Observed:
    path.write_bytes(content)
    with memcore.open(path, read_only=True, map_bytes=MAP_BYTES) as db:
        assert db.check() == []
        found = observe(db, atlas)
    assert not found.errors, found.errors
    return found


class Down:
    """An extractor that fails, so that its job waits."""

    name, version = "down", "1"

    def __call__(self, _: memcore.Extraction) -> list[memcore.Candidate]:
        raise ConnectionError


def _small(
    path: Path, dice: random.Random, atlas: Atlas, *, durability: str = "full"
) -> tuple[bytes, bytes]:
    """A store that every opening looks at as a whole, before and after its last transaction."""
    # Steady points at closing alone: one that the clock makes leaves other pages free.
    options: dict[str, Any] = {"map_bytes": MAP_BYTES, "steady_interval_ms": 60_000}
    with memcore.open(path, durability=durability, **options) as db:
        chat = db.session("chat")
        for number in range(12):
            chat.extend(turn(dice, number))
        db.scope().kv("state").put("key", {"a": [1, 2, 3]})
        chat.memory.remember("Likes tea", slot="drink", source=1)
        chat.memory.record_outcome(scenario="chat", passed=True)
        chat.memory.extract(upto=4)
        chat.memory.extract(extractor=Down())
        atlas.learn(db)
    before = path.read_bytes()
    with memcore.open(path, **options) as db:
        db.session("chat").append(user("the last"))
    return before, path.read_bytes()


def _history(path: Path, dice: random.Random, atlas: Atlas) -> Iterator[bytes]:
    """The store's file at several times, the last transaction of all being a small one."""
    with memcore.open(path, map_bytes=MAP_BYTES) as db:
        _conversations(db, dice)
        _values(db, dice, "early", atlas)
        atlas.learn(db)
    yield path.read_bytes()
    with memcore.open(path, map_bytes=MAP_BYTES) as db:
        _changes(db, dice)
        db.index_sessions()
        _values(db, dice, "late", atlas)
        atlas.learn(db)
    yield path.read_bytes()
    with memcore.open(path, map_bytes=MAP_BYTES) as db:
        db.session("short").append(user("the last"))
    yield path.read_bytes()


def _graph(db: memcore.Database, dice: random.Random, name: str, steps: int) -> None:
    """A thread with a value of many parts, a large one, and writes that wait."""
    graph, coder = db.scope().graph, JsonCoder()
    found = graph.get(name, "", None, coder)
    messages = [] if found is None else found.values["messages"]
    parent = None if found is None else found.checkpoint
    for number in range(steps):
        messages = [*messages, *(dice.randbytes(90).hex() for _ in range(9))]
        one = f"{parent or 'c'}{number}"
        versions = {"messages": one, "large": "1"}
        values: dict[str, Any] = {"messages": (one, messages)}
        if parent is None:
            values["large"] = ("1", {"bytes": dice.randbytes(9_000).hex(), "n": [1, 2, 3, 4, 5]})
        body = {"channel_versions": versions}
        graph.put(name, "", NewCheckpoint(one, parent, body, {"step": number}, values), coder)
        parent = one
    assert parent is not None
    graph.put_writes(name, "", NewWrites(parent, "task", "", [(0, "messages", messages)]), coder)


def _conversations(db: memcore.Database, dice: random.Random) -> None:
    long = db.session("long")
    for start in range(0, 280, 20):
        long.extend([m for n in range(start, start + 20) for m in turn(dice, n)])
        if start == 100:
            long.compact(lambda request: f"summary of {len(request.messages)}", keep_last=20)
    undone = db.session("undone")
    for number in range(30):
        undone.extend(turn(dice, number))
        undone.undo(2)
    waiting = db.session("waiting")
    waiting.extend(turn(dice, 1)[:2], meta={"source": "web"}, request_id="r-1")
    waiting.append(turn(dice, 2)[1], idempotency_key="key-2")
    waiting.record("planner", {"step": 1})
    waiting.abandon("call-2")
    large = db.session("large")
    for size in (30_000, 50_000, 220_000):
        large.append(user(dice.randbytes(size // 2).hex()))
    gone = db.session("gone")
    gone.extend(turn(dice, 7))
    parent = db.session("parent")
    parent.extend([m for n in range(6) for m in turn(dice, n)])
    parent.fork("child", at=13).extend(turn(dice, 50))
    for name in ("graph", "leaves"):
        _graph(db, dice, name, 3)
    short = db.session("short")
    short.append(user("the first"))
    other = db.scope(user="u2", app="a2")
    for number in range(40):
        other.session(f"s{number}").extend(turn(dice, number))
    other.session(LONG).extend(turn(dice, 3))


def _changes(db: memcore.Database, dice: random.Random) -> None:
    long = db.session("long")
    long.compact(lambda request: f"later summary of {len(request.messages)}", keep_last=100)
    long.extend(turn(dice, 900))
    long.recount("bytes/3")
    long.report_usage(9_000, model="m-1")
    long.extend(turn(dice, 901))
    long.report_usage(9_400, model="m-1")
    for number in range(9):
        long.state.update({"number": number, "text": dice.randbytes(300).hex()})
    long.fork("branch", at=500).append(user("elsewhere"))
    graph = db.scope().graph
    graph.copy_thread("graph", "twin")
    _graph(db, dice, "graph", 2)
    graph.prune("graph", lambda found: {one.checkpoint for one in found[:1]}, JsonCoder())
    graph.delete_thread("leaves", JsonCoder())
    db.delete_session("gone")
    db.delete_session("parent")
    db.session("undone").rewind(81)
    other = db.scope(user="u2", app="a2")
    for number in range(0, 40, 3):
        other.delete_session(f"s{number}")
    for number in range(1, 40, 3):
        other.session(f"s{number}").undo(1)


def _values(db: memcore.Database, dice: random.Random, what: str, atlas: Atlas) -> None:
    for scope in (db.scope(), db.scope(user="u2", app="a2")):
        state = scope.kv("state")
        state.put_many({f"key{n}": [what, n, dice.randbytes(9).hex()] for n in range(60)})
        state.put("raw", dice.randbytes(9000))
        state.put("huge", 10**40)
        state.put_many({f"lasting{n}": what for n in range(9)}, ttl_seconds=FAR_SECONDS)
        state.put(what + "-only", True)
        scope.kv(LONG).put(what, {"deep": [[[what]]]})
    for size in (10, 9_000, 230_000):
        atlas.blobs.append(db.scope().blobs.put(dice.randbytes(size)))
    for scope in (db.scope(), db.scope(user="u2", app="a2")):
        for number in range(4):
            text = f"{what} fact {number}: {dice.randbytes(20).hex()}"
            made = scope.memory.remember(text, slot=f"slot{number % 2}", by="operator")
            scope.memory.update(made.id, importance=number / 4)
        scope.memory.forget(made.id)
    db.scope().memory.grants.give(to=("a2", "u2"), labels={}, redact=None)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
