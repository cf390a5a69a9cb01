"""Arguments of a wrong type or out of range: refused by name, before anything is written."""

from __future__ import annotations

import asyncio
from enum import IntEnum, StrEnum
from pathlib import Path
from types import SimpleNamespace

import pytest

import memcore
from memcore import aio, options

KEY = b"k" * 32


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture
def db():
    with memcore.open(":memory:") as opened:
        session = opened.session("s")
        session.append(said("I like tea"))
        session.checkpoint("cp")
        yield opened
        assert not opened.check()


@pytest.fixture
def session(db):
    return db.session("s")


class Id(IntEnum):
    ONE = 1


class Word(StrEnum):
    TEA = "tea"


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def deep(levels: int) -> list:
    found: list = []
    for _ in range(levels):
        found = [found]
    return found


async def coroutine(*_):
    return said("never awaited")


REFUSED = {
    "checkpoint": lambda db: db.retention.expire_checkpoint("s", True, 60),
    "checkpoint ": lambda db: db.retention.expire_checkpoint("s", -1, 60),
    "field": lambda db: db.retention.expire_field(5, 60),
    "thread": lambda db: db.retention.set("standard", thread=5),
    "user": lambda db: db.retention.get(user=0),
    "user ": lambda db: list(db.sessions(user=b"u")),
    "session_id ": lambda db: list(db.export(5)),
    "app": lambda db: list(db.sessions(app=["default"])),
    "user   ": lambda db: db.holds(user=5),
    "user    ": lambda db: db.branches(user=5),
    "session_id": lambda db: db.scope().quarantine.list(5),
    "guard": lambda db: db.demand(guard=[]),
    "guard ": lambda _: memcore.open(":memory:", guard=""),
    "fields": lambda _: memcore.ProtectedKeys(fields="secret"),
    "fields ": lambda _: memcore.ProtectedKeys(fields=None),
    "sources": lambda _: memcore.InjectionGuard(sources="tool"),
    "sources ": lambda _: memcore.InjectionGuard(sources=["tol"]),
    "phrases": lambda _: memcore.InjectionGuard(phrases="xyz"),
    "phrases ": lambda _: memcore.InjectionGuard(phrases=[5]),
    "window_seconds": lambda _: memcore.LimitGuard(most_writes=1, window_seconds=None),
    "labels": lambda db: db.scope().memory.grants.give(to=("a", "w"), labels=[]),
    "labels ": lambda db: db.scope().memory.list(labels=0),
    "derived_from": lambda db: db.scope().memory.remember("a", by="operator", derived_from=b"x"),
    "a": lambda db: db.compare("s", db.session("s")),
    "b": lambda db: db.compare(db.session("s"), memcore.open(":memory:").session("s")),
    "child": lambda db: db.session("s").share("kid"),
    "lease": lambda db: db.scope().delete_session("s", lease="o"),
    "policy": lambda db: db.session("s").bundle(policy="default"),
    "policy ": lambda _: memcore.policy_mapping("hybrid"),
    "progress": lambda db: db.check(progress=5),
    "progress ": lambda db: db.finish_erasures(progress=5),
    "fn": lambda db: db.scope().kv("n").transact(5),
    "fn ": lambda db: db.scope().kv("n").transact(coroutine),
    "fn  ": lambda db: db.scope().kv("n").read(coroutine),
    "progress  ": lambda db: db.session("s").recount("bytes/4", progress=5),
    "progress   ": lambda _: memcore.restore("a", "b", progress=5),
    "progress    ": lambda _: memcore.salvage("a", "b", progress=5),
    "reverse": lambda db: list(db.scope().kv("n").scan(reverse="no")),
    "step, fallbacks": lambda db: db.session("s").ladder().run(coroutine, request_id="r"),
    "fallbacks": lambda db: db.session("s").ladder().run(len, request_id="r", fallbacks=None),
    "retries": lambda db: db.session("s").ladder().run(len, request_id="r", retries=2**63),
    "risks": lambda _: memcore.LadderRules(risks=None),
    "rename": lambda db: db.import_([], rename=5),
    "lines": lambda db: db.import_(None),
    "probes": lambda db: db.erase("u", probes=None, compact=False),
    "probes ": lambda db: db.erase("u", probes=[1 << 40], compact=False),
    "name_in_receipt": lambda db: db.erase("u", name_in_receipt=1),
    "steps": lambda db: db.session("s").recover(steps=None),
    "steps ": lambda db: db.session("s").recover(steps=[[]]),
    "skip_corrupt": lambda db: list(db.session("s").items(skip_corrupt="no")),
    "count": lambda db: db.session("s").tail(None),
    "create": lambda db: db.session("new", create="False"),
    "agent": lambda db: db.session("s").as_agent("\ud800"),
    "envelope": lambda db: db.session("s").as_agent("a").append(said("x"), envelope={"modle": 1}),
    "envelope ": lambda db: db.session("s").as_agent("a").append(said("x"), envelope="x"),
    "timeout_seconds": lambda db: db.session("s").state.wait(timeout_seconds=10**400),
    "ttl_seconds": lambda db: db.retention.expire_session("s", 1e308),
    "path": lambda _: memcore.AccessLog("a\0b"),
    "path ": lambda _: memcore.AccessLog("/tmp"),
    "flush_seconds": lambda _: memcore.AccessLog("log", flush_seconds=float("nan")),
    "anchor": lambda _: memcore.Audit(key=KEY, anchor="a\0b"),
    "every_seconds": lambda _: memcore.Audit(key=KEY, every_seconds=10**400),
    "archive": lambda db: db.sweep(archive="x" * 300),
    "name": lambda _: memcore.Payload(100).remove([]),
    "interval_seconds": lambda db: db.sweeper(interval_seconds=1e10),
    "seq": lambda db: db.session("s").get(deep(5000)),
    "seq ": lambda db: db.session("s").get("x" * 70_000),
}  # fmt: skip


