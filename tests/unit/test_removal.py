"""Deleting what is large: gone at once, in bounded pieces, whatever happens in between."""

from __future__ import annotations

import subprocess
import sys

import pytest

import memcore
from memcore import blobs, limits
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import seal_value
from memcore.errors import StoreFullError
from memcore.maintenance.check import Damage, damage_of
from memcore.session import delete as removal
from memcore.store.redo_log import RedoLog
from messages import texts, user

SMALL = 5
LONG = 2 * limits.PIECE_ROWS + 50
"""More than two pieces of items, and then the rows of the index."""
BIG = 4 * limits.BLOB_CHUNKS_PIECE * limits.BLOB_CHUNK_BYTES


def fill(session, count=LONG):
    session.extend([user(f"{n} ".ljust(60, ".")) for n in range(count)])
    return session


def kinds(db):
    """How many rows of each kind there are."""
    found = {}
    for key, _ in db.engine.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff"))):
        found[key[0]] = found.get(key[0], 0) + 1
    return found


def commits(db):
    return db.engine.store.stats()["last_txnid"]


@pytest.fixture
def recorded(monkeypatch):
    """The rows of each transaction that is recorded."""
    sizes = []
    write = RedoLog.write

    def note(self, txnid, ops):
        sizes.append(len(ops))
        return write(self, txnid, ops)

    monkeypatch.setattr(RedoLog, "write", note)
    return sizes


@pytest.fixture
def between(monkeypatch):
    """Runs a function once, between the first transaction of a deletion and its pieces."""

    def go(fn):
        go_on = removal._go_on

        def stop_first(*args):
            monkeypatch.setattr(removal, "_go_on", go_on)
            fn()
            return go_on(*args)

        monkeypatch.setattr(removal, "_go_on", stop_first)

    return go


# --- sessions -------------------------------------------------------------------------------------


def test_a_long_session_leaves_in_pieces(db, recorded):
    db.session("other").append(user("stays"))
    before = kinds(db)
    fill(db.session("long"))
    recorded.clear()
    assert db.delete_session("long")
    assert len(recorded) >= 3
    assert max(recorded) <= limits.PIECE_ROWS + 5
    assert kinds(db) == before


def test_a_short_session_leaves_in_one_transaction(db):
    fill(db.session("short"), SMALL)
    before = commits(db)
    assert db.delete_session("short")
    assert commits(db) == before + 1


def test_pieces_count_the_pages_of_large_items(db, recorded):
    db.session("long").extend([user("x" * 30_000) for _ in range(200)])
    recorded.clear()
    db.delete_session("long")
    assert len(recorded) >= 4


def test_the_blobs_of_a_session_leave_with_it(db, recorded):
    db.session("other").append(user("stays"))
    before = kinds(db)
    db.session("long").append(user("x" * BIG))
    db.session("long").append(user("y" * 1_000_000))
    recorded.clear()
    assert db.delete_session("long")
    assert len(recorded) >= 4
    assert kinds(db) == before


def test_a_blob_that_is_shared_stays(db):
    for name in ("one", "two"):
        db.session(name).append(user("x" * BIG))
    db.delete_session("one")
    assert texts(db.session("two")) == ["x" * BIG]
    db.delete_session("two")
    assert Kind.BLOB_CHUNK not in kinds(db)


def test_hidden_parents_leave_in_pieces_with_their_last_fork(db):
    db.session("other").append(user("stays"))
    before = kinds(db)
    session = fill(db.session("long"))
    fork = fill(session.fork("fork"))
    last = fill(fork.fork("last"), SMALL)
    db.delete_session("long")
    db.delete_session("fork")
    assert len(last) == 2 * LONG + SMALL
    db.delete_session("last")
    assert kinds(db) == before


# --- what happens meanwhile -----------------------------------------------------------------------


def test_it_is_gone_before_its_rows_are(db, open_db, between):
    session = fill(db.session("long"))
    reader = open_db(read_only=True).session("long")
    assert len(reader) == LONG
    seen = []

    def look():
        seen.extend([len(session), session.exists(), len(reader), list(db.sessions()), db.check()])
        seen.append(Kind.REMOVAL in kinds(db))

    between(look)
    db.delete_session("long")
    assert seen == [0, False, 0, [], [], True]
    assert kinds(db).keys() == {Kind.COUNTER, Kind.SCOPE, Kind.SCOPE_NAME}


def test_an_append_meanwhile_makes_a_fresh_session(db, between):
    session = fill(db.session("long"))
    between(lambda: session.append(user("new")))
    db.delete_session("long")
    assert texts(session) == ["new"]
    assert session.get(1).message == user("new")


def test_a_fork_meanwhile_finds_no_session(db, between):
    session = fill(db.session("long"))
    errors = []

    def fork():
        with pytest.raises(memcore.NotFoundError) as found:
            session.fork("fork")
        errors.append(found)

    between(fork)
    db.delete_session("long")
    assert errors
    assert [entry.session_id for entry in db.sessions()] == []


