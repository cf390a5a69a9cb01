"""How long does one more turn of a long conversation take, in five frameworks and in their stores?

Each conversation has 1,000 messages already, flushes are for nothing, and the rival is the
framework's own store: on a file or SQLite where it has one, else in memory. Stores on plain files
and in memory flush nothing at all; memcore commits durably.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    compare,
    paired,
    race_each_async,
    scratch,
    slow_flush_place,
)

MESSAGES = 1_000
ROUNDS = 200
TEXT = "some words of a conversation, " * 8
Action = Callable[[], Awaitable[Any]]
Made = tuple[str, str, Callable[[Any], Awaitable[tuple[Action, Action]]], Any, Any]


def rows(effort: Effort) -> Iterator[Row]:
    """A turn more, and the whole history read, of each framework."""
    for make in (_claude, _pydantic, _strands, _agent_framework, _llama_index):
        with scratch(slow_flush_place()) as place:
            try:
                question, rival, sides, ours, theirs = make(place, effort.items(MESSAGES))
                yield from asyncio.run(_raced(effort, question, rival, sides, (ours, theirs)))
            except (NotInstalled, ImportError) as error:
                name = make.__name__.strip("_")
                yield absent(f"a turn of {name}", f"{name}'s own store", error)


async def _raced(effort: Effort, question: str, rival: str, sides: Any, stores: Any) -> list[Row]:
    ours, theirs = [await sides(store) for store in stores]
    wrote = paired(*await race_each_async([ours[0], theirs[0]], rounds=effort.rounds(ROUNDS)))
    read = paired(*await race_each_async([ours[1], theirs[1]], rounds=effort.rounds(40)))
    return [
        compare(f"{question}: a turn more", wrote, rival, durability="full", faster=True),
        compare(f"{question}: all of it", read, rival, faster=True),
    ]


def _claude(place: Path, count: int) -> Made:
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


def _pydantic(place: Path, count: int) -> Made:
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


def _strands(place: Path, count: int) -> Made:
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


def _agent_framework(place: Path, count: int) -> Made:
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


def _llama_index(place: Path, count: int) -> Made:
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
