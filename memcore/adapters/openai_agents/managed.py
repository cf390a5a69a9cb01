"""SessionManager: the sessions of many users in one file, by user and type."""

from __future__ import annotations

import asyncio
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from memcore.adapters.openai_agents.analytics import text_of
from memcore.adapters.openai_agents.branch_rows import clearing
from memcore.adapters.openai_agents.history import (
    MESSAGES_TABLE,
    SESSIONS_TABLE,
    app_of,
    name_of,
)
from memcore.adapters.openai_agents.session import MemcoreSession
from memcore.adapters.source import Done, Opened, database_of
from memcore.aio import AsyncDatabase
from memcore.aio.commit import commit_to
from memcore.database import Database, Scope
from memcore.database.scope import need_access
from memcore.errors import InvalidOptionError, UnreadableItemsError
from memcore.log import Head
from memcore.options import checked_int
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.session import Engine, resume_removals
from memcore.store.interface import Txn
from memcore.telemetry import adapting, adapts

__all__ = [
    "FoundSession",
    "ManagedSession",
    "SessionManager",
]


_DAY_MS = 24 * 60 * 60 * 1000
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_EXCERPT_CHARS: Final = 80


class ManagedSession(NamedTuple):
    """The stored session of one user under one type."""

    user_id: str
    session_type: str
    items: int
    created_at: float
    """Seconds since the Unix epoch."""
    updated_at: float
    """The time of the last change, in seconds since the Unix epoch."""
    title: str | None = None
    metadata: Mapping[str, Any] = _NONE


class FoundSession(NamedTuple):
    """A session found by a search."""

    session: ManagedSession
    where: str
    """``"title"``, ``"metadata"`` or ``"content"``: the first of these that contains the words."""
    excerpt: str
    """An excerpt of the matching text around the first word."""


