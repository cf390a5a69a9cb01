"""Write filter: guards and redaction for everything about to be stored.

Every layer above the store passes what it persists through a ``ScopeFilter``, before it is encoded,
counted, hashed or compared. Lookup values (keys, namespaces, authors, types) are never altered: a
finding in one is refused. Names of users and sessions, and ids, do not go through the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from memcore import privacy
from memcore.errors import BlockedError

if TYPE_CHECKING:
    from memcore.privacy.guards import WriteContext, WriteGuard

__all__ = [
    "Filtered",
    "Redacts",
    "RedactsPlaces",
    "ScopeFilter",
    "Told",
    "WriteFilter",
]


_IN_LOGS: Final = ("quarantine", "drop")
"""Verdicts that leave a placeholder in a log."""

Told: TypeAlias = Callable[[Mapping[str, int]], None]
"""Called with the counts of findings by class, never with their text."""


class Redacts(Protocol):
    """Redactor of one place."""

    def value(self, value: Any, /) -> tuple[Any, Mapping[str, int]]:
        """Redact a JSON value; return it (the same object without findings) and counts by class."""

    def counted(self, text: str, /) -> tuple[str, Mapping[str, int]]:
        """Redact a text, like ``value``."""

    def counted_bytes(
        self, content: bytes, /, under: str | None = None
    ) -> tuple[bytes, Mapping[str, int]]:
        """Redact bytes stored under a key, like ``value``; bytes that are not text are kept."""


class RedactsPlaces(Protocol):
    """Source of redactors by place."""

    @property
    def scanned(self) -> int | None:
        """Classes that the scanner looks for; None if anything else may be found, too."""

    def for_place(self, app: str, user: str, session: str | None) -> Redacts:
        """Return the redactor of a session, or of a user."""


class Filtered(NamedTuple):
    """A value in the form in which it may be stored."""

    value: Any
    redacted: bool | None
    """True if something in it was replaced; None: not examined."""
    reason: str | None = None
    """Reason for the quarantine; None: not quarantined."""
    dropped: bool = False
    """True if none of it may be stored."""


class WriteFilter:
    """Guards and redaction for everything written to one database.

    Args:
        redaction: source of redactors; None: nothing is redacted.
        guards: judge each value; may be empty.
        reserve: source of redactors for values that a guard wants redacted, without ``redaction``.
        verdicts: returns the strictest verdict on the classes found; None: ``redact`` for all.
        allow_opaque: allow content that cannot be inspected (pickled, encrypted by a caller).
        told: called with the counts of all findings.
    """

    __slots__ = ("allow_opaque", "guards", "redaction", "reserve", "told", "verdicts")

    def __init__(
        self,
        redaction: RedactsPlaces | None,
        guards: Sequence[WriteGuard] = (),
        *,
        reserve: Callable[[], RedactsPlaces] | None = None,
        verdicts: Callable[[Iterable[str]], str] | None = None,
        allow_opaque: bool = False,
        told: Told | None = None,
    ) -> None:
        self.redaction = redaction
        self.guards = tuple(guards)
        self.reserve = reserve
        self.verdicts = verdicts
        self.allow_opaque = allow_opaque
        self.told = told

    def at(self, app: str, user: str, session: str | None = None) -> ScopeFilter:
        """Return the filter of a session, a user, or an application (no user)."""
        return ScopeFilter(self, app, user, session)

    @property
    def scanned(self) -> int | None:
        """Classes of the scanner, if what it finds nothing in may be stored as it is; else None."""
        return None if self.redaction is None or self.guards else self.redaction.scanned

    def redacts(self, redaction: RedactsPlaces, place: tuple[str, str, str | None]) -> Redacts:
        """Return the redactor of a place; it reports its findings to ``told``."""
        found = redaction.for_place(*place)
        return found if self.told is None else _Telling(found, self.told)


T = TypeVar("T")


class _Telling:
    """Redactor that reports the counts of its findings."""

    __slots__ = ("_redacts", "_told")

    def __init__(self, redacts: Redacts, told: Told) -> None:
        self._redacts = redacts
        self._told = told

    def value(self, value: Any, /) -> tuple[Any, Mapping[str, int]]:
        return self._tell(self._redacts.value(value))

    def counted(self, text: str, /) -> tuple[str, Mapping[str, int]]:
        return self._tell(self._redacts.counted(text))

    def counted_bytes(
        self, content: bytes, /, under: str | None = None
    ) -> tuple[bytes, Mapping[str, int]]:
        return self._tell(self._redacts.counted_bytes(content, under))

    def _tell(self, made: tuple[T, Mapping[str, int]]) -> tuple[T, Mapping[str, int]]:
        if made[1]:
            self._told(made[1])
        return made


class ScopeFilter:
    """Write filter of one place. Thread-safe."""

    __slots__ = ("_redacts", "_reserved", "_shared", "app", "session", "user", "write_filter")

    def __init__(self, write_filter: WriteFilter, app: str, user: str, session: str | None) -> None:
        self.write_filter = write_filter
        self.app = app
        self.user = user
        self.session = session
        redaction, place = write_filter.redaction, (app, user, session)
        self._redacts = None if redaction is None else write_filter.redacts(redaction, place)
        self._reserved: Redacts | None = None
        self._shared: tuple[ScopeFilter, ScopeFilter] | None = None

    @property
    def shared(self) -> tuple[ScopeFilter, ScopeFilter]:
        """Filters of what the user's sessions share, and of what all users share."""
        if self._shared is None:
            at = self.write_filter.at
            self._shared = at(self.app, self.user), at(self.app, "")
        return self._shared

    @property
    def redacts(self) -> bool:
        """True if there is a redaction policy."""
        return self._redacts is not None

    @property
    def allow_opaque(self) -> bool:
        """True if content that cannot be inspected may be stored."""
        return self._redacts is None or self.write_filter.allow_opaque

    def beside(self, session: str | None) -> ScopeFilter:
        """Return the filter of another session of the same user."""
        return (
            self if session == self.session else self.write_filter.at(self.app, self.user, session)
        )

    def item(self, message: Any, kind: str, source: str) -> Filtered:
        """Filter an item of the log; only items can be quarantined.

        Raises:
            BlockedError: a guard or the policy refuses it.
        """
        write = self._write(kind, source, None)
        judgement = privacy.judged(self.write_filter.guards, message, write)
        verdict: str = judgement.verdict
        reason = judgement.reason
        redacts = self._redactor(verdict)
        if redacts is None:
            return Filtered(message, None, _held(verdict, reason), verdict == "drop")
        value, found = redacts.value(message)
        if found and self.write_filter.verdicts is not None:
            verdict, reason = self._ruled(found, verdict, reason, write)
        return Filtered(value, bool(found), _held(verdict, reason), verdict == "drop")

    def value(
        self,
        value: Any,
        kind: str,
        *,
        name: str | None = None,
        under: str | None = None,
        source: str = "caller",
    ) -> Any:
        """Filter a JSON value other than an item; ``under``: the key that it is stored under.

        Raises:
            BlockedError: a guard or the policy refuses it, or would have it quarantined.
        """
        redacts, write = self._admitted(value, kind, source, name)
        if redacts is None:
            return value
        made, found = redacts.value(value if under is None else {under: value})
        self._rule(found, write)
        return made if under is None else _only(made)

    def text(self, text: str, kind: str, *, source: str = "caller") -> str:
        """Filter a text; raises what ``value`` raises."""
        redacts, write = self._admitted(text, kind, source, None)
        if redacts is None:
            return text
        made, found = redacts.counted(text)
        self._rule(found, write)
        return made

    def bytes(
        self,
        content: bytes,
        kind: str,
        *,
        name: str | None = None,
        under: str | None = None,
        source: str = "caller",
    ) -> bytes:
        """Filter bytes, redacted if they are text; raises what ``value`` raises."""
        redacts, write = self._admitted(content, kind, source, name)
        if redacts is None:
            return content
        made, found = redacts.counted_bytes(content, under)
        self._rule(found, write)
        return made

    def name(self, name: Any, what: str) -> None:
        """Refuse a name with findings: names are looked up and cannot hold placeholders.

        The error does not repeat it. A value that is not a str passes: its consumer refuses it.

        Raises:
            BlockedError: there is a policy, and it has findings.
        """
        if self._redacts is None or not isinstance(name, str):
            return
        found = self._redacts.counted(name)[1]
        if found:
            reason = f"the {what} holds {', '.join(sorted(found))}"
            msg = (
                f"{reason}, and it has to be stored as it is: use an id, or a keyed digest; "
                "nothing was stored"
            )
            raise BlockedError(msg, verdict="block", reason=reason)

    def judge(self, value: Any, kind: str, *, name: str | None = None) -> None:
        """Judge a value that is redacted elsewhere; raises what ``value`` raises."""
        self._admitted(value, kind, "caller", name)

    def again(self, value: Any, under: str | None = None) -> Any:
        """Redact JSON derived from an admitted value, without judging it again."""
        return value if self._redacts is None else redacted_value(self._redacts, value, under)

    def redactor(self, values: Iterable[tuple[str, Any]], kind: str) -> Redacts | None:
        """Judge values by name and return their redactor, or None.

        Raises:
            BlockedError: as for ``value``.
        """
        found = self._redacts
        if self.write_filter.guards:
            for name, value in values:
                found = self._admitted(value, kind, "caller", name)[0] or found
        return found

    # --- judging ----------------------------------------------------------------------------------

    def _admitted(
        self, value: Any, kind: str, source: str, name: str | None
    ) -> tuple[Redacts | None, WriteContext | None]:
        """Judge a value; return its redactor, and its context if guards or verdicts need it."""
        if not self.write_filter.guards:
            if self.write_filter.verdicts is None:
                return self._redacts, None
            return self._redacts, self._write(kind, source, name)
        write = self._write(kind, source, name)
        verdict, reason = privacy.judged(self.write_filter.guards, value, write)
        if verdict in _IN_LOGS:  # there is no log that could hold its placeholder
            raise privacy.blocked(write, reason)
        return self._redactor(verdict), write

    def _write(self, kind: str, source: str, name: str | None) -> WriteContext:
        place = self.app, self.user, self.session
        return privacy.WriteContext(*place, kind, source, name, operator=privacy.is_operator())

    def _rule(self, found: Mapping[str, int], write: WriteContext | None) -> None:
        """Apply the policy's verdicts to the findings."""
        if found and write is not None and self.write_filter.verdicts is not None:
            verdict, reason = self._ruled(found, "allow", "", write)
            if verdict in _IN_LOGS:
                raise privacy.blocked(write, reason)

    def _ruled(
        self, found: Mapping[str, int], verdict: str, reason: str, write: WriteContext
    ) -> tuple[str, str]:
        """Return the stricter of a verdict and the policy's verdict on the classes found."""
        assert self.write_filter.verdicts is not None  # noqa: S101 - checked by the callers
        by_policy = self.write_filter.verdicts(found)
        told = f"the policy says {by_policy} of {', '.join(sorted(found))}"
        if by_policy == "block":
            raise privacy.blocked(write, told)
        if privacy.VERDICTS.index(by_policy) <= max(
            privacy.VERDICTS.index(verdict), privacy.VERDICTS.index("redact")
        ):
            return verdict, reason
        return by_policy, told

    def _redactor(self, verdict: str) -> Redacts | None:
        if self._redacts is not None or verdict != "redact":
            return self._redacts
        if self._reserved is None and self.write_filter.reserve is not None:
            place = self.app, self.user, self.session
            self._reserved = self.write_filter.redacts(self.write_filter.reserve(), place)
        return self._reserved


def _held(verdict: str, reason: str) -> str | None:
    return reason if verdict == "quarantine" else None


def redacted_value(redacts: Redacts, value: Any, under: str | None) -> Any:
    """Redact a JSON value, given the key that it is stored under."""
    if under is None:
        return redacts.value(value)[0]
    return _only(redacts.value({under: value})[0])


def _only(made: dict[str, Any]) -> Any:
    """Return the value of the only entry, whose key may have been replaced, too."""
    (value,) = made.values()
    return value
