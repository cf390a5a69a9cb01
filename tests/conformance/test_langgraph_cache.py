"""MemcoreCache: LangGraph's InMemoryCache as the model; types, pickles, ends, tenants."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy

import memcore
from memcore.adapters.langgraph import MemcoreCache
from memcore.errors import CorruptValueError, InvalidItemError

ROOT = Path(__file__).parents[2]

LABELS = st.sampled_from(["", "a", "b", "\x00", "\x01", "a\x00\x01", "é", "l" * 500])
NAMESPACES = st.lists(LABELS, max_size=3).map(tuple)
FULL_KEYS = st.tuples(NAMESPACES, st.sampled_from(["", "k", "\x00", "\x00\x00k", "k" * 500]))
STEPS = st.one_of(
    st.tuples(st.just("get"), st.lists(FULL_KEYS, max_size=4)),
    st.tuples(
        st.just("set"),
        st.dictionaries(
            FULL_KEYS, st.tuples(st.integers(-5, 5) | st.text(max_size=3), st.none()), max_size=4
        ),
    ),
    st.tuples(st.just("clear"), st.lists(NAMESPACES, max_size=2)),
    st.tuples(st.just("clear"), st.none()),
)


@given(st.lists(STEPS, max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_answers_as_the_cache_in_memory(steps, with_await):
    model = InMemoryCache()

    async def run(cache):
        seen = set()
        for verb, argument in steps:
            seen |= set(argument or ()) if verb != "clear" else set()
            found = getattr(cache, f"a{verb}" if with_await else verb)(argument)
            found = await found if with_await else found
            assert found == getattr(model, verb)(argument)
        assert cache.get(list(seen)) == model.get(list(seen))

    with MemcoreCache(":memory:") as cache:
        asyncio.run(run(cache))


@pytest.mark.parametrize(
    "value",
    [None, b"bytes", {"a": [1, {2}], 3: None}, AIMessage("hi"), datetime(2026, 1, 1, tzinfo=UTC)],
    ids=repr,
)
def test_values_keep_their_types(db, value):
    cache = MemcoreCache(db)
    cache.set({(("a",), "k"): (value, None)})
    found = cache.get([(("a",), "k")])[("a",), "k"]
    assert (type(found), found) == (type(value), value)


def test_it_ends_on_time_and_a_sweep_removes_it(db):
    now = [1_700_000_000_000_000]
    db.engine.now_us = lambda: now[0]
    cache = MemcoreCache(db)
    keys = [(("a",), key) for key in ("short", "long", "ever", "never")]
    cache.set(dict(zip(keys, [("s", 1), ("l", 60), ("e", None), ("n", 0)], strict=True)))
    assert list(cache.get(keys).values()) == ["s", "l", "e"]
    now[0] += 999_999
    assert len(cache.get(keys)) == 3
    now[0] += 1
    assert list(cache.get(keys).values()) == ["l", "e"]
    assert cache.sweep() == 1
    cache.set({keys[1]: ("again", -1)})
    assert list(cache.get(keys).values()) == ["e"]


def test_a_set_is_one_commit_and_a_get_is_none(db):
    cache = MemcoreCache(db)
    before = db.stats()["closures"]
    pairs = {(("a",), str(at)): (at, 60) for at in range(20)}
    cache.set(pairs)
    asyncio.run(cache.aset(pairs))
    assert db.stats()["closures"] == before + 2
    assert len(cache.get(list(pairs))) == 20
    assert db.stats()["closures"] == before + 2


# --- what cannot be read ------------------------------------------------------------------------


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


class Tagged:
    """A serializer that writes under any type, and reads the types of LangGraph's, pickle too."""

    def __init__(self, kind, payload=b""):
        self.found = kind, payload
        self.loads_typed = JsonPlusSerializer(pickle_fallback=True).loads_typed

    def dumps_typed(self, value):
        return self.found


KEY = (("a",), "k")


def planted(db, kind, payload):
    """A cache whose row says what no cache writes."""
    cache = MemcoreCache(db, serde=Tagged("bytes", payload))
    cache.set({KEY: (None, None)})
    kv = db.scope().kv("langgraph.cache")
    ((name, raw),) = kv.scan()
    old, new = b"\x00\x00\x00\x05bytes", len(kind).to_bytes(4, "big") + kind.encode()
    assert old in raw
    kv.put(name, raw.replace(old, new))
    return cache


@pytest.mark.parametrize("kind", ["pickle", "pickle+aes"])
def test_a_pickle_is_a_miss_whatever_the_serializer_would_do(db, kind):
    assert planted(db, kind, pickle.dumps(Trap())).get([KEY]) == {}


@pytest.mark.parametrize("kind", ["pickle", "pickle+aes"])
def test_a_pickle_is_not_written(db, kind):
    cache = MemcoreCache(db, serde=Tagged(kind))
    with pytest.raises(InvalidItemError, match="can only be pickled"):
        cache.set({(("b",), "k"): (Trap(), None)})
    assert list(db.scope().kv("langgraph.cache").scan()) == []


