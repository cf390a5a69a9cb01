"""What a saver is opened on, and closes."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Self

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from memcore.adapters.langgraph.coding import SerdeCoder, coder_of
from memcore.aio import AsyncDatabase
from memcore.aio.source import Opened, Source, scope_of
from memcore.checkpoint import GraphStore
from memcore.database import Database, Scope
from memcore.database.scope import backing_of
from memcore.telemetry import adapting
from memcore.telemetry.observer import Place

__all__ = ["Handle"]


class Handle(Opened, BaseCheckpointSaver[str]):
    """A saver's file, scope and serialiser."""

    def __init__(
        self,
        database: Source,
        *,
        serde: SerializerProtocol | None = None,
        user: str | None = None,
        app: str | None = None,
        durability: str | None = None,
        compare_parent: bool = False,
    ) -> None:
        super().__init__(serde=serde)
        scope, self._owned = scope_of(database, app=app, user=user, durability=durability)
        self._backing = backing_of(scope)
        given = database.sync if isinstance(database, AsyncDatabase) else database
        self.database = given if isinstance(given, Database) else self._owned
        """The database that it was made of; None for one that was given a scope."""
        self._graph: GraphStore = scope.graph
        self._compare_parent = compare_parent
        self.observer = adapting(
            database, "langgraph", (scope.app, scope.user, None), place_of=partial(_place, scope)
        )
        self._last_coder: SerdeCoder | None = None

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        durability: str | None = None,
        user: str | None = None,
        app: str | None = None,
        compare_parent: bool = False,
    ) -> Self:
        """A saver over the file at a path, for ``with`` and ``async with``.

        ``durability``: ``"full"`` (a checkpoint that was put survives a power cut), ``"relaxed"``
        (survives the process; a power cut may take the last fraction of a second), ``"none"``.
        Without it a new file is ``"full"``, and an existing one is what it was made.
        """
        return cls(
            conn_string,
            serde=serde,
            durability=durability,
            user=user,
            app=app,
            compare_parent=compare_parent,
        )

    def setup(self) -> None:
        """Nothing is to be set up."""

    @property
    def _coder(self) -> SerdeCoder:
        kept = self._last_coder
        if kept is None or kept.identity is not self.serde:
            kept = self._last_coder = coder_of(self.serde)
        return kept


def _place(scope: Scope, args: tuple[Any, ...], options: dict[str, Any]) -> Place:
    """Whose thread, and which: the first argument is a config, or a thread's name."""
    first = args[0] if args else next(iter(options.values()), None)
    if isinstance(first, dict):
        first = first.get("configurable", {}).get("thread_id")
    return scope.app, scope.user, first if isinstance(first, str) else None
