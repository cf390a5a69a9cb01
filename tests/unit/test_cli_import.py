"""``memcore import`` of files as people have them: arrays, one object, a thousand bad lines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from messages import assistant, texts, user

TALK = [user("q"), assistant("a")]
NAMED = [{"id": "x", "messages": TALK}, {"id": "y", "messages": TALK[:1]}]


def load(store: Path, file: Path) -> tuple[Any, dict[str, list[str]]]:
    ran = CliRunner().invoke(app, ["import", str(file), "--store", str(store)])
    with memcore.open(store) as db:
        assert db.check() == []
        return ran, {e.session_id: texts(db.session(e.session_id)) for e in db.sessions()}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAMED, {"x": ["q", "a"], "y": ["q"]}),
        ([TALK, TALK[:1]], {"f-000001": ["q", "a"], "f-000002": ["q"]}),
        (TALK, {"f-000001": ["q", "a"]}),
        (NAMED[0], {"x": ["q", "a"]}),
        ([NAMED[0], TALK], {"x": ["q", "a"], "f-000002": ["q", "a"]}),
        ([], {}),
    ],
)
def test_a_file_that_is_one_json_value(tmp_path, value, expected, indent) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(value, indent=indent))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, found) == (0, expected), ran.output


@pytest.mark.parametrize("around", ["\n{}\n\n", "\ufeff{}", "  {}  \n \n"])
def test_blanks_around_a_value_are_none(tmp_path, around) -> None:
    file = tmp_path / "f.json"
    file.write_text(around.format(json.dumps(NAMED)), encoding="utf-8")
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, found) == (0, {"x": ["q", "a"], "y": ["q"]}), ran.output


def test_an_array_with_something_else_reports_that(tmp_path) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps([NAMED[0], {"id": "z", "messages": None}, 7]))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, list(found)) == (ExitCode.FINDINGS, ["x"])
    assert "line 2" in ran.stderr
    assert "line 3" in ran.stderr


@pytest.mark.parametrize("text", [json.dumps(NAMED, indent=1), "\n".join(map(json.dumps, NAMED))])
def test_a_pipe_is_read_like_a_file(tmp_path, text) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["tee", fifo], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as tee:
        tee.stdin.write(text.encode())
        tee.stdin.close()
        ran, found = load(tmp_path / "a.memcore", fifo)
    assert (ran.exit_code, found) == (0, {"x": ["q", "a"], "y": ["q"]}), ran.output
    given = CliRunner().invoke(
        app, ["import", "-", "--store", str(tmp_path / "b.memcore")], input=text
    )
    assert given.exit_code == 0
    with memcore.open(tmp_path / "b.memcore") as db:
        assert [each.session_id for each in db.sessions()] == ["x", "y"]


def test_values_nested_too_deeply_are_refused(tmp_path) -> None:
    for depth in (900, 970, 990, 5_000):
        file = tmp_path / "f.json"
        file.write_text(json.dumps(NAMED[:1], indent=1)[:-2] + f",\n{'[' * depth}{']' * depth}]")
        ran, _ = load(tmp_path / f"{depth}.memcore", file)
        assert ran.exit_code == ExitCode.FINDINGS, (depth, ran.output)


def test_lines_that_are_lists_are_conversations_of_their_own(tmp_path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(f"{json.dumps([TALK[0]])}\n{json.dumps(TALK)}\n")
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, found) == (0, {"f-000001": ["q"], "f-000002": ["q", "a"]})


def test_a_thousand_lines_of_one_mistake_are_three_warnings(tmp_path) -> None:
    file = tmp_path / "f.jsonl"
    lines = [f'{{"id": "c{n}", "messages": 7}}' for n in range(1000)]
    file.write_text("\n".join(["{", *lines, json.dumps(NAMED[0])]))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, list(found)) == (ExitCode.FINDINGS, ["x"])
    told = ran.stderr.splitlines()
    assert len(told) == 5, told
    assert told[-1].endswith("and 997 more like these")


def test_a_database_is_no_lines(tmp_path) -> None:
    memcore.open(tmp_path / "b.memcore").close()
    ran, found = load(tmp_path / "a.memcore", tmp_path / "b.memcore")
    assert (ran.exit_code, found) == (ExitCode.CORRUPT, {})
    assert "memcore copy" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_options_without_a_meaning_are_refused(tmp_path) -> None:
    store, file = tmp_path / "a.memcore", tmp_path / "f.jsonl"
    file.write_text(json.dumps(TALK))
    memcore.open(store).close()
    for arguments in (
        ["import", file, "--allow-type", "a:b"],
        ["mcp", "--port", "3"],
        ["mcp", "--allow-host", "x"],
        ["sweep", "--yes", "--archive", "-"],
        ["sweep", "--yes", "--archive", "http://host/x"],
    ):
        ran = CliRunner().invoke(app, [*map(str, arguments), "--store", str(store)])
        assert ran.exit_code == ExitCode.USAGE, (arguments, ran.output)


def test_messages_of_no_known_role_are_told(tmp_path) -> None:
    file = tmp_path / "f.jsonl"
    odd = {"role": "agent", "content": "?"}
    talks = [TALK, [TALK[0], odd, odd], [odd]]
    file.write_text("\n".join(map(json.dumps, talks)))
    ran, found = load(tmp_path / "a.memcore", file)
    assert (ran.exit_code, list(found)) == (0, [f"f-00000{n}" for n in (1, 2, 3)])
    first, second = ran.stderr.splitlines()
    assert "line 2: the item at position 1: role: expected one of system" in first
    assert "line 3: the item at position 0" in second
    assert second.endswith("stored as it is")
    longer = json.dumps({"id": "f-000001", "messages": [*TALK, odd]}).encode()
    with memcore.open(tmp_path / "a.memcore") as db:
        again = db.import_([longer], on_conflict="append")
        assert [told[:34] for told in again.unreadable] == ["line 1: the item at position 2: ro"]
        assert len(texts(db.session("f-000001"))) == 3


def test_a_text_makes_no_database(tmp_path) -> None:
    file, store = tmp_path / "f.md", tmp_path / "a.memcore"
    file.write_text("# About\n\nNo conversation.\n")
    ran = CliRunner().invoke(app, ["import", str(file), "--store", str(store)])
    assert ran.exit_code == ExitCode.CORRUPT
    assert not store.exists()


@pytest.mark.parametrize("key", [None, "01" * 32])
def test_a_dry_run_reports_the_same_and_writes_nothing(tmp_path, monkeypatch, key) -> None:
    """Conflicts, new users' keys and what is skipped included."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    if key is not None:
        monkeypatch.setenv("MEMCORE_KEY", key)
    store, file, before = tmp_path / "a.memcore", tmp_path / "f.json", tmp_path / "before"
    file.write_text(json.dumps([*NAMED, {"id": "z", "messages": None}]))
    before.mkdir()

    def run(*options: str) -> dict[str, Any]:
        ran = CliRunner().invoke(
            app, ["import", str(file), "--store", str(store), "--json", "--user", "u", *options]
        )
        assert ran.exit_code == ExitCode.FINDINGS
        found = json.loads(ran.stdout)
        for name in ("seconds", "file_bytes"):
            del found[name]
        return found

    def files() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in tmp_path.glob("a.memcore*")}

    assert run("--dry-run") == {**run("--dry-run"), "dry_run": True}
    assert files() == {}
    expected = run("--dry-run") | {"dry_run": False}
    assert run() == expected
    file.write_text(json.dumps([{"id": "x", "messages": TALK[:1]}, NAMED[1], {"id": "new"}]))
    stored = {name: content for name, content in files().items() if "lock" not in name}
    expected = run("--dry-run") | {"dry_run": False}
    assert {name: content for name, content in files().items() if "lock" not in name} == stored
    assert run() == expected
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_dry_run_with_a_server_is_refused(tmp_path) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(NAMED))
    ran = CliRunner().invoke(
        app, ["import", str(file), "--store", "postgresql://127.0.0.1:1/no", "--dry-run"]
    )
    assert ran.exit_code == ExitCode.USAGE
    assert "--dry-run" in ran.stderr


