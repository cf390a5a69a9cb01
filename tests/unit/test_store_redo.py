"""The redo record: what it holds, when it is run again, when it must not be."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore._fast import redo_record, write_redo, xxh3_64
from memcore.store import open_store
from memcore.store.datafile import FORMAT_KEY, MEMORIES, META_OFFSETS, REDO_KEY, Format, open_locked
from memcore.store.redo_log import decode, find_run
from memcore.store.transaction import stored

META_BYTES = 136
KEYS = [b"\x01%c" % n for n in range(6)]


def everything(path: Path, **options) -> dict[bytes, bytes]:
    store = open_store(path, **options)
    try:
        assert store.check() == []
        return dict(store.read(lambda txn: list(txn.scan(b"", b"\xff"))))
    finally:
        store.close()


class Lab:
    """A store whose last commit can be taken back, as a power cut before its meta page does it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = open_store(path)

    def metas(self) -> bytes:
        return self.path.read_bytes()[: 2 * 4096]

    def cut(self, before: bytes) -> Path:
        """A copy of the file with the meta pages of ``before``; the store stays open."""
        copy = self.path.with_name(f"cut-{os.urandom(4).hex()}")
        shutil.copyfile(self.path, copy)
        with copy.open("r+b") as file:
            file.write(before)
        return copy

    def slot(self, txnid: int) -> int:
        fd = open_locked(str(self.path), read_only=True)
        try:
            return find_run(fd, "").slots[txnid & 1]
        finally:
            os.close(fd)


@pytest.fixture
def lab(tmp_path: Path):
    lab = Lab(tmp_path / "agent.memcore")
    lab.store.transact(lambda txn: txn.put(KEYS[0], b"old"))
    yield lab
    lab.store.close()


def test_a_lost_meta_page_costs_nothing(lab) -> None:
    before = lab.metas()
    lab.store.transact(lambda txn: (txn.put(KEYS[0], b"new"), txn.put(KEYS[1], b"1")))
    cut = lab.cut(before)

    reader = open_store(cut, read_only=True)
    assert reader.needs_recovery
    assert reader.read(lambda txn: txn.get(KEYS[0])) == b"old"
    reader.close()

    assert everything(cut) == {KEYS[0]: b"new", KEYS[1]: b"1"}
    reader = open_store(cut, read_only=True)
    assert not reader.needs_recovery
    reader.close()


def test_recovery_may_be_cut_off_and_come_again(lab) -> None:
    before = lab.metas()
    lab.store.transact(lambda txn: txn.put(KEYS[0], b"new"))
    cut = lab.cut(before)
    assert everything(cut) == {KEYS[0]: b"new"}
    with cut.open("r+b") as file:
        file.write(before)
    assert everything(cut) == {KEYS[0]: b"new"}


def test_a_record_is_run_only_on_its_own_predecessor(lab) -> None:
    """Two transactions with the same number: the record of one must not touch the other's file."""
    before = lab.metas()
    txnid = lab.store.stats()["last_txnid"] + 1
    lab.store.transact(lambda txn: txn.put(KEYS[0], b"new"))
    record = lab.path.read_bytes()[lab.slot(txnid) : lab.slot(txnid) + 4096]
    cut = lab.cut(before)

    with cut.open("r+b") as file:  # another history: the predecessor's entry count differs
        offset = META_OFFSETS[(txnid - 1) & 1]
        image = bytearray(before[offset : offset + META_BYTES])
        image[16] ^= 1  # the recorded map size: of no other consequence
        file.seek(offset)
        file.write(image)
    assert cut.read_bytes()[lab.slot(txnid) :].startswith(record)
    assert everything(cut) == {KEYS[0]: b"old"}


