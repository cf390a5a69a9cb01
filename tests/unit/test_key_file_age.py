"""Key files and databases of different times: older backups, older key files, restores."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.codec import keys
from memcore.codec.keys import Care, Kind, Row, care_rows
from memcore.codec.values import (
    HEADER_BYTES,
    encode_json,
    open_value,
    seal_encrypted,
    seal_value,
)
from memcore.errors import (
    CorruptStoreError,
    CorruptValueError,
    InvalidOptionError,
    KeyFileError,
    StorageError,
    StoreFullError,
    TamperedError,
    WrongKeyError,
)
from memcore.limits import PAGE_BYTES
from memcore.maintenance import salvage as salvaging
from memcore.maintenance.doctor import examine
from memcore.maintenance.salvage_rows import erased_scopes, is_row
from memcore.privacy import keyring
from memcore.privacy.keyring import BLOCK, KeyRing, key_provider
from memcore.retention import erasure
from memcore.rows import names
from memcore.rows.lifecycle import ERASURES, tombstone_of
from memcore.store import steady
from memcore.store import store as handles
from memcore.store.datafile import newest_meta
from memcore.store.encryption import RowCipher, owner_of
from memcore.store.page_scan import Confidence, PageScan, run_of

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
MARK = "MARKER-7f3a9"
DATA_KEY = bytes((Kind.COUNTER, 7))
OWNER = care_rows(0, 9)


def item(text=MARK):
    return {"role": "user", "content": text}


def key_file(path):
    return path.with_name(f"{path.name}.keys")


def fill(db, *users):
    for user in users:
        db.session("s", user=user).append(item(f"{MARK} {user}"))
        db.scope(user=user).kv("notes").put("k", MARK)


def said(db):
    """The newest data key that the file says it has seen."""
    return db.engine.store.read(db.engine.store.vault.noted)


@pytest.fixture
def backup(path, tmp_path):
    """A copy of a database of three users, two of which were erased since, and one is new."""
    copy = tmp_path / "backup"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob", "carol")
        db.scope(user="alice").hold(reason="a case")
        db.backup(copy)
        db.scope(user="alice").release()
        db.erase("alice")
        db.erase("carol")
        fill(db, "dave")
        db.erase("dave")
    return copy


def put_back(backup, path):
    memcore.restore(backup, path, replace=True, keep=False, key=KEY)


# --- an older file beside a newer key file --------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_new_users_come_to_a_backup_that_is_older_than_an_erasure(path, backup, keep):
    memcore.restore(backup, path, replace=True, keep=keep, key=KEY)
    with memcore.open(path, key=KEY) as db:
        fill(db, "erin", "frank", "alice", "dave")
        assert db.session("s", user="bob").get(1).message["content"] == f"{MARK} bob"
        assert db.session("s", user="alice").get(1).message["content"] == f"{MARK} alice"
        assert len(db.session("s", user="alice")) == 1
        assert db.check() == []


def test_who_was_erased_since_the_backup_stays_erased(path, backup):
    put_back(backup, path)
    with memcore.open(path, key=KEY) as db:
        assert [user for _, _, user in db.engine.store.read(lambda t: list(names.scopes(t)))] == [
            "bob"
        ]
        assert db.check() == []
        assert db.erase("alice").bytes_gone  # goes on with what the opening began
        assert [receipt.bytes_gone for receipt in db.finish_erasures()] == [True]
        assert db.scope(user="bob").holds() == []
        assert db.check() == []
    left = path.read_bytes()
    assert b"alice" not in left
    assert b"carol" not in left
    assert b"bob" in left


def test_a_backup_is_sound_though_users_were_erased_since(path, backup):
    shutil.copy(backup, path)
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert db.check() == []
        with pytest.raises(TamperedError):
            db.session("s", user="alice").get(1)


def test_damage_is_found_beside_those_who_were_erased(path, backup):
    shutil.copy(backup, path)
    with memcore.open(path, key=KEY, read_only=True) as db:
        rows = db.engine.store.read(lambda txn: dict(txn.scan(b"\x05", b"\x06")))
    bob = next(key for key in rows if key[8] == 2 and key[17] == Row.ITEM)
    rewrite(path, {bob: b"\x02" + bytes(60)})
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert len(db.check()) == 1
    with pytest.raises(memcore.CorruptStoreError):
        memcore.restore(path, path.with_name("fresh"), key=KEY)


def test_a_restore_removes_who_was_erased_since(path, tmp_path):
    """Else they are listed until the next opening for writing, and nobody can export anything."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        db.backup(tmp_path / "backup")
        db.erase("alice")
    assert memcore.restore(tmp_path / "backup", path, replace=True, key=KEY).unsure == ()
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert {entry.user for entry in db.sessions()} == {"bob"}
        assert b"bob" in b"".join(db.export())
        assert db.check() == []


def test_a_restore_leaves_the_erased_of_an_audited_file_to_the_next_opening(path, tmp_path):
    audit = memcore.Audit(key=OTHER)
    with memcore.open(path, key=KEY, audit=audit) as db:
        fill(db, "alice", "bob")
        db.backup(tmp_path / "backup")
        db.erase("alice")
    (left,) = memcore.restore(tmp_path / "backup", path, replace=True, key=KEY).unsure
    assert "the next opening for writing" in left
    with memcore.open(path, key=KEY, audit=audit) as db:
        assert {entry.user for entry in db.sessions()} == {"bob"}
        assert db.verify_audit().ok


