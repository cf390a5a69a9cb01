"""Does the search for the cut stay flat, whatever the length of the session?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conversation import prepared_facts
from harness import Effort, Row, at_most, compare, race_each

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
OPS = 1_000
BUDGET_TOKENS = 2_000


def filled_ledger(size):
    from memcore.wire import get_policy

    ledger = get_policy("openai_chat").new_ledger(20)
    for fact, tokens in prepared_facts(size):
        ledger.push(fact, tokens)
    return ledger


def search(ledger):
    cut = ledger.cut_for_budget
    for _ in range(OPS):
        cut(BUDGET_TOKENS)


def rows(effort: Effort) -> Iterator[Row]:
    """One row a size; each is compared with the smallest."""
    ledgers = [filled_ledger(effort.items(size)) for size in SIZES]
    found = race_each(
        [lambda ledger=ledger: search(ledger) for ledger in ledgers],
        rounds=effort.rounds(100),
        ops=OPS,
    )
    for ledger, result in zip(ledgers, found, strict=True):
        yield compare(
            f"cut search, {len(ledger):,} items",
            result,
            f"the same, {len(ledgers[0])} items",
            target=at_most(0.12, "ours"),
            note="cut_for_budget, the call and the loop included",
        )
    yield compare(
        f"flat: cut search, {len(ledgers[-1]):,} against {len(ledgers[0])} items",
        found[-1],
        f"{len(ledgers[0])} items",
        target=at_most(2.0),
        note="a binary search: the logarithm of the length remains",
    )


@pytest.mark.parametrize("size", SIZES[:3])
def test_cut(benchmark, size):
    benchmark(search, filled_ledger(size))
