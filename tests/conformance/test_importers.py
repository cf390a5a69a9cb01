"""Imports of stores that the real packages wrote: what they read back is what memcore has.

Nothing of a fixture is written by hand. Each source is hashed before and after: an import changes
no byte of it, nor of what lies beside it.
"""

from __future__ import annotations

import hashlib
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from servers import postgres

import memcore
from made_stores import (
    ANSWER,
    CALL,
    RESULT,
    USER,
    fill_adk,
    fill_sessions,
    graph,
    run_threads,
    turn_of,
)
from memcore import SourceError, importing
from memcore.adapters.adk import MemcoreSessionService
from memcore.adapters.langgraph import MemcoreSaver
from memcore.adapters.openai_agents import MemcoreSession


def digests(directory: Path) -> dict[str, str]:
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(directory.iterdir())
        if each.is_file()
    }


def twice(db: memcore.Database, kind: str, path: Path, **options: Any) -> importing.ImportReport:
    """Import; import again, which stores nothing; compare the source with what it was."""
    before = digests(path.parent)
    first = importing.load(db, importing.read(kind, path, **options))
    again = importing.load(db, importing.read(kind, path, **options))
    assert digests(path.parent) == before
    assert first.failures == again.failures == []
    assert (again.read, again.present) == (first.read, first.read)
    stored = [again.conversations, again.items, again.aside, again.forks, again.states]
    assert [*stored, again.memories, again.checkpoints, again.writes] == [0] * 8
    assert db.check() == []
    return first


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    return directory / "source.db"


# --- OpenAI's Agents SDK --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_openai_sessions(open_db, source) -> None:
    names = ["a", "b/ü", "\0odd"]
    await fill_sessions(source, names)
    db = open_db()
    report = twice(db, "openai-agents", source, user="ann", app="shop")
    assert (report.conversations, report.items) == (3, 15)
    for name in names:
        theirs = SQLiteSession(name, source)
        with MemcoreSession(name, db, user="ann", app="shop") as ours:
            assert await ours.get_items() == await theirs.get_items()
        theirs.close()
    item = db.session("a", user="ann", app="shop").get(1)
    assert item.meta == {"openai_agents": {"id": 1}}
    (row,) = sqlite3.connect(source).execute("SELECT created_at FROM agent_messages WHERE id = 1")
    assert memcore.importing.source.micros_of(row[0]) == item.created_at * 1e6


@pytest.mark.anyio
async def test_openai_sessions_of_other_tables(open_db, source) -> None:
    tables = {"sessions_table": "my_sessions", "messages_table": "my messages"}
    await fill_sessions(source, ["x"])
    theirs = SQLiteSession("x", source, **{**tables, "messages_table": "mine"})
    await theirs.add_items([USER])
    db = open_db()
    assert twice(db, "openai-agents", source).conversations == 2
    with MemcoreSession("x", db, "my_sessions", "mine") as ours:
        assert await ours.get_items() == await theirs.get_items() == [USER]
    theirs.close()


@pytest.mark.anyio
async def test_openai_branches(open_db, source) -> None:
    theirs = AdvancedSQLiteSession(session_id="adv", db_path=source, create_tables=True)
    for turn in range(4):
        await theirs.add_items([{**USER, "content": f"q{turn}"}, ANSWER])
    await theirs.create_branch_from_turn(3, "alt")
    await theirs.add_items([{**USER, "content": "instead"}, CALL, RESULT])
    await theirs.create_branch_from_turn(3, "of a branch")
    await theirs.add_items([ANSWER])
    await theirs.switch_to_branch("main")
    await theirs.create_branch_from_turn(1, "afresh")
    await theirs.add_items([USER])
    await theirs.switch_to_branch("main")
    await theirs.add_items([{**USER, "content": "more"}])
    db = open_db()
    report = twice(db, "openai-agents", source)
    assert (report.conversations, report.forks) == (1, 3)
    with MemcoreSession("adv", db) as ours:
        # Both list the oldest first, in whole seconds: a fork is as old as its import.
        listed = sorted(each["branch_id"] for each in await theirs.list_branches())
        assert sorted(each["branch_id"] for each in await ours.list_branches()) == listed
        for branch in listed:
            await ours.switch_to_branch(branch)
            await theirs.switch_to_branch(branch)
            assert await ours.get_items() == await theirs.get_items()
            assert len(await ours.get_items()) > 0
    importing.load(db, importing.read("openai-agents", source), prefix="old/")
    with MemcoreSession("old/adv", db) as ours:
        assert sorted(each["branch_id"] for each in await ours.list_branches()) == listed
        await ours.switch_to_branch("alt")
        await theirs.switch_to_branch("alt")
        assert await ours.get_items() == await theirs.get_items()
    theirs.close()


# --- ADK ------------------------------------------------------------------------------------------


