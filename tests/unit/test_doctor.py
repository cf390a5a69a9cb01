"""The doctor's look at a file, and the plan of what to do about findings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.codec.keys import Kind, Row
from memcore.maintenance import doctor
from memcore.maintenance.check import Damage, RepairPlan, damage_of, plan_repairs
from memcore.maintenance.doctor import examine
from memcore.store.datafile import Mount
from memcore.store.lmdb import ReaderSlot, holders_of, readers_of

ROOT = Path(__file__).parents[2]
USER = {"role": "user", "content": "Hi."}
DEAD = 2**22 + 1  # above the largest process number of Linux

HOLD = """
import sys, memcore
db = memcore.open(sys.argv[1])
def wait(txn):
    txn.get(b"x")
    print("here", flush=True)
    sys.stdin.readline()
db.engine.store.read(wait)
"""


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"MEMCORE_STORE": None})


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch) -> None:
    """Memory and a container's layer, where tests may lay their files, have advice of their own."""
    monkeypatch.setattr(doctor, "mount_of", lambda _: Mount("ext4", "/", "/dev/a", "rw"))


@pytest.fixture
def store(path: Path) -> Path:
    with memcore.open(path) as db:
        db.session("chat").extend([USER] * 10)
    return path


def test_a_sound_file(store) -> None:
    before = store.read_bytes()
    found = examine(store)
    assert (found.error, found.advice) == (None, ())
    assert list(found.facts) == ["file", "pages", "use", "place", "store", "versions"]
    assert found.facts["file"]["bytes"] == len(before)
    assert found.facts["file"]["mode"] == "0600"
    assert found.facts["store"]["durability"] == "full"
    assert found.facts["store"]["needs_recovery"] is False
    assert found.facts["versions"]["LMDB"].startswith("0.9.")
    assert store.read_bytes() == before


def test_the_command(store) -> None:
    ran = run("doctor", "--store", store)
    assert ran.exit_code == 0
    assert ran.stdout.endswith("nothing needs to be done\n")
    found = json.loads(run("doctor", "--store", store, "--json").stdout)
    assert (found["command"], found["advice"], found["error"]) == ("doctor", [], None)
    assert found["path"] == str(store)
    assert found["versions"]["memcore"] == memcore.__version__
    assert run("doctor", "--store", store.parent / "none").exit_code == ExitCode.NOT_FOUND
    assert run("doctor", "--store", ":memory:").exit_code == ExitCode.USAGE


def test_facts_have_the_units_of_people(store) -> None:
    told = run("doctor", "--store", store).stdout
    created = datetime.fromtimestamp(examine(store).facts["store"]["created_ms"] / 1000, UTC)
    assert f"store: created         {created:%Y-%m-%d %H:%M:%SZ}\n" in told
    assert re.search(r"pages: free share      \d+\.\d%\n", told)
    assert re.search(r"store: map bytes       [\d,]+ \([\d,.]+ GiB\)\n", told)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
def test_who_has_it_open(store) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        assert holders_of(str(store)) == [child.pid]
        readers = readers_of(str(store))
        assert readers is not None
        held = [reader for reader in readers if reader.txnid is not None]
        assert [(reader.pid, reader.is_alive) for reader in held] == [(child.pid, True)]
        use = examine(store).facts["use"]
        assert (use["processes"], use["oldest_reader"]) == ([child.pid], child.pid)
        child.kill()
        child.wait()
        readers = readers_of(str(store))
        assert readers is not None
        assert {reader.pid for reader in readers} == {child.pid}
        assert not any(reader.is_alive for reader in readers)
        found = examine(store)
        assert found.facts["use"]["dead_readers"] == [child.pid] * len(readers)
        (advice,) = found.advice
        assert advice.startswith(f"dead processes ({child.pid}")
        assert advice.endswith("left reader slots: opening the store clears them")
        assert examine(store).advice == ()
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("is_listed", [True, False])
def test_the_own_process_keeps_its_locks(open_db, path, monkeypatch, is_listed) -> None:
    """Closing any descriptor of the lock file would drop them.

    On btrfs and overlay, stat and /proc/locks number devices in different ways.
    """
    db = open_db()
    db.session("s").append(USER)
    locks = Path("/proc/locks")
    if holders_of(str(path)) != [os.getpid()]:
        pytest.skip("no /proc/locks")

    def ours() -> list[str]:
        inode = f":{path.with_name(path.name + '-lock').stat().st_ino} "
        return [line[line.index(":") :] for line in locks.read_text().splitlines() if inode in line]

    before = ours()
    assert before
    if not is_listed:
        monkeypatch.setattr("memcore.maintenance.doctor.holders_of", lambda _: [])
    found = examine(path)
    assert found.facts["use"]["processes"] == []
    assert ours() == before


