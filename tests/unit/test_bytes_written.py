"""What an append writes: a handful of rows and a few KiB, however long the session has grown."""

from __future__ import annotations

import pytest

import memcore
from memcore.limits import INDEX_PAGE_RECORDS, INDEX_TAIL_RECORDS
from memcore.store.transaction import RawTxn, WriteTxn
from messages import call, result, user


class Meter:
    """Rows and bytes that go through the write transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = self.bytes = 0
        drop = WriteTxn.drop

        def measured(txn: WriteTxn) -> RawTxn | None:
            self.rows += len(txn.puts)
            self.bytes += sum(len(key) + size for key, size in txn.puts.items())
            return drop(txn)

        monkeypatch.setattr(WriteTxn, "drop", measured)

    def of(self, change) -> tuple[int, int]:
        self.rows = self.bytes = 0
        change()
        return self.rows, self.bytes


@pytest.fixture
def meter(monkeypatch):
    return Meter(monkeypatch)


@pytest.fixture
def fast(open_db):
    return open_db(durability="none")


def appends(meter: Meter, session: memcore.Session, count: int) -> list[tuple[int, int]]:
    """Rows and bytes of each of so many appends."""
    return [meter.of(lambda: session.append(user("a line of text"))) for _ in range(count)]


def test_an_append_writes_item_index_page_and_head(meter, fast):
    session = fast.session("chat")
    session.append(user())
    rows, size = meter.of(lambda: session.append(user()))
    assert rows == 3
    assert size < 700


def test_the_bytes_of_an_append_are_flat(meter, fast):
    """Over one whole block of the index at 32 items, at 5,000 and at 20,000."""
    session = fast.session("chat")
    session.append(user())
    measured = []
    for length in (INDEX_PAGE_RECORDS, 5 * INDEX_PAGE_RECORDS, 20 * INDEX_PAGE_RECORDS):
        session.extend([user("a line of text")] * (length - len(session)))
        measured.append(appends(meter, session, INDEX_PAGE_RECORDS))
    for each in measured:
        sizes = sorted(size for _, size in each)
        assert sizes[-2] < 1_500 + INDEX_TAIL_RECORDS * 24  # all but the one that seals a block
        assert sum(rows > 3 for rows, _ in each) <= 1
    totals = [sum(size for _, size in each) for each in measured]
    assert max(totals) < 1.05 * min(totals)


def test_undo_and_append_for_ever_does_not_grow(meter, fast):
    session = fast.session("chat")
    session.extend([user("a line of text")] * 100)

    def again() -> None:
        session.undo()
        session.append(user("a line of text"))

    costs = [meter.of(again)[1] for _ in range(5_000)]
    assert max(costs[-INDEX_PAGE_RECORDS:]) <= 1.05 * max(costs[:INDEX_PAGE_RECORDS])
    assert max(meter.of(lambda: session.append(user())) for _ in range(3))[0] <= 4


def test_segments_grow_by_blocks_not_by_the_head(meter, fast):
    """Every kept item makes a segment of its own: the worst history there is."""
    session = fast.session("chat")
    sizes = []
    for _ in range(600):
        session.extend([user("kept"), user("taken back")])
        session.undo()
        sizes.append(meter.of(lambda: session.append(user("kept"))))
        session.append(user("taken back"))
        session.undo()
    late = [size for _, size in sizes[-100:]]
    assert max(late) < 4_000
    assert max(late) <= 1.1 * max(size for _, size in sizes[50:150])


def test_calls_and_results_write_no_rows_of_their_own(meter, fast):
    session = fast.session("chat")
    session.append(user())
    assert meter.of(lambda: session.append(call(*(f"c{n}" for n in range(8)))))[0] == 3
    assert meter.of(lambda: session.append(result("c3")))[0] == 3


def test_a_key_writes_one_row_more_and_a_retry_none(meter, fast):
    session = fast.session("chat")
    session.append(user())
    assert meter.of(lambda: session.append(user(), idempotency_key="k"))[0] == 4
    assert meter.of(lambda: session.append(user(), idempotency_key="k"))[0] == 0


def test_an_extend_writes_one_row_an_item(meter, fast):
    session = fast.session("chat")
    session.append(user())
    rows, _ = meter.of(lambda: session.extend([user()] * 100))
    assert rows <= 100 + 1 + 100 // INDEX_TAIL_RECORDS + 1


def test_a_fork_copies_nothing(meter, fast):
    session = fast.session("chat")
    session.extend([user("x" * 1_000)] * 2_000)
    rows, size = meter.of(lambda: session.fork("fork"))
    assert rows <= 6
    assert size < 2_000


def test_reading_writes_nothing(meter, fast):
    session = fast.session("chat")
    session.extend([user()] * 10)

    def read() -> None:
        list(session)
        session.context(1_000)
        session.tail(3)
        fast.check()
        fast.stats()

    assert meter.of(read) == (0, 0)
