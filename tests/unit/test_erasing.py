"""Erasing users: gone for every handle at once, no byte left, others untouched, whatever is cut."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from threading import Event, Thread

import lmdb
import pytest

import memcore
from memcore._fast import search_terms
from memcore.codec import keys
from memcore.codec.keys import Care, Kind, SearchRow
from memcore.codec.values import seal_value
from memcore.errors import (
    HeldError,
    InvalidOptionError,
    NotFoundError,
    StoreFullError,
    StoreLockedError,
    WrongKeyError,
)
from memcore.graph import JsonCoder, NewCheckpoint
from memcore.privacy import keyring as secret
from memcore.retention import erasure as erasing
from memcore.retention import erasure as removing
from memcore.retention.erasure import all_pending
from memcore.rows import lifecycle as tombstone
from memcore.rows.names import scope_of
from memcore.search.index import read_head
from memcore.store import steady
from memcore.store import store as store_handle
from messages import user as said
from raw import rows

MARK = "PLANTED-secret-of-the-erased"
WHO = "alice.liddell@example"
CODER = JsonCoder()


def plant(scope, mark=MARK):
    """Content with the mark through every feature that stores any."""
    session = scope.session(f"chat about {mark}", state=None)
    session.extend([said(f"{mark} {n} " + "x" * (n % 7) * 300) for n in range(40)])
    session.append(said(mark + "y" * 300_000))  # a blob of its own
    session.record("note", {"what": mark})
    session.state.update({"field": mark, "user:shared": mark})
    session.checkpoint(f"point {mark}")
    session.fork(f"fork of {mark}").append(said(f"forked {mark}"))
    session.undo(3)
    session.append(said("again"), idempotency_key=mark)
    scope.kv(f"space {mark}").put(f"key {mark}", {"value": mark}, ttl_seconds=1000)
    scope.kv("contents").put("k", 1, content=mark.encode() * 20_000)
    scope.blobs.put(mark.encode() * 40_000)
    scope.state.update({"of the user": mark})
    new = NewCheckpoint("1", None, {"channel_versions": {"c": 1}, "at": mark}, {"m": mark},
                        {"c": (1, [mark] * 50)})  # fmt: skip
    scope.graph.put(f"thread {mark}", "", new, CODER)
    return session


def others(db, count=12):
    """Somebody else's data of many sizes, beside those that are erased."""
    for n in range(count):
        session = db.session(f"s{n % 3}", user="bob")
        session.append(said(f"bob {n} " + "z" * (n % 5) * 600))
    db.scope(user="bob").kv("k").put("a", [1, 2, 3], ttl_seconds=500)
    return texts_of(db)


def texts_of(db, who="bob"):
    return {
        entry.session_id: [item.message["content"] for item in
                           db.session(entry.session_id, user=who, app=entry.app).items()]
        for entry in db.sessions(user=who)
    }  # fmt: skip


def scan(path, *needles):
    """How often any of the needles stands in any file beside the database."""
    return sum(
        each.read_bytes().count(needle.encode() if isinstance(needle, str) else needle)
        for each in path.parent.iterdir()
        if each.is_file()
        for needle in needles
    )


def rows_of(db, *scopes):
    return [
        key
        for key, _ in db.engine.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff")))
        if key[0] in removing.SCOPED_KINDS and int.from_bytes(key[1:9], "big") in scopes
    ]


def pending(db):
    return db.engine.store.read(lambda txn: list(all_pending(txn)))


@pytest.mark.parametrize("durability", ["full", "relaxed", "none"], indirect=True)
def test_no_byte_of_the_erased_is_left_in_any_file(db, path):
    mine = others(db)
    for app in ("one", "two"):
        plant(db.scope(user=WHO, app=app))
        db.scope(user="bob", app=app).app_state.update({"theme": "dark"})
    others(db)
    assert scan(path, MARK) > 100
    receipt = db.erase(WHO, probes=[MARK])
    assert scan(path, MARK, WHO) == 0
    assert (receipt.bytes_gone, receipt.pending, receipt.scopes) == (True, (), 2)
    assert receipt.method == ("removed", "compacted")
    assert receipt.verification["found"] == receipt.verification["mentions"] == 0
    assert receipt.verification["bytes_scanned"] > 0
    assert receipt.counts["sessions"] == 4
    assert receipt.counts["items"] > 80
    assert receipt.counts["threads"] == 2
    assert [user for _, user in db.scopes()] == ["bob"]
    assert db.scope(user="bob", app="one").app_state["theme"] == "dark"
    assert texts_of(db).keys() == mine.keys()
    assert not pending(db)


def test_an_encrypted_file_cannot_even_be_read_before_the_bytes_are_gone(path, tmp_path):
    key = bytes(range(32))
    with memcore.open(path, key=key, counter="bytes/4") as db:
        mine = others(db)
        plant(db.scope(user=WHO))
        copy = tmp_path / "copies" / path.name
        copy.parent.mkdir()
        db.backup(copy)
        receipt = db.erase(WHO, compact=False)
        assert receipt.method == ("shredded", "removed")
        # A backup without the data key: the key file of today opens nothing of the user's.
        for each in path.parent.iterdir():
            if each.is_file() and each != path and not each.name.endswith("-lock"):
                (copy.parent / each.name).write_bytes(each.read_bytes())
        with memcore.open(copy, key=key, read_only=True) as old:
            session = old.session(f"chat about {MARK}", user=WHO)
            with pytest.raises(memcore.CorruptValueError):
                list(session.items())
            assert texts_of(old) == mine
        for each in list(copy.parent.iterdir()):
            each.unlink()
        (finished,) = db.finish_erasures()
        assert finished.method == ("shredded", "removed", "compacted")
        assert finished.bytes_gone
        assert scan(path, MARK, WHO) == 0  # of names in keys, too
        assert memcore.verify_receipt(finished, key=db.receipt_key)
        db.session("s", user=WHO).append(said("anew, under another data key"))
        assert texts_of(db) == mine
        assert db.check() == []


