"""Database of an adapter: one that the caller opened, or a file that the adapter opens."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, ClassVar, Self, TypedDict, TypeVar, Unpack

from memcore.aio.commit import settled
from memcore.aio.database import AsyncDatabase
from memcore.database import Database, Scope, open_database
from memcore.errors import InvalidOptionError
from memcore.telemetry import Observer, adapting, plain

__all__ = [
    "Done",
    "Opened",
    "Scoped",
    "Source",
    "Where",
    "database_of",
    "in_thread",
    "scope_of",
]


T = TypeVar("T")
Source = Database | AsyncDatabase | Scope | str | os.PathLike[str]
"""The source from which an adapter obtains its database."""


class Where(TypedDict, total=False):
    """Keyword arguments of an adapter that say whose its rows are, and how a file is created.

    All may be left out. ``app`` and ``user`` name the scope, each ``"default"`` if it is None; a
    scope as the source has its own. ``durability`` and ``allow_unsafe`` are as in ``memcore.open``.
    """

    app: str | None
    user: str | None
    durability: str | None
    allow_unsafe: bool


class Done:
    """The result of a method that has already finished, which callers may await or ignore."""

    __slots__ = ()

    def __await__(self) -> Generator[None]:
        yield from ()


class Opened:
    """Base class that closes a file only if it opened it; for ``with`` and ``async with``."""

    __slots__ = ()
    _owned: Database | None

    def close(self) -> Done:
        """Close the file, if it was opened here. Idempotent; immediate, awaited or not."""
        if self._owned is not None:
            self._owned.close()
        return Done()

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


class Scoped(Opened):
    """Base class of an adapter whose rows are in one scope.

    Args:
        source: a database, a scope, or the path of a file.
        **where: ``app`` and ``user`` of the scope, whose erasure removes all that is stored here;
            ``durability`` and ``allow_unsafe`` of a file that is created here, as in
            ``memcore.open``.

    Raises:
        InvalidOptionError: an option is invalid, or a scope came with an app or user.
    """

    framework: ClassVar[str]
    """The adapter's name in telemetry."""
    observer: Observer | None

    def __init__(self, source: Source, **where: Unpack[Where]) -> None:
        self.scope, self._owned = scope_of(source, **where)
        self.observer = adapting(source, self.framework)


def database_of(
    source: Any, *, durability: str | None = None, allow_unsafe: bool = False
) -> tuple[Database, Database | None]:
    """The database to use, and the database to close if it was opened here, else None.

    Args:
        source: a database, or the path of a file, created if missing; ``":memory:"`` is a private
            one that is deleted on close.
        durability: the durability of a file that is created here, as in ``memcore.open``.
        allow_unsafe: consent to ``durability="none"``.

    Raises:
        InvalidOptionError: the source is neither, or consent is missing.
    """
    if isinstance(source, AsyncDatabase):
        source = source.sync
    if isinstance(source, Database):
        return plain(source), None  # telemetry records the adapter's calls, not the database's
    if not isinstance(source, str | os.PathLike):
        msg = f"expected a memcore database, a scope or a path, got {type(source).__name__}"
        raise InvalidOptionError(msg)
    database = open_database(source, durability=durability, allow_unsafe=allow_unsafe)
    return database, database


def scope_of(
    source: Any,
    *,
    app: str | None = None,
    user: str | None = None,
    durability: str | None = None,
    allow_unsafe: bool = False,
) -> tuple[Scope, Database | None]:
    """The scope to use, and the database to close if it was opened here, else None.

    Args:
        source: as ``database_of``, or a scope of a database.
        app: the application; None: ``"default"``. A scope has its own.
        user: the user; as ``app``.
        durability: as ``database_of``.
        allow_unsafe: as ``database_of``.

    Raises:
        InvalidOptionError: the source is none of these, or a scope came with an app or user.
    """
    if isinstance(source, Scope):
        if app is not None or user is not None:
            msg = f"{source!r} has its app and user: leave them out, or pass the database"
            raise InvalidOptionError(msg)
        return plain(source), None
    database, owned = database_of(source, durability=durability, allow_unsafe=allow_unsafe)
    at = {"app": "default" if app is None else app, "user": "default" if user is None else user}
    try:
        return database.scope(**at), owned
    except BaseException:
        if owned is not None:
            owned.close()
        raise


async def in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Run a function in a thread to its end, even if the caller is cancelled: no late save."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # a framework that runs on anyio may run on trio
        from anyio import to_thread  # noqa: PLC0415 - such a framework has it

        return await to_thread.run_sync(fn, *args)
    return await settled(asyncio.ensure_future(asyncio.to_thread(fn, *args)))
