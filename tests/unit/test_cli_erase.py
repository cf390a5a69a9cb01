"""``memcore erase`` and ``memcore hold``: what they print, and their exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from messages import user as said


@pytest.fixture
def store(path):
    with memcore.open(path, counter="bytes/4") as db:
        for name in ("alice-liddell", "bob"):
            db.session("s", user=name).append(said(f"I am {name}"))
    return path


def run(store, *words, code=0):
    done = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_erase_says_what_it_would_do_and_does_it(store):
    assert "nothing was written" in run(store, "erase", "alice-liddell", "--dry-run")
    planned = json.loads(run(store, "erase", "alice-liddell", "--dry-run", "--json"))
    assert (planned["scopes"], planned["sessions"], planned["holds"]) == (1, 1, 0)
    assert b"alice" in store.read_bytes()
    told = run(store, "erase", "alice-liddell", "--yes")
    assert "bytes gone" in told
    assert "out of reach: backups" in told
    assert "alice" not in told
    assert b"alice" not in store.read_bytes()
    # The warning on stderr, JSON on stdout.
    warning, done = run(store, "erase", "alice-liddell", "--yes", "--json").splitlines()
    assert "nothing is stored of user 'alice-liddell'" in warning
    assert json.loads(done)["receipts"][0]["scopes"] == 0
    with memcore.open(store) as db:
        assert db.scopes() == [("default", "bob")]


def test_what_is_left_has_an_exit_code_and_is_finished(store):
    assert "still to be done" in run(
        store, "erase", "alice-liddell", "--yes", "--no-compact", code=1
    )
    assert json.loads(run(store, "erase", "--finish", "--dry-run", "--json"))["pending"] == 1
    done = json.loads(run(store, "erase", "--finish", "--yes", "--json"))
    assert [each["bytes_gone"] for each in done["receipts"]] == [True]
    with memcore.open(store) as db:
        assert memcore.verify_receipt(done["receipts"][0], key=db.receipt_key)
    assert "nothing is left" in run(store, "erase", "--finish", "--yes")


def test_erase_wants_one_thing_to_do(store):
    run(store, "erase", "--yes", code=2)
    run(store, "erase", "bob", "--finish", "--yes", code=2)
    run(store, "erase", "bob", code=6)
    run(store, "erase", "bob", "--yes", "--dry-run", code=2)


def test_holds_are_set_shown_and_released(store):
    assert "was set" in run(store, "hold", "bob", "--reason", "case 9")
    assert "case 9" in run(store, "hold")
    run(store, "hold", "bob", "--session", "s", "--reason", "case 10")
    shown = json.loads(run(store, "hold", "--json"))["holds"]
    assert [(each["session"], each["reason"]) for each in shown] == [
        (None, "case 9"), ("s", "case 10"),
    ]  # fmt: skip
    assert "under a legal hold" in run(store, "erase", "bob", "--dry-run")
    assert "memcore hold USER --release --yes" in run(store, "erase", "bob", "--yes", code=6)
    run(store, "hold", "bob", "--release", code=6)
    assert "released" in run(store, "hold", "bob", "--release", "--yes")
    run(store, "hold", "bob", "--release", "--yes", code=3)
    run(store, "hold", "bob", "--session", "none", "--reason", "x", code=3)
    run(store, "hold", "--reason", "x", code=2)
    assert "bytes gone" in run(store, "erase", "bob", "--yes", "--override-hold")


def test_a_hold_reaches_as_far_as_an_erasure(store):
    with memcore.open(store) as db:
        db.session("s", user="bob", app="shop").append(said("I am bob"))
    assert "applications: default, shop" in run(store, "hold", "bob", "--reason", "case 11")
    with memcore.open(store) as db:
        for application in ("default", "shop"):
            with pytest.raises(memcore.HeldError):
                db.erase("bob", app=application)
            with pytest.raises(memcore.HeldError):
                db.delete_session("s", user="bob", app=application)
        assert db.release("bob", app="shop") == ["shop"]
        assert db.hold("bob", session="s", reason="case 12") == ["default", "shop"]
        with pytest.raises(
            memcore.HeldError, match=r"memcore hold USER --session SESSION --release"
        ):
            db.delete_session("s", user="bob", app="shop")
        assert db.release("bob", session="s") == ["default", "shop"]
        assert db.release("bob") == ["default"]
        assert db.hold("nobody", reason="case 13") == ["default"]
        assert db.check() == []


@pytest.mark.as_stored
def test_the_reason_of_a_hold_is_content(store):
    with memcore.open(store, redact="default") as db:
        db.hold("bob", reason="asked for by eve@example.com")
        db.scope(user="bob").session("s").hold(reason="asked for by eve@example.com")
        assert all("[EMAIL_" in hold.reason for hold in db.holds())
        with pytest.raises(memcore.HeldError) as told:
            db.erase("bob")
        assert "eve@" not in str(told.value)
    assert b"eve@" not in store.read_bytes()
