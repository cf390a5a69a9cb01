"""KeyValue: an ordered map with ranges, expiry and transactions."""

from __future__ import annotations

import asyncio
import math
import threading
from types import SimpleNamespace

import pytest

from memcore.codec import keys
from memcore.codec.keys import Kind
from memcore.errors import ClosedError, CorruptValueError, InvalidItemError, InvalidOptionError
from memcore.kv import KeyValue, KeyValueTxn, clear_scope, namespace, sweep
from memcore.kv import rows as options
from memcore.rows import names
from tests.unit.fake_store import STORES, all_rows, damage, opened_store

HOSTILE = ["\x00", "\x00\x00", "a", "a\x00", "a\x00b", "a\x01", "ab", "é", "e\u0301", "\ud800"]
HOSTILE += ["\ud83d\ude00", "\ue000", "😀", "z" * 479, "\x00" * 239]


class Clock:
    def __init__(self):
        self.ms = 1_000_000

    def __call__(self):
        return self.ms


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def clock():
    return Clock()


def handle(store, clock, namespace="n", user="u"):
    def find(txn):
        scope = names.scope_of(txn, "app", user)
        number = None if scope is None else names.namespace_of(txn, scope, namespace)
        return None if number is None else (scope, number)

    def ensure(txn):
        scope = names.ensure_scope(txn, "app", user)
        return scope, names.ensure_namespace(txn, scope, namespace)

    return KeyValue(store, find, ensure, now_ms=clock)


@pytest.fixture
def kv(store, clock):
    return handle(store, clock)


def row_key(key):
    return keys.kv_prefix(1, 1) + keys.pack_text(key)


def expiry_rows(store):
    return [key for key in all_rows(store) if key[0] == Kind.EXPIRY]


# --- one key ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, False, 0, 2**70, -0.5, "", "\ud800", "\ud83d\ude00", [], {"a": [1, None]}, b"",
        b"\x00\xff", b'{"json": 1}',
    ],
    ids=ascii,
)  # fmt: skip
def test_a_value_comes_back(kv, value):
    kv.put("k", value)

    again = kv.get("k", "missing")
    assert again == value
    assert type(again) is type(value)


def test_a_missing_key_is_the_default(kv):
    assert kv.get("k") is None
    assert kv.get("k", 7) == 7
    kv.put("k", 1)
    kv.put("k", 2)
    assert kv.get("k", 7) == 2
    assert kv.delete("k")
    assert not kv.delete("k")
    assert kv.get("k", 7) == 7


def test_buffers_come_back_as_bytes(kv):
    kv.put_many({"a": bytearray(b"x"), "b": memoryview(b"y"), "c": (1, 2)})

    assert list(kv.scan()) == [("a", b"x"), ("b", b"y"), ("c", [1, 2])]


def test_hostile_keys_stay_distinct_and_in_order(kv):
    kv.put_many({key: ascii(key) for key in reversed(HOSTILE)})

    assert list(kv.scan()) == [(key, ascii(key)) for key in sorted(HOSTILE)]
    assert all(kv.get(key) == ascii(key) for key in HOSTILE)


def test_reading_an_unknown_namespace_writes_nothing(kv, store):
    assert kv.get("k") is None
    assert list(kv.scan(prefix="a", reverse=True)) == []
    assert not kv.delete("k")
    assert kv.expires("k") is None
    assert kv.clear() == kv.sweep() == kv.delete_range("a", "b") == 0
    assert kv.transact(lambda txn: (txn.get("k", 3), list(txn.scan()), txn.delete("k")))[0] == 3
    kv.put_many({})
    assert all_rows(store) == {}


