"""Handles and errors as Python objects: copied, pickled, shown."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import pytest

import memcore
from memcore import aio, errors
from memcore.retention import read_rules
from messages import user

WAYS = {
    "pickle": lambda it: pickle.loads(pickle.dumps(it)),
    "old pickle": lambda it: pickle.loads(pickle.dumps(it, protocol=0)),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
}


def made(cls: type[memcore.MemcoreError]) -> memcore.MemcoreError:
    """An error with every attribute that its class has."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    names = [each.name for each in parameters if each.kind == each.KEYWORD_ONLY]
    return cls("why", **{name: {"x": 1} if name == "reasons" else 3 for name in names})


@pytest.mark.parametrize("name", sorted(errors.__all__))
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_error_reaches_another_process(name, way) -> None:
    error = made(getattr(errors, name))
    error.add_note("in a worker")
    found = way(error)
    assert type(found) is type(error)
    assert str(found) == "why"
    assert vars(found) == vars(error)


def handles(db: memcore.Database) -> dict[str, object]:
    """One of each kind, by what its repr has to hold."""
    session, scope = db.session("chat", user="ann"), db.scope(user="ann")
    session.append(user())
    return {
        "Database(": db,
        "Session('chat'": session,
        "Scope(user='ann'": scope,
        "SessionState('chat')": session.state,
        "KeyValue('prefs' of user 'ann' in app 'default')": scope.kv("prefs"),
        "BlobStore(user 'ann' in app 'default')": scope.blobs,
        "Memories(user 'ann' in app 'default')": scope.memory,
        "Grants(user 'ann' in app 'default')": scope.memory.grants,
        "RollingSummary('sessions')": scope.memory.summary(),
        "Profile(of name)": scope.memory.profile(
            {"type": "object", "properties": {"name": {"type": "string"}}}
        ),
        "Quarantine(user 'ann' in app 'default')": scope.quarantine,
        "Retention(of ": db.retention,
    }


def test_a_handle_says_whose_it_is(db) -> None:
    for shown, handle in handles(db).items():
        assert repr(handle).startswith(shown)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_handle_is_neither_copied_nor_pickled(db, way) -> None:
    for handle in handles(db).values():
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            way(handle)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_awaited_handle_is_neither_copied_nor_pickled(way) -> None:
    async def work() -> None:
        async with aio.open(":memory:") as db:
            session, scope = db.session("chat", user="ann"), db.scope(user="ann")
            await session.append(user())
            for handle in (
                db, session, scope, session.state, scope.kv("prefs"), scope.blobs,
                scope.quarantine, scope.memory, scope.memory.grants, scope.memory.summary(),
            ):  # fmt: skip
                with pytest.raises(TypeError, match="neither copied nor pickled"):
                    way(handle)
            assert (
                repr(scope.kv("prefs")) == "AsyncKeyValue('prefs' of user 'ann' in app 'default')"
            )

    asyncio.run(work())


class OfSystemError(errors.StorageError, OSError):
    """An error of a caller with two bases."""


class OfSlotError(errors.MemcoreError):
    """An error of a caller with a slot."""

    __slots__ = ("n",)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.n = 3


def test_errors_of_callers_keep_what_they_have() -> None:
    found = pickle.loads(pickle.dumps(OfSystemError(2, "no such", "file")))
    assert (found.errno, found.filename) == (2, "file")
    assert pickle.loads(pickle.dumps(OfSlotError("why"))).n == 3


def test_a_handle_that_only_reads_says_so(path) -> None:
    memcore.open(path).close()
    with memcore.open(path, read_only=True) as db:
        assert repr(db).endswith("read_only=True)")


def test_a_path_is_no_database() -> None:
    with pytest.raises(TypeError, match=r"memcore\.open"):
        memcore.Database("agent.memcore")


def test_a_guard_is_an_object(path) -> None:
    with pytest.raises(memcore.InvalidOptionError, match="the class SecretGuard"):
        memcore.open(path, guard=memcore.SecretGuard)


@pytest.mark.parametrize("bad", [None, 5, {"role": "user", "content": float("nan")}])
def test_an_item_of_several_is_told_by_its_position(db, bad) -> None:
    with pytest.raises(memcore.InvalidItemError, match="position 1"):
        db.session("s").extend([user(), bad])
    assert not db.session("s").exists()


def test_no_reserve_is_too_large_to_say_so(db) -> None:
    session = db.session("s")
    session.append(user())
    for reserve in (2**62, 2**63, 10**30):
        with pytest.raises(memcore.ContextOverflowError, match="reserve_tokens leaves nothing"):
            session.context(1000, reserve_tokens=reserve)


def test_waiting_no_time_looks_once(db) -> None:
    state = db.session("s").state
    assert state.wait(timeout_seconds=0) is None
    state.put("a", 1)
    assert state.wait(since=0, timeout_seconds=0).counter == 1


def test_what_compact_did_nothing_for_is_said(db) -> None:
    session = db.session("s")
    assert session.compact(force=True).reason == "the session has no items"
    session.extend([user(f"message {number} " * 40) for number in range(30)])
    found = session.compact(policy="hybrid", force=True)
    assert (found.status, "keeps all items" in found.reason) == ("nothing", True)
    # The caller's limit is the only one: the policy would keep 40.
    assert session.compact(policy="hybrid", keep_last=2).status == "trimmed"
    assert len(session.context(100_000).messages) == 2


def test_rules_are_not_emptied_by_an_empty_file(db, tmp_path) -> None:
    db.retention.set("standard")
    empty = tmp_path / "rules.toml"
    empty.write_text("")
    with pytest.raises(memcore.InvalidOptionError, match="no rules"):
        db.retention.set(read_rules(empty))
    assert db.retention.get() != ()
    db.retention.set({"rules": []})
    assert db.retention.get() == ()
