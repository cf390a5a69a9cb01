"""Legal holds and opting out of memory: who refuses, and what goes on."""

from __future__ import annotations

import asyncio

import pytest

import memcore
from memcore import aio
from memcore.codec import keys
from memcore.codec.keys import Care, Kind
from memcore.database.scope import rows_of
from memcore.errors import CorruptValueError, HeldError, InvalidOptionError, NotFoundError
from memcore.graph import JsonCoder, NewCheckpoint, keep_rule
from memcore.rows import lifecycle as held
from memcore.session.session import ref_of
from memcore.session.tail import ExpireItems
from messages import user as said

WHO = "carol"
CODER = JsonCoder()


def fill(db, who=WHO):
    scope = db.scope(user=who)
    for name in ("one", "two"):
        scope.session(name).append(said(name))
    for n in range(4):
        scope.graph.put("thread", "", NewCheckpoint(str(n), None, {}, {}, {}), CODER)
    return scope


def counted(db):
    return db.engine.store.read(held.counted_holds)


def test_a_hold_refuses_whatever_deletes(db):
    scope = fill(db)
    assert scope.hold(reason="case 7")
    assert not scope.hold(reason="case 7, volume 2")
    for delete in (
        lambda: db.erase(WHO),
        scope.erase,
        lambda: db.delete_session("one", user=WHO),
        lambda: scope.graph.delete_thread("thread", CODER),
        lambda: scope.graph.prune("thread", keep_rule(keep_last=1), CODER),
    ):
        with pytest.raises(HeldError, match=r"case 7, volume 2.*scope\.release\(\)") as told:
            delete()
        assert told.value.reason == "case 7, volume 2"
    assert [entry.session_id for entry in scope.sessions()] == ["one", "two"]
    assert len(list(scope.graph.checkpoints("thread", "", CODER))) == 4
    scope.session("one").append(said("work goes on"))
    assert scope.release()
    assert not scope.release()
    assert counted(db) == 0
    assert scope.graph.prune("thread", keep_rule(keep_last=1), CODER).checkpoints == 3
    assert db.delete_session("one", user=WHO)
    assert db.erase(WHO).bytes_gone


def test_a_hold_on_a_session_covers_it_and_stops_an_erasure(db):
    scope = fill(db)
    session = scope.session("one")
    assert session.hold(reason="case 8")
    with pytest.raises(HeldError, match=r"session\.release\(\)"):
        db.delete_session("one", user=WHO)
    with pytest.raises(HeldError, match="case 8"):
        db.erase(WHO)
    assert db.delete_session("two", user=WHO)
    assert scope.graph.delete_thread("thread", CODER)
    assert session.release()
    assert db.delete_session("one", user=WHO)


def test_holds_are_listed_with_their_names(db):
    fill(db)
    fill(db, "dave")
    db.scope(user=WHO).hold(reason="a")
    db.session("two", user="dave").hold(reason="b")
    assert [(h.user, h.session_id, h.reason) for h in db.holds()] == [
        (WHO, None, "a"), ("dave", "two", "b"),
    ]  # fmt: skip
    assert [h.reason for h in db.holds(user="dave")] == ["b"]
    assert [h.reason for h in db.scope(user="dave").holds()] == ["b"]
    assert db.holds(app="another") == []
    assert db.check() == []


def test_one_look_tells_that_there_is_no_hold_anywhere(db):
    fill(db)
    scope = db.engine.store.read(lambda txn: next(held_scopes(txn)))
    looks = []

    class Txn:
        def get(self, key):
            looks.append(key)

    assert not held.is_held(Txn(), scope, 5)
    assert looks == [keys.scoped(Kind.CARE, 0, bytes((Care.HOLD,)))]


def held_scopes(txn):
    from memcore.rows import names

    return (scope for scope, _, _ in names.scopes(txn))


def test_an_operator_may_override_a_hold_and_the_receipt_says_so(db):
    fill(db)
    db.scope(user=WHO).hold(reason="a")
    db.session("one", user=WHO).hold(reason="b")
    receipt = db.erase(WHO, override_hold=True)
    assert receipt.bytes_gone
    assert receipt.overrode_hold
    assert counted(db) == 0
    assert db.holds() == []


def test_a_hold_may_come_before_the_data(db):
    scope = db.scope(user="nobody yet")
    scope.hold(reason="x")
    scope.session("s").append(said("x"))
    with pytest.raises(HeldError):
        scope.delete_session("s")
    scope.release()
    with pytest.raises(NotFoundError):
        scope.session("none").hold(reason="x")
    for reason in ("", 5, "x" * 1001):
        with pytest.raises(InvalidOptionError):
            scope.hold(reason=reason)


def test_items_that_expire_stay_under_a_hold(db):
    session = db.session("s", user=WHO)
    session.extend([said(str(n)) for n in range(6)])
    session.hold(reason="x")
    closure = ExpireItems(ref_of(session), 2**62)
    assert db.engine.store.transact(closure) == (0, [])
    assert len(list(session.items())) == 6
    session.release()
    assert db.engine.store.transact(ExpireItems(ref_of(session), 2**62))[0] == 6


def test_a_damaged_hold_still_holds(db):
    scope = fill(db)
    scope.hold(reason="case")
    store = db.engine.store
    number = store.read(lambda txn: next(held_scopes(txn)))
    key = keys.scoped(Kind.CARE, number, bytes((Care.HOLD,))) + b"\x01"
    store.transact(lambda txn: txn.put(key, txn.get(key)[:-1] + b"?"))
    with pytest.raises(CorruptValueError):
        db.erase(WHO)
    with pytest.raises(CorruptValueError):
        db.delete_session("one", user=WHO)
    assert db.check() != []
    assert scope.release()
    assert db.check() == []


