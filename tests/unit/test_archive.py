"""Archives of what sweeps remove: written durably, read in place, erased; nothing is ever lost."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.database import archive as module
from memcore.database.archive import Archive
from memcore.errors import InvalidItemError, KeyCopyError, NotFoundError, StorageError

KEY = bytes(range(32))
LATER = 4_000_000_000.0


def _names(archive: Archive) -> list[str]:
    """Names of the objects, without the marker."""
    return sorted(name for name, _ in archive._objects.names("") if "/" in name)


def filled(db: memcore.Database, users: tuple[str, ...] = ("alice", "bob")) -> None:
    """Sessions with a state and calls, and an entry that expires, all due for removal."""
    for user in users:
        session = db.session("s/1", user=user)
        session.append({"role": "user", "content": f"hello {user}"})
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        session.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
        session.state.update({"mood": user})
        db.scope(user=user).kv("n").put("k", {"of": user}, ttl_seconds=1)
    db.retention.set([{"what": "sessions", "max_age_seconds": 1}])


@pytest.fixture(params=[None, KEY], ids=["clear", "encrypted"])
def archive(tmp_path: Path, request: pytest.FixtureRequest) -> Archive:
    return memcore.open_archive(tmp_path / "archive", key=request.param)


def test_what_is_swept_can_be_read_in_place(archive: Archive, open_db: Callable[..., Any]) -> None:
    db = open_db()
    filled(db)
    before = list(db.session("s/1", user="alice").items())
    report = db.sweep(now=LATER, archive=archive)
    assert (report.sessions, report.entries) == (2, 2)
    assert list(db.sessions()) == []

    assert [each[:4] for each in archive.sessions()] == [
        ("default", "alice", "s/1", 1), ("default", "bob", "s/1", 1)
    ]  # fmt: skip
    (listed,) = archive.sessions(user="bob")
    assert listed.bytes > 100
    with archive.open(user="alice", session="s/1") as found:
        assert [entry.user for entry in found.sessions()] == ["alice"]
        session = found.session("s/1", user="alice")
        assert list(session.items()) == before
        assert session.state.get("mood") == "alice"
        assert len(session.context().messages) == 3
        session.append({"role": "user", "content": "go on"})  # in memory only
    assert b'"of":"bob"' in b"".join(archive.lines(user="bob"))
    done = db.import_(archive.lines(user="alice"))
    assert (done.sessions, done.expired, done.failures) == (1, 1, [])
    assert list(db.session("s/1", user="alice").items()) == before


def test_items_of_several_sweeps_are_joined(
    archive: Archive, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = open_db()
    session = db.session("s", user="u")
    for number in range(30):
        session.append({"role": "user", "content": f"item {number}"})
    for keep in (20, 10):
        db.retention.set([{"what": "items", "keep_last": keep}])
        assert db.sweep(archive=archive).items == 10
    (listed,) = archive.sessions(user="u")
    assert listed.pieces == 2
    with archive.open(user="u", session="s") as found:
        texts = [item.message["content"] for item in found.session("s", user="u").items()]
    assert texts == [f"item {number}" for number in range(20)]


def test_a_long_session_is_several_objects(
    archive: Archive, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", 2_000)
    db = open_db()
    session = db.session("long", user="u")
    session.extend([{"role": "user", "content": f"{n} " + "x" * 300} for n in range(40)])
    db.retention.set([{"what": "sessions", "max_age_seconds": 1}])
    db.sweep(now=LATER, archive=archive)
    names = _names(archive)
    assert len(names) > 5
    assert [".last." in name for name in names] == [False] * (len(names) - 1) + [True]
    with archive.open(user="u", session="long") as found:
        assert len(list(found.session("long", user="u").items())) == 40
    # Without one of its parts a set does not count, whichever it is.
    for lost in (names[0], names[3], names[-1]):
        content = archive._objects.get(lost)
        archive._objects.delete(lost)
        assert archive.sessions() == []
        with pytest.raises(NotFoundError):
            archive.open(user="u")
        archive._objects.put(lost, content)
    assert len(archive.sessions()) == 1
    assert archive.erase("u") == len(names)


class Failing:
    """Objects that fail at one call."""

    def __init__(self, inner: Any, after: int) -> None:
        self.inner, self.left = inner, after

    def put(self, name: str, content: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            raise StorageError("the device is gone")
        self.inner.put(name, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _all_messages(db: memcore.Database) -> set[str]:
    return {
        str(item.message)
        for entry in db.sessions()
        for item in db.session(entry.session_id, user=entry.user).items()
    }


def test_a_failure_loses_nothing(
    tmp_path: Path, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any write that fails, everything is in the database or in the archive."""
    monkeypatch.setattr(module, "_PART_BYTES", 200)
    db = open_db()
    filled(db)
    everything = _all_messages(db)
    for after in range(40):
        whole = memcore.open_archive(tmp_path / "archive")
        failing = Archive(Failing(whole._objects, after))
        try:
            db.sweep(now=LATER, archive=failing)
        except StorageError:
            pass
        else:
            break
        with memcore.open(":memory:") as read:
            read.import_(whole.lines(), on_conflict="rename")
            assert _all_messages(read) | _all_messages(db) >= everything
        assert db.check() == []
    else:
        pytest.fail("it never came to an end")
    assert after > 3
    with whole.open() as found:
        assert _all_messages(found) == everything


