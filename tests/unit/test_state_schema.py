from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NotRequired, Required, TypedDict, TypeVar

import pytest

from memcore import (
    Command,
    FileData,
    InvalidOptionError,
    InvalidUpdateError,
    OmitInput,
    OmitOutput,
    Overwrite,
    Private,
    Reduction,
    StateSchema,
    StateSchemaError,
    append_messages,
    merge_entries,
)

T = TypeVar("T")


def longest(left: str, right: str) -> str:
    return max(left, right, key=len)


class Files(TypedDict):
    files: Annotated[NotRequired[dict[str, FileData]], merge_entries]
    title: str


class Skills(Files, total=False):
    skills: Annotated[list[str], Private]
    notes: Required[Annotated[list[str], operator.add]]
    answer: NotRequired[Annotated[str, OmitInput]]
    prompt: Annotated[str, OmitOutput]


class Boxed(TypedDict, Generic[T]):
    box: Annotated[T, operator.add]


def schema(**hints: Any) -> StateSchema:
    return StateSchema.of(TypedDict("Made", hints))


# --- reading ----------------------------------------------------------------------------------


def test_a_typed_dict_is_read_with_its_bases_and_qualifiers():
    found = StateSchema.of(Skills).fields
    assert list(found) == ["files", "title", "skills", "notes", "answer", "prompt"]
    required = {name for name, each in found.items() if each.required}
    assert required == {"title", "notes"}
    reduced = {name for name, each in found.items() if each.reducer}
    assert reduced == {"files", "notes"}
    assert found["files"].type == dict[str, FileData]
    assert found["files"].reducer.name.endswith(".merge_entries")


def test_missing_names_the_required_fields_without_a_value():
    assert StateSchema.of(Skills).missing({"title": "t"}) == ("notes",)


def test_a_dataclass_is_read_too():
    @dataclass
    class Plan:
        goal: str
        steps: Annotated[list, operator.add] = field(default_factory=list)

    found = StateSchema.of(Plan)
    assert [each.required for each in found.fields.values()] == [True, False]
    assert found.apply({}, [{"steps": ["a"]}, {"steps": ["b"]}]) == {"steps": ["a", "b"]}


def test_a_generic_begins_with_the_type_it_was_given():
    assert StateSchema.of(Boxed[int]).apply({}, {"box": 3}) == {"box": 3}
    assert StateSchema.of(Boxed[str]).fields["box"].initial() == ""


def test_names_that_cannot_be_resolved_are_told():
    class Broken(TypedDict):
        there: NotThere  # noqa: F821

    with pytest.raises(StateSchemaError, match=r"Broken.*NotThere"):
        StateSchema.of(Broken)


@pytest.mark.parametrize("what", [int, "text", {}, None])
def test_other_things_are_no_schema(what):
    with pytest.raises(StateSchemaError, match="expected a TypedDict"):
        StateSchema.of(what)
    with pytest.raises(StateSchemaError, match="at least one"):
        StateSchema.of()


@pytest.mark.parametrize("wrong", [lambda one: one, lambda a, b, c: a, lambda *rest: rest, max])
def test_a_reducer_takes_exactly_two(wrong):
    with pytest.raises(StateSchemaError, match=r"field 'x'.*two positional"):
        schema(x=Annotated[int, wrong])


def test_the_last_entry_beside_marks_is_the_reducer():
    found = schema(x=Annotated[list, "doc", operator.add, Private], y=Annotated[int, min, "doc"])
    assert found.fields["x"].reducer.function is operator.add
    assert found.fields["x"].omit_input
    assert found.fields["y"].reducer is None


# --- merging ----------------------------------------------------------------------------------


def test_schemas_merge_and_a_reducer_wins_over_none():
    plain, reduced = schema(x=list), schema(x=Annotated[list, operator.add], y=int)
    for merged in (StateSchema.of(plain, reduced), StateSchema.of(reduced, plain)):
        assert merged.fields["x"].reducer.function is operator.add
        assert "y" in merged
    again = StateSchema.of(reduced, reduced)
    assert again.fields == reduced.fields


