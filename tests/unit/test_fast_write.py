"""Rows made in the extension are byte for byte what the format says."""

from __future__ import annotations

import random
import struct
import threading

import pytest
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from memcore._fast import (
    AppendingTxn,
    CacheFields,
    HeadFields,
    Ledger,
    PreparedFields,
    RecordingTxn,
    WriteBatch,
    WriteRequest,
    encode_plain,
    pack_facts,
    redo_record,
    seal_value,
)
from memcore.codec.values import ORJSON_OPTIONS
from memcore.model import Receipt

SEED = bytes(range(16))


def sealed(key: bytes, body: bytes, flags: int) -> bytes:
    head = bytes((1, flags))
    return head + xxh3_64_digest(struct.pack("<H", len(key)) + head + key + body) + body


class Rows:
    """A raw transaction that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def id(self) -> int:
        return 1

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def delete(self, key: bytes) -> bool:
        return self.rows.pop(key, None) is not None


class Txn(RecordingTxn):
    __slots__ = ()

    def ended(self, *_: object) -> None:
        raise KeyError("ended")

    def _refuse_key(self, key: bytes) -> None:
        raise KeyError(key)


@pytest.mark.parametrize("size", [0, 1, 7, 16, 240, 241, 5000])
@pytest.mark.parametrize("keyed", [0, 1, 9, 255, 256, 511])
def test_a_value_is_sealed_as_the_format_says(size, keyed) -> None:
    chance = random.Random(size * 1000 + keyed)
    key, body = chance.randbytes(keyed), chance.randbytes(size)
    for flags in (0, 1, 0x1F, 255):
        assert seal_value(key, body, flags) == sealed(key, body, flags)


def test_what_is_no_key_or_flag_is_refused() -> None:
    for key, body, flags in ((b"k" * 512, b"", 0), (b"k", b"", 256), (b"k", b"", -1)):
        with pytest.raises(ValueError, match="at most 511"):
            seal_value(key, body, flags)
    for key, body in (("k", b""), (b"k", "x"), (None, b""), (b"k", None), (bytearray(b"k"), b"")):
        with pytest.raises(TypeError):
            seal_value(key, body)


@pytest.mark.parametrize("flags", [0, 2, 0x10])
def test_an_item_is_put_with_its_chain_and_its_record(flags) -> None:
    chance = random.Random(flags)
    for _ in range(50):
        txn, rows = Txn(raw := Rows(), recording=True), chance.randbytes(chance.randrange(1, 30))
        rows = b"\x05" + rows
        seq, chain = chance.getrandbits(63), chance.getrandbits(64)
        body, facts = chance.randbytes(chance.randrange(16, 900)), chance.randbytes(14)
        tokens, created, tag = (chance.getrandbits(n) for n in (32, 32, 16))
        found = _put(
            txn, rows, tag, (seq, chain),
            _made(body=body, facts=facts, flags=flags, tokens=tokens, created_s=created),
        )  # fmt: skip
        key = rows + struct.pack(">Q", seq)
        value = sealed(key, body, flags)
        check = value[10:18] if flags & 0x10 else value[2:10]
        after = xxh3_64_intdigest(struct.pack("<Q", chain) + check)
        assert found == (after, struct.pack("<IIQH", tokens, created, after, tag) + facts)
        assert raw.rows == {key: value}
        assert txn.ops == {key: value}


def test_a_rewritten_row_without_the_checksum_before_it_is_refused() -> None:
    txn = Txn(raw := Rows(), recording=True)
    with pytest.raises(ValueError, match="begins with the checksum"):
        _put(txn, b"\x05", 0, (1, 0), _made(body=b"short", flags=0x10))
    assert not raw.rows


@pytest.mark.parametrize("recording", [True, False])
def test_a_record_holds_the_last_operation_of_each_key_and_its_size(recording) -> None:
    chance = random.Random(1)
    txn, model, puts = Txn(raw := Rows(), recording=recording), {}, 0
    for _ in range(400):
        key = b"\x05" + bytes((chance.randrange(20),))
        if chance.random() < 0.3:
            assert txn.delete(key) == (model.get(key) is not None)
            if key in model:
                model[key] = None
        else:
            model[key] = chance.randbytes(chance.randrange(50))
            puts += len(model[key])
            txn.put(key, model[key])
        if recording:
            assert txn.size == len(redo_record(txn.ops, 1, 2, 3)) - 28
    assert raw.rows == {key: value for key, value in model.items() if value is not None}
    assert txn.dirty
    if recording:
        assert txn.ops == model
    else:
        assert (txn.ops, txn.size) == ({}, puts)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"", b"", KeyError),
        (b"\0k", b"", KeyError),
        (b"k" * 512, b"", KeyError),
        ("k", b"", TypeError),
        (b"k", "v", TypeError),
        (b"k", None, TypeError),
        (b"k", memoryview(b"v"), TypeError),
    ],
)
def test_what_is_no_row_is_refused_and_not_put(key, value, error) -> None:
    txn = Txn(raw := Rows(), recording=True)
    with pytest.raises(error):
        txn.put(key, value)
    assert not raw.rows
    assert not txn.dirty
    # A closure that swallows this has not done what it was to do.
    assert (txn.failed is not None) == (error is TypeError)


def test_what_lmdb_refuses_is_kept_as_the_failure() -> None:
    class Full(Rows):
        def put(self, key, value):
            raise OSError("full")

        delete = put

    txn = Txn(Full(), recording=True)
    txn.raw_delete = lambda key: txn.raw_put(key, b"")
    for refused in (lambda: txn.put(b"k", b"v"), lambda: txn.delete(b"k")):
        txn.failed = None
        with pytest.raises(OSError, match="full") as caught:
            refused()
        assert txn.failed is caught.value
        assert not txn.dirty
        assert not txn.ops


@pytest.mark.parametrize(
    "ops",
    [{"k": b""}, {b"k": "v"}, {b"k": 1}, {None: b""}, {b"k": bytearray(b"v")}],
)
def test_operations_of_other_types_are_not_encoded(ops) -> None:
    with pytest.raises(TypeError):
        redo_record(ops, 0, 0, 0)


@pytest.mark.parametrize(
    ("item", "is_plain"),
    [
        ({"role": "user", "content": "hé 😀"}, True),
        ({"role": "user", "content": [1, 2.5, None, True, {"a": []}]}, True),
        ({"role": "user", "content": float("nan")}, False),
        ({"role": "user", 1: "x"}, False),
        ({"role": "user", "content": object()}, False),
        ({"role": "user", "content": 2**70}, False),
        ({"role": "user", "content": "\ud800"}, False),
        ({"role": "assistant", "tool_calls": [{"id": str(i)} for i in range(70_000)]}, False),
    ],
)
def test_an_item_that_one_library_can_write_is_encoded_at_once(item, is_plain) -> None:
    import orjson

    found = encode_plain(item, SEED, ORJSON_OPTIONS)
    if is_plain:
        assert found == (pack_facts(item, SEED), orjson.dumps(item))
    else:
        assert found is None


def test_calls_that_wait_keep_their_order_when_they_are_taken_back() -> None:
    calls = [WriteRequest(print) for _ in range(5)]
    batch = WriteBatch(calls[0])
    batch.calls.extend(calls[1:4])
    batch.back.append(calls[4])
    batch.take_back(2)
    assert (batch.calls, batch.back) == (calls[:2], calls[2:])
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match="no such call"):
            batch.take_back(wrong)


def test_an_item_made_ready_takes_only_what_its_row_holds() -> None:
    made = PreparedFields({"a": 1}, b"facts", 3, b"body", 0, 7, "exact", was=9)
    assert (made.message, made.payload, made.held, made.staged, made.was) == (
        {"a": 1}, None, None, None, 9,
    )  # fmt: skip
    for wrong in ({"facts": None}, {"body": "x"}, {"payload": "x"}, {"tokens": "x"}):
        given = {
            "message": {}, "facts": b"", "tokens": 1, "body": b"", "flags": 0, "created_s": 1,
            "counter": "exact",
        } | wrong  # fmt: skip
        with pytest.raises(TypeError):
            PreparedFields(**given)


class Working(AppendingTxn):
    """What a session transaction has in Python, as far as an append goes there."""

    receipt_type = Receipt

    def _append_records(self, first, records):
        self.began = (first, list(records))
        return first, b"page", b"".join(records)


class _Cached(CacheFields):
    def __init__(self) -> None:
        self.lock, self.scope, self.session = threading.Lock(), 1, 2
        self.head_key, self.tombstone, self.item_rows = b"head", b"tomb", b"rows"
        self.older, self.tag = [], 7


class _Head(HeadFields):
    def __init__(self) -> None:
        self.next_seq, self.policy, self.counter, self.segments = 1, "gemini", "c", []

    def _begin_segment(self, session, lo, hi) -> None:
        self.segments.append((session, lo, hi))

    def older_segments(self, txn, scope):
        return []


def _made(**changed):
    fields = {
        "message": {}, "facts": pack_facts({"role": "user", "content": "x"}, SEED), "tokens": 3,
        "body": b"body", "flags": 0, "created_s": 1, "counter": "c",
    } | changed  # fmt: skip
    return PreparedFields(**fields)


def _working(txn, log):
    class Opened(Working):
        def _open(self, new_head, base):
            self.head, self.base = _Head(), (0, Ledger(), 0, 0)

    return Opened(txn, log, 0)


def test_an_append_that_raises_leaves_nothing_bound() -> None:
    """The draft may be a neighbour's of the same batch, whose change is committed."""
    draft = _working(Txn(Rows(), recording=True), _Cached())
    draft.append([_made()], orphans="raise")
    before = len(draft.overlay), draft.overlay.tokens, len(draft.waiting)
    with pytest.raises(ValueError, match="facts"):
        draft.append([_made(), _made(), _made(facts=b"\1")], orphans="raise")
    assert (len(draft.overlay), draft.overlay.tokens, len(draft.waiting)) == before
    assert draft.append([_made()], orphans="raise") == 2


