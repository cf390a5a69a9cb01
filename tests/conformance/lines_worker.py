"""A process that appends to a session through an adapter of lines; judged by what it leaves.

``python lines_worker.py KIND PATH NAME COUNT`` appends COUNT lines, one a commit, that name it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any


async def claude(path: str, name: str, count: int) -> None:
    """Append lines to the transcript ``p/s``."""
    from memcore.adapters.claude_agent import MemcoreSessionStore

    with MemcoreSessionStore(path) as store:
        for number in range(count):
            line = {"type": "user", "uuid": f"{name}-{number}",
                    "message": {"role": "user", "content": f"{name} {number}"}}  # fmt: skip
            batch: list[dict[str, Any]] = [line, {"type": "system", "uuid": f"{name}-{number}s"}]
            await store.append({"project_key": "p", "session_id": "s"}, batch)


async def pydantic(path: str, name: str, count: int) -> None:
    """Append messages to the conversation ``c``, again after each conflict."""
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import ConversationConflict
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from memcore.adapters.pydantic_ai import MemcoreConversationStore

    with MemcoreConversationStore(path) as store:
        number = 0
        while number < count:
            found = await store.load("c") or Conversation(conversation_id="c")
            found.messages.append(ModelRequest([UserPromptPart(f"{name} {number}")]))
            try:
                await store.save(found)
            except ConversationConflict:
                continue
            number += 1


async def strands(path: str, name: str, count: int) -> None:
    """Append messages to the agent ``s/a``, under the next id, again after each collision."""
    from strands.types.exceptions import SessionException
    from strands.types.session import SessionMessage

    from memcore.adapters.strands import MemcoreSessionRepository

    with MemcoreSessionRepository(path) as repository:
        number = 0
        while number < count:
            content = {"role": "user", "content": [{"text": f"{name} {number}"}]}
            taken = len(repository.list_messages("s", "a"))
            try:
                repository.create_message("s", "a", SessionMessage(content, taken))
            except SessionException:
                continue
            number += 1


async def agent_framework(path: str, name: str, count: int) -> None:
    """Append turns to the history ``s``."""
    from agent_framework import Message

    from memcore.adapters.agent_framework import MemcoreHistoryProvider

    with MemcoreHistoryProvider(path) as provider:
        for number in range(count):
            turn = [Message("user", [f"{name} {number}?"]),
                    Message("assistant", [f"{name} {number}!"])]  # fmt: skip
            await provider.save_messages("s", turn)


async def llama_index(path: str, name: str, count: int) -> None:
    """Append turns to the chat ``k``."""
    from llama_index.core.base.llms.types import ChatMessage

    from memcore.adapters.llama_index import MemcoreChatStore

    with MemcoreChatStore(path) as store:
        for number in range(count):
            turn = [ChatMessage(role="user", content=f"{name} {number}?"),
                    ChatMessage(role="assistant", content=f"{name} {number}!")]  # fmt: skip
            await store.add_messages("k", turn)


KINDS = {
    "agent_framework": agent_framework,
    "claude": claude,
    "llama_index": llama_index,
    "pydantic": pydantic,
    "strands": strands,
}

if __name__ == "__main__":
    asyncio.run(KINDS[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4])))
