"""Puts of the graph store against prunes, closures that run again and unusual serialisers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import memcore
from memcore.graph import MISSING, GraphStore, JsonCoder, NewCheckpoint, keep_rule, rows
from memcore.graph.store import store_of
from memcore.store.interface import Stale, Steps, Txn

CODER = JsonCoder()
Values = Mapping[str, tuple[str, Any]]


@pytest.fixture
def graph(open_db: Callable[..., memcore.Database]) -> GraphStore:
    return open_db(durability="none").scope().graph


def new(checkpoint: str, parent: str | None, values: Values, others: Values = {}) -> NewCheckpoint:  # noqa: B006
    versions = {name: version for name, (version, _) in {**others, **values}.items()}
    body = {"channel_versions": versions}
    return NewCheckpoint(checkpoint, parent, body, {}, values, others)


def values_of(graph: GraphStore, checkpoint: str | None = None, coder: Any = CODER) -> Any:
    found = graph.get("t", "", checkpoint, coder)
    return None if found is None else found.values


def run_twice(graph: GraphStore, steps: Steps[None]) -> None:
    """Commit each closure as if its batch had begun anew after the closure was run."""

    def again(closure: Callable[[Txn], Any]) -> Callable[[Txn], Any]:
        def twice(txn: Txn) -> Any:
            with contextlib.suppress(Stale):
                closure(txn)
            return closure(txn)

        return twice

    closure = next(steps)
    with pytest.raises(StopIteration):
        while True:
            try:
                result = store_of(graph).transact(again(closure))
            except Stale as exc:
                closure = steps.throw(exc)
            else:
                closure = steps.send(result)


def pruned(graph: GraphStore) -> None:
    """A thread whose checkpoints 1 and 2 are gone; 3 and 4 hold version v3 of b."""
    for at in "123":
        graph.put(
            "t", "", new(at, None, {"a": (f"v{at}", at), "b": (f"v{at}", ["kept", at])}), CODER
        )
    graph.put("t", "", new("4", "3", {"a": ("v4", "4")}, {"b": ("v3", ["kept", "3"])}), CODER)
    graph.prune("t", keep_rule(keep_last=2), CODER)


def test_a_put_whose_parent_was_pruned_is_whole_though_its_closure_runs_again(
    graph: GraphStore,
) -> None:
    pruned(graph)
    orphan = new("5", "2", {"a": ("v5", "5")}, {"b": ("v2", ["kept", "2"])})
    run_twice(graph, graph.plan_put("t", "", orphan, CODER))
    assert values_of(graph) == {"a": "5", "b": ["kept", "2"]}


@pytest.mark.parametrize("parent", [None, "3"])
def test_a_copy_of_a_checkpoint_that_was_pruned_is_whole(
    graph: GraphStore, parent: str | None
) -> None:
    """It brings no version of its own, and its parent is there, or there is none."""
    pruned(graph)
    copied = new("5", parent, {}, {"a": ("v2", "2"), "b": ("v2", ["kept", "2"])})
    graph.put("t", "", copied, CODER)
    assert values_of(graph) == {"a": "2", "b": ["kept", "2"]}


def test_what_goes_on_from_a_thread_that_was_deleted_is_whole(graph: GraphStore) -> None:
    graph.put("t", "", new("1", None, {"a": ("v1", "1"), "b": ("v1", ["kept"])}), CODER)
    graph.delete_thread("t", CODER)
    graph.put("t", "", new("2", "1", {"a": ("v2", "2")}, {"b": ("v1", ["kept"])}), CODER)
    assert values_of(graph) == {"a": "2", "b": ["kept"]}


def test_a_value_whose_row_was_lost_is_stored_anew_by_who_holds_it(graph: GraphStore) -> None:
    graph.put("t", "", new("1", None, {"a": ("v1", "1"), "b": ("v1", ["kept"])}), CODER)
    key = rows.value_key(rows.Place(1, 1, 1), 1, "b", "v1")
    assert store_of(graph).transact(lambda txn: txn.delete(key))
    graph.put("t", "", new("2", "1", {"a": ("v2", "2")}, {"b": ("v1", ["kept"])}), CODER)
    assert values_of(graph) == {"a": "2", "b": ["kept"]}
    assert values_of(graph, "1") == {"a": "1", "b": ["kept"]}


def test_a_plan_looks_every_value_up_once(
    graph: GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each checkpoint that stays is followed to its roots for its empty channels."""
    for at in range(40):
        parent = f"{at - 1:02}" if at else None
        values = {"a": (f"v{at}", at), "empty": (f"v{at}", MISSING)}
        graph.put("t", "", new(f"{at:02}", parent, values), CODER)
    asked: list[bytes] = []
    node_of = rows.node_of
    monkeypatch.setattr(
        rows, "node_of", lambda txn, key, coder: asked.append(key) or node_of(txn, key, coder)
    )
    plan = graph.would_prune("t", keep_rule(keep_last=39), CODER)
    assert plan is not None
    assert sum(map(len, plan.doomed.values())) == 1
    assert len(asked) == len(set(asked))


@dataclass(frozen=True, slots=True)
class Counting(JsonCoder):
    """Tells what it decodes."""

    decoded: list[Any] = field(default_factory=list)

    def decode(self, typed: Any) -> Any:
        self.decoded.append(typed)
        return JsonCoder.decode(self, typed)


def test_a_list_decodes_no_more_than_it_was_asked_for(graph: GraphStore) -> None:
    for at in range(5):
        graph.put("t", "", new(f"{at}", None, {"a": (f"v{at}", f"{at}" * 100)}), CODER)
    coder = Counting()
    found = [one.checkpoint for one in graph.checkpoints("t", None, coder, limit=2)]
    assert found == ["4", "3"]
    assert len(coder.decoded) == 2 * len(("body", "metadata", "value"))
    assert len(list(graph.checkpoints("t", None, coder, limit=4))) == 4
    assert list(graph.checkpoints("t", None, coder, limit=0)) == []


def test_values_stored_anew_for_a_pruned_parent_replace_no_others(graph: GraphStore) -> None:
    pruned(graph)
    # The process changed b in place, without another version.
    orphan = new("5", "2", {"a": ("v5", "5")}, {"b": ("v3", ["changed"])})
    graph.put("t", "", orphan, CODER)
    assert values_of(graph, "4") == {"a": "4", "b": ["kept", "3"]}


@dataclass
class Unhashable:
    """What a coder may be known by: equal to others of its kind, and without a hash."""

    name: str = ""


def test_coders_are_told_apart_by_identity(graph: GraphStore) -> None:
    one, other = JsonCoder(identity=Unhashable()), JsonCoder(identity=Unhashable())
    for at, coder in enumerate((one, other, one)):
        value = {"c": (f"v{at}", [{"at": at}, {"held": [1] * 20}])}
        graph.put("t", "", new(str(at), None, value), coder)
        assert values_of(graph, coder=coder) == {"c": [{"at": at}, {"held": [1] * 20}]}
