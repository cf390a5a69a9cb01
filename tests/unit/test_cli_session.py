"""Verbs that change a session's course, and those for values beside the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from messages import assistant, texts, user


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def parsed(*arguments: object) -> dict[str, Any]:
    ran = run(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path, counter="bytes/4") as db:
        chat = db.session("chat", user="alice")
        chat.extend([user("1"), assistant("2"), user("3")])
        chat.state.put("plan", "now")
        db.scope(user="alice").kv("notes").put("k", {"a": 1})
        db.scope(user="alice").kv("notes").put("raw", b"\0\1")
    monkeypatch.setenv("MEMCORE_STORE", str(path))
    yield path
    with memcore.open(path, read_only=True) as db:
        assert db.check() == []


def shown(path: Path, name: str = "chat") -> list[str]:
    with memcore.open(path, read_only=True) as db:
        return texts(db.session(name, user="alice"))


def test_a_checkpoint_is_where_rewind_and_fork_go(store) -> None:
    saved = parsed("checkpoint", "chat", "three")["checkpoint"]
    assert (saved["name"], saved["seq"], saved["items"]) == ("three", 3, 3)
    looked = parsed("rewind", "chat@1", "--dry-run")
    assert (looked["taken_back"], looked["put_back"], looked["dry_run"]) == (2, 0, True)
    assert shown(store) == ["1", "2", "3"]
    done = run("rewind", "chat@1", "--yes").stdout
    assert done == "2 items taken back, 0 put back; these fields get the values of then: plan\n"
    assert shown(store) == ["1"]
    assert parsed("fork", "chat@three", "side")["items"] == 3
    assert parsed("fork", "chat@1", "early")["items"] == 1
    assert (shown(store, "side"), shown(store, "early")) == (["1", "2", "3"], ["1"])
    assert parsed("rewind", "chat@three", "--yes")["put_back"] == 2
    assert shown(store) == ["1", "2", "3"]
    assert run("rewind", "chat@0", "--yes").exit_code == 0
    assert shown(store) == []


def test_positions_that_are_none_are_told(store) -> None:
    for position, code in (
        ("chat", ExitCode.USAGE), ("chat@9", ExitCode.NOT_FOUND), ("chat@none", ExitCode.NOT_FOUND),
        ("none@1", ExitCode.NOT_FOUND),
    ):  # fmt: skip
        ran = run("rewind", position, "--dry-run")
        assert (ran.exit_code, ran.stdout) == (code, ""), position
        assert run("rewind", position, "--yes").exit_code == code
    assert run("fork", "chat", "chat").exit_code == ExitCode.REFUSED
    assert shown(store) == ["1", "2", "3"]


def test_a_compaction_is_reverted(store) -> None:
    assert run("uncompact", "chat", "--dry-run").stdout.startswith("nothing is compacted")
    with memcore.open(store) as db:
        session = db.session("chat", user="alice")
        for number in range(20):
            session.extend([user(f"q{number}"), assistant(f"a{number}")])
        assert session.compact(memcore.extractive, keep_last=4, force=True).view is not None
        hidden = sum(1 for _ in session.covered())
    assert parsed("uncompact", "chat", "--dry-run")["shown_again"] == hidden > 0
    assert parsed("uncompact", "chat", "--yes")["shown_again"] == hidden
    with memcore.open(store) as db:
        assert len(db.session("chat", user="alice").context().messages) == 43


def test_a_session_is_deleted_and_its_forks_stay(store) -> None:
    run("fork", "chat", "side")
    looked = run("delete", "chat", "--dry-run")
    assert looked.stdout.splitlines()[-1] == "nothing was written"
    assert run("delete", "chat").exit_code == ExitCode.REFUSED
    assert shown(store) == ["1", "2", "3"]
    assert parsed("delete", "chat", "--yes")["items"] == 3
    assert run("show", "chat").exit_code == ExitCode.NOT_FOUND
    assert shown(store, "side") == ["1", "2", "3"]


def test_a_held_session_is_not_deleted(store) -> None:
    assert parsed("delete", "chat", "--dry-run")["held"] is False
    run("hold", "alice", "--reason", "a case")
    assert "under a legal hold" in run("delete", "chat", "--dry-run").stdout
    assert run("delete", "chat", "--yes").exit_code == ExitCode.REFUSED
    assert shown(store) == ["1", "2", "3"]


def test_values_are_shown_and_changed(store) -> None:
    alice = "--user", "alice"
    assert parsed("kv", "notes", *alice)["values"] == {
        "k": {"a": 1},
        "raw": {"bytes": 2, "base64": "AAE="},
    }
    assert json.loads(run("kv", "notes", "k", *alice).stdout) == {"a": 1}
    assert run("kv", "notes", "none", *alice).exit_code == ExitCode.NOT_FOUND
    assert run("kv", "notes", "k", *alice, "--set", "[2]").exit_code == ExitCode.REFUSED
    assert run("kv", "notes", "k", *alice, "--set", "[2]", "--yes").stdout == "stored\n"
    assert run("kv", "notes", "k", *alice, "--set", "word", "--yes").exit_code == ExitCode.USAGE
    assert parsed("kv", "notes", "k", *alice)["values"] == {"k": [2]}
    assert run("kv", "notes", "k", *alice, "--delete", "--yes").stdout == "deleted\n"
    assert parsed("kv", "notes", *alice)["values"].keys() == {"raw"}
    assert parsed("kv", "notes")["values"] == {}


def test_a_state_is_shown_and_changed(store) -> None:
    assert parsed("state", "chat")["values"] == {"plan": "now"}
    assert run("state", "chat", "plan").stdout == '"now"\n'
    assert run("state", "chat", "none").exit_code == ExitCode.NOT_FOUND
    assert run("state", "chat", "--set", "1", "--yes").exit_code == ExitCode.USAGE
    assert run("state", "chat", "plan", "--set", "null", "--delete", "--yes").exit_code == 2
    assert run("state", "chat", "user:name", "--set", '"Ann"', "--yes").exit_code == 0
    assert parsed("state", "chat")["values"] == {"plan": "now", "user:name": "Ann"}
    assert run("state", "chat", "plan", "--delete", "--yes").exit_code == 0
    assert parsed("state", "chat")["values"] == {"user:name": "Ann"}


def test_texts_are_shown_in_full(store) -> None:
    long = "first line\n" + "word " * 100
    with memcore.open(store) as db:
        db.session("chat", user="alice").append(user(f"{long}\x1b[31m"))
    told = run("show", "chat", "--full", "--tail", "1").stdout
    assert "    first line\n    word word" in told
    assert told.count("word") == 100
    assert "\x1b" not in told
    assert run("show", "chat", "--tail", "1").stdout.count("word") < 30


def test_a_user_or_an_app_says_what_to_export(store, tmp_path) -> None:
    for options in (["--user", "alice"], ["--app", "default"], ["--all"]):
        ran = run("export", *options, "--to", tmp_path / f"{options[0]}.jsonl")
        assert (ran.exit_code, "chat" in (tmp_path / f"{options[0]}.jsonl").read_text()) == (
            0,
            True,
        )
    assert run("export", "--to", tmp_path / "none").exit_code == ExitCode.USAGE


def test_checkpoints_are_named_by_number(store) -> None:
    assert run("checkpoint", "chat").stdout.startswith("checkpoint #1 after seq 3")
    run("rewind", "chat@1", "--yes")
    assert parsed("rewind", "chat@#1", "--yes")["put_back"] == 2
    assert shown(store) == ["1", "2", "3"]
    for name in ("7", "#7"):
        assert run("checkpoint", "chat", name).exit_code == ExitCode.USAGE
    for position in ("chat@#9", "chat@#", f"chat@{'9' * 5000}"):
        assert run("rewind", position, "--dry-run").exit_code == ExitCode.NOT_FOUND


def test_what_the_view_before_covers_stays_covered(store) -> None:
    with memcore.open(store) as db:
        session = db.session("chat", user="alice")
        session.extend([user(str(n)) for n in range(17)])
        session.compact(memcore.extractive, keep_last=14, force=True)
        session.compact(memcore.extractive, keep_last=6, force=True)
    assert parsed("uncompact", "chat", "--dry-run")["shown_again"] == 8
    assert parsed("uncompact", "chat", "--yes")["shown_again"] == 8
    assert parsed("uncompact", "chat", "--yes")["shown_again"] == 6


def test_values_nested_too_deeply_are_refused(store) -> None:
    for verb in (["kv", "notes", "k"], ["state", "chat", "plan"]):
        assert run(*verb, "--set", "[" * 20_000, "--yes").exit_code == ExitCode.USAGE
        assert run(*verb[:-1], "none", "--delete", "--yes").exit_code == ExitCode.NOT_FOUND
