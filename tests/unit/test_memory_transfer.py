"""Import and export of long-term memories: bounds, trust, links to sessions, holds on expiry."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import Source
from memcore.errors import CorruptValueError, InvalidItemError, InvalidOptionError
from memcore.exchange import load
from memcore.memory import transfer
from memcore.memory.lineage import ROOTS
from memcore.memory.rows import RECORDED_END_MS, pack_record, unpack_record
from memcore.memory.transfer import arrived_entry
from memcore.rows import names

SOURCE = {"session": "s", "seqs": [1], "by": "user"}
ENTRY = {
    "id": 1, "version": 1, "kind": "fact", "by": "user", "status": "active", "at": 1, "text": "x",
    "sources": [SOURCE],
}  # fmt: skip
OUTCOME = {
    "scenario": "sc", "name": "s", "at": 1, "passed": True, "steps": ["a"], "failed": {},
    "instead": {}, "iterations": 1,
}  # fmt: skip


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def other(open_db, tmp_path):
    return open_db(path=tmp_path / "other.memcore", durability="none")


def memory_of(db) -> Any:
    return db.scope(app="default", user="alice").memory


def say(db, name: str, *contents: str) -> Source:
    session = db.session(name, user="alice")
    for content in contents:
        session.append({"role": "user", "content": content})
    return Source(name, tuple(range(1, len(contents) + 1)))


def hear(db, name: str, content: str) -> Source:
    session = db.session(name, user="alice", orphans="keep")
    session.append({"role": "tool", "tool_call_id": "c", "content": content})
    return Source(name, (1,))


def line(entry: dict[str, Any], *versions: dict[str, Any]) -> bytes:
    told = {"app": "default", "user": "alice", "entry": {**ENTRY, **entry}, "versions": versions}
    return json.dumps({"memcore": 1, "memory": told}).encode()


def outcome_line(**changed: Any) -> bytes:
    told = {"app": "default", "user": "alice", "outcome": {**OUTCOME, **changed}}
    return json.dumps({"memcore": 1, "memory": told}).encode()


def texts(db) -> list[str]:
    return [each.text for each in memory_of(db).list()]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        {"id": 2**48 - 1}, {"id": 2**47}, {"version": 2**48 - 1}, {"version": 2**64},
        {"sources": [{**SOURCE, "by": "king"}]}, {"sources": [{**SOURCE, "seqs": [2**64]}]},
        {"sources": [{**SOURCE, "seqs": []}]}, {"sources": [{**SOURCE, "session": ""}]},
        {"sources": [{**SOURCE, "seqs": list(range(1, 10_000))}]}, {"expires": -5},
        {"confidence": "nan"}, {"confidence": 77}, {"importance": -1}, {"uses": -5},
        {"derived_from": ["evil"]}, {"derived_from": list(range(1, 1000))}, {"at": None},
        {"at": 2**51}, {"from": 2**51}, {"labels": 5}, {"superseded_by": 0},
    ],
)  # fmt: skip
def test_a_line_out_of_bounds_is_one_failure(db, entry):
    memory = memory_of(db)
    say(db, "s", "x")
    good = {"id": 2, "text": "good"}
    done = db.import_([line(entry), line(good), line(ENTRY, {**ENTRY, **entry, "text": "old"})])
    assert (len(done.failures), done.memories) == (2, 1)
    assert texts(db) == ["good"]
    assert memory.remember("later", by="operator").id == 3
    db.delete_session("s", user="alice")
    assert len(list(db.export(user="alice"))) == 2
    assert db.check() == []


SCALAR = st.sampled_from(
    [None, True, 0, 1, -1, 2**47, 2**48, 2**52, 2**64, 10**400, 0.5, math.nan, math.inf, "", "x",
     "user", "0" * 32, "\ud800"],
)  # fmt: skip
SHORT = st.lists(SCALAR, max_size=2) | st.dictionaries(st.sampled_from(["x", ""]), SCALAR)
JSON = SCALAR | SHORT | st.lists(SHORT, max_size=2)
FIELDS = st.sampled_from(
    ["id", "version", "kind", "by", "status", "at", "text", "attributes", "subject", "slot",
     "labels", "extractor", "confidence", "importance", "observed", "from", "to", "superseded_by",
     "derived_from", "expires", "uses", "promoted_by", "reason", "digests", "sources"],
)  # fmt: skip


@given(changed=st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_line_is_an_entry_or_refused(changed):
    try:
        (record,) = arrived_entry({**ENTRY, **changed})
    except (CorruptValueError, InvalidItemError, InvalidOptionError):
        return
    said = json.loads(json.dumps(pack_record(record)))
    assert unpack_record(record.id, said) == record


@pytest.mark.parametrize(
    "changed",
    [{"at": 2**60}, {"at": -1}, {"steps": ["a"] * 1000}, {"steps": ["zero\u200bwidth"]},
     {"failed": {"a" * 1000: 1}}, {"failed": []}, {"confidence": 2}, {"scenario": ""}, {"name": 5},
     {"name": "nowhere"}],
)  # fmt: skip
def test_an_outcome_out_of_bounds_is_one_failure(db, changed):
    say(db, "s", "x")
    done = db.import_([outcome_line(**changed), line({"by": "import", "status": "quarantined"})])
    assert (len(done.failures), done.memories) == (1, 1)
    assert memory_of(db).playbooks() == []


def test_what_was_forgotten_does_not_arrive_under_another_id(db):
    memory = memory_of(db)
    secret = memory.remember("The code is 1234", source=say(db, "s", "The code is 1234"))
    memory.forget(secret.id)
    told = [
        line({"id": 7, "text": "the code is 1234"}),
        line(
            {"id": 8, "text": "Likes tea", "version": 2},
            {**ENTRY, "id": 8, "text": "The code is 1234"},
        ),
    ]
    assert db.import_(told).failures == []
    assert texts(db) == ["Likes tea"]
    assert [each.text for each in memory.history(8)] == ["Likes tea"]
    assert memory.remember("The code is 1234", source=Source("s", (1,))).status == "forgotten"
    assert memory.remember("The code is 1234", by="operator").status == "active"
    assert db.import_(told).failures == []
    assert db.check() == []


def test_a_tombstone_that_arrives_keeps_its_number_and_forgets_nothing(db, other):
    mine, theirs = memory_of(db), memory_of(other)
    theirs.remember("first", by="operator")
    theirs.forget(theirs.remember("Likes tea", by="operator").id)
    mine.remember("Likes tea", source=say(db, "s", "Likes tea"))
    report = db.import_(line for line in other.export() if b'"id":2' in line)
    assert report.failures == []
    assert [each.text for each in mine.list(status="active")] == ["Likes tea"]
    assert mine.list(status="forgotten")[0].id == 2
    assert mine.remember("other", by="operator").id == 3


def test_nothing_arrives_from_the_future(db):
    say(db, "s", "x")
    future = RECORDED_END_MS - 1
    assert db.import_([line({"at": future}), outcome_line(at=future)]).failures == []
    memory = memory_of(db)
    made = memory.remember("later", by="operator")
    assert memory.get(1).recorded_at <= made.recorded_at < 2**40
    assert memory.record_outcome("s", scenario="sc", passed=False).successes == 0
    assert db.import_([line({"at": future})]).failures == []
    assert db.check() == []


# --- trust ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "by", "status"),
    [
        ({}, "user", "active"),
        ({"by": "operator"}, "user", "active"),
        ({"by": "confirmed"}, "confirmed", "active"),
        ({"by": "tool"}, "tool", "quarantined"),
        ({"sources": []}, "import", "quarantined"),
        ({"by": "operator", "sources": []}, "import", "quarantined"),
        ({"sources": [{**SOURCE, "session": "nowhere"}]}, "import", "quarantined"),
        ({"sources": [{**SOURCE, "seqs": [9]}]}, "import", "quarantined"),
        ({"sources": [{**SOURCE, "session": "t"}]}, "tool", "quarantined"),
        ({"sources": [{**SOURCE, "session": "t", "by": "operator"}]}, "tool", "quarantined"),
        ({"by": "confirmed", "promoted_by": "ann", "sources": [{**SOURCE, "session": "t"}]},
         "tool", "quarantined"),
        ({"sources": [SOURCE, {**SOURCE, "session": "t", "by": "tool"}]}, "user", "active"),
        ({"text": "pasted", "sources": [{**SOURCE, "session": "p"}]}, "import", "quarantined"),
        ({"status": "superseded", "sources": []}, "import", "quarantined"),
        ({"status": "quarantined"}, "user", "quarantined"),
    ],
)  # fmt: skip
def test_a_line_has_the_trust_that_its_sources_prove_here(db, entry, by, status):
    say(db, "s", "x")
    hear(db, "t", "x")
    say(db, "p", "> pasted")
    assert db.import_([line(entry)]).failures == []
    found = memory_of(db).get(1)
    assert (found.by, found.status, found.promoted_by) == (by, status, None)
    assert db.check() == []


def test_earlier_versions_have_no_more_trust(db):
    say(db, "s", "x")
    old = {**ENTRY, "by": "user", "sources": [], "text": "old"}
    assert db.import_([line({"version": 2}, old)]).failures == []
    past, now = memory_of(db).history(1)
    assert (past.by, past.status, now.by, now.status) == ("import", "quarantined", "user", "active")
    assert db.check() == []


def test_an_import_does_not_reach_an_opted_out_user(db):
    say(db, "s", "x")
    scope = db.scope(app="default", user="alice")
    scope.opt_out_memory()
    done = db.import_([outcome_line(), line({})])
    assert (len(done.failures), done.memories) == (2, 0)
    scope.opt_in_memory()
    assert (scope.memory.playbooks(), scope.memory.list()) == ([], [])


# --- links to sessions ----------------------------------------------------------------------------


def test_an_undone_item_is_linked_to_its_session(db, other):
    say(db, "a", "tea", "I like cocoa")
    memory_of(db).remember("Likes cocoa", source=Source("a", (2,)))
    db.session("a", user="alice").undo(1)
    lines = list(db.export(user="alice"))
    for stored in (1, 0):
        done = other.import_(lines)
        assert (done.failures, done.memories) == ([], stored)
    assert memory_of(other).get(1).status == "quarantined"
    other.delete_session("a", user="alice")
    assert texts(other) == []
    assert other.check() == []


@pytest.mark.parametrize("undone", [False, True])
def test_a_redacting_import_finds_sessions_by_their_names(db, open_db, tmp_path, undone):
    name = "chat ann@example.com"
    memory_of(db).remember("Write to bob@example.com", source=say(db, name, "bob@example.com"))
    memory_of(db).record_outcome(name, scenario="a", passed=True)
    redacting = open_db(path=tmp_path / "r.memcore", durability="none", redact="default")
    assert redacting.import_(list(db.export(undone=undone))).failures == []
    assert memory_of(redacting).get(1).sources == (Source(name, (1,)),)
    assert "bob@example.com" not in texts(redacting)[0]
    redacting.delete_session(name, user="alice")
    assert texts(redacting) == []
    assert memory_of(redacting).playbooks() == []


def test_a_redacted_export_is_linked_as_well(db, other):
    name = "chat ann@example.com"
    memory_of(db).remember("Write to bob@example.com", source=say(db, name, "hi"))
    assert other.import_(list(db.export(redact="default"))).failures == []
    other.delete_session(name, user="alice")
    assert texts(other) == []


@pytest.mark.parametrize(("on_conflict", "linked"), [("error", ""), ("skip", ""),
                                                     ("rename", "a (2)")])  # fmt: skip
def test_an_unrelated_session_of_the_same_name_is_not_cited(db, other, on_conflict, linked):
    memory_of(db).remember("Likes tea", source=say(db, "a", "I like tea"))
    memory_of(db).record_outcome("a", scenario="x", passed=True)
    lines = list(db.export(user="alice"))
    say(other, "a", "something unrelated")
    other.import_(lines, on_conflict=on_conflict)
    memory = memory_of(other)
    assert (memory.get(1).status == "active") == bool(linked)
    assert len(memory.playbooks()) == bool(linked)
    other.delete_session("a", user="alice")
    assert texts(other) == ["Likes tea"]
    assert len(memory.playbooks()) == bool(linked)
    other.import_(lines, on_conflict=on_conflict)
    if linked:
        other.delete_session(linked, user="alice")
        assert texts(other) == []
    assert other.check() == []


def test_renamed_sessions_are_found(db, other):
    memory_of(db).remember("Likes tea", source=say(db, "a", "I like tea"))
    lines = list(db.export(user="alice"))
    rename = lambda title: replace(title, session="new-" + title.session)  # noqa: E731
    for _ in range(2):
        assert other.import_(lines, rename=rename).failures == []
    assert memory_of(other).get(1).sources == (Source("new-a", (1,)),)
    assert memory_of(other).get(1).status == "active"
    other.delete_session("new-a", user="alice")
    assert texts(other) == []


def test_a_memory_before_its_session_is_linked(db, other):
    memory_of(db).remember("Likes tea", source=say(db, "a", "I like tea"))
    lines = list(db.export(user="alice"))
    memories = [each for each in lines if b'"entry"' in each]
    rest = [each for each in lines if b'"entry"' not in each]
    assert other.import_(memories).failures == []
    assert other.import_(rest).failures == []
    memory = memory_of(other)
    assert (memory.get(1).status, memory.get(1).by) == ("quarantined", "import")
    other.session("a", user="alice").fork("f")
    assert other.check() == []
    assert other.import_(memories).failures == []
    other.delete_session("a", user="alice")
    assert texts(other) == []
    assert other.check() == []


def test_a_memory_that_arrives_again_after_its_session_is_proven(db, other):
    memory_of(db).remember("Likes tea", source=say(db, "a", "I like tea"))
    lines = list(db.export(user="alice"))
    memories = [each for each in lines if b'"entry"' in each]
    assert other.import_(memories).failures == []
    say(other, "a", "I like tea")
    assert other.import_(memories).failures == []
    assert memory_of(other).get(1).status == "active"
    assert other.check() == []


# --- expiry, commits ------------------------------------------------------------------------------


def test_an_export_leaves_out_what_has_expired(db):
    now_ms = [1_700_000_000_000]
    db.engine.now_us = lambda: now_ms[0] * 1000
    memory_of(db).remember("A coupon", by="operator", expires_at=now_ms[0] / 1000 + 10)
    memory_of(db).remember("Likes tea", by="operator")
    now_ms[0] += 20_000
    assert b"coupon" not in b"".join(db.export(user="alice"))
    assert b"tea" in b"".join(db.export(user="alice"))


def test_memories_are_committed_by_the_hundred(db, other, monkeypatch):
    for number in range(200):
        memory_of(db).remember(f"memory {number}", by="operator")
    lines = list(db.export(user="alice"))
    lines.insert(50, line({"id": 1, "text": "another one"}))
    calls = []
    real = load.import_memories
    monkeypatch.setattr(load, "import_memories", lambda *args: calls.append(args) or real(*args))
    done = other.import_(lines)
    assert (done.memories, len(done.failures), len(calls)) == (200, 1, 2)
    assert texts(other) == texts(db)


def test_a_slots_values_are_read_once_for_all_lines_of_a_commit(db, other, monkeypatch):
    text = "seats " + " ".join(map(str, range(60)))
    source = say(db, "s", text)
    for number in range(60):
        memory_of(db).remember(f"Seat {number}", source=source, subject="alice", slot="seat")
    lines = list(db.export(user="alice"))
    reads, real = [], transfer.read_entry
    monkeypatch.setattr(transfer, "read_entry", lambda *args: reads.append(args) or real(*args))
    assert other.import_(lines).failures == []
    assert len(reads) < 4 * 60
    assert [each.text for each in memory_of(other).list(status="active")] == ["Seat 59"]
    assert [each.text for each in memory_of(other).list(status="superseded")] == [
        each.text for each in memory_of(db).list(status="superseded")
    ]


def test_values_of_a_slot_that_hold_at_one_time_are_refused(other):
    say(other, "s", "Seat x1 x2 x3 x4 x5")
    memory_of(other).remember("x", by="operator")
    told = {"status": "superseded", "slot": "seat", "sources": [{**SOURCE, "by": "user"}]}

    def seat(number: int, start: int | None, stop: int | None, **more: Any) -> bytes:
        said = {"id": number, "text": f"Seat x{number}", "from": start, "to": stop}
        return line({**told, **said, **more})

    done = other.import_([
        seat(2, 100, 200), seat(3, 200, 300), seat(4, 150, 160), seat(5, 50, 101),
        seat(6, 300, 300), seat(7, 50, 100), seat(8, 90, 400), seat(9, None, 20),
        seat(10, 400, None, status="active"), seat(11, 500, None, status="active"),
    ])  # fmt: skip
    assert [each.partition(":")[0] for each in done.failures] == [
        f"line {at}" for at in (3, 4, 7, 8, 10)
    ]
    assert other.check() == []


# --- forks ----------------------------------------------------------------------------------------


def forks_of(db, count: int) -> list[str]:
    """A session in which alice says something, and forks of it."""
    say(db, "parent", "I like tea")
    parent = db.session("parent", user="alice")
    for number in range(count):
        parent.fork(f"fork{number}")
    return [f"fork{number}" for number in range(count)]


@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("leave_out", ["", "parent", "delete"])
def test_forks_of_one_session_are_not_independent_after_an_import(db, other, leave_out, hops):
    forks = forks_of(db, 4)
    for name in forks:
        memory_of(db).remember("Likes tea", source=Source(name, (1,)))
        memory_of(db).record_outcome(name, scenario="a", passed=True)
    assert memory_of(db).list()[0].support == 1
    if leave_out == "delete":
        db.delete_session("parent", user="alice")
    lines = list(db.export(user="alice"))
    if leave_out == "parent":
        lines = list(whole_but(lines, "parent"))
    for _ in range(hops - 1):
        with memcore.open(":memory:") as between:
            assert between.import_(lines).failures == []
            lines = list(between.export(user="alice"))
    assert other.import_(lines).failures == []
    memory = memory_of(other)
    assert [each.support for each in memory.list()] == [1]
    assert [each.successes for each in memory.playbooks()] == [1]
    for name in forks:
        memory.remember("Drinks tea", source=Source(name, (1,)), by="assistant")
        memory.record_outcome(name, scenario="b", passed=True)
    assert [each.support for each in memory.list()] == [1, 1]
    assert {each.scenario: each.status for each in memory.playbooks()}["b"] != "active"
    say(other, "independent", "I like tea")
    memory.remember("Drinks tea", source=Source("independent", (1,)), by="assistant")
    assert memory.list()[1].support == 2
    assert other.import_(lines).failures == []
    assert [each.support for each in memory.list()] == [1, 2]
    assert other.check() == []


def test_a_fork_that_is_imported_after_its_root_is_not_independent(db, other):
    forks_of(db, 1)
    renamed = lambda title: replace(title, session="new-" + title.session)  # noqa: E731
    for name in ("parent", "fork0"):
        lines = list(db.export(name, user="alice"))
        assert other.import_(lines).failures == []
        assert other.import_(lines, rename=renamed).failures == []
    memory = memory_of(other)
    for name in ("parent", "fork0"):
        memory.remember("Likes tea", source=Source(name, (1,)))
        memory.remember("Drinks tea", source=Source("new-" + name, (1,)), by="assistant")
    assert [each.support for each in memory.list()] == [1, 1]


def test_a_stranger_with_the_name_of_a_root_is_independent(db, other):
    forks_of(db, 1)
    say(other, "parent", "Something else")
    lines = list(db.export("parent", user="alice"))
    assert other.import_(lines, on_conflict="rename").failures == []
    assert other.import_(list(db.export("fork0", user="alice"))).failures == []
    memory = memory_of(other)
    for name in ("parent", "fork0"):
        memory.remember("Likes tea", source=Source(name, (1,)), by="assistant")
    assert [each.support for each in memory.list()] == [2]


def test_a_renaming_is_asked_of_the_sessions_in_the_file_alone(db, other):
    forks_of(db, 1)
    say(db, "parent", "I like tea")
    lines = list(whole_but(db.export(user="alice"), "parent"))
    asked = []

    def rename(title):
        asked.append(title.session)
        return replace(title, session={"fork0": "f"}[title.session])

    assert other.import_(lines, rename=rename).failures == []
    assert asked == ["fork0"]


def test_an_imported_fork_that_is_replaced_stays_one_of_its_family(db, other):
    forks = forks_of(db, 2)
    for number in range(3):
        for name in ("parent", *forks):
            db.session(name, user="alice").append({"role": "user", "content": f"tea {number}"})
    assert other.import_(list(db.export(user="alice"))).failures == []
    memory = memory_of(other)
    for name in ("parent", *forks):
        memory.remember("Likes tea", source=Source(name, (4,)))
        memory.record_outcome(name, scenario="a", passed=True)
    other.retention.set([{"what": "items", "keep_last": 2, "action": "remove"}])
    assert other.sweep().items_removed > 0
    for name in ("parent", *forks):
        last = other.session(name, user="alice").tail(1)[0].seq
        memory.remember("Likes tea", source=Source(name, (last,)))
        memory.record_outcome(name, scenario="a", passed=True)
    assert [each.support for each in memory.list()] == [1]
    assert [each.successes for each in memory.playbooks()] == [1]
    assert other.check() == []


def whole_but(lines, name):
    """The lines of an export without those of one session."""
    skipping = False
    for each in lines:
        told = json.loads(each)
        if "memcore" in told:
            skipping = told.get("session") == name
        if not skipping:
            yield each


def test_a_fork_of_a_fork_and_an_older_export_have_one_root(db, other):
    forks_of(db, 1)
    db.session("fork0", user="alice").fork("deep")
    lines = []
    for each in db.export(user="alice"):
        told = json.loads(each)
        if told.get("forked_from"):  # as earlier versions wrote it
            del told["forked_from"]["root"]
        lines.append(json.dumps(told).encode())
    assert other.import_(lines).failures == []
    for name in ("parent", "fork0", "deep"):
        memory_of(other).remember("Likes tea", source=Source(name, (1,)))
    assert memory_of(other).list()[0].support == 1
    assert other.delete_session("parent", user="alice")
    for name in ("fork0", "deep"):
        memory_of(other).remember("Drinks tea", source=Source(name, (1,)), by="assistant")
    assert memory_of(other).list()[-1].support == 1


@pytest.mark.parametrize("note", [7, 2**63, 0, -1, "x", None, [1]])
def test_a_planted_root_is_an_error_and_no_loop(db, note):
    say(db, "s", "x")
    memory_of(db).remember("y", by="operator")
    number = db.engine.store.read(lambda txn: names.session_of(txn, 1, "s"))
    scope = db.scope(app="default", user="alice")
    with pytest.raises(InvalidOptionError, match="memcore's own"):
        scope.kv(ROOTS)
    notes = scope._rows(ROOTS, gated=False, memory=False)
    notes.put(f"{number:016x}", note)
    with pytest.raises(CorruptValueError):
        memory_of(db).remember("x", source=Source("s", (1,)))
    (finding,) = db.check()
    assert "the root of an imported session is damaged" in finding
    notes.clear()


def test_titles_that_fork_from_each_other_end(db):
    forks_of(db, 1)
    lines = []
    for each in db.export(user="alice"):
        told = json.loads(each)
        if "session" in told:
            name = {"parent": "fork0", "fork0": "parent"}[told["session"]]
            told["forked_from"] = {"session": name, "seq": 1, "root": name}
        lines.append(json.dumps(told).encode())
    db.delete_session("fork0", user="alice")
    db.delete_session("parent", user="alice")
    assert db.import_(lines).failures == []
    assert len(list(db.sessions(user="alice"))) == 2


def test_an_unproven_value_that_is_promoted_has_nobody_in_its_place(open_db, path) -> None:
    with memcore.open(":memory:") as db:
        alice = db.scope(user="alice")
        for session, text in (("s0", "Likes the aisle"), ("s1", "Likes the window")):
            alice.session(session).append({"role": "user", "content": text})
            source = Source(session, seqs=(1,))
            alice.memory.remember(text, source=source, subject="alice", slot="seat")
        old = alice.memory.list(slot="seat", status="superseded")[0]
        lines = [line for line in db.export() if b'"entry"' in line and b"window" not in line]
    other = open_db(path=path)
    other.import_(lines)
    memory = other.scope(user="alice").memory
    assert memory.get(old.id).status == "quarantined"
    new = memory.promote(old.id, by="ann")
    assert (new.status, new.superseded_by) == ("active", None)
    assert other.check() == []