def test_namespaces_and_scopes_are_apart(kv, store, clock):
    others = [handle(store, clock, "n2"), handle(store, clock, "n", user="u2")]
    kv.put("k", 1)
    for other in others:
        assert other.get("k") is None
        other.put("k", 2, ttl_seconds=1)
        other.put("k2", 2, ttl_seconds=1)

    assert list(kv.scan()) == [("k", 1)]
    assert kv.clear() == 1
    assert [list(other.scan()) for other in others] == [[("k", 2), ("k2", 2)]] * 2


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("", "empty"), (None, "NoneType"), (b"k", "bytes"), (1, "int"), ("k" * 480, "480 bytes"),
        ("\x00" * 240, "480 bytes"), ("é" * 240, "480 bytes"),
    ],
    ids=ascii,
)  # fmt: skip
def test_what_is_no_key_is_refused(kv, store, key, match):
    calls = [
        lambda: kv.get(key),
        lambda: kv.put(key, 1),
        lambda: kv.put_many({"good": 1, key: 1}),
        lambda: kv.delete(key),
        lambda: kv.increment(key),
        lambda: kv.expires(key),
        lambda: kv.transact(lambda txn: txn.put(key, 1)),
        lambda: kv.transact(lambda txn: txn.get(key)),
        lambda: kv.transact(lambda txn: txn.delete(key)),
    ]
    for call in calls:
        with pytest.raises(InvalidOptionError, match=match):
            call()
    assert all_rows(store) == {}


def test_the_longest_keys_hold(kv):
    for key in ("k" * 479, "\x00" * 239 + "k", "é" * 239 + "k"):
        kv.put(key, 1, ttl_seconds=1)
        assert kv.get(key) == 1


@pytest.mark.parametrize(
    "value", [math.nan, [math.inf], {1: 2}, {"a": object()}, {b"x"}, [b"x"]], ids=repr
)
def test_what_is_no_value_is_refused(kv, store, value):
    for call in (
        lambda: kv.put("k", value),
        lambda: kv.put_many({"a": 1, "k": value}),
        lambda: kv.transact(lambda txn: (txn.put("a", 1), txn.put("k", value))),
    ):
        with pytest.raises(InvalidItemError, match="neither bytes nor JSON"):
            call()
    assert all_rows(store) == {}


def test_a_circular_value_is_refused(kv):
    circle = []
    circle.append(circle)

    with pytest.raises(InvalidItemError, match=r"nested deeper|circular"):
        kv.put("k", circle)


def test_the_size_of_a_value_is_bounded(kv, monkeypatch):
    monkeypatch.setattr(options, "KV_VALUE_BYTES_MAX", 100)

    kv.put("a", b"x" * 100)
    kv.put("b", "x" * 98)
    for value in (b"x" * 101, "x" * 99):
        with pytest.raises(InvalidItemError, match="takes 101 bytes"):
            kv.put("c", value)


def test_a_value_of_many_pages_comes_back(kv):
    value = bytes(range(256)) * 4096
    kv.put("k", value, ttl_seconds=9)

    assert kv.get("k") == value


def test_put_many_takes_a_mapping(kv):
    with pytest.raises(InvalidOptionError, match="mapping"):
        kv.put_many([("a", 1)])


# --- ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "a a1 a2 b b1 c"),
        ({"start": "a1"}, "a1 a2 b b1 c"),
        ({"start": "a0"}, "a1 a2 b b1 c"),
        ({"stop": "b"}, "a a1 a2"),
        ({"start": "a1", "stop": "b1"}, "a1 a2 b"),
        ({"start": "b", "stop": "b"}, ""),
        ({"start": "c", "stop": "a"}, ""),
        ({"stop": ""}, ""),
        ({"prefix": "a"}, "a a1 a2"),
        ({"prefix": ""}, "a a1 a2 b b1 c"),
        ({"prefix": "a", "start": "a1"}, "a1 a2"),
        ({"prefix": "a", "stop": "a2"}, "a a1"),
        ({"prefix": "a", "start": "b"}, ""),
        ({"prefix": "b", "stop": "a"}, ""),
        ({"prefix": "zz"}, ""),
        ({"start": "a" * 5000}, "b b1 c"),
        ({"stop": "a" * 5000}, "a a1 a2"),
        ({"prefix": "a" * 5000}, ""),
        ({"prefix": "\x00" * 5000}, ""),
    ],
    ids=ascii,
)
def test_ranges(kv, options, expected, reverse):
    kv.put_many(dict.fromkeys(["a", "a1", "a2", "b", "b1", "c"], 1))
    expected = expected.split()

    found = [key for key, _ in kv.scan(**options, reverse=reverse)]
    inside = kv.transact(lambda txn: [key for key, _ in txn.scan(**options, reverse=reverse)])
    assert found == inside == (expected[::-1] if reverse else expected)


