"""LangGraph's own stores, and their operations for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import NotInstalled

__all__ = ["memory_store", "put_op", "sqlite_store"]


def memory_store() -> Any:
    """InMemoryStore.

    Raises:
        NotInstalled: langgraph-checkpoint is not there.
    """
    try:
        from langgraph.store.memory import InMemoryStore
    except ImportError as error:
        raise NotInstalled("not installed (pip install langgraph-checkpoint)") from error
    return InMemoryStore()


@contextmanager
def sqlite_store(path: Path) -> Iterator[Any]:
    """SqliteStore on a file, as ``from_conn_string`` opens it (WAL, synchronous=FULL).

    Raises:
        NotInstalled: langgraph-checkpoint-sqlite is not there.
    """
    try:
        from langgraph.store.sqlite import SqliteStore
    except ImportError as error:
        raise NotInstalled("not installed (pip install langgraph-checkpoint-sqlite)") from error
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        yield store


def put_op(namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> Any:
    """One put of a batch."""
    from langgraph.store.base import PutOp

    return PutOp(namespace, key, value)
