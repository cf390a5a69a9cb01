"""Encrypted databases: what lies in the file, who can open it, and how keys change."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import sys
from contextlib import closing
from threading import Event, Thread, current_thread

import lmdb
import pytest

import memcore
from memcore import aio, files
from memcore.codec import keys
from memcore.codec.keys import Care, Kind, Row
from memcore.codec.values import HEADER_BYTES, open_value, seal_value
from memcore.errors import (
    InvalidOptionError,
    KeyFileError,
    KeyNeededError,
    NotFoundError,
    StoreFormatError,
    TamperedError,
    WrongKeyError,
)
from memcore.privacy import keyring as rings
from memcore.privacy.keyring import BLOCK, KeyRing, key_provider
from memcore.store import encryption as vaults
from memcore.store import store as handles
from memcore.store.encryption import RowCipher
from memcore.store.redo_log import RedoLog

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))
MARK = "MARKER-7f3a9"


@pytest.fixture
def sealed(path):
    """An encrypted database with something of everything."""
    with memcore.open(path, key=KEY) as db:
        fill(db)
    return path


def fill(db, user="alice"):
    session = db.session("chat", user=user)
    session.extend([{"role": "user", "content": f"{MARK} {n}"} for n in range(20)])
    session.append({"role": "user", "content": MARK * 6000}, meta={"note": MARK})
    session.record("planner", {"plan": MARK})
    session.state.put("plan", MARK)
    session.compact(summarize=lambda _: f"{MARK} in short", keep_tokens=50)
    session.checkpoint("before", meta={"why": MARK})
    session.report_usage(5000, model=MARK)
    scope = db.scope(user=user)
    scope.state.put("plan", MARK)
    scope.app_state.put("plan", MARK)
    scope.kv("notes").put("k", {"text": MARK})
    scope.kv("notes").put("b", MARK.encode())
    scope.blobs.put((MARK * 50_000).encode())


class Guard:
    """Puts aside what is evil."""

    def judge(self, value, write):
        return memcore.Judgement("quarantine", MARK) if "evil" in str(value) else "allow"


def files_of(path):
    return [found for found in path.parent.iterdir() if found.is_file()]


def stored(path):
    """All rows as they are stored."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        return dict(txn.cursor())


def rewrite(path, changes):
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            txn.put(key, value)


def test_nothing_of_the_contents_lies_in_any_file(sealed):
    assert all(MARK.encode() not in found.read_bytes() for found in files_of(sealed))
    with memcore.open(sealed, key=KEY) as db:
        session = db.session("chat", user="alice")
        assert session.get(1).message["content"] == f"{MARK} 0"
        assert session.get(21).meta == {"note": MARK}
        assert session.state["plan"] == MARK
        assert db.scope(user="alice").kv("notes").get("b") == MARK.encode()
        assert db.check() == []


def test_what_care_is_taken_of_is_encrypted_as_well(path):
    envelope = memcore.Envelope(type="error", model=MARK, request_id=MARK, author=MARK)
    with memcore.open(
        path,
        key=KEY,
        guard=Guard(),
        item_bytes=9000,
        oversize="offload",
        audit=memcore.Audit(key=KEY),
    ) as db:
        session, scope = db.session("chat", user="alice"), db.scope(user="alice")
        session.append({"role": "user", "content": f"evil {MARK}"})
        session.append({"role": "user", "content": MARK * 2000})
        session.append({"role": "user", "content": "x"}, envelope=envelope, request_id=MARK)
        session.hold(reason=MARK)
        scope.hold(reason=MARK)
        scope.opt_out_memory()
        session.context()
        db.backup(path.with_name("copy"))
        assert db.rotate_data_keys().finished
        db.flush()
        assert [each.reason for each in scope.holds()] == [MARK, MARK]
        assert MARK in next(iter(scope.quarantine)).message["content"]
        assert db.check() == []
        assert db.verify_audit().ok
        assert all(MARK.encode() not in found.read_bytes() for found in files_of(path))
    closed = [key for key, value in stored(path).items() if value[:1] == b"\2"]
    assert closed == [key for key in stored(path) if vaults.is_content(key)]
    assert {key[9] for key in closed if key[0] == Kind.CARE} == {Care.HOLD, Care.QUARANTINE}


def test_every_row_that_holds_a_text_is_encrypted(sealed):
    for key, value in stored(sealed).items():
        if key[0] in vaults.CLOSED_KINDS:
            assert (value[0] == 2) is vaults.is_content(key)
    rows = {key[17] for key in stored(sealed) if key[0] == Kind.SESSION and vaults.is_content(key)}
    assert rows >= {Row.ITEM, Row.VIEW, Row.CHECKPOINT, Row.STATE, Row.USAGE}


@pytest.mark.parametrize("durability", ["full", "relaxed", "none"])
def test_every_mode_encrypts(path, durability):
    unsafe = durability == "none"
    with memcore.open(path, key=KEY, durability=durability, allow_unsafe=unsafe) as db:
        fill(db)
        assert all(MARK.encode() not in found.read_bytes() for found in files_of(path))
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []


def test_no_key_of_a_row_tells_the_digest_of_a_content(path):
    with memcore.open(path, key=KEY) as db:
        blobs = db.scope().blobs
        address = blobs.put(b"a short content")
        assert blobs.get(address) == b"a short content"
        assert blobs.delete(address)
        address = blobs.put(b"a short content")
    digest = bytes.fromhex(address.removeprefix("sha256:"))
    assert all(digest not in key + value for key, value in stored(path).items())


