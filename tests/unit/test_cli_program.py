"""The program as a process: what it loads, how it ends, and the demo."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import memcore
from memcore.cli import main
from memcore.cli.app import SECTIONS, VERBS, command_of
from memcore.cli.options import REDACTIONS, ExitCode
from memcore.cli.output import clip, escape, timestamp
from memcore.cli.storm import run_child
from memcore.preview import preview
from memcore.privacy import POLICY_PRESETS
from thinned import thinned

PROGRAM = [sys.executable, "-m", "memcore"]
ROOT = Path(__file__).parents[2]


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def environment() -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
    return {key: value for key, value in os.environ.items() if key != "MEMCORE_STORE"} | {
        "PYTHONPATH": path
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        session = db.session("chat")
        session.extend([{"role": "user", "content": f"line {n}"} for n in range(2000)])
    return path


def loaded_by(*args: str) -> list[str]:
    """What a verb prints, by line, and the modules that are loaded then."""
    code = (
        "import sys; from memcore.cli import main; assert not main(sys.argv[1:]); "
        "print(*sys.modules, sep='\\n')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.split("\n")


def test_the_version_needs_no_libraries() -> None:
    first, *loaded = loaded_by("--version")
    assert first == f"memcore {memcore.__version__}"
    assert {"click", "rich", "memcore.cli.app"}.isdisjoint(loaded)


def test_help_imports_no_verb() -> None:
    """So it is quick, and a verb that cannot be imported leaves the list of verbs whole."""
    lines = loaded_by("--help")
    assert not {f"memcore.cli.{verb.module}" for verb in VERBS.values()} & {*lines}
    for name, verb in VERBS.items():
        assert any(re.fullmatch(rf"  {name} +{re.escape(verb.summary)}", line) for line in lines)


def test_a_check_loads_only_what_the_file_has(store: Path) -> None:
    """A file without graphs, memories, blobs and an index is checked in 0.13 s instead of 0.16."""
    first, *loaded = loaded_by("check", "--store", str(store))
    assert first.startswith("ok: 1 ")
    idle = (
        "memcore.graph.",
        "memcore.memory.",
        "memcore.search.",
        "memcore.blobs.store",
        "hashlib",
    )
    assert [name for name in loaded if name.startswith(idle)] == []


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_has_the_name_under_which_it_is_listed(name) -> None:
    assert command_of(name).name == name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("memcore", "comp"), {"compact"}),
        (("memcore", "show", "--ta"), {"--tail"}),
        (("memcore", "retention", "s"), {"show", "set"}),
        (("memcore", "memory", "pro"), {"profile", "promote"}),
    ],
)
def test_a_shell_completes_verbs_and_options(words, expected) -> None:
    variables = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    ran = run(_MEMCORE_COMPLETE="bash_complete", **variables)
    assert {line.partition(",")[2] for line in ran.stdout.splitlines()} == expected, ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_makes_a_shell_complete(shell) -> None:
    ran = run("--show-completion", shell)
    assert ran.returncode == 0
    assert f"_MEMCORE_COMPLETE={shell}_complete" in ran.stdout


def test_the_version_among_other_options(capsys) -> None:
    assert main(["--debug", "--version"]) == 0
    assert capsys.readouterr().out == f"memcore {memcore.__version__}\n"


def test_main_returns_the_exit_code(store, capsys) -> None:
    assert main(["stats", "--store", str(store)]) == 0
    assert main(["show", "nope", "--store", str(store)]) == 3
    assert main(["--nonsense"]) == 2
    assert "nope" in capsys.readouterr().err


def test_debug_shows_a_traceback(store) -> None:
    plain = run("show", "nope", "--store", store)
    loud = run("show", "nope", "--store", store, "--debug")
    assert plain.returncode == loud.returncode == 3
    assert "Traceback" not in plain.stderr
    assert "Traceback" in loud.stderr
    assert loud.stderr.splitlines()[-1] == plain.stderr.strip()


def test_a_closed_pipe_is_quiet(store) -> None:
    with subprocess.Popen(
        [*PROGRAM, "show", "chat", "--store", str(store), "--json"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.read(1)
        started.stdout.close()
        complaints = started.stderr.read()
    assert complaints == b""
    assert started.returncode == 141


def test_an_encoding_without_the_characters_is_no_error(store) -> None:
    with memcore.open(store) as db:
        db.session("wide").append({"role": "user", "content": "18 °C → 雨"})
    ran = run("show", "wide", "--store", store, PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert "18 \\xb0C \\u2192 \\u96e8" in ran.stdout


def on_terminal(arguments: list[str], **variables: str) -> str:
    """What the program writes to a terminal, stdout and stderr together."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        env=environment() | {"TERM": "xterm-256color", "COLUMNS": "100"} | variables,
        stdout=follower,
        stderr=follower,
    ) as started:
        os.close(follower)
        found = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not piece:
                break
            found += piece
    os.close(leader)
    assert started.returncode == 0
    return found.decode()


def test_tables_and_progress_on_a_terminal(store, tmp_path) -> None:
    listed = on_terminal(["ls", "--store", str(store)])
    assert "─────" in listed
    assert "chat" in listed
    lines = tmp_path / "talks.jsonl"
    lines.write_text('[{"role": "user", "content": "hi"}]\n')
    assert "importing" in on_terminal(["import", str(lines), "--store", str(store)])
    assert "checking" in on_terminal(["check", "--store", str(store)])


