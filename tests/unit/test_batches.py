"""Changes of several callers in one commit: what one of them does never shows in the others."""

from __future__ import annotations

from typing import Any

import pytest

import memcore
from memcore.blobs import StagedBlobLost
from memcore.limits import BLOB_INLINE_COMMIT_BYTES_MAX
from memcore.session.append import append_items, stage
from memcore.session.session import ref_of
from memcore.store.commit import Leader
from memcore.store.interface import MapMovedError
from messages import call, result, user
from together import together


def test_a_lost_blob_is_its_own_callers_trouble(db):
    session = db.session("s")
    session.append(user())
    large = [user("x" * (BLOB_INLINE_COMMIT_BYTES_MAX + 1))]
    change = append_items(ref_of(session), large)
    stage(ref_of(session), change.items)
    db.scope().blobs.collect()
    lost, small, back = together(
        db,
        lambda: db.engine.store.transact(change),
        lambda: session.append(user("small")),
        lambda: session.rewind(1),
    )
    assert isinstance(lost, StagedBlobLost)
    assert small.seq == 2
    assert back.seq == 1


def test_a_refused_result_leaves_its_neighbours_alone(db):
    session = db.session("s")
    session.append(call("c1"))
    orphan, answer, note = together(
        db,
        lambda: session.append(result("nobody")),
        lambda: session.append(result("c1")),
        lambda: session.record("note"),
    )
    assert isinstance(orphan, memcore.OrphanResultError)
    assert (answer.seq, note.seq) == (2, 3)


def test_a_failed_commit_leaves_no_trace_in_the_handles(db, monkeypatch):
    session, other = db.session("s"), memcore.open(db.path).session("s")
    session.extend([user(), user()])

    def refuse(*_: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Leader, "_commit", refuse)
        outcomes = together(
            db, lambda: session.set_policy("gemini"), lambda: session.append(user())
        )
    assert all(isinstance(outcome, memcore.StorageError) for outcome in outcomes)
    other.rewind(1)
    other.extend([user(), user()])
    assert session.policy == other.policy == "openai_chat"
    assert [item.seq for item in session] == [item.seq for item in other] == [1, 3, 4]


def test_two_handles_of_a_file_share_a_batch(db):
    one, two = db.session("s"), memcore.open(db.path).session("s")
    one.append(call("c1"))
    receipts = together(
        db, lambda: two.append(result("c1")), lambda: one.append(user()), lambda: two.undo(1)
    )
    assert [receipts[0].seq, receipts[1].seq] == [2, 3]
    assert [item.seq for item in one] == [item.seq for item in two] == [1, 2]


def test_deleted_and_made_anew_in_one_batch(db):
    session = db.session("s")
    session.extend([user("old"), user("old")])
    together(db, lambda: db.delete_session("s"), lambda: session.append(user("new")))
    assert [item.message["content"] for item in db.session("s")] == ["new"]


def test_whoever_holds_a_lock_does_not_wait_for_the_lead(db, monkeypatch):
    session = db.session("s")
    session.append(user())
    store, env = type(db.engine.store), db.engine.store.environment()
    seen = []
    honest = store.read

    def moved_once(self, fn, *, patient=True):
        if not patient and not seen:
            seen.append(session._ref.log.lock._is_owned())
            raise MapMovedError
        if patient and len(seen) == 1:
            seen.append(session._ref.log.lock._is_owned())
        return honest(self, fn, patient=patient)

    monkeypatch.setattr(store, "read", moved_once)
    assert len(session) == 1
    assert seen == [True, False]
    assert env.raw is not None


@pytest.mark.parametrize("count", [1, 500])
def test_appends_leave_no_circular_garbage(db, count):
    import gc

    session = db.session("s")
    session.append(user())
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            session.append(user())
        assert gc.collect() < 50
    finally:
        gc.enable()
