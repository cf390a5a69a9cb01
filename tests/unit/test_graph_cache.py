"""What a handle remembers of graph values is bounded by their size, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import memcore
from memcore.graph import GraphStore, JsonCoder, NewCheckpoint, NewWrites
from memcore.graph.decode import DecodeCache
from memcore.graph.store import store_of
from memcore.limits import VALUES_CACHED_BYTES
from memcore.store.interface import take

CODER = JsonCoder()
LARGE = 1 << 20


@pytest.fixture
def graph(open_db: Callable[..., memcore.Database]) -> GraphStore:
    return open_db(durability="none").scope().graph


def new(checkpoint: str, value: Any) -> NewCheckpoint:
    body = {"channel_versions": {"c": checkpoint}}
    return NewCheckpoint(checkpoint, None, body, {}, {"c": (checkpoint, value)})


def value_of(graph: GraphStore, thread: str, coder: Any = CODER) -> Any:
    found = graph.get(thread, "", None, coder)
    return None if found is None else found.values["c"]


def test_what_is_asked_for_again_and_again_counts_too() -> None:
    recent: DecodeCache[int, int] = DecodeCache(100)
    for number in range(500):
        recent.put(number, number)
        for asked in range(number):
            recent.get(asked)
    assert len(recent) <= 100


def test_what_is_replaced_counts_once() -> None:
    recent: DecodeCache[str, int] = DecodeCache(100)
    recent.put("kept", 0)
    for number in range(500):
        recent.put("replaced", number, weight=40)
    assert recent.get("kept") == 0
    assert recent.get("replaced") == 499


def test_values_in_pieces_count_by_their_content(graph: GraphStore) -> None:
    for number in range(40):
        text = f"{number:04}" * (LARGE // 4)
        graph.put(str(number), "", new("1", text), CODER)
        assert value_of(graph, str(number)) == text
    assert len(graph._cache.values) <= VALUES_CACHED_BYTES // LARGE


def test_parts_known_by_identity_count_by_their_content(graph: GraphStore) -> None:
    """Those of pending writes are the channel's in the next put."""
    for number in range(40):
        parts = [{"at": f"{at:04}" * (LARGE // 80)} for at in range(20)]
        wrote = NewWrites("0", "task", "", [(0, "c", parts)])
        graph.put_writes(str(number), "", wrote, CODER)
        graph.put(str(number), "", new("1", parts), CODER)
    assert len(graph._cache.versions) <= VALUES_CACHED_BYTES // LARGE
    assert len(graph._cache.memo) <= 20 * VALUES_CACHED_BYTES // LARGE


class Handing(JsonCoder):
    """Hands out the caller's own bytes, as LangGraph's serialiser does with a bytearray."""

    __slots__ = ()

    def encode(self, value: Any) -> Any:
        return ("bytes", value) if isinstance(value, bytearray) else super().encode(value)


def test_what_changes_before_the_commit_is_not_stored_under_the_id_of_what_it_was(
    graph: GraphStore,
) -> None:
    coder, value = Handing(), bytearray(b"a" * 100)
    steps = graph.plan_put("t", "", new("1", value), coder)
    closure = next(steps)
    value[:] = b"b" * 100
    with pytest.raises(StopIteration):
        steps.send(store_of(graph).transact(closure))
    take(store_of(graph), graph.plan_put("t", "", new("2", bytearray(b"a" * 100)), coder))
    assert value_of(graph, "t", coder) == b"a" * 100
