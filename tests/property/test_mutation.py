"""Values that are changed in place between puts: each version reads as it was when it was put."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send
from pydantic import BaseModel

import memcore
import savers
from memcore.adapters.langgraph import MemcoreSaver
from savers import Note, checkpoint_of, config, exact, through

EXAMPLES = int(os.environ.get("MEMCORE_LONG_TESTS") or 0) or 40
relaxed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SERDE = JsonPlusSerializer()
Change = Callable[[], Any]

FLIPS: tuple[Any, ...] = (
    *(0, False, 0.0, -0.0, 1, True, 1.0, "1", b"1", None, "", [], {}, (), "x" * 99),
)
"""Values that are easily taken for each other."""


def changes(value: Any, chance: random.Random) -> Iterator[Change]:
    """What can be done to a value in place, in it or in anything below it."""
    flip = copy.copy(chance.choice(FLIPS))
    if isinstance(value, list):
        at = chance.randrange(len(value) + 1)
        yield lambda: value.insert(at, flip)
        if value:
            at = chance.randrange(len(value))
            yield lambda: value.__setitem__(at, flip)
            yield lambda: value.pop(at)
            yield value.reverse
            yield lambda: value.append(value[0])
        below = value
    elif isinstance(value, dict):
        yield lambda: value.__setitem__("new", flip)
        if value:
            name = chance.choice(list(value))
            yield lambda: value.__setitem__(name, flip)
            yield lambda: value.pop(name)
            yield lambda: value.__setitem__(name, value.pop(name))  # now it comes last
        below = list(value.values())
    elif isinstance(value, set):
        yield lambda: value.symmetric_difference_update({chance.choice((0, True, "1", "a"))})
        below = []
    elif isinstance(value, BaseMessage):
        yield lambda: setattr(value, "content", str(flip))
        yield lambda: value.additional_kwargs.__setitem__("k", flip)
        yield lambda: setattr(value, "id", None if value.id else "changed")
        below = [value.additional_kwargs, value.response_metadata, getattr(value, "artifact", None)]
    elif isinstance(value, BaseModel):
        yield lambda: setattr(value, "extra", flip)
        yield lambda: setattr(value, "_secret", flip)
        below = [getattr(value, "extra", None)]
    elif dataclasses.is_dataclass(value) and type(value).__module__.endswith("savers"):
        names = [field.name for field in dataclasses.fields(value)]
        name = chance.choice(names)
        yield lambda: setattr(value, name, flip)
        below = [getattr(value, name) for name in names]
    elif isinstance(value, Send):
        yield lambda: setattr(value, "arg", flip)
        below = [value.arg]
    elif isinstance(value, bytearray):
        yield lambda: value.extend(b"more")
        below = []
    else:
        below = list(value) if isinstance(value, tuple) else []
    for entry in below:
        yield from changes(entry, chance)


def mutate(value: Any, chance: random.Random) -> None:
    """Change a few things, some of them there and back."""
    for _ in range(chance.randrange(3)):
        possible = list(changes(value, chance))
        if possible:
            chance.choice(possible)()


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[memcore.Database]:
    path = tmp_path_factory.mktemp("mutation") / "agent.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        yield db
        assert db.check() == []


numbers = count()


def put(saver: MemcoreSaver, number: int, value: Any) -> None:
    parent = f"{number - 1:04}" if number else None
    versions = {"channel": f"{number:04}"}
    made = checkpoint_of(f"{number:04}", {"channel": value}, versions)
    saver.put(config("t", "", parent), made, {"source": "loop", "step": number}, versions)


def read(saver: MemcoreSaver, number: int) -> Any:
    found = saver.get_tuple(config("t", "", f"{number:04}"))
    assert found is not None
    return found.checkpoint["channel_values"]["channel"]


stored = st.one_of(
    savers.channel_values.map(lambda drawn: drawn.value if type(drawn) is savers.Large else drawn),
    st.lists(savers.values, min_size=1, max_size=30),
    st.dictionaries(st.text("abc", max_size=2), savers.values, min_size=1),
)


@relaxed
@given(stored, st.integers(1, 6), st.randoms(use_true_random=False), st.booleans())
def test_what_is_changed_in_place_is_stored_as_it_was_at_each_put(
    db: memcore.Database, value: Any, puts: int, chance: random.Random, reads: bool
) -> None:
    user = f"user {next(numbers)}"
    saver = MemcoreSaver(db, user=user)
    wanted = []
    for number in range(puts):
        if number:
            mutate(value, chance)
        wanted.append(exact(through(SERDE, value)))
        put(saver, number, value)
        if reads:  # what was read is compared with the next put as well
            assert exact(read(saver, number)) == wanted[-1]
            if chance.random() < 0.3:
                value = read(saver, number)
    assert [exact(read(saver, number)) for number in range(puts)] == wanted, "warm"
    with memcore.open(db.path, durability="none", allow_unsafe=True) as fresh:
        cold = MemcoreSaver(fresh, user=user)
        assert [exact(read(cold, number)) for number in range(puts)] == wanted, "cold"


@relaxed
@given(stored, st.randoms(use_true_random=False))
def test_what_was_handed_out_is_the_callers(
    db: memcore.Database, value: Any, chance: random.Random
) -> None:
    saver = MemcoreSaver(db, user=f"user {next(numbers)}")
    wanted = exact(through(SERDE, value))
    put(saver, 0, value)
    saver.put_writes(config("t", "", "0000"), [("w", value), ("d", value)], "task")
    put(saver, 1, value)
    for _ in range(3):
        found = saver.get_tuple(config("t", "", "0000"))
        [listed] = saver.list(config("t", "", "0000"))
        history = saver.get_delta_channel_history(
            config=config("t", "", "0001"), channels=["channel", "d"]
        )
        assert found is not None
        handed = [
            found.checkpoint["channel_values"]["channel"],
            listed.checkpoint["channel_values"]["channel"],
            *(
                write[2]
                for write in [*(found.pending_writes or ()), *(listed.pending_writes or ())]
            ),
            history["channel"]["seed"],
            *(write[2] for write in history["d"]["writes"]),
        ]
        assert len(handed) == 8
        assert [exact(one) for one in handed] == [wanted] * 8
        for one in handed:
            mutate(one, chance)
        found.metadata["step"] = 99
        found.checkpoint["channel_versions"].clear()
        found.config["configurable"].clear()


M = savers.Meddler()
NINE = range(9)


def set_in(outer: Any, inner: Any, entry: Any, value: Any) -> None:
    value[outer][inner] = entry


@pytest.mark.parametrize(
    ("value", "meddle", "undo"),
    [
        ([M, 1, 2], lambda value: value.clear(), lambda value: value.extend([M, 1, 2])),
        (
            [M, 1, 2],
            lambda value: value.extend(NINE),
            lambda value: [value.pop() for _ in NINE],
        ),
        ({"m": M, "a": [1]}, lambda value: value.clear(), lambda value: value.update(m=M, a=[1])),
        (
            {"m": M, "a": 1},
            lambda value: value.update(dict.fromkeys(map(str, NINE))),
            lambda value: [value.pop(str(number)) for number in NINE],
        ),
        ([[1, 2, 3, M]], partial(set_in, 0, 0, 99), partial(set_in, 0, 0, 1)),
        ([[1, 2, 3, [4, M]]], partial(set_in, 0, 3, 0), partial(set_in, 0, 3, [4, M])),
        ([{"m": M, "a": 1}], partial(set_in, 0, "a", 2), partial(set_in, 0, "a", 1)),
        (
            [Note(M, [1])],
            lambda value: value[0].tags.append(2),
            lambda value: value[0].tags.pop(),
        ),
        (
            [Send("node", [M, [1]])],
            lambda value: value[0].arg.pop(),
            lambda value: value[0].arg.append([1]),
        ),
        (
            _DeltaSnapshot([M, {"a": 1}]),
            lambda value: value.value[1].clear(),
            lambda value: value.value[1].update(a=1),
        ),
    ],
)
def test_what_changes_while_it_is_stored_is_not_taken_for_what_was(
    db: memcore.Database, value: Any, meddle: Callable[[Any], Any], undo: Callable[[Any], Any]
) -> None:
    saver = MemcoreSaver(db, user=f"user {next(numbers)}")
    value = copy.deepcopy(value)
    before = exact(through(SERDE, value))
    savers.meddling.append(lambda: meddle(value))
    put(saver, 0, value)
    assert not savers.meddling
    changed = exact(through(SERDE, value))
    assert changed != before
    put(saver, 1, value)
    undo(value)
    assert exact(through(SERDE, value)) == before
    put(saver, 2, value)
    savers.meddling.append(lambda: meddle(value))
    put(saver, 3, [value])
    undo(value)
    put(saver, 4, [value])
    assert exact(read(saver, 1)) == changed
    assert exact(read(saver, 2)) == before
    assert exact(read(saver, 4)) == (list, [before])


@relaxed
@given(st.lists(savers.values, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_objects_that_several_channels_and_threads_share(
    db: memcore.Database, shared: list[Any], chance: random.Random
) -> None:
    savers_of = [MemcoreSaver(db, user=f"user {next(numbers)}") for _ in range(2)]
    wanted: list[list[Any]] = [[], []]
    for number in range(4):
        mutate(shared, chance)
        value = {"all": shared, "one": shared[:1], "again": [*shared, *shared]}
        for saver, want in zip(savers_of, wanted, strict=True):
            mutate(shared, chance)
            want.append(exact(through(SERDE, value)))
            put(saver, number, value)
    for saver, want in zip(savers_of, wanted, strict=True):
        assert [exact(read(saver, number)) for number in range(4)] == want
