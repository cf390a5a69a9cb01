"""Imports of transcripts, chats and plain JSON: trees, compactions, ids, times, second runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from made_transcripts import (
    BYE,
    HELLO,
    OWNED,
    SESSION,
    Transcript,
    Wandering,
    chat,
    result,
    rollout,
    text,
    transcript,
    use,
    write_chats,
    write_rollout,
)
from memcore import importing
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.errors import InvalidOptionError, NotFoundError, SourceError
from memcore.testing.faults import child_env
from messages import user
from thinned import thinned


def imported(db: memcore.Database, kind: str, path: Path, **options: Any) -> importing.ImportReport:
    """Import twice: the second time nothing is added, and the source is as it was."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    before = {each: each.read_bytes() for each in files}
    first = importing.load(db, importing.read(kind, path, **options))
    again = importing.load(db, importing.read(kind, path, **options))
    assert {each: each.read_bytes() for each in files} == before
    assert (again.conversations, again.items, again.aside, again.forks) == (0, 0, 0, 0)
    assert again.present == first.conversations + first.present
    assert again.failures == first.failures
    assert db.check() == []
    return first


def messages(session: memcore.Session) -> list[Any]:
    return [item.message for item in session.items() if item.kind != memcore.ItemKind.EVENT]


def events(session: memcore.Session) -> list[str]:
    found = [item for item in session.items() if item.kind == memcore.ItemKind.EVENT]
    return [item.message["type"] for item in found]


# --- Claude Code ----------------------------------------------------------------------------------


def test_a_transcript_is_a_tree(open_db, tmp_path) -> None:
    path = transcript().write(tmp_path / f"{SESSION}.jsonl", end='{"type": "user", "uu')
    db = open_db()
    report = imported(db, "claude-code", path)
    assert (report.conversations, report.forks, report.summaries, report.aside) == (2, 1, 1, 2)
    assert report.mended == {
        "lines of unknown type 'a-kind-to-come', kept as events": 1,
        "results of parallel calls, joined into one message": 1,
    }
    assert list(report.skipped.values()) == [1]
    assert f"{path}:21" in next(iter(report.skipped))
    session = db.session(SESSION)
    assert messages(session) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [*text("both"), use(1), use(2)]},
        {"role": "user", "content": [result(1), result(2)]},
        {"role": "assistant", "content": text("first answer")},
        {"role": "user", "content": text("second attempt")},
        {"role": "assistant", "content": text("second reply")},
        {"role": "user", "content": text("after")},
        {"role": "assistant", "content": text("final")},
    ]
    branch = db.session(f"{SESSION}/branch-b2")
    assert [each["content"] for each in messages(branch)[3:]] == [
        text("first answer"), text("first attempt"), text("first reply"),
    ]  # fmt: skip
    assert len(messages(db.session(f"{SESSION}/sidechain-1"))) == 2
    assert events(session) == [
        "claude_code.system", "claude_code.user", "claude_code.progress", "claude_code.summary",
        "claude_code.a-kind-to-come",
    ]  # fmt: skip


def test_a_compaction_of_a_transcript_is_a_view(open_db, tmp_path) -> None:
    db = open_db()
    imported(db, "claude-code", transcript().write(tmp_path / "s.jsonl"))
    session = db.session("s")
    (view,) = session.views()
    assert (view.summary, view.reason, view.covered) == ("Summary: a plan.", "import", 7)
    shown = session.context().messages
    assert [each["role"] for each in shown] == ["user", "user", "assistant"]
    assert "Summary: a plan." in json.dumps(shown[0])


def test_ids_and_times_of_a_transcript_are_kept(open_db, tmp_path) -> None:
    db = open_db()
    imported(db, "claude-code", transcript().write(tmp_path / "s.jsonl"))
    first, second, *_ = db.session("s").items()
    assert first.created_at == 1767323040.5
    assert first.meta["claude_code"]["uuid"] == "u1"
    lines = [each["uuid"] for each in second.meta["claude_code"]["lines"]]
    assert [second.meta["claude_code"]["uuid"], *lines] == ["a1", "a2", "a3"]
    assert second.meta["claude_code"]["message"]["id"] == "m1"


