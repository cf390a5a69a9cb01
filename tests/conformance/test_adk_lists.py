"""What MemcoreSessionService lists, by pages too, and what it remembers of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.adapters.adk import MemcoreSessionService
from memcore.adapters.adk import sessions as listing
from memcore.adapters.adk.events import Copies, marker_in
from memcore.adapters.adk.history import Entry, EventCache, Summary, Waiting
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import seal_value
from memcore.errors import InvalidOptionError
from tests.conformance.adk_events import ME, said

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "10"))
T = TypeVar("T")
Open = Callable[..., memcore.Database]
OTHER = """
import asyncio, sys
import memcore
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from memcore.adapters.adk import MemcoreSessionService

async def main(service, what):
    at = {"app_name": "shop", "user_id": "ann"}
    if what == "erase":
        service.database.erase("ann", app="shop")
    elif what == "alone":
        session = service.database.session("s1", app="shop", user="ann")
        session.state.update({"k": "other"})
    elif what == "delete":
        await service.delete_session(**at, session_id="s1")
    else:
        session = await service.get_session(**at, session_id="s1")
        delta = {"own": {"k": "other"}, "user": {"user:u": 2}, "app": {"app:a": 2}}[what]
        event = Event(author="x", timestamp=9e9, actions=EventActions(state_delta=delta))
        await service.append_event(session, event)

with MemcoreSessionService(sys.argv[1]) as service:
    asyncio.run(main(service, sys.argv[2]))
