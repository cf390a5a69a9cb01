"""Several of ours, by their durability, against several of theirs: who meets whom, and the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness import Row, Target, compare, paired

LEVELS = ("full", "relaxed", "none")
Targets = Mapping[tuple[str, str], Target]


def pairs(names: Iterable[str], plainest: str) -> Iterator[tuple[str, str]]:
    """What is compared: at "full" with all rivals, else with the plainest of them."""
    known = list(names)
    for level in filter(LEVELS.__contains__, known):
        for rival in known:
            if rival not in LEVELS and (level == "full" or rival == plainest):
                yield level, rival


def duels(
    question: str,
    times: Mapping[str, list[list[float]]],
    plainest: str,
    *,
    targets: Targets | None = None,
    unit: str = "µs",
    note: str = "",
) -> list[Row]:
    """A row a pair of ``pairs``; ``times`` are those of one interleaved run, by name."""
    return [
        compare(
            question,
            paired(times[level], times[rival]),
            rival,
            unit=unit,
            durability=level,
            target=(targets or {}).get((level, rival)),
            faster=True,
            note=note,
        )
        for level, rival in pairs(times, plainest)
    ]
