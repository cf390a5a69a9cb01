"""The audit of a database: no false alarm, keys, anchors, retention, what goes and what stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

import memcore
from memcore.audit import end_scope, record_event
from memcore.audit.anchors import AnchorFile
from memcore.audit.verify import Why
from memcore.codec import keys
from memcore.codec.audit_entry import Chainer
from memcore.codec.keys import Row
from memcore.store.audit_log import Recording
from memcore.store.datafile import AUDITED, FORMAT_KEY, Format

KEY = bytes(range(32))


def message(text: Any) -> dict[str, str]:
    return {"role": "user", "content": str(text)}


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    return tmp_path / "anchor.jsonl"


@pytest.fixture
def open_audited(path: Path, anchor: Path, open_db: Callable[..., memcore.Database]):
    def open_one(*, every_entries: int = 5, **options: Any) -> memcore.Database:
        audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=every_entries)
        options.setdefault("durability", "relaxed")
        return open_db(audit=audit, **options)

    return open_one


def sound(db: memcore.Database) -> memcore.audit.report.AuditReport:
    report = db.verify_audit()
    assert report.findings == ()
    assert report.anchor_problems == ()
    return report


# --- no false alarm ------------------------------------------------------------------------------


def test_everything_that_a_session_does_holds(open_audited) -> None:
    db = open_audited()
    session = db.session("s")
    session.extend([message(n) for n in range(20)])
    session.state.update({"a": 1, "b": [1, 2]})
    session.checkpoint("c")
    session.undo(3)
    session.append(message("x" * 50_000))
    session.compact(keep_last=3)
    session.uncompact()
    fork = session.fork("fork", at=5)
    fork.append(message("more"))
    session.rewind("c")
    with session.batch() as batch:
        batch.append(message("in a batch"))
        batch.append(message("and another"))
    session.recover()
    session.state.update({"a": 2})
    session.recount("bytes/4")
    session.delete_checkpoint("c")
    report = sound(db)
    assert report.chains == 4
    assert report.rows > 30


def test_what_a_scope_holds_is_chained(open_audited) -> None:
    db = open_audited()
    scope = db.scope(user="ann")
    facts = scope.kv("facts")
    for n in range(10):
        facts.put(f"k{n}", {"n": n})
    facts.delete("k3")
    facts.delete_range("k5", "k8")
    scope.graph  # noqa: B018 - threads of graphs lie in it, too
    db.session("s", user="ann").append(message("x" * 300_000))
    db.delete_session("s", user="ann")
    facts.clear()
    assert sound(db).chains == 2


def test_deletions_of_sessions_hold_also_half_way(open_audited, monkeypatch) -> None:
    db = open_audited()
    for name in ("short", "long", "parent"):
        db.session(name).extend([message(n) for n in range(3000 if name == "long" else 3)])
    db.session("parent").fork("child").append(message("own"))
    db.delete_session("parent")
    sound(db)
    db.delete_session("short")
    sound(db)
    from memcore.session import delete as removal

    with monkeypatch.context() as patch:
        patch.setattr(removal, "_go_on", lambda *_: None)
        patch.setattr(removal, "resume_removals", lambda *_, **__: None)
        db.delete_session("long")
    sound(db)  # a piece of it is gone
    removal.resume_removals(db.engine.store)
    db.delete_session("child")
    report = sound(db)
    assert report.chains == 2
    assert not list(db.sessions())


def test_the_chain_of_a_fork_begins_with_its_parents_head(open_audited) -> None:
    db = open_audited()
    session = db.session("s")
    session.extend([message(n) for n in range(4)])
    session.fork("fork", at=2)
    parent = list(db.audit_entries("s", user="default", app="default"))
    first = next(db.audit_entries("fork", user="default", app="default"))
    assert (first.operation, first.row) == ("fork", f"session 1 at entry {parent[-1].number}")


def test_threads_write_one_session(open_audited) -> None:
    db = open_audited()

    def work(number: int) -> None:
        session = db.session("shared")
        for turn in range(12):
            session.append(message((number, turn)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(db.session("shared")) == 96
    sound(db)


def write_in_a_fork(path: Path, anchor: Path, turns: int) -> tuple[int, int]:
    """A process that writes one session; its id, and a pipe that tells when it is busy."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=3)
        with memcore.open(path, audit=audit, durability="relaxed") as db:
            for turn in range(turns):
                db.session("shared").append(message((os.getpid(), turn)))
                if turn == 8:
                    os.write(writing, b"!")
        status = 0
    finally:
        os._exit(status)


