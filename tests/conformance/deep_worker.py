"""A DeepAgents agent with a scripted model on a memcore file; as a program, its first run."""

from __future__ import annotations

import sys
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from memcore.adapters.deepagents import MemcoreBackend

LOG = "\n".join(f"line {at} of what the tool found" for at in range(4_000))


class Scripted(BaseChatModel):
    """Says what it is told to: each turn a call of a tool, a text at the end."""

    turns: list[tuple[str, dict[str, Any]]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        done = sum(isinstance(message, AIMessage) for message in messages)
        if done == len(self.turns):
            reply = AIMessage("done")
        else:
            name, arguments = self.turns[done]
            call = {"name": name, "args": arguments, "id": f"call_{name}_{done}"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def look_up() -> str:
    """Find something that is long."""
    return LOG


def run(backend: MemcoreBackend, checkpointer: Any, *turns: tuple[str, dict[str, Any]]) -> Any:
    """What the tools answered, in the order of the turns."""
    agent = create_deep_agent(
        model=Scripted(turns=list(turns)),
        tools=[look_up],
        backend=backend,
        checkpointer=checkpointer,
    )
    config = {"configurable": {"thread_id": "t"}}
    state = agent.invoke({"messages": [{"role": "user", "content": "go"}]}, config)
    assert state["messages"][-1].content == "done"
    return [message.content for message in state["messages"] if message.type == "tool"]


def first_run(path: str) -> list[Any]:
    """Write, read, edit, and a result that is too large for the conversation."""
    with MemcoreBackend.from_path(path) as backend:
        return run(
            backend,
            InMemorySaver(),
            ("write_file", {"file_path": "/plan.md", "content": "one\ntwo\n"}),
            ("read_file", {"file_path": "/plan.md"}),
            ("edit_file", {"file_path": "/plan.md", "old_string": "two", "new_string": "2"}),
            ("look_up", {}),
        )


if __name__ == "__main__":
    for answer in first_run(sys.argv[1]):
        sys.stdout.write(f"{answer}\n")
