"""Sealed values and lossless JSON."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from types import MappingProxyType
from uuid import UUID

import lmdb
import orjson
import pytest
from xxhash import xxh3_64_intdigest

import memcore
from memcore.codec import keys
from memcore.codec import values as codec
from memcore.codec.keys import Kind
from memcore.errors import CorruptValueError
from memcore.maintenance.check import Damage, damage_of

DEPTH_MAX = 512


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def round_trip(value):
    return codec.decode_json(*codec.encode_json(value))


@pytest.mark.parametrize("length", [0, 1, 255, 256, 511])
def test_a_value_comes_back_under_a_key_of_any_length(length):
    key = b"k" * length

    assert codec.open_value(key, codec.seal_value(key, b"body", 5)) == (5, b"body")


def test_the_sealed_form_is_pinned():
    checksum = xxh3_64_intdigest(b"\x03\x00\x01\x02keybody").to_bytes(8, "big")

    assert codec.seal_value(b"key", b"body", 2) == b"\x01\x02" + checksum + b"body"
    assert checksum.hex() == "c50b8a6f1fb0ddbd"


@pytest.mark.parametrize(
    ("key", "other"), [(b"a", b"b"), (b"a", b"a\x00"), (b"k" * 256, b""), (b"k", b"k" * 257)]
)
def test_a_value_under_another_key_is_damage(key, other):
    with pytest.raises(CorruptValueError, match="fails its checksum") as caught:
        codec.open_value(other, codec.seal_value(key, b"body"))

    assert caught.value.key == other


def test_key_and_body_are_told_apart_at_their_border():
    sealed = codec.seal_value(b"ab", b"c")

    with pytest.raises(CorruptValueError):
        codec.open_value(b"a", sealed[: codec.HEADER_BYTES] + b"bc")


def test_every_flipped_bit_and_every_truncation_is_damage():
    sealed = codec.seal_value(b"key", b"some body", 3)

    for position in range(len(sealed)):
        for bit in range(8):
            flipped = bytearray(sealed)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptValueError):
                codec.open_value(b"key", bytes(flipped))
        with pytest.raises(CorruptValueError):
            codec.open_value(b"key", sealed[:position])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**63, 2**64, -(2**200), 0.1, 1e308, 5e-324, "", "é", "\x00", "\ud800",
        "\udc00x", "\ud83d\ude00", "😀", {"\ud800": 1}, [], {}, [[]], {"": {"": []}},
        {"a": [1, "x", None, False, 1.5]}, [2**64, "\ud83d\ude00", 0.1], nested(254), nested(300),
        nested(DEPTH_MAX),
    ],
    ids=lambda value: ascii(value)[:30],
)  # fmt: skip
def test_json_comes_back(value):
    again = round_trip(value)

    assert again == value
    assert type(again) is type(value)


def test_the_sign_of_zero_survives():
    assert math.copysign(1, round_trip(-0.0)) == -1
    assert math.copysign(1, round_trip([2**64, -0.0])[1]) == -1


def test_plain_values_take_the_fast_way():
    assert codec.encode_json({"a": [1, 0.5]}) == (b'{"a":[1,0.5]}', 0)
    assert codec.encode_json([2**64])[1] == codec.FLAG_PLAIN_JSON


def test_the_order_of_keys_survives():
    assert list(round_trip({"b": 1, "a": 2, "\ud800": 3})) == ["b", "a", "\ud800"]


def test_subclasses_and_tuples_are_written_as_what_they_derive_from():
    assert round_trip((1, (2,))) == [1, [2]]
    assert round_trip(OrderedDict(a=Level.HIGH)) == {"a": 3}


@pytest.mark.parametrize(
    "value",
    [
        b"x", {1}, Point(1), datetime.now(UTC), UUID(int=1), Colour.RED, Decimal(1), 1j, object(),
        MappingProxyType({}), orjson.Fragment(b"[1"), iter(()), {1: 2}, {None: 1}, {("a",): 1},
        {True: 1},
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_not_json_is_refused_at_any_depth(value):
    for wrapped in (value, [value], {"a": [1, {"b": value}]}, [2**64, value]):
        with pytest.raises(ValueError, match=r"JSON does not have|no JSON equivalent|no string"):
            codec.encode_json(wrapped)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_at_any_depth(number):
    for value in (number, [1, number], {"a": {"b": (number,)}}, [2**64, number]):
        with pytest.raises(ValueError, match="NaN or infinity"):
            codec.encode_json(value)


def test_depth_is_bounded_and_circles_are_found():
    circle: list = []
    circle.append(circle)

    for value in (nested(DEPTH_MAX + 1), circle, {"a": circle}):
        with pytest.raises(ValueError, match=r"nested deeper than 512 levels|circular"):
            codec.encode_json(value)


def test_shared_values_are_no_circle():
    shared = {"a": [1]}

    assert round_trip([shared] * 3) == [shared] * 3


def test_an_integer_beyond_the_digit_limit_is_refused():
    with pytest.raises(ValueError):
        codec.encode_json(10**5000)


@pytest.mark.parametrize("now_s", [-1, -(2**40), 2**32, 2**40])
def test_a_clock_that_no_row_can_hold_is_a_typed_error(tmp_path, monkeypatch, now_s):
    with memcore.open(tmp_path / "agent.memcore") as db:
        session = db.session("s")
        session.append({"role": "user", "content": "before"})
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now_s * 10**9)
            wrong = [
                lambda: session.append({"role": "user", "content": "x"}),
                lambda: session.checkpoint("here"),
                lambda: db.session("new").append({"role": "user", "content": "x"}),
                lambda: db.scope().kv("n").put("k", 1, ttl_seconds=60),
                lambda: session.state.update({"n": 1}),
                lambda: memcore.open(tmp_path / "new.memcore"),
                lambda: session.lease("me", ttl_seconds=60),
            ]
            for operation in wrong:
                with pytest.raises(memcore.StorageError, match="set the clock"):
                    operation()
            assert [item.message["content"] for item in session.items()] == ["before"]
        session.append({"role": "user", "content": "after"})
        assert db.check() == []


def test_a_boundary_types_what_reading_a_row_raises_and_names_the_row():
    nameless = codec.CorruptValueError("c", key=b"")
    for error in (ValueError("v"), KeyError("k"), struct.error("s"), IndexError(), TypeError(),
                  AttributeError("a"), RecursionError(), OverflowError(), nameless):  # fmt: skip
        refused = pytest.raises(
            memcore.CorruptValueError, match="the row under key 6b is malformed"
        )
        with refused as found, codec.decoding(b"k", "row"):
            raise error
        assert found.value.key == b"k"
        assert found.value.__cause__ is error


def test_a_boundary_lets_pass_what_is_no_matter_of_the_row():
    named = codec.CorruptValueError("c", key=b"other")
    own = memcore.StorageError("s"), memcore.InvalidItemError("i")
    for error in (OSError("o"), KeyboardInterrupt(), MemoryError(), named, *own):
        with pytest.raises(type(error)) as found, codec.decoding(b"k", "row"):
            raise error
        assert found.value is error


def test_what_a_caller_s_own_code_raises_is_the_caller_s(tmp_path):
    def fails(*_: object) -> int:
        raise IndexError("mine")

    with memcore.open(tmp_path / "agent.memcore") as db:
        session = db.session("s")
        session.append({"role": "user", "content": "x"})
        store = db.engine.store
        for run in (store.read, store.transact):
            with pytest.raises(IndexError, match="mine"):
                run(fails)
        counter = memcore.CallableCounter(fails, name="mine/1")
        with pytest.raises(IndexError, match="mine"):
            db.session("t", counter=counter).append({"role": "user", "content": "x"})


@pytest.mark.parametrize("body", [b"", b"1234567", b"123456789", b"\xff" * 8])
def test_a_counter_that_counts_nothing_is_a_damaged_row(tmp_path, body):
    with memcore.open(tmp_path / "agent.memcore") as db:
        db.session("s").append({"role": "user", "content": "x"})
        key = keys.counter(keys.Counter.SESSION)
        db.engine.store.transact(lambda txn: txn.put(key, codec.seal_value(key, body)))
        with pytest.raises(memcore.CorruptValueError, match=key.hex()):
            db.session("t").append({"role": "user", "content": "x"})


def test_a_receipt_that_memcore_never_writes_is_a_damaged_row(tmp_path):
    item = {"role": "user", "content": "x"}
    with memcore.open(tmp_path / "agent.memcore") as db:
        session = db.session("s")
        session.append(item, idempotency_key="once")
        rows = keys.session_rows(1, 1, keys.Row.REQUEST)
        store = db.engine.store
        ((key, _),) = store.read(lambda txn: list(txn.scan(rows, keys.after(rows))))
        store.transact(lambda txn: txn.put(key, codec.seal_value(key, b"short")))
        with pytest.raises(memcore.CorruptValueError, match=key.hex()):
            session.append(item, idempotency_key="once")


def test_errors_are_reached_without_importing_them():
    code = "import memcore; assert memcore.errors.MemcoreError is memcore.MemcoreError"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_json_that_is_nested_deeper_than_any_that_is_written_is_damage(depth):
    text = b'{"s":"[\\"","b":' + b'[{"c":' * (depth // 2) + b"1" + b"}]" * (depth // 2) + b"}"
    for flags in (0, codec.FLAG_PLAIN_JSON):
        with pytest.raises(CorruptValueError):
            codec.decode_json(text, flags)


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_a_string_that_never_ends_is_looked_for_once(end):
    """From each of its quotes anew, half a megabyte of them would take hours."""
    text = b"[" * 2_000 + b'"' + b'\\"' * 250_000 + end
    with pytest.raises(CorruptValueError):
        codec.decode_json(text, codec.FLAG_PLAIN_JSON)


def test_a_call_stack_that_is_too_deep_is_no_damage():
    body, flags = codec.encode_json({"a": nested(DEPTH_MAX - 1), "n": 2**70, "s": "[" * 2_000})
    assert flags == codec.FLAG_PLAIN_JSON

    def decoded(frames):
        return decoded(frames - 1) if frames else codec.decode_json(body, flags)

    with pytest.raises(RecursionError):
        decoded(sys.getrecursionlimit() * 3 // 4)


def test_a_check_names_an_item_that_is_nested_too_deep(path):
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "needle"})
    deep = b"[" * 5_000 + b"]" * 5_000
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        ((key, value),) = [row for row in txn.cursor() if row[0][0] and b"needle" in row[1]]
        flags, body = codec.open_value(key, value)
        forged = body[: body.index(b"{")] + deep
        txn.put(key, codec.seal_value(key, forged, flags | codec.FLAG_PLAIN_JSON))
    with memcore.open(path) as db:
        with pytest.raises(CorruptValueError):
            db.session("s").context()
        assert "item 1 cannot be decoded" in db.check()[0]


DEEP = b'{"role":"user","content":' + b"[" * 600 + b"]" * 600 + b"}"
"""Valid JSON, nested deeper than any that is written: somebody sealed it by hand."""


def planted(path, kind, body, *, needle=b"needle", key=None):
    """Seal a body in the place of the row that holds ``needle``; the row's key."""
    options = {} if key is None else {"key": key}
    with memcore.open(path, **options) as db:
        store = db.engine.store
        rows = store.read(lambda txn: list(txn.scan(bytes((kind,)), bytes((kind + 1,)))))
        ((row, value),) = [found for found in rows if needle in found[1]]
        flags, before = codec.open_value(row, value)
        made = codec.seal_value(row, body(before), flags)
        store.transact(lambda txn: txn.put(row, made))
    return row


