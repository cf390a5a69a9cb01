"""Rows of items, many opened at a time, are what each is by itself."""

from __future__ import annotations

import random
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore._fast import SessionRows, leading_rows, open_items
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import FLAG_BLOB, FLAG_PLAIN_JSON, open_value, seal_rewritten, seal_value
from memcore.errors import CorruptValueError
from memcore.log import decode_item
from memcore.model import Envelope, Item, ItemKind
from memcore.rows.head import Head, Segment, head_key
from memcore.rows.item import KINDS, prepare_event, prepare_item, salted
from memcore.state import FieldNames
from memcore.tokens import get_counter
from memcore.wire.policy import POLICIES

SEED = bytes(16)
PREFIX = keys.session_rows(3, 5, Row.ITEM)
COUNTER = get_counter("bytes/4")


class Salt:
    def random(self, count: int) -> bytes:
        return bytes(range(count))


def slow(seq, key, value, tokens):
    try:
        flags, body = open_value(key, value)
        return decode_item(seq, body, flags, tokens)
    except CorruptValueError as exc:
        return str(exc)


def opened(rows, tokens, first=1):
    return open_items(rows, first, tokens, b"\x01\x00", orjson.loads, Item, KINDS, slow)


def row(seq, *, meta=None, salt=False, event=False, rewritten=False, text="hello", flags=0, **more):
    key = keys.numbered(PREFIX, seq)
    if event:
        made = prepare_event(
            "note", text, counter=COUNTER, seed=SEED, now_us=seq, meta=meta, **more
        )
    else:
        message = {"role": "user", "content": text}
        made = prepare_item(
            message, counter=COUNTER, seed=SEED, now_us=2**40 + seq, meta=meta, **more
        )
    body = salted(made.body, Salt() if salt else None)
    if rewritten:
        return key, seal_rewritten(key, body, made.flags | flags, b"origin!!")
    return key, seal_value(key, body, made.flags | flags)


def nested(depth):
    return [nested(depth - 1)] if depth else 0


shapes = st.fixed_dictionaries(
    {
        "meta": st.sampled_from((None, {"a": 1}, {"n": 2**70}, {"deep": nested(120)})),
        "request_id": st.sampled_from((None, "r1")),
        "envelope": st.sampled_from((None, Envelope(author="ann"))),
        "salt": st.booleans(),
        "event": st.booleans(),
        "rewritten": st.booleans(),
        "text": st.text(),
    }
)


@given(st.lists(shapes, max_size=12), st.randoms())
def test_rows_are_opened_as_one_by_one(wanted, dice):
    rows = [row(seq, **each) for seq, each in enumerate(wanted, 1)]
    if rows and dice.random() < 0.3:  # a byte of one is another
        at = dice.randrange(len(rows))
        key, value = rows[at]
        where = dice.randrange(len(value))
        rows[at] = (
            key,
            value[:where] + bytes((value[where] ^ 1 << dice.randrange(8),)) + value[where + 1 :],
        )
    tokens = [dice.randrange(2**40) for _ in rows]
    found = opened(rows, tokens)
    alone = [
        slow(seq, *each, count)
        for seq, (each, count) in enumerate(zip(rows, tokens, strict=True), 1)
    ]
    assert found == alone
    assert [type(each) for each in found] == [type(each) for each in alone]
    for each in found:
        if isinstance(each, Item):
            assert type(each.kind) is ItemKind
            assert type(each.created_at) is float


def test_what_is_cut_short_or_lies_about_its_length_goes_the_slow_way():
    dice = random.Random(7)
    key, value = row(1)
    _, body = open_value(key, value)
    kinds = bytes((max(KINDS) + 1,)) + body[1:]
    long = body[:4] + struct.pack("<I", 2**32 - 1) + body[8:]
    for odd in (b"", body[:15], body[:16], kinds, long, body[:16] + b"[1]", body[:16] + b"{"):
        rows = [(key, seal_value(key, odd))]
        assert opened(rows, [0]) == [slow(1, *rows[0], 0)]
    for size in range(len(value)):
        rows = [(key, value[:size])]
        assert opened(rows, [dice.randrange(9)]) == [slow(1, *rows[0], 0)]