def test_a_restore_tells_which_key_file_to_copy(path, tmp_path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        db.backup(tmp_path / "backup")
    shutil.copy(key_file(path), f"{tmp_path / 'backup'}.keys")
    (left,) = memcore.restore(tmp_path / "backup", tmp_path / "new", key=KEY).unsure
    assert left.endswith(f"copy {tmp_path / 'backup'}.keys to {tmp_path / 'new'}.keys")


def test_an_audited_backup_chains_who_stays_erased(path, tmp_path):
    audit = memcore.Audit(key=OTHER)
    with memcore.open(path, key=KEY, audit=audit) as db:
        fill(db, "alice", "bob")
        db.backup(tmp_path / "backup")
        db.erase("alice")
    put_back(tmp_path / "backup", path)
    with memcore.open(path, key=KEY, audit=audit) as db:
        fill(db, "erin")
        db.finish_erasures()
        assert db.check() == []
        assert db.verify_audit().ok


def test_removing_who_was_erased_is_gone_on_with(path, backup, monkeypatch):
    """Cut short between the burial and the last of the rows, it is no finding and is finished."""
    put_back(backup, path)
    from memcore.retention import erasure as erasing

    def killed(*_, **__):
        raise StorageError("cut short")

    with monkeypatch.context() as patch:
        patch.setattr(erasing, "remove_rows", killed)
        with memcore.open(path, key=KEY) as db:
            assert db.check() == []
            fill(db, "erin")
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
        assert len(db.finish_erasures()) == 2
        assert db.check() == []


def rewrite(path, changes):
    import lmdb

    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)


# --- an older key file ----------------------------------------------------------------------------


@pytest.fixture
def renewed(path):
    """A database whose key file has other keys than ``older`` has: by a rotation."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        db.engine.store.flush()
        shutil.copy(key_file(path), f"{path}.older")
        db.rotate_data_keys(user="alice")
    return path


def test_an_older_key_file_is_refused_though_it_knows_all_users(renewed):
    before = renewed.read_bytes()
    with pytest.raises(KeyFileError, match=r"older than the database.*newest copy.*read-only"):
        memcore.open(renewed, key=KEY, key_file=f"{renewed}.older")
    assert renewed.read_bytes() == before
    with memcore.open(renewed, key=KEY, key_file=f"{renewed}.older", read_only=True) as db:
        assert db.session("s", user="bob").get(1).message["content"] == f"{MARK} bob"
        assert any("older" in finding for finding in db.check())
    with memcore.open(renewed, key=KEY) as db:
        assert db.check() == []


def test_a_newer_file_is_not_restored_beside_an_older_key_file(renewed, tmp_path):
    target = tmp_path / "target"
    shutil.copy(f"{renewed}.older", key_file(target))
    with pytest.raises(KeyFileError, match="older than the database"):
        memcore.restore(renewed, target, key=KEY)
    assert not target.exists()
    with pytest.raises(KeyFileError, match="older than the database"):
        memcore.restore(renewed, target, key=KEY, force=True)


def test_salvage_with_an_older_key_file_makes_a_database_of_what_it_reads(renewed, tmp_path):
    memcore.salvage(renewed, tmp_path / "new", key=KEY, key_file=f"{renewed}.older")
    with memcore.open(tmp_path / "new", key=KEY) as db:
        assert db.session("s", user="bob").get(1).message["content"] == f"{MARK} bob"
        fill(db, "erin")
        assert db.check() == []


def test_the_file_says_which_data_key_is_the_newest(path):
    with memcore.open(path, key=KEY) as db:
        assert said(db) == 0
        fill(db, "alice")
        assert said(db) == BLOCK
        db.rotate_data_keys()
        assert said(db) == BLOCK + 1
        with pytest.raises(RuntimeError, match="cut short"):
            db.engine.store.transact(lambda txn: mint_and_fail(db, txn))
        assert said(db) == BLOCK + 1  # a key that nothing is encrypted with: the key file is ahead
        fill(db, "bob")
        assert said(db) == db.engine.store.vault.ring.last > BLOCK + 1
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []


def mint_and_fail(db, txn):
    key = keys.session_row(BLOCK * 3, 1, Row.ITEM, 1)
    txn.put(key, seal_value(key, b"x"))
    raise RuntimeError("cut short")


def test_a_file_of_an_older_memcore_gets_its_row_with_the_next_commit(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    rewrite(path, {DATA_KEY: None})
    with memcore.open(path, key=KEY) as db:
        assert said(db) == 0
        fill(db, "alice")
        assert said(db) == BLOCK


def test_a_damaged_row_is_found_and_written_anew(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    rewrite(path, {DATA_KEY: b"\x01\x00" + bytes(16)})
    with memcore.open(path, key=KEY) as db:
        assert len(db.check()) == 1
        fill(db, "alice")
        assert said(db) == BLOCK
        assert db.check() == []


def test_several_processes_mint_keys_and_none_takes_the_row_back(path):
    script = """
import sys, memcore
with memcore.open(sys.argv[1], key=bytes(range(32))) as db:
    print("here", flush=True)
    sys.stdin.readline()
    db.session("s", user="alice").append({"role": "user", "content": "x"})
    print(db.engine.store.read(db.engine.store.vault.noted), flush=True)
