"""Typed profile: schemas, values, trust, history, consent, windows."""

from __future__ import annotations

import asyncio
import json
import typing
from dataclasses import InitVar, dataclass, field
from enum import Enum
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcore
import memcore.aio
from memcore import Source
from memcore.cli import main
from memcore.errors import (
    BlockedError,
    InvalidItemError,
    InvalidOptionError,
    NotFoundError,
    OptedOutError,
)
from memcore.memory.profile import Shape, fits, spelt
from memcore.telemetry import Sink
from messages import user

DAY = 86_400


class Plan(Enum):
    FREE = "free"
    PRO = "pro"


@dataclass
class Person:
    name: str
    age: int | None = None
    height: float = 0.0
    tags: list[str] = field(default_factory=list)
    units: Literal["km", "mi"] = "km"
    plan: Plan = Plan.FREE
    illness: str | None = field(default=None, metadata={"consent": True})


class Typed(TypedDict):
    name: str
    age: NotRequired[int]


JSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "as the user says it"},
        "age": {"type": ["integer", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "units": {"enum": ["km", "mi"]},
        "illness": {"type": "string", "x-consent": True},
    },
    "required": ["name"],
}


@pytest.fixture
def alice(db) -> Any:
    scope = db.scope(user="alice")
    scope.session("a").append(user("I am Alice, alice, ALICE: 30, 31, km, mi, free, pro."))
    return scope


SOURCE = Source("a", seqs=(1,))


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1_700_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: int) -> None:
        self.now += seconds


@pytest.fixture
def clock(db) -> Clock:
    clock = Clock()
    db.engine.now_us = lambda: clock.now * 1_000_000
    return clock


def test_a_dataclass_is_filled_with_what_is_known_and_its_defaults(db, alice) -> None:
    profile = alice.memory.profile(Person)
    with pytest.raises(NotFoundError, match="name"):
        profile.get()

    said = profile.set("name", "Alice", source=SOURCE)
    profile.set("age", 30, by="operator")
    profile.set("height", 2, by="operator")
    profile.set("tags", ["a", "b"], by="operator")
    profile.set("plan", Plan.PRO, by="operator")

    assert profile.get() == Person("Alice", 30, 2, ["a", "b"], "km", Plan.PRO)
    assert (said.text, said.by, said.subject, said.slot) == (
        'name: "Alice"', "user", "profile", "name",
    )  # fmt: skip
    assert said.attributes == {"name": "Alice"}
    assert [hit.memory.id for hit in alice.memory.search("alice")] == [said.id]
    assert db.check() == []


@pytest.mark.parametrize("schema", [Typed, JSON])
def test_other_schemas_give_a_dict_of_what_is_known(alice, schema) -> None:
    profile = alice.memory.profile(schema)
    assert profile.get() == {}
    profile.set("age", 30, by="operator")
    assert profile.get() == profile.values() == {"age": 30}
    assert profile.fields[:2] == ("name", "age")


def test_each_value_of_a_field_stays_with_the_time_in_which_it_was_true(clock, alice) -> None:
    profile = alice.memory.profile(Person)
    for age in (30, 31, 30):
        profile.set("age", age, by="operator")
        clock.advance(DAY)

    values = profile.history("age")

    assert [each.attributes["age"] for each in values] == [30, 31, 30]
    assert [each.status for each in values] == ["superseded", "superseded", "active"]
    assert [each.valid_to for each in values[:2]] == [each.valid_from for each in values[1:]]


def test_a_value_that_differs_in_case_alone_is_another_value(alice) -> None:
    profile = alice.memory.profile(Person)
    first = profile.set("name", "alice", source=SOURCE)

    again = profile.set("name", "Alice", source=SOURCE)

    assert (again.id, again.version, profile.values()) == (first.id, 2, {"name": "Alice"})
    assert [each.text for each in alice.memory.history(first.id)] == [
        'name: "alice"', 'name: "Alice"',
    ]  # fmt: skip
    weaker = profile.set("name", "ALICE", by="import")
    assert (weaker.id, profile.values()) == (first.id, {"name": "Alice"})


