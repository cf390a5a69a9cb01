"""The values that memcore hands out, and its counters."""

from __future__ import annotations

import copy
import pickle

import pytest

import memcore
from messages import turns, user


def test_stored_numbers_of_kinds_never_change():
    assert {kind.name: kind.value for kind in memcore.ItemKind} == {
        "OPAQUE": 0,
        "SYSTEM": 1,
        "USER": 2,
        "ASSISTANT": 3,
        "CALL": 4,
        "RESULT": 5,
        "REASONING": 6,
        "EVENT": 7,
    }


def test_values_compare_copy_and_travel(session):
    receipt = session.extend(turns(6))
    session.compact(lambda _: "s", force=True)
    for value in (receipt, session.get(1), session.views()[0], session.context()):
        assert copy.deepcopy(value) == value
        assert pickle.loads(pickle.dumps(value)) == value


def test_values_cannot_be_changed(session):
    session.append(user())
    for value, name in ((session.get(1), "seq"), (session.context(), "tokens")):
        with pytest.raises(AttributeError):
            setattr(value, name, 7)
    with pytest.raises(AttributeError):
        session.append(user()).seq = 7


def test_an_empty_plan_says_so():
    assert memcore.Plan(1, 3, 3, 3).is_empty
    assert not memcore.Plan(1, 4, 4, 3).is_empty


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é" * 4, 2)]
)
def test_the_estimate_is_bytes_over_four_rounded_up(text, tokens):
    assert memcore.BytesEstimate().count(text) == tokens


def test_the_estimate_takes_any_text():
    assert memcore.BytesEstimate(1).count("\ud800") == 3


def test_the_tree_of_errors_has_one_root():
    kinds = [getattr(memcore, n) for n in memcore.__all__ if n.endswith(("Error", "Conflict"))]
    assert all(issubclass(kind, memcore.MemcoreError) for kind in kinds)
    assert all(
        issubclass(kind, (memcore.CallerError, memcore.StorageError, memcore.InternalError))
        for kind in kinds
        if kind is not memcore.MemcoreError
    )
