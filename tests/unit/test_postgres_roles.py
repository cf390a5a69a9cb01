"""Roles of a server: each reaches the users that it was given, whatever program it runs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

import memcore
from memcore.codec import keys
from memcore.codec.keys import Care, Kind, u64
from memcore.errors import (
    CallerError,
    InvalidOptionError,
    NotFoundError,
    StoreAccessError,
)
from memcore.graph import JsonCoder, NewCheckpoint

_numbers = itertools.count()


def hello(text="hello"):
    return {"role": "user", "content": text}


def texts(session):
    return [item.message["content"] for item in session.items()]


class Place:
    """A store with data of two users, and a role that was given one of them."""

    def __init__(self, server) -> None:
        number = next(_numbers)
        self.name, self.role = f"roles{number}", f"Agent {number}"
        self.server, self.address = server, server.address(self.name)
        self.own = self.address.replace("tester@", f"Agent%20{number}@")
        self.ask(f'create role "{self.role}" login')

    def ask(self, text, *values, role=None):
        dsn = self.server.dsn if role is None else f"{self.server.dsn} user='{role}'"
        with psycopg.connect(dsn, autocommit=True) as connection:
            query = text if isinstance(text, sql.Composable) else text.replace("ROLES", self.name)
            found = connection.execute(query, values)
            return found.fetchall() if found.description else found.rowcount


@pytest.fixture
def place(server):
    made = Place(server)
    with memcore.open(made.address) as db:
        for user in ("ada", "bob"):
            db.session("s", user=user).append(hello(f"{user}'s words"))
            db.scope(user=user).kv("n").put("k", f"{user}'s value", ttl_seconds=3600)
            db.scope(user=user).state.put("city", f"{user}'s city")
        db.scope(user="ada").app_state.put("motto", "go")
        db.hold("ada", session="s", reason="a court's order")
    memcore.give_access(made.address, made.role, user="ada")
    yield made
    with memcore.open(made.address) as db:
        assert db.check() == []


def test_all_that_a_user_has_works_under_a_role_of_its_own(place):
    with memcore.open(place.own) as db:
        session = db.session("s", user="ada")
        assert texts(session) == ["ada's words"]
        session.extend([hello(f"{n}") for n in range(20)])
        session.append(hello("a " * 300_000), idempotency_key="k")
        session.append(hello("a " * 300_000), idempotency_key="k")
        session.append(hello("last"))
        assert session.context(2_000).messages == [hello("last")]
        session.checkpoint("c")
        fork = session.fork("t")
        fork.append(hello("fork"))
        session.rewind("c")
        session.state.put("mood", "good")
        scope = db.scope(user="ada")
        assert scope.state.get("city") == "ada's city"
        assert scope.app_state.get("motto") == "go"
        scope.app_state.put("motto", "on")
        assert scope.kv("n").get("k") == "ada's value"
        scope.kv("n").put("big", 1, content=bytes(3_000_000), ttl_seconds=0.001)
        scope.memory.remember("Ada lives in London.", by="operator")
        assert [hit.memory.text for hit in scope.memory.search("London")]
        with db.session("u", user="ada").lease("me", ttl_seconds=60):
            pass
        with pytest.raises(StoreAccessError, match="row-level"):
            db.retention.set([{"what": "items", "keep_last": 5}])  # of the whole store
        db.retention.set([{"what": "items", "keep_last": 50}], user="ada")
        session.compact(memcore.extractive, keep_last=4)
        assert db.search("last", user="ada")
        graph = db.scope(user="ada").graph
        saved = NewCheckpoint("01", None, {}, {}, {"messages": ("1", ["hello"])})
        graph.put("thread", "", saved, JsonCoder())
        assert [each.thread for each in graph.threads()] == ["thread"]
        lines = list(db.export(user="ada"))
        copied = db.import_(
            lines, rename=lambda title: replace(title, session=f"{title.session} 2")
        )
        assert copied.failures == []
        assert db.sweep().held == 1  # a value of its own that has expired
        db.delete_session("t", user="ada")
        assert db.scopes() == [("default", "ada")]
        assert {entry.user for entry in db.sessions()} == {"ada"}
    with memcore.open(place.address) as db:
        assert db.scope(user="bob").app_state.get("motto") == "on"
        assert len(texts(db.session("s", user="ada"))) == 23
        assert texts(db.session("s", user="bob")) == ["bob's words"]


def test_another_user_is_not_there_and_cannot_be_made(place):
    with memcore.open(place.own) as db:
        bob = db.session("s", user="bob")
        assert not bob.exists()
        assert texts(bob) == []
        assert db.scope(user="bob").kv("n").get("k") is None
        for call in (
            lambda: bob.append(hello("mine")),
            lambda: db.session("s", user="new").append(hello()),
            lambda: db.session("s", user="ada", app="another").append(hello()),
            lambda: db.scope(user="bob").state.put("city", "mine"),
            lambda: db.release("ada", session="s"),
        ):
            with pytest.raises(StoreAccessError, match="row-level security"):
                call()
        with pytest.raises(CallerError):
            db.delete_session("s", user="ada")  # it is held
        with memcore.open(place.address) as operator:
            operator.release("ada", session="s")
        with pytest.raises(StoreAccessError, match="row-level security"):
            db.erase("ada")  # who is erased is noted for the whole store
    with memcore.open(place.address) as db:
        assert db.scopes() == [("default", "ada"), ("default", "bob")]
        assert texts(db.session("s", user="bob")) == ["bob's words"]


def test_no_statement_of_the_role_reaches_another_user(place):
    """What a program may try that speaks to the server without memcore."""
    with memcore.open(place.address) as db:
        numbers = {user: number for number, _, user in _scopes(db)}
    ada, bob = u64(numbers["ada"]), u64(numbers["bob"])
    rows = place.ask("select k, v from ROLES.rows", role=place.role)
    assert len(rows) > 5
    assert not [row for row in rows if bob in row[0] or b"bob" in row[0] + row[1]]
    everything = place.ask("select k, v from ROLES.rows")
    theirs = [row for row in everything if row not in rows]
    assert len(theirs) > 5
    for statement in (
        "insert into ROLES.rows values (%s, 'mine') on conflict (k) do update set v = 'mine'",
        "insert into ROLES.rows values (%s, 'mine') on conflict (k) do nothing",
    ):
        for key, _ in theirs:
            with pytest.raises(pg.InsufficientPrivilege):
                place.ask(statement, key, role=place.role)
    for statement in (
        "delete from ROLES.rows where k = %s",
        "update ROLES.rows set v='' where k = %s",
    ):
        for key, _ in theirs:
            assert place.ask(statement, key, role=place.role) == 0
    with pytest.raises(pg.InsufficientPrivilege):  # nor moves a row there
        place.ask("update ROLES.rows set k = set_byte(k, 8, 255)", role=place.role)
    name = bytes((Kind.SCOPE_NAME,)) + b"new"
    hold = keys.scoped(Kind.CARE, numbers["ada"]) + bytes((Care.HOLD,))
    for key in (
        name,
        keys.scoped(Kind.SCOPE, numbers["ada"]),
        hold,
        b"\0x",
        b"\1\1",
        b"\x12" + bytes(9),
    ):
        with pytest.raises(pg.InsufficientPrivilege):
            place.ask(
                "insert into ROLES.rows values (%s, %s)", key, bytes(10) + ada, role=place.role
            )
    held = place.ask("delete from ROLES.rows where get_byte(k, 0) = 18", role=place.role)
    assert not held
    for partition in (b"\1\1", bytes((Kind.SESSION,)) + bob + u64(1), b"\x12" + bytes(8) + b"\1"):
        for statement in (
            "insert into ROLES.parts values (%s, 1)",
            "insert into ROLES.parts values (%s, 1) on conflict (p) do update set version = 0",
        ):
            with pytest.raises((pg.InsufficientPrivilege, pg.UniqueViolation)):
                place.ask(statement, partition, role=place.role)
    with pytest.raises(pg.InsufficientPrivilege):
        place.ask("update ROLES.parts set version = 0", role=place.role)
    for statement in (
        "delete from ROLES.parts", "truncate ROLES.rows", "update ROLES.store set version = 9",
        "insert into ROLES.access values ('tester', '')", "delete from ROLES.access",
        "alter table ROLES.rows disable row level security", "drop schema ROLES cascade",
    ):  # fmt: skip
        with pytest.raises(pg.InsufficientPrivilege):
            place.ask(statement, role=place.role)
    for statement in (
        "select ROLES.numbers_2('\\x0101', -5)", "select ROLES.numbers_2('\\x0501', 5)",
        "select ROLES.numbers_2('\\x0101', 10000000)",
    ):  # fmt: skip
        with pytest.raises(pg.RaiseException):
            place.ask(statement, role=place.role)
    assert place.ask("select k, v from ROLES.rows") == everything


def _scopes(db):
    from memcore.rows import names

    return db.engine.store.read(lambda txn: list(names.scopes(txn)))


def test_a_user_that_does_not_exist_yet_a_second_one_and_groups(place):
    memcore.give_access(place.address, place.role, user="carl", app="desk")
    place.ask(f'create role "{place.role} group"')
    place.ask(f'grant "{place.role} group" to "{place.role}"')
    memcore.give_access(place.address, f"{place.role} group", user="bob")
    with memcore.open(place.own) as db:
        db.session("s", user="carl", app="desk").append(hello("carl's words"))
        assert texts(db.session("s", user="bob")) == ["bob's words"]
        assert db.scopes() == [("default", "ada"), ("default", "bob"), ("desk", "carl")]
    given = memcore.access_of_roles(place.address)
    assert {(each.role, each.app, each.user) for each in given} == {
        (place.role, "default", "ada"), (place.role, "default", None), (place.role, "desk", "carl"),
        (place.role, "desk", None), (f"{place.role} group", "default", "bob"),
        (f"{place.role} group", "default", None),
    }  # fmt: skip
    place.ask(f'drop owned by "{place.role} group"')
    place.ask(f'drop role "{place.role} group"')  # it takes nothing along, and leaves nobody more
    with memcore.open(place.own) as db:
        assert db.scopes() == [("default", "ada"), ("desk", "carl")]


def test_a_role_for_everybody(place):
    place.ask(f'create role "{place.role} all" login')
    memcore.give_access(place.address, f"{place.role} all", user=None)
    every = place.own.replace("@", "%20all@", 1)
    with memcore.open(every) as db:
        assert texts(db.session("s", user="bob")) == ["bob's words"]
        db.session("s", user="new").append(hello())
        assert db.release("ada", session="s")
        assert db.erase(user="bob").pending == ()
    with memcore.open(place.address) as db:
        assert db.scopes() == [("default", "ada"), ("default", "new")]
    found = [each for each in memcore.access_of_roles(place.address) if each.role.endswith("all")]
    assert [(each.app, each.user) for each in found] == [(None, None)]


def test_access_is_taken_again_at_once(place):
    memcore.give_access(place.address, place.role, user="bob")
    with memcore.open(place.own) as db:
        session = db.session("s", user="ada")
        session.append(hello())
        assert memcore.take_access(place.address, place.role, user="ada") == 1
        assert memcore.take_access(place.address, place.role, user="ada") == 0
        with pytest.raises(StoreAccessError):
            session.append(hello())
        assert db.scope(user="bob").app_state.get("motto") == "go"
        assert memcore.take_access(place.address, place.role) == 2
        with pytest.raises(StoreAccessError):
            texts(db.session("s", user="bob"))
    with pytest.raises(StoreAccessError):
        memcore.open(place.own)


def test_what_is_wrong_is_told(place, tmp_path):
    with pytest.raises(NotFoundError, match="no role 'nobody'"):
        memcore.give_access(place.address, "nobody", user="ada")
    with pytest.raises(NotFoundError, match="no such store"):
        memcore.give_access(place.server.address("missing"), place.role, user="ada")
    with pytest.raises(StoreAccessError, match="that made the store"):
        memcore.give_access(place.own, place.role, user="ada")
    with pytest.raises(StoreAccessError, match="that made the store"):
        memcore.take_access(place.own, place.role)
    for call in (
        lambda: memcore.give_access(str(tmp_path / "a.memcore"), "x", user="ada"),
        lambda: memcore.give_access(place.address, place.role, user=""),
        lambda: memcore.access_of_roles("agent.memcore"),
    ):
        with pytest.raises(InvalidOptionError):
            call()
