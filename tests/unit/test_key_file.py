"""The key file beside the data file: which of the two is ahead, whatever cuts the work short."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from hashlib import sha256

import pytest

import memcore
from memcore.errors import CorruptStoreError, KeyFileError, WrongKeyError
from memcore.privacy import keyring
from memcore.privacy.keyring import BLOCK, MAGIC, KeyRing, key_provider
from memcore.store import steady
from memcore.store.steady import SteadySync

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
TEXT = "number 4711"


def text(what=TEXT):
    return {"role": "user", "content": what}


def place_of(path):
    """Where the key file of a database lies."""
    return path.with_name(path.name + ".keys")


class Cuts:
    """Copies of data file and key file, as a power cut leaves them behind each of their changes."""

    def __init__(self, path, folder, monkeypatch):
        self.path = path
        self.folder = folder
        self.found = []
        self.over = False
        folder.mkdir()
        store, point = KeyRing._store, SteadySync.sync

        def stored(ring, *args, **options):
            self.take("before the key file")
            store(ring, *args, **options)
            self.take("the key file")

        def pointed(pin):
            point(pin)
            self.take("the data file")

        monkeypatch.setattr(KeyRing, "_store", stored)
        monkeypatch.setattr(SteadySync, "sync", pointed)

    def take(self, what):
        if self.over:
            return
        copy = self.folder / f"{len(self.found)}.memcore"
        shutil.copy(self.path, copy)
        shutil.copy(place_of(self.path), place_of(copy))
        self.found.append((what, copy))

    def next_boot(self, monkeypatch):
        """The machine went down; the copies, each back at what was flushed when it was taken."""
        self.over = True
        monkeypatch.setattr(steady, "boot_id", lambda: b"the next boot id")
        return self.found


@pytest.fixture
def cuts(path, tmp_path, monkeypatch):
    """Of a relaxed database with two users, which is back at its last steady point in each copy."""
    with memcore.open(path, key=KEY, durability="relaxed") as db:
        for user in ("alice", "bob"):
            db.session("chat", user=user).extend([text(f"{TEXT} {n}") for n in range(30)])
    return Cuts(path, tmp_path / "cuts", monkeypatch)


def read_all(path, users, key=KEY):
    """Open, check, and read every content of the users."""
    with memcore.open(path, key=key) as db:
        assert db.check() == []
        for user in users:
            assert [item.message["content"] for item in db.session("chat", user=user)] == [
                f"{TEXT} {n}" for n in range(30)
            ]


def test_no_power_cut_leaves_a_value_without_its_key_when_data_keys_are_changed(
    path, cuts, monkeypatch
):
    with memcore.open(path, key=KEY, steady_interval_ms=60_000) as db:
        assert db.rotate_data_keys().finished
    assert [what for what, _ in cuts.found].count("the key file") == 4  # renewed, retired; of two
    for _, copy in cuts.next_boot(monkeypatch):
        read_all(copy, ("alice", "bob"))


def test_no_power_cut_leaves_a_value_without_its_key_when_users_come_and_go(
    path, cuts, monkeypatch
):
    with memcore.open(path, key=KEY, steady_interval_ms=60_000) as db:
        for number in range(BLOCK):
            db.session("chat", user=f"user {number}").append(text())
        db.erase("alice")
        db.rotate_key(OTHER)
        db.session("chat", user="bob").append(text())
    assert [what for what, _ in cuts.found].count("the key file") == 3
    gone = False
    for _, copy in cuts.next_boot(monkeypatch):
        try:
            db = memcore.open(copy, key=KEY)
        except WrongKeyError:
            db = memcore.open(copy, key=OTHER)
        with closing(db):
            assert db.check() == []
            assert all(item.message["content"] for item in db.session("chat", user="bob"))
            left = len(list(db.session("chat", user="alice")))
            assert left in ((0,) if gone else (0, 30))  # her name never comes back without her key
            gone = left == 0
    assert gone


def test_a_child_of_a_fork_writes_under_no_key_that_was_retired_meanwhile(path):
    """It held no lock on the file until its next use, so a rotation did not wait for it."""
    with memcore.open(path, key=KEY) as db:
        session = db.session("chat")
        session.append(text())
        told, go = os.pipe()
        child = os.fork()
        if not child:
            os.read(told, 1)
            session.append(text("by the child"))
            os._exit(0)
        assert db.rotate_data_keys().finished
    os.write(go, b".")
    assert os.waitpid(child, 0)[1] == 0
    with memcore.open(path, key=KEY) as db:
        assert [item.message["content"] for item in db.session("chat")] == [TEXT, "by the child"]
        assert db.check() == []


def test_no_keys_are_made_for_a_scope_whose_number_is_out_of_proportion():
    ring = KeyRing.create(None, key_provider(KEY))
    assert ring.mint(3)
    with pytest.raises(CorruptStoreError, match="far beyond"):
        ring.mint(2**40)
    assert ring.minted == BLOCK


@pytest.mark.parametrize("rest", [b"", b"x"])
def test_a_key_file_that_ends_behind_its_magic_is_damaged(path, rest):
    memcore.open(path, key=KEY).close()
    place_of(path).write_bytes(MAGIC + rest + sha256(MAGIC + rest).digest())
    with pytest.raises(KeyFileError, match="damaged"):
        memcore.open(path, key=KEY)


def test_an_interrupt_behind_the_new_key_file_leaves_a_handle_that_works(path, monkeypatch):
    with memcore.open(path, key=KEY) as db:
        db.session("chat").append(text())
        put = keyring.put_private

        def interrupted(*args, **options):
            put(*args, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(keyring, "put_private", interrupted)
            with pytest.raises(KeyboardInterrupt):
                db.rotate_key(OTHER)
        db.session("new", user="later").append(text())
        db.rotate_key(KEY)
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
