"""MemcoreMemoryService: memories found by their words, the best first, and never stored twice.

ADK promises memories that match the query, in no order. Its service in memory takes any shared word
for a match, stop words included, and a part of a word in scripts without spaces; memcore matches
and ranks by the terms of ``memcore.search``, so tests of those rules compare with these terms.
"""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import get_ident
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import search
from memcore.adapters.adk import MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.adk import memory as service_module
from memcore.adapters.adk import memory_rows as memories
from memcore.adapters.adk.memory import Watermark
from memcore.adapters.adk.names import END, label
from memcore.codec.keys import Kind
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.kv import transaction_of
from memcore.store.commit import CommitLatency
from raw import rows

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "25"))
WHO = {"app_name": "app", "user_id": "u"}


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def event(text: str | None, id_: str | None = None, **fields: Any) -> Event:
    content = None if text is None else types.Content(role="user", parts=[types.Part(text=text)])
    more = {} if id_ is None else {"id": id_}
    return Event(author="user", content=content, timestamp=fields.pop("at", 5.25), **more, **fields)


def session(events: list[Event], id_: str = "s", **who: str) -> Session:
    return Session(id=id_, **{**WHO, **who}, events=events)


def found(service: Any, query: str, **who: str) -> list[str]:
    response = run(service.search_memory(**{**WHO, **who}, query=query))
    return [entry.id for entry in response.memories]


@pytest.fixture
def durability() -> str:
    return "none"


@pytest.fixture
def service(db) -> MemcoreMemoryService:
    return MemcoreMemoryService(db)


# --- against ADK's own ----------------------------------------------------------------------------

WORDS = ["Python", "python", "toolkit", "I", "the", "ADK", "東京", "京都", "東", "私はPythonを使う"]
WORDS += [
    "Cafe\u0301",
    "café",
    "CAFÉ",
    "İstanbul",
    "istanbul",
    "ΟΔΟΣ",
    "οδος",
    "ς'\u0391",
    "日本語テキスト",
]
WORDS += [
    "日本",
    "本語テ",
    "한국어를",
    "한국",
    "naïve",
    "_x_1",
    "x1",
    "ﬁne",
    "Straße",
    "STRASSE",
    "é",
    "thon",
]
WORDS += [
    "使う",
    "を使",
    "e\u0301",
    "1東京2",
    "٣٤",
    "\U0001d4b3yz",
    "👍",
    "नमस्ते",
    "\ud800",
    "w" * 200,
    "語" * 60,
]
texts = st.lists(st.sampled_from(WORDS), max_size=6).flatmap(
    lambda words: st.sampled_from(["", " ", ", ", "。"]).map(lambda between: between.join(words))
)
ids = st.sampled_from([f"e{number}" for number in range(12)])
sessions = st.sampled_from(["s1", "s2"])
users = st.sampled_from(["u", "u2"])
operation = (
    st.tuples(st.just("events"), users, sessions, st.lists(st.tuples(ids, texts), max_size=4))
    | st.tuples(st.just("session"), users, sessions, st.lists(texts, max_size=4))
    | st.tuples(st.just("delete"), users, ids)
    | st.tuples(st.just("search"), users, texts)
)


def shown(entries: list[MemoryEntry]) -> list[tuple]:
    return [(each.id, each.author, each.timestamp, each.content) for each in entries]


def indexed(service: MemcoreMemoryService, user: str = "u") -> int:
    """The number of memories in the search index."""

    def look(view: Any) -> int:
        txn, scope = transaction_of(view)
        kind = search.DocumentKind.ADK
        return 0 if scope is None else sum(1 for _ in search.documents_of(txn, scope, kind))

    return service._kv("app", user).read(look)


def drop_index(service: MemcoreMemoryService, user: str = "u") -> None:
    kv = service._kv("app", user)
    if kv.read(lambda view: transaction_of(view)[1]) is not None:
        kv.transact(lambda txn: search.drop_index(*transaction_of(txn)))
        run_removals(service.database)


def run_removals(db: memcore.Database) -> None:
    from memcore.session.delete import resume_removals

    resume_removals(db.engine.store)


def matches(text: str, query: str) -> bool:
    """Whether a text has a term of a query."""
    key = bytes(16)
    wanted = search.Query(query).terms(key)
    return any(term in wanted for term in search.Query(text).terms(key))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(operation, max_size=12), texts, st.integers(0, 2))
