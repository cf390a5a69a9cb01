"""Vectors of memories: embedding behind the watermark, hybrid search, removal, grants, contexts."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
import memcore.aio
from memcore import Recall
from memcore.codec import keys
from memcore.codec.keys import SearchRow
from memcore.codec.values import seal_value
from memcore.database.redact import redact_all
from memcore.errors import EmbedderError, InvalidOptionError
from memcore.privacy import Redaction, redaction_policy
from memcore.search import cosine, embed
from memcore.search.index import ordinal_of
from memcore.search.vectors import read_vector_head, read_vectors
from tests.unit.test_search_vectors import HashedWords, rows

MEMORY = 2
"""Kind of the documents of memories in an index."""


class Topics:
    """Which topics a text is about: texts without a common word may be near."""

    id = "topics-1"
    dimensions = 4
    words = (("cat", "feline", "kitten"), ("flight", "seat", "plane"), ("tax", "invoice"))

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.answer: Any = None

    def __call__(self, texts: list[str]) -> Any:
        self.texts += texts
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.vector(text) for text in texts] if self.answer is None else self.answer

    def vector(self, text: str) -> list[float]:
        low = text.lower()
        return [*(float(any(w in low for w in topic)) for topic in self.words), 0.25]


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def db(topics):
    with memcore.open(":memory:", embedder=topics) as found:
        yield found
        assert found.check() == []


def told(mem: memcore.Memories, *texts: str, **options: Any) -> list[memcore.Memory]:
    return [mem.remember(text, by="operator", **options) for text in texts]


def texts(hits: list[Any]) -> list[str]:
    return [hit.memory.text for hit in hits]


def vector_of(db: memcore.Database, number: int) -> bytes | None:
    """Scale of a memory's stored vector; None: it is not in the index, or has none."""

    def look(txn: Any) -> bytes | None:
        head = read_vector_head(txn, 1)
        ordinal = ordinal_of(txn, 1, MEMORY, keys.u64(number))
        if head is None or ordinal is None:
            return None
        for first, block in read_vectors(txn, 1, head).blocks:
            if first <= ordinal < first + 128:
                scale = block[4 * (ordinal - first) : 4 * (ordinal - first) + 4]
                return scale if any(scale) else None
        return None

    return db.engine.store.read(look)


def scales(db: memcore.Database) -> int:
    """Number of vectors in the file."""

    def count(txn: Any) -> int:
        head = read_vector_head(txn, 1)
        blocks = [] if head is None else read_vectors(txn, 1, head).blocks
        return sum(any(block[4 * at : 4 * at + 4]) for _, block in blocks for at in range(128))

    return db.engine.store.read(count)


# --- Searching ------------------------------------------------------------------------------------


def test_a_memory_is_found_by_its_meaning(db, topics) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline", "Pays taxes", subject="alice")
    assert topics.texts == []  # remembering embeds nothing
    assert mem.search("kitten", mode="lexical") == []
    assert topics.texts == []
    for mode in ("auto", "hybrid", "vector"):
        [best, *_] = mem.search("kitten", mode=mode, explain=True)
        assert best.memory.text == "Owns a feline"
        assert best.similarity == pytest.approx(1, abs=1e-4)
    assert sorted(topics.texts) == [
        "alice: Owns a feline", "alice: Pays taxes", "kitten", "kitten", "kitten",
    ]  # fmt: skip
    assert mem.search("kitten")[0].similarity == 0.0  # told with explain alone


def test_items_and_memories_have_one_watermark(db, topics) -> None:
    chat = db.session("chat")
    chat.append({"role": "user", "content": "My cat sleeps."})
    told(chat.memory, "Owns a feline")
    assert len(chat.search("kitten")) == 1
    assert topics.texts == ["kitten", "user: My cat sleeps.", "Owns a feline"]
    assert len(chat.memory.search("kitten")) == 1
    assert topics.texts[3:] == ["kitten"]
    told(chat.memory, "Has a plane")
    assert db.index_sessions() == 0
    assert "Has a plane" in topics.texts
    assert scales(db) == 3
    known = len(topics.texts)
    db.reindex()
    assert len(topics.texts) == known + 3
    assert scales(db) == 3