def test_different_reducers_of_one_field_are_refused():
    with pytest.raises(StateSchemaError) as told:
        StateSchema.of(schema(x=Annotated[str, operator.add]), schema(x=Annotated[str, longest]))
    assert "_operator.add" in str(told.value)
    assert "longest" in str(told.value)


def test_a_field_is_private_if_any_schema_says_so():
    merged = StateSchema.of(schema(x=Annotated[str, Private]), schema(x=str))
    assert merged.visible({"x": "secret"}, to="parent") == {}


# --- who sees what ----------------------------------------------------------------------------

WHOLE = {"title": "t", "skills": ["s"], "notes": [], "answer": "a", "prompt": "p", "stray": 1}


@pytest.mark.parametrize(
    ("to", "seen"),
    [
        ("input", {"title", "notes", "prompt"}),
        ("child", {"title", "notes", "prompt"}),
        ("output", {"title", "notes", "answer"}),
        ("parent", {"title", "notes", "answer"}),
    ],
)
def test_private_fields_and_strays_go_nowhere(to, seen):
    found = StateSchema.of(Skills)
    assert set(found.visible(WHOLE, to=to)) == seen
    assert set(found.visible(WHOLE, to=to, exclude={"notes"})) == seen - {"notes"}


def test_nobody_else_is_handed_a_state():
    with pytest.raises(InvalidOptionError, match="input, output, parent, child"):
        StateSchema.of(Skills).visible(WHOLE, to="sibling")


# --- applying ---------------------------------------------------------------------------------


def test_a_step_reduces_write_by_write_and_changes_nothing_it_was_given():
    state = {"notes": ["a"], "title": "old"}
    update = [{"notes": ["b"], "title": "new"}, {"notes": ["c"]}]
    after = StateSchema.of(Skills).apply(state, update)
    assert after == {"notes": ["a", "b", "c"], "title": "new"}
    assert state == {"notes": ["a"], "title": "old"}
    assert update == [{"notes": ["b"], "title": "new"}, {"notes": ["c"]}]


def test_a_reducer_that_changes_its_arguments_spoils_nothing():
    def greedy(left, right):
        left["seen"].extend(right["seen"])
        right["seen"].append("spoiled")
        return left

    found = schema(x=Annotated[dict, greedy])
    inner = {"seen": ["a"]}
    state, update = {"x": inner}, {"x": {"seen": ["b"]}}
    traced = []
    after = found.apply(state, update, trace=traced.append)
    assert after == {"x": {"seen": ["a", "b"]}}
    assert state == {"x": {"seen": ["a"]}}
    assert update == {"x": {"seen": ["b"]}}
    assert traced[0].left == {"seen": ["a"]}
    after["x"]["seen"].clear()
    assert inner == {"seen": ["a"]}
    assert traced[0].result == {"seen": ["a", "b"]}


def test_the_trace_tells_every_call():
    traced = []
    StateSchema.of(Skills).apply({}, [{"notes": ["a"]}, {"notes": ["b"]}], trace=traced.append)
    assert traced == [
        Reduction("notes", [], ["a"], ["a"], "_operator.add"),
        Reduction("notes", ["a"], ["b"], ["a", "b"], "_operator.add"),
    ]


@pytest.mark.parametrize(
    "over",
    [
        Overwrite(["z"]),
        {"__overwrite__": ["z"]},
        {"type": "__overwrite__", "value": ["z"]},
        pytest.param("langgraph", id="LangGraph's"),
    ],
)
def test_an_overwrite_passes_the_reducer_by(over):
    if over == "langgraph":
        from langgraph.types import Overwrite as Theirs

        over = Theirs(["z"])
    found = StateSchema.of(Skills)
    update = [{"notes": ["b"]}, {"notes": over, "title": Overwrite("t")}, {"notes": ["c"]}]
    assert found.apply({"notes": ["a"]}, update) == {"notes": ["z"], "title": "t"}


