"""What do sessions of the OpenAI Agents SDK cost, against the SDK's own?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count, cycle
from pathlib import Path
from typing import Any, Self

from crowds import SESSIONS, Crowd, crowd_rows, race_crowds
from rivals_agents import (
    advanced_session,
    async_sqlite_session,
    our_session,
    response_items,
    runner_turn,
    sqlite_session,
)

from duels import LEVELS, Targets, duels, pairs
from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    at_least,
    race_each_async,
    scratch,
    slow_flush_place,
)

LONG = 10_000
SQLITE = "SQLiteSession, WAL/FULL"
ADVANCED = "AdvancedSQLiteSession, WAL/FULL"
ASYNC = "AsyncSQLiteSession, WAL/FULL"
_RIVALS: dict[str, Callable[..., Any]] = {
    SQLITE: sqlite_session,
    ADVANCED: advanced_session,
    ASYNC: async_sqlite_session,
}
"""By durability and rival."""


def rows(effort: Effort) -> Iterator[Row]:
    """Appends on a disk and in memory, then reads, branches, turns and crowds."""
    try:
        runner_turn()
        with scratch() as place:
            for make in _RIVALS.values():
                asyncio.run(_closed(make(place / f"{make.__name__}.db")))
    except NotInstalled as error:
        yield absent("sessions of the OpenAI Agents SDK", "its own sessions", error)
        return
    yield from _everywhere(effort, _appends)
    yield from _on(effort, None, _long)
    yield from _everywhere(effort, _turns)
    yield from _everywhere(effort, _crowds)


Measured = Callable[[Effort, Path, str], Awaitable[list[Row]]]


def _everywhere(effort: Effort, measured: Measured) -> Iterator[Row]:
    yield from _on(effort, None, measured)
    if slow_flush_place():
        yield from _on(effort, slow_flush_place(), measured, ", flushes for nothing")


def _on(effort: Effort, parent: str | None, measured: Measured, where: str = "") -> Iterator[Row]:
    with scratch(parent) as place:
        yield from asyncio.run(measured(effort, place, where))


async def _closed(session: Any) -> None:
    closing = session.close()
    if closing is not None:
        await closing


class Sides:
    """A session of each kind, closed in the end: ours by their durability, theirs by name."""

    def __init__(self, place: Path, *, levels: tuple[str, ...] = LEVELS) -> None:
        self._place = place
        self._stack = AsyncExitStack()
        self.levels = levels
        self.sessions: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        for name in (*self.levels, *_RIVALS):
            self.sessions[name] = self.opened(name)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def name_of(self, session: Any) -> str:
        """The side of a session."""
        return next(name for name, known in self.sessions.items() if known is session)

    def opened(self, name: str, session_id: str = "bench") -> Any:
        """One more session on the file of a side."""
        if name in self.levels:
            path = self._place / name
            durability = None if path.exists() else name
            session = our_session(path, session_id, durability=durability)
        else:
            session = _RIVALS[name](self._place / f"{_RIVALS[name].__name__}.db", session_id)
        self._stack.push_async_callback(_closed, session)
        return session

    async def race(
        self,
        question: str,
        action: Callable[[Any], Callable[[], Awaitable[Any]]],
        *,
        rounds: int,
        calls: int = 1,
        targets: Targets | None = None,
        unit: str = "µs",
        only: tuple[str, ...] = (),
        note: str = "",
    ) -> list[Row]:
        """The rows of one action on all sides: each of ours against each of theirs."""
        names = [name for name in self.sessions if not only or name in only]
        found = await race_each_async(
            [action(self.sessions[name]) for name in names], rounds=rounds, calls=calls
        )
        times = dict(zip(names, found, strict=True))
        return duels(question, times, SQLITE, targets=targets, unit=unit, note=note)


# --- appends -------------------------------------------------------------------------------------


def _adding(size: int) -> Callable[[Any], Callable[[], Awaitable[Any]]]:
    def of(session: Any) -> Callable[[], Awaitable[Any]]:
        items = cycle(response_items(4_000))
        return lambda: session.add_items([next(items) for _ in range(size)])

    return of


async def _appends(effort: Effort, place: Path, where: str) -> list[Row]:
    rounds = effort.rounds(300)
    async with Sides(place) as sides:
        targets = {("full", SQLITE): at_least(1.5)}
        found = await sides.race(f"add_items(1){where}", _adding(1), rounds=rounds, targets=targets)
        return found + await sides.race(
            f"add_items(4){where}", _adding(4), rounds=effort.rounds(100), only=("full", SQLITE)
        )


# --- a long session ------------------------------------------------------------------------------


async def _long(effort: Effort, place: Path, _: str) -> list[Row]:
    many = effort.items(LONG)
    items = response_items(many)
    told = f"{many:,}"
    async with Sides(place, levels=("full",)) as sides:
        for session in sides.sessions.values():
            await session.add_items(items)
            assert len(await session.get_items()) == many
        targets = {("full", SQLITE): at_least(3.0), ("full", ADVANCED): at_least(50.0)}
        found = await sides.race(
            f"get_items(50) of {told}",
            lambda session: lambda: session.get_items(50),
            rounds=effort.rounds(40),
            targets=targets,
        )
        found += await sides.race(
            f"get_items() of {told}",
            lambda session: session.get_items,
            rounds=effort.rounds(8),
            unit="ms",
        )
        found += await sides.race(
            f"pop_item of {told}", lambda session: session.pop_item, rounds=effort.rounds(40)
        )
        found += await sides.race(
            f"add_items(1) behind {told}", _adding(1), rounds=effort.rounds(60)
        )
        found += await _opens(effort, sides, told)
        return found + await _branches(effort, sides, told)


async def _opens(effort: Effort, sides: Sides, told: str) -> list[Row]:
    """Nobody else has the file open meanwhile."""
    for session in sides.sessions.values():
        await _closed(session)

    def of(session: Any) -> Callable[[], Awaitable[Any]]:
        name = sides.name_of(session)

        async def opened() -> None:
            another = sides.opened(name)
            assert len(await another.get_items(50)) == 50
            await _closed(another)

        return opened

    found = await sides.race(
        f"open a file of {told}, get_items(50), close it", of, rounds=effort.rounds(20)
    )
    sides.sessions = {name: sides.opened(name) for name in sides.sessions}
    return found


async def _branches(effort: Effort, sides: Sides, told: str) -> list[Row]:
    """From the last turn but one: nearly all of the history is shared, or copied."""
    question = f"branch from the last turn but one of {told}"
    target = at_least(100.0)
    if not hasattr(sides.sessions["full"], "create_branch_from_turn"):
        why = "MemcoreSession has no branches"
        return [absent(question, ADVANCED, why, durability="full", target=target)]
    turns = {
        name: len(await sides.sessions[name].get_conversation_turns())
        for name in ("full", ADVANCED)
    }

    def of(session: Any) -> Callable[[], Awaitable[Any]]:
        name = sides.name_of(session)
        numbers = count()

        async def branch() -> None:
            await session.create_branch_from_turn(turns[name] - 1, f"branch-{next(numbers)}")
            await session.switch_to_branch("main")

        return branch

    return await sides.race(
        question,
        of,
        rounds=effort.rounds(8),
        unit="ms",
        targets={("full", ADVANCED): target},
        only=("full", ADVANCED),
        note="and back to main",
    )


# --- turns of the Runner, and crowds -------------------------------------------------------------


async def _turns(effort: Effort, place: Path, where: str) -> list[Row]:
    turn = runner_turn()
    async with Sides(place) as sides:
        found = await sides.race(
            f"a turn of the Runner: 3 appends, 4 items{where}",
            lambda session: lambda: turn(session),
            rounds=effort.rounds(40),
            unit="ms",
            note="the sessions grow by the same items; the Runner's own time is in both",
        )
        for session in sides.sessions.values():
            assert len(await session.get_items()) == 4 * (effort.rounds(40) + 1)
        return found


async def _crowds(effort: Effort, place: Path, where: str) -> list[Row]:
    async with Sides(place) as sides:
        crowds = {name: _crowd(sides, name) for name in sides.sessions}
        await race_crowds(crowds, effort)
        return list(crowd_rows(f"on one file{where}", crowds, pairs(crowds, SQLITE)))


def _crowd(sides: Sides, name: str) -> Crowd:
    sessions = [sides.opened(name, f"session-{at}") for at in range(SESSIONS)]
    items = [[item] for item in response_items(40)]

    async def counted() -> int:
        return sum([len(await session.get_items()) for session in sessions])

    return Crowd([(session.add_items, cycle(items)) for session in sessions], counted)


def test_add_items(benchmark: Any, place: Path) -> None:
    """An append of one item where a flush costs nothing."""
    with asyncio.Runner() as runner:
        session = our_session(place / "memcore", durability="none")
        items = cycle(response_items(400))
        benchmark(lambda: runner.run(session.add_items([next(items)])))
        session.close()
