"""What the services stand on: the file, the memcore sessions behind ADK's, and names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from memcore.aio.source import Source
from memcore.database import Database, Scope
from memcore.database.scope import need_access
from memcore.errors import InvalidOptionError
from memcore.options import need_known
from memcore.session import Session

__all__ = ["Handles", "id_of", "located", "name_of"]

_HANDLES_MAX: Final = 1024
_ESCAPE: Final = "\0"


def name_of(given: str) -> str:
    """The name in memcore of an app or a user: its own, but for the empty one, which has none."""
    return given if given and given[0] != _ESCAPE else _ESCAPE + given


def id_of(name: str) -> str:
    """What ``name_of`` was given."""
    return name[1:] if name[:1] == _ESCAPE else name


def located(
    source: Source | None, uri: str | None, options: Mapping[str, Any]
) -> tuple[Source, dict[str, Any]]:
    """The file that a service is for, and its options, of which a URI's query may give some.

    A URI is what ADK's ``services.yaml`` knows of a service. As in ADK's own for SQLite, one slash
    stands before the path: ``memcore:///agent.memcore`` is relative, ``memcore:////data/x`` is not.

    Args:
        source: where the service was given a database or a path.
        uri: where it was given a URI, of any scheme.
        options: those that the query may change, as the service was given them.

    Raises:
        InvalidOptionError: there are both or none, the URI has no path, or an option is unknown.
    """
    if (source is None) == (uri is None):
        msg = "give a database or a path, or else uri=: one of the two"
        raise InvalidOptionError(msg)
    if source is not None:
        return source, dict(options)
    if not isinstance(uri, str):
        msg = f"uri: expected a string, got {type(uri).__name__}"
        raise InvalidOptionError(msg)
    parts = urlsplit(uri)
    path = unquote(parts.netloc + parts.path if parts.netloc else parts.path[1:])
    if not parts.scheme or not path:
        msg = f"uri: expected scheme:///path, got {uri!r:.80}"
        raise InvalidOptionError(msg)
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {name: _value(said) for name, said in query}
    need_known("the query of uri", given, options)
    return path, {**options, **given}


def _value(said: str) -> Any:
    """What stands in a query: true, false, a number, or a text."""
    try:
        found = json.loads(said)
    except ValueError:
        return said
    return found if isinstance(found, bool | int) else said


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