@pytest.mark.parametrize("seed", range(40))
def test_a_torn_record_is_not_run(lab, seed) -> None:
    dice = random.Random(seed)
    before = lab.metas()
    txnid = lab.store.stats()["last_txnid"] + 1
    lab.store.transact(lambda txn: txn.put(KEYS[0], b"new" * 100))
    cut = lab.cut(before)
    at = lab.slot(txnid)
    content = bytearray(cut.read_bytes())
    for _ in range(dice.choice([1, 5, 50])):
        content[at + dice.randrange(28 + 300)] ^= 1 + dice.randrange(255)
    cut.write_bytes(content)
    assert everything(cut) in ({KEYS[0]: b"old"}, {KEYS[0]: b"new" * 100})
    if content[at : at + 334] != lab.path.read_bytes()[at : at + 334]:
        assert everything(cut) == {KEYS[0]: b"old"}


def test_an_old_record_is_not_run_again(lab) -> None:
    lab.store.transact(lambda txn: txn.put(KEYS[1], b"1"))
    lab.store.transact(lambda txn: txn.delete(KEYS[1]))
    assert everything(lab.cut(lab.metas())) == {KEYS[0]: b"old"}


def test_a_transaction_above_a_slot_is_whole_and_leaves_no_record(lab) -> None:
    before = lab.metas()
    value = os.urandom(1_000_000)
    lab.store.transact(lambda txn: txn.put(KEYS[1], value))
    assert lab.store.read(lambda txn: txn.get(KEYS[1])) == value
    assert everything(lab.cut(before)) == {KEYS[0]: b"old"}
    assert everything(lab.cut(lab.metas())) == {KEYS[0]: b"old", KEYS[1]: value}


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_the_edge_of_a_slot(lab, spare) -> None:
    capacity = 256 * 1024 - 28
    value = b"x" * (capacity - 6 - len(KEYS[1]) + spare)
    before = lab.metas()
    lab.store.transact(lambda txn: txn.put(KEYS[1], value))
    recovered = everything(lab.cut(before))
    assert recovered == ({KEYS[0]: b"old"} | ({KEYS[1]: value} if spare <= 0 else {}))


def test_a_read_only_transaction_leaves_no_trace(lab) -> None:
    before = lab.path.read_bytes()
    lab.store.transact(lambda txn: txn.get(KEYS[0]))
    lab.store.transact(lambda txn: txn.delete(KEYS[5]))
    lab.store.transact(lambda txn: txn.delete_range(KEYS[4], KEYS[5]))
    assert lab.path.read_bytes() == before


def test_a_compacted_copy_recovers_too(lab, tmp_path) -> None:
    lab.store.backup(tmp_path / "copy")
    copy = Lab(tmp_path / "copy")
    before = copy.metas()
    copy.store.transact(lambda txn: txn.put(KEYS[0], b"new"))
    assert everything(copy.cut(before)) == {KEYS[0]: b"new"}
    copy.store.close()


def test_mode_none_records_nothing(tmp_path) -> None:
    store = open_store(tmp_path / "loose", durability="none")
    lab = Lab(tmp_path / "loose")
    before = lab.metas()
    store.transact(lambda txn: txn.put(KEYS[0], b"new"))
    assert everything(lab.cut(before)) == {}
    store.close()
    lab.store.close()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.binary(max_size=3000)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS)),
        st.tuples(st.just("range"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    ),
    max_size=12,
)


def apply(txn, ops) -> None:
    for op in ops:
        if op[0] == "put":
            txn.put(op[1], op[2])
        elif op[0] == "delete":
            txn.delete(op[1])
        else:
            txn.delete_range(op[1], op[2])


@settings(max_examples=80, deadline=None)
@given(history=st.lists(operations, min_size=1, max_size=4))
def test_replaying_the_record_on_the_predecessor_gives_the_successor(history) -> None:
    with tempfile.TemporaryDirectory() as directory:
        lab = Lab(Path(directory) / "agent.memcore")
        for ops in history:
            before = lab.metas()
            lab.store.transact(lambda txn, ops=ops: apply(txn, ops))
            now = dict(lab.store.read(lambda txn: list(txn.scan(b"", b"\xff"))))
            if lab.metas() != before:
                assert everything(lab.cut(before)) == now
        lab.store.close()


@given(st.dictionaries(st.binary(min_size=1, max_size=511).filter(lambda k: k[0]),
                       st.none() | st.binary(max_size=2000)))  # fmt: skip
