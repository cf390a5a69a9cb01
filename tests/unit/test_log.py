"""The log's storage: head, segments and their blocks, index pages, drafts, damage."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.errors import CorruptValueError
from memcore.limits import HEAD_SEGMENTS_MAX, INDEX_PAGE_RECORDS, INDEX_TAIL_RECORDS
from memcore.log import Head, History, Segment
from memcore.log import history as log_history
from memcore.rows.head import BLOCK_SEGMENTS, head_key
from messages import attempt, call, result, system, texts, turns, user


def rows(db: memcore.Database, session: memcore.Session, row: int) -> dict[int, bytes]:
    """The rows of one kind of a session by their numbers."""
    log = session._ref.resolve()
    start = keys.session_row(log.scope, log.session, row, 0)
    stop = keys.session_row(log.scope, log.session, row + 1, 0)
    found = db.engine.store.read(lambda txn: list(txn.scan(start, stop)))
    return {keys.split_session_row(key)[3]: value for key, value in found}


def damage(db: memcore.Database, session: memcore.Session, row: int, number: int) -> bytes:
    """Flip a bit of a stored value behind the codec's back, or back again; returns its key."""
    log = session._ref.resolve()
    key = keys.session_row(log.scope, log.session, row, number)

    def flip(txn) -> None:
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))

    db.engine.store.transact(flip)
    return key


def stored_head(db: memcore.Database, session: memcore.Session) -> Head:
    log = session._ref.resolve()
    key = head_key(log.scope, log.session)
    return Head.unpack(key, db.engine.store.read(lambda txn: txn.get(key)))


# --- head and history -----------------------------------------------------------------------------


def test_a_head_survives_packing(db, session):
    session.extend(turns(3))
    session.undo()
    head = stored_head(db, session)
    again = head.changed()
    assert again.pack() == head.pack()
    assert again.segments is not head.segments
    assert (head.revision, head.epoch, head.count, head.next_seq) == (2, 1, 5, 7)


def test_history_maps_positions_and_seqs():
    history = History([Segment(1, 1, 3), Segment(1, 7, 7), Segment(2, 10, 12)])
    seqs = [1, 2, 3, 7, 10, 11, 12]
    assert [history.seq_at(at) for at in range(7)] == seqs
    assert [history.position_of(seq) for seq in seqs] == list(range(7))
    assert [history.position_of(seq) for seq in (0, 4, 6, 8, 9, 13)] == [None] * 6
    assert [history.position_from(seq) for seq in range(14)] == [
        0, 0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 7,
    ]  # fmt: skip
    assert list(history.spans(2, 6)) == [(2, 1, 3, 3), (3, 1, 7, 7), (4, 2, 10, 11)]
    assert list(history.spans(0, 0)) == []
    assert history.locate(4) == (2, 10)


# --- segments -------------------------------------------------------------------------------------


def gap(session: memcore.Session, text: str = "kept") -> int:
    """Append one item that begins a segment of its own; returns its seq."""
    session.append(user("undone"))
    session.undo()
    return session.append(user(text)).seq


