"""MemcoreSessionService: ADK's sessions over a memcore file."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NamedTuple

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session as SessionListing
from google.adk.sessions.session import Session as SessionSessions
from typing_extensions import override

from memcore._fast import SessionRows
from memcore.adapters.adk.append import Appended, Storing, Turn, Turns, delete_invocation
from memcore.adapters.adk.commit import in_thread
from memcore.adapters.adk.compaction import present, show_event
from memcore.adapters.adk.events import (
    TEMPORARY,
    TIMED,
    Copies,
    Stored,
    json_state,
    marker_in,
    marker_of,
    new_session,
    put_marker,
)
from memcore.adapters.adk.history import Entry, EventCache, EventPage, Snapshot, Summary
from memcore.adapters.adk.history import History as HistorySessions
from memcore.adapters.adk.names import (
    Handles,
    fields_of,
    id_of,
    located,
    name_of,
    place_of,
    state_of,
)
from memcore.adapters.source import Opened, Source, database_of
from memcore.aio.commit import commit, commit_to, settled
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import decode_json, encode_json, open_value
from memcore.database import Database, Scope
from memcore.database.scope import need_access
from memcore.errors import (
    CorruptValueError,
    DuplicateRequestError,
    InvalidOptionError,
    PolicyMismatchError,
    RevisionConflict,
    StorageError,
)
from memcore.faces import logger
from memcore.log import Head, History
from memcore.log.history import read_rows
from memcore.options import checked_bool, checked_choice, checked_int, checked_optional_int
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.lifecycle import is_erased
from memcore.session import Session
from memcore.session import Session as Native
from memcore.session.read import read_log
from memcore.session.session import ref_of, store_of
from memcore.state import APP, USER, FieldNames, json_fields
from memcore.state.rows import header_key
from memcore.store.interface import ReadTxn, Txn
from memcore.store.transaction import stored
from memcore.telemetry import adapting, adapts
from memcore.wire.policy import POLICIES

__all__ = [
    "MemcoreSessionService",
    "SessionPage",
    "begin",
    "listed",
    "page_of",
]


# --- Beginning a session: the first row of its log holds its initial state and creation time ------


async def begin(scope: Scope, name: str, state: Mapping[str, Any]) -> Session:
    """Store a new session, without temporary state.

    Raises:
        AlreadyExistsError: a session of this name exists.
        InvalidItemError: the state holds a value that cannot be represented as JSON or a string.
    """
    values = {
        key: value for key, value in json_state(state).items() if not key.startswith(TEMPORARY)
    }
    try:
        session = scope.session(name, policy="gemini", orphans="keep", shape="keep")
        batch = session.plan_batch(None)
        batch.begin_state(fields_of(values), meta={"adk": {"timestamp": platform_time.get_time()}})
        await commit(session, batch.change())
    except (RevisionConflict, PolicyMismatchError) as exc:
        msg = f"Session with id {name} already exists."
        raise AlreadyExistsError(msg) from exc
    return session


# --- The sessions of a scope, one page per snapshot: their state and last update time -------------

_log = logger("memcore.adk")

_PAGE: Final = 128
"""Sessions to read before yielding to other tasks of the loop."""
_SCOPES: Final = 256
"""Users to read before yielding."""
_NOTHING: Final = b"", 0

User = tuple[str, int | None]
"""A user's memcore name, and the number of its scope if known."""


class SessionPage(NamedTuple):
    """Some sessions, and the cursor of the next page."""

    sessions: list[SessionListing]
    cursor: str | None
    """The cursor of the next page; None if this is the last one."""


def page_of(
    database: Database,
    app: str,
    users: Sequence[User],
    cache: EventCache,
    *,
    cursor: str | None,
    size: int,
) -> SessionPage:
    """The first ``size`` sessions after a cursor, ordered by user, then by name.

    Args:
        database: the database to read.
        app: the application, by its memcore name.
        users: its users, in order.
        cache: as in ``listed``.
        cursor: that of the previous page; None: the first page.
        size: the number of sessions.

    Raises:
        InvalidOptionError: the cursor is invalid.
    """
    after = None
    if cursor is not None:
        user, after = _read_cursor(cursor)
        users = users[bisect_left(users, user, key=itemgetter(0)) :]
        if not users or users[0][0] != user:
            after = None
    found: list[SessionListing] = []
    for page in listed(database, app, users, cache, after=after, count=size):
        found += page
        if len(found) > size:
            break
    more = len(found) > size
    del found[size:]
    return SessionPage(found, _cursor_behind(found[-1]) if found and more else None)


