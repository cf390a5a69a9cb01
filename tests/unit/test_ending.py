"""The end of a history: read raw, taken off, replaced if it is as it was read, expired."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore._fast import open_messages
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.errors import ReadOnlyError
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX, ITEM_INLINE_BYTES_MAX
from memcore.session import resume_removals
from memcore.session.append import PLAIN, encode_items, store
from memcore.session.read import DecodedCache
from memcore.session.session import ref_of, store_of
from memcore.session.tail import (
    ExpireItems,
    Overwrite,
    ReplaceTail,
    TakeLast,
    message_of,
    read_tail,
)
from messages import user
from raw import rows
from together import together

LARGE = "x" * (ITEM_INLINE_BYTES_MAX + 1)


def kept(db: memcore.Database, name: str = "s") -> memcore.Session:
    return db.session(name, policy="openai_responses", orphans="keep", shape="keep")


def fc(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def fo(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


def damage(session: memcore.Session, *seqs: int) -> None:
    """Flip a byte in the rows of items."""
    log = session._ref.resolve()

    def flip(txn) -> None:
        for seq in seqs:
            key = keys.session_row(*log.place, Row.ITEM, seq)
            value = bytearray(txn.get(key))
            value[-3] ^= 1
            txn.put(key, bytes(value))

    store_of(session).transact(flip)


def contents(session: memcore.Session) -> list[Any]:
    found = read_tail(ref_of(session))
    return [message_of(row) for row in found.rows if type(row) is tuple]


def prepared(session: memcore.Session, *messages: dict[str, Any]) -> list[Any]:
    return encode_items(ref_of(session), list(messages), PLAIN)


def take(session: memcore.Session, check: Any = None) -> Any:
    return store_of(session).transact(TakeLast(ref_of(session), check))


def replace(session: memcore.Session, tail: Any, start: int, *messages: Any, **options: Any) -> Any:
    closure = ReplaceTail(ref_of(session), tail, start, prepared(session, *messages), **options)
    done, rest = store_of(session).transact(closure)
    if rest:
        resume_removals(store_of(session))
    return done


# --- reading --------------------------------------------------------------------------------------


def test_a_tail_says_whether_it_is_all(db):
    session = kept(db)
    assert read_tail(ref_of(session)) == (None, [], True, 0, 0)
    session.extend([user("a"), user("b"), user("c")])
    assert [message_of(row)["content"] for row in read_tail(ref_of(session), 2).rows] == ["b", "c"]
    assert not read_tail(ref_of(session), 2).complete
    assert read_tail(ref_of(session), 3).complete
    assert read_tail(ref_of(session), 9).complete


def test_damaged_rows_stand_among_the_others_as_errors(db, open_db, tmp_path):
    other = open_db(path=tmp_path / "damaged")
    session = kept(other)
    session.extend([user("a"), user("b"), user("c")])
    damage(session, 2)
    kinds = [type(row) for row in read_tail(ref_of(session)).rows]
    assert kinds == [tuple, memcore.CorruptValueError, tuple]


def test_large_items_are_read_with_their_content(db):
    session = kept(db)
    session.append(user(LARGE))
    (row,) = read_tail(ref_of(session)).rows
    assert message_of(row) == user(LARGE)


# --- taking ---------------------------------------------------------------------------------------


def test_the_last_item_is_taken_with_the_events_behind_it(db):
    session = kept(db)
    session.extend([user("a"), user(LARGE)])
    session.record("note", {})
    assert take(session) == user(LARGE)
    assert contents(session) == [user("a")]
    assert take(session) == user("a")
    assert take(session) is None
    assert take(kept(db, "none")) is None


def test_events_alone_are_not_taken(db):
    session = kept(db)
    session.record("note", {})
    assert take(session) is None
    assert len(session) == 1


def test_damaged_items_go_with_the_one_before_them(open_db, tmp_path):
    db = open_db(path=tmp_path / "damaged")
    session = kept(db)
    session.extend([user(str(n)) for n in range(30)])
    damage(session, *range(12, 31))
    assert take(session) == user("10")
    assert len(session) == 10
    damage(session, *range(1, 11))
    assert take(session) is None
    assert len(session) == 0


def test_a_check_that_raises_leaves_the_item_and_its_neighbours(db):
    session = kept(db)
    session.extend([user("a"), user("b")])
    seen = []

    def refuse(message: Any) -> None:
        seen.append(message)
        raise LookupError

    refused, added = together(db, lambda: take(session, refuse), lambda: session.append(user("c")))
    assert isinstance(refused, LookupError)
    assert added.seq == 3
    assert seen[0] == user("b")
    assert contents(session) == [user("a"), user("b"), user("c")]


# --- replacing ------------------------------------------------------------------------------------


def test_a_suffix_is_replaced_in_one_revision(db):
    session = kept(db)
    session.extend([user(c) for c in "abcd"])
    revision = session.revision
    assert replace(session, read_tail(ref_of(session), 3), 1, user("x"), user("y"))
    assert contents(session) == [user(c) for c in "abxy"]
    assert session.revision == revision + 1
    assert replace(session, read_tail(ref_of(session)), 0)
    assert contents(session) == []


@pytest.mark.parametrize(
    "between",
    [
        lambda s: s.append(user("new")),
        lambda s: s.undo(1),
        lambda s: (s.undo(1), s.append(user("d"))),
        lambda s: (s.undo(4), s.extend([user(c) for c in "abcd"])),
    ],
    ids=["append", "undo", "same-text", "all-anew"],
)
def test_who_wrote_meanwhile_keeps_what_he_wrote(db, between):
    session = kept(db)
    session.extend([user(c) for c in "abcd"])
    tail = read_tail(ref_of(session), 2)
    between(kept(db))
    before = contents(session)
    assert not replace(session, tail, 0, user("x"))
    assert contents(session) == before


def test_a_session_that_was_deleted_and_made_anew_is_another_one(db):
    session = kept(db)
    session.extend([user(c) for c in "ab"])
    tail = read_tail(ref_of(session), 1)
    db.delete_session("s")
    assert not replace(session, tail, 0, user("x"))
    session.extend([user(c) for c in "ab"])
    assert not replace(session, tail, 0, user("x"))
    assert contents(session) == [user("a"), user("b")]


def test_nothing_read_and_damage_are_no_suffix(open_db, tmp_path):
    db = open_db(path=tmp_path / "damaged")
    session = kept(db)
    session.extend([user(c) for c in "abc"])
    tail = read_tail(ref_of(session))
    assert not replace(session, tail, 3, user("x"))
    damage(session, 2)
    assert not replace(session, read_tail(ref_of(session)), 0, user("x"))
    assert replace(session, read_tail(ref_of(session)), 2, user("x"))


def test_of_two_who_replace_the_same_suffix_one_wins(db):
    session = kept(db)
    session.extend([user(c) for c in "abc"])
    tail = read_tail(ref_of(session))
    done = together(
        db,
        lambda: replace(session, tail, 1, user("one")),
        lambda: replace(session, tail, 1, user("two")),
    )
    assert sorted(done) == [False, True]
    assert contents(session)[1:] == [user("one" if done[0] else "two")]


def test_a_whole_history_is_overwritten_whatever_it_is(open_db, tmp_path):
    db = open_db(path=tmp_path / "damaged")
    session = kept(db)

    def overwrite(*messages: dict[str, Any]) -> None:
        store_of(session).transact(Overwrite(ref_of(session), prepared(session, *messages)))

    overwrite()
    assert not session.exists()
    overwrite(user("a"), user("b"))
    damage(session, 1)
    revision = session.revision
    overwrite(user("c"))
    assert contents(session) == [user("c")]
    assert session.revision == revision + 1
    overwrite()
    overwrite()
    assert contents(session) == []
    assert session.revision == revision + 2


def test_what_is_expired_at_the_beginning_goes_for_good(db):
    session = kept(db)
    state = {"mood": "calm"}
    session.state.update(state)
    session.extend([user("secret"), user("secret, too"), user("c"), user(LARGE), user("d")])
    session.record("note", {})
    session.append(user("e"))
    revision = session.revision
    tail = read_tail(ref_of(session), 1)

    def expired(message: Any) -> bool:
        return "secret" in message["content"]

    assert replace(session, tail, 0, user("x"), expired=expired)
    assert contents(session) == [user("c"), user(LARGE), user("d"), None, user("x")]
    assert session.revision > revision
    assert session.state.all() == state
    assert kept(db).append(user("f")).seq == 6
    assert not any(b"secret" in value for value in rows(store_of(session)).values())


def test_a_fork_keeps_what_its_parent_lost(db):
    session = kept(db)
    session.extend([user("old"), user("b")])
    fork = session.fork("other")
    assert replace(session, read_tail(ref_of(session), 1), 0, expired=lambda _: True)
    assert contents(session) == []
    assert contents(fork) == [user("old"), user("b")]
    db.delete_session("other")
    assert not any(b"old" in value for value in rows(store_of(session)).values())


# --- age ------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, db: memcore.Database) -> None:
        self.us = 1_700_000_000_000_000
        db.engine.now_us = lambda: self.us


def expire(session: memcore.Session, since_us: int) -> int:
    gone, _ = store_of(session).transact(ExpireItems(ref_of(session), since_us))
    resume_removals(store_of(session))
    return gone


def test_old_items_are_left_out_and_removed(db):
    clock = Clock(db)
    session = kept(db)
    session.extend([user("secret"), fc("1")])
    clock.us += 10
    session.extend([fo("1"), user("new")])
    since = clock.us
    tail = read_tail(ref_of(session), since_us=since)
    assert [message_of(row) for row in tail.rows] == [fc("1"), fo("1"), user("new")]
    assert (tail.expired, tail.live, tail.complete) == (1, 3, True)
    assert not read_tail(ref_of(session), 2, since_us=since).complete
    assert expire(session, since) == 1
    assert expire(session, since) == 0
    assert contents(session) == [fc("1"), fo("1"), user("new")]
    assert [item.created_at * 1e6 for item in session] == [since - 10, since, since]
    assert not any(b"secret" in value for value in rows(store_of(session)).values())


def test_everything_may_be_old(db):
    clock = Clock(db)
    session = kept(db)
    session.extend([user("a"), fc("open")])
    since = clock.us + 1
    assert read_tail(ref_of(session), since_us=since).rows == []
    assert expire(session, since) == 2
    assert contents(session) == []
    assert expire(kept(db, "none"), since) == 0


def test_old_ones_behind_younger_ones_stay(db):
    clock = Clock(db)
    session = kept(db)
    clock.us += 10
    session.append(user("young"))
    since = clock.us
    clock.us -= 10
    session.append(user("the clock was set back"))
    assert len(read_tail(ref_of(session), since_us=since).rows) == 2
    assert expire(session, since) == 0


def test_nothing_is_replaced_read_only(db, path):
    kept(db).append(user())
    with memcore.open(path, read_only=True) as reader:
        session = kept(reader)
        with pytest.raises(ReadOnlyError):
            ReplaceTail(ref_of(session), read_tail(ref_of(session)), 0, [])
        with pytest.raises(ReadOnlyError):
            ExpireItems(ref_of(session), 1)
        with pytest.raises(ReadOnlyError):
            TakeLast(ref_of(session))


# --- many at once ---------------------------------------------------------------------------------


class Recalled:
    """A session's last items through a cache of its own."""

    def __init__(self, session: memcore.Session, *, most_bytes: int = 1 << 20) -> None:
        self.ref = ref_of(session)
        self.cache = DecodedCache(lambda messages: messages, most_bytes=most_bytes)

    def last(self, count: int | None = None) -> Any:
        return asyncio.run(self.cache.last(self.ref, count))


