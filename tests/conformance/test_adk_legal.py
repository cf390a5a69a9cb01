"""Whatever compacts, cuts or cancels: what the model is shown is a history that Gemini accepts."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.flows.llm_flows.context._contents import _get_contents
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcore.adapters.adk import (
    MemcoreEventSummarizer,
    MemcorePlugin,
    MemcoreSessionService,
    mend_contents,
    mend_request,
)
from memcore.adapters.adk.history import EventCache, Known
from memcore.log import CachedSession
from messages import illegal
from oracle import USER, OracleLedger
from oracle import Event as NoMessage
from tests.conformance.adk_agent import TOOLS, Scripted
from tests.conformance.adk_events import ME, answered, called, label, labels, said

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "25"))
AT = {"user_id": "ann", "session_id": "s"}
APP = {"app_name": "app", **AT}
pytestmark = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning")


@pytest.fixture
def durability() -> str:
    return "none"


def wrong(contents: list[dict[str, Any]]) -> list[Any]:
    """What Gemini would refuse in contents, by the specification and by counting parts."""
    found: list[Any] = list(illegal(contents, "gemini"))
    for at, content in enumerate(contents):
        if not content.get("parts"):
            found.append((at, "no parts"))
            continue
        calls = _count(content, "functionCall")
        behind = contents[at + 1] if at + 1 < len(contents) else {}
        if calls and (content["role"] != "model" or calls != _count(behind, "functionResponse")):
            found.append((at, f"{calls} calls, other responses"))
        if content["role"] == "model" and (not at or contents[at - 1]["role"] == "model"):
            found.append((at, "the model's turn does not follow the user's"))
    return found


def _count(content: dict[str, Any], key: str) -> int:
    return sum(key in part for part in content.get("parts", ()))


def shown(contents: list[types.Content]) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json", exclude_none=True, by_alias=True) for each in contents]


# --- lists ----------------------------------------------------------------------------------------


def part_of(word: str) -> types.Part:
    """``T`` a text, ``C1`` a call, ``R1`` its response; ``c`` and ``r`` without ids."""
    kind, id_ = word[0], word[1:]
    if kind == "T":
        return types.Part(text=f"text {id_}")
    given = {"id": id_, "name": "f"} if kind in "CR" else {"name": id_}
    if kind in "Cc":
        return types.Part(function_call=types.FunctionCall(**given, args={}))
    return types.Part(function_response=types.FunctionResponse(**given, response={"ok": 1}))


def contents_of(text: str) -> list[types.Content]:
    """Contents in words: ``u:`` or ``m:`` and parts joined by ``+``."""
    found = []
    for word in text.split():
        role, _, parts = word.partition(":")
        found.append(
            types.Content(
                role={"u": "user", "m": "model"}[role],
                parts=[part_of(part) for part in parts.split("+") if part],
            )
        )
    return found


def words_of(contents: list[types.Content]) -> str:
    return " ".join(
        f"{(content.role or '-')[0]}:{'+'.join(map(_word, content.parts or ()))}"
        for content in contents
    )


def _word(part: types.Part) -> str:
    if part.function_call:
        call = part.function_call
        return f"C{call.id}" if call.id else f"c{call.name}"
    if part.function_response:
        told = part.function_response
        letter = "R" if told.id else "r"
        mark = "" if told.response == {"ok": 1} else "!" if "error" in told.response else "?"
        return f"{letter}{told.id or told.name}{mark}"
    return f"T{part.text.removeprefix('text ')}"


LED_IN = "u:T[The earlier part of this conversation is not shown.]"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("m:T1 u:T2", "L m:T1 u:T2"),
        ("m:T1 m:C1 u:R1", "L m:T1+C1 u:R1"),
        ("u:T m:C1 u:R1 m:T1", None),
        ("u:T m:C1 u:T2", "u:T m:C1 u:R1! u:T2"),
        ("u:T m:C1", "u:T m:C1 u:R1!"),
        ("u:T m:cslow", "u:T m:cslow u:rslow?"),
        ("u:T m:cslow u:T2 u:rslow", "u:T m:cslow u:rslow u:T2"),
        ("u:T m:cf+cf u:rf m:T", "u:T m:cf+cf u:rf+rf! m:T"),
        ("u:T m:cf+cf u:rf u:rf m:T", "u:T m:cf+cf u:rf+rf m:T"),
        ("u:T m:C1+C2 u:R2 u:T2 u:R1", "u:T m:C1+C2 u:R2+R1 u:T2"),
        ("u:T u:R1 m:T2", "u:T m:T2"),
        ("u:R1 m:T2", "L m:T2"),
        ("u:T m:C1 u:R1 u:R1 m:T", "u:T m:C1 u:R1 m:T"),
        ("u:T m:C1+C1 u:R1+R1 m:T", "u:T m:C1+C1-2 u:R1+R1-2 m:T"),
        ("u:T m:C1+C1 u:R1 m:T", "u:T m:C1+C1-2 u:R1+R1-2! m:T"),
        ("u:T m:C1+C1+C1-2 u:R1+R1+R1-2 m:T", "u:T m:C1+C1-3+C1-2 u:R1+R1-3+R1-2 m:T"),
        ("u:T m:C1-2 u:T m:C1+C1 u:R1+R1", "u:T m:C1-2 u:R1-2! u:T m:C1+C1-3 u:R1+R1-3"),
        ("u:T m:C1 u:T2+R1", "u:T m:C1 u:R1 u:T2"),
        ("u:T m:T1 m:T2 u:T3", "u:T m:T1+T2 u:T3"),
        ("u:T m:C1 m:R1 m:T2", "u:T m:C1 u:R1 m:T2"),
        ("u:T m: u:T2", "u:T u:T2"),
        ("", None),
    ],
)
def test_what_is_illegal_is_mended_and_nothing_else_is_touched(given, expected) -> None:
    contents = contents_of(given)
    before = shown(contents)
    mended = mend_contents(contents, pending=["slow"])
    if expected is None:
        assert mended is contents
    else:
        assert words_of(mended) == expected.replace("L", LED_IN)
    assert wrong(shown(mended)) == []
    assert shown(contents) == before
    assert mend_contents(mended, pending=["slow"]) is mended


words = st.sampled_from("T C1 C2 C1-2 R1 R2 R1-2 cf cg rf rg".split())  # noqa: SIM905 - letters to read
drawn = st.lists(
    st.tuples(st.sampled_from("um"), st.lists(words, max_size=3)), max_size=12
)  # fmt: skip


@settings(max_examples=EXAMPLES * 20, deadline=None)
@given(drawn)
def test_any_list_becomes_legal_and_keeps_what_was_said(drawn) -> None:
    contents = []
    for role, parts in drawn:
        swaps = str.maketrans("Cc", "Rr") if role == "u" else str.maketrans("Rr", "Cc")
        contents += contents_of(f"{role}:{'+'.join(parts).translate(swaps)}")
    mended = mend_contents(contents)
    assert wrong(shown(mended)) == []
    assert mend_contents(mended) is mended
    texts, calls = told_by(mended)
    assert [text for text in texts if text in told_by(contents)[0]] == told_by(contents)[0]
    assert calls == told_by(contents)[1]


def test_a_request_that_goes_on_with_an_interaction_is_left_as_it_is() -> None:
    """Its calls lie with the model's server: what is sent are the responses alone."""
    contents = contents_of("u:R1")
    request = LlmRequest(contents=contents, previous_interaction_id="earlier")
    assert mend_request(None, request) is None  # type: ignore[arg-type]
    assert request.contents == contents_of("u:R1")
    request.previous_interaction_id = None
    assert mend_request(None, request) is None  # type: ignore[arg-type]
    assert request.contents == []