def test_what_is_found_is_what_has_a_word_of_the_query(operations, last, eager) -> None:
    """However much of it is indexed, and in the order of an index that is built at once."""

    async def main() -> None:
        live: dict[str, dict[tuple[str, str], str]] = {"u": {}, "u2": {}}
        dead: dict[str, set[str]] = {"u": set(), "u2": set()}
        said: dict[str, str] = {}
        grown: dict[tuple[str, str], list[Event]] = {}
        with memcore.open(":memory:") as db:
            ours = MemcoreMemoryService(db, max_results=100)
            for what, user, *rest in [*operations, ("search", "u", last)]:
                who = {"app_name": "app", "user_id": user}
                if what == "events":
                    events = [event(said.setdefault(id_, text), id_) for id_, text in rest[1]]
                    await ours.add_events_to_memory(**who, session_id=rest[0], events=events)
                elif what == "session":
                    events = grown.setdefault((user, rest[0] + "grown"), [])
                    more = [
                        event(t, f"{rest[0]}.{len(events)}.{at}") for at, t in enumerate(rest[1])
                    ]
                    events += more
                    said.update({each.id: each.content.parts[0].text for each in more})
                    await ours.add_session_to_memory(
                        session(events, rest[0] + "grown", user_id=user)
                    )
                elif what == "delete":
                    await ours.delete_memory(**who, memory_id=rest[0])
                    known = [key for key in live[user] if key[0] == rest[0]]
                    dead[user] |= {rest[0]} if known else set()
                    for key in known:
                        del live[user][key]
                if what in ("events", "session"):
                    name = rest[0] if what == "events" else rest[0] + "grown"
                    for each in events:
                        if each.id not in dead[user] and memories._WORD.search(said[each.id]):
                            live[user].setdefault((each.id, name), said[each.id])
                if eager == 2 or (what == "search" and eager):
                    memories.index_memories(ours._kv("app", user))
                if what != "search":
                    continue
                found = (await ours.search_memory(**who, query=rest[0])).memories
                wanted = [id_ for (id_, _), text in live[user].items() if matches(text, rest[0])]
                assert sorted(each.id for each in found) == sorted(wanted)
                drop_index(ours, user)
                again = (await ours.search_memory(**who, query=rest[0])).memories
                assert shown(again) == shown(found)
            assert db.check() == []

    run(main())


LANGUAGES = [
    ("私はPythonを使う", "Python", True),
    ("私はPythonを使う", "thon", False),
    ("東京に住んでいます", "東京", True),
    ("東京に住んでいます", "京都", False),
    ("我喜欢编程", "编程", True),
    ("한국어를 배워요", "한국어", True),
    ("Caf\u00e9", "cafe\u0301", True),
    ("cafe", "café", False),
    ("\uff21\uff24\uff2b", "adk", True),
    ("Привет мир", "привет", True),
    ("she runs daily", "running", True),
]


@pytest.mark.parametrize(("text", "query", "is_found"), LANGUAGES)
def test_languages(service, text, query, is_found) -> None:
    run(service.add_session_to_memory(session([event(text, "e")])))
    assert found(service, query) == (["e"] if is_found else [])


# --- ranking --------------------------------------------------------------------------------------


def test_most_words_first_then_rare_ones(service) -> None:
    events = [event(f"common {number}", f"c{number}") for number in range(8)]
    events += [event("rare", "rare"), event("rare common", "both"), event("other", "none")]
    run(service.add_session_to_memory(session(events)))
    first, second, *rest = found(service, "common rare")
    assert (first, second) == ("both", "rare")
    assert sorted(rest) == [f"c{number}" for number in range(8)]


def test_a_model_counts_less_than_a_user(service) -> None:
    def said(role: str, id_: str) -> Event:
        content = types.Content(role=role, parts=[types.Part(text="the blue bicycle")])
        return Event(id=id_, author=role, content=content, timestamp=5.0)

    for name, role in (("s1", "model"), ("s2", "user")):
        run(service.add_session_to_memory(session([said(role, role)], name)))
    run(
        service.add_memory(**WHO, memories=[MemoryEntry(id="m", content=said("model", "").content)])
    )
    assert found(service, "blue")[-1] == "model"
    assert set(found(service, "blue")) == {"model", "user", "m"}


def test_a_neighbour_lifts_what_matches_and_is_not_found_itself(service) -> None:
    """An answer often lacks the words of its question; ADK promises what matches the query."""
    for name, before in (("s1", "nothing here"), ("s2", "which bicycle do you like?")):
        events = [event(before, f"{name}.q"), event("the blue one", f"{name}.a")]
        run(service.add_session_to_memory(session(events, name)))
    assert found(service, "blue bicycle") == ["s2.q", "s2.a", "s1.a"]


