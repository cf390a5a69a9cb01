"""Files that are no store, a damaged one or a newer one: refused before LMDB maps them."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest

import memcore
from memcore.errors import (
    CorruptStoreError,
    MemcoreError,
    StoreAccessError,
    StoreFormatError,
    StoreLockedError,
)
from memcore.store import datafile as file_module
from memcore.store import open_store
from memcore.store.datafile import FORMAT_KEY, Format, inspect, open_locked
from memcore.store.pages import free_pages
from messages import user

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with some rows."""
    path = tmp_path / "agent.memcore"
    store = open_store(path)
    for number in range(20):
        store.transact(lambda txn, n=number: txn.put(b"\x01%04d" % n, b"x" * 1000))
    store.close()
    return path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def newest(path: Path):
    fd = open_locked(str(path), read_only=True)
    try:
        return inspect(fd, str(path))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "content",
    [b"x", b"This is a text file.\n" * 1000, bytes(100_000), os.urandom(20_000)],
    ids=["one-byte", "text", "zeros", "random"],
)
def test_what_is_no_store_is_refused_and_left_alone(tmp_path, content) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for options in ({}, {"read_only": True}, {"verify": True}):
        with pytest.raises(StoreFormatError):
            open_store(path, **options)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_an_empty_file_is_a_new_one(tmp_path) -> None:
    path = tmp_path / "file"
    path.touch()
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(StoreFormatError, match="0 bytes"):
            open_store(path, **options)
        assert not path.stat().st_size
    store = open_store(path, durability="relaxed")
    store.transact(lambda txn: txn.put(b"\x01k", b"v"))
    store.close()
    store = open_store(path)
    assert store.read(lambda txn: txn.get(b"\x01k")) == b"v"
    store.close()
    link = tmp_path / "link"
    (tmp_path / "other").touch()
    link.symlink_to(tmp_path / "other")
    open_store(link).close()
    assert link.is_symlink()
    assert (tmp_path / "other").stat().st_size


def test_of_two_who_fill_an_empty_file_the_first_one_stays(tmp_path, monkeypatch) -> None:
    path, first, second = (tmp_path / name for name in ("file", "first", "second"))
    path.touch()
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    share, filled = file_module.share, []

    def slow(fd: int, name: str, lock: int) -> None:
        if not filled:  # the other one comes first, between opening and locking
            filled.append(True)
            assert file_module.replace_empty(str(first), name)
        share(fd, name, lock)

    monkeypatch.setattr(file_module, "share", slow)
    assert not file_module.replace_empty(str(second), str(path))
    assert path.read_bytes() == b"first"
    assert not file_module.replace_empty(str(second), str(tmp_path / "missing"))


def test_a_directory_a_fifo_and_a_device_are_refused(tmp_path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, Path("/dev/null")):
        with pytest.raises(StoreFormatError):
            open_store(path)


def test_a_foreign_lmdb_file_is_refused_and_left_alone(tmp_path) -> None:
    path = tmp_path / "foreign"
    with lmdb.open(str(path), subdir=False, lib_version=0) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"b")
    before = path.read_bytes()
    with pytest.raises(StoreFormatError, match="not a memcore store"):
        open_store(path)
    assert path.read_bytes() == before


def test_a_file_of_lmdb_1_is_refused(tmp_path) -> None:
    path = tmp_path / "foreign"
    with lmdb.open(str(path), subdir=False, lib_version=1) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"b")
    with pytest.raises(StoreFormatError, match=r"LMDB 1\.0"):
        open_store(path)


@pytest.mark.parametrize("cut", [1, PAGE, PAGE + 100, 2 * PAGE, 3 * PAGE])
def test_a_truncated_file_is_refused(path, cut) -> None:
    needed = (newest(path).last_page + 1) * PAGE
    os.truncate(path, cut if cut > 0 else needed + cut)
    for options in ({}, {"read_only": True}, {"verify": True}):
        with pytest.raises((CorruptStoreError, StoreFormatError)):
            open_store(path, **options)


