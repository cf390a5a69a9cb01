from __future__ import annotations

import asyncio
import operator
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Annotated, TypedDict

import pytest

import memcore
from memcore import Delete, InvalidUpdateError, Merge, NotFoundError, RevisionConflict
from memcore.codec.keys import Kind, scoped
from memcore.state import moments_of

USER = {"role": "user", "content": "hi"}


def rows_of(db, scope):
    """The rows of what the sessions of a scope share, without the header."""
    prefix = scoped(Kind.STATE, scope)
    rows = db.engine.store.read(lambda txn: list(txn.scan(prefix, prefix + b"\xff")))
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


def test_what_is_shared_keeps_no_past(db, monkeypatch):
    for module in ("rows", "change"):
        monkeypatch.setattr(f"memcore.state.{module}.STATE_DELETIONS_TOLD", 16)
    state = db.scope(user="u").state
    for turn in range(20):
        state.update({"a": turn, "b": -turn})
    assert len(rows_of(db, 1)) == 2
    for turn in range(60):
        state.put(f"key {turn}", turn)
        state.delete(f"key {turn}")
    assert state.all() == {"a": 19, "b": -19}
    assert len(rows_of(db, 1)) < 2 + 2 * 16


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


# --- the state at an item ---------------------------------------------------------------------


def test_the_state_is_known_at_every_item(db):
    session = db.session("s")
    assert session.state.at_seq(0) == {}
    session.state.update({"a": 0})
    with session.batch() as batch:
        batch.extend([USER, USER])
        batch.update_state({"a": 1})
    session.state.update({"b": 1})
    session.append(USER)
    session.state.update({"b": 2})
    states = [session.state.at_seq(seq) for seq in range(4)]
    assert states == [{"a": 0}, {"a": 0}, {"a": 1, "b": 1}, {"a": 1, "b": 2}]
    assert [session.state.before(seq) for seq in (1, 2, 3)] == states[:3]
    for wrong in (session.state.at_seq, session.state.before):
        with pytest.raises(NotFoundError, match="item 4 is not in the live history"):
            wrong(4)


def test_rewind_and_fork_take_the_state_of_their_item(db):
    scope = db.scope(user="u")
    session = scope.session("s")
    for turn in range(5):
        with session.batch() as batch:
            batch.append(USER)
            batch.update_state({"turn": turn, f"key {turn}": None, "app:last": turn})
    fork = session.fork("f", at=2)
    assert fork.state.all(shared=False) == {"turn": 1, "key 0": None, "key 1": None}
    session.rewind(3)
    wanted = {"turn": 2, "key 0": None, "key 1": None, "key 2": None}
    assert session.state.all() == wanted | {"app:last": 4}
    session.append(USER)
    assert session.state.before(6) == wanted
    assert session.state.at_seq(3) == wanted
    fork.state.update({"turn": "forked"})
    fork.append(USER)
    fork.rewind(1)
    assert fork.state.all(shared=False) == {"turn": 0, "key 0": None}
    deep = fork.fork("g", at=0)
    assert deep.state.all(shared=False) == {}
    assert session.fork("h", at=3, state=False).state.all(shared=False) == wanted


def test_a_rewound_session_keeps_the_state_of_each_branch_apart(db):
    session = db.session("s")
    session.append(USER)
    session.state.update({"on": "one"})
    session.append(USER)
    session.state.update({"on": "two"})
    session.checkpoint("two")
    session.rewind(1)
    assert session.state.all() == {"on": "one"}
    session.state.update({"on": "elsewhere"})
    session.append(USER)
    assert session.state.at_seq(1) == {"on": "elsewhere"}
    session.rewind("two")
    assert session.state.all() == {"on": "two"}
    assert session.state.at_seq(1) == {"on": "one"}
    session.rewind(1)
    assert session.state.all() == {"on": "one"}