def test_authors_and_months_are_words(service) -> None:
    at = datetime(2023, 5, 8).timestamp()  # noqa: DTZ001 - local time, as in ADK
    for number, author in enumerate(("Caroline", "Melanie", "user")):
        one = event("paints", f"e{number}", at=at + number * 40 * 86400)
        run(service.add_events_to_memory(**WHO, events=[one.model_copy(update={"author": author})]))
    assert found(service, "Caroline paints")[0] == "e0"
    assert found(service, "Melanie") == ["e1"]
    assert found(service, "July") == ["e2"]
    assert found(service, "user") == []


def test_ten_are_returned_unless_asked_otherwise(service, db) -> None:
    events = [event("alike", f"e{number}") for number in range(30)]
    run(service.add_session_to_memory(session(events)))
    assert len(found(service, "alike")) == 10
    assert len(found(MemcoreMemoryService(db, max_results=25), "alike")) == 25
    assert len(found(MemcoreMemoryService(db, max_results=10**9), "alike")) == 30
    for wrong in (0, -1, True, "5", 2.0):
        with pytest.raises(InvalidOptionError):
            MemcoreMemoryService(db, max_results=wrong)


def test_a_search_reads_what_it_finds_and_not_the_memory(db, service, monkeypatch) -> None:
    events = [event(f"filler {number} words {number % 7}", f"e{number}") for number in range(400)]
    run(service.add_session_to_memory(session([*events, event("needle", "it")])))
    assert found(service, "needle") == ["it"]  # indexes them
    read: list[Any] = []
    real = memories._content_of
    monkeypatch.setattr(memories, "_content_of", lambda *args: read.append(args) or real(*args))
    assert found(service, "needle") == ["it"]
    assert len(read) == 1


# --- the index ------------------------------------------------------------------------------------


def test_few_new_memories_are_read_and_many_are_indexed(db, service) -> None:
    def add(first: int, count: int) -> None:
        events = [event(f"apple {n}", f"e{n}") for n in range(first, first + count)]
        run(service.add_events_to_memory(**WHO, events=events))

    add(0, memories.BEHIND_MAX)
    before = writes(db)
    assert len(found(service, "apple")) == 10
    assert writes(db) == before
    add(100, 1)
    assert len(found(service, "apple")) == 10
    assert indexed(service) == memories.BEHIND_MAX + 1
    add(200, 300)
    assert found(service, "299") == ["e299"]
    assert indexed(service) == memories.BEHIND_MAX + 301
    assert db.check() == []


def test_what_is_deleted_or_replaced_leaves_the_index_at_once(db, service) -> None:
    events = [event(f"apple {n}", f"e{n}") for n in range(40)]
    run(service.add_events_to_memory(**WHO, events=events))
    run(service.add_memory(**WHO, memories=[entry("pear", id="m")]))
    assert found(service, "pear") == ["m"]
    assert indexed(service) == 41
    run(service.delete_memory(**WHO, memory_id="e7"))
    assert indexed(service) == 40
    run(service.add_memory(**WHO, memories=[entry("plum", id="m")]))
    assert indexed(service) == 39
    assert found(service, "pear") == []
    assert found(service, "plum") == ["m"]
    assert db.check() == []


def test_the_index_of_an_earlier_version_is_replaced(db, service) -> None:
    """Its rows of terms begin with "t"; the rows of the memories are the same as today."""
    run(service.add_events_to_memory(**WHO, events=[event("apple", "a"), event("pear", "b")]))
    kv = service._kv("app", "u")

    def earlier() -> None:
        for ordinal, word in enumerate(("apple", "pear"), 1):
            kv.put("t" + label("w" + word, 120) + END + "g", ordinal.to_bytes(4, "little"))

    def left() -> list[str]:
        return [key for key, _ in kv.scan("t", "u")]

    earlier()
    assert found(service, "apple") == ["a"]
    assert left() == []
    assert indexed(service) == 2
    earlier()
    run(service.delete_memory(**WHO, memory_id="a"))
    assert left() == []
    earlier()
    run(service.add_memory(**WHO, memories=[entry("plum", id="m")]))
    assert left() == []
    assert (found(service, "apple"), found(service, "pear")) == ([], ["b"])


def test_a_file_of_an_earlier_version_is_searched_read_only(path) -> None:
    with MemcoreMemoryService(path) as service:
        run(service.add_events_to_memory(**WHO, events=[event("apple", "a")]))
        service._kv("app", "u").put("t=wapple\0g", (1).to_bytes(4, "little"))
    with memcore.open(path, read_only=True) as db:
        assert found(MemcoreMemoryService(db), "apple") == ["a"]