def test_no_lock_file_and_odd_ones(store) -> None:
    lock = store.with_name(f"{store.name}-lock")
    for content in (b"", b"x" * 8192, lock.read_bytes()[:130]):
        lock.write_bytes(content)
        assert not readers_of(str(store))
    lock.unlink()
    assert readers_of(str(store)) is None
    os.mkfifo(lock)  # nobody waits for a writer
    assert readers_of(str(store)) is None
    lock.unlink()
    assert examine(store).facts["use"]["lock_file"] is False


def damaged(store: Path, how: str) -> None:
    content = bytearray(store.read_bytes())
    if how == "truncated":
        del content[5 * 4096 :]
    elif how == "metas":
        content[16:20] = content[4096 + 16 : 4096 + 20] = b"junk"
    elif how == "empty":
        content.clear()
    store.write_bytes(content)


@pytest.mark.parametrize("how", ["truncated", "metas", "empty"])
def test_a_damaged_file(store, how) -> None:
    damaged(store, how)
    found = examine(store)
    assert isinstance(found.error, memcore.StorageError)
    assert "store" not in found.facts
    assert {"file", "use", "place", "versions"} <= set(found.facts)
    ran = run("doctor", "--store", store)
    assert ran.exit_code == ExitCode.CORRUPT
    assert "file: bytes" in ran.stdout
    assert str(found.error) in ran.stderr
    if how == "truncated":
        assert any("memcore salvage" in line for line in found.advice)
        assert any("memcore restore" in line for line in found.advice)
    store.unlink()


def test_what_is_no_file(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in (".", "fifo"):
        (tmp_path / name).chmod(0o755)
        found = examine(tmp_path / name)
        assert isinstance(found.error, memcore.StoreFormatError)
        assert not any("chmod" in line for line in found.advice)  # what is no store is left alone
    with pytest.raises(FileNotFoundError):
        examine(tmp_path / "none")


def test_free_pages_are_worth_a_compaction(store, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MAX", 1024**2)
    with memcore.open(store) as db:
        session = db.session("large")
        session.extend([{"role": "user", "content": "x" * 20_000} for _ in range(300)])
        db.delete_session("large")
    (advice,) = examine(store).advice
    assert "memcore copy-compact --store" in advice


def test_leftovers_of_the_dead_and_of_the_living(store) -> None:
    dead = store.with_name(f"{store.name}.new-{DEAD}-00ff00ff")
    for name in (dead, store.with_name(f"{store.name}.new-{os.getppid()}-00ff00ff")):
        name.touch()
    found = examine(store)
    assert found.facts["file"]["leftovers"] == [str(dead)]
    assert found.advice == (f"a killed process left unfinished files: rm -- {dead}",)


def test_permissions(store) -> None:
    store.chmod(0o644)
    assert examine(store).advice[0].endswith(f"chmod 600 {store}")
    store.chmod(0o600)


@pytest.mark.parametrize(
    ("mount", "advice"),
    [
        (Mount("nfs4", "/net", "h:/a", "rw"), "nfs4, where locks"),
        (Mount("tmpfs", "/tmp", "tmpfs", "rw"), "when the machine restarts"),
        (Mount("overlay", "/", "overlay", "rw"), "use a volume"),
        (Mount("ext4", "/", "/dev/a", "rw,relatime,nobarrier"), "flushes do not reach"),
    ],
)
def test_the_place(store, monkeypatch, mount, advice) -> None:
    monkeypatch.setattr(doctor, "mount_of", lambda _: mount)
    (line,) = examine(store).advice
    assert advice in line


def test_little_room(store, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "ROOM_BYTES_MIN", 2**62)
    (line,) = examine(store).advice
    assert "writes will fail soon" in line


def test_an_old_snapshot(store, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "readers_of", lambda _: [ReaderSlot(7, 1, is_alive=True)])
    monkeypatch.setattr(doctor, "LAG_MAX", 0)
    (line,) = examine(store).advice
    assert line.startswith("process 7 reads a snapshot that is ")


def test_a_file_that_may_be_lost(open_db, path) -> None:
    open_db(durability="none")
    assert "durability is 'none'" in examine(path).advice[0]


def test_a_file_that_is_held(store, monkeypatch) -> None:
    import fcntl

    from memcore.store import datafile

    monkeypatch.setattr(datafile, "_LOCK_PATIENCE_SECONDS", 0.1)
    with store.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = examine(store)
        assert isinstance(found.error, memcore.StoreLockedError)
        assert found.advice[0].startswith("wait for the process that holds the file")


# --- the plan of what to do -----------------------------------------------------------------------


def spoil(db: memcore.Database, chosen: Any) -> int:
    """Damage the rows whose key is chosen, as a device does; how many there were."""

    def work(txn: Any) -> int:
        rows = [row for row in txn.scan(b"\x01", b"\xff") if chosen(row[0])]
        for key, value in rows:
            txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)) if value else b"x")
        return len(rows)

    return db.engine.store.transact(work)


