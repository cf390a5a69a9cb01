"""Checkpoints: saved positions, live or not; what goes back to them, and what keeps them whole."""

from __future__ import annotations

import asyncio
import io
import json
from threading import Thread
from typing import Any

import pytest

import memcore
import memcore.aio
import raw
from memcore.codec import keys
from memcore.codec.values import seal_value
from memcore.session.checkpoints import Rewind
from memcore.session.session import ref_of, store_of
from messages import assistant, call, messages_of, result, texts, turns, user


def seqs(session: memcore.Session) -> list[int]:
    return [item.seq for item in session]


@pytest.fixture
def branched(session: memcore.Session) -> memcore.Session:
    """1 2 3, then 4 5 in the place of 3; checkpoints ``three`` (not live) and ``five``."""
    session.extend([user("1"), assistant("2"), user("3")])
    session.checkpoint("three", meta={"why": "x"})
    session.undo()
    session.extend([user("4"), assistant("5")])
    session.checkpoint("five")
    return session


# --- saving and finding ---------------------------------------------------------------------------


def test_a_checkpoint_says_where_the_session_was(branched):
    three, five = branched.checkpoints()
    assert (three.number, three.name, three.seq, three.revision, three.items) == (
        1,
        "three",
        3,
        1,
        3,
    )
    assert (three.meta, three.state, three.view, three.counter) == (
        {"why": "x"},
        0,
        0,
        "bytes/4",
    )
    assert (five.number, five.seq, five.revision, five.items) == (2, 5, 3, 4)
    assert five.tokens == branched.tokens
    assert five.created_at >= three.created_at
    assert branched.revision == 3
    assert branched.get_checkpoint(1) == branched.get_checkpoint("three") == three


def test_it_creates_the_session_it_is_asked_of(session):
    start = session.checkpoint()
    assert (start.name, start.seq, start.items, session.exists()) == (None, 0, 0, True)
    session.extend(turns(2))
    session.rewind(start)
    assert (seqs(session), session.append(user()).seq) == ([], 5)


def test_the_newest_of_a_name_is_meant(branched):
    again = branched.checkpoint("three")
    assert branched.get_checkpoint("three") == again
    assert [found.name for found in branched.checkpoints()] == ["three", "five", "three"]
    assert branched.delete_checkpoint("three")
    assert branched.get_checkpoint("three").number == 1


def test_numbers_are_never_given_out_again(branched):
    assert branched.delete_checkpoint(branched.get_checkpoint("five"))
    assert branched.delete_checkpoint("three")
    assert not branched.delete_checkpoint("three")
    assert list(branched.checkpoints()) == []
    assert branched.checkpoint().number == 3
    assert branched.checkpoint().number == 4


def test_many_are_read_a_page_at_a_time(session):
    session.append(user())
    with session.batch() as batch:
        for _ in range(250):
            batch.checkpoint()
    found = session.checkpoints()
    first = next(found)
    session.delete_checkpoint(150)
    assert [first.number, *(each.number for each in found)] == [
        number for number in range(1, 251) if number != 150
    ]


@pytest.mark.parametrize("name", ["", 7, b"x"])
def test_wrong_names(session, name):
    with pytest.raises(memcore.InvalidOptionError, match="checkpoint name"):
        session.checkpoint(name)
    assert not session.exists()


def test_wrong_meta(session):
    with pytest.raises(memcore.InvalidItemError, match="meta"):
        session.checkpoint(meta={"x": object()})
    with pytest.raises(memcore.InvalidItemError, match="at most"):
        session.checkpoint(meta={"x": "y" * 100_000})
    with pytest.raises(memcore.InvalidOptionError, match="mapping"):
        session.checkpoint(meta=[1])


@pytest.mark.parametrize("which", [None, True, 1.5, -1])
def test_wrong_positions(branched, which):
    for ask in (branched.rewind, branched.get_checkpoint, branched.delete_checkpoint):
        with pytest.raises(memcore.InvalidOptionError):
            ask(which)
    if which is not None:
        with pytest.raises(memcore.InvalidOptionError):
            branched.fork("x", at=which)