@asynccontextmanager
async def adk_service(name: str, path: Path) -> AsyncIterator[Any]:
    if name == "sqlite":
        yield SqliteSessionService(str(path))
        return
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    yield service
    await service.close()


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["sqlite", "database"])
async def test_adk(open_db, source, name) -> None:
    async with adk_service(name, source) as theirs:
        await fill_adk(theirs)
        db = open_db()
        report = twice(db, "adk", source)
        assert (report.conversations, report.states, report.mended) == (4, 3, {})
        ours = MemcoreSessionService(db)
        for user in ("ann", "bob"):
            for session_id in (f"{user}-1", "empty"):
                at = {"app_name": "shop", "user_id": user, "session_id": session_id}
                mine, other = await ours.get_session(**at), await theirs.get_session(**at)
                assert mine.events == other.events
                assert mine.state == other.state
                assert mine.last_update_time == pytest.approx(other.last_update_time, abs=1e-5)
        native = db.session("ann-1", app="shop", user="ann")
        seqs = [item.seq for item in native.items() if item.request_id == "i1"]
        assert native.state.before(seqs[0])["cart"] == [0]
        at = {"app_name": "shop", "user_id": "ann", "session_id": "ann-1"}
        await ours.append_event(await ours.get_session(**at), next(turn_of(7)))
        assert len((await ours.get_session(**at)).events) == 16


@pytest.mark.anyio
async def test_adk_of_schema_0_is_sent_to_its_migration(open_db, source) -> None:
    schema = pytest.importorskip("google.adk.sessions.schemas.v0")
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(f"sqlite:///{source}")
    schema.Base.metadata.create_all(engine)
    engine.dispose()
    before = digests(source.parent)
    with pytest.raises(SourceError, match=r"schema 0.*adk migrate session --source_db_url="):
        importing.load(open_db(), importing.read("adk", source))
    assert digests(source.parent) == before


# --- LangGraph ------------------------------------------------------------------------------------


def place(found: Any) -> tuple[str, str, str]:
    at = found.config["configurable"]
    return at["thread_id"], at["checkpoint_ns"], at["checkpoint_id"]


def assert_alike(theirs: Any, ours: MemcoreSaver, app: Any) -> None:
    """Every checkpoint, every state of every thread, and what goes on from there."""
    expected, found = sorted(theirs.list(None), key=place), sorted(ours.list(None), key=place)
    assert list(map(place, found)) == list(map(place, expected))
    for mine, other in zip(found, expected, strict=True):
        shown = mine.checkpoint["channel_values"]
        more = shown.keys() - other.checkpoint["channel_values"].keys()
        assert more <= {"log"}  # a snapshot, which a version has at every checkpoint
        assert all(isinstance(shown.pop(name), _DeltaSnapshot) for name in more)
        assert mine.checkpoint == other.checkpoint
        assert mine.metadata == other.metadata
        assert mine.parent_config == other.parent_config
        assert mine.pending_writes == other.pending_writes
    here = graph().compile(checkpointer=ours)
    for thread in ("t0", "t1", "t/ü"):
        config = {"configurable": {"thread_id": thread}}
        before = [(each.values, each.next) for each in app.get_state_history(config)]
        assert [(each.values, each.next) for each in here.get_state_history(config)] == before
    config = {"configurable": {"thread_id": "t1"}}
    expected = app.invoke(Command(resume="yes"), config)
    assert here.invoke(Command(resume="yes"), config) == expected


def test_langgraph(open_db, source) -> None:
    with SqliteSaver.from_conn_string(str(source)) as theirs:
        app = run_threads(theirs)
        db = open_db()
        report = twice(db, "langgraph", source)  # its WAL is still there
        assert report.checkpoints == len(list(theirs.list(None))) > 40
        ours = MemcoreSaver(db)
        assert ours.check() == []
        assert_alike(theirs, ours, app)


def test_langgraph_of_a_user_with_a_prefix(open_db, source) -> None:
    with SqliteSaver.from_conn_string(str(source)) as theirs:
        run_threads(theirs)
    db = open_db()
    reading = importing.read("langgraph", source, app="shop", user="ann")
    importing.load(db, reading, prefix="old/")
    threads = [each.thread for each in MemcoreSaver(db, app="shop", user="ann").threads()]
    assert threads == ["old/t/ü", "old/t0", "old/t1"]
    assert list(MemcoreSaver(db).threads()) == []


class Untrusted:
    """A type that no allow-list has; it is named in a checkpoint."""

    def __reduce__(self) -> Any:
        return print, ("the import ran code of the file",)


def put_value(path: Path, value: Any, **options: Any) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        saver.serde = JsonPlusSerializer(**options)
        app = graph().compile(checkpointer=saver)
        app.invoke({"messages": [], "n": 0, "log": [value]}, {"configurable": {"thread_id": "bad"}})


def test_pickles_are_not_read(open_db, source, capfd) -> None:
    put_value(source, Untrusted, pickle_fallback=True)
    with sqlite3.connect(source) as raw:
        (count,) = raw.execute("SELECT count(*) FROM writes WHERE type = 'pickle'").fetchone()
    raw.close()
    assert count
    db = open_db()
    report = importing.load(db, importing.read("langgraph", source))
    assert any("a pickle, which is never read" in each for each in report.failures)
    assert any("an earlier checkpoint of the thread" in each for each in report.failures)
    assert "ran code" not in capfd.readouterr().out


