"""An ADK app with a scripted model on a memcore file; as a program, its second turn."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.load_memory_tool import load_memory
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService

AT = {"user_id": "ann", "session_id": "s"}


class Scripted(BaseLlm):
    """Says what it is told to, and keeps what it was asked.

    An answer is a text, a list of calls ``(name, args)`` or ``(name, args, id)``, or a function of
    the contents that returns one of these.
    """

    model: str = "scripted"
    answers: list[Any]
    seen: list[list[dict[str, Any]]] = []  # noqa: RUF012 - pydantic copies it
    tokens: int | None = None

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        shown = [each.model_dump(mode="json", exclude_none=True, by_alias=True)
                 for each in llm_request.contents]  # fmt: skip
        self.seen.append(shown)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer(shown)
        if asyncio.iscoroutine(answer):
            answer = await answer
        usage = None
        if self.tokens is not None:
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=self.tokens)
        if stream and isinstance(answer, str):
            part = types.Part(text=answer[: len(answer) // 2])
            content = types.Content(role="model", parts=[part])
            yield LlmResponse(content=content, partial=True)
        content = types.Content(role="model", parts=_parts(answer))
        yield LlmResponse(content=content, usage_metadata=usage)


def _parts(answer: Any) -> list[types.Part]:
    if isinstance(answer, str):
        return [types.Part(text=answer)]
    calls = [types.FunctionCall(name=name, args=args, id=rest[0] if rest else None)
             for name, args, *rest in answer]  # fmt: skip
    parts = [types.Part(function_call=call) for call in calls]
    parts[0].thought_signature = b"signed"  # as Gemini 3: only the first of parallel calls
    return parts


# --- tools ----------------------------------------------------------------------------------------


def look(q: str) -> dict[str, Any]:
    """Looks something up."""
    return {"found": q}


def note(key: str, value: str, tool_context: ToolContext) -> dict[str, Any]:
    """Writes to the state."""
    tool_context.state[key] = value
    tool_context.state["temp:scratch"] = value
    return {"noted": key}


async def write(name: str, text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Saves an artifact."""
    return {"version": await tool_context.save_artifact(name, types.Part(text=text))}


def approve(amount: int) -> dict[str, Any]:
    """Asks somebody."""
    return {"status": "pending", "amount": amount}


def ask(question: str) -> None:
    """Asks somebody, and says nothing until there is an answer."""


TOOLS = [look, note, write, load_memory]
TOOLS += [LongRunningFunctionTool(func=approve), LongRunningFunctionTool(func=ask)]


class World:
    """An app with its three services on one file, and its model."""

    def __init__(self, source: Any, *answers: Any, tools: Any = (), **config: Any) -> None:
        self.llm = Scripted(answers=list(answers), tokens=config.pop("tokens", None))
        agent = LlmAgent(name="agent", model=self.llm, tools=[*TOOLS, *tools])
        self.sessions = MemcoreSessionService(source)
        database = self.sessions.database
        self.artifacts = MemcoreArtifactService(database)
        self.memory = MemcoreMemoryService(database)
        self.runner = Runner(
            app=App(name="app", root_agent=agent, **config),
            session_service=self.sessions,
            artifact_service=self.artifacts,
            memory_service=self.memory,
        )

    async def turn(self, *message: Any, **options: Any) -> list[Event]:
        """What comes of a message: of texts and parts."""
        parts = [types.Part(text=each) if isinstance(each, str) else each for each in message]
        content = types.Content(role="user", parts=parts) if parts else None
        options = {**AT, **options}
        return [event async for event in self.runner.run_async(new_message=content, **options)]

    async def session(self) -> Any:
        """The session as it is stored."""
        return await self.sessions.get_session(app_name="app", **AT)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """What the model was shown last."""
        return self.llm.seen[-1]


async def second_turn(path: str) -> dict[str, Any]:
    """What a process finds that knows nothing but the path."""
    async with AsyncExitStack() as stack:
        world = World(path, "and again")
        stack.enter_context(world.sessions)
        await world.turn("second")
        keys = await world.artifacts.list_artifact_keys(app_name="app", **AT)
        session = await world.session()
        found = await world.memory.search_memory(app_name="app", user_id="ann", query="first")
        return {
            "shown": world.shown,
            "state": session.state,
            "keys": keys,
            "remembered": len(found.memories),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(second_turn(sys.argv[1]))))  # noqa: T201 - its result
