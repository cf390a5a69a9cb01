"""``memcore audit``: verify, show, anchor, cut; the key from a file or the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app

KEY = bytes(range(32))


@pytest.fixture
def run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("MEMCORE_STORE", str(path))
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def audited(path: Path) -> Path:
    with memcore.open(path, audit=memcore.Audit(key=KEY, anchor=path.parent / "anchor")) as db:
        for n in range(3):
            db.session("s", user="ann").append({"role": "user", "content": str(n)})
    return path


def test_verify_needs_a_key_and_names_what_is_wrong(run, audited, monkeypatch, tmp_path) -> None:
    assert run("audit", "verify").exit_code == 6
    key = tmp_path / "key"
    key.write_text(KEY.hex())
    ran = run("audit", "verify", "--key-file", key)
    assert (ran.exit_code, "ok: 3 chains" in ran.stdout) == (0, True)
    assert "without --anchor" in ran.stderr
    assert run("audit", "verify", "--key-file", key, "--anchor", tmp_path / "no").exit_code == 3
    monkeypatch.setenv("MEMCORE_AUDIT_KEY", KEY.hex())
    with memcore.open(audited, audit=memcore.Audit(key=KEY)) as db:
        db.engine.store.environment().audit = None
        db.session("s", user="ann").append({"role": "user", "content": "behind its back"})
    ran = run("audit", "verify", "--anchor", tmp_path / "anchor", "--json")
    assert ran.exit_code == 1
    (finding,) = json.loads(ran.stdout)["findings"]
    assert (finding["session"], finding["entry"], finding["why"]) == ("s", 4, "unaudited")
    assert "entry 4: unaudited" in run("audit", "verify").stdout
    monkeypatch.setenv("MEMCORE_AUDIT_KEY", bytes(32).hex())
    assert "is it the right one?" in run("audit", "verify").stderr


def test_show_needs_no_key(run, audited) -> None:
    assert "item 3" in run("audit", "show", "s").stdout
    found = json.loads(run("audit", "show", "--json").stdout)["entries"]
    assert [entry["row"] for entry in found[:2]] == ["audit begins", "audit covers all"]
    assert "begin" in run("audit", "show", "--user", "ann").stdout
    assert run("audit", "show", "nobody").exit_code == 3


def test_anchor_and_cut(run, audited, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MEMCORE_AUDIT_KEY", KEY.hex())
    other = tmp_path / "other"
    assert run("audit", "anchor", "--anchor", other).stdout == "anchored 3 chains\n"
    assert run("audit", "anchor", "--anchor", other, "--reset").exit_code == 6
    assert run("audit", "anchor", "--anchor", other, "--reset", "--yes").exit_code == 0
    assert run("audit", "cut", "--older-than-days", 0).exit_code == 6
    before = audited.read_bytes()
    planned = json.loads(run("audit", "cut", "--older-than-days", 0, "--dry-run", "--json").stdout)
    assert audited.read_bytes() == before
    done = json.loads(run("audit", "cut", "--older-than-days", 0, "--yes", "--json").stdout)
    assert (planned["entries"], planned["dry_run"]) == (done["entries"], True)
    assert planned["entries"] > 0
    shown = run("audit", "cut", "--older-than-days", 0, "--dry-run").stdout
    assert shown == "0 entries would be cut; nothing was written\n"
    assert json.loads(run("audit", "anchor", "--anchor", other, "--json").stdout)["chains"] == 3
    for anchor in (other, tmp_path / "anchor"):
        assert run("audit", "verify", "--anchor", anchor).exit_code == 0


def test_verbs_that_write_find_the_key(run, audited, monkeypatch) -> None:
    assert run("copy-compact").exit_code == 6
    monkeypatch.setenv("MEMCORE_AUDIT_KEY", KEY.hex())
    assert run("copy-compact").exit_code == 0
    assert run("audit", "verify").exit_code == 0
