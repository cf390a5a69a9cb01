"""What does a store in PostgreSQL cost, against others' tables on the same server?

The server is started for the benchmark on a Unix socket, with its usual flushes; its data lies
where ``MEMCORE_BENCH_DIR`` says. Round trips are as short as they get: what is gained by fewer of
them is more with a network in between.
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
    Table,
    adk_service,
    agents_session,
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
SESSIONS = 32
CONTEXT_TOKENS = 8_000
LATEST = 50


def rows(effort: Effort) -> Iterator[Row]:
    """Appends, contexts, checkpoints and crowds."""
    try:
        with started() as server:
            yield from _appends(effort, server)
            yield from asyncio.run(_sessions(effort, server))
            yield from asyncio.run(_events(effort, server))
            yield from _checkpoints(effort, server)
    except (NotInstalled, ImportError) as error:
        yield absent("a store in PostgreSQL", "others' tables", error)


def _appends(effort: Effort, server: Any) -> Iterator[Row]:
    """A lone append and a context, and the least that SQL can do."""
    import memcore

    message = {"role": "user", "content": "x" * 1_000}
    with memcore.open(server.address("bench")) as db, Table(server.dsn) as table:
        session = db.session("s", user="u")
        session.extend([message] * effort.items(MESSAGES))
        session.append(message)
        found = race(
            lambda: session.append(message), lambda: table.append(message),
            rounds=effort.rounds(ROUNDS),
        )  # fmt: skip
        yield compare(
            "append, PostgreSQL", found, "one hand-written statement",
            durability="full", target=at_most(1.5),
        )  # fmt: skip
        found = race(
            lambda: session.context(CONTEXT_TOKENS), lambda: table.latest(LATEST),
            rounds=effort.rounds(ROUNDS),
        )  # fmt: skip
        yield compare("context of 8,000 tokens, PostgreSQL", found, "SELECT of 50 rows")


async def _sessions(effort: Effort, server: Any) -> list[Row]:
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
                    "OpenAI session, an item, PostgreSQL",
                    paired(*times),
                    rival,
                    durability="full",
                    faster=True,
                    target=at_least(3),
                )
            )
            times = await race_each_async(
                [lambda: ours.get_items(LATEST), lambda: theirs.get_items(LATEST)],
                rounds=effort.rounds(ROUNDS),
            )
            question = "OpenAI session, get_items(50), PostgreSQL"
            found.append(compare(question, paired(*times), rival, faster=True))
            crowds = {
                "full": _crowd([our_session(db, f"s{n}") for n in range(SESSIONS)]),
                rival: _crowd([make(f"s{n}") for n in range(SESSIONS)]),
            }
            await race_crowds(crowds, effort)
            found += crowd_rows("on one server", crowds, [("full", rival)], sessions=SESSIONS)
        finally:
            await asyncio.to_thread(db.close)
    return found


def _crowd(sessions: list[Any]) -> Crowd:
    async def counted() -> int:
        return sum([len(await session.get_items()) for session in sessions])

    def member(session: Any) -> tuple[Callable[[Any], Awaitable[Any]], Iterator[Any]]:
        return lambda item: session.add_items([item]), itertools.cycle(response_items(40))

    return Crowd([member(session) for session in sessions], counted)


async def _events(effort: Effort, server: Any) -> list[Row]:
    """Events of ADK through its services."""
    import memcore

    db = await asyncio.to_thread(memcore.open, server.address("adk"))
    try:
        services = [our_service(db), adk_service(server)]
        adds = []
        for service in services:
            session = await service.create_session(app_name=APP, user_id=USER)
            events = endless_events()

            async def add(service: Any = service, session: Any = session, events: Any = events):
                await service.append_event(session, next(events))

            adds.append(add)
        times = await race_each_async(adds, rounds=effort.rounds(ROUNDS))
        return [
            compare(
                "ADK, an event, PostgreSQL",
                paired(*times),
                "DatabaseSessionService",
                durability="full",
                faster=True,
                target=at_least(4),
            )
        ]
    finally:
        await asyncio.to_thread(db.close)


def _checkpoints(effort: Effort, server: Any) -> Iterator[Row]:
    """Puts and gets of LangGraph's checkpoints with many messages."""
    import memcore

    with memcore.open(server.address("graph")) as db, postgres_saver(server.dsn) as theirs:
        count = effort.items(MESSAGES)
        sides = [GrowingThread(our_saver(db), count), GrowingThread(theirs, count)]
        ours, rival = sides
        found = race(ours.put, rival.put, rounds=effort.rounds(60))
        question = f"LangGraph put, {MESSAGES:,} messages, PostgreSQL"
        yield compare(
            question, found, "PostgresSaver", durability="full", faster=True, target=at_least(5)
        )
        found = race(ours.get, rival.get, rounds=effort.rounds(60))
        yield compare(
            question.replace("put", "get"), found, "PostgresSaver", faster=True, target=at_least(3)
        )
