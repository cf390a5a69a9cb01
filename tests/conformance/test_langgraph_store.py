"""MemcoreStore against LangGraph's InMemoryStore, and what that one has not: tenants, files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store import memory
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)

import memcore
from memcore.adapters.langgraph import AsyncMemcoreStore, MemcoreSaver, MemcoreStore
from memcore.adapters.langgraph import items as vectors
from memcore.adapters.langgraph.items import address, labels_text, named, split
from memcore.errors import (
    ClosedError,
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    ReadOnlyError,
    StoreFullError,
)
from memcore.store import LmdbStore

MINUTE_US = 60_000_000
ROOT = Path(__file__).parents[2]

# --- the model ----------------------------------------------------------------------------------


def embedded(texts):
    """Small whole numbers: sums over them are exact, so both stores compute equal scores."""
    return [
        [float(len(text) % 5), float(text.count("a")), float(text.count("b"))] for text in texts
    ]


class Spaces(dict):
    """Namespaces that looking them up does not make."""

    def __missing__(self, key):
        return {}


class Model(memory.InMemoryStore):
    """InMemoryStore without its faults.

    It lists namespaces that were only looked up, or are empty again; keeps vectors of a value that
    is there no more; and refuses one text in two places of a batch.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self._data = Spaces()

    def _apply_put_ops(self, put_ops):
        for (namespace, key), op in put_ops.items():
            if op.value is not None:
                self._data.setdefault(namespace, {})
            super()._apply_put_ops({(namespace, key): op})
            if not self._data[namespace]:
                self._data.pop(namespace, None)

    def _extract_texts(self, put_ops):
        for namespace, key in put_ops:
            self._vectors[namespace].pop(key, None)
        return super()._extract_texts(put_ops)

    def _insertinmem_store(self, to_embed, embeddings):
        for places, vector in zip(to_embed.values(), embeddings, strict=True):
            for namespace, key, path in places:
                self._vectors[namespace][key][path] = vector


LABELS = st.sampled_from(["a", "b", "ab", "a%", "_", "*", "\x01", "é", "\ud800", "l" * 300])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
KEYS = st.sampled_from(["k", "", "\x00", "\x00\x01", "k\x00", "é", "K" * 500, "K" * 501])
LEAVES = st.sampled_from([None, True, 0, 1, 1.5, 7, "a", "ab", "7", []])
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-2, 3),
        "text": st.sampled_from(["a", "ab", "bb", "abba", ""]),
        "deep": st.dictionaries(st.sampled_from("xy"), LEAVES, max_size=2),
        "list": st.lists(LEAVES, max_size=2),
    },
)
WANTED = st.one_of(
    LEAVES,
    st.dictionaries(st.sampled_from(["$eq", "$ne"]), LEAVES, min_size=1),
    st.dictionaries(
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.sampled_from([0, 1, "1"]), min_size=1
    ),
    st.dictionaries(st.sampled_from("xy"), LEAVES, max_size=2),
    st.lists(LEAVES, max_size=2),
)
FILTERS = st.none() | st.dictionaries(
    st.sampled_from(["n", "text", "deep", "list"]), WANTED, max_size=2
)
INDEX_OPTIONS = st.sampled_from([None, False, ["text"], ["deep.x", "list[*]"], ["*"]])
CONDITIONS = st.lists(
    st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), NAMESPACES), max_size=2
)
OPS = st.one_of(
    st.builds(GetOp, NAMESPACES, KEYS),
    st.builds(PutOp, NAMESPACES, KEYS, st.none() | VALUES, INDEX_OPTIONS, st.none()),
    st.builds(PutOp, NAMESPACES, KEYS, VALUES, INDEX_OPTIONS, st.none()),
    st.builds(
        SearchOp,
        st.lists(LABELS, max_size=2).map(tuple),
        FILTERS,
        st.integers(0, 5),
        st.integers(0, 3),
        st.sampled_from([None, None, "", "a", "bbb"]),
    ),
    st.builds(
        ListNamespacesOp, CONDITIONS, st.none() | st.integers(1, 3), st.integers(0, 5),
        st.integers(0, 2),
    ),
)  # fmt: skip
INDEX = {"dims": 3, "embed": embedded, "fields": ["text", "list[*]"]}