def test_operations_survive_encoding(ops) -> None:
    assert decode(redo_record(ops, 0, 0, 0)[28:]) == ops


def test_a_record_is_written_as_the_format_says(tmp_path) -> None:
    """Header, operations and nothing else; the base is the hash of the meta image before it."""
    path = tmp_path / "file"
    before = random.Random(1).randbytes(9_000)
    path.write_bytes(before)
    ops = {b"k": b"value", b"gone": None, b"large": b"x" * 5_000}
    body = b"".join(
        len(key).to_bytes(2, "little")
        + (0xFFFFFFFF if value is None else len(value)).to_bytes(4, "little")
        + key
        + (value or b"")
        for key, value in ops.items()
    )
    fd = os.open(path, os.O_RDWR)
    try:
        for meta, taken in ((4_112, before[4_112 : 4_112 + META_BYTES]), (9_500, b"")):
            header = write_redo(fd, ops, 7, 2**64 - 1, 3_000, meta)
            base = xxh3_64(taken)
            rest = (7).to_bytes(8, "little") + base.to_bytes(8, "little")
            rest += len(body).to_bytes(4, "little") + body
            record = xxh3_64(rest, 2**64 - 1).to_bytes(8, "little") + rest
            assert header == record[:28]
            assert redo_record(ops, 7, base, 2**64 - 1) == record
            written = before[:3_000] + record + before[3_000 + len(record) :]
            assert path.read_bytes() == written
            os.pwrite(fd, before, 0)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="descriptor"):
        write_redo(fd, ops, 7, 1, 0, 0)
    closed = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="descriptor"):
            write_redo(closed, ops, 7, 1, 0, 0)
    finally:
        os.close(closed)


@given(st.binary(max_size=300))
def test_decoding_hostile_bytes_is_total(body) -> None:
    ops = decode(body)
    assert ops is None or all(key and key[0] for key in ops)


# --- Features of the file, which the first commit of a kind sets in its own transaction -----------


def features_of(path: Path) -> int:
    store = open_store(path)
    try:
        return store.read(lambda txn: Format.unpack(stored(txn).get(FORMAT_KEY), "")).features
    finally:
        store.close()


def test_a_commit_that_sets_a_feature_is_recovered_with_it(lab) -> None:
    before = lab.metas()
    lab.store.transact(lambda txn: (txn.need_feature(MEMORIES), txn.put(KEYS[0], b"new")))
    cut = lab.cut(before)
    assert everything(cut) == {KEYS[0]: b"new"}
    assert features_of(cut) == MEMORIES


def remembers(db: memcore.Database) -> None:
    db.scope().memory.remember("Likes tea", by="operator")


def summarizes(db: memcore.Database) -> None:
    db.scope().memory.summary().extend(lambda _: "Says hello.")


def demands(db: memcore.Database) -> None:
    db.demand(redact="default")


FIRST = {
    "remember": (remembers, lambda db: [each.text for each in db.scope().memory.list()]),
    "grant": (
        lambda db: db.scope().memory.grants.give(to=("default", "bob")),
        lambda db: len(db.scope().memory.grants.list()),
    ),
    "extract": (
        lambda db: db.session("s").memory.extract(),
        lambda db: db.session("s").memory.extract().items,
    ),
    "summary": (summarizes, lambda db: db.scope().memory.summary().get().text),
    "index": (lambda db: db.index_sessions(), lambda db: db.index_sessions()),
    "demand": (demands, lambda db: type(db).__name__),
}
"""By operation that needs a feature of the file first: it, and what can be told of it later."""


