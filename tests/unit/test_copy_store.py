"""Copies of whole stores between a file and a server: every row, and what follows."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stores import fill, use

import memcore
from memcore.errors import (
    InvalidOptionError,
    NotFoundError,
    StorageError,
    StoreAccessError,
    StoreLockedError,
)
from memcore.store import changes
from memcore.store.postgres.copies import Filling

_numbers = itertools.count()


@pytest.fixture
def address(server) -> str:
    return server.address(f"copy{next(_numbers)}")


def rows(path: str | Path) -> list[tuple[bytes, bytes]]:
    with memcore.open(path, create=False) as db:
        return db._engine.store.read(lambda txn: list(txn.scan(b"\x02", b"\xff")))


def test_a_file_whose_last_commit_waits_is_not_copied(path, tmp_path, monkeypatch):
    """As behind a power cut: what a copy reads lacks that commit."""
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "x"})
    with monkeypatch.context() as patch:
        patch.setattr(memcore.Database, "needs_recovery", True)
        with pytest.raises(StorageError, match="open the file once for writing"):
            memcore.copy_store(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert memcore.copy_store(path, tmp_path / "copy").rows


def test_there_and_back(path, address, tmp_path):
    with memcore.open(path) as db:
        fill(db)
        secret = db._engine.store.secret.value()
    before = rows(path)
    done = []
    report = memcore.copy_store(path, address, progress=lambda *now: done.append(now))
    assert report.rows == report.written == len(before)
    assert done
    assert done[-1][0] == done[-1][1]
    assert rows(address) == before
    back = tmp_path / "back.memcore"
    memcore.copy_store(address, back)
    assert rows(back) == before
    for copy in (address, back):
        with memcore.open(copy) as db:
            assert db._engine.store.secret.value() == secret
        use(copy)


def test_a_copy_that_was_cut_short_goes_on(path, address, monkeypatch):
    with memcore.open(path) as db:
        fill(db)
    monkeypatch.setattr(changes, "_BATCH_ROWS", 50)
    replace, left = Filling.replace, [5]

    def failing(self, *batch):
        left[0] -= 1
        if not left[0]:
            raise StorageError("the power failed")
        return replace(self, *batch)

    monkeypatch.setattr(Filling, "replace", failing)
    with pytest.raises(StorageError, match="power"):
        memcore.copy_store(path, address)
    with pytest.raises(StoreAccessError, match="copy"):
        memcore.open(address)
    with memcore.open(path) as db:  # the source goes on meanwhile
        db.session("s0", user="ann").append({"role": "user", "content": "late"})
    report = memcore.copy_store(path, address)
    assert 0 < report.written < report.rows
    assert rows(address) == rows(path)
    use(address)


def test_the_verb(path, address):
    with memcore.open(path) as db:
        fill(db)
    command = [sys.executable, "-m", "memcore", "copy", str(path), address]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "rows, compared" in told
    command = [sys.executable, "-m", "memcore", "ls", "--store", address]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "forked" in told


def test_between_two_servers(address, server):
    with memcore.open(address) as db:
        fill(db)
    other = server.address(f"copy{next(_numbers)}")
    memcore.copy_store(address, other)
    assert rows(other) == rows(address)
    use(other)


def test_what_is_refused(path, address, tmp_path, server):
    with pytest.raises(NotFoundError):
        memcore.copy_store(path, address)
    with memcore.open(path) as db:
        fill(db)
    memcore.copy_store(path, address)
    with pytest.raises(InvalidOptionError, match="already"):
        memcore.copy_store(path, address)
    with pytest.raises(InvalidOptionError, match="never overwrites"):
        memcore.copy_store(address, path)
    sealed = tmp_path / "sealed.memcore"
    key = bytes(range(32))
    memcore.open(sealed, key=key).close()
    with pytest.raises(memcore.KeyNeededError):
        memcore.copy_store(sealed, server.address(f"copy{next(_numbers)}"))
    audited = tmp_path / "audited.memcore"
    memcore.open(audited, audit=memcore.Audit(key=key)).close()
    with pytest.raises(InvalidOptionError, match="audited"):
        memcore.copy_store(audited, server.address(f"copy{next(_numbers)}"))


def test_the_beginning_of_another_copy(path, address, tmp_path, monkeypatch):
    with memcore.open(path) as db:
        fill(db)

    def failing(self, *_):
        raise StorageError("the power failed")

    with monkeypatch.context() as patch:
        patch.setattr(Filling, "replace", failing)
        with pytest.raises(StorageError, match="power"):
            memcore.copy_store(path, address)
    other = tmp_path / "other.memcore"
    memcore.open(other).close()
    with pytest.raises(InvalidOptionError, match="another store"):
        memcore.copy_store(other, address)


def test_two_copies_at_once(path, address, monkeypatch):
    """The slower one neither waits nor removes what was written since."""
    with memcore.open(path) as db:
        fill(db)
    replace, done = Filling.replace, []

    def replaced(self, *batch):
        if not done:
            done.append(1)
            with ThreadPoolExecutor(1) as another, pytest.raises(StoreLockedError):
                another.submit(memcore.copy_store, path, address).result()
            self.finish()  # as if the other one had been faster
            with memcore.open(address) as db:
                db.session("since", user="ann").append({"role": "user", "content": "x"})
        return replace(self, *batch)

    monkeypatch.setattr(Filling, "replace", replaced)
    with pytest.raises(StorageError, match="faster"):
        memcore.copy_store(path, address)
    with memcore.open(address) as db:
        assert db.session("since", user="ann").exists()


def test_the_secret_of_another_store_lies_there(path, address, tmp_path):
    with memcore.open(address) as db:
        fill(db)
    back = tmp_path / "back.memcore"
    beside = Path(f"{back}.secret")
    beside.write_bytes(bytes(32))
    with pytest.raises(InvalidOptionError, match="secret of another store"):
        memcore.copy_store(address, back)
    assert not back.exists()
    with memcore.open(address) as db:  # as a copy leaves it that is killed before its last step
        beside.write_bytes(db._engine.store.secret.value())
    memcore.copy_store(address, back)
    use(back)
