"""Times to live of MemcoreStore: ends, refreshes, sweeps, the thread that sweeps."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest
from langgraph.store.base import SearchOp

import memcore
from memcore.adapters.langgraph import MemcoreStore
from memcore.errors import InvalidOptionError, StoreFullError

MINUTE_US = 60_000_000


class Clock:
    def __init__(self, db):
        self.us = 1_700_000_000_000_000
        db.engine.now_us = lambda: self.us

    def pass_minutes(self, minutes):
        self.us += int(minutes * MINUTE_US)


@pytest.fixture
def clock(db):
    return Clock(db)


def embedded(texts):
    return [[float(len(text)), 1.0] for text in texts]


def rows_of(db):
    return [key for key, _ in db.scope().kv("langgraph.store").scan() if key != "#"]


def keys(items):
    return [item.key for item in items]


def put_two(store):
    store.put(("a",), "short", {}, ttl=1)
    store.put(("a",), "long", {})
    store.put(("b",), "short", {}, ttl=1)


def test_what_has_expired_is_shown_until_it_is_swept(db, clock):
    store = MemcoreStore(db, order="created")
    assert store.supports_ttl
    put_two(store)
    clock.pass_minutes(2)
    assert store.get(("a",), "short", refresh_ttl=False) is not None
    assert keys(store.search((), refresh_ttl=False)) == ["short", "long", "short"]
    assert store.list_namespaces() == [("a",), ("b",)]
    assert store.sweep_ttl() == 2
    assert store.sweep_ttl() == 0
    assert keys(store.search(())) == ["long"]
    assert store.list_namespaces() == [("a",)]
    store.delete(("a",), "long")
    assert rows_of(db) == []


def test_what_has_expired_is_omitted_if_that_is_asked_for(db, clock):
    store = MemcoreStore(db, order="created", ttl={"omit_expired": True})
    put_two(store)
    clock.pass_minutes(1)
    assert store.get(("a",), "short") is None
    assert keys(store.search((), limit=1)) == ["long"]
    assert keys(store.search((), filter={"x": None})) == ["long"]
    assert store.list_namespaces() == [("a",)]
    assert store.list_namespaces(max_depth=1, suffix=["b"]) == []
    assert store.sweep_ttl() == 2


@pytest.mark.parametrize("omit", [True, False])
def test_it_ends_on_the_millisecond(db, clock, omit):
    store = MemcoreStore(db, order="created", ttl={"omit_expired": omit, "refresh_on_read": False})
    store.put(("a",), "k", {}, ttl=0.5)
    clock.us += 29_999_999
    assert store.get(("a",), "k") is not None
    assert store.sweep_ttl() == 0
    clock.us += 1
    assert (store.get(("a",), "k") is None) == omit
    assert store.sweep_ttl() == 1
    assert store.get(("a",), "k") is None


@pytest.mark.parametrize("read", ["get", "search", "aget", "asearch"])
@pytest.mark.parametrize(
    "case",
    [
        (None, None, True),
        (None, False, False),
        ({"refresh_on_read": False}, None, False),
        ({"refresh_on_read": False}, True, True),
        ({"omit_expired": True}, None, True),
    ],
)
def test_reading_lets_an_item_live_on(db, clock, read, case):
    ttl, refresh, lives = case
    store = MemcoreStore(db, order="created", ttl=ttl)
    store.put(("a",), "k", {}, ttl=10)
    arguments = (("a",), "k") if "get" in read else (("a",),)
    for _ in range(3):
        clock.pass_minutes(4)
        found = getattr(store, read)(*arguments, refresh_ttl=refresh)
        if read[0] == "a":
            found = asyncio.run(found)
    assert (store.sweep_ttl() == 0) == lives


def test_only_what_a_search_returns_lives_on(db, clock):
    store = MemcoreStore(db, order="created")
    for at in range(4):
        store.put(("a",), str(at), {"n": at}, ttl=10)
    clock.pass_minutes(6)
    assert keys(store.search(("a",), limit=1, offset=1)) == ["1"]
    assert keys(store.search(("a",), filter={"n": 2})) == ["2"]
    clock.pass_minutes(6)
    assert store.sweep_ttl() == 2
    assert keys(store.search(("a",))) == ["1", "2"]


def test_a_refresh_too_small_to_matter_is_not_written(db, clock):
    store = MemcoreStore(db, order="created")
    store.put(("a",), "k", {}, ttl=60)
    closures = db.stats()["closures"]
    clock.us += 900_000
    store.get(("a",), "k")
    assert db.stats()["closures"] == closures
    clock.us += 100_000
    store.get(("a",), "k")
    assert db.stats()["closures"] == closures + 1
    clock.pass_minutes(60)
    assert store.sweep_ttl() == 1


def test_a_refresh_does_not_bring_a_deleted_item_back(db, clock):
    store = MemcoreStore(db, order="created")
    store.put(("a",), "k", {}, ttl=60)
    clock.pass_minutes(1)
    transact = store._kv.transact

    def deleted_before(fn, **options):
        other.delete(("a",), "k")
        return transact(fn, **options)

    other = MemcoreStore(db, order="created")
    store._kv.transact = deleted_before
    assert store.get(("a",), "k") is not None
    assert other.get(("a",), "k") is None
    assert rows_of(db) == []


def test_the_default_is_for_items_without_their_own(db, clock):
    store = MemcoreStore(db, order="created", ttl={"default_ttl": 5, "omit_expired": True})
    store.put(("a",), "default", {})
    store.put(("a",), "own", {}, ttl=10)
    store.put(("a",), "ever", {}, ttl=None)
    store.put(("a",), "never", {}, ttl=0)
    assert keys(store.search(("a",), refresh_ttl=False)) == ["default", "own", "ever"]
    clock.pass_minutes(5)
    assert keys(store.search(("a",), refresh_ttl=False)) == ["own", "ever"]
    clock.pass_minutes(5)
    assert keys(store.search(("a",), refresh_ttl=False)) == ["ever"]
    assert store.sweep_ttl() == 3


def test_an_update_brings_its_own_time(db, clock):
    store = MemcoreStore(db, order="created")
    store.put(("a",), "k", {}, ttl=1)
    store.put(("a",), "k", {"n": 1})
    clock.pass_minutes(2)
    assert store.sweep_ttl() == 0
    store.put(("a",), "k", {"n": 2}, ttl=3)
    store.put(("a",), "k", {"n": 3}, ttl=1)
    clock.pass_minutes(1)
    assert store.sweep_ttl() == 1
    assert rows_of(db) == []


def test_what_is_put_over_an_expired_item_is_new(db, clock):
    store = MemcoreStore(db, order="created", ttl={"omit_expired": True})
    store.put(("a",), "k", {}, ttl=1)
    store.put(("a",), "l", {})
    clock.pass_minutes(1)
    store.put(("a",), "k", {})
    item = store.get(("a",), "k")
    assert item.created_at == item.updated_at
    assert keys(store.search(("a",))) == ["l", "k"]


def test_a_sweep_goes_in_pieces_and_takes_vectors_along(db, clock):
    store = MemcoreStore(db, index={"dims": 2, "embed": embedded})
    for at in range(150):
        store.put((str(at % 7),), str(at), {"n": at}, ttl=1)
    big = {"text": "x" * 400_000}
    store.put(("big",), "1", big, ttl=1)
    store.put(("big",), "2", big, ttl=1)
    clock.pass_minutes(1)
    before = db.stats()["closures"]
    assert asyncio.run(store.asweep_ttl()) == 152
    assert db.stats()["closures"] == before + 4
    assert rows_of(db) == []


def test_expired_vectors_take_no_place_in_a_ranking(db, clock):
    store = MemcoreStore(
        db, index={"dims": 2, "embed": embedded, "fields": ["t"]}, ttl={"omit_expired": True}
    )
    store.put(("a",), "near", {"t": "xx"}, ttl=1)
    store.put(("a",), "far", {"t": "x" * 50})
    clock.pass_minutes(1)
    assert keys(store.batch([SearchOp(("a",), None, 1, 0, "xx")])[0]) == ["far"]


# --- the sweeper --------------------------------------------------------------------------------


class Swept:
    """Counts sweeps and lets a test wait for them."""

    def __init__(self, store, *errors):
        self.count = threading.Semaphore(0)
        self.errors = list(errors)
        self.sweep = store.sweep_ttl
        store._sweeper._sweep = self

    def __call__(self):
        self.count.release()
        if self.errors:
            raise self.errors.pop(0)
        return self.sweep()

    def wait(self):
        assert self.count.acquire(timeout=30)


def test_the_sweeper_sweeps_until_it_is_stopped(db, clock):
    store = MemcoreStore(db, order="created", ttl={"sweep_interval_minutes": 1e-5})
    store.put(("a",), "k", {}, ttl=1)
    clock.pass_minutes(1)
    swept = Swept(store)
    done = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is done
    swept.wait()
    swept.wait()
    assert rows_of(db) == []
    assert store.stop_ttl_sweeper()
    assert done.result(timeout=30) is None
    assert store.stop_ttl_sweeper()
    again = store.start_ttl_sweeper(1e-5)
    assert again is not done
    store.close()
    assert again.result(timeout=30) is None


def test_to_cancel_its_future_ends_the_sweeper(db):
    store = MemcoreStore(db, order="created", ttl={"default_ttl": 1})
    done = store.start_ttl_sweeper()
    assert done.cancel()
    thread = store._sweeper._run.thread
    thread.join(timeout=30)
    assert not thread.is_alive()
    with pytest.raises(CancelledError):
        done.result()


def test_the_sweeper_outlives_a_full_device_and_says_so(db, caplog):
    store = MemcoreStore(db, order="created", ttl={"default_ttl": 1})
    swept = Swept(store, StoreFullError("no space"))
    store.start_ttl_sweeper(1e-5)
    swept.wait()
    swept.wait()
    assert store.stop_ttl_sweeper()
    assert "trying again later" in caplog.text
    assert "no space" in caplog.text


def test_a_sweeper_is_not_to_run_all_the_time(db):
    store = MemcoreStore(db, order="created", ttl={"default_ttl": 1})
    with pytest.raises(InvalidOptionError, match="above 0"):
        store.start_ttl_sweeper(-1)


def test_an_item_that_was_lost_is_no_hindrance(db, clock):
    store = MemcoreStore(db, order="created")
    put_two(store)
    kv = db.scope().kv("langgraph.store")
    for key, _ in list(kv.scan(prefix="O")):
        kv.delete(key)
    assert store.get(("a",), "short") is None
    store.delete(("a",), "short")
    store.put(("b",), "short", {"n": 2}, ttl=5)
    assert store.get(("b",), "short").value == {"n": 2}
    clock.pass_minutes(2)
    assert store.sweep_ttl() == 0
    assert store.get(("b",), "short").value == {"n": 2}


def test_numbers_do_not_come_again_when_the_counter_is_lost(db):
    store = MemcoreStore(db, order="created")
    put_two(store)
    db.scope().kv("langgraph.store").delete("#")
    store.put(("other",), "k", {"n": 1})
    assert keys(store.search(("a",))) == ["short", "long"]
    assert keys(store.search(("other",))) == ["k"]
    store.put(("other",), "l", {"n": 1})
    assert keys(store.search(())) == ["short", "long", "short", "k", "l"]


def test_letting_items_live_on_takes_no_room_that_is_kept_for_deletions(db, clock, monkeypatch):
    store = MemcoreStore(db, order="created")
    put_two(store)
    asked = []
    queue = type(db.engine.store.environment().queue)
    call = queue.call

    def watched(self, fn, *, job=False, makes_room=False):
        asked.append(makes_room)
        return call(self, fn, job=job, makes_room=makes_room)

    monkeypatch.setattr(queue, "call", watched)
    clock.pass_minutes(0.5)
    store.search(("a",))
    assert asked == [False]


def test_the_sweeper_ends_with_its_database(tmp_path):
    db = memcore.open(tmp_path / "other")
    store = MemcoreStore(db, order="created", ttl={"default_ttl": 1})
    db.close()
    assert store.start_ttl_sweeper(1e-5).result(timeout=30) is None


def test_without_a_ttl_nothing_is_swept(db):
    store = MemcoreStore(db, order="created")
    assert store.start_ttl_sweeper().done()
    assert store.stop_ttl_sweeper()


def test_a_read_of_a_user_who_opts_out_meanwhile_refreshes_nothing(db, clock, monkeypatch):
    scope = db.scope(user="u")
    store = MemcoreStore(scope, ttl={"default_ttl": 60, "refresh_on_read": True})
    store.put(("a",), "k", {"x": 1}, ttl=1)
    clock.pass_minutes(0.5)
    read = store._read

    def opting_out(plan):
        found = read(plan)
        scope.opt_out_memory()
        return found

    monkeypatch.setattr(store, "_read", opting_out)
    assert store.get(("a",), "k").value == {"x": 1}
    monkeypatch.undo()
    assert store.get(("a",), "k") is None
