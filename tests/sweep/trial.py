"""One history under one policy: compacted twice, asked for contexts at random budgets."""

from __future__ import annotations

import json
import random
from typing import Any

import memcore
from legality import found_wrong
from memcore.wire import POLICIES
from messages import attempt, recount
from oracle import Event

from .histories import history

__all__ = ["PAIR_POLICIES", "trial"]

PAIR_POLICIES = tuple(POLICIES)
VALID = 0.7
"""Share of the histories that a provider would accept at their end."""
SUMMARIZERS: dict[str, Any] = {
    "extractive": memcore.extractive,
    "short": lambda _: "so far",
    "long": lambda _: "word " * 3_000,
    "none": None,
}


def trial(db: memcore.Database, preset: str, number: int) -> dict[str, int]:
    """Counts of what happened; raises AssertionError on a broken context or a changed log."""
    rng = random.Random(f"{preset}-{number}")
    pairs = PAIR_POLICIES[number % len(PAIR_POLICIES)]
    fmt = "openai_chat" if pairs == "seed" else pairs
    session = db.session(f"{preset}-{number}", policy=pairs, orphans="keep", shape="keep")
    everything: list[Any] = []
    found = {"contexts": 0, "overflows": 0, "views": 0, "masks": 0}
    valid = rng.random() < VALID
    for _ in range(2):
        everything += put(session, history(rng, fmt, valid=valid))
        done = compact(session, preset, rng)
        found["views"] += done.view is not None
        found["masks"] += 0 if done.view is None else len(done.view.masks)
        found["overflows"] += look(session, everything, pairs, rng, valid=valid)
        found["contexts"] += 1
    stored = [i.message for i in session.items() if i.kind != memcore.ItemKind.EVENT]
    assert stored == everything
    return found


def put(session: memcore.Session, items: list[Any]) -> list[dict[str, Any]]:
    """Append what was drawn; the messages as they have to come back."""
    waiting: list[Any] = []
    everything: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, Event):
            waiting.append(json.loads(json.dumps(item)))
            everything.append(waiting[-1])
            continue
        session.extend(waiting)
        waiting = []
        if not item.abandons:
            session.record("note", 1)
        elif session.open_calls:
            session.abandon(session.open_calls[0].call_id)
    session.extend(waiting)
    return everything


def compact(session: memcore.Session, preset: str, rng: random.Random) -> memcore.CompactionResult:
    """Run a stage of the preset, due or not, with a summarizer that works or does not."""
    policy = memcore.compaction_policy(preset)
    stage = rng.choice(policy.stages).name
    how = rng.choice((*SUMMARIZERS, "fails"))
    if how == "fails":
        return session.compact(_fails, policy=policy, stage=stage)
    return session.compact(SUMMARIZERS[how], policy=policy, stage=stage)


def _fails(_: memcore.SummaryRequest) -> str:
    raise RuntimeError("the model is down")


def look(
    session: memcore.Session,
    messages: list[dict[str, Any]],
    pairs: str,
    rng: random.Random,
    *,
    valid: bool,
) -> bool:
    """A context at a random budget is legal and counted right; whether the budget was too small."""
    whole = session.context()
    budget = max(1, int(whole.tokens * rng.random()))
    context = attempt(session.context, budget)
    refused = isinstance(context, memcore.ContextOverflowError)
    if isinstance(context, memcore.ContextOverflowError):
        assert context.needed_tokens > budget
        budget = context.needed_tokens
        context = session.context(budget)
    assert context.tokens <= budget
    assert recount(context.messages, None) == context.tokens
    for shown in (context, whole):
        wrong = found_wrong(shown.messages, messages, pairs)
        if wrong and not valid:
            # What no rendering heals is there without any compaction; a child of a program that
            # somebody gave up has nothing to stand on.
            wrong = [each for each in wrong if each[1] != "a child without its program"]
            if wrong and found_wrong(session.context(view=0).messages, messages, pairs):
                wrong = []
        assert wrong == [], wrong
    return refused
