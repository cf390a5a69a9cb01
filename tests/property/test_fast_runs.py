"""Runs of atoms: the extension against their definition in plain Python, byte for byte."""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterator
from itertools import groupby
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore._fast import pack_runs, unpack_run
from strategies import no_deadline

RUN_MIN, UNIT_MIN, UNIT_MAX, TEXT_CHARS_MAX = 16, 512, 4096, 16
STOP = re.compile(rb"[\x00-\x07][\x00-\x03]", re.DOTALL)
"""Of the marks of two values: the first one ends a unit."""
TAGS: dict[type, int] = {type(None): 0, bool: 1, float: 3, int: 4, str: 5}
NUMBERS = frozenset((float, bool, type(None)))
ITEM_BYTES = {"B": 1, "H": 2, "I": 4, "q": 8, "d": 8}
NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_DEAD_BEEF))[0]

# --- the definition -------------------------------------------------------------------------------


def packed(value: list[Any], *, numbers: bool, finite: bool) -> list[tuple[int, int, bytes]]:
    kinds = NUMBERS if numbers else frozenset(TAGS)
    found, at = [], 0
    for is_run, each in groupby(value, lambda each: is_short(each, kinds)):
        segment = list(each)
        made = runs(segment, numbers, finite) if is_run and len(segment) >= RUN_MIN else None
        found += [(at + start, at + stop, content) for start, stop, content in made or ()]
        at += len(segment)
    return found


def is_short(value: Any, kinds: frozenset[type]) -> bool:
    kind = type(value)
    return kind in kinds and (kind is not str or len(value) <= TEXT_CHARS_MAX)


def runs(segment: list[Any], numbers: bool, finite: bool) -> list[tuple[int, int, bytes]] | None:
    there = set(map(type, segment))
    floats = [x for x in segment if type(x) is float]
    if finite and not all(map(isfinite, floats)):
        return None
    if numbers and any(map(float.is_integer, floats)):
        return None
    form = "d" if there == {float} else "q" if there == {int} else "m"
    try:
        if form == "m":
            marks = bytes(map(mark, segment))
            return [(a, b, pack_mixed(segment[a:b])) for a, b in stops(marks)]
        body = little(array(form, segment))
    except (OverflowError, UnicodeEncodeError):
        return None  # an integer of more than 64 bits, a lone surrogate
    mixed = 0
    for at in range(8):
        mixed ^= int.from_bytes(body[at::8], "little")
    pieces = [(a, b, body[8 * a : 8 * b]) for a, b in stops(mixed.to_bytes(len(segment), "little"))]
    return [(a, b, b"d" + piece if form == "d" else narrowed(piece)) for a, b, piece in pieces]


def stops(marks: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(marks):
        latest = min(start + UNIT_MAX, len(marks))
        found = STOP.search(marks, start + UNIT_MIN, latest)
        stop = latest if found is None else found.start() + 1
        yield start, stop
        start = stop


def little(numbers: array[Any]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def narrowed(body: bytes) -> bytes:
    used = 8
    while used and not body[used - 1 :: 8].strip(b"\0"):
        used -= 1
    form, width = next((form, width) for form, width in ITEM_BYTES.items() if used <= width)
    if width == 8:
        return b"q" + body
    narrow = bytearray(len(body) // 8 * width)
    for at in range(width):
        narrow[at::width] = body[at::8]
    return form.encode() + bytes(narrow)


def mark(value: Any) -> int:
    if type(value) is float:
        return hash(value) & 0xFF if value == value else 0  # noqa: PLR0124 - a NaN's differs
    return len(value) if type(value) is str else 0 if value is None else value & 0xFF


def pack_mixed(values: list[Any]) -> bytes:
    tags = bytes(2 if value is True else TAGS[type(value)] for value in values)
    doubles = array("d", (value for value in values if type(value) is float))
    integers = array("q", (value for value in values if type(value) is int))
    texts = [value.encode() for value in values if type(value) is str]
    parts = (len(values).to_bytes(4, "little"), tags, little(doubles), little(integers))
    return b"".join((b"m", *parts, bytes(map(len, texts)), *texts))


# --- what is compared -----------------------------------------------------------------------------


class Number(float):
    """A subclass, which no run holds."""


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**66), 2**66),
    st.integers(0, 300),
    st.floats(),
    st.sampled_from((0.0, -0.0, 1.0, NAN, float("inf"), 2**63, -(2**63) - 1)),
    st.text(max_size=18),
    st.sampled_from(("", "\ud800", "\U0001f600" * 16, "a\0b")),
    st.binary(max_size=3),
    st.builds(Number, st.floats()),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=9))
lists = st.one_of(
    st.lists(atoms, max_size=90),
    st.lists(plain, min_size=16, max_size=90),
    st.lists(st.floats()),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.integers(0, 2**33)),
    st.builds(lambda each, times: each * times, st.lists(plain, max_size=40), st.integers(0, 300)),
    st.builds(lambda each, times: each * times, st.lists(st.floats()), st.integers(0, 300)),
    st.builds(lambda a, b: list(range(a, b)), st.integers(-9, 9), st.integers(0, 9999)),
)


def bits(value: list[Any]) -> list[Any]:
    return [(type(x), struct.pack("<d", x) if isinstance(x, float) else x) for x in value]


@no_deadline
@given(lists, st.booleans(), st.booleans())
def test_runs_are_packed_as_they_are_defined(value: list[Any], numbers: bool, finite: bool) -> None:
    found = pack_runs(value, numbers, finite)
    assert found == packed(value, numbers=numbers, finite=finite)
    for start, stop, content in found:
        assert bits(unpack_run(content)) == bits(value[start:stop])


@no_deadline
@given(st.binary(max_size=40) | st.builds(lambda form, rest: form + rest, st.sampled_from(
    (b"m", b"d", b"q", b"B", b"H", b"I", b"m\2\0\0\0")), st.binary(max_size=40)))  # fmt: skip
def test_any_bytes_are_a_run_or_none(content: bytes) -> None:
    try:
        values = unpack_run(content)
    except ValueError:
        return
    if content[:1] == b"m":
        assert len(values) == int.from_bytes(content[1:5], "little")
    else:
        assert len(values) * ITEM_BYTES[chr(content[0])] == len(content) - 1


@pytest.mark.parametrize("content", [b"", b"x", b"d1234567", b"Habc", b"m", b"m\1\0\0\0",
                                     b"m\xff\xff\xff\xff", b"m\1\0\0\0\6", b"m\1\0\0\0\5\1",
                                     b"m\1\0\0\0\5\1\xff", b"m\0\0\0\0x"])  # fmt: skip
def test_what_is_no_run_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_run(content)
