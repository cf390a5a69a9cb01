"""The fuzzer against the memories of frameworks: their broken pairs are found, memcore has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcore.testing import Faults, fuzz, survey
from thinned import thinned

BENCH = Path(__file__).parents[2] / "bench"
BROKEN = ("a result without its call", "a call whose result was left out")


MEMORIES = [
    ("trim_messages, default", "langchain_core"),
    ("trim_messages, start_on=human + include_system", "langchain_core"),
    ("ChatMemoryBuffer", "llama_index.core"),
    ("BufferedChatCompletionContext", "autogen_core"),
    ("HeadAndTailChatCompletionContext", "autogen_core"),
]


@pytest.fixture
def memories(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import rivals_fuzz

    return rivals_fuzz.MEMORIES


@pytest.mark.parametrize(
    ("name", "package"),
    thinned(MEMORIES, 3),
)
def test_a_broken_pair_is_found_within_200_examples(memories, name, package) -> None:
    pytest.importorskip(package)
    rival = memories[name]
    make = rival.make()
    found = fuzz(make, policy=rival.policy, budgets=rival.budgets, examples=200)
    assert found is not None
    assert found.rule in BROKEN
    assert found.examples <= 200
    assert len(found.history) <= 12
    assert found.call_ids[0] in str(found)
    counted = survey(make, policy=rival.policy, budgets=rival.budgets, examples=100)
    assert counted.illegal > 0 == counted.raised


def test_trimming_at_a_user_message_parts_late_results_only(memories) -> None:
    """What the judge calls broken is the memory's doing: with prompt results this one is right."""
    pytest.importorskip("langchain_core")
    rival = memories["trim_messages, start_on=human + include_system"]
    prompt = Faults(late=0)
    options = {"policy": rival.policy, "budgets": rival.budgets, "faults": prompt}
    assert fuzz(rival.make(), examples=100, **options) is None