@pytest.mark.parametrize("pages", [1, 2, 3, 8])
def test_a_file_may_lack_only_free_pages_at_its_end(path, pages) -> None:
    """LMDB does not write a page that was taken and freed in one transaction."""
    meta = newest(path)
    with path.open("rb") as file:
        free = set(free_pages(file.fileno(), meta.free_root, meta.free_depth, meta.last_page))
    missing = set(range(meta.last_page + 1 - pages, meta.last_page + 1))
    os.truncate(path, (meta.last_page + 1 - pages) * PAGE)
    if missing <= free:
        store = open_store(path)
        assert store.check() == []
        store.close()
    else:
        with pytest.raises(CorruptStoreError):
            open_store(path)


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (16, b"\0\0\0\0"),
        (20, struct.pack("<I", 999)),
        (PAGE + 16, b"\0\0\0\0"),
        (40, struct.pack("<I", 8192)),
        (10, b"\0\0"),
        (0, struct.pack("<Q", 7)),
    ],
    ids=["magic-0", "version", "magic-1", "page-size", "flags", "number"],
)
def test_a_damaged_meta_page_is_refused(path, offset, data) -> None:
    overwrite(path, offset, data)
    with pytest.raises(CorruptStoreError):
        open_store(path)


@pytest.mark.parametrize("root", [0, 1, 10**6, 2**63])
def test_a_root_outside_the_file_is_refused(path, root) -> None:
    at = PAGE * (newest(path).txnid & 1) + 16 + 24 + 48 + 40
    overwrite(path, at, struct.pack("<Q", root))
    with pytest.raises(CorruptStoreError, match="root"):
        open_store(path)


def test_a_damaged_root_page_is_refused(path) -> None:
    overwrite(path, newest(path).main_root * PAGE, b"\xff" * 16)
    with pytest.raises(CorruptStoreError, match="root"):
        open_store(path)


def test_verify_finds_what_the_quick_look_does_not(path) -> None:
    meta = newest(path)
    original = path.read_bytes()
    refused = 0
    for page in range(133, meta.last_page + 1):
        if page != meta.main_root:
            overwrite(path, page * PAGE, b"\xff" * PAGE)
            with suppress(CorruptStoreError):
                open_store(path, verify=True).close()
                refused -= 1
            refused += 1
            path.write_bytes(original)
    assert refused > 3  # the leaves; the rest are free pages


def rewrite_format(path: Path, change) -> None:
    with (
        lmdb.open(str(path), subdir=False, map_size=2**24) as env,
        env.begin(write=True) as txn,
    ):
        txn.put(FORMAT_KEY, change(bytes(txn.get(FORMAT_KEY))))


def sealed(row: bytes, **fields) -> bytes:
    return Format.unpack(row, "")._replace(**fields).pack()


def test_a_newer_format_is_refused_with_advice(path) -> None:
    rewrite_format(path, lambda row: sealed(row, version=9, reader_version=9))
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreFormatError, match="upgrade memcore"):
            open_store(path, **options)


def test_a_newer_format_that_we_may_read_is_read(path) -> None:
    rewrite_format(path, lambda row: sealed(row, version=9))
    store = open_store(path)
    assert store.check() == []
    store.close()


def test_an_unknown_feature_is_refused_with_advice(path) -> None:
    rewrite_format(path, lambda row: sealed(row, features=1 << 63))
    with pytest.raises(StoreFormatError, match="upgrade memcore"):
        open_store(path)


@pytest.mark.parametrize(
    "change",
    [lambda row: row[:-1] + bytes((row[-1] ^ 1,)), lambda row: row[:30], lambda row: b"other" * 20],
    ids=["checksum", "short", "magic"],
)
def test_a_damaged_format_record_is_refused(path, change) -> None:
    rewrite_format(path, change)
    with pytest.raises((CorruptStoreError, StoreFormatError)):
        open_store(path)


def test_a_decoy_of_the_redo_run_is_refused(path) -> None:
    fd = os.open(path, os.O_RDONLY)
    head = os.pread(fd, 16 + 64, 3 * PAGE)
    os.close(fd)
    decoy = struct.pack("<QHHI", 2, 0, 4, 129) + head[16:32] + b"z" * 16 + head[48:52]
    overwrite(path, 2 * PAGE, decoy)
    with pytest.raises(CorruptStoreError, match="reserved run"):
        open_store(path)