def test_processes_write_one_session_and_one_is_killed(path, anchor, open_audited) -> None:
    children = [write_in_a_fork(path, anchor, turns) for turns in (20, 20, 10**9)]
    busy = [os.read(reading, 1) for _, reading in children]
    os.kill(children[2][0], signal.SIGKILL)  # at once: it would go on for ever
    ended = [os.waitpid(child, 0)[1] for child, _ in children]
    for _, reading in children:
        os.close(reading)
    assert busy == [b"!"] * 3
    assert ended == [0, 0, signal.SIGKILL]
    db = open_audited()
    assert len(db.session("shared")) > 48
    sound(db)
    db.session("shared").append(message("afterwards"))
    db.flush()
    assert sound(db).anchors > 10


def test_another_process_begins_the_audit_while_this_one_opens(path, monkeypatch) -> None:
    from memcore.audit import start

    looks = start.is_audited
    begins = (
        f"import memcore; memcore.open({str(path)!r}, audit=memcore.Audit(key={KEY!r})).close()"
    )

    def looks_before(txn, name):
        found = looks(txn, name)
        if not found:
            subprocess.run([sys.executable, "-c", begins], check=True)
        return found

    monkeypatch.setattr(start, "is_audited", looks_before)
    with memcore.open(path, audit=memcore.Audit(key=KEY)) as db:
        db.session("s").append(message(1))
        sound(db)


def test_an_aborted_closure_leaves_no_entry(open_audited) -> None:
    db = open_audited()
    db.session("s").append(message("one"))

    def fails(txn) -> None:
        key = keys.session_row(1, 1, Row.ITEM, 99)
        txn.put(key, b"half")
        raise RuntimeError

    before = sound(db).entries
    with pytest.raises(RuntimeError):
        db.engine.store.transact(fails)
    assert sound(db).entries == before
    db.session("s").append(message("two"))
    assert sound(db).entries == before + 1


# --- the key -------------------------------------------------------------------------------------


def test_an_audited_file_is_not_written_without_its_key(path, open_audited) -> None:
    open_audited().session("s").append(message("one"))
    with pytest.raises(memcore.AuditError, match="is audited"):
        memcore.open(path)
    with pytest.raises(memcore.AuditError, match="another audit key"):
        memcore.open(path, audit=memcore.Audit(key=bytes(32)))


def test_a_wrong_key_changes_nothing(path, tmp_path) -> None:
    with memcore.open(path, audit=memcore.Audit(key=KEY)) as db:
        db.session("s").append(message("one"))
    before = path.read_bytes()
    for audit in (None, memcore.Audit(key=bytes(32)), memcore.Audit(key=lambda: KEY[::-1])):
        with pytest.raises(memcore.AuditError):
            memcore.open(path, audit=audit)
    assert path.read_bytes() == before
    with memcore.open(path, read_only=True) as db:
        assert len(db.session("s")) == 1
        assert db.verify_audit(key=KEY).ok
        assert db.verify_audit(key=bytes(32)).entries == 0
        with pytest.raises(memcore.InvalidOptionError):
            db.verify_audit()


@pytest.mark.parametrize(
    "options",
    [
        {"key": b"short"},
        {"key": "x" * 64},
        {"key": KEY, "anchor": 3},
        {"key": KEY, "every_entries": 0},
        {"key": KEY, "every_seconds": float("nan")},
        {"key": KEY, "on_failure": "ignore"},
        {"key": KEY, "keep_seconds": -1},
    ],
)
def test_options_are_checked(options) -> None:
    with pytest.raises(memcore.InvalidOptionError):
        memcore.Audit(**options)