def test_what_is_not_there(branched, db):
    for ask in (branched.rewind, branched.get_checkpoint, lambda at: branched.fork("x", at=at)):
        with pytest.raises(memcore.NotFoundError, match="no checkpoint 'seven'"):
            ask("seven")
    with pytest.raises(memcore.NotFoundError, match="no checkpoint 7"):
        branched.get_checkpoint(7)
    with pytest.raises(memcore.NotFoundError):
        branched.get_checkpoint(2**64)
    with pytest.raises(memcore.NotFoundError):
        db.session("none").get_checkpoint(1)
    assert list(db.session("none").checkpoints()) == []
    other = db.session("other")
    other.append(user())
    theirs = other.checkpoint("three")
    with pytest.raises(memcore.NotFoundError, match="like this one"):
        branched.rewind(theirs)
    assert not branched.delete_checkpoint(theirs)
    assert len(list(branched.checkpoints())) == 2


def test_revisions_are_compared(branched):
    for change in (
        lambda: branched.checkpoint(expected_revision=2),
        lambda: branched.rewind("three", expected_revision=2),
        lambda: branched.fork("f", at="three", expected_revision=2),
    ):
        with pytest.raises(memcore.RevisionConflict):
            change()
    assert branched.checkpoint(expected_revision=3).revision == 3
    assert branched.rewind("three", expected_revision=3).revision == 4
    assert seqs(branched.fork("f", at="five", expected_revision=4)) == [1, 2, 4, 5]


# --- going back -----------------------------------------------------------------------------------


def test_a_rewind_replaces_the_history(branched, open_db):
    other = open_db().session("chat")
    assert seqs(other) == [1, 2, 4, 5]
    five = other.get_checkpoint("five")
    receipt = branched.rewind("three")
    assert (receipt.seq, receipt.revision, receipt.appended) == (3, 4, 0)
    assert receipt.tokens == branched.tokens == sum(item.tokens for item in branched)
    for handle in (branched, other):
        assert (seqs(handle), texts(handle)) == ([1, 2, 3], ["1", "2", "3"])
    assert other.append(assistant("6")).seq == 6
    assert seqs(branched) == [1, 2, 3, 6]
    branched.rewind(five)
    assert seqs(other) == [1, 2, 4, 5]
    assert branched.rewind(five).revision == other.revision == 6  # it is there: nothing changed


def test_a_live_checkpoint_is_a_cut(branched):
    branched.extend(turns(3))
    assert branched.rewind("five").revision == 5
    assert seqs(branched) == [1, 2, 4, 5]


def test_open_calls_come_back(session):
    session.extend([user(), call("a", "b"), result("a")])
    waiting = session.checkpoint()
    session.append(result("b"))
    answered = session.checkpoint()
    session.rewind(1)
    assert session.open_calls == []
    session.rewind(waiting)
    assert [found.call_id for found in session.open_calls] == ["b"]
    session.append(result("b", "later"))
    session.rewind(answered)
    assert session.find_call("b").result_seqs == (4,)


def test_requests_count_while_their_items_are_live(session):
    session.append(user("1"))
    first = session.append(user("2"), idempotency_key="k")
    there = session.checkpoint()
    session.undo()
    session.rewind(there)
    assert session.append(user("2"), idempotency_key="k") == first


def test_many_segments_come_back(session):
    session.append(user("start"))
    for number in range(60):
        session.extend([user(f"a{number}"), user("wrong")])
        session.undo()
    before = texts(session)
    many = session.checkpoint()
    session.rewind(1)
    session.extend(turns(30))
    assert session.rewind(many).tokens == session.tokens
    assert texts(session) == before
    fork = session.fork("fork", at=many)
    fork.append(user("more"))
    assert texts(fork) == [*before, "more"]


def test_a_long_history_is_answered_from_its_end(session, monkeypatch):
    monkeypatch.setattr("memcore.log.history.RECENT_RECORDS", 4)
    session.extend(turns(20))
    long = session.checkpoint()
    session.rewind(10)
    session.extend([user("x"), call("a")])
    session.rewind(long)
    session.append(call("late"))
    session.append(result("late"))
    assert session.tokens == sum(item.tokens for item in session)
    assert len(session) == 42


