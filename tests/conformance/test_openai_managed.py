"""SessionManager: sessions by user and type, closed, listed, cleaned up by age."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import memcore
from memcore.adapters.openai_agents import MemcoreSession, SessionManager
from memcore.errors import InvalidOptionError
from memcore.session.session import store_of
from messages import user
from raw import rows

DAY_US = 24 * 3600 * 1_000_000


def run(work: Any) -> Any:
    return asyncio.run(work)


class Clock:
    def __init__(self, db: memcore.Database) -> None:
        self.us = 1_700_000_000_000_000
        db.engine.now_us = lambda: self.us


@pytest.fixture
def clock(db):
    return Clock(db)


def test_a_manager_hands_out_one_session_a_user_and_type(path):
    with SessionManager(path, session_settings={"limit": 1}) as manager:
        session = manager.get_session("ann")
        assert manager.get_session("ann", "default") is session
        assert manager.get_session("ann", "work") is not session
        assert manager.get_session("bob").native().user == "bob"
        assert session.session_settings.limit == 1
        run(session.add_items([user("a"), user("b")]))
        assert run(manager.get_session("bob").get_items()) == []
        assert manager.close_session("ann")
        assert not manager.close_session("ann")
        assert session.is_closed
        assert run(manager.get_session("ann").get_items()) == [user("b")]
        other = manager.get_session("bob")
        manager.close_all_sessions()
        assert other.is_closed
        assert manager.active_sessions == {}
        last = manager.get_session("bob")
        last.close()
        assert not manager.get_session("bob").is_closed
    with pytest.raises(RuntimeError, match="SessionManager is closed"):
        manager.get_session("ann")
    with pytest.raises(RuntimeError):
        run(manager.cleanup_old_sessions())
    manager.close()
    with memcore.open(path) as db:
        assert db.stats()["handles"] == 1


def test_names_that_look_alike_are_different_sessions(db):
    manager = SessionManager(db)
    run(manager.get_session("a_b", "c").add_items([user("1")]))
    run(manager.get_session("a", "b_c").add_items([user("2")]))
    assert run(manager.get_session("a_b", "c").get_items()) == [user("1")]
    with pytest.raises(ValueError, match="user"):
        manager.get_session("")
    manager.close()
    assert list(db.sessions())


def test_old_sessions_are_removed_from_the_file(db, clock):
    async def work():
        async with SessionManager(db) as manager:
            await MemcoreSession("no manager's", db, user="ann").add_items([user()])
            for who in ("ann", "bob"):
                await manager.get_session(who).add_items([user("secret")])
            await manager.get_session("ann", "work").add_items([user()])
            clock.us += 20 * DAY_US
            await manager.get_session("ann", "work").add_items([user()])
            clock.us += 11 * DAY_US
            stored = await manager.list_sessions()
            gone = await manager.cleanup_old_sessions()
            assert [(each.user_id, each.session_type) for each in gone] == [
                ("ann", "default"), ("bob", "default"),
            ]  # fmt: skip
            assert await manager.get_session("bob").get_items() == []
            assert len(stored) == 3
            (left,) = await manager.list_sessions("ann")
            assert (left.session_type, left.items) == ("work", 2)
            assert left.updated_at - left.created_at == 20 * 24 * 3600
            assert await manager.list_sessions("bob") == []
            assert await manager.cleanup_old_sessions(days=11) == []
            assert await manager.delete_session("ann", "work")
            assert not await manager.delete_session("ann", "work")
            for wrong in (-1, float("nan"), "30", True):
                with pytest.raises(ValueError, match="days"):
                    await manager.cleanup_old_sessions(wrong)
        return [entry.session_id for entry in db.sessions()]

    assert run(work()) == ["no manager's"]
    assert not any(b"secret" in value for value in rows(db.engine.store).values())


@pytest.mark.parametrize("name", ["\0ann", "a" * 65_530])
def test_a_user_whose_sessions_could_not_be_listed_has_none(db, name):
    with pytest.raises(InvalidOptionError, match="user_id"):
        SessionManager(db).get_session(name)
    assert SessionManager(db).get_session(name[1:50]).native().user == name[1:50]


def test_a_session_that_was_just_changed_is_not_cleaned_up(db, clock):
    async def work():
        manager = SessionManager(db)
        session = manager.get_session("ann")
        await session.add_items([user()])
        clock.us += 40 * DAY_US
        listed = manager.list_sessions

        async def slow(*args: Any) -> Any:
            found = await listed(*args)
            await session.add_items([user("just now")])
            return found

        manager.list_sessions = slow
        assert await manager.cleanup_old_sessions() == []
        return len(await session.get_items())

    assert run(work()) == 2


def test_an_application_named_like_tables_is_another_one(db: memcore.Database) -> None:
    async def run() -> None:
        item: Any = {"role": "user", "content": "secret"}
        await MemcoreSession("s", db, "a", "b", app="shop").add_items([item])
        assert await MemcoreSession("s", db, app='shop ["a", "b"]').get_items() == []

    asyncio.run(run())


# --- titles, metadata, search ---------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"encryption_key": "a long random secret"}])
def test_titles_and_metadata_are_kept_with_the_session(path, options):
    async def work():
        with MemcoreSession("chat", path, **options) as session:
            assert await session.get_title() is None
            assert await session.get_metadata() == {}
            await session.set_title("")
            await session.set_title("A trip to Graz")
            await session.set_metadata({"tags": ["travel"], "n": 2**70})
            assert await session.get_items() == []
            await session.add_items([user("a"), user("b")])
            await session.create_branch_from_turn(2)
            assert await session.get_title() == "A trip to Graz"  # of all its branches
            await session.set_title("Graz, again")
            stored = b"".join(rows(store_of(session.native().sync)).values())
            assert (b"Graz" in stored) == (not options)
        with MemcoreSession("chat", path, **options) as again:
            assert await again.get_title() == "Graz, again"
            assert await again.get_metadata() == {"tags": ["travel"], "n": 2**70}
            await again.set_metadata(None)
            await again.set_title(None)
            assert (await again.get_title(), await again.get_metadata()) == (None, {})
            await again.set_title("once more")
            await again.clear_session()
            assert await again.get_title() is None
            for wrong in (7, b"x", ["x"]):
                with pytest.raises(InvalidOptionError):
                    await again.set_title(wrong)
                with pytest.raises(InvalidOptionError):
                    await again.set_metadata(wrong)
            with pytest.raises(TypeError):
                await again.set_metadata({"what": object()})

    run(work())
    with memcore.open(path) as db:
        assert db.check() == []


def test_titles_go_where_the_session_goes(db, clock, tmp_path):
    async def work():
        session = MemcoreSession("chat", db, ttl_seconds=60)
        await session.add_items([user("old")])
        await session.set_title("stays")
        clock.us += 61 * 1_000_000
        assert await session.get_items() == []
        assert await session.get_title() == "stays"
        await session.add_items([user("new")])

    run(work())
    with memcore.open(tmp_path / "other") as other:
        other.import_(db.export())
        assert run(MemcoreSession("chat", other).get_title()) == "stays"


def test_sessions_are_listed_and_found_by_title_metadata_and_contents(db):
    async def work():
        manager = SessionManager(db)
        trip = manager.get_session("ann", "trip")
        await trip.set_title("A Trip to GRAZ")
        await trip.set_metadata({"project": "Straße 7"})
        await manager.get_session("ann").add_items(
            [user("x" * 500 + " the castle hill " + "y" * 500), {"type": "reasoning", "id": "r"}]
        )
        output = {"type": "function_call_output", "call_id": "c", "output": "18 °C in Graz"}
        await manager.get_session("bob").add_items([user("weather?"), output])
        listed = {(s.user_id, s.session_type): s for s in await manager.list_sessions()}
        assert listed["ann", "trip"].title == "A Trip to GRAZ"
        assert dict(listed["ann", "trip"].metadata) == {"project": "Straße 7"}
        assert listed["bob", "default"].title is None
        assert dict(listed["bob", "default"].metadata) == {}

        async def found(query: str, *args: Any, **options: Any) -> list[tuple[str, str, str]]:
            hits = await manager.search(query, *args, **options)
            return [(hit.session.user_id, hit.session.session_type, hit.where) for hit in hits]

        assert await found("graz") == [("ann", "trip", "title"), ("bob", "default", "content")]
        assert await found("graz", "bob") == [("bob", "default", "content")]
        assert await found("graz", limit=1) == [("ann", "trip", "title")]
        assert await found("trip castle") == []  # all words in one place
        assert await found("STRASSE") == [("ann", "trip", "metadata")]
        assert await found("hill CASTLE") == [("ann", "default", "content")]
        assert await found("nowhere") == []
        (hit,) = await manager.search("castle")
        assert "castle" in hit.excerpt
        assert len(hit.excerpt) <= 80
        for wrong in ("", "  ", None):
            with pytest.raises(InvalidOptionError):
                await manager.search(wrong)
        with pytest.raises(InvalidOptionError):
            await manager.search("x", limit=0)
        assert len(manager.active_sessions) == 3
        manager.close()
        with pytest.raises(RuntimeError):
            await manager.search("x")

    run(work())


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("ß" * 300 + " the CASTLE " + "ﬀ" * 300, "castle"),
        ("x" * 100 + "Straße 7", "STRASSE"),
        ("ﬃ" * 200 + "Maße", "ss"),
        ("İ" * 150 + "castle", "castle"),
    ],
)
def test_an_excerpt_holds_the_words_as_they_stand(db, text, query):
    """Also where characters fold to several."""

    async def work():
        manager = SessionManager(db)
        await manager.get_session("ann").add_items([user(text)])
        (hit,) = await manager.search(query)
        return hit.excerpt

    excerpt = run(work())
    assert excerpt in text
    assert query.casefold() in excerpt.casefold()
    assert len(excerpt) <= 80


def test_whoever_deletes_needs_leave_to_delete(open_db):
    """A session may be used by whom its end is refused to; nothing goes then."""
    allowed: set[str] = set()
    asked: list[tuple[str, str | None]] = []

    def authorizer(request: memcore.AccessRequest) -> bool:
        asked.append((request.action, request.name))
        return request.action != "delete_session" or request.name in allowed

    db = open_db(authorizer=authorizer)
    clock = Clock(db)

    async def work():
        manager = SessionManager(db)
        for name in ("ann", "bob"):
            session = manager.get_session(name)
            await session.add_items([user("a"), user("b")])
            await session.create_branch_from_turn(2, "other")
            await session.switch_to_branch("main")
        session = manager.get_session("ann")
        clock.us += 40 * DAY_US
        allowed.add("bob_default")
        ways: list[Any] = [
            session.clear_session,
            lambda: session.delete_branch("other"),
            lambda: manager.delete_session("ann"),
            manager.cleanup_old_sessions,
        ]
        for way in ways:
            with pytest.raises(memcore.AccessDeniedError):
                await way()
            assert len(await session.get_items()) == 2
            assert len(await session.get_items(branch_id="other")) == 1
        assert len(await manager.get_session("bob").get_items()) == 2
        assert ("delete_session", "ann_default") in asked
        allowed.add("ann_default")
        await session.delete_branch("other")
        await session.clear_session()
        assert await session.get_items() == []
        assert len(await manager.cleanup_old_sessions()) == 1

    run(work())


def test_a_search_passes_over_what_another_key_opens(db):
    async def work():
        first = SessionManager(db, encryption_key="one long secret")
        await first.get_session("ann").add_items([user("castle")])
        await first.get_session("ann").set_title("castle")
        assert [hit.where for hit in await first.search("castle")] == ["title"]
        other = SessionManager(db, encryption_key="another long secret")
        await other.get_session("bob").add_items([user("castle")])
        assert [hit.session.user_id for hit in await other.search("castle")] == ["bob"]
        assert [each.title for each in await other.list_sessions()] == [None, None]

    run(work())


def test_titles_and_queries_are_redacted_as_items_are(tmp_path):
    async def work(db, options):
        manager = SessionManager(db, **options)
        session = manager.get_session("ann")
        await session.set_title("mail to ann@example.org")
        await session.set_metadata({"from": "bob@example.org"})
        assert "example.org" not in str(await session.get_title())
        assert "example.org" not in str(await session.get_metadata())
        return [hit.where for hit in await manager.search("ann@example.org")]

    for at, options in enumerate(({}, {"encryption_key": "a long random secret"})):
        with memcore.open(tmp_path / str(at), redact="default") as db:
            assert run(work(db, options)) == ["title"]
            assert not any(b"example.org" in value for value in rows(db.engine.store).values())


@pytest.mark.parametrize("options", [{"sessions_table": "other"}, {"app": 'a ["x", "y"]'}])
def test_sessions_of_other_tables_are_found_and_deleted(path, options):
    with SessionManager(path, **options) as manager:
        run(manager.get_session("u1").add_items([user("hello")]))
        assert [each.user_id for each in run(manager.list_sessions())] == ["u1"]
        assert [each.session.user_id for each in run(manager.search("hello"))] == ["u1"]
        assert run(manager.delete_session("u1"))
        assert run(manager.list_sessions()) == []
        run(manager.get_session("u2").add_items([user("hello")]))
        later = manager._database.engine.now_us() + DAY_US
        manager._database.engine.now_us = lambda: later
        assert [each.user_id for each in run(manager.cleanup_old_sessions(0))] == ["u2"]
        assert run(manager.list_sessions()) == []