def test_the_key_is_not_shown() -> None:
    assert "key" not in repr(memcore.Audit(key=KEY))


def test_a_key_from_the_environment(monkeypatch, tmp_path) -> None:
    assert memcore.Audit.from_environment() is None
    file = tmp_path / "key"
    file.write_bytes(KEY)
    monkeypatch.setenv("MEMCORE_AUDIT_KEY_FILE", str(file))
    assert memcore.Audit.from_environment().key_bytes() == KEY
    file.write_text(KEY.hex() + "\n")
    assert memcore.Audit.from_environment().key_bytes() == KEY
    monkeypatch.setenv("MEMCORE_AUDIT_KEY", "no digits")
    with pytest.raises(memcore.InvalidOptionError):
        memcore.Audit.from_environment()


# --- beginning -----------------------------------------------------------------------------------


def test_a_file_that_holds_something_is_covered(path, open_db, open_audited, monkeypatch) -> None:
    from memcore.audit import start as starting

    monkeypatch.setattr(starting, "_PIECE_ROWS", 50)
    monkeypatch.setattr(starting, "_PAGE_ROWS", 7)
    with memcore.open(path) as db:
        session = db.session("s")
        session.extend([message(n) for n in range(120)])
        session.state.update({"a": 1})
        session.fork("fork", at=7).append(message("own"))
        db.scope(user="ann").kv("facts").put("k", 1)
    db = open_audited(durability=None)
    assert sound(db).rows > 120
    session = db.session("s")
    session.state.update({"a": 2})
    session.append(message("more"))
    db.scope(user="ann").kv("facts").delete("k")
    db.delete_session("fork")
    sound(db)
    with pytest.raises(memcore.AuditError):
        memcore.open(path)


def test_beginning_that_was_cut_short_is_gone_on_with(path, open_audited, monkeypatch) -> None:
    from memcore.audit import start as starting

    monkeypatch.setattr(starting, "_PIECE_ROWS", 10)
    with memcore.open(path) as db:
        db.session("s").extend([message(n) for n in range(40)])
    calls = iter((True, True, False))
    cover = starting._cover

    def fails(*arguments):
        if not next(calls):
            raise RuntimeError
        return cover(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(starting, "_cover", fails)
        with pytest.raises(RuntimeError):
            memcore.open(path, audit=memcore.Audit(key=KEY))
    with pytest.raises(memcore.AuditError):
        memcore.open(path)
    sound(open_audited(durability=None))


def raw(path: Path, changes: dict[bytes, bytes | None]) -> None:
    with lmdb.open(str(path), subdir=False) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            txn.delete(key) if value is None else txn.put(key, value)


def test_a_flag_that_was_taken_away_is_noticed(path) -> None:
    audit = memcore.Audit(key=KEY)
    with memcore.open(path, audit=audit) as db:
        db.session("s").append(message("one"))
    with lmdb.open(str(path), subdir=False) as env, env.begin() as txn:
        record = Format.unpack(bytes(txn.get(FORMAT_KEY)), str(path))
    raw(path, {FORMAT_KEY: record._replace(features=0).pack()})
    with pytest.raises(memcore.AuditError, match="somebody changed"):
        memcore.open(path, audit=audit)
    with memcore.open(path, read_only=True) as db:
        (finding,) = db.verify_audit(key=KEY).findings
    assert (finding.entry, finding.why, finding.user) == (1, Why.MODIFIED, None)
    assert record.features == AUDITED
    chain = keys.audit_rows(0, 0)
    raw(path, {FORMAT_KEY: record.pack(), **{keys.numbered(chain, n): None for n in range(1, 9)}})
    with pytest.raises(memcore.AuditError, match="is gone"):
        memcore.open(path, audit=audit)


def test_without_an_audit_there_is_none_to_verify(open_db) -> None:
    with pytest.raises(memcore.AuditError, match="not audited"):
        open_db().verify_audit(key=KEY)


def test_what_is_written_by_somebody_without_audit_is_named(path, anchor) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor)
    with memcore.open(path, audit=audit) as db:
        db.session("s").append(message("one"))
        db.session("t").append(message("two"))
        db.flush()
        db.engine.store.environment().audit = None
        db.session("s").append(message("not chained"))
        db.session("new").append(message("not chained either"))
    with memcore.open(path, read_only=True) as db:
        found = {f.session: f for f in db.verify_audit(key=KEY, anchor=anchor).findings}
    assert (found["s"].entry, found["s"].why) == (2, Why.UNAUDITED)
    assert (found["new"].entry, found["new"].why) == (1, Why.UNAUDITED)
    assert "t" not in found


