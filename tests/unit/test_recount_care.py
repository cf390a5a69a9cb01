"""What cares for a file knows token pages: check, salvage, copies, exports, the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli.app import app
from memcore.cli.options import ExitCode
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.limits import TOKEN_PAGE_COUNTS
from memcore.log import Head
from memcore.maintenance.check import Damage, damage_of
from memcore.rows.head import head_key
from messages import call, count, result, turns, user

RUNNER = CliRunner()
COUNT = TOKEN_PAGE_COUNTS + 100


def run(*arguments: object, code: int = 0) -> dict[str, Any]:
    ran = RUNNER.invoke(app, [*map(str, arguments), "--json"], env={"MEMCORE_STORE": None})
    assert ran.exit_code == code, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def tokens(session: memcore.Session) -> int:
    return sum(count(item.message, session.counter) for item in session)


@pytest.fixture
def damaged(tmp_path) -> Any:
    """A database of its own: what a test breaks in it is not checked at its end."""
    with memcore.open(tmp_path / "damaged") as db:
        session = db.session("s")
        session.extend([user("x" * (n % 30)) for n in range(COUNT)])
        session.recount("bytes/3")
        session.append(user("after"))
        session.undo(50)
        assert db.check() == []
        yield db


def place_of(db: memcore.Database, name: str = "s") -> tuple[int, int]:
    return db.engine.store.read(db.session(name)._ref.find)


def page(db: memcore.Database, first: int = 0) -> bytes:
    place = place_of(db)
    key = head_key(*place)
    head = db.engine.store.read(lambda txn: Head.unpack(key, txn.get(key)))
    return keys.token_page(*place, head.recount_number, first)


def change(db: memcore.Database, key: bytes, edit: Any) -> None:
    """Store what ``edit`` makes of a value's body, or delete the row if it makes nothing."""

    def closure(txn: Any) -> None:
        body = edit(open_value(key, txn.get(key))[1])
        if body is None:
            txn.delete(key)
        else:
            txn.put(key, seal_value(key, body))

    db.engine.store.transact(closure)


@pytest.mark.parametrize(
    ("first", "edit", "words"),
    [
        (0, lambda _: None, "missing or cut short"),
        (TOKEN_PAGE_COUNTS, lambda _: None, "missing or cut short"),
        (0, lambda body: body[:-4], "missing or cut short"),
        (TOKEN_PAGE_COUNTS, lambda body: body[:30], "missing or cut short"),
        (0, lambda body: body[:-1], "have a gap"),
        (0, lambda body: b"\x09" + body[1:], "its head says"),
        (TOKEN_PAGE_COUNTS, lambda body: body + bytes(400), "counted 1,200 items"),
    ],
)
def test_check_finds_damaged_counts_and_a_recount_mends_them(damaged, first, edit, words):
    change(damaged, page(damaged, first), edit)
    with memcore.open(damaged.path) as fresh:
        findings = fresh.check()
        assert any(words in finding for finding in findings), findings
        if words != "its head says":
            assert Damage.TOKENS in {damage_of(finding) for finding in findings}
        if words != "counted 1,200 items":  # these are no live session's counts
            done = fresh.session("s", counter="bytes/3").recount("bytes/3")
            assert done.items == COUNT + 1 - 50
        else:
            fresh.session("s", recount=True).recount("bytes/2")
        assert fresh.check() == []
        session = fresh.session("s")
        assert session.tokens == tokens(session)


def test_a_flipped_bit_in_a_page_is_no_wrong_count(damaged):
    key = page(damaged)
    value = damaged.engine.store.read(lambda txn: txn.get(key))
    flipped = value[:20] + bytes((value[20] ^ 1,)) + value[21:]
    damaged.engine.store.transact(lambda txn: txn.put(key, flipped))
    with memcore.open(damaged.path) as fresh:
        with pytest.raises(memcore.CorruptValueError):
            list(fresh.session("s"))
        findings = fresh.check()
        assert {damage_of(finding) for finding in findings} == {Damage.TOKENS}
        fresh.session("s").recount("bytes/3")
        assert fresh.check() == []