def test_an_audited_file_says_that_a_user_was_erased_and_not_who(path):
    audit = memcore.Audit(key=bytes(range(32)), anchor=path.with_name("anchors"), every_entries=9)
    with memcore.open(path, audit=audit, counter="bytes/4") as db:
        others(db)
        plant(db.scope(user=WHO))
        db.erase(WHO, compact=False)
        assert db.verify_audit().findings == ()
        assert db.finish_erasures()[0].bytes_gone
        assert db.verify_audit().findings == ()
        assert scan(path, MARK, WHO) == 0
        plant(db.scope(user=WHO))
        others(db)
        assert db.verify_audit().findings == ()
        assert any("erase" in str(entry) for entry in db.audit_entries())
        assert db.check() == []


def test_what_pages_hold_beside_rows_goes_too(open_db, path, monkeypatch):
    """LMDB writes whole pages from memory that held others: a compact copy keeps what they held."""
    from memcore.store import copy as copying

    db = open_db(durability="none", counter="bytes/4")

    for n in range(60):
        sizes = (50, 900, 2500, 3000)
        db.session("a", user=WHO).extend([said(MARK + "x" * sizes[n % 4]) for _ in range(5)])
        others(db, 5)
    db.delete_session("a", user=WHO)
    for _ in range(20):
        others(db, 15)
    with monkeypatch.context() as patch:
        patch.setattr(copying, "blank_slack", lambda *_: None)
        db.copy_compact()
        assert scan(path, MARK) > 0  # else there is nothing to be seen here
    db.copy_compact()
    assert scan(path, MARK) == 0


def test_a_remain_outside_of_rows_is_found(db, path, monkeypatch):
    from memcore.store import copy as copying

    def plant_in_slack(fd, _):
        import os

        os.pwrite(fd, MARK.encode(), 4096 - 64)  # behind the meta page's fields

    others(db)
    plant(db.scope(user=WHO))
    with monkeypatch.context() as patch:
        patch.setattr(copying, "blank_slack", plant_in_slack)
        receipt = db.erase(WHO, probes=[MARK])
    assert not receipt.bytes_gone
    assert receipt.verification["found"] == 1
    assert "trace of the user was found" in receipt.pending[0]
    (finished,) = db.finish_erasures()
    assert finished.bytes_gone
    assert finished.id == receipt.id
    assert scan(path, MARK) == 0


def test_names_that_are_gone_live_on_in_no_branch_of_the_tree(open_db, path):
    """A key that once parted two pages stays in the branch above them when its row goes."""
    db = open_db(durability="none", counter="bytes/4")
    for n in range(400):
        db.scope(user=("bob", WHO)[n % 2]).kv("n").put(
            f"{n:04} {(MARK, 'bob')[n % 2 == 0]} " * 5, n
        )
        db.session(f"{n} {'x' * (n % 90)}", user="bob").append(said("kept"))
    assert db.erase(WHO, probes=[MARK]).bytes_gone
    assert scan(path, MARK) == 0
    assert len(list(db.scope(user="bob").kv("n").scan())) == 200
    db.session(f"sessions of {WHO} and {WHO}", user="bob").append(said("a name of bob's own"))
    for n in range(300):
        db.session(f"{WHO} {n:03}", user="bob").append(said("names of bob's own"))
    db.session("s", user=WHO).append(said("x"))
    assert db.erase(WHO).bytes_gone
    assert len(list(db.sessions(user="bob"))) == 701


def test_who_is_mentioned_by_others_stays_in_their_rows(db, path):
    db.session("s", user="bob").append(said(f"write to {WHO} about it " * 300))
    plant(db.scope(user=WHO))
    receipt = db.erase(WHO)
    assert receipt.bytes_gone
    assert receipt.verification["mentions"] == scan(path, WHO) == 300
    assert receipt.verification["found"] == 0


# --- handles that know the dead scope -------------------------------------------------------------


def test_handles_begin_anew_and_never_write_into_the_dead_scope(db):
    scope = db.scope(user=WHO)
    session = plant(scope)
    kv, blobs, state, graph = scope.kv("contents"), scope.blobs, scope.state, scope.graph
    kv.put("known", 1)
    address = blobs.put(b"small")
    graph.put("t", "", NewCheckpoint("1", None, {}, {}, {}), CODER)
    dead = db.engine.store.read(lambda txn: erasing.scopes_of(txn, WHO, None))[0][0]
    db.erase(WHO)
    assert not session.exists()
    assert list(session.items()) == []
    assert kv.get("known") is None
    assert kv.expires("known") is None
    assert address not in blobs
    assert dict(state.all()) == {}
    assert [entry.thread for entry in graph.threads()] == []
    with pytest.raises(NotFoundError):
        session.undo() or session.fork("f")
    kv.put("known", 2)
    kv.put("large", 3, content=b"c" * 400_000)
    session.append(said("anew"))
    session.append(said("large" * 100_000))
    session.state.update({"user:x": 1, "own": 2})
    blobs.put(b"b" * 400_000)
    state.update({"y": 1})
    graph.put("t", "", NewCheckpoint("2", None, {}, {}, {"c": (1, ["v"] * 9)}), CODER)
    scope.hold(reason="anew")
    scope.release()
    assert rows_of(db, dead) == []
    assert kv.get("known") == 2
    assert [item.seq for item in session.items()] == [1, 2]
    assert db.check() == []


def test_a_handle_goes_on_beside_another_that_began_anew(db):
    session, kv = db.session("s", user=WHO), db.scope(user=WHO).kv("n")
    session.append(said("before"))
    kv.put("k", "before")
    db.erase(WHO)
    db.session("s", user=WHO).append(said("by another handle"))
    session.append(said("by the first"))
    assert [item.message["content"] for item in session.items()] == [
        "by another handle", "by the first",
    ]  # fmt: skip
    assert kv.get("k") is None


