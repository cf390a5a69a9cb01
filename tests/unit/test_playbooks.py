"""Playbooks: the paths of sessions, what outcomes add up to, and what takes them along."""

from __future__ import annotations

import json
from typing import Any

import pytest

import memcore
from memcore.codec import keys
from memcore.memory import playbook
from memcore.memory.playbook import lower_bound


@pytest.fixture
def db(open_db):
    return open_db(durability="none")


@pytest.fixture
def scope(db):
    return db.scope(app="default", user="alice")


def run(db, name: str, *steps: str | tuple[str, str]) -> memcore.Session:
    """A session that calls tools; a step with a text is answered by it."""
    session = db.session(name, user="alice")
    session.append({"role": "user", "content": "please"})
    for at, step in enumerate(steps):
        tool, text = (step, "done") if isinstance(step, str) else step
        call = {"id": f"c{at}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        session.append({"role": "assistant", "content": None, "tool_calls": [call]})
        session.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
    return session


def test_the_lower_bound_is_wilsons():
    found = [round(lower_bound(*pair), 2) for pair in ((3, 3), (10, 10), (20, 20), (0, 5), (0, 0))]
    assert found == [0.44, 0.72, 0.84, 0.0, 0.0]


def test_a_playbook_becomes_active_after_three_sessions(db, scope):
    memory = scope.memory
    found = []
    for name in ("a", "b", "c"):
        run(db, name, "find_order", "refund")
        found.append(memory.record_outcome(name, scenario="refund", passed=True))
    assert [playbook.status for playbook in found] == ["quarantined", "quarantined", "active"]
    assert [playbook.version for playbook in found] == [1, 1, 1]
    last = found[-1]
    assert (last.steps, last.successes, last.failures, last.iterations) == (
        ("find_order", "refund"), 3, 0, 2,
    )  # fmt: skip
    assert last.score == round(lower_bound(3, 3), 4)
    assert memory.playbooks() == memory.playbooks("refund") == [last]
    assert memory.playbooks("other") == []


def test_a_session_counts_once(db, scope):
    session = run(db, "a", "x")
    session.memory.record_outcome(scenario="s", passed=True)
    fork = session.fork("b")
    found = fork.memory.record_outcome(scenario="s", passed=True)
    assert found.successes == 1
    found = session.memory.record_outcome(session, scenario="s", passed=False, reason="timeout")
    assert (found.successes, found.failures) == (0, 1)


def test_a_failed_step_is_patched(db, scope):
    memory = scope.memory
    run(db, "a", "search", "answer")
    first = memory.record_outcome("a", scenario="s", passed=True)
    run(db, "b", ("search", "Error: timeout"), "answer")
    second = memory.record_outcome("b", scenario="s", passed=False, reason="wrong answer")
    assert (second.version, second.steps) == (2, first.steps)
    assert second.patches == (memcore.PlaybookPatch("search", 1),)
    assert second.reasons == {"wrong answer": 1}
    run(db, "c", ("search", '{"error": "down"}'), ("search", "Error"), "lookup", "answer")
    third = memory.record_outcome("c", scenario="s", passed=True)
    assert third.patches == (memcore.PlaybookPatch("search", 3, "lookup"),)
    assert (third.version, third.steps) == (3, first.steps)
    run(db, "d", "search", "answer")
    fourth = memory.record_outcome("d", scenario="s", passed=False)
    assert fourth.patches[1:] == (memcore.PlaybookPatch("answer", 1),)
    assert fourth.score == round(lower_bound(2, 4), 4)


def test_playbooks_are_ranked(db, scope):
    for at in range(4):
        run(db, f"a{at}", "x")
        scope.memory.record_outcome(f"a{at}", scenario="sure", passed=True)
        scope.memory.record_outcome(f"a{at}", scenario="half", passed=at < 2)
    scope.memory.record_outcome("a0", scenario="once", passed=True)
    assert [each.scenario for each in scope.memory.playbooks()] == ["sure", "once", "half"]


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        (True, {"type": "tool_result", "tool_use_id": "c", "content": "x", "is_error": True}),
        (False, {"type": "tool_result", "tool_use_id": "c", "content": "x"}),
    ],
)
def test_failures_of_anthropic(db, failed, message):
    session = db.session("a", user="alice", policy="anthropic")
    session.append({"role": "user", "content": "please"})
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    session.append({"role": "assistant", "content": [call]})
    session.append({"role": "user", "content": [message]})
    found = session.memory.record_outcome(scenario="s", passed=True)
    assert found.steps == ("look",)
    assert bool(found.patches) is failed