@pytest.mark.parametrize("bound", HOSTILE)
def test_ranges_between_hostile_keys(kv, bound):
    kv.put_many(dict.fromkeys(HOSTILE, 1))

    assert [key for key, _ in kv.scan(bound)] == [k for k in sorted(HOSTILE) if k >= bound]
    assert [key for key, _ in kv.scan(stop=bound)] == [k for k in sorted(HOSTILE) if k < bound]
    found = [key for key, _ in kv.scan(prefix=bound)]
    assert found == [key for key in sorted(HOSTILE) if key.startswith(bound)]


def test_a_bound_longer_than_the_longest_key(kv):
    kv.put_many(dict.fromkeys(["k" * 478, "k" * 479, "k" * 478 + "l"], 1))

    assert [key for key, _ in kv.scan("k" * 480)] == ["k" * 478 + "l"]
    assert [key for key, _ in kv.scan(stop="k" * 480)] == ["k" * 478, "k" * 479]
    assert list(kv.scan(prefix="k" * 480)) == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [None, 0, 1, 255, 256, 257, 511, 512, 513, 600, 10**9])
def test_scans_page_and_stop_at_the_limit(kv, limit, reverse):
    kv.put_many({f"{n:04}": n for n in range(600)})
    expected = [(f"{n:04}", n) for n in range(600)]
    expected = (expected[::-1] if reverse else expected)[:limit]

    assert list(kv.scan(limit=limit, reverse=reverse)) == expected
    inside = kv.transact(lambda txn: list(txn.scan(limit=limit, reverse=reverse)))
    assert inside == expected


def test_a_short_limit_reads_little(clock, tmp_path):
    with opened_store("fake", tmp_path) as store:
        kv = handle(store, clock)
        kv.put_many({f"{n:04}": n for n in range(600)})
        store.reads = 0

        assert len(list(kv.scan(limit=2))) == 2
        assert store.reads == 1
        assert len(list(kv.scan())) == 600
        assert store.reads == 1 + 3


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_steps_over_expired_keys(kv, clock, reverse):
    kv.put_many({f"{n:04}": n for n in range(700)}, ttl_seconds=1)
    kv.put_many({"0300": 1, "0699": 2})
    clock.ms += 1000

    expected = [("0300", 1), ("0699", 2)]
    assert list(kv.scan(reverse=reverse)) == (expected[::-1] if reverse else expected)
    assert list(kv.scan(reverse=reverse, limit=1)) == [expected[-1 if reverse else 0]]


