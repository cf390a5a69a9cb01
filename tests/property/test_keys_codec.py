"""Properties of keys and codec, and the handles over them against models in memory."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcore import blobs
from memcore.blobs import BlobStore
from memcore.blobs import rows as content_module
from memcore.blobs import rows as sources
from memcore.blobs import store as handle_module
from memcore.blobs import store as staging
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.codec.keys import Kind, Row
from memcore.errors import CorruptValueError
from memcore.kv import KeyValue
from memcore.limits import KEY_BYTES_MAX, KV_KEY_BYTES_MAX
from tests.unit.fake_store import FakeStore, all_rows

# Few letters, so that prefixes, NULs and neighbours in code point order come up all the time.
NEAR = st.text(alphabet="\x00\x01ab\x7f\x80é\ud7ff\ud800\udc00\udfff\ue000\uffff\U00010000😀")
TEXT = NEAR | st.text(st.characters(codec=None, exclude_categories=()))
LONG = st.builds(lambda text, times: text * times, TEXT, st.integers(1, 300))
U64 = st.integers(0, 2**64 - 1)
PREFIX = st.binary(min_size=1, max_size=30)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**300])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=25,
)


def exact(value):
    """A form that tells 1 from 1.0 and True, 0.0 from -0.0, and the order of dict keys."""
    if isinstance(value, dict):
        return [(key, exact(child)) for key, child in value.items()]
    if isinstance(value, list):
        return ["list", *map(exact, value)]
    if isinstance(value, float):
        return ("float", value, math.copysign(1, value))
    return (type(value), value)


# --- keys -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(TEXT, TEXT), min_size=2, max_size=8))
@example([("a", "\x00"), ("a\x00", "")])
@example([("", "\U0010ffff"), ("\x00", "")])
def test_packed_texts_sort_as_tuples(pairs):
    def packed(pair):
        return keys.pack_text(pair[0]) + keys.pack_text(pair[1])

    assert sorted(pairs, key=packed) == sorted(pairs)
    for pair in pairs:
        assert keys.unpack_texts(packed(pair)) == pair


@given(st.lists(st.tuples(U64, U64, TEXT), min_size=2, max_size=8))
def test_entries_sort_as_tuples(entries):
    def packed(entry):
        return keys.kv_prefix(entry[0], entry[1]) + keys.pack_text(entry[2])

    assert sorted(entries, key=packed) == sorted(entries)


@given(st.lists(st.tuples(U64, st.binary()), min_size=2))
def test_expiry_rows_sort_by_time(rows):
    assert sorted(rows, key=lambda row: keys.expiry_row(*row)) == sorted(rows)
    assert [keys.split_expiry_row(keys.expiry_row(*row)) for row in rows] == rows


@given(st.lists(st.tuples(U64, U64, st.sampled_from([Row.HEAD, Row.ITEM]), U64), min_size=2))
def test_session_rows_sort_as_tuples(rows):
    assert sorted(rows, key=lambda row: keys.session_row(*row)) == sorted(rows)
    assert [keys.split_session_row(keys.session_row(*row)) for row in rows] == rows


@given(TEXT, TEXT)
@example("a\x00", "a")
def test_only_a_nul_behind_a_text_continues_its_bytes(one, two):
    continues = keys.pack_text(one).startswith(keys.pack_text(two))
    assert continues == (one == two or one.startswith(two + "\x00"))
    assert keys.pack_text(one).startswith(keys.text_prefix(two)) == one.startswith(two)


@given(TEXT, TEXT)
@example("a", "a\x00")
def test_behind_a_key_is_no_other_key(one, two):
    one, two = sorted(keys.name_key(b"p", text) for text in (one, two))
    if one != two:
        assert one < keys.behind(one) <= two


@given(PREFIX, st.lists(st.tuples(LONG, TEXT), unique=True, min_size=2, max_size=6))
def test_distinct_names_have_distinct_keys(prefix, pairs):
    names = [keys.name_key(prefix, *pair) for pair in pairs]

    assert len(set(names)) == len(pairs)
    assert all(len(name) <= KEY_BYTES_MAX for name in names)


@given(PREFIX.filter(lambda prefix: prefix.strip(b"\xff")), st.binary(max_size=40), st.binary())
def test_after_ends_exactly_the_range_of_its_prefix(prefix, tail, other):
    assert prefix <= prefix + tail < keys.after(prefix)
    assert (prefix <= other < keys.after(prefix)) == other.startswith(prefix)


@given(LONG, st.lists(TEXT.filter(bool), max_size=6))
def test_a_cut_bound_keeps_its_order_to_every_legal_key(bound, texts):
    cut = keys.text_prefix(bound)[: KV_KEY_BYTES_MAX + 1]
    for text in [*texts, bound, bound + "\x00", bound[:-1] or "a"]:
        packed = keys.pack_text(text)
        if len(packed) <= KV_KEY_BYTES_MAX:
            assert (packed >= cut) == (text >= bound)


# --- codec ------------------------------------------------------------------------------------


FLAGS = st.integers(0, 255).map(lambda flags: flags & ~codec.FLAG_REWRITTEN)
"""Those of values whose body does not begin with what it was made from."""


@given(st.binary(max_size=511), st.binary(), FLAGS)
def test_sealed_values_come_back(key, body, flags):
    rewritten = codec.seal_rewritten(key, body, flags, b"12345678")
    assert codec.open_value(key, rewritten) == (flags | codec.FLAG_REWRITTEN, body)
    assert codec.open_value(key, codec.seal_value(key, body, flags)) == (flags, body)


@given(st.binary(max_size=511), st.binary(), st.integers(0, 255), st.data())
def test_a_changed_byte_is_found_out(key, body, flags, data):
    sealed = bytearray(codec.seal_value(key, body, flags))
    position = data.draw(st.integers(0, len(sealed) - 1))
    sealed[position] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptValueError):
        codec.open_value(key, bytes(sealed))


@given(st.binary(max_size=511), st.binary(max_size=511), st.binary())
def test_a_value_under_a_wrong_key_is_found_out(key, other, body):
    if key != other:
        with pytest.raises(CorruptValueError):
            codec.open_value(other, codec.seal_value(key, body))


@given(JSON)
@example("\ud83d\ude00")
@example(["\ud800", -0.0, 2**64])
def test_json_comes_back_exactly(value):
    body, flags = codec.encode_json(value)

    assert exact(codec.decode_json(body, flags)) == exact(value)
    assert exact(json.loads(body.decode("utf-8", "surrogatepass"))) == exact(value)


@given(st.integers(1, 512), st.booleans(), JSON)
@settings(max_examples=30)
def test_deep_json_comes_back(depth, in_dicts, leaf):
    value = [2.5]
    for _ in range(depth - 1):
        value = {"k": value} if in_dicts else [value]

    assert repr(codec.decode_json(*codec.encode_json(value))) == repr(value)


@given(st.recursive(st.sampled_from([math.nan, math.inf]), lambda inner: st.tuples(JSON, inner)))
def test_a_number_that_is_not_finite_is_found_at_any_depth(value):
    with pytest.raises(ValueError, match="NaN or infinity"):
        codec.encode_json(value)


# --- key/value against a dict -----------------------------------------------------------------

KV_KEY = NEAR.filter(bool) | st.sampled_from(["a", "ab", "abc", "b"])
VALUE = st.binary(max_size=9) | JSON
TTL = st.none() | st.sampled_from([0.001, 1, 2, 10])
KV_STEP = st.one_of(
    st.tuples(st.just("put"), KV_KEY, VALUE, TTL),
    st.tuples(st.just("put_many"), st.dictionaries(KV_KEY, VALUE, max_size=5), TTL),
    st.tuples(st.just("delete"), KV_KEY),
    st.tuples(st.just("increment"), st.sampled_from("xy"), st.integers()),
    st.tuples(st.just("delete_range"), NEAR, st.none() | NEAR),
    st.tuples(st.just("scan"), NEAR, st.none() | NEAR, st.none() | NEAR, st.booleans(),
              st.none() | st.integers(0, 4)),
    st.tuples(st.just("wait"), st.sampled_from([1, 999, 1000, 5000])),
    st.tuples(st.just("sweep"), st.integers(0, 3)),
    st.tuples(st.just("fail"), KV_KEY),
)  # fmt: skip


class KeyValueModel:
    """What a namespace should hold: ``{key: (value, expires_ms or None)}``."""

    def __init__(self):
        self.now = 1_000
        self.rows = {}

    def visible(self):
        return {k: v for k, (v, end) in self.rows.items() if end is None or self.now < end}

    def put(self, key, value, ttl):
        self.rows[key] = (value, None if ttl is None else self.now + round(ttl * 1000))

    def between(self, start, stop, prefix=None):
        return [
            (key, value)
            for key, value in sorted(self.visible().items(), key=lambda row: row[0])
            if key >= start and (stop is None or key < stop) and key.startswith(prefix or "")
        ]


class KeyValueRun:
    """Takes the same steps with a handle and with the model and compares what they answer."""

    def __init__(self, store):
        self.model = KeyValueModel()
        self.kv = KeyValue(store, lambda _: (1, 1), lambda _: (1, 1), now_ms=lambda: self.model.now)

    def put(self, key, value, ttl):
        self.kv.put(key, value, ttl_seconds=ttl)
        self.model.put(key, value, ttl)

    def put_many(self, rows, ttl):
        self.kv.put_many(rows, ttl_seconds=ttl)
        for key, value in rows.items():
            self.model.put(key, value, ttl)

    def delete(self, key):
        assert self.kv.delete(key) == (key in self.model.visible())
        self.model.rows.pop(key, None)

    def increment(self, key, n):
        before = self.model.visible().get(key, 0)
        end = self.model.rows[key][1] if key in self.model.visible() else None
        assert self.kv.increment(key, n) == before + n
        self.model.rows[key] = (before + n, end)

    def delete_range(self, start, stop):
        found = self.model.between(start, stop)
        assert self.kv.delete_range(start, stop) == len(found)
        for key, _ in found:
            del self.model.rows[key]

    def scan(self, start, stop, prefix, reverse, limit):
        expected = self.model.between(start, stop, prefix)
        expected = (expected[::-1] if reverse else expected)[:limit]
        options = {"prefix": prefix, "reverse": reverse, "limit": limit}
        assert exact([*map(list, self.kv.scan(start, stop, **options))]) == exact(
            [*map(list, expected)]
        )
        inside = self.kv.transact(lambda txn: list(txn.scan(start, stop, **options)))
        assert [key for key, _ in inside] == [key for key, _ in expected]

    def wait(self, ms):
        self.model.now += ms

    def sweep(self, limit):
        self.kv.sweep(limit)

    def fail(self, key):
        def closure(txn):
            txn.put(key, 1, ttl_seconds=1)
            txn.delete(key)
            txn.put(key, 2)
            raise KeyError

        with pytest.raises(KeyError):
            self.kv.transact(closure)

    def compare(self, store):
        visible = self.model.visible()
        assert dict(self.kv.scan()).keys() == visible.keys()
        for key, value in visible.items():
            assert exact(self.kv.get(key)) == exact(value)
            assert self.kv.expires(key) == self.model.rows[key][1]
        # Every entry with an expiry time has exactly one row that leads the sweeper to it.
        rows = all_rows(store)
        leading = {keys.split_expiry_row(row)[1] for row in rows if row[0] == Kind.EXPIRY}
        assert len(leading) == sum(row[0] == Kind.EXPIRY for row in rows)
        marked = {
            row
            for row, value in rows.items()
            if row[0] == Kind.KV and codec.open_value(row, value)[0] & codec.FLAG_EXPIRES
        }
        assert leading == marked


@given(st.lists(KV_STEP, min_size=5, max_size=30), st.booleans())
@settings(max_examples=200, deadline=None)
def test_key_value_is_a_dict(steps, rerun):
    store = FakeStore(rerun=rerun)
    run = KeyValueRun(store)
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        run.compare(store)
    run.model.now += 10**9
    while run.kv.sweep(3):
        pass
    run.compare(store)
    assert not any(row[0] == Kind.EXPIRY for row in all_rows(store))


# --- blobs against a dict ---------------------------------------------------------------------

CONTENT = st.sampled_from([b"", b"a", b"b", b"ab" * 100, b"c" * 131_072, b"d" * 200_000])
BLOB_STEP = st.one_of(
    st.tuples(st.sampled_from(["acquire", "stage", "refer", "put", "remove"]), CONTENT),
    st.tuples(st.just("release"), st.integers(0, 99)),
    st.tuples(st.just("collect")),
)


class BlobRun:
    """Counts in a dict against counts in the store; all digests may be made to collide."""

    def __init__(self, store):
        self.store = store
        self.handle = BlobStore(store, 1, seed=1)
        self.held = []
        self.addresses = {}

    def acquire(self, content):
        def closure(txn):
            ref = blobs.write(txn, 1, content, seed=1)
            blobs.acquire(txn, 1, ref)
            return ref

        self.held.append((self.store.transact(closure), content))

    def stage(self, content):
        ref = blobs.stage(self.store, 1, content, seed=1)
        assert self.store.read(lambda txn: blobs.read(txn, 1, ref)) == content

    def refer(self, content):
        def closure(txn, ref):
            blobs.acquire(txn, 1, ref)
            return ref

        self.held.append((blobs.refer(self.store, 1, content, closure, seed=1), content))

    def release(self, which):
        if self.held:
            ref, _ = self.held.pop(which % len(self.held))
            self.store.transact(lambda txn: blobs.release(txn, 1, ref))

    def put(self, content):
        self.addresses[self.handle.put(content)] = content

    def remove(self, content):
        address = "sha256:" + hashlib.sha256(content).hexdigest()
        assert self.handle.delete(address) == (self.addresses.pop(address, None) is not None)

    def collect(self):
        self.handle.collect()
        contents = {content for _, content in self.held} | {*self.addresses.values()}
        rows = all_rows(self.store)
        assert sum(row[0] == Kind.BLOB for row in rows) >= len(contents)
        assert sum(row[0] == Kind.BLOB_REFS for row in rows) == sum(
            row[0] == Kind.BLOB for row in rows
        )

    def compare(self):
        assert self.store.read(lambda txn: blobs.check(txn, 1)) == []
        for ref, content in self.held:
            assert self.store.read(lambda txn, ref=ref: blobs.read(txn, 1, ref)) == content
        for address, content in self.addresses.items():
            assert self.handle.get(address) == content
        counts = [
            int.from_bytes(codec.open_value(row, value)[1], "big")
            for row, value in all_rows(self.store).items()
            if row[0] == Kind.BLOB_REFS
        ]
        assert sum(counts) == len(self.held) + len(self.addresses)


@given(st.lists(BLOB_STEP, max_size=20), st.booleans(), st.booleans())
@settings(deadline=None)
def test_blobs_are_counted_like_in_a_dict(steps, rerun, collide):
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            for module in (content_module, handle_module):
                patch.setattr(module, "xxh3_128_digest", lambda payload, seed: b"\xff" * 16)
            for module in (sources, staging):
                patch.setattr(module, "xxh3_128", SameDigest)
        run = BlobRun(FakeStore(rerun=rerun))
        for name, *arguments in steps:
            getattr(run, name)(*arguments)
            run.compare()
        while run.held:
            run.release(0)
        for content in list(run.addresses.values()):
            run.remove(content)
        run.handle.collect()
        assert all_rows(run.store) == {}


class SameDigest:
    def __init__(self, seed):
        pass

    def update(self, piece):
        pass

    def digest(self):
        return b"\xff" * 16
