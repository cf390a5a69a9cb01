"""The store as callers see it: opening, reading, writing, sharing, backing up, closing."""

from __future__ import annotations

import os
import subprocess
import threading
from unittest.mock import Mock

import pytest

from memcore.errors import (
    ClosedError,
    InternalError,
    InvalidOptionError,
    NestedCallError,
    ReadOnlyError,
    StoreAccessError,
    StoreFullError,
)
from memcore.store import datafile, open_file, open_store
from raw import rows

A, B, C = b"\x01a", b"\x01b", b"\x01c"


def test_a_compaction_waits_for_whoever_keeps_other_processes_out(path) -> None:
    """They share one flock: its end would let other processes in, and their commits be lost."""
    store = open_store(path)
    store.transact(lambda txn: txn.put(A, b"1"))
    compaction = threading.Thread(target=store.copy_compact)

    def look() -> None:
        compaction.start()
        compaction.join(0.3)
        assert compaction.is_alive()
        store.transact(lambda txn: txn.put(B, b"2"))

    store.exclusive(look)
    compaction.join()
    assert rows(store) == {A: b"1", B: b"2"}
    store.close()


def test_an_interrupt_before_a_new_name_is_durable_flushes_it(path, monkeypatch) -> None:
    flushed = Mock()
    monkeypatch.setattr(datafile, "sync_directory", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(open_file, "sync_directory", flushed)
    with pytest.raises(KeyboardInterrupt):
        open_store(path)
    flushed.assert_called_once()
    assert os.listdir(path.parent) == [path.name]


def test_what_was_written_is_read_back(store) -> None:
    def write(txn):
        txn.put(A, b"1")
        txn.put(B, b"2")
        return txn.get(A), txn.delete(C), txn.delete(B), txn.get(B)

    assert store.transact(write) == (b"1", False, True, None)
    assert rows(store) == {A: b"1"}


def test_reopening_keeps_rows_seed_and_mode(path) -> None:
    store = open_store(path, durability="none")
    store.transact(lambda txn: txn.put(A, b"1"))
    seed = store.seed
    store.close()

    again = open_store(path)
    assert (again.durability, again.seed, rows(again)) == ("none", seed, {A: b"1"})
    assert len(seed) == 16
    again.close()


def test_two_files_have_two_seeds(tmp_path) -> None:
    one, two = open_store(tmp_path / "one"), open_store(tmp_path / "two")
    assert one.seed != two.seed
    one.close()
    two.close()


def test_scan_is_half_open_and_goes_both_ways(store) -> None:
    keys = [b"\x01%c" % n for n in range(10)]
    store.transact(lambda txn: [txn.put(key, key) for key in keys])

    def scans(txn):
        return [
            [key for key, _ in txn.scan(keys[2], keys[7])],
            [key for key, _ in txn.scan(keys[2], keys[7], reverse=True)],
            [key for key, _ in txn.scan(keys[2], keys[7], limit=2)],
            [key for key, _ in txn.scan(keys[2], keys[7], reverse=True, limit=2)],
            [key for key, _ in txn.scan(keys[7], keys[2])],
            [key for key, _ in txn.scan(b"", b"\xff" * 600, reverse=True)],
            [key for key, _ in txn.scan(b"\x01" + b"\xff" * 600, b"\xff" * 600)],
        ]

    expected = [keys[2:7], keys[2:7][::-1], keys[2:4], [keys[6], keys[5]], [], keys[::-1], []]
    assert store.read(scans) == expected
    assert store.transact(scans) == expected


def test_scan_bounds_longer_than_a_key_are_exact(store) -> None:
    longest = b"\x01" * 511
    store.transact(lambda txn: txn.put(longest, b""))

    def scans(txn):
        behind = longest + b"\x00"
        return [len(list(txn.scan(longest, behind))), len(list(txn.scan(behind, b"\xff")))]

    assert store.read(scans) == [1, 0]
    assert store.transact(lambda txn: txn.delete_range(longest + b"\x00", b"\xff")) == 0
    assert store.transact(lambda txn: txn.delete_range(b"", longest + b"\x00")) == 1


def test_rows_may_be_deleted_while_they_are_scanned(store) -> None:
    keys = [b"\x01%03d" % n for n in range(500)]
    store.transact(lambda txn: [txn.put(key, b"x" * 100) for key in keys])

    def sweep(txn):
        return [txn.delete(key) for key, _ in txn.scan(b"\x01", b"\x02")]

    assert store.transact(sweep) == [True] * 500
    assert rows(store) == {}


def test_delete_range_counts_and_spares_the_store_s_own_rows(store) -> None:
    store.transact(lambda txn: [txn.put(key, b"") for key in (A, B, C)])
    assert store.transact(lambda txn: txn.delete_range(A, C)) == 2
    assert store.transact(lambda txn: txn.delete_range(b"", b"\xff")) == 1
    assert store.stats()["entries"] == 0


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00redo", b"\x00format", b"k" * 512])
def test_keys_that_are_not_the_upper_layers_are_refused(store, key) -> None:
    with pytest.raises(InternalError):
        store.transact(lambda txn: txn.put(key, b""))
    with pytest.raises(InternalError):
        store.transact(lambda txn: txn.delete(key))


def test_the_longest_key_and_a_large_value(store) -> None:
    key, value = b"k" * 511, os.urandom(3_000_000)
    store.transact(lambda txn: txn.put(key, value))
    assert rows(store) == {key: value}


def test_a_raising_closure_stores_nothing(store) -> None:
    def fail(txn):
        txn.put(A, b"1")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        store.transact(fail)
    assert rows(store) == {}


def test_reads_nest_and_see_one_snapshot(store) -> None:
    store.transact(lambda txn: txn.put(A, b"1"))

    def outer(txn):
        writer = threading.Thread(target=store.transact, args=(lambda t: t.put(A, b"2"),))
        writer.start()
        writer.join()
        return txn.get(A), store.read(lambda inner: inner.get(A))

    assert store.read(outer) == (b"1", b"1")
    assert rows(store) == {A: b"2"}


def test_a_read_inside_a_transaction_sees_the_last_commit(store) -> None:
    def write(txn):
        txn.put(A, b"new")
        return store.read(lambda inner: inner.get(A))

    assert store.transact(write) is None


def test_a_write_inside_a_transaction_or_a_read_is_an_error(store) -> None:
    with pytest.raises(NestedCallError, match="inside a transaction"):
        store.transact(lambda txn: store.transact(lambda inner: None))
    with pytest.raises(NestedCallError, match="inside a read"):
        store.read(lambda txn: store.transact(lambda inner: None))


def test_a_snapshot_does_not_outlive_its_read(store) -> None:
    kept = store.read(lambda txn: txn)
    scan = store.read(lambda txn: txn.scan(b"", b"\xff"))
    with pytest.raises(InternalError):
        kept.get(A)
    with pytest.raises(InternalError):
        kept.scan(A, B)
    with pytest.raises(Exception, match=r"closed|ended"):
        next(scan)


def test_a_transaction_does_not_outlive_its_closure(store) -> None:
    kept = store.transact(lambda txn: txn)
    for use in (lambda: kept.get(A), lambda: kept.put(A, b""), lambda: kept.delete(A)):
        with pytest.raises(InternalError):
            use()


def test_handles_of_one_file_share_it(path, store) -> None:
    other = open_store(path)
    reader = open_store(path, read_only=True)
    other.transact(lambda txn: txn.put(A, b"1"))
    assert rows(store) == rows(reader) == {A: b"1"}
    with pytest.raises(ReadOnlyError):
        reader.transact(lambda txn: None)
    other.close()
    with pytest.raises(ClosedError):
        other.read(lambda txn: None)
    assert rows(reader) == {A: b"1"}
    reader.close()


def test_a_read_only_environment_is_upgraded(path) -> None:
    open_store(path).close()
    reader = open_store(path, read_only=True)
    assert not reader.needs_recovery
    reader.flush()
    writer = open_store(path)
    writer.transact(lambda txn: txn.put(A, b"1"))
    assert rows(reader) == {A: b"1"}
    writer.close()
    with pytest.raises(ReadOnlyError):
        reader.transact(lambda txn: None)
    reader.close()


def test_closing_is_idempotent_and_final(path) -> None:
    store = open_store(path)
    store.close()
    store.close()
    for use in (
        lambda: store.read(lambda txn: None),
        lambda: store.transact(lambda txn: None),
        store.flush,
        store.stats,
        store.check,
        lambda: store.backup(path.with_name("copy")),
        lambda: store.needs_recovery,
    ):
        with pytest.raises(ClosedError):
            use()


def test_closing_inside_a_transaction_is_an_error(path) -> None:
    store = open_store(path)
    with pytest.raises(NestedCallError):
        store.transact(lambda txn: store.close())
    with pytest.raises(NestedCallError):
        store.read(lambda txn: store.close())
    store.close()


def test_closing_waits_for_a_read(path) -> None:
    store = open_store(path)
    store.transact(lambda txn: txn.put(A, b"1"))
    reading, go = threading.Event(), threading.Event()
    seen = []

    def slow(txn):
        reading.set()
        go.wait()
        seen.append(txn.get(A))

    reader = threading.Thread(target=store.read, args=(slow,))
    reader.start()
    reading.wait()
    closer = threading.Thread(target=store.close)
    closer.start()
    assert seen == []
    go.set()
    closer.join()
    reader.join()
    assert seen == [b"1"]


def test_the_recorded_mode_cannot_be_overruled(path) -> None:
    open_store(path).close()
    with pytest.raises(InvalidOptionError, match="'full'"):
        open_store(path, durability="none")
    store = open_store(path, durability="full")
    with pytest.raises(InvalidOptionError):
        open_store(path, durability="none")
    store.close()


def test_unknown_options_are_refused(path) -> None:
    for options in ({"durability": "maybe"}, {"map_bytes": 1}):
        with pytest.raises(InvalidOptionError):
            open_store(path, **options)
    with pytest.raises(InvalidOptionError):
        open_store("")
    with pytest.raises(InvalidOptionError):
        open_store(":memory:", durability="full")
    assert not path.exists()


def test_a_missing_file_is_not_made_unasked(path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(StoreAccessError):
            open_store(path, **options)
    assert not path.exists()
    with pytest.raises(StoreAccessError):
        open_store(path / "no" / "directory")


def test_creating_leaves_nothing_else_behind(path) -> None:
    open_store(path).close()
    assert sorted(os.listdir(path.parent)) == [path.name, f"{path.name}-lock"]


def test_threads_that_create_one_file_agree(path) -> None:
    barrier = threading.Barrier(8)
    stores = []

    def create():
        barrier.wait()
        stores.append(open_store(path))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.seed for store in stores}) == 1
    assert len(stores) == 8
    for store in stores:
        store.close()
    assert sorted(os.listdir(path.parent)) == [path.name, f"{path.name}-lock"]


