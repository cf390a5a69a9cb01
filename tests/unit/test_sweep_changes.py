"""Sweeps beside which data changes, is held or is leased; what cannot be swept is not archived."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memcore
from messages import user as said

WHO = "u"
LATER = 4_000_000_000.0
ONE_SECOND = {"max_age_seconds": 1}


class Beside:
    """An archive that does something once, before its first line is kept."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action
        self.lines: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        if not self.lines:
            self.action()
        self.lines.append(line)


@pytest.fixture
def db(open_db):
    return open_db()


@pytest.mark.parametrize("change", ["renewed", "state", "checkpoint", "appended"])
def test_a_session_that_changes_while_it_is_archived_stays(db, change, monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)  # all within one millisecond
    db.engine.now_us = lambda: now // 1000
    session = db.session("s", user=WHO)
    session.append(said("x"))
    session.state.put("k", 1)
    db.retention.expire_session("s", 1, user=WHO)
    action = {
        "renewed": lambda: db.retention.expire_session("s", None, user=WHO),
        "state": lambda: session.state.put("k", 2),
        "checkpoint": lambda: session.checkpoint("c"),
        "appended": lambda: session.append(said("y")),
    }[change]
    report = db.sweep(now=LATER, archive=Beside(action))
    assert (report.sessions, report.kept) == (0, 1)
    assert session.exists()
    assert db.check() == []


def test_a_session_that_is_used_before_its_turn_stays(db, monkeypatch):
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() - 100 * 86_400 * 10**9)
    for name in ("a", "b"):
        db.session(name, user=WHO).append(said("old"))
    db.retention.set([{"what": "sessions", "max_age_seconds": 30 * 86_400}])
    monkeypatch.undo()
    fresh = Beside(lambda: db.session("b", user=WHO).append(said("fresh")))
    assert db.sweep(archive=fresh).sessions == 1
    assert [each.session_id for each in db.sessions(user=WHO)] == ["b"]
    assert len(db.session("b", user=WHO)) == 2


def test_a_field_that_is_put_while_it_is_archived_is_archived_again(db):
    state = db.session("s", user=WHO).state
    state.put("k", "old")
    db.retention.expire_field("k", 1, session="s", user=WHO)
    late: list[bytes] = []

    def archive(line: bytes) -> None:
        late.append(line)
        if b'"old"' in line and not any(b'"new"' in each for each in late):
            state.put("k", "new")

    assert db.sweep(now=LATER, archive=archive).fields == 1
    assert any(b'"new"' in line for line in late)
    assert "k" not in state


@pytest.mark.parametrize("action", ["expire", "remove"])
def test_a_hold_on_a_fork_keeps_the_items_it_shares(db, action):
    parent = db.session("p", user=WHO)
    for n in range(4):
        parent.append(said(f"evidence {n}"))
    fork = parent.fork("f")
    fork.append(said("own"))
    fork.hold(reason="litigation")
    db.retention.set([{"what": "items", "action": action, **ONE_SECOND}], session="p", user=WHO)
    report = db.sweep(now=LATER)
    assert (report.items, report.items_removed, report.held) == (0, 0, 4)
    contents = [message["content"] for message in fork.context().messages]
    assert contents == [*(f"evidence {n}" for n in range(4)), "own"]
    fork.release()
    report = db.sweep(now=LATER)
    assert report.items == 4  # a fork refers to them, so ``remove`` expires them, too
    assert report.held == 0
    assert "evidence" not in str(fork.context().messages)
    assert db.check() == []


def test_a_leased_session_is_not_archived_by_each_sweep(db, tmp_path: Path):
    archive = memcore.open_archive(tmp_path / "archive")
    session = db.session("s", user=WHO)
    session.append(said("one"))
    db.retention.expire_session("s", 1, user=WHO)
    with session.lease(owner="w", ttl_seconds=1e6):
        reports = [db.sweep(now=db.engine.now_ms() / 1000 + 100, archive=archive) for _ in range(2)]
    assert [(each.sessions, each.kept) for each in reports] == [(0, 1)] * 2
    assert archive.sessions() == []


def test_a_memory_under_a_hold_is_not_archived(db):
    scope = db.scope(user=WHO)
    scope.memory.remember("likes tea", expires_at=db.engine.now_ms() / 1000 + 1, by="operator")
    scope.hold(reason="x")
    lines: list[bytes] = []
    report = db.sweep(now=LATER, archive=lines.append)
    assert (report.held, report.memories, lines) == (1, 0, [])
    scope.release()
    assert db.sweep(now=LATER, archive=lines.append).memories == 1
    assert lines