# --- anchors -------------------------------------------------------------------------------------


def lines(anchor: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in anchor.read_text().splitlines() if line.startswith("{")]


def test_anchors_come_by_entries_at_flush_and_at_close(anchor, path) -> None:
    with memcore.open(path, audit=memcore.Audit(key=KEY, anchor=anchor, every_entries=10)) as db:
        session = db.session("s")
        for n in range(12):
            session.append(message(n))
        assert 1 <= len(lines(anchor)) < 4
        db.flush()
        flushed = lines(anchor)
        assert flushed[-1]["heads"][-1][:3] == [1, 1, 12]
        db.flush()
        assert lines(anchor) == flushed
        session.append(message("last"))
    assert lines(anchor)[-1]["heads"] == [[1, 1, 13, lines(anchor)[-1]["heads"][0][3]]]
    assert [line["n"] for line in lines(anchor)] == list(range(1, len(lines(anchor)) + 1))


def test_anchors_come_by_time(anchor, open_audited) -> None:
    db = open_audited(every_entries=10**6)
    recorder = db.engine.store.environment().audit
    now = recorder.clock()
    recorder.clock = lambda: now
    db.session("s").append(message(1))
    assert not anchor.exists()
    now += 61
    db.session("s").append(message(2))
    assert len(lines(anchor)) == 1


def test_a_callback_is_an_anchor(path) -> None:
    told: list[str] = []
    for turn in range(2):
        audit = memcore.Audit(key=KEY, anchor=told.append, every_entries=4)
        with memcore.open(path, audit=audit) as db:
            for n in range(6):
                db.session("s").append(message((turn, n)))
            report = db.verify_audit(anchor=told)
            assert report.ok
            assert report.anchors == len(told) > turn
    with memcore.open(path, read_only=True) as db:
        missing = db.verify_audit(key=KEY, anchor=told[1:])
        assert missing.anchor_problems
        changed = [told[0].replace('"n":1', '"n":2'), *told[1:]]
        assert db.verify_audit(key=KEY, anchor=changed).anchor_problems


@pytest.mark.parametrize("on_failure", ["raise", "log"])
def test_an_anchor_that_fails_loses_no_commit(path, tmp_path, on_failure) -> None:
    directory = tmp_path / "not there yet"
    anchor = directory / "anchor"
    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=3, on_failure=on_failure)
    db = memcore.open(path, audit=audit)
    session = db.session("s")
    stored = 0
    refused = 0
    for n in range(8):
        try:
            session.append(message(n))
            stored += 1
        except memcore.AuditError:
            refused += 1
    assert len(session) == stored
    assert bool(refused) == (on_failure == "raise")
    if refused:
        with pytest.raises(memcore.AuditError):
            db.flush()
    directory.mkdir()
    session.append(message("again"))
    db.close()
    with memcore.open(path, read_only=True) as db:
        assert len(db.session("s")) == stored + 1
        report = db.verify_audit(key=KEY, anchor=anchor)
        assert report.ok
        assert report.anchors


