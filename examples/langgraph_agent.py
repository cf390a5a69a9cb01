"""A LangGraph agent whose thread survives a restart, and that sees only what fits its window.

The model is scripted: no key, no network. Run it: ``python examples/langgraph_agent.py``.
It prints:

    Paris: 4 messages in the thread, 4 of them in a window of 60 tokens
    Rome: 8 messages in the thread, 4 of them in a window of 60 tokens
    Oslo: 12 messages in the thread, 4 of them in a window of 60 tokens
    It is 18 °C there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from memcore.adapters.langgraph import MemcoreSaver

THREAD = {"configurable": {"thread_id": "trip"}}


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Asks for the weather once a question, and says what came back."""
    last = state["messages"][-1]
    if isinstance(last, ToolMessage):
        return {"messages": [AIMessage(f"It is {last.content} there.")]}
    number = len(state["messages"])
    call = {"name": "weather", "args": {"city": last.content}, "id": f"call-{number}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def tool(state: MessagesState) -> dict[str, list[ToolMessage]]:
    """Answers the call."""
    (call,) = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage("18 °C", tool_call_id=call["id"])]}


def ask(path: Path, question: str) -> list[str]:
    """One run of the program: it opens the file, goes on with the thread and closes it."""
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tool", tool)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: "tool" if state["messages"][-1].tool_calls else END
    )
    builder.add_edge("tool", "model")
    with MemcoreSaver.from_conn_string(str(path)) as saver:
        graph = builder.compile(checkpointer=saver)
        after = graph.invoke({"messages": [HumanMessage(question)]}, THREAD)
        window = saver.context("trip", budget_tokens=60)
        sys.stdout.write(
            f"{question}: {len(after['messages'])} messages in the thread, "
            f"{len(window.messages)} of them in a window of 60 tokens\n"
        )
        return [str(message.content) for message in after["messages"]]


def main() -> None:
    """Three questions, each as if the program had been started anew."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "agent.memcore"
        for city in ("Paris", "Rome", "Oslo"):
            said = ask(path, city)
        sys.stdout.write(f"{said[-1]}\n")


if __name__ == "__main__":
    main()
