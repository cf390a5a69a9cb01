"""Plugin of pytest: the Agent Framework's tests get memcore's classes for its own ones.

The tests of ``FileHistoryProvider`` and ``InMemoryHistoryProvider`` get the provider of histories,
those of ``SessionStore`` the store, those of both checkpoint storages the storage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agent_framework
from agent_framework._workflows import _checkpoint

from memcore.adapters.agent_framework import (
    MemcoreAgentSessionStore,
    MemcoreCheckpointStorage,
    MemcoreHistoryProvider,
)


class InMemoryHistory(MemcoreHistoryProvider):
    """Histories in memory."""

    def __init__(self, source_id: str | None = None, **options: Any) -> None:
        super().__init__(":memory:", source_id=source_id or "in_memory", allow_unsafe=True,
                         **options)  # fmt: skip


class FileHistory(MemcoreHistoryProvider):
    """Histories in a file of a directory."""

    def __init__(self, storage_path: Any, *, source_id: str = "file", **options: Any) -> None:
        Path(storage_path).mkdir(parents=True, exist_ok=True)
        super().__init__(Path(storage_path) / "h.memcore", source_id=source_id, **options)


class Sessions(MemcoreAgentSessionStore):
    """Sessions in memory."""

    def __init__(self) -> None:
        super().__init__(":memory:", allow_unsafe=True)


class InMemoryCheckpoints(MemcoreCheckpointStorage):
    """Checkpoints in memory."""

    def __init__(self) -> None:
        super().__init__(":memory:", allow_unsafe=True)


class FileCheckpoints(MemcoreCheckpointStorage):
    """Checkpoints in a file of a directory."""

    def __init__(self, storage_path: Any, *, allowed_checkpoint_types: Any = None) -> None:
        Path(storage_path).mkdir(parents=True, exist_ok=True)
        super().__init__(Path(storage_path) / "c.memcore",
                         allowed_checkpoint_types=allowed_checkpoint_types or ())  # fmt: skip


agent_framework.FileHistoryProvider = FileHistory
agent_framework.InMemoryHistoryProvider = InMemoryHistory
agent_framework.SessionStore = Sessions
for home in (agent_framework, _checkpoint):
    home.InMemoryCheckpointStorage = InMemoryCheckpoints
    home.FileCheckpointStorage = FileCheckpoints
