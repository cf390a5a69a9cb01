"""Steps that fail: degrade, retry, ask a person; and the reproduction that is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import memcore
from memcore import LadderRules, aio
from memcore.session.retry import Attempt, Watch
from messages import assistant, call, result, turns, user


def failing_tool(attempt: Any, name: str = "search", status: str = "error") -> None:
    attempt.append(call("x"))
    attempt.append(result("x"), envelope={"tool": name, "status": status})


def rules_of(outcome: Any) -> list[str]:
    return [cause.rule for cause in outcome.causes]


def test_a_step_that_succeeds_is_stored_once(session) -> None:
    ran = []

    def step(attempt: Attempt) -> str:
        ran.append(attempt.number)
        attempt.append(user("q"), meta={"m": 1})
        attempt.append(assistant("a"), envelope={"author": "ann"})
        return "value"

    ladder = session.ladder()
    outcome = ladder.run(step, request_id="r1")
    assert (outcome.status, outcome.value, outcome.attempts, outcome.level) == ("ok", "value", 1, 0)
    again = session.ladder().run(step, request_id="r1")
    assert (again.status, again.receipt, ran) == ("repeated", outcome.receipt, [1])
    assert [(i.request_id, i.meta) for i in session] == [("r1", {"m": 1}), ("r1", None)]
    assert ladder.run(lambda _: 5, request_id="r2").value == 5  # one that appends nothing
    assert ladder.run(step, request_id="r2").status == "repeated"


def test_degrade_then_retry_then_a_person(session) -> None:
    session.extend([user("q"), call("open")])
    seen: list[tuple[int, int, str]] = []

    def failing(attempt: Attempt) -> None:
        seen.append((attempt.number, attempt.level, attempt.key("tool")))
        attempt.append(assistant("never stored"))
        raise ValueError("private words")

    outcome = session.ladder().run(failing, request_id="r", fallbacks=[failing, failing], retries=2)
    assert [each[:2] for each in seen] == [(1, 0), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert len({key for _, _, key in seen}) == 1
    assert (outcome.status, outcome.attempts, rules_of(outcome)) == ("hitl", 5, ["failed"])
    assert isinstance(outcome.error, ValueError)
    types = [item.type for item in session]
    assert types == ["user_input", "tool_call", *["error"] * 5, "hitl"]
    assert b"private" not in b"".join(json.dumps(i.message).encode() for i in session)
    assert [each.call_id for each in session.open_calls] == ["open"]
    assert memcore.validate(session.context().messages) == []
    session.append(result("open"))
    (waiting,) = session.pending_hitl()
    assert (waiting.seq, waiting.rule, waiting.request_id) == (outcome.hitl_seq, "failed", "r")
    assert waiting.payload["bundle"]["slice"]
    assert session.ladder().run(failing, request_id="r").hitl_seq == outcome.hitl_seq
    assert len(seen) == 5


def test_a_lesser_form_may_do(session) -> None:
    def whole(attempt: Attempt) -> None:
        failing_tool(attempt)

    def lesser(attempt: Attempt) -> None:
        attempt.append(assistant("short"))

    outcome = session.ladder({"tool_failures_max": 1}).run(
        whole, request_id="r", fallbacks=[lesser]
    )
    assert (outcome.status, outcome.attempts, outcome.level) == ("degraded", 2, 1)
    assert [item.type for item in session] == ["error", "final"]


def test_each_rule_is_seen(session) -> None:
    def reflect(**said: Any) -> Any:
        return lambda attempt: attempt.record("reflection", said)

    cases = [
        ({}, lambda a: a.record("error", {"code": "reflector_parse_failed"}), "parse_failed"),
        ({}, reflect(confidence=0.49), "low_confidence"),
        ({}, reflect(confidence=float(0)), "low_confidence"),
        ({}, reflect(issues=[{"severity": "High"}]), "high_risk"),
        ({"risks": ["missing step"]}, reflect(issues=["ok", "Missing step"]), "high_risk"),
        ({"reflections_max": 1}, reflect(pass_=False), "reflection_limit"),
        ({"tool_failures_max": 1}, failing_tool, "tool_failures"),
    ]
    for number, (rules, step, rule) in enumerate(cases):
        outcome = session.ladder(rules).run(step, request_id=f"r{number}", retries=0)
        assert rules_of(outcome) == [rule]
    fine = [
        reflect(confidence=0.5, issues=[{"severity": "low"}], **{"pass": True}),
        reflect(confidence="high", issues="none"),
        lambda a: a.record("error", {"code": "timeout"}),
        lambda a: failing_tool(a, status="ok"),
    ]
    for number, step in enumerate(fine):
        assert session.ladder().run(step, request_id=f"f{number}").status == "ok"
    off = LadderRules(
        parse_failed=False, confidence_min=None, risks=(), reflections_max=None,
        tool_failures_max=None,
    )  # fmt: skip
    for number, (_, step, _) in enumerate(cases):
        assert session.ladder(off).run(step, request_id=f"o{number}").status == "ok"


def test_what_is_counted_in_a_row(session) -> None:
    ladder = session.ladder()
    for status in ("error", "error", "ok", "timeout", "failed"):
        session.append(call("c"))
        session.append(result("c"), envelope={"tool": "search", "status": status})
        assert ladder.due() == []
    session.append(call("c"))
    session.append(result("c"), envelope={"tool": "other", "status": "error"})
    assert ladder.due() == []
    session.append(call("c"))
    session.append(result("c"), envelope={"tool": "search", "status": "error"})
    (cause,) = ladder.due()
    assert (cause.rule, cause.seq) == ("tool_failures", len(session))
    assert ladder.due() == []
    for said in ({"pass": False}, {"pass": False}, {"pass": True}, {"pass": False}):
        session.record("reflection", said)
    session.append(user())
    session.record("reflection", {"pass_": False})
    assert ladder.due() == []


def test_a_look_costs_what_is_new(session, monkeypatch) -> None:
    session.extend(turns(200))
    ladder = session.ladder()
    ladder.due()
    read: list[int] = []
    see = Watch.see

    def counted(watch: Watch, item: Any) -> Any:
        read.append(item.seq)
        return see(watch, item)

    monkeypatch.setattr(Watch, "see", counted)
    session.append(user())
    ladder.due()
    assert read == [401]


def test_decisions(session) -> None:
    session.record("hitl", {"reason": "by hand"})
    session.record("hitl", "x" * 70_000)  # in a blob
    first, large = session.pending_hitl()
    assert (first.reason, first.rule, large.payload) == ("by hand", None, "x" * 70_000)
    receipt = session.resolve_hitl(first.seq, {"go": True}, by="ann")
    assert session.resolve_hitl(first.seq, {"go": True}, by="ann") == receipt
    assert [each.seq for each in session.pending_hitl()] == [large.seq]
    with pytest.raises(memcore.DuplicateRequestError):
        session.resolve_hitl(first.seq, {"go": False})
    session.undo()
    assert [each.seq for each in session.pending_hitl()] == [first.seq, large.seq]
    session.resolve_hitl(first.seq, {"go": False})
    for wrong in (session.tail(1)[0].seq, 99):
        with pytest.raises(memcore.NotFoundError):
            session.resolve_hitl(wrong, True)
    with pytest.raises(memcore.InvalidOptionError):
        session.resolve_hitl(large.seq, True, by=5)


def test_what_ends_a_run(db, session) -> None:
    def raises(error: BaseException) -> Any:
        def step(_: Attempt) -> None:
            raise error

        return step

    for error in (KeyboardInterrupt(), memcore.ClosedError("x"), memcore.StorageError("x")):
        with pytest.raises(type(error)):
            session.ladder().run(raises(error), request_id="r")
    assert not session.exists()
    for options in (
        {"request_id": ""}, {"request_id": 5}, {"request_id": "r", "retries": -1},
        {"request_id": "r", "fallbacks": [5]},
    ):  # fmt: skip
        with pytest.raises(memcore.InvalidOptionError):
            session.ladder().run(raises(ValueError()), **options)
    for rules in ({"reflexions_max": 1}, {"confidence_min": 2}, {"reflections_max": 0},
                  {"risks": "high"}, 5):  # fmt: skip
        with pytest.raises(memcore.InvalidOptionError):
            session.ladder(rules)


def test_the_same_with_await(session) -> None:
    async def main() -> None:
        shared = aio.AsyncSession(session)

        async def failing(_: Attempt) -> None:
            await asyncio.sleep(0)
            raise ValueError

        async def lesser(attempt: Attempt) -> int:
            attempt.append(assistant())
            return 3

        ladder = shared.ladder()
        outcome = await ladder.run(failing, request_id="r", fallbacks=[lesser])
        assert (outcome.status, outcome.value) == ("degraded", 3)
        outcome = await ladder.run(failing, request_id="s", retries=0)
        (waiting,) = await shared.pending_hitl()
        await shared.resolve_hitl(waiting.seq, "go")
        assert await shared.pending_hitl() == []
        assert json.loads(await shared.bundle())["bundle"] == 1
        assert (await shared.accessed()).count == 0

        async def slow(attempt: Attempt) -> None:
            attempt.append(assistant("never"))
            started.set()
            await asyncio.Event().wait()

        before, started = len(session), asyncio.Event()
        task = asyncio.create_task(ladder.run(slow, request_id="t"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(session) == before

    asyncio.run(main())
