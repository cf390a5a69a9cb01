"""What do sessions of Google ADK cost, against ADK's own services and the least that could be?"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

from crowds import SESSIONS, Crowd, Member, crowd_rows, race_crowds
from rivals_adk_sessions import (
    APP,
    USER,
    Floor,
    database_service,
    endless_events,
    get_config,
    memory_service,
    our_service,
    sqlite_service,
)

from duels import LEVELS, duels, pairs
from harness import (
    Effort,
    Figure,
    NotInstalled,
    Race,
    Row,
    Target,
    absent,
    at_least,
    at_most,
    compare,
    paired,
    race_each_async,
    scratch,
    slow_flush_place,
)

LONG, MIDDLE = 5_000, 1_000
SQLITE = "SqliteSessionService"
DATABASE = "DatabaseSessionService on SQLite"
MEMORY = "InMemorySessionService"
FLOOR = "kept sqlite3 connection, WAL/FULL, JSON alone"
_RIVALS: dict[str, Callable[[Path], Any]] = {
    SQLITE: sqlite_service,
    DATABASE: database_service,
    MEMORY: lambda _: memory_service(),
    FLOOR: Floor,
}
_FILES = (SQLITE, DATABASE)
_READERS = (*_FILES, MEMORY)
"""By durability and rival."""
Measured = Callable[[Effort, Path, Path, str], Awaitable[list[Row]]]


def rows(effort: Effort) -> Iterator[Row]:
    """Appends on a disk and in memory, then reads and crowds."""
    try:
        with scratch() as place:
            asyncio.run(_closed(our_service(place / "probe")))
            sqlite_service(place / "probe.db")
    except NotInstalled as error:
        yield absent("sessions of Google ADK", "its own services", error)
        return
    # Thousands of flushes are spared: files are filled in memory, and copied to where they serve.
    with scratch(slow_flush_place()) as filled:
        for events in (MIDDLE, LONG):
            asyncio.run(_fill(filled / str(events), _events(effort, events)))
        for measured in (_appends, _crowds):
            yield from _on(effort, None, measured, filled)
            if slow_flush_place():
                where = ", flushes for nothing"
                yield from _on(effort, slow_flush_place(), measured, filled, where)
        yield from _on(effort, slow_flush_place(), _reads, filled)


def _on(
    effort: Effort, parent: str | None, measured: Measured, filled: Path, where: str = ""
) -> Iterator[Row]:
    with scratch(parent) as place:
        yield from asyncio.run(measured(effort, place, filled, where))


def _events(effort: Effort, wanted: int) -> int:
    """Of ``wanted`` events those that are made; when it is a test, next to none."""
    return max(8, wanted // effort.items_divisor)


async def _fill(place: Path, events: int) -> None:
    """Files of all sides with a session of so many events."""
    async with Sides(place, rivals=_FILES) as sides:
        for name, service in sides.services.items():
            for event in islice(endless_events(), events):
                await service.append_event(sides.sessions[name], event)


async def _closed(service: Any) -> None:
    closing = getattr(service, "close", lambda: None)()
    if closing is not None:
        await closing


class Sides:
    """A service of each kind, ours by their durability, theirs by name; and who is ``absent``.

    ``filled`` holds files with ``events`` events, copied first.
    """

    def __init__(
        self,
        place: Path,
        *,
        levels: Iterable[str] = LEVELS,
        rivals: Iterable[str] = _RIVALS,
        filled: Path | None = None,
        events: int = 0,
    ) -> None:
        self._place = place
        self._stack = AsyncExitStack()
        self._names = (*levels, *rivals)
        self._events = events
        self.services: dict[str, Any] = {}
        self.sessions: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        """Why."""
        place.mkdir(exist_ok=True)
        for path in filled.iterdir() if filled else ():
            if not path.name.endswith("-lock"):
                shutil.copy(path, place / path.name)

    async def __aenter__(self) -> Self:
        for name in self._names:
            try:
                service = self.opened(name)
                self.sessions[name] = await self._session(name, service)
            except (NotInstalled, ImportError, ValueError) as error:
                self.absent[name] = str(error).partition("\n")[0]
                continue
            self.services[name] = service
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def opened(self, name: str, **options: Any) -> Any:
        """A service on the file of a side."""
        if name in LEVELS:
            path = self._place / name
            service = our_service(path, durability=None if path.exists() else name, **options)
        else:
            service = _RIVALS[name](self._place / f"{name.partition(' ')[0]}.db")
        self._stack.push_async_callback(_closed, service)
        return service

    async def _session(self, name: str, service: Any) -> Any:
        if self._events and (name in LEVELS or name in _FILES):
            return await service.get_session(app_name=APP, user_id=USER, session_id="bench")
        session = await self.begun(service, "bench")
        for event in islice(endless_events(), self._events):
            await service.append_event(session, event)
        return session

    @staticmethod
    async def begun(service: Any, session_id: str) -> Any:
        """A new session."""
        return await service.create_session(app_name=APP, user_id=USER, session_id=session_id)

    async def race(
        self, action: Callable[[str], Callable[[], Awaitable[Any]]], *, rounds: int
    ) -> dict[str, list[list[float]]]:
        """The times of one action on all sides."""
        names = list(self.services)
        found = await race_each_async([action(name) for name in names], rounds=rounds)
        return dict(zip(names, found, strict=True))


# --- appends -------------------------------------------------------------------------------------


async def _appends(effort: Effort, place: Path, filled: Path, where: str) -> list[Row]:
    rounds = effort.rounds(100)
    targets = {("full", SQLITE): at_least(15.0 if where else 2.0)}
    found: list[Row] = []
    ours: list[list[list[float]]] = []
    for length in (0, MIDDLE, LONG):
        events = _events(effort, length) if length else 0
        source = filled / str(length) if length else None
        async with Sides(place / str(length), filled=source, events=events) as sides:
            times = await sides.race(partial(_appending, sides, rounds), rounds=rounds)
            question = f"append_event behind {events:,}{where}"
            found += duels(question, times, SQLITE, targets=targets)
            ours.append(times["full"])
            missing = sides.absent
    found.append(_flat(f"append_event behind {events:,}{where}", ours[-1], ours[0]))
    return found + [
        absent(f"append_event{where}", name, why, durability="full")
        for name, why in missing.items()
    ]


def _appending(sides: Sides, rounds: int, name: str) -> Callable[[], Awaitable[Any]]:
    events = iter(list(islice(endless_events(), rounds + 1)))
    service, session = sides.services[name], sides.sessions[name]
    return lambda: service.append_event(session, next(events))


def _flat(question: str, late: list[list[float]], early: list[list[float]]) -> Row:
    """What the length of a session costs; the two were not measured in turn."""
    mine, other = list(chain(*late)), list(chain(*early))
    ratio = Figure.of(mine).median / Figure.of(other).median
    return compare(
        question,
        Race(mine, other, [ratio]),
        "ours in a fresh session",
        durability="full",
        target=at_most(1.5),
        note="not interleaved",
    )


# --- reads ---------------------------------------------------------------------------------------


async def _reads(effort: Effort, place: Path, filled: Path, _: str) -> list[Row]:
    many = _events(effort, LONG)
    told = f"{many:,}"
    async with Sides(
        place,
        levels=("none",),  # what is read is the same in each mode
        rivals=_READERS,
        filled=filled / str(LONG),
        events=many,
    ) as sides:
        found = await _recent(effort, sides, told)
        found += await _whole(effort, sides, many, told)
        return found + await _lists(effort, sides)


def _reading(service: Any, config: Any, events: int) -> Callable[[], Awaitable[Any]]:
    async def read() -> None:
        found = await service.get_session(
            app_name=APP, user_id=USER, session_id="bench", config=config
        )
        assert len(found.events) == events

    return read


async def _recent(effort: Effort, sides: Sides, told: str) -> list[Row]:
    wanted = min(50, _events(effort, LONG))
    config = get_config(wanted)
    found: list[Row] = []
    warm = sides.services["none"]
    for variant, service in (
        ("warm", warm),
        ("nothing cached", sides.opened("none", cache_bytes=0)),
    ):
        sides.services["none"] = service
        times = await sides.race(
            lambda name: _reading(sides.services[name], config, wanted), rounds=effort.rounds(30)
        )
        question = f"get_session, {wanted} recent events of {told}, {variant}"
        found += _read_rows(question, times, target=at_least(10.0))
    sides.services["none"] = warm
    return found


def _read_rows(
    question: str,
    times: Mapping[str, list[list[float]]],
    *,
    target: Target | None = None,
    unit: str = "µs",
    note: str = "",
) -> list[Row]:
    """The target is the one against the service that is a file, too."""
    return [
        compare(
            question,
            paired(times["none"], theirs),
            rival,
            unit=unit,
            target=target if rival == SQLITE else None,
            faster=True,
            note=note,
        )
        for rival, theirs in times.items()
        if rival not in LEVELS
    ]


async def _whole(effort: Effort, sides: Sides, many: int, told: str) -> list[Row]:
    """All events: decoded anew, copied from the cache, and the cached ones themselves."""
    warm = sides.services["none"]
    variants = {
        "nothing cached": (sides.opened("none", cache_bytes=0), ""),
        "warm, copies": (sides.opened("none", cache_bytes=2**30), "the default"),
        "warm, no copies": (
            sides.opened("none", cache_bytes=2**30, copies=False),
            "copies=False: for readers that change nothing",
        ),
    }
    found: list[Row] = []
    for variant, (service, note) in variants.items():
        sides.services["none"] = service
        times = await sides.race(
            lambda name: _reading(sides.services[name], None, many), rounds=effort.rounds(6)
        )
        question = f"get_session, all of {told} events, {variant}"
        found += _read_rows(question, times, unit="ms", note=note)
    sides.services["none"] = warm
    return found


async def _lists(effort: Effort, sides: Sides) -> list[Row]:
    sessions = _events(effort, 500)
    for service in sides.services.values():
        for at in range(sessions - 1):
            await sides.begun(service, f"session-{at}")

    def listing(name: str) -> Callable[[], Awaitable[Any]]:
        async def listed() -> None:
            found = await sides.services[name].list_sessions(app_name=APP, user_id=USER)
            assert len(found.sessions) == sessions

        return listed

    times = await sides.race(listing, rounds=effort.rounds(10))
    return _read_rows(f"list_sessions of {sessions:,}", times, unit="ms")


# --- crowds --------------------------------------------------------------------------------------


async def _crowds(effort: Effort, place: Path, _: Path, where: str) -> list[Row]:
    async with Sides(place, rivals=_READERS) as sides:
        crowds = {name: await _crowd(sides, name) for name in sides.services}
        await race_crowds(crowds, effort)
        return list(crowd_rows(f"on one file{where}", crowds, pairs(crowds, SQLITE)))


async def _crowd(sides: Sides, name: str) -> Crowd:
    service = sides.services[name]
    sessions = [await sides.begun(service, f"session-{at}") for at in range(SESSIONS)]

    def member(session: Any) -> Member:
        return partial(service.append_event, session), endless_events()

    async def counted() -> int:
        found = 0
        for session in sessions:
            stored = await service.get_session(app_name=APP, user_id=USER, session_id=session.id)
            found += len(stored.events)
        return found

    return Crowd([member(session) for session in sessions], counted)


def test_append_event(benchmark: Any, place: Path) -> None:
    """An append where a flush costs nothing."""
    with asyncio.Runner() as runner:
        service = our_service(place / "memcore", durability="none")
        session = runner.run(Sides.begun(service, "bench"))
        events = endless_events()
        benchmark(lambda: runner.run(service.append_event(session, next(events))))
        service.close()