@pytest.mark.parametrize("named", REFUSED)
def test_it_is_refused_by_name_in_a_short_message(db, named) -> None:
    with pytest.raises(memcore.InvalidOptionError) as refused:
        REFUSED[named](db)
    text = str(refused.value)
    assert text.startswith(f"{named.strip()}:")
    assert len(text) < 300


def test_a_number_beyond_all_others_is_found_nowhere(db, session) -> None:
    assert session.accessed(1 << 72).count == 0
    with pytest.raises(memcore.NotFoundError):
        db.retention.expire_checkpoint("s", 1 << 72, 60)
    with memcore.as_operator(), pytest.raises(memcore.NotFoundError):
        db.scope().quarantine.drop("s", 1 << 72)


def test_a_name_that_no_file_has_is_not_found(db, session) -> None:
    with pytest.raises(memcore.NotFoundError):
        memcore.restore("x" * 70_000, "y")
    with pytest.raises(memcore.InvalidUpdateError):
        session.state.put([], 1)


def test_members_of_enums_are_what_they_stand_for(db, session) -> None:
    memory = session.memory
    number = memory.remember("I like tea", source=Id.ONE).id
    assert memory.get(Id.ONE).id == number == 1
    assert [hit.seq for hit in session.search(Word.TEA)] == [1]
    with pytest.raises(memcore.NotFoundError, match=r"no call .*tea"):
        session.find_call(Word.TEA)


def test_no_falsy_value_takes_a_demand_back() -> None:
    guard = memcore.InjectionGuard()
    with memcore.open(":memory:", guard=guard, redact="default") as db:
        db.demand(guard=guard, redact="default")
        before = db.demands
        for nothing in (0, "", b"", ()):
            with pytest.raises(memcore.InvalidOptionError):
                db.demand(guard=nothing)
        for nothing in (0, "", b""):
            with pytest.raises(memcore.InvalidOptionError):
                db.demand(redact=nothing)
        assert db.demands == before
        db.demand(guard=False, redact=False)
        assert db.demands == {"redact": None, "guards": []}