def test_missing_permission_names_the_way_out(path, monkeypatch) -> None:
    real = os.open

    def refuse(name, flags, *args, **kwargs):
        if flags & os.O_RDWR and os.fspath(name) == str(path):
            raise PermissionError(13, "Permission denied", name)
        return real(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreAccessError, match="read_only=True"):
        open_store(path)


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "rb")
fcntl.flock(file, fcntl.LOCK_EX if sys.argv[2] == "ex" else fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(path):
    processes = []

    def hold(kind):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield hold
    for process in processes:
        process.communicate()


def test_an_exclusive_holder_keeps_others_out(path, holder, monkeypatch) -> None:
    monkeypatch.setattr(file_module, "_LOCK_PATIENCE_SECONDS", 0.1)
    process = holder("ex")
    for options in ({}, {"read_only": True}):
        with pytest.raises(StoreLockedError):
            open_store(path, **options)
    process.communicate()
    open_store(path).close()


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_an_opening_waits_for_an_exclusive_holder(path, holder, monkeypatch, options) -> None:
    process, looks = holder("ex"), []

    def look_later(seconds):
        looks.append(seconds)
        if len(looks) == 4:
            process.communicate()  # the holder ends: the next look finds the file free

    # Half a second passes between two looks.
    clock = SimpleNamespace(sleep=look_later, monotonic=lambda: len(looks) / 2)
    monkeypatch.setattr(file_module, "time", clock)
    open_store(path, **options).close()
    assert len(looks) == 4


def test_exclusive_needs_to_be_alone(path, holder) -> None:
    store = open_store(path)
    process = holder("sh")
    with pytest.raises(StoreLockedError):
        store.exclusive(lambda: None)
    process.communicate()
    command = [sys.executable, "-c", OPENER, str(path)]
    with pytest.raises(subprocess.CalledProcessError):
        store.exclusive(lambda: subprocess.run(command, check=True, stderr=subprocess.DEVNULL))
    subprocess.run([sys.executable, "-c", OPENER, str(path)], check=True)
    store.close()


OPENER = """
import sys
from memcore.store import datafile, open_store

datafile._LOCK_PATIENCE_SECONDS = 0.1
open_store(sys.argv[1]).close()
"""


def test_a_replaced_file_is_noticed_by_exclusive(path) -> None:
    store = open_store(path)
    store.backup(path.with_name("copy"))
    os.replace(path.with_name("copy"), path)
    with pytest.raises(StoreLockedError, match="replaced"):
        store.exclusive(lambda: None)
    store.close()
    open_store(path).close()


FUZZ = """
import random, sys
from memcore.errors import MemcoreError
from memcore.store import open_store
path, seed = sys.argv[1], int(sys.argv[2])
try:
    store = open_store(path, verify=True)
    store.read(lambda txn: list(txn.scan(b"", b"\\xff")))
    store.transact(lambda txn: txn.put(b"\\x01new", b"1"))
    store.close()
except MemcoreError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_never_crash_a_verified_opening(path, seed) -> None:
    dice = random.Random(seed)
    size = path.stat().st_size
    for _ in range(dice.choice([1, 3, 30])):
        where = dice.choice(
            [
                dice.randrange(2 * PAGE),
                2 * PAGE + dice.randrange(PAGE),
                132 * PAGE + dice.randrange(size - 132 * PAGE),
            ]
        )
        overwrite(path, where, bytes((dice.randrange(256),)))
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, str(path), str(seed)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_random_cuts_and_flips_are_typed_errors_before_the_map(path) -> None:
    """The raw look alone: no finding may be anything but one of ours."""
    dice = random.Random(1)
    original = path.read_bytes()
    for _ in range(300):
        head = bytearray(original)
        for _ in range(dice.choice([1, 2, 8])):
            head[dice.randrange(3 * PAGE)] = dice.randrange(256)
        path.write_bytes(head[: dice.choice([len(head), dice.randrange(len(head))])])
        try:
            assert newest(path).page_bytes == PAGE
        except MemcoreError:
            continue


def test_a_store_that_lost_both_meta_pages_is_told_from_a_foreign_file(path) -> None:
    overwrite(path, 0, bytes(2 * PAGE))
    with pytest.raises(CorruptStoreError, match="salvage"):
        open_store(path)


def test_who_comes_second_in_creating_waits_for_nobody(tmp_path) -> None:
    """The file that another process has just made is open there, and is no empty one."""
    path, mine = tmp_path / "agent.memcore", tmp_path / "mine"
    with closing(open_store(path)):
        mine.write_bytes(b"x")
        assert not file_module.replace_empty(str(mine), str(path))
    assert mine.exists()


def test_a_value_over_a_longer_one_of_the_same_batch_is_sound(path) -> None:
    """LMDB would write it over the longer one's pages, and keep all of them for it."""
    store = open_store(path)
    rows = [(b"\x01a", 30_000, 9), (b"\x01b", 30_000, 9_000), (b"\x01c", 2_100, 2_000)]

    def change(txn) -> None:
        for key, first, second in rows:
            txn.put(key, bytes(first))
            txn.put(key, b"x" * second)

    store.transact(change)
    assert store.check() == []
    store.close()
    store = open_store(path, verify=True)
    for key, _, second in rows:
        assert store.read(lambda txn, key=key: txn.get(key)) == b"x" * second
    store.close()


def test_one_that_was_written_so_before_is_read(path) -> None:
    open_store(path).close()
    env = lmdb.open(str(path), subdir=False, max_dbs=0, map_size=1 << 24)
    with env.begin(write=True) as txn:
        txn.put(b"\x01a", b"remains " * 4_000)
        txn.put(b"\x01a", b"short")
    env.close()
    store = open_store(path, verify=True)
    assert store.read(lambda txn: txn.get(b"\x01a")) == b"short"
    assert store.check() == []
    for compact in (False, True):
        copy = path.with_name(f"copy-{compact}")
        store.backup(copy, compact=compact)
        made = open_store(copy, verify=True)
        assert made.read(lambda txn: txn.get(b"\x01a")) == b"short"
        assert made.check() == []
        made.close()
    assert b"remains" not in copy.read_bytes()  # of the longer value, on the pages of the run
    store.transact(lambda txn: txn.put(b"\x01a", b"again"))
    assert store.check() == []
    store.close()


def test_a_busy_file_is_opened_and_judged(tmp_path) -> None:
    """A snapshot keeps the pages that are looked at from a writer, which reuses them at once."""
    path = tmp_path / "busy.memcore"
    with memcore.open(path) as db:
        for number in range(300):
            db.session(f"s{number}").extend([user("word " * 200)] * 10)
    program = (
        "import sys, memcore\n"
        "db = memcore.open(sys.argv[1])\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    db.session(f's{number * 7 % 300}').append({'role': 'user', 'content': 'x' * 900})\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env=os.environ
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        for number in range(30):
            with memcore.open(path, read_only=number % 3 > 0, verify=number % 2 > 0) as db:
                assert db.check() == [] if number % 10 == 0 else len(db.session("s1")) >= 10
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_many_values_over_longer_ones_are_no_damage(path) -> None:
    """LMDB's own verifier gives up at 200 of what it does not expect."""
    open_store(path).close()
    env = lmdb.open(str(path), subdir=False, max_dbs=0, map_size=1 << 26)
    with env.begin(write=True) as txn:
        for number in range(230):
            txn.put(b"\x02%03d" % number, bytes(9_000))
            txn.put(b"\x02%03d" % number, b"short")
    env.close()
    store = open_store(path, verify=True)
    assert store.check() == []
    store.close()


@pytest.mark.parametrize("held", [False, True])
def test_a_torn_read_of_the_meta_pages_is_no_damage(path, monkeypatch, held) -> None:
    """A snapshot keeps the pages of trees; a meta page may be read while it is being written."""
    metas, reads = file_module._metas, []

    def torn(fd, name):
        newest, before = metas(fd, name)
        reads.append(newest)
        return newest, before._replace(txnid=newest.txnid - 3) if len(reads) in wrong else before

    monkeypatch.setattr(file_module, "_metas", torn)
    with path.open("rb") as file:
        wrong = range(1, 2)
        assert inspect(file.fileno(), str(path), held=held).txnid == reads[0].txnid
        wrong = range(1, 99)
        reads.clear()
        with pytest.raises(CorruptStoreError, match="not of two in a row"):
            inspect(file.fileno(), str(path), held=held)