@pytest.mark.parametrize("kind", [(), ("--from", "json")])
def test_instructions_beside_the_messages_are_kept_and_other_fields_told(tmp_path, kind) -> None:
    store, file = tmp_path / "a.memcore", tmp_path / "f.jsonl"
    said = {"id": "x", "system": "Be brief.", "tools": [1], "messages": TALK}
    file.write_text("".join(json.dumps({**said, "id": f"x{at}"}) + "\n" for at in "123"))
    ran = CliRunner().invoke(app, ["import", *kind, str(file), "--store", str(store)])
    assert ran.exit_code == 0
    told = ran.stdout if kind else ran.stderr
    assert told.count("tools") == 1
    with memcore.open(store) as db:
        assert texts(db.session("x2")) == ["Be brief.", "q", "a"]
        assert next(iter(db.session("x2").items())).kind.name == "SYSTEM"


def test_conversations_get_the_policy_of_the_format_they_are_written_in(tmp_path) -> None:
    store, file = tmp_path / "a.memcore", tmp_path / "f.jsonl"
    call = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
    talks = {
        "anthropic": [user("q"), assistant([call]), user([answer])],
        "gemini": [{"role": "user", "parts": [{"text": "q"}]}],
        "openai_chat": TALK,
    }
    lines = (json.dumps({"id": name, "messages": talk}) for name, talk in talks.items())
    file.write_text("\n".join(lines))
    ran = CliRunner().invoke(app, ["import", str(file), "--store", str(store)])
    assert ran.exit_code == 0
    with memcore.open(store) as db:
        for name in talks:
            assert memcore.validate(db.session(name).context().messages, policy=name) == []
            assert db.session(name).policy == name


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (json.dumps([{"title": "t", "mapping": {}}]), "--from chatgpt"),
        (json.dumps([{"conversations": [{"from": "human", "value": "q"}]}]), "--from sharegpt"),
        (json.dumps({"from": "human", "value": "q"}), "--from sharegpt"),
        ("SQLite format 3\0", "--from adk, langchain-sql, langgraph, mem0 or openai-agents"),
        ("PK\x03\x04", "--from chatgpt"),
        ("\x1f\x8b\x08", "gunzip"),
    ],
)
def test_what_another_reader_knows_is_told(tmp_path, content, told) -> None:
    store, file = tmp_path / "a.memcore", tmp_path / "f"
    file.write_bytes(content.encode("latin-1"))
    ran = CliRunner().invoke(app, ["import", str(file), "--store", str(store)])
    assert ran.exit_code in (ExitCode.FINDINGS, ExitCode.CORRUPT)
    assert told in ran.stderr
    if store.exists():
        with memcore.open(store) as db:
            assert list(db.sessions()) == []
