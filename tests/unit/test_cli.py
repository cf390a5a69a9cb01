"""The verbs on small databases: what they print, what they refuse, how they exit."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode, exit_code_of, is_judged
from memcore.store import datafile

RUNNER = CliRunner()
HOSTILE = "evil\n\x1b[31mred\x07\u202e\x00"

CALL = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ],
}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    CALL,
    {"role": "tool", "tool_call_id": "c1", "content": "18 °C"},
    {"role": "assistant", "content": "18 degrees."},
    {"role": "user", "content": "And in Rome?"},
]


def run(*arguments: object, stdin: str | bytes | None = None) -> Any:
    return RUNNER.invoke(app, list(map(str, arguments)), input=stdin, env={"MEMCORE_STORE": None})


def parsed(*arguments: object) -> dict[str, Any]:
    ran = run(*arguments, "--json")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.count("\n") == 1
    found = json.loads(ran.stdout)
    assert found.pop("schema") == 1
    assert found.pop("command") == arguments[0]
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        session = db.session("chat", user="alice", app="support")
        session.extend(CHAT)
        waiting = db.session("waiting", user="bob", orphans="keep")
        waiting.extend([CHAT[1], CALL, {"role": "tool", "tool_call_id": "zz", "content": "lost"}])
    return path


@pytest.fixture
def wordy(tmp_path: Path) -> Path:
    """A store of a session that is longer than a summary of it."""
    path = tmp_path / "wordy.memcore"
    with memcore.open(path) as db:
        words = [{**m, "content": (m.get("content") or "") + " and more" * 50} for m in CHAT[1:]]
        db.session("chat").extend([CHAT[0], *words])
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    named = json.dumps({"id": "one", "messages": CHAT, "model": "m"})
    path.write_text(f"{named}\n\n{json.dumps(CHAT[:2])}\n")
    return path


# --- looking --------------------------------------------------------------------------------------


def test_ls(store) -> None:
    found = parsed("ls", "--store", store)["sessions"]
    assert sorted((row["session_id"], row["user"], row["items"]) for row in found) == [
        ("chat", "alice", 6),
        ("waiting", "bob", 3),
    ]
    assert set(found[0]) == {
        "session_id", "app", "user", "items", "tokens", "open_calls", "revision", "policy",
        "counter", "created_at", "updated_at",
    }  # fmt: skip
    only = parsed("ls", "--store", store, "--user", "bob")["sessions"]
    assert [row["session_id"] for row in only] == ["waiting"]
    text = run("ls", "--store", store).stdout.splitlines()
    assert " ".join(text[0].split()) == "SESSION USER APP ITEMS TOKENS OPEN CALLS POLICY UPDATED"
    assert len(text) == 3
    assert parsed("ls", "--store", store, "--app", "none") == {"sessions": []}
    assert run("ls", "--store", store, "--app", "none").stdout.count("\n") == 1


def test_the_store_may_be_named_by_the_environment(store) -> None:
    ran = RUNNER.invoke(app, ["ls"], env={"MEMCORE_STORE": str(store)})
    assert ran.exit_code == 0
    assert "chat" in ran.stdout


def test_show(store) -> None:
    found = parsed("show", "chat", "--store", store)
    assert found["session"]["items"] == 6
    assert found["session"]["open_calls"] == []
    assert [item["message"] for item in found["items"]] == CHAT
    assert [item["kind"] for item in found["items"]][:4] == [
        "system",
        "user",
        "assistant",
        "result",
    ]
    some = parsed("show", "chat", "--store", store, "--start", 2, "--tail", 3)["items"]
    assert [item["seq"] for item in some] == [4, 5, 6]
    none = parsed("show", "chat", "--store", store, "--tail", 0)["items"]
    assert none == []
    text = run("show", "chat", "--store", store, "--tail", "4").stdout
    assert "→ weather({})" in text
    assert "18 °C" in text
    assert "Be brief" not in text


def test_show_marks_open_calls_and_orphans(store) -> None:
    text = run("show", "waiting", "--store", store).stdout
    assert "[OPEN c1] → weather({})" in text
    assert "[ORPHAN] lost" in text
    found = parsed("show", "waiting", "--store", store)
    assert [item["open_calls"] for item in found["items"]] == [[], ["c1"], []]
    assert [item["orphan"] for item in found["items"]] == [False, False, True]
    assert found["session"]["open_calls"][0]["call_id"] == "c1"


def test_show_marks_abandoned_calls_and_prints_events(store) -> None:
    with memcore.open(store) as db:
        session = db.session("waiting", user="bob")
        session.abandon("c1")
        session.record("plan", {"step": 1})
    text = run("show", "waiting", "--store", store).stdout
    assert "[ABANDONED c1]" in text
    assert 'plan: {"step": 1}' in text


def test_a_session_of_two_users_must_be_named_in_full(store) -> None:
    with memcore.open(store) as db:
        db.session("chat", user="bob").append(CHAT[1])
    ran = run("show", "chat", "--store", store)
    assert ran.exit_code == ExitCode.USAGE
    assert "--user 'alice' --app 'support'" in ran.stderr
    assert parsed("show", "chat", "--store", store, "--user", "bob")["session"]["items"] == 1


def test_context(store) -> None:
    found = parsed("context", "chat", "--store", store, "--budget", 1000)
    assert found["messages"] == CHAT
    assert found["budget_tokens"] == 1000
    assert (found["omitted"], found["repairs"], found["violations"]) == (0, [], [])
    small = parsed("context", "chat", "--store", store, "--budget", 30)
    assert small["messages"] == [CHAT[0], CHAT[5]]
    assert small["omitted"] == 4
    text = run("context", "chat", "--store", store, "--budget", 30).stdout
    assert text.startswith("2 messages, ")
    assert "of 30 tokens, 4 items omitted before seq 6" in text


def test_context_lists_repairs(store) -> None:
    with memcore.open(store) as db:
        db.session("waiting", user="bob").append(CHAT[5])
    text = run("context", "waiting", "--store", store).stdout
    assert "repair: orphan item 3, call zz" in text
    assert "repair: synthesized item 2, call c1" in text
    assert "violation" not in text


def test_stats_and_check(store) -> None:
    found = parsed("stats", "--store", store)["stats"]
    assert (found["sessions"], found["items"], found["read_only"]) == (2, 9, True)
    assert re.search(r"^sessions +2$", run("stats", "--store", store).stdout, re.MULTILINE)
    assert parsed("check", "--store", store) == {
        "ok": True,
        "findings": [],
        "hygiene": [],
        "sessions": 2,
        "items": 9,
    }
    assert run("check", "--store", store).stdout == "ok: 2 sessions, 9 items\n"


def test_one_is_told_in_the_singular(tmp_path) -> None:
    path, copy = tmp_path / "one.memcore", tmp_path / "copy.memcore"
    with memcore.open(path) as db:
        db.session("chat").append({"role": "user", "content": "x"})
    verbs = (
        "check", "tree", "show chat", "context chat", "fork chat new", "checkpoint chat",
        "diff chat new", "rewind chat@0 --dry-run", "delete chat --dry-run",
        "recover chat --dry-run", f"copy {path} {copy}", f"salvage {path} --to {copy}.2",
    )  # fmt: skip
    told = ""
    for verb in verbs:
        of = () if verb.startswith(("copy", "salvage")) else ("--store", path)
        ran = run(*verb.split(), *of)
        assert ran.exit_code == 0, ran.output
        told += ran.output
    assert re.findall(r"\b1 (?:[a-z]+ )?[a-z]+s\b", told) == []
    assert {*re.findall(r"\b1 [a-z]+", told)} >= {"1 session", "1 item", "1 message"}


def test_check_with_findings(store, monkeypatch) -> None:
    monkeypatch.setattr(memcore.Database, "check", lambda self, progress: ["item 3\n is gone"])
    ran = run("check", "--store", store)
    assert ran.exit_code == ExitCode.FINDINGS
    assert ran.stdout == "item 3\\n is gone\n1 finding: 2 sessions, 9 items\n"
    assert json.loads(run("check", "--store", store, "--json").stdout)["ok"] is False


@pytest.mark.parametrize(
    "words", [("ls",), ("stats",), ("hold",), ("prune", "--yes"), ("audit", "show")]
)
def test_every_verb_judges_all_pages_before_it_reads_one(tmp_path, words, monkeypatch) -> None:
    monkeypatch.setattr(datafile, "_LOOK_NODES", 100)
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        for number in range(60):
            db.session(f"s{number}").extend(
                [{"role": "user", "content": "word " * 150} for _ in range(40)]
            )
    content = bytearray(path.read_bytes())
    leaves = [at for at in range(8192, len(content), 4096) if content[at + 10] == 2]
    # One in the middle of the tree, whose first row no longer lies where it says.
    content[leaves[len(leaves) // 2] + 17] ^= 0x70
    path.write_bytes(content)
    memcore.open(path).close()  # an opening looks at the pages nearest to the root
    with path.open("r+b") as file:
        file.truncate(2**31)  # LMDB does not mind: no verb may be put off by it
    ran = run(*words, "--store", path)
    assert ran.exit_code == ExitCode.CORRUPT
    assert "of the main tree" in ran.output
    monkeypatch.setenv("MEMCORE_VERIFY", "0")
    assert not is_judged()


def test_looking_writes_nothing(store) -> None:
    before = store.read_bytes()
    for verb in (["ls"], ["show", "chat"], ["context", "chat"], ["stats"], ["check"]):
        assert run(*verb, "--store", store).exit_code == 0
    assert run("compact", "chat", "--store", store, "--dry-run").exit_code == 0
    assert store.read_bytes() == before


def test_an_interrupted_commit_is_pointed_out(store, monkeypatch) -> None:
    monkeypatch.setattr(memcore.Database, "needs_recovery", True)
    ran = run("ls", "--store", store)
    assert ran.exit_code == 0
    assert "its last commit was interrupted" in ran.stderr


def test_a_writer_at_work_is_not_pointed_out(store, monkeypatch) -> None:
    looks = iter([True, False])
    monkeypatch.setattr(memcore.Database, "needs_recovery", property(lambda _: next(looks)))
    assert run("ls", "--store", store).stderr == ""


def test_backup(store, tmp_path) -> None:
    target = tmp_path / "copy.memcore"
    found = parsed("backup", target, "--store", store)
    assert found["bytes"] == target.stat().st_size
    assert parsed("ls", "--store", target) == parsed("ls", "--store", store)
    ran = run("backup", target, "--store", store)
    assert ran.exit_code == ExitCode.REFUSED
    assert "exists" in ran.stderr


# --- compaction -----------------------------------------------------------------------------------


def test_compact_needs_consent(store) -> None:
    ran = run("compact", "chat", "--store", store)
    assert ran.exit_code == ExitCode.REFUSED
    assert "--dry-run" in ran.stderr
    both = run("compact", "chat", "--store", store, "--yes", "--dry-run")
    assert both.exit_code == ExitCode.USAGE


def test_nothing_is_compacted_that_is_not_due(store) -> None:
    for options in ("--dry-run",), ("--yes",):
        ran = run("compact", "chat", "--store", store, *options)
        assert ran.exit_code == 0
        assert "is due at 5 items of 47 tokens; --force or --stage compacts" in ran.stdout
    assert "nothing was written" in run(
        "compact", "chat", "--store", store, "--policy", "keep_last", "--force", "--keep-last", 1,
        "--dry-run",
    ).stdout  # fmt: skip


def test_a_dry_run_says_what_compaction_then_does(wordy) -> None:
    options = ("compact", "chat", "--store", wordy, "--keep-last", 2)
    planned = parsed(*options, "--dry-run")
    assert planned["dry_run"] is True
    assert [item["fate"] for item in planned["items"]] == ["pin", *["fold"] * 3, "keep", "keep"]
    text = run(*options, "--dry-run").stdout
    assert text.startswith(
        "default/default, summarized: cut after seq 4; 3 items are folded, 2 kept, 0 of "
    )
    assert "  tools called: weather\n" in text
    assert text.endswith("nothing was written\n")
    done = parsed(*options, "--yes")
    assert done["plan"] == planned["plan"]
    assert done["view"]["summary"] == planned["summary"]
    again = parsed(*options, "--dry-run")
    assert again["status"] == "nothing"
    assert run(*options, "--dry-run").stdout.startswith("nothing to do: stage 'default' keeps all")
    assert run(*options, "--yes").stdout.startswith("nothing done: stage 'default' keeps all")
    assert parsed("context", "chat", "--store", wordy)["summary"] == planned["summary"]


def test_a_dry_run_shows_what_is_covered(wordy) -> None:
    assert "summarized: seq 4 and before" in (
        run("compact", "chat", "--store", wordy, "--yes", "--keep-last", 2).stdout
    )
    planned = parsed("compact", "chat", "--store", wordy, "--dry-run", "--keep-last", 1)
    fates = [item["fate"] for item in planned["items"]]
    assert fates == ["pin", *["covered"] * 3, "fold", "keep"]


def test_compaction_that_saves_nothing_is_refused(store) -> None:
    options = ("compact", "chat", "--store", store, "--keep-last", 2)
    assert parsed(*options, "--dry-run")["status"] == "refused"
    assert run(*options, "--dry-run").stdout.startswith("nothing to do: it would not save")
    assert parsed(*options, "--yes")["view"] is None
    done = run(*options, "--yes").stdout
    assert done.startswith("nothing done: it would not save enough: 40 tokens before, ")


def test_a_policy_is_a_preset_or_a_file(wordy, tmp_path) -> None:
    options = ("compact", "chat", "--store", wordy, "--dry-run", "--policy")
    assert parsed(*options, "layered", "--stage", "heavy")["policy"] == "layered/heavy"
    (tmp_path / "mine.toml").write_text("name = 'mine'\n[[stages]]\nkeep = { last_items = 1 }\n")
    assert parsed(*options, tmp_path / "mine.toml")["policy"] == "mine/default"
    refused = run(*options, "layred")
    assert refused.exit_code == ExitCode.USAGE
    assert "did you mean 'layered'?" in refused.stderr


# --- import ---------------------------------------------------------------------------------------


def test_import(tmp_path, lines) -> None:
    store = tmp_path / "new.memcore"
    found = parsed("import", lines, "--store", store, "--user", "u", "--app", "a", "--prefix", "p/")
    assert found["bytes"] == lines.stat().st_size
    assert found["file_bytes"] == store.stat().st_size
    assert {key: found[key] for key in ("conversations", "items", "calls", "failed")} == {
        "conversations": 2, "items": 8, "calls": 1, "failed": 0,
    }  # fmt: skip
    with memcore.open(store) as db:
        names = [(entry.session_id, entry.user, entry.app) for entry in db.sessions()]
        assert names == [("p/one", "u", "a"), ("p/talks-000003", "u", "a")]
        assert [item.message for item in db.session("p/one", user="u", app="a").items()] == CHAT


def test_importing_again_changes_nothing(tmp_path, lines) -> None:
    store = tmp_path / "new.memcore"
    run("import", lines, "--store", store)
    for options in ((), ("--on-conflict", "append"), ("--on-conflict", "rename")):
        found = parsed("import", lines, "--store", store, *options)
        assert (found["conversations"], found["items"], found["skipped"]) == (0, 0, 2)
    assert parsed("stats", "--store", store)["stats"]["items"] == 8


def test_append_adds_what_is_new(tmp_path, lines) -> None:
    store = tmp_path / "new.memcore"
    run("import", lines, "--store", store)
    more = [*CHAT, {"role": "assistant", "content": "21 degrees."}]
    lines.write_text(json.dumps({"id": "one", "messages": more}) + "\n")
    assert run("import", lines, "--store", store).exit_code == ExitCode.FINDINGS
    found = parsed("import", lines, "--store", store, "--on-conflict", "append")
    assert (found["conversations"], found["items"]) == (1, 1)
    other = [{"role": "user", "content": "Something else."}, *more]
    lines.write_text(json.dumps({"id": "one", "messages": other}) + "\n")
    ran = run("import", lines, "--store", store, "--on-conflict", "append")
    assert ran.exit_code == ExitCode.FINDINGS
    assert "talks.jsonl: line 1: session 'one' holds other items" in ran.stderr
    assert parsed("show", "one", "--store", store)["session"]["items"] == 7


BAD_LINES = {
    b"{not json": "not JSON",
    b"\xff\xfe": "not UTF-8",
    b"7": "expected a list of messages, got a number",
    b'{"id": "x"}': "'messages' is missing",
    b'["text"]': "messages[0]: expected an object, got a string",
    b'{"id": [1], "messages": []}': "id: expected a non-empty string",
    b'{"id": "", "messages": []}': "id: expected a non-empty string",
    b"[" * 100_000: "nested deeper than the 512 levels",
    b'[{"role": "user", "content": NaN}]': "NaN",
}


def test_malformed_lines_are_reported_and_the_others_loaded(tmp_path, lines) -> None:
    good = lines.read_bytes()
    lines.write_bytes(b"\n".join(BAD_LINES) + b"\n" + good)
    store = tmp_path / "new.memcore"
    ran = run("import", lines, "--store", store, "--json")
    assert ran.exit_code == ExitCode.FINDINGS
    found = json.loads(ran.stdout)
    assert (found["failed"], found["conversations"]) == (len(BAD_LINES), 2)
    reported = ran.stderr.splitlines()
    assert "the field 'model' of 1 conversation has no place" in reported.pop(0)
    assert len(reported) == len(BAD_LINES)
    for number, (line, reason) in enumerate(zip(reported, BAD_LINES.values(), strict=True), 1):
        assert line.startswith(f"memcore: {lines}: line {number}: "), line
        assert reason in line


def test_orphans_are_kept_or_refused(tmp_path) -> None:
    store = tmp_path / "new.memcore"
    line = json.dumps({"id": 5, "messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]})
    refused = run("import", "-", "--store", store, "--orphans", "raise", stdin=line)
    assert refused.exit_code == ExitCode.FINDINGS
    assert "answers call 'x'" in refused.stderr
    kept = run("import", "-", "--store", store, "--json", stdin=line)
    assert json.loads(kept.stdout)["orphans"] == 1
    assert parsed("context", "5", "--store", store)["messages"] == []


@pytest.mark.parametrize("option", ["--pairs", "--orphans"])
def test_import_refuses_unknown_options_at_once(tmp_path, lines, option) -> None:
    store = tmp_path / "new.memcore"
    ran = run("import", lines, "--store", store, option, "nonsense")
    assert ran.exit_code == ExitCode.USAGE
    assert not store.exists()
    assert "nonsense" in ran.stderr.splitlines()[-1]


def test_import_takes_a_policy(tmp_path, lines) -> None:
    store = tmp_path / "new.memcore"
    run("import", lines, "--store", store, "--pairs", "seed")
    assert parsed("ls", "--store", store)["sessions"][0]["policy"] == "seed"
    ran = run("import", lines, "--store", store, "--pairs", "gemini", "--on-conflict", "append")
    assert ran.exit_code == ExitCode.FINDINGS


# --- errors and exit codes ------------------------------------------------------------------------


def test_a_missing_file_and_a_missing_session(store, tmp_path) -> None:
    missing = tmp_path / "missing.memcore"
    for verb in (["ls"], ["stats"], ["check"], ["show", "x"], ["compact", "x", "--yes"]):
        ran = run(*verb, "--store", missing)
        assert ran.exit_code == ExitCode.NOT_FOUND, verb
        assert "there is no such file" in ran.stderr
        assert ran.stderr.startswith("memcore: error: ")
    assert not missing.exists()
    assert run("show", "nope", "--store", store).exit_code == ExitCode.NOT_FOUND
    assert run("show", "chat", "--store", store, "--user", "x").exit_code == ExitCode.NOT_FOUND
    no_lines = run("import", tmp_path / "no.jsonl", "--store", tmp_path / "new.memcore")
    assert no_lines.exit_code == ExitCode.NOT_FOUND
    assert not (tmp_path / "new.memcore").exists()


def test_what_is_no_store(tmp_path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello\n" * 5000)
    for path in (text, tmp_path):
        ran = run("ls", "--store", path)
        assert ran.exit_code == ExitCode.CORRUPT
        assert ran.stderr.startswith("memcore: error: ")
        assert ran.stderr.count("\n") == 1
        assert "Traceback" not in ran.stderr


def test_a_truncated_store(store) -> None:
    os.truncate(store, store.stat().st_size // 8)  # inside the reserved run
    assert run("ls", "--store", store).exit_code == ExitCode.CORRUPT


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write anything")
def test_a_file_without_permissions(store) -> None:
    store.chmod(0)
    assert run("ls", "--store", store).exit_code == ExitCode.STORAGE


def test_wrong_usage(store) -> None:
    assert run("ls").exit_code == ExitCode.USAGE
    assert run("nonsense").exit_code == ExitCode.USAGE
    assert run("show", "chat", "--store", store, "--tail", "-1").exit_code == ExitCode.USAGE
    assert run("context", "chat", "--store", store, "--budget", "0").exit_code == ExitCode.USAGE
    dry = run("compact", "chat", "--store", store, "--yes", "--keep-last", "-1")
    assert dry.exit_code == ExitCode.USAGE
    memory = run("import", "-", "--store", ":memory:")
    assert memory.exit_code == ExitCode.USAGE


def test_a_budget_that_cannot_be_met(store) -> None:
    ran = run("context", "chat", "--store", store, "--budget", "5")
    assert ran.exit_code == ExitCode.REFUSED
    assert "more than the budget" in ran.stderr


CODES = [
    (memcore.RevisionConflict("x", expected=1, current=2), 4),
    (memcore.PlanStaleError("x"), 4),
    (memcore.StoreLockedError("x"), 4),
    (memcore.StoreFormatError("x"), 5),
    (memcore.CorruptStoreError("x"), 5),
    (memcore.CorruptValueError("x", key=b""), 5),
    (memcore.ReadOnlyError("x"), 6),
    (memcore.StoreFullError("x"), 7),
    (memcore.StoreAccessError("x"), 7),
    (memcore.OutcomeUnknownError("x"), 7),
    (memcore.InternalError("x"), 70),
    (AttributeError("x\ny"), 70),
    (OSError(28, "No space left on device", "/f"), 7),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=lambda value: type(value).__name__)
def test_exit_codes_of_errors(store, monkeypatch, error, code) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr(memcore.Database, "stats", fail)
    ran = run("stats", "--store", store)
    assert ran.exit_code == code
    assert ran.stderr.startswith("memcore: error: ")
    assert ran.stderr.count("\n") == 1


def test_every_error_of_memcore_has_a_code() -> None:
    bugs = [
        name
        for name in memcore.__all__
        if isinstance(kind := getattr(memcore, name), type)
        and issubclass(kind, memcore.CallerError | memcore.StorageError)
        and exit_code_of(kind.__new__(kind)) == ExitCode.BUG
    ]
    assert bugs == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("backup", "{to}", "--store", "{store}"),
        ("export", "--all", "--to", "{to}", "--store", "{store}"),
        ("copy", "{store}", "{to}"),
        ("salvage", "{store}", "--to", "{to}"),
        ("restore", "{store}", "--store", "{to}"),
        ("import", "{store}.jsonl", "--store", "{to}"),
        ("bench", "--html", "{to}"),
    ],
)
def test_a_place_without_a_directory_is_not_found(store, tmp_path, arguments) -> None:
    to = tmp_path / "none" / "file"
    ran = run(*(each.format(to=to, store=store) for each in arguments))
    assert ran.exit_code == ExitCode.NOT_FOUND
    assert "there is no directory" in ran.stderr
    assert not to.parent.exists()


def test_exit_codes_are_in_the_help() -> None:
    listed = run("--help").stdout
    assert [code for code in ExitCode if f" {code} " not in listed] == []


# --- hostile names --------------------------------------------------------------------------------


def test_hostile_names_cannot_reach_the_terminal(tmp_path) -> None:
    store = tmp_path / "hostile.memcore"
    with memcore.open(store) as db:
        session = db.session(HOSTILE, user=HOSTILE, app=HOSTILE, orphans="keep", shape="keep")
        call = {
            "id": HOSTILE,
            "type": "function",
            "function": {"name": HOSTILE, "arguments": HOSTILE},
        }
        session.append({"role": HOSTILE, "content": HOSTILE})
        session.append({"role": "assistant", "content": HOSTILE, "tool_calls": [call]})
        session.append({"role": "tool", "tool_call_id": "\x1b]0;", "content": "\x9b31m"})
        session.append({"role": "user", "content": HOSTILE})
    verbs = [["ls"], ["stats"], ["check"]]
    verbs += [["show", HOSTILE], ["context", HOSTILE], ["compact", HOSTILE, "--dry-run"]]
    for verb in [*verbs, ["show", "\x1b[2J"], ["ls", "--store", f"{tmp_path}/\x1b[2J"]]:
        for output in ([], ["--json"]):
            ran = run(verb[0], "--store", store, *verb[1:], *output)
            shown = ran.stdout + ran.stderr
            assert all(char.isprintable() or char == "\n" for char in shown), (verb, shown)
    assert len(run("ls", "--store", store).stdout.splitlines()) == 2
    assert parsed("ls", "--store", store)["sessions"][0]["user"] == HOSTILE
    assert parsed("show", HOSTILE, "--store", store)["items"][0]["message"]["content"] == HOSTILE