@pytest.mark.parametrize("name", FIRST)
def test_the_first_use_of_a_feature_outlives_a_lost_meta_page(tmp_path, name) -> None:
    """Each commit of it is there again without its meta page, with all that it wrote."""
    path, (act, tell) = tmp_path / "agent.memcore", FIRST[name]
    cuts: list[tuple[bytes, dict[bytes, bytes]]] = []
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "I like tea and hello."})
        store = db.engine.store
        commit = type(store).transact

        def noted(self, *args, **options):
            before, txnid = path.read_bytes()[: 2 * 4096], store.stats()["last_txnid"]
            done = commit(self, *args, **options)
            if store.stats()["last_txnid"] == txnid + 1:
                rows = dict(store.read(lambda txn: list(txn.scan(b"", b"\xff"))))
                cuts.append((before + path.read_bytes()[len(before) :], rows))
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(store), "transact", noted)
            act(db)
        now = tell(db)
    assert cuts
    cut = tmp_path / "cut"
    for content, rows in cuts:
        cut.write_bytes(content)
        Path(f"{cut}-lock").unlink(missing_ok=True)
        assert everything(cut) == rows
    with memcore.open(cut) as db:
        assert tell(db) == now
        assert db.check() == []


def planted(lab, rows: dict[bytes, bytes | None]) -> Path:
    """A file behind whose last snapshot a record waits that no memcore of this version wrote."""
    before = lab.metas()
    txnid = lab.store.stats()["last_txnid"] + 1
    lab.store.transact(lambda txn: txn.put(KEYS[0], b"new"))
    cut = lab.cut(before)
    with cut.open("r+b") as file:
        seed = int.from_bytes(find_run(file.fileno(), "").seed[:8], "little")
        offset = META_OFFSETS[(txnid - 1) & 1]
        base = xxh3_64(before[offset : offset + META_BYTES])
        file.seek(lab.slot(txnid))
        file.write(redo_record(rows, txnid, base, seed))
    return cut


def test_a_record_with_a_feature_that_is_unknown_refuses_the_file(lab) -> None:
    record = lab.store.read(lambda txn: Format.unpack(stored(txn).get(FORMAT_KEY), ""))
    newer = record._replace(features=1 << 63).pack()
    cut = planted(lab, {FORMAT_KEY: newer, KEYS[1]: b"1"})
    whole = cut.read_bytes()
    with pytest.raises(memcore.StoreFormatError, match="upgrade memcore"):
        open_store(cut)
    assert cut.read_bytes() == whole


@pytest.mark.parametrize(
    "rows",
    [
        {REDO_KEY: b"x"}, {FORMAT_KEY: None}, {b"\x00other": b"x"}, {FORMAT_KEY: b"x" * 64},
        {KEYS[1]: b"1", b"": b"x"},
    ],
)  # fmt: skip
def test_a_record_that_nobody_writes_is_damage_and_not_passed_over(lab, rows) -> None:
    """Its checksum is under the file's seed: to pass it over may lose an acknowledged commit."""
    cut = planted(lab, rows)
    whole = cut.read_bytes()
    with pytest.raises((memcore.CorruptStoreError, memcore.StoreFormatError)):
        open_store(cut)
    assert cut.read_bytes() == whole


def test_a_record_of_another_file_refuses_it(lab) -> None:
    record = lab.store.read(lambda txn: Format.unpack(stored(txn).get(FORMAT_KEY), ""))
    for other in (record._replace(seed=bytes(16)), record._replace(durability="relaxed")):
        cut = planted(lab, {FORMAT_KEY: other.pack()})
        with pytest.raises(memcore.CorruptStoreError):
            open_store(cut)


def test_a_copy_and_a_salvage_take_over_what_waits_with_its_feature(tmp_path) -> None:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "I like tea"})
        before = path.read_bytes()[: 2 * 4096]
        db.scope().memory.remember("Likes tea", by="operator")
        cut = tmp_path / "cut"
        cut.write_bytes(before + path.read_bytes()[len(before) :])
    with memcore.open(cut, read_only=True) as db:
        assert db.scope().memory.list() == []  # a reader cannot recover
        for compact in (False, True):
            db.backup(tmp_path / f"copy-{compact}", compact=compact)
    memcore.salvage(cut, tmp_path / "salvaged")
    for name in ("copy-False", "copy-True", "salvaged"):
        with memcore.open(tmp_path / name) as db:
            assert [each.text for each in db.scope().memory.list()] == ["Likes tea"]
            assert db.check() == []
        assert features_of(tmp_path / name) & MEMORIES
