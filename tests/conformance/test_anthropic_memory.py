"""Anthropic's memory tool over memcore: the SDK's own tool for local files, byte for byte."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
import memcore.aio
from memcore import Recall
from memcore.codec import keys
from memcore.codec.values import seal_value
from memcore.database.redact import redact_all
from memcore.memory.files import FILES_MAX
from memcore.memory.rows import Book, read_entry, text_digest, with_digest, write_entry
from memcore.privacy import Redaction, RedactionPolicy
from memcore.rows import names

pytest.importorskip("anthropic.tools.memory")

from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

from memcore.adapters.anthropic import AsyncMemcoreMemoryTool, MemcoreMemoryTool


def told(tool: Any, **command: Any) -> str:
    """The reply to a command; what it raises is a reply, too. Sizes of directories vary."""
    try:
        is_clear = command["command"] == "clear"
        reply = str(tool.clear_all_memory() if is_clear else tool.call(command))
    except ToolError as error:
        reply = f"! {error.content}"
    if command["command"] == "view" and reply.startswith("Here're"):
        lines = reply.split("\n")
        lines[1] = re.sub(r"^[\d.]+[BKMG]", "D", lines[1])
        lines[2:] = [re.sub(r"^[\d.]+[BKMG](?=\t.*/$)", "D", line) for line in lines[2:]]
        reply = "\n".join(lines)
    return reply


@pytest.fixture
def db(open_db) -> memcore.Database:
    found: memcore.Database = open_db(durability="none")
    return found


@pytest.fixture
def memory(db) -> memcore.Memories:
    found: memcore.Memories = db.scope(user="u").memory
    return found


@pytest.fixture
def tool(memory) -> MemcoreMemoryTool:
    return MemcoreMemoryTool(memory)


def create(path: str, text: str = "one\ntwo\n") -> dict[str, Any]:
    return {"command": "create", "path": path, "file_text": text}


def view(path: str = "/memories", *lines: int) -> dict[str, Any]:
    return {"command": "view", "path": path, **({"view_range": list(lines)} if lines else {})}


def swap(path: str, old: str, new: str) -> dict[str, Any]:
    return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def insert(path: str, at: int, text: str) -> dict[str, Any]:
    return {"command": "insert", "path": path, "insert_line": at, "insert_text": text}


def delete(path: str) -> dict[str, Any]:
    return {"command": "delete", "path": path}


def rename(old: str, new: str) -> dict[str, Any]:
    return {"command": "rename", "old_path": old, "new_path": new}


STORY = (
    view(), create("/memories/a.txt"), create("/memories/a.txt"), view(), view("/memories/"),
    view("/memories/a.txt"), view("/memories/a.txt", 2, 3), view("/memories/a.txt", 1, -1),
    view("/memories/a.txt", 0, 1), view("/memories/a.txt", 5, 9), view("/memories/a.txt", 2),
    view("/memories/b.txt"), view("/etc/passwd"), view("/memories/../etc"), view("/memories/.."),
    view("/memories/../memories/a.txt"), view("/memories/../../memories/a.txt"),
    view("/memories/x/../a.txt"), view("/memories/./a.txt"), view("/memories//a.txt"),
    view("/memoriesa.txt"), view("memories/a.txt"), view("/memories/a.txt/b"), view(""),
    create("/memories"), create("/memories/d/e/f.txt", ""), create("/memories/.hidden", "x"),
    create("/memories/d/.h/x", "x"), view(), view("/memories/d"), view("/memories/d/e/f.txt"),
    create("/memories/big", "x" * 1536), create("/memories/k", "x" * 1024), view(),
    swap("/memories/a.txt", "two", "2\n3"), view("/memories/a.txt"),
    swap("/memories/a.txt", "none", "x"), swap("/memories/a.txt", "\n", "x"),
    swap("/memories/b.txt", "a", "b"), swap("/memories/d", "a", "b"), swap("/memories", "a", "b"),
    swap("/memories/d/e/f.txt", "", "x"), swap("/memories/k", "xx", "y"),
    insert("/memories/a.txt", 0, "zero\n"), insert("/memories/a.txt", 99, "x"),
    insert("/memories/a.txt", -1, "x"), insert("/memories/a.txt", 4, "four"),
    insert("/memories/d/e/f.txt", 0, "\n\n"), insert("/memories/d", 0, "x"),
    insert("/memories/b.txt", 0, "x"), view("/memories/a.txt"), view("/memories/d/e/f.txt"),
    create("/memories/crlf", "a\r\nb\r\n"), insert("/memories/crlf", 1, "c"),
    view("/memories/crlf"), swap("/memories/crlf", "b\r\n", "d"), view("/memories/crlf"),
    rename("/memories/a.txt", "/memories/d/e/a.txt"), rename("/memories/a.txt", "/memories/n/a"),
    rename("/memories/d/e/a.txt", "/memories/big"), rename("/memories", "/memories/x"),
    rename("/memories/d", "/memories"), rename("/etc/x", "/memories/x"),
    rename("/memories/d", "/etc/x"), view(), rename("/memories/d", "/memories/m/d"), view(),
    view("/memories/m/d/e/a.txt"), delete("/memories/none"), delete("/memories"),
    delete("/memories/m/d/e/a.txt"), view("/memories/m/d"), view("/memories/m/d/e"),
    create("/memories/m/d/e/a.txt", "again"), view("/memories/m/d/e/a.txt"),
    delete("/memories/m"), view(), delete("/memories/../x"), create("/memories/m", "file"), view(),
)  # fmt: skip


def test_every_reply_is_that_of_the_sdk(tool, tmp_path):
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path / "files"))
    for at, command in enumerate(STORY):
        assert told(tool, **command) == told(theirs, **command), (at, command)
    assert tool.clear_all_memory() == theirs.clear_all_memory()
    assert told(tool, **view()) == told(theirs, **view())
    assert tool.to_dict() == theirs.to_dict()
    assert tool.name == theirs.name


def test_the_asynchronous_tool_does_the_same(tmp_path):
    async def main() -> None:
        async with memcore.aio.open(tmp_path / "a", durability="none", allow_unsafe=True) as db:
            tool = AsyncMemcoreMemoryTool(db.scope(user="u").memory, cache_control=None)
            sync = MemcoreMemoryTool(db.scope(user="v").memory)
            for command in STORY:
                try:
                    reply = str(await tool.call(command))
                except ToolError as error:
                    reply = f"! {error.content}"
                try:
                    wanted = str(sync.call(command))
                except ToolError as error:
                    wanted = f"! {error.content}"
                assert reply == wanted
            assert await tool.clear_all_memory() == "All memory cleared"

    asyncio.run(main())


PATHS = st.sampled_from(
    ["/memories/a", "/memories/b", "/memories/d/a", "/memories/d/e/a", "/memories/d", "/memories/e"]
)
TEXTS = st.text(alphabet="ab\n", max_size=8)
COMMANDS = st.one_of(
    st.builds(create, PATHS, TEXTS),
    st.builds(view, st.one_of(PATHS, st.just("/memories"))),
    st.builds(swap, PATHS, TEXTS, TEXTS),
    st.builds(insert, PATHS, st.integers(-1, 4), TEXTS),
    st.builds(delete, PATHS),
    st.builds(rename, PATHS, PATHS),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(COMMANDS, max_size=14))
def test_any_commands_have_the_replies_of_the_sdk(tmp_path_factory, commands):
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path_factory.mktemp("files")))
    with memcore.open(":memory:") as db:
        ours = MemcoreMemoryTool(db.scope(user="u").memory)
        for command in commands:
            try:
                wanted = told(theirs, **command)
            except OSError:  # which the SDK does not translate; memcore refuses it as well
                with pytest.raises(ToolError):
                    ours.call(command)
                break  # it may have made directories, which memcore does not
            assert told(ours, **command) == wanted
        else:
            assert told(ours, **view()) == told(theirs, **view())
        assert db.check() == []


def test_each_change_is_a_version_and_what_is_deleted_is_archived(memory, tool):
    for command in (
        create("/memories/a", "1"), swap("/memories/a", "1", "2"), swap("/memories/a", "2", "3"),
        rename("/memories/a", "/memories/b"), delete("/memories/b"), create("/memories/b", "4"),
    ):  # fmt: skip
        tool.call(command)
    assert [(m.slot, m.text, m.status) for m in memory.history(1)] == [
        ("/memories/a", "1", "quarantined"),
        ("/memories/a", "2", "quarantined"),
        ("/memories/a", "3", "quarantined"),
        ("/memories/b", "3", "quarantined"),
        ("/memories/b", "3", "archived"),
    ]
    assert [m.text for m in memory.list(status="quarantined")] == ["4"]
    assert {m.by for m in memory.list()} == {"assistant"}


def test_files_are_shown_by_their_tool_alone(db, tool, memory):
    tool.call(create("/memories/a", "Zebras rule"))
    session = db.session("s", user="u")
    session.append({"role": "user", "content": "zebras"})
    memory.remember("Likes tea", by="operator")
    context = session.context(memory=Recall())
    assert "Zebras" not in str(context.messages)
    assert memory.search("zebras") == []
    (call,) = session.memory.call({"id": "c", "name": "memory_search", "args": {"query": "zebras"}})
    assert call["content"] == "No memory matches."
    with pytest.raises(memcore.InvalidOptionError, match="a file"):
        memory.promote(1, by="root")
    with pytest.raises(memcore.InvalidOptionError, match="a file"):
        memory.update(1, text="x", by="operator")
    db.scope(user="v").memory.remember("x", by="operator")
    memory.grants.give(to=("default", "v"), redact=None)
    shown = db.scope(user="v").memory.list(shared=True)
    assert [each.text for each in shown if each.shared_from] == ["Likes tea"]
    memory.forget(1)
    assert told(tool, **view("/memories/a")).startswith("! The path")
    tool.call(create("/memories/a", "Zebras rule"))  # what was forgotten does not come back by this
    assert memory.get(1).status == "forgotten"


@pytest.mark.parametrize("is_user", [False, True])
def test_a_statement_that_says_the_same_is_a_memory_beside_the_file(db, tool, memory, is_user):
    tool.call(create("/memories/a", "I like tea"))
    before = told(tool, **view("/memories/a"))
    source = None
    if is_user:
        db.session("s", user="u").append({"role": "user", "content": "I like tea"})
        source = memcore.Source("s", (1,))
    place = {"kind": "note", "subject": "/memories", "slot": "/memories/a"}
    said = memory.remember("I like tea", source=source, by=None if is_user else "operator", **place)
    assert (said.id, said.status) == (2, "active")
    assert told(tool, **view("/memories/a")) == before
    assert memory.update(2, text="I like milk", by="operator").id == 2
    memory.update(2, text="I like tea", by="operator")
    tool.call(swap("/memories/a", "tea", "milk"))
    assert memory.get(2).text == "I like tea"
    assert db.check() == []


def digest_rows(db: memcore.Database, text: str) -> list[int]:
    def closure(txn: Any) -> list[int]:
        return with_digest(Book(txn, names.scope_of(txn, "default", "u"), db.engine.seed), text)

    return db.engine.store.read(closure)


def test_a_statement_reads_no_files_of_its_text(db, tool, memory):
    for _ in range(3):
        tool.call(create("/memories/a", "I like tea"))
        tool.call(delete("/memories/a"))
    tool.call(create("/memories/a", "I like tea"))
    assert digest_rows(db, "I like tea") == []
    memory.remember("I like tea", by="operator")
    assert digest_rows(db, "I like tea") == [5]
    memory.forget(1)  # what was forgotten is known all the same
    assert digest_rows(db, "I like tea") == [1, 5]


@pytest.mark.parametrize(
    "last",
    [
        lambda tool, memory: tool.call(swap("/memories/a", "tea", "milk")),
        lambda tool, memory: tool.call(delete("/memories/a")),
        lambda tool, memory: memory.forget(1),
        lambda tool, memory: memory.clear(),
    ],
)
def test_the_digest_row_that_a_file_once_had_is_no_damage_and_goes(db, tool, memory, last):
    tool.call(create("/memories/a", "I like tea"))

    def write(txn: Any) -> None:
        scope = names.scope_of(txn, "default", "u")
        digest = text_digest(db.engine.seed, scope, "I like tea")
        key = keys.memory_rows(scope, keys.MemoryRow.DIGEST, digest, keys.u64(1))
        txn.put(key, seal_value(key, b""))

    db.engine.store.transact(write)
    assert db.check() == []
    assert memory.remember("I like tea", by="operator").id == 2
    last(tool, memory)
    assert db.check() == []
    kept = [1, 2] if memory.list(status="forgotten") else [2]
    assert digest_rows(db, "I like tea") == (kept if memory.list() else [])


def test_no_caller_makes_a_file_by_its_extractor(memory):
    place = {"kind": "note", "subject": "/memories", "slot": "/memories/a"}
    with pytest.raises(memcore.InvalidOptionError, match="memcore's own"):
        memory.remember("x", by="operator", extractor="memory files 1", **place)


def test_scopes_are_apart(open_db):
    db = open_db(durability="none")
    ann, bob = (MemcoreMemoryTool(db.scope(user=user).memory) for user in ("ann", "bob"))
    ann.call(create("/memories/a", "secret"))
    assert told(bob, **view("/memories/a")).startswith("! ")
    assert "a" not in told(bob, **view()).splitlines()[2:]


@pytest.mark.parametrize(
    "command",
    [
        {"command": "view", "path": 7}, {"command": "view"},
        {"command": "create", "path": "/memories/a"},
        {"command": "view", "path": "/memories/a", "view_range": "x"},
        {"command": "view", "path": "/memories/a", "view_range": ["a", None]},
        {"command": "insert", "path": "/memories/a", "insert_line": [1], "insert_text": "x"},
        {"command": "insert", "path": "/memories/a", "insert_line": 10**30, "insert_text": "x"},
        {"command": "str_replace", "path": "/memories/a", "old_str": None, "new_str": 4},
        create("/memories/" + "x" * 300), create("/memories/h", "a\u202eb"),
        create("/memories/h", "\ud800"), create("/memories/n\x00", "x"), create("/memories/a/b"),
        create("/memories/h", "x" * 20_000), create("/memories/h", "x" * 200_000),
        swap("/memories/a", "one", "x" * 20_000), rename("/memories/a", "/memories/" + "y" * 300),
        rename("/memories/d", "/memories/d/e"), rename("/memories/a", "/memories/a/b"),
        rename("/memories/a", None),
    ],
)  # fmt: skip
def test_wrong_commands_are_refused_and_change_nothing(memory, tool, command):
    tool.call(create("/memories/a"))
    tool.call(create("/memories/d/x"))
    before = memory.list()
    with pytest.raises(ToolError) as refused:
        tool.call(command)
    assert len(str(refused.value)) < 1000
    assert memory.list() == before


def test_an_unknown_command_is_the_sdks_error(tool):
    with pytest.raises(NotImplementedError):
        tool.call({"command": "chmod", "path": "/memories/a"})
    for wrong in (None, 7, "memory"):
        with pytest.raises(memcore.InvalidOptionError):
            MemcoreMemoryTool(wrong)  # type: ignore[arg-type]


def test_the_number_of_files_is_bounded(memory, tool, monkeypatch):
    assert FILES_MAX == 1000
    monkeypatch.setattr("memcore.memory.files.FILES_MAX", 3)
    tool.call(create("/memories/d/a"))
    tool.call(create("/memories/b"))
    with pytest.raises(ToolError, match="delete some"):
        tool.call(create("/memories/c"))
    tool.call(delete("/memories/b"))
    tool.call(create("/memories/c"))


def test_a_rename_makes_no_more_directories_than_there_is_room_for(memory, tool, monkeypatch):
    monkeypatch.setattr("memcore.memory.files.FILES_MAX", 3)
    tool.call(create("/memories/a"))
    missing = told(tool, **rename("/memories/none", "/memories/d/e/f/x"))
    assert missing == "! The path /memories/none does not exist"
    assert len(memory.list()) == 1
    assert "delete some" in told(tool, **rename("/memories/a", "/memories/d/e/f/x"))
    told(tool, **rename("/memories/none", "/memories/d/e/x"))
    assert told(tool, **view()).endswith("/memories/d/\nD\t/memories/d/e/")
    assert told(tool, **rename("/memories/a", "/memories/d/e/x")).startswith("Successfully")
    assert len(memory.list()) == 3


def test_two_files_made_at_once_do_not_pass_the_bound(memory, tool, between, monkeypatch):
    monkeypatch.setattr("memcore.memory.files.FILES_MAX", 1)
    other = MemcoreMemoryTool(memory)
    made = between(create("/memories/a"), lambda: other.call(create("/memories/b")))
    assert "delete some" in made
    assert [m.slot for m in memory.list()] == ["/memories/b"]


def test_who_opted_out_has_no_files(open_db):
    scope = open_db(durability="none").scope(user="u")
    tool = MemcoreMemoryTool(scope.memory)
    tool.call(create("/memories/a"))
    scope.opt_out_memory()
    assert told(tool, **view("/memories/a")).startswith("! The path")
    assert told(tool, **create("/memories/b")).startswith("! Error (opted_out)")


def test_what_is_redacted_does_not_reach_a_file(open_db):
    db = open_db(redact="default", durability="none")
    tool = MemcoreMemoryTool(db.scope(user="u").memory)
    tool.call(create("/memories/a", "Mail ann@example.com"))
    assert "ann@example.com" not in told(tool, **view("/memories/a"))
    assert told(tool, **create("/memories/ann@example.com")).startswith("! Error (refused)")


@pytest.fixture
def between(tool, monkeypatch) -> Callable[..., str]:
    """Runs a command of the tool, and something else once it is planned and not yet committed."""
    files = type(tool._files)
    judged = files._judged

    def run(command: dict[str, Any], do: Callable[[], object]) -> str:
        todo = [do]

        def meanwhile(self: Any, changes: Any) -> Any:
            if todo:
                todo.pop()()
            return judged(self, changes)

        with monkeypatch.context() as patched:
            patched.setattr(files, "_judged", meanwhile)
            return told(tool, **command)

    return run


def contents(memory: memcore.Memories) -> dict[str | None, str]:
    return {m.slot: m.text for m in memory.list(status="quarantined") if m.slot != m.text}


def test_changes_at_once_lose_nothing(memory, tool, between):
    tool.call(create("/memories/a", "0\n"))
    other = MemcoreMemoryTool(memory)
    between(
        insert("/memories/a", 0, "second"), lambda: other.call(insert("/memories/a", 0, "first"))
    )
    assert memory.get(1).text == "second\nfirst\n0\n"
    assert memory.get(1).version == 3


@pytest.mark.parametrize(
    "command", [rename("/memories/d", "/memories/e"), delete("/memories/d"), {"command": "clear"}]
)
@pytest.mark.parametrize("more", [{}, {"/memories/d/b": "more"}])
def test_a_change_of_a_directory_keeps_an_edit_in_it(tool, memory, between, command, more):
    tool.call(create("/memories/d/a", "old"))
    other = MemcoreMemoryTool(memory)

    def edit() -> None:
        other.call(swap("/memories/d/a", "old", "new"))
        for path, text in more.items():
            other.call(create(path, text))

    between(command, edit)
    assert [m.text for m in memory.history(2)] == ["old", "new", "new"]
    kept = {"/memories/d/a": "new", **more} if command["command"] == "rename" else {}
    assert contents(memory) == {path.replace("/d/", "/e/"): text for path, text in kept.items()}


@pytest.mark.parametrize(
    "command",
    [
        swap("/memories/d/a", "old", "new"), rename("/memories/d/a", "/memories/b"),
        rename("/memories/d", "/memories/e"), delete("/memories/d/a"), delete("/memories/d"),
    ],
)  # fmt: skip
def test_what_is_redacted_meanwhile_does_not_come_back(db, memory, tool, between, command):
    tool.call(create("/memories/d/a", "old ann@example.com"))
    redaction = Redaction(RedactionPolicy(), secret=b"0" * 32)
    between(command, lambda: list(redact_all(db.engine, redaction.for_place, write=True)))
    texts = [m.text for m in memory.history(2)]
    assert len(texts) == 2
    assert not any("ann@example.com" in text for text in texts)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with memcore.open(tmp_path / "a") as db:
        tool = MemcoreMemoryTool(db.scope(user="u").memory)
        for command in (
            create("/memories/d/empty", ""), create("/memories/b", "x\r\ny"),
            swap("/memories/b", "x", "z"), create("/memories/c"), delete("/memories/c"),
        ):  # fmt: skip
            tool.call(command)
        assert db.check() == []
    return tmp_path / "a"


@pytest.mark.as_stored
def test_files_survive_an_export_and_a_salvage(saved, tmp_path):
    with memcore.open(saved) as db:
        lines = list(db.export())
        listing = told(MemcoreMemoryTool(db.scope(user="u").memory), **view())
    with memcore.open(tmp_path / "b") as db:
        report = db.import_(lines)
        assert not report.failures
        tool = MemcoreMemoryTool(db.scope(user="u").memory)
        assert told(tool, **view()) == listing
        assert db.scope(user="u").memory.get(3).text == "z\r\ny"
        tool.call(swap("/memories/b", "z", "w"))
        assert db.check() == []
    memcore.salvage(saved, tmp_path / "c")
    with memcore.open(tmp_path / "c") as db:
        assert told(MemcoreMemoryTool(db.scope(user="u").memory), **view()) == listing
        assert db.check() == []


def test_a_directory_with_files_in_it_is_not_forgotten(db, tool, memory):
    tool.call(create("/memories/d/e/a", "one"))
    tool.call(create("/memories/de", "two"))
    before = told(tool, **view())
    for number in (1, 2):
        with pytest.raises(memcore.InvalidOptionError, match="is in it"):
            memory.forget(number)
    assert told(tool, **view()) == before
    memory.forget(3)
    assert memory.forget(2).status == "forgotten"
    tool.call(create("/memories/d/x"))
    tool.call(delete("/memories/d"))
    tool.call(create("/memories/d/y"))
    assert memory.forget(1).status == "forgotten"  # it was deleted, and another one is there
    assert told(tool, **view("/memories/d")).endswith("/memories/d/y")
    assert db.check() == []


def file_line(number: int, **changed: Any) -> bytes:
    entry = {
        "id": number, "version": 1, "kind": "note", "by": "assistant", "status": "quarantined",
        "at": 1, "text": "theirs\n", "subject": "/memories", "slot": "/memories/a",
        "extractor": "memory files 1", **changed,
    }  # fmt: skip
    line = {"app": "default", "user": "u", "entry": entry, "versions": []}
    return json.dumps({"memcore": 1, "memory": line}).encode()


@pytest.mark.parametrize(
    "slot", ["/memories/a", "/memories/a/", "/memories/a/b", "/memories/d", "/memories/d/"]
)
def test_an_import_puts_no_file_beside_what_is_at_its_path(db, memory, tool, slot):
    tool.call(create("/memories/a", "ours"))
    tool.call(create("/memories/d/x"))
    before = memory.list()
    report = db.import_([file_line(9, slot=slot)])
    (failure,) = report.failures
    assert "another memory has its slot or its path" in str(failure)
    assert memory.list() == before
    assert not db.import_([file_line(9, status="archived")]).failures
    assert told(tool, **view("/memories/a")).endswith("1\tours")
    assert not db.import_([file_line(8, slot="/memories/b")]).failures
    assert not db.import_([file_line(8, slot="/memories/b")]).failures
    assert told(tool, **view("/memories/b")).endswith("1\ttheirs\n     2\t")


def test_an_import_keeps_the_number_of_files(db, memory, tool, monkeypatch):
    monkeypatch.setattr("memcore.memory.files.FILES_MAX", 2)
    tool.call(create("/memories/b"))
    assert not db.import_([file_line(8)]).failures
    assert not db.import_([file_line(8)]).failures
    assert db.import_([file_line(9, slot="/memories/c")]).failures
    assert len(memory.list()) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"slot": "/memories/../a"}, {"slot": "/memories/./a"}, {"slot": "/memories//a"},
        {"slot": "/memories/"}, {"slot": "/memories"}, {"slot": "/a"}, {"slot": None},
        {"subject": "me"}, {"kind": "fact"}, {"status": "active"},
        {"slot": "/memories/" + "x" * 246},
        {"sources": [{"session": "s", "seqs": [1], "by": "user"}]},
    ],
)  # fmt: skip
def test_an_import_refuses_files_that_no_tool_writes(db, memory, changed):
    assert db.import_([file_line(9, **changed)]).failures
    assert memory.list() == []


def test_a_file_that_arrives_without_its_directories_is_in_them(db, memory, tool):
    whole = MemcoreMemoryTool(db.scope(user="v").memory)
    whole.call(create("/memories/d/e/a", "theirs\n"))
    assert not db.import_([file_line(9, slot="/memories/d/e/a")]).failures
    for command in (
        view(), view("/memories/d"), view("/memories/d/e"), view("/memories/d/e/a"),
        rename("/memories/d", "/memories/f"), view(), view("/memories/f"), view("/memories/d"),
        create("/memories/f/e/b"), view("/memories/f"), view("/memories/none"),
        delete("/memories/f/e"), view(), delete("/memories/f"), view(),
    ):  # fmt: skip
        assert told(tool, **command) == told(whole, **command), command
    assert db.check() == []


@pytest.fixture
def twice(db, memory, tool) -> memcore.Memories:
    """Two files with one path, as an import once made them."""
    tool.call(create("/memories/d/a", "older"))
    tool.call(create("/memories/d/b", "newer"))

    def write(txn: Any) -> None:
        scope = names.scope_of(txn, "default", "u")
        book = Book(txn, scope, db.engine.seed)
        known = read_entry(txn, scope, 3)
        write_entry(book, known._replace(slot="/memories/d/a"), known)

    db.engine.store.transact(write)
    return memory


@pytest.mark.parametrize(
    ("command", "left"),
    [
        (delete("/memories/d/a"), {}),
        (delete("/memories/d"), {}),
        ({"command": "clear"}, {}),
        (rename("/memories/d/a", "/memories/d/c"), {"/memories/d/c": "newer"}),
        (rename("/memories/d", "/memories/e"), {"/memories/e/a": "newer"}),
    ],
)
def test_a_change_reaches_all_files_of_a_path(db, twice, tool, command, left):
    assert told(tool, **view("/memories/d/a")).endswith("newer")
    assert told(tool, **view()).count("/memories/d/a") == 1
    assert db.check() == ["scope 1: memories 2 and 3 are both the file of one path"]
    tool.call(command) if command["command"] != "clear" else tool.clear_all_memory()
    assert contents(twice) == left
    assert db.check() == []


@pytest.mark.as_stored
def test_a_salvage_leaves_one_file_of_a_path(db, path, twice, tool, tmp_path):
    db.flush()
    shutil.copy(path, tmp_path / "copy")
    tool.call(delete("/memories/d/a"))  # the end of the test checks this file
    memcore.salvage(tmp_path / "copy", tmp_path / "c")
    with memcore.open(tmp_path / "c") as mended:
        found = mended.scope(user="u").memory
        assert contents(found) == {"/memories/d/a": "newer"}
        assert found.get(2).status == "archived"
        assert mended.check() == []
