"""Sources that are damaged, hostile, locked or of another kind: typed errors that name the place.

The valid ones are written by the real packages, or by the generators of ``test_importing``; here
bytes of them are changed, cut and spliced at random.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import zipfile
from pathlib import Path
from random import Random

import pytest
from agents import SQLiteSession
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.sqlite import SqliteSaver

import made_stores
import made_transcripts
import memcore
from memcore import SourceError, importing
from thinned import thinned

TEXTS = ("chatgpt", "claude-code", "codex", "json", "mem0", "sharegpt")
TABLES = ("adk", "langchain-sql", "langgraph", "mem0", "openai-agents")


def attempt(kind: str, path: Path) -> importing.ImportReport | None:
    """Import; only a SourceError may be raised, and what is stored is sound."""
    with memcore.open(":memory:") as db:
        try:
            report = importing.load(db, importing.read(kind, path))
        except SourceError as error:
            assert str(path) in error.place
            report = None
        assert db.check() == []
    return report


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], bytes]:
    """The bytes of a valid source, by kind and ending."""
    home = tmp_path_factory.mktemp("valid")
    found: dict[tuple[str, str], bytes] = {}
    made_transcripts.transcript().write(home / "t.jsonl")
    found["claude-code", ".jsonl"] = (home / "t.jsonl").read_bytes()
    for ending in (".jsonl", ".jsonl.zst"):
        found["codex", ending] = b""
        made_transcripts.write_rollout(home / f"r{ending}")
        found["codex", ending] = (home / f"r{ending}").read_bytes()
    for ending in (".json", ".zip"):
        made_transcripts.write_chats(home / f"c{ending}", [made_transcripts.chat("c1")])
        found["chatgpt", ending] = (home / f"c{ending}").read_bytes()
    rows = [{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}]
    found["sharegpt", ".json"] = json.dumps(rows * 3).encode()
    found["json", ".json"] = json.dumps([made_transcripts.OWNED, [made_transcripts.HELLO]]).encode()
    memory = {"id": "m", "memory": "Likes tea", "user_id": "ann", "created_at": "2026-01-01"}
    found["mem0", ".json"] = json.dumps({"results": [memory]}).encode()
    asyncio.run(made_stores.fill_sessions(home / "a.db", ["a", "b"]))
    found["openai-agents", ".db"] = (home / "a.db").read_bytes()
    asyncio.run(made_stores.fill_adk(SqliteSessionService(str(home / "adk.db"))))
    found["adk", ".db"] = (home / "adk.db").read_bytes()
    with SqliteSaver.from_conn_string(str(home / "g.db")) as saver:
        made_stores.run_threads(saver)
    with contextlib.closing(sqlite3.connect(home / "g.db")) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
    found["langgraph", ".db"] = (home / "g.db").read_bytes()
    return found


def damaged(content: bytes, rng: Random) -> bytes:
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 30))):
        at = rng.randrange(len(made))
        match rng.randrange(4):
            case 0:
                made[at] = rng.randrange(256)
            case 1:
                made[at : at + rng.choice((4, 64, 512))] = b"\0" * rng.choice((4, 64, 512))
            case 2:
                end = rng.randrange(len(made))
                made[at : at + 40] = made[end : end + 40]
            case 3:
                made = made[: max(at, 30)]
    return bytes(made)


@pytest.mark.parametrize("seed", thinned(range(40), lambda at: at % 10 in (0, 5)))
def test_damaged_sources_raise_typed_errors_only(valid, tmp_path, seed) -> None:
    rng = Random(seed)
    for (kind, ending), content in valid.items():
        path = tmp_path / f"{kind}{ending}"
        for _ in range(2):
            path.write_bytes(damaged(content, rng))
            attempt(kind, path)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from([*TEXTS, *TABLES]), content=st.binary(max_size=300))
def test_any_bytes_raise_typed_errors_only(tmp_path, kind, content) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(content)
    attempt(kind, path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((
        "id", "type", "uuid", "parentUuid", "message", "role", "content", "payload", "mapping",
        "conversations", "from", "value", "messages", "current_node", "parent", "author", "parts",
        "memory", "results", "timestamp", "isSidechain", "logicalParentUuid", "isCompactSummary",
        "num_turns", "recipient", "tool_calls", "create_time",
    )), inner, max_size=5),
    max_leaves=25,
)  # fmt: skip
WORDS = st.sampled_from(
    ("user", "assistant", "system", "response_item", "event_msg", "thread_rolled_back", "compacted")
)
SHAPED = st.fixed_dictionaries(
    {"type": WORDS},
    optional={
        "uuid": st.sampled_from("abc"), "parentUuid": st.sampled_from("abc") | st.none() | JSON,
        "message": JSON | st.fixed_dictionaries({"role": WORDS, "content": JSON}),
        "payload": JSON | st.fixed_dictionaries({"type": WORDS, "role": WORDS, "content": JSON}),
        "isSidechain": st.booleans(), "isCompactSummary": st.booleans(), "timestamp": JSON,
    },
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(kind=st.sampled_from(TEXTS), rows=st.lists(JSON | SHAPED, max_size=6))
def test_any_json_raises_typed_errors_only(tmp_path, kind, rows) -> None:
    path = tmp_path / "any.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    attempt(kind, path)
    path.write_text(json.dumps(rows))
    attempt(kind, path)


# --- Sources that are of another kind, locked, or made to harm ------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_a_database_of_another_kind_is_named(tmp_path, kind) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE notes (a, b)")
        raw.commit()
    with memcore.open(":memory:") as db, pytest.raises(SourceError, match="its tables: notes"):
        importing.load(db, importing.read(kind, path))


def test_a_view_or_a_virtual_table_is_no_table(tmp_path) -> None:
    path = tmp_path / "views.db"
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute(
            "CREATE VIEW agent_messages AS WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT "
            "id + 1 FROM r) SELECT id, 's' session_id, '{}' message_data, 0 created_at FROM r"
        )
        raw.execute("CREATE VIRTUAL TABLE agent_texts USING fts5(session_id, message_data)")
        raw.commit()
    with memcore.open(":memory:") as db, pytest.raises(SourceError, match="no table has"):
        importing.load(db, importing.read("openai-agents", path))


def test_a_locked_database_is_named(valid, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("memcore.importing.sqlite._LOCK_SECONDS", 0.01)
    path = tmp_path / "a.db"
    path.write_bytes(valid["adk", ".db"])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("BEGIN EXCLUSIVE")
        with memcore.open(":memory:") as db, pytest.raises(SourceError, match="stop the program"):
            importing.load(db, importing.read("adk", path))
        raw.execute("ROLLBACK")
    assert attempt("adk", path).conversations == 4


def test_what_is_only_in_the_wal_is_read(tmp_path) -> None:
    path = tmp_path / "w.db"
    session = SQLiteSession("s", path)
    asyncio.run(session.add_items([{"role": "user", "content": "x" * 9000}]))
    assert (tmp_path / "w.db-wal").stat().st_size > 9000
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert attempt("openai-agents", path).items == 1
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    session.close()


def test_a_database_that_is_written_meanwhile_is_named(valid, tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(valid["openai-agents", ".db"])
    (tmp_path / "a.db-wal").write_bytes(b"")
    marks = iter(range(100))
    monkeypatch.setattr("memcore.importing.sqlite._marks", lambda _: [next(marks)])
    with memcore.open(":memory:") as db, pytest.raises(SourceError, match="being written to"):
        importing.load(db, importing.read("openai-agents", path))


def test_rows_that_are_no_json_are_kept(valid, tmp_path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(valid["openai-agents", ".db"])
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE agent_messages SET message_data = '{\"role\": ' WHERE id = 2")
        raw.execute("UPDATE agent_messages SET message_data = x'ff00' WHERE id = 3")
        raw.execute("UPDATE agent_messages SET message_data = '[1, NaN]' WHERE id = 4")
        raw.commit()
    with memcore.open(":memory:") as db:
        report = importing.load(db, importing.read("openai-agents", path))
        assert report.failures == []
        assert sum(report.mended.values()) == 3
        items = [item.message for item in db.session("a").items()]
    assert items[1] == {"type": "import.unreadable", "payload": {"row": 2, "text": '{"role": '}}
    assert items[3] == {"__memcore_json__": "[1, NaN]"}


def test_a_page_that_is_damaged_ends_the_import_there(valid, tmp_path) -> None:
    content = bytearray(valid["langgraph", ".db"])
    content[len(content) // 2 :] = b"\x0d" * (len(content) - len(content) // 2)
    path = tmp_path / "g.db"
    path.write_bytes(content)
    report = attempt("langgraph", path)
    assert report is None or report.failures


@pytest.mark.parametrize("kind", TEXTS)
def test_deeply_nested_json_is_named(tmp_path, kind) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000 + "]" * 200_000)
    report = attempt(kind, path)
    assert report is None or report.skipped or report.failures


def test_a_zip_that_is_no_export_is_named(tmp_path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "[]")
    with (
        memcore.open(":memory:") as db,
        pytest.raises(SourceError, match=r"no conversations\.json"),
    ):
        importing.load(db, importing.read("chatgpt", path))


def test_an_endless_value_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("memcore.importing.exports._VALUE_CHARS_MAX", 100_000)
    monkeypatch.setattr("memcore.importing.transcripts._LINE_BYTES_MAX", 100_000)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", '["' + "a" * 3_000_000)
    with memcore.open(":memory:") as db, pytest.raises(SourceError, match="longer than"):
        importing.load(db, importing.read("chatgpt", path))
    lines = tmp_path / "x.jsonl"
    lines.write_text('"' + "a" * 3_000_000)
    report = attempt("codex", lines)
    assert report is not None
    assert "longer than" in report.failures[0]
