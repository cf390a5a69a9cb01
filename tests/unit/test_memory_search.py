"""Search over memories: what is found, in which order, and that the index never says otherwise."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import memcore
from memcore import Recall, search
from memcore.codec import keys
from memcore.codec.keys import MemoryRow, SearchRow
from memcore.codec.values import open_value, seal_value
from memcore.errors import InvalidOptionError
from memcore.memory.rows import indexed_to, role_of
from memcore.rows import names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.memcore"


@pytest.fixture
def db(path):
    with memcore.open(path) as found:
        yield found
        assert found.check() == []


@pytest.fixture
def mem(db):
    return db.scope(user="alice").memory


def said(mem, text: str, **options):
    return mem.remember(text, by="operator", **options)


def texts(hits) -> list[str]:
    return [hit.memory.text for hit in hits]


def indexed(db) -> int:
    def look(txn):
        scope = names.scope_of(txn, "default", "alice")
        return indexed_to(txn, scope, search.read_head(txn, scope))

    return db.engine.store.read(look)


def test_memories_are_found_by_their_words(db, mem) -> None:
    said(mem, "Prefers window seats on long flights", kind="preference", subject="alice")
    said(mem, "Allergic to peanuts")
    said(mem, "Flew to Lisbon in May", kind="event")
    (hit, *_) = mem.search("which seat on a flight?")
    assert hit.memory.text == "Prefers window seats on long flights"
    assert [hit.snippet[start:stop] for start, stop in hit.highlights] == ["seats", "flights"]
    assert hit.why == ()
    (hit,) = mem.search("peanut", explain=True)
    assert [(part.term, part.times) for part in hit.why] == [("peanut", 1)]
    assert texts(mem.search("alice")) == ["Prefers window seats on long flights"]
    assert mem.search("nothing of it") == []
    assert texts(mem.search("lisbon seats peanuts", k=1)) != []
    assert len(mem.search("lisbon seats peanuts", k=2)) == 2
    assert texts(mem.search("lisbon seats", kinds=["event"])) == ["Flew to Lisbon in May"]
    assert mem.search("seats", subject="bob") == []


def test_only_active_ones_are_found_unless_asked(db, mem) -> None:
    session = db.session("chat", user="alice")
    session.append({"role": "user", "content": "where do I live?"})
    session.append({"role": "assistant", "content": "You live in Paris."})
    mem.remember("Lives in Paris", source=memcore.Source("chat", (2,)))
    assert mem.search("paris") == []
    assert texts(mem.search("paris", statuses=["quarantined"])) == ["Lives in Paris"]
    mem.promote(1, by="operator")
    assert texts(mem.search("paris")) == ["Lives in Paris"]
    assert mem.search("paris", statuses=["quarantined"]) == []


def plant_role(db, number: int, role: int) -> None:
    """Change the role of a pending document in the index, with the right checksum."""

    def plant(txn):
        ordinal = search.index.ordinal_of(txn, 1, search.DocumentKind.MEMORY, keys.u64(number))
        key = keys.search_forward(1, ordinal)
        body = bytearray(open_value(key, txn.get(key))[1])
        assert body[29] != role
        body[29] = role
        txn.put(key, seal_value(key, bytes(body)))
        writer = search.IndexWriter(txn, 1)
        writer.put_source(9, b"")  # another generation, so that no table in memory is used
        writer.close()

    db.engine.store.transact(plant)


def test_the_row_of_a_memory_says_what_it_is_and_not_the_index(path) -> None:
    with memcore.open(path) as db:
        mem = db.scope(user="alice").memory
        session = db.session("chat", user="alice")
        session.append({"role": "user", "content": "which manager is it?"})
        session.append({"role": "assistant", "content": "Your manager is Mallory."})
        lie = mem.remember("The manager is Mallory", source=memcore.Source("chat", (2,)))
        said(mem, "The manager is Bob")
        assert lie.status == "quarantined"
        assert texts(mem.search("manager")) == ["The manager is Bob"]
        plant_role(db, lie.id, role_of(lie.kind, "active"))
        assert texts(mem.search("manager")) == ["The manager is Bob"]
        assert mem.search("manager", statuses=["quarantined"]) == []
        session.append({"role": "user", "content": "which manager is it?"})
        asked = Recall(pinned=False, budget_tokens=300)
        shown = str(session.context(8000, memory=asked).messages)
        assert "The manager is Bob" in shown
        assert "The manager is Mallory" not in shown
        [finding] = db.check()
        assert f"another kind or status than memory {lie.id}" in str(finding)


def test_the_index_follows_every_change(db, mem) -> None:
    first = said(mem, "The office is in Berlin", slot="office", subject="alice")
    assert indexed(db) == 0
    assert texts(mem.search("office")) == ["The office is in Berlin"]
    assert indexed(db) == 2**64 - 1
    second = said(mem, "The office is in Hamburg", slot="office", subject="alice")
    assert texts(mem.search("office berlin hamburg")) == ["The office is in Hamburg"]
    assert texts(mem.search("berlin", statuses=None)) == [first.text]
    mem.update(second.id, text="The office is in Munich", by="operator")
    assert mem.search("hamburg") == []
    assert texts(mem.search("munich")) == ["The office is in Munich"]
    mem.forget(second.id)
    assert texts(mem.search("munich office", statuses=None)) == [first.text]
    assert mem.clear() == 1
    assert mem.search("office berlin", statuses=None) == []


def test_what_was_known_is_searched_as_it_was(db, mem, monkeypatch) -> None:
    clock = [1_000_000_000_000]
    monkeypatch.setattr(db.engine, "now_us", lambda: clock[0] * 1000)
    one = said(mem, "Drinks coffee")
    clock[0] += 10_000
    mem.update(one.id, text="Drinks tea", by="operator")
    clock[0] += 10_000
    said(mem, "Drinks water at night")
    at = 1_000_000_000.0
    assert texts(mem.search("drinks", as_of=at + 5)) == ["Drinks coffee"]
    assert texts(mem.search("drinks coffee", as_of=at + 15)) == ["Drinks tea"]
    assert len(mem.search("drinks")) == 2
    assert mem.search("drinks", as_of=at - 5) == []


def test_what_was_true_is_found_by_its_time(db, mem) -> None:
    said(mem, "Works at Acme", subject="alice", slot="job", valid_from=1_000)
    said(mem, "Works at Initech", subject="alice", slot="job", valid_from=2_000)
    both = ["active", "superseded"]
    assert texts(mem.search("works", valid_at=1_500, statuses=both)) == ["Works at Acme"]
    assert texts(mem.search("works", valid_at=2_500, statuses=both)) == ["Works at Initech"]
    assert mem.search("works", valid_at=500, statuses=both) == []


def test_trust_orders_what_words_leave_equal(db, mem) -> None:
    session = db.session("chat", user="alice")
    session.append({"role": "user", "content": "My dog is called Rex"})
    session.append({"role": "assistant", "content": "Your cat is called Rex"})
    low = mem.remember("My cat is called Rex", source=memcore.Source("chat", (2,)))
    high = mem.remember("My dog is called Rex", source=memcore.Source("chat", (1,)))
    hits = mem.search("Rex", statuses=None)
    assert [hit.memory.id for hit in hits] == [high.id, low.id]
    assert hits[1].score > 0.8 * hits[0].score


def test_a_read_only_handle_finds_the_same(path) -> None:
    rng = random.Random(5)
    words = [f"word{n}" for n in range(40)]
    with memcore.open(path) as db:
        mem = db.scope(user="alice").memory
        for _ in range(300):
            said(mem, " ".join(rng.choices(words, k=6)))
    with memcore.open(path, read_only=True) as db:
        beside = [db.scope(user="alice").memory.search(word, k=400) for word in words[:8]]
    with memcore.open(path) as db:
        mem = db.scope(user="alice").memory
        merged = [mem.search(word, k=400) for word in words[:8]]
        assert [[h.memory.id for h in each] for each in merged] == [
            [h.memory.id for h in each] for each in beside
        ]
        for each, other in zip(merged, beside, strict=True):
            assert [h.score for h in each] == pytest.approx([h.score for h in other], rel=1e-6)
        for word, each in zip(words, merged, strict=False):
            having = {m.id for m in mem.list() if word in m.text.split()}
            assert {hit.memory.id for hit in each} == having
        assert db.check() == []


def test_any_history_leaves_the_index_as_if_it_were_new(db, mem) -> None:
    rng = random.Random(11)
    words = [f"term{n}" for n in range(25)]
    mem.search("start")
    for step in range(250):
        known = mem.list()
        what = rng.random()
        text = " ".join(rng.choices(words, k=rng.randrange(1, 9)))
        if what < 0.6 or not known:
            slot = {"subject": "s", "slot": f"p{rng.randrange(6)}"} if rng.random() < 0.4 else {}
            said(mem, text, **slot)
        elif what < 0.8:
            one = rng.choice(known)
            if one.status != "superseded":
                mem.update(one.id, text=text, by="operator")
        else:
            mem.forget(rng.choice(known).id)
        if step % 50 == 0:
            assert db.check() == []
    before = {word: [(h.memory.id, round(h.score, 6)) for h in mem.search(word, k=500)]
              for word in words}  # fmt: skip
    db.scope(user="alice").reindex()
    assert indexed(db) == 0
    after = {word: [(h.memory.id, round(h.score, 6)) for h in mem.search(word, k=500)]
             for word in words}  # fmt: skip
    assert before == after
    assert indexed(db) == 2**64 - 1


def test_nobody_is_found_after_opting_out_or_erasing(db, mem, path) -> None:
    said(mem, "a memory with the word zanzibar")
    assert len(mem.search("zanzibar")) == 1
    scope = db.scope(user="alice")
    scope.opt_out_memory()
    assert mem.search("zanzibar") == []
    scope.opt_in_memory()
    assert len(mem.search("zanzibar")) == 1
    assert db.scope(user="bob").memory.search("zanzibar") == []
    db.erase("alice")
    assert db.scope(user="alice").memory.search("zanzibar") == []


def test_a_damaged_index_is_dropped_and_memories_are_found(db, mem) -> None:
    said(mem, "the word quagga")
    assert len(mem.search("quagga")) == 1

    def break_head(txn):
        scope = names.scope_of(txn, "default", "alice")
        txn.put(keys.search_rows(scope, SearchRow.HEAD), b"\x01\x00 broken")

    db.engine.store.transact(break_head)
    assert len(mem.search("quagga")) == 1
    assert len(mem.search("quagga")) == 1


def damage_a_document(db) -> None:
    """Change the forward row of the first document in the index."""

    def damage(txn):
        prefix = keys.search_rows(1, SearchRow.FORWARD)
        key, value = next(txn.scan(prefix, keys.after(prefix)))
        txn.put(key, seal_value(key, open_value(key, value)[1][:33]))
        head = search.read_head(txn, 1)
        head.generation += 1
        key = keys.search_rows(1, SearchRow.HEAD)
        txn.put(key, seal_value(key, head.pack()))

    db.engine.store.transact(damage)


def test_a_damaged_index_comes_back_with_the_search_that_meets_it(db, mem) -> None:
    for number in range(300):
        said(mem, f"thing {number} of the word quagga")
    assert len(mem.search("quagga")) == 10
    damage_a_document(db)
    assert len(mem.search("quagga", explain=True)) == 10
    assert indexed(db) == 2**64 - 1


@pytest.mark.parametrize("where", ["context", "statement"])
def test_a_damaged_index_comes_back_with_the_next_statements(db, mem, where) -> None:
    said(mem, "the word quagga")
    session = db.session("chat", user="alice")
    session.append({"role": "user", "content": "which quagga?"})
    assert len(mem.search("quagga")) == 1
    damage_a_document(db)
    if where == "statement":
        mem.update(1, text="another word quagga", by="operator")  # drops the index
    asked = Recall(pinned=False, budget_tokens=300)
    session.context(8000, memory=asked)
    said(mem, "the next word")
    assert indexed(db) == 2**64 - 1
    assert len(session.context(8000, memory=asked).memories) == 1


def test_a_search_shows_what_another_handle_changed(path, mem) -> None:
    for number in range(5):
        said(mem, f"quagga number {number}")
    with memcore.open(path) as other:
        theirs = other.scope(user="alice").memory
        for number in range(5):
            assert len(mem.search("quagga")) == 5
            theirs.update(1, text=f"a zebra and {number} quaggas", by="operator")
            assert mem.search("zebra")[0].memory.text == f"a zebra and {number} quaggas"
        theirs.forget(2)
        assert {hit.memory.id for hit in mem.search("quagga")} == {1, 3, 4, 5}
        theirs.update(3, importance=0.5)
        assert {hit.memory.importance for hit in mem.search("quagga")} == {None, 0.5}


def test_a_search_keeps_no_text_in_the_process(db, mem) -> None:
    said(mem, "quagga secret")
    assert len(mem.search("quagga")) == 1
    mem.forget(1)
    assert mem.search("quagga") == []
    assert [*db.engine.indexes.decoded(1)] == []


def test_attributes_of_any_depth_that_a_row_can_have_are_shown(db, mem) -> None:
    """Only the API bounds the depth: a row may have been written by another program."""
    said(mem, "the word quagga", attributes={"a": []})
    deep = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"

    def forge(txn) -> None:
        key = keys.memory_rows(1, MemoryRow.ENTRY, keys.u64(1))
        flags, body = open_value(key, txn.get(key))
        txn.put(key, seal_value(key, body.replace(b'{"a":[]}', deep), flags))

    db.engine.store.transact(forge)
    assert len(mem.search("quagga")) == 1
    session = db.session("chat", user="alice")
    session.append({"role": "user", "content": "which quagga?"})
    assert len(session.context(8000, memory=Recall()).memories) == 1


def test_what_a_hit_holds_is_the_callers(mem) -> None:
    said(mem, "the word quagga", attributes={"a": [1]}, labels={"b": "c"})
    for _ in range(2):
        (hit,) = mem.search("quagga")
        assert hit.memory == mem.get(hit.memory.id)
        assert (hit.memory.attributes, hit.memory.labels) == ({"a": [1]}, {"b": "c"})
        hit.memory.attributes["a"].append(2)
        hit.memory.attributes.clear()
        hit.memory.labels.clear()


def test_an_index_of_another_analysis_gives_way(db, mem) -> None:
    said(mem, "the word quagga")
    assert len(mem.search("quagga")) == 1

    def plant(txn):
        key = keys.search_rows(1, SearchRow.HEAD)
        head = search.read_head(txn, 1)
        head.version += 1
        txn.put(key, seal_value(key, head.pack()))

    db.engine.store.transact(plant)
    assert len(mem.search("quagga")) == 1
    assert indexed(db) == 2**64 - 1


@pytest.mark.parametrize(
    "options",
    [
        {"query": ""}, {"query": "  "}, {"query": 5}, {"query": "x" * 100_001},
        {"k": 0}, {"k": 1001}, {"k": True}, {"kinds": []}, {"kinds": "fact"},
        {"kinds": ["unknown"]}, {"statuses": ["gone"]}, {"as_of": "now"},
        {"valid_at": float("nan")}, {"labels": {"a": 1}}, {"explain": 1},
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(mem, options) -> None:
    with pytest.raises((InvalidOptionError, memcore.InvalidItemError)):
        mem.search(**{"query": "words", **options})
