"""Which objects a graph store copies and compares, and which it leaves to the serialiser."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pytest

import memcore
from memcore.graph import JsonCoder, NewCheckpoint
from memcore.graph.decode import Cache, classify

pydantic = pytest.importorskip("pydantic")
OPAQUE, OBJECT = 0, 2


@dataclass(slots=True)
class Slotted:
    x: int = 1


@dataclass(slots=True)
class Longer(Slotted):
    y: int = 2


class Overlaid(Slotted):
    """What the base keeps in a slot is behind foreign code."""

    __slots__ = ()

    @property
    def x(self) -> int:
        raise AssertionError

    @x.setter
    def x(self, value: int) -> None:
        """Taken."""


@dataclass
class Generator(random.Random):
    """The state of its base is C's."""

    x: int = 1


@dataclass
class Owner:
    """Closes what it holds when it goes."""

    handle: int = 1

    def __del__(self) -> None:
        """Closed."""


class Given(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    a: int = 1

    @pydantic.model_serializer(mode="wrap")
    def given(self, dump: Any) -> Any:
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}


class Model(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    a: int = 1


@pytest.mark.parametrize("kind", [Overlaid, Generator, Owner, partial])
def test_what_cannot_be_copied_whole_is_left_to_the_serialiser(kind: type) -> None:
    assert classify(kind)[0] == OPAQUE


@pytest.mark.parametrize("kind", [Slotted, Longer, Model, Given])
def test_what_can_is_copied(kind: type) -> None:
    assert classify(kind)[0] == OBJECT
    trees = Cache().trees
    value = kind()
    copy = trees.copy([value])
    assert copy == [value]
    assert copy[0] is not value
    assert trees.same(copy, [value])


def test_a_root_model_is_copied_as_it_is_or_not_at_all() -> None:
    trees = Cache().trees
    value = pydantic.RootModel[list[int]]([1])
    copy = trees.copy(value)
    assert copy is trees.opaque or vars(copy) == vars(value)


def test_models_that_store_what_was_given_differ_if_other_fields_were() -> None:
    trees = Cache().trees
    assert not trees.same(trees.copy(Given(a=1)), Given())
    assert trees.same(trees.copy(Model(a=1)), Model())  # stored alike


class Naming(JsonCoder):
    """Stores an object by the name of its class, which it finds in its module when it reads."""

    __slots__ = ()

    def encode(self, value: Any) -> Any:
        kind, content = super().encode(asdict(value) if isinstance(value, Slotted) else value)
        return f"{type(value).__name__}:{kind}", content

    def decode(self, typed: Any) -> Any:
        name, _, kind = typed[0].rpartition(":")
        value = super().decode((kind, typed[1]))
        return getattr(sys.modules[__name__], name)(**value) if name == "Slotted" else value


def test_values_are_of_the_classes_that_their_modules_have_now(
    open_db: Callable[..., memcore.Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's cell that defines a class is run again, or a module loaded anew."""
    graph, coder = open_db(durability="none").scope().graph, Naming()
    body = {"channel_versions": {"c": "1"}}
    graph.put("t", "", NewCheckpoint("1", None, body, {}, {"c": ("1", [Slotted(7)])}), coder)

    def value() -> Any:
        found = graph.get("t", "", None, coder)
        return None if found is None else found.values["c"]

    assert value() == [Slotted(7)]

    @dataclass
    class Anew:
        x: int
        y: int = 2

    Anew.__name__, Anew.__module__ = "Slotted", __name__
    monkeypatch.setattr(sys.modules[__name__], "Slotted", Anew)
    for _ in range(2):
        assert value() == [Anew(7)]
