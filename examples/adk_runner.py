"""A Google ADK agent whose sessions, state and artifacts lie in one file, and survive a restart.

The model is scripted: no key, no network. Run it: ``python examples/adk_runner.py``.
It prints:

    Noted, 1 so far.
    4 events, 1 memories of milk
    Noted, 2 so far.
    8 events, 1 memories of milk
    Noted, 3 so far.
    4 events, 2 memories of milk
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from google.genai import types

import memcore
from memcore.adapters.adk import MemcoreArtifactService, MemcoreMemoryService, MemcoreSessionService


class Scripted(BaseLlm):
    """Calls the tool once a question, then says what it answered."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """One answer."""
        last = llm_request.contents[-1].parts[-1]
        if last.function_response is not None:
            part = types.Part(text=f"Noted, {last.function_response.response['notes']} so far.")
        else:
            part = types.Part.from_function_call(name="note", args={"text": last.text})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def note(text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keep a note: counted for the user, and the text as an artifact."""
    count = tool_context.state.get("user:notes", 0) + 1
    tool_context.state["user:notes"] = count
    await tool_context.save_artifact("user:notes.txt", types.Part(text=text))
    return {"notes": count}


async def say(path: Path, session_id: str, text: str) -> None:
    """One run of the program: it opens the file, goes on with the session and closes it."""
    with memcore.open(path) as db:
        sessions = MemcoreSessionService(db)
        memory = MemcoreMemoryService(db)
        runner = Runner(
            app_name="notes",
            agent=LlmAgent(name="keeper", model=Scripted(), tools=[note]),
            session_service=sessions,
            artifact_service=MemcoreArtifactService(db),
            memory_service=memory,
            auto_create_session=True,
        )
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for event in runner.run_async(
            user_id="alice", session_id=session_id, new_message=message
        ):
            if event.is_final_response() and event.content:
                print(event.content.parts[0].text)
        key = {"app_name": "notes", "user_id": "alice"}
        session = await sessions.get_session(**key, session_id=session_id)
        await memory.add_session_to_memory(session)
        found = await memory.search_memory(**key, query="milk")
        print(f"{len(session.events)} events, {len(found.memories)} memories of milk")


async def main() -> None:
    """Two sessions of one user, each as if the program had been started anew."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "agent.memcore"
        await say(path, "monday", "Buy milk.")
        await say(path, "monday", "Feed the cat.")
        await say(path, "tuesday", "Pay the milk bill.")


if __name__ == "__main__":
    asyncio.run(main())
