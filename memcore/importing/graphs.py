"""Checkpoints of LangGraph's SqliteSaver and PostgresSaver, copied into the graph store.

Needs LangGraph, whose serializer decodes values. Types that are not safe are refused before they
are imported, and pickles are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from typing import Any, Final

from memcore.database import Database
from memcore.errors import CallerError, CorruptValueError, SourceError, UntrustedTypeError
from memcore.graph import NewCheckpoint, NewWrites
from memcore.graph.decode import MISSING
from memcore.importing.source import (
    Notes,
    Owner,
    Record,
    SourceFailure,
    SourceThread,
    SourceWrites,
    json_of,
    refuse_source,
)
from memcore.importing.sqlite import SqliteSource, opened, quoted

__all__ = [
    "ThreadWriter",
    "read_postgres",
    "read_sqlite",
]


# --- Decoding of values ---------------------------------------------------------------------------


def _coder(owner: Owner) -> Any:
    """Return the coder of the graph store for LangGraph's serializer.

    Raises:
        ImportError: LangGraph is not installed.
    """
    try:
        serde = import_module("memcore.adapters.langgraph.serde")
    except ModuleNotFoundError as exc:
        msg = f'checkpoints need LangGraph: pip install "memcore-db[langgraph]" ({exc})'
        raise ImportError(msg, name=exc.name) from exc
    return serde.coder_of(serde.default_serde(), frozenset(owner.types))


class _Decoder:
    """Decodes the values of a source."""

    def __init__(self, owner: Owner) -> None:
        self._coder = _coder(owner)

    def decode(self, place: str, kind: Any, content: Any) -> Any:
        """Decode a typed value.

        Raises:
            SourceError: it is a pickle, names a type that is not allowed, or is damaged.
        """
        if kind is None or kind == "empty":
            return MISSING
        data = content.encode() if isinstance(content, str) else content
        if not isinstance(kind, str) or not isinstance(data, bytes | memoryview | None):
            refuse_source(place, f"a value has the type {kind!r:.40} and is no bytes")
        if kind == "pickle":
            text = "holds a pickle, which is never read: load the thread with the program that "
            refuse_source(place, text + "wrote it, and save it again without pickle_fallback")
        try:
            return self._coder.decode((kind, b"" if data is None else bytes(data)))
        except UntrustedTypeError as exc:
            text = f"holds {exc.module}.{exc.name}, a type that is not known to be safe: if you "
            name = f"{exc.module}:{exc.name}"
            refuse_source(place, f"{text}trust it, allow it with --allow-type {name}", exc)
        except CorruptValueError as exc:
            refuse_source(place, f"a value cannot be decoded ({str(exc)[:100]})", exc)


def _thread(
    place: str, row: tuple[Any, ...], body: Any, metadata: Any, writes: list[SourceWrites]
) -> SourceThread:
    """Return a checkpoint.

    Raises:
        SourceError: it is none.
    """
    thread, namespace, checkpoint, parent = row
    if not all(isinstance(each, str) for each in (thread, namespace, checkpoint)) or not thread:
        refuse_source(place, "its ids are no texts")
    if body is not None:
        versions = body.get("channel_versions") if isinstance(body, dict) else None
        values = body.get("channel_values") if isinstance(body, dict) else None
        if not isinstance(versions, dict) or not isinstance(values, dict):
            refuse_source(place, "the checkpoint has no channel_versions or channel_values")
        if not isinstance(metadata, dict):
            refuse_source(place, "the metadata is no object")
        if not all(isinstance(name, str) for name in (*versions, *values)):
            refuse_source(place, "the name of a channel is no text")
        unknown = [name for name in values if name not in versions]
        if unknown:
            refuse_source(place, f"channel {unknown[0]!r:.60} has a value and no version")
    above = parent if isinstance(parent, str) and parent else None
    return SourceThread(place, thread, namespace, checkpoint, above, body, metadata, writes)


def _tasks(rows: Iterable[tuple[Any, ...]], values: _Decoder, place: str) -> list[SourceWrites]:
    """Return the writes of a checkpoint by task; rows: task, path, index, channel, type, value."""
    found = []
    for (path, task), several in groupby(rows, key=lambda row: (row[1], row[0])):
        writes = []
        for _, _, index, channel, kind, content in several:
            if not isinstance(index, int) or not all(
                isinstance(each, str) for each in (task, path or "", channel)
            ):
                refuse_source(place, "a write has no task, index or channel")
            value = values.decode(f"{place}, write to {channel!r:.40}", kind, content)
            writes.append((index, channel, None if value is MISSING else value))
        found.append(SourceWrites(task, path or "", writes))
    return found


class _Threads:
    """Leaves out the rest of a thread once a checkpoint of it cannot be read.

    Later ones may need it: a channel of deltas would silently read as if it were shorter.
    """

    def __init__(self) -> None:
        self._failed: Any = None

    def records(self, place: str, thread: Any, made: Iterator[SourceThread]) -> Iterator[Record]:
        """Yield a checkpoint, or what is wrong with it."""
        if self._failed == (thread,):
            text = "left out: an earlier checkpoint of the thread could not be read"
            yield SourceFailure(place, text)
            return
        try:
            yield from made
        except SourceError as error:
            self._failed = (thread,)
            yield SourceFailure(error.place, str(error).removeprefix(f"{error.place}: "))


# --- SqliteSaver ----------------------------------------------------------------------------------

_CHECKPOINT: Final = ("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id")


def read_sqlite(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the checkpoints of all threads, those of a namespace by their ids."""
    values = _Decoder(owner)
    with opened(path) as db:
        db.need("SqliteSaver", *_CHECKPOINT, "type", "checkpoint", "metadata")
        if "writes" not in db.tables:
            notes.mend("databases without a table of writes")
        threads = _Threads()
        sql = (
            f"SELECT {', '.join(_CHECKPOINT)}, type, checkpoint, metadata FROM checkpoints "  # noqa: S608
            "ORDER BY thread_id, checkpoint_ns, checkpoint_id"
        )
        for row in db.rows(sql, "checkpoints"):
            place = _place_of(path, row)
            yield from threads.records(place, row[0], _sqlite_thread(db, row, values, place))
        yield from _loose_writes(db, values)


