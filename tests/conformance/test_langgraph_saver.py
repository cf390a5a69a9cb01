"""MemcoreSaver against InMemorySaver: the same operations, the same answers in full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver

import memcore
import savers
from memcore.adapters.langgraph import MemcoreSaver
from savers import Large, checkpoint_of, config, exact, exact_tuple, ordered

EXAMPLES = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) or 25
"""``MEMCORE_LONG_TESTS=100`` for so many."""

threads = st.sampled_from(("a", "a\x00", "", "t" * 600, "ü\ud800"))
namespaces = st.sampled_from(("", "sub", "sub\x00", "n" * 600, "a|b:\udc80"))
ids = st.sampled_from(("a", "a\x00", "a\x00b", "a\x01", "b", "ü", "z" * 300, "\ud7ff"))
channels = st.sampled_from(("a", "a\x00", "", "messages", "c" * 600))
tasks = st.sampled_from(("", "t", "t\x00", "u", "k" * 600))
paths = st.sampled_from(("", "~1", "~10", "~2", "\x00"))
versions = st.one_of(
    st.sampled_from(("", "1", "1.0", "00002.5", "v\x00", "v" * 600)),
    st.sampled_from((0, 1, 1.0, 1.5, -1, 2.0**70, True)),
)
metadata = st.fixed_dictionaries(
    {"source": st.sampled_from(("loop", "input")), "step": st.integers(-1, 3)},
    optional={"run_id": st.sampled_from(("r1", "r2")), "deep": st.just({"a": [1]})},
)
specials = st.sampled_from(("__error__", "__interrupt__", "__resume__", "__scheduled__"))
filters = st.sampled_from(
    ({}, {"source": "loop"}, {"step": 1, "source": "input"}, {"deep": {"a": [1]}}, {"x": 1})
)
listings = st.sampled_from(("all", "thread", "ns", "id"))


def operations_in(world: tuple[list[Any], list[str], list[str]]) -> st.SearchStrategy[Any]:
    """Operations on a few places, ids and tasks, so that they meet."""
    places, names, workers = map(st.sampled_from, world)
    maybe = st.one_of(st.none(), names)
    before = st.one_of(names, st.sampled_from(("", "aa", "z" * 500, "zz")))
    wheres = st.fixed_dictionaries({}, optional={"filter": filters, "before": before})
    changed = st.dictionaries(channels, st.tuples(versions, savers.channel_values), max_size=3)
    others = st.dictionaries(channels, versions, max_size=3)
    written = st.tuples(st.one_of(channels, channels, specials), savers.values)
    writes = st.one_of(
        st.lists(written, max_size=3),
        st.lists(st.tuples(channels, st.integers(0, 99)), min_size=9, max_size=14),
    )

    def op(name: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.tuples(st.just(name), places, *parts)

    put = op("put", names, st.one_of(maybe, st.just("none")), changed, others, metadata)
    write = op("write", names, writes, workers, paths)
    history = op("history", maybe, st.lists(channels, max_size=3, unique=True))
    listed = op("list", listings, names, wheres, st.integers(-1, 3))
    return st.lists(
        st.one_of(put, put, put, write, write, op("get", maybe), listed, history, op("delete")),
        min_size=3,
        max_size=14,
    )


operations = st.tuples(
    st.lists(st.tuples(threads, namespaces), min_size=1, max_size=3),
    st.lists(ids, min_size=1, max_size=3),
    st.lists(tasks, min_size=1, max_size=3),
).flatmap(operations_in)


class Reference(InMemorySaver):
    """InMemorySaver, but for histories along parents that run in a circle: there it never ends."""

    def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
        if not self._circles(config):
            return super().get_delta_channel_history(config=config, channels=channels)
        found: dict[str, Any] = {}
        for channel in channels:
            pages, at = [], self.get_tuple(config)
            walked = set()
            while at is not None:
                walked.add(at.config["configurable"]["checkpoint_id"])
                if at.parent_config is None:
                    break
                at = self.get_tuple(at.parent_config)
                if at is None or at.config["configurable"]["checkpoint_id"] in walked:
                    break
                pages.append([write for write in at.pending_writes or () if write[1] == channel])
                if channel in at.checkpoint["channel_values"]:
                    found[channel] = {"seed": at.checkpoint["channel_values"][channel]}
                    break
            history = [write for page in reversed(pages) for write in page]
            found[channel] = {"writes": history, **found.get(channel, {})}
        return found

    def _circles(self, config: Any) -> bool:
        walked: list[str] = []
        at = self.get_tuple(config)
        while at is not None and at.parent_config is not None:
            walked.append(at.config["configurable"]["checkpoint_id"])
            at = self.get_tuple(at.parent_config)
            if at is not None and at.config["configurable"]["checkpoint_id"] in walked:
                return True
        return False


def do(saver: Any, step: Any) -> Any:
    """Do an operation; the answer as it is to be compared, without what is nobody's promise."""
    name, (thread, ns), *parts = step
    if name == "put":
        checkpoint, parent, changed, others, given = parts
        channel_versions = {**others, **{n: version for n, (version, _) in changed.items()}}
        values = {n: v.value if type(v) is Large else v for n, (_, v) in changed.items()}
        made = checkpoint_of(checkpoint, values, channel_versions)
        new = {n: version for n, (version, _) in changed.items()}
        return exact(saver.put(config(thread, ns, parent), made, given, new))
    if name == "write":
        checkpoint, pending, task, path = parts
        return saver.put_writes(config(thread, ns, checkpoint), pending, task, path)
    if name == "get":
        return exact_tuple(saver.get_tuple(config(thread, ns, parts[0])))
    if name == "history":
        at = config(thread, ns, parts[0])
        return exact(dict(saver.get_delta_channel_history(config=at, channels=parts[1])))
    if name == "delete":
        return saver.delete_thread(thread)
    how, checkpoint, where, limit = parts
    given = {"all": None, "id": config(thread, ns, checkpoint), "ns": config(thread, ns)}.get(
        how, {"configurable": {"thread_id": thread}}
    )
    where = dict(where)
    if "before" in where:
        where["before"] = config(thread, ns, where["before"])
    found = list(saver.list(given, **where))
    some = list(saver.list(given, **where, limit=limit))
    if limit >= 0:
        assert [exact_tuple(one) for one in some] == [exact_tuple(one) for one in found[:limit]]
    else:
        assert some == []
    return ordered(found)


