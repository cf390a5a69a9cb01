"""MemcoreChatStore behaves as LlamaIndex's own store on SQL, and as its Memory expects."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

pytest.importorskip("llama_index.core")
pytest.importorskip("aiosqlite")

from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

from memcore.adapters.llama_index import MemcoreChatStore

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED


def said(text, role="user", **more):
    return ChatMessage(role=role, content=text, **more)


def called(*ids):
    blocks = [ToolCallBlock(tool_call_id=each, tool_name="look", tool_kwargs={"q": each})
              for each in ids]  # fmt: skip
    return ChatMessage(role="assistant", blocks=[TextBlock(text="wait"), *blocks])


def answered(call_id, text="secret answer"):
    return said(text, "tool", additional_kwargs={"tool_call_id": call_id, "name": "look"})


@pytest.fixture
def store():
    with MemcoreChatStore(":memory:", allow_unsafe=True) as opened:
        yield opened


def run(made):
    return asyncio.run(made)


# --- against the framework's own store ------------------------------------------------------------

MESSAGES = st.one_of(
    st.builds(
        said,
        st.text(max_size=20),
        role=st.sampled_from(["user", "assistant", "system", "developer", "chatbot", "model"]),
        additional_kwargs=st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2),
    ),
    st.builds(called, st.sampled_from(["c1", "c2"]), st.sampled_from(["c3", "c4"])),
    st.builds(answered, st.sampled_from(["c1", "c2", "c3", "c9"]), st.text(max_size=10)),
    st.just(said("no call", "tool")),
    st.just(ChatMessage(role="user", blocks=[
        TextBlock(text="see"), ImageBlock(image=b"\x89PNG" * 9000, image_mimetype="image/png"),
    ])),
    st.just(ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"),
                                                  TextBlock(text="so")])),
)  # fmt: skip
KEYS = st.sampled_from(["a", "a/b", "ü %"])
STATUSES = st.sampled_from([ACTIVE, ARCHIVED])
NUMBERS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add_message"), KEYS, MESSAGES, STATUSES),
        st.tuples(st.just("add_messages"), KEYS, st.lists(MESSAGES, min_size=1, max_size=4),
                  STATUSES),
        st.tuples(st.just("set_messages"), KEYS, st.lists(MESSAGES, max_size=4), STATUSES),
        st.tuples(st.just("delete_messages"), KEYS, st.sampled_from([None, ACTIVE, ARCHIVED])),
        st.tuples(st.just("delete_oldest_messages"), KEYS, NUMBERS),
        st.tuples(st.just("archive_oldest_messages"), KEYS, NUMBERS),
    ),
    max_size=12,
)  # fmt: skip


def dumped(found):
    if isinstance(found, list):
        return [each.model_dump(mode="json") for each in found]
    return found


async def played(store: AsyncDBChatStore, steps):
    seen = []
    for name, key, *arguments in steps:
        seen.append(dumped(await getattr(store, name)(key, *arguments)))
        seen.append(dumped(await store.get_messages(key, limit=2, offset=1)))
    for key in ("a", "a/b", "ü %"):
        for status in (ACTIVE, ARCHIVED, None):
            seen.append(dumped(await store.get_messages(key, status=status)))
            assert await store.count_messages(key, status=status) == len(seen[-1])
    found = await store.get_keys()
    seen.append(sorted({k for k in found if await store.count_messages(k, status=None)}))
    return seen


@given(STEPS)
@settings(deadline=None, max_examples=40)
def test_any_steps_leave_what_the_sql_store_has(steps):
    with MemcoreChatStore(":memory:", allow_unsafe=True) as ours:
        theirs = SQLAlchemyChatStore(table_name="t")

        async def both():
            found = await played(ours, steps), await played(theirs, steps)
            if theirs._async_engine is not None:
                await theirs._async_engine.dispose()
            return found

        mine, other = run(both())
    assert mine == other


def test_a_message_is_deleted_by_its_seq(store):
    run(store.add_messages("k", [said("one"), said("two", "assistant"), said("three")]))
    seqs = [item.seq for item in store.session("k").items()]
    assert run(store.delete_message("k", seqs[1])).content == "two"
    assert run(store.delete_message("k", seqs[1])) is None
    assert run(store.delete_message("k", 99)) is None
    assert [each.content for each in run(store.get_messages("k"))] == ["one", "three"]


# --- what the file holds --------------------------------------------------------------------------


def raw(path):
    return Path(path).read_bytes()


def test_what_is_deleted_is_not_in_the_file(tmp_path):
    path = tmp_path / "chat.memcore"
    with MemcoreChatStore(path) as store:
        run(store.add_messages("k", [
            said("planted-user-text"), called("c1"), answered("c1", "planted-result-text"),
            ChatMessage(role="user", blocks=[TextBlock(text="x" * 20_000 + "planted-long-text")]),
            said("kept text"),
        ]))  # fmt: skip
        run(store.delete_oldest_messages("k", 4))
        assert [each.content for each in run(store.get_messages("k"))] == ["kept text"]
        told = [str(item.message) for item in store.session("k").items()]
        assert not any("planted" in each for each in told)
        assert store.session("k").state.get("llama_index.ranges")["due"] == []
        assert memcore.validate([i.message for i in store.session("k").items()]) == []
    with memcore.open(path) as db:
        assert db.check() == []


def test_an_interrupted_deletion_is_finished_by_the_next_one(store, monkeypatch):
    from memcore.adapters.llama_index import chat_store

    run(store.add_messages("k", [said("first secret"), said("second"), said("third")]))
    wipe = chat_store._wipe
    monkeypatch.setattr(chat_store, "_wipe", lambda _: None)  # a kill right after the commit
    run(store.delete_oldest_messages("k", 1))
    monkeypatch.setattr(chat_store, "_wipe", wipe)
    assert len(run(store.get_messages("k"))) == 2
    assert any("first secret" in str(item.message) for item in store.session("k").items())
    run(store.delete_oldest_messages("k", 1))
    assert not any("sec" in str(item.message) for item in store.session("k").items())
    assert [each.content for each in run(store.get_messages("k"))] == ["third"]


def test_users_are_apart_and_erased_with_their_histories(tmp_path):
    with memcore.open(tmp_path / "db") as db:
        ann = MemcoreChatStore(db, user="ann")
        bob = MemcoreChatStore(db, user="bob")
        run(ann.add_message("k", said("of ann")))
        run(bob.add_message("k", said("of bob")))
        db.erase(user="ann")
        assert run(ann.get_keys()) == []
        assert [each.content for each in run(bob.get_messages("k"))] == ["of bob"]


def test_contexts_are_legal_and_fit(store):
    messages = [said("hi"), called("c1", "c2"), answered("c1"), said("and?"), answered("c2")]
    run(store.add_messages("k", messages))
    whole = store.context("k")
    assert whole[0] == messages[0]
    assert [each.role for each in whole[1:4]] == ["assistant", "tool", "tool"]
    run(store.archive_oldest_messages("k", 2))  # the call goes, its results stay
    shown = store.context("k")
    assert [each.content for each in shown] == ["and?"]
    with pytest.raises(memcore.ContextOverflowError):
        store.context("k", 1)


def test_a_key_that_is_no_text_is_refused(store):
    for key in ("", None, 7):
        with pytest.raises(memcore.InvalidOptionError, match="key"):
            run(store.add_message(key, said("x")))
    assert run(store.get_keys()) == []


# --- the framework's Memory -----------------------------------------------------------------------


def test_its_memory_keeps_its_queue_in_the_store(tmp_path):
    path = tmp_path / "chat.memcore"

    async def talk(store, turns):
        memory = Memory.from_defaults(
            session_id="chat", chat_store=store, token_limit=400, chat_history_token_ratio=0.5,
            token_flush_size=100,
        )  # fmt: skip
        for turn in turns:
            await memory.aput(said(f"question {turn} " + "word " * 20))
            await memory.aput(said(f"answer {turn} " + "word " * 20, "assistant"))
        return await memory.aget(), await memory.aget_all(status=None)

    with MemcoreChatStore(path) as store:
        shown, everything = run(talk(store, range(8)))
        assert len(everything) == 16
        assert 0 < len(shown) < 16
    with MemcoreChatStore(path) as store:  # another process, later
        shown, everything = run(talk(store, [8]))
        assert len(everything) == 18
        assert shown[-1].content.startswith("answer 8")
        assert shown[0].role == MessageRole.USER


def _writer(path, name, count):
    with MemcoreChatStore(path) as store:
        for number in range(count):
            run(store.add_message("k", said(f"{name}-{number}")))
            if number % 5 == 4:
                run(store.archive_oldest_messages("k", 1))


def test_two_processes_lose_nothing(tmp_path):
    path = tmp_path / "chat.memcore"
    MemcoreChatStore(path).close()
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_writer, args=(path, name, 20)) for name in "ab"]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert [each.exitcode for each in writers] == [0, 0]
    with MemcoreChatStore(path) as store:
        found = [each.content for each in run(store.get_messages("k", status=None))]
        assert len(run(store.get_messages("k", status=ARCHIVED))) == 8
    assert sorted(found) == sorted(f"{name}-{number}" for name in "ab" for number in range(20))
    assert [each for each in found if each[0] == "a"] == [f"a-{number}" for number in range(20)]
