"""Deleting an invocation from a session of ADK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memcore
from memcore.adapters.adk import MemcoreSessionService, append
from memcore.errors import AccessDeniedError, HeldError, InvalidOptionError, NotFoundError
from messages import illegal
from tests.conformance.adk_events import ME, answered, called, event, labels, said
from tests.conformance.test_adk_legal import EXAMPLES

AT = {**ME, "session_id": "s"}


@pytest.fixture
def service(open_db: Any) -> MemcoreSessionService:
    """A service on a file that is checked when the test ends."""
    return MemcoreSessionService(open_db())


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def changed(invocation: str, **delta: Any) -> Event:
    delta = {key.replace("__", ":"): value for key, value in delta.items()}
    return Event(author="x", invocation_id=invocation, actions=EventActions(state_delta=delta))


async def filled(service: MemcoreSessionService) -> list[Event]:
    made = await service.create_session(**AT, state={"a": 0, "b": 0, "kept": 0})
    large = {"large": "secret" * 60_000}
    mixed = types.Part(text="secret beside")
    events = [
        said("one", invocation_id="i1", delta={"a": 1}),
        called("c1", invocation_id="i1"),
        answered("c1", invocation_id="i1"),
        said("secret two", invocation_id="i2", delta={"a": 2, "b": 2, "new": 2, "user:u": 2}),
        called("c2", invocation_id="i2", long_running_tool_ids={"c2"}),
        answered("c2", invocation_id="i2"),
        called(None, invocation_id="i2"),
        event(*answered(None).content.parts, mixed, invocation_id="i2", custom_metadata=large),
        changed("i2", new="secret", other=[1]),
        said("three", invocation_id="i3", delta={"b": 3, "kept": 3}),
        answered("c2", invocation_id="i3"),
        said("end", author="agent", invocation_id="i3"),
    ]
    for each in events:
        await service.append_event(made, each)
    return events


DELETED = [0, 1, 2, 9, 11]


@pytest.mark.parametrize("rewinds", [False, True])
def test_an_invocation_is_deleted_with_the_responses_to_its_calls(
    service: MemcoreSessionService, path: Path, rewinds: bool
) -> None:
    async def work() -> None:
        events = await filled(service)
        before = await service.get_session(**AT)
        assert before.events == service_shown(before, events)
        asked = {**AT, "invocation_id": "i2", "rewind_state": rewinds}
        assert await service.delete_invocation(**asked) == 7
        for reader in (service, MemcoreSessionService(service.database)):
            session = await reader.get_session(**AT)
            assert session.events == [events[at] for at in DELETED]
            raw = [each.content.model_dump(mode="json", by_alias=True, exclude_none=True)
                   for each in session.events]  # fmt: skip
            assert illegal(raw, "gemini") == []
            window = GetSessionConfig(num_recent_events=2)
            assert labels(await reader.get_session(**AT, config=window)) == ["three", "end"]
            state = {"a": 2, "b": 3, "kept": 3, "new": "secret", "other": [1], "user:u": 2}
            if rewinds:
                state = {"a": 1, "b": 3, "kept": 3, "user:u": 2}
            assert session.state == state
            (listed,) = (await reader.list_sessions(**ME)).sessions
            assert listed.state == state
            page = await reader.page_events(**AT)
            assert page.events == session.events
        with pytest.raises(StaleSessionError):
            await service.append_event(before, said("unaware"))
        await service.append_event(session, said("more"))
        assert await service.delete_invocation(**asked) == 0

    run(work())
    service.database.close()
    with memcore.open(path) as db:
        native = db.session("s", app="shop", user="ann")
        assert "secret" not in str([(item.message, item.meta) for item in native.items()])
        assert native.context().messages


def service_shown(session: Any, events: list[Event]) -> list[Event]:
    """The events, with the ids that calls without ids are read with."""
    return [
        shown if at in (6, 7) else each
        for at, (each, shown) in enumerate(zip(events, session.events, strict=True))
    ]


def test_what_was_deleted_does_not_come_back(service: MemcoreSessionService) -> None:
    async def work() -> None:
        events = await filled(service)
        await service.delete_invocation(**AT, invocation_id="i2")
        session = await service.get_session(**AT)
        await service.append_event(session, events[3])  # a late retry
        assert [each.id for each in (await service.get_session(**AT)).events] == [
            events[at].id for at in DELETED
        ]

    run(work())


def test_all_invocations_can_go(service: MemcoreSessionService) -> None:
    async def work() -> None:
        await filled(service)
        for name in ("i3", "i2", "i1"):
            await service.delete_invocation(**AT, invocation_id=name, rewind_state=True)
        session = await service.get_session(**AT)
        assert session.events == []
        assert session.state == {"a": 0, "b": 0, "kept": 0, "user:u": 2}
        await service.append_event(session, said("again"))
        assert labels(await service.get_session(**AT)) == ["again"]

    run(work())


def test_what_is_held_or_not_there_stays(service: MemcoreSessionService) -> None:
    async def work() -> None:
        events = await filled(service)
        for wrong in ({"invocation_id": "none"}, {"invocation_id": ""}, {"session_id": "none"}):
            asked = {**AT, "invocation_id": "i1", **wrong}
            assert await service.delete_invocation(**asked) == 0
        with pytest.raises(InvalidOptionError):
            await service.delete_invocation(**AT, invocation_id="i1", rewind_state="yes")
        native = service.database.session("s", app="shop", user="ann")
        native.hold(reason="a case")
        with pytest.raises(HeldError):
            await service.delete_invocation(**AT, invocation_id="i1", rewind_state=True)
        session = await service.get_session(**AT)
        assert len(session.events) == len(events)
        assert session.state["a"] == 2
        native.release()

    run(work())


def test_events_that_expired_are_passed_over(open_db: Any) -> None:
    """Retention leaves a row of an event without content as an empty place."""
    db = open_db()
    service = MemcoreSessionService(db)

    async def work() -> None:
        made = await service.create_session(**AT)
        for each in (said("one"), changed("i1", k=1), said("two")):
            await service.append_event(made, each)
        db.retention.set([{"what": "items", "keep_last": 1}])
        db.sweep()
        session = await service.get_session(**AT)
        assert labels(session) == ["two"]
        assert session.state == {"k": 1}

    run(work())


@pytest.mark.parametrize("held", ["s", "branch"])
def test_a_hold_reaches_the_events_that_forks_share(
    service: MemcoreSessionService, held: str
) -> None:
    async def work() -> None:
        await filled(service)
        scope = service.database.scope(app="shop", user="ann")
        fork = scope.session("s").fork("branch")
        scope.session(held).hold(reason="a case")
        for name in ("s", "branch"):
            with pytest.raises(HeldError):
                await service.delete_invocation(**{**AT, "session_id": name}, invocation_id="i1")
        assert len(fork) == len(scope.session("s"))
        scope.session(held).release()
        assert await service.delete_invocation(**AT, invocation_id="i1") == 3

    run(work())


def test_an_authorizer_is_asked_before_anything_is_deleted(open_db: Any) -> None:
    asked = []

    def authorizer(request: Any) -> bool:
        asked.append(request.action)
        return request.action != "delete_session"

    service = MemcoreSessionService(open_db(authorizer=authorizer))

    async def work() -> None:
        made = await service.create_session(**AT)
        await service.append_event(made, said("one", invocation_id="i1"))
        with pytest.raises(AccessDeniedError):
            await service.delete_invocation(**AT, invocation_id="i1")
        assert len((await service.get_session(**AT)).events) == 1

    run(work())
    assert "delete_session" in asked


# --- rewinds --------------------------------------------------------------------------------------


def rewinding(to: str, invocation: str = "e-r", **delta: Any) -> Event:
    actions = EventActions(rewind_before_invocation_id=to, state_delta=delta)
    return Event(author="user", invocation_id=invocation, actions=actions)


def live(events: list[Event]) -> list[str]:
    """The ids of the events that ADK shows to models."""
    return [each.id for each in _apply_rewinds(events)]


def test_what_was_rewound_does_not_come_back_when_the_target_goes(
    service: MemcoreSessionService,
) -> None:
    async def work() -> None:
        made = await service.create_session(**AT, state={"k": 0})
        for each in (
            said("one", invocation_id="i1", delta={"k": 1}),
            said("two", invocation_id="i2", delta={"k": 2}),
            said("three", invocation_id="i3", delta={"k": 3, "other": 3}),
            rewinding("i2", k=1, other=None),
            said("four", invocation_id="i4"),
        ):
            await service.append_event(made, each)
        asked = {**AT, "invocation_id": "i2", "rewind_state": True}
        assert await service.delete_invocation(**asked) == 3
        session = await service.get_session(**AT)
        assert labels(session) == ["one", "four"]
        assert session.state["k"] == 1

    run(work())


def test_values_become_what_the_last_event_that_stays_left(
    service: MemcoreSessionService,
) -> None:
    """Also where invocations take turns."""

    async def work() -> None:
        made = await service.create_session(**AT, state={"k": 0, "own": 0})
        for each in (
            said("i2 begins", invocation_id="i2", delta={"own": 1}),
            said("i1", invocation_id="i1", delta={"k": 1}),
            said("i2 goes on", invocation_id="i2", delta={"k": 2, "own": 2}),
        ):
            await service.append_event(made, each)
        asked = {**AT, "invocation_id": "i2", "rewind_state": True}
        assert await service.delete_invocation(**asked) == 2
        assert (await service.get_session(**AT)).state == {"k": 1, "own": 0}

    run(work())


@pytest.mark.parametrize("order", [*permutations(range(2, 6))])
def test_no_value_of_a_deleted_invocation_comes_back_with_the_next_deletion(
    service: MemcoreSessionService, order: tuple[int, ...]
) -> None:
    """In every order: the state is that of the events that are left."""
    deltas: dict[int, dict[str, Any]] = {
        1: {"k": "public"}, 2: {"k": "secret", "n": 2}, 3: {"k": "later"}, 4: {"n": None, "k": 4},
        5: {"k": "secret", "m": 5},
    }  # fmt: skip

    async def work() -> None:
        made = await service.create_session(**AT, state={"k": "first"})
        for at, delta in deltas.items():
            await service.append_event(made, said(str(at), invocation_id=f"i{at}", delta=delta))
        left = dict(deltas)
        for gone in order:
            del left[gone]
            asked = {**AT, "invocation_id": f"i{gone}", "rewind_state": True}
            assert await service.delete_invocation(**asked) == 1
            wanted: dict[str, Any] = {"k": "first"}
            for delta in left.values():
                wanted |= delta
            found = (await service.get_session(**AT)).state
            assert {key: value for key, value in found.items() if value is not None} == {
                key: value for key, value in wanted.items() if value is not None
            }
        native = service.database.session("s", app="shop", user="ann")
        assert "secret" not in [native.state.at_seq(at).get("k") for at in range(1, 6)]

    run(work())


def test_no_value_comes_back_in_a_fork_that_began_with_it(service: MemcoreSessionService) -> None:
    native = service.database.session("s", app="shop", user="ann")

    async def work() -> None:
        made = await service.create_session(**AT, state={"k": "first"})
        await service.append_event(made, said("1", invocation_id="i1", delta={"k": "public"}))
        await service.append_event(
            made, said("2", invocation_id="i2", delta={"k": "secret", "n": "secret"})
        )
        native.fork("f")
        here = {**AT, "session_id": "f"}
        fork = await service.get_session(**here)
        changes = {"k": "later", "n": "later"}
        await service.append_event(fork, said("3", invocation_id="i3", delta=changes))
        for name in ("i2", "i3"):
            await service.delete_invocation(**here, invocation_id=name, rewind_state=True)
        assert (await service.get_session(**here)).state == {"k": "public"}
        assert native.state.all() == {"k": "secret", "n": "secret"}, "another session's state"

    run(work())


def test_a_value_that_was_changed_without_an_event_since_stays(
    service: MemcoreSessionService,
) -> None:
    """Whoever changed it, between the events of the invocation or behind them."""
    native = service.database.session("s", app="shop", user="ann")

    async def work() -> None:
        made = await service.create_session(**AT, state={"a": 0, "b": 0, "c": 0, "d": 0})
        await service.append_event(made, said("one", invocation_id="i1"))
        first = dict.fromkeys("abcd", 1)
        await service.append_event(made, said("two", invocation_id="i2", delta=first))
        native.state.update({"b": "native", "e": "native"})
        await service.append_event(made, changed("i2", b=2, e=2, f=2))
        native.state.update({"c": "native", "f": True})
        native.state.delete("d")
        asked = {**AT, "invocation_id": "i2", "rewind_state": True}
        assert await service.delete_invocation(**asked) == 2
        expected = {"a": 0, "b": "native", "c": "native", "e": "native", "f": True}
        assert (await service.get_session(**AT)).state == expected
        assert native.state.all() == expected

    run(work())


def test_a_value_that_is_changed_while_an_invocation_goes_stays(
    service: MemcoreSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = service.database.session("s", app="shop", user="ann")
    planned = append._before
    writers = ["late"]

    def outpaced(*args: Any) -> Any:
        found = planned(*args)
        if writers:
            native.state.update({"a": writers.pop()})
        return found

    monkeypatch.setattr(append, "_before", outpaced)

    async def work() -> None:
        made = await service.create_session(**AT, state={"a": 0, "b": 0})
        gone = said("one", invocation_id="i1", delta={"a": 1, "b": 1})
        await service.append_event(made, gone)
        asked = {**AT, "invocation_id": "i1", "rewind_state": True}
        assert await service.delete_invocation(**asked) == 1
        assert (await service.get_session(**AT)).state == {"a": "late", "b": 0}

    run(work())


def test_changes_of_other_fields_hold_up_no_deletion(
    service: MemcoreSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes to the state without an event, again and again."""
    native = service.database.session("s", app="shop", user="ann")
    planned, calls = append._before, []

    def outpaced(*args: Any) -> Any:
        found = planned(*args)
        calls.append(found)
        native.state.update({"busy": len(calls)})
        return found

    monkeypatch.setattr(append, "_before", outpaced)

    async def work() -> None:
        made = await service.create_session(**AT, state={"a": 0, "busy": 0})
        await service.append_event(made, said("one", invocation_id="i1", delta={"a": 1}))
        asked = {**AT, "invocation_id": "i1", "rewind_state": True}
        assert await service.delete_invocation(**asked) == 1
        assert calls == [{"a": 0}]
        assert (await service.get_session(**AT)).state == {"a": 0, "busy": 1}

    run(work())