def test_failures_of_gemini_and_responses(db):
    gemini = db.session("g", user="alice", policy="gemini")
    gemini.append({"role": "user", "parts": [{"text": "please"}]})
    gemini.append({"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]})
    answer = {"name": "look", "response": {"error": "down"}}
    gemini.append({"role": "user", "parts": [{"functionResponse": answer}]})
    assert gemini.memory.record_outcome(scenario="g", passed=True).patches[0].step == "look"
    other = db.session("r", user="alice", policy="openai_responses")
    other.append({"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"})
    other.append({"type": "function_call_output", "call_id": "c", "output": "Traceback (most"})
    assert other.memory.record_outcome(scenario="r", passed=True).patches[0].failures == 1


def test_only_names_and_counts_are_stored(db, scope):
    session = db.session("a", user="alice")
    session.append({"role": "user", "content": "my xyzzy"})
    function = {"name": "look", "arguments": '{"q": "xyzzy"}'}
    call = {"id": "c", "type": "function", "function": function}
    session.append({"role": "assistant", "content": "xyzzy", "tool_calls": [call]})
    session.append({"role": "tool", "tool_call_id": "c", "content": "Error: xyzzy"})
    session.memory.record_outcome(scenario="s", passed=False, reason="no result", confidence=0.5)
    lines = [line for line in db.export() if b'"outcome"' in line]
    assert len(lines) == 1
    assert b"xyzzy" not in lines[0]
    assert json.loads(lines[0])["memory"]["outcome"]["failed"] == {"look": 1}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"session": "nowhere"}, memcore.NotFoundError),
        ({"session": None}, memcore.InvalidOptionError),
        ({"scenario": ""}, memcore.InvalidOptionError),
        ({"scenario": "s\u200b"}, memcore.InvalidItemError),
        ({"passed": 1}, memcore.InvalidOptionError),
        ({"confidence": float("nan")}, memcore.InvalidOptionError),
        ({"reason": "x" * 300}, memcore.InvalidOptionError),
    ],
)
def test_bad_outcomes(db, scope, given, error):
    run(db, "a", "x")
    options: dict[str, Any] = {"session": "a", "scenario": "s", "passed": True, **given}
    with pytest.raises(error):
        scope.memory.record_outcome(options.pop("session"), **options)
    assert scope.memory.playbooks() == []


def test_a_deleted_session_takes_its_outcome(db, scope):
    memory = scope.memory
    run(db, "a", "x")
    run(db, "b", "x", ("y", "error"))
    memory.record_outcome("a", scenario="s", passed=True)
    memory.record_outcome("b", scenario="s", passed=False, reason="secret reason")
    scope.delete_session("b")
    (left,) = memory.playbooks()
    assert (left.successes, left.failures, left.reasons, left.patches) == (1, 0, {}, ())
    assert db.check() == []
    scope.delete_session("a")
    assert memory.playbooks() == []


def test_opting_out_hides_playbooks(db, scope):
    run(db, "a", "x").memory.record_outcome(scenario="s", passed=True)
    scope.opt_out_memory()
    assert scope.memory.playbooks() == []
    with pytest.raises(memcore.OptedOutError):
        scope.memory.record_outcome("a", scenario="s", passed=True)