def test_check_finds_pages_that_the_head_does_not_know(damaged):
    place = place_of(damaged)
    key = keys.token_page(*place, 99, 0)
    damaged.engine.store.transact(lambda txn: txn.put(key, seal_value(key, bytes(40))))
    assert any("recount 99" in finding for finding in damaged.check())
    damaged.session("s").recount("bytes/2")
    assert damaged.check() == []
    short = keys.session_row(*place, Row.TOKENS, 1)
    damaged.engine.store.transact(lambda txn: txn.put(short, seal_value(short, b"")))
    assert [damage_of(finding) for finding in damaged.check()] == [Damage.TOKENS]


def test_check_finds_records_of_another_counter(damaged):
    place = place_of(damaged)

    def forget(body: bytes) -> bytes:
        head = Head.unpack(head_key(*place), seal_value(head_key(*place), body))
        head.recount_session = head.recount_number = head.recount_stop = 0
        return head.pack()

    change(damaged, head_key(*place), forget)
    with memcore.open(damaged.path) as fresh:
        findings = fresh.check()
        assert any("item 1 was not counted by 'bytes/3'" in found for found in findings)
        assert Damage.TOKENS in {damage_of(finding) for finding in findings}
        with pytest.raises(memcore.PolicyMismatchError):
            fresh.session("s").context()
        fresh.session("s").recount("bytes/3")
        assert fresh.check() == []


# --- copies ---------------------------------------------------------------------------------------


@pytest.fixture
def family(db) -> memcore.Database:
    """Sessions that share items and count by several counters."""
    origin = db.session("origin")
    origin.extend([*turns(30), call("a"), result("a")])
    origin.fork("old").extend(turns(2, start=50))
    origin.recount("bytes/3")
    origin.fork("new", at=20).extend(turns(3, start=60))
    origin.extend(turns(4, start=70))
    db.session("new").fork("deep").recount("bytes/2")
    db.session("deep").append(user("deep"))
    return db


WHOLE = {"origin": "bytes/3", "old": "bytes/4", "new": "bytes/3", "deep": "bytes/2"}


def content(db: memcore.Database) -> dict[str, Any]:
    found = {}
    for entry in db.sessions():
        session = db.session(entry.session_id)
        assert entry.tokens == session.tokens == tokens(session)
        assert entry.counter == session.counter
        assert [i.tokens for i in session] == [count(i.message, entry.counter) for i in session]
        found[entry.session_id] = [(i.seq, i.message) for i in session], entry.counter
    return found


def test_backup_and_copy_compact_take_the_pages_along(family, tmp_path):
    before = content(family)
    assert {name: counter for name, (_, counter) in before.items()} == WHOLE
    family.backup(tmp_path / "copy")
    family.copy_compact()
    assert content(family) == before
    with memcore.open(tmp_path / "copy") as copy:
        assert content(copy) == before
        assert copy.check() == []


def test_export_names_the_counter_and_import_counts_by_it(family, tmp_path):
    before = content(family)
    family.session("origin").compact(keep_last=3)
    lines = b"".join(family.export()).splitlines()
    with memcore.open(tmp_path / "other") as other:
        assert other.import_(lines).failures == []
        assert content(other) == before
        assert other.session("origin").views()[0].counter == "bytes/3"
        assert other.check() == []
        other.session("origin").recount("bytes/2")
        assert other.import_(lines).skipped == 4
    old = [line.replace(b'"counter":"bytes/3","masks"', b'"masks"') for line in lines]
    assert old != lines
    with memcore.open(tmp_path / "third") as third:
        assert third.import_(old, counter="bytes/5").failures == []
        assert third.session("origin").views()[0].counter == "bytes/3"
        assert {entry.counter for entry in third.sessions()} == {"bytes/5"}