def refused(row, call):
    with pytest.raises(CorruptValueError) as caught:
        call()
    assert caught.value.key == row


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["clear", "encrypted"])
@pytest.mark.parametrize("deep", [600, 2_000])
def test_an_item_that_is_nested_too_deep_is_damage_of_its_row(path, key, deep):
    options = {} if key is None else {"key": key}
    with memcore.open(path, **options) as db:
        db.session("s").extend([{"role": "user", "content": text} for text in ("first", "needle")])
    text = DEEP.replace(b"[" * 600, b"[" * deep).replace(b"]" * 600, b"]" * deep)
    row = planted(path, Kind.SESSION, lambda body: body[: body.index(b"{")] + text, key=key)
    with memcore.open(path, **options) as db:
        session = db.session("s")
        assert [item.seq for item in session.items(skip_corrupt=True)] == [1]
        for call in (
            lambda: list(session.items()),
            lambda: session.get(2),
            lambda: session.tail(2),
            lambda: session.context(budget_tokens=10**6),
        ):
            refused(row, call)
        assert [what for what in db.check() if "item 2 cannot be decoded" in what]


@pytest.mark.parametrize("created", [2**32 * 10**6, 2**64 - 1])
def test_an_item_of_a_time_that_no_row_can_hold_is_damage_of_its_row(path, tmp_path, created):
    with memcore.open(path) as db:
        db.session("s").extend([{"role": "user", "content": text} for text in ("first", "needle")])
    late = created.to_bytes(8, "little")
    row = planted(path, Kind.SESSION, lambda body: body[:8] + late + body[16:])
    with memcore.open(path) as db:
        session = db.session("s")
        refused(row, lambda: list(session.items()))
        refused(row, lambda: session.get(2))
        assert [item.seq for item in session.items(skip_corrupt=True)] == [1]
        assert [what for what in db.check() if "item 2 cannot be decoded" in what]
        session.recover()
        assert [item.seq for item in session.items(skip_corrupt=True)][:1] == [1]
        session.append({"role": "user", "content": "goes on"})
        session.fork("fork").append({"role": "user", "content": "of the fork"})
    assert memcore.salvage(path, tmp_path / "saved").items_lost == 1
    with memcore.open(tmp_path / "saved") as db:
        assert db.check() == []
        assert next(iter(db.session("s").items())).message["content"] == "first"


