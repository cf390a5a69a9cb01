"""A legal hold on one session, or on the scope that it lies in."""

from __future__ import annotations

from typing import Final

from memcore import names
from memcore.audit import record_event
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.held import HoldRow, put_hold, release_hold
from memcore.session.backing import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = ["checked_reason", "hold", "hold_in", "release", "release_in"]

_REASON_CHARS_MAX: Final = 1000


def hold(backing: Backing, app: str, user: str, session: str | None, *, reason: str) -> bool:
    """Put a scope or a session under a hold, or give the hold another reason; whether it is new.

    Raises:
        InvalidOptionError: the reason is no text of 1 to 1,000 characters.
        NotFoundError: there is no such session.
    """
    told = checked_reason(reason)
    if backing.border is not None:  # a reason is content; who sets a hold is no guard's business
        told = backing.border.at(app, user, session).again(told)
    now_ms = backing.now_ms()

    def closure(txn: Txn) -> bool:
        if session is None:
            return hold_in(txn, names.ensure_scope(txn, app, user), 0, told, now_ms)
        place = _place(txn, app, user, session) or _unknown(session)
        return hold_in(txn, *place, told, now_ms)

    return backing.store.transact(closure)


def checked_reason(reason: object) -> str:
    """The reason of a hold, if it is one.

    Raises:
        InvalidOptionError: it is no text of 1 to 1,000 characters.
    """
    if not isinstance(reason, str) or not 0 < len(reason) <= _REASON_CHARS_MAX:
        msg = f"reason: expected a text of 1 to {_REASON_CHARS_MAX} characters, got {reason!r:.80}"
        raise InvalidOptionError(msg)
    return reason


def hold_in(txn: Txn, scope: int, session: int, reason: str, now_ms: int) -> bool:
    """Put a scope (session 0) or a session under a hold; whether that is new."""
    record_event(txn, scope, "hold", {"session": session})
    return put_hold(txn, HoldRow(scope, session, reason, now_ms))


def release_in(txn: Txn, scope: int, session: int) -> bool:
    """End a hold on a scope (session 0) or a session; whether there was one."""
    found = release_hold(txn, scope, session)
    if found:
        record_event(txn, scope, "release", {"session": session})
    return found


def release(backing: Backing, app: str, user: str, session: str | None) -> bool:
    """End a hold; whether there was one."""

    def closure(txn: Txn) -> bool:
        if session is None:
            scope = names.scope_of(txn, app, user)
            place = None if scope is None else (scope, 0)
        else:
            place = _place(txn, app, user, session)
        return place is not None and release_in(txn, *place)

    return backing.store.transact(closure, makes_room=True)


def _place(txn: ReadTxn, app: str, user: str, session: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    number = None if scope is None else names.session_of(txn, scope, session)
    return None if scope is None or number is None else (scope, number)


def _unknown(session: str) -> tuple[int, int]:
    msg = f"there is no session {session[:40]!r} to put under a hold"
    raise NotFoundError(msg)
