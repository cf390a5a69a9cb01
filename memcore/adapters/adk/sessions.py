"""MemcoreSessionService: ADK's sessions over a memcore file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from typing_extensions import override

from memcore import names
from memcore.adapters.adk.appending import Appended, Appending, View
from memcore.adapters.adk.cache import Entry, EventCache
from memcore.adapters.adk.events import BEGIN, TEMPORARY, encode_event, json_state
from memcore.adapters.adk.history import History, Snapshot
from memcore.adapters.adk.turns import Turns
from memcore.aio.commit import commit_to, settled
from memcore.aio.source import Opened, Source, database_of
from memcore.checkpoint.shapes import Shapes
from memcore.session import Session as Native
from memcore.store.base import Txn

__all__ = ["MemcoreSessionService"]

_CACHE_BYTES: Final = 64 * 1024**2
_HANDLES_MAX: Final = 1024


class MemcoreSessionService(Opened, BaseSessionService):
    """Sessions of ADK in a memcore file, with their events in the order of their appends.

    An append is one commit of the event and what it changes of the state, and it is refused if
    others wrote since the Session object was loaded. Any thread and any loop may use a service, and
    several services and processes one file.

    Args:
        source: an open Database or AsyncDatabase, or the path of a file (which ``close`` closes).
        durability: how a file that is opened by its path acknowledges (see ``memcore.open``).
        cache_bytes: memory for decoded events, about.
        copies: False hands out the cached events themselves: several times faster, for readers that
            never change what they got.

    Raises:
        InvalidOptionError: an option is of a wrong type or out of range.
    """

    def __init__(
        self,
        source: Source,
        *,
        durability: str | None = None,
        cache_bytes: int = _CACHE_BYTES,
        copies: bool = True,
    ) -> None:
        self.database, self._owned = database_of(source, durability=durability)
        self._store = self.database.backing.store
        self._copies = copies
        self._cache = EventCache(cache_bytes)
        self._trees = Shapes().trees
        self._turns = Turns()
        self._natives: dict[tuple[str, str, str], Native] = {}
        self._lock = Lock()

    # --- sessions ---------------------------------------------------------------------------------

    @override
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session; its initial state is the first row of its log.

        Args:
            app_name: the application.
            user_id: the user.
            state: initial values; what is ``app:`` or ``user:`` goes where it is shared.
            session_id: the id, stripped; blank or None: one is made.

        Raises:
            AlreadyExistsError: the user has a session of this id.
        """
        name = (session_id or "").strip() or platform_uuid.new_uuid()
        native = self._native(app_name, user_id, name, policy="gemini")
        values = {
            key: value
            for key, value in json_state(state or {}).items()
            if not key.startswith(TEMPORARY)
        }
        await commit_to(self._store, self._creating(native, values))
        found = await self._get(native, GetSessionConfig(num_recent_events=0))
        if found is None:  # deleted since
            return Session(id=name, app_name=app_name, user_id=user_id, state=values)
        return found

    def _creating(self, native: Native, values: Mapping[str, Any]) -> Any:
        batch = native.plan_batch(None)
        own = {key: value for key, value in values.items() if not key.startswith(("app:", "user:"))}
        batch.record(BEGIN, {"timestamp": platform_time.get_time(), "state": own})
        batch.update_state(values)
        create = batch.closure()

        def closure(txn: Txn) -> Any:
            scope = names.scope_of(txn, native.app, native.user)
            if scope is not None and names.session_of(txn, scope, native.id) is not None:
                msg = f"Session with id {native.id} already exists."
                raise AlreadyExistsError(msg)
            return create(txn)

        return closure

    @override
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """The session with its events, oldest first; None if there is none.

        Args:
            app_name: the application.
            user_id: the user.
            session_id: the id, stripped.
            config: how many of the last events, and from which time on.
        """
        name = session_id.strip() if session_id else session_id
        return await self._get(self._native(app_name, user_id, name), config) if name else None

    async def _get(self, native: Native, config: GetSessionConfig | None) -> Session | None:
        config = config or GetSessionConfig()
        history = History(native, self._cache)
        found = history.look(config.num_recent_events)
        if found is None:
            return None
        entries = await history.entries(found)
        events = [entry.event for entry in entries if entry.event is not None]
        if config.num_recent_events is not None:
            events = events[len(events) - min(config.num_recent_events, len(events)) :]
        if config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        return self._session(native, found, entries, events)

    def _session(
        self, native: Native, found: Snapshot, entries: list[Entry], events: list[Event]
    ) -> Session:
        session = Session(
            id=native.id,
            app_name=native.app,
            user_id=native.user,
            state=found.state,
            events=self._copied(events),
            last_update_time=_last_time(entries),
        )
        session._storage_update_marker = found.marker  # noqa: SLF001 - ADK's own slot for it
        return session

    def _copied(self, events: list[Event]) -> list[Event]:
        if not self._copies or not events:
            return events
        copied = self._trees.copy(events)
        if copied is self._trees.opaque:
            return [event.model_copy(deep=True) for event in events]
        return copied  # type: ignore[no-any-return]

    @override
    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The sessions of a user, or of all users, without events: the last changed one last."""
        users = [user_id] if user_id is not None else self._users(app_name)
        found: list[Session] = []
        for user in users:
            scope = self.database.scope(app=app_name, user=user)
            for listed in scope.sessions():
                native = self._native(app_name, user, listed.session_id)
                session = await self._get(native, GetSessionConfig(num_recent_events=0))
                if session is not None:
                    found.append(session)
        found.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=found)

    def _users(self, app_name: str) -> list[str]:
        return [user for app, user in self.database.scopes() if app == app_name]

    @override
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session and its events, if there is one; what is shared stays."""
        name = session_id.strip() if session_id else session_id
        if name:
            scope = self.database.scope(app=app_name, user=user_id)
            await asyncio.to_thread(scope.delete_session, name)

    @override
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The user's values, without their prefix."""
        return self.database.scope(app=app_name, user=user_id).state.all()

    # --- events -----------------------------------------------------------------------------------

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and what it changes of the state; then the object shows it.

        An event that was stored before is not stored again. If it fails, object and event are as
        they were.

        Raises:
            StaleSessionError: others appended since the object was loaded.
            SessionNotFoundError: there is no such session.
            DuplicateRequestError: another event of the session has this id.
        """
        if event.partial:
            return event
        await self._turns.take(id(session))
        try:
            return await self._append(session, event)
        finally:
            self._turns.give(id(session))

    async def _append(self, session: Session, event: Event) -> Event:
        if not event.id:
            event.id = Event.new_id()
        native = self._native(session.app_name, session.user_id, session.id)
        appending = Appending(native)
        encoded = encode_event(event)
        rows = appending.prepare(encoded)
        closure = appending.closure(event, encoded, rows, View.of(session))
        future = self._store.submit(closure, asyncio.get_running_loop())
        try:
            done = await settled(future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._show(session, event, future.result())
            raise
        self._show(session, event, done)
        return event

    def _show(self, session: Session, event: Event, done: Appended) -> None:
        """Let the object show what was stored."""
        if not done.is_new:
            return
        self._apply_temp_state(session, event)
        self._trim_temp_delta_state(event)
        session.last_update_time = event.timestamp
        session._storage_update_marker = done.marker  # noqa: SLF001 - ADK's own slot for it
        self._commit_event_to_session(session, event)

    # --- handles ----------------------------------------------------------------------------------

    def _native(self, app: str, user: str, name: str, *, policy: str | None = None) -> Native:
        key = (app, user, name)
        found = self._natives.get(key)
        if found is not None and policy is None:
            return found
        scope = self.database.scope(app=app, user=user)
        made = scope.session(name, policy=policy, orphans="keep")
        if policy is None:
            with self._lock:
                while len(self._natives) >= _HANDLES_MAX:
                    with suppress(KeyError):
                        del self._natives[next(iter(self._natives))]
                self._natives[key] = made
        return made


def _last_time(entries: list[Entry]) -> float:
    for entry in reversed(entries):
        if entry.timestamp is not None:
            return entry.timestamp
    return 0.0
