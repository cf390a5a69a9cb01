"""Form: all that the request types of the providers' packages accept, memcore accepts."""

from __future__ import annotations

import enum
import typing
from collections.abc import Mapping
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Required, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcore

TEXTS = st.text('abc é{}"', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
PLAIN = {
    str: TEXTS, int: st.integers(0, 99), float: st.floats(0, 1), bool: st.booleans(),
    bytes: st.sampled_from(("", "YWI=")), NoneType: st.none(), object: JSON, Any: JSON,
}  # fmt: skip
GEMINI_ROLES = ("user", "model")
SEEN: dict[Any, st.SearchStrategy[Any]] = {}


def of_type(tp: Any) -> st.SearchStrategy[Any]:
    """Values of a type as JSON has them, generated from the type alone."""
    if tp in PLAIN:
        return PLAIN[tp]
    if tp not in SEEN:
        SEEN[tp] = st.deferred(lambda: _made(tp))
    return SEEN[tp]


def _made(tp: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one for each kind of type
    origin, args = get_origin(tp), get_args(tp)
    if origin in (Required, typing.NotRequired, typing.Annotated):
        return of_type(args[0])
    if origin in (Union, UnionType):
        return st.one_of([of_type(arg) for arg in args if _is_json(arg)])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is dict:
        return st.dictionaries(TEXTS, of_type(args[1]), max_size=2)
    if origin is not None:  # Iterable, Sequence, List
        return st.lists(of_type(args[0]), max_size=2)
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return st.sampled_from([each.value for each in tp])
    if hasattr(tp, "model_fields"):
        return _model(tp)
    if tp in (dict, list):
        return st.just(tp())
    hints = get_type_hints(tp, include_extras=True)
    needed = {
        name: of_type(hint)
        for name, hint in hints.items()
        if tp.__total__ or get_origin(hint) is Required
    }
    optional = {name: of_type(hint) for name, hint in hints.items() if name not in needed}
    return st.fixed_dictionaries(needed, optional=optional)


def _is_json(tp: Any) -> bool:
    """Return whether a value of the type can stand in a stored message: no open files."""
    return not (isinstance(tp, type) and tp.__name__ == "PathLike") and (
        getattr(get_origin(tp) or tp, "__name__", "") not in ("IO", "PathLike")
    )


def _model(model: Any) -> st.SearchStrategy[Any]:
    """Fields of a pydantic model; those of google-genai spelt as in Python or as in the API."""
    needed, found = {}, {}
    for name, field in model.model_fields.items():
        camel = field.alias or name
        if model.model_config.get("alias_generator") is not None:
            camel = model.model_config["alias_generator"](name)
        values = of_type(field.annotation)
        if field.is_required():
            needed[name] = values
        else:
            found[name] = found[camel] = values
    return st.fixed_dictionaries(needed, optional=found)


def blocks_of(member: Any) -> list[Any]:
    """The types of the blocks of a message's content; none if it has no such list."""
    content = get_type_hints(member, include_extras=True).get("content")
    content = get_args(content)[0] if get_origin(content) is Required else content
    lists = [each for each in get_args(content) if get_origin(each) not in (None, Literal)]
    found = [get_args(each)[0] for each in lists]
    return [block for union in found for block in get_args(union) or (union,)]


def accepted(message: Mapping[str, Any], policy: str) -> None:
    found = memcore.validate([message], policy)
    assert [each.reason for each in found if each.rule == "form"] == []


@pytest.mark.parametrize(
    ("policy", "module", "name"),
    [
        ("openai_chat", "openai.types.chat", "ChatCompletionMessageParam"),
        ("openai_responses", "openai.types.responses", "ResponseInputItemParam"),
        ("anthropic", "anthropic.types", "MessageParam"),
    ],
)
def test_what_a_provider_types_is_accepted(policy, module, name) -> None:
    pytest.importorskip(module.partition(".")[0])
    members = get_args(getattr(import_module(module), name))

    @given(st.data())
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    def look(data: st.DataObject) -> None:
        for member in members:
            message = data.draw(of_type(member))
            accepted(message, policy)
            for block in blocks_of(member):  # one of many is drawn too rarely
                accepted({**message, "content": [data.draw(of_type(block))]}, policy)

    look()


def test_what_google_types_is_accepted() -> None:
    types = pytest.importorskip("google.genai.types")
    parts = st.lists(of_type(types.Part), min_size=1, max_size=3)

    @given(parts, st.sampled_from(GEMINI_ROLES))
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def look(parts: list[Any], role: str) -> None:
        accepted({"role": role, "parts": parts}, "gemini")

    look()
    part = types.Part(
        function_call=types.FunctionCall(name="f", args={"a": 1}), thought_signature=b"x"
    )
    made = types.Content(role="model", parts=[part, types.Part(text="x", thought=True)])
    accepted(made.model_dump(mode="json", exclude_none=True), "gemini")
    accepted(made.model_dump(mode="json"), "gemini")
    accepted(made.model_dump(mode="json", by_alias=True, exclude_none=True), "gemini")


def test_what_langchain_writes_is_accepted() -> None:
    messages = pytest.importorskip("langchain_core.messages")
    dumpd = import_module("langchain_core.load").dumpd
    block = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS})
    content = TEXTS | st.lists(TEXTS | block, max_size=2)
    call = st.fixed_dictionaries(
        {"name": TEXTS, "args": st.just({"a": 1}), "id": TEXTS | st.none()}
    )
    kinds = {
        "HumanMessage": {}, "SystemMessage": {},
        "AIMessage": {"tool_calls": st.lists(call, max_size=2)},
        "ToolMessage": {"tool_call_id": TEXTS, "status": st.sampled_from(("success", "error"))},
        "FunctionMessage": {"name": TEXTS}, "ChatMessage": {"role": st.just("user")},
    }  # fmt: skip

    @given(st.data(), st.sampled_from(sorted(kinds)), st.sampled_from(("", "Chunk")))
    @settings(max_examples=200, deadline=None)
    def look(data: st.DataObject, name: str, chunk: str) -> None:
        fields = {key: data.draw(each) for key, each in kinds[name].items()}
        made = getattr(messages, name + chunk)(content=data.draw(content), **fields)
        accepted(made.model_dump(mode="json"), "langchain")
        accepted(messages.message_to_dict(made), "langchain")
        accepted(dumpd(made), "langchain")

    look()