# --- views ----------------------------------------------------------------------------------------


def test_the_view_of_the_checkpoint_is_in_force_again(session):
    session.extend(turns(4))
    session.compact(lambda _: "first", keep_last=2)
    folded = session.checkpoint()
    assert folded.view == 1
    session.compact(lambda _: "second", keep_last=1)
    assert session.context().summary == "second"
    session.extend(turns(1))
    session.rewind(folded)
    assert session.context().summary == "first"
    assert [view.number for view in session.views()] == [1]
    session.extend(turns(2))
    session.compact(lambda _: "third", keep_last=1)
    assert [(v.number, v.parent) for v in session.views()] == [(1, 0), (3, 1)]
    assert session.context().summary == "third"


def test_the_same_items_under_another_view(session):
    session.extend(turns(4))
    plain = session.checkpoint()
    session.compact(lambda _: "short", keep_last=2)
    folded = session.checkpoint()
    assert session.rewind(plain).revision == 2
    assert session.context().summary is None
    session.rewind(folded)
    assert session.context().summary == "short"
    session.uncompact()
    session.rewind(folded)
    assert session.context().summary == "short"


def test_a_newer_view_never_covers_other_items(session):
    session.extend(turns(4))
    plain = session.checkpoint()
    session.rewind(4)
    session.extend(turns(4, start=10))
    session.compact(lambda _: "of the other branch", keep_last=2)
    other = session.checkpoint()
    session.rewind(plain)
    assert session.context().summary is None
    assert session.context().messages == turns(4)
    session.rewind(other)
    assert session.context().summary == "of the other branch"
    assert session.fork("f", at=plain).context().messages == turns(4)
    assert session.fork("g", at=other).context().messages == session.context().messages


def test_masks_come_back_with_their_view(session):
    session.extend([user("1"), user("2"), user("3" * 99)])
    mask = memcore.Mask(3, "test", 9, user("hidden"))

    class Hide:
        name = "hide"

        def reduce(self, items: Any, by: Any) -> list[memcore.Mask]:
            return [mask]

        def settings(self) -> dict[str, object]:
            return {}

    policy = memcore.CompactionPolicy(
        stages=(memcore.Stage(keep=None, reducers=(Hide(),)),), min_gain=0.0
    )
    assert session.compact(policy=policy).status == "masked"
    masked = session.checkpoint()
    session.undo()
    session.append(user("another"))
    assert session.masks() == []
    session.rewind(masked)
    assert session.context().messages == [user("1"), user("2"), user("hidden")]


# --- forks ----------------------------------------------------------------------------------------


def test_a_fork_at_a_checkpoint_that_is_not_live(branched, db):
    fork = branched.fork("fork", at="three", policy="langchain")
    assert (seqs(fork), fork.policy, fork.revision) == ([1, 2, 3], "langchain", 1)
    assert fork.append(user("own")).seq == 4
    assert seqs(branched) == [1, 2, 4, 5]
    assert list(fork.checkpoints()) == []
    own = fork.checkpoint()
    fork.rewind(1)
    grandchild = fork.fork("grandchild", at=own)
    assert texts(grandchild) == ["1", "2", "3", "own"]
    for name in ("chat", "fork"):
        db.delete_session(name)
    assert db.check() == []
    assert texts(grandchild) == ["1", "2", "3", "own"]
    db.delete_session("grandchild")
    assert not any(key[0] == keys.Kind.SESSION for key in raw.rows(db.engine.store))


def test_a_checkpoint_keeps_the_items_of_a_deleted_parent(branched, db):
    fork = branched.fork("fork")
    there = fork.checkpoint("there")
    fork.rewind(0)
    fork.append(user("nothing is shared"))
    db.delete_session("chat")
    assert db.check() == []
    assert fork.rewind(there).seq == 5
    assert texts(fork) == ["1", "2", "4", "5"]


# --- another counter ------------------------------------------------------------------------------