def last(recall: Recalled, count: int | None = None) -> Any:
    found = recall.last(count)
    return None if found is None else found[0]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(1, 40)),
        st.tuples(st.just("undo"), st.integers(1, 30)),
        st.tuples(st.just("event"), st.just(0)),
        st.tuples(st.just("fork"), st.integers(0, 50)),
        st.tuples(st.just("delete"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 60)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.sampled_from([0, 900, 1 << 20]))
def test_what_is_remembered_is_what_is_stored(steps, most_bytes):
    with memcore.open(":memory:") as db:
        session, number = kept(db), 0
        recall = Recalled(session, most_bytes=most_bytes)
        for step, size in steps:
            if step == "extend":
                number += size
                session.extend([user(f"{number - n} {'é' * n}") for n in range(size)])
            elif step == "undo" and session.exists():
                session.undo(size)
            elif step == "event":
                session.record("note", {"n": number})
            elif step == "fork" and session.exists():
                number += 1
                session = session.fork(f"s{number}")
                recall = Recalled(session, most_bytes=most_bytes)
            elif step == "delete":
                db.delete_session(session.id)
            elif step == "read":
                read_tail(ref_of(session), size)
            stored = list(session)
            found, complete = recall.last(size)
            assert complete == (size >= len(stored))
            tail = stored[-size:] if size else []
            assert found == [each.message for each in tail if each.kind != 7]
            assert last(recall) == [each.message for each in stored if each.kind != 7]
            assert 0 <= recall.cache.weight <= most_bytes