def test_erasing_leaves_nothing_of_a_user(archive: Archive, open_db: Callable[..., Any]) -> None:
    db = open_db()
    filled(db, ("alice", "alice2", "bob"))
    db.sweep(now=LATER, archive=archive)
    archive._objects.put(f"{archive.place('default', 'alice', 'cut')}/half.jsonl.gz", b"x")
    assert archive.erase("alice", dry_run=True) == 3
    assert archive.erase("alice", app="other") == 0
    assert archive.erase("alice") == 3
    assert archive.erase("alice") == 0
    assert [each.user for each in archive.sessions()] == ["alice2", "bob"]
    assert list(archive.lines(user="alice")) == []
    assert not any(archive._segment("alice") + "/" in n for n, _ in archive._objects.names(""))


def test_names_of_any_kind_are_told_apart(archive: Archive) -> None:
    names = ["a", "A", "a/b", "a%2Fb", "..", ".", "~entries", "é", "\ud800", "x" * 60_000, "a b"]
    lines = [
        b'{"memcore":1,"session":%b,"app":"default","user":"u","items":0}\n' % module_json(name)
        for name in names
    ]
    for line in lines:
        assert archive.write_lines([line]) == 1
    assert sorted(each.session for each in archive.sessions()) == sorted(names)
    for name, line in zip(names, lines, strict=True):
        assert list(archive.lines(user="u", session=name)) == [line]


def module_json(text: str) -> bytes:
    """JSON of a text, with lone surrogates as escapes."""
    from memcore.exchange.lines import portable_json

    return portable_json(text)


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    memcore.open_archive(tmp_path / "deep" / "er").write_lines(
        [b'{"memcore":1,"session":"s","app":"a","user":"u"}\n']
    )
    for where, below, files in os.walk(tmp_path / "deep"):
        for name in (*below, *files):
            assert not os.stat(Path(where, name)).st_mode & 0o077