def _place_of(path: str, row: tuple[Any, ...]) -> str:
    within = f" in namespace {row[1]!r:.60}" if row[1] else ""
    return f"{path}: thread {row[0]!r:.60}, checkpoint {row[2]!r:.60}{within}"


def _sqlite_thread(
    db: SqliteSource, row: tuple[Any, ...], values: _Decoder, place: str
) -> Iterator[SourceThread]:
    body = values.decode(place, row[4], row[5])
    metadata = {} if row[6] is None else json_of(row[6], place)
    yield _thread(place, row[:4], body, metadata, _sqlite_writes(db, row, values, place))


def _sqlite_writes(
    db: SqliteSource, row: tuple[Any, ...], values: _Decoder, place: str
) -> list[SourceWrites]:
    if "writes" not in db.tables:
        return []
    path = "task_path" if "task_path" in db.tables["writes"] else "''"
    sql = (
        f"SELECT task_id, {path}, idx, channel, type, value FROM writes WHERE thread_id = ? AND "  # noqa: S608
        "checkpoint_ns = ? AND checkpoint_id = ? ORDER BY 2, 1, 3"
    )
    return _tasks(db.rows(sql, "writes", row[:3]), values, place)


def _loose_writes(db: SqliteSource, values: _Decoder) -> Iterator[Record]:
    """Yield the writes for checkpoints that the source does not hold yet."""
    if "writes" not in db.tables:
        return
    ids = ", ".join(map(quoted, _CHECKPOINT[:3]))
    sql = f"SELECT {ids} FROM writes EXCEPT SELECT {ids} FROM checkpoints"  # noqa: S608
    threads = _Threads()
    for row in list(db.rows(sql, "writes")):
        place = _place_of(db.path, row)
        yield from threads.records(place, row[0], _loose(db, row, values, place))


def _loose(
    db: SqliteSource, row: tuple[Any, ...], values: _Decoder, place: str
) -> Iterator[SourceThread]:
    yield _thread(place, (*row, None), None, {}, _sqlite_writes(db, row, values, place))


# --- PostgresSaver --------------------------------------------------------------------------------

_PG_TABLES: Final = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
_PAGE: Final = 200


