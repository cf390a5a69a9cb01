"""MemcoreSessionService against the contract of ADK's session services."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import gc
import logging
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreSessionService
from memcore.adapters.adk.append import Turn, Turns
from memcore.errors import (
    ClosedError,
    CorruptValueError,
    DuplicateRequestError,
    InvalidItemError,
    InvalidOptionError,
)
from tests.conformance.adk_events import ME, answered, called, event, labels, said
from tests.raw import rows

T = TypeVar("T")
Open = Callable[..., memcore.Database]


@pytest.fixture
def service(open_db: Open) -> MemcoreSessionService:
    """A service on a file that is checked when the test ends."""
    return MemcoreSessionService(open_db(durability="none", allow_unsafe=True))


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


async def got(service: MemcoreSessionService, name: str = "s", **config: Any) -> Session:
    found = await service.get_session(
        **ME, session_id=name, config=GetSessionConfig(**config) if config else None
    )
    assert found is not None
    return found


# --- sessions -------------------------------------------------------------------------------------


def test_what_was_created_is_what_is_got(service: MemcoreSessionService) -> None:
    async def work() -> None:
        state = {"a": {"b": [1]}, "temp:x": 2, "app:c": 3, "user:d": None}
        made = await service.create_session(**ME, session_id="s", state=state)
        assert (made.id, made.app_name, made.user_id, made.events) == ("s", "shop", "ann", [])
        assert made.state == {"a": {"b": [1]}, "app:c": 3, "user:d": None}
        assert made.last_update_time > 0
        assert await got(service) == made
        assert await service.get_session(**ME, session_id="other") is None
        assert await service.get_session(**ME, session_id=" ") is None

    run(work())


def test_ids_are_stripped_and_blank_ones_made(service: MemcoreSessionService) -> None:
    async def work() -> None:
        assert (await service.create_session(**ME, session_id=" s\n", state={"k": 1})).id == "s"
        with pytest.raises(AlreadyExistsError, match="Session with id s already exists"):
            await service.create_session(**ME, session_id="\ts", state={"k": 2, "app:k": 3})
        assert (await got(service, " s ")).state == {"k": 1}
        first = await service.create_session(**ME, session_id="  ")
        assert first.id.strip() == first.id != ""
        assert (await service.create_session(**ME)).id not in ("", first.id)
        await service.delete_session(**ME, session_id=" s ")
        assert await service.get_session(**ME, session_id="s") is None
        await service.delete_session(**ME, session_id="s")
        await service.delete_session(**ME, session_id="")

    run(work())


def test_sessions_are_keyed_by_app_user_and_id(service: MemcoreSessionService) -> None:
    owners = [("a", "b/c"), ("a/b", "c"), ("a", "b"), ("b", "a"), ("a", ""), ("", "a"), ("", "")]

    async def work() -> None:
        for app, user in owners:
            made = await service.create_session(
                app_name=app, user_id=user, session_id="c/s", state={"who": [app, user]}
            )
            await service.append_event(made, said(f"{app} {user}"))
        await service.delete_session(app_name="a", user_id="b", session_id="c/s")
        for app, user in owners:
            found = await service.get_session(app_name=app, user_id=user, session_id="c/s")
            if (app, user) == ("a", "b"):
                assert found is None
            else:
                assert found is not None
                assert found.state == {"who": [app, user]}
                assert labels(found) == [f"{app} {user}"]
        listed = await service.list_sessions(app_name="a")
        assert [(s.app_name, s.user_id) for s in listed.sessions] == [("a", "b/c"), ("a", "")]
        listed = await service.list_sessions(app_name="a", user_id="")
        assert [s.user_id for s in listed.sessions] == [""]

    run(work())


def test_a_session_of_another_framework_has_its_name(open_db: Open) -> None:
    db = open_db(durability="none")
    native = db.session("s", app="shop", user="ann")
    native.append({"role": "user", "content": "hello"})
    service = MemcoreSessionService(db)

    async def work() -> None:
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**ME, session_id="s")
        made = await got(service)
        assert made.events == []
        assert made.last_update_time == native.get(1).created_at
        await service.append_event(made, said("over here"))
        assert labels(await got(service, num_recent_events=9)) == ["over here"]

    run(work())


def test_parallel_creations_of_a_new_app(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await asyncio.gather(
            *(
                service.create_session(
                    app_name="new", user_id=f"u{i % 3}", session_id=str(i), state={"app:k": i}
                )
                for i in range(24)
            )
        )
        assert sorted(s.id for s in made) == sorted(map(str, range(24)))
        assert len((await service.list_sessions(app_name="new")).sessions) == 24
        same = await asyncio.gather(
            *(service.create_session(**ME, session_id="one") for _ in range(8)),
            return_exceptions=True,
        )
        assert sum(isinstance(each, Session) for each in same) == 1
        assert sum(isinstance(each, AlreadyExistsError) for each in same) == 7

    run(work())


def test_the_list_is_in_the_order_of_the_last_change(service: MemcoreSessionService) -> None:
    async def work() -> None:
        sessions = {}
        for user, name in (("u2", "a"), ("u1", "b"), ("u1", "a"), ("u1", "empty")):
            sessions[user, name] = await service.create_session(
                app_name="shop", user_id=user, session_id=name, state={"own": name, "user:u": user}
            )
        for key, time in ((("u2", "a"), 9e9), (("u1", "b"), 9e9), (("u1", "a"), 5.0)):
            await service.append_event(
                sessions[key], said("x", timestamp=time, delta={"app:seen": [1]})
            )
        listed = (await service.list_sessions(app_name="shop")).sessions
        order = [("u1", "a"), ("u1", "empty"), ("u1", "b"), ("u2", "a")]
        assert [(s.user_id, s.id) for s in listed] == order
        assert [s.events for s in listed] == [[]] * 4
        for each in listed:
            assert each.state == {"own": each.id, "user:u": each.user_id, "app:seen": [1]}
        listed[0].state["app:seen"].append(2)
        assert listed[1].state["app:seen"] == [1]
        ours = (await service.list_sessions(app_name="shop", user_id="u1")).sessions
        assert [s.id for s in ours] == ["a", "empty", "b"]
        assert (await service.list_sessions(app_name="shop", user_id="nobody")).sessions == []
        await service.append_event(ours[0], said("goes on from a listed one"))

    run(work())


def test_what_is_shared_outlives_a_session(service: MemcoreSessionService) -> None:
    async def work() -> None:
        assert await service.get_user_state(**ME) == {}
        made = await service.create_session(**ME, session_id="s", state={"user:a": 1, "app:b": 2})
        await service.append_event(made, said("x", delta={"user:c": {"d": None}, "user:a": None}))
        assert await service.get_user_state(**ME) == {"a": None, "c": {"d": None}}
        await service.delete_session(**ME, session_id="s")
        again = await service.create_session(**ME, session_id="s")
        assert again.state == {"user:a": None, "user:c": {"d": None}, "app:b": 2}
        other = await service.create_session(app_name="shop", user_id="bob")
        assert other.state == {"app:b": 2}
        assert await service.get_user_state(app_name="shop", user_id="bob") == {}

    run(work())


# --- events ---------------------------------------------------------------------------------------


def every_field() -> Event:
    return Event(
        author="agent",
        invocation_id="i7",
        branch="root.agent",
        isolation_scope="fc-1",
        timestamp=1700000000.1234567,
        partial=False,
        turn_complete=True,
        interrupted=False,
        error_code="E",
        error_message="message",
        long_running_tool_ids={"b", "a", "c"},
        content=types.Content(
            role="model",
            parts=[
                types.Part(text="thinking", thought=True, thought_signature=b"\x00\xff\xfe?>"),
                types.Part(inline_data=types.Blob(mime_type="image/png", data=bytes(range(256)))),
                types.Part(function_call=types.FunctionCall(id="c1", name="f", args={"x": None})),
                types.Part(file_data=types.FileData(file_uri="gs://x", mime_type="text/plain")),
            ],
        ),
        grounding_metadata=types.GroundingMetadata(
            web_search_queries=["q"],
            search_entry_point=types.SearchEntryPoint(sdk_blob=b"\xff\x00blob"),
        ),
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1,
            prompt_tokens_details=[
                types.ModalityTokenCount(modality=types.MediaModality.TEXT, token_count=1)
            ],
        ),
        citation_metadata=types.CitationMetadata(citations=[types.Citation(title="t")]),
        custom_metadata={"k": {"deep": [1, 2.5, True, None]}},
        input_transcription=types.Transcription(text="in", finished=True),
        output_transcription=types.Transcription(text="out", finished=False),
        finish_reason=types.FinishReason.STOP,
        output={"any": ["thing"]},
        node_info={"path": "wf/a@1", "output_for": ["wf"], "message_as_output": True},
        actions=EventActions(
            skip_summarization=True,
            state_delta={"a": 1},
            artifact_delta={"file": 3},
            transfer_to_agent="b",
            transfer_reason="why",
            escalate=True,
            requested_tool_confirmations={"c1": ToolConfirmation(hint="h", payload={"p": [1]})},
            end_of_agent=True,
            agent_state={"step": 2},
            route=["x", 1, True],
            set_model_response={"r": 1},
        ),
    )


def test_every_field_comes_back(service: MemcoreSessionService, path: Path) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        given = every_field()
        assert await service.append_event(made, given) is given
        plain = [said("hi"), called("c"), answered("c"), event(), said("", author="agent")]
        for each in plain:
            await service.append_event(made, each)
        want = [every_field().model_copy(update={"id": given.id}), *plain]
        assert made.events == want
        for reader in (service, MemcoreSessionService(path)):
            found = await got(reader)
            assert found == made
            assert found.events == want
            reader.close()

    run(work())


def test_partial_events_are_not_touched(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        before = copy.deepcopy(made)
        given = said("par", partial=True, delta={"temp:a": 1, "b": 2})
        assert await service.append_event(made, given) is given
        assert given.actions.state_delta == {"temp:a": 1, "b": 2}
        assert made == before == await got(service)

    run(work())


def test_temporary_values_are_the_objects_alone(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        given = said("x", delta={"temp:a": object, "b": 2})
        await service.append_event(made, given)
        assert made.state == {"temp:a": object, "b": 2}
        assert given.actions.state_delta == {"b": 2}
        found = await got(service)
        assert found.state == {"b": 2}
        assert found.events[0].actions.state_delta == {"b": 2}

    run(work())


def test_values_keep_their_type(service: MemcoreSessionService) -> None:
    values = {
        "true": True,
        "false": False,
        "one": 1,
        "1.0": 1.0,
        "sum": 0.1 + 0.2,
        "big": 2**80,
        "-big": -(10**30),
        "text": "☃\x00'\"",
        "nested": {"b": True, "l": [False, 0, 0.0, None, {}]},
        "none": None,
    }

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state=values)
        await service.append_event(
            made, said("x", delta={f"user:{k}": v for k, v in values.items()})
        )
        await service.append_event(made, said("y", delta={"nested": {"only": 1}, "one": None}))
        state = (await got(service)).state
        assert state.pop("nested") == {"only": 1}
        assert state.pop("one", 0) is None
        for key, value in values.items():
            if key not in ("nested", "one"):
                assert repr(state[key]) == repr(value)
            assert repr(state[f"user:{key}"]) == repr(value)

    run(work())


NAMES = ["", "k" * 479, "k" * 480, "ü" * 400, "\0", "\0adk\0", "\0adk\0" + "0" * 64, "a\0" * 239]
KEYS = [prefix + name for prefix in ("", "app:", "user:", "temp:") for name in NAMES]


def test_every_string_is_a_key_of_the_state(service: MemcoreSessionService) -> None:
    """As in ADK's own services: the empty one, a prefix alone, one of any length."""

    async def work(each: BaseSessionService) -> list[Any]:
        given = {key: at for at, key in enumerate(KEYS)}
        made = await each.create_session(**ME, session_id="s", state=given)
        found: list[Any] = [dict(made.state)]
        delta = {key: [key[:9], at] for at, key in enumerate(KEYS) if at % 2}
        await each.append_event(made, event(actions=EventActions(state_delta=delta)))
        found.append({key: value for key, value in made.state.items() if key[:5] != "temp:"})
        again = await each.get_session(**ME, session_id="s")
        assert again is not None
        found += [again.state, again.events[0].actions.state_delta]
        found += [each.state for each in (await each.list_sessions(**ME)).sessions]
        found.append(await each.get_user_state(**ME))
        return found

    assert run(work(service)) == run(work(InMemorySessionService()))