def test_equal_contents_are_stored_differently(path):
    with memcore.open(path, key=KEY) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).extend([{"role": "user", "content": "yes"}] * 2)
    rows = [value for key, value in stored(path).items() if key[17:18] == bytes((Row.ITEM,))]
    index = [value for key, value in stored(path).items() if key[17:18] == bytes((Row.INDEX,))]
    assert len(rows) == len(set(rows)) == 4
    assert len(set(index)) == 2  # prefix hashes rest on salt, too


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, KeyNeededError), (OTHER, WrongKeyError), (b"short", InvalidOptionError),
        ("env:NO_SUCH_KEY", KeyNeededError), ("secret", InvalidOptionError),
        (5, InvalidOptionError), ("file:/no/such/key", KeyNeededError),
    ],
)  # fmt: skip
def test_without_the_key_nothing_is_read_or_changed(sealed, given, error):
    places = [sealed, sealed.with_name(sealed.name + ".keys")]
    before = [place.read_bytes() for place in places]
    with pytest.raises(error) as caught:
        memcore.open(sealed, key=given)
    assert "secret" not in str(caught.value)
    assert [place.read_bytes() for place in places] == before


def test_a_second_handle_needs_the_key_as_well(sealed):
    with memcore.open(sealed, key=KEY):
        with pytest.raises(KeyNeededError):
            memcore.open(sealed)
        with pytest.raises(WrongKeyError):
            memcore.open(sealed, key=OTHER)
        with memcore.open(sealed, key=KEY, read_only=True) as second:
            assert second.session("chat", user="alice").get(2).message["content"] == f"{MARK} 1"


def test_a_key_for_a_file_in_clear_is_refused(path):
    memcore.open(path).close()
    with pytest.raises(InvalidOptionError, match="not encrypted"):
        memcore.open(path, key=KEY)
    assert not path.with_name(path.name + ".keys").exists()


@pytest.mark.parametrize("where", ["env", "env-hex", "file", "callable", "service"])
def test_where_a_key_may_come_from(path, tmp_path, monkeypatch, where):
    class Service:
        def wrap(self, key, context):
            return bytes(a ^ 0x5A for a in key) + context

        def unwrap(self, wrapped, context):
            assert wrapped.endswith(context)
            return bytes(a ^ 0x5A for a in wrapped[: -len(context)])

    monkeypatch.setenv(
        "SOME_KEY", KEY.hex() if where == "env-hex" else base64.b64encode(KEY).decode()
    )
    (tmp_path / "key").write_text(base64.urlsafe_b64encode(KEY).decode() + "\n")
    given = {
        "env": "env:SOME_KEY", "env-hex": "env:SOME_KEY", "file": f"file:{tmp_path / 'key'}",
        "callable": lambda: KEY, "service": Service(),
    }[where]  # fmt: skip
    for _ in range(2):
        with memcore.open(path, key=given) as db:
            db.session("s").append({"role": "user", "content": MARK})
    if where != "service":
        with memcore.open(path, key=KEY) as db:
            assert len(db.session("s")) == 2


def test_a_service_that_fails_is_no_way_in(sealed):
    class Service:
        def wrap(self, key, context):
            raise NotImplementedError

        def unwrap(self, wrapped, context):
            raise RuntimeError("unreachable")

    with pytest.raises(WrongKeyError, match="RuntimeError"):
        memcore.open(sealed, key=Service())


# --- the key file ---------------------------------------------------------------------------------


def test_a_missing_key_file_is_never_made_anew(sealed):
    place = sealed.with_name(sealed.name + ".keys")
    kept = place.rename(place.with_suffix(".away"))
    with pytest.raises(KeyFileError, match="restore it"):
        memcore.open(sealed, key=KEY)
    assert not place.exists()
    with memcore.open(sealed, key=KEY, key_file=kept) as db:
        assert db.check() == []


def test_any_damage_of_the_key_file_is_found(sealed):
    place = sealed.with_name(sealed.name + ".keys")
    whole = place.read_bytes()
    for at in range(0, len(whole), 61):
        place.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(KeyFileError):
            memcore.open(sealed, key=KEY)
    for size in (0, 1, 16, 40, 100, len(whole) - 1):
        place.write_bytes(whole[:size])
        with pytest.raises(KeyFileError):
            memcore.open(sealed, key=KEY)
    place.write_bytes(whole)
    memcore.open(sealed, key=KEY).close()


def test_the_key_file_of_another_database_is_refused(sealed, tmp_path):
    other = tmp_path / "other.memcore"
    memcore.open(other, key=KEY).close()
    with pytest.raises(KeyFileError, match="another database"):
        memcore.open(sealed, key=KEY, key_file=f"{other}.keys")


def test_a_database_is_not_made_over_keys_that_are_in_use(sealed):
    sealed.unlink()
    with pytest.raises(KeyFileError, match="never overwritten"):
        memcore.open(sealed, key=KEY)
    assert not sealed.exists()


def test_a_creation_that_was_cut_short_is_gone_on_with(path):
    KeyRing.create(f"{path}.keys", key_provider(KEY))  # and then the process was killed
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": MARK})
    with memcore.open(path, key=KEY) as db:
        assert len(db.session("s")) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, NotFoundError("no")])
