"""MemcoreMemoryService: found by words as ADK's own service in memory finds, and never twice."""

from __future__ import annotations

import asyncio
import json
import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from threading import get_ident
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.memory import in_memory_memory_service as reference
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.adapters.adk import MemcoreMemoryService, MemcoreSessionService
from memcore.adapters.adk import memory_index as memories
from memcore.adapters.adk.memory import Watermark
from memcore.adapters.adk.memory_index import grams_in, lowered, query_words, terms_of
from memcore.codec.keys import Kind
from memcore.errors import InvalidItemError, InvalidOptionError
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


def score(text: str, query: str) -> int:
    """How many words of the query match, as the service in memory says it."""
    words = reference._extract_searchable_words(text)
    low = unicodedata.normalize("NFC", text).lower()
    return sum(
        word in words or (not word.isascii() and word in low)
        for word in reference._extract_words_lower(query)
    )


def shown(entries: list[MemoryEntry]) -> list[tuple]:
    return [(each.id, each.author, each.timestamp, each.content) for each in entries]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(operation, max_size=12), texts)
def test_what_is_found_is_what_the_service_in_memory_finds(operations, last) -> None:
    async def main() -> None:
        theirs = InMemoryMemoryService()
        grown: dict[tuple[str, str], list[Event]] = {}
        said: dict[str, str] = {}
        with memcore.open(":memory:") as db:
            ours = MemcoreMemoryService(db)
            for what, user, *rest in [*operations, ("search", "u", last)]:
                who = {"app_name": "app", "user_id": user}
                if what == "events":
                    # An event is what it is: theirs remembers ids of events without text, too.
                    told = [(id_, said.setdefault(id_, text)) for id_, text in rest[1]]
                    events = [event(text, id_) for id_, text in told]
                    for one in (theirs, ours):
                        await one.add_events_to_memory(**who, session_id=rest[0], events=events)
                elif what == "session":
                    events = grown.setdefault((user, rest[0] + "grown"), [])
                    events += [
                        event(text, f"{len(events)}.{at}") for at, text in enumerate(rest[1])
                    ]
                    for one in (theirs, ours):
                        await one.add_session_to_memory(
                            session(events, rest[0] + "grown", user_id=user)
                        )
                elif what == "delete":
                    for one in (theirs, ours):
                        await one.delete_memory(**who, memory_id=rest[0])
                else:
                    both = [
                        (await one.search_memory(**who, query=rest[0])).memories
                        for one in (theirs, ours)
                    ]
                    scores = [
                        [score(entry.content.parts[0].text, rest[0]) for entry in entries]
                        for entries in both
                    ]
                    assert scores[0] == scores[1], rest
                    if len(both[0]) < 10:
                        assert sorted(map(repr, shown(both[0]))) == sorted(
                            map(repr, shown(both[1]))
                        )
            assert db.check() == []

    run(main())


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(texts | st.text(max_size=20), texts | st.text(max_size=6))
def test_terms_lead_to_every_match_and_are_the_same_words(text, query) -> None:
    terms, low = terms_of(text), lowered(text)
    assert {"w" + word for word in reference._extract_searchable_words(text)} <= terms
    for word in query_words(query):
        assert ("w" + word in terms) == (word in reference._extract_searchable_words(text))
        if word.isascii():
            continue
        inside = all(gram in terms for gram in grams_in(word))
        assert inside >= (word in low)
        if len(word) < 3:
            assert inside == (word in low)


CJK = [
    ("私はPythonを使う", "Python", True),
    ("私はPythonを使う", "thon", False),
    ("私はPythonを使う", "使う", True),
    ("東京に住んでいます", "東京", True),
    ("東京に住んでいます", "京都", False),
    ("我喜欢编程", "编程", True),
    ("한국어를 배워요", "한국어", True),
    ("Caf\u00e9", "cafe\u0301", True),
    ("cafe", "café", False),
    ("\uff21\uff24\uff2b", "adk", False),
    ("Größe", "grö", True),
    ("C言語", "C", True),
    ("第1章", "1", True),
    ("IPv6対応", "ipv", False),
]


@pytest.mark.parametrize(("text", "query", "matches"), CJK)
def test_languages_without_spaces(service, text, query, matches) -> None:
    theirs = InMemoryMemoryService()
    for one in (theirs, service):
        run(one.add_session_to_memory(session([event(text, "e")])))
    assert found(theirs, query) == found(service, query) == (["e"] if matches else [])


# --- ranking --------------------------------------------------------------------------------------


def test_most_words_first_then_rare_ones_then_the_newest(service) -> None:
    events = [event(f"common {number}", f"c{number}") for number in range(8)]
    events += [event("rare", "rare"), event("rare common", "both"), event("other", "none")]
    run(service.add_session_to_memory(session(events)))
    assert found(service, "common rare") == ["both", "rare", *[f"c{n}" for n in range(7, -1, -1)]]