def test_a_namespace_that_was_cleared_has_no_words_left(db, service) -> None:
    kv = service._kv("app", "u")
    for again in range(2):
        events = [event(f"secret {n}", f"e{again}.{n}") for n in range(40)]
        run(service.add_events_to_memory(**WHO, events=events))
        assert len(found(service, "secret")) == 10
        assert indexed(service) == 40
        kv.clear()
        if again:
            assert found(service, "secret") == []
            assert indexed(service) == 0
        else:
            run(service.add_events_to_memory(**WHO, events=[event("apple", "a")]))
            assert found(service, "secret") == []
            assert found(service, "apple") == ["a"]
            kv.clear()


@pytest.mark.parametrize("damage", ["head", "progress", "analysis"])
def test_a_damaged_index_is_built_anew(db, service, damage, caplog) -> None:
    run(
        service.add_events_to_memory(
            **WHO, events=[event(f"apple {n}", f"e{n}") for n in range(40)]
        )
    )
    assert len(found(service, "apple")) == 10

    def spoil(txn: Any) -> None:
        inner, scope = transaction_of(txn)
        writer = search.IndexWriter(inner, scope)
        if damage == "progress":
            writer.put_source(search.DocumentKind.ADK, b"short")
        else:
            writer.head.version = 0 if damage == "analysis" else writer.head.version
            writer.head.merged = 10**9 if damage == "head" else writer.head.merged
            writer.put_source(search.DocumentKind.ADK, bytes(8))
        writer.close()

    service._kv("app", "u").transact(spoil)
    assert len(found(service, "apple")) == 10
    run(service.add_events_to_memory(**WHO, events=[event("apple", f"f{n}") for n in range(40)]))
    assert len(found(service, "apple")) == 10
    assert indexed(service) == 80
    assert db.check() == []


def test_without_the_row_of_the_count_nothing_is_lost(db, service) -> None:
    """As after a salvage that could not prove that row."""
    run(
        service.add_events_to_memory(
            **WHO, events=[event(f"apple {n}", f"e{n}") for n in range(40)]
        )
    )
    service._kv("app", "u").delete("h")
    assert len(found(MemcoreMemoryService(db, max_results=100), "apple")) == 40
    run(service.add_events_to_memory(**WHO, events=[event("apple", "later")]))
    assert len(found(MemcoreMemoryService(db, max_results=100), "apple")) == 41
    assert service._kv("app", "u").get("h") == [41, 41]


def test_rows_beyond_the_count_keep_nobody_waiting(db, service) -> None:
    events = [event(f"apple {n}", f"e{n}") for n in range(600)]
    run(service.add_events_to_memory(**WHO, events=events))
    service._kv("app", "u").put("h", [40, 40])
    assert len(found(MemcoreMemoryService(db, max_results=1000), "apple")) == 40
    service._kv("app", "u").put("h", [600, 600])
    assert len(found(MemcoreMemoryService(db, max_results=1000), "apple")) == 600
    service._kv("app", "u").put("h", [30, 30])
    assert len(found(MemcoreMemoryService(db, max_results=1000), "apple")) == 30


def test_a_planted_count_keeps_nobody_waiting(service) -> None:
    run(service.add_events_to_memory(**WHO, events=[event("apple", "a")]))
    service._kv("app", "u").put("h", [2**31, 1])
    assert found(service, "apple") == ["a"]
    run(service.add_events_to_memory(**WHO, events=[event("apple", "b")]))
    assert set(found(MemcoreMemoryService(service.database), "apple")) == {"a", "b"}


@pytest.mark.parametrize("query", ["", " ", "?!", "👍"])
def test_a_query_without_words_finds_nothing(service, query) -> None:
    run(service.add_session_to_memory(session([event("? 👍 text", "e")])))
    assert found(service, query) == []


@pytest.mark.parametrize("at", [1e300, -1e12, float("nan"), float("inf")])
def test_a_time_that_is_none_hides_nothing(service, at) -> None:
    run(service.add_session_to_memory(session([event("text", "a"), event("text", "b", at=at)])))
    b, a = run(service.search_memory(**WHO, query="text")).memories
    assert (b.id, b.timestamp) == ("b", None)
    assert (a.id, a.timestamp) == ("a", datetime.fromtimestamp(5.25).isoformat())  # noqa: DTZ006


def test_what_a_newer_adk_wrote_is_found_without_what_is_unknown(service) -> None:
    long = "text " + "x" * 10_000
    run(service.add_session_to_memory(session([event("text", "a"), event(long, "b")])))
    kv = service._kv("app", "u")

    def change(txn: Any) -> None:
        row = txn.get("e00000001")
        row["content"]["unheard_of"] = 1
        row["content"]["parts"][0]["newer"] = {"a": 1}
        txn.put("e00000001", row)
        row = txn.get("e00000002")
        content = json.loads(txn.content("e00000002"))
        content["parts"].append({"newer_part": {}})
        txn.put("e00000002", row, content=json.dumps(content).encode())

    kv.transact(change)
    a, b = run(service.search_memory(**WHO, query="text")).memories
    assert (a.id, a.content) == ("a", event("text").content)
    assert (b.id, b.content.parts[0].text) == ("b", long)
    run(service.delete_memory(**WHO, memory_id="a"))
    assert found(service, "text") == ["b"]


