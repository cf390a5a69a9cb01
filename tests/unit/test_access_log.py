"""The access log: whole lines, in order of files, for its owner alone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading

import pytest

import memcore
from memcore.telemetry import AccessLog, Record

HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "access.log"


def record(number=0, **fields):
    return Record("append", "ok", 0.001, 1e9 + number, **fields)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_holds_who_did_what_when_and_nobody_else_may_read_it(open_db, file):
    old = os.umask(0)
    try:
        with open_db(telemetry=AccessLog(file)) as db:
            db.session("s", user="älice").append(HELLO, request_id="r")
            assert not file.exists()  # gathered
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = lines(file)
    assert [line["operation"] for line in found] == ["open", "load", "append", "close"]
    appended = found[2]
    assert (appended["user"], appended["session"], appended["request_id"]) == ("älice", "s", "r")
    assert {"at", "status", "duration_seconds", "revision", "durability"} <= set(appended)
    assert "adapter" not in appended


def test_a_file_that_others_may_read_is_closed_to_them(file):
    file.write_text("")
    file.chmod(0o644)
    log = AccessLog(file, buffer_bytes=0)
    log.tell(record())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_lines_are_written_by_size_and_by_age(file, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("memcore.telemetry.logs.monotonic", lambda: now[0])
    log = AccessLog(file, buffer_bytes=500, flush_seconds=2.0)
    log.tell(record(1))
    assert not file.exists()
    now[0] = 2.0
    log.tell(record(2))
    assert len(lines(file)) == 2
    for number in range(8):
        log.tell(record(number))
    assert len(lines(file)) > 4
    log.flush()
    assert len(lines(file)) == 10


def test_it_is_rotated_and_the_oldest_files_go(file):
    log = AccessLog(file, rotate_bytes=500, keep=2, buffer_bytes=0)
    for number in range(40):
        log.tell(record(number))
    files = sorted(path.name for path in file.parent.iterdir())
    assert files == ["access.log", "access.log.1", "access.log.2"]
    assert all(path.stat().st_size <= 500 for path in file.parent.iterdir())
    kept = [line["at"] - 1e9 for name in reversed(files) for line in lines(file.with_name(name))]
    assert kept == list(range(40 - len(kept), 40))
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    AccessLog(file, rotate_bytes=100, keep=0, buffer_bytes=0).tell(record(99))
    assert [path.name for path in file.parent.iterdir()] == ["access.log"]
    assert [line["at"] for line in lines(file)] == [1e9 + 99]


def test_threads_and_several_logs_share_a_file(file):
    logs = [AccessLog(file, rotate_bytes=3_000, keep=1_000, buffer_bytes=200) for _ in range(2)]

    def work(base):
        for number in range(100):
            logs[base % 2].tell(record(base * 1000 + number))

    threads = [threading.Thread(target=work, args=(base,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.flush()
    found = [line["at"] for path in file.parent.iterdir() for line in lines(path)]
    assert sorted(found) == sorted(1e9 + b * 1000 + n for b in range(4) for n in range(100))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_fork_does_not_write_the_lines_of_its_parent(file):
    log = AccessLog(file)
    log.tell(record(1))
    child = os.fork()
    if not child:
        log.tell(record(2))
        log.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log.flush()
    assert sorted(line["at"] - 1e9 for line in lines(file)) == [1, 2]


def test_what_was_gathered_is_written_when_the_process_ends(file):
    program = """if True:
        import sys
        from memcore.telemetry import AccessLog, Record
        log = AccessLog(sys.argv[1])
        log.tell(Record("append", "ok", 0.001, 1e9))
    """
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)
    assert len(lines(file)) == 1


def test_a_device_that_takes_nothing_breaks_no_operation(open_db, file, monkeypatch, caplog):
    log = AccessLog(file, buffer_bytes=0)
    db = open_db(telemetry=log)
    session = db.session("s")
    real, budget = os.write, [30]

    def full(fd, payload):
        if budget[0] <= 0:
            raise OSError(28, "No space left on device")
        budget[0] -= 30
        return real(fd, bytes(payload[:30]))

    monkeypatch.setattr("memcore.telemetry.logs.os.write", full)
    for _ in range(3):
        session.append(HELLO)
    assert len(session) == 3
    assert db.observer.telemetry.failures
    assert len([r for r in caplog.records if "AccessLog" in r.getMessage()]) == 1
    monkeypatch.undo()
    db.close()
    assert [line["operation"] for line in lines(file)] == [
        "open", "load", "append", "append", "append", "close",
    ]  # fmt: skip


def test_no_more_is_kept_for_a_dead_device_than_a_bound(file, monkeypatch):
    monkeypatch.setattr("memcore.telemetry.logs._KEPT_BYTES_MAX", 1_000)
    log = AccessLog(file / "no directory", buffer_bytes=0)
    for number in range(50):
        try:
            log.tell(record(number))
        except OSError:
            continue
    assert 30 < log.lines_lost < 50


@pytest.mark.parametrize(
    "options",
    [
        {"path": ""}, {"path": 3}, {"rotate_bytes": 0}, {"rotate_bytes": "1"}, {"keep": -1},
        {"keep": True}, {"buffer_bytes": -1}, {"flush_seconds": "1"}, {"names": "all"},
    ],
)  # fmt: skip
def test_options_are_checked(file, options):
    with pytest.raises(memcore.InvalidOptionError):
        AccessLog(**{"path": file, **options})


def test_any_name_makes_a_line(file):
    log = AccessLog(file, buffer_bytes=0)
    log.tell(record(user='\ud800 \n "\x00', session="\u2028"))
    (line,) = lines(file)
    assert line["user"] == '\ud800 \n "\x00'