def test_modes_are_checked(db) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline")
    for mode in ("semantic", "", 3, None):
        with pytest.raises(InvalidOptionError, match="mode"):
            mem.search("cat", mode=mode)
    for mode in ("vector", "hybrid"):
        with pytest.raises(InvalidOptionError, match="as_of"):
            mem.search("cat", mode=mode, as_of=0)
    now = db.engine.now_ms() / 1000 + 10
    assert texts(mem.search("feline", as_of=now)) == ["Owns a feline"]
    assert mem.search("kitten", as_of=now) == []  # the past is searched by its words
    with memcore.open(":memory:") as plain:
        mem = plain.scope().memory
        told(mem, "Owns a feline")
        assert texts(mem.search("feline")) == ["Owns a feline"]
        for mode in ("vector", "hybrid"):
            with pytest.raises(InvalidOptionError, match="embedder"):
                mem.search("feline", mode=mode)


def test_hybrid_is_the_brute_force_of_its_formula() -> None:
    words = HashedWords()
    with memcore.open(":memory:", embedder=words) as db:
        mem = db.scope().memory
        for at in range(60):
            by = "operator" if at % 2 else "import"
            mem.remember(f"w{at % 5} w{at % 11} x{at}", by=by, confidence=(at % 7) / 6)
        every = {hit.memory.id: hit for hit in mem.search("w1 w2", k=99, statuses=None)}
        assert len(every) > 30
        options = {"k": 99, "statuses": ["active"]}
        lexical = {hit.memory.id: hit for hit in mem.search("w1 w2", mode="lexical", **options)}
        hits = mem.search("w1 w2", explain=True, **options)
        active = [each.id for each in mem.list(status="active")]

        def factor(id_: int) -> float:
            confidence = mem.get(id_).confidence
            return round(100 * (1.1 * (1 + 0.05 * (2 * confidence - 1)))) / 100

        def look(txn: Any) -> dict[int, float]:
            vectors = read_vectors(txn, 1, read_vector_head(txn, 1))  # type: ignore[arg-type]
            query = embed(words, ["w1 w2"])[0]
            return {
                each: cosine(vectors, ordinal_of(txn, 1, MEMORY, keys.u64(each)), query)  # type: ignore[arg-type]
                for each in active
            }

        similar = db.engine.store.read(look)
        plain = {id_: hit.score / factor(id_) for id_, hit in lexical.items()}
        low, high, most = min(similar.values()), max(similar.values()), max(plain.values())
        wanted = {}
        for each in active:  # those in quarantine move no score
            part = 0.4 * (similar[each] - low) / (high - low)
            wanted[each] = (0.6 * plain.get(each, 0.0) / most + part) * factor(each)
        wanted = {id_: score for id_, score in wanted.items() if score > 0}
        assert {hit.memory.id: hit.score for hit in hits} == pytest.approx(wanted, abs=1e-4)
        assert {hit.memory.id: hit.similarity for hit in hits} == pytest.approx(
            {hit.memory.id: similar[hit.memory.id] for hit in hits}, abs=1e-6
        )


def test_what_is_quarantined_moves_no_score(db) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline", "Likes the window seat on a flight", "Pays taxes")
    before = [(hit.memory.id, hit.score) for hit in mem.search("cat flight", mode="vector")]
    mem.remember("cat kitten feline flight seat plane", by="import")
    after = [(hit.memory.id, hit.score) for hit in mem.search("cat flight", mode="vector")]
    assert before == after


def test_damaged_and_missing_vectors_are_built_anew(db) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline", "Pays taxes")
    mem.search("cat")
    for row, body in ((SearchRow.VECTORS, b"x" * 9), (SearchRow.VECTOR_HEAD, b"\xff" * 40)):
        [(key, _)] = rows(db, row)
        db.engine.store.transact(
            lambda txn, key=key, body=body: txn.put(key, seal_value(key, body))
        )
        assert any("vectors of a search index" in each for each in db.check())
        db.engine.indexes.forget(1)
        assert texts(mem.search("kitten", k=1)) == ["Owns a feline"]
        assert db.check() == []
    [(key, _)] = rows(db, SearchRow.VECTORS)
    db.engine.store.transact(lambda txn: txn.delete(key))
    [finding] = db.check()
    assert "2 memories that are said to be embedded have no vector" in str(finding)
    db.scope().reindex()


# --- What goes with its memory --------------------------------------------------------------------


def gone(db: memcore.Database, how: str) -> None:
    scope = db.scope()
    mem = scope.memory
    if how == "forget":
        mem.forget(1)
    elif how == "clear":
        mem.clear()
    elif how == "opt-out":
        scope.opt_out_memory()
    elif how == "erase":
        db.erase(user="default", app="default")
    elif how == "expire":
        now = db.engine.now_us()
        db.engine.now_us = lambda: now + 10**9
        db.sweep()
    else:
        db.delete_session("chat")


