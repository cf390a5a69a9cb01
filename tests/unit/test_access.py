"""The authorizer: asked before anything is opened or looked at; what is not True refuses."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memcore
import memcore.aio
from memcore.access import AccessRequest
from memcore.database import Database
from memcore.database.scope import engine_of
from memcore.errors import AccessDeniedError
from memcore.privacy.write_filter import ScopeFilter
from memcore.session import Engine
from memcore.store import LmdbStore


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


class Guard:
    """An authorizer that remembers what it was asked, and whose answer can be set."""

    def __init__(self) -> None:
        self.asked: list[AccessRequest] = []
        self.answer: Any = True

    def __call__(self, request: AccessRequest) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(request) if callable(self.answer) else self.answer

    def take(self) -> list[tuple[Any, ...]]:
        found = [(a.actor, a.app, a.user, a.action, a.name) for a in self.asked]
        self.asked.clear()
        return found


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def guarded(open_db: Callable[..., memcore.Database], guard: Guard) -> memcore.Database:
    """A database in which ann has a session; then its authorizer forgets."""
    db = open_db(authorizer=guard, actor="boss")
    db.session("s", user="ann").append(user("secret"))
    db.scope(user="ann").kv("n").put("k", "secret")
    guard.take()
    return db


OPENINGS: dict[str, Callable[[memcore.Scope], Any]] = {
    "session": lambda s: s.session("s"),
    "kv": lambda s: s.kv("n"),
    "blobs": lambda s: s.blobs,
    "graph": lambda s: s.graph,
    "state": lambda s: s.state,
    "app_state": lambda s: s.app_state,
    "sessions": lambda s: s.sessions(),
    "delete_session": lambda s: s.delete_session("s"),
    "quarantine": lambda s: s.quarantine,
    "hold": lambda s: s.hold(reason="r"),
    "release": lambda s: s.release(),
    "holds": lambda s: s.holds(),
    "erase": lambda s: s.erase(compact=False),
    "memory_opt_out": lambda s: s.memory_opt_out,
    "opt_out_memory": lambda s: s.opt_out_memory(),
    "opt_in_memory": lambda s: s.opt_in_memory(),
}
NAMED = {"session": "s", "delete_session": "s", "kv": "n"}
CARE: dict[str, Callable[[memcore.Database], Any]] = {
    "scopes": lambda db: db.scopes(),
    "sessions": lambda db: db.sessions(),
    "export": lambda db: db.export(),
    "import": lambda db: db.import_([]),
    "check": lambda db: db.check(),
    "stats": lambda db: db.stats(),
    "branches": lambda db: db.branches(),
    "backup": lambda db: db.backup("nowhere"),
    "copy_compact": lambda db: db.copy_compact(),
    "finish_erasures": lambda db: db.finish_erasures(),
    "pending_erasures": lambda db: db.pending_erasures(),
    "holds": lambda db: db.holds(),
    "demands": lambda db: db.demands,
    "demand": lambda db: db.demand(redact="default"),
    "log_filter": lambda db: db.log_filter(),
    "receipt_key": lambda db: db.receipt_key,
    "retention": lambda db: db.retention,
    "sweep": lambda db: db.sweep(dry_run=True),
    "verify_audit": lambda db: db.verify_audit(key=b"k" * 32),
    "audit_entries": lambda db: list(db.audit_entries()),
    "anchor_audit": lambda db: db.anchor_audit("nowhere"),
    "cut_audit": lambda db: db.cut_audit(older_than_seconds=1),
    "key_status": lambda db: db.key_status(),
    "rotate_key": lambda db: db.rotate_key(b"k" * 32),
    "rotate_data_keys": lambda db: db.rotate_data_keys(),
}


@pytest.mark.parametrize("what", OPENINGS)
def test_every_opening_is_asked(guarded: memcore.Database, guard: Guard, what: str) -> None:
    scope = guarded.as_user("ann", actor="agent 7")
    assert guard.take() == [("agent 7", "default", "ann", "scope", None)]
    OPENINGS[what](scope)
    assert guard.take() == [("agent 7", "default", "ann", what, NAMED.get(what))]


@pytest.mark.parametrize("what", OPENINGS)
@pytest.mark.parametrize("who", ["ann", "nobody"])
def test_what_is_refused_looks_at_nothing(
    guarded: memcore.Database, guard: Guard, what: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = guarded.as_user(who)
    guard.answer = False
    touched: list[str] = []
    for method in ("read", "transact", "submit"):
        monkeypatch.setattr(LmdbStore, method, lambda *_, m=method, **__: touched.append(m))
    with pytest.raises(AccessDeniedError) as refused:
        OPENINGS[what](scope)
    monkeypatch.undo()
    assert not touched
    named = f" {NAMED[what]!r}" if what in NAMED else ""
    assert str(refused.value) == (
        f"access denied: {what}{named} of user {who!r} in app 'default' for actor {who!r}; ask "
        "whoever runs the database"
    )


@pytest.mark.parametrize("what", CARE)
def test_the_administrator_is_asked(
    guarded: memcore.Database, guard: Guard, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.answer = False
    touched: list[str] = []
    for method in ("read", "transact", "submit", "backup", "copy_compact", "check"):
        monkeypatch.setattr(LmdbStore, method, lambda *_, m=method, **__: touched.append(m))
    with pytest.raises(AccessDeniedError):
        CARE[what](guarded)
    monkeypatch.undo()
    assert not touched
    assert [request[:4] for request in guard.take()] == [("boss", None, None, what)]


def test_care_asks_once_and_not_for_every_user(guarded: memcore.Database, guard: Guard) -> None:
    assert [entry.user for entry in guarded.sessions(user="ann")] == ["ann"]
    assert guarded.stats()["sessions"] == 1
    assert b"secret" in b"".join(guarded.export(user="ann", app="default", session_id="s"))
    assert guard.take() == [
        ("boss", None, "ann", "sessions", None),
        ("boss", None, None, "stats", None),
        ("boss", "default", "ann", "export", "s"),
    ]


def test_forgetting_a_user_is_asked_about_that_user(
    guarded: memcore.Database, guard: Guard
) -> None:
    guard.answer = lambda request: request.action not in ("erase", "override_hold", "would_erase")
    for way in (guarded.erase, guarded.would_erase):
        with pytest.raises(AccessDeniedError):
            way("ann")
    guard.take()
    guard.answer = lambda request: request.action != "override_hold"
    with pytest.raises(AccessDeniedError):
        guarded.erase("ann", override_hold=True)
    with pytest.raises(AccessDeniedError):
        guarded.as_user("ann").erase(override_hold=True)
    assert [each[2:4] for each in guard.take() if each[3] == "override_hold"] == [
        ("ann", "override_hold"),
        ("ann", "override_hold"),
    ]
    assert guarded.session("s", user="ann").exists()


@pytest.mark.parametrize("what", ["hold", "release"])
def test_a_session_under_a_hold_is_asked_about(
    guarded: memcore.Database, guard: Guard, what: str
) -> None:
    session = guarded.as_user("ann").session("s")
    session.hold(reason="court")
    guard.take()
    guard.answer = False
    with pytest.raises(AccessDeniedError):
        session.hold(reason="r") if what == "hold" else session.release()
    assert guard.take() == [("ann", "default", "ann", what, "s")]
    guard.answer = True
    assert [hold.reason for hold in guarded.holds()] == ["court"]


def test_a_scope_leads_past_no_border_and_to_no_other_place() -> None:
    with memcore.open(":memory:", redact=True) as db:
        scope = db.as_user("ann")
        public = [getattr(scope, name) for name in dir(scope) if not name.startswith("_")]
        assert not [each for each in public if isinstance(each, ScopeFilter)]
        assert not hasattr(scope, "rows")


class Truthy:
    def __bool__(self) -> bool:
        return True


async def never() -> bool:
    return True


@pytest.mark.parametrize(
    "answer",
    [None, 1, "yes", [True], Truthy(), lambda _: never(), ValueError("why"), RecursionError()],
    ids=repr,
)
def test_whatever_is_not_true_refuses(
    guarded: memcore.Database, guard: Guard, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard.answer = answer
    with caplog.at_level(logging.DEBUG, "memcore.access"), pytest.raises(AccessDeniedError) as no:
        guarded.session("s", user="ann")
    cause = answer if isinstance(answer, Exception) else None
    assert no.value.__cause__ is cause
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].memcore_access.user == "ann"
    assert "why" not in str(no.value)


def test_an_interrupt_is_no_answer(guarded: memcore.Database, guard: Guard) -> None:
    guard.answer = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        guarded.session("s", user="ann")


def test_an_authorizer_may_change_its_mind(guarded: memcore.Database, guard: Guard) -> None:
    scope = guarded.as_user("ann")
    session = scope.session("s")
    guard.answer = False
    with pytest.raises(AccessDeniedError):
        scope.session("s")
    with pytest.raises(AccessDeniedError):
        session.fork("t")
    session.append(user("a handle that is open stays so"))
    guard.answer = True
    assert len(scope.session("s")) == 2
    assert {name for _, _, _, _, name in guard.take()} >= {"s", "t"}


def test_an_authorizer_that_hangs_holds_nobody_else_up(
    guarded: memcore.Database, guard: Guard
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def answer(request: AccessRequest) -> bool:
        if request.name == "slow":
            entered.set()
            leave.wait()
            return False
        return True

    guard.answer = answer
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            guarded.session("slow", user="ann")
        except AccessDeniedError as exc:
            errors.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait()
    session = guarded.session("s", user="ann")
    session.append(user("meanwhile"))
    assert not errors
    leave.set()
    thread.join()
    assert len(errors) == 1


def test_an_authorizer_may_use_the_database(open_db: Callable[..., memcore.Database]) -> None:
    rules = open_db()
    allowed = rules.scope(user="rules").kv("allowed")
    db = open_db(authorizer=lambda request: bool(allowed.get(request.actor or "?", default=False)))
    with pytest.raises(AccessDeniedError):
        db.as_user("ann")
    allowed.put("ann", 1)
    db.as_user("ann").session("s").append(user("x"))


def test_names_make_no_lines_of_the_log(
    guarded: memcore.Database, guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.answer = False
    name = "x\nallowed scope\u202e\ud800" + "y" * 5_000
    with caplog.at_level(logging.DEBUG, "memcore.access"), pytest.raises(AccessDeniedError) as no:
        guarded.scope(user=name)
    for said in (str(no.value), caplog.messages[0]):
        assert "\n" not in said
        assert said.isascii()
        assert len(said) < 400


def test_grants_are_told_at_debug(
    guarded: memcore.Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "memcore.access"):
        guarded.session("s", user="ann")
    assert caplog.messages == [
        "allowed scope of user 'ann' in app 'default' for actor 'boss'",
        "allowed session 's' of user 'ann' in app 'default' for actor 'boss'",
    ]


def test_recorders_are_told_before_anything_happens(guarded: memcore.Database) -> None:
    told: list[tuple[str, bool]] = []
    access = guarded.engine.access
    assert access is not None
    assert access.record is not None

    def record(request: AccessRequest, allowed: bool) -> None:
        told.append((request.action, allowed))
        if request.action == "kv":
            raise OSError("the audit log is full")

    access.record.append(record)
    scope = guarded.as_user("ann")
    assert told == [("scope", True)]
    with pytest.raises(OSError, match="full"):
        scope.kv("n")


def test_async(path: Path, guard: Guard) -> None:
    async def run() -> None:
        async with memcore.aio.open(path, authorizer=guard, actor="boss") as db:
            scope = db.as_user("ann", app="shop", actor="agent")
            await scope.session("s").append(user("x"))
            guard.answer = False
            for opening in (
                db.scope,
                lambda: db.session("s"),
                lambda: scope.session("s"),
                lambda: scope.kv("n"),
                lambda: scope.blobs,
                lambda: scope.state,
                lambda: scope.app_state,
            ):
                with pytest.raises(AccessDeniedError):
                    opening()
            for coroutine in (db.sessions(), db.scopes(), db.check(), scope.sessions(), db.stats()):
                with pytest.raises(AccessDeniedError):
                    await coroutine
            with pytest.raises(AccessDeniedError):
                await scope.delete_session("s")
            guard.answer = True
            assert len(await scope.sessions()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("authorizer", [1, "f", never, type("A", (), {"__call__": never})()])
def test_bad_authorizers(path: Path, authorizer: Any) -> None:
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(path, authorizer=authorizer)
    assert not path.exists()


def test_bad_actors(db: memcore.Database, path: Path) -> None:
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(path, actor=7)  # type: ignore[arg-type]
    with pytest.raises(memcore.InvalidOptionError):
        db.as_user("ann", actor=7)  # type: ignore[arg-type]
    with pytest.raises(memcore.InvalidOptionError):
        db.as_user("")


def test_without_an_authorizer_as_user_is_scope(db: memcore.Database) -> None:
    scope = db.as_user("ann", app="shop", actor="agent")
    assert (scope.user, scope.app, scope.actor) == ("ann", "shop", None)


def test_the_audit_says_who_asked(tmp_path: Path) -> None:
    guard, audit = Guard(), memcore.Audit(b"k" * 32)
    path = tmp_path / "audited.memcore"
    with memcore.open(path, authorizer=guard, actor="boss", audit=audit) as db:
        db.as_user("ann", actor="agent\ud800").session("s").append(user("x"))
        guard.answer = False
        with pytest.raises(AccessDeniedError):
            db.as_user("bob")
        guard.answer = True
        told = [str(entry) for entry in db.audit_entries() if "access" in str(entry)]
        assert len(told) >= 3
        assert db.verify_audit().findings == ()
        assert db.check() == []


# --- what a handle leads to -----------------------------------------------------------------------

FORBIDDEN = (Database, Engine, LmdbStore, memcore.aio.AsyncDatabase)


def public(thing: Any) -> Iterator[tuple[str, Any]]:
    """What attributes without an underscore lead to."""
    for name in object.__dir__(thing):
        if name.startswith("_"):
            continue
        try:
            found = getattr(thing, name)
        except (memcore.MemcoreError, AttributeError, NotImplementedError, RuntimeError):
            continue
        yield name, found
        if isinstance(found, dict | list | tuple):
            values = found.values() if isinstance(found, dict) else found
            yield from ((f"{name}[]", each) for each in values)


def leaks_of(start: Any) -> list[str]:
    """The paths of public attributes from a handle to what it must not lead to."""
    seen: set[int] = set()
    todo = [(type(start).__name__, start)]
    found = []
    while todo:
        path, thing = todo.pop()
        for name, reached in public(thing):
            if isinstance(reached, FORBIDDEN):
                found.append(f"{path}.{name}")
            elif type(reached).__module__.startswith("memcore") and id(reached) not in seen:
                seen.add(id(reached))
                todo.append((f"{path}.{name}", reached))
    return found


def test_a_scope_leads_to_nothing_but_itself(db: memcore.Database) -> None:
    scope = db.as_user("ann")
    session = scope.session("s")
    session.append(user("x"))
    handles: list[Any] = [scope, session, scope.kv("n"), scope.blobs, scope.graph, scope.state]
    handles += [scope.app_state, session.batch(), session.lease("w", ttl_seconds=1), session.state]
    asynchronous = memcore.aio.AsyncScope(scope)
    handles += [asynchronous, asynchronous.session("s"), asynchronous.kv("n")]
    assert [leak for handle in handles for leak in leaks_of(handle)] == []
    assert leaks_of(db)  # what is looked for would be found
    assert engine_of(scope) is db.engine


def test_a_handle_tells_of_no_other_scope(db: memcore.Database) -> None:
    secret = db.scope(user="hidden-user", app="hidden-app")
    secret.session("hidden-name").append(user("hidden-text"))
    secret.kv("hidden-space").put("hidden-key", 1)
    scope = db.as_user("ann")
    session = scope.session("s")
    session.append(user("x"))
    said = [repr(scope), repr(session), repr(scope.kv("n")), repr(scope.state), repr(session.state)]
    for fail in (
        lambda: scope.session("hidden-nam", create=False),
        lambda: session.get(99),
        lambda: session.find_call("c"),
        lambda: session.get_checkpoint("c"),
        lambda: scope.blobs.get("0" * 64),
        lambda: session.rewind(99),
        lambda: session.state.at(99),
        lambda: session.fork("s"),
    ):
        with pytest.raises(memcore.MemcoreError) as refused:
            fail()
        said.append(str(refused.value))
    for word in ("hidden-user", "hidden-app", "hidden-name", "hidden-space", "hidden-text"):
        assert not any(word in text for text in said)


def test_holds_of_a_user_are_asked_for(guarded: memcore.Database, guard: Guard) -> None:
    guard.answer = False
    with pytest.raises(AccessDeniedError):
        guarded.hold("ann", reason="r", app="a", session="s")
    with pytest.raises(AccessDeniedError):
        guarded.release("ann", app="a", session="s")
    assert guard.take() == [("boss", "a", "ann", what, "s") for what in ("hold", "release")]
    for what in ("opt_out_memory", "opt_in_memory"):
        with pytest.raises(AccessDeniedError):
            getattr(guarded, what)("ann", app="a")
        assert guard.take() == [("boss", "a", "ann", what, None)]


def test_a_context_shows_no_memory_that_the_actor_may_not_read(guarded, guard) -> None:
    session = guarded.session("s", user="ann")
    guarded.scope(user="ann").memory.remember("Has a secret", by="operator")
    guard.answer = lambda request: request.action != "memory"
    assert len(session.context(2000).messages) == 1
    with pytest.raises(memcore.AccessDeniedError):
        session.context(2000, memory=memcore.Recall())
    guard.answer = True
    assert len(session.context(2000, memory=memcore.Recall()).messages) == 2
    assert ("boss", "default", "ann", "memory", "s") in guard.take()
