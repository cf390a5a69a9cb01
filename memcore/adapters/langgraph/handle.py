"""What a saver is opened on, and closes."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from memcore.adapters.langgraph.coding import SerdeCoder, coder_of
from memcore.checkpoint import GraphStore
from memcore.database import Database, open_database

__all__ = ["Handle"]


class Handle(BaseCheckpointSaver[str]):
    """A saver's file, scope and serialiser."""

    def __init__(
        self,
        database: Database | str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        user: str = "default",
        app: str = "default",
        durability: str | None = None,
        compare_parent: bool = False,
    ) -> None:
        super().__init__(serde=serde)
        self._owned: Database | None = None
        if not isinstance(database, Database):
            options = {} if durability is None else {"durability": durability}
            if durability == "none":
                options["allow_unsafe"] = True  # type: ignore[assignment]
            database = self._owned = open_database(database, **options)  # type: ignore[arg-type]
        self.database = database
        try:
            self._graph: GraphStore = database.scope(user=user, app=app).graph
        except BaseException:
            self.close()
            raise
        self._compare_parent = compare_parent
        self._last_coder: SerdeCoder | None = None

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        durability: str | None = None,
        user: str = "default",
        app: str = "default",
    ) -> Self:
        """A saver over the file at a path, for ``with`` and ``async with``.

        ``durability``: ``"full"`` (a checkpoint that was put survives a power cut), ``"relaxed"``
        (survives the process; a power cut may take the last fraction of a second), ``"none"``.
        Without it a new file is ``"full"``, and an existing one is what it was made.
        """
        return cls(conn_string, serde=serde, durability=durability, user=user, app=app)

    def setup(self) -> None:
        """Nothing is to be set up."""

    def close(self) -> None:
        """Close the file, if this saver opened it. Idempotent."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def _coder(self) -> SerdeCoder:
        kept = self._last_coder
        if kept is None or kept.identity is not self.serde:
            kept = self._last_coder = coder_of(self.serde)
        return kept
