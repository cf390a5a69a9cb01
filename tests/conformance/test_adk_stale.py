"""Writers who do not know the whole log: refused, or merged by choice where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.session import Session
from google.genai import types

from memcore.adapters.adk import MemcoreSessionService
from memcore.errors import InvalidOptionError
from tests.conformance.adk_events import ME, called, said

AT = {**ME, "session_id": "s"}


@pytest.fixture
def durability() -> str:
    return "none"


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def changes(**delta: Any) -> Event:
    delta = {key.replace("__", ":"): value for key, value in delta.items()}
    return Event(author="x", invocation_id="i", actions=EventActions(state_delta=delta))


async def two_views(service: MemcoreSessionService) -> tuple[Session, Session]:
    await service.create_session(**AT, state={"a": 0, "b": 0})
    views = [await service.get_session(**AT) for _ in range(2)]
    await service.append_event(views[0], said("first", delta={"a": 1, "same": 1, "user:u": 1}))
    return views[0], views[1]


def test_a_stale_change_of_the_state_is_merged_if_asked(db) -> None:
    service = MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        current, stale = await two_views(service)
        event = changes(b=2, same=2, user__u=2, app__p=2, temp__t=2)
        await service.append_event(stale, event)
        assert stale.state == {"a": 0, "b": 2, "same": 2, "user:u": 2, "app:p": 2, "temp:t": 2}
        assert stale.events == [event]
        stored = await service.get_session(**AT)
        assert stored.state == {"a": 1, "b": 2, "same": 2, "user:u": 2, "app:p": 2}
        assert [each.id for each in stored.events] == [current.events[0].id, event.id]
        await service.append_event(stale, event)  # the same event once more changes nothing
        assert len((await service.get_session(**AT)).events) == 2
        # What it did not see it still does not know: only the state is merged.
        for _ in range(2):
            with pytest.raises(StaleSessionError):
                await service.append_event(stale, said("unaware"))
            await service.append_event(stale, changes(b=3))
        with pytest.raises(StaleSessionError):
            await service.append_event(current, said("unaware, too"))
        fresh = await service.get_session(**AT)
        assert fresh.state["b"] == 3
        await service.append_event(fresh, said("aware"))

    run(work())


def test_a_view_that_lost_its_marker_stays_stale_after_a_merge(db) -> None:
    service = MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        current, _ = await two_views(service)
        stale = Session.model_validate_json(current.model_dump_json())
        await service.append_event(current, said("second"))
        await service.append_event(stale, changes(b=2))
        with pytest.raises(StaleSessionError):
            await service.append_event(stale, said("unaware"))

    run(work())


REFUSED = {
    "content": lambda: said("text", delta={"b": 2}),
    "call": lambda: called("c"),
    "compaction": lambda: Event(author="x", actions=EventActions(compaction=EventCompaction(
        start_timestamp=1.0, end_timestamp=2.0,
        compacted_content=types.Content(role="user", parts=[types.Part(text="sum")]),
    ))),
    "rewind": lambda: Event(
        author="x", actions=EventActions(rewind_before_invocation_id="i1", state_delta={"b": 2})
    ),
    "transfer": lambda: Event(
        author="x", actions=EventActions(transfer_to_agent="y", state_delta={"b": 2})
    ),
    "output": lambda: Event(author="x", output="o", actions=EventActions(state_delta={"b": 2})),
    "transcription": lambda: Event(
        author="x", input_transcription=types.Transcription(text="said")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_whatever_else_a_stale_writer_brings_is_refused(db, what) -> None:
    service = MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        _, stale = await two_views(service)
        before = stale.model_copy(deep=True)
        with pytest.raises(StaleSessionError):
            await service.append_event(stale, REFUSED[what]())
        assert stale == before
        assert len((await service.get_session(**AT)).events) == 1

    run(work())


def test_nothing_is_merged_unless_asked_or_into_another_session(db) -> None:
    plain, merging = MemcoreSessionService(db), MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        _, stale = await two_views(plain)
        with pytest.raises(StaleSessionError):
            await plain.append_event(stale, changes(b=2))
        await merging.append_event(stale, changes(b=2))
        await merging.delete_session(**AT)
        with pytest.raises(SessionNotFoundError):
            await merging.append_event(stale, changes(b=3))
        await merging.create_session(**AT)
        with pytest.raises(StaleSessionError):
            await merging.append_event(stale, changes(b=3))
        assert (await merging.get_session(**AT)).state == {"user:u": 1}

    run(work())


@pytest.mark.parametrize("events", [0, 2])
def test_a_view_without_a_marker_is_not_merged_into_a_later_session(db, events) -> None:
    """Its last event says of which session it is; without events, nothing does."""
    service = MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        made = await service.create_session(**AT)
        for number in range(events):
            await service.append_event(made, said(f"text {number}"))
        lost = Session.model_validate_json(made.model_dump_json())
        await service.delete_session(**AT)
        again = await service.create_session(**AT)
        await service.append_event(again, said("another"))
        with pytest.raises(StaleSessionError):
            await service.append_event(lost, changes(b=2))
        assert (await service.get_session(**AT)).state == {}

    run(work())


def test_writers_at_the_same_time_lose_no_key(db) -> None:
    service = MemcoreSessionService(db, on_stale="merge")

    async def work() -> None:
        await service.create_session(**AT)
        views = [await service.get_session(**AT) for _ in range(20)]
        events = [changes(**{f"k{at}": at}) for at in range(20)]
        await asyncio.gather(*map(service.append_event, views, events))
        stored = await service.get_session(**AT)
        assert stored.state == {f"k{at}": at for at in range(20)}
        assert {each.id for each in stored.events} == {each.id for each in events}

    run(work())


def test_other_choices_are_refused(db) -> None:
    for wrong in ("queue", None, True):
        with pytest.raises(InvalidOptionError):
            MemcoreSessionService(db, on_stale=wrong)