"""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        child = subprocess.Popen(
            [sys.executable, "-c", script, path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with child:
            assert child.stdout.readline() == "here\n"
            fill(db, *(f"u{number}" for number in range(BLOCK)))
            last = said(db)
            assert last == 2 * BLOCK
            child.stdin.write("\n")
            child.stdin.flush()
            assert int(child.stdout.readline()) == last
        assert child.returncode == 0
        assert said(db) == last
        assert db.check() == []


# --- a key file that is replaced while the database is open ---------------------------------------


def test_an_older_key_file_put_in_place_under_way_is_refused(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        older = key_file(path).read_bytes()
        fill(db, *(f"u{number}" for number in range(BLOCK)))
        newest = key_file(path).read_bytes()
        key_file(path).write_bytes(older)
        with pytest.raises(KeyFileError, match=r"older copy.*newest"):
            fill(db, *(f"v{number}" for number in range(BLOCK)))
        assert db.session("s", user="u60").get(1).message["content"] == f"{MARK} u60"
        with pytest.raises(KeyFileError, match="older"):
            memcore.open(path, key=KEY)
        key_file(path).write_bytes(newest)
        fill(db, *(f"v{number}" for number in range(BLOCK)))
        assert db.check() == []


def claim_again(db):
    """As the first opening of a file of an older memcore does."""
    db.engine.store.vault.ring.claim(db.engine.store.read(owner_of))


@pytest.mark.parametrize(
    "change",
    [
        lambda db: fill(db, *(f"u{number}" for number in range(BLOCK))),
        lambda db: db.erase("alice", compact=False),
        lambda db: db.rotate_key(OTHER),
        claim_again,
    ],
    ids=["minted", "erased", "under another key", "claimed"],
)
def test_what_a_thread_changes_while_another_one_opens_is_no_older_copy(path, monkeypatch, change):
    load = KeyRing.load

    def late(place, provider):
        ring = load(place, provider)
        change(db)
        return ring

    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        ring = db.engine.store.vault.ring
        if change is claim_again:
            ring._store(ring._table._replace(owner=b""))
        with monkeypatch.context() as patch:
            patch.setattr(KeyRing, "load", late)
            with memcore.open(path, key=KEY) as again:
                assert again.session("s", user="bob").get(1).message["content"] == f"{MARK} bob"
        table = load(ring.path, ring._provider)._table
        assert table == ring._table
        fill(db, *(f"v{number}" for number in range(BLOCK)))
        assert db.check() == []


def test_an_opening_under_a_newer_key_brings_it_to_the_others(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        other = KeyRing.load(str(key_file(path)), key_provider(KEY))
        other.rewrap(key_provider(OTHER))
        with memcore.open(path, key=OTHER) as again:
            fill(again, "bob")
        other.rewrap(key_provider(OTHER))
        fill(db, *(f"u{number}" for number in range(BLOCK)))
        assert db.check() == []


def test_a_key_file_in_which_a_shredded_key_is_back_is_an_older_one(path):
    ring = KeyRing.create(str(key_file(path)), key_provider(KEY))
    ring.mint(1)
    older = key_file(path).read_bytes()
    ring.shred([1])
    key_file(path).write_bytes(older)
    with pytest.raises(KeyFileError, match="older copy"):
        ring.refresh()
    assert ring.of_scope(1) is None


def test_the_key_file_of_another_database_put_in_place_is_refused(path, tmp_path):
    other = tmp_path / "other"
    with memcore.open(path, key=KEY) as db, memcore.open(other, key=KEY) as another:
        fill(db, "alice")
        fill(another, *(f"u{number}" for number in range(2 * BLOCK)))
        shutil.copy(key_file(other), key_file(path))
        with pytest.raises(KeyFileError, match="another database"):
            fill(db, *(f"u{number}" for number in range(BLOCK)))


def test_keys_that_came_back_with_an_older_key_file_are_shredded_again(path):
    """It lacks nothing that contents need, but whoever was erased since has a key in it."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        older = key_file(path).read_bytes()
        db.erase("alice")
    key_file(path).write_bytes(older)
    with memcore.open(path, key=KEY) as db:
        assert db.engine.store.vault.ring.shredded() == [1]
        assert KeyRing.load(str(key_file(path)), key_provider(KEY)).of_scope(1) is None
        assert db.check() == []
        fill(db, "alice")


# --- erasures whose keys are still there, and copies of the file ----------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def waiting(path, tmp_path, monkeypatch):
    """A database in which alice was erased while there was no room to drop her key."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        db.backup(tmp_path / "backup")
        with monkeypatch.context() as patch:
            patch.setattr(keyring, "put_private", full)
            assert not db.erase("alice").bytes_gone
    return path


def ring_of(path):
    return KeyRing.load(str(key_file(path)), key_provider(KEY))


def opens(backup, user, keys_of):
    """Whether a key file opens what a user said in a backup."""
    options = {"key": KEY, "key_file": key_file(keys_of), "read_only": True}
    with memcore.open(backup, **options) as db:
        try:
            return db.session("s", user=user).get(1).message["content"] == f"{MARK} {user}"
        except TamperedError:
            return False


def stones(path):
    """The keys of the rows that say who was erased, and of those of erasures under way."""
    import lmdb

    start = care_rows(0, Care.ERASURE)
    with lmdb.open(str(path), subdir=False, readonly=True) as env, env.begin() as txn:
        return [key for key, _ in txn.cursor() if key.startswith(start)]


def test_salvage_takes_no_key_along_that_awaits_shredding(waiting, tmp_path):
    new, old = tmp_path / "new", ring_of(waiting)
    memcore.salvage(waiting, new, key=KEY)
    made = ring_of(new)
    assert made.of_scope(1) is None
    assert made.of_scope(2) == old.of_scope(2)
    # Nobody has the others yet; if somebody had, no key of theirs may outlive an erasure.
    assert all(made.of_scope(each) != old.of_scope(each) for each in range(3, old.minted))
    with memcore.open(waiting, key=KEY) as db:
        assert [each.bytes_gone for each in db.finish_erasures()] == [True]
    assert not opens(tmp_path / "backup", "alice", keys_of=new)
    with memcore.open(new, key=KEY) as db:
        assert len(db.session("s", user="bob")) == 1
        fill(db, "alice", "carol")
        assert db.check() == []
    assert opens(tmp_path / "backup", "bob", keys_of=new)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_row_that_says_who_was_erased_is_enough_for_salvage(path, tmp_path, lost):
    """The process was killed behind the first transaction; then a row is lost."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
    child = os.fork()
    if not child:
        db = memcore.open(path, key=KEY)
        erasure._Work.advance = lambda *_, **__: os._exit(0)
        db.erase("alice")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    rows = stones(path)
    assert len(rows) == 2
    rewrite(path, {rows[lost]: None})
    memcore.salvage(path, tmp_path / "new", key=KEY)
    assert ring_of(tmp_path / "new").of_scope(1) is None
    with memcore.open(tmp_path / "new", key=KEY) as db:
        assert [user for _, user in db.scopes()] == ["bob"]
        assert db.check() == []