# --- whose memories -------------------------------------------------------------------------------

TWINS = [("a", "b/c"), ("a/b", "c"), ("a\x00", "b"), ("a", "\x00b"), ("=", "#"), ("A", "b/c")]


def test_nobody_finds_what_is_of_others(service) -> None:
    for number, (app, user) in enumerate(TWINS):
        one = session([event(f"secret {number}", f"e{number}")], app_name=app, user_id=user)
        run(service.add_session_to_memory(one))
    for number, (app, user) in enumerate(TWINS):
        assert found(service, "secret", app_name=app, user_id=user) == [f"e{number}"]
        run(service.delete_memory(app_name=app, user_id="nobody", memory_id=f"e{number}"))
    assert found(service, "secret", user_id="nobody") == []


# --- once, and not again --------------------------------------------------------------------------


def writes(db: memcore.Database) -> Any:
    return rows(db.engine.store)


def test_what_was_handed_in_or_out_is_nobody_elses(service) -> None:
    given = event("before", "e")
    run(service.add_session_to_memory(session([given])))
    given.content.parts[0].text = "after"
    (entry,) = run(service.search_memory(**WHO, query="before")).memories
    entry.content.parts[0].text = "after"
    entry.custom_metadata["k"] = "v"
    (entry,) = run(service.search_memory(**WHO, query="before")).memories
    assert (entry.content.parts[0].text, entry.custom_metadata) == ("before", {})


def test_a_session_that_comes_again_writes_nothing(db, service) -> None:
    events = [event(f"number {number}", f"e{number}") for number in range(5)]
    run(service.add_session_to_memory(session(events)))
    before = writes(db)
    run(service.add_session_to_memory(session(events)))
    run(service.add_events_to_memory(**WHO, session_id="s", events=events[2:4]))
    assert writes(db) == before
    run(service.add_session_to_memory(session([*events, event("number 5", "e5")])))
    assert len(found(service, "number")) == 6


def test_the_same_id_of_another_session_is_another_memory(service) -> None:
    theirs = InMemoryMemoryService()
    for one in (service, theirs):
        for name in ("s", "t"):
            run(one.add_session_to_memory(session([event("twin", "e")], name)))
        run(one.add_events_to_memory(**WHO, events=[event("twin", "e")]))
        assert found(one, "twin") == ["e", "e", "e"]
        run(one.delete_memory(**WHO, memory_id="e"))
        assert found(one, "twin") == []


def test_what_is_deleted_does_not_come_back(db, service) -> None:
    events = [event("kept", "k"), event("gone " + "x" * 500_000, "g")]
    run(service.add_session_to_memory(session(events)))
    run(service.delete_memory(**WHO, memory_id="g"))
    assert not [key for key in writes(db) if key[0] in (Kind.BLOB, Kind.BLOB_CHUNK, Kind.REMOVAL)]
    run(service.add_session_to_memory(session(events)))
    run(service.add_events_to_memory(**WHO, events=events))
    run(service.add_memory(**WHO, memories=[MemoryEntry(id="g", content=events[1].content)]))
    assert found(service, "gone") == []
    assert set(found(service, "kept")) == {"k"}
    for none in (None, "", "unknown"):
        run(service.delete_memory(**WHO, memory_id=none))
    run(service.add_events_to_memory(**WHO, events=[event("later", "unknown")]))
    assert found(service, "later") == ["unknown"]


def entries(db: memcore.Database) -> dict[bytes, bytes]:
    return {key: value for key, value in rows(db.engine.store).items() if key[:1] == b"\x0b"}


def test_who_opts_out_is_neither_remembered_nor_found(db, service, caplog) -> None:
    run(service.add_session_to_memory(session([event("the cat sat", "1")])))
    scope = db.scope(app="app", user="u")
    scope.opt_out_memory()
    before = entries(db)
    assert found(service, "cat") == []
    entry = MemoryEntry(content=types.Content(parts=[types.Part(text="a cat")]))
    with caplog.at_level("INFO", logger="memcore.adk"):
        run(service.add_session_to_memory(session([event("another cat", "2")])))
        run(service.add_memory(**WHO, memories=[entry]))
    assert [record.message for record in caplog.records] == [
        "the user opted out of memory: nothing was remembered"
    ] * 2
    assert entries(db) == before
    scope.opt_in_memory()
    assert found(service, "cat") == ["1"]
    scope.opt_out_memory(remove=True)
    scope.opt_in_memory()
    assert found(service, "cat") == []
    run(service.add_session_to_memory(session([event("the cat sat", "1")])))
    assert found(service, "cat") == ["1"]