def test_a_rewind_brings_back_every_key(service: MemcoreSessionService) -> None:
    async def work() -> None:
        given = dict.fromkeys(NAMES, "given")
        made = await service.create_session(**ME, session_id="s", state=given)
        delta = dict.fromkeys(NAMES, "changed")
        await service.append_event(made, said("x", actions=EventActions(state_delta=delta)))
        back = EventActions(
            state_delta=dict.fromkeys(NAMES),
            rewind_before_invocation_id=made.events[0].invocation_id,
        )
        await service.append_event(made, event(actions=back))
        assert made.state == given == (await got(service)).state

    run(work())


def test_what_is_no_json_becomes_a_string(
    service: MemcoreSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        state = {
            "fn": len,
            "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
            "nan": float("nan"),
            "ok": 1,
        }
        made = await service.create_session(**ME, session_id="s", state=state)
        assert made.state["ok"] == 1
        assert all(isinstance(made.state[key], str) for key in ("fn", "when", "nan"))
        odd = {"fn": len, "set": {1}, "inf": float("inf"), "app:fn": len}
        await service.append_event(made, said("x", delta=odd, custom_metadata={"fn": len}))
        found = await got(service)
        assert isinstance(found.state["fn"], str)
        assert isinstance(found.state["app:fn"], str)
        assert found.state["set"] == [1]
        assert found.state["inf"] == "Infinity"
        assert found.events[0].actions.state_delta["inf"] == "Infinity"
        assert isinstance((found.events[0].custom_metadata or {})["fn"], str)

    with caplog.at_level(logging.WARNING):
        run(work())
    assert sum("no JSON" in record.getMessage() for record in caplog.records) >= 2


def test_what_is_temporary_may_be_anything(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        ring: list[Any] = []
        ring.append(ring)
        await service.append_event(made, said("x", delta={"temp:ring": ring, "k": 1}))
        assert made.state == {"temp:ring": ring, "k": 1}
        found = await got(service)
        assert found.state == found.events[0].actions.state_delta == {"k": 1}

    run(work())


def test_bytes_of_a_state_are_as_in_events(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state={"a": b"\xff\xfe"})
        await service.append_event(made, said("x", delta={"b": b"\xff\xfe", "c": b"abc"}))
        found = await got(service)
        assert found.state == {"a": "__4=", "b": "__4=", "c": "YWJj"}
        assert found.events[0].actions.state_delta == {"b": "__4=", "c": "YWJj"}

    run(work())


class Unsayable:
    """What has no text of its own."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_what_no_string_can_say_is_refused(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state={"k": Unsayable()})
        assert "Unsayable object" in made.state["k"]
        ring: list[Any] = []
        ring.append(ring)
        for value in (ring, {"\ud800": 1}):
            for wrong in (said("x", delta={"v": value}), said("x", custom_metadata={"v": value})):
                with pytest.raises(InvalidItemError, match="neither JSON nor a string"):
                    await service.append_event(made, wrong)
            with pytest.raises(InvalidItemError, match="neither JSON nor a string"):
                await service.create_session(**ME, session_id="t", state={"v": value})
        assert made.events == []
        await service.append_event(made, said("y", delta={"k": Unsayable()}))
        assert labels(await got(service)) == ["y"]
        assert await service.get_session(**ME, session_id="t") is None

    run(work())


def test_the_cache_says_what_the_file_says(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        await service.append_event(made, said("x"))
        await got(service)
        await service.append_event(made, called("\ud800", delta={"k": "\ud800"}))
        other = MemcoreSessionService(service.database)
        assert (await got(service)).events == (await got(other)).events

    run(work())


def test_what_is_returned_is_nobody_elses(service: MemcoreSessionService) -> None:
    async def work() -> None:
        state = {"l": [1]}
        made = await service.create_session(**ME, session_id="s", state=state)
        given = every_field()
        await service.append_event(made, given)
        await service.append_event(made, called("c", delta={"m": {"n": 1}}))
        want = copy.deepcopy(await got(service))
        state["l"].append(2)
        made.state["l"].append(3)
        made.state["m"]["n"] = 2
        spoil(given)
        for _ in range(2):
            found = await got(service)
            assert found == want
            for each in found.events:
                spoil(each)
            found.state["l"].append(4)
            found.events.pop()
        assert await got(service) == want

    def spoil(each: Event) -> None:
        each.actions.state_delta.clear()
        each.actions.artifact_delta["x"] = 1
        assert each.content is not None
        assert each.content.parts is not None
        for part in each.content.parts:
            part.text = "spoilt"
            if part.function_call is not None and part.function_call.args is not None:
                part.function_call.args["x"] = "spoilt"
        each.content.parts.pop()
        if each.long_running_tool_ids:
            each.long_running_tool_ids.add("spoilt")
        if each.custom_metadata:
            each.custom_metadata["k"]["deep"].append(5)

    run(work())


def test_without_copies_readers_share(open_db: Open) -> None:
    service = MemcoreSessionService(open_db(durability="none", allow_unsafe=True), copies=False)

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        await service.append_event(made, said("x"))
        one, two = await got(service), await got(service)
        assert one.events[0] is two.events[0]
        assert one.events is not two.events
        assert one.events[0] is not made.events[0]

    run(work())


def test_large_events(service: MemcoreSessionService, path: Path) -> None:
    """Content, grounding metadata and state beyond what fits a row."""

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        chunk = "g" * 50_000
        large = [
            said("t" * 300_000),
            said("grounded", grounding_metadata={"web_search_queries": [chunk, chunk]}),
            event(custom_metadata={"k": chunk * 2}),
            called("c", custom_metadata={"k": chunk * 2}, delta={"big": chunk}),
            answered("c"),
        ]
        for each in large:
            await service.append_event(made, each)
        for reader in (service, MemcoreSessionService(path)):
            assert await got(reader) == made
            for count in range(6):
                found = await got(MemcoreSessionService(path), num_recent_events=count)
                assert found.events == made.events[5 - count :]
                assert found.last_update_time == made.last_update_time
            reader.close()
        native = service.database.session("s", app="shop", user="ann")
        assert [m["parts"][0].keys() for m in native.context().messages][-2:] == [
            {"functionCall"},
            {"functionResponse"},
        ]

    run(work())


def test_a_native_session_lies_behind_it(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for each in (said("q"), called("c"), answered("c"), event(delta={"a": 1}), called("d")):
            await service.append_event(made, each)

    run(work())
    native = service.database.session("s", app="shop", user="ann")
    assert native.policy == "gemini"
    assert [call.call_id for call in native.open_calls] == ["d"]
    assert native.tokens > 0
    assert [part["text"] for part in native.context().messages[0]["parts"]] == ["q"]
    assert native.state.all() == {"a": 1}


# --- order and concurrency ------------------------------------------------------------------------


def test_timestamps_do_not_make_the_order(service: MemcoreSessionService, path: Path) -> None:
    times = [7.0, 7.0, 7.0, 3.0, 3.0, 1e9, 2.0, 0.0, -5.0]

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for at, time in enumerate(times):
            await service.append_event(made, said(str(at), timestamp=time))
        fresh = MemcoreSessionService(path)
        for reader in (service, fresh):
            found = await got(reader)
            assert labels(found) == list("012345678")
            assert [each.timestamp for each in found.events] == times
            assert found.last_update_time == -5.0
            found = await got(reader, after_timestamp=3.0)
            assert labels(found) == list("012345")
            assert labels(await got(reader, num_recent_events=3)) == list("678")
        fresh.close()

    run(work())


def test_of_two_writers_with_the_same_view_one_wins(service: MemcoreSessionService) -> None:
    async def work() -> None:
        await service.create_session(**ME, session_id="s")
        for turn in range(100):
            one, two = await got(service), await got(service)
            done = await asyncio.gather(
                service.append_event(one, said("one", timestamp=5.0, delta={"one": turn})),
                service.append_event(two, said("two", timestamp=5.0, delta={"two": turn})),
                return_exceptions=True,
            )
            refused = [each for each in done if isinstance(each, StaleSessionError)]
            assert len(refused) == 1
            assert isinstance(refused[0], ValueError)
            assert "modified in storage" in str(refused[0])
        found = await got(service)
        assert len(found.events) == 100
        last = labels(found)[-1]
        assert found.state[last] == 99

    run(work())


def test_a_refused_append_changes_nothing(service: MemcoreSessionService) -> None:
    async def work() -> None:
        one = await service.create_session(**ME, session_id="s", state={"l": [1]})
        two = one.model_copy(deep=True)
        await service.append_event(one, said("one", timestamp=one.last_update_time))
        before = two.model_copy(deep=True)
        given = said("two", delta={"temp:a": 1, "b": 2, "app:c": 3})
        was = given.model_copy(deep=True)
        with pytest.raises(StaleSessionError):
            await service.append_event(two, given)
        assert (two, given) == (before, was)
        assert await got(service) == one
        large = said("x" * (65 * 1024**2), delta={"temp:a": 1})
        with pytest.raises(InvalidItemError):
            await service.append_event(one, large)
        with pytest.raises(InvalidItemError, match="timestamp"):
            await service.append_event(one, said("x", timestamp=float("nan")))
        service.database.close()
        before = one.model_copy(deep=True)
        with pytest.raises(ClosedError):
            await service.append_event(one, given)
        assert (one, given) == (before, was)

    run(work())


def test_without_a_marker_the_last_event_tells(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        plain = Session.model_validate(made.model_dump())
        await service.append_event(plain, said("1"))
        plain = Session.model_validate_json((await got(service)).model_dump_json())
        assert plain._storage_update_marker is None
        plain.last_update_time = 0.0
        await service.append_event(plain, said("2"))
        plain._storage_update_marker = "2026-01-01T00:00:00"  # another service's
        await service.append_event(plain, said("3"))
        stale = Session.model_validate(made.model_dump())
        stale.last_update_time = 9e9
        with pytest.raises(StaleSessionError):
            await service.append_event(stale, said("4"))
        assert labels(await got(service)) == ["1", "2", "3"]

    run(work())


def test_another_session_of_the_name_is_another_session(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        await service.append_event(made, said("old"))
        await service.delete_session(**ME, session_id="s")
        with pytest.raises(SessionNotFoundError, match="Session s not found"):
            await service.append_event(made, said("late"))
        again = await service.create_session(**ME, session_id="s")
        await service.append_event(again, said("new"))
        with pytest.raises(StaleSessionError):
            await service.append_event(made, said("late"))
        assert labels(await got(service)) == ["new"]

    run(work())


def test_who_shares_an_object_waits_for_each_other(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        await asyncio.gather(*(service.append_event(made, said(str(at))) for at in range(20)))
        assert labels(made) == list(map(str, range(20)))
        assert await got(service) == made

    run(work())


def test_who_shares_an_object_goes_first_come_first_served(
    service: MemcoreSessionService,
) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")

        async def writer(name: str) -> None:
            for _ in range(3):
                await service.append_event(made, said(name))

        await asyncio.gather(writer("a"), writer("b"), writer("c"))
        assert labels(made) == ["a", "b", "c"] * 3

    run(work())


def test_who_gives_up_waiting_passes_its_turn_on() -> None:
    async def work() -> None:
        turns, held = Turns(), Session(app_name="a", user_id="u", id="s")
        first = turns.try_take(held)
        assert first is not None
        loop = asyncio.get_running_loop()
        waiting = [loop.create_task(turns.take(held)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()  # while it waits
        await asyncio.sleep(0)
        turns.give(held, first)
        waiting[0].cancel()  # when it has the turn, and does not know it yet
        last = (await asyncio.gather(*waiting, return_exceptions=True))[2]
        assert isinstance(last, Turn)
        turns.give(held, first)  # it is not its own any more
        assert turns.try_take(held) is None
        turns.give(held, last)
        assert turns.try_take(held) is not None

    run(work())


def test_a_closed_loop_keeps_no_turn() -> None:
    turns, held = Turns(), Session(app_name="a", user_id="u", id="s")
    loop = asyncio.new_event_loop()
    holding = loop.run_until_complete(turns.take(held))
    waiting = loop.create_task(turns.take(held))
    loop.run_until_complete(asyncio.sleep(0))

    async def next_one() -> Turn:
        found = asyncio.ensure_future(turns.take(held))
        await asyncio.sleep(0)
        assert not found.done()
        loop.close()
        return await asyncio.wait_for(found, 20)

    last = run(next_one())
    turns.give(held, holding)  # its holder is destroyed in the end
    assert turns._held == {id(held): last}
    assert not waiting.done()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # as is meant here


def one_round(loop: asyncio.AbstractEventLoop) -> None:
    """What is ready runs once."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def left_behind(service: MemcoreSessionService, *texts: str) -> tuple[Session, list[Any]]:
    """A session and appends to it that are under way in a loop that was closed."""
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(service.create_session(**ME, session_id="s"))
    store, release, busy = service.database.engine.store, threading.Event(), threading.Event()

    def occupy(_: Any) -> None:
        busy.set()
        release.wait()

    thread = threading.Thread(target=store.transact, args=(occupy,))
    thread.start()
    busy.wait()
    tasks = [loop.create_task(service.append_event(made, said(text))) for text in texts]
    one_round(loop)
    loop.close()
    release.set()
    thread.join()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as is meant here
    return made, tasks


@pytest.mark.parametrize("destroyed", [False, True])
def test_appends_under_way_when_their_loop_is_closed(
    service: MemcoreSessionService, destroyed: bool
) -> None:
    """What was on its way is stored; the object shows it to whoever appends next."""
    made, tasks = left_behind(service, "a", "b")
    if destroyed:
        service.database.engine.store.transact(lambda _: None)  # nobody else has the tasks now
        del tasks
        gc.collect()

    async def go_on() -> None:
        await asyncio.wait_for(service.append_event(made, said("next")), 20)
        assert labels(made) == ["a", "next"]
        assert await got(service) == made

    run(go_on())
    assert not service._turns._held


def test_an_outcome_that_a_closed_loop_was_to_tell_of(service: MemcoreSessionService) -> None:
    """Some of the commits that are done at once are told of in the loop's next round."""
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(service.create_session(**ME, session_id="s"))
    tasks, held = [], service._turns._held
    while not held:
        tasks.append(loop.create_task(service.append_event(made, said(str(len(tasks))))))
        one_round(loop)
    loop.close()
    tasks[-1]._log_destroy_pending = False  # type: ignore[attr-defined]  # as is meant here

    async def go_on() -> None:
        await asyncio.wait_for(service.append_event(made, said("next")), 20)
        assert labels(made) == [*map(str, range(len(tasks))), "next"]
        assert await got(service) == made

    run(go_on())


def test_an_object_that_is_gone_leaves_no_turn(service: MemcoreSessionService) -> None:
    made, tasks = left_behind(service, "a")
    service.database.engine.store.transact(lambda _: None)
    del tasks
    gc.collect()
    assert service._turns._held
    del made
    gc.collect()
    assert not service._turns._held


def test_a_cancelled_deletion_waits_for_its_outcome(service: MemcoreSessionService) -> None:
    async def work() -> None:
        for _ in range(3):
            made = await service.create_session(**ME, session_id="s")
            await service.append_event(made, said("x"))
            deletion = asyncio.ensure_future(service.delete_session(**ME, session_id="s"))
            await asyncio.sleep(0)
            deletion.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deletion
            assert await service.get_session(**ME, session_id="s") is None

    run(work())


def test_a_damaged_event_leaves_the_list_and_the_metadata(
    service: MemcoreSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        for name in "ab":
            made = await service.create_session(**ME, session_id=name, state={"k": name})
            await service.append_event(made, said("to be damaged"))
        store = service.database.engine.store
        key, sound = max(each for each in rows(store).items() if b"to be damaged" in each[1])
        store.transact(lambda txn: txn.put(key, sound[:-1] + b"?"))
        found = (await service.list_sessions(**ME)).sessions
        assert {(each.id, each.state["k"]) for each in found} == {("a", "a"), ("b", "b")}
        told = await got(MemcoreSessionService(service.database), "b", num_recent_events=0)
        assert told.last_update_time == next(s for s in found if s.id == "b").last_update_time
        with pytest.raises(CorruptValueError):
            await got(MemcoreSessionService(service.database), "b")
        store.transact(lambda txn: txn.put(key, sound))

    run(work())
    assert "is damaged" in caplog.text


def test_no_update_of_the_app_is_lost(service: MemcoreSessionService, path: Path) -> None:
    """Writers in several threads, each with a loop and a service of its own."""
    run(service.create_session(**ME, session_id="seed", state={"app:n": {}}))

    def write(who: int) -> None:
        async def work() -> None:
            mine = MemcoreSessionService(path)
            made = await mine.create_session(**ME, session_id=f"w{who}")
            for turn in range(15):
                await mine.append_event(
                    made, said("x", delta={f"app:{who}.{turn}": turn, f"user:{who}": turn})
                )
            mine.close()

        asyncio.run(work())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    state = run(got(service, "seed")).state
    assert sum(key.startswith("app:") for key in state) == 1 + 4 * 15
    assert [state[f"user:{who}"] for who in range(4)] == [14] * 4


OTHER = """
import sys, memcore
with memcore.open(sys.argv[1]) as db:
    session = db.session("s", app="shop", user="ann")
    rest = {"author": "user", "id": "e2", "timestamp": 9.5, "invocationId": "i2"}
    with session.batch(expected_revision=session.revision) as batch:
        batch.append({"role": "user", "parts": [{"text": "over here"}]}, meta={"adk": rest})
        batch.update_state({"b": 2})
"""


def test_another_process_writes(open_db: Open, path: Path) -> None:
    service = MemcoreSessionService(open_db(durability="full"))

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state={"a": 1})
        await service.append_event(made, said("here", id="e1"))
        assert await got(service) == made
        other = [sys.executable, "-c", OTHER, str(path)]
        await asyncio.to_thread(subprocess.run, other, check=True)
        with pytest.raises(StaleSessionError):
            await service.append_event(made, said("late"))
        found = await got(service)
        assert labels(found) == ["here", "over here"]
        assert found.state == {"a": 1, "b": 2}
        assert found.last_update_time == 9.5
        await service.append_event(found, said("on"))

    run(work())


def test_a_cancelled_append_is_shown_if_it_is_stored(service: MemcoreSessionService) -> None:
    """It waits for the writer before it, is cancelled, and is stored all the same."""
    leads, may_go = threading.Event(), threading.Event()

    def lead(_: Any) -> None:
        leads.set()
        may_go.wait()

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        store = service.database.engine.store
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.transact, lead)
            leads.wait()
            task = asyncio.create_task(service.append_event(made, said("x", delta={"a": 1})))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            may_go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert labels(made) == ["x"]
        assert made == await got(service)
        await service.append_event(made, said("y"))
        assert made == await got(service)

    run(work())


# --- redelivery -----------------------------------------------------------------------------------


def test_an_event_is_stored_once(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        stale = made.model_copy(deep=True)
        events = [said("1", delta={"n": 1, "temp:t": 1}), event(delta={"n": 2}), called("c")]
        originals = [each.model_copy(deep=True) for each in events]
        for each in events:
            await service.append_event(made, each)
        want = await got(service)
        for session in (made, stale, want.model_copy(deep=True)):
            before = session.model_copy(deep=True)
            for each in (*events, *originals):
                assert await service.append_event(session, each) is each
            assert session == before
        swapped = originals[0].model_copy(deep=True)
        swapped.actions.state_delta = dict(reversed(swapped.actions.state_delta.items()))
        await service.append_event(made, swapped)
        assert await got(service) == want
        for other in (said("other", id=events[0].id), event(delta={"n": 3}, id=events[1].id)):
            before = made.model_copy(deep=True)
            with pytest.raises(DuplicateRequestError, match="used before for other content"):
                await service.append_event(made, other)
            assert made == before
        assert await got(service) == want

    run(work())


def test_who_was_never_told_goes_on(service: MemcoreSessionService) -> None:
    """The outcome was lost on its way: the object shows the log before the event."""

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        lost = made.model_copy(deep=True)
        given = said("x", delta={"a": 1, "temp:b": 2})
        await service.append_event(made, given.model_copy(deep=True))
        await service.append_event(lost, given)
        assert lost.state == {"a": 1, "temp:b": 2}
        assert labels(lost) == ["x"]
        await service.append_event(lost, said("y"))
        assert labels(await got(service)) == ["x", "y"]

    run(work())


def test_event_ids_are_remembered_as_long_as_the_session(
    service: MemcoreSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        given = said("x")
        await service.append_event(made, given)
        later = service.database.engine.now_ms() + 10**12
        monkeypatch.setattr(type(service.database.engine), "now_ms", lambda _: later)
        await service.append_event(made, given.model_copy(deep=True))
        assert labels(await got(service)) == ["x"]

    run(work())


# --- reading --------------------------------------------------------------------------------------


def test_windows(service: MemcoreSessionService, path: Path) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        service.database.session("s", app="shop", user="ann").record("note", {"not": "an event"})
        made = await got(service)
        for at in range(6):
            await service.append_event(made, said(str(at), timestamp=float(at)))
            made = await got(service, num_recent_events=at % 3)
        cold = MemcoreSessionService(path, cache_bytes=0)
        warm = MemcoreSessionService(path)
        for reader in (cold, warm, service, warm, service):
            assert labels(await got(reader, num_recent_events=0)) == []
            assert (await got(reader, num_recent_events=0)).last_update_time == 5.0
            assert labels(await got(reader, num_recent_events=2)) == ["4", "5"]
            assert labels(await got(reader, num_recent_events=99)) == list("012345")
            assert labels(await got(reader, after_timestamp=4.0)) == ["4", "5"]
            config = {"after_timestamp": 4.0, "num_recent_events": 3}
            assert labels(await got(reader, **config)) == ["4", "5"]
            config = {"after_timestamp": 1.0, "num_recent_events": 3}
            assert labels(await got(reader, **config)) == ["3", "4", "5"]
            assert labels(await got(reader, after_timestamp=6.0)) == []
            assert labels(await got(reader)) == list("012345")
        cold.close()
        warm.close()

    run(work())


def test_the_window_may_hold_the_calls_of_its_results(open_db: Open) -> None:
    db = open_db(durability="none")
    exact = MemcoreSessionService(db)
    safe = MemcoreSessionService(db, pair_safe_recent=True)

    async def work() -> None:
        made = await exact.create_session(**ME, session_id="s")
        first = [said("q"), called("a"), called("b"), answered("b"), said("t", author="agent")]
        late = [answered("a"), said("end", author="agent")]
        for each in (*first, *late):
            await exact.append_event(made, each)
        all_of_them = ["q", "Ca", "Cb", "Rb", "t", "Ra", "end"]
        for count in range(9):
            assert (
                labels(await got(exact, num_recent_events=count))
                == (all_of_them[max(7 - count, 0) :])
            )
        assert labels(await got(safe, num_recent_events=0)) == []
        for count in range(1, 9):  # what it begins with is the user's
            assert labels(await got(safe, num_recent_events=count)) == all_of_them

    run(work())


def test_the_cache_is_bounded(open_db: Open, path: Path) -> None:
    db = open_db(durability="none")
    service = MemcoreSessionService(db, cache_bytes=40_000)

    async def work() -> None:
        for name in "ab":
            made = await service.create_session(**ME, session_id=name)
            for at in range(12):
                await service.append_event(made, said(str(at)))
        for name in "abba":
            assert labels(await got(service, name)) == list(map(str, range(12)))
            assert labels(await got(service, name, num_recent_events=3)) == ["9", "10", "11"]
            assert service._cache._total_bytes <= 40_000
        for most in (0, 1, 10**9):
            small = MemcoreSessionService(db, cache_bytes=most)
            assert labels(await got(small, "a")) == list(map(str, range(12)))
            assert small._cache._total_bytes <= most

    run(work())


def test_what_is_known_stays_known(service: MemcoreSessionService) -> None:
    """A short look behind an append forgets nothing of a long one before it."""

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for at in range(9):
            await service.append_event(made, said(str(at)))
        await got(service)
        await service.append_event(made, said("fed"))
        await service.append_event(made, every_field())  # is read when it is asked for
        await got(service, num_recent_events=2)
        (known,) = service._cache._runs.values()
        assert (known.start, len(known.entries)) == (0, 12)
        assert [entry.event for entry in known.entries[1:]] == made.events

    run(work())


def test_a_history_that_was_cut_is_read_anew(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for at in range(4):
            await service.append_event(made, said(str(at)))
        native = service.database.session("s", app="shop", user="ann")
        assert labels(await got(service)) == list("0123")
        native.undo(2)
        assert labels(await got(service)) == ["0", "1"]
        with pytest.raises(StaleSessionError):
            await service.append_event(made, said("4"))
        again = await got(service)
        await service.append_event(again, made.events[3])  # it is gone, so it may come again
        assert labels(await got(service)) == ["0", "1", "3"]
        fork = native.fork("fork", at=native.tail(2)[0].seq)
        assert labels(await got(service, fork.id)) == ["0", "1"]

    run(work())


# --- what a newer ADK wrote -----------------------------------------------------------------------


def test_fields_of_a_newer_adk(
    service: MemcoreSessionService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are left out of what is read, and stay in the file."""
    given = called("c", delta={"a": 1})
    newer = given.model_dump(mode="json", by_alias=True, exclude_none=True)
    newer["fromTheFuture"] = {"deep": [1]}
    newer["actions"]["teleport"] = {"to": "mars"}
    newer["actions"]["route"] = {"now": "a mapping"}
    newer["content"]["parts"][0]["hologram"] = {"data": "x"}

    class Newer:
        """Writes what the event would be there."""

        @staticmethod
        def to_python(*_: Any, **__: Any) -> dict[str, Any]:
            return copy.deepcopy(newer)

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        with monkeypatch.context() as patch:
            patch.setattr(Event, "__pydantic_serializer__", Newer)
            await service.append_event(made, given)
        fresh = MemcoreSessionService(service.database)
        for _ in range(2):
            found = await got(fresh)
            assert found.events == [given]
        native = service.database.session("s", app="shop", user="ann")
        item = native.tail(1)[0]
        assert item.message["parts"][0]["hologram"] == {"data": "x"}
        assert item.meta is not None
        assert item.meta["adk"]["actions"]["teleport"] == {"to": "mars"}
        assert item.meta["adk"]["fromTheFuture"] == {"deep": [1]}

    with caplog.at_level(logging.WARNING):
        run(work())
        run(service.delete_session(**ME, session_id="s"))
        caplog.clear()
        run(work())
    assert caplog.records == []  # once was enough


# --- opening --------------------------------------------------------------------------------------


def test_sources(path: Path) -> None:
    async def work() -> None:
        async with MemcoreSessionService(path, durability="none", allow_unsafe=True) as service:
            made = await service.create_session(**ME, session_id="s")
            await service.append_event(made, said("kept"))
            await service.flush()
        async with memcore.aio.open(path) as db:
            service = MemcoreSessionService(db)
            assert labels(await got(service)) == ["kept"]
            service.close()
            assert labels(await got(service)) == ["kept"]
        with pytest.raises(ClosedError):
            await got(service)
        with MemcoreSessionService(":memory:") as private:
            assert await private.get_session(**ME, session_id="s") is None

    run(work())
    for wrong in ({"cache_bytes": -1}, {"copies": 1}, {"pair_safe_recent": "yes"}):
        with pytest.raises(InvalidOptionError):
            MemcoreSessionService(":memory:", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError):
        MemcoreSessionService(7)  # type: ignore[arg-type]