def plain(result):
    """A result without its times."""
    if isinstance(result, list):
        return [plain(found) for found in result]
    if not hasattr(result, "value"):
        return result
    score = getattr(result, "score", None)
    score = None if score is None else round(score, 9)
    return result.namespace, result.key, result.value, score


APPLY = memory._apply_operator


def applied(value, operator, operand):
    """As in memory, but what is no number does not match, where that one refuses to search."""
    try:
        return APPLY(value, operator, operand)
    except (TypeError, ValueError):
        return False


def answers(store, ops):
    """What a batch answers, or that it refuses."""
    try:
        return plain(store.batch(ops))
    except (ValueError, TypeError):
        return "refused"


@given(st.booleans(), st.booleans(), st.lists(st.lists(OPS, min_size=1, max_size=6), max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_answers_as_the_store_in_memory(indexed, with_numpy, batches):
    options = {"index": INDEX} if indexed else {}
    with (
        pytest.MonkeyPatch.context() as patch,
        MemcoreStore(":memory:", order="created", **options) as store,
    ):
        if not with_numpy:
            patch.setattr(vectors, "_numpy", lambda: None)
        patch.setattr(memory, "_apply_operator", applied)
        model = Model(**options)
        for ops in batches:
            assert answers(store, ops) == answers(model, ops)
        everything = [SearchOp((), None, 1000), ListNamespacesOp(None, None, 1000)]
        assert answers(store, everything) == answers(model, everything)


# --- rows ---------------------------------------------------------------------------------------

ANY_LABELS = st.lists(st.text(st.sampled_from("\x00\x01\x02ab"), max_size=3), max_size=3).map(tuple)


@given(ANY_LABELS, ANY_LABELS)
def test_the_text_of_labels_keeps_them_apart(one, other):
    assert split(labels_text(one)) == one
    begins = one[: len(other)] == other
    assert labels_text(one).startswith(labels_text(other)) == begins


@given(ANY_LABELS, st.text("\x00\x01a", max_size=3), ANY_LABELS, st.text("\x00\x01a", max_size=3))
def test_no_two_pairs_share_an_address(one, key, other, other_key):
    assert (address(one, key) == address(other, other_key)) == ((one, key) == (other, other_key))


@pytest.mark.parametrize("size", [10, 118, 119, 240, 479, 480, 481, 10_000])
@pytest.mark.parametrize("char", ["a", "\x00", "é", "😀"])
def test_a_text_of_any_length_gets_a_legal_key(db, size, char):
    name = named("K", char * size)
    db.scope().kv("n").put(name, b"")
    assert name[0] == ("K" if size * len(char.encode() if char != "\x00" else "12") < 479 else "k")


# --- items --------------------------------------------------------------------------------------


class Clock:
    def __init__(self, db):
        self.us = 1_700_000_000_000_000
        db.engine.now_us = lambda: self.us

    def __call__(self):
        return datetime.fromtimestamp(self.us / 1e6, UTC)


@pytest.fixture
def clock(db):
    return Clock(db)


def rows_of(db, namespace="langgraph.store"):
    return [key for key, _ in db.scope().kv(namespace).scan() if key != "#"]


def test_an_update_keeps_the_time_of_creation(db, clock):
    store = MemcoreStore(db)
    created = clock()
    store.put(("a",), "k", {"n": 1})
    clock.us += 5
    store.put(("a",), "k", {"n": 2})
    item = store.get(("a",), "k")
    assert (item.created_at, item.updated_at) == (created, clock())
    assert (item.value, item.namespace, item.key) == ({"n": 2}, ("a",), "k")
    store.delete(("a",), "k")
    store.put(("a",), "k", {"n": 3})
    assert store.get(("a",), "k").created_at == clock()


def test_deleting_the_last_item_leaves_no_row(db):
    store = MemcoreStore(db, index=INDEX)
    spaces = [("a",), ("l" * 600,)]
    for namespace in spaces:
        store.put(namespace, "k" * 700, {"text": "a"}, ttl=5)
        store.put(namespace, "k", {"text": "a"})
    assert store.list_namespaces() == sorted(spaces)
    for namespace in spaces:
        store.delete(namespace, "k" * 700)
        store.delete(namespace, "k")
    assert store.list_namespaces() == []
    assert rows_of(db) == []


def test_a_batch_is_one_commit(db, monkeypatch):
    store = MemcoreStore(db)
    before = db.stats()["closures"]
    store.batch([PutOp(("a",), str(at), {"n": at}) for at in range(20)])
    assert db.stats()["closures"] == before + 1
    store.batch([GetOp(("a",), "1"), SearchOp(("a",)), ListNamespacesOp()])
    assert db.stats()["closures"] == before + 1

    async def twenty():
        await store.abatch([PutOp(("a",), str(at), {"n": -at}) for at in range(20)])

    asyncio.run(twenty())
    assert db.stats()["closures"] == before + 2


def test_a_batch_is_stored_as_a_whole_or_not_at_all(db):
    store = MemcoreStore(db, index=INDEX)
    store.put(("a",), "old", {"n": 1})
    good = PutOp(("a",), "new", {"n": 1})
    for bad, error in [
        (PutOp(("a.b",), "k", {}), InvalidNamespaceError),
        (PutOp(("a", ""), "k", {}), InvalidNamespaceError),
        (PutOp(("a", 1), "k", {}), InvalidNamespaceError),
        (GetOp(("a\x00",), "k"), InvalidNamespaceError),
        (SearchOp(("a.b",)), InvalidNamespaceError),
        (ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)), InvalidNamespaceError),
        (PutOp(("a",), "k", {"n": float("nan")}), InvalidItemError),
        (PutOp(("a",), "k", {"n": {1}}), InvalidItemError),
        (PutOp(("a",), "k", {1: 2}), InvalidItemError),
        (PutOp(("a",), "k", [1]), InvalidItemError),
        (PutOp(("a",), "k", {"text": "x" * (64 * 1024**2)}), InvalidItemError),
        (PutOp(("a",), "k", {}, None, -1), InvalidOptionError),
        (PutOp(("a",), "k", {}, None, "1"), InvalidOptionError),
        (PutOp(("a",), "k", {}, None, float("inf")), InvalidOptionError),
        (SearchOp(("a",), {"n": {"$in": [1]}}), InvalidOptionError),
        (SearchOp(("a",), {"n": {"$gt": 1, "m": 2}}), InvalidOptionError),
        (SearchOp(("a",), {"n": [{"m": {"$lte": "x"}}]}), InvalidOptionError),
        (SearchOp(("a",), {1: 2}), InvalidOptionError),
        (SearchOp(("a",), [1]), InvalidOptionError),
        (SearchOp(("a",), query=5), InvalidOptionError),
        (SearchOp(("a",), limit=1.5), InvalidOptionError),
        (PutOp(("a",), "k", {}, index="title"), InvalidOptionError),
        (PutOp(("a",), "k", {}, index=[5]), InvalidOptionError),
        (ListNamespacesOp((MatchCondition("infix", ("a",)),)), InvalidOptionError),
        ("put", InvalidOptionError),
    ]:  # fmt: skip
        with pytest.raises(error):
            store.batch([good, bad])
    assert [item.key for item in store.search(())] == ["old"]


