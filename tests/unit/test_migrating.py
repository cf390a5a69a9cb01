"""Files of older formats: refused with advice, and migrated by a proven copy."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import memcore
from memcore.errors import NotFoundError, StoreAccessError, StoreFormatError, StoreLockedError
from memcore.limits import FORMAT_VERSION
from memcore.store import copy as replacing

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(params=["full", "relaxed"])
def old(request, path):
    """A file that memcore wrote before its format was frozen."""
    path.write_bytes(
        lzma.decompress((FIXTURES / f"format0-{request.param}.memcore.xz").read_bytes())
    )
    return path


def test_an_older_format_is_refused_with_advice(old):
    before = old.read_bytes()
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreFormatError, match="memcore migrate"):
            memcore.open(old, **options)
    assert old.read_bytes() == before


def test_a_migrated_file_holds_everything_in_the_same_mode(old):
    before = old.read_bytes()
    assert memcore.migrate(old, dry_run=True).version == 0
    assert old.read_bytes() == before
    done = memcore.migrate(old)
    assert (done.version_before, done.version) == (0, FORMAT_VERSION)
    assert Path(done.kept).read_bytes() == before
    with memcore.open(old) as db:
        session = db.session("chat", user="alice")
        assert [item.message["content"] for item in session.items()] == [
            f"x {n}" for n in range(30)
        ]
        assert session.state["a"] == 1
        assert db.scope(user="bob").kv("n").get("k") == 2
        session.append({"role": "user", "content": "and on"})
        assert db.check() == []
    assert memcore.migrate(old).kept is None


def test_the_old_file_may_be_given_up(old):
    assert memcore.migrate(old, keep=False).kept is None
    assert not list(old.parent.glob("*.format-0"))


def test_a_name_that_is_taken_is_not_overwritten(old):
    taken = old.with_name(old.name + ".format-0")
    taken.write_text("mine")
    with pytest.raises(StoreAccessError, match="exists"):
        memcore.migrate(old)
    assert taken.read_text() == "mine"
    assert memcore.migrate(old, dry_run=True).version == 0


def test_a_migration_that_fails_leaves_the_old_file(old, monkeypatch):
    before = old.read_bytes()

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "put_in_place", fail)
        with pytest.raises(StoreAccessError):
            memcore.migrate(old, keep=False)
    assert old.read_bytes() == before
    assert memcore.migrate(old, keep=False).version == FORMAT_VERSION


def test_a_migration_that_fails_leaves_the_old_file_one_name(old, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(replacing, "prove", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            memcore.migrate(old)
    assert old.stat().st_nlink == 1
    assert Path(memcore.migrate(old).kept).exists()


def test_a_file_that_is_open_is_not_migrated(old):
    hold = "import fcntl, os, sys\nfd = os.open(sys.argv[1], 0)\nfcntl.flock(fd, fcntl.LOCK_SH)\n"
    hold += "print('held', flush=True)\nsys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(old)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError):
            memcore.migrate(old, keep=False)
        other.communicate(timeout=60)
    assert memcore.migrate(old, dry_run=True).version == 0


def test_nothing_else_is_migrated(path, tmp_path):
    with pytest.raises(NotFoundError):
        memcore.migrate(path)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(os.urandom(9000))
    with pytest.raises(memcore.StorageError):
        memcore.migrate(foreign)
    memcore.open(path).close()
    assert memcore.migrate(path).version_before == FORMAT_VERSION


def test_the_command_line_migrates(old):
    def run(*options):
        return subprocess.run(
            [sys.executable, "-m", "memcore", "migrate", "--store", str(old), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert run().returncode == 6
    assert "format 0" in run("--dry-run").stdout
    done = run("--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert '"version": 1' in done.stdout or '"version":1' in done.stdout