def test_an_unknown_type_is_a_miss_and_may_be_overwritten(db):
    planted(db, "cbor", b"x")
    cache = MemcoreCache(db)
    assert cache.get([KEY]) == {}
    cache.set({KEY: (1, None)})
    assert cache.get([KEY]) == {KEY: 1}


def test_what_a_known_type_should_hold_and_does_not_is_an_error(db):
    cache = planted(db, "msgpack", b"\xc1")
    with pytest.raises(CorruptValueError, match="is no msgpack that this serializer reads"):
        cache.get([KEY])
    cache.clear([KEY[0]])
    assert cache.get([KEY]) == {}


def test_a_value_that_cannot_be_written_stores_nothing(db):
    cache = MemcoreCache(db)
    with pytest.raises(TypeError):
        cache.set({KEY: (1, None), (("a",), "l"): (object(), None)})
    assert cache.get([KEY]) == {}


# --- tenants and files --------------------------------------------------------------------------


def test_users_apps_and_namespaces_do_not_see_each_other(db):
    caches = [
        MemcoreCache(db),
        MemcoreCache(db, user="u"),
        MemcoreCache(db.scope(app="u")),
        MemcoreCache(db, namespace="other"),
    ]
    for number, cache in enumerate(caches):
        assert cache.get([KEY]) == {}
        cache.set({KEY: (number, None)})
    caches[0].clear()
    assert [cache.get([KEY]).get(KEY) for cache in caches] == [None, 1, 2, 3]


def test_clearing_a_namespace_spares_those_beside_and_below_it(db):
    cache = MemcoreCache(db)
    names = [("a",), ("a", "b"), ("ab",), (), ("a", ""), ("x" * 600,), ("x" * 600, "y")]
    cache.set({(name, key): (1, None) for name in names for key in ("", "k", "k" * 600)})
    for cleared in (("a",), ("x" * 600,), ()):
        cache.clear([cleared])
        names.remove(cleared)
        everything = [(name, key) for name in [*names, cleared] for key in ("", "k", "k" * 600)]
        assert {name for name, _ in cache.get(everything)} == set(names)


WRITE = """
import sys
import memcore
from memcore.adapters.langgraph import MemcoreCache
with MemcoreCache.from_conn_string(sys.argv[1]) as cache:
    cache.set({(("a", "b"), "k"): ({"n": [1, 2]}, 3600)})
"""


def test_another_process_finds_what_was_cached(path):
    subprocess.run([sys.executable, "-c", WRITE, str(path)], cwd=ROOT, check=True)

    async def run():
        async with MemcoreCache.from_conn_string(path) as cache:
            return await cache.aget([(("a", "b"), "k"), (("a",), "k")])

    assert asyncio.run(run()) == {(("a", "b"), "k"): {"n": [1, 2]}}


def test_closing_is_idempotent_and_leaves_a_database_open(db, path):
    with MemcoreCache(db) as cache:
        cache.set({KEY: (1, None)})
    cache.close()
    assert MemcoreCache(db).get([KEY]) == {KEY: 1}


class State(TypedDict):
    n: int


def graph(calls, **options):
    def double(state):
        calls.append(state["n"])
        return {"n": state["n"] * 2}

    builder = StateGraph(State)
    builder.add_node("double", double, cache_policy=CachePolicy(ttl=60))
    builder.add_edge(START, "double")
    builder.add_edge("double", END)
    return builder.compile(**options)


def test_a_graph_runs_a_cached_node_once(db):
    calls = []
    for _ in range(2):  # a new graph, as after a restart
        app = graph(calls, cache=MemcoreCache(db))
        assert app.invoke({"n": 4}) == {"n": 8}
        assert asyncio.run(app.ainvoke({"n": 4})) == {"n": 8}
    assert app.invoke({"n": 5}) == {"n": 10}
    assert calls == [4, 5]
    app.clear_cache()
    app.invoke({"n": 5})
    assert calls == [4, 5, 5]


def test_a_cache_from_a_path_has_the_options_of_the_class(path):
    key = ("a",), "k"
    with MemcoreCache.from_conn_string(path, user="ann", app="x", namespace="mine") as ann:
        ann.set({key: (1, None)})
        with MemcoreCache.from_conn_string(path, user="bob", app="x", namespace="mine") as bob:
            assert bob.get([key]) == {}
        assert ann.get([key]) == {key: 1}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:2],
        lambda raw: raw[:6],
        lambda raw: b"\xff" * 4 + raw[4:],
        lambda raw: raw.replace(b"msgpack", b"msgp\xe9ck"),
        lambda raw: raw[:-1] + b"\xc1",
        lambda _: 7,
        lambda _: "text",
        lambda _: {"a": 1},
    ],
)
@pytest.mark.parametrize("name", ["key", "k" * 2_000])
def test_rows_that_no_cache_wrote_are_damage(tmp_path, name, spoil):
    with memcore.open(tmp_path / "a.memcore") as db:
        cache = MemcoreCache(db)
        cache.set({(("labels",), name): ("value", None)})
        kv = db.scope().kv("langgraph.cache")
        ((row, raw),) = kv.scan()
        kv.put(row, spoil(raw))
        with pytest.raises(CorruptValueError):
            cache.get([(("labels",), name)])
        cache.clear()
        assert cache.get([(("labels",), name)]) == {}