def test_any_json_comes_back_as_it_was(db):
    store = MemcoreStore(db)
    value = {"big": 2**80, "lone": "\ud800", "deep": [[None, {"": [True, -0.5]}]], "€": "\x00"}
    store.put(("a",), "k", value)
    item = store.get(("a",), "k")
    assert item.value == value
    item.value["big"] = 0
    assert store.get(("a",), "k").value == value


def test_what_is_no_number_is_neither_more_nor_less(db):
    store = MemcoreStore(db, order="created")
    for number in (1, 3, "4", None, "x", [5]):
        store.put(("a",), f"{number}", {"n": number})
    store.put(("a",), "missing", {})
    assert [i.key for i in store.search(("a",), filter={"n": {"$gt": 1}})] == ["3", "4"]
    assert [i.key for i in store.search(("a",), filter={"n": {"$lte": 1}})] == ["1"]
    assert len(store.search(("a",), filter={"n": {"$ne": 1}})) == 6


def test_the_methods_of_a_store_work_with_await(db):
    async def run():
        async with MemcoreStore(db, index=INDEX) as store:
            await store.aput(("a", "b"), "k", {"text": "ab"})
            assert (await store.aget(("a", "b"), "k")).value == {"text": "ab"}
            found = await store.asearch(("a",), query="ab")
            assert [item.score for item in found] == [pytest.approx(1)]
            assert await store.alist_namespaces(prefix=["a"]) == [("a", "b")]
            await asyncio.gather(*(store.aput(("c",), str(at), {}) for at in range(20)))
            assert len(await store.asearch(("c",), limit=50)) == 20
            await store.adelete(("a", "b"), "k")
            assert await store.aget(("a", "b"), "k") is None

    asyncio.run(run())


