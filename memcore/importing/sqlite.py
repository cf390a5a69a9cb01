"""SQLite databases of other stores, opened read-only, and the readers of their tables.

A database in WAL mode, or with a journal beside it, is copied with what lies beside it, and the
copy is opened: SQLite would write to the original's directory. Tables are found by their columns.
Nothing is unpickled, and no view, trigger or virtual table of the file runs.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from memcore.errors import SourceError
from memcore.importing.source import (
    ItemTree,
    Notes,
    Owner,
    Record,
    SourceBranch,
    SourceConversation,
    SourceFailure,
    SourceItem,
    SourceMemory,
    SourceState,
    checked_message,
    fault_of_text,
    json_of,
    micros_of,
    refuse_source,
)

__all__ = [
    "SqliteSource",
    "opened",
    "read_adk",
    "read_langchain",
    "read_mem0",
    "read_openai_agents",
]


# --- A SQLite file, opened so that neither it nor its directory changes ---------------------------

MAGIC: Final = b"SQLite format 3\0"
_HEAD_BYTES: Final = 20
_WAL: Final = 2
_BESIDE: Final = ("-wal", "-journal")
_LOCK_SECONDS: Final = 2.0
_COPIES: Final = 3
UNREADABLE: Final = "import.unreadable"
"""Type of the event that keeps a row of the source that is no message."""


class SqliteSource:
    """An open database and its tables."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.tables: dict[str, list[str]] = {}
        """Columns of each table, lower-case."""
        sql = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        for name, made_by in list(self.rows(sql, "sqlite_master")):
            if str(made_by).lstrip().upper().startswith("CREATE VIRTUAL"):
                continue
            if fault_of_text(name, "table"):
                continue  # no framework's
            found = self.rows(f"PRAGMA table_info({quoted(name)})", name)
            self.tables[name] = [str(row[1]).lower() for row in found]

    def rows(self, sql: str, table: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.

        Raises:
            SourceError: the database is damaged, locked, or not one.
        """
        count = 0
        try:
            with closing(self._connection.execute(sql, values)) as cursor:
                for row in cursor:
                    count += 1
                    yield row
        except (sqlite3.Error, OverflowError, UnicodeError) as exc:
            place = f"{self.path}: table {table}, after row {count}"
            refuse_source(place, _reason(exc), exc)

    def with_columns(self, *columns: str) -> list[str]:
        """Return the tables that have all of some columns, by name."""
        return sorted(name for name, has in self.tables.items() if set(columns) <= set(has))

    def need(self, kind: str, *columns: str) -> list[str]:
        """Return the tables that have all of some columns.

        Raises:
            SourceError: there is none: the database is of another kind.
        """
        found = self.with_columns(*columns)
        if not found:
            listed = ", ".join(sorted(self.tables)[:8]) or "none"
            text = f"is no database of {kind}: no table has the columns {', '.join(columns)}"
            refuse_source(self.path, f"{text}; its tables: {listed}")
        return found

    def parent(self, table: str, column: str) -> str | None:
        """Return the table that a column refers to; None if it refers to none that exists."""
        for row in list(self.rows(f"PRAGMA foreign_key_list({quoted(table)})", table)):
            if str(row[3]).lower() == column and row[2] in self.tables:
                return str(row[2])
        return None


def quoted(name: str) -> str:
    """Return an identifier of SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


@contextmanager
def opened(path: str) -> Iterator[SqliteSource]:
    """Open a database for reading.

    Raises:
        SourceError: it is missing, not a SQLite database, damaged, locked, or written meanwhile.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as exc:
        refuse_source(path, exc.strerror or str(exc), exc)
    if not head.startswith(MAGIC) or len(head) < _HEAD_BYTES:
        refuse_source(path, "is not an SQLite database")
    if head[18] != _WAL and not any(os.path.exists(path + ending) for ending in _BESIDE):
        with _connected(path, path, "ro") as found:
            yield found
        return
    with tempfile.TemporaryDirectory(prefix="memcore-import-") as directory:
        copy = os.path.join(directory, "source.db")
        _copy(path, copy)
        with _connected(path, copy, "rw") as found:
            yield found


@contextmanager
def _connected(path: str, file: str, mode: str) -> Iterator[SqliteSource]:
    try:
        uri = f"file:{quote(os.path.abspath(file))}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_LOCK_SECONDS)
    except sqlite3.Error as exc:
        refuse_source(path, _reason(exc), exc)
    with closing(connection):
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        for pragma in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield SqliteSource(path, connection)


def _copy(path: str, copy: str) -> None:
    """Copy a database with what lies beside it, all of one moment."""
    try:
        for _ in range(_COPIES):
            before = _marks(path)
            for ending in ("", *_BESIDE):
                with suppress(FileNotFoundError):
                    shutil.copyfile(path + ending, copy + ending)
            if _marks(path) == before:
                return
            for ending in _BESIDE:
                Path(copy + ending).unlink(missing_ok=True)
    except OSError as exc:
        refuse_source(path, f"cannot be copied: {exc.strerror or exc}", exc)
    refuse_source(path, "is being written to; stop the program that has it open, and try again")


def _marks(path: str) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for ending in ("", *_BESIDE):
        try:
            stat = os.stat(path + ending)
            found.append((stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found


def _reason(error: Exception) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return f"{text}: stop the program that has it open, and try again"
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return f"is damaged ({text}); 'sqlite3 FILE .recover' may save what is left of it"
    return text


def _unreadable(row: Any, text: Any, created_us: int | None, notes: Notes) -> SourceItem:
    """Return the event that keeps a row that is no message."""
    notes.mend("rows that are no JSON, kept as events")
    shown = text if isinstance(text, str) else repr(text)
    return SourceItem({"row": row, "text": shown}, created_us, event=UNREADABLE)


def _text(found: Any, place: str, what: str) -> str:
    """Return a text of a row.

    Raises:
        SourceError: it is none.
    """
    if not isinstance(found, str):
        refuse_source(place, f"{what}: expected text, got {type(found).__name__}")
    return found


# --- OpenAI's Agents SDK: SQLiteSession and AdvancedSQLiteSession ---------------------------------

_TABLES: Final = ("agent_sessions", "agent_messages")
_MAIN: Final = "main"
_ITEM_COLUMNS: Final = ("id", "session_id", "message_data", "created_at")
_BRANCH_COLUMNS: Final = ("session_id", "message_id", "branch_id", "sequence_number")


def read_openai_agents(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the sessions of every pair of tables, with their branches."""
    with opened(path) as db:
        for messages in db.need("SQLiteSession", *_ITEM_COLUMNS):
            sessions = db.parent(messages, "session_id") or _TABLES[0]
            pair = _AgentTables(db, sessions, messages, owner, notes)
            for name, created, updated in pair.sessions():
                wrong = fault_of_text(name, "session_id")
                if wrong:
                    yield SourceFailure(f"{path}: table {messages}, session {name!r:.80}", wrong)
                else:
                    yield pair.conversation(name, created, updated)
        for table in db.with_columns("session_id", "branch_id", "user_turn_number", "requests"):
            ((count,),) = db.rows(f"SELECT count(*) FROM {quoted(table)}", table)  # noqa: S608
            notes.skip("rows of token usage by turn", count)


class _AgentTables:
    """A pair of tables of SQLiteSession, with that of branches if there is one."""

    def __init__(
        self, db: SqliteSource, sessions: str, messages: str, owner: Owner, notes: Notes
    ) -> None:
        self.db = db
        self.messages = messages
        self._sessions = sessions
        self._notes = notes
        found = [
            table
            for table in db.with_columns(*_BRANCH_COLUMNS)
            if db.parent(table, "message_id") in (messages, None)
        ]
        self._structure = found[0] if found else None
        is_default = (sessions, messages) == _TABLES
        self._app = owner.app
        if not is_default:  # as MemcoreSession names the space of a pair of tables
            self._app = import_module("memcore.adapters.openai_agents.history").app_of(
                owner.app, sessions, messages
            )

    def sessions(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield id and times of every session, also of one that only messages name."""
        seen = set()
        if self._sessions in self.db.tables:
            sql = f"SELECT session_id, created_at, updated_at FROM {quoted(self._sessions)}"  # noqa: S608
            for row in self.db.rows(sql, self._sessions):
                seen.add(row[0])
                yield row
        sql = f"SELECT DISTINCT session_id FROM {quoted(self.messages)}"  # noqa: S608
        for (name,) in list(self.db.rows(sql, self.messages)):
            if name not in seen:
                self._notes.mend("sessions that only their messages name")
                yield name, None, None

    def conversation(self, name: str, created: Any, updated: Any) -> SourceConversation:
        """Return one session."""
        place = f"{self.db.path}: session {name!r:.80}"
        sql = (
            f"SELECT id, message_data, created_at FROM {quoted(self.messages)} "  # noqa: S608
            "WHERE session_id = ? ORDER BY id"
        )
        rows = [(row[0], self._item(*row)) for row in self.db.rows(sql, self.messages, (name,))]
        items = dict(rows)
        found = SourceConversation(
            place,
            _session_name(name),
            "openai_responses",
            [],
            app=self._app,
            created_us=micros_of(created),
            updated_us=micros_of(updated),
        )
        branches = self._branches(name, items)
        if branches is None:
            found.items = [item for _, item in rows]  # an id may occur twice
        else:
            self._plant(found, items, branches)
        return found

    def _item(self, number: int, text: Any, at: Any) -> SourceItem:
        created_us = micros_of(at)
        try:
            message = checked_message(json_of(text, ""), self._notes)
        except SourceError:
            return _unreadable(number, text, created_us, self._notes)
        return SourceItem(message, created_us, {"openai_agents": {"id": number}})

    def _branches(self, name: str, items: Mapping[int, SourceItem]) -> dict[str, list[int]] | None:
        """Return the messages of each branch, in order; None if the session has none."""
        if self._structure is None:
            return None
        sql = (
            f"SELECT branch_id, message_id FROM {quoted(self._structure)} "  # noqa: S608
            "WHERE session_id = ? ORDER BY sequence_number, id"
        )
        found: dict[str, list[int]] = defaultdict(list)
        for branch, number in self.db.rows(sql, self._structure, (name,)):
            if number in items and isinstance(branch, str):
                found[branch].append(number)
        return dict(found) if found else None

    def _plant(
        self,
        found: SourceConversation,
        items: Mapping[int, SourceItem],
        branches: Mapping[str, list[int]],
    ) -> None:
        """Lay out branches that share messages as a tree."""
        tree = ItemTree(found.place)
        nodes: dict[tuple[int, int], int] = {}
        leaves = {}
        for branch in sorted(branches, key=lambda each: (each != _MAIN, min(branches[each]))):
            at = -1
            for number in branches[branch]:
                following = nodes.get((at, number))
                if following is None:
                    following = nodes[at, number] = tree.add(items[number], at)
                at = following
            leaves[branch] = at
        rest = items.keys() - {number for _, number in nodes}
        for number in sorted(rest):
            self._notes.mend("messages of no branch, kept outside the live history")
            tree.add(items[number], -1)
        found.items = tree.items
        found.leaf = leaves.pop(_MAIN, -1)
        for branch, leaf in leaves.items():
            found.branches.append(
                SourceBranch(branch, leaf, partial(_fork_name, branch), partial(_reserve, branch))
            )


def _session_name(name: str) -> str:
    """Return the name that MemcoreSession has for a session id."""
    return name if name and not name.startswith("\0") else f"\0{name}"


def _fork_name(branch_id: str, session: str) -> str:
    """Return the name that MemcoreSession has for a branch of a session."""
    history = import_module("memcore.adapters.openai_agents.history")
    return str(history.branch_name_of(session.removeprefix("\0"), branch_id))


def _reserve(branch_id: str, scope: Any, session: str) -> None:
    """Let MemcoreSession list a branch of a session."""
    session_id = session.removeprefix("\0")
    rows = import_module("memcore.adapters.openai_agents.branch_rows")
    engine = import_module("memcore.database.scope").engine_of(scope)
    book = rows.Book(scope, session_id)
    if not engine.store.read(lambda txn: book.reading(txn).is_used(branch_id)):
        now_us = engine.now_us()
        engine.store.transact(lambda txn: book.writing(txn).add_branch(branch_id, now_us=now_us))


# --- LangChain: SQLChatMessageHistory -------------------------------------------------------------


def read_langchain(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the sessions of every table of messages, in the order of their first ones."""
    del owner
    with opened(path) as db:
        tables = {table: _session_column(db.tables[table]) for table in db.with_columns("message")}
        found = {table: column for table, column in tables.items() if column is not None}
        if not found:
            db.need("SQLChatMessageHistory", "id", "session_id", "message")
        for table, column in found.items():
            yield from _messages_of(db, table, column or "", notes, is_only=len(found) == 1)


def _session_column(columns: list[str]) -> str | None:
    """Return the column with the id of the session; None if it is no table of messages."""
    others = [name for name in columns if name not in ("id", "message")]
    named = [name for name in others if "session" in name]
    if "id" not in columns or not named:
        return None
    return "session_id" if "session_id" in named else named[0]


def _messages_of(
    db: SqliteSource, table: str, column: str, notes: Notes, *, is_only: bool
) -> Iterator[Record]:
    by = quoted(column)
    sql = (
        f"SELECT {by}, id, message FROM {quoted(table)} "  # noqa: S608 - quoted names
        f"ORDER BY min(id) OVER (PARTITION BY {by}), {by}, id"
    )
    for name, rows in groupby(db.rows(sql, table), key=itemgetter(0)):
        place = f"{db.path}: table {table}, session {name!r:.80}"
        wrong = "the session has no id" if not name else fault_of_text(name, column)
        if wrong:
            yield SourceFailure(place, wrong)
            continue
        items = []
        for _, number, text in rows:
            try:
                message = checked_message(json_of(text, ""), notes)
            except SourceError:
                items.append(_unreadable(number, text, None, notes))
            else:
                items.append(SourceItem(message, None, {"langchain": {"id": number}}))
        yield SourceConversation(place, name if is_only else f"{table}/{name}", "langchain", items)


# --- ADK: SqliteSessionService, and DatabaseSessionService of schema 1 ----------------------------

_VERSION: Final = "1"
_MIGRATE: Final = (
    "adk migrate session --source_db_url=sqlite:///{path} --dest_db_url=sqlite:///migrated.db"
)
_SHARED: Final = ("app:", "user:", "temp:")


def read_adk(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield shared states, then sessions with their events and states, as the service stores them.

    Users and applications are those of the source.
    """
    del owner
    with opened(path) as db:
        _check_schema(db)
        db.need("ADK", "id", "app_name", "user_id", "session_id", "event_data")
        db.need("ADK", "app_name", "user_id", "id", "state")
        try:
            adk = import_module("memcore.importing.adk")
        except ModuleNotFoundError as exc:
            msg = 'kind adk needs Google ADK: install it with pip install "memcore-db[adk]"'
            raise ImportError(msg, name=exc.name) from exc
        yield from _shared_states(db)
        yield from adk.sessions(db, notes)


def _check_schema(db: SqliteSource) -> None:
    columns = db.tables.get("events", [])
    version = None
    if "adk_internal_metadata" in db.tables:
        sql = "SELECT value FROM adk_internal_metadata WHERE key = 'schema_version'"
        version = next((row[0] for row in list(db.rows(sql, "adk_internal_metadata"))), None)
        if version is None:
            refuse_source(db.path, "table adk_internal_metadata has no schema_version")
    if version == "0" or ("actions" in columns and "event_data" not in columns):
        command = _MIGRATE.format(path=db.path)
        text = (
            "has ADK's schema 0, whose events are pickled, and pickles are never read; migrate it"
        )
        refuse_source(db.path, f"{text}: {command}")
    if version not in (None, _VERSION):
        refuse_source(db.path, f"has ADK's schema {version!r:.20}; this memcore reads schema 1")


def _shared_states(db: SqliteSource) -> Iterator[Record]:
    for table, columns in (("app_states", "app_name, NULL"), ("user_states", "app_name, user_id")):
        if table not in db.tables:
            continue
        sql = f"SELECT {columns}, state FROM {table} ORDER BY 1, 2"  # noqa: S608
        for number, (app, user, text) in enumerate(db.rows(sql, table), 1):
            place = f"{db.path}: table {table}, row {number}"
            try:
                values = json_of(text, place)
                if not isinstance(values, dict):
                    refuse_source(place, f"state: expected an object, got {type(values).__name__}")
                app_name = _text(app, place, "app_name")
                user_name = None if user is None else _text(user, place, "user_id")
            except SourceError as error:
                yield SourceFailure(place, str(error).removeprefix(f"{place}: "))
                continue
            if values:
                names = import_module("memcore.adapters.adk.names")
                fields = dict(names.fields_of(values))
                mapped = None if user_name is None else names.name_of(user_name)
                yield SourceState(place, names.name_of(app_name), mapped, fields)


# --- mem0: history.db, or the JSON of Memory.get_all() --------------------------------------------

_HISTORY_BYTES: Final = 8 * 1024
_LABELS: Final = ("agent_id", "run_id", "actor_id", "role")


def read_mem0(path: str, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield memories and, from a history.db, the messages that it keeps."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(MAGIC))
            text = b"" if head == MAGIC else head + file.read()
    except OSError as exc:
        refuse_source(path, exc.strerror or str(exc), exc)
    if head == MAGIC:
        with opened(path) as db:
            db.need("mem0", "memory_id", "new_memory", "event")
            yield from _mem0_history(db, owner, notes)
            yield from _mem0_messages(db, notes)
        return
    if head[:1] == b"\x80":
        text = b""
        refuse_source(path, "is a pickle, which is never read; export json.dumps(memory.get_all())")
    found = json_of(text, path)
    rows = found.get("results") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        refuse_source(path, "expected the JSON of get_all(): {'results': [...]}, or that list")
    for number, row in enumerate(rows, 1):
        yield _mem0_memory(f"{path}: memory {number}", row, owner)


def _mem0_memory(place: str, row: Any, owner: Owner) -> Record:
    if not isinstance(row, dict) or not isinstance(row.get("memory"), str):
        return SourceFailure(place, "expected an object with the text of a 'memory'")
    key = row.get("id")
    if not isinstance(key, str) or not key:
        return SourceFailure(place, "the memory has no id")
    user = row.get("user_id")
    shown = ("memory", "user_id", "score")
    rest = {name: value for name, value in row.items() if name not in shown}
    created = micros_of(row.get("created_at"))
    return SourceMemory(
        place,
        owner.app,
        user if isinstance(user, str) and user else owner.user,
        row["memory"],
        key,
        {"mem0": rest},
        {name: row[name] for name in _LABELS if isinstance(row.get(name), str) and row[name]},
        None if created is None else created / 1_000_000,
    )


def _mem0_history(db: SqliteSource, owner: Owner, notes: Notes) -> Iterator[Record]:
    """Yield the last wording of each memory that was not deleted, with the earlier ones."""
    sql = (
        "SELECT memory_id, new_memory, event, created_at, updated_at, is_deleted, actor_id, role "
        "FROM history ORDER BY memory_id, rowid"
    )
    for key, rows in groupby(db.rows(sql, "history"), key=itemgetter(0)):
        events = list(rows)
        last = events[-1]
        place = f"{db.path}: table history, memory {key!r:.60}"
        if last[2] == "DELETE" or last[5]:
            notes.skip("memories that were deleted")
            continue
        if not isinstance(key, str) or not isinstance(last[1], str):
            yield SourceFailure(place, "the memory has no id, or no text")
            continue
        earlier = [row[1] for row in events[:-1] if isinstance(row[1], str)]
        if sum(len(text.encode("utf-8", "replace")) for text in earlier) > _HISTORY_BYTES:
            notes.skip("earlier wordings of memories, which are too long together", len(earlier))
            earlier = []
        told = {"id": key, "created_at": last[3], "updated_at": last[4], "earlier": earlier}
        created = micros_of(last[3]) or micros_of(last[4])
        labels = {
            name: value
            for name, value in (("actor_id", last[6]), ("role", last[7]))
            if isinstance(value, str) and value
        }
        yield SourceMemory(
            place, owner.app, owner.user, last[1], f"history:{key}", {"mem0": told}, labels,
            None if created is None else created / 1_000_000,
        )  # fmt: skip


def _mem0_messages(db: SqliteSource, notes: Notes) -> Iterator[Record]:
    if "messages" not in db.tables:
        return
    sql = (
        "SELECT session_scope, id, role, content, name, created_at FROM messages "
        "ORDER BY session_scope, rowid"
    )
    for name, rows in groupby(db.rows(sql, "messages"), key=itemgetter(0)):
        place = f"{db.path}: table messages, scope {name!r:.80}"
        items = []
        for _, number, role, content, actor, created in rows:
            message = {"role": role, "content": content}
            if isinstance(actor, str):
                message["name"] = actor
            made = checked_message(message, notes)
            items.append(SourceItem(made, micros_of(created), {"mem0": {"id": number}}))
        if not isinstance(name, str) or not name:
            yield SourceFailure(place, "the messages have no scope")
            continue
        ids = dict(part.partition("=")[::2] for part in name.split("&"))
        # mem0 escapes %, & and = alone: a plus sign is no blank, as it would be in a form.
        user = unquote(ids["user_id"]) if ids.get("user_id") else None
        yield SourceConversation(place, f"mem0/{name}", "openai_chat", items, user=user)
