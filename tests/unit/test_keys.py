"""Keys: the bytes are the order."""

from __future__ import annotations

import hashlib

import pytest

from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.limits import KEY_BYTES_MAX, KV_KEY_BYTES_MAX

HOSTILE = [
    "\x00",
    "a",
    "a\x00",
    "a\x00\x00",
    "a\x00b",
    "a\x01",
    "ab",
    "é",
    "e\u0301",
    "\ud800",
    "\ue000",
]
HOSTILE += ["\ufffd", "😀", "\udbff\udfff", "x" * 5000]


@pytest.mark.parametrize("text", ["", *HOSTILE])
def test_packed_text_comes_back(text):
    assert keys.unpack_text(keys.pack_text(text)) == text


def test_packed_text_sorts_as_text():
    assert sorted(HOSTILE, key=keys.pack_text) == sorted(HOSTILE)


def test_known_bytes():
    assert keys.pack_text("a\x00b") == b"a\x00\xffb\x00"
    assert keys.session_row(1, 2, Row.ITEM, 3).hex() == (
        "0500000000000000010000000000000002030000000000000003"
    )
    assert keys.kv_prefix(1, 2).hex() == "0b00000000000000010000000000000002"
    assert keys.expiry_row(1, b"k").hex() == "0c00000000000000016b"
    assert keys.counter(keys.Counter.SESSION).hex() == "0102"
    assert keys.blob_chunk(1, b"s" * 17, 2).hex() == "070000000000000001" + "73" * 17 + "00000002"


def test_several_texts_come_back():
    packed = b"".join(map(keys.pack_text, HOSTILE))

    assert keys.unpack_texts(packed) == tuple(HOSTILE)
    assert keys.unpack_texts(b"") == ()
    assert keys.unpack_texts(keys.pack_text("") * 2) == ("", "")


def test_session_rows_split():
    key = keys.session_row(2**64 - 1, 7, Row.INDEX, 2**63)

    assert keys.split_session_row(key) == (2**64 - 1, 7, Row.INDEX, 2**63)
    assert key.startswith(keys.session_prefix(2**64 - 1, 7))


def test_scoped_and_expiry_rows_split():
    assert keys.split_scoped(keys.scoped(Kind.BLOB, 9, b"a", b"b")) == (9, b"ab")
    assert keys.split_expiry_row(keys.expiry_row(9, b"ab")) == (9, b"ab")


def test_a_long_name_becomes_a_digest_behind_all_others():
    prefix = keys.scoped(Kind.SESSION_NAME, 1)
    long = keys.name_key(prefix, "x" * 5000)

    assert long == prefix + b"\xff" + hashlib.blake2b(b"x" * 5000 + b"\0", digest_size=32).digest()
    assert long > keys.name_key(prefix, "\U0010ffff" * 100)


@pytest.mark.parametrize("length", range(495, 515))
def test_a_name_key_always_fits(length):
    assert len(keys.name_key(b"p" * 9, "x" * length)) <= KEY_BYTES_MAX


def test_a_name_fits_up_to_the_last_byte():
    fits = "x" * (KEY_BYTES_MAX - 9 - 1)

    assert keys.name_key(b"p" * 9, fits).endswith(b"x\x00")
    assert len(keys.name_key(b"p" * 9, fits + "x")) == 9 + 1 + 32


def test_names_are_told_apart_at_their_border():
    assert keys.name_key(b"p", "ab", "c") != keys.name_key(b"p", "a", "bc")
    assert keys.name_key(b"p", "a" * 600, "c") != keys.name_key(b"p", "a" * 599, "ac")


def test_the_longest_entry_has_room_for_its_expiry_row():
    key = keys.kv_prefix(1, 1) + b"k" * KV_KEY_BYTES_MAX

    assert len(keys.expiry_row(2**63, key)) <= KEY_BYTES_MAX


@pytest.mark.parametrize("prefix", [b"a", b"a\xff", b"a\xff\xff", b"\x00"])
def test_after_is_the_first_key_behind_a_prefix(prefix):
    stop = keys.after(prefix)

    assert prefix + b"\xff" * 600 < stop
    assert not stop.startswith(prefix)
    assert stop == prefix.rstrip(b"\xff")[:-1] + bytes((prefix.rstrip(b"\xff")[-1] + 1,))


@pytest.mark.parametrize("text", ["", "a", "a\x00", "é"])
def test_text_prefix_starts_every_longer_text(text):
    for tail in ("", "\x00", "a", "\U0010ffff"):
        assert keys.pack_text(text + tail).startswith(keys.text_prefix(text))
    assert not keys.pack_text("b" + text).startswith(keys.text_prefix(text or "c"))


def test_behind_a_key_is_the_next_one():
    assert keys.behind(b"a\x00") == b"a\x00\x00"
    full = b"a" * (KEY_BYTES_MAX - 1) + b"\x00"
    assert keys.behind(full) == full[:-1] + b"\x01"
    assert keys.behind(b"a" + b"\xff" * (KEY_BYTES_MAX - 1)) == b"b"
