"""What does the ledger cost an append? Facts pushed; a chat dict classified and pushed."""

from __future__ import annotations

from collections.abc import Iterator

from conversation import chat_items, prepared_facts
from harness import Effort, Figure, Row, at_most, measure

_SEED = b"0123456789abcdef"


def _new_ledger():
    from memcore.wire import get_policy

    return get_policy("openai_chat").new_ledger(20)


def push_all(facts):
    push = _new_ledger().push
    for fact, tokens in facts:
        push(fact, tokens)


def classify_and_push_all(items):
    from memcore._fast import pack_facts

    push = _new_ledger().push
    for item in items:
        push(pack_facts(item, _SEED), 50)


def rows(effort: Effort) -> Iterator[Row]:
    """Both steps, an item; the Python loop around them is counted in."""
    facts = prepared_facts(effort.items(10_000))
    items = chat_items(effort.items(10_000))
    note = f"{len(items):,} items a round, loop included"
    for question, action, bound in (
        ("ledger push, an item", lambda: push_all(facts), 0.2),
        ("classify + push, a chat dict", lambda: classify_and_push_all(items), 1.0),
    ):
        times = measure(action, rounds=effort.rounds(30), ops=len(items))
        figure = Figure.of(times).scaled(1e-3)
        yield Row(question, "µs", figure, len(times), target=at_most(bound, "ours"), note=note)


def test_push(benchmark):
    benchmark(push_all, prepared_facts(10_000))


def test_classify_and_push(benchmark):
    benchmark(classify_and_push_all, chat_items(10_000))