def test_copies_are_handed_out(db):
    session = kept(db)
    session.append({"role": "user", "content": [{"type": "input_text", "text": "a"}]})
    recall = Recalled(session)
    for _ in range(3):
        (found,) = last(recall)
        assert found == {"role": "user", "content": [{"type": "input_text", "text": "a"}]}
        found["content"][0]["text"] = "changed"
        found["content"].append(1)
        found["role"] = None


@pytest.mark.parametrize(
    "odd", [user("\ud800"), user(LARGE), {"n": 1 << 70}], ids=["surrogate", "large", "integer"]
)
def test_what_is_not_regular_takes_a_look_of_its_own(db, odd):
    session = kept(db)
    session.extend([user("a"), odd])
    assert last(Recalled(session)) is None
    assert contents(session) == [user("a"), odd]


def test_damage_is_seen_until_it_is_remembered_whole(open_db, tmp_path):
    db = open_db(path=tmp_path / "damaged")
    session = kept(db)
    session.extend([user("a"), user("b"), user("c")])
    recall = Recalled(session)
    assert len(last(recall)) == 3
    damage(session, 2)
    assert len(last(recall)) == 3
    assert last(Recalled(session)) is None


def test_no_more_is_remembered_than_was_said(db):
    session = kept(db)
    recall = Recalled(session, most_bytes=3000)
    for n in range(9):
        session.append(user(f"{n}" * 900))
        assert len(last(recall, 1)) == 1
        assert 900 < recall.cache.weight <= 3000
    assert len(last(recall)) == 9
    assert recall.cache.weight <= 3000


