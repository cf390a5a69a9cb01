"""Records: to callers and to ``dataclasses`` they are the dataclasses that they stand for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore import _fast
from memcore.records import record


@record(frozen=True, slots=True)
class Place:
    """A record with all that a field can have."""

    LIMIT: ClassVar[int] = 100

    x: int
    y: int = 2
    names: list[str] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False)
    note: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.x > self.LIMIT:
            msg = "too far"
            raise ValueError(msg)

    def moved(self, by: int) -> Place:
        return dataclasses.replace(self, x=self.x + by)


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """What ``Place`` stands for."""

    x: int
    y: int = 2
    names: list[str] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False)
    note: str = dataclasses.field(default="", compare=False)


@record(frozen=True, slots=True, kw_only=True)
class Named:
    """A record whose fields are given by name."""

    first: str = "a"
    second: int


class Below(Place):
    """A class below a record has attributes of its own."""


FIELDS = ("x", "y", "names", "secret", "note")
VALUES = st.tuples(
    st.integers(-3, 3), st.integers(0, 2), st.lists(st.text(max_size=2), max_size=2),
    st.sampled_from(["", "s"]), st.sampled_from(["", "n"]),
)  # fmt: skip


@given(VALUES, VALUES, st.integers(0, 5))
def test_a_record_is_the_dataclass_with_its_fields(one, other, positions) -> None:
    def both(values: tuple[Any, ...]) -> tuple[Place, Model]:
        named = dict(zip(FIELDS[positions:], values[positions:], strict=True))
        return Place(*values[:positions], **named), Model(*values[:positions], **named)

    (a, model_a), (b, model_b) = both(one), both(other)
    assert repr(a) == repr(model_a).replace("Model", "Place")
    assert (a == b) == (model_a == model_b)
    assert dataclasses.asdict(a) == dataclasses.asdict(model_a)
    assert dataclasses.astuple(a) == one
    assert orjson.dumps(a) == orjson.dumps(model_a)
    for twin in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.moved(0)):
        assert twin == a
        assert dataclasses.astuple(twin) == one


def test_defaults_are_shared_and_factories_are_not() -> None:
    one, other = Place(1), Place(1)
    assert one == other
    assert one.names == []
    assert one.names is not other.names


def test_what_can_be_hashed_is_hashed_by_what_is_compared() -> None:
    assert hash(Named(second=1)) == hash(Named(first="a", second=1))
    assert len({Named(second=1), Named(second=1), Named(second=2)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Place(1))
    assert Named(second=1) != ("a", 1)
    assert Place(1) != Below(1)


def test_the_standard_library_sees_a_dataclass() -> None:
    @record(frozen=True, slots=True)
    class Fresh:
        """Nobody has asked for its fields yet."""

        x: int
        y: str = "y"

    assert dataclasses.is_dataclass(Fresh)
    assert [(each.name, each.default) for each in dataclasses.fields(Fresh(1))] == [
        ("x", dataclasses.MISSING),
        ("y", "y"),
    ]
    assert inspect.signature(Fresh) == inspect.signature(
        dataclasses.make_dataclass("Fresh", [("x", "int"), ("y", "str", "y")], frozen=True)
    )
    assert Fresh.__match_args__ == ("x", "y")
    assert Named.__match_args__ == ()
    assert list(inspect.signature(Named).parameters) == ["first", "second"]
    assert [each.name for each in dataclasses.fields(Below)] == list(FIELDS)
    match Fresh(3):
        case Fresh(x, y):
            assert (x, y) == (3, "y")


@pytest.mark.parametrize(
    ("args", "named", "told"),
    [
        ((), {}, "'x'"),
        ((1, 2, [], "", "", 6), {}, "takes 5 arguments by position, got 6"),
        ((1,), {"x": 2}, "given twice: x"),
        ((1,), {"z": 2, "w": 3}, "unknown or given twice: z, w"),
    ],
)
def test_wrong_arguments_are_named(args, named, told) -> None:
    with pytest.raises(TypeError, match=told):
        Place(*args, **named)
    with pytest.raises(TypeError):
        Model(*args, **named)


def test_a_record_by_name_takes_no_positions() -> None:
    with pytest.raises(TypeError, match="takes 0"):
        Named("a", 1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="'second'"):
        Named()  # type: ignore[call-arg]


def test_the_check_of_a_record_runs() -> None:
    with pytest.raises(ValueError, match="too far"):
        Place(101)


@pytest.mark.parametrize("of", [Place(1), Below(1)])
def test_fields_cannot_be_changed(of) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        of.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del of.x
    assert of.x == 1


def test_attributes_are_for_classes_below() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Place(1).other = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del Place(1).other  # type: ignore[attr-defined]
    below: Any = Below(1)
    below.other = 2
    assert below.other == 2
    del below.other
    assert not hasattr(below, "other")
    assert not hasattr(Place(1), "__dict__")


def test_a_record_within_itself_is_shown_once() -> None:
    names: list[Any] = []
    place = Place(1, names=names)
    names.append(place)
    assert repr(place) == "Place(x=1, y=2, names=[...], note='')"


def test_what_a_class_defines_itself_stays() -> None:
    @record(frozen=True, slots=True)
    class Own:
        """All are alike."""

        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 7, "own")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Own(1).x = 2  # type: ignore[misc]


def test_a_record_that_is_not_frozen() -> None:
    @record(slots=True)
    class Count:
        """Its fields may change; one of them it sets itself."""

        double: int = dataclasses.field(init=False)
        seen: list[int] = dataclasses.field(init=False, default_factory=list, repr=False)
        n: int = 0

        def __post_init__(self) -> None:
            self.double = 2 * self.n

    count, same = Count(1), Count(n=1)
    assert count == same
    assert (count.double, count.seen) == (2, [])
    count.n += 1
    assert repr(count) == f"{Count.__qualname__}(double=2, n=2)"
    assert count != same
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)
    with pytest.raises(AttributeError):
        count.m = 1  # type: ignore[attr-defined]
    del count.n
    assert not hasattr(count, "n")
    assert dataclasses.replace(copy.deepcopy(same), n=3) == Count(3)
    assert Count.__match_args__ == ("n",)
    assert list(inspect.signature(Count).parameters) == ["n"]
    for args, named in (((1, 2), {}), ((), {"double": 2}), ((), {"seen": []})):
        with pytest.raises(TypeError):
            Count(*args, **named)


@dataclasses.dataclass(frozen=True)
class Farther(Place):
    """A dataclass on top of a record, with a dictionary for its own field."""

    extra: int = 0


def test_a_dataclass_on_top_of_a_record_is_copied_whole() -> None:
    far = Farther(1, extra=9)
    for twin in (copy.copy(far), copy.deepcopy(far), pickle.loads(pickle.dumps(far))):
        assert (twin, twin.extra) == (far, 9)
    assert list(inspect.signature(Farther).parameters) == [*FIELDS, "extra"]


def test_what_a_dataclass_pickled_is_read() -> None:
    """Its state is a list of the values of its fields."""
    place = Place.__new__(Place)
    place.__setstate__([1, 2, ["a"], "s", "n"])  # type: ignore[attr-defined]
    assert place == Place(1, 2, ["a"], "s", "n")


def test_a_record_that_is_called_has_the_signature_of_its_call() -> None:
    @record(frozen=True, slots=True)
    class Scaled:
        """A function with a setting."""

        by: int

        def __call__(self, value: int) -> int:
            return self.by * value

    class Renamed(Scaled):
        """With a constructor of its own."""

        def __init__(self, factor: int) -> None:
            super().__init__(factor)

    assert list(inspect.signature(Scaled(2)).parameters) == ["value"]
    assert list(inspect.signature(Scaled).parameters) == ["by"]
    assert list(inspect.signature(Below).parameters) == list(FIELDS)
    assert list(inspect.signature(Renamed).parameters) == ["factor"]
    assert Renamed(3)(2) == 6


def test_fields_by_name_alone() -> None:
    @record(frozen=True, slots=True)
    class Mixed:
        """One field by position, the others by name."""

        x: int
        y: int = dataclasses.field(default=2, kw_only=True)
        z: int = dataclasses.field(kw_only=True)

    assert (Mixed(1, z=3), Mixed.__match_args__) == (Mixed(x=1, y=2, z=3), ("x",))
    assert repr(Mixed(1, z=3)).endswith("(x=1, y=2, z=3)")
    for args in ((1, 2, 3), (1,)):
        with pytest.raises(TypeError):
            Mixed(*args)


def test_records_that_are_too_deep_are_an_error() -> None:
    deep: Any = Named(second=0)
    for _ in range(100_000):
        deep = Named(second=deep)
    around = Named.__new__(Named)
    object.__setattr__(around, "first", "a")
    object.__setattr__(around, "second", around)
    for each in (deep, around):
        with pytest.raises(RecursionError):
            hash(each)
    while isinstance(deep, Named):  # so that no destructor recurses
        deep = deep.second


def test_a_record_that_is_compared_by_identity() -> None:
    @record(slots=True, eq=False)
    class Thing:
        """Two with the same fields are two."""

        n: int

    assert Thing(1) != Thing(1)
    assert len({Thing(1), Thing(1)}) == 2


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="slots"):
        record(frozen=True, slots=False)
    with pytest.raises(ValueError, match="default_factory"):

        @record(frozen=True, slots=True)
        class Shared:
            """Its instances would share a list."""

            x: list[int] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="hash="):

        @record(frozen=True, slots=True)
        class Hashed:
            """What is compared is hashed."""

            x: int = dataclasses.field(default=1, hash=False)

    with pytest.raises(TypeError, match="'y' has no default"):

        @record(frozen=True, slots=True)
        class Late:
            """No argument could be left out."""

            x: int = 1
            y: int

    with pytest.raises(TypeError, match="on top of a record"):

        @record(frozen=True, slots=True)
        class More(Place):
            """Whose fields would they be?"""

            z: int


def test_hostile_uses_of_the_methods_are_errors() -> None:
    with pytest.raises(AttributeError):
        _fast.record_init(object())
    for state in ([], [1, 2, 3, 4, 5, 6]):
        with pytest.raises(ValueError, match="each field"):
            _fast.record_setstate(Place(1), state)
    with pytest.raises(AttributeError):
        repr(Place.__new__(Place))

    class Fake:
        __record__ = "none"

    with pytest.raises(TypeError):
        _fast.record_repr(Fake())
    with pytest.raises(ValueError, match="a default and a factory"):
        _fast.RecordLayout(("x",), (), (), None, 1, 1, (), (), False)
    for arguments, positional in ((2, 0), (1, 2), (0, 1), (-1, -1)):
        with pytest.raises(ValueError, match="no more positions"):
            _fast.RecordLayout(("x",), (1,), (None,), None, arguments, positional, (), (), False)