def test_a_close_that_cannot_anchor_says_so_and_closes(path, tmp_path) -> None:
    anchor = tmp_path / "missing" / "anchor"
    db = memcore.open(path, audit=memcore.Audit(key=KEY, anchor=anchor))
    db.session("s").append(message(1))
    with pytest.raises(memcore.AuditError):
        db.close()
    with memcore.open(path, audit=memcore.Audit(key=KEY)) as db:
        assert len(db.session("s")) == 1


def test_a_torn_line_is_gone_on_behind(anchor, path) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=1)
    for _ in range(2):
        with memcore.open(path, audit=audit) as db:
            db.session("s").append(message("x"))
        with anchor.open("ab") as file:
            file.write(b'{"v":1,"file":"torn')
    with memcore.open(path, audit=audit) as db:
        db.session("s").append(message("x"))
        report = sound(db)
    assert report.anchors >= 3


@pytest.mark.parametrize("left", [0, 1, 100, 512])
def test_a_first_line_that_a_power_cut_left_as_nuls_is_gone_on_behind(anchor, path, left) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=1)
    with memcore.open(path, audit=audit) as db:
        db.session("s").append(message("x"))
    lines = anchor.read_bytes()
    first = lines[: lines.index(b"\n")]
    for torn in (bytes(len(first)), bytes(left) + first[left:], first[:left] or first):
        anchor.write_bytes(torn)
        with memcore.open(path, read_only=True) as db:
            report = db.verify_audit(key=KEY, anchor=anchor)
            assert report.findings == report.anchor_problems == ()
        with memcore.open(path, audit=audit) as db:
            db.session("s").append(message("y"))
            assert sound(db).anchors >= 1


def test_a_file_of_others_that_begins_with_nuls_is_no_anchor(anchor, path) -> None:
    anchor.write_bytes(bytes(70_000) + b"others")
    audit = memcore.Audit(key=KEY, anchor=anchor)
    with pytest.raises(memcore.AuditError, match="no anchor"):
        memcore.open(path, audit=audit).close()
    assert anchor.read_bytes() == bytes(70_000) + b"others"


def test_an_anchor_that_was_tampered_with_is_told(anchor, path) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=1)
    with memcore.open(path, audit=audit) as db:
        for n in range(5):
            db.session("s").append(message(n))
    whole = anchor.read_bytes().splitlines(keepends=True)
    with memcore.open(path, read_only=True) as db:
        for at in range(1, len(whole) - 1):
            dropped = [*whole[:at], *whole[at + 1 :]]
            swapped = [*whole[:at], whole[at + 1], whole[at], *whole[at + 2 :]]
            bent = [*whole[:at], whole[at].replace(b'"at":1', b'"at":2'), *whole[at + 1 :]]
            seam = whole[at].rindex(b',"mac":"')
            spelled = [*whole[:at], whole[at][:seam] + ',"mac":"é"}\n'.encode(), *whole[at + 1 :]]
            nested = b',"x":' + b"[" * 100_000 + b"]" * 100_000
            deep = [*whole[:at], whole[at][:seam] + nested + whole[at][seam:], *whole[at + 1 :]]
            for forged in (dropped, swapped, bent, spelled, deep):
                assert db.verify_audit(key=KEY, anchor=forged).anchor_problems
        assert db.verify_audit(key=KEY, anchor=whole).ok


def test_an_anchor_that_shrinks_is_refused(anchor, open_audited) -> None:
    db = open_audited(every_entries=1)
    db.session("s").append(message(1))
    db.session("s").append(message(2))
    kept = anchor.read_bytes()
    anchor.write_bytes(kept.splitlines(keepends=True)[0])
    with pytest.raises(memcore.AuditError):
        for n in range(2):
            db.session("s").append(message(n))
    anchor.write_bytes(kept)
    db.session("s").append(message("on"))


def test_the_anchor_of_another_database_is_refused(anchor, tmp_path) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor)
    with memcore.open(tmp_path / "a", audit=audit) as db:
        db.session("s").append(message(1))
    db = memcore.open(tmp_path / "b", audit=audit)
    db.session("s").append(message(1))
    with pytest.raises(memcore.AuditError, match="another database"):
        db.close()
    with pytest.raises(memcore.AuditError, match="no anchor"):
        memcore.open(tmp_path / "c", audit=memcore.Audit(key=KEY, anchor=tmp_path / "a")).close()


