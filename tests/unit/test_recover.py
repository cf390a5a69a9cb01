"""Recovery: whatever row of a session is damaged, it is usable again, and no item is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memcore
import memcore.aio
import raw
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.rows.head import head_key
from messages import assistant, call, result, texts, turns, user

Damage = Callable[..., None]


@pytest.fixture
def db(open_db: Any, tmp_path: Path) -> Iterator[memcore.Database]:
    """A database whose damage the fixtures need not be happy with."""
    with open_db(path=tmp_path / "damaged.memcore", counter="bytes/4") as found:
        yield found


@pytest.fixture
def damage(db: memcore.Database) -> Damage:
    """Damages (or removes) rows of one sort of a session; ``at`` picks by number."""

    def run(row: int, at: int | None = None, *, session: int = 1, gone: bool = False) -> None:
        for key, value in raw.rows(db.engine.store).items():
            if key[0] != keys.Kind.SESSION or keys.split_session_prefix(key)[1] != session:
                continue
            if keys.row_of(key) != row or at not in (None, keys.number_of(key)):
                continue
            bad = value[:-1] + bytes((value[-1] ^ 1,))
            db.engine.store.transact(
                lambda txn, key=key, bad=bad: txn.delete(key) if gone else txn.put(key, bad)
            )

    return run


def seqs(session: memcore.Session) -> list[int]:
    return [item.seq for item in session]


def usable(session: memcore.Session, *more: dict[str, Any]) -> None:
    """Everything works on it, and recovery has nothing more to do."""
    found = session.recover(plan=True)
    assert (found.status, found.items) == ("sound", len(session)), found
    assert session.tokens == sum(item.tokens for item in session)
    receipt = session.extend(more or turns(20))
    assert receipt.appended == (len(more) or 40)
    session.context(100_000)
    cp = session.checkpoint()
    session.undo(1)
    session.rewind(cp)
    session.compact(lambda _: "s", keep_last=1)
    assert session.recover(plan=True).status == "sound"


def names(found: memcore.Recovery) -> list[tuple[str, bool]]:
    return [(step.name, step.serves) for step in found.steps]


# --- by itself ------------------------------------------------------------------------------------


def test_a_handle_recovers_its_session_if_it_was_opened_so(db, session, damage, caplog):
    session.extend(turns(5))
    damage(Row.ITEM, 4)
    with pytest.raises(memcore.CorruptValueError):
        db.session("chat").context()
    with pytest.raises(memcore.CorruptValueError):
        db.session("chat", auto_recover=False).context()
    healed = db.session("chat", auto_recover=True)
    assert len(healed.context().messages) == 9
    assert "session 'chat': recovered: 1 finding, 9 items are live, 1 lost" in caplog.text
    usable(healed)
    caplog.clear()
    sound = db.session("chat", auto_recover=True, recount=True, counter="bytes/4")
    assert len(sound.append(user("again"))) > 0
    assert caplog.text == ""
    db.session("new", auto_recover=True).append(user("q"))


def test_a_recovery_that_nobody_asked_for_empties_no_session(db, session, damage, caplog):
    session.extend(turns(3))
    damage(Row.ITEM)
    healed = db.session("chat", auto_recover=True)
    with pytest.raises(memcore.CorruptValueError):
        healed.context()
    assert "session 'chat': failed" in caplog.text
    assert healed.recover().steps[-1].name == "empty"


def test_an_async_handle_recovers_too(db, session, damage):
    session.extend(turns(5))
    damage(Row.ITEM, 4)

    async def run() -> None:
        healed = memcore.aio.AsyncSession(db.session("chat", auto_recover=True))
        assert len((await healed.context()).messages) == 9

    asyncio.run(run())


# --- nothing is wrong -----------------------------------------------------------------------------


def test_nothing_is_wrong(db, session):
    session.extend(turns(5))
    session.compact(lambda _: "s", keep_last=2)
    session.checkpoint("x")
    session.undo()
    session.recount("bytes/3")
    before = raw.rows(db.engine.store)
    assert session.recover() == memcore.Recovery("sound", items=9)
    assert raw.rows(db.engine.store) == before


def test_there_is_no_session(session):
    with pytest.raises(memcore.NotFoundError):
        session.recover()


@pytest.mark.parametrize("steps", ["log", (), ("else",), ("log", "else")])
def test_wrong_steps(session, steps):
    with pytest.raises(memcore.InvalidOptionError, match="steps"):
        session.recover(steps=steps)


# --- what follows from items is made anew ---------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True])
def test_the_header_of_a_state_is_mended(db, session, damage, gone):
    session.append(user())
    session.state.update({"k": 1})
    then = session.checkpoint("then")
    session.state.update({"k": 2})
    session.state.update({"k": 3})
    damage(Row.STATE, 0, gone=gone)
    found = session.recover()
    assert (found.status, names(found), found.items, found.lost) == (
        "recovered",
        [("mend", True)],
        1,
        (),
    )
    assert "header of its state" in found.findings[0]
    assert (session.state.all(), session.state.counter) == ({"k": 3}, 3)
    session.rewind(then)
    assert session.state.all() == {"k": 1}
    assert db.check() == []
    usable(session)


def test_a_damaged_value_of_a_state_is_told(session, damage):
    session.append(user())
    session.state.update({"k": 1})
    damage(Row.STATE, 1)
    found = session.recover()
    assert (found.status, len(found.notes)) == ("sound", 1)
    assert "checksum" in found.notes[0]


def test_the_last_number_of_checkpoints_is_mended(db, session, damage):
    session.append(user())
    session.checkpoint()
    session.delete_checkpoint(session.checkpoint())
    damage(Row.CHECKPOINT, 0)
    with pytest.raises(memcore.CorruptValueError):
        session.checkpoint()
    assert names(session.recover()) == [("mend", True)]
    assert session.checkpoint().number == 2
    assert db.check() == []
    usable(session)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("count", [3, 40, 1100])
def test_index_pages(db, session, damage, count, gone):
    session.extend(turns(count))
    session.extend([call("a"), user("undone")])
    undone = session.checkpoint("undone")
    session.undo()
    tokens, before = session.tokens, texts(session)
    damage(Row.INDEX, gone=gone)
    damage(Row.CHECKPOINT)  # the history is known all the same
    with pytest.raises(memcore.CorruptValueError):
        memcore.open(db.path, counter="bytes/4").session("chat").append(result("a"))
    planned = session.recover(plan=True)
    assert (planned.status, names(planned)) == ("planned", [("mend", True)])
    found = session.recover()
    assert (found.status, found.lost, found.left_out, found.before) == ("recovered", (), 0, None)
    assert (texts(session), session.tokens) == (before, tokens)
    assert [c.call_id for c in session.open_calls] == ["a"]
    session.delete_checkpoint(undone.number)
    assert db.check() == []
    usable(session, result("a"))
    assert db.check() == []


def test_the_same_index_comes_back(db, session, damage):
    session.extend([*turns(20), call("a"), result("a")])
    session.record("note", {"x": 1})
    session.append(call("gone"))
    session.abandon("gone")
    session.undo(1)
    session.extend(turns(20))
    kinds = (Row.INDEX,)
    before = {k: v for k, v in raw.rows(db.engine.store).items() if k[17:18] == bytes(kinds)}
    damage(Row.INDEX, 33)
    session.recover()
    after = {k: v for k, v in raw.rows(db.engine.store).items() if k[17:18] == bytes(kinds)}
    assert after == before


def test_token_pages(db, session, damage):
    session.extend(turns(20))
    session.recount("bytes/3")
    tokens = session.tokens
    damage(Row.TOKENS)
    found = session.recover()
    assert (found.status, names(found)) == ("recovered", [("mend", True)])
    assert session.tokens == tokens
    usable(session)


def test_views(db, session, damage):
    session.extend(turns(6))
    session.compact(lambda _: "first", keep_last=6)
    session.compact(lambda _: "second", keep_last=2)
    damage(Row.VIEW, 2)
    with pytest.raises(memcore.CorruptValueError):
        session.context()
    found = session.recover()
    assert names(found) == [("mend", True)]
    assert "view 1 is made the current one" in found.notes
    assert session.context().summary == "first"
    damage(Row.VIEW, 1)
    session.recover()
    assert session.context().summary is None
    usable(session)
    assert session.views()[-1].number == 3


# --- items ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True])
def test_a_lost_item_without_a_checkpoint(db, session, damage, gone):
    session.extend([user("1"), assistant("2"), user("3"), assistant("4")])
    session.append(user("5"), meta={"a": 1}, request_id="r")
    damage(Row.ITEM, 3, gone=gone)
    found = session.recover()
    assert names(found) == [("mend", False), ("checkpoint", False), ("log", True)]
    assert (found.status, found.lost, found.moved, found.items) == ("recovered", (3,), 2, 4)
    assert found.left_out == 0
    assert texts(session) == ["1", "2", "4", "5"]
    assert seqs(session) == [1, 2, 6, 7]
    assert (session.get(7).meta, session.get(7).request_id) == ({"a": 1}, "r")
    before = session.get_checkpoint("before recovery")
    assert before == found.before
    usable(session)
    session.rewind(before)
    assert [item.seq for item in session.items(skip_corrupt=True)] == [1, 2, 4, 5]
    key = keys.session_row(1, 1, Row.ITEM, 3).hex()
    assert db.check() != []
    assert all(key in finding for finding in db.check())


def test_the_last_valid_checkpoint_is_gone_back_to(db, session, damage):
    session.extend(turns(1))
    session.checkpoint("first")
    session.extend(turns(1))
    session.checkpoint("second")
    session.extend(turns(1))
    session.checkpoint("third")
    damage(Row.ITEM, 4)
    damage(Row.CHECKPOINT, 3)
    found = session.recover()
    assert names(found) == [("mend", False), *[("checkpoint", False)] * 2, ("checkpoint", True)]
    assert found.checkpoint == session.get_checkpoint("first")
    assert (found.items, found.lost, found.left_out, found.moved) == (2, (4,), 3, 0)
    assert seqs(session) == [1, 2]
    usable(session)


@pytest.mark.parametrize("known", [True, False])
def test_a_checkpoint_brings_its_state_back(db, session, damage, known):
    session.extend([user("1"), user("2")])
    session.state.update({"goal": "old"})
    session.checkpoint()
    session.append(user("3"))
    session.state.update({"goal": "new"})
    damage(Row.ITEM, 3)
    if not known:
        damage(Row.STATE)
    found = session.recover()
    assert names(found)[-1] == ("checkpoint", True)
    if known:
        assert (session.state.all(), len(found.notes)) == ({"goal": "old"}, 1)
    else:
        assert "its state stays as it is" in found.notes[-1]
    assert seqs(session) == [1, 2]


def test_the_log_can_be_asked_for(session, damage):
    session.extend(turns(1))
    session.checkpoint("first")
    session.extend(turns(2))
    damage(Row.ITEM, 4)
    found = session.recover(steps=("log",))
    assert (names(found), texts(session)) == ([("log", True)], ["q0", "a0", "q0", "q1", "a1"])
    usable(session)


def test_calls_whose_partner_is_lost(session, damage):
    session.extend([user(), call("a"), result("a"), call("b"), user("go on")])
    damage(Row.ITEM, 2)
    session.recover()
    assert [item.seq for item in session] == [1, 6, 7, 8]
    assert [found.call_id for found in session.open_calls] == ["b"]
    assert session.context().repairs[0].action == "orphan"


def test_a_large_item_whose_content_is_lost(db, session, damage):
    session.extend([user("1"), user("x" * 200_000), user("3"), user("y" * 200_000)])
    chunk = next(k for k in raw.rows(db.engine.store) if k[0] == keys.Kind.BLOB_CHUNK)
    value = raw.rows(db.engine.store)[chunk]
    lost = 2 if b"xxx" in value else 4
    db.engine.store.transact(lambda txn: txn.put(chunk, b"?"))
    found = session.recover()
    assert found.lost == (lost,)
    assert [t[:1] for t in texts(session)] == (["1", "3", "y"] if lost == 2 else ["1", "x", "3"])
    usable(session)


def test_nothing_of_it_is_left(db, session, damage):
    session.extend(turns(2))
    damage(Row.ITEM)
    assert session.recover(steps=("mend", "checkpoint", "log")).status == "failed"
    found = session.recover()
    assert names(found)[-1] == ("empty", True)
    assert (found.items, found.lost, seqs(session)) == (0, (1, 2, 3, 4), [])
    usable(session)
    assert session.get(5).seq == 5


# --- the head -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [False, True])
def test_the_head_is_rebuilt_from_a_checkpoint(db, damage, gone):
    session = db.session("chat", policy="langchain", counter=memcore.get_counter("bytes/3"))
    session.extend(turns(3))
    session.compact(lambda _: "so far", keep_last=2)
    session.checkpoint("there")
    session.extend(turns(2))
    revision = session.revision
    damage(Row.HEAD, gone=gone)
    session = memcore.open(db.path).session("chat")
    with pytest.raises(memcore.CorruptValueError):
        len(session)
    found = session.recover()
    assert names(found) == [("mend", False), ("checkpoint", True)]
    assert (found.items, found.left_out, found.lost) == (6, 4, ())
    assert (session.policy, session.counter) == ("langchain", "bytes/3")
    assert session.context().summary == "so far"
    assert session.revision > revision
    assert session.append(user()).seq == 11
    session.rewind("before recovery")
    assert len(session) == 10
    assert db.check() == []
    usable(session)


def test_an_older_head_gives_no_seq_twice(db, session):
    session.extend(turns(2))
    key = head_key(1, 1)
    older = raw.rows(db.engine.store)[key]
    session.extend(turns(3))
    db.engine.store.transact(lambda txn: txn.put(key, older))
    found = memcore.open(db.path, counter="bytes/4").session("chat").recover()
    assert names(found) == [("mend", True)]
    assert (len(session), session.append(user()).seq) == (4, 11)
    assert db.check() == []
    usable(session)


def test_a_checkpoint_of_other_items_is_not_gone_back_to(db, session, damage):
    session.extend(turns(2))
    session.checkpoint()
    session.extend(turns(1))
    key = keys.session_row(1, 1, Row.ITEM, 2)
    _, body = open_value(key, raw.rows(db.engine.store)[key])
    other = seal_value(key, body.replace(b"a0", b"b0"))
    db.engine.store.transact(lambda txn: txn.put(key, other))
    damage(Row.ITEM, 6)
    found = session.recover(plan=True)
    assert names(found) == [("mend", False), ("checkpoint", False), ("log", True)]
    assert "not those that it was made of" in found.steps[1].reason


@pytest.mark.parametrize("gone", [False, True])
def test_the_head_is_rebuilt_from_the_log(db, session, damage, gone):
    session.extend(turns(3))
    session.undo(2)
    session.extend(turns(1, start=7))
    session.compact(lambda _: "so far", keep_last=2)
    before, tokens = texts(session), session.tokens
    damage(Row.HEAD, gone=gone)
    other = memcore.open(db.path, counter="bytes/4").session("chat")
    found = other.recover()
    assert names(found) == [("mend", False), ("checkpoint", False), ("log", True)]
    assert any("undone last" in note for note in found.notes)
    for handle in (session, other):  # a handle that had the old head, too
        assert (texts(handle), handle.tokens, handle.context().summary) == (
            before,
            tokens,
            "so far",
        )
    assert db.check() == []
    usable(session)
    assert db.check() == []


def test_segment_blocks(db, session, damage):
    session.append(user("start"))
    for number in range(40):
        session.extend([user(f"a{number}"), user("wrong")])
        session.undo()
    before = texts(session)
    damage(Row.SEGMENTS, 1)
    damage(Row.SEGMENTS, 2, gone=True)
    found = memcore.open(db.path, counter="bytes/4").session("chat").recover()
    assert names(found)[-1] == ("log", True)
    assert texts(session) == before
    usable(session)


def test_a_fork_without_its_head(db, session, damage):
    session.extend(turns(3))
    session.undo(1)
    session.extend(turns(1, start=5))
    fork = session.fork("fork", at=7)
    fork.extend(turns(2, start=9))
    session.extend(turns(3, start=20))
    before = texts(fork)
    damage(Row.HEAD, session=2)
    found = memcore.open(db.path, counter="bytes/4").session("fork").recover()
    assert names(found)[-1] == ("log", True)
    assert texts(fork) == before
    assert db.check() == []
    usable(fork)


def test_damage_in_what_a_fork_shares(db, session, damage):
    session.extend(turns(3))
    fork = session.fork("fork")
    fork.extend(turns(1, start=9))
    damage(Row.INDEX)
    assert names(fork.recover(plan=True))[0] == ("mend", False)
    found = fork.recover()
    assert (found.lost, found.moved) == ((1, 2, 3, 4, 5, 6), 2)
    assert texts(fork) == ["q9", "a9"]
    assert session.recover().status == "recovered"
    fork.rewind("before recovery")
    assert texts(fork) == ["q0", "a0", "q1", "a1", "q2", "a2", "q9", "a9"]
    assert db.check() == []


def test_everything_at_once(db, session, damage):
    session.extend(turns(30))
    session.checkpoint("early")
    session.extend(turns(10))
    session.compact(lambda _: "s", keep_last=2)
    session.recount("bytes/3")
    for row in (Row.HEAD, Row.INDEX, Row.VIEW, Row.TOKENS, Row.CHECKPOINT):
        damage(row)
    damage(Row.ITEM, 65)
    session = memcore.open(db.path, counter="bytes/4").session("chat")
    found = session.recover()
    assert (found.lost, len(session)) == ((65,), 79)
    usable(session)


def test_with_await(path, open_db):
    async def run() -> None:
        async with memcore.aio.open(path) as db:
            session = db.session("chat")
            await session.append(user())
            assert (await session.recover(plan=True)).status == "sound"

    asyncio.run(run())


SORTS = [Row.HEAD, Row.INDEX, Row.ITEM, Row.VIEW, Row.SEGMENTS, Row.TOKENS, Row.CHECKPOINT]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    bad=st.lists(st.tuples(st.sampled_from(SORTS), st.integers(0, 60)), min_size=1, max_size=6),
    cut=st.lists(st.integers(1, 6), max_size=12),
    at=st.sampled_from([("mend", "checkpoint", "log", "empty"), ("log", "empty")]),
)
def test_whatever_is_damaged_it_is_usable_again(tmp_path_factory, bad, cut, at):
    path = tmp_path_factory.mktemp("recover") / "x.memcore"
    with memcore.open(path, durability="none", allow_unsafe=True, counter="bytes/4") as db:
        session = db.session("chat")
        for count in cut:
            session.extend(turns(4))
            session.checkpoint()
            session.undo(count)
        session.extend([user("last"), call("a")])
        session.compact(lambda _: "s", keep_last=3)
        if len(cut) % 2:
            session.recount("bytes/3")
        rows = raw.rows(db.engine.store)
        for row, pick in bad:
            mine = [k for k in rows if k[0] == keys.Kind.SESSION and keys.row_of(k) == row]
            if mine:
                key = mine[pick % len(mine)]
                db.engine.store.transact(lambda txn, key=key: txn.put(key, b"damaged"))
    with memcore.open(path, counter="bytes/4") as db:
        session = db.session("chat")
        found = session.recover(steps=at)
        assert found.status in {"recovered", "sound"}
        usable(session, user("more"))
        for told in db.check():
            # What stood on an item of which nothing at all is left cannot be proven any more.
            unproven = {Row.ITEM, Row.INDEX} <= {row for row, _ in bad} and "checkpoint" in told
            assert unproven or "prefix hash" not in told, (found, told)
            assert "its head says" not in told