def test_what_came_back_is_counted_by_the_counter_of_now(branched, db):
    branched.recount("bytes/3")
    assert branched.rewind("three").tokens == sum(item.tokens for item in branched)
    by = memcore.get_counter("bytes/3")
    fresh = db.session("fresh", counter=by)
    fresh.extend(messages_of(branched))
    assert branched.tokens == fresh.tokens
    assert [item.tokens for item in branched] == [item.tokens for item in fresh]
    branched.append(user("more"))
    branched.rewind("five")
    assert branched.tokens == sum(item.tokens for item in branched)
    fork = branched.fork("fork", at="three")
    assert fork.tokens == fresh.tokens
    fork.append(user("own"))
    assert fork.tokens == sum(item.tokens for item in fork)
    assert db.check() == []
    branched.recount("bytes/4")
    assert branched.rewind("three").tokens == branched.get_checkpoint("three").tokens
    assert fork.counter == "bytes/3"


def test_counts_are_those_of_the_items_and_not_of_their_places(session):
    session.extend([user("1"), user("long " * 40)])
    long = session.checkpoint()
    session.undo()
    session.append(user("2"))
    session.recount("bytes/3")
    fork = session.fork("fork", at=long)
    assert fork.tokens == sum(item.tokens for item in fork) > session.tokens
    short = session.checkpoint()
    closure = Rewind(ref_of(session), long)

    def change(txn: Any) -> None:
        closure(txn)
        reader = Thread(target=lambda: seen.append(session.tokens))  # who reads it meanwhile
        reader.start()
        reader.join()

    seen: list[int] = []
    store_of(session).transact(change)
    assert seen == [short.tokens]
    assert session.tokens == fork.tokens
    assert [item.tokens for item in session] == [item.tokens for item in fork]


def test_a_batch_may_be_run_again(branched):
    batch = branched.plan_batch(None)
    batch.checkpoint("once")
    batch.append(user("6"))
    closure = batch.change()

    def fail(txn: Any) -> None:
        closure(txn)
        raise KeyError

    with pytest.raises(KeyError):
        store_of(branched).transact(fail)
    store_of(branched).transact(closure)
    assert [found.name for found in batch.checkpoints] == ["once"]
    assert len(list(branched.checkpoints())) == 3


def test_forward_again_after_a_recount(session):
    session.extend(turns(5))
    end = session.checkpoint()
    session.rewind(4)
    session.recount("bytes/3")
    assert session.rewind(end).tokens == sum(item.tokens for item in session)
    session.extend(turns(1))
    assert session.tokens == sum(item.tokens for item in session)


# --- in a batch, and with await -------------------------------------------------------------------


def test_a_batch_goes_back_appends_and_saves(branched):
    with branched.batch(expected_revision=3) as batch:
        batch.rewind("three")
        batch.append(assistant("answer"))
        batch.checkpoint("answered")
        batch.append(user("next"))
        batch.undo()
        batch.rewind(6)
    assert batch.receipt is not None
    assert (batch.receipt.seq, batch.receipt.revision) == (6, 4)
    assert [item.seq for item in batch.undone] == [7]
    (saved,) = batch.checkpoints
    assert (saved.seq, saved.revision, saved.items) == (6, 4, 4)
    assert branched.get_checkpoint("answered") == saved
    assert seqs(branched) == [1, 2, 3, 6]


def test_a_batch_that_fails_leaves_nothing(branched):
    def change() -> None:
        with branched.batch() as batch:
            batch.checkpoint("lost")
            batch.rewind("three")
            batch.append(result("never made"))

    with pytest.raises(memcore.OrphanResultError):
        change()
    assert (seqs(branched), len(list(branched.checkpoints()))) == ([1, 2, 4, 5], 2)
    with branched.batch() as batch:
        batch.checkpoint("kept")
    assert (branched.revision, batch.checkpoints[0].revision) == (3, 3)
    assert branched.append(user()).revision == 4


def test_with_await(path):
    async def run() -> None:
        async with memcore.aio.open(path, counter="bytes/4") as db:
            session = db.session("chat")
            await session.extend([user("1"), user("2")])
            there = await session.checkpoint("there", meta={"a": 1}, expected_revision=1)
            assert await session.undo() != []
            fork = await session.fork("fork", at=there)
            assert [item.seq async for item in fork.items()] == [1, 2]
            assert (await session.rewind(there, expected_revision=2)).seq == 2
            async with session.batch() as batch:
                batch.rewind(1)
                batch.checkpoint()
            assert [found.number async for found in session.checkpoints()] == [1, 2]
            assert await session.get_checkpoint("there") == there
            assert await session.delete_checkpoint(there)
            assert not await session.delete_checkpoint(there)

    asyncio.run(run())