def test_who_awaits_shredding_does_not_come_back_with_a_backup(waiting, tmp_path):
    """The file that is replaced is the only one that knows of the erasure."""
    memcore.restore(tmp_path / "backup", waiting, replace=True, key=KEY)
    assert ring_of(waiting).of_scope(1) is None
    with memcore.open(waiting, key=KEY) as db:
        assert [user for _, user in db.scopes()] == ["bob"]
        db.finish_erasures()
        assert db.check() == []


def test_a_restore_that_cannot_shred_what_awaits_it_changes_nothing(waiting, tmp_path, monkeypatch):
    before = waiting.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(keyring, "put_private", full)
        with pytest.raises(KeyFileError, match="await shredding"):
            memcore.restore(tmp_path / "backup", waiting, replace=True, key=KEY)
    assert waiting.read_bytes() == before


@pytest.mark.parametrize("damage", ["metas", "tree"])
def test_a_damaged_file_says_who_awaits_shredding_when_it_is_replaced(waiting, tmp_path, damage):
    with waiting.open("r+b") as file:
        if damage == "metas":
            file.write(bytes(2 * PAGE_BYTES))
        else:
            with memcore.open(waiting, key=KEY, read_only=True) as db:
                root = newest_meta(db.engine.store.environment().fd, str(waiting)).main_root
            file.seek(root * PAGE_BYTES)
            file.write(b"\xff" * 16)
    memcore.restore(tmp_path / "backup", waiting, replace=True, key=KEY)
    assert ring_of(waiting).of_scope(1) is None


def test_copies_of_a_file_with_erasures_go_on_with_them(waiting, tmp_path):
    """A backup and a compact copy have the rows that say so, and shred at their first opening."""
    with memcore.open(waiting, key=KEY, read_only=True) as db:
        db.backup(tmp_path / "later")
    copy = tmp_path / "copy"
    shutil.copy(key_file(waiting), key_file(copy))
    memcore.restore(tmp_path / "later", copy, key=KEY)
    with memcore.open(copy, key=KEY) as db:
        assert [each.bytes_gone for each in db.finish_erasures()] == [True]
    assert ring_of(copy).of_scope(1) is None
    with memcore.open(waiting, key=KEY) as db:
        db.copy_compact()
        assert [each.bytes_gone for each in db.finish_erasures()] == [True]
    assert ring_of(waiting).of_scope(1) is None


# --- rows that say that somebody was erased who was not -------------------------------------------


def plant(path, key, body=b"", flags=0):
    rewrite(path, {key: seal_value(key, body, flags)})


def erasure_of(scopes):
    """Key, body and flags of the row of an erasure under way."""
    fields = {"user": "u", "app": None, "told_user": "u", "told_app": None, "scopes": scopes}
    return ERASURES + bytes(16), *encode_json(fields | {"asked_ms": 0, "bytes_before": 0})


def killed_in_erasure(path, user, prepare=lambda _: None, **options):
    """Let a process die behind the first transaction of an erasure."""
    child = os.fork()
    if not child:
        db = memcore.open(path, key=KEY, **options)
        prepare(db)
        erasure._Work.advance = lambda *_, **__: os._exit(0)
        db.erase(user)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def break_root(path, **options):
    with memcore.open(path, key=KEY, read_only=True, **options) as db:
        meta = newest_meta(db.engine.store.environment().fd, str(path))
    with path.open("r+b") as file:
        file.seek(meta.main_root * PAGE_BYTES)
        file.write(b"\xff" * 16)


def test_a_tombstone_that_somebody_planted_destroys_no_key(two, tmp_path):
    with memcore.open(two, key=KEY) as db:
        db.backup(tmp_path / "backup")
    plant(two, tombstone_of(2))
    keys_before, new = key_file(two).read_bytes(), tmp_path / "new"
    report = memcore.salvage(two, new, key=KEY)
    assert ["bob" in each for each in report.unsure] == [True]
    assert ring_of(new).of_scope(1) is not None
    assert ring_of(new).of_scope(2) is None
    with memcore.open(new, key=KEY) as db:
        assert [user for _, user in db.scopes()] == ["alice"]
        fill(db, "carol")
        assert db.check() == []
    done = memcore.restore(tmp_path / "backup", two, replace=True, key=KEY)
    assert ["bob" in each for each in done.unsure] == [True]
    assert key_file(two).read_bytes() == keys_before
    assert content(two, "bob") == f"{MARK} bob"


