"""Rows of items, many opened at a time, are what each is by itself."""

from __future__ import annotations

import random
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from memcore._fast import leading_rows, open_items
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import FLAG_BLOB, FLAG_PLAIN_JSON, open_value, seal_rewritten, seal_value
from memcore.errors import CorruptValueError
from memcore.log import decode_item
from memcore.model import Item, ItemKind
from memcore.rows.item import KINDS, prepare_event, prepare_item, salted
from memcore.tokens import get_counter

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
    return open_items(
        rows, first, tokens, b"\x01\x00", xxh3_64_digest, orjson.loads, Item, KINDS, slow
    )


def row(seq, *, meta=None, salt=False, event=False, rewritten=False, text="hello", flags=0):
    key = keys.numbered(PREFIX, seq)
    if event:
        made = prepare_event("note", text, counter=COUNTER, seed=SEED, now_us=seq, meta=meta)
    else:
        message = {"role": "user", "content": text}
        made = prepare_item(message, counter=COUNTER, seed=SEED, now_us=2**40 + seq, meta=meta)
    body = salted(made.body, Salt() if salt else None)
    if rewritten:
        return key, seal_rewritten(key, body, made.flags | flags, b"origin!!")
    return key, seal_value(key, body, made.flags | flags)


shapes = st.fixed_dictionaries(
    {
        "meta": st.sampled_from((None, {"a": 1})),
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
        open_items(rows, 1, [0], b"\x01", xxh3_64_digest, orjson.loads, Item, KINDS, slow)
    with pytest.raises(ValueError, match="belong together"):
        open_items(rows, 1, [0], b"\x01\x00", xxh3_64_digest, orjson.loads, dict, KINDS, slow)
    with pytest.raises(TypeError):
        opened([("key", b"value")], [0])
