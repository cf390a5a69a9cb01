"""The check of a database that others change meanwhile: what they do is no finding."""

from __future__ import annotations

import itertools
import os

import pytest

import memcore
from memcore.errors import StorageError, StoreAccessError
from memcore.retention import erasing, removing
from memcore.store import LmdbStore

KEY = bytes(range(32))
THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def fill(db, *users):
    for user in users:
        scope = db.scope(user=user)
        for name in ("a", "b"):
            session = scope.session(name)
            session.extend([{"role": "user", "content": f"{user} {n}"} for n in range(3)])
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
        patch.setattr("memcore.store.piece.PIECE_ROWS", 5)
        patch.setattr(removing, "_remove_piece", cut)
        assert db.erase("alice", override_hold=True, compact=False).pending


def add_users(db):
    fill(db, "dave", "erin")


@pytest.mark.parametrize("act", [erase_whole, erase_and_be_cut_short, add_users])
@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["clear", "sealed"])
def test_whatever_happens_between_two_reads_is_no_finding(tmp_path, monkeypatch, act, options):
    read = LmdbStore.read
    reads = acted = 0
    at: int | None = None

    def counted(self, fn, **patience):
        nonlocal reads, acted
        reads += 1
        if reads == at:
            acted += 1
            act(db)
        return read(self, fn, **patience)

    def checked(turn):
        nonlocal reads
        reads = 0
        with monkeypatch.context() as patch:
            patch.setattr(LmdbStore, "read", counted)
            return turn()

    with memcore.open(tmp_path / "first", **options) as db:
        fill(db, "bob", "alice", "carol")
        assert checked(db.check) == []
        total = reads
        db.backup(tmp_path / "backup")
    assert total > 20
    for number in range(1, total + 1):
        path = tmp_path / "turn"
        for suffix in ("", "-lock", ".keys", ".secret"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes((tmp_path / "backup").read_bytes())
        if options:
            keys = (tmp_path / "first.keys").read_bytes()
            path.with_name("turn.keys").write_bytes(keys)
        at = None
        with memcore.open(path, **options) as db:
            at = number
            assert checked(db.check) == [], number
            at = None
            assert db.check() == []
    assert acted == total


def test_damage_beside_an_erasure_is_still_found(tmp_path, monkeypatch):
    """Only what is of the erased user is passed over."""
    import lmdb

    path = tmp_path / "a"
    with memcore.open(path) as db:
        fill(db, "alice", "bob")
        rows = db.backing.store.read(lambda txn: dict(txn.scan(b"\x05", b"\x06")))
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
        env = db.backing.store.environment()
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
