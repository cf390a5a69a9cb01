"""Private files: made whole, their owner's alone, and no link is followed."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest

import memcore
from memcore import files
from memcore.audit.anchors import AnchorFile
from memcore.codec.audit_entry import Chainer
from memcore.telemetry import AccessLog
from memcore.telemetry.record import Record

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def record():
    return Record("append", "ok", started_at=0.0, duration_seconds=0.0)


def test_a_new_file_is_its_owners_alone_and_nothing_is_left_beside_it(tmp_path):
    place = tmp_path / "a"
    files.put_private(str(place), b"x" * 70_000, new=True)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        files.put_private(str(place), b"y", new=True)
    assert place.read_bytes() == b"x" * 70_000
    files.put_private(str(place), b"z", new=False, mode=0o640)
    assert (place.read_bytes(), stat.S_IMODE(place.stat().st_mode)) == (b"z", 0o640)
    assert os.listdir(tmp_path) == ["a"]


def test_names_of_unfinished_files_cannot_be_guessed(tmp_path, monkeypatch):
    seen = []
    opened = files.open_private
    monkeypatch.setattr(files, "open_private", lambda p, f: (seen.append(p), opened(p, f))[1])
    for _ in range(2):
        files.put_private(str(tmp_path / "a"), b"x", new=False)
    assert len(set(seen)) == 2
    assert all(str(os.getpid()) not in name.removeprefix(str(tmp_path)) for name in seen)


def test_a_writing_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    place = tmp_path / "a"
    place.write_bytes(b"before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.put_private(str(place), b"after", new=False)
    assert place.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("is_member", [True, False])
def test_who_may_not_give_a_file_away_keeps_it_from_other_groups(tmp_path, monkeypatch, is_member):
    """The second account of a group changes a file of the first one."""
    place = tmp_path / "a"
    place.write_bytes(b"before")
    owner = SimpleNamespace(st_uid=12345, st_gid=54321)
    given = []

    def fchown(fd, uid, gid):
        if uid != -1 or not is_member:
            raise PermissionError(1, "Operation not permitted")
        given.append(gid)

    monkeypatch.setattr(os, "fchown", fchown)
    files.put_private(str(place), b"after", new=False, owner=owner, mode=0o660)
    assert place.read_bytes() == b"after"
    assert given == ([54321] if is_member else [])
    assert stat.S_IMODE(place.stat().st_mode) == (0o660 if is_member else 0o600)
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_killed_process_left_of_a_secret_goes_with_the_next(tmp_path):
    path = tmp_path / "agent.memcore"
    memcore.open(path).close()
    left = tmp_path / f"agent.memcore.secret.{'0' * 16}.tmp"
    left.write_bytes(b"s" * 32)
    with memcore.open(path) as db:
        known = db.receipt_key
    assert not left.exists()
    os.link(tmp_path / "agent.memcore.secret", left)  # killed behind the link
    with memcore.open(path) as db:
        assert db.receipt_key == known
        assert not left.exists()


def test_a_log_follows_the_link_that_it_was_given_and_none_that_comes_later(tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "log"
    (tmp_path / "logs").mkdir()
    link.symlink_to(tmp_path / "logs" / "access")
    log = AccessLog(link, buffer_bytes=0)
    log.tell(record())
    assert (tmp_path / "logs" / "access").read_bytes()
    victim.write_bytes(b"precious")
    (tmp_path / "logs" / "access").unlink()
    (tmp_path / "logs" / "access").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        log.tell(record())
    (tmp_path / "logs" / "access").unlink()
    log.flush()
    assert victim.read_bytes() == b"precious"
    assert len((tmp_path / "logs" / "access").read_bytes().splitlines()) == 1


def test_an_anchor_follows_no_link_that_comes_later(tmp_path):
    victim, place = tmp_path / "victim", tmp_path / "anchor"
    anchor = AnchorFile(Chainer(KEY, bytes(16)), bytes(16), str(place))
    anchor.write({(0, 0): (1, bytes(32))})
    victim.write_bytes(b"")
    place.unlink()
    place.symlink_to(victim)
    with pytest.raises(memcore.AuditError, match="symbolic links"):
        anchor.write({(0, 0): (2, bytes(32))})
    assert victim.read_bytes() == b""
