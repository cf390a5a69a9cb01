"""The plain rule of MathModelAgent in its worst case, against the ledger's search for a cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness import Effort, Row, compare, race, scratch

SIZES = (100, 400)
KEEP_LAST = 3


def late_history(size: int) -> list[dict[str, Any]]:
    """One slow call at the start, answered at the very end; ``size`` items of quick pairs between.

    No cut but the start is safe, and each try reads on to the end to find that out.
    """
    items = [_call("slow")]
    for at in range(size // 2):
        items += [_call(f"quick-{at}"), _result(f"quick-{at}")]
    return [*items, _result("slow")]


def _call(call_id: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


# --- the rule, as the seed documents describe it -------------------------------------------------


def plain_preserve_point(history: list[dict[str, Any]], keep_last: int = KEEP_LAST) -> int:
    """Start at the last three items and walk to the beginning until a cut is safe."""
    for start in range(len(history) - min(keep_last, len(history)), -1, -1):
        if _plain_is_safe(history, start):
            return start
    return len(history) - 1


def _plain_is_safe(history: list[dict[str, Any]], start: int) -> bool:
    """Every result from ``start`` on has its call from ``start`` on, before it."""
    for at in range(start, len(history)):
        if history[at].get("role") == "tool" and not _plain_has_call(history, start, at):
            return False
    return True


def _plain_has_call(history: list[dict[str, Any]], start: int, at: int) -> bool:
    found = False
    for earlier in range(start, at):
        for call in history[earlier].get("tool_calls") or ():
            if call.get("id") == history[at].get("tool_call_id"):
                found = True
                break
    return found


# --- ours ----------------------------------------------------------------------------------------


def from_nothing(history: list[dict[str, Any]]) -> int:
    """The same answer from the plain list: classify, push, search."""
    from memcore._fast import pack_facts
    from memcore.wire import get_policy

    ledger = get_policy("seed").new_ledger(0)
    for item in history:
        ledger.push(pack_facts(item, b"0123456789abcdef"), 1)
    return ledger.cut_at_most(len(history) - KEEP_LAST)


def rows(effort: Effort) -> Iterator[Row]:
    """The whole search on a list, and the search alone as a session does it after an append."""
    for size in SIZES:
        history = late_history(min(size, effort.items(size)))
        if from_nothing(history) != plain_preserve_point(history):
            raise AssertionError("the two rules disagree")
        found = race(
            lambda history=history: from_nothing(history),
            lambda history=history: plain_preserve_point(history),
            rounds=effort.rounds(10),
        )
        yield compare(
            f"seed rule, worst case, {len(history)} items: list to cut",
            found,
            "MathModelAgent's search",
            faster=True,
        )
    yield _in_a_session(effort, history)


def _in_a_session(effort: Effort, history: list[dict[str, Any]]) -> Row:
    import memcore

    with (
        scratch() as place,
        memcore.open(place / "memcore", durability="none", allow_unsafe=True, policy="seed") as db,
    ):
        session = db.session("bench")
        session.extend(history)
        found = race(
            lambda: session.needs_compaction(max_items=12),
            lambda: plain_preserve_point(history),
            rounds=effort.rounds(10),
            calls=3,
        )
    return compare(
        f"seed rule, worst case, {len(history)} items: is a compaction due, in a session",
        found,
        "MathModelAgent's search",
        durability="none",
        faster=True,
    )


@pytest.mark.parametrize("size", SIZES[:3])
def test_from_nothing(benchmark, size):
    benchmark(from_nothing, late_history(size))


def test_plain(benchmark):
    benchmark(plain_preserve_point, late_history(SIZES[0]))