def test_a_batch_expects_the_state_before_its_first_change(session) -> None:
    session.state.put("f", 1)
    with pytest.raises(memcore.RevisionConflict), session.batch() as batch:
        batch.expect_state(999)
        batch.update_state({"f": 2})
    with pytest.raises(memcore.RevisionConflict), session.batch() as batch:
        batch.expect_state(999)
        batch.delete_state("f")
    with session.batch() as batch:  # it changes nothing of it
        batch.expect_state(999)
        batch.append(said("more"))
        batch.update_state({"temp:f": 3})
    for begin in (False, True):  # behind a step that settles the state, or before it
        with pytest.raises(memcore.RevisionConflict), session.batch() as batch:
            if begin:
                batch.expect_state(999)
            batch.update_state({"f": 2})
            batch.checkpoint("c")
            if not begin:
                batch.expect_state(999)
    with pytest.raises(memcore.RevisionConflict), session.batch() as batch:
        batch.expect_state(999)
        batch.rewind("cp")
    with session.batch() as batch:  # what it changes itself is no conflict
        batch.update_state({"f": 2})
        batch.checkpoint("c")
        batch.expect_state(session.state.counter)
        batch.update_state({"f": 1})
    with pytest.raises(memcore.InvalidOptionError), session.batch() as batch:
        batch.expect_state("x")
    assert session.state.get("f") == 1


def test_a_batch_expects_the_state_of_a_session_that_is_gone(db) -> None:
    for change in (lambda b: b.delete_state("a"), lambda b: b.rewind(0)):
        with pytest.raises(memcore.RevisionConflict), db.session("gone").batch() as batch:
            batch.expect_state(5)
            change(batch)
    with (
        pytest.raises(memcore.RevisionConflict),
        db.session("gone").batch(expected_revision=5) as batch,
    ):
        batch.undo()


def test_a_batch_that_ended_takes_nothing_more(session) -> None:
    block = session.batch()
    with block as batch:
        batch.append(said("one"))
    with pytest.raises(memcore.ClosedError):
        batch.append(said("lost"))
    with pytest.raises(memcore.ClosedError):
        batch.update_state({"f": 1})
    with pytest.raises(memcore.ClosedError), block:
        pass
    with pytest.raises(ZeroDivisionError), session.batch() as failed:
        failed.append(said("two"))
        raise ZeroDivisionError
    with pytest.raises(memcore.ClosedError):
        failed.undo()
    assert [item.message["content"] for item in session.items()] == ["I like tea", "one"]


def test_a_batch_of_the_asynchronous_facade_ends_too() -> None:
    async def change() -> None:
        async with aio.open(":memory:") as db:
            async with db.session("s").batch() as batch:
                batch.append(said("one"))
            with pytest.raises(memcore.ClosedError):
                batch.append(said("lost"))

    asyncio.run(change())


def test_a_renaming_that_gives_no_title_stores_nothing(db) -> None:
    lines = list(db.export())
    with memcore.open(":memory:") as other:
        done = other.import_(lines, rename=lambda _: ("a", "b", "c"))
        assert "rename: expected a function that returns the Title" in str(done.failures[0])
        assert not list(other.sessions())


def test_what_is_no_command_is_not_applied(session) -> None:
    for wrong in (5, "x", {"update": {"a": 1}}, SimpleNamespace(updates={"a": 1}, mesages=[])):
        with pytest.raises(memcore.InvalidUpdateError, match="Command"):
            session.apply(wrong)
    with pytest.raises(memcore.InvalidUpdateError, match="messages of a Command"):
        session.apply(memcore.Command(messages=5))
    assert session.apply(memcore.Command({"a": 1}, [said("x")])).appended == 1
    assert session.apply(SimpleNamespace(messages=[said("y")])).appended == 1


def test_fallbacks_may_come_from_an_iterator(session) -> None:
    def fails(*_):
        raise ValueError

    done = session.ladder().run(
        fails, request_id="r", fallbacks=iter([lambda *_: "well"]), retries=0
    )
    assert (done.status, done.value) == ("degraded", "well")


def test_a_demand_of_a_source_that_nothing_has_can_still_be_met(tmp_path: Path) -> None:
    """Earlier versions took any name of a source; what they stored is read."""
    from memcore.privacy import read_guard

    stored = {"verdict": "block", "sources": ["tool", "web"], "phrases": ["", "xyzzy"]}
    for odd in ({"sources": None}, {"phrases": 5}, {"sources": "tool"}):
        with pytest.raises(memcore.InvalidOptionError):
            read_guard({"guard": "InjectionGuard", "options": odd})
    guard = read_guard({"guard": "InjectionGuard", "options": stored})
    assert guard.options() == {"verdict": "block", "sources": ["tool"], "phrases": ["xyzzy"]}