def told_by(contents: list[types.Content]) -> tuple[list[str], list[str]]:
    parts = [part for content in contents for part in content.parts]
    calls = [part.function_call.name for part in parts if part.function_call]
    return [part.text for part in parts if part.text], calls


# --- windows --------------------------------------------------------------------------------------

STEPS = "T T A A C1 C1 C2 C1+C2 R1 R2 R1+R2 L1 L1 P1 U1 L2 P2 U2 cf cf+cf rf x - S Z1 Z3".split()  # noqa: SIM905


def events_of(words: list[str]) -> list[Event]:
    """Events in words; what the user says begins an invocation."""
    turns = accumulate(int(word == "T") for word in words)
    return [event_of(word, str(turn)) for word, turn in zip(words, turns, strict=True)]


def event_of(word: str, invocation: str) -> Event:
    """``T`` the user says something, ``A`` the model, ``x`` hands over, ``-`` says nothing.

    ``L1`` a call that takes long, ``P1`` the response that it was begun, ``U1`` the user's answer.
    ``Z2`` rewinds to before the user said something last but one.
    """
    made = Event(author="agent", invocation_id=invocation)
    if word[0] == "Z":
        goal = max(int(invocation) - int(word[1:]) + 1, 0)
        made.author = "user"
        made.actions = EventActions(rewind_before_invocation_id=str(goal))
        return made
    if word == "-":
        made.actions = EventActions(state_delta={"k": 1})
        return made
    if word == "x":
        word = "Cx"
        made.actions = EventActions(transfer_to_agent="other")
    parts = []
    for each in word.split("+"):
        if each[0] == "L":
            made.long_running_tool_ids = {"l" + each[1:]}
        if each[0] in "LPU":
            each = {"L": "C", "P": "R", "U": "R"}[each[0]] + "l" + each[1:]  # noqa: PLW2901
        parts.append(part_of("T" + each if each[0] in "TA" else each))
    role = "model" if word[0] in "ACLc" else "user"
    if word[0] in "TU":
        made.author = "user"
    made.content = types.Content(role=role, parts=parts)
    if word == "S":  # a row of its own before its content
        made.content = types.Content(role="user", parts=[types.Part(text="T large")])
        made.custom_metadata = {"large": "x" * 300_000}
    return made


