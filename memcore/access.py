"""Access control of an open database: an authorizer decides requests before any data is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from memcore.errors import AccessDeniedError, InvalidOptionError
from memcore.faces import logger
from memcore.records import record

__all__ = [
    "Access",
    "AccessRequest",
    "Authorizer",
    "checked_authorizer",
]


_DEBUG: Final = 10
_WARNING: Final = 30
"""Levels of ``logging``, which is not imported here."""


@record(frozen=True, slots=True)
class AccessRequest:
    """Operation that an authorizer allows or denies, with its actor and object."""

    actor: str | None
    """Actor: as given to ``as_user`` or when the database was opened."""
    app: str | None
    """The application that owns the data; None: all applications."""
    user: str | None
    """The user that owns the data; None: all users, or data shared by the application's users."""
    action: str
    """``scope``, ``session``, ``kv``, ``blobs``, ``graph``, ``state``, ``app_state``, ``sessions``,
    ``delete_session``, ``erase``, ``hold``, ...; administrative ones are ``scopes``, ``export``,
    ``check``, ...: see docs/isolation.md."""
    name: str | None = None
    """The session or namespace."""


Authorizer = Callable[[AccessRequest], bool]
"""Allows a request by returning True; any other result, and any exception, denies it."""
Recorder = Callable[[AccessRequest, bool], None]


@record(frozen=True, slots=True)
class Access:
    """An authorizer and the actor it is consulted about."""

    authorizer: Authorizer
    actor: str | None = None
    record: list[Recorder] | None = None
    """Called with every decision before it takes effect; shared by all actors."""

    def of(self, actor: str | None) -> Access:
        """The same authorizer for another actor."""
        return replace(self, actor=actor)

    def tell_also(self, recorder: Recorder) -> None:
        """Add a recorder of every decision; an exception it raises denies access."""
        if self.record is not None:
            self.record.append(recorder)

    def need(
        self, action: str, *, app: str | None, user: str | None, name: str | None = None
    ) -> None:
        """Return only if the request is allowed. Runs with no lock held and no transaction open.

        Raises:
            AccessDeniedError: it is not allowed, or the authorizer failed (its exception is the
                cause). The requested object need not exist.
        """
        request = AccessRequest(self.actor, app, user, action, name)
        try:
            answer: Any = self.authorizer(request)
        except Exception as exc:
            self._tell(request, allowed=False, why=f"the authorizer raised {type(exc).__name__}")
            raise denied(request) from exc
        if answer is True:
            self._tell(request, allowed=True, why="")
            return
        if inspect.iscoroutine(answer):
            answer.close()
        why = "" if answer is False else f"the authorizer returned {type(answer).__name__}"
        self._tell(request, allowed=False, why=why)
        raise denied(request)

    def _tell(self, request: AccessRequest, *, allowed: bool, why: str) -> None:
        log = logger("memcore.access")
        level = _DEBUG if allowed else _WARNING
        if log.isEnabledFor(level):
            log.log(
                level,
                "%s %s%s",
                "allowed" if allowed else "denied",
                words_of(request),
                f": {why}" if why else "",
                extra={"memcore_access": request, "memcore_allowed": allowed},
            )
        for recorder in self.record or ():
            recorder(request, allowed)


def denied(request: AccessRequest) -> AccessDeniedError:
    """Build the error of a request; it names the request and reveals nothing else."""
    return AccessDeniedError(f"access denied: {words_of(request)}; ask whoever runs the database")


def words_of(request: AccessRequest) -> str:
    """Describe a request in bounded length; names are quoted, so none can start a new line."""
    whose = f"of user {_short(request.user)} in app {_short(request.app)}"
    named = "" if request.name is None else f" {_short(request.name)}"
    return f"{request.action}{named} {whose} for actor {_short(request.actor)}"


def _short(name: str | None) -> str:
    if name is None:
        return "(any)"
    return ascii(name if len(name) <= 80 else f"{name[:80]}...")  # noqa: PLR2004


def checked_authorizer(authorizer: Any) -> Authorizer | None:
    """``authorizer`` if it is a synchronous callable; None stays None.

    Raises:
        InvalidOptionError: it is not callable, or is a coroutine function, which would never be
            awaited.
    """
    if authorizer is None:
        return None
    call = getattr(authorizer, "__call__", None)  # noqa: B004 - an object with async __call__
    if not callable(authorizer):
        msg = f"authorizer: expected a callable or None, got {type(authorizer).__name__}"
        raise InvalidOptionError(msg)
    if inspect.iscoroutinefunction(authorizer) or inspect.iscoroutinefunction(call):
        msg = "authorizer: a coroutine function cannot be asked: handles are opened without await"
        raise InvalidOptionError(msg)
    found: Authorizer = authorizer
    return found
