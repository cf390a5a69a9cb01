"""Rewinds and compactions of ADK over memcore, as its own prompts and runners see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.flows.llm_flows.context._contents import _get_contents
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreSessionService
from memcore.adapters.adk.compaction import mark_covered
from tests.conformance.adk_events import ME, answered, called, event, labels, part_label, said

T = TypeVar("T")


@pytest.fixture
def service(open_db: Callable[..., memcore.Database]) -> MemcoreSessionService:
    """A service on a file that is checked when the test ends."""
    return MemcoreSessionService(open_db(durability="none", allow_unsafe=True))


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


async def got(service: MemcoreSessionService, **config: Any) -> Session:
    found = await service.get_session(
        **ME, session_id="s", config=GetSessionConfig(**config) if config else None
    )
    assert found is not None
    return found


def prompt(session: Session) -> list[str]:
    """What the model would be sent."""
    contents = _get_contents(None, session.events, "agent", preserve_function_call_ids=True)
    return [part_label(part) for content in contents for part in content.parts or []]


def summary_of(events: list[Event], *, marked: bool = False, text: str = "SUM") -> Event:
    """What ADK's own summarizer makes of events."""
    made = Event(
        author="user",
        invocation_id=Event.new_id(),
        actions=EventActions(
            compaction=EventCompaction(
                start_timestamp=events[0].timestamp,
                end_timestamp=events[-1].timestamp,
                compacted_content=types.Content(role="model", parts=[types.Part(text=text)]),
            )
        ),
    )
    return mark_covered(made, events) if marked else made


async def grown(
    service: MemcoreSessionService,
    steps: list[Event | int | tuple[int, int]],
    *,
    marked: bool = False,
) -> Session:
    """A session that was appended to; a number stands for a summary of so many first events."""
    made = await service.create_session(**ME, session_id="s")
    for step in steps:
        if isinstance(step, Event):
            await service.append_event(made, step)
            continue
        first, last = step if isinstance(step, tuple) else (0, step)
        raw = [each for each in made.events if each.actions.compaction is None]
        await service.append_event(made, summary_of(raw[first:last], marked=marked))
    return made


def at(time: float, text: str = "", **fields: Any) -> Event:
    return said(text or f"t{time:g}", timestamp=time, **fields)


