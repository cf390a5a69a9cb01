"""What does a store in PostgreSQL cost, against others' tables on the same server?

The server is started for the benchmark on a Unix socket; its data lies where
``MEMCORE_BENCH_DIR`` says. Every question is asked four times: beside the server, where a round
trip takes no time, and with a network of 1 ms in between (``distance.py``); each time with the
server's usual flushes, and with ``synchronous_commit`` off, where a commit waits for none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from crowds import Crowd, crowd_rows, race_crowds
from rivals_adk_sessions import APP, USER, endless_events, our_service
from rivals_agents import our_session, response_items
from rivals_postgres import (
    GrowingThread,
    Place,
    Table,
    adk_service,
    agents_session,
    async_postgres_saver,
    postgres_saver,
    started,
)

from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    at_least,
    at_most,
    compare,
    paired,
    race,
    race_each_async,
)
from rivals_langgraph import our_saver

ROUNDS = 200
MESSAGES = 1_000
DISTANCES_MS = (0, 1)
"""Round trips of the network to the server."""
FLUSHES = {"full": (), "relaxed": ("synchronous_commit=off",)}
"""Settings of the server, by the durability that they give every commit."""
SESSIONS = 32
CROWD_MESSAGES = 100
CONTEXT_TOKENS = 8_000
LATEST = 50


def rows(effort: Effort) -> Iterator[Row]:
    """Appends, contexts, checkpoints and crowds."""
    try:
        for distance, (mode, options) in itertools.product(DISTANCES_MS, FLUSHES.items()):
            away = f", {distance} ms away" if distance else ""
            with started(distance, *options) as server:
                yield from _appends(effort, server, away, mode)
                yield from asyncio.run(_sessions(effort, server, away, mode))
                yield from asyncio.run(_events(effort, server, away, mode))
                yield from _checkpoints(effort, server, away, mode)
                yield from asyncio.run(_threads(effort, server, away, mode))
    except (NotInstalled, ImportError) as error:
        yield absent("a store in PostgreSQL", "others' tables", error)


def _appends(effort: Effort, server: Place, away: str, mode: str) -> Iterator[Row]:
    """A lone append and a context, and the least that SQL can do."""
    import memcore

    message = {"role": "user", "content": "x" * 1_000}
    with memcore.open(server.address("bench")) as db, Table(server.url()) as table:
        session = db.session("s", user="u")
        session.extend([message] * effort.items(MESSAGES))
        session.append(message)
        found = race(
            lambda: session.append(message), lambda: table.append(message),
            rounds=effort.rounds(ROUNDS),
        )  # fmt: skip
        yield compare(
            f"append, PostgreSQL{away}", found, "one hand-written statement",
            durability=mode, target=at_most(1.5),
        )  # fmt: skip
        found = race(
            lambda: session.context(CONTEXT_TOKENS), lambda: table.latest(LATEST),
            rounds=effort.rounds(ROUNDS),
        )  # fmt: skip
        yield compare(f"context of 8,000 tokens, PostgreSQL{away}", found, "SELECT of 50 rows")


async def _sessions(effort: Effort, server: Place, away: str, mode: str) -> list[Row]:
    """The OpenAI Agents SDK: one session, then many at once."""
    import memcore

    items = itertools.cycle(response_items(400))
    found: list[Row] = []
    db = await asyncio.to_thread(memcore.open, server.address("agents"))
    async with agents_session(server) as make:
        try:
            ours, theirs = our_session(db), make("bench")
            for session in (ours, theirs):
                await session.add_items(response_items(100))
            times = await race_each_async(
                [lambda: ours.add_items([next(items)]), lambda: theirs.add_items([next(items)])],
                rounds=effort.rounds(ROUNDS),
            )
            rival = "SQLAlchemySession"
            found.append(
                compare(
                    f"OpenAI session, an item, PostgreSQL{away}",
                    paired(*times),
                    rival,
                    durability=mode,
                    faster=True,
                    target=at_least(3),
                )
            )
            times = await race_each_async(
                [lambda: ours.get_items(LATEST), lambda: theirs.get_items(LATEST)],
                rounds=effort.rounds(ROUNDS),
            )
            question = f"OpenAI session, get_items(50), PostgreSQL{away}"
            found.append(compare(question, paired(*times), rival, faster=True))
            crowds = {
                mode: _crowd([our_session(db, f"s{n}") for n in range(SESSIONS)]),
                rival: _crowd([make(f"s{n}") for n in range(SESSIONS)]),
            }
            await race_crowds(crowds, effort)
            found += crowd_rows(
                f"on one server{away}", crowds, [(mode, rival)],
                sessions=SESSIONS, target=at_least(10),
            )  # fmt: skip
        finally:
            await asyncio.to_thread(db.close)
    return found


def _crowd(sessions: list[Any]) -> Crowd:
    async def counted() -> int:
        return sum([len(await session.get_items()) for session in sessions])

    def member(session: Any) -> tuple[Callable[[Any], Awaitable[Any]], Iterator[Any]]:
        return lambda item: session.add_items([item]), itertools.cycle(response_items(40))

    return Crowd([member(session) for session in sessions], counted)


async def _events(effort: Effort, server: Place, away: str, mode: str) -> list[Row]:
    """Events of ADK through its services: one session, then many at once."""
    import memcore

    rival = "DatabaseSessionService"
    db = await asyncio.to_thread(memcore.open, server.address("adk"))
    try:
        services = [our_service(db), adk_service(server)]
        crowds = {
            name: await _event_crowd(service)
            for name, service in zip((mode, rival), services, strict=True)
        }
        adds = []
        for service in services:
            session = await service.create_session(app_name=APP, user_id=USER)
            events = endless_events()

            async def add(
                service: Any = service, session: Any = session, events: Any = events
            ) -> None:
                await service.append_event(session, next(events))

            adds.append(add)
        times = await race_each_async(adds, rounds=effort.rounds(ROUNDS))
        found = compare(
            f"ADK, an event, PostgreSQL{away}", paired(*times), rival,
            durability=mode, faster=True, target=at_least(4),
        )  # fmt: skip
        await race_crowds(crowds, effort)
        many = crowd_rows(
            f"of ADK on one server{away}", crowds, [(mode, rival)],
            sessions=SESSIONS, target=at_least(20),
        )  # fmt: skip
        return [found, *many]
    finally:
        await asyncio.to_thread(db.close)


async def _event_crowd(service: Any) -> Crowd:
    sessions = [
        await service.create_session(app_name=APP, user_id=USER, session_id=f"s{n}")
        for n in range(SESSIONS)
    ]

    async def counted() -> int:
        found = [
            await service.get_session(app_name=APP, user_id=USER, session_id=each.id)
            for each in sessions
        ]
        return sum(len(each.events) for each in found)

    def member(session: Any) -> tuple[Callable[[Any], Awaitable[Any]], Iterator[Any]]:
        return lambda event: service.append_event(session, event), endless_events()

    return Crowd([member(session) for session in sessions], counted)


async def _threads(effort: Effort, server: Place, away: str, mode: str) -> list[Row]:
    """Many threads of LangGraph that put at once."""
    import memcore

    rival = "AsyncPostgresSaver"
    db = await asyncio.to_thread(memcore.open, server.address("threads"))
    try:
        async with async_postgres_saver(server.url()) as theirs:
            crowds = {mode: _put_crowd(our_saver(db)), rival: _put_crowd(theirs)}
            await race_crowds(crowds, effort)
            found = crowd_rows(
                f"(puts of {CROWD_MESSAGES} messages) on one server{away}", crowds,
                [(mode, rival)], sessions=SESSIONS, target=at_least(5),
            )  # fmt: skip
            return list(found)
    finally:
        await asyncio.to_thread(db.close)


def _put_crowd(saver: Any) -> Crowd:
    threads = [GrowingThread(saver, CROWD_MESSAGES, f"t{n}") for n in range(SESSIONS)]

    async def counted() -> int:
        return sum([await thread.stored() for thread in threads])

    return Crowd([(thread.aput, itertools.repeat(None)) for thread in threads], counted)


def _checkpoints(effort: Effort, server: Place, away: str, mode: str) -> Iterator[Row]:
    """Puts and gets of LangGraph's checkpoints with many messages."""
    import memcore

    with memcore.open(server.address("graph")) as db, postgres_saver(server.url()) as theirs:
        count = effort.items(MESSAGES)
        ours, rival = GrowingThread(our_saver(db), count), GrowingThread(theirs, count)
        for side in (ours, rival):
            side.put()
        found = race(ours.put, rival.put, rounds=effort.rounds(60))
        question = f"LangGraph put, {MESSAGES:,} messages, PostgreSQL{away}"
        yield compare(
            question, found, "PostgresSaver", durability=mode, faster=True, target=at_least(5)
        )
        found = race(ours.get, rival.get, rounds=effort.rounds(60))
        yield compare(
            question.replace("put", "get"), found, "PostgresSaver", faster=True, target=at_least(3)
        )
