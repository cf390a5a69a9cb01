"""Rows that somebody else wrote, or that are damaged and sealed: typed errors, nothing worse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService
from memcore.errors import InvalidItemError, MemcoreError
from tests.conformance.adk_events import ME, answered, called, labels, said

AT = {**ME, "session_id": "s"}
HOSTILE: list[Any] = [
    None,
    True,
    5,
    -1,
    10**30,
    1e300,
    "",
    "text",
    [],
    [1],
    [1, 2, 3],
    {},
    {"a": 1},
    b"raw",
]
HALF = "half \ud800 pair"


@pytest.fixture
def durability() -> str:
    return "none"


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def variants(value: Any) -> list[Any]:
    """Values of other forms, and the value with each of its fields gone or of another form."""
    found = list(HOSTILE)
    if isinstance(value, dict):
        for key in value:
            found.append({name: each for name, each in value.items() if name != key})
            found += [{**value, key: wrong} for wrong in HOSTILE[:-1]]
    if isinstance(value, list):
        for at in range(len(value)):
            found += [[*value[:at], wrong, *value[at + 1 :]] for wrong in HOSTILE[:-1]]
    return found


def tries(works: list[Awaitable[Any]]) -> int:
    """How many of the calls fail, all of them with an error of memcore's, or of ADK's contract."""

    async def main() -> int:
        failed = 0
        for work in works:
            try:
                await work
            except (MemcoreError, InputValidationError):
                failed += 1
        return failed

    return asyncio.run(main())


def test_damaged_rows_of_artifacts_are_typed_errors(db) -> None:
    service = MemcoreArtifactService(db)
    kv = db.scope(app="shop", user="ann").kv("adk.artifacts")
    names = ["f", "user:" + "long" * 100]
    at = {**ME, "session_id": "s"}
    parts = [types.Part(text="t"), types.Part(inline_data=types.Blob(data=b"d", mime_type="a/b"))]
    parts.append(types.Part(file_data=types.FileData(file_uri="gs://x", mime_type="a/b")))
    for name in names:
        for part in parts:
            run(service.save_artifact(**at, filename=name, artifact=part))

    def all_calls(name: str) -> list[Awaitable[Any]]:
        asked = {**at, "filename": name}
        return [
            service.list_artifact_keys(**at),
            service.list_versions(**asked),
            service.list_artifact_versions(**asked),
            *(service.load_artifact(**asked, version=number) for number in (None, 0, 1, 2)),
            *(service.get_artifact_version(**asked, version=number) for number in (None, 0, 2)),
        ]

    failed = 0
    for name in names:
        place = {key: value for key, value in kv.scan() if "t" in str(value)}
        for key, value in place.items():
            for wrong in variants(value):
                kv.put(key, wrong)
                failed += tries(all_calls(name))
            kv.put(key, value)
    assert failed > 100
    kv.put("s=s\0=f\0zzzzzzzz", {"a": 1})
    kv.put("s=s\0=f", {"a": 1})
    assert tries(all_calls("f")) > 0


def test_damaged_rows_of_memories_are_typed_errors(db) -> None:
    service = MemcoreMemoryService(db)
    sessions = MemcoreSessionService(db)
    session = run(sessions.create_session(**AT))
    for text in ("tea please", "more tea " + "x" * 10_000, "no more"):
        run(sessions.append_event(session, said(text)))
    run(service.add_session_to_memory(session))
    entry = MemoryEntry(id="e", content=types.Content(parts=[types.Part(text="kettle")]))
    run(service.add_memory(**ME, memories=[entry]))
    kv = db.scope(app="shop", user="ann").kv("adk.memory")
    failed = 0
    for key, value in list(kv.scan()):
        for wrong in variants(value):
            kv.put(key, wrong)
            failed += tries(
                [
                    service.search_memory(**ME, query="tea kettle no"),
                    service.add_session_to_memory(session),
                    service.add_memory(**ME, memories=[entry]),
                ]
            )
        kv.put(key, value)
    assert failed > 100
    for key, value in list(kv.scan()):
        for wrong in HOSTILE:
            kv.put(key, wrong)
            tries([service.delete_memory(**ME, memory_id="e")])
            kv.put(key, value)


def test_foreign_rows_of_sessions_are_typed_errors(open_db) -> None:
    db = open_db(durability="none")
    service = MemcoreSessionService(db)
    run(service.create_session(**AT))
    sound = {"id": "x", "author": "agent", "invocationId": "i", "timestamp": 1.0, "actions": {},
             "memcoreCovers": [1, 2, "0f"]}  # fmt: skip
    covering = {**sound, "actions": {"compaction": {
        "startTimestamp": 1.0, "endTimestamp": 2.0,
        "compactedContent": {"parts": [{"text": "sum"}], "role": "model"},
    }}}  # fmt: skip
    item = {"role": "user", "parts": [{"text": "t"}]}
    count = failed = 0
    for base in (sound, covering):
        for wrong in [*variants(base), *(
            {**base, "memcoreCovers": each} for each in variants(base["memcoreCovers"])
        )]:  # fmt: skip
            if isinstance(wrong, bytes) or "b'raw'" in str(wrong):
                continue
            count += 1
            native = db.session(f"n{count}", app="shop", user="ann", policy="gemini")
            native.append(item, meta={"adk": wrong})
            at = {**ME, "session_id": f"n{count}"}
            for config in (None, 0, 1):
                asked = None if config is None else GetSessionConfig(num_recent_events=config)
                failed += tries([service.get_session(**at, config=asked)])
            tries([service.list_sessions(**ME)])
            run(service.delete_session(**at))
    assert count > 100
    assert failed > 10


FOREIGN = {"id": "x", "author": "user", "invocationId": "i", "timestamp": 1.0,
           "longRunningToolIds": ["c"],
           "actions": {"stateDelta": {"k": 1}, "rewindBeforeInvocationId": "i"}}  # fmt: skip
AFTER = {"id": "y", "author": "user", "invocationId": "j", "timestamp": 2.0, "actions": {}}
ANSWER = {"functionResponse": {"id": "c", "name": "f", "response": {}}}
CALL = {"functionCall": {"id": "c", "name": "f", "args": {}}}


def foreign_rows() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Items, and what their meta says of events, of which one part is of another form."""
    item = {"role": "user", "parts": [ANSWER]}
    for wrong in variants(FOREIGN):
        yield item, wrong
    for wrong in variants(FOREIGN["actions"]):
        yield item, {**FOREIGN, "actions": wrong}
    for wrong in variants(FOREIGN["longRunningToolIds"]):
        yield item, {**FOREIGN, "longRunningToolIds": wrong}
    for told in (ANSWER, CALL):
        for key, part in told.items():
            for wrong in variants(part):
                yield {**item, "parts": [{key: wrong}]}, FOREIGN
    for wrong in HOSTILE:
        yield {**item, "parts": wrong}, FOREIGN
        yield {**item, "parts": [wrong]}, FOREIGN


