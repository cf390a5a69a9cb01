"""Stores that the real packages write: sessions, events, threads of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from agents import SQLiteSession
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import interrupt

USER = {"role": "user", "content": "Weather in Paris? 🌧"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "18 °C"}
ANSWER = {"role": "assistant", "content": "It is 18 °C."}


async def fill_sessions(path: Path, names: list[str], **tables: str) -> None:
    for name in names:
        session = SQLiteSession(name, path, **tables)
        await session.add_items([USER, CALL, RESULT, {**ANSWER, "content": name}])
        await session.add_items([{"type": "reasoning", "id": "rs_1", "summary": []}])
        session.close()


async def fill_adk(service: Any) -> None:
    for user in ("ann", "bob"):
        session = await service.create_session(
            app_name="shop", user_id=user, session_id=f"{user}-1",
            state={"cart": [1], "user:lang": "de", "app:tax": 0.2, "nothing": None, "n": 1},
        )  # fmt: skip
        for turn in range(3):
            for event in turn_of(turn):
                await service.append_event(session, event)
        await service.create_session(app_name="shop", user_id=user, session_id="empty")


def turn_of(turn: int) -> Iterator[Event]:
    def event(author: str, *parts: types.Part, **actions: Any) -> Event:
        role = "user" if author == "user" else "model"
        content = types.Content(role=role, parts=list(parts)) if parts else None
        made = EventActions(**actions)
        return Event(author=author, invocation_id=f"i{turn}", content=content, actions=made)

    call = types.FunctionCall(id="c", name="f", args={"snake_case": [0.1 + 0.2]})
    answer = types.FunctionResponse(id="c", name="f", response={"a_b": 1})
    yield event("user", types.Part(text="q 🌧"))
    delta = {"cart": [turn], "temp:x": 1, "user:seen": turn, f"new{turn}": turn, "n": True}
    yield event("agent", types.Part(function_call=call), state_delta=delta)
    yield event("agent", types.Part(function_response=answer))
    yield event("agent", state_delta={"only": "state"}, artifact_delta={"a.txt": turn})
    yield event("agent", types.Part(text="x" * 90_000), types.Part(inline_data=types.Blob(
        data=b"\x00\xff", mime_type="image/png")))  # fmt: skip


def joined(left: list[str] | None, right: list[list[str]]) -> list[str]:
    return (left or []) + [each for several in right for each in several]


class GraphState(TypedDict):
    messages: Annotated[list, add_messages]
    n: Annotated[int, add]
    log: Annotated[list, DeltaChannel(joined, snapshot_frequency=3)]


def graph() -> StateGraph:
    def answer(state: GraphState) -> dict[str, Any]:
        number = state["n"]
        return {
            "messages": [AIMessage(f"a{number}", id=f"a{number}")],
            "n": 1,
            "log": [f"l{number}"],
        }

    def ask(state: GraphState) -> dict[str, Any]:
        if state["n"] > 4:
            interrupt({"question": "go on?"})
        return {"n": 1}

    inner = StateGraph(GraphState)
    inner.add_node("answer", answer)
    inner.add_edge(START, "answer")
    made = StateGraph(GraphState)
    made.add_node("inner", inner.compile(checkpointer=True))
    made.add_node("answer", answer)
    made.add_node("ask", ask)
    made.add_edge(START, "answer")
    made.add_edge("answer", "inner")
    made.add_edge("inner", "ask")
    made.add_edge("ask", END)
    return made


def run_threads(saver: Any) -> Any:
    """Threads with several runs, a namespace, a fork and an interrupt that waits."""
    app = graph().compile(checkpointer=saver)
    for thread in ("t0", "t1", "t/ü"):
        config = {"configurable": {"thread_id": thread}}
        for turn in range(3):
            human = HumanMessage(f"h{turn}", id=f"h{turn}")
            app.invoke({"messages": [human], "n": 0, "log": [f"in{turn}"]}, config)
    old = list(app.get_state_history({"configurable": {"thread_id": "t0"}}))[4]
    app.update_state(old.config, {"messages": [HumanMessage("forked", id="f")]})
    return app
