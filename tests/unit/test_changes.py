"""Changes between two snapshots of a file, against a comparison of all rows."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.errors import ClosedError, CorruptStoreError
from memcore.store.changes import ChangeFeed, SnapshotLostError
from memcore.store.datafile import REDO_KEY
from memcore.store.pages import leaves_apart

SIZES = st.sampled_from([0, 1, 40, 900, 2000, 2100, 5000, 20_000, 70_000])
"""Of values: some share a page, some have pages of their own."""


def rows_of(db: memcore.Database) -> dict[bytes, bytes]:
    """All rows but the redo slots, which are written in place."""
    found = dict(db._engine.store.read(lambda txn: list(txn.raw.cursor().iternext())))
    found.pop(REDO_KEY, None)
    return found


def applied(before: dict[bytes, bytes], changes) -> dict[bytes, bytes]:
    """``before`` with the changes; they come in key order, and none is in vain."""
    found, last = dict(before), b""
    for key, value in changes:
        if key == REDO_KEY:
            continue
        assert key > last
        last = key
        assert found.get(key) != value
        if value is None:
            del found[key]
        else:
            found[key] = value
    return found


@pytest.fixture
def db():
    with memcore.open(":memory:") as made:
        yield made


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 400), st.one_of(st.none(), SIZES)), max_size=60),
        min_size=1,
        max_size=6,
    )
)
def test_they_lead_from_each_snapshot_to_the_next(steps):
    with memcore.open(":memory:") as db:
        store = db._engine.store
        feed = ChangeFeed(store.environment())
        known: dict[bytes, bytes] = {}
        for number, step in enumerate(steps):

            def closure(txn, step=step, number=number):
                for at, size in step:
                    key = b"\x77" + at.to_bytes(2, "big") * (1 + at % 90)
                    if size is None:
                        txn.delete(key)
                    else:
                        txn.put(key, bytes([number, at % 251]) * (size // 2) + b"." * (size % 2))

            store.transact(closure)
            changes = feed.take()
            assert changes.is_whole == (not number)
            known = applied(known, changes)
            assert known == rows_of(db)
            feed.keep()
        assert feed.base == store.stats()["last_txnid"]
        assert list(feed.take()) == []


def test_only_pages_that_changed_are_read(db, monkeypatch):
    session = db.session("s")
    session.extend([{"role": "user", "content": f"{n} " + "x" * 500} for n in range(3000)])
    feed = ChangeFeed(db._engine.store.environment())
    whole, read = feed.take(), []
    page = type(whole)._page

    def noted(changes, number):
        read.append(number)
        return page(changes, number)

    monkeypatch.setattr(type(whole), "_page", noted)
    assert len(list(whole)) > 3000
    of_all = len(read)
    feed.keep()
    session.append({"role": "user", "content": "one more"})
    read.clear()
    assert 0 < len(list(feed.take())) < 10
    assert len(read) < 40 < of_all / 5


def test_a_snapshot_that_is_let_go_is_never_read_on(db):
    session = db.session("s")
    session.extend([{"role": "user", "content": "x" * 500} for _ in range(500)])
    env = db._engine.store.environment()
    feed = ChangeFeed(env)
    changes = iter(feed.take())
    next(changes)
    env.queue.call(lambda _: env.grow(), job=True)
    with pytest.raises(SnapshotLostError):
        list(changes)
    feed.keep()
    assert feed.base is None
    again = feed.take()
    assert again.is_whole
    assert applied({}, again) == rows_of(db)


def test_pages_are_kept_while_others_write(path):
    """A change that is read late is read as it was."""
    with memcore.open(path) as db:
        session = db.session("s")
        session.extend([{"role": "user", "content": f"{n} " + "x" * 300} for n in range(300)])
        feed = ChangeFeed(db._engine.store.environment())
        feed.take()
        feed.keep()
        session.append({"role": "user", "content": "seen"})
        then, changes = rows_of(db), feed.take()

        def write() -> None:
            for n in range(400):
                db.session(f"other {n}").append({"role": "user", "content": "y" * 3000})
            db.delete_session("s")

        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        found = dict(changes)
        assert found
        assert all(then.get(key) == value for key, value in found.items())


def test_a_map_that_grows_by_itself_loses_nothing(path):
    with memcore.open(path, map_bytes=1024**2) as db:
        feed = ChangeFeed(db._engine.store.environment())
        known: dict[bytes, bytes] = {}
        wholes = 0
        for n in range(12):
            db.session(f"s{n}").extend(
                [{"role": "user", "content": f"{n} {k} " + "x" * 2000} for k in range(100)]
            )
            changes = feed.take()
            wholes += changes.is_whole
            known = applied({} if changes.is_whole else known, changes)
            assert known == rows_of(db)
            feed.keep()
        assert 1 < wholes < 12


def test_a_copy_in_its_place_is_read_from_the_beginning(path):
    with memcore.open(path) as db:
        db.session("s").append({"role": "user", "content": "x"})
        feed = ChangeFeed(db._engine.store.environment())
        feed.take()
        feed.keep()
        db.copy_compact()
        assert feed.base is None
        changes = feed.take()
        assert changes.is_whole
        assert applied({}, changes) == rows_of(db)
        feed.keep()
        db.session("s").append({"role": "user", "content": "y"})
        assert not feed.take().is_whole
    with pytest.raises(ClosedError):
        feed.take()


def test_a_damaged_page_is_told(path):
    """The bytes are put back before anybody else reads them."""
    with memcore.open(path) as db:
        session = db.session("s")
        session.extend([{"role": "user", "content": "x" * 500} for _ in range(200)])
        changes = ChangeFeed(db._engine.store.environment()).take()
        tree = changes._new.tree
        assert tree.depth > 1
        for number in (tree.root, leaves_apart(changes._page, None, tree)[1][3]):
            with path.open("r+b", buffering=0) as file:
                whole = os.pread(file.fileno(), 4096, number * 4096)
                for damaged in (b"\xff" + whole[1:], whole[:12] + b"\xff\xff" + whole[14:]):
                    os.pwrite(file.fileno(), damaged, number * 4096)
                    try:
                        with pytest.raises(CorruptStoreError, match=f"page {number}"):
                            list(changes)
                    finally:
                        os.pwrite(file.fileno(), whole, number * 4096)
        assert applied({}, changes) == rows_of(db)