@pytest.mark.parametrize("how", ["cut", "changed", "bomb", "other", "text"])
def test_damage_is_reported_as_damage(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OBJECT_BYTES_MAX", 2**20)
    archive = memcore.open_archive(tmp_path / "a")
    archive.write_lines([b'{"memcore":1,"session":"s","app":"a","user":"u","items":0}\n'])
    (name,) = _names(archive)
    content = archive._objects.get(name)
    archive._objects.put(
        name,
        {
            "cut": content[:-9],
            "changed": content[:-4] + b"\0\0\0\0",
            "bomb": module._compressed(b"\0" * (module._OBJECT_BYTES_MAX + 1)),
            "other": zlib.compress(b"{}"),
            "text": module._compressed(b'{"neither":"title"}\n'),
        }[how],
    )
    with pytest.raises(memcore.CorruptValueError, match="damaged"):
        archive.sessions()


def test_an_encrypted_archive_is_opened_with_its_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    line = b'{"memcore":1,"session":"secret-name","app":"a","user":"u","items":0}\n'
    archive = memcore.open_archive(path, key=KEY)
    archive.write_lines([line])
    (name,) = _names(archive)
    stored = archive._objects.get(name)
    assert b"secret" not in stored and "secret" not in name and "/u/" not in name  # noqa: PT018
    with pytest.raises(memcore.KeyNeededError):
        memcore.open_archive(path).sessions()
    other = Archive(archive._objects, key=bytes(32))
    for opened, error in ((memcore.open_archive(path), memcore.KeyNeededError),
                          (other, memcore.WrongKeyError)):  # fmt: skip
        for use in (opened.sessions, lambda it=opened: it.erase("u"),
                    lambda it=opened: it.write_lines([line])):  # fmt: skip
            with pytest.raises(error):
                use()
    archive._objects.delete(module._MARKER)
    with pytest.raises(memcore.TamperedError, match="another key"):
        Archive(archive._objects, key=bytes(32)).sessions()
    moved = name.replace(name.split("/")[2], "~" + "0" * 32)  # as another session's
    archive._objects.put(moved, stored)
    with pytest.raises(memcore.TamperedError):
        archive.sessions()
    archive._objects.put(moved, module._compressed(line))
    with pytest.raises(memcore.TamperedError, match="in clear"):
        archive.sessions()
    with pytest.raises(KeyCopyError):
        pickle.dumps(archive)


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        ("http://host/x", {}, "expected a directory or a URL"),
        (3, {}, "file's path"),
        ("", {}, "file's path"),
        ("/tmp", {"region": "x"}, "region"),
        ("/tmp", {"key": b"short"}, "32 bytes or None, got 5"),
        ("/tmp", {"key": "x" * 32}, "32 bytes or None, got str"),
        (__file__, {}, "no directory"),
    ],
)
def test_what_is_no_archive_is_refused(target: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(memcore.InvalidOptionError, match=why):
        memcore.open_archive(target, **options)


def test_a_session_is_asked_for_with_its_user(tmp_path: Path) -> None:
    archive = memcore.open_archive(tmp_path / "a")
    with pytest.raises(memcore.InvalidOptionError, match="say whose"):
        list(archive.lines(session="s"))
    with pytest.raises(NotFoundError, match="does not hold session 's'"):
        archive.open(session="s", user="u")


def test_foreign_files_are_left_alone(tmp_path: Path, open_db: Callable[..., Any]) -> None:
    archive = memcore.open_archive(tmp_path / "a")
    db = open_db()
    filled(db)
    db.sweep(now=LATER, archive=archive)
    Path(tmp_path, "a", "notes.txt").write_text("mine")
    Path(tmp_path, "a", "default", "alice", "notes.txt").write_text("mine")
    os.symlink("/etc/passwd", tmp_path / "a" / "default" / "link")
    assert len(archive.sessions()) == 2
    assert archive.erase("bob") == 2
    assert Path(tmp_path, "a", "notes.txt").read_text() == "mine"


def test_a_line_too_large_to_be_read_is_not_written(
    archive: Archive, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it is about would be deleted, and nobody could read it again."""
    monkeypatch.setattr(module, "_OBJECT_BYTES_MAX", 20_000)
    monkeypatch.setattr(module, "_PART_BYTES", 10_000)
    db = open_db()
    notes = db.scope(user="u").kv("n")
    for number in range(20):
        notes.put(str(number), {"x": "y" * 3_000}, ttl_seconds=1)
    assert db.sweep(now=LATER, archive=archive).entries == 20
    assert sum(1 for _ in archive.lines(user="u")) == 20
    db.session("s", user="u").append({"role": "user", "content": "x" * 30_000})
    db.retention.set([{"what": "sessions", "max_age_seconds": 1}])
    with pytest.raises(StorageError, match="too large for an archive"):
        db.sweep(now=LATER, archive=archive)
    assert len(db.session("s", user="u")) == 1


def test_parts_are_in_order_whatever_the_clocks_said(
    archive: Archive, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([3_000_000, 2_000_000, 1_000_000])
    monkeypatch.setattr(module, "clock_us", lambda: next(times))
    db = open_db()
    session = db.session("s", user="u")
    for number in range(30):
        session.append({"role": "user", "content": f"item {number}"})
    for keep in (20, 10, 0):
        db.retention.set([{"what": "items", "keep_last": keep}])
        db.sweep(archive=archive)
    with archive.open(user="u") as found:
        (entry,) = found.sessions()
        texts = [item.message["content"] for item in found.session("s", user="u").items()]
    assert (entry.session_id, texts) == ("s", [f"item {number}" for number in range(30)])


def test_a_session_that_stayed_is_archived_once(
    archive: Archive, open_db: Callable[..., Any]
) -> None:
    db = open_db()
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "one"})
    for text in ("two", "three"):
        lines = list(db.export(user="u"))
        archive.write_lines(lines)
        session.append({"role": "user", "content": text})
    archive.write_lines(list(db.export(user="u")))
    (listed,) = archive.sessions()
    assert listed.pieces == 1
    with archive.open(user="u") as found:
        (entry,) = found.sessions()
        assert (entry.session_id, entry.items) == ("s", 3)


def test_an_object_in_the_place_of_another_session_is_damage(tmp_path: Path) -> None:
    archive = memcore.open_archive(tmp_path / "a")
    archive.write_lines([b'{"memcore":1,"session":"s","app":"a","user":"bob","items":0}\n'])
    (name,) = _names(archive)
    archive._objects.put(name.replace("/bob/", "/alice/"), archive._objects.get(name))
    with pytest.raises(memcore.CorruptValueError):
        archive.sessions(user="alice")
    with pytest.raises(memcore.CorruptValueError):
        list(archive.lines(user="alice"))


def test_what_cannot_be_listed_is_an_error(
    tmp_path: Path, open_db: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = memcore.open_archive(tmp_path / "a")
    db = open_db()
    filled(db)
    db.sweep(now=LATER, archive=archive)

    def refuse(path: Any = ".") -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    for use in (archive.sessions, lambda: archive.erase("alice")):
        with pytest.raises(StorageError, match="Permission denied"):
            use()


def test_a_directory_that_an_erasure_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = memcore.open_archive(tmp_path / "a")
    plain, left = module.put_private, [3]

    def put(path: str, content: bytes, **options: Any) -> None:
        if left[0] and "/" in os.path.relpath(path, tmp_path / "a"):
            left[0] -= 1
            os.rmdir(os.path.dirname(path))
        plain(path, content, **options)

    monkeypatch.setattr(module, "put_private", put)
    archive.write_lines([b'{"memcore":1,"session":"s","app":"a","user":"u","items":0}\n'])
    assert len(archive.sessions()) == 1


# --- the command line -----------------------------------------------------------------------------


def _run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(app, arguments, **options)


def test_the_verb_lists_writes_and_erases(tmp_path: Path) -> None:
    store, place = str(tmp_path / "a.memcore"), tmp_path / "archive"
    with memcore.open(store) as db:
        filled(db)
        db.retention.set([{"what": "sessions", "max_age_seconds": 0.001}])
    place.mkdir()
    swept = _run("sweep", "--store", store, "--archive", str(place), "--yes")
    assert swept.exit_code == 0, swept.output
    listed = _run("archive", str(place), "--json")
    assert '"user": "alice"' in listed.stdout
    assert "s/1" in _run("archive", str(place), "--user", "bob").stdout
    out = tmp_path / "lines.jsonl"
    written = _run("archive", str(place), "--user", "bob", "--session", "s/1", "--to", str(out))
    assert written.exit_code == 0, written.output
    brought = _run("import", "--store", str(tmp_path / "b.memcore"), str(out))
    assert brought.exit_code == 0, brought.output
    with memcore.open(tmp_path / "b.memcore") as db:
        assert [each.user for each in db.sessions()] == ["bob"]

    assert _run("archive", str(place), "--erase", "--yes").exit_code == 2
    assert _run("archive", str(place), "--erase", "--user", "bob").exit_code != 0
    assert "would be" in _run("archive", str(place), "--erase", "--user", "bob", "--dry-run").stdout
    assert "deleted" in _run("archive", str(place), "--erase", "--user", "bob", "--yes").stdout
    assert "bob" not in _run("archive", str(place)).stdout
    assert _run("archive", str(place), "--yes").exit_code == 2
    assert "no such directory" in _run("archive", str(tmp_path / "none")).output
    key = {"MEMCORE_ARCHIVE_KEY": "zz"}
    assert "64 hexadecimal" in _run("archive", str(place), env=key).output


# --- object storage -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[dict[str, Any]]:
    """A server that speaks S3, and how to reach its bucket."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if "Running on" in line:
                break
        signed = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, Signature=x"
        made = urllib.request.Request(
            f"http://127.0.0.1:{port}/bucket", method="PUT", headers={"Authorization": signed}
        )
        urllib.request.urlopen(made).close()
        yield {
            "endpoint": f"http://127.0.0.1:{port}", "access_key_id": "k", "region": "us-east-1",
            "secret_access_key": "s", "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 1},
        }  # fmt: skip
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.mark.parametrize("key", [None, KEY], ids=["clear", "encrypted"])
def test_it_lies_in_a_bucket(
    service: dict[str, Any], open_db: Callable[..., Any], key: bytes | None
) -> None:
    archive = memcore.open_archive(f"s3://bucket/agents-{key is None}", key=key, **service)
    beside = memcore.open_archive(f"s3://bucket/agents-{key is None}-2", **service)
    db = open_db()
    filled(db)
    assert db.sweep(now=LATER, archive=archive).sessions == 2
    assert [each.user for each in archive.sessions()] == ["alice", "bob"]
    assert beside.sessions() == []
    with archive.open(user="alice", session="s/1") as found:
        assert found.session("s/1", user="alice").state.get("mood") == "alice"
    assert archive.erase("alice") == 2
    assert [each.user for each in archive.sessions()] == ["bob"]


def test_errors_of_the_service_are_typed(
    service: dict[str, Any], open_db: Callable[..., Any]
) -> None:
    db = open_db()
    filled(db)
    missing = memcore.open_archive("s3://nobody/x", **service)
    with pytest.raises(StorageError, match="cannot be used") as told:
        db.sweep(now=LATER, archive=missing)
    assert "\n" not in str(told.value)
    assert len(list(db.sessions())) == 2
    with pytest.raises(memcore.InvalidOptionError, match="regio"):
        memcore.open_archive("s3://bucket/x", regio="x")
    with pytest.raises(memcore.InvalidOptionError, match="cannot be used"):
        memcore.open_archive("s3://")


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"memcore-db\[s3\]"):
        memcore.open_archive("s3://bucket/x")


@pytest.mark.parametrize(
    "lines",
    [
        [b'{"expired":{"app":"a","user":"u"}}'],
        [b'{"seq":1,"kind":"user"}\n'],
        [b'{"expired":{"app":"a"}}\n'],
        [b'{"expired":7}\n'],
        [b'{"memcore":1,"app":"a","user":"u"}\n'],
        [b'{"memcore":\n'],
    ],
    ids=["cut short", "no title", "no user", "no entry", "no session", "no JSON"],
)
def test_what_is_no_line_of_an_export_is_refused(archive: Archive, lines: list[bytes]) -> None:
    with pytest.raises(InvalidItemError):
        archive.write_lines(lines)
    assert archive.sessions() == []
    assert list(archive.lines()) == []