def test_a_wrong_count_of_holds_is_found(db):
    fill(db).hold(reason="x")
    db.engine.store.transact(lambda txn: held.count_holds(txn, 5))
    assert any("row of them says 5" in what for what in db.check())
    db.engine.store.transact(lambda txn: held.count_holds(txn, 1))


def test_who_opts_out_of_memory(db):
    scope = db.scope(user=WHO)
    scope.kv("adk.memory").put("h", [1, 2])
    assert not scope.memory_opt_out
    assert scope.opt_out_memory() == 0
    assert scope.memory_opt_out
    assert scope.kv("adk.memory").get("h") == [1, 2]
    assert scope.kv("adk.memory").read(lambda view: view.wants_no_memory)
    assert scope.opt_out_memory(remove=True) == 1
    assert scope.kv("adk.memory").get("h") is None
    assert not db.scope(user="dave").memory_opt_out
    assert scope.opt_in_memory()
    assert not scope.opt_in_memory()
    assert not scope.kv("adk.memory").read(lambda view: view.wants_no_memory)
    with pytest.raises(memcore.InvalidOptionError):
        scope.opt_out_memory(remove=1)


def test_an_opt_out_of_a_user_reaches_all_of_their_applications(db):
    scopes = [db.scope(user=WHO, app=app) for app in ("default", "other")]
    for scope in scopes:
        scope.kv("adk.memory").put("h", 1)
    stranger = db.scope(user="dave", app="other")
    stranger.kv("adk.memory").put("h", 1)
    assert db.opt_out_memory(WHO, app="other") == ["other"]
    assert [scope.memory_opt_out for scope in scopes] == [False, True]
    assert sorted(db.opt_out_memory(WHO)) == ["default", "other"]
    assert [scope.kv("adk.memory").get("h") for scope in scopes] == [1, 1]
    scopes[1].hold(reason="case 12")
    with pytest.raises(HeldError, match="case 12"):
        db.opt_out_memory(WHO, remove=True)
    assert scopes[0].kv("adk.memory").get("h") == 1
    scopes[1].release()
    db.opt_out_memory(WHO, remove=True)
    assert [scope.kv("adk.memory").get("h") for scope in scopes] == [None, None]
    assert not stranger.memory_opt_out
    assert stranger.kv("adk.memory").get("h") == 1
    assert db.opt_in_memory(WHO, app="other") == ["other"]
    assert db.opt_in_memory(WHO) == ["default"]
    assert db.opt_in_memory(WHO) == []
    assert db.opt_out_memory("who comes later") == ["default"]
    assert db.scope(user="who comes later").memory_opt_out
    assert asyncio.run(aio.AsyncDatabase(db).opt_out_memory("ann", app="a")) == ["a"]
    assert asyncio.run(aio.AsyncDatabase(db).opt_in_memory("ann")) == ["a"]
    assert db.check() == []


def test_memory_of_who_opts_out_is_neither_written_nor_found(db):
    """Below adapters: whatever is marked as memory, under any name, also before it was used."""
    scope = db.scope(user=WHO)
    memory, new = (rows_of(scope, name, memory=True) for name in ("mine", "new"))
    memory.put("m", 1)
    scope.opt_out_memory()
    for write in (
        lambda: memory.put("m", 2),
        lambda: new.put("m", 2),
        lambda: memory.put_many({"n": 2}),
        lambda: memory.increment("n"),
        lambda: memory.transact(lambda txn: txn.put("n", b"x", content=b"y")),
    ):
        with pytest.raises(memcore.OptedOutError, match="opt_in_memory"):
            write()
    assert memory.get("m") is None
    assert list(memory.scan()) == []
    assert memory.read(lambda view: (view.get("m"), view.content("m"))) == (None, None)
    scope.kv("work").put("w", 1)
    assert scope.kv("mine").get("m") == 1
    scope.opt_in_memory()
    assert memory.get("m") == 1
    memory.put("m", 2)
    scope.hold(reason="case 10")
    with pytest.raises(HeldError, match="case 10"):
        scope.opt_out_memory(remove=True)
    scope.release()
    assert scope.opt_out_memory(remove=True) == 1
    scope.opt_in_memory()
    assert (memory.get("m"), scope.kv("work").get("w")) == (None, 1)
    assert db.check() == []


def test_a_hold_that_is_set_while_fields_are_archived_keeps_them(db):
    session = db.session("one", user=WHO)
    session.append(said("hello"))
    session.state.put("mood", "curious")
    db.retention.expire_field("mood", 1, session="one", user=WHO)
    report = db.sweep(now=4e9, archive=lambda _: session.hold(reason="x"))
    assert (report.fields, report.held, session.state["mood"]) == (0, 1, "curious")


def test_opting_out_removes_no_memory_that_is_held(open_db):
    db = open_db()
    scope = db.scope(user="alice")
    scope.kv("adk.memory").put("m", 1)
    scope.hold(reason="case 9")
    with pytest.raises(HeldError, match="case 9"):
        scope.opt_out_memory(remove=True)
    assert scope.kv("adk.memory").get("m") == 1
    assert not scope.memory_opt_out
    scope.opt_out_memory()  # nothing is removed by this
    scope.release()
    assert scope.opt_out_memory(remove=True) == 1
