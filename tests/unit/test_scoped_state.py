from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest

import memcore
from memcore import InvalidUpdateError, NotFoundError, RevisionConflict
from memcore.keys import Kind, scoped

USER = {"role": "user", "content": "hi"}


def rows_of(db, scope):
    """The rows of what the sessions of a scope share, without the header."""
    prefix = scoped(Kind.STATE, scope)
    rows = db.backing.store.read(lambda txn: list(txn.scan(prefix, prefix + b"\xff")))
    return rows[1:]


# --- whose a field is -------------------------------------------------------------------------


def test_a_prefix_says_whose_a_field_is(db):
    scope = db.scope(user="u", app="a")
    state = scope.session("s").state
    assert state.update({"app:x": 1, "user:y": None, "z": 3, "temp:t": object}) == 1
    assert state.all() == {"z": 3, "app:x": 1, "user:y": None, "temp:t": object}
    assert state.all(shared=False) == {"z": 3}
    assert (state["app:x"], state["user:y"], state["temp:t"]) == (1, None, object)
    assert "user:y" in state
    assert "temp:u" not in state
    assert (scope.app_state.all(), scope.state.all()) == ({"x": 1}, {"y": None})
    other = scope.session("t").state
    assert other.all() == {"app:x": 1, "user:y": None}
    stranger = db.scope(user="v", app="a")
    assert stranger.session("s").state.all() == {"app:x": 1}
    assert stranger.app_state["x"] == 1
    assert db.scope(user="u", app="b").session("s").state.all() == {}
    assert not scope.session("t").exists()


def test_what_is_shared_is_stored_with_the_item_or_not_at_all(db):
    scope = db.scope(user="u", app="a")
    session = scope.session("s")
    delta = {"app:x": 1, "user:y": 2, "z": 3, "temp:t": 4}
    with session.batch(expected_revision=0) as batch:
        batch.append(USER)
        batch.update_state(delta)
    assert session.state.all() == delta
    with pytest.raises(RevisionConflict), session.batch(expected_revision=0) as batch:
        batch.append(USER)
        batch.update_state(dict.fromkeys(delta, "stale"))
    with pytest.raises(InvalidUpdateError, match="'app:x' is no JSON"), session.batch() as batch:
        batch.append(USER)
        batch.update_state({"user:y": 5, "z": 6, "temp:t": 7, "app:x": object})
    assert session.state.all() == delta
    assert len(session) == 1


def test_expected_is_about_the_fields_of_the_session(db):
    scope = db.scope(user="u")
    state = scope.session("s").state
    with pytest.raises(RevisionConflict):
        state.update({"app:x": 1}, expected=1)
    assert state.update({"app:x": 1}, expected=0) == 0
    state.update({"z": 1})
    with pytest.raises(RevisionConflict):
        state.update({"app:x": 2}, expected=0)
    assert state.update({"app:x": 2}, expected=1) == 1
    assert scope.app_state.counter == 2
    with pytest.raises(RevisionConflict) as told:
        scope.app_state.put("x", 3, expected=1)
    assert told.value.current == 2


def test_nobody_lists_the_scope_of_an_application(db):
    scope = db.scope(user="u", app="a")
    scope.app_state.put("x", 1)
    assert db.scopes() == []
    assert list(db.sessions()) == []
    scope.session("s").append(USER)
    assert db.scopes() == [("a", "u")]
    assert scope.delete_session("s")
    assert db.scope(user="v", app="a").app_state.all() == {"x": 1}
    with pytest.raises(memcore.InvalidOptionError):
        db.scope(user="", app="a")


@pytest.mark.parametrize("name", ["app:x", "temp:", "a\x00b", "\x00", "x" * 479, "\ud800", "user"])
def test_a_shared_field_may_have_any_name_that_fits(db, name):
    scope = db.scope(user="u")
    scope.state.put(name, 1)
    scope.app_state.put(name, 2)
    state = scope.session("s").state
    assert state.all() == {"app:" + name: 2, "user:" + name: 1}
    assert state["user:" + name] == 1
    state.delete("user:" + name)
    assert name not in scope.state
    assert scope.app_state[name] == 2


@pytest.mark.parametrize("name", ["", "app:", "user:", "temp:", "app:" + "x" * 480])
def test_a_name_that_is_none_is_refused(db, name):
    state = db.session("s").state
    with pytest.raises(InvalidUpdateError):
        state.update({"app:a": 1, name: 1})
    assert state.all() == {}
    assert name not in state


# --- handles ----------------------------------------------------------------------------------


def test_one_key_and_the_whole_document(db):
    state = db.scope(user="u").state
    assert (state.counter, state.all(), state.get("a", 7), len(state)) == (0, {}, 7, 0)
    assert state.put("a", {"b": 1}) == 1
    assert state.update({"b": None, "c": [2**70, 1.0, True]}) == 2
    assert state.update({"b": None}) == 2
    assert list(state) == ["a", "b", "c"]
    assert (state["b"], "b" in state, "d" in state, len(state)) == (None, True, False, 3)
    assert state.replace({"c": 1, "d": 2}) == 3
    assert state.all() == {"c": 1, "d": 2}
    assert state.delete("c", "never") == 4
    with pytest.raises(NotFoundError, match="user 'u' in app 'default' has no value for 'c'"):
        state["c"]
    assert state.clear() == 5
    assert state.clear() == 5
    assert state.all() == {}
    with pytest.raises(InvalidUpdateError, match="no JSON"):
        state.replace({"e": 1, "f": {1}})
    assert state.all() == {}


def test_what_is_shared_keeps_no_past(db):
    state = db.scope(user="u").state
    for turn in range(20):
        state.update({"a": turn, "b": -turn})
    assert len(rows_of(db, 1)) == 2
    for turn in range(600):
        state.put(f"key {turn}", turn)
        state.delete(f"key {turn}")
    assert state.all() == {"a": 19, "b": -19}
    assert len(rows_of(db, 1)) < 2 + 512


class Counted(TypedDict("Prefixed", {"app:hits": Annotated[int, operator.add]}), total=False):
    own: int


def test_a_schema_may_reduce_what_is_shared(db):
    scope = db.scope(user="u")
    session = scope.session("s", state=Counted)
    for _ in range(3):
        session.state.update({"app:hits": 2, "own": 1, "user:free": "any"})
    assert scope.app_state["hits"] == 6
    assert session.state.all() == {"own": 1, "app:hits": 6, "user:free": "any"}
    with pytest.raises(InvalidUpdateError, match="no field 'wrong'"):
        session.state.update({"app:hits": 2, "wrong": 1})
    assert scope.app_state["hits"] == 6