def test_a_trimmed_past_is_refused_and_never_made_up(db):
    session = db.session("s")
    for turn in range(6):
        with session.batch() as batch:
            batch.append(USER)
            batch.update_state({"turn": turn})
        if turn in (1, 3):
            session.checkpoint()
    session.state.trim(keep=1)
    known = {seq: session.state.at_seq(seq) for seq in (2, 4, 6)}
    assert known == {2: {"turn": 1}, 4: {"turn": 3}, 6: {"turn": 5}}
    for seq in (0, 1, 3, 5):
        with pytest.raises(NotFoundError, match="not known"):
            session.state.at_seq(seq)
        with pytest.raises(NotFoundError, match=f"at item {seq}, .* state=False"):
            session.rewind(seq)
        with pytest.raises(NotFoundError, match="state=False"):
            session.fork(f"fork {seq}", at=seq)
    assert len(session) == 6
    session.rewind(3, state=False)
    assert session.state.all() == {"turn": 5}


def test_trimming_forgets_what_led_to_it(db, monkeypatch):
    monkeypatch.setattr("memcore.state.rows.PIECE_ROWS", 16)
    session = db.session("s")
    for turn in range(70):
        with session.batch() as batch:
            batch.append(USER)
            batch.update_state({"turn": turn})
    session.state.trim()
    place = session._ref.log.place
    moments = db.engine.store.read(lambda txn: list(moments_of(txn, *place)))
    assert moments == [(71, 70)]


# --- initial state ----------------------------------------------------------------------------


def test_a_session_begins_with_values_that_rewind_and_fork_bring_back(db):
    scope = db.scope(user="u", app="a")
    session = scope.session("s")
    receipt = session.begin({"lang": "en", "app:x": 1, "user:y": 2, "temp:t": 3}, meta={"by": "me"})
    assert (receipt.seq, receipt.revision) == (1, 1)
    event = session.get(1)
    assert event.message == {"type": "state", "payload": {"lang": "en"}}
    assert event.meta == {"by": "me"}
    assert session.state.all() == {"lang": "en", "app:x": 1, "user:y": 2, "temp:t": 3}
    with session.batch() as batch:
        batch.append(USER)
        batch.update_state({"lang": "de", "more": 1})
    for position in (0, 1):
        assert session.state.at_seq(position) == {"lang": "en"}
        assert session.fork(f"f{position}", at=position).state.all(shared=False) == {"lang": "en"}
    session.rewind(0)
    assert session.state.all(shared=False) == {"lang": "en"}
    assert len(session) == 0


def test_a_session_begins_once(db):
    session = db.session("s")
    for wrong, error in (
        ({"a": object}, InvalidUpdateError),
        ([("a", 1)], InvalidUpdateError),
        ({"": 1}, InvalidUpdateError),
        ({"app:": 1}, InvalidUpdateError),
    ):
        with pytest.raises(error):
            session.begin(wrong)
    assert not session.exists()
    session.begin({"a": 1})
    with pytest.raises(RevisionConflict, match="exists already") as told:
        session.begin({"a": 2})
    assert (told.value.expected, told.value.current) == (0, 1)
    other = db.session("t")
    other.state.update({"a": 1})
    with pytest.raises(RevisionConflict):
        other.begin({})
    assert session.state.all() == other.state.all() == {"a": 1}


# --- deltas -----------------------------------------------------------------------------------


def test_nested_deltas_are_merged_on_request(db):
    scope = db.scope(user="u")
    state = scope.session("s").state
    for prefix in ("", "app:", "user:", "temp:"):
        name = prefix + "a"
        state.update({name: {"x": {"y": 1, "z": [1]}, "keep": True}})
        state.update({name: Merge({"x": {"y": None, "z": Delete, "new": {"deep": 1}}, "b": 2})})
        wanted = {"x": {"y": None, "new": {"deep": 1}}, "keep": True, "b": 2}
        assert state[name] == wanted
        state.update({name: {"plain": 1}})
        assert state[name] == {"plain": 1}
        state.update({name: 5})
        state.update({name: Merge({"x": {"gone": Delete, "y": 1}})})
        assert state[name] == {"x": {"y": 1}}
        state.update({name: Delete, prefix + "never": Delete, prefix + "c": None})
        assert state.all().get(name, "none") == "none"
        assert state[prefix + "c"] is None
    assert scope.state.update({"c": Merge({"d": 1}), "e": 1}) > 0
    assert scope.state.all() == {"c": {"d": 1}, "e": 1}
    scope.state.update({"e": Delete})
    assert scope.state.all() == {"c": {"d": 1}}


def circular():
    found: dict = {}
    found["self"] = found
    return found


