"""Search of a MemcoreStore by words: a query ranks without embeddings, as LangMem's tools need."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import SearchOp

import memcore
from memcore.adapters.langgraph import MemcoreStore
from memcore.adapters.langgraph.items import text_of
from memcore.errors import InvalidOptionError
from raw import rows

AT = ("memories", "ann")
TEXTS = {
    "seat": "prefers window seats on long flights",
    "tea": "drinks green tea in the morning",
    "tokyo": "lives in Tokyo, 東京に住んでいます",
    "flat": "moved to a flat with a large window",
}


@pytest.fixture
def durability() -> str:
    return "none"


@pytest.fixture
def store(db) -> MemcoreStore:
    made = MemcoreStore(db)
    for key, text in TEXTS.items():
        made.put(AT, key, {"kind": "Memory", "content": {"content": text}})
    return made


def found(store: MemcoreStore, query: str, **options: Any) -> list[str]:
    return [item.key for item in store.search(options.pop("at", AT), query=query, **options)]


def scored(store: MemcoreStore, query: str, **options: Any) -> list[str]:
    return [item.key for item in store.search(AT, query=query, **options) if item.score is not None]


def test_what_shares_a_word_is_first_and_the_others_follow(store) -> None:
    assert found(store, "a window seat for the flight") == ["seat", "flat", "tokyo", "tea"]
    assert scored(store, "a window seat for the flight") == ["seat", "flat"]
    first, second = store.search(AT, query="window seat", limit=2)
    assert first.score > second.score > 0
    assert scored(store, "東京") == ["tokyo"]
    assert asyncio.run(store.asearch(AT, query="tea", limit=1))[0].key == "tea"


def test_without_a_word_the_order_is_that_without_a_query(store) -> None:
    for query in ("nonexistent", "the", "?!", " ", "\ud800"):
        assert found(store, query) == [item.key for item in store.search(AT)]
        assert scored(store, query) == []


def test_names_of_fields_are_no_words(store) -> None:
    assert scored(store, "kind content") == []
    assert set(scored(store, "Memory")) == TEXTS.keys()


def test_pages_are_parts_of_one_order(store) -> None:
    whole = found(store, "window seat")
    for limit in range(1, 5):
        pages = [found(store, "window seat", limit=limit, offset=at) for at in range(0, 6, limit)]
        assert [key for page in pages for key in page] == whole


def test_filters_and_namespaces_narrow_what_is_ranked(store) -> None:
    store.put(("memories", "bob"), "seat", {"content": "an aisle seat", "rank": 2})
    store.put(AT, "other", {"content": "a seat", "rank": 1})
    assert found(store, "aisle", limit=1, at=("memories",)) == ["seat"]
    assert found(store, "seat", filter={"rank": {"$gte": 1}}) == ["other"]
    assert scored(store, "aisle") == []


def test_words_of_other_namespaces_change_no_score(store) -> None:
    before = [(item.key, item.score) for item in store.search(AT, query="window seat")]
    for number in range(50):
        store.put(("memories", "bob"), str(number), {"content": "window seat"})
    assert [(item.key, item.score) for item in store.search(AT, query="window seat")] == before


def test_nothing_is_stored_for_it(db, store) -> None:
    before = rows(db.engine.store)
    assert found(store, "window")
    assert rows(db.engine.store) == before


def test_what_was_put_again_or_deleted_is_found_by_its_present_words(store) -> None:
    store.put(AT, "seat", {"content": "prefers the aisle"})
    store.delete(AT, "flat")
    assert scored(store, "window") == []
    assert scored(store, "aisle") == ["seat"]


def test_expired_items_are_not_found(db) -> None:
    store = MemcoreStore(db, ttl={"omit_expired": True})
    store.put(AT, "now", {"content": "a window"}, ttl=1)
    now = db.engine.now_us()
    db.engine.now_us = lambda: now + 61_000_000
    assert found(store, "window") == []


def test_a_query_is_redacted_as_the_items_were(open_db) -> None:
    store = MemcoreStore(open_db(redact="default", durability="none"))
    store.put(AT, "mail", {"content": "write to ann@example.com"})
    store.put(AT, "other", {"content": "write to bob"})
    [first, _] = store.search(AT, query="ann@example.com")
    assert (first.key, first.score is not None) == ("mail", True)
    assert "ann@" not in str(first.value)


def test_who_opted_out_finds_nothing(db, store) -> None:
    db.scope().opt_out_memory()
    assert found(store, "window") == []


def test_a_batch_of_searches_and_a_long_query(store) -> None:
    ops = [SearchOp(AT, query=query, limit=1) for query in ("tea", "Tokyo " * 100_000)]
    assert [[item.key for item in result] for result in store.batch(ops)] == [["tea"], ["tokyo"]]


def meaning(texts: list[str]) -> list[list[float]]:
    """Embeddings by which a beverage and tea are near."""
    return [[1.0, 0.1] if "tea" in text or "beverage" in text else [0.1, 1.0] for text in texts]


def hybrid(db, share: float) -> MemcoreStore:
    index: Any = {"dims": 2, "embed": meaning}
    store = MemcoreStore(db, index=index, hybrid=share)
    for key, text in TEXTS.items():
        store.put(AT, key, {"content": text})
    store.put(AT, "bare", {"content": "a window that was not embedded"}, index=False)
    return store


def test_words_and_meaning_are_mixed(db) -> None:
    query = "beverage at the window"
    assert found(hybrid(db, 0.0), query)[0] == "tea"
    mixed = hybrid(db, 0.5).search(AT, query=query)
    assert {item.key for item in mixed[:2]} <= {"tea", "flat", "seat", "bare"}
    assert all(0 <= item.score <= 1 for item in mixed if item.score is not None)
    assert [item.score for item in mixed] == sorted((i.score for i in mixed), reverse=True)
    assert found(hybrid(db, 1.0), query)[0] in ("seat", "flat", "bare")
    assert len(mixed) == len(TEXTS) + 1
    pages = [found(hybrid(db, 0.5), query, limit=2, offset=at) for at in (0, 2, 4)]
    assert [key for page in pages for key in page] == [item.key for item in mixed]


def test_what_has_neither_vector_nor_word_follows_unscored(db) -> None:
    last = hybrid(db, 0.3).search(AT, query="drink", limit=10)[-1]
    assert (last.key, last.score) == ("bare", None)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "x", True, None])
def test_a_share_is_from_0_to_1(db, share) -> None:
    with pytest.raises(InvalidOptionError):
        MemcoreStore(db, hybrid=share)


def test_tenants_share_no_words(db) -> None:
    ann, bob = (MemcoreStore(db, user=user) for user in ("ann", "bob"))
    bob.put(AT, "k", {"content": "a window"})
    assert found(ann, "window") == []


leaves = st.text(max_size=5) | st.integers() | st.booleans() | st.none() | st.floats(0, 1)
values = st.recursive(
    leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3)
)


@given(st.dictionaries(st.text(), values, max_size=3))
def test_the_text_of_a_value_has_its_leaves_in_order(value) -> None:
    def told(each: Any) -> list[str]:
        if isinstance(each, dict):
            return [text for one in each.values() for text in told(one)]
        if isinstance(each, list):
            return [text for one in each for text in told(one)]
        return [] if each is None or isinstance(each, bool) else [str(each)]

    assert text_of(value) == "\n".join(told(value))


def test_large_numbers_are_texts_like_others(store) -> None:
    store.put(AT, "number", {"n": 2**64 - 1, "m": -(2**63), "f": 1e300})
    assert scored(store, str(2**64 - 1)) == ["number"]


def test_a_file_opened_read_only_is_searched(path) -> None:
    with MemcoreStore(path) as store:
        store.put(AT, "tea", {"content": "green tea"})
    with memcore.open(path, read_only=True) as db:
        assert scored(MemcoreStore(db), "teas") == ["tea"]
