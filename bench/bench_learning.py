"""What does long-term memory cost: a statement, a search by words and vectors, what is learned?

Statements of a Zipf-like vocabulary, as ``bench_search`` has them, 12 words each. Vectors are
random ones of 256 dimensions that an embedder looks up in no time, so what is timed is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any

from bench_search import filled, queries, texts

import memcore
from harness import Effort, Figure, Row, at_most, compare, measure, race, scratch

STATEMENTS, MANY = 10_000, 100_000
DIMENSIONS = 256
USER = {"role": "user"}


class Looked:
    """An embedder of random vectors: a few, over and over."""

    id, dimensions = "random", DIMENSIONS

    def __init__(self) -> None:
        chosen = Random(3)
        made = [[chosen.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(97)]
        self._vectors = made

    def __call__(self, found: list[str]) -> Any:
        """The vectors of texts."""
        return [self._vectors[len(text) % len(self._vectors)] for text in found]


def rows(effort: Effort) -> Iterator[Row]:
    """A statement, its bytes, searches, an append beside an index, and what is learned."""
    yield from _statements(effort)
    yield from _opened(effort)
    yield from _hybrid(effort)
    yield _indexed_append(effort)
    yield from _learned(effort)


def _us(found: list[float]) -> Figure:
    return Figure.of(found).scaled(1e-3)


def _said(text: str) -> str:
    return " ".join(text.split()[:12])


def _statements(effort: Effort) -> Iterator[Row]:
    """``remember`` with one source, nothing flushed; then the file, and a search of it."""
    number = effort.items(STATEMENTS)
    said = [_said(text) for text in texts(number)]
    with scratch() as place:
        path = place / "statements"
        with memcore.open(path, durability="relaxed") as db:
            db.session("s").append({**USER, "content": "I said it all."})
            db.copy_compact()
            empty = db.stats()["pages_used"]
            memory, more, source = db.scope().memory, iter(said), memcore.Source("s", (1,))

            def remember() -> None:
                memory.remember(next(more), by="assistant", source=source)

            found = measure(remember, rounds=number - 1)
            yield Row(
                f"remember, up to {number:,} memories", "µs", _us(found), len(found),
                target=at_most(50.0, "ours"), durability="relaxed",
                note="with one source, its versions, indexes and words; no flush is waited for",
            )  # fmt: skip
            memory.search("x")
        with memcore.open(path, durability="relaxed") as db:
            db.copy_compact()
            stats = db.stats()
        each = (stats["pages_used"] - empty) * stats["page_bytes"] / number
        yield Row(
            "bytes of a memory in a compact file", "bytes", Figure(each, each, each), 1,
            target=at_most(600.0, "ours"), note="its row, its indexes, its words; without a vector",
        )  # fmt: skip
        with memcore.open(path, durability="relaxed") as db:
            memory, asked = db.scope().memory, cycle(queries())

            def search() -> None:
                memory.search(next(asked), k=10, statuses=None)

            found = measure(search, rounds=effort.rounds(300))
            yield Row(
                f"ten best of {number:,} memories", "µs", _us(found), len(found),
                target=at_most(250.0, "ours"), note="by words, with snippets",
            )  # fmt: skip
        with memcore.open(path, durability="relaxed", embedder=Looked()) as db:
            memory, asked = db.scope().memory, cycle(queries())
            memory.search("x")  # embeds them
            found = measure(search, rounds=effort.rounds(300))
            yield Row(
                f"ten best of {number:,} memories by words and vectors", "µs", _us(found),
                len(found), target=at_most(500.0, "ours"),
                note="256 dimensions, all compared; the embedder takes no time",
            )  # fmt: skip


def _opened(effort: Effort) -> Iterator[Row]:
    """Opening a file of many memories."""
    number = effort.items(MANY)
    with scratch() as place:
        path = place / "many"
        with memcore.open(path, durability="none", allow_unsafe=True) as db:
            memory = db.scope().memory
            for text in texts(number):
                memory.remember(text[:40], by="operator")

        def opens() -> None:
            memcore.open(path, durability="none", allow_unsafe=True).close()

        found = measure(opens, rounds=effort.rounds(50))
        yield Row(
            f"open and close a file of {number:,} memories", "ms", Figure.of(found).scaled(1e-6),
            len(found), durability="none", target=at_most(2.0, "ours"),
        )  # fmt: skip


def _hybrid(effort: Effort) -> Iterator[Row]:
    """A search by words and vectors, against the same by words."""
    for size, most in ((10_000, 500.0), (100_000, 3_000.0)):
        number = effort.items(size)
        with scratch() as place:
            path = Path(place) / "hybrid"
            filled(path, texts(number)).close()
            with memcore.open(path, durability="relaxed", embedder=Looked()) as db:
                db.index_sessions()
                scope, ours, theirs = db.scope(), cycle(queries()), cycle(queries())
                found = race(
                    lambda scope=scope, ours=ours: scope.search(next(ours), mode="hybrid"),
                    lambda scope=scope, theirs=theirs: scope.search(next(theirs), mode="lexical"),
                    rounds=effort.rounds(200),
                )
                yield compare(
                    f"ten best of {number:,} items by words and vectors", found,
                    "the same by words", target=at_most(most, "ours"),
                    note="256 dimensions, all compared; the embedder takes no time",
                )  # fmt: skip


def _indexed_append(effort: Effort) -> Row:
    """An append to a session that is searched, against one that nobody searches."""
    with scratch() as place:
        db = memcore.open(place / "append", durability="relaxed", counter="bytes/4")
        ours, theirs = (db.session(name, user=name) for name in ("searched", "plain"))
        for session in (ours, theirs):
            session.extend({**USER, "content": text} for text in texts(effort.items(2_000)))
        db.scope(user="searched").search("x")
        said = cycle(texts(200))
        found = race(
            lambda: ours.append({**USER, "content": next(said)}),
            lambda: theirs.append({**USER, "content": next(said)}),
            rounds=effort.rounds(2_000),
        )
        row = compare(
            "append to a session that is searched", found, "one that nobody searches",
            durability="relaxed", target=at_most(1.1),
        )  # fmt: skip
        db.close()
        return row


def _learned(effort: Effort) -> Iterator[Row]:
    """Extraction by rules, consolidation, and a rolling summary, without a model's time."""
    names = count()
    number = effort.items(1_000)
    with memcore.open(":memory:") as db:
        scope = db.scope()

        def extract() -> None:
            session = db.session(f"s{next(names)}")
            session.extend(
                {**USER, "content": f"I live in town {at} and I like sort {at} of tea."}
                for at in range(20)
            )
            session.memory.extract()

        found = measure(extract, rounds=effort.rounds(30))
        yield Row(
            "extract 20 items by rules", "ms", Figure.of(found).scaled(1e-6), len(found),
            note="reading, rules, judging, storing; the items' own append included",
        )  # fmt: skip
        memory = db.scope(user="many").memory
        for text in texts(number):
            memory.remember(_said(text), by="operator")
        plan = measure(lambda: memory.consolidate(dry_run=True), rounds=effort.rounds(10))
        yield Row(
            f"plan the consolidation of {number:,} memories", "ms", Figure.of(plan).scaled(1e-6),
            len(plan),
        )  # fmt: skip
        session, summary = db.session("told"), scope.memory.summary("bench")

        def extend() -> None:
            session.extend({**USER, "content": f"Turn {at}"} for at in range(20))
            summary.extend(lambda request: f"{len(request.messages)} messages", sessions=["told"])

        found = measure(extend, rounds=effort.rounds(50))
        yield Row(
            "extend a rolling summary by 20 items", "ms", Figure.of(found).scaled(1e-6), len(found),
            note="the items' own append included; the model takes no time",
        )  # fmt: skip