def test_the_key_file_of_a_creation_that_failed_serves_the_next_one(path, monkeypatch, error):
    """Taking it back could take the keys of another creator that has adopted it meanwhile."""

    def failing(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(handles, "create_file", failing)
        with pytest.raises((KeyboardInterrupt, NotFoundError)):
            memcore.open(path, key=KEY)
    assert os.listdir(path.parent) == [f"{path.name}.keys"]
    left = KeyRing.load(f"{path}.keys", key_provider(KEY))
    assert (left.minted, left.owner) == (0, b"")
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": MARK})
    with memcore.open(path, key=KEY) as db:
        assert db.session("s").get(1).message["content"] == MARK
        assert db.engine.store.vault.ring.file_id == left.file_id
        assert db.check() == []


def test_who_made_the_database_meanwhile_has_its_keys(path, monkeypatch):
    """Two make one at once: one is interrupted, and the other one has written by then."""

    def interrupted(*_, **__):
        with monkeypatch.context() as patch:
            patch.setattr(handles, "create_file", create)
            with memcore.open(path, key=KEY) as db:
                db.session("s").append({"role": "user", "content": MARK})
        raise KeyboardInterrupt

    create = handles.create_file
    with monkeypatch.context() as patch:
        patch.setattr(handles, "create_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memcore.open(path, key=KEY)
    with memcore.open(path, key=KEY) as db:
        assert db.session("s").get(1).message["content"] == MARK
        assert db.check() == []


def test_two_that_make_a_database_at_once_use_one_key_file(path, monkeypatch):
    """The second one looked for the key file before it was there, and writes when it is."""
    place = f"{path}.keys"
    link = os.link
    written = []

    def late(source, target, **options):
        link(source, target, **options)
        if target == place and not written:
            written.append(target)
            with monkeypatch.context() as patch:
                patch.setattr(os.path, "lexists", lambda _: False)
                assert KeyRing.create(place, key_provider(KEY)).path == place

    monkeypatch.setattr(os, "link", late)
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": MARK})
    assert written
    with memcore.open(path, key=KEY) as db:
        assert db.check() == []
        assert len(db.session("s")) == 1


def test_who_is_late_in_making_a_database_finds_the_keys_of_the_first(path, monkeypatch):
    new_ring = handles.new_ring

    def late(access, name):
        monkeypatch.setattr(handles, "new_ring", new_ring)
        with memcore.open(path, key=KEY) as db:
            db.session("s").append({"role": "user", "content": MARK})
        return new_ring(access, name)

    monkeypatch.setattr(handles, "new_ring", late)
    with memcore.open(path, key=KEY) as db:
        assert len(db.session("s")) == 1


def test_keys_are_minted_for_many_users_at_once(path, monkeypatch):
    written = []
    write = rings.put_private
    monkeypatch.setattr(rings, "put_private", lambda *a, **o: (written.append(1), write(*a, **o)))
    with memcore.open(path, key=KEY) as db:
        for number in range(2 * BLOCK):
            db.session("s", user=f"u{number}").append({"role": "user", "content": "x"})
    assert len(written) <= 5  # one of these says whose they are


def test_leftovers_of_a_killed_writer_go_with_the_next_change(sealed):
    leftover = sealed.with_name(f"{sealed.name}.keys.999999.tmp")
    leftover.write_bytes(b"keys that may be shredded now")
    with memcore.open(sealed, key=KEY) as db:
        db.rotate_key(OTHER)
    assert not leftover.exists()


def test_files_of_others_beside_the_key_file_stay(sealed):
    """What looks like a leftover of its writers may be another database's, or anything."""
    names = [".keys.1", ".keys.1.keys.tmp", ".keys.notes.tmp", ".keys.12x.tmp", ".keys.0a1b.tmp"]
    others = [sealed.with_name(sealed.name + name) for name in names]
    for other in others:
        other.write_bytes(b"somebody's")
    with memcore.open(sealed, key=KEY) as db:
        db.rotate_key(OTHER)
    assert [other.read_bytes() for other in others] == [b"somebody's"] * len(others)


def test_a_key_file_keeps_its_owner_and_mode(sealed):
    """Root, who changes a key, must not lock out the service whose file it is."""
    place = sealed.with_name(sealed.name + ".keys")
    place.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(place, 12345, 54321)
    before = place.stat()
    with memcore.open(sealed, key=KEY) as db:
        db.rotate_key(OTHER)
        db.rotate_data_keys()
    after = place.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_secret_that_root_makes_belongs_to_the_owner_of_the_database(path):
    memcore.open(path).close()
    os.chown(path, 12345, 54321)
    with memcore.open(path) as db:
        db.erase("nobody")
    status = path.with_name(path.name + ".secret").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12345, 54321, 0o600)


def test_no_link_in_the_place_of_a_temporary_file_is_followed(sealed, tmp_path, monkeypatch):
    """Whoever guesses the name may plant a link there: the file that it leads to stays."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(files, "urandom", bytes)
    place = f"{sealed}.keys"
    with memcore.open(sealed, key=KEY) as db:
        os.symlink(victim, f"{place}.{'0' * 16}.tmp")
        remove = rings.remove_unfinished
        monkeypatch.setattr(rings, "remove_unfinished", lambda _: None)
        with pytest.raises(KeyFileError, match="exists"):
            db.rotate_key(OTHER)
        monkeypatch.setattr(rings, "remove_unfinished", remove)
        db.rotate_key(OTHER)
    assert victim.read_bytes() == b"precious"


def test_a_key_file_behind_a_link_is_replaced_where_it_lies(path, tmp_path):
    """An older one that stays behind would hold keys that were shredded."""
    (tmp_path / "vault").mkdir()
    place, link = tmp_path / "vault" / "keys", tmp_path / "link"
    link.symlink_to(place)
    with memcore.open(path, key=KEY, key_file=link) as db:
        db.session("s", user="alice").append({"role": "user", "content": MARK})
        db.erase("alice")
        assert link.is_symlink()
        assert [found.name for found in place.parent.iterdir()] == ["keys"]
        ring = KeyRing.load(str(place), key_provider(KEY))
        assert ring.of_scope(1) is None
        assert ring.of_scope(2) is not None
    with memcore.open(path, key=KEY, key_file=link) as db:
        assert db.check() == []


def test_keys_of_another_process_are_seen_whatever_the_file_system_tells(path):
    """Inodes and coarse times come again; a table that is not the last one loses keys."""
    provider = key_provider(KEY)
    first = KeyRing.create(f"{path}.keys", provider)
    second = KeyRing.load(f"{path}.keys", provider)
    first.mint(1)
    second.mint(1)
    status = os.stat(f"{path}.keys")
    first.renew(2)
    first.retire(2, below=1 << 31)
    with open(f"{path}.keys", "rb") as file:
        content = file.read()
    assert second.path is not None
    with open(second.path, "r+b") as file:  # in the place of the former: the same inode and time
        file.write(content)
    os.utime(second.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert second.refresh()
    assert second.of_scope(2) == first.of_scope(2)


def test_a_key_file_that_cannot_be_written_leaves_everything_as_it_was(sealed, monkeypatch):
    with memcore.open(sealed, key=KEY) as db:
        before = sealed.with_name(sealed.name + ".keys").read_bytes()

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(KeyFileError, match="No space"):
                db.rotate_data_keys()
            with pytest.raises(KeyFileError, match="No space"):
                db.rotate_key(OTHER)
        assert sealed.with_name(sealed.name + ".keys").read_bytes() == before
        db.session("chat", user="alice").append({"role": "user", "content": "goes on"})
    with memcore.open(sealed, key=KEY) as db:
        assert db.session("chat", user="alice").tail(1)[0].message["content"] == "goes on"
        assert db.check() == []


# --- tampering ------------------------------------------------------------------------------------


def item_keys(path):
    return sorted(key for key in stored(path) if key[:1] == b"\x05" and key[17] == Row.ITEM)


def test_a_value_in_another_place_does_not_open(sealed):
    first, second = item_keys(sealed)[:2]
    rows = stored(sealed)
    from memcore.codec.values import (
        HEADER_BYTES,
        seal_encrypted,  # an attacker knows the checksum
    )

    rewrite(sealed, {first: seal_encrypted(first, rows[second][HEADER_BYTES:])})
    with memcore.open(sealed, key=KEY) as db:
        session = db.session("chat", user="alice")
        with pytest.raises(TamperedError, match="does not decrypt"):
            session.get(1)
        assert session.get(2).message["content"] == f"{MARK} 1"
        assert any("decrypt" in finding for finding in db.check())


def test_a_value_in_clear_is_refused(sealed):
    from memcore.codec.values import seal_value
    from memcore.rows.item import _HEADER

    first = item_keys(sealed)[0]
    body = _HEADER.pack(0, 0, 0, 0, 0) + b'{"role":"user","content":"forged"}'
    rewrite(sealed, {first: seal_value(first, body)})
    with memcore.open(sealed, key=KEY) as db:
        with pytest.raises(TamperedError, match="in clear"):
            db.session("chat", user="alice").get(1)
        assert db.check() != []


def test_an_older_value_of_a_row_put_back_is_named_by_an_audit_alone(path):
    """It was encrypted for this place with this key: nothing but the chain says that it is old."""
    audit = memcore.Audit(key=OTHER)
    with memcore.open(path, key=KEY, audit=audit) as db:
        notes = db.scope(user="alice").kv("notes")
        notes.put("limit", 100)
        db.flush()
    older = {key: value for key, value in stored(path).items() if key[0] == Kind.KV}
    with memcore.open(path, key=KEY, audit=audit) as db:
        db.scope(user="alice").kv("notes").put("limit", 5)
    rewrite(path, older)
    with memcore.open(path, key=KEY, read_only=True) as db:
        assert db.scope(user="alice").kv("notes").get("limit") == 100
        assert db.check() == []
        assert [found.why for found in db.verify_audit(key=OTHER).findings] == ["modified"]


def test_a_damaged_value_is_called_damaged(sealed):
    first = item_keys(sealed)[0]
    value = bytearray(stored(sealed)[first])
    value[-1] ^= 1
    rewrite(sealed, {first: bytes(value)})
    with memcore.open(sealed, key=KEY) as db:
        with pytest.raises(memcore.CorruptValueError, match="checksum") as caught:
            db.session("chat", user="alice").get(1)
        assert not isinstance(caught.value, TamperedError)


# --- changing keys --------------------------------------------------------------------------------


def test_the_key_is_changed_without_touching_contents(sealed):
    rows = stored(sealed)
    with memcore.open(sealed, key=KEY) as db:
        db.rotate_key(OTHER)
        db.session("new", user="zoe").append({"role": "user", "content": MARK})
    with pytest.raises(WrongKeyError):
        memcore.open(sealed, key=KEY)
    with memcore.open(sealed, key=OTHER) as db:
        assert db.check() == []
        assert len(db.session("new", user="zoe")) == 1
    after = stored(sealed)
    assert all(after[key] == rows[key] for key in item_keys(sealed) if key in rows)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rotation_whose_commit_fails_says_which_key_it_is(path, monkeypatch, failing):
    """Beside the words "nothing was stored" a file under the new key is lost with the old one."""
    audit = memcore.Audit(key=OTHER)
    write, commits = RedoLog.write, iter(range(1, 100))

    def fail(self, *arguments):
        if next(commits) == failing:
            raise OSError(5, "Input/output error")
        write(self, *arguments)

    with memcore.open(path, key=KEY, audit=audit) as db:
        db.session("s").append({"role": "user", "content": MARK})
        with monkeypatch.context() as patch:
            patch.setattr(RedoLog, "write", fail)
            with pytest.raises(memcore.MemcoreError) as caught:
                db.rotate_key(OTHER)
    is_new = failing == 2
    assert ("is under the new key now" in str(caught.value)) is is_new
    with pytest.raises(WrongKeyError):
        memcore.open(path, key=KEY if is_new else OTHER, audit=audit)
    with memcore.open(path, key=OTHER if is_new else KEY, audit=audit) as db:
        assert len(db.session("s")) == 1
        told = [each.row for each in db.audit_entries() if "key rot" in str(each.row)]
        assert told == (["key rotation begun"] if is_new else [])
        db.rotate_key(KEY)
        told = [each.row for each in db.audit_entries() if "key rot" in str(each.row)]
        assert told[-2:] == ["key rotation begun", "key rotated"]
        assert db.verify_audit().ok


def test_a_rotation_is_no_part_of_somebody_elses_commit(sealed, monkeypatch):
    """Another's writes in the same batch would take the answer down with them."""
    inside, go_on = Event(), Event()
    rewrap = KeyRing.rewrap

    def slow(self, provider):
        rewrap(self, provider)
        inside.set()
        assert go_on.wait(60)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(KeyRing, "rewrap", slow)
    with memcore.open(sealed, key=KEY) as db:
        session = db.session("chat", user="alice")
        session.append({"role": "user", "content": MARK})
        queue = db.engine.store.environment().queue
        rotated, failed = [], []

        def rotate():
            rotated.append(db.rotate_key(OTHER))

        def write():
            try:
                session.append({"role": "user", "content": MARK})
            except memcore.MemcoreError as error:
                failed.append(error)

        rotating, writing = Thread(target=rotate), Thread(target=write)
        rotating.start()
        assert inside.wait(60)
        writing.start()
        while not queue.waiting:
            assert writing.is_alive()
        with monkeypatch.context() as patch:
            patch.setattr(RedoLog, "write", fail)
            go_on.set()
            rotating.join()
            writing.join()
        assert failed
        assert rotated == [None]
    with memcore.open(sealed, key=OTHER) as db:
        assert db.check() == []


def test_a_rotation_that_cannot_be_flushed_says_which_key_it_is(sealed, monkeypatch):
    with memcore.open(sealed, key=KEY) as db:

        def refuse(path):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_directory", refuse)
            with pytest.raises(KeyFileError, match="under the new key now"):
                db.rotate_key(OTHER)
            patch.setattr(rings, "sync_directory", refuse)
            with pytest.raises(KeyFileError, match="cannot be flushed"):
                db.rotate_data_keys()  # rests on nothing that a power cut may take back
        fill(db, "bob")
        db.rotate_data_keys()
    with memcore.open(sealed, key=OTHER) as db:
        assert db.check() == []


def test_data_keys_are_changed_while_others_write(sealed):
    numbers = {vaults.number_of(value) for value in stored(sealed).values()} - {None}
    with memcore.open(sealed, key=KEY) as db:
        session = db.session("chat", user="alice")
        seen = []

        def write(done):
            if done and not seen:
                seen.append(session.append({"role": "user", "content": "meanwhile"}))

        done = db.rotate_data_keys(user="alice", progress=write)
        assert done.finished
        assert done.values > 20
        assert seen
        assert db.key_status().unfinished == ()
    with memcore.open(sealed, key=KEY) as db:
        assert db.check() == []
        assert db.session("chat", user="alice").tail(1)[0].message["content"] == "meanwhile"
    alice = item_keys(sealed)[0][1:9]
    now = {vaults.number_of(v) for k, v in stored(sealed).items() if k[1:9] == alice} - {None}
    assert len(now) == 1
    assert not now & numbers


def test_a_rotation_drops_no_key_of_one_that_began_meanwhile(sealed, monkeypatch):
    scope = int.from_bytes(item_keys(sealed)[0][1:9], "big")
    with memcore.open(sealed, key=KEY) as db:
        told = [item.message for item in db.session("chat", user="alice")]
        store = db.engine.store
        make_durable = type(store).make_durable

        def begins_another(store):
            """As another thread does between the last value and the end of the older keys."""
            store.transact(lambda _: store.vault.renew(scope))
            make_durable(store)

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "make_durable", begins_another)
            assert db.rotate_data_keys(user="alice").finished
        assert len(store.vault.ring.numbers(scope)) == 2
    with memcore.open(sealed, key=KEY) as db:
        assert db.check() == []
        assert [item.message for item in db.session("chat", user="alice")] == told
        assert db.rotate_data_keys().finished
        assert db.key_status().unfinished == ()


