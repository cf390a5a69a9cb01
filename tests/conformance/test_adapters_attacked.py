"""Adapters of frameworks under hostile use: shared ids, redaction, races, lines of any depth."""

from __future__ import annotations

import asyncio
import time
from threading import Thread
from typing import Any

import pytest

import memcore
from memcore.adapters.claude_agent import MemcoreSessionStore
from memcore.adapters.lines import Lines, call_input
from memcore.errors import InvalidItemError

run = asyncio.run
KEY = {"project_key": "p", "session_id": "s"}


def deep(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("given", ["", "{", "[" * 50_000, "[1]", "7", None, 7, {"a": 1}])
def test_arguments_of_a_call_may_be_any_text(given) -> None:
    assert isinstance(call_input(given), dict)


# --- Claude Agent SDK -----------------------------------------------------------------------------


@pytest.fixture
def transcripts(tmp_path):
    pytest.importorskip("claude_agent_sdk")
    with MemcoreSessionStore(tmp_path / "a.memcore") as store:
        yield store


def line(uuid: str, content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": uuid, "message": {"role": "user", "content": content}, **more}


@pytest.mark.parametrize("bad", [line("1", deep(3000)), line("1", more=deep(3000))])
def test_a_line_that_is_too_deep_is_refused(transcripts, bad) -> None:
    with pytest.raises(InvalidItemError, match="deep"):
        run(transcripts.append(KEY, [line("0"), bad]))
    assert run(transcripts.load(KEY)) is None


def test_a_context_of_blocks_without_ids(transcripts) -> None:
    blocks = [{"type": "tool_result"}, {"type": "tool_use"}]
    run(transcripts.append(KEY, [line("1", blocks)]))
    assert run(transcripts.load(KEY)) == [line("1", blocks)]
    assert all(message["role"] == "user" for message in transcripts.context(KEY).messages)


# --- Pydantic AI ----------------------------------------------------------------------------------


def test_conversations_that_are_saved_with_the_same_entries(tmp_path) -> None:
    conversation_store = pytest.importorskip("pydantic_ai.conversation_store")
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from memcore.adapters.pydantic_ai import MemcoreConversationStore

    async def saved(store: Any) -> list[str]:
        message = ModelRequest(parts=[UserPromptPart(content="hi")])
        entries = [
            conversation_store.ConversationEntry(id=name, parent_id=parent, message=message)
            for name, parent in (("e1", None), ("e2", "e1"), ("e2", "e1"))
        ]
        for name in ("a", "b"):
            record = conversation_store.ConversationRecord(
                conversation_id=name, head_id="e2", revision="1"
            )
            await store.write_record(record, new_entries=entries, expected_revision=None)
        await store.delete_record("a", expected_revision="1")
        return [entry.id for entry in await store.read_history("e2")]

    expected = run(saved(conversation_store.InMemoryConversationStore()))
    with MemcoreConversationStore(tmp_path / "a.memcore") as store:
        assert run(saved(store)) == expected == ["e1", "e2"]


# --- Strands --------------------------------------------------------------------------------------


def repository(tmp_path: Any) -> Any:
    pytest.importorskip("strands.storage")
    from strands.types.session import Session, SessionAgent, SessionType

    from memcore.adapters.strands import MemcoreSessionRepository

    found = MemcoreSessionRepository(tmp_path / "a.memcore")
    found.create_session(Session(session_id="s", session_type=SessionType.AGENT))
    for agent in ("a", ""):
        agent_state = SessionAgent(agent_id=agent, state={}, conversation_manager_state={})
        found.create_agent("s", agent_state)
    return found


def test_messages_behind_a_large_one_read_no_whole_log(tmp_path, monkeypatch) -> None:
    with repository(tmp_path) as found:
        from strands.types.session import SessionMessage

        document = {"name": "d", "format": "txt", "source": {"bytes": b"z" * 60_000}}
        large = {"role": "user", "content": [{"text": "x"}, {"document": document}]}
        found.create_message("s", "a", SessionMessage(message=large, message_id=0))
        monkeypatch.setattr("memcore.adapters.strands.repository._found", None)
        for number in range(1, 4):
            said = {"role": "user", "content": [{"text": "y"}]}
            found.create_message("s", "a", SessionMessage(message=said, message_id=number))
        assert [each.message_id for each in found.list_messages("s", "a")] == [0, 1, 2, 3]


def test_a_deleted_session_keeps_no_message_of_an_agent_without_a_name(tmp_path) -> None:
    with repository(tmp_path) as found:
        from strands.types.session import SessionMessage

        said = {"role": "user", "content": [{"text": "secret"}]}
        found.create_message("s", "", SessionMessage(message=said, message_id=0))
        found.delete_session("s")
        assert list(found.scope.sessions()) == []


def test_a_message_is_not_stored_behind_the_deletion_of_its_agent(tmp_path, monkeypatch) -> None:
    with repository(tmp_path) as found:
        from strands.types.exceptions import SessionException
        from strands.types.session import SessionMessage

        said = {"role": "user", "content": [{"text": "late"}]}
        writing = Lines.writing

        def deleting(lines: Lines, *values: Any, **options: Any) -> Any:
            made = writing(lines, *values, **options)
            found.delete_session("s")  # by another process, between the reading and the commit
            return made

        monkeypatch.setattr(Lines, "writing", deleting)
        with pytest.raises(SessionException, match="does not exist"):
            found.create_message("s", "a", SessionMessage(message=said, message_id=0))
        assert list(found.scope.sessions()) == []


def test_a_legal_hold_keeps_the_agents_with_their_messages(tmp_path) -> None:
    with repository(tmp_path) as found:
        from strands.types.session import SessionMessage

        said = {"role": "user", "content": [{"text": "evidence"}]}
        found.create_message("s", "a", SessionMessage(message=said, message_id=0))
        found.scope.hold(reason="a case")
        with pytest.raises(memcore.HeldError):
            found.delete_session("s")
        assert found.read_agent("s", "a") is not None
        found.create_message("s", "a", SessionMessage(message=said, message_id=1))
        assert len(found.list_messages("s", "a")) == 2


def test_a_writer_that_is_always_outpaced_is_told_so(tmp_path, monkeypatch) -> None:
    with repository(tmp_path) as found:
        from strands.types.session import SessionMessage

        said = {"role": "user", "content": [{"text": "x"}]}
        writing, other = Lines.writing, found.session("s", "a")

        def outpaced(lines: Lines, *values: Any, **options: Any) -> Any:
            made = writing(lines, *values, **options)
            other.append({"role": "user", "content": "faster"})
            return made

        monkeypatch.setattr(Lines, "writing", outpaced)
        with pytest.raises(memcore.StoreLockedError, match="256 times"):
            found.create_message("s", "a", SessionMessage(message=said, message_id=0))
        assert found.list_messages("s", "a") == []


# --- LlamaIndex -----------------------------------------------------------------------------------


@pytest.fixture
def chats(tmp_path):
    pytest.importorskip("llama_index.core")
    from memcore.adapters.llama_index import MemcoreChatStore

    with MemcoreChatStore(tmp_path / "a.memcore") as store:
        yield store


def chat(text: str, **more: Any) -> Any:
    from llama_index.core.base.llms.types import ChatMessage

    return ChatMessage(role="user", content=text, additional_kwargs=more)


def test_ids_behind_a_large_message_and_a_clock_set_back(chats, monkeypatch) -> None:
    for at in (2_000, 1_000, 2_000):
        monkeypatch.setattr(time, "time_ns", lambda at=at: at * 10**15)
        run(chats.add_message("k", chat("x", large="w" * 40_000)))
    ids = run(chats.get_ids("k"))
    assert ids == sorted(set(ids))
    assert len(ids) == 3


def meanwhile(monkeypatch: Any, change: Any) -> None:
    """Let another thread change the chats once, right before lines are removed."""
    renew, waiting = Lines._renew, [change]

    def changed(self: Lines, *args: Any, **options: Any) -> None:
        if waiting:
            other = waiting.pop()
            thread = Thread(target=lambda: run(other()))
            thread.start()
            thread.join()
        renew(self, *args, **options)

    monkeypatch.setattr(Lines, "_renew", changed)


def test_two_that_delete_the_oldest_delete_two(chats, monkeypatch) -> None:
    run(chats.add_messages("k", [chat(str(number)) for number in range(4)]))
    meanwhile(monkeypatch, lambda: chats.delete_oldest_messages("k", 1))
    assert [each.content for each in run(chats.delete_oldest_messages("k", 1))] == ["1"]
    assert [each.content for each in run(chats.get_messages("k"))] == ["2", "3"]


def test_what_is_archived_meanwhile_is_not_deleted_as_active(chats, monkeypatch) -> None:
    from llama_index.core.storage.chat_store.base_db import MessageStatus

    run(chats.add_messages("k", [chat(str(number)) for number in range(4)]))
    meanwhile(monkeypatch, lambda: chats.archive_oldest_messages("k", 2))
    run(chats.delete_messages("k", MessageStatus.ACTIVE))
    assert [each.content for each in run(chats.get_messages("k", None))] == ["0", "1"]


def test_replacing_by_archived_messages_that_fails_loses_nothing(chats, monkeypatch) -> None:
    from llama_index.core.storage.chat_store.base_db import MessageStatus

    async def fails(*_: Any) -> None:
        raise OSError("no room")

    run(chats.add_message("k", chat("old")))
    with monkeypatch.context() as patch:
        patch.setattr(type(chats), "add_messages", fails)
        with pytest.raises(OSError, match="no room"):
            run(chats.set_messages("k", [chat("new")], MessageStatus.ARCHIVED))
    assert [each.content for each in run(chats.get_messages("k", None))] == ["old"]
    run(chats.set_messages("k", [chat("new")], MessageStatus.ARCHIVED))
    assert [each.content for each in run(chats.get_messages("k", MessageStatus.ARCHIVED))] == [
        "new"
    ]


# --- Agent Framework ------------------------------------------------------------------------------


def test_a_replayed_transcript_is_known_under_redaction(tmp_path) -> None:
    framework = pytest.importorskip("agent_framework")
    from memcore.adapters.agent_framework import MemcoreHistoryProvider

    messages = [
        framework.Message(role=role, contents=[framework.Content.from_text(text)])
        for role, text in (
            ("user", "mail bob@example.com"), ("assistant", "done"),
            ("user", "mail ann@example.com"), ("assistant", "done, too"),
        )
    ]  # fmt: skip
    with memcore.open(tmp_path / "a.memcore", redact=True) as db:
        history = MemcoreHistoryProvider(db)
        for _ in range(2):
            run(history.save_messages("s", messages))
        assert len(run(history.get_messages("s"))) == 4


def test_a_call_with_a_number_that_json_has_not(tmp_path) -> None:
    framework = pytest.importorskip("agent_framework")
    from memcore.adapters.agent_framework import MemcoreHistoryProvider

    call = framework.Content.from_function_call(
        call_id="c", name="n", arguments={"x": float("inf")}
    )
    with MemcoreHistoryProvider(tmp_path / "a.memcore") as history:
        run(history.save_messages("s", [framework.Message(role="assistant", contents=[call])]))
        assert len(run(history.get_messages("s"))) == 1


# --- Sessions that are written anew, names of any length ------------------------------------------


def test_a_line_read_before_the_session_was_written_anew_replaces_no_other(tmp_path) -> None:
    def view(value: dict[str, Any]) -> dict[str, Any] | None:
        return {"role": "user", "content": value["text"]}

    with memcore.open(tmp_path / "a.memcore") as db:
        session = db.session("s", policy="anthropic", orphans="keep", shape="keep")
        lines = Lines(session, "lines", view)
        with session.batch() as batch:
            for text in ("one", "two", "three"):
                lines.put(batch, {"text": text})
        *_, old = lines.read()
        lines.replace(lambda line: line.value["text"] == "one")  # another process: seqs move
        with pytest.raises(memcore.RevisionConflict):
            lines.rewrite(old, {"text": "redacted"})
        first, last = lines.read()
        with pytest.raises(memcore.RevisionConflict):
            lines.rewrite(old._replace(seq=first.seq), {"text": "redacted"})
        lines.rewrite(last, {"text": "redacted"})
        assert [line.value["text"] for line in lines.read()] == ["two", "redacted"]


def test_a_legal_hold_keeps_what_a_line_said(tmp_path) -> None:
    def view(value: dict[str, Any]) -> dict[str, Any] | None:
        return {"role": "user", "content": value["text"]}

    with memcore.open(tmp_path / "a.memcore") as db:
        session = db.session("s", policy="anthropic", orphans="keep", shape="keep")
        lines = Lines(session, "lines", view)
        with session.batch() as batch:
            lines.put(batch, {"text": "evidence"})
        session.hold(reason="a trial")
        (line,) = lines.read()
        with pytest.raises(memcore.HeldError):
            lines.rewrite(line, {"text": "redacted"})
        assert [line.value["text"] for line in lines.read()] == ["evidence"]


def test_sessions_with_long_names_are_listed_once(tmp_path) -> None:
    from memcore.database.scope import sessions_under

    names = ["p:a", "p:" + "x" * 600, "p:" + "y" * 3000, "q", "q" * 700]
    with memcore.open(tmp_path / "a.memcore") as db:
        scope = db.scope(user="ann")
        for name in names:
            scope.session(name).append({"role": "user", "content": "hi"})
        for prefix in ("p:", "q", "p:" + "y" * 2000, "\U0010ffff", "z"):
            found = [entry.session_id for entry in sessions_under(scope, prefix)]
            expected = [name for name in names if name.startswith(prefix) and name != prefix]
            assert sorted(found) == sorted(expected)
