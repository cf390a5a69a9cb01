from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

import memcore
from memcore import (
    Command,
    InvalidOptionError,
    InvalidUpdateError,
    NotFoundError,
    OrphanResultError,
    Overwrite,
    Private,
    ReadOnlyError,
    Reduction,
    RevisionConflict,
    StateSchema,
    merge_entries,
)
from memcore.codec.keys import Row, session_rows
from memcore.codec.values import HEADER_BYTES
from memcore.session.session import ref_of
from memcore.session.state import UpdateState
from memcore.state import inherit, mend_state, restore, state_counter
from memcore.state.rows import header_key

USER = {"role": "user", "content": "hi"}
ORPHAN = {"role": "tool", "tool_call_id": "nobody", "content": "?"}


class State(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]
    files: Annotated[dict[str, Any], merge_entries]
    secret: Annotated[str, Private]
    title: NotRequired[str]


def rows_of(db, session):
    """The stored versions of the session's state: how many, without the header."""
    engine = db.engine

    def count(txn):
        prefix = session_rows(session._ref.log.scope, session._ref.log.session, Row.STATE)
        return sum(1 for _ in txn.scan(prefix, prefix + b"\xff")) - 1

    return engine.store.read(count)


# --- values -----------------------------------------------------------------------------------


def test_values_come_back_as_they_were(open_db):
    db = open_db()
    state = db.session("s").state
    values = {"n": 2**70, "nested": {"a": [1, 2.5, None, "\ud800"]}, "": 1}
    assert (state.counter, state.all(), state.get("n", 7)) == (0, {}, 7)
    with pytest.raises(InvalidUpdateError, match="non-empty"):
        state.update(values)
    del values[""]
    assert state.update(values) == 1
    assert state.all() == values
    assert (state["n"], "n" in state, "m" in state, len(state)) == (2**70, True, False, 2)
    assert sorted(state) == ["n", "nested"]
    with pytest.raises(NotFoundError, match="no value for 'm'"):
        state["m"]


def test_a_state_survives_and_belongs_to_its_session(open_db):
    with open_db() as db:
        db.session("s").state.update({"a": 1})
        db.session("t").state.update({"a": 2})
    db = open_db()
    assert db.session("s").state.all() == {"a": 1}
    assert db.session("s", user="else").state.all() == {}
    assert db.delete_session("s")
    assert db.session("s").state.all() == {}
    db.session("s").append(USER)
    assert db.session("s").state.counter == 0


@pytest.mark.parametrize("field", ["a", "a\x00b", "a\x00", "\x00", "é", "x" * 479])
def test_fields_may_have_any_name_that_fits(open_db, field):
    state = open_db().session("s").state
    names = {"a", "a\x00", "a\x00b", "a\x01", "b", field}
    for turn in range(3):
        state.update({name: [name, turn] for name in names})
    assert state.all() == {name: [name, 2] for name in names}
    assert list(state.all()) == sorted(names)
    assert state.at(2) == {name: [name, 1] for name in names}
    state.delete(field)
    assert set(state) == names - {field}


def test_a_name_that_fits_no_key_is_refused(open_db):
    state = open_db().session("s").state
    with pytest.raises(InvalidUpdateError, match="at most 479"):
        state.update({"x" * 480: 1})
    with pytest.raises(InvalidUpdateError, match="at most 479"):
        state.get("x" * 480)


@pytest.mark.parametrize("wrong", [{1}, float("nan"), {3: 1}, object])
def test_what_is_no_json_is_refused_and_nothing_stored(open_db, wrong):
    session = open_db().session("s")
    with pytest.raises(InvalidUpdateError, match="'b' is no JSON") as told:
        session.state.update({"a": 1, "b": wrong})
    assert told.value.key == "b"
    assert not session.exists()
    session.state.update({"a": 1})
    with pytest.raises(InvalidUpdateError):
        session.state.update({"a": 2, "b": wrong})
    assert session.state.all() == {"a": 1}


# --- counters ---------------------------------------------------------------------------------