def test_an_erasure_that_was_never_committed_destroys_no_key(path, tmp_path):
    """The power failed when its pages were written, and neither record nor meta page was."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        db.backup(tmp_path / "backup")
    before = path.read_bytes()
    killed_in_erasure(path, "bob")
    after = bytearray(path.read_bytes())
    after[: 2 * PAGE_BYTES] = before[: 2 * PAGE_BYTES]
    with path.open("rb") as file:
        run = run_of(file.fileno())
    blank = slice(run.slots[0], run.slots[1] + run.slot_bytes)
    after[blank] = before[blank]
    assert bytes(after[: len(before)]) != before or len(after) > len(before)
    path.write_bytes(after)
    break_root(path)
    memcore.salvage(path, tmp_path / "new", key=KEY)
    with memcore.open(tmp_path / "new", key=KEY) as db:
        saved = [user for _, user in db.scopes()]
        assert db.check() == []
    assert "bob" in saved
    memcore.restore(tmp_path / "backup", path, replace=True, key=KEY)
    assert content(path, "bob") == f"{MARK} bob"


def test_a_number_that_was_given_out_again_keeps_its_keys(path, tmp_path, monkeypatch):
    """A power cut takes back a user who came and was erased; a page of then says so for good."""
    relaxed = {"durability": "relaxed", "steady_interval_ms": 60_000}
    with memcore.open(path, key=KEY, **relaxed) as db:
        fill(db, "alice", "bob")

    def come(db):
        for number in range(30):
            db.session(f"s{number}", user="xaver").append(item("z" * 9000))

    killed_in_erasure(path, "xaver", come, **relaxed)
    monkeypatch.setattr(steady, "boot_id", lambda: b"the next boot id")
    with memcore.open(path, key=KEY, **relaxed) as db:
        fill(db, "dave")
        assert dict(map(reversed, db.engine.store.read(numbers)))["dave"] == 3
        db.engine.store.flush()
        db.backup(tmp_path / "backup")
    break_root(path)
    memcore.salvage(path, tmp_path / "new", key=KEY)
    with memcore.open(tmp_path / "new", key=KEY) as db:
        saved = [user for _, user in db.scopes()]
        assert db.check() == []
    assert "dave" in saved
    memcore.restore(tmp_path / "backup", path, replace=True, key=KEY)
    assert content(path, "dave") == f"{MARK} dave"


def numbers(txn):
    return [(scope, user) for scope, _, user in names.scopes(txn)]


TREE, USED, BEFORE, UNKNOWN, FREED = Confidence


@pytest.mark.parametrize(
    ("stone", "named", "says"),
    [
        (TREE, None, "erased"),
        (FREED, None, "erased"),
        (TREE, USED, "erased"),
        (USED, FREED, "erased"),
        (USED, BEFORE, "erased"),
        (TREE, TREE, "unsure"),
        (USED, USED, "unsure"),
        (UNKNOWN, UNKNOWN, "unsure"),
        (FREED, FREED, "unsure"),
        (UNKNOWN, BEFORE, "unsure"),  # the erasure may be what was committed last
        (USED, TREE, "alive"),
        (FREED, USED, "alive"),
        (FREED, UNKNOWN, "alive"),
        (FREED, BEFORE, "alive"),
    ],
)
@pytest.mark.parametrize("row", ["tombstone", "erasure"])
def test_the_surer_row_says_whether_a_user_was_erased(two, row, stone, named, says):
    name = Kind.SCOPE if row == "tombstone" else Kind.SCOPE_NAME
    plant(two, *((tombstone_of(2),) if row == "tombstone" else erasure_of([2])))
    fd = os.open(two, os.O_RDONLY)
    try:
        wreck = PageScan(fd, is_row, RowCipher(ring_of(two)))
        wreck.read()
        for key in list(wreck.rows):
            rank = stone if key.startswith((ERASURES, tombstone_of(2))) else named
            if key[0] in (Kind.SCOPE, Kind.SCOPE_NAME) and (rank is None or key[0] != name):
                del wreck.rows[key]
            else:
                wreck.rows[key] = [at._replace(rank=rank or TREE) for at in wreck.rows[key]]
        found = erased_scopes(wreck, wreck)
    finally:
        os.close(fd)
    assert found == ({2} if says == "erased" else set(), {2} if says == "unsure" else set())


@pytest.mark.parametrize("scope", [2**70, 2**64 - 1, 2**40, 0, -5])
@pytest.mark.parametrize("row", ["tombstone", "erasure"])
@pytest.mark.parametrize("key", [None, KEY])
def test_a_number_that_no_user_can_have_stops_no_salvage(path, tmp_path, scope, row, key):
    with memcore.open(path, key=key) as db:
        fill(db, "alice", "bob")
    if row == "erasure":
        plant(path, *erasure_of([scope]))
    else:
        plant(path, tombstone_of(scope & 2**64 - 1))
    memcore.salvage(path, tmp_path / "new", key=key)
    with memcore.open(tmp_path / "new", key=key) as db:
        assert [user for _, user in db.scopes()] == ["alice", "bob"]
        fill(db, "carol")
        assert dict(map(reversed, db.engine.store.read(numbers)))["carol"] == 3
        assert db.check() == []


@pytest.mark.parametrize("scope", [2**70, -5, 0])
@pytest.mark.parametrize("key", [None, KEY])
def test_an_erasure_of_a_number_that_is_none_stops_no_opening(path, scope, key):
    with memcore.open(path, key=key) as db:
        fill(db, "alice")
    plant(path, *erasure_of([scope]))
    with memcore.open(path, key=key) as db:
        fill(db, "bob")
        with pytest.raises(CorruptValueError):
            db.finish_erasures()


def test_a_restore_that_fails_changes_no_keys(waiting, tmp_path):
    backup = tmp_path / "backup"
    rewrite(backup, {scope_key(2): seal_value(scope_key(2), b"")})
    before = key_file(waiting).read_bytes()
    with pytest.raises(CorruptStoreError, match="no sound backup"):
        memcore.restore(backup, waiting, replace=True, key=KEY)
    assert key_file(waiting).read_bytes() == before


def scope_key(scope):
    return keys.scoped(Kind.SCOPE, scope)


# --- salvages that are cut short ------------------------------------------------------------------


@pytest.fixture
def two(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
    return path


def names_of(tmp_path, path):
    """What lies in the directory beside the damaged file's own."""
    return {each for each in os.listdir(tmp_path) if not each.startswith(path.name)}


@pytest.mark.parametrize("at", ["reading pages", "writing", "sorting sessions", "checking"])
def test_an_interrupted_salvage_leaves_nothing(two, tmp_path, at):
    def stop(what, *_):
        if what == at:
            raise KeyboardInterrupt

    before = names_of(tmp_path, two)
    with pytest.raises(KeyboardInterrupt):
        memcore.salvage(two, tmp_path / "new", key=KEY, progress=stop)
    assert names_of(tmp_path, two) == before
    assert memcore.salvage(two, tmp_path / "new", key=KEY).sessions == 2


