"""MemcoreSessionService does what ADK's own service in memory does, whatever it is asked."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time as platform_time
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcore.adapters.adk import MemcoreSessionService

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "20"))

USERS = st.sampled_from(["ann", "bob", ""])
NAMES = st.sampled_from(["s", " s\t", "t", "\x00", "☃"])
KEYS = st.sampled_from(["a", "b", "user:a", "user:b", "app:a", "app:b", "temp:a", "x:y"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
STATES = st.dictionaries(KEYS, VALUES, max_size=3)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=2)
IDS = st.sampled_from(["c1", "c2", None])
PARTS = st.one_of(
    st.builds(types.Part, text=st.text(max_size=5), thought=st.none() | st.booleans()),
    st.builds(
        types.Part,
        function_call=st.builds(types.FunctionCall, id=IDS, name=st.just("f"), args=OBJECTS),
        thought_signature=st.none() | st.binary(max_size=9),
    ),
    st.builds(
        types.Part,
        function_response=st.builds(
            types.FunctionResponse, id=IDS, name=st.just("f"), response=OBJECTS
        ),
    ),
    st.builds(
        types.Part,
        inline_data=st.builds(types.Blob, mime_type=st.just("a/b"), data=st.binary(max_size=9)),
    ),
)
CONTENTS = st.builds(
    types.Content,
    role=st.sampled_from(["user", "model", None]),
    parts=st.none() | st.lists(PARTS, max_size=3),
)
EVENTS = st.builds(
    dict,
    author=st.sampled_from(["user", "agent"]),
    content=st.none() | CONTENTS,
    custom_metadata=st.none() | OBJECTS,
    output=st.none() | VALUES,
    partial=st.sampled_from([None, None, None, False, True]),
    branch=st.none() | st.text(max_size=3),
    long_running_tool_ids=st.none() | st.sets(st.text(max_size=2), max_size=3),
    delta=STATES,
)
WINDOWS = st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(0, 9))
STEPS = st.one_of(
    st.tuples(st.just("create"), USERS, NAMES, STATES),
    st.tuples(st.just("append"), USERS, NAMES, EVENTS),
    st.tuples(st.just("append"), USERS, NAMES, EVENTS),
    st.tuples(st.just("again"), USERS, NAMES, st.none()),
    st.tuples(st.just("get"), USERS, NAMES, WINDOWS),
    st.tuples(st.just("list"), USERS, NAMES, st.booleans()),
    st.tuples(st.just("delete"), USERS, NAMES, st.none()),
    st.tuples(st.just("state"), USERS, NAMES, st.none()),
)
FIRST = [("create", user, "s", {"a": 1, "user:a": 2, "app:a": 3}) for user in ("ann", "bob")]


class Tried:
    """One of the services with the objects that it handed out."""

    def __init__(self, service: BaseSessionService) -> None:
        self.service = service
        self.objects: dict[tuple[str, str], Session] = {}
        self.last: dict[tuple[str, str], Event] = {}

    async def do(self, what: str, *given: Any) -> Any:
        """Do one step; what is to be compared of it."""
        try:
            return await getattr(self, what)(*given)
        except Exception as error:  # noqa: BLE001 - errors are part of what is compared
            return type(error).__name__, str(error)

    async def create(self, user: str, name: str, state: Any, _: Any) -> Any:
        found = await self.service.create_session(**of(user), session_id=name, state=state)
        self.objects[user, name.strip()] = found
        return seen(found)

    async def append(self, user: str, name: str, _: Any, event: Event) -> Any:
        session = self.objects.get((user, name.strip()))
        if session is None:
            return None
        await self.service.append_event(session, event)
        if not event.partial:
            self.last[user, name.strip()] = event
        return seen(session), event.model_dump()

    async def again(self, user: str, name: str, _: Any, __: Any) -> Any:
        key = (user, name.strip())
        if key not in self.last:
            return None
        await self.service.append_event(self.objects[key], self.last[key])
        return seen(self.objects[key])

    async def get(self, user: str, name: str, window: Any, _: Any) -> Any:
        config = GetSessionConfig(num_recent_events=window[0], after_timestamp=window[1])
        return seen(await self.service.get_session(**of(user), session_id=name, config=config))

    async def list(self, user: str, _: Any, is_all: Any, __: Any) -> Any:
        found = await self.service.list_sessions(app_name="app", user_id=None if is_all else user)
        return [seen(session) for session in found.sessions]

    async def delete(self, user: str, name: str, _: Any, __: Any) -> Any:
        self.last.pop((user, name.strip()), None)
        await self.service.delete_session(**of(user), session_id=name)

    async def state(self, user: str, *_: Any) -> Any:
        return await self.service.get_user_state(**of(user))


def of(user: str) -> dict[str, str]:
    return {"app_name": "app", "user_id": user}


def seen(session: Session | None) -> Any:
    """All of a session but what each service remembers for itself."""
    if session is None:
        return None
    dumped = session.model_dump()
    return {key: repr(value) for key, value in dumped.items() if key != "state"}, {
        key: repr(value) for key, value in sorted(dumped["state"].items())
    }


CALL_WITHOUT_ID = types.Content(
    role="model", parts=[types.Part(function_call=types.FunctionCall(name="f", args={}))]
)
CALLED = {"author": "agent", "content": CALL_WITHOUT_ID, "delta": {}}


@settings(max_examples=EXAMPLES, deadline=None)
@example([("append", "ann", "s", CALLED), ("get", "ann", "s", (None, None))])
@given(st.lists(STEPS, max_size=25))
def test_as_in_memory(steps: list[Any]) -> None:
    async def work() -> None:
        with MemcoreSessionService(":memory:", mend=False) as ours:
            model, tried = Tried(InMemorySessionService()), Tried(ours)
            uncached = MemcoreSessionService(ours.database, cache_bytes=0, mend=False)
            fresh = Tried(uncached)
            for at, (what, user, name, given_) in enumerate(FIRST + steps):
                events = [None, None]
                if what == "append":
                    fields = dict(given_)
                    actions = EventActions(state_delta=fields.pop("delta"))
                    event = Event(timestamp=float(at), id=f"e{at}", actions=actions, **fields)
                    events = [event, event.model_copy(deep=True)]
                clock = itertools.count(at)
                platform_time.set_time_provider(lambda clock=clock: float(next(clock)))
                want = await model.do(what, user, name, given_, events[0])
                clock = itertools.count(at)
                platform_time.set_time_provider(lambda clock=clock: float(next(clock)))
                assert await tried.do(what, user, name, given_, events[1]) == want
                if what in ("get", "list"):
                    assert await fresh.do(what, user, name, given_, None) == want
            assert ours.database.check() == []

    try:
        asyncio.run(work())
    finally:
        platform_time.reset_time_provider()
