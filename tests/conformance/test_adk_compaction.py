"""MemcoreEventSummarizer: what a summary covers, and what it says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.auth.auth_tool import AuthConfig
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from memcore.adapters.adk import MemcoreEventSummarizer
from memcore.adapters.adk.compaction import COVERS, safe_prefix
from memcore.compaction.transcript import Extractive
from memcore.errors import InvalidOptionError
from memcore.model import SummaryRequest

EXAMPLES = int(os.environ.get("MEMCORE_ADK_EXAMPLES", "25"))


def summarized(events: list[Event], *args: Any, **options: Any) -> Event | None:
    summarizer = MemcoreEventSummarizer(*args, **options)
    return asyncio.run(summarizer.maybe_summarize_events(events=events))


def said(compaction: Event) -> str:
    return compaction.actions.compaction.compacted_content.parts[0].text


def told(*texts: str) -> list[Event]:
    """A conversation in a few letters, an event each: what follows a letter is the id or the name.

    ``T`` the user says something, ``A`` the model does; ``C`` a call, ``R`` its response, ``L`` a
    call that takes long, ``H`` one that people answer; ``c`` and ``r`` are without an id. ``Q`` a
    response that asks for a confirmation, ``K`` one for credentials. Words of one event are joined
    by ``+``. An event after ``|`` is of the next invocation.
    """
    events: list[Event] = []
    invocation = 0
    for word in " ".join(texts).split():
        if word == "|":
            invocation += 1
            continue
        event = Event(author="model", invocation_id=f"i{invocation}", timestamp=float(len(events)))
        parts = [part_of(letters, event) for letters in word.split("+")]
        event.content = types.Content(role="user" if word[0] in "TRrQK" else "model", parts=parts)
        event.author = "user" if word[0] == "T" else "model"
        events.append(event)
    return events


def part_of(letters: str, event: Event) -> types.Part:
    kind, id_ = letters[0], letters[1:]
    if kind in "TA":
        return types.Part(text=f"text {id_}")
    name = "adk_request_input" if kind == "H" else "f" if kind in "CRLQK" else id_
    given = {"id": id_, "name": name} if kind in "CRLQKH" else {"name": name}
    if kind in "CLHc":
        if kind in "LH":
            event.long_running_tool_ids = {*(event.long_running_tool_ids or ()), id_}
        return types.Part(function_call=types.FunctionCall(**given, args={}))
    if kind == "Q":
        event.actions.requested_tool_confirmations[id_] = ToolConfirmation()
    if kind == "K":
        event.actions.requested_auth_configs[id_] = AuthConfig.model_construct()
    return types.Part(function_response=types.FunctionResponse(**given, response={"ok": 1}))


CUTS = [
    ("T A", 2),
    ("", 0),
    ("T C1 R1 A", 4),
    ("T C1", 1),
    ("C1", 0),
    ("C1 R1", 2),
    ("T C1+C2 R1 R2 A", 5),
    ("T C1+C2 R1", 1),
    ("T C1+C2 R1+R2", 3),
    # calls without ids: by name, in order
    ("T cf+cf rf rf A", 5),
    ("T cf+cf rf", 1),
    ("T cf+cg rf", 1),
    ("T cf+cg rg rf", 4),
    ("T cf rf A T cf", 5),
    ("T cf A", 1),
    ("T cf T A", 4),  # the conversation went on: nobody answers it any more
    # ids that come again
    ("T C1 R1 | T C1 R1 A", 7),
    ("T C1 R1 | T C1", 4),
    # several responses of one call
    ("T L1 R1 A R1 A", 6),
    ("T L1 R1 A", 1),  # it was begun, and may be answered
    ("T L1 R1 A | T A", 6),
    ("T L1", 1),
    # what waits for people
    ("T C1 Q1 A", 1),
    ("T C1 Q1 Hq Rq R1 A", 7),
    ("T C1 Q1 Hq", 1),
    ("T C1 K1 A", 1),
    ("T C1 K1 Hk Rk R1", 6),
    ("T C1 Q1 A | T A", 6),  # given up
    # dead calls of earlier invocations
    ("T C1 | T A", 4),
    ("T C1 | T C2", 3),
]


@pytest.mark.parametrize(("text", "expected"), CUTS)
def test_a_summary_ends_where_nothing_is_torn(text, expected) -> None:
    events = told(text)
    assert safe_prefix(events) == expected
    compaction = summarized(events)
    if expected == 0:
        assert compaction is None
        return
    assert compaction.custom_metadata[COVERS] == [events[0].id, events[expected - 1].id]
    covered = compaction.actions.compaction
    assert (covered.start_timestamp, covered.end_timestamp) == (0.0, float(expected - 1))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1, 1, 1, 1, 1], 0),  # the summary would hide the call
        ([1, 2, 3, 3, 3], 2),
        ([1, 2, 3, 4, 5], 3),
        ([5, 4, 3, 9, 9], 3),
        ([5, 4, 3, 4, 9], 0),
    ],
)
def test_no_event_behind_a_summary_is_hidden_by_its_time(times, expected) -> None:
    events = told("T A T C1+C2 R1")
    for event, time in zip(events, times, strict=True):
        event.timestamp = float(time)
    assert safe_prefix(events) == expected


words = st.lists(
    st.sampled_from(
        "T A C1 C2 R1 R2 C1+C2 R1+R2 cf rf cf+cf cg rg L3 R3 Q1 K2 | cf+C1 A+C2 R1+rf".split()  # noqa: SIM905 - letters to read
    ),
    max_size=14,
)


@settings(max_examples=EXAMPLES * 8, deadline=None)
@given(words)
def test_no_pair_is_torn_and_what_is_whole_is_covered(words) -> None:
    events = told(*words)
    cut = safe_prefix(events)
    owners = bindings(events)
    for at, owner in owners:
        assert not owner < cut <= at
    open_calls = calls_of(events) - {(owner, place) for place, owner in owner_places(events)}
    newest = events[-1].invocation_id if events else None
    if not open_calls and not any(
        event.long_running_tool_ids
        or event.actions.requested_tool_confirmations
        or event.actions.requested_auth_configs
        for event in events
        if event.invocation_id == newest
    ):
        assert cut == len(events)


def bindings(events: list[Event]) -> list[tuple[int, int]]:
    """``(response, call)`` by their events: written another way than the adapter does."""
    return [(place, owner) for place, (owner, _) in _bound(events)]


def owner_places(events: list[Event]) -> list[tuple[int, int]]:
    return [(slot, owner) for _, (owner, slot) in _bound(events)]


def calls_of(events: list[Event]) -> set[tuple[int, int]]:
    return {
        (at, slot)
        for at, event in enumerate(events)
        for slot in range(len(event.get_function_calls()))
    }


def _bound(events: list[Event]) -> list[tuple[int, tuple[int, int]]]:
    found = []
    answered: set[tuple[int, int]] = set()
    for at, event in enumerate(events):
        for response in event.get_function_responses():
            calls = [
                (before, slot, call)
                for before in range(at)
                for slot, call in enumerate(events[before].get_function_calls())
                if call.id == response.id and (call.id or call.name == response.name)
            ]
            if response.id:
                calls = calls[-1:]
            else:
                calls = [each for each in calls if each[:2] not in answered][:1]
            for before, slot, _ in calls:
                answered.add((before, slot))
                found.append((at, (before, slot)))
    return found


# --- what it says ---------------------------------------------------------------------------------


def test_without_a_model_it_says_who_said_what_and_which_tools_ran() -> None:
    text = said(summarized(told("Thello C1 R1 Adone")))
    assert text == (
        "Summary of the conversation so far:\n"
        "user: text hello\ntools called: f\nresult: 1\nassistant: text done"
    )
    short = said(summarized(told("Thello Adone"), Extractive(lines_max=1)))
    assert short == "Summary of the conversation so far:\nassistant: text done"


def test_a_summary_carries_on_the_one_before() -> None:
    first = summarized(told("Tone Atwo"))
    seed = Event(author="model", content=first.actions.compaction.compacted_content, timestamp=0.0)
    rest = told("Tthree Afour")
    for at, event in enumerate(rest):
        event.timestamp = 5.0 + at
    second = summarized([seed, *rest])
    assert said(second).splitlines() == [
        "Summary of the conversation so far:",
        "user: text one",
        "assistant: text two",
        "user: text three",
        "assistant: text four",
    ]
    assert second.actions.compaction.start_timestamp == 0.0
    requests: list[SummaryRequest] = []
    summarized([seed, *rest], lambda request: requests.append(request) or "all")
    assert requests[0].previous_summary == "user: text one\nassistant: text two"
    assert len(requests[0].messages) == 2


class Scripted(BaseLlm):
    answers: list[LlmResponse] = []  # noqa: RUF012 - pydantic copies it
    asked: list[LlmRequest] = []  # noqa: RUF012 - as above

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append(llm_request)
        for answer in self.answers:
            yield answer


def answer(*parts: types.Part) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=list(parts)),
        usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=7),
    )


def test_a_model_is_asked() -> None:
    llm = Scripted(
        model="scripted",
        answers=[
            answer(types.Part(text="thinks", thought=True), types.Part(text=" The summary. "))
        ],
    )
    compaction = summarized(told("Thello C1 R1 Adone"), llm, max_tokens=99, instructions="Be kind.")
    assert said(compaction) == "Summary of the conversation so far:\nThe summary."
    assert compaction.usage_metadata.prompt_token_count == 7
    (asked,) = llm.asked
    assert asked.model == "scripted"
    assert "text hello" in asked.contents[0].parts[0].text
    assert "99 tokens" in asked.config.system_instruction
    assert "Be kind." in asked.config.system_instruction


@pytest.mark.parametrize("answers", [[], [answer()], [answer(types.Part(text=" \n"))]])
def test_an_empty_answer_is_no_summary(answers, caplog) -> None:
    assert summarized(told("T A"), Scripted(model="scripted", answers=answers)) is None
    assert "are not summarized" in caplog.text


def test_functions_are_asked_with_and_without_await() -> None:
    async def later(request: SummaryRequest) -> str:
        await asyncio.sleep(0)
        return f"{len(request.messages)} messages"

    assert said(summarized(told("T A"), later)).endswith("\n2 messages")
    assert said(summarized(told("T A"), lambda _: "text")).endswith("\ntext")
    with pytest.raises(ZeroDivisionError):
        summarized(told("T A"), lambda _: 1 / 0)


def test_credentials_are_in_no_summary() -> None:
    events = told("T A")
    secret = types.FunctionResponse(
        id="k", name="adk_request_credential", response={"token": "s3cret"}
    )
    call = types.FunctionCall(id="k", name="adk_request_credential", args={"key": "s3cret"})
    for part in (types.Part(function_call=call), types.Part(function_response=secret)):
        content = types.Content(role="model", parts=[part])
        events.append(Event(author="model", content=content, timestamp=float(len(events))))
    llm = Scripted(model="scripted", answers=[answer(types.Part(text="fine"))])
    summarized(events, llm)
    assert "s3cret" not in llm.asked[0].model_dump_json()
    compaction = summarized(events)
    assert "s3cret" not in said(compaction)
    assert compaction.custom_metadata[COVERS][1] == events[-1].id


def test_events_without_anything_to_say_are_no_summary() -> None:
    assert summarized([Event(author="a", actions=EventActions(state_delta={"k": 1}))]) is None
    spoken = Event(author="user", input_transcription=types.Transcription(text="spoken"))
    assert said(summarized([spoken])).endswith("user: spoken")


@pytest.mark.parametrize(
    "wrong",
    [{"summarize": "text"}, {"max_tokens": 0}, {"max_tokens": "5"}, {"language": "xx"}],
)
def test_wrong_options_are_refused(wrong) -> None:
    with pytest.raises(InvalidOptionError):
        MemcoreEventSummarizer(**wrong)
