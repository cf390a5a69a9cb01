"""What the saver's check finds: values that cannot be read, and broken tool sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from memcore.adapters.langgraph import MemcoreSaver
from memcore.codec.keys import Kind
from memcore.graph.store import store_of
from savers import KEY


def call(name: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": name, "name": "look", "args": {}}])


def result(name: str) -> ToolMessage:
    return ToolMessage("found", tool_call_id=name)


SEQUENCES: dict[str, tuple[list[Any], list[str]]] = {
    "legal": ([HumanMessage("?"), call("a"), result("a"), AIMessage("!")], []),
    "open": ([HumanMessage("?"), call("a")], []),
    "orphan": ([HumanMessage("?"), result("a")], ["position 1: orphan_result"]),
    "unanswered": ([call("a"), HumanMessage("?")], ["position 0: unanswered_call"]),
    "others": (["text", {"role": "tool"}], []),
}


@pytest.mark.parametrize("is_secret", [False, True])
@pytest.mark.parametrize("what", SEQUENCES)
def test_tool_sequences(what: str, is_secret: bool, path: Path) -> None:
    messages, told = SEQUENCES[what]
    serde = EncryptedSerializer.from_pycryptodome_aes(key=KEY) if is_secret else None
    with MemcoreSaver(path, serde=serde) as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for number in range(2):
            checkpoint = empty_checkpoint()
            version = f"{number + 1}"
            checkpoint["channel_versions"] = {"messages": version}
            checkpoint["channel_values"] = {"messages": [*messages]}
            config = saver.put(config, checkpoint, {}, {"messages": version})

        found = saver.check()

        assert len(found) == len(told)
        for finding, wanted in zip(found, told, strict=True):
            assert finding.startswith("thread 't', checkpoint '")
            assert f"channel 'messages', {wanted}" in finding


def test_a_value_that_cannot_be_decoded(path: Path) -> None:
    with MemcoreSaver(path) as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint = empty_checkpoint()
        checkpoint["channel_versions"] = {"messages": "1"}
        checkpoint["channel_values"] = {"messages": [HumanMessage("x" * 500)]}
        saver.put(config, checkpoint, {}, {"messages": "1"})
        assert saver.check() == []

        def lose(txn: Any) -> None:
            start, stop = bytes((Kind.CHUNK,)), bytes((Kind.CHUNK + 1,))
            txn.delete(next(key for key, _ in txn.scan(start, stop) if len(key) > 17))

        store_of(saver._graph).transact(lose)
        found = saver.check()

    assert any("channel 'messages': its version '1' cannot be read" in what for what in found)
    assert len(found) == 2
