"""Imports of hostile sources: what cannot be stored is told, and all else is stored."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import memcore
from memcore import importing
from memcore.errors import SourceError


def load(db: memcore.Database, kind: str, path: Path) -> importing.ImportReport:
    return importing.load(db, importing.read(kind, path))


def said(uuid: str, parent: str | None, content: Any, role: str = "user", **more: Any) -> str:
    message = {"role": role, "content": content, **more.pop("message", {})}
    line = {"type": role, "uuid": uuid, "parentUuid": parent, "message": message, **more}
    return json.dumps(line) + "\n"


def deep(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = [found]
    return found


def lines(path: Path, *found: str) -> Path:
    path.write_text("".join(found), encoding="utf-8")
    return path


# --- Transcripts ----------------------------------------------------------------------------------


def test_ids_that_are_no_texts(open_db, tmp_path) -> None:
    use = {"type": "tool_use", "id": [1], "name": "x", "input": {}}
    result = {"type": "tool_result", "tool_use_id": {}, "content": "x"}
    path = lines(
        tmp_path / "a.jsonl", said("1", None, "hi"), said("2", "1", [use], "assistant"),
        said("3", "2", [result]), said("4", "3", "x", "assistant", message={"id": deep(600)}),
    )  # fmt: skip
    assert load(open_db(), "claude-code", path).items == 4


def test_a_part_that_is_no_json_costs_no_conversation(open_db, tmp_path) -> None:
    block = [{"type": "text", "text": "a"}]
    nan = [{"type": "tool_use", "id": "c", "name": "x", "input": {"v": float("nan")}}]
    joined = {"id": "m1"}
    path = lines(
        tmp_path / "a.jsonl", said("1", None, "hi", cwd=deep(600)),
        said("2", "1", block, "assistant", message=joined | {"usage": {"n": float("inf")}}),
        said("3", "2", nan, "assistant", message=joined),
        said("4", "3", block, "assistant", message=joined),
    )  # fmt: skip
    report = load(open_db(), "claude-code", path)
    assert (report.conversations, report.failures) == (1, [])
    assert report.mended["ids and details that are no JSON, kept as text"] == 2
    assert report.mended["values that are no JSON, kept as text"] == 1


def test_a_made_up_uuid_replaces_no_line(open_db, tmp_path) -> None:
    path = lines(
        tmp_path / "a.jsonl", said("a", None, "first"), said("a#3", "a", "second"),
        said("a", "a#3", "third"), said("q", "a", "fourth"),
    )  # fmt: skip
    report = load(open_db(), "claude-code", path)
    assert report.items + report.aside == 4


@pytest.mark.parametrize("kind", ["claude-code", "codex", "mem0"])
def test_a_byte_order_mark_costs_no_line(open_db, tmp_path, kind) -> None:
    message = {"type": "message", "role": "user", "content": []}
    found = {
        "claude-code": said("1", None, "hi"),
        "codex": json.dumps({"type": "response_item", "payload": message}),
        "mem0": json.dumps([{"id": "1", "memory": "likes tea"}]),
    }
    path = lines(tmp_path / "a.jsonl", "\ufeff" + found[kind])
    report = load(open_db(), kind, path)
    assert (report.items + report.memories, report.skipped) == (1, {})


def test_a_compaction_of_another_form(open_db, tmp_path) -> None:
    message = {"type": "message", "role": "user", "content": []}
    path = lines(
        tmp_path / "a.jsonl", json.dumps({"type": "response_item", "payload": message}) + "\n",
        json.dumps({"type": "compacted", "payload": {"replacement_history": 5}}) + "\n",
    )  # fmt: skip
    assert load(open_db(), "codex", path).summaries == 1


# --- Exports --------------------------------------------------------------------------------------


def node(parent: str | None, text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    message = {"author": {"role": role}, "content": {"parts": [text]}, **more}
    return {"parent": parent, "message": message}


def test_branches_whose_ids_begin_alike(open_db, tmp_path) -> None:
    nodes = {"": node(None, "root")} | {"x" * 100 + str(n): node("", str(n)) for n in range(4)}
    nodes |= {"other": node(None, "another root")}
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"id": "c", "current_node": "other", "mapping": nodes}]))
    db = open_db()
    report = load(db, "chatgpt", path)
    assert (report.forks, report.failures) == (4, [])
    shown = [item.message for item in db.session("c").items()]
    assert shown == [{"role": "user", "content": "another root"}]


def test_calls_that_nothing_answers_take_no_room_each(tmp_path) -> None:
    count = 4000
    nodes = {
        str(n): node(str(n - 1) if n else None, "x", "assistant", recipient="bio")
        for n in range(count)
    }
    nodes["end"] = node(str(count - 1), "done", "tool")
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"id": "c", "current_node": "end", "mapping": nodes}]))
    tracemalloc.start()
    (found,) = importing.read("chatgpt", path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.items) == count + 1
    assert peak < 10_000 * count  # with all the calls before it, each has twice that
    assert found.items[-1].message["tool_call_id"] in {f"call-{n}" for n in range(count)}


def test_turns_of_another_form(open_db, tmp_path) -> None:
    path = tmp_path / "a.json"
    turns = [{"role": "assistant", "content": "x", "tool_calls": 5}]
    path.write_text(json.dumps([{"id": "1", "conversations": turns}]))
    assert load(open_db(), "sharegpt", path).items == 1


def test_a_damaged_zip(tmp_path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("conversations.json", json.dumps([{"mapping": {}}] * 200))
    damaged = bytearray(path.read_bytes())
    damaged[52] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match="cannot be unpacked"):
        list(importing.read("chatgpt", path))


# --- SQLite ---------------------------------------------------------------------------------------

AGENTS = (
    "CREATE TABLE agent_sessions(session_id, created_at, updated_at);"
    "CREATE TABLE agent_messages(id, session_id, message_data, created_at);"
)
HELLO = '{"role": "user", "content": "hello"}'


def database(path: Path, script: str, *rows: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    for row in rows:
        connection.execute(row)
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize("name", ["CAST(x'ff61' AS TEXT)", "x'ff'", "5", "NULL", "9e999"])
def test_a_session_whose_id_is_no_text_costs_no_other(open_db, tmp_path, name) -> None:
    insert = "INSERT INTO agent_messages VALUES"
    path = database(
        tmp_path / "a.db", AGENTS, f"INSERT INTO agent_sessions VALUES ({name}, 1, 2)",
        f"{insert} (1, {name}, '{HELLO}', 1)", f"{insert} (2, 'good', '{HELLO}', 1)",
    )  # fmt: skip
    report = load(open_db(), "openai-agents", path)
    assert (report.conversations, len(report.failures)) == (1, 1)
    messages = "CREATE TABLE message_store(id INTEGER PRIMARY KEY, session_id, message);"
    human = '{"type": "human", "data": {"content": "x"}}'
    path = database(
        tmp_path / "b.db", messages, f"INSERT INTO message_store VALUES (1, {name}, '{human}')",
        f"INSERT INTO message_store VALUES (2, 'fine', '{human}')",
    )  # fmt: skip
    report = load(open_db(), "langchain-sql", path)
    assert (report.conversations, len(report.failures)) == (1, 1)


def test_message_ids_of_any_kind(open_db, tmp_path) -> None:
    path = database(
        tmp_path / "a.db", AGENTS,
        *(f"INSERT INTO agent_messages VALUES ({each}, 'a', '{HELLO}', 1)"
          for each in ("1", "1", "x'01'", "9e999", "NULL")),
    )  # fmt: skip
    report = load(open_db(), "openai-agents", path)
    assert (report.items, report.failures) == (5, [])


def test_a_table_whose_name_is_no_text(open_db, tmp_path) -> None:
    path = database(
        tmp_path / "a.db", AGENTS, f"INSERT INTO agent_messages VALUES (1, 'a', '{HELLO}', 1)",
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master VALUES ('table', CAST(x'61ff' AS TEXT), CAST(x'61ff' AS TEXT),"
        " 2, CAST(x'637265617465207461626c65202261ff222861290a' AS TEXT))",
    )  # fmt: skip
    assert load(open_db(), "openai-agents", path).items == 1


def test_a_user_that_cannot_be_costs_no_other_memory(open_db, tmp_path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([
        {"id": "1", "memory": "likes tea", "user_id": "x" * 70_000},
        {"id": "2", "memory": "likes coffee"},
    ]))  # fmt: skip
    report = load(open_db(), "mem0", path)
    assert (report.memories, len(report.failures)) == (1, 1)


def test_messages_of_mem0_of_any_kind(open_db, tmp_path) -> None:
    path = database(
        tmp_path / "a.db",
        "CREATE TABLE history(memory_id, new_memory, event, created_at, updated_at, is_deleted,"
        " actor_id, role);"
        "CREATE TABLE messages(id, session_scope, role, content, name, created_at);",
        "INSERT INTO messages VALUES (x'00', 'user_id=ann', x'00', 9e999, NULL, 1)",
        f"INSERT INTO messages VALUES (1, 'user_id={'z' * 70_000}', 'user', 'x', NULL, 1)",
        "INSERT INTO messages VALUES (1, 'user_id=zoe', 'user', 'x', NULL, 1)",
    )
    report = load(open_db(), "mem0", path)
    assert (report.conversations, report.items, len(report.failures)) == (2, 2, 1)


def test_users_of_mem0_are_who_they_are(open_db, tmp_path) -> None:
    """As mem0 writes the names of scopes: %, & and = are escaped, and nothing else."""
    users = ["ann+work@x.org", "ann work@x.org", "a%41", "x&user_id=bob", "bob"]
    scopes = [f"user_id={quote(user, safe=' +@')}" for user in users]
    scopes.append("agent_id=b&run_id=c&user_id=zoe")
    rows = (f"INSERT INTO messages VALUES (1, '{s}', 'user', 'x', NULL, 1)" for s in scopes)
    path = database(
        tmp_path / "a.db",
        "CREATE TABLE history(memory_id, new_memory, event, created_at, updated_at, is_deleted,"
        " actor_id, role);"
        "CREATE TABLE messages(id, session_scope, role, content, name, created_at);",
        *rows,
    )
    db = open_db()
    load(db, "mem0", path)
    assert sorted(each.user for each in db.sessions()) == sorted([*users, "zoe"])


def test_a_schema_that_is_no_text_is_refused(tmp_path) -> None:
    path = database(tmp_path / "a.db", "CREATE TABLE message_store(id, session_id, message);")
    raw = path.read_bytes()
    at = raw.index(b"CREATE TABLE")
    for byte in range(at, at + 60):
        path.write_bytes(raw[:byte] + b"\xd4" + raw[byte + 1 :])
        with contextlib.suppress(SourceError):
            list(importing.read("langchain-sql", path))


@pytest.mark.parametrize("kind", ["codex", "claude-code"])
def test_a_text_is_no_transcript(open_db, tmp_path, kind) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("Dear diary,\n\nnothing happened.\n")
    assert load(open_db(), kind, path).failures == [f"{path}: none of its lines is JSON"]