def test_what_all_remember_together_is_bounded(db, monkeypatch):
    monkeypatch.setattr("memcore.session.read._ALL_BYTES", 4000)
    recalls = []
    for n in range(8):
        session = kept(db, f"s{n}")
        session.append(user("x" * 900))
        recalls.append(Recalled(session))
        assert len(last(recalls[-1])) == 1
    assert sum(recall.cache.weight for recall in recalls) <= 4000
    assert recalls[-1].cache.weight > 0
    assert recalls[0].cache.weight == 0
    assert len(last(recalls[0])) == 1


def test_blobs_beyond_a_commit_are_replaced_too(db):
    session = kept(db)
    huge = user("x" * (BLOB_INLINE_COMMIT_BYTES_MAX + 1))
    session.append(user("a"))
    ready = prepared(session, huge)
    closure = ReplaceTail(ref_of(session), read_tail(ref_of(session)), 0, ready)
    done, _ = store(closure)
    assert done
    assert contents(session) == [huge]


def test_an_undone_item_tells_its_own_tokens(db):
    """Also where the older part of the history stands in blocks behind the head."""
    session = kept(db)
    for n in range(60):  # each fork and undo begins another segment
        session.extend([user("x" * (4 * n)), user("gone")])
        session.undo(1)
    expected = [item.tokens for item in session.items()][-1]
    assert session.undo(1)[0].tokens == expected


def test_rows_that_are_none_are_none_of_ours():
    def never(_):
        raise AssertionError

    assert open_messages([(None, b"v")], b"k", 1, b"\x01\x00", never) is None
    assert open_messages([(b"k" + bytes(8), None)], b"k", 0, b"\x01\x00", never) is None