@pytest.mark.parametrize(
    "wrong", [Merge({"a": {1}}), Merge([1]), Merge(circular()), {"a": Delete}, {"a": Merge({})}]
)
def test_a_delta_that_is_no_json_is_refused_before_anything_is_stored(db, wrong):
    scope = db.scope(user="u")
    state = scope.session("s").state
    state.update({"a": {"b": 1}})
    change = state.plan()
    with pytest.raises(InvalidUpdateError):
        change.update({"app:fine": 1, "a": wrong})
    assert change.is_empty
    with pytest.raises(InvalidUpdateError):
        scope.app_state.put("a", wrong)
    assert state.all() == {"a": {"b": 1}}


@pytest.mark.parametrize("entries", [[1], circular()])
def test_a_temporary_delta_that_is_none_is_refused_before_anything_is_stored(db, entries):
    state = db.session("s").state
    with pytest.raises(InvalidUpdateError):
        state.update({"a": 1, "app:a": 1, "temp:a": Merge(entries)})
    assert state.all() == {}


def test_what_is_merged_into_temporary_objects_need_not_be_copied(db):
    state = db.session("s").state
    lock = threading.Lock()
    state.put("temp:t", {"lock": lock})
    state.update({"a": 1, "temp:t": Merge({"b": 2})})
    assert state.all() == {"a": 1, "temp:t": {"lock": lock, "b": 2}}


@pytest.mark.parametrize("value", [{"__overwrite__": 1}, {"type": "__overwrite__", "value": [1]}])
def test_json_of_any_shape_is_a_value_where_nothing_is_reduced(db, value):
    session = db.session("s")
    names = ("x", "app:x", "temp:x")
    session.begin(dict.fromkeys(names, value))
    assert session.state.all() == dict.fromkeys(names, value)
    db.scope(user="u").state.put("x", value)
    assert db.scope(user="u").state["x"] == value


def test_a_reducer_and_a_merge_exclude_each_other(db):
    session = db.session("s", state=Counted)
    with pytest.raises(InvalidUpdateError, match="has a reducer"):
        session.state.update({"app:hits": Merge({"a": 1})})
    session.state.update({"app:hits": 3})
    session.state.update([{"app:hits": 4}, {"app:hits": Delete}])
    assert session.state.all() == {}


def test_what_was_given_may_be_changed_afterwards(db):
    session = db.session("s")
    value = {"a": [1]}
    with session.batch() as batch:
        batch.update_state({"x": value, "y": Merge(value), "app:z": value})
        value["a"].append(2)
    assert session.state.all() == {"x": {"a": [1]}, "y": {"a": [1]}, "app:z": {"a": [1]}}
    found = session.state["x"]
    found["a"].append(3)
    assert session.state["x"] == {"a": [1]}


# --- many writers -----------------------------------------------------------------------------


def plus(left: int, right: int) -> int:
    return left + right


Hits = TypedDict("Hits", {"app:hits": Annotated[int, plus], "user:hits": Annotated[int, plus]})
PROCESS = """
import memcore, sys
from typing import Annotated, TypedDict
def plus(left, right): return left + right
Hits = TypedDict("Hits", {"app:hits": Annotated[int, plus], "user:hits": Annotated[int, plus]})
path, user, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with memcore.open(path) as db:
    session = db.scope(user=user, app="a").session("s" + user, state=Hits)
    sys.stdin.readline()
    for turn in range(rounds):
        with session.batch() as batch:
            batch.append({"role": "user", "content": "hi"})
            batch.update_state({"app:hits": 1, "user:hits": 1, "app:by/%s/%d" % (user, turn): turn})
"""


def test_no_update_of_threads_is_lost(open_db):
    db = open_db(durability="none")
    rounds, users = 40, ["u0", "u1", "u2", "u3"]

    def work(user):
        session = db.scope(user=user, app="a").session(f"s {user}", state=Hits)
        for turn in range(rounds):
            with session.batch() as batch:
                batch.append(USER)
                batch.update_state({"app:hits": 1, "user:hits": 1, f"app:by/{user}/{turn}": turn})

    run_all(work, [*users, *users])
    app = db.scope(user="u0", app="a").app_state
    assert app["hits"] == 2 * rounds * len(users)
    assert app.counter == app["hits"]
    assert {name for name in app if name != "hits"} == {
        f"by/{user}/{turn}" for user in users for turn in range(rounds)
    }
    for user in users:
        assert db.scope(user=user, app="a").state.all() == {"hits": 2 * rounds}


