"""The memcore sessions behind ADK's, and how apps and users are named."""

from __future__ import annotations

from threading import Lock
from typing import Final

from memcore.database import Database, Scope
from memcore.database.scope import need_access
from memcore.session import Session

__all__ = ["Handles", "id_of", "name_of"]

_HANDLES_MAX: Final = 1024
_ESCAPE: Final = "\0"


def name_of(given: str) -> str:
    """The name in memcore of an app or a user: its own, but for the empty one, which has none."""
    return given if given and given[0] != _ESCAPE else _ESCAPE + given


def id_of(name: str) -> str:
    """What ``name_of`` was given."""
    return name[1:] if name[:1] == _ESCAPE else name


class Handles:
    """Handles of the sessions used last: each remembers what its log is like. For any thread."""

    __slots__ = ("_database", "_kept", "_lock")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[tuple[str, str, str], Session] = {}
        self._lock = Lock()

    def scope(self, app: str, user: str) -> Scope:
        """The scope of a user."""
        return self._database.scope(app=name_of(app), user=name_of(user))

    def get(self, app: str, user: str, session_id: str) -> Session:
        """The handle of a session, whether there is one or not.

        Raises:
            AccessDeniedError: the authorizer refused it; it is asked each time.
        """
        key = (app, user, session_id)
        found = self._kept.get(key)
        if found is not None and self._database.backing.access is not None:
            need_access(self.scope(app, user), "session", session_id)
        if found is None:
            found = self.scope(app, user).session(session_id, orphans="keep")
            with self._lock:
                if len(self._kept) >= _HANDLES_MAX:
                    for old in list(self._kept)[: _HANDLES_MAX // 2]:
                        del self._kept[old]
                self._kept[key] = found
        return found
