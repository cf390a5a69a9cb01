"""The sessions of a scope, a page a snapshot: their state and when they were last changed."""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.adk.sessions.session import Session

from memcore import keys, names
from memcore.adapters.adk.cache import EventCache, Summary
from memcore.adapters.adk.events import Stored
from memcore.adapters.adk.handles import id_of, name_of
from memcore.adapters.adk.labels import state_of
from memcore.adapters.adk.markers import marker_of, put_marker
from memcore.codec import decode_json, encode_json, open_value
from memcore.database import Database
from memcore.errors import CorruptValueError, InvalidOptionError
from memcore.keys import Row
from memcore.log import Head, History
from memcore.log.head import head_key
from memcore.log.history import read_rows
from memcore.state import APP, USER, json_fields
from memcore.state.rows import header_key
from memcore.store.base import ReadTxn
from memcore.tombstone import is_erased

__all__ = ["SessionPage", "listed", "page_of"]

logger = logging.getLogger("memcore.adk")

_PAGE: Final = 128
"""Sessions that are read before other tasks of the loop have their turn."""
_SCOPES: Final = 256
"""And users."""
_NOTHING: Final = b"", 0


class SessionPage(NamedTuple):
    """Some sessions, and where the next ones begin."""

    sessions: list[Session]
    cursor: str | None
    """What brings the next page; None: there is none."""


def page_of(
    database: Database,
    app: str,
    users: Sequence[str],
    cache: EventCache,
    *,
    cursor: str | None,
    size: int,
) -> SessionPage:
    """Up to ``size`` sessions behind a cursor, in the order of their users and names.

    Args:
        database: where they are.
        app: the application, as memcore calls it.
        users: its users, likewise, in their order.
        cache: as ``listed`` uses it.
        cursor: that of the page before; None: the first page.
        size: how many.

    Raises:
        InvalidOptionError: the cursor is none.
    """
    after = None
    if cursor is not None:
        user, after = _read_cursor(cursor)
        users = users[bisect_left(users, user) :]
        if users[:1] != [user]:
            after = None
    found: list[Session] = []
    for page in listed(database, app, users, cache, after=after, count=size):
        found += page
        if len(found) > size:
            break
    more = len(found) > size
    del found[size:]
    return SessionPage(found, _cursor_behind(found[-1]) if found and more else None)


def _cursor_behind(session: Session) -> str:
    return encode_json([name_of(session.user_id), session.id])[0].decode("utf-8", "surrogatepass")


def _read_cursor(cursor: object) -> tuple[str, str]:
    try:
        match json.loads(cursor if isinstance(cursor, str) else ""):
            case [str() as user, str() as after] if user and after:
                return user, after
    except ValueError:
        pass
    msg = f"cursor: expected one that a page came with, got {cursor!r:.80}"
    raise InvalidOptionError(msg)


def listed(
    database: Database,
    app: str,
    users: Sequence[str],
    cache: EventCache,
    *,
    after: str | None = None,
    count: int = _PAGE,
) -> Iterator[list[Session]]:
    """The sessions of users of one application, ``count`` a snapshot, in the order of their names.

    Args:
        database: where they are.
        app: the application, as memcore calls it.
        users: its users, likewise.
        cache: remembers of each session what its head and the header of its state stand for: of
            one that did not change since, nothing else is read.
        after: begin behind this name in the first scope.
        count: sessions a page; the last page has fewer, or none.
    """
    if database.backing.access is not None:
        for user in users:
            scope = database.scope(app=app, user=user)
            _ = scope.state, scope.app_state  # the authorizer is asked
    store, waiting = database.backing.store, list(users)
    while waiting:

        def read(txn: ReadTxn, after: str | None = after) -> tuple[list[Session], int, str | None]:
            return _page(txn, (app, waiting), after, (count, cache))

        page, done, after = store.read(read)
        del waiting[:done]
        yield page


def _page(
    txn: ReadTxn,
    owners: tuple[str, Sequence[str]],
    after: str | None,
    options: tuple[int, EventCache],
) -> tuple[list[Session], int, str | None]:
    """A page, how many users are done with it, and the name behind which the next one goes on."""
    (app, users), (count, cache) = owners, options
    found: list[Session] = []
    app_name, app_scope = id_of(app), names.app_scope_of(txn, app)
    shared = _NOTHING if app_scope is None else json_fields(txn, app_scope, 0, prefix=APP)
    for done, user in enumerate(users):
        if len(found) >= count or done >= _SCOPES:
            return found, done, None
        number = names.scope_of(txn, app, user)
        if number is None or is_erased(txn, number):
            after = None
            continue
        user_id = id_of(user)
        beside = shared, json_fields(txn, number, 0, prefix=USER)
        for name, session in names.sessions(txn, number, after):
            if len(found) == count:
                return found, done, found[-1].id
            summary = _summary(txn, (number, session), name, cache)
            if summary is None:
                continue
            made = Session(
                id=name,
                app_name=app_name,
                user_id=user_id,
                state=_state(summary.state, *beside),
                last_update_time=summary.last,
            )
            put_marker(made, summary.marker)
            found.append(made)
        after = None
    return found, len(users), None


def _state(*fields: tuple[bytes, int]) -> dict[str, Any]:
    """A state of its own from what is to stand in it."""
    body = b",".join([each for each, _ in fields if each])
    flags = 0
    for _, each in fields:
        flags |= each
    return state_of(decode_json(b"{" + body + b"}", flags))


def _summary(txn: ReadTxn, place: tuple[int, int], name: str, cache: EventCache) -> Summary | None:
    """What is listed of a session; None if it has no head."""
    key = head_key(*place)
    stored, header = txn.get(key), txn.get(header_key(*place))
    if stored is None:
        return None
    known = cache.summary(place)
    if known is not None and known.head == stored and known.header == header:
        return known
    head = Head.unpack(key, stored)
    state = json_fields(txn, *place)
    marker = marker_of(place, head.revision)
    try:
        last = _last_time(txn, place[0], head)
    except CorruptValueError as exc:  # of one event: the session is there, and so are all others
        logger.warning("the last event of session %s is damaged: %s", name, exc)
        return Summary(stored, header, state, head.updated_ms / 1000, marker)
    made = Summary(stored, header, state, last, marker)
    cache.summarize(place, made)
    return made


def _last_time(txn: ReadTxn, scope: int, head: Head) -> float:
    """When the last event of a session was, or when it was created."""
    if head.segments:  # nearly always the last row tells
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