def test_a_project_has_its_subagents(open_db, tmp_path) -> None:
    transcript().write(tmp_path / "project" / f"{SESSION}.jsonl")
    agent = Transcript()
    agent.add("user", "x1", None, "look", isSidechain=True, agentId="a7")
    agent.add("assistant", "x2", "x1", text("seen"), isSidechain=True, agentId="a7")
    agent.write(tmp_path / "project" / SESSION / "subagents" / "agent-a7.jsonl")
    db = open_db()
    assert imported(db, "claude-code", tmp_path / "project", user="ann").conversations == 3
    session = db.session(f"{SESSION}/agent-a7", user="ann")
    assert [each["role"] for each in messages(session)] == ["user", "assistant"]


def test_old_transcripts_without_parents_keep_their_order(open_db, tmp_path) -> None:
    made = Transcript()
    for number in range(4):
        made.add(("user", "assistant")[number % 2], f"x{number}", None, text(str(number)))
    db = open_db()
    report = imported(db, "claude-code", made.write(tmp_path / "old.jsonl"))
    assert (report.items, report.forks, sum(report.mended.values())) == (4, 0, 3)


@pytest.mark.parametrize("parents", [("x2", "x0", "x1"), ("x0", "x1", "x2"), ("no", "no", "no")])
def test_circles_and_lost_parents_lose_nothing(open_db, tmp_path, parents) -> None:
    made = Transcript()
    for number, parent in enumerate(parents):
        made.add("user", f"x{number}", parent, str(number))
    db = open_db()
    report = imported(db, "claude-code", made.write(tmp_path / "odd.jsonl"))
    assert report.items + report.aside == 3
    assert sum(report.mended.values()) > 0


def uuids(session: memcore.Session) -> list[str]:
    """Uuids of the lines that a session holds, in order."""
    found: list[str] = []
    for item in session.items():
        if item.kind == memcore.ItemKind.EVENT:
            found.append(item.message["payload"]["uuid"])
        else:
            told = item.meta["claude_code"]
            found += [told["uuid"], *(line["uuid"] for line in told.get("lines", ()))]
    return found


@pytest.mark.parametrize("seed", thinned(range(200), 20))
def test_no_line_of_any_transcript_is_lost(tmp_path, seed) -> None:
    rng = Random(seed)
    wandering = Wandering(rng)
    path = wandering.write(tmp_path / "s.jsonl", rng.randint(1, 12))
    with memcore.open(":memory:") as db:
        imported(db, "claude-code", path)
        held = {uuid for each in db.sessions() for uuid in uuids(db.session(each.session_id))}
        lines = wandering.transcript.lines
        assert {line["uuid"] for line in lines if "message" in line} <= held
        for each in db.sessions():
            assert db.session(each.session_id).context().repairs == ()


@pytest.mark.parametrize("seed", thinned(range(200), 20))
def test_the_live_history_has_what_the_sdk_shows(tmp_path, monkeypatch, seed) -> None:
    sdk = pytest.importorskip("claude_agent_sdk")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    rng = Random(seed)
    path = tmp_path / "projects" / "-x" / f"{SESSION}.jsonl"
    Wandering(rng).write(path, rng.randint(1, 12))
    shown = [message.uuid for message in sdk.get_session_messages(SESSION)]
    assert shown
    with memcore.open(":memory:") as db:
        imported(db, "claude-code", path)
        places: dict[str, int] = {}
        for item in db.session(SESSION).items():
            told = (item.meta or {}).get("claude_code") or item.message["payload"]
            for line in (told, *told.get("lines", ())):
                places[line["uuid"]] = item.seq
    assert set(shown) <= places.keys()
    assert sorted(shown, key=places.__getitem__) == shown  # those of one item in any order


# --- Codex ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rollout-x.jsonl", "rollout-x.jsonl.zst"])
def test_a_rollout(open_db, tmp_path, name) -> None:
    directory = tmp_path / "sessions"
    directory.mkdir()
    write_rollout(directory / name)
    db = open_db()
    report = imported(db, "codex", directory)
    assert (report.conversations, report.forks, report.summaries, report.aside) == (1, 1, 1, 2)
    assert report.skipped == {
        "lines of type event_msg": 1, "lines of unknown type 'a_type_to_come'": 1,
    }  # fmt: skip
    session = db.session(SESSION)
    assert session.policy == "openai_responses"
    expected = [line["payload"] for line in rollout() if line["type"] == "response_item"]
    assert messages(session) == [*expected[:5], expected[7]]
    assert messages(db.session(f"{SESSION}/rolled-back-1")) == expected[:7]
    assert events(session) == ["codex.session_meta", "codex.compacted"]
    assert [view.summary for view in session.views()] == ["Short."]
    assert "right way" in json.dumps(session.context().messages)


