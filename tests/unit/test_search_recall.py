"""Recall of evidence on LoCoMo, where the data is: the figures of docs/search.md.

The data set (CC BY-NC 4.0) is not part of the project; without it these tests are skipped. No model
takes part: a question is the query, and what counts is which of the turns that hold its evidence
are among the first ten.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore.compaction import wordllama_embedder

DATA = Path("/work/shared/eval/memory/locomo.json.xz")
ADVERSARIAL = 5
"""The category of questions without an answer."""
LEAST_HYBRID = 69.7
"""The same with the vectors of wordllama."""
LEAST = 68.5
"""Percent, rounded to a tenth as the table is: what the recipe of docs/search.md reaches."""

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the data set is not here")


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Any]]:
    with lzma.open(DATA, "rt") as file:
        return json.load(file)["samples"]


def seconds(text: str) -> float:
    when = datetime.fromisoformat(text)
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def questions(sample: dict[str, Any]) -> Iterator[tuple[str, set[str]]]:
    for each in sample["questions"]:
        if each["evidence"] and each["category"] != ADVERSARIAL:
            yield each["q"], set(each["evidence"])


def recall(found: list[tuple[list[str], set[str]]]) -> float:
    """Mean percentage of the evidence among the results."""
    return 100 * sum(len(wanted & set(ids)) / len(wanted) for ids, wanted in found) / len(found)


def test_the_index_finds_the_evidence(samples) -> None:
    assert round(recall(searched(samples, None)), 1) >= LEAST


class WordLlama:
    """The model that is part of the package wordllama: it works offline."""

    id = "wordllama-256"
    dimensions = 256

    def __init__(self) -> None:
        self._embed = wordllama_embedder()

    def __call__(self, texts: list[str]) -> Any:
        return self._embed(texts)


def test_vectors_find_more_of_the_evidence(samples) -> None:
    pytest.importorskip("wordllama")
    assert round(recall(searched(samples, WordLlama())), 1) >= LEAST_HYBRID


def searched(samples: Any, embedder: Any) -> list[tuple[list[str], set[str]]]:
    """Search for each question; return the turns found, and those that hold the evidence."""
    found: list[tuple[list[str], set[str]]] = []
    for sample in samples:
        with memcore.open(":memory:", counter="bytes/4", embedder=embedder) as db:
            ids: dict[tuple[str, int], str] = {}
            for part in sample["sessions"]:
                at = int(seconds(part["at"]) * 1_000_000)
                db.engine.now_us = lambda at=at: at
                session = db.session(str(part["n"]))
                session.extend(
                    {"role": "user", "name": who, "content": text} for _, who, text in part["turns"]
                )
                for seq, (id_, _, _) in enumerate(part["turns"], 1):
                    ids[session.id, seq] = id_
            db.index_sessions()
            found += [
                ([ids[hit.session_id, hit.seq] for hit in db.search(query)], wanted)
                for query, wanted in questions(sample)
            ]
    assert len(found) == 1536
    return found
