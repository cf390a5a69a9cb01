"""A LangChain agent whose model sees a budget's worth of messages, while its state keeps all.

Runs without a network: the model is scripted. ``pip install "memcore-db[langchain]"``

It prints:
    ContextMiddleware: the state keeps 48 messages, the model got 17 at most
    SummaryMiddleware: the state keeps 48 messages, the model got 11 at most
    5 summaries, each of the one before and what came since
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from memcore.adapters.langchain import ContextMiddleware, SummaryMiddleware

TURNS = 12


class Scripted(BaseChatModel):
    """Looks at the weather for every question, then answers; notes how much it was sent."""

    sent: list[int]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        """Take the tools, as a real model does."""
        del tools
        return self

    def _generate(
        self, messages: list[Any], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        del stop, run_manager
        self.sent.append(len(messages))
        answer = AIMessage("Warm enough for a walk.")
        if messages[-1].type == "human":
            call = {"name": "weather", "args": {"city": "Paris"}, "id": f"call-{len(self.sent)}"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 °C in {city}, light wind. " + "Details of the forecast. " * 20


def main() -> None:
    """Run the agent with each middleware and print what the model was sent at most."""
    summaries: list[int] = []

    def summarize(messages: list[Any]) -> str:
        summaries.append(len(messages))
        return f"The user asked about walks in Paris ({len(messages)} messages)."

    for middleware in (
        ContextMiddleware(600),
        SummaryMiddleware(
            Scripted(sent=[]),
            summarizer=summarize,
            trigger=("messages", 12),
            keep=("messages", 4),
        ),
    ):
        model = Scripted(sent=[])
        agent = create_agent(
            model, [weather], middleware=[middleware], checkpointer=InMemorySaver()
        )
        thread: Any = {"configurable": {"thread_id": "walks"}}
        for turn in range(TURNS):
            agent.invoke({"messages": [HumanMessage(f"Question {turn}: a walk?")]}, thread)
        kept = len(agent.get_state(thread).values["messages"])
        print(
            f"{type(middleware).__name__}: the state keeps {kept} messages,"
            f" the model got {max(model.sent)} at most"
        )
    print(f"{len(summaries)} summaries, each of the one before and what came since")


if __name__ == "__main__":
    main()