@pytest.mark.parametrize("damage", [lambda made: made[:-9], lambda made: made[:20] + b"\xff" * 30])
def test_a_damaged_compression_is_named(open_db, tmp_path, damage) -> None:
    path = tmp_path / "rollout-x.jsonl.zst"
    path.write_bytes(damage(write_rollout(path)))
    report = importing.load(open_db(), importing.read("codex", path))
    (failure,) = report.failures
    assert failure.startswith(f"{path}: ")
    assert "cut off" in failure or "damaged" in failure


# --- ChatGPT, ShareGPT, JSON ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["export.zip", "conversations.json"])
def test_chats(open_db, tmp_path, name) -> None:
    path = write_chats(tmp_path / name, [chat("c1"), chat("c2"), 7])
    db = open_db()
    report = imported(db, "chatgpt", path)
    assert (report.conversations, report.forks, len(report.failures)) == (2, 2, 1)
    assert "value 3" in report.failures[0]
    session = db.session("c1")
    user, call, answer, last = messages(session)
    assert user["content"] == "hi\n[image_asset_pointer file-service://x]"
    assert answer == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "1"}
    assert last == {"role": "assistant", "content": "done"}
    assert session.context().repairs == ()
    assert messages(db.session("c1/branch-a1"))[1]["content"] == "one"
    first = next(iter(session.items()))
    assert first.created_at == 1700000000.5
    assert first.meta["chatgpt"]["content"]["parts"][1]["asset_pointer"] == "file-service://x"


def test_shared_conversations(open_db, tmp_path) -> None:
    turns = [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "yes"},
        {"from": "who?", "value": "?"},
    ]
    rows = [{"id": "q", "system": "s", "tools": "[]", "conversations": turns}, {"messages": []}, 7]
    array, lines = tmp_path / "data.json", tmp_path / "lines.jsonl"
    array.write_text(json.dumps(rows))
    lines.write_text("\n".join(map(json.dumps, rows)))
    for path in (array, lines):
        with memcore.open(":memory:") as db:
            report = imported(db, "sharegpt", path)
            assert (report.conversations, len(report.failures)) == (2, 1)
            session = db.session("q")
            roles = [each["role"] for each in messages(session)]
            assert roles == ["system", "user", "assistant", "tool", "assistant"]
            assert events(session) == ["sharegpt.row", "sharegpt.turn"]
            assert session.context().repairs == ()
            assert len(db.session(f"{path.stem}-000002")) == 0


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (json.dumps([HELLO, BYE]), ["plain"]),
        (f"{json.dumps(HELLO)}\n{json.dumps(BYE)}\n", ["plain"]),
        (json.dumps([[HELLO], [BYE]]), ["plain-000001", "plain-000002"]),
        (f"{json.dumps([HELLO])}\n{json.dumps([BYE])}\n", ["plain-000001", "plain-000002"]),
        (json.dumps([{"id": 7, "messages": [HELLO, BYE]}]), ["7"]),
        (json.dumps({"id": "y", "messages": [HELLO, BYE]}, indent=1), ["y"]),
        ("[]", []),
        ("", []),
    ],
)
def test_plain_json(open_db, tmp_path, content, names) -> None:
    path = tmp_path / "plain.json"
    path.write_text(content)
    db = open_db()
    report = imported(db, "json", path)
    assert [each.session_id for each in db.sessions()] == names
    assert report.items == 2 * bool(names)


def test_owners_and_policies_of_plain_json(open_db, tmp_path) -> None:
    gemini = {"role": "user", "parts": [{"text": "hi"}]}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps([OWNED, {"id": "g", "messages": [gemini]}]))
    db = open_db()
    imported(db, "json", path, app="a", user="u")
    found = {(each.app, each.user, each.session_id, each.policy) for each in db.sessions()}
    assert found == {("shop", "ann", "x", "anthropic"), ("a", "u", "g", "gemini")}


