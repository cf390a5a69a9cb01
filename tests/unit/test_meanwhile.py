"""Care of a database that others change meanwhile: it goes on, and finds nothing in that."""

from __future__ import annotations

import itertools
import os

import pytest

import memcore
from memcore.database.redact import redact_session, sessions_in
from memcore.errors import StorageError, StoreAccessError
from memcore.privacy import redaction_policy
from memcore.retention import erasure as erasing
from memcore.retention import erasure as removing
from memcore.session.content_filter import redacts_at
from memcore.store import LmdbStore

LONG = bool(os.environ.get("MEMCORE_LONG_TESTS"))
"""Something happens between any two reads, and not only between some."""
KEY = bytes(range(32))


def fill(db, *users):
    for user in users:
        scope = db.scope(user=user)
        for name in ("a", "b"):
            session = scope.session(name)
            texts = [f"{user}{n}@example.com" for n in range(3)]
            session.extend([{"role": "user", "content": text} for text in texts])
            session.append({"role": "user", "content": user * 2**15})
            session.fork(f"{name} fork")
            session.state.put("plan", user)
        scope.state.put("plan", user)
        scope.kv("notes").put("k", user, ttl_seconds=3600)
        scope.blobs.put(os.urandom(2**18))
        scope.hold(reason="a case")


def erase_whole(db):
    db.erase("alice", override_hold=True, compact=False)


def erase_and_be_cut_short(db):
    """Two pieces of a few rows leave, and the rest stays."""
    step = removing._remove_piece
    pieces = itertools.count()

    def cut(txn, id_):
        if next(pieces) == 2:
            raise StorageError("cut short")
        return step(txn, id_)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removing, "PIECE_ROWS", 5)
        patch.setattr("memcore.store.interface.PIECE_ROWS", 5)
        patch.setattr(removing, "_remove_piece", cut)
        assert db.erase("alice", override_hold=True, compact=False).pending


def add_users(db):
    fill(db, "dave", "erin")


class Turns:
    """Does something between two reads or writes of the store, each time one later."""

    def __init__(self, tmp_path, monkeypatch, **options):
        self.path, self.options = tmp_path / "turn", options
        self.first = tmp_path / "first"
        self._patch = monkeypatch
        self._at = self._count = 0
        self._act = None
        with memcore.open(self.first, **options) as db:
            fill(db, "bob", "alice", "carol")
        self.image = self.first.read_bytes()  # a backup would be refused as a copy

    def count(self, work):
        """How many steps the work takes when nobody is in its way."""
        with self.opened() as db:
            self._run(db, work, None, 0)
        return self._count

    def run(self, work, act, number):
        """What the work gives, with an act before a step of it."""
        with self.opened() as db:
            found = self._run(db, work, act, number)
            assert self._act is None
            assert db.check() == [], number
            return found

    def opened(self):
        """A database as it was at first."""
        for suffix in ("", "-lock", ".keys", ".secret"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.write_bytes(self.image)
        if "key" in self.options:
            keys = self.first.with_name("first.keys").read_bytes()
            self.path.with_name("turn.keys").write_bytes(keys)
        return memcore.open(self.path, **self.options)

    def _run(self, db, work, act, at):
        self._count, self._at, self._act = 0, at, act

        def stepping(method):
            def step(store, *arguments, **options):
                self._count += 1
                if self._count == self._at:
                    todo, self._act = self._act, None
                    todo(db)
                return method(store, *arguments, **options)

            return step

        with self._patch.context() as patch:
            patch.setattr(LmdbStore, "read", stepping(LmdbStore.read))
            patch.setattr(LmdbStore, "transact", stepping(LmdbStore.transact))
            return work(db)


@pytest.mark.parametrize("act", [erase_whole, erase_and_be_cut_short, add_users])
@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["clear", "sealed"])
def test_whatever_happens_between_two_reads_is_no_finding(tmp_path, monkeypatch, act, options):
    turns = Turns(tmp_path, monkeypatch, **options)
    steps = turns.count(memcore.Database.check)
    assert steps > 20
    for number in range(1, steps + 1, 1 if LONG else 4):
        assert turns.run(memcore.Database.check, act, number) == [], number


