"""Plugin of pytest: LlamaIndex's tests get memcore's chat store for its SQL one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import llama_index.core.memory.memory as home
from llama_index.core.storage.chat_store import sql

from memcore.adapters.llama_index import MemcoreChatStore


class Rows:
    """Stands for a session of SQLAlchemy with which a test looks up the ids of rows."""

    def __init__(self, store: MemcoreChatStore) -> None:
        self._store = store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def execute(self, key: str) -> Any:
        """Return the rows of a key."""
        ids = await self._store.get_ids(key, None)
        return SimpleNamespace(fetchall=lambda: [SimpleNamespace(id=each) for each in ids])


class Key:
    """Stands for a column: comparing it gives the key."""

    def __eq__(self, other: object) -> Any:
        return other

    __hash__ = None  # type: ignore[assignment]


class Swapped(MemcoreChatStore):
    """A chat store in memory."""

    def __init__(self, table_name: str = "", **options: Any) -> None:
        super().__init__(":memory:", allow_unsafe=True)
        object.__setattr__(self, "_async_session_factory", lambda: Rows(self))
        select = SimpleNamespace(where=lambda key: key)
        table = SimpleNamespace(select=lambda: select, c=SimpleNamespace(key=Key()))
        object.__setattr__(self, "_table", table)


sql.SQLAlchemyChatStore = Swapped
home.SQLAlchemyChatStore = Swapped
home.get_default_chat_store = Swapped
