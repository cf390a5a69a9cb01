"""Room that is kept for deletions: who may use it, when it is measured, what does not fit."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
from pathlib import Path
from typing import Any

import lmdb
import pytest

import memcore
from memcore._fast import pages_for
from memcore.errors import StorageError, StoreFullError
from memcore.graph import JsonCoder, NewCheckpoint
from memcore.limits import (
    PAGE_BYTES,
    REDO_SLOT_BYTES,
    ROOM_BYTES,
    ROOM_BYTES_MIN,
    ROOM_STEP_BYTES,
    ROOM_STEP_BYTES_MIN,
)
from memcore.store import open_store
from memcore.store.commit import (
    _NODE_BYTES,
    _NODE_BYTES_MAX,
    SpaceReserve,
    rows_at_most,
    rows_in,
)
from memcore.store.datafile import DEPTH_MAX, newest_meta, parse_meta
from memcore.store.pages import DamageError
from messages import texts, user

A, B = b"\x01a", b"\x01b"
FEW, COMMIT_BYTES = 4, 32 * 1024
"""As ``_commit.pxi`` has them."""


def put(key: bytes, value: bytes = b"1"):
    return lambda txn: txn.put(key, value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.memcore"


@pytest.fixture
def full(path):
    """From its call on no file of this process may grow beyond what the store has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def go(more: int = 0) -> None:
        size = path.stat().st_size if path.exists() else 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, hard))

    yield go
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Reserves(list[SpaceReserve]):
    """All reserves made meanwhile; their number is how often they were measured."""

    def __len__(self) -> int:
        return sum(each.measured for each in self)

    def clear(self) -> None:
        for each in self:
            each.measured = 0


@pytest.fixture
def measured(monkeypatch):
    """Counts how often the room is measured."""
    found, start = Reserves(), SpaceReserve.__init__

    def note(self, *given):
        found.append(self)
        start(self, *given)

    monkeypatch.setattr(SpaceReserve, "__init__", note)
    return found


@pytest.fixture(params=["full", "relaxed"])
def crowded(path, full, request):
    """A database with one long session, on a full device, and a writer that was refused."""
    with memcore.open(path, durability=request.param) as db:
        for _ in range(4):
            db.session("long").extend([user("x" * 3_000) for _ in range(100)])
        db.session("chat").extend([user("first"), user("second"), user("third")])
        full()
        with pytest.raises(StoreFullError, match="delete sessions"):
            while True:
                db.session("other").append(user("x" * 10_000))
        yield db
        assert db.check() == []


# --- who may use it -------------------------------------------------------------------------------


def test_what_takes_back_works_on_a_full_device(crowded):
    session = crowded.session("chat")
    assert [item.message["content"] for item in session.undo()] == ["third"]
    session.rewind(1)
    assert texts(session) == ["first"]
    assert not session.uncompact()


def test_deleting_frees_a_full_device(crowded):
    assert crowded.delete_session("long")
    for n in range(20):
        crowded.session("chat").append(user(f"{n} ".ljust(3_000)))
    assert len(crowded.session("chat")) == 23


def test_keys_and_blobs_can_be_deleted_on_a_full_device(path, full):
    with memcore.open(path) as db:
        address = db.scope().blobs.put(b"x" * 3_000_000)
        kv = db.scope().kv("state")
        kv.put_many({f"k{n}": "v" * 1_000 for n in range(1_000)}, ttl_seconds=3_600)
        full()
        with pytest.raises(StoreFullError):
            while True:
                db.session("chat").append(user("x" * 10_000))
        assert kv.transact(lambda txn: txn.delete("k6"), makes_room=True)
        assert kv.delete("k5")
        assert kv.clear() == 998
        assert db.scope().blobs.delete(address)
        db.session("chat").append(user("x" * 300_000))
        assert db.check() == []


def test_what_only_reads_is_not_refused(crowded):
    assert crowded.check() == []
    assert crowded.session("nobody").undo() == []
    store = crowded.engine.store
    assert store.transact(lambda txn: txn.get(A)) is None


def test_a_request_that_was_carried_out_is_answered_on_a_full_device(path, full):
    with memcore.open(path) as db:
        session = db.session("chat")
        first = session.append(user(), idempotency_key="k")
        full()
        with pytest.raises(StoreFullError):
            while True:
                session.append(user("x" * 10_000))
        assert session.append(user(), idempotency_key="k") == first


