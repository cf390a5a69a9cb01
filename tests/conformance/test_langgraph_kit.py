"""LangGraph's own conformance kit, counted; and the laws of delta channels, which it leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.types import _DeltaSnapshot

import memcore
from memcore.adapters.langgraph import MemcoreSaver
from savers import ABSENT, Chain, config, exact

TESTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}
"""How many tests the kit has of each capability: one that it skips would still be FULL."""


def test_the_kit_passes_in_full(tmp_path: Path) -> None:
    files = (tmp_path / f"{number}.memcore" for number in range(100))

    @checkpointer_test(name="MemcoreSaver")
    async def make() -> Any:
        file = next(files)
        async with MemcoreSaver.from_conn_string(
            file, durability="none", allow_unsafe=True
        ) as saver:
            yield saver
        _check(file)

    report = asyncio.run(validate(make))
    results = report.results
    assert {name: found.tests_passed for name, found in results.items()} == TESTS
    assert sum(TESTS.values()) == 81
    assert not any(found.tests_failed or found.tests_skipped for found in results.values())
    assert report.conformance_level() == "FULL"


@pytest.fixture
def saver(path: Path) -> Iterator[MemcoreSaver]:
    with MemcoreSaver.from_conn_string(path, durability="none", allow_unsafe=True) as saver:
        yield saver
    _check(path)


def _check(path: Path) -> None:
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        assert db.check() == []


History = Callable[..., Any]


@pytest.fixture(params=("sync", "async"))
def history(request: pytest.FixtureRequest, saver: MemcoreSaver) -> History:
    """The history of channels at a config, one by one, exact."""

    def ask(given: Any, *channels: str) -> Any:
        if request.param == "sync":
            found = saver.get_delta_channel_history(config=given, channels=channels)
        else:
            asked = saver.aget_delta_channel_history(config=given, channels=channels)
            found = asyncio.run(asked)
        return {name: dict(one) for name, one in found.items()}

    return ask


def test_the_methods_are_the_savers_own() -> None:
    for name in ("get_delta_channel_history", "aget_delta_channel_history"):
        assert getattr(MemcoreSaver, name) is not getattr(BaseCheckpointSaver, name)


def test_delta_writes_of_the_ancestors_oldest_first(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    for step in range(3):
        chain.put(other=step)
        chain.write(("d", f"{step}b"), task="t2", path="~2")
        chain.write(("d", f"{step}a"), ("e", step), task="t1", path="~1")
    found = history(chain.config, "d", "e")
    assert found["d"] == {
        "writes": [
            ("t1", "d", "0a"),
            ("t2", "d", "0b"),
            ("t1", "d", "1a"),
            ("t2", "d", "1b"),
        ]
    }, "the target's own writes are not among them"
    assert found["e"] == {"writes": [("t1", "e", 0), ("t1", "e", 1)]}


def test_delta_history_of_the_newest_checkpoint(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    chain.put(other=1)
    chain.write(("d", 1))
    chain.put(other=2)
    assert (
        history(config(), "d")
        == history(chain.config, "d")
        == {"d": {"writes": [("task", "d", 1)]}}
    )


def test_delta_history_ends_at_the_nearest_snapshot(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    chain.put(d=_DeltaSnapshot(["gone"]))
    chain.write(("d", "covered"))
    chain.put(d=_DeltaSnapshot(["old"]))
    chain.write(("d", "of the seed"))
    chain.put(d=ABSENT)
    chain.write(("d", "later"))
    chain.put(d=ABSENT)
    chain.write(("d", "own"))
    found = history(chain.config, "d")["d"]
    assert exact(found["seed"]) == exact(_DeltaSnapshot(["old"]))
    assert found["writes"] == [("task", "d", "of the seed"), ("task", "d", "later")]


def test_a_plain_value_is_a_seed(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    chain.put(d=["before", "deltas"])
    chain.write(("d", 1))
    chain.put(other=1)
    found = history(chain.config, "d")["d"]
    assert found == {"writes": [("task", "d", 1)], "seed": ["before", "deltas"]}


def test_every_channel_ends_for_itself(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    chain.put(a=_DeltaSnapshot([0]))
    chain.write(("a", 1), ("b", 1), ("c", 1))
    chain.put(a=ABSENT, b=_DeltaSnapshot([9]))
    chain.write(("a", 2), ("b", 2), ("c", 2))
    chain.put(other=1)
    found = history(chain.config, "a", "b", "c", "none")
    assert [write[2] for write in found["a"]["writes"]] == [1, 2]
    assert [write[2] for write in found["b"]["writes"]] == [2]
    assert [write[2] for write in found["c"]["writes"]] == [1, 2]
    assert "seed" not in found["c"]
    assert (found["a"]["seed"].value, found["b"]["seed"].value) == ([0], [9])
    assert found["none"] == {"writes": []}


def test_delta_history_goes_by_parents_not_by_ids(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    root = chain.put(other=0)
    chain.write(("d", "root"))
    chain.put(other=1)
    chain.write(("d", "branch"))
    chain.config = root
    fork = chain.put(other=2)
    assert history(fork, "d")["d"]["writes"] == [("task", "d", "root")]


def test_delta_history_survives_a_cycle_of_parents(saver: MemcoreSaver, history: History) -> None:
    chain = Chain(saver)
    chain.put(other=0)
    chain.write(("d", 0))
    first = chain.put(other=1)
    chain.write(("d", 1))
    last = chain.put(other=2)
    chain.write(("d", 2))
    chain.step = 0
    chain.put(other=3)  # the root again, under its grandchild
    chain.config = last
    assert [write[2] for write in history(last, "d")["d"]["writes"]] == [0, 1]
    assert [write[2] for write in history(first, "d")["d"]["writes"]] == [2, 0]


def test_delta_history_of_what_is_not_there(saver: MemcoreSaver, history: History) -> None:
    assert history(config("nobody"), "d") == {"d": {"writes": []}}
    chain = Chain(saver)
    chain.put(d=["own"])
    assert history(chain.config, "d") == {"d": {"writes": []}}, "the root has no ancestors"
    assert history(config("t", "other"), "d") == {"d": {"writes": []}}
    assert history(config("t", "", "999"), "d") == {"d": {"writes": []}}
    assert history(chain.config) == {}