def _cursor_behind(session: SessionListing) -> str:
    return encode_json([name_of(session.user_id), session.id])[0].decode("utf-8", "surrogatepass")


def _read_cursor(cursor: object) -> tuple[str, str]:
    try:
        match json.loads(cursor if isinstance(cursor, str) else ""):
            case [str() as user, str() as after] if user and after:
                return user, after
    except (ValueError, RecursionError):
        pass
    msg = f"cursor: expected one that a page came with, got {cursor!r:.80}"
    raise InvalidOptionError(msg)


def listed(
    database: Database,
    app: str,
    users: Sequence[User],
    cache: EventCache,
    *,
    after: str | None = None,
    count: int = _PAGE,
) -> Iterator[list[SessionListing]]:
    """Pages of an application's sessions, ``count`` per snapshot, ordered by user, then by name.

    Args:
        database: the database to read.
        app: the application, by its memcore name.
        users: its users.
        cache: caches the decoded list entry per session, with the head row and state header it was
            derived from: for an unchanged session nothing else is read.
        after: in the first scope, start after this name.
        count: sessions per page; the last page has fewer, or none.
    """
    if database.engine.access is not None:
        for user, _ in users:
            scope = database.scope(app=app, user=user)
            _ = scope.state, scope.app_state  # calls the authorizer
    store, waiting = database.engine.store, list(users)
    while waiting:
        since = cache.generation

        def read(
            txn: ReadTxn, after: str | None = after, since: int = since
        ) -> tuple[list[SessionListing], int, str | None]:
            return _page(txn, (app, waiting), after, (count, cache, since))

        page, done, after = store.read(read)
        del waiting[:done]
        yield page


def _page(
    txn: ReadTxn,
    owners: tuple[str, Sequence[User]],
    after: str | None,
    options: tuple[int, EventCache, int],
) -> tuple[list[SessionListing], int, str | None]:
    """A page, the number of completed users, and the name to resume after."""
    (app, users), (count, cache, since) = owners, options
    found: list[SessionListing] = []
    listing, app_scope = _Listing(txn, cache), names.app_scope_of(txn, app)
    app_name, of_users = id_of(app), FieldNames(USER)
    shared = _NOTHING if app_scope is None else listing.shared(app_scope, FieldNames(APP))
    try:
        for done, (user, known) in enumerate(users):
            if len(found) >= count or done >= _SCOPES:
                return found, done, None
            number = names.scope_of(txn, app, user) if known is None else known
            if number is None or is_erased(txn, number):
                after = None
                continue
            user_id, beside = id_of(user), _joined(shared, listing.shared(number, of_users))
            for name, session in listing.sessions(number, after, count + 1 - len(found)):
                if len(found) == count:
                    return found, done, found[-1].id
                summary = listing.summary((number, session), name)
                if summary is None:
                    continue
                state = _state(_joined((summary.state, summary.flags), beside))
                marker = marker_of((number, session), summary.revision)
                shown = app_name, user_id, name
                found.append(new_session(shown, state, summary.last, marker))
            after = None
        return found, len(users), None
    finally:
        listing.close(since)


def _joined(fields: tuple[bytes, int], others: tuple[bytes, int]) -> tuple[bytes, int]:
    """Join members of one JSON object; combine their codec flags."""
    if not fields[0] or not others[0]:
        return fields if fields[0] else others
    return b"%b,%b" % (fields[0], others[0]), fields[1] | others[1]


def _state(fields: tuple[bytes, int]) -> dict[str, Any]:
    """Decode a state from the members of its JSON object."""
    return state_of(decode_json(b"{%b}" % fields[0], fields[1]))


_POLICIES: Final = frozenset(name.encode() for name in POLICIES)


