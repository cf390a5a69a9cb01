"""A payload in the requests of the OpenAI Agents SDK, Google ADK and LangChain.

One function makes it for each call of the model; the framework's own history is cut to its budget.
The models are scripted: no key, no network. Run it: ``python examples/payload_in_frameworks.py``.
It prints:

    OpenAI Agents: 12 turns, 24 items kept, the last request has 12, and the memory
    Google ADK: 12 turns, 24 items kept, the last request has 8, and the memory
    LangChain: 12 turns, 24 items kept, the last request has 11, and the memory
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, set_tracing_disabled
from agents import Runner as AgentsRunner
from agents.testing import ScriptedModel, assistant_message
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.genai import types
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import memcore
from memcore.adapters.adk import MemcorePlugin, MemcoreSessionService
from memcore.adapters.langchain import PayloadMiddleware
from memcore.adapters.openai_agents import MemcoreSession, payload_call_model_input_filter

TURNS = 12
QUESTION = "When shall we read? I have time all day, but I want to remember it well."
SAID = "In the morning, as you like it best; take a break after half an hour, then go on."
Make = Callable[[str, Any], memcore.Payload]


def tell(name: str, kept: int, shown: Any) -> None:
    """Print what was kept, and what the model got last."""
    memory = ", and the memory" if "reads best" in str(shown) else ""
    print(f"{name}: {TURNS} turns, {kept} items kept, the last request has {len(shown)}{memory}")


# --- the OpenAI Agents SDK ------------------------------------------------------------------------


async def with_agents(db: memcore.Database, make: Make) -> None:
    """Run an agent of the SDK, whose filter sends the payload."""
    set_tracing_disabled(disabled=True)
    model = ScriptedModel([[assistant_message(SAID)]] * TURNS)
    agent = Agent(name="Tutor", instructions="You are a tutor.", model=model)
    config = RunConfig(call_model_input_filter=payload_call_model_input_filter(make))
    session = MemcoreSession("agents", db.scope(user="ann"))
    for _ in range(TURNS):
        await AgentsRunner.run(agent, QUESTION, session=session, run_config=config)
    tell("OpenAI Agents", len(await session.get_items()), model.calls[-1].input)


# --- Google ADK -----------------------------------------------------------------------------------


class ScriptedLlm(BaseLlm):
    """Says one thing, and keeps what it was asked."""

    model: str = "scripted"
    seen: list[Any] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer."""
        del stream
        self.seen.append(list(llm_request.contents))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=SAID)]))


async def with_adk(db: memcore.Database, make: Make) -> None:
    """Run an agent of ADK, whose plugin sends the payload."""
    model = ScriptedLlm()
    agent = LlmAgent(name="tutor", instruction="You are a tutor.", model=model)
    app = App(name="adk", root_agent=agent, plugins=[MemcorePlugin(payload=make)])
    service = MemcoreSessionService(db)
    place = {"user_id": "ann", "session_id": "s"}
    await service.create_session(app_name="adk", **place)
    runner = AdkRunner(app=app, session_service=service)
    for _ in range(TURNS):
        said = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        async for _ in runner.run_async(**place, new_message=said):
            pass
    stored = await service.get_session(app_name="adk", **place)
    tell("Google ADK", len(stored.events) if stored else 0, model.seen[-1])


# --- LangChain ------------------------------------------------------------------------------------


class ScriptedChat(BaseChatModel):
    """Says one thing, and keeps what it was asked."""

    seen: list[Any] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(SAID))])


def with_langchain(make: Make) -> None:
    """Run an agent of LangChain, whose middleware sends the payload."""
    model = ScriptedChat()
    agent = create_agent(
        model, [], system_prompt="You are a tutor.", middleware=[PayloadMiddleware(make)]
    )
    messages: list[Any] = []
    for _ in range(TURNS):
        state: Any = {"messages": [*messages, ("user", QUESTION)]}
        messages = agent.invoke(state)["messages"]
    tell("LangChain", len(messages), model.seen[-1])


def main() -> None:
    """Run all three."""
    with (
        tempfile.TemporaryDirectory() as home,
        memcore.open(Path(home) / "agent.memcore") as db,
    ):
        hello = db.session("hello", user="ann")
        hello.append({"role": "user", "content": "Ann reads best in the morning."})
        hello.memory.remember("Ann reads best in the morning", source=1)

        def make(text: str, request: Any) -> memcore.Payload:
            del request  # it knows the user of the call; here there is one
            payload = memcore.Payload(400)
            payload.memories(db.scope(user="ann").memory, query=text, budget_tokens=100)
            return payload

        asyncio.run(with_agents(db, make))
        asyncio.run(with_adk(db, make))
        with_langchain(make)


if __name__ == "__main__":
    main()
