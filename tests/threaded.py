"""Threads of graphs as tests write and look at them."""

from __future__ import annotations

from functools import partial
from typing import Any

import memcore
from memcore.codec.keys import Kind
from memcore.graph import MISSING, Coder, GraphStore, JsonCoder, NewCheckpoint
from memcore.graph.prune import prune
from memcore.store.interface import ReadTxn

CODER = JsonCoder()


def texts(count: int, *, size: int = 200, what: str = "t") -> list[Any]:
    return [f"{what}{at} ".ljust(size, ".") for at in range(count)]


def keep(count: int) -> Any:
    """A rule: the newest ``count`` of each namespace stay."""
    return lambda found: {one.checkpoint for one in found[:-count]}


def pruning(graph: GraphStore) -> Any:
    """The steps of a prune that leaves one checkpoint."""
    return prune(graph._read, partial(graph._planner, "t", keep(1), CODER), CODER)


class Thread:
    """One thread as a runtime writes it: checkpoint after checkpoint."""

    def __init__(
        self, graph: GraphStore, name: str, *, namespace: str = "", coder: Coder = CODER
    ) -> None:
        self.graph = graph
        self.coder = coder
        self.name = name
        self.namespace = namespace
        self.versions: dict[str, int] = {}
        self.values: dict[str, Any] = {}
        self.step = 0
        self.parent: str | None = None

    def new(self, changed: dict[str, Any]) -> NewCheckpoint:
        """The next checkpoint; ``changed`` are the channels that get a new version."""
        self.step += 1
        self.values.update(changed)
        self.versions.update(dict.fromkeys(changed, self.step))
        found = NewCheckpoint(
            checkpoint=f"c{self.step:06}",
            parent=self.parent,
            body={"channel_versions": dict(self.versions)},
            metadata={"step": self.step},
            values={name: (self.step, value) for name, value in changed.items()},
            others={n: (self.versions[n], v) for n, v in self.values.items() if v is not MISSING},
        )
        self.parent = found.checkpoint
        return found

    def put(self, **changed: Any) -> str:
        new = self.new(changed)
        self.graph.put(self.name, self.namespace, new, self.coder)
        return new.checkpoint

    def read(self, checkpoint: str | None = None) -> dict[str, Any] | None:
        found = self.graph.get(self.name, self.namespace, checkpoint, self.coder)
        return None if found is None else found.values

    def ids(self) -> list[str]:
        return [f.checkpoint for f in self.graph.checkpoints(self.name, self.namespace, self.coder)]


def rows_under(db: memcore.Database, kind: int) -> list[bytes]:
    def look(txn: ReadTxn) -> list[bytes]:
        return [key for key, _ in txn.scan(bytes((kind,)), bytes((kind + 1,)))]

    return db._engine.store.read(look)


def half_deleted(db: memcore.Database) -> None:
    """Delete a thread of several pieces, but only its first."""
    one = Thread(db.scope().graph, "t")
    for _ in range(3):
        one.put(messages=texts(900, size=1500, what=f"{one.step} "))
    steps = db.scope().graph._deletion("t", CODER)
    closure = steps.send(db._engine.store.transact(next(steps)))
    steps.send(db._engine.store.transact(closure))
    steps.close()
    assert rows_under(db, Kind.REMOVAL)
    assert rows_under(db, Kind.CHUNK)
    assert list(db.scope().graph.threads()) == []


class Sealing(JsonCoder):
    """Seals by turning all bits."""

    identity = "sealing"
    secret = True

    def seal(self, typed: tuple[str, bytes]) -> tuple[str, bytes]:
        return f"{typed[0]}+turned", bytes(255 - byte for byte in typed[1])

    def open(self, typed: tuple[str, bytes]) -> tuple[str, bytes]:
        return typed[0].removesuffix("+turned"), bytes(255 - byte for byte in typed[1])
