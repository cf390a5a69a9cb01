"""Backup, restore and compaction of the file: proven copies, atomic swaps, nothing left behind."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupts import Interrupt

import memcore
from memcore.errors import (
    CorruptStoreError,
    InvalidOptionError,
    NotFoundError,
    ReadOnlyError,
    StoreAccessError,
    StoreFullError,
    StoreLockedError,
)
from memcore.store import copy, datafile
from memcore.store.datafile import FORMAT_KEY, MEMORIES, Format, occurrences
from memcore.store.transaction import stored


def user(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + "x" * 200}


def texts(session: memcore.Session) -> list[str]:
    return [item.message["content"].split(" x")[0] for item in session.items()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.memcore"


@pytest.fixture(params=["full", "relaxed"])
def db(path, request):
    with memcore.open(path, durability=request.param) as found:
        found.session("chat").extend([user(n) for n in range(20)])
        yield found
    with memcore.open(path) as again:
        assert again.check() == []


def flip(path: Path, what: bytes = b"message 7 ") -> None:
    """Damage every copy of an item's row, or heal it again."""
    raw = path.read_bytes()
    with path.open("r+b") as file:
        for text in (what, what.replace(b"m", b"l")):
            at = raw.find(text)
            while at >= 0:
                file.seek(at)
                file.write(bytes((text[0] ^ 1,)))
                at = raw.find(text, at + 1)


def names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def bloat(db: memcore.Database) -> None:
    for _ in range(5):
        db.session("bulk").extend([user(n) for n in range(500)])
    db.delete_session("bulk")


# --- backup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_a_backup_is_whole_and_alone(db, tmp_path, compact, verify) -> None:
    seen = []
    target = tmp_path / "copy"
    db.backup(target, compact=compact, verify=verify, progress=lambda *at: seen.append(at))
    assert seen == ([(1, 1)] if verify else [])
    assert names(tmp_path) == {"agent.memcore", "agent.memcore-lock", "copy"}
    with memcore.open(target) as copy:
        assert copy.check() == []
        assert texts(copy.session("chat")) == texts(db.session("chat"))


@pytest.mark.parametrize("compact", [True, False])
def test_a_backup_holds_no_record_of_its_source(db, tmp_path, compact) -> None:
    target = tmp_path / "copy"
    db.backup(target, compact=compact)
    raw = target.read_bytes()
    at = raw.index(b"memcore-redo-v1\0") - 16 + 4096
    assert raw[at : at + 28] == raw[at + 256 * 1024 :][:28] == bytes(28)


def test_a_backup_of_a_damaged_database_is_not_made(db, path, tmp_path) -> None:
    flip(path)
    with pytest.raises(CorruptStoreError, match="fails its checksum"):
        db.backup(tmp_path / "copy")
    assert names(tmp_path) == {"agent.memcore", "agent.memcore-lock"}
    flip(path)


@pytest.mark.parametrize("compact", [True, False])
def test_a_backup_takes_along_what_waits_for_recovery(tmp_path, compact) -> None:
    """A read-only handle sees the file one acknowledged transaction short; the copy must not be."""
    path = tmp_path / "cut"
    with memcore.open(path) as db:
        session = db.session("chat")
        session.append(user(1))
        before = path.read_bytes()[: 2 * 4096]
        session.append(user(2))
        after = bytearray(path.read_bytes())
    after[: 2 * 4096] = before  # the power cut took the last meta page back
    path.write_bytes(after)
    with memcore.open(path, read_only=True) as db:
        assert db.needs_recovery
        assert len(db.session("chat")) == 1
        db.backup(tmp_path / "copy", compact=compact)
    with memcore.open(tmp_path / "copy") as copy:
        assert len(copy.session("chat")) == 2
        assert copy.check() == []


