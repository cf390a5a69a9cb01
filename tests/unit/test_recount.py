"""Another counter for a session: every item counts by it, whatever happens before and after."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import memcore
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import encode_json
from memcore.limits import INDEX_PAGE_RECORDS, TOKEN_PAGE_COUNTS
from memcore.log import history as log_history
from memcore.model import ItemKind
from memcore.session import recount as recounting
from memcore.session.session import ref_of
from memcore.store.commit import Leader
from memcore.tokens import get_counter
from messages import assistant, call, recount, result, system, turns, user
from together import together


def by_words(name: str = "words", at_each: Any = None) -> memcore.CallableCounter:
    def count(text: str) -> int:
        if at_each is not None:
            at_each(text)
        return len(text.split())

    return memcore.CallableCounter(count, name=name)


def agrees(session: memcore.Session, counter: Any) -> None:
    """Each item, each total and each context count by one counter."""
    by = get_counter(counter)
    assert session.counter == by.id
    expected = [
        0
        if item.kind == ItemKind.EVENT and item.message["type"] != "abandon"
        else item.tokens
        if item.kind == ItemKind.EVENT  # what the synthetic answer of a given-up call may cost
        else by.count_message(item.message, encode_json(item.message)[0])
        for item in session
    ]
    assert [item.tokens for item in session] == expected
    assert [item.tokens for item in session.tail(3)] == expected[-3:]
    assert session.tokens == sum(expected)
    assert session.context().tokens == recount(session.context().messages, counter)


def pages(db: memcore.Database, name: str) -> list[tuple[int, int]]:
    """``(recount, first position)`` of the token pages that lie under a session."""

    def read(txn: Any) -> list[tuple[int, int]]:
        place = db.session(name)._ref.find(txn)
        start = keys.session_rows(*place, Row.TOKENS)
        return [keys.split_token_page(key) for key, _ in txn.scan(start, keys.after(start))]

    return db.engine.store.read(read)


@pytest.fixture
def session(db) -> memcore.Session:
    found = db.session("s")
    found.extend([system(), *turns(5), call("a"), result("a")])
    found.record("note", {"text": "does not count"})
    found.append(user("large " * 10_000))
    return found


def test_all_items_count_by_the_new_counter(session, db):
    before, revision = session.tokens, session.revision
    chain = db.session("s")._ref.peek().chain
    told: list[tuple[int, int]] = []
    done = session.recount("bytes/3", progress=lambda *found: told.append(found))
    assert done == memcore.RecountResult(15, "bytes/4", "bytes/3", before, session.tokens)
    assert told == [(15, 15)]
    assert session.revision == revision
    assert db.session("s")._ref.peek().chain == chain
    agrees(session, "bytes/3")
    agrees(memcore.open(db.path).session("s"), "bytes/3")
    session.append(user("more"))
    agrees(session, "bytes/3")
    assert session.recount("bytes/3").items == 0
    session.recount("bytes/4")
    agrees(session, "bytes/4")


def test_what_comes_and_goes_after_a_recount(session, db):
    session.recount("bytes/3")
    other = memcore.open(db.path).session("s")
    for change in (
        lambda: session.undo(1),
        lambda: other.extend(turns(3)),
        lambda: session.rewind(5),
        lambda: other.append(call("b")),
        lambda: session.append(result("b", "done " * 50)),
        lambda: other.set_policy("langchain"),
        lambda: session.abandon(other.append(call("c")) and "c"),
        lambda: session.rewind(0),
        lambda: session.append(user("anew")),
    ):
        change()
        agrees(session, "bytes/3")
        agrees(other, "bytes/3")
        assert db.check() == []
    taken = session.undo(1)
    assert [item.tokens for item in taken] == [-(-len(encode_json(user("anew"))[0]) // 3)]


@pytest.mark.parametrize("records", [1, 3, 2048])
def test_a_long_history_has_many_pages(db, monkeypatch, records):
    monkeypatch.setattr(log_history, "RECENT_RECORDS", records)
    session = db.session("s")
    count = 2 * TOKEN_PAGE_COUNTS + INDEX_PAGE_RECORDS // 2
    session.extend([user("x" * (n % 40)) for n in range(count)])
    session.recount("bytes/3")
    assert [first for _, first in pages(db, "s")] == [0, TOKEN_PAGE_COUNTS, 2 * TOKEN_PAGE_COUNTS]
    session.extend([user("y" * (n % 40)) for n in range(40)])
    with memcore.open(db.path) as fresh:
        found = fresh.session("s")
        assert found.context(400).tokens <= 400
        assert found.tail(1)[0].tokens == recount([user("y" * 39)], "bytes/3")
        agrees(found, "bytes/3")
    session.rewind(TOKEN_PAGE_COUNTS + 1)
    agrees(session, "bytes/3")


# --- forks ----------------------------------------------------------------------------------------


def test_forks_keep_the_counter_that_they_were_made_with(session, db):
    old = session.fork("old")
    session.recount("bytes/3")
    inside, whole = session.fork("inside", at=6), session.fork("whole")
    deep = inside.fork("deep", at=3)
    for fork in (old, inside, whole, deep):
        fork.append(user("its own"))
    session.append(assistant("as well"))
    session.recount("bytes/2")
    for fork, counter in ((old, "bytes/4"), (inside, "bytes/3"), (whole, "bytes/3")):
        agrees(fork, counter)
    agrees(deep, "bytes/3")
    agrees(session, "bytes/2")
    assert len(pages(db, "s")) == 2  # the forks' and its own
    deep.recount("bytes/5")
    agrees(deep, "bytes/5")
    agrees(inside.fork("deeper", at=0), "bytes/3")
    assert pages(db, "inside") == []


def test_pages_that_no_fork_refers_to_are_replaced(session, db):
    for counter in ("bytes/3", "bytes/2", "bytes/3"):
        session.recount(counter)
        assert len(pages(db, "s")) == 1
    fork = session.fork("fork")
    session.recount("bytes/5")
    session.recount("bytes/6")
    assert len(pages(db, "s")) == 2
    fork.recount("bytes/5")
    session.recount("bytes/7")
    assert len(pages(db, "s")) == 1


def test_pages_of_an_owner_that_is_gone_stay_for_its_forks(session, db):
    session.recount("bytes/3")
    fork = session.fork("fork").fork("deep")
    db.delete_session("s")
    db.delete_session("fork")
    agrees(fork, "bytes/3")
    fork.append(user("on"))
    fork.recount("bytes/2")
    agrees(fork, "bytes/2")
    db.delete_session("deep")
    prefix = bytes((keys.Kind.SESSION,))
    assert db.engine.store.read(lambda txn: list(txn.scan(prefix, keys.after(prefix)))) == []


# --- views and requests ---------------------------------------------------------------------------


def test_contexts_stay_within_the_budget_with_a_summary(session):
    session.compact(lambda _: "a summary of words", keep_last=4)
    for counter in ("bytes/2", "bytes/7", by_words()):
        session.recount(counter)
        least = session.context()
        assert least.summary is not None
        assert least.tokens == recount(least.messages, counter)
        with pytest.raises(memcore.ContextOverflowError):
            session.context(10)
        assert session.context(least.tokens).messages == least.messages
    assert [view.counter for view in session.views()] == ["bytes/4"]
    session.extend(turns(5))
    session.compact(keep_last=2)
    assert [view.counter for view in session.views()] == ["bytes/4", "words"]
    assert session.uncompact()


def test_a_plan_from_before_a_recount_says_whose_counts_it_has(session):
    def summarize(_: memcore.SummaryRequest) -> str:
        session.recount("bytes/2")
        return "so far"

    done = session.compact(summarize, keep_last=3)
    assert done.view is not None
    assert done.view.counter == "bytes/4"
    assert done.view.tokens_before == done.plan.tokens_before
    agrees(session.fork("f"), "bytes/2")


def test_a_repeated_request_tells_no_tokens_of_another_counter(session):
    first = session.append(user("once"), idempotency_key="k")
    session.recount("bytes/2")
    again = session.append(user("once"), idempotency_key="k")
    assert again == first._replace(tokens=session.tokens)


# --- others at the same time ----------------------------------------------------------------------


def test_a_writer_that_never_rests_does_not_put_a_recount_off(session, db):
    other = memcore.open(db.path, counter=by_words()).session("s")
    seen: list[int] = []

    def meanwhile(_: str) -> None:
        if not (seen[-1:] == [0] or db.engine.store.environment().queue.led_here):
            seen.append(other.append(user("and more")).seq)

    counter = by_words(at_each=meanwhile)
    assert session.recount(counter).items == 15 + len(seen)
    assert len(seen) > 50
    seen.append(0)  # from now on it rests
    agrees(session, by_words())


@pytest.mark.parametrize("cut", [0, 3, 12])
def test_what_is_cut_and_grows_meanwhile_counts_right(session, db, cut):
    left = [lambda: session.rewind(cut), lambda: session.extend(turns(6))]

    def meanwhile(_: str) -> None:
        if left:
            left.pop(0)()

    other = memcore.open(db.path).session("s")
    other.recount(by_words(at_each=meanwhile))
    agrees(other, by_words())
    session = db.session("s", counter=by_words())
    agrees(session, by_words())
    assert len(session) == cut + 12


def test_a_session_that_is_deleted_or_replaced_meanwhile(session, db):
    gone = [lambda: db.delete_session("s")]

    def delete(_: str) -> None:
        if gone:
            gone.pop()()

    with pytest.raises(memcore.NotFoundError):
        session.recount(by_words(at_each=delete))
    db.session("s").extend(turns(2))

    def replace(_: str) -> None:
        if not gone:
            gone.append(lambda: None)
            db.delete_session("s")
            db.session("s").extend(turns(7))

    session.recount(by_words("other", at_each=replace))
    agrees(db.session("s"), by_words("other"))
    assert len(session) == 14


def test_a_recount_among_neighbours_in_one_commit(session, db):
    other = memcore.open(db.path).session("s")
    session.append(user("warm"))
    ref, by, apply = ref_of(session), get_counter("bytes/2"), recounting._apply
    counted = recounting._count(ref, recounting._Counted((0, 0)), by, None)
    before, done, after, fork = together(
        db,
        lambda: other.append(user("before")),
        lambda: db.engine.store.transact(lambda txn: apply(ref, txn, counted, by, 1)),
        lambda: session.append(user("after")),
        lambda: other.fork("f"),
    )
    assert before.seq + 1 == after.seq
    assert done.items == 17
    agrees(session, "bytes/2")
    agrees(other, "bytes/2")
    assert fork.counter == db.session("f").counter == "bytes/2"
    agrees(db.session("f"), "bytes/2")


def test_a_commit_that_fails_leaves_no_trace_of_a_recount_in_the_handles(session, db, monkeypatch):
    other = memcore.open(db.path).session("s")
    ref, by, apply = ref_of(session), get_counter("bytes/2"), recounting._apply
    counted = recounting._count(ref, recounting._Counted((0, 0)), by, None)

    def refuse(*_: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(Leader, "_commit", refuse)
        outcomes = together(
            db,
            lambda: db.engine.store.transact(lambda txn: apply(ref, txn, counted, by, 1)),
            lambda: session.append(user("lost")),
        )
    assert all(isinstance(outcome, memcore.StorageError) for outcome in outcomes)
    # Another change makes the epoch that the recount would have made.
    other.rewind(3)
    other.extend(turns(9))
    agrees(session, "bytes/4")
    agrees(other, "bytes/4")


def test_two_that_recount_at_once(session, db):
    barrier = threading.Barrier(2)
    waits = threading.local()

    def meet(_: str) -> None:
        if not hasattr(waits, "done"):
            waits.done = True
            barrier.wait(30)

    results = []
    others = [memcore.open(db.path).session("s") for _ in range(2)]
    threads = [
        threading.Thread(
            target=lambda at=at: results.append(others[at].recount(by_words(f"w{at}", meet)))
        )
        for at in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, last = sorted(results, key=lambda found: found.counter_before)
    assert (first.counter_before, last.counter_before) == ("bytes/4", first.counter)
    agrees(db.session("s", counter=by_words(last.counter)), by_words(last.counter))
    assert len(pages(db, "s")) == 1


def test_a_counter_that_fails_changes_nothing(session, db):
    def fail(text: str) -> None:
        if text == "a3":
            raise RuntimeError("no such word")

    with pytest.raises(RuntimeError):
        session.recount(by_words(at_each=fail))
    agrees(session, "bytes/4")
    assert pages(db, "s") == []
    wrong = memcore.CallableCounter(lambda _: 2**31, name="wrong")
    with pytest.raises(memcore.InvalidOptionError):
        session.recount(wrong)
    late = [lambda: session.append(user("a3"))]

    def append(text: str) -> None:  # fails in the transaction
        if late:
            late.pop()()
        fail(text)

    session.rewind(3)
    neighbour = memcore.open(db.path).session("s")
    with pytest.raises(RuntimeError):
        neighbour.recount(by_words(at_each=append))
    agrees(session, "bytes/4")


# --- lazily ---------------------------------------------------------------------------------------


def test_the_first_use_counts_anew_once(session, db, caplog):
    before = session.tokens
    with caplog.at_level(logging.INFO, "memcore"):
        lazy = db.session("s", counter="bytes/3", recount=True)
        assert lazy.exists()
        assert session.counter == "bytes/4"
        assert len(lazy) == 15
        agrees(lazy, "bytes/3")
        lazy.append(user("more"))
        agrees(db.session("s", counter="bytes/3", recount=True), "bytes/3")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    text = caplog.records[0].getMessage()
    assert f"15 items, {lazy.tokens - lazy.tail(1)[0].tokens} tokens by 'bytes/3'" in text
    assert f"instead of {before} by 'bytes/4'" in text


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.append(user("x")),
        lambda s: s.record("note"),
        lambda s: s.undo(),
        lambda s: s.rewind(3),
        lambda s: s.fork("f"),
        lambda s: s.compact(),
        lambda s: s.context(),
        lambda s: s.tokens,
        lambda s: s.counter,
        lambda s: s.set_policy("langchain"),
        lambda s: s.extend([]),
        lambda s: list(s.items()),
        lambda s: s.views(),
    ],
)
def test_every_use_is_a_first_use(session, db, use):
    with memcore.open(db.path, counter="bytes/3", recount=True) as lazy:
        use(lazy.session("s"))
    assert session.counter == "bytes/3"
    agrees(session, "bytes/3")


def test_without_recount_a_session_keeps_its_counter(session, db):
    with memcore.open(db.path, counter="bytes/3") as other:
        assert other.session("s").append(user("x")).tokens == session.tokens
        with pytest.raises(memcore.PolicyMismatchError, match="recount"):
            other.session("s", counter="bytes/3")
    with memcore.open(db.path, counter="bytes/3", recount=True) as other:
        assert other.session("s", recount=False).counter == "bytes/4"
        assert other.session("new").counter == "bytes/3"
        own = other.session("own", counter="bytes/5")
        own.append(user("x"))
        agrees(own, "bytes/5")
    agrees(session, "bytes/4")


def test_a_handle_that_asked_for_a_counter_tells_when_another_one_came(session, db):
    mine = db.session("s", counter="bytes/4")
    session.recount("bytes/3")
    for use in (lambda: mine.tokens, lambda: mine.append(user("x"))):
        with pytest.raises(memcore.PolicyMismatchError, match="recount"):
            use()
    mine.recount("bytes/2")
    agrees(mine, "bytes/2")
    agrees(session, "bytes/2")


def test_what_cannot_be_recounted(session, db):
    with memcore.open(db.path, read_only=True) as looking:
        with pytest.raises(memcore.ReadOnlyError):
            looking.session("s").recount("bytes/3")
        with pytest.raises(memcore.ReadOnlyError):
            looking.session("s", counter="bytes/3", recount=True)
    for options in ({"counter": "bytes/3", "read_only": True}, {}):
        with pytest.raises(memcore.InvalidOptionError):
            memcore.open(db.path, recount=True, **options)
    with pytest.raises(memcore.NotFoundError):
        db.session("missing").recount("bytes/3")
    with pytest.raises(memcore.InvalidOptionError):
        session.recount("gpt")
    empty = db.session("empty")
    empty.append(user())
    empty.undo()
    assert empty.recount("bytes/3").items == 0
    agrees(empty, "bytes/3")
    assert pages(db, "empty") == []


def test_a_damaged_item_does_not_take_the_others_along(damaged_item, caplog):
    caplog.set_level(logging.WARNING, "memcore")
    with memcore.open(damaged_item, counter="bytes/3", recount=True) as db:
        lazy = db.session("s")
        assert [item.seq for item in lazy.items(skip_corrupt=True)] == [1, 3]
        assert lazy.counter == "bytes/4"
        assert "session 's' keeps counter 'bytes/4': item 2" in caplog.text
        with pytest.raises(memcore.CorruptValueError):
            lazy.recount("bytes/3")
        with pytest.raises(memcore.CorruptValueError):
            len(db.session("s", counter="bytes/3"))


@pytest.fixture
def damaged_item(tmp_path):
    path = tmp_path / "damaged"
    with memcore.open(path, counter="bytes/4") as db:
        db.session("s").extend([user(), user(), user()])
        key = keys.session_row(*db.engine.store.read(db.session("s")._ref.find), Row.ITEM, 2)
        db.engine.store.transact(lambda txn: txn.delete(key))
    return path


def test_a_session_that_comes_later_is_recounted_then(db, path):
    with memcore.open(path) as other:
        lazy = other.session("s", counter="bytes/3", recount=True)
        assert len(lazy) == 0
        db.session("s").append(user())
        agrees(lazy, "bytes/3")


def test_a_counter_that_is_not_at_hand_any_more(db, path):
    db.session("s", counter=by_words()).extend(turns(3))
    with memcore.open(path) as other:
        with pytest.raises(memcore.CounterUnavailableError, match="recount=True"):
            other.session("s")
        lazy = other.session("s", counter="bytes/3", recount=True)
        agrees(lazy, "bytes/3")


def test_of_several_threads_all_wait_for_the_first(session, db):
    started, go = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        started.set()
        go.wait(30)

    lazy = db.session("s", counter=by_words(at_each=slow), recount=True)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(lazy.tokens)) for _ in range(3)]
    threads[0].start()
    started.wait(30)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_the_asynchronous_handle(session, db):
    async def main() -> None:
        async with memcore.aio.open(db.path, counter="bytes/3", recount=True) as other:
            lazy = other.session("s")
            assert (await lazy.tail(1))[0].seq == 15
            assert lazy.counter == "bytes/3"
            done = await lazy.recount("bytes/2")
            assert (done.counter_before, done.items) == ("bytes/3", 15)
            assert (await lazy.append(user("x"))).tokens == lazy.tokens

    asyncio.run(main())
    agrees(session, "bytes/2")