def test_no_update_of_processes_is_lost(db, path):
    rounds, users = 10, ["u0", "u0", "u1"]
    command = [sys.executable, "-c", PROCESS, str(path)]
    children = [
        subprocess.Popen([*command, user, str(rounds)], stdin=subprocess.PIPE) for user in users
    ]
    for child in children:
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    scope = db.scope(user="u0", app="a")
    assert scope.app_state["hits"] == rounds * len(users)
    assert scope.state.all() == {"hits": 2 * rounds}
    assert db.scope(user="u1", app="a").state.all() == {"hits": rounds}
    assert len(scope.session("su0")) == 2 * rounds


def test_a_compare_and_set_has_one_winner(db):
    state = db.scope(user="u").app_state
    winners: list[int] = []
    for turn in range(20):  # nobody is ahead of the others
        run_all(lambda number, turn=turn: attempt(state, number, turn, winners), range(4))
    assert winners == list(range(20))
    assert state.counter == 20


def attempt(state, number, turn, winners):
    with suppress(RevisionConflict):
        state.put("who", [number, turn], expected=turn)
        winners.append(turn)


def run_all(work, arguments):
    failures = []

    def run(argument):
        try:
            work(argument)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_erasing_a_users_sessions_leaves_what_the_application_has(db):
    for user in ("u", "v"):
        for name in ("s", "t"):
            with db.scope(user=user, app="a").session(name).batch() as batch:
                batch.append(USER)
                batch.update_state({"app:x": [user, name], "user:y": name, "z": 1})
    scope = db.scope(user="u", app="a")
    for entry in list(scope.sessions()):
        scope.delete_session(entry.session_id)
    scope.state.clear()
    assert scope.session("s").state.all() == {"app:x": ["v", "t"]}
    assert db.scope(user="v", app="a").state.all() == {"y": "t"}
    assert db.check() == []


def test_a_copy_has_what_sessions_share(db, path, open_db):
    scope = db.scope(user="u", app="a")
    scope.app_state.put("x", 1)
    scope.state.put("y", 2)
    db.backup(path.with_name("copy"))
    db.copy_compact()
    assert db.check() == []
    for each in (db, open_db(path=path.with_name("copy"))):
        found = each.scope(user="u", app="a").session("s").state.all()
        assert found == {"app:x": 1, "user:y": 2}
        assert each.stats()["shared_fields"] == 2


def test_a_read_only_handle_reads_and_refuses_to_write(open_db):
    with open_db() as db:
        db.scope(user="u").state.put("a", 1)
    db = open_db(read_only=True)
    scope = db.scope(user="u")
    assert scope.state["a"] == 1
    for write in (
        lambda: scope.state.put("a", 2),
        scope.app_state.clear,
        lambda: scope.session("s").state.update({"app:x": 1}),
    ):
        with pytest.raises(memcore.ReadOnlyError):
            write()
    session = scope.session("s")
    session.state.update({"temp:t": 1})
    assert session.state["temp:t"] == 1


def test_a_session_has_a_single_key_and_a_whole_document(session):
    session.state.update({"a": 1, "b": 2, "user:u": 3})
    assert session.state.put("a", 5) == 2
    assert session.state.replace({"c": 7, "user:v": 8}) == 3
    assert session.state.all() == {"c": 7, "user:u": 3, "user:v": 8}
    assert session.state.at(2) == {"a": 5, "b": 2}
    with pytest.raises(RevisionConflict):
        session.state.clear(expected=2)
    assert session.state.clear() == 4
    assert session.state.all() == {"user:u": 3, "user:v": 8}


def test_a_session_that_does_not_exist_has_nothing_to_clear(session):
    assert session.state.clear() == 0
    assert not session.exists()
    assert session.state.replace({"a": 1}) == 1
    assert session.exists()


def test_the_same_with_await(path):
    async def run():
        async with memcore.aio.open(path) as db:
            state = db.session("s").state
            assert await state.put("a", 1) == 1
            assert await state.replace({"b": 2}) == 2
            assert await state.all() == {"b": 2}
            assert await state.clear() == 3
            assert await state.all() == {}

    asyncio.run(run())