@pytest.mark.as_stored
def test_transfer_and_salvage(open_db, path, tmp_path):
    db = open_db()
    scope = db.scope(app="default", user="alice")
    for name in ("a", "b"):
        run(db, name, "x", ("y", "error"), "z")
        scope.memory.record_outcome(name, scenario="s", passed=name == "a", reason="slow")
    before = scope.memory.playbooks()
    lines = list(db.export())
    db.close()
    fresh = open_db(path=tmp_path / "b.memcore")
    assert fresh.import_(lines).failures == []
    (found,) = fresh.scope(app="default", user="alice").memory.playbooks()
    assert found == before[0]
    assert len(fresh.import_([lines[-1].replace(b'"name":"b"', b'"name":"q"')]).failures) == 1
    assert fresh.check() == []
    memcore.salvage(path, tmp_path / "c.memcore")
    with memcore.open(tmp_path / "c.memcore") as saved:
        (found,) = saved.scope(app="default", user="alice").memory.playbooks()
        assert (found.steps, found.patches) == (before[0].steps, before[0].patches)
        assert saved.check() == []


def test_what_is_recorded_can_be_imported(db, scope, open_db, tmp_path):
    """Many tools that fail, and a name of blanks."""
    tools = [(f"tool{at}", "error") for at in range(300)]
    run(db, "a", *tools, (" ", "error"))
    made = scope.memory.record_outcome("a", scenario="s", passed=True, reason="x" * 256)
    assert len(made.patches) == 256
    fresh = open_db(path=tmp_path / "b.memcore")
    assert fresh.import_(list(db.export())).failures == []
    assert fresh.scope(app="default", user="alice").memory.playbooks() == [made]


def test_a_playbook_is_bounded(db, scope, monkeypatch):
    monkeypatch.setattr(playbook, "_PATCHES_MAX", 3)
    for number in range(20):
        run(db, f"s{number}", ("often", "error"), (f"tool{number}", "error"))
        made = scope.memory.record_outcome(f"s{number}", scenario="s", passed=False)
    assert [(each.step, each.failures) for each in made.patches] == [
        ("often", 20), ("tool0", 1), ("tool1", 1),
    ]  # fmt: skip
    rows = keys.memory_rows(1, keys.MemoryRow.PLAYBOOK)
    monkeypatch.setattr(playbook, "_PATCHES_MAX", 300)
    for number in range(20, 40):
        run(db, f"s{number}", (f"tool{number}", "error"))
        made = scope.memory.record_outcome(f"s{number}", scenario="s", passed=False)
    stored = db.engine.store.read(lambda txn: [key for key, _ in txn.scan(rows, keys.after(rows))])
    assert len(stored) == 16
    assert keys.number_of(stored[-1]) == made.version


@pytest.mark.as_stored
def test_playbooks_are_folded_once_for_many_outcomes(db, scope, open_db, tmp_path, monkeypatch):
    for number in range(30):
        run(db, f"s{number}", "x@example.com", f"y{number % 2}")
        scope.memory.record_outcome(f"s{number}", scenario=f"s{number % 2}", passed=True)
    folds, real = [], playbook._fold

    def counted(book, scenario, *, anew):
        folds.append(scenario)
        return real(book, scenario, anew=anew)

    monkeypatch.setattr(playbook, "_fold", counted)
    fresh = open_db(path=tmp_path / "b.memcore")
    later_us = db.engine.now_us() + 60_000_000  # outcomes of one millisecond run ahead of the clock
    fresh.engine.now_us = lambda: later_us
    assert fresh.import_(list(db.export())).failures == []
    assert sorted(folds) == ["s0", "s1"]
    assert fresh.scope(app="default", user="alice").memory.playbooks() == scope.memory.playbooks()
    folds.clear()

    def closure(txn) -> int:
        book = memcore.memory.Book(txn, 1, db.engine.seed)
        return playbook.redact_outcomes(book, lambda text: text.partition("@")[0])

    assert db.engine.store.transact(closure) == 30
    assert sorted(folds) == ["s0", "s1"]
    assert [each.steps[0] for each in scope.memory.playbooks()] == ["x", "x"]