@pytest.mark.parametrize("how", ["forget", "clear", "opt-out", "erase", "expire", "delete"])
def test_a_vector_goes_with_its_memory(tmp_path, topics, how) -> None:
    with memcore.open(tmp_path / "a.mem", embedder=topics) as db:
        chat, mem = db.session("chat"), db.scope().memory
        chat.append({"role": "user", "content": "I own a feline"})
        expires = db.engine.now_ms() / 1000 + 100 if how == "expire" else None
        mem.remember("I own a feline", source=memcore.Source("chat", (1,)), expires_at=expires)
        assert len(mem.search("kitten")) == 1
        assert vector_of(db, 1) is not None
        gone(db, how)
        assert vector_of(db, 1) is None
        if how in ("opt-out", "erase", "delete"):
            assert rows(db, SearchRow.VECTORS) == []
        else:
            assert scales(db) == 0
        assert mem.search("kitten") == []
        assert db.check() == []


def test_a_new_version_has_a_new_vector(db, topics) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline")
    assert texts(mem.search("kitten", mode="vector")) == ["Owns a feline"]
    mem.update(1, text="Owns a plane", by="operator")
    assert vector_of(db, 1) is None
    assert texts(mem.search("flight", mode="vector", k=1)) == ["Owns a plane"]
    assert topics.texts.count("Owns a plane") == 1
    assert scales(db) == 1


def test_redaction_replaces_the_vector(tmp_path) -> None:
    words = HashedWords()
    with memcore.open(tmp_path / "a.mem", embedder=words) as db:
        mem = db.scope().memory
        told(mem, "Write to carla@example.com", "Owns a cat")
        mem.search("carla")
        policy = Redaction(redaction_policy("default"), secret=bytes(32))
        list(redact_all(db.engine, policy.for_place, write=True))
        assert vector_of(db, 1) is None
        assert vector_of(db, 2) is not None
        words.texts.clear()
        mem.search("cat")
        assert words.texts[0] == "cat"
        assert not any("carla" in text for text in words.texts)
        assert db.check() == []


@pytest.mark.parametrize("change", ["forget", "update", "opt-out", "clear"])
def test_a_change_while_the_embedder_runs_leaves_no_vector(db, topics, change) -> None:
    mem, seen = db.scope().memory, []
    told(mem, "Owns a feline", "Pays taxes")
    whole = topics.vector

    def changing(text: str) -> list[float]:
        if not seen and text == "Owns a feline":
            seen.append(text)
            if change == "forget":
                mem.forget(1)
            elif change == "update":
                mem.update(1, text="Owns a plane", by="operator")
            elif change == "clear":
                mem.clear()
            else:
                db.scope().opt_out_memory()
        return whole(text)

    topics.vector = changing
    found = texts(mem.search("kitten", mode="vector"))
    assert seen
    assert "Owns a feline" not in found
    assert scales(db) == {"forget": 1, "update": 1, "clear": 0, "opt-out": 0}[change]
    topics.vector = whole
    mem.search("kitten")
    assert scales(db) == {"forget": 1, "update": 2, "clear": 0, "opt-out": 0}[change]


@pytest.mark.parametrize(
    "answer",
    [[], [[1.0]], [[math.nan] * 4], [[math.inf, 0.0, 0.0, 0.0]], [["x"] * 4],
     RuntimeError("no connection")],
    ids=["none", "short", "nan", "infinite", "text", "raises"],
)  # fmt: skip
def test_a_wrong_answer_is_a_typed_error_and_stores_nothing(db, topics, answer) -> None:
    mem = db.scope().memory
    told(mem, "Owns a feline")
    topics.answer = answer
    with pytest.raises(EmbedderError, match="topics-1"):
        mem.search("feline")
    assert rows(db, SearchRow.VECTORS) == rows(db, SearchRow.VECTOR_HEAD) == []
    assert texts(mem.search("feline", mode="lexical")) == ["Owns a feline"]
    [answered] = mem.call(
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function",
             "function": {"name": "memory_search", "arguments": '{"query": "feline"}'}}]}
    )  # fmt: skip
    assert "Owns a feline" in str(answered)  # a model gets what the words find
    topics.answer = None
    assert texts(mem.search("kitten")) == ["Owns a feline"]


