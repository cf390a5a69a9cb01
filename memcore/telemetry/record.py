"""What is told of an operation, and who is told: records and sinks. Never content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from memcore.errors import InvalidOptionError

__all__ = ["NAMES", "OK", "Record", "Sink", "Tell", "checked_names"]

OK: Final = "ok"
NAMES: Final = ("clear", "hashed", "none")
"""How a sink is told who did something: by name, by pseudonym, not at all."""


class Record(NamedTuple):
    """One operation on the public surface. No content, no keys of content, no texts of errors."""

    operation: str
    """As the table of docs/telemetry.md names it: ``append``, ``context``, ``kv.put``, ..."""
    status: str
    """``"ok"``, or the type of the error that it ended with."""
    duration_seconds: float
    """How long the caller waited; of an iterator, the time within it."""
    started_at: float
    """When it began: seconds since 1970."""
    app: str | None = None
    user: str | None = None
    session: str | None = None
    """The session, or the thread of a graph."""
    actor: str | None = None
    """Who acts for the user, if the handle is bound to somebody."""
    request_id: str | None = None
    adapter: str | None = None
    """The adapter that was called, None for memcore's own surface."""
    revision: int | None = None
    """The session's, as this process knew it last; of a state, its counter."""
    items: int | None = None
    """How many items (entries, sessions, ...) were stored, handed out or removed."""
    bytes: int | None = None
    """Encoded bytes of what was stored or handed out."""
    tokens: int | None = None
    """Of what was stored or is shown."""
    cut: int | None = None
    """The first seq behind the cut of a context."""
    ratio: float | None = None
    """Tokens after a compaction by those before it."""
    retries: int = 0
    """How often transactions of the operation were run again."""
    backend: str = "lmdb"
    durability: str = "full"

    @property
    def is_error(self) -> bool:
        """Whether it did not end well."""
        return self.status != OK

    def figures(self) -> dict[str, Any]:
        """Every field that has a value, by its name."""
        return {
            name: value for name, value in zip(self._fields, self, strict=True) if value is not None
        }


Tell = Callable[[Record], object]


class Sink:
    """Who is told of operations. Derive from it, or pass any callable that takes a ``Record``.

    A sink is called where the operation ran, after it: in the caller's thread or loop. What it
    raises is counted and logged once, and breaks nothing. Threads may call it at once.
    """

    names: str = "clear"
    """One of ``NAMES``: users, actors and sessions as they are, as pseudonyms, or left out."""
    enters: frozenset[str] = frozenset()
    """The operations that ``enter`` is to be called before."""

    def tell(self, record: Record) -> None:
        """Take one record."""
        raise NotImplementedError

    def enter(self, operation: str) -> Any:
        """An operation of ``enters`` begins; what it returns goes to ``leave``."""
        raise NotImplementedError

    def leave(self, entered: Any, record: Record) -> None:
        """An operation of ``enters`` has ended; ``entered`` is None if ``enter`` was not called."""
        raise NotImplementedError

    def redacted(self, found: Mapping[str, int], backend: str) -> None:
        """So many values of each class were redacted in a database of this backend."""

    def attach(self, store: Any) -> None:
        """A database was opened: ``store.stats()`` tells its sizes while it is open."""

    def flush(self) -> None:
        """Hand on what was kept back: a database is being closed."""


def checked_names(names: object) -> str:
    """``names`` if it is one of ``NAMES``.

    Raises:
        InvalidOptionError: it is not.
    """
    if names not in NAMES:
        known = ", ".join(map(repr, NAMES))
        msg = f"names: expected one of {known}, got {names!r:.80}"
        raise InvalidOptionError(msg)
    return str(names)