def test_a_cancelled_put_is_stored_before_it_ends(db):
    store = MemcoreStore(db)

    async def run():
        task = asyncio.create_task(store.aput(("a",), "k", {"n": 1}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return store.get(("a",), "k")

    assert asyncio.run(run()).value == {"n": 1}


# --- tenants ------------------------------------------------------------------------------------


def test_a_prefix_ends_where_a_label_ends(db):
    store = MemcoreStore(db, order="created")
    for namespace in [("a",), ("a", "x"), ("ab",), ("a\x01", "x"), ("b", "a"), ("A",)]:
        store.put(namespace, "k", {})
    assert [item.namespace for item in store.search(("a",))] == [("a",), ("a", "x")]
    assert [item.namespace for item in store.search(("ab",))] == [("ab",)]
    assert store.list_namespaces(prefix=["a"]) == [("a",), ("a", "x")]


def test_namespaces_are_listed_by_patterns_of_labels(db):
    store = MemcoreStore(db)
    spaces = [("a",), ("a", "v1", "x"), ("a", "v2", "x"), ("a", "v2", "y"), ("b", "v1", "x")]
    for namespace in spaces:
        store.put(namespace, "k", {})
    listed = store.list_namespaces
    assert listed(prefix=("a", "*", "x")) == [("a", "v1", "x"), ("a", "v2", "x")]
    assert listed(prefix=("*", "v1")) == [("a", "v1", "x"), ("b", "v1", "x")]
    assert listed(suffix=("v2", "*")) == [("a", "v2", "x"), ("a", "v2", "y")]
    assert listed(prefix=("a",), suffix=("x",), max_depth=2) == [("a", "v1"), ("a", "v2")]
    both = (MatchCondition("prefix", ("a", "v2")), MatchCondition("prefix", ("a",)))
    empty = (MatchCondition("suffix", ()), MatchCondition("prefix", ()))
    assert store.batch([ListNamespacesOp(both), ListNamespacesOp(empty)]) == [spaces[2:4], spaces]
    assert listed(limit=2, offset=1) == spaces[1:3]


@pytest.mark.parametrize("pattern", ["%", "_", "a%", "a_", "*", "?", "[a]", ".*"[1:], "'", '"'])
def test_no_label_is_a_pattern(db, pattern):
    store = MemcoreStore(db)
    store.put(("ab",), "k", {})
    assert store.search((pattern,)) == []
    assert store.get((pattern,), "k") is None
    store.put((pattern,), "k", {})
    assert [item.namespace for item in store.search((pattern,))] == [(pattern,)]


def test_users_apps_and_namespaces_do_not_see_each_other(db):
    stores = [
        MemcoreStore(db),
        MemcoreStore(db, user="u"),
        MemcoreStore(db, app="u"),
        MemcoreStore(db.scope(user="u", app="u")),
        MemcoreStore(db, namespace="other"),
    ]
    for number, store in enumerate(stores):
        assert store.search(()) == []
        assert store.list_namespaces() == []
        store.put(("a",), "k", {"n": number})
    assert [store.get(("a",), "k").value["n"] for store in stores] == [0, 1, 2, 3, 4]
    for store in stores:
        store.delete(("a",), "k")
    assert MemcoreStore(memcore.aio.AsyncDatabase(db), user="u").search(()) == []


def test_a_scope_brings_its_user(db):
    with pytest.raises(InvalidOptionError, match="has its app and user"):
        MemcoreStore(db.scope(user="u"), user="v")
    with pytest.raises(InvalidOptionError, match="expected a memcore database"):
        MemcoreStore(7)


# --- files --------------------------------------------------------------------------------------

WRITE = """
import sys
from memcore.adapters.langgraph import MemcoreStore
def embed(texts): return [[float(len(text)), 1.0] for text in texts]
with MemcoreStore.from_conn_string(sys.argv[1], index={"dims": 2, "embed": embed}) as store:
    store.put(("a", "b"), "k" * 600, {"n": 1}, ttl=60)
    store.put(("a",), "k", {"n": 2}, index=False)
"""


def test_another_process_finds_what_was_stored(path):
    subprocess.run([sys.executable, "-c", WRITE, str(path)], cwd=ROOT, check=True)

    async def run():
        index = {"dims": 2, "embed": lambda texts: [[float(len(t)), 1.0] for t in texts]}
        async with MemcoreStore.from_conn_string(path, index=index) as store:
            return [(i.key[0], i.value, i.score) for i in await store.asearch((), query='{"n": 1}')]

    assert asyncio.run(run()) == [("k", {"n": 1}, 1.0), ("k", {"n": 2}, None)]


def test_closing_is_idempotent_and_leaves_a_database_open(path, db):
    with MemcoreStore(db) as store:
        store.put(("a",), "k", {})
    store.close()
    assert store.get(("a",), "k") is not None
    own = MemcoreStore(path)
    own.setup()
    own.close()
    own.close()
    with pytest.raises(ClosedError):
        own.get(("a",), "k")


def test_a_path_that_cannot_be_opened_leaves_nothing_open(path):
    with pytest.raises(InvalidOptionError):
        MemcoreStore(path, user="")
    with memcore.open(path) as fresh:
        assert fresh.stats()["handles"] == 1


def test_a_handle_for_reading_reads(open_db):
    db = open_db()
    MemcoreStore(db).put(("a",), "k", {}, ttl=1)
    reader = open_db(read_only=True)
    clock = Clock(reader)
    clock.us = db.engine.now_us() + 30_000_000
    store = MemcoreStore(reader)
    assert store.get(("a",), "k").value == {}
    assert len(store.search(())) == 1
    with pytest.raises(ReadOnlyError):
        store.put(("a",), "k", {})


def test_without_langgraph_it_says_what_to_install():
    code = (
        "import sys; sys.modules['langgraph.store.base'] = None\n"
        "from memcore.adapters.langgraph import MemcoreStore"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    told = 'ImportError: MemcoreStore needs LangGraph: install it with pip install "memcore-db['
    assert told in done.stderr


def test_deleting_may_take_the_room_that_is_kept_for_it(db, monkeypatch):
    store = MemcoreStore(db)
    store.put(("a",), "k", {})
    asked = []
    transact = LmdbStore.transact

    def full(self, fn, *, makes_room=False):
        asked.append(makes_room)
        if not makes_room:
            raise StoreFullError("full")
        return transact(self, fn, makes_room=True)

    monkeypatch.setattr(LmdbStore, "transact", full)
    with pytest.raises(StoreFullError):
        store.put(("a",), "l", {})
    store.delete(("a",), "k")
    with pytest.raises(StoreFullError):
        store.batch([PutOp(("a",), str(at), None) for at in range(65)])
    assert asked == [False, True, False]


def test_who_opts_out_of_memory_is_neither_stored_nor_found(db, caplog):
    scope = db.scope(user="alice")
    store = MemcoreStore(scope)
    store.put(("m",), "old", {"likes": "tea"})
    scope.opt_out_memory()
    with caplog.at_level("INFO", logger="memcore.langgraph"):
        store.put(("m",), "new", {"likes": "cake"})
        asyncio.run(store.aput(("n",), "new", {"likes": "cake"}))
    assert [record.message for record in caplog.records] == [
        "the user opted out of memory: nothing was put"
    ] * 2
    assert store.get(("m",), "old") is None
    assert store.search(("m",)) == []
    assert store.list_namespaces() == []
    MemcoreStore(scope, namespace="work", memory=False).put(("w",), "k", {"v": 1})
    scope.opt_in_memory()
    assert [item.key for item in store.search(())] == ["old"]
    scope.opt_out_memory()
    store.delete(("m",), "old")
    scope.opt_in_memory()
    assert store.search(()) == []
    store.put(("m",), "back", {"likes": "tea"})
    assert scope.opt_out_memory(remove=True) > 0
    scope.opt_in_memory()
    assert store.search(()) == []
    assert MemcoreStore(scope, namespace="work", memory=False).get(("w",), "k") is not None


# --- as the stores of databases -----------------------------------------------------------------


def test_a_search_finds_what_was_put_last_first(db, clock):
    store = MemcoreStore(db)
    for number in range(5):
        clock.us += 1
        store.put(("a", str(number % 2)), f"k{number}", {"n": number})
    clock.us += 1
    store.put(("a", "0"), "k0", {"n": 5})
    assert [item.value["n"] for item in store.search(("a",))] == [5, 4, 3, 2, 1]
    assert [item.value["n"] for item in store.search(("a",), limit=2, offset=1)] == [4, 3]
    assert [item.value["n"] for item in store.search(("a",), filter={"n": {"$lt": 4}})] == [3, 2, 1]
    assert store.search(("a",), limit=0) == []
    created = MemcoreStore(db, order="created").search(("a",))
    assert [item.value["n"] for item in created] == [5, 2, 4, 1, 3]


def test_a_filter_may_name_a_path(db):
    store = MemcoreStore(db)
    store.put(("a",), "deep", {"user": {"name": {"first": "Ann"}, "age": 7}})
    store.put(("a",), "flat", {"user.name.first": "Ann", "user": 3})

    def found(**wanted):
        return sorted(item.key for item in store.search(("a",), filter=wanted))

    assert found(**{"user.name.first": "Ann"}) == ["deep", "flat"]
    assert found(**{"user.age": {"$gte": 7}}) == ["deep"]
    assert found(**{"user.age": None}) == ["flat"]
    assert found(**{"user.name.first.more": "Ann"}) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"index": {**INDEX, "distance": "l2"}}, "did you mean 'distance_type'"),
        ({"index": {**INDEX, "distance_type": "hamming"}}, "distance_type: expected one of cosine"),
        ({"index": {**INDEX, "ann_index_config": {}}}, "index: expected one of dims, embed"),
        ({"index": {**INDEX, "fields": "text"}}, "fields: expected a list"),
        ({"index": [1]}, "index: expected a mapping"),
        ({"ttl": {"default": 5}}, "did you mean 'default_ttl'"),
        ({"ttl": {"default_ttl": -1}}, "ttl: expected minutes"),
        ({"ttl": {"omit_expired": "yes"}}, "omit_expired: expected True or False"),
        ({"ttl": {"sweep_interval_minutes": "5"}}, "sweep_interval_minutes: expected minutes"),
        ({"order": "newest"}, "order: expected one of updated, created"),
    ],
)  # fmt: skip
def test_an_option_that_there_is_not_is_refused(db, options, told):
    with pytest.raises(InvalidOptionError, match=told):
        MemcoreStore(db, **options)