def test_an_export_carries_user_and_app(open_db) -> None:
    db = open_db()
    db.session("s", app="shop", user="ann").append(HELLO)
    for form in ("jsonl", "openai-chat"):
        line = json.loads(b"".join(db.export(format=form)).splitlines()[0])
        owner = line if form == "jsonl" else line["metadata"]["memcore"]
        assert (owner["app"], owner["user"]) == ("shop", "ann")


# --- Runs: conflicts, interruptions, the command line ---------------------------------------------


def write_plain(path: Path, count: int, items: int = 1, suffix: str = "") -> Path:
    rows = [
        {"id": f"c{at:04d}", "messages": [{"role": "user", "content": f"{n}{suffix}"}
                                          for n in range(items)]}
        for at in range(count)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_another_content_under_an_id_is_reported(open_db, tmp_path) -> None:
    path, db = tmp_path / "plain.jsonl", open_db()
    importing.load(db, importing.read("json", write_plain(path, 3)))
    write_plain(path, 4, suffix=" changed")
    report = importing.load(db, importing.read("json", path))
    assert (report.conversations, report.present, len(report.failures)) == (1, 0, 3)
    assert "value 1" in report.failures[0]
    assert "exists with other content" in report.failures[0]
    skipped = importing.load(db, importing.read("json", path), on_conflict="skip")
    assert (skipped.present, len(skipped.left_out), skipped.failures) == (1, 3, [])
    renamed = importing.load(db, importing.read("json", path), on_conflict="rename")
    assert (renamed.renamed, renamed.conversations) == (3, 3)
    assert messages(db.session("c0000 (2)")) == [{"role": "user", "content": "0 changed"}]
    with pytest.raises(InvalidOptionError, match="on_conflict"):
        importing.load(db, importing.read("json", path), on_conflict="append")


def test_a_fork_of_another_origin_is_reported(open_db, tmp_path) -> None:
    path, db = write_chats(tmp_path / "c.json", [chat("c1")]), open_db()
    db.session("c1/branch-a1").append(HELLO)
    report = importing.load(db, importing.read("chatgpt", path))
    assert (report.conversations, report.forks) == (1, 0)
    assert "branch 'c1/branch-a1'" in report.failures[0]


def test_forks_of_a_renamed_conversation_are_its_own(open_db, tmp_path) -> None:
    path, db = tmp_path / "c.json", open_db()
    importing.load(db, importing.read("chatgpt", write_chats(path, [chat("c1")])))
    changed = chat("c1")
    changed["mapping"]["u"]["message"]["content"]["parts"] = ["hello"]
    write_chats(path, [changed])
    report = importing.load(db, importing.read("chatgpt", path), on_conflict="rename")
    assert (report.renamed, report.forks, report.failures) == (1, 1, [])
    names = [each.session_id for each in db.sessions()]
    assert names == ["c1", "c1 (2)", "c1 (2)/branch-a1", "c1/branch-a1"]
    for name in ("c1", "c1 (2)"):
        assert messages(db.session(f"{name}/branch-a1"))[0] == messages(db.session(name))[0]
    assert messages(db.session("c1")) != messages(db.session("c1 (2)"))
    again = importing.load(db, importing.read("chatgpt", path), on_conflict="rename")
    assert (again.present, again.renamed, again.forks) == (1, 0, 0)


def test_files_whose_names_have_dots_are_conversations_of_their_own(open_db, tmp_path) -> None:
    for name in ("a.x", "a.y"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"role": "user", "content": name}))
    db = open_db()
    for name in ("a.x", "a.y"):
        importing.load(db, importing.read("json", tmp_path / f"{name}.jsonl"))
    assert [each.session_id for each in db.sessions()] == ["a.x", "a.y"]


def test_what_is_read_is_filtered_like_any_write(open_db, tmp_path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"role": "user", "content": "write to eve@example.com"}]))
    db = open_db(redact={"classes": ["email"]})
    importing.load(db, importing.read("json", path))
    assert "eve@" not in json.dumps(messages(db.session("p")))
    assert importing.load(db, importing.read("json", path)).present == 1


KILLED = """
import os, signal, sys
import memcore
from memcore import importing

path, kind, store, stop = sys.argv[1:]


def killed(count):
    if count == int(stop):
        os.kill(os.getpid(), signal.SIGKILL)


with memcore.open(store) as db:
    importing.load(db, importing.read(kind, path), progress=killed)
"""


