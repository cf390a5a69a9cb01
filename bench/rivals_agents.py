"""Sessions of the OpenAI Agents SDK, and the items and turns that all of them are given.

Nothing of the SDK is imported elsewhere in these benchmarks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from trimming import missing

__all__ = [
    "ITEM_BYTES",
    "advanced_session",
    "async_sqlite_session",
    "our_session",
    "response_items",
    "runner_turn",
    "sqlite_session",
]

ITEM_BYTES = 1_000
TEXT = "some words of a conversation about flights, refunds and the weather in Oslo. "
_PACKAGE = "openai-agents"


def response_items(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Items of turns as the Runner stores them: question, call, output, answer; of 1 KB each."""
    found: list[dict[str, Any]] = []
    for at in range(first, first + count):
        text = f"{at} ".ljust(10) + TEXT * (ITEM_BYTES // len(TEXT))
        call = f"call_{at // 4:08}"
        found.append(
            (
                {"role": "user", "content": text},
                {
                    "type": "function_call",
                    "call_id": call,
                    "name": "look",
                    "arguments": f'{{"q":"{text}"}}',
                    "id": f"fc_{at // 4:08}",
                    "status": "completed",
                },
                {"type": "function_call_output", "call_id": call, "output": text},
                {
                    "type": "message",
                    "id": f"msg_{at:08}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                },
            )[at % 4]
        )
    return found


# --- sessions ------------------------------------------------------------------------------------


def our_session(source: Any, session_id: str = "bench", **options: Any) -> Any:
    """The session of memcore over a path or an open database.

    Raises:
        NotInstalled: openai-agents is not there.
    """
    try:
        from memcore.adapters.openai_agents import MemcoreSession
    except ImportError as error:
        raise missing(_PACKAGE, error) from error
    return MemcoreSession(session_id, source, allow_unsafe=True, **options)


def sqlite_session(path: Path, session_id: str = "bench") -> Any:
    """The SDK's SQLiteSession with its own settings: WAL, synchronous=FULL.

    Raises:
        NotInstalled: openai-agents is not there.
    """
    try:
        from agents import SQLiteSession
    except ImportError as error:
        raise missing(_PACKAGE, error) from error
    return SQLiteSession(session_id, path)


def advanced_session(path: Path, session_id: str = "bench") -> Any:
    """The SDK's AdvancedSQLiteSession: turns, branches, usage.

    Raises:
        NotInstalled: openai-agents is not there.
    """
    try:
        from agents.extensions.memory import AdvancedSQLiteSession
    except ImportError as error:
        raise missing(_PACKAGE, error) from error
    return AdvancedSQLiteSession(session_id=session_id, db_path=path, create_tables=True)


def async_sqlite_session(path: Path, session_id: str = "bench") -> Any:
    """The SDK's AsyncSQLiteSession, over aiosqlite.

    Raises:
        NotInstalled: openai-agents or aiosqlite is not there.
    """
    try:
        from agents.extensions.memory import AsyncSQLiteSession
    except ImportError as error:
        raise missing("openai-agents aiosqlite", error) from error
    return AsyncSQLiteSession(session_id, path)


# --- a turn of the Runner ------------------------------------------------------------------------


def runner_turn() -> Callable[[Any], Awaitable[Any]]:
    """A turn with a scripted model: the question, a call of a tool, its output, the answer.

    The Runner stores these four items in three appends and reads the session once.

    Raises:
        NotInstalled: openai-agents is not there.
    """
    try:
        from agents import Agent, RunConfig, Runner, function_tool
    except ImportError as error:
        raise missing(_PACKAGE, error) from error

    @function_tool
    def look(q: str) -> str:
        """Look it up."""
        return q + TEXT

    agent = Agent(name="bench", model=_scripted(), tools=[look])
    config = RunConfig(tracing_disabled=True)

    async def turn(session: Any) -> Any:
        return await Runner.run(agent, TEXT, session=session, run_config=config)

    return turn


def _scripted() -> Any:
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Scripted(Model):
        """Calls a tool first, then answers."""

        def __init__(self) -> None:
            self.calls = 0

        async def get_response(self, *_: Any, **__: Any) -> Any:
            self.calls += 1
            number = f"{self.calls:08}"
            said: Any
            if self.calls % 2:
                said = ResponseFunctionToolCall(
                    type="function_call",
                    call_id=f"call_{number}",
                    id=f"fc_{number}",
                    name="look",
                    arguments='{"q":"Oslo"}',
                )
            else:
                text = ResponseOutputText(type="output_text", text=TEXT, annotations=[])
                said = ResponseOutputMessage(
                    type="message",
                    id=f"msg_{number}",
                    role="assistant",
                    status="completed",
                    content=[text],
                )
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError  # nothing here streams

    return Scripted()