def test_rotations_are_chained_and_need_no_loop_to_wait(path):
    async def work():
        audit = memcore.Audit(key=KEY, anchor=path.with_name("anchor"))
        async with aio.open(path, key=KEY, audit=audit) as db:
            await db.session("s", user="ann").append({"role": "user", "content": MARK})
            assert (await db.key_status()).users >= 1
            assert (await db.rotate_data_keys()).finished
            await db.rotate_key(OTHER)
            assert (await db.verify_audit()).ok
            await db.anchor_audit()
            assert any(each.row == "key rotated" for each in await db.audit_entries())
            told = [each.row for each in await db.audit_entries(user="ann", app="default")]
            assert any(row.startswith("data keys rotated") for row in told)
            assert await db.cut_audit(older_than_seconds=1000) == 0

    asyncio.run(work())
    with memcore.open(path, key=OTHER, read_only=True) as db:
        report = db.verify_audit(key=KEY, anchor=path.with_name("anchor"))
        assert report.ok
        assert report.is_anchored


def test_a_rotation_that_was_cut_short_is_finished_by_the_next(sealed):
    with memcore.open(sealed, key=KEY) as db:

        def stop(_):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            db.rotate_data_keys(user="alice", progress=stop)
        assert db.key_status().unfinished == (("default", "alice"),)
        assert db.check() == []
    with memcore.open(sealed, key=KEY) as db:
        assert db.rotate_data_keys(user="alice").finished
        assert db.key_status().unfinished == ()
        assert db.check() == []