def test_a_failure_in_the_middle_keeps_what_was_embedded(db, topics) -> None:
    mem, whole = db.scope().memory, topics.vector
    told(mem, *(f"thing {at}" for at in range(200)))

    def failing(text: str) -> list[float]:
        if len(topics.texts) > 140:
            raise RuntimeError("gone")
        return whole(text)

    topics.vector = failing
    with pytest.raises(EmbedderError, match="gone"):
        mem.search("thing")
    assert scales(db) == 128
    topics.vector = whole
    mem.search("thing")
    assert scales(db) == 200


def test_a_read_only_handle_embeds_the_query_alone(tmp_path) -> None:
    path, topics = tmp_path / "a.mem", Topics()
    with memcore.open(path, embedder=topics) as db:
        told(db.scope().memory, "Owns a feline")
        db.scope().memory.search("cat")
        told(db.scope().memory, "Has a kitten")
    topics.texts.clear()
    with memcore.open(path, embedder=topics, read_only=True) as db:
        assert texts(db.scope().memory.search("cat")) == ["Owns a feline"]
        assert set(texts(db.scope().memory.search("kitten"))) == {"Owns a feline", "Has a kitten"}
        assert topics.texts == ["cat", "kitten"]
    with memcore.open(path, embedder=HashedWords("words-2", 8), read_only=True) as db:
        assert db.scope().memory.search("cat", mode="vector") == []


def test_an_encrypted_file_shows_no_vector(tmp_path) -> None:
    path, words = tmp_path / "a.mem", HashedWords()
    with memcore.open(path, embedder=words, key=bytes(range(32))) as db:
        told(db.scope().memory, "one place3 thing3 and more words than one")
        db.scope().memory.search("place3")
    plain = embed(words, ["one place3 thing3 and more words than one"])[0]
    data = path.read_bytes()
    assert plain[4:] not in data
    assert b"words-1" not in data


def test_the_asynchronous_memory_has_the_modes(topics) -> None:
    async def run() -> None:
        async with await memcore.aio.open(":memory:", embedder=topics) as db:
            mem = db.scope().memory
            await mem.remember("Owns a feline", by="operator")
            assert texts(await mem.search("kitten")) == ["Owns a feline"]
            assert await mem.search("kitten", mode="lexical") == []

    asyncio.run(run())


# --- Grants ---------------------------------------------------------------------------------------


def test_a_grant_hides_from_vectors_what_it_hides(db, topics) -> None:
    ann, bob = db.scope(user="ann").memory, db.scope(user="bob").memory
    told(ann, "Owns a feline", kind="preference")
    told(ann, "Pays taxes for a kitten", kind="event")
    ann.remember("A tool says: cat", by="import", kind="preference")
    told(bob, "Has a plane")
    ann.search("cat")
    assert texts(bob.search("cat", shared=True, mode="vector", k=1)) != ["Owns a feline"]
    grant = ann.grants.give(to=("default", "bob"), kinds=["preference"], redact=None)
    topics.texts.clear()
    hits = bob.search("kitten", shared=True, mode="vector", explain=True)
    assert {*texts(hits)} <= {"Owns a feline", "Has a plane"}
    [near] = [hit.similarity for hit in hits if hit.memory.shared_from]
    assert near == pytest.approx(1, abs=1e-4)
    assert not any("taxes" in text or "tool says" in text for text in topics.texts)
    topics.texts.clear()
    bob.search("kitten", shared=True)
    assert topics.texts == ["kitten"]  # vectors of what is shown are kept in memory
    assert bob.search("feline", shared=True, mode="lexical") != []
    ann.grants.revoke(grant)
    assert "Owns a feline" not in texts(bob.search("kitten", shared=True, mode="vector"))


def test_scores_of_a_grant_depend_on_nothing_that_it_hides() -> None:
    def scores(secret: str) -> list[tuple[str, float]]:
        with memcore.open(":memory:", embedder=Topics()) as db:
            ann, bob = db.scope(user="ann").memory, db.scope(user="bob").memory
            told(ann, "Owns a feline", "Likes a seat", kind="preference")
            told(ann, secret, kind="event")
            ann.search("cat")
            ann.grants.give(to=("default", "bob"), kinds=["preference"], redact=None)
            return [(hit.memory.text, hit.score) for hit in bob.search("cat seat", shared=True)]

    assert scores("cat seat tax") == scores("nothing") != []


def test_what_a_grant_redacts_is_not_near(tmp_path) -> None:
    words = HashedWords()
    with memcore.open(tmp_path / "a.mem", embedder=words) as db:
        ann, bob = db.scope(user="ann").memory, db.scope(user="bob").memory
        told(ann, "mail carla@example.com please")
        ann.search("mail")
        ann.grants.give(to=("default", "bob"))
        words.texts.clear()
        [hit] = bob.search("mail", shared=True, explain=True)
        assert "carla" not in hit.memory.text
        assert not any("carla" in text for text in words.texts)
        exact = cosine_of(words, "mail", hit.memory.text)
        assert hit.similarity == pytest.approx(exact, abs=1e-2)