def test_a_relaxed_store_reuses_what_it_freed_before_its_next_steady_point(path, full):
    with memcore.open(path, durability="relaxed", steady_interval_ms=60_000) as db:
        for _ in range(10):
            db.session("long").extend([user("x" * 3_000) for _ in range(100)])
        full()
        with pytest.raises(StoreFullError):
            while True:
                db.session("chat").append(user("x" * 10_000))
        count = len(db.session("chat"))
        assert db.delete_session("long")
        for _ in range(100):
            db.session("chat").append(user("x" * 10_000))
        assert len(db.session("chat")) == count + 100


# --- how it is measured ---------------------------------------------------------------------------


def test_it_is_measured_now_and_then_only(path, measured):
    store = open_store(path)
    for n in range(20):
        store.transact(put(b"\x01%d" % n))
    assert len(measured) < 20
    store.close()


def _write(path):
    store = open_store(path)
    store.transact(put(B))
    store.close()


def test_it_is_measured_anew_when_somebody_else_wrote(path, measured):
    store = open_store(path)
    store.transact(put(A))
    store.transact(put(A, b"2"))
    assert len(measured) == 1
    store.transact(lambda txn: txn.delete(A), makes_room=True)
    store.transact(put(A))
    assert len(measured) == 2
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    store.transact(put(A))
    assert len(measured) == 3
    store.close()


def test_room_is_kept_behind_the_last_page_while_freed_pages_are_pinned(path) -> None:
    """Where LMDB grows the file, it may leave a hole, whose reuse fails on a full device."""
    with memcore.open(path, durability="relaxed", steady_interval_ms=60_000) as db:
        session = db.session("s")
        for number in range(200):
            session.append(user("x" * 3_000))
            db.scope().kv("state").put("k", "v" * 40_000)
            if number % 50 == 49:
                session.undo(40)
            stats = db.stats()
            beyond = stats["file_bytes"] - stats["pages"] * stats["page_bytes"]
            pinned = db.engine.store.environment().steady_sync.pinned_room
            assert beyond + pinned.free >= ROOM_BYTES_MIN
            assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_free_pages_count_where_nothing_pins_them(path) -> None:
    """A large rewrite takes what a deletion freed: the file does not grow."""
    with memcore.open(path) as db:
        kv = db.scope().kv("large")
        large = {f"k{number}": b"x" * 500_000 for number in range(12)}
        kv.put_many(large)
        for _ in range(3):
            kv.clear()
            for number in range(3):
                db.session("s").append(user(f"{number}"))
            size = path.stat().st_size
            kv.put_many(large)
            assert path.stat().st_size <= size + ROOM_BYTES


def test_a_batch_that_does_not_fit_takes_no_more_than_the_reserve(path, monkeypatch) -> None:
    """What is left of the device is other programs'."""
    monkeypatch.setattr("memcore.store.commit.room_beyond", lambda _: 3_000_000)
    with memcore.open(path) as db:
        db.session("s").append(user("x"))
        size = path.stat().st_size
        with pytest.raises(StoreFullError):
            db.scope().kv("large").put_many({f"k{n}": b"x" * 900_000 for n in range(10)})
        assert path.stat().st_size <= size + 2 * ROOM_BYTES
        db.session("s").append(user("y"))
        assert db.check() == []


@pytest.mark.parametrize("size", [2**31, 40 * 2**20])
def test_a_file_that_is_sparse_on_purpose_stays_so(path, size) -> None:
    with memcore.open(path) as db:
        db.session("s").append(user("x"))
    os.truncate(path, size)
    with memcore.open(path) as db:
        db.session("s").append(user("y"))
        assert path.stat().st_blocks * 512 < 8 * 2**20
        assert db.check() == []


def test_holes_for_which_there_is_no_space_are_filled_later(path, monkeypatch) -> None:
    with memcore.open(path) as db:
        db.session("s").append(user("x"))
    os.truncate(path, path.stat().st_size + 2**20)
    sparse = path.stat().st_blocks * 512
    with memcore.open(path) as db:
        with monkeypatch.context() as patch:
            patch.setattr("memcore.store.commit.room_beyond", lambda _: 4096)
            db.session("s").append(user("y"))
        assert path.stat().st_blocks * 512 < sparse + 2**20
        for _ in range(12):  # until it is measured again
            db.session("s").append(user("z" * 100_000))
        assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_holes_are_filled_by_the_first_batch(path) -> None:
    """A file that a tool copied may have some where there are only zeros."""
    with memcore.open(path) as db:
        db.session("s").append(user("x" * 100_000))
    size = path.stat().st_size + 40 * PAGE_BYTES
    with path.open("rb+") as file:
        file.truncate(size)
        file.seek(size - 20 * PAGE_BYTES)
        file.write(b"\0")
    assert path.stat().st_blocks * 512 < size
    with memcore.open(path) as db:
        db.session("s").append(user())
        assert path.stat().st_blocks * 512 >= path.stat().st_size
        assert db.check() == []