def test_the_sql_stores_name_of_fields_counts(db):
    for at, fields in enumerate(("text", ["text"])):
        index = {"dims": 3, "embed": embedded, "text_fields": fields}
        store = MemcoreStore(db, index=index, namespace=f"n{at}")
        store.put(("a",), "k", {"text": "abba", "other": "a" * 100})
        assert store.search(("a",), query="abba")[0].score == 1.0


def test_its_embeddings_are_told(db):
    assert MemcoreStore(db).embeddings is None
    embeddings = MemcoreStore(db, index=INDEX).embeddings
    assert embeddings.embed_query("abba") == [4.0, 2.0, 2.0]


def test_setting_up_may_be_awaited_or_not(db):
    async def awaited():
        assert await MemcoreStore(db).setup() is None
        assert await MemcoreSaver(db).setup() is None

    asyncio.run(awaited())
    MemcoreStore(db).setup()
    MemcoreSaver(db).setup()


def test_the_sweeper_is_that_of_asynchronous_stores_too(db, clock):
    async def swept():
        async with AsyncMemcoreStore(db, ttl={"default_ttl": 1}) as store:
            await store.setup()
            await store.aput(("a",), "k", {"n": 1})
            assert await store.sweep_ttl() == 0
            clock.us += MINUTE_US
            assert await store.sweep_ttl() == 1
            assert await store.aget(("a",), "k") is None
            ended = await store.start_ttl_sweeper(5)
            assert not ended.done()
            assert await store.stop_ttl_sweeper(30) is True
            await asyncio.wait_for(ended, 30)

    asyncio.run(swept())


