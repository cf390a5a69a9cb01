"""LangGraph's savers, and the checkpoints and graphs that all savers are given.

Nothing of LangGraph is imported elsewhere in these benchmarks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from rivals import sqlite_connection
from trimming import missing

__all__ = [
    "MESSAGE_BYTES",
    "Thread",
    "async_sqlite_saver",
    "distinct_threads",
    "fill_sqlite",
    "looping_graph",
    "memory_bytes",
    "memory_saver",
    "message",
    "our_saver",
    "sqlite_saver",
]

TEXT = "one word and another "
MESSAGE_BYTES = 1024


def message(at: int) -> Any:
    """A message of 1 KB.

    Raises:
        NotInstalled: langchain-core is not there.
    """
    try:
        from langchain_core.messages import AIMessage, HumanMessage
    except ImportError as error:
        raise missing("langgraph", error) from error
    text = f"{at} ".ljust(MESSAGE_BYTES // len(TEXT), "-") + TEXT * (MESSAGE_BYTES // len(TEXT))
    return (HumanMessage, AIMessage)[at % 2](content=text[:MESSAGE_BYTES], id=f"message-{at}")


def our_saver(place: Any, durability: str | None = None) -> Any:
    """The saver of memcore over a path or an open database.

    Raises:
        NotInstalled: langgraph is not there.
    """
    try:
        from memcore.adapters.langgraph import MemcoreSaver
    except ImportError as error:
        raise missing("langgraph", error) from error
    return MemcoreSaver(place, durability=durability, allow_unsafe=True)


def memory_saver() -> Any:
    """LangGraph's InMemorySaver, which serialises what it keeps."""
    from langgraph.checkpoint.memory import InMemorySaver

    return InMemorySaver()


def sqlite_saver(path: Path, synchronous: str) -> Any:
    """LangGraph's SqliteSaver; it sets WAL itself, ``synchronous`` is ours.

    Raises:
        NotInstalled: langgraph-checkpoint-sqlite is not there.
    """
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise missing("langgraph-checkpoint-sqlite", error) from error
    saver = SqliteSaver(sqlite_connection(path))
    saver.setup()
    saver.conn.execute(f"PRAGMA synchronous={synchronous}")
    return saver


@asynccontextmanager
async def async_sqlite_saver(path: Path, synchronous: str) -> AsyncIterator[Any]:
    """LangGraph's AsyncSqliteSaver, over aiosqlite.

    Raises:
        NotInstalled: langgraph-checkpoint-sqlite is not there.
    """
    try:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    except ImportError as error:
        raise missing("langgraph-checkpoint-sqlite", error) from error
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        await saver.setup()
        await saver.conn.execute(f"PRAGMA synchronous={synchronous}")
        yield saver


class Thread:
    """One thread of a graph at its saver: each put is a step that replaced a channel's value."""

    def __init__(self, saver: Any, name: str, *, channel: str = "messages") -> None:
        from langgraph.checkpoint.base.id import uuid6

        self.saver = saver
        self.channel = channel
        self.steps = 0
        self._version: Any = None
        self._new_id: Callable[..., Any] = uuid6
        self.config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self._latest = {"configurable": {"thread_id": name}}

    def put(self, value: Any) -> None:
        """A checkpoint whose channel holds this."""
        version = self._version = self.saver.get_next_version(self._version, None)
        checkpoint = {
            "v": 4,
            "id": str(self._new_id(clock_seq=self.steps)),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {self.channel: value},
            "channel_versions": {self.channel: version},
            "versions_seen": {"agent": {self.channel: version}},
            "updated_channels": [self.channel],
        }
        metadata = {"source": "loop", "step": self.steps, "parents": {}}
        self.config = self.saver.put(self.config, checkpoint, metadata, {self.channel: version})
        self.steps += 1

    def latest(self) -> Any:
        """The newest checkpoint."""
        return self.saver.get_tuple(self._latest)


def memory_bytes(saver: Any) -> int:
    """What an InMemorySaver holds of serialised values, its writes not counted."""
    return sum(len(content) for _, content in saver.blobs.values())


def distinct_threads(saver: Any) -> int:
    """The threads of a SqliteSaver by a query that its interface has not."""
    found = saver.conn.execute("SELECT DISTINCT thread_id FROM checkpoints").fetchall()
    return len(found)


def fill_sqlite(saver: Any, threads: int, checkpoints: int) -> None:
    """The rows that so many small puts leave, in one transaction."""
    thread = Thread(saver, "thread-0000")
    thread.put([message(0)])
    saver.conn.execute(
        "WITH RECURSIVE t(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM t WHERE i < ? - 1),"
        " c(j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM c WHERE j < ? - 1)"
        " INSERT OR IGNORE INTO checkpoints SELECT printf('thread-%04d', i), checkpoint_ns,"
        " printf('%08d', j) || checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
        " FROM checkpoints, t, c",
        (threads, checkpoints),
    )
    saver.conn.commit()


# --- graphs --------------------------------------------------------------------------------------


def looping_graph(saver: Any, *, delta: bool = False) -> Any:
    """A graph of one node that adds two messages a step until ``left`` is 0."""
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    if delta:
        from langgraph.channels.delta import DeltaChannel

        kind = Annotated[list[Any], DeltaChannel(_extended)]
    else:
        kind = Annotated[list[Any], add_messages]
    state = TypedDict("State", {"messages": kind, "left": int})  # type: ignore[misc]  # noqa: UP013

    def work(given: Any) -> Any:
        at = 2 * given["left"]
        return {"messages": [message(at), message(at + 1)], "left": given["left"] - 1}

    graph = StateGraph(state)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda given: "work" if given["left"] else END)
    return graph.compile(checkpointer=saver)


def _extended(state: Any, writes: Any) -> Any:
    return [*(state or []), *(entry for write in writes for entry in write)]