def test_what_a_killed_process_left_unanchored_is_anchored_by_the_next(path, anchor) -> None:
    child = os.fork()
    if not child:
        audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=10**6)
        db = memcore.open(path, audit=audit)
        db.session("s").append(message(1))
        os._exit(0)
    os.waitpid(child, 0)
    assert not anchor.exists()
    with memcore.open(path, audit=memcore.Audit(key=KEY, anchor=anchor)) as db:
        db.session("t").append(message(2))
    assert {tuple(head[:2]) for head in lines(anchor)[-1]["heads"]} >= {(1, 1), (1, 2)}


def test_a_restored_backup_is_a_rollback_until_it_is_accepted(path, anchor, tmp_path) -> None:
    audit = memcore.Audit(key=KEY, anchor=anchor)
    with memcore.open(path, audit=audit) as db:
        db.session("s").append(message(1))
        db.backup(tmp_path / "backup")
        db.session("s").append(message(2))
        assert db.verify_audit().ok
    with memcore.open(tmp_path / "backup", read_only=True) as db:
        assert db.verify_audit(key=KEY).ok
    memcore.restore(tmp_path / "backup", path, replace=True)
    with memcore.open(path, audit=audit) as db:
        (finding,) = db.verify_audit().findings
        assert (finding.session, finding.entry, finding.why) == ("s", 2, Why.TRUNCATED)
        db.anchor_audit(reset=True)
        report = db.verify_audit()
        assert report.ok
        assert report.resets == 1
        db.session("s").append(message(3))
        db.flush()
        assert db.verify_audit().ok


# --- retention, copies, events -------------------------------------------------------------------


def test_old_entries_are_cut_and_their_rows_still_proven(path, open_audited, monkeypatch) -> None:
    from memcore.audit import verify as cutting

    monkeypatch.setattr(cutting, "_PIECE", 8)
    db = open_audited()
    session = db.session("s", user="ann")
    for n in range(30):
        session.append(message(n))
    session.state.update({"a": 1})
    session.undo(2)
    db.session("gone", user="ann").append(message("x"))
    db.delete_session("gone", user="ann")
    assert db.cut_audit(older_than_seconds=3600) == 0
    rows = sound(db).rows
    assert db.cut_audit(older_than_seconds=0) > 20
    report = sound(db)
    assert report.rows == rows
    assert report.entries < 25
    session.append(message("more"))
    session.state.update({"a": 2})
    assert db.cut_audit(older_than_seconds=0)
    sound(db)
    db.close()
    item = keys.session_row(1, 1, Row.ITEM, 3)
    with lmdb.open(str(path), subdir=False) as env, env.begin() as txn:
        kept = bytes(txn.get(item))
    raw(path, {item: None})
    with memcore.open(path, read_only=True) as db:
        (finding,) = db.verify_audit(key=KEY).findings
        assert finding.what == "item 3: is missing"
    raw(path, {item: kept})


def test_a_cut_needs_a_sound_chain(path) -> None:
    audit = memcore.Audit(key=KEY, keep_seconds=0)
    with memcore.open(path, audit=audit) as db:
        for n in range(6):
            db.session("s").append(message(n))
    raw(path, {keys.session_row(1, 1, Row.AUDIT, 3): b"\x01\x00forged"})
    with memcore.open(path, audit=audit) as db:
        with pytest.raises(memcore.AuditError, match="entry 3"):
            db.cut_audit()
        (finding,) = db.verify_audit().findings
        assert (finding.entry, finding.why) == (3, Why.MODIFIED)


def test_a_compact_copy_holds(open_audited) -> None:
    db = open_audited()
    db.session("s").extend([message(n) for n in range(20)])
    db.copy_compact(durability="full")
    db.session("s").append(message("more"))
    sound(db)


