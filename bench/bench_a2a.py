"""What does the task of an A2A server cost that streams, against the SDK's own store on SQLite?

Each save gives the whole task, with one more message and one more part of its artifact. The SDK's
store writes the task as a row of JSON, ours what is new.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import (
    Effort,
    NotInstalled,
    Row,
    absent,
    compare,
    paired,
    race_each_async,
    scratch,
    slow_flush_place,
)

SAVES = 200
RIVAL = "a2a-sdk DatabaseTaskStore on SQLite"
TEXT = "some words of an agent's answer, " * 15


def rows(effort: Effort) -> Iterator[Row]:
    """Saves of a growing task, reads of it, and the room that it takes."""
    with scratch(slow_flush_place()) as place:
        try:
            yield from asyncio.run(_raced(effort, place))
        except NotInstalled as error:
            yield absent("tasks of A2A", RIVAL, error)


class _Task:
    """A task that grows by a message and a part with each save."""

    def __init__(self, store: Any, call: Any, types: Any) -> None:
        self.store, self.call, self.types = store, call, types
        self.task = types.Task(id="t", context_id="c")
        self.task.status.state = types.TaskState.TASK_STATE_WORKING
        self.task.artifacts.add(artifact_id="a")

    async def save(self) -> None:
        """One more message and part, and the save."""
        task, types = self.task, self.types
        number = len(task.history)
        part = types.Part(text=f"{number} {TEXT}")
        task.history.append(types.Message(message_id=f"m{number}", parts=[part]))
        task.artifacts[0].parts.append(part)
        await self.store.save(task, self.call)

    async def read(self) -> None:
        """The task, read whole."""
        found = await self.store.get("t", self.call)
        if len(found.history) != len(self.task.history):
            raise AssertionError(len(found.history))


async def _raced(effort: Effort, place: Path) -> list[Row]:
    try:
        from a2a.server.context import ServerCallContext
        from a2a.server.tasks.database_task_store import DatabaseTaskStore
        from a2a.types import a2a_pb2
        from sqlalchemy.ext.asyncio import create_async_engine

        from memcore.adapters.a2a import MemcoreTaskStore
    except ImportError as error:
        raise NotInstalled(str(error)) from error
    engine = create_async_engine(f"sqlite+aiosqlite:///{place / 'tasks.db'}")
    call, saves = ServerCallContext(), effort.items(SAVES)
    with MemcoreTaskStore(place / "tasks.memcore") as store:
        ours = _Task(store, call, a2a_pb2)
        theirs = _Task(DatabaseTaskStore(engine), call, a2a_pb2)
        saved = paired(*await race_each_async([ours.save, theirs.save], rounds=saves))
        read = paired(*await race_each_async([ours.read, theirs.read], rounds=effort.rounds(40)))
    await engine.dispose()
    texts = 2 * len(ours.task.history) * len(TEXT)
    sizes = [_size(place / name) / texts for name in ("tasks.memcore", "tasks.db")]
    note = (
        f"{saves} messages and parts of {len(TEXT)} characters; flushes for nothing; the file "
        f"ends at {sizes[0]:.1f} times their text, SQLite's at {sizes[1]:.1f}"
    )
    return [
        compare("save a task of A2A that streams", saved, RIVAL, durability="full", faster=True,
                note=note),
        compare(f"read a task of {saves} messages", read, RIVAL, faster=True),
    ]  # fmt: skip


def _size(path: Path) -> int:
    return os.path.getsize(path)