OTHER = """
import memcore, sys
with memcore.open(sys.argv[1]) as db:
    print(db.delete_session("long"), len(db.session("long")))
    db.session("long").append({"role": "user", "content": "theirs"})
"""


def test_two_processes_delete_the_same_session(db, path, between):
    fill(db.session("long"))
    told = []

    def other():
        run = subprocess.run(
            [sys.executable, "-c", OTHER, path], check=True, capture_output=True, text=True
        )
        told.append(run.stdout.split())

    between(other)
    assert db.delete_session("long")
    assert told == [["False", "0"]]
    assert texts(db.session("long")) == ["theirs"]
    assert Kind.REMOVAL not in kinds(db)


def test_a_deletion_goes_on_with_that_of_another(db, between):
    fill(db.session("long"))
    fill(db.session("also"))
    rows = []

    def other():
        assert db.delete_session("also")
        rows.append(Kind.REMOVAL in kinds(db))

    between(other)
    assert db.delete_session("long")
    assert rows == [False]
    assert Kind.SESSION not in kinds(db)


# --- cut short ------------------------------------------------------------------------------------

KILLED = """
import memcore, os, signal, sys
from memcore.session import delete as removal
piece, left = removal._piece, [int(sys.argv[2])]
def die(txn, row):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return piece(txn, row)
removal._piece = die
with memcore.open(sys.argv[1]) as db:
    db.delete_session("long")
"""


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 4])
def test_a_killed_deletion_neither_comes_back_nor_leaves_rows(path, pieces):
    with memcore.open(path) as db:
        db.session("other").append(user("stays"))
        before = kinds(db)
        fill(db.session("long"))
        db.session("long").append(user("x" * BIG))
    run = subprocess.run([sys.executable, "-c", KILLED, path, str(pieces)], check=False)
    assert run.returncode < 0
    with memcore.open(path, read_only=True) as db:
        assert [entry.session_id for entry in db.sessions()] == ["other"]
        assert Kind.REMOVAL in kinds(db)
        assert db.check() == []
    with memcore.open(path) as db:
        assert kinds(db) == before
        assert db.session("long").append(user("new")).seq == 1
        assert db.check() == []


def test_opening_does_a_bounded_part_and_the_next_deletion_the_rest(path, monkeypatch):
    with memcore.open(path) as db:
        db.session("other").append(user("stays"))
        fill(db.session("long"), 5 * limits.PIECE_ROWS)
    subprocess.run([sys.executable, "-c", KILLED, path, "0"], check=False)
    monkeypatch.setattr("memcore.database.open.REMOVAL_PIECES_OPENING", 1)
    with memcore.open(path) as db:
        assert kinds(db)[Kind.SESSION] > limits.PIECE_ROWS
        assert not db.delete_session("nobody")
        assert Kind.REMOVAL not in kinds(db)
        assert kinds(db)[Kind.SESSION] == 3
        assert db.check() == []


def test_what_fails_half_way_is_gone_all_the_same(db, monkeypatch):
    fill(db.session("long"))
    piece = removal._piece

    def full(txn, row):
        raise StoreFullError("no space")

    monkeypatch.setattr(removal, "_piece", full)
    with pytest.raises(StoreFullError):
        db.delete_session("long")
    assert not db.delete_session("long")
    assert len(db.session("long")) == 0
    assert db.check() == []
    monkeypatch.setattr(removal, "_piece", piece)
    assert not db.delete_session("long")
    assert Kind.SESSION not in kinds(db)


def test_a_damaged_count_does_not_keep_a_session(open_db, path):
    db = open_db(path=path.with_name("damaged"))
    db.session("long").append(user("x" * 100_000))
    (row,) = db.engine.store.read(
        lambda txn: list(txn.scan(bytes((Kind.BLOB_REFS,)), bytes((Kind.BLOB_REFS + 1,))))
    )
    db.engine.store.transact(lambda txn: txn.put(row[0], b"?" * len(row[1])))
    assert db.delete_session("long")
    assert Kind.SESSION not in kinds(db)


def test_check_names_a_session_in_use_that_is_listed_for_removal(open_db, path):
    db = open_db(path=path.with_name("damaged"))
    db.session("chat").append(user())
    row = keys.removal_row(keys.session_prefix(1, 1))
    db.engine.store.transact(lambda txn: txn.put(row, memcore.codec.values.seal_value(row, b"")))
    assert any("listed for removal" in finding for finding in db.check())


# --- blobs and key/value entries ------------------------------------------------------------------


def test_a_large_blob_is_deleted_in_pieces(db, recorded):
    store = db.scope().blobs
    address = store.put(b"z" * BIG)
    recorded.clear()
    assert store.delete(address)
    assert address not in store
    assert len(recorded) >= 4
    assert max(recorded) <= limits.BLOB_CHUNKS_PIECE + 5
    assert not kinds(db).keys() & {Kind.BLOB, Kind.BLOB_CHUNK, Kind.REMOVAL}


