"""The sessions of a scope, a page a snapshot: their state and when they were last changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from memcore import names
from memcore.adapters.adk.events import Stored
from memcore.adapters.adk.markers import marker_of
from memcore.codec import decode_json, encode_json
from memcore.database import Scope
from memcore.database.scope import backing_of
from memcore.errors import CorruptValueError
from memcore.log import Head, History
from memcore.log.head import head_key
from memcore.log.history import read_rows
from memcore.state import values_at
from memcore.store.base import ReadTxn

__all__ = ["Listed", "listed"]

logger = logging.getLogger("memcore.adk")

_PAGE: Final = 32
"""Sessions that are read before other tasks of the loop have their turn."""


class Listed(NamedTuple):
    """A session without its events."""

    name: str
    state: dict[str, Any]
    last_update_time: float
    marker: str


def listed(scope: Scope) -> Iterator[list[Listed]]:
    """The sessions of a user, in pages; each page is one snapshot."""
    after: str | None = None
    store = backing_of(scope).store
    while True:
        page, after = store.read(lambda txn, after=after: _page(scope, txn, after))  # type: ignore[misc]
        yield page
        if after is None:
            return


def _page(scope: Scope, txn: ReadTxn, after: str | None) -> tuple[list[Listed], str | None]:
    number = names.scope_of(txn, scope.app, scope.user)
    found: list[Listed] = []
    if number is None:
        return found, None
    shared = {f"app:{key}": value for key, value in scope.app_state.read(txn).items()}
    shared |= {f"user:{key}": value for key, value in scope.state.read(txn).items()}
    encoded = encode_json(shared)  # each session gets values of its own
    for name, session in names.sessions(txn, number, after):
        key = head_key(number, session)
        value = txn.get(key)
        if value is None:
            continue
        head = Head.unpack(key, value)
        own = {key: version.value() for key, version in values_at(txn, number, session).items()}
        try:
            last = _last_time(txn, number, head)
        except (
            CorruptValueError
        ) as exc:  # of one event: the session is there, and so are all others
            logger.warning("the last event of session %s is damaged: %s", name, exc)
            last = head.updated_ms / 1000
        marker = marker_of((number, session), head.revision)
        found.append(Listed(name, own | decode_json(*encoded), last, marker))
        if len(found) == _PAGE:
            return found, name
    return found, None


def _last_time(txn: ReadTxn, scope: int, head: Head) -> float:
    """When the last event of a session was, or when it was created."""
    history = History(head.all_segments(txn, scope))
    for at in range(history.count - 1, -1, -1):
        row = _row(txn, scope, history, at)
        if row.is_event:
            rest = _row(txn, scope, history, at - 1).rest() if row.is_split and at else None
            return float(row.said(rest)["timestamp"])
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