def test_colours_can_be_refused(store) -> None:
    colours = re.compile(r"\x1b\[[\d;]*3\d[\d;]*m")
    listed = on_terminal(["ls", "--store", str(store)], NO_COLOR="1")
    assert "─────" in listed
    assert not colours.search(listed)


def test_a_terminal_that_is_too_narrow_gets_plain_lines(store) -> None:
    listed = on_terminal(["ls", "--store", str(store)], COLUMNS="40")
    assert "─" not in listed
    assert "SESSION" in listed


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["demo", "--keep", "no/such/file"], ExitCode.NOT_FOUND, "there is no directory 'no'"),
        (["bench", ""], ExitCode.USAGE, "data: expected a file's path, got ''"),
        (["restore", "", "--store", "x"], ExitCode.USAGE, "BACKUP: expected a file's path, got ''"),
    ],
)
def test_a_path_that_cannot_be_is_told_as_such(capsys, arguments, code, told) -> None:
    assert main(arguments) == code
    assert told in capsys.readouterr().err


def test_an_mcp_server_of_an_application_without_the_user_says_where_he_is(tmp_path) -> None:
    path = tmp_path / "agent.memcore"
    with memcore.open(path) as db:
        db.session("s", user="u", app="desk").append({"role": "user", "content": "hello"})
    for app, told in (
        ("default", "of user 'u' in application 'default'; --app: 'desk'"),
        ("desk", ""),
    ):
        ran = run("mcp", "--store", path, "--user", "u", "--app", app)  # its client is away at once
        assert ran.returncode == 0
        assert (told in ran.stderr) if told else not ran.stderr


# --- demo -----------------------------------------------------------------------------------------


def test_the_demo_holds_what_it_claims(tmp_path) -> None:
    kept = tmp_path / "demo.memcore"
    ran = run("demo", "--keep", kept)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "FAILED" not in ran.stdout
    assert "OrphanResultError" in ran.stdout
    assert "repair: hoisted item 13, call call_hotel" in ran.stdout
    assert "acknowledged and missing: 0" in ran.stdout
    *_, last_row, _, hint = ran.stdout.splitlines()
    assert last_row.startswith("check  ")
    assert hint == f"kept: memcore show rebooking --store {kept}"
    with memcore.open(kept, read_only=True) as db:
        assert db.check() == []
        assert {entry.session_id for entry in db.sessions()} == {
            "rebooking",
            "rebooking-early",
            "storm",
        }
    again = run("demo", "--keep", kept)
    assert again.returncode == 6


def test_the_demo_notices_a_loss(tmp_path, monkeypatch, capsys) -> None:
    def lose_one(path: Path) -> object:
        acknowledged, status = run_child(path)
        return [*acknowledged, (10**6, 0, 0)], status

    monkeypatch.setattr("memcore.cli.storm.run_child", lose_one)
    assert main(["demo"]) == 1
    printed = capsys.readouterr()
    assert "FAILED: nothing acknowledged is missing" in printed.out
    assert "1 claim failed: nothing acknowledged is missing" in printed.err


# --- small things ---------------------------------------------------------------------------------


def test_text_is_made_harmless() -> None:
    assert escape("plain ünïcode 雨") == "plain ünïcode 雨"
    assert escape("a\nb\x1b\x7f\x9b\u202e\ud800") == "a\\nb\\x1b\\x7f\\x9b\\u202e\\ud800"
    assert clip("a  b\n c", 10) == "a b c"
    assert clip("abcdef", 4) == "abc…"
    assert timestamp(0) == "1970-01-01 00:00:00Z"
    assert timestamp(1e300) == "1e+300"


PREVIEWS = [
    (
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]},
        'hi {"type": "image"}',
    ),
    (
        {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}]},
        '→ f({"a": 1})',
    ),
    ({"role": "user", "content": [{"type": "tool_result", "content": "ok"}]}, "ok"),
    ({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}, "→ f({})"),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, "→ f({})"),
    ({"type": "function_call_output", "output": "ok"}, "ok"),
    (
        {"type": "ai", "data": {"content": "hi", "tool_calls": [{"name": "f", "args": {}}]}},
        "hi → f({})",
    ),
    ({"role": "assistant", "tool_calls": ["junk", {"function": 7}]}, "→ None()"),
    ({"x": 1}, '{"x": 1}'),
]


@pytest.mark.parametrize(("message", "text"), PREVIEWS)
def test_previews_of_every_wire_format(message, text) -> None:
    assert preview(message) == text


# --- where there is nothing to print to -----------------------------------------------------------

PRINTING = (
    ["--version"], ["--help"], ["ls"], ["ls", "--json"], ["stats"], ["show", "chat"], ["check"],
    ["doctor"], ["context", "chat"], ["retention"], ["export", "--all", "--to", "-"],
    ["bundle", "chat", "--seq", "1"], ["sweep", "--dry-run"],
)  # fmt: skip