@pytest.mark.parametrize("act", [erase_whole, erase_and_be_cut_short])
@pytest.mark.parametrize("audit", [None, memcore.Audit(key=KEY)], ids=["plain", "audited"])
def test_a_rotation_passes_over_who_is_erased_meanwhile(tmp_path, monkeypatch, act, audit):
    turns = Turns(tmp_path, monkeypatch, key=KEY, audit=audit)
    steps = turns.count(memcore.Database.rotate_data_keys)
    assert steps > 20
    for number in range(1, steps + 1, 1 if LONG else 6):
        assert turns.run(memcore.Database.rotate_data_keys, act, number).finished
        if audit is not None:
            with memcore.open(turns.path, key=KEY, read_only=True) as db:
                assert db.verify_audit(key=KEY).ok


@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["clear", "sealed"])
@pytest.mark.parametrize("act", [erase_whole, erase_and_be_cut_short])
def test_a_redaction_passes_over_who_is_erased_meanwhile(tmp_path, monkeypatch, act, options):
    turns = Turns(tmp_path, monkeypatch, **options)
    steps = turns.count(redact_all)
    assert steps > 20
    for number in range(1, steps + 1, 1 if LONG else 9):
        found = turns.run(redact_all, act, number)
        assert sum(each.rewritten for each in found if each.user == "bob") == 6


def redact_all(db):
    """As ``memcore redact --yes`` does."""
    db.scope(user="bob").release()
    rule = redaction_policy("default")
    found = []
    for app, user in db.scopes():
        for place in db.engine.store.read(lambda txn, a=app, u=user: sessions_in(txn, a, u)):
            found += redact_session(db.engine, place, redacts_at(db.engine, rule, place[:3]))
    return [each for each in found if each.where == "items"]


def test_damage_beside_an_erasure_is_still_found(tmp_path, monkeypatch):
    """Only what is of the erased user is passed over."""
    import lmdb

    path = tmp_path / "a"
    with memcore.open(path) as db:
        fill(db, "alice", "bob")
        rows = db.engine.store.read(lambda txn: dict(txn.scan(b"\x05", b"\x06")))
    harmed = [next(key for key in rows if key[8] == scope and key[17] == 3) for scope in (1, 2)]
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        for key in harmed:
            txn.put(key, rows[key][:-1] + bytes((rows[key][-1] ^ 1,)))
    with memcore.open(path) as db:
        assert len(db.check()) == 2
        with monkeypatch.context() as patch:
            patch.setattr(erasing, "remove_rows", lambda *_: None)
            db.erase("alice", override_hold=True, compact=False)
        assert len(db.check()) == 1


def test_a_file_that_is_changed_while_it_is_read_without_a_lock_is_not_called_damaged(
    tmp_path, monkeypatch
):
    from memcore.store import environment as module

    path = tmp_path / "a"
    with memcore.open(path) as db:
        fill(db, "alice")
    for name in (path, path.with_name("a-lock")):
        if name.exists():
            name.chmod(0o444)
    with memcore.open(path, read_only=True) as db:
        env = db.engine.store.environment()
        env.is_locked = False
        env.begin = env._begin_unlocked
        monkeypatch.setattr(module, "lockers_of", lambda _: False)
        assert db.check() == []
        newest = module.newest_meta
        txnid = newest(env.fd, env.path).txnid

        def later(fd, path):
            found = newest(fd, path)
            return found._replace(txnid=txnid + 2) if next(left, None) is None else found

        monkeypatch.setattr(module, "newest_meta", later)
        for sound in (0, 3, 10, 20):
            left = iter(range(sound))
            with pytest.raises(StoreAccessError, match="changed while it was read"):
                db.check()
        monkeypatch.setattr(module, "newest_meta", newest)
        assert db.check() == []