def test_what_is_nested_without_end_is_refused_and_nothing_stored(open_db):
    session = open_db().session("s")
    circular: list[Any] = []
    circular.append(circular)
    with pytest.raises(InvalidUpdateError, match="nested deeper"):
        session.state.update({"a": circular})
    assert not session.exists()


def test_every_change_has_a_number_and_the_past_stays(open_db):
    session = open_db().session("s")
    state = session.state
    assert state.update({"a": 1, "b": 1}) == 1
    assert state.update({"a": 2}) == 2
    assert state.update({"a": 2}) == 2, "nothing changed"
    assert state.delete("b", "never") == 3
    assert state.delete("never") == 3
    assert state.update({"b": None}) == 4
    past = [state.at(counter) for counter in range(5)]
    assert past == [{}, {"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 2}, {"a": 2, "b": None}]
    with pytest.raises(NotFoundError, match="at 0 to 4"):
        state.at(5)
    assert session.revision == 0


def test_expected_makes_it_a_compare_and_set(open_db):
    state = open_db().session("s").state
    with pytest.raises(RevisionConflict):
        state.update({"a": 1}, expected=1)
    with pytest.raises(RevisionConflict):
        state.delete("a", expected=1)
    assert state.update({"a": 1}, expected=0) == 1
    with pytest.raises(RevisionConflict) as told:
        state.update({"a": 2}, expected=0)
    assert (told.value.expected, told.value.current) == (0, 1)
    assert state.delete("a", expected=1) == 2


def test_a_read_only_handle_reads(open_db):
    open_db().session("s").state.update({"a": 1})
    state = open_db(read_only=True).session("s").state
    assert state.all() == {"a": 1}
    for change in (lambda: state.update({"a": 2}), state.trim, lambda: state.delete("a")):
        with pytest.raises(ReadOnlyError):
            change()


# --- schemas ----------------------------------------------------------------------------------


def test_the_reducers_of_the_schema_apply(open_db):
    session = open_db().session("s", state=State)
    told = []
    session.state.update({"notes": ["a"], "files": {"/x": 1, "/y": 2}})
    session.state.update(
        [{"notes": ["b"]}, {"notes": ["c"], "files": {"/x": None}}], trace=told.append
    )
    assert session.state.all() == {"notes": ["a", "b", "c"], "files": {"/y": 2}}
    assert told[1] == Reduction("notes", ["a", "b"], ["c"], ["a", "b", "c"], "_operator.add")
    session.state.update({"notes": Overwrite([])})
    assert session.state["notes"] == []
    with pytest.raises(InvalidUpdateError, match="did you mean 'notes'"):
        session.state.update({"note": ["d"]})
    assert session.state.update({"note": 1}, schema=TypedDict("Other", {"note": int})) == 4


def test_private_fields_are_stored_and_not_handed_over(open_db):
    db = open_db()
    session = db.session("s", state=[State, StateSchema.of(State)])
    session.state.update({"secret": "x", "title": "t"})
    assert session.state["secret"] == "x"
    for to in ("input", "output", "parent", "child"):
        assert session.state.visible(to=to) == {"title": "t"}
    assert session.state.visible(to="child", exclude=["title"]) == {}
    with pytest.raises(InvalidOptionError, match="without state="):
        db.session("s").state.visible(to="child")


def test_fields_of_a_runtime_are_not_stored(open_db):
    from langgraph.channels import EphemeralValue

    fields = {"jump": Annotated[str, EphemeralValue], "title": str}
    state = open_db().session("s", state=TypedDict("Jumping", fields)).state
    state.update({"jump": "end", "title": "t"})
    assert state.all() == {"title": "t"}


def test_what_is_no_schema_is_refused(open_db):
    with pytest.raises(memcore.StateSchemaError):
        open_db().session("s", state="fields")


def test_an_update_is_taken_as_it_was_when_it_was_made(open_db):
    session = open_db().session("s", state=State)
    given = {"files": {"/x": [1]}}
    with session.batch() as batch:
        batch.update_state(given)
        given["files"]["/x"].append(2)
    assert session.state["files"] == {"/x": [1]}


# --- with items -------------------------------------------------------------------------------


def test_items_and_state_are_one_commit(open_db):
    session = open_db().session("s", state=State)
    with session.batch() as batch:
        batch.append(USER)
        batch.update_state({"notes": ["a"]})
        batch.update_state({"notes": ["b"], "title": "t"})
        batch.delete_state("title")
    assert (len(session), session.revision, session.state.counter) == (1, 1, 1)
    assert session.state.all() == {"notes": ["a", "b"]}
    with pytest.raises(OrphanResultError), session.batch() as batch:
        batch.update_state({"notes": ["lost"]})
        batch.append(ORPHAN)
    with pytest.raises(InvalidUpdateError), session.batch() as batch:
        batch.append(USER)
        batch.update_state({"title": {1}})
    assert (len(session), session.state.all()) == (1, {"notes": ["a", "b"]})


def test_a_batch_of_state_alone_leaves_the_revision(open_db):
    session = open_db().session("s")
    with session.batch() as batch:
        batch.update_state({"a": 1}, expected=0)
    assert (session.revision, len(session), batch.receipt.revision) == (0, 0, 0)
    session.append(USER)
    with session.batch() as batch:
        batch.undo()
        batch.append({"role": "user", "content": "again"})
        batch.update_state({"a": 2})
    assert (session.revision, session.state["a"]) == (2, 2)
    with session.batch() as batch:
        batch.delete_state("never")
    assert (session.revision, session.state.counter) == (2, 2)


def test_a_batch_may_expect_the_state(open_db):
    session = open_db().session("s")
    session.state.update({"a": 1})
    with pytest.raises(RevisionConflict), session.batch() as batch:
        batch.append(USER)
        batch.update_state({"a": 2}, expected=0)
    assert len(session) == 0


def test_a_command_changes_fields_and_messages(open_db):
    from langgraph.types import Command as Theirs

    session = open_db().session("s", state=State)
    told = []
    command = Command({"notes": ["a"]}, messages=[USER])
    receipt = session.apply(command, trace=told.append)
    assert (receipt.seq, receipt.revision, len(told)) == (1, 1, 1)
    session.apply(Theirs(update={"notes": ["b"]}))
    assert (session.state["notes"], session.revision) == (["a", "b"], 1)
    with pytest.raises(RevisionConflict):
        session.apply(command, expected_revision=0)
    with pytest.raises(InvalidUpdateError):
        session.apply(Command({"unknown": 1}, messages=[USER]))
    assert len(session) == 1


def test_the_trace_is_silent_about_what_was_not_stored(open_db):
    session = open_db().session("s", state=State)
    told = []
    with pytest.raises(OrphanResultError):
        session.apply(Command({"notes": ["a"]}, messages=[ORPHAN]), trace=told.append)
    assert told == []


def test_a_change_that_is_run_again_is_told_once(open_db):
    db = open_db()
    session = db.session("s", state=State)
    told = []
    change = session.state.plan()
    change.update({"notes": ["a"]}, trace=told.append)
    closure = UpdateState(ref_of(session), change)

    def fails_behind(txn):
        closure(txn)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.engine.store.transact(fails_behind)
    assert db.engine.store.transact(closure) == 1
    change.tell()
    assert (len(told), session.state.all()) == (1, {"notes": ["a"]})


def test_undo_leaves_the_state_and_rewind_takes_it_back(open_db):
    session = open_db().session("s")
    session.append(USER)
    session.append(USER)
    session.state.update({"a": 1})
    session.undo()
    assert session.state.all() == {"a": 1}
    session.rewind(0, state=False)
    assert session.state.all() == {"a": 1}
    session.append(USER)
    session.rewind(0)
    assert session.state.all() == {"a": 1}, "as it was before the item that was live"


# --- the past ---------------------------------------------------------------------------------


def test_a_fork_begins_with_the_values_and_goes_its_way(open_db):
    session = open_db().session("s", state=State)
    session.append(USER)
    session.state.update({"notes": ["a"], "title": "gone"})
    session.state.delete("title")
    fork = session.fork("f")
    fork.state.update({"notes": ["b"]})
    session.state.update({"notes": ["c"]})
    assert (fork.state.all(), session.state["notes"]) == ({"notes": ["a", "b"]}, ["a", "c"])
    assert fork.state.at(2) == {"notes": ["a"]}
    with pytest.raises(NotFoundError, match="2 to 3"):
        fork.state.at(1)


def test_a_state_can_be_restored_and_inherited_as_of_a_counter(open_db):
    db = open_db()
    session, other = db.session("s"), db.session("o")
    for turn in range(1, 4):
        session.state.update({"n": turn, f"only {turn}": True})
    session.state.delete("only 1")
    other.append(USER)
    session._ref.resolve()
    log, target = session._ref.log, other._ref.log
    transact = db.engine.store.transact
    transact(lambda txn: inherit(txn, log.scope, log.session, target.session, counter=2, seq=1))
    assert other.state.all() == {"n": 2, "only 1": True, "only 2": True}
    assert transact(lambda txn: restore(txn, log.scope, log.session, 1, seq=1)) == 5
    assert session.state.all() == {"n": 1, "only 1": True} == session.state.at(1)
    assert session.state.at(4) == {"n": 3, "only 2": True, "only 3": True}
    assert transact(lambda txn: restore(txn, log.scope, log.session, 5, seq=1)) == 5
    assert db.engine.store.read(lambda txn: state_counter(txn, log.scope, log.session)) == 5
    with pytest.raises(NotFoundError):
        transact(lambda txn: restore(txn, log.scope, log.session, 9, seq=1))


def test_a_trim_keeps_the_last_counters(open_db):
    db = open_db()
    session = db.session("s")
    assert session.state.trim() == 0
    for turn in range(1, 7):
        session.state.update({"n": turn, f"only {turn % 2}": turn})
    session.state.update({"late": 1})
    session.state.delete("only 0")
    expected = {at: session.state.at(at) for at in range(6, 9)}
    assert session.state.trim(keep=3) == 5 + 2 + 2
    assert {at: session.state.at(at) for at in range(6, 9)} == expected
    with pytest.raises(NotFoundError, match="6 to 8"):
        session.state.at(5)
    assert session.state.trim(keep=9) == 0
    assert session.state.trim() == 2, "the deletion goes with what it deleted"
    assert session.state.all() == expected[8]
    assert rows_of(db, session) == 3
    with pytest.raises(InvalidOptionError):
        session.state.trim(keep=0)


def test_a_trim_goes_in_pieces_and_keeps_what_is_pinned(open_db, monkeypatch):
    from memcore.state import begin_trim, trim_piece
    from memcore.state import rows as care

    db = open_db()
    session = db.session("s")
    session.append(USER)
    session._ref.resolve()
    place = session._ref.log.scope, session._ref.log.session
    for turn in range(1, 30):
        fields = {f"f{turn % 3}": turn, "n": turn}
        session.state.update(fields)
        if turn % 5 == 0:
            session.state.delete("n")
    last = session.state.counter
    wanted = {at: session.state.at(at) for at in (4, 11, 12, last - 1, last)}
    transact = db.engine.store.transact
    monkeypatch.setattr(care, "STATE_PAGE", 4)
    start = transact(lambda txn: begin_trim(txn, *place, keep=2, pinned=[4, 11, 12, 999]))
    pieces = 0
    while start is not None:
        start = transact(lambda txn, start=start: trim_piece(txn, *place, start)).following
        pieces += 1
        assert db.check() == []
    assert pieces > 5
    assert {at: session.state.at(at) for at in wanted} == wanted
    with pytest.raises(NotFoundError, match=f"{last - 1} to {last} and 4, 11, 12"):
        session.state.at(10)
    assert rows_of(db, session) <= 4 * len(wanted)
    session.state.trim()
    assert session.state.all() == wanted[last]
    assert rows_of(db, session) == len(wanted[last])


def test_a_checkpoint_brings_its_values_back(open_db):
    session = open_db().session("s", state=State)
    start = session.checkpoint()
    with session.batch() as batch:
        batch.append(USER)
        batch.update_state({"notes": ["a"]})
        batch.checkpoint("one")
        batch.update_state({"notes": ["b"], "title": "t"})
        batch.checkpoint("two")
    session.state.update({"notes": ["c"]})
    states = [found.state for found in session.checkpoints()]
    assert states == [0, 1, 2]
    session.rewind("one")
    assert (session.state.all(), session.state.counter) == ({"notes": ["a"]}, 4)
    session.rewind("two")
    assert session.state.all() == {"notes": ["a", "b"], "title": "t"}
    session.rewind(0)
    assert (session.state.all(), session.state.counter) == ({}, 6)
    with session.batch() as batch:
        batch.rewind("one")
        batch.update_state({"notes": ["d"]})
    assert session.state.all() == {"notes": ["a", "d"]}
    fork = session.fork("f", at="two")
    assert (fork.state.all(), fork.state.counter) == ({"notes": ["a", "b"], "title": "t"}, 2)
    session.rewind(start)
    assert (session.state.all(), len(session)) == ({}, 0)
    assert session.state.at(3) == {"notes": ["a", "b", "c"], "title": "t"}


def test_a_trim_and_an_export_keep_what_checkpoints_need(open_db, path):
    db = open_db()
    session = db.session("s")
    for turn in range(1, 9):
        session.append(USER)
        session.state.update({"n": turn, f"only {turn % 2}": turn})
        if turn in (3, 4, 6):
            session.checkpoint(f"at {turn}")
    session.delete_checkpoint("at 4")
    session.state.delete("only 1")
    session.state.trim()
    assert rows_of(db, session) == 9
    other = open_db(path=path.with_name("other"))
    assert other.import_(list(db.export())).failures == []
    for found in (session, other.session("s")):
        with pytest.raises(NotFoundError, match="9 to 9 and 3, 6"):
            found.state.at(4)
        now = found.state.all()
        assert (found.state.counter, now) == (9, {"n": 8, "only 0": 8})
        found.rewind("at 3")
        assert found.state.all() == {"n": 3, "only 0": 2, "only 1": 3}
        found.rewind("at 6")
        assert found.state.all() == {"n": 6, "only 0": 6, "only 1": 5}
    assert other.check() == []


def test_a_lost_header_is_made_anew_for_checkpoints_too(open_db):
    db = open_db()
    session = db.session("s")
    session.append(USER)
    session.state.update({"a": 1})
    session.checkpoint("one")
    session.state.update({"a": 2})
    log = session._ref.log
    db.engine.store.transact(lambda txn: txn.delete(header_key(log.scope, log.session)))
    assert any("refers to counter 1" in found for found in db.check())
    db.engine.store.transact(lambda txn: mend_state(txn, log.scope, log.session, pinned=[1]))
    session.rewind("one")
    assert (session.state.all(), session.state.counter) == ({"a": 1}, 3)


# --- damage -----------------------------------------------------------------------------------


def damage(db, session, at, change):
    """Write another value over the row number ``at`` of a state, the header first."""

    def closure(txn):
        log = session._ref.log
        prefix = session_rows(log.scope, log.session, Row.STATE)
        key, value = list(txn.scan(prefix, prefix + b"\xff"))[at]
        txn.put(key, change(key, value))
        return value, key

    return db.engine.store.transact(closure)


@pytest.mark.parametrize("at", [0, 1])
def test_check_finds_damage(open_db, at):
    db = open_db()
    session = db.session("s")
    session.append(USER)
    session.state.update({"a": 1})
    assert db.check() == []
    value, key = damage(db, session, at, lambda _, value: value[:-1] + b"\x07")
    found = db.check()
    assert len(found) == 1
    assert key.hex() in found[0]
    with pytest.raises(memcore.CorruptValueError):
        session.state.all()
    damage(db, session, at, lambda *_: value)
    assert session.state.all() == {"a": 1}


def test_a_damaged_field_can_be_overwritten_and_deleted(open_db):
    db = open_db()
    session = db.session("s", state=State)
    session.append(USER)
    for field, value in (("notes", ["a"]), ("title", "t"), ("secret", "s")):
        session.state.update({field: value})
    for at in (1, 2, 3):
        damage(db, session, at, lambda _, value: value[:-1] + b"\x07")
    with pytest.raises(memcore.CorruptValueError):
        session.state.update({"notes": ["b"]})
    session.state.update({"notes": Overwrite(["c"]), "title": "u"})
    session.state.delete("secret")
    assert session.state.all() == {"notes": ["c"], "title": "u"}
    session.state.trim()
    assert db.check() == []


def test_a_damaged_value_does_not_keep_a_checkpoint_from_coming_back(open_db):
    db = open_db()
    session = db.session("s")
    session.state.update({"a": 1, "b": 1})
    session.checkpoint("then")
    session.state.update({"a": 2})
    session.state.update({"late": 3})
    for at in (2, 4):  # the newest versions of a and of late
        damage(db, session, at, lambda _, value: value[:-1] + b"\x07")
    with pytest.raises(memcore.CorruptValueError):
        session.state.all()
    session.rewind("then")
    assert session.state.all() == {"a": 1, "b": 1}
    session.state.update({"a": 5})
    session.delete_checkpoint("then")
    session.state.trim()
    assert (session.state.all(), db.check()) == ({"a": 5, "b": 1}, [])


def test_check_finds_versions_that_the_header_does_not_know(open_db):
    from memcore.state.rows import StateHeader

    db = open_db()
    session = db.session("s")
    session.append(USER)
    session.state.update({"a": 1})
    session.state.update({"a": 2})
    seal = memcore.codec.values.seal_value
    value, _ = damage(db, session, 0, lambda key, _: seal(key, StateHeader(1).pack()))
    assert db.check() == [
        "session 's': field 'a' of its state has a version of counter 2, its header says 1",
        "session 's': before item 2 its state is said to be at counter 2, not from 0 to 1",
    ]
    damage(db, session, 0, lambda key, _: seal(key, StateHeader(2, 3).pack()))
    assert "header of a state" in db.check()[0]
    assert len(value) == HEADER_BYTES + 16
    damage(db, session, 0, lambda *_: value)


def test_a_lost_header_is_made_anew_and_vouches_for_nothing_old(open_db):
    db = open_db()
    session = db.session("s")
    session.append(USER)
    session.state.update({"a": 1})
    session.state.update({"a": 2})
    log = session._ref.log

    def lose_and_mend(txn):
        txn.delete(header_key(log.scope, log.session))
        mend_state(txn, log.scope, log.session, pinned=())

    db.engine.store.transact(lose_and_mend)
    assert (session.state.counter, session.state.all()) == (2, {"a": 2})
    with pytest.raises(NotFoundError, match="2 to 2"):
        session.state.at(1)


# --- asynchronous -----------------------------------------------------------------------------


def test_the_asynchronous_facade_does_the_same(path):
    async def run():
        async with memcore.aio.open(path) as db:
            session = db.session("s", state=State)
            told = []
            await session.state.update({"notes": ["a"], "secret": "x"}, trace=told.append)
            await session.apply(Command({"notes": ["b"]}, messages=[USER]), trace=told.append)
            async with session.batch() as batch:
                batch.append(USER)
                batch.update_state({"notes": ["c"]}, trace=told.append)
            assert len(told) == 3
            assert (session.state.counter, len(session)) == (3, 2)
            assert await session.state.all() == {"notes": ["a", "b", "c"], "secret": "x"}
            assert await session.state.visible(to="parent") == {"notes": ["a", "b", "c"]}
            assert await session.state.at(1) == {"notes": ["a"], "secret": "x"}
            assert await session.state.delete("secret", expected=3) == 4
            assert await session.state.get("secret", "gone") == "gone"
            assert await session.state.trim() == 4
            assert session.state.schema is not None
            assert await db.check() == []

    asyncio.run(run())


def test_a_value_that_looks_like_a_marker_is_another_update(open_db) -> None:
    state = open_db().session("s").state
    state.update({"a": 1}, idempotency_key="k")
    state.update({"a": {"": "delete"}}, idempotency_key="k2")
    with pytest.raises(memcore.DuplicateRequestError):
        state.update({"a": memcore.Delete}, idempotency_key="k2")


def test_a_state_is_copied_as_a_mapping_is(open_db) -> None:
    state = open_db().session("s").state
    state.update({"ab": 1, "long": 2})
    assert dict(state) == {"ab": 1, "long": 2} == {**state}
