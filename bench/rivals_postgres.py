"""Others' stores in PostgreSQL, and a server for all of them; imported only when run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from distance import listening

from harness import NotInstalled
from rivals_langgraph import message
from trimming import missing

__all__ = [
    "GrowingThread",
    "Place",
    "Table",
    "adk_service",
    "agents_session",
    "async_postgres_saver",
    "postgres_saver",
    "started",
]


class Place(NamedTuple):
    """Where a server is reached: a directory of sockets, or a host and its port."""

    host: str
    port: int | None = None

    @property
    def query(self) -> str:
        """Host and port, as the query of a URL."""
        found = f"host={quote(self.host, safe='')}"
        return found if self.port is None else f"{found}&port={self.port}"

    def url(self, driver: str = "postgresql") -> str:
        """Address of its database."""
        return f"{driver}://tester@/postgres?{self.query}"

    def address(self, name: str) -> str:
        """Address of a store of ours."""
        return f"{self.url()}#{name}"


@contextmanager
def started(round_trip_ms: float = 0, *options: str) -> Iterator[Place]:
    """A server with its usual flushes and these settings, behind a network of that round trip.

    Raises:
        NotInstalled: PostgreSQL or psycopg is not there.
    """
    import shutil
    import sys
    import tempfile

    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    try:
        import psycopg_pool  # noqa: F401
        from servers import Server, programs
    except ImportError as error:
        raise missing('"psycopg[binary,pool]"', error) from error
    if None in programs():
        raise NotInstalled("PostgreSQL")
    directory = tempfile.mkdtemp(prefix="memcore-pg-", dir=os.environ.get("MEMCORE_BENCH_DIR"))
    server = Server(directory)
    try:
        server.make()
        server.start("fsync=on", *options)
        try:
            if round_trip_ms:
                with listening(f"{directory}/.s.PGSQL.5432", round_trip_ms) as port:
                    yield Place("127.0.0.1", port)
            else:
                yield Place(directory)
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)


class Table:
    """The least that SQL can do: one statement that counts up a head and inserts a row of JSON."""

    def __init__(self, dsn: str) -> None:
        import orjson
        import psycopg

        self._dumps, self._loads = orjson.dumps, orjson.loads
        self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
        self._connection.execute("create table heads (id int primary key, seq bigint)")
        self._connection.execute(
            "create table items (id int, seq bigint, body bytea, primary key (id, seq))"
        )
        self._connection.execute("insert into heads values (1, 0)")

    def append(self, message: Any) -> int:
        """Append a message and return its number."""
        found = self._connection.execute(
            "with head as (update heads set seq = seq + 1 where id = 1 returning id, seq) "
            "insert into items select id, seq, %b from head returning seq",
            (self._dumps(message),),
            binary=True,
        ).fetchone()
        assert found is not None
        return int(found[0])

    def latest(self, count: int) -> list[Any]:
        """Read the last messages."""
        found = self._connection.execute(
            "select body from items where id = 1 order by seq desc limit %s", (count,), binary=True
        )
        return [self._loads(row[0]) for row in found.fetchall()][::-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@asynccontextmanager
async def agents_session(server: Place) -> AsyncIterator[Callable[[str], Any]]:
    """Makes SQLAlchemySessions of the OpenAI Agents SDK, which share an engine.

    Raises:
        NotInstalled: openai-agents or sqlalchemy is not there.
    """
    try:
        from agents.extensions.memory import SQLAlchemySession
        from sqlalchemy.ext.asyncio import create_async_engine
    except ImportError as error:
        raise missing('"openai-agents[sqlalchemy]"', error) from error
    engine = create_async_engine(server.url("postgresql+psycopg"), pool_size=16)
    made = SQLAlchemySession("first", engine=engine, create_tables=True)
    await made.add_items([{"role": "user", "content": "x"}])
    try:
        yield lambda name: SQLAlchemySession(name, engine=engine)
    finally:
        await engine.dispose()


def adk_service(server: Place) -> Any:
    """ADK's DatabaseSessionService.

    Raises:
        NotInstalled: google-adk or sqlalchemy is not there.
    """
    try:
        from google.adk.sessions.database_session_service import DatabaseSessionService

        return DatabaseSessionService(server.url("postgresql+psycopg"), pool_size=16)
    except (ImportError, ValueError) as error:
        raise missing('"google-adk[db]"', error) from error


@contextmanager
def postgres_saver(dsn: str) -> Iterator[Any]:
    """LangGraph's PostgresSaver.

    Raises:
        NotInstalled: langgraph-checkpoint-postgres is not there.
    """
    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError as error:
        raise missing("langgraph-checkpoint-postgres", error) from error
    with PostgresSaver.from_conn_string(dsn) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def async_postgres_saver(dsn: str) -> AsyncIterator[Any]:
    """LangGraph's AsyncPostgresSaver on a pool of 16 connections.

    Raises:
        NotInstalled: langgraph-checkpoint-postgres is not there.
    """
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool
    except ImportError as error:
        raise missing("langgraph-checkpoint-postgres", error) from error
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(dsn, kwargs=settings, min_size=16, max_size=16) as pool:
        saver = AsyncPostgresSaver(pool)  # type: ignore[arg-type]
        await saver.setup()
        yield saver


class GrowingThread:
    """A thread whose checkpoint has one message more with each put."""

    def __init__(self, saver: Any, count: int, name: str = "t") -> None:
        self._saver, self._message = saver, message
        self._messages = [message(n) for n in range(count)]
        self._begun = count
        self._place: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self._config = self._place
        self._step = 0

    def put(self) -> None:
        """Store one checkpoint more."""
        self._config = self._saver.put(*self._next())

    async def aput(self, _: Any = None) -> None:
        """Store one checkpoint more, awaited."""
        self._config = await self._saver.aput(*self._next())

    def _next(self) -> tuple[Any, ...]:
        from langgraph.checkpoint.base import empty_checkpoint

        self._step += 1
        self._messages = [*self._messages, self._message(len(self._messages))]
        checkpoint = empty_checkpoint()
        version = f"{self._step:032}.0"
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": self._step, "parents": {}}
        return self._config, checkpoint, metadata, {"messages": version}

    def get(self) -> None:
        """Read the newest checkpoint."""
        found = self._saver.get_tuple(self._place)
        assert len(found.checkpoint["channel_values"]["messages"]) == len(self._messages)

    async def stored(self) -> int:
        """The puts that the newest checkpoint holds."""
        found = await self._saver.aget_tuple(self._place)
        return len(found.checkpoint["channel_values"]["messages"]) - self._begun
