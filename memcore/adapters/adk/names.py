"""Maps ADK's apps, users and sessions to memcore scopes and sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from threading import Lock
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from memcore.adapters.source import Source
from memcore.codec.keys import pack_text
from memcore.database import Database, Scope
from memcore.database.scope import need_access
from memcore.errors import InvalidOptionError
from memcore.limits import STATE_FIELD_BYTES_MAX
from memcore.options import need_known
from memcore.session import Session
from memcore.state import prefix_of
from memcore.telemetry.observer import Place

__all__ = [
    "END",
    "Handles",
    "fields_of",
    "id_of",
    "is_name",
    "label",
    "located",
    "name_of",
    "place_of",
    "state_of",
]


# --- Base of the services: the file, session handles, and names -----------------------------------

_HANDLES_MAX: Final = 1024
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*")
_ESCAPE: Final = "\0"


def name_of(given: str) -> str:
    """The memcore name of an app or user: the same, except that the empty name is escaped."""
    return given if given and given[0] != _ESCAPE else _ESCAPE + given


def id_of(name: str) -> str:
    """The inverse of ``name_of``."""
    return name[1:] if name[:1] == _ESCAPE else name


def located(
    source: Source | None, uri: str | None, options: Mapping[str, Any]
) -> tuple[Source, dict[str, Any]]:
    """The file of a service, and its options, some of which a URI's query may set.

    ADK's ``services.yaml`` configures a service by a URI. As in ADK's own for SQLite, one slash
    precedes the path: ``memcore:///agent.memcore`` is relative, ``memcore:////data/x`` is absolute.
    A ``#`` or ``?`` in a path is written as ``%23`` or ``%3F``.

    Args:
        source: the database or path given to the service, if any.
        uri: the URI given to the service, if any, with any scheme.
        options: the options given to the service, which the query may override.

    Raises:
        InvalidOptionError: both or neither are given, the URI has no path, or an option is unknown.
    """
    if (source is None) == (uri is None):
        msg = "give a database or a path, or else uri=: one of the two"
        raise InvalidOptionError(msg)
    if source is not None:
        return source, dict(options)
    if not isinstance(uri, str):
        msg = f"uri: expected a string, got {type(uri).__name__}"
        raise InvalidOptionError(msg)
    scheme, separator, rest = uri.partition("://")
    place, _, told = rest.partition("?")
    try:
        urlsplit(uri)  # validate as ADK does; its result drops characters that belong to the path
        path = unquote(place.removeprefix("/"), errors="strict").encode().decode()
    except ValueError:
        path = ""
    if not (_SCHEME.fullmatch(scheme) and separator and path) or "#" in uri or "\0" in path:
        msg = f"uri: expected scheme:///path in UTF-8, with %23 for '#', got {uri!r:.80}"
        raise InvalidOptionError(msg)
    query = parse_qsl(told, keep_blank_values=True)
    given = {name: _value(said) for name, said in query}
    need_known("the query of uri", given, options)
    return path, {**options, **given}


def _value(said: str) -> Any:
    """The value of a query option: a bool, an int, or the text itself."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        return said
    return found if isinstance(found, bool | int) else said


class Handles:
    """A thread-safe cache of session handles, which in turn cache the state of their logs."""

    __slots__ = ("_database", "_kept", "_lock")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept: dict[tuple[str, str, str], Session] = {}
        self._lock = Lock()

    def scope(self, app: str, user: str) -> Scope:
        """The scope of a user."""
        return self._database.scope(app=name_of(app), user=name_of(user))

    def get(self, app: str, user: str, session_id: str) -> Session:
        """The handle of a session, whether or not it exists.

        Raises:
            AccessDeniedError: the authorizer refused access; it is consulted each time.
        """
        key = (app, user, session_id)
        found = self._kept.get(key)
        if found is not None and self._database.engine.access is not None:
            need_access(self.scope(app, user), "session", session_id)
        if found is None:
            found = self.scope(app, user).session(session_id, orphans="keep", shape="keep")
            with self._lock:
                if len(self._kept) >= _HANDLES_MAX:
                    for old in list(self._kept)[: _HANDLES_MAX // 2]:
                        del self._kept[old]
                self._kept[key] = found
        return found


# --- Labels of telemetry: application, user and session of a call, as ADK names them --------------


def place_of(args: tuple[Any, ...], options: dict[str, Any]) -> Place:
    """The place named by the arguments, or by the Session among them."""
    session = options.get("session", args[0] if args else None)
    app = options.get("app_name", getattr(session, "app_name", None))
    user = options.get("user_id", getattr(session, "user_id", None))
    return app, user, options.get("session_id", getattr(session, "id", None))


# --- Names of any length and any characters as parts of a key, and as fields of a state -----------

END: Final = "\x00"
"""The character after a label; no label contains it."""
_WRAPPED: Final = "\0adk\0"
"""The prefix of a field for a key that is not a valid field name."""


def label(name: str, bytes_max: int) -> str:
    """``=`` and the name, or ``#`` and a digest of a name that is longer or contains a NUL."""
    packed = name.encode("utf-8", "surrogatepass")
    if END in name or len(packed) > bytes_max:
        return "#" + blake2b(packed, digest_size=32).hexdigest()
    return "=" + name


def is_name(part: str) -> bool:
    """Return whether a label contains the name itself rather than its digest."""
    return part[:1] == "="


def fields_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of memcore's state for an ADK state; usually its keys, unchanged.

    A field's name has 1 to 480 bytes after its prefix. A key with an empty or longer name is stored
    under the digest of the name, as a list of the name and the value.
    """
    if all(map(_is_field, state)):
        return state
    found: dict[str, Any] = {}
    for key, value in state.items():
        if _is_field(key):
            found[key] = value
        else:
            prefix = prefix_of(key)
            name = key[len(prefix) :]
            found[prefix + _wrapped(name)] = [name, value]
    return found


def state_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The inverse of ``fields_of``."""
    if _WRAPPED not in "\n".join(fields):
        return fields
    found: dict[str, Any] = {}
    for key, value in fields.items():
        prefix = prefix_of(key)
        match value:
            case [str() as name, held] if key == prefix + _wrapped(name):
                found[prefix + name] = held
            case _:
                found[key] = value
    return found


def _wrapped(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=32)
    return _WRAPPED + digest.hexdigest()


def _is_field(key: str) -> bool:
    name = key[len(prefix_of(key)) :]
    if not name or name.startswith(_WRAPPED):
        return False
    # A character takes at most four bytes, and one byte terminates the name.
    return len(name) < STATE_FIELD_BYTES_MAX // 4 or len(pack_text(name)) <= STATE_FIELD_BYTES_MAX