def test_a_salvaged_file_begins_anew(path, tmp_path) -> None:
    with memcore.open(path, audit=memcore.Audit(key=KEY)) as db:
        db.session("s").extend([message(n) for n in range(20)])
    report = memcore.salvage(path, tmp_path / "new")
    assert any("audit" in lost for lost in report.lost)
    with memcore.open(tmp_path / "new") as db:
        assert len(db.session("s")) == 20
    with memcore.open(tmp_path / "new", audit=memcore.Audit(key=KEY)) as db:
        assert sound(db).rows >= 20


def test_events_are_chained(open_audited) -> None:
    db = open_audited()
    db.session("s", user="ann").append(message(1))
    store = db.engine.store
    store.transact(lambda txn: record_event(txn, 0, "keys rotated", {"to": 2}))
    store.transact(lambda txn: record_event(txn, 1, "erased", {"sessions": 1}))
    told = [entry.row for entry in db.audit_entries()]
    assert 'keys rotated {"to": 2}' in told
    assert 'erased {"sessions": 1}' in [e.row for e in db.audit_entries(user="ann", app="default")]
    sound(db)


def test_a_scope_that_ends_takes_its_chain_along(open_audited) -> None:
    db = open_audited()
    db.session("s", user="ann").append(message(1))
    db.session("t", user="bob").append(message(1))
    db.flush()
    db.delete_session("s", user="ann")

    def erase(txn) -> None:
        end_scope(txn, 1)
        prefix = keys.audit_care(1)
        txn.delete_range(prefix, keys.after(prefix))
        txn.delete(keys.scoped(keys.Kind.SCOPE, 1))
        for key, _ in list(txn.scan(b"\x03", b"\x04")):
            if b"ann" in key:
                txn.delete(key)

    db.engine.store.transact(erase)
    db.flush()
    assert sound(db).chains == 3
    assert db.session("t", user="bob").exists()


def test_no_name_of_a_user_or_session_stands_in_a_chain(open_audited) -> None:
    db = open_audited()
    db.session("the-session", user="the-user", app="the-app").append(message(1))

    def chains(txn) -> bytes:
        rows = [txn.scan(b"\x12", b"\x13"), txn.scan(b"\x05", b"\x06")]
        return b"".join(v for found in rows for k, v in found if k[0] == 0x12 or k[17] == 0x0D)

    assert b"the-" not in db.engine.store.read(chains)


def test_without_an_audit_nothing_is_noted(open_db, monkeypatch) -> None:
    monkeypatch.setattr(Recording, "__init__", None)
    db = open_db()
    db.session("s").append(message(1))
    assert db.engine.store.environment().audit is None


def test_chains_larger_than_memory_are_gone_through_in_parts(open_audited) -> None:
    from memcore.audit.anchors import Anchored
    from memcore.audit.verify import Verification
    from memcore.codec.audit_entry import Chainer

    db = open_audited()
    session = db.session("s")
    for n in range(50):
        session.append(message(n))
        session.state.update({f"f{n % 7}": n})
    db.scope().kv("k").put("a", 1)
    store = db.engine.store
    whole = sound(db)
    parts = Verification(store, Chainer(KEY, store.seed), Anchored(), rows_max=10)
    parts.run()
    assert parts.found == {}
    assert (parts.rows, parts.entries) == (whole.rows, whole.entries)


def test_rules_of_retention_cut_the_audit_and_events_tell_of_care(tmp_path):
    options = {"audit": memcore.Audit(key=b"k" * 32)}
    with memcore.open(str(tmp_path / "a.memcore"), **options) as db:
        session = db.session("chat", user="ann")
        for n in range(20):
            session.append({"role": "user", "content": f"text {n}"})
        db.retention.set([{"what": "audit", "max_age_seconds": 60}])
        held = db.scope(user="ann")
        held.hold(reason="case 7")
        db.sweep(now=4e9)
        assert sum(1 for _ in db.audit_entries("chat", user="ann", app="default")) == 20
        held.release()
        held.opt_out_memory()
        told = [entry.row for entry in db.audit_entries(user="ann", app="default")]
        assert [row.split()[0] for row in told if row[:4] in ("hold", "rele", "opt ")] == [
            "hold", "release", "opt",
        ]  # fmt: skip
        assert db.sweep(now=4e9).audit >= 19
        assert db.verify_audit().findings == ()
        assert db.check() == []
        assert any(entry.row.startswith("sweep ") for entry in db.audit_entries())


