"""Search by meaning: what is embedded and when, where vectors stay and go, wrong embedders."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from langgraph.store.base import PutOp, SearchOp

from memcore.adapters.langgraph import MemcoreStore
from memcore.adapters.langgraph import items as vectors
from memcore.adapters.langgraph.items import Scorer, pack_vectors
from memcore.errors import InvalidItemError, InvalidOptionError

LETTERS = "abc"


def letters(text):
    return [float(text.count(letter)) for letter in LETTERS]


class Embedder(Embeddings):
    """Counts letters, and its calls."""

    def __init__(self):
        self.calls = []

    def embed_documents(self, texts):
        self.calls.append(texts)
        return [letters(text) for text in texts]

    def embed_query(self, text):
        return letters(text)


def index(embed=None, **options):
    return {"dims": 3, "embed": embed or Embedder(), "fields": ["text"], **options}


def scores(items):
    return [
        (item.key, item.score if item.score is None else round(item.score, 6)) for item in items
    ]


def vector_rows(db):
    return [k for k, _ in db.scope().kv("langgraph.store").scan(prefix="V")]


def test_the_nearest_comes_first_and_the_rest_fills_up(db):
    store = MemcoreStore(db, index=index(), order="created")
    store.put(("x",), "unread", {"text": "a"}, index=False)
    store.put(("x",), "b", {"text": "b"})
    store.put(("x", "y"), "ab", {"text": "ab"})
    store.put(("x",), "none", {"other": 1})
    found = store.search(("x",), query="a")
    assert scores(found) == [
        ("ab", round(1 / math.sqrt(2), 6)), ("b", 0.0), ("unread", None), ("none", None),
    ]  # fmt: skip
    assert scores(store.search(("x",), query="a", limit=1)) == [("ab", round(1 / 2**0.5, 6))]
    assert scores(store.search(("x",), query="a", limit=1, offset=1)) == [("b", 0.0)]
    assert scores(store.search(("x",), query="a", filter={"text": "b"})) == [("b", 0.0)]


def test_the_best_of_several_fields_counts(db):
    store = MemcoreStore(db, index=index(fields=["title", "parts[*].text"]))
    store.put(("x",), "one", {"title": "b", "parts": [{"text": "c"}, {"text": "aa"}]})
    store.put(("x",), "two", {"title": "ab", "parts": []})
    assert [key for key, _ in scores(store.search(("x",), query="a"))] == ["one", "two"]
    store.put(("x",), "two", {"title": "b", "note": "a"}, index=["note"])
    store.put(("x",), "one", {"title": "ab"})
    assert [key for key, _ in scores(store.search(("x",), query="a"))] == ["two", "one"]


@pytest.mark.parametrize("fields", [None, ["$"]])
def test_the_whole_value_is_embedded_unless_fields_are_named(db, fields):
    embed = Embedder()
    store = MemcoreStore(db, index=index(embed, fields=fields))
    store.put(("x",), "k", {"b": 1, "a": 2})
    store.put(("x",), "k", {"n": 3}, index=["$"])
    assert embed.calls == [['{"a": 2, "b": 1}'], ['{"n": 3}']]


def test_vectors_follow_the_value(db):
    store = MemcoreStore(db, index=index())
    store.put(("x",), "k", {"text": "a"})
    store.put(("x",), "k", {"text": "b"})
    assert scores(store.search(("x",), query="a")) == [("k", 0.0)]
    for gone in ({"other": 1}, {"text": None}):
        store.put(("x",), "k", {"text": "a"})
        store.put(("x",), "k", gone)
        assert scores(store.search(("x",), query="a")) == [("k", None)]
        assert vector_rows(db) == []
    store.put(("x",), "k", {"text": "a"})
    store.put(("x",), "k", {"text": "a"}, index=False)
    assert vector_rows(db) == []
    store.put(("x",), "k", {"text": "a"})
    store.delete(("x",), "k")
    assert vector_rows(db) == []


def test_a_batch_embeds_each_text_once(db):
    embed = Embedder()
    store = MemcoreStore(db, index=index(embed), order="created")
    store.batch([
        PutOp(("x",), "1", {"text": "a"}), PutOp(("x",), "2", {"text": "a"}),
        PutOp(("x",), "2", {"text": "b"}), PutOp(("x",), "3", {"text": "a"}),
        SearchOp(("x",), None, 10, 0, "a"),
    ])  # fmt: skip
    assert embed.calls == [["a", "b"]]
    assert scores(store.search(("x",), query="a")) == [("1", 1.0), ("3", 1.0), ("2", 0.0)]


def test_an_embedder_may_use_the_database_and_its_failure_stores_nothing(db):
    def embed(texts):
        db.session("log").append({"role": "user", "content": texts[0]})
        if texts[0] == "bad":
            raise RuntimeError("no connection")
        return [[1.0, 0.0, 0.0]]

    store = MemcoreStore(db, index=index(embed))
    store.put(("x",), "k", {"text": "good"})
    with pytest.raises(RuntimeError, match="no connection"):
        store.put(("x",), "l", {"text": "bad"})
    assert [item.key for item in store.search(("x",))] == ["k"]
    with pytest.raises(InvalidItemError):
        store.put(("x",), "k", {"text": "never embedded", "bad": {1}})
    assert len(db.session("log")) == 2


def test_an_embedder_with_await_serves_the_methods_with_await(db):
    async def embed(texts):
        await asyncio.sleep(0)
        return [letters(text) for text in texts]

    store = MemcoreStore(db, index=index(embed))

    async def run():
        await asyncio.gather(*(store.aput(("x",), key, {"text": key}) for key in "ab"))
        return await store.asearch(("x",), query="b")

    assert [key for key, _ in scores(asyncio.run(run()))] == ["b", "a"]
    with pytest.raises(ValueError, match="async function"):
        store.put(("x",), "k", {"text": "a"})


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        ([[1.0, 2.0]], "dims is 3, but embed gave a vector of 2"),
        ([[]], "a vector of 0 numbers"),
        ([], "0 vectors for 1 texts"),
        ([[1.0, 2.0, math.nan]], "NaN or infinity"),
        ([[1.0, 2.0, math.inf]], "NaN or infinity"),
        ([[1.0, 2.0, 1e39]], "single-precision"),
        ([["a", "b", "c"]], "single-precision"),
    ],
)
def test_what_an_embedder_gives_is_checked(db, gives, says):
    store = MemcoreStore(db, index=index(lambda _: gives))
    with pytest.raises(InvalidOptionError, match=says):
        store.put(("x",), "k", {"text": "a"})
    assert store.search(("x",)) == []
    store.put(("x",), "k", {"text": "a"}, index=False)
    if gives:
        with pytest.raises(InvalidOptionError, match=says):
            store.search(("x",), query="a")


def test_another_embedder_is_told_to_put_items_again(db):
    MemcoreStore(db, index=index()).put(("x",), "k", {"text": "a"})
    other = MemcoreStore(db, index={"dims": 1, "embed": lambda texts: [[1.0] for _ in texts]})
    with pytest.raises(InvalidOptionError, match="put them again"):
        other.search(("x",), query="a")
    other.put(("x",), "k", {"text": "a"})
    assert scores(other.search(("x",), query="a")) == [("k", 1.0)]


@pytest.mark.parametrize("bad", [{"dims": 0}, {"dims": "3"}, {"dims": True}, {"embed": None}])
def test_the_option_is_checked(db, bad):
    with pytest.raises(InvalidOptionError, match="index: "):
        MemcoreStore(db, index={"dims": 3, "embed": letters, **bad})


def test_arrays_are_vectors(db):
    np = pytest.importorskip("numpy")
    store = MemcoreStore(db, index=index(lambda texts: np.array([letters(t) for t in texts])))
    store.put(("x",), "k", {"text": "ab"})
    assert scores(store.search(("x",), query="ba")) == [("k", 1.0)]


def test_many_vectors_of_a_namespace_are_found_in_one_scan(db):
    store = MemcoreStore(db, index=index())
    store.batch([PutOp(("x",), str(at), {"text": "a" * at + "b"}) for at in range(40)])
    found = store.search(("x",), query="a", limit=40)
    assert [item.key for item in found] == [str(at) for at in reversed(range(40))]


NUMBERS = st.floats(-(2.0**99), 2.0**99, width=32)


@given(
    st.lists(st.lists(NUMBERS, min_size=4, max_size=4), min_size=2, max_size=5),
    st.sampled_from(["cosine", "l2", "inner_product"]),
)
@settings(max_examples=60)
def test_scores_are_the_same_without_numpy(found, distance):
    pytest.importorskip("numpy")
    query, *rows = found
    packed = [pack_vectors([row, query]) for row in rows] + [pack_vectors(rows)]
    by_numpy = Scorer(query, distance)
    by_hand = Scorer(query, distance)
    assert by_numpy._numpy is not None
    by_hand._numpy = None
    assert by_numpy.best(packed) == pytest.approx(by_hand.best(packed), abs=1e-9, rel=1e-9)
    assert vectors._numpy.cache_info().currsize == 1


@pytest.mark.parametrize(
    ("distance", "wanted"),
    [
        ("cosine", [("far", 1.0), ("near", 0.8), ("across", 0.0)]),
        ("l2", [("near", -(0.4**0.5)), ("across", -2.0), ("far", -3.0)]),
        ("inner_product", [("far", 4.0), ("near", 0.8), ("across", 0.0)]),
    ],
)
def test_items_are_ranked_by_the_distance_that_is_asked_for(db, distance, wanted):
    places = {"query": [1.0, 0.0], "far": [4.0, 0.0], "near": [0.8, 0.6], "across": [0.0, 3**0.5]}
    options = {"dims": 2, "embed": lambda texts: [places[text] for text in texts]}
    store = MemcoreStore(db, index={**options, "fields": ["text"], "distance_type": distance})
    for name in ("far", "near", "across"):
        store.put(("x",), name, {"text": name})
    found = [(item.key, item.score) for item in store.search(("x",), query="query")]
    assert [key for key, _ in found] == [key for key, _ in wanted]
    assert [score for _, score in found] == pytest.approx([score for _, score in wanted], abs=1e-6)
