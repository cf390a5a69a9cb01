"""Middleware of LangChain that sends contexts and summaries: agents with scripted models."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from memcore.adapters.langchain import ContextMiddleware, SummaryMiddleware


class Recorded(BaseChatModel):
    """Answers with what is due, and keeps the messages that it was sent."""

    due: list[AIMessage]
    seen: list[list[Any]]

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def bind_tools(self, tools, **_):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        self.seen.append(list(messages))
        answer = self.due.pop(0) if self.due else AIMessage("Done.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def look(city: str) -> str:
    """The weather in a city."""
    return f"18 °C in {city} " + "and so on " * 20


def turns(count):
    """What a model says in turns of one call each."""
    found = []
    for turn in range(count):
        call = {"name": "look", "args": {"city": "Paris"}, "id": f"c{turn}", "type": "tool_call"}
        found += [AIMessage("", tool_calls=[call]), AIMessage(f"Answer {turn}")]
    return found


def played(middleware, count=8, *, is_async=False, saver=None):
    """Play turns of one conversation; the sent lists of messages, and the last state."""
    model = Recorded(due=turns(count), seen=[])
    agent = create_agent(model, [look], system_prompt="Be short.", middleware=[middleware],
                         checkpointer=saver or InMemorySaver())  # fmt: skip
    config = {"configurable": {"thread_id": "t"}}
    for turn in range(count):
        asked = {"messages": [HumanMessage(f"Question {turn}")]}
        if is_async:
            asyncio.run(agent.ainvoke(asked, config))
        else:
            agent.invoke(asked, config)
    return model.seen, agent.get_state(config).values


def violations(messages):
    return memcore.validate([message_to_dict(each) for each in messages], "langchain")


class Summaries:
    """Counts the summaries, and says what each was made of."""

    def __init__(self):
        self.given = []

    def __call__(self, messages):
        self.given.append(list(messages))
        return f"summary {len(self.given)} of {len(messages)}"


def summarizing(told, **options):
    return SummaryMiddleware(Recorded(due=[], seen=[]), summarizer=told, **options)


# --- contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_get_what_fits_and_the_state_keeps_all(is_async):
    seen, state = played(ContextMiddleware(400), is_async=is_async)
    assert len(seen) == 16
    assert len(state["messages"]) == 8 * 4
    for sent in seen:
        assert sent[0] == SystemMessage("Be short.")
        assert violations(sent) == []
        assert sum(memcore.count_tokens(str(each.content)) for each in sent) <= 400
    assert len(seen[-1]) < 20  # of 31 messages
    assert "Question 7" in [each.content for each in seen[-1]]


def test_without_a_budget_messages_are_only_made_legal():
    call = {"name": "look", "args": {}, "id": "c1", "type": "tool_call"}
    asked = HumanMessage("Hi")
    sent = []

    def handler(request):
        sent.extend(request.messages)

    messages = [asked, AIMessage("", tool_calls=[call]), HumanMessage("And?")]
    request = ModelRequest(model=Recorded(due=[], seen=[]), messages=messages)
    ContextMiddleware().wrap_model_call(request, handler)
    assert [each.type for each in sent] == ["human", "ai", "tool", "human"]
    assert sent[0] is asked  # with all its fields
    assert request.messages == messages


def test_equal_messages_stay_themselves():
    messages = [
        HumanMessage("Again?"),
        AIMessage("Yes.", response_metadata={"model_name": "one"}),
        HumanMessage("Again?"),
        AIMessage("Yes.", response_metadata={"model_name": "two"}),
    ]
    sent = []
    request = ModelRequest(model=Recorded(due=[], seen=[]), messages=messages)
    ContextMiddleware(1_000).wrap_model_call(request, lambda made: sent.extend(made.messages))
    assert [a is b for a, b in zip(sent, messages, strict=True)] == [True] * 4


def test_a_budget_that_nothing_fits_in_is_refused():
    request = ModelRequest(model=Recorded(due=[], seen=[]), messages=[HumanMessage("word " * 200)])
    with pytest.raises(memcore.ContextOverflowError):
        ContextMiddleware(20).wrap_model_call(request, lambda _: None)
    with pytest.raises(memcore.InvalidOptionError):
        ContextMiddleware(-1)


# --- summaries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_summary_is_shown_and_nothing_is_removed(is_async):
    told = Summaries()
    middleware = summarizing(told, trigger=("messages", 12), keep=("messages", 4))
    seen, state = played(middleware, is_async=is_async)
    assert len(state["messages"]) == 8 * 4  # LangChain's own leaves the summary and the newest
    assert [each.content for each in state["messages"] if isinstance(each, HumanMessage)] == [
        f"Question {turn}" for turn in range(8)
    ]
    assert len(told.given) >= 2
    for sent in seen:
        assert violations(sent) == []
        assert len(sent) <= 1 + 12
    assert f"summary {len(told.given)}" in seen[-1][1].content
    # Each summary is made of the last one and of what came since.
    assert f"summary {len(told.given) - 1}" in told.given[-1][0].content
    first = {each.id for each in told.given[0]}
    assert not {each.id for each in told.given[1][1:]} & first


def test_both_summarize_at_the_same_place():
    told, theirs = Summaries(), Summaries()
    options = {"trigger": ("messages", 10), "keep": ("messages", 5)}
    seen, _ = played(summarizing(told, **options), 4)
    rival = SummarizationMiddleware(Recorded(due=[], seen=[]), summarizer=theirs, **options)
    other, _ = played(rival, 4)
    shown = [[each.content for each in sent] for sent in seen]
    assert shown == [[each.content for each in sent] for sent in other]
    assert len(told.given) == len(theirs.given) > 0


def test_the_summary_outlives_the_process():
    saver, told = InMemorySaver(), Summaries()
    options = {"trigger": ("messages", 8), "keep": ("messages", 3)}
    played(summarizing(told, **options), 3, saver=saver)
    made = len(told.given)
    model = Recorded(due=[AIMessage("Yes.")], seen=[])
    agent = create_agent(model, [look], middleware=[summarizing(told, **options)],
                         checkpointer=saver)  # fmt: skip
    agent.invoke({"messages": [HumanMessage("Still there?")]},
                 {"configurable": {"thread_id": "t"}})  # fmt: skip
    assert made >= 1
    assert "summary" in model.seen[0][0].content


def test_a_summary_of_removed_messages_is_forgotten():
    told = Summaries()
    middleware = summarizing(told, trigger=("messages", 4), keep=("messages", 2))
    messages = [HumanMessage(f"m{n}", id=f"m{n}") for n in range(4)]
    state = {"messages": messages}
    state |= middleware.before_model(state, None)
    sent = []
    request = ModelRequest(model=Recorded(due=[], seen=[]), messages=messages, state=state)
    middleware.wrap_model_call(request, lambda made: sent.append(made.messages))
    request = ModelRequest(model=Recorded(due=[], seen=[]), messages=messages[2:], state=state)
    middleware.wrap_model_call(request, lambda made: sent.append(made.messages))
    assert [each.content for each in sent[0][1:]] == ["m2", "m3"]
    assert [each.content for each in sent[1]] == ["m2", "m3"]


def test_a_failing_summarizer_stops_the_call_and_changes_nothing():
    def fail(_):
        raise RuntimeError("no summary today")

    middleware = summarizing(fail, trigger=("messages", 2), keep=("messages", 1))
    state = {"messages": [HumanMessage("a"), HumanMessage("b")]}
    with pytest.raises(RuntimeError, match="no summary today"):
        middleware.before_model(state, None)
    assert "memcore_summary" not in state


@st.composite
def conversations(draw):
    """Messages with calls whose results come at once, late, or never."""
    found, waiting = [], []
    for number in range(draw(st.integers(1, 25))):
        what = draw(st.sampled_from(["user", "say", "call", "result", "result"]))
        if what == "user":
            found.append(HumanMessage(f"u{number}"))
        elif what == "say":
            found.append(AIMessage(f"a{number}"))
        elif what == "call":
            ids = [f"c{number}-{n}" for n in range(draw(st.integers(1, 3)))]
            calls = [{"name": "f", "args": {}, "id": each, "type": "tool_call"} for each in ids]
            found.append(AIMessage("", tool_calls=calls))
            waiting += ids
        elif waiting:
            answered = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            found.append(ToolMessage(f"r{number}", tool_call_id=answered))
    return found or [HumanMessage("u")]


@given(conversations(), st.integers(1, 8), st.integers(1, 12))
@settings(deadline=None)
def test_no_cut_of_a_summary_separates_a_pair(messages, keep, trigger):
    told = Summaries()
    middleware = summarizing(told, trigger=("messages", trigger), keep=("messages", keep))
    state: dict[str, Any] = {"messages": []}
    for message in messages:
        state["messages"] = [*state["messages"], message]
        state |= middleware.before_model(state, None) or {}
        sent = []
        request = ModelRequest(
            model=Recorded(due=[], seen=[]), messages=state["messages"], state=state
        )
        middleware.wrap_model_call(request, lambda made, into=sent: into.extend(made.messages))
        assert violations(sent) == []
        answered = {each.tool_call_id for each in sent if isinstance(each, ToolMessage)}
        called = {
            call["id"] for each in sent if isinstance(each, AIMessage) for call in each.tool_calls
        }
        assert answered <= called
        covered = {
            call["id"]
            for given in told.given
            for each in given
            if isinstance(each, AIMessage)
            for call in each.tool_calls
        }
        assert not covered & called  # a call is summarized or shown, with its results
    assert not any(isinstance(each, RemoveMessage) for each in state["messages"])