@pytest.mark.parametrize("salt", [b"", b"saltsalt"])
@pytest.mark.parametrize(
    "envelope",
    [
        b"\0", b"\0{", b"\0[]", b"\0{}", b'\0{"meta":1}', b'\1{"meta":1,"request_id":2}',
        b'\0{"meta":1,"request_id":2}', b'\0{"meta":null,"other":null}',
        b'\0{"meta":{},"request_id":null,"envelope":{}}',
        b'\0{"meta":' + b"[" * 200 + b"]" * 200 + b',"request_id":null}', b"short"[:3],
    ],
)  # fmt: skip
def test_an_envelope_of_any_bytes_is_read_as_one_by_one(envelope, salt):
    _, body = open_value(*row(1))
    flags = bytes((body[0], 2 if salt else 0))
    size = struct.pack("<I", len(salt) + len(envelope))
    for told in (salt + envelope, salt + envelope[:-1], envelope):
        odd = flags + body[2:4] + size + body[8:16] + told + body[16:]
        key = keys.numbered(PREFIX, 1)
        rows = [(key, seal_value(key, odd))]
        assert opened(rows, [0]) == [slow(1, *rows[0], 0)]


def test_leading_rows_are_those_without_a_gap_or_a_blob():
    rows = [row(seq) for seq in (1, 2, 3)]
    assert leading_rows(rows, PREFIX, 1) == 3
    assert leading_rows(rows, PREFIX, 2) == 0
    assert leading_rows([*rows, row(5)], PREFIX, 1) == 3
    assert leading_rows([row(1), row(2, flags=FLAG_BLOB), row(3)], PREFIX, 1) == 1
    assert leading_rows([row(1), row(2, flags=FLAG_PLAIN_JSON)], PREFIX, 1) == 2
    other = keys.numbered(keys.session_rows(3, 6, Row.ITEM), 2)
    assert leading_rows([row(1), (other, b"")], PREFIX, 1) == 1
    assert leading_rows([row(1), (PREFIX + b"short", b"")], PREFIX, 1) == 1
    assert leading_rows([row(1), (keys.numbered(PREFIX, 2), b"")], PREFIX, 1) == 2
    assert leading_rows([], PREFIX, 1) == 0


def test_counts_and_types_that_do_not_belong_to_the_rows_are_refused():
    rows = [row(1)]
    with pytest.raises(ValueError, match="belong together"):
        opened(rows, [])
    with pytest.raises(ValueError, match="belong together"):
        open_items(rows, 1, [0], b"\x01", orjson.loads, Item, KINDS, slow)
    with pytest.raises(ValueError, match="belong together"):
        open_items(rows, 1, [0], b"\x01\x00", orjson.loads, dict, KINDS, slow)
    with pytest.raises(TypeError):
        opened([("key", b"value")], [0])


# --- rows of sessions, read with one cursor -------------------------------------------------------


class Cursor:
    """A cursor over rows in a dict, as LMDB's."""

    def __init__(self, rows):
        self.rows = rows
        self.at = b""

    def set_range(self, key):
        self.at = key
        return any(each >= key for each in self.rows)

    def iternext(self):
        return ((key, self.rows[key]) for key in sorted(self.rows) if key >= self.at)


def reader(rows):
    marks = b'{"type":"timed","payload":', b'{"type":"rest","payload":', b'{"mine":', b'"at":'
    policies = frozenset(name.encode() for name in POLICIES)
    return SessionRows(Cursor(rows), rows.get, None, policies, *marks)


def session_rows(*items, state=()):
    """The rows of session 5 of scope 3: its name, head, items and state."""
    head = Head(policy="gemini", counter="bytes/4", now_ms=1)
    head.segments = [Segment(5, 1, len(items))] if items else []
    head.next_seq, head.count = len(items) + 1, len(items)
    head.revision = 9
    named = keys.name_key(keys.scoped(Kind.SESSION_NAME, 3), "name")
    rows = {
        head_key(3, 5): head.pack(),
        named: keys.u64(5) + keys.pack_text("name"),
        keys.session_row(3, 5, Row.STATE, 0): bytes(16),
    }
    for packed, counter, value in state:
        field = keys.state_field(keys.session_rows(3, 5, Row.STATE), packed)
        rows[keys.numbered(field, counter)] = value
    sealed = {key: seal_value(key, body) for key, body in rows.items()}
    for seq, made in enumerate(items, 1):
        key = keys.numbered(PREFIX, seq)
        sealed[key] = seal_value(key, made.body, made.flags)
    return sealed


