"""Records of operations, their sinks, and measures of results; never content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any, Final, NamedTuple

from memcore.errors import InvalidOptionError
from memcore.model import CompactionResult

__all__ = [
    "MEASURES",
    "NAMES",
    "OK",
    "Figures",
    "Record",
    "Sink",
    "Tell",
    "checked_names",
]


# --- Records of operations and their sinks; never content -----------------------------------------

OK: Final = "ok"
NAMES: Final = ("clear", "hashed", "none")
"""Ways in which a sink names users, actors and sessions: in clear, as pseudonyms, or not at all."""


class Record(NamedTuple):
    """One operation on the public surface; no content, no content keys, no error texts."""

    operation: str
    """Name as in the table of docs/telemetry.md: ``append``, ``context``, ``kv.put``, ..."""
    status: str
    """``"ok"``, or the type of the error raised."""
    duration_seconds: float
    """Time that the caller waited; for an iterator, the time spent inside it."""
    started_at: float
    """Start, in seconds since 1970."""
    app: str | None = None
    user: str | None = None
    session: str | None = None
    """The session, or the thread of a graph."""
    actor: str | None = None
    """Actor to which the handle is bound, if any."""
    request_id: str | None = None
    adapter: str | None = None
    """The adapter called; None for memcore's own surface."""
    revision: int | None = None
    """The session's revision, as last known to this process; for a state, its counter."""
    items: int | None = None
    """Number of items (entries, sessions, ...) stored, returned or removed."""
    bytes: int | None = None
    """Encoded bytes stored or returned."""
    tokens: int | None = None
    """Tokens stored or shown."""
    cut: int | None = None
    """The first seq after the cut of a context."""
    ratio: float | None = None
    """Tokens after a compaction divided by those before it."""
    retries: int = 0
    """Number of times that the operation's transactions were rerun."""
    backend: str = "lmdb"
    durability: str = "full"

    @property
    def is_error(self) -> bool:
        """True if the operation did not succeed."""
        return self.status != OK

    def figures(self) -> dict[str, Any]:
        """The fields that are not None, by name."""
        return {
            name: value for name, value in zip(self._fields, self, strict=True) if value is not None
        }


Tell = Callable[[Record], object]


class Sink:
    """Receiver of operation records. Subclass it, or pass any callable that takes a ``Record``.

    A sink is called after the operation, in the caller's thread or loop. Its exceptions are
    counted, logged once per sink, and never affect the operation. It may be called concurrently
    from several threads.
    """

    names: str = "clear"
    """One of ``NAMES``: users, actors and sessions in clear, as pseudonyms, or not at all."""
    enters: frozenset[str] = frozenset()
    """The operations before which ``enter`` is called."""

    def tell(self, record: Record) -> None:
        """Receive one record."""
        raise NotImplementedError

    def enter(self, operation: str) -> Any:
        """Begin an operation of ``enters``; the result is passed to ``leave``."""
        raise NotImplementedError

    def leave(self, entered: Any, record: Record) -> None:
        """End an operation of ``enters``; ``entered`` is None if ``enter`` was not called."""
        raise NotImplementedError

    def redacted(self, found: Mapping[str, int], backend: str) -> None:
        """Receive the number of values redacted, by class, in a database of this backend."""

    def attach(self, store: Any) -> None:
        """Attach to an opened database: ``store.stats()`` returns its sizes while it is open."""

    def flush(self) -> None:
        """Pass on everything buffered: a database is being closed."""


def checked_names(names: object) -> str:
    """``names`` if it is one of ``NAMES``.

    Raises:
        InvalidOptionError: it is not one of them.
    """
    if names not in NAMES:
        known = ", ".join(map(repr, NAMES))
        msg = f"names: expected one of {known}, got {names!r:.80}"
        raise InvalidOptionError(msg)
    return str(names)


# --- Measures: figures taken from the result of an operation --------------------------------------


class Figures:
    """Figures of one operation, collected while it runs and from its result.

    Defaults are class attributes, since every append creates an instance and sets only a few.
    """

    revision: int | None = None
    items: int | None = None
    bytes: int | None = None
    tokens: int | None = None
    cut: int | None = None
    ratio: float | None = None
    durability: str | None = None
    transactions: int = 0
    """Closures passed to the store."""
    runs: int = 0
    """Runs of those closures."""

    change: Any = None
    """The change whose items were counted last."""

    def stored(self, prepared: Any) -> None:
        """Count items that are about to be stored."""
        size, tokens = self.bytes or 0, self.tokens or 0
        for item in prepared:
            size += len(item.body) + (0 if item.payload is None else len(item.payload))
            tokens += item.tokens
        self.items = (self.items or 0) + len(prepared)
        self.bytes, self.tokens = size, tokens


def _receipt(figures: Figures, result: Any) -> None:
    figures.revision = result.revision
    figures.items = result.appended


def _handle(figures: Figures, result: Any) -> None:
    seen = getattr(result, "seen_revision", None)
    if seen is not None:
        figures.revision = seen()


def _context(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens, figures.cut = len(result.messages), result.tokens, result.cut


def _checkpoint(figures: Figures, result: Any) -> None:
    figures.revision, figures.items = result.revision, result.items
    figures.tokens = result.tokens


def _compaction(figures: Figures, result: Any) -> None:
    if not isinstance(result, CompactionResult):
        return
    figures.revision = result.plan.revision
    if result.view is not None:
        view = result.view
        figures.items, figures.tokens = view.covered, view.tokens_after
        figures.cut = view.cut_seq + 1
        figures.ratio = view.tokens_after / view.tokens_before if view.tokens_before else None


def _recount(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = result.items, result.tokens


def _repair(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = len(result.repairs), result.tokens_after


def _imported(figures: Figures, result: Any) -> None:
    figures.items = result.items


def _file(figures: Figures, result: Any) -> None:
    figures.bytes, figures.durability = result.bytes_after, result.durability


def _count(figures: Figures, result: Any) -> None:
    if isinstance(result, Sized):
        figures.items = len(result)


def _one(figures: Figures, result: Any) -> None:
    figures.items, figures.tokens = 1, result.tokens


def _text(figures: Figures, result: Any) -> None:
    if isinstance(result, bytes | str):
        figures.bytes = len(result)


def _number(figures: Figures, result: Any) -> None:
    figures.items = result


def _counter(figures: Figures, result: Any) -> None:
    figures.revision = result


def _single(figures: Figures, _: Any) -> None:
    figures.items = 1


def _entries(figures: Figures, entries: Any) -> None:
    if isinstance(entries, Sized) and not isinstance(entries, str | bytes):
        figures.items = len(entries)


MEASURES: Final[dict[str, Callable[[Figures, Any], None]]] = {
    "handle": _handle,
    "receipt": _receipt,
    "context": _context,
    "checkpoint": _checkpoint,
    "compaction": _compaction,
    "recount": _recount,
    "repair": _repair,
    "imported": _imported,
    "file": _file,
    "count": _count,
    "one": _one,
    "text": _text,
    "number": _number,
    "counter": _counter,
    "single": _single,
    "entries": _entries,
}
