"""Histories that are opened from their end: what lies before it still counts."""

from __future__ import annotations

import gc

import pytest

import memcore
from memcore.log import history
from messages import assistant, call, result, user


@pytest.fixture(autouse=True)
def short_ends(monkeypatch):
    """Open from the end whatever is longer than sixteen items."""
    monkeypatch.setattr(history, "RECENT_RECORDS", 8)


def reopened(db, name, **options):
    """The session as a handle sees it that has read nothing yet."""
    gc.collect()
    return db.session(name, **options)


def fill(db, name, *first):
    session = db.session(name)
    session.extend([*first, *(user(f"turn {at}") for at in range(40))])
    del session
    return reopened(db, name)


def test_a_fork_at_an_earlier_item_counts_what_it_shares(db):
    parent = fill(db, "p", call("early"))
    opened = parent.append(call("late")).seq
    parent.append(result("late"))
    fork = reopened(db, "p").fork("f", at=opened)
    assert [found.call_id for found in fork.open_calls] == ["early", "late"]
    receipt = fork.append(result("late"))
    assert receipt.open_calls == 1
    assert fork.tokens == sum(item.tokens for item in fork.items())


def test_a_fork_with_another_policy_counts_by_it(db):
    session = db.session("p", orphans="keep")
    session.extend([result("lost"), *(user() for _ in range(40))])
    del session
    fork = reopened(db, "p", orphans="keep").fork("f", policy="seed")
    assert fork.tokens > reopened(db, "p").tokens  # ``seed`` counts orphans


def test_a_late_result_behind_an_undo_in_the_same_commit(db):
    session = fill(db, "s", user(), call("early"))
    with session.batch() as batch:
        batch.extend([user("x" * 500), user("taken back")])
        batch.undo(1)
        batch.append(result("early"))
    assert session.open_calls == []
    assert session.tokens == sum(item.tokens for item in session.items())


def test_a_result_for_a_call_before_the_end_is_no_orphan(db):
    session = fill(db, "s", call("early"))
    assert session.append(result("early")).open_calls == 0
    assert session.find_call("early").result_seqs == (42,)


def test_undo_and_rewind_below_the_end(db):
    session = fill(db, "s", call("early"))
    session.rewind(3)
    assert [found.call_id for found in session.open_calls] == ["early"]
    assert len(session.undo(2)) == 2
    assert len(session) == 1


def test_a_context_reaches_beyond_the_end_if_the_budget_does(db):
    session = fill(db, "s", {"role": "system", "content": "be brief"})
    few = session.context(60)
    assert few.messages[0]["content"] == "be brief"
    assert few.tokens <= 60 < session.context(200).tokens
    assert len(session.context().messages) == 41


def test_compaction_is_due_by_the_same_count(db):
    session = fill(db, "s", {"role": "system", "content": "be brief"})
    session.append(assistant())
    assert session.needs_compaction(max_items=40)
    assert not session.needs_compaction(max_items=41)
    assert session.compact(memcore.extractive).status == "summarized"
    assert not reopened(db, "s").needs_compaction()