def test_rows_that_are_still_leaving_are_seen_by_nobody(db, monkeypatch):
    """The first transaction alone makes a user unreachable, however much there is to remove."""
    scope = db.scope(user=WHO)
    session, kv = plant(scope), scope.kv("contents")
    address = scope.blobs.put(b"b" * 400_000)
    state, graph, writer = session.state, scope.graph, scope.kv("contents")
    writer.get("k")
    graph.put("t", "", NewCheckpoint("1", None, {}, {}, {}), CODER)
    monkeypatch.setattr(erasing, "remove_rows", lambda *_: False)
    receipt = db.erase(WHO)
    assert not receipt.bytes_gone
    assert receipt.verification["rows_left"] == 1
    assert "finish_erasures" in receipt.pending[0]
    assert not session.exists()
    assert kv.get("k") is None
    assert kv.content("k") is None
    assert address not in scope.blobs
    assert state.all() == {}
    assert db.scopes() == []
    assert db.check() == []
    session.append(said("anew"))
    writer.put("k", "anew")
    graph.put("t", "", NewCheckpoint("2", None, {}, {}, {}), CODER)
    assert kv.get("k") == "anew"
    assert [entry.thread for entry in scope.graph.threads()] == ["t"]
    monkeypatch.undo()
    (finished,) = db.finish_erasures()
    assert finished.bytes_gone
    assert finished.counts["items"] > 40
    assert kv.get("k") == "anew"
    assert [item.message["content"] for item in session.items()] == ["anew"]


def test_a_large_content_on_its_way_is_refused_or_lands_in_the_new_scope(db, monkeypatch):
    from memcore.blobs import store as staging

    scope = db.scope(user=WHO)
    scope.kv("n").put("k", 1)
    dead = db.engine.store.read(lambda txn: erasing.scopes_of(txn, WHO, None))[0][0]
    real, once = staging._stage_batch, []

    def stage(*args):
        if not once:
            once.append(db.erase(WHO, compact=False))
        return real(*args)

    monkeypatch.setattr(staging, "_stage_batch", stage)
    with pytest.raises(NotFoundError, match="erased while"):
        scope.blobs.put(b"b" * 400_000)
    scope.blobs.put(b"b" * 400_000)
    assert rows_of(db, dead) == []


WRITER = """
import sys, memcore
from messages import user
db = memcore.open(sys.argv[1])
session, kv = db.session("s", user=sys.argv[2]), db.scope(user=sys.argv[2]).kv("n")
session.append(user("first")); kv.put("k", 1)
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "write":
        kv.put("k", kv.get("k", 0) + 1)
        session.append(user("more"))
        print(kv.get("k"), len(list(session.items())), flush=True)
    else:
        break
db.close()
"""


def ask(child, line):
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return child.stdout.readline().split()


def test_another_process_keeps_the_file_open(db, path):
    others(db)
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), WHO],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_env(),
    )  # fmt: skip
    try:
        assert child.stdout.readline() == "ready\n"
        assert ask(child, "write") == ["2", "2"]
        plant(db.scope(user=WHO, app="other"))
        receipt = db.erase(WHO, probes=[MARK])
        assert not receipt.bytes_gone
        assert receipt.finished_at is None
        assert "another process" in receipt.pending[0]
        assert [user for _, user in db.scopes()] == ["bob"]
        # Its handles know the dead number; it begins anew, and that survives.
        assert ask(child, "write") == ["1", "1"]
        assert ask(child, "write") == ["2", "2"]
        assert db.finish_erasures()[0].pending != ()
    finally:
        child.communicate("end\n")
    assert child.returncode == 0
    (finished,) = db.finish_erasures()
    assert finished.bytes_gone
    assert finished.id == receipt.id
    assert memcore.verify_receipt(finished, key=db.receipt_key)
    assert scan(path, MARK) == 0
    assert db.scope(user=WHO).kv("n").get("k") == 2


def _env():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_the_redo_slots_of_a_file_that_stays_are_blank(db, path):
    db.session("s", user=WHO).append(said(MARK))
    receipt = db.erase(WHO, compact=False)
    assert not receipt.bytes_gone
    from memcore.store.redo_log import find_run

    with path.open("rb") as file:
        run = find_run(file.fileno(), str(path))
        for offset in run.slots:
            file.seek(offset)
            assert not file.read(run.slot_bytes).strip(b"\0")
    db.session("s", user="bob").append(said("the file goes on"))
    assert scan(path, MARK) > 0
    db.copy_compact()
    assert scan(path, MARK) == 0
    (finished,) = db.finish_erasures()
    assert finished.bytes_gone
    assert finished.id == receipt.id
    assert db.finish_erasures() == []


# --- while others are at work ---------------------------------------------------------------------


def test_others_write_meanwhile_and_lose_nothing(open_db, path):
    db = open_db(counter="bytes/4", durability="none")
    stop, written, failures = Event(), dict.fromkeys(range(3), 0), []

    def write(n):
        try:
            session = db.session(f"w{n}", user=f"other{n}")
            kv = db.scope(user=f"other{n}").kv("k")
            while not stop.is_set():
                session.append(said(f"{n}:{written[n]}"))
                kv.put(str(written[n]), written[n], ttl_seconds=1000)
                written[n] += 1
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [Thread(target=write, args=(n,)) for n in written]
    for thread in threads:
        thread.start()
    for _ in range(3):
        plant(db.scope(user=WHO))
        assert db.erase(WHO, verify=False, probes=[MARK]).bytes_gone
        assert scan(path, MARK) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    for n, count in written.items():
        texts = [item.message["content"] for item in db.session(f"w{n}", user=f"other{n}").items()]
        assert texts == [f"{n}:{i}" for i in range(count)]
        assert len(list(db.scope(user=f"other{n}").kv("k").scan())) == count
    assert db.check() == []