def everything(saver: Any, steps: list[Any]) -> list[Any]:
    """All that can be read of what the steps touched."""
    reads: list[Any] = [("list", ("", ""), "all", "a", {}, 2)]
    for name, place, *parts in steps:
        if name in ("put", "write"):
            reads += [("get", place, parts[0]), ("get", place, None)]
        if name == "put":
            reads.append(("history", place, parts[0], sorted({*parts[2], *parts[3], "messages"})))
    return [do(saver, read) for read in reads]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("savers") / "agent.memcore"
    yield path
    with memcore.open(path) as db:
        assert db.check() == []


numbers = count()


@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
@given(steps=operations)
@example(
    steps=[
        ("put", ("a", ""), "a", None, {}, {}, {"source": "loop", "step": 0}),
        ("write", ("a", ""), "a\x00", [("a", 1)], "", ""),
    ]
)
@example(
    steps=[
        ("write", ("a", ""), "a", [("a", n) for n in range(12)], "t", "~2"),
        ("write", ("a", ""), "a", [("a", [bytearray(b"b")])], "u", "~10"),
        ("write", ("a", ""), "a", [("a", "again"), ("__resume__", 1), ("a", "more")], "t", ""),
        ("put", ("a", ""), "a", None, {"a": ("1", [bytearray(b"b")])}, {}, {"source": "loop"}),
    ]
)
def test_any_operations_give_what_the_memory_saver_gives(home: Path, steps: list[Any]) -> None:
    user = f"user {next(numbers)}"
    expected = Reference()
    with memcore.open(home, durability="none", allow_unsafe=True) as db:
        saver = MemcoreSaver(db, user=user)
        for step in steps:
            assert do(saver, step) == do(expected, step), step
        wanted = everything(expected, steps)
        assert everything(saver, steps) == wanted, "warm"
        assert everything(saver, steps) == wanted, "warm, once more"
    with memcore.open(home, durability="none", allow_unsafe=True) as db:
        assert everything(MemcoreSaver(db, user=user), steps) == wanted, "cold"


@pytest.mark.parametrize(
    "make",
    [
        lambda np: np.full((1024, 1024, 3), 255, "u1"),
        lambda np: np.full(2_000_000, np.nan),
        lambda np: np.ones(7_500_000),
        lambda np: np.zeros(40_000_000),
        lambda _: "é" * 5_000_000,
        lambda _: {"a": ["é" * 5_000_000, 1, 2, 3]},
        lambda _: bytes(280_000_000),
    ],
    ids=["white", "nan", "ones", "zeros", "text", "nested", "bytes"],
)
def test_what_repeats_in_itself_is_read_as_it_was_put(make):
    np = pytest.importorskip("numpy")
    value = make(np)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"v": value}
    checkpoint["channel_versions"] = {"v": "1"}
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with memcore.open(":memory:") as db:
        writer = MemcoreSaver(db)
        writer.put(config, checkpoint, {}, {"v": "1"})
        for reader in (MemcoreSaver(db), writer):
            found = reader.get_tuple(config).checkpoint["channel_values"]["v"]
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(found, value)
            else:
                assert found == value
