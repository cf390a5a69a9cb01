"""Session: appending, reading, taking back, batches, idempotency, forks, large items."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

import memcore
from memcore import limits
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value, seal_value
from memcore.log.idempotency import carry_requests
from memcore.session.session import ref_of
from messages import assistant, call, messages_of, result, texts, turns, user

# --- appending and reading ------------------------------------------------------------------------


def test_reading_an_unknown_session_writes_nothing(db, session):
    before = db.stats()["entries"]
    assert (len(session), session.revision, session.tokens) == (0, 0, 0)
    assert (session.open_calls, session.tail(5), list(session.items()), session.views()) == (
        ([],) * 4
    )
    assert session.context(100).messages == []
    assert not session.needs_compaction()
    assert not session.exists()
    assert session.undo() == []
    assert session.compact().status == "nothing"
    assert not session.uncompact()
    assert db.stats()["entries"] == before
    assert list(db.sessions()) == []


def test_receipt_says_where_the_session_stands(session):
    first = session.append(user("one"))
    assert (first.seq, first.revision, first.open_calls, first.appended) == (1, 1, 0, 1)
    assert first.tokens == session.tokens
    second = session.extend([call("c1", "c2"), result("c2")])
    assert (second.seq, second.revision, second.open_calls, second.appended) == (3, 2, 1, 2)
    assert second.tokens == sum(item.tokens for item in session)


def test_items_come_back_as_they_were(session):
    odd = {
        "role": "user",
        "content": "naïve 😀 \x00 \ud800",
        "big": 2**80,
        "tiny": 5e-324,
        "minus": -0.0,
        "none": None,
        "deep": [[[{"a": [True, False]}]]],
        "ünknown": {"": ""},
    }
    session.append(odd, meta={"source": "test", "n": 1}, request_id="r-1")
    item = session.get(1)
    assert item.message == odd
    assert str(item.message["minus"]) == "-0.0"
    assert (item.meta, item.request_id) == ({"source": "test", "n": 1}, "r-1")


def test_an_appended_dict_can_be_changed_afterwards(session):
    message = user("before")
    session.append(message)
    message["content"] = "after"
    session.get(1).message["content"] = "changed by a reader"
    assert session.context().messages == [user("before")]
    assert session.get(1).message == user("before")


def test_extend_stores_all_or_nothing(session):
    with pytest.raises(memcore.OrphanResultError) as caught:
        session.extend([user(), result("lost"), assistant()])
    assert (caught.value.call_id, caught.value.position) == ("lost", 1)
    assert len(session) == 0
    session.extend([user(), call("c"), result("c")])
    assert len(session) == 3


def test_extend_of_nothing_changes_nothing(db, session):
    assert session.extend([]).appended == 0
    assert not session.exists()
    session.append(user())
    assert session.extend([]).revision == 1
    with pytest.raises(memcore.RevisionConflict):
        session.extend([], expected_revision=7)


def test_extend_takes_a_generator_and_keeps_nothing_if_it_fails(session):
    def broken():
        yield user()
        raise KeyError("the source broke")

    with pytest.raises(KeyError, match="the source broke"):
        session.extend(broken())
    assert len(session) == 0
    assert session.extend(user(str(n)) for n in range(3)).appended == 3


def test_orphans_kept_are_stored_and_left_out_of_contexts(db):
    session = db.session("loose", orphans="keep")
    session.extend([user(), result("lost"), assistant()])
    assert len(session) == 3
    context = session.context()
    assert context.messages == [user(), assistant()]
    assert [(r.action, r.seq, r.call_id) for r in context.repairs] == [("orphan", 2, "lost")]


def test_tail_get_and_ranges(session):
    session.extend(turns(5))
    assert [i.seq for i in session.tail(3)] == [8, 9, 10]
    assert [i.seq for i in session.tail(99)] == list(range(1, 11))
    assert session.tail(0) == []
    assert [i.seq for i in session.items(3, 6)] == [3, 4, 5]
    assert [i.seq for i in session.items(9)] == [9, 10]
    assert list(session.items(6, 3)) == []
    assert list(session.items(500)) == []
    with pytest.raises(memcore.NotFoundError):
        session.get(11)
    with pytest.raises(memcore.NotFoundError):
        session.get(0)


def test_items_skips_over_undone_seqs(session):
    session.extend(turns(3))
    session.undo(2)
    session.extend(turns(1))
    assert [i.seq for i in session] == [1, 2, 3, 4, 7, 8]
    assert [i.seq for i in session.items(5)] == [7, 8]
    assert [i.seq for i in session.items(0, 6)] == [1, 2, 3, 4]
    with pytest.raises(memcore.NotFoundError):
        session.get(5)


def test_items_goes_on_by_seq_while_others_write(session):
    count = limits.ITEMS_PAGE
    session.extend([user(str(n)) for n in range(count + 10)])
    reading = session.items()
    seen = [next(reading).seq for _ in range(count)]  # the whole first page
    session.undo(5)
    session.extend([user("new")] * 3)
    seen += [item.seq for item in reading]
    assert seen == [*range(1, count + 6), *range(count + 11, count + 14)]


def test_items_ends_quietly_when_the_session_is_deleted_meanwhile(db, session):
    session.extend([user()] * (limits.ITEMS_PAGE + 1))
    reading = session.items()
    next(reading)
    db.delete_session("chat")
    assert len(list(reading)) == limits.ITEMS_PAGE - 1


# --- calls ----------------------------------------------------------------------------------------


def test_find_call_tells_where_it_was_made_and_answered(session):
    session.extend([user(), call("a", "b"), result("b"), assistant()])
    assert session.find_call("b") == memcore.CallRecord("b", 2, (3,), open=False)
    assert session.find_call("a") == memcore.CallRecord("a", 2, (), open=True)
    session.append(result("b", "again"))
    assert session.find_call("b").result_seqs == (3, 5)
    with pytest.raises(memcore.NotFoundError):
        session.find_call("c")


def test_find_call_gives_the_latest_with_that_id(session):
    session.extend([call("a"), result("a"), user(), call("a")])
    assert session.find_call("a") == memcore.CallRecord("a", 4, (), open=True)
    session.undo()
    assert session.find_call("a") == memcore.CallRecord("a", 1, (2,), open=False)


def test_open_calls_are_those_of_the_receipt(db):
    session = db.session("reused")
    session.extend([user(), call("c1", "c2"), result("c2"), user()])
    assert session.append(call("c1")).open_calls == len(session.open_calls) == 2
    assert session.append(result("c1")).open_calls == len(session.open_calls) == 1


def test_open_calls_without_ids_are_counted_one_by_one(db):
    session = db.session("gemini", policy="gemini")
    ask = {"functionCall": {"name": "f", "args": {}}}
    session.append({"role": "user", "parts": [{"text": "go"}]})
    session.append({"role": "model", "parts": [ask, ask]})
    answer = {"functionResponse": {"name": "f", "response": {}}}
    receipt = session.append({"role": "user", "parts": [answer]})
    assert receipt.open_calls == len(session.open_calls) == 1
    assert [(c.call_id, c.name, c.seq) for c in session.open_calls] == [("f", "f", 2)]


def test_abandon_lifts_an_open_call_and_a_real_result_may_still_come(session):
    session.extend([user(), call("a", "b"), result("a")])
    assert [(c.call_id, c.name, c.seq) for c in session.open_calls] == [("b", "f", 2)]
    receipt = session.abandon("b")
    assert receipt.open_calls == 0
    context = session.context()
    assert [m.get("tool_call_id") for m in context.messages] == [None, None, "a", "b"]
    assert [(r.action, r.call_id) for r in context.repairs] == [("synthesized", "b")]
    session.append(result("b", "late"))
    assert session.context().messages[-1] == result("b", "late")
    assert [r.action for r in session.context().repairs] == []
    with pytest.raises(memcore.NotFoundError):
        session.abandon("b")


def test_every_open_call_can_be_abandoned(session):
    """Also one whose id was used again since: a call that nobody answers must not stay for ever."""
    session.extend([user(), call("a"), user(), call("a"), result("a"), assistant()])
    assert len(session.open_calls) == 1
    assert session.abandon("a").open_calls == 0
    assert session.open_calls == []


def test_undoing_an_abandon_opens_the_call_again(session):
    session.extend([user(), call("a")])
    session.abandon("a")
    session.undo()
    assert [c.call_id for c in session.open_calls] == ["a"]


# --- events ---------------------------------------------------------------------------------------


def test_events_are_in_the_log_but_cost_and_show_nothing(session):
    session.append(user())
    before = session.tokens
    receipt = session.record("planner", {"steps": [1, 2]}, meta={"a": 1}, request_id="r")
    assert (receipt.seq, receipt.tokens) == (2, before)
    item = session.get(2)
    assert item.kind is memcore.ItemKind.EVENT
    assert item.message == {"type": "planner", "payload": {"steps": [1, 2]}}
    assert session.context().messages == [user()]


def test_an_event_between_call_and_result_disturbs_nothing(session):
    session.extend([user(), call("a")])
    session.record("hitl", "waiting")
    session.append(result("a"))
    context = session.context()
    assert [m["role"] for m in context.messages] == ["user", "assistant", "tool"]
    assert context.repairs == ()


# --- compare and set ------------------------------------------------------------------------------


def test_expected_revision_is_compared(session):
    assert session.append(user(), expected_revision=0).revision == 1
    with pytest.raises(memcore.RevisionConflict) as caught:
        session.append(user(), expected_revision=0)
    assert (caught.value.expected, caught.value.current) == (0, 1)
    for change in (
        lambda: session.undo(expected_revision=7),
        lambda: session.rewind(1, expected_revision=7),
        lambda: session.record("x", expected_revision=7),
    ):
        with pytest.raises(memcore.RevisionConflict):
            change()
    assert (len(session), session.revision) == (1, 1)


def test_a_conflict_on_a_new_session_creates_nothing(db, session):
    with pytest.raises(memcore.RevisionConflict):
        session.append(user(), expected_revision=3)
    assert list(db.sessions()) == []
    assert not session.exists()


def test_changes_that_change_nothing_keep_the_revision(session):
    session.append(user())
    session.rewind(1)
    assert session.revision == 1
    session.undo()
    session.undo()
    assert session.revision == 2


# --- undo and rewind ------------------------------------------------------------------------------


def test_undo_returns_what_it_took_off(session):
    session.extend([user("a"), call("c"), result("c"), user("b")])
    taken = session.undo(2)
    assert [(i.seq, i.message) for i in taken] == [(3, result("c")), (4, user("b"))]
    assert [c.call_id for c in session.open_calls] == ["c"]
    assert session.undo(99) != []
    assert len(session) == 0
    assert session.tokens == 0
    assert session.append(user("c")).seq == 5


def test_undone_seqs_are_never_used_again(session):
    seqs = []
    for _ in range(5):
        seqs.append(session.append(user()).seq)
        session.undo()
    assert seqs == [1, 2, 3, 4, 5]


def test_rewind_makes_a_seq_the_last(session):
    session.extend(turns(4))
    receipt = session.rewind(3)
    assert (receipt.seq, receipt.appended, len(session)) == (3, 0, 3)
    with pytest.raises(memcore.NotFoundError):
        session.rewind(5)
    assert session.append(user()).seq == 9
    session.rewind(0)
    assert (len(session), session.tokens, session.context().messages) == (0, 0, [])
    assert session.append(user("again")).seq == 10
    assert texts(session) == ["again"]


def test_a_result_after_undo_binds_to_the_call_that_is_left(session):
    session.extend([call("a"), result("a"), user(), call("a")])
    session.undo()
    session.append(result("a", "second"))
    assert session.find_call("a") == memcore.CallRecord("a", 1, (2, 5), open=False)


# --- batches --------------------------------------------------------------------------------------


def test_batch_is_one_change(session):
    session.extend(turns(2))
    with session.batch(expected_revision=1) as batch:
        batch.undo(2)
        batch.append(user("new"))
        batch.record("note", 1)
        batch.extend([call("c"), result("c")])
        assert len(session) == 4
    assert batch.receipt == memcore.Receipt(8, 2, session.tokens, 0, 4)
    assert [item.seq for item in batch.undone] == [3, 4]
    assert [i.seq for i in session] == [1, 2, 5, 6, 7, 8]


def test_batch_with_an_error_in_the_block_stores_nothing(session):
    session.append(user())

    def change() -> None:
        with session.batch() as batch:
            batch.undo()
            batch.append(user("new"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert texts(session) == ["hi"]


@pytest.mark.parametrize("first", ["undo", "append"])
def test_batch_that_fails_at_its_end_stores_nothing(session, first):
    session.extend([user("a"), call("c")])

    def change() -> None:
        with session.batch() as batch:
            if first == "append":
                batch.append(result("c"))
                batch.undo(2)  # takes its own append off, and the call
            else:
                batch.undo()
            batch.append(result("c"))

    with pytest.raises(memcore.OrphanResultError):
        change()
    assert (len(session), session.revision) == (2, 1)
    assert len(session.open_calls) == 1
    assert session.append(result("c")).open_calls == 0


def test_batch_undo_takes_off_what_the_batch_appended(session):
    session.append(user("a"))
    with session.batch() as batch:
        batch.append(user("b"))
        batch.undo(2)
        batch.append(user("c"))
    assert [i.message["content"] for i in batch.undone] == ["a", "b"]
    assert [i.seq for i in session] == [3]


def test_batch_conflict_stores_nothing(session):
    session.append(user("a"))

    def change() -> None:
        with session.batch(expected_revision=0) as batch:
            batch.undo()
            batch.append(user("b"))

    with pytest.raises(memcore.RevisionConflict):
        change()
    assert texts(session) == ["a"]


def test_a_batch_may_extend_by_nothing(session):
    session.append(user("a"))
    with session.batch() as batch:
        batch.undo()
        batch.extend([])
    assert batch.receipt == memcore.Receipt(0, 2, 0, 0, 0)
    assert session.rewind(0).seq == 0
    assert session.append(user("b")).seq == 2


def test_empty_batch_changes_nothing(db, session):
    with session.batch():
        pass
    with session.batch() as batch:
        batch.undo()
    assert list(db.sessions()) == []
    assert batch.undone == []


# --- idempotency ----------------------------------------------------------------------------------


def test_the_same_request_is_carried_out_once(session):
    first = session.append(user("a"), idempotency_key="k")
    session.append(user("b"))
    assert session.append(user("a"), idempotency_key="k") == first
    assert texts(session) == ["a", "b"]
    assert session.revision == 2


@pytest.mark.parametrize(
    "other",
    [
        lambda s: s.append(user("b"), idempotency_key="k"),
        lambda s: s.extend([user("a"), user("b")], idempotency_key="k"),
        lambda s: s.append(user("a"), idempotency_key="k", meta={"x": 1}),
        lambda s: s.append(user("a"), idempotency_key="k", request_id="r"),
        lambda s: s.record("user", "a", idempotency_key="k"),
    ],
    ids=["content", "more", "meta", "request_id", "event"],
)
def test_the_same_key_for_another_request_is_refused(session, other):
    session.append(user("a"), idempotency_key="k")
    with pytest.raises(memcore.DuplicateRequestError):
        other(session)
    assert len(session) == 1


def test_an_event_and_a_message_of_equal_json_are_two_requests(db):
    session = db.session("s", shape="keep")
    session.append({"type": "plan", "payload": 1}, idempotency_key="k")
    with pytest.raises(memcore.DuplicateRequestError):
        session.record("plan", 1, idempotency_key="k")


def test_a_request_counts_only_while_its_items_are_live(session):
    session.append(user("a"), idempotency_key="k")
    session.undo()
    assert session.append(user("a"), idempotency_key="k").seq == 2
    session.undo()
    assert session.append(user("b"), idempotency_key="k").seq == 3
    with pytest.raises(memcore.DuplicateRequestError):
        session.append(user("a"), idempotency_key="k")


def test_a_retry_wins_over_an_outdated_revision(session):
    first = session.append(user("a"), idempotency_key="k", expected_revision=0)
    assert session.append(user("a"), idempotency_key="k", expected_revision=0) == first


def request_row(db, session):
    """Where the only request of a session lies, and its body."""
    log = ref_of(session).resolve()
    start = keys.session_rows(log.scope, log.session, Row.REQUEST)
    ((key, value),) = db.engine.store.read(lambda txn: list(txn.scan(start, keys.after(start))))
    return key, open_value(key, value)[1]


def test_a_receipt_lies_as_memcore_wrote_it_from_the_first(db, session):
    """Files of format 1 hold receipts of these bytes; they are read for ever."""
    first = session.append(user("a"), idempotency_key="k")
    key, body = request_row(db, session)
    fields = "<QQQIQ"
    numbers = (first.seq, first.revision, first.tokens, first.open_calls, first.appended)
    assert body[40:] == struct.pack(fields, *numbers)
    told = memcore.Receipt(1, 7, first.tokens, 3, 1)
    old = body[:40] + struct.pack(fields, *told)
    db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, old)))
    assert session.append(user("a"), idempotency_key="k") == told


def test_a_receipt_of_a_later_version_is_read_as_far_as_it_is_known(db, session):
    first = session.append(user("a"), idempotency_key="k")
    key, body = request_row(db, session)
    later = body + b"what is not known yet"
    db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, later)))
    assert session.append(user("a"), idempotency_key="k") == first
    assert db.check() == []
    with pytest.raises(memcore.DuplicateRequestError):
        session.append(user("b"), idempotency_key="k")

    place = key[1:9], key[9:17]
    scope, number = (int.from_bytes(part, "big") for part in place)
    db.engine.store.transact(
        lambda txn: carry_requests(txn, scope, number, number + 1, moved={1: 5}, now_ms=0)
    )
    start = keys.session_rows(scope, number + 1, Row.REQUEST)
    ((new, value),) = db.engine.store.read(lambda txn: list(txn.scan(start, keys.after(start))))
    carried = open_value(new, value)[1]
    assert carried[40:48] == (5).to_bytes(8, "little")
    assert (carried[:40], carried[48:]) == (later[:40], later[48:])
    db.engine.store.transact(lambda txn: txn.delete(new))  # there is no such session


def test_a_receipt_that_lacks_a_field_is_damaged(db, session):
    session.append(user("a"), idempotency_key="k")
    key, body = request_row(db, session)
    db.engine.store.transact(lambda txn: txn.put(key, seal_value(key, body[:-1])))
    with pytest.raises(memcore.CorruptValueError, match="receipt of a request"):
        session.append(user("a"), idempotency_key="k")


def test_keys_belong_to_one_session(db, session):
    session.append(user("a"), idempotency_key="k")
    assert db.session("other").append(user("b"), idempotency_key="k").seq == 1
    assert db.session("chat", user="bob").append(user("c"), idempotency_key="k").seq == 1
    fork = session.fork("fork")
    assert fork.append(user("d"), idempotency_key="k").seq == 2
    assert texts(fork) == ["a", "d"]


def test_a_key_is_forgotten_with_its_session(db, session):
    session.append(user("a"), idempotency_key="k")
    db.delete_session("chat")
    assert session.append(user("b"), idempotency_key="k").seq == 1


def test_any_text_is_a_key(session):
    for key in ("\x00", "\ud800", "ü" * 4_096, "a\x00b", "a"):
        first = session.append(user(), idempotency_key=key)
        assert session.append(user(), idempotency_key=key) == first
    assert len(session) == 5


# --- forks ----------------------------------------------------------------------------------------


def test_fork_shares_the_prefix_and_then_goes_its_own_way(session):
    session.extend([user("a"), call("c")])
    fork = session.fork("fork")
    session.append(result("c", "parent"))
    fork.append(result("c", "child"))
    assert texts(session) == ["a", None, "parent"]
    assert texts(fork) == ["a", None, "child"]
    assert (fork.revision, session.revision) == (2, 2)
    assert session.find_call("c").result_seqs == fork.find_call("c").result_seqs == (3,)


def test_fork_at_a_seq_and_at_nothing(session):
    session.extend(turns(3))
    assert texts(session.fork("f4", at=4)) == ["q0", "a0", "q1", "a1"]
    empty = session.fork("f0", at=0)
    assert (len(empty), empty.context().messages) == (0, [])
    assert empty.append(user("x")).seq == 1
    with pytest.raises(memcore.NotFoundError):
        session.fork("f7", at=7)
    with pytest.raises(memcore.InvalidOptionError):
        session.fork("f4")
    with pytest.raises(memcore.NotFoundError):
        empty.fork("g", at=3)


def test_fork_of_a_fork_at_an_item_of_the_grandparent(session):
    session.extend(turns(40))
    child = session.fork("child", at=50)
    child.extend(turns(5, start=100))
    grandchild = child.fork("grandchild", at=33)
    assert grandchild.append(user("g")).seq == 34
    assert texts(grandchild) == [*texts(session)[:33], "g"]
    great = grandchild.fork("great")
    assert texts(great) == texts(grandchild)


def test_undo_across_the_fork_point_leaves_the_parent_alone(session):
    session.extend(turns(4))
    fork = session.fork("fork")
    fork.append(user("x"))
    assert [i.seq for i in fork.undo(4)] == [6, 7, 8, 9]
    assert fork.append(user("y")).seq == 10
    assert texts(fork) == ["q0", "a0", "q1", "a1", "q2", "y"]
    assert len(session) == 8
    fork.rewind(0)
    assert len(fork) == 0
    assert fork.append(user("z")).seq == 11


def test_fork_under_another_policy(session):
    session.extend([user(), call("c"), user("late"), result("c")])
    fork = session.fork("fork", policy="openai_responses")
    assert (fork.policy, session.policy) == ("openai_responses", "openai_chat")
    assert fork.append(user()).tokens == fork.tokens


def test_deleting_parent_then_child_leaves_no_rows(db, session):
    names = db.session("other").append(user()) and db.delete_session("other")
    assert names
    before = db.stats()["entries"]
    session.extend([user("x" * 40_000 + str(n % 3)) for n in range(6)])
    child = session.fork("child", at=4)
    child.append(user("y" * 40_000))
    grandchild = child.fork("grandchild", at=2)
    grandchild.append(user("z"))
    other = session.fork("other", at=0)
    assert db.delete_session("chat")
    assert not db.delete_session("chat")
    assert db.delete_session("child")
    assert [len(grandchild), len(other), len(session), len(child)] == [3, 0, 0, 0]
    assert grandchild.get(1).message["content"].endswith("0")
    assert db.check() == []
    assert db.delete_session("other")
    assert db.delete_session("grandchild")
    assert db.stats()["entries"] == before


def test_a_name_can_be_used_again_while_forks_share_the_old_rows(db, session):
    session.extend(turns(2))
    fork = session.fork("fork")
    db.delete_session("chat")
    assert session.append(user("new")).seq == 1
    assert texts(session) == ["new"]
    assert len(fork) == 4
    db.delete_session("fork")
    assert texts(session) == ["new"]


def test_a_handle_follows_its_name_when_the_session_is_made_anew(db, open_db, session):
    session.extend(turns(2))
    other = open_db().session("chat")
    assert len(other) == 4
    db.delete_session("chat")
    assert len(other) == 0
    db.session("chat", policy="anthropic").append(user("new"))
    assert texts(other) == ["new"]
    assert other.append(assistant()).seq == 2


# --- policy and counter ---------------------------------------------------------------------------


def test_set_policy_is_seen_by_every_handle_and_counts_anew(db, open_db):
    session = db.session("chat", orphans="keep")
    other = open_db().session("chat")
    session.extend([user(), result("lost"), assistant()])
    assert len(other) == 3
    session.set_policy("seed")
    assert other.policy == "seed"
    assert db.check() == []
    entry = next(db.sessions())
    assert (entry.policy, entry.tokens) == ("seed", session.tokens)
    assert session.append(user()).tokens == other.tokens


def test_set_policy_in_a_batch_with_other_changes(session):
    session.append(user())
    session.set_policy("langchain")
    session.append(user())
    assert session.policy == "langchain"
    assert len(session) == 2


def test_an_existing_session_keeps_policy_and_counter(db):
    db.session("a", policy="anthropic", counter="bytes/2").append(user())
    assert db.session("a").policy == "anthropic"
    for options in ({"policy": "gemini"}, {"counter": "bytes/4"}):
        with pytest.raises(memcore.PolicyMismatchError):
            db.session("a", **options)


def test_counts_of_two_counters_are_never_mixed(db, open_db):
    """Someone creates the session with another counter after our item was counted."""

    def count(_: str) -> int:
        if not db.session("chat").exists():
            db.session("chat", counter="bytes/2").append(user())
        return 1_000

    other = open_db(counter=memcore.CallableCounter(count, name="thousand"))
    other.session("chat").append(user())
    assert {item.tokens for item in db.session("chat")} == {db.session("chat").get(1).tokens}


DELETE = "import memcore, sys\nwith memcore.open(sys.argv[1]) as db: db.delete_session('chat')"


def test_a_session_deleted_by_another_process_is_counted_by_the_default_counter(db, path):
    db.session("chat", counter="bytes/2").append(user("x" * 100))
    session = db.session("chat")
    assert session.tokens > 50
    subprocess.run([sys.executable, "-c", DELETE, path], check=True)
    session.append(user("x" * 100))
    entry = next(db.sessions())
    assert entry.tokens == db.session("other").append(user("x" * 100)).tokens


def test_a_counter_that_is_gone_is_named(db, path):
    counter = memcore.CallableCounter(len, name="letters")
    db.session("chat", counter=counter).append(user())
    code = (
        "import memcore, sys\nwith memcore.open(sys.argv[1]) as db:\n"
        "    try: db.session('chat').append({'role': 'user'})\n"
        "    except memcore.CounterUnavailableError as e: print('letters' in str(e))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, path], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "True"
    db.delete_session("chat")  # the check at the end has no such counter


# --- large items ----------------------------------------------------------------------------------

SIZES = {
    "inline": 1_000,
    "blob": limits.ITEM_INLINE_BYTES_MAX + 1,
    "staged": limits.BLOB_INLINE_COMMIT_BYTES_MAX + 1,
    "chunks": 3 * limits.BLOB_CHUNK_BYTES + 17,
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_large_items_read_like_small_ones(session, size):
    content = os.urandom(size // 2).hex()
    session.extend([user(content), call("c"), result("c", content)])
    assert messages_of(session) == [user(content), call("c"), result("c", content)]
    assert session.context().messages[0] == user(content)
    assert next(i.message for i in session.undo(3)) == user(content)


def test_equal_large_items_are_stored_once_and_leave_with_the_last(db):
    big = user("x" * 300_000)
    db.session("a").append(user())
    before = db.stats()["entries"]
    db.session("a").append(big)
    once = db.stats()["entries"]
    db.session("b").extend([big, big])
    assert db.stats()["entries"] - once < once - before + 6
    db.delete_session("b")
    assert db.session("a").get(2).message == big
    db.delete_session("a")
    assert db.check() == []


def test_a_refused_large_item_leaves_nothing_behind_that_check_would_mind(db, session):
    session.append(user())
    with pytest.raises(memcore.OrphanResultError):
        session.append(result("lost", "x" * 300_000))
    assert len(session) == 1
    assert db.check() == []


def test_rows_are_taken_once_whatever_stands_out(tmp_path, monkeypatch):
    from memcore.limits import ITEM_INLINE_BYTES_MAX
    from memcore.store.transaction import Snapshot

    db = memcore.open(tmp_path / "damaged.memcore")  # not one that is checked behind the test
    session = db.session("s")
    large = user("x" * (ITEM_INLINE_BYTES_MAX + 1))
    session.extend([large if at % 2 else user(str(at)) for at in range(120)])
    scope, number = db.engine.store.read(ref_of(session).find)
    gone = (7, 8, 9, 40, 41, 100)  # of every sort, alone and beside each other

    def remove(txn):
        for seq in gone:
            txn.delete(keys.session_row(scope, number, Row.ITEM, seq))

    db.engine.store.transact(remove)
    taken = []
    take = Snapshot.take

    def counting(self, start, count):
        taken.append(count)
        return take(self, start, count)

    monkeypatch.setattr(Snapshot, "take", counting)
    found = session.tail(120, skip_corrupt=True)
    assert [item.seq for item in found] == [seq for seq in range(1, 121) if seq not in gone]
    assert sum(taken) <= 120
    with pytest.raises(memcore.CorruptValueError, match="item 7 "):
        session.tail(120)
    db.close()


def test_a_child_of_a_fork_waits_for_nobody_who_made_a_part_of_a_session(open_db, monkeypatch):
    """As another thread that was in the middle of it when the process forked."""
    from memcore import session as sessions
    from memcore.session.state import SessionState

    made = []

    def slow(ref):
        if not made:  # the child's own, while the parent's is half made
            made.append(os.fork())
            if not made[0]:
                os._exit(0 if isinstance(db.session("b").state, SessionState) else 1)
        return SessionState(ref)

    db = open_db()
    monkeypatch.setattr(sessions, "SessionState", slow, raising=False)
    assert isinstance(db.session("a").state, SessionState)
    assert os.waitpid(made[0], 0)[1] == 0


def test_two_threads_get_the_same_part_of_a_session(open_db):
    from concurrent.futures import ThreadPoolExecutor

    db = open_db()
    with ThreadPoolExecutor(8) as pool:
        for at in range(50):
            session = db.session(str(at))
            assert len({id(each) for each in pool.map(lambda s: s.state, [session] * 8)}) == 1
