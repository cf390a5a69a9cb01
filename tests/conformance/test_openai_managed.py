"""SessionManager: sessions by user and type, closed, listed, cleaned up by age."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import memcore
from memcore.adapters.openai_agents import MemcoreSession, SessionManager
from memcore.errors import InvalidOptionError
from messages import user
from raw import rows

DAY_US = 24 * 3600 * 1_000_000


def run(work: Any) -> Any:
    return asyncio.run(work)


class Clock:
    def __init__(self, db: memcore.Database) -> None:
        self.us = 1_700_000_000_000_000
        db.backing.now_us = lambda: self.us


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
    assert not any(b"secret" in value for value in rows(db.backing.store).values())


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