def test_a_memory_store_leaves_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = open_store(":memory:")
    assert list(tmp_path.iterdir()) == []
    store.transact(lambda txn: txn.put(A, b"1"))
    assert (store.durability, store.path, rows(store)) == ("none", ":memory:", {A: b"1"})
    assert store.check() == []
    other = open_store(":memory:")
    assert rows(other) == {}
    store.backup(tmp_path / "copy")
    other.close()
    store.close()
    copy = open_store(tmp_path / "copy")
    assert rows(copy) == {A: b"1"}
    copy.close()


@pytest.mark.parametrize("compact", [True, False])
def test_a_backup_opens_cleanly_while_another_thread_writes(store, tmp_path, compact) -> None:
    store.transact(lambda txn: [txn.put(b"\x01%d" % n, b"x" * 500) for n in range(500)])
    stop = threading.Event()
    written = []

    def write():
        while not stop.is_set():
            number = len(written)
            store.transact(lambda txn, n=number: txn.put(b"\x02%08d" % n, b"y" * 300))
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            before = len(written)
            store.backup(tmp_path / f"copy{number}", compact=compact)
            copy = open_store(tmp_path / f"copy{number}", verify=True)
            assert copy.check() == []
            found = copy.read(lambda txn: [int(k[1:]) for k, _ in txn.scan(b"\x02", b"\x03")])
            assert found == list(range(len(found)))
            assert len(found) >= before
            copy.transact(lambda txn: txn.put(A, b"1"))
            copy.close()
    finally:
        stop.set()
        writer.join()


