"""A search ranks exactly the live items, whatever happened to the sessions and to the index."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore._fast import search_spans, search_words
from memcore.rows import names
from memcore.search import index as index_rows
from memcore.search import items as index_items
from memcore.session import rewrite_items
from memcore.session import search as searching
from strategies import no_deadline

WORDS = ["apple", "pears", "plum", "running", "the", "cats", "東京タワー", "naïve", "42", "fig-fig"]
WEIGHTS = {"user": 1.0, "assistant": 0.5}
MONTH = "January 2024"
SESSIONS = ["a", "b", "c"]


@dataclass
class Model:
    """What is live in which session: (owner, seq) with role and text; owners in order."""

    live: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    texts: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    owner: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    created: int = 0

    def new(self, name: str) -> None:
        self.created += 1
        self.owner[name], self.live[name], self.last[name] = self.created, [], 0

    def ranked(self, query: str, visible: list[str]) -> list[tuple[str, int, float]]:
        """The definition: BM25 over all live documents, neighbours lend, ties by document."""
        found = {each for items in self.live.values() for each in items}
        documents = {
            each: Counter(search_words(f"{role}: {text}\n{MONTH}"))
            for each in sorted(found)
            for role, text in [self.texts[each]]
            if role in WEIGHTS and text
        }
        lengths = {each: sum(words.values()) for each, words in documents.items()}
        total, own = len(documents), dict.fromkeys(documents, 0.0)
        average = sum(lengths.values()) / total if total else 1.0
        for word in set(search_words(query)):
            having = [each for each, words in documents.items() if word in words]
            idf = log(1 + (total - len(having) + 0.5) / (len(having) + 0.5))
            for each in having:
                times = documents[each][word]
                score = idf * times * 1.9 / (times + 0.9 * (0.6 + 0.4 * lengths[each] / average))
                own[each] += score * WEIGHTS[self.texts[each][0]]
        scores = dict(own)
        ordered = list(documents)
        for one, other in pairwise(ordered):
            if one[0] == other[0]:
                scores[one] += 0.3 * own[other]
                scores[other] += 0.3 * own[one]
        hits = []
        for each in sorted(documents, key=lambda each: (-scores[each], each)):
            name = self.shown(each, visible)
            if scores[each] > 0 and name is not None:
                hits.append((name, each[1], scores[each]))
        return hits

    def shown(self, item: tuple[int, int], visible: list[str]) -> str | None:
        having = [name for name in visible if item in self.live[name]]
        having.sort(key=lambda name: (self.owner[name] != item[0], self.owner[name]))
        return having[0] if having else None


texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
names_ = st.sampled_from(SESSIONS)
steps = st.one_of(
    st.tuples(st.just("append"), names_, st.sampled_from(["user", "assistant", "event"]), texts),
    st.tuples(st.just("append"), names_, st.sampled_from(["user", "assistant"]), texts),
    st.tuples(st.just("undo"), names_, st.integers(1, 4)),
    st.tuples(st.just("fork"), names_, names_, st.integers(0, 5)),
    st.tuples(st.just("delete"), names_),
    st.tuples(st.just("rewrite"), names_, st.integers(0, 5), texts),
    st.tuples(st.just("index")),
    st.tuples(st.just("reindex")),
    st.tuples(st.just("search"), texts, st.none() | st.lists(names_, min_size=1, max_size=2)),
)


class World:
    """A database and its model."""

    def __init__(self, db: memcore.Database) -> None:
        self.db, self.scope, self.model = db, db.scope(), Model()

    def append(self, name: str, role: str, text: str) -> None:
        model, session = self.model, self.scope.session(name)
        if name not in model.live:
            model.new(name)
        if role == "event":
            session.record("note", text)
        else:
            session.append({"role": role, "content": text})
        model.last[name] += 1
        item = model.owner[name], model.last[name]
        model.live[name].append(item)
        model.texts[item] = role, text

    def undo(self, name: str, count: int) -> None:
        live = self.model.live.get(name, [])
        count = min(count, len(live))
        if count:
            self.scope.session(name).undo(count)
            del live[len(live) - count :]

    def fork(self, name: str, target: str, at: int) -> None:
        model = self.model
        live = model.live.get(name, [])
        if target in model.live or not live:
            return
        seq = live[min(at, len(live) - 1)][1]
        self.scope.session(name).fork(target, at=seq)
        model.new(target)
        model.live[target] = [each for each in live if each[1] <= seq]
        model.last[target] = seq

    def delete(self, name: str) -> None:
        assert self.scope.delete_session(name) is (name in self.model.live)
        self.model.live.pop(name, None)

    def rewrite(self, name: str, at: int, text: str) -> None:
        live = self.model.live.get(name, [])
        owned = [each for each in live if each[0] == self.model.owner[name]]
        owned = [each for each in owned if self.model.texts[each][0] != "event"]
        if not owned:
            return
        item = owned[min(at, len(owned) - 1)]
        role = self.model.texts[item][0]
        engine = self.db.engine

        def place(txn: Any) -> tuple[int, int]:
            scope = names.scope_of(txn, "default", "default")
            return scope, names.session_of(txn, scope, name)

        message = {"role": role, "content": text}
        rewrite_items(engine, *engine.store.read(place), {item[1]: message}, may_grow=True)
        self.model.texts[item] = role, text

    def index(self) -> None:
        self.scope.index_sessions()

    def reindex(self) -> None:
        self.scope.reindex()

    def search(self, query: str, wanted: list[str] | None) -> None:
        if not query.strip():
            return
        visible = [each for each in self.model.live if wanted is None or each in wanted]
        hits = self.scope.search(query, k=1000, sessions=wanted, explain=True)
        expected = self.model.ranked(query, visible)
        scores = {each[:2]: each[2] for each in expected}
        found = [(hit.session_id, hit.seq) for hit in hits]
        assert {(h.session_id, h.seq): h.score for h in hits} == pytest.approx(scores)
        # Sums in another order may differ in the last bits, and so may the order of such ties.
        assert [scores[each] for each in found] == pytest.approx([each[2] for each in expected])
        item = {each: self.item_of(*each) for each in found}
        assert found == [
            (h.session_id, h.seq)
            for h in sorted(hits, key=lambda h: (-h.score, item[h.session_id, h.seq]))
        ]
        for hit in hits:
            assert sum(each.score for each in hit.why) + hit.neighbours == pytest.approx(hit.score)
        best = self.scope.search(query, k=2, sessions=wanted)
        assert [(hit.session_id, hit.seq) for hit in best] == found[:2]

    def item_of(self, name: str, seq: int) -> tuple[int, int]:
        return next(each for each in self.model.live[name] if each[1] == seq)


@settings(no_deadline, max_examples=60)
@given(st.lists(steps, max_size=40), texts, st.booleans())
def test_a_search_is_what_the_definition_says(found, query, read_only) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small bounds, so that short histories have merges, several blocks, and many steps.
        patch.setattr(searching, "BEHIND_MAX", 3)
        patch.setattr(searching, "STEP_ITEMS", 4)
        patch.setattr(index_rows, "PENDING_MAX", 4)
        patch.setattr(index_rows, "BLOCK_POSTINGS", 2)
        patch.setattr(index_items, "PIECE_POSTINGS", 5)
        with memcore.open(":memory:") as db:
            db.engine.now_us = lambda: 1_705_000_000_000_000
            world = World(db)
            for name, *arguments in found:
                getattr(world, name)(*arguments)
            if read_only:
                patch.setattr(searching, "_index_backlog", lambda *_: None)  # as a reader finds it
            world.search(query or "plum", None)
            assert db.check() == []
            for name in list(world.model.live):
                world.delete(name)
            world.index()
            left = db.engine.store.read(lambda txn: [key for key, _ in txn.scan(b"\x14", b"\x15")])
            assert [key for key in left if key[9] != 1] == []  # nothing but the head
            assert db.check() == []


_LETTERS = "aAbBéÉ 0_.漢字かなカ한국'-\u0301\u200d\ud800\U0001f600ß"


@given(
    st.text(st.sampled_from(_LETTERS) | st.characters(), max_size=60),
    st.lists(st.text(st.sampled_from(_LETTERS), max_size=12), max_size=4),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_spans_of_wanted_terms_are_those_of_all_that_are_wanted(text, others, places) -> None:
    """As a filter over all spans would find them; the wanted ones are looked for by their words."""
    key = bytes(range(16))
    words = search_words(text)
    query = " ".join([*others, *(words[at % len(words)] for at in places if words)])
    terms = zip(search_spans(query, key), search_words(query), strict=True)
    wanted = {term: word for (term, _, _), word in terms}
    spans = search_spans(text, key)
    assert search_spans(text, key, wanted) == [each for each in spans if each[0] in wanted]
