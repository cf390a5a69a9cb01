"""A deep agent whose files stay: the second run edits what the first one wrote.

The model is scripted: no key, no network. Run it: ``python examples/deepagents_agent.py``.
It prints:

    4 messages in the thread
    10 messages in the thread
    # Report
    2nd draft
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import memcore
from memcore.adapters.deepagents import MemcoreBackend
from memcore.adapters.langgraph import MemcoreSaver


class Scripted(BaseChatModel):
    """Calls the tools that it is told to, then says that it is done."""

    calls: list[tuple[str, dict[str, Any]]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        """Any tools will do."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        question = max(at for at, each in enumerate(messages) if each.type == "human")
        done = sum(isinstance(message, AIMessage) for message in messages[question:])
        reply = AIMessage("Done.")
        if done < len(self.calls):
            name, arguments = self.calls[done]
            call = {"name": name, "args": arguments, "id": f"{name}-{question}-{done}"}
            reply = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def run(path: Path, *calls: tuple[str, dict[str, Any]]) -> None:
    """One run of the program: files and the conversation lie in the same file."""
    with memcore.open(path) as db:
        agent = create_deep_agent(
            model=Scripted(calls=list(calls)),
            backend=MemcoreBackend(db, user="alice"),
            checkpointer=MemcoreSaver(db, user="alice"),
        )
        config = {"configurable": {"thread_id": "report"}}
        state = agent.invoke({"messages": [{"role": "user", "content": "Go on."}]}, config)
        sys.stdout.write(f"{len(state['messages'])} messages in the thread\n")


def main() -> None:
    """Write in one run, edit and read in the next."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "agent.memcore"
        run(path, ("write_file", {"file_path": "/report.md", "content": "# Report\nfirst draft\n"}))
        run(
            path,
            ("edit_file", {"file_path": "/report.md", "old_string": "first", "new_string": "2nd"}),
            ("read_file", {"file_path": "/report.md"}),
        )
        with MemcoreBackend(path, user="alice") as files:
            read = files.read("/report.md")
            sys.stdout.write(f"{read.file_data['content']}" if read.file_data else f"{read.error}")


if __name__ == "__main__":
    main()
