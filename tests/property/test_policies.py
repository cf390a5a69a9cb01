"""Every preset on random histories of every provider; ``python -m tests.sweep`` runs many more."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

import memcore
import oracle
import strategies
from legality import plain
from sweep.trial import PAIR_POLICIES, trial

PER_PAIR_POLICY = 2
LARGE = ("token_budget", "recursive", "analysis", "langchain_trim")
"""They keep thousands of tokens: few of these histories are that long."""


@pytest.mark.parametrize("preset", memcore.PRESETS)
def test_contexts_stay_legal_and_the_log_stays(preset):
    done = Counter()
    with memcore.open(":memory:") as db:
        for number in range(PER_PAIR_POLICY * len(PAIR_POLICIES)):
            done.update(trial(db, preset, number))
        assert db.check() == []
    assert done["views"] > 0 or preset in LARGE
    assert done["contexts"] == 2 * PER_PAIR_POLICY * len(PAIR_POLICIES)


@settings(deadline=None, max_examples=60)
@given(strategies.histories("openai_chat"))
def test_the_plain_rule_is_a_preset(history):
    """But where the rule keeps the last message though it has no call: nothing is folded then."""
    # The plain rule knows neither the deprecated calls without an id nor the answers to them.
    messages = [
        message
        for message in plain(history)
        if "function_call" not in message and message["role"] != "function"
    ]
    with memcore.open(":memory:") as db:
        session = db.session("chat", policy="seed", orphans="keep", shape="keep")
        session.extend(messages)
        plan = session.plan(policy="mathmodelagent", force=True)
        wanted = oracle.seed_rule_cut(messages) if messages else None
        pins = int(bool(messages) and oracle.classify(messages[0]).kind == oracle.SYSTEM)
        if wanted is None or wanted <= pins:
            assert not plan.folds
        else:
            assert (plan.cut, plan.fold_from) == (wanted, pins)