def session_row(row: int) -> Any:
    return lambda key: key[0] == Kind.SESSION and key[17] == row


SPOILT: list[tuple[Any, set[str]]] = [
    (session_row(Row.HEAD), {"HEAD"}),
    (session_row(Row.INDEX), {"INDEX"}),
    (session_row(Row.ITEM), {"ITEM"}),
    (session_row(Row.VIEW), {"VIEW"}),
    (session_row(Row.SEGMENTS), {"HEAD"}),
    (session_row(Row.CHILD), {"RELATION"}),
    (session_row(Row.REQUEST), {"REQUEST"}),
    (session_row(Row.TOKENS), {"TOKENS"}),
    (session_row(Row.USAGE), {"USAGE"}),
    (lambda key: key[0] == Kind.COUNTER, {"MARK"}),
    (lambda key: key[0] in (Kind.SCOPE, Kind.SCOPE_NAME, Kind.SESSION_NAME), {"NAME"}),
    (lambda key: key[0] in (Kind.BLOB, Kind.BLOB_CHUNK), {"BLOB"}),
    (lambda key: key[0] in (Kind.BLOB_REFS, Kind.BLOB_ADDRESS), {"REFERENCE"}),
    (lambda key: key[0] in (Kind.KV_NAMESPACE, Kind.KV), {"KEY_VALUE"}),
    (session_row(Row.STATE), {"STATE"}),
    (session_row(Row.MOMENT), {"STATE"}),
    (lambda key: key[0] == Kind.STATE, {"STATE"}),
]


@pytest.mark.parametrize(("chosen", "damages"), SPOILT)
def test_every_sort_of_row_has_its_repair(tmp_path, chosen, damages) -> None:
    path = tmp_path / "spoilt.memcore"
    with memcore.open(path) as db:
        session = db.session("s")
        session.append({"role": "user", "content": "x" * 100_000}, idempotency_key="k")
        for _ in range(40):
            session.extend([USER, USER])
            session.undo()
        session.compact(memcore.extractive)
        session.recount("bytes/3")
        session.report_usage(1_000)
        session.fork("fork")
        session.state.update({"a": 1, "app:b": 2, "user:c": 3})
        db.scope().kv("n").put("k", 1)
        db.scope().blobs.put(b"content")
        assert spoil(db, chosen)
        findings = db.check()
    assert findings
    keyed = {damage_of(what).name for what in findings if "fails its checksum" in what}
    assert keyed == damages
    assert {damage_of(what) for what in findings} & {Damage.STRUCTURE} == set()
    plan = plan_repairs(findings, str(path))
    assert sorted(what for repair in plan.repairs for what in repair.findings) == sorted(findings)
    assert all(repair.salvage for repair in plan.repairs)


