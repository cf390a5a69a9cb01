"""What does a payload cost, and how much of it does a provider's prompt cache keep?

Ten sections, 500 units and a history of 8,000 tokens or more, assembled again and again. Then an
agent of 200 turns: how many of the characters of a turn's request began the request of the turn
before? Beside it the usual way: memories and passages in the system prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import memcore
from conversation import chat_items, chat_turns
from harness import Effort, Figure, Row, at_least, at_most, measure

TURNS = 200
BUDGET = 16_000
WORDS = [
    "alpha", "beta", "gamma", "delta", "house", "tea", "green", "paper", "river", "stone", "cloud",
    "seven", "letter", "window",
]  # fmt: skip


def rows(effort: Effort) -> Iterator[Row]:
    """An assembly, a plan, and the prefix that stays from turn to turn."""
    yield from _assembled(effort)
    for way in ("payload", "payload, steady=False", "memories and passages in the system prompt"):
        yield _prefix(effort, way)


def _passages(chosen: Random, count: int, words: int) -> list[dict[str, Any]]:
    return [
        {"id": f"p{at}", "text": " ".join(chosen.choices(WORDS, k=words)), "score": chosen.random()}
        for at in range(count)
    ]


def _assembled(effort: Effort) -> Iterator[Row]:
    chosen = Random(1)
    with memcore.open(":memory:") as db:
        session = db.session("s", orphans="keep")
        session.extend(chat_items(120))
        payload = memcore.Payload(24_000)
        payload.instructions("You grade homework.")
        payload.tools(
            [{"name": f"tool_{at}", "input_schema": {"type": "object"}} for at in range(8)]
        )
        payload.examples([("2 + 2 = 5", "Wrong: it is 4.")] * 3)
        for at in range(5):
            payload.section(
                f"own_{at}", _passages(chosen, 100, 12), heading="Own lines.",
                volatility="stable" if at < 2 else "turn", budget_tokens=2_000,
            )  # fmt: skip
        payload.history(session)
        payload.user("Check page 3.")
        made = payload.assemble()
        found = measure(payload.assemble, rounds=effort.rounds(300))
        alone = measure(lambda: session.context(12_000), rounds=effort.rounds(300))
        yield Row(
            f"assemble 10 sections, {len(made.provenance)} of 500 units, {made.tokens:,} tokens",
            "ms", Figure.of(found).scaled(1e-6), len(found), target=at_most(1.5, "ours"),
            note=f"its context alone: {Figure.of(alone).scaled(1e-6).median:.2f} ms",
        )  # fmt: skip
        found = measure(payload.plan, rounds=effort.rounds(300))
        yield Row(
            "plan() of the same", "µs", Figure.of(found).scaled(1e-3), len(found),
            target=at_most(50.0, "ours"),
        )  # fmt: skip


def _prefix(effort: Effort, way: str) -> Row:
    """The share of a request that the next one begins with, over the turns of an agent."""
    chosen = Random(2)
    kept: list[float] = []
    moved = 0
    before, cut = "", 0
    with memcore.open(":memory:") as db:
        session = db.session("s", orphans="keep")
        for turn in chat_turns(effort.items(TURNS)):
            items = [item for item in turn if item["role"] != "system"]
            made = _request(session, items[0], way, chosen)
            text = json.dumps([made.tools, made.system, made.messages])
            if before:
                kept.append(_common(before, text) / len(before))
                moved += made.context is not None and made.context.cut != cut
            before, cut = text, 0 if made.context is None else made.context.cut
            session.extend(items)
    return Row(
        f"prefix kept from turn to turn: {way}", "share", Figure.of(kept), len(kept),
        target=at_least(0.9, "ours") if way == "payload" else None,
        note=f"{moved} of {len(kept)} turns moved the cut; budget {BUDGET:,} tokens",
    )  # fmt: skip


def _request(
    session: memcore.Session, message: dict[str, Any], way: str, chosen: Random
) -> memcore.AssembledPayload:
    facts = [{"id": f"f{at}", "text": f"fact {at} about {WORDS[at]}"} for at in range(10)]
    passages = _passages(chosen, 4, 50)
    payload = memcore.Payload(BUDGET)
    if way.startswith("payload"):
        payload.instructions("You grade homework.")
        payload.section("facts", facts, heading="Facts.", volatility="stable")
        payload.evidence(passages, budget_tokens=1_000)
    else:
        told = [each["text"] for each in (*facts, *passages)]
        payload.instructions("\n".join(["You grade homework.", *told]))
    payload.history(session, steady=way == "payload")
    payload.user(message)
    return payload.assemble()


def _common(one: str, other: str) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low
