"""How fast are items found by their words? Against SQLite's FTS5 on the same texts.

Texts of a Zipf-like vocabulary, 24 words each, in sessions of 200; queries of four words, of which
one is common. FTS5 gets the same words without stop words, its Porter stemmer and its own bm25();
memcore also reads the items that it returns and cuts their snippets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import memcore
from harness import Effort, Row, at_least, compare, race, scratch
from rivals import Fts5

SIZES = (10_000, 100_000)
SESSION_ITEMS = 200
WORDS, QUERIES = 24, 64
RIVAL = "sqlite3 FTS5, bm25()"
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en")]


def vocabulary() -> list[str]:
    """Words of two and three syllables, the same in every run."""
    chosen = Random(11)
    found = {"".join(chosen.choices(_SYLLABLES, k=chosen.choice((2, 3)))) for _ in range(20_000)}
    return sorted(found, key=lambda word: (len(word), word))


def texts(count: int) -> list[str]:
    """Texts in which the word of rank r occurs about 1/r as often as the first."""
    chosen, words = Random(5), vocabulary()
    weights = [1 / (rank + 10) for rank in range(len(words))]
    return [" ".join(chosen.choices(words, weights, k=WORDS)) for _ in range(count)]


def queries() -> list[str]:
    """Four words: one of the 50 commonest, one of the next 1,000, two of the rest."""
    chosen, words = Random(6), vocabulary()
    bands = ((0, 50), (50, 1000), (1000, 10_000), (1000, 10_000))
    return [" ".join(words[chosen.randrange(*band)] for band in bands) for _ in range(QUERIES)]


def filled(path: Path, found: list[str]) -> memcore.Database:
    """A database with an index of all texts."""
    db = memcore.open(path, durability="relaxed", counter="bytes/4")
    for at in range(0, len(found), SESSION_ITEMS):
        db.session(f"s{at}").extend(
            {"role": "user", "content": text} for text in found[at : at + SESSION_ITEMS]
        )
    db.index_sessions()
    return db


def rows(effort: Effort) -> Iterator[Row]:
    """The ten best of 10,000 and of 100,000 items."""
    for size in SIZES:
        count = effort.items(size)
        found = texts(count)
        with scratch() as place:
            db, other = filled(place / "memcore", found), Fts5(place / "sqlite.db", found)
            ours, theirs = cycle(queries()), cycle(queries())
            scope = db.scope()

            def search(scope: memcore.Scope = scope, ours: Iterator[str] = ours) -> None:
                scope.search(next(ours), k=10)

            def match(other: Fts5 = other, theirs: Iterator[str] = theirs) -> None:
                other.search(next(theirs))

            race_found = race(search, match, rounds=effort.rounds(300))
            yield compare(
                f"ten best of {count:,} items",
                race_found,
                RIVAL,
                faster=True,
                target=at_least(1.0),
            )
            db.close()
            other.close()