def test_a_backup_overwrites_nothing(store, tmp_path) -> None:
    target = tmp_path / "copy"
    target.write_bytes(b"precious")
    with pytest.raises(StoreAccessError, match="exists"):
        store.backup(target)
    with pytest.raises(StoreAccessError):
        store.backup(tmp_path / "no" / "directory")
    assert target.read_bytes() == b"precious"
    assert [p.name for p in tmp_path.iterdir() if ".new-" in p.name] == []


def test_stats_count_pages_and_entries(store) -> None:
    store.transact(lambda txn: [txn.put(b"\x01%d" % n, b"x" * 500) for n in range(200)])
    store.transact(lambda txn: txn.delete_range(b"\x01", b"\x02"))
    stats = store.stats()
    assert stats["pages"] == stats["pages_used"] + stats["pages_free"]
    assert stats["pages_free"] > 10
    assert stats["entries"] == 0
    assert (stats["batches"], stats["closures"], stats["handles"]) == (2, 2, 1)
    assert stats["file_bytes"] >= stats["pages"] * stats["page_bytes"]


def test_flush_and_exclusive(store) -> None:
    store.transact(lambda txn: txn.put(A, b"1"))
    store.flush()
    store.exclusive(lambda: store.transact(lambda txn: txn.put(B, b"2")))
    for ask in (store.copy_compact, lambda: store.exclusive(lambda: None)):
        with pytest.raises(NestedCallError, match="inside a transaction"):
            store.read(lambda _, ask=ask: ask())
        with pytest.raises(NestedCallError, match="inside a transaction"):
            store.transact(lambda _, ask=ask: ask())
    assert rows(store) == {A: b"1", B: b"2"}