def test_the_file_grows_ahead_of_need(path):
    store = open_store(path)
    store.transact(put(A))
    stats = store.stats()
    beyond = stats["file_bytes"] - stats["pages"] * stats["page_bytes"]
    free = beyond + stats["pages_free"] * stats["page_bytes"]
    assert ROOM_BYTES_MIN + ROOM_STEP_BYTES_MIN // 2 <= free < ROOM_BYTES_MIN + 2**19
    assert stats["file_bytes"] < 1.1 * 2**20
    for number in range(60):
        store.transact(put(b"\x01%d" % number, b"x" * 40_000))
    stats = store.stats()
    beyond = stats["file_bytes"] - stats["pages"] * stats["page_bytes"]
    assert beyond + stats["pages_free"] * stats["page_bytes"] >= ROOM_BYTES
    store.close()


def test_the_reserve_is_two_copies_of_the_tree_up_to_a_megabyte(path) -> None:
    run = 1 + 2 * REDO_SLOT_BYTES // PAGE_BYTES
    with memcore.open(path) as db:
        reserve = db.engine.store._env.reserve
        for _ in range(60):
            db.session("s").extend([user("x" * 2_000)] * 4)
            _, pages, free_pages, last_page = reserve.figures
            unused = last_page - 1 - pages - free_pages
            beyond = path.stat().st_size - (last_page + 1) * PAGE_BYTES
            room = min(ROOM_BYTES, ROOM_BYTES_MIN + 2 * PAGE_BYTES * (pages - run))
            assert unused * PAGE_BYTES + beyond >= room
        assert room == ROOM_BYTES


@pytest.mark.parametrize("durability", ["full", "relaxed"])
@pytest.mark.parametrize("items", [1, 20, 90, 300])
def test_all_of_a_small_file_can_be_deleted_on_a_full_device(path, full, durability, items) -> None:
    """Session by session, state and values too, with no byte more than the file has."""
    with memcore.open(path, durability=durability) as db:
        for number in range(3):
            session = db.session(f"s{number}")
            session.extend([user(f"{at} " + "x" * 200) for at in range(items)])
            session.state.update({"field": "y" * 500})
            db.scope().kv("k").put(f"k{number}", "z" * 500)
        full()
        with pytest.raises(StoreFullError):
            for at in range(100_000):
                db.session("filler").append(user(f"{at} " + "x" * (at % 700)))
        for number in range(3):
            assert db.scope().kv("k").delete(f"k{number}")
            assert db.session(f"s{number}").undo(2)
            assert db.delete_session(f"s{number}")
        assert db.delete_session("filler")
        db.session("anew").append(user("fits again"))
        assert db.check() == []


# --- files that do not fit ------------------------------------------------------------------------


def test_a_lock_file_is_never_sparse(path):
    open_store(path).close()
    status = path.with_name(f"{path.name}-lock").stat()
    assert status.st_blocks * 512 >= status.st_size > 0


@pytest.mark.parametrize("more", [0, 50_000, 100_000, 300_000, 540_000])
def test_a_store_that_does_not_fit_leaves_nothing(path, full, more):
    full(more)
    try:
        with pytest.raises(StoreFullError):
            open_store(path)
    finally:
        full(2**30)  # pytest's own output may be a file
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("compact", [True, False])
def test_a_backup_that_does_not_fit_leaves_nothing(path, full, compact):
    with memcore.open(path) as db:
        db.session("chat").append(user("x" * 3_000_000))
        full(-3_000_000)
        with pytest.raises(StoreFullError):
            db.backup(path.with_name("copy"), compact=compact)
        assert sorted(p.name for p in path.parent.iterdir()) == [path.name, f"{path.name}-lock"]


# --- what a batch takes ---------------------------------------------------------------------------