@pytest.mark.parametrize("key", [None, b"k" * 32], ids=["clear", "encrypted"])
@pytest.mark.parametrize("body", [DEEP, b'"needle', b"\xff\xfe", b""])
def test_check_and_salvage_decode_key_value_entries(path, tmp_path, key, body):
    options = {} if key is None else {"key": key}
    with memcore.open(path, **options) as db:
        for name, text in (("a", "first"), ("b", "needle")):
            db.scope().kv("k").put(name, text)
        db.scope().kv("k").put("bytes", b"\xff")
    row = planted(path, Kind.KV, lambda _: body, key=key)
    with memcore.open(path, **options) as db:
        entries = db.scope().kv("k")
        for call in (lambda: entries.get("b"), lambda: list(entries.scan())):
            refused(row, call)
        assert (entries.get("a"), entries.get("bytes")) == ("first", b"\xff")
        (finding,) = db.check()
        assert row.hex() in finding
        assert damage_of(finding) is Damage.KEY_VALUE
    report = memcore.salvage(path, tmp_path / "saved", **options)
    with memcore.open(tmp_path / "saved", **options) as db:
        assert dict(db.scope().kv("k").scan()) == {"a": "first", "b": "needle", "bytes": b"\xff"}
    assert ["namespace 'k'" in what for what in report.unsure] == [True]  # the version before
    with memcore.open(path, **options) as db:
        entries = db.scope().kv("k")
        entries.put("b", "again")
        assert db.check() == []


def test_a_state_that_is_nested_too_deep_is_damage_of_its_row(path, tmp_path):
    with memcore.open(path) as db:
        session = db.session("s")
        session.append({"role": "user", "content": "hello"})
        session.state.update({"field": "needle", "other": 1})
    row = planted(path, Kind.SESSION, lambda _: b"[" * 600 + b"]" * 600)
    with memcore.open(path) as db:
        session = db.session("s")
        assert session.state.get("other") == 1
        refused(row, session.state.all)
        refused(row, lambda: list(db.export()))
        assert [row.hex() in finding for finding in db.check()] == [True]
