"""The texts of real conversations are counted as tiktoken does, and cut without waste."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import strategies
from memcore import vocab
from tiktokens import NAMES, agree, unused_by

GENERATED = 150
CUTS = 150
SLACK_TOKENS = 6


def strings(value: Any) -> Iterator[str]:
    """Every text in a message, arguments of calls among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def look_at_all(name: str, texts: list[str]) -> None:
    for text in texts:
        agree(name, text)
    counts = list(map(vocab.load(name).count, texts))
    assert list(vocab.load(name).count_many(texts)) == counts
    dice = Random(1)
    for at in dice.sample(range(len(texts)), min(CUTS, len(texts))):
        budget = dice.randint(4, max(counts[at], 4))
        for keep in ("head", "tail", "middle"):
            unused = unused_by(name, texts[at][:20_000], budget, keep, "\n…\n")
            assert unused <= SLACK_TOKENS, (texts[at], budget, keep)


@pytest.mark.parametrize("name", NAMES)
def test_generated_conversations(name: str) -> None:
    conversations = strategies.corpus_like(7, GENERATED)
    look_at_all(name, list(dict.fromkeys(strings([*conversations]))))


@pytest.mark.parametrize("name", NAMES)
def test_real_conversations(name: str, corpus: Path) -> None:
    with corpus.open(encoding="utf-8") as lines:
        messages = [json.loads(line)["messages"] for line in lines]
    texts = list(dict.fromkeys(strings(messages)))
    assert len(texts) > 10_000
    look_at_all(name, texts)
