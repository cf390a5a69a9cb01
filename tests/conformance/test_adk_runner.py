"""ADK's own Runner with a scripted model, and memcore behind all of its services."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from google.adk.apps.app import EventsCompactionConfig, ResumabilityConfig
from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from memcore.adapters.adk import MemcoreEventSummarizer
from messages import illegal
from tests.conformance.adk_agent import AT, World

APP = {"app_name": "app", **AT}
pytestmark = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")


@pytest.fixture
def durability() -> str:
    return "none"


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def begun(world: World, **state: Any) -> World:
    await world.sessions.create_session(**APP, state=state)
    return world


def labels(contents: list[dict[str, Any]]) -> list[str]:
    """What contents say, a word a part."""
    return ["+".join(_label(part) for part in content["parts"]) for content in contents]


def _label(part: dict[str, Any]) -> str:
    for key, letter in (("functionCall", "C"), ("functionResponse", "R")):
        if key in part:
            return f"{letter}:{part[key]['name']}"
    return part["text"]


def stored(session: Any) -> list[str]:
    return labels(
        [
            event.content.model_dump(mode="json", by_alias=True, exclude_none=True)
            for event in session.events
            if event.content
        ]
    )


def legal(world: World) -> None:
    """Nothing that the model was ever shown would be refused by Gemini."""
    for contents in world.llm.seen:
        assert illegal(contents, "gemini") == []
        for at, content in enumerate(contents):
            calls = [part for part in content["parts"] if "functionCall" in part]
            if calls:
                after = contents[at + 1]["parts"]
                assert len([p for p in after if "functionResponse" in p]) == len(calls)


# --- calls ----------------------------------------------------------------------------------------


def test_tools_over_two_turns(db) -> None:
    async def main() -> World:
        world = await begun(
            World(
                db,
                [("look", {"q": "a"})],
                [("note", {"key": "k", "value": "v"})],
                "first done",
                [("write", {"name": "f", "text": "saved"})],
                "second done",
            ),
            given=1,
        )
        await world.turn("first")
        await world.turn("second")
        return world

    world = run(main())
    legal(world)
    expected = ["first", "C:look", "R:look", "C:note", "R:note", "first done"]
    expected += ["second", "C:write", "R:write", "second done"]
    session = run(world.session())
    assert stored(session) == expected
    assert labels(world.shown) == expected[:-1]
    assert session.state == {"given": 1, "k": "v"}
    artifact = run(world.artifacts.load_artifact(**APP, filename="f"))
    assert artifact == types.Part(text="saved")
    assert session.events[-2].actions.artifact_delta == {"f": 0}
    signatures = [event.content.parts[0].thought_signature for event in session.events]
    assert [at for at, each in enumerate(signatures) if each == b"signed"] == [1, 3, 7]


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)], ids=["ids", "without ids"])
def test_parallel_calls_of_one_tool(db, ids) -> None:
    async def main() -> World:
        calls = [("look", {"q": q}, id_) for q, id_ in zip("xy", ids, strict=True)]
        world = await begun(World(db, calls, "done", calls, "done again"))
        await world.turn("first")
        await world.turn("second")
        return world

    world = run(main())
    legal(world)
    assert labels(world.shown)[:4] == ["first", "C:look+C:look", "R:look+R:look", "done"]
    responses = world.shown[2]["parts"]
    assert [part["functionResponse"]["response"]["found"] for part in responses] == ["x", "y"]
    session = run(world.session())
    stored_ids = [call.id for event in session.events for call in event.get_function_calls()]
    assert all(stored_ids)


def test_calls_without_ids_that_were_stored_elsewhere(db) -> None:
    """What other runtimes leave: no ids at all, responses in events of their own or in one."""

    async def main() -> World:
        world = await begun(World(db, "done"))
        session = await world.session()
        calls = [
            types.Part(function_call=types.FunctionCall(name="look", args={"q": q})) for q in "xy"
        ]
        answers = [
            types.Part(function_response=types.FunctionResponse(name="look", response={"found": q}))
            for q in "xy"
        ]
        for author, parts in (
            ("user", [types.Part(text="first")]),
            ("agent", calls),
            ("agent", answers),
            ("agent", [types.Part(text="said")]),
        ):
            role = "model" if author == "agent" and parts is not answers else "user"
            content = types.Content(role=role, parts=parts)
            await world.sessions.append_event(
                session, Event(author=author, invocation_id="i", content=content)
            )
        await world.turn("second")
        return world

    world = run(main())
    legal(world)
    assert labels(world.shown) == ["first", "C:look+C:look", "R:look+R:look", "said", "second"]


def test_a_call_that_takes_long_is_answered_in_a_later_turn(db) -> None:
    async def main() -> World:
        world = await begun(World(db, [("approve", {"amount": 5})], "asked", "chat", "paid"))
        events = await world.turn("pay 5")
        (call,) = [call for event in events for call in event.get_function_calls()]
        assert events[0].long_running_tool_ids == {call.id}
        await world.turn("are you there?")
        answer = types.FunctionResponse(id=call.id, name="approve", response={"status": "yes"})
        await world.turn(types.Part(function_response=answer))
        return world

    world = run(main())
    legal(world)
    answers = [p for c in world.shown for p in c["parts"] if "functionResponse" in p]
    assert [p["functionResponse"]["response"] for p in answers] == [{"status": "yes"}]


# --- restart and memory ---------------------------------------------------------------------------


def test_a_fresh_process_goes_on(path) -> None:
    async def main() -> None:
        world = World(
            path,
            [("look", {"q": "a"}), ("write", {"name": "f", "text": "t"})],
            [("note", {"key": "user:k", "value": "v"})],
            "done",
        )
        await begun(world, mine=[1])
        await world.turn("first")
        await world.memory.add_session_to_memory(await world.session())
        world.sessions.close()

    run(main())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.conformance.adk_agent", str(path)],
        check=True,
        capture_output=True,
    )
    found = json.loads(done.stdout)
    assert labels(found["shown"]) == [
        *("first", "C:look+C:write", "R:look+R:write", "C:note", "R:note", "done"),
        "second",
    ]
    assert illegal(found["shown"], "gemini") == []
    assert found["state"] == {"mine": [1], "user:k": "v"}
    assert (found["keys"], found["remembered"]) == (["f"], 1)


def test_the_model_searches_memory(db) -> None:
    async def main() -> World:
        world = await begun(World(db, "nice", [("load_memory", {"query": "tea"})], "you like tea"))
        await world.turn("I like tea")
        await world.memory.add_session_to_memory(await world.session())
        await world.sessions.create_session(app_name="app", user_id="ann", session_id="t")
        await world.turn("what do I like?", session_id="t")
        return world

    world = run(main())
    legal(world)
    (answer,) = [p for p in world.shown[-1]["parts"] if "functionResponse" in p]
    assert "I like tea" in json.dumps(answer)


# --- rewind ---------------------------------------------------------------------------------------


def test_a_rewind_brings_state_and_artifacts_back(db) -> None:
    async def main() -> World:
        world = await begun(
            World(
                db,
                [
                    ("note", {"key": "k", "value": "one"}),
                    ("write", {"name": "f", "text": "one"}),
                ],
                "first done",
                [
                    ("note", {"key": "k", "value": "two"}),
                    ("note", {"key": "given", "value": "changed"}),
                    ("note", {"key": "new", "value": "two"}),
                    ("write", {"name": "f", "text": "two"}),
                    ("write", {"name": "g", "text": "two"}),
                    ("write", {"name": "user:u", "text": "two"}),
                ],
                "second done",
                "third done",
            ),
            given="initial",
            untouched={"a": [1]},
        )
        await world.turn("first")
        events = await world.turn("second")
        await world.runner.rewind_async(**AT, rewind_before_invocation_id=events[0].invocation_id)
        return world

    world = run(main())
    session = run(world.session())
    state = {key: value for key, value in session.state.items() if value is not None}
    assert state == {"given": "initial", "untouched": {"a": [1]}, "k": "one"}
    load = world.artifacts.load_artifact
    assert run(load(**APP, filename="f")) == types.Part(text="one")
    assert run(load(**APP, filename="f", version=1)) == types.Part(text="two")
    assert run(load(**APP, filename="g")) is None
    assert run(load(**APP, filename="user:u")) == types.Part(text="two")  # ADK leaves those
    assert run(world.artifacts.list_versions(**APP, filename="f")) == [0, 1, 2]
    run(world.turn("third"))
    legal(world)
    assert labels(world.shown) == [
        "first",
        "C:note+C:write",
        "R:note+R:write",
        "first done",
        "third",
    ]


# --- compaction -----------------------------------------------------------------------------------


def test_compaction_by_a_sliding_window(db) -> None:
    async def main() -> World:
        answers = [each for n in range(5) for each in ([("look", {"q": f"q{n}"})], f"done {n}")]
        summarizer = MemcoreEventSummarizer()
        config = EventsCompactionConfig(
            summarizer=summarizer, compaction_interval=2, overlap_size=1
        )
        world = await begun(World(db, *answers, events_compaction_config=config))
        for number in range(5):
            await world.turn(f"turn {number}")
        return world

    world = run(main())
    legal(world)
    session = run(world.session())
    summaries = [event for event in session.events if event.actions.compaction]
    assert len(summaries) == 2
    first, second, *rest = labels(world.shown)
    assert first.startswith("Summary of the conversation so far:\nuser: turn 0")
    assert second.startswith("Summary of the conversation so far:\nuser: turn 1")
    assert "turn 3" in second
    assert rest == ["turn 4", "C:look", "R:look"]
    assert len([event for event in session.events if event.author != "user"]) == 5 * 3


def test_compaction_by_tokens_in_the_middle_of_a_turn(db) -> None:
    async def main() -> World:
        calls = [[("look", {"q": f"q{number}"})] for number in range(6)]
        config = EventsCompactionConfig(
            summarizer=MemcoreEventSummarizer(), token_threshold=100, event_retention_size=3
        )
        world = World(db, *calls, "done", "again", tokens=1000, events_compaction_config=config)
        await begun(world)
        await world.turn("work " * 40)
        await world.turn("more")
        return world

    world = run(main())
    legal(world)
    session = run(world.session())
    assert any(event.actions.compaction for event in session.events)
    shown = labels(world.shown)
    assert shown[0].startswith("Summary of the conversation so far:\nuser: work work")
    assert shown[-1] == "more"
    assert len(shown) < 8
    # Nothing is lost: the log has every call with its response.
    assert stored(session).count("C:look") == stored(session).count("R:look") == 6


def test_a_pending_call_stays_out_of_summaries(db) -> None:
    async def main() -> World:
        config = EventsCompactionConfig(
            summarizer=MemcoreEventSummarizer(), compaction_interval=1, overlap_size=0
        )
        world = World(
            db,
            [("approve", {"amount": 5})],
            "asked",
            "paid",
            "again",
            events_compaction_config=config,
        )
        await begun(world)
        events = await world.turn("pay 5")
        (call,) = [call for event in events for call in event.get_function_calls()]
        answer = types.FunctionResponse(id=call.id, name="approve", response={"status": "yes"})
        await world.turn(types.Part(function_response=answer))
        await world.turn("thanks")
        return world

    world = run(main())
    legal(world)
    paid, again = world.llm.seen[2:]
    (response,) = [p for c in paid for p in c["parts"] if "functionResponse" in p]
    assert response["functionResponse"]["response"] == {"status": "yes"}
    assert labels(again)[-1] == "thanks"


# --- interrupted ----------------------------------------------------------------------------------


def test_an_invocation_that_paused_is_resumed(path) -> None:
    resumable = ResumabilityConfig(is_resumable=True)

    async def pause() -> tuple[str, str]:
        calls = [("ask", {"question": "pay?"})]
        world = await begun(World(path, calls, resumability_config=resumable))
        events = await world.turn("pay 5")
        (call,) = [call for event in events for call in event.get_function_calls()]
        assert len(events) == len(world.llm.seen) == 1  # it waits
        world.sessions.close()
        return events[0].invocation_id, call.id

    async def resume(invocation_id: str, call_id: str) -> World:
        world = World(path, "paid", resumability_config=resumable)
        answer = types.FunctionResponse(id=call_id, name="ask", response={"status": "yes"})
        events = await world.turn(types.Part(function_response=answer), invocation_id=invocation_id)
        assert {event.invocation_id for event in events} == {invocation_id}
        legal(world)
        assert stored(await world.session())[-1] == "paid"
        world.sessions.close()
        return world

    world = run(resume(*run(pause())))
    answers = [p for c in world.shown for p in c["parts"] if "functionResponse" in p]
    assert [p["functionResponse"]["response"] for p in answers] == [{"status": "yes"}]


@pytest.mark.parametrize("where", ["model", "tool"])
def test_a_cancelled_turn_leaves_a_session_to_go_on_with(db, where) -> None:
    reached = asyncio.Event()

    async def hang(tool_context: ToolContext) -> dict[str, Any]:
        """Never returns."""
        reached.set()
        await asyncio.Event().wait()
        return {}

    async def forever(_: Any = None) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> World:
        last = forever if where == "model" else [("look", {"q": "b"}), ("hang", {})]
        world = World(db, [("look", {"q": "a"})], last, "fine", tools=[hang])
        await begun(world)
        task = asyncio.ensure_future(world.turn("first"))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.turn("second")
        return world

    world = run(main())
    session = run(world.session())
    assert stored(session)[:3] == ["first", "C:look", "R:look"]
    assert stored(session)[-2:] == ["second", "fine"]
    legal(world)
    assert labels(world.shown)[:3] == ["first", "C:look", "R:look"]
    assert labels(world.shown)[-1] == "second"


def test_streaming_stores_the_whole_answer_once(db) -> None:
    from google.adk.agents.run_config import RunConfig, StreamingMode

    async def main() -> World:
        world = await begun(World(db, "a long answer"))
        config = RunConfig(streaming_mode=StreamingMode.SSE)
        events = await world.turn("first", run_config=config)
        assert [event.partial for event in events] == [True, None]
        return world

    assert stored(run(run(main()).session())) == ["first", "a long answer"]
