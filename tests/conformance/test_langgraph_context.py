"""``MemcoreSaver.context`` over channels of deltas, and savers over odd serialisers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Overwrite

from memcore.adapters.langgraph import MemcoreSaver
from memcore.errors import InvalidOptionError

OLD, NEW = HumanMessage("old", id="1"), HumanMessage("new", id="2")


@pytest.fixture
def saver(path: Path) -> Iterator[MemcoreSaver]:
    with MemcoreSaver.from_conn_string(path, durability="none", allow_unsafe=True) as made:
        yield made


@pytest.mark.parametrize(
    ("written", "frequency"),
    [
        (Overwrite([NEW]), 100),
        ({"__overwrite__": [NEW]}, 100),
        ([RemoveMessage(id="nobody"), NEW], 100),
        ([NEW, RemoveMessage(id="2")], 100),
        ([RemoveMessage(id="1")], 100),
        (NEW, 1),
    ],
)
def test_a_context_holds_what_the_channel_of_deltas_does(
    saver: MemcoreSaver, written: Any, frequency: int
) -> None:
    channel = DeltaChannel(_messages_delta_reducer, snapshot_frequency=frequency)
    state = TypedDict("State", {"messages": Annotated[list, channel]})  # type: ignore[misc]  # noqa: UP013
    builder = StateGraph(state)
    builder.add_node("node", lambda _: {"messages": written})
    builder.add_edge(START, "node")
    builder.add_node("idle", lambda _: {})
    builder.add_edge("node", "idle")
    graph = builder.compile(checkpointer=saver)
    ended = graph.invoke({"messages": [OLD]}, {"configurable": {"thread_id": "t"}})
    shown = saver.context("t").messages
    assert [message.content for message in shown] == [one.content for one in ended["messages"]]


class Own(EncryptedSerializer):
    """Whatever it does, memcore cannot know: values are stored whole, as it makes them."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return super().dumps_typed(obj)


@pytest.mark.parametrize("value", [b"x" * 100, bytearray(b"x" * 100), ["x" * 100]])
def test_what_an_encrypting_serialiser_of_ones_own_stored_can_be_read(
    path: Path, value: Any
) -> None:
    serde = Own.from_pycryptodome_aes(key=b"k" * 16)
    with MemcoreSaver(path, serde=serde, durability="none", allow_unsafe=True) as saver:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"c": value}, {"c": "1"}
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        saver.put(config, checkpoint, {}, {"c": "1"})
        found = saver.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"c": value}


def test_a_saver_that_cannot_be_made_leaves_no_open_file(path: Path) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        MemcoreSaver(path, user="")
    assert "user" in str(refused.value)
    assert not [one for one in Path("/proc/self/fd").iterdir() if path == one.resolve()]
