"""The four methods of the SDK's session protocol over a memcore session, and its opening."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from memcore.adapters.openai_agents.items import coded, is_plain, plain
from memcore.adapters.openai_agents.place import (
    MESSAGES_TABLE,
    SESSIONS_TABLE,
    ScopeOf,
    app_of,
    name_of,
    routed,
)
from memcore.aio import AsyncDatabase, AsyncSession
from memcore.aio.source import Opened, scope_of
from memcore.database import Database, Scope
from memcore.errors import InvalidItemError
from memcore.model import ItemKind

__all__ = ["History"]


class History(Opened):
    """What a session of the SDK keeps: its items in their order. See ``MemcoreSession``."""

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        db_path: str | os.PathLike[str] | Database | AsyncDatabase | Scope = ":memory:",
        sessions_table: str = SESSIONS_TABLE,
        messages_table: str = MESSAGES_TABLE,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        *,
        user: str | None = None,
        app: str | None = None,
        durability: str | None = None,
        scope_of: ScopeOf | None = None,
        create_tables: bool = False,  # noqa: ARG002 - the Advanced session's
        logger: logging.Logger | None = None,
    ) -> None:
        name_of(session_id)
        self.session_id = session_id
        self.session_settings = (
            SessionSettings()
            if session_settings is None
            else coerce_session_settings(session_settings)
        )
        self.db_path = db_path
        self.sessions_table = sessions_table
        self.messages_table = messages_table
        self._logger = logger or logging.getLogger("memcore.openai_agents")
        self._scope_of = scope_of
        self._closed = False
        self._scope, self._owned = _opened(db_path, app, user, durability)
        tabled = app_of(self._scope.app, sessions_table, messages_table)
        if tabled != self._scope.app:
            self._scope = Database(self._scope.backing).scope(app=tabled, user=self._scope.user)
        self._native: dict[tuple[str, str, str], AsyncSession] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r}, {self.db_path!r})"

    # --- opening and closing ----------------------------------------------------------------------

    def close(self) -> None:
        """Give the session up; the file is closed if it was opened here. Idempotent, terminal."""
        self._closed = True
        self._native.clear()
        super().close()

    async def ping(self) -> bool:
        """Whether the session can be used: False once it is closed, or its database."""
        if self._closed:
            return False
        self._scope.backing.store.read(lambda _: None)
        return True

    def native(self, wrapper: Any = None) -> AsyncSession:
        """The memcore session that a call works on.

        Args:
            wrapper: the Runner's context wrapper, if it passed one; counts only with ``scope_of``.

        Raises:
            RuntimeError: the session is closed.
            UserError: ``scope_of`` is set, and there is no wrapper.
        """
        if self._closed:
            msg = f"{type(self).__name__} is closed"
            raise RuntimeError(msg)
        scope = self._scope
        if self._scope_of is not None:
            scope = routed(scope, self._scope_of, wrapper)
        key = (scope.app, scope.user, self.session_id)
        found = self._native.get(key)
        if found is None:
            session = scope.session(
                name_of(self.session_id), policy="openai_responses", orphans="keep"
            )
            found = AsyncSession(session)
            if self._scope_of is None:
                self._native = {key: found}
        return found

    # --- the protocol -----------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[Any]:
        """The latest ``limit`` items, oldest first.

        Damaged items are left out with a warning in the log, and do not count.

        Args:
            limit: None: that of ``session_settings``, else all; 0: none; negative: all.
            wrapper: the Runner's context wrapper.
        """
        session = self.native(wrapper).sync
        most = resolve_session_limit(limit, self.session_settings)
        if most == 0:
            return []
        found = [
            plain(item.message)
            for item in session.items(skip_corrupt=True)
            if item.kind is not ItemKind.EVENT
        ]
        return found if most is None or most < 0 else found[-most:]

    async def add_items(self, items: Sequence[Any], *, wrapper: Any = None) -> None:
        """Store items behind the others, all of them or none.

        Raises:
            TypeError: an item is nothing that JSON can say; nothing is stored.
        """
        session = self.native(wrapper)
        if not items:
            return
        given = list(items)
        if all(map(is_plain, given)):
            try:
                await session.extend(given)
                return
            except InvalidItemError:
                pass
        await session.extend(coded(given))

    async def pop_item(self, *, wrapper: Any = None) -> Any:
        """Remove and return the latest item; None if there is none."""
        session = self.native(wrapper)
        while taken := await session.undo(1):
            if taken[0].kind is not ItemKind.EVENT:
                return plain(taken[0].message)
        return None

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Remove all that is stored of this session."""
        session = self.native(wrapper)
        scope = Database(self._scope.backing).scope(app=session.app, user=session.user)
        scope.delete_session(session.id)


def _opened(
    source: Any, app: str | None, user: str | None, durability: str | None
) -> tuple[Scope, Database | None]:
    return scope_of(source, app=app, user=user, durability=durability)