class _Listing:
    """Reads the list entries of sessions in one snapshot."""

    __slots__ = ("_cache", "_cursor", "_made", "_names", "_rows", "_txn")

    def __init__(self, txn: ReadTxn, cache: EventCache) -> None:
        self._txn, self._cache, self._cursor = txn, cache, stored(txn).cursor()
        self._names = FieldNames()
        self._made: dict[tuple[int, int], Summary] = {}
        opened = None if txn.vault is None else txn.vault.open
        self._rows = SessionRows(self._cursor, txn.get, opened, _POLICIES, *TIMED)

    def sessions(self, scope: int, after: str | None, most: int) -> Iterator[tuple[str, int]]:
        """Names and numbers of a scope's sessions after a name; reads ``most`` in one batch."""
        if after is None:
            prefix = keys.scoped(Kind.SESSION_NAME, scope)
            found, is_all = self._rows.names(prefix, prefix, most)
            yield from found
            if is_all:
                return
            after = found[-1][0] if found else None
        yield from names.sessions(self._txn, scope, after)

    def shared(self, scope: int, names: FieldNames) -> tuple[bytes, int]:
        """The members of the state shared by the sessions of a scope, and their codec flags."""
        told = self._rows.fields(keys.state_rows(scope, 0), names)
        return json_fields(self._txn, scope, 0, names) if told is None else told[1:]

    def summary(self, place: tuple[int, int], name: str) -> Summary | None:
        """The list entry of a session; None if it has no head."""
        known = self._cache.summary(place)
        told = self._rows.summary(*place, self._names, known)
        if told is None:
            return self._looked(place, name)
        if told is not known:
            known = self._made[place] = Summary(*told)
        return known

    def _looked(self, place: tuple[int, int], name: str) -> Summary | None:
        """``summary`` for rows that the compiled reader does not handle."""
        txn, key = self._txn, head_key(*place)
        found, header = txn.get(key), txn.get(header_key(*place))
        if found is None:
            return None
        head = Head.unpack(key, found)
        state, flags = json_fields(txn, *place, self._names)
        try:
            last = _last_time(txn, place[0], head)
        except CorruptValueError as exc:  # of one event; the session and other sessions are intact
            _log.warning("the last event of session %s is damaged: %s", name, exc)
            return Summary(found, header, state, flags, head.updated_ms / 1000, head.revision)
        made = self._made[place] = Summary(found, header, state, flags, last, head.revision)
        return made

    def close(self, since: int) -> None:
        """Close the cursor and cache what was read; ``since`` is as in ``EventCache.put``."""
        self._cursor.close()
        self._cache.summarize(self._made, since=since)


def _last_time(txn: ReadTxn, scope: int, head: Head) -> float:
    """The time of a session's last event, or of its creation; seconds since the Unix epoch."""
    if head.segments:  # the last row nearly always has it
        owner, _, last = head.segments[-1]
        key = keys.session_row(scope, owner, Row.ITEM, last)
        value = txn.get(key)
        if value is not None:
            flags, body = open_value(key, value)
            told = Stored.of(txn, scope, (0, last, flags, body)).whole_time()
            if told is not None:
                return told
    history = History(head.all_segments(txn, scope))
    for at in range(history.count - 1, -1, -1):
        row = _row(txn, scope, history, at)
        if row.is_event:
            rest = _row(txn, scope, history, at - 1).rest() if row.is_split and at else None
            return row.time(rest)
        told = row.timestamp()
        if told is not None:
            return told
    return head.created_ms / 1000


def _row(txn: ReadTxn, scope: int, history: History, at: int) -> Stored:
    session, seq = history.locate(at)
    for row in read_rows(txn, scope, session, position=at, lo=seq, hi=seq):
        if not isinstance(row, CorruptValueError):
            return Stored.of(txn, scope, row)
        raise row
    msg = f"item {seq} is missing; run 'memcore check'"
    raise CorruptValueError(msg, key=b"")


# --- MemcoreSessionService: ADK's sessions over a memcore file ------------------------------------

_PAGE_SESSIONS: Final = 256
"""Events to copy before yielding to other tasks of the loop."""
_CACHE_BYTES: Final = 64 * 1024**2
_PAGE_SIZE: Final = 100
_ON_STALE: Final = ("refuse", "merge")
_ALL: Final = GetSessionConfig()
_NONE: Final = GetSessionConfig(num_recent_events=0)


