"""Reproductions: small, legal, redacted, the same each time."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli import bundle
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.retention.rules import archive_to
from messages import assistant, call, result, system, turns, user

SECRETS = (
    "13812345678",
    "bob@example.com",
    "alice.cooper",
    "case-4711",
    "/home/alice",
    "Zürich AG",
)
TEXT = "call 13812345678 or bob@example.com for alice.cooper in case-4711, see /home/alice/x.py"


def failing(session: memcore.Session) -> None:
    session.append(system())
    session.extend(turns(30))
    session.append(user(TEXT), envelope={"author": "alice.cooper", "owner": "Zürich AG"})
    calls = call("c1", "c2")
    arguments = json.dumps({"to": "bob@example.com", "file": "/home/alice/notes.txt"})
    calls["tool_calls"][0]["function"]["arguments"] = arguments
    session.append(calls)
    session.append(result("c1", TEXT), envelope={"tool": "mail", "status": "error"})
    session.append(result("c2"))
    session.extend(turns(30))


@pytest.fixture
def failed(db: memcore.Database) -> memcore.Session:
    session = db.session("case-4711", user="alice.cooper", app="Zürich AG")
    failing(session)
    return session


def test_it_is_a_legal_slice_around_the_failure(failed: memcore.Session) -> None:
    found = json.loads(failed.bundle())
    shown = [entry["item"] for entry in found["slice"]]
    assert [entry["seq"] for entry in found["slice"]] == [62, 63, 64, 65]
    assert found["slice"][found["failed"]]["envelope"] == {"status": "error", "tool": "mail"}
    assert memcore.validate(shown) == []
    assert [c["id"] for c in shown[1]["tool_calls"]] == ["c1", "c2"]
    assert "[EMAIL_" in json.loads(shown[1]["tool_calls"][0]["function"]["arguments"])["to"]
    assert found["session"]["policy"] == "openai_chat"
    assert found["session"]["counter"] == "bytes/4"
    assert found["versions"]["memcore"] == memcore.__version__
    assert found["types"][-1] == "final"


def test_it_names_nobody_and_is_the_same_each_time(failed: memcore.Session) -> None:
    for seq in (None, 1, 62, 64, 124):
        found = failed.bundle(seq)
        assert found == failed.bundle(seq)
        text = json.dumps(json.loads(found), ensure_ascii=False)
        assert [secret for secret in SECRETS if secret in text] == []


def test_it_keeps_within_its_size(session: memcore.Session) -> None:
    session.append(user("x" * 100_000))
    session.append(call(*(f"c{n}" for n in range(20))))
    session.extend(result(f"c{n}", "y" * 5000) for n in range(20))
    for most in (2048, 8000, 64_000):
        found = session.bundle(most_bytes=most)
        assert len(found) <= most
        assert json.loads(found)["bundle"] == 1
    assert len(json.loads(session.bundle(most_bytes=64_000))["slice"]) == 22
    hostile = session.fork("hostile", at=0)
    hostile.append({"role": "user", "name": "ann", "content": [{"k" * 5000: "v"}, "é", {}]})
    hostile.append({"role": "user", "content": "data:image/png;base64," + "A" * 9000})
    for _ in range(70):
        hostile.record("é" * 900, {"a": 1})
    for most in (2048, 64_000):
        assert len(hostile.bundle(1, most_bytes=most)) <= most
        assert len(hostile.bundle(most_bytes=most)) <= most
    assert b"AAAA" not in hostile.bundle(2)
    assert b'"ann"' not in hostile.bundle(1)


def test_a_large_tool_group_is_not_split(session: memcore.Session) -> None:
    session.extend(turns(1))
    for number in range(40):
        session.append(call(f"c{number}"))
        session.append(result(f"c{number}"))
    session.append(call("bad"))
    session.append(result("bad"), envelope={"status": "failed"})
    found = json.loads(session.bundle())
    assert [entry["seq"] for entry in found["slice"]] == [83, 84]


def test_odd_questions(session: memcore.Session) -> None:
    with pytest.raises(memcore.NotFoundError):
        session.bundle()
    session.append(assistant())
    for wrong in ({"seq": 0}, {"seq": "1"}, {"most_bytes": 100}):
        with pytest.raises(memcore.InvalidOptionError):
            session.bundle(**wrong)
    with pytest.raises(memcore.NotFoundError):
        session.bundle(9)
    session.undo()
    assert json.loads(session.bundle())["slice"] == []


def test_the_command_line(path: Path, tmp_path: Path) -> None:
    with memcore.open(path, counter="bytes/4") as db:
        failing(db.session("case-4711", user="alice.cooper", app="Zürich AG"))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["bundle", *arguments, "--store", str(path)])

    printed = run("case-4711")
    assert printed.exit_code == 0
    found = json.loads(printed.stdout)
    assert len(found["slice"]) == 4
    assert json.loads(run("case-4711", "--json").stdout)["bundle"] == found
    out = tmp_path / "bundle.json"
    assert run("case-4711", "--seq", "2", "--bytes", "4096", "--out", str(out)).exit_code == 0
    assert json.loads(out.read_bytes())["slice"][0]["seq"] == 2
    assert str(tmp_path) not in out.read_text()
    assert run("case-4711", "--out", str(out)).exit_code == 6  # what is there stays
    assert run("nobody").exit_code == 3


def test_bundles_and_archives_are_their_owners_alone(tmp_path: Path) -> None:
    store, bundle, archive = tmp_path / "a.memcore", tmp_path / "bundle", tmp_path / "archive"
    elsewhere = tmp_path / "elsewhere"
    before = os.umask(0)
    try:
        with memcore.open(store) as db:
            db.session("s").extend([{"role": "user", "content": str(n)} for n in range(5)])
            db.retention.set([{"what": "items", "keep_last": 2}])
            db.sweep(archive=archive)
            (tmp_path / "link").symlink_to(elsewhere)
            with pytest.raises(memcore.InvalidOptionError, match="no regular file"):
                archive_to(tmp_path / "link", is_own=lambda _: False)([b"line\n"])
        command = ["bundle", "s", "--seq", "5", "--store", str(store), "--out", str(bundle)]
        assert CliRunner().invoke(app, command).exit_code == 0
    finally:
        os.umask(before)
    assert archive.stat().st_mode & 0o777 == 0o600
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert not elsewhere.exists()


def test_a_bundle_has_its_name_when_its_bytes_are_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = tmp_path / "agent.memcore", tmp_path / "out.json"
    with memcore.open(store) as db:
        db.session("chat").append({"role": "user", "content": "hi"})
    synced: list[int] = []
    sync, publish = os.fsync, bundle.publish

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        sync(fd)

    def published(temporary: str, final: str) -> None:
        assert os.stat(temporary).st_ino in synced
        publish(temporary, final)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(bundle, "publish", published)
    command = ["bundle", "chat", "--store", str(store), "--out", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert json.loads(out.read_bytes())


def test_a_bundle_that_cannot_be_written_whole_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = tmp_path / "agent.memcore", tmp_path / "out.json"
    with memcore.open(store) as db:
        db.session("chat").append({"role": "user", "content": "hi"})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

    before = sorted(os.listdir(tmp_path))
    command = ["bundle", "chat", "--store", str(store), "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "publish", full)
        assert CliRunner().invoke(app, command).exit_code != 0
    assert sorted(os.listdir(tmp_path)) == before
    assert CliRunner().invoke(app, command).exit_code == 0
    written = out.read_bytes()
    assert out.stat().st_mode & 0o777 == 0o600
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == ExitCode.REFUSED
    assert "exists" in refused.stderr
    assert out.read_bytes() == written