WRITER = """
import sys, memcore
with memcore.open(sys.argv[1], key=bytes(range(32))) as db:
    session = db.session("chat", user="alice")
    session.append({"role": "user", "content": "first"})
    print("ready", flush=True)
    sys.stdin.readline()
    session.append({"role": "user", "content": "with the older key"})
    db.session("s", user="newcomer").append({"role": "user", "content": "hello"})
"""


def test_keys_stay_while_another_process_may_write_with_them(sealed):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(sealed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"ready\n"
        with memcore.open(sealed, key=KEY) as db:
            assert not db.rotate_data_keys(user="alice").finished
        other.communicate(b"\n", timeout=60)
        assert other.returncode == 0
    with memcore.open(sealed, key=KEY) as db:
        session = db.session("chat", user="alice")
        assert session.tail(1)[0].message["content"] == "with the older key"
        assert db.rotate_data_keys(user="alice").finished
        assert session.tail(1)[0].message["content"] == "with the older key"
        assert len(db.session("s", user="newcomer")) == 1
        assert db.check() == []


def test_a_shredded_user_cannot_be_read_or_written(sealed):
    number = int.from_bytes(item_keys(sealed)[0][1:9], "big")
    with memcore.open(sealed, key=KEY) as db:
        fill(db, "bob")
        session = db.session("chat", user="alice")
        store = db.engine.store
        copy = sealed.with_name("kept.memcore")
        shutil.copy(sealed, copy)
        assert store.transact(lambda _: store.vault.shred([number]))
        with pytest.raises(TamperedError):
            session.get(3)
        with pytest.raises(NotFoundError):
            session.append({"role": "user", "content": MARK})
        assert not store.transact(lambda _: store.vault.shred([number]))
        assert db.session("chat", user="bob").get(3).message["content"] == f"{MARK} 2"
    before = {"key": KEY, "key_file": f"{sealed}.keys", "read_only": True}
    with memcore.open(copy, **before) as old:  # a backup of before
        with pytest.raises(TamperedError):
            old.session("chat", user="alice").get(3)
        assert old.session("chat", user="bob").get(3).message["content"] == f"{MARK} 2"


# --- copies ---------------------------------------------------------------------------------------


def test_copies_are_encrypted_and_need_the_key_file(sealed, tmp_path):
    backup, back = tmp_path / "backup.memcore", tmp_path / "back.memcore"
    with memcore.open(sealed, key=KEY) as db:
        db.backup(backup)
        report = db.copy_compact()
        assert report.bytes_after <= report.bytes_before
        assert db.check() == []
    assert MARK.encode() not in backup.read_bytes()
    with pytest.raises(KeyFileError):
        memcore.open(backup, key=KEY)
    memcore.restore(backup, back, key=KEY, key_file=f"{sealed}.keys")
    shutil.copy(f"{sealed}.keys", f"{back}.keys")
    with memcore.open(back, key=KEY) as db:
        assert db.session("chat", user="alice").get(1).message["content"] == f"{MARK} 0"
    with pytest.raises(KeyNeededError):
        memcore.restore(backup, tmp_path / "no.memcore")


def test_salvage_needs_the_key_and_encrypts(sealed, tmp_path):
    with pytest.raises(KeyNeededError):
        memcore.salvage(sealed, tmp_path / "no.memcore")
    report = memcore.salvage(sealed, tmp_path / "new.memcore", key=KEY)
    assert report.items == 22
    assert not report.lost
    assert MARK.encode() not in (tmp_path / "new.memcore").read_bytes()
    with memcore.open(tmp_path / "new.memcore", key=KEY) as db:
        assert db.check() == []
        assert db.session("chat", user="alice").get(1).message["content"] == f"{MARK} 0"
        db.session("new", user="new").append({"role": "user", "content": "x"})


def test_salvage_brings_back_the_rest_of_a_damaged_one(sealed, tmp_path):
    tail = stored(sealed)[item_keys(sealed)[4]][-16:]
    sealed.write_bytes(sealed.read_bytes().replace(tail, bytes(16)))
    report = memcore.salvage(sealed, tmp_path / "new.memcore", key=KEY)
    assert report.items_lost == 1
    with memcore.open(tmp_path / "new.memcore", key=KEY) as db:
        assert db.check() == []
        assert db.session("chat", user="alice").get(6).message["content"] == f"{MARK} 5"


def test_an_export_moves_a_database_in_clear_into_an_encrypted_one(path, tmp_path):
    with memcore.open(path) as db:
        fill(db)
        lines = list(db.export())
    target = tmp_path / "sealed.memcore"
    with memcore.open(target, key=KEY) as db:
        assert not db.import_(b"".join(lines).splitlines()).failures
        assert db.session("chat", user="alice").get(1).message["content"] == f"{MARK} 0"
        assert db.check() == []
    assert MARK.encode() not in target.read_bytes()


def test_an_older_memcore_refuses_the_file(sealed, monkeypatch):
    from memcore.store import datafile as formats

    monkeypatch.setattr(formats, "_FEATURES_KNOWN", 0)
    with pytest.raises(StoreFormatError, match="features"):
        memcore.open(sealed, key=KEY)


def test_a_database_in_memory_is_encrypted_too():
    with memcore.open(":memory:", key=KEY) as db:
        fill(db)
        assert db.key_status().key_file is None
        assert db.check() == []


def test_a_fork_draws_random_bytes_of_its_own(path):
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": "parent"})
        vault = db.engine.store.vault
        ahead = vault._pool[vault._at : vault._at + 12]
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, vault.random(12))
            os._exit(0)
        os.waitpid(child, 0)
        with closing(os.fdopen(reader, "rb")) as file:
            os.close(writer)
            assert file.read() != ahead


