"""Vectors in the file: embedding behind a watermark, hybrid search, removal, damage."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore._fast import SearchTable
from memcore.codec import keys
from memcore.codec.keys import SearchRow
from memcore.codec.values import seal_value
from memcore.errors import EmbedderError, InvalidOptionError
from memcore.search import WordLlama, cosine, embed
from memcore.search.vectors import VectorHead, Vectors, read_vector_head, read_vectors


class HashedWords:
    """Counts words in buckets: texts with the same words are near."""

    def __init__(self, id_: str = "words-1", dimensions: int = 32) -> None:
        self.id = id_
        self.dimensions = dimensions
        self.texts: list[str] = []
        self.answer: Any = None

    def __call__(self, texts: list[str]) -> Sequence[Sequence[float]]:
        self.texts += texts
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.vector(text) for text in texts] if self.answer is None else self.answer

    def vector(self, text: str) -> list[float]:
        found = [0.0] * self.dimensions
        for word in text.casefold().split():
            found[hashlib.sha256(word.encode()).digest()[0] % self.dimensions] += 1
        return found


def rows(db: memcore.Database, row: int, scope: int = 1) -> list[tuple[bytes, bytes]]:
    prefix = keys.search_rows(scope, row)
    return db.engine.store.read(lambda txn: list(txn.scan(prefix, keys.after(prefix))))


def put(key: bytes, body: bytes, txn: Any) -> None:
    txn.put(key, seal_value(key, body))


def scales(db: memcore.Database, dimensions: int = 32) -> int:
    """Number of vectors in the file."""

    def count(txn: Any) -> int:
        head = read_vector_head(txn, 1)
        assert head is not None
        blocks = read_vectors(txn, 1, head).blocks
        return sum(
            any(block[4 * at : 4 * at + 4])
            for _, block in blocks
            for at in range(len(block) // (4 + dimensions))
        )

    return db.engine.store.read(count)


def filled(db: memcore.Database, count: int = 40) -> None:
    for name in ("one", "two"):
        db.session(name).extend(
            {"role": "user", "content": f"{name} place{at} thing{at % 7}"} for at in range(count)
        )


@pytest.fixture
def words() -> HashedWords:
    return HashedWords()


def test_an_append_embeds_nothing_and_the_first_search_all(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        assert words.texts == []
        assert len(db.scope().search("thing3", k=3)) == 3
        assert len(words.texts) == 81
        assert "user: one place0 thing0" in words.texts
        db.scope().search("thing3", k=3)
        assert len(words.texts) == 82
        assert scales(db) == 80
        assert db.check() == []


@pytest.mark.parametrize("case", ["lost", "ahead"])
def test_items_that_lack_their_vectors_are_found(path, words, case) -> None:
    with memcore.open(path, embedder=words) as db:
        words.vector = lambda text: [0.0] * 32 if "place3" in text else [1.0] * 32
        filled(db)
        db.index_sessions()
        assert db.check() == []  # of zeros, too
        if case == "ahead":
            db.session("one").extend([{"role": "user", "content": "later"}] * 3)
            db.engine.embedder = None
            db.index_sessions()
            db.engine.embedder = words
        assert db.check() == []

        def plant(txn):
            if case == "lost":
                txn.delete(keys.search_vectors(1, 0))
            else:
                head = read_vector_head(txn, 1)
                put(keys.search_rows(1, SearchRow.VECTOR_HEAD), head._replace(embedded=83).pack(),
                    txn)  # fmt: skip

        db.engine.store.transact(plant)
        [finding] = db.check()
        lacking = 80 if case == "lost" else 3
        assert f"{lacking} items that are said to be embedded have no vector" in str(finding)
        db.scope().reindex()
        assert db.check() == []


def test_a_search_of_many_users_embeds_its_query_once(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        for at in range(5):
            db.session("s", user=f"user{at}").append({"role": "user", "content": "an apple"})
        assert len(db.search("apple")) == 5
        words.texts.clear()
        assert len(db.search("apple")) == 5
        assert words.texts == ["apple"]


def test_embedding_ends_while_others_go_on_indexing(path, words) -> None:
    with memcore.open(path) as other, memcore.open(path, embedder=words) as db:
        filled(db)
        real = words.vector

        def vector(text: str) -> list[float]:
            assert len(words.texts) < 200
            other.session("one").append({"role": "user", "content": "thing3 later"})
            other.index_sessions()
            return real(text)

        words.vector = vector
        assert len(db.scope().search("thing3", k=3)) == 3
        assert len(words.texts) <= 82
        words.vector = real
        db.index_sessions()
        assert db.check() == []


def test_what_shares_no_word_with_the_query_is_found_by_its_vector() -> None:
    near = HashedWords()
    near.vector = lambda text: [1.0, 0.0] if "cat" in text or "feline" in text else [0.0, 1.0]
    near.dimensions = 2
    with memcore.open(":memory:", embedder=near) as db:
        chat = db.session("chat")
        chat.append({"role": "user", "content": "My feline sleeps."})
        chat.append({"role": "user", "content": "Taxes are due."})
        assert chat.search("cat", mode="lexical") == []
        for mode in ("auto", "hybrid", "vector"):
            [best, *_] = chat.search("cat", mode=mode, explain=True)
            assert best.seq == 1
            assert best.similarity == pytest.approx(1, abs=1e-5)


def test_modes_and_embedders_are_checked(words) -> None:
    with memcore.open(":memory:") as db:
        db.session("chat").append({"role": "user", "content": "word"})
        assert len(db.scope().search("word")) == 1
        for mode in ("hybrid", "vector", "semantic", 3):
            with pytest.raises(InvalidOptionError, match="mode"):
                db.scope().search("word", mode=mode)
    for id_, dimensions in (("", 8), ("x" * 257, 8), ("x", 0), ("x", 4097), ("x", True)):
        with pytest.raises(InvalidOptionError, match="embedder"):
            memcore.open(":memory:", embedder=HashedWords(id_, dimensions))
    with pytest.raises(InvalidOptionError, match="embedder"):
        memcore.open(":memory:", embedder="wordllama")


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [[1.0]],
        [[math.nan] * 32],
        [[math.inf] + [0.0] * 31],
        [["x"] * 32],
        None.__class__,
        RuntimeError("no connection"),
    ],
    ids=["none", "short", "nan", "infinite", "text", "type", "raises"],
)
def test_a_wrong_answer_is_a_typed_error_and_stores_nothing(words, answer) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        db.session("chat").append({"role": "user", "content": "one word"})
        words.answer = answer
        with pytest.raises(EmbedderError, match="words-1"):
            db.scope().search("word")
        assert rows(db, SearchRow.VECTORS) == rows(db, SearchRow.VECTOR_HEAD) == []
        assert len(db.scope().search("word", mode="lexical")) == 1
        words.answer = None
        assert len(db.scope().search("word")) == 1


def test_a_failure_in_the_middle_keeps_what_was_embedded(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db, 100)
        whole, calls = words.vector, []

        def failing(text: str) -> list[float]:
            calls.append(text)
            if len(calls) == 150:
                raise RuntimeError("gone")
            return whole(text)

        words.vector = failing
        with pytest.raises(EmbedderError, match="gone"):
            db.index_sessions()
        assert scales(db) == 128
        db.index_sessions()
        assert scales(db) == 200
        assert len(calls) == 222


def test_removal_takes_vectors_along(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        db.index_sessions()
        assert scales(db) == 80
        db.delete_session("one")
        assert scales(db) == 40
        assert db.check() == []
        db.scope().delete_session("two")
        assert rows(db, SearchRow.VECTORS) == []
        assert db.check() == []


def test_opting_out_removes_all_vectors(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        db.index_sessions()
        db.scope().opt_out_memory()
        assert rows(db, SearchRow.VECTORS) == rows(db, SearchRow.VECTOR_HEAD) == []
        before = len(words.texts)
        assert db.scope().search("place1") == []
        assert db.index_sessions() == 0
        assert words.texts[before + 1 :] == []  # no item was embedded


def test_a_removal_while_the_embedder_runs_leaves_no_vector(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        whole, seen = words.vector, []

        def removing(text: str) -> list[float]:
            if not seen:
                seen.append(text)
                db.delete_session("one")
            return whole(text)

        words.vector = removing
        db.index_sessions()
        assert scales(db) == 40
        assert db.check() == []


def test_another_embedder_replaces_the_vectors(tmp_path) -> None:
    path = tmp_path / "a.mem"
    with memcore.open(path, embedder=HashedWords()) as db:
        filled(db)
        db.index_sessions()
    with memcore.open(path) as db:  # without one: lexical, and vectors are kept
        db.delete_session("one")
        db.session("two").append({"role": "user", "content": "two later"})
        assert db.scope().search("later")[0].seq == 41
        assert scales(db) == 39 + 1
    other = HashedWords("words-2", 8)
    with memcore.open(path, embedder=other, read_only=True) as db:
        assert db.scope().search("place3", mode="vector") == []
        assert len(db.scope().search("place3")) > 0
    with memcore.open(path, embedder=other) as db:
        assert len(db.scope().search("later", mode="vector", k=50)) > 10
        assert scales(db, 8) == 41
        assert db.check() == []


def test_damaged_rows_are_found_and_built_anew(words) -> None:
    for row, body in ((SearchRow.VECTORS, b"x" * 9), (SearchRow.VECTOR_HEAD, b"\xff" * 40)):
        with memcore.open(":memory:", embedder=words) as db:
            filled(db)
            db.index_sessions()
            [(key, _)] = rows(db, row)
            db.engine.store.transact(
                lambda txn, key=key, body=body: txn.put(key, seal_value(key, body))
            )
            assert any("vectors of a search index" in each for each in db.check())
            db.engine.indexes.forget(1)
            assert len(db.scope().search("place3")) == 10
            assert db.check() == []


def test_planted_scales_are_refused(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        db.index_sessions()
        [(key, _)] = rows(db, SearchRow.VECTORS)
        for scale in (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xbf"):
            body = scale + bytes(128 * 36 - 4)
            db.engine.store.transact(partial(put, key, body))
            assert any("impossible" in each for each in db.check())
            db.engine.indexes.forget(1)
            assert len(db.scope().search("place3")) == 10
            assert db.check() == []
            [(key, _)] = rows(db, SearchRow.VECTORS)


def test_wordllama_is_an_embedder(monkeypatch) -> None:
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "wordllama", None)
        with pytest.raises(InvalidOptionError, match=r"pip install .memcore-db\[embed\]"):
            WordLlama()
    package = pytest.importorskip("wordllama")
    model = WordLlama()
    assert model.id == f"wordllama-{package.__version__}-256"
    assert repr(model) == f"WordLlama('{model.id}')"
    assert model([]) == []
    assert len(embed(model, ["", "\ud800 half", "x" * 16_384])) == 3
    with memcore.open(":memory:", embedder=model) as db:
        chat = db.session("chat")
        chat.append({"role": "user", "content": "My kitten sleeps all day."})
        chat.append({"role": "user", "content": "Taxes are due."})
        assert [hit.seq for hit in chat.search("cat", mode="vector", k=1)] == [1]


def test_filters_apply(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        filled(db)
        found = db.scope().search("place3 thing3", k=100, sessions=["two"], mode="vector")
        assert found
        assert {hit.session_id for hit in found} == {"two"}
        assert db.scope().search("place3", kinds=["assistant"]) == []


def test_hybrid_is_the_brute_force_of_its_formula(words) -> None:
    with memcore.open(":memory:", embedder=words) as db:
        for at in range(60):  # a session each: no neighbours
            db.session(f"s{at}").append({"role": "user", "content": f"w{at % 5} w{at % 11} x{at}"})
        lexical = {h.session_id: h.score for h in db.scope().search("w1 w2", k=99, mode="lexical")}
        hits = db.scope().search("w1 w2", k=99, explain=True)
        similar = {h.session_id: h.similarity for h in hits}
        exact = embed(words, ["w1 w2"])[0]
        vectors = db.engine.store.read(
            lambda txn: read_vectors(txn, 1, read_vector_head(txn, 1))  # type: ignore[arg-type]
        )
        every = [cosine(vectors, at, exact) for at in range(60)]
        low, high, most = min(every), max(every), max(lexical.values())
        assert set(lexical) <= set(similar)
        assert len(hits) == sum(each > low for each in every)  # a score of 0 is no hit
        for hit in hits:
            part = (similar[hit.session_id] - low) / (high - low)
            score = 0.6 * lexical.get(hit.session_id, 0.0) / most + 0.4 * part
            assert hit.score == pytest.approx(score, abs=1e-6)


NUMBERS = st.integers(-99, 99).map(float)


@given(st.lists(st.lists(NUMBERS, min_size=5, max_size=5), min_size=1, max_size=9))
def test_the_scan_is_exact(vectors: list[list[float]]) -> None:
    model = HashedWords("floats", 5)
    model.answer = vectors
    packed = embed(model, [""] * len(vectors))
    block = b"".join(each[:4] for each in packed) + b"".join(each[4:] for each in packed)
    table = SearchTable(len(packed))
    for at in range(len(packed)):
        record = at.to_bytes(8, "big") * 2 + bytes(12) + bytes((1, 1, 100, 0))
        table.load(at, record)
    table.link()
    query = packed[0]
    best, _ = table.rank(
        [], [], [], k=len(packed), total=len(packed), k1=0.9, b=0.4, average=1.0, lend=0.3,
        kinds=2, roles=2**64 - 1, since=0, until=2**32 - 1, authors=b"", ranges=None,
        vectors=[(0, block)] if any(query[4:]) else [], query=query, mix=1.0,
    )  # fmt: skip
    kept = Vectors(VectorHead("floats", 5, len(packed)), [])
    assert cosine(kept, 0, query) == 0.0
    dots = {
        at: sum(
            a * b
            for a, b in zip(memoryview(each[4:]).cast("b"), memoryview(query[4:]).cast("b"),
                            strict=True)
        ) / math.sqrt(sum(a * a for a in memoryview(each[4:]).cast("b")))
        for at, each in enumerate(packed)
        if any(each[4:])
    } if any(query[4:]) else {}  # fmt: skip
    low, high = min(dots.values(), default=0), max(dots.values(), default=0)
    for at, score, own in best:
        expected = (dots[at] - low) / (high - low) if high > low else 1.0
        assert own == score == pytest.approx(expected, abs=1e-4)
    assert len(best) >= sum(
        each > low + 1e-3 * (high - low) for each in dots.values() if high > low
    )


def test_an_encrypted_file_shows_no_vector(tmp_path, words) -> None:
    path = tmp_path / "a.mem"
    with memcore.open(path, embedder=words, key=bytes(range(32))) as db:
        filled(db)
        db.index_sessions()
        plain = embed(words, ["user: one place3 thing3"])[0]
    data = path.read_bytes()
    assert plain[4:] not in data
    assert b"words-1" not in data
