"""A file runs no code: which types a saver and a cache build of what others may have written."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

import memcore
from memcore.adapters.langgraph import MemcoreCache, MemcoreSaver
from memcore.adapters.langgraph import serde as coding
from memcore.errors import CorruptValueError, InvalidOptionError, UntrustedTypeError
from savers import KEY, Chain, Colour, Model, Note, config

SCRIPT = Path(__file__).parent / "hostile_types.py"


class Plan(BaseModel):
    goal: str = ""
    note: Note | None = None


class Work(TypedDict, total=False):
    plan: Plan
    colours: list[Colour]


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has stored is forgotten, as in another process."""
    monkeypatch.setattr(coding, "_stored_types", set())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of reading a file in which each kind of value names what must not run."""
    path, mark = (tmp_path_factory.mktemp("hostile") / name for name in ("file.memcore", "mark"))
    for arguments in ([str(path), str(mark)], [str(path)]):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    return {**json.loads(done.stdout), "mark": mark.exists()}


def test_a_hostile_file_runs_nothing_in_any_reading(hostile: dict[str, Any]) -> None:
    assert hostile["seen"] == []
    assert not hostile["mark"]
    assert hostile["payloads"] > 50


def test_what_a_hostile_file_names_is_refused_and_no_value(hostile: dict[str, Any]) -> None:
    wrong = {
        where: outcome
        for where, outcome in hostile["outcomes"].items()
        if outcome not in ("UntrustedTypeError", "{}") and not where.endswith(("prune", "check"))
    }  # pruning does not look into values; a check tells what it found
    assert wrong == {}
    assert hostile["outcomes"]["default, check"] == str(3 * hostile["payloads"])


@pytest.mark.parametrize(
    "allowed",
    [[Work], [Plan, Note, Colour], [("test_langgraph_trust", "Plan"), Note, ("savers", "Colour")],
     "all"],
)  # fmt: skip
def test_a_type_of_another_process_is_refused_until_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: Any
) -> None:
    path = tmp_path / "agent.memcore"
    values = {"plan": Plan(goal="test", note=Note("n")), "colours": [Colour.RED], "deep": Note("d")}
    monkeypatch.setitem(sys.modules, "test_langgraph_trust", sys.modules[__name__])
    monkeypatch.setattr(Plan, "__module__", "test_langgraph_trust")
    with MemcoreSaver.from_conn_string(path) as saver:
        Chain(saver).put(**values)
        assert saver.get_tuple(config()).checkpoint["channel_values"] == values  # type: ignore[union-attr]
    restart(monkeypatch)
    with MemcoreSaver.from_conn_string(path) as saver:
        with pytest.raises(UntrustedTypeError, match=r"allowed_types=\[\('\w+', '\w+'\)\]") as told:
            saver.get_tuple(config())
        assert (told.value.module, told.value.name) in {
            ("test_langgraph_trust", "Plan"), ("savers", "Colour"), ("savers", "Note"),
        }  # fmt: skip
    with MemcoreSaver.from_conn_string(path, allowed_types=allowed) as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"] == values  # type: ignore[union-attr]
        assert saver.check() == []


def test_a_graph_of_own_types_goes_on_after_a_restart_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(state: Work) -> Work:
        return {"plan": Plan(goal=state["plan"].goal + "!"), "colours": [Colour.BLUE]}

    monkeypatch.setitem(sys.modules, Plan.__module__, sys.modules[__name__])
    builder = StateGraph(Work)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    at: Any = {"configurable": {"thread_id": "t"}}
    path = tmp_path / "agent.memcore"
    with MemcoreSaver.from_conn_string(path) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"plan": Plan(goal="a")}, at)
        assert graph.invoke({"colours": []}, at)["plan"] == Plan(goal="a!!")  # of this process
    restart(monkeypatch)
    with MemcoreSaver.from_conn_string(path, allowed_types=[Work]) as saver:
        graph = builder.compile(checkpointer=saver)
        assert graph.invoke({"colours": []}, at)["plan"] == Plan(goal="a!!!")


def test_lists_of_langgraph_count_and_its_default_does_not(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Chain(MemcoreSaver(db)).put(note=Note("n"))
    restart(monkeypatch)
    with pytest.raises(UntrustedTypeError):
        MemcoreSaver(db, serde=JsonPlusSerializer()).get_tuple(config())
    for saver in (
        MemcoreSaver(db, serde=JsonPlusSerializer(allowed_msgpack_modules=[Note])),
        MemcoreSaver(db).with_allowlist([("savers", "Note")]),
        MemcoreSaver(db, serde=JsonPlusSerializer()).with_allowlist([("savers", "Note")]),
    ):
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"note": Note("n")}
    with pytest.raises(UntrustedTypeError):  # what one may build another is not given
        MemcoreSaver(db).get_tuple(config())


@dataclasses.dataclass
class Reader:
    """Reads another value when it is built."""

    text: str

    def __post_init__(self) -> None:
        coder = coding.coder_of(coding.default_serde())
        assert coder.decode(("msgpack", b"\x01")) == 1


def test_a_value_that_is_read_while_another_is_hides_no_refusal(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, Reader.__module__, sys.modules[__name__])
    Chain(MemcoreSaver(db)).put(both=(Note("n"), Reader("r")))
    restart(monkeypatch)
    with pytest.raises(UntrustedTypeError, match=r"savers\.Note"):
        MemcoreSaver(db, allowed_types=[Reader]).get_tuple(config())


def test_encrypted_values_are_held_to_the_same_types(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY)
    Chain(MemcoreSaver(db, serde=serde)).put(note=Note("n"))
    restart(monkeypatch)
    with pytest.raises(UntrustedTypeError, match=r"savers\.Note"):
        MemcoreSaver(db, serde=serde).get_tuple(config())
    allowing = MemcoreSaver(db, serde=serde, allowed_types=[Note])
    assert allowing.get_tuple(config()).checkpoint["channel_values"] == {"note": Note("n")}  # type: ignore[union-attr]


def test_a_type_that_no_option_allows_is_told_when_it_is_stored(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restart(monkeypatch)
    with caplog.at_level(logging.WARNING, "memcore"):
        chain = Chain(MemcoreSaver(db, allowed_types=[Note]))
        chain.put(note=Note("n"), text="plain")
        assert caplog.messages == []
        chain.put(model=[{"deep": Model()}])
        chain.put(model=Model(name="again"))
    assert len(caplog.messages) == 1
    assert "savers.Model" in caplog.messages[0]


def test_a_cached_value_of_another_type_is_a_miss(
    db: memcore.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = (("n",), "k")
    cache: MemcoreCache[Any] = MemcoreCache(db)
    cache.set({at: (Note("n"), None)})
    assert cache.get([at]) == {at: Note("n")}
    restart(monkeypatch)
    assert MemcoreCache(db).get([at]) == {}
    assert MemcoreCache(db, allowed_types=[Note]).get([at]) == {at: Note("n")}


def test_what_cannot_be_read_is_a_typed_error(db: memcore.Database) -> None:
    class Other(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, content = super().dumps_typed(obj)
            return ("own", content) if isinstance(obj, str) else (kind, content)

    Chain(MemcoreSaver(db, serde=Other())).put(text="of another serialiser")
    with pytest.raises(CorruptValueError, match="'own' cannot be read"):
        MemcoreSaver(db).get_tuple(config())


@pytest.mark.parametrize("wrong", ["any", [1], ["savers"], [("savers",)], 7, [("a", "b", "c")]])
def test_what_is_no_list_of_types_is_refused(db: memcore.Database, wrong: Any) -> None:
    for make in (MemcoreSaver, MemcoreCache):
        with pytest.raises(InvalidOptionError, match="allowed_types"):
            make(db, allowed_types=wrong)


def test_types_are_not_allowed_to_a_serialiser_that_does_not_ask(db: memcore.Database) -> None:
    class Other:
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "json", json.dumps(obj).encode()

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return json.loads(data[1])

    with pytest.raises(InvalidOptionError, match="Other decides for itself"):
        MemcoreSaver(db, serde=Other(), allowed_types=[dataclasses.Field])


class Pickled:
    """A serializer of one's own."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return "own", pickle.dumps(value)

    def loads_typed(self, typed: tuple[str, bytes]) -> Any:
        return pickle.loads(typed[1])


