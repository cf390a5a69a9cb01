"""A legal hold on one session, or on the scope that it lies in."""

from __future__ import annotations

from typing import Final

from memcore import names
from memcore.audit import record_event
from memcore.errors import InvalidOptionError, NotFoundError
from memcore.held import HoldRow, put_hold, release_hold
from memcore.session.backing import Backing
from memcore.store.base import ReadTxn, Txn

__all__ = ["hold", "release"]

_REASON_CHARS_MAX: Final = 1000


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
        record_event(txn, scope, "hold", {"session": number})
        return put_hold(txn, HoldRow(scope, number, reason, now_ms))

    return backing.store.transact(closure)


def release(backing: Backing, app: str, user: str, session: str | None) -> bool:
    """End a hold; whether there was one."""

    def closure(txn: Txn) -> bool:
        if session is None:
            scope = names.scope_of(txn, app, user)
            place = None if scope is None else (scope, 0)
        else:
            place = _place(txn, app, user, session)
        if place is None or not release_hold(txn, *place):
            return False
        record_event(txn, place[0], "release", {"session": place[1]})
        return True

    return backing.store.transact(closure, makes_room=True)


def _place(txn: ReadTxn, app: str, user: str, session: str) -> tuple[int, int] | None:
    scope = names.scope_of(txn, app, user)
    number = None if scope is None else names.session_of(txn, scope, session)
    return None if scope is None or number is None else (scope, number)


def _unknown(session: str) -> tuple[int, int]:
    msg = f"there is no session {session[:40]!r} to put under a hold"
    raise NotFoundError(msg)