def read_postgres(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the checkpoints of a PostgreSQL database, of one snapshot; ``path`` is its DSN."""
    values = _Decoder(owner)
    with _connected(path) as connection:
        name = _shown(connection)
        threads = _Threads()
        blobs = _Blobs(connection, values)
        sql = (
            "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, "
            'metadata FROM checkpoints ORDER BY thread_id COLLATE "C", checkpoint_ns COLLATE "C", '
            'checkpoint_id COLLATE "C"'
        )
        with connection.cursor(name="memcore_import") as cursor:
            cursor.itersize = _PAGE
            for row in cursor.execute(sql):
                place = _place_of(name, row)
                if isinstance(row[4], dict) and (row[4].get("v") or 0) < 4:  # noqa: PLR2004
                    notes.mend("checkpoints older than version 4, whose sends stay their parents'")
                yield from threads.records(place, row[0], _pg_thread(blobs, row, place))
        sql = (
            "SELECT DISTINCT thread_id, checkpoint_ns, checkpoint_id FROM checkpoint_writes w "
            "WHERE NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.thread_id = w.thread_id AND "
            "c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id)"
        )
        for row in connection.execute(sql).fetchall():
            place = _place_of(name, row)
            loose = _pg_loose(blobs, row, place)
            yield from threads.records(place, row[0], loose)


@contextmanager
def _connected(dsn: str) -> Iterator[Any]:
    """Connect to a database for reading.

    Raises:
        SourceError: it cannot be reached, or is of another kind.
        ImportError: psycopg is not installed.
    """
    try:
        psycopg = import_module("psycopg")
    except ModuleNotFoundError as exc:
        msg = f'kind langgraph-pg needs psycopg: pip install "psycopg[binary]" ({exc})'
        raise ImportError(msg, name=exc.name) from exc
    place = "the PostgreSQL database"
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:  # its message quotes the address, which may hold a password
        refuse_source(place, "its address cannot be read: expected postgresql://USER@HOST/NAME")
    try:
        connection = psycopg.connect(dsn)
    except psycopg.Error as exc:
        refuse_source(place, f"cannot be reached: {str(exc).splitlines()[0]}", exc)
    with connection:
        place = _shown(connection)
        try:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            for table in _PG_TABLES:
                if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()[0] is None:
                    refuse_source(place, f"is no database of PostgresSaver: it has no {table}")
            yield connection
            connection.rollback()
        except psycopg.Error as exc:
            refuse_source(place, str(exc).splitlines()[0], exc)


def _shown(connection: Any) -> str:
    """Return the name of a database for messages, without a password."""
    return f"postgresql://{connection.info.host}/{connection.info.dbname}"


class _Blobs:
    """Values and writes of checkpoints, read from their own tables."""

    def __init__(self, connection: Any, values: _Decoder) -> None:
        self._connection = connection
        self._values = values
        self._last: tuple[Any, Any] | None = None
        self._known: dict[tuple[str, str], Any] = {}
        """Values of the last checkpoint of a namespace, by channel and version."""

    def of(self, row: tuple[Any, ...], place: str) -> dict[str, Any]:
        """Return the values of a checkpoint that are not inline."""
        if self._last != row[:2]:
            self._last, self._known = row[:2], {}
        versions = row[4].get("channel_versions")
        if not isinstance(versions, Mapping):
            return {}
        wanted = {(channel, str(version)) for channel, version in versions.items()}
        known = {key: value for key, value in self._known.items() if key in wanted}
        missing = [key for key in wanted if key not in known]
        sql = (
            "SELECT b.channel, b.version, b.type, b.blob FROM checkpoint_blobs b JOIN "
            "unnest(%s::text[], %s::text[]) AS w(channel, version) USING (channel, version) "
            "WHERE b.thread_id = %s AND b.checkpoint_ns = %s"
        )
        asked = ([key[0] for key in missing], [key[1] for key in missing], row[0], row[1])
        for channel, version, kind, blob in self._connection.execute(sql, asked).fetchall():
            where = f"{place}, channel {channel!r:.40}"
            known[channel, version] = self._values.decode(where, kind, blob)
        self._known = known
        return {channel: value for (channel, _), value in known.items() if value is not MISSING}

    def writes(self, row: tuple[Any, ...], place: str) -> list[SourceWrites]:
        """Return the pending writes of a checkpoint."""
        sql = (
            "SELECT task_id, task_path, idx, channel, type, blob FROM checkpoint_writes WHERE "
            "thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s "
            'ORDER BY task_path COLLATE "C", task_id COLLATE "C", idx'
        )
        found = self._connection.execute(sql, row[:3]).fetchall()
        return _tasks(found, self._values, place)


def _pg_thread(blobs: _Blobs, row: tuple[Any, ...], place: str) -> Iterator[SourceThread]:
    body = row[4]
    if not isinstance(body, dict):
        refuse_source(place, "the checkpoint is no object")
    inline = body.get("channel_values") or {}
    body = {**body, "channel_values": {**inline, **blobs.of(row, place)}}
    yield _thread(place, row[:4], body, row[5], blobs.writes(row, place))


def _pg_loose(blobs: _Blobs, row: tuple[Any, ...], place: str) -> Iterator[SourceThread]:
    yield _thread(place, (*row, None), None, {}, blobs.writes(row, place))


# --- Writing --------------------------------------------------------------------------------------


class ThreadWriter:
    """Writes checkpoints into the graph store of one user."""

    def __init__(self, db: Database, owner: Owner, prefix: str) -> None:
        self._graph = db.scope(app=owner.app, user=owner.user).graph
        self._coder = _coder(owner)
        self._prefix = prefix
        self._last: tuple[str, str] | None = None
        self._versions: dict[str, dict[str, Any]] = {}
        """Versions of the channels of the checkpoints of the present thread and namespace."""
        self._failed: set[str] = set()

    def put(self, record: SourceThread) -> tuple[bool, int]:
        """Store a checkpoint and its writes; return whether it is new, and how many writes are.

        Raises:
            SourceError: another checkpoint has its id, or an earlier one of its thread failed.
        """
        thread = self._prefix + record.thread
        if thread in self._failed:
            refuse_source(record.place, "left out: an earlier checkpoint of the thread failed")
        try:
            return self._put(thread, record)
        except CallerError:
            self._failed.add(thread)
            raise

    def _put(self, thread: str, record: SourceThread) -> tuple[bool, int]:
        found = self._graph.get(thread, record.namespace, record.checkpoint, self._coder)
        is_new = found is None and record.body is not None
        if found is not None and record.body is not None:
            self._need_same(found, record)
        if is_new:
            self._graph.put(thread, record.namespace, self._new(record), self._coder)
        if record.body is not None:
            self._note(record)
        before = 0 if found is None else len(found.writes)
        count = sum(len(task.writes) for task in record.writes)
        if count > before or (found is None and count):
            for task in record.writes:
                new = NewWrites(record.checkpoint, task.task, task.path, task.writes)
                self._graph.put_writes(thread, record.namespace, new, self._coder)
        return is_new, max(count - before, 0)

    def _new(self, record: SourceThread) -> NewCheckpoint:
        body = dict(record.body or {})
        values, versions = body.pop("channel_values"), body["channel_versions"]
        before = self._versions.get(record.parent or "", {})
        if self._last != (record.thread, record.namespace):
            before = {}
        changed = {name for name, version in versions.items() if before.get(name) != version}
        return NewCheckpoint(
            checkpoint=record.checkpoint,
            parent=record.parent,
            body=body,
            metadata=record.metadata,
            values={name: (versions[name], values.get(name, MISSING)) for name in changed},
            others={
                name: (versions[name], value)
                for name, value in values.items()
                if name not in changed
            },
        )

    def _note(self, record: SourceThread) -> None:
        if self._last != (record.thread, record.namespace):
            self._last, self._versions = (record.thread, record.namespace), {}
        self._versions[record.checkpoint] = dict((record.body or {})["channel_versions"])

    def _need_same(self, found: Any, record: SourceThread) -> None:
        body = dict(record.body or {})
        values = body.pop("channel_values")
        # Of a channel of deltas a snapshot is read at every checkpoint with its version.
        shown = {name: found.values.get(name, MISSING) for name in values}
        pairs = (
            (found.parent, record.parent), (found.metadata, record.metadata),
            (found.body, body), (shown, values),
        )  # fmt: skip
        for stored, given in pairs:
            if stored != given and self._coder.encode(stored) != self._coder.encode(given):
                refuse_source(record.place, "a checkpoint of this id exists with other content")
