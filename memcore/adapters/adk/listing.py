"""The sessions of a scope, a page a snapshot: their state and when they were last changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.adk.sessions.session import Session

from memcore import keys, names
from memcore.adapters.adk.cache import EventCache, Summary
from memcore.adapters.adk.events import Stored
from memcore.adapters.adk.handles import id_of
from memcore.adapters.adk.labels import state_of
from memcore.adapters.adk.markers import marker_of, put_marker
from memcore.codec import decode_json, encode_json, open_value
from memcore.database import Scope
from memcore.database.scope import backing_of
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.log import Head, History
from memcore.log.head import head_key
from memcore.log.history import read_rows
from memcore.state import APP, USER, SharedState, values_at
from memcore.state.rows import header_key
from memcore.store.base import ReadTxn
from memcore.tombstone import is_erased

__all__ = ["listed"]

logger = logging.getLogger("memcore.adk")

_PAGE: Final = 128
"""Sessions that are read before other tasks of the loop have their turn."""
_SCOPES: Final = 256
"""And users."""


def listed(
    scopes: Sequence[Scope], cache: EventCache, *, after: str | None = None, count: int = _PAGE
) -> Iterator[list[Session]]:
    """The sessions of users of one application, ``count`` a snapshot, in the order of their names.

    Args:
        scopes: the users' scopes.
        cache: remembers of each session what its head and the header of its state stand for: of
            one that did not change since, nothing else is read.
        after: begin behind this name in the first scope.
        count: sessions a page; the last page has fewer, or none.
    """
    waiting = [(scope, scope.state, scope.app_state) for scope in scopes]  # the authorizer is asked
    while waiting:
        store = backing_of(waiting[0][0]).store

        def read(txn: ReadTxn, after: str | None = after) -> tuple[list[Session], int, str | None]:
            return _page(txn, waiting, after, (count, cache))

        page, done, after = store.read(read)
        del waiting[:done]
        yield page


def _page(
    txn: ReadTxn,
    waiting: Sequence[tuple[Scope, SharedState, SharedState]],
    after: str | None,
    options: tuple[int, EventCache],
) -> tuple[list[Session], int, str | None]:
    """A page, how many scopes are done with it, and the name behind which the next one goes on."""
    count, cache = options
    found: list[Session] = []
    app_state = waiting[0][2].read(txn)
    for done, (scope, user_state, _) in enumerate(waiting):
        if len(found) >= count or done >= _SCOPES:
            return found, done, None
        number = names.scope_of(txn, scope.app, scope.user)
        if number is None or is_erased(txn, number):
            after = None
            continue
        app_name, user_id = id_of(scope.app), id_of(scope.user)
        user = user_state.read(txn)
        shared = _encoded_state(
            {f"{APP}{key}": value for key, value in app_state.items()}
            | {f"{USER}{key}": value for key, value in user.items()}
        )
        for name, session in names.sessions(txn, number, after):
            if len(found) == count:
                return found, done, found[-1].id
            summary = _summary(txn, (number, session), name, cache)
            if summary is None:
                continue
            state = decode_json(*summary.state)  # each session gets values of its own
            if shared is not None:
                state.update(decode_json(*shared))
            made = Session(
                id=name,
                app_name=app_name,
                user_id=user_id,
                state=state,
                last_update_time=summary.last,
            )
            put_marker(made, summary.marker)
            found.append(made)
        after = None
    return found, len(waiting), None


def _encoded_state(fields: dict[str, Any]) -> tuple[bytes, int] | None:
    return encode_json(state_of(fields)) if fields else None


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
    own = {field: each.value() for field, each in values_at(txn, *place).items()}
    state = encode_json(state_of(own))
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
            row = Stored.of(txn, scope, (0, last, flags, body))
            if row.is_event and not row.is_split:
                return row.time(None)
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