HALF = "half \ud83d"
UNUSUAL = [
    {"delta": {"note": HALF}},
    {"error_message": HALF},
    {"branch": HALF},
    {"custom_metadata": {"k": HALF}},
    {"custom_metadata": {"k": HALF, "large": "x" * 300_000}},
]
"""What JSON says otherwise than most: half of a surrogate pair, also in a row of its own."""


@pytest.mark.parametrize("text", ["plain", HALF], ids=["plain", "half"])
@pytest.mark.parametrize("fields", UNUSUAL, ids=["delta", "error", "branch", "meta", "rest"])
def test_an_event_with_half_of_a_surrogate_pair_is_deleted_and_others_beside_it(
    service: MemcoreSessionService, fields: dict[str, Any], text: str
) -> None:
    async def work() -> None:
        made = await service.create_session(**AT, state={"a": 0})
        events = [
            said("one", invocation_id="i1"),
            said(text, invocation_id="i2", **fields),
            said("three", invocation_id="i3", delta={"a": 3}),
        ]
        for each in events:
            await service.append_event(made, each)
        assert await service.delete_invocation(**AT, invocation_id="i3", rewind_state=True) == 1
        session = await service.get_session(**AT)
        assert session.events == events[:2]
        assert session.state == {"a": 0, **fields.get("delta", {})}
        assert await service.delete_invocation(**AT, invocation_id="i2", rewind_state=True) == 1
        session = await service.get_session(**AT)
        assert session.events == events[:1]
        assert session.state == {"a": 0}

    run(work())