def _put(txn, rows, tag, at, item):
    """Write an item that waits; the prefix hash behind it and its index record."""
    log = _Cached()
    log.item_rows, log.tag = rows, tag
    working = _working(txn, log)
    seq, working.head.chain = at
    working.waiting.append((seq, item))
    working.flush()
    ((record,),) = (working.began[1],)
    return working.head.chain, record


@pytest.mark.parametrize("wrong", [{"created_s": 2**32}, {"created_s": -1}])
def test_an_item_whose_numbers_do_not_fit_is_not_written(wrong) -> None:
    txn = Txn(raw := Rows(), recording=True)
    working = _working(txn, _Cached())
    working.append([_made(**wrong)], orphans="keep")
    with pytest.raises(ValueError, match="32 bits"):
        working.flush()
    assert not raw.rows


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"base": (0, Ledger())}, TypeError),
        ({"base": None}, TypeError),
        ({"base": (0, "ledger", 0, 0)}, TypeError),
    ],
)
def test_a_session_without_its_ledger_raises(wrong, error) -> None:
    working = _working(Txn(Rows(), recording=True), _Cached())
    working.append([_made()], orphans="keep")
    for name, value in wrong.items():
        setattr(working, name, value)
    with pytest.raises(error):
        working.finish(now_ms=1)
        working.take_over()


