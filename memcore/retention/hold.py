"""Legal holds: what is under one is not deleted by anybody, until the hold is released."""

from __future__ import annotations

from dataclasses import dataclass

from memcore import names
from memcore.held import any_held, is_held, rows_of
from memcore.retention.care import cared_for
from memcore.session import Backing
from memcore.session.holding import hold, release
from memcore.store.base import ReadTxn

__all__ = ["Hold", "hold", "holds", "is_held", "release"]


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