@pytest.mark.parametrize("verb", thinned(PRINTING, 4), ids=" ".join)
def test_a_full_device_behind_standard_output_is_one_line(store, verb) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [*PROGRAM, *verb],
            env=environment() | {"MEMCORE_STORE": str(store)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == ExitCode.STORAGE, ran.stderr
    assert ran.stderr.splitlines()[-1] == "memcore: error: standard output: No space left on device"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("verb", thinned(PRINTING, 4), ids=" ".join)
def test_without_standard_streams_a_verb_does_its_work(store, verb) -> None:
    before = store.read_bytes()
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *PROGRAM, *verb]
    ran = subprocess.run(
        command,
        env=environment() | {"MEMCORE_STORE": str(store)},
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0
    assert store.read_bytes() == before  # no descriptor of a stream was the database's


@pytest.mark.parametrize(
    ("package", "verb"),
    [
        ("click", ["ls"]),
        ("lmdb", ["stats"]),
        ("cryptography", ["ls"]),
        ("tiktoken", ["import", "-", "--counter", "tiktoken:o200k_base"]),
    ],
)
def test_a_package_that_is_missing_is_no_bug_of_memcore(store, tmp_path, package, verb) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('gone', name={package!r})")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    variables = {"MEMCORE_STORE": str(store), "PYTHONPATH": path, "MEMCORE_KEY": "01" * 32}
    ran = run(*verb, **variables)
    assert ran.returncode in (ExitCode.USAGE, ExitCode.REFUSED), ran.stderr
    assert "bug in memcore" not in ran.stderr
    assert ran.stderr.count("\n") == 1
    if package != "cryptography":  # the store is not encrypted
        assert package in ran.stderr


def test_a_bare_installation_says_what_the_command_line_needs(tmp_path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('no click', name='click')")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    ran = run("stats", PYTHONPATH=path)
    assert (ran.returncode, ran.stdout) == (ExitCode.USAGE, "")
    assert "pip install 'memcore-db[cli]'" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert run("--version", PYTHONPATH=path).returncode == ExitCode.OK


def test_the_child_of_the_demo_takes_no_module_of_the_current_directory(
    tmp_path, monkeypatch
) -> None:
    (tmp_path / "xxhash.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as ``python -m memcore`` does
    told, ended = run_child(tmp_path / "storm.memcore")
    assert ended == -signal.SIGKILL
    assert told


def test_the_demo_runs_the_package_that_it_belongs_to(tmp_path, monkeypatch) -> None:
    """Not what lies in the directory: a checkout has a memcore without its compiled core."""
    (tmp_path / "memcore").mkdir()
    (tmp_path / "memcore" / "__init__.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    acknowledged, status = run_child(tmp_path / "storm.memcore")
    assert acknowledged
    assert status == -9


def test_a_checkout_that_is_in_the_way_is_named(tmp_path) -> None:
    (tmp_path / "memcore").mkdir()
    (tmp_path / "memcore" / "__init__.py").write_bytes(Path(memcore.__file__).read_bytes())
    ran = subprocess.run(
        [sys.executable, "-c", "import memcore"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert str(tmp_path / "memcore") in ran.stderr
    assert "work in another directory" in ran.stderr


def test_errors_are_there_before_they_are_imported() -> None:
    code = "import memcore; print(memcore.errors.CallerError.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("CallerError\n", "")


# --- paths and names ------------------------------------------------------------------------------


def test_the_home_directory_is_meant_by_a_tilde(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with memcore.open("~/a.memcore") as db:
        db.session("s").append({"role": "user", "content": "Hi."})
        assert db.path == str(tmp_path / "a.memcore")
        db.backup(b"~/b.memcore")
    memcore.restore("~/b.memcore", Path("~/c.memcore"))
    assert memcore.salvage("~/c.memcore", "~/d.memcore").sessions
    assert sorted(entry.name for entry in tmp_path.glob("*.memcore")) == [
        "a.memcore", "b.memcore", "c.memcore", "d.memcore",
    ]  # fmt: skip
    assert not (tmp_path / "~").exists()
    ran = run("ls", HOME=str(tmp_path), MEMCORE_STORE="~/a.memcore")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_anything_that_is_a_path_is_taken_and_a_url_is_not(tmp_path) -> None:
    path = tmp_path / "a.memcore"
    for given in (str(path), os.fsencode(path), path):
        with memcore.open(given) as db:
            assert db.path == str(path)
    for bad in ("file:a.memcore", f"file://{path}", "", b"", "a\0b", 7, None):
        with pytest.raises(memcore.InvalidOptionError, match="path: expected"):
            memcore.open(bad)


def test_only_public_names_are_shown() -> None:
    assert sorted(name for name in dir(memcore) if not name.startswith("__")) == sorted(
        name for name in memcore.__all__
    )
    with memcore.open(":memory:") as db:
        session = db.session("s")
        for shown in (db, session, db.scope(user="u"), session.state, db.retention):
            for name in dir(shown):
                is_told = name.startswith("_") or getattr(type(shown), name, shown).__doc__
                assert is_told, f"{type(shown).__name__}.{name} has no docstring"
        assert {"append", "context", "state"} <= {*dir(session)}
        assert "appending" not in dir(session)
        assert "plan_batch" not in dir(session)
        assert "engine" not in dir(db)


# --- what a newcomer meets -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("fork chat chat", ExitCode.REFUSED, "'chat' exists"),
        ("copy STORE there", ExitCode.REFUSED, "there exists; name a new file"),
        ("salvage STORE --to there", ExitCode.REFUSED, "exists"),
        ("bundle chat --out there", ExitCode.REFUSED, "exists"),
        ("audit verify --key-file nothing", ExitCode.NOT_FOUND, "nothing: No such file"),
        ("copy nothing new", ExitCode.NOT_FOUND, "nothing: there is no such file"),
        ("copy STORE :memory:", ExitCode.USAGE, "is gone with the program"),
        ("copy :memory: new", ExitCode.USAGE, "is gone with the program"),
        ("copy STORE agent.memcore.keys", ExitCode.REFUSED, "belongs to the database"),
        ("keys --user u", ExitCode.USAGE, "say whose data keys --rotate-data replaces"),
        ("keys --rotate-to env:X --app a --yes", ExitCode.USAGE, "say whose data keys"),
        ("doctor --store no/such/x", ExitCode.NOT_FOUND, "no/such/x: there is no directory 'no'"),
        ("check --store no/x", ExitCode.NOT_FOUND, "no/x: there is no directory 'no'"),
        ("salvage no/x --to new", ExitCode.NOT_FOUND, "no/x: there is no directory 'no'"),
        ("restore no/x --store new", ExitCode.NOT_FOUND, "no/x: there is no directory 'no'"),
        ("migrate --store no/x --dry-run", ExitCode.NOT_FOUND, "there is no directory 'no'"),
        ("mcp --store no/x --write --create", ExitCode.NOT_FOUND, "there is no directory 'no'"),
        ("audit anchor --anchor no/x", ExitCode.NOT_FOUND, "no/x: there is no directory 'no'"),
        ("state chat temp:x --set 1 --yes", ExitCode.USAGE, "never stored"),
        ("search line --session nope", ExitCode.NOT_FOUND, "no session 'nope'"),
        ("retention show --session nope", ExitCode.NOT_FOUND, "no session 'nope'"),
        ("retention set standard --dry-run --yes", ExitCode.USAGE, "either --dry-run or --yes"),
        ("retention set standard", ExitCode.REFUSED, "say --dry-run to see the rules"),
        ("retention set", ExitCode.USAGE, "name the rules"),
        ("retention show standard", ExitCode.USAGE, "show takes no rules"),
        ("retention set nope.toml --yes", ExitCode.NOT_FOUND, "there is no file 'nope.toml'"),
        ("compact chat --policy nope.toml --dry-run", ExitCode.NOT_FOUND, "there is no file"),
        ("compact chat --policy nope --dry-run", ExitCode.USAGE, "expected one of default"),
        ("bench --policy nope", ExitCode.USAGE, "expected one of default"),
        ("bench --seconds nan", ExitCode.USAGE, "is no finite number"),
        ("audit cut --older-than-days nan --yes", ExitCode.USAGE, "is no finite number"),
        ("memory consolidate --archive-below inf", ExitCode.USAGE, "is no finite number"),
        ("prune nope --dry-run", ExitCode.NOT_FOUND, "'memcore ls --threads' lists them"),
        ("sweep --yes --archive no/x", ExitCode.NOT_FOUND, "there is no directory 'no'"),
        ("export --all --to ''", ExitCode.USAGE, "expected a file's path, got ''"),
        ("import ''", ExitCode.USAGE, "expected a file's path, got ''"),
        ("state chat '' --set 1 --yes", ExitCode.USAGE, "name one value"),
        ("context chat --reserve 10", ExitCode.USAGE, "there is no --budget"),
        ("context chat --budget 10 --reserve 10", ExitCode.USAGE, "the budget is 10"),
        ("rewind chat@1 --dry-run --yes", ExitCode.USAGE, "not both"),
        ("recover chat --step bogus", ExitCode.USAGE, "'bogus'"),
        ("import .", ExitCode.CORRUPT, "Is a directory"),
    ],
)
def test_wrong_input_is_told_in_one_way(store, monkeypatch, words, code, told) -> None:
    monkeypatch.chdir(store.parent)
    Path("there").write_text("stays")
    arguments = [str(store) if each == "STORE" else each for each in shlex.split(words)]
    ran = run(*arguments, MEMCORE_STORE=str(store))
    assert ran.returncode == code, ran.stderr
    assert told in ran.stderr
    assert ran.stdout == ""
    assert Path("there").read_text() == "stays"


def test_a_policy_is_that_of_a_compaction_everywhere(store, tmp_path) -> None:
    """What import and redact called so works as before, and its new name is told."""
    lines, new = tmp_path / "one.jsonl", tmp_path / "new.memcore"
    lines.write_text(json.dumps([{"role": "user", "content": "x"}]))
    for option, told in (("--policy", "--policy is called --pairs here now"), ("--pairs", "")):
        new.unlink(missing_ok=True)
        ran = run("import", lines, "--store", new, option, "anthropic")
        assert (ran.returncode, told in ran.stderr, bool(told)) == (0, True, bool(ran.stderr))
        with memcore.open(new, read_only=True) as db:
            assert [each.policy for each in db.sessions()] == ["anthropic"]
    for option, told in (("--policy", "--policy is called --redact here now"), ("--redact", "")):
        ran = run("redact", option, "strict", "--dry-run", "--json", "--store", store)
        assert (ran.returncode, told in ran.stderr, bool(told)) == (0, True, bool(ran.stderr))
        assert json.loads(ran.stdout)["policy"] == "strict"
    both = run("redact", "--policy", "strict", "--redact", "zh", "--dry-run", "--store", store)
    assert (both.returncode, "give one" in both.stderr) == (ExitCode.USAGE, True)
    takes = {name: command_of(name) for name in VERBS}
    shown = {
        name: [option.help for option in command.params if "--policy" in option.opts]
        for name, command in takes.items()
        if any("--policy" in option.opts and not option.hidden for option in command.params)
    }
    assert shown.keys() == {"compact", "bench"}
    assert shown["compact"] == shown["bench"]
    assert REDACTIONS.replace(" or ", ", ").split(", ") == list(POLICY_PRESETS)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, set[str]]]:
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            yield from _commands(each, f"{name} {inner}")
    else:
        yield name, {option for each in command.params for option in each.opts}


def test_what_asks_for_consent_shows_first_and_what_is_shown_is_there_as_json() -> None:
    found = dict(each for name in VERBS for each in _commands(command_of(name), name))
    # An anchor is a line that is added to a file of its own.
    asks = {name for name, options in found.items() if "--yes" in options} - {"audit anchor"}
    assert {name for name in asks if "--dry-run" not in found[name]} == set()
    assert {name for name, options in found.items() if "--json" not in options} == {
        "ui", "mcp", "demo",  # two servers and a show
    }  # fmt: skip


def test_a_dry_run_writes_nothing_and_says_what_is_done(tmp_path) -> None:
    store, backup = tmp_path / "a.memcore", tmp_path / "backup"
    with memcore.open(store) as db:
        scope = db.scope(user="u")
        scope.session("chat").extend({"role": "user", "content": f"line {n}"} for n in range(3))
        scope.kv("n").put("k", 1)
        scope.memory.remember("Likes tea", by="operator")
        scope.hold(reason="case 7")
        db.backup(backup)

    def told(words: str, *more: str) -> dict[str, Any]:
        ran = run(*shlex.split(words), *more, "--json", MEMCORE_STORE=str(store))
        assert (ran.returncode, ran.stderr) == (0, "")
        found = json.loads(ran.stdout)
        return {name: value for name, value in found.items() if name not in {"seconds", "kept"}}

    for words in (
        "kv n k --user u --set 2", "kv n k --user u --delete", "state chat x --set 3",
        "state chat x --delete", "hold u --release", "demand --redact strict", "demand --no-guards",
        f"restore {backup} --replace",
    ):  # fmt: skip
        before = store.read_bytes()
        planned = told(words, "--dry-run")
        assert store.read_bytes() == before, words
        assert planned == told(words, "--yes") | {"dry_run": True}, words
        both = run(*shlex.split(words), "--dry-run", "--yes", MEMCORE_STORE=str(store))
        assert both.returncode == ExitCode.USAGE
    assert told("hold u --reason 'case 8'", "--dry-run")["apps"] == ["default"]
    for words in ("recount --all --counter bytes/3", "recount chat --counter bytes/3"):
        planned = told(words, "--dry-run")
        assert planned == told(words) | {"dry_run": True}
    run("hold", "u", "--release", "--yes", MEMCORE_STORE=str(store))
    planned = told("memory forget 1 --user u", "--dry-run")
    assert (planned["text"], planned["dry_run"]) == ("Likes tea", True)
    assert told("memory forget 1 --user u", "--yes")["status"] == "forgotten"
    assert run("memory", "forget", "9", "--dry-run", "--store", store).returncode == 3


def test_an_export_is_summed_up_as_json(store, tmp_path) -> None:
    to = tmp_path / "out.jsonl"
    ran = run("export", "--all", "--to", to, "--json", "--store", store)
    found = json.loads(ran.stdout)
    assert (found["bytes"], found["to"], found["left_out"]) == (to.stat().st_size, str(to), [])
    ran = run("export", "--all", "--to", "-", "--json", "--store", store)
    assert (ran.returncode, "name a file" in ran.stderr) == (ExitCode.USAGE, True)


def test_a_rotation_of_keys_is_shown_first(tmp_path) -> None:
    pytest.importorskip("cryptography")
    store, key = tmp_path / "e.memcore", tmp_path / "key"
    key.write_bytes(bytes(range(200, 232)))
    with memcore.open(store, key=f"file:{key}") as db:
        for user in ("u", "v"):
            session = db.session("s", user=user)
            session.extend({"role": "user", "content": str(n)} for n in range(3))
            session.state.update({"user:x": 1, "app:y": 2})
    keys = Path(f"{store}.keys")
    words = ("keys", "--rotate-data", "--rotate-to", f"file:{key}", "--json", "--store", store)
    for chosen in (("--user", "u"), ()):
        before = store.read_bytes(), keys.read_bytes()
        planned, done = (
            json.loads(run(*words, *chosen, how, MEMCORE_KEY=f"file:{key}").stdout)
            for how in ("--dry-run", "--yes")
        )
        assert planned["values"] == done["values"] > 0
        assert (planned["key_changed"], planned["dry_run"]) == (True, True)
        assert before != (store.read_bytes(), keys.read_bytes())
    ran = run(*words, "--dry-run", "--rotate-to", "file:no", MEMCORE_KEY=f"file:{key}")
    assert ran.returncode == ExitCode.REFUSED


@pytest.mark.parametrize("suffix", ["", "-lock", ".keys", ".secret"])
@pytest.mark.parametrize("linked", [False, True])
def test_nothing_is_written_over_a_file_of_the_database(store, tmp_path, suffix, linked) -> None:
    own = Path(f"{store}{suffix}")
    if not own.exists():
        own.write_bytes(b"its own")
    target = own
    if linked:
        target = tmp_path / "linked"
        os.link(own, target)
    before = own.read_bytes()
    for words in (
        ["sweep", "--yes", "--archive", target],
        ["export", "--all", "--to", target, "--overwrite"],
    ):
        ran = run(*words, "--store", store)
        refusals = {ExitCode.USAGE, ExitCode.REFUSED}
        if linked and not suffix:  # a store with two names is not even opened
            assert "remove the other names" in ran.stderr
        else:
            assert ran.returncode in refusals, ran
            assert "belongs to the database" in ran.stderr
        assert len(own.read_bytes()) == len(before)
        assert suffix == "-lock" or own.read_bytes() == before


def test_an_archive_holds_exported_lines(store, tmp_path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"rules": [{"what": "items", "max_age_seconds": 0}]}')
    assert run("retention", "set", rules, "--yes", "--store", store).returncode == 0
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for words in (["--yes"], ["--dry-run"]):
        ran = run("sweep", *words, "--archive", other, "--store", store)
        assert ran.returncode == ExitCode.USAGE
        assert "contains something other than exported lines" in ran.stderr
    assert other.read_text() == "mine"
    archive = tmp_path / "archive.jsonl"
    for _ in range(2):  # what is there already is added to
        assert run("sweep", "--yes", "--archive", archive, "--store", store).returncode == 0
    assert archive.read_bytes().startswith(b'{"memcore":')


def test_a_session_is_found_without_its_user(store) -> None:
    ran = run("retention", "set", "standard", "--session", "chat", "--yes", "--store", store)
    assert ran.returncode == 0, ran.stderr
    shown = run("retention", "show", "--session", "chat", "--store", store)
    assert "max_age_seconds" in shown.stdout
    before = store.read_bytes()
    dry = run("retention", "set", "none", "--dry-run", "--store", store)
    assert (dry.returncode, dry.stdout) == (0, "no rules: everything stays\nnothing was written\n")
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    "address",
    ["postgresql:/me:hunter2@h/db", "postgresql//me:hunter2@h/db", "mysql://me:hunter2@h/db",
     "postgresql://me:hun%zzter2@h/db", " postgresql://me:hunter2@h/db",
     "'postgresql://me:hunter2@h/db'", "jdbc:postgresql://me:hunter2@h/db", "//me:hunter2@h/db",
     "me:hunter2@h:5432/db", "host=h password=hunter2 dbname=x"],
)  # fmt: skip
@pytest.mark.parametrize(
    "words",
    ["ls --store ADDRESS", "import --from langgraph-pg ADDRESS --store STORE", "check ADDRESS",
     "copy STORE ADDRESS", "copy ADDRESS there", "export --all --to ADDRESS --store STORE"],
)  # fmt: skip
def test_no_password_of_a_mistyped_address_is_shown(store, words, address) -> None:
    if "langgraph-pg" in words and address.startswith(("host=", " postgres")):
        pytest.skip("an address that libpq reads: no server answers")
    known = {"STORE": str(store), "ADDRESS": address}
    ran = run(*(known.get(each, each) for each in words.split()))
    assert ran.returncode in (ExitCode.USAGE, ExitCode.CORRUPT), ran
    assert "ter2" not in ran.stdout + ran.stderr
    assert "bug in memcore" not in ran.stderr


def test_an_export_on_a_terminal_cannot_steer_it(tmp_path) -> None:
    store = tmp_path / "agent.memcore"
    content = "a\x9b31m b\u202e c \u00e9 \u65e5 \x1b[31m " + "long " * 60
    with memcore.open(store) as db:
        db.session("s").append({"role": "user", "content": content})
    mine, its = pty.openpty()
    command = [*PROGRAM, "export", "--all", "--to", "-", "--store", str(store)]
    ran = subprocess.run(command, stdout=its, stderr=its, env=environment(), check=False)
    os.close(its)
    shown = os.read(mine, 1 << 16).decode()
    os.close(mine)
    assert ran.returncode == 0
    assert all(each.isprintable() or each in "\r\n" for each in shown)
    lines = [json.loads(line) for line in shown.splitlines()]
    assert lines[1]["item"]["content"] == content


def test_an_export_is_redacted_though_nothing_was_before(store) -> None:
    with memcore.open(store) as db:
        db.session("chat").append({"role": "user", "content": "write to ann@example.org"})
    ran = run("export", "chat", "--to", "-", "--redact", "default", "--store", store)
    assert ran.returncode == 0, ran.stderr
    assert "EMAIL_" in ran.stdout
    assert "ann@" not in ran.stdout
    assert (
        run("export", "chat", "--to", "-", "--redact", "default", "--store", store).stdout
        == ran.stdout
    )


def test_an_export_into_a_home_directory(store, tmp_path) -> None:
    ran = run("export", "--all", "--to", "~/out.jsonl", "--store", store, HOME=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out.jsonl").exists()


def test_in_a_thread_signals_stay_as_they_are(store) -> None:
    """Only the main thread may set what they do."""
    program = (
        "import threading\n"
        "from memcore.cli import main\n"
        "codes = []\n"
        "it = threading.Thread(target=lambda: codes.append(main()))\n"
        "it.start()\n"
        "it.join()\n"
        "raise SystemExit(codes != [0])\n"
    )
    words = [sys.executable, "-c", program, "ls", "--store", str(store)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_name_is_no_password(store) -> None:
    ran = run("show", "task:7@12", "--store", store)
    assert "'task:7@12'" in ran.stderr
    assert "task:7" in run("fork", "task:7@12", "x", "--store", store).stderr


def test_nothing_of_nobody_is_no_export(store, tmp_path) -> None:
    target = tmp_path / "nobody.jsonl"
    ran = run("export", "--all", "--user", "nobody", "--to", target, "--store", store)
    assert ran.returncode == ExitCode.NOT_FOUND
    assert "nothing is stored of user 'nobody': is the name right?" in ran.stderr
    assert not target.exists()


def test_a_wait_for_a_stopped_writer_is_told_and_ended(store) -> None:
    code = (
        "import memcore, sys\n"
        "db = memcore.open(sys.argv[1])\n"
        "db._engine.store.transact(lambda txn: (print('holds', flush=True), sys.stdin.read()))\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment(),
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds\n"
    with holder:
        waiting = subprocess.Popen(
            [*PROGRAM, "checkpoint", "chat", "--store", str(store)], stderr=subprocess.PIPE,
            text=True, env=environment(),
        )  # fmt: skip
        with waiting:
            assert waiting.stderr is not None
            assert f"waits for another process ({holder.pid})" in waiting.stderr.readline()
            # Not SIGINT, which the children of a job in the background ignore.
            waiting.send_signal(signal.SIGTERM)
            try:
                waiting.wait(60)
            finally:
                waiting.kill()
            assert waiting.stderr.read() == "memcore: error: terminated\n"
        assert waiting.returncode == ExitCode.TERMINATED
        holder.communicate()
    assert run("checkpoint", "chat", "--store", store).returncode == 0


def test_an_audit_is_not_begun_by_cutting_it(store, tmp_path) -> None:
    key = tmp_path / "audit.key"
    key.write_bytes(bytes(range(32)))
    before = store.read_bytes()
    for words in (
        ["audit", "cut", "--older-than-days", "0", "--yes"],
        ["audit", "anchor", "--anchor", tmp_path / "anchor"],
    ):
        ran = run(*words, "--key-file", key, "--store", store)
        assert ran.returncode == ExitCode.REFUSED, ran
        assert "is not audited" in ran.stderr
    assert store.read_bytes() == before
    assert not (tmp_path / "anchor").exists()
    assert run("checkpoint", "chat", "--store", store).returncode == 0


def test_a_terminated_verb_leaves_no_temporary_file(store, tmp_path) -> None:
    code = (
        "import os, signal\n"
        "from memcore.cli import export\n"
        "from memcore.cli.entry import main\n"
        "warned = export.os.fsync\n"
        "export.os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGTERM)\n"
        "export.sys.argv = ['memcore', 'export', '--all', '--to', 'out.jsonl']\n"
        "raise SystemExit(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "MEMCORE_STORE": str(store)},
    )  # fmt: skip
    assert ran.returncode == ExitCode.TERMINATED, ran
    assert ran.stderr == "memcore: error: terminated\n"
    assert not [each for each in tmp_path.iterdir() if each.name.startswith("out")]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_in_a_finalizer_is_not_lost(store, name) -> None:
    """Python drops what a finalizer raises: the verb would go on, and end with 0."""
    code = (
        "import os, signal, threading\n"
        "from memcore.cli import export\n"
        "from memcore.cli.entry import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finalized:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "def fsync(fd):\n"
        "    Finalized()\n"
        "    threading.Event().wait(60)\n"
        "export.os.fsync = fsync\n"
        "export.sys.argv = ['memcore', 'export', '--all', '--to', 'out.jsonl']\n"
        "raise SystemExit(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=store.parent, capture_output=True,
        text=True, env={**os.environ, "MEMCORE_STORE": str(store)}, timeout=50,
    )  # fmt: skip
    is_term = name == "SIGTERM"
    assert ran.returncode == (ExitCode.TERMINATED if is_term else ExitCode.INTERRUPTED), ran
    assert ran.stderr == f"memcore: error: {'terminated' if is_term else 'interrupted'}\n"


def test_an_error_that_cannot_be_told_keeps_its_code(store) -> None:
    with open("/dev/full", "w") as full:
        for words, code in ((["show", "nope"], 3), (["ls", "--bogus"], 2), (["ls"], 0)):
            ran = subprocess.run(
                [sys.executable, "-m", "memcore", *words], stderr=full, stdout=subprocess.DEVNULL,
                check=False, env={**os.environ, "MEMCORE_STORE": str(store)},
            )  # fmt: skip
            assert ran.returncode == code


def test_help_into_a_closed_pipe(store) -> None:
    command = f"{sys.executable} -m memcore --help"
    ran = subprocess.run(
        ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout in ("141\n", "0\n")  # 0: it was written before the reader was gone
    assert ran.stderr == ""


def test_advice_is_for_the_command_line(tmp_path) -> None:
    pytest.importorskip("cryptography")
    store = tmp_path / "e.memcore"
    with memcore.open(store, key=bytes(32)) as db:
        db.session("s").append({"role": "user", "content": "x"})
    ran = run("ls", "--store", store)
    assert ran.returncode == ExitCode.REFUSED
    assert "set MEMCORE_KEY" in ran.stderr
    assert "key=" not in ran.stderr


@pytest.mark.parametrize(
    "words",
    ["hold typo --reason x", "retention set standard --user typo --yes", "erase typo --yes"],
)
def test_an_unknown_user_is_warned_of(store, words) -> None:
    ran = run(*words.split(), "--store", store)
    assert ran.returncode == 0, ran.stderr
    assert "nothing is stored of user 'typo': is the name right?" in ran.stderr


def test_verbs_import_what_they_use(store, tmp_path) -> None:
    """In a process of their own, in which nothing else has imported it."""
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"question": "line 7", "expect": [["chat", 8]]}\n')
    ran = run("memory", "eval", "--questions", asked, "--store", store)
    assert "bug in memcore" not in ran.stderr
    (tmp_path / "wordllama.py").write_text("raise ImportError('gone', name='wordllama')")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    ran = run("memory", "search", "x", "--mode", "hybrid", "--store", store, PYTHONPATH=path)
    assert ran.returncode == ExitCode.USAGE
    assert "memcore-db[embed]" in ran.stderr
    assert ran.stderr.count("pip install") == ran.stderr.count("\n") == 1


def test_the_help_lists_each_verb_once() -> None:
    assert sorted(" ".join(SECTIONS.values()).split()) == sorted(VERBS)
    told = run("--help").stdout
    for name, verb in VERBS.items():
        assert len(re.findall(rf"^  {name} +{re.escape(verb.summary)}$", told, re.MULTILINE)) == 1


def test_an_interrupt_while_modules_are_loaded_is_one_line(monkeypatch, capsys) -> None:
    def interrupted(_name: str) -> object:
        raise KeyboardInterrupt

    loading = ModuleType("memcore.cli.app")
    monkeypatch.setattr(loading, "__getattr__", interrupted, raising=False)
    monkeypatch.setitem(sys.modules, "memcore.cli.app", loading)
    assert main(["ls"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "memcore: error: interrupted\n"


def test_an_anchor_needs_the_key_of_the_audit(tmp_path) -> None:
    store, keys = tmp_path / "a.memcore", [tmp_path / "right", tmp_path / "wrong"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 32)
    with memcore.open(store, audit=memcore.Audit(key=bytes(32))) as db:
        db.session("s").append({"role": "user", "content": "x"})
    anchor = ["audit", "anchor", "--anchor", tmp_path / "anchor", "--store", store, "--key-file"]
    assert run(*anchor, keys[0]).returncode == 0
    refused = run(*anchor, keys[1])
    assert refused.returncode == ExitCode.REFUSED
    assert "with another key" in refused.stderr
    verify = ["audit", "verify", "--anchor", tmp_path / "anchor", "--store", store, "--key-file"]
    assert run(*verify, keys[0]).returncode == 0
    own = run(*(f"{store}.secret" if each == anchor[3] else each for each in anchor), keys[0])
    assert own.returncode == ExitCode.REFUSED
    assert "belongs to the database" in own.stderr


def test_a_key_file_holds_raw_bytes_or_text(tmp_path) -> None:
    pytest.importorskip("cryptography")
    store, raw, text = tmp_path / "e.memcore", tmp_path / "raw", tmp_path / "text"
    key = bytes(range(200, 232))
    raw.write_bytes(key)
    text.write_text(key.hex() + "\n")
    with memcore.open(store, key=key) as db:
        db.session("s").append({"role": "user", "content": "x"})
    for place in (raw, text):
        ran = run("ls", "--store", store, MEMCORE_KEY=f"file:{place}")
        assert ran.returncode == 0, ran.stderr
    copied = run("copy", store, tmp_path / "copy", MEMCORE_KEY=f"file:{raw}")
    assert copied.returncode == ExitCode.REFUSED
    assert "is encrypted: 'memcore backup'" in copied.stderr


def test_an_audited_file_is_not_copied(tmp_path) -> None:
    store = tmp_path / "a.memcore"
    memcore.open(store, audit=memcore.Audit(key=bytes(range(32)))).close()
    copied = run("copy", store, tmp_path / "copy")
    assert copied.returncode == ExitCode.REFUSED
    assert "is audited: 'memcore backup'" in copied.stderr


def test_a_damaged_file_is_told_once(tmp_path) -> None:
    store = tmp_path / "flip.memcore"
    with memcore.open(store) as db:
        for number in range(60):
            said = [{"role": "user", "content": f"{number} {n} " + "x" * 200} for n in range(20)]
            db.session(f"s{number}").extend(said)
    content = bytearray(store.read_bytes())
    for page in range(20, len(content) // 4096, 7):
        content[page * 4096 + 16 : page * 4096 + 60] = b"\xff" * 44
    store.write_bytes(content)
    ran = run("ls", "--store", store)
    assert ran.returncode == ExitCode.CORRUPT
    assert ran.stderr.count(str(store)) == 1
    assert ran.stderr.count("salvage") == 1