@pytest.mark.parametrize("text", ["plain", HALF], ids=["plain", "half"])
@pytest.mark.parametrize("large", ["", "x" * 300_000], ids=["meta", "rest"])
def test_a_number_beyond_64_bits_becomes_what_it_was(
    service: MemcoreSessionService, text: str, large: str
) -> None:
    async def work() -> None:
        made = await service.create_session(**AT, state={"n": 1})
        for number, name in ((2**64 + 1, "i1"), (2**70 + 1, "i2")):
            each = said(text, invocation_id=name, delta={"n": number})
            each.custom_metadata = {"large": large}
            await service.append_event(made, each)
        for name, left in (("i2", 2**64 + 1), ("i1", 1)):
            asked = {**AT, "invocation_id": name, "rewind_state": True}
            assert await service.delete_invocation(**asked) == 1
            assert (await service.get_session(**AT)).state == {"n": left}

    run(work())


@pytest.mark.parametrize("text", ["plain", HALF], ids=["plain", "half"])
@pytest.mark.parametrize("fields", UNUSUAL, ids=["delta", "error", "branch", "meta", "rest"])
def test_a_writer_without_a_marker_knows_a_last_event_with_half_of_a_surrogate_pair(
    service: MemcoreSessionService, fields: dict[str, Any], text: str
) -> None:
    """By the id of the last event that its object shows. Lists know when that was."""

    async def work() -> None:
        made = await service.create_session(**AT)
        last = said(text, timestamp=1e9, **fields)
        await service.append_event(made, last)
        (listed,) = (await MemcoreSessionService(service.database).list_sessions(**ME)).sessions
        assert listed.last_update_time == last.timestamp
        unmarked = Session(id="s", app_name="shop", user_id="ann", events=[*made.events])
        await service.append_event(unmarked, said("more"))
        assert labels(await service.get_session(**AT)) == [text, "more"]

    run(work())