# --- rows that no store wrote -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "spoil"),
    [
        ("O", lambda value: value[:20]),
        ("O", lambda value: value[:40] + b"\xff" * 8 + value[48:]),
        ("O", lambda value: value[:-2]),
        ("O", lambda value: value.replace(b"key", b"k\xe9y")),
        ("O", lambda value: value[: value.index(b"{")] + b"[1]"),
        ("O", lambda value: value[:2] + b"\xff" * 8 + value[10:]),
        ("V", lambda value: value[:-1]),
        ("V", lambda _: b"\x03\0\0\0\0\0\0\0"),
        ("V", lambda _: 7),
        ("O", lambda _: 7),
        ("O", lambda _: {"a": 1}),
        ("K", lambda _: b""),
        ("K", lambda _: "text"),
        ("K", lambda _: [1]),
        ("N", lambda value: value[:3]),
        ("N", lambda value: value[:6] + b"\xff\xfe"),
        ("N", lambda _: 7),
    ],
)
def test_rows_that_no_store_wrote_are_damage(tmp_path, key, spoil):
    path = tmp_path / "a.memcore"
    with memcore.open(path) as db:
        MemcoreStore(db, index=INDEX).put(("labels",), "key", {"text": "ab", "value": "text"})
        kv = db.scope().kv("langgraph.store")
        named_row, value = next((name, raw) for name, raw in kv.scan() if name.startswith(key))
        kv.put(named_row, spoil(value))
    damaged = 0
    with memcore.open(path) as again:  # which has nothing in memory
        store = MemcoreStore(again, index=INDEX)
        for read in (
            lambda: store.search(("labels",), query="text"),
            lambda: store.get(("labels",), "key"),
            lambda: store.search(("labels",)),
            lambda: store.search((), filter={"value": "text"}),
            store.list_namespaces,
            lambda: store.put(("labels",), "key", {"value": "more"}),
            lambda: store.put(("labels",), "other", {"value": "more"}),
            lambda: store.delete(("labels",), "key"),
        ):
            try:
                read()
            except CorruptValueError:
                damaged += 1
    assert damaged
