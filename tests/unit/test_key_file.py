"""The key file beside the data file: which of the two is ahead, whatever cuts the work short."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

import memcore
from memcore.errors import WrongKeyError
from memcore.privacy.keyring import BLOCK, KeyRing
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
        store, point = KeyRing._store, SteadySync.point

        def stored(ring, *args, **options):
            self.take("before the key file")
            store(ring, *args, **options)
            self.take("the key file")

        def pointed(pin):
            point(pin)
            self.take("the data file")

        monkeypatch.setattr(KeyRing, "_store", stored)
        monkeypatch.setattr(SteadySync, "point", pointed)

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