# --- what looks at all rows -----------------------------------------------------------------------


def saved_keys(db: memcore.Database) -> list[bytes]:
    return [
        key
        for key in raw.rows(db.engine.store)
        if key[0] == keys.Kind.SESSION and keys.row_of(key) == keys.Row.CHECKPOINT
    ]


def put(db: memcore.Database, key: bytes, value: bytes) -> None:
    db.engine.store.transact(lambda txn: txn.put(key, value))


def test_a_damaged_checkpoint_is_found_and_can_be_deleted(branched, db):
    first, _ = saved_keys(db)
    put(db, first, b"damaged")
    (finding,) = db.check()
    assert first.hex() in finding
    with pytest.raises(memcore.CorruptValueError):
        list(branched.checkpoints())
    with pytest.raises(memcore.NotFoundError):
        branched.rewind("three")
    with pytest.raises(memcore.CorruptValueError):
        branched.get_checkpoint(1)
    assert seqs(branched.fork("fork", at="five")) == [1, 2, 4, 5]
    assert branched.delete_checkpoint(1)
    assert db.check() == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda body: body["segments"][0].__setitem__(0, 99), "none that it was forked from"),
        (lambda body: body.update(segments=[[1, 1, 2], [1, 9, 9]], seq=9), "never had it"),
        (lambda body: body.update(segments=[[1, 1, 1], [1, 3, 4]], seq=4), "does not match"),
        (lambda body: body.update(chain=body["chain"] ^ 1), "not that of its last item"),
        (lambda body: body.update(view=[1, 7]), "view 7 of session 1 is missing"),
        (lambda body: body.update(older=[1, 7, 0]), "segment block 7 of session 1 is missing"),
        (lambda body: body.update(items=7), "malformed"),
        (lambda body: body.update(name=7), "malformed"),
    ],
)
def test_what_a_checkpoint_refers_to_is_checked(branched, db, change, finding):
    from memcore.codec.values import decode_json, encode_json, open_value

    key = saved_keys(db)[0]
    value = raw.rows(db.engine.store)[key]
    flags, body = open_value(key, value)
    found = decode_json(body, flags)
    change(found)
    put(db, key, seal_value(key, *encode_json(found)))
    told = db.check()
    assert len(told) == 1
    assert finding in told[0]
    from memcore.maintenance.check import plan_repairs

    assert [each.about for each in plan_repairs(told, "f").repairs] in (
        [["checkpoints"]],
        ["checkpoints"],
        ["what a session says of itself"],
    )
    put(db, key, value)


def round_trip(db: memcore.Database, open_db: Any, tmp_path: Any, **options: Any) -> Any:
    other = open_db(path=tmp_path / "other.memcore", counter="bytes/4")
    done = other.import_(io.BytesIO(b"".join(db.export(**options))))
    assert done.failures == []
    assert other.check() == []
    return other


def test_checkpoints_are_exported_with_the_items_that_they_refer_to(
    branched, db, open_db, tmp_path
):
    branched.rewind(2)
    branched.append(user("6"))
    branched.extend(turns(9))
    branched.compact(lambda _: "so far", keep_last=1)
    branched.checkpoint("six", meta={"b": 2})
    plain = round_trip(db, open_db, tmp_path).session("chat")
    assert [found.name for found in plain.checkpoints()] == ["three", "five", "six"]
    *_, six = plain.checkpoints()
    assert (six.seq, six.items, six.view, six.meta, six.revision) == (24, 21, 1, {"b": 2}, 6)