def test_foreign_rows_are_typed_errors_where_calls_and_invocations_are_looked_for(open_db) -> None:
    db = open_db(durability="none")
    service = MemcoreSessionService(db, pair_safe_recent=True)
    run(service.create_session(**AT))
    count = failed = 0
    for message, told in foreign_rows():
        if "b'raw'" in str((message, told)):
            continue
        native = db.session(f"n{count}", app="shop", user="ann", policy="gemini", orphans="keep")
        try:
            native.append(message, meta={"adk": told})
        except InvalidItemError:
            continue
        count += 1
        native.append({"role": "user", "parts": [{"text": "after"}]}, meta={"adk": AFTER})
        at = {**ME, "session_id": native.id}
        last = run(service.get_session(**at, config=GetSessionConfig(num_recent_events=1)))
        assert labels(last)[-1:] == ["after"]
        deleting = [service.delete_invocation(**at, invocation_id=each) for each in ("none", "i")]
        failed += tries(deleting)
        run(service.delete_session(**at))
    assert count > 100
    assert failed > 50


# --- half a surrogate pair ------------------------------------------------------------------------


def test_half_a_surrogate_pair_is_stored_faithfully_or_refused(db) -> None:
    service, plain = MemcoreSessionService(db), MemcoreSessionService(db)
    session = run(service.create_session(**AT, state={"given": HALF}))
    text = said("t", author=HALF, invocation_id=HALF, custom_metadata={"m": [HALF]})
    text.content.parts[0].text = HALF
    call, answer = called("a"), answered("a")
    call.content.parts[0].function_call.args["q"] = {"deep": HALF}
    answer.content.parts[0].function_response.response["r"] = HALF
    events = [text, call, answer, said("state", delta={"k": HALF, "user:u": [HALF]})]
    for event in events:
        run(service.append_event(session, event))
        run(service.append_event(session, event))  # the same event once more
    for reader in (service, plain):  # from the cache, and as it is read
        found = run(reader.get_session(**AT))
        assert found.events == events
        assert found.state == {"given": HALF, "k": HALF, "user:u": [HALF]}
    assert run(plain.get_user_state(**ME)) == {"u": [HALF]}
    assert run(plain.list_sessions(**ME)).sessions[0].state == found.state


