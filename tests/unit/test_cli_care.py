"""The verbs that care for a file: backup, restore, copy-compact, salvage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode

RUNNER = CliRunner()


def run(*arguments: object) -> Any:
    return RUNNER.invoke(app, list(map(str, arguments)), env={"MEMCORE_STORE": None})


def parsed(*arguments: object, code: int = 0) -> dict[str, Any]:
    ran = run(*arguments, "--json")
    assert ran.exit_code == code, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert (found.pop("schema"), found.pop("command")) == (1, arguments[0])
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        db.session("bulk").extend({"role": "user", "content": "x" * 900} for _ in range(2000))
        db.session("chat", user="alice").extend(
            {"role": "user", "content": f"message {n:03}"} for n in range(5)
        )
        db.delete_session("bulk")
    return path


def damage(path: Path) -> None:
    raw = path.read_bytes()
    assert b"message 002" in raw
    path.write_bytes(raw.replace(b"message 002", b"massage 002"))


def test_a_backup_is_proven(store, tmp_path) -> None:
    target = tmp_path / "copy"
    assert parsed("backup", target, "--store", store)["verified"] is True
    assert parsed("check", "--store", target)["ok"] is True
    other = tmp_path / "other"
    assert parsed("backup", other, "--store", store, "--no-verify")["verified"] is False
    damage(store)
    ran = run("backup", tmp_path / "third", "--store", store)
    assert ran.exit_code == ExitCode.CORRUPT
    assert "the new copy would not be sound" in ran.stderr
    assert not (tmp_path / "third").exists()


def test_restore(store, tmp_path) -> None:
    backup = tmp_path / "backup"
    run("backup", backup, "--store", store)
    fresh = parsed("restore", backup, "--store", tmp_path / "fresh")
    assert (fresh["kept"], fresh["findings"]) == (None, [])
    assert fresh["bytes"] == (tmp_path / "fresh").stat().st_size
    for consent in ((), ("--replace",), ("--yes",)):
        ran = run("restore", backup, "--store", store, *consent)
        assert ran.exit_code == ExitCode.REFUSED
        assert "--replace --yes" in ran.stderr
    kept = parsed("restore", backup, "--store", store, "--replace", "--yes")["kept"]
    assert Path(kept).exists()
    text = run("restore", backup, "--store", store, "--replace", "--yes").stdout
    assert "the file before: " in text
    count = len(list(tmp_path.iterdir()))
    run("restore", backup, "--store", store, "--replace", "--yes", "--discard")
    assert len(list(tmp_path.iterdir())) == count
    assert parsed("check", "--store", store)["ok"] is True


def test_restore_of_what_is_not_sound(store, tmp_path) -> None:
    ran = run("restore", tmp_path / "none", "--store", tmp_path / "fresh")
    assert ran.exit_code == ExitCode.NOT_FOUND
    damage(store)
    ran = run("restore", store, "--store", tmp_path / "fresh")
    assert ran.exit_code == ExitCode.CORRUPT
    ran = run("restore", store, "--store", tmp_path / "fresh", "--force")
    assert ran.exit_code == ExitCode.OK
    assert "fails its checksum" in ran.stdout
    with memcore.open(store):
        ran = run("restore", store, "--store", store, "--replace", "--yes")
        assert ran.exit_code == ExitCode.USAGE


def test_copy_compact(store) -> None:
    told = parsed("copy-compact", "--store", store, "--dry-run")
    assert told["dry_run"]
    assert told["bytes_before"] == store.stat().st_size
    found = parsed("copy-compact", "--store", store)
    assert found["bytes_after"] <= told["bytes_after"] <= told["bytes_before"]
    assert found["bytes_after"] == store.stat().st_size < found["bytes_before"] / 2
    assert found["durability"] == "full"
    ran = run("copy-compact", "--store", store, "--durability", "none")
    assert ran.exit_code == ExitCode.USAGE
    mode = parsed("copy-compact", "--store", store, "--durability", "none", "--allow-unsafe")
    assert mode["durability"] == "none"
    text = run("copy-compact", "--store", store, "--durability", "relaxed", "--no-verify").stdout
    assert "durability relaxed" in text
    assert run("copy-compact", "--store", store.with_name("no")).exit_code == ExitCode.NOT_FOUND


def test_salvage(store, tmp_path) -> None:
    sound = parsed("salvage", store, "--to", tmp_path / "same")
    assert (sound["items"], sound["items_lost"], sound["share"]) == (5, 0, 1)
    damage(store)
    found = parsed("salvage", store, "--to", tmp_path / "new", code=ExitCode.FINDINGS)
    assert (found["items"], found["items_lost"]) == (4, 1)
    assert found["damaged"][0]["lost"] == [3]
    assert parsed("check", "--store", tmp_path / "new")["ok"] is True
    ran = run("salvage", store, "--to", tmp_path / "again")
    assert ran.exit_code == ExitCode.FINDINGS
    assert "session 'chat' of user 'alice' in app 'default': 1 item lost: 3" in ran.stdout
    assert run("salvage", store, "--to", tmp_path / "new").exit_code == ExitCode.REFUSED
    assert run("salvage", tmp_path / "no", "--to", tmp_path / "x").exit_code == ExitCode.NOT_FOUND
    (tmp_path / "foreign").write_bytes(b"no store" * 9999)
    ran = run("salvage", tmp_path / "foreign", "--to", tmp_path / "x")
    assert ran.exit_code == ExitCode.CORRUPT


def test_salvage_says_what_it_cannot_know(store, tmp_path) -> None:
    raw = store.read_bytes()
    store.write_bytes(bytes(8192) + raw[8192:])
    text = run("salvage", store, "--to", tmp_path / "new").stdout
    assert "a meta page is lost" in text
    assert "the list of free pages is lost" in text
