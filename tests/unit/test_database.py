"""Database and Scope: opening, listing, isolation, deletion, check, stats, backup."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from threaded import Thread

import memcore
from memcore.codec import keys
from memcore.maintenance.check import Damage, damage_of
from memcore.rows import names
from messages import call, result, texts, turns, user


def test_a_new_file_is_durable_and_says_so(db, path):
    assert (db.path, db.durability, db.read_only) == (str(path), "full", False)
    assert not db.needs_recovery


def test_durability_is_recorded_and_followed(open_db, path):
    open_db(durability="none").close()
    with memcore.open(path) as db:
        assert db.durability == "none"
    with pytest.raises(memcore.InvalidOptionError):
        memcore.open(path, durability="full")


def test_memory_is_private_and_gone_at_close():
    with memcore.open(":memory:") as first, memcore.open(":memory:") as second:
        first.session("chat").append(user())
        assert list(second.sessions()) == []
        assert (first.path, first.durability) == (":memory:", "none")


def test_reopening_finds_everything(open_db):
    with open_db() as db:
        session = db.session("chat", policy="langchain")
        session.extend([user(), call("c")])
        session.record("note", 1)
        session.extend([result("c"), *turns(6)])
        session.compact(lambda _: "s")
        state = (list(session), session.revision, session.tokens, session.views())
        context = session.context()
    with open_db() as db:
        again = db.session("chat")
        assert (list(again), again.revision, again.tokens, again.views()) == state
        assert (again.context(), again.policy) == (context, "langchain")


# --- scopes ---------------------------------------------------------------------------------------


def test_scopes_never_see_each_other(db):
    who = [("app", "alice"), ("app", "bob"), ("other", "alice")]
    for app, name in who:
        session = db.session("chat", app=app, user=name)
        session.append(user(f"{app}/{name}"), idempotency_key="k")
        db.scope(app=app, user=name).kv("n").put("k", f"{app}/{name}")
    for app, name in who:
        scope = db.scope(app=app, user=name)
        assert [e.session_id for e in scope.sessions()] == ["chat"]
        assert texts(scope.session("chat")) == [f"{app}/{name}"]
        assert scope.kv("n").get("k") == f"{app}/{name}"
    assert db.delete_session("chat", app="app", user="alice")
    assert texts(db.session("chat", app="app", user="bob")) == ["app/bob"]
    assert sorted(db.scopes()) == sorted(who)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", "b\x00c"), ("a\x00b", "c")),
        (("a\x00", "b"), ("a", "\x00b")),
        (("ab", "c"), ("a", "bc")),
        (("x" * 5_000, "y"), ("x" * 5_000, "z")),
    ],
)
def test_names_that_run_into_each_other_are_two_scopes(db, first, second):
    for app, name in (first, second):
        db.session("chat", app=app, user=name).append(user(name))
    assert texts(db.session("chat", app=first[0], user=first[1])) == [first[1]]
    assert texts(db.session("chat", app=second[0], user=second[1])) == [second[1]]
    assert len(db.scopes()) == 2


def test_forks_stay_in_their_scope(db):
    session = db.session("chat", user="alice")
    session.append(user())
    session.fork("fork")
    assert not db.session("fork").exists()
    assert db.session("fork", user="alice").exists()


# --- listing --------------------------------------------------------------------------------------


def test_sessions_are_listed_by_name_over_pages(db):
    names = [f"s{n:04}" for n in range(600)]
    for name in names:
        db.session(name).append(user())
    assert [e.session_id for e in db.sessions()] == names
    listing = db.sessions()
    first = next(listing)
    for name in names[1:300]:
        db.delete_session(name)
    rest = [e.session_id for e in listing]
    assert first.session_id == "s0000"
    assert rest[-300:] == names[300:]
    assert len(rest) == len(set(rest))


def test_a_listing_says_what_there_is(db):
    session = db.session("chat", user="alice", app="support", policy="seed")
    session.extend([user(), call("c")])
    entry = next(db.sessions())
    assert (entry.session_id, entry.user, entry.app, entry.policy) == (
        "chat",
        "alice",
        "support",
        "seed",
    )
    assert (entry.items, entry.tokens, entry.open_calls, entry.revision) == (
        2,
        session.tokens,
        1,
        1,
    )
    assert entry.created_at <= entry.updated_at
    assert list(db.sessions(user="bob")) == []
    assert len(list(db.sessions(app="support"))) == 1


def test_deleting_says_whether_there_was_one(db):
    assert not db.delete_session("chat")
    db.session("chat").append(user())
    assert db.delete_session("chat")
    assert not db.delete_session("chat")


# --- care -----------------------------------------------------------------------------------------


def test_check_reports_its_progress(db):
    for n in range(3):
        db.session(str(n)).append(user())
    seen: list[tuple[int, int]] = []
    assert db.check(progress=lambda done, total: seen.append((done, total))) == []
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("which", [1, 2, 3, 4])
@pytest.mark.parametrize("said", [0, 1, 2**62 - 1, None])
def test_check_compares_the_counters_with_the_numbers_in_use(path, which, said):
    def change(txn):
        if said is None:
            txn.delete(keys.counter(which))
        else:
            names.register_last(txn, which, said)

    with memcore.open(path) as db:
        for name in ("a", "b"):
            scope = db.scope(user=name)
            scope.session("s").append({"role": "user", "content": "hello"})
            scope.kv("k").put("entry", 1)
            Thread(scope.graph, "t").put(n=1)
        assert db.check() == []
        db.engine.store.transact(change)
        (finding,) = db.check()
    assert finding.startswith("the counter of ")
    assert damage_of(finding) is Damage.MARK


def test_stats_count(db):
    db.session("a").extend(turns(3))
    db.session("b", user="bob").append(user())
    stats = db.stats()
    assert (stats["scopes"], stats["sessions"], stats["items"]) == (2, 2, 7)
    assert stats["tokens"] == db.session("a").tokens + db.session("b", user="bob").tokens
    db.flush()


@pytest.mark.parametrize("compact", [True, False])
def test_a_backup_is_a_whole_database(db, tmp_path: Path, compact):
    session = db.session("chat")
    session.extend([*turns(5), user("x" * 300_000)])
    target = tmp_path / "copy.memcore"
    db.backup(target, compact=compact)
    session.append(user("after"))
    with memcore.open(target) as copy:
        assert copy.check() == []
        assert list(copy.session("chat")) == list(session)[:-1]
        assert copy.session("chat").append(user("its own")).seq == 12
    with pytest.raises(memcore.StoreAccessError):
        db.backup(target)


def _append_many(path: str, count: int) -> None:
    with memcore.open(path) as db:
        session = db.session("busy")
        for n in range(count):
            session.extend(turns(1, start=n))


def test_a_backup_while_another_process_writes_holds_whole_changes(db, path, tmp_path):
    db.session("busy").extend(turns(1))
    writer = multiprocessing.get_context("spawn").Process(target=_append_many, args=(str(path), 60))
    writer.start()
    copies = []
    while writer.is_alive():
        copies.append(tmp_path / f"copy-{len(copies)}.memcore")
        db.backup(copies[-1])
    writer.join()
    assert writer.exitcode == 0
    for target in copies:
        with memcore.open(target) as copy:
            assert copy.check() == []
            assert len(copy.session("busy")) % 2 == 0
    assert len(db.session("busy")) == 122