def _batch(rng, known):
    """Rows as memcore writes them: neighbours, scattered ids, rows anew, large ones."""
    kind = rng.choice(("neighbours", "scattered", "anew", "large", "few"))
    count = rng.randrange(1, 400) if kind != "few" else rng.randrange(1, 5)
    size = rng.choice((0, 10, 60, 200, 700, 1900))
    start = rng.randrange(1 << 40)
    if kind == "anew" and known:
        return {
            key: max(known[key], size) for key in rng.sample(sorted(known), min(count, len(known)))
        }
    if kind == "large":
        return {
            b"\x20%08d" % (start + n): rng.randrange(3000, 70_000) for n in range(count // 20 + 1)
        }
    if kind == "neighbours":
        prefix = b"\x0f" * 21 + rng.choice((b"", b"n" * 60))
        return {b"%s%016d" % (prefix, start + n): size for n in range(count)}
    return {b"\x10" * 17 + rng.randbytes(16): size for _ in range(count)}


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_never_takes_more_pages_than_are_estimated(path, seed):
    rng = random.Random(seed)
    env = lmdb.open(str(path), subdir=False, map_size=1 << 30, sync=False, max_dbs=0)
    pin = env.begin()  # so that no page is used again
    known = {}
    for _ in range(120):
        before = env.stat()
        pages = before["leaf_pages"] + before["branch_pages"] + before["overflow_pages"]
        last = env.info()["last_pgno"]
        puts = _batch(rng, known)
        with env.begin(write=True) as txn:
            for key, size in puts.items():
                txn.put(key, bytes(size))
            rows = rows_in(txn, puts) if len(puts) > FEW else rows_at_most(puts)
            estimate = pages_for(rows, before["depth"], pages)
            assert pages_for(rows_at_most(puts), before["depth"], pages) >= estimate
        taken = env.info()["last_pgno"] - last
        assert taken <= estimate + COMMIT_BYTES // PAGE_BYTES, (taken, estimate, rows)
        known |= puts
    pin.abort()
    env.close()


@pytest.mark.parametrize("size", [10, 60, 200, 700])
def test_small_neighbours_are_estimated_at_twice_what_they_take(path, size):
    env = lmdb.open(str(path), subdir=False, map_size=1 << 30, sync=False, max_dbs=0)
    taken = estimated = 0
    with env.begin(write=True) as txn:
        for at in range(4000):
            txn.put(b"\x0f%020d" % (at * 10_000), bytes(100))
    for start in range(0, 40_000_000, 4_000_000):
        before, last = env.stat(), env.info()["last_pgno"]
        pages = before["leaf_pages"] + before["branch_pages"]
        puts = {b"\x0f%020d" % (start + at): size for at in range(1, 1500)}
        with env.begin(), env.begin(write=True) as txn:
            for key in puts:
                txn.put(key, bytes(size))
            estimated += pages_for(rows_in(txn, puts), before["depth"], pages)
        taken += env.info()["last_pgno"] - last
    assert taken <= estimated <= 2.2 * taken, (taken, estimated)
    env.close()


def test_a_copy_of_a_thread_grows_the_file_by_what_it_takes(path):
    with memcore.open(path) as db:
        graph = db.scope().graph
        parent = None
        for at in range(600):
            body = {"channel_versions": {"a": at, "b": at}}
            values = {"a": (at, at), "b": (at, f"b{at}")}
            graph.put("t", "", NewCheckpoint(f"{at:06}", parent, body, {}, values), JsonCoder())
            parent = f"{at:06}"
        before, size = db.stats(), path.stat().st_size
        graph.copy_thread("t", "copy")
        after = db.stats()
        taken = (after["pages"] - before["pages"]) * after["page_bytes"]
        assert path.stat().st_size - size <= 2 * taken + ROOM_BYTES


# --- the meta pages, as the reserve reads them ---------------------------------------------------


def figures_of(path: Path) -> tuple[int, int, int, int]:
    with path.open("rb") as file:
        reserve = SpaceReserve(file.fileno(), str(path))
        reserve.look()
        return reserve.figures


def test_figures_of_the_newest_meta_page_are_those_that_are_parsed(tmp_path) -> None:
    """After every commit; and after each of LMDB's fields was changed in turn."""
    path = tmp_path / "head"
    with memcore.open(tmp_path / "db") as db:
        for number in range(6):
            db.session("s").extend([{"role": "user", "content": "x" * 900}] * (1 + 40 * number))
            path.write_bytes(Path(db.path).read_bytes())
            head = path.read_bytes()[: 2 * PAGE_BYTES]
            metas = [parse_meta(head, page) for page in (0, 1)]
            newest = max(metas, key=lambda meta: meta.txnid)
            expected = (newest.main_depth, newest.main_pages, newest.free_pages, newest.last_page)
            assert figures_of(path) == expected
    raw = path.read_bytes()
    for start in (0, PAGE_BYTES):  # of one broken page: those of the other
        for at in (0, 10, 16, 20, 40, 144):
            wrong = bytearray(raw)
            wrong[start + at] ^= 1
            with pytest.raises(DamageError):
                [parse_meta(bytes(wrong), page) for page in (0, 1)]
            path.write_bytes(wrong)
            try:
                newest = newest_meta_of(path)
            except StorageError as error:
                with pytest.raises(type(error)):
                    figures_of(path)
            else:
                assert figures_of(path) == (
                    newest.main_depth, newest.main_pages, newest.free_pages, newest.last_page,
                )  # fmt: skip
    path.write_bytes(raw[: PAGE_BYTES + 17])
    with pytest.raises(StorageError):
        figures_of(path)


def newest_meta_of(path: Path) -> Any:
    with path.open("rb") as file:
        return newest_meta(file.fileno(), str(path))


def test_counts_of_a_meta_page_that_was_damaged_meanwhile_stop_nobody(path, tmp_path) -> None:
    """They may say anything: LMDB never looks at them."""
    with memcore.open(path) as db:
        session = db.session("s")
        session.append(user("before"))
        raw = Path(db.path).read_bytes()
        for counts in ((2**64 - 1,) * 7, (2**63,) * 7, (2**64 - 1, *(0,) * 6), (0,) * 7):
            wrong = bytearray(raw)
            for start in (16, PAGE_BYTES + 16):
                for at, count in zip((32, 40, 48, 80, 88, 96, 120), counts, strict=True):
                    wrong[start + at : start + at + 8] = count.to_bytes(8, "little")
                wrong[start + 78 : start + 80] = b"\xff\xff"
            damaged = tmp_path / "damaged"
            damaged.write_bytes(wrong)
            with damaged.open("rb+") as file:
                reserve = SpaceReserve(file.fileno(), str(damaged))
                for txnid in (7, 8, 9):
                    reserve.reserve(None, txnid, {b"k": 10})
                wrong[16] ^= 1
                damaged.write_bytes(wrong)
                with pytest.raises(StorageError):  # not an overflow of the sums
                    reserve.reserve(None, 20, {b"k": 10})
            assert damaged.stat().st_size < len(raw) + 2 * ROOM_BYTES
        session.append(user("after"))
        assert len(session) == 2


def test_the_first_batch_of_a_handle_costs_what_the_tree_says(path) -> None:
    """Nothing is known of the tree before it is measured, or after others wrote."""
    with memcore.open(path) as db:
        for number in range(800):
            db.session(f"s{number}").append(user("x" * 300))
        puts = {b"\x0f%06d" % number: 40 for number in range(FEW)}
        known = db.engine.store._env.reserve
        with db.engine.store.environment().raw.begin(write=True) as raw:
            before = known._left
            known.reserve(raw, raw.id(), puts)
            expected = before - known._left
            assert known.figures[0] > 2
            fresh = SpaceReserve(db.engine.store.environment().fd, str(path))
            fresh.reserve(raw, raw.id(), puts)
            measured = SpaceReserve(db.engine.store.environment().fd, str(path))
            measured.look()
            measured.measure(expected)
            assert measured._left - fresh._left == expected
            raw.abort()


def test_what_does_not_fit_is_measured_once(path, full, measured) -> None:
    with memcore.open(path) as db:
        session = db.session("s")
        session.append(user("x" * 3_000))
        full()
        with pytest.raises(StoreFullError):
            while True:
                session.append(user("x" * 10_000))
        measured.clear()
        with pytest.raises(StoreFullError):
            session.append(user("x" * 10_000))
        assert len(measured) == 1


def test_the_figures_of_both_sides_are_the_same() -> None:
    """The extension has those of its own that this module names, too."""
    source = (Path(memcore.__file__).parent / "_commit.pxi").read_text()
    for name, figure in (
        ("ROOM_COMMIT", COMMIT_BYTES),
        ("ROOM_NODE", _NODE_BYTES),
        ("ROOM_NODE_MAX", _NODE_BYTES_MAX),
        ("ROOM_FEW", FEW),
        ("ROOM_BYTES", ROOM_BYTES),
        ("ROOM_BYTES_MIN", ROOM_BYTES_MIN),
        ("ROOM_STEP_BYTES", ROOM_STEP_BYTES),
        ("ROOM_STEP_BYTES_MIN", ROOM_STEP_BYTES_MIN),
        ("RUN_PAGES", 1 + 2 * REDO_SLOT_BYTES // PAGE_BYTES),
        ("DEPTH_MAX", DEPTH_MAX),
    ):
        assert re.search(rf" {name} = {figure}\b", source), name
