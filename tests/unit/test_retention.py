"""Rules and times of retention, and what a sweep leaves."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import memcore
from memcore import aio, blobs
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import FLAG_REWRITTEN
from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.retention import RETENTION_PRESETS, Retention, read_rules, retention_rules
from memcore.retention import rules as retention_module
from memcore.rows import names
from memcore.session.rewrite import rewrite_items
from memcore.session.session import ref_of
from memcore.wire.expire import EXPIRED_TEXT
from messages import assistant, call, result, system, texts, turns, user

START_US = 1_700_000_000_000_000
LONG = "a sentence that is worth more than what stands in its place later on"


class Clock:
    """Sets the time of a database, in seconds from its beginning on."""

    def __init__(self, db: memcore.Database) -> None:
        self._db = db
        self.set(0)

    def set(self, seconds: float) -> None:
        self.now = START_US / 1e6 + seconds
        self._db.engine.now_us = lambda: int(self.now * 1e6)


@pytest.fixture
def clock(db):
    return Clock(db)


def place_of(db, name="chat") -> tuple[int, int]:
    def look(txn: Any) -> tuple[int, int]:
        scope = names.scope_of(txn, "default", "default")
        return scope, names.session_of(txn, scope, name)

    return db.engine.store.read(look)


def index_rows(db) -> list[tuple[int, bytes]]:
    rows = (keys.expiry_row(0, b""), keys.expiry_row(2**63, b""))
    found = db.engine.store.read(lambda txn: [row for row, _ in txn.scan(*rows)])
    return [keys.split_expiry_row(row) for row in found]


def raw(db, seq: int, name="chat") -> bytes:
    key = keys.session_row(*place_of(db, name), Row.ITEM, seq)
    return db.engine.store.read(lambda txn: txn.get(key))


# --- items ----------------------------------------------------------------------------------------


def test_old_items_keep_their_place_and_calls(db, session, clock) -> None:
    session.append(system("be kind"))
    session.extend([user(LONG), call("c1"), result("c1", LONG * 3)], meta={"who": "x"})
    clock.set(100)
    session.extend([user("new"), assistant("new too")])
    before, checkpoint = session.context().messages, session.checkpoint("then")
    tokens = session.context().tokens
    db.retention.set([{"what": "items", "max_age_seconds": 50}])

    report = db.sweep()

    assert (report.items, report.complete, report.bytes > len(LONG) * 4) == (2, True, True)
    assert texts(session) == ["be kind", EXPIRED_TEXT, None, EXPIRED_TEXT, "new", "new too"]
    after = session.context()
    assert [m["role"] for m in after.messages] == [m["role"] for m in before]
    assert after.messages[2]["tool_calls"][0]["id"] == after.messages[3]["tool_call_id"] == "c1"
    assert (after.repairs, after.tokens <= tokens) == ((), True)
    assert session.get(2).meta is None
    assert raw(db, 4)[1] & FLAG_REWRITTEN
    assert list(session.checkpoints()) == [checkpoint]
    assert db.sweep().total == 0


def test_what_is_expired_is_not_in_the_row(db, session, clock) -> None:
    session.append(user("SECRET " * 20), meta={"note": "SECRET"})
    session.record("planner", {"plan": "SECRET"})
    session.append(user("SECRET" * 10_000))
    clock.set(10)
    scope, _ = place_of(db)
    db.retention.set([{"what": "items", "max_age_seconds": 1}])
    assert db.sweep().items == 3

    rows = db.engine.store.read(lambda txn: list(txn.scan(b"\x01", b"\xff")))
    assert not [key for key, value in rows if b"SECRET" in value]
    assert db.engine.store.read(lambda txn: blobs.check(txn, scope)) == []
    assert [key for key, _ in rows if key[0] in (Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS)] == []


def test_other_handles_and_forks_see_what_stays(db, open_db, session, clock) -> None:
    session.extend(turns(3))
    other, second = open_db(counter="bytes/4"), None
    second = other.session("chat")
    fork = session.fork("branch")
    fork.append(user("mine"))
    assert texts(second)[0] == texts(fork)[0] == "q0"
    clock.set(10)
    db.retention.set([{"what": "items", "max_age_seconds": 5}], app="default", session="chat")
    assert db.sweep().items == 6

    assert set(texts(second)) == {"."}
    assert texts(fork)[-1] == "mine"
    assert set(texts(fork)[:-1]) == {"."}
    assert (len(second.context().messages), len(fork.context().messages)) == (6, 7)
    assert second.undo(1)[0].message["content"] == "."
    other.close()


def test_what_was_remembered_decoded_is_forgotten(db, session) -> None:
    from memcore.session.read import DecodedCache

    session.extend(turns(3))
    fork = session.fork("branch")
    recalls = [
        partial(DecodedCache(lambda found: found, most_bytes=10**6).last, ref_of(each))
        for each in (session, fork)
    ]
    for last in recalls:
        assert asyncio.run(last(None))[0][0]["content"] == "q0"
    db.retention.set([{"what": "items", "keep_last": 0}], app="default", session="chat")
    assert db.sweep().items == 6
    for last in recalls:
        assert asyncio.run(last(None)) is None  # each row needs a look of its own


def test_items_of_a_parent_that_was_deleted_expire_too(db, session, clock) -> None:
    session.extend([user(LONG), assistant(LONG)])
    fork = session.fork("branch")
    db.delete_session("chat")
    clock.set(10)
    db.retention.set([{"what": "items", "max_age_seconds": 5}])
    assert db.sweep().items == 2
    assert texts(fork) == [EXPIRED_TEXT, EXPIRED_TEXT]


def test_the_last_items_stay(db, session, clock) -> None:
    session.extend(turns(10))
    db.retention.set([{"what": "items", "keep_last": 4}])
    assert db.sweep(dry_run=True).items == 16
    assert db.sweep().items == 16
    session.undo(2)
    session.append(user("later"))
    assert db.sweep().items == 0
    session.extend(turns(1, start=50))
    assert db.sweep().items == 1
    assert texts(session)[-4:] == ["a8", "later", "q50", "a50"]


def test_the_last_bytes_stay(db, session) -> None:
    session.extend([user("x" * 1000) for _ in range(10)])
    db.retention.set([{"what": "items", "max_bytes": 3500}])
    assert db.sweep().items == 7
    assert [len(text) for text in texts(session)][-4:] == [len(EXPIRED_TEXT), 1000, 1000, 1000]


@pytest.mark.parametrize(
    ("classes", "gone"),
    [
        ({"kinds": ["result"]}, {3, 5}),
        ({"tools": ["search"]}, {2, 3}),
        ({"tools": ["nothing"]}, set()),
        ({"types": ["tool_call"]}, {2, 4}),
        ({"types": ["planner"]}, {6}),
        ({"kinds": ["event", "user"]}, {1, 6}),
    ],
)
def test_classes_of_items(db, session, classes, gone) -> None:
    session.append(user(LONG))
    for name in ("search", "fetch"):
        message = call(f"c-{name}")
        message["tool_calls"][0]["function"] = {"name": name, "arguments": json.dumps([LONG])}
        session.extend([message, result(f"c-{name}", LONG)])
    session.record("planner", LONG)
    db.retention.set([{"what": "items", "keep_last": 0, **classes}])
    assert db.sweep().items == len(gone)
    assert {item.seq for item in session if LONG not in json.dumps(item.message)} == gone


def test_an_open_call_waits_and_pins_stay(db, session, clock) -> None:
    session.append(system(LONG))
    message = call("c1")
    message["tool_calls"][0]["function"]["arguments"] = '{"path": "secret"}'
    session.extend([user(LONG), message, user(LONG)])
    clock.set(10)
    db.retention.set([{"what": "items", "max_age_seconds": 5}])
    assert db.sweep().items == 2
    assert session.get(3).message == message
    session.append(result("c1", "fine"))
    assert db.sweep().items == 1
    assert session.get(3).message["tool_calls"][0]["function"]["arguments"] == "{}"
    assert texts(session)[0] == LONG


def test_an_open_call_holds_nothing_up_behind_it(db, session) -> None:
    session.append(call("c1"))
    session.extend([user(LONG) for _ in range(4500)])
    db.retention.set([{"what": "items", "keep_last": 1}])
    while not db.sweep(limit=1500).complete:
        pass
    assert db.sweep().total == 0
    assert [seq for seq, text in enumerate(texts(session), 1) if text == LONG] == [4501]


@pytest.mark.parametrize(("summaries", "stays"), [("keep", True), ("drop", False)])
def test_summaries_of_what_expired(db, session, clock, summaries, stays) -> None:
    session.extend(turns(20))
    session.compact(summarize=lambda _: LONG)
    clock.set(10)
    rule = {"what": "items", "max_age_seconds": 5, "summaries": summaries}
    db.retention.set([rule])
    assert db.sweep().items == 40
    assert (LONG in json.dumps(session.context().messages)) is stays
    assert (session.views()[-1].summary == LONG) is stays


def test_a_clock_that_goes_back_expires_nothing_early(db, session, clock) -> None:
    clock.set(1000)
    session.append(user(LONG))
    clock.set(0)
    session.append(user(LONG))
    rule = {"what": "items", "max_age_seconds": 50}
    db.retention.set([rule])
    clock.set(60)
    assert db.sweep().items == 0  # the second one waits for the first
    clock.set(1051)
    assert db.sweep().items == 2
    clock.set(0)
    assert db.sweep().total == 0
    assert texts(session) == [EXPIRED_TEXT] * 2


def test_more_than_one_piece_and_a_limit(db, session) -> None:
    session.extend([user(LONG) for _ in range(700)])
    db.retention.set([{"what": "items", "keep_last": 10}])
    first = db.sweep(limit=100)
    assert (first.items, first.complete) == (100, False)
    reports = [first]
    while not reports[-1].complete:
        reports.append(db.sweep(limit=250))
    assert sum(each.items for each in reports) == 690
    assert texts(session).count(LONG) == 10


# --- the beginning of histories -------------------------------------------------------------------


def test_the_beginning_is_removed_where_nothing_refers_to_it(db, session) -> None:
    session.append(system("stay"))
    session.extend(turns(10))
    db.retention.set([{"what": "items", "keep_last": 4, "action": "remove"}])
    assert db.sweep().items_removed == 16
    assert texts(session) == ["stay", "q8", "a8", "q9", "a9"]
    assert db.sweep().total == 0


def test_checkpoints_keep_the_rows_of_what_is_beyond(db, session) -> None:
    session.extend(turns(10))
    session.checkpoint("here")
    db.retention.set([{"what": "items", "keep_last": 4, "action": "remove"}])
    report = db.sweep()
    assert (report.items_removed, report.items) == (0, 16)
    session.rewind("here")
    assert len(session) == 20


# --- whole things ---------------------------------------------------------------------------------


def test_sessions_go_by_age_and_number(db, clock) -> None:
    for at, name in enumerate("abcdef"):
        clock.set(at * 100)
        db.session(name).append(user(name))
    db.retention.set([{"what": "sessions", "keep_last": 4, "max_age_seconds": 250}])
    clock.set(500)
    assert db.sweep(dry_run=True).sessions == 3
    assert db.sweep().sessions == 3
    assert [entry.session_id for entry in db.sessions()] == ["d", "e", "f"]


def test_the_nearest_rules_apply(db, clock) -> None:
    for owner in ("u", "v"):
        for name in ("a", "b"):
            db.session(name, user=owner).append(user(LONG))
    retention = db.retention
    retention.set([{"what": "items", "keep_last": 0}])
    retention.set([], user="v")
    retention.set([{"what": "items", "keep_last": 1}], user="u", session="b")
    assert db.sweep().items == 1
    left = {(o, n): texts(db.session(n, user=o))[0] == LONG for o in "uv" for n in "ab"}
    assert left == {("u", "a"): False, ("u", "b"): True, ("v", "a"): True, ("v", "b"): True}
    retention.set(None, user="v")
    assert db.sweep().items == 2


def test_times_of_single_things(db, session, clock) -> None:
    scope, retention = db.scope(), db.retention
    session.extend(turns(1))
    session.state.put("mood", "good")
    session.state.put("mood", "better")
    session.state.put("name", "x")
    scope.state.put("city", "Rome")
    scope.app_state.put("motto", "go")
    first, second = session.checkpoint("one"), session.checkpoint("two")
    retention.expire_field("mood", 10, session="chat")
    retention.expire_field("user:city", 10)
    retention.expire_field("app:motto", 20)
    retention.expire_checkpoint("chat", "one", 10)
    scope.kv("n").put("k", 1, ttl_seconds=10)
    assert len(index_rows(db)) == 4
    clock.set(11)
    report = db.sweep()
    assert (report.fields, report.checkpoints, report.entries) == (2, 1, 1)
    assert session.state.all(shared=False) == {"name": "x"}
    assert "mood" not in session.state.at(1)
    assert [each.number for each in session.checkpoints()] == [second.number] != [first.number]
    assert (scope.state.all(), scope.app_state.all()) == ({}, {"motto": "go"})
    assert len(index_rows(db)) == 1
    retention.expire_field("app:motto", None)
    assert index_rows(db) == []


def test_a_session_goes_at_its_time_unless_it_is_told_to_stay(db, session, clock) -> None:
    session.append(user("hi"))
    db.retention.expire_session("chat", 10)
    db.retention.expire_session("chat", 100)
    assert len(index_rows(db)) == 1
    clock.set(50)
    assert db.sweep().sessions == 0
    clock.set(101)
    assert db.sweep().sessions == 1
    assert index_rows(db) == []
    assert not session.exists()
    session.append(user("a new one"))
    assert db.sweep().total == 0


def test_who_deletes_takes_the_index_along(db, session, clock) -> None:
    session.append(user("hi"))
    db.retention.expire_session("chat", 10)
    db.retention.set([{"what": "items", "keep_last": 3}], app="default", session="chat")
    db.delete_session("chat")
    assert index_rows(db) == []


def test_a_fork_outlives_the_session_that_expired(db, session, clock) -> None:
    session.append(user("hi"))
    fork = session.fork("branch")
    db.retention.expire_session("chat", 10)
    clock.set(11)
    assert db.sweep().sessions == 1
    assert texts(fork) == ["hi"]
    assert db.sweep().total == 0
    assert index_rows(db) == []


def test_threads_of_graphs_go_at_their_time(db, clock) -> None:
    from memcore.graph import JsonCoder, NewCheckpoint

    graph = db.scope().graph
    new = NewCheckpoint("1", None, {}, {"v": 1}, {}, {})
    graph.put("t", "", new, JsonCoder())
    db.retention.expire_thread("t", 10)
    clock.set(11)
    assert db.sweep(archive=lambda line: None).kept == 1
    assert db.sweep().threads == 1
    assert [entry.thread for entry in graph.threads()] == []
    assert index_rows(db) == []


def uuid6(seconds: float, tail: int = 0) -> str:
    """The id that LangGraph gives a checkpoint of a time."""
    ticks = int(seconds * 10**7) + 0x01B21DD213814000
    return f"{ticks >> 28:08x}-{ticks >> 12 & 0xFFFF:04x}-6{ticks & 0xFFF:03x}-8000-{tail:012x}"


class Graph:
    """Puts checkpoints of a thread at the time of a clock."""

    def __init__(self, db, clock) -> None:
        self.graph = db.scope().graph
        self._clock = clock
        self._last: dict[tuple[str, str], str] = {}

    def put(self, thread: str, space: str = "", **body: Any) -> str:
        from memcore.graph import JsonCoder, NewCheckpoint

        checkpoint = uuid6(self._clock.now, len(self._last)) if not body else body["id"]
        parent = self._last.get((thread, space))
        new = NewCheckpoint(
            checkpoint, parent, {"channel_versions": {"n": checkpoint}, **body}, {},
            {"n": (checkpoint, ["x" * 80, checkpoint])},
        )  # fmt: skip
        self.graph.put(thread, space, new, JsonCoder())
        self._last[thread, space] = checkpoint
        return checkpoint

    @property
    def threads(self) -> list[str]:
        return [entry.thread for entry in self.graph.threads()]

    def ids(self, thread: str, space: str = "") -> list[str]:
        from memcore.graph import JsonCoder

        return [found.checkpoint for found in self.graph.checkpoints(thread, space, JsonCoder())]


@pytest.fixture
def graph(db, clock) -> Graph:
    return Graph(db, clock)


def test_threads_say_when_they_changed(db, graph, clock) -> None:
    graph.put("t")
    clock.set(50)
    graph.put("t", "sub")
    graph.put("told", id="0", ts="2031-01-01T00:00:00+00:00")
    graph.put("untold", id="0", ts="yesterday")
    found = {entry.thread: entry.changed_at for entry in graph.graph.threads()}
    assert found["t"] == pytest.approx(clock.now, abs=0.01)
    assert found["told"] == 1924992000
    assert found["untold"] is None


@pytest.mark.parametrize("where", [{}, {"user": "default"}, {"thread": "idle"}], ids=str)
def test_a_thread_that_is_idle_goes_and_each_put_lets_it_stay(db, graph, clock, where) -> None:
    for thread in ("idle", "busy"):
        graph.put(thread)
    graph.put("untold", id="0")
    rule = {"what": "threads", "max_age_seconds": 10}
    stored = db.retention.set([rule], **where)
    assert db.retention.get(**where) == stored
    for seconds in (8, 16):
        clock.set(seconds)
        graph.put("busy", "sub" if seconds == 8 else "")
        assert db.sweep(dry_run=True).threads == int(seconds == 16)
        db.sweep()
    assert graph.threads == ["busy", "untold"]
    clock.set(27)
    assert db.sweep(archive=lambda line: None).total == 0
    assert db.sweep().threads == int("thread" not in where)
    assert db.check() == []


def test_the_last_threads_stay_by_their_change(db, graph, clock) -> None:
    for seconds, thread in enumerate(["a", "b", "c", "a", "d"]):
        clock.set(seconds)
        graph.put(thread)
    db.retention.set([{"what": "threads", "keep_last": 2}])
    db.retention.set([], thread="b")  # has rules of its own: none
    assert db.sweep(dry_run=True).threads == 1
    assert db.sweep().threads == 1
    assert graph.threads == ["a", "b", "d"]
    assert db.sweep().total == 0


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"keep_last": 2}, [5, 4]),
        ({"max_age_seconds": 2.5}, [5, 4, 3]),
        ({"max_age_seconds": 2.5, "keep_last": 4}, [5, 4, 3]),
        ({"max_age_seconds": 0, "keep_last": 0}, [5]),
    ],
)
def test_old_checkpoints_of_a_thread_go(db, graph, clock, limits, left) -> None:
    made = []
    for seconds in range(6):
        clock.set(seconds)
        made.append(graph.put("t"))
    graph.put("t", "sub")
    db.retention.set([{"what": "thread_checkpoints", **limits}])
    assert db.sweep(dry_run=True).thread_checkpoints == 6 - len(left)
    assert db.sweep(archive=lambda line: None).kept == 6 - len(left)
    assert db.sweep().thread_checkpoints == 6 - len(left)
    assert graph.ids("t") == [made[at] for at in left]
    assert len(graph.ids("t", "sub")) == 1
    assert db.check() == []


def test_threads_under_a_hold_stay(db, graph, clock) -> None:
    graph.put("t")
    graph.put("t")
    db.scope().hold(reason="case 7")
    db.retention.set([
        {"what": "threads", "max_age_seconds": 10}, {"what": "thread_checkpoints", "keep_last": 1}
    ])  # fmt: skip
    assert db.sweep().held == 1
    clock.set(11)
    report = db.sweep()
    assert (report.held, report.total) == (1, 0)
    assert graph.threads == ["t"]


def test_a_thread_that_changes_while_it_is_swept_stays(db, graph, clock, monkeypatch) -> None:
    from memcore.retention import expire as graph_threads

    graph.put("t")
    db.retention.set([{"what": "threads", "max_age_seconds": 10}])
    clock.set(11)
    remove = graph_threads.remove_thread

    def put_and_remove(*args: Any) -> bool:
        graph.put("t")  # between what the sweep saw and what it does
        return remove(*args)

    monkeypatch.setattr(graph_threads, "remove_thread", put_and_remove)
    assert db.sweep().total == 0
    assert graph.threads == ["t"]


def test_rules_of_a_thread_are_about_threads(db, graph) -> None:
    rule = {"what": "threads", "max_age_seconds": 10}
    with pytest.raises(memcore.NotFoundError, match="no thread 't'"):
        db.retention.set([rule], thread="t")
    graph.put("t")
    for rules, where in (([{"what": "items", "keep_last": 1}], {}), ([rule], {"session": "s"})):
        with pytest.raises(memcore.InvalidOptionError, match="rules about threads"):
            db.retention.set(rules, thread="t", **where)
    db.retention.set([rule], thread="t")
    graph.graph.delete_thread("t", None)
    assert index_rows(db) == []
    assert db.retention.get(thread="t") is None


def test_what_is_held_stays(db, session, clock) -> None:
    session.extend(turns(2))
    db.scope().kv("n").put("k", 1, ttl_seconds=1)
    db.retention.set([{"what": "items", "keep_last": 0}])
    db.retention.expire_session("chat", 1)
    clock.set(10)
    db.scope().hold(reason="case 7")
    report = db.sweep()
    assert (report.total, report.held) == (0, 6)
    db.scope().release()
    assert db.sweep().total == 6


# --- the archive ----------------------------------------------------------------------------------


def test_what_leaves_is_in_the_archive_and_can_be_imported(db, session, clock, tmp_path) -> None:
    message = call("c1")
    message["tool_calls"][0]["function"]["arguments"] = json.dumps({"q": LONG})
    session.extend([user(LONG), message, result("c1", LONG)], meta={"who": 1})
    db.scope().kv("n").put("k", {"a": 1}, ttl_seconds=1)
    clock.set(10)
    db.retention.set([{"what": "items", "max_age_seconds": 1}])
    report = db.sweep(archive=tmp_path / "old.jsonl")
    lines = (tmp_path / "old.jsonl").read_bytes().splitlines(keepends=True)
    assert report.archived == len(lines) == 5
    told = json.loads(lines[0])["expired"]
    assert (told["namespace"], told["key"], told["value"]) == ("n", "k", {"a": 1})
    with memcore.open(":memory:", counter="bytes/4") as other:
        assert other.import_(lines[1:]).failures == []
        assert texts(other.session("chat")) == [LONG, None, LONG]
        assert other.session("chat").get(2).message == message


def test_results_alone_are_archived_as_well(db, session, clock) -> None:
    lines: list[bytes] = []
    session.extend([user(LONG), call("c1"), result("c1", LONG), user(LONG)])
    db.retention.set([{"what": "items", "keep_last": 0, "kinds": ["result"]}])
    assert db.sweep(archive=lines.append).archived == len(lines) == 2
    with memcore.open(":memory:", counter="bytes/4") as other:
        assert other.import_(lines).failures == []
        assert texts(other.session("chat")) == [LONG]


def test_a_failing_archive_keeps_the_data(db, session, clock) -> None:
    def broken(_: bytes) -> None:
        msg = "no room"
        raise OSError(msg)

    session.extend(turns(2))
    db.scope().kv("n").put("k", 1, ttl_seconds=100)
    db.retention.set([{"what": "items", "keep_last": 0}, {"what": "sessions", "keep_last": 0}])
    for what in ("items", "sessions"):
        db.retention.set([{"what": what, "keep_last": 0}])
        with pytest.raises(OSError, match="no room"):
            db.sweep(archive=broken)
    assert texts(session) == ["q0", "a0", "q1", "a1"]


# --- rewriting ------------------------------------------------------------------------------------


def test_items_are_rewritten_in_their_place(db, session) -> None:
    session.extend([user(LONG), call("c1"), result("c1", "x" * 50_000)])
    done = rewrite_items(db.engine, *place_of(db), {1: user("[X]"), 3: result("c1", "y" * 40_000)})
    assert done.seqs == (1, 3)
    assert texts(session) == ["[X]", None, "y" * 40_000]
    rewrite_items(db.engine, *place_of(db), {3: result("c1", "z")})
    assert texts(session)[2] == "z"


@pytest.mark.parametrize(
    "message",
    [assistant("no"), result("c1"), user(LONG + "more"), {"role": "user", "content": {1}}],
)
def test_an_item_does_not_become_another(db, session, message) -> None:
    session.append(user("hello"))
    with pytest.raises(InvalidItemError):
        rewrite_items(db.engine, *place_of(db), {1: message})
    with pytest.raises(memcore.NotFoundError):
        rewrite_items(db.engine, *place_of(db), {9: user("x")})
    assert texts(session) == ["hello"]


def test_a_copy_and_a_salvage_keep_what_was_rewritten(open_db, tmp_path) -> None:
    db = open_db(counter="bytes/4")
    session = db.session("chat")
    session.extend([user(LONG), assistant(LONG)])
    db.retention.set([{"what": "items", "keep_last": 1}])
    db.retention.expire_session("chat", 1000)
    db.sweep()
    db.backup(tmp_path / "copy")
    db.copy_compact()
    db.close()
    memcore.salvage(tmp_path / "copy", tmp_path / "saved")
    with memcore.open(tmp_path / "saved", counter="bytes/4") as saved:
        assert saved.check() == []
        assert texts(saved.session("chat")) == [EXPIRED_TEXT, LONG]
        assert saved.retention.get()[0].keep_last == 1
        assert len(index_rows(saved)) == 2


def test_check_sees_an_index_that_leads_astray(open_db, path) -> None:
    from memcore.codec.values import seal_value

    with memcore.open(":memory:") as db:
        db.session("chat").append(user("hi"))
        db.scope().kv("n").put("k", 1, ttl_seconds=100)
        db.retention.expire_session("chat", 100)
        (kv_ms, kv_key), *_ = (row for row in index_rows(db) if row[1][0] == Kind.KV)
        stray = keys.expiry_row(kv_ms + 1, kv_key)
        lost = [keys.expiry_row(*row) for row in index_rows(db)]

        def spoil(txn: Any) -> None:
            txn.put(stray, seal_value(stray, b""))
            for row in lost:
                txn.delete(row)

        db.engine.store.transact(spoil)
        found = db.check()
        assert len(found) == 3
        assert all("index by expiry" in what for what in found)


# --- rules as data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"what": "itms", "keep_last": 1},
        {"what": "items"},
        {"what": "items", "keep_last": -1},
        {"what": "items", "keep_last": True},
        {"what": "items", "max_age_seconds": float("nan")},
        {"what": "items", "max_age_seconds": -1},
        {"what": "items", "keep_lst": 1},
        {"what": "items", "keep_last": 1, "kinds": ["tools"]},
        {"what": "items", "keep_last": 1, "tools": "search"},
        {"what": "items", "keep_last": 1, "action": "remove", "kinds": ["user"]},
        {"what": "sessions", "max_bytes": 1},
        {"what": "sessions", "keep_last": 1, "tools": ["x"]},
        {"what": "audit", "keep_last": 1},
        3,
    ],
)
def test_wrong_rules_are_refused(db, rule) -> None:
    with pytest.raises(memcore.InvalidOptionError):
        db.retention.set([rule])
    assert db.retention.get() is None


def test_rules_come_back_as_they_were(db, open_db, tmp_path) -> None:
    for name in RETENTION_PRESETS:
        rules = db.retention.set(name)
        assert db.retention.get() == rules == retention_rules([rule.mapping() for rule in rules])
    file = tmp_path / "rules.toml"
    file.write_text('preset = "transient"\n[[rules]]\nwhat = "items"\nkeep_last = 5\n')
    assert [rule.what for rule in read_rules(file)] == ["sessions", "items"]
    again = open_db(counter="bytes/4", retention="minimal")
    assert db.retention.get() == retention_rules("minimal")
    again.close()
    with pytest.raises(memcore.NotFoundError):
        read_rules(tmp_path / "none.toml")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "1"])
def test_wrong_times_are_refused(db, session, seconds) -> None:
    session.append(user("hi"))
    with pytest.raises(memcore.InvalidOptionError):
        db.retention.expire_session("chat", seconds)
    with pytest.raises(memcore.InvalidOptionError):
        db.sweep(now=seconds if seconds != 0 else "now")
    with pytest.raises(memcore.NotFoundError):
        db.retention.expire_session("nobody", 1)
    assert index_rows(db) == []


# --- in the background ----------------------------------------------------------------------------


@pytest.mark.parametrize("telemetry", [None, lambda record: None], ids=["plain", "observed"])
def test_a_sweeper_works_until_the_database_is_closed(open_db, telemetry) -> None:
    db = open_db(counter="bytes/4", telemetry=telemetry)
    swept, failed = threading.Event(), []
    sweep = type(db).sweep

    def watched(**options: Any) -> memcore.SweepReport:
        report = sweep(db, **options)
        swept.set()
        return report

    db.sweep = watched
    db.session("chat").extend(turns(5))
    db.retention.set([{"what": "items", "keep_last": 1}])
    sweeper = db.sweeper(interval_seconds=3600, failed=failed.append)
    assert swept.wait(30)
    db.close()
    assert (sweeper.running, failed, sweeper.last.items) == (False, [], 9)


def test_the_asynchronous_handle_sweeps(path) -> None:
    async def run() -> int:
        async with aio.open(path, counter="bytes/4") as db:
            await db.session("chat").append(user(LONG))
            assert isinstance(db.retention, Retention)
            db.retention.set([{"what": "items", "keep_last": 0}])
            async with db.sweeper(interval_seconds=3600) as sweeper:
                assert sweeper.running
            assert not sweeper.running
            return (await db.sweep()).total + sweeper.last.total

    assert asyncio.run(run()) == 1


def test_sweeps_beside_writers(db) -> None:
    db.retention.set([{"what": "items", "keep_last": 5}, {"what": "checkpoints", "keep_last": 1}])

    def write(name: str) -> None:
        session = db.session(name)
        for n in range(40):
            session.extend([user(f"{n}"), assistant(f"{n}")])
            if n % 10 == 5:
                session.checkpoint()
                session.undo(1)

    threads = [threading.Thread(target=write, args=(f"s{at}",)) for at in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        db.sweep()
    db.sweep()
    for at in range(3):
        found = texts(db.session(f"s{at}"))
        assert (len(found), found[-5:]) == (76, ["37", "38", "38", "39", "39"])
        assert set(found[:-5]) == {"."}


_OTHER = """
import sys, memcore
from messages import turns
db = memcore.open(sys.argv[1], counter="bytes/4")
for at in range(6):
    db.session("shared").extend(turns(1, start=at))
    db.sweep()
