"""Many sessions that append to one file at the same time: how long, who waits, what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter_ns
from typing import Any

from harness import Effort, Figure, Race, Row, Target, compare

__all__ = ["SESSIONS", "Crowd", "Member", "crowd_rows", "race_crowds"]

SESSIONS = 16
APPENDS = 10
Member = tuple[Callable[[Any], Awaitable[Any]], Iterator[Any]]
"""What appends to a session, and what it is to be given, made off the clock."""


@dataclass(slots=True)
class Crowd:
    """The sessions of one side, and what became of their appends."""

    members: Sequence[Member]
    count: Callable[[], Awaitable[int]]
    """How many items there are in all sessions."""
    totals: list[float] = field(default_factory=list)
    """Nanoseconds a round."""
    waits: list[float] = field(default_factory=list)
    """Nanoseconds of each append."""
    acknowledged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    lost: int = 0

    async def round(self, count: int) -> None:
        """All sessions append a few items, one after the other each."""

        async def member(append: Callable[[Any], Awaitable[Any]], given: list[Any]) -> None:
            for item in given:
                start = perf_counter_ns()
                try:
                    await append(item)
                    self.acknowledged += 1
                except Exception as error:  # noqa: BLE001 - counted: a rival may refuse
                    name = str(error)[:40] or type(error).__name__
                    self.refused[name] = self.refused.get(name, 0) + 1
                self.waits.append(float(perf_counter_ns() - start))

        work = [member(append, list(islice(items, count))) for append, items in self.members]
        start = perf_counter_ns()
        await asyncio.gather(*work)
        self.totals.append(float(perf_counter_ns() - start))

    async def look(self) -> None:
        """What was acknowledged and is not there is lost."""
        self.lost = self.acknowledged - await self.count()

    def p99_ms(self) -> float:
        """What one append of a hundred takes at least."""
        ordered = sorted(self.waits)
        return ordered[round((len(ordered) - 1) * 0.99)] / 1e6

    def told(self) -> str:
        """Throughput, waits and losses in words."""
        appends = len(self.waits) / len(self.totals)
        rate = appends / (Figure.of(self.totals).median / 1e9)
        refusals = "".join(f", {count} refused ({why})" for why, count in self.refused.items())
        return f"{rate:,.0f}/s, p99 {self.p99_ms():.1f} ms, {self.lost} lost{refusals}"


async def race_crowds(crowds: Mapping[str, Crowd], effort: Effort) -> None:
    """Sides in turn, another one first each round; the first round is thrown away."""
    sides = list(crowds.values())
    appends = max(2, APPENDS // effort.rounds_divisor)
    for number in range(effort.rounds(12) + 1):
        for step in range(len(sides)):
            await sides[(step + number) % len(sides)].round(appends)
        if not number:
            for side in sides:
                side.totals.clear()
                side.waits.clear()
    for side in sides:
        await side.look()


def crowd_rows(
    where: str,
    crowds: Mapping[str, Crowd],
    pairs: Iterable[tuple[str, str]],
    *,
    sessions: int = SESSIONS,
    target: Target | None = None,
) -> Iterator[Row]:
    """A row for each pair of ours, which is called as its durability, and a rival."""
    for ours, rival in pairs:
        mine, theirs = crowds[ours], crowds[rival]
        count = round(len(mine.waits) / len(mine.totals) / sessions)
        question = f"{sessions} sessions x {count} appends {where}"
        ratios = [one / two for one, two in zip(mine.totals, theirs.totals, strict=True)]
        yield compare(
            question,
            Race(mine.totals, theirs.totals, ratios),
            rival,
            unit="ms",
            durability=ours,
            faster=True,
            target=target,
            note=f"ours {mine.told()}; theirs {theirs.told()}",
        )
