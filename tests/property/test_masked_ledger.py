"""A masked ledger answers like a ledger whose items had the masked sizes from the start."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from memcore import _fast
from memcore.log import MaskedLedger
from oracle import Event

SEED = bytes(range(16))


@st.composite
def masked(draw: st.DrawFn) -> tuple[dict[str, int], list[tuple[bytes, int]], dict[int, int]]:
    """A policy, facts with tokens, and smaller tokens of some positions."""
    policy = draw(
        st.fixed_dictionaries(
            {
                "start_mask": st.sampled_from((4, 0b110, 0xFF)),
                "glue": st.integers(0, 3),
                "orphan": st.integers(0, 3),
                "open_tokens": st.sampled_from((0, 10)),
            }
        )
    )
    history = draw(st.one_of(strategies.histories(), strategies.histories(orderly=True)))
    counted, masks = [], {}
    for at, entry in enumerate(history):
        if isinstance(entry, Event):
            facts = _fast.pack_event((), SEED)
        else:
            facts = _fast.pack_facts(entry, SEED)
        tokens = draw(st.integers(0, 30))
        counted.append((facts, tokens))
        if tokens and draw(st.booleans()):
            masks[at] = draw(st.integers(0, tokens))
    return policy, counted, masks


def answers(ledger: Any, n: int) -> dict[str, Any]:
    """What contexts and compactions ask."""
    both = (False, True)
    return {
        "sums": (len(ledger), ledger.tokens, ledger.shown_count),
        "costs": [ledger.cost(at) for at in range(n + 1)],
        "between": [ledger.sum_between(at, n - at) for at in range(n // 2 + 1)],
        "each": ledger.tokens_of(n // 3, n),
        "cuts": [ledger.safe_cuts(starts=starts) for starts in both],
        "keep": [ledger.cut_keep_last(keep) for keep in range(n + 2)],
        "at most": [ledger.cut_at_most(at) for at in range(-1, n + 1)],
        "budget": [
            ledger.cut_for_budget(budget, at_least=at, starts=starts)
            for budget in range(0, ledger.cost(0) + 12, 1 + ledger.cost(0) // 40)
            for at in (0, n // 3, n // 2, n)
            for starts in both
        ],
        "last of": [ledger.last_of(4, count, at_least=n // 4) for count in range(4)],
        "count of": [ledger.count_of(0b100100, at) for at in range(n)],
    }


@settings(deadline=None, max_examples=60)
@given(masked())
def test_it_answers_like_a_ledger_of_the_masked_sizes(case):
    policy, counted, masks = case
    plain, wanted = _fast.Ledger(**policy), _fast.Ledger(**policy)
    for at, (facts, tokens) in enumerate(counted):
        plain.push(facts, tokens)
        wanted.push(facts, masks.get(at, tokens))
    found = MaskedLedger(plain, {at: (tokens, False) for at, tokens in masks.items()})
    assert answers(found, len(counted)) == answers(wanted, len(counted))


def test_hidden_items_at_the_end_are_not_shown():
    ledger = _fast.Ledger(start_mask=4)
    for text in ("a", "b", "c"):
        facts = _fast.pack_facts({"role": "user", "content": text}, SEED)
        ledger.push(facts, 5)
    assert MaskedLedger(ledger, {1: (0, True), 2: (0, True)}).last_shown == 0
    assert MaskedLedger(ledger, {1: (0, True)}).last_shown == 2
    assert MaskedLedger(ledger, dict.fromkeys(range(3), (0, True))).last_shown == -1
