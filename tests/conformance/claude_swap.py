"""Plugin of pytest: the Claude Agent SDK's tests get MemcoreSessionStore, not its own."""

from __future__ import annotations

import time
from typing import Any

import claude_agent_sdk
from claude_agent_sdk._internal import session_store

from memcore.adapters.claude_agent import MemcoreSessionStore


class Swapped(MemcoreSessionStore):
    """A store in memory, with the helpers that the SDK's one has for tests."""

    def __init__(self) -> None:
        super().__init__(":memory:", allow_unsafe=True)
        self._mtimes: dict[str, int] = {}
        """Times that a test sets, to have an order."""
        self._last = 0

    async def append(self, key: Any, entries: Any) -> None:
        """Append in a millisecond of its own: the SDK's store makes times up that are distinct."""
        last = self._last
        while (now := time.time_ns() // 1_000_000) <= last:
            pass
        await super().append(key, entries)
        self._last = max(now, time.time_ns() // 1_000_000)

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """List sessions, with the times that a test set."""
        found = await super().list_sessions(project_key)
        for each in found:
            name = f"{project_key}/{each['session_id']}"
            each["mtime"] = self._mtimes.get(name, each["mtime"])
        return found

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """List summaries, with the times that a test set."""
        found = await super().list_session_summaries(project_key)
        for each in found:
            name = f"{project_key}/{each['session_id']}"
            each["mtime"] = self._mtimes.get(name, each["mtime"])
        return found

    def get_entries(self, key: Any) -> list[Any]:
        """Return the lines of a transcript."""
        return [line.value for line in self._lines(key).read()]

    @property
    def size(self) -> int:
        """The number of main transcripts."""
        return sum(found.session_id.count("/") == 1 for found in self.scope.sessions())

    def clear(self) -> None:
        """Delete all transcripts."""
        for found in list(self.scope.sessions()):
            self.scope.delete_session(found.session_id)


session_store.InMemorySessionStore = Swapped
claude_agent_sdk.InMemorySessionStore = Swapped
