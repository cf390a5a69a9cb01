"""A coding agent of the Claude Agent SDK whose transcript is in a memcore file.

The SDK mirrors each line that its command-line program writes; here a script stands for it.

It prints:
stored 4 lines, of which a model reads 3
the SDK lists: fix the test
the next request: user, assistant, user
found again: pytest says 1 passed
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    Transport,
    list_sessions_from_store,
    project_key_for_directory,
    query,
)

from memcore import ItemKind
from memcore.adapters.claude_agent import MemcoreSessionStore

SESSION = "0f0e0d0c-0b0a-4908-8706-050403020100"
CALL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "pytest"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "pytest says 1 passed"}
LINES: list[dict[str, Any]] = [
    {"type": "user", "uuid": "1", "parentUuid": None,
     "message": {"role": "user", "content": "fix the test"}},
    {"type": "assistant", "uuid": "2", "parentUuid": "1",
     "message": {"id": "m1", "role": "assistant", "model": "scripted", "content": [CALL]}},
    {"type": "user", "uuid": "3", "parentUuid": "2", "toolUseResult": {"stdout": RESULT["content"]},
     "message": {"role": "user", "content": [RESULT]}},
    {"type": "last-prompt", "lastPrompt": "fix the test"},
]  # fmt: skip


class Script(Transport):
    """The program's side of the conversation."""

    def __init__(self, transcript: Path) -> None:
        self._transcript = transcript
        self._asked: asyncio.Queue[str] = asyncio.Queue()

    async def connect(self) -> None:
        """Connect to nothing."""

    async def write(self, data: str) -> None:
        """Take a line from the SDK."""
        request = json.loads(data)
        if request["type"] == "control_request":
            self._asked.put_nowait(request["request_id"])

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Answer the first request, mirror the transcript, and end."""
        answer = {"subtype": "success", "request_id": await self._asked.get(), "response": {}}
        yield {"type": "control_response", "response": answer}
        for _ in range(2):  # a batch that is sent again is stored once
            yield {
                "type": "transcript_mirror",
                "filePath": str(self._transcript),
                "entries": LINES[:3],
            }
        yield {"type": "transcript_mirror", "filePath": str(self._transcript), "entries": LINES[3:]}
        yield {"type": "result", "subtype": "success", "session_id": SESSION, "is_error": False,
               "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}  # fmt: skip

    async def close(self) -> None:
        """Close nothing."""

    async def end_input(self) -> None:
        """Ignore the end of the input."""

    def is_ready(self) -> bool:
        """Return True."""
        return True


async def main() -> None:
    """Run the agent once, then read what it left."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLAUDE_CONFIG_DIR"] = folder
        key = {"project_key": project_key_for_directory(folder), "session_id": SESSION}
        transcript = Path(folder, "projects", key["project_key"], SESSION + ".jsonl")
        with MemcoreSessionStore(Path(folder) / "agent.memcore", user="ann") as store:
            options = ClaudeAgentOptions(session_store=store, cwd=folder)
            async for _ in query(
                prompt="fix the test", options=options, transport=Script(transcript)
            ):
                pass
            lines = await store.load(key)
            session = store.session(key)
            read = [item for item in session.items() if item.kind != ItemKind.EVENT]
            print(f"stored {len(lines or ())} lines, of which a model reads {len(read)}")
            listed = await list_sessions_from_store(store, directory=folder)
            print("the SDK lists:", ", ".join(each.summary for each in listed))
            context = store.context(key, budget_tokens=4_000)
            print("the next request:", ", ".join(each["role"] for each in context.messages))
            hit = session.search("pytest passed", kinds=["result"])[0]
            print("found again:", hit.item.message["content"][0]["content"])


asyncio.run(main())
