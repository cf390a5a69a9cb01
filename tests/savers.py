"""Checkpoints to put and to compare: what the tests of savers of graph runtimes share."""

from __future__ import annotations

import dataclasses
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send
from pydantic import BaseModel, PrivateAttr

KEY = b"sixteen byte key"
ABSENT: Any = object()
"""A channel that was written and holds no value."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Note:
    text: Any
    tags: Any = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slotted:
    left: Any
    right: Any = None


class Model(BaseModel):
    name: str = "model"
    extra: Any = None
    _secret: Any = PrivateAttr(default=None)


class Meddler(BaseModel):
    """When it is serialised it does the last thing of ``meddling``, as another thread may."""

    content: str = "x" * 40

    def model_dump(self, **options: Any) -> dict[str, Any]:
        if meddling:
            meddling.pop()()
        return super().model_dump(**options)


meddling: list[Callable[[], Any]] = []


def config(thread: Any = "t", ns: str = "", checkpoint: str | None = None) -> RunnableConfig:
    found: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": ns}
    if checkpoint is not None:
        found["checkpoint_id"] = checkpoint
    return {"configurable": found}


def checkpoint_of(
    checkpoint: str, values: Mapping[str, Any], versions: Mapping[str, Any], **more: Any
) -> Any:
    return {
        "v": 4,
        "id": checkpoint,
        "ts": "2026-11-22T10:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions),
        "versions_seen": {"__input__": {}},
        "updated_channels": None,
        **more,
    }


class Chain:
    """Puts checkpoints one after the other into a saver, each with the last as its parent."""

    def __init__(self, saver: Any, thread: str = "t", ns: str = "") -> None:
        self.saver = saver
        self.config = config(thread, ns)
        self.versions: dict[str, Any] = {}
        self.step = 0

    def put(self, *, metadata: Mapping[str, Any] = {}, **changed: Any) -> RunnableConfig:
        """Put a checkpoint in which these channels have new values, the others their old ones."""
        self.step += 1
        found = self.saver.get_tuple(self.config) if "checkpoint_id" in self.there else None
        values = dict(found.checkpoint["channel_values"]) if found is not None else {}
        new = {name: self.saver.get_next_version(self.versions.get(name), None) for name in changed}
        self.versions |= new
        values = {n: v for n, v in {**values, **changed}.items() if v is not ABSENT}
        made = checkpoint_of(f"{self.step:06}", values, self.versions)
        given: Any = {"source": "loop", "step": self.step, "parents": {}, **metadata}
        self.config = self.saver.put(self.config, made, given, new)
        return self.config

    @property
    def there(self) -> dict[str, Any]:
        """The configurable part of the last config."""
        return self.config["configurable"]

    def write(self, *writes: tuple[str, Any], task: str = "task", path: str = "") -> None:
        """Writes that wait at the last checkpoint."""
        self.saver.put_writes(self.config, list(writes), task, path)


def exact(value: Any) -> Any:  # noqa: PLR0911 - a return for each kind of value
    """What is equal only if types, order and bits are: 1, 1.0 and True are three values."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is dict:
        return kind, [(exact(name), exact(entry)) for name, entry in value.items()]
    if kind in (list, tuple, deque):
        return kind, [exact(entry) for entry in value]
    if kind in (set, frozenset):
        return kind, sorted(map(repr, map(exact, value)))
    if isinstance(value, tuple):
        return kind, [exact(entry) for entry in value]
    if isinstance(value, BaseModel):
        slots = (value.__pydantic_extra__, value.__pydantic_private__)
        return kind, exact(vars(value)), exact(slots), sorted(value.__pydantic_fields_set__)
    if dataclasses.is_dataclass(value):
        return kind, [(f.name, exact(getattr(value, f.name))) for f in dataclasses.fields(value)]
    if kind is Send:
        return kind, exact([value.node, value.arg]), repr(value.timeout)
    return kind, value


def exact_tuple(found: CheckpointTuple | None) -> Any:
    """A checkpoint for comparison; the order of its channels says nothing."""
    if found is None:
        return None
    body: dict[str, Any] = dict(found.checkpoint)
    values = body.pop("channel_values")
    return {
        "config": exact(found.config),
        "parent": exact(found.parent_config),
        "metadata": exact(found.metadata),
        "body": exact(body),
        "values": {name: exact(values[name]) for name in sorted(values)},
        "writes": exact(found.pending_writes),
    }


def through(serde: Any, value: Any) -> Any:
    """What a saver that stores values whole would hand out."""
    return serde.loads_typed(serde.dumps_typed(value))


# --- strategies -----------------------------------------------------------------------------------


class Large(NamedTuple):
    """Stands for a large value in what is drawn: hypothesis prints all that it draws."""

    number: int

    @property
    def value(self) -> Any:
        """The value itself."""
        large = ("x" * 70_000, "é\x00" * 110_000, b"\x00\xff" * 40_000, ["y" * 60, *range(900)])
        value = large[self.number // 2]
        return [value, {"large": value}] if self.number % 2 else value


_texts = st.one_of(st.sampled_from(("", "a", "ü\x00", "x" * 40)), st.text(max_size=12))
_names = st.sampled_from(("", "a", "b", "ü\x00", "n" * 50))
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from((0, 1, 0.0, -0.0, 1.0, float("nan"), float("inf"))),
    _texts,
    st.sampled_from(("\ud800", "a\udfffb")),
    st.binary(max_size=40),
    st.binary(max_size=40).map(bytearray),
    st.sampled_from(
        (
            Colour.RED,
            Decimal("1.50"),
            UUID(int=5),
            date(2026, 1, 2),
            datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
            timedelta(seconds=1.5),
            Path("a/b"),
        )
    ),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    texts = st.text(max_size=8)
    return st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(_names, inner, max_size=4),
        st.dictionaries(st.one_of(st.integers(0, 3), texts), inner, max_size=3),
        st.sets(st.one_of(texts, st.integers(0, 3)), max_size=3),
        st.frozensets(texts, max_size=2),
        st.lists(inner, max_size=3).map(deque),
        st.builds(HumanMessage, content=_clean, id=st.just("m1")),
        st.builds(AIMessage, content=_clean, additional_kwargs=st.dictionaries(_names, _plain)),
        st.builds(ToolMessage, content=_clean, tool_call_id=texts, artifact=_plain),
        st.builds(Note, inner, st.lists(inner, max_size=2)),
        st.builds(Slotted, inner, inner),
        st.builds(Model, extra=_plain),
        st.builds(Point, inner, inner),
        st.builds(Send, st.just("node"), inner),
    )


_clean = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
_plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.just(-0.0), _clean),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_clean, inner, max_size=3)
    ),
    max_leaves=5,
)
values = st.recursive(_scalars, _containers, max_leaves=10)
"""Any value of a channel."""
channel_values = st.one_of(
    values,
    values.map(_DeltaSnapshot),
    st.lists(values, max_size=12),
    st.integers(200, 700).map(lambda size: [size * at % 31 for at in range(size)]),
    st.builds(Large, st.integers(0, 7)),
)


def ordered(found: Sequence[CheckpointTuple]) -> dict[Any, list[Any]]:
    """Checkpoints of a list by thread and namespace: only within these is their order promised."""
    groups: dict[Any, list[Any]] = {}
    for one in found:
        there = one.config["configurable"]
        place = there["thread_id"], there["checkpoint_ns"]
        groups.setdefault(place, []).append(exact_tuple(one))
    return groups
