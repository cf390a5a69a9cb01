"""Authorizer of an open database: asked who may open what before anything is looked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from memcore.errors import AccessDeniedError, InvalidOptionError
from memcore.faces import logger

__all__ = [
    "Access",
    "AccessRequest",
    "Authorizer",
    "checked_actor",
    "checked_authorizer",
]


_DEBUG: Final = 10
_WARNING: Final = 30
"""Levels of ``logging``."""


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """Operation that an authorizer is asked to allow, with its actor and object."""

    actor: str | None
    """Actor: as given to ``as_user`` or when the database was opened."""
    app: str | None
    """The application whose data it is about; None: of all."""
    user: str | None
    """The user whose data it is about; None: of all, or what all users of the application share."""
    action: str
    """``scope``, ``session``, ``kv``, ``blobs``, ``graph``, ``state``, ``app_state``, ``sessions``,
    ``delete_session``, ``erase``, ``hold``, ...; of the administrator ``scopes``, ``export``,
    ``check``, ...: see docs/isolation.md."""
    name: str | None = None
    """The session or namespace."""


Authorizer = Callable[[AccessRequest], bool]
"""True lets it pass; anything else, and any exception, refuses it."""
Recorder = Callable[[AccessRequest, bool], None]


@dataclass(frozen=True, slots=True)
class Access:
    """An authorizer, and the actor whom it is asked about."""

    authorizer: Authorizer
    actor: str | None = None
    record: list[Recorder] | None = None
    """Recorders of every decision, called before it takes effect; shared by all actors."""

    def of(self, actor: str | None) -> Access:
        """The same authorizer, asked about another actor."""
        return replace(self, actor=actor)

    def tell_also(self, recorder: Recorder) -> None:
        """Report every decision to a further function, too; what it raises denies access."""
        if self.record is not None:
            self.record.append(recorder)

    def need(
        self, action: str, *, app: str | None, user: str | None, name: str | None = None
    ) -> None:
        """Ask; returns only if it is allowed. No lock is held and no transaction open meanwhile.

        Raises:
            AccessDeniedError: it is not allowed, or the authorizer failed (its exception is the
                cause). What was asked for need not exist.
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
    """The error of a request: what was asked for, and nothing else."""
    return AccessDeniedError(f"access denied: {words_of(request)}; ask whoever runs the database")


def words_of(request: AccessRequest) -> str:
    """A request in words, of bounded length; quoted, so that no name makes a line of its own."""
    whose = f"of user {_short(request.user)} in app {_short(request.app)}"
    named = "" if request.name is None else f" {_short(request.name)}"
    return f"{request.action}{named} {whose} for actor {_short(request.actor)}"


def _short(name: str | None) -> str:
    if name is None:
        return "(any)"
    return ascii(name if len(name) <= 80 else f"{name[:80]}...")  # noqa: PLR2004


def checked_actor(actor: Any) -> str | None:
    """``actor`` if it is a str or None.

    Raises:
        InvalidOptionError: it is not.
    """
    if actor is not None and not isinstance(actor, str):
        msg = f"actor: expected a str or None, got {type(actor).__name__}"
        raise InvalidOptionError(msg)
    return actor


def checked_authorizer(authorizer: Any) -> Authorizer | None:
    """``authorizer`` if it can be called as it will be; None stays None.

    Raises:
        InvalidOptionError: it cannot, or it is a coroutine function, which nobody would await.
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
