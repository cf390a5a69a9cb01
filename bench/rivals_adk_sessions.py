"""Session services of Google ADK, and the events that all of them are given.

Nothing of ADK is imported elsewhere in these benchmarks but in ``rivals_adk``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from rivals import KeptSqlite
from trimming import missing

__all__ = [
    "APP",
    "USER",
    "Floor",
    "database_service",
    "endless_events",
    "get_config",
    "memory_service",
    "our_service",
    "sqlite_service",
]

APP, USER = "bench", "user"
TEXT = "some words of a conversation about flights, refunds and the weather in Oslo. "
_PACKAGE = "google-adk"


def endless_events(first: int = 0) -> Iterator[Any]:
    """Question, call of a tool, its response (1 KB, with a change of the state), answer."""
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.genai import types

    for at in count(first):
        call, text = f"call-{at // 4}", f"{at} {TEXT}"
        part = (
            types.Part(text=text),
            types.Part(function_call=types.FunctionCall(id=call, name="look", args={"q": text})),
            types.Part(
                function_response=types.FunctionResponse(
                    id=call, name="look", response={"output": text * 12}
                )
            ),
            types.Part(text=text * 3),
        )[at % 4]
        delta = {"last": at, "user:name": "bench", f"seen-{at % 20}": at} if at % 4 == 2 else {}
        yield Event(
            author="agent" if at % 4 else "user",
            invocation_id=f"invocation-{at // 4}",
            content=types.Content(role="model" if at % 2 else "user", parts=[part]),
            actions=EventActions(state_delta=delta),
        )


def get_config(num_recent_events: int | None) -> Any:
    """What ``get_session`` is told."""
    from google.adk.sessions.base_session_service import GetSessionConfig

    return GetSessionConfig(num_recent_events=num_recent_events)


# --- services ------------------------------------------------------------------------------------


def our_service(source: Any, **options: Any) -> Any:
    """The service of memcore over a path or an open database.

    Raises:
        NotInstalled: google-adk is not there.
    """
    try:
        from memcore.adapters.adk import MemcoreSessionService
    except ImportError as error:
        raise missing(_PACKAGE, error) from error
    return MemcoreSessionService(source, allow_unsafe=True, **options)


def sqlite_service(path: Path) -> Any:
    """ADK's SqliteSessionService: a connection a call, a rollback journal, synchronous=FULL.

    Raises:
        NotInstalled: google-adk or aiosqlite is not there.
    """
    try:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService
    except ImportError as error:
        raise missing("google-adk aiosqlite", error) from error
    return SqliteSessionService(str(path))


def database_service(path: Path) -> Any:
    """ADK's DatabaseSessionService on SQLite.

    Raises:
        NotInstalled: google-adk, sqlalchemy or aiosqlite is not there.
    """
    try:
        from google.adk.sessions.database_session_service import DatabaseSessionService

        return DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    except (ImportError, ValueError) as error:
        raise missing('"google-adk[db]" aiosqlite', error) from error


def memory_service() -> Any:
    """ADK's InMemorySessionService.

    Raises:
        NotInstalled: google-adk is not there.
    """
    try:
        from google.adk.sessions import InMemorySessionService
    except ImportError as error:
        raise missing(_PACKAGE, error) from error
    return InMemorySessionService()


class Floor:
    """The least that a durable service can do: one kept connection, a row of JSON a commit.

    It looks at no state, no id and no writer; a thread makes the commit, as the loop must go on.
    """

    def __init__(self, path: Path) -> None:
        self._log = KeptSqlite(path)

    async def append_event(self, session: Any, event: Any) -> Any:
        """Insert the event as JSON and commit."""
        row = {"session": session.id, "event": event.model_dump_json(exclude_none=True)}
        await asyncio.to_thread(self._log.append, row)
        session.events.append(event)
        return event

    async def create_session(self, *, app_name: str, user_id: str, session_id: str) -> Any:
        """An object that shows nothing of the file."""
        from google.adk.sessions.session import Session

        return Session(id=session_id, app_name=app_name, user_id=user_id)

    def close(self) -> None:
        """Close the connection."""
        self._log.close()