def cosine_of(words: HashedWords, one: str, other: str) -> float:
    a, b = words.vector(one), words.vector(other)
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


# --- Contexts, and what is lent -------------------------------------------------------------------


def test_a_context_recalls_by_meaning(db, topics) -> None:
    chat = db.session("chat")
    told(chat.memory, "Owns a feline", "Has a plane")
    chat.append({"role": "user", "content": "What about my kitten?"})
    asked = Recall(query="last_user", pinned=False, budget_tokens=200)
    assert "feline" not in str(chat.context(4000, memory=asked).messages)
    assert topics.texts == []  # nothing is embedded yet, so there is nothing to compare with
    db.index_sessions()
    topics.texts.clear()
    shown = chat.context(4000, memory=asked)
    assert topics.texts == ["What about my kitten?"]
    assert "Owns a feline" in str(shown.messages)
    assert shown.memories[0].id == 1
    other = Recall(query="a flight", pinned=False, budget_tokens=200)
    assert "Has a plane" in str(chat.context(4000, memory=other).messages)


def test_a_context_is_built_without_what_fails(db, topics) -> None:
    chat = db.session("chat")
    told(chat.memory, "Owns a feline", "Has a plane")
    chat.append({"role": "user", "content": "Which plane?"})
    db.index_sessions()
    asked = Recall(query="last_user", pinned=False, budget_tokens=200)
    topics.answer = RuntimeError("gone")
    shown = str(chat.context(4000, memory=asked).messages)
    assert "Has a plane" in shown
    assert "feline" not in shown
    topics.answer = None
    [(key, _)] = rows(db, SearchRow.VECTOR_HEAD)
    db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, b"\xff" * 40)))
    assert "Has a plane" in str(chat.context(4000, memory=asked).messages)
    db.reindex()


def test_memories_lend_by_their_vectors(db) -> None:
    chat = db.session("chat")
    chat.append({"role": "user", "content": "Whiskers sleeps all day."})
    chat.append({"role": "user", "content": "It rains."})
    chat.memory.remember("Owns a feline", by="operator", source=1)
    told(chat.memory, "It rains")
    plain = {hit.seq: hit.score for hit in db.scope().search("kitten")}
    lent = {hit.seq: hit.score for hit in db.scope().search("kitten", memories=True)}
    assert lent[1] > plain[1]
    assert lent[1] - plain[1] == pytest.approx(0.5 * 0.4 * 1.1 + 0.3 * (lent[2] - plain[2]), 0.1)


WORDS = ("cat", "feline", "seat", "plane", "tax", "rain")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), TEXTS),
        st.tuples(st.just("update"), st.integers(1, 6), TEXTS),
        st.tuples(st.just("forget"), st.integers(1, 6)),
        st.tuples(st.just("search")),
        st.tuples(st.just("say"), TEXTS),
        st.tuples(st.just("clear")),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_any_history_leaves_the_vectors_of_what_is_there(steps: list[Any]) -> None:
    with memcore.open(":memory:", embedder=Topics()) as db:
        mem, chat = db.scope().memory, db.session("chat")
        for name, *rest in steps:
            if name == "remember":
                told(mem, " ".join(rest[0]))
            elif name == "update":
                known = mem.get(rest[0])
                if known is not None and known.status == "active":
                    with suppress(memcore.InvalidOptionError):  # another one says the same
                        mem.update(rest[0], text=" ".join(rest[1]), by="operator")
            elif name == "forget":
                if mem.get(rest[0]) is not None:
                    mem.forget(rest[0])
            elif name == "say":
                chat.append({"role": "user", "content": " ".join(rest[0])})
            elif name == "clear":
                mem.clear()
            else:
                mem.search("cat")
            assert db.check() == []
        found = mem.search("kitten", k=99, statuses=None, mode="vector", explain=True)
        with_vectors = [each.id for each in mem.list() if vector_of(db, each.id) is not None]
        assert with_vectors == [each.id for each in mem.list()]
        for hit in found:
            [one] = embed(Topics(), [hit.memory.text])
            [other] = embed(Topics(), ["kitten"])
            a, b = (memoryview(each[4:]).cast("b").tolist() for each in (one, other))
            exact = sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
            assert hit.similarity == pytest.approx(exact, abs=1e-6)