class Derived(JsonPlusSerializer):
    """LangGraph's, changed."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return super().dumps_typed(value)


@pytest.mark.parametrize(
    "serde",
    [
        Pickled(),
        Derived(),
        EncryptedSerializer.from_pycryptodome_aes(serde=Derived(), key=b"1" * 16),
    ],
    ids=["one's own", "derived", "derived, encrypted"],
)
def test_a_graph_in_strict_mode_runs_with_any_serializer(serde: Any) -> None:
    """LangGraph allows the types of each graph's schemas then: others decide for themselves."""
    with MemcoreSaver(":memory:", serde=serde) as saver:
        strict = saver.with_allowlist([("savers", "Note")])
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"x": 1}
        checkpoint["channel_versions"] = {"x": "1"}
        stored = strict.put(config, checkpoint, {}, {"x": "1"})
        found = strict.get_tuple(stored)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}


class Framed(EncryptedSerializer):
    """LangGraph's, with a frame around what it wrote."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, content = super().dumps_typed(obj)
        return kind, b"key 1:" + content

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[1].startswith(b"key 1:")
        return super().loads_typed((data[0], data[1][6:]))


@pytest.mark.parametrize("around", [None, EncryptedSerializer, Framed])
def test_a_derived_serializer_is_told_the_types_of_a_graph(around: Any) -> None:
    """As LangGraph's own savers tell it: it would give the fields of a value for the value."""
    serde: Any = Derived(allowed_msgpack_modules=None)
    if around is not None:
        serde = around.from_pycryptodome_aes(serde=serde, key=b"1" * 16)
        if around is Framed:
            serde = Framed(serde.cipher, serde.serde)
    with MemcoreSaver(":memory:", serde=serde) as saver:
        strict = saver.with_allowlist([("savers", "Note")])
        assert type(strict) is MemcoreSaver
        assert type(strict.serde) is type(serde)
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"x": Note("kept", 1)}
        checkpoint["channel_versions"] = {"x": "1"}
        stored = strict.put(config, checkpoint, {}, {"x": "1"})
        assert strict.get_tuple(stored).checkpoint["channel_values"] == {"x": Note("kept", 1)}
        assert saver.get_tuple(stored).checkpoint["channel_values"] != {"x": Note("kept", 1)}