@pytest.mark.parametrize(
    "where", ["delta", "nested", "args", "metadata", "create", "create nested"]
)
def test_a_key_that_is_no_unicode_is_refused_before_anything_is_written(db, where) -> None:
    service = MemcoreSessionService(db)
    if where.startswith("create"):
        state = {HALF: 1} if where == "create" else {"k": {HALF: 1}}
        with pytest.raises(InvalidItemError):
            run(service.create_session(**AT, state=state))
        assert run(service.get_session(**AT)) is None
        return
    session = run(service.create_session(**AT))
    event = called("a", custom_metadata={}, delta={"k": {}})
    holder = {
        "delta": event.actions.state_delta,
        "nested": event.actions.state_delta["k"],
        "args": event.content.parts[0].function_call.args,
        "metadata": event.custom_metadata,
    }[where]
    holder[HALF] = 1
    revision = db.session("s", app="shop", user="ann").revision
    with pytest.raises(InvalidItemError, match="Unicode"):
        run(service.append_event(session, event))
    assert session.events == []
    assert db.session("s", app="shop", user="ann").revision == revision
    del holder[HALF]
    holder["\ufffd\ufffd\ufffd"] = 1  # what pydantic makes of such a key is a key like any other
    run(service.append_event(session, event))
    assert run(service.get_session(**AT)).events == [event]


def test_names_of_artifacts_and_of_all_else_may_have_half_a_pair(db) -> None:
    artifacts = MemcoreArtifactService(db)
    part = types.Part(text="t")
    at = {"app_name": HALF, "user_id": HALF, "session_id": HALF, "filename": HALF}
    assert run(artifacts.save_artifact(**at, artifact=part)) == 0
    assert run(artifacts.load_artifact(**at)) == part
    del at["filename"]
    assert run(artifacts.list_artifact_keys(**at)) == [HALF]
    broken = types.Part(inline_data=types.Blob(data=b"d", mime_type="a/b"))
    broken.inline_data.display_name = HALF
    with pytest.raises(InputValidationError):
        run(artifacts.save_artifact(**at, filename="g", artifact=broken))
    assert run(artifacts.list_artifact_keys(**at)) == [HALF]
    sessions = MemcoreSessionService(db)
    made = run(sessions.create_session(**at))
    event = Event(author="a", actions=EventActions(state_delta={"k": 1}))
    event.id = HALF
    run(sessions.append_event(made, event))
    assert run(sessions.get_session(**at)).events == [event]


def test_the_file_is_sound_after_all_of_it(open_db) -> None:
    db: memcore.Database = open_db(durability="none")
    service = MemcoreMemoryService(db)
    words = types.Content(parts=[types.Part(text="tea")])
    words.parts[0].text = "tea " + HALF
    run(service.add_memory(**ME, memories=[MemoryEntry(id=HALF, content=words)]))
    found = run(service.search_memory(**ME, query="tea")).memories
    assert [each.content.parts[0].text for each in found] == ["tea " + HALF]
    run(service.delete_memory(**ME, memory_id=HALF))
    assert run(service.search_memory(**ME, query="tea")).memories == []