@pytest.mark.parametrize("error", [OSError(errno.EIO, "gone"), KeyboardInterrupt()])
def test_a_salvage_that_cannot_name_its_file_leaves_nothing(two, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    before = names_of(tmp_path, two)
    with monkeypatch.context() as patch:
        patch.setattr(salvaging, "publish", fail)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            memcore.salvage(two, tmp_path / "new", key=KEY)
    assert names_of(tmp_path, two) == before
    assert memcore.salvage(two, tmp_path / "new", key=KEY).sessions == 2


def test_a_key_file_is_taken_back_without_the_key_service(path, tmp_path, monkeypatch):
    class Service:
        fails = False

        def wrap(self, key, _):
            return key

        def unwrap(self, wrapped, _):
            if self.fails:
                raise OSError(errno.ENETDOWN, "Network is down")
            return wrapped

    def fail(*_):
        service.fails = True
        raise OSError(errno.ENOSPC, "No space left on device")

    service = Service()
    with memcore.open(path, key=service) as db:
        fill(db, "alice")
    before = names_of(tmp_path, path)
    with monkeypatch.context() as patch:
        patch.setattr(salvaging, "publish", fail)
        with pytest.raises(StoreFullError):
            memcore.salvage(path, tmp_path / "new", key=service)
    assert names_of(tmp_path, path) == before


def test_only_the_key_file_that_was_written_is_taken_back(two, tmp_path, monkeypatch):
    """Another process has put its own there meanwhile."""
    new = tmp_path / "new"

    def fail(*_):
        key_file(new).unlink()
        shutil.copy(key_file(two), key_file(new))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(salvaging, "publish", fail)
        with pytest.raises(StoreFullError):
            memcore.salvage(two, new, key=KEY)
    assert key_file(new).read_bytes() == key_file(two).read_bytes()


@pytest.mark.parametrize("at", ["key file", "its name", "the file"])
def test_a_killed_salvage_is_done_again(two, tmp_path, at):
    """Killed with the key file under a temporary name, under its own, and behind the data file."""
    child = os.fork()
    if not child:
        if at == "key file":
            os.link = lambda *_, **__: os._exit(0)
        elif at == "its name":
            salvaging.publish = lambda *_: os._exit(0)
        else:
            take = salvaging.publish
            salvaging.publish = lambda *names: (take(*names), os._exit(0))
        memcore.salvage(two, tmp_path / "new", key=KEY)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    if at == "the file":
        assert content(tmp_path / "new", "bob") == f"{MARK} bob"
        return
    assert any(".keys" in name for name in names_of(tmp_path, two))
    assert memcore.salvage(two, tmp_path / "new", key=KEY).sessions == 2
    assert names_of(tmp_path, two) - {"new-lock"} == {"new", "new.keys"}
    assert content(tmp_path / "new", "bob") == f"{MARK} bob"


def test_salvage_replaces_no_key_file_that_may_be_needed(two, tmp_path):
    new = tmp_path / "new"
    memcore.salvage(two, new, key=KEY)
    made = key_file(new).read_bytes()
    new.rename(tmp_path / "moved")
    with pytest.raises(KeyFileError, match="move it away"):
        memcore.salvage(two, new, key=KEY)
    (tmp_path / f"new.new-{2**22 + 1}-0123abcd").write_bytes(two.read_bytes())  # of a dead process
    with pytest.raises(KeyFileError, match="move it away"):
        memcore.salvage(two, new, key=KEY)
    assert key_file(new).read_bytes() == made
    assert not new.exists()


# --- one data file for a key file -----------------------------------------------------------------


def content(path, user, **options):
    with memcore.open(path, key=KEY, **options) as db:
        return db.session("s", user=user).get(1).message["content"]


def forget_owner(path):
    """As files of an older memcore are: neither says whose the other is."""
    rewrite(path, {OWNER: None})
    ring = KeyRing.load(str(key_file(path)), key_provider(KEY))
    ring._store(ring._table._replace(owner=b""))


def noted(path):
    """The owner as the key file says, and as the data file does."""
    ring = KeyRing.load(str(key_file(path)), key_provider(KEY))
    with memcore.open(path, key=KEY, read_only=True) as db:
        value = db.engine.store.read(lambda txn: txn.get(OWNER))
    return ring.owner, b"" if value is None else open_value(OWNER, value)[1]


def test_a_backup_is_not_written_beside_the_key_file_in_use(path, tmp_path):
    """Erasing a user there would shred the key of whoever has the same number here."""
    copy = tmp_path / "backup"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        db.backup(copy)
        fill(db, "bob")
        with pytest.raises(KeyFileError, match=r"is a copy.*restore.*read_only=True"):
            memcore.open(copy, key=KEY, key_file=key_file(path))
        assert content(copy, "alice", key_file=key_file(path), read_only=True) == f"{MARK} alice"
        assert content(path, "bob") == f"{MARK} bob"
        assert db.check() == []
    with memcore.open(copy, key=KEY, key_file=key_file(path), read_only=True) as db:
        assert db.check() == []
        assert db.scopes() == [("default", "alice")]


def test_two_new_databases_do_not_share_a_key_file(path, tmp_path):
    shared = tmp_path / "shared.keys"
    memcore.open(path, key=KEY, key_file=shared).close()
    with pytest.raises(KeyFileError, match="key file of"):
        memcore.open(tmp_path / "other", key=KEY, key_file=shared)
    assert not (tmp_path / "other").exists()
    with memcore.open(path, key=KEY, key_file=shared) as db:
        fill(db, "alice")
        assert db.check() == []


def test_of_two_files_of_before_the_first_keeps_the_key_file(path, tmp_path):
    other = tmp_path / "other"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    forget_owner(path)
    shutil.copy(path, other)
    assert content(path, "alice") == f"{MARK} alice"
    with pytest.raises(KeyFileError, match="is a copy"):
        memcore.open(other, key=KEY, key_file=key_file(path))
    assert content(other, "alice", key_file=key_file(path), read_only=True) == f"{MARK} alice"


def test_the_first_opening_for_writing_says_whose_the_keys_are(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    forget_owner(path)
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert db.check() == []
    assert noted(path) == (b"", b"")
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
    first, second = noted(path)
    assert first == second
    assert len(first) == 16
    before = key_file(path).read_bytes(), path.read_bytes()
    memcore.open(path, key=KEY).close()
    assert before == (key_file(path).read_bytes(), path.read_bytes())


def test_an_opening_that_was_cut_short_between_the_two_notes_is_gone_on_with(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    ring = KeyRing.load(str(key_file(path)), key_provider(KEY))
    owner = ring.owner
    ring._store(ring._table._replace(owner=b""))
    memcore.open(path, key=KEY).close()
    assert noted(path) == (owner, owner)


def test_a_key_file_that_cannot_be_written_waits_for_its_owner(path, monkeypatch, caplog):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    forget_owner(path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(keyring, "put_private", full)
        with memcore.open(path, key=KEY) as db:
            fill(db, "alice")
    assert "No space left" in caplog.text
    assert noted(path)[0] == b""
    memcore.open(path, key=KEY).close()
    assert len(set(noted(path))) == 1


@pytest.mark.parametrize("how", ["copied", "linked away", "kept by a restore"])
def test_a_second_copy_of_the_file_is_not_written_with_its_keys(path, tmp_path, how):
    """Its row says the same: that the right file lies beside the key file tells them apart."""
    other = tmp_path / "other"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        db.backup(tmp_path / "backup")
    if how == "copied":
        shutil.copy(path, other)
    elif how == "linked away":
        shutil.copy(path, other)
        os.symlink(key_file(path), key_file(other))
    else:
        report = memcore.restore(tmp_path / "backup", path, replace=True, key=KEY)
        os.rename(report.kept, other)
    options = {} if how == "linked away" else {"key_file": key_file(path)}
    with pytest.raises(KeyFileError, match=r"is a copy of .*restore"):
        memcore.open(other, key=KEY, **options)
    assert content(other, "alice", read_only=True, **options) == f"{MARK} alice"
    with memcore.open(path, key=KEY) as db:
        fill(db, "bob")
        assert db.check() == []


def test_a_backup_where_the_key_file_lies_locks_nobody_out(path, tmp_path):
    (tmp_path / "safe").mkdir()
    options = {"key": KEY, "key_file": tmp_path / "safe" / "agent.keys"}
    with memcore.open(path, **options) as db:
        fill(db, "alice")
        db.backup(tmp_path / "safe" / "agent")
    with memcore.open(path, **options) as db:
        fill(db, "bob")
        assert db.check() == []
    assert content(tmp_path / "safe" / "agent", "alice", read_only=True) == f"{MARK} alice"
    with pytest.raises(KeyFileError, match="is a copy"):
        memcore.open(tmp_path / "safe" / "agent", key=KEY)


def test_a_file_that_is_compacted_while_it_is_opened_is_no_copy_of_itself(path, monkeypatch):
    class Meanwhile:
        """The module, but that the file is compacted between opening it and looking at it."""

        def __getattr__(self, name):
            return getattr(os, name)

        def open(self, *args):
            fd = os.open(*args)
            db.copy_compact()
            return fd

    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        with monkeypatch.context() as patch:
            patch.setattr(handles, "os", Meanwhile())
            memcore.open(path, key=KEY).close()
        db.copy_compact()
        fill(db, "bob")
        assert db.check() == []


def test_a_file_that_was_moved_keeps_its_keys(path, tmp_path):
    (tmp_path / "there").mkdir()
    other = tmp_path / "there" / "other"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    os.rename(path, other)
    with memcore.open(other, key=KEY, key_file=key_file(path)) as db:
        fill(db, "bob")
    os.rename(key_file(path), key_file(other))
    with memcore.open(other, key=KEY) as db:
        assert db.check() == []


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_a_compaction_keeps_the_owner(path, durability):
    with memcore.open(path, key=KEY, durability=durability) as db:
        fill(db, "alice")
        db.copy_compact()
        assert db.erase("alice").bytes_gone
        fill(db, "bob")
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
    assert len(set(noted(path))) == 1


@pytest.mark.parametrize("compact", [True, False])
def test_backups_of_audited_files_verify_before_and_after_a_restore(path, tmp_path, compact):
    audit, target = memcore.Audit(key=OTHER), tmp_path / "target"
    with memcore.open(path, key=KEY, audit=audit) as db:
        fill(db, "alice")
        db.backup(tmp_path / "backup", compact=compact)
        assert db.verify_audit().ok
    shutil.copy(key_file(path), key_file(target))
    options = {"key": KEY, "audit": audit, "key_file": key_file(target)}
    with memcore.open(tmp_path / "backup", read_only=True, **options) as db:
        assert db.verify_audit().ok
    memcore.restore(tmp_path / "backup", target, key=KEY)
    with memcore.open(target, **options) as db:
        assert db.verify_audit().ok
        assert db.check() == []
    assert noted(target) == noted(path)


def test_what_salvage_makes_has_keys_of_its_own(path, tmp_path):
    new = tmp_path / "new"
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
    memcore.salvage(path, new, key=KEY)
    with pytest.raises(KeyFileError, match="another data file"):
        memcore.open(path, key=KEY, key_file=key_file(new))
    with memcore.open(path, key=KEY) as db:
        db.erase("alice")
    with memcore.open(new, key=KEY) as db:
        db.erase("bob")
    assert content(path, "bob") == f"{MARK} bob"
    assert content(new, "alice") == f"{MARK} alice"


@pytest.mark.parametrize("how", ["over it", "where it was"])
def test_a_backup_in_the_place_of_its_database_says_how_to_restore_it(path, tmp_path, how):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        db.backup(tmp_path / "backup")
    if how == "where it was":
        path.unlink()
    (tmp_path / "backup").rename(path)
    with pytest.raises(KeyFileError, match="move it to another name and restore it from there"):
        memcore.open(path, key=KEY)
    with pytest.raises(InvalidOptionError, match="move it to another name, and restore it from"):
        memcore.restore(path, path, replace=True, key=KEY)
    path.rename(tmp_path / "moved")
    memcore.restore(tmp_path / "moved", path, key=KEY)
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        assert len(db.session("s", user="alice")) == 2
        assert db.check() == []


@pytest.mark.parametrize("how", ["move it away", "give key_file= another name", "restore a backup"])
def test_a_key_file_whose_database_is_gone_says_how_to_go_on(path, tmp_path, how):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        db.backup(tmp_path / "backup")
    path.unlink()
    before = key_file(path).read_bytes()
    told = "restore a backup to its place.*give key_file= another name, or move this key file away"
    with pytest.raises(KeyFileError, match=told):
        memcore.open(path, key=KEY)
    assert not path.exists()
    options, moved = {}, key_file(path)
    if how == "restore a backup":
        memcore.restore(tmp_path / "backup", path, key=KEY)
    elif how == "move it away":
        moved = tmp_path / "moved"
        key_file(path).rename(moved)
    else:
        options = {"key_file": tmp_path / "other.keys"}
    with memcore.open(path, key=KEY, **options) as db:
        assert len(db.session("s", user="alice")) == (how == "restore a backup")
        fill(db, "bob")
        assert db.check() == []
    if how != "restore a backup":
        assert moved.read_bytes() == before
    # What was backed up is read as before.
    found = content(tmp_path / "backup", "alice", key_file=moved, read_only=True)
    assert found == f"{MARK} alice"


def test_of_two_files_that_say_the_same_the_error_names_both_and_a_way(path, tmp_path):
    """A copy lies where the key file does, to which a link beside the database leads."""
    (tmp_path / "safe").mkdir()
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    safe = tmp_path / "safe" / path.name
    key_file(path).rename(key_file(safe))
    key_file(path).symlink_to(key_file(safe))
    shutil.copy(path, safe)
    with pytest.raises(KeyFileError, match=f"if {safe} is the copy, move it away from there"):
        memcore.open(path, key=KEY)
    safe.rename(tmp_path / "safe" / "copy")
    with memcore.open(path, key=KEY) as db:
        fill(db, "bob")
        assert db.check() == []


def test_who_lost_the_key_file_to_another_data_file_shreds_nothing(path, tmp_path):
    """Two files of before that are opened at one moment: the one that came last has the keys."""
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice", "bob")
        ring = KeyRing.load(str(key_file(path)), key_provider(KEY))
        ring._store(ring._table._replace(owner=bytes(range(16))))
        assert not db.erase("alice").bytes_gone
        with pytest.raises(KeyFileError, match="another data file"):
            fill(db, *(f"u{number}" for number in range(BLOCK)))
    assert KeyRing.load(str(key_file(path)), key_provider(KEY)).of_scope(1) is not None


def test_a_damaged_owner_is_found_and_written_anew(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    rewrite(path, {OWNER: b"\x01\x00" + bytes(24)})
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert len(db.check()) == 1
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
    assert len(set(noted(path))) == 1


# --- what does not decrypt ------------------------------------------------------------------------


def test_what_does_not_decrypt_is_never_encrypted_once_more(path):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
        store = db.engine.store
        key, value = next(
            (key, value) for key, value in store.read(lambda txn: list(txn.scan(b"\x0b", b"\x0c")))
        )
        sealed = store.vault.seal(key, value)
        assert store.vault.open(key, sealed) == value
        broken = seal_encrypted(key, sealed[HEADER_BYTES:-1] + bytes((sealed[-1] ^ 1,)))
        with pytest.raises(TamperedError):
            store.transact(lambda txn: txn.put(key, store.vault.open(key, broken)))
        assert store.read(lambda txn: txn.get(key)) == value


# --- the doctor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, KEY])
@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda place: place.unlink(), "cannot read"),
        (lambda place: place.write_bytes(place.read_bytes()[:-1]), "damaged"),
        (lambda place: place.write_bytes(b"something else, of some length"), "no key file"),
    ],
    ids=["lost", "damaged", "foreign"],
)  # fmt: skip
def test_the_doctor_sees_that_keys_are_lost(path, given, harm, told):
    with memcore.open(path, key=KEY) as db:
        fill(db, "alice")
    assert examine(path, key=given).error is None
    harm(key_file(path))
    found = examine(path, key=given)
    assert isinstance(found.error, KeyFileError)
    assert told in str(found.error)
    assert any("key file" in line for line in found.advice)


def test_the_doctor_sees_that_the_key_file_is_too_old(renewed, tmp_path):
    assert examine(renewed, key=KEY).error is None
    found = examine(renewed, key=KEY, key_file=f"{renewed}.older")
    assert isinstance(found.error, KeyFileError)
    assert "older than the database" in str(found.error)
    assert isinstance(examine(renewed, key=OTHER).error, WrongKeyError)
    other = tmp_path / "other"
    memcore.open(other, key=KEY).close()
    found = examine(renewed, key=KEY, key_file=key_file(other))
    assert "another database" in str(found.error)


def test_the_doctor_says_what_it_cannot_tell_without_the_key(renewed):
    found = examine(renewed)
    size = os.path.getsize(key_file(renewed))
    assert found.facts["keys"] == {
        "file": str(key_file(renewed)),
        "bytes": size,
        "key": "not given",
    }
    assert examine(renewed, key=KEY).facts["keys"]["key"] == "opens it"


def test_the_doctors_command_takes_the_key_from_the_environment(renewed):
    env = {"MEMCORE_STORE": None, "MEMCORE_KEY": KEY.hex(), "MEMCORE_KEY_FILE": None}
    ran = CliRunner().invoke(app, ["doctor", "--store", str(renewed)], env=env)
    assert ran.exit_code == 0
    assert "older" not in ran.stdout
    shutil.copy(f"{renewed}.older", key_file(renewed))
    ran = CliRunner().invoke(app, ["doctor", "--store", str(renewed), "--json"], env=env)
    assert ran.exit_code != 0
    assert "older than the database" in json.loads(ran.stdout)["error"]
