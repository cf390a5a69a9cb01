"""The simulator's disk: what a crash may leave of recorded writes, flushes and renames."""

from __future__ import annotations

from random import Random

import pytest

from crash.recording import Flag, Op, Record
from crash.replay import Disk, StrangeOperationError, cuts

FILE, DIRECTORY = 7, 1


def record(
    op: Op, content: bytes = b"", *, at: int = 0, flags: int = 0, inode: int = FILE
) -> Record:
    return Record(op, Flag(flags), 1, inode, at, content)


def write(content: bytes, at: int = 0, *, flags: int = 0, inode: int = FILE) -> Record:
    return record(Op.WRITE, content, at=at, flags=flags, inode=inode)


def flush(token: int = 0, *, inode: int = FILE, flags: int = 0) -> list[Record]:
    return [record(op, at=token, inode=inode, flags=flags) for op in (Op.FLUSH_BEGIN, Op.FLUSH_END)]


NAMED = [record(Op.CREATE, b"file"), *flush(inode=DIRECTORY, flags=Flag.DIRECTORY)]


def images(*log: Record, named: bool = True) -> list[dict[str, bytes]]:
    """All that may be left, as far as many tries find it."""
    disk = Disk()
    for happened in [*(NAMED if named else []), *log]:
        disk.replay(happened)
    return [disk.crashed(Random(seed)) for seed in range(300)]


def contents(*log: Record) -> set[bytes]:
    return {image["file"] for image in images(*log)}


def test_what_was_flushed_is_there_and_what_was_not_may_be() -> None:
    assert contents(write(b"a" * 512), *flush()) == {b"a" * 512}
    assert contents(write(b"a" * 512), *flush(), write(b"b" * 512)) == {b"a" * 512, b"b" * 512}


def test_a_flush_covers_what_was_written_before_it_began() -> None:
    begin, end = flush()

    assert contents(write(b"a" * 512), begin, write(b"b" * 512), end) == {b"a" * 512, b"b" * 512}
    assert contents(write(b"a" * 512), begin) >= {b"", b"a" * 512}


def test_blocks_are_torn_at_512_and_reach_the_disk_in_any_order() -> None:
    log = [write(b"." * 1024), *flush(), write(b"a" * 512), write(b"b" * 512, 512)]

    found = {(image[:1], image[-1:]) for image in contents(*log)}

    assert found == {(b".", b"."), (b"a", b"."), (b".", b"b"), (b"a", b"b")}


def test_a_block_may_be_at_a_content_in_between() -> None:
    log = [write(b"a" * 512), *flush(), write(b"b" * 512), write(b"c" * 512)]

    assert {image[:1] for image in contents(*log)} == {b"a", b"b", b"c"}


def test_a_synchronous_write_is_durable_with_its_pages_and_nothing_else() -> None:
    log = [write(b"a" * 512), write(b"b" * 512, 4096), write(b"c" * 512, 512, flags=Flag.DSYNC)]

    found = contents(*log)

    assert {image[:1024] for image in found} == {b"a" * 512 + b"c" * 512}
    assert {image[4096:4097] for image in found} == {b"", b"\0", b"b"}


def test_a_size_may_come_without_the_blocks_below_it() -> None:
    found = contents(write(b"a" * 4096), record(Op.TRUNCATE, at=8192))

    assert {len(image) for image in found} == {0, 4096, 8192}
    assert {image[:1] for image in found if len(image) == 8192} == {b"a", b"\0"}


def test_what_was_cut_off_does_not_come_back_as_something_else() -> None:
    log = [
        write(b"a" * 4096),
        *flush(),
        record(Op.TRUNCATE, at=100),
        record(Op.TRUNCATE, at=4096),
        *flush(1),
    ]

    assert contents(*log) == {b"a" * 100 + bytes(3996)}


def test_a_name_is_durable_after_a_flush_of_its_directory() -> None:
    log = [record(Op.CREATE, b"file"), write(b"a" * 512), *flush()]

    assert {tuple(image) for image in images(*log, named=False)} == {(), ("file",)}


def test_a_rename_leaves_either_file_whole() -> None:
    log = [write(b"a" * 512), *flush(), record(Op.CREATE, b"new", inode=8)]
    log += [write(b"b" * 512, inode=8), *flush(inode=8), record(Op.RENAME, b"new\0file", inode=8)]

    found = {image["file"] for image in images(*log)}
    found_after = images(*log, *flush(2, inode=DIRECTORY, flags=Flag.DIRECTORY))

    assert found == {b"a" * 512, b"b" * 512}
    assert found_after == [{"file": b"b" * 512}] * len(found_after)


def test_an_inode_s_number_may_be_used_again() -> None:
    log = [write(b"a" * 512), *flush(), record(Op.UNLINK, b"file")]
    log += [record(Op.CREATE, b"other"), write(b"b" * 512), *flush()]

    found = images(*log)

    assert {image.get("file") for image in found} == {None, b"a" * 512}
    assert {image.get("other") for image in found} == {None, b"b" * 512}


def test_what_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(StrangeOperationError):
        images(record(Op.STRANGE, b"fallocate"))


def test_images_follow_from_log_and_seed() -> None:
    log = [*NAMED, *[write(bytes([n]) * 512, n * 512) for n in range(1, 20)]]

    once, again = (
        [(image, at, rng.random()) for image, at, rng in cuts(log, "seed", 50)] for _ in range(2)
    )

    assert once == again
    assert [at for _, at, _ in once] == sorted(at for _, at, _ in once)