def test_an_anchor_is_neither_reset_by_a_word_nor_emptied_unnoticed(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    with memcore.open(tmp_path / "f", audit=memcore.Audit(key=KEY, anchor=anchor)) as db:
        db.session("s").append(said("x"))
        db.anchor_audit()
        with pytest.raises(memcore.InvalidOptionError, match=r"^reset:"):
            db.anchor_audit(reset="no")
        assert db.verify_audit().ok
        assert not db.verify_audit(anchor=[]).is_anchored
        anchor.write_bytes(b"")
        report = db.verify_audit()
        assert not report.ok
        assert report.anchor_problems
        for wrong in (5, b"", {}, [5]):
            with pytest.raises(memcore.InvalidOptionError, match=r"^anchor:"):
                db.verify_audit(anchor=wrong)
        for path in ("a\0b", 5, "\ud800"):
            with pytest.raises(memcore.InvalidOptionError, match=r"^anchor:"):
                db.anchor_audit(path)
        with pytest.raises(memcore.InvalidOptionError, match=r"^older_than_seconds:"):
            db.cut_audit(older_than_seconds=1e308)


def test_a_wrong_callback_leaves_no_rotation_half_done(tmp_path: Path) -> None:
    with memcore.open(tmp_path / "f", key=b"K" * 32) as db:
        db.session("s", user="u").append(said("x"))
        with pytest.raises(memcore.InvalidOptionError, match=r"^progress:"):
            db.rotate_data_keys(progress=5)
        assert not db.key_status().unfinished


def test_a_copy_to_nowhere_is_refused_as_a_backup_is(tmp_path: Path) -> None:
    with memcore.open(tmp_path / "f") as db:
        db.session("s").append(said("x"))
        db.backup(tmp_path / "b")
    for target in (tmp_path / "none" / "c", tmp_path / ("x" * 300)):
        with pytest.raises(memcore.StoreAccessError):
            memcore.copy_store(tmp_path / "b", target)


def test_a_closed_database_begins_no_sweeper(tmp_path: Path) -> None:
    db = memcore.open(tmp_path / "f")
    db.close()
    with pytest.raises(memcore.ClosedError):
        db.sweeper()


def test_an_integer_too_long_for_python_is_told_as_one(session) -> None:
    session.append({**said("x"), "n": 10**4_299})
    with pytest.raises(memcore.InvalidItemError, match=r"\.n .*integer of more than 4,300"):
        session.append({**said("x"), "n": 10**4_300})


@pytest.mark.parametrize("durability", ["full", "relaxed", "none"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_nobody_can_find_any_more_takes_no_writes(
    tmp_path: Path, durability: str, *, replaced: bool
) -> None:
    """What is acknowledged then would be gone as soon as the file is closed."""
    path = tmp_path / "f"
    db = memcore.open(path, durability=durability, allow_unsafe=True)
    session = db.session("s")
    session.append(said("one"))
    if replaced:
        memcore.open(tmp_path / "g", durability=durability, allow_unsafe=True).close()
        (tmp_path / "g").replace(path)
    else:
        path.unlink()
    for write in (
        lambda: session.append(said("two")),
        lambda: session.state.put("f", 1),
        lambda: db.scope().kv("n").put("k", 1),
        session.undo,
        lambda: db.scope().kv("n").transact(lambda kv: kv.put("k", 1), makes_room=True),
        lambda: db.delete_session("s"),
    ):
        with pytest.raises(memcore.StoreLockedError, match="deleted or replaced"):
            write()
    if replaced:
        with pytest.raises(memcore.StoreLockedError, match="deleted or replaced"):
            db.erase("default", compact=False, verify=False)
    assert len(session) == 1
    db.close()


def test_what_compact_keeps_is_refused_by_its_own_names(session) -> None:
    with pytest.raises(memcore.InvalidOptionError, match=r"^keep_last:"):
        session.compact(memcore.extractive, keep_last=-1)
    with pytest.raises(memcore.InvalidOptionError, match=r"^keep_tokens:"):
        session.compact(memcore.extractive, keep_tokens=0)


@pytest.mark.parametrize("given", ["text", b"bytes", {"a": 1}, 3])
def test_one_thing_is_not_several(given: object) -> None:
    with pytest.raises(memcore.InvalidOptionError, match="names: expected several in a list"):
        options.checked_several("names", given)
    with pytest.raises(memcore.InvalidOptionError, match="kinds: expected several in a list"):
        options.checked_choices("kinds", given, ("a",))
