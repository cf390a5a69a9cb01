"""Rests of lines beside their items: put together in C, they are the lines again."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memcore._fast import whole
from memcore.adapters.lines import rest_of

texts = st.sampled_from(("", "$", "a", "b", "role", "user", "a longer text"))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-9, 2**70), st.floats(), texts)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=4)


def same(one: Any, other: Any) -> bool:
    """Equal, with types, and NaN equal to itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(objects, st.data())
def test_a_line_comes_back(line, data) -> None:
    parts = [part for part in line.values() if isinstance(part, dict | list | str) and part]
    finite = [part for part in parts if "NaN" not in json.dumps(part)]
    chosen = data.draw(st.lists(st.sampled_from(finite), max_size=3)) if finite else []
    item = {"role": "user", "content": [{"type": "text", "text": part} for part in chosen]}
    rest = rest_of(line, item)
    assert same(whole(rest, item), line)
    stored = json.loads(json.dumps(rest, allow_nan=False))
    assert same(whole(stored, json.loads(json.dumps(item))), line)


@given(values, values)
def test_any_rest_beside_any_item_is_some_value(rest, item) -> None:
    json.dumps(whole(rest, item))


def test_references_that_lead_nowhere_are_none() -> None:
    item = {"a": [1, {"b": "x"}]}
    assert whole({"$": ["a", 1, "b"]}, item) == "x"
    for path in (["a", 9], ["a", "b"], ["c"], ["a", 0, 0], [[]], [{}], [None]):
        assert whole({"v": {"$": path}}, item) == {"v": None}
    assert whole({"$": []}, item) == item
    for odd in ("no number", True, 7, "inf"):
        assert isinstance(whole({"$": odd}, item), float | None)
    assert whole({"$": {"$": ["a"]}}, item) == {"$": ["a"]}