def test_ten_are_returned_unless_asked_otherwise(service, db) -> None:
    events = [event("alike", f"e{number}") for number in range(30)]
    run(service.add_session_to_memory(session(events)))
    assert found(service, "alike") == [f"e{number}" for number in range(29, 19, -1)]
    assert len(found(MemcoreMemoryService(db, max_results=25), "alike")) == 25
    for wrong in (0, -1, True, "5", 2.0):
        with pytest.raises(InvalidOptionError):
            MemcoreMemoryService(db, max_results=wrong)


def test_a_search_reads_what_it_finds_and_not_the_memory(db, service, monkeypatch) -> None:
    events = [event(f"filler {number} words {number % 7}", f"e{number}") for number in range(400)]
    run(service.add_session_to_memory(session([*events, event("needle", "it")])))
    from memcore.kv import namespace as lent

    read: list[str] = []
    monkeypatch.setattr(
        lent, "packed_key", lambda key, real=lent.packed_key: read.append(key) or real(key)
    )
    scanned: list[int] = []
    real_scan = lent.KeyValueView.scan

    def scan(self, *args, **options):
        for row in real_scan(self, *args, **options):
            scanned.append(1)
            yield row

    monkeypatch.setattr(lent.KeyValueView, "scan", scan)
    assert found(service, "needle") == ["it"]
    assert len(read) + len(scanned) < 10


@pytest.mark.parametrize("query", ["", " ", "?!", "👍"])
def test_a_query_without_words_finds_nothing(service, query) -> None:
    run(service.add_session_to_memory(session([event("? 👍 text", "e")])))
    assert found(service, query) == []


def test_many_postings_of_one_word(service) -> None:
    for start in range(0, 1200, 300):
        events = [event("word", f"e{number}") for number in range(start, start + 300)]
        run(service.add_events_to_memory(**WHO, events=events))
    for number in (0, 255, 256, 257, 700, 1199):
        run(service.delete_memory(**WHO, memory_id=f"e{number}"))
    assert found(service, "word")[0] == "e1198"
    view = service._kv("app", "u")
    from memcore.adapters.adk.memory_index import postings_of

    left = view.read(lambda view: postings_of(view, "wword"))
    assert len(left) == 1194
    assert left == sorted(left)


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
    b, a = run(service.search_memory(**WHO, query="text")).memories
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


def test_much_text_is_taken_apart_and_stored_off_the_loop(service, monkeypatch) -> None:
    threads: dict[str, list[int]] = {"terms": [], "stored": [], "dropped": []}

    def noted(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            threads[name].append(get_ident())
            return real(*args)

        return call

    monkeypatch.setattr(memories, "terms_of", noted("terms", memories.terms_of))
    monkeypatch.setattr(memories, "add_postings", noted("stored", memories.add_postings))
    monkeypatch.setattr(memories, "drop_posting", noted("dropped", memories.drop_posting))
    # As if the loop's own thread had made some short commits in a wink.
    monkeypatch.setattr(CommitLatency, "is_quick", True)
    here = get_ident()

    async def add(*events: Event) -> set[bool]:
        for known in threads.values():
            known.clear()
        await service.add_events_to_memory(**WHO, events=events)
        return {one == here for name in ("terms", "stored") for one in threads[name]}

    async def main() -> None:
        assert await add(event("short", "s")) == {True}
        assert await add(event(" ".join(f"w{n}" for n in range(4000)), "large")) == {False}
        many = [event(" ".join(f"{n}w{m}" for m in range(100)), f"m{n}") for n in range(20)]
        assert await add(*many) == {False}
        for known in threads.values():
            known.clear()
        await service.delete_memory(**WHO, memory_id="m1")
        assert set(threads["dropped"]).isdisjoint({here})

    run(main())


def test_a_query_of_many_words_is_searched_off_the_loop(service, monkeypatch) -> None:
    from memcore.adapters.adk import memory

    threads: list[int] = []
    real = memory.postings_of
    monkeypatch.setattr(
        memory, "postings_of", lambda *args: threads.append(get_ident()) or real(*args)
    )
    run(service.add_session_to_memory(session([event("one word", "e")])))
    assert found(service, " ".join(["word", *(f"w{number}" for number in range(3000))])) == ["e"]
    assert get_ident() not in threads
    threads.clear()
    assert found(service, "word") == ["e"]
    assert set(threads) == {get_ident()}


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
            run(service.add_session_to_memory(session([event("more", "f")])))
            assert found(service, "more") == ["f"]
            assert service.database.check() == []


def test_a_batch_of_memories_is_no_larger_than_it_may_be() -> None:
    """The content that begins a batch counts, too."""
    made = [memories.Memory(str(at), "s", {}, bytes(600 * 1024), {"word"}) for at in range(6)]
    found = memories.batches(made)
    assert [len(batch) for batch in found] == [1] * 6
    assert [each for batch in found for each in batch] == made