def raw(events: list[Event]) -> list[dict[str, Any]]:
    return shown([event.content for event in events if event.content])


def waiting_in(events: list[Event], start: int) -> set[str]:
    """The ids of the calls from a place on that take long and that no user answered."""
    found: dict[str, int] = {}
    for each in _apply_rewinds(events):
        at = events.index(each)
        found.update(dict.fromkeys(each.long_running_tool_ids or (), at))
        if each.author == "user":
            for answer in each.get_function_responses():
                found.pop(answer.id or "", None)
    return {id_ for id_, at in found.items() if at >= start}


@settings(max_examples=EXAMPLES * 2, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=25), st.integers(1, 12), st.booleans())
@example(words=["T", "L1", "P1", "T", "A", "Z2", "T", "A"], count=2, warm=True)
@example(words=["T", "L1", "P1", "T", "U1", "Z1", "T", "A"], count=1, warm=False)
@example(words=["T", "L1", "P1", "T", "A", "T", "U1", "A", "Z1", "T", "A"], count=1, warm=True)
@example(words=["C1", "T", "R1", "T"], count=3, warm=False)
@example(words=["T", "A", "T", "A", "Z1", "A"], count=2, warm=False)
@example(words=["T", "Z1", "L1", "T"], count=1, warm=False)
@example(words=["T", "Z1", "A", "T"], count=2, warm=False)
def test_a_window_is_legal_and_holds_the_calls_that_wait(words, count, warm) -> None:
    async def main() -> None:
        with MemcoreSessionService(":memory:", pair_safe_recent=True, mend=False) as service:
            made = await service.create_session(**APP)
            events = events_of(words)
            for at, event in enumerate(events):
                await service.append_event(made, event)
                if warm and not at % 5:
                    await service.get_session(**APP)
            config = GetSessionConfig(num_recent_events=count)
            session = await service.get_session(**APP, config=config)
            again = await service.get_session(**APP, config=config)
            whole = await service.get_session(**APP)
        assert whole.events == events
        judge(count, session.events, events)
        assert again.events == session.events

    asyncio.run(main())


def judge(count: int, window: list[Event], events: list[Event]) -> None:
    places = [events.index(event) for event in window]
    assert places == sorted(set(places))
    ledger, live = OracleLedger(start_mask=1 << USER, orphan=2), _apply_rewinds(events)
    for event in live:  # no window begins in what was taken back
        content = event.content
        ledger.push(shown([content])[0] if content else NoMessage(), 0)
    starts = [events.index(live[at]) for at in ledger.safe_cuts(starts=True) if at < len(live)]
    contents = raw(_apply_rewinds(window))
    first = max(len(events) - count, 0)
    skipped = starts[0] if starts else 0
    if any(is_said(each) for each in events[first:skipped] if each in live):
        skipped = 0  # what a user said is not left out
    elif starts and contents and len(live) == len(events):
        assert contents[0]["role"] == "user"
        assert "functionResponse" not in contents[0]["parts"][0]
    assert set(range(max(first, skipped), len(events))) <= set(places)
    before, after = (
        Counter(each[1] for each in illegal(found, "gemini")) for found in (raw(live), contents)
    )
    assert after <= before
    assert all(each in live for each in _apply_rewinds(window))
    calls = {call.id for event in _apply_rewinds(window) for call in event.get_function_calls()}
    assert waiting_in(events, starts[0] if starts else len(events)) <= calls