def run_killed(kind: str, path: Path, store: Path, stop: int, rules: str = "") -> int:
    said = [sys.executable, "-c", KILLED, str(path), kind, str(store), str(stop)]
    env = child_env(rules) if rules else None
    return subprocess.run(said, env=env, check=False, stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_killed_import_is_run_again(open_db, path, tmp_path, stop) -> None:
    source = write_plain(tmp_path / "plain.jsonl", 7, items=400)
    assert run_killed("json", source, path, stop) == -9
    db = open_db()
    there = len([each for each in db.sessions() if each.session_id.startswith("c")])
    report = importing.load(db, importing.read("json", source))
    assert (report.conversations, report.present) == (7 - there, there)
    found = [each.items for each in db.sessions() if each.session_id.startswith("c")]
    assert found == [400] * 7
    assert importing.load(db, importing.read("json", source)).present == 7


@pytest.mark.parametrize("point", ["txn.commit=kill", "txn.commit.after=kill", "redo.write=kill"])
@pytest.mark.parametrize("hit", [1, 2, 3, 4])
def test_an_import_killed_in_any_commit_is_run_again(open_db, path, tmp_path, point, hit) -> None:
    with memcore.open(path):
        pass
    source = write_chats(tmp_path / "c.json", [chat("c1"), chat("c2")])
    run_killed("chatgpt", source, path, -1, f"{point}@{hit}")
    db = open_db()
    importing.load(db, importing.read("chatgpt", source))
    names = [each.session_id for each in db.sessions()]
    assert names == ["c1", "c1/branch-a1", "c2", "c2/branch-a1"]
    assert imported(db, "chatgpt", source).conversations == 0
    assert [len(messages(db.session(name))) for name in names] == [4, 2, 4, 2]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_verb_prints_the_report(path, tmp_path) -> None:
    source = transcript().write(tmp_path / "s.jsonl")
    ran = run("import", "--from", "claude-code", source, "--store", path, "--user", "ann")
    assert ran.exit_code == 0
    shown = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert (shown["conversations"], shown["forks"], shown["failures"]) == ("2", "1", "0")
    again = run(
        "import", "--from", "claude-code", source, "--store", path, "--user", "ann", "--json"
    )
    found = json.loads(again.stdout)
    assert (found["present"], found["conversations"], found["kind"]) == (2, 0, "claude-code")
    assert found["mended"]
    with memcore.open(path) as db:
        assert {each.user for each in db.sessions()} == {"ann"}


def test_the_verb_fails_with_what_failed(path, tmp_path) -> None:
    source = write_chats(tmp_path / "c.json", [chat("c1"), 7])
    ran = run("import", "--from", "chatgpt", source, "--store", path, "--prefix", "old/")
    assert ran.exit_code == ExitCode.FINDINGS
    assert "value 2" in ran.stderr
    with memcore.open(path) as db:
        assert [each.session_id for each in db.sessions()] == ["old/c1", "old/c1/branch-a1"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--from", "nothing-known"], ExitCode.USAGE),
        (["--from", "json", "--pairs", "anthropic"], ExitCode.USAGE),
        (["--from", "json", "--format", "anthropic"], ExitCode.USAGE),
        (["--from", "json", "--on-conflict", "append"], ExitCode.USAGE),
        (["--from", "langgraph", "--allow-type", "no-colon"], ExitCode.USAGE),
        (["--from", "openai-agents"], ExitCode.CORRUPT),
    ],
)
def test_the_verb_refuses(path, tmp_path, options, code) -> None:
    source = write_plain(tmp_path / "p.json", 1)
    ran = run("import", *options, source, "--store", path)
    assert ran.exit_code == code
    told = ran.stderr.splitlines()
    assert len(told) == 1 or told[0].startswith("Usage: ")  # in front of a wrong option
    missing = run("import", "--from", "json", tmp_path / "no", "--store", path)
    assert missing.exit_code == ExitCode.NOT_FOUND


def test_arguments_are_checked(open_db) -> None:
    with pytest.raises(InvalidOptionError, match="kind"):
        importing.read("zip", "x")
    with pytest.raises(InvalidOptionError, match="user"):
        importing.read("json", "x", user="")
    with pytest.raises(NotFoundError):
        importing.read("json", "missing").check()
    with pytest.raises(SourceError, match="missing"):
        importing.load(open_db(), importing.read("json", "missing"))


