"""LlamaIndex's Memory in a memcore file: a second process goes on where the first one stopped.

Runs without a network or a model. ``pip install "memcore[llama-index]"``

It prints:
    first: 40 messages kept, 20 shown
    second: 44 messages kept, 24 shown, the last: answer 21
    a context of 40 tokens: ['user', 'assistant']
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore

from memcore.adapters.llama_index import MemcoreChatStore


async def talk(store: AsyncDBChatStore, turns: range) -> tuple[list[ChatMessage], int]:
    """Go on with a conversation; what the model would get, and how much is kept."""
    memory = Memory.from_defaults(
        session_id="trains",
        chat_store=store,
        token_limit=400,
        chat_history_token_ratio=0.5,
        token_flush_size=60,
        tokenizer_fn=str.split,
    )
    for turn in turns:
        await memory.aput(ChatMessage(role="user", content=f"question {turn} " + "word " * 10))
        await memory.aput(ChatMessage(role="assistant", content=f"answer {turn}"))
    return await memory.aget(), len(await memory.aget_all(status=None))


def main() -> None:
    """Talk, stop, and talk on."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "agent.memcore"
        with MemcoreChatStore(path, user="ann") as store:
            shown, kept = asyncio.run(talk(store, range(20)))
            print(f"first: {kept} messages kept, {len(shown)} shown")
        with MemcoreChatStore(path, user="ann") as store:
            shown, kept = asyncio.run(talk(store, range(20, 22)))
            print(
                f"second: {kept} messages kept, {len(shown)} shown, the last: {shown[-1].content}"
            )
            roles = [message.role.value for message in store.context("trains", 40)]
            print(f"a context of 40 tokens: {roles}")


if __name__ == "__main__":
    main()