def test_a_file_reached_by_two_names_is_one(path, store, tmp_path) -> None:
    """And has one lock file, or two processes would write at once."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(path)
    other = open_store(link)
    other.transact(lambda txn: txn.put(A, b"1"))
    assert rows(store) == {A: b"1"}
    assert other.path == str(path)
    assert os.listdir(link.parent) == ["link"]
    other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_large_write_on_a_full_device_is_no_device_error(tmp_path) -> None:
    """LMDB reports a write that was cut short as EIO; nothing is wrong with the device."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], check=True)
    try:
        store = open_store(tmp_path / "store")
        count = 0
        with pytest.raises(StoreFullError):
            while True:
                store.transact(lambda txn, n=count: txn.put(b"\x01%04d" % n, b"x" * 20_000))
                count += 1
        assert count > 50
        assert not store.stats()["poisoned"]
        store.transact(lambda txn: txn.put(b"\x01small", b"1"))
        assert store.read(lambda txn: sum(1 for _ in txn.scan(b"\x01", b"\x02"))) == count + 1
        assert store.check() == []
        store.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("where", ["transaction", "read"])
def test_a_call_inside_another_is_the_callers_mistake(db, where) -> None:
    session = db.session("s")

    def again(*_: object) -> int:
        db.session("t").append({"role": "user", "content": "x"})
        return 1

    with pytest.raises(NestedCallError, match="before or after it"):
        if where == "transaction":
            db.scope().kv("n").transact(again)
        else:
            db.engine.store.read(again)
    assert not session.exists()
    assert not db.session("t").exists()
