"""The border of the file: whatever is about to be stored is judged and redacted here.

Everything above the store hands what it persists to a ``Passage``, before it is encoded, counted,
hashed or compared. Names, keys and ids do not pass it: they are stored as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from memcore.privacy.guard import Write, WriteGuard, blocked, is_operator, judged

__all__ = ["Border", "Passage", "Passed", "Redacts", "RedactsPlaces"]


class Redacts(Protocol):
    """What replaces personal data at one place."""

    def text(self, text: str, /) -> str:
        """A text; the same object where nothing was found."""

    def value(self, value: Any, /) -> tuple[Any, Mapping[str, int]]:
        """A JSON value, and what was found by class; the same object where nothing was."""

    def bytes(self, content: bytes, /) -> bytes:
        """Bytes; those that are no UTF-8 come back as they are."""


class RedactsPlaces(Protocol):
    """What gives the redactor of a place."""

    def for_place(self, app: str, user: str, session: str | None) -> Redacts:
        """The redactor of a session, or of a user."""


class Passed(NamedTuple):
    """A value as it may be stored."""

    value: Any
    redacted: bool
    reason: str | None = None
    """Why it has to go to the quarantine; None: it has not."""


class Border:
    """What stands between callers and one database.

    Args:
        redaction: gives the redactors; None: nothing is redacted.
        guards: who judges; empty: nobody.
        reserve: redacts what a guard says must be, where ``redaction`` is None.
        allow_opaque: whether content that cannot be looked into (pickled, encrypted by a caller)
            may be stored.
    """

    __slots__ = ("allow_opaque", "guards", "redaction", "reserve")

    def __init__(
        self,
        redaction: RedactsPlaces | None,
        guards: Sequence[WriteGuard] = (),
        *,
        reserve: Callable[[], RedactsPlaces] | None = None,
        allow_opaque: bool = False,
    ) -> None:
        self.redaction = redaction
        self.guards = tuple(guards)
        self.reserve = reserve
        self.allow_opaque = allow_opaque

    def at(self, app: str, user: str, session: str | None = None) -> Passage:
        """The passage of a place: of a session, of a user, or of an application (no user)."""
        return Passage(self, app, user, session)


class Passage:
    """The border at one place. May be shared by threads."""

    __slots__ = ("_redacts", "_reserved", "_shared", "app", "border", "session", "user")

    def __init__(self, border: Border, app: str, user: str, session: str | None) -> None:
        self.border = border
        self.app = app
        self.user = user
        self.session = session
        redaction = border.redaction
        self._redacts = None if redaction is None else redaction.for_place(app, user, session)
        self._reserved: Redacts | None = None
        self._shared: tuple[Passage, Passage] | None = None

    @property
    def shared(self) -> tuple[Passage, Passage]:
        """The passages of what the sessions of the user share, and of what all users do."""
        if self._shared is None:
            at = self.border.at
            self._shared = at(self.app, self.user), at(self.app, "")
        return self._shared

    @property
    def redacts(self) -> bool:
        """Whether there is a policy."""
        return self._redacts is not None

    @property
    def allow_opaque(self) -> bool:
        """Whether content that cannot be looked into may be stored."""
        return self._redacts is None or self.border.allow_opaque

    def beside(self, session: str | None) -> Passage:
        """The passage of another session of the same user."""
        return self if session == self.session else self.border.at(self.app, self.user, session)

    def item(self, message: Any, kind: str, source: str) -> Passed:
        """What goes into the log: the one thing that may be quarantined.

        Raises:
            BlockedError: a guard refuses it.
        """
        verdict, reason = self._judged(message, kind, source, None)
        redacts = self._redactor(verdict)
        value, found = message, False
        if redacts is not None:
            value, classes = redacts.value(message)
            found = value is not message and bool(classes)
        return Passed(value, found, reason if verdict == "quarantine" else None)

    def value(
        self,
        value: Any,
        kind: str,
        *,
        name: str | None = None,
        under: str | None = None,
        source: str = "caller",
    ) -> Any:
        """JSON of any other sort. It stands ``under`` a key, which tells what it may be.

        Raises:
            BlockedError: a guard refuses it, or would have it quarantined.
        """
        redacts = self._admitted(value, kind, source, name)
        return value if redacts is None else redacted_value(redacts, value, under)

    def again(self, value: Any, under: str | None = None) -> Any:
        """JSON that came of what was admitted: it is redacted, and not judged once more."""
        return value if self._redacts is None else redacted_value(self._redacts, value, under)

    def text(self, text: str, kind: str, *, source: str = "caller") -> str:
        """A text; raises what ``value`` raises."""
        redacts = self._admitted(text, kind, source, None)
        return text if redacts is None else redacts.text(text)

    def bytes(
        self, content: bytes, kind: str, *, name: str | None = None, source: str = "caller"
    ) -> bytes:
        """Bytes, which are redacted if they are UTF-8; raises what ``value`` raises."""
        redacts = self._admitted(content, kind, source, name)
        return content if redacts is None else redacts.bytes(content)

    def judge(self, value: Any, kind: str, *, name: str | None = None) -> None:
        """Judge what is redacted elsewhere; raises what ``value`` raises."""
        self._admitted(value, kind, "caller", name)

    def _admitted(self, value: Any, kind: str, source: str, name: str | None) -> Redacts | None:
        if not self.border.guards:
            return self._redacts
        verdict, reason = self._judged(value, kind, source, name)
        if verdict == "quarantine":  # there is no log that could hold a placeholder of it
            raise blocked(self._write(kind, source, name), reason)
        return self._redactor(verdict)

    def _judged(self, value: Any, kind: str, source: str, name: str | None) -> tuple[str, str]:
        guards = self.border.guards
        if not guards:
            return "allow", ""
        found = judged(guards, value, self._write(kind, source, name))
        return found.verdict, found.reason

    def _write(self, kind: str, source: str, name: str | None) -> Write:
        place = self.app, self.user, self.session
        return Write(*place, kind, source, name, operator=is_operator())

    def _redactor(self, verdict: str) -> Redacts | None:
        if self._redacts is not None or verdict != "redact":
            return self._redacts
        if self._reserved is None and self.border.reserve is not None:
            place = self.app, self.user, self.session
            self._reserved = self.border.reserve().for_place(*place)
        return self._reserved


def redacted_value(redacts: Redacts, value: Any, under: str | None) -> Any:
    """A JSON value redacted as what stands under a key."""
    if under is None:
        return redacts.value(value)[0]
    return redacts.value({under: value})[0][under]
