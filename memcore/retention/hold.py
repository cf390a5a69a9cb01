"""Legal holds: what is under one is not deleted by anybody, until the hold is released."""

from __future__ import annotations

from dataclasses import dataclass

from memcore import names
from memcore.errors import NotFoundError
from memcore.held import any_held, is_held, rows_of
from memcore.retention.care import cared_for
from memcore.retention.owner import scopes_of
from memcore.session import Backing
from memcore.session.holding import checked_reason, hold, hold_in, release, release_in
from memcore.store.base import ReadTxn, Txn

__all__ = ["Hold", "hold", "hold_user", "holds", "is_held", "release", "release_user"]


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


def hold_user(
    backing: Backing, user: str, app: str | None, session: str | None, *, reason: str
) -> list[tuple[str, bool]]:
    """Put all that a user has under a hold, or their sessions of a name, in one commit.

    Args:
        backing: the database.
        user: whose.
        app: only in this application; None: in each one that there is, as ``erase`` goes about it.
        session: the name of sessions; None: all that the user has.
        reason: a text of 1 to 1,000 characters.

    Returns:
        The applications, and whether there was no such hold there before.

    Raises:
        InvalidOptionError: a name or the reason is not legal.
        NotFoundError: the user has no session of that name.
    """
    told, now_ms = checked_reason(reason), backing.now_ms()

    def closure(txn: Txn) -> list[tuple[str, bool]]:
        places = _places(txn, user, app, session)
        if not places and session is None:  # what is stored from now on
            own = app or "default"
            places = [(names.ensure_scope(txn, own, user), 0, own)]
        if not places:
            msg = f"user {user[:40]!r} has no session {session or '':.40} to put under a hold"
            raise NotFoundError(msg)
        done = []
        for scope, number, its_app in places:
            shown = told
            if backing.border is not None:
                shown = backing.border.at(its_app, user, session).again(told)
            done.append((its_app, hold_in(txn, scope, number, shown, now_ms)))
        return done

    return backing.store.transact(closure)


def release_user(backing: Backing, user: str, app: str | None, session: str | None) -> list[str]:
    """End what ``hold_user`` began; the applications in which there was such a hold."""

    def closure(txn: Txn) -> list[str]:
        places = _places(txn, user, app, session)
        return [own for scope, number, own in places if release_in(txn, scope, number)]

    return backing.store.transact(closure, makes_room=True)


def _places(
    txn: ReadTxn, user: str, app: str | None, session: str | None
) -> list[tuple[int, int, str]]:
    """Scope, session (0: all) and application of what is meant."""
    found = []
    for scope, its_app in scopes_of(txn, user, app):
        number = 0 if session is None else names.session_of(txn, scope, session)
        if number is not None:
            found.append((scope, number, its_app))
    return found


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