@pytest.mark.parametrize(
    "case",
    [
        ({"meta": {"x": float("nan")}}, "NaN"),
        ({"meta": {"x": "y" * 100_000}}, "at most 65536"),
        ({"meta": [1]}, "expected an object"),
        ({"name": ""}, "checkpoint name"),
        ({"name": 7}, "checkpoint.name"),
        ({"name": "x" * 100_000}, "checkpoint name"),
        ({"created_ms": 2**63 - 1}, "created_ms"),
    ],
)
def test_an_imported_checkpoint_is_held_to_what_a_session_takes(branched, db, case):
    wrong, told = case
    good = b"".join(db.export())
    lines = [json.loads(line) for line in good.splitlines()]
    next(line["checkpoint"] for line in lines if "checkpoint" in line).update(wrong)
    lines[0]["session"] = "hostile"
    lines[0]["user"] = "another"
    bad = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    fine = good.replace(b'"session":"', b'"session":"copy of ', 1)
    done = db.import_(io.BytesIO(bad + fine))
    assert (done.sessions, len(done.failures)) == (1, 1)
    assert told in done.failures[0]
    assert not db.session("hostile", user="another").exists()


def test_all_checkpoints_are_exported_with_undone_items(branched, db, open_db, tmp_path):
    branched.rewind("three")
    branched.rewind(2)
    branched.extend([user("6"), user("7")])
    branched.checkpoint("seven")
    branched.undo(2)
    branched.append(user("8"))
    fork = branched.fork("fork", at="three")
    fork.append(user("own"))
    fork.checkpoint("own")
    fork.rewind(1)
    fork.append(user("late"))
    other = round_trip(db, open_db, tmp_path, undone=True)
    session = other.session("chat")
    assert texts(session) == ["1", "2", "8"]
    for name, wanted in (
        ("three", ["1", "2", "3"]),
        ("five", ["1", "2", "4", "5"]),
        ("seven", ["1", "2", "6", "7"]),
    ):
        session.rewind(name)
        assert texts(session) == wanted
    copied = other.session("fork")
    assert texts(copied) == ["1", "late"]
    copied.rewind("own")
    assert texts(copied) == ["1", "2", "3", "own"]


@pytest.fixture
def salvaged(open_db, path, tmp_path):
    """Salvages a copy of the test's file in which a text is damaged wherever it stands."""

    def run(text: bytes) -> memcore.Database:
        damaged = tmp_path / "damaged"
        damaged.write_bytes(path.read_bytes().replace(text, b"?" * len(text)))
        memcore.salvage(damaged, tmp_path / "new", counter="bytes/4")
        return open_db(path=tmp_path / "new", counter="bytes/4")

    return run


def test_salvage_takes_checkpoints_along(open_db, salvaged):
    with open_db(counter="bytes/4") as db:
        session = db.session("chat")
        session.extend([user("1"), user("2")])
        both = session.checkpoint("both")
        session.undo()
        session.checkpoint("one")
        session.delete_checkpoint(session.checkpoint("gone"))
    new = salvaged(b"nowhere")
    session = new.session("chat")
    assert session.get_checkpoint("both") == both
    assert seqs(session.fork("f", at=both)) == [1, 2]
    assert session.checkpoint().number == 4
    assert new.check() == []


def test_salvage_saves_the_checkpoints_of_a_damaged_session_anew(open_db, salvaged):
    with open_db(counter="bytes/4") as db:
        session = db.session("chat")
        session.extend([user("1"), user("lost content"), user("3")])
        session.checkpoint("three")
        session.undo()
        for _ in range(20):  # some blocks of segments
            session.extend([user("a"), user("b")])
            session.undo()
        session.compact(lambda _: "s", keep_last=5)
        session.checkpoint("many")
        fork = session.fork("fork", at="three")
        fork.checkpoint("of the fork")
        session.delete_checkpoint(session.checkpoint())
    new = salvaged(b"lost content")
    assert new.check() == []
    session = new.session("chat")
    assert texts(session) == ["1", *["a"] * 20]
    session.rewind("three")
    assert texts(session) == ["1", "3"]
    assert session.rewind("many").tokens == session.get_checkpoint("many").tokens
    assert texts(session) == ["1", *["a"] * 20]
    assert session.context().summary == "s"
    assert session.checkpoint().number == 4
    assert new.session("fork").get_checkpoint("of the fork").items == 2
    assert new.check() == []