@pytest.mark.parametrize(
    "count", [HEAD_SEGMENTS_MAX - 1, HEAD_SEGMENTS_MAX, HEAD_SEGMENTS_MAX + 1, 40, 300]
)
def test_segments_spill_to_blocks_and_come_back(db, open_db, session, count):
    kept = [gap(session) for _ in range(count)]
    head = stored_head(db, session)
    assert len(head.segments) <= HEAD_SEGMENTS_MAX
    assert bool(head.link_block) == (count > HEAD_SEGMENTS_MAX)
    fresh = open_db().session("chat")
    assert [i.seq for i in fresh] == kept
    for left in (count - 1, count // 2, HEAD_SEGMENTS_MAX, BLOCK_SEGMENTS, 1, 0):
        if left < len(kept):
            session.undo(len(kept) - left)
            kept = kept[:left]
            assert [i.seq for i in session] == [i.seq for i in fresh] == kept
            assert db.check() == []
    kept.append(gap(session))
    assert [i.seq for i in fresh] == kept


def test_blocks_that_hold_another_number_of_items_than_the_head_says(db, session):
    for _ in range(HEAD_SEGMENTS_MAX + 1):
        gap(session)
    log = session._ref.resolve()
    head, key = stored_head(db, session), head_key(log.scope, log.session)

    def store(value: bytes) -> None:
        db.engine.store.transact(lambda txn: txn.put(key, value))

    for before, linked in ((head.base_count + 1, True), (head.base_count, False)):
        changed = stored_head(db, session)
        changed.count, changed.base_count = head.count + before - head.base_count, before
        if not linked:  # it has items in front of its own segments, and no block
            changed.link_session = changed.link_block = 0
        store(seal_value(key, changed.pack()))
        with memcore.open(db.path) as fresh:
            same = fresh.session("chat")
            for read in (same.context, same.undo):
                with pytest.raises(CorruptValueError):
                    read()
            assert len(fresh.check()) == 1
        store(seal_value(key, head.pack()))


def test_a_comparison_of_a_session_whose_index_is_cut_short(db, session):
    session.extend(turns(INDEX_PAGE_RECORDS))
    pages = rows(db, session, Row.INDEX)
    key = keys.session_row(*session._ref.resolve().place, Row.INDEX, max(pages))
    value = db.engine.store.read(lambda txn: txn.get(key))
    db.engine.store.transact(lambda txn: txn.delete(key))
    with memcore.open(db.path) as fresh:
        same = fresh.session("chat")
        with pytest.raises(CorruptValueError, match=r"lacks [\d,]+ records"):
            fresh.compare(same, same, other_at=1)
    db.engine.store.transact(lambda txn: txn.put(key, value))


def test_a_rewind_to_every_old_segment(db, session):
    kept = [gap(session) for _ in range(60)]
    for at in (59, 43, 42, 24, 23, 8, 7, 0):
        assert session.rewind(kept[at]).seq == kept[at]
        assert [i.seq for i in session] == kept[: at + 1]
        assert db.check() == []


def test_forks_share_the_blocks_of_their_parents(db, session):
    kept = [gap(session) for _ in range(50)]
    fork = session.fork("fork", at=kept[30])
    own = [gap(fork) for _ in range(40)]
    below = fork.fork("below", at=own[5])
    assert [i.seq for i in below] == [*kept[:31], *own[:6]]
    session.rewind(kept[3])
    db.delete_session("chat")
    assert [i.seq for i in fork] == [*kept[:31], *own]
    fork.undo(45)
    assert [i.seq for i in fork] == kept[:26]
    assert [i.seq for i in below] == [*kept[:31], *own[:6]]
    assert db.check() == []


def test_get_finds_items_in_spilled_segments(session):
    kept = [gap(session, str(n)) for n in range(50)]
    assert [session.get(seq).message["content"] for seq in kept] == [str(n) for n in range(50)]
    session.compact(lambda _: "s", keep_last=40)
    assert session.context().summary == "s"
    session.append(user(), idempotency_key="k")
    assert session.append(user(), idempotency_key="k").seq == kept[-1] + 1


# --- index pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 7, INDEX_TAIL_RECORDS, 100, INDEX_PAGE_RECORDS + 5])
def test_pages_fill_and_blocks_are_sealed(db, open_db, session, step):
    total = 2 * INDEX_PAGE_RECORDS + INDEX_TAIL_RECORDS + 3
    for at in range(0, total, step):
        session.extend([user()] * min(step, total - at))
    firsts = sorted(rows(db, session, Row.INDEX))
    assert firsts[:2] == [1, 1 + INDEX_PAGE_RECORDS]
    assert firsts[2:] == [1 + 2 * INDEX_PAGE_RECORDS, 33 + 2 * INDEX_PAGE_RECORDS]
    fresh = open_db().session("chat")
    assert (len(fresh), fresh.tokens) == (total, session.tokens)


@pytest.mark.parametrize("at", [1, 31, 32, 33, 40, 1_023, 1_024, 1_025])
def test_a_fork_in_mid_page_begins_pages_of_its_own(db, session, at):
    session.extend([user(str(n)) for n in range(1_100)])
    fork = session.fork("fork", at=at)
    fork.extend([user(f"f{n}") for n in range(1_050)])
    assert min(rows(db, fork, Row.INDEX)) == at + 1
    assert texts(fork) == [*texts(session)[:at], *(f"f{n}" for n in range(1_050))]
    assert fork.tokens == sum(i.tokens for i in fork)
    assert db.check() == []


def test_undone_records_stay_in_their_pages(db, open_db, session):
    for _ in range(50):
        session.extend([user()] * 3)
        session.undo(2)
    assert len(open_db().session("chat")) == 50
    assert sum(1 for _ in rows(db, session, Row.ITEM)) == 150


# --- long histories -------------------------------------------------------------------------------


def test_a_fresh_handle_of_a_long_history_answers_all_the_same(open_db):
    """Handles load the end of a long history first; what reaches behind it must still be true."""
    writer = open_db(durability="none").session("chat")
    writer.extend([system(), user(), call("old", "older"), result("older")])
    writer.extend(turns(3_000))

    def fresh() -> memcore.Session:
        return open_db().session("chat")

    assert fresh().tokens == writer.tokens == sum(i.tokens for i in writer)
    assert fresh().context(300) == writer.context(300)
    assert fresh().context(300).messages[0] == system()
    assert [c.call_id for c in fresh().open_calls] == ["old"]
    assert fresh().find_call("older").result_seqs == (4,)
    assert fresh().get(3).tokens == writer.get(3).tokens > 0
    fork = fresh().fork("fork", at=5_000)
    assert (len(fork), fork.tokens) == (5_000, sum(i.tokens for i in fork))
    assert len(fork.open_calls) == fork.append(user()).open_calls == 1
    with pytest.raises(memcore.OrphanResultError):
        fresh().append(result("never"))
    receipt = fresh().append(result("old", "at last"))
    assert (receipt.open_calls, receipt.tokens) == (0, sum(i.tokens for i in writer))
    assert fresh().context() == writer.context()
    assert len(fresh().undo(4_000)) == 4_000
    assert fresh().tokens == writer.tokens == sum(i.tokens for i in writer)
    assert fresh().append(user()).open_calls == 1
    fresh().set_policy("seed")
    assert fresh().tokens == writer.tokens


@pytest.mark.parametrize("records", [3, 5, 6, 8])
def test_a_late_result_reaches_behind_what_was_loaded(open_db, monkeypatch, records):
    """The loaded end holds the answer, its call lies before: no cut between the two is safe."""
    writer = open_db(durability="none").session("chat")
    writer.extend([user(), call("c"), *[user()] * 14, result("c"), user(), user()])
    expected = {budget: repr(attempt(writer.context, budget)) for budget in range(8, 70)}
    monkeypatch.setattr(log_history, "RECENT_RECORDS", records)
    for budget, outcome in expected.items():
        assert repr(attempt(open_db().session("chat").context, budget)) == outcome


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def broken(open_db) -> Iterator[memcore.Database]:
    """A database whose damage is mended (by deleting its sessions) before the last check."""
    db = open_db(counter="bytes/4")
    yield db
    for entry in list(db.sessions()):
        db.delete_session(entry.session_id)


def test_a_damaged_item_is_named_and_the_others_stay_readable(broken):
    session = broken.session("chat")
    session.extend(turns(4))
    key = damage(broken, session, Row.ITEM, 3)
    with pytest.raises(memcore.CorruptValueError) as caught:
        list(session)
    assert caught.value.key == key
    assert key.hex() in str(caught.value)
    assert [i.seq for i in session.items(skip_corrupt=True)] == [1, 2, 4, 5, 6, 7, 8]
    assert [i.seq for i in session.tail(7, skip_corrupt=True)] == [2, 4, 5, 6, 7, 8]
    assert session.get(4).message == turns(4)[3]
    assert len(session.context(40).messages) > 0
    with pytest.raises(memcore.CorruptValueError):
        session.context()
    assert session.append(user("goes on")).seq == 9
    findings = broken.check()
    assert findings
    assert all("'chat'" in finding or key.hex() in finding for finding in findings)


def test_a_lost_item_is_damage_too(broken):
    session = broken.session("chat")
    session.extend(turns(3))
    log = session._ref.log
    key = keys.session_row(log.scope, log.session, Row.ITEM, 6)
    broken.engine.store.transact(lambda txn: txn.delete(key))
    with pytest.raises(memcore.CorruptValueError) as caught:
        session.get(6)
    assert caught.value.key == key
    assert [i.seq for i in session.items(skip_corrupt=True)] == [1, 2, 3, 4, 5]
    assert broken.check() != []


def test_damage_of_a_large_item_does_not_touch_the_others(broken):
    session = broken.session("chat")
    session.extend([user("small"), user("x" * 100_000), user("small")])
    chunks = bytes((keys.Kind.BLOB_CHUNK,))

    def flip(txn) -> None:
        rows_ = list(txn.scan(chunks, keys.after(chunks))) or list(
            txn.scan(bytes((keys.Kind.BLOB,)), chunks)
        )
        key, value = rows_[0]
        txn.put(key, value[:-1] + bytes((value[-1] ^ 1,)))

    broken.engine.store.transact(flip)
    with pytest.raises(memcore.CorruptValueError):
        session.get(2)
    assert [i.seq for i in session.items(skip_corrupt=True)] == [1, 3]
    assert broken.check() != []
    assert broken.session("other").append(user("x" * 200_000)).seq == 1


@pytest.mark.parametrize("row", [Row.HEAD, Row.INDEX])
def test_a_damaged_head_or_page_harms_one_session_only(broken, open_db, row):
    session, other = broken.session("chat"), broken.session("other")
    session.extend(turns(3))
    other.extend(turns(2))
    damage(broken, session, row, 1 if row == Row.INDEX else 0)
    fresh = open_db()
    with pytest.raises(memcore.CorruptValueError):
        fresh.session("chat").append(user())
    assert texts(fresh.session("other")) == texts(other)
    assert fresh.session("other").append(user()).seq == 5
    assert any("'chat'" in finding or "chat" in finding for finding in fresh.check())
    damage(broken, session, row, 1 if row == Row.INDEX else 0)
    assert fresh.session("chat").append(user()).seq == 7


def test_a_record_that_belies_its_item_is_found_by_check(broken):
    session = broken.session("chat")
    session.extend(turns(3))
    log = session._ref.log
    key = keys.session_row(log.scope, log.session, Row.INDEX, 1)

    def lie(txn) -> None:
        _, body = open_value(key, txn.get(key))
        tokens = struct.unpack_from("<I", body)[0]
        txn.put(key, seal_value(key, struct.pack("<I", tokens + 1) + body[4:]))

    broken.engine.store.transact(lie)
    assert any("tokens" in finding for finding in broken.check())


def test_an_item_that_was_replaced_is_found_by_check(broken):
    """A row with a sound checksum that is not what was appended: the prefix hash knows."""
    session = broken.session("chat")
    session.extend(turns(3))
    log = session._ref.log
    key = keys.session_row(log.scope, log.session, Row.ITEM, 2)

    def forge(txn) -> None:
        flags, body = open_value(key, txn.get(key))
        txn.put(key, seal_value(key, body.replace(b"a0", b"XX"), flags))

    broken.engine.store.transact(forge)
    assert session.get(2).message == {"role": "assistant", "content": "XX"}
    assert any("prefix hash" in finding for finding in broken.check())


@pytest.mark.parametrize("field", ["revision", "epoch", "next_view", "next_block", "tokens"])
def test_a_head_at_the_end_of_its_counters_is_damaged(db, session, field):
    session.append(user("hi"))
    key, head = head_key(1, 1), stored_head(db, session)
    setattr(head, field, 2**64 - 1)
    with pytest.raises(CorruptValueError):
        Head.unpack(key, seal_value(key, head.pack()))


@pytest.mark.parametrize("planted", ["itself", "fork"])
def test_a_head_that_leads_back_to_itself_is_an_error_and_no_loop(broken, planted):
    session = broken.session("itself")
    session.append(user("hi"))
    session.fork("fork").append(user("ho"))
    numbers = {each: broken.session(each)._ref.resolve().session for each in ("itself", "fork")}
    key, head = head_key(1, numbers["itself"]), stored_head(broken, session)
    sound = seal_value(key, head.pack())
    head.parent_session, head.parent_seq = numbers[planted], 1
    broken.engine.store.transact(lambda txn: txn.put(key, seal_value(key, head.pack())))
    memory = broken.session("fork").memory
    walks = [
        lambda: memory.remember("It says hi", source=1),
        lambda: memory.record_outcome("fork", scenario="greeting", passed=True),
        lambda: memory.extract("fork"),
        lambda: list(broken.export()),
    ]
    for walk in walks:
        with pytest.raises(CorruptValueError, match="session head"):
            walk()
    assert any("session head" in finding for finding in broken.check())
    broken.engine.store.transact(lambda txn: txn.put(key, sound))
