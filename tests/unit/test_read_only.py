"""Read-only data: files, directories and mounts that nothing can be written to, by real users."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import memcore
from memcore.store import open_store

NOBODY: Final = 65534
OTHER: Final = 65533

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="memcore-read-only-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


def as_user(uid: int, fn: Callable[[], Any]) -> Any:
    """What ``fn`` returns, or the error that it raises, in a process of another user."""
    source, sink = os.pipe()
    pid = os.fork()
    if not pid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        try:
            found: Any = fn()
        except Exception as error:  # noqa: BLE001 - handed to the parent
            found = error
        with open(sink, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(sink)
    with open(source, "rb") as file:
        sent = file.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"ended by {status}"
    return pickle.loads(sent)


def made(path: Path, *, owner: int = 0, mode: int = 0o444, **options: Any) -> None:
    """A database without a lock file beside it."""
    with memcore.open(path, **options) as db:
        db.session("s").append({"role": "user", "content": "Hi."})
    os.chown(path, owner, owner)
    path.chmod(mode)
    Path(f"{path}-lock").unlink()
    assert seen(path) == ["Hi."]  # and everything is imported
    Path(f"{path}-lock").unlink(missing_ok=True)


def seen(path: Path) -> list[str]:
    with memcore.open(path, read_only=True) as db:
        assert db.check() == []
        assert b"".join(db.export())
        db.stats()
        return [item.message["content"] for item in db.session("s").items()]


def appended(path: Path) -> int:
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "More."})
        return len(db.session("s"))


def files(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@needs_root
@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_file_that_may_only_be_read_leaves_no_lock_file(place, durability) -> None:
    path = place / "a.memcore"
    made(path, mode=0o444, durability=durability)
    place.chmod(0o777)
    assert as_user(NOBODY, lambda: seen(path)) == ["Hi."]
    assert files(place) == ["a.memcore"]
    made(place / "own.memcore", owner=NOBODY, mode=0o444, durability=durability)
    assert as_user(NOBODY, lambda: seen(place / "own.memcore")) == ["Hi."]
    assert files(place) == ["a.memcore", "own.memcore"]


@needs_root
def test_a_directory_that_may_only_be_read(place) -> None:
    path = place / "a.memcore"
    made(path, owner=NOBODY, mode=0o600)
    place.chmod(0o555)
    assert as_user(NOBODY, lambda: seen(path)) == ["Hi."]
    assert files(place) == ["a.memcore"]
    refused = as_user(NOBODY, lambda: appended(path))
    assert isinstance(refused, memcore.StoreAccessError)
    assert "read_only=True" in str(refused)


@needs_root
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_a_mount_that_may_only_be_read(place, kind) -> None:
    point = place / "mount"
    point.mkdir()
    source = place / "source"
    source.mkdir()
    path = source / "a.memcore"
    made(path, mode=0o644)
    if kind == "bind":
        commands = [["mount", "--bind", source, point], ["mount", "-o", "remount,ro,bind", point]]
    else:
        commands = [["mount", "-t", "tmpfs", "tmpfs", point], ["cp", path, point],
                    ["mount", "-o", "remount,ro", point]]  # fmt: skip
    mounted = False
    try:
        for command in commands:
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("may not mount here")
            mounted = True
        assert seen(point / "a.memcore") == ["Hi."]
        assert as_user(NOBODY, lambda: seen(point / "a.memcore")) == ["Hi."]
        assert files(point) == ["a.memcore"]
        with pytest.raises(memcore.StoreAccessError, match="read_only=True"):
            appended(point / "a.memcore")
    finally:
        if mounted:
            subprocess.run(["umount", point], check=True)


@needs_root
def test_who_looks_does_not_lock_the_owner_out(place) -> None:
    path = place / "a.memcore"
    made(path, owner=NOBODY, mode=0o600)
    os.chown(place, NOBODY, NOBODY)
    assert seen(path) == ["Hi."]  # by root, who makes the lock file
    assert as_user(NOBODY, lambda: appended(path)) == 2
    Path(f"{path}-lock").unlink()
    assert appended(path) == 3  # by root, for writing
    assert as_user(NOBODY, lambda: appended(path)) == 4
    path.chmod(0o644)
    place.chmod(0o777)
    Path(f"{path}-lock").unlink()
    assert len(as_user(OTHER, lambda: seen(path))) == 4  # who may read it and make files beside it
    assert as_user(NOBODY, lambda: appended(path)) == 5


@needs_root
def test_a_lock_file_that_is_another_users_is_mended_by_root_and_named_to_others(place) -> None:
    path = place / "a.memcore"
    made(path, owner=NOBODY, mode=0o600)
    os.chown(place, NOBODY, NOBODY)
    lock = Path(f"{path}-lock")
    lock.touch(0o600)  # as an older memcore left it
    refused = as_user(NOBODY, lambda: appended(path))
    assert isinstance(refused, memcore.StoreAccessError)
    assert "lock file" in str(refused)
    assert as_user(NOBODY, lambda: seen(path)) == ["Hi."]  # to look it is not needed
    assert seen(path) == ["Hi."]
    assert as_user(NOBODY, lambda: appended(path)) == 2


@needs_root
@pytest.mark.parametrize("plant", ["link", "name"])
def test_no_planted_lock_file_gives_another_file_away(place, plant) -> None:
    path, treasure = place / "a.memcore", place / "treasure"
    made(path, owner=NOBODY, mode=0o600)
    treasure.write_bytes(b"")
    treasure.chmod(0o600)
    lock = Path(f"{path}-lock")
    if plant == "link":
        lock.symlink_to(treasure)
    else:
        lock.hardlink_to(treasure)
    with memcore.open(path, read_only=True):
        pass
    assert treasure.stat().st_uid == 0


@needs_root
def test_without_a_lock_a_file_that_somebody_has_open_is_refused(place) -> None:
    path = place / "a.memcore"
    made(path, mode=0o644)
    code = (
        "import memcore, sys\nwith memcore.open(sys.argv[1]):\n    print(flush=True)\n    input()"
    )
    command = [sys.executable, "-c", code, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        refused = as_user(NOBODY, lambda: seen(path))
        other.communicate(b"\n")
    assert isinstance(refused, memcore.StoreLockedError)
    assert "lock file" in str(refused)
    assert as_user(NOBODY, lambda: seen(path)) == ["Hi."]


@needs_root
def test_what_is_changed_while_it_is_read_without_a_lock_is_an_error(place) -> None:
    """Who comes meanwhile and commits as often as it takes to use pages of the snapshot again."""
    path = place / "a.memcore"
    made(path, mode=0o644)
    ready, done = os.pipe(), os.pipe()

    def look() -> list[str]:
        store = open_store(path, read_only=True)

        def slowly(txn: Any) -> str:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            return "wrong" if txn.get(b"") is None else ""

        told = []
        for work in (slowly, lambda _: "right"):
            try:
                told.append(store.read(work))
            except memcore.StoreAccessError as error:
                told.append(str(error))
        store.close()
        return told

    def write() -> None:
        os.read(ready[0], 1)
        for _ in range(5):
            appended(path)
        os.write(done[1], b"x")

    pid = os.fork()
    if not pid:
        try:
            write()
        finally:
            os._exit(0)
    told = as_user(NOBODY, look)
    os.write(ready[1], b"x")  # should it have failed before it looked
    os.waitpid(pid, 0)
    for fd in (*ready, *done):
        os.close(fd)
    assert "was changed" in told[0]
    assert told[1] == "right"


@needs_root
def test_a_handle_without_a_lock_takes_one_when_it_may_write(place) -> None:
    path = place / "a.memcore"
    made(path, mode=0o444)
    with memcore.open(path, read_only=True) as looking:
        assert files(place) == ["a.memcore"]
        path.chmod(0o644)
        with memcore.open(path) as db:
            assert files(place) == ["a.memcore", "a.memcore-lock"]
            db.session("s").append({"role": "user", "content": "More."})
            assert len(looking.session("s")) == 2