def test_opting_out_wins_against_what_is_being_stored(db, service, monkeypatch) -> None:
    scope = db.scope(app="app", user="u")
    real = service._store

    async def store(*args: Any) -> None:
        scope.opt_out_memory()
        await real(*args)

    monkeypatch.setattr(service, "_store", store)
    run(service.add_session_to_memory(session([event("the cat sat", "1")])))
    assert entries(db) == {}


def test_an_erased_user_is_found_by_nobody_and_remembered_anew(db, service) -> None:
    run(service.add_session_to_memory(session([event("the cat sat", "1")])))
    db.erase("u")
    assert found(service, "cat") == []
    run(service.add_session_to_memory(session([event("a new cat", "2")])))
    assert found(service, "cat") == ["2"]


def test_events_without_an_id_are_known_by_what_they_say(service) -> None:
    nameless = event("nameless")
    nameless.id = ""
    for _ in range(2):
        run(service.add_events_to_memory(**WHO, events=[nameless, nameless]))
    (id_,) = found(service, "nameless")
    run(service.delete_memory(**WHO, memory_id=id_))
    run(service.add_events_to_memory(**WHO, events=[nameless]))
    assert found(service, "nameless") == []


def test_contents_come_back_whole(service) -> None:
    call = types.FunctionCall(id="c", name="f", args={"a": None, "b": [1, {"c": None}]})
    parts = [
        types.Part(text="see this", thought=True, thought_signature=bytes(range(256))),
        types.Part(inline_data=types.Blob(mime_type="image/png", data=os.urandom(400_000))),
        types.Part(function_call=call),
    ]
    big = Event(
        id="big", author="a", timestamp=1.5, content=types.Content(role="model", parts=parts)
    )
    small = Event(id="small", author="b", content=types.Content(parts=[parts[0], parts[2]]))
    run(service.add_events_to_memory(**WHO, events=[big, small], custom_metadata={"k": [1]}))
    one, two = run(service.search_memory(**WHO, query="see")).memories
    assert (one.content, two.content) == (small.content, big.content)
    assert (two.author, two.custom_metadata) == ("a", {"k": [1]})


# --- what would keep others waiting ---------------------------------------------------------------


def test_much_is_encoded_indexed_and_searched_off_the_loop(service, monkeypatch) -> None:
    threads: dict[str, list[int]] = {}

    def noted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            threads.setdefault(name, []).append(get_ident())
            return real(*args, **options)

        monkeypatch.setattr(module, name, call)

    noted(service_module, "memory_of")
    noted(service_module, "find_memories")
    noted(memories, "_next_step")
    # As if the loop's own thread had made some short commits in a wink.
    monkeypatch.setattr(CommitLatency, "is_quick", True)
    here = get_ident()

    async def on_loop(name: str, coroutine: Any) -> bool:
        threads.clear()
        await coroutine
        return here in threads[name]

    async def main() -> None:
        def adding(*events: Event) -> Any:
            return service.add_events_to_memory(**WHO, events=events)

        def searching(query: str) -> Any:
            return service.search_memory(**WHO, query=query)

        assert await on_loop("memory_of", adding(event("short", "s")))
        assert await on_loop("find_memories", searching("short"))
        assert not await on_loop("memory_of", adding(event("long " * 4000, "l")))
        await adding(*(event(f"many {n}", f"m{n}") for n in range(40)))
        assert not await on_loop("_next_step", searching("many"))
        assert not await on_loop("find_memories", searching("short " + "w" * 3000))
        assert (await searching("short " + "word " * 300_000)).memories

    run(main())


# --- of memcore's sessions ------------------------------------------------------------------------


async def talk(sessions_service: MemcoreSessionService, held: Session, *texts: str | None) -> None:
    for text in texts:
        await sessions_service.append_event(held, event(text))


def test_of_a_session_of_memcore_only_what_is_new_is_looked_at(db, service, monkeypatch) -> None:
    looked: list[int] = []
    real = Watermark.new_from

    def new_from(self, events):
        start = real(self, events)
        looked.append(len(events) - start)
        return start

    monkeypatch.setattr(Watermark, "new_from", new_from)

    async def main() -> None:
        kept = MemcoreSessionService(db)
        held = await kept.create_session(**WHO, session_id="s")
        await talk(kept, held, *[f"text {number}" for number in range(70)], None)
        await service.add_session_to_memory(held)
        await talk(kept, held, "text 71", None, "text 73")
        again = await kept.get_session(**WHO, session_id="s")
        await service.add_session_to_memory(again)
        await service.add_session_to_memory(again)
        part = again.model_copy(update={"events": again.events[-5:]})
        await service.add_session_to_memory(part)
        stale = again.model_copy(update={"events": again.events[:20]})
        await service.add_session_to_memory(stale)
        await service.add_session_to_memory(again)

    run(main())
    assert looked == [3, 0, 5, 20, 0]
    assert service._kv("app", "u").get("h") == [72, 72]