def test_no_nonce_comes_again_in_a_copy_of_the_process(path):
    """A virtual machine that is resumed twice: all that is in memory is equal."""
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": "x"})
        first = db.engine.store.vault
        first.random(12)  # there is a pool
        second = RowCipher(first.ring)
        for name in set(RowCipher.__slots__) - {"__weakref__"}:
            setattr(second, name, getattr(first, name))
        rows = [keys.session_row(1, 1, Row.ITEM, seq) for seq in range(200)]
        number = slice(HEADER_BYTES + 4, HEADER_BYTES + 16)
        seen = {}
        for row in rows:
            for vault, text in ((first, b"one"), (second, b"two" * 5000)):
                value = seal_value(row, text)
                sealed = vault.seal(row, value)
                assert vault.open(row, sealed) == value
                seen.setdefault(sealed[number], []).append(row)
        assert len(seen) == 2 * len(rows)
        # Another row with the same value is another nonce, too.
        assert first._pool[first._at :] == second._pool[second._at :]
        value = seal_value(rows[0], b"equal")
        one, two = first.seal(rows[0], value), second.seal(rows[1], value)
        assert one[number] != two[number]


def test_a_fork_keeps_nothing_that_was_drawn_ahead(path, tmp_path):
    """Of any vault, as of a file that is being salvaged."""
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": "x"})
        loose = RowCipher(db.engine.store.vault.ring)
        loose.random(12)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, bytes((not loose._pool,)))
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with closing(os.fdopen(reader, "rb")) as file:
            assert file.read() == b"\1"
        assert loose._pool