def test_what_a_tool_says_is_not_in_the_profile_until_it_is_promoted(alice) -> None:
    profile = alice.memory.profile(Person)
    profile.set("name", "Alice", source=SOURCE)
    planted = profile.set("name", "Mallory", by="import")
    assert (planted.status, profile.values()) == ("quarantined", {"name": "Alice"})

    alice.memory.promote(planted.id, by="support")

    assert profile.values() == {"name": "Mallory"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", None), ("name", 3), ("age", True), ("age", 3.0), ("age", "3"),
        ("height", float("nan")), ("height", float("inf")), ("tags", "a"), ("tags", [1]),
        ("tags", [["a"]]), ("units", "KM"), ("plan", "gold"), ("name", {"a": 1}),
        ("name", "a\u200bb"), ("name", "x" * 20_000),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(alice, name, value) -> None:
    profile = alice.memory.profile(Person)
    with pytest.raises(InvalidItemError):
        profile.set(name, value, by="operator")
    assert alice.memory.list() == []


@dataclass
class Nested:
    other: dict[str, int]


@dataclass
class Unknown:
    other: Missing  # noqa: F821 - that it is unknown is the point


@dataclass
class Passed:
    name: str
    extra: InitVar[int]


@dataclass
class Bare:
    names: typing.List  # noqa: UP006 - that it says nothing of its items is the point


@dataclass
class OfMany:
    names: list[()]  # type: ignore[misc]


@dataclass
class OfLists:
    name: Literal[[1]]  # type: ignore[valid-type]


@dataclass
class Unclear:
    name: str = field(default="", metadata={"consent": 1})


class Nothing(Enum):
    NONE = None


@dataclass
class OfNothing:
    name: Nothing


def of(rule: Any) -> dict[str, Any]:
    """A schema with one property."""
    return {"type": "object", "properties": {"a": rule}}


@pytest.mark.parametrize(
    "schema",
    [
        Passed, Unclear, OfNothing, Bare, OfMany, OfLists,
        of({"type": "string", "x-consent": "yes"}),
        of({"type": "array", "items": {"type": "string", "x-consent": True}}),
        of({"type": "string"}) | {"x-consent": True}, of({"type": "string"}) | {"required": [[]]},
        int, "Person", None, {}, Nested, Unknown, {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}},
        {"type": "object", "properties": {"a": {"enum": []}}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": []},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(257)}},
        {"type": "object", "properties": {1: {"type": "string"}}},
    ],
)  # fmt: skip
def test_a_schema_with_a_construct_that_is_not_known_is_refused(alice, schema) -> None:
    with pytest.raises(InvalidOptionError):
        alice.memory.profile(schema)


def test_a_field_without_consent_is_neither_stored_nor_shown(alice) -> None:
    plain = alice.memory.profile(Person)
    with pytest.raises(BlockedError, match="consent"):
        plain.set("illness", "flu", by="operator")
    allowed = alice.memory.profile(Person, consent={"illness": True})
    allowed.set("illness", "flu", by="operator")
    assert allowed.values() == {"illness": "flu"}
    assert plain.values() == {}
    assert [each.text for each in allowed.window("fact").memories] == ['illness: "flu"']
    assert plain.window("fact").count == 0
    assert plain.window("fact").memories == ()
    refused = alice.memory.profile(JSON, consent={"name": False})
    with pytest.raises(BlockedError):
        refused.set("name", "Alice", by="operator")
    for wrong in ({"nobody": True}, {"name": 1}):
        with pytest.raises(InvalidOptionError):
            alice.memory.profile(Person, consent=wrong)


def test_a_field_that_the_schema_does_not_have_is_refused(alice) -> None:
    profile = alice.memory.profile(Person)
    with pytest.raises(InvalidOptionError):
        profile.set("shoe", 3, by="operator")
    with pytest.raises(InvalidOptionError):
        profile.history("shoe")


def test_what_another_schema_stored_is_told_and_not_shown(alice) -> None:
    old = {"type": "object", "properties": {"age": {"type": "string"}}}
    alice.memory.profile(old).set("age", "thirty", by="operator")
    planted = {"subject": "profile", "slot": "units", "by": "operator"}
    alice.memory.remember("units: none", **planted)
    alice.memory.remember("height: 1", **(planted | {"slot": "height"}), attributes={"height": []})

    profile = alice.memory.profile(Person)

    assert profile.values() == {}
    assert {each.slot for each in profile.misfits()} == {"age", "units", "height"}
    profile.set("age", 30, by="operator")
    assert profile.values() == {"age": 30}


def test_a_memory_of_the_same_words_without_a_value_gets_it(alice) -> None:
    alice.memory.remember("age: 30", subject="profile", slot="age", by="operator")
    profile = alice.memory.profile(Person)
    profile.set("age", 30, by="operator")
    assert profile.values() == {"age": 30}


def test_a_bool_takes_the_place_of_a_number_that_equals_it(db, alice) -> None:
    schema = of({"type": "boolean"})
    one = {"subject": "profile", "slot": "a", "attributes": {"a": 1}}
    planted = alice.memory.remember("a: true", **one, by="operator")
    profile = alice.memory.profile(schema)
    assert (profile.values(), len(profile.misfits())) == ({}, 1)

    assert profile.set("a", True, by="operator").id == planted.id

    assert profile.values() == {"a": True}
    assert [each.version for each in alice.memory.history(planted.id)] == [1, 2]
    assert db.check() == []


def test_what_stands_beside_an_attachment_waits_in_quarantine(alice) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    alice.session("b").append(user([{"type": "text", "text": "I am Dora"}, image]))
    made = alice.memory.profile(Person).set("name", "Dora", source=Source("b", seqs=(1,)))
    assert (made.status, made.by) == ("quarantined", "import")


def test_a_value_expires_is_forgotten_and_goes_with_its_sources(db, clock, alice) -> None:
    profile = alice.memory.profile(Person)
    profile.set("age", 30, by="operator", expires_at=clock() + DAY)
    profile.set("height", 1.5, by="operator", valid_from=clock() + DAY)
    forgotten = profile.set("units", "mi", by="operator")
    profile.set("name", "Alice", source=SOURCE)
    alice.memory.forget(forgotten.id)
    assert profile.values() == {"age": 30, "name": "Alice"}
    assert profile.history("units") == []
    clock.advance(DAY)
    assert profile.values() == {"height": 1.5, "name": "Alice"}

    alice.delete_session("a")

    assert profile.values() == {"height": 1.5}
    assert db.check() == []
    alice.opt_out_memory()
    assert profile.values() == {}
    with pytest.raises(OptedOutError):
        profile.set("age", 31, by="operator")


def test_a_repeated_request_changes_nothing(alice) -> None:
    profile = alice.memory.profile(Person)
    profile.set("name", "alice", source=SOURCE)
    first = profile.set("name", "Alice", source=SOURCE, idempotency_key="1")
    profile.set("name", "ALICE", source=SOURCE)
    again = profile.set("name", "Alice", source=SOURCE, idempotency_key="1")
    assert (again.id, again.version) == (first.id, first.version)
    assert profile.values() == {"name": "ALICE"}


def test_a_window_counts_what_happened_in_the_last_days(clock, alice) -> None:
    for day in range(60):
        label = {"type": "mistake" if day % 2 else "visit"}
        alice.memory.remember(f"day {day}", kind="event", by="operator", labels=label)
        clock.advance(DAY)
    alice.memory.remember("to come", kind="event", by="operator", valid_from=clock() + DAY)
    alice.memory.remember("no event", by="operator")
    alice.memory.remember("said by a tool", kind="event", by="import")
    profile = alice.memory.profile(Person)

    month = profile.window("event", days=30, labels={"type": "mistake"}, limit=2)

    assert (month.count, [each.text for each in month.memories]) == (15, ["day 59", "day 57"])
    assert month.since == clock() - 30 * DAY
    assert profile.window(days=100).count == 60
    for wrong in (0, -1, float("nan"), float("inf"), True, "3"):
        with pytest.raises(InvalidOptionError):
            profile.window(days=wrong)


def test_a_value_is_redacted_in_text_and_attributes_alike(open_db) -> None:
    with open_db(redact="default") as db:
        memory = db.scope(user="alice").memory
        schema = of({"type": "string"}) | {"properties": {"mail": {"type": "string"}}}
        stored = memory.profile(schema).set("mail", "alice@example.com", by="operator")
        left = memory.profile(schema).values()["mail"]
        assert "alice@" not in stored.text + left
        assert stored.text == spelt("mail", left)
        choice = {"type": "object", "properties": {"mail": {"enum": ["alice@example.com"]}}}
        with pytest.raises(InvalidItemError, match="redaction"):
            memory.profile(choice).set("mail", "alice@example.com", by="operator")


def test_a_profile_is_measured(open_db) -> None:
    told: list[str] = []

    class Told(Sink):
        names = "none"

        def tell(self, record: Any) -> None:
            told.append(record.operation)

    db = open_db(telemetry=[Told()])
    profile = db.scope(user="alice").memory.profile(Person)
    profile.set("name", "Alice", by="operator")
    assert profile.get() == Person("Alice")
    assert told[-2:] == ["memory.remember", "memory.profile"]


def test_users_have_profiles_of_their_own(db, alice) -> None:
    alice.memory.profile(Person).set("age", 30, by="operator")
    bob = db.scope(user="bob").memory.profile(Person)
    assert (bob.values(), bob.history("age"), bob.window().count) == ({}, [], 0)


def test_a_profile_arrives_with_an_export(tmp_path) -> None:
    with memcore.open(tmp_path / "one.memcore") as db:
        alice = db.scope(user="alice")
        alice.session("a").append(user("I am alice, or Alice."))
        profile = alice.memory.profile(Person)
        profile.set("name", "alice", source=SOURCE)
        profile.set("name", "Alice", source=SOURCE)
        lines = list(db.export())
    with memcore.open(tmp_path / "two.memcore") as db:
        assert db.import_(lines).failures == []
        assert db.scope(user="alice").memory.profile(Person).values() == {"name": "Alice"}
        assert db.check() == []


def test_the_asynchronous_profile_has_the_same_methods(tmp_path) -> None:
    async def go() -> None:
        db = await memcore.aio.open(tmp_path / "a.memcore")
        profile = db.scope(user="alice").memory.profile(Person)
        await profile.set("name", "Alice", by="operator")
        assert await profile.get() == Person("Alice")
        assert (await profile.window("fact")).count == 1
        assert profile.fields[0] == "name"
        await db.close()

    asyncio.run(go())


def test_the_command_line_shows_a_profile_and_what_does_not_fit(tmp_path, capsys) -> None:
    store, schema = str(tmp_path / "a.memcore"), tmp_path / "schema.json"
    with memcore.open(store) as db:
        memory = db.scope(user="alice").memory
        memory.profile(Person).set("name", "Alice", by="operator")
        memory.profile(Person).set("tags", ["a"], by="operator")
        memory.remember("30", subject="profile", slot="age", by="operator")
    schema.write_text(json.dumps(JSON))
    asked = ["memory", "profile", "--store", store, "--schema", str(schema), "--user", "alice"]

    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["values"] == {"name": "Alice", "tags": ["a"]}
    assert [each["slot"] for each in told["misfits"]] == ["age"]
    assert main(asked) == 0
    assert "Alice" in capsys.readouterr().out
    for wrong in ("[1]", "{"):
        schema.write_text(wrong)
        assert main(asked) != 0
        assert "schema" in capsys.readouterr().err


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS, max_size=4)


@given(VALUES, VALUES)
def test_two_values_are_spelt_alike_only_if_they_are_the_same(one, other) -> None:
    if spelt("a", one) == spelt("a", other):
        assert repr(one) == repr(other)


@given(VALUES)
def test_each_value_fits_at_most_the_types_that_it_is_of(value) -> None:
    names = {type(None): "null", str: "str", bool: "bool", int: "int", float: "float"}
    for name in ("null", "str", "bool", "int", "float"):
        own = names.get(type(value))
        is_finite = value not in (float("inf"), float("-inf")) or own != "float"
        wanted = is_finite and (own == name or (own, name) == ("int", "float"))
        assert fits(Shape(frozenset((name,))), value) is wanted


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["a", "A", "b", "B ", "b"]), min_size=1, max_size=6))
def test_the_value_is_what_was_said_last(db, names) -> None:
    profile = db.scope(user="law").memory.profile(Typed)
    for name in names:
        profile.set("name", name, by="operator")
        assert profile.values() == {"name": name}
    assert db.check() == []