def test_two_overwrites_of_one_field_are_refused():
    with pytest.raises(InvalidUpdateError, match="'notes' got 2 Overwrites") as told:
        StateSchema.of(Skills).apply({}, [{"notes": Overwrite([])}, {"notes": Overwrite([1])}])
    assert told.value.key == "notes"


def test_two_writers_of_a_field_without_a_reducer_are_refused():
    with pytest.raises(InvalidUpdateError, match="'title' was written 2 times") as told:
        StateSchema.of(Skills).apply({}, [{"title": "a"}, {"title": "b"}])
    assert told.value.key == "title"


def test_an_unknown_field_is_refused_and_the_nearest_named():
    with pytest.raises(InvalidUpdateError, match="'tilte': did you mean 'title'") as told:
        StateSchema.of(Skills).apply({}, {"notes": ["x"], "tilte": "a"})
    assert told.value.key == "tilte"
    with pytest.raises(InvalidUpdateError, match="it has x"):
        schema(x=int).apply({}, {"wholly different": 1})


def test_commands_are_updates_unless_they_bring_messages():
    from langgraph.types import Command as Theirs

    found = StateSchema.of(Skills)
    update = [Command({"notes": ["a"]}), Theirs(update={"notes": ["b"]}), None]
    assert found.apply({}, update) == {"notes": ["a", "b"]}
    assert found.apply({}, Theirs(update=[("notes", ["c"])])) == {"notes": ["c"]}
    with pytest.raises(InvalidUpdateError, match=r"session\.apply"):
        found.apply({}, Command({}, messages=[{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize("wrong", [3, "text", {"": 1}, {3: 1}, [["notes"]]])
def test_what_is_no_update_is_refused(wrong):
    with pytest.raises(InvalidUpdateError):
        StateSchema.of(Skills).apply({}, wrong)


def test_an_error_of_a_reducer_names_the_field():
    with pytest.raises(TypeError) as told:
        StateSchema.of(Skills).apply({"notes": ["a"]}, {"notes": 3})
    assert told.value.__notes__ == ["in reducer _operator.add of state field 'notes'"]


# --- reducers ---------------------------------------------------------------------------------


def test_entries_merge_and_none_deletes():
    one, two = FileData(content="1"), FileData(content="2")
    assert merge_entries(None, {"/a": one, "/b": None}) == {"/a": one}
    left = {"/a": one, "/b": two}
    assert merge_entries(left, {"/a": None, "/c": one, "/d": None}) == {"/b": two, "/c": one}
    assert left == {"/a": one, "/b": two}
    with pytest.raises(InvalidUpdateError, match="expected a mapping"):
        merge_entries({}, ["/a"])


def test_messages_are_replaced_and_removed_by_id():
    left = [{"id": "1", "content": "a"}, {"content": "no id"}, {"id": "2", "content": "b"}]
    assert append_messages(left, {"id": "1", "content": "A"})[0] == {"id": "1", "content": "A"}
    assert append_messages(left, [{"remove": "2"}, {"remove": "gone"}]) == left[:2]
    assert append_messages(None, [{"content": "x"}, {"content": "x"}]) == [{"content": "x"}] * 2
    with pytest.raises(InvalidUpdateError, match="got str"):
        append_messages([], "hello")


# --- schemas of frameworks --------------------------------------------------------------------


def test_schemas_of_deepagents_are_read_without_an_adapter():
    from deepagents.middleware.filesystem import FilesystemState
    from deepagents.middleware.skills import SkillsState

    found = StateSchema.of(FilesystemState, SkillsState)
    file = {"content": "x", "encoding": "utf-8"}
    after = found.apply({}, [{"files": {"/a": file, "/b": file}}, {"files": {"/a": None}}])
    assert after == {"files": {"/b": file}}
    assert not found.fields["jump_to"].stored
    assert found.visible({"files": {}, "skills_load_errors": []}, to="child") == {"files": {}}