def test_a_scope_never_gets_a_key_twice():
    ring = KeyRing.create(None, key_provider(KEY))
    assert ring.mint(5)
    assert ring.shred([7])
    assert not ring.mint(7)
    assert ring.of_scope(7) is None
    assert ring.of_scope(5) is not None


def test_keys_of_a_row_that_is_too_short_do_not_trip_the_vault():
    assert vaults.is_content(b"\x05short")
    assert not vaults.is_content(keys.session_row(1, 1, Row.HEAD, 0))


def test_the_command_line_opens_and_changes_keys(sealed, monkeypatch):
    monkeypatch.setenv("NEW_KEY", OTHER.hex())

    def run(*options, key=None):
        environment = {**os.environ, **({} if key is None else {"MEMCORE_KEY": key})}
        return subprocess.run(
            [sys.executable, "-m", "memcore", *options, "--store", str(sealed)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip

    refused = run("ls")
    assert refused.returncode == 6
    assert "set MEMCORE_KEY" in refused.stderr
    assert "chat" in run("ls", key=KEY.hex()).stdout
    assert run("keys", "--rotate-data", key=KEY.hex()).returncode == 6
    changed = run("keys", "--rotate-data", "--rotate-to", "env:NEW_KEY", "--yes", key=KEY.hex())
    assert changed.returncode == 0, changed.stderr
    assert run("ls", key=KEY.hex()).returncode == 6
    status = run("keys", "--json", key="env:NEW_KEY")
    assert '"unfinished"' in status.stdout
    assert run("check", key="env:NEW_KEY").returncode == 0


# --- what a rotation must not lose ----------------------------------------------------------------


def test_a_rotation_leaves_what_does_not_decrypt_and_its_key(sealed):
    """Its key may be needed: what was changed here may be whole in a backup."""
    from memcore.codec.values import HEADER_BYTES, seal_encrypted

    first = item_keys(sealed)[0]
    whole = stored(sealed)[first]
    body = bytearray(whole[HEADER_BYTES:])
    body[-1] ^= 1
    changed = seal_encrypted(first, bytes(body))
    rewrite(sealed, {first: changed})
    with memcore.open(sealed, key=KEY) as db:
        done = db.rotate_data_keys(user="alice")
        assert not done.finished
        assert db.key_status().unfinished == (("default", "alice"),)
    assert stored(sealed)[first] == changed
    rewrite(sealed, {first: whole})
    with memcore.open(sealed, key=KEY) as db:
        assert db.session("chat", user="alice").get(1).message["content"] == f"{MARK} 0"
        assert db.rotate_data_keys(user="alice").finished
        assert db.check() == []


def test_a_snapshot_from_before_a_rotation_is_read_to_its_end(sealed):
    first = item_keys(sealed)[0]
    with memcore.open(sealed, key=KEY) as db:
        store = db.engine.store if hasattr(db, "engine") else db._engine.store

        def look(txn):
            rotation = Thread(target=db.rotate_data_keys, kwargs={"user": "alice"})
            rotation.start()
            rotation.join()
            return open_value(first, txn.get(first))[1]

        assert MARK.encode() in store.read(look)


def test_a_reader_that_rereads_the_key_file_loses_no_key(tmp_path, monkeypatch):
    """A writer mints between the reader's look at the file and what it makes of it."""
    path = str(tmp_path / "a.keys")
    ring = KeyRing.create(path, key_provider(KEY))
    assert ring.mint(1)
    other = KeyRing.load(path, key_provider(KEY))
    assert other.mint(BLOCK + 1)  # another process: the reader's copy is an old one now
    inside, go_on = Event(), Event()
    need_later = KeyRing._need_later

    def slow(self, file_id, table):
        if self is ring and current_thread() is reader:
            inside.set()
            go_on.wait(1)
        need_later(self, file_id, table)

    monkeypatch.setattr(KeyRing, "_need_later", slow)
    reader = Thread(target=ring.refresh)
    reader.start()
    assert inside.wait(60)
    writer = Thread(target=ring.mint, args=(2 * BLOCK + 1,))
    writer.start()
    writer.join(0.2)  # with a lock it waits for the reader, without one it is done by now
    go_on.set()
    reader.join()
    writer.join()
    monkeypatch.setattr(KeyRing, "_need_later", need_later)
    known = [ring.of_scope(scope) for scope in (1, BLOCK + 1, 2 * BLOCK + 1)]
    assert None not in known
    fresh = KeyRing.load(path, key_provider(KEY))
    assert known == [fresh.of_scope(scope) for scope in (1, BLOCK + 1, 2 * BLOCK + 1)]


def test_a_key_file_that_is_older_than_the_database_is_refused(path):
    """Going on with it would mint other keys for users who have contents."""
    with memcore.open(path, key=KEY) as db:
        db.session("s", user="first").append({"role": "user", "content": MARK})
        older = path.with_name(path.name + ".keys").read_bytes()
        for number in range(BLOCK + 2):
            db.session("s", user=f"u{number}").append({"role": "user", "content": MARK})
    place = path.with_name(path.name + ".keys")
    newest = place.read_bytes()
    place.write_bytes(older)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="older than the database"):
        memcore.open(path, key=KEY)
    assert (path.read_bytes(), place.read_bytes()) == (before, older)
    place.write_bytes(newest)
    with memcore.open(path, key=KEY) as db:
        assert len(db.session("s", user=f"u{BLOCK + 1}")) == 1
        assert db.check() == []


def test_a_second_handle_after_a_rotation_elsewhere_needs_the_new_key_and_gets_on_with_it(sealed):
    script = "import sys, memcore\nwith memcore.open(sys.argv[1], key=bytes(range(32))) as db: "
    script += "db.rotate_key(bytes(range(1, 33)))"
    with memcore.open(sealed, key=KEY) as first:
        subprocess.run([sys.executable, "-c", script, sealed], check=True)
        with pytest.raises(WrongKeyError):
            memcore.open(sealed, key=KEY)
        with memcore.open(sealed, key=OTHER) as second:
            for number in range(BLOCK):  # more than there are keys for
                second.session("s", user=f"u{number}").append({"role": "user", "content": "x"})
            assert second.check() == []
        for number in range(2 * BLOCK):  # the first one has learned it
            first.session("s", user=f"u{number}").append({"role": "user", "content": "x"})
        assert first.check() == []


class Service:
    """Wraps keys, and counts how often it is asked to unwrap one."""

    def __init__(self, key):
        self.provider = key_provider(key)
        self.asked = 0

    def wrap(self, key, context):
        return self.provider.wrap(key, context)

    def unwrap(self, wrapped, context):
        self.asked += 1
        return self.provider.unwrap(wrapped, context)


def test_a_service_is_not_asked_for_every_value_after_a_rotation_elsewhere(sealed):
    script = """
import sys, memcore
with memcore.open(sys.argv[1], key=bytes(range(32))) as db:
    db.rotate_key(bytes(range(1, 33)))
    db.rotate_data_keys()
"""
    service = Service(KEY)
    with memcore.open(sealed, key=service, read_only=True) as db:
        session = db.session("chat", user="alice", create=False)
        asked = service.asked
        subprocess.run([sys.executable, "-c", script, sealed], check=True)
        for seq in range(1, 21):
            with pytest.raises(TamperedError):
                session.get(seq)
        assert service.asked == asked + 1


def test_a_service_is_asked_again_only_for_a_key_that_was_wrapped_anew(sealed):
    service = Service(KEY)
    with memcore.open(sealed, key=service) as db, memcore.open(sealed, key=KEY) as _:
        asked = service.asked
        script = "import sys, memcore\nwith memcore.open(sys.argv[1], key=bytes(range(32))) as db: "
        script += "db.rotate_data_keys()"
        subprocess.run([sys.executable, "-c", script, sealed], check=True)
        assert db.session("chat", user="alice").get(1).message["content"] == f"{MARK} 0"
        assert service.asked == asked


def test_looking_for_contents_without_a_key_seeks_once_a_kind(path, monkeypatch):
    """The counter of scopes says only how far it may be: nobody looks at each number."""
    with memcore.open(path, key=KEY) as db:
        db.session("s").append({"role": "user", "content": "x"})
    counter = keys.counter(keys.Counter.SCOPE)
    rewrite(path, {counter: seal_value(counter, keys.u64(2**62))})
    looked = []
    look = handles.stored_rows
    monkeypatch.setattr(
        handles, "stored_rows", lambda *a, **o: (looked.append(a), look(*a, **o))[1]
    )
    memcore.open(path, key=KEY).close()
    assert len(looked) <= len(vaults.CLOSED_KINDS)


def test_a_new_user_without_contents_needs_no_key_yet(path):
    with memcore.open(path, key=KEY) as db:
        for number in range(BLOCK + 2):
            db.scope(user=f"u{number}").kv("n").put("k", 1)
            db.scope(user=f"u{number}").kv("n").clear()
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        txn.delete(b"\x01\x07")  # as an older memcore wrote it, which noted no data key
    place = path.with_name(path.name + ".keys")
    place.unlink()  # as if none had been minted: nothing is encrypted with what is lost
    seed = lmdb_seed(path)
    ring = KeyRing(str(place), key_provider(KEY))
    ring._wrapped, ring.seed = ring._provider.wrap(ring._own, b"memcore-keys-v1\0"), seed
    ring._create(str(place))
    with memcore.open(path, key=KEY) as db:
        db.scope(user="u3").kv("n").put("k", 2)
        assert db.scope(user="u3").kv("n").get("k") == 2


def lmdb_seed(path):
    from memcore.store.datafile import FORMAT_KEY, Format

    return Format.unpack(stored(path)[FORMAT_KEY], "").seed