def test_an_object_with_the_last_events_only_leaves_the_others_to_come(db, service) -> None:
    async def main() -> None:
        kept = MemcoreSessionService(db)
        held = await kept.create_session(**WHO, session_id="s")
        await talk(kept, held, *[f"text {number}" for number in range(20)])
        for part in (held.events[15:], held.events[10:12], held.events[5:18], held.events):
            await service.add_session_to_memory(held.model_copy(update={"events": part}))
        await service.add_session_to_memory(held)

    run(main())
    assert service._kv("app", "u").get("h") == [20, 20]


def test_an_object_with_events_left_out_leaves_the_others_to_come(db, service) -> None:
    """As a filter by time makes them where a clock went backwards."""

    async def main() -> None:
        kept = MemcoreSessionService(db)
        held = await kept.create_session(**WHO, session_id="s")
        await talk(kept, held, *[f"text {number}" for number in range(20)])
        for part in (held.events[::3], held.events[2:15:2], [held.events[0], held.events[19]]):
            await service.add_session_to_memory(held.model_copy(update={"events": part}))
        await service.add_session_to_memory(held)

    run(main())
    assert service._kv("app", "u").get("h") == [20, 20]


def test_a_session_of_the_same_name_is_another_one(db, service) -> None:
    async def main() -> None:
        kept = MemcoreSessionService(db)
        for number in range(2):
            held = await kept.create_session(**WHO, session_id="s")
            await talk(kept, held, f"life {number}")
            await service.add_session_to_memory(held)
            await kept.delete_session(**WHO, session_id="s")

    run(main())
    assert len(found(service, "life")) == 2


