"""View records: chained, bound to the history that they cover, found by their newest valid one."""

from __future__ import annotations

import dataclasses

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import seal_value
from memcore.errors import CorruptValueError
from memcore.rows.views import StoredView, read_view, resolve_view, view_chain, write_view
from messages import turns, user

pytestmark = pytest.mark.as_stored
"""Rows are written into a scope that no audit knows of."""


def view(number: int, parent: int, cut_seq: int, summary: str | None = "s") -> memcore.View:
    return memcore.View(
        number, parent, cut_seq, cut_seq, summary, (1, 2), "summarized", 9, 3, 1.5, "bytes/4"
    )


@pytest.fixture
def chained(db):
    """Three views of session 7 in scope 5, the third of them made by its fork 8."""
    stored = [
        StoredView(view(1, 0, 10), 111, 7, 0),
        StoredView(view(2, 1, 20), 222, 7, 7),
        StoredView(view(1, 2, 30, None), 333, 8, 7),
    ]
    for each in stored:
        db.engine.store.transact(lambda txn, each=each: write_view(txn, 5, each))
    yield stored
    for each in stored:
        key = keys.session_row(5, each.owner, keys.Row.VIEW, each.view.number)
        db.engine.store.transact(lambda txn, key=key: txn.delete(key))


def test_a_view_reads_as_it_was_written(db, chained):
    for each in chained:
        found = db.engine.store.read(
            lambda txn, each=each: read_view(txn, 5, each.owner, each.view.number)
        )
        assert found == each
    assert db.engine.store.read(lambda txn: read_view(txn, 5, 7, 9)) is None
    assert db.engine.store.read(lambda txn: read_view(txn, 6, 7, 1)) is None


def test_the_chain_goes_through_the_parents_of_a_fork(db, chained):
    found = db.engine.store.read(lambda txn: list(view_chain(txn, 5, 8, 1)))
    assert found == chained[::-1]


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ({10: 111, 20: 222, 30: 333}, 2),
        ({10: 111, 20: 222, 30: 999}, 1),
        ({10: 111, 20: 222}, 1),
        ({10: 111}, 0),
        ({10: 999, 20: 222}, 1),
        ({}, None),
    ],
)
def test_the_newest_view_whose_prefix_is_live_applies(db, chained, hashes, expected):
    found = db.engine.store.read(lambda txn: resolve_view(txn, 5, 8, 1, hashes.get))
    assert found == (None if expected is None else chained[expected])


def test_views_are_values(session):
    session.extend(turns(6))
    session.compact(lambda _: "s", force=True)
    (found,) = session.views()
    assert (found.status, found.summary, found.covered, found.cut_seq) == ("summarized", "s", 9, 9)
    assert found.tokens_after < found.tokens_before
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.summary = "changed"


def test_a_lost_view_is_reported_by_check(open_db):
    db = open_db()
    session = db.session("chat")
    session.extend(turns(6))
    session.compact(lambda _: "s", force=True)
    log = session._ref.log
    key = keys.session_row(log.scope, log.session, keys.Row.VIEW, 1)
    db.engine.store.transact(lambda txn: txn.delete(key))
    assert any("view" in finding for finding in db.check())
    with memcore.open(db.path) as fresh:
        assert fresh.session("chat").context().summary is None
        assert fresh.session("chat").append(user()).seq == 13
    db.delete_session("chat")


def test_a_view_that_is_its_own_ancestor_is_damage():
    """Its checksum can be right: the chain must end all the same."""
    key = keys.session_row(1, 2, Row.VIEW, 3)
    body = (
        b'{"chain":1,"parent":3,"parent_owner":2,"cut_seq":4,"covered":4,"summary":"s","pinned":[],'
        b'"status":"summarized","tokens_before":9,"tokens_after":1,"created_at":1.5}'
    )
    rows = {key: seal_value(key, body)}
    with pytest.raises(CorruptValueError, match="malformed"):
        list(view_chain(rows, 1, 2, 3))