def test_an_anchor_on_a_full_device_holds_up_no_deletion(path, anchor, monkeypatch, caplog) -> None:
    """Whoever has to delete to make room must not have to make room first."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    audit = memcore.Audit(key=KEY, anchor=anchor, every_entries=1)
    db = memcore.open(path, audit=audit)
    for user in ("alice", "bob"):
        db.session("s", user=user).extend([message(n) for n in range(6)])
        db.scope(user=user).kv("notes").put("k", 1)
    db.flush()
    with monkeypatch.context() as patch:
        patch.setattr(AnchorFile, "_append", full)
        session = db.session("s", user="bob")
        session.append(message(7))  # stored, and then the anchor fails
        with pytest.raises(memcore.AuditError, match=r"No space left.*deletions go on"):
            session.append(message(8))
        with pytest.raises(memcore.AuditError):
            db.flush()
        assert len(session.undo(2)) == 2
        assert db.scope(user="bob").kv("notes").delete("k")
        assert db.check() == []
        receipt = db.erase("alice")
        assert "removed" in receipt.method
        assert db.delete_session("s", user="bob")
        db.close()
    assert "could not be anchored" in caplog.text
    with memcore.open(path, audit=audit) as db:
        assert db.check() == []
    with memcore.open(path, read_only=True) as db:
        report = db.verify_audit(key=KEY, anchor=anchor)
        assert report.ok
        assert report.is_anchored
        assert {entry.app for entry in db.sessions()} == set()


def test_what_was_not_anchored_on_a_full_device_is_anchored_by_the_same_handle(
    path, anchor, monkeypatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with memcore.open(path, audit=memcore.Audit(key=KEY, anchor=anchor, every_entries=1)) as db:
        session = db.session("s")
        session.extend([message(n) for n in range(6)])
        with monkeypatch.context() as patch:
            patch.setattr(AnchorFile, "_append", full)
            session.undo(1)
            session.undo(1)
        before = anchor.read_bytes()
        session.append(message(9))
        assert anchor.read_bytes() != before
        assert db.verify_audit(anchor=anchor).ok


def test_a_line_that_does_not_fit_the_device_leaves_nothing_of_itself(anchor, monkeypatch) -> None:
    lines = AnchorFile(Chainer(KEY, bytes(16)), bytes(16), str(anchor))
    lines.write({(0, 0): (1, bytes(32))})
    before = anchor.read_bytes()
    write = os.write

    def short(fd: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", full)
        return write(fd, content[:20])

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(memcore.AuditError, match="No space"):
        lines.write({(0, 0): (2, bytes(32))})
    monkeypatch.setattr(os, "write", write)
    assert anchor.read_bytes() == before
    lines.write({(0, 0): (3, bytes(32))})
    assert len(anchor.read_bytes().splitlines()) == 2


def test_the_entries_of_a_session_are_its_own_without_its_user(path) -> None:
    """They were those of the database, whatever was asked for."""
    with memcore.open(path, audit=memcore.Audit(key=KEY)) as db:
        db.session("s").append({"role": "user", "content": "hello"})
        db.session("t", user="ann").append({"role": "user", "content": "hello"})
        whole = list(db.audit_entries())
        found = list(db.audit_entries("s"))
        assert found == list(db.audit_entries("s", user="default", app="default")) != whole
        assert list(db.audit_entries(user="ann")) != whole
        with pytest.raises(memcore.NotFoundError):
            list(db.audit_entries("t"))
        with pytest.raises(memcore.NotFoundError):
            list(db.audit_entries(user="bob"))