def test_large_values_make_short_pages(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(namespace, "_PAGE_BYTES", 1000)
    with opened_store("fake", tmp_path) as store:
        kv = handle(store, clock)
        kv.put_many({f"{n:02}": b"x" * 400 for n in range(20)})

        for reverse in (False, True):
            store.reads = 0
            assert len({key for key, _ in kv.scan(reverse=reverse)}) == 20
            assert store.reads == 7
            assert len(list(kv.scan(reverse=reverse, limit=7))) == 7


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_survives_writes_between_its_pages(kv, reverse):
    kv.put_many({f"{n:04}": n for n in range(600)})
    scan = kv.scan(reverse=reverse)

    found = [next(scan)[0] for _ in range(256)]
    ahead, behind = ("0100", "0590") if reverse else ("0500", "0010")
    kv.delete(found[-1])
    kv.delete(ahead)
    kv.put(ahead + "x", 1)
    kv.put(behind + "x", 1)
    found += [key for key, _ in scan]

    expected = {f"{n:04}" for n in range(600)} - {ahead} | {ahead + "x"}
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_a_scan_inside_a_transaction_sees_its_writes(kv):
    kv.put_many({"a": 1, "b": 2})

    def closure(txn):
        txn.put("c", 3)
        txn.delete("a")
        return list(txn.scan())

    assert kv.transact(closure) == [("b", 2), ("c", 3)]


def test_a_transaction_may_write_while_it_scans(kv):
    kv.put_many({f"{n:04}": n for n in range(600)})

    def closure(txn):
        for key, value in txn.scan():
            txn.put(key, value + 1)
            txn.delete("0599")

    kv.transact(closure)
    assert list(kv.scan()) == [(f"{n:04}", n + 1) for n in range(599)]


@pytest.mark.parametrize(
    "options",
    [
        {"start": None}, {"start": 1}, {"stop": b"x"}, {"prefix": 1}, {"limit": -1},
        {"limit": 1.5}, {"limit": True}, {"limit": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_scan_options_are_refused_at_once(kv, options):
    with pytest.raises(InvalidOptionError):
        kv.scan(**options)
    with pytest.raises(InvalidOptionError):
        kv.transact(lambda txn: txn.scan(**options))


def test_ranges_are_removed(kv, store, clock):
    kv.put_many(dict.fromkeys("abcdef", 1), ttl_seconds=5)
    kv.put("c", 1)

    assert kv.delete_range("b", "d") == 2
    assert [key for key, _ in kv.scan()] == ["a", "d", "e", "f"]
    assert kv.delete_range("e", None) == 2
    assert kv.delete_range("d", "a") == 0
    assert len(expiry_rows(store)) == 2
    clock.ms += 5000
    assert kv.clear() == 0
    assert expiry_rows(store) == []
    assert not any(key[0] == Kind.KV for key in all_rows(store))
    with pytest.raises(InvalidOptionError):
        kv.delete_range(None, "a")


# --- transactions -----------------------------------------------------------------------------


def test_a_transaction_stores_all_or_nothing(kv):
    kv.put_many({"from": 10, "to": 0})

    def move(txn):
        txn.put("from", txn.get("from") - 7)
        txn.put("to", txn.get("to") + 7)
        return txn.get("from"), txn.get("to")

    def fail(txn):
        move(txn)
        raise KeyError

    assert kv.transact(move) == (3, 7)
    with pytest.raises(KeyError):
        kv.transact(fail)
    assert list(kv.scan()) == [("from", 3), ("to", 7)]


def test_a_transaction_sees_its_first_write_into_a_new_namespace(kv):
    def closure(txn):
        before = txn.get("k")
        txn.put("k", 1)
        return before, txn.get("k"), txn.increment("k", 4), txn.delete("k"), list(txn.scan())

    assert kv.transact(closure) == (None, 1, 5, True, [])


def test_a_transaction_handle_dies_with_its_function(kv):
    kept = []
    kv.transact(kept.append)
    scan = kv.transact(KeyValueTxn.scan)

    for call in (
        lambda: kept[-1].get("k"),
        lambda: kept[-1].put("k", 1),
        lambda: kept[-1].delete("k"),
        lambda: kept[-1].increment("k"),
        kept[-1].scan,
        lambda: next(scan),
    ):
        with pytest.raises(ClosedError, match="is over"):
            call()


def test_a_snapshot_is_of_one_moment(db):
    kv = db.scope().kv("n")
    kv.put_many({"a": 1, "b": 1})

    def look(view):
        first = view.get("a")
        writer = threading.Thread(target=lambda: kv.put_many({"a": 2, "b": 2}))
        writer.start()
        writer.join()
        return first, view.get("a"), view.get("b"), [value for _, value in view.scan()]

    assert kv.read(look) == (1, 1, 1, [1, 1])
    assert kv.read(lambda view: view.get("a")) == 2


def test_a_handle_learns_where_its_namespace_is(store, clock):
    early = handle(store, clock)
    assert early.get("a") is None
    handle(store, clock).put("a", 1)
    assert early.get("a") == 1
    early.clear()
    handle(store, clock).put("a", 2)
    assert early.get("a") == 2
    early.put("b", 3)
    assert handle(store, clock).get("b") == 3


def test_a_namespace_of_a_commit_that_failed_is_not_remembered(store, clock):
    kv = handle(store, clock)

    def transact(fn, **_):
        def closure(txn):
            names.ensure_namespace(txn, names.ensure_scope(txn, "app", "u"), "n")
            fn(txn)
            raise ValueError

        return store.transact(closure)

    kv._store = SimpleNamespace(read=store.read, transact=transact)
    with pytest.raises(ValueError):
        kv.put("a", 1)
    kv._store = store
    handle(store, clock, namespace="other").put("a", "other's")
    assert kv.get("a") is None
    kv.put("a", "own")
    assert kv.get("a") == "own"


def test_increment(kv, clock):
    assert kv.increment("k") == 1
    assert kv.increment("k", 41) == 42
    assert kv.increment("k", -(2**70)) == 42 - 2**70
    kv.put("t", 5, ttl_seconds=10)
    assert kv.increment("t", 0) == 5
    assert kv.expires("t") == clock.ms + 10_000
    clock.ms += 10_000
    assert kv.increment("t") == 1
    assert kv.expires("t") is None


@pytest.mark.parametrize("value", ["1", 1.0, True, None, [1], b"1"], ids=ascii)
def test_only_integers_are_incremented(kv, value):
    kv.put("k", value)

    with pytest.raises(InvalidItemError, match="expected an int"):
        kv.increment("k")
    for n in (1.0, True, "1", None):
        with pytest.raises(InvalidOptionError, match="step"):
            kv.increment("other", n)
    assert kv.get("k") == value


def test_increments_of_threads_add_up(kv):
    def work():
        for _ in range(50):
            kv.increment("k")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv.get("k") == 200


# --- expiry -----------------------------------------------------------------------------------


def test_an_expired_key_is_gone_at_once(kv, clock):
    kv.put("k", 1, ttl_seconds=1.5)
    assert kv.expires("k") == clock.ms + 1500

    clock.ms += 1499
    assert kv.get("k") == 1
    clock.ms += 1
    assert kv.get("k") is None
    assert list(kv.scan()) == []
    assert kv.expires("k") is None
    assert kv.transact(lambda txn: txn.get("k")) is None
    assert not kv.delete("k")


def test_deleting_an_expired_key_removes_its_rows(kv, store, clock):
    kv.put("k", 1, ttl_seconds=1)
    clock.ms += 1000

    assert not kv.delete("k")
    assert not [key for key in all_rows(store) if key[0] in (Kind.KV, Kind.EXPIRY)]


def test_expiry_rows_are_written_only_when_used(kv, store):
    kv.put("k", 1)
    assert expiry_rows(store) == []
    kv.put("k", 1, ttl_seconds=1)
    assert len(expiry_rows(store)) == 1
    kv.put("k", 1, ttl_seconds=2)
    assert len(expiry_rows(store)) == 1
    kv.put("k", 1)
    assert expiry_rows(store) == []
    kv.put("k", 1, ttl_seconds=1)
    kv.delete("k")
    assert expiry_rows(store) == []


def test_a_new_value_outlives_the_old_expiry(kv, store, clock):
    kv.put("a", 1, ttl_seconds=1)
    kv.put("b", 1, ttl_seconds=1)
    kv.put("a", 2)
    kv.put("b", 2, ttl_seconds=5)
    clock.ms += 1000

    assert kv.sweep() == 0
    assert list(kv.scan()) == [("a", 2), ("b", 2)]


def test_the_sweeper_removes_what_is_expired(kv, store, clock):
    kv.put_many({f"{n}": n for n in range(10)}, ttl_seconds=1)
    kv.put("keep", 1, ttl_seconds=60)
    kv.put("stay", 1)
    assert kv.sweep() == 0
    clock.ms += 1000

    assert kv.sweep(0) == 0
    assert kv.sweep(4) == 4
    assert kv.sweep(4) == 4
    assert kv.sweep(4) == 2
    assert kv.sweep() == 0
    assert len(expiry_rows(store)) == 1
    assert len([key for key in all_rows(store) if key[0] == Kind.KV]) == 2


def test_a_handle_sweeps_its_own_namespace(kv, store, clock):
    other = handle(store, clock, user="u2")
    for one in (other, kv):
        one.put_many({"a": 1, "b": 1}, ttl_seconds=1)
    clock.ms += 1000

    assert kv.sweep(1) == 1
    assert kv.sweep() == 1
    assert len(expiry_rows(store)) == 2
    assert store.transact(lambda txn: sweep(txn, now_ms=clock.ms, limit=1)) == 1
    assert other.sweep() == 1


def test_the_sweep_of_the_file_covers_all_scopes_and_leaves_other_kinds(kv, store, clock):
    foreign = keys.expiry_row(1, keys.session_row(1, 1, 1, 0))
    store.transact(lambda txn: txn.put(foreign, b"x"))
    for user in ("u", "u2", "u3"):
        handle(store, clock, user=user).put("k", 1, ttl_seconds=1)
    clock.ms += 1000

    assert store.transact(lambda txn: sweep(txn, now_ms=clock.ms)) == 3
    assert expiry_rows(store) == [foreign]


def test_a_stale_expiry_row_removes_nothing(kv, store, clock):
    kv.put("k", 1, ttl_seconds=60)
    stale = [keys.expiry_row(5, row_key("k")), keys.expiry_row(5, row_key("unknown"))]
    store.transact(lambda txn: [txn.put(row, b"x") for row in stale])

    assert kv.sweep() == 0
    assert kv.get("k") == 1
    assert len(expiry_rows(store)) == 1


def test_the_sweeper_looks_again_before_it_removes(kv, store, clock):
    kv.put_many({"a": 1, "b": 1}, ttl_seconds=1)
    clock.ms += 1000
    sweeping = handle(store, clock)
    listed = sweeping._read

    def read_then_race(fn):
        found = listed(fn)
        kv.put("a", 2)
        return found

    sweeping._read = read_then_race
    assert sweeping.sweep() == 1
    assert list(kv.scan()) == [("a", 2)]


@pytest.mark.parametrize(
    "ttl",
    [0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf, True, False, "1", [], 1e300, 10**5000, 1j],
    ids=lambda ttl: str(ttl)[:9] if not isinstance(ttl, int) else f"int{ttl.bit_length()}",
)
def test_a_wrong_ttl_is_refused(kv, store, ttl):
    for call in (
        lambda: kv.put("k", 1, ttl_seconds=ttl),
        lambda: kv.put_many({"k": 1}, ttl_seconds=ttl),
        lambda: kv.transact(lambda txn: txn.put("k", 1, ttl_seconds=ttl)),
    ):
        with pytest.raises(InvalidOptionError, match="ttl_seconds must be"):
            call()
    assert all_rows(store) == {}


def test_the_extremes_of_a_ttl(kv, clock):
    kv.put("short", 1, ttl_seconds=1e-9)
    kv.put("long", 1, ttl_seconds=10**15)

    assert kv.expires("short") == clock.ms + 1
    assert kv.expires("long") == clock.ms + 10**18


def test_the_wall_clock_is_the_default(store):
    kv = KeyValue(store, lambda _: (1, 1), lambda _: (1, 1))
    kv.put("k", 1, ttl_seconds=3600)

    assert kv.get("k") == 1
    assert kv.expires("k") > 1_700_000_000_000


@pytest.mark.parametrize("limit", [-1, 1.5, True, "1"])
def test_a_wrong_sweep_limit_is_refused(kv, limit):
    with pytest.raises(InvalidOptionError, match="limit"):
        kv.sweep(limit)


def test_an_erased_scope_leaves_no_key_behind(kv, store, clock):
    other = handle(store, clock, user="u2")
    for one in (kv, handle(store, clock, "n2"), other):
        one.put_many({"secret": 1, "plain": 1}, ttl_seconds=9)
        one.put("plain", 1)

    assert store.transact(lambda txn: clear_scope(txn, 1, now_ms=clock.ms)) == 4
    assert len(expiry_rows(store)) == 1
    assert len(list(other.scan())) == 2


# --- damage -----------------------------------------------------------------------------------


def test_a_damaged_value_is_told_and_can_be_replaced(kv, store):
    kv.put_many({"a": 1, "b": 2, "c": 3})
    damage(store, row_key("b"))

    with pytest.raises(CorruptValueError) as caught:
        kv.get("b")
    assert caught.value.key == row_key("b")
    assert (kv.get("a"), kv.get("c")) == (1, 3)
    assert list(kv.scan("b\x00")) == [("c", 3)]
    with pytest.raises(CorruptValueError):
        list(kv.scan())
    kv.put("b", 4)
    assert list(kv.scan()) == [("a", 1), ("b", 4), ("c", 3)]


def test_a_damaged_value_can_be_deleted(kv, store):
    kv.put_many({"a": 1, "b": 2})
    damage(store, row_key("a"))
    assert kv.delete("a")
    damage(store, row_key("b"))
    assert kv.clear() == 1
    assert list(kv.scan()) == []


def test_the_sweeper_leaves_a_damaged_value_to_be_found(kv, store, clock):
    kv.put("a", 1, ttl_seconds=1)
    damage(store, row_key("a"))
    clock.ms += 1000

    assert kv.sweep() == 0
    with pytest.raises(CorruptValueError):
        kv.get("a")


# --- snapshots, and commits that are awaited ----------------------------------------------------


def test_read_sees_one_snapshot(tmp_path, clock):
    def look(view):
        first = view.get("a")
        thread = threading.Thread(target=kv.put, args=("a", 2))
        thread.start()
        thread.join(timeout=30)
        return first, view.get("a"), list(view.scan()), view.get("b", 7)

    with opened_store("real", tmp_path) as opened:
        kv = handle(opened, clock)
        kv.put("a", 1)
        assert kv.read(look) == (1, 1, [("a", 1)], 7)
        assert kv.get("a") == 2


def test_a_view_is_over_when_its_function_returns(kv):
    view = kv.read(lambda view: view)
    assert not hasattr(view, "put")
    for use in (lambda: view.get("a"), view.scan):
        with pytest.raises(ClosedError, match="is over"):
            use()
    with pytest.raises(ZeroDivisionError):
        kv.read(lambda _: 1 / 0)


class Watched:
    """A store that notes who asked for the room of deletions."""

    def __init__(self, store):
        self.store = store
        self.asked = []

    def transact(self, fn, *, makes_room=False):
        self.asked.append(makes_room)
        return self.store.transact(fn, makes_room=makes_room)


def test_transact_may_ask_for_the_room_of_deletions(kv):
    kv._store = Watched(kv._store)
    kv.transact(lambda txn: txn.put("a", 1))
    assert kv.transact(lambda txn: txn.delete("a"), makes_room=True)
    assert kv._store.asked == [False, True]


def test_submit_is_a_transaction_that_is_awaited(tmp_path, clock):
    async def run(kv):
        loop = asyncio.get_running_loop()
        assert await kv.submit(lambda txn: txn.increment("n", 5), loop) == 5
        with pytest.raises(ZeroDivisionError):
            await kv.submit(lambda txn: [txn.put("n", 7), 1 / 0], loop)
        assert await kv.submit(lambda txn: txn.delete("n"), loop, makes_room=True)
        return await kv.submit(lambda txn: txn, loop)

    with opened_store("real", tmp_path) as opened:
        over = asyncio.run(run(handle(opened, clock)))
    with pytest.raises(ClosedError, match="is over"):
        over.get("n")


def test_a_clock_that_goes_back_during_a_sweep_leaves_the_entry_and_its_expiry(store, clock):
    kv = KeyValue(store, lambda _: (1, 1), lambda _: (1, 1), now_ms=clock)
    kv.put("k", 1, ttl_seconds=1)
    clock.ms += 2000
    due = store.read(lambda txn: options.due_rows(txn, bytes((Kind.KV,)), clock.ms, 10))
    assert len(due) == 1
    clock.ms -= 1500
    assert store.transact(lambda txn: options.expire_rows(txn, due, clock.ms, [])) == (0, [])
    assert kv.get("k") == 1
    clock.ms += 1500
    assert store.transact(lambda txn: sweep(txn, now_ms=clock.ms)) == 1


def test_a_step_that_no_integer_of_json_holds_is_refused(store, clock):
    kv = KeyValue(store, lambda _: (1, 1), lambda _: (1, 1), now_ms=clock)
    for key in (None, "once"):
        with pytest.raises(InvalidItemError, match=r"integer|digits"):
            kv.increment("k", 10**5000, idempotency_key=key)


def test_it_is_used_as_a_dict(kv) -> None:
    kv["b"] = 1
    kv["a"] = None
    assert (kv["a"], kv["b"], list(kv.scan())) == (None, 1, [("a", None), ("b", 1)])
    assert ("a" in kv, "c" in kv) == (True, False)
    assert not any(each in kv for each in ("", 7, None, "x" * 4000))
    for walk in (iter, list, dict):
        with pytest.raises(TypeError, match="iterable"):
            walk(kv)
    del kv["a"]
    for use in (lambda: kv["a"], lambda: kv.__delitem__("a")):
        with pytest.raises(KeyError, match="a"):
            use()
