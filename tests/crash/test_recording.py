"""The recorder: everything that changes a file of its directory is in the log, in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shim.flushcount import compiler

from crash.recording import Flag, Op, Record, mark_of, preloaded, records
from crash.replay import missed

pytestmark = pytest.mark.skipif(compiler() is None, reason="the recorder needs a C compiler")

HEAD = """
import os, shutil, sys
from pathlib import Path
from crash.recording import Recorder
place, log = Path(sys.argv[1]), Path(sys.argv[2])
recorder = Recorder()
recorder.start(place, log)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "watched"
    found.mkdir()
    return found


def recorded(place: Path, script: str, *, status: int = 0) -> list[Record]:
    """The log of a script; replayed, it gives the very files that the script left."""
    log = place.with_name("log")
    environment = preloaded() | {"PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, "-c", HEAD + script, str(place), str(log)]
    assert subprocess.run(command, env=environment, check=False).returncode == status
    found = list(records(log))
    assert missed(found, place) == []
    return found


def ops(log: list[Record]) -> list[Op]:
    return [record.op for record in log]


def test_every_kind_of_write(place: Path) -> None:
    log = recorded(
        place,
        """
fd = os.open(place / "a", os.O_RDWR | os.O_CREAT)
os.write(fd, b"one")
os.writev(fd, [b"two", b"three"])
os.pwrite(fd, b"four", 100)
os.pwritev(fd, [b"five", b"six"], 50)
os.write(os.dup(fd), b"dup")
os.ftruncate(fd, 104)
os.posix_fallocate(fd, 0, 200)
appending = os.open(place / "a", os.O_WRONLY | os.O_APPEND)
os.write(appending, b"end")
shutil.copyfile(place / "a", place / "b")
os.copy_file_range(fd, os.open(place / "b", os.O_RDWR), 10, 0, 190)
open(place / "b", "ab").write(b"python")
os.truncate(place / "b", 90)
open(place / "c", "wb").close()
open(place / "a-lock", "wb").write(b"left out")
open(place.parent / "elsewhere", "wb").write(b"left out")
""",
    )

    assert [record.at for record in log if record.op is Op.WRITE][:7] == [0, 3, 100, 50, 11, 200, 0]
    assert all(b"left out" not in record.content for record in log)


def test_names_flushes_and_marks(place: Path) -> None:
    log = recorded(
        place,
        """
fd = os.open(place / "a", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
os.write(fd, b"synchronous")
os.fdatasync(fd)
os.link(place / "a", place / "b")
os.rename(place / "b", place / "c")
os.unlink(place / "a")
recorder.mark("ack", number=1)
directory = os.open(place, os.O_RDONLY)
os.fsync(directory)
""",
    )

    assert ops(log) == [
        Op.CREATE,
        Op.WRITE,
        *[Op.FLUSH_BEGIN, Op.FLUSH_END],
        *[Op.LINK, Op.RENAME, Op.UNLINK],
        Op.MARK,
        *[Op.FLUSH_BEGIN, Op.FLUSH_END],
    ]
    assert log[1].flags == Flag.DSYNC
    assert mark_of(log[7]) == {"kind": "ack", "number": 1}
    assert log[8].flags == Flag.DIRECTORY
    assert log[2].at == log[3].at != log[8].at


def test_processes_that_write_at_once_and_die(place: Path) -> None:
    log = recorded(
        place,
        """
children = []
for child in range(4):
    pid = os.fork()
    if not pid:
        recorder.die_after(60)
        fd = os.open(place / f"{child % 2}", os.O_RDWR | os.O_CREAT)
        for turn in range(1000):
            os.pwrite(fd, bytes([child, turn % 256]) * 50, turn * 37)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 9
""",
    )

    assert len({record.pid for record in log}) == 4
    assert len(log) >= 4 * 60


def test_what_leaves_the_directory_is_strange(place: Path) -> None:
    (place / "a").write_bytes(b"")
    log = place.with_name("log")
    environment = preloaded() | {"PYTHONPATH": ":".join(filter(None, sys.path))}
    script = HEAD + 'os.rename(place / "a", place.parent / "a")'
    command = [sys.executable, "-c", script, str(place), str(log)]
    subprocess.run(command, env=environment, check=True)

    assert ops(list(records(log))) == [Op.STRANGE]
