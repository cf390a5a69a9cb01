"""Contents of key/value entries: shared, counted with the entry, gone with the last one."""

from __future__ import annotations

import asyncio

import pytest

import memcore
from memcore import blobs
from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.codec.values import seal_value
from memcore.database.scope import rows_of
from memcore.errors import (
    CorruptValueError,
    InvalidItemError,
    InvalidOptionError,
    OptedOutError,
)
from memcore.maintenance.salvage import salvage
from memcore.store import LmdbStore
from raw import rows

SMALL, STAGED, PIECES = 1000, 300_000, 2_000_000
"""Bytes of a content that is written with its entry, one that is staged, and one of which the rows
leave in several pieces."""
BLOB_KINDS = (Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS, Kind.REMOVAL)


def payload(size, seed=0):
    return (bytes(range(256)) * (size // 256 + 1))[seed : seed + size]


def blob_rows(db, *kinds):
    return [key for key in rows(db.engine.store) if key[0] in (kinds or BLOB_KINDS)]


@pytest.fixture
def durability():
    return "none"


@pytest.fixture
def kv(db):
    return db.scope().kv("files")


@pytest.mark.parametrize("size", [0, SMALL, STAGED, PIECES])
def test_a_content_comes_back_beside_the_value(kv, size):
    kv.put("a", {"name": "a"}, content=payload(size))
    assert (kv.get("a"), kv.content("a")) == ({"name": "a"}, payload(size))
    assert kv.read(lambda view: (view.content("a"), view.content_size("a"))) == (
        payload(size),
        size,
    )
    assert dict(kv.scan()) == {"a": {"name": "a"}}
    kv.put("b", b"bytes")
    assert (kv.get("b"), kv.content("b"), kv.content("c")) == (b"bytes", None, None)
    assert kv.read(lambda view: (view.content_size("b"), view.content_size("c"))) == (None, None)


@pytest.mark.parametrize("size", [SMALL, STAGED])
def test_equal_contents_are_stored_once(db, kv, size):
    kv.put("a", 1, content=payload(size))
    stored = len(blob_rows(db))
    kv.put("b", 2, content=payload(size))
    db.scope().kv("others").put("a", 3, content=payload(size))
    db.scope().blobs.put(payload(size))
    assert len(blob_rows(db)) == stored
    db.scope(user="other").kv("files").put("a", 4, content=payload(size))
    assert len(blob_rows(db)) == 2 * stored


LEAVINGS = {
    "delete": lambda kv: kv.delete("a"),
    "overwrite": lambda kv: kv.put("a", "without a content"),
    "replace": lambda kv: kv.put("a", 1, content=payload(SMALL, 9)),
    "range": lambda kv: kv.delete_range("a", "b"),
    "clear": lambda kv: kv.clear(),
    "transact": lambda kv: kv.transact(lambda txn: txn.delete("a")),
    "increment": lambda kv: kv.increment("a"),
}


@pytest.mark.parametrize("how", LEAVINGS)
@pytest.mark.parametrize("size", [SMALL, PIECES])
def test_a_content_leaves_with_its_last_entry(db, kv, how, size):
    kv.put("a", 1, content=payload(size))
    db.scope().kv("others").put("b", 2, content=payload(size))
    LEAVINGS[how](kv)
    assert db.scope().kv("others").content("b") == payload(size)
    db.scope().kv("others").delete("b")
    if how != "replace":
        assert blob_rows(db) == []
    assert db.scope().blobs.collect() == 0


def test_expired_entries_let_their_contents_go(db, kv):
    kv.put("a", 1, content=payload(PIECES), ttl_seconds=0.001)
    kv.put("b", 1, content=payload(SMALL), ttl_seconds=3600)
    while kv.get("a") is not None:
        pass
    assert kv.content("a") is None
    while not kv.sweep():
        pass
    assert len(blob_rows(db, Kind.BLOB)) == 1
    assert (kv.get("b"), kv.content("b")) == (1, payload(SMALL))


def test_replacing_a_content_by_itself_keeps_it(db, kv):
    for _ in range(2):
        kv.put("a", 1, content=payload(SMALL))
        assert kv.content("a") == payload(SMALL)
    kv.delete("a")
    assert blob_rows(db) == []


def test_a_transaction_that_fails_holds_nothing(db, kv):
    def closure(txn):
        txn.put("a", 1, content=payload(SMALL))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kv.transact(closure)
    assert blob_rows(db) == []


def test_a_staged_content_is_put_by_a_transaction(db, kv):
    ref = kv.stage(payload(STAGED))
    assert kv.transact(lambda txn: txn.put("a", 1, content=ref)) is None
    kv.unstage(ref)  # it has an entry now
    assert kv.content("a") == payload(STAGED)
    with pytest.raises(InvalidOptionError, match="stage"):
        kv.transact(lambda txn: txn.put("b", 1, content=payload(STAGED)))

    lost = kv.stage(payload(STAGED, 1))
    kv.unstage(lost)
    with pytest.raises(blobs.StagedBlobLost):
        kv.transact(lambda txn: txn.put("b", 1, content=lost))
    assert kv.get("b") is None


def test_a_staged_content_that_is_collected_is_staged_again(db, kv, monkeypatch):
    real = LmdbStore.transact
    collected = []

    def transact(store, fn, **options):
        if blob_rows(db, Kind.BLOB) and not blob_rows(db, Kind.BLOB_REFS) and len(collected) < 2:
            collected.append(None)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LmdbStore, "transact", real)
                db.scope().blobs.collect()
        return real(store, fn, **options)

    db.scope().kv("others").put("the scope has", "its number")
    monkeypatch.setattr(LmdbStore, "transact", transact)
    kv.put("a", 1, content=payload(STAGED))
    monkeypatch.undo()
    assert len(collected) == 2
    assert kv.content("a") == payload(STAGED)


def test_what_is_no_content_is_refused(kv):
    for wrong in ("text", 5, [b"x"]):
        with pytest.raises(InvalidOptionError, match="content"):
            kv.put("a", 1, content=wrong)
    with pytest.raises(InvalidItemError):
        kv.put("a", object(), content=b"x")
    kv.put("a", 1, content=bytearray(b"buffer"))
    assert kv.content("a") == b"buffer"


def test_submitted_deletions_say_that_rows_are_left(db, kv):
    kv.put("a", 1, content=payload(PIECES))
    kv.put("b", 1, content=payload(SMALL))

    def closure(key):
        return lambda txn: (txn.delete(key), txn.leaves_rows)

    async def main():
        loop = asyncio.get_running_loop()
        return [await kv.submit(closure(key), loop, makes_room=True) for key in ("b", "a")]

    assert asyncio.run(main()) == [(True, False), (True, True)]
    assert blob_rows(db, Kind.REMOVAL)
    db.delete_session("nobody's")  # whoever deletes next takes them along
    assert blob_rows(db) == []


def test_the_asynchronous_handle_has_contents(path):
    async def main():
        async with memcore.aio.open(path, durability="none", allow_unsafe=True) as db:
            kv = db.scope().kv("files")
            await kv.put("a", 1, content=payload(STAGED))
            return await kv.content("a")

    assert asyncio.run(main()) == payload(STAGED)


# --- check and salvage ----------------------------------------------------------------------------


def meddle(db, change):
    """Apply ``change(txn)``, and give back what was there before when the test has looked."""
    before = rows(db.engine.store)
    db.engine.store.transact(change)
    found = db.check()

    def undo(txn):
        for key in rows_in(txn).keys() - before.keys():
            txn.delete(key)
        for key, value in before.items():
            txn.put(key, value)

    db.engine.store.transact(undo)
    return found


def rows_in(txn):
    return dict(txn.scan(b"\x01", b"\xff"))


def test_check_counts_the_references(db, kv):
    kv.put("a", 1, content=payload(SMALL))
    kv.put("b", 1, content=payload(SMALL))
    db.scope().blobs.put(payload(SMALL))
    db.session("chat").append({"role": "user", "content": "x" * 40_000})
    (counted, other) = blob_rows(db, Kind.BLOB_REFS)
    if int.from_bytes(rows(db.engine.store)[counted][-8:], "big") != 3:
        counted, other = other, counted
    for key, says, tells in (
        (counted, 4, "3 rows"),
        (counted, 2, "3 rows"),
        (other, 2, "1 row refers"),
    ):
        value = seal_value(key, keys.u64(says))
        (finding,) = meddle(db, lambda txn, key=key, value=value: txn.put(key, value))
        assert f"it says {says}" in finding
        assert tells in finding
    findings = meddle(db, lambda txn: txn.delete(counted))
    assert any("it says 0, 3 rows refer" in finding for finding in findings)


def test_check_finds_a_content_that_is_gone(db, kv):
    kv.put("a", 1, content=payload(SMALL))

    def change(txn):
        for key in rows_in(txn):
            if key[0] in BLOB_KINDS:
                txn.delete(key)

    (finding,) = meddle(db, change)
    assert "its content is not stored" in finding
    db.engine.store.transact(lambda txn: txn.put(*stray(txn)))
    with pytest.raises(CorruptValueError, match="missing"):
        kv.content("stray")
    kv.delete("stray")


def stray(txn):
    """An entry whose content nobody stored."""
    key = keys.kv_prefix(1, 1) + keys.pack_text("stray")
    return key, seal_value(key, blobs.BlobRef(bytes(16), 0, 5).pack() + b"1", 0x02)


def test_salvage_keeps_contents_and_counts_them_anew(path, tmp_path, open_db):
    db = open_db()
    kv = db.scope().kv("files")
    kv.put("a", {"n": 1}, content=payload(STAGED))
    kv.put("b", {"n": 2}, content=payload(STAGED), ttl_seconds=3600)
    kv.put("c", {"n": 3}, content=b"of c alone " + payload(SMALL))
    db.scope().blobs.put(payload(STAGED))
    db.close()
    raw = path.read_bytes()
    broken = tmp_path / "broken"
    broken.write_bytes(raw.replace(b"of c alone ", b"?f c alone "))

    report = salvage(broken, tmp_path / "saved")
    assert (report.entries, report.blobs) == (2, 1)
    assert report.lost == ("entry 'c' of namespace 'files': its content",)
    with memcore.open(tmp_path / "saved") as saved:
        again = saved.scope().kv("files")
        assert dict(again.scan()) == {"a": {"n": 1}, "b": {"n": 2}}
        assert again.content("b") == payload(STAGED)
        again.clear()
        assert len(blob_rows(saved, Kind.BLOB)) == len(blob_rows(saved, Kind.BLOB_REFS)) == 1
        assert saved.check() == []


def test_no_content_is_stored_ahead_for_a_user_who_opted_out(db) -> None:
    scope = db.scope(user="u")
    kv = rows_of(scope, "mem", memory=True)
    kv.put("a", 1)
    scope.opt_out_memory()
    for write in (
        lambda: kv.put("k", 1, content=payload(STAGED)),
        lambda: kv.stage(payload(STAGED)),
    ):
        with pytest.raises(OptedOutError):
            write()
    assert blob_rows(db) == []
