"""``StateSchema.apply`` against a StateGraph of LangGraph: random steps of several writers."""

import operator
from typing import Annotated, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.errors import InvalidUpdateError as TheirError
from langgraph.graph import START, StateGraph
from langgraph.types import Overwrite as TheirOverwrite

import memcore
from memcore import InvalidUpdateError, Overwrite, StateSchema, merge_entries


def spoiler(left: dict, right: dict) -> dict:
    """Changes what it is given, as no reducer should."""
    left.update(right)
    return left


class State(TypedDict, total=False):
    notes: Annotated[list, operator.add]
    total: Annotated[int, operator.add]
    files: Annotated[dict, merge_entries]
    spoiled: Annotated[dict, spoiler]
    best: Annotated[int | None, lambda left, right: right if left is None else max(left, right)]
    title: str


NAMES = st.sampled_from("abc")
VALUES = {
    "notes": st.lists(st.integers(0, 3), max_size=2),
    "total": st.integers(-3, 3),
    "files": st.dictionaries(NAMES, st.integers(0, 3) | st.none(), max_size=2),
    "spoiled": st.dictionaries(NAMES, st.integers(0, 3), max_size=2),
    "best": st.integers(0, 9),
    "title": st.text("xy", max_size=2),
}


@st.composite
def updates(draw):
    """An update; ``("over", value)`` stands for an Overwrite."""
    made = {}
    for key in draw(st.sets(st.sampled_from(sorted(VALUES)), max_size=4)):
        value = draw(VALUES[key])
        # The first write of a field without an empty value, and fields without a reducer, keep
        # an Overwrite as it is there.
        over = key not in ("title", "best") and draw(st.integers(0, 5)) == 0
        made[key] = ("over", value) if over else value
    return made


def with_overwrites(update, kind):
    return {
        key: kind(value[1]) if isinstance(value, tuple) else value for key, value in update.items()
    }


def graph_after(steps):
    """What a graph holds whose steps have these writers; the error's type if it refuses one."""
    builder = StateGraph(State)
    before = [START]
    for number, writers in enumerate(steps):
        names = []
        for place, update in enumerate(writers):
            # Writes are applied in the order of the names of the nodes.
            name = f"{number:02}-{place}"
            theirs = with_overwrites(update, TheirOverwrite)
            builder.add_node(name, lambda _, theirs=theirs: theirs)
            names.append(name)
        for name in names:
            for source in before if before == [START] else [before]:
                builder.add_edge(source, name)
        before = names
    try:
        return builder.compile().invoke({})
    except TheirError:
        return TheirError


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(updates(), min_size=1, max_size=3), min_size=1, max_size=3))
def test_steps_end_as_in_langgraph(steps):
    schema = StateSchema.of(State)
    found = {}
    try:
        for writers in steps:
            found = schema.apply(found, [with_overwrites(each, Overwrite) for each in writers])
    except InvalidUpdateError:
        found = TheirError
    theirs = graph_after(steps)
    if theirs is None:
        theirs = {}  # nothing was written
    if TheirError not in (theirs, found):
        # A graph shows the empty value of a field that nobody wrote.
        found = {**{k: f.initial() for k, f in schema.fields.items() if k in theirs}, **found}
    assert found == theirs


FIELDS = st.sampled_from(["a", "a\x00", "a\x00b", "b", "é"])
STEPS = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(FIELDS, st.integers(0, 2), max_size=3)),
    st.tuples(st.just("delete"), st.lists(FIELDS, max_size=2)),
    st.tuples(st.just("trim"), st.integers(1, 4)),
    st.tuples(st.just("fork"), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=14))
def test_a_state_is_a_list_of_dicts(steps):
    """Every known counter shows the values of then, and no other is known."""
    with memcore.open(":memory:") as db:
        session = db.session("s0")
        past, floor = [{}], 0
        for number, (what, given_) in enumerate(steps):
            after = dict(past[-1])
            if what == "write":
                after |= given_
                counter = session.state.update(given_)
            elif what == "delete":
                after = {key: value for key, value in after.items() if key not in given_}
                counter = session.state.delete(*given_)
            else:
                counter = session.state.counter
            if after != past[-1]:
                past.append(after)
            assert counter == len(past) - 1
            if what == "trim":
                session.state.trim(keep=given_)
                floor = max(floor, len(past) - given_)
            elif what == "fork" and session.exists():
                session = session.fork(f"s{number + 1}")
                floor = len(past) - 1
        for at, values in enumerate(past):
            if at >= floor:
                assert session.state.at(at) == values
            else:
                with pytest.raises(memcore.NotFoundError):
                    session.state.at(at)
        assert session.state.all() == past[-1]
        assert {key: session.state.get(key) for key in past[-1]} == past[-1]
        assert db.check() == []