def test_every_kind_has_a_reader() -> None:
    for kind in importing.KINDS:
        home, name = importing.KINDS[kind].reader.split(".")
        module = __import__(f"memcore.importing.{home}", fromlist=[name])
        assert isinstance(getattr(module, name), Callable)
        assert os.fspath(importing.read(kind, Path("x")).path) == "x"


def test_a_complete_export_adds_nothing_the_second_time(open_db) -> None:
    """A fork that was taken back below the item where it began has items of its parent undone."""
    source, target = open_db(), memcore.open(":memory:")
    parent = source.session("s")
    parent.extend([user("1"), user("2")])
    fork = parent.fork("f", at=2)
    fork.append(user("3"))
    fork.rewind(1)
    lines = list(source.export(undone=True))
    assert target.import_(lines).sessions == 2
    for on_conflict in ("error", "rename"):
        again = target.import_(lines, on_conflict=on_conflict)
        assert (again.sessions, again.skipped, again.failures) == (0, 2, [])
    assert [each.session_id for each in target.sessions()] == ["f", "s"]
    target.close()


def test_conversations_of_one_id_keep_their_branches(open_db, tmp_path) -> None:
    other = chat("c1")
    other["mapping"]["u"]["message"]["content"]["parts"] = ["something else"]
    path = write_chats(tmp_path / "c.json", [chat("c1"), other])
    db = open_db()
    report = importing.load(db, importing.read("chatgpt", path), on_conflict="rename")
    assert (report.conversations, report.forks, report.failures) == (2, 2, [])
    for name, begin in (("c1", "hi"), ("c1 (2)", "something else")):
        assert messages(db.session(f"{name}/branch-a1"))[0]["content"].startswith(begin)
    again = importing.load(db, importing.read("chatgpt", path), on_conflict="rename")
    assert (again.conversations, again.forks, again.present) == (0, 0, 2)


def test_undated_conversations_of_one_id_are_added_once(open_db, tmp_path) -> None:
    path = tmp_path / "c.json"
    rest = [{"id": f"f{n}", "messages": [user("more")]} for n in range(20)]
    one, two = ({"id": "x", "messages": [user(text)]} for text in ("one", "two"))
    path.write_text(json.dumps([one, *rest, two]))
    db = open_db()
    for stored in (22, 0, 0):
        report = importing.load(db, importing.read("json", path), on_conflict="rename")
        assert (report.conversations, report.failures) == (stored, [])


def test_further_results_of_a_chat_are_shown(open_db, tmp_path) -> None:
    parts = ["call", "first", "second", "done"]
    roles = ["assistant", "tool", "tool", "assistant"]
    mapping: dict[str, Any] = {"u": {"parent": None, "message": None}}
    before = "u"
    for role, part in zip(roles, parts, strict=True):
        message = {"author": {"role": role}, "content": {"parts": [part]}}
        message["recipient"] = "browser" if part == "call" else "all"
        mapping[part] = {"parent": before, "message": message}
        before = part
    path = write_chats(
        tmp_path / "c.json", [{"id": "c", "current_node": "done", "mapping": mapping}]
    )
    db = open_db()
    report = imported(db, "chatgpt", path)
    assert report.mended["further results of a call, kept as the user's"] == 1
    context = db.session("c").context()
    assert [each["content"] for each in context.messages] == [None, *parts[1:]]
    assert context.repairs == ()


def test_an_abandoned_call_brings_no_text_past_the_redaction(open_db):
    with memcore.open(":memory:") as source:
        session = source.session("s", user="u")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        session.abandon("c1")
        lines = [json.loads(line) for line in source.export()]
    event = next(line for line in lines if line.get("kind") == "event")
    event["meta"] = {"who": "joe.doe@example.com"}
    db = open_db(redact="default")
    assert db.import_(json.dumps(line).encode() + b"\n" for line in lines).sessions == 1
    assert "joe.doe" not in str([each.meta for each in db.session("s", user="u").items()])
    event["item"]["payload"]["note"] = "joe.doe@example.com"
    report = db.import_((json.dumps(line).encode() + b"\n" for line in lines), on_conflict="rename")
    assert "a class and an id" in report.failures[0]