db.close()
"""


def test_sweeps_of_several_processes(db, path) -> None:
    db.retention.set([{"what": "items", "keep_last": 4}])
    others = [
        subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(path)], env={"PYTHONPATH": ":".join(sys.path)}
        )
        for _ in range(2)
    ]
    while any(other.poll() is None for other in others):
        db.sweep()
    assert [other.wait() for other in others] == [0, 0]
    db.sweep()
    found = texts(db.session("shared"))
    assert (len(found), set(found[:-4])) == (24, {"."})
    assert "." not in found[-4:]


def test_rules_of_a_user_reach_all_of_their_applications(tmp_path):
    rule = {"what": "items", "keep_last": 1}
    with memcore.open(tmp_path / "r.memcore") as db:
        for owner, app in (("u", "default"), ("u", "other"), ("v", "other")):
            for _ in range(3):
                db.session("s", user=owner, app=app).append(user(LONG))
        db.retention.set([rule], user="u")
        assert db.retention.get(user="u") == db.retention.get(user="u", app="other")
        assert db.retention.get(user="v") is None
        db.sweep()
        kept = {
            (owner, app): texts(db.session("s", user=owner, app=app)).count(LONG)
            for owner, app in (("u", "default"), ("u", "other"), ("v", "other"))
        }
        assert kept == {("u", "default"): 1, ("u", "other"): 1, ("v", "other"): 3}
        db.retention.set(None, user="u", app="other")
        assert db.retention.get(user="u", app="other") is None
        assert db.retention.get(user="u") is not None
        db.retention.set([rule], user="v")
        assert db.retention.get(user="v", app="other") is not None
        assert ("default", "v") not in db.scopes()


def _filled(path, names, *, items=20):
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        for name in names:
            said = [{"role": "user", "content": f"{name} {n}"} for n in range(items)]
            db.session(name).extend(said)
        db.retention.set({"rules": [{"what": "sessions", "max_age_seconds": 0}]})


def test_sweeps_that_share_an_archive_keep_sessions_whole(tmp_path):
    archive, stores = tmp_path / "archive.jsonl", [tmp_path / f"{n}.memcore" for n in range(3)]
    for number, store in enumerate(stores):
        _filled(store, [f"s{number}-{n}" for n in range(20)], items=60)
    code = (
        "import memcore, sys\n"
        "db = memcore.open(sys.argv[1], durability='none', allow_unsafe=True)\n"
        "db.sweep(archive=sys.argv[2])\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(store), str(archive)])
        for store in [*stores, stores[0]]
    ]
    assert [each.wait() for each in running] == [0] * 4
    with memcore.open(tmp_path / "again.memcore") as db:
        done = db.import_(archive.read_bytes().splitlines(keepends=True))
        assert done.failures == []
        found = {entry.session_id: entry.items for entry in db.sessions()}
    assert found == {f"s{number}-{n}": 60 for number in range(3) for n in range(20)}


@pytest.mark.parametrize(
    ("what", "kept"), [("sessions", 0), ("items", 60), ("beginning", 60), ("entries", 0)]
)
def test_what_goes_while_it_is_archived_ends_no_sweep(db, clock, what, kept):
    session = db.session("s", policy=None)
    session.extend([user(f"{n} {LONG}") for n in range(64)])
    for key in "ab" if what == "entries" else "":
        db.scope().kv("n").put(key, key, ttl_seconds=1)
    if what == "sessions":
        db.retention.set([{"what": "sessions", "max_age_seconds": 1}])
    elif what != "entries":
        action = "remove" if what == "beginning" else "expire"
        db.retention.set([{"what": "items", "keep_last": 4, "action": action}])
    clock.set(10)
    lines = []

    def archive(line):
        if not lines:  # as another process does, between two reads
            db.delete_session("s")
            db.scope().kv("n").delete("b")
        lines.append(json.loads(line))

    report = db.sweep(archive=archive)
    assert lines
    assert (report.kept, report.damaged, report.sessions) == (kept, 0, 0)
    assert report.entries == (what == "entries")
    if what == "entries":
        assert [line["expired"]["key"] for line in lines] == ["a"]


def _archived(path, archive, action, *, rounds=3, items=5, limit=None):
    """Append and sweep in turn; returns all that was said."""
    said = [f"{n} {LONG}" for n in range(rounds * items)]
    with memcore.open(path, durability="none", allow_unsafe=True) as db:
        db.retention.set([{"what": "items", "keep_last": 2, "action": action}])
        for first in range(0, len(said), items):
            db.session("s").extend([user(text) for text in said[first : first + items]])
            for _ in range(20 if limit else 1):
                db.sweep(archive=archive, **({"limit": limit} if limit else {}))
    return said


def _imported(path, archive, **options):
    with memcore.open(path) as db:
        done = db.import_(archive.read_bytes().splitlines(keepends=True), **options)
        return done, {each.session_id: texts(db.session(each.session_id)) for each in db.sessions()}


@pytest.mark.parametrize(
    ("action", "options"),
    [("expire", {}), ("remove", {}), ("expire", {"rounds": 1, "items": 40, "limit": 3})],
)
def test_the_parts_of_an_archive_are_joined(tmp_path, action, options):
    archive, new = tmp_path / "archive.jsonl", tmp_path / "new.memcore"
    said = _archived(tmp_path / "a.memcore", archive, action, **options)
    done, found = _imported(new, archive)
    assert (done.failures, done.sessions, done.items, done.aside) == ([], 1, len(said) - 2, 0)
    assert found == {"s": said[:-2]}
    done, again = _imported(new, archive)
    assert (done.failures, done.sessions, done.items, again) == ([], 0, 0, found)
    assert done.skipped > 1


def test_an_archive_of_later_sweeps_goes_on_where_the_first_one_ended(tmp_path):
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    said = _archived(tmp_path / "a.memcore", first, "remove", rounds=2)
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        db.session("s").append(user("last"))
        db.sweep(archive=second)
    _imported(tmp_path / "new.memcore", first)
    done, found = _imported(tmp_path / "new.memcore", second)
    assert (done.failures, found) == ([], {"s": [*said, "last"][:-2]})


@pytest.mark.parametrize("action", ["expire", "remove"])
def test_parts_of_an_archive_never_go_behind_another_session(tmp_path, action):
    archive, live = tmp_path / "archive.jsonl", tmp_path / "a.memcore"
    said = _archived(live, archive, action)
    with memcore.open(live, durability="none", allow_unsafe=True) as db:
        before = list(db.export())
        lines = archive.read_bytes().splitlines(keepends=True)
        assert len(db.import_(lines).failures) == 3
        assert list(db.export()) == before
        for _ in range(2):
            assert db.import_(lines, on_conflict="rename").failures == []
        found = {each.session_id: texts(db.session(each.session_id)) for each in db.sessions()}
        assert found == {"s": found["s"], "s (2)": said[:-2]}
        assert list(db.export(session_id="s")) == before
    with memcore.open(tmp_path / "new.memcore") as db:
        db.import_(lines)
        db.session("s").append(user("somebody goes on"))
        done = db.import_(lines)
        assert (done.failures, done.items) == ([], 0)
        db.session("s").undo(2)
        assert "has other content" in db.import_(lines).failures[-1]
        assert len(texts(db.session("s"))) == len(said) - 3


def test_parts_behind_undone_items_lose_nothing(tmp_path):
    archive, live = tmp_path / "archive.jsonl", tmp_path / "a.memcore"
    with memcore.open(live, durability="none", allow_unsafe=True) as db:
        session = db.session("s")
        session.extend([user("same")] * 2)
        session.append(user("undone"))
        session.rewind(2)
        session.extend([user("same")] * 8)
        for keep in (7, 3):
            db.retention.set([{"what": "items", "keep_last": keep, "action": "remove"}])
            assert db.sweep(archive=archive).items_removed
    for _ in range(2):
        done, found = _imported(tmp_path / "new.memcore", archive)
        assert (done.failures, found) == ([], {"s": ["same"] * 7})


def test_parts_of_several_rules_are_all_imported(tmp_path):
    archive, live = tmp_path / "archive.jsonl", tmp_path / "a.memcore"
    said = [f"{n} {LONG}" for n in range(10)]
    with memcore.open(live, durability="none", allow_unsafe=True) as db:
        db.session("s").extend([user(text) for text in said])
        db.retention.set([{"what": "items", "keep_last": 6}])
        db.sweep(archive=archive)
        db.retention.set([{"what": "items", "keep_last": 3, "action": "remove"}])
        db.sweep(archive=archive)
    done, found = _imported(tmp_path / "new.memcore", archive)
    assert "--on-conflict rename" in done.failures[0]
    assert found == {"s": said[:4]}
    for items in (7, 0):
        done, found = _imported(tmp_path / "new.memcore", archive, on_conflict="rename")
        assert (done.failures, done.items) == ([], items)
        assert found == {"s": said[:4], "s (2)": ["[expired]"] * 4 + said[4:7]}


def test_parts_are_compared_as_they_are_stored(tmp_path):
    archive = tmp_path / "archive.jsonl"
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        db.retention.set([{"what": "items", "keep_last": 2}])
        for first in (0, 5):
            db.session("s").extend([user(f"{n} joe@corp.example {LONG}") for n in range(first, 8)])
            db.sweep(archive=archive)
    lines = archive.read_bytes().splitlines(keepends=True)
    with memcore.open(tmp_path / "new.memcore", redact="default") as db:
        for _ in range(2):
            assert db.import_(lines).failures == []
        assert len(texts(db.session("s"))) == 9
        assert not any("joe@" in text for text in texts(db.session("s")))


def test_parts_move_the_revision_and_wait_for_no_lease_that_is_over(tmp_path):
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    said = _archived(tmp_path / "a.memcore", first, "expire", rounds=1)
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        db.session("s").extend([user("x"), user("y")])
        db.sweep(archive=second)
    _imported(tmp_path / "new.memcore", first)
    lines = second.read_bytes().splitlines(keepends=True)
    with memcore.open(tmp_path / "new.memcore") as db:
        session = db.session("s")
        seen = session.revision
        held = session.lease("one", ttl_seconds=60)
        assert "leased" in db.import_(lines).failures[0]
        held.renew(0.001)
        while time.time() < held.expires_at:
            continue
        assert db.import_(lines).failures == []
        assert texts(session) == said
        held.release()
        with pytest.raises(memcore.RevisionConflict):
            session.append(user("late"), expected_revision=seen)


def test_parts_of_two_users_are_not_mixed_by_a_new_name(tmp_path):
    archive = tmp_path / "archive.jsonl"
    said = _archived(tmp_path / "a.memcore", archive, "expire", rounds=2)
    lines = [json.loads(line) for line in archive.read_bytes().splitlines()]
    at = next(n for n, line in enumerate(lines[1:], 1) if "memcore" in line)
    lines[at]["user"] = "bob"
    with memcore.open(tmp_path / "new.memcore") as db:
        done = db.import_(
            [json.dumps(line).encode() + b"\n" for line in lines],
            rename=lambda title: replace(title, user="all"),
        )
        assert "exists with other content" in done.failures[0]
        assert texts(db.session("s", user="all")) == said[:3]


def test_what_cannot_be_archived_stays(db, clock):
    for key in "ab":
        db.scope().kv("n").put(key, key, content=key.encode() * 100_000, ttl_seconds=1)
    scope, _ = 1, db.session("s").append(user("x"))
    lost = keys.scoped(Kind.BLOB_CHUNK, scope)
    rows = db.engine.store.read(lambda txn: list(txn.scan(lost, keys.after(lost))))
    gone, taken = rows[: len(rows) // 2], []
    db.engine.store.transact(lambda txn: [txn.delete(key) for key, _ in gone] and None)
    clock.set(10)
    report = db.sweep(archive=taken.append)
    assert (report.entries, report.damaged, report.archived, len(taken)) == (1, 1, 1, 1)
    assert len(index_rows(db)) == 1
    db.engine.store.transact(lambda txn: [txn.put(*row) for row in gone] and None)
    assert db.sweep(archive=taken.append).entries == 1
    assert len(taken) == 2


@pytest.mark.parametrize("what", ["field", "entry", "session", "memory"])
def test_an_archive_that_raises_any_error_keeps_what_is_due(db, clock, what):
    session = db.session("s")
    session.append(user("x"))
    if what == "field":
        session.state.put("a", 1)
        db.retention.expire_field("a", 1, session="s")
    elif what == "entry":
        db.scope().kv("n").put("a", 1, ttl_seconds=1)
    elif what == "memory":
        db.scope().memory.remember("one", by="operator", expires_at=clock.now + 1)
    else:
        db.retention.set([{"what": "sessions", "max_age_seconds": 1}])
    clock.set(10)

    def fails(line):
        raise memcore.NotFoundError("the archive's own table is missing")

    before = db.engine.store.read(lambda txn: list(txn.scan(b"\x02", b"\x14")))
    with pytest.raises(memcore.NotFoundError, match="own table"):
        db.sweep(archive=fails)
    assert db.engine.store.read(lambda txn: list(txn.scan(b"\x02", b"\x14"))) == before


def test_three_rules_in_turn_are_imported_twice_alike(tmp_path):
    archive = tmp_path / "archive.jsonl"
    said = [f"{n} {LONG}" for n in range(24)]
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        for first in range(0, 24, 6):
            for n in range(first, first + 6):
                db.session("s").append(user(said[n]), envelope={"type": f"x-t{n % 3}"})
            for kind in range(3):
                rule = {"what": "items", "keep_last": 0, "types": [f"x-t{kind}"]}
                db.retention.set([rule])
                db.sweep(archive=archive)
    new = tmp_path / "new.memcore"
    done, found = _imported(new, archive, on_conflict="rename")
    assert done.failures == []
    assert sorted(text for texts_ in found.values() for text in texts_) == sorted(said)
    assert _imported(new, archive, on_conflict="rename")[1] == found


def test_an_unfinished_line_of_an_archive_takes_nothing_along(tmp_path):
    archive = tmp_path / "archive.jsonl"
    _filled(tmp_path / "a.memcore", ["a"])
    _filled(tmp_path / "b.memcore", ["b"])
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        db.sweep(archive=archive)
    whole = archive.read_bytes()
    archive.write_bytes(whole + b'{"memcore":1,"session":"half')  # a power cut
    with memcore.open(tmp_path / "b.memcore", durability="none", allow_unsafe=True) as db:
        db.sweep(archive=archive)
    assert archive.read_bytes().startswith(whole)
    with memcore.open(tmp_path / "again.memcore") as db:
        assert db.import_(archive.read_bytes().splitlines(keepends=True)).failures == []
        assert sorted(entry.session_id for entry in db.sessions()) == ["a", "b"]


def test_an_archive_that_fails_is_as_it_was(tmp_path, monkeypatch):
    archive = tmp_path / "archive.jsonl"
    _filled(tmp_path / "a.memcore", ["a"])
    archive.write_bytes(b"")
    real = retention_module._write_whole
    written = []

    def full(file, line):
        written.append(line)
        if len(written) == 5:
            real(file, line[:10])
            raise OSError(errno.ENOSPC, "full")
        real(file, line)

    monkeypatch.setattr(retention_module, "_write_whole", full)
    with memcore.open(tmp_path / "a.memcore", durability="none", allow_unsafe=True) as db:
        with pytest.raises(OSError, match="full"):
            db.sweep(archive=archive)
        assert len(db.session("a")) == 20
    assert archive.read_bytes() == b""


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "text"])
def test_what_is_no_archive_is_refused(tmp_path, kind):
    path = tmp_path / "archive"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "other")
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text("notes")
    with (
        memcore.open(tmp_path / "a.memcore") as db,
        pytest.raises(InvalidOptionError, match="archive"),
    ):
        db.sweep(archive=path)


def test_memories_of_an_archive_are_counted_by_an_import(tmp_path):
    archive = tmp_path / "archive.jsonl"
    with memcore.open(tmp_path / "a.memcore") as db:
        session = db.session("s", user="u")
        session.append({"role": "user", "content": "I like tea"})
        session.memory.remember("Likes tea", source=1)
        db.retention.set({"rules": [{"what": "sessions", "max_age_seconds": 0}]})
        assert db.sweep(archive=archive).forgotten == 1
    with memcore.open(tmp_path / "b.memcore") as db:
        done = db.import_(archive.read_bytes().splitlines(keepends=True))
        assert (done.sessions, done.expired, done.failures) == (1, 1, [])


def test_summaries_go_with_what_they_have_read(tmp_path):
    with memcore.open(tmp_path / "a.memcore") as db:
        for name in ("a", "b"):
            db.session(name, user="u").append({"role": "user", "content": f"{name} likes tea"})
        memory = db.scope(user="u").memory
        memory.summary().extend(lambda request: "They like tea")
        assert [each.text for each in memory.list()] == ["They like tea"]
        db.retention.expire_session("a", 1, user="u")
        later = time.time() + 10
        assert db.sweep(dry_run=True, now=later).forgotten == 1
        assert db.sweep(now=later).forgotten == 1
        assert memory.list() == []


def test_an_archive_that_begins_with_entries_is_added_to(tmp_path):
    archive = tmp_path / "archive.jsonl"
    with memcore.open(tmp_path / "a.memcore") as db:
        for key in ("a", "b"):
            db.scope().kv("n").put(key, "x", ttl_seconds=1)
            assert db.sweep(archive=archive, now=time.time() + 10).entries == 1
    assert [list(json.loads(line)) for line in archive.read_text().splitlines()] == [
        ["expired"]
    ] * 2


@pytest.mark.parametrize(
    "torn", [b"{", b'{"memc', b'{"memcore":1,"session":"half', b'{"expired":{"a']
)
def test_an_archive_that_is_torn_in_its_first_line(tmp_path, torn):
    archive = tmp_path / "archive.jsonl"
    archive.write_bytes(torn)
    with memcore.open(tmp_path / "a.memcore") as db:
        db.scope().kv("n").put("k", "x", ttl_seconds=1)
        assert db.sweep(archive=archive, now=time.time() + 10).archived == 1
    assert [list(json.loads(line)) for line in archive.read_text().splitlines()] == [["expired"]]


def test_a_last_line_without_its_end_is_kept(tmp_path):
    """An editor may have taken the newline; what is archived is nowhere else."""
    archive = tmp_path / "archive.jsonl"
    _filled(tmp_path / "a.memcore", ["a"])
    _filled(tmp_path / "b.memcore", ["b"])
    for name in ("a", "b"):
        with memcore.open(tmp_path / f"{name}.memcore", durability="none", allow_unsafe=True) as db:
            db.sweep(archive=archive)
        if name == "a":
            archive.write_bytes(archive.read_bytes().rstrip(b"\n"))
    with memcore.open(tmp_path / "again.memcore") as db:
        assert db.import_(archive.read_bytes().splitlines(keepends=True)).failures == []
        assert {e.session_id: e.items for e in db.sessions()} == {"a": 20, "b": 20}