def test_the_erased_user_streams_meanwhile(open_db, path):
    db = open_db(counter="bytes/4", durability="none")
    stop, failures, deeds = Event(), [], [0]

    def stream(n):
        session, kv = db.session(f"s{n}", user=WHO), db.scope(user=WHO).kv("k")
        while not stop.is_set():
            try:
                session.append(said("large " * 40_000 if deeds[0] % 50 == 1 else "small"))
                kv.increment("n")
                session.state.update({"a": deeds[0], "user:b": n})
                session.context(10**7)
                deeds[0] += 1
            except NotFoundError:
                continue  # erased between two steps of one call
            except Exception as error:  # noqa: BLE001 - told below
                failures.append(error)
                return

    threads = [Thread(target=stream, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    receipts = [db.erase(WHO, verify=False) for _ in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(receipt.bytes_gone for receipt in receipts)
    dead = db.engine.store.read(lambda txn: list(tombstone.buried(txn)))
    assert rows_of(db, *dead) == []
    assert db.check() == []
    assert db.erase(WHO).bytes_gone
    assert scan(path, WHO) == 0


def test_two_erase_the_same_user_at_once(db):
    plant(db.scope(user=WHO))
    receipts = []
    threads = [Thread(target=lambda: receipts.append(db.erase(WHO))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(receipt.bytes_gone for receipt in receipts)
    assert sum(bool(receipt.scopes) for receipt in receipts) >= 1
    assert pending(db) == []


# --- cut short ------------------------------------------------------------------------------------


class Cut(BaseException):
    """The process ended here."""


STAGES = {
    "after the names": (erasing._Work, "_shred"),
    "before the rows": (erasing, "remove_rows"),
    "between the rows": (removing, "_finish"),
    "before the bytes": (erasing, "compact_away"),
    "after the bytes": (erasing, "drop_pending"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_cut_short_anywhere_the_rest_is_finished(open_db, path, monkeypatch, stage):
    db = open_db(counter="bytes/4")
    mine = others(db)
    plant(db.scope(user=WHO))

    def cut(*_, **__):
        raise Cut

    monkeypatch.setattr(*STAGES[stage], cut)
    with pytest.raises(Cut):
        db.erase(WHO, probes=[MARK])
    monkeypatch.undo()
    assert db.check() == []
    assert [user for _, user in db.scopes()] == ["bob"]
    db.close()
    again = open_db(counter="bytes/4")
    assert pending(again)[0].stage == "removed"  # opening went on as far as it may
    db = again
    db.session("s", user=WHO).append(said("new"))
    receipts = db.finish_erasures()
    assert [receipt.bytes_gone for receipt in receipts] == [True]
    assert receipts[0].counts["items"] > 40
    assert scan(path, MARK) == 0
    assert texts_of(db) == mine
    assert texts_of(db, WHO) == {"s": ["new"]}


def test_who_asks_again_goes_on_with_what_was_begun(db, path):
    plant(db.scope(user=WHO))
    first = db.erase(WHO, compact=False)
    second = db.erase(WHO)
    assert (second.id, second.bytes_gone) == (first.id, True)
    third = db.erase(WHO)
    assert (third.scopes, third.bytes_gone, third.counts) == (0, True, {})
    assert scan(path, MARK, WHO) == 0


def test_many_users_go_with_one_compaction(db, path, monkeypatch):
    for n in range(4):
        plant(db.scope(user=f"user-number-{n}"), MARK)
    for n in range(3):
        assert not db.erase(f"user-number-{n}", compact=False).bytes_gone
    assert db.pending_erasures() == 3
    last = db.erase("user-number-3")
    assert last.bytes_gone
    assert scan(path, MARK) == 0
    monkeypatch.setattr(db.engine.store.__class__, "copy_compact", None)  # it went with the last
    assert [receipt.bytes_gone for receipt in db.finish_erasures()] == [True] * 3
    assert db.pending_erasures() == 0


def test_a_full_device_leaves_the_bytes_for_later(db, path, monkeypatch):
    plant(db.scope(user=WHO))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    from memcore.store import copy as replacing

    monkeypatch.setattr(replacing, "copy_snapshot", full)
    receipt = db.erase(WHO)
    assert not receipt.bytes_gone
    assert "no space is left" in receipt.pending[0]
    assert db.scopes() == []
    monkeypatch.undo()
    assert db.finish_erasures()[0].bytes_gone
    assert scan(path, MARK) == 0


def test_on_a_full_device_the_secret_waits_in_the_file(path, monkeypatch):
    """Who erases to make room has none for a new file, and the receipt is to be proven later."""
    users = ("alice", "bob")
    with memcore.open(path) as db:
        for user in users:
            db.session("chat", user=user).append({"role": "user", "content": "text"})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    place = path.with_name(f"{path.name}.secret")
    with monkeypatch.context() as patch:
        patch.setattr(secret, "put_private", full)
        with memcore.open(path) as db:
            receipt = db.erase("alice", compact=False)
            assert receipt.counts["items"] == 1
            assert memcore.verify_receipt(receipt, key=db.receipt_key)
            assert db.erase("alice").bytes_gone  # found by the digest of the name
            assert not place.exists()
            assert db.check() == []
        with memcore.open(path, read_only=True) as db:
            assert memcore.verify_receipt(receipt, key=db.receipt_key)
            assert db.check() == []
        with memcore.open(path) as db:  # there is no room yet
            assert memcore.verify_receipt(receipt, key=db.receipt_key)
    assert not place.exists()
    with memcore.open(path) as db:
        assert place.stat().st_mode & 0o777 == 0o600
        assert memcore.verify_receipt(receipt, key=db.receipt_key)
        assert db.engine.store.read(lambda txn: txn.get(keys.care_rows(0, Care.SECRET))) is None
        later = db.erase("bob")
        assert memcore.verify_receipt(later, key=db.receipt_key)
        assert db.check() == []
    assert place.read_bytes() not in path.read_bytes()


def test_two_who_have_no_room_for_the_secret_agree_on_one(path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(secret, "put_private", full)
    with memcore.open(path) as first, memcore.open(path) as second:
        assert first.receipt_key == second.receipt_key
        with memcore.open(path) as third:
            assert third.receipt_key == first.receipt_key


def test_two_who_make_the_secret_at_once_make_one_though_one_has_no_room(path, monkeypatch):
    """One finds the device full, and before it keeps the secret in the file there is room."""
    keys_of, threads = [], []

    def full_once(*_, **__):
        monkeypatch.setattr(secret, "put_private", put_private)
        other = Thread(target=lambda: keys_of.append(second.receipt_key))
        threads.append(other)
        other.start()
        while other.is_alive() and not first.engine.store.environment().queue.waiting:
            pass  # it is done, or it waits for its turn
        raise OSError(28, "No space left on device")

    put_private = secret.put_private
    with memcore.open(path) as first, memcore.open(path) as second:
        monkeypatch.setattr(secret, "put_private", full_once)
        keys_of.append(first.receipt_key)
        threads[0].join()
        assert len(set(keys_of)) == 1
    with memcore.open(path) as db:
        assert db.receipt_key == keys_of[0]


def full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.fixture
def waiting(path, monkeypatch):
    """A database whose secret waits in it for room, and that secret."""
    with monkeypatch.context() as patch:
        patch.setattr(secret, "put_private", full)
        with memcore.open(path) as db:
            db.session("s").append(said("x"))
            db.engine.store.secret.value()
    with memcore.open(path, read_only=True) as db:
        return path, db.engine.store.secret.value()


@pytest.mark.parametrize("compact", [True, False])
def test_no_copy_holds_the_secret_that_waits(waiting, tmp_path, monkeypatch, compact):
    path, value = waiting
    monkeypatch.setattr(secret, "put_private", full)
    with memcore.open(path) as db:
        assert value in path.read_bytes()
        db.backup(tmp_path / "backup", compact=compact)
        assert db.check() == []
        assert db.engine.store.secret.value() == value
    memcore.restore(path, tmp_path / "restored")
    for copy in ("backup", "restored"):
        assert value not in (tmp_path / copy).read_bytes()
        with memcore.open(tmp_path / copy) as db:
            assert db.engine.store.secret.value() != value
            assert db.check() == []


def test_a_compaction_takes_the_secret_that_waits_along(waiting, monkeypatch):
    path, value = waiting
    with monkeypatch.context() as patch:
        patch.setattr(secret, "put_private", full)
        with memcore.open(path) as db:
            db.copy_compact()
            assert db.check() == []
        with memcore.open(path) as db:
            assert db.engine.store.secret.value() == value
    memcore.open(path).close()
    assert path.with_name(f"{path.name}.secret").read_bytes() == value


@pytest.mark.parametrize("body", [bytes(32), b"s" * 32, b"s" * 31, b"s" * 40, b""])
def test_a_secret_that_somebody_planted_in_a_file_is_dropped(path, body, caplog):
    memcore.open(path).close()
    key = keys.care_rows(0, Care.SECRET)
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        txn.put(key, seal_value(key, body))
    with memcore.open(path) as db:
        assert db.engine.store.read(lambda txn: txn.get(key)) is None
        assert body.ljust(32)[:32] != db.engine.store.secret.value()
        assert db.check() == []
    assert "or of another file was dropped" in caplog.text


def test_a_damaged_secret_refuses_no_opening(waiting, caplog):
    path, _ = waiting
    key = keys.care_rows(0, Care.SECRET)
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))
    with memcore.open(path) as db:
        assert db.check() == []
    assert "or of another file was dropped" in caplog.text


def test_a_copy_of_a_file_does_not_take_its_secret_along(waiting, tmp_path):
    path, value = waiting
    shutil.copy(path, tmp_path / "copied")
    with memcore.open(tmp_path / "copied") as db:
        assert db.engine.store.secret.value() != value
        assert db.check() == []


def test_an_erasure_writes_the_key_file_once_for_all_applications(path, monkeypatch):
    with memcore.open(path, key=bytes(range(32))) as db:
        for number in range(40):
            db.scope(user="alice", app=f"a{number}").kv("n").put("k", "x")
        written = []
        put = secret.put_private
        monkeypatch.setattr(
            secret, "put_private", lambda *a, **o: (written.append(1), put(*a, **o))
        )
        assert db.erase("alice").bytes_gone
        assert len(written) == 1
        assert len(db.engine.store.vault.ring.shredded()) == 40


@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_on_a_full_device_rows_go_and_keys_await_shredding(path, monkeypatch, durability):
    """Who erases to make room has none for a new key file."""
    with memcore.open(path, key=bytes(range(32)), durability=durability) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).append(said(MARK))
        ring = db.engine.store.vault.ring
        with monkeypatch.context() as patch:
            patch.setattr(secret, "put_private", full)
            receipt = db.erase("alice")
            assert receipt.counts["items"] == 1
            assert receipt.verification["rows_left"] == 0
            assert not receipt.bytes_gone
            assert receipt.method == ("removed", "compacted")
            assert any("await shredding" in each for each in receipt.pending)
            assert ring.of_scope(1) is not None
            with memcore.open(path, key=bytes(range(32))) as second:  # refuses nothing
                assert second.check() == []
            db.session("s", user="bob").append(said("more"))
            assert [each.bytes_gone for each in db.finish_erasures()] == [False]
        db.session("s", user="bob").append(said("now there is room"))
        assert ring.of_scope(1) is None
        done = db.finish_erasures()
        assert [each.bytes_gone for each in done] == [True]
        assert done[0].method == ("shredded", "removed", "compacted")
        assert db.finish_erasures() == []
        assert db.check() == []


def test_keys_that_await_shredding_go_with_the_next_opening(path, monkeypatch, caplog):
    with memcore.open(path, key=bytes(range(32))) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).append(said(MARK))
        with monkeypatch.context() as patch:
            patch.setattr(secret, "put_private", full)
            assert not db.erase("alice", compact=False).bytes_gone
    with monkeypatch.context() as patch:
        patch.setattr(secret, "put_private", full)
        with memcore.open(path, key=bytes(range(32))) as db:
            assert db.engine.store.vault.ring.of_scope(1) is not None
    assert "No space left" in caplog.text
    with memcore.open(path, key=bytes(range(32))) as db:
        assert db.engine.store.vault.ring.of_scope(1) is None
        assert [each.bytes_gone for each in db.finish_erasures()] == [True]
        assert db.check() == []


def under_another_key(path):
    """What another process does by ``rotate_key``, of which this one does not know."""
    provider = secret.key_provider(bytes(range(1, 33)))
    key_file = f"{path}.keys"
    secret.KeyRing.load(key_file, secret.key_provider(bytes(range(32)))).rewrap(provider)


def test_keys_that_await_shredding_stop_no_commit_under_another_key(path, monkeypatch, caplog):
    with memcore.open(path, key=bytes(range(32))) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).append(said(MARK))
        with monkeypatch.context() as patch:
            patch.setattr(secret, "put_private", full)
            assert not db.erase("alice", compact=False).bytes_gone
        under_another_key(path)
        for _ in range(3):
            db.session("s", user="bob").append(said("more"))
        assert caplog.text.count("does not open this key file") == 1
        assert db.engine.store.vault.ring.of_scope(1) is not None
        with memcore.open(path, key=bytes(range(1, 33))) as second:
            assert db.engine.store.vault.ring.of_scope(1) is None
            assert [each.bytes_gone for each in second.finish_erasures()] == [True]
            assert len(db.session("s", user="bob")) == 4
            assert db.check() == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_restore_keeps_the_secret_that_waits_in_the_file_it_replaces(
    path, tmp_path, monkeypatch, damaged
):
    """Placeholders in the backup were made with it."""
    with monkeypatch.context() as patch, memcore.open(path) as db:
        patch.setattr(secret, "put_private", full)
        kept = db.engine.store.secret.value()
        db.backup(tmp_path / "backup")
    if damaged:
        with path.open("r+b") as file:
            file.write(bytes(8192))
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(StoreFullError, match="secret"):
        patch.setattr(secret, "put_private", full)
        memcore.restore(tmp_path / "backup", path, replace=True)
    assert path.read_bytes() == before
    memcore.restore(tmp_path / "backup", path, replace=True)
    with memcore.open(path) as db:
        assert db.engine.store.secret.value() == kept


def test_a_copy_under_another_key_says_so(path, tmp_path, monkeypatch):
    """Another process has changed the key: that says nothing against the copy."""
    with memcore.open(path, key=bytes(range(32))) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).append(said(MARK))
        with monkeypatch.context() as patch:
            patch.setattr(secret, "put_private", full)
            assert not db.erase("alice", compact=False).bytes_gone
        under_another_key(path)
        for copy in (db.copy_compact, lambda: db.backup(tmp_path / "backup"), db.check):
            with pytest.raises(WrongKeyError, match="open the database with that one"):
                copy()
        receipt = db.finish_erasures()[0]
        assert not receipt.bytes_gone
        assert not any("not sound" in each or "salvage" in each for each in receipt.pending)
        with memcore.open(path, key=bytes(range(1, 33))):
            assert [each.bytes_gone for each in db.finish_erasures()] == [True]
            assert db.copy_compact().bytes_after
            assert db.check() == []


def test_rows_of_an_erased_user_go_though_the_key_file_is_under_another_key(path):
    with memcore.open(path, key=bytes(range(32))) as db:
        for user in ("alice", "bob"):
            db.session("s", user=user).append(said(MARK))
        under_another_key(path)
        receipt = db.erase("alice")
        assert receipt.verification["rows_left"] == 0
        assert not receipt.bytes_gone
        assert receipt.method == ("removed",)  # no copy can be proven without the key
        assert any("await shredding" in each for each in receipt.pending)
    with memcore.open(path, key=bytes(range(1, 33))) as db:
        assert [each.bytes_gone for each in db.finish_erasures()] == [True]
        assert db.check() == []


def test_large_scopes_leave_in_pieces(db, monkeypatch):
    monkeypatch.setattr(store_handle.LmdbStore, "copy_compact", refuse)
    session = db.session("s", user=WHO)
    session.extend([said("short") for _ in range(3000)])
    kv = db.scope(user=WHO).kv("k")
    kv.put_many({str(n): n for n in range(2000)}, ttl_seconds=1000)
    db.scope(user="bob").kv("k").put_many({str(n): n for n in range(50)}, ttl_seconds=1000)
    before = db.engine.store.stats()["last_txnid"]
    receipt = db.erase(WHO)
    assert db.engine.store.stats()["last_txnid"] - before > 8
    assert receipt.counts["items"] == 3000
    assert receipt.counts["entries"] == 2000
    expiring = bytes((Kind.EXPIRY,))
    rows = db.engine.store.read(lambda txn: list(txn.scan(expiring, keys.after(expiring))))
    assert len(rows) == 50


def refuse(*_, **__):
    raise StoreLockedError("another process has the store open")


# --- names ----------------------------------------------------------------------------------------

HOSTILE = [
    "a",
    "a\0",
    "a\0\0",
    "a\0b",
    "\xff",
    "á",
    "a\u0301",
    "x" * 400,
    "x" * 401,
    "\ud800",
    "\0",
]


def test_hostile_names_take_nobody_else_along(open_db):
    db = open_db(durability="none", counter="bytes/4")
    for app in HOSTILE:
        for user in HOSTILE:
            db.scope(app=app, user=user).kv("n").put("k", [app, user])
    for gone in range(0, len(HOSTILE), 3):
        receipt = db.erase(HOSTILE[gone], compact=False)
        assert receipt.scopes == len(HOSTILE)
        db.scope(app="a", user=HOSTILE[gone]).erase(compact=False)
    left = {(app, user) for app in HOSTILE for user in HOSTILE[1::3] + HOSTILE[2::3]}
    assert set(db.scopes()) == left
    for app, user in left:
        assert db.scope(app=app, user=user).kv("n").get("k") == [app, user]
    assert all(receipt.bytes_gone for receipt in db.finish_erasures(verify=False))


def test_one_application_is_erased_alone(db):
    for app in ("one", "two"):
        db.session("s", user=WHO, app=app).append(said(MARK))
    receipt = db.scope(user=WHO, app="one").erase()
    assert receipt.scopes == 1
    assert receipt.app_digest is not None
    assert db.scopes() == [("two", WHO)]
    assert len(list(db.session("s", user=WHO, app="two").items())) == 1


def test_a_read_only_handle_and_bad_options_are_refused(db, open_db):
    db.session("s", user=WHO).append(said("x"))
    for wrong in ({"compact": 1}, {"key": b"short"}, {"key": "text" * 8}, {"app": ""}):
        with pytest.raises(InvalidOptionError):
            db.erase(WHO, **wrong)
    with pytest.raises(InvalidOptionError):
        db.erase("")
    with pytest.raises(memcore.ReadOnlyError):
        open_db(read_only=True).erase(WHO)
    assert db.scopes() == [("default", WHO)]


def test_in_memory_there_is_no_file_to_be_rid_of():
    with memcore.open(":memory:") as db:
        db.session("s", user=WHO).append(said("x"))
        receipt = db.erase(WHO)
        assert db.scopes() == []
        assert receipt.method == ("removed",)
        assert "in-memory" in receipt.pending[0]


def test_what_follows_from_it_is_also_there_with_await(path):
    async def run():
        async with memcore.aio.open(path) as db:
            await db.session("s", user=WHO).append(said(MARK))
            await db.scope(user=WHO).hold(reason="a case")
            with pytest.raises(HeldError):
                await db.erase(WHO)
            assert len(await db.holds()) == 1
            await db.scope(user=WHO).release()
            receipt = await db.scope(user=WHO).erase()
            assert receipt.bytes_gone
            assert memcore.verify_receipt(receipt, key=db.receipt_key)
            assert await db.finish_erasures() == []

    asyncio.run(run())


# --- receipts -------------------------------------------------------------------------------------


def test_a_receipt_is_proven_to_the_last_field(db):
    plant(db.scope(user=WHO))
    receipt = db.erase(WHO)
    key = db.receipt_key
    assert memcore.verify_receipt(receipt, key=key)
    assert memcore.verify_receipt(receipt.to_json(), key=key)
    assert receipt.is_about(WHO, key=key)
    assert not receipt.is_about("bob", key=key)
    assert not memcore.verify_receipt(receipt, key=b"another key of bytes")
    assert WHO not in receipt.to_json()
    fields = json.loads(receipt.to_json())
    for name, value in fields.items():
        other = {
            bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: v + 1,
            str: lambda v: v + "0", dict: lambda v: {**v, "rows": 7}, list: lambda v: [*v, "x"],
        }.get(type(value), lambda _: "x")(value)  # fmt: skip
        assert not memcore.verify_receipt({**fields, name: other}, key=key), name
    with pytest.raises(InvalidOptionError):
        memcore.verify_receipt("{}", key=key)
    with pytest.raises(InvalidOptionError):
        memcore.verify_receipt(receipt, key=b"short")


def test_a_receipt_under_a_key_of_the_caller(db):
    key = bytes(range(32))
    db.session("s", user=WHO).append(said("x"))
    receipt = db.erase(WHO, key=key, name_in_receipt=True, compact=False)
    assert receipt.user == WHO
    assert memcore.verify_receipt(receipt, key=key)
    (finished,) = db.finish_erasures(key=key)
    assert memcore.verify_receipt(finished, key=key)
    assert finished.is_about(WHO, key=key)
    assert finished.user_digest == receipt.user_digest


def test_backups_beside_the_file_are_named_in_the_receipt(db, path):
    db.session("s", user=WHO).append(said("x"))
    db.backup(f"{path}.before-friday")
    receipt = db.erase(WHO)
    assert any("before-friday" in what for what in receipt.out_of_reach)


def test_a_receipt_tells_of_what_a_power_cut_took_back(path, monkeypatch):
    """The file does not know of such a user, and bytes of them may be in its free pages."""
    cut = path.with_name("cut")
    with memcore.open(path, durability="relaxed", steady_interval_ms=60_000) as db:
        db.session("s", user="bob").append(said("hello"))
        db.flush()
        db.session("s", user=WHO).append(said(MARK))
        shutil.copy(path, cut)
    path.unlink()
    monkeypatch.setattr(steady, "boot_id", lambda: b"the next boot id")
    with memcore.open(cut) as db:
        receipt = db.erase(WHO)
        assert (receipt.scopes, receipt.method) == (0, ())
        assert scan(cut, MARK) > 0
        assert [what for what in receipt.out_of_reach if "free pages" in what]
        assert memcore.verify_receipt(receipt, key=db.receipt_key)
        db.copy_compact()
        assert scan(cut, MARK) == 0
        receipt = db.erase("bob")
        assert receipt.scopes == 1
        assert not [what for what in receipt.out_of_reach if "free pages" in what]


# --- damage ---------------------------------------------------------------------------------------


def test_damaged_rows_of_the_user_leave_like_the_others(db, path):
    session = plant(db.scope(user=WHO))
    store = db.engine.store
    (scope, _), *_ = store.read(lambda txn: erasing.scopes_of(txn, WHO, None))
    damaged = [key for key in rows_of(db, scope) if key[0] in (Kind.SESSION, Kind.KV, Kind.THREAD)]

    def bend(txn):
        for key in damaged[::5]:
            txn.put(key, (txn.get(key) or b"")[:-1] + b"?")

    store.transact(bend)
    assert db.check() != []
    receipt = db.erase(WHO, probes=[MARK])
    assert receipt.bytes_gone
    assert scan(path, MARK) == 0
    assert db.check() == []
    assert not session.exists()


def test_salvage_brings_no_erased_user_back(open_db, path, tmp_path, monkeypatch):
    db = open_db(counter="bytes/4")
    mine = others(db)
    plant(db.scope(user=WHO))
    db.scope(user="bob").hold(reason="a case")
    db.session("s0", user="bob").hold(reason="another")
    db.scope(user="carol").opt_out_memory()
    monkeypatch.setattr(erasing, "remove_rows", lambda *_: False)
    db.erase(WHO, compact=False)
    monkeypatch.undo()
    assert scan(path, MARK) > 0
    target = tmp_path / "elsewhere" / "salvaged"
    target.parent.mkdir()
    db.close()
    memcore.salvage(path, target, counter="bytes/4")
    assert scan(target, MARK, WHO) == 0
    with memcore.open(target) as saved:
        assert saved.check() == []
        assert texts_of(saved) == mine
        assert [(h.user, h.session_id, h.reason) for h in saved.holds()] == [
            ("bob", None, "a case"), ("bob", "s0", "another"),
        ]  # fmt: skip
        assert saved.scope(user="carol").memory_opt_out
    with memcore.open(path) as again:
        assert again.finish_erasures()[0].bytes_gone


def test_check_tells_of_erasures_that_do_not_add_up(db):
    db.session("s", user=WHO).append(said("x"))
    store = db.engine.store
    (scope, _), *_ = store.read(lambda txn: erasing.scopes_of(txn, WHO, None))
    store.transact(lambda txn: tombstone.bury(txn, scope))
    found = db.check()
    assert any("has a name" in what for what in found)
    assert any("no erasure is under way" in what for what in found)
    store.transact(lambda txn: txn.delete(tombstone.tombstone_of(scope)))
    assert db.check() == []


@pytest.mark.parametrize("what", ["items", "sessions"])
def test_a_sweep_passes_over_who_is_erased_meanwhile(db, what):
    for n in range(4):
        db.session("chat", user="carol").append({"role": "user", "content": f"text {n} of carol"})
    db.session("other", user="carol").append({"role": "user", "content": "text"})
    db.session("chat", user="bob").append({"role": "user", "content": "text of bob, which expires"})
    db.retention.set([{"what": what, "keep_last": 1}], user="carol", app="default")
    db.retention.expire_session("chat", 5, user="bob")
    asked = erasing.ErasureRequest("carol")
    report = db.sweep(now=4e9, archive=lambda _: erasing._begin(db.engine, asked, b"k" * 32))
    assert (report.items, report.sessions) == (0, 1)
    assert db.sweep(now=4e9).total == 0
    assert db.finish_erasures()[0].bytes_gone


class Hashed:
    """An embedder without a model: each text has a vector of its own."""

    id, dimensions = "hashed", 16

    def __call__(self, texts):
        digests = (hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
        return [[byte - 127.5 for byte in digest] for digest in digests]


def likes_of(key: bytes) -> bytes:
    """The hash of a word that everybody says, under the key of one index."""
    return search_terms("likes", key, 9)[0][:8]


def test_of_2000_facts_no_text_term_or_vector_is_left(path):
    facts = [f"secret{number} likes thing{number}" for number in range(2_000)]
    with memcore.open(path, embedder=Hashed()) as db:
        for who in ("bob", "ann"):
            texts = [f"{who}{fact}" for fact in facts]
            session = db.session("s", user=who)
            session.extend([said(text) for text in texts])
            for number, text in enumerate(texts, 1):
                session.memory.remember(text, source=number)
            session.memory.summary().extend(lambda request: request.messages[1]["content"])
            scope = db.scope(user=who)
            assert len(scope.search("likes")) == len(scope.memory.search("likes")) == 10
        number = db.engine.store.read(lambda txn: scope_of(txn, "default", "ann"))
        index = [(k, v) for k, v in rows(db.engine.store).items() if k[0] == Kind.SEARCH]
        index = [each for each in index if keys.split_scoped(each[0])[0] == number]
        key = db.engine.store.read(lambda txn: read_head(txn, number)).key
        hashes = [search_terms(text, key, 9)[0] for text in texts]
        terms = {each[at : at + 8] for each in hashes for at in range(0, len(each), 9)}
        blocks = [v for k, v in index if k[9] == SearchRow.VECTORS]
        pieces = (each[at : at + 64] for each in blocks for at in range(10, len(each) - 64, 64))
        vectors = [each for each in pieces if any(each)]  # a memory has none
        assert min(len(terms), len(vectors)) > 400
        before = path.read_bytes()
        assert all(each in before for each in (b"annsecret", vectors[0], likes_of(key)))
        db.erase("ann")
        assert db.check() == []
    left = b"".join(each.read_bytes() for each in path.parent.iterdir() if each.is_file())
    assert b"bobsecret1 " in left
    for what in (b"annsecret", b"annthing", *vectors):
        assert what not in left
    sample = [likes_of(key), *sorted(terms)[::20]]
    assert [each for each in sample if each in left or each[::-1] in left] == []
