"""What compact copies forget: separators of rows that are gone, and remains between rows."""

from __future__ import annotations

import os
from random import Random

import pytest

from memcore.errors import CorruptStoreError
from memcore.store import copy as separators
from memcore.store import copy as slack
from memcore.store import lmdb as binding
from memcore.store import open_store
from memcore.store.pages import DamageError


def random_key(rng):
    size = rng.choice((1, 2, 5, 30, 200, 480))
    return b"\x05" + bytes(rng.choice(b"\0\1ab\xff") for _ in range(size))


@pytest.mark.parametrize("seed", range(4))
def test_a_compact_copy_has_every_row_and_the_shortest_separators(tmp_path, seed):
    rng = Random(seed)
    rows = {random_key(rng): rng.randbytes(rng.choice((0, 9, 700, 2100, 9000))) for _ in range(900)}
    path = tmp_path / "f"
    store = open_store(path, durability="none")
    for at in range(0, len(rows), 100):
        batch = list(rows.items())[at : at + 100]
        store.transact(lambda txn, batch=batch: [txn.put(*row) for row in batch])
    gone = rng.sample(sorted(rows), len(rows) // 2)
    store.transact(lambda txn: [txn.delete(key) for key in gone])
    for key in gone:
        del rows[key]
    store.copy_compact()
    with path.open("rb") as file:
        parting = [key for key in separators.separators(file.fileno(), str(path)) if key]
        assert parting
        # Each is the beginning of a key that is there.
        assert all(any(key.startswith(part) for key in rows) for part in parting)
    assert store.read(lambda txn: dict(txn.scan(b"\x01", b"\xff"))) == rows
    for key in [*rows, *gone]:
        assert store.read(lambda txn, key=key: txn.get(key)) == rows.get(key)
    # LMDB goes on with it as with its own: pages split, empty and merge.
    for _ in range(6):
        more = {random_key(rng): rng.randbytes(rng.choice((9, 700))) for _ in range(150)}
        less = rng.sample(sorted(rows), len(rows) // 3)
        store.transact(
            lambda txn, more=more, less=less: [
                *(txn.delete(key) for key in less), *(txn.put(*row) for row in more.items())
            ]
        )  # fmt: skip
        for key in less:
            rows.pop(key)
        rows.update(more)
    assert store.read(lambda txn: dict(txn.scan(b"\x01", b"\xff"))) == rows
    assert store.check() == []
    store.close()
    assert binding.verify(str(path)) == []


@pytest.mark.parametrize("judge", [slack.blank_slack, separators.renew_separators])
def test_a_copy_that_is_none_is_refused(tmp_path, judge):
    path = tmp_path / "f"
    with_rows = open_store(path, durability="none")
    with_rows.transact(lambda txn: [txn.put(b"\x05%05d" % n, b"x" * 300) for n in range(300)])
    with_rows.copy_compact()
    with_rows.close()
    whole = path.read_bytes()
    pages = len(whole) // 4096
    for number in range(2, pages):
        bent = bytearray(whole)
        bent[number * 4096] ^= 0x55
        other = tmp_path / "bent"
        other.write_bytes(bent)
        fd = os.open(other, os.O_RDWR)
        try:
            judge(fd, "bent")
        except (CorruptStoreError, DamageError):
            continue
        finally:
            os.close(fd)
        assert 2 <= number < 131 or judge is separators.renew_separators  # pages of the redo run
