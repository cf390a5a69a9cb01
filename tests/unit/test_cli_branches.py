"""``memcore tree``, ``diff`` and ``recover``: forks and checkpoints, and ways back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
import raw
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.codec import keys
from messages import assistant, texts, turns, user


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def parsed(*arguments: object, code: int = 0) -> dict[str, Any]:
    ran = run(*arguments, "--json")
    assert ran.exit_code == code, ran.output
    found = json.loads(ran.stdout)
    assert found.pop("command") == arguments[0]
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """``chat`` 1 2 4, checkpoint ``three`` at 1 2 3; forks of it, one of a deleted session."""
    path = tmp_path / "agent.memcore"
    with memcore.open(path, counter="bytes/4") as db:
        chat = db.session("chat", user="alice")
        chat.extend([user("1"), assistant("2"), user("3")])
        chat.checkpoint("three")
        chat.undo()
        chat.append(user("4"))
        chat.checkpoint()
        fork = chat.fork("fork", at="three")
        fork.append(user("own"))
        gone = chat.fork("gone")
        gone.fork("a@b", at=1).append(user("5"))
        db.delete_session("gone", user="alice")
        db.session("chat", user="bob").extend([user("1"), assistant("2"), user("else\x1b[31m")])
    return path


# --- tree -----------------------------------------------------------------------------------------


def test_the_tree_in_lines(store):
    lines = run("tree", "--store", store).stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "chat (user alice, app default)",
        "  * 1 three @3",
        "  * 2 @4",
        "  fork @3",
        "  (deleted) @4",
        "    a@b @1",
        "chat (user bob, app default)",
    ]
    assert "3 items, not live" in lines[1]
    assert "not live" not in lines[2]


def test_a_part_of_the_tree(store):
    assert run("tree", "--store", store, "--user", "bob").stdout.count("\n") == 1
    assert run("tree", "--store", store, "fork").stdout.startswith("fork (user alice")
    assert run("tree", "--store", store, "chat").stdout.count("chat") == 2
    assert run("tree", "--store", store, "none").exit_code == ExitCode.NOT_FOUND
    assert run("tree", "--store", store.with_name("no")).exit_code == ExitCode.NOT_FOUND


def test_the_tree_as_json(store):
    found = parsed("tree", "--store", store)["sessions"]
    assert [(each["session_id"], each["parent"], each["fork_seq"]) for each in found] == [
        ("chat", 0, 0),
        ("fork", 1, 3),
        (None, 1, 4),
        ("a@b", 3, 1),
        ("chat", 0, 0),
    ]
    three, four = found[0]["checkpoints"]
    assert (three["name"], three["live"], three["seq"]) == ("three", False, 3)
    assert (four["name"], four["live"], four["items"]) == (None, True, 3)


def test_the_tree_on_a_terminal(store, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(SystemExit) as done:
        app.main(["tree", "--store", str(store)], prog_name="memcore")
    assert done.value.code == 0
    shown = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert "├── * 1 three @3" in shown
    assert "└── (deleted) @4" in shown
    assert "    └── a@b @1" in shown


def test_a_tree_of_what_is_damaged(store):
    with memcore.open(store) as db:
        damage(db, keys.Row.HEAD, 2)
        damage(db, keys.Row.CHECKPOINT, 1)
    lines = run("tree", "--store", store).stdout.splitlines()
    assert len([line for line in lines if "damaged: " in line]) == 2


# --- diff -----------------------------------------------------------------------------------------


def test_a_fork_and_its_parent(store):
    found = parsed("diff", "--store", store, "chat", "fork", "--user", "alice")
    assert (found["shared"], found["alike"]) == (2, 0)
    assert [item["item"]["content"] for item in found["only_a"]] == ["4"]
    assert [(item["seq"], item["kind"]) for item in found["only_b"]] == [(3, "user"), (4, "user")]
    shown = run("diff", "--store", store, "chat", "fork", "--user", "alice").stdout
    assert shown.startswith("2 items shared\n")
    assert [line[:1] for line in shown.splitlines()][-3:] == ["-", "+", "+"]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("chat@three", "fork", (3, 0, 1)),
        ("chat@three", "chat", (2, 1, 1)),
        ("chat@1", "a@b", (1, 0, 1)),
        ("a@b@1", "a@b", (1, 0, 1)),
        ("chat@0", "chat", (0, 0, 3)),
        ("chat", "chat", (3, 0, 0)),
    ],
)
def test_positions(store, a, b, wanted):
    found = parsed("diff", "--store", store, a, b, "--user", "alice")
    assert (found["shared"], len(found["only_a"]), len(found["only_b"])) == wanted


def test_equal_content_that_is_stored_apart(store):
    with memcore.open(store, counter="bytes/4") as db:
        alice, bob = (db.session("chat", user=who) for who in ("alice", "bob"))
        found = db.compare(alice, bob, at=4)
        assert (found.shared, found.alike) == (0, 2)
        assert [item.message for item in found.only_a] == [user("4")]
        assert [item.tokens for item in found.only_b] == [bob.get(3).tokens]
        assert db.compare(bob, bob) == memcore.Difference(3, 0, (), ())


def test_long_histories_part_where_they_do(store):
    with memcore.open(store, counter="bytes/4") as db:
        long = db.session("long")
        long.extend(turns(600))
        for at in (1, 2, 599, 600, 1199):
            fork = long.fork(f"fork{at}", at=at)
            fork.append(user("other"))
            found = db.compare(long, fork)
            assert (found.shared, len(found.only_a), len(found.only_b)) == (at, 1200 - at, 1)


def test_what_there_is_not(store):
    ran = run("diff", "--store", store, "chat", "none", "--user", "alice")
    assert ran.exit_code == ExitCode.NOT_FOUND
    assert run("diff", "--store", store, "fork", "fork@9").exit_code == ExitCode.NOT_FOUND
    assert run("diff", "--store", store, "fork", "fork@nine").exit_code == ExitCode.NOT_FOUND
    assert run("diff", "--store", store, "fork", "fork@").exit_code == ExitCode.USAGE
    assert run("diff", "--store", store, "chat", "fork").exit_code == ExitCode.USAGE


def test_nothing_differs_and_nothing_moves_the_cursor(store):
    assert "nothing differs" in run("diff", "--store", store, "fork", "fork@4").stdout
    assert "\x1b" not in run("diff", "--store", store, "fork", "chat", "--user", "bob").output
    with memcore.open(store) as db:
        db.session("evil", user="bob").append(user("x\x1b[31m"))
    assert "\x1b" not in run("diff", "--store", store, "evil", "chat", "--user", "bob").output


# --- recover --------------------------------------------------------------------------------------


def damage(db: memcore.Database, row: int, session: int, number: int | None = None) -> None:
    for key in raw.rows(db.engine.store):
        if key[0] != keys.Kind.SESSION or keys.split_session_prefix(key)[1] != session:
            continue
        if keys.row_of(key) == row and number in (None, keys.number_of(key)):
            db.engine.store.transact(lambda txn, key=key: txn.put(key, b"?"))


def test_nothing_to_recover(store):
    before = store.read_bytes()
    assert "nothing is wrong: 4 items" in run("recover", "--store", store, "fork", "--yes").stdout
    assert parsed("recover", "--store", store, "fork", "--dry-run")["status"] == "sound"
    assert store.read_bytes() == before
    assert run("recover", "--store", store, "none", "--yes").exit_code == ExitCode.NOT_FOUND
    assert run("recover", "--store", store, "chat", "--yes").exit_code == ExitCode.USAGE
    assert run("recover", "--store", store, "fork", "--step", "x").exit_code == ExitCode.USAGE
    refused = run("recover", "--store", store, "fork")
    assert (refused.exit_code, "--dry-run" in refused.stderr) == (ExitCode.REFUSED, True)


def test_a_session_is_recovered(store):
    with memcore.open(store) as db:
        damage(db, keys.Row.HEAD, 2)
        assert run("show", "fork", "--store", store).exit_code == ExitCode.CORRUPT
        planned = run("recover", "--store", store, "fork", "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert "nothing was written" in planned.stdout
        assert "traced back" in planned.stdout
        found = parsed("recover", "--store", store, "fork", "--yes")
        assert (found["status"], found["dry_run"]) == ("recovered", False)
        assert [step["serves"] for step in found["steps"]] == [False, False, True]
        assert texts(db.session("fork", user="alice")) == ["1", "2", "3", "own"]
        assert db.check() == []


def test_what_is_lost_is_told(store):
    with memcore.open(store) as db:
        damage(db, keys.Row.ITEM, 1, 2)
        arguments = "recover", "--store", store, "chat", "--user", "alice", "--yes"
        assert run(*arguments, "--step", "mend").exit_code == ExitCode.CORRUPT
        ran = run(*arguments)
        assert ran.exit_code == ExitCode.FINDINGS, ran.output
        assert "2 items are live, 1 of them appended once more; 1 lost, 0 not" in ran.stdout
        assert "checkpoint 3 says where the session was" in ran.stdout
        assert run(*arguments).exit_code == 0