@adapts(
    create_session="begin",
    get_session="load",
    list_sessions="sessions",
    page_sessions="sessions",
    page_events="load",
    delete_session="delete",
    delete_invocation="delete",
    get_user_state="state.all . count",
    append_event="append . single",
    flush="flush",
)
class MemcoreSessionService(Opened, BaseSessionService):
    """ADK sessions in a memcore file, with events in append order.

    An append commits the event and its state changes atomically; it is refused if others have
    appended since the Session object was loaded. Safe to use from any thread and event loop;
    several services and processes may share one file.

    Args:
        source: an open Database or AsyncDatabase, or the path of a file (which ``close`` closes).
        durability: the durability of a file that is created here (see ``memcore.open``).
        allow_unsafe: consent to ``durability="none"`` for a file, as in ``memcore.open``.
        pair_safe_recent: make the ``num_recent_events`` window legal for Gemini: it begins with the
            user, and includes the calls that its events answer and the turns of pending
            long-running calls; it may therefore be longer.
        mend: repair returned events so that ADK builds legal prompts from them: calls without ids
            and their responses get ids, and a summary written by a model is attributed to the user.
            False: return them as stored.
        cache_bytes: approximate memory for decoded events.
        copies: False returns the cached events themselves, which is many times faster, but callers
            may not modify them.
        on_stale: the handling of an append if others have appended since the Session object was
            loaded. ``"refuse"``: StaleSessionError. ``"merge"``: an event that only changes the
            state is merged key by key, and the last writer of a key wins; anything else is refused.
        uri: in place of ``source``: ``memcore:///path``, with options in its query, as ADK's
            ``services.yaml`` passes it.
        agents_dir: ignored; ADK passes it to every service.

    Raises:
        InvalidOptionError: an option has the wrong type or is out of range.
    """

    def __init__(
        self,
        source: Source | None = None,
        *,
        durability: str | None = None,
        allow_unsafe: bool = False,
        pair_safe_recent: bool = False,
        mend: bool = True,
        cache_bytes: int = _CACHE_BYTES,
        copies: bool = True,
        on_stale: str = "refuse",
        uri: str | None = None,
        agents_dir: str | None = None,
    ) -> None:
        del agents_dir
        options = {
            "durability": durability,
            "allow_unsafe": allow_unsafe,
            "pair_safe_recent": pair_safe_recent,
            "mend": mend,
            "cache_bytes": cache_bytes,
            "copies": copies,
            "on_stale": on_stale,
        }
        source, given = located(source, uri, options)
        self._pair_safe = checked_bool("pair_safe_recent", given["pair_safe_recent"])
        self._mend = checked_bool("mend", given["mend"])
        self._merges = checked_choice("on_stale", given["on_stale"], _ON_STALE) == "merge"
        self._cache = EventCache(checked_int("cache_bytes", given["cache_bytes"]))
        self._copies = Copies() if checked_bool("copies", given["copies"]) else None
        self.database, self._owned = database_of(
            source, durability=given["durability"], allow_unsafe=given["allow_unsafe"]
        )
        self.observer = adapting(source, "adk", place_of=place_of)
        self._cache.listen(self.database.engine.store.notifier)
        self._handles = Handles(self.database)
        self._turns = Turns()

    # --- sessions ---------------------------------------------------------------------------------

    @override
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> SessionSessions:
        """Create a session; its initial state is the first row of its log.

        Args:
            app_name: the application.
            user_id: the user.
            state: initial values; ``app:`` and ``user:`` values are stored in the shared states.
            session_id: the id, stripped; generated if blank or None.

        Raises:
            AlreadyExistsError: the user already has a session with this id.
        """
        name = (session_id or "").strip() or platform_uuid.new_uuid()
        native = await begin(self._handles.scope(app_name, user_id), name, state or {})
        made = await self._get(native, _NONE)
        if made is None:
            msg = f"session {name} was deleted while it was created"
            raise RuntimeError(msg)
        return made

    @override
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> SessionSessions | None:
        """The session with its events, oldest first; None if it does not exist.

        Args:
            app_name: the application.
            user_id: the user.
            session_id: the id, stripped.
            config: limits the events to the most recent ones, to those since a timestamp, or both.

        Raises:
            CorruptValueError: a requested event is damaged.
        """
        name = (session_id or "").strip()
        if not name:
            return None
        return await self._get(self._handles.get(app_name, user_id, name), config or _ALL)

    async def _get(self, native: Native, config: GetSessionConfig) -> SessionSessions | None:
        history = HistorySessions(native, self._cache)
        wanted = config.num_recent_events
        found = history.look(wanted, pair_safe=self._pair_safe)
        if found is None:
            return None
        entries = await history.entries(found, keep=wanted != 0)
        made = SessionSessions(
            id=native.id,
            app_name=id_of(native.app),
            user_id=id_of(native.user),
            state=found.state,
            last_update_time=_last_time_sessions(entries, found.created),
        )
        if wanted != 0:
            made.events = await self._shown(found, entries, config.after_timestamp)
        put_marker(made, found.marker)
        return made

    async def _shown(
        self, found: Snapshot, entries: list[Entry], after: float | None
    ) -> list[Event]:
        """The events of entries in the form returned to callers."""
        if after is not None:
            entries = [entry for entry in entries if (entry.timestamp or 0.0) >= after]
        events = [entry.event for entry in entries if entry.event is not None]
        if found.is_odd:
            present(events, [each for each in entries if each.event is not None], mend=self._mend)
        if self._copies is None or self._cache.keeps_nothing:
            return events
        copied: list[Event] = []
        for at in range(0, len(events), _PAGE_SESSIONS):
            if at:
                await asyncio.sleep(0)
            copied += self._copies.of(events[at : at + _PAGE_SESSIONS])
        return copied

    @override
    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The sessions of one or all users, without events, least recently updated first."""
        app, users = self._users(app_name, user_id)
        found: list[SessionSessions] = []
        for page in listed(self.database, app, users, self._cache):
            found += page
            await asyncio.sleep(0)
        found.sort(key=lambda each: (each.last_update_time, each.user_id, each.id))
        return ListSessionsResponse(sessions=found)

    async def page_sessions(
        self,
        *,
        app_name: str,
        user_id: str | None = None,
        page_size: int = _PAGE_SIZE,
        cursor: str | None = None,
    ) -> SessionPage:
        """A page of ``list_sessions``, at a cost proportional to the page; ordered by user and id.

        Sessions created or deleted meanwhile may or may not appear; all others appear exactly once.

        Args:
            app_name: the application.
            user_id: the user; None: all of them.
            page_size: the number of sessions.
            cursor: that of the previous page; None: the first page.

        Raises:
            InvalidOptionError: the cursor or the size is invalid.
        """
        size = checked_int("page_size", page_size, least=1)
        app, users = self._users(app_name, user_id)
        return page_of(self.database, app, users, self._cache, cursor=cursor, size=size)

    async def page_events(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        page_size: int = _PAGE_SIZE,
        cursor: int | None = None,
        newest_first: bool = False,
    ) -> EventPage | None:
        """A page of a session's events, as stored, at a cost proportional to the page.

        Args:
            app_name: the application.
            user_id: the user.
            session_id: the session.
            page_size: the number of events.
            cursor: that of the previous page, which stays valid across appends; None: the first
                page.
            newest_first: iterate backwards from the end.

        Returns:
            None if the session does not exist.

        Raises:
            InvalidOptionError: the cursor or the size is invalid.
            CorruptValueError: an event of the page is damaged.
        """
        size = checked_int("page_size", page_size, least=1)
        cursor = checked_optional_int("cursor", cursor)
        name = (session_id or "").strip()
        if not name:
            return None
        history = HistorySessions(self._handles.get(app_name, user_id, name), self._cache)
        backwards = checked_bool("newest_first", newest_first)
        found = history.page(cursor, size, newest_first=backwards)
        if found is None:
            return None
        events = await history.paged(found)
        if backwards:
            events.reverse()
        behind = events[size - 1][0] if len(events) >= size else None
        shown = [event for _, event in events[:size]]
        if self._copies is not None and not self._cache.keeps_nothing:
            shown = self._copies.of(shown)
        return EventPage(shown, behind)

    def _users(self, app_name: str, user_id: str | None) -> tuple[str, list[User]]:
        """The application and its users, all or the given one, by memcore name and in order."""
        if user_id is not None:
            scope = self._handles.scope(app_name, user_id)
            return scope.app, [(scope.user, None)]
        app, engine = name_of(app_name), self.database.engine
        if engine.access is not None:
            engine.access.need("scopes", app=None, user=None)
        found = engine.store.read(lambda txn: list(names.scopes(txn)))
        return app, sorted((user, number) for number, each, user in found if each == app)

    @override
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if it exists, with its events; shared state stays."""
        name = (session_id or "").strip()
        if not name:
            return
        native = self._handles.get(app_name, user_id, name)
        place = None
        with suppress(StorageError):  # a damaged session is deletable, too
            place = read_log(ref_of(native), lambda log, _: log.place, None)
        await settled(in_thread(self._handles.scope(app_name, user_id).delete_session, name))
        if place is not None:
            self._cache.forget(place)

    async def delete_invocation(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        invocation_id: str,
        rewind_state: bool = False,
    ) -> int:
        """Delete the events of an invocation from the file in one commit; return their number.

        Responses of other invocations to calls of this one are deleted, too. Session objects loaded
        earlier become stale. Artifacts, memories and summaries derived from its content stay.

        Args:
            app_name: the application.
            user_id: the user.
            session_id: the session.
            invocation_id: the invocation.
            rewind_state: restore the session's own values that the invocation changed to those
                before it, unless they have changed since, with or without an event. If False, the
                state stays as it is; ``app:`` and ``user:`` values are never restored.

        Raises:
            AccessDeniedError: the authorizer refuses deletion in the session.
            HeldError: the session, or one that shares the events, is under a legal hold.
            NotFoundError: ``rewind_state`` needs state history that was trimmed or not imported;
                nothing is deleted.
            CorruptValueError: a row of the session is damaged.
            OutpacedError: others kept writing to the session.
        """
        name, rewinds = (session_id or "").strip(), checked_bool("rewind_state", rewind_state)
        if not name or not invocation_id:
            return 0
        need_access(self._handles.scope(app_name, user_id), "delete_session", name)
        native = self._handles.get(app_name, user_id, name)
        engine = self.database.engine
        try:
            return await settled(
                in_thread(lambda: delete_invocation(engine, native, invocation_id, rewinds=rewinds))
            )
        finally:
            self._cache.clear()  # deleted content may not survive in memory

    @override
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The user's state, with keys unprefixed."""
        return state_of(self._handles.scope(app_name, user_id).state.all())

    @override
    async def flush(self) -> None:
        """Sync committed data to the device, unless the file's durability already does so."""
        if self.database.durability != "full":
            await asyncio.to_thread(self.database.flush)

    # --- events -----------------------------------------------------------------------------------

    @override
    async def append_event(self, session: SessionSessions, event: Event) -> Event:
        """Store an event with its state changes, then update the session object.

        An event that is already stored is not stored again. On failure, the session object and
        event are left unchanged.

        Raises:
            StaleSessionError: others have appended since the object was loaded, and ``on_stale``
                does not allow merging the event.
            SessionNotFoundError: the session does not exist.
            DuplicateRequestError: another event of the session has this id.
            InvalidItemError: the event is too large, or holds a value that cannot be represented as
                JSON or a string.
        """
        if event.partial:
            return event
        turn = self._turns.try_take(session) or await self._turns.take(session)
        try:
            if turn.inherited is not None:
                await self._settle_left(session, turn.inherited)
                turn.inherited = None
            return await self._append(session, event, turn)
        except GeneratorExit:
            self._turns.leave(session, turn)
            raise
        finally:
            turn.storing = None
            self._turns.give(session, turn)

    async def _settle_left(self, session: SessionSessions, left: Storing) -> None:
        """Show an event committed for a writer whose loop closed before it saw the result."""
        # The commit queue is FIFO: once this commit is done, the outcome of that one is known.
        await commit_to(store_of(left.session), _nothing)
        if left.done is not None and await left.is_last(self._cache):
            self._show(session, left, left.done)

    async def _append(self, session: SessionSessions, event: Event, turn: Turn) -> Event:
        if not event.id:
            event.id = Event.new_id()
        native = self._handles.get(session.app_name, session.user_id, session.id)
        storing = Storing(native, event, merges=self._merges)
        if storing.needs_history:
            await storing.look(session, self._cache)
        change = storing.plan(session)
        turn.storing = storing
        try:
            if storing.is_large:
                done = await storing.commit_large(change)
            else:
                done = await commit_to(store_of(native), change)
        except asyncio.CancelledError:
            if storing.done is not None and await storing.is_last(self._cache):
                self._show(session, storing, storing.done)
            raise
        except DuplicateRequestError:
            if not await storing.is_stored(self._cache):
                raise
            return event
        if done.is_new:
            self._show(session, storing, done)
        return event

    def _show(self, session: SessionSessions, storing: Storing, done: Appended) -> None:
        """Update the caller's session object with the stored event."""
        event = storing.event
        if event.actions.state_delta:
            self._apply_temp_state(session, event)
            self._trim_temp_delta_state(event)
            if storing.delta is not None:
                event.actions.state_delta = storing.delta
            self._update_session_state(session, event)
        session.last_update_time = event.timestamp
        if not storing.is_stale:
            put_marker(session, done.marker)
        elif marker_in(session) is None:  # otherwise its last event, this one, would decide
            put_marker(session, marker_of(done.place, 0))
        show_event(session, event, storing.covered, mend=self._mend)
        if self._copies is not None and self._cache.wants(done.place):
            storing.remember(self._copies, self._cache)


def _last_time_sessions(entries: list[Entry], created: float) -> float:
    for entry in reversed(entries):
        if entry.timestamp is not None:
            return entry.timestamp
    return created


def _nothing(_: Txn) -> None:
    """A commit closure that writes nothing; the commit is only awaited."""