"""


@pytest.fixture
def service(open_db: Open) -> MemcoreSessionService:
    """A service on a file that is checked when the test ends."""
    return MemcoreSessionService(open_db(durability="none"))


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


async def filled(service: MemcoreSessionService, count: int = 3) -> None:
    for number in range(count):
        made = await service.create_session(**ME, session_id=f"s{number}", state={"k": number})
        delta = {"n": number, "user:u": 1, "app:a": 1}
        await service.append_event(made, said("hi", timestamp=float(number), delta=delta))


async def shown(service: MemcoreSessionService, **at: Any) -> dict[str, tuple[Any, float]]:
    found = (await service.list_sessions(**{**ME, **at})).sessions
    assert found == sorted(found, key=lambda each: (each.last_update_time, each.user_id, each.id))
    return {each.id: (each.state, each.last_update_time) for each in found}


# --- the list is remembered -----------------------------------------------------------------------


def test_a_list_that_is_remembered_reads_no_session_again(
    service: MemcoreSessionService, monkeypatch
) -> None:
    read: list[tuple[int, int]] = []
    summarize = EventCache.summarize

    def counted(cache: EventCache, made: Any, *, since: int) -> None:
        read.extend(made)
        summarize(cache, made, since=since)

    monkeypatch.setattr(EventCache, "summarize", counted)

    async def work() -> None:
        await filled(service)
        first = await shown(service)
        assert len(read) == 3
        assert await shown(service) == first
        assert len(read) == 3
        made = await service.get_session(**ME, session_id="s1")
        await service.append_event(made, said("more", timestamp=50.0, delta={"k": "new"}))
        assert (await shown(service))["s1"] == ({**first["s1"][0], "k": "new"}, 50.0)
        assert len(read) == 4

    run(work())


def test_what_is_listed_is_nobody_elses(service: MemcoreSessionService) -> None:
    async def work() -> None:
        await service.create_session(**ME, session_id="s", state={"k": {"deep": [1]}})
        for _ in range(2):
            (found,) = (await service.list_sessions(**ME)).sessions
            assert found.state == {"k": {"deep": [1]}}
            found.state["k"]["deep"].append(2)

    run(work())


@pytest.mark.parametrize("what", ["own", "alone", "user", "app", "delete", "erase"])
def test_a_remembered_list_is_never_stale(
    service: MemcoreSessionService, path: Path, what: str
) -> None:
    """After another process changed a session, a user's or the app's state, or deleted it."""

    async def work() -> None:
        await filled(service)
        await service.create_session(app_name="shop", user_id="bob", session_id="b")
        before = await shown(service)
        command = [sys.executable, "-c", OTHER, str(path), what]
        await asyncio.to_thread(subprocess.run, command, check=True)
        after = await shown(service)
        fresh = MemcoreSessionService(service.database)
        assert after == await shown(fresh)
        assert after != before
        bob = await shown(service, user_id="bob")
        assert bob == await shown(fresh, user_id="bob")
        assert bob["b"][0] == {"app:a": 2 if what == "app" else 1}
        if what == "erase":
            assert after == {}
        elif what == "alone":
            assert after["s1"] == ({**before["s1"][0], "k": "other"}, 1.0)
        elif what == "delete":
            assert set(after) == {"s0", "s2"}
        else:
            values = {"own": ("k", "other"), "user": ("user:u", 2), "app": ("app:a", 2)}
            key, value = values[what]
            assert after["s1"] == ({**before["s1"][0], key: value}, 9e9)
            assert after["s0"][0].get(key) == (value if what != "own" else 0)

    run(work())


def test_a_session_that_was_made_again_is_another(service: MemcoreSessionService) -> None:
    async def work() -> None:
        await filled(service)
        await shown(service)
        await service.delete_session(**ME, session_id="s1")
        assert set(await shown(service)) == {"s0", "s2"}
        await service.create_session(**ME, session_id="s1", state={"new": 1})
        assert (await shown(service))["s1"][0] == {"new": 1, "user:u": 1, "app:a": 1}

    run(work())


# --- rows that are read by the compiled reader, and those that need a look of their own -----------


class Doubtful:
    """A reader that leaves every row to the careful way."""

    def __init__(self, *_: Any) -> None:
        pass

    def names(self, *_: Any) -> tuple[list[tuple[str, int]], bool]:
        return [], False

    def fields(self, *_: Any) -> None:
        return None

    summary = fields


def all_listed(db: memcore.Database) -> Any:
    """What nobody remembers of a list; or the error that it raises."""

    async def work() -> Any:
        return (await MemcoreSessionService(db).list_sessions(app_name="shop")).sessions

    try:
        return run(work())
    except memcore.MemcoreError as exc:
        return repr(exc)


def by_both(db: memcore.Database, monkeypatch) -> tuple[Any, Any]:
    quick = all_listed(db)
    with monkeypatch.context() as patch:
        patch.setattr(listing, "SessionRows", Doubtful)
        return quick, all_listed(db)


async def zoo(service: MemcoreSessionService) -> None:
    at = {"app_name": "shop", "user_id": "ann"}
    names = ["plain", "nul \0 in it", "ü" * 300, "half \ud800", "x" * 120, "\U0001f600"]
    for name in names:
        made = await service.create_session(**at, session_id=name, state={"k": name, "user:u": 1})
        await service.append_event(made, said("hi", timestamp=5.25))
    state = {"": 1, "long" * 200: 2, "\0": 3, "big": 2**80, "half": "\ud800", "app:a": {"b": []}}
    await service.create_session(**at, session_id="state", state=state)
    await service.create_session(**at, session_id="empty")
    for name in ("whole", "twice", "far", "changed", "text", "rest"):
        await service.create_session(**at, session_id=name, state={"gone": 1})
    for name, event in {
        "whole": said("x" * 300_000, timestamp=7.0),
        "far": said("far", timestamp=2**52),
        "text": said('"timestamp":3}}', timestamp=0.1, custom_metadata={"timestamp": {"a": 1}}),
        "rest": said("hi", timestamp=8.5, custom_metadata={"a": "y" * 70_000}),
    }.items():
        made = await service.get_session(**at, session_id=name)
        await service.append_event(made, event)
    made = await service.get_session(**at, session_id="changed")
    for number in range(80):
        delta = {"n": number, "user:n": "v" * number, f"f{number % 7}": [number]}
        actions = EventActions(state_delta=delta)
        await service.append_event(made, Event(author="x", timestamp=number, actions=actions))
    native = service.database.session("twice", app="shop", user="ann")
    native.state.update({"gone": memcore.Delete, "k": 1})
    native.append({"role": "user", "parts": [{"text": "not by ADK"}]})
    native.append({"role": "user", "parts": [{"text": "again"}]}, meta={"mine": 1})
    for number in range(3):
        user = {"app_name": "shop", "user_id": f"user-{number}"}
        await service.create_session(**user, session_id="s", state={"k": 1, "user:u": number})


@pytest.mark.parametrize("key", [None, b"k" * 32])
def test_the_compiled_reader_lists_what_the_careful_one_does(
    tmp_path: Path, monkeypatch, key: Any
) -> None:
    path = tmp_path / "zoo.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True, key=key) as db:
        run(zoo(MemcoreSessionService(db)))
        quick, careful = by_both(db, monkeypatch)
        assert quick == careful
        assert len(quick) == 17
        for each in quick:
            found = run(MemcoreSessionService(db).get_session(**where(each)))
            assert (each.state, each.last_update_time) == (found.state, found.last_update_time)
            assert each.model_fields_set == found.model_fields_set - {"events"}
            assert each.model_dump() == {**found.model_dump(), "events": []}
            assert marker_in(each) == marker_in(found)


def where(session: Any) -> dict[str, str]:
    return {"app_name": "shop", "user_id": session.user_id, "session_id": session.id}


def test_the_compiled_reader_takes_nothing_that_is_damaged(open_db: Open, monkeypatch) -> None:
    """Each row with a bit flipped, cut short, gone, or with another body that is sealed."""
    db = open_db(durability="none")

    async def fill() -> None:
        service = MemcoreSessionService(db)
        for name in ("a", "b"):
            made = await service.create_session(**ME, session_id=name, state={"k": 1, "user:u": 1})
            await service.append_event(made, said("hi", timestamp=5.25, delta={"app:a": 1}))

    run(fill())
    store = db.engine.store
    listed = (Kind.SESSION_NAME, Kind.SESSION, Kind.STATE)
    rows = [
        row
        for kind in listed
        for row in store.read(
            lambda txn, kind=kind: list(txn.scan(bytes([kind]), bytes([kind + 1])))
        )
        if kind != Kind.SESSION or keys.row_of(row[0]) in (Row.HEAD, Row.ITEM, Row.STATE)
    ]
    sound = all_listed(db)
    differed = 0
    for key, value in rows:
        body = value[10:]
        wrong = [value[:9], value[:-1], value + b"x", b"", None]
        wrong += [value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :] for at in (0, 1, 5, 10, -1)]
        wrong += [
            seal_value(key, other) for other in (b"", body[:-1], body + b"}", bytes(len(body)))
        ]
        wrong += [seal_value(key, body, flags) for flags in (1, 2, 16)]
        for each in wrong:
            store.transact(partial(_put, key=key, value=each))
            quick, careful = by_both(db, monkeypatch)
            assert quick == careful, (key, each)
            differed += quick != sound
        store.transact(partial(_put, key=key, value=value))
    assert all_listed(db) == sound
    assert differed > len(rows)


def _put(txn: Any, *, key: bytes, value: bytes | None) -> None:
    if value is None:
        txn.delete(key)
    else:
        txn.put(key, value)


# --- what is erased is forgotten ------------------------------------------------------------------


def remembered(service: MemcoreSessionService) -> int:
    cache = service._cache
    return len(cache._runs) + len(cache._summaries) + len(cache._waiting)


@pytest.mark.parametrize("how", ["here", "elsewhere", "deleted", "deleted elsewhere"])
def test_what_is_erased_or_deleted_is_not_remembered(open_db: Open, path: Path, how: str) -> None:
    service = MemcoreSessionService(open_db(), pair_safe_recent=True)

    async def work() -> None:
        await filled(service, 1 if "deleted" in how else 3)
        for number in range(1 if "deleted" in how else 3):
            await service.get_session(**ME, session_id=f"s{number}")
        if "deleted" in how:
            await service.create_session(**ME, session_id="s1")
        await shown(service)
        bob = {"app_name": "shop", "user_id": "bob", "session_id": "b"}
        await service.create_session(**bob)
        assert remembered(service) > 1
        if how == "here":
            service.database.erase("ann", app="shop")
            assert remembered(service) == 0
        elif how == "deleted":
            await service.delete_session(**ME, session_id="s0")
            await service.delete_session(**ME, session_id="s1")
            assert remembered(service) == 0
        else:
            what = "erase" if how == "elsewhere" else "delete"
            command = [sys.executable, "-c", OTHER, str(path), what]
            await asyncio.to_thread(subprocess.run, command, check=True)
            before = remembered(service)
            for _ in range(8):  # who goes on, with whatever session, finds it out
                await service.get_session(**bob)
            # "s1" went, or all of the user, and what was read of "b" came.
            assert remembered(service) == (1 if how == "elsewhere" else before)

    run(work())


@pytest.mark.parametrize("recent", [None, 200])
@pytest.mark.parametrize("how", ["erased", "deleted", "an invocation"])
def test_a_reader_under_way_brings_nothing_back(open_db: Open, recent: Any, how: str) -> None:
    """It read before its user was erased, and is done with it only afterwards."""
    writer = MemcoreSessionService(open_db())
    service = MemcoreSessionService(writer.database, pair_safe_recent=True)
    at = {**ME, "session_id": "s0"}

    async def fill() -> None:
        made = await writer.create_session(**at)
        for number in range(300):
            await writer.append_event(made, said(f"text {number}", invocation_id="i"))

    async def forget() -> None:
        if how == "erased":
            service.database.erase("ann", app="shop")
        elif how == "deleted":
            await service.delete_session(**at)
        else:
            await service.delete_invocation(**at, invocation_id="i")

    run(fill())
    config = recent and GetSessionConfig(num_recent_events=recent)
    reader: Any = service.get_session(**at, config=config)
    reader.send(None)
    run(forget())
    with pytest.raises(StopIteration):
        while True:
            reader.send(None)
    assert remembered(service) == 0


def test_what_was_read_before_a_cache_forgot_is_not_kept() -> None:
    """Also what is kept inside of a read, while another thread erases."""
    cache, place = EventCache(10_000), (1, 1)
    entry = Entry(1, said("text"), 1.0, 100)
    for forget in (cache.clear, lambda: cache.forget(place)):
        before = cache.generation
        forget()
        cache.put(place, 0, 0, [entry], since=before)
        cache.wait(place, Waiting(0, 1, {}), since=before)
        cache.summarize({place: Summary(b"", None, b"", 0, 1.0, 1)}, since=before)
        assert cache.suspects() == []
        now = cache.generation
        cache.put(place, 0, 0, [entry], since=now)
        cache.wait(place, Waiting(0, 1, {}), since=now)
        cache.summarize({place: Summary(b"", None, b"", 0, 1.0, 1)}, since=now)
        assert cache.suspects() == [(place, 0)]


def test_a_cache_that_is_gone_listens_no_more(open_db: Open) -> None:
    db = open_db(durability="none")
    notifier = db.engine.store.notifier
    before = dict(notifier._listeners)
    services = [MemcoreSessionService(db) for _ in range(3)]
    assert notifier._listeners != before
    del services
    assert notifier._listeners == before


def test_what_is_kept_nowhere_is_not_copied(open_db: Open, monkeypatch) -> None:
    """Without a cache whoever reads gets what was decoded for them, and nobody else has it."""
    service = MemcoreSessionService(open_db(durability="none"), cache_bytes=0)

    def refused(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(Copies, "of", refused)

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for text in "abc":
            await service.append_event(made, said(text))
        for _ in range(2):
            found = await service.get_session(**ME, session_id="s")
            page = await service.page_events(**ME, session_id="s")
            assert found.events == page.events == made.events
            for each in (*found.events, *page.events):
                each.content.parts[0].text = "changed"
        assert remembered(service) == 0

    run(work())


# --- pages ----------------------------------------------------------------------------------------


def test_pages_of_sessions_hold_each_of_them_once(service: MemcoreSessionService) -> None:
    async def work() -> None:
        names = {("ann", f"s{n}") for n in range(5)} | {("", "x"), ("bob", "s1"), ("zoë", "\0")}
        for user, name in names:
            await service.create_session(app_name="shop", user_id=user, session_id=name)
        await service.create_session(app_name="other", user_id="ann", session_id="no")
        for user in (None, "ann", "nobody"):
            whole = (await service.list_sessions(app_name="shop", user_id=user)).sessions
            for size in (1, 2, 3, 8, 100):
                pages, cursor = [], None
                while True:
                    page = await service.page_sessions(
                        app_name="shop", user_id=user, page_size=size, cursor=cursor
                    )
                    assert len(page.sessions) <= size
                    assert page.cursor is None or len(page.sessions) == size
                    pages += page.sessions
                    cursor = page.cursor
                    if cursor is None:
                        break
                key = [(each.user_id, each.id) for each in pages]
                assert key == sorted(key, key=lambda each: (each[0] or "\0", each[1]))
                assert sorted(pages, key=repr) == sorted(whole, key=repr)

    run(work())


def test_pages_go_on_where_sessions_and_users_left(service: MemcoreSessionService) -> None:
    async def work() -> None:
        for user in ("ann", "bob", "cleo"):
            for name in ("1", "2", "3"):
                await service.create_session(app_name="shop", user_id=user, session_id=name)
        page = await service.page_sessions(app_name="shop", page_size=5)
        assert [each.id for each in page.sessions] == ["1", "2", "3", "1", "2"]
        await service.delete_session(app_name="shop", user_id="bob", session_id="2")
        rest = await service.page_sessions(app_name="shop", cursor=page.cursor)
        assert [(each.user_id, each.id) for each in rest.sessions] == [
            ("bob", "3"), ("cleo", "1"), ("cleo", "2"), ("cleo", "3"),
        ]  # fmt: skip
        service.database.erase("bob", app="shop")
        rest = await service.page_sessions(app_name="shop", cursor=page.cursor)
        assert [each.user_id for each in rest.sessions] == ["cleo"] * 3

    run(work())


WORDS = ["t", "t", "-", "large"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12), st.integers(1, 5), st.booleans())
def test_pages_of_events_are_what_the_session_holds(words, size, warm) -> None:
    async def work() -> None:
        with MemcoreSessionService(":memory:") as service:
            made = await service.create_session(**ME, session_id="s")
            events = [event_of(word) for word in words]
            for event in events:
                await service.append_event(made, event)
            if warm:
                await service.get_session(**ME, session_id="s")
            for backwards in (False, True):
                found: list[Event] = []
                cursor = None
                while True:
                    page = await service.page_events(
                        **ME, session_id="s", page_size=size, cursor=cursor, newest_first=backwards
                    )
                    found += page.events
                    cursor = page.cursor
                    if cursor is None:
                        break
                    assert len(page.events) == size
                assert (found[::-1] if backwards else found) == events
            assert (await service.get_session(**ME, session_id="s")).events == events

    run(work())


def event_of(word: str) -> Event:
    if word == "-":
        return Event(author="agent", invocation_id="i", actions=EventActions(state_delta={"k": 1}))
    metadata = {"large": "x" * 300_000} if word == "large" else None
    return said("text", custom_metadata=metadata)


def test_a_page_brings_what_was_appended_since(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for text in "abc":
            await service.append_event(made, said(text))
        page = await service.page_events(**ME, session_id="s", page_size=3)
        assert page.cursor is not None
        assert (await service.page_events(**ME, session_id="s", cursor=page.cursor)).events == []
        await service.append_event(made, said("d"))
        rest = await service.page_events(**ME, session_id="s", cursor=page.cursor)
        assert [each.content.parts[0].text for each in rest.events] == ["d"]
        page.events[0].content.parts[0].text = "changed"
        assert (await service.page_events(**ME, session_id="s")).events == made.events
        assert await service.page_events(**ME, session_id="none") is None
        assert await service.page_events(**ME, session_id=" ") is None

    run(work())


@pytest.mark.parametrize(
    "wrong",
    [{"page_size": 0}, {"page_size": "5"}, {"cursor": 5}, {"cursor": "x"}, {"cursor": '["a",1]'}],
)
def test_wrong_pages_of_sessions_are_refused(service: MemcoreSessionService, wrong) -> None:
    with pytest.raises(InvalidOptionError):
        run(service.page_sessions(app_name="shop", **wrong))


@pytest.mark.parametrize(
    "wrong", [{"page_size": 0}, {"cursor": "5"}, {"cursor": -1}, {"newest_first": 1}]
)
def test_wrong_pages_of_events_are_refused(service: MemcoreSessionService, wrong) -> None:
    run(service.create_session(**ME, session_id="s"))
    with pytest.raises(InvalidOptionError):
        run(service.page_events(**ME, session_id="s", **wrong))
