"""_fast.scan_json: what may be stored, and why not."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from memcore import _fast
from strategies import no_deadline

OK, NOT_FINITE, KEY, TYPE, DEPTH, SIZE, INT = range(7)
INF = float("inf")
Pair = namedtuple("Pair", "left right")  # noqa: PYI024


class Level(IntEnum):
    HIGH = 3


class Double(float):
    """Like numpy.float64: a float with code of its own."""

    def __float__(self):
        raise RuntimeError

    __eq__ = __str__ = __repr__ = __float__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Integer(int):
    def __int__(self):
        raise RuntimeError

    __index__ = __eq__ = bit_length = __abs__ = __int__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Iterates(list):  # type: ignore[type-arg]
    def __iter__(self):
        raise RuntimeError

    __len__ = __getitem__ = __iter__


class IteratesTuple(tuple):
    __slots__ = ()
    __iter__ = __len__ = __getitem__ = Iterates.__iter__


def nested(depth: int, empty: Any) -> Any:
    value = empty
    for _ in range(depth):
        value = {"x": value} if isinstance(empty, dict) else [value]
    return value


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, OK),
        (True, OK),
        ("text", OK),
        ("\ud800", OK),
        (0, OK),
        (-(2**63), OK),
        (2**64, OK),
        (-(2**200), OK),
        (1.5, OK),
        ({}, OK),
        ([], OK),
        ((1, "x"), OK),
        ({"x": [1, {"y": None}]}, OK),
        (float("nan"), NOT_FINITE),
        (INF, NOT_FINITE),
        ([1, {"x": -INF}], NOT_FINITE),
        ((INF,), NOT_FINITE),
        ({1: 2}, KEY),
        ({None: 2}, KEY),
        ({"x": {b"y": 1}}, KEY),
        (b"x", TYPE),
        ({1, 2}, TYPE),
        (1j, TYPE),
        (Decimal(1), TYPE),
        (object(), TYPE),
        ([range(3)], TYPE),
        (iter([]), TYPE),
    ],
    ids=repr,
)
def test_a_value(value, code):
    assert _fast.scan_json(value) == code


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (strategies.Role.USER, OK),
        (strategies.HostileStr("x"), OK),
        ({strategies.HostileStr("x"): 1}, OK),
        (Level.HIGH, OK),
        (Integer(2**100), OK),
        (Integer(10**5000), INT),
        (Double(1.5), OK),
        (Double("nan"), NOT_FINITE),
        (Double("inf"), NOT_FINITE),
        (OrderedDict(x=1), OK),
        (strategies.HostileDict(x=INF), NOT_FINITE),
        (Iterates([1, INF]), NOT_FINITE),
        (Iterates([1]), OK),
        (IteratesTuple((1, b"x")), TYPE),
        (Pair(1, 2), OK),
        (Enum("Color", "RED")["RED"], TYPE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_count_as_what_they_derive_from(value, code):
    assert _fast.scan_json(value) == code
    assert _fast.scan_json([value]) == code


@pytest.mark.parametrize("empty", [[], {}], ids=["lists", "dicts"])
def test_nesting_is_bounded(empty):
    assert _fast.scan_json(nested(511, empty)) == OK
    assert _fast.scan_json(nested(512, empty)) == DEPTH
    assert _fast.scan_json(nested(100_000, empty)) == DEPTH


def test_a_scalar_at_the_bottom_adds_no_depth():
    assert _fast.scan_json(nested(512, 1)) == OK
    assert _fast.scan_json(nested(512, INF)) == NOT_FINITE
    assert _fast.scan_json(nested(512, b"")) == TYPE


def test_circular_values_are_found():
    ring: list[Any] = []
    ring.append(ring)
    assert _fast.scan_json(ring) == DEPTH
    item: dict[str, Any] = {"x": 1}
    item["self"] = (item,)
    assert _fast.scan_json(item) == DEPTH
    wide: list[Any] = []
    wide += [wide] * 1000
    assert _fast.scan_json(wide) == DEPTH


@pytest.mark.long
def test_what_is_small_in_memory_and_huge_as_text_is_found():
    value: Any = "x"
    for _ in range(30):
        value = [value, value]
    assert _fast.scan_json(value) == SIZE
    assert _fast.scan_json([0] * 100_000) == OK


@pytest.mark.parametrize("sign", [1, -1])
def test_an_accepted_integer_can_be_written(sign):
    most = sign * (2**14_283 - 1)
    assert _fast.scan_json(most) == OK
    assert json.loads(json.dumps(most)) == most
    assert _fast.scan_json(sign * 10**4300) == INT


@no_deadline
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_it_accepts_what_reads_back_as_it_was_written(value):
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except ValueError:
        same = False
    assert (_fast.scan_json(value) == OK) == same


@no_deadline
@given(strategies.hostile_items)
def test_it_judges_anything(item):
    assert 0 <= _fast.scan_json(item) <= INT