def test_a_state_whose_past_was_trimmed_is_not_rewound(service: MemcoreSessionService) -> None:
    native = service.database.session("s", app="shop", user="ann")

    async def work() -> None:
        made = await service.create_session(**AT, state={"a": 0})
        for name in ("i1", "i2"):
            await service.append_event(made, said(name, invocation_id=name, delta={"a": name}))
        native.state.trim()
        with pytest.raises(NotFoundError, match="rewind_state=False"):
            await service.delete_invocation(**AT, invocation_id="i2", rewind_state=True)
        session = await service.get_session(**AT)
        assert (labels(session), session.state) == (["i1", "i2"], {"a": "i2"})
        assert await service.delete_invocation(**AT, invocation_id="i2") == 1
        session = await service.get_session(**AT)
        assert (labels(session), session.state) == (["i1"], {"a": "i2"})

    run(work())


STEPS = ["i1", "i2", "i3", "i4", "C1", "C2", "R1", "R2", "Z1", "Z2", "Z3", "Zr0", "Zr1"]


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(
    st.lists(st.sampled_from(STEPS), min_size=2, max_size=12), st.sampled_from([*STEPS[:4], "r0"])
)
@example(["i1", "i2", "i3", "Z2", "i4"], "i2")
@example(["i1", "i2", "i3", "Z2", "Z3", "i4"], "i3")
@example(["i1", "C1", "i2", "R1", "i3", "Z2", "i4"], "i1")
@example(["i1", "i2", "Z2", "i3"], "r0")
def test_deleting_shows_and_hides_nothing_else(words: list[str], goal: str) -> None:
    """What ADK shows of what is left is what it showed before, less what went."""

    async def work() -> None:
        with MemcoreSessionService(":memory:") as service:
            made = await service.create_session(**AT)
            now, rewinds = "i1", 0
            for word in words:
                if word[0] == "i":
                    now, each = word, said("text", invocation_id=word)
                elif word[0] == "C":
                    each = called(word[1:], invocation_id=now)
                elif word[0] == "R":
                    each = answered(word[1:], invocation_id=now)
                else:
                    to = word[1:] if word[1] == "r" else "i" + word[1:]
                    each = rewinding(to, f"r{rewinds}")
                    rewinds += 1
                await service.append_event(made, each)
            before = (await service.get_session(**AT)).events
            await service.delete_invocation(**AT, invocation_id=goal)
            left = (await service.get_session(**AT)).events
            stayed = {each.id for each in left}
            assert not any(each.invocation_id == goal for each in left)
            assert live(left) == [each for each in live(before) if each in stayed]
            assert {each.id for each in before if each.invocation_id != goal} - stayed <= {
                each.id for each in before if each.id not in live(before)
            } | {each.id for each in before if each.get_function_responses()}

    run(work())
