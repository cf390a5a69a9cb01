"""A chat of LlamaIndex whose memory is in a memcore file, also what it has flushed.

It prints:
the memory shows 2 of 6 messages
after the restart 4 are archived
found again: My cat is called Miau.
the next request: user, assistant, user, assistant, user, assistant
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus

from memcore.adapters.llama_index import MemcoreChatStore

CHAT = [
    ("user", "My cat is called Miau."),
    ("assistant", "What a name for a cat!"),
    ("user", "It likes to sleep on the old sofa."),
    ("assistant", "As cats do, all day long."),
    ("user", "And to eat, of course."),
    ("assistant", "Of course."),
]


async def main() -> None:
    """Fill a small memory, restart, and read what it flushed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.memcore"
        with MemcoreChatStore(path, user="ann") as store:
            memory = Memory.from_defaults(
                session_id="chat",
                chat_store=store,
                token_limit=40,
                chat_history_token_ratio=0.5,
                token_flush_size=10,
            )
            for role, text in CHAT:
                await memory.aput(ChatMessage(role=role, content=text))
            shown = await memory.aget()
            print(f"the memory shows {len(shown)} of {len(CHAT)} messages")
        with MemcoreChatStore(path, user="ann") as store:
            archived = await store.count_messages("chat", MessageStatus.ARCHIVED)
            print(f"after the restart {archived} are archived")
            session = store.session("chat")
            hit = session.search("name of the cat Miau")[0]
            print("found again:", hit.item.message["content"][0]["text"])
            roles = [each["role"] for each in session.context().messages]
            print("the next request:", ", ".join(roles))


asyncio.run(main())
