"""MemcoreSessionService against the contract of ADK's session services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreSessionService

T = TypeVar("T")
ME = {"app_name": "shop", "user_id": "ann"}


@pytest.fixture
def service(open_db: Callable[..., memcore.Database]) -> MemcoreSessionService:
    """A service on a file that is checked when the test ends."""
    return MemcoreSessionService(open_db(durability="none"))


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


def said(text: str, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    return Event(
        author=author,
        invocation_id=fields.pop("invocation_id", "i1"),
        content=types.Content(role=role, parts=[types.Part(text=text)]),
        **fields,
    )


def texts(session: Session | None) -> list[str | None]:
    assert session is not None
    return [event.content.parts[0].text for event in session.events]  # type: ignore[union-attr,index]


def test_what_was_created_is_what_is_got(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state={"a": 1, "temp:x": 2})
        assert made.state == {"a": 1}
        assert await service.get_session(**ME, session_id="s") == made
        await service.append_event(made, said("hello", timestamp=1700000000.123))
        got = await service.get_session(**ME, session_id="s")
        assert got == made
        assert got is not None
        assert got.last_update_time == 1700000000.123

    run(work())


def test_ids_are_stripped_and_blank_ones_made(service: MemcoreSessionService) -> None:
    async def work() -> None:
        assert (await service.create_session(**ME, session_id=" s\n")).id == "s"
        with pytest.raises(AlreadyExistsError, match="Session with id s already exists"):
            await service.create_session(**ME, session_id="\ts")
        found = await service.get_session(**ME, session_id=" s ")
        assert found is not None
        assert (await service.create_session(**ME, session_id="  ")).id.strip()
        assert (await service.create_session(**ME)).id
        await service.delete_session(**ME, session_id=" s ")
        assert await service.get_session(**ME, session_id="s") is None
        await service.delete_session(**ME, session_id="s")

    run(work())


def test_a_stale_writer_is_refused(service: MemcoreSessionService) -> None:
    async def work() -> None:
        one = await service.create_session(**ME, session_id="s")
        two = one.model_copy(deep=True)
        await service.append_event(one, said("one", timestamp=5.0))
        before = two.model_copy(deep=True)
        event = said("two", timestamp=5.0, actions=EventActions(state_delta={"temp:a": 1, "b": 2}))
        with pytest.raises(StaleSessionError, match="modified in storage"):
            await service.append_event(two, event)
        assert two == before
        assert event.actions.state_delta == {"temp:a": 1, "b": 2}
        got = await service.get_session(**ME, session_id="s")
        assert texts(got) == ["one"]
        assert got == one

    run(work())


def test_a_missing_session_is_named(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        await service.delete_session(**ME, session_id="s")
        with pytest.raises(SessionNotFoundError, match="Session s not found"):
            await service.append_event(made, said("late"))

    run(work())


def test_recent_events(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for at in range(6):
            await service.append_event(made, said(str(at), timestamp=float(at)))

        async def got(**config: Any) -> list[str | None]:
            found = await service.get_session(
                **ME, session_id="s", config=GetSessionConfig(**config)
            )
            return texts(found)

        assert await got(num_recent_events=0) == []
        assert await got(num_recent_events=2) == ["4", "5"]
        assert await got(num_recent_events=99) == list("012345")
        assert await got(after_timestamp=4.0) == ["4", "5"]
        assert await got(after_timestamp=4.0, num_recent_events=3) == ["4", "5"]
        assert await got(after_timestamp=1.0, num_recent_events=3) == ["3", "4", "5"]
        assert await got() == list("012345")

    run(work())


def test_a_path_is_opened_and_closed(path: Path) -> None:
    async def work() -> None:
        async with MemcoreSessionService(path) as service:
            made = await service.create_session(**ME, session_id="s")
            await service.append_event(made, said("kept"))
        async with MemcoreSessionService(path) as service:
            assert texts(await service.get_session(**ME, session_id="s")) == ["kept"]

    run(work())