def test_leftovers_of_the_dead_are_removed_those_of_the_living_stay(db, path, tmp_path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    dead = [f"agent.memcore.new-{done.pid}-{'a' * 8}", f"agent.memcore.new-{os.getpid()}-{'b' * 8}"]
    living = [f"agent.memcore.new-{os.getppid()}-{'c' * 8}", "agent.memcore.newer"]
    living += ["agent.memcore.new-x", f"agent.memcore.new-{done.pid}-bak"]  # somebody's own
    for name in (*dead, f"{dead[0]}-lock", *living):
        (tmp_path / name).write_bytes(b"")
    db.copy_compact()
    assert names(tmp_path) == {"agent.memcore", "agent.memcore-lock", *living}


def test_a_file_that_its_maker_holds_stays_though_nobody_has_its_process_id(db, tmp_path) -> None:
    """In another PID namespace its maker lives, under an id that is nobody's here."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    made = tmp_path / f"agent.memcore.new-{done.pid}-{'a' * 8}"
    with made.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        db.copy_compact()
        assert made.exists()
    db.copy_compact()
    assert not made.exists()


def test_a_pipe_in_the_place_of_a_leftover_holds_up_nothing(db, tmp_path) -> None:
    pipe = tmp_path / f"agent.memcore.new-{os.getpid()}-{'a' * 8}"
    os.mkfifo(pipe)
    db.copy_compact()
    assert not pipe.exists()


def test_a_file_that_lost_its_name_before_it_was_locked_gets_another(tmp_path, monkeypatch) -> None:
    """Whoever takes its maker for dead removes the name under the lock, and sees it unlocked."""
    flock, removed = fcntl.flock, []

    def removed_before(fd, operation):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        flock(fd, operation)

    monkeypatch.setattr(copy.fcntl, "flock", removed_before)
    with copy.beside(str(tmp_path / "made")) as (temporary, fd):
        assert temporary != str(removed[0])
        assert os.path.samestat(os.stat(temporary), os.fstat(fd))
    assert names(tmp_path) == set()


def test_an_interrupted_copy_removes_no_file_of_the_working_directory(
    tmp_path, monkeypatch
) -> None:
    """Its names are those beside its target, from the first point at which Ctrl-C may come."""
    monkeypatch.chdir(tmp_path)
    own, target = {"-lock", "-name"}, tmp_path / "copies"
    target.mkdir()
    number, fired = 0, True
    while fired:
        for name in own:
            (tmp_path / name).touch()
        number += 1
        interrupt = Interrupt(number)

        def make() -> None:
            with copy.beside(str(target / "made")):
                pass

        interrupt.during(make)
        fired = interrupt.fired
        assert names(tmp_path) == {*own, "copies"}, number
        assert names(target) == set(), number
    assert number > 10


COUNT = "import sys, memcore; print(len(memcore.open(sys.argv[1]).session('chat')))"


# --- compaction -----------------------------------------------------------------------------------


def test_compaction_shrinks_the_file_and_everything_goes_on(db, path) -> None:
    session, other = db.session("chat"), memcore.open(path)
    bloat(db)
    assert len(session.context(budget_tokens=1000).messages) > 3
    before = path.stat().st_size
    report = db.copy_compact()
    assert report.bytes_before == before
    assert report.bytes_after == path.stat().st_size < before / 2
    assert report.durability == db.durability
    session.append(user(20))
    assert len(session) == len(other.session("chat")) == 21
    other.session("chat").append(user(21))
    session.undo()
    assert len(db.session("chat")) == 21
    other.close()
    assert names(path.parent) == {"agent.memcore", "agent.memcore-lock"}
    again = subprocess.run(
        [sys.executable, "-c", COUNT, str(path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert again.stdout == "21\n"


def test_compaction_under_readers_and_writers_of_this_process(db) -> None:
    stop, failures, written = threading.Event(), [], []

    def guard(work):
        def run():
            try:
                while not stop.is_set():
                    work()
            except Exception as error:  # noqa: BLE001 - the test reports it
                failures.append(error)

        return run

    def write():
        db.session("w").append(user(len(written)))
        written.append(1)

    def read():
        assert len(list(db.session("chat").items())) == 20

    def reopen():
        with memcore.open(db.path) as other:
            assert len(other.session("chat")) == 20

    threads = [threading.Thread(target=guard(work)) for work in (write, read, reopen)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            db.copy_compact()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(db.session("w")) == len(written)


def test_the_mode_changes_with_the_file(db, path) -> None:
    session = db.session("chat")
    with pytest.raises(InvalidOptionError, match="allow_unsafe"):
        db.copy_compact(durability="none")
    with pytest.raises(InvalidOptionError, match="expected one of"):
        db.copy_compact(durability="some")
    assert db.copy_compact(durability="none", allow_unsafe=True).durability == "none"
    assert db.durability == "none"
    session.append(user(20))
    with memcore.open(path, durability="none", allow_unsafe=True) as other:
        assert len(other.session("chat")) == 21
    for number, mode in enumerate(("full", "relaxed", "full"), 21):
        db.copy_compact(durability=mode)
        assert db.durability == mode
        session.append(user(number))
        with memcore.open(path, durability=mode) as other:
            assert len(other.session("chat")) == number + 1
    db.close()
    with memcore.open(path, durability="full") as other:
        assert len(other.session("chat")) == 24
        assert other.check() == []


HOLD = """
import sys, memcore
db = memcore.open(sys.argv[1], read_only=True)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(db, path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"open\n"
    yield child
    child.communicate()


def features_of(db) -> int:
    row = db.engine.store.read(lambda txn: stored(txn).get(FORMAT_KEY))
    return Format.unpack(row, db.path).features


def test_a_change_of_mode_keeps_features_that_were_set_since(db) -> None:
    before = features_of(db)
    db.scope(user="ann").memory.remember("likes tea", by="operator")
    db.session("a", user="ann").append({"role": "user", "content": "tea"})
    db.index_sessions()
    found = features_of(db)
    assert found & MEMORIES
    assert found != before
    db.copy_compact(durability="relaxed")
    assert features_of(db) == found
    assert db.durability == "relaxed"


def test_nobody_is_robbed_of_the_file(db, path, tmp_path, holder) -> None:
    before = path.stat().st_ino
    db.backup(tmp_path / "copy")
    with pytest.raises(StoreLockedError):
        db.copy_compact()
    db.close()
    with pytest.raises(StoreLockedError):
        memcore.restore(tmp_path / "copy", path, replace=True)
    assert path.stat().st_ino == before
    assert names(tmp_path) == {"agent.memcore", "agent.memcore-lock", "copy", "copy-lock"}


FOREIGN = """
import sys, lmdb
env = lmdb.open(sys.argv[1], subdir=False, readonly=True)
print("open", flush=True)
sys.stdin.read()
"""


def test_a_foreign_program_that_maps_the_file_is_noticed(db, path) -> None:
    """It takes no flock, but its hold on the lock file would mix two files' transactions."""
    child = subprocess.Popen(
        [sys.executable, "-c", FOREIGN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"open\n"
    before = path.stat().st_ino
    with pytest.raises(StoreLockedError, match="another program"):
        db.copy_compact()
    child.communicate()
    assert path.stat().st_ino == before
    db.session("chat").append(user(20))
    db.copy_compact()
    assert len(db.session("chat")) == 21


def test_a_file_with_two_names_makes_its_opener_flush_the_directory(db, path, monkeypatch) -> None:
    """Its maker died between naming it and that flush; a power cut could take the name back."""
    flushed = []
    monkeypatch.setattr("memcore.store.open_file.sync_directory", flushed.append)
    db.close()
    memcore.open(path).close()
    assert flushed == []
    os.link(path, f"{path}.new-1-0123abcd")
    memcore.open(path).close()
    assert flushed == [str(path)]


@pytest.mark.parametrize("name", ["second", "agent.memcore.new-1-aa", "../elsewhere.memcore"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_with_a_name_of_somebody_s_own_is_refused(db, path, name, read_only) -> None:
    """Through two names two processes have two lock files, and destroy what the other wrote."""
    db.close()
    other = path.parent / name
    os.link(path, other)
    for each in (path, other):
        with pytest.raises(StoreAccessError, match="hard links"):
            memcore.open(each, read_only=read_only)
    other.unlink()
    memcore.open(path, read_only=read_only).close()


def test_the_asynchronous_handle_compacts(path) -> None:
    async def work() -> None:
        async with memcore.aio.open(path) as db:
            session = db.session("chat")
            await session.append(user(1))
            report = await db.copy_compact(verify=False)
            assert report.bytes_after == path.stat().st_size
            await session.append(user(2))
            await db.backup(f"{path}.copy", verify=True)
            assert len(session) == 2

    asyncio.run(work())


def test_who_may_not_compact(db, path) -> None:
    with memcore.open(path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.copy_compact()
    with memcore.open(":memory:") as memory, pytest.raises(InvalidOptionError, match="in-memory"):
        memory.copy_compact()


def test_compaction_of_a_damaged_file_changes_nothing(db, path) -> None:
    flip(path)
    with pytest.raises(CorruptStoreError):
        db.copy_compact()
    flip(path)
    db.session("chat").append(user(20))
    assert names(path.parent) == {"agent.memcore", "agent.memcore-lock"}


LIMITED = """
import resource, sys, memcore
path, limit = sys.argv[1], int(sys.argv[2])
with memcore.open(path) as db:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for work in (db.copy_compact, lambda: db.backup(path + ".copy")):
        try:
            work()
        except memcore.StoreFullError:
            print("full")
"""


def test_no_room_for_the_copy(db, path) -> None:
    db.session("chat").extend([user(n) for n in range(3000)])
    db.close()
    raw = path.read_bytes()
    limited = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(len(raw) // 4)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert limited.stdout == "full\nfull\n", limited.stderr
    assert names(path.parent) == {"agent.memcore", "agent.memcore-lock"}
    assert path.read_bytes()[4096 * 4 :] == raw[4096 * 4 :]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_device(tmp_path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", tmp_path], check=True)
    try:
        with memcore.open(tmp_path / "store") as db:
            db.session("chat").extend([user(n) for n in range(5000)])
            status = os.statvfs(tmp_path)
            filler = tmp_path / "filler"
            filler.write_bytes(bytes(status.f_bavail * status.f_frsize - 500_000))
            with pytest.raises(StoreFullError):
                db.copy_compact()
            with pytest.raises(StoreFullError):
                db.backup(tmp_path / "copy")
            assert names(tmp_path) == {"store", "store-lock", "filler"}
            filler.unlink()
            db.session("chat").append(user(1))
            assert db.check() == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_directory_that_cannot_be_flushed_ends_writing(db, path, monkeypatch) -> None:
    def fail(_: str) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("memcore.store.copy.sync_directory", fail)
        with pytest.raises(memcore.StorageError, match="could not be flushed"):
            db.copy_compact()
    with pytest.raises(memcore.OutcomeUnknownError):
        db.session("chat").append(user(1))
    assert len(db.session("chat")) == 20
    db.close()
    with memcore.open(path) as again:
        again.session("chat").append(user(20))


def test_a_file_that_cannot_be_opened_after_the_swap_is_opened_at_its_next_use(
    db, path, monkeypatch
) -> None:
    def fail(*_, **__):
        raise memcore.StorageError("no descriptor is left")

    with monkeypatch.context() as patch:
        patch.setattr("memcore.store.environment.Environment.attach", fail)
        with pytest.raises(memcore.StorageError, match="no descriptor is left"):
            db.copy_compact(verify=False)
        with pytest.raises(memcore.StorageError, match="no descriptor is left"):
            len(db.session("chat"))
    db.session("chat").append(user(20))
    with memcore.open(path) as other:
        assert len(other.session("chat")) == 21


def test_a_callback_that_may_not_write_makes_no_copy_unsound(db) -> None:
    with pytest.raises(memcore.InternalError, match="inside a transaction"):
        db.copy_compact(progress=lambda *_: db.session("chat").append(user(20)))
    db.session("chat").append(user(20))


KILLED = """
import os, sys, memcore
from memcore.store import copy
at = int(sys.argv[2])
steps = [0]
def look(frame, event, arg):
    if event == "line" and frame.f_code.co_filename.endswith("store/copy.py"):
        steps[0] += 1
        if steps[0] == at:
            os._exit(9)
    return look
db = memcore.open(sys.argv[1])
db.session("chat").append({"role": "user", "content": "more"})
sys.settrace(look)
db.copy_compact(verify=False)
sys.settrace(None)
print(steps[0])
"""


def test_killed_at_any_line_the_file_is_whole(db, path) -> None:
    db.close()

    def run(at: int) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), str(at)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        return ran.stdout

    lines = int(run(0))
    expected = 21
    for at in range(1, lines, max(lines // 6, 1)):
        assert run(at) == ""
        expected += 1
        with memcore.open(path) as again:
            assert len(again.session("chat")) == expected
            assert again.check() == []
    with memcore.open(path) as again:
        again.copy_compact()
    assert names(path.parent) == {"agent.memcore", "agent.memcore-lock"}


# --- restore --------------------------------------------------------------------------------------


def test_restoring_beside_and_in_place(db, path, tmp_path) -> None:
    backup = tmp_path / "backup"
    db.backup(backup)
    db.session("chat").append(user(20))
    fresh = memcore.restore(backup, tmp_path / "fresh")
    assert (fresh.path, fresh.kept, fresh.findings) == (str(tmp_path / "fresh"), None, ())
    with memcore.open(tmp_path / "fresh") as again:
        assert len(again.session("chat")) == 20
    with pytest.raises(StoreAccessError, match="replace=True"):
        memcore.restore(backup, path)
    with pytest.raises(StoreLockedError):
        memcore.restore(backup, path, replace=True)
    path.chmod(0o640)
    db.close()
    report = memcore.restore(backup, path, replace=True)
    assert report.kept.startswith(f"{path}.before-restore-")
    assert path.stat().st_mode & 0o777 == 0o640
    with memcore.open(path) as again, memcore.open(report.kept) as old:
        assert len(again.session("chat")) == 20
        assert len(old.session("chat")) == 21
        again.session("chat").append(user(20))
        assert again.check() == []
    twice = memcore.restore(backup, path, replace=True)
    assert twice.kept not in (None, report.kept)
    assert memcore.restore(backup, path, replace=True, keep=False).kept is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_restore_that_fails_leaves_the_target_one_name(
    db, path, tmp_path, monkeypatch, error
) -> None:
    backup = tmp_path / "backup"
    db.backup(backup)
    db.close()
    with monkeypatch.context() as patch:
        patch.setattr(copy, "put_in_place", Mock(side_effect=error))
        with pytest.raises((KeyboardInterrupt, StoreFullError)):
            memcore.restore(backup, path, replace=True)
    assert path.stat().st_nlink == 1
    with memcore.open(path) as again:
        assert len(again.session("chat")) == 20


def test_a_ruined_target_can_be_replaced(db, path, tmp_path) -> None:
    db.backup(tmp_path / "backup")
    db.close()
    path.write_bytes(b"ruins")
    report = memcore.restore(tmp_path / "backup", path, replace=True)
    assert Path(report.kept).read_bytes() == b"ruins"
    with memcore.open(path) as again:
        assert again.check() == []


def test_a_damaged_backup_is_restored_by_force_only(db, path, tmp_path) -> None:
    backup = tmp_path / "backup"
    db.backup(backup)
    flip(backup)
    with pytest.raises(CorruptStoreError, match="no sound backup"):
        memcore.restore(backup, tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()
    report = memcore.restore(backup, tmp_path / "fresh", force=True)
    assert any("checksum" in finding for finding in report.findings)


def test_restore_says_what_is_wrong_with_its_arguments(db, path, tmp_path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        memcore.restore(tmp_path / "none", tmp_path / "fresh")
    with pytest.raises(InvalidOptionError, match="the backup itself"):
        memcore.restore(path, path, replace=True)
    with pytest.raises(InvalidOptionError):
        memcore.restore(path, tmp_path / "fresh", replace=1)
    (tmp_path / "foreign").write_bytes(b"x" * 10_000)
    with pytest.raises(memcore.StoreFormatError):
        memcore.restore(tmp_path / "foreign", tmp_path / "fresh")


FEW = st.sampled_from((b"a", b"b", b"c"))


@given(
    st.lists(FEW, max_size=60).map(b"".join),
    st.lists(st.lists(FEW, min_size=1, max_size=5).map(b"".join), max_size=3),
    st.integers(1, 20),
)
def test_byte_strings_are_found_wherever_a_piece_ends(content, needles, piece) -> None:
    fd = os.memfd_create("content")
    try:
        os.write(fd, content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datafile, "_PIECE_BYTES", piece)
            found = sorted(occurrences(fd, needles))
    finally:
        os.close(fd)
    places = range(len(content))
    assert found == sorted(
        (at, needle) for needle in needles for at in places if content.startswith(needle, at)
    )


def test_a_file_is_not_searched_through_a_map(open_db, path, monkeypatch) -> None:
    """Where the page behind a map cannot be read, ``mmap.find`` of CPython 3.11.2 dies."""
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=AssertionError("a map")))
    with open_db() as db:
        db.session("s", user="ann").append(user(1))
        db.session("s", user="bob").append(user(2))
        db.engine.store.secret.value()
        db.copy_compact()
        assert db.erase("ann", probes=[user(1)["content"]]).bytes_gone
        db.backup(path.with_name("copy"))