@pytest.mark.parametrize(
    ("finding", "damage"),
    [
        ("page 7 is referenced twice", Damage.STRUCTURE),
        ("the value under key 05 fails its checksum", Damage.STRUCTURE),
        ("the value under key ff00 fails its checksum", Damage.STRUCTURE),
        ("", Damage.STRUCTURE),
        ("session 3 of scope 1: it has rows but no name", Damage.NAME),
        ("scope 1 has sessions, but no row names it", Damage.NAME),
        ("scope 1 (user 'u', app 'a') has no name row", Damage.NAME),
        ("scope 1 has a state, but no row names it", Damage.NAME),
        ("scope 1: field 'a' of its state has several values", Damage.STATE),
        ("the state of scope 1 cannot be checked: x", Damage.STATE),
        ("session 's': before item 3 its state is said to be at counter 2", Damage.STATE),
        ("session 's': its segments hold 3 items, its head says 4", Damage.HEAD),
        ("session 's': its head is missing", Damage.HEAD),
        ("session 's': item 3 has no index record", Damage.INDEX),
        ("session 's': its index holds more records than items", Damage.INDEX),
        ("session 's': item 3 cannot be decoded: x", Damage.ITEM),
        ("session 's': view 1 of session 2 is missing", Damage.VIEW),
        ("session 's': it lists session 4 as a fork, which is gone", Damage.RELATION),
        ("session 's': session 4, from which it was forked, does not list it", Damage.RELATION),
        ("the value under key 0d00 fails its checksum", Damage.MARK),
        ("scope 1: 0500ff is listed for removal, but in use", Damage.MARK),
        ("scope 1: blob 00ff: has chunks beyond its size of 3 bytes", Damage.BLOB),
        ("scope 1: chunks of the blob 00ff have no header", Damage.BLOB),
        ("scope 1: reference count of the blob 00ff: a count of 0 was kept", Damage.REFERENCE),
        ("scope 1: blob address sha256:00ff: its reference is not counted", Damage.REFERENCE),
    ],
)
def test_findings_without_a_key_are_understood(finding, damage) -> None:
    assert damage_of(finding) is damage


def test_the_worst_comes_first_and_soundness_needs_no_plan(store) -> None:
    assert plan_repairs([], "x") == RepairPlan((), ())
    plan = plan_repairs(["session 's': view 1 of session 2 is missing", "page 7 is bad"], "a b")
    assert plan.repairs[0].findings == ("page 7 is bad",)
    assert "memcore salvage 'a b' --to NEW" in plan.steps[3]
    ran = run("check", "--repair-plan", "--store", store)
    assert (ran.exit_code, ran.stdout) == (0, "ok: 1 session, 10 items\n")


def test_the_plan_is_printed(tmp_path) -> None:
    path = tmp_path / "spoilt.memcore"
    with memcore.open(path) as db:
        db.session("s").extend([USER] * 3)
        spoil(db, session_row(Row.ITEM))
    ran = run("check", "--repair-plan", "--store", path)
    assert ran.exit_code == ExitCode.FINDINGS
    assert f"memcore restore BACKUP --store {path} --replace --yes" in ran.stdout
    assert "\nitems: a salvage keeps the other items" in ran.stdout
    assert "fails its checksum" in ran.stdout
    found = json.loads(run("check", "--repair-plan", "--store", path, "--json").stdout)
    assert found["repair_plan"]["repairs"][0]["about"] == "items"
    assert "repair_plan" not in json.loads(run("check", "--store", path, "--json").stdout)


def test_a_file_that_cannot_be_opened_has_a_plan(store) -> None:
    damaged(store, "truncated")
    ran = run("check", "--repair-plan", "--store", store)
    assert ran.exit_code == ExitCode.CORRUPT
    assert "memcore salvage" in ran.stdout
    assert "\n  - " in ran.stdout
    assert run("check", "--store", store).stdout == ""
    store.unlink()