@adapts(
    list_sessions="sessions . count",
    search="sessions . count",
    delete_session="delete",
    cleanup_old_sessions="sweep . count",
)
class SessionManager(Opened):
    """Opens, closes and cleans up sessions by user and type.

    Each user's sessions are in a separate scope, so no type name can reach another user's.

    Args:
        db_path: a file, created if missing, ``":memory:"``, or an open database, which stays open.
        app: the application of the sessions.
        durability: the durability of a file that is created here, as for ``MemcoreSession``.
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        options: further keyword arguments for every MemcoreSession: ``session_settings``,
            ``encryption_key``, ``ttl_seconds``, ...
    """

    def __init__(
        self,
        db_path: str | os.PathLike[str] | Database | AsyncDatabase,
        *,
        app: str = "default",
        durability: str | None = None,
        allow_unsafe: bool = False,
        **options: Any,
    ) -> None:
        names.check_name(app, "app")
        self.db_path = db_path
        self.app = app
        self._options = options
        tables = (
            options.get("sessions_table", SESSIONS_TABLE),
            options.get("messages_table", MESSAGES_TABLE),
        )
        self._tabled_app = app_of(app, *tables)
        """The application in which the sessions are, as ``MemcoreSession`` forms it."""
        self._database, self._owned = database_of(
            db_path, durability=durability, allow_unsafe=allow_unsafe
        )
        given = db_path.sync if isinstance(db_path, AsyncDatabase) else db_path
        self._told = given if isinstance(given, Database) else self._database
        self.observer = adapting(db_path, "openai_agents", place_of=self._place)
        self._closed = False
        self.active_sessions: dict[tuple[str, str], MemcoreSession] = {}
        """The open sessions, by ``(user_id, session_type)``."""

    def get_session(self, user_id: str, session_type: str = "default") -> MemcoreSession:
        """The open session of a user, opened by the first call; its id is ``user_type``.

        Raises:
            RuntimeError: the manager is closed.
            InvalidOptionError: ``user_id`` is not a non-empty string, or cannot begin a session
                name: it is too long together with the type, or begins with NUL.
        """
        self._need_open()
        names.check_name(user_id, "user")
        if name_of(_id_of(user_id, session_type)) != _id_of(user_id, session_type):
            msg = (
                "user_id, session_type: expected less than 65,536 characters together, none of "
                f"them NUL at the beginning, got {user_id!r:.80} and {session_type!r:.80}: nobody "
                "could list such sessions by user"
            )
            raise InvalidOptionError(msg)
        key = (user_id, session_type)
        found = self.active_sessions.get(key)
        if found is None or found.is_closed:
            found = MemcoreSession(
                _id_of(user_id, session_type),
                self._told.scope(app=self.app, user=user_id),
                **self._options,
            )
            self.active_sessions[key] = found
        return found

    def close_session(self, user_id: str, session_type: str = "default") -> bool:
        """Close a user's session; return whether it was open. Stored items stay."""
        found = self.active_sessions.pop((user_id, session_type), None)
        if found is None or found.is_closed:
            return False
        found.close()
        return True

    def close_all_sessions(self) -> None:
        """Close all open sessions; new ones may be opened."""
        while self.active_sessions:
            self.active_sessions.popitem()[1].close()

    def close(self) -> Done:
        """Close all sessions, and the file if it was opened here. Idempotent and final."""
        self._closed = True
        self.close_all_sessions()
        return super().close()

    def _place(
        self, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[str, str | None, None]:
        user = args[0] if args else options.get("user_id")
        return self.app, user if isinstance(user, str) else None, None

    async def list_sessions(self, user_id: str | None = None) -> list[ManagedSession]:
        """List the stored sessions of one user or of all users, in a thread."""
        self._need_open()
        return await asyncio.to_thread(lambda: list(self._stored(user_id)))

    async def search(
        self, query: str, user_id: str | None = None, *, limit: int = 20
    ) -> list[FoundSession]:
        """Find the sessions whose title, metadata or content contains all words of a query.

        A word matches anywhere in a text, ignoring case; title and metadata are each searched as a
        whole, content item by item. Content encrypted with another key is skipped.

        Args:
            query: one or more words.
            user_id: the owner of the sessions; None: all users.
            limit: the maximum number of results.

        Returns:
            The sessions in the order of ``list_sessions``.

        Raises:
            InvalidOptionError: the query has no words, or the limit is below 1.
            RuntimeError: the manager is closed.
        """
        self._need_open()
        checked_int("limit", limit, least=1)
        if not isinstance(query, str) or not query.split():
            msg = f"query: expected a str with one word at least, got {query!r:.80}"
            raise InvalidOptionError(msg)
        found: list[FoundSession] = []
        for each in await self.list_sessions(user_id):
            with self._unlisted(each.user_id, each.session_type) as session:
                hit = await _found(session, each, query)
            if hit is not None:
                found.append(hit)
            if len(found) == limit:
                break
        return found

    async def delete_session(self, user_id: str, session_type: str = "default") -> bool:
        """Close a session and remove everything stored for it; return whether there was anything.

        Raises:
            AccessDeniedError: the authorizer refuses to delete the session.
        """
        self._need_open()
        self._scope_to_delete_in(user_id, session_type)
        self.close_session(user_id, session_type)
        return await self._delete(user_id, session_type, before_ms=None)

    async def cleanup_old_sessions(self, days: float = 30) -> list[ManagedSession]:
        """Remove the sessions unchanged for this many days; return those removed.

        They are deleted from the file. An open instance of one continues with an empty session.

        Raises:
            InvalidOptionError: ``days`` is not a non-negative number.
            AccessDeniedError: the authorizer refuses to delete one of them; none is removed.
        """
        self._need_open()
        if isinstance(days, bool) or not isinstance(days, int | float) or not days >= 0:
            msg = f"days: expected a number of at least 0, got {days!r}"
            raise InvalidOptionError(msg)
        before_ms = self._database.engine.now_ms() - days * _DAY_MS
        due = [each for each in await self.list_sessions() if each.updated_at * 1000 < before_ms]
        for each in due:  # check all before the first deletion
            self._scope_to_delete_in(each.user_id, each.session_type)
        return [
            each
            for each in due
            if await self._delete(each.user_id, each.session_type, before_ms=before_ms)
        ]

    # --- what is stored ---------------------------------------------------------------------------

    def _stored(self, user_id: str | None) -> Iterator[ManagedSession]:
        for entry in self._database.sessions(user=user_id, app=self._tabled_app):
            start = _id_of(entry.user, "")
            if entry.session_id.startswith(start):
                kind = entry.session_id.removeprefix(start)
                with self._unlisted(entry.user, kind) as session:
                    title, metadata = session.notes_in(session.scope)
                moments = entry.created_at, entry.updated_at
                yield ManagedSession(entry.user, kind, entry.items, *moments, title, metadata)

    def _unlisted(self, user_id: str, kind: str) -> MemcoreSession:
        """A session handle that is separate from those returned by ``get_session``."""
        scope = self._database.scope(app=self.app, user=user_id)
        return MemcoreSession(_id_of(user_id, kind), scope, **self._options)

    def _scope_to_delete_in(self, user_id: str, kind: str) -> Scope:
        """A user's scope, if the authorizer allows the session to be deleted."""
        scope = self._database.scope(app=self._tabled_app, user=user_id)
        need_access(scope, "delete_session", _id_of(user_id, kind))
        return scope

    async def _delete(self, user_id: str, kind: str, *, before_ms: float | None) -> bool:
        """Remove a session unless it was changed since; return whether it was removed."""
        engine = self._database.engine

        def is_younger(txn: Txn, scope: int, stored: list[str]) -> bool:
            return any(_updated_ms(txn, engine, scope, name) >= (before_ms or 0) for name in stored)

        closure = clearing(
            self._scope_to_delete_in(user_id, kind),
            _id_of(user_id, kind),
            forget=True,
            unless=None if before_ms is None else is_younger,
        )
        done, rest = await commit_to(engine.store, closure, makes_room=True)
        if rest:
            await asyncio.to_thread(resume_removals, engine.store)
        return done

    def _need_open(self) -> None:
        if self._closed:
            msg = "SessionManager is closed"
            raise RuntimeError(msg)


async def _found(session: MemcoreSession, each: ManagedSession, query: str) -> FoundSession | None:
    """Search a session for all words of a query; None if any is missing."""
    scope_filter = session.bound_in(session.scope).address.scope_filter
    asked = query if scope_filter is None else scope_filter.again(query)
    words = asked.casefold().split()
    texts = [("title", each.title or "")]
    if each.metadata:
        texts.append(("metadata", json.dumps(dict(each.metadata), ensure_ascii=False)))
    for where, text in texts:
        if _holds(text, words):
            return FoundSession(each, where, _excerpt(text, words[0]))
    try:
        items = await session.get_items(-1)
    except UnreadableItemsError:
        return None
    for item in items:
        text = "\n".join(_texts(item))
        if _holds(text, words):
            return FoundSession(each, "content", _excerpt(text, words[0]))
    return None


def _texts(item: Any) -> Iterable[str]:
    if not isinstance(item, dict):
        return ()
    return (*text_of(item.get("content")), *text_of(item.get("output")))


def _holds(text: str, words: list[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)


def _excerpt(text: str, word: str) -> str:
    """The text around the first match of a folded word; a character may fold to several."""
    at = text.casefold().find(word)
    ends = list(accumulate(len(each.casefold()) for each in text))
    first, last = bisect_right(ends, at), bisect_left(ends, at + len(word))
    start = max(0, first - _EXCERPT_CHARS // 2)
    return text[start : max(start + _EXCERPT_CHARS, last + 1)]


def _updated_ms(txn: Txn, engine: Engine, scope: int, name: str) -> int:
    """The time of a session's last change, in milliseconds since the Unix epoch.

    -1 if there is no session.
    """
    number = names.session_of(txn, scope, name)
    if number is None:
        return -1
    engine.drafts.flush_opened(txn, scope, number)
    key = head_key(scope, number)
    value = txn.get(key)
    return 0 if value is None else Head.unpack(key, value).updated_ms


def _id_of(user_id: str, session_type: str) -> str:
    return f"{user_id}_{session_type}"
