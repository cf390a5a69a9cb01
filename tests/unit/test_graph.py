"""The graph store by itself: threads, versions, epochs, deletions, checks; no graph runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore import keys
from memcore.checkpoint import MISSING, GraphStore, JsonCoder, NewCheckpoint, NewWrites
from memcore.checkpoint import removal, rows, threads, writing
from memcore.checkpoint.nodes import chunk_node
from memcore.checkpoint.pool import chunk_key, read_pool, write_pool
from memcore.codec import seal_value
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.keys import Kind, ThreadRow
from memcore.store.base import ReadTxn, Txn

CODER = JsonCoder()
LARGE = 60_000


def texts(count: int, *, size: int = 200, what: str = "t") -> list[Any]:
    return [f"{what}{at} ".ljust(size, ".") for at in range(count)]


def keep(count: int) -> Any:
    """A rule: the newest ``count`` of each namespace stay."""
    return lambda found: {one.checkpoint for one in found[:-count]}


class Thread:
    """One thread as a runtime writes it: checkpoint after checkpoint."""

    def __init__(self, graph: GraphStore, name: str, *, namespace: str = "") -> None:
        self.graph = graph
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
        self.graph.put(self.name, self.namespace, new, CODER)
        return new.checkpoint

    def read(self, checkpoint: str | None = None) -> dict[str, Any] | None:
        found = self.graph.get(self.name, self.namespace, checkpoint, CODER)
        return None if found is None else found.values

    def ids(self) -> list[str]:
        return [f.checkpoint for f in self.graph.checkpoints(self.name, self.namespace, CODER)]


@pytest.fixture
def graph(db: memcore.Database) -> GraphStore:
    return db.scope().graph


def rows_under(db: memcore.Database, kind: int) -> list[bytes]:
    def look(txn: ReadTxn) -> list[bytes]:
        return [key for key, _ in txn.scan(bytes((kind,)), bytes((kind + 1,)))]

    return db._backing.store.read(look)


def test_smoke(graph: GraphStore, db: memcore.Database) -> None:
    one = Thread(graph, "one")
    one.put(messages=texts(100), flag=1)
    one.put(messages=texts(101))
    assert one.read() == {"messages": texts(101), "flag": 1}
    graph.put_writes("one", "", NewWrites("c000002", "t", "", [(0, "messages", texts(3))]), CODER)
    graph.copy_thread("one", "two")
    assert db.check() == []
    graph.prune("one", keep(1), CODER)
    assert db.check() == []
    graph.delete_thread("one", CODER)
    assert db.check() == []
    graph.delete_thread("two", CODER)
    assert rows_under(db, Kind.CHUNK) == rows_under(db, Kind.THREAD) == []