CASES: dict[str, tuple[list[Any], list[str]]] = {
    "a clock that is right": ([at(1), at(2), at(3), at(4), 2], ["SUM", "t3", "t4"]),
    "the next event has the time of the last one covered": (
        [at(1), at(2), at(2, "tie"), at(3), 2, at(4)],
        ["SUM", "tie", "t3", "t4"],
    ),
    "all have the same time": (
        [at(1, "a"), at(1, "b"), at(1, "c"), at(1, "d")],
        ["a", "b", "c", "d"],
    ),
    "a later event has the time of the last one covered": (
        [at(1), at(2), 2, at(2, "tie"), at(2, "tie2"), at(3)],
        ["SUM", "tie", "tie2", "t3"],
    ),
    "the clock goes back behind a compaction": (
        [at(10), at(20), at(30), 2, at(5), at(15), at(20, "tie"), at(40)],
        ["SUM", "t30", "t5", "t15", "tie", "t40"],
    ),
    "the clock goes back in what is covered": (
        [at(10), at(5), at(7), at(20), 3, at(21)],
        ["SUM", "t20", "t21"],
    ),
    "a call and its result on a clock that goes back": (
        [
            at(1),
            at(2),
            2,
            called("c", timestamp=9.0),
            answered("c", timestamp=8.0),
            said("end", "agent", timestamp=7.0),
        ],
        ["SUM", "Cc", "Rc", "end"],
    ),
    "a covered call, and a tie at its result": (
        [at(1), called("c", timestamp=2.0), answered("c", timestamp=2.0), at(2, "tie"), 3, at(3)],
        ["SUM", "tie", "t3"],
    ),
    "a summary that replaces one": (
        [at(1), at(2), at(2, "x"), 2, at(2, "y"), at(1, "z"), 4, at(1, "w")],
        ["SUM", "z", "w"],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("marked", [False, True])
def test_what_is_not_summarised_is_in_the_prompt(
    service: MemcoreSessionService, path: Path, name: str, marked: bool
) -> None:
    """In the object that was appended to, from a warm cache, and from the file."""
    steps, want = CASES[name]

    async def work() -> None:
        fresh = [each.model_copy(deep=True) if isinstance(each, Event) else each for each in steps]
        made = await grown(service, fresh, marked=marked)
        assert prompt(made) == want
        cold = MemcoreSessionService(path)
        for reader in (service, cold):
            found = await got(reader)
            assert prompt(found) == want
            assert labels(found) == labels(made)
            count = len(want)
            recent = await got(reader, num_recent_events=count)
            assert [each for each in want if each != "SUM"] == [
                each for each in prompt(recent) if each != "SUM"
            ][-(len(want) - want.count("SUM")) :]
        cold.close()

    run(work())


def test_only_a_marked_summary_covers_all_of_a_tie(service: MemcoreSessionService) -> None:
    """ADK says by timestamps alone what is covered: in doubt an event is shown."""

    async def work() -> None:
        steps: list[Any] = [at(1), at(2, "a"), at(2, "b"), at(2, "c"), 3, at(3)]
        assert prompt(await grown(service, steps)) == ["SUM", "b", "c", "t3"]
        await service.delete_session(**ME, session_id="s")
        fresh = [each.model_copy(deep=True) if isinstance(each, Event) else each for each in steps]
        for each in fresh:
            if isinstance(each, Event):
                each.id = Event.new_id()
        assert prompt(await grown(service, fresh, marked=True)) == ["SUM", "c", "t3"]

    run(work())


def test_a_right_clock_changes_nothing(service: MemcoreSessionService, path: Path) -> None:
    async def work() -> None:
        made = await grown(service, [at(1), at(2), at(3), 2, at(4), at(5), (1, 4), at(6)])
        given = [each.model_dump() for each in made.events]
        found = await got(service)
        assert found == made
        assert [each.model_dump() for each in found.events] == given
        assert [each.timestamp for each in found.events if not each.actions.compaction] == [
            *map(float, range(1, 7))
        ]
        native = service.database.session("s", app="shop", user="ann")
        told = [item.message["payload"] for item in native if "compaction" in str(item.message)]
        assert [each["memcoreCovers"][:2] for each in told] == [[2, 3], [3, 6]]

    run(work())


def test_the_file_keeps_what_it_was_given(service: MemcoreSessionService) -> None:
    async def work() -> None:
        given = [at(10), at(20), at(20, "tie")]
        made = await grown(service, [*given, 2])
        summary = made.events[-1]
        again = summary_of(given[:2]).model_copy(update={"id": summary.id})
        assert made.events[2].timestamp > 20.0
        native = service.database.session("s", app="shop", user="ann")
        assert [item.meta["adk"]["timestamp"] for item in native if item.meta and item.seq > 1] == [
            10.0,
            20.0,
            20.0,
        ]
        assert again.actions.compaction is not None

    run(work())


def test_a_summary_is_stored_once(service: MemcoreSessionService) -> None:
    """Also from an object that does not show what it covers."""

    async def work() -> None:
        made = await grown(service, [at(1), at(2), at(3), 2, at(4)])
        summary = made.events[3]
        for each in (made, await got(service, num_recent_events=1)):
            await service.append_event(each, summary.model_copy(deep=True))
        assert prompt(await got(service)) == ["SUM", "t3", "t4"]

    run(work())


# --- the real runner ------------------------------------------------------------------------------


class Scripted(BaseLlm):
    """Answers with texts, or calls of a tool, in turn; remembers what it was asked."""

    model: str = "scripted"
    script: list[Any]
    asked: list[list[str]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append([part_label(p) for c in llm_request.contents for p in c.parts or []])
        step = self.script.pop(0)
        part = types.Part(text=step) if isinstance(step, str) else step
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class Summarizer(BaseEventsSummarizer):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        self.given.append([each.content.parts[0].text or "call" for each in events])  # type: ignore[union-attr,index,misc]
        return summary_of(events, text=f"SUM{len(self.given)}")


def runner_of(
    service: MemcoreSessionService, script: list[Any], **app: Any
) -> tuple[Runner, Scripted]:
    model = Scripted(script=script, asked=[])
    agent = LlmAgent(name="agent", model=model, tools=app.pop("tools", []))
    return Runner(app=App(name="shop", root_agent=agent, **app), session_service=service), model


async def asked(runner: Runner, text: str) -> list[Event]:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return [
        each async for each in runner.run_async(user_id="ann", session_id="s", new_message=content)
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_runner_compacts(service: MemcoreSessionService, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still for a while, then goes back."""
    times = iter([100.0] * 9 + [50.0] * 100)
    monkeypatch.setattr("google.adk.platform.time.get_time", lambda: next(times, 50.0))
    summarizer = Summarizer()
    config = EventsCompactionConfig(summarizer=summarizer, compaction_interval=2, overlap_size=0)
    long = " and so on" * 30

    async def work() -> None:
        script = [f"a{turn}{long}" for turn in range(6)]
        runner, model = runner_of(service, script, events_compaction_config=config)
        await service.create_session(**ME, session_id="s")
        for turn in range(6):
            await asked(runner, f"q{turn}{long}")
        last = [each[:4].strip() for each in model.asked[-1]]
        summed = {text[:2] for given in summarizer.given for text in given}
        shown = {text for text in last if not text.startswith("SUM")}
        turns = {f"{who}{turn}" for turn in range(5) for who in "qa"} | {"q5"}
        assert summarizer.given
        assert turns <= summed | {each[:2] for each in shown}
        assert last[-1][:2] == "q5"
        order = [each[:2] for each in last if each[:1] in "qa"]
        assert order == sorted(order, key=lambda each: (each[1], each[0] == "a"))

    run(work())


def rewind_to(invocation: str, delta: dict[str, Any]) -> Event:
    actions = EventActions(rewind_before_invocation_id=invocation, state_delta=delta)
    return Event(author="user", invocation_id="rewind", actions=actions)


@pytest.mark.filterwarnings("ignore")
def test_a_runner_rewinds(service: MemcoreSessionService, path: Path) -> None:
    async def work() -> None:
        runner, _ = runner_of(service, [])
        state = {"first": {"deep": 1}, "kept": "x", "none": None, "app:a": 1, "user:u": 1}
        made = await service.create_session(**ME, session_id="s", state=state)
        for invocation, delta in (
            ("i1", {"kept": "y", "n": 1}),
            ("i2", {"first": 0, "n": 2, "new": True, "app:a": 2}),
            ("i2", {"first": {"deep": 2}, "kept": None}),
            ("i3", {"n": 3, "user:u": 2}),
        ):
            await service.append_event(made, said("x", invocation_id=invocation, delta=delta))
        await runner.rewind_async(user_id="ann", session_id="s", rewind_before_invocation_id="i2")
        found = await got(service)
        assert found.state == {
            "first": {"deep": 1},
            "kept": "y",
            "n": 1,
            "none": None,
            "new": None,  # how ADK says that there is none
            "app:a": 2,
            "user:u": 2,
        }
        last = found.events[-1].actions
        assert last.state_delta == {
            "first": {"deep": 1},
            "kept": "y",
            "n": 1,
            "none": None,
            "new": None,
        }
        assert prompt(found) == ["x"]
        await service.append_event(found, said("on", invocation_id="i4", delta={"n": 4}))
        await runner.rewind_async(user_id="ann", session_id="s", rewind_before_invocation_id="i1")
        fresh = MemcoreSessionService(path)
        for reader in (service, fresh):
            state = (await got(reader)).state
            assert state["first"] == {"deep": 1}
            assert state["kept"] == "x"
            assert state["n"] is None
        fresh.close()

    run(work())


def test_a_rewind_is_stored_once_and_shown(service: MemcoreSessionService) -> None:
    async def work() -> None:
        made = await service.create_session(**ME, session_id="s", state={"a": 1, "b": 2})
        await service.append_event(made, said("x", invocation_id="i1", delta={"a": 5, "c": 6}))
        given = rewind_to("i1", {"a": None, "b": None, "c": None, "mine": 7, "temp:t": 1})
        copied = given.model_copy(deep=True)
        await service.append_event(made, given)
        assert made.state == {"a": 1, "b": 2, "c": None, "mine": 7, "temp:t": 1}
        assert given.actions.state_delta == {"a": 1, "c": None, "mine": 7}
        found = await got(service)
        assert found.state == {"a": 1, "b": 2, "c": None, "mine": 7}
        before = await got(service)
        for each in (given, copied):
            await service.append_event(made, each)
        assert await got(service) == before
        unknown = rewind_to("nobody", {"a": None})
        await service.append_event(made, unknown)
        assert made.state["a"] is None

    run(work())


@pytest.mark.filterwarnings("ignore")
def test_a_runner_with_tools(service: MemcoreSessionService, path: Path) -> None:
    def look(q: str, tool_context: Any) -> dict[str, str]:
        """Look something up."""
        tool_context.state["last"] = q
        tool_context.state["temp:gone"] = q
        tool_context.state["app:looked"] = True
        return {"r": q}

    call = types.Part(
        function_call=types.FunctionCall(name="look", args={"q": "x"}),
        thought_signature=b"\xff\x00",
    )

    async def work() -> None:
        await service.create_session(**ME, session_id="s", state={"first": 1})
        runner, _ = runner_of(service, [call, "done"], tools=[look])
        await asked(runner, "go")
        again = MemcoreSessionService(path)
        runner, model = runner_of(again, ["more"], tools=[look])
        await asked(runner, "on")
        assert [each[:1] for each in model.asked[-1]] == ["g", "C", "R", "d", "o"]
        found = await got(service)
        assert len(found.events) == 6
        assert found.state == {"first": 1, "last": "x", "app:looked": True}
        assert found.events[1].content.parts[0].thought_signature == b"\xff\x00"  # type: ignore[union-attr,index]
        native = service.database.session("s", app="shop", user="ann")
        assert not native.open_calls
        assert [m["role"] for m in native.context().messages] == [
            "user",
            "model",
            "user",
            "model",
            "user",
            "model",
        ]
        again.close()

    run(work())


def test_events_of_resumable_runs(service: MemcoreSessionService, path: Path) -> None:
    """Checkpoints of agents and sealed aborts are events like any other."""

    async def work() -> None:
        made = await service.create_session(**ME, session_id="s")
        for each in (
            event(actions=EventActions(agent_state={"step": {"n": 1}})),
            event(actions=EventActions(end_of_agent=True)),
            answered("c", error_code="INVOCATION_ABORTED", error_message="stopped"),
        ):
            await service.append_event(made, each)
        cold = MemcoreSessionService(path)
        assert await got(cold) == made
        cold.close()

    run(work())


# --- what is mended where it is read --------------------------------------------------------------


def test_calls_without_ids_are_read_with_ids(service: MemcoreSessionService) -> None:
    plain = MemcoreSessionService(service.database, mend=False)
    steps = [said("q"), event(*two_calls()), answered(None), answered(None), said("a", "agent")]
    steps += [called(None), answered(None), said("b", "agent")]

    async def work() -> None:
        await grown(service, steps)
        exact = await got(plain)
        assert exact.events == steps
        session = await got(service)
        ids = [
            (call or answer).id
            for each in session.events
            for part in each.content.parts
            for call, answer in [(part.function_call, part.function_response)]
            if call or answer
        ]
        assert all(id_.startswith("adk-") for id_ in ids)
        assert ids[:2] == ids[2:4]  # each response answers the call that waited longest
        assert ids[4] == ids[5]
        assert len(set(ids)) == 3
        again = await got(MemcoreSessionService(service.database), num_recent_events=7)
        assert again.events == session.events[1:]
        # ADK shows both responses; without ids it shows one of them, for two calls.
        assert prompt(session) == ["q", *(f"C{id_}" for id_ in ids[:2]),
                                   *(f"R{id_}" for id_ in ids[:2]), "a",
                                   f"C{ids[4]}", f"R{ids[4]}", "b"]  # fmt: skip
        for each in session.events:  # an event that was read is the one that is stored
            await service.append_event(session, each)
        assert (await got(plain)).events == steps

    run(work())


def two_calls() -> list[types.Part]:
    return [
        types.Part(function_call=types.FunctionCall(name="look", args={"q": q})) for q in ("x", "y")
    ]


def test_what_a_summary_says_is_the_users(service: MemcoreSessionService) -> None:
    """ADK's own summarizer makes summaries of the model, and no prompt may begin with the model."""

    async def work() -> None:
        made = await grown(service, [at(1), at(2), at(3), 2])
        for session in (made, await got(service), await got(service, num_recent_events=2)):
            contents = _get_contents(None, session.events, "agent")
            assert [content.role for content in contents][:1] == ["user"]
        told = (await got(MemcoreSessionService(service.database, mend=False))).events[-1].actions
        assert told.compaction.compacted_content.role == "model"  # as it was stored

    run(work())