def item_at(at, **options):
    message = {"role": "user", "parts": [{"text": "hi"}]}
    meta = {"mine": {"first": {"at": 1}, "at": at}}
    return prepare_item(message, counter=COUNTER, seed=SEED, now_us=1, meta=meta, **options)


def event_at(kind, at, meta=None):
    payload = {"first": '"at":1}', "at": at}
    return prepare_event(kind, payload, counter=COUNTER, seed=SEED, now_us=1, meta=meta)


@pytest.mark.parametrize(
    ("item", "at"),
    [
        (item_at(5.25), 5.25),
        (item_at(-3), -3.0),
        (item_at(1e300), 1e300),
        (item_at(5.25, request_id="r"), None),  # where it stands is not as in most
        (item_at(5.25, envelope=Envelope(author='x,"meta":')), 5.25),
        (item_at("5"), None),
        (item_at(True), None),
        (item_at(None), None),
        (item_at([5]), None),
        (event_at("timed", 7.5), 7.5),
        (event_at("rest", 7.5), None),
        (event_at("other", 7.5), None),
        (event_at("other", 7.5, {"mine": {"at": 1.5}}), 1.5),
        (event_at("rest", 7.5, {"mine": {"at": 1.5}}), None),
    ],
)
def test_a_session_is_read_with_the_time_of_its_last_item(item, at):
    state = [
        (b"a\0", 1, b"1"), (b"a\0", 2, b"2"), (b"a\0\xffb\0", 1, b"[]"), (b"gone\0", 1, b"0"),
        (b"gone\0", 2, b""),
    ]  # fmt: skip
    rows = session_rows(item_at(1), item, state=state)
    head, header = rows[head_key(3, 5)], rows[keys.session_row(3, 5, Row.STATE, 0)]
    read = reader(rows)
    found = read.summary(3, 5, FieldNames(), None)
    wanted = (head, header, b'"a":2,"a\\u0000b":[]', 0, at, 9)
    assert found == (None if at is None else wanted)
    assert read.summary(3, 5, FieldNames(), (head, header, "known"))[2] == "known"
    assert read.names(b"\x04", keys.scoped(Kind.SESSION_NAME, 3), 1) == ([("name", 5)], True)
    assert read.names(b"\x04", keys.scoped(Kind.SESSION_NAME, 3), 0) == ([], False)
    assert read.summary(3, 6, FieldNames(), None) is None


def test_what_is_damaged_or_forged_is_left_to_others():
    chance = random.Random(7)
    rows = session_rows(item_at(1), item_at(2.5), state=[(b"a\0", 1, b"1"), (b"b\0", 1, b"[2]")])
    sound = reader(rows).summary(3, 5, FieldNames(), None)
    assert sound is not None
    used = [key for key in rows if key != keys.numbered(PREFIX, 1) and key[0] == Kind.SESSION]
    prefix = keys.scoped(Kind.SESSION_NAME, 3)
    named = next(key for key in rows if key.startswith(prefix))
    header = keys.session_row(3, 5, Row.STATE, 0)  # is compared, and never taken apart
    for _ in range(3_000):
        key = chance.choice([*used, named])
        body = bytearray(rows[key])
        for _ in range(chance.randint(1, 3)):
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        damaged = bytes(body[: chance.choice((len(body), chance.randrange(len(body) + 1)))])
        read = reader({**rows, key: damaged})
        if damaged != rows[key] and key not in (header, named):
            assert read.summary(3, 5, FieldNames(), None) is None
        if damaged != rows[key] and key == named:
            assert read.names(prefix, prefix, 9) == ([], False)
        forged = seal_value(key, damaged[10:])
        read = reader({**rows, key: forged})
        found = read.summary(3, 5, FieldNames(), None)
        if key == head_key(3, 5) and found is not None:
            assert Head.unpack(key, forged).revision == found[-1]
        assert found is None or (type(found[2]), type(found[4])) == (bytes, float)
        for name, number in read.names(prefix, prefix, 9)[0] if key == named else ():
            assert forged[18:] == keys.pack_text(name)
            assert forged[10:18] == keys.u64(number)