def is_said(event: Event) -> bool:
    """Whether it is a text of the user's role."""
    content = event.content
    return content is not None and content.role == "user" and bool(content.parts[0].text)


# --- runners --------------------------------------------------------------------------------------


def summarizer_of(kind: str, rng: random.Random) -> Any:
    if kind == "ours":
        return MemcoreEventSummarizer()
    return LlmEventSummarizer(llm=Summarizing(answers=[]))


class Summarizing(Scripted):
    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.answers.append("what was said before")
        async for each in super().generate_content_async(llm_request, stream):
            yield each


class Talk:
    """Random turns of two agents that share a model, on one session."""

    def __init__(self, source: Any, kind: str, seed: int, *, mends: str | None) -> None:
        self.rng = rng = random.Random(seed)
        tokens = rng.choice([None, 10, 5_000])
        self.llm, second = (
            Scripted(answers=[partial(self.answer, goal)] * 1_000, tokens=tokens)
            for goal in ("other", "agent")
        )
        self.llms = [self.llm, second]
        callback = mend_request if mends == "callback" else None
        other = LlmAgent(name="other", model=second, tools=[*TOOLS], before_model_callback=callback)
        agent = LlmAgent(
            name="agent",
            model=self.llm,
            tools=[*TOOLS],
            sub_agents=[other],
            before_model_callback=callback,
        )
        config = None
        if kind != "none":
            by_turns = {"compaction_interval": rng.randint(1, 3), "overlap_size": rng.randint(0, 2)}
            by_size = {"token_threshold": rng.choice([50, 400]),
                       "event_retention_size": rng.randint(0, 6)}  # fmt: skip
            chosen = rng.choice([by_turns, by_size, {**by_turns, **by_size}])
            config = EventsCompactionConfig(summarizer=summarizer_of(kind, rng), **chosen)
        self.service = MemcoreSessionService(source, pair_safe_recent=True)
        self.runner = Runner(
            app=App(
                name="app",
                root_agent=agent,
                events_compaction_config=config,
                plugins=[MemcorePlugin()] if mends == "plugin" else [],
            ),
            session_service=self.service,
        )
        self.pending: list[types.FunctionCall] = []
        recent = rng.choice([None, None, rng.randint(1, 12)])
        self.config = RunConfig(
            get_session_config=recent and GetSessionConfig(num_recent_events=recent)
        )
        self.left = 0

    def answer(self, goal: str, _: Any) -> Any:
        rng = self.rng
        self.left -= 1
        if self.left <= 0 or rng.random() < 0.4:
            return rng.choice(["done", "a longer text " * 20])
        calls = []
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            name, args = rng.choice(
                [
                    ("look", {"q": "a" * rng.choice([1, 400])}),
                    ("look", {"q": "b"}),
                    ("note", {"key": "k", "value": "v"}),
                    ("approve", {"amount": rng.randint(1, 9)}),
                    ("ask", {"question": "q"}),
                    ("transfer_to_agent", {"agent_name": goal}),
                ]
            )
            id_ = rng.choice([None, None, f"id{rng.randint(0, 99)}", "again"])
            calls.append((name, args, id_))
        return calls

    async def run(self) -> None:
        await self.service.create_session(**APP)
        for _ in range(self.rng.randint(3, 9)):
            await self.turn()

    async def turn(self) -> None:
        rng = self.rng
        self.left = rng.randint(1, 5)
        message = types.Part(text="user " + "words " * rng.choice([1, 50]))
        if self.pending and rng.random() < 0.5:
            call = rng.choice(self.pending)
            if rng.random() < 0.7:
                self.pending.remove(call)
            message = types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"status": "yes"}
                )
            )
        if rng.random() < 0.15:
            await self.append_foreign()
        stop_after = rng.choice([None] * 5 + [rng.randint(1, 4)])
        content = types.Content(role="user", parts=[message])
        count = 0
        events = self.runner.run_async(**AT, new_message=content, run_config=self.config)
        async for event in events:
            long_ids = event.long_running_tool_ids or ()
            self.pending += [call for call in event.get_function_calls() if call.id in long_ids]
            count += 1
            if count == stop_after:  # the client went away
                await events.aclose()
                break

    async def append_foreign(self) -> None:
        """Calls without ids, as other runtimes store them."""
        session = await self.service.get_session(**APP)
        calls = [types.Part(function_call=types.FunctionCall(name="look", args={"q": "x"}))] * 2
        answer = types.Part(
            function_response=types.FunctionResponse(name="look", response={"found": "x"})
        )
        rows = [("user", [types.Part(text="foreign")]), ("model", calls)]
        rows += self.rng.choice(
            [
                [("user", [answer, answer])],
                [("user", [answer]), ("user", [answer])],
                [("user", [answer])],
                [],
            ]
        )
        for role, parts in rows:
            content = types.Content(role=role, parts=parts)
            author = "user" if parts[0].text else "agent"
            event = Event(author=author, invocation_id="foreign", content=content)
            await self.service.append_event(session, event)


