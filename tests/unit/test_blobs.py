"""Blobs: content once a scope, counted references, staging that may be lost and is done again."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tracemalloc
from functools import partial
from itertools import pairwise

import pytest

from memcore import blobs
from memcore.blobs import BlobRef, BlobStore, StagedBlobLost
from memcore.blobs import rows as content_module
from memcore.blobs import rows as sources
from memcore.blobs import store as handle_module
from memcore.blobs import store as staging
from memcore.blobs.rows import BlobHeader, put_header, slot_of
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.codec.keys import Kind
from memcore.errors import (
    CorruptValueError,
    InternalError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    StoreLockedError,
)
from memcore.limits import BLOB_CHUNK_BYTES, BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.rows import names
from tests.unit.fake_store import STORES, all_rows, damage, opened_store

SEED = 42
SIZES = [0, 1, BLOB_CHUNK_BYTES - 1, BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES + 1]
SIZES += [BLOB_INLINE_COMMIT_BYTES_MAX, BLOB_INLINE_COMMIT_BYTES_MAX + 1, 3 * BLOB_CHUNK_BYTES]
BATCH = staging._STAGE_CHUNKS * BLOB_CHUNK_BYTES


def payload_of(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def handle(store):
    return BlobStore(store, 1, seed=SEED)


@pytest.fixture
def same_digest(monkeypatch):
    """Every content has one digest: what an attacker who knew the seed could build."""

    class Same:
        def __init__(self, seed):
            pass

        def update(self, piece):
            pass

        def digest(self):
            return b"\x07" * 16

    for module in (content_module, handle_module):
        monkeypatch.setattr(module, "xxh3_128_digest", lambda payload, seed: b"\x07" * 16)
    for module in (sources, staging):
        monkeypatch.setattr(module, "xxh3_128", Same)


def write(store, payload, *, scope=1, count=1):
    def closure(txn):
        ref = blobs.write(txn, scope, payload, seed=SEED)
        for _ in range(count):
            blobs.acquire(txn, scope, ref)
        return ref

    return store.transact(closure)


def load(store, ref, scope=1):
    return store.read(lambda txn: blobs.read(txn, scope, ref))


def exists(store, ref, scope=1):
    return store.read(lambda txn: blobs.exists(txn, scope, ref))


def check(store, scope=1):
    return store.read(lambda txn: blobs.check(txn, scope))


def rows_of(store, *kinds):
    return [key for key in all_rows(store) if not kinds or key[0] in kinds]


def header_key(ref, scope=1):
    return keys.scoped(Kind.BLOB, scope, ref.pack()[:17])


def chunk_key(ref, number, scope=1):
    return keys.blob_chunk(scope, ref.pack()[:17], number)


def refs_key(ref, scope=1):
    return keys.scoped(Kind.BLOB_REFS, scope, ref.pack()[:17])


# --- references -------------------------------------------------------------------------------


def test_a_reference_packs():
    ref = BlobRef(bytes(range(16)), 255, 2**40)

    assert ref.pack() == bytes(range(16)) + b"\xff" + (2**40).to_bytes(8, "big")
    assert BlobRef.unpack(ref.pack()) == ref
    with pytest.raises(CorruptValueError, match="25 bytes"):
        BlobRef.unpack(b"short")


@pytest.mark.parametrize("size", SIZES)
def test_a_blob_comes_back(store, size):
    payload = payload_of(size)
    ref = write(store, payload)

    assert ref.size == size
    assert load(store, ref) == payload
    assert b"".join(blobs.stream(store, 1, ref)) == payload
    assert len(rows_of(store, Kind.BLOB_CHUNK)) == -(-size // BLOB_CHUNK_BYTES)
    assert check(store) == []


def test_equal_content_is_stored_once_and_counted(store):
    ref = write(store, b"x" * 40_000)
    rows = len(rows_of(store))

    assert write(store, b"x" * 40_000) == ref
    assert len(rows_of(store)) == rows
    assert store.transact(lambda txn: blobs.acquire(txn, 1, ref)) == 3
    assert [store.transact(lambda txn: blobs.release(txn, 1, ref)) for _ in range(3)] == [2, 1, 0]
    assert rows_of(store) == []
    assert not exists(store, ref)


def test_scopes_share_nothing(store):
    one, two = write(store, b"x"), write(store, b"x", scope=2)

    assert one == two
    assert len(rows_of(store, Kind.BLOB)) == 2
    store.transact(lambda txn: blobs.release(txn, 1, one))
    assert load(store, two, scope=2) == b"x"
    assert not exists(store, one)


def test_the_seed_decides_the_digest(store):
    other = store.transact(lambda txn: blobs.write(txn, 1, b"x", seed=SEED + 1))

    assert other.digest != write(store, b"x").digest


def test_a_release_too_many_is_our_bug(store):
    ref = write(store, b"x")
    store.transact(lambda txn: blobs.release(txn, 1, ref))

    with pytest.raises(CorruptValueError, match="more often than acquired"):
        store.transact(lambda txn: blobs.release(txn, 1, ref))


def test_a_missing_blob_is_told(store):
    ref = BlobRef(b"d" * 16, 0, 1)

    assert not exists(store, ref)
    with pytest.raises(NotFoundError):
        load(store, ref)
    with pytest.raises(NotFoundError):
        next(blobs.stream(store, 1, ref))
    with pytest.raises(StagedBlobLost):
        store.transact(lambda txn: blobs.acquire(txn, 1, ref))
    there = write(store, b"x")
    wrong_size = BlobRef(there.digest, there.disambiguator, 2)
    assert not exists(store, wrong_size)


def test_replacing_a_reference_by_equal_content_keeps_the_blob(store):
    ref = write(store, b"x")

    def replace(txn):
        again = blobs.write(txn, 1, b"x", seed=SEED)
        blobs.acquire(txn, 1, again)
        blobs.release(txn, 1, ref)
        return again

    assert load(store, store.transact(replace)) == b"x"


def test_a_rolled_back_write_leaves_nothing(store):
    def fail(txn):
        blobs.acquire(txn, 1, blobs.write(txn, 1, b"x" * 200_000, seed=SEED))
        raise KeyError

    with pytest.raises(KeyError):
        store.transact(fail)
    assert rows_of(store) == []


# --- digests that collide ---------------------------------------------------------------------


def test_other_content_under_one_digest_is_kept_apart(store, same_digest):
    contents = [b"a", b"b", b"", payload_of(300_000, 1), payload_of(300_000, 2)]
    refs = [write(store, content) for content in contents]

    assert [ref.disambiguator for ref in refs] == [0, 1, 2, 3, 4]
    assert [write(store, content) for content in contents] == refs
    assert [blobs.stage(store, 1, content, seed=SEED) for content in contents] == refs
    assert [load(store, ref) for ref in refs] == contents
    assert check(store) == []


def test_a_freed_slot_is_used_again(store, same_digest):
    refs = [write(store, content) for content in (b"a", b"b", b"c")]
    store.transact(lambda txn: blobs.release(txn, 1, refs[0]))

    again = write(store, b"d")
    assert again.disambiguator == 0
    assert [load(store, ref) for ref in (again, refs[1], refs[2])] == [b"d", b"b", b"c"]


def test_staging_keeps_content_under_one_digest_apart(store, same_digest):
    large = [payload_of(BATCH + 5, seed) for seed in range(3)]
    refs = [blobs.stage(store, 1, content, seed=SEED) for content in large]

    assert [ref.disambiguator for ref in refs] == [0, 1, 2]
    assert [blobs.stage(store, 1, content, seed=SEED) for content in large] == refs
    assert [load(store, ref) for ref in refs] == large


def test_when_all_slots_are_taken_it_is_said(tmp_path, same_digest):
    with opened_store("fake", tmp_path) as store:
        for number in range(256):
            write(store, b"%d" % number)
        with pytest.raises(InternalError, match="256 slots"):
            write(store, b"one too many")
        with pytest.raises(InternalError, match="256 slots"):
            blobs.stage(store, 1, b"one too many", seed=SEED)


# --- streams ----------------------------------------------------------------------------------


def test_a_stream_notices_that_the_blob_vanished(store):
    payload = payload_of(3 * BLOB_CHUNK_BYTES)
    ref = write(store, payload)
    stream = blobs.stream(store, 1, ref)
    next(stream)
    store.transact(lambda txn: blobs.release(txn, 1, ref))

    with pytest.raises(NotFoundError, match="deleted or never stored"):
        next(stream)


def test_a_stream_does_not_go_on_in_another_blob(store, same_digest):
    ref = write(store, payload_of(2 * BLOB_CHUNK_BYTES, 1))
    stream = blobs.stream(store, 1, ref)
    next(stream)
    store.transact(lambda txn: blobs.release(txn, 1, ref))
    assert write(store, payload_of(2 * BLOB_CHUNK_BYTES, 2)) == ref

    with pytest.raises(NotFoundError):
        next(stream)


# --- staging ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [*SIZES, BATCH - 1, BATCH, BATCH + 1])
def test_a_staged_blob_is_complete_and_unreferenced(store, size):
    payload = payload_of(size)
    ref = blobs.stage(store, 1, payload, seed=SEED)

    assert exists(store, ref)
    assert load(store, ref) == payload
    assert rows_of(store, Kind.BLOB_REFS) == []
    assert check(store) == []
    assert write(store, payload) == ref
    assert blobs.stage(store, 1, payload, seed=SEED) == ref


def test_staging_takes_pieces_of_any_size(store):
    payload = payload_of(BATCH + 77)
    cuts = [0, 1, 1, 5000, BLOB_CHUNK_BYTES * 3, BATCH + 77]
    pieces = [payload[a:b] for a, b in pairwise(cuts)]

    assert load(store, blobs.stage(store, 1, iter(pieces), seed=SEED)) == payload
    assert load(store, blobs.stage(store, 1, iter(()), seed=SEED)) == b""
    for wrong in ("", "text", 5, None, iter(["text"])):
        with pytest.raises(InvalidOptionError, match="bytes"):
            blobs.stage(store, 1, wrong, seed=SEED)


def test_staging_commits_in_batches(tmp_path):
    with opened_store("fake", tmp_path) as store:
        blobs.stage(store, 1, payload_of(BLOB_CHUNK_BYTES * 2), seed=SEED)
        assert store.commits == 1
        blobs.stage(store, 1, payload_of(BATCH * 2 + 1), seed=SEED)
        assert store.commits == 1 + 3


def test_pieces_are_cut_to_chunks():
    payload = payload_of(3 * BLOB_CHUNK_BYTES)
    for cuts in ([5, BLOB_CHUNK_BYTES + 5], [BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES + 1], []):
        edges = [0, *cuts, len(payload)]
        pieces = [payload[a:b] for a, b in pairwise(edges)]
        chunks = list(sources.rechunked(pieces))
        assert [len(chunk) for chunk in chunks] == [BLOB_CHUNK_BYTES] * 3
        assert b"".join(chunks) == payload


class Meddler:
    """A store that runs ``between(commit number)`` before each transaction."""

    vault = None

    def __init__(self, store, between):
        self.store = store
        self.between = between
        self.count = 0
        self.read = store.read

    def transact(self, fn, **options):
        self.count += 1
        self.between(self.count)
        return self.store.transact(fn, **options)


def test_an_unfinished_blob_does_not_exist(store):
    payload = payload_of(2 * BATCH + 1)
    seen = []

    def look(count):
        ref = BlobRef(blobs.stage(store, 9, payload, seed=SEED).digest, 0, len(payload))
        seen.append((exists(store, ref), check(store)))

    blobs.stage(Meddler(store, look), 1, payload, seed=SEED)
    assert seen == [(False, [])] * 3


def test_staging_starts_again_when_its_rows_are_collected(store):
    payload = payload_of(2 * BATCH + 1)
    collected = []

    def collect_once(count):
        if count == 3:
            collected.append(blobs.collect(store, 1))

    ref = blobs.stage(Meddler(store, collect_once), 1, payload, seed=SEED)
    assert collected == [1]
    assert load(store, ref) == payload
    assert check(store) == []


def test_staging_gives_up_against_a_restless_collector(store):
    payload = payload_of(2 * BATCH + 1)
    meddler = Meddler(store, lambda count: blobs.collect(store, 1))

    with pytest.raises(StoreLockedError, match="collect"):
        blobs.stage(meddler, 1, payload, seed=SEED)
    blobs.collect(store, 1)
    assert rows_of(store) == []


def test_two_stagers_of_one_content_do_not_mix(store):
    payload = payload_of(2 * BATCH + 1)
    inner = []

    def stage_too(count):
        if count == 2:
            inner.append(blobs.stage(store, 1, payload, seed=SEED))

    ref = blobs.stage(Meddler(store, stage_too), 1, payload, seed=SEED)
    assert {ref.disambiguator, inner[0].disambiguator} == {0, 1}
    assert load(store, ref) == load(store, inner[0]) == payload
    assert blobs.collect(store, 1) == 2


def test_a_slot_that_is_claimed_at_the_last_moment_is_left_alone(store):
    payload = payload_of(BATCH)

    def stage_first(count):
        if count == 1:
            blobs.stage(store, 1, payload, seed=SEED)

    ref = blobs.stage(Meddler(store, stage_first), 1, payload, seed=SEED)
    assert ref.disambiguator == 0
    assert len(rows_of(store, Kind.BLOB)) == 1


def test_a_slot_claimed_by_other_content_is_never_overwritten(store, same_digest):
    ours, theirs = payload_of(BATCH, 1), payload_of(BATCH, 2)
    others = []

    def stage_first(count):
        if count == 1:
            others.append(blobs.stage(store, 1, theirs, seed=SEED))

    ref = blobs.stage(Meddler(store, stage_first), 1, ours, seed=SEED)
    assert load(store, others[0]) == theirs
    assert load(store, ref) == ours


@pytest.mark.parametrize("fails", [False, True])
def test_a_slot_that_changed_hands_is_left_to_its_new_owner(store, same_digest, fails):
    ours, theirs = payload_of(2 * BATCH + 1, 1), payload_of(2 * BATCH + 1, 2)
    others, refs = [], []

    def take_over(count):
        if count == 2:
            assert blobs.collect(store, 1) == 1
            others.append(blobs.stage(store, 1, theirs, seed=SEED))
            if fails:
                raise KeyError

    meddler = Meddler(store, take_over)
    if fails:
        with pytest.raises(KeyError):
            blobs.stage(meddler, 1, ours, seed=SEED)
    else:
        refs.append(blobs.stage(meddler, 1, ours, seed=SEED))
    assert others[0].disambiguator == 0
    assert load(store, others[0]) == theirs
    assert [load(store, ref) for ref in refs] == [ours] * len(refs)
    assert check(store) == []


def test_a_failure_while_staging_takes_its_rows_away(store):
    class DeviceError(Exception):
        pass

    def fail(count):
        if count == 3:
            raise DeviceError

    with pytest.raises(DeviceError):
        blobs.stage(Meddler(store, fail), 1, payload_of(2 * BATCH + 1), seed=SEED)
    assert rows_of(store) == []


def test_a_staged_blob_that_is_lost_is_staged_again(store):
    payload = payload_of(300_000)
    key = b"\x05referrer"
    runs = []

    def collect_once(count):
        if count == 2:
            assert blobs.collect(store, 1) == 1

    def closure(txn, ref):
        runs.append(ref)
        blobs.acquire(txn, 1, ref)
        txn.put(key, ref.pack())
        return ref

    meddler = Meddler(store, collect_once)
    ref = blobs.refer(meddler, 1, payload, closure, seed=SEED)
    assert meddler.count == 4
    assert load(store, ref) == payload
    assert BlobRef.unpack(all_rows(store)[key]) == ref
    assert blobs.collect(store, 1) == 0


def test_refer_passes_on_what_the_closure_raises(store):
    def closure(txn, ref):
        raise KeyError

    with pytest.raises(KeyError):
        blobs.refer(store, 1, b"x", closure, seed=SEED)
    meddler = Meddler(store, lambda count: blobs.collect(store, 1))
    with pytest.raises(StoreLockedError):
        blobs.refer(meddler, 1, b"x", lambda txn, ref: blobs.acquire(txn, 1, ref), seed=SEED)


# --- care -------------------------------------------------------------------------------------


def test_collect_removes_only_what_nothing_refers_to(store):
    kept = [write(store, b"kept %d" % n) for n in range(300)]
    idle = [write(store, b"idle %d" % n, count=0) for n in range(300)]
    other = write(store, b"idle", scope=2, count=0)

    assert blobs.collect(store, 1) == 300
    assert blobs.collect(store, 1) == 0
    assert all(exists(store, ref) for ref in kept)
    assert not any(exists(store, ref) for ref in idle)
    assert exists(store, other, scope=2)
    assert check(store) == []


def test_collect_looks_again_before_it_removes(store):
    refs = [write(store, content, count=0) for content in (b"a", b"b")]

    def acquire(count):
        store.transact(lambda txn: blobs.acquire(txn, 1, refs[0]))

    assert blobs.collect(Meddler(store, acquire), 1) == 1
    assert [exists(store, ref) for ref in refs] == [True, False]


def test_check_finds_what_is_wrong(store):
    ref = write(store, payload_of(3 * BLOB_CHUNK_BYTES))
    handle = BlobStore(store, 1, seed=SEED)
    handle.put(b"fine")
    address = handle.put(b"addressed")
    assert check(store) == []
    spoiled = [
        (lambda txn: txn.delete(chunk_key(ref, 1)), ["missing"]),
        (lambda txn: txn.put(chunk_key(ref, 3), b"x"), ["beyond its size"]),
        (lambda txn: txn.delete(header_key(ref)), ["no header", "dangling"]),
        (
            lambda txn: put_header(txn, 1, slot_of(ref), BlobHeader(1, 2**62, b"12345678")),
            ["more than"],
        ),
    ]
    for spoil, findings in spoiled:
        before = all_rows(store)
        store.transact(spoil)
        assert all(w in line for w, line in zip(findings, check(store), strict=True))
        store.transact(partial(restore, before))
    for key, count in ((chunk_key(ref, 0), 1), (header_key(ref), 2), (refs_key(ref), 1)):
        before = all_rows(store)
        damage(store, key)
        assert ["fails its checksum" in line for line in check(store)] == [True] * count
        store.transact(partial(restore, before))
    sha256 = bytes.fromhex(address[7:])
    held = BlobRef.unpack(all_rows(store)[keys.scoped(Kind.BLOB_ADDRESS, 1, sha256)][10:])
    store.transact(lambda txn: txn.delete(refs_key(held)))
    assert ["is not counted" in line for line in check(store)] == [True]
    store.transact(lambda txn: txn.delete(header_key(held)))
    findings = ["chunks of the blob", "refers to a blob that is not stored"]
    assert all(w in line for w, line in zip(findings, check(store), strict=True))
    damage(store, keys.scoped(Kind.BLOB_ADDRESS, 1, sha256))
    assert any("fails its checksum" in line for line in check(store))


def restore(rows, txn):
    txn.delete_range(b"\x01", b"\xff")
    for key, value in rows.items():
        txn.put(key, value)


def test_check_sees_the_last_slot_of_a_scope(store, monkeypatch):
    monkeypatch.setattr(content_module, "xxh3_128_digest", lambda payload, seed: b"\xff" * 16)
    monkeypatch.setattr(content_module, "DISAMBIGUATORS", 256)
    ref = BlobRef(b"\xff" * 16, 255, 3)
    for number in range(256):
        write(store, b"%03d" % number)
    store.transact(lambda txn: txn.delete(chunk_key(ref, 0)))

    assert ["missing" in line for line in check(store)] == [True]
    assert load(store, BlobRef(b"\xff" * 16, 254, 3)) == b"254"


def test_a_damaged_chunk_is_told_and_never_shared(store):
    payload = payload_of(2 * BLOB_CHUNK_BYTES)
    ref = write(store, payload)
    damage(store, chunk_key(ref, 1))

    with pytest.raises(CorruptValueError) as caught:
        load(store, ref)
    assert caught.value.key == chunk_key(ref, 1)
    stream = blobs.stream(store, 1, ref)
    assert next(stream) == payload[:BLOB_CHUNK_BYTES]
    with pytest.raises(CorruptValueError):
        next(stream)
    for again in (write(store, payload), blobs.stage(store, 1, payload, seed=SEED)):
        assert again.disambiguator == 1
        assert load(store, again) == payload


@pytest.mark.parametrize("body", [b"", b"x", bytes(BLOB_CHUNK_BYTES + 1)], ids=len)
def test_a_chunk_of_a_wrong_length_is_damage(store, body):
    ref = write(store, payload_of(2 * BLOB_CHUNK_BYTES))
    key = chunk_key(ref, 0)
    store.transact(lambda txn: txn.put(key, codec.seal_value(key, body)))

    with pytest.raises(CorruptValueError, match="wrong length"):
        load(store, ref)


def test_a_damaged_header_is_never_shared(store):
    ref = write(store, b"x")
    damage(store, header_key(ref))

    again = write(store, b"x")
    assert again.disambiguator == 1
    assert blobs.stage(store, 1, b"x", seed=SEED) == again
    with pytest.raises(CorruptValueError):
        load(store, ref)


def test_a_damaged_count_protects_the_blob(store):
    ref = write(store, b"x")
    damage(store, refs_key(ref))

    assert blobs.collect(store, 1) == 0
    assert load(store, ref) == b"x"


# --- the user's handle ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [*SIZES, BATCH + 1])
def test_a_blob_has_a_public_address(store, handle, size):
    payload = payload_of(size)
    address = handle.put(payload)

    assert address == "sha256:" + hashlib.sha256(payload).hexdigest()
    assert handle.get(address) == payload
    assert b"".join(handle.open(address)) == payload
    assert handle.size(address) == size
    assert address in handle
    rows = all_rows(store)
    assert handle.put(payload) == address
    assert all_rows(store) == rows
    assert handle.collect() == 0
    assert handle.delete(address)
    assert not handle.delete(address)
    assert address not in handle
    assert all_rows(store) == {}


@pytest.mark.parametrize("size", [5, 300_000])
def test_putting_what_is_there_writes_nothing(store, size):
    BlobStore(store, 1, seed=SEED).put(payload_of(size))
    meddler = Meddler(store, lambda count: None)

    BlobStore(meddler, 1, seed=SEED).put(payload_of(size))
    assert meddler.count == 0


class Trickle(io.RawIOBase):
    """A file that cannot seek and reads short, as a socket does."""

    def __init__(self, payload):
        self.inner = io.BytesIO(payload)

    def readable(self):
        return True

    def read(self, size=-1):
        return self.inner.read(min(size, 70_001))


class ShortReads(io.BytesIO):
    """A file that can seek and reads short all the same."""

    def read(self, size=-1):
        return super().read(min(size, 70_001))


@pytest.mark.parametrize("size", [*SIZES, BATCH + 1])
def test_files_are_read_from_where_they_stand(handle, tmp_path, size):
    payload = payload_of(size)
    path = tmp_path / "blob"
    path.write_bytes(b"skipped" + payload)
    address = handle.put(payload)

    with path.open("rb") as file:
        file.seek(7)
        assert handle.put(file) == address
    handle.delete(address)
    with path.open("rb", buffering=0) as file:
        file.seek(7)
        assert handle.put(file) == address
    assert handle.get(address) == payload
    handle.delete(address)
    for file in (Trickle(payload), ShortReads(payload)):
        assert handle.put(file) == address
        assert handle.get(address) == payload
        handle.delete(address)
    assert handle.put(bytearray(payload)) == handle.put(memoryview(payload)) == address


@pytest.mark.parametrize("size", [100, BLOB_INLINE_COMMIT_BYTES_MAX + 1, 2 * BATCH])
@pytest.mark.parametrize("change", ["other", "longer", "shorter"])
def test_a_file_that_changes_while_it_is_read_is_refused(store, handle, size, change):
    class Changing(io.BytesIO):
        reads = 0

        def seek(self, position, whence=os.SEEK_SET):
            self.reads += 1
            if self.reads == 2:
                with self.getbuffer() as view:
                    view[-1] ^= 1
                if change != "other":
                    self.truncate(size + 9 if change == "longer" else size - 1)
                    super().seek(0, os.SEEK_END)
                    self.write(bytes(max(0, size + 9 - self.tell())) if change == "longer" else b"")
            return super().seek(position, whence)

    with pytest.raises(InvalidOptionError, match="changed while it was read"):
        handle.put(Changing(payload_of(size)))
    assert all_rows(store) == {}


def test_a_file_is_not_held_in_memory(handle, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(payload_of(4 * BATCH))
    with path.open("rb") as file, sources.opened(file, SEED, exported=True) as source:
        tracemalloc.start()
        for _ in staging._batches(source):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3 * BATCH


@pytest.mark.parametrize("payload", ["text", None, 5, [b"x"], io.StringIO("text")], ids=repr)
def test_what_is_no_blob_is_refused(store, handle, payload):
    with pytest.raises(InvalidOptionError, match="bytes"):
        handle.put(payload)
    assert all_rows(store) == {}


def test_a_file_that_would_block_is_refused(handle):
    class Blocking(io.RawIOBase):
        def read(self, size=-1):
            return None

    with pytest.raises(InvalidOptionError, match="NoneType"):
        handle.put(Blocking())


def test_the_size_of_a_blob_is_bounded(store, handle, monkeypatch):
    monkeypatch.setattr(sources, "BLOB_BYTES_MAX", 200_000)

    endless = Trickle(bytes(10**7))
    for payload in (bytes(200_001), io.BytesIO(bytes(200_001)), endless):
        with pytest.raises(InvalidItemError, match="at most 200000 bytes"):
            handle.put(payload)
    assert endless.inner.tell() < 400_000
    with pytest.raises(InvalidItemError):
        write(store, bytes(200_001))
    handle.put(bytes(200_000))


@pytest.mark.parametrize(
    "address",
    ["", "sha256:", "sha256:" + "0" * 63, "sha256:" + "A" * 64, "md5:" + "0" * 64, "0" * 64,
     "sha256:" + "0" * 64 + "\n", " sha256:" + "0" * 64, None, 1, b"sha256:" + b"0" * 64],
    ids=repr,
)  # fmt: skip
def test_what_is_no_address_is_refused(handle, address):
    assert address not in handle
    for call in (handle.get, handle.open, handle.size, handle.delete):
        with pytest.raises(InvalidOptionError, match="no blob address"):
            call(address)


def test_an_unknown_address_is_told(handle):
    address = "sha256:" + "0" * 64

    assert address not in handle
    assert not handle.delete(address)
    for call in (handle.get, handle.open, handle.size):
        with pytest.raises(NotFoundError, match=address):
            call(address)


def test_an_open_stream_notices_a_delete(handle):
    address = handle.put(payload_of(300_000))
    stream = handle.open(address)
    next(stream)
    handle.delete(address)

    with pytest.raises(NotFoundError):
        next(stream)


def test_other_references_keep_the_content(store, handle):
    address = handle.put(b"x" * 50_000)
    ref = write(store, b"x" * 50_000)
    assert len(rows_of(store, Kind.BLOB)) == 1

    assert handle.delete(address)
    assert load(store, ref) == b"x" * 50_000
    assert address not in handle


def test_a_staged_blob_that_is_lost_is_put_again(store):
    payload = payload_of(300_000)
    meddler = Meddler(store, lambda count: count == 2 and blobs.collect(store, 1))
    address = BlobStore(meddler, 1, seed=SEED).put(payload)
    assert meddler.count == 4

    assert BlobStore(store, 1, seed=SEED).get(address) == payload
    assert check(store) == []


@pytest.mark.parametrize("size", [100, 300_000])
def test_the_scope_is_numbered_with_the_first_put(store, size):
    handle = BlobStore(
        store,
        lambda txn: names.scope_of(txn, "app", "user"),
        ensure=lambda txn: names.ensure_scope(txn, "app", "user"),
        seed=SEED,
    )
    address = "sha256:" + hashlib.sha256(payload_of(size)).hexdigest()
    assert address not in handle
    assert handle.collect() == 0
    assert not handle.delete(address)
    with pytest.raises(NotFoundError):
        handle.get(address)
    assert all_rows(store) == {}

    assert handle.put(payload_of(size)) == address
    assert handle.get(address) == payload_of(size)
    assert BlobStore(store, 1, seed=SEED).get(address) == payload_of(size)
    assert address not in BlobStore(store, 2, seed=SEED)


def test_a_scope_function_needs_its_counterpart(store):
    with pytest.raises(InternalError, match="ensure"):
        BlobStore(store, lambda txn: None, seed=SEED)