@pytest.mark.parametrize("lost", ["nothing", "item", "page", "head"])
def test_salvage_keeps_every_counter(family, tmp_path, lost):
    before = content(family)
    family.backup(tmp_path / "source", compact=True)
    with memcore.open(tmp_path / "source") as source:
        place = place_of(source, "origin")
        key = head_key(*place)
        head = source.engine.store.read(lambda txn: Head.unpack(key, txn.get(key)))
        key = {
            "item": keys.session_row(*place, Row.ITEM, 10),
            "page": keys.token_page(*place, head.recount_number, 0),
            "head": key,
        }.get(lost, b"\x0b")
        source.engine.store.transact(lambda txn: txn.delete(key))
    report = memcore.salvage(tmp_path / "source", tmp_path / "saved")
    assert report.items_lost == (lost == "item")
    with memcore.open(tmp_path / "saved") as saved:
        assert saved.check() == []
        found = content(saved)
        if lost == "item":
            for name, (items, counter) in before.items():
                assert found[name] == ([item for item in items if item[0] != 10], counter)
        elif lost == "head":
            assert {name: items for name, (items, _) in found.items()} == {
                name: items for name, (items, _) in before.items()
            }
        else:
            assert found == before
        saved.session("new").recount("bytes/6")
        saved.session("origin").append(user("goes on"))


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path) -> Path:
    path = tmp_path / "store"
    words = memcore.CallableCounter(lambda text: len(text.split()), name="words")
    with memcore.open(path) as db:
        db.session("a").extend(turns(3))
        db.session("b", user="bob").extend(turns(4))
        db.session("a", user="bob", counter="bytes/3").append(user())
        db.session("gone", counter=words).extend(turns(2))
    return path


def test_the_command_counts_what_differs(store):
    done = run("recount", "--store", store, "--counter", "bytes/3", "--all")
    assert (done["recounted"], done["unchanged"], done["failed"], done["items"]) == (3, 1, 0, 18)
    first = done["sessions"][0]
    encoded = sum(count(message, "o200k_base") for message in turns(3))
    assert (first["session_id"], first["counter_before"], first["tokens_before"]) == (
        "a", "o200k_base", encoded,
    )  # fmt: skip
    again = run("recount", "--store", store, "--counter", "bytes/3", "--all")
    assert (again["recounted"], again["unchanged"]) == (0, 4)
    one = run("recount", "b", "gone", "--store", store, "--counter", "bytes/5")
    assert one["recounted"] == 2
    bob = run("recount", "--all", "--user", "bob", "--store", store, "--counter", "bytes/6")
    assert [(found["user"], found["session_id"]) for found in bob["sessions"]] == [
        ("bob", "a"), ("bob", "b"),
    ]  # fmt: skip
    with memcore.open(store) as db:
        assert db.check() == []
    text = RUNNER.invoke(
        app, ["recount", "b", "--store", str(store), "--counter", "bytes/7"]
    ).stdout
    assert "bytes/6" in text
    assert "recounted" in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--counter", "bytes/3"), ExitCode.USAGE),
        (("a", "--all", "--counter", "bytes/3"), ExitCode.USAGE),
        (("--all", "--counter", "gpt"), ExitCode.USAGE),
        (("a", "--counter", "bytes/3"), ExitCode.USAGE),
        (("zzz", "--counter", "bytes/3"), ExitCode.NOT_FOUND),
    ],
)
def test_what_the_command_refuses(store, arguments, code):
    ran = RUNNER.invoke(app, ["recount", *arguments, "--store", str(store)])
    assert ran.exit_code == code, ran.output


def test_a_session_that_cannot_be_counted_is_reported_and_the_others_are_counted(store):
    with memcore.open(store) as db:
        key = keys.session_row(*place_of(db, "a"), Row.ITEM, 2)
        db.engine.store.transact(lambda txn: txn.delete(key))
    done = run("recount", "--store", store, "--counter", "bytes/5", "--all", code=ExitCode.FINDINGS)
    assert (done["recounted"], done["failed"]) == (3, 1)