def talk(source: Any, kind: str, seed: int, *, mends: str | None) -> list[Any]:
    """What was wrong with what the model was shown."""
    made = Talk(source, kind, seed, mends=mends)
    asyncio.run(made.run())
    seen = [contents for llm in made.llms for contents in llm.seen]
    assert seen
    return [found for contents in seen if (found := wrong(contents))]


@pytest.mark.parametrize("mends", ["plugin", "callback"])
@pytest.mark.parametrize("kind", ["none", "ours", "adk"])
def test_every_request_of_real_runners_is_legal(tmp_path, kind, mends) -> None:
    for seed in range(max(EXAMPLES // 5, 1)):
        path = tmp_path / f"{seed}.memcore"
        assert talk(path, kind, seed, mends=mends) == [], seed


def _rewind(to: str) -> Event:
    return Event(
        author="user", invocation_id="r", actions=EventActions(rewind_before_invocation_id=to)
    )


@pytest.mark.parametrize(
    ("history", "window", "shown"),
    [
        # An event of state alone is no start, though a user item that was taken back follows it.
        (
            [
                said("u1", invocation_id="i1"),
                said("m1", author="agent", invocation_id="i1"),
                Event(author="x", invocation_id="i1", actions=EventActions(state_delta={"a": 1})),
                said("u2", invocation_id="i2"),
                _rewind("i2"),
                said("m3", author="agent", invocation_id="i3"),
            ],
            2,
            ["u1", "m1", "-", "m3"],
        ),
        # Nothing that is live is the user's: no pair is torn, and nothing else goes ahead.
        (
            [
                called("c1", invocation_id="i0"),
                answered("c1", invocation_id="i0"),
                said("u1", invocation_id="i1"),
                _rewind("i1"),
                said("m1", author="agent", invocation_id="i1"),
                called("c2", invocation_id="i1", long_running_tool_ids={"c2"}),
                answered("c2", invocation_id="i1", author="user"),
            ],
            1,
            ["Cc2", "Rc2"],
        ),
    ],
    ids=["state", "pair"],
)
def test_a_window_behind_a_rewind_begins_with_what_is_live(history, window, shown) -> None:
    at = {**ME, "session_id": "s"}

    async def work() -> list[str]:
        with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
            session = await service.create_session(**at)
            for each in history:
                await service.append_event(session, each)
            config = GetSessionConfig(num_recent_events=window)
            found = await service.get_session(**at, config=config)
            return [label(each) for each in _apply_rewinds(found.events)]

    assert asyncio.run(work()) == shown


class Rewinding:
    """A random history as runners write it: turns, calls that take long, rewinds into rewinds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.turn = 0
        self.ask()
        while len(self.events) < self.rng.randint(4, 24):
            self.rng.choice([self.ask, self.ask, self.answer, self.rewind])()

    def add(self, word: str) -> None:
        event = event_of(word, f"i{self.turn}")
        event.author = "user" if word[0] in "TU" else "agent"
        self.events.append(event)

    def ask(self) -> None:
        """A user's turn, which may be cut short before the model said its last."""
        self.turn += 1
        self.add("T")
        self.work()

    def work(self) -> None:
        for _ in range(self.rng.randint(0, 3)):
            new = len(self.events)
            kind = self.rng.choice("CCPLL-S")
            if kind == "C":
                self.add(f"C{new}")
                self.add(f"R{new}")
            elif kind == "P":
                self.add(f"C{new}+C{new}b")
                self.add(f"R{new}+R{new}b")
            elif kind == "L":
                self.add(f"L{new}")
                self.add(f"P{new}")
            else:
                self.add({"-": "-", "S": "S"}[kind])
        if self.rng.random() < 0.8:
            self.add("A")

    def answer(self) -> None:
        """The user's answer to a call that still waits, as a turn of its own."""
        waiting = sorted(waiting_in(self.events, 0))
        if waiting:
            self.turn += 1
            self.add("U" + self.rng.choice(waiting)[1:])
            self.work()

    def rewind(self) -> None:
        """A rewind before any invocation: one that was taken back, that of a rewind, or none."""
        goals = [each.invocation_id for each in self.events]
        made = _rewind(self.rng.choice([*goals, "nowhere"]))
        made.invocation_id = f"r{len(self.events)}"
        self.events.append(made)
        if self.rng.random() < 0.4:  # another agent of the invocation goes on
            self.work()

    def deleted(self) -> list[str]:
        """Invocations, some of which others go with."""
        names = sorted({each.invocation_id for each in self.events})
        return self.rng.sample(names, min(self.rng.randint(1, 2), len(names)))


def prompt_of(events: list[Event]) -> list[dict[str, Any]]:
    return shown(_get_contents(None, events, "agent", preserve_function_call_ids=True))


@pytest.mark.parametrize("deletes", [False, True], ids=["whole", "deleted"])
def test_every_window_behind_nested_rewinds_is_legal(deletes) -> None:
    """It begins with the user, shows nothing that was taken back and holds the calls that wait.

    That is, as far as the whole history does, with invocations of it deleted or not.
    """

    async def main(seed: int) -> None:
        history = Rewinding(seed)
        events = history.events
        with MemcoreSessionService(":memory:", pair_safe_recent=True, mend=False) as service:
            made = await service.create_session(**APP)
            for event in events:
                await service.append_event(made, event)
            if deletes:
                for name in history.deleted():
                    await service.delete_invocation(**APP, invocation_id=name)
                events = (await service.get_session(**APP)).events
            live = _apply_rewinds(events)
            whole = prompt_of(live)
            for count in range(1, len(events) + 2):
                config = GetSessionConfig(num_recent_events=count)
                window = (await service.get_session(**APP, config=config)).events
                at = f"seed {seed}, {count} events"
                places = [events.index(each) for each in window]
                assert places == sorted(set(places)), at
                assert all(each in live for each in _apply_rewinds(window)), at
                prompt = prompt_of(window)
                if begins_with_the_user(whole):
                    assert not prompt or begins_with_the_user(prompt), at
                    assert set(range(max(len(events) - count, 0), len(events))) <= set(places), at
                if not illegal(whole, "gemini"):
                    assert illegal(prompt, "gemini") == [], at
                if begins_with_the_user(whole) or not any(map(is_said, live)):
                    calls = {call.id for each in window for call in each.get_function_calls()}
                    assert waiting_in(events, 0) <= calls, at

    for seed in {275, 677, *range(EXAMPLES * 2)}:
        asyncio.run(main(seed))


@pytest.mark.parametrize(
    ("history", "gone", "windows"),
    [
        # A later turn answers a call of the one that was deleted.
        (
            [
                said("u0", invocation_id="i0"),
                said("m0", author="agent", invocation_id="i0"),
                said("u1", invocation_id="i1"),
                called("c1", invocation_id="i1", long_running_tool_ids={"c1"}),
                answered("c1", invocation_id="i2", author="user"),
                said("m2", author="agent", invocation_id="i2"),
                said("m3", author="agent", invocation_id="i2"),
            ],
            "i1",
            {1: ["u0", "m0", "m2", "m3"], 2: ["u0", "m0", "m2", "m3"]},
        ),
        # The history begins with what was deleted, and what is left of it with the model.
        (
            [
                said("u0", invocation_id="i0"),
                said("m0", author="agent", invocation_id="i1"),
                said("m1", author="agent", invocation_id="i1"),
                said("u2", invocation_id="i2"),
                said("m2", author="agent", invocation_id="i2"),
            ],
            "i0",
            {1: ["u2", "m2"], 2: ["u2", "m2"], 4: ["u2", "m2"]},
        ),
        # Behind a deleted turn stands one that was taken back.
        (
            [
                said("u0", invocation_id="i0"),
                said("m0", author="agent", invocation_id="i0"),
                said("u1", invocation_id="i1"),
                said("u2", invocation_id="i2"),
                _rewind("i2"),
                said("m3", author="agent", invocation_id="i3"),
            ],
            "i1",
            {1: ["u0", "m0", "m3"], 2: ["u0", "m0", "m3"], 3: ["u0", "m0", "m3"]},
        ),
    ],
    ids=["answer", "first", "rewind"],
)
def test_a_window_begins_at_no_event_that_was_deleted(history, gone, windows) -> None:
    async def work() -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
            session = await service.create_session(**APP)
            for each in history:
                await service.append_event(session, each)
                await service.get_session(**APP, config=GetSessionConfig(num_recent_events=1))
            await service.delete_invocation(**APP, invocation_id=gone)
            for count in windows:
                config = GetSessionConfig(num_recent_events=count)
                window = await service.get_session(**APP, config=config)
                found[count] = [label(each) for each in _apply_rewinds(window.events)]
        return found

    assert asyncio.run(work()) == windows


@pytest.mark.parametrize("appended", [0, 70])
def test_what_expired_begins_no_window(tmp_path, monkeypatch, appended) -> None:
    """Also where only the end of a history is looked at, behind all that expired."""
    monkeypatch.setattr("memcore.log.history.RECENT_RECORDS", 16)
    begun = ["u0", "m0", "m1", "m2", "u1"]
    later = [f"{'u' if at == 70 else 'm'}{at}" for at in range(10, 10 + appended)]

    async def add(service: MemcoreSessionService, texts: list[str]) -> None:
        session = await service.get_session(**APP) or await service.create_session(**APP)
        for text in texts:
            author = "user" if text[0] == "u" else "agent"
            await service.append_event(session, said(text, author=author))

    async def work() -> None:
        path = tmp_path / "a.memcore"
        with MemcoreSessionService(path) as service:
            await add(service, begun)
            service.database.retention.set([{"what": "items", "keep_last": 3}])
            service.database.sweep()
            service.database.retention.set([])
            assert labels(await service.get_session(**APP)) == ["m1", "m2", "u1"]
            await add(service, later)
        with MemcoreSessionService(path, pair_safe_recent=True) as service:
            whole = ["u1", *later]
            last = whole.index("u70") if "u70" in whole else 0
            for count, first in ((1, last), (appended + 1, 0), (appended + 3, 0)):
                config = GetSessionConfig(num_recent_events=count)
                window = await service.get_session(**APP, config=config)
                assert labels(window) == whole[first:], count

    asyncio.run(work())


HALF = "half \ud83d"
LATER = ["-", "T", "A", "T", "A", "T", "A"]
FIELDS = [
    {"actions": EventActions(state_delta={"note": HALF})},
    {"error_message": HALF},
    {"branch": HALF},
    {"custom_metadata": {"k": HALF}},
    {"custom_metadata": {"k": HALF, "large": "x" * 300_000}},
]


@pytest.mark.parametrize("text", [None, HALF], ids=["plain", "half"])
@pytest.mark.parametrize("fields", FIELDS, ids=["delta", "error", "branch", "meta", "rest"])
def test_a_call_that_waits_is_known_beside_half_of_a_surrogate_pair(fields, text) -> None:
    begun = event_of("T", "1"), event_of("L1", "1").model_copy(update=fields)
    if text is not None:
        begun[1].content.parts[0].function_call.args = {"q": text}
    events = [*begun, *events_of(LATER)]
    windows = asyncio.run(windows_of(events, 2))
    assert windows == [[*begun, *events[-2:]]] * 2


@pytest.mark.parametrize("text", [None, HALF], ids=["plain", "half"])
@pytest.mark.parametrize("fields", FIELDS, ids=["delta", "error", "branch", "meta", "rest"])
def test_what_was_rewound_does_not_come_back_beside_half_of_a_surrogate_pair(fields, text) -> None:
    """The first event of what a rewind took back is known by its invocation."""
    history = ["T", "A", "T", "T", "A"]
    events = [*events_of(history), _rewind("2"), event_of("T", "4"), event_of("A", "4")]
    events[2] = events[2].model_copy(update=fields)
    if text is not None:
        events[2].content.parts[0].text = text
    for count in (4, 5):
        for window in asyncio.run(windows_of(events, count)):
            assert _apply_rewinds(window) == events[-2:]


async def windows_of(events: list[Event], count: int) -> list[list[Event]]:
    """The window of a service that stored the events, and of one that only reads them."""
    with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
        made = await service.create_session(**APP)
        for event in events:
            await service.append_event(made, event)
        config = GetSessionConfig(num_recent_events=count)
        other = MemcoreSessionService(service.database, pair_safe_recent=True)
        found = [await each.get_session(**APP, config=config) for each in (service, other)]
        return [each.events for each in found]


def test_a_plain_window_is_that_of_adk_and_its_requests_are_legal() -> None:
    """It ends with as many events as were asked for, wherever that parts a rewind or a pair."""

    async def main(seed: int) -> None:
        events = Rewinding(seed).events
        with MemcoreSessionService(":memory:", mend=False) as ours:
            services = (ours, InMemorySessionService())
            for service in services:
                made = await service.create_session(**APP)
                for event in events:
                    await service.append_event(made, event.model_copy(deep=True))
            for count in range(len(events) + 2):
                config = GetSessionConfig(num_recent_events=count)
                window, theirs = [
                    (await service.get_session(**APP, config=config)).events for service in services
                ]
                assert window == theirs, f"seed {seed}, {count} events"
                contents = _get_contents(None, window, "agent", preserve_function_call_ids=True)
                request = LlmRequest(contents=contents)
                mend_request(None, request)  # type: ignore[arg-type] - what the plugin calls
                assert wrong(shown(request.contents)) == [], f"seed {seed}, {count} events"

    for seed in range(EXAMPLES):
        asyncio.run(main(seed))


def test_windows_of_who_reads_on_are_those_of_who_reads_first() -> None:
    """Also when a rewind takes back what an earlier window showed."""

    async def main(seed: int) -> None:
        events = Rewinding(seed).events
        with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
            made = await service.create_session(**APP)
            await service.get_session(**APP)
            for event in events:
                await service.append_event(made, event)
                for count in (1, 3, 5):
                    config = GetSessionConfig(num_recent_events=count)
                    other = MemcoreSessionService(service.database, pair_safe_recent=True)
                    ours = await service.get_session(**APP, config=config)
                    assert ours == await other.get_session(**APP, config=config), (seed, count)

    for seed in range(EXAMPLES):
        asyncio.run(main(seed))


def test_a_window_behind_a_rewind_reads_no_index_again(monkeypatch) -> None:
    loaded: list[tuple[int, int]] = []
    load_into = CachedSession.load_into

    def counted(log: Any, txn: Any, ledger: Any, *span: Any) -> None:
        if span[1] < span[2]:
            loaded.append(span[1:])
        load_into(log, txn, ledger, *span)

    monkeypatch.setattr(CachedSession, "load_into", counted)

    async def main() -> None:
        with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
            made = await service.create_session(**APP)
            for event in [*events_of(["T", "A", "T", "A"]), _rewind("2")]:
                await service.append_event(made, event)
            await service.get_session(**APP)
            config = GetSessionConfig(num_recent_events=3)
            await service.get_session(**APP, config=config)
            for number in range(3):
                loaded.clear()
                count = len((await service.get_session(**APP)).events)
                await service.append_event(made, said(f"more {number}", invocation_id="9"))
                window = await service.get_session(**APP, config=config)
                assert labels(window)[-1] == f"more {number}"
                assert loaded == [(count + 1, count + 2)]  # behind the row of the initial state

    asyncio.run(main())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_window_that_is_extended_copies_what_it_hands_out(monkeypatch, elsewhere: bool) -> None:
    """One that would begin with the model goes back to the user, and no further."""
    copied: list[int] = []
    between, put = Known.between, EventCache.put

    def counted(known: Known, start: int, stop: int) -> Any:
        copied.append(stop - start)
        return between(known, start, stop)

    def counted_put(
        cache: Any, place: Any, epoch: int, start: int, run: Any, *, since: int
    ) -> None:
        copied.append(len(run))
        put(cache, place, epoch, start, run, since=since)

    async def main() -> None:
        with MemcoreSessionService(":memory:", pair_safe_recent=True) as service:
            writer = MemcoreSessionService(service.database) if elsewhere else service
            made = await service.create_session(**APP)
            for event in events_of(["T", "A"] * 40):
                await service.append_event(made, event)
            whole = (await service.get_session(**APP)).events
            monkeypatch.setattr(Known, "between", counted)
            monkeypatch.setattr(EventCache, "put", counted_put)
            config = GetSessionConfig(num_recent_events=5)
            for _ in range(3):
                window = await service.get_session(**APP, config=config)
                assert window.events == whole[-6:]
                for event in events_of(["T", "A"]):
                    await writer.append_event(made, event)
                    whole.append(event)
            assert sum(copied) < 30
            assert (await service.get_session(**APP)).events == whole

    asyncio.run(main())


def begins_with_the_user(contents: list[dict[str, Any]]) -> bool:
    """Whether a prompt begins with what the user said; the response to a call is none."""
    first = contents[0] if contents else {}
    return first.get("role") == "user" and "text" in first["parts"][0]
