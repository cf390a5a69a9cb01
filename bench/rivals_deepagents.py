"""DeepAgents' StoreBackend on LangGraph's InMemoryStore: files in memory, gone with the process."""

from __future__ import annotations

from typing import Any

from harness import NotInstalled

__all__ = ["STORE_BACKEND", "store_backend"]

STORE_BACKEND = "StoreBackend on InMemoryStore"


def store_backend() -> Any:
    """An empty one.

    Raises:
        NotInstalled: deepagents is not there.
    """
    try:
        from deepagents.backends.store import StoreBackend
        from langgraph.store.memory import InMemoryStore
    except ImportError as error:
        raise NotInstalled(f"deepagents is not installed ({error})") from error
    return StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",))
