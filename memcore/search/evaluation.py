"""Evaluation of a search: how much of what questions expect is among the first results, no model.

Questions are JSON lines, ``{"query": "...", "expected": [["session", seq], ...]}``: the words to
search for and the items that hold the evidence. ``"group"``, a short text, is optional: figures are
told for each group, too. A result counts for the items that it stands for: itself, or those that a
memory rests on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from math import log2
from typing import Any, Final, NamedTuple

from memcore.errors import InvalidItemError, InvalidOptionError
from memcore.search.query import checked_query

__all__ = [
    "LINE_BYTES_MAX",
    "Place",
    "Quality",
    "Question",
    "measure",
    "read_questions",
]


Place = tuple[str, int]
"""Session and seq of an item."""
LINE_BYTES_MAX: Final = 1024**2
"""Bytes of a line, at most."""
QUESTIONS_MAX: Final = 100_000
_EXPECTED_MAX: Final = 1000
_GROUP_CHARS_MAX: Final = 64
_SEQ_END: Final = 2**48


class Question(NamedTuple):
    """A query, and the items that its results should lead to."""

    query: str
    expected: frozenset[Place]
    group: str = ""


class Quality(NamedTuple):
    """Means over questions, 0 to 1, of the first k results."""

    questions: int
    recall: float
    """Share of the expected items that the results lead to."""
    hits: float
    """Share of the questions with at least one of them."""
    ndcg: float
    """Discounted gain by rank (gains of 1, discount ``log2(rank + 1)``), of the best possible."""
    mrr: float
    """Reciprocal rank of the first result that leads to one; 0 without."""


def read_questions(lines: Iterable[bytes]) -> list[Question]:
    """Read questions from JSON lines; empty lines are skipped.

    Raises:
        InvalidItemError: a line is no question, or there are none, or too many.
    """
    found: list[Question] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(found) == QUESTIONS_MAX:
            msg = f"line {number}: expected at most {QUESTIONS_MAX} questions"
            raise InvalidItemError(msg)
        try:
            found.append(_question(line))
        except (ValueError, TypeError, RecursionError, InvalidOptionError) as error:
            msg = (
                f'line {number}: expected {{"query": "...", "expected": [["session", seq], ...]}}: '
                f"{error}"
            )
            raise InvalidItemError(msg) from error
    if not found:
        raise InvalidItemError("there is no question")
    return found


def _question(line: bytes) -> Question:
    """Return the question of a line.

    Raises:
        ValueError, TypeError, RecursionError, InvalidOptionError: it is none.
    """
    if len(line) > LINE_BYTES_MAX:
        msg = f"it has {len(line)} bytes, of at most {LINE_BYTES_MAX}"
        raise ValueError(msg)
    said = json.loads(line.decode("utf-8", "surrogatepass"))
    if not isinstance(said, dict):
        raise TypeError("it is not an object")
    query, _ = checked_query(said.get("query"), 1)
    expected, group = said.get("expected"), said.get("group", "")
    if not isinstance(expected, list) or not 0 < len(expected) <= _EXPECTED_MAX:
        msg = f"expected: 1 to {_EXPECTED_MAX} items"
        raise ValueError(msg)
    if not isinstance(group, str) or len(group) > _GROUP_CHARS_MAX:
        msg = f"group: a text of at most {_GROUP_CHARS_MAX} characters"
        raise ValueError(msg)
    return Question(query, frozenset(map(_place, expected)), group)


def _place(said: Any) -> Place:
    if not isinstance(said, list) or len(said) != 2:  # noqa: PLR2004 - session and seq
        raise TypeError("expected: an item is a session and a seq")
    session, seq = said
    if not isinstance(session, str) or not session:
        raise TypeError("expected: a session is a text")
    if type(seq) is not int or not 0 < seq < _SEQ_END:
        raise TypeError("expected: a seq is a number from 1 on")
    return session, seq


Find = Callable[[str, int], Sequence[Collection[Place]]]
"""Searches for a query; returns for each of at most k results the items that it stands for."""


def measure(questions: Iterable[Question], find: Find, *, k: int) -> dict[str, Quality]:
    """Search for each question, and return the quality by group; ``""`` is that of all questions.

    Recall and nDCG are those of the common definitions with binary gains (Järvelin and Kekäläinen
    2002); an item counts at the first result that leads to it.
    """
    sums: dict[str, list[float]] = {}
    for asked in questions:
        figures = _figures(asked.expected, find(asked.query, k)[:k], k)
        for group in {"", asked.group}:
            before = sums.setdefault(group, [0] * (1 + len(figures)))
            sums[group] = [a + b for a, b in zip(before, (1, *figures), strict=True)]
    return {
        group: Quality(int(count), *(total / count for total in totals))
        for group, (count, *totals) in sorted(sums.items())
    }


def _figures(
    expected: frozenset[Place], results: Sequence[Collection[Place]], k: int
) -> tuple[float, float, float, float]:
    """Return recall, hits, nDCG and reciprocal rank of one question."""
    seen: set[Place] = set()
    gain = first = 0.0
    for rank, places in enumerate(results, 1):
        new = expected.intersection(places) - seen
        if new:
            gain += 1 / log2(rank + 1)
            first = first or 1 / rank
            seen |= new
    ideal = sum(1 / log2(rank + 1) for rank in range(1, min(len(expected), k) + 1))
    return len(seen) / len(expected), float(bool(seen)), gain / ideal, first
