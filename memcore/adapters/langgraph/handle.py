"""What a saver is opened on, and closes."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection
from functools import partial
from typing import Any, Final, Self

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from memcore.adapters.langgraph.coding import (
    ALL_TYPES,
    AllowedTypes,
    SerdeCoder,
    TypeNames,
    coder_of,
    default_serde,
    type_names,
)
from memcore.aio import AsyncDatabase
from memcore.aio.source import Done, Opened, Source, scope_of
from memcore.checkpoint import GraphStore
from memcore.checkpoint.cache import Recent
from memcore.database import Database, Scope
from memcore.database.scope import backing_of
from memcore.options import checked_optional_int
from memcore.telemetry import adapting
from memcore.telemetry.observer import Place

__all__ = ["Handle"]

_COUNTED_THREADS: Final = 4096


class Handle(Opened, BaseCheckpointSaver[str]):
    """A saver's file, scope and serialiser."""

    def __init__(
        self,
        database: Source,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        user: str | None = None,
        app: str | None = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        compare_parent: bool = False,
        keep_last: int | None = None,
    ) -> None:
        super().__init__(serde=default_serde() if serde is None else serde)
        self._allowed = type_names(allowed_types)
        coder_of(self.serde, self._allowed)  # refuses what does not go together
        scope, self._owned = scope_of(
            database, app=app, user=user, durability=durability, allow_unsafe=allow_unsafe
        )
        self._backing = backing_of(scope)
        given = database.sync if isinstance(database, AsyncDatabase) else database
        self.database = given if isinstance(given, Database) else self._owned
        """The database that it was made of; None for one that was given a scope."""
        self._graph: GraphStore = scope.graph
        self._compare_parent = compare_parent
        self._keep_last = checked_optional_int("keep_last", keep_last, least=1)
        self._puts: Recent[str, int] = Recent(_COUNTED_THREADS)
        """By thread, the checkpoints that were put since it was pruned; not known: many."""
        self.observer = adapting(
            database, "langgraph", (scope.app, scope.user, None), place_of=partial(_place, scope)
        )
        self._last_coder: tuple[SerializerProtocol, SerdeCoder] | None = None

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: AllowedTypes = None,
        durability: str | None = None,
        allow_unsafe: bool = False,
        user: str | None = None,
        app: str | None = None,
        compare_parent: bool = False,
        keep_last: int | None = None,
    ) -> Self:
        """A saver over the file at a path, for ``with`` and ``async with``.

        ``durability``: ``"full"`` (a checkpoint that was put survives a power cut), ``"relaxed"``
        (survives the process; a power cut may take the last fraction of a second), ``"none"``
        (a power cut may destroy the file: with ``allow_unsafe`` alone).
        Without it a new file is ``"full"``, and an existing one is what it was made.
        """
        return cls(
            conn_string,
            serde=serde,
            allowed_types=allowed_types,
            durability=durability,
            allow_unsafe=allow_unsafe,
            user=user,
            app=app,
            compare_parent=compare_parent,
            keep_last=keep_last,
        )

    def setup(self) -> Done:
        """Nothing is to be set up; other savers need it, some with ``await``."""
        return Done()

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """A saver of the same file that may build these types, too, as ``allowed_types``.

        Raises:
            InvalidOptionError: an entry is no type.
        """
        extra = type_names(extra_allowlist)
        if ALL_TYPES in (self._allowed, extra):
            allowed: TypeNames = ALL_TYPES
        else:
            allowed = frozenset({*self._allowed, *extra})
        if allowed == self._allowed:
            return self
        clone = copy.copy(self)
        vars(clone).update(_allowed=allowed, _last_coder=None)
        return clone

    @property
    def _coder(self) -> SerdeCoder:
        last = self._last_coder
        if last is None or last[0] is not self.serde:
            last = self._last_coder = self.serde, coder_of(self.serde, self._allowed)
        return last[1]


def _place(scope: Scope, args: tuple[Any, ...], options: dict[str, Any]) -> Place:
    """Whose thread, and which: the first argument is a config, or a thread's name."""
    first = args[0] if args else next(iter(options.values()), None)
    if isinstance(first, dict):
        first = first.get("configurable", {}).get("thread_id")
    return scope.app, scope.user, first if isinstance(first, str) else None
