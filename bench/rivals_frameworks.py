"""Stores of frameworks for conversations, and memcore's in their place; imported only when run."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

__all__ = ["FRAMEWORKS", "Action", "Made"]

TEXT = "some words of a conversation, " * 8
Action = Callable[[], Awaitable[Any]]
Made = tuple[str, str, Callable[[Any], Awaitable[tuple[Action, Action]]], Any, Any]
"""Question, name of the rival, function that fills a store and returns a turn and a read, ours,
theirs."""


def claude(place: Path, count: int) -> Made:
    """A transcript of the Claude Agent SDK."""
    from claude_agent_sdk import InMemorySessionStore

    from memcore.adapters.claude_agent import MemcoreSessionStore

    key = {"project_key": "p", "session_id": "s"}
    numbers = itertools.count()

    def line(role: str) -> dict[str, Any]:
        message = {"role": role, "content": TEXT}
        return {"type": role, "uuid": str(next(numbers)), "message": message}

    async def sides(store: Any) -> tuple[Action, Action]:
        await store.append(key, [line("user") for _ in range(count)])
        return (lambda: store.append(key, [line("user"), line("assistant")])), (
            lambda: store.load(key)
        )

    ours = MemcoreSessionStore(place / "a.memcore")
    return "Claude's transcript", "`InMemorySessionStore`", sides, ours, InMemorySessionStore()


def pydantic(place: Path, count: int) -> Made:
    """A conversation of Pydantic AI."""
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import InMemoryConversationStore
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    from memcore.adapters.pydantic_ai import MemcoreConversationStore

    async def sides(store: Any) -> tuple[Action, Action]:
        held = Conversation(conversation_id="c")
        held.messages += [ModelRequest([UserPromptPart(TEXT)]) for _ in range(count)]
        await store.save(held)

        async def turn() -> None:
            held.messages.append(ModelRequest([UserPromptPart(TEXT)]))
            held.messages.append(ModelResponse([TextPart(TEXT)]))
            await store.save(held)

        return turn, lambda: store.load("c")

    ours = MemcoreConversationStore(place / "a.memcore")
    rival = "`InMemoryConversationStore`"
    return "Pydantic AI's conversation", rival, sides, ours, InMemoryConversationStore()


def strands(place: Path, count: int) -> Made:
    """An agent of Strands."""
    from strands.session.file_session_manager import FileSessionManager
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    from memcore.adapters.strands import MemcoreSessionRepository

    async def sides(store: Any) -> tuple[Action, Action]:
        if store.read_session("s") is None:
            store.create_session(Session("s", SessionType.AGENT))
        store.create_agent("s", SessionAgent("a", {}, {}))
        numbers = itertools.count()

        def add() -> None:
            message: Any = {"role": "user", "content": [{"text": TEXT}]}
            store.create_message("s", "a", SessionMessage(message, next(numbers)))

        for _ in range(count):
            add()

        async def turn() -> None:
            add()
            add()

        async def read() -> None:
            store.list_messages("s", "a")

        return turn, read

    ours = MemcoreSessionRepository(place / "a.memcore")
    theirs = FileSessionManager("s", storage_dir=str(place / "strands"))
    return "Strands' agent", "`FileSessionManager`", sides, ours, theirs


def agent_framework(place: Path, count: int) -> Made:
    """A history of the Agent Framework."""
    from agent_framework import FileHistoryProvider, Message

    from memcore.adapters.agent_framework import MemcoreHistoryProvider

    async def sides(store: Any) -> tuple[Action, Action]:
        numbers = itertools.count()

        def turn() -> Any:
            number = next(numbers)
            asked, said = f"{number}? {TEXT}", f"{number}! {TEXT}"
            return store.save_messages(
                "s", [Message("user", [asked]), Message("assistant", [said])]
            )

        for _ in range(count // 2):
            await turn()
        return turn, lambda: store.get_messages("s")

    ours = MemcoreHistoryProvider(place / "a.memcore")
    theirs = FileHistoryProvider(place / "files")
    return "Agent Framework's history", "`FileHistoryProvider`", sides, ours, theirs


def llama_index(place: Path, count: int) -> Made:
    """A chat of LlamaIndex."""
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

    from memcore.adapters.llama_index import MemcoreChatStore

    async def sides(store: Any) -> tuple[Action, Action]:
        await store.add_messages("k", [ChatMessage(role="user", content=TEXT)] * count)

        def turn() -> Any:
            pair = [ChatMessage(role=role, content=TEXT) for role in ("user", "assistant")]
            return store.add_messages("k", pair)

        return turn, lambda: store.get_messages("k")

    ours = MemcoreChatStore(place / "a.memcore")
    uri = f"sqlite+aiosqlite:///{place / 'chats.db'}"
    theirs = SQLAlchemyChatStore(table_name="chats", async_database_uri=uri)
    return "LlamaIndex's chat", "`SQLAlchemyChatStore` on SQLite", sides, ours, theirs


FRAMEWORKS = (claude, pydantic, strands, agent_framework, llama_index)
