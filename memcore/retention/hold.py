"""Legal holds: what is under one is not deleted by anybody, until the hold is released."""

from __future__ import annotations

from dataclasses import dataclass

from memcore import names
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.held import HoldRow, any_held, is_held, put_hold, release_hold, rows_of
from memcore.retention.care import cared_for
from memcore.session import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = ["Hold", "hold", "holds", "is_held", "release"]

_REASON_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold."""

    app: str
    user: str
    session_id: str | None
    """The session that it covers; None: all that the user has in the application."""
    reason: str
    since: float
    """Seconds since 1970."""


def hold(backing: Backing, app: str, user: str, session: str | None, *, reason: str) -> bool:
    """Put a scope or a session under a hold, or give the hold another reason; whether it is new.

    Raises:
        InvalidOptionError: the reason is no text of 1 to 1,000 characters.
        NotFoundError: there is no such session.
    """
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_CHARS_MAX:
        msg = f"reason: expected a text of 1 to {_REASON_CHARS_MAX} characters, got {reason!r:.80}"
        raise InvalidOptionError(msg)
    now_ms = backing.now_ms()

    def closure(txn: Txn) -> bool:
        if session is None:
            scope, number = names.ensure_scope(txn, app, user), 0
        else:
            scope, number = _place(txn, app, user, session) or _unknown(session)
        return put_hold(txn, HoldRow(scope, number, reason, now_ms))

    return backing.store.transact(closure)


def release(backing: Backing, app: str, user: str, session: str | None) -> bool:
    """End a hold; whether there was one."""

    def closure(txn: Txn) -> bool:
        if session is None:
            scope = names.scope_of(txn, app, user)
            return scope is not None and release_hold(txn, scope)
        place = _place(txn, app, user, session)
        return place is not None and release_hold(txn, *place)

    return backing.store.transact(closure, makes_room=True)


def holds(backing: Backing, app: str | None = None, user: str | None = None) -> list[Hold]:
    """The holds of the database, or those of one application or user.

    Raises:
        CorruptValueError: a row is damaged.
    """

    def look(txn: ReadTxn) -> list[Hold]:
        if not any_held(txn):
            return []
        found = []
        for scope in cared_for(txn):
            rows = rows_of(txn, scope)
            its_app, its_user = names.scope_names(txn, scope) if rows else ("", "")
            if rows and app in (None, its_app) and user in (None, its_user):
                known = {number: name for name, number in names.sessions(txn, scope)}
                found += [
                    Hold(
                        its_app,
                        its_user,
                        known.get(row.session) if row.session else None,
                        row.reason,
                        row.since_ms / 1000,
                    )
                    for row in rows
                ]
        return found

    return backing.store.read(look)


def _place(txn: ReadTxn, app: str, user: str, session: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    number = None if scope is None else names.session_of(txn, scope, session)
    return None if scope is None or number is None else (scope, number)


def _unknown(session: str) -> tuple[int, int]:
    msg = f"there is no session {session[:40]!r} to put under a hold"
    raise NotFoundError(msg)
