"""Grants: what one user sees of another's memory, and how it ends."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
import memcore.aio
from memcore.codec import keys
from memcore.codec.keys import Kind, MemoryRow
from memcore.codec.values import encode_json, seal_value
from memcore.database.scope import engine_of
from memcore.memory import grants as module
from memcore.memory.rows import RECORDED_END_MS, entry_at
from memcore.rows import names


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


def rows(db: memcore.Database) -> list[bytes]:
    """The keys of all rows of grants in the file."""
    store = engine_of(db.scope(user="x")).store
    start, stop = bytes((Kind.MEMORY,)), bytes((Kind.MEMORY + 1,))
    found = store.read(lambda txn: [key for key, _ in txn.scan(start, stop)])
    return [key for key in found if key[9] in (MemoryRow.GRANT, MemoryRow.RECEIVED)]


def pair(db: memcore.Database) -> tuple[memcore.Memories, memcore.Memories]:
    ann, bob = db.scope(user="ann").memory, db.scope(user="bob", app="other").memory
    ann.remember("Ann drinks tea", by="operator", kind="preference", labels={"team": "a"})
    ann.remember("Ann met Carl", by="operator", kind="event")
    ann.remember("A tool says Ann is rich", by="import")
    bob.remember("Bob drinks milk", by="operator")
    return ann, bob


def seen(memory: memcore.Memories) -> list[str]:
    return [each.text for each in memory.list(shared=True) if each.shared_from]


def test_a_grant_shows_what_is_active_and_nothing_else(db):
    ann, bob = pair(db)
    assert seen(bob) == []
    grant = ann.grants.give(to=("other", "bob"), redact=None)
    assert (grant.app, grant.user, grant.to_app, grant.to_user) == (
        "default", "ann", "other", "bob",
    )  # fmt: skip
    shared = [each for each in bob.list(shared=True) if each.shared_from]
    assert [each.text for each in shared] == ["Ann drinks tea", "Ann met Carl"]
    for each in shared:
        assert (each.by, each.status, each.shared_from) == ("agent", "active", ("default", "ann"))
        assert (each.sources, each.derived_from, each.uses) == ((), (), 0)
    assert [each.text for each in bob.list()] == ["Bob drinks milk"]
    found = {hit.memory.text for hit in bob.search("drinks", shared=True)}
    assert found == {"Bob drinks milk", "Ann drinks tea"}
    assert len(bob.search("drinks", shared=True, k=1)) == 1
    assert bob.search("rich", shared=True) == []
    assert bob.grants.get(("default", "ann"), 1) == shared[0]
    assert bob.grants.get(("default", "ann"), 3) is None
    assert bob.grants.get(("default", "bob"), 1) is None
    assert [hit.memory.text for hit in bob.search("drinks")] == ["Bob drinks milk"]
    assert ann.grants.list() == [grant] == bob.grants.received()
    assert (ann.grants.received(), bob.grants.list()) == ([], [])
    assert list(db.check()) == []


def test_kinds_labels_and_time_limit_a_grant(db, monkeypatch):
    ann, bob = pair(db)
    clock = engine_of(db.scope(user="x"))
    now = clock.now_ms() / 1000
    one = ann.grants.give(to=db.scope(user="bob", app="other"), kinds=["event"])
    assert seen(bob) == ["Ann met Carl"]
    ann.grants.revoke(one)
    ann.grants.give(to=("other", "bob"), labels={"team": "a"}, until=now + 1000)
    assert seen(bob) == ["Ann drinks tea"]
    later = clock.now_ms() + 2_000_000
    monkeypatch.setattr(type(clock), "now_ms", lambda self: later)
    ann, bob = db.scope(user="ann").memory, db.scope(user="bob", app="other").memory
    assert seen(bob) == []
    assert ann.grants.list() == []


@pytest.mark.as_stored
def test_nothing_that_is_redacted_is_shown_or_found(db):
    ann, bob = db.scope(user="ann").memory, db.scope(user="bob").memory
    bob.remember("x", by="operator")
    ann.remember(
        "Reach Ann at ann@example.com", by="operator", subject="ann@example.com",
        attributes={"mail": "ann@example.com"}, labels={"mail": "ann@example.com"},
    )  # fmt: skip
    ann.grants.give(to=("default", "bob"))
    (shown,) = [each for each in bob.list(shared=True) if each.shared_from]
    assert "ann@example.com" not in json.dumps([shown.text, shown.subject, dict(shown.attributes)])
    assert "ann@example.com" not in repr(shown)
    assert bob.search("example com", shared=True) == []
    assert len(bob.search("reach", shared=True)) == 1
    assert bob.list(subject="ann@example.com", shared=True) == []
    (raw,) = ann.list()
    assert raw.text == "Reach Ann at ann@example.com"


def test_a_view_is_never_handed_on(db):
    ann, bob = pair(db)
    carl = db.scope(user="carl").memory
    ann.grants.give(to=("other", "bob"))
    bob.grants.give(to=("default", "carl"))
    assert seen(carl) == ["Bob drinks milk"]
    (shown, *_) = [each for each in bob.list(shared=True) if each.shared_from]
    assert bob.get(shown.id) != shown  # ids are those of the giver
    with pytest.raises(memcore.NotFoundError):
        bob.promote(99, by="bob")


@pytest.mark.parametrize("how", ["revoke", "revoke by id", "decline", "opt out", "opt out there"])
def test_a_grant_ends_at_once(db, how):
    ann, bob = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    assert len(rows(db)) == 2
    if how == "revoke":
        assert ann.grants.revoke(grant)
        assert not ann.grants.revoke(grant)
    elif how == "revoke by id":
        assert ann.grants.revoke(grant.id)
    elif how == "decline":
        (received,) = bob.grants.received()
        assert bob.grants.revoke(received)
    else:
        scope = db.scope(user="ann") if how == "opt out" else db.scope(user="bob", app="other")
        scope.opt_out_memory()
        scope.opt_in_memory()
    assert seen(bob) == []
    assert rows(db) == []
    assert (ann.grants.list(), bob.grants.received()) == ([], [])
    again = ann.grants.give(to=("other", "bob"))
    assert again.id > grant.id
    assert not ann.grants.revoke(grant.id)
    assert list(db.check()) == []


@pytest.mark.parametrize("gone", ["ann", "bob"])
def test_erasing_either_user_leaves_no_row_of_a_grant(db, gone):
    ann, _ = pair(db)
    ann.grants.give(to=("other", "bob"))
    counts = db.would_erase("ann")
    assert counts["grants"] == 1
    db.erase(gone, compact=False)
    assert rows(db) == []
    assert list(db.check()) == []
    again = db.scope(user="bob", app="other").memory
    assert seen(again) == []


def test_a_grant_that_ends_while_it_is_read_shows_nothing(db, monkeypatch):
    ann, bob = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    views = module.Grants._views

    def revoked_meanwhile(self: Any) -> Any:
        found = views(self)
        assert ann.grants.revoke(grant)
        return found

    monkeypatch.setattr(module.Grants, "_views", revoked_meanwhile)
    assert seen(bob) == []
    monkeypatch.undo()
    again = ann.grants.give(to=("other", "bob"), kinds=["event"])
    assert again.id != grant.id
    assert seen(bob) == ["Ann met Carl"]


def test_the_authorizer_is_asked_on_both_sides(open_db):
    asked: list[tuple[Any, ...]] = []
    refused: set[str] = set()

    def authorizer(request: memcore.AccessRequest) -> bool:
        asked.append((request.action, request.app, request.user, request.name))
        return request.action not in refused

    db = open_db(authorizer=authorizer, durability="none")
    ann, bob = pair(db)
    asked.clear()
    grant = ann.grants.give(to=("other", "bob"))
    assert asked == [
        ("grant", "default", "ann", "other/bob"),
        ("receive_grant", "other", "bob", "default/ann"),
    ]
    assert len(seen(bob)) == 2
    assert asked[-1] == ("read_grant", "default", "ann", str(grant.id))
    refused.add("read_grant")
    assert seen(bob) == []
    assert bob.grants.received() == []
    for action in ("grant", "receive_grant"):
        refused.clear()
        refused.add(action)
        with pytest.raises(memcore.AccessDeniedError):
            ann.grants.give(to=("other", "bob"))
    refused.add("revoke_grant")
    with pytest.raises(memcore.AccessDeniedError):
        ann.grants.revoke(grant)


def test_both_sides_are_audited(open_db):
    db = open_db(audit=memcore.Audit(key=bytes(32)), durability="none")
    ann, _ = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    ann.grants.revoke(grant)
    for app, user, told in (
        ("default", "ann", ["give grant", "end grant"]),
        ("other", "bob", ["receive grant", "end grant"]),
    ):
        entries = [each.row for each in db.audit_entries(app=app, user=user)]
        events = [row for row in entries if "grant" in row and "number" not in row]
        assert [next(e for e in told if e in row) for row in events] == told
    assert db.verify_audit().ok


@pytest.mark.parametrize(
    "options",
    [
        {"to": "bob"}, {"to": ("default",)}, {"to": ("default", "")}, {"to": ("default", "ann")},
        {"to": ("a", 7)}, {"to": None}, {"to": ("default", "bob"), "kinds": ["x"]},
        {"to": ("default", "bob"), "kinds": 5}, {"to": ("default", "bob"), "kinds": "fact"},
        {"to": ("default", "bob"), "labels": {"a": 1}},
        {"to": ("default", "bob"), "redact": "nonsense"},
        {"to": ("default", "bob"), "redact": {"preset": "default"}},
        {"to": ("default", "bob"), "redact": True}, {"to": ("default", "bob"), "redact": False},
        {"to": ("default", "bob"), "redact": memcore.RedactionPolicy()},
        {"to": ("default", "bob"), "until": 5.0}, {"to": ("default", "bob"), "until": float("nan")},
        {"to": ("default", "bob"), "until": True}, {"to": ("default", "bob"), "until": 1e300},
    ],
)  # fmt: skip
def test_wrong_grants_are_refused(db, options):
    ann, _ = pair(db)
    with pytest.raises(memcore.InvalidOptionError):
        ann.grants.give(**options)
    assert rows(db) == []


@pytest.mark.parametrize(
    ("place", "number"),
    [(None, 1), (5, 1), ("ann", 1), (("default",), 1), (("default", 7), 1),
     (("default", "ann"), "1"), (("default", "ann"), 0), (("default", "ann"), None)],
)  # fmt: skip
@pytest.mark.parametrize("given", [False, True])
def test_wrong_names_of_a_shared_memory_are_refused(db, place, number, given):
    ann, bob = pair(db)
    if given:
        ann.grants.give(to=("other", "bob"))
    with pytest.raises(memcore.InvalidOptionError):
        bob.grants.get(place, number)


def test_grants_are_bounded(db, monkeypatch):
    monkeypatch.setattr(module, "GRANTS_MAX", 3)
    ann, bob = pair(db)
    given = [ann.grants.give(to=("default", f"user {n}")) for n in range(3)]
    with pytest.raises(memcore.InvalidOptionError, match="revoke one"):
        ann.grants.give(to=("other", "bob"))
    db.erase("user 1", compact=False)
    ann.grants.give(to=("other", "bob"))
    assert [grant.id for grant in ann.grants.list()][:2] == [given[0].id, given[2].id]
    with pytest.raises(memcore.InvalidOptionError):
        bob.grants.revoke(given[0])
    with pytest.raises(memcore.InvalidOptionError):
        bob.grants.revoke("x")  # type: ignore[arg-type]
    with pytest.raises(memcore.InvalidOptionError, match="as_of"):
        bob.list(shared=True, as_of=1.0)


def test_who_opted_out_gets_no_grant(db):
    ann, _ = pair(db)
    db.scope(user="bob", app="other").opt_out_memory()
    with pytest.raises(memcore.OptedOutError):
        ann.grants.give(to=("other", "bob"))


def test_half_a_grant_shows_nothing_and_is_reported(db):
    ann, bob = pair(db)
    ann.grants.give(to=("other", "bob"))
    store = engine_of(db.scope(user="x")).store
    one, two = rows(db)
    kept = store.read(lambda txn: txn.get(one))
    store.transact(lambda txn: txn.delete(one))
    assert seen(bob) == []
    assert "was not given" in "".join(map(str, db.check()))
    assert kept
    store.transact(lambda txn: txn.put(one, kept))
    assert len(seen(bob)) == 2
    store.transact(lambda txn: txn.delete(two))
    assert seen(bob) == []
    assert "is not marked there" in "".join(map(str, db.check()))
    store.transact(lambda txn: txn.delete(one))
    assert list(db.check()) == []


def test_a_planted_mark_opens_no_memory(db):
    _, bob = pair(db)
    engine = engine_of(db.scope(user="x"))

    def plant(txn: Any) -> bytes:
        giver = names.scope_of(txn, "default", "ann")
        receiver = names.scope_of(txn, "other", "bob")
        assert giver
        assert receiver
        key = keys.memory_rows(receiver, MemoryRow.RECEIVED, keys.u64(giver), keys.u64(1))
        txn.put(key, seal_value(key, b""))
        return key

    planted = engine.store.transact(plant)
    assert seen(bob) == []
    engine.store.transact(lambda txn: txn.delete(planted))


def test_rows_of_scopes_that_nobody_has_break_no_read(db):
    ann, bob = pair(db)
    ann.grants.give(to=("other", "bob"))
    store = engine_of(db.scope(user="x")).store

    def plant(txn: Any) -> list[bytes]:
        receiver = names.scope_of(txn, "other", "bob")
        assert receiver
        planted = [
            keys.memory_rows(99, MemoryRow.GRANT, keys.u64(receiver), keys.u64(1)),
            keys.memory_rows(receiver, MemoryRow.RECEIVED, keys.u64(99), keys.u64(1)),
        ]
        txn.put(planted[0], seal_value(planted[0], b'{"at":1}'))
        txn.put(planted[1], seal_value(planted[1], b""))
        return planted

    planted = store.transact(plant)
    assert len(seen(bob)) == 2
    assert len(bob.grants.received()) == 1
    for key in planted:
        store.transact(lambda txn, key=key: txn.delete(key))


@pytest.mark.as_stored
def test_a_damaged_row_shows_nothing_and_hides_nothing_else(db):
    ann, bob = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    carl = db.scope(user="carl").memory
    carl.remember("Of Carl", by="operator")
    carl.grants.give(to=("other", "bob"))
    store = engine_of(db.scope(user="x")).store
    for key in rows(db)[:1]:
        kept = store.read(lambda txn, key=key: txn.get(key))
        store.transact(lambda txn, key=key, kept=kept: txn.put(key, kept[:-1] + b"\x00"))
    assert seen(bob) == ["Of Carl"]
    assert ann.grants.list() == []
    assert ann.grants.revoke(grant.id)
    assert list(db.check()) == []


def put_terms(db: memcore.Database, terms: object) -> None:
    """Write other terms into the only grant, with the right checksum."""
    (key,) = (each for each in rows(db) if each[9] == MemoryRow.GRANT)
    made = seal_value(key, *encode_json(terms))
    engine_of(db.scope(user="x")).store.transact(lambda txn: txn.put(key, made))


def test_a_view_by_an_unknown_policy_hides_no_other(db):
    ann, bob = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    put_terms(db, {"at": 1, "redact": "of a later version"})
    carl = db.scope(user="carl").memory
    carl.remember("Of Carl", by="operator")
    carl.grants.give(to=("other", "bob"))
    assert seen(bob) == ["Of Carl"]
    assert ann.grants.revoke(grant.id)


@pytest.mark.as_stored
def test_a_view_that_cannot_be_redacted_is_left_out(tmp_path, caplog):
    with memcore.open(tmp_path / "a", durability="none", allow_unsafe=True) as db:
        ann, bob = pair(db)
        ann.grants.give(to=("other", "bob"))
        carl = db.scope(user="carl").memory
        carl.remember("Of Carl", by="operator")
        carl.grants.give(to=("other", "bob"), redact=None)
        session = db.session("s", user="bob", app="other")
        session.append({"role": "user", "content": "drinks"})
    shutil.copy(tmp_path / "a", tmp_path / "copy")  # without the secret beside it
    with memcore.open(tmp_path / "copy", read_only=True) as db:
        bob = db.scope(user="bob", app="other").memory
        assert [each.text for each in bob.list(shared=True)] == ["Bob drinks milk", "Of Carl"]
        assert [hit.memory.text for hit in bob.search("drinks", shared=True)] == ["Bob drinks milk"]
        assert bob.grants.get(("default", "ann"), 1) is None
        recall = memcore.Recall(shared=True)
        context = db.session("s", user="bob", app="other").context(1000, memory=recall)
        assert len(context.memories) == 2
    assert "secret" in caplog.text


@pytest.mark.as_stored
def test_a_damaged_memory_of_a_giver_hides_no_other(db, caplog):
    ann, bob = pair(db)
    ann.grants.give(to=("other", "bob"), redact=None)
    store = engine_of(db.scope(user="x")).store

    giver = store.read(lambda txn: names.scope_of(txn, "default", "ann"))
    assert giver
    whole = store.read(lambda txn: txn.get(entry_at(giver, 1)))
    store.transact(lambda txn: txn.put(entry_at(giver, 1), whole[:-1] + b"?"))
    assert seen(bob) == ["Ann met Carl"]
    assert [hit.memory.text for hit in bob.search("met", shared=True)] == ["Ann met Carl"]
    assert "left out" in caplog.text
    store.transact(lambda txn: txn.put(entry_at(giver, 1), whole))


@pytest.mark.parametrize(
    "terms",
    [
        {}, [], {"at": "x"}, {"at": RECORDED_END_MS}, {"at": 1, "until": True},
        {"at": 1, "kinds": 5}, {"at": 1, "kinds": "fact"}, {"at": 1, "kinds": [["fact"]]},
        {"at": 1, "labels": []},
        {"at": 1, "labels": {"a": 5}}, {"at": 1, "redact": 5}, {"at": 1, "redact": "nonsense"},
    ],
)  # fmt: skip
def test_malformed_terms_show_nothing_and_are_reported(db, terms):
    ann, bob = pair(db)
    grant = ann.grants.give(to=("other", "bob"))
    put_terms(db, terms)
    assert seen(bob) == []
    assert (ann.grants.list(), bob.grants.received()) == ([], [])
    (finding,) = db.check()
    assert f"grant {grant.id} to scope" in str(finding)
    assert "malformed" in str(finding)
    assert ann.grants.revoke(grant.id)
    assert db.check() == []


@pytest.mark.parametrize("number", [0, 2**48, 2**64 - 1])
def test_a_number_that_no_grant_has_is_reported(db, number):
    ann, bob = pair(db)
    plant_grant(db, ("default", "ann"), ("other", "bob"), number)
    assert seen(bob) == []
    assert len(db.check()) == 2
    ann.grants.give(to=("other", "bob"))
    db.erase("ann", compact=False)
    assert db.check() == []


def test_a_grant_to_oneself_shows_nothing_twice_and_is_reported(db):
    _, bob = pair(db)
    plant_grant(db, ("other", "bob"), ("other", "bob"), 7)
    assert [each.text for each in bob.list(shared=True)] == ["Bob drinks milk"]
    assert any("giver" in str(each) for each in db.check())
    db.scope(user="bob", app="other").opt_out_memory()
    assert db.check() == []


def test_a_grant_of_nobody_is_reported(db):
    _, bob = pair(db)
    store = engine_of(db.scope(user="x")).store
    scope = store.read(lambda txn: names.scope_of(txn, "other", "bob"))
    assert scope
    keys_of = [
        keys.memory_rows(scope, MemoryRow.GRANT, keys.u64(99), keys.u64(7)),
        keys.memory_rows(scope, MemoryRow.RECEIVED, keys.u64(99), keys.u64(8)),
    ]
    for key in keys_of:
        body = seal_value(key, *encode_json({"at": 1}))
        store.transact(lambda txn, key=key, body=body: txn.put(key, body))
    told = "".join(map(str, db.check()))
    assert told.count("scope 99, which nobody has") == 2
    assert seen(bob) == []
    for key in keys_of:
        store.transact(lambda txn, key=key: txn.delete(key))


@pytest.mark.parametrize("row", [MemoryRow.GRANT, MemoryRow.RECEIVED])
@pytest.mark.parametrize("rest", [b"", b"abc", bytes(8), bytes(24)])
def test_a_key_of_another_length_is_reported(db, row, rest):
    ann, bob = pair(db)
    ann.grants.give(to=("other", "bob"))
    store = engine_of(db.scope(user="x")).store
    scope = store.read(lambda txn: names.scope_of(txn, "other", "bob"))
    assert scope
    key = keys.memory_rows(scope, row, rest)
    store.transact(lambda txn: txn.put(key, seal_value(key, b"{}")))
    assert len(seen(bob)) == 2
    (finding,) = db.check()
    assert key.hex() in str(finding)
    db.scope(user="bob", app="other").opt_out_memory()
    assert db.check() == []


def plant_grant(
    db: memcore.Database, giver: tuple[str, str], receiver: tuple[str, str], number: int
) -> None:
    """Write both rows of a grant, with the right checksums."""

    def plant(txn: Any) -> None:
        one, two = names.scope_of(txn, *giver), names.scope_of(txn, *receiver)
        assert one
        assert two
        key = keys.memory_rows(one, MemoryRow.GRANT, keys.u64(two), keys.u64(number))
        txn.put(key, seal_value(key, *encode_json({"at": 1})))
        mark = keys.memory_rows(two, MemoryRow.RECEIVED, keys.u64(one), keys.u64(number))
        txn.put(mark, seal_value(mark, b""))

    engine_of(db.scope(user="x")).store.transact(plant)


def test_pages_are_of_the_users_own_memories(db):
    ann, bob = pair(db)
    ann.grants.give(to=("other", "bob"), redact=None)
    assert len(bob.list(shared=True, limit=2)) == 2
    with pytest.raises(memcore.InvalidOptionError, match="after"):
        bob.list(shared=True, after=1)
    assert bob.list(after=1) == []


def test_grants_are_not_exported(db):
    ann, _ = pair(db)
    ann.grants.give(to=("other", "bob"))
    assert b"grant" not in b"".join(db.export())


def test_a_loop_gives_and_revokes(tmp_path):
    async def main() -> None:
        async with memcore.aio.open(tmp_path / "a", durability="none", allow_unsafe=True) as db:
            ann = db.scope(user="ann").memory
            bob = db.scope(user="bob").memory
            await ann.remember("Tea", by="operator")
            grant = await ann.grants.give(to=("default", "bob"))
            assert [m.text for m in await bob.list(shared=True)] == ["Tea"]
            assert await ann.grants.list() == await bob.grants.received() == [grant]
            assert await ann.grants.revoke(grant)
            again = await ann.grants.give(to=db.scope(user="bob"))
            assert (again.to_app, again.to_user) == ("default", "bob")
            assert await ann.grants.revoke(again)
            assert await bob.list(shared=True) == []

    asyncio.run(main())


USERS = ("u0", "u1", "u2")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["give", "revoke", "erase", "out"]),
                          st.integers(0, 2), st.integers(0, 2)), max_size=12))  # fmt: skip
def test_any_history_leaves_both_sides_agreed(steps):
    with memcore.open(":memory:") as db:
        for user in USERS:
            db.scope(user=user).memory.remember(f"Of {user}", by="operator")
        for what, one, two in steps:
            giver = db.scope(user=USERS[one])
            if what == "give" and one != two:
                giver.memory.grants.give(to=("default", USERS[two]))
            elif what == "revoke":
                for grant in giver.memory.grants.list()[:1]:
                    giver.memory.grants.revoke(grant)
            elif what == "erase":
                db.erase(USERS[one], compact=False)
                db.scope(user=USERS[one]).memory.remember(f"Of {USERS[one]}", by="operator")
            elif what == "out":
                giver.opt_out_memory()
                giver.opt_in_memory()
        assert list(db.check()) == []
        for user in USERS:
            memory = db.scope(user=user).memory
            given_to = {g.to_user for g in memory.grants.list()}
            for other in USERS:
                received = {g.user for g in db.scope(user=other).memory.grants.received()}
                assert (other in given_to) == (user in received)
            shown = {m.text for m in memory.list(shared=True)}
            assert shown == {f"Of {user}"} | {f"Of {g.user}" for g in memory.grants.received()}


@pytest.mark.as_stored
def test_salvage_brings_no_grant_back(path, tmp_path):
    with memcore.open(path) as db:
        ann, bob = pair(db)
        ann.grants.give(to=("other", "bob"))
        assert len(seen(bob)) == 2
    memcore.salvage(path, tmp_path / "saved")
    with memcore.open(tmp_path / "saved") as db:
        bob = db.scope(user="bob", app="other").memory
        assert [each.text for each in bob.list()] == ["Bob drinks milk"]
        assert seen(bob) == []
        assert rows(db) == []
        assert list(db.check()) == []


@pytest.mark.as_stored
def test_the_terms_of_a_grant_are_sealed(path):
    with memcore.open(path, key=bytes(32)) as db:
        ann, bob = pair(db)
        ann.grants.give(to=("other", "bob"), labels={"team": "zebra-crossing"})
        ann.remember("Zebra", by="operator", labels={"team": "zebra-crossing"})
        assert seen(bob) == ["Zebra"]
    assert b"zebra-crossing" not in path.read_bytes()