def test_an_ingest_that_was_cut_short_is_gone_on_with(db, service, monkeypatch) -> None:
    calls: list[int] = []
    real = MemcoreMemoryService._store

    async def store(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError
        await real(self, *args)

    async def main() -> None:
        kept = MemcoreSessionService(db)
        held = await kept.create_session(**WHO, session_id="s")
        await talk(kept, held, *[f"text {number}" for number in range(150)])
        monkeypatch.setattr(MemcoreMemoryService, "_store", store)
        with pytest.raises(ZeroDivisionError):
            await service.add_session_to_memory(held)
        assert service._kv("app", "u").get("h") == [64, 64]
        await service.add_session_to_memory(held)

    run(main())
    assert len(calls) == 6
    assert service._kv("app", "u").get("h") == [150, 150]


# --- entries of callers ---------------------------------------------------------------------------


def entry(text: str, **fields: Any) -> MemoryEntry:
    return MemoryEntry(content=types.Content(parts=[types.Part(text=text)]), **fields)


def test_entries_are_remembered_as_they_are(service) -> None:
    given = [
        entry(
            "likes tea",
            id="m1",
            author="a",
            timestamp="2026-01-02T03:04:05",
            custom_metadata={"x": 1},
        ),
        entry("likes coffee"),
    ]
    run(service.add_memory(**WHO, memories=given, custom_metadata={"x": 0, "y": 2}))
    newest, first = run(service.search_memory(**WHO, query="likes")).memories
    assert first == given[0].model_copy(update={"custom_metadata": {"x": 1, "y": 2}})
    assert newest.id
    assert newest.custom_metadata == {"x": 0, "y": 2}


def test_an_entry_of_the_same_id_takes_the_others_place(service) -> None:
    for text in ("likes tea", "likes coffee", "likes coffee"):
        run(service.add_memory(**WHO, memories=[entry(text, id="m")]))
    assert (found(service, "tea"), found(service, "coffee")) == ([], ["m"])
    assert service._kv("app", "u").get("h") == [3, 1]


def test_a_large_entry_that_is_passed_over_leaves_nothing(db, service) -> None:
    def large(name: str) -> MemoryEntry:
        return entry(f"large {name} " + "x" * 300_000, id="m")

    run(service.add_memory(**WHO, memories=[large("a"), large("b"), large("c")]))
    assert len([key for key in rows(db.engine.store) if key[0] == Kind.BLOB]) == 1
    run(service.delete_memory(**WHO, memory_id="m"))
    run(service.add_memory(**WHO, memories=[large("d")]))
    assert [key for key in rows(db.engine.store) if key[0] in (Kind.BLOB, Kind.BLOB_CHUNK)] == []


@pytest.mark.parametrize("metadata", [{"k": object()}, {"k": float("inf")}])
def test_metadata_that_is_no_json_is_refused_and_nothing_stored(db, service, metadata) -> None:
    with pytest.raises(InvalidItemError):
        run(service.add_events_to_memory(**WHO, events=[event("x")], custom_metadata=metadata))
    with pytest.raises(InvalidItemError):
        run(service.add_memory(**WHO, memories=[entry("x")], custom_metadata=metadata))
    assert [key for key in writes(db) if key[0] == Kind.KV] == []


# --- many writers, and salvage --------------------------------------------------------------------


def test_threads_that_add_the_same_sessions_add_them_once(db) -> None:
    events = [event(f"shared {number}", f"e{number}") for number in range(100)]

    def work(number: int) -> None:
        service = MemcoreMemoryService(db)
        run(service.add_session_to_memory(session(events[number * 10 :])))
        run(service.delete_memory(**WHO, memory_id=f"e{50 + number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    service = MemcoreMemoryService(db)
    _, count = service._kv("app", "u").get("h")
    assert count == 96
    assert len(found(MemcoreMemoryService(db, max_results=200), "shared")) == 96


def test_a_fresh_process_and_a_salvaged_file_find_the_same(path, tmp_path) -> None:
    with MemcoreMemoryService(path) as service:
        run(service.add_session_to_memory(session([event("kept " + "x" * 20_000, "e")])))
        run(service.delete_memory(**WHO, memory_id="other"))
    memcore.salvage(path, tmp_path / "saved")
    for place in (path, tmp_path / "saved"):
        with MemcoreMemoryService(place) as service:
            assert found(service, "kept") == ["e"]
            run(service.add_session_to_memory(session([event("further", "f")])))
            assert found(service, "further") == ["f"]
            assert service.database.check() == []


def test_a_batch_of_memories_is_no_larger_than_it_may_be() -> None:
    """The content that begins a batch counts, too."""
    made = [memories.Memory(str(at), "s", {}, bytes(600 * 1024)) for at in range(6)]
    found = memories.batches(made)
    assert [len(batch) for batch in found] == [1] * 6
    assert [each for batch in found for each in batch] == made


def told(text: str) -> MemoryEntry:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return MemoryEntry(content=content, id=text.split(maxsplit=1)[0])


PLACE = {"app_name": "app", "user_id": "user"}


def add(service: Any, *texts: str) -> None:
    run(service.add_memory(**PLACE, memories=[told(text) for text in texts]))


def texts_of(service: Any, query: str) -> list[str]:
    answer = run(service.search_memory(**PLACE, query=query))
    return [each.content.parts[0].text for each in answer.memories]


def test_a_legal_hold_keeps_memories_from_being_deleted_and_replaced(db, service) -> None:
    add(service, "id1 apple pie", "id2 apple cake")
    scope = db.scope(app="app", user="user")
    scope.hold(reason="case")
    with pytest.raises(memcore.HeldError):
        run(service.delete_memory(**PLACE, memory_id="id1"))
    with pytest.raises(memcore.HeldError):
        add(service, "id2 other text")
    add(service, "id3 apple tart")
    assert sorted(texts_of(service, "apple")) == [
        "id1 apple pie", "id2 apple cake", "id3 apple tart",
    ]  # fmt: skip
    scope.release()
    run(service.delete_memory(**PLACE, memory_id="id1"))
    assert sorted(texts_of(service, "apple")) == ["id2 apple cake", "id3 apple tart"]


def test_foreign_keys_hide_no_memory(db, service) -> None:
    add(service, "id0 apple")
    kv = db.scope(app="app", user="user").kv("adk.memory")
    for number in range(300):
        kv.put(f"e00000001{number:04d}x", {"id": "x"})
    add(service, *(f"id{number} apple" for number in range(1, 9)))
    assert len(texts_of(service, "apple")) == 9


def test_a_namespace_that_is_filled_again_while_it_is_read_is_indexed_as_it_is(db, service) -> None:
    add(service, *(f"id{number} secretword" for number in range(40)))
    kv = service._kv("app", "user")
    kv.transact(memories._ready_index)
    step = kv.read(memories._next_step)
    db.scope(app="app", user="user").kv("adk.memory").clear()
    add(service, *(f"jd{number} harmless" for number in range(40)))
    kv.transact(lambda txn: memories._index(txn, step))
    assert texts_of(service, "secretword") == []
    assert len(texts_of(service, "harmless")) == 10