def _append_none(working):
    working.append([None], orphans="keep")


def _without(name):
    def use(working):
        setattr(working, name, None)
        working.append([_made()], orphans="keep")
        working.finish(now_ms=1)
        working.receipt(1)

    return use


def _with(name, value):
    def use(working):
        working.append([_made()], orphans="keep")
        setattr(working, name, value)
        working.flush()

    return use


def _short_segment(working):
    working.head.segments = [(1, 2)]
    working.receipt(0)


@pytest.mark.parametrize(
    "use",
    [
        _append_none, _short_segment, _without("head"), _without("overlay"), _without("log"),
        _without("waiting"), _with("waiting", [5]), _with("waiting", [()]), _with("tail", (1,)),
        _with("waiting", None), _with("waiting", [(2, None)]),
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_session_raises(use) -> None:
    working = _working(Txn(Rows(), recording=True), _Cached())
    working.append([_made()], orphans="keep")
    working.flush()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        use(working)
    blank = Working.__new__(Working)
    for call in (lambda: blank.append([], orphans="keep"), lambda: blank.receipt(0), blank.flush):
        with pytest.raises((TypeError, AttributeError)):
            call()


def test_an_item_without_a_body_is_not_written() -> None:
    for name in ("body", "facts"):
        working, item = _working(Txn(raw := Rows(), recording=True), _Cached()), _made()
        working.append([item], orphans="keep")
        setattr(item, name, None)
        with pytest.raises(TypeError):
            working.flush()
        assert not raw.rows


def test_what_is_committed_becomes_the_cache_once() -> None:
    txn, log = Txn(raw := Rows(), recording=True), _Cached()
    working = _working(txn, log)
    assert working.append([_made(), _made()], orphans="keep") == 1
    working.finish(now_ms=9)
    assert working.receipt(2) == (2, 1, 6, 0, 2)
    for _ in range(2):  # an interrupt may make it run again
        working.take_over()
    assert (log.head, log.head_bytes, len(log.ledger[1])) == (working.head, raw.rows[b"head"], 2)
    again = Working(txn, log, 0)
    assert again.head is not log.head
    assert again.receipt(0) == (2, 1, 6, 0, 0)