def test_a_blob_can_be_stored_again_while_it_is_removed(db):
    payload = b"z" * BIG
    store = db.engine.store
    address = db.scope().blobs.put(payload)
    (key, value) = store.read(lambda txn: next(txn.scan(b"\x09", b"\x0a")))
    ref = blobs.BlobRef.unpack(memcore.codec.values.open_value(key, value)[1])

    def drop(txn):
        txn.delete(key)
        blobs.release(txn, 1, ref)

    store.transact(drop)
    assert Kind.REMOVAL in kinds(db)
    assert db.check() == []
    assert db.scope().blobs.put(payload) == address
    assert db.scope().blobs.get(address) == payload
    assert db.scope().blobs.collect() == 1
    assert db.scope().blobs.get(address) == payload
    assert Kind.REMOVAL not in kinds(db)


def test_collect_takes_many_blobs_in_pieces(db, recorded):
    store = db.engine.store
    scope = store.transact(lambda txn: memcore.rows.names.ensure_scope(txn, "default", "default"))
    for n in range(40):
        blobs.stage(store, scope, bytes((n,)) * 300_000, seed=1)
    blobs.stage(store, scope, b"z" * BIG, seed=1)
    recorded.clear()
    assert db.scope().blobs.collect() == 41
    assert 10 < len(recorded) < 30
    assert not kinds(db).keys() & {Kind.BLOB, Kind.BLOB_CHUNK, Kind.REMOVAL}


def test_a_range_of_keys_leaves_in_pieces(db, recorded):
    kv = db.scope().kv("state")
    for first in range(0, 3 * limits.PIECE_ROWS, 512):
        kv.put_many({f"k{n:06}": n for n in range(first, first + 512)})
    recorded.clear()
    assert kv.delete_range("k000010", "k003000") == 2_990
    assert 2 <= len(recorded) <= 5
    assert max(recorded) <= limits.PIECE_ROWS
    assert [key for key, _ in kv.scan(limit=11)][9:] == ["k000009", "k003000"]
    assert kv.clear() == 10 + 72
    assert kv.clear() == 0


def test_keys_that_expire_leave_in_smaller_pieces(db, recorded):
    kv = db.scope().kv("state")
    kv.put_many({f"k{n:06}": n for n in range(400)}, ttl_seconds=0.001)
    kv.put_many({f"l{n:06}": n for n in range(400)}, ttl_seconds=3_600)
    recorded.clear()
    assert kv.sweep() == 400
    assert len(recorded) >= 3
    recorded.clear()
    assert kv.clear() == 400
    assert len(recorded) >= 3
    assert Kind.EXPIRY not in kinds(db)


def test_a_row_cut_down_to_nothing_goes_with_the_others(db) -> None:
    db.session("s").append(user("hi"))
    key = keys.session_row(1, 1, keys.Row.ITEM, 1)
    db.engine.store.transact(lambda txn: txn.put(key, b""))
    assert db.delete_session("s")
    assert Kind.SESSION not in kinds(db)


def test_a_salvage_does_not_bring_back_what_was_being_deleted(open_db, path, monkeypatch) -> None:
    db = open_db()
    db.session("stays").append(user("hi"))
    fill(db.session("long"))
    monkeypatch.setattr(removal, "_go_on", lambda *_: None)
    assert db.delete_session("long")
    db.close()
    saved = path.with_name("saved.memcore")
    report = memcore.salvage(path, saved)
    assert (report.items, report.items_lost, report.damaged, report.blobs_lost) == (1, 0, (), 0)
    with memcore.open(saved) as copy:
        assert copy.check() == []
        assert not list(copy.engine.store.read(lambda txn: _rows_of(txn, 2)))


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    "rest", ["", "05", "0500000000000000010000", "05" + "00" * 7 + "01", "long"]
)
def test_a_damaged_mark_removes_nothing(tmp_path, is_sealed, rest) -> None:
    path = tmp_path / "damaged.memcore"
    db = memcore.open(path)
    db.session("s").append(user("hi"))
    at = b"\x05" + (1).to_bytes(8, "big") if rest == "long" else bytes.fromhex(rest)
    row = b"".join(
        (bytes((Kind.REMOVAL,)), (1).to_bytes(8, "big"), at, b"\xff" * 3 * (rest == "long"))
    )
    value = seal_value(row, b"") if is_sealed else bytes(10)
    db.engine.store.transact(lambda txn: txn.put(row, value))
    assert {damage_of(finding) for finding in db.check()} == {Damage.MARK}
    db.close()
    with memcore.open(path) as again:
        assert len(again.session("s")) == 1
        assert not again.delete_session("none")
        assert list(again.session("s").items())
        assert again.check()


def _rows_of(txn, session):
    start = keys.session_prefix(1, session)
    return list(txn.scan(start, keys.after(start)))


def test_a_session_is_deleted_without_its_counter(path):
    words = memcore.CallableCounter(lambda text: len(text.split()), name="words")
    with memcore.open(path, counter=words) as db:
        db.session("s").append({"role": "user", "content": "one two"})
        db.session("s").fork("f")
    with memcore.open(path) as db:
        assert db.delete_session("s")
        assert db.delete_session("f")
        assert list(db.sessions()) == []
        assert db.check() == []