def test_types_are_refused_unless_allowed(open_db, source) -> None:
    put_value(source, HTTPStatus.OK)
    db = open_db()
    report = importing.load(db, importing.read("langgraph", source))
    assert any("--allow-type http:HTTPStatus" in each for each in report.failures)
    allowed = importing.read("langgraph", source, allowed_types=[("http", "HTTPStatus")])
    assert importing.load(db, allowed).failures == []
    saver = MemcoreSaver(db, allowed_types=[HTTPStatus])
    app = graph().compile(checkpointer=saver)
    assert HTTPStatus.OK in app.get_state({"configurable": {"thread_id": "bad"}}).values["log"]


# --- PostgreSQL -----------------------------------------------------------------------------------


def test_langgraph_of_postgres(open_db) -> None:
    psycopg = pytest.importorskip("psycopg")
    saver = pytest.importorskip("langgraph.checkpoint.postgres").PostgresSaver
    with postgres() as server:
        dsn = server.dsn
        with pytest.raises(SourceError, match="it has no checkpoints"):
            importing.load(open_db(), importing.read("langgraph-pg", dsn))
        with saver.from_conn_string(dsn) as theirs:
            theirs.setup()
            app = run_threads(theirs)
            db = open_db()
            first = importing.load(db, importing.read("langgraph-pg", dsn))
            assert first.failures == []
            assert first.checkpoints == len(list(theirs.list(None))) > 40
            again = importing.load(db, importing.read("langgraph-pg", dsn))
            assert (again.present, again.checkpoints, again.writes) == (first.checkpoints, 0, 0)
            ours = MemcoreSaver(db)
            assert db.check() == ours.check() == []
            assert_alike(theirs, ours, app)
        with psycopg.connect(dsn) as raw:
            raw.execute("UPDATE checkpoint_blobs SET type = 'pickle'")
        with memcore.open(":memory:") as other:
            report = importing.load(other, importing.read("langgraph-pg", dsn))
            assert report.checkpoints == 0
            assert "never read" in report.failures[0]
    with pytest.raises(SourceError, match="cannot be reached"):
        importing.load(open_db(), importing.read("langgraph-pg", dsn))


# --- LangChain, mem0: packages that take long to install ------------------------------------------


def test_langchain_sql(open_db, source) -> None:
    histories = pytest.importorskip("langchain_community.chat_message_histories")
    open_history: Callable[[str], Any] = lambda name: histories.SQLChatMessageHistory(  # noqa: E731
        session_id=name, connection=f"sqlite:///{source}"
    )
    said = [
        SystemMessage("s"), HumanMessage("h 🌧"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c1"}]),
        ToolMessage("r", tool_call_id="c1"), HumanMessage([{"type": "text", "text": "t"}]),
    ]  # fmt: skip
    for name in ("a", "b"):
        history = open_history(name)
        history.add_messages(said)
        history.engine.dispose()
    db = open_db()
    assert twice(db, "langchain-sql", source).items == 10
    for name in ("a", "b"):
        session, history = db.session(name), open_history(name)
        assert messages_from_dict([item.message for item in session.items()]) == history.messages
        history.engine.dispose()
        assert (session.policy, session.open_calls, session.context().repairs) == (
            "langchain", [], (),
        )  # fmt: skip


def test_mem0(open_db, source) -> None:
    storage = pytest.importorskip("mem0.memory.storage")
    mem0_main = pytest.importorskip("mem0.memory.main")
    manager = storage.SQLiteManager(str(source))
    at = "2026-01-01T00:00:00+00:00"
    manager.add_history("m1", None, "Likes tea", "ADD", created_at=at, role="user")
    manager.add_history("m1", "Likes tea", "Likes green tea", "UPDATE", created_at=at)
    manager.add_history("m2", None, "Was here", "ADD", created_at=at)
    manager.add_history("m2", "Was here", None, "DELETE", is_deleted=1)
    said = [{"role": "user", "content": "I like tea"}, {"role": "assistant", "content": "Noted"}]
    who = "ann+1%41&user_id=bob@x.org"
    scope = mem0_main._build_session_scope({"user_id": who, "agent_id": "bot"})
    manager.save_messages(said, scope)
    stored = manager.get_last_messages(scope, limit=10)
    manager.close()
    db = open_db()
    report = twice(db, "mem0", source)
    assert (report.memories, report.conversations) == (1, 1)
    assert report.skipped == {"memories that were deleted": 1}
    (memory,) = db.scope().memory.list()
    assert (memory.text, memory.by, memory.status) == ("Likes green tea", "import", "quarantined")
    assert memory.attributes["mem0"]["earlier"] == ["Likes tea"]
    session = db.session(f"mem0/{scope}", user=who)
    messages = [item.message for item in session.items()]
    assert messages == [{key: each[key] for key in ("role", "content")} for each in stored]


def test_a_pickle_of_mem0_is_refused(open_db, tmp_path) -> None:
    path = tmp_path / "faiss.pkl"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(SourceError, match="never read"):
        importing.load(open_db(), importing.read("mem0", path))
